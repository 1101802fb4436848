/* The measurements that figures share. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/figure.h"
#include "estimator/interval.h"
#include "estimator/report_view.h"

/* Reads of the pair make up the noise, repeats, levels and budget figures; its stored slots the topk and support ones.
 * Trajectories: the pilot protocol needs 66. */
typedef struct {
    const char *name, *both, *b; /* options "NAME=VALUE NAME=VALUE" of both sides, and of side b behind them */
    int shares_a;                /* side a is that of the pair */
    struct {
        int64_t N, n, R;
    } size[2]; /* quick, full */
    int six_prompts;
} run_plan;

#define NOISY "order=shuffled arrivals=staggered store-k=100"
static const run_plan plans[FIGURE_RUNS] = {
    [FIGURE_PAIR] = {"pair", "batch=16 " NOISY, "backend=math pass-seed=1", 1, {{72, 64, 16}, {256, 500, 64}}, 0},
    [FIGURE_SAME] = {"same", "batch=16 " NOISY, "pass-seed=1", 1, {{72, 64, 16}, {256, 500, 64}}, 0},
    [FIGURE_NARROW] = {"batch-4", "batch=4 " NOISY, "backend=math pass-seed=1", 0, {{72, 64, 4}, {256, 500, 16}}, 0},
    [FIGURE_WIDE] = {"batch-64", "batch=64 " NOISY, "backend=math pass-seed=1", 0, {{72, 64, 4}, {256, 500, 16}}, 0},
    [FIGURE_LENGTH] = {"length", "store-k=32", "backend=math", 0, {{192, 192, 2}, {512, 500, 2}}, 0},
    [FIGURE_PROMPTS] = {"prompts", "store-k=32", "backend=math", 0, {{144, 96, 2}, {510, 500, 2}}, 1},
};

static const char *const prompt_texts[] = {
    "Tell me a story about a robot learning to paint.",
    "Explain how a refrigerator keeps food cold.",
    "What caused the fall of the Western Roman Empire?",
    "Summarize the plot of Moby-Dick in a few paragraphs.",
    "\xe8\xaf\xb7\xe8\xa7\xa3\xe9\x87\x8a\xe5\x85\x89\xe5\x90\x88\xe4\xbd\x9c\xe7\x94\xa8\xe3\x80\x82",
    "Write a Python function that merges two sorted lists.",
};
enum { PROMPTS = sizeof prompt_texts / sizeof *prompt_texts };
const char *const figure_prompt_names[PROMPTS + 1] = {
    "story", "explanation", "history", "literature", "Chinese explanation", "coding", NULL};

/* The prompts as a file beside the runs; *path is the caller's. */
static tv_status write_prompts(const figures *f, char **path, tv_err *err) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    for (int i = 0; i < PROMPTS; i++) {
        cJSON *item = cJSON_CreateString(prompt_texts[i]);
        char *line = tv_json_line(item);
        fprintf(out, "%s\n", line);
        free(line);
        cJSON_Delete(item);
    }
    fclose(out);
    *path = tv_path_join(f->runs, "prompts.jsonl");
    tv_status s = tv_dir_make(f->runs, err);
    if (s == TV_OK) s = tv_file_write(*path, text, size, err);
    free(text);
    return s;
}

static tv_status set_options(const char *options, tv_side *side, tv_err *err) {
    char *copy = tv_xstrdup(options), *rest = copy;
    tv_status s = TV_OK;
    for (char *word; s == TV_OK && (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');
        *value++ = 0;
        s = tv_args_set_side(CMD_ATTRIBUTE, word, value, side, err);
    }
    free(copy);
    return s;
}

static tv_status measure(figures *f, figure_run run, char *folder, tv_err *err) {
    const run_plan *p = &plans[run];
    tv_args *args = f->run_args[run] = tv_xmalloc(sizeof *args);
    char *prompts = NULL;
    *args = *f->args;
    if (!args->N) args->N = p->size[f->full].N;
    if (!args->n) args->n = p->size[f->full].n;
    if (!args->R || p->size[f->full].R == 2) args->R = p->size[f->full].R; /* 2: the sides repeat themselves */
    args->seed[1] = args->seed[0] + 1;
    for (int e = 0; e < 2; e++) TV_TRY(set_options(p->both, &args->side[e], err));
    TV_TRY(set_options(p->b, &args->side[1], err));
    if (p->six_prompts) {
        tv_status s = write_prompts(f, &prompts, err);
        if (s != TV_OK) {
            free(prompts);
            return s;
        }
        args->prompts = prompts;
    }
    cli_comparison now = {0}, *c = f->base.engine[0] ? run == FIGURE_PAIR ? &f->pair : &now : &f->base;
    tv_status s = cli_comparison_open(c, args, c == &f->base ? NULL : &f->base, err);
    if (s == TV_OK) s = cli_comparison_run(c, folder, p->shares_a && f->pair.run ? &f->pair : NULL, err);
    cJSON *report = NULL;
    if (s == TV_OK) s = cli_comparison_report(c, &report, err);
    cJSON_Delete(report);
    args->prompts = NULL;
    free(prompts);
    cli_comparison_rest(c);
    if (c == &now) cli_comparison_close(c);
    return s;
}

tv_status figure_data(figures *f, figure_run run, const tv_dataset **data, tv_err *err) {
    f->used |= 1u << run;
    if (!f->data[run]) {
        char *folder =
            run == FIGURE_PAIR && f->args->run ? tv_xstrdup(f->args->run) : tv_path_join(f->runs, plans[run].name);
        tv_status s = TV_OK;
        if (run != FIGURE_PAIR || !f->args->run) {
            /* the pair first, so that a run that shares its side a finds it */
            if (plans[run].shares_a && run != FIGURE_PAIR && !f->args->run) s = figure_data(f, FIGURE_PAIR, data, err);
            if (s == TV_OK) tv_note("measuring \"%s\"", plans[run].name);
            if (s == TV_OK) s = measure(f, run, folder, err);
        }
        const char *path = folder;
        if (s == TV_OK) s = tv_dataset_open(&path, 1, &f->data[run], err);
        free(folder);
        TV_TRY(s);
    }
    *data = f->data[run];
    return TV_OK;
}

cJSON *figure_provenance(figures *f) {
    cJSON *o = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(o, "runs");
    for (int run = 0; run < FIGURE_RUNS; run++) {
        if (!(f->used >> run & 1) || !f->data[run]) continue;
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "folder", f->data[run]->source);
        if (f->data[run]->manifest) {
            cJSON *m = cJSON_Duplicate(f->data[run]->manifest, 1);
            cJSON_DeleteItemFromObjectCaseSensitive(m, "prompt_ids");
            cJSON_DeleteItemFromObjectCaseSensitive(m, "prompt_offsets");
            cJSON_AddItemToObject(row, "run", m);
        }
        cli_add_libraries(row, f->data[run]);
        cJSON_AddItemToArray(list, row);
    }
    if (f->extra) cJSON_AddItemToObject(o, "attribution", f->extra);
    f->extra = NULL;
    f->used = 0;
    return o;
}

void figure_runs_close(figures *f) {
    for (int run = 0; run < FIGURE_RUNS; run++) {
        tv_dataset_close(f->data[run]);
        free(f->run_args[run]);
    }
    cli_comparison_close(&f->pair);
    cli_comparison_close(&f->base);
    cJSON_Delete(f->schedule[0]);
    cJSON_Delete(f->schedule[1]);
    cJSON_Delete(f->extra);
    free(f->runs);
}

figure_bar figure_mean(const tv_dataset *data, double *const x[2]) {
    tv_arms arms = {
        {x[0], x[1]}, {data->set[0].N, data->set[1].N}, {data->set[0].prompt_index, data->set[1].prompt_index}};
    tv_estimate e = tv_arms_estimate(&arms);
    figure_bar b = {e.estimate, e.se, e.estimate - e.quantile * e.se, e.estimate + e.quantile * e.se};
    if (isfinite(e.se)) tv_interval_clip(b.estimate, &b.low, &b.high);
    return b;
}

const char *figure_backend(const tv_dataset *data, int e) {
    const char *name = tv_view_string(data->config[e], "backend");
    return *name ? name : e ? "side b" : "side a";
}
