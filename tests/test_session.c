/* Sampling and replay on the bundled model: what must agree bit for bit, and what a draw may depend on. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/reference_model.h"
#include "tests/session_fixture.h"
#include "tests/tiny_checkpoint.h"

static const double TOLERANCE = 0.2; /* of log-probabilities that bf16 rounds at other places */

static void check_records(const tv_trace *t, int top_k) {
    for (int64_t i = 0; i < t->N; i++)
        for (int64_t at = i * t->n; at < i * t->n + t->lengths[i]; at++) {
            CHECK(t->token_rank[at] >= 0 && t->token_rank[at] < top_k);
            CHECK_INT(t->topk_ids[at * t->k + t->token_rank[at]], t->tokens[at]);
            CHECK(t->topk_logprobs[at * t->k + t->token_rank[at]] == t->token_logprobs[at]);
        }
}

/* The sampling condition: replaying own samples gives the records that sampling made, in every bit, so agreement is 0
 * and no own token is without mass; for both plans, whole batches and handed-on slots, chunked prompts, padding, stops.
 */
static void test_replay_is_sampling(void) {
    tv_engine *e = engine_open(2);
    for (int variant = 0; e && variant < 16; variant++) {
        tv_serving serving = tv_serving_default();
        serving.reduction_fixed = variant & 1;
        serving.batch = variant & 2 ? 4 : 0;
        serving.prefill_chunk = variant & 4 ? 5 : 0;
        serving.pad_batch = !!(variant & 8);
        serving.logits_f32 = variant == 3;
        serving.temperature = variant == 5 ? 0.6 : 1;
        serving.eos = variant % 3 == 0 ? TV_EOS_STOP : variant % 3 == 1 ? TV_EOS_SUPPRESS : TV_EOS_IGNORE;
        tv_job job = mixed_job(3);
        tv_trace *own = sample(e, &serving, &job), *again = replay(e, &serving, own, 0);
        int64_t differing = -1, of = 0;
        if (CHECK(own && again)) {
            check_records(own, serving.top_k);
            CHECK(tv_trace_same(own, again, &differing, &of));
            CHECK_INT(differing, 0);
            CHECK(of >= own->N * own->k);
            CHECK(same_tokens(own, again));
            CHECK_STR(again->side, "b");
            CHECK_STR(again->set, "a");
            CHECK_INT(again->pass, 0);
            CHECK_INT(own->pass, -1);
            tv_err err = {0};
            char path[4096];
            snprintf(path, sizeof path, "%s/t.safetensors", tv_test_dir());
            CHECK_OK(tv_trace_write(own, path, &err), &err); /* checks the records as a reader would */
        }
        tv_trace_close(own), tv_trace_close(again);
    }
    tv_engine_close(e);
}

/* Under the fixed plan nothing about the batch reaches the bits: size, slots, order, arrivals, chunks, padding,
 * threads, a cache full of NaN (cases K02). */
static void test_fixed_is_batch_invariant(void) {
    tv_engine *e1 = engine_open(1), *e2 = engine_open(2);
    tv_serving serving = tv_serving_default();
    serving.reduction_fixed = 1;
    serving.batch = 1;
    tv_job job = mixed_job(3);
    tv_trace *alone = e1 ? sample(e1, &serving, &job) : NULL;
    for (int variant = 0; alone && e2 && variant < 8; variant++) {
        tv_serving v = serving;
        tv_engine *e = variant == 0 ? e2 : e1;
        v.batch = variant == 1 ? 3 : variant == 2 ? 7 : variant == 0 ? 1 : 0;
        if (variant == 3) v.order = TV_ORDER_SHUFFLED, v.batch = 4, v.pass_seed = 5;
        if (variant == 4) v.arrivals = TV_ARRIVALS_STAGGERED, v.batch = 6;
        if (variant == 5) v.prefill_chunk = 3;
        if (variant == 6) v.pad_batch = 1, v.batch = 8;
        tv_session *s = session_open(e, &v);
        if (!s) break;
        tv_err err = {0};
        if (variant == 7) {
            CHECK_OK(tv_kv_fill(e, &s->kv, 0x7FFF, &err), &err);
            memset(s->flights[0].host_out, 0xCA, s->out_bytes), memset(s->flights[0].host_in, 0xCA, s->in_bytes);
        }
        tv_trace *t = sample_in(s, &job), *again = NULL;
        CHECK(same(alone, t));
        if (t) CHECK_OK(tv_session_replay(s, t, 'a', 2, NULL, &again, &err), &err);
        CHECK(same(alone, again));
        tv_trace_close(t), tv_trace_close(again);
        tv_session_close(s);
    }
    tv_trace_close(alone);
    tv_engine_close(e1), tv_engine_close(e2);
}

/* The serving plan follows the running batch, not the number of threads, and the same job gives the same bits twice, in
 * one session or two. */
static void test_same_job_same_bits(void) {
    tv_engine *e1 = engine_open(1), *e2 = engine_open(2);
    tv_serving serving = tv_serving_default();
    serving.batch = 4;
    tv_job job = mixed_job(9);
    tv_session *s = session_open(e1, &serving);
    tv_trace *first = sample_in(s, &job), *second = sample_in(s, &job),
             *threads = e2 ? sample(e2, &serving, &job) : NULL;
    CHECK(same(first, second));
    CHECK(same(first, threads));
    tv_err err = {0};
    tv_session *larger = NULL; /* the room of a session is no condition of the job */
    if (e1) CHECK_OK(tv_session_open(e1, &serving, 4 * N, 300, &larger, &err), &err);
    tv_trace *third = sample_in(larger, &job);
    CHECK(same(first, third));
    tv_trace_close(first), tv_trace_close(second), tv_trace_close(third), tv_trace_close(threads);
    tv_session_close(s), tv_session_close(larger);
    tv_engine_close(e1), tv_engine_close(e2);
}

/* Sessions of one engine that are open together take turns in the memory of the first, where they fit, and give the
 * bits that each gives alone, also when the first has gone. */
static void test_sessions_share_memory(void) {
    tv_engine *e = engine_open(1);
    tv_err err = {0};
    tv_job job = mixed_job(3);
    tv_serving serving = tv_serving_default(), other = serving;
    snprintf(other.backend, sizeof other.backend, "math");
    other.kv_dtype = TV_KV_INT8;
    tv_trace *alone[2] = {sample(e, &serving, &job), sample(e, &other, &job)};
    CHECK(e && !e->lent && !same_tokens(alone[0], alone[1]));
    tv_session *s[3] = {session_open(e, &serving), session_open(e, &other), NULL};
    CHECK_OK(tv_session_open(e, &serving, N, 300, &s[2], &err), &err);
    if (s[0] && s[1] && s[2]) {
        CHECK(s[1]->memory == s[0]->memory && s[2]->memory != s[0]->memory);
        for (int turn = 0; turn < 6; turn++) {
            int which = turn % 3;
            tv_trace *t = sample_in(s[which], &job);
            CHECK(same(alone[which == 1], t));
            tv_trace_close(t);
            if (turn == 3) tv_session_close(s[0]);
        }
        tv_session_close(s[1]), tv_session_close(s[2]);
        CHECK(!e->lent && !e->borrowers);
    }
    tv_trace_close(alone[0]), tv_trace_close(alone[1]);
    tv_engine_close(e);
}

/* What a pass draws: the same pass number gives the same bits, another one moves them under the serving plan. */
static void test_passes(void) {
    tv_engine *e = engine_open(2);
    tv_serving serving = tv_serving_default();
    tv_job job = mixed_job(3);
    tv_trace *own = e ? sample(e, &serving, &job) : NULL;
    CHECK(tv_serving_deterministic(&serving));
    serving.batch = 8, serving.order = TV_ORDER_SHUFFLED, serving.arrivals = TV_ARRIVALS_STAGGERED;
    CHECK(!tv_serving_deterministic(&serving));
    if (own) {
        tv_trace *p0 = replay(e, &serving, own, 0), *p1 = replay(e, &serving, own, 1),
                 *again = replay(e, &serving, own, 0);
        CHECK(same(p0, again));
        int64_t differing = 0;
        CHECK(!tv_trace_same(p0, p1, &differing, NULL));
        CHECK(differing > 0);
        tv_trace_close(p0), tv_trace_close(p1), tv_trace_close(again);
    }
    tv_trace_close(own);
    tv_engine_close(e);
}

/* cases L01: a prompt of one token and three behind it, against a plain f64 model: record t is the distribution before
 * token t, so four tokens have three log-probabilities and the prompt's has none, sampled, replayed or scored at once.
 * A shift by one either way would be seen. */
static void test_which_token_a_record_scores(void) {
    enum { TOKENS = 4, SCORED = TOKENS - 1 };
    tiny_options options = tiny_options_default(TV_QWEN3);
    tiny_checkpoint *c = tiny_new(&options);
    tiny_write(c, tv_test_dir());
    tiny_free(c);
    tv_err err = {0};
    tv_engine *e = NULL;
    if (!CHECK_OK(tv_engine_open(&(tv_engine_options){.model = tv_test_dir(), .device = "cpu", .threads = 1}, &e, &err),
                  &err))
        return;
    tv_serving serving = tv_serving_default();
    serving.eos = TV_EOS_IGNORE;
    const int32_t prompt[] = {77}, offsets[] = {0, 1};
    tv_job job = {.N = 1, .n = SCORED, .P = 1, .prompt_ids = prompt, .prompt_offsets = offsets, .seed = 5};
    tv_trace *made[3] = {sample(e, &serving, &job)};
    made[1] = replay(e, &serving, made[0], 0);
    tv_session *s = session_open(e, &serving);
    if (s && made[0]) CHECK_OK(tv_session_score_prefill(s, made[0], 'a', 0, NULL, &made[2], &err), &err);
    if (CHECK(made[0] && made[1] && made[2])) {
        const int V = e->model->config.vocab_size;
        reference_model reference;
        reference_open(tv_test_dir(), &reference);
        int32_t ids[TOKENS] = {prompt[0]};
        memcpy(ids + 1, made[0]->tokens, SCORED * sizeof *ids);
        double *lp = malloc(sizeof *lp * TOKENS * (size_t)V);
        reference_logits(&reference, ids, TOKENS, 0, NULL, NULL, lp);
        for (int t = 0; t < TOKENS; t++) {
            double sum = 0;
            for (int v = 0; v < V; v++) sum += exp(lp[t * V + v]);
            for (int v = 0; v < V; v++) lp[t * V + v] -= log(sum);
        }
        for (int way = 0; way < 3; way++) {
            CHECK_INT(made[way]->n, SCORED);
            for (int t = 0; t < SCORED; t++) {
                const double got = made[way]->token_logprobs[t];
                CHECK_NEAR(got, lp[t * V + ids[t + 1]], TOLERANCE);
                CHECK(fabs(got - lp[t * V + ids[t]]) > 3 * TOLERANCE);
                CHECK(fabs(got - lp[(t + 1) * V + ids[t + 1]]) > 3 * TOLERANCE);
            }
        }
        free(lp);
        reference_close(&reference);
    }
    for (int way = 0; way < 3; way++) tv_trace_close(made[way]);
    tv_session_close(s);
    tv_engine_close(e);
}

/* cases X06: passes that shuffle the sequences, in one session, keep nothing of the pass before: each has the bits that
 * it has in a session of its own, the fixed plan gives all of them the same, and the serving plan the same within
 * rounding. */
static void test_shuffled_passes(void) {
    enum { PASSES = 3 };
    tv_engine *e = engine_open(2);
    for (int fixed = 0; e && fixed < 2; fixed++) {
        tv_serving serving = tv_serving_default();
        serving.reduction_fixed = fixed, serving.batch = 4, serving.order = TV_ORDER_SHUFFLED;
        tv_job job = mixed_job(3);
        tv_trace *own = sample(e, &serving, &job), *pass[PASSES] = {0};
        tv_session *s = session_open(e, &serving);
        tv_err err = {0};
        double moved = 0;
        for (int p = 0; own && s && p < PASSES; p++) {
            CHECK_OK(tv_session_replay(s, own, 'b', p, NULL, &pass[p], &err), &err);
            tv_trace *fresh = replay(e, &serving, own, p);
            CHECK(same(pass[p], fresh));
            tv_trace_close(fresh);
            for (int64_t at = 0; pass[p] && at < N * LENGTH; at++) {
                double gap = fabs((double)pass[p]->token_logprobs[at] - (double)own->token_logprobs[at]);
                if (!(gap <= moved)) moved = gap; /* a NaN stays */
            }
        }
        CHECK(fixed ? moved == 0 : moved > 0 && moved < TOLERANCE);
        for (int p = 0; p < PASSES; p++) tv_trace_close(pass[p]);
        tv_session_close(s);
        tv_trace_close(own);
    }
    tv_engine_close(e);
}

/* cases M04: a seeded draw knows the trajectory and the position, not slot, neighbours or history; different
 * trajectories and seeds differ. */
static void test_draws_follow_identity(void) {
    tv_engine *e = engine_open(2);
    tv_serving serving = tv_serving_default();
    serving.reduction_fixed = 1;
    int32_t offsets[2] = {0, 7};
    tv_job eight = {.N = 8, .n = LENGTH, .P = 1, .prompt_ids = prompt_ids, .prompt_offsets = offsets, .seed = 42};
    int64_t five = 5, backwards[8] = {7, 6, 5, 4, 3, 2, 1, 0};
    tv_job one = eight, turned = eight, other = eight;
    one.N = 1, one.trajectory = &five;
    turned.trajectory = backwards;
    other.seed = 43;
    if (e) {
        tv_trace *t8 = sample(e, &serving, &eight), *t1 = sample(e, &serving, &one), *t = sample(e, &serving, &turned);
        tv_trace *o = sample(e, &serving, &other);
        if (CHECK(t8 && t1 && t && o)) {
            size_t row = LENGTH * sizeof *t8->tokens, record = LENGTH * (size_t)t8->k * sizeof *t8->topk_logprobs;
            CHECK_BYTES(t1->tokens, t8->tokens + 5 * LENGTH, row);
            CHECK_BYTES(t1->topk_logprobs, t8->topk_logprobs + 5 * LENGTH * t8->k, record);
            for (int i = 0; i < 8; i++) CHECK_BYTES(t->tokens + i * LENGTH, t8->tokens + (7 - i) * LENGTH, row);
            for (int i = 0; i < 8; i++) {
                CHECK(memcmp(o->tokens + i * LENGTH, t8->tokens + i * LENGTH, row));
                for (int j = 0; j < i; j++) CHECK(memcmp(t8->tokens + j * LENGTH, t8->tokens + i * LENGTH, row));
            }
            CHECK_INT(t1->trajectory[0], 5);
        }
        tv_trace_close(t8), tv_trace_close(t1), tv_trace_close(t), tv_trace_close(o);
    }
    tv_engine_close(e);
}

/* The first tokens of many trajectories follow the renormalised top k that was recorded: chi-square at 0.1%, fixed
 * seed. */
static void test_frequencies(void) {
    enum { MANY = 2000, K = 8 };
    tv_engine *e = engine_open(2);
    tv_serving serving = tv_serving_default();
    serving.top_k = K, serving.batch = 64;
    int32_t offsets[2] = {0, 7};
    tv_job job = {.N = MANY, .n = 1, .P = 1, .prompt_ids = prompt_ids, .prompt_offsets = offsets, .seed = 1};
    tv_err err = {0};
    tv_session *s = NULL;
    if (e) CHECK_OK(tv_session_open(e, &serving, MANY, 8, &s, &err), &err);
    tv_trace *t = sample_in(s, &job);
    if (t) {
        double count[K] = {0}, p[K], mass = 0, chi2 = 0;
        for (int i = 0; i < MANY; i++) {
            CHECK(t->token_rank[i] < K);
            count[t->token_rank[i]]++;
        }
        for (int j = 0; j < K; j++) mass += p[j] = exp(t->topk_logprobs[j]);
        for (int j = 0; j < K; j++) {
            double want = MANY * p[j] / mass;
            chi2 += (count[j] - want) * (count[j] - want) / want;
        }
        CHECK(chi2 < 24.3); /* 7 degrees of freedom */
    }
    tv_trace_close(t);
    tv_session_close(s);
    tv_engine_close(e);
}

/* A trajectory stops with an end id, which is recorded; what lies behind it is empty. Suppressed, the id has no mass;
 * ignored, it is a token like others. Any id can be an end id here, so that short runs meet it. */
static void test_end_ids(void) {
    tv_engine *e = engine_open(2);
    if (!e) return;
    tv_serving serving = tv_serving_default();
    serving.eos = TV_EOS_IGNORE;
    tv_job job = mixed_job(3);
    tv_trace *free_run = sample(e, &serving, &job);
    if (CHECK(free_run != NULL)) {
        int32_t end = free_run->tokens[3 * LENGTH + 6];
        e->model->config.n_eos = 2, e->model->config.eos[0] = end, e->model->config.eos[1] = end;
        serving.batch = 3;
        for (int mode = 0; mode < 3; mode++) {
            serving.eos = mode == 0 ? TV_EOS_STOP : mode == 1 ? TV_EOS_SUPPRESS : TV_EOS_IGNORE;
            tv_trace *t = sample(e, &serving, &job), *r = replay(e, &serving, t, 0);
            CHECK(same(t, r));
            int short_ones = 0;
            for (int64_t i = 0; t && i < N; i++) {
                int32_t length = t->lengths[i];
                short_ones += length < LENGTH;
                for (int64_t j = 0; j < LENGTH; j++) {
                    int64_t at = i * LENGTH + j;
                    if (j >= length) {
                        CHECK(t->tokens[at] == -1 && t->token_rank[at] == -1 && t->topk_ids[at * t->k] == -1);
                        CHECK(t->topk_logprobs[at * t->k] == -INFINITY && t->token_logprobs[at] == 0);
                        continue;
                    }
                    if (mode == 0)
                        CHECK((t->tokens[at] == end) == (j == length - 1 && length < LENGTH) || j == LENGTH - 1);
                    for (int64_t k = 0; mode == 1 && k < t->k; k++) CHECK(t->topk_ids[at * t->k + k] != end);
                }
            }
            CHECK_INT(short_ones > 0, mode == 0);
            tv_trace_close(t), tv_trace_close(r);
        }
    }
    tv_trace_close(free_run);
    tv_engine_close(e);
}

/* Temperature 0 is the argmax: certain, the rest without mass, and the empty slots say so; cases M01: so are
 * temperatures that f32 cannot hold or divide by. */
static void test_temperature_zero(void) {
    tv_engine *e = engine_open(1);
    tv_serving serving = tv_serving_default();
    serving.temperature = 0;
    tv_job job = mixed_job(3);
    tv_trace *t = e ? sample(e, &serving, &job) : NULL;
    static const double tiny[] = {1e-45, 1e-30};
    for (int i = 0; t && i < 2; i++) {
        serving.temperature = tiny[i];
        tv_trace *same_thing = sample(e, &serving, &job);
        CHECK(same(t, same_thing));
        tv_trace_close(same_thing);
    }
    int wrong = 0;
    for (int64_t at = 0; t && at < N * LENGTH; at++) {
        wrong += !(t->topk_logprobs[at * t->k] == 0 && t->token_logprobs[at] == 0 && t->token_rank[at] == 0);
        wrong += !(t->topk_ids[at * t->k + 1] == -1 && t->topk_logprobs[at * t->k + 1] == -INFINITY);
    }
    CHECK_INT(wrong, 0);
    tv_trace_close(t);
    tv_engine_close(e);
}

/* Sequence-level scores, plain logits by prefill and by decode, and replay are one distribution: under the fixed plan
 * in every bit, under the serving plan within rounding. Chunks and windows of logits change nothing under the fixed
 * plan. */
static void test_prefill_scores_and_logits(void) {
    tv_engine *e = engine_open(2);
    if (!e) return;
    for (int variant = 0; variant < 4; variant++) {
        tv_serving serving = tv_serving_default();
        serving.reduction_fixed = variant != 3;
        serving.prefill_chunk = variant == 1 ? 6 : 0;
        serving.batch = 4;
        serving.eos = TV_EOS_IGNORE;
        tv_job job = mixed_job(3);
        tv_trace *t = sample(e, &serving, &job), *scored = NULL;
        tv_session *s = session_open(e, &serving);
        tv_err err = {0};
        if (t && s) CHECK_OK(tv_session_score_prefill(s, t, 'a', 0, NULL, &scored, &err), &err);
        if (variant != 3)
            CHECK(same(t, scored));
        else
            for (int64_t at = 0; scored && at < N * LENGTH; at++)
                CHECK_NEAR(scored->token_logprobs[at], t->token_logprobs[at], TOLERANCE);
        if (scored) CHECK(strstr(scored->config_json, "prefill") != NULL);

        enum { B = 6, T = 30 };
        int V = e->model->config.vocab_size;
        float *logits[2];
        int32_t ids[B * T];
        for (int i = 0; i < B * T; i++) ids[i] = (int32_t)((i * 131 + 7) % V);
        for (int d = 0; s && d < 2; d++) {
            logits[d] = calloc((size_t)B * T * (size_t)V, sizeof *logits[d]);
            CHECK_OK(tv_session_logits(s, ids, B, T, d, logits[d], NULL, &err), &err);
        }
        if (s && variant != 3) CHECK_BYTES(logits[0], logits[1], (size_t)B * T * (size_t)V * sizeof **logits);
        if (s) free(logits[0]), free(logits[1]);
        tv_trace_close(t), tv_trace_close(scored);
        tv_session_close(s);
    }
    tv_engine_close(e);
}

/* Where a step has room for few logits, long sequences take theirs in several windows of the same step: the same bits,
 * in the serving plan, too, but for the products of the head, whose rows a window changes. */
static void test_logit_windows(void) {
    tv_engine *e = engine_open(2);
    tv_serving serving = tv_serving_default();
    serving.reduction_fixed = 1, serving.batch = 2;
    tv_job job = mixed_job(3);
    tv_session *s = session_open(e, &serving);
    tv_trace *t = sample_in(s, &job);
    if (t) {
        enum { T = 31 };
        size_t V = (size_t)e->model->config.vocab_size;
        int32_t ids[T];
        for (int i = 0; i < T; i++) ids[i] = i * 97 + 3;
        float *logits[2] = {calloc(T * V, sizeof(float)), calloc(T * V, sizeof(float))};
        tv_trace *scored[2] = {0};
        tv_err err = {0};
        for (int few = 0; few < 2; few++) {
            if (few) s->limits.logits = 7;
            CHECK_OK(tv_session_logits(s, ids, 1, T, 0, logits[few], NULL, &err), &err);
            CHECK_OK(tv_session_score_prefill(s, t, 'a', 0, NULL, &scored[few], &err), &err);
        }
        CHECK_BYTES(logits[0], logits[1], T * V * sizeof(float));
        CHECK(same(t, scored[0]));
        CHECK(same(t, scored[1]));
        free(logits[0]), free(logits[1]);
        tv_trace_close(scored[0]), tv_trace_close(scored[1]);
    }
    tv_trace_close(t);
    tv_session_close(s);
    tv_engine_close(e);
}

typedef struct {
    int n, stop_after;
    int32_t ids[LENGTH];
} heard;
static int hear(void *user, int32_t id) {
    heard *h = user;
    h->ids[h->n++] = id;
    return h->n == h->stop_after;
}

/* Streaming gives the tokens of sampling, and stops when told. */
static void test_generate(void) {
    tv_engine *e = engine_open(2);
    tv_serving serving = tv_serving_default();
    tv_session *s = session_open(e, &serving);
    int32_t offsets[2] = {0, 7};
    tv_job job = {.N = 1, .n = LENGTH, .P = 1, .prompt_ids = prompt_ids, .prompt_offsets = offsets, .seed = 4};
    tv_trace *t = sample_in(s, &job);
    tv_err err = {0};
    for (int stop = 0; t && stop < 2; stop++) {
        heard h = {.stop_after = stop ? 5 : -1};
        CHECK_OK(tv_session_generate(s, prompt_ids, 7, LENGTH, 4, hear, &h, &err), &err);
        CHECK_INT(h.n, stop ? 5 : LENGTH);
        CHECK_BYTES(h.ids, t->tokens, (size_t)h.n * sizeof *h.ids);
    }
    tv_trace_close(t);
    tv_session_close(s);
    tv_engine_close(e);
}

static void count(void *user, uint64_t done, uint64_t total) {
    uint64_t *seen = user;
    CHECK(done >= seen[0] && done <= total);
    seen[0] = done, seen[1] = total;
}

/* Progress ends at its total, also where trajectories stop early; times add up. */
static void test_progress_and_times(void) {
    tv_engine *e = engine_open(2);
    tv_serving serving = tv_serving_default();
    serving.batch = 3;
    tv_session *s = session_open(e, &serving);
    if (s) {
        uint64_t seen[2] = {0, 0};
        tv_progress progress = {count, seen};
        tv_job job = mixed_job(3);
        tv_err err = {0};
        tv_trace *t = NULL;
        e->model->config.eos[0] = 11, s->serving.eos = TV_EOS_STOP;
        tv_session_profile(s, 1);
        CHECK_OK(tv_session_sample(s, &job, 'a', &progress, &t, &err), &err);
        CHECK_INT(seen[0], N * LENGTH);
        CHECK_INT(seen[1], N * LENGTH);
        const tv_step_times *w = tv_session_times(s);
        double sum = w->embed + w->norms + w->qkv + w->attention + w->attention_out + w->ffn + w->head + w->logprobs +
                     w->sample + w->copies + w->host;
        CHECK_NEAR(sum, w->total, 1e-6);
        CHECK(w->steps > LENGTH && w->rows >= w->logit_rows && w->total > 0);
        tv_trace_close(t);
    }
    tv_session_close(s);
    tv_engine_close(e);
}

/* Expert models: the routes of prefill (whole and in chunks) and of decode, side by side and in several batches, are
 * the same under the fixed plan; dense layers have none. */
static void test_routes(void) {
    enum { B = 5, T = 20 };
    tv_err err = {0};
    tv_engine *e = NULL;
    tv_engine_options options = {.model = tv_golden("models/qwen3-moe-mixed"), .device = "cpu", .threads = 2};
    if (!CHECK_OK(tv_engine_open(&options, &e, &err), &err)) return;
    const tv_config *c = &e->model->config;
    size_t cells = (size_t)B * T * (size_t)c->n_experts_used, values = (size_t)B * T * (size_t)c->vocab_size;
    size_t all = (size_t)c->n_layers * cells;
    float *logits[3];
    int32_t ids[B * T], *routes[3];
    for (int i = 0; i < B * T; i++) ids[i] = (i * 37 + 5) % c->vocab_size;
    for (int way = 0; way < 3; way++) {
        tv_serving serving = tv_serving_default();
        serving.reduction_fixed = 1, serving.batch = 3;
        serving.prefill_chunk = way == 1 ? 6 : 0;
        logits[way] = calloc(values, sizeof *logits[way]);
        routes[way] = calloc(all, sizeof *routes[way]);
        tv_session *s = NULL;
        CHECK_OK(tv_session_open(e, &serving, B, T, &s, &err), &err);
        if (s) CHECK_OK(tv_session_logits(s, ids, B, T, way == 2, logits[way], routes[way], &err), &err);
        tv_session_close(s);
        CHECK_BYTES(logits[way], logits[0], values * sizeof *logits[0]);
        CHECK_BYTES(routes[way], routes[0], all * sizeof *routes[0]);
    }
    int wrong = 0, sparse = 0;
    for (int l = 0; l < c->n_layers; l++) {
        sparse += c->layer_sparse[l];
        for (size_t i = 0; i < cells; i++) {
            int32_t id = routes[0][(size_t)l * cells + i];
            wrong += c->layer_sparse[l] ? id < 0 || id >= c->n_experts : id != -1;
        }
    }
    CHECK_INT(wrong, 0);
    CHECK(sparse > 0 && sparse < c->n_layers);
    for (int way = 0; way < 3; way++) free(logits[way]), free(routes[way]);
    tv_engine_close(e);
}

/* The configuration that is stored names what "auto" became, and is what two equal configurations share. */
static void test_describe(void) {
    tv_engine *e = engine_open(1);
    if (!e) return;
    tv_engine_info info;
    tv_engine_describe(e, &info);
    CHECK_INT(info.vocab_size, 4096);
    CHECK_INT(info.n_eos, 1);
    CHECK_INT(info.eos[0], 4095);
    CHECK(info.parameters > 1400000 && info.parameters < 1600000);
    tv_serving serving = tv_serving_default();
    serving.pass_seed = UINT64_MAX;
    cJSON *json = tv_serving_json(&serving, e);
    CHECK_STR(cJSON_GetStringValue(cJSON_GetObjectItem(json, "backend")), "flash");
    CHECK_STR(cJSON_GetStringValue(cJSON_GetObjectItem(json, "pass_seed")), "18446744073709551615");
    CHECK_STR(cJSON_GetStringValue(cJSON_GetObjectItem(json, "eos")), "suppress");
    cJSON_Delete(json);
    json = tv_devices_json();
    CHECK_INT(cJSON_GetArraySize(json), 2);
    cJSON_Delete(json);
    json = tv_backends_json(e);
    CHECK(cJSON_GetArraySize(json) >= 2);
    cJSON_Delete(json);
    char *plan = tv_plan_text(e, &serving);
    CHECK(strlen(plan) > 0);
    free(plan);
    CHECK(tv_session_bytes(e, &serving, 128, 158) > (uint64_t)128 * 158 * 2048);
    CHECK(tv_session_bytes(e, &serving, INT64_MAX / 2, 4096) == UINT64_MAX);
    tv_engine_close(e);
}

static const tv_test tests[] = {
    {"replay_is_sampling", test_replay_is_sampling},
    {"fixed_is_batch_invariant", test_fixed_is_batch_invariant},
    {"same_job_same_bits", test_same_job_same_bits},
    {"sessions_share_memory", test_sessions_share_memory},
    {"passes", test_passes},
    {"shuffled_passes", test_shuffled_passes},
    {"which_token_a_record_scores", test_which_token_a_record_scores},
    {"draws_follow_identity", test_draws_follow_identity},
    {"frequencies", test_frequencies},
    {"end_ids", test_end_ids},
    {"temperature_zero", test_temperature_zero},
    {"prefill_scores_and_logits", test_prefill_scores_and_logits},
    {"logit_windows", test_logit_windows},
    {"generate", test_generate},
    {"progress_and_times", test_progress_and_times},
    {"routes", test_routes},
    {"describe", test_describe},
};
TV_TEST_MAIN(tests)
