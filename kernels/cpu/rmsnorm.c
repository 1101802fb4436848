/* RMSNorm over rows, with the residual add before it and the choice of rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

/* A job over the rows of a call. */
typedef struct {
    const cpu_ops_isa *ops;
    const tv_rmsnorm_args *a;
} rows_job;

static void some_rows(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const rows_job *job = ctx;
    const tv_rmsnorm_args *a = job->a;
    for (int from = begin; from < end; from += CPU_NORM_ROWS) {
        const int n = end - from < CPU_NORM_ROWS ? end - from : CPU_NORM_ROWS;
        size_t at[CPU_NORM_ROWS];
        float scale[CPU_NORM_ROWS];
        for (int i = 0; i < n; i++) {
            at[i] = (size_t)(a->rows ? a->rows[from + i] : from + i) * a->D;
            if (a->delta) job->ops->add(a->x + at[i], a->delta + at[i], a->D);
            scale[i] = job->ops->norm_scale(a->x + at[i], a->D, a->eps);
        }
        for (int i = 0; i < n; i++)
            job->ops->norm(a->x + at[i], scale[i], a->weight, a->out + (size_t)(from + i) * a->D, a->D);
    }
}

tv_status cpu_rmsnorm(tv_dev *dev, const tv_rmsnorm_args *a, tv_err *err) {
    TV_TRY(tv_check_rmsnorm(a, err));
    if (a->rows)
        for (int m = 0; m < a->M; m++)
            if (a->rows[m] < 0) return TV_FAIL(err, TV_EARG, "rmsnorm: row index %d at %d is negative", a->rows[m], m);
    int threads = cpu_threads_for(dev, 4.0 * a->M * a->D);
    rows_job job = {cpu_ops_for(dev), a};
    cpu_parallel(dev->pool, threads, a->M, cpu_grain(a->M, threads), some_rows, &job);
    return TV_OK;
}
