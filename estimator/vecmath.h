/* exp, log and the normal tail on four doubles at once, in GNU vector extensions: the same operations in the same order
 * on every instruction set, so that the bits of a result do not depend on the machine, its libm or the vector width.
 *
 * Measured against 40-digit arithmetic (tests/test_hedged.c repeats it against libm): exp 7e-15, log 3 ulp, erfcx
 * 3e-15, all relative; far inside the 1e-9 that the hedged estimator owes.
 *
 * A file that includes this may define TV_VEC first, e.g. to __attribute__((target("avx2,fma"))), and then the
 * instructions TV_FMA(a, b, c) for a b + c on tv_v4d, TV_WIDEN(x) for tv_v4f to tv_v4d, and TV_WIDEN_BITS(x) for tv_v4w
 * to tv_v4i, which compilers make of halves otherwise. */
#ifndef TV_VECMATH_H
#define TV_VECMATH_H

#include <stdint.h>
#include <string.h>

#ifndef TV_VEC
#define TV_VEC
#endif
#define TV_VEC_FN static inline __attribute__((always_inline, unused)) TV_VEC

typedef double tv_v4d __attribute__((vector_size(32)));
typedef int64_t tv_v4i __attribute__((vector_size(32)));
typedef uint64_t tv_v4u __attribute__((vector_size(32)));
typedef float tv_v4f __attribute__((vector_size(16)));
typedef int32_t tv_v4w __attribute__((vector_size(16)));
typedef int32_t tv_v8w __attribute__((vector_size(32)));
typedef float tv_v8f __attribute__((vector_size(32)));

TV_VEC_FN tv_v4d vset(double x) { return (tv_v4d){x, x, x, x}; }
TV_VEC_FN tv_v4d vload(const double *p) {
    tv_v4d v;
    memcpy(&v, p, sizeof v);
    return v;
}
TV_VEC_FN void vstore(double *p, tv_v4d v) { memcpy(p, &v, sizeof v); }
TV_VEC_FN tv_v4d vabs(tv_v4d x) { return (tv_v4d)((tv_v4i)x & INT64_MAX); }
/* mask lanes are all ones or all zeros. */
TV_VEC_FN tv_v4d vpick(tv_v4i mask, tv_v4d yes, tv_v4d no) {
    return (tv_v4d)((mask & (tv_v4i)yes) | (~mask & (tv_v4i)no));
}
TV_VEC_FN tv_v4d vkeep(tv_v4i mask, tv_v4d x) { return (tv_v4d)(mask & (tv_v4i)x); }
TV_VEC_FN double vsum(tv_v4d x) { return (x[0] + x[2]) + (x[1] + x[3]); }

TV_VEC_FN tv_v4d vwiden(tv_v4f x) {
#ifdef TV_WIDEN
    return TV_WIDEN(x);
#else
    return __builtin_convertvector(x, tv_v4d);
#endif
}
TV_VEC_FN tv_v4i vwiden_bits(tv_v4w x) {
#ifdef TV_WIDEN_BITS
    return (tv_v4i)TV_WIDEN_BITS((__m128i)x);
#else
    return __builtin_convertvector(x, tv_v4i);
#endif
}

/* a b + c, rounded once. */
TV_VEC_FN tv_v4d vfma(tv_v4d a, tv_v4d b, tv_v4d c) {
#ifdef TV_FMA
    return TV_FMA(a, b, c);
#else
    return (tv_v4d){__builtin_fma(a[0], b[0], c[0]), __builtin_fma(a[1], b[1], c[1]), __builtin_fma(a[2], b[2], c[2]),
                    __builtin_fma(a[3], b[3], c[3])};
#endif
}

/* e^x for -708 <= x <= 709. */
TV_VEC_FN tv_v4d vexp_inside(tv_v4d x) {
    const tv_v4d magic = vset(0x1.8p52);
    const tv_v4d shifted = vfma(x, vset(0x1.71547652b82fep0), magic);
    const tv_v4d k = shifted - magic;
    const tv_v4d r = vfma(k, vset(-0x1.ef35793c76730p-45), vfma(k, vset(-0x1.62e42fefa3800p-1), x));
    /* |r| <= ln2/2: the Taylor series to r^11/11! leaves 6.3e-15. Even and odd halves run side by side. */
    const tv_v4d s = r * r;
    tv_v4d even = vset(1.0 / 3628800.0), odd = vset(1.0 / 39916800.0);
    even = vfma(even, s, vset(1.0 / 40320.0)), odd = vfma(odd, s, vset(1.0 / 362880.0));
    even = vfma(even, s, vset(1.0 / 720.0)), odd = vfma(odd, s, vset(1.0 / 5040.0));
    even = vfma(even, s, vset(1.0 / 24.0)), odd = vfma(odd, s, vset(1.0 / 120.0));
    even = vfma(even, s, vset(0.5)), odd = vfma(odd, s, vset(1.0 / 6.0));
    odd = vfma(odd, s, vset(1.0));
    const tv_v4d p = vset(1.0) + vfma(r, odd, s * even);
    return (tv_v4d)(((tv_v4i)shifted << 52) + (tv_v4i)p); /* the low bits of shifted hold k */
}

/* e^x; 0 below -708 (and at -inf); x above 709 counts as 709, NaN too (callers check ranges first). */
TV_VEC_FN tv_v4d vexp(tv_v4d x) {
    const tv_v4i live = ~(x < vset(-708.0)); /* true for NaN */
    x = vpick(x < vset(709.0), x, vset(709.0));
    return vkeep(live, vexp_inside(vkeep(live, x)));
}

/* log x for positive, finite, normal x. */
TV_VEC_FN tv_v4d vlog(tv_v4d x) {
    const int64_t split = 0x3fe6a09e667f3bcdLL; /* sqrt(1/2): the mantissa lands in [sqrt(1/2), sqrt(2)) */
    tv_v4i k = ((tv_v4i)x - split) & -(1LL << 52);
    tv_v4d m = (tv_v4d)((tv_v4i)x - k);
    /* k / 2^52 as a double without a 64-bit conversion: its 12 signed bits, biased, in the mantissa of 2^52. */
    tv_v4i biased = (tv_v4i)((((tv_v4u)k + 0x8000000000000000u) >> 52) | 0x4330000000000000u);
    tv_v4d e = (tv_v4d)biased - vset(0x1p52 + 2048.0);
    tv_v4d s = (m - vset(1.0)) / (m + vset(1.0)), z = s * s, w = z * z;
    tv_v4d a = vset(1.0 / 21.0), b = vset(1.0 / 19.0);
    a = a * w + vset(1.0 / 17.0), b = b * w + vset(1.0 / 15.0);
    a = a * w + vset(1.0 / 13.0), b = b * w + vset(1.0 / 11.0);
    a = a * w + vset(1.0 / 9.0), b = b * w + vset(1.0 / 7.0);
    a = a * w + vset(1.0 / 5.0), b = b * w + vset(1.0 / 3.0);
    tv_v4d series = s * (z * (b + z * a)); /* atanh(s) - s */
    return e * vset(0x1.62e42fefa39efp-1) + vset(2.0) * (s + series);
}

/* erfcx(x)/2 = e^{x^2} erfc(x) / 2 for x >= 0: (1 + 2x) erfcx(x) is a polynomial of degree 20 in (x - K)/(x + K),
 * K = 3.75, the variable of Shepherd and Laframboise (Math. Comp. 36, 1981); coefficients fitted in 40 digits. */
TV_VEC_FN tv_v4d vhalf_erfcx(tv_v4d x) {
    tv_v4d up = x + vset(3.75), den = vset(1.0) + (x + x);
    tv_v4d inv = vset(1.0) / (up * den);
    tv_v4d t = (x - vset(3.75)) * (den * inv), s = t * t;
    tv_v4d even = vset(1.7552176307433927e-08), odd = vset(8.526359817483033e-09);
    even = even * s + vset(-2.143069227582364e-07), odd = odd * s + vset(-2.7749611122883763e-08);
    even = even * s + vset(1.6959958079430478e-06), odd = odd * s + vset(-1.0083452170479683e-06);
    even = even * s + vset(-1.1399726074447365e-05), odd = odd * s + vset(2.2410019228612918e-05);
    even = even * s + vset(5.162601622259853e-05), odd = odd * s + vset(-0.00029016629854870584);
    even = even * s + vset(0.0002937214295671746), odd = odd * s + vset(0.0017556295098350434);
    even = even * s + vset(-0.009746581194305737), odd = odd * s + vset(0.028362276757789878);
    even = even * s + vset(-0.058693398387769276), odd = odd * s + vset(0.09230432122630407);
    even = even * s + vset(-0.10880393015455231), odd = odd * s + vset(0.08227673848712364);
    even = even * s + vset(0.003585415485781718), odd = odd * s + vset(-0.1402405985855061);
    even = even * s + vset(1.2375126308378264);
    return vset(0.5) * ((even + t * odd) * (up * inv));
}

#endif
