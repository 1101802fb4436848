/* Figures and tables about schedules: error against budget, variances of levels, what theory asks for. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/figure.h"
#include "estimator/calibrate.h"
#include "estimator/report_view.h"
#include "estimator/schedule.h"
#include "estimator/stats.h"
#include "estimator/synthetic.h"

tv_status figure_schedule(figures *f, int serving_order, const cJSON **result, tv_err *err) {
    const tv_dataset *data;
    TV_TRY(figure_data(f, FIGURE_PAIR, &data, err));
    if (!f->schedule[serving_order]) {
        tv_schedule_options options = {.readout = tv_readout_choose(data, 0), .serving_order = serving_order};
        options.protocol.seed = f->args->seed[0];
        options.protocol.simulations = -1;
        TV_TRY(tv_schedule_run(data, &options, &f->schedule[serving_order], err));
    }
    *result = f->schedule[serving_order];
    return TV_OK;
}

static double at(const cJSON *list, int i) {
    const cJSON *item = cJSON_GetArrayItem(list, i);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

tv_status figure_budget(figures *f, cJSON *figure, tv_err *err) {
    static const struct {
        const char *key, *name, *style;
    } families[] = {{"single", "single level, of a pilot", "line"},
                    {"hindsight_single", "single level, best in hindsight", "line"},
                    {"multilevel", "multilevel, of a pilot", "line"},
                    {"hedged_r4", "hedged, 4 reads", "line"}};
    const cJSON *schedule;
    TV_TRY(figure_schedule(f, 0, &schedule, err));
    const cJSON *p = tv_view_item(schedule, "symmetric"), *budgets = tv_view_item(p, "budgets"), *level;
    int n = cJSON_GetArraySize(budgets);
    cJSON *panel =
        plot_panel(figure, "budget (trajectory reads a side)", "root-mean-square error", PLOT_LOG_X | PLOT_LOG_Y);
    for (size_t k = 0; k < sizeof families / sizeof *families; k++) {
        const cJSON *rmse = cJSON_GetObjectItemCaseSensitive(tv_view_item(p, "rmse"), families[k].key);
        cJSON *series = plot_series(panel, families[k].name, families[k].style);
        for (int b = 0; b < n; b++) plot_point(series, at(budgets, b), at(rmse, b), NAN, NAN);
    }
    panel = plot_panel(figure, "budget (trajectory reads a side)", "root-mean-square error", PLOT_LOG_X | PLOT_LOG_Y);
    const cJSON *multi = tv_view_item(p, "rmse.multilevel");
    cJSON_ArrayForEach(level, tv_view_item(p, "levels")) {
        double r = tv_view_number(level, "r"), V = tv_view_number(level, "variance"),
               bias = tv_view_number(level, "bias");
        char *name = tv_xprintf("r = %.0f", r);
        cJSON *series = plot_series(panel, name, "line");
        free(name);
        for (int b = 0; b < n; b++)
            plot_point(series, at(budgets, b), sqrt(V * r / at(budgets, b) + bias * bias), NAN, NAN);
    }
    cJSON *series = plot_series(panel, "multilevel, of a pilot", "dashed");
    for (int b = 0; b < n; b++) plot_point(series, at(budgets, b), at(multi, b), NAN, NAN);
    cJSON *values = cJSON_AddObjectToObject(figure, "values");
    tv_json_add_number(values, "multilevel_over_single", tv_view_number(p, "rmse_ratio.multilevel"));
    tv_json_add_number(values, "peak_saving_over_pilot",
                       tv_view_number(p, "savings_over_pilot_single.multilevel.peak"));
    tv_json_add_number(values, "peak_saving_over_hindsight",
                       tv_view_number(p, "savings_over_hindsight_single.multilevel.peak"));
    cJSON_AddStringToObject(figure, "caption",
                            "Pilot protocol: 64 pilot trajectories, schedules of at most four levels. Left: families. "
                            "Right: any one fixed number of reads, which is best only in its own range of budgets. "
                            "Reported peak savings of multilevel: 1.3 times over hindsight, 4.4 times over the pilot's "
                            "single level.");
    return TV_OK;
}

/* Increment variances between neighbouring levels of a protocol result, as a series. */
static void add_measured(cJSON *panel, const cJSON *schedule, const char *name) {
    const cJSON *step;
    cJSON *series = plot_series(panel, name, "line");
    cJSON_ArrayForEach(step, tv_view_item(schedule, "symmetric.increments")) {
        double from = tv_view_number(step, "from"), to = tv_view_number(step, "to");
        if (to == 2 * from) plot_point(series, to, tv_view_number(step, "variance"), NAN, NAN);
    }
}

tv_status figure_levels(figures *f, cJSON *figure, tv_err *err) {
    static const double sigmas[] = {0.1, 0.3, 1, 3};
    enum { TOP = 8 };
    const int64_t N = f->full ? 40000 : 4000;
    const cJSON *permuted, *serving;
    tv_chain hard;
    TV_TRY(figure_schedule(f, 0, &permuted, err));
    TV_TRY(figure_schedule(f, 1, &serving, err));
    TV_TRY(tv_chain_hard(&hard, err));
    cJSON *synthetic = plot_panel(figure, "reads of the level, r", "Var[Y_l], hard instance", PLOT_LOG2_X | PLOT_LOG_Y),
          *measured = plot_panel(figure, "reads of the level, r", "Var[Y_l], measured", PLOT_LOG2_X | PLOT_LOG_Y),
          *cost = plot_panel(figure, "reads of the level, r", "share of the budget", PLOT_LOG2_X | PLOT_FROM_ZERO),
          *values = cJSON_AddObjectToObject(figure, "values"), *ratios = cJSON_AddObjectToObject(values, "ratio");
    double *y = tv_xmalloc((size_t)N * sizeof *y);
    tv_status s = TV_OK;
    for (int k = 0; k < 4 && s == TV_OK; k++) {
        tv_chain_sampler sampler = {.chain = &hard,
                                    .oracle = {.kind = TV_ORACLE_GAUSS, .sigma = sigmas[k], .seed = f->args->seed[0]},
                                    .side = -1};
        char *name = tv_xprintf("sigma = %g", sigmas[k]);
        cJSON *series = plot_series(synthetic, name, "line"), *shares = plot_series(cost, name, "line");
        double work[TOP + 1], total = 0, first = 0, last = 0;
        for (int l = 0; l <= TOP && s == TV_OK; l++) {
            s = tv_chain_increment(&sampler, l, 0, N, l ? (int64_t)1 << (l - 1) : 0, (int64_t)1 << l, 0, y, err);
            double V = tv_stats_variance(y, N);
            total += work[l] = sqrt(V * ldexp(1, l));
            if (l) plot_point(series, ldexp(1, l), V, NAN, NAN);
            if (l == 4) first = V;
            last = V;
        }
        for (int l = 0; l <= TOP && s == TV_OK; l++) plot_point(shares, ldexp(1, l), work[l] / total, NAN, NAN);
        cJSON_AddNumberToObject(ratios, name, pow(last / first, 1.0 / (TOP - 4)));
        free(name);
    }
    free(y);
    tv_chain_free(&hard);
    TV_TRY(s);
    add_measured(measured, permuted, "passes permuted");
    add_measured(measured, serving, "serving order");
    cJSON_AddStringToObject(
        figure, "caption",
        "Variance of the increments Z_r - Z_{r/2}. Left: the hard instance; it halves with every "
        "level once the noise is small. Middle: the measured pair, with passes in an independent "
        "order in every position and as they were served. Right: what the best allocation spends on "
        "each level of the hard instance (first level: the base).");
    return TV_OK;
}

tv_status figure_complexity(figures *f, cJSON *figure, tv_err *err) {
    static const char *const columns[] = {"error",          "exact logits",       "single level",
                                          "multilevel",     "order, exact",       "order, noisy",
                                          "order, samples", "lower bound, noisy", "lower bound, samples"};
    static const double errors[] = {0.1, 0.05, 0.02, 0.01};
    const tv_dataset *data;
    tv_calibration cal;
    TV_TRY(figure_data(f, FIGURE_PAIR, &data, err));
    tv_calibrate_options options = {.reads = tv_reads_usable(data), .readout = tv_readout_choose(data, 0)};
    TV_TRY(tv_calibrate(data, &options, &cal, err));
    double sigma = fmax(tv_calibration_union(&cal, 0), tv_calibration_union(&cal, 1));
    double K = fmax((double)cal.part[0][0].size_max[cal.part[0][0].n_sizes - 1],
                    (double)cal.part[1][1].size_max[cal.part[1][1].n_sizes - 1]);
    plot_columns(figure, columns, 9);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        static const char *const paths[] = {"algorithm1.queries", "algorithm2.queries", "algorithm3.queries",
                                            "order.exact",        "order.noisy",        "order.samples",
                                            "lower_bound.noisy",  "lower_bound.samples"};
        cJSON *theory = NULL, *row = plot_row(figure);
        TV_TRY(tv_schedule_theory((double)data->n, sigma, errors[i], 0.05, K, &theory, err));
        cJSON_AddItemToArray(row, cJSON_CreateNumber(errors[i]));
        for (int a = 0; a < 8; a++) {
            double queries = tv_view_number(theory, paths[a]);
            cJSON_AddItemToArray(row, isfinite(queries) ? cJSON_CreateNumber(queries) : cJSON_CreateNull());
        }
        cJSON_Delete(theory);
    }
    cJSON *values = cJSON_AddObjectToObject(figure, "values");
    cJSON_AddNumberToObject(values, "n", (double)data->n);
    cJSON_AddNumberToObject(values, "sigma", sigma);
    cJSON_AddNumberToObject(values, "K", K);
    char *caption =
        tv_xprintf("Next-token queries that the bounds of theory ask for, at the measured n = %lld, sigma = "
                   "%.3g and K = %.0f ids, confidence 95%%. Bounds hold for every pair; measured pairs need far less. "
                   "Orders leave out factors and logarithms.",
                   (long long)data->n, sigma, K);
    cJSON_AddStringToObject(figure, "caption", caption);
    free(caption);
    return TV_OK;
}

tv_status figure_multilevel(figures *f, cJSON *figure, tv_err *err) {
    static const char *const columns[] = {"dataset",
                                          "theta",
                                          "error ratio, multilevel",
                                          "peak saving over pilot",
                                          "peak saving over hindsight",
                                          "error ratio, antithetic",
                                          "error ratio, hedged 4 reads"};
    static const char *const parts[] = {"symmetric", "one_sided_a", "one_sided_b"}, *const names[] = {"both sides",
                                                                                                      "side a alone",
                                                                                                      "side b alone"};
    static const char *const paths[] = {"theta",
                                        "rmse_ratio.multilevel",
                                        "savings_over_pilot_single.multilevel.peak",
                                        "savings_over_hindsight_single.multilevel.peak",
                                        "rmse_ratio.antithetic",
                                        "rmse_ratio.hedged_r4"};
    plot_columns(figure, columns, 7);
    for (int order = 0; order < 2; order++) {
        const cJSON *schedule;
        TV_TRY(figure_schedule(f, order, &schedule, err));
        for (int p = 0; p < 3; p++) {
            cJSON *row = plot_row(figure);
            char *name = tv_xprintf("%s%s", names[p], order ? ", serving order" : "");
            cJSON_AddItemToArray(row, cJSON_CreateString(name));
            free(name);
            for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
                double v = tv_view_number(tv_view_item(schedule, parts[p]), paths[i]);
                cJSON_AddItemToArray(row, isfinite(v) ? cJSON_CreateNumber(v) : cJSON_CreateNull());
            }
        }
    }
    cJSON_AddStringToObject(
        figure, "caption",
        "The measured pair. theta: work of the best multilevel schedule over the single level's at the "
        "deepest level; error ratios: of the pilot's single level at the largest budget over the "
        "family's.");
    return TV_OK;
}
