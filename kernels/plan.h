/* Every summation order of the engine is decided here and in plan.c and nowhere else; kernels take the answer as an
 * argument. `serving` follows what production kernels do on a large card: they cut the work into output tiles and, where
 * those are fewer than the multiprocessors, cut the summed dimension too, by just as much as the running batch leaves
 * units idle. `fixed` looks at sizes that do not change with the batch. */
#ifndef TV_PLAN_H
#define TV_PLAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TV_HOST_DEVICE __host__ __device__
#else
#define TV_HOST_DEVICE
#endif

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
enum {
    /* One output tile of a product: tokens x outputs. 128 outputs is the usual width of a tensor-core tile. 4 tokens is
     * fewer than a tensor-core kernel's (at least 8): with it a model of a million parameters, whose products have 1 to
     * 32 tiles across, meets the changes of split between a batch of 1 and of 8 that a large model meets between 1 and
     * 512. */
    TV_PLAN_TILE_M = 4,
    TV_PLAN_TILE_N = 128,
    TV_PLAN_MIN_SLICE = 32 /* shortest slice of K, and what slices are multiples of */
};
/* Inline because a card plans the products of a step's experts, whose rows only it has counted. M <= 2^28. */
static inline TV_HOST_DEVICE tv_linear_plan tv_plan_linear(const tv_plan *plan, int M, int N, int K) {
    tv_linear_plan whole = {1, K}, cut;
    int64_t tiles = (int64_t)((M + TV_PLAN_TILE_M - 1) / TV_PLAN_TILE_M) * ((N + TV_PLAN_TILE_N - 1) / TV_PLAN_TILE_N);
    if (plan->reduction == TV_REDUCE_FIXED || tiles > plan->units) return whole;
    int slices = plan->units / (int)tiles, most = K / TV_PLAN_MIN_SLICE;
    if (slices > most) slices = most;
    if (slices <= 1) return whole;
    int length = (K + slices - 1) / slices;
    cut.slice = (length + TV_PLAN_MIN_SLICE - 1) / TV_PLAN_MIN_SLICE * TV_PLAN_MIN_SLICE;
    cut.slices = (K + cut.slice - 1) / cut.slice; /* rounding up may leave fewer */
    return cut.slices == 1 ? whole : cut;
}

/* Attention of one step. flash: keys in tiles of key_tile from the start of each split; splits of split_keys keys (a multiple
 * of key_tile), merged in ascending order. math, eager: softmax and output run over the whole row in the lane order that
 * docs/numerics.md gives; the plan does not touch them. */
typedef struct { int key_tile, split_keys; } tv_attn_plan;
/* n_seqs: sequences in the step; G: kv heads; max_len: longest key range in the step. */
tv_attn_plan tv_plan_attention(const tv_plan *plan, int n_seqs, int G, int max_len);

/* Describes the plan for given model sizes as text (info --plan) into buf. */
void tv_plan_describe(const tv_plan *plan, int D, int H, int G, int HS, int F, int V, char *buf, size_t size);

#endif
