/* The attention backends of the CUDA device, as kernels/attention.c lists them. */
#ifndef TV_CUDA_ATTENTION_H
#define TV_CUDA_ATTENTION_H

#include "kernels/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As steps run them (steps.c) ... */
tv_status cuda_backend_math(tv_dev *dev, const tv_attn_args *a, tv_err *err);
tv_status cuda_backend_eager(tv_dev *dev, const tv_attn_args *a, tv_err *err);
tv_status cuda_backend_flash(tv_dev *dev, const tv_attn_args *a, tv_err *err);
tv_status cuda_backend_cudnn(tv_dev *dev, const tv_attn_args *a, tv_err *err);
/* ... and their launchers. */
tv_status cuda_attn_math(tv_dev *dev, const tv_attn_args *a, tv_err *err);
tv_status cuda_attn_eager(tv_dev *dev, const tv_attn_args *a, tv_err *err);
tv_status cuda_attn_flash(tv_dev *dev, const tv_attn_args *a, tv_err *err);
tv_status cuda_attn_cudnn(tv_dev *dev, const tv_attn_args *a, tv_err *err);
int cuda_cudnn_supports(const tv_attn_limits *limits, const char **why);
enum { CUDA_ATTN_MAX_HEAD = 256, CUDA_ATTN_HEAD_STEP = 8 };              /* head sizes of our attention kernels */
enum { CUDA_ATTN_BYTES_MAX_HEAD = 128, CUDA_ATTN_BYTES_HEAD_STEP = 16 }; /* ... of flash over fp8 and int8 caches */
enum { CUDA_ATTN_KEY_STEP = 16, CUDA_ATTN_MAX_KEY_TILE = 64 }; /* tiles of keys that flash can be planned with */

#ifdef __cplusplus
}
#endif
#endif
