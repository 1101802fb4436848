/* Matrix kernels for AVX512-BF16: VDPBF16PS on blocks of at most 8 rows by 32 columns. With TV_SIMDE the same source is
 * built for a machine without those instructions (tests only), under another name. */
#ifdef TV_SIMDE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include "tests/vdpbf16.h"
#else
#include <immintrin.h>
#define DOT(sum, x, w) _mm512_dpbf16_ps(sum, (__m512bh)(x), (__m512bh)(w))
#endif

#include "kernels/cpu/linear_bf16.h"

enum { BLOCK_ROWS = 8 };

CPU_INLINE void block_of(const int rows, const int panels, const cpu_block *b) {
    __m512 acc[BLOCK_ROWS][CPU_MAX_PANELS];
    const tv_bf16 *x = (const tv_bf16 *)b->x, *w = b->w;
    const char *prefetch = b->prefetch;
    const size_t w_stride = b->w_stride, prefetch_step = b->prefetch_step;
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int p = 0; p < panels; p++) acc[m][p] =
        b->in ? _mm512_load_ps(b->in + p * b->tile_stride + m * CPU_PANEL) : _mm512_setzero_ps();
    for (int k = 0; k < b->k; k += CPU_TILE_K) {
        const int width = b->k - k < CPU_TILE_K ? b->k - k : CPU_TILE_K;
        for (int j = 0; j < width; j += 2) {
            __m512i pair[CPU_MAX_PANELS];
            CPU_UNROLL for (int p = 0; p < panels; p++) {
                _mm_prefetch(prefetch + p * w_stride * sizeof(tv_bf16), _MM_HINT_T0);
                pair[p] = _mm512_load_si512((const void *)(w + p * w_stride));
            }
            CPU_UNROLL for (int m = 0; m < rows; m++) {
                __m512i v = _mm512_set1_epi32((int)cpu_pair(x + m * width + j));
                CPU_UNROLL for (int p = 0; p < panels; p++) acc[m][p] = DOT(acc[m][p], v, pair[p]);
            }
            prefetch += prefetch_step;
            w += 2 * CPU_PANEL;
        }
        x += (size_t)rows * width;
    }
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int p = 0; p < panels; p++) {
        float *out = b->out + p * b->tile_stride + m * CPU_PANEL;
        _mm512_store_ps(out, b->add ? _mm512_add_ps(_mm512_load_ps(out), acc[m][p]) : acc[m][p]);
    }
}

#include "kernels/cpu/linear_blocks512.h"

#ifdef TV_SIMDE
extern const cpu_isa cpu_isa_avx512bf16_emulated;
const cpu_isa cpu_isa_avx512bf16_emulated = {
    .name = "avx512bf16 emulated",
#else
const cpu_isa cpu_isa_avx512bf16 = {
    .name = "avx512bf16",
#endif
    .numerics = "bf16",
    .reference = &cpu_isa_scalar_bf16,
    .level = CPU_AVX512,
    .pair = 1,
    .rows = BLOCK_ROWS,
    .panels = 2,
    .stream_panels = {0, 4, 4, 4, 4},
    .piece = 512,
    .pack = cpu_pack_bf16,
    .block = block,
    .finish = cpu_finish_avx2,
};
