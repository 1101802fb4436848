/* moe_route: softmax of each row of router logits [M,E] over all experts, the `used` largest probabilities (lowest
 * index on ties) or the given experts, divided by their sum when norm, rounded to bf16.
 *
 * grid (ceil(M / 4)), block 4 warps, one row a warp. Shared memory: E + used f32 a warp.
 * Sums run in ascending order of experts (softmax) and descending of probabilities (norm), in every lane alike. Each
 * round the lanes' best are compared; only the lane that gave one looks for its next.
 * Limits: E <= 1024; given experts lie in [0,E) (checked where they come from, as ids of embed are).
 * NUMERICS: bit-equal to the CPU device; the exponential is f64's rounded to f32 (exp_rounded). */
#include "kernels/cuda/device.h"
#include "kernels/cuda/numerics.h"

enum { ROUTE_WARPS = 4, ROUTE_MAX_EXPERTS = 1024 };

/* The largest of p [E] f32 among experts lane, lane + 32, ..: its bits above the complement of its index, so that the
 * greater of two is the larger probability, or the lower index. NaN counts as 0 (then all are NaN). 0 where none is
 * left: taken probabilities are negative. */
__device__ __forceinline__ uint64_t best_of_lane(const float *p, int E, int lane) {
    uint64_t best = 0;
    for (int e = lane; e < E; e += 32) {
        const float x = p[e];
        const uint64_t key = (uint64_t)(x >= 0 ? __float_as_uint(x) & 0x7fffffffu : 0u) << 32 | (uint32_t)~e;
        if (!(x < 0) && key > best) best = key;
    }
    return best;
}

__global__ void __launch_bounds__(ROUTE_WARPS * 32)
    moe_route_kernel(int32_t *__restrict__ ids, uint16_t *__restrict__ weights, const uint16_t *__restrict__ logits,
                     const int32_t *__restrict__ given, int M, int E, int used, int norm) {
    SIMT_DYN_SHARED(memory);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int m = (int)blockIdx.x * ROUTE_WARPS + warp;
    if (m >= M) return;                                              /* whole warps; the block has no barrier */
    float *p = (float *)memory + warp * (E + used), *chosen = p + E; /* [E], [used] f32 */
    logits += (size_t)m * (size_t)E;
    ids += (size_t)m * (size_t)used, weights += (size_t)m * (size_t)used;
    if (given) given += (size_t)m * (size_t)used;

    float max = -INFINITY;
    for (int e = lane; e < E; e += 32) {
        p[e] = bf16_value(logits[e]);
        if (p[e] > max) max = p[e];
    }
    for (int o = 16; o; o >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, max, o);
        if (other > max) max = other;
    }
    for (int e = lane; e < E; e += 32) p[e] = exp_rounded(p[e] - max);
    __syncwarp();
    float sum = 0;
    for (int e = 0; e < E; e++) sum += p[e];
    __syncwarp();
    for (int e = lane; e < E; e += 32) p[e] /= sum;
    __syncwarp();

    float top = 0;
    uint64_t mine = given ? 0 : best_of_lane(p, E, lane);
    for (int i = 0; i < used; i++) {
        int expert;
        if (given) {
            expert = given[i];
        } else {
            uint64_t best = mine;
            for (int o = 16; o; o >>= 1) {
                const uint64_t other = __shfl_xor_sync(0xffffffffu, best, o);
                if (other > best) best = other;
            }
            expert = (int)~(uint32_t)best;
        }
        const float x = p[expert];
        top += x;
        __syncwarp();
        if (lane == expert % 32) {
            ids[i] = expert, chosen[i] = x;
            if (!given) {
                p[expert] = -1;
                mine = best_of_lane(p, E, lane);
            }
        }
    }
    __syncwarp();
    for (int i = lane; i < used; i += 32) weights[i] = bf16_bits(norm ? chosen[i] / top : chosen[i]);
}

extern "C" tv_status cuda_moe_route(tv_dev *dev, const tv_moe_route_args *a, tv_err *err) {
    TV_TRY(tv_check_moe_route(a, err));
    if (a->E > ROUTE_MAX_EXPERTS)
        return TV_FAIL(err, TV_EUNSUPPORTED, "moe_route: E=%d must be at most %d", a->E, ROUTE_MAX_EXPERTS);
    const size_t smem = sizeof(float) * ROUTE_WARPS * (size_t)(a->E + a->used);
    SIMT_LAUNCH(moe_route_kernel, (unsigned)((a->M + ROUTE_WARPS - 1) / ROUTE_WARPS), ROUTE_WARPS * 32, smem,
                (cudaStream_t)dev->stream, a->ids, a->weights, a->logits, a->given, a->M, a->E, a->used, a->norm);
    return cuda_rt_launched("moe_route", err);
}
