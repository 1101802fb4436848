/* Checkpoint loading: every tensor bound by name, with what public readers got wrong refused. A recording device keeps
 * each packed matrix as plain rows, so that the bytes that reach a device can be compared. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "bench/random_model.c"
#include "models/weights.h"
#include "tests/check.h"
#include "tests/tiny_checkpoint.h"

/* The recording device ----------------------------------------------------------------------------------------------
 */

struct tv_dev {
    int live;       /* allocations and matrices not yet freed */
    int fail_after; /* > 0: the call that takes memory with this number fails */
    int calls;
};

static tv_status take(tv_dev *dev, size_t bytes, void **p, tv_err *err) {
    if (++dev->calls == dev->fail_after) return TV_FAIL(err, TV_ENOMEM, "recording device: no memory");
    *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    TV_ASSERT(*p);
    memset(*p, 0, (bytes + 63) / 64 * 64);
    dev->live++;
    return TV_OK;
}

static void give(tv_dev *dev, void *p, size_t bytes) {
    (void)bytes;
    free(p);
    dev->live--;
}

static tv_status put(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err) {
    (void)dev, (void)err;
    memcpy(dst, src, bytes);
    return TV_OK;
}

static tv_status done(tv_dev *dev, tv_err *err) {
    (void)dev, (void)err;
    return TV_OK;
}

/* data: [N,K] bf16 plain rows, then the biases */
static tv_status keep_matrix(tv_dev *dev, int n_parts, const void *const *parts, const int *part_N,
                             const void *const *bias, int K, tv_matrix *out, tv_err *err) {
    size_t N = 0, at = 0;
    void *p;
    for (int i = 0; i < n_parts; i++) N += (size_t)part_N[i];
    TV_TRY(take(dev, (N * (size_t)K + N) * 2, &p, err));
    tv_bf16 *data = p, *b = data + N * (size_t)K;
    for (int i = 0; i < n_parts; i++) {
        memcpy(data + at * (size_t)K, parts[i], (size_t)part_N[i] * (size_t)K * 2);
        if (bias) memcpy(b + at, bias[i], (size_t)part_N[i] * 2);
        at += (size_t)part_N[i];
    }
    *out = (tv_matrix){.N = (int)N, .K = K, .data = p, .bias = bias ? b : NULL};
    return TV_OK;
}

static void drop_matrix(tv_dev *dev, tv_matrix *m) {
    give(dev, m->data, 0);
    m->data = NULL;
}

static const tv_ops recorder = {.name = "recorder",
                                .alloc = take,
                                .free = give,
                                .upload = put,
                                .sync = done,
                                .matrix_load = keep_matrix,
                                .matrix_free = drop_matrix};

/* Helpers -----------------------------------------------------------------------------------------------------------
 */

static const char *sub(const char *name) {
    static char paths[8][600];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", tv_test_dir(), name);
    return path;
}

static tv_status load(const char *dir, tv_dev *dev, tv_model **m, tv_err *err) {
    return tv_model_load(dir, &recorder, dev, TV_WEIGHTS_BF16, NULL, m, err);
}

/* Writes c to a folder of its own and loads it. */
static tv_status load_tiny(const tiny_checkpoint *c, const char *name, tv_dev *dev, tv_model **m, tv_err *err) {
    tiny_write(c, sub(name));
    return load(sub(name), dev, m, err);
}

static void refuses(const tiny_checkpoint *c, tv_status want, const char *part, int line) {
    tv_dev dev = {0};
    tv_err err = {0};
    tv_model *m = NULL;
    tv_check_fails(load_tiny(c, "bad", &dev, &m, &err), want, &err, part, "load", __FILE__, line);
    tv_check_int(dev.live, 0, "dev.live", __FILE__, line);
    tv_check_true(m == NULL, "m == NULL", __FILE__, line);
}
#define REFUSES(c, want, part) refuses(c, want, part, __LINE__)

static void same_matrix(const tv_matrix *a, const tv_matrix *b, int line) {
    tv_check_int(a->N, b->N, "N", __FILE__, line);
    tv_check_int(a->K, b->K, "K", __FILE__, line);
    tv_check_true(!a->bias == !b->bias, "both or neither have a bias", __FILE__, line);
    if (a->N == b->N && a->K == b->K)
        tv_check_bytes(a->data, b->data, ((size_t)a->N * (size_t)a->K + (a->bias ? (size_t)a->N : 0)) * 2, "matrix",
                       __FILE__, line);
}

/* Every number on the device is the same. */
static void same_model(const tv_model *a, const tv_model *b, int line) {
    const tv_config *c = &a->config;
    const size_t D = (size_t)c->d_model * 2, HS = (size_t)c->head_size * 2;
    tv_check_bytes(a->embed, b->embed, (size_t)c->vocab_size * D, "embed", __FILE__, line);
    tv_check_bytes(a->norm, b->norm, D, "norm", __FILE__, line);
    tv_check_bytes(a->cos, b->cos, (size_t)c->max_positions * HS / 2, "cos", __FILE__, line);
    tv_check_bytes(a->sin, b->sin, (size_t)c->max_positions * HS / 2, "sin", __FILE__, line);
    same_matrix(&a->lm_head, &b->lm_head, line);
    tv_check_int((long long)a->bytes, (long long)b->bytes, "bytes", __FILE__, line);
    for (int l = 0; l < c->n_layers; l++) {
        const tv_layer *x = &a->layers[l], *y = &b->layers[l];
        tv_check_bytes(x->input_norm, y->input_norm, D, "input_norm", __FILE__, line);
        tv_check_bytes(x->post_norm, y->post_norm, D, "post_norm", __FILE__, line);
        if (x->q_norm) tv_check_bytes(x->q_norm, y->q_norm, HS, "q_norm", __FILE__, line);
        if (x->k_norm) tv_check_bytes(x->k_norm, y->k_norm, HS, "k_norm", __FILE__, line);
        same_matrix(&x->qkv, &y->qkv, line);
        same_matrix(&x->o, &y->o, line);
        if (!c->layer_sparse[l]) {
            same_matrix(&x->gate_up, &y->gate_up, line);
            same_matrix(&x->down, &y->down, line);
            continue;
        }
        same_matrix(&x->router, &y->router, line);
        for (int e = 0; e < c->n_experts; e++) {
            same_matrix(&x->expert_gate_up[e], &y->expert_gate_up[e], line);
            same_matrix(&x->expert_down[e], &y->expert_down[e], line);
        }
    }
}
#define SAME_MODEL(a, b) same_model(a, b, __LINE__)

/* What a call prints to stderr; the caller frees. */
static int saved_stderr;
static void capture_begin(void) {
    fflush(stderr);
    saved_stderr = dup(2);
    TV_ASSERT(freopen(sub("stderr"), "w", stderr));
}
static char *capture_end(void) {
    tv_err err = {0};
    char *text = NULL;
    size_t size;
    fflush(stderr);
    dup2(saved_stderr, 2);
    close(saved_stderr);
    CHECK_OK(tv_file_read(sub("stderr"), 1 << 20, &text, &size, &err), &err);
    return text;
}
/* Loads c and demands that stderr holds part (NULL: nothing at all). */
static tv_model *load_saying(const tiny_checkpoint *c, const char *name, tv_dev *dev, const char *part, int line) {
    tv_model *m = NULL;
    tv_err err = {0};
    capture_begin();
    tv_status s = load_tiny(c, name, dev, &m, &err);
    char *text = capture_end();
    tv_check_ok(s, &err, "load", __FILE__, line);
    if (part ? !strstr(text, part) : *text != 0) tv_check_str(text, part ? part : "", "what was said", __FILE__, line);
    free(text);
    return m;
}
#define LOAD_SAYING(c, name, dev, part) load_saying(c, name, dev, part, __LINE__)

static tiny_checkpoint *tiny(tv_family family) {
    tiny_options o = tiny_options_default(family);
    return tiny_new(&o);
}

/* Tests -------------------------------------------------------------------------------------------------------------
 */

/* Each tensor lands where it belongs: fused rows in order, biases with them. C15, C16: q, k, v (Qwen2); q, k, v, o
 * (Qwen3). */
static void test_binding(void) {
    tv_dev dev = {0};
    tiny_options o = tiny_options_default(TV_QWEN3);
    o.attention_bias = 1;
    tiny_checkpoint *c = tiny_new(&o);
    tv_model *m = LOAD_SAYING(c, "qwen3", &dev, NULL);
    const tv_layer *w = &m->layers[1];
    CHECK_INT(w->qkv.N, 4 * 32 + 2 * 2 * 32);
    CHECK_INT(w->qkv.K, 64);
    const tv_bf16 *qkv = w->qkv.data, *gate_up = w->gate_up.data;
    CHECK_BYTES(qkv, tiny_find(c, "model.layers.1.self_attn.q_proj.weight")->data, 128 * 64 * 2);
    CHECK_BYTES(qkv + 128 * 64, tiny_find(c, "model.layers.1.self_attn.k_proj.weight")->data, 64 * 64 * 2);
    CHECK_BYTES(qkv + 192 * 64, tiny_find(c, "model.layers.1.self_attn.v_proj.weight")->data, 64 * 64 * 2);
    CHECK_BYTES(w->qkv.bias, tiny_find(c, "model.layers.1.self_attn.q_proj.bias")->data, 128 * 2);
    CHECK_BYTES(w->qkv.bias + 128, tiny_find(c, "model.layers.1.self_attn.k_proj.bias")->data, 64 * 2);
    CHECK_BYTES(w->qkv.bias + 192, tiny_find(c, "model.layers.1.self_attn.v_proj.bias")->data, 64 * 2);
    CHECK_BYTES(w->o.data, tiny_find(c, "model.layers.1.self_attn.o_proj.weight")->data, 64 * 128 * 2);
    CHECK_BYTES(w->o.bias, tiny_find(c, "model.layers.1.self_attn.o_proj.bias")->data, 64 * 2);
    CHECK_BYTES(gate_up, tiny_find(c, "model.layers.1.mlp.gate_proj.weight")->data, 96 * 64 * 2);
    CHECK_BYTES(gate_up + 96 * 64, tiny_find(c, "model.layers.1.mlp.up_proj.weight")->data, 96 * 64 * 2);
    CHECK_BYTES(w->down.data, tiny_find(c, "model.layers.1.mlp.down_proj.weight")->data, 64 * 96 * 2);
    CHECK(!w->gate_up.bias && !w->down.bias && !w->router.data);
    CHECK_BYTES(w->q_norm, tiny_find(c, "model.layers.1.self_attn.q_norm.weight")->data, 32 * 2);
    CHECK_BYTES(w->k_norm, tiny_find(c, "model.layers.1.self_attn.k_norm.weight")->data, 32 * 2);
    CHECK_BYTES(w->post_norm, tiny_find(c, "model.layers.1.post_attention_layernorm.weight")->data, 64 * 2);
    CHECK_BYTES(m->norm, tiny_find(c, "model.norm.weight")->data, 64 * 2);
    CHECK_BYTES(m->lm_head.data, tiny_find(c, "lm_head.weight")->data, 128 * 64 * 2);
    CHECK_BYTES(m->embed, tiny_find(c, "model.embed_tokens.weight")->data, 128 * 64 * 2);
    tv_model_free(m);
    CHECK_INT(dev.live, 0);
    tiny_free(c);
    c = tiny(TV_QWEN2);
    m = LOAD_SAYING(c, "qwen2", &dev, NULL);
    CHECK(m->layers[0].qkv.bias && !m->layers[0].o.bias && !m->layers[0].q_norm);
    CHECK_BYTES(m->layers[0].qkv.bias, tiny_find(c, "model.layers.0.self_attn.q_proj.bias")->data, 64 * 2);
    tv_model_free(m);
    tiny_remove(c, "model.layers.0.self_attn.k_proj.bias"); /* C15: not dropped in silence */
    REFUSES(c, TV_EFORMAT, "1 tensors that the model needs are missing: model.layers.0.self_attn.k_proj.bias");
    tiny_free(c);
    CHECK_INT(dev.live, 0);
}

/* C01: the head size is the configuration's, and one that the tensors contradict is printed beside what was found. */
static void test_shapes_are_checked(void) {
    tiny_checkpoint *c = tiny(TV_QWEN3);
    cJSON_ReplaceItemInObject(c->config, "head_dim", cJSON_CreateNumber(16));
    REFUSES(c, TV_EFORMAT, "self_attn.q_proj.weight: expected shape [64,64], found BF16 [128,64]");
    cJSON_ReplaceItemInObject(c->config, "head_dim", cJSON_CreateNumber(32));
    cJSON_ReplaceItemInObject(c->config, "vocab_size", cJSON_CreateNumber(100));
    REFUSES(c, TV_EFORMAT, "model.embed_tokens.weight: expected shape [100,64], found BF16 [128,64]");
    cJSON_ReplaceItemInObject(c->config, "vocab_size", cJSON_CreateNumber(128));
    tiny_remove(c, "model.norm.weight");
    tiny_add(c, "model.norm.weight", 64, 1, 0);
    REFUSES(c, TV_EFORMAT, "model.norm.weight: expected shape [64], found BF16 [64,1]");
    tiny_free(c);
}

/* C03, C04: a tied model takes the embedding table, with or without a tensor of its own in the file. */
static void test_tied(void) {
    tv_dev dev = {0};
    for (int family = TV_QWEN3; family <= TV_QWEN3_MOE; family++) {
        tiny_options o = tiny_options_default(family);
        o.tie_embeddings = 1;
        tiny_checkpoint *c = tiny_new(&o);
        tv_model *a = LOAD_SAYING(c, "tied", &dev, NULL);
        CHECK_BYTES(a->lm_head.data, a->embed, 128 * 64 * 2);
        tiny_tensor *head = tiny_add(c, "lm_head.weight", 128, 64, 0);
        memcpy(head->data, tiny_find(c, "model.embed_tokens.weight")->data, head->bytes);
        tv_model *b = LOAD_SAYING(c, "tied-same", &dev, NULL);
        SAME_MODEL(a, b);
        tiny_set(tiny_find(c, "lm_head.weight"), 5, 3.25f);
        tv_model *d = LOAD_SAYING(c, "tied-other", &dev, "lm_head.weight is ignored");
        SAME_MODEL(a, d);
        cJSON_ReplaceItemInObject(c->config, "tie_word_embeddings", cJSON_CreateFalse());
        tv_model *e = LOAD_SAYING(c, "untied", &dev, NULL);
        CHECK_BYTES(e->lm_head.data, tiny_find(c, "lm_head.weight")->data, 128 * 64 * 2);
        CHECK(a->hash != b->hash && b->hash != d->hash);
        CHECK(d->hash == e->hash); /* of the weights, not of the configuration */
        tv_model_free(a), tv_model_free(b), tv_model_free(d), tv_model_free(e);
        tiny_remove(c, "lm_head.weight");
        REFUSES(c, TV_EFORMAT, "missing: lm_head.weight");
        tiny_free(c);
    }
    CHECK_INT(dev.live, 0);
}

/* C18: the number of layers is the configuration's. Missing tensors are counted and named, unused ones are warned of.
 */
static void test_missing_and_unused(void) {
    tv_dev dev = {0};
    tiny_checkpoint *c = tiny(TV_QWEN3);
    cJSON_ReplaceItemInObject(c->config, "num_hidden_layers", cJSON_CreateNumber(3));
    REFUSES(c, TV_EFORMAT, "11 tensors that the model needs are missing: model.layers.2.input_layernorm.weight, ");
    cJSON_ReplaceItemInObject(c->config, "num_hidden_layers", cJSON_CreateNumber(1));
    tv_model_free(LOAD_SAYING(c, "unused", &dev, "warning: "));
    tv_model_free(LOAD_SAYING(c, "unused", &dev,
                              "11 tensors of the checkpoint are not used: model.layers.1.input_layernorm.weight, "));
    cJSON_ReplaceItemInObject(c->config, "num_hidden_layers", cJSON_CreateNumber(2));
    tiny_add(c, "model.layers.0.self_attn.rotary_emb.inv_freq", 16, 0, 0); /* old files have it; it says nothing new */
    tv_model_free(LOAD_SAYING(c, "rotary", &dev, NULL));
    tiny_add(c, "model.layers.0.self_attn.extra", 0, 0, 0); /* S12: of no elements */
    tv_model_free(
        LOAD_SAYING(c, "extra", &dev, "1 tensors of the checkpoint are not used: model.layers.0.self_attn.extra"));
    tiny_free(c);
    CHECK_INT(dev.live, 0);
}

/* S18: dtypes may be mixed; what bf16 holds arrives unchanged, what it does not is rounded to nearest even, and it is
 * said. */
static void test_dtypes(void) {
    tv_dev dev = {0};
    tiny_checkpoint *c = tiny(TV_QWEN3);
    tv_model *a = LOAD_SAYING(c, "bf16", &dev, NULL);
    tiny_convert(tiny_find(c, "model.layers.0.input_layernorm.weight"), TV_F32);
    tiny_convert(tiny_find(c, "model.layers.0.self_attn.k_proj.weight"), TV_F32);
    tiny_convert(tiny_find(c, "model.layers.1.self_attn.q_norm.weight"), TV_F16);
    tiny_convert(tiny_find(c, "model.embed_tokens.weight"), TV_F32);
    tv_model *b =
        LOAD_SAYING(c, "mixed", &dev, "3 F32 and 1 F16 tensors are converted to bf16 (round to nearest even)");
    SAME_MODEL(a, b);
    CHECK(a->hash != b->hash);
    tiny_tensor *norm = tiny_find(c, "model.layers.0.input_layernorm.weight");
    const uint32_t halves[4] = {0x3f808000, 0x3f818000, 0x3f808001,
                                0x3f807fff}; /* ties go to even: 3f80, 3f82; 3f81; 3f80 */
    memcpy(norm->data, halves, sizeof halves);
    tv_model *d = LOAD_SAYING(c, "rounded", &dev, "converted");
    CHECK_BYTES(d->layers[0].input_norm, ((tv_bf16[]){0x3f80, 0x3f82, 0x3f81, 0x3f80}), 8);
    tv_model_free(a), tv_model_free(b), tv_model_free(d);
    tiny_free(c);
    static const tv_dtype bad[] = {TV_F64, TV_I8, TV_F8_E4M3}; /* C21 also */
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        c = tiny(TV_QWEN3);
        tiny_convert(tiny_find(c, "model.layers.1.mlp.down_proj.weight"), bad[i]);
        char *part = tv_xprintf("model.layers.1.mlp.down_proj.weight: expected BF16, F16 or F32 [64,96], found %s",
                                tv_dtype_name(bad[i]));
        REFUSES(c, TV_EUNSUPPORTED, part);
        free(part);
        tiny_free(c);
    }
    CHECK_INT(dev.live, 0);
}

/* M03: a value that is no number is found at load, in whichever tensor and dtype, and named. */
static void test_non_finite(void) {
    static const char *const names[] = {"model.embed_tokens.weight",
                                        "lm_head.weight",
                                        "model.norm.weight",
                                        "model.layers.1.self_attn.v_proj.weight",
                                        "model.layers.0.mlp.up_proj.weight",
                                        "model.layers.0.self_attn.o_proj.bias"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        tiny_options o = tiny_options_default(TV_QWEN3);
        o.attention_bias = 1;
        tiny_checkpoint *c = tiny_new(&o);
        tiny_set(tiny_find(c, names[i]), 7, i % 2 ? 1.0f / 0.0f : 0.0f / 0.0f);
        char *part = tv_xprintf("tensor %s: element 7 is", names[i]);
        REFUSES(c, TV_ENUMERIC, part);
        free(part);
        tiny_free(c);
    }
    tiny_checkpoint *c = tiny(TV_QWEN3); /* a finite f32 beyond what bf16 holds */
    tiny_tensor *t = tiny_find(c, "model.norm.weight");
    tiny_convert(t, TV_F32);
    const float huge = 3.4e38f;
    memcpy(t->data + 8, &huge, 4);
    REFUSES(c, TV_ENUMERIC, "tensor model.norm.weight: element 2 is inf as bf16");
    tiny_free(c);
}

/* A sharded checkpoint is the single one. S14: absent shards. S15: what the index says holds. S17: an index stays in
 * its folder. */
static void test_shards(void) {
    tv_dev dev = {0};
    tv_err err = {0};
    tv_model *a = NULL, *b = NULL;
    tiny_checkpoint *c = tiny(TV_QWEN3);
    CHECK_OK(load_tiny(c, "single", &dev, &a, &err), &err);
    tiny_write_sharded(c, sub("shards"), 3);
    CHECK_OK(load(sub("shards"), &dev, &b, &err), &err);
    SAME_MODEL(a, b);
    CHECK(a->hash == b->hash);
    tv_model_free(b);

    /* both layouts in a folder: the single file counts */
    tiny_write_sharded(c, sub("single"), 2);
    CHECK_OK(load(sub("single"), &dev, &b, &err), &err);
    SAME_MODEL(a, b);
    tv_model_free(b);

    char *shard = tv_path_join(sub("shards"), tiny_shard_name(1, 3));
    CHECK_INT(unlink(shard), 0);
    CHECK_FAILS(load(sub("shards"), &dev, &b, &err), TV_EIO, &err,
                "1 of 3 files of the index are missing: model-00002-of-00003.safetensors (incomplete download?)");
    free(shard);

    /* the same tensor, with other bytes, in a shard that the index does not name for it */
    int own_shard = tiny_find(c, "model.norm.weight")->shard;
    tiny_add(c, "model.norm.weight", 64, 0, 0)->shard = own_shard + 1;
    tiny_write_sharded(c, sub("double"), 2);
    tiny_free(c);
    c = tiny(TV_QWEN3);
    char *index = tv_path_join(sub("double"), "model.safetensors.index.json");
    tiny_write_sharded(c, sub("plain"), 2);
    char *plain = tv_path_join(sub("plain"), "model.safetensors.index.json"), *text = NULL;
    size_t size = 0;
    CHECK_OK(tv_file_read(plain, 1 << 20, &text, &size, &err), &err);
    CHECK_OK(tv_file_write(index, text, size, &err), &err);
    capture_begin();
    tv_status s = load(sub("double"), &dev, &b, &err);
    char *said = capture_end();
    CHECK_OK(s, &err);
    CHECK(strstr(said, "hold 1 tensors that the index does not give to them; they are ignored") != NULL);
    SAME_MODEL(a, b);
    tv_model_free(b);
    free(said);

    /* the index points to a shard that lacks the tensor */
    cJSON *json = cJSON_Parse(text), *map = cJSON_GetObjectItem(json, "weight_map");
    const char *now = cJSON_GetObjectItem(map, "model.norm.weight")->valuestring;
    const char *other = tiny_shard_name(strcmp(now, tiny_shard_name(0, 2)) == 0, 2);
    cJSON_ReplaceItemInObjectCaseSensitive(map, "model.norm.weight", cJSON_CreateString(other));
    CHECK_OK(tv_json_save(json, plain, &err), &err);
    CHECK_FAILS(load(sub("plain"), &dev, &b, &err), TV_EFORMAT, &err,
                "1 tensors are not in the file the index gives for them: model.norm.weight");

    static const char *const escapes[] = {"../x.safetensors", "/etc/passwd", "a/../b", "..", "", "sub\\x", ".hidden"};
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        cJSON_ReplaceItemInObjectCaseSensitive(map, "model.norm.weight", cJSON_CreateString(escapes[i]));
        CHECK_OK(tv_json_save(json, plain, &err), &err);
        CHECK_FAILS(load(sub("plain"), &dev, &b, &err), TV_EFORMAT, &err,
                    "only plain file names of this folder are allowed");
    }
    char *loop = tv_path_join(sub("plain"), "loop.safetensors");
    CHECK_INT(symlink("loop.safetensors", loop), 0);
    cJSON_ReplaceItemInObjectCaseSensitive(map, "model.norm.weight", cJSON_CreateString("loop.safetensors"));
    CHECK_OK(tv_json_save(json, plain, &err), &err);
    CHECK_FAILS(load(sub("plain"), &dev, &b, &err), TV_EIO, &err, "loop.safetensors");
    cJSON_ReplaceItemInObjectCaseSensitive(map, "model.norm.weight", cJSON_CreateNumber(1));
    CHECK_OK(tv_json_save(json, plain, &err), &err);
    CHECK_FAILS(load(sub("plain"), &dev, &b, &err), TV_EFORMAT, &err, "not a string");
    cJSON_ReplaceItemInObjectCaseSensitive(json, "weight_map", cJSON_CreateObject());
    CHECK_OK(tv_json_save(json, plain, &err), &err);
    CHECK_FAILS(load(sub("plain"), &dev, &b, &err), TV_EFORMAT, &err, "weight_map is empty");
    cJSON_DeleteItemFromObject(json, "weight_map");
    CHECK_OK(tv_json_save(json, plain, &err), &err);
    CHECK_FAILS(load(sub("plain"), &dev, &b, &err), TV_EFORMAT, &err, "has no weight_map");
    cJSON_Delete(json);
    free(loop), free(text), free(plain), free(index);
    tv_model_free(a);
    tiny_free(c);
    CHECK_INT(dev.live, 0);
}

/* E03: both layouts of the experts give the same model; a missing one is an error, both at once too. E02: dense layers
 * between. */
static void test_experts(void) {
    tv_dev dev = {0};
    tiny_options o = tiny_options_default(TV_QWEN3_MOE);
    tiny_checkpoint *c = tiny_new(&o);
    tv_model *a = LOAD_SAYING(c, "single", &dev, NULL);
    CHECK_INT(a->layers[0].expert_gate_up[3].N, 96);
    CHECK_BYTES(a->layers[1].expert_down[2].data, tiny_find(c, "model.layers.1.mlp.experts.2.down_proj.weight")->data,
                64 * 48 * 2);
    tiny_fuse_experts(c);
    tv_model *b = LOAD_SAYING(c, "fused", &dev, NULL);
    SAME_MODEL(a, b);
    tv_model_free(b);
    tiny_convert(tiny_find(c, "model.layers.0.mlp.experts.gate_up_proj"), TV_F32);
    tiny_convert(tiny_find(c, "model.layers.1.mlp.experts.down_proj"), TV_F16);
    b = LOAD_SAYING(c, "fused-converted", &dev, "1 F32 and 1 F16");
    SAME_MODEL(a, b);
    tv_model_free(b);
    tiny_remove(c, "model.layers.1.mlp.experts.down_proj");
    REFUSES(c, TV_EFORMAT, "missing: model.layers.1.mlp.experts.down_proj");
    tiny_add(c, "model.layers.1.mlp.experts.down_proj", 4, 48, 64);
    REFUSES(c, TV_EFORMAT, "expected shape [4,64,48], found BF16 [4,48,64]");
    tiny_free(c);
    c = tiny_new(&o);
    tiny_add(c, "model.layers.1.mlp.experts.gate_up_proj", 4, 96, 64);
    REFUSES(c, TV_EFORMAT, "the experts of layer 1 are there twice");
    tiny_free(c);
    c = tiny_new(&o);
    tiny_remove(c, "model.layers.0.mlp.experts.1.up_proj.weight");
    REFUSES(c, TV_EFORMAT, "1 tensors that the model needs are missing: model.layers.0.mlp.experts.1.up_proj.weight");
    cJSON_AddItemToObject(c->config, "mlp_only_layers", cJSON_CreateIntArray((int[]){0}, 1));
    REFUSES(c, TV_EFORMAT, "3 tensors that the model needs are missing: model.layers.0.mlp.gate_proj.weight");
    tiny_fill(tiny_add(c, "model.layers.0.mlp.gate_proj.weight", 96, 64, 0), &(tv_rng){3}, 0, 0.2);
    tiny_fill(tiny_add(c, "model.layers.0.mlp.up_proj.weight", 96, 64, 0), &(tv_rng){4}, 0, 0.2);
    tiny_fill(tiny_add(c, "model.layers.0.mlp.down_proj.weight", 64, 96, 0), &(tv_rng){5}, 0, 0.2);
    b = LOAD_SAYING(c, "dense-first", &dev,
                    "12 tensors of the checkpoint are not used"); /* layer 0's router and experts, but one */
    CHECK(b->layers[0].gate_up.data && !b->layers[0].router.data && b->layers[1].router.data &&
          !b->layers[1].gate_up.data);
    tv_model_free(a), tv_model_free(b);
    tiny_free(c);
    CHECK_INT(dev.live, 0);
}

/* S21: data that starts at an odd byte, as older writers left it, is read all the same (the sanitizers watch). */
static void test_misaligned(void) {
    tv_dev dev = {0};
    tv_err err = {0};
    tv_model *a = NULL, *b = NULL;
    tiny_checkpoint *c = tiny(TV_QWEN2);
    tiny_convert(tiny_find(c, "model.layers.0.self_attn.q_proj.bias"), TV_F32);
    tiny_convert(tiny_find(c, "model.layers.1.mlp.up_proj.weight"), TV_F16);
    CHECK_OK(load_tiny(c, "aligned", &dev, &a, &err), &err);
    char *path = tv_path_join(sub("aligned"), "model.safetensors"), *text = NULL;
    size_t size = 0;
    uint64_t header;
    CHECK_OK(tv_file_read(path, 1 << 24, &text, &size, &err), &err);
    memcpy(&header, text, 8);
    char *odd = tv_xmalloc(size + 1); /* one more space after the header */
    memcpy(odd, text, 8 + header);
    odd[8 + header] = ' ';
    memcpy(odd + 9 + header, text + 8 + header, size - 8 - header);
    header++;
    memcpy(odd, &header, 8);
    CHECK_OK(tv_file_write(path, odd, size + 1, &err), &err);
    CHECK_OK(load(sub("aligned"), &dev, &b, &err), &err);
    SAME_MODEL(a, b);
    CHECK(a->hash == b->hash);
    /* a truncated file never gets that far */
    CHECK_OK(tv_file_write(path, odd, size - 10, &err), &err);
    dev.calls = 0;
    tv_model *m;
    CHECK_FAILS(load(sub("aligned"), &dev, &m, &err), TV_EFORMAT, &err, "model.safetensors");
    CHECK_INT(dev.calls, 0);
    free(odd), free(text), free(path);
    tv_model_free(a), tv_model_free(b);
    tiny_free(c);
    CHECK_INT(dev.live, 0);
}

static void note_progress(void *user, uint64_t at, uint64_t total) {
    uint64_t *seen = user;
    CHECK(at > seen[0] && at <= total);
    seen[0] = at, seen[1] = total, seen[2]++;
}

static void test_progress_and_hash(void) {
    tv_dev dev = {0};
    tv_err err = {0};
    tv_model *a = NULL, *b = NULL;
    uint64_t seen[3] = {0};
    tiny_checkpoint *c = tiny(TV_QWEN3_MOE);
    tiny_write(c, sub("a"));
    CHECK_OK(tv_model_load(sub("a"), &recorder, &dev, TV_WEIGHTS_BF16, &(tv_progress){note_progress, seen}, &a, &err),
             &err);
    CHECK(seen[0] == seen[1] && seen[2] == c->n);
    tiny_tensor *t = tiny_find(c, "model.layers.1.mlp.experts.3.down_proj.weight");
    t->data[t->bytes - 1] ^= 0x80; /* one sign */
    CHECK_OK(load_tiny(c, "b", &dev, &b, &err), &err);
    CHECK(a->hash != b->hash);
    CHECK_STR(b->dir, sub("b"));
    tv_model_free(a), tv_model_free(b);
    tiny_free(c);
}

/* The device running out of memory at any point leaves nothing behind. */
static void test_out_of_memory(void) {
    tiny_checkpoint *c = tiny(TV_QWEN3_MOE);
    tiny_write(c, sub("m"));
    int needed = 0;
    for (int k = 1; k < 200; k++) {
        tv_dev dev = {.fail_after = k};
        tv_err err = {0};
        tv_model *m = NULL;
        tv_status s = load(sub("m"), &dev, &m, &err);
        if (s == TV_OK) {
            tv_model_free(m);
            CHECK_INT(dev.live, 0);
            break;
        }
        CHECK_FAILS(s, TV_ENOMEM, &err, "no memory");
        CHECK_INT(dev.live, 0);
        needed = k;
    }
    CHECK_INT(needed,
              1 + 1 + 2 * (3 + 2 * 4)); /* arena, lm_head, and per layer qkv, o, router and the experts' pairs */
    tiny_free(c);
}

static void test_no_weights(void) {
    tv_dev dev = {0};
    tv_err err = {0};
    tv_model *m;
    tiny_checkpoint *c = tiny(TV_QWEN3);
    tiny_write(c, sub("none"));
    char *path = tv_path_join(sub("none"), "model.safetensors");
    CHECK_INT(unlink(path), 0);
    CHECK_FAILS(load(sub("none"), &dev, &m, &err), TV_EIO, &err,
                "neither model.safetensors nor model.safetensors.index.json");
    CHECK_OK(tv_file_write(path, "version https://git-lfs.github.com/spec/v1\n", 43, &err), &err);
    CHECK_FAILS(load(sub("none"), &dev, &m, &err), TV_EFORMAT, &err, "LFS");
    CHECK_FAILS(load("/nonexistent", &dev, &m, &err), TV_EIO, &err, "/nonexistent/config.json");
    free(path);
    tiny_free(c);
}

/* C06, C07: both spellings of the keys give the same model, rope tables included. */
static void test_spellings(void) {
    tv_dev dev = {0};
    tiny_checkpoint *c = tiny(TV_QWEN3_MOE);
    tv_model *a = LOAD_SAYING(c, "old", &dev, NULL);
    cJSON_DeleteItemFromObject(c->config, "rope_theta");
    cJSON_DeleteItemFromObject(c->config, "torch_dtype");
    cJSON_DeleteItemFromObject(c->config, "num_experts");
    cJSON *rope = cJSON_AddObjectToObject(c->config, "rope_parameters");
    cJSON_AddStringToObject(rope, "rope_type", "default");
    cJSON_AddNumberToObject(rope, "rope_theta", 1000000);
    cJSON_AddStringToObject(c->config, "dtype", "bfloat16");
    cJSON_AddNumberToObject(c->config, "num_local_experts", 4);
    tiny_fuse_experts(c);
    tv_model *b = LOAD_SAYING(c, "new", &dev, NULL);
    SAME_MODEL(a, b);
    tv_model_free(a), tv_model_free(b);
    tiny_free(c);
    CHECK_INT(dev.live, 0);
}

/* What rounding to integers does to rows of K = 300 (two whole groups of 128 and a part): every element lies on its
 * group's grid within half a step (a scale of 8 bits moves the ends by a little more), large rows do not touch small
 * ones, zeros stay, bf16 is the identity, and bytes may be misaligned. */
static void test_quantized_rows(void) {
    enum { ROWS = 6, K = 300 };
    static unsigned char raw[ROWS * K * 2 + 1];
    tv_bf16 rows[ROWS * K], out[ROWS * K];
    tv_rng rng = {4};
    for (int i = 0; i < ROWS * K; i++) rows[i] = tv_bf16_from_f32((float)ldexp(tv_rng_normal(&rng), 3 * (i / K) - 6));
    memset(rows + 2 * K, 0, K * sizeof *rows);
    rows[5 * K + 7] = tv_bf16_from_f32(-3e4f);
    memcpy(raw + 1, rows, sizeof rows);
    tv_weights_quantize(TV_WEIGHTS_BF16, raw + 1, ROWS, K, out);
    CHECK_BYTES(out, rows, sizeof rows);
    for (int dtype = TV_WEIGHTS_INT8; dtype <= TV_WEIGHTS_INT4; dtype++) {
        int group = dtype == TV_WEIGHTS_INT8 ? K : 128, wrong = 0, changed = 0;
        tv_weights_quantize((tv_weight_dtype)dtype, raw + 1, ROWS, K, out);
        for (int j = 0; j < ROWS; j++)
            for (int k = 0; k < K; k += group) {
                int n = K - k < group ? K - k : group;
                double largest = 0;
                for (int i = j * K + k; i < j * K + k + n; i++)
                    largest = fmax(largest, fabs(tv_f32_from_bf16(rows[i])));
                double scale = tv_round_bf16((float)(largest / (dtype == TV_WEIGHTS_INT8 ? 127 : 7.5)));
                for (int i = j * K + k; i < j * K + k + n; i++) {
                    double got = tv_f32_from_bf16(out[i]), w = tv_f32_from_bf16(rows[i]);
                    double q = scale > 0 ? nearbyint(got / scale) : 0;
                    wrong += got != tv_round_bf16((float)(q * scale));
                    wrong += q < (dtype == TV_WEIGHTS_INT8 ? -127 : -8) || q > (dtype == TV_WEIGHTS_INT8 ? 127 : 7);
                    wrong += !(fabs(q * scale - w) <= scale * 0.52);
                    changed += got != w;
                }
            }
        tv_packed_rows packed;
        TV_ASSERT(tv_weights_pack((tv_weight_dtype)dtype, raw + 1, ROWS, K, &packed)); /* the same, bit for bit */
        for (int i = 0, groups = (K + group - 1) / group; i < ROWS * K; i++) {
            int j = i / K, k = i % K, q = (int8_t)packed.q[packed.bits == 8 ? i : j * (K / 2) + k / 2];
            if (packed.bits == 4) q = ((q >> k % 2 * 4 & 15) ^ 8) - 8;
            float scale = tv_f32_from_bf16(packed.scale[j * groups + k / group]);
            wrong += out[i] != tv_bf16_from_f32((float)q * scale);
        }
        tv_weights_packed_free(&packed);
        CHECK_INT(wrong, 0);
        CHECK(changed > 5 * K / 2);
        CHECK(tv_f32_from_bf16(out[5 * K + 7]) < -2.7e4f);
    }
}

static tv_model *load_as(const char *dir, tv_weight_dtype dtype, tv_dev *dev) {
    tv_err err = {0};
    tv_model *m = NULL;
    CHECK_OK(tv_model_load(dir, &recorder, dev, dtype, NULL, &m, &err), &err);
    return m;
}

static void rounded_alike(const tv_matrix *got, const tv_matrix *of, tv_weight_dtype dtype) {
    size_t n = (size_t)of->N * (size_t)of->K;
    tv_bf16 *want = malloc(n * sizeof *want);
    tv_weights_quantize(dtype, of->data, of->N, of->K, want);
    CHECK_BYTES(got->data, want, n * sizeof *want);
    CHECK(dtype == TV_WEIGHTS_BF16 || memcmp(want, of->data, n * sizeof *want));
    if (of->bias) CHECK_BYTES(got->bias, of->bias, (size_t)of->N * 2);
    free(want);
}

/* The layers' matrices are rounded, row by row whatever they are fused with; router, lm_head, embedding, norms and
 * biases are not, and the hash stays the file's. */
static void test_quantized_at_load(void) {
    tv_dev dev = {0};
    for (int family = TV_QWEN2; family <= TV_QWEN3_MOE; family++) {
        tiny_checkpoint *c = tiny((tv_family)family);
        if (family == TV_QWEN3_MOE) tiny_fuse_experts(c);
        tiny_write(c, sub("quantized"));
        tv_model *m = load_as(sub("quantized"), TV_WEIGHTS_BF16, &dev);
        for (int dtype = TV_WEIGHTS_INT8; m && dtype <= TV_WEIGHTS_INT4; dtype++) {
            tv_weight_dtype t = (tv_weight_dtype)dtype;
            tv_model *q = load_as(sub("quantized"), t, &dev);
            if (!q) break;
            CHECK_INT(q->weight_dtype, t);
            CHECK(q->hash == m->hash && q->bytes == m->bytes);
            for (int l = 0; l < 2; l++) {
                rounded_alike(&q->layers[l].qkv, &m->layers[l].qkv, t);
                rounded_alike(&q->layers[l].o, &m->layers[l].o, t);
                CHECK_BYTES(q->layers[l].input_norm, m->layers[l].input_norm, 64 * 2);
                if (family != TV_QWEN3_MOE) {
                    rounded_alike(&q->layers[l].gate_up, &m->layers[l].gate_up, t);
                    rounded_alike(&q->layers[l].down, &m->layers[l].down, t);
                    continue;
                }
                rounded_alike(&q->layers[l].router, &m->layers[l].router, TV_WEIGHTS_BF16);
                for (int e = 0; e < 4; e++) {
                    rounded_alike(&q->layers[l].expert_gate_up[e], &m->layers[l].expert_gate_up[e], t);
                    rounded_alike(&q->layers[l].expert_down[e], &m->layers[l].expert_down[e], t);
                }
            }
            rounded_alike(&q->lm_head, &m->lm_head, TV_WEIGHTS_BF16);
            CHECK_BYTES(q->embed, m->embed, 128 * 64 * 2);
            CHECK_BYTES(q->norm, m->norm, 64 * 2);
            tv_model_free(q);
        }
        if (m) tv_model_free(m);
        tiny_free(c);
    }
    CHECK_INT(dev.live, 0);
}

/* The checkpoints that speed is measured on load without a word: every tensor is there and none too many. */
static void test_random_models(void) {
    static const tv_model_shape small[] = {{"dense", 2, 64, 4, 2, 32, 96, 128, 0, 0},
                                           {"moe", 3, 64, 4, 2, 32, 48, 128, 5, 2}};
    for (int i = 0; i < 2; i++) {
        tv_dev dev = {0};
        tv_err err = {0};
        tv_model *m = NULL;
        CHECK_OK(tv_random_model_write(tv_test_dir(), &small[i], 7, &err), &err);
        capture_begin();
        tv_status s = load(tv_test_dir(), &dev, &m, &err);
        char *said = capture_end();
        if (CHECK_OK(s, &err)) {
            CHECK_STR(said, "");
            CHECK_INT(m->config.n_experts, small[i].n_experts);
            CHECK_INT(m->config.n_layers, small[i].n_layers);
            const tv_matrix *up = i ? &m->layers[2].expert_gate_up[4] : &m->layers[1].gate_up;
            CHECK(up->N == 2 * small[i].d_ff && up->K == 64);
        }
        free(said);
        tv_model_free(m);
        CHECK_INT(dev.live, 0);
    }
    tv_model_shape shape;
    tv_err err = {0};
    CHECK_OK(tv_model_shape_find("moe", &shape, &err), &err);
    CHECK(shape.n_experts == 64 && shape.n_experts_used == 8);
}

static const tv_test tests[] = {
    {"random_models", test_random_models},
    {"binding", test_binding},
    {"shapes_are_checked", test_shapes_are_checked},
    {"tied", test_tied},
    {"missing_and_unused", test_missing_and_unused},
    {"dtypes", test_dtypes},
    {"non_finite", test_non_finite},
    {"shards", test_shards},
    {"experts", test_experts},
    {"spellings", test_spellings},
    {"misaligned", test_misaligned},
    {"progress_and_hash", test_progress_and_hash},
    {"out_of_memory", test_out_of_memory},
    {"no_weights", test_no_weights},
    {"quantized_rows", test_quantized_rows},
    {"quantized_at_load", test_quantized_at_load},
};
TV_TEST_MAIN(tests)
