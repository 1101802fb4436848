/* math and eager: whole rows of scores, softmax over the row, weighted values (docs/numerics.md, "Attention").
 *
 * q [M,H,HS] bf16, k and v [slots,G,S,HS] bf16, or bytes with scales, each read as bf16 (kv.h), out [M,H*HS] bf16. A
 * unit is R consecutive query rows of one segment and kv head, numbered by position, then head, so that they share what
 * is read of its keys and values. Blocks of 256 threads take units in turn. A block keeps its scores [R,stride] f32 in
 * shared memory where they fit, else in a slice of scratch of its own.
 *
 * Scores: a thread a key, eight chains over the head for each row, in registers. Softmax: exponentials by all threads,
 * their sum by one warp a row whose first eight lanes are the eight chains. Values: a thread two elements of a row, one
 * chain over the keys. Lengths of rows are read on the card: a captured step may be replayed with rows no longer than
 * those it was captured with.
 *
 * Limits: head sizes that are multiples of 8, at most 256.
 * NUMERICS: the CPU device's bits, NaN payloads excepted. */
#include "kernels/cuda/dev.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kv.h"
#include "kernels/cuda/numerics.h"

enum {
    ROWS_THREADS = 256,
    ROWS_WARPS = ROWS_THREADS / 32,
    ROWS_MOST = 8,            /* rows of a unit; a warp each in the softmax */
    ROWS_SHARED = 64 << 10,   /* bytes of scores up to which they stay in shared memory: two blocks fit an SM */
    ROWS_SCRATCH = 128 << 20, /* bytes of scratch that all blocks together may take, unless one needs more */
    ROWS_BLOCKS_PER_MULTIPROCESSOR = 8
};

struct rows_step {
    const uint16_t *q;
    const void *k, *v;
    const float *k_scale, *v_scale;
    uint16_t *out;
    const tv_segment *segments;
    float *scratch; /* [gridDim.x,R,stride], or NULL: shared memory */
    int units, tiles, H, G, S, HS, stride, eager;
    float scale;
};

/* Eight elements of a key, and two of a value: r(element * scale) where the cache holds bytes. */
template <int KV> __device__ __forceinline__ void rows_eight(float (&to)[8], const uint8_t *from, float scale) {
    if (KV == KV_BF16) {
        const uint4 x = *(const uint4 *)from;
        to[0] = bf16_lo(x.x), to[1] = bf16_hi(x.x), to[2] = bf16_lo(x.y), to[3] = bf16_hi(x.y);
        to[4] = bf16_lo(x.z), to[5] = bf16_hi(x.z), to[6] = bf16_lo(x.w), to[7] = bf16_hi(x.w);
    } else {
        const uint2 x = *(const uint2 *)from;
        const float4 lo = kv_four<KV>(x.x), hi = kv_four<KV>(x.y);
        to[0] = bf16_round(lo.x * scale), to[1] = bf16_round(lo.y * scale);
        to[2] = bf16_round(lo.z * scale), to[3] = bf16_round(lo.w * scale);
        to[4] = bf16_round(hi.x * scale), to[5] = bf16_round(hi.y * scale);
        to[6] = bf16_round(hi.z * scale), to[7] = bf16_round(hi.w * scale);
    }
}
template <int KV> __device__ __forceinline__ float2 rows_two(uint32_t x, float scale) {
    if (KV == KV_BF16) return make_float2(bf16_lo(x), bf16_hi(x));
    const float2 v = kv_pair<KV>(x);
    return make_float2(bf16_round(v.x * scale), bf16_round(v.y * scale));
}

template <int R, int KV> __global__ void __launch_bounds__(ROWS_THREADS) attn_rows_kernel(const rows_step a) {
    SIMT_SHARED(float, maxima, [ROWS_WARPS][R]);
    SIMT_SHARED(float, totals, [R]);
    SIMT_DYN_SHARED(smem);
    const int ELEMENT = KV == KV_BF16 ? 2 : 1; /* bytes, of the cache */
    float *q = (float *)smem;                  /* [R,HS] f32 */
    float *s = a.scratch ? a.scratch + (size_t)blockIdx.x * R * a.stride : q + R * a.HS;
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32, heads = a.H / a.G, HS = a.HS;

    for (int unit = (int)blockIdx.x; unit < a.units; unit += (int)gridDim.x) {
        const int g = unit % a.G, first = unit / a.G % a.tiles * R;
        const tv_segment seg = a.segments[unit / a.G / a.tiles];
        const int rows = min(seg.n_rows * heads - first, R);
        if (rows <= 0) continue;
        const size_t cache_row = ((size_t)seg.slot * a.G + g) * a.S, cache = cache_row * HS;
        /* Row r of the segment is in q and out at + (r / heads * H + r % heads) HS. */
        const size_t at = ((size_t)seg.row * a.H + (size_t)g * heads) * HS;
        const int longest = seg.pos + (first + rows - 1) / heads + 1;

        __syncthreads(); /* the last unit is done with shared memory */
        for (int i = tid; i < R * HS; i += ROWS_THREADS) {
            int r = first + i / HS;
            q[i] = i / HS < rows ? bf16_lo(a.q[at + ((size_t)(r / heads) * a.H + r % heads) * HS + i % HS]) : 0.0f;
        }
        __syncthreads();

        float most[R];
#pragma unroll
        for (int r = 0; r < R; r++) most[r] = -INFINITY;
        for (int j = tid; j < longest; j += ROWS_THREADS) {
            const uint8_t *key = (const uint8_t *)a.k + (cache + (size_t)j * HS) * ELEMENT;
            const float scale = KV == KV_BF16 ? 0.0f : a.k_scale[cache_row + j];
            float acc[R][8];
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int i = 0; i < 8; i++) acc[r][i] = 0.0f;
            for (int d = 0; d < HS; d += 8) {
                float k[8];
                rows_eight<KV>(k, key + d * ELEMENT, scale);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    const float4 lo = *(const float4 *)(q + r * HS + d), hi = *(const float4 *)(q + r * HS + d + 4);
                    acc[r][0] = fmaf(lo.x, k[0], acc[r][0]), acc[r][1] = fmaf(lo.y, k[1], acc[r][1]);
                    acc[r][2] = fmaf(lo.z, k[2], acc[r][2]), acc[r][3] = fmaf(lo.w, k[3], acc[r][3]);
                    acc[r][4] = fmaf(hi.x, k[4], acc[r][4]), acc[r][5] = fmaf(hi.y, k[5], acc[r][5]);
                    acc[r][6] = fmaf(hi.z, k[6], acc[r][6]), acc[r][7] = fmaf(hi.w, k[7], acc[r][7]);
                }
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
                float x = ((acc[r][0] + acc[r][4]) + (acc[r][2] + acc[r][6])) +
                          ((acc[r][1] + acc[r][5]) + (acc[r][3] + acc[r][7]));
                x = a.eager ? bf16_round(bf16_round(x) * a.scale) : x * a.scale;
                if (r < rows && j < seg.pos + (first + r) / heads + 1) {
                    s[(size_t)r * a.stride + j] = x;
                    most[r] = fmaxf(most[r], x);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int o = 16; o; o >>= 1) most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], o));
            if (lane == 0) maxima[warp][r] = most[r];
        }
        __syncthreads();

        for (int r = 0; r < rows; r++) {
            const int n = seg.pos + (first + r) / heads + 1;
            float m = maxima[0][r], *row = s + (size_t)r * a.stride;
#pragma unroll
            for (int w = 1; w < ROWS_WARPS; w++) m = fmaxf(m, maxima[w][r]);
            for (int j = tid; j < n; j += ROWS_THREADS) row[j] = exp_f32(row[j] - m);
        }
        __syncthreads();

        if (warp < rows) { /* chain i of eight is lane i, which adds elements i, i + 8, i + 16, i + 24 of each 32 */
            const int n = seg.pos + (first + warp) / heads + 1;
            const float *row = s + (size_t)warp * a.stride;
            float sum = 0.0f;
            for (int j = 0; j < n; j += 32) {
                float e = j + lane < n ? row[j + lane] : 0.0f;
                float e1 = __shfl_down_sync(0xffffffffu, e, 8), e2 = __shfl_down_sync(0xffffffffu, e, 16);
                float e3 = __shfl_down_sync(0xffffffffu, e, 24);
                sum = (((sum + e) + e1) + e2) + e3;
            }
            sum += __shfl_down_sync(0xffffffffu, sum, 4);
            sum += __shfl_down_sync(0xffffffffu, sum, 2);
            sum += __shfl_down_sync(0xffffffffu, sum, 1);
            if (lane == 0) totals[warp] = sum;
        }
        __syncthreads();

        for (int r = 0; r < rows; r++) {
            const int n = seg.pos + (first + r) / heads + 1;
            float total = totals[r], *row = s + (size_t)r * a.stride;
            for (int j = tid; j < n; j += ROWS_THREADS) {
                float p = row[j] / total;
                row[j] = a.eager ? bf16_round(p) : p;
            }
        }
        __syncthreads();

        const int pairs = HS / 2, groups = ROWS_THREADS / pairs, pair = tid % pairs;
        for (int r = tid / pairs; r < rows && tid < groups * pairs; r += groups) {
            const int n = seg.pos + (first + r) / heads + 1;
            const float *p = s + (size_t)r * a.stride;
            const uint8_t *v = (const uint8_t *)a.v + (cache + pair * 2) * ELEMENT;
            const float *scales = a.v_scale + cache_row;
            auto two = [&](int key) -> uint32_t {
                const uint8_t *at = v + (size_t)key * HS * ELEMENT;
                return KV == KV_BF16 ? *(const uint32_t *)at : *(const uint16_t *)at;
            };
            float lo = 0.0f, hi = 0.0f;
            int j = 0;
            for (; j + 8 <= n; j += 8) {
                uint32_t x[8];
                float scale[8];
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = two(j + i), scale[i] = KV == KV_BF16 ? 0.0f : scales[j + i];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const float2 y = rows_two<KV>(x[i], scale[i]);
                    lo = fmaf(p[j + i], y.x, lo), hi = fmaf(p[j + i], y.y, hi);
                }
            }
            for (; j < n; j++) {
                const float2 y = rows_two<KV>(two(j), KV == KV_BF16 ? 0.0f : scales[j]);
                lo = fmaf(p[j], y.x, lo), hi = fmaf(p[j], y.y, hi);
            }
            size_t to = at + ((size_t)((first + r) / heads) * a.H + (first + r) % heads) * HS + pair * 2;
            *(uint32_t *)(a.out + to) = bf16_pack(lo, hi);
        }
    }
}

static size_t round_up(size_t x, size_t to) { return (x + to - 1) / to * to; }
static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

template <int R, int KV> static void launch_rows(tv_dev *dev, const rows_step &step, unsigned blocks, size_t shared) {
    SIMT_ALLOW_SMEM((attn_rows_kernel<R, KV>), ROWS_MOST * CUDA_ATTN_MAX_HEAD * sizeof(float) + ROWS_SHARED);
    SIMT_LAUNCH((attn_rows_kernel<R, KV>), blocks, ROWS_THREADS, shared, (cudaStream_t)dev->stream, step);
}
template <int KV> static void launch(tv_dev *dev, size_t R, const rows_step &step, unsigned blocks, size_t shared) {
    if (R == 1) launch_rows<1, KV>(dev, step, blocks, shared);
    if (R == 2) launch_rows<2, KV>(dev, step, blocks, shared);
    if (R == 4) launch_rows<4, KV>(dev, step, blocks, shared);
    if (R == 8) launch_rows<8, KV>(dev, step, blocks, shared);
}

/* What all attention kernels of this device need, after tv_check_attn. */
extern "C" tv_status cuda_attn_check(const tv_attn_args *a, tv_err *err) {
    if (a->kv.HS % CUDA_ATTN_HEAD_STEP || a->kv.HS > CUDA_ATTN_MAX_HEAD)
        return TV_FAIL(err, TV_EUNSUPPORTED, "attention: HS=%d must be a multiple of %d, at most %d", a->kv.HS,
                       CUDA_ATTN_HEAD_STEP, CUDA_ATTN_MAX_HEAD);
    if (((uintptr_t)a->q | (uintptr_t)a->kv.k | (uintptr_t)a->kv.v | (uintptr_t)a->out) % 16)
        return TV_FAIL(err, TV_EARG, "attention: q, kv.k, kv.v and out must be aligned to 16 bytes");
    return TV_OK;
}

static tv_status whole_rows(tv_dev *dev, const tv_attn_args *a, int eager, tv_err *err) {
    TV_TRY(tv_check_attn(a, err));
    TV_TRY(cuda_attn_check(a, err));
    const int G = a->kv.G, HS = a->kv.HS, heads = a->H / G;
    size_t most = 0, longest = 0;
    for (int i = 0; i < a->n_segments; i++) {
        const tv_segment *s = &a->segments[i];
        size_t rows = (size_t)s->n_rows * heads, keys = (size_t)s->pos + s->n_rows;
        if (rows > most) most = rows;
        if (keys > longest) longest = keys;
    }
    size_t R = 1;
    while (R < most && R < ROWS_MOST) R *= 2;

    rows_step step = {a->q,    a->kv.k, a->kv.v, a->kv.k_scale, a->kv.v_scale, a->out, NULL, NULL, 0, 0, a->H, G,
                      a->kv.S, HS,      0,       eager,         a->scale};
    step.tiles = (int)((most + R - 1) / R);
    double units = (double)a->n_segments * step.tiles * G;
    if (units > INT32_MAX) return TV_FAIL(err, TV_EUNSUPPORTED, "attention: %d rows are too many for one call", a->M);
    step.units = (int)units;
    TV_TRY(cuda_segments(dev, a->segments, a->n_segments, &step.segments, err));

    /* Scratch follows the cache's positions, not the step's longest row, so that it does not grow from step to step. */
    const size_t multiprocessors = (size_t)dev->info.multiprocessors, stride = round_up(longest, 32);
    size_t blocks = multiprocessors * ROWS_BLOCKS_PER_MULTIPROCESSOR, shared = R * HS * sizeof(float);
    size_t slice = ROWS_MOST * round_up((size_t)a->kv.S, 32) * sizeof(float), slices = 1;
    void *scratch = NULL;
    if (slice > ROWS_SHARED) {
        if (ROWS_SCRATCH / slice > 1) slices = smaller(ROWS_SCRATCH / slice, 2 * multiprocessors);
        TV_TRY(cuda_scratch(dev, CUDA_SCRATCH_ATTENTION, slices * slice, &scratch, err));
    }
    step.stride = (int)stride;
    if (R * stride * sizeof(float) <= ROWS_SHARED) {
        shared += R * stride * sizeof(float);
    } else {
        step.scratch = (float *)scratch;
        blocks = slices;
    }
    unsigned grid = (unsigned)smaller(blocks, (size_t)step.units);
    const int kv = kv_kind(a->kv.dtype);
    if (kv == KV_BF16) launch<KV_BF16>(dev, R, step, grid, shared);
    if (kv == KV_FP8) launch<KV_FP8>(dev, R, step, grid, shared);
    if (kv == KV_INT8) launch<KV_INT8>(dev, R, step, grid, shared);
    return cuda_rt_launched(eager ? "attention eager" : "attention math", err);
}

extern "C" tv_status cuda_attn_math(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    return whole_rows(dev, a, 0, err);
}
extern "C" tv_status cuda_attn_eager(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    return whole_rows(dev, a, 1, err);
}
