/* Between the cuDNN backend's host side and its kernels: how a step's segments become calls of fixed shape. */
#ifndef TV_CUDA_ATTENTION_CUDNN_H
#define TV_CUDA_ATTENTION_CUDNN_H

#include "kernels/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One call: of the step's segments with low <= n_rows < high, in order, those numbered first .. first+b-1. Where there
 * are fewer than b the rest is idle: one zero row that attends the first position of the cache. */
typedef struct {
    int low, high, first, b, sq;
    int columns, page;   /* page table */
    int32_t *member;     /* [b] i32 out: index of the segment, -1 = idle */
    int32_t *length_q;   /* [b] i32 out */
    int32_t *length_kv;  /* [b] i32 out */
    int32_t *page_table; /* [b,columns] i32 out; columns past the cache repeat page 0 */
    tv_bf16 *q, *o;      /* [b,sq,H,HS] bf16: q rows of the members, zero elsewhere; o as cuDNN wrote it */
} cuda_cudnn_call;

/* Fills member, lengths and page table from the n segments on the card. */
TV_NODISCARD tv_status cuda_cudnn_tables(tv_dev *dev, const cuda_cudnn_call *c, const tv_segment *segments, int n,
                                         const tv_kv_layer *kv, tv_err *err);
/* call.q from q [M,H*HS]. */
TV_NODISCARD tv_status cuda_cudnn_pack(tv_dev *dev, const cuda_cudnn_call *c, const tv_segment *segments,
                                       const tv_bf16 *q, int width, tv_err *err);
/* out [M,H*HS] from call.o. */
TV_NODISCARD tv_status cuda_cudnn_unpack(tv_dev *dev, const cuda_cudnn_call *c, const tv_segment *segments,
                                         tv_bf16 *out, int width, tv_err *err);

#ifdef __cplusplus
}
#endif
#endif
