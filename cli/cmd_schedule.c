/* tvgpu schedule: how many trajectories and reads to spend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/progress.h"
#include "estimator/report.h"
#include "estimator/schedule.h"

static double get(const cJSON *o, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* Nested objects of numbers as indented lines. */
static void print_tree(const cJSON *item, int indent) {
    for (; item; item = item->next) {
        printf("%*s%-*s", indent, "", 26 - indent, item->string);
        if (cJSON_IsNumber(item))
            printf(" %.6g\n", item->valuedouble);
        else if (cJSON_IsString(item))
            printf(" %s\n", item->valuestring);
        else if (cJSON_IsBool(item))
            printf(" %s\n", cJSON_IsTrue(item) ? "yes" : "no");
        else if (cJSON_IsNull(item))
            puts(" -");
        else if (cJSON_IsArray(item) && cJSON_IsNumber(item->child)) {
            for (const cJSON *n = item->child; n; n = n->next) printf(" %.4g", n->valuedouble);
            putchar('\n');
        } else if (cJSON_IsArray(item)) { /* of objects: one a line, as "r 4  N 100" */
            putchar('\n');
            for (const cJSON *o = item->child; o; o = o->next) {
                printf("%*s", indent, "");
                for (const cJSON *n = o->child; n; n = n->next)
                    if (cJSON_IsNumber(n)) printf("  %s %-10.6g", n->string, n->valuedouble);
                putchar('\n');
            }
        } else {
            putchar('\n');
            print_tree(item->child, indent + 2);
        }
    }
}

/* A factor or a dash, in a column. */
static void cell(double v) {
    if (isfinite(v))
        printf(" %30.3g", v);
    else
        printf(" %30s", "-");
}

static void print_protocol(const char *title, const cJSON *p) {
    const cJSON *budgets = cJSON_GetObjectItemCaseSensitive(p, "budgets"),
                *rmse = cJSON_GetObjectItemCaseSensitive(p, "rmse"), *family;
    if (!budgets) return;
    printf("\n%s: root-mean-square error by budget (trajectory-reads a side)\n%-26s", title, "");
    for (const cJSON *b = budgets->child; b; b = b->next) printf(" %8.3g", b->valuedouble);
    putchar('\n');
    cJSON_ArrayForEach(family, rmse) {
        if (!cJSON_IsArray(family)) continue;
        printf("%-26s", family->string);
        for (const cJSON *v = family->child; v; v = v->next)
            if (cJSON_IsNumber(v))
                printf(" %8.3g", v->valuedouble);
            else
                printf(" %8s", "-");
        putchar('\n');
    }
    const cJSON *ratio = cJSON_GetObjectItemCaseSensitive(p, "rmse_ratio"),
                *pilot = cJSON_GetObjectItemCaseSensitive(p, "savings_over_pilot_single"),
                *best = cJSON_GetObjectItemCaseSensitive(p, "savings_over_hindsight_single");
    printf("%-26s %16s %30s %30s\n", "against a single level", "error ratio", "peak saving, level of a pilot",
           "peak saving, best in hindsight");
    cJSON_ArrayForEach(family, ratio) {
        printf("%-26s %16.3g", family->string, get(ratio, family->string));
        cell(get(cJSON_GetObjectItemCaseSensitive(pilot, family->string), "peak"));
        cell(get(cJSON_GetObjectItemCaseSensitive(best, family->string), "peak"));
        putchar('\n');
    }
    if (isfinite(get(p, "theta"))) printf("%-26s %16.3g\n", "theta", get(p, "theta"));
}

static tv_status next(const tv_args *args, const tv_dataset *data, tv_err *err) {
    tv_report_options options = {args->reads, (int)args->readout, args->serving_order, args->seed[0]};
    cJSON *report = NULL, *answer = NULL;
    TV_TRY(tv_report_build(data, &options, &report, err));
    double target = isfinite(args->target_error) ? args->target_error : 0,
           budget = isfinite(args->budget) ? args->budget : 0;
    tv_status s = tv_schedule_next(report, target, budget, &answer, err);
    if (s == TV_OK && args->json)
        cli_print_json(answer);
    else if (s == TV_OK) {
        const char *reason = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(answer, "reason"));
        puts(reason ? reason : "");
        if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(answer, "done")) && isfinite(get(answer, "trajectories")))
            printf("run next:  tvgpu compare ... -N %.0f -R %.0f   (%.4g queries a side; expected interval +-%.4g)%s\n",
                   get(answer, "trajectories"), get(answer, "reads"), get(answer, "queries"),
                   get(answer, "expected_half_width"),
                   target > 0 ? "\nor go on from what is there: the command that made it, with --target-error" : "");
    }
    cJSON_Delete(report);
    cJSON_Delete(answer);
    return s;
}

static int run(tv_args *args, tv_err *err) {
    cJSON *answer = NULL;
    if (args->theory) {
        if (tv_schedule_theory(args->n ? (double)args->n : 500, args->sigma, args->eps, args->delta, 0, &answer, err) ==
            TV_OK) {
            if (args->json)
                cli_print_json(answer);
            else
                print_tree(answer->child, 0);
        }
        cJSON_Delete(answer);
        return EXIT_DONE;
    }
    if (!args->n_positional)
        return (int)TV_FAIL(err, TV_EARG, "schedule needs a run folder, a bundle or trace files (or --theory)");
    tv_dataset *data = NULL;
    tv_status s = tv_dataset_open(args->positional, args->n_positional, &data, err);
    if (s == TV_OK) s = tv_dataset_need_passes(data, "schedule", err);
    if (s == TV_OK && (isfinite(args->target_error) || isfinite(args->budget))) {
        s = next(args, data, err);
    } else if (s == TV_OK) {
        tv_bar bar;
        tv_bar_start(&bar, "levels", "trajectories", 1, 0, args->quiet);
        tv_schedule_options options = {.readout = tv_readout_choose(data, args->readout),
                                       .serving_order = args->serving_order,
                                       .progress = &bar.progress};
        options.protocol.seed = args->seed[0];
        s = tv_schedule_run(data, &options, &answer, err);
        tv_bar_finish(&bar);
        if (s == TV_OK && args->json)
            cli_print_json(answer);
        else if (s == TV_OK) {
            print_protocol("both sides", cJSON_GetObjectItemCaseSensitive(answer, "symmetric"));
            print_protocol("side a alone", cJSON_GetObjectItemCaseSensitive(answer, "one_sided_a"));
            print_protocol("side b alone", cJSON_GetObjectItemCaseSensitive(answer, "one_sided_b"));
        }
    }
    cJSON_Delete(answer);
    tv_dataset_close(data);
    return EXIT_DONE;
}

const tv_command tv_command_schedule = {
    "schedule",
    "which schedule of reads and trajectories a budget or a target error asks for",
    CMD_SCHEDULE,
    TV_MOST_WORDS,
    "PATH... | --theory [options]",
    "On recorded passes: runs the pilot protocol (64 pilot trajectories, all schedules of at most four\n"
    "levels) and sets multilevel and hedged estimators against single levels, budget by budget. With\n"
    "--target-error or --budget: what to run next. With --theory: the parameters of the algorithms from\n"
    "n, sigma, eps and delta.",
    "  tvgpu schedule RUN\n  tvgpu schedule RUN --target-error 0.01\n  tvgpu schedule --theory --length 500 --sigma "
    "0.02 --eps 0.01\n",
    run,
};
