/* The devices of this build, and a model opened on one of them. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/attention.h"

/* Every device that the program knows of, in order of preference. */
typedef struct {
    const char *name;
    const tv_ops *ops; /* NULL: not in this build */
} device;

static const device devices[] = {
#ifdef TV_CUDA
    {"cuda", &tv_ops_cuda},
#else
    {"cuda", NULL},
#endif
    {"cpu", &tv_ops_cpu},
};
enum { N_DEVICES = sizeof devices / sizeof *devices };

/* 1 when the device is usable here; else 0 with the reason in why. */
static int device_available(const device *d, char *why, size_t size) {
    if (!d->ops) snprintf(why, size, "not built in: nvcc was not found when tvgpu was built");
    return d->ops && (!d->ops->available || d->ops->available(why, size));
}

static tv_status device_choose(const char *name, const tv_ops **out, tv_err *err) {
    int automatic = !name || !strcmp(name, "auto");
    char why[256], reason[256] = "no such device";
    for (int i = 0; i < N_DEVICES; i++) {
        if (!automatic && strcmp(name, devices[i].name)) continue;
        if (device_available(&devices[i], why, sizeof why)) {
            *out = devices[i].ops;
            return TV_OK;
        }
        snprintf(reason, sizeof reason, "%s", why);
    }
    char list[512] = "";
    for (int i = 0; i < N_DEVICES; i++) {
        if (!strcmp(devices[i].name, name)) continue;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s: %s", used ? "; " : "", devices[i].name,
                 device_available(&devices[i], why, sizeof why) ? "available" : why);
    }
    return TV_FAIL(err, TV_EARG, "--device %s: %s (%s)", name, reason, list);
}

tv_status tv_engine_open(const tv_engine_options *o, tv_engine **out, tv_err *err) {
    if (!o->model) return TV_FAIL(err, TV_EARG, "no model given");
    const tv_ops *ops = NULL;
    TV_TRY(device_choose(o->device, &ops, err));
    char *dir = NULL;
    TV_TRY(tv_model_dir_resolve(o->model, &dir, err));
    tv_engine *e = tv_xcalloc(1, sizeof *e);
    e->ops = ops;
    e->dir = dir;
    e->graphs = !o->no_graphs;
    e->in_flight = ops->event_open ? 16 : 1;
    tv_dev_options dev = {.threads = o->threads, .isa = o->isa ? o->isa : "auto", .gpu = o->gpu};
    tv_status s = ops->open(&dev, &e->dev, err);
    if (s == TV_OK) s = tv_model_load(dir, ops, e->dev, o->weight_dtype, o->progress, &e->model, err);
    if (s != TV_OK) {
        tv_engine_close(e);
        return s;
    }
    *out = e;
    return TV_OK;
}

void tv_engine_close(tv_engine *e) {
    if (!e) return;
    if (e->model) tv_model_free(e->model);
    if (e->dev) e->ops->close(e->dev);
    free(e->dir);
    free(e);
}

static uint64_t matrix_parameters(const tv_matrix *m) {
    return (uint64_t)m->N * (uint64_t)m->K + (m->bias ? (uint64_t)m->N : 0);
}

/* Counts the parameters: all of them, the layers' matrices, and of those the ones that one row meets. */
static void count_parameters(const tv_model *m, tv_engine_info *info) {
    const tv_config *c = &m->config;
    uint64_t D = (uint64_t)c->d_model, norms = D;
    info->layer_parameters = info->row_parameters = 0;
    for (int l = 0; l < c->n_layers; l++) {
        const tv_layer *y = &m->layers[l];
        uint64_t shared = matrix_parameters(&y->qkv) + matrix_parameters(&y->o), experts = 0;
        norms += 2 * D + (y->q_norm ? 2 * (uint64_t)c->head_size : 0);
        if (c->layer_sparse && c->layer_sparse[l]) {
            shared += matrix_parameters(&y->router);
            for (int x = 0; x < c->n_experts; x++)
                experts += matrix_parameters(&y->expert_gate_up[x]) + matrix_parameters(&y->expert_down[x]);
            info->row_parameters += experts / (uint64_t)c->n_experts * (uint64_t)c->n_experts_used;
        } else {
            shared += matrix_parameters(&y->gate_up) + matrix_parameters(&y->down);
        }
        info->row_parameters += shared;
        info->layer_parameters += shared + experts;
    }
    info->parameters = (uint64_t)c->vocab_size * D * (c->tie_embeddings ? 1 : 2) + norms + info->layer_parameters;
}

void tv_engine_describe(const tv_engine *e, tv_engine_info *info) {
    const tv_config *c = &e->model->config;
    *info = (tv_engine_info){.weights_hash = e->model->hash,
                             .weights_bytes = e->model->bytes,
                             .n_layers = c->n_layers,
                             .d_model = c->d_model,
                             .n_heads = c->n_heads,
                             .n_kv_heads = c->n_kv_heads,
                             .head_size = c->head_size,
                             .vocab_size = c->vocab_size,
                             .max_positions = c->max_positions,
                             .n_experts = c->n_experts};
    count_parameters(e->model, info);
    snprintf(info->model_dir, sizeof info->model_dir, "%s", e->dir);
    snprintf(info->architecture, sizeof info->architecture, "%s", c->architecture);
    snprintf(info->device, sizeof info->device, "%s", e->ops->describe(e->dev));
    for (int i = 0; i < c->n_eos && info->n_eos < 16; i++) info->eos[info->n_eos++] = c->eos[i];
}

static void add_state(cJSON *object, const char *why) {
    cJSON_AddBoolToObject(object, "available", why == NULL);
    if (why) cJSON_AddStringToObject(object, "reason", why);
}

cJSON *tv_devices_json(void) {
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < N_DEVICES; i++) {
        cJSON *d = cJSON_CreateObject();
        char why[256];
        cJSON_AddStringToObject(d, "name", devices[i].name);
        add_state(d, device_available(&devices[i], why, sizeof why) ? NULL : why);
        cJSON_AddItemToArray(list, d);
    }
    return list;
}

cJSON *tv_backends_json(const tv_engine *e) {
    const tv_config *c = &e->model->config;
    tv_attn_limits limits = {.device = e->ops->name,
                             .H = c->n_heads,
                             .G = c->n_kv_heads,
                             .HS = c->head_size,
                             .max_batch = 1,
                             .max_keys = c->max_positions};
    int n = 0;
    const tv_attn_backend *const *backends = tv_attn_backends(&n);
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < n; i++) {
        const char *why = NULL;
        int here = !strcmp(backends[i]->device, limits.device), both = here;
        for (int j = 0; j < n; j++)
            both |= !strcmp(backends[j]->device, limits.device) && !strcmp(backends[j]->name, backends[i]->name);
        if (!here && both) continue; /* the one of this device says it all */
        cJSON *b = cJSON_CreateObject();
        cJSON_AddStringToObject(b, "name", backends[i]->name);
        cJSON_AddStringToObject(b, "device", backends[i]->device);
        if (!here)
            why = "runs on another device";
        else if (!tv_attn_supports(backends[i], &limits, &why) && !why)
            why = "cannot run this model's shapes";
        add_state(b, why);
        cJSON_AddItemToArray(list, b);
    }
    return list;
}

cJSON *tv_libraries_of(const tv_engine *e, const tv_session *session) {
    if (!e->ops->libraries) return NULL;
    char *text = e->ops->libraries(e->dev, session);
    cJSON *list = cJSON_CreateArray();
    for (char *at = text, *end; (end = strchr(at, '\n')); at = end + 1) {
        *end = 0;
        cJSON_AddItemToArray(list, cJSON_CreateString(at));
    }
    free(text);
    return list;
}

cJSON *tv_libraries_json(const tv_engine *e) { return tv_libraries_of(e, NULL); }

char *tv_plan_text(const tv_engine *e, const tv_serving *serving) {
    enum { SIZE = 1 << 16 };
    const tv_config *c = &e->model->config;
    tv_plan plan = {.reduction = serving->reduction_fixed ? TV_REDUCE_FIXED : TV_REDUCE_SERVING,
                    .units = serving->plan_units};
    char *text = tv_xcalloc(1, SIZE);
    tv_plan_describe(&plan, c->d_model, c->n_heads, c->n_kv_heads, c->head_size, c->d_ff, c->vocab_size, text, SIZE);
    return text;
}
