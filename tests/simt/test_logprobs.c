/* Log-probabilities of the CUDA device: bit for bit those of the CPU device, which tests hold against f64, in every
 * schedule. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/tensor.h"
#include "kernels/cuda/device.h"
#include "tests/check.h"
#include "tests/simt/rig.h"

static tv_dev *cpu, *dev;
static void open_both(void) {
    tv_err err = {0};
    CHECK_OK(tv_ops_cpu.open(&(tv_dev_options){.threads = 1, .isa = "auto"}, &cpu, &err), &err);
    dev = rig_open();
}
static void close_both(void) {
    rig_close(dev);
    tv_ops_cpu.close(cpu);
}

/* The logits of a case and what is asked of them. */
typedef struct {
    int M, V, k, n_suppressed;
    float temperature;
    const float *logits;       /* [M,V] */
    const int32_t *token;      /* [M] or NULL */
    const int32_t *suppressed; /* [n_suppressed] */
} question;

enum { N_RESULTS = 6 };
static const char *const names[N_RESULTS] = {"logits",        "topk_ids",   "topk_logprobs",
                                             "token_logprob", "token_rank", "bad"};

/* Both devices' answers, every byte of them, those to what was not asked included. NaN logits may differ in payload. */
static void ask(const question *q) {
    const size_t M = (size_t)q->M, logits = M * (size_t)q->V * 4, top = M * (size_t)q->k * 4;
    const size_t size[N_RESULTS] = {logits, top, top, M * 4, M * 4, M * 4};
    tv_err err = {0};
    void *want[N_RESULTS], *there[N_RESULTS];
    for (int i = 0; i < N_RESULTS; i++) {
        want[i] = tv_xmalloc(size[i]);
        memset(want[i], 0xff, size[i]); /* as rig_put(NULL) leaves it */
        if (!i) memcpy(want[i], q->logits, size[i]);
        there[i] = rig_put(dev, i ? NULL : q->logits, size[i]);
    }
    tv_logprobs_args a = {want[0], q->suppressed, q->token, want[1], want[2],         want[3],       want[4],
                          want[5], q->M,          q->V,     q->k,    q->n_suppressed, q->temperature};
    CHECK_OK(tv_ops_cpu.logprobs(cpu, &a, &err), &err);
    int32_t *suppressed = rig_put(dev, q->suppressed, q->suppressed ? (size_t)q->n_suppressed * 4 : 0);
    int32_t *token = rig_put(dev, q->token, q->token ? M * 4 : 0);
    a = (tv_logprobs_args){
        there[0], suppressed, q->token ? token : NULL, there[1],      there[2], there[3], there[4], there[5], q->M,
        q->V,     q->k,       q->n_suppressed,         q->temperature};
    CHECK_OK(tv_ops_cuda.logprobs(dev, &a, &err), &err);
    for (int i = 0; i < N_RESULTS; i++) {
        void *got = tv_xmalloc(size[i]);
        rig_get(dev, got, there[i]);
        if (!CHECK_BYTES(got, want[i], size[i]))
            fprintf(stderr, "    %s: M=%d V=%d k=%d T=%g suppressed=%d\n", names[i], q->M, q->V, q->k, q->temperature,
                    q->n_suppressed);
        free(got), free(want[i]), rig_drop(dev, there[i]);
    }
    rig_drop(dev, suppressed), rig_drop(dev, token);
}

static float *normals(uint64_t seed, int M, int V, double scale, int as_bf16) {
    tv_rng rng = {seed};
    float *z = tv_xmalloc(sizeof *z * (size_t)M * (size_t)V);
    for (size_t i = 0; i < (size_t)M * (size_t)V; i++) {
        z[i] = (float)(scale * tv_rng_normal(&rng));
        if (as_bf16) z[i] = tv_round_bf16(z[i]);
    }
    return z;
}

/* Vocabularies around the edges of warps and blocks, temperatures, logits with and without many ties, tokens at both
 * ends and none. */
static void test_logprobs(void) {
    static const int sizes[] = {1, 2, 31, 32, 33, 127, 511, 512, 513, 1025, 2500, 4096, 5000};
    static const float temperatures[] = {1, 0.6f, 2.5f, 0.01f, 1e-7f};
    enum { M = 4 };
    open_both();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int t = 0; t < 5; t++) {
            const int V = sizes[i], most = t % 2 ? 20 : 128;
            rig_schedule((int)(i + (size_t)t) % rig_schedules());
            float *z = normals(i * 10 + (size_t)t, M, V, 4, t % 2);
            const int32_t token[M] = {-1, 0, V - 1, V / 3};
            question q = {.M = M, .V = V, .k = V < most ? V : most, .temperature = temperatures[t], .logits = z};
            if (t != 2) q.token = token;
            ask(&q);
            q.M = 1, q.k = 1; /* alone as in a batch: both are the CPU device's */
            ask(&q);
            free(z);
        }
    rig_schedule(0);
    close_both();
}

/* The vocabulary of Qwen3, and rows of one warp to several blocks of logits. */
static void test_logprobs_large(void) {
    enum { V = 151936 };
    static const int32_t token[2] = {151935, 70000}, suppressed[] = {151643, 151645};
    open_both();
    float *z = normals(77, 2, V, 3, 0);
    for (int i = 0; i < V; i++) z[V + i] = tv_round_bf16(z[V + i]);
    question q = {2, V, 20, 2, 0.7f, z, token, suppressed};
    ask(&q);
    q.k = 128, q.temperature = 1, q.M = 1;
    ask(&q);
    free(z);
    /* As on a card of one multiprocessor: 40 rows of 10 blocks are more than it takes at a time. */
    z = normals(78, 60, 5000, 3, 0);
    dev->info.multiprocessors = 1;
    ask(&(question){.M = 60, .V = 5000, .k = 20, .temperature = 1.5f, .logits = z});
    free(z);
    close_both();
}

/* Rows that send select through its every turn: one value, ascending, descending, few finite logits, zeros of both
 * signs, all but one suppressed; in every schedule. */
static void test_logprobs_order(void) {
    enum { M = 8, V = 2200 };
    open_both();
    float *z = normals(5, M, V, 1, 0);
    for (int i = 0; i < V; i++) {
        z[i] = 1.5f;
        z[V + i] = (float)i / 8;
        z[2 * V + i] = (float)-i / 8;
        z[3 * V + i] = i % 700 == 699 ? (float)i : -INFINITY;
        z[4 * V + i] = i % 3 ? -1 : i % 2 ? 0.0f : -0.0f;
        z[5 * V + i] = (float)(i % 5);
        z[6 * V + i] = i % 2 ? -3e38f : 3e38f;
    }
    const int32_t token[M] = {1100, 0, V - 1, 5, 600, 1000, 1, 77};
    int32_t suppressed[V];
    for (int i = 0; i < V; i++) suppressed[i] = i; /* all but 1399 */
    suppressed[1399] = 0;
    static const int32_t few[] = {V - 1, 0, 1399, V - 1, 600, 600};
    for (int schedule = 0; schedule < rig_schedules(); schedule++) {
        rig_schedule(schedule);
        question q = {.M = M, .V = V, .k = 128, .temperature = 1, .logits = z, .token = token};
        ask(&q);
        q.k = 20, q.temperature = 0.8f, q.suppressed = few, q.n_suppressed = 6;
        ask(&q);
        q.temperature = 1e-9f;
        ask(&q);
    }
    rig_schedule(0);
    question q = {.M = M, .V = V, .k = 3, .temperature = 1, .logits = z, .token = token, .suppressed = suppressed};
    q.n_suppressed = V;
    ask(&q);
    free(z);
    close_both();
}

/* A NaN or +inf is found wherever it stands, suppressed ids (also twice) included, and spoils its row alone. */
static void test_logprobs_bad(void) {
    enum { M = 3, V = 1100 };
    static const int32_t token[M] = {40, 40, 40}, suppressed[] = {9, 1024, 9};
    static const int places[] = {0, 9, 31, 511, 512, 1023, 1024, 1099};
    open_both();
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (int kind = 0; kind < 3; kind++) {
            float *z = normals(6, M, V, 1, 0);
            z[V + places[i]] = kind == 0 ? NAN : kind == 1 ? INFINITY : -NAN;
            if (kind == 1) z[V + 700] = NAN;
            rig_schedule((int)i % rig_schedules());
            ask(&(question){M, V, 5, kind ? 3 : 0, 1, z, token, suppressed});
            free(z);
        }
    rig_schedule(0);
    float *z = normals(7, M, V, 1, 0);
    for (int i = 0; i < V; i++) z[V + i] = -INFINITY;
    ask(&(question){M, V, 5, 0, 1, z, token, NULL});
    free(z);
    close_both();
}

/* The logarithm of many sums: 1,500 rows of two logits far and near. */
static void test_logprobs_logarithms(void) {
    enum { M = 1500, V = 2 };
    open_both();
    float *z = normals(12, M, V, 6, 0);
    int32_t token[M];
    for (int m = 0; m < M; m++) token[m] = m % 2;
    ask(&(question){M, V, 2, 0, 0.9f, z, token, NULL});
    free(z);
    close_both();
}

static void test_logprobs_refuses(void) {
    tv_err err = {0};
    float x;
    int32_t i;
    dev = rig_open();
    tv_logprobs_args a = {
        .logits = &x, .topk_ids = &i, .topk_logprobs = &x, .bad = &i, .M = 1, .V = 1000, .k = 129, .temperature = 1};
    CHECK_FAILS(tv_ops_cuda.logprobs(dev, &a, &err), TV_EUNSUPPORTED, &err, "k=129 must be at most 128");
    a.k = 1, a.V = (1 << 20) + 1;
    CHECK_FAILS(tv_ops_cuda.logprobs(dev, &a, &err), TV_EUNSUPPORTED, &err, "V=1048577 must be at most 1048576");
    a.V = 5, a.temperature = 0;
    CHECK_FAILS(tv_ops_cuda.logprobs(dev, &a, &err), TV_EARG, &err, "temperature=0");
    rig_close(dev);
}

static const tv_test tests[] = {
    {"logprobs", test_logprobs},
    {"logprobs_large", test_logprobs_large},
    {"logprobs_order", test_logprobs_order},
    {"logprobs_bad", test_logprobs_bad},
    {"logprobs_logarithms", test_logprobs_logarithms},
    {"logprobs_refuses", test_logprobs_refuses},
};
TV_TEST_MAIN(tests)
