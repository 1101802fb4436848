/* tvgpu bench: the machine's limits, and how much of them the kernels and the engine reach. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/bench.h"
#include "bench/bench_engine.h"
#include "bench/bench_estimator.h"
#include "cli/commands.h"
#include "cli/common.h"

static tv_status measure(const tv_args *args, const char *what, FILE *table, cJSON **json, tv_err *err) {
    tv_bench_options options = {.threads = args->threads, .repeats = (int)args->reps};
    if (strcmp(args->isa, "auto")) options.isa = args->isa;
    if (!strcmp(what, "limits")) return tv_bench_limits(&options, table, json, err);
    if (!strcmp(what, "ops")) return tv_bench_ops(&tv_ops_cpu, &options, table, json, err);
    if (!strcmp(what, "engine")) {
        tv_bench_engine_options engine = {.model = args->n_positional > 1 ? args->positional[1] : NULL,
                                          .device = args->side[0].device,
                                          .threads = args->threads,
                                          .isa = args->isa,
                                          .gpu = args->gpu};
        return tv_bench_engine(&engine, table, json, err);
    }
    if (!strcmp(what, "estimator")) {
        tv_bench_estimator_options estimator = {0};
        TV_TRY(tv_bench_estimator(&estimator, json, err));
        char *text = tv_json_text(*json);
        fprintf(table, "%s\n", text);
        free(text);
        return TV_OK;
    }
    return TV_FAIL(err, TV_EARG, "bench %s: choose limits, ops, engine or estimator", what);
}

static int run(tv_args *args, tv_err *err) {
    cJSON *json = NULL;
    const char *what = args->n_positional ? args->positional[0] : "limits";
    FILE *table = args->json ? fopen("/dev/null", "w") : stdout;
    if (!table) return (int)TV_FAIL(err, TV_EIO, "/dev/null: cannot open: %s", strerror(errno));
    if (measure(args, what, table, &json, err) == TV_OK) {
        if (args->json) cli_print_json(json);
        if (args->out && tv_json_save(json, args->out, err) == TV_OK) tv_note("wrote %s", args->out);
    }
    if (table != stdout) fclose(table);
    cJSON_Delete(json);
    return EXIT_DONE;
}

const tv_command tv_command_bench = {
    "bench",
    "speed with bytes, FLOPs and the fraction of the machine's measured limit",
    CMD_BENCH,
    2,
    "limits|ops|engine|estimator [MODEL] [options]",
    "limits     read bandwidth and multiply-add peak of this machine, on one thread and on all\n"
    "ops        every matrix product of a model of Qwen3-0.6B's shape\n"
    "engine     prefill, sampling and replay over batch sizes; random weights of that shape, or MODEL\n"
    "estimator  the plug-in and hedged estimators in cells per second",
    "  tvgpu bench limits\n  tvgpu bench engine --threads 1 --json -o engine.json\n",
    run,
};
