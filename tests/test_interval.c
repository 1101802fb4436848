/* Error bars: closed forms, clusters, coverage, and reproducibility of the bootstrap. */
#include "estimator/interval.h"

#include <math.h>
#include <omp.h>

#include "kernels/philox.h"
#include "tests/check.h"

static void test_two_arms(void) {
    const double a[4] = {0, 1, 0, 1}, b[3] = {0.2, 0.4, 0.6};
    tv_arms arms = {{a, b}, {4, 3}, {NULL, NULL}};
    tv_estimate e = tv_arms_estimate(&arms);
    CHECK_NEAR(e.estimate, 0.45, 1e-15);
    CHECK_NEAR(e.se, 0.5 * sqrt(1.0 / 3 / 4 + 0.04 / 3), 1e-15);
    CHECK_NEAR(e.quantile, 1.959963984540054, 1e-12);
    CHECK_INT(e.clusters, 0);
}

/* One trajectory has no error bar: NaN inside, which the report turns into null with a reason. */
static void test_one_trajectory(void) {
    const double a[1] = {0.5};
    tv_arms arms = {{a, a}, {1, 1}, {NULL, NULL}};
    tv_estimate e = tv_arms_estimate(&arms);
    CHECK_NEAR(e.estimate, 0.5, 0);
    CHECK(isnan(e.se));
    tv_err err = {0};
    double lo, hi;
    CHECK_FAILS(tv_arms_bootstrap(&arms, 0, 1000, &lo, &hi, &err), TV_EARG, &err, "at least two");
    CHECK_FAILS(tv_arms_bootstrap(&arms, 0, 39, &lo, &hi, &err), TV_EARG, &err, "at least 40");
}

/* Trajectories of one prompt are one draw: repeating each value ten times over must not narrow the error bar. */
static void test_clusters(void) {
    double value[8] = {0.1, 0.9, 0.4, 0.3, 0.6, 0.5, 0.2, 0.8}, a[80], b[80], once[8];
    int32_t cluster[80], alone[8];
    for (int i = 0; i < 80; i++) a[i] = b[i] = value[i / 10], cluster[i] = 100 - i / 10;
    for (int i = 0; i < 8; i++) once[i] = value[i], alone[i] = i;
    tv_arms ten = {{a, b}, {80, 80}, {cluster, cluster}}, one = {{once, once}, {8, 8}, {alone, alone}},
            naive = {{a, b}, {80, 80}, {NULL, NULL}};
    tv_estimate e = tv_arms_estimate(&ten), f = tv_arms_estimate(&one), g = tv_arms_estimate(&naive);
    CHECK_INT(e.clusters, 8);
    CHECK_NEAR(e.se, f.se, 1e-14);
    CHECK(g.se < 0.4 * e.se);
    CHECK_NEAR(e.quantile, 2.364624251, 1e-8);
    /* both sets share the prompts, so their errors add up instead of averaging out */
    double mean = 0.475, square = 0;
    for (int i = 0; i < 8; i++) square += (value[i] - mean) * (value[i] - mean);
    CHECK_NEAR(e.se, sqrt(square / 7 / 8), 1e-14);
    double lo, hi;
    tv_err err = {0};
    CHECK_OK(tv_arms_bootstrap(&ten, 1, 4000, &lo, &hi, &err), &err);
    CHECK_NEAR((hi - lo) / 2 / 1.96, e.se * sqrt(7.0 / 8), 0.01);
    /* one prompt only: independent given the prompt */
    for (int i = 0; i < 80; i++) cluster[i] = 3;
    e = tv_arms_estimate(&ten);
    CHECK_INT(e.clusters, 0);
    CHECK_NEAR(e.se, g.se, 0);
}

static void test_bootstrap(void) {
    tv_rng rng = {11};
    double a[200], b[150];
    for (int i = 0; i < 200; i++) a[i] = tv_rng_uniform(&rng);
    for (int i = 0; i < 150; i++) b[i] = tv_rng_uniform(&rng) < 0.3;
    tv_arms arms = {{a, b}, {200, 150}, {NULL, NULL}};
    tv_estimate e = tv_arms_estimate(&arms);
    tv_err err = {0};
    double lo[3], hi[3];
    int before = omp_get_max_threads();
    for (int x = 0; x < 3; x++) {
        omp_set_num_threads(x == 1 ? 5 : 1);
        CHECK_OK(tv_arms_bootstrap(&arms, x == 2 ? 8 : 7, 4000, &lo[x], &hi[x], &err), &err);
    }
    omp_set_num_threads(before);
    CHECK(lo[0] == lo[1] && hi[0] == hi[1] && lo[0] != lo[2]);
    CHECK_NEAR(lo[0], e.estimate - 1.96 * e.se, 0.004);
    CHECK_NEAR(hi[0], e.estimate + 1.96 * e.se, 0.004);
}

/* Every replicate by hand, trajectories and clusters, and percentiles that fall between two of them. */
static void test_bootstrap_by_hand(void) {
    enum { B = 50, SEED = 3 };
    static const double x[2][3] = {{0.1, 0.7, 0.4}, {0.9, 0.2}};
    static const int32_t cluster[2][3] = {{0, 0, 1}, {1, 2}};
    static const int64_t N[2] = {3, 2};
    for (int clustered = 0; clustered < 2; clustered++) {
        tv_arms arms = {{x[0], x[1]}, {N[0], N[1]}, {NULL, NULL}};
        double values[B], lo, hi;
        tv_err err = {0};
        for (int s = 0; s < 2 && clustered; s++) arms.cluster[s] = cluster[s];
        for (uint64_t b = 0; b < B; b++) {
            double total[2] = {0, 0}, n[2] = {0, 0};
            for (int d = 0; d < (clustered ? 3 : 5); d++) {
                const int s = d >= 3, count = clustered ? 3 : (int)N[s];
                const tv_philox4 r = tv_philox(SEED, b, (uint64_t)TV_USE_BOOTSTRAP << 56 | (uint64_t)d);
                const int drawn = (int)((uint64_t)r.v[0] * (uint64_t)count >> 32);
                for (int a = 0; a < 2; a++)
                    for (int i = 0; i < N[a]; i++)
                        if (clustered ? cluster[a][i] == drawn : a == s && i == drawn) total[a] += x[a][i], n[a]++;
            }
            values[b] = !n[0] ? total[1] / n[1] : !n[1] ? total[0] / n[0] : (total[0] / n[0] + total[1] / n[1]) / 2;
        }
        for (int i = 0; i < B; i++)
            for (int j = i + 1; j < B; j++)
                if (values[j] < values[i]) {
                    const double swap = values[i];
                    values[i] = values[j], values[j] = swap;
                }
        CHECK_OK(tv_arms_bootstrap(&arms, SEED, B, &lo, &hi, &err), &err);
        CHECK_NEAR(lo, values[1] + 0.225 * (values[2] - values[1]), 1e-12); /* 0.025 of 49 is 1.225 */
        CHECK_NEAR(hi, values[47] + 0.775 * (values[48] - values[47]), 1e-12);
    }
}

static void test_coverage(void) {
    enum { RUNS = 2000, N = 60 };
    tv_rng rng = {5};
    int held = 0;
    for (int run = 0; run < RUNS; run++) {
        double x[2][N];
        for (int s = 0; s < 2; s++)
            for (int i = 0; i < N; i++) x[s][i] = tv_rng_uniform(&rng) < 0.4 ? 1 : 0.3 * tv_rng_uniform(&rng);
        tv_arms arms = {{x[0], x[1]}, {N, N}, {NULL, NULL}};
        tv_estimate e = tv_arms_estimate(&arms);
        held += fabs(e.estimate - 0.49) <= e.quantile * e.se;
    }
    CHECK(held >= 0.935 * RUNS && held <= 0.965 * RUNS);
}

static void test_t_quantile(void) {
    CHECK_NEAR(tv_t_quantile(1), 12.7062047, 1e-8);
    CHECK_NEAR(tv_t_quantile(11), 2.2009852, 1e-5);
    CHECK_NEAR(tv_t_quantile(30), 2.0422725, 1e-6);
    CHECK_NEAR(tv_t_quantile(1000000), 1.9599664, 1e-6);
    CHECK(isnan(tv_t_quantile(0)));
}

static void test_clip_and_verdict(void) {
    double lo = -0.2, hi = 1.3;
    tv_interval_clip(0.5, &lo, &hi);
    CHECK(lo == 0 && hi == 1);
    lo = 0.6, hi = 0.4; /* a bracket whose ends crossed still holds the estimate */
    tv_interval_clip(0.5, &lo, &hi);
    CHECK(lo == 0.5 && hi == 0.5);
    lo = -0.3, hi = 0.1;
    tv_interval_clip(-0.1, &lo, &hi);
    CHECK(lo == -0.1 && hi == 0.1);
    CHECK_INT(tv_interval_verdict(0.2, 0.3, 0.1), 1);
    CHECK_INT(tv_interval_verdict(0, 0.05, 0.1), -1);
    CHECK_INT(tv_interval_verdict(0.05, 0.2, 0.1), 0);
    CHECK_INT(tv_interval_verdict(0, 0, 0), -1); /* bit-identical sides pass any threshold */
}

static const tv_test tests[] = {{"interval_two_arms", test_two_arms},
                                {"interval_one_trajectory", test_one_trajectory},
                                {"interval_clusters", test_clusters},
                                {"interval_bootstrap", test_bootstrap},
                                {"interval_bootstrap_by_hand", test_bootstrap_by_hand},
                                {"interval_coverage", test_coverage},
                                {"interval_t_quantile", test_t_quantile},
                                {"interval_clip_and_verdict", test_clip_and_verdict}};
TV_TEST_MAIN(tests)
