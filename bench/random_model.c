/* Random checkpoints. */
#include "bench/random_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/tensor.h"
#include "kernels/philox.h"
#include "traces/safetensors.h"

static const tv_model_shape shapes[] = {
    {"0.6b", 28, 1024, 16, 8, 128, 3072, 151936, 0, 0},
    {"medium", 8, 512, 8, 4, 64, 1536, 16384, 0, 0},
    {"moe", 8, 512, 8, 4, 64, 256, 16384, 64, 8},
    {"small", 4, 256, 4, 2, 64, 768, 8192, 0, 0},
};

tv_status tv_model_shape_find(const char *name, tv_model_shape *shape, tv_err *err) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcmp(name, shapes[i].name)) {
            *shape = shapes[i];
            return TV_OK;
        }
    return TV_FAIL(err, TV_EARG, "shape %s: there are 0.6b, medium, moe and small", name);
}

static tv_status write_config(const char *dir, const tv_model_shape *s, tv_err *err) {
    cJSON *o = cJSON_CreateObject();
    cJSON *list = cJSON_AddArrayToObject(o, "architectures");
    cJSON_AddItemToArray(list, cJSON_CreateString(s->n_experts ? "Qwen3MoeForCausalLM" : "Qwen3ForCausalLM"));
    cJSON_AddStringToObject(o, "model_type", s->n_experts ? "qwen3_moe" : "qwen3");
    cJSON_AddStringToObject(o, "torch_dtype", "bfloat16");
    cJSON_AddStringToObject(o, "hidden_act", "silu");
    struct {
        const char *key;
        double value;
    } numbers[] = {
        {"num_hidden_layers", s->n_layers},
        {"hidden_size", s->d_model},
        {"num_attention_heads", s->n_heads},
        {"num_key_value_heads", s->n_kv_heads},
        {"head_dim", s->head_size},
        {"intermediate_size", s->d_ff},
        {"vocab_size", s->vocab_size},
        {"max_position_embeddings", 4096},
        {"rms_norm_eps", 1e-6},
        {"rope_theta", 1e6},
        {"eos_token_id", s->vocab_size - 1},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(o, numbers[i].key, numbers[i].value);
    if (s->n_experts) {
        cJSON_AddNumberToObject(o, "num_experts", s->n_experts);
        cJSON_AddNumberToObject(o, "num_experts_per_tok", s->n_experts_used);
        cJSON_AddNumberToObject(o, "moe_intermediate_size", s->d_ff);
        cJSON_AddBoolToObject(o, "norm_topk_prob", 1);
    }
    cJSON_AddBoolToObject(o, "tie_word_embeddings", 1);
    cJSON_AddBoolToObject(o, "attention_bias", 0);
    char *path = tv_path_join(dir, "config.json");
    tv_status status = tv_json_save(o, path, err);
    free(path);
    cJSON_Delete(o);
    return status;
}

/* Tensors share one pool of random values, each from its own place on; norms take ones. */
typedef struct {
    tv_st_tensor *list;
    size_t n, pool_size, offset;
    const tv_bf16 *pool, *ones;
} tensors;

static void add(tensors *t, char *name, int64_t rows, int64_t columns) {
    size_t count = (size_t)rows * (size_t)columns;
    t->offset = (t->offset + 1237 * 64) % (t->pool_size - count + 1);
    t->list[t->n++] = (tv_st_tensor){.name = name,
                                     .dtype = TV_BF16,
                                     .n_dims = 2,
                                     .shape = {rows, columns},
                                     .data = (const unsigned char *)(t->pool + t->offset),
                                     .bytes = count * sizeof(tv_bf16)};
}

static void add_norm(tensors *t, char *name, int64_t size) {
    t->list[t->n++] = (tv_st_tensor){.name = name,
                                     .dtype = TV_BF16,
                                     .n_dims = 1,
                                     .shape = {size},
                                     .data = (const unsigned char *)t->ones,
                                     .bytes = (size_t)size * sizeof(tv_bf16)};
}

static char *layer_name(int l, const char *rest) { return tv_xprintf("model.layers.%d.%s.weight", l, rest); }

/* The feed-forward network of layer l, or one of its experts. */
static void add_mlp(tensors *t, int l, const char *mlp, int64_t F, int64_t D) {
    const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++)
        add(t, tv_xprintf("model.layers.%d.%s.%s.weight", l, mlp, names[i]), i < 2 ? F : D, i < 2 ? D : F);
}

tv_status tv_random_model_write(const char *dir, const tv_model_shape *s, uint64_t seed, tv_err *err) {
    TV_TRY(write_config(dir, s, err));
    int64_t D = s->d_model, Q = (int64_t)s->n_heads * s->head_size, KV = (int64_t)s->n_kv_heads * s->head_size,
            F = s->d_ff;
    int64_t largest = (int64_t)s->vocab_size * D;
    if (Q * D > largest) largest = Q * D;
    if (F * D > largest) largest = F * D;
    size_t pool_size = ((size_t)largest + (1 << 20) + 3) / 4 * 4; /* room to begin in many places */
    tv_bf16 *pool = malloc(pool_size * sizeof *pool);
    tv_bf16 ones[1 << 14];
    if (!pool) return TV_FAIL(err, TV_ENOMEM, "no memory for %zu random values", pool_size);
    TV_ASSERT(D <= 1 << 14);
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) ones[i] = tv_bf16_from_f32(1);
#pragma omp parallel for
    for (size_t i = 0; i < pool_size; i += 4) {
        tv_philox4 r = tv_philox(seed, i, (uint64_t)TV_USE_SYNTHETIC << 32);
        for (int j = 0; j < 4; j++)
            pool[i + (size_t)j] = tv_bf16_from_f32(((float)(r.v[j] >> 8) * 0x1p-24f - 0.5f) * 0.08f);
    }
    tensors t = {.list = tv_xcalloc((size_t)s->n_layers * (size_t)(12 + 3 * s->n_experts) + 2, sizeof *t.list),
                 .pool_size = pool_size,
                 .pool = pool,
                 .ones = ones};
    add(&t, tv_xstrdup("model.embed_tokens.weight"), s->vocab_size, D);
    for (int l = 0; l < s->n_layers; l++) {
        add_norm(&t, layer_name(l, "input_layernorm"), D);
        add_norm(&t, layer_name(l, "post_attention_layernorm"), D);
        add_norm(&t, layer_name(l, "self_attn.q_norm"), s->head_size);
        add_norm(&t, layer_name(l, "self_attn.k_norm"), s->head_size);
        add(&t, layer_name(l, "self_attn.q_proj"), Q, D);
        add(&t, layer_name(l, "self_attn.k_proj"), KV, D);
        add(&t, layer_name(l, "self_attn.v_proj"), KV, D);
        add(&t, layer_name(l, "self_attn.o_proj"), D, Q);
        if (!s->n_experts) add_mlp(&t, l, "mlp", F, D);
        if (s->n_experts) add(&t, layer_name(l, "mlp.gate"), s->n_experts, D);
        for (int e = 0; e < s->n_experts; e++) {
            char *expert = tv_xprintf("mlp.experts.%d", e);
            add_mlp(&t, l, expert, F, D);
            free(expert);
        }
    }
    add_norm(&t, tv_xstrdup("model.norm.weight"), D);
    char *path = tv_path_join(dir, "model.safetensors");
    tv_status status = tv_st_write(path, t.list, t.n, NULL, err);
    free(path);
    for (size_t i = 0; i < t.n; i++) free((char *)t.list[i].name);
    free(t.list), free(pool);
    return status;
}
