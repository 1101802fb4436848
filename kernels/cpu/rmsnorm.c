/* RMSNorm over rows, with the residual add before it and the choice of rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

tv_status cpu_rmsnorm(tv_dev *dev, const tv_rmsnorm_args *a, tv_err *err) {
    TV_TRY(tv_check_rmsnorm(a, err));
    if (a->rows)
        for (int m = 0; m < a->M; m++)
            if (a->rows[m] < 0) return TV_FAIL(err, TV_EARG, "rmsnorm: row index %d at %d is negative", a->rows[m], m);
    const cpu_ops_isa *ops = cpu_ops_for(dev);
    int threads = cpu_threads_for(dev, 4.0 * a->M * a->D);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int m = 0; m < a->M; m++) {
        size_t at = (size_t)(a->rows ? a->rows[m] : m) * a->D;
        if (a->delta) ops->add(a->x + at, a->delta + at, a->D);
        ops->rmsnorm(a->x + at, a->weight, a->out + (size_t)m * a->D, a->D, a->eps);
    }
    return TV_OK;
}
