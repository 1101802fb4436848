/* tvgpu estimate: every number from recorded passes alone. */
#include <stdlib.h>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "estimator/report.h"

static int run(tv_args *args, tv_err *err) {
    if (!args->n_positional) return (int)TV_FAIL(err, TV_EARG, "estimate needs a run folder, a bundle or trace files");
    tv_dataset *data = NULL;
    cJSON *report = NULL;
    int code = EXIT_FAILED;
    tv_status status = cli_baseline_check(args, err);
    if (status == TV_OK) status = tv_dataset_open(args->positional, args->n_positional, &data, err);
    if (status == TV_OK) status = cli_report_make(args, data, NULL, NULL, &report, err);
    if (status == TV_OK && args->out) {
        status = tv_json_save(report, args->out, err);
        if (status == TV_OK) tv_note("wrote %s", args->out);
    }
    if (status == TV_OK && args->html) {
        status = tv_report_html(report, args->html, err);
        if (status == TV_OK) tv_note("wrote %s", args->html);
    }
    if (status == TV_OK) {
        cli_report_print(args, report);
        code = cli_report_verdict(args, report);
    }
    cJSON_Delete(report);
    tv_dataset_close(data);
    return code;
}

const tv_command tv_command_estimate = {
    "estimate",
    "distances, intervals and floors from a run folder, a bundle or trace files",
    CMD_ESTIMATE,
    TV_MOST_WORDS,
    "PATH... [options]",
    "Reads recorded trajectories and passes (a run folder of compare, a bundle, or the trace files of one\n"
    "measurement; own or imported) and prints every estimate that they allow. Needs no model.",
    "  tvgpu estimate tvgpu-runs/compare-1a2b3c4d\n"
    "  tvgpu estimate pair.safetensors --readout 5 --json\n"
    "  tvgpu estimate RUN --html page.html\n"
    "  tvgpu estimate RUN --fail-above 0.1 && echo small enough\n",
    run,
};
