/* Checkpoints of given shapes with random weights, for speed alone. */
#ifndef TV_BENCH_RANDOM_MODEL_H
#define TV_BENCH_RANDOM_MODEL_H

#include <stdint.h>

#include "base/status.h"

typedef struct {
    const char *name; /* "0.6b" */
    int n_layers, d_model, n_heads, n_kv_heads, head_size, d_ff, vocab_size;
    int n_experts, n_experts_used; /* of d_ff each, in every layer; 0: dense */
} tv_model_shape;

/* The shape called name: "0.6b" (Qwen3-0.6B), "medium" (34 M parameters), "small" (one that a test can afford), "moe"
 * (216 M parameters, of which a token meets 40 M). TV_EARG lists them. */
TV_NODISCARD tv_status tv_model_shape_find(const char *name, tv_model_shape *shape, tv_err *err);
/* Writes DIR/config.json and DIR/model.safetensors: Qwen3 or Qwen3-MoE, tied embeddings, bf16 weights uniform in +-0.04
 * drawn from seed, norms 1. Takes as much memory as its largest tensor. */
TV_NODISCARD tv_status tv_random_model_write(const char *dir, const tv_model_shape *shape, uint64_t seed, tv_err *err);

#endif
