/* What `synth` checks: exact distances, convergence rates, and the queries that each estimator needs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/hedged.h"
#include "estimator/schedule.h"
#include "estimator/stats.h"
#include "estimator/synthetic.h"

/* The run at hand: where results go and how far it is. */
typedef struct {
    const tv_synth_options *options;
    const tv_progress *progress;
    cJSON *report, *checks;
    int held;
    double done; /* thousandths */
} run;

static void advance(run *r, double thousandths) {
    r->done += thousandths;
    tv_progress_report(r->progress, (uint64_t)r->done, 1000);
}

static void add_check(run *r, const char *name, double value, double low, double high) {
    const int held = value >= low && value <= high;
    cJSON *check = cJSON_CreateObject();
    cJSON_AddStringToObject(check, "name", name);
    tv_json_add_number(check, "value", value);
    tv_json_add_number(check, "low", low);
    tv_json_add_number(check, "high", high);
    cJSON_AddBoolToObject(check, "held", held);
    cJSON_AddItemToArray(r->checks, check);
    r->held &= held;
}

static int64_t scaled(const run *r, double count) {
    const double n = count * r->options->effort;
    return n > 16 ? 2 * (int64_t)(n / 2) : 16;
}

/* Least-squares slope of y on x. */
static double slope(const double *x, const double *y, int n) {
    const double mx = tv_stats_mean(x, n), my = tv_stats_mean(y, n);
    double xy = 0, xx = 0;
    for (int i = 0; i < n; i++) xy += (x[i] - mx) * (y[i] - my), xx += (x[i] - mx) * (x[i] - mx);
    return xy / xx;
}

/* ---- Exact distances
 * --------------------------------------------------------------------------------------------------- */

static const tv_markov_options markov_pair = {
    .n = 500, .contexts = 32, .topics = 4, .k = 20, .delta = 0.0458, .seed = 1};
static const tv_markov_options mismatch_pair = {
    .n = 500, .contexts = 32, .topics = 4, .k = 20, .delta = 0.0458, .mismatch = 0.1, .seed = 1};
static const tv_markov_options smooth_pair = {.n = 128, .contexts = 32, .topics = 4, .k = 12, .delta = 0.08, .seed = 3};

static tv_status add_instance(run *r, const tv_chain *c, double closed_form, tv_chain_distance *exact, tv_err *err) {
    TV_TRY(tv_chain_exact(c, exact, err));
    cJSON *list = cJSON_GetObjectItemCaseSensitive(r->report, "instances"), *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "name", c->name);
    cJSON_AddNumberToObject(row, "n", c->n);
    cJSON_AddNumberToObject(row, "contexts", c->S);
    cJSON_AddNumberToObject(row, "k", c->k);
    cJSON_AddNumberToObject(row, "tv", exact->tv);
    cJSON_AddNumberToObject(row, "mismatch_a", exact->mismatch[0]);
    cJSON_AddNumberToObject(row, "mismatch_b", exact->mismatch[1]);
    if (closed_form > 0) cJSON_AddNumberToObject(row, "closed_form", closed_form);
    cJSON_AddItemToArray(list, row);
    if (closed_form > 0) {
        char name[96];
        snprintf(name, sizeof name, "%s: dynamic programming equals the closed form", c->name);
        add_check(r, name, exact->tv - closed_form, -1e-12, 1e-12);
    }
    return TV_OK;
}

/* ---- Rates
 * --------------------------------------------------------------------------------------------------------------- */

tv_status tv_synth_error_rate(const tv_chain *chain, double tv, uint64_t seed, int64_t batches, tv_synth_rate *out,
                              tv_err *err) {
    enum { POINTS = TV_SYNTH_POINTS };
    tv_chain_sampler sampler = {.chain = chain, .oracle = {.kind = TV_ORACLE_EXACT, .seed = seed}, .side = -1};
    double x[POINTS], y[POINTS];
    for (int p = 0; p < POINTS; p++) {
        const int64_t N = (int64_t)32 << p, total = N * batches;
        double *z = malloc((size_t)total * sizeof *z);
        if (!z) return TV_FAIL(err, TV_ENOMEM, "no memory for %lld samples; lower the effort", (long long)total);
        tv_status status = tv_chain_increment(&sampler, p, 0, total, 0, 1, 0, z, err);
        if (status != TV_OK) {
            free(z);
            return status;
        }
        double mae = 0, square = 0;
        for (int64_t b = 0; b < batches; b++) {
            const double e = fabs(tv_stats_mean(z + b * N, N) - tv);
            mae += e / (double)batches, square += e * e / (double)batches;
        }
        x[p] = log((double)N), y[p] = log(mae);
        const double sd = sqrt(tv_stats_variance(z, total));
        out->N[p] = (double)N, out->mae[p] = mae;
        out->mae_se[p] = sqrt((square - mae * mae) / (double)batches);
        out->gaussian[p] = sqrt(2 / M_PI) * sd / sqrt((double)N);
        out->mean = tv_stats_mean(z, total), out->mean_se = sd / sqrt((double)total);
        free(z);
    }
    out->slope = slope(x, y, POINTS);
    return TV_OK;
}

static tv_status error_slope(run *r, const tv_chain *hard, double tv, tv_err *err) {
    tv_synth_rate rate;
    TV_TRY(tv_synth_error_rate(hard, tv, r->options->seed, scaled(r, 500), &rate, err));
    cJSON *rates = cJSON_GetObjectItemCaseSensitive(r->report, "rates"),
          *points = cJSON_AddArrayToObject(rates, "error_against_N");
    for (int p = 0; p < TV_SYNTH_POINTS; p++) {
        cJSON *point = cJSON_CreateObject();
        cJSON_AddNumberToObject(point, "N", rate.N[p]);
        cJSON_AddNumberToObject(point, "mae", rate.mae[p]);
        cJSON_AddNumberToObject(point, "gaussian", rate.gaussian[p]);
        cJSON_AddItemToArray(points, point);
    }
    cJSON_AddNumberToObject(rates, "hard_mean", rate.mean);
    cJSON_AddNumberToObject(rates, "hard_mean_se", rate.mean_se);
    add_check(r, "hard: mean of Z within 3 standard errors of the exact TV, in standard errors",
              (rate.mean - tv) / rate.mean_se, -3, 3);
    cJSON_AddNumberToObject(rates, "error_slope", rate.slope);
    add_check(r, "hard: slope of log mean absolute error on log N", rate.slope, -0.53, -0.47);
    advance(r, 120);
    return TV_OK;
}

/* Regressed rate of log2 Var Y_l on l, levels r = 2^l, l = 1..top. */
static tv_status variance_rate(run *r, const char *key, tv_chain_sampler *sampler, int top, int64_t N, int antithetic,
                               double *rate, tv_err *err) {
    double x[TV_MAX_LEVELS], y[TV_MAX_LEVELS], *z = tv_xmalloc((size_t)N * sizeof *z);
    cJSON *list = cJSON_AddArrayToObject(cJSON_GetObjectItemCaseSensitive(r->report, "rates"), key);
    tv_status status = TV_OK;
    for (int l = 1; l <= top && status == TV_OK; l++) {
        status = tv_chain_increment(sampler, l, 0, N, (int64_t)1 << (l - 1), (int64_t)1 << l, antithetic, z, err);
        const double v = tv_stats_variance(z, N);
        x[l - 1] = l, y[l - 1] = log2(v);
        cJSON *point = cJSON_CreateObject();
        cJSON_AddNumberToObject(point, "r", (double)((int64_t)1 << l));
        cJSON_AddNumberToObject(point, "variance", v);
        cJSON_AddNumberToObject(point, "mean", tv_stats_mean(z, N));
        cJSON_AddItemToArray(list, point);
    }
    free(z);
    *rate = slope(x, y, top);
    return status;
}

static tv_status variance_rates(run *r, const tv_chain *hard, tv_err *err) {
    double plain, anti, smooth_plain;
    tv_chain_sampler sampler = {
        .chain = hard, .oracle = {.kind = TV_ORACLE_GAUSS, .sigma = 0.1, .seed = r->options->seed}, .side = -1};
    TV_TRY(variance_rate(r, "increments_hard", &sampler, 9, scaled(r, 6000), 0, &plain, err));
    advance(r, 60);
    tv_chain smooth;
    TV_TRY(tv_chain_markov(&smooth_pair, &smooth, err));
    sampler = (tv_chain_sampler){
        .chain = &smooth, .oracle = {.kind = TV_ORACLE_HEAVY, .sigma = 0.02, .seed = r->options->seed}, .side = -1};
    tv_status status = variance_rate(r, "increments_smooth", &sampler, 5, scaled(r, 4000), 0, &smooth_plain, err);
    advance(r, 60);
    if (status == TV_OK) status = variance_rate(r, "antithetic_smooth", &sampler, 5, scaled(r, 4000), 1, &anti, err);
    advance(r, 60);
    tv_chain_free(&smooth);
    if (status != TV_OK) return status;
    cJSON *rates = cJSON_GetObjectItemCaseSensitive(r->report, "rates");
    cJSON_AddNumberToObject(rates, "increment_rate_hard", plain);
    cJSON_AddNumberToObject(rates, "increment_rate_smooth", smooth_plain);
    cJSON_AddNumberToObject(rates, "antithetic_rate_smooth", anti);
    add_check(r, "hard: log2 Var Y_l falls by one a level", plain, -1.1, -0.9);
    add_check(r, "smooth pair: antithetic increments fall faster", anti, -INFINITY, -1.25);
    return TV_OK;
}

/* Cost to reach an error, single level against multilevel, from measured variances and biases of the hard instance. */
static tv_status cost_slopes(run *r, const tv_chain *hard, tv_err *err) {
    enum { TOP = 14, POINTS = 8 };
    const int64_t N = scaled(r, 3000);
    double V[TOP + 1], VY[TOP + 1], bias[TOP + 1], *y = tv_xmalloc(3 * (size_t)N * sizeof *y);
    tv_chain_sampler sampler = {.chain = hard,
                                .oracle = {.kind = TV_ORACLE_GAUSS, .sigma = 1, .seed = r->options->seed + 1},
                                .side = -1,
                                .exact = y + N,
                                .level = y + 2 * N};
    for (int l = 0; l <= TOP; l++) {
        const tv_status status =
            tv_chain_increment(&sampler, l, 0, N, l ? (int64_t)1 << (l - 1) : 0, (int64_t)1 << l, 0, y, err);
        if (status != TV_OK) {
            free(y);
            return status;
        }
        VY[l] = tv_stats_variance(y, N);
        V[l] = tv_stats_variance(y + 2 * N, N);
        bias[l] = fabs(tv_stats_mean(y + 2 * N, N) - tv_stats_mean(y + N, N));
        advance(r, 5);
    }
    free(y);
    double x[POINTS], single[POINTS], multi[POINTS];
    cJSON *rates = cJSON_GetObjectItemCaseSensitive(r->report, "rates"),
          *list = cJSON_AddArrayToObject(rates, "cost_against_error");
    for (int p = 0; p < POINTS; p++) {
        const double eps = 0.2 * pow(2, -0.5 * p);
        double best_single = INFINITY, best_multi = INFINITY, work = 0;
        for (int l = 0; l <= TOP; l++) {
            work += sqrt((l ? VY[l] : V[0]) * (double)((int64_t)1 << l));
            const double room = eps * eps - bias[l] * bias[l];
            if (!(room > 0)) continue;
            best_single = fmin(best_single, V[l] / room * (double)((int64_t)1 << l));
            best_multi = fmin(best_multi, work * work / room);
        }
        x[p] = log(eps), single[p] = log(best_single), multi[p] = log(best_multi);
        cJSON *point = cJSON_CreateObject();
        cJSON_AddNumberToObject(point, "rmse", eps);
        tv_json_add_number(point, "single", best_single);
        tv_json_add_number(point, "multilevel", best_multi);
        cJSON_AddItemToArray(list, point);
    }
    const double s1 = slope(x, single, POINTS), s3 = slope(x, multi, POINTS);
    tv_json_add_number(rates, "cost_slope_single", s1);
    tv_json_add_number(rates, "cost_slope_multilevel", s3);
    add_check(r, "hard: cost against error, single level (theory -4)", s1, -4.5, -3.5);
    add_check(r, "hard: cost against error, multilevel (theory -2, logs aside)", s3, -2.9, -2.0);
    return TV_OK;
}

/* ---- Queries
 * ------------------------------------------------------------------------------------------------------------- */

/* A situation in which estimators are compared. */
typedef struct {
    const char *name;
    const tv_markov_options *pair; /* NULL: the hard instance */
    tv_oracle oracle;
    int readout; /* 0 = all slots */
    double N;    /* trajectories a side at effort 1 */
} scenario;

enum { HEDGED, JACKKNIFE, SPLIT_SIGN, KINDS };

/* Z and sign of a half whose log-ratio is d; NaN = dead, taken as the other side's (these chains have no other case).
 */
static double half_z(double d) { return isnan(d) ? 1 : tanh(0.5 * fabs(d)); }
static double half_sign(double d) { return isnan(d) ? 1 : (d > 0) - (d < 0); }

/* One trajectory's value of each kind, and the same from exact reads (whose mean is the TV for all of them). */
static void trajectory_values(const tv_hedged_arm *noisy, const tv_hedged_arm *exact, int64_t i, double value[KINDS],
                              double truth[KINDS]) {
    const double da = noisy->DA[i], db = noisy->DB[i];
    value[HEDGED] = noisy->T2pj[i];
    value[JACKKNIFE] = tv_jackknife(half_z(noisy->DAB[i]), half_z(da), half_z(db));
    value[SPLIT_SIGN] = 0.5 * (half_z(da) + half_z(db)) * half_sign(da) * half_sign(db);
    truth[HEDGED] = exact->T2pj[i];
    truth[JACKKNIFE] = truth[SPLIT_SIGN] = half_z(exact->DAB[i]);
}

/* Per-trajectory variance and bias of the estimators on full records, in blocks of trajectories that each choose their
 * own hedging parameters. Bias is measured against the values of exact reads of the same trajectories: the two share
 * their sampling noise, so a small bias shows. out, bias_se: [KINDS]. */
static tv_status record_moments(const tv_chain *c, const scenario *s, int64_t N, int64_t reads, uint64_t seed,
                                tv_fixed_family *out, double *bias_se, tv_err *err) {
    enum { BLOCK = 64 };
    const int64_t blocks = (N + BLOCK - 1) / BLOCK, total = blocks * BLOCK;
    double *values = tv_xmalloc((size_t)(4 * KINDS * total) * sizeof *values), *gaps = values + 2 * KINDS * total;
    tv_oracle noisy = s->oracle, exact = {.kind = TV_ORACLE_EXACT};
    noisy.seed = exact.seed = seed;
    tv_status status = TV_OK;
    for (int64_t b = 0; b < blocks && status == TV_OK; b++) {
        tv_dataset *data[2] = {NULL, NULL};
        tv_hedged h[2];
        memset(h, 0, sizeof h);
        status = tv_chain_record(c, &noisy, b * BLOCK, BLOCK, reads, &data[0], err);
        if (status == TV_OK) status = tv_chain_record(c, &exact, b * BLOCK, BLOCK, 1, &data[1], err);
        if (status == TV_OK)
            status = tv_hedged_run(data[0], reads, (tv_readout){.readout = s->readout}, NULL, &h[0], err);
        if (status == TV_OK) status = tv_hedged_run(data[1], 2, (tv_readout){0}, NULL, &h[1], err);
        for (int arm = 0; arm < 2 && status == TV_OK; arm++)
            for (int64_t i = 0; i < BLOCK; i++) {
                double value[KINDS], truth[KINDS];
                trajectory_values(&h[0].arm[arm], &h[1].arm[arm], i, value, truth);
                for (int k = 0; k < KINDS; k++) {
                    const int64_t at = (2 * k + arm) * total + b * BLOCK + i;
                    values[at] = value[k], gaps[at] = value[k] - truth[k];
                }
            }
        for (int q = 0; q < 2; q++) {
            tv_hedged_free(&h[q]);
            tv_chain_record_free(data[q]);
        }
    }
    for (int k = 0; k < KINDS && status == TV_OK; k++) {
        const double *v = values + 2 * k * total, *g = gaps + 2 * k * total;
        out[k].variance = 0.5 * (tv_stats_variance(v, total) + tv_stats_variance(v + total, total));
        const double bias = 0.5 * (tv_stats_mean(g, total) + tv_stats_mean(g + total, total));
        bias_se[k] = 0.5 * sqrt((tv_stats_variance(g, total) + tv_stats_variance(g + total, total)) / (double)total);
        out[k].bias = fabs(bias) > bias_se[k] ? bias : bias_se[k];
        /* A deterministic read stands for both halves: it is paid once. */
        out[k].reads = s->oracle.kind == TV_ORACLE_EXACT ? 1 : (double)reads;
    }
    free(values);
    return status;
}

static void add_queries_row(cJSON *rows, const scenario *s, const char *family, double eps, double cost, double base,
                            int n) {
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "scenario", s->name);
    cJSON_AddNumberToObject(row, "rmse", eps);
    cJSON_AddStringToObject(row, "family", family);
    if (cost > 0) {
        cJSON_AddNumberToObject(row, "trajectory_reads", cost);
        cJSON_AddNumberToObject(row, "queries", 2 * cost * n); /* both sides score every token */
    } else {
        tv_json_add_null(row, "trajectory_reads", "its bias is above this error, or its curve ends before it");
        tv_json_add_null(row, "queries", "its bias is above this error, or its curve ends before it");
    }
    if (cost > 0 && base > 0)
        cJSON_AddNumberToObject(row, "saving_over_hindsight_single", base / cost);
    else
        tv_json_add_null(row, "saving_over_hindsight_single", "one of the two cannot reach this error");
    cJSON_AddItemToArray(rows, row);
}

static tv_status compare_families(run *r, const scenario *s, int first, tv_err *err) {
    tv_chain c;
    TV_TRY(s->pair ? tv_chain_markov(s->pair, &c, err) : tv_chain_hard(&c, err));
    const int64_t N = scaled(r, s->N);
    const uint64_t seed = r->options->seed + 17;
    tv_oracle oracle = s->oracle;
    oracle.seed = seed;
    const tv_levels_options lo = {.reads = oracle.kind == TV_ORACLE_EXACT ? 1 : 16, .readout = {.readout = s->readout}};
    tv_levels levels[2] = {{0}, {0}};
    tv_fixed_family fixed[2 * KINDS] = {{.name = "hedged_r2"}, {.name = "jackknife_r2"}, {.name = "split_sign_r2"},
                                        {.name = "hedged_r4"}, {.name = "jackknife_r4"}, {.name = "split_sign_r4"}};
    double bias_se[2 * KINDS] = {0};
    tv_status status = TV_OK;
    for (int side = 0; side < 2 && status == TV_OK; side++)
        status = tv_chain_levels(&c, &oracle, side, 0, N, &lo, &levels[side], err);
    const int n_fixed = oracle.kind == TV_ORACLE_EXACT ? KINDS : 2 * KINDS;
    for (int f = 0; f < n_fixed && status == TV_OK; f += KINDS)
        status = record_moments(&c, s, N, f ? 4 : 2, seed, &fixed[f], &bias_se[f], err);
    cJSON *protocol = NULL;
    const tv_levels *const arms[2] = {&levels[0], &levels[1]};
    double budgets[20];
    for (int b = 0; b < 20; b++) budgets[b] = 16 * pow(2, b);
    if (status == TV_OK) {
        const tv_protocol_options po = {.pilot = N >= 34 ? 64 : N,
                                        .simulations = -1,
                                        .seed = seed,
                                        .n_budgets = 20,
                                        .budgets = budgets,
                                        .n_fixed = n_fixed,
                                        .fixed = fixed};
        status = tv_protocol_run(arms, 2, &po, &protocol, err);
    }
    if (status == TV_OK) {
        cJSON *queries = cJSON_GetObjectItemCaseSensitive(r->report, "queries");
        cJSON *summary = cJSON_CreateObject();
        cJSON_AddStringToObject(summary, "scenario", s->name);
        cJSON_AddNumberToObject(summary, "n", c.n);
        cJSON_AddNumberToObject(summary, "trajectories", (double)N);
        for (int f = 0; f < n_fixed; f++) {
            cJSON *part = cJSON_AddObjectToObject(summary, fixed[f].name);
            cJSON_AddNumberToObject(part, "variance", fixed[f].variance);
            cJSON_AddNumberToObject(part, "bias", fixed[f].bias);
            cJSON_AddNumberToObject(part, "bias_se", bias_se[f]);
        }
        cJSON_AddItemToObject(summary, "levels",
                              cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(protocol, "levels"), 1));
        cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(queries, "scenarios"), summary);
        const char *families[] = {"hindsight_single",     "single",     "multilevel",
                                  "hindsight_multilevel", "antithetic", "randomized_antithetic"};
        const double targets[] = {0.02, 0.01, 0.005};
        for (int e = 0; e < 3; e++) {
            const double base = tv_protocol_needed(protocol, "hindsight_single", targets[e]);
            for (size_t f = 0; f < sizeof families / sizeof *families; f++)
                add_queries_row(cJSON_GetObjectItemCaseSensitive(queries, "rows"), s, families[f], targets[e],
                                tv_protocol_needed(protocol, families[f], targets[e]), base, c.n);
            for (int f = 0; f < n_fixed; f++) {
                const double room = targets[e] * targets[e] - fixed[f].bias * fixed[f].bias;
                const double cost = room > 0 ? fixed[f].variance * fixed[f].reads / room : NAN;
                add_queries_row(cJSON_GetObjectItemCaseSensitive(queries, "rows"), s, fixed[f].name, targets[e], cost,
                                base, c.n);
                if (first && e == 1 && f == 0)
                    add_check(r,
                              "Markov pair: savings of the hedged estimator over the hindsight-best single level at "
                              "RMSE 0.01",
                              base / cost, 10, INFINITY);
            }
        }
    }
    cJSON_Delete(protocol);
    for (int side = 0; side < 2; side++) tv_levels_free(&levels[side]);
    tv_chain_free(&c);
    return status;
}

static tv_status query_table(run *r, tv_err *err) {
    const scenario list[] = {
        {"Markov pair, sigma 0.02", &markov_pair, {.kind = TV_ORACLE_HEAVY, .sigma = 0.02}, 0, 320},
        {"Markov pair with mismatch, sigma 0.02", &mismatch_pair, {.kind = TV_ORACLE_HEAVY, .sigma = 0.02}, 0, 192},
        {"Markov pair, deterministic sides", &markov_pair, {.kind = TV_ORACLE_EXACT}, 0, 192},
        {"Markov pair, sigma 0.02, readout cut to 18 of 20",
         &markov_pair,
         {.kind = TV_ORACLE_HEAVY, .sigma = 0.02},
         18,
         128},
        {"hard instance, sigma 0.1", NULL, {.kind = TV_ORACLE_GAUSS, .sigma = 0.1}, 0, 512},
    };
    cJSON *queries = cJSON_AddObjectToObject(r->report, "queries");
    cJSON_AddArrayToObject(queries, "scenarios");
    cJSON_AddArrayToObject(queries, "rows");
    for (size_t s = 0; s < sizeof list / sizeof *list; s++) {
        TV_TRY(compare_families(r, &list[s], s == 0, err));
        advance(r, 100);
    }
    return TV_OK;
}

/* ---- All of it
 * ------------------------------------------------------------------------------------------------------------ */

static tv_status run_checks(run *r, tv_err *err) {
    tv_chain hard, other;
    tv_chain_distance exact, unused;
    TV_TRY(tv_chain_hard(&hard, err));
    tv_status status = add_instance(r, &hard, 2 * 0.49 * 1623 / 4096, &exact, err);
    const int n = 200;
    const double delta = 1.5;
    if (status == TV_OK) status = tv_chain_escape(n, 16, delta, &other, err);
    if (status == TV_OK) {
        status = add_instance(r, &other, -expm1(n * log1p(-1.0 / n)) * tanh(0.5 * delta), &unused, err);
        tv_chain_free(&other);
    }
    const tv_markov_options *pairs[] = {&markov_pair, &mismatch_pair, &smooth_pair};
    for (int p = 0; p < 3 && status == TV_OK; p++) {
        status = tv_chain_markov(pairs[p], &other, err);
        if (status != TV_OK) break;
        status = add_instance(r, &other, 0, &unused, err);
        tv_chain_free(&other);
        advance(r, 20);
    }
    if (status == TV_OK) status = error_slope(r, &hard, exact.tv, err);
    if (status == TV_OK) status = variance_rates(r, &hard, err);
    if (status == TV_OK) status = cost_slopes(r, &hard, err);
    tv_chain_free(&hard);
    if (status == TV_OK) status = query_table(r, err);
    return status;
}

tv_status tv_synth_run(const tv_synth_options *options, const tv_progress *progress, cJSON **report, tv_err *err) {
    *report = NULL;
    tv_synth_options o = *options;
    if (o.effort == 0) o.effort = 1;
    if (!(o.effort > 0 && o.effort <= 1e6)) return TV_FAIL(err, TV_EARG, "effort %g is not within (0, 1e6]", o.effort);
    cJSON *out = cJSON_CreateObject();
    cJSON_AddNumberToObject(out, "seed", (double)o.seed);
    tv_status status;
    int held = 1;
    if (o.coverage) {
        cJSON *rows = NULL;
        status = tv_coverage_run(&o, progress, &rows, err);
        if (status == TV_OK) {
            for (const cJSON *row = rows->child; row; row = row->next)
                held &= cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(row, "held")) != 0;
            cJSON_AddItemToObject(out, "coverage", rows);
        }
    } else {
        cJSON_AddNumberToObject(out, "effort", o.effort);
        cJSON_AddArrayToObject(out, "instances");
        cJSON_AddObjectToObject(out, "rates");
        run r = {.options = &o, .progress = progress, .report = out, .checks = cJSON_CreateArray(), .held = 1};
        status = run_checks(&r, err);
        cJSON_AddItemToObject(out, "checks", r.checks);
        held = r.held;
        tv_progress_report(progress, 1000, 1000);
    }
    if (status != TV_OK) {
        cJSON_Delete(out);
        return status;
    }
    cJSON_AddBoolToObject(out, "held", held);
    *report = out;
    return TV_OK;
}
