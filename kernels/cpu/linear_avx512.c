/* Matrix kernels for AVX-512F: blocks of at most 8 rows by 32 columns. With TV_SIMDE the same source is built for a
 * machine without those instructions (tests only), under another name. */
#ifdef TV_SIMDE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#else
#include <immintrin.h>
#endif

#include "kernels/cpu/linear.h"

enum { BLOCK_ROWS = 8 };

CPU_INLINE void block_of(const int rows, const int panels, const cpu_block *b) {
    __m512 acc[BLOCK_ROWS][CPU_MAX_PANELS];
    const float *x = b->x;
    const tv_bf16 *w = b->w;
    const char *prefetch = b->prefetch;
    const size_t w_stride = b->w_stride, prefetch_step = b->prefetch_step;
    const __m512i mask = _mm512_set1_epi32((int)0xffff0000u);
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int p = 0; p < panels; p++) acc[m][p] =
        b->in ? _mm512_load_ps(b->in + p * b->tile_stride + m * CPU_PANEL) : _mm512_setzero_ps();
    for (int k = 0; k < b->k; k += 2) {
        __m512 even[CPU_MAX_PANELS], odd[CPU_MAX_PANELS];
        CPU_UNROLL for (int p = 0; p < panels; p++) {
            _mm_prefetch(prefetch + p * w_stride * sizeof(tv_bf16), _MM_HINT_T0);
            __m512i pair = _mm512_load_si512((const void *)(w + p * w_stride));
            even[p] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
            odd[p] = _mm512_castsi512_ps(_mm512_and_si512(pair, mask));
        }
        CPU_UNROLL for (int m = 0; m < rows; m++) {
            __m512 v = _mm512_set1_ps(x[m]);
            CPU_UNROLL for (int p = 0; p < panels; p++) acc[m][p] = _mm512_fmadd_ps(v, even[p], acc[m][p]);
        }
        CPU_UNROLL for (int m = 0; m < rows; m++) {
            __m512 v = _mm512_set1_ps(x[rows + m]);
            CPU_UNROLL for (int p = 0; p < panels; p++) acc[m][p] = _mm512_fmadd_ps(v, odd[p], acc[m][p]);
        }
        prefetch += prefetch_step;
        x += 2 * rows;
        w += 2 * CPU_PANEL;
    }
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int p = 0; p < panels; p++) {
        float *out = b->out + p * b->tile_stride + m * CPU_PANEL;
        _mm512_store_ps(out, b->add ? _mm512_add_ps(_mm512_load_ps(out), acc[m][p]) : acc[m][p]);
    }
}

#include "kernels/cpu/linear_blocks512.h"

#ifdef TV_SIMDE
extern const cpu_isa cpu_isa_avx512_emulated;
const cpu_isa cpu_isa_avx512_emulated = {
    .name = "avx512 emulated",
#else
const cpu_isa cpu_isa_avx512 = {
    .name = "avx512",
#endif
    .numerics = "fma",
    .reference = &cpu_isa_scalar,
    .level = CPU_AVX512,
    .pair = 2,
    .rows = BLOCK_ROWS,
    .panels = 2,
    .stream_panels = {0, 4, 4, 4, 4},
    .piece = 512,
    .pack = cpu_pack_avx2,
    .block = block,
    .finish = cpu_finish_avx2,
};
