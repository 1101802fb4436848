/* One output tile of y = x W^T on the tensor cores, for linear.cu and moe.cu: x [M,K], W [N,K] bf16 row-major, f32
 * sums.
 *
 * A block computes BM x BN outputs from steps of GEMM_K elements of K that pass through a ring of STAGES buffers in
 * shared memory (cp.async, 16 bytes a thread; one __syncthreads a step). A row of a buffer is 128 bytes, eight chunks
 * of 16, chunk c kept at c ^ (row % 8): ldmatrix and cp.async meet no bank conflict.
 *
 * NUMERICS: an output is a chain of m16n8k16 products in ascending k, starting from +0 at the slice's first element;
 * what lies past the slice's end is zeros, which change nothing. That order is the same whatever BM, BN, the layout of
 * warps and the output's place in a tile, so every tile gives the same bits and tiles may be chosen by M. Inside one
 * product the tensor core adds 16 exact products and the running sum in its own way (docs/numerics.md's chain is
 * another). Slices are added in ascending order in f32. */
#ifndef TV_CUDA_GEMM_TILE_H
#define TV_CUDA_GEMM_TILE_H

#include "kernels/cuda/dev.h"

enum { GEMM_K = 64, GEMM_CHUNKS = GEMM_K / 8 };
/* What a result is stored as. */
enum { GEMM_BF16, GEMM_F32, GEMM_F32_ROUNDED };

template <int BM_, int BN_, int WARPS_M, int WARPS_N, int STAGES_, int BLOCKS_> struct gemm_tile {
    static constexpr int BM = BM_, BN = BN_, STAGES = STAGES_, BLOCKS = BLOCKS_; /* BLOCKS: of a multiprocessor */
    static constexpr int THREADS = WARPS_M * WARPS_N * 32, STEP = THREADS / GEMM_CHUNKS; /* STEP: rows loaded at once */
    static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, MI = WM / 16, NI = WN / 8; /* of a warp */
    static constexpr int SMEM = STAGES * (BM + BN) * GEMM_K * 2;
    static_assert(BM % STEP == 0 && BN % STEP == 0 && STEP % 8 == 0, "loads cover the tile");
    static_assert(NI == 1 || NI % 2 == 0, "one ldmatrix brings two columns of tiles, or two steps of one");
    static_assert(BM * (BN + 8) * 2 <= SMEM, "the results are staged where the operands were");
    /* This thread's warp: first row and column of its part of the tile. */
    static __device__ __forceinline__ int warp_row() { return (int)threadIdx.x / 32 / WARPS_N * WM; }
    static __device__ __forceinline__ int warp_column() { return (int)threadIdx.x / 32 % WARPS_N * WN; }
};
/* Few rows: the weights pass once, and many small blocks keep as much of them in flight as the memory needs. */
typedef gemm_tile<16, 32, 1, 4, 8, 4> gemm_tile_16;
typedef gemm_tile<64, 64, 2, 2, 4, 3> gemm_tile_64;
typedef gemm_tile<128, 128, 2, 4, 3, 2> gemm_tile_128;

struct gemm_operands {
    const uint16_t *x, *w; /* [.,K], [N,K] bf16 */
    const int32_t *rows;   /* GATHER: row m of the product is x row rows[m]; NULL: row m */
    int M, N, K;
    int begin, end, slice; /* sums over k in [begin,end), in slices of `slice` */
};

/* Eight elements at p, of any alignment, as one chunk; those from `count` on are zero. */
__device__ __forceinline__ uint4 gemm_chunk(const uint16_t *p, int count) {
    uint32_t u[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t low = 2 * i < count ? p[2 * i] : 0, high = 2 * i + 1 < count ? p[2 * i + 1] : 0;
        u[i] = low | high << 16;
    }
    return make_uint4(u[0], u[1], u[2], u[3]);
}

/* acc = the sums of this thread's outputs of the tile at (m0, n0). VEC: K % 8 == 0, operands 16-byte aligned.
 * GATHER: rows of x by index.
 * SLICES: there may be more than one slice; without it [begin,end) is one. Ends with every thread past its last read of
 * smem (T::SMEM bytes). All threads of the block. */
template <class T, bool VEC, bool GATHER, bool SLICES>
__device__ __forceinline__ void gemm_accumulate(const gemm_operands &o, int m0, int n0, unsigned char *smem,
                                                float (&acc)[T::MI][T::NI][4]) {
    constexpr int X_LOADS = T::BM / T::STEP, W_LOADS = T::BN / T::STEP;
    uint16_t *const sx = (uint16_t *)smem, *const sw = sx + T::STAGES * T::BM * GEMM_K;
    const int lane = (int)threadIdx.x % 32, wm = T::warp_row(), wn = T::warp_column();
    /* What this thread loads: chunk `chunk` of rows row, row + STEP, .. of both operands. */
    const int chunk = (int)threadIdx.x % GEMM_CHUNKS, row = (int)threadIdx.x / GEMM_CHUNKS;
    const int to = row * GEMM_K + ((chunk ^ row) & 7) * 8;
    const uint16_t *const x0 = o.x + chunk * 8, *const w0 = o.w + (size_t)(n0 + row) * o.K + chunk * 8;
    int from[X_LOADS]; /* row of x */
#pragma unroll
    for (int j = 0; j < X_LOADS; j++) {
        const int m = m0 + j * T::STEP + row;
        from[j] = GATHER && o.rows && m < o.M ? o.rows[m] : m;
    }
    int load_k = o.begin, load_end = min(o.begin + o.slice, o.end), load_stage = 0;
    auto load = [&]() {
        if (load_k < o.end) {
            const bool in_k = load_k + chunk * 8 < load_end;
            uint16_t *x = sx + load_stage * T::BM * GEMM_K + to, *w = sw + load_stage * T::BN * GEMM_K + to;
#pragma unroll
            for (int j = 0; j < X_LOADS; j++) {
                const bool in = in_k && m0 + j * T::STEP + row < o.M;
                if (VEC)
                    cp_async_16(x + j * T::STEP * GEMM_K, in ? x0 + (size_t)from[j] * o.K + load_k : o.x, in);
                else
                    *(uint4 *)(x + j * T::STEP * GEMM_K) =
                        gemm_chunk(x0 + (size_t)from[j] * o.K + load_k, in ? load_end - load_k - chunk * 8 : 0);
            }
#pragma unroll
            for (int j = 0; j < W_LOADS; j++) {
                const bool in = in_k && n0 + j * T::STEP + row < o.N;
                if (VEC)
                    cp_async_16(w + j * T::STEP * GEMM_K, in ? w0 + (size_t)(j * T::STEP) * o.K + load_k : o.w, in);
                else
                    *(uint4 *)(w + j * T::STEP * GEMM_K) =
                        gemm_chunk(w0 + (size_t)(j * T::STEP) * o.K + load_k, in ? load_end - load_k - chunk * 8 : 0);
            }
            load_k += GEMM_K;
            if (load_k >= load_end) load_k = load_end, load_end = min(load_end + o.slice, o.end);
            load_stage = load_stage + 1 == T::STAGES ? 0 : load_stage + 1;
        }
        cp_async_commit(); /* an empty group keeps the count equal */
    };
    float sum[T::MI][T::NI][4];
#pragma unroll
    for (int i = 0; i < T::MI; i++)
#pragma unroll
        for (int j = 0; j < T::NI; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[i][j][e] = sum[i][j][e] = 0;

#pragma unroll
    for (int i = 0; i < T::STAGES - 1; i++) load();
    int stage = 0;
    for (int k = o.begin, slice_end = min(o.begin + o.slice, o.end); k < o.end;) {
        cp_async_wait<T::STAGES - 2>(); /* this step's operands are there, for every thread after the barrier; and */
        __syncthreads();                /* everyone is done with the step before, whose buffer is filled next */
        load();
        const uint16_t *tx = sx + stage * T::BM * GEMM_K, *tw = sw + stage * T::BN * GEMM_K;
        auto at = [](int r, int c) { return r * GEMM_K + ((c ^ r) & 7) * 8; };
        uint32_t fw[T::NI == 1 ? 2 : T::NI][2];
#pragma unroll
        for (int kk = 0; kk < GEMM_K / 16; kk++) {
            uint32_t fx[T::MI][4];
#pragma unroll
            for (int i = 0; i < T::MI; i++) /* rows 0-7 and 8-15 of the left 8 columns, then of the right 8 */
                ldmatrix_x4(fx[i], tx + at(wm + i * 16 + lane % 16, kk * 2 + lane / 16));
            if constexpr (T::NI == 1) { /* left and right half of this step and of the next */
                if (kk % 2 == 0) {
                    uint32_t f[4];
                    ldmatrix_x4(f, tw + at(wn + lane % 8, kk * 2 + lane / 8));
                    fw[0][0] = f[0], fw[0][1] = f[1], fw[1][0] = f[2], fw[1][1] = f[3];
                }
            } else {
#pragma unroll
                for (int j = 0; j < T::NI; j += 2) { /* left and right half of 8 outputs, then of 8 more */
                    uint32_t f[4];
                    ldmatrix_x4(f, tw + at(wn + j * 8 + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2));
                    fw[j][0] = f[0], fw[j][1] = f[1], fw[j + 1][0] = f[2], fw[j + 1][1] = f[3];
                }
            }
#pragma unroll
            for (int i = 0; i < T::MI; i++)
#pragma unroll
                for (int j = 0; j < T::NI; j++) mma_m16n8k16_bf16(acc[i][j], fx[i], fw[T::NI == 1 ? kk % 2 : j]);
        }
        stage = stage + 1 == T::STAGES ? 0 : stage + 1;
        k += GEMM_K;
        if (k >= slice_end) {
            if (SLICES) {
                const bool first = slice_end == min(o.begin + o.slice, o.end);
#pragma unroll
                for (int i = 0; i < T::MI; i++)
#pragma unroll
                    for (int j = 0; j < T::NI; j++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            sum[i][j][e] = first ? acc[i][j][e] : sum[i][j][e] + acc[i][j][e];
                            acc[i][j][e] = 0;
                        }
            }
            k = slice_end, slice_end = min(slice_end + o.slice, o.end);
        }
    }
    if (SLICES) {
#pragma unroll
        for (int i = 0; i < T::MI; i++)
#pragma unroll
            for (int j = 0; j < T::NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) acc[i][j][e] = sum[i][j][e];
    }
    cp_async_wait<0>();
    __syncthreads();
}

/* acc + bias to y [.,N], rounded as `out` says; rows below M, columns below N. bf16 results go through smem so that
 * rows are written in runs of 16 bytes. All threads of the block. */
template <class T>
__device__ __forceinline__ void gemm_store(const float (&acc)[T::MI][T::NI][4], int m0, int n0, int M, int N,
                                           const uint16_t *bias, void *y, int out, unsigned char *smem) {
    const int lane = (int)threadIdx.x % 32, wm = T::warp_row(), wn = T::warp_column();
    constexpr int LD = T::BN + 8; /* staged rows end in a chunk of padding: no bank conflicts */
    uint16_t *staged = (uint16_t *)smem;
#pragma unroll
    for (int j = 0; j < T::NI; j++) {
        const int c = wn + j * 8 + lane % 4 * 2, n = n0 + c;
        const float b0 = bias && n < N ? bf16_lo(bias[n]) : 0, b1 = bias && n + 1 < N ? bf16_lo(bias[n + 1]) : 0;
#pragma unroll
        for (int i = 0; i < T::MI; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = wm + i * 16 + lane / 4 + h * 8, m = m0 + r;
                float v0 = acc[i][j][2 * h], v1 = acc[i][j][2 * h + 1];
                if (bias) v0 += b0, v1 += b1;
                const uint32_t rounded = bf16_pack(v0, v1);
                if (out == GEMM_BF16) {
                    *(uint32_t *)(staged + r * LD + c) = rounded;
                    continue;
                }
                if (out == GEMM_F32_ROUNDED) v0 = bf16_lo(rounded), v1 = bf16_hi(rounded);
                float *to = (float *)y + (size_t)m * N + n;
                if (m < M && n + 1 < N && N % 2 == 0) {
                    *(float2 *)to = make_float2(v0, v1);
                } else if (m < M) {
                    if (n < N) to[0] = v0;
                    if (n + 1 < N) to[1] = v1;
                }
            }
    }
    if (out != GEMM_BF16) return;
    __syncthreads();
    constexpr int RUNS = T::BN / 8;
#pragma unroll
    for (int i = 0; i < T::BM * RUNS / T::THREADS + (T::BM * RUNS % T::THREADS != 0); i++) {
        const int at = i * T::THREADS + (int)threadIdx.x, r = at / RUNS, c = at % RUNS * 8, m = m0 + r, n = n0 + c;
        if (r >= T::BM || m >= M || n >= N) continue;
        const uint16_t *from = staged + r * LD + c;
        uint16_t *to = (uint16_t *)y + (size_t)m * N + n;
        if (N % 8 == 0)
            *(uint4 *)to = *(const uint4 *)from;
        else
            for (int e = 0; e < 8 && n + e < N; e++) to[e] = from[e];
    }
}

#endif
