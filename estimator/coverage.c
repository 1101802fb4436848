/* Coverage of the reported intervals on instances whose distance is known exactly. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/hedged.h"
#include "estimator/stats.h"
#include "estimator/synthetic.h"

enum { INSTANCES = 7 };
/* Estimators whose intervals are judged. */
enum { BRACKET, MULTILEVEL, HEDGED, ESTIMATORS };
static const char *const estimator_names[ESTIMATORS] = {"plugin_bracket", "multilevel", "hedged"};

typedef struct {
    double estimate, low, high;
} interval;

/* One replication's sizes. The plug-in bracket and the multilevel schedule use 4 reads at most, the hedged estimator 2.
 */
typedef struct {
    const char *name;
    tv_chain chain;
    tv_oracle oracle;
    int64_t N; /* trajectories a side */
} instance;

/* [split-sign - 1.96 se, Z + 1.96 se] at r = 4. */
static tv_status bracket(const tv_dataset *data, interval *out, tv_err *err) {
    tv_distance d;
    TV_TRY(tv_distance_run(data, &(tv_distance_options){.reads = 4}, &d, err));
    double low = 0, high = 0, low_var = 0, high_var = 0;
    for (int s = 0; s < 2; s++) {
        const int64_t N = d.set[s].N;
        double *x = tv_xmalloc((size_t)N * sizeof *x);
        tv_distance_split_sign(&d, s, x);
        low += 0.5 * tv_stats_mean(x, N), low_var += 0.25 * tv_stats_variance(x, N) / (double)N;
        tv_distance_z(&d, s, 4, x);
        high += 0.5 * tv_stats_mean(x, N), high_var += 0.25 * tv_stats_variance(x, N) / (double)N;
        free(x);
    }
    tv_distance_free(&d);
    *out = (interval){.estimate = high, .low = low - 1.96 * sqrt(low_var), .high = high + 1.96 * sqrt(high_var)};
    return TV_OK;
}

/* Levels 1, 2, 4 with fixed counts. The plug-in's bias is positive and falls at least like r^{-1/2}, so what is left
 * above the top level is at most |E Y_L| / (sqrt 2 - 1): the interval reaches down by it. */
static tv_status multilevel(const instance *x, const tv_oracle *oracle, interval *out, tv_err *err) {
    const int64_t r[] = {1, 2, 4}, N[] = {2 * x->N, x->N, x->N / 2};
    tv_chain_sampler sampler = {.chain = &x->chain, .oracle = *oracle, .side = -1};
    tv_multilevel_result result;
    TV_TRY(
        tv_multilevel_run(tv_chain_increment, &sampler, &(tv_multilevel_plan){.L = 3, .r = r, .N = N}, &result, err));
    *out = (interval){.estimate = result.estimate,
                      .low = result.estimate - result.bias_bound - 1.96 * result.bound_se,
                      .high = result.estimate + 1.96 * result.se};
    return TV_OK;
}

static tv_status replicate(const instance *x, uint64_t seed, interval out[ESTIMATORS], tv_err *err) {
    tv_oracle oracle = x->oracle;
    oracle.seed = seed;
    tv_dataset *data = NULL;
    TV_TRY(tv_chain_record(&x->chain, &oracle, 0, x->N, 4, &data, err));
    tv_status status = bracket(data, &out[BRACKET], err);
    tv_hedged h;
    if (status == TV_OK) status = tv_hedged_run(data, 2, (tv_readout){0}, NULL, &h, err);
    if (status == TV_OK) {
        const tv_hedged_interval ci = tv_hedged_interval95(&h);
        out[HEDGED] =
            (interval){.estimate = tv_hedged_combine(&h, TV_HEDGED_T2PJ).estimate, .low = ci.low, .high = ci.high};
        tv_hedged_free(&h);
        status = multilevel(x, &oracle, &out[MULTILEVEL], err);
    }
    tv_chain_record_free(data);
    return status;
}

static tv_status build_instances(instance *list, int *count, tv_err *err) {
    const double sigmas[] = {0.02, 0.05, 0.1};
    static const char *const names[] = {"hard, sigma 0.02", "hard, sigma 0.05", "hard, sigma 0.1"};
    for (int i = 0; i < 3; i++) {
        instance *x = &list[(*count)++];
        *x = (instance){.name = names[i], .oracle = {.kind = TV_ORACLE_GAUSS, .sigma = sigmas[i]}, .N = 96};
        TV_TRY(tv_chain_hard(&x->chain, err));
    }
    for (int i = 0; i < 2; i++) {
        instance *x = &list[(*count)++];
        *x = (instance){.name = i ? "Markov pair with mismatch" : "Markov pair",
                        .oracle = {.kind = TV_ORACLE_HEAVY, .sigma = 0.03},
                        .N = 64};
        TV_TRY(tv_chain_markov(&(tv_markov_options){.n = 48,
                                                    .contexts = 16,
                                                    .topics = 2,
                                                    .k = 10,
                                                    .delta = 0.11,
                                                    .mismatch = i ? 0.3 : 0,
                                                    .seed = i ? 9 : 2},
                               &x->chain, err));
    }
    /* Steps far above their noise: one trajectory in seven has a log-ratio of exactly 0. */
    for (int i = 0; i < 2; i++) {
        instance *x = &list[(*count)++];
        *x = (instance){.name = i ? "short Markov pair, N 128" : "short Markov pair, N 32",
                        .oracle = {.kind = TV_ORACLE_HEAVY, .sigma = 0.02},
                        .N = i ? 128 : 32};
        TV_TRY(
            tv_chain_markov(&(tv_markov_options){.n = 24, .contexts = 8, .topics = 2, .k = 8, .delta = 0.15, .seed = 2},
                            &x->chain, err));
    }
    return TV_OK;
}

static void add_row(cJSON *rows, const instance *x, double tv, int estimator, const interval *all,
                    int64_t replications) {
    int64_t inside = 0;
    double width = 0, bias = 0;
    for (int64_t j = 0; j < replications; j++) {
        const interval *ci = &all[j * ESTIMATORS + estimator];
        inside += ci->low <= tv && tv <= ci->high;
        width += (ci->high - ci->low) / (double)replications;
        bias += (ci->estimate - tv) / (double)replications;
    }
    const double coverage = (double)inside / (double)replications;
    /* What a method of exactly 93% may show by chance, three standard errors. */
    const double slack = replications < 1000 ? 3 * sqrt(0.93 * 0.07 / (double)replications) : 0;
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "instance", x->name);
    cJSON_AddNumberToObject(row, "tv", tv);
    cJSON_AddStringToObject(row, "estimator", estimator_names[estimator]);
    cJSON_AddNumberToObject(row, "replications", (double)replications);
    cJSON_AddNumberToObject(row, "coverage", coverage);
    cJSON_AddNumberToObject(row, "mean_width", width);
    cJSON_AddNumberToObject(row, "bias", bias);
    cJSON_AddBoolToObject(row, "held", coverage >= 0.93 - slack);
    cJSON_AddBoolToObject(row, "conservative", coverage > 0.975);
    cJSON_AddItemToArray(rows, row);
}

tv_status tv_coverage_run(const tv_synth_options *options, const tv_progress *progress, cJSON **report, tv_err *err) {
    *report = NULL;
    const int64_t replications = options->replications > 0 ? options->replications : 2000;
    instance list[INSTANCES] = {{0}};
    int count = 0;
    tv_status status = build_instances(list, &count, err);
    cJSON *rows = cJSON_CreateArray();
    interval *all = tv_xcalloc((size_t)replications * ESTIMATORS, sizeof *all);
    uint64_t done = 0;
    for (int i = 0; i < count && status == TV_OK; i++) {
        tv_chain_distance exact;
        status = tv_chain_exact(&list[i].chain, &exact, err);
        if (status != TV_OK) break;
        tv_err first = {0};
#pragma omp parallel for schedule(dynamic, 1)
        for (int64_t j = 0; j < replications; j++) {
            tv_err local = {0};
            const uint64_t seed = options->seed * 1000003u + (uint64_t)i * 0x100000000u + (uint64_t)j;
            const tv_status s = replicate(&list[i], seed, all + j * ESTIMATORS, &local);
#pragma omp critical(tv_coverage)
            {
                if (s != TV_OK && first.code == TV_OK) first = local;
                tv_progress_report(progress, ++done, (uint64_t)(replications * count));
            }
        }
        if (first.code != TV_OK) {
            status = first.code;
            if (err && err->code == TV_OK) *err = first;
            break;
        }
        for (int e = 0; e < ESTIMATORS; e++) add_row(rows, &list[i], exact.tv, e, all, replications);
    }
    free(all);
    for (int i = 0; i < count; i++) tv_chain_free(&list[i].chain);
    if (status != TV_OK) {
        cJSON_Delete(rows);
        return status;
    }
    *report = rows;
    return TV_OK;
}
