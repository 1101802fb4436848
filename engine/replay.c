/* Teacher-forced replay: the step loop with the next token given. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/session.h"

tv_status tv_pass_from_set(const tv_session *s, const tv_trace *set, int64_t number, tv_pass *pass, tv_err *err) {
    *pass = (tv_pass){.N = set->N,
                      .n = set->n,
                      .P = set->P,
                      .prompt_ids = set->prompt_ids,
                      .prompt_offsets = set->prompt_offsets,
                      .prompt_index = set->prompt_index,
                      .trajectory = set->trajectory,
                      .given = set->tokens,
                      .given_lengths = set->lengths,
                      .seed = set->seed,
                      .pass = number};
    if (number < 0) return TV_FAIL(err, TV_EARG, "pass %lld: passes count from 0", (long long)number);
    if (!set->tokens) return TV_FAIL(err, TV_EARG, "the set has no tokens");
    return tv_pass_check(s, pass, err);
}

/* The side's configuration as traces store it; the caller frees. */
static char *config_text(const tv_session *s, const char *method) {
    cJSON *json = tv_serving_json(&s->serving, s->engine);
    if (method) cJSON_AddStringToObject(json, "method", method);
    char *text = tv_json_text(json);
    cJSON_Delete(json);
    return text;
}

tv_status tv_pass_trace(tv_session *s, tv_pass *p, char side, const char *set, const char *method, tv_trace **out,
                        tv_err *err) {
    int32_t n_prompt_ids = p->prompt_offsets[p->P];
    tv_trace *trace = NULL;
    TV_TRY(tv_trace_new(p->N, p->n, s->serving.store_k, p->P, n_prompt_ids, &trace, err));
    tv_trace_mut mut = tv_trace_writable(trace);
    memcpy(mut.prompt_ids, p->prompt_ids, (size_t)n_prompt_ids * sizeof *mut.prompt_ids);
    memcpy(mut.prompt_offsets, p->prompt_offsets, (size_t)(p->P + 1) * sizeof *mut.prompt_offsets);
    for (int64_t i = 0; i < p->N; i++) {
        mut.prompt_index[i] = p->prompt_index ? p->prompt_index[i] : 0;
        mut.trajectory[i] = p->trajectory ? p->trajectory[i] : i;
        if (!p->given) continue;
        int32_t length = p->given_lengths ? p->given_lengths[i] : (int32_t)p->n;
        mut.lengths[i] = length;
        for (int64_t t = 0; t < p->n; t++) mut.tokens[i * p->n + t] = t < length ? p->given[i * p->n + t] : -1;
    }
    p->topk_ids = mut.topk_ids;
    p->topk_logprobs = mut.topk_logprobs;
    p->token_logprobs = mut.token_logprobs;
    p->token_rank = mut.token_rank;
    char name[2] = {side, 0};
    trace->side = tv_xstrdup(name);
    trace->set = tv_xstrdup(set ? set : name);
    trace->pass = p->pass;
    trace->temperature = s->serving.temperature;
    trace->seed = p->seed;
    trace->config_json = config_text(s, method);
    *out = trace;
    return TV_OK;
}

void tv_pass_finish(const tv_session *s, tv_trace *trace) {
    tv_trace_clear_tails(trace);
    cJSON *list = tv_session_libraries(s);
    if (list) trace->libraries = tv_json_line(list);
    cJSON_Delete(list);
}

/* The replay that pass describes, as a trace. */
static tv_status run(tv_session *s, tv_pass *pass, const tv_trace *set, char side, const tv_progress *progress,
                     tv_trace **out, tv_err *err) {
    tv_trace *trace = NULL;
    TV_TRY(tv_pass_trace(s, pass, side, set->set, NULL, &trace, err));
    tv_status status = tv_pass_run(s, pass, progress, err);
    if (status != TV_OK) {
        tv_trace_close(trace);
        return status;
    }
    tv_pass_finish(s, trace);
    *out = trace;
    return TV_OK;
}

tv_status tv_session_replay(tv_session *s, const tv_trace *set, char side, int64_t number, const tv_progress *progress,
                            tv_trace **out, tv_err *err) {
    tv_pass pass;
    TV_TRY(tv_pass_from_set(s, set, number, &pass, err));
    return run(s, &pass, set, side, progress, out, err);
}

void tv_routes_free(tv_routes *routes) {
    free(routes->ids);
    *routes = (tv_routes){0};
}

tv_status tv_session_replay_routes(tv_session *s, const tv_trace *set, char side, int64_t number, int replayed,
                                   tv_routes *routes, const tv_progress *progress, tv_trace **out, tv_err *err) {
    const tv_config *c = &s->engine->model->config;
    tv_pass pass;
    TV_TRY(tv_pass_from_set(s, set, number, &pass, err));
    if (!c->n_experts) return TV_FAIL(err, TV_EARG, "the model has no experts, and so no routes");
    if (replayed && s->serving.pad_batch)
        return TV_FAIL(err, TV_EARG, "--pad-batch: padding sequences have no routes to replay; leave it out");
    const tv_routes shape = {c->n_layers, c->n_experts_used, pass.N, tv_trace_longest_prompt(set) + pass.n, NULL};
    if (replayed) {
        if (!routes->ids || routes->layers != shape.layers || routes->used != shape.used || routes->N != shape.N ||
            routes->positions != shape.positions)
            return TV_FAIL(err, TV_EARG,
                           "routes of %d layers, %d experts, %lld trajectories of %lld positions, "
                           "expected %d, %d, %lld, %lld",
                           routes->layers, routes->used, (long long)routes->N, (long long)routes->positions,
                           shape.layers, shape.used, (long long)shape.N, (long long)shape.positions);
    } else {
        size_t values = (size_t)shape.layers * (size_t)shape.N * (size_t)shape.positions * (size_t)shape.used;
        tv_routes_free(routes);
        *routes = shape;
        routes->ids = malloc(values * sizeof *routes->ids);
        if (!routes->ids)
            return TV_FAIL(err, TV_ENOMEM, "no memory for the routes of %lld trajectories", (long long)shape.N);
        for (size_t j = 0; j < values; j++) routes->ids[j] = -1;
    }
    pass.routes = routes;
    pass.replayed = replayed;
    return run(s, &pass, set, side, progress, out, err);
}
