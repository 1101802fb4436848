/* Noise of the reads and token metrics: golden sigma and support sizes, known noise recovered, degenerate sides. */
#include "estimator/calibrate.h"
#include "estimator/histogram.h"

#include <math.h>
#include <omp.h>

#include "estimator/moments.h"
#include "estimator/permute.h"
#include "estimator/token_metrics.h"
#include "tests/check.h"
#include "tests/estimator_fixture.h"

static int side_of(const char *name) { return strncmp(name, "pi", 2) == 0 ? TV_A : TV_B; }

/* Items 7 and 8 of every fixture, renormalised and raw. */
static void test_goldens(void) {
    static const char *const GOLDENS[] = {"g1_tiny", "g2_basic", "g3_mismatch", "g4_ties"};
    tv_err err = {0};
    for (int g = 0; g < 4; g++) {
        fixture f;
        char expected[64];
        snprintf(expected, sizeof expected, "%s.expected.json", GOLDENS[g]);
        if (!fixture_open(&f, GOLDENS[g], expected, "pi", "mu")) return;
        for (int raw = 0; raw < 2; raw++) {
            tv_calibrate_options o = {.readout = {0, raw}, .stored_order = 1};
            tv_calibration c;
            if (!CHECK_OK(tv_calibrate(&f.set, &o, &c, &err), &err)) return;
            const cJSON *all = fixture_at(f.expected, raw ? "raw" : "renorm");
            const cJSON *sigma = fixture_at(all, "sigma"), *K = fixture_at(all, "K");
            CHECK(sigma && (raw || K));
            for (const cJSON *v = sigma->child; v; v = v->next) {
                const tv_calibration_part *p = &c.part[side_of(v->string)][side_of(v->string + 3)];
                for (const cJSON *x = v->child; x; x = x->next) {
                    double got = strcmp(x->string, "sigma2_union") == 0       ? p->sigma2_union
                                 : strcmp(x->string, "sigma2_union_max") == 0 ? p->sigma2_union_max
                                 : strcmp(x->string, "sigma2_realised") == 0  ? p->sigma2_realised
                                 : strcmp(x->string, "excluded") == 0         ? (double)p->excluded
                                                                              : NAN;
                    CHECK_NEAR(got, x->valuedouble, 1e-12);
                }
                CHECK(p->sigma2_union == p->sigma2_union_stored);
            }
            for (const cJSON *v = K ? K->child : NULL; v; v = v->next) {
                const tv_calibration_part *p = &c.part[side_of(v->string)][side_of(v->string + 3)];
                int at = 0;
                for (const cJSON *x = v->child; x; x = x->next, at++) {
                    CHECK_INT(p->size_r[at], atoll(x->string));
                    CHECK_NEAR(p->size_mean[at], fixture_at(x, "mean")->valuedouble, 1e-12);
                    CHECK_INT(p->size_max[at], fixture_at(x, "max")->valuedouble);
                    CHECK(p->size_p99[at] <= p->size_max[at]);
                }
                CHECK_INT(p->n_sizes, at);
            }
        }
        fixture_close(&f);
    }
}

/* Two tokens a position, of probability p (1 + noise) and the rest. */
typedef struct {
    tv_dataset data;
    int32_t *tokens, *ids;
    float *lps[64], *own;
    const int32_t *id_list[64];
    const float *lp_list[64];
} noisy;

static void noisy_make(noisy *m, int64_t N, int64_t n, int64_t R, double sigma, double drift) {
    tv_rng rng = {7};
    memset(m, 0, sizeof *m);
    m->tokens = tv_xcalloc((size_t)(N * n), 4);
    m->ids = tv_xcalloc((size_t)(N * n * 2), 4);
    for (int64_t x = 0; x < N * n; x++) m->ids[2 * x + 1] = 1;
    for (int64_t r = 0; r < R; r++) {
        m->lps[r] = tv_xcalloc((size_t)(N * n * 2), 4);
        m->id_list[r] = m->ids;
        m->lp_list[r] = m->lps[r];
        for (int64_t x = 0; x < N * n; x++) {
            double sign = x % 2 ? 1 : -1, p = 0.3 * (1 + sigma * tv_rng_normal(&rng) + sign * drift * (double)r);
            m->lps[r][2 * x] = (float)log(p);
            m->lps[r][2 * x + 1] = (float)log(1 - p);
        }
    }
    m->data.n = n;
    m->data.temperature = 1;
    for (int s = 0; s < 2; s++) {
        tv_set *set = &m->data.set[s];
        set->N = N, set->tokens = m->tokens;
        for (int e = 0; e < 2; e++)
            set->reads[e] = R, set->k[e] = 2, set->ids[e] = m->id_list, set->lps[e] = m->lp_list;
    }
}
static void noisy_free(noisy *m) {
    free(m->tokens);
    free(m->ids);
    for (int r = 0; r < 64; r++) free(m->lps[r]);
}

/* Gaussian noise of known size: both sigmas, both widths, no excess kurtosis, no autocorrelation, no drift. */
static void test_known_noise(void) {
    noisy m;
    tv_err err = {0};
    tv_calibration c;
    noisy_make(&m, 60, 40, 8, 0.02, 0);
    if (CHECK_OK(tv_calibrate(&m.data, NULL, &c, &err), &err)) {
        const tv_calibration_part *p = &c.part[0][0];
        CHECK_NEAR(tv_calibration_realised(&c, 0), 0.02, 0.001);
        /* relative variance over the support {p, 1-p}: sigma^2 p / (1 - p) */
        CHECK_NEAR(tv_calibration_union(&c, 0), 0.02 * sqrt(0.3 / 0.7), 0.001);
        CHECK_NEAR(p->width_variance, 0.02, 0.0005);
        CHECK_NEAR(p->width_median, 0.02, 0.001);
        CHECK(fabs(p->kurtosis) < 0.2);
        for (int lag = 0; lag < p->n_lags; lag++) CHECK_NEAR(p->autocorrelation[lag], -1.0 / 7, 0.04);
        CHECK_NEAR(p->autocorrelation_permuted, -1.0 / 7, 0.04);
        CHECK(fabs(p->drift_z) < 3.5);
        CHECK_NEAR(p->drift, 1, 0.15);
        CHECK(p->deviation_p50 <= p->deviation_p90 && p->deviation_p90 <= p->deviation_p99 &&
              p->deviation_p999 <= p->deviation_max * 1.01);
    }
    noisy_free(&m);
    /* A drift whose sign differs from cell to cell moves no mean, and is seen all the same. */
    noisy_make(&m, 60, 40, 8, 0.02, 0.01);
    if (CHECK_OK(tv_calibrate(&m.data, NULL, &c, &err), &err)) {
        CHECK(c.part[0][0].drift > 2 && c.part[0][0].drift_z > 5);
        CHECK(c.part[0][0].autocorrelation[0] > 0.1 && c.part[0][0].autocorrelation_permuted < 0);
        CHECK(c.part[0][0].sigma2_union_stored > 1.5 * c.part[0][0].sigma2_union);
    }
    noisy_free(&m);
}

/* Reads that agree to the bit, and reads that store the same slots in another order, carry no noise at any R: the
 * rounding of their means is not taken for some. */
static void test_equal_reads(void) {
    enum { N = 8, n = 20, K = 3 };
    static int32_t tokens[N * n], ids[2][N * n * K];
    static float lps[2][N * n * K];
    tv_rng rng = {11};
    for (int x = 0; x < N * n; x++) {
        const double p = 0.1 + 0.5 * tv_rng_uniform(&rng), q = (1 - p) * tv_rng_uniform(&rng);
        const float lp[K] = {(float)log(p), (float)log(q), (float)log(1 - p - q)};
        for (int j = 0; j < K; j++)
            for (int turned = 0; turned < 2; turned++) {
                ids[turned][x * K + (j + turned) % K] = j;
                lps[turned][x * K + (j + turned) % K] = lp[j];
            }
    }
    const int32_t *id_list[8];
    const float *lp_list[8];
    for (int turning = 0; turning < 2; turning++)
        for (int R = 2; R <= 8; R++) {
            for (int r = 0; r < R; r++) id_list[r] = ids[turning * r % 2], lp_list[r] = lps[turning * r % 2];
            tv_dataset d = {.n = n, .temperature = 1};
            for (int s = 0; s < 2; s++) {
                d.set[s].N = N, d.set[s].tokens = tokens;
                for (int e = 0; e < 2; e++)
                    d.set[s].reads[e] = R, d.set[s].k[e] = K, d.set[s].ids[e] = id_list, d.set[s].lps[e] = lp_list;
            }
            tv_err err = {0};
            tv_calibration c;
            if (!CHECK_OK(tv_calibrate(&d, NULL, &c, &err), &err)) return;
            const tv_calibration_part *p = &c.part[1][0];
            CHECK(p->tracked == N * n && p->sigma2_union == 0 && p->sigma2_union_stored == 0 &&
                  p->sigma2_realised == 0 && p->sigma2_union_max == 0);
            CHECK(p->width_variance == 0 && p->width_median == 0 && p->deviation_max == 0 && p->kurtosis == 0);
            CHECK(p->autocorrelation[0] == 0 && p->drift == 0 && isnan(p->drift_z));
        }
}

/* Two reads lie on either side of their mean: correlation -1 in any order, its only pair counted; and the support of
 * both reads is found, whichever of its sizes fills the table. */
static void test_two_reads(void) {
    noisy m;
    tv_err err = {0};
    tv_calibration c;
    noisy_make(&m, 5, 4, 2, 0.02, 0);
    for (int x = 0; x < 5 * 4; x++) m.ids[2 * x + 1] = 2; /* the second read names another token */
    int32_t *other = tv_xmalloc(sizeof *other * 2 * 5 * 4);
    for (int x = 0; x < 2 * 5 * 4; x++) other[x] = m.ids[x] ? 3 : 0;
    m.id_list[1] = other;
    if (CHECK_OK(tv_calibrate(&m.data, NULL, &c, &err), &err)) {
        const tv_calibration_part *p = &c.part[1][0];
        CHECK_NEAR(p->autocorrelation[0], -1, 1e-12);
        CHECK_NEAR(p->autocorrelation_permuted, -1, 1e-12);
        CHECK_INT(p->n_sizes, 2);
        CHECK_INT(p->size_p99[0], 2);
        CHECK_INT(p->size_p99[1], 3);
    }
    free(other);
    noisy_free(&m);
}

/* One read: no noise can be known. A deterministic side: exactly 0 and no NaN. */
static void test_degenerate(void) {
    noisy m;
    tv_err err = {0};
    tv_calibration c;
    noisy_make(&m, 3, 4, 1, 0, 0);
    if (CHECK_OK(tv_calibrate(&m.data, NULL, &c, &err), &err)) {
        CHECK(c.R[0] == 0 && isnan(tv_calibration_union(&c, 0)) && isnan(tv_calibration_realised(&c, 1)));
        CHECK_INT(c.part[0][0].n_sizes, 1);
        CHECK_NEAR(c.part[0][0].size_mean[0], 2, 0);
    }
    m.data.deterministic[0] = m.data.deterministic[1] = 1;
    if (CHECK_OK(tv_calibrate(&m.data, NULL, &c, &err), &err)) {
        CHECK(tv_calibration_union(&c, 0) == 0 && tv_calibration_realised(&c, 1) == 0);
        CHECK(c.part[0][1].width_variance == 0 && c.part[0][1].width_median == 0 && c.part[0][1].kurtosis == 0 &&
              c.part[0][1].drift == 0);
    }
    m.lps[0][5] = NAN;
    CHECK_FAILS(tv_calibrate(&m.data, NULL, &c, &err), TV_ENUMERIC, &err, "position 2");
    noisy_free(&m);
}

static void test_moments(void) {
    tv_rng rng = {3};
    double x[101];
    tv_moments all = {0}, part[3] = {{0}};
    for (int i = 0; i < 101; i++) {
        x[i] = tv_rng_normal(&rng) + 1e6;
        tv_moments_add(&all, x[i], 2);
        tv_moments_add(&part[i % 3], x[i], 2);
    }
    for (int i = 1; i < 3; i++) tv_moments_merge(&part[0], &part[i]);
    double mean = 0, m2 = 0, m3 = 0, m4 = 0;
    for (int i = 0; i < 101; i++) mean += (x[i] - 1e6) / 101;
    for (int i = 0; i < 101; i++) {
        double d = x[i] - 1e6 - mean;
        m2 += d * d, m3 += d * d * d, m4 += d * d * d * d;
    }
    CHECK_NEAR(part[0].mean, 1e6 + mean, 1e-14);
    CHECK_NEAR(part[0].m2, m2, 1e-6);
    CHECK_NEAR(part[0].m3, m3, 1e-6);
    CHECK_NEAR(part[0].m4, m4, 1e-6);
    CHECK_NEAR(tv_moments_variance(&all), m2 / 100, 1e-8);
    CHECK_NEAR(tv_moments_kurtosis(&all), 101 * m4 / (m2 * m2) - 3, 1e-6);
    CHECK(part[0].cost == 202 && all.cost == 202);
    tv_sum sum = {0, 0}; /* what the large terms swallow is carried along */
    tv_sum_add(&sum, 1), tv_sum_add(&sum, 1e100), tv_sum_add(&sum, 1), tv_sum_add(&sum, -1e100);
    CHECK(tv_sum_value(&sum) == 2);
    tv_moments none = {0};
    CHECK(tv_moments_variance(&none) == 0 && tv_moments_kurtosis(&none) == 0);
}

/* Two sides that differ by one known record: every token metric by hand. */
static void test_token_metrics(void) {
    static const int32_t tokens[2] = {5, 7}, ids_a[4] = {5, 6, 7, 6}, ids_b[4] = {6, 5, 6, 8};
    static const float lps_a[4] = {-0.5108256f, -0.9162907f, -0.6931472f, -0.6931472f}; /* .6 .4 | .5 .5 */
    static const float lps_b[4] = {-0.5108256f, -0.9162907f, -0.6931472f, -0.6931472f}; /* .6 .4 | .5 .5 (7 absent) */
    static const float own_a[2] = {-0.5108256f, -0.6931472f}, own_b[2] = {-0.9162907f, -0.75f};
    const int32_t *ia[1] = {ids_a}, *ib[1] = {ids_b};
    const float *la[1] = {lps_a}, *lb[1] = {lps_b}, *oa[1] = {own_a}, *ob[1] = {own_b};
    tv_dataset data = {.n = 2, .temperature = 1};
    for (int s = 0; s < 2; s++)
        data.set[s] = (tv_set){.N = 1,
                               .tokens = tokens,
                               .reads = {1, 1},
                               .k = {2, 2},
                               .ids = {ia, ib},
                               .lps = {la, lb},
                               .own_lp = {oa, ob}};
    tv_err err = {0};
    tv_token_metrics m;
    if (!CHECK_OK(tv_token_metrics_run(&data, 1, (tv_readout){0, 0}, &m, &err), &err)) return;
    CHECK_INT(m.cells, 4);
    CHECK_NEAR(m.tv.mean, (0.2 + 0.5) / 2, 1e-6);
    CHECK_NEAR(m.tv.max, 0.5, 1e-6);
    CHECK_NEAR(m.js.mean, (0.6 * log(1.2) + 0.4 * log(0.8) + 0.5 * log(2)) / 2, 1e-6);
    CHECK_NEAR(m.js.max, 0.5 * log(2), 1e-6);
    CHECK_NEAR(m.kl_ab.mean, 0.5 * (0.6 * log(0.6 / 0.4) + 0.4 * log(0.4 / 0.6)),
               1e-6); /* the second position shares one token */
    CHECK_NEAR(m.kl_ab_infinite, 0.5, 0);
    CHECK_NEAR(m.same_top1, 0.5, 0); /* 5 against 6; then 6 against 6 by lowest id */
    CHECK_NEAR(m.topk_overlap, 0.75, 1e-12);
    CHECK_INT(m.delta_cells, 2);
    CHECK_NEAR(m.delta_mean, log(0.4 / 0.6), 1e-6);
    CHECK_NEAR(m.delta_rms, log(0.6 / 0.4), 1e-6);
    double l = log(0.4 / 0.6);
    CHECK_NEAR(m.k3[TV_A], exp(l) - 1 - l, 1e-6);
    CHECK_NEAR(m.k3[TV_B], exp(-l) - 1 + l, 1e-6);
    CHECK_NEAR(m.chi2_token[TV_A], exp(2 * l) - 1, 1e-6);
    CHECK_NEAR(m.mult_prob_error[TV_A], exp(-l), 1e-6);
    CHECK_NEAR(m.flip_share, 1, 0);
    CHECK_NEAR(m.flip_margin_p50, log(0.6 / 0.4), 0.01);
    CHECK_NEAR(m.first_flip_median, 0, 0);
    CHECK(m.near_tie_known);
    CHECK_NEAR(m.near_tie_mismatch, 1, 0); /* gap .057 under the assumed step of 1/16 */
    CHECK_INT(m.n_worst, 4);
    CHECK(m.worst[0].position == 1 && m.worst[0].p[TV_B] == 0 && m.worst[0].delta == -INFINITY &&
          m.worst[0].set == TV_A);
    CHECK_NEAR(m.worst[0].gap, 0.75 - 0.6931472, 1e-6);
    CHECK_INT(m.profile.n_positions, 2);
    CHECK_NEAR(m.profile.tv[1], 0.5, 1e-6);
    CHECK_NEAR(m.profile.flips[0], 1, 0);
    for (int x = 0; x < 2; x++) CHECK(m.profile.from[x] == x && m.profile.to[x] == x + 1);
    tv_token_metrics_free(&m);
    for (int s = 0; s < 2; s++) data.set[s].own_lp[TV_B] = NULL;
    if (CHECK_OK(tv_token_metrics_run(&data, 1, (tv_readout){0, 0}, &m, &err), &err)) {
        CHECK(!m.near_tie_known && isnan(m.near_tie_mismatch) && isnan(m.worst[0].gap));
        tv_token_metrics_free(&m);
    }
    /* One slot a record: it is the last that b lists, and the token lies just behind it. */
    static const int32_t other[1] = {8};
    static const float certain[1] = {0}, listed[1] = {-0.1f}, behind[1] = {-0.12f};
    const int32_t *is[2][1] = {{tokens}, {other}};
    const float *ls[2][1] = {{certain}, {listed}}, *os[2][1] = {{certain}, {behind}};
    data = (tv_dataset){.n = 1, .temperature = 1};
    for (int s = 0; s < 2; s++)
        data.set[s] = (tv_set){.N = 1,
                               .tokens = tokens,
                               .reads = {1, 1},
                               .k = {1, 1},
                               .ids = {is[0], is[1]},
                               .lps = {ls[0], ls[1]},
                               .own_lp = {os[0], os[1]}};
    if (!CHECK_OK(tv_token_metrics_run(&data, 1, (tv_readout){0, 0}, &m, &err), &err)) return;
    CHECK_NEAR(m.near_tie_mismatch, 1, 0);
    CHECK_NEAR(m.worst[0].gap, 0.02, 1e-6);
    tv_token_metrics_free(&m);
}

/* Everything over one golden set is the same with one thread and with five, and nothing is NaN that must exist. */
static void test_threads(void) {
    fixture f;
    tv_err err = {0};
    if (!fixture_open(&f, "g3_mismatch", NULL, "pi", "mu")) return;
    tv_token_metrics m[2];
    tv_calibration c[2];
    memset(c, 0, sizeof c);
    int before = omp_get_max_threads();
    for (int x = 0; x < 2; x++) {
        omp_set_num_threads(x ? 5 : 1);
        CHECK_OK(tv_token_metrics_run(&f.set, 8, (tv_readout){0, 0}, &m[x], &err), &err);
        CHECK_OK(tv_calibrate(&f.set, NULL, &c[x], &err), &err);
    }
    omp_set_num_threads(before);
    for (int e = 0; e < 2; e++)
        for (int s = 0; s < 2; s++) {
            const tv_calibration_part *p = &c[0].part[e][s], *q = &c[1].part[e][s];
            CHECK(p->sigma2_union == q->sigma2_union && p->kurtosis == q->kurtosis && p->drift_z == q->drift_z);
        }
    CHECK(m[0].tv.mean == m[1].tv.mean && m[0].delta_rms == m[1].delta_rms && m[0].tv.p99 == m[1].tv.p99);
    CHECK_BYTES(m[1].profile.tv, m[0].profile.tv, sizeof(double) * (size_t)m[0].profile.n_positions);
    CHECK_INT(m[1].n_worst, m[0].n_worst);
    for (int64_t x = 0; x < m[0].n_worst; x++)
        CHECK(m[0].worst[x].trajectory == m[1].worst[x].trajectory && m[0].worst[x].position == m[1].worst[x].position);
    CHECK(m[0].worst[0].position == 9 || !isfinite(m[0].worst[0].delta));
    tv_token_metrics_free(&m[0]);
    tv_token_metrics_free(&m[1]);
    fixture_close(&f);
}

/* The grid of bf16 logits is read off a record: differences are multiples of the step. */
static void test_bf16_step(void) {
    const int32_t ids[6] = {1, 2, 3, 4, 5, -1};
    const float logits[6] = {20.25f, 19.875f, 19.125f, 17.5f, 17.375f, 3}; /* steps of 1/8 */
    float lps[6];
    for (int j = 0; j < 6; j++) lps[j] = (logits[j] - 21.3f) / 0.7f;
    CHECK_NEAR(tv_bf16_step(ids, lps, 6, 0.7), 0.125, 0);
    const float off_grid[5] = {-0.1f, -1.2345f, -2.3456f, -3.4567f, -5.5555f};
    CHECK_NEAR(tv_bf16_step(ids, off_grid, 5, 1), 0.0625, 0);
}

/* Percentiles of zeros, of values below and above the bins, and of merged histograms. */
static void histogram(void) {
    tv_histogram *h = tv_xcalloc(2, sizeof *h);
    CHECK(tv_histogram_quantile(h, 0.5) == 0);
    CHECK(tv_histogram_value(-TV_HIST_LOW * TV_HIST_PER_OCTAVE) == 1 + 0x1p-7); /* the middle of [1, 1 + 1/64) */
    for (int i = 0; i < 3; i++) tv_histogram_add(h, 0), tv_histogram_add(h + 1, 0);
    tv_histogram_add(h, 1e-300), tv_histogram_add(h, 1e300);
    CHECK(h->bin[0] == 1 && h->bin[TV_HIST_BINS - 1] == 1 && h->count == 5);
    CHECK_NEAR(tv_histogram_quantile(h, 0.8), tv_histogram_value(0), 1e-12);
    CHECK_NEAR(tv_histogram_quantile(h, 1), tv_histogram_value(TV_HIST_BINS - 1), 1e-12);
    tv_histogram_add(h + 1, 2.5), tv_histogram_add(h + 1, 2.5);
    tv_histogram_merge(h, h + 1);
    CHECK(h->count == 10 && h->zero == 6);
    CHECK(tv_histogram_quantile(h, 0.6) == 0);
    CHECK_NEAR(tv_histogram_quantile(h, 0.9), 2.5, 0.02);
    /* Signed values: the lowest, -2, -2 (h) and 0, 0, 1, 4 (h + 1, which lies right behind the bins of h). */
    memset(h, 0, 2 * sizeof *h);
    tv_histogram_add(h, 1e300), tv_histogram_add(h, 2), tv_histogram_add(h, 2);
    tv_histogram_add(h + 1, 0), tv_histogram_add(h + 1, 0), tv_histogram_add(h + 1, 1), tv_histogram_add(h + 1, 4);
    const double want[] = {-tv_histogram_value(TV_HIST_BINS - 1), -2, -2, 0, 0, 1, 4};
    for (int x = 0; x < 7; x++) CHECK_NEAR(tv_histogram_signed_quantile(h, h + 1, (x + 0.9) / 7), want[x], 0.05);
    free(h);
}

static const tv_test tests[] = {{"calibrate_goldens", test_goldens},
                                {"calibrate_known_noise", test_known_noise},
                                {"calibrate_equal_reads", test_equal_reads},
                                {"calibrate_two_reads", test_two_reads},
                                {"calibrate_degenerate", test_degenerate},
                                {"histogram", histogram},
                                {"moments", test_moments},
                                {"token_metrics", test_token_metrics},
                                {"token_metrics_threads", test_threads},
                                {"bf16_step", test_bf16_step}};
TV_TEST_MAIN(tests)
