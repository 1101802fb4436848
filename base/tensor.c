#include "base/tensor.h"

#include <math.h>

const char *tv_dtype_name(tv_dtype t) {
    static const char *const names[] = {"BF16", "F16", "F32", "F64", "I8",   "U8",      "I16",    "U16",
                                        "I32",  "U32", "I64", "U64", "BOOL", "F8_E4M3", "F8_E5M2"};
    return names[t];
}

float tv_f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023u, u;
    if (exponent == 31) {
        u = sign | 0x7f800000u | mantissa << 13;
    } else if (exponent) {
        u = sign | (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa) { /* subnormal: shift the leading one into place */
        exponent = 113;
        while (!(mantissa & 1024)) mantissa <<= 1, exponent--;
        u = sign | exponent << 23 | (mantissa & 1023) << 13;
    } else {
        u = sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float tv_f32_from_f8_e4m3(uint8_t b) {
    uint32_t u = (uint32_t)(b & 0x7f) << 20;
    float f;
    memcpy(&f, &u, 4);
    f = u == 0x07f00000u ? NAN : f * 0x1p120f; /* the fields in place, with a bias that is 120 less */
    return b & 0x80 ? -f : f;
}

uint8_t tv_f8_e4m3_from_f32(float f) {
    uint8_t sign = signbit(f) ? 0x80 : 0;
    float a = fabsf(f);
    if (!(a <= 448)) return sign | (a > 448 ? 0x7e : 0x7f);
    if (a < 0x1p-6f) return (uint8_t)(sign | lrintf(a * 0x1p9f)); /* subnormal; 8 steps are the first normal number */
    uint32_t u;
    memcpy(&u, &a, 4);
    u += 0x7ffff + ((u >> 20) & 1);
    return (uint8_t)(sign | ((u >> 20) - (120 << 3)));
}
