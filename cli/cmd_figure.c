/* tvgpu figure: every figure and table from one command. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/figure.h"
#include "estimator/report_view.h"

static const struct {
    const char *name, *title;
    figure_fn *make;
} known[] = {
    {"noise", "Noise of one read", figure_noise},
    {"repeats", "Distance against the number of reads", figure_repeats},
    {"length", "Distance against the length of the text", figure_length},
    {"long", "Distance over long texts, and a small cache", figure_long},
    {"batch", "Distance and noise against the batch", figure_batch},
    {"budget", "Error against budget", figure_budget},
    {"synthetic", "Error on an instance of known distance", figure_synthetic},
    {"levels", "Variance and cost of levels", figure_levels},
    {"support", "Ids that repeated reads see", figure_support},
    {"scoring", "Sequence-level scoring against replay", figure_scoring},
    {"topk", "Distance against the readout", figure_topk},
    {"prompts", "Table: distance by prompt", figure_prompts},
    {"sampleonly", "Estimating from samples alone", figure_sampleonly},
    {"drift", "Which switch moves the distribution", figure_drift},
    {"complexity", "Table: queries that theory asks for", figure_complexity},
    {"multilevel", "Table: what multilevel schedules save", figure_multilevel},
};
enum { N_KNOWN = sizeof known / sizeof *known };

/* Which of the known figures the words name, as bits; 0 after a failure. */
static unsigned wanted(const tv_args *args, int words_from, tv_err *err) {
    unsigned bits = 0;
    for (int w = words_from; w < args->n_positional; w++) {
        int found = 0;
        for (int i = 0; i < N_KNOWN; i++)
            if (!strcmp(args->positional[w], known[i].name) || !strcmp(args->positional[w], "all"))
                bits |= 1u << i, found = 1;
        if (!found) {
            char names[512] = "";
            for (int i = 0; i < N_KNOWN; i++)
                snprintf(names + strlen(names), sizeof names - strlen(names), " %s", known[i].name);
            (void)TV_FAIL(err, TV_EARG, "no figure \"%s\"; there are all%s", args->positional[w], names);
            return 0;
        }
    }
    if (!bits) (void)TV_FAIL(err, TV_EARG, "figure needs a NAME, or all; see tvgpu figure --help");
    return bits;
}

static cJSON *timing(double started) {
    cJSON *t = cJSON_CreateObject();
    char text[64];
    time_t now = time(NULL);
    struct tm tm;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    cJSON_AddStringToObject(t, "date", text);
    cJSON_AddNumberToObject(t, "seconds", tv_clock() - started);
    return t;
}

/* One figure: its data, where they come from, its files. */
static tv_status make(figures *f, int i, cJSON **figure, int *drawn, tv_err *err) {
    double started = tv_clock();
    *figure = cJSON_CreateObject();
    cJSON_AddStringToObject(*figure, "name", known[i].name);
    cJSON_AddStringToObject(*figure, "title", known[i].title);
    tv_status s = known[i].make(f, *figure, err);
    cJSON *provenance = figure_provenance(f);
    cJSON_AddStringToObject(provenance, "tvgpu", TV_VERSION);
    cJSON_AddStringToObject(provenance, "scale", f->full ? "full" : "quick");
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)f->args->seed[0]);
    cJSON_AddStringToObject(provenance, "seed", seed);
    cJSON_AddItemToObject(*figure, "provenance", provenance);
    cJSON_AddItemToObject(*figure, "timing", timing(started));
    int here = 1;
    if (s == TV_OK) s = plot_write(*figure, f->out, &here, err);
    *drawn &= here;
    return s;
}

/* All figures of the folder that this or an earlier command wrote, in the order of the table. */
static tv_status write_index(const figures *f, int drawn, tv_err *err) {
    cJSON *list = cJSON_CreateArray();
    tv_status s = TV_OK;
    for (int i = 0; i < N_KNOWN && s == TV_OK; i++) {
        char *name = tv_xprintf("%s.json", known[i].name), *path = tv_path_join(f->out, name);
        cJSON *figure = NULL;
        if (tv_path_exists(path)) s = tv_json_load(path, (size_t)1 << 28, &figure, err);
        if (figure) cJSON_AddItemToArray(list, figure);
        free(name), free(path);
    }
    if (s == TV_OK) s = plot_index(list, f->out, drawn, err);
    cJSON_Delete(list);
    return s;
}

static tv_status work(figures *f, unsigned bits, tv_err *err) {
    int drawn = 1;
    cJSON *summary = cJSON_CreateArray();
    tv_status s = tv_dir_make(f->out, err);
    for (int i = 0; i < N_KNOWN && s == TV_OK; i++) {
        cJSON *figure = NULL;
        if (!(bits >> i & 1)) continue;
        s = make(f, i, &figure, &drawn, err);
        if (s == TV_OK) {
            cJSON *o = cJSON_CreateObject();
            cJSON_AddStringToObject(o, "name", known[i].name);
            const cJSON *values = tv_view_item(figure, "values");
            if (values) cJSON_AddItemToObject(o, "values", cJSON_Duplicate(values, 1));
            cJSON_AddItemToArray(summary, o);
            tv_note("%s/%s: %s (%.0f s)", f->out, known[i].name, known[i].title,
                    tv_view_number(figure, "timing.seconds"));
        }
        cJSON_Delete(figure);
    }
    if (s == TV_OK) s = write_index(f, drawn, err);
    if (s == TV_OK && !drawn)
        tv_note("no pictures: gnuplot was not found or failed; install it and run the command again (what is measured "
                "is kept)");
    if (s == TV_OK && f->args->json)
        cli_print_json(summary);
    else if (s == TV_OK)
        printf("%s/index.html\n", f->out);
    cJSON_Delete(summary);
    return s;
}

static int run(tv_args *args, tv_err *err) {
    figures f = {.args = args, .out = args->out ? args->out : "figures"};
    const char *names[] = {"all"};
    /* the first word may be a MODEL: it is one when it names no figure */
    int model = 0;
    if (args->n_positional > 1) {
        model = strcmp(args->positional[0], names[0]) != 0;
        for (int i = 0; i < N_KNOWN; i++) model = model && strcmp(args->positional[0], known[i].name);
    }
    unsigned bits = wanted(args, model, err);
    if (!bits) return EXIT_USAGE;
    if (model)
        args->n_positional = 1;
    else
        args->n_positional = 0;
    f.full = !strcmp(args->size, "full");
    f.runs = tv_path_join(f.out, f.full ? "runs-full" : "runs");
    (void)work(&f, bits, err);
    figure_runs_close(&f);
    return EXIT_DONE;
}

const tv_command tv_command_figure = {
    "figure",
    "every figure and table, with its data, from one command",
    CMD_FIGURE,
    N_KNOWN + 2,
    "[MODEL] NAME... | all [options]",
    "Measures what the figures need (runs are shared between them and kept in the folder) and writes\n"
    "NAME.csv, NAME.json (data with provenance), NAME.svg and NAME.png, and an index page. Names: noise,\n"
    "repeats, length, long, batch, budget, synthetic, levels, support, scoring, topk, prompts, sampleonly,\n"
    "drift, and the tables complexity and multilevel (data only). Pictures need gnuplot.",
    "  tvgpu figure all\n  tvgpu figure synthetic levels -o figures\n  tvgpu figure MODEL all --scale full\n"
    "  tvgpu figure topk --run RUN\n",
    run,
};
