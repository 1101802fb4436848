/* tvgpu synth: every estimator on instances whose distance is known exactly. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/progress.h"
#include "estimator/synthetic.h"

static double get(const cJSON *o, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static const char *text(const cJSON *o, const char *key) {
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
    return s ? s : "";
}

static void print_checks(const cJSON *report) {
    const cJSON *item;
    puts("instances (total variation distance, exact)");
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(report, "instances"))
        printf("  %-24s %.17g\n", text(item, "name"), get(item, "tv"));
    puts("\nchecks");
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(report, "checks"))
        printf("  %-56s %10.5g in [%.5g, %.5g]  %s\n", text(item, "name"), get(item, "value"), get(item, "low"),
               get(item, "high"), cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "held")) ? "held" : "FAILED");
    const cJSON *queries = cJSON_GetObjectItemCaseSensitive(report, "queries");
    const char *scenario = "";
    if (queries)
        puts("\ntrajectory-reads a side for a root-mean-square error of 0.01 (savings over the best single level in "
             "hindsight)");
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(queries, "rows")) {
        if (get(item, "rmse") != 0.01) continue;
        if (strcmp(scenario, text(item, "scenario")) != 0) printf("  %s\n", scenario = text(item, "scenario"));
        const double reads = get(item, "trajectory_reads"), saving = get(item, "saving_over_hindsight_single");
        if (reads > 0 && saving > 0)
            printf("    %-24s %12.0f %8.1f\n", text(item, "family"), reads, saving);
        else if (reads > 0)
            printf("    %-24s %12.0f\n", text(item, "family"), reads);
        else
            printf("    %-24s %12s  %s\n", text(item, "family"), "-", text(item, "trajectory_reads_reason"));
    }
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
