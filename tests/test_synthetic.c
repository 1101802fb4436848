/* Instances of known distance: exact values, unbiased oracles, records that agree with their chain, and the coverage of
 * the reported intervals. */
#include "estimator/synthetic.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "check.h"
#include "estimator/hedged.h"
#include "estimator/stats.h"
#include "estimator_fixture.h"

/* The embedded mask is the fixture's, and the TV follows from its count. */
static void synthetic_hard_instance(void) {
    fixture f;
    if (!fixture_open(&f, "hard_instance", NULL, NULL, NULL)) return;
    int64_t shape[4];
    const unsigned char *active = fixture_tensor(&f, "active", shape);
    CHECK_INT(shape[0], 4096);
    tv_chain c;
    tv_err err = {0};
    if (CHECK_OK(tv_chain_hard(&c, &err), &err)) {
        CHECK_INT(c.n, 128);
        int count = 0;
        for (int block = 0; block < 4096; block++) {
            /* Walk the block's bits, first bit highest, then the certain positions: the last context tells. */
            int s = c.start;
            for (int t = 0; t < 12; t++) s = c.next[s * 2 + (block >> (11 - t) & 1)];
            int certain = 0;
            for (int t = 12; t < 127; t++) certain += c.p[0][s * 2] == 1 && c.p[1][s * 2] == 1, s = c.next[s * 2];
            CHECK_INT(certain, 115);
            const int is_active = c.p[0][s * 2] > 0.6;
            CHECK_INT(is_active, active[block]);
            count += is_active;
        }
        CHECK_INT(count, 1623);
        tv_chain_distance d;
        CHECK_OK(tv_chain_exact(&c, &d, &err), &err);
        CHECK_NEAR(d.tv, 0.98 * 1623 / 4096, 1e-14);
        CHECK_NEAR(d.mismatch[0], 0, 0);
        tv_chain_free(&c);
    }
    fixture_close(&f);
}

/* Total variation of a small chain by enumerating every path. */
static double enumerate(const tv_chain *c, int s, int t, double a, double b) {
    if (t == c->n) return 0.5 * fabs(a - b);
    double sum = 0;
    for (int j = 0; j < c->k; j++) {
        const double pa = a * c->p[0][s * c->k + j], pb = b * c->p[1][s * c->k + j];
        if (pa > 0 || pb > 0) sum += enumerate(c, c->next[s * c->k + j], t + 1, pa, pb);
    }
    return sum;
}

/* Dynamic programming equals enumeration, with and without mismatch; probabilities sum to one; steps are the
 * log-ratios. */
static void synthetic_exact(void) {
    for (int mismatch = 0; mismatch < 2; mismatch++) {
        tv_chain c;
        tv_err err = {0};
        const tv_markov_options o = {
            .n = 6, .contexts = 8, .topics = 2, .k = 7, .delta = 0.3, .mismatch = mismatch * 0.7, .seed = 4};
        if (!CHECK_OK(tv_chain_markov(&o, &c, &err), &err)) return;
        for (int s = 0; s < c.S; s++)
            for (int side = 0; side < 2; side++) {
                double sum = 0;
                for (int j = 0; j < c.k; j++) sum += c.p[side][s * c.k + j];
                CHECK_NEAR(sum, 1, 1e-14);
                CHECK(c.p[0][s * c.k + 6] + c.p[1][s * c.k + 6] > 0); /* an odd k leaves no token unused */
            }
        for (int j = 0; j < c.S * c.k; j++)
            if (c.p[0][j] > 0 && c.p[1][j] > 0) CHECK_NEAR(log(c.p[0][j] / c.p[1][j]), c.step[j] * c.delta, 1e-12);
        tv_chain_distance d;
        CHECK_OK(tv_chain_exact(&c, &d, &err), &err);
        CHECK_NEAR(d.tv, enumerate(&c, c.start, 0, 1, 1), 1e-13);
        CHECK((d.mismatch[0] > 0) == mismatch);
        tv_chain_free(&c);
    }
    tv_chain c;
    tv_chain_distance d;
    tv_err err = {0};
    CHECK_OK(tv_chain_escape(50, 4, 2, &c, &err), &err);
    CHECK_OK(tv_chain_exact(&c, &d, &err), &err);
    CHECK_NEAR(d.tv, (1 - pow(1 - 1.0 / 50, 50)) * tanh(1), 1e-14);
    for (int side = 0; side < 2; side++) {
        double sum = 0;
        for (int j = 0; j < 5; j++) sum += c.p[side][j];
        CHECK_NEAR(sum, 1, 1e-14);
        for (int j = 1; j < 5; j++) CHECK_NEAR(log(c.p[0][j] / c.p[1][j]), c.step[j] * 2.0, 1e-12);
    }
    tv_chain_free(&c);
}

/* Heavy-tailed reads are unbiased, on the simplex, heavy-tailed, and of the stated size. */
static void synthetic_noise(void) {
    tv_chain c;
    tv_err err = {0};
    const tv_markov_options o = {.n = 40, .contexts = 8, .topics = 2, .k = 8, .delta = 0.1, .seed = 6};
    if (!CHECK_OK(tv_chain_markov(&o, &c, &err), &err)) return;
    const tv_oracle heavy = {TV_ORACLE_HEAVY, 0.02, 3};
    enum { N = 8, READS = 400 };
    tv_dataset *data, *exact;
    if (!CHECK_OK(tv_chain_record(&c, &heavy, 0, N, READS, &data, &err), &err)) return;
    CHECK_OK(tv_chain_record(&c, &(tv_oracle){TV_ORACLE_EXACT, 0, 3}, 0, N, 1, &exact, &err), &err);
    CHECK(exact->deterministic[0] && exact->set[0].reads[0] == 1 && !data->deterministic[0]);
    CHECK_BYTES(data->set[0].tokens, exact->set[0].tokens, N * 40 * sizeof(int32_t));
    const size_t cells = N * 40;
    double chi = 0, z2 = 0, far = 0;
    for (size_t cell = 0; cell < cells; cell++) {
        double cell_chi = 0;
        for (int j = 0; j < 8; j++) {
            const size_t at = cell * 8 + (size_t)j;
            if (exact->set[0].ids[0][0][at] < 0) continue;
            const double p = exp((double)exact->set[0].lps[0][0][at]);
            double mean = 0, square = 0;
            for (int r = 0; r < READS; r++) {
                const double q = exp((double)data->set[0].lps[0][r][at]);
                mean += q / READS, square += (q - p) * (q - p) / READS;
            }
            cell_chi += square / p;
            const double z = (mean - p) / (sqrt(square / READS) + 1e-7);
            z2 += z * z / (double)(cells * 8);
            far += fabs(z) > 5;
        }
        chi += cell_chi / (double)cells;
        double mass = 0;
        for (int j = 0; j < 8; j++)
            if (data->set[0].ids[0][7][cell * 8 + (size_t)j] >= 0)
                mass += exp((double)data->set[0].lps[0][7][cell * 8 + (size_t)j]);
        CHECK_NEAR(mass, 1, 1e-5);
    }
    CHECK(z2 < 1.3 && far < 4);                   /* unbiased */
    CHECK(sqrt(chi) > 0.012 && sqrt(chi) < 0.03); /* lognormal scales: eight trajectories move the mean a good deal */
    tv_chain_record_free(data);
    tv_chain_record_free(exact);
    tv_chain_free(&c);
}

/* Equal options give equal bits whatever the threads; blocks of a measurement are the measurement; other seeds differ.
 */
static void synthetic_reproducible(void) {
    tv_chain c;
    tv_err err = {0};
    const tv_markov_options o = {.n = 20, .contexts = 8, .topics = 2, .k = 6, .delta = 0.1, .seed = 6};
    if (!CHECK_OK(tv_chain_markov(&o, &c, &err), &err)) return;
    for (int kind = TV_ORACLE_EXACT; kind <= TV_ORACLE_SAMPLES; kind++) {
        if (kind == TV_ORACLE_GAUSS) continue;
        const tv_oracle oracle = {(tv_oracle_kind)kind, 0.05, 11};
        tv_dataset *x, *y;
        const int threads = omp_get_max_threads();
        omp_set_num_threads(1);
        CHECK_OK(tv_chain_record(&c, &oracle, 0, 6, 2, &x, &err), &err);
        omp_set_num_threads(3);
        CHECK_OK(tv_chain_record(&c, &oracle, 4, 2, 2, &y, &err), &err);
        omp_set_num_threads(threads);
        const size_t last = (size_t)y->set[1].reads[0] - 1;
        CHECK_BYTES(y->set[1].tokens, x->set[1].tokens + 4 * 20, 2 * 20 * 4);
        CHECK_BYTES(y->set[1].lps[0][last], x->set[1].lps[0][last] + 4 * 20 * 6, 2 * 20 * 6 * 4);
        CHECK_BYTES(y->set[1].ids[1][last], x->set[1].ids[1][last] + 4 * 20 * 6, 2 * 20 * 6 * 4);
        tv_chain_record_free(y);
        CHECK_OK(tv_chain_record(&c, &(tv_oracle){(tv_oracle_kind)kind, 0.05, 12}, 0, 6, 2, &y, &err), &err);
        CHECK(memcmp(x->set[0].tokens, y->set[0].tokens, 6 * 20 * 4) != 0);
        tv_chain_record_free(x);
        tv_chain_record_free(y);
    }
    /* Levels without records are the levels of the records. */
    for (int kind = TV_ORACLE_HEAVY; kind <= TV_ORACLE_SAMPLES; kind++) {
        const tv_oracle oracle = {(tv_oracle_kind)kind, 0.05, 11};
        tv_dataset *data;
        tv_levels a, b;
        CHECK_OK(tv_chain_record(&c, &oracle, 0, 6, 4, &data, &err), &err);
        CHECK_OK(tv_levels_run(data, 1, &(tv_levels_options){0}, &a, &err), &err);
        CHECK_OK(tv_chain_levels(&c, &oracle, 1, 0, 6, &(tv_levels_options){.reads = 4}, &b, &err), &err);
        for (int l = 0; l < 3; l++)
            for (int64_t i = 0; i < 6; i++)
                CHECK_NEAR(tv_levels_z(&b, 0, l)[i], tv_levels_z(&a, 0, l)[i], 1e-5); /* f32 records */
        tv_levels_free(&a);
        tv_levels_free(&b);
        tv_chain_record_free(data);
    }
    /* The same where the readout is cut to three of six. */
    tv_dataset *data;
    tv_levels a, b;
    const tv_readout cut = {.readout = 3};
    const tv_oracle noisy = {TV_ORACLE_HEAVY, 0.05, 11};
    CHECK_OK(tv_chain_record(&c, &noisy, 0, 20, 2, &data, &err), &err);
    CHECK_OK(tv_levels_run(data, 0, &(tv_levels_options){.readout = cut}, &a, &err), &err);
    CHECK_OK(tv_chain_levels(&c, &noisy, 0, 0, 20, &(tv_levels_options){.reads = 2, .readout = cut}, &b, &err), &err);
    int alive = 0;
    for (int64_t i = 0; i < 20; i++) {
        CHECK_NEAR(tv_levels_z(&b, 0, 1)[i], tv_levels_z(&a, 0, 1)[i], 1e-5);
        alive += tv_levels_z(&a, 0, 1)[i] < 1;
    }
    CHECK(alive > 0);
    tv_levels_free(&a);
    tv_levels_free(&b);
    tv_chain_record_free(data);
    /* Exact reads give the exact Z, from the first token to the last. */
    CHECK_OK(
        tv_chain_levels(&c, &(tv_oracle){TV_ORACLE_EXACT, 0, 11}, 0, 0, 40, &(tv_levels_options){.reads = 1}, &a, &err),
        &err);
    for (int64_t i = 0; i < 40; i++) CHECK_NEAR(a.reference[i], tv_levels_z(&a, 0, 0)[i], 1e-12);
    tv_levels_free(&a);
    /* Increments read by read: many heavy-tailed reads come close to the exact value; a sampled token gives the
     * record's. */
    double y[40], z[40], level[40];
    tv_chain_sampler s = {.chain = &c, .oracle = {TV_ORACLE_HEAVY, 0.02, 5}, .side = -1, .exact = z, .level = level};
    CHECK_OK(tv_chain_increment(&s, 0, 0, 40, 16, 64, 1, y, &err), &err);
    double apart = 0;
    for (int i = 0; i < 40; i++) apart += fabs(level[i] - z[i]) / 40 + fabs(y[i]) / 40;
    CHECK(apart < 0.03);
    s.oracle = (tv_oracle){TV_ORACLE_SAMPLES, 0, 5};
    CHECK_OK(tv_chain_increment(&s, 0, 0, 40, 0, 4000, 0, y, &err), &err);
    for (int i = 0; i < 40; i++) CHECK(level[i] == 1 || fabs(level[i] - z[i]) < 0.5);
    CHECK(tv_stats_mean(level, 40) < 0.9);
    tv_chain_free(&c);
}

/* Increments: the mean over exact reads is the TV; fine minus coarse is what it says; Gaussian block sums have the
 * right variance; sampled tokens die where they must. */
static void synthetic_increments(void) {
    tv_chain c;
    tv_err err = {0};
    if (!CHECK_OK(tv_chain_hard(&c, &err), &err)) return;
    enum { N = 16000 };
    double *y = tv_xmalloc(3 * N * sizeof *y);
    tv_chain_sampler s = {
        .chain = &c, .oracle = {TV_ORACLE_EXACT, 0, 2}, .side = -1, .exact = y + N, .level = y + 2 * N};
    CHECK_OK(tv_chain_increment(&s, 0, 0, N, 0, 1, 0, y, &err), &err);
    CHECK(fabs(tv_stats_mean(y, N) - 0.388315) < 4 * sqrt(tv_stats_variance(y, N) / N));
    for (int i = 0; i < N; i++) CHECK_NEAR(y[i], y[N + i], 1e-12);
    CHECK_OK(tv_chain_increment(&s, 0, 0, N, 1, 4, 1, y, &err), &err);
    for (int i = 0; i < N; i++) CHECK_NEAR(y[i], 0, 1e-12); /* exact reads: no increment */
    s.oracle = (tv_oracle){TV_ORACLE_GAUSS, 0.05, 2};
    CHECK_OK(tv_chain_increment(&s, 1, 0, N, 2, 4, 1, y, &err), &err);
    const double anti = tv_stats_variance(y, N), mean_anti = tv_stats_mean(y, N);
    CHECK_OK(tv_chain_increment(&s, 2, 0, N, 2, 4, 0, y, &err), &err);
    CHECK(anti < 0.8 * tv_stats_variance(y, N));
    CHECK(fabs(mean_anti - tv_stats_mean(y, N)) <
          4 * sqrt((anti + tv_stats_variance(y, N)) / N)); /* same expectation */
    /* Inactive blocks: Z_r = tanh|D|/2 with D normal of variance 24 sigma^2 / r: mean |D|/2. */
    CHECK_OK(tv_chain_increment(&s, 3, 0, N, 0, 16, 0, y, &err), &err);
    double sum = 0;
    int count = 0;
    for (int i = 0; i < N; i++)
        if (y[N + i] == 0) sum += y[2 * N + i], count++;
    /* 12 free bits and a fair last one: 13 positions, two engines, relative sd sigma each. */
    CHECK(fabs(sum / count / (0.5 * sqrt(2 / M_PI) * sqrt(26 * 0.05 * 0.05 / 16)) - 1) < 0.025);
    /* Recorded Gauss reads: standard deviation sigma/2 on a fair bit, (q, 1 - q). */
    tv_dataset *data;
    CHECK_OK(tv_chain_record(&c, &s.oracle, 0, 400, 1, &data, &err), &err);
    double square = 0;
    for (int i = 0; i < 400; i++) {
        const float *lp = data->set[0].lps[0][0] + (size_t)i * 128 * 2;
        square += pow(exp((double)lp[0]) - 0.5, 2) / 400;
        CHECK_NEAR(exp((double)lp[0]) + exp((double)lp[1]), 1, 1e-6);
    }
    CHECK(fabs(sqrt(square) / 0.025 - 1) < 0.15);
    tv_chain_record_free(data);
    s.oracle = (tv_oracle){TV_ORACLE_SAMPLES, 0, 2};
    CHECK_OK(tv_chain_increment(&s, 4, 0, 200, 0, 1, 0, y, &err), &err);
    CHECK(tv_stats_mean(y, 200) > 0.95); /* one sample a position almost never hits all 13 tokens twice */
    CHECK_FAILS(tv_chain_increment(&s, 0, 0, N, 4, 4, 0, y, &err), TV_EARG, &err, "increment from 4 to 4");
    s.oracle = (tv_oracle){TV_ORACLE_GAUSS, NAN, 2};
    CHECK_FAILS(tv_chain_increment(&s, 0, 0, N, 0, 4, 0, y, &err), TV_EARG, &err, "sigma");
    free(y);
    tv_chain_free(&c);
}

/* Bad sizes and parameters are refused by name. */
static void synthetic_bad_input(void) {
    tv_chain c;
    tv_err err = {0};
    tv_dataset *data;
    CHECK_FAILS(tv_chain_markov(&(tv_markov_options){.n = 4, .contexts = 2, .topics = 3, .k = 4}, &c, &err), TV_EARG,
                &err, "topics");
    CHECK_FAILS(tv_chain_markov(&(tv_markov_options){.n = 0, .contexts = 2, .topics = 1, .k = 4}, &c, &err), TV_EARG,
                &err, "n=0");
    CHECK_FAILS(
        tv_chain_markov(&(tv_markov_options){.n = 4, .contexts = 2, .topics = 1, .k = 4, .delta = NAN}, &c, &err),
        TV_EARG, &err, "delta");
    CHECK_FAILS(tv_chain_escape(10, 3, 1, &c, &err), TV_EARG, &err, "even");
    if (!CHECK_OK(
            tv_chain_markov(&(tv_markov_options){.n = 4, .contexts = 2, .topics = 1, .k = 4, .seed = 1}, &c, &err),
            &err))
        return;
    CHECK_FAILS(tv_chain_record(&c, &(tv_oracle){TV_ORACLE_GAUSS, 0.1, 1}, 0, 2, 2, &data, &err), TV_EARG, &err,
                "two tokens");
    CHECK_FAILS(tv_chain_record(&c, &(tv_oracle){TV_ORACLE_HEAVY, 0.1, 1}, 0, 0, 2, &data, &err), TV_EARG, &err,
                "cannot record 0");
    tv_chain_free(&c);
    cJSON *report;
    CHECK_FAILS(tv_synth_run(&(tv_synth_options){.effort = -1}, NULL, &report, &err), TV_EARG, &err, "effort");
}

/* The whole check at little effort: it runs, its JSON holds what it must, and what does not depend on effort holds. */
static void synthetic_report(void) {
    cJSON *report;
    tv_err err = {0};
    if (!CHECK_OK(tv_synth_run(&(tv_synth_options){.seed = 1, .effort = 0.04}, NULL, &report, &err), &err)) return;
    CHECK_INT(cJSON_GetArraySize(fixture_at(report, "instances")), 5);
    CHECK_NEAR(cJSON_GetArrayItem(fixture_at(report, "instances"), 0)->child
                   ? fixture_at(cJSON_GetArrayItem(fixture_at(report, "instances"), 0), "tv")->valuedouble
                   : 0,
               0.3883154296875, 1e-14);
    for (const cJSON *check = fixture_at(report, "checks")->child; check; check = check->next) {
        CHECK(fixture_at(check, "value") != NULL); /* null where so few samples cannot say */
        if (strstr(fixture_at(check, "name")->valuestring, "closed form"))
            CHECK(cJSON_IsTrue(fixture_at(check, "held")));
    }
    CHECK(cJSON_GetArraySize(fixture_at(report, "checks")) >= 9);
    CHECK(cJSON_GetArraySize(fixture_at(report, "queries/rows")) > 100);
    char *text = tv_json_text(report);
    CHECK(!strstr(text, "nan") && !strstr(text, "inf"));
    free(text);
    cJSON_Delete(report);
}

/* Coverage of the reported intervals at 95%, 200 replications: at least 93% within what 200 can tell. */
static void synthetic_coverage(void) {
    cJSON *rows;
    tv_err err = {0};
    if (!CHECK_OK(tv_coverage_run(&(tv_synth_options){.seed = 1, .replications = 200}, NULL, &rows, &err), &err))
        return;
    CHECK_INT(cJSON_GetArraySize(rows), 21);
    for (const cJSON *row = rows->child; row; row = row->next) {
        const double coverage = fixture_at(row, "coverage")->valuedouble;
        printf("    %-26s %-15s coverage %.3f, mean width %.4f%s\n", fixture_at(row, "instance")->valuestring,
               fixture_at(row, "estimator")->valuestring, coverage, fixture_at(row, "mean_width")->valuedouble,
               cJSON_IsTrue(fixture_at(row, "conservative")) ? " (conservative)" : "");
        CHECK(coverage >= 0.93 - 3 * sqrt(0.93 * 0.07 / 200));
        CHECK(cJSON_IsTrue(fixture_at(row, "held")));
    }
    cJSON_Delete(rows);
}

/* The rows of two replications on the Markov pair, from the definitions: bracket, multilevel and hedged intervals. */
static void synthetic_coverage_rows(void) {
    cJSON *rows = NULL;
    tv_chain chain;
    tv_chain_distance exact;
    tv_err err = {0};
    const tv_markov_options pair = {.n = 48, .contexts = 16, .topics = 2, .k = 10, .delta = 0.11, .seed = 2};
    if (!CHECK_OK(tv_coverage_run(&(tv_synth_options){.seed = 3, .replications = 2}, NULL, &rows, &err), &err)) return;
    CHECK_INT(cJSON_GetArraySize(rows), 21);
    if (!CHECK_OK(tv_chain_markov(&pair, &chain, &err), &err)) return;
    CHECK_OK(tv_chain_exact(&chain, &exact, &err), &err);
    double width[3] = {0}, bias[3] = {0}, inside[3] = {0};
    for (uint64_t j = 0; j < 2; j++) {
        const tv_oracle oracle = {TV_ORACLE_HEAVY, 0.03, 3 * 1000003u + 3 * 0x100000000u + j};
        tv_dataset *data;
        tv_distance d;
        tv_hedged h;
        double low[3] = {0}, high[3] = {0}, estimate[3] = {0}, x[64];
        CHECK_OK(tv_chain_record(&chain, &oracle, 0, 64, 4, &data, &err), &err);
        CHECK_OK(tv_distance_run(data, &(tv_distance_options){.reads = 4}, &d, &err), &err);
        double v_low = 0, v_high = 0;
        for (int s = 0; s < 2; s++) {
            tv_distance_split_sign(&d, s, x);
            low[0] += tv_stats_mean(x, 64) / 2, v_low += tv_stats_variance(x, 64) / 256;
            tv_distance_z(&d, s, 4, x);
            estimate[0] += tv_stats_mean(x, 64) / 2, v_high += tv_stats_variance(x, 64) / 256;
        }
        low[0] -= 1.96 * sqrt(v_low), high[0] = estimate[0] + 1.96 * sqrt(v_high);
        tv_distance_free(&d);
        const int64_t r[] = {1, 2, 4}, N[] = {128, 64, 32};
        tv_chain_sampler sampler = {.chain = &chain, .oracle = oracle, .side = -1};
        tv_multilevel_result m;
        CHECK_OK(
            tv_multilevel_run(tv_chain_increment, &sampler, &(tv_multilevel_plan){.L = 3, .r = r, .N = N}, &m, &err),
            &err);
        estimate[1] = m.estimate, low[1] = m.estimate - (m.bias_bound + 1.96 * m.bound_se);
        high[1] = m.estimate + 1.96 * m.se;
        CHECK_OK(tv_hedged_run(data, 2, (tv_readout){0}, NULL, &h, &err), &err);
        estimate[2] = tv_hedged_combine(&h, TV_HEDGED_T2PJ).estimate;
        low[2] = tv_hedged_interval95(&h).low, high[2] = tv_hedged_interval95(&h).high;
        tv_hedged_free(&h);
        tv_chain_record_free(data);
        for (int e = 0; e < 3; e++) {
            width[e] += (high[e] - low[e]) / 2, bias[e] += (estimate[e] - exact.tv) / 2;
            inside[e] += (low[e] <= exact.tv && exact.tv <= high[e]) / 2.0;
        }
    }
    for (int e = 0; e < 3; e++) {
        const cJSON *row = cJSON_GetArrayItem(rows, 9 + e);
        CHECK_STR(fixture_at(row, "instance")->valuestring, "Markov pair");
        CHECK_NEAR(fixture_at(row, "tv")->valuedouble, exact.tv, 0);
        CHECK_NEAR(fixture_at(row, "mean_width")->valuedouble, width[e], 1e-12);
        CHECK_NEAR(fixture_at(row, "bias")->valuedouble, bias[e], 1e-12);
        CHECK_NEAR(fixture_at(row, "coverage")->valuedouble, inside[e], 0);
        CHECK(cJSON_IsTrue(fixture_at(row, "conservative")) == (inside[e] > 0.975));
    }
    tv_chain_free(&chain);
    cJSON_Delete(rows);
}

static const tv_test tests[] = {
    {"synthetic_hard_instance", synthetic_hard_instance},
    {"synthetic_exact", synthetic_exact},
    {"synthetic_noise", synthetic_noise},
    {"synthetic_reproducible", synthetic_reproducible},
    {"synthetic_increments", synthetic_increments},
    {"synthetic_bad_input", synthetic_bad_input},
    {"synthetic_report", synthetic_report},
    {"synthetic_coverage", synthetic_coverage},
    {"synthetic_coverage_rows", synthetic_coverage_rows},
};
TV_TEST_MAIN(tests)
