/* The pilot protocol, the theory's parameters and what to run next. */
#include "estimator/schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "check.h"
#include "estimator/hedged.h"
#include "estimator/stats.h"
#include "estimator/synthetic.h"
#include "estimator_fixture.h"

static double number(const cJSON *json, const char *path) {
    const cJSON *item = fixture_at(json, path);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}
static double entry(const cJSON *json, const char *path, int i) {
    const cJSON *item = cJSON_GetArrayItem(fixture_at(json, path), i);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* A small Markov pair's levels, reference = exact Z. */
static int small_levels(tv_levels levels[2], int64_t N, double sigma) {
    tv_chain c;
    tv_err err = {0};
    const tv_markov_options o = {.n = 60, .contexts = 8, .topics = 2, .k = 8, .delta = 0.12, .seed = 2};
    if (!CHECK_OK(tv_chain_markov(&o, &c, &err), &err)) return 0;
    const tv_oracle oracle = {TV_ORACLE_HEAVY, sigma, 9};
    for (int s = 0; s < 2; s++)
        if (!CHECK_OK(tv_chain_levels(&c, &oracle, s, 0, N, &(tv_levels_options){.reads = 8}, &levels[s], &err), &err))
            return 0;
    tv_chain_free(&c);
    return 1;
}

/* Figures of the protocol that can be worked out by hand from the levels: variances, bias floors, the hindsight
 * families, the fixed family's curve; and what must hold between families. */
static void schedule_protocol(void) {
    tv_levels levels[2];
    if (!small_levels(levels, 100, 0.06)) return;
    const tv_levels *const arms[2] = {&levels[0], &levels[1]};
    const tv_fixed_family fixed = {"mine", 0.02, 2, 0.001};
    const double budgets[] = {4, 2048, 8192}; /* the first so small that one read is best */
    cJSON *out;
    tv_err err = {0};
    const tv_protocol_options o = {
        .seed = 3, .simulations = 40, .n_budgets = 3, .budgets = budgets, .n_fixed = 1, .fixed = &fixed};
    if (!CHECK_OK(tv_protocol_run(arms, 2, &o, &out, &err), &err)) return;
    double V[4], bias[4], y[100], least[3] = {1, 1, 1};
    for (int l = 0; l < 4; l++) {
        V[l] = 0.5 * (tv_stats_variance(tv_levels_z(&levels[0], 0, l), 100) +
                      tv_stats_variance(tv_levels_z(&levels[1], 0, l), 100));
        double mean = 0, paired = 0;
        for (int s = 0; s < 2; s++) {
            for (int i = 0; i < 100; i++) y[i] = tv_levels_z(&levels[s], 0, l)[i] - levels[s].reference[i];
            mean += 0.5 * tv_stats_mean(y, 100), paired += 0.5 * tv_stats_variance(y, 100);
        }
        bias[l] = fmax(fabs(mean), sqrt(paired / 200));
        const cJSON *level = cJSON_GetArrayItem(fixture_at(out, "levels"), l);
        CHECK_NEAR(number(level, "variance"), V[l], 1e-13);
        CHECK_NEAR(number(level, "bias"), bias[l], 1e-13);
        CHECK_NEAR(number(level, "r"), 1 << l, 0);
        for (int b = 0; b < 3; b++) least[b] = fmin(least[b], V[l] * (1 << l) / budgets[b] + bias[l] * bias[l]);
    }
    for (int b = 0; b < 3; b++) {
        CHECK_NEAR(entry(out, "rmse/hindsight_single", b), sqrt(least[b]), 1e-13);
        CHECK_NEAR(entry(out, "rmse/mine", b), sqrt(0.04 / budgets[b] + 1e-6), 1e-13);
        CHECK(entry(out, "rmse/hindsight_multilevel", b) <= entry(out, "rmse/hindsight_single", b) + 1e-15);
        CHECK(entry(out, "rmse/multilevel", b) >= entry(out, "rmse/hindsight_multilevel", b) - 1e-15);
        CHECK(entry(out, "rmse/single", b) >= entry(out, "rmse/hindsight_single", b) - 1e-15);
        CHECK(entry(out, "rmse/antithetic", b) >= entry(out, "rmse/hindsight_antithetic", b) - 1e-15);
        CHECK(entry(out, "rmse/randomized_antithetic", b) > 0);
    }
    /* theta: the least work that ends at the top level over the single level's. */
    const cJSON *steps = fixture_at(out, "increments");
    CHECK_INT(cJSON_GetArraySize(steps), 6);
    double VY[4][4] = {{0}};
    for (const cJSON *step = steps->child; step; step = step->next)
        VY[(int)log2(number(step, "from"))][(int)log2(number(step, "to"))] = number(step, "variance");
    double work = sqrt(V[3] * 8);
    for (int mask = 0; mask < 8; mask++) {
        double w = 0;
        int before = -1;
        for (int l = 0; l < 4; l++)
            if (l == 3 || mask >> l & 1) w += sqrt((before < 0 ? V[l] : VY[before][l]) * (1 << l)), before = l;
        work = fmin(work, w);
    }
    CHECK_NEAR(number(out, "theta"), work * work / (V[3] * 8), 1e-12);
    /* Recycling does not bias the estimate: within four standard errors, as without it. */
    const cJSON *rows = fixture_at(out, "recycling");
    CHECK_INT(cJSON_GetArraySize(rows), 3);
    for (const cJSON *row = rows->child; row; row = row->next) {
        CHECK(fabs(number(row, "fresh_bias")) < 4 * number(row, "fresh_bias_se"));
        CHECK(fabs(number(row, "recycled_bias")) < 4 * number(row, "recycled_bias_se") + 0.01);
        CHECK(number(row, "recycled_rmse") > 0 && number(row, "fresh_rmse") > 0);
        if (number(row, "budget") > 4) CHECK(number(row, "fresh_rmse") < 0.04); /* the budget was spent */
        CHECK(number(row, "budget") > 4 ? number(row, "mean_top_reads") > 4 : number(row, "mean_top_reads") < 2);
        const double se = number(row, "fresh_bias_se"), bias_seen = number(row, "fresh_bias");
        CHECK_NEAR(number(row, "fresh_rmse"), sqrt(39 * se * se + bias_seen * bias_seen), 1e-12); /* 40 simulations */
    }
    CHECK_INT(cJSON_GetArraySize(fixture_at(out, "picks")), 3);
    CHECK_NEAR(number(out, "pilot_cost"), 64 * 8, 0);
    CHECK(entry(fixture_at(out, "picks")->child, "schedule", 0) >= 1);
    /* Interpolation on a curve: exact at its points, 1/N around the floor beyond, inverse square below. */
    const double at = entry(out, "rmse/mine", 1);
    CHECK_NEAR(tv_protocol_needed(out, "mine", at), budgets[1], 1e-6);
    CHECK_NEAR(tv_protocol_needed(out, "mine", sqrt(0.04 / 20000 + 1e-6)), 20000, 1e-3);
    CHECK(isnan(tv_protocol_needed(out, "mine", 0.00099)));
    CHECK_NEAR(tv_protocol_needed(out, "mine", 2 * entry(out, "rmse/mine", 0)), 1, 1e-9);
    CHECK(isnan(tv_protocol_needed(out, "nobody", 0.01)));
    /* The saving is the largest ratio of what the two curves need, over the accuracies of the base's. */
    double peak = 0;
    const double from = log(entry(out, "rmse/hindsight_single", 0)),
                 to = log(1.0001 * entry(out, "rmse/hindsight_single", 2));
    for (int j = 0; j < 200; j++) {
        const double a = exp(from + (to - from) * j / 199);
        peak = fmax(peak, tv_protocol_needed(out, "hindsight_single", a) / tv_protocol_needed(out, "mine", a));
    }
    CHECK(peak > 1);
    CHECK_NEAR(number(out, "savings_over_hindsight_single/mine/peak"), peak, 1e-9);
    CHECK_NEAR(number(out, "rmse_ratio/mine"), entry(out, "rmse/single", 2) / entry(out, "rmse/mine", 2), 1e-12);

    /* The randomized level's mean squared error from the whole distribution of Y_0 + Y_l / p_l. */
    double square[4] = {0}, total = 0;
    for (int l = 1; l < 4; l++) {
        for (int s = 0; s < 2; s++) {
            tv_levels_increment(&levels[s], 0, l - 1, l, 1, y);
            const double mean = tv_stats_mean(y, 100);
            square[l] += 0.5 * (tv_stats_variance(y, 100) + mean * mean);
        }
        total += sqrt(square[l] / (1 << l));
    }
    double second = 0, reads = 0, first[2] = {0, 0}, between = 0;
    for (int l = 1; l < 4; l++) {
        const double p = sqrt(square[l] / (1 << l)) / total;
        reads += p * (1 << l);
        for (int s = 0; s < 2; s++) {
            tv_levels_increment(&levels[s], 0, l - 1, l, 1, y);
            for (int i = 0; i < 100; i++) {
                const double x = tv_levels_z(&levels[s], 0, 0)[i] + y[i] / p;
                second += p * x * x / 200, first[s] += p * x / 100;
            }
        }
    }
    for (int s = 0; s < 2; s++) between += 0.5 * first[s] * first[s];
    /* Variances here divide by N, there by N - 1, and the means of the arms are taken apart: equal within two percent.
     */
    CHECK(fabs(pow(entry(out, "rmse/randomized_antithetic", 0), 2) /
                   ((second - between) * reads / 4 + bias[3] * bias[3]) -
               1) < 0.02);

    cJSON *again;
    if (CHECK_OK(tv_protocol_run(arms, 2, &o, &again, &err), &err)) {
        char *x = tv_json_text(out), *z = tv_json_text(again);
        CHECK_STR(x, z);
        free(x);
        free(z);
        cJSON_Delete(again);
    }
    cJSON_Delete(out);
    /* Schedules of at most one level are single levels, chosen and judged the same way. */
    if (CHECK_OK(tv_protocol_run(arms, 2,
                                 &(tv_protocol_options){
                                     .simulations = -1, .max_levels = 1, .seed = 3, .n_budgets = 3, .budgets = budgets},
                                 &out, &err),
                 &err)) {
        for (int b = 0; b < 3; b++) {
            CHECK_NEAR(entry(out, "rmse/multilevel", b), entry(out, "rmse/single", b), 1e-13);
            CHECK_NEAR(entry(out, "rmse/antithetic", b), entry(out, "rmse/single", b), 1e-13);
        }
        cJSON_Delete(out);
    }
    /* One budget, so small that every pilot picks one read: a share of 1, and one accuracy at which a ratio still
     * exists. */
    const double tiny = 0.01;
    if (CHECK_OK(tv_protocol_run(
                     arms, 2,
                     &(tv_protocol_options){
                         .simulations = -1, .seed = 3, .n_budgets = 1, .budgets = &tiny, .n_fixed = 1, .fixed = &fixed},
                     &out, &err),
                 &err)) {
        CHECK(number(out, "savings_over_hindsight_single/mine/peak") > 1);
        CHECK_NEAR(number(fixture_at(out, "picks")->child, "share"), 1, 0);
        CHECK_NEAR(entry(fixture_at(out, "picks")->child, "schedule", 0), 1, 0);
        cJSON_Delete(out);
    }
    /* One arm alone, default budgets from the pilot's cost on. */
    if (CHECK_OK(tv_protocol_run(arms, 1, &(tv_protocol_options){.simulations = -1}, &out, &err), &err)) {
        CHECK_INT(cJSON_GetArraySize(fixture_at(out, "budgets")), 13);
        CHECK_NEAR(entry(out, "budgets", 0), 64 * 8, 0);
        CHECK_NEAR(entry(out, "budgets", 12), 64 * 8 * 4096, 0);
        CHECK(!fixture_at(out, "recycling"));
        cJSON_Delete(out);
    }
    CHECK_FAILS(tv_protocol_run(arms, 2, &(tv_protocol_options){.pilot = 400}, &out, &err), TV_EARG, &err,
                "202 trajectories from each");
    CHECK_FAILS(
        tv_protocol_run(arms, 2, &(tv_protocol_options){.n_budgets = 2, .budgets = (double[]){2, 1}}, &out, &err),
        TV_EARG, &err, "ascend");
    CHECK_FAILS(tv_protocol_run(arms, 2, &(tv_protocol_options){.pilot = 198, .simulations = -1}, &out, &err), TV_EARG,
                &err, "at least 101 trajectories"); /* two must be left outside the pilot */
    levels[0].N = 30;                               /* each arm must be large enough, the first too */
    CHECK_FAILS(tv_protocol_run(arms, 2, &(tv_protocol_options){.simulations = -1}, &out, &err), TV_EARG, &err,
                "there are 30");
    levels[0].N = 100;
    CHECK_FAILS(tv_protocol_run(arms, 0, &(tv_protocol_options){0}, &out, &err), TV_EARG, &err, "arms");
    for (int s = 0; s < 2; s++) tv_levels_free(&levels[s]);
}

/* Simulated measurements telescope to their top level, where schedules of several levels are chosen. */
static void schedule_recycling(void) {
    tv_levels levels[2];
    if (!small_levels(levels, 200, 0.03)) return;
    /* Make deep levels cheap to reach from shallow ones: an increment is a small constant. */
    for (int s = 0; s < 2; s++)
        for (int l = 1; l < 4; l++)
            for (int64_t i = 0; i < 200; i++) {
                double *z = levels[s].z + (size_t)l * 200;
                z[i] = levels[s].z[i] - 0.02 * l + 0.001 * (double)((i * 7 + l * 3) % 5 - 2);
                levels[s].reference[i] = levels[s].z[i] - 0.065;
            }
    const tv_levels *const arms[2] = {&levels[0], &levels[1]};
    const double budgets[] = {4096, 16384};
    cJSON *out;
    tv_err err = {0};
    const tv_protocol_options o = {.seed = 3, .simulations = 100, .n_budgets = 2, .budgets = budgets};
    if (CHECK_OK(tv_protocol_run(arms, 2, &o, &out, &err), &err)) {
        CHECK(cJSON_GetArraySize(fixture_at(cJSON_GetArrayItem(fixture_at(out, "picks"), 1), "schedule")) > 1);
        CHECK(entry(out, "rmse/multilevel", 1) < entry(out, "rmse/single", 1));
        for (const cJSON *row = fixture_at(out, "recycling")->child; row; row = row->next)
            CHECK(fabs(number(row, "fresh_bias")) < 4 * number(row, "fresh_bias_se"));
        cJSON_Delete(out);
    }
    for (int s = 0; s < 2; s++) tv_levels_free(&levels[s]);
}

/* The last progress seen. */
static void note(void *user, uint64_t done, uint64_t total) {
    uint64_t *seen = user;
    seen[0] = done, seen[1] = total;
}

/* The protocol on a recorded measurement: all parts are there, in numbers; too few reads and deterministic sides are
 * refused. */
static void schedule_recorded(void) {
    tv_chain c;
    tv_err err = {0};
    const tv_markov_options o = {.n = 40, .contexts = 8, .topics = 2, .k = 8, .delta = 0.12, .seed = 2};
    if (!CHECK_OK(tv_chain_markov(&o, &c, &err), &err)) return;
    tv_dataset *data;
    cJSON *out;
    CHECK_OK(tv_chain_record(&c, &(tv_oracle){TV_ORACLE_HEAVY, 0.06, 9}, 0, 80, 8, &data, &err), &err);
    uint64_t seen[2] = {0, 0};
    const tv_progress progress = {note, seen};
    const tv_schedule_options so = {
        .permutations = 3, .progress = &progress, .protocol = {.simulations = 10, .pilots = 6, .seed = 4}};
    if (CHECK_OK(tv_schedule_run(data, &so, &out, &err), &err)) {
        CHECK_INT(seen[0], 160);
        CHECK_INT(seen[1], 160);
        CHECK_INT(number(out, "held_out"), 4);
        CHECK_INT(number(out, "permutations"), 3);
        const char *parts[] = {"symmetric", "one_sided_a", "one_sided_b"};
        for (int p = 0; p < 3; p++) {
            const cJSON *part = fixture_at(out, parts[p]);
            CHECK_INT(cJSON_GetArraySize(fixture_at(part, "grid")), 3); /* 1, 2, 4 */
            const char *families[] = {"multilevel",           "single",    "antithetic", "hindsight_single",
                                      "hindsight_multilevel", "hedged_r2", "hedged_r4"};
            for (int f = 0; f < 7; f++) {
                char path[64];
                snprintf(path, sizeof path, "rmse/%s", families[f]);
                for (int b = 0; b < 13; b++) CHECK(entry(part, path, b) > 0);
            }
            /* The hedged estimator's variance is far below the plug-in's here. */
            CHECK(entry(part, "rmse/hedged_r2", 0) < 0.7 * entry(part, "rmse/hindsight_single", 0));
        }
        CHECK(fabs(number(out, "faithfulness/a")) < 4);
        /* The hedged family of arm a by hand: variance at two reads, bias against the held-out reads 4 to 7. */
        tv_hedged h, deep;
        tv_dataset tail = *data;
        for (int s = 0; s < 2; s++)
            for (int e = 0; e < 2; e++) tail.set[s].ids[e] += 4, tail.set[s].lps[e] += 4, tail.set[s].reads[e] -= 4;
        CHECK_OK(tv_hedged_run(data, 2, (tv_readout){0}, NULL, &h, &err), &err);
        CHECK_OK(tv_hedged_run(&tail, 4, (tv_readout){0}, NULL, &deep, &err), &err);
        double gap[80];
        for (int i = 0; i < 80; i++) gap[i] = h.arm[0].T2pj[i] - deep.arm[0].T2pj[i];
        const double bias = fmax(fabs(tv_stats_mean(gap, 80)), sqrt(tv_stats_variance(gap, 80) / 80));
        const double B = entry(out, "one_sided_a/budgets", 3);
        CHECK_NEAR(entry(out, "one_sided_a/rmse/hedged_r2", 3),
                   sqrt(tv_stats_variance(h.arm[0].T2pj, 80) * 2 / B + bias * bias), 1e-12);
        tv_hedged_free(&h);
        tv_hedged_free(&deep);
        cJSON_Delete(out);
    }
    /* Four reads: two are held out, so the hedged family at four would see the reference's. */
    for (int s = 0; s < 2; s++) data->set[s].reads[0] = data->set[s].reads[1] = 4;
    if (CHECK_OK(tv_schedule_run(data, &so, &out, &err), &err)) {
        CHECK(fixture_at(out, "symmetric/rmse/hedged_r2") && !fixture_at(out, "symmetric/rmse/hedged_r4"));
        cJSON_Delete(out);
    }
    for (int s = 0; s < 2; s++) data->set[s].reads[0] = data->set[s].reads[1] = 8;
    data->deterministic[0] = data->deterministic[1] = 1;
    CHECK_FAILS(tv_schedule_run(data, &so, &out, &err), TV_EARG, &err, "nothing to schedule");
    data->deterministic[0] = data->deterministic[1] = 0;
    for (int s = 0; s < 2; s++) data->set[s].reads[0] = 3;
    CHECK_FAILS(tv_schedule_run(data, &so, &out, &err), TV_EARG, &err, "at least 4 passes");
    for (int s = 0; s < 2; s++) data->set[s].reads[0] = 8, data->set[s].N = 20;
    CHECK_FAILS(tv_schedule_run(data, &so, &out, &err), TV_EARG, &err, "a pilot of 64");
    for (int s = 0; s < 2; s++) data->set[s].N = 80;
    tv_chain_record_free(data);
    tv_chain_free(&c);
}

/* Algorithms 1 to 3 with their parameters, by hand. */
static void schedule_theory(void) {
    cJSON *out;
    tv_err err = {0};
    if (CHECK_OK(tv_schedule_theory(500, 0.02, 0.05, 0.05, 22, &out, &err), &err)) {
        CHECK_NEAR(number(out, "algorithm1/N"), 738, 0); /* ln 40 / (2 .0025) = 737.8 */
        CHECK_NEAR(number(out, "algorithm1/queries"), 738000, 0);
        CHECK_NEAR(number(out, "algorithm2/r"), 160, 0);  /* 2 * .2 / .0025 */
        CHECK_NEAR(number(out, "algorithm2/N"), 2952, 0); /* 2 ln 40 / .0025 = 2951.1 */
        CHECK_NEAR(number(out, "algorithm2/queries"), 2.0 * 500 * 2952 * 160, 0);
        CHECK_NEAR(number(out, "algorithm3/groups"), 11, 0);
        const cJSON *levels = fixture_at(out, "algorithm3/levels");
        CHECK_INT(cJSON_GetArraySize(levels), 10); /* ceil(2 log2 20) = 9 */
        double variance = 0, cost = 0;
        for (int l = 0; l < 10; l++) {
            const double r = number(cJSON_GetArrayItem(levels, l), "r"), N = number(cJSON_GetArrayItem(levels, l), "N");
            CHECK_NEAR(r, 1 << l, 0);
            variance += (l ? fmin(0.25, 0.2 / (2 * r)) : 0.25) / N, cost += r * N;
        }
        CHECK(variance <= 0.05 * 0.05 / 40 && variance > 0.98 * 0.05 * 0.05 / 40);
        CHECK_NEAR(number(out, "algorithm3/queries"), 2 * 500 * cost * 11, 1);
        CHECK_NEAR(number(out, "order/samples"), 500 * 22 / 0.0025, 1e-6);
        CHECK_NEAR(number(out, "order/noisy"), (500 + 500 * 0.2) / 0.0025, 1e-6);
        CHECK_NEAR(number(out, "lower_bound/samples"), 500 * 22 / (0.0025 * log(22)), 1e-6);
        cJSON_Delete(out);
    }
    if (CHECK_OK(tv_schedule_theory(100, 0, 0.1, 0.1, 0, &out, &err), &err)) {
        CHECK_INT(cJSON_GetArraySize(fixture_at(out, "algorithm3/levels")), 1);
        CHECK_NEAR(number(out, "algorithm2/r"), 1, 0);
        CHECK(cJSON_IsNull(fixture_at(out, "order/samples")) && fixture_at(out, "order/samples_reason"));
        cJSON_Delete(out);
    }
    CHECK_FAILS(tv_schedule_theory(0, 0.1, 0.1, 0.1, 0, &out, &err), TV_EARG, &err, "n=0");
    CHECK_FAILS(tv_schedule_theory(10, NAN, 0.1, 0.1, 0, &out, &err), TV_EARG, &err, "sigma");
    CHECK_FAILS(tv_schedule_theory(10, 0.1, 0, 0.1, 0, &out, &err), TV_EARG, &err, "eps");
    CHECK_FAILS(tv_schedule_theory(10, 0.1, 0.1, 1, 0, &out, &err), TV_EARG, &err, "delta");
    CHECK_FAILS(tv_schedule_theory(10, 0.1, 0.1, 0.1, 1, &out, &err), TV_EARG, &err, "K=1");
}

static cJSON *next(const char *report, double target, double budget) {
    tv_err err = {0};
    cJSON *json = NULL, *out = NULL;
    if (!CHECK_OK(tv_json_parse(report, strlen(report), "report", &json, &err), &err)) return NULL;
    CHECK_OK(tv_schedule_next(json, target, budget, &out, &err), &err);
    cJSON_Delete(json);
    return out;
}

/* What to run next: done, more trajectories, more reads, impossible, a budget's use. */
static void schedule_next(void) {
    /* se .01, half-width .0206: allowance .001. */
    const char *report =
        "{\"n\":100,\"N\":{\"a\":64,\"b\":80},\"R\":2,\"tv\":{\"estimate\":0.4,\"se\":0.01,\"ci95\":[0.3794,0.4206]}}";
    cJSON *out = next(report, 0.03, 0);
    CHECK(cJSON_IsTrue(fixture_at(out, "done")));
    cJSON_Delete(out);
    out = next(report, 0.01, 0);
    CHECK(cJSON_IsFalse(fixture_at(out, "done")));
    CHECK_NEAR(number(out, "trajectories"), ceil(64 * pow(0.0196 / 0.009, 2)), 0);
    CHECK_NEAR(number(out, "reads"), 2, 0);
    CHECK_NEAR(number(out, "expected_half_width"), 0.0196 * sqrt(64 / number(out, "trajectories")) + 0.001, 1e-12);
    CHECK_NEAR(number(out, "queries"), 2 * number(out, "trajectories") * 100 * 2, 0);
    cJSON_Delete(out);
    /* The allowance alone is above the target: more reads, if there is noise to read. */
    report = "{\"n\":100,\"N\":64,\"R\":4,\"tv\":{\"estimate\":0.4,\"se\":0.01,\"ci95\":[0.3604,0.4396]}}";
    out = next(report, 0.01, 0);
    CHECK_NEAR(number(out, "reads"), 16, 0); /* allowance .02 to .005 */
    CHECK_NEAR(number(out, "trajectories"), ceil(64 * pow(0.0196 / 0.005, 2)), 0);
    CHECK_NEAR(number(out, "expected_half_width"), 0.0196 * sqrt(64 / number(out, "trajectories")) + 0.005, 1e-12);
    cJSON_Delete(out);
    report = "{\"n\":100,\"N\":64,\"R\":1,\"tv\":{\"estimate\":0.4,\"se\":0.01,\"ci95\":[0.3604,0.4396]}}";
    out = next(report, 0.01, 0);
    CHECK(cJSON_IsFalse(fixture_at(out, "possible")));
    CHECK(cJSON_IsNull(fixture_at(out, "trajectories")) && fixture_at(out, "trajectories_reason"));
    cJSON_Delete(out);
    report = "{\"n\":100,\"N\":64,\"R\":2,\"tv\":{\"estimate\":0.4,\"se\":0.01,\"ci95\":[0.3804,0.4196]}}";
    out = next(report, 0, 102400);
    CHECK_NEAR(number(out, "trajectories"), 256, 0);
    CHECK_NEAR(number(out, "expected_half_width"), 0.0098, 1e-12);
    cJSON_Delete(out);
    /* A large budget and an allowance: past the point where the allowance leads, part of the budget goes into reads. */
    report = "{\"n\":100,\"N\":64,\"R\":4,\"tv\":{\"estimate\":0.4,\"se\":0.01,\"ci95\":[0.3704,0.4296]}}";
    out = next(report, 0, 2 * 100 * 4 * 64 * 100.0); /* a tenth of the spread, .00196, under an allowance of .01 */
    CHECK_NEAR(number(out, "reads"), 2 * floor(sqrt(0.01 / 0.00196) * 4 / 2), 0);
    CHECK_NEAR(number(out, "trajectories"), floor(64 * 100 * 4 / 8.0), 0);
    CHECK_NEAR(number(out, "expected_half_width"), 0.0196 * sqrt(64 / 3200.0) + 0.01 * 4 / 8, 1e-12);
    cJSON_Delete(out);
    /* The reads are capped so that two trajectories a side remain. */
    report = "{\"n\":100,\"N\":64,\"R\":4,\"tv\":{\"estimate\":0.4,\"se\":1e-6,\"ci95\":[0.3,0.5]}}";
    out = next(report, 0, 2 * 100 * 4 * 5.0);
    CHECK_NEAR(number(out, "reads"), 10, 0);
    CHECK_NEAR(number(out, "trajectories"), 2, 0);
    cJSON_Delete(out);
    report = "{\"n\":100,\"N\":64,\"R\":2,\"tv\":{\"estimate\":0.4,\"se\":0.01,\"ci95\":[0.3794,0.4206]}}";
    out = next(report, 0, 102400);
    CHECK_NEAR(number(out, "expected_half_width"), 0.0108, 1e-12); /* an allowance of .001 stays */
    cJSON_Delete(out);
    out = next(report, 0, 100);
    CHECK(cJSON_IsFalse(fixture_at(out, "possible")));
    cJSON_Delete(out);
    tv_err err = {0};
    cJSON *json = cJSON_Parse("{\"n\":100,\"N\":1,\"R\":2,\"tv\":{\"estimate\":0.4,\"se\":null,\"ci95\":null}}");
    CHECK_FAILS(tv_schedule_next(json, 0.01, 0, &out, &err), TV_EARG, &err, "no interval");
    CHECK_FAILS(tv_schedule_next(json, 0, 0, &out, &err), TV_EARG, &err, "what to aim at");
    CHECK_FAILS(tv_schedule_next(json, NAN, NAN, &out, &err), TV_EARG, &err, "what to aim at");
    cJSON_Delete(json);
    json = cJSON_Parse("{}");
    CHECK_FAILS(tv_schedule_next(json, 0.01, 0, &out, &err), TV_EFORMAT, &err, "lacks n, N or R");
    cJSON_Delete(json);
}

static const tv_test tests[] = {
    {"schedule_protocol", schedule_protocol}, {"schedule_recycling", schedule_recycling},
    {"schedule_recorded", schedule_recorded}, {"schedule_theory", schedule_theory},
    {"schedule_next", schedule_next},
};
TV_TEST_MAIN(tests)
