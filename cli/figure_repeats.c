/* Figures about the distance under serving noise: against the number of reads, and against the batch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "cli/figure.h"
#include "estimator/report.h"
#include "estimator/report_view.h"

/* The plug-in against r and the mean of both sides' floors, whose trajectories are their own. */
static tv_status add_pair(const tv_dataset *data, cJSON *panel, cJSON *values, const char *key, tv_err *err) {
    tv_distance_options options = {
        .reads = tv_reads_usable(data), .readout = tv_readout_choose(data, 0), .floors = 1, .permute_floors = 1};
    tv_distance d;
    TV_TRY(tv_distance_run(data, &options, &d, err));
    char *name = tv_xprintf("%s against %s", figure_backend(data, 0), figure_backend(data, 1));
    char *own = tv_xprintf("%s: floor", name);
    cJSON *curve = plot_series(panel, name, "line"), *floors = plot_series(panel, own, "line");
    double *x[2] = {tv_xmalloc((size_t)data->set[0].N * sizeof(double)),
                    tv_xmalloc((size_t)data->set[1].N * sizeof(double))};
    figure_bar tv = {0}, at_h = {0}, floor = {0}, gap = {0};
    for (int64_t r = 1; r <= d.R; r++) {
        for (int s = 0; s < 2; s++) tv_distance_z(&d, s, r, x[s]);
        tv = figure_mean(data, x);
        plot_point(curve, (double)r, tv.estimate, tv.low, tv.high);
        if (r > d.h) continue;
        at_h = tv;
        for (int s = 0; s < 2; s++)
            for (int64_t i = 0; i < d.set[s].N; i++) {
                const tv_distance_set *set = &d.set[s];
                x[s][i] = 0.5 * (set->floor_z[0][(r - 1) * set->N + i] + set->floor_z[1][(r - 1) * set->N + i]);
            }
        floor = figure_mean(data, x);
        plot_point(floors, (double)r, floor.estimate, NAN, NAN); /* four bands would hide one another */
        if (r < d.h) continue;
        for (int s = 0; s < 2; s++) { /* paired by trajectory, which removes most of the spread between them */
            double *z = tv_xmalloc((size_t)d.set[s].N * sizeof *z);
            tv_distance_z(&d, s, r, z);
            for (int64_t i = 0; i < d.set[s].N; i++) x[s][i] = z[i] - x[s][i];
            free(z);
        }
        gap = figure_mean(data, x);
    }
    cJSON *o = cJSON_AddObjectToObject(values, key);
    cJSON_AddNumberToObject(o, "r", (double)d.h);
    cJSON_AddNumberToObject(o, "tv", at_h.estimate);
    cJSON_AddNumberToObject(o, "tv_se", at_h.se);
    cJSON_AddNumberToObject(o, "floor", floor.estimate);
    cJSON_AddNumberToObject(o, "floor_se", floor.se);
    cJSON_AddNumberToObject(o, "gap", gap.estimate);
    cJSON_AddNumberToObject(o, "gap_se", gap.se);
    free(x[0]), free(x[1]), free(name), free(own);
    tv_distance_free(&d);
    return TV_OK;
}

tv_status figure_repeats(figures *f, cJSON *figure, tv_err *err) {
    const tv_dataset *pair, *same;
    TV_TRY(figure_data(f, FIGURE_PAIR, &pair, err));
    TV_TRY(figure_data(f, FIGURE_SAME, &same, err));
    cJSON *panel = plot_panel(figure, "reads r averaged", "total variation distance (plug-in)",
                              PLOT_LOG2_X | PLOT_FROM_ZERO),
          *values = cJSON_AddObjectToObject(figure, "values");
    TV_TRY(add_pair(pair, panel, values, "different", err));
    TV_TRY(add_pair(same, panel, values, "same", err));
    cJSON_AddStringToObject(
        figure, "caption",
        "The plug-in estimate falls as reads are averaged: to its floor (a side's passes against its "
        "own) where the sides are the same distribution, to a plateau above it where they are not. "
        "Bands: 95% over trajectories.");
    return TV_OK;
}

tv_status figure_batch(figures *f, cJSON *figure, tv_err *err) {
    static const figure_run runs[] = {FIGURE_NARROW, FIGURE_PAIR, FIGURE_WIDE};
    static const int readouts[] = {20, 100};
    cJSON *tv =
              plot_panel(figure, "sequences running at once", "total variation distance", PLOT_LOG2_X | PLOT_FROM_ZERO),
          *noise = plot_panel(figure, "sequences running at once", "sigma of one read (relative)",
                              PLOT_LOG2_X | PLOT_FROM_ZERO);
    for (int k = 0; k < 2; k++) {
        char *name = tv_xprintf("k = %d", readouts[k]);
        cJSON *series = plot_series(tv, name, "line"), *sigma[2] = {NULL, NULL};
        free(name);
        for (int x = 0; x < 3; x++) {
            const tv_dataset *data;
            cJSON *report = NULL;
            TV_TRY(figure_data(f, runs[x], &data, err));
            int64_t reads = tv_reads_usable(data), stored = data->set[0].k[0];
            tv_report_options options = {.reads = reads < 4 ? reads : 4,
                                         .readout = readouts[k] < stored ? readouts[k] : (int)stored};
            TV_TRY(tv_report_build(data, &options, &report, err));
            double batch = tv_view_number(data->config[0], "batch");
            const cJSON *ci = tv_view_item(report, "tv.ci95");
            double low = ci && ci->child ? ci->child->valuedouble : NAN,
                   high = ci && ci->child ? ci->child->next->valuedouble : NAN;
            int padded = cJSON_IsTrue(tv_view_item(data->config[0], "pad_batch"));
            if (!padded && !(batch > 0 && batch < (double)data->set[0].N)) batch = (double)data->set[0].N;
            plot_point(series, batch, tv_view_number(report, "tv.estimate"), low, high);
            for (int e = 0; e < 2 && k == 0; e++) {
                if (!sigma[e]) sigma[e] = plot_series(noise, figure_backend(data, e), "line");
                plot_point(sigma[e], batch, tv_view_number(report, e ? "sigma.b.union_chi2" : "sigma.a.union_chi2"),
                           NAN, NAN);
            }
            cJSON_Delete(report);
        }
    }
    cJSON_AddStringToObject(figure, "caption",
                            "The same trajectories, sampled in one of the batch sizes and scored in each, in batches "
                            "composed anew in every pass; readout k of the recorded slots. Right: k = 20. Reported "
                            "for batches of 256, 512, 1024 on other engines: 0.363, 0.586, 0.423; sigma 3e-4, 0.019, "
                            "at most 0.006.");
    return TV_OK;
}
