/* tvgpu sample: one half of a comparison, the drawing. */
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/progress.h"
#include "cli/share.h"
#include "traces/rundir.h"

/* What decides the trajectories of a sample file, as JSON: two files that agree in it are equal. */
static cJSON *description(const char *config, uint64_t seed, int64_t N, int64_t n, const int32_t *prompt_ids,
                          const int32_t *prompt_offsets, int64_t P) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed); /* JSON numbers end at 2^53 */
    cJSON *o = cJSON_CreateObject(), *side = cJSON_Parse(config);
    cJSON_AddItemToObject(o, "configuration", side ? side : cJSON_CreateNull());
    cJSON_AddStringToObject(o, "seed", text);
    cJSON_AddNumberToObject(o, "N", (double)N);
    cJSON_AddNumberToObject(o, "n", (double)n);
    cJSON_AddItemToObject(o, "prompt_ids", cJSON_CreateIntArray(prompt_ids, prompt_offsets[P]));
    cJSON_AddItemToObject(o, "prompt_offsets", cJSON_CreateIntArray(prompt_offsets, (int)P + 1));
    return o;
}

/* The same command may run again and finds its work done; another one must not take over the file. */
static tv_status check_stored(const char *path, const tv_engine *engine, const tv_serving *serving, const tv_job *job,
                              tv_err *err) {
    tv_trace *t = NULL;
    TV_TRY(tv_trace_open(path, &t, err));
    cJSON *json = tv_serving_json(serving, engine);
    char *config = tv_json_text(json);
    cJSON *theirs = description(t->config_json, t->seed, t->N, t->n, t->prompt_ids, t->prompt_offsets, t->P);
    cJSON *ours = description(config, job->seed, job->N, job->n, job->prompt_ids, job->prompt_offsets, job->P);
    char *difference = tv_fields_differ(theirs, "it", ours, "this command", NULL);
    tv_status s = difference ? TV_FAIL(err, TV_EARG,
                                       "%s is there already, made by another command: %s; name another folder with "
                                       "--out",
                                       path, difference)
                             : TV_OK;
    free(difference);
    free(config);
    cJSON_Delete(json);
    cJSON_Delete(theirs);
    cJSON_Delete(ours);
    tv_trace_close(t);
    return s;
}

/* Draws the set; of several processes the first does, and the others wait for it: in blocks, trajectories would run in
 * other batches than together, and have other bits. */
static tv_status draw(const tv_args *args, cli_share *share, tv_engine *engine, const tv_job *job, int64_t longest,
                      uint64_t disk, const char *path, tv_err *err) {
    tv_session *session = NULL;
    tv_trace *trace = NULL;
    tv_bar bar;
    if (share->index) {
        TV_TRY(tv_dir_make(args->out, err));
        TV_TRY(cli_share_begin(share, args->out, err));
        tv_status waited = cli_share_wait(share, path, 0, err);
        cli_share_end(share);
        return waited;
    }
    TV_TRY(tv_session_open(engine, &args->side[0].serving, job->N, longest + job->n, &session, err));
    tv_status s = tv_rundir_check_disk(args->out, disk, err);
    if (s == TV_OK) s = tv_dir_make(args->out, err);
    if (s == TV_OK) tv_rundir_clean(args->out);
    if (s == TV_OK) s = cli_share_begin(share, args->out, err);
    tv_bar_start(&bar, "sampling", "tokens", 1, 0, args->quiet);
    if (s == TV_OK) s = tv_session_sample(session, job, args->side_name[0], &bar.progress, &trace, err);
    tv_bar_finish(&bar);
    if (s == TV_OK) s = tv_trace_write(trace, path, err);
    if (s == TV_OK) tv_note("wrote %s", path);
    cli_share_end(share);
    cli_note_recomputed(session, "--admission grow");
    tv_trace_close(trace);
    tv_session_close(session);
    return s;
}

/* With the engine and the prompts at hand: sizes, checks, and the work itself. */
static tv_status sample(const tv_args *args, cli_share *share, tv_engine *engine, const cli_prompts *prompts,
                        tv_err *err) {
    const tv_serving *serving = &args->side[0].serving;
    tv_engine_info info;
    tv_engine_describe(engine, &info);
    int gpu = cli_on_gpu(engine);
    int64_t N = args->N ? args->N : gpu ? 512 : 128, n = args->n ? args->n : gpu ? 500 : 128, prompt_tokens = 0;
    TV_TRY(tv_serving_check(serving, engine, err));
    TV_TRY(cli_prompts_check(args, prompts, info.vocab_size, err));
    TV_TRY(cli_positions_check(prompts, n, &info, err));
    int32_t *index = tv_xmalloc((size_t)N * sizeof *index);
    for (int64_t i = 0; i < N; i++) {
        index[i] = (int32_t)(i % prompts->P);
        prompt_tokens += prompts->offsets[index[i] + 1] - prompts->offsets[index[i]];
    }
    tv_job job = {.N = N,
                  .n = n,
                  .P = prompts->P,
                  .prompt_ids = prompts->ids,
                  .prompt_offsets = prompts->offsets,
                  .prompt_index = index,
                  /* the default is the one that compare gives this side */
                  .seed = args->seed[args->side_name[0] == 'b']};
    char *path = tv_samples_path(args->out, args->side_name[0] - 'a');
    int there = tv_path_exists(path);
    uint64_t disk = there ? 0 : tv_trace_file_size(N, n, serving->store_k, prompts->offsets[prompts->P]);
    tv_status s = there ? check_stored(path, engine, serving, &job, err) : TV_OK;
    if (s == TV_OK && args->dry_run) {
        tv_machine machine = tv_machine_measure(args->threads);
        double seconds = there ? 0 : cli_seconds(&machine, &info, serving, N, n, prompt_tokens, 1);
        cli_print_need(args, &info, !there, N, n, seconds,
                       info.weights_bytes + tv_session_bytes(engine, serving, N, prompts->longest + n), disk, 0,
                       args->out);
    } else if (s == TV_OK) {
        if (there)
            tv_note("%s is there already, drawn by this command", path);
        else
            s = draw(args, share, engine, &job, prompts->longest, disk, path, err);
        if (s == TV_OK && args->json && !share->index) {
            cJSON *o = cJSON_CreateObject();
            cJSON_AddStringToObject(o, "samples", path);
            cJSON_AddNumberToObject(o, "N", (double)N);
            cJSON_AddNumberToObject(o, "n", (double)n);
            cli_print_json(o);
            cJSON_Delete(o);
        }
    }
    free(path);
    free(index);
    return s;
}

static tv_status work(const tv_args *args, const char *dir, tv_err *err) {
    cli_prompts prompts = {0};
    tv_engine *engine = NULL;
    cli_share share;
    tv_status s = cli_share_find(&share, args, err);
    if (s == TV_OK) s = cli_prompts_make(args, dir, &prompts, err);
    if (s == TV_OK) s = cli_engine_open(args, &args->side[0], dir, &engine, err);
    if (s == TV_OK) s = sample(args, &share, engine, &prompts, err);
    tv_engine_close(engine);
    cli_prompts_free(&prompts);
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
    "recorded while they were drawn. score replays them. The same command again finds its work done.",
    "  tvgpu sample MODEL -o pair --side a --backend flash\n"
    "  tvgpu sample MODEL -o pair --side b --backend math\n",
    run,
};
