/* Vector kernels of the row operations: residual add, rmsnorm, rope, swiglu. Part of isa_table.h. */
#ifndef TV_CPU_ISA_ROWS_H
#define TV_CPU_ISA_ROWS_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec.h"

/* Calls piece(i, n) for the vectors of n elements that `size` elements make: with a constant where they are whole, so
 * that only the last piece looks at n. */
#define WHOLE_THEN_REST(piece, size)                                                                                   \
    do {                                                                                                               \
        int full = (size) / VEC_LANES * VEC_LANES;                                                                     \
        for (int i = 0; i < full; i += VEC_LANES) piece(i, VEC_LANES);                                                 \
        if (full < (size)) piece(full, (size)-full);                                                                   \
    } while (0)

static void add_row(tv_bf16 *x, const tv_bf16 *delta, int D) {
#define ADD(i, n) v8_store_bf16_n(x + (i), v8_add(v8_load_bf16_n(x + (i), n), v8_load_bf16_n(delta + (i), n)), n)
    WHOLE_THEN_REST(ADD, D);
#undef ADD
}

/* Element i joins chain (i / 8) % 4 in lane i % 8; absent elements are +0. */
static float norm_scale(const tv_bf16 *x, int D, float eps) {
    v8 chain[4] = {v8_zero(), v8_zero(), v8_zero(), v8_zero()};
    int whole = D / (4 * VEC_LANES) * (4 * VEC_LANES);
    for (int i = 0; i < whole; i += 4 * VEC_LANES) VEC_UNROLL
    for (int c = 0; c < 4; c++) {
        v8 a = v8_load_bf16(x + i + c * VEC_LANES);
        chain[c] = v8_fma(a, a, chain[c]);
    }
    VEC_UNROLL
    for (int c = 0; c < 4; c++) {
        int i = whole + c * VEC_LANES;
        if (i >= D) break;
        v8 a = v8_load_bf16_n(x + i, D - i);
        chain[c] = v8_fma(a, a, chain[c]);
    }
    float sum = v8_sum(v8_add(v8_add(chain[0], chain[1]), v8_add(chain[2], chain[3])));
    return 1.0f / sqrtf(sum / (float)D + eps);
}

static void norm_row(const tv_bf16 *x, float scale, const tv_bf16 *weight, tv_bf16 *out, int D) {
    const v8 by = v8_set1(scale);
#define SCALE(i, n)                                                                                                    \
    v8_store_bf16_n(out + (i),                                                                                         \
                    v8_mul(v8_round_bf16(v8_mul(v8_load_bf16_n(x + (i), n), by)), v8_load_bf16_n(weight + (i), n)), n)
    WHOLE_THEN_REST(SCALE, D);
#undef SCALE
}

VEC_FN void rope_piece(const tv_bf16 *x, const tv_bf16 *cos, const tv_bf16 *sin, tv_bf16 *out, int half, int n) {
    v8 a = v8_load_bf16_n(x, n), b = v8_load_bf16_n(x + half, n);
    v8 c = v8_load_bf16_n(cos, n), s = v8_load_bf16_n(sin, n);
    v8_store_bf16_n(out, v8_sub(v8_round_bf16(v8_mul(a, c)), v8_round_bf16(v8_mul(b, s))), n);
    v8_store_bf16_n(out + half, v8_add(v8_round_bf16(v8_mul(b, c)), v8_round_bf16(v8_mul(a, s))), n);
}

static void rope_head(const tv_bf16 *x, const tv_bf16 *cos, const tv_bf16 *sin, tv_bf16 *out, int HS) {
    int half = HS / 2;
#define ROPE(i, n) rope_piece(x + (i), cos + (i), sin + (i), out + (i), half, n)
    WHOLE_THEN_REST(ROPE, half);
#undef ROPE
}

/* silu(x) = x / (1 + e^-x) for x >= 0 and x e^x / (1 + e^x) below: one exp of -|x|, which cannot overflow. e [n] f32.
 */
VEC_FN void swiglu_piece(const tv_bf16 *gate, const float *e, const tv_bf16 *up, tv_bf16 *out, int n) {
    v8 x = v8_load_bf16_n(gate, n), exp = v8_load(e);
    v8 top = v8_select_negative(x, v8_mul(x, exp), x);
    v8 silu = v8_round_bf16(v8_div(top, v8_add(v8_set1(1.0f), exp)));
    v8_store_bf16_n(out, v8_mul(silu, v8_load_bf16_n(up, n)), n);
}

/* A block's exponentials first: from load to store the latencies of one vector are more than a processor looks ahead.
 */
static void swiglu_row(const tv_bf16 *gate, const tv_bf16 *up, tv_bf16 *out, int F) {
    enum { BLOCK = 16 * VEC_LANES };
    float e[BLOCK];
    for (int from = 0; from < F; from += BLOCK, gate += BLOCK, up += BLOCK, out += BLOCK) {
        const int size = F - from < BLOCK ? F - from : BLOCK;
#define EXP(i, n) v8_store(e + (i), v8_exp(v8_neg_abs(v8_load_bf16_n(gate + (i), n))))
        WHOLE_THEN_REST(EXP, size);
#undef EXP
#define SWIGLU(i, n) swiglu_piece(gate + (i), e + (i), up + (i), out + (i), n)
        WHOLE_THEN_REST(SWIGLU, size);
#undef SWIGLU
    }
}

#endif
