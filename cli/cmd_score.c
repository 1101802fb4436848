/* tvgpu score: the other half of a comparison, scoring stored trajectories. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/progress.h"

/* Passes over one set, skipping those that are there. */
static tv_status score_set(tv_args *args, tv_session *session, const tv_trace *set, char set_name, tv_bar *bar, uint64_t *done, tv_err *err) {
    int prefill = !strcmp(args->method, "prefill");
    for (int64_t pass = 0; pass < args->R; pass++) {
        char name[64];
        snprintf(name, sizeof name, "%s-on-%c.pass-%04lld.safetensors", args->side_name, set_name, (long long)pass);
        char *path = tv_path_join(args->out, name);
        tv_status s = TV_OK;
        if (!tv_path_exists(path)) {
            tv_trace *trace = NULL;
            tv_bar_part(bar, name, *done);
            s = prefill ? tv_session_score_prefill(session, set, args->side_name[0], pass, &bar->progress, &trace, err)
                        : tv_session_replay(session, set, args->side_name[0], pass, &bar->progress, &trace, err);
            if (s == TV_OK) s = tv_trace_write(trace, path, err);
            tv_trace_close(trace);
        }
        *done += (uint64_t)(set->N * set->n);
        free(path);
        TV_TRY(s);
    }
    return TV_OK;
}

static int64_t longest_prompt(const tv_trace *set) {
    int64_t longest = 0;
    for (int64_t p = 0; p < set->P; p++)
        if (set->prompt_offsets[p + 1] - set->prompt_offsets[p] > longest) longest = set->prompt_offsets[p + 1] - set->prompt_offsets[p];
    return longest;
}

static tv_status work(tv_args *args, const char *dir, tv_err *err) {
    tv_trace *set[2] = {NULL, NULL};
    tv_engine *engine = NULL;
    tv_status s = TV_OK;
    uint64_t total = 0, done = 0;
    for (int i = 0; i < 2 && s == TV_OK; i++) {
        char name[32];
        snprintf(name, sizeof name, "%c.samples.safetensors", 'a' + i);
        char *path = tv_path_join(args->out, name);
        if (tv_path_exists(path)) s = tv_trace_open(path, &set[i], err);
        free(path);
        if (set[i]) total += (uint64_t)(set[i]->N * set[i]->n * args->R);
    }
    if (s == TV_OK && !total) s = TV_FAIL(err, TV_EARG, "%s holds neither a.samples.safetensors nor b.samples.safetensors: draw them with tvgpu sample", args->out);
    if (s == TV_OK) s = cli_engine_open(args, &args->side[0], dir, &engine, err);
    tv_bar bar;
    tv_bar_start(&bar, "scoring", "tokens", 1, total, args->quiet);
    for (int i = 0; i < 2 && s == TV_OK; i++) {
        if (!set[i]) continue;
        tv_session *session = NULL;
        s = tv_session_open(engine, &args->side[0].serving, set[i]->N, longest_prompt(set[i]) + set[i]->n, &session, err);
        if (s == TV_OK && args->dry_run)
            printf("would score %lld trajectories of %lld tokens %lld times (set %c)\n", (long long)set[i]->N, (long long)set[i]->n, (long long)args->R, 'a' + i);
        else if (s == TV_OK) s = score_set(args, session, set[i], (char)('a' + i), &bar, &done, err);
        tv_session_close(session);
    }
    tv_bar_finish(&bar);
    tv_engine_close(engine);
    tv_trace_close(set[0]);
    tv_trace_close(set[1]);
    return s;
}

static int run(tv_args *args, tv_err *err) {
    char *dir = NULL;
    if (!args->out) return (int)TV_FAIL(err, TV_EARG, "score needs -o DIR, the folder that holds the trajectories");
    if (!args->R) args->R = 1;
    if (cli_model_dir(args->n_positional ? args->positional[0] : NULL, &dir, err) == TV_OK && work(args, dir, err) == TV_OK && !args->dry_run)
        tv_note("scored under side %s into %s; tvgpu estimate %s/*.safetensors reads the result when both sides are there", args->side_name, args->out, args->out);
    free(dir);
    return EXIT_DONE;
}

const tv_command tv_command_score = {
    "score", "replay stored trajectories under a serving configuration", CMD_SCORE, "[MODEL] -o DIR --side a|b [options]",
    "Scores the trajectories in DIR (a.samples and b.samples, whichever are there) under these options and\n"
    "writes DIR/SIDE-on-SET.pass-NNNN.safetensors. --method replay forces the tokens through the decode path,\n"
    "step by step; --method prefill scores each trajectory at once. Passes that are there are kept.",
    "  tvgpu score MODEL -o pair --side a --backend flash -R 4\n"
    "  tvgpu score MODEL -o pair --side b --backend math -R 4\n"
    "  tvgpu estimate pair/*.safetensors\n", run,
};
