/* flash: tiles of keys on the tensor cores, online softmax in f32, P rounded to bf16 before P V, splits of keys merged
 * in f32 (docs/numerics.md, "Attention").
 *
 * q [M,H,HS] bf16, k and v [slots,G,S,HS] bf16 or bytes with scales, out [M,H*HS] bf16. The query rows of a segment and
 * kv head are numbered by position, then head; a warp has 16 of them as the rows of its mma tiles and walks the tiles
 * of keys, counted from key 0, that its rows see. Keys and values reach shared memory by cp.async: three slots of 64
 * rows, in which K and V of the tiles take turns; while one is computed with, two are under way. Rows of a slot are HS
 * + 8 elements long, an odd number of 16-byte units, so that ldmatrix meets no bank twice.
 *
 * Bytes (fp8 and int8 caches) stay bytes in the slots, a row's scale behind it, and become bf16 (kv.h) in the registers
 * of the mma that takes them: each is converted once by a warp. ldmatrix then hands a lane four neighbouring elements
 * of a key, or two of two values, where bf16 gives half of that. Their place in the operand is theirs all the same: the
 * elements of a run of 16 of the head are permuted alike in q and k, and the columns of 16 outputs, in o alone.
 *
 * One kernel, cut in two ways:
 *   few rows (a decode row; a chunk whose rows fit the tiles of one position): one warp a block; each block takes one
 *     split and stores its maximum, sum and output in scratch, and flash_combine_kernel merges the splits;
 *     grid (tiles x splits, G, segments), shared memory 3 slots (51 KiB at HS = 128: four blocks an SM);
 *   many rows (prompts): four warps a block share the slots; a block walks all keys that its rows see and merges each
 *     split, in shared memory, as it ends; grid (tiles of 64 rows, G, segments), 3 slots + 32 KiB at HS = 128.
 *
 * Lengths of rows are read on the card, the host's choose cut, grid and scratch only: a captured step may be replayed
 * with rows no longer than those it was captured with.
 *
 * A row's bits depend on its own q, its keys and values, and the plan: not on the cut, on the rows beside it, or its
 * place among them. Keys past the last that a warp's rows see are neither read nor multiplied (zeros stand there, with
 * weight 0). Where rows of one chunk see different keys, a row multiplies the values of later rows in its tile by 0: an
 * infinity or NaN in V, of a position of the same chunk that has been computed, reaches earlier rows there.
 *
 * Limits: head sizes that are multiples of 8, at most 256 (bytes: of 16, at most 128); key_tile a multiple of 16, at
 * most 64. NUMERICS: those of docs/numerics.md, with the CPU device's bits in all but the two products: q.k sums runs
 * of 16 elements of the head, P V runs of 16 keys, each run with what was summed before in one tensor core operation,
 * in ascending order. Scale, exponentials, sums l, merging and division follow the page exactly. */
#include "kernels/cuda/dev.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kv.h"
#include "kernels/cuda/numerics.h"

enum {
    FLASH_KEYS = CUDA_ATTN_MAX_KEY_TILE, /* rows of a slot */
    FLASH_ROWS = 16,                     /* query rows of a warp */
    FLASH_WARPS = 4,                     /* of a block for many rows */
    FLASH_SCRATCH = 64 << 20,            /* bytes of partial results of one launch, unless one segment has more */
    FLASH_MAX_GRID_YZ = 65535
};

struct flash_step {
    const uint16_t *q;
    const void *k, *v;
    const float *k_scale, *v_scale; /* NULL: bf16 */
    uint16_t *out;
    const tv_segment *segments; /* [gridDim.z] */
    float *part_o;              /* [segments,G,splits,rows,HS] f32, of few rows with more than one split */
    float2 *part_ml;            /* [segments,G,splits,rows] maximum and sum */
    int H, G, S, HS, key_tile, split_keys, splits, rows;
    float scale;
};

template <int HSP, int KV> struct flash_shape {
    static const int ELEMENT = KV == KV_BF16 ? 2 : 1;             /* bytes */
    static const int RUNS = 2 / ELEMENT;                          /* of 16 elements in 32 bytes, a load of ldmatrix */
    static const int LD = HSP * ELEMENT / 2 + 8;                  /* 2-byte units of a row of keys or values ... */
    static const int SLOT = FLASH_KEYS * LD, Q_LD = HSP + 8;      /* ... of a slot, of a row of queries */
    static const bool Q_SHARED = HSP > 128;                       /* else a warp's queries stay in registers */
    static const int BLOCKS = HSP <= 64 ? 3 : HSP <= 128 ? 2 : 1; /* of four warps on an SM that registers must allow */
};
template <int WARPS> __device__ __forceinline__ void flash_sync() {
    if (WARPS == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* A split's maximum and sum merged into those of the splits before it; outputs then are merged with flash_merge_output.
 */
struct flash_weights {
    float was, now;
};
__device__ __forceinline__ flash_weights flash_merge(float &m, float &l, float next_m, float next_l) {
    const float new_m = fmaxf(m, next_m);
    const flash_weights w = {exp_f32(m - new_m), exp_f32(next_m - new_m)};
    l = fmaf(next_l, w.now, l * w.was);
    m = new_m;
    return w;
}
__device__ __forceinline__ float flash_merge_output(float o, float next_o, flash_weights w) {
    return fmaf(next_o, w.now, o * w.was);
}

/* The scale behind row r of a slot. */
template <int HSP, int KV> __device__ __forceinline__ float flash_scale(const uint16_t *slot, int r) {
    return *(const float *)(slot + r * flash_shape<HSP, KV>::LD + HSP / 2);
}

/* q.k of 16 rows and `steps` runs of 16 keys. FULL: all four, without branches, so that eight sums are under way. */
template <int HSP, int KV, bool FULL>
__device__ __forceinline__ void flash_scores(float (&s)[FLASH_KEYS / 8][4], const uint32_t (&q)[HSP / 16][4],
                                             const uint16_t *q_shared, const uint16_t *keys, int steps, int lane) {
    typedef flash_shape<HSP, KV> shape;
    const int LD = shape::LD, RUNS = shape::RUNS;
    float scale[FLASH_KEYS / 8]; /* of key lane / 4 of each eight */
#pragma unroll
    for (int nb = 0; nb < FLASH_KEYS / 8; nb++)
        scale[nb] = KV != KV_BF16 && (FULL || nb < 2 * steps) ? flash_scale<HSP, KV>(keys, nb * 8 + lane / 4) : 0.0f;
    keys += (lane / 16 * 8 + lane % 8) * LD + lane / 8 % 2 * 8;
    q_shared += lane % 16 * shape::Q_LD + lane / 16 * 8;
#pragma unroll
    for (int nb = 0; nb < FLASH_KEYS / 8; nb++) s[nb][0] = s[nb][1] = s[nb][2] = s[nb][3] = 0.0f;
#pragma unroll
    for (int outer = 0; outer < (FULL ? 1 : FLASH_KEYS / 16); outer++) {
        if (!FULL && outer >= steps) continue;
#pragma unroll
        for (int d = 0; d < HSP / 16; d += RUNS) {
            uint32_t rows[RUNS][4];
#pragma unroll
            for (int j = 0; j < RUNS; j++) {
                if (shape::Q_SHARED) {
                    ldmatrix_x4(rows[j], q_shared + (d + j) * 16);
                } else {
#pragma unroll
                    for (int i = 0; i < 4; i++) rows[j][i] = q[d + j][i];
                }
            }
#pragma unroll
            for (int inner = 0; inner < (FULL ? FLASH_KEYS / 16 : 1); inner++) {
                const int kb = FULL ? inner : outer;
                uint32_t b[4];
                ldmatrix_x4(b, keys + kb * 16 * LD + d / RUNS * 16);
                if constexpr (KV == KV_BF16) {
                    const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
                    mma_m16n8k16_bf16(s[2 * kb], rows[0], left);
                    mma_m16n8k16_bf16(s[2 * kb + 1], rows[0], right);
                } else {
#pragma unroll
                    for (int j = 0; j < RUNS; j++)
#pragma unroll
                        for (int i = 0; i < 2; i++) {
                            const float4 x = kv_four<KV>(b[2 * i + j]);
                            const float by = scale[2 * kb + i];
                            const uint32_t key[2] = {bf16_pack(x.x * by, x.y * by), bf16_pack(x.z * by, x.w * by)};
                            mma_m16n8k16_bf16(s[2 * kb + i], rows[j], key);
                        }
                }
            }
        }
    }
}

/* o += P V of a run of 16 keys: values points to the lane's row of it, keys to the slot's row of its first key. */
template <int HSP, int KV>
__device__ __forceinline__ void flash_values(float (&o)[HSP / 8][4], const uint32_t (&p)[4], const uint16_t *values,
                                             const uint16_t *keys, int lane) {
    const int RUNS = flash_shape<HSP, KV>::RUNS;
    float scale[4]; /* of keys 2 c, 2 c + 1, 2 c + 8, 2 c + 9 with c = lane % 4 */
#pragma unroll
    for (int i = 0; i < 4; i++)
        scale[i] = KV == KV_BF16 ? 0.0f : flash_scale<HSP, KV>(keys, lane % 4 * 2 + i / 2 * 8 + i % 2);
#pragma unroll
    for (int d = 0; d < HSP / 16; d += RUNS) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, values + d / RUNS * 16);
        if constexpr (KV == KV_BF16) {
            const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
            mma_m16n8k16_bf16(o[2 * d], p, left);
            mma_m16n8k16_bf16(o[2 * d + 1], p, right);
        } else {
#pragma unroll
            for (int j = 0; j < RUNS; j++) { /* even columns, then odd ones */
                const float4 x = kv_four<KV>(b[2 * j]), y = kv_four<KV>(b[2 * j + 1]);
                const uint32_t even[2] = {bf16_pack(x.x * scale[0], x.z * scale[1]),
                                          bf16_pack(y.x * scale[2], y.z * scale[3])};
                const uint32_t odd[2] = {bf16_pack(x.y * scale[0], x.w * scale[1]),
                                         bf16_pack(y.y * scale[2], y.w * scale[3])};
                mma_m16n8k16_bf16(o[2 * (d + j)], p, even);
                mma_m16n8k16_bf16(o[2 * (d + j) + 1], p, odd);
            }
        }
    }
}

template <int HSP, int WARPS, int KV>
__global__ void __launch_bounds__(WARPS * 32, WARPS == 1 ? 1 : flash_shape<HSP, KV>::BLOCKS)
    flash_kernel(const flash_step a) {
    SIMT_DYN_SHARED(smem);
    typedef flash_shape<HSP, KV> shape;
    const int LD = shape::LD, SLOT = shape::SLOT, Q_LD = shape::Q_LD, RUNS = shape::RUNS, T = WARPS * 32;
    const bool Q_SHARED = shape::Q_SHARED;
    uint16_t *slots = (uint16_t *)smem, *q_shared = slots + 3 * SLOT; /* [3,64,LD] 2-byte units, [WARPS*16,Q_LD] bf16 */
    float *merged = (float *)(q_shared + (Q_SHARED ? WARPS * FLASH_ROWS * Q_LD : 0)); /* [HSP/8,4,T], if splits > 1 */
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32, g = (int)blockIdx.y, heads = a.H / a.G;
    const tv_segment seg = a.segments[blockIdx.z];

    /* Long tiles of a prompt come first. */
    const int split = WARPS == 1 ? (int)blockIdx.x % a.splits : 0;
    const int tile = WARPS == 1 ? (int)blockIdx.x / a.splits : (int)(gridDim.x - 1 - blockIdx.x);
    const int all_rows = seg.n_rows * heads, block_row = tile * WARPS * FLASH_ROWS;
    const int block_rows = min(all_rows - block_row, WARPS * FLASH_ROWS);
    const int begin = split * a.split_keys,
              seen = block_rows > 0 ? seg.pos + (block_row + block_rows - 1) / heads + 1 : 0;
    if (begin >= seen) return; /* the whole block */
    const int end = WARPS == 1 ? begin + min(a.split_keys, seen - begin) : seen;
    const int tiles = (end - begin + a.key_tile - 1) / a.key_tile;

    /* This thread's two rows, keys that they see (none: no such row), and the last that a row of the warp sees. */
    const int row0 = block_row + warp * FLASH_ROWS, warp_rows = min(all_rows - row0, (int)FLASH_ROWS);
    const int warp_seen = warp_rows > 0 ? seg.pos + (row0 + warp_rows - 1) / heads + 1 : 0;
    int n_keys[2];
    size_t at[2]; /* of the row in q and out */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = row0 + lane / 4 + h * 8;
        n_keys[h] = r < all_rows ? seg.pos + r / heads + 1 : 0;
        at[h] = ((size_t)(seg.row + r / heads) * a.H + g * heads + r % heads) * a.HS;
    }

    /* Neighbouring threads load the 16-byte units of a row; some idle where there is no power of 2 of them. */
    const int UNITS = HSP * shape::ELEMENT / 16, COLUMNS = UNITS <= 4 ? 4 : UNITS <= 8 ? 8 : UNITS <= 16 ? 16 : 32;
    const int STEP = T / COLUMNS, load_row = tid / COLUMNS, column = tid % COLUMNS * 8; /* in 2-byte units */
    const int row_units = a.HS * shape::ELEMENT / 2;
    const size_t load_key = ((size_t)seg.slot * a.G + g) * a.S + begin;
    const size_t load_at = (load_key + load_row) * row_units + column, step = (size_t)STEP * row_units;
    auto load = [&](const void *cache, const float *scales, int t, int slot) {
        const int n = min(a.key_tile, end - begin - t * a.key_tile);
        if (KV != KV_BF16)
            for (int r = tid; r < (n + 15) / 16 * 16; r += T)
                cp_async_4(slots + slot * SLOT + r * LD + HSP / 2, scales + load_key + (size_t)t * a.key_tile + r,
                           r < n);
        if (n > 0 && column < UNITS * 8) {
            const bool valid = column < row_units;
            const uint16_t *from = (const uint16_t *)cache + load_at + (size_t)t * a.key_tile * row_units;
            uint16_t *to = slots + slot * SLOT + load_row * LD + column;
            if (n == FLASH_KEYS) {
#pragma unroll 8
                for (int j = 0; j < FLASH_KEYS / STEP; j++, from += step) cp_async_16(to + j * STEP * LD, from, valid);
            } else { /* zeros up to a whole run of 16 keys */
                for (int r = load_row; r < (n + 15) / 16 * 16; r += STEP, to += STEP * LD, from += step)
                    cp_async_16(to, from, valid && r < n);
            }
        }
        cp_async_commit(); /* an empty group keeps the count */
    };
    load(a.k, a.k_scale, 0, 0);
    load(a.v, a.v_scale, 0, 1);

    uint32_t q[HSP / 16][4];
#pragma unroll
    for (int d = 0; d < HSP / 16; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int h = i % 2, place = d * 16 + i / 2 * 8 + lane % 4 * 2; /* in the operand */
            const int element = KV == KV_BF16 ? place : d * 16 + lane % 4 * 4 + i / 2 * 2;
            uint32_t x = 0;
            if (n_keys[h] && element < a.HS) x = *(const uint32_t *)(a.q + at[h] + element);
            if (Q_SHARED)
                *(uint32_t *)(q_shared + (warp * FLASH_ROWS + lane / 4 + h * 8) * Q_LD + place) = x;
            else
                q[d][i] = x;
        }
    q_shared += warp * FLASH_ROWS * Q_LD;

    float o[HSP / 8][4], m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f}; /* of the running split */
    float merged_m[2] = {-INFINITY, -INFINITY}, merged_l[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < HSP / 8; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;

    int slot = 0, split_begin = begin; /* slot of this tile's keys */
    for (int t = 0; t < tiles; t++) {
        const int key = begin + t * a.key_tile, n = min(a.key_tile, end - key);
        const int slot_v = slot == 2 ? 0 : slot + 1, slot_next = slot_v == 2 ? 0 : slot_v + 1;
        const int steps = (max(0, min(n, warp_seen - key)) + 15) / 16;
        cp_async_wait<1>();
        flash_sync<WARPS>(); /* the keys are there, and all warps are done with the last tile's values */
        load(a.k, a.k_scale, t + 1, slot_next);

        float s[FLASH_KEYS / 8][4];
        uint32_t p[FLASH_KEYS / 16][4]; /* as the A operand of P V */
        if (steps) {
            if (steps == FLASH_KEYS / 16)
                flash_scores<HSP, KV, true>(s, q, q_shared, slots + slot * SLOT, steps, lane);
            else
                flash_scores<HSP, KV, false>(s, q, q_shared, slots + slot * SLOT, steps, lane);

            float shrink[2] = {1.0f, 1.0f};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (h && warp_rows <= 8) { /* rows 8 to 15 do not exist */
#pragma unroll
                    for (int kb = 0; kb < FLASH_KEYS / 16; kb++) p[kb][1] = p[kb][3] = 0;
                    continue;
                }
                const bool live = n_keys[h] > key;
                const int visible = min(n, n_keys[h] - key) - lane % 4 * 2; /* of columns 8 nb + e */
                float top = -INFINITY;
#pragma unroll
                for (int nb = 0; nb < FLASH_KEYS / 8; nb++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float x = nb * 8 + e < visible ? s[nb][2 * h + e] * a.scale : -INFINITY;
                        s[nb][2 * h + e] = x;
                        top = fmaxf(top, x);
                    }
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                const float new_m = fmaxf(m[h], top), subtract = live ? new_m : 0.0f;
                if (live) shrink[h] = exp_f32(m[h] - new_m);
                float sum[2] = {0.0f, 0.0f}; /* this thread's two of the eight lanes */
#pragma unroll
                for (int kb = 0; kb < FLASH_KEYS / 16; kb++) {
                    if (kb >= steps) continue;
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float e0 = exp_f32(s[2 * kb + i][2 * h] - subtract),
                              e1 = exp_f32(s[2 * kb + i][2 * h + 1] - subtract);
                        sum[0] += e0, sum[1] += e1;
                        p[kb][2 * i + h] = bf16_pack(e0, e1);
                    }
                }
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 2);
                    sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], 1);
                }
                l[h] = fmaf(l[h], shrink[h], sum[0] + sum[1]);
                m[h] = new_m;
            }
            if (shrink[0] != 1.0f || shrink[1] != 1.0f) {
#pragma unroll
                for (int i = 0; i < HSP / 8; i++)
                    o[i][0] *= shrink[0], o[i][1] *= shrink[0], o[i][2] *= shrink[1], o[i][3] *= shrink[1];
            }
        }

        cp_async_wait<1>();
        flash_sync<WARPS>(); /* the values are there, and all warps are done with the keys */
        load(a.v, a.v_scale, t + 1, slot);
        const uint16_t *values = slots + slot_v * SLOT, *lane_values = values + lane % 16 * LD + lane / 16 * 8;
#pragma unroll
        for (int kb = 0; kb < FLASH_KEYS / 16; kb++)
            if (kb < steps) flash_values<HSP, KV>(o, p[kb], lane_values + kb * 16 * LD, values + kb * 16 * LD, lane);
        slot = slot_next;

        /* A prompt's split ends: it is merged into the ones before by the rows that have it. */
        const int next = key + n;
        if (WARPS > 1 && end > a.split_keys && (next == end || next - split_begin == a.split_keys)) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float *to = merged + 2 * h * T + tid;
                if (split_begin == 0) {
                    merged_m[h] = m[h], merged_l[h] = l[h];
#pragma unroll
                    for (int i = 0; i < HSP / 8; i++)
                        to[4 * i * T] = o[i][2 * h], to[(4 * i + 1) * T] = o[i][2 * h + 1];
                } else if (n_keys[h] > split_begin) {
                    const flash_weights w = flash_merge(merged_m[h], merged_l[h], m[h], l[h]);
#pragma unroll
                    for (int i = 0; i < HSP / 8; i++)
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            const int at_e = (4 * i + e) * T;
                            to[at_e] = flash_merge_output(to[at_e], o[i][2 * h + e], w);
                        }
                }
                m[h] = -INFINITY, l[h] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < HSP / 8; i++) {
                if (next == end)
#pragma unroll
                    for (int e = 0; e < 4; e++) o[i][e] = merged[(i * 4 + e) * T + tid];
                else
                    o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
            }
            if (next == end) l[0] = merged_l[0], l[1] = merged_l[1];
            split_begin = next;
        }
    }
    cp_async_wait<0>();

#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (n_keys[h] <= begin) continue;
        if (WARPS == 1 && a.part_o) {
            size_t to = (((size_t)blockIdx.z * a.G + g) * a.splits + split) * a.rows + row0 + lane / 4 + h * 8;
            if (lane % 4 == 0) a.part_ml[to] = make_float2(m[h], l[h]);
            float *part = a.part_o + to * a.HS;
#pragma unroll
            for (int i = 0; i < HSP / 8; i += RUNS) {
                if (i * 8 >= a.HS) continue;
                if (KV == KV_BF16)
                    *(float2 *)(part + i * 8 + lane % 4 * 2) = make_float2(o[i][2 * h], o[i][2 * h + 1]);
                else
                    *(float4 *)(part + i * 8 + lane % 4 * 4) =
                        make_float4(o[i][2 * h], o[i + RUNS - 1][2 * h], o[i][2 * h + 1], o[i + RUNS - 1][2 * h + 1]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < HSP / 8; i += RUNS) {
                if (i * 8 >= a.HS) continue;
                if (KV == KV_BF16)
                    *(uint32_t *)(a.out + at[h] + i * 8 + lane % 4 * 2) =
                        bf16_pack(o[i][2 * h] / l[h], o[i][2 * h + 1] / l[h]);
                else
                    *(uint2 *)(a.out + at[h] + i * 8 + lane % 4 * 4) =
                        make_uint2(bf16_pack(o[i][2 * h] / l[h], o[i + RUNS - 1][2 * h] / l[h]),
                                   bf16_pack(o[i][2 * h + 1] / l[h], o[i + RUNS - 1][2 * h + 1] / l[h]));
            }
        }
    }
}

enum { COMBINE_WARPS = 4, COMBINE_VECTORS = CUDA_ATTN_MAX_HEAD / 128 };

/* out = r(o / l) of few rows, their splits merged in ascending order. A warp a row, four elements a lane and turn; grid
 * (rows / 4, G, segments). */
__global__ void __launch_bounds__(COMBINE_WARPS * 32) flash_combine_kernel(const flash_step a) {
    const int lane = (int)threadIdx.x % 32, r = (int)blockIdx.x * COMBINE_WARPS + (int)threadIdx.x / 32;
    const int g = (int)blockIdx.y, heads = a.H / a.G;
    const tv_segment seg = a.segments[blockIdx.z];
    if (r >= seg.n_rows * heads) return;
    const int splits = (seg.pos + r / heads) / a.split_keys + 1;
    const size_t part = (((size_t)blockIdx.z * a.G + g) * a.splits) * a.rows + r;
    float4 o[COMBINE_VECTORS];
    float m = 0.0f, l = 0.0f;
    for (int i = 0; i < splits; i++) {
        const float2 ml = a.part_ml[part + (size_t)i * a.rows];
        const float *next = a.part_o + (part + (size_t)i * a.rows) * a.HS;
        flash_weights w = {0.0f, 1.0f};
        if (i == 0)
            m = ml.x, l = ml.y;
        else
            w = flash_merge(m, l, ml.x, ml.y);
#pragma unroll
        for (int j = 0; j < COMBINE_VECTORS; j++) {
            const int d = j * 128 + lane * 4;
            if (d >= a.HS) continue;
            const float4 x = *(const float4 *)(next + d);
            o[j] = i == 0 ? x
                          : make_float4(flash_merge_output(o[j].x, x.x, w), flash_merge_output(o[j].y, x.y, w),
                                        flash_merge_output(o[j].z, x.z, w), flash_merge_output(o[j].w, x.w, w));
        }
    }
#pragma unroll
    for (int j = 0; j < COMBINE_VECTORS; j++) {
        const int d = j * 128 + lane * 4;
        if (d >= a.HS) continue;
        uint16_t *to = a.out + ((size_t)(seg.row + r / heads) * a.H + g * heads + r % heads) * a.HS + d;
        *(uint2 *)to = make_uint2(bf16_pack(o[j].x / l, o[j].y / l), bf16_pack(o[j].z / l, o[j].w / l));
    }
}

/* Query rows that one kv head has in the tiles of one position. */
static int few_rows(int heads) { return (heads + FLASH_ROWS - 1) / FLASH_ROWS * FLASH_ROWS; }

static int ceil_div(int a, int b) { return a / b + (a % b != 0); }

template <int HSP, int WARPS, int KV>
static void launch_shape(tv_dev *dev, const flash_step &step, dim3 grid, bool merges) {
    typedef flash_shape<HSP, KV> shape;
    const size_t queries = shape::Q_SHARED ? WARPS * FLASH_ROWS * shape::Q_LD : 0;
    const size_t slots = (3 * shape::SLOT + queries) * sizeof(uint16_t);
    const size_t merged = WARPS > 1 ? (size_t)HSP / 2 * WARPS * 32 * sizeof(float) : 0;
    SIMT_ALLOW_SMEM((flash_kernel<HSP, WARPS, KV>), slots + merged);
    SIMT_LAUNCH((flash_kernel<HSP, WARPS, KV>), grid, WARPS * 32, slots + (merges ? merged : 0),
                (cudaStream_t)dev->stream, step);
}

template <int WARPS> static void launch_bf16(tv_dev *dev, const flash_step &step, dim3 grid, bool merges) {
    if (step.HS <= 32)
        launch_shape<32, WARPS, KV_BF16>(dev, step, grid, merges);
    else if (step.HS <= 64)
        launch_shape<64, WARPS, KV_BF16>(dev, step, grid, merges);
    else if (step.HS <= 96)
        launch_shape<96, WARPS, KV_BF16>(dev, step, grid, merges);
    else if (step.HS <= 128)
        launch_shape<128, WARPS, KV_BF16>(dev, step, grid, merges);
    else if (step.HS <= 192)
        launch_shape<192, WARPS, KV_BF16>(dev, step, grid, merges);
    else
        launch_shape<256, WARPS, KV_BF16>(dev, step, grid, merges);
}
/* Fewer sizes: others are padded. */
template <int WARPS, int KV> static void launch_bytes(tv_dev *dev, const flash_step &step, dim3 grid, bool merges) {
    if (step.HS <= 64)
        launch_shape<64, WARPS, KV>(dev, step, grid, merges);
    else
        launch_shape<128, WARPS, KV>(dev, step, grid, merges);
}
template <int WARPS> static void launch(tv_dev *dev, tv_dtype dtype, const flash_step &step, dim3 grid, bool merges) {
    if (dtype == TV_BF16)
        launch_bf16<WARPS>(dev, step, grid, merges);
    else if (dtype == TV_F8_E4M3)
        launch_bytes<WARPS, KV_FP8>(dev, step, grid, merges);
    else
        launch_bytes<WARPS, KV_INT8>(dev, step, grid, merges);
}

/* Bytes of partial results; in double because the dims' product may not fit elsewhere. */
static double part_bytes(double segments, int G, double splits, int rows, int HS) {
    return segments * G * splits * rows * (HS + 2) * sizeof(float);
}

extern "C" size_t cuda_attn_flash_scratch_bytes(const tv_dev *dev, const tv_kv_layer *kv, int H) {
    const size_t limit = dev->flash_scratch ? dev->flash_scratch : (size_t)FLASH_SCRATCH;
    double most = part_bytes(kv->slots, kv->G, ceil_div(kv->S, CUDA_ATTN_KEY_STEP), few_rows(H / kv->G), kv->HS);
    return most < (double)limit ? (size_t)most : limit;
}

/* What the segments of one launch have at most. */
struct flash_extent {
    int rows, splits;
};
static flash_extent with(flash_extent e, const tv_segment *s, int heads, int split_keys) {
    int rows = s->n_rows * heads, splits = ceil_div(s->pos + s->n_rows, split_keys);
    return flash_extent{rows > e.rows ? rows : e.rows, splits > e.splits ? splits : e.splits};
}

extern "C" tv_status cuda_attn_flash(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    TV_TRY(tv_check_attn(a, err));
    TV_TRY(cuda_attn_check(a, err));
    const int G = a->kv.G, HS = a->kv.HS, heads = a->H / G, few = few_rows(heads);
    const tv_attn_plan plan = a->plan;
    if (plan.key_tile % CUDA_ATTN_KEY_STEP || plan.key_tile > CUDA_ATTN_MAX_KEY_TILE)
        return TV_FAIL(err, TV_EUNSUPPORTED, "attention flash: tiles of %d keys must be multiples of %d, at most %d",
                       plan.key_tile, CUDA_ATTN_KEY_STEP, CUDA_ATTN_MAX_KEY_TILE);
    if (a->kv.dtype != TV_BF16 && (HS % CUDA_ATTN_BYTES_HEAD_STEP || HS > CUDA_ATTN_BYTES_MAX_HEAD))
        return TV_FAIL(err, TV_EUNSUPPORTED,
                       "attention flash: HS=%d of a cache of bytes must be a multiple of %d, at most %d", HS,
                       CUDA_ATTN_BYTES_HEAD_STEP, CUDA_ATTN_BYTES_MAX_HEAD);
    if (G > FLASH_MAX_GRID_YZ || (double)a->M * heads > INT32_MAX)
        return TV_FAIL(err, TV_EUNSUPPORTED, "attention flash: M=%d rows of H=%d heads and G=%d kv heads are too many",
                       a->M, a->H, G);
    const tv_segment *segments;
    TV_TRY(cuda_segments(dev, a->segments, a->n_segments, &segments, err));
    void *scratch;
    size_t room = cuda_attn_flash_scratch_bytes(dev, &a->kv, a->H);
    TV_TRY(cuda_scratch(dev, CUDA_SCRATCH_ATTENTION, room, &scratch, err));

    /* Runs of segments of one kind, cut where their partial results would not fit. */
    for (int i = 0, n; i < a->n_segments; i += n) {
        const tv_segment *s = &a->segments[i];
        const bool many = (int64_t)s->n_rows * heads > few;
        flash_extent most = with(flash_extent{0, 0}, s, heads, plan.split_keys);
        for (n = 1; i + n < a->n_segments && n < FLASH_MAX_GRID_YZ; n++) {
            if (((int64_t)s[n].n_rows * heads > few) != many) break;
            flash_extent more = with(most, &s[n], heads, plan.split_keys);
            if (!many && part_bytes(n + 1, G, more.splits, more.rows, HS) > (double)room) break;
            most = more;
        }
        flash_step step = {
            a->q, a->kv.k, a->kv.v, a->kv.k_scale, a->kv.v_scale,   a->out,      segments + i, NULL,    NULL, a->H,
            G,    a->kv.S, HS,      plan.key_tile, plan.split_keys, most.splits, most.rows,    a->scale};
        const dim3 tiles(ceil_div(most.rows, FLASH_ROWS * (many ? FLASH_WARPS : 1)), G, n);
        if (many) {
            launch<FLASH_WARPS>(dev, a->kv.dtype, step, tiles, most.splits > 1);
            TV_TRY(cuda_rt_launched("attention flash, prompts", err));
            continue;
        }
        if (most.splits > 1) {
            size_t rows = (size_t)n * G * most.splits * most.rows;
            TV_TRY(cuda_scratch(dev, CUDA_SCRATCH_ATTENTION, rows * (HS + 2) * sizeof(float), &scratch, err));
            step.part_o = (float *)scratch;
            step.part_ml = (float2 *)(step.part_o + rows * HS);
        }
        if ((double)tiles.x * most.splits > INT32_MAX)
            return TV_FAIL(err, TV_EUNSUPPORTED, "attention flash: %d splits are too many", most.splits);
        launch<1>(dev, a->kv.dtype, step, dim3(tiles.x * most.splits, G, n), false);
        TV_TRY(cuda_rt_launched("attention flash, few rows", err));
        if (most.splits == 1) continue;
        SIMT_LAUNCH(flash_combine_kernel, dim3(ceil_div(most.rows, COMBINE_WARPS), G, n), COMBINE_WARPS * 32, 0,
                    (cudaStream_t)dev->stream, step);
        TV_TRY(cuda_rt_launched("attention flash, combine", err));
    }
    return TV_OK;
}
