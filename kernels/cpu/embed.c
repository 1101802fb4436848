/* Embedding: copies rows of the table. */
#include <string.h>

#include "kernels/cpu/cpu.h"

static void some_rows(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const tv_embed_args *a = ctx;
    for (int m = begin; m < end; m++)
        memcpy(a->out + (size_t)m * a->D, a->table + (size_t)a->ids[m] * a->D, (size_t)a->D * sizeof *a->out);
}

tv_status cpu_embed(tv_dev *dev, const tv_embed_args *a, tv_err *err) {
    TV_TRY(tv_check_embed(a, err));
    for (int m = 0; m < a->M; m++)
        if (a->ids[m] < 0 || a->ids[m] >= a->V)
            return TV_FAIL(err, TV_EARG, "embed: token id %d at row %d is not in 0 .. %d", a->ids[m], m, a->V - 1);
    int threads = cpu_threads_for(dev, (double)a->M * a->D);
    cpu_parallel(dev->pool, threads, a->M, cpu_grain(a->M, threads), some_rows, (void *)a);
    return TV_OK;
}
