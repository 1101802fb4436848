/* Matrix kernels for AVX2 with FMA. Two multiply-add units of 4 cycles latency want 8 chains at the least, and lose
 * cycles to the expansion of weights unless there are more: 6 rows by one panel and 4 rows by a panel and a half have
 * 12, which takes all 16 registers. */
#include <immintrin.h>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/vec.h"

/* acc += b * e, fused. The asm pins each accumulator to its register: left to itself GCC 12 rotates them through the
 * loop and spills one, which costs a third of the speed. */
#define FMA(acc, b, e) __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(b), "x"(e))

/* Even and odd k of eight columns, expanded to f32. */
CPU_INLINE __m256 even(const tv_bf16 *w) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_load_si256((const __m256i *)w), 16));
}
CPU_INLINE __m256 odd(const tv_bf16 *w, __m256 mask) { return _mm256_and_ps(mask, _mm256_load_ps((const float *)w)); }

CPU_INLINE __m256 odd_mask(void) {
    __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u));
    __asm__("" : "+x"(mask)); /* else it is reloaded from memory at each use */
    return mask;
}

CPU_INLINE void block_of(const int rows, const int panels, const cpu_block *b) {
    __m256 acc[5][2 * CPU_MAX_PANELS];
    const float *x = b->x;
    const tv_bf16 *w = b->w;
    const char *prefetch = b->prefetch;
    const size_t w_stride = b->w_stride, prefetch_step = b->prefetch_step;
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int j = 0; j < 2 * panels; j++) acc[m][j] =
        b->in ? _mm256_load_ps(b->in + j / 2 * b->tile_stride + m * CPU_PANEL + j % 2 * 8) : _mm256_setzero_ps();
    __m256 mask = odd_mask();
    for (int k = 0; k < b->k; k += 2) {
        CPU_UNROLL for (int p = 0; p < panels; p++) {
            _mm_prefetch(prefetch + p * w_stride * sizeof(tv_bf16), _MM_HINT_T0);
            __m256 e0 = even(w + p * w_stride), e1 = even(w + p * w_stride + 16);
            CPU_UNROLL for (int m = 0; m < rows; m++) {
                __m256 v = _mm256_broadcast_ss(x + m);
                FMA(acc[m][2 * p], v, e0);
                FMA(acc[m][2 * p + 1], v, e1);
            }
        }
        CPU_UNROLL for (int p = 0; p < panels; p++) {
            __m256 e0 = odd(w + p * w_stride, mask), e1 = odd(w + p * w_stride + 16, mask);
            CPU_UNROLL for (int m = 0; m < rows; m++) {
                __m256 v = _mm256_broadcast_ss(x + rows + m);
                FMA(acc[m][2 * p], v, e0);
                FMA(acc[m][2 * p + 1], v, e1);
            }
        }
        prefetch += prefetch_step;
        x += 2 * rows;
        w += 2 * CPU_PANEL;
    }
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int j = 0; j < 2 * panels; j++) {
        float *out = b->out + j / 2 * b->tile_stride + m * CPU_PANEL + j % 2 * 8;
        _mm256_store_ps(out, b->add ? _mm256_add_ps(_mm256_load_ps(out), acc[m][j]) : acc[m][j]);
    }
}

#define DEFINE_BLOCK(rows, panels)                                                                                     \
    static void block_##rows##_##panels(const cpu_block *b) { block_of(rows, panels, b); }
DEFINE_BLOCK(1, 1)
DEFINE_BLOCK(2, 1)
DEFINE_BLOCK(3, 1)
DEFINE_BLOCK(4, 1)
DEFINE_BLOCK(5, 1)
DEFINE_BLOCK(1, 4)
DEFINE_BLOCK(2, 2)
DEFINE_BLOCK(3, 2)

/* Blocks of 12 sums. With the weights and a broadcast x they fill the registers, and left to itself GCC 12 spills in
 * the loop, to 70% of the peak. So one pair of k is written here with its registers: ymm12 to 14 the weights of even k,
 * then of odd k, ymm15 a broadcast x. */

/* Where a tile has row m of half panel j. */
CPU_INLINE size_t place(const cpu_block *b, int m, int j) {
    return (size_t)(j / 2) * b->tile_stride + (size_t)(m * CPU_PANEL + j % 2 * 8);
}
/* acc [rows,halves], 12 sums: half panels first .. first+halves-1. */
CPU_INLINE void load12(const cpu_block *b, const int rows, const int halves, const int first, __m256 acc[12]) {
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int j = 0; j < halves; j++) acc[m * halves + j] =
        b->in ? _mm256_load_ps(b->in + place(b, m, first + j)) : _mm256_setzero_ps();
}
CPU_INLINE void store12(const cpu_block *b, const int rows, const int halves, const int first, const __m256 acc[12]) {
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int j = 0; j < halves; j++) {
        float *out = b->out + place(b, m, first + j);
        const __m256 sum = acc[m * halves + j];
        _mm256_store_ps(out, b->add ? _mm256_add_ps(_mm256_load_ps(out), sum) : sum);
    }
}

/* Operands 0 to 11; x is operand 12. */
#define ACC12(a)                                                                                                       \
    "+x"(a[0]), "+x"(a[1]), "+x"(a[2]), "+x"(a[3]), "+x"(a[4]), "+x"(a[5]), "+x"(a[6]), "+x"(a[7]), "+x"(a[8]),        \
        "+x"(a[9]), "+x"(a[10]), "+x"(a[11])
#define X(byte) "vbroadcastss " #byte "(%12), %%ymm15\n"
#define SUM(i, w) "vfmadd231ps %%ymm" #w ", %%ymm15, %" #i "\n"
#define SHIFT(w) "vpslld $16, %%ymm" #w ", %%ymm" #w "\n"

static void block_6_1(const cpu_block *b) {
    __m256 acc[12], mask = odd_mask();
    load12(b, 6, 2, 0, acc);
    const int n = b->k;
    const float *x = b->x;
    const tv_bf16 *w = b->w;
    const char *prefetch = b->prefetch;
    const size_t prefetch_step = b->prefetch_step;
    for (int k = 0; k < n; k += 2) {
        _mm_prefetch(prefetch, _MM_HINT_T0);
/* clang-format off */
#define ROW(byte, i, j) X(byte) SUM(i, 12) SUM(j, 13)
        __asm__ volatile("vmovaps (%13), %%ymm12\n"
                         "vmovaps 32(%13), %%ymm13\n"
                         SHIFT(12) SHIFT(13)
                         ROW(0, 0, 1) ROW(4, 2, 3) ROW(8, 4, 5) ROW(12, 6, 7) ROW(16, 8, 9) ROW(20, 10, 11)
                         "vandps (%13), %14, %%ymm12\n"
                         "vandps 32(%13), %14, %%ymm13\n"
                         ROW(24, 0, 1) ROW(28, 2, 3) ROW(32, 4, 5) ROW(36, 6, 7) ROW(40, 8, 9) ROW(44, 10, 11)
                         : ACC12(acc)
                         : "r"(x), "r"(w), "x"(mask)
                         : "xmm12", "xmm13", "xmm15", "memory");
#undef ROW
        /* clang-format on */
        prefetch += prefetch_step;
        x += 2 * 6;
        w += 2 * CPU_PANEL;
    }
    store12(b, 6, 2, 0, acc);
}

/* Half panels first .. first+2 of three panels. */
CPU_INLINE void block_4_half3(const cpu_block *b, const int first) {
    __m256 acc[12];
    const __m256 mask = odd_mask();
    load12(b, 4, 3, first, acc);
    const int n = b->k;
    const float *x = b->x;
    const tv_bf16 *w[3];
    CPU_UNROLL for (int i = 0; i < 3; i++) w[i] = b->w + (size_t)((first + i) / 2) * b->w_stride + (first + i) % 2 * 16;
    const char *prefetch = b->prefetch + (first ? 2 * b->w_stride * sizeof(tv_bf16) : 0);
    const size_t prefetch_step = b->prefetch_step, prefetch_stride = first ? 0 : b->w_stride * sizeof(tv_bf16);
    for (int k = 0; k < n; k += 2) {
        _mm_prefetch(prefetch, _MM_HINT_T0);
        if (!first) _mm_prefetch(prefetch + prefetch_stride, _MM_HINT_T0);
/* clang-format off */
#define ROW(byte, i, j, l) X(byte) SUM(i, 12) SUM(j, 13) SUM(l, 14)
        __asm__ volatile("vmovaps (%13), %%ymm12\n"
                         "vmovaps (%14), %%ymm13\n"
                         "vmovaps (%15), %%ymm14\n"
                         SHIFT(12) SHIFT(13) SHIFT(14)
                         ROW(0, 0, 1, 2) ROW(4, 3, 4, 5) ROW(8, 6, 7, 8) ROW(12, 9, 10, 11)
                         "vmovaps %16, %%ymm15\n"
                         "vandps (%13), %%ymm15, %%ymm12\n"
                         "vandps (%14), %%ymm15, %%ymm13\n"
                         "vandps (%15), %%ymm15, %%ymm14\n"
                         ROW(16, 0, 1, 2) ROW(20, 3, 4, 5) ROW(24, 6, 7, 8) ROW(28, 9, 10, 11)
                         : ACC12(acc)
                         : "r"(x), "r"(w[0]), "r"(w[1]), "r"(w[2]), "m"(mask)
                         : "xmm12", "xmm13", "xmm14", "xmm15", "memory");
#undef ROW
        /* clang-format on */
        prefetch += prefetch_step;
        x += 2 * 4;
        CPU_UNROLL for (int i = 0; i < 3; i++) w[i] += 2 * CPU_PANEL;
    }
    store12(b, 4, 3, first, acc);
}
static void block_4_3(const cpu_block *b) {
    block_4_half3(b, 0);
    block_4_half3(b, 3);
}

static void block(int rows, int panels, const cpu_block *b) {
    static void (*const one[7])(const cpu_block *) = {NULL,      block_1_1, block_2_1, block_3_1,
                                                      block_4_1, block_5_1, block_6_1};
    static void (*const more[5])(const cpu_block *) = {NULL, block_1_4, block_2_2, block_3_2, block_4_3};
    (panels == 1 ? one : more)[rows](b);
}

void cpu_pack_avx2(const tv_bf16 *x, size_t ldx, int rows, int K, float *out) {
    int k = 0;
    if (rows == 1) {
        for (; k + 8 <= K; k += 8) _mm256_storeu_ps(out + k, v8_load_bf16(x + k));
    } else {
        /* Transposes 8 x 8. A stored vector runs up to 7 floats past its k, into places that later stores of this block
         * fill: the last 8 or more k are left to the scalar tail. */
        for (; k + 16 <= K; k += 8) {
            v8 r[8];
            for (int m = 0; m < 8; m++) r[m] = m < rows ? v8_load_bf16(x + (size_t)m * ldx + k) : v8_zero();
            v8_transpose(r);
            float *o = out + (size_t)k * rows;
            for (int i = 0; i < 8; i++) v8_store(o + i * rows, r[i]);
        }
    }
    cpu_pack_scalar(x + k, ldx, rows, K - k, out + (size_t)k * rows);
}

/* tv_bf16_from_f32 on eight values, each in the low half of its lane. */
CPU_INLINE __m256i round8(__m256 v) {
    __m256i u = _mm256_castps_si256(v), top = _mm256_srli_epi32(u, 16);
    __m256i even_bias = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(top, _mm256_set1_epi32(1)));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, even_bias), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, _mm256_or_si256(top, _mm256_set1_epi32(0x40)), nan);
}

void cpu_finish_avx2(const float *tile, int rows, int columns, const tv_bf16 *bias, void *y, size_t ldy, cpu_out out) {
    if (columns < CPU_PANEL) {
        cpu_finish_scalar(tile, rows, columns, bias, y, ldy, out);
        return;
    }
    __m256 b0 = _mm256_setzero_ps(), b1 = b0;
    if (bias) b0 = v8_load_bf16(bias), b1 = v8_load_bf16(bias + 8);
    for (int m = 0; m < rows; m++) {
        __m256 v0 = _mm256_load_ps(tile + m * CPU_PANEL), v1 = _mm256_load_ps(tile + m * CPU_PANEL + 8);
        if (bias) v0 = _mm256_add_ps(v0, b0), v1 = _mm256_add_ps(v1, b1); /* adding 0 would turn -0 into +0 */
        if (out == CPU_OUT_BF16) {
            __m256i packed = _mm256_packus_epi32(round8(v0), round8(v1));
            _mm256_storeu_si256((__m256i *)((tv_bf16 *)y + m * ldy), _mm256_permute4x64_epi64(packed, 0xd8));
            continue;
        }
        if (out == CPU_OUT_F32_ROUNDED) {
            v0 = _mm256_castsi256_ps(_mm256_slli_epi32(round8(v0), 16));
            v1 = _mm256_castsi256_ps(_mm256_slli_epi32(round8(v1), 16));
        }
        _mm256_storeu_ps((float *)y + m * ldy, v0);
        _mm256_storeu_ps((float *)y + m * ldy + 8, v1);
    }
}

const cpu_isa cpu_isa_avx2 = {
    .name = "avx2",
    .numerics = "fma",
    .reference = &cpu_isa_scalar,
    .level = CPU_AVX2,
    .pair = 2,
    .rows = 6,
    .panels = 1,
    .panels_of_4 = 3,
    .stream_panels = {0, 4, 2, 2},
    .piece = 1024,
    .pack = cpu_pack_avx2,
    .block = block,
    .finish = cpu_finish_avx2,
};
