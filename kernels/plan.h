/* Every summation order of the engine is decided here (plan.c) and nowhere else; kernels take the answer as an argument. */
#ifndef TV_PLAN_H
#define TV_PLAN_H

#include <stddef.h>

typedef enum {
    TV_REDUCE_SERVING, /* from the running batch, as production kernels do: a row's bits depend on its neighbours */
    TV_REDUCE_FIXED    /* from sizes alone: a row's bits depend on nothing else */
} tv_reduction;

typedef struct {
    tv_reduction reduction;
    int units; /* multiprocessors the plan pretends to fill (132 = H200); >= 1 */
} tv_plan;

/* A matrix product y[M,N] = x[M,K] W^T sums K in `slices` runs of `slice` elements (the last may be shorter): each run is one
 * fmaf chain in ascending k, and the partial sums are added in ascending order in f32. slices = 1: one chain over K. */
typedef struct { int slices, slice; } tv_linear_plan;
tv_linear_plan tv_plan_linear(const tv_plan *plan, int M, int N, int K);

/* Attention of one step. flash: keys in tiles of key_tile from the start of each split; splits of split_keys keys (a multiple
 * of key_tile), merged in ascending order. math, eager: softmax and output run over the whole row in the lane order that
 * docs/numerics.md gives; the plan does not touch them. */
typedef struct { int key_tile, split_keys; } tv_attn_plan;
/* n_seqs: sequences in the step; G: kv heads; max_len: longest key range in the step. */
tv_attn_plan tv_plan_attention(const tv_plan *plan, int n_seqs, int G, int max_len);

/* Describes the plan for given model sizes as text (info --plan) into buf. */
void tv_plan_describe(const tv_plan *plan, int D, int H, int G, int HS, int F, int V, char *buf, size_t size);

#endif
