/* Sequence-level scoring against replay, on the same trajectories. */
#include <math.h>

#include "cli/figure.h"

/* |log-probability by prefill - by replay| of the trajectories' own tokens, in bins of a third of a decade. */
static void add_differences(const tv_dataset *replay, const tv_dataset *prefill, int e, cJSON *panel, cJSON *values) {
    enum { BINS = 15 };
    double count[BINS] = {0}, cells = 0, sum = 0, same = 0;
    const tv_set *x = &replay->set[e], *y = &prefill->set[e];
    if (!x->own_lp[e] || !y->own_lp[e]) return;
    for (int64_t i = 0; i < x->N * replay->n; i++) {
        double d = fabs((double)x->own_lp[e][0][i] - (double)y->own_lp[e][0][i]);
        if (!isfinite(d)) continue;
        cells++, sum += d, same += d == 0;
        int bin = (int)floor(3 * (log10(d) + 5)); /* from 1e-5 nats */
        if (d > 0) count[bin < 0 ? 0 : bin >= BINS ? BINS - 1 : bin]++;
    }
    cJSON *series = plot_series(panel, e ? "side b" : "side a", "line");
    for (int b = 0; b < BINS; b++) plot_point(series, pow(10, (b + 0.5) / 3 - 5), count[b] / cells, NAN, NAN);
    cJSON_AddNumberToObject(values, e ? "mean_abs_difference_b" : "mean_abs_difference_a", sum / cells);
    cJSON_AddNumberToObject(values, e ? "equal_share_b" : "equal_share_a", same / cells);
}

tv_status figure_scoring(figures *f, cJSON *figure, tv_err *err) {
    const tv_dataset *replay, *prefill;
    TV_TRY(figure_data(f, FIGURE_LENGTH, &replay, err));
    TV_TRY(figure_data(f, FIGURE_PREFILL, &prefill, err));
    cJSON *panel = plot_panel(figure, "length of the text (tokens)", "total variation distance", PLOT_FROM_ZERO),
          *by_replay = plot_series(panel, "scored by replay", "line"),
          *by_prefill = plot_series(panel, "scored at once (prefill)", "line"),
          *values = cJSON_AddObjectToObject(figure, "values");
    TV_TRY(figure_add_length(replay, by_replay, NULL, cJSON_AddObjectToObject(values, "replay"), err));
    TV_TRY(figure_add_length(prefill, by_prefill, NULL, cJSON_AddObjectToObject(values, "prefill"), err));
    panel = plot_panel(figure, "|log-probability, prefill - replay| of a token (nats)", "share of the tokens",
                       PLOT_LOG_X | PLOT_FROM_ZERO);
    for (int e = 0; e < 2; e++) add_differences(replay, prefill, e, panel, values);
    cJSON_AddStringToObject(
        figure, "caption",
        "The same trajectories scored step by step through the decode path that wrote them, and "
        "each in one prefill, as trainers do. Right: bins of a third of a decade. Reported on other "
        "engines: 0.586 by replay, 0.550 by sequence-level scoring.");
    return TV_OK;
}
