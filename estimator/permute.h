/* The permutation of the repeat axis: an independent, reproducible shuffle of the passes in every cell. */
#ifndef TV_PERMUTE_H
#define TV_PERMUTE_H

#include <stdint.h>

/* One step of splitmix64: advances *state and returns the output. */
static inline uint64_t tv_splitmix64(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* The permutation of 0..R-1 of cell (scorer e, set s, trajectory i, position t) in replicate p: the key folds p, e, s,
 * i, t into seed through splitmix64 outputs, then Fisher-Yates from the top. perm: [R] i32. Cells share no draws, so
 * the order in which they are visited does not matter. */
void tv_cell_permutation(int64_t R, uint64_t seed, int64_t p, int e, int s, int64_t i, int64_t t, int32_t *perm);

#endif
