/* tvgpu score: the other half of a comparison, scoring stored trajectories. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/folding.h"
#include "cli/progress.h"
#include "cli/share.h"
#include "traces/rundir.h"

/* Refuses a stored pass that other options made, or that scored other trajectories: passes of two configurations must
 * not meet under one side. */
static tv_status check_stored(const char *path, const char *config, const tv_trace *set, tv_err *err) {
    tv_trace *stored = NULL;
    TV_TRY(tv_trace_open(path, &stored, err));
    cJSON *theirs = cJSON_Parse(stored->config_json), *ours = cJSON_Parse(config);
    char *difference = tv_fields_differ(theirs, "it", ours, "this command", NULL);
    tv_status s = TV_OK;
    if (difference)
        s = TV_FAIL(
            err, TV_EARG,
            "%s was made under other options: %s; repeat those, or score a copy of the trajectories in another folder",
            path, difference);
    else if (stored->N != set->N || stored->n != set->n ||
             memcmp(stored->tokens, set->tokens, (size_t)(set->N * set->n) * sizeof *set->tokens))
        s = TV_FAIL(err, TV_EARG,
                    "%s scored other trajectories than the folder's %s.samples.safetensors; use another folder", path,
                    set->set);
    free(difference);
    cJSON_Delete(theirs);
    cJSON_Delete(ours);
    tv_trace_close(stored);
    return s;
}

static char *pass_path(const tv_args *args, int set, int64_t pass) {
    return tv_pass_path(args->out, args->side_name[0] - 'a', set, pass);
}

/* The configuration as the passes of this command store it; the caller frees. */
static char *config_text(const tv_args *args, const tv_engine *engine) {
    cJSON *json = tv_serving_json(&args->side[0].serving, engine);
    if (!strcmp(args->method, "prefill")) cJSON_AddStringToObject(json, "method", "prefill");
    char *text = tv_json_text(json);
    cJSON_Delete(json);
    return text;
}

/* The part of a shared run that a pass over a set is. */
static int64_t item(int set, int64_t pass) { return 2 * pass + set; }

/* take_stock with --keep-passes no. */
static tv_status take_stock_folded(const tv_args *args, const cli_folding *folds, const char *config,
                                   tv_trace *const set[2], int64_t *passes, uint64_t *tokens, uint64_t *bytes,
                                   tv_err *err) {
    const int side = args->side_name[0] - 'a';
    for (int i = 0; i < 2; i++) {
        if (!set[i]) continue;
        char *path = pass_path(args, i, 0);
        const int kept = tv_path_exists(path);
        tv_status s = kept ? TV_FAIL(err, TV_EARG,
                                     "%s: keep_passes is \"yes\" in that folder; go on with --keep-passes yes, or use "
                                     "another folder",
                                     path)
                           : cli_folding_check(folds, side, set[i], config, err);
        free(path);
        TV_TRY(s);
        const int64_t left = args->R - folds->count[side][i];
        *passes += left;
        *tokens += (uint64_t)left * (uint64_t)(set[i]->N * set[i]->n);
        if (left) *bytes += tv_fold_disk_need(set[i]->N, set[i]->n, args->side[0].serving.store_k, args->R);
    }
    return TV_OK;
}

/* Checks the passes that are there, and counts what is missing of this process's part: *passes of all sets, *tokens in
 * them, *bytes on disk. */
static tv_status take_stock(const tv_args *args, const cli_share *share, const cli_folding *folds, const char *config,
                            tv_trace *const set[2], int64_t *passes, uint64_t *tokens, uint64_t *bytes, tv_err *err) {
    *passes = 0;
    *tokens = *bytes = 0;
    if (folds->active) return take_stock_folded(args, folds, config, set, passes, tokens, bytes, err);
    for (int i = 0; i < 2; i++) {
        char *fold = set[i] ? tv_fold_path(args->out, args->side_name[0] - 'a', i, 0) : NULL;
        const int there = fold && tv_path_exists(fold);
        free(fold);
        if (there)
            return TV_FAIL(
                err, TV_EARG,
                "%s: keep_passes is \"no\" there: the passes of side %s were folded; go on with --keep-passes "
                "no, or use another folder",
                args->out, args->side_name);
        for (int64_t pass = 0; set[i] && pass < args->R; pass++) {
            char *path = pass_path(args, i, pass);
            tv_status s = TV_OK;
            if (tv_path_exists(path)) {
                s = check_stored(path, config, set[i], err);
            } else if (cli_share_mine(share, item(i, pass))) {
                *passes += 1;
                *tokens += (uint64_t)(set[i]->N * set[i]->n);
                *bytes += tv_trace_file_size(set[i]->N, set[i]->n, args->side[0].serving.store_k,
                                             set[i]->prompt_offsets[set[i]->P]);
            }
            free(path);
            TV_TRY(s);
        }
    }
    return TV_OK;
}

/* Passes over one set, skipping those that are there. */
static tv_status score_set(const tv_args *args, const cli_share *share, cli_folding *folds, tv_session *session,
                           const tv_trace *set, int which, tv_bar *bar, uint64_t *done, tv_err *err) {
    int prefill = !strcmp(args->method, "prefill");
    for (int64_t pass = 0; pass < args->R; pass++) {
        char *path = pass_path(args, which, pass), label[64];
        tv_status s = TV_OK;
        if (cli_share_mine(share, item(which, pass)) && !tv_path_exists(path) &&
            !cli_folding_has(folds, args->side_name[0] - 'a', which, pass)) {
            tv_trace *trace = NULL;
            snprintf(label, sizeof label, "pass %lld/%lld, %s on %c", (long long)pass + 1, (long long)args->R,
                     args->side_name, 'a' + which);
            tv_bar_part(bar, label, *done);
            s = prefill ? tv_session_score_prefill(session, set, args->side_name[0], pass, &bar->progress, &trace, err)
                        : tv_session_replay(session, set, args->side_name[0], pass, &bar->progress, &trace, err);
            if (s == TV_OK)
                s = folds->active ? cli_folding_add(folds, set, trace, err) : tv_trace_write(trace, path, err);
            tv_trace_close(trace);
            *done += (uint64_t)(set->N * set->n);
        }
        free(path);
        TV_TRY(s);
    }
    return TV_OK;
}

static tv_status dry_run(const tv_args *args, tv_engine *engine, tv_trace *const set[2], int64_t passes,
                         uint64_t bytes) {
    const tv_serving *serving = &args->side[0].serving;
    tv_engine_info info;
    tv_engine_describe(engine, &info);
    tv_machine machine = tv_machine_measure(args->threads);
    uint64_t session = 0, kept = 0, folded = 0;
    const int folds = !strcmp(args->keep_passes, "no");
    double seconds = 0;
    int sets = (set[0] != NULL) + (set[1] != NULL);
    const tv_trace *shown = set[0] ? set[0] : set[1];
    for (int i = 0; i < 2; i++) {
        if (!set[i]) continue;
        int64_t prompt = 0;
        for (int64_t t = 0; t < set[i]->N; t++) {
            int32_t p = set[i]->prompt_index[t];
            prompt += set[i]->prompt_offsets[p + 1] - set[i]->prompt_offsets[p];
        }
        kept += (uint64_t)args->R *
                tv_trace_file_size(set[i]->N, set[i]->n, serving->store_k, set[i]->prompt_offsets[set[i]->P]);
        folded += tv_fold_disk_need(set[i]->N, set[i]->n, serving->store_k, args->R);
        uint64_t need = tv_session_bytes(engine, serving, set[i]->N, tv_trace_longest_prompt(set[i]) + set[i]->n);
        if (need > session) session = need; /* one after the other */
        seconds += cli_seconds(&machine, &info, serving, set[i]->N, set[i]->n, prompt, (double)passes / sets);
    }
    cli_print_need(args, &info, passes, shown->N, shown->n, seconds, info.weights_bytes + session, folds ? kept : bytes,
                   folds ? bytes : folded, args->out);
    return TV_OK;
}

static tv_status work(const tv_args *args, const char *dir, tv_err *err) {
    tv_trace *set[2] = {NULL, NULL};
    tv_engine *engine = NULL;
    char *config = NULL;
    cli_folding folds = {0};
    cli_share share;
    int64_t passes = 0;
    uint64_t total = 0, bytes = 0, done = 0;
    tv_status s = cli_share_find(&share, args, err);
    if (s == TV_OK && cli_share_divided(&share) && !strcmp(args->keep_passes, "no"))
        s = TV_FAIL(
            err, TV_EARG,
            "--keep-passes no cannot be shared out to %d processes: it goes by all passes in order; leave it out, "
            "or use one process (--shard 1/1)",
            share.count);
    if (!args->dry_run) tv_rundir_clean(args->out);
    for (int i = 0; i < 2 && s == TV_OK; i++) {
        char *path = tv_samples_path(args->out, i);
        if (tv_path_exists(path)) s = tv_trace_open(path, &set[i], err);
        free(path);
    }
    if (s == TV_OK && !set[0] && !set[1])
        s = TV_FAIL(err, TV_EARG,
                    "%s holds neither a.samples.safetensors nor b.samples.safetensors: draw them with tvgpu sample",
                    args->out);
    if (s == TV_OK) s = cli_engine_open(args, &args->side[0], dir, &engine, err);
    if (s == TV_OK) s = tv_serving_check(&args->side[0].serving, engine, err);
    if (s == TV_OK) {
        config = config_text(args, engine);
        s = cli_folding_open(&folds, args, args->out, args->R, cli_folding_readout(args, 0, 0), err);
        if (s == TV_OK) s = take_stock(args, &share, &folds, config, set, &passes, &total, &bytes, err);
    }
    if (s == TV_OK && args->dry_run) {
        s = dry_run(args, engine, set, passes, bytes);
    } else if (s == TV_OK) {
        s = tv_rundir_check_disk(args->out, bytes, err);
        tv_bar bar;
        tv_bar_start(&bar, "scoring", "tokens", 1, total, args->quiet);
        for (int i = 0; i < 2 && s == TV_OK; i++) {
            if (!set[i]) continue;
            tv_session *session = NULL;
            s = tv_session_open(engine, &args->side[0].serving, set[i]->N, tv_trace_longest_prompt(set[i]) + set[i]->n,
                                &session, err);
            if (s == TV_OK) s = score_set(args, &share, &folds, session, set[i], i, &bar, &done, err);
            cli_note_recomputed(session, "--admission grow");
            tv_session_close(session);
        }
        tv_bar_finish(&bar);
    }
    if (s == TV_OK && !args->dry_run && cli_share_divided(&share))
        tv_note("process %d of %d has done its part", share.index + 1, share.count);
    if (s == TV_OK && !args->dry_run && args->json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "folder", args->out);
        cJSON_AddStringToObject(o, "side", args->side_name);
        cJSON_AddNumberToObject(o, "passes_written", (double)passes);
        cli_print_json(o);
        cJSON_Delete(o);
    }
    free(config);
    tv_engine_close(engine);
    tv_trace_close(set[0]);
    tv_trace_close(set[1]);
    return s;
}

static int run(tv_args *args, tv_err *err) {
    char *dir = NULL;
    if (!args->out) return (int)TV_FAIL(err, TV_EARG, "score needs --out DIR, the folder that holds the trajectories");
    if (!args->R) args->R = 1;
    if (cli_model_dir(args->n_positional ? args->positional[0] : NULL, &dir, err) == TV_OK &&
        work(args, dir, err) == TV_OK && !args->dry_run)
        tv_note("scored under side %s into %s; tvgpu estimate %s reads the result when both sides are there",
                args->side_name, args->out, args->out);
    free(dir);
    return EXIT_DONE;
}

const tv_command tv_command_score = {
    "score",
    "replay stored trajectories under a serving configuration",
    CMD_SCORE,
    1,
    "[MODEL] -o DIR --side a|b [options]",
    "Scores the trajectories in DIR (a.samples and b.samples, whichever are there) under these options\n"
    "and writes DIR/SIDE-on-SET.pass-NNNN.safetensors. --method replay forces the tokens through the\n"
    "decode path, step by step; --method prefill scores each trajectory at once. Passes that are there\n"
    "are kept, and must have been made under the same options. --keep-passes no writes averages instead,\n"
    "DIR/SIDE-on-SET.fold-F.safetensors.",
    "  tvgpu score MODEL -o pair --side a --backend flash -R 4\n"
    "  tvgpu score MODEL -o pair --side b --backend math -R 4\n"
    "  tvgpu estimate pair\n",
    run,
};
