/* Matrix kernels for AVX2 with FMA: blocks of at most 5 rows by 16 columns, or fewer rows by 2 or 4 panels. A sixth row
 * would need all 16 registers; GCC 12 then spills in the loop (70% of the peak, where 5 rows reach 90%). */
#include <immintrin.h>

#include "kernels/cpu/linear.h"

/* acc += b * e, fused. The asm pins each accumulator to its register: left to itself GCC 12 rotates them through the
 * loop and spills one, which costs a third of the speed. */
#define FMA(acc, b, e) __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(b), "x"(e))

/* Even and odd k of eight columns, expanded to f32. */
CPU_INLINE __m256 even(const tv_bf16 *w) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_load_si256((const __m256i *)w), 16));
}
CPU_INLINE __m256 odd(const tv_bf16 *w, __m256 mask) { return _mm256_and_ps(mask, _mm256_load_ps((const float *)w)); }

CPU_INLINE void block_of(const int rows, const int panels, const cpu_block *b) {
    __m256 acc[5][2 * CPU_MAX_PANELS];
    const float *x = b->x;
    const tv_bf16 *w = b->w;
    const char *prefetch = b->prefetch;
    const size_t w_stride = b->w_stride, prefetch_step = b->prefetch_step;
    CPU_UNROLL for (int m = 0; m < rows; m++) CPU_UNROLL for (int j = 0; j < 2 * panels; j++) acc[m][j] =
        b->in ? _mm256_load_ps(b->in + j / 2 * b->tile_stride + m * CPU_PANEL + j % 2 * 8) : _mm256_setzero_ps();
    __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u));
    __asm__("" : "+x"(mask)); /* else it is reloaded from memory at each use */
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

static void block(int rows, int panels, const cpu_block *b) {
    static void (*const one[6])(const cpu_block *) = {NULL, block_1_1, block_2_1, block_3_1, block_4_1, block_5_1};
    if (panels == 1)
        one[rows](b);
    else if (panels == 4)
        block_1_4(b);
    else if (rows == 2)
        block_2_2(b);
    else
        block_3_2(b);
}

CPU_INLINE __m256 expand(const tv_bf16 *x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16));
}

void cpu_pack_avx2(const tv_bf16 *x, size_t ldx, int rows, int K, float *out) {
    int k = 0;
    if (rows == 1) {
        for (; k + 8 <= K; k += 8) _mm256_storeu_ps(out + k, expand(x + k));
    } else {
        /* Transposes 8 x 8. A stored vector runs up to 7 floats past its k, into places that later stores of this block
         * fill: the last 8 or more k are left to the scalar tail. */
        for (; k + 16 <= K; k += 8) {
            __m256 r[8], s[8], t[8];
            for (int m = 0; m < 8; m++) r[m] = m < rows ? expand(x + (size_t)m * ldx + k) : _mm256_setzero_ps();
            for (int i = 0; i < 8; i += 2) {
                s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
                s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
            }
            for (int i = 0; i < 8; i += 4) {
                t[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
                t[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
                t[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
                t[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
            }
            float *o = out + (size_t)k * rows;
            for (int i = 0; i < 4; i++) _mm256_storeu_ps(o + i * rows, _mm256_permute2f128_ps(t[i], t[i + 4], 0x20));
            for (int i = 0; i < 4; i++)
                _mm256_storeu_ps(o + (i + 4) * rows, _mm256_permute2f128_ps(t[i], t[i + 4], 0x31));
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
    if (bias) b0 = expand(bias), b1 = expand(bias + 8);
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
    .rows = 5,
    .panels = 1,
    .stream_panels = {0, 4, 2, 2},
    .piece = 1024,
    .pack = cpu_pack_avx2,
    .block = block,
    .finish = cpu_finish_avx2,
};
