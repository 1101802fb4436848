/* Folded passes: the averages are those of the passes, whatever stopped in between, and nothing else is taken in. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/distance.h"
#include "tests/check.h"
#include "traces/fold.h"

enum { N = 3, LENGTH = 4, K = 6, READOUT = 4, IDS = 9 };

static double record(const int32_t *ids, const float *lps, int64_t k, int readout, double *p) {
    return tv_record_probs(ids, lps, k, (tv_readout){readout, 0}, p);
}

/* Pass `pass` of side a over set b: K of IDS ids in each cell, another few in every pass; trajectory 1 ends early. */
static tv_trace *make_pass(int64_t pass) {
    tv_rng rng = {(uint64_t)pass + 1};
    tv_err err = {0};
    tv_trace *t;
    TV_ASSERT(tv_trace_new(N, LENGTH, K, 1, 1, &t, &err) == TV_OK);
    tv_trace_mut m = tv_trace_writable(t);
    t->side = tv_xstrdup("a"), t->set = tv_xstrdup("b"), t->config_json = tv_xstrdup("{\"order\":\"shuffled\"}");
    t->pass = pass, t->temperature = 1;
    m.lengths[1] = 2;
    for (int64_t i = 0; i < N; i++) m.trajectory[i] = i;
    for (int64_t cell = 0; cell < N * LENGTH; cell++) {
        m.tokens[cell] = (int32_t)(cell % IDS);
        float lp = -0.3f;
        for (int64_t j = 0; j < K; j++) {
            m.topk_ids[cell * K + j] = (int32_t)((j * (j < 4 ? 1 : 2) + (int64_t)(tv_rng_uniform(&rng) * 2)) % IDS);
            for (int64_t l = 0; l < j; l++) /* each id once */
                if (m.topk_ids[cell * K + l] == m.topk_ids[cell * K + j])
                    m.topk_ids[cell * K + j] = (m.topk_ids[cell * K + j] + 1) % IDS, l = -1;
            m.topk_logprobs[cell * K + j] = lp -= 0.9f + (float)tv_rng_uniform(&rng);
        }
    }
    tv_trace_clear_tails(t);
    return t;
}

/* The mean probability of id in cell (i,t) over passes first..end-1, in plain double sums. */
static double mean_of(int64_t first, int64_t end, int64_t cell, int32_t id) {
    double sum = 0;
    for (int64_t pass = first; pass < end; pass++) {
        tv_trace *t = make_pass(pass);
        double mass = 0, own = 0;
        for (int64_t j = 0; j < READOUT; j++) {
            const double p = exp((double)t->topk_logprobs[cell * K + j]);
            mass += p;
            if (t->topk_ids[cell * K + j] == id) own = p;
        }
        sum += own / mass;
        tv_trace_close(t);
    }
    return sum / (double)(end - first);
}

/* Halves, their quarters and an odd last pass end a fold, at any R; the folds cover every pass once. */
static void bounds(void) {
    int64_t bound[TV_FOLD_MOST + 1];
    for (int64_t R = 1; R < 70; R++) {
        const int folds = tv_fold_bounds(R, bound);
        CHECK(folds >= 1 && folds <= TV_FOLD_MOST && bound[0] == 0 && bound[folds] == R);
        const int64_t h = R / 2, even = h - h % 2, ends[] = {even / 2, even, 3 * (even / 2), 2 * even, h, 2 * h};
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
            int hit = 0;
            for (int f = 0; f <= folds; f++) hit |= bound[f] == ends[i];
            CHECK(hit);
        }
        for (int64_t pass = 0; pass < R; pass++) {
            const int f = tv_fold_of_pass(R, pass);
            CHECK(bound[f] <= pass && pass < bound[f + 1]);
        }
    }
    CHECK_INT(tv_fold_bounds(16, bound), 4);
    CHECK_INT(tv_fold_bounds(1000, bound), 4); /* disk does not grow with R */
}

static void fold_all(const char *dir, int64_t R, int64_t from, int64_t to) {
    tv_err err = {0};
    for (int64_t pass = from; pass < to; pass++) {
        tv_trace *t = make_pass(pass);
        CHECK_OK(tv_fold_pass(dir, t, R, READOUT, record, &(tv_fold_facts){.differing = pass, .compared = 10}, &err),
                 &err);
        tv_trace_close(t);
    }
}

/* Each cell's ids are the union of the readouts, their sums those of plain arithmetic, and behind an end nothing. */
static void averages(void) {
    tv_err err = {0};
    tv_fold *f = NULL;
    const int64_t R = 12;
    fold_all(tv_test_dir(), R, 0, R);
    int64_t count = 0;
    CHECK_OK(tv_fold_count(tv_test_dir(), 0, 1, R, READOUT, &count, &err), &err);
    CHECK_INT(count, R);
    char *path = tv_fold_path(tv_test_dir(), 0, 1, 2);
    if (CHECK_OK(tv_fold_open(path, &f, &err), &err)) {
        CHECK_INT(f->first, 6), CHECK_INT(f->end, 9), CHECK_INT(f->count, 3);
        CHECK_INT(f->facts.differing, 6 + 7 + 8), CHECK_INT(f->facts.compared, 30);
        CHECK(!f->identical && f->k > READOUT); /* the passes do differ */
        for (int64_t cell = 0; cell < N * LENGTH; cell++) {
            double seen[IDS] = {0}, total = 0;
            for (int64_t j = 0; j < f->k; j++)
                if (f->ids[cell * f->k + j] >= 0) seen[f->ids[cell * f->k + j]] = f->sums[cell * f->k + j];
            const int ended = cell / LENGTH == 1 && cell % LENGTH >= 2;
            for (int32_t id = 0; id < IDS; id++) {
                CHECK_NEAR(seen[id] / 3, ended ? 0 : mean_of(6, 9, cell, id), 1e-14);
                total += seen[id];
            }
            CHECK_NEAR(total, ended ? 0 : 3, 1e-14);
        }
        tv_fold_free(f);
    }
    free(path);
}

/* However often the folder was left and taken up again, every file has the same bytes: here once in memory, then by
 * files alone. Passes out of their order, which would round otherwise, are refused. */
static void resume(void) {
    tv_err err = {0};
    char *dir = tv_path_join(tv_test_dir(), "parts"), *path = tv_fold_path(tv_test_dir(), 0, 1, 1),
         *again = tv_fold_path(dir, 0, 1, 1);
    CHECK_OK(tv_dir_make(dir, &err), &err);
    fold_all(dir, 9, 0, 2), fold_all(dir, 9, 2, 4);
    tv_trace *first = make_pass(2), *second = make_pass(3);
    tv_fold *f = tv_fold_new(first, 9, 1, READOUT);
    CHECK_FAILS(tv_fold_add(f, second, record, &(tv_fold_facts){0}, &err), TV_EARG, &err, "in their order");
    CHECK_OK(tv_fold_add(f, first, record, &(tv_fold_facts){.differing = 2, .compared = 10}, &err), &err);
    CHECK_FAILS(tv_fold_add(f, first, record, &(tv_fold_facts){0}, &err), TV_EARG, &err, "came after 1 of them");
    CHECK_OK(tv_fold_add(f, second, record, &(tv_fold_facts){.differing = 3, .compared = 10}, &err), &err);
    CHECK_OK(tv_fold_write(f, path, &err), &err);
    char *text[2] = {NULL, NULL};
    size_t size[2] = {0, 1};
    CHECK_OK(tv_file_read(path, 1 << 20, &text[0], &size[0], &err), &err);
    CHECK_OK(tv_file_read(again, 1 << 20, &text[1], &size[1], &err), &err);
    if (CHECK_INT(size[1], size[0])) CHECK_BYTES(text[1], text[0], size[0]);
    free(text[0]), free(text[1]);
    tv_fold_free(f);
    tv_trace_close(first), tv_trace_close(second);
    free(dir), free(path), free(again);
}

/* Passes of another measurement, and folds divided for another one, are refused by the field that differs. */
static void refusals(void) {
    tv_err err = {0};
    int64_t count;
    fold_all(tv_test_dir(), 8, 0, 1);
    tv_trace *t = make_pass(1);
    const tv_fold_facts none = {0};
    CHECK_FAILS(tv_fold_pass(tv_test_dir(), t, 12, READOUT, record, &none, &err), TV_EARG, &err, "folded for R = 8");
    CHECK_FAILS(tv_fold_pass(tv_test_dir(), t, 8, 3, record, &none, &err), TV_EARG, &err, "readout 4");
    CHECK_FAILS(tv_fold_count(tv_test_dir(), 0, 1, 6, READOUT, &count, &err), TV_EARG, &err, "R = 8");
    t->temperature = 0.5;
    CHECK_FAILS(tv_fold_pass(tv_test_dir(), t, 8, READOUT, record, &none, &err), TV_EARG, &err, "another temperature");
    t->temperature = 1;
    t->config_json[2] = 'x';
    CHECK_FAILS(tv_fold_pass(tv_test_dir(), t, 8, READOUT, record, &none, &err), TV_EARG, &err, "configuration");
    t->config_json[2] = 'o';
    tv_trace_writable(t).tokens[0]++;
    CHECK_FAILS(tv_fold_pass(tv_test_dir(), t, 8, READOUT, record, &none, &err), TV_EARG, &err, "another tokens");
    tv_trace_close(t);
}

/* A file of damaged sums is refused, not averaged. */
static void damaged(void) {
    tv_err err = {0};
    tv_trace *t = make_pass(0);
    tv_fold *f = tv_fold_new(t, 4, 0, READOUT), *again = NULL;
    char *path = tv_fold_path(tv_test_dir(), 0, 1, 0);
    CHECK_OK(tv_fold_add(f, t, record, &(tv_fold_facts){0}, &err), &err);
    const double good = f->sums[0], bad[] = {NAN, -0.1, 1.5};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        f->sums[0] = bad[i];
        CHECK_OK(tv_fold_write(f, path, &err), &err);
        CHECK_FAILS(tv_fold_open(path, &again, &err), TV_EFORMAT, &err, "sums[0,0]");
    }
    f->sums[0] = good;
    f->ids[1] = f->ids[0];
    CHECK_OK(tv_fold_write(f, path, &err), &err);
    CHECK_FAILS(tv_fold_open(path, &again, &err), TV_EFORMAT, &err, "damaged");
    f->count = 3; /* more than fold 0 of 4 passes takes */
    CHECK_OK(tv_fold_write(f, path, &err), &err);
    CHECK_FAILS(tv_fold_open(path, &again, &err), TV_EFORMAT, &err, "are not fold 0 of 4");
    tv_fold_free(f);
    tv_trace_close(t);
    free(path);
}

static const tv_test tests[] = {
    {"bounds", bounds}, {"averages", averages}, {"resume", resume}, {"refusals", refusals}, {"damaged", damaged}};
TV_TEST_MAIN(tests)
