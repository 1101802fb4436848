/* silu(gate) * up over rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

/* A job over the rows of a call. */
typedef struct {
    const cpu_ops_isa *ops;
    const tv_swiglu_args *a;
} rows_job;

static void some_rows(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const rows_job *job = ctx;
    const tv_swiglu_args *a = job->a;
    for (int m = begin; m < end; m++) {
        const tv_bf16 *gate = a->gate_up + 2 * (size_t)m * a->F; /* [2F] bf16 */
        job->ops->swiglu(gate, gate + a->F, a->out + (size_t)m * a->F, a->F);
    }
}

tv_status cpu_swiglu(tv_dev *dev, const tv_swiglu_args *a, tv_err *err) {
    TV_TRY(tv_check_swiglu(a, err));
    int threads = cpu_threads_for(dev, 8.0 * a->M * a->F);
    rows_job job = {cpu_ops_for(dev), a};
    cpu_parallel(dev->pool, threads, a->M, cpu_grain(a->M, threads), some_rows, &job);
    return TV_OK;
}
