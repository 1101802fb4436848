/* tvgpu sample: one half of a comparison, the drawing. */
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/progress.h"

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
    tv_status s = tv_path_exists(path) ? TV_FAIL(err, TV_EARG, "%s is there already: name another folder with -o", path) : TV_OK;
    if (s == TV_OK) s = cli_prompts_make(args, dir, &prompts, err);
    if (s == TV_OK) s = cli_engine_open(args, &args->side[0], dir, &engine, err);
    if (s == TV_OK) s = tv_session_open(engine, &args->side[0].serving, N, prompts.longest + n, &session, err);
    if (s == TV_OK && args->dry_run) {
        char memory[32], disk[32];
        cli_bytes(memory, sizeof memory, (double)tv_session_bytes(engine, &args->side[0].serving, N, prompts.longest + n));
        cli_bytes(disk, sizeof disk, (double)tv_trace_file_size(N, n, args->side[0].serving.store_k, prompts.offsets[prompts.P]));
        printf("would sample %lld trajectories of %lld tokens: %s of memory beside the weights, %s of disk\n", (long long)N, (long long)n, memory, disk);
    } else if (s == TV_OK) {
        s = tv_dir_make(args->out, err);
        for (int64_t i = 0; i < N; i++) index[i] = (int32_t)(i % prompts.P);
        tv_job job = {.N = N, .n = n, .P = prompts.P, .prompt_ids = prompts.ids, .prompt_offsets = prompts.offsets, .prompt_index = index, .seed = args->seed[0]};
        tv_bar bar;
        tv_bar_start(&bar, "sampling", "tokens", 1, 0, args->quiet);
        if (s == TV_OK) s = tv_session_sample(session, &job, args->side_name[0], &bar.progress, &trace, err);
        tv_bar_finish(&bar);
        if (s == TV_OK) s = tv_trace_write(trace, path, err);
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
    if (!args->out) return (int)TV_FAIL(err, TV_EARG, "sample needs -o DIR, the folder that receives the trajectories");
    if (cli_model_dir(args->n_positional ? args->positional[0] : NULL, &dir, err) == TV_OK && work(args, dir, err) != TV_OK) TV_ASSERT(err->code != TV_OK);
    free(dir);
    return EXIT_DONE;
}

const tv_command tv_command_sample = {
    "sample", "draw trajectories under one serving configuration", CMD_SAMPLE, "[MODEL] -o DIR [--side a|b] [options]",
    "Writes DIR/a.samples.safetensors (or b): N trajectories of n tokens with the log-probabilities recorded\n"
    "while they were drawn. score replays them.",
    "  tvgpu sample MODEL -o pair --side a --backend flash\n"
    "  tvgpu sample MODEL -o pair --side b --backend math --seed 1\n", run,
};
