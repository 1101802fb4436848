/* Sampling: the generator against its published vectors, the draw against its definition, and independence from the
 * batch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/sample.h"
#include "kernels/ops.h"
#include "kernels/philox.h"
#include "tests/check.h"

static tv_dev *open_dev(int threads) {
    tv_err err = {0};
    tv_dev *dev = NULL;
    tv_dev_options options = {.threads = threads, .isa = "auto"};
    CHECK_OK(tv_ops_cpu.open(&options, &dev, &err), &err);
    return dev;
}

/* The known answers of Random123 for philox4x32-10. */
static void test_sample_philox_known_answers(void) {
    static const struct {
        uint64_t lo, hi, key;
        uint32_t want[4];
    } rows[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        tv_philox4 got = {{0xcacacaca, 0xcacacaca, 0xcacacaca, 0xcacacaca}};
        got = tv_philox(rows[i].key, rows[i].lo, rows[i].hi);
        for (int j = 0; j < 4; j++) CHECK_INT(got.v[j], rows[i].want[j]);
    }
}

/* M06: u at both ends and totals that rounding leaves short of 1 or beyond: always an index of nonzero probability. */
static void test_sample_pick_ends(void) {
    static const float us[] = {0, 0x1p-24f, 0.5f, 1 - 0x1p-24f};
    tv_rng rng = {3};
    for (int trial = 0; trial < 3000; trial++) {
        float lp[128];
        int n = 1 + (int)(tv_rng_next(&rng) % 128), alive = 1 + (int)(tv_rng_next(&rng) % (unsigned)n);
        double at = -3 * tv_rng_uniform(&rng);
        for (int i = 0; i < n; i++) {
            lp[i] = i < alive ? (float)at : -INFINITY;
            at -= (trial % 3 ? 0.3 : 4) * tv_rng_uniform(&rng);
        }
        for (int u = 0; u < 4; u++) {
            int got = cpu_pick(lp, n, us[u]);
            if (!CHECK(got >= 0 && got < alive && lp[got] - lp[0] > -88)) return;
            if (u == 0) CHECK_INT(got, 0);
        }
    }
    const float far[] = {0, -200, -INFINITY}, equal[] = {-1, -1, -1, -1}, none[] = {-INFINITY, -INFINITY};
    const float nan[] = {NAN, 0}, short_of_1[] = {logf(0.5f), logf(0.3f), logf(0.1999999f), -INFINITY};
    CHECK_INT(cpu_pick(short_of_1, 4, 1 - 0x1p-24f), 2); /* they add up to 0.9999999 */
    CHECK_INT(cpu_pick(far, 3, 1 - 0x1p-24f), 0);        /* e^-200 is 0 in f32 */
    for (int i = 0; i < 4; i++) CHECK_INT(cpu_pick(equal, 4, 0.25f * (float)i), i);
    CHECK_INT(cpu_pick(equal, 4, 1 - 0x1p-24f), 3);
    CHECK_INT(cpu_pick(equal, 2, 0.75f), 1); /* renormalised over what is kept */
    CHECK_INT(cpu_pick(none, 2, 0.5f), -1);
    CHECK_INT(cpu_pick(nan, 2, 0.5f), -1);
    CHECK_INT(cpu_pick(nan, 0, 0.5f), -1);
    const float nan_inside[] = {0, -1, NAN, -INFINITY}; /* no total to compare with: still one of nonzero probability */
    CHECK_INT(cpu_pick(nan_inside, 4, 0.5f), 1);
}

/* Frequencies of 40,000 draws over the renormalised first 8 of 12: chi-square with 7 degrees of freedom. */
static void test_sample_frequencies(void) {
    enum { N = 40000, K = 12, TOP = 8 };
    tv_err err = {0};
    tv_dev *dev = open_dev(2);
    float row[K], *lp = malloc(sizeof *lp * N * K);
    int32_t *ids = malloc(sizeof *ids * N * K), *position = calloc(N, sizeof *position),
            *token = malloc(sizeof *token * N);
    int64_t *trajectory = malloc(sizeof *trajectory * N);
    double mass = 0;
    for (int j = 0; j < K; j++) row[j] = (float)(-0.5 - 0.4 * j);
    for (int j = 0; j < TOP; j++) mass += exp(row[j]);
    for (int m = 0; m < N; m++) {
        memcpy(lp + (size_t)m * K, row, sizeof row);
        for (int j = 0; j < K; j++) ids[(size_t)m * K + j] = 100 + 3 * j;
        trajectory[m] = m;
    }
    tv_sample_args a = {ids, lp, trajectory, position, token, N, K, TOP, 42};
    CHECK_OK(tv_ops_cpu.sample(dev, &a, &err), &err);
    double count[K] = {0}, chi2 = 0;
    for (int m = 0; m < N; m++) {
        int j = (token[m] - 100) / 3;
        if (!CHECK(token[m] >= 100 && j < TOP)) break;
        count[j]++;
    }
    for (int j = 0; j < TOP; j++) {
        double want = N * exp(row[j]) / mass;
        chi2 += (count[j] - want) * (count[j] - want) / want;
    }
    CHECK(chi2 < 18.5); /* 1% quantile; the seed is fixed */
    CHECK(chi2 > 0.5);
    free(lp), free(ids), free(position), free(token), free(trajectory);
    tv_ops_cpu.close(dev);
}

/* M04: a draw depends on seed, trajectory and position alone: not on row, neighbours, batch size or threads; each of
 * the three changes it. */
static void test_sample_neighbours(void) {
    enum { M = 64, K = 20 };
    tv_err err = {0};
    tv_dev *one = open_dev(1), *two = open_dev(2);
    tv_rng rng = {8};
    float lp[M * K];
    int32_t ids[M * K], position[M], token[M], again[M], alone;
    int64_t trajectory[M];
    for (int m = 0; m < M; m++) {
        for (int j = 0; j < K; j++)
            lp[m * K + j] = (float)(-3 - 0.01 * j), ids[m * K + j] = (int)(tv_rng_next(&rng) % 100000);
        trajectory[m] = (int64_t)(tv_rng_next(&rng) >> 1);
        position[m] = (int)(tv_rng_next(&rng) % 500);
    }
    tv_sample_args a = {ids, lp, trajectory, position, token, M, K, K, 7};
    CHECK_OK(tv_ops_cpu.sample(one, &a, &err), &err);
    a.token = again;
    CHECK_OK(tv_ops_cpu.sample(two, &a, &err), &err);
    CHECK_BYTES(again, token, sizeof token);
    for (int m = 0; m < M; m++) {
        tv_sample_args b = {ids + m * K, lp + m * K, trajectory + m, position + m, &alone, 1, K, K, 7};
        CHECK_OK(tv_ops_cpu.sample(two, &b, &err), &err);
        CHECK_INT(alone, token[m]);
    }
    for (int change = 0; change < 3; change++) {
        int differ = 0;
        if (change == 0) a.seed = 8;
        for (int m = 0; m < M; m++) trajectory[m] += change == 1, position[m] += change == 2;
        CHECK_OK(tv_ops_cpu.sample(one, &a, &err), &err);
        for (int m = 0; m < M; m++) differ += again[m] != token[m];
        CHECK(differ > M / 2);
        a.seed = 7;
        for (int m = 0; m < M; m++) trajectory[m] -= change == 1, position[m] -= change == 2;
    }
    tv_ops_cpu.close(one), tv_ops_cpu.close(two);
}

/* A record without any probability gives -1 (logprobs has flagged its row), and does not disturb others; top_k is
 * checked. */
static void test_sample_absent(void) {
    tv_err err = {0};
    tv_dev *dev = open_dev(1);
    float lp[] = {-INFINITY, -INFINITY, 0, -INFINITY};
    int32_t ids[] = {-1, -1, 6, -1}, position[] = {0, 0}, token[2];
    int64_t trajectory[] = {0, 1};
    tv_sample_args a = {ids, lp, trajectory, position, token, 2, 2, 2, 1};
    CHECK_OK(tv_ops_cpu.sample(dev, &a, &err), &err);
    CHECK_INT(token[0], -1);
    CHECK_INT(token[1], 6);
    a.top_k = 3;
    CHECK_FAILS(tv_ops_cpu.sample(dev, &a, &err), TV_EARG, &err, "top_k=3");
    tv_ops_cpu.close(dev);
}

static const tv_test tests[] = {
    {"sample_philox_known_answers", test_sample_philox_known_answers},
    {"sample_pick_ends", test_sample_pick_ends},
    {"sample_frequencies", test_sample_frequencies},
    {"sample_neighbours", test_sample_neighbours},
    {"sample_absent", test_sample_absent},
};
TV_TEST_MAIN(tests)
