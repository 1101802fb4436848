#include "models/quantize.h"

#include <math.h>

const char *tv_weight_dtype_name(tv_weight_dtype dtype) {
    static const char *const names[] = {
        [TV_WEIGHTS_BF16] = "bf16", [TV_WEIGHTS_INT8] = "int8", [TV_WEIGHTS_INT4] = "int4"};
    return names[dtype];
}

static void quantize_group(const unsigned char *in, int n, float half_range, float low, float high, tv_bf16 *out) {
    float largest = 0;
    for (int i = 0; i < n; i++) {
        memcpy(&out[i], in + (size_t)i * sizeof *out, sizeof *out);
        largest = fmaxf(largest, fabsf(tv_f32_from_bf16(out[i])));
    }
    float scale = tv_round_bf16(largest / half_range);
    for (int i = 0; i < n; i++) {
        float q = scale > 0 ? fminf(fmaxf(rintf(tv_f32_from_bf16(out[i]) / scale), low), high) : 0;
        out[i] = tv_bf16_from_f32(q * scale);
    }
}

void tv_weights_quantize(tv_weight_dtype dtype, const void *rows, int N, int K, tv_bf16 *out) {
    const unsigned char *in = rows;
    if (dtype == TV_WEIGHTS_BF16) {
        memcpy(out, in, (size_t)N * (size_t)K * sizeof *out);
        return;
    }
    int int8 = dtype == TV_WEIGHTS_INT8, group = int8 ? K : TV_INT4_GROUP;
    for (int j = 0; j < N; j++)
        for (int k = 0; k < K; k += group) {
            size_t at = (size_t)j * (size_t)K + (size_t)k;
            int n = K - k < group ? K - k : group;
            quantize_group(in + at * sizeof *out, n, int8 ? 127 : 7.5f, int8 ? -127 : -8, int8 ? 127 : 7, out + at);
        }
}
