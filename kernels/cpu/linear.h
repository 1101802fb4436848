/* The matrix product of the CPU device: packed layouts and the table of kernels of one instruction set.
 *
 * W [N,K] is kept as panels of 16 columns: [ceil(N/16)][Kp/2][16][2] bf16, Kp = K rounded up to even, so that 64 bytes
 * hold a pair of k for 16 outputs: one shift and one mask expand them to f32, whatever the vector width (the layout is
 * also what VDPBF16PS and an AMX tile read). Padding is zero. X rows are packed in blocks of `rows`: expanded to f32 as
 * [Kp][rows], or as pairs of bf16 (linear_bf16.h).
 *
 * NUMERICS: every output is, per slice of K, one sum over ascending k (the zero padding of an odd K included); slices
 * are added in ascending order. How a slice is summed has three names:
 *   fma    one chain acc = fmaf(x, w, acc) from +0. Every machine has it, and `auto` picks nothing else.
 *   bf16   VDPBF16PS: the same chain, but the odd k of a pair goes first, and values below 2^-126 count as 0.
 *   tiles  TDPBF16PS: for every 32 k, a chain of the even and one of the odd k, each from +0; their sum is added to
 * what the slice has so far. Values below 2^-126 count as 0. Each kernel computes exactly its numerics, so bits do not
 * depend on the instruction set, on M, on blocking or on threads (payloads of NaN excepted). */
#ifndef TV_CPU_LINEAR_H
#define TV_CPU_LINEAR_H

#include "kernels/cpu/cpu.h"

enum {
    CPU_PANEL = 16,      /* columns of a weight panel */
    CPU_MAX_BLOCK = 16,  /* most rows any kernel takes */
    CPU_MAX_PANELS = 4,  /* most panels any kernel takes */
    CPU_CHUNK_ROWS = 96, /* rows whose results are kept in a tile buffer while a panel passes */
    CPU_PACK_ROWS = 512  /* rows of x packed at a time; bounds the scratch */
};

/* For kernels whose sizes are constants at each call, so that sums live in registers. */
#define CPU_INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define CPU_UNROLL _Pragma("unroll")
#else
#define CPU_UNROLL _Pragma("GCC unroll 8")
#endif

/* What a result is stored as. */
typedef enum { CPU_OUT_BF16, CPU_OUT_F32, CPU_OUT_F32_ROUNDED } cpu_out;

/* One run over k: tile[p][m][n] = (sum so far) chained with x[k][m] * w[p][k][n] for k = 0 .. k-1. */
typedef struct {
    const float *x;       /* packed, as the kernels' pack left it */
    const tv_bf16 *w;     /* [k/2,16,2] bf16 of the first panel, 64-byte aligned */
    size_t w_stride;      /* elements from panel to panel */
    int k;                /* even */
    const float *in;      /* [panels] tiles [rows,16] f32 to start the chains from, or NULL: +0 */
    float *out;           /* [panels] tiles [rows,16] f32; may be in */
    size_t tile_stride;   /* elements from one panel's tile to the next's, for in and out */
    int add;              /* 1: out += chain, 0: out = chain */
    const char *prefetch; /* address to prefetch at the first pair of k (per panel: + w_stride elements) */
    size_t prefetch_step; /* bytes it advances per pair of k */
} cpu_block;

struct cpu_isa {
    const char *name;
    const char *numerics;     /* "fma", "bf16" or "tiles" */
    const cpu_isa *reference; /* portable kernels of the same numerics */
    cpu_level level;
    int pair;                             /* floats of packed x that hold one pair of k of one row: 2, or 1 as bf16 */
    int rows;                             /* most rows of a block, <= CPU_MAX_BLOCK */
    int panels;                           /* panels of a block when there are several row blocks */
    int panels_of_4;                      /* the same where each of them has 4 rows; 0: no other number */
    int stream_panels[CPU_MAX_BLOCK + 1]; /* panels for a lone block of so many rows; 0: treat as several blocks */
    int piece;                            /* elements of k that a panel is passed over before the next block of rows */
    /* x [rows,K] bf16 with row stride ldx to out, [Kp/2 * pair, rows] floats, zero padded. */
    void (*pack)(const tv_bf16 *x, size_t ldx, int rows, int K, float *out);
    void (*block)(int rows, int panels, const cpu_block *b);
    /* tile [rows,16] f32 plus bias [16] bf16 (or NULL), rounded as asked, to y [rows,columns] with row stride ldy
     * elements. */
    void (*finish)(const float *tile, int rows, int columns, const tv_bf16 *bias, void *y, size_t ldy, cpu_out out);
};

/* Each exists where its architecture does. */
extern const cpu_isa cpu_isa_scalar, cpu_isa_avx2, cpu_isa_avx512, cpu_isa_neon;
extern const cpu_isa cpu_isa_scalar_bf16, cpu_isa_scalar_tiles, cpu_isa_avx512bf16, cpu_isa_amx;

/* The portable pack and finish, for tails of the others. */
void cpu_pack_scalar(const tv_bf16 *x, size_t ldx, int rows, int K, float *out);
void cpu_finish_scalar(const float *tile, int rows, int columns, const tv_bf16 *bias, void *y, size_t ldy, cpu_out out);
#if defined(__x86_64__)
void cpu_pack_avx2(const tv_bf16 *x, size_t ldx, int rows, int K, float *out);
void cpu_finish_avx2(const float *tile, int rows, int columns, const tv_bf16 *bias, void *y, size_t ldy, cpu_out out);
#endif

/* Bytes of the packed panels of an N x K matrix, without its bias. */
static inline size_t cpu_panel_bytes(int N, int K) {
    return ((size_t)N + CPU_PANEL - 1) / CPU_PANEL * (((size_t)K + 1) / 2) * CPU_PANEL * 2 * sizeof(tv_bf16);
}
/* Bytes of scratch a product of M rows needs. */
static inline size_t cpu_linear_scratch_bytes(int M, int K) {
    size_t rows = M < CPU_PACK_ROWS ? (size_t)M : CPU_PACK_ROWS;
    return rows * (((size_t)K + 1) / 2 * 2) * sizeof(float);
}
/* Packs W [N,K] bf16 given as N row pointers (any alignment) into panels. */
void cpu_pack_panels(cpu_pool *pool, int threads, const unsigned char *const *rows, int N, int K, tv_bf16 *panels);
/* The checked product on any kernels; scratch: cpu_linear_scratch_bytes(M, K), 64-byte aligned. */
void cpu_linear_run(const cpu_isa *isa, cpu_pool *pool, int threads, float *scratch, const tv_linear_args *a);
/* Compares isa with its reference bit by bit on small products; fails with TV_EUNSUPPORTED where they differ. */
TV_NODISCARD tv_status cpu_isa_check(const cpu_isa *isa, tv_err *err);

#endif
