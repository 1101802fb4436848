/* Portable matrix kernels with the rounding of VDPBF16PS and of TDPBF16PS, as Intel's manual gives it (Software
 * Developer's Manual, volume 2, "Operation" of each): the references for the vector ones, and a way to meet their
 * numerics on any machine. */
#include <float.h>
#include <math.h>

#include "kernels/cpu/linear_bf16.h"

void cpu_pack_bf16(const tv_bf16 *x, size_t ldx, int rows, int K, float *out) {
    tv_bf16 *to = (tv_bf16 *)out;
    const int Kp = (K + 1) / 2 * 2;
    for (int k = 0; k < Kp; k += CPU_TILE_K) {
        int width = Kp - k < CPU_TILE_K ? Kp - k : CPU_TILE_K, there = K - k < width ? K - k : width;
        for (int m = 0; m < rows; m++, to += width) {
            memcpy(to, x + (size_t)m * ldx + k, (size_t)there * sizeof *to);
            if (there < width) to[there] = 0;
        }
    }
}

/* Both instructions read and write values below the normal range as zeros, whatever the thread's own setting. */
static inline float flush(float v) { return fabsf(v) < FLT_MIN ? copysignf(0, v) : v; }
static inline float operand(tv_bf16 v) { return flush(tv_f32_from_bf16(v)); }
static inline float chain(float x, float w, float sum) { return flush(fmaf(x, w, flush(sum))); }

/* One tile of k for one output: x, w point to its first pair; w steps by CPU_PANEL pairs. */
typedef float tile_sum(const tv_bf16 *x, const tv_bf16 *w, int pairs, float sum);

static float sum_bf16(const tv_bf16 *x, const tv_bf16 *w, int pairs, float sum) {
    for (int k = 0; k < pairs; k++, x += 2, w += 2 * CPU_PANEL) {
        sum = chain(operand(x[1]), operand(w[1]), sum);
        sum = chain(operand(x[0]), operand(w[0]), sum);
    }
    return sum;
}

static float sum_tiles(const tv_bf16 *x, const tv_bf16 *w, int pairs, float sum) {
    float even = 0, odd = 0;
    for (int k = 0; k < pairs; k++, x += 2, w += 2 * CPU_PANEL) {
        even = chain(operand(x[0]), operand(w[0]), even);
        odd = chain(operand(x[1]), operand(w[1]), odd);
    }
    return flush(flush(sum) + flush(even + odd));
}

static inline void block_of(tile_sum *of_tile, int rows, int panels, const cpu_block *b) {
    for (int p = 0; p < panels; p++)
        for (int m = 0; m < rows; m++)
            for (int n = 0; n < CPU_PANEL; n++) {
                const tv_bf16 *x = (const tv_bf16 *)b->x, *w = b->w + p * b->w_stride + 2 * n;
                size_t at = p * b->tile_stride + (size_t)m * CPU_PANEL + n;
                float sum = b->in ? b->in[at] : 0;
                for (int k = 0; k < b->k; k += CPU_TILE_K) {
                    int pairs = b->k - k < CPU_TILE_K ? (b->k - k) / 2 : CPU_TILE_PAIRS;
                    sum = of_tile(x + (size_t)m * pairs * 2, w, pairs, sum);
                    x += (size_t)rows * pairs * 2;
                    w += pairs * CPU_PANEL * 2;
                }
                b->out[at] = b->add ? b->out[at] + sum : sum;
            }
}
static void block_bf16(int rows, int panels, const cpu_block *b) { block_of(sum_bf16, rows, panels, b); }
static void block_tiles(int rows, int panels, const cpu_block *b) { block_of(sum_tiles, rows, panels, b); }

const cpu_isa cpu_isa_scalar_bf16 = {
    .name = "scalar-bf16",
    .numerics = "bf16",
    .reference = &cpu_isa_scalar_bf16,
    .level = CPU_SCALAR,
    .pair = 1,
    .rows = 4,
    .panels = 1,
    .piece = 512,
    .pack = cpu_pack_bf16,
    .block = block_bf16,
    .finish = cpu_finish_scalar,
};

const cpu_isa cpu_isa_scalar_tiles = {
    .name = "scalar-tiles",
    .numerics = "tiles",
    .reference = &cpu_isa_scalar_tiles,
    .level = CPU_SCALAR,
    .pair = 1,
    .rows = 4,
    .panels = 1,
    .piece = 512,
    .pack = cpu_pack_bf16,
    .block = block_tiles,
    .finish = cpu_finish_scalar,
};
