/* swiglu: out [M,F] = r(r(silu(gate)) * up), gate_up [M,2F] holding a row's gates, then its ups.
 * grid (M, blocks over F), block 128 threads of 8 values (one, where rows are not 16-byte aligned). No shared memory.
 * silu(x) = x / (1 + e) where x's sign is +, x * e / (1 + e) where it is -, with e = exp(-|x|): nothing overflows.
 * NUMERICS: bit-equal to the CPU device. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/numerics.h"

enum { SWIGLU_THREADS = 128 };

__device__ __forceinline__ float silu_up(float x, float up) {
    const float e = exp_f32(-fabsf(x));
    return bf16_round((__float_as_uint(x) >> 31 ? x * e : x) / (1.0f + e)) * up;
}
__device__ __forceinline__ uint32_t silu_up_pair(uint32_t x, uint32_t up) {
    return bf16_pack(silu_up(bf16_lo(x), bf16_lo(up)), silu_up(bf16_hi(x), bf16_hi(up)));
}

template <bool WIDE>
__global__ void __launch_bounds__(SWIGLU_THREADS)
    swiglu_kernel(uint16_t *__restrict__ out, const uint16_t *__restrict__ gate_up, int F) {
    const size_t at = (size_t)blockIdx.x * (size_t)F;
    const int i = (int)(blockIdx.y * SWIGLU_THREADS + threadIdx.x) * (WIDE ? 8 : 1);
    if (i >= F) return;
    if (WIDE) {
        const uint4 g = *(const uint4 *)(gate_up + 2 * at + i), u = *(const uint4 *)(gate_up + 2 * at + F + i);
        *(uint4 *)(out + at + i) =
            make_uint4(silu_up_pair(g.x, u.x), silu_up_pair(g.y, u.y), silu_up_pair(g.z, u.z), silu_up_pair(g.w, u.w));
    } else {
        out[at + i] = bf16_bits(silu_up(bf16_value(gate_up[2 * at + i]), bf16_value(gate_up[2 * at + F + i])));
    }
}

extern "C" tv_status cuda_swiglu(tv_dev *dev, const tv_swiglu_args *a, tv_err *err) {
    TV_TRY(tv_check_swiglu(a, err));
    const bool wide = a->F % 8 == 0 && ((uintptr_t)a->gate_up | (uintptr_t)a->out) % 16 == 0;
    const int per_block = SWIGLU_THREADS * (wide ? 8 : 1), blocks = (a->F + per_block - 1) / per_block;
    if (blocks > 65535)
        return TV_FAIL(err, TV_EUNSUPPORTED,
                       "swiglu: F=%d must be at most %d, or a multiple of 8 at 16-byte aligned addresses", a->F,
                       65535 * per_block);
    const dim3 grid((unsigned)a->M, (unsigned)blocks);
    if (wide)
        SIMT_LAUNCH((swiglu_kernel<true>), grid, SWIGLU_THREADS, 0, (cudaStream_t)dev->stream, a->out, a->gate_up,
                    a->F);
    else
        SIMT_LAUNCH((swiglu_kernel<false>), grid, SWIGLU_THREADS, 0, (cudaStream_t)dev->stream, a->out, a->gate_up,
                    a->F);
    return cuda_rt_launched("swiglu", err);
}
