// Rows of a KV cache of one byte an element (kernels/cpu/kv.c): written when a position is appended, read back as bf16.
#ifndef TV_CUDA_KV_H
#define TV_CUDA_KV_H

#include "base/tensor.h"
#include "kernels/cuda/numerics.h"

// What kernels are instantiated for.
enum { KV_BF16, KV_FP8, KV_INT8 };
inline int kv_kind(tv_dtype dtype) { return dtype == TV_BF16 ? KV_BF16 : dtype == TV_F8_E4M3 ? KV_FP8 : KV_INT8; }

// The nearest E4M3 of a finite f, ties to the even code, saturating at 448.
__device__ __forceinline__ uint8_t e4m3_bits(float f) {
    const uint32_t sign = __float_as_uint(f) >> 24 & 0x80, a = __float_as_uint(f) & 0x7fffffff;
    if (a > 0x43e00000) return (uint8_t)(sign | 0x7e); // 448
    // Below 2^-6: units of 2^-9, rounded in the last bit of a number near 2^23.
    if (a < 0x3c800000) return (uint8_t)(sign | (__float_as_uint(fmaf(fabsf(f), 512.0f, 8388608.0f)) & 15));
    return (uint8_t)(sign | (((a + 0x7ffff + (a >> 20 & 1)) >> 20) - (120 << 3)));
}
// The nearest integer of a finite f, ties to even, within -127 .. 127.
__device__ __forceinline__ uint8_t int8_bits(float f) {
    return (uint8_t)__float_as_uint(fminf(fmaxf(f, -127.0f), 127.0f) + 12582912.0f);
}

// A warp writes one row: v [HS] f32 (bf16 values, visible to all lanes) as bytes to out [HS], and its scale.
__device__ __forceinline__ void kv_append(const float *v, int HS, bool fp8, uint8_t *out, float *scale, int lane) {
    uint32_t largest = 0; // bits of a magnitude: above an infinity's where one is a NaN
    for (int i = lane; i < HS; i += 32) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
    for (int o = 16; o; o >>= 1) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, o));
    const float s = largest < 0x7f800000 ? __uint_as_float(largest) / (fp8 ? 448.0f : 127.0f)
                                         : __uint_as_float(0x7fc00000); // NaN: the whole row is
    for (int i = lane; i < HS; i += 32) {
        const float f = s > 0 ? v[i] / s : 0.0f;
        out[i] = fp8 ? e4m3_bits(f) : int8_bits(f);
    }
    if (lane == 0) *scale = s;
}

// Two bytes (the first lies low) as floats, exact.
template <int KV> __device__ __forceinline__ float2 kv_pair(uint32_t bytes) {
    return KV == KV_FP8 ? e4m3_pair((uint16_t)bytes) : int8_pair(bytes);
}
// Four.
template <int KV> __device__ __forceinline__ float4 kv_four(uint32_t bytes) {
    const float2 a = kv_pair<KV>(bytes), b = kv_pair<KV>(bytes >> 16);
    return make_float4(a.x, a.y, b.x, b.y);
}

#endif
