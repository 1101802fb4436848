/* tvgpu sample: one half of a comparison, the drawing. */
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/progress.h"
#include "traces/rundir.h"

static tv_status work(tv_args *args, const char *dir, tv_err *err) {
    cli_prompts prompts = {0};
    tv_engine *engine = NULL;
    tv_session *session = NULL;
    tv_trace *trace = NULL;
    int64_t N = args->N ? args->N : 128, n = args->n ? args->n : 128;
    int32_t *index = tv_xmalloc((size_t)N * sizeof *index);
    char name[32];
    snprintf(name, sizeof name, "%s.samples.safetensors", args->side_name);
    char *path = tv_path_join(args->out, name);
    tv_serving *serving = &args->side[0].serving;
    uint64_t seed = args->seed[args->side_name[0] == 'b']; /* the default is the one that compare gives this side */
    tv_engine_info info;
    tv_status s = tv_path_exists(path)
                      ? TV_FAIL(err, TV_EARG, "%s is there already: name another folder with --out", path)
                      : TV_OK;
    if (s == TV_OK) s = cli_prompts_make(args, dir, &prompts, err);
    if (s == TV_OK) s = cli_engine_open(args, &args->side[0], dir, &engine, err);
    if (s == TV_OK) s = tv_serving_check(serving, engine, err);
    if (s == TV_OK) {
        tv_engine_describe(engine, &info);
        s = cli_prompts_check(args, &prompts, info.vocab_size, err);
    }
    if (s == TV_OK) s = cli_positions_check(&prompts, n, &info, err);
    int64_t prompt_tokens = 0;
    for (int64_t i = 0; s == TV_OK && i < N; i++) {
        index[i] = (int32_t)(i % prompts.P);
        prompt_tokens += prompts.offsets[index[i] + 1] - prompts.offsets[index[i]];
    }
    uint64_t disk = s == TV_OK ? tv_trace_file_size(N, n, serving->store_k, prompts.offsets[prompts.P]) : 0;
    if (s == TV_OK && args->dry_run) {
        tv_machine machine = tv_machine_measure(args->threads);
        cli_print_need(args, &info, 1, N, n, cli_seconds(&machine, &info, serving, N, n, prompt_tokens, 1),
                       info.weights_bytes + tv_session_bytes(engine, serving, N, prompts.longest + n), disk, args->out);
    } else if (s == TV_OK) {
        s = tv_session_open(engine, serving, N, prompts.longest + n, &session, err);
        if (s == TV_OK) s = tv_rundir_check_disk(args->out, disk, err);
        if (s == TV_OK) s = tv_dir_make(args->out, err);
        tv_job job = {.N = N,
                      .n = n,
                      .P = prompts.P,
                      .prompt_ids = prompts.ids,
                      .prompt_offsets = prompts.offsets,
                      .prompt_index = index,
                      .seed = seed};
        tv_bar bar;
        tv_bar_start(&bar, "sampling", "tokens", 1, 0, args->quiet);
        if (s == TV_OK) s = tv_session_sample(session, &job, args->side_name[0], &bar.progress, &trace, err);
        tv_bar_finish(&bar);
        if (s == TV_OK) s = tv_trace_write(trace, path, err);
        if (s == TV_OK && args->json) {
            cJSON *o = cJSON_CreateObject();
            cJSON_AddStringToObject(o, "samples", path);
            cJSON_AddNumberToObject(o, "N", (double)N);
            cJSON_AddNumberToObject(o, "n", (double)n);
            cli_print_json(o);
            cJSON_Delete(o);
        }
        if (s == TV_OK) tv_note("wrote %s", path);
    }
    tv_trace_close(trace);
    tv_session_close(session);
    tv_engine_close(engine);
    cli_prompts_free(&prompts);
    free(index);
    free(path);
    return s;
}

static int run(tv_args *args, tv_err *err) {
    char *dir = NULL;
    if (!args->out)
        return (int)TV_FAIL(err, TV_EARG, "sample needs --out DIR, the folder that receives the trajectories");
    if (cli_model_dir(args->n_positional ? args->positional[0] : NULL, &dir, err) == TV_OK &&
        work(args, dir, err) != TV_OK)
        TV_ASSERT(err->code != TV_OK);
    free(dir);
    return EXIT_DONE;
}

const tv_command tv_command_sample = {
    "sample",
    "draw trajectories under one serving configuration",
    CMD_SAMPLE,
    1,
    "[MODEL] -o DIR [--side a|b] [options]",
    "Writes DIR/a.samples.safetensors (or b): N trajectories of n tokens with the log-probabilities\n"
    "recorded while they were drawn. score replays them.",
    "  tvgpu sample MODEL -o pair --side a --backend flash\n"
    "  tvgpu sample MODEL -o pair --side b --backend math\n",
    run,
};
