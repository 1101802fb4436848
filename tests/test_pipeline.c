/* Steps submitted ahead of their results: the bits, the failures and the order are those of waiting for each step. */
#include <math.h>
#include <stdio.h>

#include "tests/session_fixture.h"

/* Conditions whose steps differ in who runs, whose prompts are cut, and who is put off or runs again. */
static tv_serving condition(int variant) {
    tv_serving s = tv_serving_default();
    s.eos = TV_EOS_IGNORE;
    if (variant == 1) s.batch = 4, s.prefill_chunk = 5, s.eos = TV_EOS_SUPPRESS;
    if (variant == 2) s.batch = 6, s.order = TV_ORDER_SHUFFLED, s.arrivals = TV_ARRIVALS_STAGGERED, s.pass_seed = 5;
    if (variant == 3) s.batch = 6, s.prefill = TV_PREFILL_ALONE, s.prefill_chunk = 3, s.pad_batch = 1;
    if (variant == 4) s.kv_tokens = 90, s.admission = TV_ADMISSION_GROW;
    if (variant == 5) s.eos = TV_EOS_STOP, s.batch = 3; /* what was drawn decides: each step is waited for */
    if (variant == 6)
        s.temperature = 0, s.batch = 3, s.reduction_fixed = 1, s.kv_tokens = 60, s.admission = TV_ADMISSION_GROW;
    return s;
}

/* Sampling and replay with 2, 3 and 16 steps in flight against one, and what preemption did. */
static void test_in_flight_gives_the_bits_of_waiting(void) {
    static const int depths[] = {2, 3, 16};
    tv_engine *e = engine_open(2);
    for (int variant = 0; e && variant < 7; variant++) {
        tv_serving serving = condition(variant);
        tv_job job = mixed_job(3);
        tv_trace *own = NULL, *again = NULL;
        tv_recomputed preempted = {0};
        for (int d = -1; d < 3; d++) {
            tv_err err = {0};
            e->in_flight = d < 0 ? 1 : depths[d];
            tv_session *s = session_open(e, &serving);
            if (!s) break;
            CHECK_INT(s->n_flights, e->in_flight);
            tv_trace *drawn = sample_in(s, &job), *replayed = NULL;
            if (drawn) CHECK_OK(tv_session_replay(s, drawn, 'b', 2, NULL, &replayed, &err), &err);
            const tv_recomputed *r = tv_session_recomputed(s);
            if (d < 0) {
                own = drawn, again = replayed, preempted = *r;
                CHECK((r->preemptions > 0) == (serving.admission == TV_ADMISSION_GROW));
            } else {
                CHECK(same(own, drawn));
                CHECK(same(again, replayed));
                CHECK_INT(r->preemptions, preempted.preemptions);
                CHECK_INT(r->tokens, preempted.tokens);
                CHECK_INT(r->differing, preempted.differing);
                tv_trace_close(drawn), tv_trace_close(replayed);
            }
            tv_session_close(s);
        }
        tv_trace_close(own), tv_trace_close(again);
    }
    tv_engine_close(e);
}

/* Sets the table of angles at a position: with NaN, every row that has come there has logits that are none. */
static void set_angles(tv_engine *e, int position, const tv_bf16 *row) {
    tv_err err = {0};
    size_t half = (size_t)e->model->config.head_size / 2;
    CHECK_OK(e->ops->upload(e->dev, e->model->cos + (size_t)position * half, row, half * sizeof *row, &err), &err);
}

/* Bad logits in the middle of a pass are reported for the trajectory and position where they came first, though later
 * steps have run on; nothing is handed out, and the session goes on as if it had not happened. */
static void test_failures_name_the_first_place(void) {
    enum { POSITION = 14 + 9 };
    tv_err err = {0};
    tv_engine *e = engine_open(1);
    tv_serving serving = condition(0);
    tv_job job = mixed_job(3);
    for (int depth = 1; e && depth <= 16; depth += 15) {
        e->in_flight = depth;
        tv_session *s = session_open(e, &serving);
        tv_trace *before = sample_in(s, &job), *none = NULL;
        if (!before) break;
        size_t half = (size_t)e->model->config.head_size / 2;
        tv_bf16 *kept = malloc(half * sizeof *kept), *nan = malloc(half * sizeof *nan);
        memcpy(kept, e->model->cos + POSITION * half, half * sizeof *kept);
        for (size_t i = 0; i < half; i++) nan[i] = tv_bf16_from_f32(NAN);
        set_angles(e, POSITION, nan);
        /* Prompt 2 has 14 tokens and is trajectory 2's: the row at POSITION gives its token 10. */
        CHECK_FAILS(tv_session_sample(s, &job, 'a', NULL, &none, &err), TV_ENUMERIC, &err, "trajectory 2, position 10");
        CHECK_FAILS(tv_session_replay(s, before, 'a', 0, NULL, &none, &err), TV_ENUMERIC, &err,
                    "trajectory 2, position 10");
        CHECK(!none);
        set_angles(e, POSITION, kept);
        tv_trace *after = sample_in(s, &job);
        CHECK(same(before, after));
        tv_trace_close(before), tv_trace_close(after);
        tv_session_close(s);
        free(kept), free(nan);
    }
    tv_engine_close(e);
}

typedef struct {
    uint64_t last, calls;
    int ordered;
} reports;
static void on_progress(void *user, uint64_t done, uint64_t total) {
    reports *r = user;
    r->ordered &= done >= r->last && total == N * LENGTH;
    r->last = done, r->calls++;
}

/* Progress counts the tokens that results were taken of, upwards to all of them. */
static void test_progress_is_of_results(void) {
    tv_err err = {0};
    tv_engine *e = engine_open(1);
    if (!e) return;
    e->in_flight = 16;
    tv_serving serving = condition(0);
    tv_session *s = session_open(e, &serving);
    tv_job job = mixed_job(3);
    reports r = {.ordered = 1};
    tv_progress progress = {on_progress, &r};
    tv_trace *t = NULL;
    if (s) CHECK_OK(tv_session_sample(s, &job, 'a', &progress, &t, &err), &err);
    CHECK(r.ordered);
    CHECK_INT(r.last, N * LENGTH);
    CHECK_INT(r.calls, LENGTH); /* a report a step */
    tv_trace_close(t);
    tv_session_close(s);
    tv_engine_close(e);
}

/* Ids move by index; what is below 0, index or id, moves nothing. */
static void test_carry(void) {
    tv_err err = {0};
    tv_dev *dev = NULL;
    CHECK_OK(tv_ops_cpu.open(&(tv_dev_options){.threads = 1, .isa = "auto"}, &dev, &err), &err);
    int32_t to[4] = {10, 11, 12, 13}, from[4] = {5, -1, 7, 8};
    static const int32_t at[4] = {3, -1, 1, 0};
    CHECK_OK(tv_ops_cpu.carry(dev, &(tv_carry_args){.to = to, .from = from, .from_at = at, .n = 4}, &err), &err);
    CHECK(to[0] == 8 && to[1] == 11 && to[2] == 12 && to[3] == 5);
    CHECK_OK(tv_ops_cpu.carry(dev, &(tv_carry_args){.to = to, .to_at = at, .from = from, .n = 4}, &err), &err);
    CHECK(to[0] == 8 && to[1] == 7 && to[2] == 12 && to[3] == 5);
    CHECK_FAILS(tv_ops_cpu.carry(dev, &(tv_carry_args){.to = to, .from = from}, &err), TV_EARG, &err, "carry: n=0");
    tv_ops_cpu.close(dev);
}

static const tv_test tests[] = {{"in_flight_gives_the_bits_of_waiting", test_in_flight_gives_the_bits_of_waiting},
                                {"failures_name_the_first_place", test_failures_name_the_first_place},
                                {"progress_is_of_results", test_progress_is_of_results},
                                {"carry", test_carry}};
TV_TEST_MAIN(tests)
