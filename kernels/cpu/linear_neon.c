/* Matrix kernels for aarch64 (its baseline has fused multiply-add): blocks of at most 4 rows by 16 columns. */
#if defined(__aarch64__)
#include <arm_neon.h>

#include "kernels/cpu/linear.h"

enum { QUADS = CPU_PANEL / 4 };

/* rows is a constant at each call, so that acc lives in registers. */
CPU_INLINE void block_rows(const int rows, const cpu_block *b, const tv_bf16 *w, const float *in, float *out) {
    float32x4_t acc[4][QUADS];
    const float *x = b->x;
    const uint32x4_t mask = vdupq_n_u32(0xffff0000u);
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int q = 0; q < QUADS; q++) acc[m][q] =
        in ? vld1q_f32(in + m * CPU_PANEL + 4 * q) : vdupq_n_f32(0);
    for (int k = 0; k < b->k; k += 2) {
        float32x4_t even[QUADS], odd[QUADS];
        CPU_UNROLL for (int q = 0; q < QUADS; q++) {
            uint32x4_t pair = vreinterpretq_u32_u16(vld1q_u16(w + 8 * q));
            even[q] = vreinterpretq_f32_u32(vshlq_n_u32(pair, 16));
            odd[q] = vreinterpretq_f32_u32(vandq_u32(pair, mask));
        }
        CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int q = 0; q < QUADS; q++) acc[m][q] =
            vfmaq_n_f32(acc[m][q], even[q], x[m]);
        CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int q = 0; q < QUADS; q++) acc[m][q] =
            vfmaq_n_f32(acc[m][q], odd[q], x[rows + m]);
        x += 2 * rows;
        w += 2 * CPU_PANEL;
    }
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int q = 0; q < QUADS; q++) {
        float *o = out + m * CPU_PANEL + 4 * q;
        vst1q_f32(o, b->add ? vaddq_f32(vld1q_f32(o), acc[m][q]) : acc[m][q]);
    }
}

static void block(int rows, int panels, const cpu_block *b) {
    for (int p = 0; p < panels; p++) {
        const tv_bf16 *w = b->w + p * b->w_stride;
        const float *in = b->in ? b->in + p * b->tile_stride : NULL;
        float *out = b->out + p * b->tile_stride;
        switch (rows) {
        case 1:
            block_rows(1, b, w, in, out);
            break;
        case 2:
            block_rows(2, b, w, in, out);
            break;
        case 3:
            block_rows(3, b, w, in, out);
            break;
        default:
            TV_ASSERT(rows == 4);
            block_rows(4, b, w, in, out);
        }
    }
}

const cpu_isa cpu_isa_neon = {
    .name = "neon",
    .numerics = "fma",
    .reference = &cpu_isa_scalar,
    .level = CPU_SCALAR,
    .pair = 2,
    .rows = 4,
    .panels = 1,
    .piece = 512,
    .pack = cpu_pack_scalar,
    .block = block,
    .finish = cpu_finish_scalar,
};
#else
typedef int linear_neon_is_for_aarch64; /* a translation unit holds at least one declaration */
#endif
