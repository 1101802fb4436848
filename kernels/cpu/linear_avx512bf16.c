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

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum { MOST_ROWS = 8 };

INLINE void block_of(const int rows, const int panels, const cpu_block *b) {
    __m512 acc[MOST_ROWS][CPU_MAX_PANELS];
    const tv_bf16 *x = (const tv_bf16 *)b->x, *w = b->w;
    const char *prefetch = b->prefetch;
    const size_t w_stride = b->w_stride, prefetch_step = b->prefetch_step;
    UNROLL for (int m = 0; m < rows; m++) UNROLL for (int p = 0; p < panels; p++) acc[m][p] =
        b->in ? _mm512_load_ps(b->in + p * b->tile_stride + m * CPU_PANEL) : _mm512_setzero_ps();
    for (int k = 0; k < b->k; k += CPU_TILE_K) {
        const int width = b->k - k < CPU_TILE_K ? b->k - k : CPU_TILE_K;
        for (int j = 0; j < width; j += 2) {
            __m512i pair[CPU_MAX_PANELS];
            UNROLL for (int p = 0; p < panels; p++) {
                _mm_prefetch(prefetch + p * w_stride * sizeof(tv_bf16), _MM_HINT_T0);
                pair[p] = _mm512_load_si512((const void *)(w + p * w_stride));
            }
            UNROLL for (int m = 0; m < rows; m++) {
                __m512i v = _mm512_set1_epi32((int)cpu_pair(x + m * width + j));
                UNROLL for (int p = 0; p < panels; p++) acc[m][p] = DOT(acc[m][p], v, pair[p]);
            }
            prefetch += prefetch_step;
            w += 2 * CPU_PANEL;
        }
        x += (size_t)rows * width;
    }
    UNROLL for (int m = 0; m < rows; m++) UNROLL for (int p = 0; p < panels; p++) {
        float *out = b->out + p * b->tile_stride + m * CPU_PANEL;
        _mm512_store_ps(out, b->add ? _mm512_add_ps(_mm512_load_ps(out), acc[m][p]) : acc[m][p]);
    }
}

#define DEFINE_BLOCK(rows)                                                                                             \
    static void block_##rows(int panels, const cpu_block *b) {                                                         \
        if (panels == 1)                                                                                               \
            block_of(rows, 1, b);                                                                                      \
        else if (panels == 2)                                                                                          \
            block_of(rows, 2, b);                                                                                      \
        else                                                                                                           \
            block_of(rows < 4 ? rows : 4, 4, b);                                                                       \
    }
DEFINE_BLOCK(1)
DEFINE_BLOCK(2)
DEFINE_BLOCK(3)
DEFINE_BLOCK(4)
DEFINE_BLOCK(5)
DEFINE_BLOCK(6)
DEFINE_BLOCK(7)
DEFINE_BLOCK(8)

static void block(int rows, int panels, const cpu_block *b) {
    static void (*const of[MOST_ROWS + 1])(int, const cpu_block *) = {NULL,    block_1, block_2, block_3, block_4,
                                                                      block_5, block_6, block_7, block_8};
    TV_ASSERT(rows <= (panels == 4 ? 4 : MOST_ROWS));
    of[rows](panels, b);
}

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
    .rows = MOST_ROWS,
    .panels = 2,
    .stream_panels = {0, 4, 4, 4, 4},
    .piece = 512,
    .pack = cpu_pack_bf16,
    .block = block,
    .finish = cpu_finish_avx2,
};
