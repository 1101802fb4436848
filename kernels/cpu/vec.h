/* Eight f32 lanes, with the same bits on every machine: AVX2 where the file is compiled for it, else pairs of 4-lane
 * vectors that the compiler maps to the baseline (NEON on aarch64). Only operations with one IEEE result are offered
 * (add, sub, mul, div, fused multiply-add, compares, shifts of bits); sums across lanes have one order; exp is a fixed
 * polynomial. What a lane holds for a NaN beyond "a NaN" is not specified. */
#ifndef TV_CPU_VEC_H
#define TV_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/tensor.h"

#if defined(__AVX2__) && defined(__FMA__)
#define CPU_VEC_AVX2 1
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Keeps a loaded vector in a register, where the compiler would rather load it again at each use. */
#if defined(CPU_VEC_AVX2)
#define VEC_PIN(x) __asm__("" : "+x"(x))
#else
#define VEC_PIN(x) (void)(x)
#endif

/* Before a loop of constant length over vectors: -O2 alone keeps their array in memory. */
#define VEC_UNROLL _Pragma("GCC unroll 8")
#define VEC_FN static inline __attribute__((always_inline, unused))

enum { VEC_LANES = 8 };

#ifdef CPU_VEC_AVX2

typedef __m256 v8;

VEC_FN v8 v8_zero(void) { return _mm256_setzero_ps(); }
VEC_FN v8 v8_set1(float x) { return _mm256_set1_ps(x); }
VEC_FN v8 v8_load(const float *p) { return _mm256_loadu_ps(p); }
VEC_FN void v8_store(float *p, v8 a) { _mm256_storeu_ps(p, a); }
VEC_FN v8 v8_add(v8 a, v8 b) { return _mm256_add_ps(a, b); }
VEC_FN v8 v8_sub(v8 a, v8 b) { return _mm256_sub_ps(a, b); }
VEC_FN v8 v8_mul(v8 a, v8 b) { return _mm256_mul_ps(a, b); }
VEC_FN v8 v8_div(v8 a, v8 b) { return _mm256_div_ps(a, b); }
VEC_FN v8 v8_fma(v8 a, v8 b, v8 c) { return _mm256_fmadd_ps(a, b, c); }
VEC_FN v8 v8_max(v8 a, v8 b) { return _mm256_max_ps(a, b); }
VEC_FN v8 v8_zero_where_less(v8 a, v8 x, float limit) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ), a);
}
VEC_FN v8 v8_select_negative(v8 x, v8 a, v8 b) { return _mm256_blendv_ps(b, a, x); }
VEC_FN v8 v8_neg_abs(v8 a) { return _mm256_or_ps(a, _mm256_set1_ps(-0.0f)); }
VEC_FN v8 v8_pow2(v8 t) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(t), 23), _mm256_set1_epi32(0x3f800000)));
}
VEC_FN unsigned v8_bits_greater(v8 a, v8 b) { return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
VEC_FN v8 v8_ones_greater(v8 a, v8 b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ), v8_set1(1)); }
VEC_FN v8 v8_ones_at_least(v8 a, v8 b) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ), v8_set1(1)); }
VEC_FN v8 v8_load_bf16(const tv_bf16 *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
/* The lanes rounded: right in the high half of each 32 bits. */
VEC_FN __m256i v8_half_up(v8 a) {
    __m256i u = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(u, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd));
}
VEC_FN v8 v8_round_bf16(v8 a) {
    return _mm256_castsi256_ps(_mm256_and_si256(v8_half_up(a), _mm256_set1_epi32((int)0xffff0000)));
}
VEC_FN void v8_store_bf16(tv_bf16 *p, v8 a) {
    __m256i h = _mm256_srli_epi32(v8_half_up(a), 16);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

#else

typedef float vec_f4 __attribute__((vector_size(16)));
typedef uint32_t vec_u4 __attribute__((vector_size(16)));
typedef struct {
    vec_f4 lo, hi; /* lanes 0-3, 4-7 */
} v8;

VEC_FN vec_f4 vec_blend(vec_u4 mask, vec_f4 a, vec_f4 b) { return (vec_f4)((mask & (vec_u4)a) | (~mask & (vec_u4)b)); }
VEC_FN vec_f4 vec_fma(vec_f4 a, vec_f4 b, vec_f4 c) {
#if defined(__aarch64__)
    return (vec_f4)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    for (int i = 0; i < 4; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}
VEC_FN unsigned vec_bits(vec_u4 m) { return (m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8); }

VEC_FN v8 v8_set1(float x) { return (v8){{x, x, x, x}, {x, x, x, x}}; }
VEC_FN v8 v8_zero(void) { return v8_set1(0); }
VEC_FN v8 v8_load(const float *p) {
    v8 a;
    memcpy(&a, p, sizeof a);
    return a;
}
VEC_FN void v8_store(float *p, v8 a) { memcpy(p, &a, sizeof a); }
VEC_FN v8 v8_add(v8 a, v8 b) { return (v8){a.lo + b.lo, a.hi + b.hi}; }
VEC_FN v8 v8_sub(v8 a, v8 b) { return (v8){a.lo - b.lo, a.hi - b.hi}; }
VEC_FN v8 v8_mul(v8 a, v8 b) { return (v8){a.lo * b.lo, a.hi * b.hi}; }
VEC_FN v8 v8_div(v8 a, v8 b) { return (v8){a.lo / b.lo, a.hi / b.hi}; }
VEC_FN v8 v8_fma(v8 a, v8 b, v8 c) { return (v8){vec_fma(a.lo, b.lo, c.lo), vec_fma(a.hi, b.hi, c.hi)}; }
VEC_FN v8 v8_max(v8 a, v8 b) {
    return (v8){vec_blend((vec_u4)(a.lo > b.lo), a.lo, b.lo), vec_blend((vec_u4)(a.hi > b.hi), a.hi, b.hi)};
}
VEC_FN v8 v8_zero_where_less(v8 a, v8 x, float limit) {
    v8 l = v8_set1(limit);
    return (v8){(vec_f4)(~(vec_u4)(x.lo < l.lo) & (vec_u4)a.lo), (vec_f4)(~(vec_u4)(x.hi < l.hi) & (vec_u4)a.hi)};
}
VEC_FN v8 v8_select_negative(v8 x, v8 a, v8 b) {
    vec_u4 lo = -((vec_u4)x.lo >> 31), hi = -((vec_u4)x.hi >> 31);
    return (v8){vec_blend(lo, a.lo, b.lo), vec_blend(hi, a.hi, b.hi)};
}
VEC_FN v8 v8_neg_abs(v8 a) { return (v8){(vec_f4)((vec_u4)a.lo | 0x80000000u), (vec_f4)((vec_u4)a.hi | 0x80000000u)}; }
VEC_FN v8 v8_pow2(v8 t) {
    return (v8){(vec_f4)(((vec_u4)t.lo << 23) + 0x3f800000u), (vec_f4)(((vec_u4)t.hi << 23) + 0x3f800000u)};
}
VEC_FN unsigned v8_bits_greater(v8 a, v8 b) {
    return vec_bits((vec_u4)(a.lo > b.lo)) | vec_bits((vec_u4)(a.hi > b.hi)) << 4;
}
VEC_FN v8 v8_ones_greater(v8 a, v8 b) {
    const vec_u4 one = (vec_u4)v8_set1(1).lo;
    return (v8){(vec_f4)((vec_u4)(a.lo > b.lo) & one), (vec_f4)((vec_u4)(a.hi > b.hi) & one)};
}
VEC_FN v8 v8_ones_at_least(v8 a, v8 b) {
    const vec_u4 one = (vec_u4)v8_set1(1).lo;
    return (v8){(vec_f4)((vec_u4)(a.lo >= b.lo) & one), (vec_f4)((vec_u4)(a.hi >= b.hi) & one)};
}
VEC_FN v8 v8_load_bf16(const tv_bf16 *p) {
    vec_u4 lo = {p[0], p[1], p[2], p[3]}, hi = {p[4], p[5], p[6], p[7]};
    return (v8){(vec_f4)(lo << 16), (vec_f4)(hi << 16)};
}
VEC_FN vec_u4 vec_to_bf16(vec_f4 a) {
    vec_u4 u = (vec_u4)a;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
VEC_FN v8 v8_round_bf16(v8 a) { return (v8){(vec_f4)(vec_to_bf16(a.lo) << 16), (vec_f4)(vec_to_bf16(a.hi) << 16)}; }
VEC_FN void v8_store_bf16(tv_bf16 *p, v8 a) {
    vec_u4 lo = vec_to_bf16(a.lo), hi = vec_to_bf16(a.hi);
    for (int i = 0; i < 4; i++) p[i] = (tv_bf16)lo[i], p[4 + i] = (tv_bf16)hi[i];
}

#endif

/* What each lane-wise helper above means, for either path:
 *   v8_max(a, b)                  a > b ? a : b (so b where one is NaN)
 *   v8_zero_where_less(a, x, l)   x < l ? +0 : a
 *   v8_select_negative(x, a, b)   sign bit of x ? a : b
 *   v8_neg_abs(a)                 -|a|
 *   v8_pow2(t)                    2^n for t = 1.5 * 2^23 + n, -126 <= n <= 127
 *   v8_bits_greater(a, b)         bit i = lane i: a > b
 *   v8_ones_*(a, b)               a > b, a >= b ? 1 : +0
 *   v8_load_bf16                  exact widening
 *   v8_round_bf16, v8_store_bf16  rounding to nearest even as tv_bf16_from_f32, where the low half of a NaN is 0: so it
 *                                 is in what was computed from bf16 numbers, and such a NaN needs no care */

/* Tails: n of the 8 lanes, 0 <= n <= 8; lanes past n read as +0 and are not stored. */
VEC_FN v8 v8_load_bf16_n(const tv_bf16 *p, int n) {
    tv_bf16 buf[VEC_LANES] = {0};
    if (n >= VEC_LANES) return v8_load_bf16(p);
    for (int i = 0; i < n; i++) buf[i] = p[i];
    return v8_load_bf16(buf);
}
VEC_FN void v8_store_bf16_n(tv_bf16 *p, v8 a, int n) {
    tv_bf16 buf[VEC_LANES];
    if (n >= VEC_LANES) {
        v8_store_bf16(p, a);
        return;
    }
    v8_store_bf16(buf, a);
    for (int i = 0; i < n; i++) p[i] = buf[i];
}

/* ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7)) */
VEC_FN float v8_sum(v8 a) {
#ifdef CPU_VEC_AVX2
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 y = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
#else
    vec_f4 x = a.lo + a.hi;
    return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

/* Lane i of the result = v8_sum(a[i]), in the same order. */
VEC_FN v8 v8_sum_each(const v8 a[8]) {
#ifdef CPU_VEC_AVX2
#define VEC_HALVES(i)                                                                                                  \
    _mm256_add_ps(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20), _mm256_permute2f128_ps(a[i], a[i + 4], 0x31))
    __m256d x0 = _mm256_castps_pd(VEC_HALVES(0)), x1 = _mm256_castps_pd(VEC_HALVES(1));
    __m256d x2 = _mm256_castps_pd(VEC_HALVES(2)), x3 = _mm256_castps_pd(VEC_HALVES(3));
#undef VEC_HALVES
#define VEC_PAIRS(x, y)                                                                                                \
    _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)))
    __m256 y01 = VEC_PAIRS(x0, x1), y23 = VEC_PAIRS(x2, x3);
#undef VEC_PAIRS
    return _mm256_add_ps(_mm256_shuffle_ps(y01, y23, 0x88), _mm256_shuffle_ps(y01, y23, 0xdd));
#else
    return (v8){{v8_sum(a[0]), v8_sum(a[1]), v8_sum(a[2]), v8_sum(a[3])},
                {v8_sum(a[4]), v8_sum(a[5]), v8_sum(a[6]), v8_sum(a[7])}};
#endif
}

/* Lane j of a[i] goes to lane i of a[j]. */
VEC_FN void v8_transpose(v8 a[8]) {
#ifdef CPU_VEC_AVX2
    v8 x[8], y[8];
    VEC_UNROLL
    for (int i = 0; i < 8; i += 2)
        x[i] = _mm256_unpacklo_ps(a[i], a[i + 1]), x[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    VEC_UNROLL
    for (int i = 0; i < 8; i += 4) VEC_UNROLL
    for (int j = 0; j < 2; j++) {
        y[i + 2 * j] = _mm256_shuffle_ps(x[i + j], x[i + j + 2], 0x44);
        y[i + 2 * j + 1] = _mm256_shuffle_ps(x[i + j], x[i + j + 2], 0xee);
    }
    VEC_UNROLL
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x20);
        a[i + 4] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x31);
    }
#else
    float x[8][8];
    for (int i = 0; i < 8; i++) v8_store(x[i], a[i]);
    for (int i = 0; i < 8; i++) {
        float column[8];
        for (int j = 0; j < 8; j++) column[j] = x[j][i];
        a[i] = v8_load(column);
    }
#endif
}

/* The largest lane; for NaN as v8_max. */
VEC_FN float v8_max_lane(v8 a) {
    float l[VEC_LANES];
    v8_store(l, a);
    float m = l[0];
    for (int i = 1; i < VEC_LANES; i++) m = m > l[i] ? m : l[i];
    return m;
}

/* e^x for x <= 88: below ln 2^-126 exactly 0 (no denormals), exp(0) exactly 1, NaN stays NaN. x = n ln2 + r with n the
 * nearest integer, ln2 in two parts, a polynomial of degree 7 in r with fused multiply-adds (coefficients: Cephes
 * expf), times 2^n. Error: docs/numerics.md. */
VEC_FN v8 v8_exp(v8 x) {
    const v8 magic = v8_set1(12582912.0f); /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    v8 t = v8_fma(x, v8_set1(1.44269504088896341f), magic);
    v8 n = v8_sub(t, magic);
    v8 r = v8_fma(n, v8_set1(-0.693359375f), x);
    r = v8_fma(n, v8_set1(2.12194440e-4f), r);
    v8 p = v8_fma(v8_set1(1.9875691500e-4f), r, v8_set1(1.3981999507e-3f));
    p = v8_fma(p, r, v8_set1(8.3334519073e-3f));
    p = v8_fma(p, r, v8_set1(4.1665795894e-2f));
    p = v8_fma(p, r, v8_set1(1.6666665459e-1f));
    p = v8_fma(p, r, v8_set1(5.0000001201e-1f));
    p = v8_fma(p, v8_mul(r, r), v8_add(r, v8_set1(1.0f)));
    return v8_zero_where_less(v8_mul(p, v8_pow2(t)), x, -87.33654f);
}
/* The same function of one number. */
VEC_FN float vec_exp(float x) {
    float l[VEC_LANES];
    v8_store(l, v8_exp(v8_set1(x)));
    return l[0];
}

#endif
