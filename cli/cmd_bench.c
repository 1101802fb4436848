/* tvgpu bench: the machine's limits, and how much of them the kernels and the engine reach. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "bench/bench.h"
#include "bench/bench_engine.h"
#include "bench/bench_estimator.h"
#include "bench/bench_steps.h"
#include "bench/random_model.h"
#include "bench/report.h"
#include "cli/commands.h"
#include "cli/common.h"

/* The NumPy implementation beside the program's folder; NULL where it is not, or where python3 lacks NumPy. */
static char *numpy_script(void) {
    char exe[4096];
    const ssize_t size = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (size < 0 || system("python3 -c 'import numpy' >/dev/null 2>&1") != 0) return NULL;
    exe[size] = 0;
    for (int up = 0; up < 2 && strrchr(exe, '/'); up++) *strrchr(exe, '/') = 0;
    char *script = tv_path_join(exe, "bench/peers/numpy_estimator.py");
    if (tv_path_exists(script)) return script;
    free(script);
    return NULL;
}

static double number(const cJSON *json, const char *object, const char *key) {
    const cJSON *o = object ? cJSON_GetObjectItemCaseSensitive(json, object) : json;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static tv_status measure_estimator(FILE *table, cJSON **json, tv_err *err) {
    const char *tmp = getenv("TMPDIR");
    char *script = numpy_script();
    const tv_bench_estimator_options options = {
        .python = script ? "python3" : NULL, .script = script, .scratch = tmp && *tmp ? tmp : "/tmp"};
    const tv_status s = tv_bench_estimator(&options, json, err);
    if (s == TV_OK && table) {
        const cJSON *j = *json;
        fprintf(table, "%-8s %14s %6s %14s %8s\n", "", "cells/s", "+-", "NumPy cells/s", "ratio");
        static const char *const rows[2][3] = {{"plugin", "plugin_cells_per_second", "plugin_ratio"},
                                               {"hedged", "hedged_cells_per_second", "hedged_ratio"}};
        for (int i = 0; i < 2; i++) {
            const cJSON *rate =
                cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(j, rows[i][0]), "cells_per_second");
            fprintf(table, "%-8s %14.3g %5.0f%%", rows[i][0], number(rate, NULL, "median"),
                    100 * number(rate, NULL, "mad") / number(rate, NULL, "median"));
            if (script)
                fprintf(table, " %14.3g %8.1f\n", number(j, "numpy", rows[i][1]), number(j, NULL, rows[i][2]));
            else
                fprintf(table, " %14s %8s\n", "-", "-");
        }
        fprintf(table,
                "%.0f slots a record, %.0f threads, NumPy on one; the plug-in reads %.3g GB/s of the %.3g this machine "
                "can (%.0f%%)\n",
                number(j, NULL, "k"), number(j, NULL, "threads"), number(j, "plugin", "read_gb_per_second"),
                number(j, "plugin", "machine_read_gb_per_second"), 100 * number(j, "plugin", "read_fraction"));
        if (!script) fputs("python3 with NumPy and bench/peers/numpy_estimator.py would stand beside it\n", table);
    }
    free(script);
    return s;
}

static tv_status write_weights(const tv_args *args, tv_err *err) {
    tv_model_shape shape;
    TV_TRY(tv_model_shape_find(args->n_positional > 1 ? args->positional[1] : "0.6b", &shape, err));
    if (!args->out) return TV_FAIL(err, TV_EARG, "bench weights needs --out DIR, the folder that receives the model");
    TV_TRY(tv_dir_make(args->out, err));
    return tv_random_model_write(args->out, &shape, 1, err);
}

static tv_status serve_steps(const tv_args *args, tv_err *err) {
    const tv_engine_options options = {.model = args->n_positional > 1 ? args->positional[1] : NULL,
                                       .device = "cpu",
                                       .threads = args->threads,
                                       .isa = args->side[0].isa};
    if (!options.model) return TV_FAIL(err, TV_EARG, "bench steps needs a MODEL");
    return tv_bench_steps(&options, stdin, stdout, err);
}

static tv_status measure(const tv_args *args, const char *what, FILE *table, cJSON **json, tv_err *err) {
    tv_bench_options options = {.threads = args->threads, .repeats = (int)args->reps};
    if (strcmp(args->side[0].isa, "auto")) options.isa = args->side[0].isa;
    if (!strcmp(what, "limits")) return tv_bench_limits(&options, table, json, err);
    if (!strcmp(what, "ops")) return tv_bench_ops(&tv_ops_cpu, &options, table, json, err);
    if (!strcmp(what, "engine")) {
        tv_bench_engine_options engine = {.model = args->n_positional > 1 ? args->positional[1] : NULL,
                                          .device = args->side[0].device,
                                          .threads = args->threads,
                                          .isa = args->side[0].isa,
                                          .gpu = args->gpu};
        return tv_bench_engine(&engine, table, json, err);
    }
    if (!strcmp(what, "estimator")) return measure_estimator(table, json, err);
    return TV_FAIL(err, TV_EARG, "bench %s: choose limits, ops, engine, estimator, all, weights or steps", what);
}

/* All four in turn, each a member of *json. */
static tv_status measure_all(const tv_args *args, FILE *table, cJSON **json, tv_err *err) {
    static const char *const all[] = {"limits", "ops", "engine", "estimator"};
    *json = cJSON_CreateObject();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cJSON *one = NULL;
        fprintf(table, "%s== %s\n", i ? "\n" : "", all[i]);
        TV_TRY(measure(args, all[i], table, &one, err));
        cJSON_AddItemToObject(*json, all[i], one);
    }
    return TV_OK;
}

/* path: a file of JSON, a file NAME.csv, or a folder, which gets MACHINE.csv. */
static tv_status save(const cJSON *json, const char *path, tv_err *err) {
    const size_t n = strlen(path);
    char *name = tv_xprintf(
             "%s.csv",
             cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(json, "machine"), "name")->valuestring),
         *file = tv_path_is_dir(path) ? tv_path_join(path, name) : tv_xstrdup(path);
    const int csv = tv_path_is_dir(path) || (n > 4 && !strcmp(path + n - 4, ".csv"));
    tv_status s = csv ? tv_bench_csv(json, file, err) : tv_json_save(json, file, err);
    if (s == TV_OK) tv_note("wrote %s", file);
    free(name);
    free(file);
    return s;
}

static int run(tv_args *args, tv_err *err) {
    cJSON *json = NULL;
    const char *what = args->n_positional ? args->positional[0] : "limits";
    if (!strcmp(what, "weights")) return (int)write_weights(args, err);
    if (!strcmp(what, "steps")) return (int)serve_steps(args, err);
    FILE *table = args->json ? fopen("/dev/null", "w") : stdout;
    if (!table) return (int)TV_FAIL(err, TV_EIO, "/dev/null: cannot open: %s", strerror(errno));
    cJSON *machine = tv_bench_machine();
    fprintf(table, "machine: %s\n", cJSON_GetObjectItemCaseSensitive(machine, "name")->valuestring);
    tv_status s = !strcmp(what, "all") ? measure_all(args, table, &json, err) : measure(args, what, table, &json, err);
    if (s == TV_OK) {
        cJSON_AddItemToObject(json, "machine", machine);
        machine = NULL;
        if (args->json) cli_print_json(json);
        if (args->out) s = save(json, args->out, err);
    }
    if (table != stdout) fclose(table);
    cJSON_Delete(json);
    cJSON_Delete(machine);
    return s == TV_OK ? EXIT_DONE : EXIT_FAILED;
}

const tv_command tv_command_bench = {
    "bench",
    "speed with bytes, FLOPs and the fraction of the machine's measured limit",
    CMD_BENCH,
    2,
    "limits|ops|engine|estimator|all|weights|steps [MODEL|SHAPE] [options]",
    "limits     read bandwidth and multiply-add peak of this machine, on one thread and on all\n"
    "ops        every matrix product of a model of Qwen3-0.6B's shape\n"
    "engine     prefill, sampling and replay over batch sizes; random weights of that shape, or MODEL\n"
    "estimator  the plug-in and hedged estimators in cells per second\n"
    "all        these four in turn\n"
    "weights    writes a checkpoint of SHAPE (0.6b, medium, moe, small) with random weights into --out DIR\n"
    "steps      single steps of MODEL as asked for on standard input: what bench/peers sets beside other\n"
    "           engines",
    "  tvgpu bench limits\n  tvgpu bench engine --threads 1 --json -o engine.json\n"
    "  tvgpu bench all -o bench/results\n",
    run,
};
