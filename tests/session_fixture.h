/* A small job on the bundled model, run through sessions: what the tests of the engine share. */
#ifndef TV_SESSION_FIXTURE_H
#define TV_SESSION_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "engine/session.h"
#include "tests/check.h"

enum { N = 10, LENGTH = 24 };

static const int32_t prompt_ids[] = {1000, 5,  77, 2300, 41, 8,  900, 33, 512, 64, 7,
                                     3000, 11, 12, 13,   14, 15, 16,  17, 18,  19, 2};
static const int32_t prompt_offsets[] = {0, 7, 8, 22};
static const int32_t prompt_index[] = {0, 1, 2, 0, 0, 2, 1, 0, 2, 1};

static inline tv_job mixed_job(uint64_t seed) {
    return (tv_job){.N = N,
                    .n = LENGTH,
                    .P = 3,
                    .prompt_ids = prompt_ids,
                    .prompt_offsets = prompt_offsets,
                    .prompt_index = prompt_index,
                    .seed = seed};
}

static inline tv_engine *engine_open(int threads) {
    tv_err err = {0};
    tv_engine *e = NULL;
    CHECK_OK(tv_engine_open(&(tv_engine_options){.model = tv_bundled_model(), .device = "cpu", .threads = threads}, &e,
                            &err),
             &err);
    return e;
}

static inline tv_session *session_open(tv_engine *e, const tv_serving *serving) {
    tv_err err = {0};
    tv_session *s = NULL;
    if (e) CHECK_OK(tv_session_open(e, serving, N, 14 + LENGTH, &s, &err), &err);
    return s;
}

static inline tv_trace *sample_in(tv_session *s, const tv_job *job) {
    tv_err err = {0};
    tv_trace *t = NULL;
    if (s) CHECK_OK(tv_session_sample(s, job, 'a', NULL, &t, &err), &err);
    return t;
}

static inline tv_trace *sample(tv_engine *e, const tv_serving *serving, const tv_job *job) {
    tv_session *s = session_open(e, serving);
    tv_trace *t = sample_in(s, job);
    tv_session_close(s);
    return t;
}

static inline tv_trace *replay(tv_engine *e, const tv_serving *serving, const tv_trace *set, int64_t pass) {
    tv_err err = {0};
    tv_trace *t = NULL;
    tv_session *s = session_open(e, serving);
    if (s && set) CHECK_OK(tv_session_replay(s, set, 'b', pass, NULL, &t, &err), &err);
    tv_session_close(s);
    return t;
}

static inline int same_tokens(const tv_trace *x, const tv_trace *y) {
    return x && y && x->N == y->N && x->n == y->n && !memcmp(x->tokens, y->tokens, (size_t)(x->N * x->n) * 4) &&
           !memcmp(x->lengths, y->lengths, (size_t)x->N * 4);
}

static inline int same(const tv_trace *x, const tv_trace *y) {
    return same_tokens(x, y) && tv_trace_same(x, y, NULL, NULL);
}

#endif
