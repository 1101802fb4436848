/* Figures from instances of known distance. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "cli/figure.h"
#include "estimator/stats.h"
#include "estimator/synthetic.h"

tv_status figure_synthetic(figures *f, cJSON *figure, tv_err *err) {
    tv_chain hard;
    tv_chain_distance exact;
    tv_synth_rate rate;
    TV_TRY(tv_chain_hard(&hard, err));
    tv_status s = tv_chain_exact(&hard, &exact, err);
    if (s == TV_OK) s = tv_synth_error_rate(&hard, exact.tv, f->args->seed[0], f->full ? 5000 : 500, &rate, err);
    tv_chain_free(&hard);
    TV_TRY(s);
    cJSON *panel = plot_panel(figure, "trajectories N", "mean absolute error of the estimate", PLOT_LOG_X | PLOT_LOG_Y),
          *mae = plot_series(panel, "measured, 95% interval", "points"),
          *gaussian = plot_series(panel, "normal errors of the same variance", "dashed");
    for (int p = 0; p < TV_SYNTH_POINTS; p++) {
        plot_point(mae, rate.N[p], rate.mae[p], rate.mae[p] - 1.96 * rate.mae_se[p],
                   rate.mae[p] + 1.96 * rate.mae_se[p]);
        plot_point(gaussian, rate.N[p], rate.gaussian[p], NAN, NAN);
    }
    cJSON *values = cJSON_AddObjectToObject(figure, "values");
    cJSON_AddNumberToObject(values, "tv", exact.tv);
    cJSON_AddNumberToObject(values, "slope", rate.slope);
    cJSON_AddNumberToObject(values, "mean", rate.mean);
    cJSON_AddNumberToObject(values, "mean_se", rate.mean_se);
    char *caption = tv_xprintf("Hard instance (128 tokens, 4096 blocks, distance %.3f) with exact probabilities: slope "
                               "%.3f on log-log axes; reported -0.493, theory -1/2.",
                               exact.tv, rate.slope);
    cJSON_AddStringToObject(figure, "caption", caption);
    free(caption);
    return TV_OK;
}

/* Error of the best single level against the budget, from measured variance and bias of every level. */
static tv_status add_oracle(const tv_chain *chain, tv_oracle oracle, int top, int64_t N, cJSON *panel, const char *name,
                            double target, double *needed, tv_err *err) {
    double V[24], bias[24], *y = tv_xmalloc(3 * (size_t)N * sizeof *y);
    tv_chain_sampler sampler = {.chain = chain, .oracle = oracle, .side = -1, .exact = y + N, .level = y + 2 * N};
    for (int l = 0; l <= top; l++) {
        tv_status s = tv_chain_increment(&sampler, l, 0, N, 0, (int64_t)1 << l, 0, y, err);
        if (s != TV_OK) {
            free(y);
            return s;
        }
        V[l] = tv_stats_variance(y + 2 * N, N);
        for (int64_t i = 0; i < N; i++) y[i] = y[2 * N + i] - y[N + i];
        bias[l] = fabs(tv_stats_mean(y, N));
    }
    free(y);
    cJSON *series = plot_series(panel, name, "line");
    *needed = NAN;
    for (int b = 0; b <= 36; b++) {
        double budget = pow(10, 2 + b / 6.0), best = INFINITY;
        for (int l = 0; l <= top; l++)
            best = fmin(best, sqrt(V[l] * ldexp(1, l) * 2 * chain->n / budget + bias[l] * bias[l]));
        plot_point(series, budget, best, NAN, NAN);
        if (isnan(*needed) && best <= target) *needed = budget;
    }
    return TV_OK;
}

tv_status figure_sampleonly(figures *f, cJSON *figure, tv_err *err) {
    const tv_markov_options options = {.n = 24, .contexts = 12, .topics = 3, .k = 6, .delta = 0.15, .seed = 5};
    const double target = 0.1;
    const int64_t N = f->full ? 4000 : 400;
    tv_chain chain;
    double samples, replay;
    TV_TRY(tv_chain_markov(&options, &chain, err));
    cJSON *panel = plot_panel(figure, "next-token queries a side", "root-mean-square error", PLOT_LOG_X | PLOT_LOG_Y);
    uint64_t seed = f->args->seed[0];
    tv_status s = add_oracle(&chain, (tv_oracle){TV_ORACLE_HEAVY, 0.05, seed}, 6, N, panel,
                             "replay: recorded distributions", target, &replay, err);
    if (s == TV_OK)
        s = add_oracle(&chain, (tv_oracle){TV_ORACLE_SAMPLES, 0, seed}, f->full ? 14 : 11, N, panel,
                       "samples alone: token frequencies", target, &samples, err);
    tv_chain_free(&chain);
    TV_TRY(s);
    cJSON *values = cJSON_AddObjectToObject(figure, "values");
    cJSON_AddNumberToObject(values, "error", target);
    tv_json_add_number(values, "queries_replay", replay);
    tv_json_add_number(values, "queries_samples", samples);
    cJSON_AddStringToObject(
        figure, "caption",
        "A synthetic pair (24 tokens, 6 choices a token): what one query returns decides the cost. "
        "Replay reads a noisy next-token distribution (sigma 0.05); without log-probabilities a query is "
        "one sampled token. Best number of reads at each budget; flat where the largest one tried ends.");
    return TV_OK;
}
