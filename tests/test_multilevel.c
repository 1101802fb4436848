/* Levels, allocation and multilevel estimators against their golden values (items 9 to 11) and against closed forms. */
#include "estimator/multilevel.h"

#include <math.h>
#include <omp.h>

#include "check.h"
#include "estimator/stats.h"
#include "estimator_fixture.h"

static int level_of(const tv_levels *lv, int64_t r) {
    for (int a = 0; a < lv->n_levels; a++)
        if (lv->r[a] == r) return a;
    return -1;
}

/* Var and mean of an increment, averaged over permutations. */
static void increment_moments(const tv_levels *lv, int coarse, int fine, int antithetic, double *variance,
                              double *mean) {
    double *y = tv_xmalloc((size_t)lv->N * sizeof *y);
    *variance = *mean = 0;
    for (int64_t p = 0; p < lv->n_perm; p++) {
        tv_levels_increment(lv, p, coarse, fine, antithetic, y);
        *variance += tv_stats_variance(y, lv->N) / (double)lv->n_perm;
        *mean += tv_stats_mean(y, lv->N) / (double)lv->n_perm;
    }
    free(y);
}

/* V0, VY, VY_anti and mean_Y of one expected block. */
static void check_variances(const tv_levels *lv, const cJSON *want) {
    double v, m;
    for (const cJSON *item = fixture_at(want, "V0")->child; item; item = item->next) {
        increment_moments(lv, -1, level_of(lv, atoll(item->string)), 0, &v, &m);
        CHECK_NEAR(v, item->valuedouble, 1e-12);
    }
    const char *keys[] = {"VY", "VY_anti", "mean_Y"};
    for (int k = 0; k < 3; k++) {
        const cJSON *list = fixture_at(want, keys[k]);
        for (const cJSON *item = list ? list->child : NULL; item; item = item->next) {
            const int coarse = level_of(lv, atoll(item->string)),
                      fine = level_of(lv, atoll(strchr(item->string, '>') + 1));
            increment_moments(lv, coarse, fine, k == 1, &v, &m);
            CHECK_NEAR(k == 2 ? m : v, item->valuedouble, 1e-12);
        }
    }
}

static void check_golden(const char *name) {
    fixture f;
    char expected[64], path[64];
    snprintf(expected, sizeof expected, "%s.expected.json", name);
    if (!fixture_open(&f, name, expected, "pi", "mu")) return;
    for (int raw = 0; raw < 2; raw++)
        for (int s = 0; s < 2; s++) {
            const cJSON *base = fixture_at(f.expected, raw ? "raw" : "renorm");
            const char *side = s ? "mu" : "pi";
            tv_levels lv;
            tv_err err = {0};
            const tv_levels_options o = {.readout = {.raw = raw}};
            if (!CHECK_OK(tv_levels_run(&f.set, s, &o, &lv, &err), &err)) continue;
            const cJSON *identity = fixture_at(fixture_at(base, "levels_identity"), side);
            check_variances(&lv, identity);
            const int top = lv.n_levels - 1; /* the jackknife from the top level and its two blocks */
            for (int64_t i = 0; i < lv.N; i++)
                CHECK_NEAR(tv_jackknife(tv_levels_z(&lv, 0, top)[i], tv_levels_blocks(&lv, 0, top - 1, top)[i],
                                        tv_levels_blocks(&lv, 0, top - 1, top)[i]),
                           cJSON_GetArrayItem(fixture_at(identity, "JK"), (int)i)->valuedouble, 1e-12);
            if (!raw) {
                const cJSON *mlmc = fixture_at(base, "mlmc"), *sched = fixture_at(mlmc, "schedule"),
                            *counts = fixture_at(mlmc, "N_l");
                const int L = cJSON_GetArraySize(sched);
                int at[TV_MAX_LEVELS];
                int64_t N[TV_MAX_LEVELS], r[TV_MAX_LEVELS];
                double V[TV_MAX_LEVELS], unused;
                for (int l = 0; l < L; l++) {
                    r[l] = (int64_t)cJSON_GetArrayItem(sched, l)->valuedouble;
                    at[l] = level_of(&lv, r[l]);
                    N[l] = (int64_t)cJSON_GetArrayItem(counts, l)->valuedouble;
                    increment_moments(&lv, l ? at[l - 1] : -1, at[l], 0, &V[l], &unused);
                }
                for (int nested = 0; nested < 2; nested++) {
                    tv_costed_estimate e;
                    snprintf(path, sizeof path, "%s_%s", side, nested ? "nested" : "disjoint");
                    if (!CHECK_OK(tv_multilevel_stored(&lv, 0, L, at, N, nested, 0, &e, &err), &err)) continue;
                    CHECK_NEAR(e.estimate, fixture_at(fixture_at(mlmc, path), "est")->valuedouble, 1e-12);
                    CHECK_NEAR(e.se, fixture_at(fixture_at(mlmc, path), "se_indep")->valuedouble, 1e-12);
                }
                CHECK_OK(tv_allocate(L, V, r, 1000, 0, N, &err), &err);
                for (int l = 0; l < L; l++)
                    CHECK_INT(N[l], cJSON_GetArrayItem(fixture_at(fixture_at(base, "alloc"), side), l)->valueint);
                const cJSON *permuted = fixture_at(base, "levels_permuted");
                tv_levels shuffled;
                const tv_levels_options po = {.n_perm = fixture_at(permuted, "nperm")->valueint,
                                              .seed = (uint64_t)fixture_at(permuted, "seed")->valueint};
                if (CHECK_OK(tv_levels_run(&f.set, s, &po, &shuffled, &err), &err)) {
                    check_variances(&shuffled, fixture_at(permuted, side));
                    tv_levels_free(&shuffled);
                }
            }
            tv_levels_free(&lv);
        }
    fixture_close(&f);
}
static void multilevel_golden_tiny(void) { check_golden("g1_tiny"); }
static void multilevel_golden_basic(void) { check_golden("g2_basic"); }
static void multilevel_golden_mismatch(void) { check_golden("g3_mismatch"); }
static void multilevel_golden_ties(void) { check_golden("g4_ties"); }

/* Held-out reads: the reference is the plug-in of exactly the last reads, and no level sees them. */
static void multilevel_held_out(void) {
    fixture f;
    if (!fixture_open(&f, "g2_basic", NULL, "pi", "mu")) return;
    tv_levels held, tail, head;
    tv_err err = {0};
    CHECK_OK(tv_levels_run(&f.set, 0, &(tv_levels_options){.reads = 8, .held_out = 3}, &held, &err), &err);
    CHECK_INT(held.n_levels, 3); /* 1, 2, 4 of five reads */
    CHECK_OK(
        tv_levels_run(&f.set, 0, &(tv_levels_options){.reads = 5, .n_levels = 2, .r = (int64_t[]){2, 5}}, &head, &err),
        &err);
    for (int64_t i = 0; i < held.N; i++) CHECK_NEAR(tv_levels_z(&held, 0, 1)[i], tv_levels_z(&head, 0, 0)[i], 0);
    for (int e = 0; e < 2; e++)
        for (int r = 0; r < 3; r++) f.ids[0][e][r] = f.ids[0][e][5 + r], f.lps[0][e][r] = f.lps[0][e][5 + r];
    CHECK_OK(
        tv_levels_run(&f.set, 0, &(tv_levels_options){.reads = 3, .n_levels = 1, .r = (int64_t[]){3}}, &tail, &err),
        &err);
    for (int64_t i = 0; i < held.N; i++) CHECK_NEAR(held.reference[i], tv_levels_z(&tail, 0, 0)[i], 0);
    tv_levels_free(&held);
    tv_levels_free(&head);
    tv_levels_free(&tail);
    fixture_close(&f);
}

/* Bits do not depend on the number of threads. */
static void multilevel_same_bits(void) {
    fixture f;
    if (!fixture_open(&f, "g3_mismatch", NULL, "pi", "mu")) return;
    tv_levels x, y;
    tv_err err = {0};
    const tv_levels_options o = {.n_perm = 2, .seed = 5, .held_out = 4};
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    CHECK_OK(tv_levels_run(&f.set, 0, &o, &x, &err), &err);
    omp_set_num_threads(3);
    CHECK_OK(tv_levels_run(&f.set, 0, &o, &y, &err), &err);
    omp_set_num_threads(threads);
    CHECK_BYTES(y.z, x.z, (size_t)(2 * x.n_levels * x.N) * sizeof(double));
    CHECK_BYTES(y.blocks, x.blocks, (size_t)(2 * x.n_levels * x.n_levels * x.N) * sizeof(double));
    tv_levels_free(&x);
    tv_levels_free(&y);
    fixture_close(&f);
}

/* Allocation: proportional to sqrt(V/r), cost meets the budget, variance meets the target; the least is 2. */
static void multilevel_allocation(void) {
    const double V[] = {0.16, 0.01, 0.0025};
    const int64_t r[] = {1, 4, 16};
    int64_t N[3];
    tv_err err = {0};
    CHECK_OK(tv_allocate(3, V, r, 10000, 0, N, &err), &err);
    /* work = .4 + .2 + .2: N = 10000/.8 * (.4, .05, .0125) */
    CHECK_INT(N[0], 5000);
    CHECK_INT(N[1], 625);
    CHECK_INT(N[2], 157); /* 156.25 rounded up */
    CHECK_NEAR(tv_allocation_work(3, V, r), 0.8, 1e-15);
    CHECK_OK(tv_allocate(3, V, r, 0, 0.01, N, &err), &err);
    double variance = 0;
    for (int l = 0; l < 3; l++) variance += V[l] / (double)N[l];
    CHECK(variance <= 1e-4 && variance > 0.99e-4);
    CHECK_OK(tv_allocate(3, V, r, 1, 0, N, &err), &err);
    for (int l = 0; l < 3; l++) CHECK_INT(N[l], 2);
    CHECK_OK(tv_allocate(2, (double[]){0, 0}, r, 100, 0, N, &err), &err);
    CHECK_INT(N[0], 2);
    CHECK_FAILS(tv_allocate(3, (double[]){0.1, NAN, 0.1}, r, 100, 0, N, &err), TV_EARG, &err, "level 1");
    CHECK_FAILS(tv_allocate(3, (double[]){NAN, 0.1, 0.1}, r, 100, 0, N, &err), TV_EARG, &err, "level 0: variance");
    CHECK_FAILS(tv_allocate(3, (double[]){0.1, -1, 0.1}, r, 100, 0, N, &err), TV_EARG, &err, "not usable");
    CHECK_FAILS(tv_allocate(3, V, r, 0, 0, N, &err), TV_EARG, &err, "budget or a target");
    CHECK_FAILS(tv_allocate(0, V, r, 1, 0, N, &err), TV_EARG, &err, "at least one level");
}

/* Sums lose nothing to cancellation. */
static void multilevel_stats(void) {
    CHECK_NEAR(tv_stats_sum((double[]){1, 1e16, 1, -1e16}, 4), 2, 0);
    CHECK_NEAR(tv_stats_sum((double[]){1e16, 1, -1e16}, 3), 1, 0);
    CHECK_NEAR(tv_stats_mean((double[]){1, 2, 6}, 3), 3, 0);
    CHECK_NEAR(tv_stats_variance((double[]){1, 2, 6}, 3), 7, 1e-15);
    CHECK_NEAR(tv_stats_variance((double[]){1e9 + 1, 1e9 + 2, 1e9 + 6}, 3), 7, 1e-15);
    CHECK_NEAR(tv_stats_variance((double[]){5}, 1), 0, 0);
    CHECK_NEAR(tv_stats_mean(NULL, 0), 0, 0);
}

/* The theory's levels and groups: r_0 = max(1, ceil(c n sigma^2)), L = ceil(2 log2(1/eps)), G odd >= ln(1/delta)/0.32.
 */
static void multilevel_theory(void) {
    int64_t r[64];
    CHECK_INT(tv_theory_levels(128, 0.1, 0.25, 1, 64, r), 5); /* L = 4 */
    CHECK_INT(r[0], 13);
    CHECK_INT(r[4], 13 * 16);
    CHECK_INT(tv_theory_levels(500, 0.0004, 0.01, 1, 64, r), 15); /* 2 log2 100 = 13.3 */
    CHECK_INT(r[0], 1);
    CHECK_INT(r[14], 16384);
    CHECK_INT(tv_theory_levels(10, 0, 1, 1, 64, r), 1);
    CHECK_INT(tv_median_groups(0.05), 11); /* 9.36 */
    CHECK_INT(tv_median_groups(0.5), 3);   /* 2.17 */
    CHECK_INT(tv_median_groups(0.9), 1);
    CHECK_INT(tv_median_groups(0), 1);
    CHECK_NEAR(tv_median((double[]){3, 1, 2}, 3), 2, 0);
    CHECK_NEAR(tv_median((double[]){4, 1, 3, 2}, 4), 2.5, 0);
}

/* Algorithm 1's summand and mean by hand, dead sides included. */
static void multilevel_algorithm1(void) {
    const double own[] = {-1, -2, -INFINITY, -3}, other[] = {-2, -1, -1, -INFINITY};
    const tv_costed_estimate e = tv_algorithm1(own, other, 4);
    const double x[] = {1 - exp(-1), 0, 0, 1};
    double mean = 0, square = 0;
    for (int i = 0; i < 4; i++) mean += x[i] / 4;
    for (int i = 0; i < 4; i++) square += (x[i] - mean) * (x[i] - mean) / 3;
    CHECK_NEAR(e.estimate, mean, 1e-15);
    CHECK_NEAR(e.se, sqrt(square / 4), 1e-15);
    CHECK_INT(e.cost, 4);
}

/* An oracle whose increments are known: Z_r = mu (1 + 1/r) + level noise of variance 1/r. */
typedef struct {
    double mu;
    int calls;
} toy;
static tv_status draw_toy(void *user, int level, int64_t first, int64_t N, int64_t coarse, int64_t fine, int antithetic,
                          double *y, tv_err *err) {
    (void)err;
    toy *t = user;
    t->calls++;
    for (int64_t i = 0; i < N; i++) {
        tv_rng rng = {(uint64_t)(first + i) * 64 + (uint64_t)level + 1000003u * (uint64_t)(antithetic + 1)};
        const double noise = tv_rng_normal(&rng);
        y[i] = t->mu * (1.0 / (double)fine - (coarse ? 1.0 / (double)coarse : -1)) +
               noise / sqrt((double)fine) * (coarse ? 0.5 : 1);
    }
    return TV_OK;
}

/* Algorithm 3 on the toy: telescopes to the top level, costs what it counts, picks its own samples, median of means. */
static void multilevel_run(void) {
    const int64_t r[] = {1, 2, 4, 8};
    toy t = {0.3, 0};
    tv_multilevel_result out;
    tv_err err = {0};
    const int64_t N[] = {40000, 20000, 10000, 5000};
    CHECK_OK(tv_multilevel_run(draw_toy, &t, &(tv_multilevel_plan){.L = 4, .r = r, .N = N}, &out, &err), &err);
    CHECK(fabs(out.estimate - 0.3 * (1 + 1.0 / 8)) < 4 * out.se);
    CHECK_NEAR(out.cost, 40000 + 2 * 20000 + 4 * 10000 + 8 * 5000, 0);
    CHECK_INT(out.groups, 1);
    double variance = 0;
    for (int l = 0; l < 4; l++) variance += out.variance[l] / (double)N[l];
    CHECK_NEAR(out.se, sqrt(variance), 1e-15);
    CHECK(fabs(out.variance[0] - 1) < 0.05 && fabs(out.variance[3] * 32 - 1) < 0.1);
    CHECK(fabs(out.kurtosis[0]) < 0.2);
    CHECK_NEAR(out.bias_bound, fabs(out.mean[3]) / (sqrt(2) - 1), 1e-15);
    const double twice = 1 + 1 / (sqrt(2) - 1);
    CHECK_NEAR(out.bound_se, sqrt(variance - out.variance[3] / 5000 + twice * twice * out.variance[3] / 5000), 1e-15);
    double plain = out.estimate;
    CHECK_OK(tv_multilevel_run(draw_toy, &t, &(tv_multilevel_plan){.L = 4, .r = r, .N = N, .delta = 0.05}, &out, &err),
             &err);
    CHECK_INT(out.groups, 11);
    CHECK(out.estimate != plain && fabs(out.estimate - plain) < 3 * out.se);
    /* Samples from a pilot and a target: the variance comes out as asked. */
    CHECK_OK(
        tv_multilevel_run(draw_toy, &t, &(tv_multilevel_plan){.L = 4, .r = r, .pilot = 500, .eps = 0.01}, &out, &err),
        &err);
    CHECK(out.se < 0.0106 && out.se > 0.0085);
    CHECK_OK(tv_multilevel_run(draw_toy, &t, &(tv_multilevel_plan){.L = 4, .r = r, .pilot = 100, .budget = 50000}, &out,
                               &err),
             &err);
    CHECK(out.cost >= 50000 && out.cost < 53000);
    CHECK_FAILS(tv_multilevel_run(draw_toy, &t, &(tv_multilevel_plan){.L = 0, .r = r}, &out, &err), TV_EARG, &err,
                "between 1 and");
    CHECK_FAILS(
        tv_multilevel_run(draw_toy, &t, &(tv_multilevel_plan){.L = 2, .r = (int64_t[]){2, 2}, .N = N}, &out, &err),
        TV_EARG, &err, "ascend");
    CHECK_FAILS(
        tv_multilevel_run(draw_toy, &t, &(tv_multilevel_plan){.L = 2, .r = r, .pilot = 1, .eps = 0.1}, &out, &err),
        TV_EARG, &err, "pilot");
    CHECK_FAILS(tv_multilevel_run(draw_toy, &t, &(tv_multilevel_plan){.L = 2, .r = r, .N = N, .delta = 1}, &out, &err),
                TV_EARG, &err, "delta");
}

/* The randomized level is unbiased for the top level: its mean over many level draws is the telescoped sum. */
static void multilevel_randomized(void) {
    fixture f;
    if (!fixture_open(&f, "g2_basic", NULL, "pi", "mu")) return;
    tv_levels lv;
    tv_err err = {0};
    if (CHECK_OK(tv_levels_run(&f.set, 0, &(tv_levels_options){0}, &lv, &err), &err)) {
        const int schedule[] = {0, 1, 2, 3};
        for (int anti = 0; anti < 2; anti++) {
            double want = 0, sum = 0, square = 0, cost = 0, mean, unused;
            for (int l = 0; l < 4; l++) increment_moments(&lv, l - 1, l, anti, &unused, &mean), want += mean;
            const int draws = 4000;
            for (int d = 0; d < draws; d++) {
                tv_costed_estimate e;
                CHECK_OK(tv_randomized_stored(&lv, 0, 4, schedule, anti, NULL, (uint64_t)d, &e, &err), &err);
                sum += e.estimate, square += e.estimate * e.estimate, cost += e.cost;
            }
            const double average = sum / draws, se = sqrt((square / draws - average * average) / draws);
            CHECK(fabs(average - want) < 4 * se);
            CHECK(cost / draws >= 2.0 * (double)lv.N && cost / draws <= 8.0 * (double)lv.N);
        }
        tv_costed_estimate e;
        CHECK_FAILS(tv_randomized_stored(&lv, 0, 1, schedule, 0, NULL, 0, &e, &err), TV_EARG, &err, "two levels");
        CHECK_FAILS(tv_randomized_stored(&lv, 0, 3, schedule, 0, (double[]){0, 1, 0}, 0, &e, &err), TV_EARG, &err,
                    "above 0");
        tv_levels_free(&lv);
    }
    fixture_close(&f);
}

/* Bad input is refused by name. */
static void multilevel_bad_input(void) {
    fixture f;
    if (!fixture_open(&f, "g1_tiny", NULL, "pi", "mu")) return;
    tv_levels lv;
    tv_err err = {0};
    CHECK_FAILS(tv_levels_run(&f.set, 0, &(tv_levels_options){.reads = 3}, &lv, &err), TV_EARG, &err, "want 3 reads");
    CHECK_FAILS(tv_levels_run(&f.set, 0, &(tv_levels_options){.held_out = 2}, &lv, &err), TV_EARG, &err,
                "hold out 2 of 2");
    CHECK_FAILS(tv_levels_run(&f.set, 0, &(tv_levels_options){.n_levels = 1, .r = (int64_t[]){3}}, &lv, &err), TV_EARG,
                &err, "wants 3 reads");
    CHECK_FAILS(tv_levels_run(&f.set, 0, &(tv_levels_options){.n_levels = 99}, &lv, &err), TV_EARG, &err, "99 levels");
    if (CHECK_OK(tv_levels_run(&f.set, 0, &(tv_levels_options){0}, &lv, &err), &err)) {
        tv_costed_estimate e;
        CHECK_FAILS(tv_multilevel_stored(&lv, 0, 2, (int[]){0, 1}, (int64_t[]){3, 2}, 0, 0, &e, &err), TV_EARG, &err,
                    "takes 5 trajectories and the set has 4");
        CHECK_FAILS(tv_multilevel_stored(&lv, 0, 2, (int[]){1, 0}, (int64_t[]){1, 1}, 0, 0, &e, &err), TV_EARG, &err,
                    "ascend");
        CHECK_FAILS(tv_multilevel_stored(&lv, 0, 3, (int[]){0, 1, 1}, (int64_t[]){1, 1, 1}, 0, 0, &e, &err), TV_EARG,
                    &err, "ascend");
        CHECK_FAILS(tv_multilevel_stored(&lv, 1, 1, (int[]){0}, (int64_t[]){1}, 0, 0, &e, &err), TV_EARG, &err,
                    "permutation 1");
        CHECK_FAILS(tv_multilevel_stored(&lv, 0, 1, (int[]){0}, (int64_t[]){0}, 0, 0, &e, &err), TV_EARG, &err,
                    "at least one");
        /* One trajectory a level: an estimate, no spread, never NaN. */
        if (CHECK_OK(tv_multilevel_stored(&lv, 0, 1, (int[]){0}, (int64_t[]){1}, 0, 0, &e, &err), &err))
            CHECK(isfinite(e.estimate) && e.se == 0);
        tv_levels_free(&lv);
    }
    f.set.set[0].reads[0] = 1;
    CHECK_FAILS(tv_levels_run(&f.set, 0, &(tv_levels_options){.reads = 2}, &lv, &err), TV_EARG, &err,
                "scorer a over set a, which has 1");
    f.set.set[0].reads[0] = 2;
    f.set.set[0].N = 0;
    CHECK_FAILS(tv_levels_run(&f.set, 0, &(tv_levels_options){0}, &lv, &err), TV_EARG, &err, "no trajectories");
    f.set.set[0].N = 4;
    float lps[48];
    memcpy(lps, f.lps[0][0][1], sizeof lps);
    for (int j = 0; j < 48; j++) lps[j] = NAN;
    f.lps[0][0][1] = lps;
    CHECK(tv_levels_run(&f.set, 0, &(tv_levels_options){0}, &lv, &err) != TV_OK && err.message[0]);
    fixture_close(&f);
}

static const tv_test tests[] = {
    {"multilevel_golden_tiny", multilevel_golden_tiny},
    {"multilevel_golden_basic", multilevel_golden_basic},
    {"multilevel_golden_mismatch", multilevel_golden_mismatch},
    {"multilevel_golden_ties", multilevel_golden_ties},
    {"multilevel_held_out", multilevel_held_out},
    {"multilevel_same_bits", multilevel_same_bits},
    {"multilevel_allocation", multilevel_allocation},
    {"multilevel_stats", multilevel_stats},
    {"multilevel_theory", multilevel_theory},
    {"multilevel_algorithm1", multilevel_algorithm1},
    {"multilevel_run", multilevel_run},
    {"multilevel_randomized", multilevel_randomized},
    {"multilevel_bad_input", multilevel_bad_input},
};
TV_TEST_MAIN(tests)
