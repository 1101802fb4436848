/* Sequence-level scoring against replay, on the same trajectories. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/figure.h"

/* The trajectories of the length run, scored in one prefill each by both sides, in a folder of their own. */
static tv_status score(figures *f, const char *folder, tv_err *err) {
    static const char SIDE[2] = {'a', 'b'};
    char *from = tv_path_join(f->runs, "length");
    tv_trace *set[2] = {NULL, NULL};
    tv_status s = tv_dir_make(folder, err);
    for (int e = 0; e < 2; e++) {
        char *name = tv_xprintf("%c.samples.safetensors", SIDE[e]), *there = tv_path_join(from, name),
             *here = tv_path_join(folder, name);
        if (s == TV_OK) s = tv_trace_open(there, &set[e], err);
        if (s == TV_OK && !tv_path_exists(here) && link(there, here) != 0) s = tv_trace_write(set[e], here, err);
        free(name), free(there), free(here);
    }
    for (int e = 0; e < 2 && s == TV_OK; e++) {
        tv_session *session = NULL;
        int64_t prompt = set[0]->prompt_offsets[1] - set[0]->prompt_offsets[0];
        s = tv_session_open(f->base.engine[0], &f->run_args[FIGURE_LENGTH]->side[e].serving, set[0]->N,
                            prompt + set[0]->n, &session, err);
        for (int q = 0; q < 2 && s == TV_OK; q++) {
            char *name = tv_xprintf("%c-on-%c.pass-0000.safetensors", SIDE[e], SIDE[q]),
                 *path = tv_path_join(folder, name);
            tv_trace *pass = NULL;
            if (!tv_path_exists(path)) {
                s = tv_session_score_prefill(session, set[q], SIDE[e], 0, NULL, &pass, err);
                if (s == TV_OK) s = tv_trace_write(pass, path, err);
            }
            tv_trace_close(pass);
            free(name), free(path);
        }
        tv_session_close(session);
    }
    tv_trace_close(set[0]), tv_trace_close(set[1]);
    free(from);
    return s;
}

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
    const tv_dataset *replay;
    tv_dataset *prefill = NULL;
    TV_TRY(figure_data(f, FIGURE_LENGTH, &replay, err));
    char *folder = tv_path_join(f->runs, "scoring");
    const char *path = folder;
    tv_status s = score(f, folder, err);
    if (s == TV_OK) s = tv_dataset_open(&path, 1, &prefill, err);
    free(folder);
    TV_TRY(s);
    cJSON *panel = plot_panel(figure, "length of the text (tokens)", "total variation distance", PLOT_FROM_ZERO),
          *by_replay = plot_series(panel, "scored by replay", "line"),
          *by_prefill = plot_series(panel, "scored at once (prefill)", "line"),
          *values = cJSON_AddObjectToObject(figure, "values");
    s = figure_add_length(replay, by_replay, NULL, cJSON_AddObjectToObject(values, "replay"), err);
    if (s == TV_OK) s = figure_add_length(prefill, by_prefill, NULL, cJSON_AddObjectToObject(values, "prefill"), err);
    panel = plot_panel(figure, "|log-probability, prefill - replay| of a token (nats)", "share of the tokens",
                       PLOT_LOG_X | PLOT_FROM_ZERO);
    for (int e = 0; e < 2 && s == TV_OK; e++) add_differences(replay, prefill, e, panel, values);
    tv_dataset_close(prefill);
    cJSON_AddStringToObject(
        figure, "caption",
        "The same trajectories scored step by step through the decode path that wrote them, and "
        "each in one prefill, as trainers do. Right: bins of a third of a decade. Reported on other "
        "engines: 0.586 by replay, 0.550 by sequence-level scoring.");
    return s;
}
