/* VDPBF16PS in software, for a machine without it: lane by lane as Intel's manual writes it down, on SIMDe's vectors.
 */
#ifndef TV_TESTS_VDPBF16_H
#define TV_TESTS_VDPBF16_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float vdp_value(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return fabsf(v) < FLT_MIN ? copysignf(0, v) : v;
}
static inline float vdp_add(uint32_t x, uint32_t w, float sum) {
    float v = fmaf(vdp_value(x), vdp_value(w), sum);
    return fabsf(v) < FLT_MIN ? copysignf(0, v) : v;
}

static inline __m512 vdpbf16ps(__m512 sum, __m512i x, __m512i w) {
    float s[16];
    uint32_t a[16], b[16];
    memcpy(s, &sum, sizeof s), memcpy(a, &x, sizeof a), memcpy(b, &w, sizeof b);
    for (int i = 0; i < 16; i++) {
        s[i] = vdp_add(a[i] & 0xffff0000u, b[i] & 0xffff0000u, s[i]);
        s[i] = vdp_add(a[i] << 16, b[i] << 16, s[i]);
    }
    memcpy(&sum, s, sizeof s);
    return sum;
}
#define DOT(sum, x, w) vdpbf16ps(sum, x, w)

#endif
