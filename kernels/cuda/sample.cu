/* sample: from the first top_k log-probabilities of each record [M,k], descending, the first j with p_j > 0 and
 * u * total < p_0 + .. + p_j, where p_j = exp(lp_j - lp_0); should rounding leave none, the last j with p_j > 0; -1 for
 * a record without any.
 *
 * grid (ceil(M / 4)), block 4 warps, one record a warp. The lanes compute 32 exponentials at a time; the sums run over
 * them in ascending j in every lane alike. u is a function of (seed, trajectory, position) alone.
 * NUMERICS: bit-equal to the CPU device. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/numerics.h"
#include "kernels/philox.h"

enum { SAMPLE_WARPS = 4 };

__global__ void __launch_bounds__(SAMPLE_WARPS * 32)
    sample_kernel(int32_t *__restrict__ token, const int32_t *__restrict__ ids, const float *__restrict__ logprobs,
                  const int64_t *__restrict__ trajectory, const int32_t *__restrict__ position, int M, int k, int top_k,
                  uint64_t seed) {
    const int lane = (int)threadIdx.x % 32, m = (int)(blockIdx.x * SAMPLE_WARPS + threadIdx.x / 32);
    if (m >= M) return; /* whole warps; the block has no barrier */
    logprobs += (size_t)m * (size_t)k;
    const float first = logprobs[0];
    float total = 0, sum = 0, target = 0;
    int pick = first > -INFINITY ? 0 : -1, found = pick < 0;
    for (int pass = 0; pass < 2; pass++) { /* the total, then the draw */
        for (int i = 0; i < top_k && !found; i += 32) {
            const float p = i + lane < top_k ? exp_f32(logprobs[i + lane] - first) : 0.0f;
#pragma unroll
            for (int j = 0; j < 32; j++) {
                const float of_j = __shfl_sync(0xffffffffu, p, j);
                if (pass == 0) {
                    total += of_j;
                } else if (!found) {
                    sum += of_j;
                    if (of_j > 0) pick = i + j, found = target < sum;
                }
            }
        }
        const float u = tv_philox_uniform(seed, (uint64_t)trajectory[m], (uint32_t)position[m], TV_USE_SAMPLE);
        target = u * total;
    }
    if (lane == 0) token[m] = pick < 0 ? -1 : ids[(size_t)m * (size_t)k + (size_t)pick];
}

extern "C" tv_status cuda_sample(tv_dev *dev, const tv_sample_args *a, tv_err *err) {
    TV_TRY(tv_check_sample(a, err));
    SIMT_LAUNCH(sample_kernel, (unsigned)((a->M + SAMPLE_WARPS - 1) / SAMPLE_WARPS), SAMPLE_WARPS * 32, 0,
                (cudaStream_t)dev->stream, a->token, a->topk_ids, a->topk_logprobs, a->trajectory, a->position, a->M,
                a->k, a->top_k, a->seed);
    return cuda_rt_launched("sample", err);
}
