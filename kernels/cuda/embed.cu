/* embed: out [M,D] = table [V,D] rows ids [M], copied.
 * grid (M), block 128 threads, 8 values a thread and turn. NUMERICS: exact. */
#include "kernels/cuda/dev.h"
#include "kernels/cuda/device.h"

__global__ void __launch_bounds__(128)
    embed_kernel(uint16_t *__restrict__ out, const uint16_t *__restrict__ table, const int32_t *__restrict__ ids, int D) {
    const uint16_t *row = table + (size_t)ids[blockIdx.x] * D;
    uint16_t *to = out + (size_t)blockIdx.x * D;
    if (D % 8 == 0) {
        for (int i = (int)threadIdx.x * 8; i < D; i += 128 * 8) *(uint4 *)(to + i) = *(const uint4 *)(row + i);
    } else {
        for (int i = (int)threadIdx.x; i < D; i += 128) to[i] = row[i];
    }
}

extern "C" tv_status cuda_embed(tv_dev *dev, const tv_embed_args *a, tv_err *err) {
    TV_TRY(tv_check_embed(a, err));
    SIMT_LAUNCH(embed_kernel, (unsigned)a->M, 128, 0, (cudaStream_t)dev->stream, a->out, a->table, a->ids, a->D);
    return cuda_rt_launched("embed", err);
}
