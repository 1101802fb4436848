/* Log-softmax with temperature, its top k, and a given token's value and rank.
 *
 * With m the largest logit, log p_i = (z_i - m) / T - log(sum over j of exp((z_j - m) / T)): the difference first,
 * because it is exact or nearly so where probabilities matter. Order and rank compare logits, so that they are those of
 * the exact log-probabilities; two logits whose log-probabilities round to the same number keep their order. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

static const float GREEDY_BELOW = 1e-6f; /* temperatures that count as 0 */

static void one_row(const cpu_ops_isa *ops, const tv_logprobs_args *a, int m) {
    float *z = a->logits + (size_t)m * a->V;          /* [V] f32 */
    float *top = a->topk_logprobs + (size_t)m * a->k; /* [k] f32 */
    int32_t *ids = a->topk_ids + (size_t)m * a->k;    /* [k] i32 */
    const int32_t token = a->token ? a->token[m] : -1;
    int bad = 0;
    /* Looked at before they are overwritten: a NaN is a fault wherever it stands. (Already -inf when ids repeat.) */
    for (int i = 0; i < a->n_suppressed; i++) {
        bad |= !(z[a->suppressed[i]] < INFINITY);
        z[a->suppressed[i]] = -INFINITY;
    }
    cpu_scan found = ops->scan(z, a->V, a->k, token, top, ids);
    int greedy = a->temperature < GREEDY_BELOW;
    float max = found.n ? top[0] : 0, sum = ops->sum_exp(z, a->V, max, greedy ? 1 : a->temperature);
    bad |= !(sum < INFINITY) || found.n == 0; /* none kept: all are -inf or NaN */
    a->bad[m] = bad;
    float log_sum = (float)log((double)sum);
    for (int i = 0; i < a->k; i++) {
        if (bad || i >= found.n)
            top[i] = -INFINITY;
        else if (greedy)
            top[i] = i ? -INFINITY : 0;
        else
            top[i] = (top[i] - max) / a->temperature - log_sum;
        if (top[i] == -INFINITY) ids[i] = -1;
    }
    if (!a->token) return;
    a->token_rank[m] = bad || token < 0 ? -1 : found.rank;
    a->token_logprob[m] = bad || token < 0 ? -INFINITY
                          : greedy         ? (found.rank ? -INFINITY : 0)
                                           : (z[token] - max) / a->temperature - log_sum;
}

/* A job over the rows of a call. */
typedef struct {
    const cpu_ops_isa *ops;
    const tv_logprobs_args *a;
} rows_job;

static void some_rows(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const rows_job *job = ctx;
    for (int m = begin; m < end; m++) one_row(job->ops, job->a, m);
}

tv_status cpu_logprobs(tv_dev *dev, const tv_logprobs_args *a, tv_err *err) {
    TV_TRY(tv_check_logprobs(a, err));
    for (int i = 0; i < a->n_suppressed; i++)
        if (a->suppressed[i] < 0 || a->suppressed[i] >= a->V)
            return TV_FAIL(err, TV_EARG, "logprobs: suppressed id %d is not in 0 .. %d", a->suppressed[i], a->V - 1);
    if (a->token)
        for (int m = 0; m < a->M; m++)
            if (a->token[m] < -1 || a->token[m] >= a->V)
                return TV_FAIL(err, TV_EARG, "logprobs: token %d of row %d is not in 0 .. %d, or -1 for none",
                               a->token[m], m, a->V - 1);
    int threads = cpu_threads_for(dev, 8.0 * a->M * a->V);
    rows_job job = {cpu_ops_for(dev), a};
    cpu_parallel(dev->pool, threads, a->M, 1, some_rows, &job);
    return TV_OK;
}
