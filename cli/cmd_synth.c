/* tvgpu synth: every estimator on instances whose distance is known exactly. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/progress.h"
#include "estimator/synthetic.h"

static double get(const cJSON *o, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static const char *text(const cJSON *o, const char *key) {
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
    return s ? s : "";
}

static void print_check(const cJSON *check) {
    double low = get(check, "low"), high = get(check, "high"); /* one of them may be missing */
    int held = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(check, "held"));
    printf("  %-6s %10.5g  ", held ? "held" : "FAILED", get(check, "value"));
    if (isnan(low))
        printf("at most %-14.5g", high);
    else if (isnan(high))
        printf("at least %-13.5g", low);
    else
        printf("in [%6.5g, %6.5g]%*s", low, high, 2, "");
    printf("  %s\n", text(check, "name"));
}

/* What an error of 0.01 costs each family of estimators, scenario by scenario. */
static void print_queries(const cJSON *rows) {
    const char *scenario = "";
    const cJSON *row;
    cJSON_ArrayForEach(row, rows) {
        double queries = get(row, "queries"), saving = get(row, "saving_over_hindsight_single");
        if (!(fabs(get(row, "rmse") - 0.01) < 1e-9)) continue;
        if (strcmp(scenario, text(row, "scenario"))) {
            scenario = text(row, "scenario");
            printf("\n%s\n  %-24s %14s  %s\n", scenario, "for an error of 0.01", "queries a side",
                   "times fewer than the hindsight-best single level");
        }
        printf("  %-24s ", text(row, "family"));
        if (isfinite(queries))
            printf("%14.4g  ", queries);
        else
            printf("%14s  %s", "-", text(row, "queries_reason"));
        if (isfinite(saving)) printf("%.3g", saving);
        putchar('\n');
    }
}

static void print_checks(const cJSON *report) {
    const cJSON *item;
    puts("instances (total variation distance, exact)");
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(report, "instances"))
        printf("  %-24s %.17g\n", text(item, "name"), get(item, "tv"));
    puts("\nchecks");
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(report, "checks")) print_check(item);
    print_queries(cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(report, "queries"), "rows"));
}

static void print_coverage(const cJSON *rows) {
    const cJSON *item;
    printf("%-24s %-12s %10s %10s %10s\n", "instance", "estimator", "coverage", "width", "bias");
    cJSON_ArrayForEach(item, rows)
        printf("%-24s %-12s %9.2f%% %10.4g %10.3g%s\n", text(item, "instance"), text(item, "estimator"),
               100 * get(item, "coverage"), get(item, "mean_width"), get(item, "bias"),
               cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "conservative")) ? "  conservative" : "");
}

static int run(tv_args *args, tv_err *err) {
    tv_bar bar;
    tv_bar_start(&bar, args->coverage ? "coverage" : "synthetic instances", "per mille", 1, 0, args->quiet);
    tv_synth_options options = {args->seed[0], args->scale, args->coverage, 0};
    cJSON *report = NULL;
    int held = 1;
    tv_status s = tv_synth_run(&options, &bar.progress, &report, err);
    tv_bar_finish(&bar);
    if (s == TV_OK) {
        const cJSON *coverage = cJSON_GetObjectItemCaseSensitive(report, "coverage");
        held = !cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(report, "held"));
        if (args->json) {
            cli_print_json(report);
        } else if (coverage) {
            print_coverage(coverage);
        } else {
            print_checks(report);
        }
    }
    cJSON_Delete(report);
    return held ? EXIT_DONE : EXIT_FAILED;
}

const tv_command tv_command_synth = {
    "synth",
    "check every estimator on instances of known distance",
    CMD_SYNTH,
    0,
    "[options]",
    "Runs the estimators on synthetic pairs whose distance follows exactly from dynamic programming,\n"
    "with exact, noisy and sampling oracles, and checks rates, means and costs against theory.\n"
    "--coverage measures how often the reported 95% intervals contain the truth (minutes). Exits with 1\n"
    "when a check fails.",
    "  tvgpu synth\n  tvgpu synth --scale 10 --seed 3\n  tvgpu synth --coverage --json\n",
    run,
};
