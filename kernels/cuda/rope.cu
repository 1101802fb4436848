/* rope: from each row of qkv [M,(H+2G)*HS]: q and k heads normalised (where there are weights) and turned by their
 * position, q to q [M,H,HS], k and v to the cache at (slot, head, position).
 *
 * grid (M, blocks of heads), block 8 warps, one head a warp. Shared memory: a head of HS <= 256 f32 a warp (8 KiB), so
 * that the pairs (i, i + HS/2) need not lie in one lane. A block finds the segment of its row by itself: the row's own
 * place in the list first (it is there when each segment has one row, or there is one segment), else all threads look.
 * The sum of squares has element i in lane i % 32: the CPU device's four chains of eight lanes.
 * Where the cache holds bytes, a warp quantizes its k or v head and writes the row's scale (kv.h).
 * NUMERICS: bit-equal to the CPU device. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/kv.h"
#include "kernels/cuda/numerics.h"

enum { ROPE_WARPS = 8, ROPE_MAX_HEAD = CUDA_ATTN_MAX_HEAD };

template <bool BYTES>
__global__ void __launch_bounds__(ROPE_WARPS * 32)
    rope_kernel(uint16_t *__restrict__ q, uint16_t *__restrict__ cache_k, uint16_t *__restrict__ cache_v,
                float *__restrict__ k_scale, float *__restrict__ v_scale, bool fp8, const uint16_t *__restrict__ qkv,
                const uint16_t *__restrict__ q_weight, const uint16_t *__restrict__ k_weight,
                const uint16_t *__restrict__ cos, const uint16_t *__restrict__ sin,
                const tv_segment *__restrict__ segments, int n_segments, int H, int G, int S, int HS, float eps) {
    SIMT_SHARED(int, mine, [1]);
    SIMT_SHARED(float, heads, [ROPE_WARPS][ROPE_MAX_HEAD]);
    const int row = (int)blockIdx.x, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int at = min(row, n_segments - 1);
    tv_segment s = segments[at];
    if (row < s.row || row - s.row >= s.n_rows) { /* alike in all threads of the block */
        for (int i = (int)threadIdx.x; i < n_segments; i += ROPE_WARPS * 32) {
            s = segments[i];
            if (row >= s.row && row - s.row < s.n_rows) mine[0] = i;
        }
        __syncthreads();
        s = segments[mine[0]];
    }
    const int head = (int)blockIdx.y * ROPE_WARPS + warp, pos = s.pos + row - s.row;
    if (head >= H + 2 * G) return; /* whole warps, and no barrier of the block follows */
    const uint16_t *x = qkv + ((size_t)row * (size_t)(H + 2 * G) + (size_t)head) * (size_t)HS;
    const int g = (head - H) % G; /* of a k or v head */
    const size_t cache_row = ((size_t)s.slot * (size_t)G + (size_t)g) * (size_t)S + (size_t)pos;
    const size_t in_cache = cache_row * (size_t)HS;
    if (head >= H + G) {
        if (!BYTES) {
            for (int i = lane; i < HS; i += 32) cache_v[in_cache + i] = x[i];
        } else {
            for (int i = lane; i < HS; i += 32) heads[warp][i] = bf16_value(x[i]);
            __syncwarp();
            kv_append(heads[warp], HS, fp8, (uint8_t *)cache_v + in_cache, v_scale + cache_row, lane);
        }
        return;
    }
    const bool bytes = BYTES && head >= H;
    uint16_t *out = head < H ? q + ((size_t)row * (size_t)H + (size_t)head) * (size_t)HS : cache_k + in_cache;
    const uint16_t *weight = head < H ? q_weight : k_weight;
    float *v = heads[warp], chain = 0;
    for (int i = lane; i < HS; i += 32) {
        v[i] = bf16_value(x[i]);
        chain = fmaf(v[i], v[i], chain);
    }
    if (weight) {
        const float c = 1.0f / sqrtf(sum_chains(chain) / (float)HS + eps);
        for (int i = lane; i < HS; i += 32) v[i] = bf16_round(bf16_round(v[i] * c) * bf16_value(weight[i]));
    }
    __syncwarp();
    const int half = HS / 2;
    cos += (size_t)pos * (size_t)half, sin += (size_t)pos * (size_t)half;
    for (int i = lane; i < half; i += 32) {
        const float a = v[i], b = v[i + half], c = bf16_value(cos[i]), d = bf16_value(sin[i]);
        const uint16_t lo = bf16_bits(bf16_round(a * c) - bf16_round(b * d));
        const uint16_t hi = bf16_bits(bf16_round(b * c) + bf16_round(a * d));
        if (bytes)
            v[i] = bf16_value(lo), v[i + half] = bf16_value(hi);
        else
            out[i] = lo, out[i + half] = hi;
    }
    if (!bytes) return;
    __syncwarp();
    kv_append(v, HS, fp8, (uint8_t *)cache_k + in_cache, k_scale + cache_row, lane);
}

template <bool BYTES> static void launch(tv_dev *dev, const tv_rope_args *a, const tv_segment *segments) {
    const dim3 grid((unsigned)a->M, (unsigned)((a->H + 2 * a->kv.G + ROPE_WARPS - 1) / ROPE_WARPS));
    SIMT_LAUNCH((rope_kernel<BYTES>), grid, ROPE_WARPS * 32, 0, (cudaStream_t)dev->stream, a->q, a->kv.k, a->kv.v,
                a->kv.k_scale, a->kv.v_scale, a->kv.dtype == TV_F8_E4M3, a->qkv, a->q_weight, a->k_weight, a->cos,
                a->sin, segments, a->n_segments, a->H, a->kv.G, a->kv.S, a->kv.HS, a->eps);
}

extern "C" tv_status cuda_rope(tv_dev *dev, const tv_rope_args *a, tv_err *err) {
    TV_TRY(tv_check_rope(a, err));
    if (a->kv.HS > ROPE_MAX_HEAD)
        return TV_FAIL(err, TV_EUNSUPPORTED, "rope: HS=%d must be at most %d", a->kv.HS, ROPE_MAX_HEAD);
    const tv_segment *segments;
    TV_TRY(cuda_segments(dev, a->segments, a->n_segments, &segments, err));
    if (a->kv.dtype == TV_BF16)
        launch<false>(dev, a, segments);
    else
        launch<true>(dev, a, segments);
    return cuda_rt_launched("rope", err);
}
