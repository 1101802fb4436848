/* Distances from recorded reads: every number of the golden fixtures, and what bad or degenerate input gives. */
#include "estimator/distance.h"

#include <math.h>
#include <omp.h>

#include "estimator/permute.h"
#include "estimator/stats.h"
#include "estimator/slots.h"
#include "tests/check.h"
#include "tests/estimator_fixture.h"

static const char *const GOLDENS[] = {"g1_tiny", "g2_basic", "g3_mismatch", "g4_ties"};
enum { N_GOLDENS = 4 };
static const double TOL = 1e-12;

static int side_of(const char *name) { return strcmp(name, "pi") == 0 ? TV_A : TV_B; }

/* null in the fixture is minus infinity. */
static double number_at(const cJSON *list, int64_t i) {
    const cJSON *item = cJSON_GetArrayItem(list, (int)i);
    return cJSON_IsNull(item) ? -INFINITY : item->valuedouble;
}

static void check_list(const double *got, const cJSON *want, int64_t n) {
    CHECK_INT(cJSON_GetArraySize(want), n);
    for (int64_t i = 0; i < n; i++) CHECK_NEAR(got[i], number_at(want, i), TOL);
}

static int64_t most_reads(const fixture *f) { return f->set.set[0].reads[0]; }

static void check_plugin_side(const tv_distance *d, int64_t r, int s, const cJSON *want) {
    tv_plugin p = tv_plugin_at(d, r);
    int64_t N = d->set[s].N;
    double *x = tv_xmalloc((size_t)N * sizeof *x);
    for (const cJSON *c = want->child; c; c = c->next) {
        const char *key = c->string;
        if (strcmp(key, "Z") == 0) {
            tv_distance_z(d, s, r, x);
            check_list(x, c, N);
        } else if (strcmp(key, "R_alg1") == 0) {
            tv_distance_likelihood_ratio(d, s, r, x);
            check_list(x, c, N);
        } else if (strcmp(key, "log_pi") == 0 || strcmp(key, "log_mu") == 0) {
            check_list(d->set[s].log[side_of(key + 4)] + (r - 1) * N, c, N);
        } else {
            double got = strcmp(key, "tv") == 0          ? p.tv[s]
                         : strcmp(key, "mismatch") == 0  ? p.mismatch[s]
                         : strcmp(key, "shared") == 0    ? p.shared[s]
                         : strcmp(key, "dead_pi") == 0   ? p.dead[s][TV_A]
                         : strcmp(key, "dead_mu") == 0   ? p.dead[s][TV_B]
                         : strcmp(key, "dead_both") == 0 ? p.dead_both[s]
                                                         : NAN; /* a key that this test does not know fails */
            CHECK_NEAR(got, c->valuedouble, TOL);
        }
    }
    free(x);
}

static void check_plugin(const fixture *f, tv_readout readout, const cJSON *want) {
    tv_err err = {0};
    tv_distance d;
    tv_distance_options o = {.readout = readout, .reads = most_reads(f)};
    if (!CHECK_OK(tv_distance_run(&f->set, &o, &d, &err), &err)) return;
    for (const cJSON *at_r = want->child; at_r; at_r = at_r->next) {
        int64_t r = atoll(at_r->string);
        tv_plugin p = tv_plugin_at(&d, r);
        for (const cJSON *c = at_r->child; c; c = c->next) {
            if (strcmp(c->string, "tv_sym") == 0)
                CHECK_NEAR(p.tv_sym, c->valuedouble, TOL);
            else if (strcmp(c->string, "mismatch_sym") == 0)
                CHECK_NEAR(p.mismatch_sym, c->valuedouble, TOL);
            else
                check_plugin_side(&d, r, side_of(c->string), c);
        }
    }
    tv_distance_free(&d);
}

static void check_prefixes(const fixture *f, tv_readout readout, const cJSON *want) {
    tv_err err = {0};
    tv_distance d;
    int64_t lengths[64];
    for (int64_t l = 0; l < f->set.n; l++) lengths[l] = l + 1;
    tv_distance_options o = {.readout = readout, .lengths = lengths, .n_lengths = f->set.n};
    if (!CHECK_OK(tv_distance_run(&f->set, &o, &d, &err), &err)) return;
    for (const cJSON *c = want->child; c; c = c->next) {
        int s = side_of(c->string);
        int64_t N = d.set[s].N;
        CHECK_INT(cJSON_GetArraySize(c), f->set.n);
        for (int64_t l = 0; l < f->set.n; l++) CHECK_NEAR(tv_mean(d.set[s].prefix_z + l * N, N), number_at(c, l), TOL);
        /* The longest prefix is the trajectory itself, to the bit. */
        double *z = tv_xmalloc((size_t)N * sizeof *z);
        tv_distance_z(&d, s, d.R, z);
        CHECK_BYTES(d.set[s].prefix_z + (f->set.n - 1) * N, z, (size_t)N * sizeof *z);
        free(z);
    }
    tv_distance_free(&d);
}

/* Variance or mean of Z_fine - Z_coarse (coarse 0: of Z_fine), or of the antithetic increment. */
static double level_value(const tv_distance *of_r, int s, int64_t coarse, int64_t fine, int antithetic, int mean) {
    const tv_distance *d = &of_r[fine]; /* run with reads = fine: its halves are those of reads 0..fine-1 */
    int64_t N = d->set[s].N;
    double *y = tv_xmalloc((size_t)N * sizeof *y), *z = tv_xmalloc((size_t)N * sizeof *z);
    tv_distance_z(d, s, fine, y);
    if (antithetic)
        for (int64_t i = 0; i < N; i++) {
            const tv_distance_set *set = &d->set[s];
            y[i] -= 0.5 * (tv_z(set->half[0][0][i], set->half[1][0][i]) + tv_z(set->half[0][1][i], set->half[1][1][i]));
        }
    else if (coarse) {
        tv_distance_z(d, s, coarse, z);
        for (int64_t i = 0; i < N; i++) y[i] -= z[i];
    }
    double value = mean ? tv_stats_mean(y, N) : tv_stats_variance(y, N);
    free(y);
    free(z);
    return value;
}

static void check_levels(const tv_distance *of_r, int64_t R, int s, const cJSON *want) {
    int64_t N = of_r[R].set[s].N;
    double *x = tv_xmalloc((size_t)N * sizeof *x);
    for (const cJSON *c = want->child; c; c = c->next) {
        if (strcmp(c->string, "JK") == 0) {
            tv_distance_jackknife(&of_r[R], s, x);
            check_list(x, c, N);
        } else if (strcmp(c->string, "split_sign") == 0) {
            tv_distance_split_sign(&of_r[R], s, x);
            check_list(x, c, N);
        } else {
            int anti = strcmp(c->string, "VY_anti") == 0, mean = strcmp(c->string, "mean_Y") == 0;
            CHECK(anti || mean || strcmp(c->string, "V0") == 0 || strcmp(c->string, "VY") == 0);
            for (const cJSON *v = c->child; v; v = v->next) {
                long long a = 0, b = 0;
                if (sscanf(v->string, "%lld->%lld", &a, &b) != 2) b = a, a = 0;
                CHECK_NEAR(level_value(of_r, s, a, b, anti, mean), v->valuedouble, TOL);
            }
        }
    }
    free(x);
}

static void check_identity_levels(const fixture *f, tv_readout readout, const cJSON *want) {
    tv_err err = {0};
    int64_t R = most_reads(f);
    tv_distance of_r[17] = {{0}};
    for (int64_t r = 1; r <= R; r *= 2) {
        tv_distance_options o = {.readout = readout, .reads = r};
        CHECK_OK(tv_distance_run(&f->set, &o, &of_r[r], &err), &err);
    }
    for (const cJSON *c = want->child; c; c = c->next) check_levels(of_r, R, side_of(c->string), c);
    for (int64_t r = 1; r <= R; r *= 2) tv_distance_free(&of_r[r]);
}

static void check_permuted_levels(const fixture *f, const cJSON *want) {
    tv_err err = {0};
    int64_t R = most_reads(f), n_perm = (int64_t)fixture_at(want, "nperm")->valuedouble;
    uint64_t seed = (uint64_t)fixture_at(want, "seed")->valuedouble;
    tv_distance d[8];
    CHECK(n_perm <= 8);
    for (int64_t p = 0; p < n_perm; p++) {
        tv_distance_options o = {.reads = R, .permute = 1, .replicate = p, .seed = seed};
        CHECK_OK(tv_distance_run(&f->set, &o, &d[p], &err), &err);
    }
    for (const cJSON *side = want->child; side; side = side->next) {
        if (!cJSON_IsObject(side)) continue;
        int s = side_of(side->string);
        for (const cJSON *c = side->child; c; c = c->next)
            for (const cJSON *v = c->child; v; v = v->next) {
                long long a = 0, b = 0;
                if (sscanf(v->string, "%lld->%lld", &a, &b) != 2) b = a, a = 0;
                double sum = 0;
                for (int64_t p = 0; p < n_perm; p++) {
                    tv_distance levels[17] = {{0}};
                    levels[b] = d[p]; /* a permuted prefix must come from the permutation of all reads */
                    sum += level_value(levels, s, a, b, 0, 0);
                }
                CHECK_NEAR(sum / (double)n_perm, v->valuedouble, TOL);
            }
    }
    for (int64_t p = 0; p < n_perm; p++) tv_distance_free(&d[p]);
}

static void check_permutations(int64_t R, uint64_t seed, const cJSON *want) {
    for (const cJSON *c = want->child; c; c = c->next) {
        int p, e, s, i, t;
        int32_t perm[64];
        if (!CHECK(sscanf(c->string, "p=%d,e=%d,s=%d,i=%d,t=%d", &p, &e, &s, &i, &t) == 5)) return;
        tv_cell_permutation(R, seed, p, e, s, i, t, perm);
        CHECK_INT(cJSON_GetArraySize(c), R);
        for (int64_t a = 0; a < R; a++) CHECK_INT(perm[a], cJSON_GetArrayItem(c, (int)a)->valuedouble);
    }
}

static void check_realised(const fixture *f, const cJSON *want) {
    tv_err err = {0};
    int64_t n = f->set.n;
    for (const cJSON *c = want->child; c; c = c->next) {
        char scorer[8], set[8];
        if (!CHECK(sscanf(c->string, "%2[a-z]_%2[a-z]", scorer, set) == 2)) return;
        int e = side_of(scorer), s = side_of(set);
        int64_t N = f->set.set[s].N;
        double *q = tv_xmalloc((size_t)(N * n) * sizeof *q);
        CHECK_OK(tv_realised(&f->set, e, s, 1, 0, N, (tv_readout){0, 0}, q, &err), &err);
        for (int64_t i = 0; i < N; i++) check_list(q + i * n, cJSON_GetArrayItem(c, (int)i), n);
        free(q);
    }
}

/* Every golden number of items 1-6, 9 and 10, by walking the fixture: a key that nothing here knows is a failure. */
static void test_goldens(void) {
    for (int g = 0; g < N_GOLDENS; g++) {
        fixture f;
        char expected[64];
        snprintf(expected, sizeof expected, "%s.expected.json", GOLDENS[g]);
        if (!fixture_open(&f, GOLDENS[g], expected, "pi", "mu")) return;
        for (int raw = 0; raw < 2; raw++) {
            tv_readout readout = {0, raw};
            const cJSON *all = fixture_at(f.expected, raw ? "raw" : "renorm");
            for (const cJSON *c = all->child; c; c = c->next) {
                const char *key = c->string;
                if (strcmp(key, "realised_prob_first_repeat") == 0)
                    check_realised(&f, c);
                else if (strcmp(key, "plugin") == 0)
                    check_plugin(&f, readout, c);
                else if (strcmp(key, "prefix_curve_r_max") == 0)
                    check_prefixes(&f, readout, c);
                else if (strcmp(key, "levels_identity") == 0)
                    check_identity_levels(&f, readout, c);
                else if (strcmp(key, "levels_permuted") == 0)
                    check_permuted_levels(&f, c);
                else if (strcmp(key, "perm_examples") == 0)
                    check_permutations(most_reads(&f), (uint64_t)fixture_at(all, "levels_permuted/seed")->valuedouble,
                                       c);
                else /* tests of other units walk these */
                    CHECK(strcmp(key, "sigma") == 0 || strcmp(key, "K") == 0 || strcmp(key, "hedged") == 0 ||
                          strcmp(key, "mlmc") == 0 || strcmp(key, "alloc") == 0);
            }
        }
        fixture_close(&f);
    }
}

/* Traces of another engine pair: Z of every trajectory, mismatch share, symmetric value. */
static void test_real_pair(void) {
    fixture f;
    tv_err err = {0};
    if (!fixture_open(&f, "real_transformers", "real_transformers.expected.json", "a", "b")) return;
    tv_distance d;
    if (CHECK_OK(tv_distance_run(&f.set, NULL, &d, &err), &err)) {
        tv_plugin p = tv_plugin_at(&d, 1);
        for (int s = 0; s < 2; s++) {
            const cJSON *want = fixture_at(f.expected, s ? "b" : "a");
            double *z = tv_xmalloc((size_t)d.set[s].N * sizeof *z);
            tv_distance_z(&d, s, 1, z);
            check_list(z, fixture_at(want, "Z"), d.set[s].N);
            CHECK_NEAR(p.tv[s], fixture_at(want, "tv")->valuedouble, TOL);
            CHECK_NEAR(p.mismatch[s], fixture_at(want, "mismatch")->valuedouble, TOL);
            free(z);
        }
        CHECK_NEAR(p.tv_sym, fixture_at(f.expected, "sym")->valuedouble, TOL);
        tv_distance_free(&d);
    }
    fixture_close(&f);
}

/* A readout k' keeps the k' most likely slots, ties by lowest id, whatever the order of the slots. */
static void test_readout(void) {
    const int32_t ids[6] = {9, 4, -1, 7, 2, 5};
    const float lps[6] = {-1, -2, 0, -2, -0.5f, -3};
    double p[6];
    double mass = tv_record_probs(ids, lps, 6, (tv_readout){3, 0}, p); /* 2, 9, then 4 before 7 */
    double want = exp(-0.5) + exp(-1) + exp(-2);
    CHECK_NEAR(mass, want, TOL);
    CHECK_NEAR(p[0], exp(-1) / want, TOL);
    CHECK_NEAR(p[1], exp(-2) / want, TOL);
    CHECK(p[2] == 0 && p[3] == 0 && p[5] == 0);
    CHECK_NEAR(p[4], exp(-0.5) / want, TOL);
    tv_record_probs(ids, lps, 6, (tv_readout){0, 1}, p);
    CHECK_NEAR(p[3], exp(-2), TOL);
    /* The same through sorted slots, where the shortcut applies. */
    const int32_t sorted_ids[4] = {2, 9, 4, 7};
    const float sorted[4] = {-0.5f, -1, -2, -2};
    tv_record_probs(sorted_ids, sorted, 4, (tv_readout){3, 0}, p);
    CHECK_NEAR(p[2], exp(-2) / want, TOL);
    CHECK(p[3] == 0);
    /* A tie with the slot before the last is not order: the third is among the two most likely. */
    const int32_t near_ids[3] = {1, 2, 3};
    const float near[3] = {-1, -2, -1};
    tv_record_probs(near_ids, near, 3, (tv_readout){2, 0}, p);
    CHECK(p[0] == 0.5 && p[1] == 0 && p[2] == 0.5);
    /* No slot at all: no mass, no NaN. */
    const int32_t none[2] = {-1, -1};
    CHECK(tv_record_probs(none, lps, 2, (tv_readout){0, 0}, p) == 0 && p[0] == 0 && p[1] == 0);
}

/* Both builds of the decoder give the same bits, at every number of slots, and the values of libm. */
static void test_slots(void) {
    tv_rng rng = {9};
    enum { M = 5, K = 23 };
    int32_t tokens[M], ids[M * K];
    float lps[M * K];
    double w[M * K], v[M * K], q[M];
    for (int k = 1; k <= K; k++) {
        for (int x = 0; x < M * k; x++) {
            ids[x] = tv_rng_next(&rng) % 8 ? x % k : -1;
            lps[x] = (float)(-30 * tv_rng_uniform(&rng));
        }
        for (int t = 0; t < M; t++) tokens[t] = t;
        int twice;
        tv_slots_exp_portable(ids, lps, M * k, w);
        CHECK_INT(tv_slots_realised_portable(tokens, ids, lps, M, k, 0, w, q, &twice), -1);
        for (int x = 0; x < M * k; x++) CHECK_NEAR(w[x] / exp(lps[x]), ids[x] < 0 ? 0 : 1, 1e-14);
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
            double p[M];
            int twice_too;
            tv_slots_exp_avx2(ids, lps, M * k, v);
            CHECK_BYTES(v, w, sizeof(double) * (size_t)(M * k));
            CHECK_INT(tv_slots_realised_avx2(tokens, ids, lps, M, k, 0, v, p, &twice_too), -1);
            CHECK_BYTES(p, q, sizeof q);
            CHECK_INT(twice_too, twice);
        }
#endif
        /* The fused decoder and the one that narrows readouts agree to the bit. */
        for (int t = 0; t < M; t++) {
            tv_record_probs(ids + t * k, lps + t * k, k, (tv_readout){0, 0}, v);
            CHECK(q[t] == (t < k && ids[t * k + t] >= 0 ? v[t] : 0));
        }
        /* One value below e^-708 makes the block decode with range checks: no bit of the other records changes. What
         * an empty slot holds does not matter. */
        double r[M];
        lps[0] = -900;
        for (int x = 1; x < M * k; x++) lps[x] = ids[x] < 0 ? NAN : lps[x];
        CHECK_INT(tv_slots_realised(tokens, ids, lps, M, k, 0, v, r, &twice), -1);
        CHECK_BYTES(r + 1, q + 1, sizeof q - sizeof *q);
        CHECK(r[0] == 0);
        if (k == 1) continue;
        ids[0] = ids[k - 1] = tokens[0]; /* recorded twice, in one vector, in two or behind them */
        CHECK_INT(tv_slots_realised(tokens, ids, lps, M, k, 0, v, r, &twice), 0);
        CHECK_INT(twice, 1);
    }
}

/* L04: one distribution, of which side a stores the whole vocabulary of 50 and side b the 20 most likely tokens. On the
 * readout that both have it is no distance at all; on all that is stored each token differs by the mass of the 20. */
static void test_unequal_slots(void) {
    enum { N = 3, n = 5, V = 50, K = 20 };
    static const int64_t slots[2] = {V, K};
    int32_t tokens[N * n], ids[2][N * n * V];
    float lps[2][N * n * V];
    const double all = (1 - pow(0.9, V)) / (1 - 0.9), common = (1 - pow(0.9, K)) / (1 - pow(0.9, V));
    for (int x = 0; x < N * n; x++) {
        tokens[x] = x % 2;
        for (int side = 0; side < 2; side++)
            for (int j = 0; j < slots[side]; j++) {
                ids[side][x * slots[side] + j] = j;
                lps[side][x * slots[side] + j] = (float)log(pow(0.9, j) / all);
            }
    }
    tv_dataset data = {.n = n, .temperature = 1};
    const int32_t *id_list[2] = {ids[0], ids[1]};
    const float *lp_list[2] = {lps[0], lps[1]};
    for (int s = 0; s < 2; s++) {
        data.set[s].N = N, data.set[s].tokens = tokens;
        for (int e = 0; e < 2; e++)
            data.set[s].reads[e] = 1, data.set[s].k[e] = slots[e], data.set[s].ids[e] = &id_list[e],
            data.set[s].lps[e] = &lp_list[e];
    }
    tv_distance d;
    tv_err err = {0};
    for (int readout = 0; readout <= K; readout += K) {
        const tv_distance_options o = {.readout = {readout, 0}};
        if (!CHECK_OK(tv_distance_run(&data, &o, &d, &err), &err)) return;
        const tv_plugin p = tv_plugin_at(&d, 1);
        if (readout)
            CHECK(p.tv_sym == 0 && p.mismatch_sym == 0);
        else
            CHECK_NEAR(p.tv_sym, tanh(-n * log(common) / 2), 1e-6); /* log-probabilities are float32 */
        tv_distance_free(&d);
    }
    data.top_k = K; /* what the sets were sampled from is the common readout */
    CHECK_INT(tv_readout_choose(&data, 0).readout, K);
}

/* Long log-ratios, dead halves and both-dead: the documented values, never NaN. */
static void test_functionals(void) {
    CHECK_NEAR(tv_z(-3, -3), 0, 0);
    CHECK(tv_z(-800, 0) == 1 && tv_z(0, -800) == 1 && tv_z(-INFINITY, 0) == 1 &&
          tv_z(0, -INFINITY) == 1); /* cases X03 */
    CHECK(tv_z(-INFINITY, -1) == 1 && tv_z(-INFINITY, -INFINITY) == 1);
    CHECK_NEAR(tv_likelihood_ratio(-1, -900), 1, 0);
    CHECK_NEAR(tv_likelihood_ratio(-900, -1), 0, 0);
    CHECK(tv_likelihood_ratio(-1, -INFINITY) == 1 && tv_likelihood_ratio(-INFINITY, -1) == 0);
    CHECK(tv_likelihood_ratio(-INFINITY, -INFINITY) == 0);
    double q[20];
    for (int t = 0; t < 20; t++) q[t] = 1e-300;
    CHECK_NEAR(tv_log_product(q, 20, 1), 20 * log(1e-300), 1e-13);
    q[3] = 0;
    CHECK(tv_log_product(q, 20, 1) == -INFINITY);
    CHECK_NEAR(tv_split_sign(-1, -2, -1, -3), 0.5 * (tanh(0.5) + tanh(1)), TOL);
    CHECK_NEAR(tv_split_sign(-2, -1, -1, -3), -0.5 * (tanh(0.5) + tanh(1)), TOL);
    CHECK_NEAR(tv_split_sign(-1, -1, -1, -3), 0, 0);
    CHECK_NEAR(tv_split_sign(-INFINITY, -1, -1, -INFINITY), -1, 0);
    CHECK_NEAR(tv_split_sign(-INFINITY, -INFINITY, -1, -INFINITY), 1, 0);
}

/* Floors: reads 0..r-1 against r..2r-1 of one side, the same as two sides made of these reads. */
static void test_floors(void) {
    fixture f;
    tv_err err = {0};
    tv_distance d, as_pair;
    if (!fixture_open(&f, "g3_mismatch", NULL, "pi", "mu")) return;
    tv_distance_options o = {.floors = 1};
    if (!CHECK_OK(tv_distance_run(&f.set, &o, &d, &err), &err)) return;
    CHECK_INT(d.h, 4);
    for (int e = 0; e < 2; e++)
        for (int64_t r = 1; r <= d.h; r++) {
            tv_dataset pair = f.set;
            for (int s = 0; s < 2; s++)
                for (int half = 0; half < 2; half++) {
                    pair.set[s].ids[half] = f.set.set[s].ids[e] + half * r;
                    pair.set[s].lps[half] = f.set.set[s].lps[e] + half * r;
                    pair.set[s].reads[half] = r;
                }
            CHECK_OK(tv_distance_run(&pair, NULL, &as_pair, &err), &err);
            for (int s = 0; s < 2; s++) {
                double *z = tv_xmalloc((size_t)d.set[s].N * sizeof *z);
                tv_distance_z(&as_pair, s, r, z);
                for (int64_t i = 0; i < d.set[s].N; i++)
                    CHECK_NEAR(d.set[s].floor_z[e][(r - 1) * d.set[s].N + i], z[i], TOL);
                free(z);
            }
            tv_distance_free(&as_pair);
        }
    tv_distance_free(&d);
    /* A deterministic side's floor is exactly 0, and its one read stands for every r, to the bit. */
    tv_dataset one = f.set;
    one.deterministic[TV_B] = 1;
    for (int s = 0; s < 2; s++) one.set[s].reads[TV_B] = 1;
    o.permute_floors = 1;
    if (CHECK_OK(tv_distance_run(&one, &o, &d, &err), &err)) {
        CHECK_INT(d.R, 8);
        for (int s = 0; s < 2; s++)
            for (int64_t i = 0; i < d.set[s].N; i++) {
                CHECK(d.set[s].floor_z[TV_B][i] == 0 && d.set[s].floor_z[TV_A][i] >= 0);
                CHECK(d.set[s].log[TV_B][i] == d.set[s].log[TV_B][7 * d.set[s].N + i]);
                CHECK(d.set[s].half[TV_B][0][i] == d.set[s].half[TV_B][1][i]);
            }
        tv_distance_free(&d);
    }
    fixture_close(&f);
}

/* What lies behind a trajectory's end contributes nothing: the values are those of the cut trajectory. */
static void test_lengths(void) {
    fixture f;
    tv_err err = {0};
    if (!fixture_open(&f, "g2_basic", NULL, "pi", "mu")) return;
    int32_t cut[16];
    for (int i = 0; i < 16; i++) cut[i] = 5 + i % 3;
    tv_dataset ended = f.set;
    for (int s = 0; s < 2; s++) ended.set[s].lengths = cut;
    int64_t lengths[3] = {5, 6, 7};
    tv_distance_options o = {.lengths = lengths, .n_lengths = 3};
    tv_distance d, e;
    CHECK_OK(tv_distance_run(&ended, NULL, &d, &err), &err);
    CHECK_OK(tv_distance_run(&f.set, &o, &e, &err), &err);
    for (int s = 0; s < 2; s++) {
        int64_t N = d.set[s].N;
        double *z = tv_xmalloc((size_t)N * sizeof *z);
        tv_distance_z(&d, s, d.R, z);
        for (int64_t i = 0; i < N; i++) CHECK(z[i] == e.set[s].prefix_z[i % 3 * N + i]);
        /* The second half of the reads, over a length that no group of factors divides. */
        double q[8 * 16];
        for (int64_t i = 0; i < N; i++) {
            CHECK_OK(tv_realised(&f.set, s, s, d.R, i, i + 1, (tv_readout){0, 0}, q, &err), &err);
            double want = 0;
            for (int64_t t = 0; t < cut[i]; t++) {
                double mean = 0;
                for (int64_t rho = d.h; rho < 2 * d.h; rho++) mean += q[rho * f.set.n + t] / (double)d.h;
                want += log(mean);
            }
            CHECK_NEAR(d.set[s].half[s][1][i], want, TOL);
        }
        free(z);
    }
    tv_distance_free(&d);
    tv_distance_free(&e);
    fixture_close(&f);
}

/* The bits do not depend on the number of threads. */
static void test_threads(void) {
    fixture f;
    tv_err err = {0};
    if (!fixture_open(&f, "g3_mismatch", NULL, "pi", "mu")) return;
    tv_distance_options o = {.floors = 1, .permute_floors = 1, .seed = 5};
    tv_distance d[2];
    int before = omp_get_max_threads();
    for (int x = 0; x < 2; x++) {
        omp_set_num_threads(x ? 5 : 1);
        CHECK_OK(tv_distance_run(&f.set, &o, &d[x], &err), &err);
    }
    omp_set_num_threads(before);
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++) {
            size_t row = (size_t)d[0].set[s].N * sizeof(double);
            CHECK_BYTES(d[1].set[s].log[e], d[0].set[s].log[e], row * (size_t)d[0].R);
            CHECK_BYTES(d[1].set[s].floor_z[e], d[0].set[s].floor_z[e], row * (size_t)d[0].h);
        }
    tv_distance_free(&d[0]);
    tv_distance_free(&d[1]);
    fixture_close(&f);
}

/* Damaged records and impossible requests are named; nothing is averaged in. */
static void test_bad_input(void) {
    fixture f;
    tv_err err = {0};
    tv_distance d;
    if (!fixture_open(&f, "g1_tiny", NULL, "pi", "mu")) return;
    tv_distance_options o = {.reads = 3};
    CHECK_FAILS(tv_distance_run(&f.set, &o, &d, &err), TV_EARG, &err, "stored 2 passes");
    o = (tv_distance_options){.readout = {4, 0}};
    CHECK_FAILS(tv_distance_run(&f.set, &o, &d, &err), TV_EARG, &err, "stored 3 slots");
    int64_t lengths[2] = {3, 3};
    o = (tv_distance_options){.lengths = lengths, .n_lengths = 2};
    CHECK_FAILS(tv_distance_run(&f.set, &o, &d, &err), TV_EARG, &err, "ascend");
    float *lp = (float *)f.set.set[1].lps[0][1] + (2 * 4 + 3) * 3; /* trajectory 2, position 3 */
    float kept = *lp;
    for (int x = 0; x < 2; x++) {
        *lp = x ? INFINITY : NAN;
        CHECK_FAILS(tv_distance_run(&f.set, NULL, &d, &err), TV_ENUMERIC, &err,
                    "set b, pass 1, trajectory 2, position 3");
    }
    *lp = kept;
    int32_t *ids = (int32_t *)f.set.set[0].ids[0][0];
    ids[0] = ids[1] = f.set.set[0].tokens[0];
    CHECK_FAILS(tv_distance_run(&f.set, NULL, &d, &err), TV_EFORMAT, &err, "recorded twice");
    f.set.set[1].N = 0;
    CHECK_FAILS(tv_distance_run(&f.set, NULL, &d, &err), TV_EARG, &err, "set b holds no trajectory");
    fixture_close(&f);
}

static const tv_test tests[] = {{"distance_goldens", test_goldens},
                                {"distance_real_pair", test_real_pair},
                                {"distance_readout", test_readout},
                                {"distance_slots", test_slots},
                                {"distance_unequal_slots", test_unequal_slots},
                                {"distance_functionals", test_functionals},
                                {"distance_floors", test_floors},
                                {"distance_lengths", test_lengths},
                                {"distance_threads", test_threads},
                                {"distance_bad_input", test_bad_input}};
TV_TEST_MAIN(tests)
