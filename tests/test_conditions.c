/* Serving conditions through sessions: what each changes, what none may change under the fixed plan, and what a limit
 * on the cache does to scores. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/session_fixture.h"
#include "tests/tiny_checkpoint.h"

/* Every condition that keeps weights and cache in one precision; `variant` counts them. */
enum { N_CONDITIONS = 9 };
static tv_serving condition(tv_serving s, int variant) {
    if (variant == 1) s.batch = 3;
    if (variant == 2) s.batch = 8, s.order = TV_ORDER_SHUFFLED, s.arrivals = TV_ARRIVALS_STAGGERED, s.pass_seed = 5;
    if (variant == 3) s.prefill_chunk = 3, s.batch = 4;
    if (variant == 4) s.prefill_chunk = 3, s.batch = 4, s.prefill = TV_PREFILL_ALONE;
    if (variant == 5) s.pad_batch = 1, s.batch = 8;
    if (variant == 6) s.kv_tokens = 90;
    if (variant == 7) s.kv_tokens = 90, s.admission = TV_ADMISSION_GROW;
    if (variant == 8)
        s.kv_tokens = 100, s.admission = TV_ADMISSION_GROW, s.pad_batch = 1, s.batch = 6, s.order = TV_ORDER_SHUFFLED,
        s.arrivals = TV_ARRIVALS_STAGGERED, s.prefill_chunk = 2;
    return s;
}

/* Under the fixed plan no condition reaches the bits, sampled, replayed or scored at once, whatever the cache's
 * precision; and what is computed again after a preemption comes out the same. */
static void test_fixed_under_every_condition(void) {
    tv_engine *e = engine_open(2);
    tv_job job = mixed_job(3);
    int64_t preemptions = 0, again = 0;
    for (int dtype = TV_KV_BF16; e && dtype <= TV_KV_INT8; dtype++) {
        tv_serving serving = tv_serving_default();
        serving.reduction_fixed = 1, serving.kv_dtype = (tv_kv_dtype)dtype;
        tv_trace *plain = sample(e, &serving, &job);
        for (int variant = 0; plain && variant < N_CONDITIONS; variant++) {
            tv_serving v = condition(serving, variant);
            tv_session *s = session_open(e, &v);
            tv_trace *own = sample_in(s, &job), *passes[3] = {0};
            tv_err err = {0};
            for (int p = 0; s && p < 2; p++)
                CHECK_OK(tv_session_replay(s, plain, 'a', p, NULL, &passes[p], &err), &err);
            if (s) CHECK_OK(tv_session_score_prefill(s, plain, 'a', 0, NULL, &passes[2], &err), &err);
            if (!(CHECK(same(own, plain)) & CHECK(same(passes[0], plain)) & CHECK(same(passes[1], plain)) &
                  CHECK(same(passes[2], plain))))
                fprintf(stderr, "    cache %d, condition %d\n", dtype, variant);
            if (s) {
                const tv_recomputed *r = tv_session_recomputed(s);
                CHECK_INT(r->differing, 0);
                CHECK_INT(r->preemptions > 0, variant >= 7);
                preemptions += r->preemptions, again += r->tokens;
            }
            for (int p = 0; p < 3; p++) tv_trace_close(passes[p]);
            tv_trace_close(own);
            tv_session_close(s);
        }
        tv_trace_close(plain);
    }
    printf("     %lld preemptions, %lld tokens computed again\n", (long long)preemptions, (long long)again);
    tv_engine_close(e);
}

/* The noise is real: under the serving plan, repeats in shuffled batches of staggered requests differ; a precision of
 * cache or weights below bf16 takes nothing of that away. */
static void test_repeats_differ_under_serving(void) {
    for (int dtype = TV_KV_BF16; dtype <= TV_KV_INT8; dtype++) {
        tv_engine *e = engine_open(2);
        tv_serving serving = tv_serving_default();
        tv_job job = mixed_job(3);
        serving.batch = 8, serving.order = TV_ORDER_SHUFFLED, serving.arrivals = TV_ARRIVALS_STAGGERED;
        serving.kv_dtype = (tv_kv_dtype)dtype;
        CHECK(!tv_serving_deterministic(&serving));
        tv_trace *own = e ? sample(e, &serving, &job) : NULL, *pass[3] = {0};
        for (int p = 0; own && p < 3; p++) pass[p] = replay(e, &serving, own, p);
        int64_t differing = 0, of = 0;
        for (int p = 1; own && p < 3; p++) {
            CHECK(!tv_trace_same(pass[0], pass[p], &differing, &of));
            CHECK(differing > of / 10);
        }
        for (int p = 0; p < 3; p++) tv_trace_close(pass[p]);
        tv_trace_close(own);
        tv_engine_close(e);
    }
}

/* Switched off, or at a limit that nothing reaches, each option is the plain path bit for bit, on the serving plan
 * where any change of a step would show. */
static void test_off_is_plain(void) {
    tv_engine *e = engine_open(2);
    if (!e) return;
    tv_serving serving = tv_serving_default();
    serving.batch = 4;
    tv_job job = mixed_job(9);
    tv_trace *plain = sample(e, &serving, &job);
    for (int variant = 0; plain && variant < 4; variant++) {
        tv_serving v = serving;
        if (variant == 0) v.kv_tokens = 4 * (14 + LENGTH);
        if (variant == 1) v.kv_tokens = 4 * (14 + LENGTH), v.admission = TV_ADMISSION_GROW;
        if (variant == 2) v.admission = TV_ADMISSION_GROW; /* of no limit */
        if (variant == 3) v.prefill = TV_PREFILL_ALONE, v.batch = 0;
        if (variant == 3) {
            tv_serving all = serving;
            all.batch = 0;
            tv_trace_close(plain);
            plain = sample(e, &all, &job);
        }
        tv_trace *t = sample(e, &v, &job);
        if (!CHECK(same(t, plain))) fprintf(stderr, "    variant %d\n", variant);
        tv_trace_close(t);
    }
    tv_trace_close(plain);
    tv_engine_close(e);
}

/* K01: sequences of 3, 17 and 64 tokens in one batch, in any cache precision, have the records that each has alone:
 * positions are each row's own. */
static void test_mixed_lengths(void) {
    enum { LONG = 16 };
    static const int32_t lengths[] = {3, 17, 64};
    int32_t ids[84], offsets[4] = {0, 3, 20, 84}, index[3] = {0, 1, 2};
    for (int i = 0; i < 84; i++) ids[i] = (i * 97 + 11) % 4000;
    tv_engine *e = engine_open(2);
    for (int dtype = TV_KV_BF16; e && dtype <= TV_KV_INT8; dtype++) {
        tv_serving serving = tv_serving_default();
        serving.reduction_fixed = 1, serving.kv_dtype = (tv_kv_dtype)dtype;
        tv_err err = {0};
        tv_session *s = NULL;
        if (!CHECK_OK(tv_session_open(e, &serving, 3, 64 + LONG, &s, &err), &err)) break;
        tv_job job = {.N = 3, .n = LONG, .P = 3, .prompt_ids = ids, .prompt_offsets = offsets, .prompt_index = index};
        tv_trace *together = sample_in(s, &job);
        for (int i = 0; together && i < 3; i++) {
            int32_t one[2] = {0, lengths[i]};
            int64_t identity = i;
            tv_job alone = {.N = 1, .n = LONG, .P = 1, .prompt_ids = ids + offsets[i], .prompt_offsets = one};
            alone.trajectory = &identity;
            tv_trace *t = sample_in(s, &alone);
            if (!t) continue;
            CHECK_BYTES(t->tokens, together->tokens + i * LONG, LONG * sizeof *t->tokens);
            CHECK_BYTES(t->topk_logprobs, together->topk_logprobs + i * LONG * t->k,
                        LONG * (size_t)t->k * sizeof *t->topk_logprobs);
            tv_trace_close(t);
        }
        tv_trace_close(together);
        tv_session_close(s);
    }
    tv_engine_close(e);
}

/* K05: on the serving plan a row's bits follow the size of the batch, not who its neighbours are or which slot it has:
 * eight trajectories in another order, or beside seven copies, have the same records. */
static void test_neighbours_do_not_leak(void) {
    enum { B = 8 };
    tv_engine *e = engine_open(2);
    tv_serving serving = tv_serving_default();
    int32_t offsets[2] = {0, 7};
    int64_t turned[B] = {3, 7, 0, 5, 1, 6, 4, 2}, copies[B] = {4, 4, 4, 4, 4, 4, 4, 4};
    tv_job job = {.N = B, .n = LENGTH, .P = 1, .prompt_ids = prompt_ids, .prompt_offsets = offsets, .seed = 42};
    tv_trace *t = e ? sample(e, &serving, &job) : NULL;
    for (int way = 0; t && way < 2; way++) {
        const int64_t *identity = way ? copies : turned;
        job.trajectory = identity;
        tv_trace *other = sample(e, &serving, &job);
        size_t record = (size_t)LENGTH * (size_t)t->k;
        for (int i = 0; other && i < B; i++) {
            CHECK_BYTES(other->tokens + i * LENGTH, t->tokens + identity[i] * LENGTH, LENGTH * sizeof *t->tokens);
            CHECK_BYTES(other->topk_logprobs + (size_t)i * record, t->topk_logprobs + (size_t)identity[i] * record,
                        record * sizeof *t->topk_logprobs);
        }
        tv_trace_close(other);
    }
    tv_trace_close(t);
    tv_engine_close(e);
}

/* Weights of fewer bits are another distribution, int4 farther away than int8; the stored configuration says which, and
 * a repeat has the same bits. */
static void test_weights(void) {
    double far[3] = {0};
    tv_trace *plain = NULL;
    for (int dtype = TV_WEIGHTS_BF16; dtype <= TV_WEIGHTS_INT4; dtype++) {
        tv_err err = {0};
        tv_engine *e = NULL;
        tv_engine_options options = {.model = tv_bundled_model(), .device = "cpu", .threads = 2};
        options.weight_dtype = (tv_weight_dtype)dtype;
        if (!CHECK_OK(tv_engine_open(&options, &e, &err), &err)) break;
        tv_serving serving = tv_serving_default();
        tv_job job = mixed_job(3);
        if (!plain) plain = sample(e, &serving, &job);
        tv_trace *t = replay(e, &serving, plain, 0), *again = replay(e, &serving, plain, 0);
        CHECK(same(t, again));
        char text[64];
        snprintf(text, sizeof text, "\"%s\"", tv_weight_dtype_name((tv_weight_dtype)dtype));
        CHECK(t && strstr(strstr(t->config_json, "weight_dtype"), text));
        for (int64_t at = 0; t && at < N * LENGTH; at++)
            far[dtype] += fabs(t->token_logprobs[at] - plain->token_logprobs[at]) / (N * LENGTH);
        tv_trace_close(t), tv_trace_close(again);
        tv_engine_close(e);
    }
    printf("     own tokens' log-probabilities move by %.4f (int8) and %.4f (int4) on average\n", far[1], far[2]);
    CHECK(far[0] == 0 && far[1] > 0 && far[2] > 3 * far[1] && far[2] < 1);
    tv_trace_close(plain);
}

/* Own tokens without mass: none when scored as sampled; some when a small cache shrinks the batch that scores them, as
 * the shape of the batch moves the edge of the top k. Under the fixed plan there are none either way. */
static void test_small_cache_loses_own_tokens(void) {
    enum { MANY = 96, LONG = 64, PROMPT = 7 };
    tv_engine *e = engine_open(2);
    int32_t offsets[2] = {0, PROMPT};
    tv_job job = {.N = MANY, .n = LONG, .P = 1, .prompt_ids = prompt_ids, .prompt_offsets = offsets, .seed = 1};
    for (int fixed = 0; e && fixed < 2; fixed++) {
        tv_serving serving = tv_serving_default();
        serving.reduction_fixed = fixed;
        tv_trace *own = NULL;
        for (int small = 0; small < 3; small++) {
            tv_serving v = serving;
            tv_err err = {0};
            tv_session *s = NULL;
            tv_trace *t = NULL;
            v.kv_tokens = small ? 4 * (PROMPT + LONG) : 0;
            v.admission = small == 2 ? TV_ADMISSION_GROW : TV_ADMISSION_RESERVE;
            if (!CHECK_OK(tv_session_open(e, &v, MANY, PROMPT + LONG, &s, &err), &err)) break;
            if (!own) own = sample_in(s, &job);
            if (own) CHECK_OK(tv_session_replay(s, own, 'a', 0, NULL, &t, &err), &err);
            int64_t dead = 0;
            for (int64_t at = 0; t && at < MANY * LONG; at++) dead += t->token_rank[at] >= v.top_k;
            const tv_recomputed *r = tv_session_recomputed(s);
            printf("     %s plan, %s: %lld of %d own tokens without mass; computed again %lld, %lld of them differ\n",
                   fixed ? "fixed" : "serving",
                   small == 0   ? "sampling condition"
                   : small == 1 ? "reserve"
                                : "grow",
                   (long long)dead, MANY * LONG, (long long)r->tokens, (long long)r->differing);
            if (t) CHECK_INT(dead > 0, small && !fixed);
            CHECK_INT(r->tokens > 0, small == 2);
            if (small == 2) CHECK_INT(r->differing > 0, !fixed);
            if (fixed) CHECK(same(own, t));
            tv_trace_close(t);
            tv_session_close(s);
        }
        tv_trace_close(own);
    }
    tv_engine_close(e);
}

static const tv_test tests[] = {
    {"fixed_under_every_condition", test_fixed_under_every_condition},
    {"repeats_differ_under_serving", test_repeats_differ_under_serving},
    {"off_is_plain", test_off_is_plain},
    {"mixed_lengths", test_mixed_lengths},
    {"neighbours_do_not_leak", test_neighbours_do_not_leak},
    {"weights", test_weights},
    {"small_cache_loses_own_tokens", test_small_cache_loses_own_tokens},
};
TV_TEST_MAIN(tests)
