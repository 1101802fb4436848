/* moe: out [M,D] = sum over a row's experts in ascending index of r(weight * down(swiglu(gate_up x))), partial sums
 * rounded too. R = M * used routed rows, sorted by expert, then by row; nothing is copied back or waited for.
 *
 * moe_count_kernel: grid (E), 256 threads: how many routed rows each expert has.
 * moe_place_kernel: grid (E), 256 threads: where they lie (a stable counting sort), and the list of row tiles.
 * moe_gemm_kernel: grid (most row tiles there can be, output tiles), one tile of gemm_tile.h a block, blocks beyond
 *   the list return; row tiles of an expert run side by side. gate_up takes its rows of x by index, without a gather.
 * moe_combine_kernel: grid (M), 128 threads, 8 outputs a thread and turn.
 * swiglu runs between the two products.
 *
 * NUMERICS: each expert's product is planned with the rows it receives (plan.h, computed in the kernel from the count);
 * its slices are summed one after another in the block, with the bits that linear.cu gives the same plan. As there, the
 * tile does not touch the bits. The combination is the CPU device's, bit for bit.
 * Limits: no bias; used <= 4096; N <= 65535 tiles of outputs. ids must lie in [0,E), as moe_route leaves them. */
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/file.h"
}
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm_tile.h"

enum { MOE_THREADS = 256, MOE_WARPS = MOE_THREADS / 32, COMBINE_THREADS = 128, MOE_MOST_USED = 4096 };

/* Sum over the block, in every thread. part: [MOE_WARPS] shared, not touched again before the next barrier. */
__device__ __forceinline__ int block_sum(int v, int *part) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    int sum = 0;
#pragma unroll
    for (int w = 0; w < MOE_WARPS; w++) sum += part[w];
    return sum;
}

__global__ void __launch_bounds__(MOE_THREADS)
    moe_count_kernel(int32_t *__restrict__ count, const int32_t *__restrict__ ids, int R) {
    SIMT_SHARED(int, part, [MOE_WARPS]);
    int n = 0;
    for (int i = (int)threadIdx.x; i < R; i += MOE_THREADS) n += ids[i] == (int)blockIdx.x;
    n = block_sum(n, part);
    if (threadIdx.x == 0) count[blockIdx.x] = n;
}

/* first [E+2]: expert e has routed rows first[e] .. first[e+1]-1; first[E+1]: tiles in all. tiles [.,2]: expert, first
 * routed row. source [R]: the row a routed row came from. place [M,used]: where each (row, choice) went. */
__global__ void __launch_bounds__(MOE_THREADS)
    moe_place_kernel(int32_t *__restrict__ first, int32_t *__restrict__ tiles, int32_t *__restrict__ source,
                     int32_t *__restrict__ place, const int32_t *__restrict__ count, const int32_t *__restrict__ ids,
                     int E, int R, int used, int tile_rows) {
    SIMT_SHARED(int, part, [4][MOE_WARPS]);
    const int e = (int)blockIdx.x, tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32;
    int before = 0, tile = 0;
    for (int i = tid; i < e; i += MOE_THREADS) before += count[i], tile += (count[i] + tile_rows - 1) / tile_rows;
    before = block_sum(before, part[0]);
    tile = block_sum(tile, part[1]);
    const int end = before + count[e], n_tiles = (count[e] + tile_rows - 1) / tile_rows;
    if (tid == 0) {
        first[e] = before;
        if (e == E - 1) first[E] = end, first[E + 1] = tile + n_tiles;
    }
    for (int i = tid; i < n_tiles; i += MOE_THREADS) {
        tiles[2 * (size_t)(tile + i)] = e;
        tiles[2 * (size_t)(tile + i) + 1] = before + i * tile_rows;
    }
    /* Two buffers in turn: a thread is at most one barrier ahead of another. */
    for (int base = 0, turn = 0; before < end; base += MOE_THREADS, turn ^= 1) {
        const int i = base + tid;
        const bool mine = i < R && ids[i] == e;
        const uint32_t lanes = __ballot_sync(0xffffffffu, mine);
        int *counts = part[2 + turn];
        if (lane == 0) counts[warp] = __popc(lanes);
        __syncthreads();
        int at = before + __popc(lanes & ((1u << lane) - 1));
#pragma unroll
        for (int w = 0; w < MOE_WARPS; w++) {
            if (w < warp) at += counts[w];
            before += counts[w];
        }
        if (mine) place[i] = at, source[at] = i / used;
    }
}

/* y [R,N] = routed rows of x times the matrix of their expert. source: rows of x by index; NULL: x [R,K] itself. */
template <class T, bool VEC, bool SLICES>
__global__ void __launch_bounds__(T::THREADS, T::BLOCKS)
    moe_gemm_kernel(uint16_t *__restrict__ y, const uint16_t *__restrict__ x, const int32_t *__restrict__ source,
                    const uint16_t *const *__restrict__ w, const int32_t *__restrict__ first,
                    const int32_t *__restrict__ tiles, int E, int N, int K, int reduction, int units) {
    SIMT_DYN_SHARED(smem);
    if ((int)blockIdx.x >= first[E + 1]) return;
    const int e = tiles[2 * (size_t)blockIdx.x], m0 = tiles[2 * (size_t)blockIdx.x + 1], n0 = (int)blockIdx.y * T::BN;
    const int M = first[e + 1];
    tv_plan step;
    step.reduction = (tv_reduction)reduction, step.units = units;
    const int slice = SLICES ? tv_plan_linear(&step, M - first[e], N, K).slice : K;
    const gemm_operands o = {x, w[e], source, M, N, K, 0, K, slice};
    float acc[T::MI][T::NI][4];
    gemm_accumulate<T, VEC, true, SLICES>(o, m0, n0, smem, acc);
    gemm_store<T>(acc, m0, n0, M, N, nullptr, y, GEMM_BF16, smem);
}

__device__ __forceinline__ float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
__device__ __forceinline__ uint32_t combine_pair(uint32_t sum, uint32_t y, float weight) {
    return bf16_pack(bf16_lo(sum) + rounded(weight * bf16_lo(y)), bf16_hi(sum) + rounded(weight * bf16_hi(y)));
}

/* out[m] = its routed rows of y in ascending place, which is ascending expert. */
__global__ void __launch_bounds__(COMBINE_THREADS)
    moe_combine_kernel(uint16_t *__restrict__ out, const uint16_t *__restrict__ y, const int32_t *__restrict__ place,
                       const uint16_t *__restrict__ weights, int D, int used) {
    SIMT_DYN_SHARED(smem);
    int *const order = (int *)smem;                /* [used] places, ascending */
    float *const weight = (float *)(order + used); /* [used] of that place */
    place += (size_t)blockIdx.x * used, weights += (size_t)blockIdx.x * used, out += (size_t)blockIdx.x * D;
    for (int i = (int)threadIdx.x; i < used; i += COMBINE_THREADS) {
        int rank = 0;
        for (int j = 0; j < used; j++) rank += place[j] < place[i];
        order[rank] = place[i], weight[rank] = bf16_lo(weights[i]);
    }
    __syncthreads();
    if (D % 8 == 0) {
        for (int d = (int)threadIdx.x * 8; d < D; d += COMBINE_THREADS * 8) {
            uint4 sum = make_uint4(0, 0, 0, 0);
            for (int i = 0; i < used; i++) {
                const uint4 v = *(const uint4 *)(y + (size_t)order[i] * D + d);
                sum.x = combine_pair(sum.x, v.x, weight[i]), sum.y = combine_pair(sum.y, v.y, weight[i]);
                sum.z = combine_pair(sum.z, v.z, weight[i]), sum.w = combine_pair(sum.w, v.w, weight[i]);
            }
            *(uint4 *)(out + d) = sum;
        }
    } else {
        for (int d = (int)threadIdx.x; d < D; d += COMBINE_THREADS) {
            float sum = 0;
            for (int i = 0; i < used; i++)
                sum = rounded(sum + rounded(weight[i] * bf16_lo(y[(size_t)order[i] * D + d])));
            out[d] = __bfloat16_as_ushort(__float2bfloat16_rn(sum));
        }
    }
}

/* Where the matrices of one layer's experts lie: [2,E] pointers, gate_up and down, as last seen and on the card. */
struct cuda_experts {
    const tv_matrix *gate_up; /* the host array that the entry stands for */
    int E;
    void **host, *device;
};

/* The pointers of a's experts on the card: uploaded when a layer is first seen, or when its matrices moved. */
static tv_status expert_table(tv_dev *dev, const tv_moe_args *a, const uint16_t *const **out, tv_err *err) {
    const size_t bytes = 2 * (size_t)a->E * sizeof(void *);
    int i = 0;
    while (i < dev->n_experts && (dev->experts[i].gate_up != a->gate_up || dev->experts[i].E != a->E)) i++;
    if (i == dev->n_experts) {
        void *device;
        TV_TRY(tv_ops_cuda.alloc(dev, bytes, &device, err));
        dev->experts = (cuda_experts *)tv_xrealloc(dev->experts, ((size_t)i + 1) * sizeof *dev->experts);
        dev->experts[i] = {a->gate_up, a->E, (void **)tv_xcalloc(2 * (size_t)a->E, sizeof(void *)), device};
        dev->n_experts++;
    }
    void **host = dev->experts[i].host;
    bool same = true;
    for (int e = 0; e < a->E; e++) {
        same = same && host[e] == a->gate_up[e].data && host[a->E + e] == a->down[e].data;
        host[e] = a->gate_up[e].data, host[a->E + e] = a->down[e].data;
    }
    *out = (const uint16_t *const *)dev->experts[i].device;
    return same ? TV_OK : cuda_rt_copy(dev->experts[i].device, host, bytes, dev->stream, err);
}

extern "C" void cuda_moe_close(tv_dev *dev) {
    for (int i = 0; i < dev->n_experts; i++) {
        tv_ops_cuda.free(dev, dev->experts[i].device, 2 * (size_t)dev->experts[i].E * sizeof(void *));
        free(dev->experts[i].host);
    }
    free(dev->experts);
    dev->experts = NULL, dev->n_experts = 0;
}

/* Scratch, each part 256-byte aligned: gate_up [R,2F] bf16, whose place y [R,D] bf16 takes; act [R,F] bf16; source [R]
 * i32; place [M,used] i32; tiles [at most R,2] i32. */
struct layout {
    size_t act, source, place, tiles, total;
};

static size_t align256(size_t bytes) { return (bytes + 255) / 256 * 256; }

static layout lay_out(int M, int D, int F, int used) {
    const size_t R = (size_t)M * (size_t)used, widest = (size_t)(2 * F > D ? 2 * F : D);
    layout l;
    l.act = align256(R * widest * sizeof(tv_bf16));
    l.source = l.act + align256(R * (size_t)F * sizeof(tv_bf16));
    l.place = l.source + align256(R * sizeof(int32_t));
    l.tiles = l.place + align256(R * sizeof(int32_t));
    l.total = l.tiles + align256(2 * R * sizeof(int32_t));
    return l;
}

extern "C" size_t cuda_moe_scratch_bytes(int M, int D, int F, int used) { return lay_out(M, D, F, used).total; }

/* What the two grouped products share. */
struct routed {
    const tv_moe_args *a;
    const int32_t *first, *tiles;
    unsigned most_tiles;
};

template <class T, bool VEC, bool SLICES>
static tv_status launch(tv_dev *dev, const routed &r, const uint16_t *x, const int32_t *source,
                        const uint16_t *const *w, uint16_t *y, int N, int K, tv_err *err) {
    const int tiles_n = (N + T::BN - 1) / T::BN;
    if (tiles_n > 65535)
        return TV_FAIL(err, TV_EUNSUPPORTED, "moe: %d outputs of an expert are more than this kernel's %d", N,
                       65535 * T::BN);
    SIMT_ALLOW_SMEM((moe_gemm_kernel<T, VEC, SLICES>), T::SMEM);
    SIMT_LAUNCH((moe_gemm_kernel<T, VEC, SLICES>), dim3(r.most_tiles, (unsigned)tiles_n), T::THREADS, T::SMEM,
                (cudaStream_t)dev->stream, y, x, source, w, r.first, r.tiles, r.a->E, N, K, (int)r.a->plan.reduction,
                r.a->plan.units);
    return cuda_rt_launched("moe_gemm", err);
}

static tv_status product(tv_dev *dev, const routed &r, int rows, const uint16_t *x, const int32_t *source,
                         const uint16_t *const *w, uint16_t *y, int N, int K, tv_err *err) {
    if (K % 8 || (uintptr_t)x % 16) return launch<gemm_tile_64, false, true>(dev, r, x, source, w, y, N, K, err);
    if (rows == 16) return launch<gemm_tile_16, true, true>(dev, r, x, source, w, y, N, K, err);
    if (rows == 64) return launch<gemm_tile_64, true, true>(dev, r, x, source, w, y, N, K, err);
    return launch<gemm_tile_128, true, false>(dev, r, x, source, w, y, N, K, err);
}

extern "C" tv_status cuda_moe(tv_dev *dev, const tv_moe_args *a, tv_err *err) {
    TV_TRY(tv_check_moe(a, err));
    const int M = a->M, D = a->D, F = a->F, E = a->E, used = a->used, R = M * used;
    for (int e = 0; e < E; e++)
        if (a->gate_up[e].bias || a->down[e].bias)
            return TV_FAIL(err, TV_EUNSUPPORTED, "moe: expert %d has a bias, which this device does not add", e);
    if (used > MOE_MOST_USED)
        return TV_FAIL(err, TV_EUNSUPPORTED, "moe: used=%d must be at most %d on this device", used, MOE_MOST_USED);
    if (((uintptr_t)a->scratch | (uintptr_t)a->out) % 16)
        return TV_FAIL(err, TV_EUNSUPPORTED, "moe: scratch=%p and out=%p must be aligned to 16 bytes", a->scratch,
                       (void *)a->out);
    void *counts;
    TV_TRY(cuda_scratch(dev, CUDA_SCRATCH_MOE, (2 * (size_t)E + 2) * sizeof(int32_t), &counts, err));
    int32_t *count = (int32_t *)counts, *first = count + E;
    const uint16_t *const *w;
    TV_TRY(expert_table(dev, a, &w, err));

    const layout l = lay_out(M, D, F, used);
    char *scratch = (char *)a->scratch;
    uint16_t *gate_up = (uint16_t *)scratch, *act = (uint16_t *)(scratch + l.act), *y = gate_up;
    int32_t *source = (int32_t *)(scratch + l.source), *place = (int32_t *)(scratch + l.place);
    int32_t *tiles = (int32_t *)(scratch + l.tiles);

    /* Experts that can have rows, and the rows of each if they were spread evenly. Tall tiles do not hold a second set
     * of sums, which slices need. */
    const int busy = E < R ? E : R;
    int rows = cuda_gemm_rows(dev, (R + busy - 1) / busy, D < 2 * F ? D : 2 * F, busy);
    if (rows == 128 && a->plan.reduction != TV_REDUCE_FIXED) rows = 64;
    if (D % 8 || F % 8 || (uintptr_t)a->x % 16) rows = 64;
    const int most = R / rows + busy;
    const routed r = {a, first, tiles, (unsigned)(most < R ? most : R)};

    cudaStream_t stream = (cudaStream_t)dev->stream;
    SIMT_LAUNCH(moe_count_kernel, (unsigned)E, MOE_THREADS, 0, stream, count, a->ids, R);
    TV_TRY(cuda_rt_launched("moe_count", err));
    SIMT_LAUNCH(moe_place_kernel, (unsigned)E, MOE_THREADS, 0, stream, first, tiles, source, place, count, a->ids, E, R,
                used, rows);
    TV_TRY(cuda_rt_launched("moe_place", err));
    TV_TRY(product(dev, r, rows, a->x, source, w, gate_up, 2 * F, D, err));
    tv_swiglu_args swiglu = {};
    swiglu.gate_up = gate_up, swiglu.out = act, swiglu.M = R, swiglu.F = F;
    TV_TRY(cuda_swiglu(dev, &swiglu, err));
    TV_TRY(product(dev, r, rows, act, nullptr, w + E, y, D, F, err));
    SIMT_LAUNCH(moe_combine_kernel, (unsigned)M, COMBINE_THREADS, (size_t)used * 8, stream, a->out, y, place,
                a->weights, D, used);
    return cuda_rt_launched("moe_combine", err);
}
