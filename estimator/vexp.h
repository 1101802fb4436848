/* exp of many doubles at once, in plain C that compilers vectorise; the same bits on every instruction set, because no
 * operation is contracted or reassociated. */
#ifndef TV_VEXP_H
#define TV_VEXP_H

#include <stdint.h>
#include <string.h>

/* exp(x) for x <= 700 with a relative error below 3e-16; 0 below -708 (also for -inf); NaN stays NaN; above 700 the
 * value is that of 700 (callers reject such input). Cody-Waite reduction and a Taylor polynomial of degree 13 by
 * Estrin's scheme. */
static inline double tv_vexp(double x) {
    const double magic = 0x1.8p52, log2e = 0x1.71547652b82fep0, ln2_hi = 0x1.62e42fefa0000p-1,
                 ln2_lo = 0x1.cf79abc9e3b3ap-40;
    double c = x < -708.0 ? -708.0 : x;
    c = c > 700.0 ? 700.0 : c;
    double shifted = c * log2e + magic, n = shifted - magic;
    double r = (c - n * ln2_hi) - n * ln2_lo, r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
    double p01 = 1.0 + r, p23 = 1.0 / 2 + r * (1.0 / 6), p45 = 1.0 / 24 + r * (1.0 / 120),
           p67 = 1.0 / 720 + r * (1.0 / 5040);
    double p89 = 1.0 / 40320 + r * (1.0 / 362880), pab = 1.0 / 3628800 + r * (1.0 / 39916800);
    double pcd = 1.0 / 479001600 + r * (1.0 / 6227020800.0);
    double y = ((p01 + r2 * p23) + r4 * (p45 + r2 * p67)) + r8 * ((p89 + r2 * pab) + r4 * pcd);
    uint64_t bits;
    memcpy(&bits, &shifted, 8);
    bits = (bits + 1023) << 52; /* the low bits of the shifted value are n */
    double scale;
    memcpy(&scale, &bits, 8);
    return x < -708.0 ? 0.0 : y * scale;
}

#endif
