#include "base/tensor.h"

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
