/* Matrix kernels for AVX-512F: blocks of at most 8 rows by 32 columns. With TV_SIMDE the same source is built for a
 * machine without those instructions (tests only), under another name. */
#ifdef TV_SIMDE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#else
#include <immintrin.h>
#endif

#include "kernels/cpu/linear.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

INLINE void block_of(const int rows, const int panels, const cpu_block *b) {
    __m512 acc[8][CPU_MAX_PANELS];
    const float *x = b->x;
    const tv_bf16 *w = b->w;
    const char *prefetch = b->prefetch;
    const size_t w_stride = b->w_stride, prefetch_step = b->prefetch_step;
    const __m512i mask = _mm512_set1_epi32((int)0xffff0000u);
    UNROLL for (int m = 0; m < rows; m++) UNROLL for (int p = 0; p < panels; p++) acc[m][p] =
        b->in ? _mm512_load_ps(b->in + p * b->tile_stride + m * CPU_PANEL) : _mm512_setzero_ps();
    for (int k = 0; k < b->k; k += 2) {
        __m512 even[CPU_MAX_PANELS], odd[CPU_MAX_PANELS];
        UNROLL for (int p = 0; p < panels; p++) {
            _mm_prefetch(prefetch + p * w_stride * sizeof(tv_bf16), _MM_HINT_T0);
            __m512i pair = _mm512_load_si512((const void *)(w + p * w_stride));
            even[p] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
            odd[p] = _mm512_castsi512_ps(_mm512_and_si512(pair, mask));
        }
        UNROLL for (int m = 0; m < rows; m++) {
            __m512 v = _mm512_set1_ps(x[m]);
            UNROLL for (int p = 0; p < panels; p++) acc[m][p] = _mm512_fmadd_ps(v, even[p], acc[m][p]);
        }
        UNROLL for (int m = 0; m < rows; m++) {
            __m512 v = _mm512_set1_ps(x[rows + m]);
            UNROLL for (int p = 0; p < panels; p++) acc[m][p] = _mm512_fmadd_ps(v, odd[p], acc[m][p]);
        }
        prefetch += prefetch_step;
        x += 2 * rows;
        w += 2 * CPU_PANEL;
    }
    UNROLL for (int m = 0; m < rows; m++) UNROLL for (int p = 0; p < panels; p++) {
        float *out = b->out + p * b->tile_stride + m * CPU_PANEL;
        _mm512_store_ps(out, b->add ? _mm512_add_ps(_mm512_load_ps(out), acc[m][p]) : acc[m][p]);
    }
}

#define DEFINE_BLOCK(rows, panels)                                                                                     \
    static void block_##rows##_##panels(const cpu_block *b) { block_of(rows, panels, b); }
DEFINE_BLOCK(1, 1)
DEFINE_BLOCK(2, 1)
DEFINE_BLOCK(3, 1)
DEFINE_BLOCK(4, 1)
DEFINE_BLOCK(5, 1)
DEFINE_BLOCK(6, 1)
DEFINE_BLOCK(7, 1)
DEFINE_BLOCK(8, 1)
DEFINE_BLOCK(1, 2)
DEFINE_BLOCK(2, 2)
DEFINE_BLOCK(3, 2)
DEFINE_BLOCK(4, 2)
DEFINE_BLOCK(5, 2)
DEFINE_BLOCK(6, 2)
DEFINE_BLOCK(7, 2)
DEFINE_BLOCK(8, 2)
DEFINE_BLOCK(1, 4)
DEFINE_BLOCK(2, 4)
DEFINE_BLOCK(3, 4)
DEFINE_BLOCK(4, 4)

static void block(int rows, int panels, const cpu_block *b) {
    static void (*const one[9])(const cpu_block *) = {NULL,      block_1_1, block_2_1, block_3_1, block_4_1,
                                                      block_5_1, block_6_1, block_7_1, block_8_1};
    static void (*const two[9])(const cpu_block *) = {NULL,      block_1_2, block_2_2, block_3_2, block_4_2,
                                                      block_5_2, block_6_2, block_7_2, block_8_2};
    static void (*const four[5])(const cpu_block *) = {NULL, block_1_4, block_2_4, block_3_4, block_4_4};
    (panels == 1 ? one : panels == 2 ? two : four)[rows](b);
}

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
    .rows = 8,
    .panels = 2,
    .stream_panels = {0, 4, 4, 4, 4},
    .piece = 512,
    .pack = cpu_pack_avx2,
    .block = block,
    .finish = cpu_finish_avx2,
};
