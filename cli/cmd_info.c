/* tvgpu info: the model, the devices and backends, and why what is missing is missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/common.h"

/* Each entry with "available", or with the reason why it is not. */
static void print_list(const char *title, const cJSON *list) {
    printf("%s\n", title);
    const cJSON *item;
    cJSON_ArrayForEach(item, list) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name"));
        const char *why = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "reason"));
        printf("  %-8s %s%s\n", name ? name : "?", why ? "not available: " : "available", why ? why : "");
    }
}

/* The one backend that a build without its device does not know: said to be missing rather than left out. */
static void add_cudnn(cJSON *backends) {
    const cJSON *item;
    cJSON_ArrayForEach(item, backends) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name"));
        if (name && !strcmp(name, "cudnn")) return;
    }
    cJSON *b = cJSON_CreateObject();
    cJSON_AddStringToObject(b, "name", "cudnn");
    cJSON_AddStringToObject(b, "device", "cuda");
    cJSON_AddBoolToObject(b, "available", 0);
    cJSON_AddStringToObject(b, "reason", "runs on a cuda device, which this build does not know");
    cJSON_AddItemToArray(backends, b);
}

/* What libraries choose for a prompt and decode steps of --batch sequences (1 without): they are asked by running such
 * steps. Where those cannot run, the last line says why. NULL on devices without libraries. */
static cJSON *chosen(tv_engine *engine, const tv_engine_info *info, const tv_serving *serving) {
    enum { PROMPT = 16, DRAWN = 3 };
    cJSON *list = tv_libraries_json(engine);
    if (!list) return NULL;
    cJSON_Delete(list);
    tv_serving s = *serving;
    s.eos = TV_EOS_IGNORE;
    int32_t prompt[PROMPT], offsets[2] = {0, PROMPT};
    for (int i = 0; i < PROMPT; i++) prompt[i] = i % info->vocab_size;
    const tv_job job = {
        .N = s.batch ? s.batch : 1, .n = DRAWN, .P = 1, .prompt_ids = prompt, .prompt_offsets = offsets};
    tv_session *session = NULL;
    tv_trace *trace = NULL;
    tv_err err = {0};
    tv_status status = tv_session_open(engine, &s, job.N, PROMPT + DRAWN, &session, &err);
    if (status == TV_OK) status = tv_session_sample(session, &job, 'a', NULL, &trace, &err);
    list = tv_libraries_json(engine);
    if (status != TV_OK) {
        char *why = tv_xprintf("steps of %lld sequences cannot run: %s", (long long)job.N, err.message);
        cJSON_AddItemToArray(list, cJSON_CreateString(why));
        free(why);
    }
    tv_trace_close(trace);
    tv_session_close(session);
    return list;
}

static int run(tv_args *args, tv_err *err) {
    char *dir = NULL;
    tv_engine *engine = NULL;
    if (cli_model_dir(args->n_positional ? args->positional[0] : NULL, &dir, err) != TV_OK ||
        cli_engine_open(args, &args->side[0], dir, &engine, err) != TV_OK) {
        free(dir);
        return EXIT_DONE;
    }
    tv_engine_info info;
    tv_engine_describe(engine, &info);
    cJSON *devices = tv_devices_json(), *backends = tv_backends_json(engine);
    add_cudnn(backends);
    char *plan = args->plan ? tv_plan_text(engine, &args->side[0].serving) : NULL, hash[32];
    cJSON *libraries = args->plan ? chosen(engine, &info, &args->side[0].serving) : tv_libraries_json(engine);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)info.weights_hash);
    if (args->json) {
        cJSON *o = cJSON_CreateObject(), *m = cJSON_AddObjectToObject(o, "model");
        cJSON_AddStringToObject(o, "tvgpu", TV_VERSION);
        cJSON_AddStringToObject(m, "path", info.model_dir);
        cJSON_AddStringToObject(m, "architecture", info.architecture);
        cJSON_AddNumberToObject(m, "parameters", (double)info.parameters);
        cJSON_AddStringToObject(m, "weights_hash", hash);
        cJSON_AddNumberToObject(m, "layers", info.n_layers);
        cJSON_AddNumberToObject(m, "hidden", info.d_model);
        cJSON_AddNumberToObject(m, "heads", info.n_heads);
        cJSON_AddNumberToObject(m, "kv_heads", info.n_kv_heads);
        cJSON_AddNumberToObject(m, "head_size", info.head_size);
        cJSON_AddNumberToObject(m, "vocabulary", info.vocab_size);
        cJSON_AddNumberToObject(m, "max_positions", info.max_positions);
        cJSON_AddNumberToObject(m, "experts", info.n_experts);
        cJSON_AddStringToObject(o, "device", info.device);
        cJSON_AddItemToObject(o, "devices", devices);
        cJSON_AddItemToObject(o, "backends", backends);
        if (libraries) cJSON_AddItemToObject(o, "libraries", libraries);
        devices = backends = libraries = NULL;
        if (plan) cJSON_AddStringToObject(o, "plan", plan);
        cli_print_json(o);
        cJSON_Delete(o);
    } else {
        char weights[32];
        cli_bytes(weights, sizeof weights, (double)info.weights_bytes);
        printf("tvgpu %s\n\nmodel     %s\n          %s, %.4g M parameters, %s on the device, hash %s\n", TV_VERSION,
               info.model_dir, info.architecture, (double)info.parameters * 1e-6, weights, hash);
        printf("          %d layers, hidden %d, %d query and %d key/value heads of %d, vocabulary %d, at most %d "
               "positions",
               info.n_layers, info.d_model, info.n_heads, info.n_kv_heads, info.head_size, info.vocab_size,
               info.max_positions);
        if (info.n_experts) printf(", %d experts", info.n_experts);
        printf("\ndevice    %s\n\n", info.device);
        print_list("devices", devices);
        print_list("attention backends on this device", backends);
        if (libraries) puts("libraries");
        for (const cJSON *item = libraries ? libraries->child : NULL; item; item = item->next)
            printf("  %s\n", item->valuestring);
        if (plan) printf("\n%s", plan);
    }
    free(plan);
    cJSON_Delete(devices);
    cJSON_Delete(backends);
    cJSON_Delete(libraries);
    tv_engine_close(engine);
    free(dir);
    return EXIT_DONE;
}

const tv_command tv_command_info = {
    "info",
    "model, devices, backends: what is available and, for each that is not, why",
    CMD_INFO,
    1,
    "[MODEL] [options]",
    "Opens the model and says what it is, where it would run and which attention backends exist there.\n"
    "--plan prints every summation order that the reduction plan would choose, and on a card, where a\n"
    "prompt and steps of --batch sequences are run for it, the kernels that cuBLASLt and cuDNN choose.",
    "  tvgpu info MODEL --plan --reduction fixed\n",
    run,
};
