/* Sessions on the emulated card: steps as graphs give the bits of launching every operation, and allocate nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"
#include "kernels/cuda/device.h"
#include "tests/check.h"
#include "tests/simt/rig.h"
#include "tests/simt/runtime_simt.h"

enum { N = 3, LENGTH = 20, POSITIONS = 64 };
static const int32_t prompts[] = {5, 17, 300, 41, 8, 99, 2, 450, 77}, offsets[] = {0, 3, 4, 9},
                     prompt_index[N] = {0, 1, 2};
static tv_err err;

static tv_engine *open_engine(const char *model, int no_graphs) {
    char dir[600];
    tv_engine *e = NULL;
    snprintf(dir, sizeof dir, "%s/%s", tv_golden("models"), model);
    tv_engine_options o = {.model = dir, .device = "cuda", .no_graphs = no_graphs};
    if (tv_engine_open(&o, &e, &err) != TV_OK) fprintf(stderr, "    %s\n", err.message);
    TV_ASSERT(e);
    return e;
}

static tv_session *open_session(tv_engine *e, const tv_serving *serving, int64_t positions) {
    tv_session *s = NULL;
    if (tv_session_open(e, serving, N, positions, &s, &err) != TV_OK) fprintf(stderr, "    %s\n", err.message);
    TV_ASSERT(s);
    return s;
}

static tv_serving side(const char *backend, int fixed) {
    tv_serving s = tv_serving_default();
    snprintf(s.backend, sizeof s.backend, "%s", backend);
    s.reduction_fixed = fixed;
    return s;
}

static tv_trace *sample_watched(tv_session *s, const tv_progress *progress) {
    tv_job job = {.N = N, .n = LENGTH, .P = 3, .prompt_ids = prompts, .prompt_offsets = offsets};
    job.prompt_index = prompt_index, job.seed = 7;
    tv_trace *t = NULL;
    CHECK_OK(tv_session_sample(s, &job, 'a', progress, &t, &err), &err);
    TV_ASSERT(t);
    return t;
}
static tv_trace *sample(tv_session *s) { return sample_watched(s, NULL); }

static void check_same(const tv_trace *a, const tv_trace *b) {
    const size_t cells = N * LENGTH, k = (size_t)a->k;
    CHECK_BYTES(a->tokens, b->tokens, cells * sizeof *a->tokens);
    CHECK_BYTES(a->topk_ids, b->topk_ids, cells * k * sizeof *a->topk_ids);
    CHECK_BYTES(a->topk_logprobs, b->topk_logprobs, cells * k * sizeof *a->topk_logprobs);
    CHECK_BYTES(a->token_logprobs, b->token_logprobs, cells * sizeof *a->token_logprobs);
}

/* K04: sampling and replay with graphs, twice, and without. Arrivals are staggered in half of the cases: the running
 * batch then grows and shrinks. */
static void test_graphs_give_the_bits_of_launches(void) {
    static const struct {
        const char *model, *backend;
        int fixed;
        tv_arrivals arrivals;
        tv_kv_dtype kv_dtype;
    } cases[] = {{"qwen3-dense", "flash", 0, TV_ARRIVALS_TOGETHER, TV_KV_BF16},
                 {"qwen3-dense", "math", 1, TV_ARRIVALS_STAGGERED, TV_KV_INT8},
                 {"qwen2-dense", "flash", 1, TV_ARRIVALS_STAGGERED, TV_KV_FP8},
                 {"qwen3-moe-mixed", "eager", 0, TV_ARRIVALS_TOGETHER, TV_KV_BF16},
                 {"qwen3-dense", "cudnn", 0, TV_ARRIVALS_STAGGERED, TV_KV_BF16},
                 {"qwen2-dense", "cudnn", 1, TV_ARRIVALS_TOGETHER, TV_KV_BF16}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tv_trace *drawn[2], *again[2], *replayed[2];
        for (int no_graphs = 0; no_graphs < 2; no_graphs++) {
            tv_engine *e = open_engine(cases[c].model, no_graphs);
            tv_serving serving = side(cases[c].backend, cases[c].fixed);
            serving.arrivals = cases[c].arrivals, serving.kv_dtype = cases[c].kv_dtype;
            tv_session *s = open_session(e, &serving, POSITIONS);
            drawn[no_graphs] = sample(s);
            again[no_graphs] = sample(s);
            TV_ASSERT(tv_session_replay(s, drawn[no_graphs], 'a', 0, NULL, &replayed[no_graphs], &err) == TV_OK);
            const uint64_t launches = e->dev->graph_launches;
            printf("     %-15s %-5s %s: %llu steps as graphs\n", cases[c].model, cases[c].backend,
                   no_graphs ? "eager " : "graphs", (unsigned long long)launches);
            CHECK(no_graphs ? launches == 0 : launches > 30);
            tv_session_close(s);
            tv_engine_close(e);
        }
        check_same(drawn[0], drawn[1]);
        check_same(again[0], drawn[1]);
        check_same(replayed[0], replayed[1]);
        for (int i = 0; i < 2; i++) tv_trace_close(drawn[i]), tv_trace_close(again[i]), tv_trace_close(replayed[i]);
    }
}

/* A plan of cuDNN's whose engine does not know CUDA graphs: every step is launched, with the same bits, and the plan's
 * line says so. */
static void test_unrecordable_plans(void) {
    tv_trace *drawn[2];
    for (int recordable = 0; recordable < 2; recordable++) {
        recordable ? unsetenv("SIMT_CUDNN_UNRECORDABLE") : setenv("SIMT_CUDNN_UNRECORDABLE", "1", 1);
        tv_engine *e = open_engine("qwen3-dense", 0);
        tv_serving serving = side("cudnn", 0);
        tv_session *s = open_session(e, &serving, POSITIONS);
        drawn[recordable] = sample(s);
        CHECK(recordable ? e->dev->graph_launches > 10 : e->dev->graph_launches == 0);
        CHECK((strstr(drawn[recordable]->libraries, "not recorded in graphs") == NULL) == recordable);
        tv_session_close(s);
        tv_engine_close(e);
    }
    check_same(drawn[0], drawn[1]);
    tv_trace_close(drawn[0]), tv_trace_close(drawn[1]);
}

/* Traces name what libraries chose for their own session's steps, also when recordings ran; a session on the same card
 * that left nothing to cuDNN does not name it. */
static void test_traces_name_library_choices(void) {
    tv_engine *e = open_engine("qwen3-dense", 0);
    const tv_serving a = side("cudnn", 0), b = side("math", 0);
    tv_session *s[2] = {open_session(e, &a, POSITIONS), open_session(e, &b, POSITIONS)};
    tv_trace *t[2] = {sample(s[0]), sample(s[1])}, *replayed = NULL;
    CHECK_OK(tv_session_replay(s[0], t[0], 'a', 0, NULL, &replayed, &err), &err);
    for (int i = 0; i < 2; i++) {
        const tv_trace *cudnn = i ? replayed : t[0];
        CHECK(strstr(cudnn->libraries, "\"cuDNN, 4 sequences, 1 row, 256 keys: stand-in\"") != NULL);
        CHECK(strstr(cudnn->libraries, "\"cuBLASLt: ") != NULL);
    }
    CHECK(strstr(t[1]->libraries, "cuDNN") == NULL && strstr(t[1]->libraries, "\"cuBLASLt: ") != NULL);
    tv_trace_close(t[0]), tv_trace_close(t[1]), tv_trace_close(replayed);
    tv_session_close(s[0]), tv_session_close(s[1]);
    tv_engine_close(e);
}

static uint64_t seen[LENGTH];
static int n_seen;
static int count_allocations(void *user, int32_t id) {
    (void)user, (void)id;
    if (n_seen < LENGTH) seen[n_seen++] = simt_allocations();
    return 0;
}

/* Nothing is allocated on the card or pinned from the second decode step on, with graphs and without, whatever the
 * length; and a second continuation allocates nothing at all. */
static void test_steps_allocate_nothing(void) {
    for (int no_graphs = 0; no_graphs < 2; no_graphs++)
        for (int b = 0; b < 4; b++) {
            static const char *const backends[] = {"flash", "math", "eager", "cudnn"};
            tv_engine *e = open_engine("qwen3-moe-mixed", no_graphs);
            tv_serving serving = side(backends[b], 0);
            tv_session *s = open_session(e, &serving, POSITIONS);
            for (int run = 0; run < 2; run++) {
                uint64_t before = simt_allocations();
                n_seen = 0;
                CHECK_OK(tv_session_generate(s, prompts, 9, LENGTH, 1, count_allocations, NULL, &err), &err);
                CHECK_INT(n_seen, LENGTH);
                CHECK_INT(seen[LENGTH - 1], seen[1]);
                if (run) CHECK_INT(seen[LENGTH - 1], before);
            }
            tv_session_close(s);
            tv_engine_close(e);
        }
}

/* Launches of one decode step of all sequences at pos (the longest) and before, as a graph; reach as steps.c sets it.
 */
static cuda_rt_graph *launches_at(tv_session *s, int pos, int reach) {
    tv_dev *dev = s->engine->dev;
    tv_segment segments[N];
    int run;
    for (int i = 0; i < N; i++) segments[i] = (tv_segment){.slot = i, .row = i, .n_rows = 1, .pos = pos >> i};
    TV_ASSERT(cuda_step_begin(dev, s, NULL, segments, s->in, N, &run, &err) == TV_OK && run);
    tv_step step = {.ids = s->in, .segments = segments, .n_segments = N, .M = N, .logit_rows = s->in, .n_logits = N};
    step.kv = s->kv.layers, step.backend = s->backend, step.plan = s->plan;
    cuda_rt_graph *graph = NULL;
    dev->reach = reach;
    TV_ASSERT(cuda_rt_capture_begin(dev->stream, &err) == TV_OK);
    CHECK_OK(tv_forward(s->engine->model, s->ws, &step, &err), &err);
    TV_ASSERT(cuda_rt_capture_end(dev->stream, &graph, &err) == TV_OK);
    TV_ASSERT(cuda_step_end(dev, TV_OK, &err) == TV_OK);
    return graph;
}

/* K04: what a graph holds does not depend on lengths within one reach: another capture gives the same launches. Without
 * the envelope it would not: then this test could not fail. */
static void test_graphs_hold_no_lengths(void) {
    static const char *const backends[] = {"flash", "math", "eager", "cudnn"};
    for (int b = 0; b < 4; b++) {
        tv_engine *e = open_engine(b ? "qwen3-dense" : "qwen3-moe", 0);
        tv_serving serving = side(backends[b], 1);
        tv_session *s = open_session(e, &serving, 1000);
        for (int run = 0; run < 2; run++) { /* at the end, so that the scratch and the envelope are large enough */
            tv_step_io *io = tv_step_begin(s, N, N, N);
            for (int i = 0; i < N; i++) {
                io->segments[i] = (tv_segment){.slot = i, .row = i, .n_rows = 1, .pos = 999};
                io->ids[i] = i, io->logit_rows[i] = i, io->token[i] = -1, io->position[i] = 0, io->trajectory[i] = i;
            }
            CHECK_OK(tv_step_run(s, TV_STEP_SCORE, 0, &err), &err);
        }
        CHECK_INT(e->dev->graph_launches, 1);
        cuda_rt_graph *first = launches_at(s, 513, 768), *second = launches_at(s, 700, 768),
                      *beyond = launches_at(s, 800, 1024);
        CHECK(simt_same_graph(first, second));
        CHECK_INT(simt_same_graph(first, beyond), b == 3); /* cuDNN's extents do not follow lengths under fixed */
        cuda_rt_graph_close(first), cuda_rt_graph_close(second), cuda_rt_graph_close(beyond);
        tv_session_close(s);
        tv_engine_close(e);
    }
}

/* A pass reports its progress after every step. */
static void count_step(void *user, uint64_t done, uint64_t total) {
    uint64_t *steps = user;
    ++*steps;
    (void)done, (void)total;
}

/* The host waits once a block of steps, in sampling and in replay, with graphs and without; with one step in flight,
 * and where a caller looks at each token, once a step. The bits are the same. */
static void test_a_wait_a_block(void) {
    tv_trace *drawn[2] = {0}, *replayed[2] = {0};
    for (int variant = 0; variant < 4; variant++) {
        const int alone = variant & 1;
        tv_engine *e = open_engine("qwen3-dense", variant >> 1);
        if (alone) e->in_flight = 1;
        tv_serving serving = side("flash", 0);
        serving.eos = TV_EOS_IGNORE, serving.arrivals = TV_ARRIVALS_STAGGERED, serving.prefill_chunk = 3;
        tv_session *s = open_session(e, &serving, POSITIONS);
        const uint64_t block = alone ? 1 : 8;
        CHECK_INT(s->n_flights, alone ? 1 : 16);
        tv_trace *warm = sample(s), *t = NULL;
        for (int replay = 0; replay < 2; replay++) {
            uint64_t steps = 0, before = simt_waits();
            tv_progress progress = {count_step, &steps};
            if (replay)
                CHECK_OK(tv_session_replay(s, warm, 'a', 0, &progress, &t, &err), &err);
            else
                t = sample_watched(s, &progress);
            const uint64_t waits = simt_waits() - before;
            printf("     %s, %s: %llu waits in %llu steps\n", replay ? "replay" : "sample",
                   alone ? "one in flight" : "16 in flight", (unsigned long long)waits, (unsigned long long)steps);
            CHECK(steps >= LENGTH);
            CHECK_INT(waits, (steps + block - 1) / block);
            tv_trace **first = replay ? replayed : drawn;
            if (variant == 0) first[0] = t;
            if (variant) check_same(first[0], t), tv_trace_close(t);
        }
        tv_trace_close(warm);
        uint64_t before = simt_waits();
        CHECK_OK(tv_session_generate(s, prompts, 9, LENGTH, 1, count_allocations, NULL, &err), &err);
        CHECK_INT(simt_waits() - before, LENGTH + 2); /* the prompt is three chunks */
        tv_session_close(s);
        tv_engine_close(e);
    }
    tv_trace_close(drawn[0]), tv_trace_close(replayed[0]);
}

/* Results that nothing waited for are not there, and inputs are the card's until then: a second step in flight does not
 * touch the first. */
static void test_results_come_with_the_wait(void) {
    tv_engine *e = open_engine("qwen3-dense", 1);
    tv_serving serving = side("flash", 0);
    tv_session *s = open_session(e, &serving, POSITIONS);
    float first[2];
    for (int run = 0; run < 2; run++) { /* one at a time, then both at once */
        for (int i = 0; i < 2; i++) {
            tv_step_io *io = tv_step_begin(s, 1, 1, 1);
            io->segments[0] = (tv_segment){.slot = 0, .row = 0, .n_rows = 1, .pos = i};
            io->ids[0] = 7 + i, io->logit_rows[0] = 0, io->token[0] = 3, io->position[0] = 0, io->trajectory[0] = 0;
            CHECK_OK(tv_step_submit(s, TV_STEP_SCORE, 0, &err), &err);
            CHECK(io->bad[0] == -1 && !(io->token_logprob[0] <= 0));
            if (run) continue;
            CHECK_OK(tv_step_collect(s, &err), &err);
            first[i] = s->io.token_logprob[0];
        }
        for (int i = 0; run && i < 2; i++) {
            CHECK_OK(tv_step_collect(s, &err), &err);
            CHECK(s->io.bad[0] == 0 && s->io.token_logprob[0] == first[i]);
        }
    }
    CHECK(first[0] != first[1]);
    tv_session_close(s);
    tv_engine_close(e);
}

static const tv_test tests[] = {{"graphs_give_the_bits_of_launches", test_graphs_give_the_bits_of_launches},
                                {"unrecordable_plans", test_unrecordable_plans},
                                {"traces_name_library_choices", test_traces_name_library_choices},
                                {"steps_allocate_nothing", test_steps_allocate_nothing},
                                {"graphs_hold_no_lengths", test_graphs_hold_no_lengths},
                                {"a_wait_a_block", test_a_wait_a_block},
                                {"results_come_with_the_wait", test_results_come_with_the_wait}};
TV_TEST_MAIN(tests)
