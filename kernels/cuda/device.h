/* The CUDA device: what its files share. Nothing outside kernels/cuda, tests and bench includes this. */
#ifndef TV_CUDA_DEVICE_H
#define TV_CUDA_DEVICE_H

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/attention.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch buffers in device memory, one per operation that needs one, so that an operation may call another. */
enum {
    CUDA_SCRATCH_LINEAR,
    CUDA_SCRATCH_ATTENTION,
    CUDA_SCRATCH_LOGPROBS,
    CUDA_SCRATCH_MOE,
    CUDA_SCRATCH_EXPAND,
    CUDA_N_SCRATCH
};

/* Bytes of each of the two pinned buffers that large uploads go through. */
enum { CUDA_STAGE = 4 << 20 };
/* Bytes of packed weights on the card at a time, unless a row has more. */
enum { CUDA_EXPAND = 8 << 20 };

/* Keys that recorded steps are sized for come in multiples of this. Larger: fewer graphs, more blocks that find nothing to
 * do. */
enum { CUDA_REACH = 256 };

/* Owners of steps that what libraries choose is told apart for; further ones share the last place. */
enum { CUDA_OWNERS = 64 };

struct tv_dev {
    cuda_rt_info info;
    cuda_rt_stream *stream; /* everything runs here, in order */
    uint64_t allocated;     /* bytes handed out */
    void *scratch[CUDA_N_SCRATCH];
    size_t scratch_bytes[CUDA_N_SCRATCH];
    /* The segments of the step that runs between begin and end, on the host and on the card; else NULL. */
    const tv_segment *step_host, *step_card;
    /* Those last seen of steps without, on the host as they were and on the card. */
    tv_segment *segments_host, *segments;
    int n_segments, max_segments;
    struct cuda_cudnn *cudnn; /* attention_cudnn.c: the library and its plans, from the first use on */
    /* cuBLASLt's product (linear_cublaslt.c), which sets *done where it took it; NULL: linear.cu does all. */
    tv_status (*library_linear)(tv_dev *dev, const tv_linear_args *a, int *done, tv_err *err);
    struct cuda_lt *lt; /* NULL: lt_absent says why */
    char lt_absent[128];
    int gemm_rows; /* height of the tiles of our own products: 16, 64, 128; 0: by sizes */
    /* Uploads of pageable memory: one buffer is filled while the card reads the other. */
    void *stage[2];
    cuda_rt_event *stage_read[2]; /* recorded behind the last copy from it */
    int stage_next;
    size_t flash_scratch;  /* most bytes of partial results in one launch of flash, where a segment needs no more; 0: 64
                              MiB */
    size_t expand_scratch; /* instead of CUDA_EXPAND; 0: that */
    struct cuda_experts *experts; /* moe.cu: where each layer's expert matrices lie, on the card */
    int n_experts;
    struct cuda_steps *steps; /* steps.c */
    int reach;                /* inside a step that is or may be recorded: keys that launches are sized for; else 0 */
    int unrecordable;         /* an operation of the step sets it: its launches cannot be captured */
    const void *owners[CUDA_OWNERS];
    uint64_t owner; /* of the step: one bit, its place above; choices of libraries collect those of their users */
    uint64_t generation;      /* counts the moves of memory that launches point to: scratch, segments; from 1 on */
    uint64_t graph_launches;  /* steps that ran as a graph */
    char description[160];
};

/* At least bytes of device scratch of the given kind, 256-byte aligned; its content is undefined, and it stays valid
 * until the next call for the same kind. Grows when asked for more than ever before: never inside a captured step. */
TV_NODISCARD tv_status cuda_scratch(tv_dev *dev, int kind, size_t bytes, void **p, tv_err *err);
/* The n segments (host memory) in device memory: those of the step, else copied there when they are not the ones last
 * asked for. */
TV_NODISCARD tv_status cuda_segments(tv_dev *dev, const tv_segment *segments, int n, const tv_segment **out,
                                     tv_err *err);

/* tv_ops.step_begin, step_end, steps_forget (steps.c). */
tv_status cuda_step_begin(tv_dev *dev, const void *owner, const tv_step_key *key, const tv_segment *segments,
                          const tv_segment *device_segments, int n, int *run, tv_err *err);
tv_status cuda_step_end(tv_dev *dev, tv_status status, tv_err *err);
void cuda_steps_forget(tv_dev *dev, const void *owner);
void cuda_steps_close(tv_dev *dev);

/* One launcher an operation, in the file of its name: argument checks, limits of the kernel, launch on dev->stream. */
tv_status cuda_embed(tv_dev *dev, const tv_embed_args *a, tv_err *err);
tv_status cuda_rmsnorm(tv_dev *dev, const tv_rmsnorm_args *a, tv_err *err);
tv_status cuda_linear(tv_dev *dev, const tv_linear_args *a, tv_err *err);
/* y [count] f32 rounded to bf16 values, in place. */
tv_status cuda_linear_round(tv_dev *dev, float *y, size_t count, tv_err *err);
/* out [N,K] bf16 = rows on the card, expanded (expand.cu); N at least 1. */
tv_status cuda_expand(tv_dev *dev, const tv_packed_rows *rows, int N, int K, tv_bf16 *out, tv_err *err);
/* cuBLASLt for dev (linear_cublaslt.c): sets library_linear; where the library is not there or does not start, says so
 * in lt_absent. */
tv_status cuda_lt_open(tv_dev *dev, tv_err *err);
void cuda_lt_close(tv_dev *dev);
/* The library, and a line for each algorithm and the products seen so far that it computes: all, or those with a bit of
 * owners; malloc'd. */
char *cuda_lt_text(const tv_dev *dev, uint64_t owners);
void cuda_lt_forget(tv_dev *dev, uint64_t owners);
/* Height of the tiles for `copies` products of M rows and N outputs that run at once: the largest that keeps at least
 * a third of the multiprocessors busy. Speed alone depends on it. */
int cuda_gemm_rows(const tv_dev *dev, int64_t M, int64_t N, int64_t copies);
tv_status cuda_rope(tv_dev *dev, const tv_rope_args *a, tv_err *err);
tv_status cuda_swiglu(tv_dev *dev, const tv_swiglu_args *a, tv_err *err);
tv_status cuda_moe_route(tv_dev *dev, const tv_moe_route_args *a, tv_err *err);
tv_status cuda_moe(tv_dev *dev, const tv_moe_args *a, tv_err *err);
size_t cuda_moe_scratch_bytes(int M, int D, int F, int used);
void cuda_moe_close(tv_dev *dev); /* frees dev->experts */
tv_status cuda_logprobs(tv_dev *dev, const tv_logprobs_args *a, tv_err *err);
tv_status cuda_sample(tv_dev *dev, const tv_sample_args *a, tv_err *err);
tv_status cuda_carry(tv_dev *dev, const tv_carry_args *a, tv_err *err);
void cuda_cudnn_close(tv_dev *dev);
/* The library and a line for each plan; or those with a bit of owners, and the library where there are such; malloc'd. */
char *cuda_cudnn_text(const tv_dev *dev, uint64_t owners);
void cuda_cudnn_forget(tv_dev *dev, uint64_t owners);
/* Head size and alignment, after tv_check_attn. */
TV_NODISCARD tv_status cuda_attn_check(const tv_attn_args *a, tv_err *err);
/* Scratch that flash keeps for a cache of this shape, however its plans and lengths change; a single row with so many
 * splits that its own need is larger makes it grow. */
size_t cuda_attn_flash_scratch_bytes(const tv_dev *dev, const tv_kv_layer *kv, int H);

#ifdef __cplusplus
}
#endif
#endif
