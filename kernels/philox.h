/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC11): a counter-based
 * generator, so that a draw depends on its key and counter alone, never on batch, slot, device or history. */
#ifndef TV_PHILOX_H
#define TV_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define TV_HOST_DEVICE __host__ __device__
#else
#define TV_HOST_DEVICE
#endif

typedef struct {
    uint32_t v[4];
} tv_philox4;

static inline TV_HOST_DEVICE tv_philox4 tv_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    tv_philox4 r = {{c0, c1, c2, c3}};
    return r;
}

/* What a draw is for: the top half of the counter keeps the streams of one seed apart. */
enum {
    TV_USE_SAMPLE = 1,
    TV_USE_COMPOSITION = 2,
    TV_USE_ARRIVAL = 3,
    TV_USE_SYNTHETIC = 4,
    TV_USE_BOOTSTRAP = 5,
    TV_USE_PADDING = 6,
    TV_USE_PILOT = 7
};

/* Uniform in [0,1) with 24 bits, for draw (seed, trajectory, position, use). */
static inline TV_HOST_DEVICE float tv_philox_uniform(uint64_t seed, uint64_t trajectory, uint32_t position,
                                                     uint32_t use) {
    return (float)(tv_philox(seed, trajectory, (uint64_t)use << 32 | position).v[0] >> 8) * 0x1p-24f;
}

#endif
