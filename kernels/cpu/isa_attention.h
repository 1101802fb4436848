/* Vector kernels of attention: scores, softmax and weighted values of a few query rows against a run of keys. Part of
 * isa_table.h. Blocking is over rows, keys and head elements and never changes what is computed for one row. */
#ifndef TV_CPU_ISA_ATTENTION_H
#define TV_CPU_ISA_ATTENTION_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec.h"

static void widen_row(const tv_bf16 *x, float *out, int n) {
    for (int i = 0; i < n; i += VEC_LANES) v8_store(out + i, v8_load_bf16(x + i));
}

/* R rows against K keys, R * K <= 8: each score is 8 fmaf chains over the head (lane i takes elements i, i + 8, ...),
 * then v8_sum. Eight accumulators keep both multiply-add units busy. */
VEC_FN void scores_block(const float *q, int R, int HS, const tv_bf16 *k, int K, float *s, size_t ld) {
    v8 acc[8];
    VEC_UNROLL
    for (int i = 0; i < 8; i++) acc[i] = v8_zero();
    for (int d = 0; d < HS; d += VEC_LANES) {
        v8 key[8];
        VEC_UNROLL
        for (int j = 0; j < K; j++) key[j] = v8_load_bf16(k + (size_t)j * HS + d);
        VEC_UNROLL
        for (int r = 0; r < R; r++) {
            v8 x = v8_load(q + (size_t)r * HS + d);
            VEC_PIN(x);
            VEC_UNROLL
            for (int j = 0; j < K; j++) acc[r * K + j] = v8_fma(x, key[j], acc[r * K + j]);
        }
    }
    float sums[VEC_LANES];
    v8_store(sums, v8_sum_each(acc));
    for (int r = 0; r < R; r++) memcpy(s + r * ld, sums + r * K, (size_t)K * sizeof *s);
}

/* Asks for the cache lines of n elements. Keys and values of a decode step come from memory, and one stream alone,
 * asked for in time, is read at the memory's speed. */
VEC_FN void fetch(const tv_bf16 *p, int n) {
    for (int i = 0; i < n; i += 32) __builtin_prefetch(p + i);
}

#define SCORES_ROWS(R, K)                                                                                              \
    do {                                                                                                               \
        int j = 0;                                                                                                     \
        for (; j + (K) <= keys; j += (K)) {                                                                            \
            if (next) fetch(next + (size_t)j * HS, (K)*HS);                                                            \
            scores_block(q, R, HS, k + (size_t)j * HS, K, s + j, ld);                                                  \
        }                                                                                                              \
        for (; j < keys; j++) {                                                                                        \
            if (next) fetch(next + (size_t)j * HS, HS);                                                                \
            scores_block(q, R, HS, k + (size_t)j * HS, 1, s + j, ld);                                                  \
        }                                                                                                              \
        next = NULL;                                                                                                   \
    } while (0)

static void attn_scores(const float *q, int rows, int HS, const tv_bf16 *k, int keys, float *s, size_t ld,
                        const tv_bf16 *next) {
    for (; rows >= 4; rows -= 4, q += (size_t)4 * HS, s += 4 * ld) SCORES_ROWS(4, 2);
    if (rows == 3) SCORES_ROWS(3, 2);
    if (rows == 2) SCORES_ROWS(2, 4);
    if (rows == 1) SCORES_ROWS(1, 8);
}

/* Keys from .. to-1 for R rows and N vectors of the head. */
VEC_FN void values_block(const float *p, size_t ld, int R, int from, int to, int HS, const tv_bf16 *v, int N,
                         float *acc, const tv_bf16 *next, int next_n) {
    v8 a[4][8];
    VEC_UNROLL
    for (int r = 0; r < R; r++) VEC_UNROLL
    for (int n = 0; n < N; n++) a[r][n] = v8_load(acc + (size_t)r * HS + n * VEC_LANES);
    for (int j = from; j < to; j++) {
        if (next) fetch(next + (size_t)j * next_n, next_n);
        v8 value[8];
        VEC_UNROLL
        for (int n = 0; n < N; n++) value[n] = v8_load_bf16(v + (size_t)j * HS + n * VEC_LANES);
        VEC_UNROLL
        for (int r = 0; r < R; r++) {
            v8 weight = v8_set1(p[r * ld + j]);
            VEC_UNROLL
            for (int n = 0; n < N; n++) a[r][n] = v8_fma(weight, value[n], a[r][n]);
        }
    }
    VEC_UNROLL
    for (int r = 0; r < R; r++) VEC_UNROLL
    for (int n = 0; n < N; n++) v8_store(acc + (size_t)r * HS + n * VEC_LANES, a[r][n]);
}

/* The stripes of the head share the fetching: the one from d on takes elements to * d .. of next. */
#define NEXT (next ? next + (size_t)to * d : NULL)
#define VALUES_ROWS(R, N)                                                                                              \
    do {                                                                                                               \
        int d = 0;                                                                                                     \
        for (; d + (N)*VEC_LANES <= HS; d += (N)*VEC_LANES)                                                            \
            values_block(p, ld, R, from, to, HS, v + d, N, acc + d, NEXT, (N)*VEC_LANES);                              \
        for (; d < HS; d += VEC_LANES) values_block(p, ld, R, from, to, HS, v + d, 1, acc + d, NEXT, VEC_LANES);       \
    } while (0)

static void values_range(const float *p, size_t ld, int rows, int from, int to, int HS, const tv_bf16 *v, float *acc,
                         const tv_bf16 *next) {
    if (from >= to) return;
    if (rows == 4) VALUES_ROWS(4, 2);
    if (rows == 3) VALUES_ROWS(3, 2);
    if (rows == 2) VALUES_ROWS(2, 4);
    if (rows == 1) VALUES_ROWS(1, 8);
}

/* Rows of a block share the keys that all of them see; the rest is added row by row, so that no row multiplies a zero
 * weight with a key it must not see (which may hold anything). */
static void attn_values(const float *p, size_t ld, const int *n_keys, int rows, int HS, const tv_bf16 *v, float *acc,
                        const tv_bf16 *next) {
    for (int r = 0; r < rows; r += 4, next = NULL) {
        int block = rows - r < 4 ? rows - r : 4, common = n_keys[r];
        for (int i = 1; i < block; i++)
            if (n_keys[r + i] < common) common = n_keys[r + i];
        values_range(p + r * ld, ld, block, 0, common, HS, v, acc + (size_t)r * HS, next);
        for (int i = r; i < r + block; i++)
            values_range(p + i * ld, ld, 1, common, n_keys[i], HS, v, acc + (size_t)i * HS, NULL);
    }
}

/* Fills s up to whole vectors with -inf, whose exponential is 0. */
VEC_FN void pad_scores(float *s, int n) {
    for (; n % VEC_LANES; n++) s[n] = -INFINITY;
}

static void softmax_math(float *s, int n, float scale) {
    const v8 c = v8_set1(scale);
    v8 max = v8_set1(-INFINITY), sum = v8_zero();
    pad_scores(s, n);
    for (int i = 0; i < n; i += VEC_LANES) {
        v8 x = v8_mul(v8_load(s + i), c);
        v8_store(s + i, x);
        max = v8_max(max, x);
    }
    const v8 m = v8_set1(v8_max_lane(max));
    for (int i = 0; i < n; i += VEC_LANES) {
        v8 e = v8_exp(v8_sub(v8_load(s + i), m));
        v8_store(s + i, e);
        sum = v8_add(sum, e);
    }
    const v8 total = v8_set1(v8_sum(sum));
    for (int i = 0; i < n; i += VEC_LANES) v8_store(s + i, v8_div(v8_load(s + i), total));
}

static void softmax_eager(float *s, int n, float scale) {
    const v8 c = v8_set1(scale);
    v8 max = v8_set1(-INFINITY), sum = v8_zero();
    pad_scores(s, n);
    for (int i = 0; i < n; i += VEC_LANES) {
        v8 x = v8_round_bf16(v8_mul(v8_round_bf16(v8_load(s + i)), c));
        v8_store(s + i, x);
        max = v8_max(max, x);
    }
    const v8 m = v8_set1(v8_max_lane(max));
    for (int i = 0; i < n; i += VEC_LANES) {
        v8 e = v8_exp(v8_sub(v8_load(s + i), m));
        v8_store(s + i, e);
        sum = v8_add(sum, e);
    }
    const v8 total = v8_set1(v8_sum(sum));
    for (int i = 0; i < n; i += VEC_LANES) v8_store(s + i, v8_round_bf16(v8_div(v8_load(s + i), total)));
}

static void softmax_tile(float *s, int n, float scale, float *m, float *sum, float *acc, int HS) {
    const v8 c = v8_set1(scale);
    v8 max = v8_set1(-INFINITY), tile_sum = v8_zero();
    pad_scores(s, n);
    for (int i = 0; i < n; i += VEC_LANES) {
        v8 x = v8_mul(v8_load(s + i), c);
        v8_store(s + i, x);
        max = v8_max(max, x);
    }
    float tile_max = v8_max_lane(max), new_m = *m > tile_max ? *m : tile_max;
    const v8 subtract = v8_set1(new_m);
    for (int i = 0; i < n; i += VEC_LANES) {
        v8 e = v8_exp(v8_sub(v8_load(s + i), subtract));
        tile_sum = v8_add(tile_sum, e);
        v8_store(s + i, v8_round_bf16(e));
    }
    float shrink = vec_exp(*m - new_m); /* exactly 1 when the maximum stays, 0 at the first tile */
    *sum = fmaf(*sum, shrink, v8_sum(tile_sum));
    *m = new_m;
    if (shrink == 1) return;
    for (int d = 0; d < HS; d += VEC_LANES) v8_store(acc + d, v8_mul(v8_load(acc + d), v8_set1(shrink)));
}

static void merge_splits(int rows, float *m, float *sum, float *o, const float *next_m, const float *next_sum,
                         const float *next_o, int HS) {
    for (int r = 0; r < rows; r += VEC_LANES) {
        float a[VEC_LANES], b[VEC_LANES];
        const v8 old = v8_load(m + r), next = v8_load(next_m + r), max = v8_max(old, next);
        const v8 keep = v8_exp(v8_sub(old, max)), add = v8_exp(v8_sub(next, max));
        v8_store(m + r, max);
        v8_store(sum + r, v8_fma(v8_load(next_sum + r), add, v8_mul(v8_load(sum + r), keep)));
        v8_store(a, keep);
        v8_store(b, add);
        for (int i = 0; i < VEC_LANES && r + i < rows; i++, o += HS, next_o += HS)
            for (int d = 0; d < HS; d += VEC_LANES)
                v8_store(o + d, v8_fma(v8_load(next_o + d), v8_set1(b[i]), v8_mul(v8_load(o + d), v8_set1(a[i]))));
    }
}

static void finish_row(const float *o, float sum, tv_bf16 *out, int HS) {
    for (int d = 0; d < HS; d += VEC_LANES) v8_store_bf16(out + d, v8_div(v8_load(o + d), v8_set1(sum)));
}

#endif
