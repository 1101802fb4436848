/* What a checkpoint folder says about its model. */
#ifndef TV_CONFIG_H
#define TV_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum { TV_QWEN2, TV_QWEN3, TV_QWEN3_MOE } tv_family;

enum { TV_MAX_EOS = 16 };

typedef struct {
    tv_family family;
    char architecture[64];
    int n_layers, d_model, n_heads, n_kv_heads, head_size;
    int d_ff; /* 0 in a TV_QWEN3_MOE without dense layers */
    int vocab_size, max_positions;
    int qkv_bias, o_bias; /* 1: the projections carry biases */
    int tie_embeddings;   /* 1: lm_head is the embedding table */
    float rms_eps;
    double rope_theta;
    /* rope scaling: 0 = default, 1 = yarn. With yarn max_positions covers factor x original positions, if that is more.
     */
    int rope_yarn;
    double yarn_factor, yarn_beta_fast, yarn_beta_slow, yarn_attention_factor; /* attention factor 0 = derived */
    int yarn_original_positions;
    int yarn_truncate; /* 1: the ramp's ends are rounded to whole dimensions (the usual) */
    /* mixture of experts (TV_QWEN3_MOE) */
    int n_experts, n_experts_used, d_ff_expert, norm_topk_prob;
    uint8_t *layer_sparse; /* [n_layers] 1 = expert layer; owned */
    /* stop ids: generation_config.json wins over config.json */
    int n_eos;
    int32_t eos[TV_MAX_EOS];
} tv_config;

/* Reads DIR/config.json and, where present, DIR/generation_config.json. Both key spellings (transformers 4 and 5) mean
 * the same. Whatever changes the mathematics and is not supported is an error that names the key and its value: never a
 * default. Every size is checked for sign and plausibility before anything is computed from it. */
TV_NODISCARD tv_status tv_config_load(const char *dir, tv_config *config, tv_err *err);
/* From text (fuzz entry); generation may be NULL. */
TV_NODISCARD tv_status tv_config_parse(const char *text, size_t size, const char *generation, size_t generation_size,
                                       const char *name, tv_config *config, tv_err *err);
void tv_config_free(tv_config *config);

/* "MODEL or a Hugging Face cache path": DIR itself, or DIR/snapshots/<the one named by refs/main, or the only one>.
 * The caller frees *out. Fails with what was looked for. */
TV_NODISCARD tv_status tv_model_dir_resolve(const char *path, char **out, tv_err *err);

#endif
