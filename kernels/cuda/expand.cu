/* Packed weights become bf16 when a matrix is loaded: out[j,k] = r(q[j,k] * scale[j, k / group]), q int8, or int4 with
 * two elements a byte, the even one low (tv_packed_rows).
 *
 * grid (runs of 8 elements of a row / 128, rows), block 128; a thread makes 8 elements of a row, and of every
 * gridDim.y-th row behind it: one load of 8 or 4 bytes and one store of 16 where rows keep their alignment and groups
 * are whole runs, else element by element.
 * NUMERICS: the product of an int8 and a bf16 is exact in f32, so it is rounded once: models/quantize.c's bits. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/numerics.h"

enum { EXPAND_THREADS = 128, EXPAND_RUN = 8, EXPAND_MAX_GRID_Y = 65535 };

/* Elements 2 pair and 2 pair + 1 of the eight in q. */
template <int BITS> __device__ __forceinline__ float2 expand_two(const uint32_t (&q)[2], int pair) {
    if (BITS == 8) return int8_pair(q[pair / 2] >> pair % 2 * 16);
    const uint32_t x = q[0] >> pair * 8; /* beside the exponent of 2^23: 2^23 + 8 + value */
    return make_float2(__uint_as_float(((x & 15) ^ 8) | 0x4b000000) - 8388616.0f,
                       __uint_as_float(((x >> 4 & 15) ^ 8) | 0x4b000000) - 8388616.0f);
}

template <int BITS, bool WIDE>
__global__ void __launch_bounds__(EXPAND_THREADS)
    expand_kernel(const uint8_t *__restrict__ q, const uint16_t *__restrict__ scale, uint16_t *__restrict__ out, int N,
                  int K, int group) {
    const int first = ((int)blockIdx.x * EXPAND_THREADS + (int)threadIdx.x) * EXPAND_RUN,
              n = min(K - first, EXPAND_RUN);
    const size_t row_bytes = BITS == 8 ? (size_t)K : ((size_t)K + 1) / 2, groups = ((size_t)K + group - 1) / group;
    for (int j = (int)blockIdx.y; j < N && n > 0; j += (int)gridDim.y) {
        const uint8_t *from = q + j * row_bytes + first * BITS / 8;
        const uint16_t *scales = scale + j * groups;
        uint16_t *to = out + (size_t)j * K + first;
        if (WIDE) {
            const uint2 both = BITS == 8 ? *(const uint2 *)from : make_uint2(*(const uint32_t *)from, 0);
            const uint32_t x[2] = {both.x, both.y};
            const float s = bf16_value(scales[first / group]);
            uint32_t y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 v = expand_two<BITS>(x, i);
                y[i] = bf16_pack(v.x * s, v.y * s);
            }
            *(uint4 *)to = make_uint4(y[0], y[1], y[2], y[3]);
        } else {
            for (int i = 0; i < n; i++) {
                const uint32_t byte = from[i * BITS / 8];
                const uint32_t x[2] = {BITS == 8 || i % 2 == 0 ? byte : byte >> 4, 0};
                to[i] = bf16_bits(expand_two<BITS>(x, 0).x * bf16_value(scales[(first + i) / group]));
            }
        }
    }
}

template <int BITS> static void launch(tv_dev *dev, const tv_packed_rows *rows, int N, int K, tv_bf16 *out) {
    const int wide = K % EXPAND_RUN == 0 && (rows->group % EXPAND_RUN == 0 || rows->group >= K) &&
                     ((uintptr_t)rows->q | (uintptr_t)out) % 16 == 0;
    const unsigned runs = (unsigned)((K + EXPAND_RUN - 1) / EXPAND_RUN);
    const dim3 grid((runs + EXPAND_THREADS - 1) / EXPAND_THREADS,
                    (unsigned)(N < EXPAND_MAX_GRID_Y ? N : EXPAND_MAX_GRID_Y));
    if (wide)
        SIMT_LAUNCH((expand_kernel<BITS, true>), grid, EXPAND_THREADS, 0, (cudaStream_t)dev->stream, rows->q,
                    rows->scale, out, N, K, rows->group);
    else
        SIMT_LAUNCH((expand_kernel<BITS, false>), grid, EXPAND_THREADS, 0, (cudaStream_t)dev->stream, rows->q,
                    rows->scale, out, N, K, rows->group);
}

extern "C" tv_status cuda_expand(tv_dev *dev, const tv_packed_rows *rows, int N, int K, tv_bf16 *out, tv_err *err) {
    if (rows->bits == 8)
        launch<8>(dev, rows, N, K, out);
    else
        launch<4>(dev, rows, N, K, out);
    return cuda_rt_launched("expand", err);
}
