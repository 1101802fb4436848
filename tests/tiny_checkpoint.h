/* Small random checkpoints for tests: made in memory, changed at will, written in the Hugging Face layout. Failures
 * abort. */
#ifndef TV_TINY_CHECKPOINT_H
#define TV_TINY_CHECKPOINT_H

#include "base/json.h"
#include "models/config.h"
#include "tests/check.h"
#include "traces/safetensors.h"

typedef struct {
    tv_family family;
    int n_layers, d_model, n_heads, n_kv_heads, head_size, d_ff, vocab_size, max_positions;
    int attention_bias;                                         /* Qwen3: biases on q, k, v and o */
    int tie_embeddings;                                         /* no lm_head.weight */
    int n_experts, n_experts_used, d_ff_expert, norm_topk_prob; /* TV_QWEN3_MOE */
    uint64_t seed;
} tiny_options;

/* 2 layers, hidden 64, 4 heads of 32 over 2, ffn 96, vocabulary 128, 256 positions, untied; 4 experts of 48, 2 used.
 * Qwen2: heads of 16, as its configuration has no head_dim. */
tiny_options tiny_options_default(tv_family family);

typedef struct {
    char name[128];
    tv_dtype dtype;
    int n_dims;
    int64_t shape[3];
    unsigned char *data; /* [bytes], owned */
    size_t bytes;
    int shard; /* file of the sharded layout it goes to; by default the tensors take turns */
} tiny_tensor;

typedef struct {
    tiny_options options;
    cJSON *config;     /* what config.json will say; change it freely */
    cJSON *generation; /* generation_config.json, or NULL: none is written */
    tiny_tensor *tensors;
    size_t n;
} tiny_checkpoint;

/* Peaked distributions, norms and biases that matter; every value is a bf16 value that f16 holds exactly too. */
tiny_checkpoint *tiny_new(const tiny_options *options);
void tiny_free(tiny_checkpoint *c);

/* The tensor of that name; aborts when there is none. Valid until a tensor is added or removed. */
tiny_tensor *tiny_find(tiny_checkpoint *c, const char *name);
/* A new bf16 tensor of zeros; d1, d2 = 0: fewer dimensions. */
tiny_tensor *tiny_add(tiny_checkpoint *c, const char *name, int64_t d0, int64_t d1, int64_t d2);
void tiny_remove(tiny_checkpoint *c, const char *name);
/* Normal values times scale plus mean, into a bf16 tensor. */
void tiny_fill(tiny_tensor *t, tv_rng *rng, double mean, double scale);
/* Element i of a bf16 tensor. */
void tiny_set(tiny_tensor *t, size_t i, float value);
float tiny_get(const tiny_tensor *t, size_t i);
/* The same values in another dtype: F32, F16 (exact for what tiny_new makes), F64, or I8 and F8_E4M3 (zeros). */
void tiny_convert(tiny_tensor *t, tv_dtype dtype);
/* One tensor per expert -> the fused layout of transformers 5. */
void tiny_fuse_experts(tiny_checkpoint *c);

/* Writes config.json, generation_config.json and model.safetensors into dir, which is made when missing. */
void tiny_write(const tiny_checkpoint *c, const char *dir);
/* The same with model-0000I-of-0000N.safetensors files and an index. */
void tiny_write_sharded(const tiny_checkpoint *c, const char *dir, int n_shards);
/* Name of shard i of n (counted from 0), static storage. */
const char *tiny_shard_name(int i, int n_shards);

#endif
