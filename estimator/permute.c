#include "estimator/permute.h"

void tv_cell_permutation(int64_t R, uint64_t seed, int64_t p, int e, int s, int64_t i, int64_t t, int32_t *perm) {
    const uint64_t key[5] = {(uint64_t)p, (uint64_t)e, (uint64_t)s, (uint64_t)i, (uint64_t)t};
    uint64_t state = seed;
    for (int j = 0; j < 5; j++) {
        uint64_t from = state ^ key[j];
        state = tv_splitmix64(&from);
    }
    for (int64_t a = 0; a < R; a++) perm[a] = (int32_t)a;
    for (int64_t a = R - 1; a > 0; a--) {
        uint64_t w = tv_splitmix64(&state);
        int64_t b = (int64_t)((unsigned __int128)w * (uint64_t)(a + 1) >> 64);
        int32_t swap = perm[a];
        perm[a] = perm[b];
        perm[b] = swap;
    }
}
