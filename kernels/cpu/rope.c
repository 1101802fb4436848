/* From the fused projection's rows: q and k normalised per head (where the model has weights for it) and turned by
 * their positions, v copied; k and v go to the cache. */
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

static void one_head(const cpu_ops_isa *ops, const tv_rope_args *a, const tv_bf16 *x, const tv_bf16 *weight, int pos,
                     tv_bf16 *out) {
    const int HS = a->kv.HS;
    const size_t at = (size_t)pos * (HS / 2);
    tv_bf16 normed[CPU_ATTN_MAX_HEAD]; /* [HS] bf16 */
    if (weight) {
        ops->rmsnorm(x, weight, normed, HS, a->eps);
        x = normed;
    }
    ops->rope(x, a->cos + at, a->sin + at, out, HS);
}

static void one_row(const cpu_ops_isa *ops, const tv_rope_args *a, const tv_segment *s, int j) {
    const int H = a->H, G = a->kv.G, HS = a->kv.HS, pos = s->pos + j;
    const size_t row = (size_t)s->row + j;
    const tv_bf16 *x = a->qkv + row * (H + 2 * (size_t)G) * HS; /* [H+2G,HS] bf16 */
    for (int h = 0; h < H; h++) one_head(ops, a, x + (size_t)h * HS, a->q_weight, pos, a->q + (row * H + h) * HS);
    for (int g = 0; g < G; g++) {
        size_t at = (((size_t)s->slot * G + g) * a->kv.S + pos) * HS;
        one_head(ops, a, x + ((size_t)H + g) * HS, a->k_weight, pos, a->kv.k + at);
        memcpy(a->kv.v + at, x + ((size_t)H + G + g) * HS, (size_t)HS * sizeof *x);
    }
}

tv_status cpu_rope(tv_dev *dev, const tv_rope_args *a, tv_err *err) {
    TV_TRY(tv_check_rope(a, err));
    if (a->kv.HS > CPU_ATTN_MAX_HEAD)
        return TV_FAIL(err, TV_EUNSUPPORTED, "rope: HS=%d must be at most %d", a->kv.HS, CPU_ATTN_MAX_HEAD);
    const cpu_ops_isa *ops = cpu_ops_for(dev);
    int threads = cpu_threads_for(dev, 8.0 * a->M * (a->H + a->kv.G) * a->kv.HS);
    /* Rows are numbered over the segments and cut into one run per part. */
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int part = 0; part < threads; part++) {
        int64_t from = (int64_t)a->M * part / threads, to = (int64_t)a->M * (part + 1) / threads, first = 0;
        for (int i = 0; i < a->n_segments && first < to; first += a->segments[i].n_rows, i++) {
            const tv_segment *s = &a->segments[i];
            int j = from > first ? (int)(from - first) : 0,
                end = to - first < s->n_rows ? (int)(to - first) : s->n_rows;
            for (; j < end; j++) one_row(ops, a, s, j);
        }
    }
    return TV_OK;
}
