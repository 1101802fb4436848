/* Vector kernels of the row operations: residual add, rmsnorm, rope, swiglu. Part of isa_table.h. */
#ifndef TV_CPU_ISA_ROWS_H
#define TV_CPU_ISA_ROWS_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec.h"

static void add_row(tv_bf16 *x, const tv_bf16 *delta, int D) {
    for (int i = 0; i < D; i += VEC_LANES)
        v8_store_bf16_n(x + i, v8_add(v8_load_bf16_n(x + i, D - i), v8_load_bf16_n(delta + i, D - i)), D - i);
}

/* Element i joins chain (i / 8) % 4 in lane i % 8; absent elements are +0. */
static void rmsnorm_row(const tv_bf16 *x, const tv_bf16 *weight, tv_bf16 *out, int D, float eps) {
    v8 chain[4] = {v8_zero(), v8_zero(), v8_zero(), v8_zero()};
    int i = 0;
    for (; i + 4 * VEC_LANES <= D; i += 4 * VEC_LANES)
        for (int c = 0; c < 4; c++) {
            v8 a = v8_load_bf16(x + i + c * VEC_LANES);
            chain[c] = v8_fma(a, a, chain[c]);
        }
    for (int c = 0; i < D; i += VEC_LANES, c++) {
        v8 a = v8_load_bf16_n(x + i, D - i);
        chain[c] = v8_fma(a, a, chain[c]);
    }
    float sum = v8_sum(v8_add(v8_add(chain[0], chain[1]), v8_add(chain[2], chain[3])));
    v8 scale = v8_set1(1.0f / sqrtf(sum / (float)D + eps));
    for (i = 0; i < D; i += VEC_LANES) {
        v8 y = v8_round_bf16(v8_mul(v8_load_bf16_n(x + i, D - i), scale));
        v8_store_bf16_n(out + i, v8_mul(y, v8_load_bf16_n(weight + i, D - i)), D - i);
    }
}

static void rope_head(const tv_bf16 *x, const tv_bf16 *cos, const tv_bf16 *sin, tv_bf16 *out, int HS) {
    int half = HS / 2;
    for (int i = 0; i < half; i += VEC_LANES) {
        int n = half - i;
        v8 a = v8_load_bf16_n(x + i, n), b = v8_load_bf16_n(x + half + i, n);
        v8 c = v8_load_bf16_n(cos + i, n), s = v8_load_bf16_n(sin + i, n);
        v8_store_bf16_n(out + i, v8_sub(v8_round_bf16(v8_mul(a, c)), v8_round_bf16(v8_mul(b, s))), n);
        v8_store_bf16_n(out + half + i, v8_add(v8_round_bf16(v8_mul(b, c)), v8_round_bf16(v8_mul(a, s))), n);
    }
}

/* silu(x) = x / (1 + e^-x) for x >= 0 and x e^x / (1 + e^x) below: one exp of -|x|, which cannot overflow. */
static void swiglu_row(const tv_bf16 *gate, const tv_bf16 *up, tv_bf16 *out, int F) {
    for (int i = 0; i < F; i += VEC_LANES) {
        v8 x = v8_load_bf16_n(gate + i, F - i), e = v8_exp(v8_neg_abs(x));
        v8 top = v8_select_negative(x, v8_mul(x, e), x);
        v8 silu = v8_round_bf16(v8_div(top, v8_add(v8_set1(1.0f), e)));
        v8_store_bf16_n(out + i, v8_mul(silu, v8_load_bf16_n(up + i, F - i)), F - i);
    }
}

#endif
