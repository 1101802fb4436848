/* What the engine refuses, before it computes or allocates: each message names the option or the place, the value and
 * the way out. And what it finds out while computing: logits that are no numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/session.h"
#include "tests/check.h"

static tv_engine *engine; /* the bundled model, opened once, kept to the end */

static tv_engine *bundled(void) {
    tv_err err = {0};
    if (!engine)
        CHECK_OK(tv_engine_open(&(tv_engine_options){.model = tv_bundled_model(), .device = "cpu", .threads = 1},
                                &engine, &err),
                 &err);
    return engine;
}

static tv_status open_named(const char *model, const char *device, tv_err *err) {
    tv_engine *e = NULL;
    tv_status s = tv_engine_open(&(tv_engine_options){.model = model, .device = device, .threads = 1}, &e, err);
    tv_engine_close(e);
    return s;
}

static void test_devices(void) {
    tv_err err = {0};
    CHECK_FAILS(open_named(tv_bundled_model(), "tpu", &err), TV_EARG, &err, "cpu: available");
    CHECK_FAILS(open_named(tv_bundled_model(), "", &err), TV_EARG, &err, "--device");
    CHECK_FAILS(open_named(NULL, "cpu", &err), TV_EARG, &err, "no model");
    cJSON *devices = tv_devices_json(), *d;
    cJSON_ArrayForEach(d, devices) {
        if (cJSON_IsTrue(cJSON_GetObjectItem(d, "available"))) continue;
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(d, "name"));
        CHECK_FAILS(open_named(tv_bundled_model(), name, &err), TV_EARG, &err,
                    cJSON_GetStringValue(cJSON_GetObjectItem(d, "reason")));
    }
    cJSON_Delete(devices);
    tv_engine *e = NULL;
    CHECK(tv_engine_open(&(tv_engine_options){.model = "/no/such/folder", .device = "cpu"}, &e, &err) != TV_OK);
    CHECK(strstr(err.message, "/no/such/folder") != NULL);
    tv_err_clear(&err);
    CHECK(tv_engine_open(&(tv_engine_options){.model = tv_test_dir(), .device = "auto"}, &e, &err) != TV_OK);
    CHECK(err.message[0]);
}

static tv_status check(tv_serving s, tv_err *err) { return tv_serving_check(&s, bundled(), err); }
#define WITH(...)                                                                                                      \
    ({                                                                                                                 \
        tv_serving s_ = tv_serving_default();                                                                          \
        s_.__VA_ARGS__;                                                                                                \
        s_;                                                                                                            \
    })

static void test_serving_ranges(void) {
    if (!bundled()) return;
    tv_err err = {0};
    CHECK_OK(check(tv_serving_default(), &err), &err);
    CHECK_FAILS(check(WITH(batch = -1), &err), TV_EARG, &err, "--batch -1");
    CHECK_FAILS(check(WITH(pad_batch = 2), &err), TV_EARG, &err, "--pad-batch");
    CHECK_FAILS(check(WITH(order = (tv_order)9), &err), TV_EARG, &err, "--order");
    CHECK_FAILS(check(WITH(arrivals = (tv_arrivals)-1), &err), TV_EARG, &err, "--arrivals");
    CHECK_FAILS(check(WITH(eos = (tv_eos_mode)7), &err), TV_EARG, &err, "end-of-sequence");
    CHECK_FAILS(check(WITH(plan_units = 0), &err), TV_EARG, &err, "--plan-units 0");
    CHECK_FAILS(check(WITH(prefill_chunk = -5), &err), TV_EARG, &err, "--prefill-chunk -5");
    CHECK_FAILS(check(WITH(prefill = (tv_prefill_steps)2), &err), TV_EARG, &err, "--prefill 2");
    CHECK_FAILS(check(WITH(kv_dtype = (tv_kv_dtype)3), &err), TV_EARG, &err, "--kv-dtype 3");
    CHECK_FAILS(check(WITH(kv_tokens = -1), &err), TV_EARG, &err, "--kv-tokens -1");
    CHECK_FAILS(check(WITH(admission = (tv_admission)2), &err), TV_EARG, &err, "--admission 2");
    CHECK_FAILS(check(WITH(top_k = 0), &err), TV_EARG, &err, "--top-k 0");
    CHECK_FAILS(check(WITH(top_k = 129), &err), TV_EARG, &err, "--top-k 129");
    CHECK_FAILS(check(WITH(store_k = 0), &err), TV_EARG, &err, "--store-k 0");
    CHECK_FAILS(check(WITH(store_k = 129), &err), TV_EARG, &err, "--store-k 129");
    CHECK_FAILS(check(WITH(store_k = 19), &err), TV_EARG, &err, "--store-k 19 is below --top-k 20");
    CHECK_OK(check(WITH(store_k = 128), &err), &err);
    static const double temperatures[] = {-1, -1e-9, NAN, INFINITY, -INFINITY, 1e300}; /* cases M01 */
    for (size_t i = 0; i < sizeof temperatures / sizeof *temperatures; i++)
        CHECK_FAILS(check(WITH(temperature = temperatures[i]), &err), TV_EARG, &err, "--temperature");
    CHECK_OK(check(WITH(temperature = 0), &err), &err);
    CHECK_OK(check(WITH(temperature = 1e-45), &err), &err);
    tv_serving s = tv_serving_default();
    snprintf(s.backend, sizeof s.backend, "warp");
    CHECK_FAILS(check(s, &err), TV_EARG, &err, "flash");
    memset(s.backend, 'x', sizeof s.backend);
    CHECK_FAILS(check(s, &err), TV_EARG, &err, "too long");

    /* vocabularies smaller than the records, or made of end ids alone */
    tv_config *c = &bundled()->model->config, whole = *c;
    c->vocab_size = 24;
    CHECK_FAILS(check(tv_serving_default(), &err), TV_EARG, &err, "--store-k 32: must be in 1 .. 24");
    c->vocab_size = 2, c->n_eos = 3, c->eos[0] = 1, c->eos[1] = 0, c->eos[2] = 9;
    s = tv_serving_default();
    s.top_k = s.store_k = 1;
    CHECK_FAILS(check(s, &err), TV_EARG, &err, "whole vocabulary");
    s.eos = TV_EOS_STOP;
    CHECK_OK(check(s, &err), &err);
    *c = whole;
}

static tv_status open_session(const tv_serving *serving, int64_t N, int64_t positions, tv_err *err) {
    tv_session *s = NULL;
    tv_status status = tv_session_open(bundled(), serving, N, positions, &s, err);
    tv_session_close(s);
    return status;
}

/* A cache that does not fit says how much is needed, how much there is and what would fit; that then does. */
static void test_memory(void) {
    if (!bundled()) return;
    tv_err err = {0};
    tv_serving serving = tv_serving_default();
    CHECK_FAILS(open_session(&serving, 0, 100, &err), TV_EARG, &err, "-N 0");
    CHECK_FAILS(open_session(&serving, 1, 0, &err), TV_EARG, &err, "at least one");
    CHECK_FAILS(open_session(&serving, 1, 4097, &err), TV_EARG, &err, "the model ends at 4096");
    serving.kv_tokens = 99; /* one sequence must fit, or it would never run */
    CHECK_FAILS(open_session(&serving, 4, 100, &err), TV_EARG, &err, "--kv-tokens 99: one sequence alone declares 100");
    serving.kv_tokens = 100;
    CHECK_OK(open_session(&serving, 4, 100, &err), &err);
    serving.kv_tokens = 0;
    CHECK_FAILS(open_session(&serving, 1000000, 4096, &err), TV_ENOMEM, &err, "GiB");
    CHECK_FAILS(open_session(&serving, INT64_MAX / 2, 4096, &err), TV_ENOMEM, &err, "--batch ");
    tv_status status = open_session(&serving, 1000000, 4096, &err);
    CHECK_INT(status, TV_ENOMEM);
    const char *cure = strstr(err.message, "--batch ");
    if (CHECK(cure != NULL)) {
        serving.batch = atoi(cure + 8);
        uint64_t room = bundled()->ops->memory_total(bundled()->dev) - bundled()->model->bytes;
        CHECK(serving.batch > 0);
        CHECK(tv_session_bytes(bundled(), &serving, 1000000, 4096) <= room);
        serving.batch++;
        CHECK(tv_session_bytes(bundled(), &serving, 1000000, 4096) > room);
    }
}

static const int32_t ids[] = {1, 2, 3, 4, 5};

/* Ids, prompts and lengths of a job, by index and value. */
static void test_jobs(void) {
    if (!bundled()) return;
    tv_err err = {0};
    tv_serving serving = tv_serving_default();
    tv_session *s = NULL;
    if (!CHECK_OK(tv_session_open(bundled(), &serving, 4, 16, &s, &err), &err)) return;
    int32_t offsets[] = {0, 2, 5}, index[] = {0, 1, 1, 0};
    tv_job good = {.N = 4, .n = 6, .P = 2, .prompt_ids = ids, .prompt_offsets = offsets, .prompt_index = index};
    tv_trace *t = NULL;
    if (!CHECK_OK(tv_session_sample(s, &good, 'a', NULL, &t, &err), &err)) goto done;

    static const int32_t bad_ids[] = {-1, 4096, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        int32_t copy[5] = {1, 2, 3, bad_ids[i], 5};
        char text[64];
        snprintf(text, sizeof text, "prompt 1, token 1: id %d", bad_ids[i]);
        tv_job job = good;
        job.prompt_ids = copy;
        tv_trace *none = NULL;
        CHECK_FAILS(tv_session_sample(s, &job, 'a', NULL, &none, &err), TV_EARG, &err, text);
        CHECK(!none);
        CHECK_FAILS(tv_session_generate(s, copy, 5, 2, 0, NULL, NULL, &err), TV_EARG, &err, "token 3");
        float logits;
        snprintf(text, sizeof text, "row 0, position 3: id %d", bad_ids[i]);
        CHECK_FAILS(tv_session_logits(s, copy, 1, 5, 0, &logits, NULL, &err), TV_EARG, &err, text);

        tv_trace set = *t; /* a set with a foreign token */
        int32_t *tokens = malloc(24 * sizeof *tokens);
        memcpy(tokens, t->tokens, 24 * sizeof *tokens);
        tokens[2 * 6 + 5] = bad_ids[i];
        set.tokens = tokens;
        snprintf(text, sizeof text, "trajectory 2, position 5: id %d", bad_ids[i]);
        CHECK_FAILS(tv_session_replay(s, &set, 'a', 0, NULL, &none, &err), TV_EARG, &err, text);
        CHECK_FAILS(tv_session_score_prefill(s, &set, 'a', 0, NULL, &none, &err), TV_EARG, &err, text);
        free(tokens);
    }
    struct {
        tv_job job;
        const char *part;
    } jobs[] = {
        {good, "at least one"},
        {good, "at least one"},
        {good, "no prompt"},
        {good, "opened for 4"},
        {good, "ends at position 17, beyond the 16"},
    };
    jobs[0].job.N = 0, jobs[1].job.n = 0, jobs[2].job.P = 0, jobs[3].job.N = 5, jobs[4].job.n = 14;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        CHECK_FAILS(tv_session_sample(s, &jobs[i].job, 'a', NULL, &t, &err), TV_EARG, &err, jobs[i].part);
    int32_t empty[] = {0, 2, 2}, backwards[] = {0, 3, 2}, late[] = {1, 2, 5}, far[] = {0, 1, 2, 0},
            negative[] = {0, 1, -1, 0};
    tv_job job = good;
    job.prompt_offsets = empty;
    CHECK_FAILS(tv_session_sample(s, &job, 'a', NULL, &t, &err), TV_EARG, &err, "prompt 1 has 0 tokens");
    job.prompt_offsets = backwards;
    CHECK_FAILS(tv_session_sample(s, &job, 'a', NULL, &t, &err), TV_EARG, &err, "prompt 1");
    job.prompt_offsets = late;
    CHECK_FAILS(tv_session_sample(s, &job, 'a', NULL, &t, &err), TV_EARG, &err, "begin with 1");
    job.prompt_offsets = offsets, job.prompt_index = far;
    CHECK_FAILS(tv_session_sample(s, &job, 'a', NULL, &t, &err), TV_EARG, &err, "trajectory 2 follows prompt 2");
    job.prompt_index = negative;
    CHECK_FAILS(tv_session_sample(s, &job, 'a', NULL, &t, &err), TV_EARG, &err, "trajectory 2 follows prompt -1");

    tv_trace *none = NULL, set = *t;
    CHECK_FAILS(tv_session_replay(s, t, 'a', -1, NULL, &none, &err), TV_EARG, &err, "pass -1");
    /* short trajectories fit behind a prompt whose padding sequences would not */
    int32_t three[] = {3, 3, 3, 3};
    tv_serving padded = serving;
    padded.pad_batch = 1, padded.batch = 5;
    tv_session *tight = NULL;
    CHECK_OK(tv_session_open(bundled(), &padded, 4, 6, &tight, &err), &err);
    set.lengths = three;
    if (tight) CHECK_FAILS(tv_session_replay(tight, &set, 'a', 0, NULL, &none, &err), TV_EARG, &err, "beyond the 6");
    tv_session_close(tight);
    int32_t lengths[] = {6, 7, 6, 6};
    set.lengths = lengths;
    CHECK_FAILS(tv_session_replay(s, &set, 'a', 0, NULL, &none, &err), TV_EARG, &err, "trajectory 1: length 7");

    CHECK_FAILS(tv_session_generate(s, ids, 0, 2, 0, NULL, NULL, &err), TV_EARG, &err, "no tokens");
    CHECK_FAILS(tv_session_generate(s, ids, 5, 12, 0, NULL, NULL, &err), TV_EARG, &err, "16 positions");
    CHECK_FAILS(tv_session_generate(s, ids, 5, INT64_MAX, 0, NULL, NULL, &err), TV_EARG, &err, "16 positions");
    float logits;
    int32_t routes;
    CHECK_FAILS(tv_session_logits(s, ids, 1, 17, 0, &logits, NULL, &err), TV_EARG, &err, "17 positions");
    CHECK_FAILS(tv_session_logits(s, ids, 0, 5, 0, &logits, NULL, &err), TV_EARG, &err, "one of each");
    CHECK_FAILS(tv_session_logits(s, ids, 1, 5, 0, &logits, &routes, &err), TV_EARG, &err, "no experts");
done:
    tv_trace_close(t);
    tv_session_close(s);
}

/* cases M03: logits that are not finite end the call with the place, and nothing is handed out. The final norm's
 * weights are blown up in memory: bf16 overflows to infinity behind it. */
static void test_bad_logits(void) {
    tv_err err = {0};
    tv_engine *e = NULL;
    if (!CHECK_OK(tv_engine_open(&(tv_engine_options){.model = tv_bundled_model(), .threads = 1}, &e, &err), &err))
        return;
    tv_serving serving = tv_serving_default();
    tv_session *s = NULL;
    int32_t offsets[] = {0, 5};
    tv_job job = {.N = 2, .n = 4, .P = 1, .prompt_ids = ids, .prompt_offsets = offsets};
    tv_trace *t = NULL, *none = NULL;
    CHECK_OK(tv_session_open(e, &serving, 2, 16, &s, &err), &err);
    if (s && CHECK_OK(tv_session_sample(s, &job, 'a', NULL, &t, &err), &err)) {
        size_t D = (size_t)e->model->config.d_model;
        tv_bf16 *weights = malloc(D * sizeof *weights);
        static const float blown[] = {3e38f, NAN, INFINITY};
        for (int v = 0; v < 3; v++) {
            for (size_t d = 0; d < D; d++) weights[d] = tv_bf16_from_f32(blown[v]);
            CHECK_OK(e->ops->upload(e->dev, e->model->norm, weights, D * sizeof *weights, &err), &err);
            CHECK_FAILS(tv_session_sample(s, &job, 'a', NULL, &none, &err), TV_ENUMERIC, &err,
                        "non-finite logits at trajectory 0, position 0");
            CHECK_FAILS(tv_session_replay(s, t, 'a', 0, NULL, &none, &err), TV_ENUMERIC, &err,
                        "trajectory 0, position 0");
            CHECK_FAILS(tv_session_score_prefill(s, t, 'a', 0, NULL, &none, &err), TV_ENUMERIC, &err,
                        "trajectory 0, position 0");
            CHECK_FAILS(tv_session_generate(s, ids, 5, 4, 0, NULL, NULL, &err), TV_ENUMERIC, &err, "position 0");
            float *logits = malloc(5 * (size_t)e->model->config.vocab_size * sizeof *logits);
            for (int by_decode = 0; by_decode < 2; by_decode++)
                CHECK_FAILS(tv_session_logits(s, ids, 1, 5, by_decode, logits, NULL, &err), TV_ENUMERIC, &err,
                            "row 0, position 0");
            free(logits);
            CHECK(!none);
        }
        free(weights);
    }
    tv_trace_close(t);
    tv_session_close(s);
    tv_engine_close(e);
}

static const tv_test tests[] = {
    {"devices", test_devices}, {"serving_ranges", test_serving_ranges}, {"memory", test_memory},
    {"jobs", test_jobs},       {"bad_logits", test_bad_logits},
};
TV_TEST_MAIN(tests)
