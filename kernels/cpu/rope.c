/* From the fused projection's rows: q and k normalised per head (where the model has weights for it) and turned by
 * their positions, v copied; k and v go to the cache. */
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

/* x, out [HS] bf16; scale: of the norm, where there is one. */
static void one_head(const cpu_ops_isa *ops, const tv_rope_args *a, const tv_bf16 *x, const tv_bf16 *weight,
                     float scale, int pos, tv_bf16 *out) {
    const int HS = a->kv.HS;
    const size_t at = (size_t)pos * (HS / 2);
    tv_bf16 normed[CPU_ATTN_MAX_HEAD]; /* [HS] bf16 */
    if (weight) {
        ops->norm(x, scale, weight, normed, HS);
        x = normed;
    }
    ops->rope(x, a->cos + at, a->sin + at, out, HS);
}

static void one_row(const cpu_ops_isa *ops, const tv_rope_args *a, const tv_segment *s, int j) {
    const int H = a->H, G = a->kv.G, HS = a->kv.HS, pos = s->pos + j;
    const size_t row = (size_t)s->row + j;
    const tv_bf16 *x = a->qkv + row * (H + 2 * (size_t)G) * HS; /* [H+2G,HS] bf16 */
    float scale[CPU_NORM_ROWS] = {0};
    for (int h = 0; h < H + G; h++, x += HS) {
        const tv_bf16 *weight = h < H ? a->q_weight : a->k_weight;
        const int ahead = h % CPU_NORM_ROWS;
        for (int i = 0; weight && !ahead && i < CPU_NORM_ROWS && h + i < H + G; i++)
            scale[i] = ops->norm_scale(x + (size_t)i * HS, HS, a->eps);
        if (h < H) {
            one_head(ops, a, x, weight, scale[ahead], pos, a->q + (row * H + h) * HS);
            continue;
        }
        const int g = h - H;
        const tv_bf16 *v = x + (size_t)G * HS;
        size_t at = (((size_t)s->slot * G + g) * a->kv.S + pos) * HS;
        if (a->kv.dtype == TV_BF16) {
            one_head(ops, a, x, weight, scale[ahead], pos, a->kv.k + at);
            memcpy(a->kv.v + at, v, (size_t)HS * sizeof *v);
        } else {
            tv_bf16 turned[CPU_ATTN_MAX_HEAD]; /* [HS] bf16 */
            one_head(ops, a, x, weight, scale[ahead], pos, turned);
            cpu_kv_quantize(&a->kv, a->kv.k, a->kv.k_scale, s->slot, g, pos, turned);
            cpu_kv_quantize(&a->kv, a->kv.v, a->kv.v_scale, s->slot, g, pos, v);
        }
    }
}

typedef struct {
    const cpu_ops_isa *ops;
    const tv_rope_args *a;
} rows_job;

/* Rows are numbered over the segments. */
static void some_rows(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const rows_job *job = ctx;
    const tv_rope_args *a = job->a;
    for (int i = 0, first = 0; i < a->n_segments && first < end; first += a->segments[i].n_rows, i++) {
        const tv_segment *s = &a->segments[i];
        int last = end - first < s->n_rows ? end - first : s->n_rows;
        for (int j = begin > first ? begin - first : 0; j < last; j++) one_row(job->ops, a, s, j);
    }
}

tv_status cpu_rope(tv_dev *dev, const tv_rope_args *a, tv_err *err) {
    TV_TRY(tv_check_rope(a, err));
    if (a->kv.HS > CPU_ATTN_MAX_HEAD)
        return TV_FAIL(err, TV_EUNSUPPORTED, "rope: HS=%d must be at most %d", a->kv.HS, CPU_ATTN_MAX_HEAD);
    int threads = cpu_threads_for(dev, 8.0 * a->M * (a->H + a->kv.G) * a->kv.HS);
    rows_job job = {cpu_ops_for(dev), a};
    cpu_parallel(dev->pool, threads, a->M, cpu_grain(a->M, threads), some_rows, &job);
    return TV_OK;
}
