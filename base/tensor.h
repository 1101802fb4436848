/* Element types and their conversions. */
#ifndef TV_TENSOR_H
#define TV_TENSOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t tv_bf16; /* bit pattern of a bfloat16 */

typedef enum {
    TV_BF16,
    TV_F16,
    TV_F32,
    TV_F64,
    TV_I8,
    TV_U8,
    TV_I16,
    TV_U16,
    TV_I32,
    TV_U32,
    TV_I64,
    TV_U64,
    TV_BOOL,
    TV_F8_E4M3,
    TV_F8_E5M2
} tv_dtype;

/* Bytes of one element. */
static inline size_t tv_dtype_size(tv_dtype t) {
    switch (t) {
    case TV_F64:
    case TV_I64:
    case TV_U64:
        return 8;
    case TV_F32:
    case TV_I32:
    case TV_U32:
        return 4;
    case TV_BF16:
    case TV_F16:
    case TV_I16:
    case TV_U16:
        return 2;
    default:
        return 1;
    }
}

/* The safetensors spelling ("BF16", "I32", ...), a static string. */
const char *tv_dtype_name(tv_dtype t);

static inline float tv_f32_from_bf16(tv_bf16 h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest even; a NaN stays a (quiet) NaN. */
static inline tv_bf16 tv_bf16_from_f32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (tv_bf16)((u >> 16) | 0x40);
    u += 0x7fff + ((u >> 16) & 1);
    return (tv_bf16)(u >> 16);
}

/* x rounded to the nearest bf16 value, as a float. */
static inline float tv_round_bf16(float x) { return tv_f32_from_bf16(tv_bf16_from_f32(x)); }

/* IEEE half to float, exact. */
float tv_f32_from_f16(uint16_t h);

/* E4M3 (4 exponent bits, 3 of fraction, no infinity, largest value 448). To float: exact. From float: to nearest even,
 * saturating: what lies beyond 448 becomes 448; a NaN stays one. */
float tv_f32_from_f8_e4m3(uint8_t b);
uint8_t tv_f8_e4m3_from_f32(float f);

#endif
