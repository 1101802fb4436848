/* carry: to[to_at[i]] = from[from_at[i]] for i < n; nothing moves where an index or the id is below 0.
 * grid (ceil(n / 128)), block 128, one id a thread. NUMERICS: exact. */
#include "kernels/cuda/dev.h"
#include "kernels/cuda/device.h"

enum { CARRY_THREADS = 128 };

__global__ void __launch_bounds__(CARRY_THREADS)
    carry_kernel(int32_t *__restrict__ to, const int32_t *__restrict__ to_at, const int32_t *__restrict__ from,
                 const int32_t *__restrict__ from_at, int n) {
    const int i = (int)(blockIdx.x * CARRY_THREADS + threadIdx.x);
    if (i >= n) return; /* the block has no barrier */
    const int t = to_at ? to_at[i] : i, f = from_at ? from_at[i] : i;
    if (t < 0 || f < 0) return;
    const int32_t id = from[f];
    if (id >= 0) to[t] = id;
}

extern "C" tv_status cuda_carry(tv_dev *dev, const tv_carry_args *a, tv_err *err) {
    TV_TRY(tv_check_carry(a, err));
    SIMT_LAUNCH(carry_kernel, (unsigned)((a->n + CARRY_THREADS - 1) / CARRY_THREADS), CARRY_THREADS, 0,
                (cudaStream_t)dev->stream, a->to, a->to_at, a->from, a->from_at, a->n);
    return cuda_rt_launched("carry", err);
}
