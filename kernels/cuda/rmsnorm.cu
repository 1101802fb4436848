/* rmsnorm: out [M,D] = r(r(x / sqrt(mean x^2 + eps)) * weight) over the rows of x, or those named in `rows`; where
 * there is a delta, x = r(x + delta) before.
 *
 * grid (M), block: a thread for 8 values, 32 .. 512 threads. Shared memory: up to CHUNK values of the row (16 KiB).
 * The sum of squares is that of the CPU device: four chains of eight lanes are the 32 lanes of the first warp, which
 * reads the row from shared memory, where all threads have put it. Beside a tree over all threads this costs a chain of
 * D / 32 dependent fmaf, of some 4 cycles each.
 * NUMERICS: bit-equal to the CPU device; a row depends on nothing but itself. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/numerics.h"

enum { RMSNORM_CHUNK = 8192, RMSNORM_THREADS = 512 }; /* the chunk is a multiple of 8 * RMSNORM_THREADS and of 32 */

__device__ __forceinline__ uint32_t add_pair(uint32_t x, uint32_t y) {
    return bf16_pack(bf16_lo(x) + bf16_lo(y), bf16_hi(x) + bf16_hi(y));
}
__device__ __forceinline__ uint32_t norm_pair(uint32_t x, float scale, uint32_t weight) {
    return bf16_pack(bf16_round(bf16_lo(x) * scale) * bf16_lo(weight),
                     bf16_round(bf16_hi(x) * scale) * bf16_hi(weight));
}

/* WIDE: 8 values a thread and turn, by 16-byte loads; else one by one. */
template <bool WIDE>
__global__ void __launch_bounds__(RMSNORM_THREADS)
    rmsnorm_kernel(uint16_t *x, const uint16_t *delta, const uint16_t *__restrict__ weight,
                   const int32_t *__restrict__ rows, uint16_t *out, int D, float eps) {
    SIMT_DYN_SHARED(memory);
    SIMT_SHARED(float, scale, [1]);
    uint16_t *row = (uint16_t *)memory; /* [min(D, CHUNK)] bf16 */
    const size_t at = (size_t)(rows ? rows[blockIdx.x] : (int)blockIdx.x) * (size_t)D;
    const int width = WIDE ? 8 : 1, first = (int)threadIdx.x * width, step = (int)blockDim.x * width;
    x += at, out += (size_t)blockIdx.x * (size_t)D;
    if (delta) delta += at;
    /* The first weights are on their way while the row is summed. */
    uint4 w = make_uint4(0, 0, 0, 0);
    if (WIDE && first < D) w = *(const uint4 *)(weight + first);

    float chain = 0;
    for (int start = 0; start < D; start += RMSNORM_CHUNK) {
        const int n = min(RMSNORM_CHUNK, D - start);
        if (start) __syncthreads(); /* the last chunk has been read */
        for (int i = first; i < n; i += step) {
            if (WIDE) {
                uint4 v = *(const uint4 *)(x + start + i);
                if (delta) {
                    const uint4 d = *(const uint4 *)(delta + start + i);
                    v = make_uint4(add_pair(v.x, d.x), add_pair(v.y, d.y), add_pair(v.z, d.z), add_pair(v.w, d.w));
                    *(uint4 *)(x + start + i) = v;
                }
                *(uint4 *)(row + i) = v;
            } else {
                uint16_t v = x[start + i];
                if (delta) x[start + i] = v = bf16_bits(bf16_value(v) + bf16_value(delta[start + i]));
                row[i] = v;
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            int i = (int)threadIdx.x;
            for (; i + 7 * 32 < n; i += 8 * 32) { /* loads ahead of the chain */
                float v[8];
#pragma unroll
                for (int j = 0; j < 8; j++) v[j] = bf16_value(row[i + 32 * j]);
#pragma unroll
                for (int j = 0; j < 8; j++) chain = fmaf(v[j], v[j], chain);
            }
            for (; i < n; i += 32) chain = fmaf(bf16_value(row[i]), bf16_value(row[i]), chain);
        }
    }
    if (threadIdx.x < 32) {
        const float sum = sum_chains(chain);
        if (threadIdx.x == 0) scale[0] = 1.0f / sqrtf(sum / (float)D + eps);
    }
    __syncthreads();
    const float c = scale[0];
    const uint16_t *from = D <= RMSNORM_CHUNK ? row : x;
    for (int i = first; i < D; i += step) {
        if (WIDE) {
            const uint4 v = *(const uint4 *)(from + i);
            *(uint4 *)(out + i) = make_uint4(norm_pair(v.x, c, w.x), norm_pair(v.y, c, w.y), norm_pair(v.z, c, w.z),
                                             norm_pair(v.w, c, w.w));
            if (i + step < D) w = *(const uint4 *)(weight + i + step);
        } else {
            out[i] = bf16_bits(bf16_round(bf16_value(from[i]) * c) * bf16_value(weight[i]));
        }
    }
}

extern "C" tv_status cuda_rmsnorm(tv_dev *dev, const tv_rmsnorm_args *a, tv_err *err) {
    TV_TRY(tv_check_rmsnorm(a, err));
    const bool wide =
        a->D % 8 == 0 && ((uintptr_t)a->x | (uintptr_t)a->delta | (uintptr_t)a->weight | (uintptr_t)a->out) % 16 == 0;
    const int units = wide ? a->D / 8 : a->D;
    const int threads = units < RMSNORM_THREADS ? (units + 31) / 32 * 32 : RMSNORM_THREADS;
    const size_t smem = sizeof(uint16_t) * (size_t)(a->D < RMSNORM_CHUNK ? a->D : RMSNORM_CHUNK);
    if (wide)
        SIMT_LAUNCH((rmsnorm_kernel<true>), (unsigned)a->M, (unsigned)threads, smem, (cudaStream_t)dev->stream, a->x,
                    a->delta, a->weight, a->rows, a->out, a->D, a->eps);
    else
        SIMT_LAUNCH((rmsnorm_kernel<false>), (unsigned)a->M, (unsigned)threads, smem, (cudaStream_t)dev->stream, a->x,
                    a->delta, a->weight, a->rows, a->out, a->D, a->eps);
    return cuda_rt_launched("rmsnorm", err);
}
