#include "tests/tiny_checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* Aborts with the recorded message: these helpers prepare tests and are not what is tested. */
static void must(tv_status status, const tv_err *err) {
    if (status != TV_OK) fprintf(stderr, "tiny checkpoint: %s\n", err->message);
    TV_ASSERT(status == TV_OK);
}

tiny_options tiny_options_default(tv_family family) {
    tiny_options o = {.family = family, .n_layers = 2, .d_model = 64, .n_heads = 4, .n_kv_heads = 2, .head_size = 32};
    if (family == TV_QWEN2) o.head_size = 16;
    o.d_ff = 96, o.vocab_size = 128, o.max_positions = 256, o.seed = 1;
    if (family == TV_QWEN3_MOE) o.n_experts = 4, o.n_experts_used = 2, o.d_ff_expert = 48, o.norm_topk_prob = 1;
    return o;
}

static size_t count_of(const tiny_tensor *t) {
    size_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= (size_t)t->shape[i];
    return n;
}

tiny_tensor *tiny_add(tiny_checkpoint *c, const char *name, int64_t d0, int64_t d1, int64_t d2) {
    c->tensors = tv_xrealloc(c->tensors, (c->n + 1) * sizeof *c->tensors);
    tiny_tensor *t = &c->tensors[c->n];
    *t = (tiny_tensor){.dtype = TV_BF16, .n_dims = d2 ? 3 : d1 ? 2 : 1, .shape = {d0, d1, d2}, .shard = (int)c->n};
    TV_ASSERT(strlen(name) < sizeof t->name);
    strcpy(t->name, name);
    t->bytes = count_of(t) * sizeof(tv_bf16);
    t->data = tv_xcalloc(1, t->bytes ? t->bytes : 1);
    c->n++;
    return t;
}

void tiny_set(tiny_tensor *t, size_t i, float value) {
    tv_bf16 h = tv_bf16_from_f32(value);
    memcpy(t->data + i * sizeof h, &h, sizeof h);
}

float tiny_get(const tiny_tensor *t, size_t i) {
    tv_bf16 h;
    memcpy(&h, t->data + i * sizeof h, sizeof h);
    return tv_f32_from_bf16(h);
}

void tiny_fill(tiny_tensor *t, tv_rng *rng, double mean, double scale) {
    /* whole multiples of 2^-12, so that f16 (steps of 2^-24 near zero) holds the bf16 value exactly */
    for (size_t i = 0; i < count_of(t); i++)
        tiny_set(t, i, (float)(round((mean + scale * tv_rng_normal(rng)) * 4096) / 4096));
}

static void add_filled(tiny_checkpoint *c, tv_rng *rng, int layer, const char *name, int64_t d0, int64_t d1) {
    char full[128];
    if (layer >= 0)
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    tiny_tensor *t = tiny_add(c, full, d0, d1, 0);
    if (strstr(name, "norm"))
        tiny_fill(t, rng, 1, 0.2);
    else if (strstr(name, "bias"))
        tiny_fill(t, rng, 0, 0.5);
    else if (strstr(name, "embed"))
        tiny_fill(t, rng, 0, 1);
    else
        tiny_fill(t, rng, 0, (strstr(name, "lm_head") ? 3 : 1.6) / sqrt((double)d1));
}

static void add_layer(tiny_checkpoint *c, tv_rng *rng, int l) {
    const tiny_options *o = &c->options;
    int64_t D = o->d_model, HS = o->head_size, Q = o->n_heads * HS, KV = o->n_kv_heads * HS;
    int qkv_bias = o->family == TV_QWEN2 || o->attention_bias, o_bias = o->family != TV_QWEN2 && o->attention_bias;
    add_filled(c, rng, l, "input_layernorm.weight", D, 0);
    add_filled(c, rng, l, "post_attention_layernorm.weight", D, 0);
    add_filled(c, rng, l, "self_attn.q_proj.weight", Q, D);
    add_filled(c, rng, l, "self_attn.k_proj.weight", KV, D);
    add_filled(c, rng, l, "self_attn.v_proj.weight", KV, D);
    add_filled(c, rng, l, "self_attn.o_proj.weight", D, Q);
    if (qkv_bias) {
        add_filled(c, rng, l, "self_attn.q_proj.bias", Q, 0);
        add_filled(c, rng, l, "self_attn.k_proj.bias", KV, 0);
        add_filled(c, rng, l, "self_attn.v_proj.bias", KV, 0);
    }
    if (o_bias) add_filled(c, rng, l, "self_attn.o_proj.bias", D, 0);
    if (o->family != TV_QWEN2) {
        add_filled(c, rng, l, "self_attn.q_norm.weight", HS, 0);
        add_filled(c, rng, l, "self_attn.k_norm.weight", HS, 0);
    }
    if (o->family != TV_QWEN3_MOE) {
        add_filled(c, rng, l, "mlp.gate_proj.weight", o->d_ff, D);
        add_filled(c, rng, l, "mlp.up_proj.weight", o->d_ff, D);
        add_filled(c, rng, l, "mlp.down_proj.weight", D, o->d_ff);
        return;
    }
    add_filled(c, rng, l, "mlp.gate.weight", o->n_experts, D);
    for (int e = 0; e < o->n_experts; e++) {
        char name[64];
        snprintf(name, sizeof name, "mlp.experts.%d.gate_proj.weight", e);
        add_filled(c, rng, l, name, o->d_ff_expert, D);
        snprintf(name, sizeof name, "mlp.experts.%d.up_proj.weight", e);
        add_filled(c, rng, l, name, o->d_ff_expert, D);
        snprintf(name, sizeof name, "mlp.experts.%d.down_proj.weight", e);
        add_filled(c, rng, l, name, D, o->d_ff_expert);
    }
}

static cJSON *make_config(const tiny_options *o) {
    static const char *const types[] = {"qwen2", "qwen3", "qwen3_moe"};
    static const char *const architectures[] = {"Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"};
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToObject(json, "architectures", cJSON_CreateStringArray(&architectures[o->family], 1));
    cJSON_AddStringToObject(json, "model_type", types[o->family]);
    cJSON_AddStringToObject(json, "hidden_act", "silu");
    cJSON_AddNumberToObject(json, "hidden_size", o->d_model);
    cJSON_AddNumberToObject(json, "intermediate_size", o->d_ff);
    cJSON_AddNumberToObject(json, "num_hidden_layers", o->n_layers);
    cJSON_AddNumberToObject(json, "num_attention_heads", o->n_heads);
    cJSON_AddNumberToObject(json, "num_key_value_heads", o->n_kv_heads);
    if (o->family != TV_QWEN2) cJSON_AddNumberToObject(json, "head_dim", o->head_size);
    if (o->family != TV_QWEN2) cJSON_AddBoolToObject(json, "attention_bias", o->attention_bias);
    cJSON_AddNumberToObject(json, "vocab_size", o->vocab_size);
    cJSON_AddNumberToObject(json, "max_position_embeddings", o->max_positions);
    cJSON_AddNumberToObject(json, "rms_norm_eps", 1e-6);
    cJSON_AddNumberToObject(json, "rope_theta", 1e6);
    cJSON_AddBoolToObject(json, "tie_word_embeddings", o->tie_embeddings);
    cJSON_AddNumberToObject(json, "eos_token_id", 1);
    cJSON_AddStringToObject(json, "torch_dtype", "bfloat16");
    if (o->family != TV_QWEN3_MOE) return json;
    cJSON_AddNumberToObject(json, "num_experts", o->n_experts);
    cJSON_AddNumberToObject(json, "num_experts_per_tok", o->n_experts_used);
    cJSON_AddNumberToObject(json, "moe_intermediate_size", o->d_ff_expert);
    cJSON_AddBoolToObject(json, "norm_topk_prob", o->norm_topk_prob);
    return json;
}

tiny_checkpoint *tiny_new(const tiny_options *options) {
    tiny_checkpoint *c = tv_xcalloc(1, sizeof *c);
    tv_rng rng = {options->seed};
    TV_ASSERT(options->family != TV_QWEN2 || options->head_size * options->n_heads == options->d_model);
    c->options = *options;
    c->config = make_config(options);
    add_filled(c, &rng, -1, "model.embed_tokens.weight", options->vocab_size, options->d_model);
    for (int l = 0; l < options->n_layers; l++) add_layer(c, &rng, l);
    add_filled(c, &rng, -1, "model.norm.weight", options->d_model, 0);
    if (!options->tie_embeddings) add_filled(c, &rng, -1, "lm_head.weight", options->vocab_size, options->d_model);
    return c;
}

void tiny_free(tiny_checkpoint *c) {
    for (size_t i = 0; i < c->n; i++) free(c->tensors[i].data);
    cJSON_Delete(c->config);
    cJSON_Delete(c->generation);
    free(c->tensors);
    free(c);
}

tiny_tensor *tiny_find(tiny_checkpoint *c, const char *name) {
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->tensors[i].name, name) == 0) return &c->tensors[i];
    fprintf(stderr, "tiny checkpoint: no tensor %s\n", name);
    TV_ASSERT(!"the tensor exists");
    return NULL;
}

void tiny_remove(tiny_checkpoint *c, const char *name) {
    tiny_tensor *t = tiny_find(c, name);
    free(t->data);
    memmove(t, t + 1, (size_t)(c->tensors + c->n - (t + 1)) * sizeof *t);
    c->n--;
}

/* f16 bits of a value that f16 holds exactly. */
static uint16_t f16_exact(float f) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        float g = tv_f32_from_f16((uint16_t)h);
        if (memcmp(&g, &f, sizeof f) == 0) return (uint16_t)h;
    }
    TV_ASSERT(!"f16 holds the value");
    return 0;
}

void tiny_convert(tiny_tensor *t, tv_dtype dtype) {
    size_t n = count_of(t), size = tv_dtype_size(dtype);
    unsigned char *data = tv_xcalloc(n, size);
    TV_ASSERT(t->dtype == TV_BF16);
    for (size_t i = 0; i < n; i++) {
        float f = tiny_get(t, i);
        double d = f;
        if (dtype == TV_F32) memcpy(data + i * size, &f, size);
        if (dtype == TV_F64) memcpy(data + i * size, &d, size);
        if (dtype == TV_F16) {
            uint16_t h = f16_exact(f);
            memcpy(data + i * size, &h, size);
        }
    }
    free(t->data);
    t->data = data, t->dtype = dtype, t->bytes = n * size;
}

void tiny_fuse_experts(tiny_checkpoint *c) {
    const tiny_options *o = &c->options;
    size_t F = (size_t)o->d_ff_expert, D = (size_t)o->d_model, E = (size_t)o->n_experts,
           block = F * D * sizeof(tv_bf16);
    for (int l = 0; l < o->n_layers; l++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", l);
        unsigned char *gate_up = tiny_add(c, name, (int64_t)E, (int64_t)(2 * F), (int64_t)D)->data;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", l);
        unsigned char *down = tiny_add(c, name, (int64_t)E, (int64_t)D, (int64_t)F)->data;
        for (size_t e = 0; e < E; e++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%zu.gate_proj.weight", l, e);
            memcpy(gate_up + 2 * e * block, tiny_find(c, name)->data, block);
            tiny_remove(c, name);
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%zu.up_proj.weight", l, e);
            memcpy(gate_up + (2 * e + 1) * block, tiny_find(c, name)->data, block);
            tiny_remove(c, name);
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%zu.down_proj.weight", l, e);
            memcpy(down + e * block, tiny_find(c, name)->data, block);
            tiny_remove(c, name);
        }
    }
}

static void save_json(const cJSON *json, const char *dir, const char *name) {
    tv_err err = {0};
    char *path = tv_path_join(dir, name);
    must(tv_json_save(json, path, &err), &err);
    free(path);
}

/* Writes the tensors of one shard (n_shards 1: all), those of wide dtypes first, as the writer asks. */
static void write_file(const tiny_checkpoint *c, const char *dir, const char *name, int shard, int n_shards) {
    tv_err err = {0};
    tv_st_tensor *list = tv_xcalloc(c->n + 1, sizeof *list);
    size_t n = 0;
    for (size_t size = 8; size >= 1; size /= 2)
        for (size_t i = 0; i < c->n; i++) {
            const tiny_tensor *t = &c->tensors[i];
            if (tv_dtype_size(t->dtype) != size || t->shard % n_shards != shard) continue;
            list[n] = (tv_st_tensor){
                .name = t->name, .dtype = t->dtype, .n_dims = t->n_dims, .data = t->data, .bytes = t->bytes};
            memcpy(list[n++].shape, t->shape, sizeof t->shape);
        }
    char *path = tv_path_join(dir, name);
    must(tv_st_write(path, list, n, (const char *const[]){"format", "pt", NULL}, &err), &err);
    free(path);
    free(list);
}

static void write_json(const tiny_checkpoint *c, const char *dir) {
    tv_err err = {0};
    must(tv_dir_make(dir, &err), &err);
    save_json(c->config, dir, "config.json");
    if (c->generation) save_json(c->generation, dir, "generation_config.json");
}

void tiny_write(const tiny_checkpoint *c, const char *dir) {
    write_json(c, dir);
    write_file(c, dir, "model.safetensors", 0, 1);
}

const char *tiny_shard_name(int i, int n_shards) {
    static char names[4][64];
    static int turn;
    char *name = names[turn++ % 4];
    snprintf(name, sizeof names[0], "model-%05d-of-%05d.safetensors", i + 1, n_shards);
    return name;
}

void tiny_write_sharded(const tiny_checkpoint *c, const char *dir, int n_shards) {
    write_json(c, dir);
    cJSON *index = cJSON_CreateObject(), *map = cJSON_AddObjectToObject(index, "weight_map");
    for (int i = 0; i < n_shards; i++) write_file(c, dir, tiny_shard_name(i, n_shards), i, n_shards);
    for (size_t i = 0; i < c->n; i++)
        cJSON_AddStringToObject(map, c->tensors[i].name, tiny_shard_name(c->tensors[i].shard % n_shards, n_shards));
    save_json(index, dir, "model.safetensors.index.json");
    cJSON_Delete(index);
}
