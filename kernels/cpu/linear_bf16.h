/* What the matrix kernels for products of bf16 pairs share: x stays bf16, packed in tiles of 16 pairs of k,
 * [ceil(Kp/32)][rows][16][2] bf16, the last tile as short as what is left of Kp. A row of a tile is what VDPBF16PS
 * broadcasts from and what an AMX tile loads; the offset of an even k is k * rows, as long as k is a multiple of 32 or
 * the end. */
#ifndef TV_CPU_LINEAR_BF16_H
#define TV_CPU_LINEAR_BF16_H

#include <string.h>

#include "kernels/cpu/linear.h"

enum { CPU_TILE_K = 32, CPU_TILE_PAIRS = CPU_TILE_K / 2 };

/* The portable pack of that layout; every set of kernels of bf16 pairs uses it. */
void cpu_pack_bf16(const tv_bf16 *x, size_t ldx, int rows, int K, float *out);

/* The pair of k and k + 1 as the 32 bits that a kernel broadcasts. */
static inline uint32_t cpu_pair(const tv_bf16 *x) {
    uint32_t pair;
    memcpy(&pair, x, sizeof pair);
    return pair;
}

#endif
