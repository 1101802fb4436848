#include "models/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "models/rope.h"
#include "traces/safetensors.h"

enum { LISTED = 5, N_PARTS = 3 }; /* names printed before "..."; row blocks of the widest fused matrix (q, k, v) */
#define INDEX_LIMIT ((size_t)256 << 20)

/* A tensor of the checkpoint, whichever file it lies in. */
typedef struct {
    const char *name; /* owned by its file */
    const tv_st_tensor *tensor;
    const char *file;
    int used, hashed;
    uint64_t hash; /* XXH3 of the bytes */
} entry;

/* Names gathered for one message: how many, and the first few. */
typedef struct {
    size_t n;
    char text[600];
} name_list;

typedef struct {
    const char *dir;
    tv_st_file **files;
    size_t n_files;
    entry *entries; /* [n] in order of name */
    size_t n;
    name_list missing;
    size_t from_f32, from_f16;
    struct {
        tv_bf16 *data;
        size_t size;
    } scratch[N_PARTS]; /* converted parts of the matrix being packed */
    uint64_t done, total;
    const tv_progress *progress;
} source;

/* Where the tensors of a layer are; NULL where the layer has none. */
typedef struct {
    entry *input_norm, *post_norm, *q_norm, *k_norm;
    entry *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias;
    entry *gate, *up, *down;
    entry *router, *fused_gate_up, *fused_down; /* [E,D], [E,2F',D], [E,D,F'] */
    entry **experts;                            /* [E][gate, up, down], owned; NULL in the fused layout */
} layer_source;

typedef struct {
    void *arena; /* norms, embedding table, rope tables */
    size_t arena_bytes;
} owner;

static void list_add(name_list *list, const char *name) {
    size_t at = strlen(list->text), room = sizeof list->text - at;
    if (list->n < LISTED)
        snprintf(list->text + at, room, "%s%.100s", list->n ? ", " : "", name);
    else if (list->n == LISTED)
        snprintf(list->text + at, room, ", ...");
    list->n++;
}

static int compare_entries(const void *a, const void *b) {
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static entry *find(source *s, const char *name) {
    entry key = {.name = name};
    return s->n ? bsearch(&key, s->entries, s->n, sizeof key, compare_entries) : NULL;
}

/* Opening ---------------------------------------------------------------------------------------------------------- */

static tv_status open_single(source *s, const char *path, tv_err *err) {
    s->files = tv_xcalloc(1, sizeof *s->files);
    TV_TRY(tv_st_open(path, &s->files[0], err));
    s->n_files = 1;
    s->n = tv_st_count(s->files[0]);
    s->entries = tv_xcalloc(s->n + 1, sizeof *s->entries);
    for (size_t i = 0; i < s->n; i++) {
        const tv_st_tensor *t = tv_st_at(s->files[0], i);
        s->entries[i] = (entry){.name = t->name, .tensor = t, .file = tv_st_name(s->files[0])};
    }
    return TV_OK;
}

/* A shard is a plain file name of the checkpoint folder, so that an index cannot reach outside it. */
static int plain_name(const char *name) {
    return *name && *name != '.' && !strpbrk(name, "/\\") && !strstr(name, "..");
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct shard names of the index, sorted; the strings belong to map. */
static tv_status shard_names(const cJSON *map, const char *path, const char ***out, size_t *n, tv_err *err) {
    size_t count = 0, distinct = 0;
    for (const cJSON *item = map->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            return TV_FAIL(err, TV_EFORMAT, "%s: the file of %.200s is not a string", path, item->string);
        if (!plain_name(item->valuestring))
            return TV_FAIL(err, TV_EFORMAT,
                           "%s: %.200s is said to lie in \"%.200s\"; only plain file names of this folder are allowed",
                           path, item->string, item->valuestring);
        count++;
    }
    if (!count) return TV_FAIL(err, TV_EFORMAT, "%s: weight_map is empty", path);
    const char **names = tv_xmalloc(count * sizeof *names);
    count = 0;
    for (const cJSON *item = map->child; item; item = item->next) names[count++] = item->valuestring;
    qsort(names, count, sizeof *names, compare_names);
    for (size_t i = 0; i < count; i++)
        if (!distinct || strcmp(names[distinct - 1], names[i]) != 0) names[distinct++] = names[i];
    *out = names, *n = distinct;
    return TV_OK;
}

static tv_status open_shards(source *s, const char **names, size_t n, tv_err *err) {
    name_list absent = {0};
    for (size_t i = 0; i < n; i++) {
        char *file = tv_path_join(s->dir, names[i]);
        if (!tv_path_exists(file)) list_add(&absent, names[i]);
        free(file);
    }
    if (absent.n)
        return TV_FAIL(err, TV_EIO, "%s: %zu of %zu files of the index are missing: %s (incomplete download?)", s->dir,
                       absent.n, n, absent.text);
    s->files = tv_xcalloc(n, sizeof *s->files);
    for (size_t i = 0; i < n; i++) {
        char *file = tv_path_join(s->dir, names[i]);
        tv_status status = tv_st_open(file, &s->files[i], err);
        free(file);
        TV_TRY(status);
        s->n_files++;
    }
    return TV_OK;
}

/* The index decides which file a tensor comes from; what else a file holds is left alone. */
static tv_status map_entries(source *s, const cJSON *map, const char *path, const char **names, tv_err *err) {
    size_t count = 0, held = 0;
    name_list lost = {0};
    for (const cJSON *item = map->child; item; item = item->next) count++;
    s->entries = tv_xcalloc(count, sizeof *s->entries);
    for (const cJSON *item = map->child; item; item = item->next) {
        const char **at = bsearch(&item->valuestring, names, s->n_files, sizeof *names, compare_names);
        const tv_st_file *file = s->files[at - names];
        const tv_st_tensor *t = tv_st_find(file, item->string);
        if (t)
            s->entries[s->n++] = (entry){.name = t->name, .tensor = t, .file = tv_st_name(file)};
        else
            list_add(&lost, item->string);
    }
    if (lost.n)
        return TV_FAIL(err, TV_EFORMAT, "%s: %zu tensors are not in the file the index gives for them: %s", path,
                       lost.n, lost.text);
    for (size_t i = 0; i < s->n_files; i++) held += tv_st_count(s->files[i]);
    if (held > s->n)
        tv_note("%s: the files hold %zu tensors that the index does not give to them; they are ignored", path,
                held - s->n);
    return TV_OK;
}

static tv_status open_index(source *s, const char *path, tv_err *err) {
    cJSON *json = NULL;
    const char **names = NULL;
    size_t n = 0;
    TV_TRY(tv_json_load(path, INDEX_LIMIT, &json, err));
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map");
    tv_status status = cJSON_IsObject(map) ? shard_names(map, path, &names, &n, err)
                                           : TV_FAIL(err, TV_EFORMAT, "%s: has no weight_map", path);
    if (status == TV_OK) status = open_shards(s, names, n, err);
    if (status == TV_OK) status = map_entries(s, map, path, names, err);
    free(names);
    cJSON_Delete(json);
    return status;
}

static tv_status source_open(source *s, const char *dir, tv_err *err) {
    s->dir = dir;
    char *single = tv_path_join(dir, "model.safetensors"), *index = tv_path_join(dir, "model.safetensors.index.json");
    tv_status status;
    if (tv_path_exists(single))
        status = open_single(s, single, err);
    else if (tv_path_exists(index))
        status = open_index(s, index, err);
    else
        status = TV_FAIL(
            err, TV_EIO,
            "%s: holds neither model.safetensors nor model.safetensors.index.json (other weight formats are not read)",
            dir);
    free(single), free(index);
    TV_TRY(status);
    qsort(s->entries, s->n, sizeof *s->entries, compare_entries);
    for (size_t i = 0; i < s->n; i++) s->total += s->entries[i].tensor->bytes;
    return TV_OK;
}

static void source_close(source *s) {
    for (size_t i = 0; i < s->n_files; i++) tv_st_close(s->files[i]);
    for (int i = 0; i < N_PARTS; i++) free(s->scratch[i].data);
    free(s->files);
    free(s->entries);
}

/* Binding ---------------------------------------------------------------------------------------------------------- */

static void print_shape(char *buf, size_t size, int n_dims, const int64_t *shape) {
    size_t at = (size_t)snprintf(buf, size, "[");
    for (int i = 0; i < n_dims && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s%lld", i ? "," : "", (long long)shape[i]);
    if (at < size) snprintf(buf + at, size - at, "]");
}

/* Finds the tensor and checks it. An absent one goes to the list of missing names, and *out is NULL. */
static tv_status need(source *s, entry **out, int n_dims, int64_t d0, int64_t d1, int64_t d2, tv_err *err,
                      const char *fmt, ...) TV_PRINTF(8, 9);
static tv_status need(source *s, entry **out, int n_dims, int64_t d0, int64_t d1, int64_t d2, tv_err *err,
                      const char *fmt, ...) {
    char name[200], want_text[100], found_text[250];
    const int64_t want[3] = {d0, d1, d2};
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    entry *e = *out = find(s, name);
    if (!e) {
        list_add(&s->missing, name);
        return TV_OK;
    }
    e->used = 1;
    const tv_st_tensor *t = e->tensor;
    print_shape(want_text, sizeof want_text, n_dims, want);
    print_shape(found_text, sizeof found_text, t->n_dims, t->shape);
    if (t->dtype != TV_BF16 && t->dtype != TV_F16 && t->dtype != TV_F32)
        return TV_FAIL(err, TV_EUNSUPPORTED, "%s: tensor %s: expected BF16, F16 or F32 %s, found %s %s", e->file, name,
                       want_text, tv_dtype_name(t->dtype), found_text);
    int same = t->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++) same = t->shape[i] == want[i];
    if (!same)
        return TV_FAIL(err, TV_EFORMAT,
                       "%s: tensor %s: expected shape %s, found %s %s (does config.json belong to these weights?)",
                       e->file, name, want_text, tv_dtype_name(t->dtype), found_text);
    s->from_f32 += t->dtype == TV_F32;
    s->from_f16 += t->dtype == TV_F16;
    return TV_OK;
}
#define NEED1(field, d0, ...) TV_TRY(need(s, &(field), 1, (d0), 0, 0, err, __VA_ARGS__))
#define NEED2(field, d0, d1, ...) TV_TRY(need(s, &(field), 2, (d0), (d1), 0, err, __VA_ARGS__))
#define NEED3(field, d0, d1, d2, ...) TV_TRY(need(s, &(field), 3, (d0), (d1), (d2), err, __VA_ARGS__))

static tv_status bind_experts(source *s, const tv_config *c, int l, layer_source *w, tv_err *err) {
    const int64_t D = c->d_model, F = c->d_ff_expert, E = c->n_experts;
    char fused[100], single[100];
    snprintf(fused, sizeof fused, "model.layers.%d.mlp.experts.gate_up_proj", l);
    snprintf(single, sizeof single, "model.layers.%d.mlp.experts.0.gate_proj.weight", l);
    NEED2(w->router, E, D, "model.layers.%d.mlp.gate.weight", l);
    if (find(s, fused)) {
        if (find(s, single))
            return TV_FAIL(err, TV_EFORMAT, "%s: the experts of layer %d are there twice, as %s and as %s", s->dir, l,
                           fused, single);
        NEED3(w->fused_gate_up, E, 2 * F, D, "%s", fused);
        NEED3(w->fused_down, E, D, F, "model.layers.%d.mlp.experts.down_proj", l);
        return TV_OK;
    }
    w->experts = tv_xcalloc((size_t)(3 * E), sizeof *w->experts);
    for (int e = 0; e < E; e++) {
        NEED2(w->experts[3 * e + 0], F, D, "model.layers.%d.mlp.experts.%d.gate_proj.weight", l, e);
        NEED2(w->experts[3 * e + 1], F, D, "model.layers.%d.mlp.experts.%d.up_proj.weight", l, e);
        NEED2(w->experts[3 * e + 2], D, F, "model.layers.%d.mlp.experts.%d.down_proj.weight", l, e);
    }
    return TV_OK;
}

static tv_status bind_layer(source *s, const tv_config *c, int l, layer_source *w, tv_err *err) {
    const int64_t D = c->d_model, HS = c->head_size, Q = c->n_heads * HS, KV = c->n_kv_heads * HS, F = c->d_ff;
    NEED1(w->input_norm, D, "model.layers.%d.input_layernorm.weight", l);
    NEED1(w->post_norm, D, "model.layers.%d.post_attention_layernorm.weight", l);
    NEED2(w->q, Q, D, "model.layers.%d.self_attn.q_proj.weight", l);
    NEED2(w->k, KV, D, "model.layers.%d.self_attn.k_proj.weight", l);
    NEED2(w->v, KV, D, "model.layers.%d.self_attn.v_proj.weight", l);
    NEED2(w->o, D, Q, "model.layers.%d.self_attn.o_proj.weight", l);
    if (c->qkv_bias) {
        NEED1(w->q_bias, Q, "model.layers.%d.self_attn.q_proj.bias", l);
        NEED1(w->k_bias, KV, "model.layers.%d.self_attn.k_proj.bias", l);
        NEED1(w->v_bias, KV, "model.layers.%d.self_attn.v_proj.bias", l);
    }
    if (c->o_bias) NEED1(w->o_bias, D, "model.layers.%d.self_attn.o_proj.bias", l);
    if (c->family != TV_QWEN2) {
        NEED1(w->q_norm, HS, "model.layers.%d.self_attn.q_norm.weight", l);
        NEED1(w->k_norm, HS, "model.layers.%d.self_attn.k_norm.weight", l);
    }
    if (c->layer_sparse[l]) return bind_experts(s, c, l, w, err);
    NEED2(w->gate, F, D, "model.layers.%d.mlp.gate_proj.weight", l);
    NEED2(w->up, F, D, "model.layers.%d.mlp.up_proj.weight", l);
    NEED2(w->down, D, F, "model.layers.%d.mlp.down_proj.weight", l);
    return TV_OK;
}

/* The output matrix. Tied models often carry a copy: the same bytes are no news, other bytes are ignored aloud. */
static tv_status bind_head(source *s, const tv_config *c, entry *embed, entry **head, tv_err *err) {
    const int64_t V = c->vocab_size, D = c->d_model;
    if (!c->tie_embeddings) return need(s, head, 2, V, D, 0, err, "lm_head.weight");
    entry *own = find(s, "lm_head.weight");
    *head = embed;
    if (!own || !embed) return TV_OK;
    own->used = 1;
    const tv_st_tensor *a = own->tensor, *b = embed->tensor;
    if (a->dtype != b->dtype || a->bytes != b->bytes || memcmp(a->data, b->data, a->bytes) != 0)
        tv_warn("%s: tie_word_embeddings is true but lm_head.weight differs from model.embed_tokens.weight; "
                "lm_head.weight is ignored",
                s->dir);
    return TV_OK;
}

/* Old files carry the rotary frequencies, which follow from the configuration. */
static int is_rotary(const char *name) {
    size_t n = strlen(name), m = strlen("rotary_emb.inv_freq");
    return n >= m && strcmp(name + n - m, "rotary_emb.inv_freq") == 0;
}

static void report_unused(source *s) {
    name_list unused = {0};
    for (size_t i = 0; i < s->n; i++)
        if (!s->entries[i].used && !is_rotary(s->entries[i].name)) list_add(&unused, s->entries[i].name);
    if (unused.n) tv_warn("%s: %zu tensors of the checkpoint are not used: %s", s->dir, unused.n, unused.text);
    if (s->from_f32 + s->from_f16)
        tv_note("%s: %zu F32 and %zu F16 tensors are converted to bf16 (round to nearest even)", s->dir, s->from_f32,
                s->from_f16);
}

/* Packing ---------------------------------------------------------------------------------------------------------- */

static void hash_entry(source *s, entry *e) {
    if (e->hashed) return;
    e->hash = XXH3_64bits(e->tensor->data, e->tensor->bytes);
    e->hashed = 1;
    s->done += e->tensor->bytes;
    tv_progress_report(s->progress, s->done, s->total);
}

/* count elements of e from element first on, as bf16 in host memory (any alignment), valid until slot is used again.
 * Refuses what is not finite there: a NaN would be in every result, and an F32 value can lie beyond what bf16 holds. */
static tv_status fetch(source *s, entry *e, size_t first, size_t count, int slot, const void **out, tv_err *err) {
    hash_entry(s, e);
    const unsigned char *data = e->tensor->data + first * tv_dtype_size(e->tensor->dtype);
    if (e->tensor->dtype != TV_BF16) {
        if (s->scratch[slot].size < count) {
            free(s->scratch[slot].data);
            s->scratch[slot].size = 0;
            s->scratch[slot].data = malloc(count * sizeof(tv_bf16));
            if (!s->scratch[slot].data)
                return TV_FAIL(err, TV_ENOMEM, "%s: no %zu bytes to convert %s", e->file, count * 2, e->name);
            s->scratch[slot].size = count;
        }
        tv_bf16 *converted = s->scratch[slot].data;
        for (size_t i = 0; i < count; i++) {
            float f;
            uint16_t h;
            if (e->tensor->dtype == TV_F32)
                memcpy(&f, data + 4 * i, 4);
            else
                memcpy(&h, data + 2 * i, 2), f = tv_f32_from_f16(h);
            converted[i] = tv_bf16_from_f32(f);
        }
        data = (const unsigned char *)converted;
    }
    unsigned bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t h;
        memcpy(&h, data + 2 * i, 2);
        bad |= (h & 0x7f80) == 0x7f80;
    }
    for (size_t i = 0; bad && i < count; i++) {
        uint16_t h;
        memcpy(&h, data + 2 * i, 2);
        if ((h & 0x7f80) == 0x7f80)
            return TV_FAIL(err, TV_ENUMERIC, "%s: tensor %s: element %zu is %g as bf16, not a finite number", e->file,
                           e->name, first + i, (double)tv_f32_from_bf16(h));
    }
    *out = data;
    return TV_OK;
}

/* Row blocks of a fused matrix: rows first_row .. first_row+n_rows-1 of a tensor whose rows have K elements. */
typedef struct {
    entry *e;
    size_t first_row;
    int n_rows;
    entry *bias; /* NULL: none */
} part;

/* dtype: what the weights are rounded to before they are packed; biases stay as they are. */
static tv_status load_matrix(tv_model *m, source *s, tv_weight_dtype dtype, int n_parts, const part *parts, int K,
                             tv_matrix *out, tv_err *err) {
    const void *data[N_PARTS], *bias[N_PARTS];
    int rows[N_PARTS], N = 0;
    tv_bf16 *bias_copy = NULL, *quantized = NULL;
    tv_packed_rows packed[N_PARTS] = {0};
    tv_status status = TV_OK;
    for (int p = 0; p < n_parts; p++) rows[p] = parts[p].n_rows, N += rows[p];
    if (parts[0].bias) { /* copied out first: the slots are needed for the blocks, and the mapping may be misaligned */
        size_t at = 0;
        bias_copy = tv_xmalloc((size_t)N * sizeof *bias_copy);
        for (int p = 0; p < n_parts && status == TV_OK; p++) {
            const void *from = NULL;
            status = fetch(s, parts[p].bias, 0, (size_t)rows[p], 0, &from, err);
            if (status == TV_OK) memcpy(bias_copy + at, from, (size_t)rows[p] * sizeof *bias_copy);
            bias[p] = bias_copy + at;
            at += (size_t)rows[p];
        }
    }
    for (int p = 0; p < n_parts && status == TV_OK; p++)
        status = fetch(s, parts[p].e, parts[p].first_row * (size_t)K, (size_t)rows[p] * (size_t)K, p, &data[p], err);
    const int pack = dtype != TV_WEIGHTS_BF16 && m->ops->matrix_load_packed;
    if (status == TV_OK && dtype != TV_WEIGHTS_BF16) {
        size_t at = 0;
        quantized = pack ? NULL : malloc((size_t)N * (size_t)K * sizeof *quantized);
        int memory = pack || quantized;
        for (int p = 0; p < n_parts && memory; p++) {
            if (pack) {
                memory = tv_weights_pack(dtype, data[p], rows[p], K, &packed[p]);
            } else {
                tv_weights_quantize(dtype, data[p], rows[p], K, quantized + at);
                data[p] = quantized + at;
                at += (size_t)rows[p] * (size_t)K;
            }
        }
        if (!memory)
            status = TV_FAIL(err, TV_ENOMEM, "%s: no memory to quantize %s", parts[0].e->file, parts[0].e->name);
    }
    if (status == TV_OK && pack)
        status = m->ops->matrix_load_packed(m->dev, n_parts, packed, rows, bias_copy ? bias : NULL, K, out, err);
    else if (status == TV_OK)
        status = m->ops->matrix_load(m->dev, n_parts, data, rows, bias_copy ? bias : NULL, K, out, err);
    if (status == TV_OK) m->bytes += ((uint64_t)N * (uint64_t)K + (bias_copy ? (uint64_t)N : 0)) * sizeof(tv_bf16);
    free(bias_copy), free(quantized);
    for (int p = 0; p < N_PARTS; p++) tv_weights_packed_free(&packed[p]);
    return status;
}

static tv_status load_vector(tv_model *m, source *s, entry *e, size_t count, tv_bf16 *out, tv_err *err) {
    const void *data;
    TV_TRY(fetch(s, e, 0, count, 0, &data, err));
    return m->ops->upload(m->dev, out, data, count * sizeof(tv_bf16), err);
}

static tv_status load_experts(tv_model *m, source *s, const layer_source *w, tv_layer *layer, tv_err *err) {
    const tv_config *c = &m->config;
    const int D = c->d_model, F = c->d_ff_expert;
    layer->expert_gate_up = tv_xcalloc((size_t)c->n_experts, sizeof *layer->expert_gate_up);
    layer->expert_down = tv_xcalloc((size_t)c->n_experts, sizeof *layer->expert_down);
    TV_TRY(load_matrix(m, s, TV_WEIGHTS_BF16, 1, (part[]){{w->router, 0, c->n_experts, NULL}}, D, &layer->router, err));
    for (size_t e = 0; e < (size_t)c->n_experts; e++) {
        part gate_up[2], down;
        if (w->experts) {
            gate_up[0] = (part){w->experts[3 * e], 0, F, NULL};
            gate_up[1] = (part){w->experts[3 * e + 1], 0, F, NULL};
            down = (part){w->experts[3 * e + 2], 0, D, NULL};
        } else {
            gate_up[0] = (part){w->fused_gate_up, 2 * e * (size_t)F, F, NULL};
            gate_up[1] = (part){w->fused_gate_up, (2 * e + 1) * (size_t)F, F, NULL};
            down = (part){w->fused_down, e * (size_t)D, D, NULL};
        }
        TV_TRY(load_matrix(m, s, m->weight_dtype, 2, gate_up, D, &layer->expert_gate_up[e], err));
        TV_TRY(load_matrix(m, s, m->weight_dtype, 1, &down, F, &layer->expert_down[e], err));
    }
    return TV_OK;
}

static tv_status load_layer(tv_model *m, source *s, const layer_source *w, int l, tv_err *err) {
    const tv_config *c = &m->config;
    const int D = c->d_model, HS = c->head_size, Q = c->n_heads * HS, KV = c->n_kv_heads * HS, F = c->d_ff;
    tv_layer *layer = &m->layers[l];
    TV_TRY(load_vector(m, s, w->input_norm, (size_t)D, layer->input_norm, err));
    TV_TRY(load_vector(m, s, w->post_norm, (size_t)D, layer->post_norm, err));
    if (w->q_norm) TV_TRY(load_vector(m, s, w->q_norm, (size_t)HS, layer->q_norm, err));
    if (w->k_norm) TV_TRY(load_vector(m, s, w->k_norm, (size_t)HS, layer->k_norm, err));
    const part qkv[3] = {{w->q, 0, Q, w->q_bias}, {w->k, 0, KV, w->k_bias}, {w->v, 0, KV, w->v_bias}};
    TV_TRY(load_matrix(m, s, m->weight_dtype, 3, qkv, D, &layer->qkv, err));
    TV_TRY(load_matrix(m, s, m->weight_dtype, 1, (part[]){{w->o, 0, D, w->o_bias}}, Q, &layer->o, err));
    if (c->layer_sparse[l]) return load_experts(m, s, w, layer, err);
    TV_TRY(load_matrix(m, s, m->weight_dtype, 2, (part[]){{w->gate, 0, F, NULL}, {w->up, 0, F, NULL}}, D,
                       &layer->gate_up, err));
    return load_matrix(m, s, m->weight_dtype, 1, (part[]){{w->down, 0, D, NULL}}, F, &layer->down, err);
}

/* Places everything that is not a packed matrix behind base, each at 64 bytes; returns the bytes taken. Run with base 0
 * it only measures. */
static size_t lay_out(tv_model *m, uintptr_t base) {
    const tv_config *c = &m->config;
    const size_t D = (size_t)c->d_model, HS = (size_t)c->head_size, V = (size_t)c->vocab_size;
    size_t at = 0;
#define PLACE(field, count)                                                                                            \
    do {                                                                                                               \
        (field) = (tv_bf16 *)(base + at);                                                                              \
        at += ((count) * sizeof(tv_bf16) + 63) & ~(size_t)63;                                                          \
    } while (0)
    PLACE(m->embed, V * D);
    PLACE(m->norm, D);
    PLACE(m->cos, (size_t)c->max_positions * HS / 2);
    PLACE(m->sin, (size_t)c->max_positions * HS / 2);
    for (int l = 0; l < c->n_layers; l++) {
        PLACE(m->layers[l].input_norm, D);
        PLACE(m->layers[l].post_norm, D);
        if (c->family == TV_QWEN2) continue;
        PLACE(m->layers[l].q_norm, HS);
        PLACE(m->layers[l].k_norm, HS);
    }
#undef PLACE
    return at;
}

static tv_status load_rope(tv_model *m, tv_err *err) {
    size_t count = (size_t)m->config.max_positions * (size_t)m->config.head_size / 2;
    tv_bf16 *tables = malloc(2 * count * sizeof *tables);
    if (!tables)
        return TV_FAIL(err, TV_ENOMEM, "%s: no %zu bytes for the rope tables", m->dir, 2 * count * sizeof *tables);
    tv_rope_tables(&m->config, tables, tables + count);
    tv_status s = m->ops->upload(m->dev, m->cos, tables, count * sizeof *tables, err);
    if (s == TV_OK) s = m->ops->upload(m->dev, m->sin, tables + count, count * sizeof *tables, err);
    if (s == TV_OK) s = m->ops->sync(m->dev, err); /* tables goes away */
    free(tables);
    return s;
}

static uint64_t hash_all(source *s) {
    XXH3_state_t *state = XXH3_createState();
    TV_ASSERT(state);
    XXH3_64bits_reset(state);
    for (size_t i = 0; i < s->n; i++) {
        entry *e = &s->entries[i];
        const char *dtype = tv_dtype_name(e->tensor->dtype);
        int64_t n_dims = e->tensor->n_dims;
        hash_entry(s, e);
        XXH3_64bits_update(state, e->name, strlen(e->name) + 1);
        XXH3_64bits_update(state, dtype, strlen(dtype) + 1);
        XXH3_64bits_update(state, &n_dims, sizeof n_dims);
        XXH3_64bits_update(state, e->tensor->shape, (size_t)n_dims * sizeof *e->tensor->shape);
        XXH3_64bits_update(state, &e->hash, sizeof e->hash);
    }
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}

/* Everything is found and checked before the first byte is packed. */
static tv_status load(tv_model *m, source *s, layer_source *layers, tv_err *err) {
    const tv_config *c = &m->config;
    const int V = c->vocab_size, D = c->d_model;
    owner *own = m->owner;
    entry *embed, *norm, *head;
    TV_TRY(source_open(s, m->dir, err));
    NEED2(embed, V, D, "model.embed_tokens.weight");
    for (int l = 0; l < c->n_layers; l++) TV_TRY(bind_layer(s, c, l, &layers[l], err));
    NEED1(norm, D, "model.norm.weight");
    TV_TRY(bind_head(s, c, embed, &head, err));
    if (s->missing.n)
        return TV_FAIL(err, TV_EFORMAT, "%s: %zu tensors that the model needs are missing: %s", m->dir, s->missing.n,
                       s->missing.text);
    report_unused(s);

    own->arena_bytes = lay_out(m, 0);
    TV_TRY(m->ops->alloc(m->dev, own->arena_bytes, &own->arena, err));
    lay_out(m, (uintptr_t)own->arena);
    m->bytes = own->arena_bytes;
    TV_TRY(load_rope(m, err));
    TV_TRY(load_vector(m, s, embed, (size_t)V * (size_t)D, m->embed, err));
    for (int l = 0; l < c->n_layers; l++) TV_TRY(load_layer(m, s, &layers[l], l, err));
    TV_TRY(load_vector(m, s, norm, (size_t)D, m->norm, err));
    TV_TRY(load_matrix(m, s, TV_WEIGHTS_BF16, 1, (part[]){{head, 0, V, NULL}}, D, &m->lm_head, err));
    m->hash = hash_all(s);
    return m->ops->sync(m->dev, err); /* the mappings go away */
}

tv_status tv_model_load(const char *dir, const tv_ops *ops, tv_dev *dev, tv_weight_dtype dtype,
                        const tv_progress *progress, tv_model **out, tv_err *err) {
    *out = NULL;
    tv_model *m = tv_xcalloc(1, sizeof *m);
    source s = {.progress = progress};
    layer_source *layers = NULL;
    m->ops = ops, m->dev = dev, m->weight_dtype = dtype;
    m->dir = tv_xstrdup(dir);
    m->owner = tv_xcalloc(1, sizeof(owner));
    tv_status status = tv_config_load(dir, &m->config, err);
    if (status == TV_OK) {
        m->layers = tv_xcalloc((size_t)m->config.n_layers, sizeof *m->layers);
        layers = tv_xcalloc((size_t)m->config.n_layers, sizeof *layers);
        status = load(m, &s, layers, err);
    }
    for (int l = 0; layers && l < m->config.n_layers; l++) free(layers[l].experts);
    free(layers);
    source_close(&s);
    if (status == TV_OK)
        *out = m;
    else
        tv_model_free(m);
    return status;
}

static void free_matrix(const tv_model *m, tv_matrix *matrix) {
    if (matrix->data) m->ops->matrix_free(m->dev, matrix);
}

void tv_model_free(tv_model *m) {
    if (!m) return;
    owner *own = m->owner;
    for (int l = 0; m->layers && l < m->config.n_layers; l++) {
        tv_layer *layer = &m->layers[l];
        free_matrix(m, &layer->qkv);
        free_matrix(m, &layer->o);
        free_matrix(m, &layer->gate_up);
        free_matrix(m, &layer->down);
        free_matrix(m, &layer->router);
        for (int e = 0; e < m->config.n_experts; e++) {
            if (layer->expert_gate_up) free_matrix(m, &layer->expert_gate_up[e]);
            if (layer->expert_down) free_matrix(m, &layer->expert_down[e]);
        }
        free(layer->expert_gate_up);
        free(layer->expert_down);
    }
    free_matrix(m, &m->lm_head);
    if (own->arena) m->ops->free(m->dev, own->arena, own->arena_bytes);
    tv_config_free(&m->config);
    free(m->layers);
    free(own);
    free(m->dir);
    free(m);
}
