/* Matrix kernels in portable C: the reference for the vector ones, and what other architectures run. */
#include <math.h>

#include "kernels/cpu/linear.h"

void cpu_pack_scalar(const tv_bf16 *x, size_t ldx, int rows, int K, float *out) {
    for (int k = 0; k < K; k++)
        for (int m = 0; m < rows; m++) out[(size_t)k * rows + m] = tv_f32_from_bf16(x[(size_t)m * ldx + k]);
    if (K % 2)
        for (int m = 0; m < rows; m++) out[(size_t)K * rows + m] = 0;
}

void cpu_finish_scalar(const float *tile, int rows, int columns, const tv_bf16 *bias, void *y, size_t ldy,
                       cpu_out out) {
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++) {
            float v = tile[m * CPU_PANEL + n];
            if (bias) v += tv_f32_from_bf16(bias[n]);
            if (out == CPU_OUT_BF16)
                ((tv_bf16 *)y)[(size_t)m * ldy + n] = tv_bf16_from_f32(v);
            else
                ((float *)y)[(size_t)m * ldy + n] = out == CPU_OUT_F32 ? v : tv_round_bf16(v);
        }
}

/* rows is a constant at each call, so that acc lives in registers where there are enough. */
CPU_INLINE void block_rows(int rows, const cpu_block *b, const tv_bf16 *w, const float *in, float *out) {
    float acc[4][CPU_PANEL];
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < CPU_PANEL; n++) acc[m][n] = in ? in[m * CPU_PANEL + n] : 0;
    for (int k = 0; k < b->k; k += 2) {
        float even[CPU_PANEL], odd[CPU_PANEL];
        for (int n = 0; n < CPU_PANEL; n++) {
            even[n] = tv_f32_from_bf16(w[(size_t)k * CPU_PANEL + 2 * n]);
            odd[n] = tv_f32_from_bf16(w[(size_t)k * CPU_PANEL + 2 * n + 1]);
        }
        const float *x = b->x + (size_t)k * rows;
        for (int m = 0; m < rows; m++)
            for (int n = 0; n < CPU_PANEL; n++) acc[m][n] = fmaf(x[m], even[n], acc[m][n]);
        for (int m = 0; m < rows; m++)
            for (int n = 0; n < CPU_PANEL; n++) acc[m][n] = fmaf(x[rows + m], odd[n], acc[m][n]);
    }
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < CPU_PANEL; n++) {
            float *o = out + m * CPU_PANEL + n;
            *o = b->add ? *o + acc[m][n] : acc[m][n];
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

const cpu_isa cpu_isa_scalar = {
    .name = "scalar",
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
