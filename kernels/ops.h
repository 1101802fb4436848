/* The operations of the engine: one table of functions per device, one argument struct per operation.
 *
 * Dims (docs/style.md has the dictionary): M rows (tokens of this step over all sequences), D model, H query heads, G kv heads,
 * HS head size, F ffn, E experts, V vocabulary, S cache positions per slot. Unless said otherwise pointers are device
 * pointers, row-major, contiguous; bf16 tensors, f32 arithmetic inside an operation; rounding points as in docs/numerics.md.
 * Every entry checks its arguments first (ops_check.c) and returns TV_EARG naming the operation and the value. */
#ifndef TV_OPS_H
#define TV_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/tensor.h"
#include "kernels/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tv_dev tv_dev; /* a device with its streams and threads; each device defines it */
typedef struct tv_event tv_event; /* a place in the order of a device's work */

/* Consecutive rows of one sequence in a step: rows row .. row+n_rows-1 are its positions pos .. pos+n_rows-1. Row j attends
 * keys 0 .. pos+j of cache slot `slot` (causal, bottom-right). A decode row is a segment of one row. */
typedef struct { int32_t slot, row, n_rows, pos; } tv_segment;

/* A weight matrix in the device's own layout: y = x W^T (+ bias). */
typedef struct {
    int N, K;
    void *data;          /* device layout, weights arena */
    const tv_bf16 *bias; /* [N] bf16, or NULL */
} tv_matrix;

/* Rows of a weight matrix as integers that share scales: element (j, k) is round(q * scale[j, k / group]). */
typedef struct {
    int bits;       /* 8; or 4: two elements a byte, the even one low */
    int group;      /* elements of a row that share a scale */
    uint8_t *q;     /* [N,K], or [N,(K+1)/2] with 4 bits; two's complement */
    tv_bf16 *scale; /* [N,ceil(K/group)] bf16, not negative */
} tv_packed_rows;

/* KV cache of one layer. */
typedef struct {
    tv_bf16 *k, *v; /* [slots,G,S,HS] of dtype, session arena; positions below a segment's pos are immutable */
    int slots, G, S, HS;
    tv_dtype dtype;           /* TV_BF16, or one byte an element: TV_F8_E4M3, TV_I8 */
    float *k_scale, *v_scale; /* [slots,G,S] f32, session arena: element = byte's value * scale; NULL with TV_BF16 */
} tv_kv_layer;

typedef struct {
    const tv_bf16 *table; /* [V,D] bf16 */
    const int32_t *ids;   /* [M] i32, host-checked to lie in [0,V) */
    tv_bf16 *out;         /* [M,D] bf16 */
    int M, V, D;
} tv_embed_args;

typedef struct {
    tv_bf16 *x;             /* [rows,D] bf16 residual stream; updated in place when delta is given */
    const tv_bf16 *delta;   /* [rows,D] bf16 or NULL: first x = round(x + delta) */
    const tv_bf16 *weight;  /* [D] bf16 */
    const int32_t *rows;    /* [M] i32 or NULL: out row i takes x row rows[i] (and delta row rows[i]); rows distinct */
    tv_bf16 *out;           /* [M,D] bf16; round(round(x * rsqrt(mean x^2 + eps)) * weight) */
    int M, D;
    float eps;
} tv_rmsnorm_args;

typedef struct {
    const tv_bf16 *x;    /* [M,K] bf16 */
    const tv_matrix *w;  /* N x K */
    void *y;             /* [M,N] bf16, or f32 when y_f32 */
    int M;
    int y_f32;           /* logits: keep f32 ... */
    int round_bf16;      /* ... rounded to bf16 values (--logits bf16) */
    tv_linear_plan plan;
    int fixed;           /* 1 under --reduction fixed: a library's kernel is pinned too, whatever M */
} tv_linear_args;

/* q/k norm (Qwen3), rope, and append to the cache, from the fused projection's output. */
typedef struct {
    const tv_bf16 *qkv;      /* [M,(H+2G)*HS] bf16: q heads, k heads, v heads */
    const tv_bf16 *q_weight; /* [HS] bf16, or NULL: no norm (Qwen2.5) */
    const tv_bf16 *k_weight; /* [HS] bf16, or NULL */
    const tv_bf16 *cos, *sin; /* [positions,HS/2] bf16, from f64 angles (yarn's factor included) */
    tv_bf16 *q;              /* [M,H,HS] bf16 out */
    tv_kv_layer kv;          /* rows written at (slot, g, pos) */
    const tv_segment *segments; /* [n_segments] host memory */
    int n_segments, M, H, positions;
    float eps;
} tv_rope_args;

typedef struct {
    const tv_bf16 *q;  /* [M,H,HS] bf16, roped */
    tv_kv_layer kv;    /* this layer's cache, the step's own keys already appended */
    tv_bf16 *out;      /* [M,H*HS] bf16 */
    const tv_segment *segments; /* [n_segments] host memory */
    int n_segments, M, H;
    float scale;       /* 1/sqrt(HS) */
    tv_attn_plan plan;
    int fixed;         /* 1 under --reduction fixed: a library's kernel is pinned too, whatever the batch */
} tv_attn_args;

typedef struct {
    const tv_bf16 *gate_up; /* [M,2F] bf16: gate then up */
    tv_bf16 *out;           /* [M,F] bf16: round(round(silu(gate)) * up) */
    int M, F;
} tv_swiglu_args;

typedef struct {
    const tv_bf16 *logits; /* [M,E] bf16 router outputs */
    int32_t *ids;          /* [M,used] i32: softmax in f32 over all E, top used, lowest index on ties, descending */
    tv_bf16 *weights;      /* [M,used] bf16: probabilities, renormalised if norm, rounded */
    int M, E, used, norm;
    const int32_t *given;  /* [M,used] i32, or NULL: take these (distinct) experts, in this order, instead of the top ones */
} tv_moe_route_args;

/* out[m] = sum over m's experts in ascending expert index of round(weight * down(silu(gate) up)), each product and each
 * partial sum rounded to bf16 (the order and rounding of the reference implementation). */
typedef struct {
    const tv_bf16 *x;          /* [M,D] bf16 */
    const int32_t *ids;        /* [M,used] i32 */
    const tv_bf16 *weights;    /* [M,used] bf16 */
    const tv_matrix *gate_up;  /* [E] matrices 2F' x D (host array) */
    const tv_matrix *down;     /* [E] matrices D x F' (host array) */
    tv_bf16 *out;              /* [M,D] bf16 */
    void *scratch;             /* tv_ops.moe_scratch_bytes(M, D, F', used) */
    int M, D, F, E, used;
    tv_plan plan;              /* each expert's product is planned with the rows it receives */
} tv_moe_args;

/* Log-softmax over the whole vocabulary after temperature, its top k, and the given token's value and rank. */
typedef struct {
    float *logits;             /* [M,V] f32; suppressed ids are overwritten with -inf */
    const int32_t *suppressed; /* [n_suppressed] i32 ids (EOS) */
    const int32_t *token;      /* [M] i32, or NULL: the token whose log-probability and rank are wanted; -1 = none */
    int32_t *topk_ids;         /* [M,k] i32, descending log-probability, ties by lowest id */
    float *topk_logprobs;      /* [M,k] f32 */
    float *token_logprob;      /* [M] f32 (used when token is given) */
    int32_t *token_rank;       /* [M] i32, 0 = most likely, ties by lowest id */
    int32_t *bad;              /* [M] i32 out: 1 where a logit is NaN or +inf, or all are -inf */
    int M, V, k, n_suppressed;
    float temperature;         /* > 0; below 1e-6 counts as 0: argmax has log-probability 0, the rest -inf */
} tv_logprobs_args;

/* Draws from the renormalised first top_k of each record by inverse CDF in descending order. */
typedef struct {
    const int32_t *topk_ids;    /* [M,k] */
    const float *topk_logprobs; /* [M,k] */
    const int64_t *trajectory;  /* [M] RNG counter: identity of the trajectory */
    const int32_t *position;    /* [M] RNG counter: index of the drawn token in its trajectory */
    int32_t *token;             /* [M] out; always one of nonzero probability */
    int M, k, top_k;
    uint64_t seed;
} tv_sample_args;

/* Moves token ids from step to step without the host: to[to_at[i]] = from[from_at[i]]. An index below 0 moves nothing,
 * and neither does an id below 0 (no token could be drawn: the record says why). */
typedef struct {
    int32_t *to;            /* i32 */
    const int32_t *to_at;   /* [n] i32, distinct but for those below 0, or NULL: 0 .. n-1 */
    const int32_t *from;    /* i32 */
    const int32_t *from_at; /* [n] i32, or NULL: 0 .. n-1 */
    int n;
} tv_carry_args;

/* What the launches of a step depend on beside the lengths of its segments: equal keys, equal launches. */
typedef struct { int64_t part[8]; } tv_step_key;

typedef struct {
    int threads;     /* 0 = all cores */
    const char *isa; /* CPU: "auto", "scalar", "avx2", "avx512", ... */
    int gpu;         /* CUDA: ordinal */
} tv_dev_options;

typedef struct {
    const char *name; /* "cpu", "cuda" */
    /* 1 when this machine has one that open would accept; else 0 with the reason in why. NULL: every machine has. */
    int (*available)(char *why, size_t size);
    tv_status (*open)(const tv_dev_options *options, tv_dev **dev, tv_err *err);
    void (*close)(tv_dev *dev);
    /* One line for reports: "cpu, 2 threads, avx2". Valid until close. */
    const char *(*describe)(const tv_dev *dev);
    /* How matrix products are summed, where this device has more than one way ("fma", "bf16", "tiles":
     * kernels/cpu/linear.h); NULL: it has one. */
    const char *(*numerics)(const tv_dev *dev);
    uint64_t (*memory_total)(const tv_dev *dev); /* bytes this device may use */
    /* Device memory, 64-byte aligned, zeroed; fails with what was asked for and what there is. */
    tv_status (*alloc)(tv_dev *dev, size_t bytes, void **p, tv_err *err);
    void (*free)(tv_dev *dev, void *p, size_t bytes);
    /* Host memory that the device reads and writes by itself (pinned). NULL: plain memory serves as well. */
    tv_status (*host_alloc)(size_t bytes, void **p, tv_err *err);
    void (*host_free)(void *p);
    tv_status (*upload)(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err);   /* host to device, ordered */
    tv_status (*download)(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err); /* device to host, waits */
    tv_status (*sync)(tv_dev *dev, tv_err *err);
    /* For steps that the host does not wait for; all NULL on devices where a call returns when its work is done. Copies
     * between the device and memory from host_alloc, in order with the operations: that memory is the device's until an event
     * recorded behind the copy was waited for (or sync). An event is recorded again only when it was waited for. */
    tv_status (*upload_pinned)(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err);
    tv_status (*download_pinned)(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err);
    tv_status (*event_open)(tv_dev *dev, tv_event **event, tv_err *err);
    void (*event_close)(tv_event *event); /* NULL is fine */
    tv_status (*event_record)(tv_dev *dev, tv_event *event, tv_err *err);
    tv_status (*event_wait)(tv_event *event, tv_err *err);
    /* Around the operations of a step; NULL on devices that need no such. begin is told where in device memory the step's
     * segments lie, which the operations get in host memory, and says in *run whether they are to be called: not where it has
     * put a recording of such a step into the stream, made for the same owner (whose memory the operations work in) and the
     * same key; then there is no end. key NULL: nothing is recorded; else uploads, downloads and waits lie outside. end takes
     * how the operations went and returns it, or its own failure. */
    tv_status (*step_begin)(tv_dev *dev, const void *owner, const tv_step_key *key, const tv_segment *segments,
                            const tv_segment *device_segments, int n_segments, int *run, tv_err *err);
    tv_status (*step_end)(tv_dev *dev, tv_status status, tv_err *err);
    void (*steps_forget)(tv_dev *dev, const void *owner); /* before the owner's memory is freed */
    /* The libraries that operations are left to, and what they chose for the steps of owner (NULL: for all so far): a line
     * each; the caller frees. NULL: a device without libraries. */
    char *(*libraries)(const tv_dev *dev, const void *owner);
    /* Packs n_parts row blocks (part p: [part_N[p],K] bf16 in host memory, any alignment) under one another into one matrix;
     * bias: [n_parts] pointers to [part_N[p]] bf16 host memory, or NULL. The device owns the result until matrix_free. */
    tv_status (*matrix_load)(tv_dev *dev, int n_parts, const void *const *parts, const int *part_N, const void *const *bias, int K,
                             tv_matrix *out, tv_err *err);
    /* The same from packed parts (host memory), which become bf16 on the device. NULL: the host hands over bf16. */
    tv_status (*matrix_load_packed)(tv_dev *dev, int n_parts, const tv_packed_rows *parts, const int *part_N,
                                    const void *const *bias, int K, tv_matrix *out, tv_err *err);
    void (*matrix_free)(tv_dev *dev, tv_matrix *matrix);
    size_t (*moe_scratch_bytes)(int M, int D, int F, int used);

    tv_status (*embed)(tv_dev *dev, const tv_embed_args *a, tv_err *err);
    tv_status (*rmsnorm)(tv_dev *dev, const tv_rmsnorm_args *a, tv_err *err);
    tv_status (*linear)(tv_dev *dev, const tv_linear_args *a, tv_err *err);
    tv_status (*rope)(tv_dev *dev, const tv_rope_args *a, tv_err *err);
    tv_status (*swiglu)(tv_dev *dev, const tv_swiglu_args *a, tv_err *err);
    tv_status (*moe_route)(tv_dev *dev, const tv_moe_route_args *a, tv_err *err);
    tv_status (*moe)(tv_dev *dev, const tv_moe_args *a, tv_err *err);
    tv_status (*logprobs)(tv_dev *dev, const tv_logprobs_args *a, tv_err *err);
    tv_status (*sample)(tv_dev *dev, const tv_sample_args *a, tv_err *err);
    tv_status (*carry)(tv_dev *dev, const tv_carry_args *a, tv_err *err);
} tv_ops;

extern const tv_ops tv_ops_cpu, tv_ops_cuda;

/* Argument checks shared by the devices (ops_check.c). */
TV_NODISCARD tv_status tv_check_embed(const tv_embed_args *a, tv_err *err);
TV_NODISCARD tv_status tv_check_rmsnorm(const tv_rmsnorm_args *a, tv_err *err);
TV_NODISCARD tv_status tv_check_linear(const tv_linear_args *a, tv_err *err);
TV_NODISCARD tv_status tv_check_rope(const tv_rope_args *a, tv_err *err);
TV_NODISCARD tv_status tv_check_attn(const tv_attn_args *a, tv_err *err);
TV_NODISCARD tv_status tv_check_swiglu(const tv_swiglu_args *a, tv_err *err);
TV_NODISCARD tv_status tv_check_moe_route(const tv_moe_route_args *a, tv_err *err);
TV_NODISCARD tv_status tv_check_moe(const tv_moe_args *a, tv_err *err);
TV_NODISCARD tv_status tv_check_logprobs(const tv_logprobs_args *a, tv_err *err);
TV_NODISCARD tv_status tv_check_sample(const tv_sample_args *a, tv_err *err);
TV_NODISCARD tv_status tv_check_carry(const tv_carry_args *a, tv_err *err);
/* *N receives the rows of all parts. */
TV_NODISCARD tv_status tv_check_matrix_load(int n_parts, const void *const *parts, const int *part_N, int K,
                                            const tv_matrix *out, int *N, tv_err *err);
TV_NODISCARD tv_status tv_check_matrix_load_packed(int n_parts, const tv_packed_rows *parts, const int *part_N, int K,
                                                   const tv_matrix *out, int *N, tv_err *err);

#ifdef __cplusplus
}
#endif
#endif
