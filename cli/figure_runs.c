/* The measurements that figures share. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/figure.h"
#include "estimator/interval.h"
#include "estimator/report_view.h"

/* A run samples and scores; or it scores the trajectories of another one, in as many passes, under other options. Reads
 * of the pair make up the noise, repeats, levels and budget figures; its stored slots the topk and support ones. Its
 * trajectories: the pilot protocol needs 66. */
typedef struct {
    const char *name;
    const char *both[2]; /* options "NAME=VALUE NAME=VALUE" of both sides: quick, full */
    const char *b;       /* of side b behind them */
    struct {
        int64_t N, n, R; /* R = 1, 2 without a small cache: whatever -R says, as the sides repeat themselves */
    } size[2];           /* quick, full; of another run's trajectories only R counts */
    int shares_a;        /* side a is that of the pair */
    int six_prompts;
    int fits;   /* 1: n is cut to the positions that the model has, unless -n says n */
    int scores; /* 1: the trajectories of run `of` ... */
    figure_run of;
    int prefill;  /* ... each at once instead of step by step ... */
    double cache; /* ... in a cache that holds this share of them (0: no limit) */
} run_plan;

#define NOISE "order=shuffled arrivals=staggered store-k=100"
#define NOISY                                                                                                          \
    { "batch=16 " NOISE, "batch=256 " NOISE }
#define PLAIN                                                                                                          \
    { "store-k=32", "store-k=32" }
#define SMALL(admission)                                                                                               \
    { "store-k=32 admission=" admission, "order=shuffled store-k=32 admission=" admission }
#define AGAINST_MATH .b = "backend=math pass-seed=1"
static const run_plan plans[FIGURE_RUNS] = {
    [FIGURE_PAIR] =
        {.name = "pair", .both = NOISY, AGAINST_MATH, .size = {{72, 64, 16}, {512, 500, 64}}, .shares_a = 1},
    [FIGURE_SAME] =
        {.name = "same", .both = NOISY, .b = "pass-seed=1", .size = {{72, 64, 16}, {512, 500, 64}}, .shares_a = 1},
    [FIGURE_NARROW] = {.name = "batch-narrow",
                       .both = {"batch=4 " NOISE, "batch=512 " NOISE},
                       AGAINST_MATH,
                       .size = {{.R = 4}, {.R = 32}},
                       .scores = 1,
                       .of = FIGURE_PAIR},
    [FIGURE_WIDE] = {.name = "batch-wide",
                     .both = {"batch=64 " NOISE, "batch=1024 " NOISE},
                     AGAINST_MATH,
                     .size = {{.R = 4}, {.R = 32}},
                     .scores = 1,
                     .of = FIGURE_PAIR},
    [FIGURE_LENGTH] = {.name = "length", .both = PLAIN, .b = "backend=math", .size = {{192, 192, 2}, {512, 500, 2}}},
    [FIGURE_PROMPTS] = {.name = "prompts",
                        .both = PLAIN,
                        .b = "backend=math",
                        .size = {{144, 96, 2}, {510, 500, 2}},
                        .six_prompts = 1},
    [FIGURE_PREFILL] = {.name = "scoring",
                        .both = PLAIN,
                        .b = "backend=math",
                        .size = {{.R = 1}, {.R = 1}},
                        .scores = 1,
                        .of = FIGURE_LENGTH,
                        .prefill = 1},
    [FIGURE_LONG] =
        {.name = "long", .both = PLAIN, .b = "backend=math", .size = {{32, 2000, 1}, {512, 2000, 1}}, .fits = 1},
    [FIGURE_RESERVE] = {.name = "long-reserve",
                        .both = SMALL("reserve"),
                        AGAINST_MATH,
                        .size = {{.R = 1}, {.R = 64}},
                        .scores = 1,
                        .of = FIGURE_LONG,
                        .cache = 0.25},
    [FIGURE_GROW] = {.name = "long-grow",
                     .both = SMALL("grow"),
                     AGAINST_MATH,
                     .size = {{.R = 1}, {.R = 64}},
                     .scores = 1,
                     .of = FIGURE_LONG,
                     .cache = 0.25},
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

/* The arguments of a run; the caller has made them f's. */
static tv_status fill_args(const figures *f, const run_plan *p, tv_args *args, tv_err *err) {
    *args = *f->args;
    if (!args->N) args->N = p->size[f->full].N;
    if (!args->n) args->n = p->size[f->full].n;
    if (!args->R || (p->size[f->full].R <= 2 && !p->cache)) args->R = p->size[f->full].R;
    args->seed[1] = args->seed[0] + 1;
    for (int e = 0; e < 2; e++) TV_TRY(set_options(p->both[f->full], &args->side[e], err));
    return set_options(p->b, &args->side[1], err);
}

/* Cuts n to what the model has positions for. */
static tv_status cut_length(figures *f, tv_args *args, tv_err *err) {
    tv_args any = *args;
    any.n = 1;
    if (!f->base.engine[0]) {
        tv_status s = cli_comparison_open(&f->base, &any, NULL, err);
        f->base.args = args;
        TV_TRY(s);
    }
    tv_engine_info info;
    tv_engine_describe(f->base.engine[0], &info);
    if (args->n > info.max_positions - f->base.prompts.longest) args->n = info.max_positions - f->base.prompts.longest;
    return TV_OK;
}

/* Samples and scores. */
static tv_status measure(figures *f, figure_run run, const char *folder, tv_err *err) {
    const run_plan *p = &plans[run];
    tv_args *args = f->run_args[run];
    char *prompts = NULL;
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

/* Side e's passes over both sets into folder. */
static tv_status score_side(figures *f, figure_run run, int e, tv_trace *const set[2], const char *folder, tv_bar *bar,
                            tv_err *err) {
    const run_plan *p = &plans[run];
    const tv_args *args = f->run_args[run];
    tv_serving serving = args->side[e].serving;
    int64_t N = set[0]->N > set[1]->N ? set[0]->N : set[1]->N, positions = tv_trace_longest_prompt(set[0]) + set[0]->n;
    serving.pad_batch = serving.batch > N; /* a batch of that size, whoever fills it */
    if (p->cache > 0) serving.kv_tokens = (int64_t)fmax((double)positions, p->cache * (double)(N * positions));
    tv_session *session = NULL;
    tv_status s = tv_session_open(f->base.engine[0], &serving, N, positions, &session, err);
    for (int q = 0; q < 2 && s == TV_OK; q++)
        for (int64_t pass = 0; pass < args->R && s == TV_OK; pass++) {
            char *path = tv_pass_path(folder, e, q, pass);
            const uint64_t unit = (uint64_t)(N * set[0]->n);
            tv_trace *trace = NULL;
            tv_bar_part(bar, p->name, ((uint64_t)(2 * e + q) * (uint64_t)args->R + (uint64_t)pass) * unit);
            if (!tv_path_exists(path)) {
                s = p->prefill
                        ? tv_session_score_prefill(session, set[q], (char)('a' + e), pass, &bar->progress, &trace, err)
                        : tv_session_replay(session, set[q], (char)('a' + e), pass, &bar->progress, &trace, err);
                if (s == TV_OK) s = tv_trace_write(trace, path, err);
            }
            tv_trace_close(trace);
            free(path);
        }
    tv_session_close(session);
    return s;
}

/* Scores the trajectories of another run, which lie in `from`. */
static tv_status score(figures *f, figure_run run, const char *from, const char *folder, tv_err *err) {
    tv_args *args = f->run_args[run];
    tv_trace *set[2] = {NULL, NULL};
    tv_status s = tv_dir_make(folder, err);
    if (s == TV_OK) tv_rundir_clean(folder);
    if (s == TV_OK && !f->base.engine[0]) s = cli_comparison_open(&f->base, args, NULL, err);
    for (int q = 0; q < 2 && s == TV_OK; q++) {
        char *there = tv_samples_path(from, q), *here = tv_samples_path(folder, q);
        s = tv_trace_open(there, &set[q], err);
        if (s == TV_OK && !tv_path_exists(here) && link(there, here) != 0) s = tv_trace_write(set[q], here, err);
        free(there), free(here);
    }
    if (s == TV_OK) {
        tv_bar bar;
        tv_bar_start(&bar, plans[run].name, "tokens", 1, 4 * (uint64_t)(args->R * set[0]->N * set[0]->n), args->quiet);
        for (int e = 0; e < 2 && s == TV_OK; e++) s = score_side(f, run, e, set, folder, &bar, err);
        tv_bar_finish(&bar);
    }
    tv_trace_close(set[0]), tv_trace_close(set[1]);
    return s;
}

tv_status figure_data(figures *f, figure_run run, const tv_dataset **data, tv_err *err) {
    const run_plan *p = &plans[run];
    const int given = run == FIGURE_PAIR && f->args->run;
    f->used |= 1u << run;
    if (!f->data[run]) {
        char *folder = given ? tv_xstrdup(f->args->run) : tv_path_join(f->runs, p->name);
        tv_status s = TV_OK;
        /* first the pair for a run that shares its side a, and the trajectories that are to be scored */
        if (p->scores)
            s = figure_data(f, p->of, data, err);
        else if (p->shares_a && run != FIGURE_PAIR && !f->args->run)
            s = figure_data(f, FIGURE_PAIR, data, err);
        if (s == TV_OK && !given) {
            f->run_args[run] = tv_xmalloc(sizeof(tv_args));
            s = fill_args(f, p, f->run_args[run], err);
            if (s == TV_OK && p->fits && !f->args->n) s = cut_length(f, f->run_args[run], err);
            if (s == TV_OK) tv_note("measuring \"%s\"", p->name);
            if (s == TV_OK) s = p->scores ? score(f, run, (*data)->source, folder, err) : measure(f, run, folder, err);
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
        } else {
            for (int e = 0; e < 2; e++)
                if (f->data[run]->config[e])
                    cJSON_AddItemToObject(row, e ? "b" : "a", cJSON_Duplicate(f->data[run]->config[e], 1));
        }
        cli_add_libraries(row, f->data[run]);
        if (plans[run].scores) cJSON_AddStringToObject(row, "trajectories_of", plans[plans[run].of].name);
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
