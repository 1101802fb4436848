/* Rows of a KV cache of one byte an element. Written once, when a position is appended; read back as bf16, so that
 * every attention backend computes on the same numbers. */
#include <float.h>
#include <math.h>

#include "kernels/cpu/attention.h"

static const float LARGEST_FP8 = 448, LARGEST_INT8 = 127;

static size_t row_of(const tv_kv_layer *kv, int slot, int g, int pos) {
    return ((size_t)slot * kv->G + g) * kv->S + pos;
}

static uint8_t int8_from_f32(float f) {
    float a = fminf(fmaxf(f, -LARGEST_INT8), LARGEST_INT8); /* a tiny scale is inexact */
    return (uint8_t)(int8_t)lrintf(a);
}

void cpu_kv_quantize(const tv_kv_layer *kv, void *cache, float *scales, int slot, int g, int pos, const tv_bf16 *x) {
    const size_t row = row_of(kv, slot, g, pos);
    const int fp8 = kv->dtype == TV_F8_E4M3;
    uint8_t *out = (uint8_t *)cache + row * kv->HS;
    float largest = 0, scale;
    int finite = 1;
    for (int d = 0; d < kv->HS; d++) {
        float a = fabsf(tv_f32_from_bf16(x[d]));
        finite &= a <= FLT_MAX;
        if (a > largest) largest = a;
    }
    scale = scales[row] = finite ? largest / (fp8 ? LARGEST_FP8 : LARGEST_INT8) : NAN;
    for (int d = 0; d < kv->HS; d++) {
        float f = scale > 0 ? tv_f32_from_bf16(x[d]) / scale : 0;
        out[d] = fp8 ? tv_f8_e4m3_from_f32(f) : int8_from_f32(f);
    }
}

void cpu_kv_dequantize(const tv_kv_layer *kv, const void *cache, const float *scales, int slot, int g, int n,
                       tv_bf16 *out) {
    const size_t first = row_of(kv, slot, g, 0);
    const uint8_t *in = (const uint8_t *)cache + first * kv->HS;
    for (int j = 0; j < n; j++, in += kv->HS, out += kv->HS) {
        const float scale = scales[first + j];
        if (kv->dtype == TV_F8_E4M3)
            for (int d = 0; d < kv->HS; d++) out[d] = tv_bf16_from_f32(tv_f32_from_f8_e4m3(in[d]) * scale);
        else
            for (int d = 0; d < kv->HS; d++) out[d] = tv_bf16_from_f32((float)(int8_t)in[d] * scale);
    }
}
