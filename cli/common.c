#include "cli/common.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/progress.h"
#include "estimator/report.h"
#include "models/config.h"

int cli_exit_code(const tv_err *err) {
    return err->code == TV_EARG || err->code == TV_EUNSUPPORTED ? EXIT_USAGE : EXIT_FAILED;
}

tv_status cli_model_dir(const char *given, char **dir, tv_err *err) {
    *dir = NULL;
    if (given) return tv_model_dir_resolve(given, dir, err);
    /* beside the program in the source tree (build/tvgpu), or in the share folder of an installation (bin/tvgpu) */
    static const char *const places[] = {"/../models/tiny-qwen3", "/../share/tvgpu/models/tiny-qwen3",
                                         "/models/tiny-qwen3", "/../../models/tiny-qwen3"};
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) {
        exe[n] = 0;
        char *slash = strrchr(exe, '/');
        if (slash) *slash = 0;
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            char *path = tv_xprintf("%s%s", exe, places[i]), *config = tv_path_join(path, "config.json");
            int there = tv_path_exists(config);
            free(config);
            if (there) {
                char *real = realpath(path, NULL);
                if (real) free(path);
                *dir = real ? real : path;
                return TV_OK;
            }
            free(path);
        }
    }
    return TV_FAIL(err, TV_EARG,
                   "the bundled model was not found near the program (looked for models/tiny-qwen3); name a checkpoint "
                   "folder as MODEL");
}

tv_status cli_engine_open(const tv_args *args, const tv_side *side, const char *model_dir, tv_engine **engine,
                          tv_err *err) {
    tv_bar bar;
    tv_bar_start(&bar, "loading weights", "MB", 1e-6, 0, args->quiet);
    tv_engine_options options = {.model = model_dir,
                                 .device = side->device,
                                 .threads = args->threads,
                                 .isa = side->isa,
                                 .gpu = args->gpu,
                                 .progress = &bar.progress,
                                 .no_graphs = args->graphs && !strcmp(args->graphs, "off"),
                                 .weight_dtype = side->weight_dtype};
    tv_status s = tv_engine_open(&options, engine, err);
    bar.quiet |= !bar.terminal; /* loading is short: a log needs no line for it */
    tv_bar_finish(&bar);
    return s;
}

int cli_on_gpu(const tv_engine *engine) {
    tv_engine_info info;
    tv_engine_describe(engine, &info);
    return strncmp(info.device, "cpu", 3) != 0;
}

static void append(cli_prompts *p, const int32_t *ids, size_t n, int64_t line) {
    size_t have = p->P ? (size_t)p->offsets[p->P] : 0;
    p->ids = tv_xrealloc(p->ids, (have + n) * sizeof *p->ids);
    if (n) memcpy(p->ids + have, ids, n * sizeof *ids);
    p->offsets = tv_xrealloc(p->offsets, (size_t)(p->P + 2) * sizeof *p->offsets);
    if (!p->P) p->offsets[0] = 0;
    p->line = tv_xrealloc(p->line, (size_t)(p->P + 1) * sizeof *p->line);
    p->line[p->P] = line;
    p->offsets[++p->P] = (int32_t)(have + n);
    if ((int64_t)n > p->longest) p->longest = (int64_t)n;
}

static tv_status add_text(const tv_args *args, const tv_tokenizer *tok, const char *text, int64_t line, cli_prompts *p,
                          tv_err *err) {
    int32_t *ids = NULL;
    size_t n = 0;
    if (args->raw) {
        TV_TRY(tv_tokenizer_encode(tok, text, strlen(text), &ids, &n, err));
    } else {
        const char *system = args->system ? args->system : "You are a helpful assistant.";
        tv_message messages[2] = {{"system", system}, {"user", text}};
        int skip = !*system;
        TV_TRY(tv_chat_encode(tok, messages + skip, (size_t)(2 - skip), args->thinking, &ids, &n, err));
    }
    append(p, ids, n, line);
    free(ids);
    return TV_OK;
}

static tv_status add_messages(const tv_args *args, const tv_tokenizer *tok, const cJSON *list, const char *where,
                              int64_t line, cli_prompts *p, tv_err *err) {
    size_t n = (size_t)cJSON_GetArraySize(list), i = 0, n_ids = 0;
    tv_message *messages = tv_xcalloc(n + 1, sizeof *messages);
    const cJSON *m;
    tv_status s = TV_OK;
    cJSON_ArrayForEach(m, list) {
        messages[i].role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, "role"));
        messages[i].content = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, "content"));
        if (!messages[i].role || !messages[i].content) {
            s = TV_FAIL(err, TV_EFORMAT, "%s: message %zu needs the strings \"role\" and \"content\"", where, i);
            break;
        }
        i++;
    }
    int32_t *ids = NULL;
    if (s == TV_OK) s = tv_chat_encode(tok, messages, n, args->thinking, &ids, &n_ids, err);
    if (s == TV_OK) append(p, ids, n_ids, line);
    free(ids);
    free(messages);
    return s;
}

static tv_status add_ids(const cJSON *list, const char *where, int64_t line, cli_prompts *p, tv_err *err) {
    size_t n = (size_t)cJSON_GetArraySize(list), i = 0;
    int32_t *ids = tv_xmalloc((n + 1) * sizeof *ids);
    const cJSON *item;
    tv_status s = TV_OK;
    cJSON_ArrayForEach(item, list) {
        int64_t id;
        s = tv_json_int(item, where, "a token id", &id, err);
        if (s == TV_OK && (id < 0 || id > INT32_MAX))
            s = TV_FAIL(err, TV_EARG, "%s: %lld is not a token id", where, (long long)id);
        if (s != TV_OK) break;
        ids[i++] = (int32_t)id;
    }
    if (s == TV_OK) append(p, ids, n, line);
    free(ids);
    return s;
}

/* 1 when a JSON text holds an escaped NUL character. */
static int has_nul(const char *text, size_t size) {
    for (size_t i = 0; i + 5 < size; i++)
        if (text[i] == '\\' && !memcmp(text + i + 1, "u0000", 5))
            return 1;
        else
            i += text[i] == '\\'; /* a backslash that is escaped begins nothing */
    return 0;
}

static tv_status add_file(const tv_args *args, const char *model_dir, tv_tokenizer **tok, cli_prompts *p, tv_err *err) {
    char *text;
    size_t size;
    TV_TRY(tv_file_read(args->prompts, (size_t)1 << 30, &text, &size, err));
    tv_status s = TV_OK;
    int64_t line = 0;
    for (char *c = text; s == TV_OK && c < text + size;) {
        char *end = memchr(c, '\n', (size_t)(text + size - c));
        size_t length = end ? (size_t)(end - c) : (size_t)(text + size - c);
        line++;
        char *where = tv_xprintf("%s:%lld", args->prompts, (long long)line);
        size_t blank = strspn(c, " \t\r");
        cJSON *json = NULL;
        if (blank < length) {
            s = tv_json_parse(c, length, where, &json, err);
            const cJSON *ids = cJSON_GetObjectItemCaseSensitive(json, "ids"),
                        *messages = cJSON_GetObjectItemCaseSensitive(json, "messages");
            if (s == TV_OK && has_nul(c, length)) /* text ends there for the JSON reader */
                s = TV_FAIL(err, TV_EFORMAT, "%s: a NUL character in a prompt; give it as {\"ids\": [...]}", where);
            if (s == TV_OK && (cJSON_IsString(json) || cJSON_IsArray(messages)) && !*tok)
                s = tv_tokenizer_load(model_dir, tok, err);
            if (s != TV_OK) {
            } else if (cJSON_IsString(json)) {
                s = add_text(args, *tok, json->valuestring, line, p, err);
            } else if (cJSON_IsArray(messages)) {
                s = add_messages(args, *tok, messages, where, line, p, err);
            } else if (cJSON_IsArray(ids)) {
                s = add_ids(ids, where, line, p, err);
            } else {
                s = TV_FAIL(err, TV_EFORMAT, "%s: a prompt is a string, {\"messages\": [...]} or {\"ids\": [...]}",
                            where);
            }
        }
        cJSON_Delete(json);
        free(where);
        c += length + 1;
    }
    if (s == TV_OK && !p->P) s = TV_FAIL(err, TV_EFORMAT, "%s: holds no prompt", args->prompts);
    free(text);
    return s;
}

/* "FILE:LINE" or the option that prompt i came from; the caller frees. */
static char *place(const tv_args *args, const cli_prompts *p, int64_t i) {
    return p->line[i] ? tv_xprintf("%s:%lld", args->prompts, (long long)p->line[i]) : tv_xstrdup("--prompt");
}

tv_status cli_prompts_check(const tv_args *args, const cli_prompts *p, int V, tv_err *err) {
    for (int64_t i = 0; i < p->P; i++)
        for (int32_t t = p->offsets[i]; t < p->offsets[i + 1]; t++)
            if (p->ids[t] < 0 || p->ids[t] >= V) {
                char *where = place(args, p, i);
                tv_status s =
                    TV_FAIL(err, TV_EARG,
                            "%s: token id %d (number %d of the prompt) is not in the model's vocabulary (0 to %d)",
                            where, p->ids[t], t - p->offsets[i], V - 1);
                free(where);
                return s;
            }
    return TV_OK;
}

tv_status cli_positions_check(const cli_prompts *p, int64_t n, const tv_engine_info *info, tv_err *err) {
    if (p->longest + n <= info->max_positions) return TV_OK;
    return TV_FAIL(
        err, TV_EARG,
        "--length %lld after a prompt of %lld tokens is more than the %d positions of %s; at most --length %lld",
        (long long)n, (long long)p->longest, info->max_positions, info->model_dir,
        (long long)(info->max_positions > p->longest ? info->max_positions - p->longest : 0));
}

tv_status cli_prompts_make(const tv_args *args, const char *model_dir, cli_prompts *prompts, tv_err *err) {
    tv_tokenizer *tok = NULL;
    memset(prompts, 0, sizeof *prompts);
    tv_status s;
    if (args->prompts && (args->prompt || args->system)) {
        return TV_FAIL(err, TV_EARG, "--prompts brings its own prompts: leave out --prompt and --system");
    } else if (args->prompts) {
        s = add_file(args, model_dir, &tok, prompts, err);
    } else {
        s = tv_tokenizer_load(model_dir, &tok, err);
        if (s == TV_OK)
            s = add_text(args, tok, args->prompt ? args->prompt : "Tell me a story about a robot learning to paint.", 0,
                         prompts, err);
    }
    for (int64_t i = 0; s == TV_OK && i < prompts->P; i++)
        if (prompts->offsets[i] == prompts->offsets[i + 1]) {
            char *where = place(args, prompts, i);
            s = TV_FAIL(err, TV_EARG, "%s: a prompt without tokens: there is nothing to continue", where);
            free(where);
        }
    tv_tokenizer_close(tok);
    if (s != TV_OK) cli_prompts_free(prompts);
    return s;
}

void cli_prompts_free(cli_prompts *prompts) {
    free(prompts->ids);
    free(prompts->offsets);
    free(prompts->line);
    memset(prompts, 0, sizeof *prompts);
}

/* A number inside the report, or NaN. */
static double number(const cJSON *report, const char *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(report, object), key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static void interval(const cJSON *report, double *low, double *high) {
    const cJSON *ci = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(report, "tv"), "ci95");
    *low = *high = NAN;
    if (cJSON_GetArraySize(ci) != 2 || !cJSON_IsNumber(ci->child) || !cJSON_IsNumber(ci->child->next)) return;
    *low = ci->child->valuedouble, *high = ci->child->next->valuedouble;
}

tv_status cli_baseline_check(const tv_args *args, tv_err *err) {
    if (!args->baseline) return TV_OK;
    cJSON *old = NULL;
    TV_TRY(tv_json_load(args->baseline, (size_t)1 << 30, &old, err));
    int there = isfinite(number(old, "tv", "estimate"));
    cJSON_Delete(old);
    return there ? TV_OK
                 : TV_FAIL(err, TV_EFORMAT, "--baseline %s: no number tv.estimate in it, so not a report.json of tvgpu",
                           args->baseline);
}

/* Has the distance moved since an earlier report? Adds "baseline" to the report. */
static tv_status baseline(const tv_args *args, cJSON *report, tv_err *err) {
    cJSON *old = NULL;
    TV_TRY(cli_baseline_check(args, err));
    TV_TRY(tv_json_load(args->baseline, (size_t)1 << 30, &old, err));
    double was = number(old, "tv", "estimate"), was_se = number(old, "tv", "se");
    double now = number(report, "tv", "estimate"), now_se = number(report, "tv", "se");
    cJSON *b = cJSON_AddObjectToObject(report, "baseline");
    double se = sqrt((isfinite(was_se) ? was_se * was_se : 0) + (isfinite(now_se) ? now_se * now_se : 0));
    tv_json_add_number(b, "estimate", was);
    tv_json_add_number(b, "se", was_se);
    tv_json_add_number(b, "difference", now - was);
    tv_json_add_number(b, "difference_se", se);
    const cJSON *n_old = cJSON_GetObjectItemCaseSensitive(old, "n"),
                *n_new = cJSON_GetObjectItemCaseSensitive(report, "n");
    int comparable = cJSON_IsNumber(n_old) && cJSON_IsNumber(n_new) && n_old->valuedouble == n_new->valuedouble;
    cJSON_AddBoolToObject(b, "same_length", comparable);
    if (!comparable)
        tv_warn("%s was measured at another trajectory length: the two distances are not comparable", args->baseline);
    cJSON_AddStringToObject(b, "verdict",
                            !isfinite(now)                ? "cannot tell"
                            : fabs(now - was) > 1.96 * se ? "moved"
                                                          : "not distinguishable from no change");
    cJSON_Delete(old);
    return TV_OK;
}

/* What the report says of side e or the model when there is no run.json: what the passes' own metadata says. */
static cJSON *provenance(const tv_dataset *data, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(data->manifest, key);
    if (item) return cJSON_Duplicate(item, 1);
    if (strcmp(key, "model")) return cJSON_Duplicate(data->config[key[0] == 'b'], 1);
    cJSON *model = cJSON_CreateObject();
    static const char *const fields[] = {"architecture", "weights_hash"};
    for (int i = 0; i < 2; i++) {
        const cJSON *a = cJSON_GetObjectItemCaseSensitive(data->config[0], fields[i]);
        const cJSON *b = cJSON_GetObjectItemCaseSensitive(data->config[1], fields[i]);
        if (a && cJSON_Compare(a, b, 1)) cJSON_AddItemToObject(model, fields[i], cJSON_Duplicate(a, 1));
    }
    if (model->child) return model;
    cJSON_Delete(model);
    return NULL;
}

void cli_add_libraries(cJSON *object, const tv_dataset *data) {
    if (!data->libraries[0] && !data->libraries[1]) return;
    cJSON *sides = cJSON_AddObjectToObject(object, "libraries");
    for (int e = 0; e < 2; e++)
        if (data->libraries[e]) cJSON_AddItemToObject(sides, e ? "b" : "a", cJSON_Duplicate(data->libraries[e], 1));
}

/* Adds the text of its token to every entry of worst_tokens. */
static void add_texts(cJSON *report, const char *model_dir) {
    cJSON *list = cJSON_GetObjectItemCaseSensitive(report, "worst_tokens"), *row;
    tv_tokenizer *tok = NULL;
    tv_err ignored = {0};
    char *path = model_dir ? tv_path_join(model_dir, "tokenizer.json") : NULL;
    if (path && tv_path_exists(path) && tv_tokenizer_load(model_dir, &tok, &ignored) != TV_OK) tv_err_clear(&ignored);
    cJSON_ArrayForEach(row, list) {
        int32_t id = (int32_t)cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(row, "token"));
        char *text = NULL;
        size_t size;
        if (tok && tv_tokenizer_decode(tok, &id, 1, 0, 1, &text, &size, &ignored) != TV_OK) tv_err_clear(&ignored);
        if (text)
            cJSON_AddStringToObject(row, "text", text);
        else
            tv_json_add_null(row, "text", "the model's tokenizer is not at hand");
        free(text);
    }
    tv_tokenizer_close(tok);
    free(path);
}

tv_status cli_report_make(const tv_args *args, const tv_dataset *data, const char *model_dir, const cJSON *timing,
                          cJSON **out, tv_err *err) {
    tv_report_options options = {args->reads, (int)args->readout, args->serving_order, args->seed[0]};
    cJSON *body = NULL;
    *out = NULL;
    if (args->readout && args->readout < data->top_k)
        tv_warn("--readout %lld is below the sampler's top-k %d: a sampled token outside it makes its trajectory a "
                "mismatch",
                (long long)args->readout, data->top_k);
    TV_TRY(tv_report_build(data, &options, &body, err));
    cJSON *report = cJSON_CreateObject();
    cJSON_AddStringToObject(report, "tvgpu", TV_VERSION);
    static const char *const keys[] = {"model", "a", "b"};
    for (int i = 0; i < 3; i++) {
        cJSON *item = provenance(data, keys[i]);
        if (item)
            cJSON_AddItemToObject(report, keys[i], item);
        else
            tv_json_add_null(report, keys[i], "the data do not say");
    }
    cli_add_libraries(report, data);
    static const char *const seeds[] = {"seed_a", "seed_b"};
    for (int i = 0; i < 2; i++) {
        const cJSON *seed = cJSON_GetObjectItemCaseSensitive(data->manifest, seeds[i]);
        if (seed) cJSON_AddItemToObject(report, seeds[i], cJSON_Duplicate(seed, 1));
    }
    for (cJSON *item = body->child; item;) {
        cJSON *next = item->next;
        cJSON_AddItemToObject(report, item->string, cJSON_DetachItemViaPointer(body, item));
        item = next;
    }
    cJSON_Delete(body);
    if (!model_dir)
        model_dir = cJSON_GetStringValue(
            cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(data->manifest, "host"), "model_a"));
    add_texts(report, model_dir);
    tv_status s = args->baseline ? baseline(args, report, err) : TV_OK;
    if (s != TV_OK) {
        cJSON_Delete(report);
        return s;
    }
    if (timing)
        cJSON_AddItemToObject(report, "timing", cJSON_Duplicate(timing, 1));
    else
        tv_json_add_null(report, "timing", "estimated from recorded data");
    *out = report;
    return TV_OK;
}

void cli_print_json(const cJSON *json) {
    char *text = tv_json_text(json);
    fputs(text, stdout);
    if (!*text || text[strlen(text) - 1] != '\n') putchar('\n');
    free(text);
}

void cli_print_need(const tv_args *args, const tv_engine_info *info, int64_t passes, int64_t N, int64_t n,
                    double seconds, uint64_t memory, uint64_t disk, uint64_t folded, const char *folder) {
    const int folds = folded && !strcmp(args->keep_passes, "no");
    if (args->json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "N", (double)N);
        cJSON_AddNumberToObject(o, "n", (double)n);
        cJSON_AddNumberToObject(o, "passes", (double)passes);
        cJSON_AddNumberToObject(o, "tokens", (double)passes * (double)N * (double)n);
        cJSON_AddNumberToObject(o, "seconds", seconds);
        cJSON_AddNumberToObject(o, "memory_bytes", (double)memory);
        cJSON_AddNumberToObject(o, "disk_bytes", (double)(folds ? folded : disk));
        if (folded) cJSON_AddNumberToObject(o, "disk_bytes_kept", (double)disk);
        if (folded) cJSON_AddNumberToObject(o, "disk_bytes_folded", (double)folded);
        cJSON_AddStringToObject(o, "folder", folder);
        cli_print_json(o);
        cJSON_Delete(o);
        return;
    }
    char text[3][32];
    cli_duration(text[0], 32, seconds);
    cli_bytes(text[1], 32, (double)memory);
    cli_bytes(text[2], 32, (double)(folds ? folded : disk));
    printf("passes     %lld over %lld trajectories of %lld tokens\n"
           "time       about %s at half of this machine's measured speed; less where a side turns out deterministic\n"
           "memory     %s on %s\n"
           "disk       %s in %s\n",
           (long long)passes, (long long)N, (long long)n, text[0], text[1], info->device, text[2], folder);
    if (!folded) return;
    cli_bytes(text[0], 32, (double)disk);
    cli_bytes(text[1], 32, (double)folded);
    printf("           %s with --keep-passes yes, about %s with --keep-passes no\n", text[0], text[1]);
}

void cli_report_print(const tv_args *args, const cJSON *report) {
    if (args->json) {
        cli_print_json(report);
        return;
    }
    tv_report_print(report, stdout);
    const cJSON *b = cJSON_GetObjectItemCaseSensitive(report, "baseline");
    if (!b) return;
    printf("\nBaseline           TV was %.4g; it is %+.4g away (se %.2g): %s.\n",
           number(report, "baseline", "estimate"), number(report, "baseline", "difference"),
           number(report, "baseline", "difference_se"),
           cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(b, "verdict")));
}

int cli_report_verdict(const tv_args *args, const cJSON *report) {
    if (!isfinite(args->fail_above)) return EXIT_DONE;
    double low, high, x = args->fail_above;
    interval(report, &low, &high);
    double half = (high - low) / 2, gap = fabs(number(report, "tv", "estimate") - x);
    if (!isfinite(half)) {
        tv_note("fail-above: there is no interval, so the data cannot tell; more trajectories (-N) give one");
        return EXIT_CANNOT_TELL;
    }
    if (low > x) {
        tv_note("fail-above: the interval [%.4g, %.4g] lies above %g", low, high, x);
        return EXIT_ABOVE;
    }
    if (high <= x) {
        tv_note("fail-above: the interval [%.4g, %.4g] does not lie above %g", low, high, x);
        return EXIT_DONE;
    }
    /* a half-width shrinks with the square root of N; the interval clears x when it is no more than the gap */
    if (gap > half * 1e-3)
        tv_note("fail-above: the interval [%.4g, %.4g] straddles %g, so the data cannot tell; if the estimate stays "
                "where it is, about %.1f times the trajectories (-N) would",
                low, high, x, half * half / (gap * gap));
    else
        tv_note("fail-above: the interval [%.4g, %.4g] straddles %g and the estimate lies on it: more trajectories may "
                "never tell",
                low, high, x);
    return EXIT_CANNOT_TELL;
}

tv_status cli_ids_parse(const char *text, const char *name, int32_t **out, int64_t *n, tv_err *err) {
    static const char between[] = " ,\t\r\n[]";
    int32_t *ids = tv_xmalloc((strlen(text) / 2 + 2) * sizeof *ids);
    *out = NULL;
    *n = 0;
    for (const char *c = text + strspn(text, between); *c; c += strspn(c, between)) {
        char *end;
        size_t length = strcspn(c, between);
        errno = 0;
        long long v = strtoll(c, &end, 10);
        if (errno || *c < '0' || *c > '9' || end != c + length || v > INT32_MAX) {
            free(ids);
            return TV_FAIL(err, TV_EARG, "%s: \"%.*s\" is not a token id (whole numbers from 0)", name,
                           (int)(length < 40 ? length : 40), c);
        }
        ids[(*n)++] = (int32_t)v;
        c += length;
    }
    *out = ids;
    return TV_OK;
}

double cli_seconds(const tv_machine *machine, const tv_engine_info *info, const tv_serving *serving, int64_t N,
                   int64_t n, int64_t prompt, double passes) {
    double batch = serving->batch && serving->batch < N ? serving->batch : (double)N, V = info->vocab_size,
           d = info->d_model;
    if (serving->kv_tokens)
        batch = fmax(1, fmin(batch, (double)serving->kv_tokens / ((double)prompt / (double)N + (double)n)));
    double steps = ceil((double)N / batch) * (double)n, rows = (double)(N * n) + (double)prompt;
    /* two operations a weight and row; a few dozen for each logit turned into a probability; attention over the context
     */
    double context = (double)prompt / (double)N + (double)n / 2;
    double flops = 2 * (double)info->row_parameters * rows + (2 * d + 40) * V * (double)(N * n) +
                   4 * (double)info->n_layers * info->n_heads * info->head_size * context * rows;
    double bytes = 2 * ((double)info->layer_parameters + V * d) * steps;
    double compute = flops / (1e9 * machine->gflops),
           read = machine->read_gbs > 0 ? bytes / (1e9 * machine->read_gbs) : 0;
    return 2 * passes * fmax(compute, read);
}

void cli_note_recomputed(const tv_session *session, const char *what) {
    const tv_recomputed *r = session ? tv_session_recomputed(session) : NULL;
    if (r && r->preemptions)
        tv_note("%s: %lld preemptions; %lld tokens were computed again, %lld of them with other bits than before", what,
                (long long)r->preemptions, (long long)r->tokens, (long long)r->differing);
}

void cli_duration(char *buf, size_t size, double s) {
    if (s < 60)
        snprintf(buf, size, "%.0f s", s);
    else if (s < 3600)
        snprintf(buf, size, "%d min %02d s", (int)(s / 60), (int)s % 60);
    else
        snprintf(buf, size, "%d h %02d min", (int)(s / 3600), (int)(s / 60) % 60);
}

void cli_bytes(char *buf, size_t size, double bytes) {
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (bytes >= 1000 && u < 4) bytes /= 1000, u++;
    snprintf(buf, size, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
}
