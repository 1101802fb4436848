/* The tensors of a checkpoint, bound by name and laid out for a device. */
#ifndef TV_WEIGHTS_H
#define TV_WEIGHTS_H

#include <stdint.h>

#include "base/progress.h"
#include "kernels/ops.h"
#include "models/config.h"
#include "models/quantize.h"

typedef struct {
    tv_bf16 *input_norm;       /* [D] */
    tv_bf16 *post_norm;        /* [D] */
    tv_bf16 *q_norm, *k_norm;  /* [HS], NULL in Qwen2.5 */
    tv_matrix qkv;             /* (H+2G)*HS x D, biases where the model has them */
    tv_matrix o;               /* D x H*HS */
    tv_matrix gate_up;         /* 2F x D (dense layers) */
    tv_matrix down;            /* D x F */
    tv_matrix router;          /* E x D (expert layers) */
    tv_matrix *expert_gate_up; /* [E] 2F' x D, host array */
    tv_matrix *expert_down;    /* [E] D x F', host array */
} tv_layer;

typedef struct {
    tv_config config;
    const tv_ops *ops;
    tv_dev *dev;
    tv_bf16 *embed;               /* [V,D] */
    tv_bf16 *norm;                /* [D] */
    tv_matrix lm_head;            /* V x D */
    tv_bf16 *cos, *sin;           /* [max_positions,HS/2] bf16 */
    tv_layer *layers;             /* [L] */
    tv_weight_dtype weight_dtype; /* what the layers' matrices were rounded to, but the router's; all else is bf16 */
    uint64_t
        hash; /* XXH3 over every tensor's name, dtype, shape and XXH3 of its bytes (the file's), in order of name */
    uint64_t bytes; /* device memory taken, packed matrices counted at two bytes an element */
    char *dir;      /* the checkpoint folder */
    void *owner;    /* private */
} tv_model;

/* Opens DIR's model.safetensors or sharded index (a folder with both: the single file), binds every tensor by name with
 * dtype and shape checked (expected and found are printed), converts F32 and F16 to bf16 with a notice, refuses missing
 * tensors and names them, warns of unused ones, refuses values that are not finite. Experts may lie in one tensor each
 * or fused over all. A tied model's own lm_head.weight is ignored, with a warning where it differs. Truncated files are
 * refused before any compute. dtype: the matrices of the layers (q, k, v, o, gate, up, down, experts') are rounded to
 * it at load and packed as bf16; embedding, norms, biases, router and lm_head never are. progress counts bytes of the
 * files. The mappings are closed again. */
TV_NODISCARD tv_status tv_model_load(const char *dir, const tv_ops *ops, tv_dev *dev, tv_weight_dtype dtype,
                                     const tv_progress *progress, tv_model **out, tv_err *err);
void tv_model_free(tv_model *model);

#endif
