/* Serving conditions: defaults, checks against a model, and their form in manifests. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "kernels/attention.h"

enum { MOST_UNITS = 65536 }; /* multiprocessors a plan may pretend to have */

tv_serving tv_serving_default(void) {
    return (tv_serving){
        .backend = "auto", .plan_units = 132, .top_k = 20, .store_k = 32, .temperature = 1, .eos = TV_EOS_SUPPRESS};
}

int tv_serving_deterministic(const tv_serving *s) {
    return s->order == TV_ORDER_FIXED && s->arrivals == TV_ARRIVALS_TOGETHER;
}

tv_dtype tv_kv_storage(tv_kv_dtype dtype) {
    return dtype == TV_KV_FP8 ? TV_F8_E4M3 : dtype == TV_KV_INT8 ? TV_I8 : TV_BF16;
}

tv_status tv_backend_choose(const tv_engine *e, const tv_serving *s, int max_batch, int max_keys,
                            const tv_attn_backend **out, tv_err *err) {
    const tv_config *c = &e->model->config;
    tv_attn_limits limits = {.device = e->ops->name,
                             .H = c->n_heads,
                             .G = c->n_kv_heads,
                             .HS = c->head_size,
                             .max_batch = max_batch,
                             .max_keys = max_keys,
                             .kv_dtype = tv_kv_storage(s->kv_dtype)};
    return tv_attn_choose(&limits, s->backend, out, err);
}

tv_status tv_serving_check(const tv_serving *s, const tv_engine *e, tv_err *err) {
    const tv_config *c = &e->model->config;
    int V = c->vocab_size;
    if (s->batch < 0)
        return TV_FAIL(err, TV_EARG, "--batch %d: must be 1 or more, or 0 for all trajectories", s->batch);
    if (s->pad_batch != 0 && s->pad_batch != 1)
        return TV_FAIL(err, TV_EARG, "--pad-batch %d: must be 0 or 1", s->pad_batch);
    if (s->order != TV_ORDER_FIXED && s->order != TV_ORDER_SHUFFLED)
        return TV_FAIL(err, TV_EARG, "--order %d: must be fixed or shuffled", (int)s->order);
    if (s->arrivals != TV_ARRIVALS_TOGETHER && s->arrivals != TV_ARRIVALS_STAGGERED)
        return TV_FAIL(err, TV_EARG, "--arrivals %d: must be together or staggered", (int)s->arrivals);
    if (s->eos != TV_EOS_STOP && s->eos != TV_EOS_IGNORE && s->eos != TV_EOS_SUPPRESS)
        return TV_FAIL(err, TV_EARG, "end-of-sequence mode %d: must be stop, ignore or suppress", (int)s->eos);
    if (s->plan_units < 1 || s->plan_units > MOST_UNITS)
        return TV_FAIL(err, TV_EARG, "--plan-units %d: must be in 1 .. %d", s->plan_units, MOST_UNITS);
    if (s->prefill_chunk < 0)
        return TV_FAIL(err, TV_EARG, "--prefill-chunk %d: must be 1 or more, or 0 for whole prompts", s->prefill_chunk);
    if (s->prefill != TV_PREFILL_MIXED && s->prefill != TV_PREFILL_ALONE)
        return TV_FAIL(err, TV_EARG, "--prefill %d: must be mixed or alone", (int)s->prefill);
    if (s->kv_dtype != TV_KV_BF16 && s->kv_dtype != TV_KV_FP8 && s->kv_dtype != TV_KV_INT8)
        return TV_FAIL(err, TV_EARG, "--kv-dtype %d: must be bf16, fp8 or int8", (int)s->kv_dtype);
    if (s->kv_tokens < 0)
        return TV_FAIL(err, TV_EARG, "--kv-tokens %lld: must be 1 or more, or 0 for no limit", (long long)s->kv_tokens);
    if (s->admission != TV_ADMISSION_RESERVE && s->admission != TV_ADMISSION_GROW)
        return TV_FAIL(err, TV_EARG, "--admission %d: must be reserve or grow", (int)s->admission);
    if (s->top_k < 1 || s->top_k > TV_MAX_STORE_K || s->top_k > V)
        return TV_FAIL(err, TV_EARG, "--top-k %d: must be in 1 .. %d (records hold at most %d, the vocabulary has %d)",
                       s->top_k, V < TV_MAX_STORE_K ? V : TV_MAX_STORE_K, TV_MAX_STORE_K, V);
    if (s->store_k < 1 || s->store_k > TV_MAX_STORE_K || s->store_k > V)
        return TV_FAIL(err, TV_EARG,
                       "--store-k %d: must be in 1 .. %d (records hold at most %d, the vocabulary has %d)", s->store_k,
                       V < TV_MAX_STORE_K ? V : TV_MAX_STORE_K, TV_MAX_STORE_K, V);
    if (s->store_k < s->top_k)
        return TV_FAIL(err, TV_EARG, "--store-k %d is below --top-k %d: a drawn token could be missing from its record",
                       s->store_k, s->top_k);
    if (!(s->temperature >= 0 && s->temperature <= 1e30))
        return TV_FAIL(err, TV_EARG, "--temperature %g: must be a number in 0 .. 1e30", s->temperature);
    if (s->eos == TV_EOS_SUPPRESS) {
        int32_t ids[TV_MAX_EOS];
        if (tv_suppressed_ids(e, s, ids) >= V)
            return TV_FAIL(err, TV_EARG, "--suppress-eos: the model's %d end-of-sequence ids are its whole vocabulary",
                           c->n_eos);
    }
    if (!memchr(s->backend, 0, sizeof s->backend)) return TV_FAIL(err, TV_EARG, "--backend: the name is too long");
    const tv_attn_backend *backend = NULL;
    return tv_backend_choose(e, s, s->batch ? s->batch : 1, c->max_positions, &backend, err);
}

tv_status tv_declared_check(const tv_serving *s, int64_t declared, tv_err *err) {
    if (!s->kv_tokens || declared <= s->kv_tokens) return TV_OK;
    return TV_FAIL(
        err, TV_EARG,
        "--kv-tokens %lld: one sequence alone declares %lld (prompt and -n): give at least that many, or 0 for "
        "no limit",
        (long long)s->kv_tokens, (long long)declared);
}

int tv_suppressed_ids(const tv_engine *e, const tv_serving *s, int32_t *ids) {
    const tv_config *c = &e->model->config;
    int n = 0;
    for (int i = 0; s->eos == TV_EOS_SUPPRESS && i < c->n_eos; i++) {
        int seen = c->eos[i] < 0 || c->eos[i] >= c->vocab_size; /* an id without a logit needs no suppression */
        for (int j = 0; j < n; j++) seen |= ids[j] == c->eos[i];
        if (!seen) ids[n++] = c->eos[i];
    }
    return n;
}

cJSON *tv_serving_json(const tv_serving *s, const tv_engine *e) {
    static const char *const eos[] = {
        [TV_EOS_STOP] = "stop", [TV_EOS_IGNORE] = "ignore", [TV_EOS_SUPPRESS] = "suppress"};
    static const char *const kv[] = {[TV_KV_BF16] = "bf16", [TV_KV_FP8] = "fp8", [TV_KV_INT8] = "int8"};
    const tv_attn_backend *backend = NULL;
    tv_status found = tv_backend_choose(e, s, s->batch ? s->batch : 1, e->model->config.max_positions, &backend, NULL);
    char text[32];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "architecture", e->model->config.architecture);
    snprintf(text, sizeof text, "%016" PRIx64, e->model->hash);
    cJSON_AddStringToObject(o, "weights_hash", text);
    /* what config.json decides beside the weights: a changed value gives fluent text and another distribution */
    cJSON_AddNumberToObject(o, "rope_theta", e->model->config.rope_theta);
    if (e->model->config.rope_yarn) cJSON_AddNumberToObject(o, "yarn_factor", e->model->config.yarn_factor);
    snprintf(text, sizeof text, "%.7g", e->model->config.rms_eps); /* 1e-6, not the float nearest to it */
    cJSON_AddNumberToObject(o, "rms_norm_eps", strtod(text, NULL));
    cJSON_AddStringToObject(o, "device", e->ops->name);
    if (e->ops->numerics) cJSON_AddStringToObject(o, "numerics", e->ops->numerics(e->dev));
    cJSON_AddStringToObject(o, "backend", found == TV_OK ? backend->name : s->backend);
    cJSON_AddNumberToObject(o, "batch", s->batch);
    cJSON_AddBoolToObject(o, "pad_batch", s->pad_batch);
    cJSON_AddStringToObject(o, "order", s->order == TV_ORDER_SHUFFLED ? "shuffled" : "fixed");
    cJSON_AddStringToObject(o, "arrivals", s->arrivals == TV_ARRIVALS_STAGGERED ? "staggered" : "together");
    cJSON_AddStringToObject(o, "reduction", s->reduction_fixed ? "fixed" : "serving");
    cJSON_AddNumberToObject(o, "plan_units", s->plan_units);
    cJSON_AddStringToObject(o, "logits", s->logits_f32 ? "f32" : "bf16");
    cJSON_AddNumberToObject(o, "prefill_chunk", s->prefill_chunk);
    cJSON_AddStringToObject(o, "prefill", s->prefill == TV_PREFILL_ALONE ? "alone" : "mixed");
    cJSON_AddStringToObject(o, "kv_dtype", kv[s->kv_dtype]);
    cJSON_AddStringToObject(o, "weight_dtype", tv_weight_dtype_name(e->model->weight_dtype));
    cJSON_AddNumberToObject(o, "kv_tokens", (double)s->kv_tokens);
    cJSON_AddStringToObject(o, "admission", s->admission == TV_ADMISSION_GROW ? "grow" : "reserve");
    cJSON_AddNumberToObject(o, "top_k", s->top_k);
    cJSON_AddNumberToObject(o, "store_k", s->store_k);
    cJSON_AddNumberToObject(o, "temperature", s->temperature);
    cJSON_AddStringToObject(o, "eos", eos[s->eos]);
    if (s->pass_seed <= (UINT64_C(1) << 53)) {
        cJSON_AddNumberToObject(o, "pass_seed", (double)s->pass_seed);
    } else { /* beyond what a JSON number holds exactly */
        snprintf(text, sizeof text, "%" PRIu64, s->pass_seed);
        cJSON_AddStringToObject(o, "pass_seed", text);
    }
    return o;
}
