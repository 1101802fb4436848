/* Vector kernels of attention for units of many query rows: each lane is a row, so that no sum runs across lanes, and
 * keys and values are widened once for all rows. Scores stand key by key, [keys,ld]: a query row is a column. What is
 * computed for one row, and in which order, is what isa_attention.h computes. Part of isa_table.h. */
#ifndef TV_CPU_ISA_COLUMNS_H
#define TV_CPU_ISA_COLUMNS_H

#include "kernels/cpu/attention.h"
#include "kernels/cpu/isa_attention.h"

/* A block of scores is 4 keys by 16 rows, one of values 4 rows by 16 elements of the head: 8 chains, just what two
 * multiply-add units need. 10 or 12 lose more where they begin and end than they win between. */
enum { COLUMNS_BLOCK = 4, COLUMNS_WIDE = 2 * VEC_LANES };
_Static_assert((int)COLUMNS_WIDE == (int)CPU_ATTN_GROUP, "rows of a block of scores");

/* BLOCK(4), or of the n < 4 that are left. */
#define COLUMNS_OF(n, BLOCK)                                                                                           \
    do {                                                                                                               \
        if ((n) >= 4)                                                                                                  \
            BLOCK(4);                                                                                                  \
        else if ((n) == 3)                                                                                             \
            BLOCK(3);                                                                                                  \
        else if ((n) == 2)                                                                                             \
            BLOCK(2);                                                                                                  \
        else                                                                                                           \
            BLOCK(1);                                                                                                  \
    } while (0)

/* Keys of the n from `from` on that a row with n_keys sees; 0 or less where it sees none. */
VEC_FN int keys_seen(int n_keys, int from, int n) { return n_keys - from < n ? n_keys - from : n; }

/* Chain i of a score takes elements i, i + 8, ... of the head: they are laid one after another. */
static void columns_turn(const float *q, int rows, int HS, float *out, size_t ld) {
    const size_t chain = (size_t)(HS / VEC_LANES) * ld;
    for (size_t r = 0; r < ld; r += VEC_LANES)
        for (int d = 0; d < HS; d += VEC_LANES) {
            v8 x[VEC_LANES];
            VEC_UNROLL
            for (int i = 0; i < VEC_LANES; i++) x[i] = (int)r + i < rows ? v8_load(q + (r + i) * HS + d) : v8_zero();
            v8_transpose(x);
            VEC_UNROLL
            for (int i = 0; i < VEC_LANES; i++) v8_store(out + i * chain + d / VEC_LANES * ld + r, x[i]);
        }
}

/* v8_sum of the lanes of each column. */
VEC_FN v8 columns_sum(const v8 l[VEC_LANES]) {
    return v8_add(v8_add(v8_add(l[0], l[4]), v8_add(l[2], l[6])), v8_add(v8_add(l[1], l[5]), v8_add(l[3], l[7])));
}

/* k [K,HS] f32. The chains of a score run one after another. */
VEC_FN void columns_scores_block(const float *q, size_t ld, int HS, const float *k, int K, float *s) {
    v8 lanes[COLUMNS_BLOCK][2][VEC_LANES];
    for (int l = 0; l < VEC_LANES; l++) {
        v8 acc[COLUMNS_BLOCK][2];
        VEC_UNROLL
        for (int j = 0; j < K; j++) acc[j][0] = acc[j][1] = v8_zero();
        const float *x = k + l, *const end = x + HS;
        do {
            const v8 q0 = v8_load(q), q1 = v8_load(q + VEC_LANES);
            VEC_UNROLL
            for (int j = 0; j < K; j++) {
                const v8 key = v8_set1(x[(size_t)j * HS]);
                acc[j][0] = v8_fma(q0, key, acc[j][0]);
                acc[j][1] = v8_fma(q1, key, acc[j][1]);
            }
            q += ld, x += VEC_LANES;
        } while (x < end);
        VEC_UNROLL
        for (int j = 0; j < K; j++) lanes[j][0][l] = acc[j][0], lanes[j][1][l] = acc[j][1];
    }
    VEC_UNROLL
    for (int j = 0; j < K; j++) {
        v8_store(s + (size_t)j * ld, columns_sum(lanes[j][0]));
        v8_store(s + (size_t)j * ld + VEC_LANES, columns_sum(lanes[j][1]));
    }
}

static void columns_scores(const float *q, size_t ld, const int *n_keys, int rows, int HS, const tv_bf16 *k, int from,
                           int n, float *s) {
    _Alignas(64) float wide[COLUMNS_BLOCK * CPU_ATTN_MAX_HEAD];
    for (int j = 0; j < n; j += COLUMNS_BLOCK) {
        const int keys = n - j < COLUMNS_BLOCK ? n - j : COLUMNS_BLOCK;
        widen_row(k + (size_t)j * HS, wide, keys * HS);
        for (int r = 0; r < rows; r += COLUMNS_WIDE) {
            const int last = r + COLUMNS_WIDE < rows ? r + COLUMNS_WIDE - 1 : rows - 1;
            if (n_keys[last] - from <= j) continue;
#define BLOCK(K) columns_scores_block(q + r, ld, HS, wide, K, s + (size_t)j * ld + r)
            COLUMNS_OF(keys, BLOCK);
#undef BLOCK
        }
    }
}

/* R rows and N vectors of the head; v [n,16] f32. acc = acc * shrink, acc without shrink, or 0 where fresh. Keys that
 * only some of the rows see come last. */
VEC_FN void columns_values_block(const float *p, size_t ld, const int *n_keys, int R, int HS, const float *v, int N,
                                 int from, int n, int fresh, const float *shrink, float *acc) {
    v8 a[COLUMNS_BLOCK][2];
    VEC_UNROLL
    for (int r = 0; r < R; r++) VEC_UNROLL
    for (int i = 0; i < N; i++) {
        a[r][i] = fresh ? v8_zero() : v8_load(acc + (size_t)r * HS + i * VEC_LANES);
        if (shrink) a[r][i] = v8_mul(a[r][i], v8_set1(shrink[r]));
    }
    const int common = keys_seen(n_keys[0], from, n), all = keys_seen(n_keys[R - 1], from, n);
    int j = 0;
    for (; j < common; j++, p += ld, v += COLUMNS_WIDE) {
        v8 value[2];
        VEC_UNROLL
        for (int i = 0; i < N; i++) value[i] = v8_load(v + i * VEC_LANES);
        VEC_UNROLL
        for (int r = 0; r < R; r++) {
            const v8 weight = v8_set1(p[r]);
            VEC_UNROLL
            for (int i = 0; i < N; i++) a[r][i] = v8_fma(weight, value[i], a[r][i]);
        }
    }
    for (; j < all; j++, p += ld, v += COLUMNS_WIDE) {
        VEC_UNROLL
        for (int r = 0; r < R; r++) {
            if (n_keys[r] - from <= j) continue;
            VEC_UNROLL
            for (int i = 0; i < N; i++) a[r][i] = v8_fma(v8_set1(p[r]), v8_load(v + i * VEC_LANES), a[r][i]);
        }
    }
    VEC_UNROLL
    for (int r = 0; r < R; r++) VEC_UNROLL
    for (int i = 0; i < N; i++) v8_store(acc + (size_t)r * HS + i * VEC_LANES, a[r][i]);
}

/* N vectors of the head of all rows, over as many keys at a time as stay in the L1 cache when widened. */
VEC_FN void columns_values_stripe(const float *p, size_t ld, const int *n_keys, int rows, int HS, const tv_bf16 *v,
                                  int N, int from, int n, const float *shrink, float *acc) {
    _Alignas(64) float wide[CPU_ATTN_KEYS * COLUMNS_WIDE];
    int fresh = !shrink;
    for (const int end = from + n; from < end; from += n, fresh = 0, shrink = NULL) {
        n = end - from < CPU_ATTN_KEYS ? end - from : CPU_ATTN_KEYS;
        for (int j = 0; j < n; j++, v += HS) widen_row(v, wide + j * COLUMNS_WIDE, N * VEC_LANES);
        for (int r = 0; r < rows; r += COLUMNS_BLOCK) {
#define BLOCK(R)                                                                                                       \
    columns_values_block(p + r, ld, n_keys + r, R, HS, wide, N, from, n, fresh, shrink ? shrink + r : NULL,            \
                         acc + (size_t)r * HS)
            COLUMNS_OF(rows - r, BLOCK);
#undef BLOCK
        }
        p += (size_t)n * ld;
    }
}

static void columns_values(const float *p, size_t ld, const int *n_keys, int rows, int HS, const tv_bf16 *v, int from,
                           int n, const float *shrink, float *acc) {
    int d = 0;
    for (; d + COLUMNS_WIDE <= HS; d += COLUMNS_WIDE)
        columns_values_stripe(p, ld, n_keys, rows, HS, v + d, 2, from, n, shrink, acc + d);
    if (d < HS) columns_values_stripe(p, ld, n_keys, rows, HS, v + d, 1, from, n, shrink, acc + d);
}

/* Of up to 8 rows: what a row does not see of n keys scores -inf from here on, and weighs nothing in maximum and sum.
 * Returns the keys that the last row sees. */
VEC_FN int columns_hide(float *s, size_t ld, const int *n_keys, int rows, int from, int n) {
    const int all = keys_seen(n_keys[rows - 1], from, n);
    for (int r = 0; r < rows; r++)
        for (int j = keys_seen(n_keys[r], from, n); j < all; j++) s[(size_t)j * ld + r] = -INFINITY;
    return all;
}

static void columns_softmax_tile(float *s, size_t ld, const int *n_keys, int rows, int from, int n, float scale,
                                 float *m, float *sum, float *shrink) {
    const v8 c = v8_set1(scale);
    for (int r = 0; r < rows; r += VEC_LANES, s += VEC_LANES) {
        const int keys = columns_hide(s, ld, n_keys + r, rows - r < VEC_LANES ? rows - r : VEC_LANES, from, n);
        v8 max = v8_set1(-INFINITY), lanes[VEC_LANES];
        for (int j = 0; j < keys; j++) max = v8_max(max, v8_load(s + (size_t)j * ld));
        const v8 old = v8_load(m + r), subtract = v8_max(old, v8_mul(max, c)); /* scaling keeps the largest largest */
        for (int i = 0; i < VEC_LANES; i++) {
            v8 lane = v8_zero();
            for (int j = i; j < keys; j += VEC_LANES) {
                const v8 e = v8_exp(v8_sub(v8_mul(v8_load(s + (size_t)j * ld), c), subtract));
                lane = v8_add(lane, e);
                v8_store(s + (size_t)j * ld, e);
            }
            lanes[i] = lane;
        }
        /* In a loop of its own: behind the long chain of an exponential it would wait where others could start. */
        for (int j = 0; j < keys; j++) v8_store(s + (size_t)j * ld, v8_round_bf16(v8_load(s + (size_t)j * ld)));
        const v8 factor = v8_exp(v8_sub(old, subtract));
        v8_store(sum + r, v8_fma(v8_load(sum + r), factor, columns_sum(lanes)));
        v8_store(m + r, subtract);
        v8_store(shrink + r, factor);
    }
}

/* What softmax_math and softmax_eager do to a row. */
VEC_FN void columns_softmax(float *s, size_t ld, const int *n_keys, int rows, float scale, int eager) {
    const v8 c = v8_set1(scale);
    for (int r = 0; r < rows; r += VEC_LANES, s += VEC_LANES) {
        const int last = r + VEC_LANES < rows ? r + VEC_LANES - 1 : rows - 1;
        const int keys = columns_hide(s, ld, n_keys + r, last - r + 1, 0, n_keys[last]);
        v8 max = v8_set1(-INFINITY), lanes[VEC_LANES];
        for (int j = 0; j < keys; j++) {
            const v8 x = v8_load(s + (size_t)j * ld);
            const v8 scaled = eager ? v8_round_bf16(v8_mul(v8_round_bf16(x), c)) : v8_mul(x, c);
            v8_store(s + (size_t)j * ld, scaled);
            max = v8_max(max, scaled);
        }
        for (int i = 0; i < VEC_LANES; i++) {
            v8 lane = v8_zero();
            for (int j = i; j < keys; j += VEC_LANES) {
                const v8 e = v8_exp(v8_sub(v8_load(s + (size_t)j * ld), max));
                lane = v8_add(lane, e);
                v8_store(s + (size_t)j * ld, e);
            }
            lanes[i] = lane;
        }
        const v8 total = columns_sum(lanes);
        for (int j = 0; j < keys; j++) {
            const v8 p = v8_div(v8_load(s + (size_t)j * ld), total);
            v8_store(s + (size_t)j * ld, eager ? v8_round_bf16(p) : p);
        }
    }
}

static void columns_softmax_math(float *s, size_t ld, const int *n_keys, int rows, float scale) {
    columns_softmax(s, ld, n_keys, rows, scale, 0);
}

static void columns_softmax_eager(float *s, size_t ld, const int *n_keys, int rows, float scale) {
    columns_softmax(s, ld, n_keys, rows, scale, 1);
}

#endif
