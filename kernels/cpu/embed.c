/* Embedding: copies rows of the table. */
#include <string.h>

#include "kernels/cpu/cpu.h"

tv_status cpu_embed(tv_dev *dev, const tv_embed_args *a, tv_err *err) {
    TV_TRY(tv_check_embed(a, err));
    for (int m = 0; m < a->M; m++)
        if (a->ids[m] < 0 || a->ids[m] >= a->V)
            return TV_FAIL(err, TV_EARG, "embed: token id %d at row %d is not in 0 .. %d", a->ids[m], m, a->V - 1);
    int threads = cpu_threads_for(dev, (double)a->M * a->D);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int m = 0; m < a->M; m++)
        memcpy(a->out + (size_t)m * a->D, a->table + (size_t)a->ids[m] * a->D, (size_t)a->D * sizeof *a->out);
    return TV_OK;
}
