/* silu(gate) * up over rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

tv_status cpu_swiglu(tv_dev *dev, const tv_swiglu_args *a, tv_err *err) {
    TV_TRY(tv_check_swiglu(a, err));
    const cpu_ops_isa *ops = cpu_ops_for(dev);
    int threads = cpu_threads_for(dev, 8.0 * a->M * a->F);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int m = 0; m < a->M; m++) {
        const tv_bf16 *gate = a->gate_up + 2 * (size_t)m * a->F; /* [2F] bf16 */
        ops->swiglu(gate, gate + a->F, a->out + (size_t)m * a->F, a->F);
    }
    return TV_OK;
}
