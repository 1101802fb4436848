/* Sampling and scoring of a comparison, and the folder that holds it. */
#include "cli/comparison.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/target_error.h"

static const char SIDE[2] = {'a', 'b'};

/* What the two checkpoints must share for their token ids to mean the same. */
static tv_status check_same_vocabulary(const cli_comparison *c, tv_err *err) {
    tv_engine_info a, b;
    tv_engine_describe(c->engine[0], &a);
    tv_engine_describe(c->engine[1], &b);
    if (a.vocab_size != b.vocab_size)
        return TV_FAIL(err, TV_EARG, "the sides do not share a vocabulary: %d ids in %s, %d in %s", a.vocab_size,
                       c->dir[0], b.vocab_size, c->dir[1]);
    tv_tokenizer *tok[2] = {NULL, NULL};
    tv_status s = TV_OK;
    for (int e = 0; e < 2 && s == TV_OK; e++) {
        char *path = tv_path_join(c->dir[e], "tokenizer.json");
        if (tv_path_exists(path))
            s = tv_tokenizer_load(c->dir[e], &tok[e], err);
        else
            tv_warn("%s: no tokenizer.json, so that the sides' ids mean the same text is taken on trust", c->dir[e]);
        free(path);
    }
    if (s == TV_OK && tok[0] && tok[1])
        for (int32_t id = 0; id < a.vocab_size && s == TV_OK; id++) {
            char *text[2] = {NULL, NULL};
            size_t size[2];
            for (int e = 0; e < 2 && s == TV_OK; e++)
                s = tv_tokenizer_decode(tok[e], &id, 1, 0, 0, &text[e], &size[e], err);
            if (s == TV_OK && (size[0] != size[1] || memcmp(text[0], text[1], size[0])))
                s = TV_FAIL(err, TV_EARG, "the sides' tokenizers differ: id %d is \"%.40s\" in %s and \"%.40s\" in %s",
                            id, text[0], c->dir[0], text[1], c->dir[1]);
            free(text[0]), free(text[1]);
        }
    tv_tokenizer_close(tok[0]);
    tv_tokenizer_close(tok[1]);
    return s;
}

static cJSON *model_json(const tv_engine *engine) {
    tv_engine_info info;
    char hash[32];
    tv_engine_describe(engine, &info);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)info.weights_hash);
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "architecture", info.architecture);
    cJSON_AddNumberToObject(m, "parameters", (double)info.parameters);
    cJSON_AddStringToObject(m, "weights_hash", hash);
    cJSON_AddNumberToObject(m, "vocabulary", info.vocab_size);
    return m;
}

static void add_seed(cJSON *object, const char *key, uint64_t seed) { /* as text: JSON numbers end at 2^53 */
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    cJSON_AddStringToObject(object, key, text);
}

cJSON *cli_comparison_manifest(const cli_comparison *c) {
    cJSON *m = cJSON_CreateObject(), *model = model_json(c->engine[0]), *model_b = model_json(c->engine[1]);
    cJSON_AddStringToObject(m, "format", "tvgpu-run/1");
    cJSON_AddStringToObject(m, "tvgpu", TV_VERSION);
    cJSON_AddStringToObject(m, "command", "compare");
    cJSON_AddItemToObject(m, "model", model);
    if (cJSON_Compare(model, model_b, 1))
        cJSON_Delete(model_b);
    else
        cJSON_AddItemToObject(m, "model_b", model_b);
    cJSON_AddItemToObject(m, "a", tv_serving_json(&c->args->side[0].serving, c->engine[0]));
    cJSON_AddItemToObject(m, "b", tv_serving_json(&c->args->side[1].serving, c->engine[1]));
    cJSON_AddNumberToObject(m, "N", (double)c->N);
    cJSON_AddNumberToObject(m, "n", (double)c->n);
    cJSON_AddNumberToObject(m, "R", (double)c->R);
    if (c->first) cJSON_AddNumberToObject(m, "first_trajectory", (double)c->first);
    add_seed(m, "seed_a", c->args->seed[0]);
    add_seed(m, "seed_b", c->args->seed[1]);
    cJSON_AddBoolToObject(m, "always_repeat", c->args->always_repeat);
    cJSON_AddStringToObject(m, "keep_passes", c->args->keep_passes);
    if (!strcmp(c->args->keep_passes, "no")) cJSON_AddNumberToObject(m, "readout", cli_folding_readout(c->args, 0, 1));
    cJSON_AddItemToObject(m, "prompt_ids", cJSON_CreateIntArray(c->prompts.ids, c->prompts.offsets[c->prompts.P]));
    cJSON_AddItemToObject(m, "prompt_offsets", cJSON_CreateIntArray(c->prompts.offsets, (int)c->prompts.P + 1));
    cJSON *host = cJSON_AddObjectToObject(m, "host");
    for (int e = 0; e < 2; e++) {
        tv_engine_info info;
        char key[16];
        tv_engine_describe(c->engine[e], &info);
        snprintf(key, sizeof key, "model_%c", SIDE[e]);
        cJSON_AddStringToObject(host, key, info.model_dir);
        snprintf(key, sizeof key, "device_%c", SIDE[e]);
        cJSON_AddStringToObject(host, key, info.device);
    }
    return m;
}

char *cli_comparison_folder(const char *command, const cJSON *m) {
    cJSON *copy = cJSON_Duplicate(m, 1);
    cJSON_DeleteItemFromObjectCaseSensitive(copy, "host");
    char *text = tv_json_text(copy);
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *t = text; *t; t++) h = (h ^ (unsigned char)*t) * 0x100000001b3u;
    free(text);
    cJSON_Delete(copy);
    return tv_xprintf("tvgpu-runs/%s-%08x", command, (unsigned)(h ^ h >> 32));
}

/* The part of a shared run that a pass is. */
static int64_t item(int side, int set, int64_t pass) { return 4 * pass + 2 * side + set; }

/* Waits for a pass, or for the samples of side (pass -1), where another process makes it. */
static tv_status await_file(const cli_comparison *c, int side, int set, int64_t pass, tv_err *err) {
    const int owner = pass < 0 ? cli_share_owner(&c->share, side) : cli_share_owner(&c->share, item(side, set, pass));
    if (owner == c->share.index) return TV_OK;
    char *path = pass < 0 ? tv_rundir_samples_path(c->run, side) : tv_rundir_pass_path(c->run, side, set, pass);
    tv_status s = cli_share_wait(&c->share, path, owner, err);
    free(path);
    return s;
}

static tv_status sample(cli_comparison *c, int side, tv_err *err) {
    if (tv_rundir_has_samples(c->run, side)) return TV_OK;
    char label[64];
    snprintf(label, sizeof label, "sampling side %c", SIDE[side]);
    tv_bar_part(&c->bar, label, c->done);
    int32_t *index = tv_xmalloc((size_t)c->N * sizeof *index);
    int64_t *identity = tv_xmalloc((size_t)c->N * sizeof *identity);
    for (int64_t i = 0; i < c->N; i++) {
        identity[i] = c->first + i;
        index[i] = (int32_t)(identity[i] % c->prompts.P);
    }
    tv_job job = {.N = c->N,
                  .n = c->n,
                  .P = c->prompts.P,
                  .prompt_ids = c->prompts.ids,
                  .prompt_offsets = c->prompts.offsets,
                  .prompt_index = index,
                  .seed = c->args->seed[side],
                  .trajectory = identity};
    tv_trace *trace = NULL;
    tv_status s = tv_session_sample(c->session[side], &job, SIDE[side], &c->bar.progress, &trace, err);
    char *path = tv_rundir_samples_path(c->run, side);
    if (s == TV_OK) s = tv_trace_write(trace, path, err);
    tv_trace_close(trace);
    free(path);
    free(index);
    free(identity);
    c->computed += (uint64_t)(c->N * c->n);
    return s;
}

static tv_status replay(cli_comparison *c, int side, int set, int64_t pass, const tv_trace *samples, tv_err *err) {
    if (tv_rundir_has_pass(c->run, side, set, pass) || cli_folding_has(&c->folds, side, set, pass)) return TV_OK;
    char label[64];
    snprintf(label, sizeof label, "pass %lld/%lld, %c on %c", (long long)pass + 1, (long long)c->R, SIDE[side],
             SIDE[set]);
    tv_bar_part(&c->bar, label, c->done);
    tv_trace *trace = NULL;
    tv_status s = tv_session_replay(c->session[side], samples, SIDE[side], pass, &c->bar.progress, &trace, err);
    if (s == TV_OK) s = cli_trace_writer_put(&c->writer, trace, tv_rundir_pass_path(c->run, side, set, pass), err);
    c->computed += (uint64_t)(c->N * c->n);
    return s;
}

/* 1 when side is to be asked after two passes whether it is deterministic, and stop when it is. */
static int may_stop(const cli_comparison *c, int side) {
    return c->R > 2 && !c->args->always_repeat && tv_serving_deterministic(&c->args->side[side].serving) &&
           !cli_folding_has(&c->folds, side, TV_A, 0) && !cli_folding_has(&c->folds, side, TV_B, 0);
}

/* 1 when passes 0 and 1 of side agree in every bit over both sets. */
static tv_status passes_agree(const cli_comparison *c, int side, int *agree, tv_err *err) {
    *agree = 1;
    for (int set = 0; set < 2 && *agree; set++) {
        tv_trace *pass[2] = {NULL, NULL};
        tv_status s = TV_OK;
        for (int p = 0; p < 2 && s == TV_OK; p++) {
            char *path = tv_rundir_pass_path(c->run, side, set, p);
            s = tv_trace_open(path, &pass[p], err);
            free(path);
        }
        if (s == TV_OK) *agree = tv_trace_same(pass[0], pass[1], NULL, NULL);
        tv_trace_close(pass[0]);
        tv_trace_close(pass[1]);
        TV_TRY(s);
    }
    return TV_OK;
}

/* Opens what an earlier run finished: a damaged file is better found now than after the hours that are left. */
static tv_status check_finished(const cli_comparison *c, tv_err *err) {
    tv_status s = TV_OK;
    for (int side = 0; side < 2; side++)
        for (int set = 0; set < 2; set++)
            for (int64_t pass = -1; pass < c->R && s == TV_OK; pass++) {
                if (pass < 0 && side != set) continue;
                char *path =
                    pass < 0 ? tv_rundir_samples_path(c->run, side) : tv_rundir_pass_path(c->run, side, set, pass);
                tv_trace *trace = NULL;
                if (tv_path_exists(path)) s = tv_trace_open(path, &trace, err);
                if (s != TV_OK) tv_note("%s cannot be used: delete it, and the same command makes it again", path);
                tv_trace_close(trace);
                free(path);
            }
    return s;
}

/* Tokens of this process's part, with sides that have stopped. */
static uint64_t own_tokens(const cli_comparison *c, const int stopped[2]) {
    uint64_t parts = 0;
    for (int side = 0; side < 2; side++) {
        parts += (uint64_t)cli_share_mine(&c->share, side);
        for (int64_t pass = 0; pass < (stopped[side] ? 2 : c->R); pass++)
            for (int set = 0; set < 2; set++) parts += (uint64_t)cli_share_mine(&c->share, item(side, set, pass));
    }
    return parts * (uint64_t)(c->N * c->n);
}

/* After two passes: which sides are deterministic and need no more. */
static tv_status stop_sides(cli_comparison *c, int stopped[2], tv_err *err) {
    for (int side = 0; side < 2; side++) {
        if (!may_stop(c, side)) continue;
        TV_TRY(cli_trace_writer_wait(&c->writer, err));
        for (int64_t pass = 0; pass < 2; pass++)
            for (int set = 0; set < 2; set++) TV_TRY(await_file(c, side, set, pass, err));
        TV_TRY(passes_agree(c, side, &stopped[side], err));
        if (stopped[side])
            tv_note("side %c is deterministic: its passes are bit-identical, so 2 of %lld were run", SIDE[side],
                    (long long)c->R);
    }
    c->bar.total = own_tokens(c, stopped);
    return TV_OK;
}

static tv_status measure(cli_comparison *c, tv_err *err) {
    const uint64_t unit = (uint64_t)(c->N * c->n);
    int stopped[2] = {0, 0};
    tv_trace *samples[2] = {NULL, NULL};
    tv_status s = TV_OK;
    tv_bar_start(&c->bar, "sampling", "tokens", 1, own_tokens(c, stopped), c->args->quiet);
    for (int side = 0; side < 2 && s == TV_OK; side++)
        if (cli_share_mine(&c->share, side)) {
            s = sample(c, side, err);
            c->done += unit;
        }
    for (int side = 0; side < 2 && s == TV_OK; side++) {
        s = await_file(c, side, side, -1, err);
        char *path = tv_rundir_samples_path(c->run, side);
        if (s == TV_OK) s = tv_trace_open(path, &samples[side], err);
        free(path);
    }
    for (int64_t pass = 0; pass < c->R && s == TV_OK; pass++) {
        for (int side = 0; side < 2 && s == TV_OK; side++)
            for (int set = 0; set < 2 && s == TV_OK; set++) {
                if (stopped[side] || !cli_share_mine(&c->share, item(side, set, pass))) continue;
                s = replay(c, side, set, pass, samples[set], err);
                c->done += unit;
            }
        if (s == TV_OK && pass == 1) s = stop_sides(c, stopped, err);
        if (s == TV_OK && c->folds.active && (pass || !(may_stop(c, TV_A) || may_stop(c, TV_B)))) {
            s = cli_trace_writer_wait(&c->writer, err);
            if (s == TV_OK) s = cli_folding_take(&c->folds, c->run, samples, pass, stopped, err);
        }
    }
    if (s == TV_OK) {
        s = cli_trace_writer_wait(&c->writer, err);
    } else { /* what failed first is reported */
        tv_err later = {0};
        if (cli_trace_writer_wait(&c->writer, &later) != TV_OK) tv_err_clear(&later);
    }
    tv_bar_finish(&c->bar);
    for (int64_t pass = 0; pass < c->R && s == TV_OK && !c->share.index; pass++)
        for (int side = 0; side < 2 && s == TV_OK; side++)
            for (int set = 0; set < 2 && s == TV_OK; set++)
                if (!stopped[side] || pass < 2) s = await_file(c, side, set, pass, err);
    tv_trace_close(samples[0]);
    tv_trace_close(samples[1]);
    return s;
}

/* One block of --target-error; block 0 is the run itself, later ones lie in folders of their own within it. */
static tv_status measure_block(void *user, int64_t block, int64_t reads, tv_err *err) {
    cli_comparison *c = user;
    tv_rundir *run = c->run;
    const int64_t promised = c->R;
    char *folder = cli_block_folder(tv_rundir_path(run), block);
    tv_status s = TV_OK;
    c->first = block * c->N;
    if (block) {
        cJSON *m = cli_comparison_manifest(c);
        s = tv_rundir_open(folder, m, &c->run, err);
        cJSON_Delete(m);
    }
    c->R = reads;
    if (s == TV_OK) s = tv_rundir_check_disk(folder, cli_comparison_disk(c, c->folds.active), err);
    c->done = 0;
    if (s == TV_OK && block) s = check_finished(c, err);
    if (s == TV_OK) s = measure(c, err);
    if (block) tv_rundir_close(c->run);
    c->run = run;
    c->R = promised;
    c->first = 0;
    free(folder);
    return s;
}

static void date_text(char *buf, size_t size) {
    time_t now = time(NULL);
    struct tm tm;
    strftime(buf, size, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
}

static cJSON *timing_json(const cli_comparison *c) {
    cJSON *t = cJSON_CreateObject();
    char text[64] = "";
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    date_text(text, sizeof text);
    cJSON_AddStringToObject(t, "date", text);
    cJSON_AddStringToObject(t, "folder", tv_rundir_path(c->run));
    if (gethostname(text, sizeof text - 1) == 0) cJSON_AddStringToObject(t, "host", text);
    tv_engine_info info;
    for (int e = 0; e < 2; e++) {
        tv_engine_describe(c->engine[e], &info);
        cJSON_AddStringToObject(t, e ? "device_b" : "device_a", info.device);
        cJSON_AddStringToObject(t, e ? "model_b" : "model_a", info.model_dir);
    }
    cJSON_AddNumberToObject(t, "threads", c->args->threads ? c->args->threads : (double)sysconf(_SC_NPROCESSORS_ONLN));
    if (cli_share_divided(&c->share)) cJSON_AddNumberToObject(t, "processes", c->share.count);
    cJSON_AddNumberToObject(t, "seconds", tv_clock() - c->started);
    cJSON_AddNumberToObject(t, "tokens_computed", (double)c->computed);
    cJSON_AddBoolToObject(t, "resumed", tv_rundir_resumed(c->run));
    cJSON_AddNumberToObject(t, "peak_memory_bytes", (double)usage.ru_maxrss * 1024);
    return t;
}

/* 1 when side s of c and side q of d run the same weights on the same device with the same instructions. */
static int same_engine(const cli_comparison *c, int s, const cli_comparison *d, int q) {
    const tv_side *a = &c->args->side[s], *b = &d->args->side[q];
    return !strcmp(c->dir[s], d->dir[q]) && !strcmp(a->device, b->device) && !strcmp(a->isa, b->isa) &&
           a->weight_dtype == b->weight_dtype;
}

tv_status cli_comparison_open(cli_comparison *c, tv_args *args, const cli_comparison *like, tv_err *err) {
    c->args = args;
    c->started = tv_clock();
    for (int e = 0; e < 2; e++) {
        const char *model = args->side[e].model ? args->side[e].model : args->n_positional ? args->positional[0] : NULL;
        TV_TRY(cli_model_dir(model, &c->dir[e], err));
    }
    TV_TRY(cli_prompts_make(args, c->dir[0], &c->prompts, err));
    if (like && same_engine(c, 0, like, 0))
        c->engine[0] = like->engine[0], c->borrowed[0] = 1;
    else
        TV_TRY(cli_engine_open(args, &args->side[0], c->dir[0], &c->engine[0], err));
    if (same_engine(c, 1, c, 0)) {
        c->engine[1] = c->engine[0], c->borrowed[1] = 1;
    } else {
        TV_TRY(cli_engine_open(args, &args->side[1], c->dir[1], &c->engine[1], err));
        TV_TRY(check_same_vocabulary(c, err));
    }
    int gpu = cli_on_gpu(c->engine[0]) && cli_on_gpu(c->engine[1]);
    c->N = args->N ? args->N : args->quick ? 64 : gpu ? 512 : 128;
    c->n = args->n ? args->n : args->quick ? 64 : gpu ? 500 : 128;
    c->R = args->R ? args->R : args->quick ? 4 : gpu ? 16 : 4;
    for (int e = 0; e < 2; e++) TV_TRY(tv_serving_check(&args->side[e].serving, c->engine[e], err));
    if (args->side[0].serving.store_k != args->side[1].serving.store_k)
        return TV_FAIL(err, TV_EARG,
                       "--store-k must be the same on both sides (%d and %d): readouts are compared slot by slot",
                       args->side[0].serving.store_k, args->side[1].serving.store_k);
    if (!strcmp(args->keep_passes, "no") && isfinite(args->target_error))
        return TV_FAIL(
            err, TV_EARG,
            "--keep-passes no with --target-error: how many passes there will be is not known before they are "
            "folded; leave one of the two out");
    if (cli_share_divided(&c->share) && (!strcmp(args->keep_passes, "no") || isfinite(args->target_error)))
        return TV_FAIL(err, TV_EARG,
                       "%s cannot be shared out to %d processes: it goes by all passes in order; leave it out, or use "
                       "one process (--shard 1/1)",
                       isfinite(args->target_error) ? "--target-error" : "--keep-passes no", c->share.count);
    if (args->readout > args->side[0].serving.store_k)
        return TV_FAIL(err, TV_EARG, "--readout %lld is more than the %d slots stored (--store-k)",
                       (long long)args->readout, args->side[0].serving.store_k);
    tv_engine_info info;
    tv_engine_describe(c->engine[0], &info);
    TV_TRY(cli_prompts_check(args, &c->prompts, info.vocab_size, err));
    for (int e = 0; e < 2; e++) {
        tv_engine_describe(c->engine[e], &info);
        TV_TRY(cli_positions_check(&c->prompts, c->n, &info, err));
    }
    return TV_OK;
}

static uint64_t session_bytes(const cli_comparison *c, int e) {
    return tv_session_bytes(c->engine[e], &c->args->side[e].serving, c->N, c->prompts.longest + c->n);
}

/* The larger first: where both are of one engine the other shares its memory. */
static tv_status open_sessions(cli_comparison *c, tv_err *err) {
    const int first = session_bytes(c, 1) > session_bytes(c, 0);
    for (int i = 0; i < 2; i++) {
        const int e = first ^ i;
        TV_TRY(tv_session_open(c->engine[e], &c->args->side[e].serving, c->N, c->prompts.longest + c->n, &c->session[e],
                               err));
    }
    return TV_OK;
}

uint64_t cli_comparison_memory(const cli_comparison *c) {
    const uint64_t a = session_bytes(c, 0), b = session_bytes(c, 1);
    tv_engine_info info[2];
    for (int e = 0; e < 2; e++) tv_engine_describe(c->engine[e], &info[e]);
    if (c->engine[0] == c->engine[1]) return info[0].weights_bytes + (a > b ? a : b);
    return info[0].weights_bytes + info[1].weights_bytes + a + b;
}

/* What side a makes alone, from the folder of a comparison that shares the side: links, where the file system has them;
 * what stays missing is computed. */
static tv_status take_over(cli_comparison *c, const cli_comparison *like, tv_err *err) {
    static const char *const alone[] = {"model", "a", "N", "n", "seed_a", "prompt_ids", "prompt_offsets"};
    cJSON *ours = cli_comparison_manifest(c), *theirs = cli_comparison_manifest(like);
    int same = 1;
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        same = same && cJSON_Compare(cJSON_GetObjectItemCaseSensitive(ours, alone[i]),
                                     cJSON_GetObjectItemCaseSensitive(theirs, alone[i]), 1);
    cJSON_Delete(ours);
    cJSON_Delete(theirs);
    if (!same) return TV_FAIL(err, TV_EARG, "%s has another side a", tv_rundir_path(like->run));
    for (int64_t pass = -1; pass < c->R; pass++) {
        char *from =
            pass < 0 ? tv_rundir_samples_path(like->run, TV_A) : tv_rundir_pass_path(like->run, TV_A, TV_A, pass);
        char *to = pass < 0 ? tv_rundir_samples_path(c->run, TV_A) : tv_rundir_pass_path(c->run, TV_A, TV_A, pass);
        if (tv_path_exists(from) && !tv_path_exists(to)) (void)!link(from, to);
        free(from);
        free(to);
    }
    return TV_OK;
}

int64_t cli_comparison_prompt_tokens(const cli_comparison *c) {
    int64_t total = 0;
    for (int64_t i = 0; i < c->N; i++)
        total += c->prompts.offsets[i % c->prompts.P + 1] - c->prompts.offsets[i % c->prompts.P];
    return total;
}

uint64_t cli_comparison_disk(const cli_comparison *c, int folded) {
    const int64_t N[2] = {c->N, c->N}, passes[2] = {c->R, c->R};
    const int64_t k = c->args->side[0].serving.store_k, n_prompt_ids = c->prompts.offsets[c->prompts.P];
    return folded ? cli_folding_disk(c->folds.active ? &c->folds : NULL, c->N, c->n, k,
                                     cli_folding_readout(c->args, 0, 1), c->R, n_prompt_ids)
                  : tv_rundir_disk_need(c->run, N, c->n, k, passes, n_prompt_ids);
}

tv_status cli_comparison_run(cli_comparison *c, const char *folder, const cli_comparison *like, tv_err *err) {
    char *manifest_path = tv_path_join(folder, "run.json");
    cJSON *m = cli_comparison_manifest(c);
    const int folded = !strcmp(c->args->keep_passes, "no");
    tv_status s = open_sessions(c, err);
    if (s == TV_OK && !tv_path_exists(manifest_path))
        s = tv_rundir_check_disk(folder, cli_comparison_disk(c, folded), err);
    if (s == TV_OK) s = tv_rundir_open(folder, m, &c->run, err);
    if (s == TV_OK)
        s = cli_folding_open(&c->folds, c->args, tv_rundir_path(c->run), c->R, cli_folding_readout(c->args, 0, 1), err);
    if (s == TV_OK && tv_rundir_resumed(c->run)) s = tv_rundir_check_disk(folder, cli_comparison_disk(c, folded), err);
    if (s == TV_OK) s = cli_share_begin(&c->share, tv_rundir_path(c->run), err);
    if (s == TV_OK) {
        tv_note("%s %s", tv_rundir_resumed(c->run) ? "going on in" : "run folder", folder);
        if (like) s = take_over(c, like, err);
        if (s == TV_OK) s = check_finished(c, err);
        if (s == TV_OK)
            s = isfinite(c->args->target_error)
                    ? cli_target_error(c->args, folder, c->N, c->R, measure_block, c, &c->target, err)
                    : measure(c, err);
        cli_note_recomputed(c->session[0], "side a");
        cli_note_recomputed(c->session[1], "side b");
    }
    cli_share_end(&c->share);
    free(manifest_path);
    cJSON_Delete(m);
    return s;
}

tv_status cli_comparison_report(const cli_comparison *c, cJSON **report, tv_err *err) {
    const char *folder = tv_rundir_path(c->run);
    char *path = tv_path_join(folder, "report.json");
    tv_dataset *data = NULL;
    cJSON *timing = timing_json(c);
    tv_args args = *c->args;
    args.seed[0] = 0; /* a run's report depends on the run alone */
    args.reads = 0;
    *report = NULL;
    tv_status s = tv_dataset_open(&folder, 1, &data, err);
    if (s == TV_OK) s = cli_report_make(&args, data, c->dir[0], timing, report, err);
    if (s == TV_OK && c->target) cJSON_AddItemToObject(*report, "target", cJSON_Duplicate(c->target, 1));
    if (s == TV_OK) s = tv_json_save(*report, path, err);
    if (s != TV_OK) {
        cJSON_Delete(*report);
        *report = NULL;
    }
    cJSON_Delete(timing);
    tv_dataset_close(data);
    free(path);
    return s;
}

void cli_comparison_rest(cli_comparison *c) {
    for (int e = 0; e < 2; e++) {
        tv_session_close(c->session[e]);
        c->session[e] = NULL;
    }
}

void cli_comparison_close(cli_comparison *c) {
    cli_comparison_rest(c);
    tv_rundir_close(c->run);
    cJSON_Delete(c->target);
    for (int e = 1; e >= 0; e--) {
        if (!c->borrowed[e]) tv_engine_close(c->engine[e]);
        free(c->dir[e]);
    }
    cli_prompts_free(&c->prompts);
    memset(c, 0, sizeof *c);
}
