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

static tv_trace *sample(tv_session *s) {
    tv_job job = {.N = N, .n = LENGTH, .P = 3, .prompt_ids = prompts, .prompt_offsets = offsets};
    job.prompt_index = prompt_index, job.seed = 7;
    tv_trace *t = NULL;
    CHECK_OK(tv_session_sample(s, &job, 'a', NULL, &t, &err), &err);
    TV_ASSERT(t);
    return t;
}

static void check_same(const tv_trace *a, const tv_trace *b) {
    const size_t cells = N * LENGTH, k = (size_t)a->k;
    CHECK_BYTES(a->tokens, b->tokens, cells * sizeof *a->tokens);
    CHECK_BYTES(a->topk_ids, b->topk_ids, cells * k * sizeof *a->topk_ids);
    CHECK_BYTES(a->topk_logprobs, b->topk_logprobs, cells * k * sizeof *a->topk_logprobs);
    CHECK_BYTES(a->token_logprobs, b->token_logprobs, cells * sizeof *a->token_logprobs);
}

/* Sampling and replay with graphs, twice, and without. Arrivals are staggered in half of the cases: the running batch
 * then grows and shrinks. */
static void test_graphs_give_the_bits_of_launches(void) {
    static const struct {
        const char *model, *backend;
        int fixed;
        tv_arrivals arrivals;
    } cases[] = {{"qwen3-dense", "flash", 0, TV_ARRIVALS_TOGETHER},
                 {"qwen3-dense", "math", 1, TV_ARRIVALS_STAGGERED},
                 {"qwen2-dense", "flash", 1, TV_ARRIVALS_STAGGERED},
                 {"qwen3-moe-mixed", "eager", 0, TV_ARRIVALS_TOGETHER}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tv_trace *drawn[2], *again[2], *replayed[2];
        for (int no_graphs = 0; no_graphs < 2; no_graphs++) {
            tv_engine *e = open_engine(cases[c].model, no_graphs);
            tv_serving serving = side(cases[c].backend, cases[c].fixed);
            serving.arrivals = cases[c].arrivals;
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

static uint64_t seen[LENGTH];
static int n_seen;
static int count_allocations(void *user, int32_t id) {
    (void)user, (void)id;
    seen[n_seen++] = simt_allocations();
    return 0;
}

/* Nothing is allocated on the card or pinned from the second decode step on, with graphs and without, whatever the
 * length; and a second continuation allocates nothing at all. */
static void test_steps_allocate_nothing(void) {
    for (int no_graphs = 0; no_graphs < 2; no_graphs++)
        for (int b = 0; b < 3; b++) {
            static const char *const backends[] = {"flash", "math", "eager"};
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
    const tv_segment *on_card;
    for (int i = 0; i < N; i++) segments[i] = (tv_segment){.slot = i, .row = i, .n_rows = 1, .pos = pos >> i};
    TV_ASSERT(cuda_segments(dev, segments, N, &on_card, &err) == TV_OK);
    tv_step step = {.ids = s->in, .segments = segments, .n_segments = N, .M = N, .logit_rows = s->in, .n_logits = N};
    step.kv = s->kv.layers, step.backend = s->backend, step.plan = s->plan;
    cuda_rt_graph *graph = NULL;
    dev->reach = reach;
    TV_ASSERT(cuda_rt_capture_begin(dev->stream, &err) == TV_OK);
    CHECK_OK(tv_forward(s->engine->model, s->ws, &step, &err), &err);
    TV_ASSERT(cuda_rt_capture_end(dev->stream, &graph, &err) == TV_OK);
    dev->reach = 0;
    return graph;
}

/* What a graph holds does not depend on lengths within one reach: another capture gives the same launches. Without the
 * envelope it would not: then this test could not fail. */
static void test_graphs_hold_no_lengths(void) {
    static const char *const backends[] = {"flash", "math", "eager"};
    for (int b = 0; b < 3; b++) {
        tv_engine *e = open_engine(b ? "qwen3-dense" : "qwen3-moe", 0);
        tv_serving serving = side(backends[b], 1);
        tv_session *s = open_session(e, &serving, 1000);
        tv_step_io *io =
            tv_step_begin(s, N, N, N); /* two steps at the end make the scratch and the envelope large enough */
        for (int run = 0; run < 2; run++) {
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
        CHECK(!simt_same_graph(first, beyond));
        cuda_rt_graph_close(first), cuda_rt_graph_close(second), cuda_rt_graph_close(beyond);
        tv_session_close(s);
        tv_engine_close(e);
    }
}

static const tv_test tests[] = {{"graphs_give_the_bits_of_launches", test_graphs_give_the_bits_of_launches},
                                {"steps_allocate_nothing", test_steps_allocate_nothing},
                                {"graphs_hold_no_lengths", test_graphs_hold_no_lengths}};
TV_TEST_MAIN(tests)
