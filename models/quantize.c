#include "models/quantize.h"

#include <math.h>
#include <stdlib.h>

const char *tv_weight_dtype_name(tv_weight_dtype dtype) {
    static const char *const names[] = {
        [TV_WEIGHTS_BF16] = "bf16", [TV_WEIGHTS_INT8] = "int8", [TV_WEIGHTS_INT4] = "int4"};
    return names[dtype];
}

/* Of a row of K elements: how many share a scale, what its largest value stands for, and the integers there are. */
typedef struct {
    int group;
    float half_range, low, high;
} coding;

static coding coding_of(tv_weight_dtype dtype, int K) {
    return dtype == TV_WEIGHTS_INT8 ? (coding){K, 127, -127, 127} : (coding){TV_INT4_GROUP, 7.5f, -8, 7};
}

static float element(const unsigned char *in, int i) {
    tv_bf16 x;
    memcpy(&x, in + (size_t)i * sizeof x, sizeof x);
    return tv_f32_from_bf16(x);
}

static tv_bf16 scale_of(const coding *c, const unsigned char *in, int n) {
    float largest = 0;
    for (int i = 0; i < n; i++) largest = fmaxf(largest, fabsf(element(in, i)));
    return tv_bf16_from_f32(largest / c->half_range);
}

static int integer(const coding *c, float x, float scale) {
    return scale > 0 ? (int)fminf(fmaxf(rintf(x / scale), c->low), c->high) : 0;
}

int tv_weights_pack(tv_weight_dtype dtype, const void *rows, int N, int K, tv_packed_rows *out) {
    const coding c = coding_of(dtype, K);
    const int bits = dtype == TV_WEIGHTS_INT8 ? 8 : 4;
    const size_t groups = ((size_t)K + (size_t)c.group - 1) / (size_t)c.group;
    const size_t row = bits == 8 ? (size_t)K : ((size_t)K + 1) / 2;
    *out = (tv_packed_rows){bits, c.group, calloc((size_t)N, row), calloc((size_t)N * groups, sizeof(tv_bf16))};
    if (!out->q || !out->scale) {
        tv_weights_packed_free(out);
        return 0;
    }
    tv_bf16 *scale = out->scale;
    for (int j = 0; j < N; j++)
        for (int first = 0; first < K; first += c.group) {
            const int n = K - first < c.group ? K - first : c.group;
            const unsigned char *in =
                (const unsigned char *)rows + ((size_t)j * (size_t)K + (size_t)first) * sizeof *scale;
            const float s = tv_f32_from_bf16(*scale = scale_of(&c, in, n));
            scale++;
            for (int i = 0; i < n; i++) {
                const size_t k = (size_t)first + (size_t)i;
                const int q = integer(&c, element(in, i), s);
                if (bits == 8)
                    out->q[(size_t)j * row + k] = (uint8_t)q;
                else
                    out->q[(size_t)j * row + k / 2] |= (uint8_t)((q & 15) << k % 2 * 4);
            }
        }
    return 1;
}

void tv_weights_packed_free(tv_packed_rows *rows) {
    free(rows->q), free(rows->scale);
    *rows = (tv_packed_rows){0};
}

void tv_weights_quantize(tv_weight_dtype dtype, const void *rows, int N, int K, tv_bf16 *out) {
    const unsigned char *in = rows;
    if (dtype == TV_WEIGHTS_BF16) {
        memcpy(out, in, (size_t)N * (size_t)K * sizeof *out);
        return;
    }
    const coding c = coding_of(dtype, K);
    for (int j = 0; j < N; j++)
        for (int first = 0, n; first < K; first += n, in += (size_t)n * sizeof *out, out += n) {
            n = K - first < c.group ? K - first : c.group;
            const float s = tv_f32_from_bf16(scale_of(&c, in, n));
            for (int i = 0; i < n; i++) out[i] = tv_bf16_from_f32((float)integer(&c, element(in, i), s) * s);
        }
}
