/* tvgpu info: the model, the devices and backends, and why what is missing is missing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        devices = backends = NULL;
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
        if (plan) printf("\n%s", plan);
    }
    free(plan);
    cJSON_Delete(devices);
    cJSON_Delete(backends);
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
    "--plan prints every summation order that the reduction plan would choose.",
    "  tvgpu info MODEL --plan --reduction fixed\n",
    run,
};
