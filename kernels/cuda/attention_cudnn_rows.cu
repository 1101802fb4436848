/* What surrounds a call of cuDNN: who takes part, how long, where in the cache; query rows in, output rows out.
 * tables: grid (1), block 256: counts the segments of the call's class in order, then fills the page table.
 * pack, unpack: grid (b, sq), block 128, 8 values a thread and turn. NUMERICS: exact (copies). */
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/dev.h"

enum { TABLE_THREADS = 256, COPY_THREADS = 128 };

__global__ void __launch_bounds__(TABLE_THREADS)
    cudnn_tables_kernel(const tv_segment *__restrict__ segments, int n, int low, int high, int first, int b,
                        int columns, int page, int G, int S, int32_t *__restrict__ member,
                        int32_t *__restrict__ length_q, int32_t *__restrict__ length_kv,
                        int32_t *__restrict__ page_table) {
    SIMT_SHARED(int, warp_count, [TABLE_THREADS / 32]);
    const int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32;
    for (int i = tid; i < b; i += TABLE_THREADS) {
        member[i] = -1;
        length_q[i] = 1;
        length_kv[i] = 1;
    }
    __syncthreads();
    int before = 0; /* members among the segments of earlier rounds */
    for (int base = 0; base < n; base += TABLE_THREADS) {
        const int i = base + tid;
        tv_segment s = {0, 0, 0, 0};
        if (i < n) s = segments[i];
        const bool is = i < n && s.n_rows >= low && s.n_rows < high;
        const unsigned votes = __ballot_sync(0xffffffffu, is);
        if (lane == 0) warp_count[warp] = __popc(votes);
        __syncthreads();
        int at = before - first + __popc(votes & ((1u << lane) - 1));
        for (int w = 0; w < TABLE_THREADS / 32; w++) {
            if (w < warp) at += warp_count[w];
            before += warp_count[w];
        }
        if (is && at >= 0 && at < b) {
            member[at] = i;
            length_q[at] = s.n_rows;
            length_kv[at] = s.pos + s.n_rows;
        }
        __syncthreads();
    }
    /* Slot s holds G runs of S positions; its pages of head 0 are numbered from s * G * S / page. */
    const int per_head = S / page;
    for (int j = tid; j < b * columns; j += TABLE_THREADS) {
        const int i = member[j / columns], column = j % columns;
        page_table[j] = i < 0 || column >= per_head ? 0 : segments[i].slot * G * per_head + column;
    }
}

__global__ void __launch_bounds__(COPY_THREADS)
    cudnn_pack_kernel(const tv_segment *__restrict__ segments, const int32_t *__restrict__ member,
                      const uint16_t *__restrict__ q, uint16_t *__restrict__ packed, int sq, int width) {
    const int b = (int)blockIdx.x, t = (int)blockIdx.y, i = member[b];
    uint4 *to = (uint4 *)(packed + ((size_t)b * sq + t) * width);
    const bool there = i >= 0 && t < segments[i].n_rows;
    const uint4 *from = (const uint4 *)(q + (there ? (size_t)(segments[i].row + t) * width : 0));
    for (int j = (int)threadIdx.x; j < width / 8; j += COPY_THREADS) to[j] = there ? from[j] : make_uint4(0, 0, 0, 0);
}

__global__ void __launch_bounds__(COPY_THREADS)
    cudnn_unpack_kernel(const tv_segment *__restrict__ segments, const int32_t *__restrict__ member,
                        const uint16_t *__restrict__ packed, uint16_t *__restrict__ out, int sq, int width) {
    const int b = (int)blockIdx.x, t = (int)blockIdx.y, i = member[b];
    if (i < 0 || t >= segments[i].n_rows) return;
    const uint4 *from = (const uint4 *)(packed + ((size_t)b * sq + t) * width);
    uint4 *to = (uint4 *)(out + (size_t)(segments[i].row + t) * width);
    for (int j = (int)threadIdx.x; j < width / 8; j += COPY_THREADS) to[j] = from[j];
}

extern "C" tv_status cuda_cudnn_tables(tv_dev *dev, const cuda_cudnn_call *c, const tv_segment *segments, int n,
                                       const tv_kv_layer *kv, tv_err *err) {
    SIMT_LAUNCH(cudnn_tables_kernel, 1, TABLE_THREADS, 0, (cudaStream_t)dev->stream, segments, n, c->low, c->high,
                c->first, c->b, c->columns, c->page, kv->G, kv->S, c->member, c->length_q, c->length_kv, c->page_table);
    return cuda_rt_launched("cudnn_tables", err);
}

extern "C" tv_status cuda_cudnn_pack(tv_dev *dev, const cuda_cudnn_call *c, const tv_segment *segments,
                                     const tv_bf16 *q, int width, tv_err *err) {
    const dim3 grid((unsigned)c->b, (unsigned)c->sq);
    SIMT_LAUNCH(cudnn_pack_kernel, grid, COPY_THREADS, 0, (cudaStream_t)dev->stream, segments, c->member, q, c->q,
                c->sq, width);
    return cuda_rt_launched("cudnn_pack", err);
}

extern "C" tv_status cuda_cudnn_unpack(tv_dev *dev, const cuda_cudnn_call *c, const tv_segment *segments, tv_bf16 *out,
                                       int width, tv_err *err) {
    const dim3 grid((unsigned)c->b, (unsigned)c->sq);
    SIMT_LAUNCH(cudnn_unpack_kernel, grid, COPY_THREADS, 0, (cudaStream_t)dev->stream, segments, c->member, c->o, out,
                c->sq, width);
    return cuda_rt_launched("cudnn_unpack", err);
}
