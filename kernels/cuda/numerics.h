// The arithmetic of docs/numerics.md for kernels: the bits of the CPU device (kernels/cpu/vec.h) but for NaN payloads.
#ifndef TV_CUDA_NUMERICS_H
#define TV_CUDA_NUMERICS_H

#include "kernels/cuda/dev.h"

__device__ __forceinline__ float bf16_value(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }
__device__ __forceinline__ uint16_t bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
__device__ __forceinline__ float bf16_round(float x) { return bf16_value(bf16_bits(x)); } // r(x) of docs/numerics.md

// Two int8 (the first lies low) as floats: beside the exponent of 2^23 a byte is 2^23 + 128 + value. Conversions are
// slow.
__device__ __forceinline__ float2 int8_pair(uint32_t bytes) {
    const uint32_t x = bytes ^ 0x8080;
    return make_float2(__uint_as_float(__byte_perm(x, 0x4b000000, 0x7440)) - 8388736.0f,
                       __uint_as_float(__byte_perm(x, 0x4b000000, 0x7441)) - 8388736.0f);
}

// e^x for x <= 88 as docs/numerics.md defines it: exactly 0 below ln 2^-126, exp(0) = 1, NaN stays NaN.
__device__ __forceinline__ float exp_f32(float x) {
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    float t = fmaf(x, 1.44269504088896341f, magic);
    float n = t - magic;
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
    float p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r + 1.0f);
    float e = p * __uint_as_float((__float_as_uint(t) << 23) + 0x3f800000u);
    return x < -87.33654f ? 0.0f : e;
}

// Sum over a warp whose lane l holds lane l % 8 of chain l / 8 (that is, element i in lane i % 32): (c0 + c1) + (c2 +
// c3), then ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7)). The result is in every lane. All 32 lanes.
__device__ __forceinline__ float sum_chains(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 8);
    v += __shfl_xor_sync(0xffffffffu, v, 16);
    v += __shfl_xor_sync(0xffffffffu, v, 4);
    v += __shfl_xor_sync(0xffffffffu, v, 2);
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v;
}

// The two functions below replace f64 ones of the CPU device by 64-bit integers with more bits, so that rounding to f32
// gives what rounding the f64 result gives. Compared with glibc's: every x of exp below -2^-33 (those above give 1),
// none differs; every x of log, two of 2.3e8 differ, where f64 falls on the middle of two f32.
// Qn: an unsigned integer that stands for itself times 2^-n.

// Rounded e^x for x <= 0 (-inf gives 0, denormals are kept, NaN stays NaN); relative error before rounding below 2^-56.
__device__ __forceinline__ float exp_rounded(float x) {
    if (!(x >= -104.0f)) return x < 0 ? 0.0f : x; // below 2^-150
    const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
    const int shift = 150 - (int)(bits >> 23); // -x = A * 2^-shift
    if (shift > 88) return 1.0f;               // -x < 2^-64
    // -x * log2(e) = whole + fraction; log2(e) in Q63 is 64 bits long, its product with A 88.
    const uint64_t A = (bits & 0x7fffffu) | 0x800000u, log2e = 0xb8aa3b295c17f0bcull;
    const uint64_t high = __umul64hi(A, log2e), low = A * log2e;
    // The fraction as Q64 is the low half of the product shifted right by s = 16 .. 87.
    const int s = shift - 1;
    const uint64_t fraction = s < 64 ? high << (64 - s) | low >> s : high >> (s - 64);
    const int whole = s < 64 ? (int)(high >> s) : 0;
    const uint64_t u = __umul64hi(fraction, 0xb17217f7d1cf79acull); // fraction * ln 2, Q64
    // e^-u by its series to degree 17, Horner's rule in Q63: each partial result is positive because u < 1.
    uint64_t e = (1ull << 63) / 355687428096000ull;
    uint64_t factorial = 355687428096000ull; // 17!
#pragma unroll
    for (int i = 17; i > 0; i--) {
        factorial /= (uint64_t)i;
        e = (1ull << 63) / factorial - __umul64hi(e, u);
    }
    // e = 2^-fraction in (2^62, 2^63] as Q63; the result e * 2^-whole, rounded to nearest even once, by hand for
    // denormals.
    const int top = e >> 63 ? 0 : 1;   // leading bit at 63 - top
    const int exponent = -whole - top; // of the result
    const int lost = exponent < -126 ? -126 - exponent : 0;
    const int drop = 40 - top + lost; // bits of e below the last of the result
    if (drop > 63) return 0.0f;
    uint64_t m = e >> drop, rest = e << (64 - drop);
    if (rest > 1ull << 63 || (rest == 1ull << 63 && (m & 1))) m++;
    return __uint_as_float(((uint32_t)(exponent + lost + 126) << 23) + (uint32_t)m); // a carry moves into the exponent
}

// The rounded log(x) for 1 <= x < 2^29; error before rounding below 2^-55 of the result.
__device__ __forceinline__ float log_rounded(float x) {
    const uint32_t bits = __float_as_uint(x);
    const int k = (int)(bits >> 23) - 127;
    uint32_t n = bits & 0x7fffffu; // x = 2^k (1 + n 2^-23)
    const uint32_t d = n + 0x1000000u;
    const uint64_t ln2 = 0x2c5c85fdf473de7ull; // Q58
    if (!n) return (float)((uint64_t)k * ln2) * 0x1p-58f;
    // log(1 + n/2^23) = 2 atanh(s) with s = n / d; q = s * 2^t in [1/2, 1) as Q64, by long division.
    int t = __clz((int)n) - 7;
    n <<= t; // 2^24 <= n < 2^25
    if (n >= d) n >>= 1, t--;
    uint64_t part = (uint64_t)n << 38;
    uint64_t q = part / d;
    q = q << 26 | (((part - q * d) << 26) / d);
    const uint64_t square = t < 32 ? __umul64hi(q, q) >> 2 * t : 0; // s^2, at most 1/9
    uint64_t p = ~0ull / 41;
#pragma unroll
    for (int i = 39; i > 1; i -= 2) p = ~0ull / (uint64_t)i + __umul64hi(p, square);
    p = __umul64hi(p, square);                           // atanh(s) / s - 1
    const uint64_t y = (q >> 1) + __umul64hi(q >> 1, p); // Q62 of 2 atanh(s) * 2^t
    if (k == 0) return (float)y * __uint_as_float((uint32_t)(127 - 62 - t) << 23);
    return (float)((uint64_t)k * ln2 + (y >> (4 + t))) * 0x1p-58f;
}

#endif
