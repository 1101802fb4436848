/* Routes of expert models: handed out by a replay, and replayed in place of the router's choice. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/session_fixture.h"
#include "tests/tiny_checkpoint.h"

/* An engine on a random expert model of two layers in the test's folder. */
static tv_engine *expert_engine(void) {
    tiny_options options = tiny_options_default(TV_QWEN3_MOE);
    options.n_experts = 8, options.n_experts_used = 3;
    tiny_checkpoint *c = tiny_new(&options);
    char *dir = tv_xprintf("%s/moe", tv_test_dir());
    tiny_write(c, dir);
    tiny_free(c);
    tv_err err = {0};
    tv_engine *e = NULL;
    CHECK_OK(tv_engine_open(&(tv_engine_options){.model = dir, .device = "cpu", .threads = 2}, &e, &err), &err);
    free(dir);
    return e;
}

/* Ids of the small vocabulary. */
static tv_job expert_job(void) {
    static int32_t ids[22];
    for (int i = 0; i < 22; i++) ids[i] = prompt_ids[i] % 120;
    tv_job job = mixed_job(7);
    job.prompt_ids = ids;
    return job;
}

static tv_trace *routed(tv_session *s, const tv_trace *set, int64_t pass, int replayed, tv_routes *routes) {
    tv_err err = {0};
    tv_trace *t = NULL;
    if (s && set) CHECK_OK(tv_session_replay_routes(s, set, 'a', pass, replayed, routes, NULL, &t, &err), &err);
    return t;
}

/* Handing out routes changes nothing, and a pass on its own routes has its own bits: on both plans, in small batches
 * whose composition is drawn, with prompts in chunks, and where a small cache preempts (what is computed again there is
 * routed like the first time under the fixed plan). */
static void own_routes_change_nothing(void) {
    tv_engine *e = expert_engine();
    tv_job job = expert_job();
    for (int variant = 0; e && variant < 8; variant++) {
        tv_serving v = tv_serving_default();
        v.reduction_fixed = variant & 1;
        if (variant >= 2) v.batch = 4, v.order = TV_ORDER_SHUFFLED, v.arrivals = TV_ARRIVALS_STAGGERED;
        if (variant >= 4) v.prefill_chunk = 3;
        if (variant >= 6) v.reduction_fixed = 1, v.kv_tokens = 90, v.admission = TV_ADMISSION_GROW;
        tv_session *s = session_open(e, &v);
        tv_trace *set = sample_in(s, &job), *plain = NULL;
        tv_routes routes = {0};
        tv_err err = {0};
        if (s && set) CHECK_OK(tv_session_replay(s, set, 'a', 1, NULL, &plain, &err), &err);
        tv_trace *kept = routed(s, set, 1, 0, &routes), *again = routed(s, set, 1, 1, &routes);
        if (!(CHECK(same(kept, plain)) & CHECK(same(again, plain)))) fprintf(stderr, "    variant %d\n", variant);
        int64_t cells = 0, faults = 0, used = routes.used;
        for (int64_t at = 0; routes.ids && at < routes.layers * routes.N * routes.positions; at++) {
            const int32_t *id = routes.ids + at * used;
            cells += id[0] >= 0;
            for (int i = 0; id[0] >= 0 && i < used; i++)
                for (int j = 0; j < i; j++) faults += id[i] == id[j] || id[i] < 0 || id[i] >= 8;
        }
        int64_t fed = 0; /* rows: the prompt and all tokens but the last */
        for (int i = 0; i < N; i++)
            fed += prompt_offsets[prompt_index[i] + 1] - prompt_offsets[prompt_index[i]] + LENGTH - 1;
        CHECK_INT(cells, routes.layers * fed);
        CHECK_INT(faults, 0);
        tv_trace_close(plain), tv_trace_close(kept), tv_trace_close(again), tv_trace_close(set);
        tv_routes_free(&routes);
        tv_session_close(s);
    }
    tv_engine_close(e);
}

/* Another side's routes are really taken: other experts than its own come out in other bits; and the weights stay those
 * of the router, so that the experts in another order are the same mixture but for rounding. */
static void other_routes_are_taken(void) {
    tv_engine *e = expert_engine();
    tv_job job = expert_job();
    tv_serving v = tv_serving_default();
    tv_session *s = e ? session_open(e, &v) : NULL;
    tv_trace *set = sample_in(s, &job);
    tv_routes routes = {0};
    tv_trace *own = routed(s, set, 0, 0, &routes);
    if (own && routes.used == 3) {
        size_t rows = (size_t)routes.layers * (size_t)routes.N * (size_t)routes.positions;
        for (size_t at = 0; at < rows; at++) {
            int32_t *id = routes.ids + at * 3, first = id[0];
            id[0] = id[2], id[2] = first;
        }
        tv_trace *turned = routed(s, set, 0, 1, &routes);
        double near = 0, far = 0;
        for (size_t at = 0; at < rows; at++) /* the least likely of the three becomes one that was not chosen */
            for (int32_t *id = routes.ids + at * 3, other = 0; id[0] >= 0; other++)
                if (other != id[0] && other != id[1] && other != id[2]) {
                    id[0] = other;
                    break;
                }
        tv_trace *moved = routed(s, set, 0, 1, &routes);
        for (int i = 0; turned && moved && i < N * LENGTH; i++) {
            near += fabs(turned->token_logprobs[i] - own->token_logprobs[i]) / (N * LENGTH);
            far += fabs(moved->token_logprobs[i] - own->token_logprobs[i]) / (N * LENGTH);
        }
        printf("     log-probabilities move by %.4f with the experts turned round, %.4f with one exchanged\n", near,
               far);
        CHECK(far > 0 && near < far / 4);
        tv_trace_close(turned), tv_trace_close(moved);
    }
    tv_trace_close(own), tv_trace_close(set);
    tv_routes_free(&routes);
    tv_session_close(s);
    tv_engine_close(e);
}

/* What has no routes, and routes of another shape, are refused by name. */
static void refused(void) {
    tv_engine *e = engine_open(1), *experts = expert_engine();
    tv_serving v = tv_serving_default();
    tv_routes routes = {0};
    tv_trace *t = NULL;
    tv_err err = {0};
    tv_job job = mixed_job(1), few = expert_job();
    tv_session *dense = session_open(e, &v), *s = session_open(experts, &v);
    tv_trace *set = sample_in(dense, &job), *own = sample_in(s, &few);
    if (set && own) {
        CHECK_FAILS(tv_session_replay_routes(dense, set, 'a', 0, 0, &routes, NULL, &t, &err), TV_EARG, &err,
                    "the model has no experts");
        CHECK_FAILS(tv_session_replay_routes(s, own, 'a', 0, 1, &routes, NULL, &t, &err), TV_EARG, &err,
                    "expected 2, 3, 10");
        v.pad_batch = 1;
        tv_session *padded = session_open(experts, &v);
        if (padded)
            CHECK_FAILS(tv_session_replay_routes(padded, own, 'a', 0, 1, &routes, NULL, &t, &err), TV_EARG, &err,
                        "--pad-batch");
        tv_session_close(padded);
    }
    tv_trace_close(set), tv_trace_close(own);
    tv_session_close(dense), tv_session_close(s);
    tv_engine_close(e), tv_engine_close(experts);
}

static const tv_test tests[] = {{"own_routes_change_nothing", own_routes_change_nothing},
                                {"other_routes_are_taken", other_routes_are_taken},
                                {"refused", refused}};
TV_TEST_MAIN(tests)
