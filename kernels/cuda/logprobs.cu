/* logprobs: log-softmax of each row of logits [M,V] f32 after temperature, its top k, the given token's value and rank.
 *
 * Three kernels, because the sum of docs/numerics.md needs the row's maximum first; all work on blocks of 512 logits:
 *   max     grid (M, blocks / 8), 8 warps, a block each: suppressed ids to -inf, and the first of the block in order
 *   sum     grid (M, blocks / (8 per_warp)), 8 warps: sum of exponentials of a block, and its part of the token's rank
 *   select  grid (M), 512 threads: adds the sums, chooses the top k, writes the results
 * The row is read twice, both times by as many blocks as it has parts: one row alone is spread over the card.
 *
 * Order is that of one key of a logit: its value above the complement of its id. The k blocks whose first keys are the
 * largest hold the top k, and the least of those first keys, being the k-th of some, is not above the k-th of all: it
 * bounds them from below. So select looks at k blocks, and keeps little more than k keys. Where it keeps too many (rows
 * of one value, for one), it cuts them to the best k and raises the bound.
 *
 * Shared memory: select 8.6 KiB and 12 bytes a block (3.5 KiB at V = 151,936). Scratch: 16 bytes a row and block.
 * Limits: k <= 128, V <= 2^20.
 * NUMERICS: bit-equal to the CPU device but where log_rounded is not (two of 2.3e8 sums). A block is a warp's: element
 * i in lane i % 32 is four chains of eight lanes. How blocks are given to warps changes nothing. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/numerics.h"

enum {
    BLOCK = 512, /* logits of one partial sum: docs/numerics.md */
    TURNS = BLOCK / 32,
    WARPS = 8,       /* of max and sum */
    THREADS = BLOCK, /* of select: a block at a time */
    MAX_K = 128,
    MAX_BLOCKS = (1 << 20) / BLOCK,
    KEPT = 2 * BLOCK, /* keys that select holds */
    AHEAD = 4         /* blocks that select loads ahead */
};
#define KEY_BAD 0xffffffffffffffffull    /* of a block with a NaN or +inf; 0: of one without any probability */
static const float GREEDY_BELOW = 1e-6f; /* temperatures that count as 0 */

/* x > -inf, x < inf; -0 is +0 in the order. */
__device__ __forceinline__ uint64_t key_of(float x, int id) {
    const uint32_t u = __float_as_uint(x + 0.0f);
    return (uint64_t)(u >> 31 ? ~u : u | 0x80000000u) << 32 | (uint32_t)~id;
}
__device__ __forceinline__ float value_of(uint64_t key) {
    const uint32_t u = (uint32_t)(key >> 32);
    return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u);
}
__device__ __forceinline__ int id_of(uint64_t key) { return (int)~(uint32_t)key; }
__device__ __forceinline__ uint64_t warp_max(uint64_t key) {
    for (int o = 16; o; o >>= 1) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, key, o);
        if (other > key) key = other;
    }
    return key;
}

__global__ void __launch_bounds__(WARPS * 32)
    logprobs_max_kernel(uint64_t *__restrict__ keys, float *logits, const int32_t *__restrict__ suppressed,
                        int n_suppressed, int V, int n_blocks) {
    SIMT_SHARED(int, bad, [1]);
    const int lane = (int)threadIdx.x % 32, first = (int)blockIdx.y * WARPS * BLOCK;
    float *z = logits + (size_t)blockIdx.x * (size_t)V;
    if (n_suppressed) {
        if (threadIdx.x == 0) bad[0] = 0;
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n_suppressed; i += WARPS * 32) {
            const int id = suppressed[i];
            /* Exchanged, so that one of repeated ids sees what was there: a NaN is a fault wherever it stands. */
            if (id >= first && id < V && id - first < WARPS * BLOCK && !(atomicExch(z + id, -INFINITY) < INFINITY))
                atomicExch(bad, 1);
        }
        __syncthreads();
    }
    const int block = (int)blockIdx.y * WARPS + (int)threadIdx.x / 32;
    if (block >= n_blocks) return; /* whole warps, and no barrier of the block follows */
    float best = -INFINITY, x[TURNS];
    int at = -1, fault = n_suppressed && bad[0];
#pragma unroll
    for (int j = 0; j < TURNS; j++) {
        const int id = block * BLOCK + j * 32 + lane;
        x[j] = id < V ? z[id] : -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < TURNS; j++) {
        fault |= !(x[j] < INFINITY);
        if (x[j] > best) best = x[j], at = block * BLOCK + j * 32 + lane;
    }
    const uint64_t key = warp_max(fault ? KEY_BAD : at < 0 ? 0 : key_of(best, at));
    if (lane == 0) keys[(size_t)blockIdx.x * (size_t)n_blocks + (size_t)block] = key;
}

/* Blocks' sums of exponentials (0 unless with_sums) and how many of their logits come before the row's token (0 where
 * it has none). Both are left as they are in a row that is bad. UNIT: temperature 1. */
template <bool UNIT>
__global__ void __launch_bounds__(WARPS * 32)
    logprobs_sum_kernel(float *__restrict__ sums, int32_t *__restrict__ counts, const uint64_t *__restrict__ keys,
                        const float *__restrict__ logits, const int32_t *__restrict__ token, int V, int n_blocks,
                        int per_warp, float temperature, int with_sums) {
    SIMT_SHARED(uint64_t, largest, [WARPS]);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const size_t row = blockIdx.x;
    const float *z = logits + row * (size_t)V;
    keys += row * (size_t)n_blocks, sums += row * (size_t)n_blocks, counts += row * (size_t)n_blocks;
    uint64_t key = 0;
    for (int i = (int)threadIdx.x; i < n_blocks; i += WARPS * 32)
        if (keys[i] > key) key = keys[i];
    key = warp_max(key);
    if (lane == 0) largest[warp] = key;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        if (largest[i] > key) key = largest[i];
    if (key == KEY_BAD || key == 0) return; /* the whole block of threads */
    const float max = value_of(key);
    const int t = token ? token[row] : -1;
    const bool with_count = t >= 0 && t < V;
    const float of_token = with_count ? z[t] : 0.0f;
    for (int i = 0; i < per_warp; i++) {
        const int block = ((int)blockIdx.y * per_warp + i) * WARPS + warp;
        if (block >= n_blocks) break; /* whole warps */
        float x[TURNS], chain = 0;
        int above = 0;
#pragma unroll
        for (int j = 0; j < TURNS; j++) {
            const int id = block * BLOCK + j * 32 + lane;
            x[j] = id < V ? z[id] : -INFINITY;
        }
        if (with_count) {
#pragma unroll
            for (int j = 0; j < TURNS; j++) {
                const int id = block * BLOCK + j * 32 + lane; /* past V: after the token, and not above it */
                above += x[j] > of_token || (x[j] == of_token && id < t);
            }
            for (int o = 16; o; o >>= 1) above += __shfl_xor_sync(0xffffffffu, above, o);
        }
        if (with_sums) {
#pragma unroll
            for (int j = 0; j < TURNS; j++) chain += exp_f32(UNIT ? x[j] - max : (x[j] - max) / temperature);
            chain = sum_chains(chain);
        }
        if (lane == 0) sums[block] = chain, counts[block] = above;
    }
}

/* How many of keys [n] are greater. */
__device__ __forceinline__ int rank_of(uint64_t key, const uint64_t *keys, int n) {
    int rank = 0;
    for (int i = 0; i < n; i++) rank += keys[i] > key;
    return rank;
}

/* Puts the best k of kept [n] in order, forgets the others, and raises the bound to the k-th. All threads. */
__device__ __forceinline__ void cut(uint64_t *kept, int *n_kept, uint64_t *bound, int n, int k) {
    uint64_t key[KEPT / THREADS];
    int rank[KEPT / THREADS];
#pragma unroll
    for (int j = 0; j < KEPT / THREADS; j++) {
        const int i = j * THREADS + (int)threadIdx.x;
        key[j] = i < n ? kept[i] : 0;
        rank[j] = i < n ? rank_of(key[j], kept, n) : k;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < KEPT / THREADS; j++)
        if (rank[j] < k) {
            kept[rank[j]] = key[j];
            if (rank[j] == k - 1) bound[0] = key[j];
        }
    if (threadIdx.x == 0) n_kept[0] = min(n, k);
    __syncthreads();
}

/* This thread's logit of the i-th of n chosen blocks; -inf where there is none. */
__device__ __forceinline__ float load_chosen(const float *z, const int *chosen, int i, int n, int V) {
    const int id = i < n ? chosen[i] * BLOCK + (int)threadIdx.x : V;
    return id < V ? z[id] : -INFINITY;
}

__global__ void __launch_bounds__(THREADS)
    logprobs_select_kernel(int32_t *__restrict__ topk_ids, float *__restrict__ topk_logprobs,
                           float *__restrict__ token_logprob, int32_t *__restrict__ token_rank,
                           int32_t *__restrict__ bad, const uint64_t *__restrict__ keys, const float *__restrict__ sums,
                           const int32_t *__restrict__ counts, const float *__restrict__ logits,
                           const int32_t *__restrict__ token, int V, int n_blocks, int k, float temperature,
                           int greedy) {
    SIMT_DYN_SHARED(memory);
    SIMT_SHARED(uint64_t, kept, [KEPT]);
    SIMT_SHARED(uint64_t, bound, [1]); /* what a key must reach to be kept; above those of logits without probability */
    SIMT_SHARED(int, chosen, [MAX_K]); /* blocks to look at, in the order of their first keys */
    SIMT_SHARED(int, n_chosen, [1]);
    SIMT_SHARED(int, n_kept, [1]);
    SIMT_SHARED(int, rank, [1]);
    SIMT_SHARED(int, fault, [1]);
    SIMT_SHARED(float, log_sum, [1]);
    uint64_t *firsts = (uint64_t *)memory;     /* [n_blocks] */
    float *sum = (float *)(firsts + n_blocks); /* [n_blocks] */
    const int tid = (int)threadIdx.x, lane = tid % 32;
    const size_t row = blockIdx.x;
    const float *z = logits + row * (size_t)V;
    const int t = token ? token[row] : -1;
    const bool with_token = t >= 0 && t < V;
    topk_ids += row * (size_t)k, topk_logprobs += row * (size_t)k;
    keys += row * (size_t)n_blocks, sums += row * (size_t)n_blocks, counts += row * (size_t)n_blocks;

    if (tid == 0) bound[0] = 1, n_chosen[0] = n_kept[0] = rank[0] = fault[0] = 0, log_sum[0] = 0;
    __syncthreads();
    for (int b = tid; b < n_blocks; b += THREADS) {
        firsts[b] = keys[b];
        if (firsts[b] == KEY_BAD) atomicExch(fault, 1);
    }
    __syncthreads();
    const bool usable = !fault[0];
    if (usable) {
        for (int b = tid; b < n_blocks; b += THREADS) {
            const uint64_t key = firsts[b];
            const int r = key ? rank_of(key, firsts, n_blocks) : k;
            if (r < k) {
                chosen[r] = b;
                atomicAdd(n_chosen, 1);
                if (r == k - 1) bound[0] = key;
            }
            if (!greedy) sum[b] = sums[b];
            if (with_token) atomicAdd(rank, counts[b]);
        }
    }
    __syncthreads();
    const int n = n_chosen[0];
    const bool good = n > 0; /* a logit that is a number, and none that must not be */
    if (good && !greedy) {
        /* Adjacent pairs, then pairs of pairs, an odd one moving up: sum[b] is that of the blocks from b on. */
        for (int step = 1; step < n_blocks; step *= 2) {
            for (int b = tid * 2 * step; b + step < n_blocks; b += THREADS * 2 * step) sum[b] += sum[b + step];
            __syncthreads();
        }
        if (tid == 0) log_sum[0] = log_rounded(sum[0]);
    }

    float x[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) x[j] = load_chosen(z, chosen, j, n, V);
    for (int i = 0; i <= n; i++) {
        const uint64_t key = i < n && x[0] > -INFINITY ? key_of(x[0], chosen[i] * BLOCK + tid) : 0;
#pragma unroll
        for (int j = 0; j < AHEAD - 1; j++) x[j] = x[j + 1];
        x[AHEAD - 1] = load_chosen(z, chosen, i + AHEAD, n, V);
        const unsigned keep = __ballot_sync(0xffffffffu, key >= bound[0]);
        if (keep) {
            int at = 0;
            if (lane == 0) at = atomicAdd(n_kept, __popc(keep));
            at = __shfl_sync(0xffffffffu, at, 0);
            if (keep >> lane & 1) kept[at + __popc(keep & ((1u << lane) - 1))] = key;
        }
        __syncthreads();
        const int have = n_kept[0];
        if (have > KEPT - BLOCK || i == n)
            cut(kept, n_kept, bound, have, k);
        else
            __syncthreads(); /* all have read n_kept */
    }

    const float max = good ? value_of(kept[0]) : 0.0f;
    if (tid < k) {
        float value = -INFINITY;
        if (tid < n_kept[0])
            value = greedy ? (tid ? -INFINITY : 0.0f) : (value_of(kept[tid]) - max) / temperature - log_sum[0];
        topk_logprobs[tid] = value;
        topk_ids[tid] = value == -INFINITY ? -1 : id_of(kept[tid]);
    }
    if (tid == 0) {
        bad[row] = !good;
        if (token) {
            float value = -INFINITY;
            if (good && with_token)
                value = greedy ? (rank[0] ? -INFINITY : 0.0f) : (z[t] - max) / temperature - log_sum[0];
            token_logprob[row] = value;
            token_rank[row] = good && with_token ? rank[0] : -1;
        }
    }
}

extern "C" tv_status cuda_logprobs(tv_dev *dev, const tv_logprobs_args *a, tv_err *err) {
    TV_TRY(tv_check_logprobs(a, err));
    if (a->k > MAX_K) return TV_FAIL(err, TV_EUNSUPPORTED, "logprobs: k=%d must be at most %d", a->k, MAX_K);
    if (a->V > MAX_BLOCKS * BLOCK)
        return TV_FAIL(err, TV_EUNSUPPORTED, "logprobs: V=%d must be at most %d", a->V, MAX_BLOCKS * BLOCK);
    const int n_blocks = (a->V + BLOCK - 1) / BLOCK, greedy = a->temperature < GREEDY_BELOW;
    const size_t cells = (size_t)a->M * (size_t)n_blocks;
    void *scratch;
    TV_TRY(cuda_scratch(dev, CUDA_SCRATCH_LOGPROBS, cells * (sizeof(uint64_t) + sizeof(float) + sizeof(int32_t)),
                        &scratch, err));
    uint64_t *keys = (uint64_t *)scratch;        /* [M,n_blocks] */
    float *sums = (float *)(keys + cells);       /* [M,n_blocks] */
    int32_t *counts = (int32_t *)(sums + cells); /* [M,n_blocks] */
    cudaStream_t stream = (cudaStream_t)dev->stream;

    const unsigned M = (unsigned)a->M;
    SIMT_LAUNCH(logprobs_max_kernel, dim3(M, (unsigned)((n_blocks + WARPS - 1) / WARPS)), WARPS * 32, 0, stream, keys,
                a->logits, a->suppressed, a->n_suppressed, a->V, n_blocks);
    TV_TRY(cuda_rt_launched("logprobs (max)", err));
    if (!greedy || a->token) {
        /* Each block of threads looks up the maximum first: enough work after it, once there are enough blocks. */
        const size_t many = cells / (size_t)(WARPS * 16 * dev->info.multiprocessors);
        const int per_warp = many < 1 ? 1 : many > 8 ? 8 : (int)many;
        const dim3 grid(M, (unsigned)((n_blocks + WARPS * per_warp - 1) / (WARPS * per_warp)));
        if (a->temperature == 1)
            SIMT_LAUNCH((logprobs_sum_kernel<true>), grid, WARPS * 32, 0, stream, sums, counts, keys, a->logits,
                        a->token, a->V, n_blocks, per_warp, a->temperature, !greedy);
        else
            SIMT_LAUNCH((logprobs_sum_kernel<false>), grid, WARPS * 32, 0, stream, sums, counts, keys, a->logits,
                        a->token, a->V, n_blocks, per_warp, a->temperature, !greedy);
        TV_TRY(cuda_rt_launched("logprobs (sum)", err));
    }
    const size_t smem = (size_t)n_blocks * (sizeof(uint64_t) + sizeof(float));
    SIMT_LAUNCH(logprobs_select_kernel, M, THREADS, smem, stream, a->topk_ids, a->topk_logprobs, a->token_logprob,
                a->token_rank, a->bad, keys, sums, counts, a->logits, a->token, a->V, n_blocks, a->k, a->temperature,
                greedy);
    return cuda_rt_launched("logprobs (select)", err);
}
