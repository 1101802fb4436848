/* Draws tokens from top-k records by inverse CDF. */
#include "kernels/cpu/sample.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"
#include "kernels/philox.h"

/* exp(logprobs[i] - logprobs[0]) of eight entries from i on, 0 past n. */
static void weights_of(const float *logprobs, int n, int i, float p[VEC_LANES]) {
    for (int j = 0; j < VEC_LANES; j++) p[j] = i + j < n ? logprobs[i + j] - logprobs[0] : -INFINITY;
    v8_store(p, v8_exp(v8_load(p)));
}

int cpu_pick(const float *logprobs, int n, float u) {
    if (n < 1 || !(logprobs[0] > -INFINITY)) return -1;
    float p[VEC_LANES], total = 0, sum = 0;
    for (int i = 0; i < n; i += VEC_LANES) {
        weights_of(logprobs, n, i, p);
        for (int j = 0; j < VEC_LANES; j++) total += p[j];
    }
    const float target = u * total;
    int last = 0;
    for (int i = 0; i < n; i += VEC_LANES) {
        weights_of(logprobs, n, i, p);
        for (int j = 0; j < VEC_LANES && i + j < n; j++) {
            sum += p[j];
            if (!(p[j] > 0)) continue;
            last = i + j;
            if (target < sum) return last;
        }
    }
    return last;
}

static void some_rows(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const tv_sample_args *a = ctx;
    for (int m = begin; m < end; m++) {
        float u = tv_philox_uniform(a->seed, (uint64_t)a->trajectory[m], (uint32_t)a->position[m], TV_USE_SAMPLE);
        int j = cpu_pick(a->topk_logprobs + (size_t)m * a->k, a->top_k, u);
        a->token[m] = j < 0 ? -1 : a->topk_ids[(size_t)m * a->k + j];
    }
}

/* token is -1 only where a record holds no token of nonzero probability, which logprobs has flagged as bad. */
tv_status cpu_sample(tv_dev *dev, const tv_sample_args *a, tv_err *err) {
    TV_TRY(tv_check_sample(a, err));
    int threads = cpu_threads_for(dev, 400.0 * a->M * a->top_k);
    cpu_parallel(dev->pool, threads, a->M, cpu_grain(a->M, threads), some_rows, (void *)a);
    return TV_OK;
}
