/* Figures about the distance against the length of the text, the readout and the prompt. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "cli/figure.h"

/* The distance of one subset of the trajectories: those of prompt `prompt`, or all for -1. */
typedef struct {
    figure_bar tv;
    double mismatch;
    int64_t N;
} part;

static part part_of(const tv_dataset *data, const tv_distance *d, int64_t length, int64_t column, int prompt) {
    part p = {.N = 0};
    double *x[2] = {NULL, NULL};
    tv_dataset view = *data;
    for (int s = 0; s < 2; s++) {
        const tv_set *set = &data->set[s];
        int64_t dead = 0, n = 0;
        x[s] = tv_xmalloc((size_t)set->N * sizeof(double));
        for (int64_t i = 0; i < set->N; i++) {
            if (prompt >= 0 && (!set->prompt_index || set->prompt_index[i] != prompt)) continue;
            x[s][n++] = d->set[s].prefix_z[column * set->N + i];
            dead += d->set[s].dead_at[i] < length;
        }
        view.set[s].N = n;
        if (prompt >= 0) view.set[s].prompt_index = NULL;
        p.mismatch += n ? 0.5 * (double)dead / (double)n : 0;
        p.N += n;
    }
    p.tv = figure_mean(&view, x);
    free(x[0]), free(x[1]);
    return p;
}

/* Distances at up to 32 prefix lengths. */
static tv_status prefixes(const tv_dataset *data, int64_t *lengths, int64_t *n, tv_distance *d, tv_err *err) {
    *n = 0;
    for (int64_t i = 1, last = 0; i <= 32; i++) {
        int64_t l = (i * data->n + 31) / 32;
        if (l > last) lengths[(*n)++] = last = l;
    }
    tv_distance_options options = {.readout = tv_readout_choose(data, 0), .lengths = lengths, .n_lengths = *n};
    return tv_distance_run(data, &options, d, err);
}

tv_status figure_add_length(const tv_dataset *data, cJSON *tv, cJSON *mismatch, cJSON *values, tv_err *err) {
    int64_t lengths[32], n;
    tv_distance d;
    part last = {0};
    TV_TRY(prefixes(data, lengths, &n, &d, err));
    for (int64_t l = 0; l < n; l++) {
        last = part_of(data, &d, lengths[l], l, -1);
        plot_point(tv, (double)lengths[l], last.tv.estimate, last.tv.low, last.tv.high);
        if (mismatch) plot_point(mismatch, (double)lengths[l], last.mismatch, NAN, NAN);
    }
    tv_plugin p = tv_plugin_at(&d, d.R);
    cJSON_AddNumberToObject(values, "n", (double)data->n);
    cJSON_AddNumberToObject(values, "tv", last.tv.estimate);
    cJSON_AddNumberToObject(values, "tv_se", last.tv.se);
    cJSON_AddNumberToObject(values, "mismatch", last.mismatch);
    cJSON_AddNumberToObject(values, "own_zero_mass_a", p.dead[TV_A][TV_A]);
    cJSON_AddNumberToObject(values, "own_zero_mass_b", p.dead[TV_B][TV_B]);
    tv_distance_free(&d);
    return TV_OK;
}

tv_status figure_length(figures *f, cJSON *figure, tv_err *err) {
    const tv_dataset *data, *six;
    int64_t lengths[32], n;
    tv_distance d;
    TV_TRY(figure_data(f, FIGURE_LENGTH, &data, err));
    TV_TRY(figure_data(f, FIGURE_PROMPTS, &six, err));
    cJSON *panel = plot_panel(figure, "length of the text (tokens)", "total variation distance", PLOT_FROM_ZERO),
          *tv = plot_series(panel, "distance (plug-in)", "line"),
          *mismatch = plot_series(panel, "of it mismatch", "line");
    TV_TRY(figure_add_length(data, tv, mismatch, cJSON_AddObjectToObject(figure, "values"), err));
    TV_TRY(prefixes(six, lengths, &n, &d, err));
    char *label = tv_xprintf("total variation distance after %lld tokens", (long long)six->n);
    panel = plot_panel(figure, label, "", PLOT_FROM_ZERO);
    free(label);
    cJSON *prompts = plot_series(panel, "one prompt, 95% interval", "hpoints");
    for (int p = 0; figure_prompt_names[p]; p++) {
        part one = part_of(six, &d, six->n, n - 1, p);
        plot_category(panel, figure_prompt_names[p]);
        plot_point(prompts, one.tv.estimate, p, one.tv.low, one.tv.high);
    }
    tv_distance_free(&d);
    cJSON_AddStringToObject(figure, "caption",
                            "Two attention kernels without serving noise. Mismatch: texts with a token that one side "
                            "cannot write. Left: one prompt. Right: six prompts, shorter "
                            "texts. Reported for a larger model on other engines: 0.586 at 500 tokens, mismatch 0.29.");
    return TV_OK;
}

/* First position at which pass 0 of the side that sampled set s gives trajectory i's token no mass; n: nowhere. */
static tv_status own_dead_at(const tv_dataset *data, int s, int64_t *at, tv_err *err) {
    double *q = tv_xmalloc((size_t)data->n * sizeof *q);
    tv_status status = TV_OK;
    for (int64_t i = 0; i < data->set[s].N && status == TV_OK; i++) {
        status = tv_realised(data, s, s, 1, i, i + 1, tv_readout_choose(data, 0), q, err);
        at[i] = 0;
        while (at[i] < data->n && q[at[i]] > 0) at[i]++;
    }
    free(q);
    return status;
}

/* The share of trajectories that hold a token which the side that wrote it, scoring them, gives no mass. */
static tv_status add_own_zero_mass(const tv_dataset *data, cJSON *series, cJSON *values, tv_err *err) {
    int64_t *at[2] = {NULL, NULL}, N = data->set[0].N + data->set[1].N, dead = 0;
    tv_status status = TV_OK;
    for (int s = 0; s < 2 && status == TV_OK; s++) {
        at[s] = tv_xmalloc((size_t)data->set[s].N * sizeof *at[s]);
        status = own_dead_at(data, s, at[s], err);
    }
    for (int64_t l = 1; l <= 32 && status == TV_OK; l++) {
        int64_t length = (l * data->n + 31) / 32;
        dead = 0;
        for (int s = 0; s < 2; s++)
            for (int64_t i = 0; i < data->set[s].N; i++) dead += at[s][i] < length;
        plot_point(series, (double)length, (double)dead / (double)N, NAN, NAN);
    }
    cJSON_AddNumberToObject(values, "own_zero_mass", (double)dead / (double)N);
    free(at[0]), free(at[1]);
    return status;
}

tv_status figure_long(figures *f, cJSON *figure, tv_err *err) {
    static const struct {
        figure_run run;
        const char *name, *key;
    } ways[] = {{FIGURE_LONG, "as sampled", "sampled"},
                {FIGURE_RESERVE, "small cache, reserve", "reserve"},
                {FIGURE_GROW, "small cache, grow", "grow"}};
    cJSON *values = cJSON_AddObjectToObject(figure, "values");
    const char *x = "length of the text (tokens)";
    cJSON *tv = plot_panel(figure, x, "total variation distance", PLOT_FROM_ZERO),
          *mismatch = plot_panel(figure, x, "share of mismatches", PLOT_FROM_ZERO),
          *own = plot_panel(figure, x, "share of texts with an own token without mass", PLOT_FROM_ZERO);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        const tv_dataset *data;
        TV_TRY(figure_data(f, ways[w].run, &data, err));
        cJSON *numbers = cJSON_AddObjectToObject(values, ways[w].key);
        TV_TRY(figure_add_length(data, plot_series(tv, ways[w].name, "line"),
                                 plot_series(mismatch, ways[w].name, "line"), numbers, err));
        TV_TRY(add_own_zero_mass(data, plot_series(own, ways[w].name, "line"), numbers, err));
    }
    cJSON_AddStringToObject(
        figure, "caption",
        "Two attention kernels, the same long trajectories scored in the batch that sampled them and "
        "in a cache that holds a quarter of them: admitted by their whole length, or by their "
        "current one and preempted. Right: what one pass of the side that wrote a text says of it. "
        "Reported for a larger model on other engines: 0.541 at 500 tokens, 0.677 at 2000, mismatch "
        "0.48.");
    return TV_OK;
}

tv_status figure_prompts(figures *f, cJSON *figure, tv_err *err) {
    static const char *const columns[] = {"prompt", "trajectories", "TV", "se", "95% low", "95% high", "mismatch"};
    const tv_dataset *data;
    int64_t lengths[32], n;
    tv_distance d;
    TV_TRY(figure_data(f, FIGURE_PROMPTS, &data, err));
    TV_TRY(prefixes(data, lengths, &n, &d, err));
    plot_columns(figure, columns, 7);
    double low = INFINITY, high = 0;
    for (int p = -1; p < 0 || figure_prompt_names[p]; p++) {
        part one = part_of(data, &d, data->n, n - 1, p);
        cJSON *row = plot_row(figure);
        const double cells[] = {(double)one.N, one.tv.estimate, one.tv.se, one.tv.low, one.tv.high, one.mismatch};
        cJSON_AddItemToArray(row, cJSON_CreateString(p < 0 ? "all" : figure_prompt_names[p]));
        for (int i = 0; i < 6; i++) cJSON_AddItemToArray(row, cJSON_CreateNumber(cells[i]));
        if (p >= 0) low = fmin(low, one.tv.estimate), high = fmax(high, one.tv.estimate);
    }
    cJSON *values = cJSON_AddObjectToObject(figure, "values");
    cJSON_AddNumberToObject(values, "spread", high - low);
    tv_distance_free(&d);
    cJSON_AddStringToObject(figure, "caption",
                            "Two attention kernels, six prompts (plug-in). The row of all prompts has an interval over "
                            "prompts, Student's t. Reported: a spread as large as the distance.");
    return TV_OK;
}

tv_status figure_topk(figures *f, cJSON *figure, tv_err *err) {
    static const int readouts[] = {5, 10, 20, 50, 100};
    const tv_dataset *data;
    TV_TRY(figure_data(f, FIGURE_PAIR, &data, err));
    cJSON *panel = plot_panel(figure, "readout k", "total variation distance", PLOT_LOG_X | PLOT_FROM_ZERO),
          *tv = plot_series(panel, "distance (plug-in)", "line"),
          *mismatch = plot_series(panel, "of it mismatch", "line"),
          *shared = plot_series(panel, "of it shared", "line");
    double *x[2] = {tv_xmalloc((size_t)data->set[0].N * sizeof(double)),
                    tv_xmalloc((size_t)data->set[1].N * sizeof(double))};
    tv_status s = TV_OK;
    for (size_t k = 0; k < sizeof readouts / sizeof *readouts && s == TV_OK; k++) {
        tv_distance_options options = {.readout = {.readout = readouts[k]}};
        tv_distance d;
        if (readouts[k] > data->set[0].k[0]) break;
        s = tv_distance_run(data, &options, &d, err);
        if (s != TV_OK) break;
        for (int set = 0; set < 2; set++) tv_distance_z(&d, set, d.R, x[set]);
        tv_plugin p = tv_plugin_at(&d, d.R);
        figure_bar b = figure_mean(data, x);
        plot_point(tv, readouts[k], b.estimate, b.low, b.high);
        plot_point(mismatch, readouts[k], p.mismatch_sym, NAN, NAN);
        plot_point(shared, readouts[k], p.shared_sym, NAN, NAN);
        tv_distance_free(&d);
    }
    free(x[0]), free(x[1]);
    cJSON_AddStringToObject(
        figure, "caption",
        "The same passes read out to their k most likely tokens, renormalised; the sampler took the "
        "20 most likely. Below that a sampled token may lie outside both readouts: mismatch is then "
        "most of the distance.");
    return s;
}
