/* Matrix kernels for AMX: TDPBF16PS on blocks of at most 16 rows by 64 columns, four sums that share one tile of x. A
 * test that brings the tile instructions in software includes this file after them. */
#include "kernels/cpu/linear_bf16.h"

#ifndef TV_TILES_H
#include <immintrin.h>
#endif

/* The tiles: sums 0 .. 3, x 4, panels of weights 5 .. 7 in turn, so that one loads while another is used. */
enum { ROW = CPU_PANEL * sizeof(float) };
#define X 4 /* the intrinsics put the number's text into an instruction */

/* What LDTILECFG reads. */
typedef struct {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* Shapes for so many rows and pairs of k; clears every tile. */
static void set_shapes(int rows, int pairs) {
    _Alignas(64) tile_shapes s = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        s.rows[t] = (uint8_t)(t <= X ? rows : pairs);
        s.row_bytes[t] = (uint16_t)(t == X ? pairs * 2 * (int)sizeof(tv_bf16) : ROW);
    }
    _tile_loadconfig(&s);
}

/* A panel of sums per tile; the tiles' numbers must be constants. */
#define PANEL(p, weights)                                                                                              \
    do {                                                                                                               \
        _tile_loadd(weights, w + (p)*b->w_stride, ROW);                                                                \
        _tile_dpbf16ps(p, X, weights);                                                                                 \
    } while (0)
#define EACH_PANEL(do_it)                                                                                              \
    do {                                                                                                               \
        do_it(0);                                                                                                      \
        if (panels == 4) {                                                                                             \
            do_it(1);                                                                                                  \
            do_it(2);                                                                                                  \
            do_it(3);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define CLEAR(p) _tile_zero(p)
#define FETCH(p) _tile_loadd(p, in + (p)*in_stride, ROW)
#define STORE(p) _tile_stored(p, out + (p)*out_stride, ROW)

/* n tiles of `pairs` pairs each, from x and w on: in (or +0) plus their products to out. */
static void run_tiles(int rows, int panels, int pairs, int n, const cpu_block *b, const tv_bf16 *x, const tv_bf16 *w,
                      const char *prefetch, const float *in, size_t in_stride, float *out, size_t out_stride) {
    set_shapes(rows, pairs);
    if (in)
        EACH_PANEL(FETCH);
    else
        EACH_PANEL(CLEAR);
    for (int i = 0; i < n; i++) {
        for (int p = 0; p < panels; p++)
            for (int k = 0; k < pairs; k++)
                __builtin_prefetch(prefetch + p * b->w_stride * sizeof(tv_bf16) + (size_t)k * b->prefetch_step);
        _tile_loadd(X, x, (size_t)pairs * 2 * sizeof *x);
        PANEL(0, 5);
        if (panels == 4) {
            PANEL(1, 6);
            PANEL(2, 7);
            PANEL(3, 5);
        }
        x += (size_t)rows * pairs * 2;
        w += (size_t)pairs * 2 * CPU_PANEL;
        prefetch += (size_t)pairs * b->prefetch_step;
    }
    EACH_PANEL(STORE);
}

static void block(int rows, int panels, const cpu_block *b) {
    enum { TILE = CPU_MAX_BLOCK * CPU_PANEL };
    _Alignas(64) float sums[CPU_MAX_PANELS * TILE]; /* between two shapes, or before it is added */
    const tv_bf16 *x = (const tv_bf16 *)b->x;
    const int whole = b->k / CPU_TILE_K, rest = b->k % CPU_TILE_K / 2;
    const float *in = b->in;
    size_t in_stride = b->tile_stride, done = (size_t)whole * CPU_TILE_K;
    float *out = b->add ? sums : b->out;
    const size_t out_stride = b->add ? TILE : b->tile_stride;
    if (whole) {
        run_tiles(rows, panels, CPU_TILE_PAIRS, whole, b, x, b->w, b->prefetch, in, in_stride, rest ? sums : out,
                  rest ? TILE : out_stride);
        in = sums;
        in_stride = TILE;
    }
    if (rest)
        run_tiles(rows, panels, rest, 1, b, x + done * rows, b->w + done * CPU_PANEL,
                  b->prefetch + done / 2 * b->prefetch_step, in, in_stride, out, out_stride);
    _tile_release(); /* else a switch to another thread saves 8 KiB */
    for (int p = 0; b->add && p < panels; p++)
        for (int i = 0; i < rows * CPU_PANEL; i++) b->out[p * b->tile_stride + i] += sums[p * TILE + i];
}

#ifdef TV_TILES_H
static const cpu_isa cpu_isa_amx_emulated = {
    .name = "amx emulated",
    .level = CPU_SCALAR,
    .finish = cpu_finish_scalar,
#else
const cpu_isa cpu_isa_amx = {
    .name = "amx",
    .level = CPU_AVX512,
    .finish = cpu_finish_avx2,
#endif
    .numerics = "tiles",
    .reference = &cpu_isa_scalar_tiles,
    .pair = 1,
    .rows = CPU_MAX_BLOCK,
    .panels = 4,
    .stream_panels = {0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4},
    .piece = 512,
    .pack = cpu_pack_bf16,
    .block = block,
};
