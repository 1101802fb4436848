/* tvgpu compare: sample both sides, replay both sets under both sides, estimate how far apart they are. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/comparison.h"
#include "cli/target_error.h"
#include "estimator/report.h"

/* Passes, time, memory and disk; nothing is computed or written, and no cache is allocated. */
static void dry_run(const cli_comparison *c, const char *folder) {
    tv_machine machine = tv_machine_measure(c->args->threads);
    double seconds = 0, passes = 1 + 2 * (double)c->R;
    tv_engine_info info;
    for (int e = 0; e < 2; e++) {
        tv_engine_describe(c->engine[e], &info);
        seconds += cli_seconds(&machine, &info, &c->args->side[e].serving, c->N, c->n, cli_comparison_prompt_tokens(c),
                               passes);
    }
    tv_engine_describe(c->engine[0], &info);
    cli_print_need(c->args, &info, (int64_t)(2 * passes), c->N, c->n, seconds, cli_comparison_memory(c),
                   cli_comparison_disk(c, 0), cli_comparison_disk(c, 1), folder);
}

static tv_status report(cli_comparison *c, int *code, tv_err *err) {
    char *html_path = tv_path_join(tv_rundir_path(c->run), "report.html");
    cJSON *result = NULL;
    tv_status s = cli_comparison_report(c, &result, err);
    if (s == TV_OK) s = tv_report_html(result, html_path, err);
    if (s == TV_OK) { /* the files first: whoever reads the text may stop listening */
        cli_report_print(c->args, result);
        *code = cli_report_verdict(c->args, result);
        if (c->target && !cli_target_print(c->args, c->target) && *code == EXIT_DONE) *code = EXIT_CANNOT_TELL;
        fflush(stdout);
        tv_note("report: %s", html_path);
    }
    cJSON_Delete(result);
    free(html_path);
    return s;
}

static tv_status work(cli_comparison *c, tv_args *args, int *code, tv_err *err) {
    TV_TRY(cli_baseline_check(args, err));
    TV_TRY(cli_share_find(&c->share, args, err));
    TV_TRY(cli_comparison_open(c, args, NULL, err));
    cJSON *m = cli_comparison_manifest(c);
    char *folder = args->out ? tv_xstrdup(args->out) : cli_comparison_folder("compare", m);
    tv_status s = TV_OK;
    if (args->dry_run) {
        if (!c->share.index) dry_run(c, folder);
    } else {
        s = cli_comparison_run(c, folder, NULL, err);
        if (s == TV_OK && c->share.index)
            tv_note("process %d of %d has done its part; process 1 reports", c->share.index + 1, c->share.count);
        else if (s == TV_OK)
            s = report(c, code, err);
    }
    free(folder);
    cJSON_Delete(m);
    return s;
}

static int run(tv_args *args, tv_err *err) {
    cli_comparison c = {0};
    int code = EXIT_DONE;
    if (!args->side_given) {
        strcpy(args->side[1].serving.backend, "math");
        tv_note("no option ends in -a or -b: side b gets --backend-b math");
    }
    if (work(&c, args, &code, err) != TV_OK) TV_ASSERT(err->code != TV_OK);
    cli_comparison_close(&c);
    return code;
}

const tv_command tv_command_compare = {
    "compare",
    "how far apart are two serving configurations, with error bar and noise floors",
    CMD_COMPARE,
    1,
    "[MODEL] [options]",
    "Samples N trajectories from each side, replays both sets under both sides R times through the\n"
    "decode path, and estimates the total variation distance between the two output distributions, each\n"
    "side's own noise beside it. Everything goes into a run folder; the same command goes on where it\n"
    "stopped. With no option ending in -a or -b, side b runs the math attention kernel. With\n"
    "--target-error, further blocks of N trajectories and further passes follow until the interval is as\n"
    "tight as asked. Started several times by srun, mpirun or torchrun, or with --shard, the processes\n"
    "share the passes, and the first of them reports; the numbers are those of one process.",
    "  tvgpu compare --quick\n"
    "  tvgpu compare MODEL --backend-a flash --backend-b math -N 256 -n 256\n"
    "  tvgpu compare MODEL --batch-b 8 --order-b shuffled --arrivals-b staggered -R 8\n"
    "  tvgpu compare MODEL --model-b OTHER --fail-above 0.05\n"
    "  tvgpu compare MODEL -N 64 -n 256 --target-error 0.01\n"
    "  mpirun -n 4 tvgpu compare MODEL --threads 8 -R 16 -o run\n",
    run,
};
