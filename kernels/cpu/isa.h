/* The vector kernels of all operations but the matrix products, once per instruction set (isa_scalar.c, isa_avx2.c),
 * with equal bits: each is written once on the lanes of vec.h. Entries work on one row or block and allocate nothing.
 */
#ifndef TV_CPU_ISA_H
#define TV_CPU_ISA_H

#include "kernels/cpu/cpu.h"

enum { CPU_NORM_ROWS = 8 };

/* What a scan of a row of logits finds. */
typedef struct {
    int n;    /* entries kept: at most k, none of them -inf */
    int rank; /* logits above the token's, or equal with a lower id; 0 without a token */
} cpu_scan;

typedef struct {
    const char *name; /* "scalar", "avx2" */

    /* x [D] bf16 = round(x + delta), in place; delta [D] bf16. */
    void (*add)(tv_bf16 *x, const tv_bf16 *delta, int D);
    /* rmsnorm in two: 1/sqrt(mean x^2 + eps) of x [D] bf16, and out [D] bf16 = round(round(x * scale) * weight); weight
     * [D] bf16; out may be x. The first is a chain of latencies, so take it of CPU_NORM_ROWS rows before the second. */
    float (*norm_scale)(const tv_bf16 *x, int D, float eps);
    void (*norm)(const tv_bf16 *x, float scale, const tv_bf16 *weight, tv_bf16 *out, int D);
    /* out [HS] bf16: x [HS] bf16 turned by cos, sin [HS/2] bf16, half-split pairing; out must not overlap x. */
    void (*rope)(const tv_bf16 *x, const tv_bf16 *cos, const tv_bf16 *sin, tv_bf16 *out, int HS);
    /* out [F] bf16 = round(round(silu(gate)) * up); gate, up [F] bf16. */
    void (*swiglu)(const tv_bf16 *gate, const tv_bf16 *up, tv_bf16 *out, int F);

    /* Of logits [V] f32 the k largest, descending, ties by lowest id, into top [k] f32 and ids [k] i32 (only the first
     * n are written); token: whose rank is counted, or -1. With a NaN among the logits all of this is arbitrary. */
    cpu_scan (*scan)(const float *logits, int V, int k, int token, float *top, int32_t *ids);
    /* Sum over the row of exp((logit - max) / temperature), pairwise in the order of docs/numerics.md. A NaN where a
     * logit is NaN or max +inf. */
    float (*sum_exp)(const float *logits, int V, float max, float temperature);

    /* x [n] bf16 to out [n] f32; n a multiple of 8. */
    void (*widen)(const tv_bf16 *x, float *out, int n);
    /* s [rows,ld] f32: dot products of q [rows,HS] f32 with k [keys,HS] bf16; HS a multiple of 8. next: [keys,HS] bf16
     * to fetch into the cache meanwhile, or NULL (here and below). */
    void (*scores)(const float *q, int rows, int HS, const tv_bf16 *k, int keys, float *s, size_t ld,
                   const tv_bf16 *next);
    /* acc [rows,HS] f32 += p[r][j] * v[j] for j = 0 .. n_keys[r]-1, one fmaf chain per element; p [rows,ld] f32, v
     * [keys,HS] bf16 (keys past n_keys[r] are not touched for row r). next: [n_keys[0],HS] bf16. */
    void (*values)(const float *p, size_t ld, const int *n_keys, int rows, int HS, const tv_bf16 *v, float *acc,
                   const tv_bf16 *next);
    /* The same for many rows at once, each a column of s [keys,ld] f32. Of the n keys from `from` on, row r sees those
     * below n_keys[r], which ascends; each row sees one at least. q, s, m, sum and shrink have room for 15 rows more,
     * of which nothing is asked. turn: q [rows,HS] f32 as scores wants it, out [HS,ld] f32; rows up to ld are 0. */
    void (*columns_turn)(const float *q, int rows, int HS, float *out, size_t ld);
    void (*columns_scores)(const float *q, size_t ld, const int *n_keys, int rows, int HS, const tv_bf16 *k, int from,
                           int n, float *s);
    /* acc [rows,HS] f32 = acc * shrink[r], or 0 without shrink [rows] f32, and then as values. */
    void (*columns_values)(const float *p, size_t ld, const int *n_keys, int rows, int HS, const tv_bf16 *v, int from,
                           int n, const float *shrink, float *acc);
    /* As softmax_tile, but that the e^(m - m') go to shrink. */
    void (*columns_softmax_tile)(float *s, size_t ld, const int *n_keys, int rows, int from, int n, float scale,
                                 float *m, float *sum, float *shrink);
    /* Softmax of whole rows: as the two below. */
    void (*columns_softmax_math)(float *s, size_t ld, const int *n_keys, int rows, float scale);
    void (*columns_softmax_eager)(float *s, size_t ld, const int *n_keys, int rows, float scale);
    /* Softmax of one whole row s [n] f32 in place; s has room for n rounded up to 8. math: all in f32. eager: scores
     * rounded to bf16, scaled and rounded; probabilities rounded to bf16 values. */
    void (*softmax_math)(float *s, int n, float scale);
    void (*softmax_eager)(float *s, int n, float scale);
    /* One tile of the online softmax: s [n] f32 (room for n rounded up to 8) becomes exp(scale s - m') rounded to bf16
     * values, with m' = max(*m, tile); *sum = fmaf(*sum, e^(m - m'), sum of the unrounded); *m = m'; acc [HS] f32 *=
     * e^(m - m'). */
    void (*softmax_tile)(float *s, int n, float scale, float *m, float *sum, float *acc, int HS);
    /* Merges the next split of each row into (m [rows], sum [rows], o [rows,HS]), all f32: both scaled to the larger
     * maximum, then added. m, sum and the next ones have room for 7 rows more. */
    void (*merge)(int rows, float *m, float *sum, float *o, const float *next_m, const float *next_sum,
                  const float *next_o, int HS);
    /* out [HS] bf16 = round(o [HS] / sum). */
    void (*finish)(const float *o, float sum, tv_bf16 *out, int HS);
} cpu_ops_isa;

extern const cpu_ops_isa cpu_ops_scalar;
#if defined(__x86_64__)
extern const cpu_ops_isa cpu_ops_avx2;
#endif

/* The kernels for what a device may execute (AVX-512 devices run the AVX2 ones: the bits are the same). */
static inline const cpu_ops_isa *cpu_ops_for(const tv_dev *dev) {
#if defined(__x86_64__)
    if (dev->level >= CPU_AVX2) return &cpu_ops_avx2;
#endif
    (void)dev;
    return &cpu_ops_scalar;
}

#endif
