#include "estimator/schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/stats.h"
#include "kernels/philox.h"

/* ---- Variances of levels and increments
 * -------------------------------------------------------------------------------- */

enum { PLAIN, ANTITHETIC };

/* One trajectory's variances (the mean over arms: half of the trajectories come from each) and biases. */
typedef struct {
    int n_levels;
    int64_t r[TV_MAX_LEVELS];
    double V0[TV_MAX_LEVELS], bias[TV_MAX_LEVELS];
    double VY[2][TV_MAX_LEVELS][TV_MAX_LEVELS]; /* plain and antithetic: [coarse][fine] */
    double square[TV_MAX_LEVELS];               /* E Y^2 of the antithetic increment Y from the level before */
    double with_base[TV_MAX_LEVELS];            /* its covariance with Z at the first level */
    double step[TV_MAX_LEVELS];                 /* its mean */
} moments;

/* Which trajectories count: all, or index[arm][0..count-1]. */
typedef struct {
    int64_t count[2];
    int64_t *index[2];
} subset;

static double pick_variance(const double *x, const double *minus, const subset *s, int arm, int64_t N, double *scratch,
                            double *mean) {
    const int64_t count = s ? s->count[arm] : N;
    for (int64_t j = 0; j < count; j++) {
        const int64_t i = s ? s->index[arm][j] : j;
        scratch[j] = x[i] - (minus ? minus[i] : 0);
    }
    *mean = tv_stats_mean(scratch, count);
    return tv_stats_variance(scratch, count);
}

/* Moments from permutations p0..p1-1, averaged. */
static moments take_moments(const tv_levels *const *arms, int n_arms, int64_t p0, int64_t p1, const subset *s) {
    moments m = {.n_levels = arms[0]->n_levels};
    memcpy(m.r, arms[0]->r, sizeof m.r);
    int64_t most = 0, total = 0;
    for (int a = 0; a < n_arms; a++) {
        most = arms[a]->N > most ? arms[a]->N : most;
        total += s ? s->count[a] : arms[a]->N;
    }
    double *scratch = tv_xmalloc(2 * (size_t)most * sizeof *scratch), *y = scratch + most;
    const double share = 1.0 / n_arms / (double)(p1 - p0);
    for (int64_t p = p0; p < p1; p++)
        for (int f = 0; f < m.n_levels; f++) {
            double bias = 0, paired = 0, mean;
            for (int a = 0; a < n_arms; a++) {
                const double *z = tv_levels_z(arms[a], p, f), *ref = arms[a]->reference + p * arms[a]->N;
                m.V0[f] += share * pick_variance(z, NULL, s, a, arms[a]->N, scratch, &mean);
                paired += pick_variance(z, ref, s, a, arms[a]->N, scratch, &mean) / n_arms;
                bias += mean / n_arms;
                for (int c = 0; c < f; c++) {
                    m.VY[PLAIN][c][f] +=
                        share * pick_variance(z, tv_levels_z(arms[a], p, c), s, a, arms[a]->N, scratch, &mean);
                    const double v =
                        pick_variance(z, tv_levels_blocks(arms[a], p, c, f), s, a, arms[a]->N, scratch, &mean);
                    m.VY[ANTITHETIC][c][f] += share * v;
                    if (c < f - 1) continue;
                    m.square[f] += share * (v + mean * mean);
                    m.step[f] += share * mean;
                    tv_levels_increment(arms[a], p, c, f, 1, y);
                    const double *base = tv_levels_z(arms[a], p, 0);
                    double unused;
                    const double V = pick_variance(base, NULL, s, a, arms[a]->N, scratch, &unused);
                    m.with_base[f] +=
                        share * 0.5 * (V + v - pick_variance(base, y, s, a, arms[a]->N, scratch, &unused));
                }
            }
            /* The bias that was seen, or what could have hidden behind the reference's noise. */
            const double floor = sqrt(paired / (double)total);
            m.bias[f] += (fabs(bias) > floor ? fabs(bias) : floor) / (double)(p1 - p0);
        }
    free(scratch);
    return m;
}

/* ---- Schedules
 * --------------------------------------------------------------------------------------------------------- */

typedef struct {
    int L, at[TV_MAX_LEVELS];
} schedule;

/* All schedules of 1..most levels on the grid, in a fixed order. */
static schedule *all_schedules(int n_levels, int most, int *count) {
    int room = 64;
    schedule *list = tv_xmalloc((size_t)room * sizeof *list);
    *count = 0;
    for (uint32_t mask = 1; mask < 1u << n_levels; mask++) {
        schedule s = {0};
        for (int l = 0; l < n_levels; l++)
            if (mask >> l & 1) {
                if (s.L < TV_MAX_LEVELS) s.at[s.L] = l;
                s.L++;
            }
        if (s.L > most) continue;
        if (*count == room) list = tv_xrealloc(list, (size_t)(room *= 2) * sizeof *list);
        list[(*count)++] = s;
    }
    return list;
}

static void schedule_terms(const schedule *s, const moments *m, int kind, double *V, double *r) {
    for (int l = 0; l < s->L; l++) {
        V[l] = l ? m->VY[kind][s->at[l - 1]][s->at[l]] : m->V0[s->at[0]];
        r[l] = (double)m->r[s->at[l]];
    }
}

/* Mean squared error at the best allocation. */
static double schedule_mse(const schedule *s, const moments *m, int kind, double budget) {
    double V[TV_MAX_LEVELS], r[TV_MAX_LEVELS], work = 0;
    schedule_terms(s, m, kind, V, r);
    for (int l = 0; l < s->L; l++) work += sqrt(V[l] * r[l]);
    const double bias = m->bias[s->at[s->L - 1]];
    return work * work / budget + bias * bias;
}

/* Allocation from the pilot's variances, error from the whole data's. */
static double schedule_mse_allocated(const schedule *s, const moments *pilot, const moments *full, int kind,
                                     double budget) {
    double V[TV_MAX_LEVELS], Vp[TV_MAX_LEVELS], r[TV_MAX_LEVELS], w[TV_MAX_LEVELS], spent = 0, variance = 0;
    schedule_terms(s, pilot, kind, Vp, r);
    schedule_terms(s, full, kind, V, r);
    for (int l = 0; l < s->L; l++) {
        w[l] = sqrt((Vp[l] > 1e-18 ? Vp[l] : 1e-18) / r[l]);
        spent += w[l] * r[l];
    }
    for (int l = 0; l < s->L; l++) variance += V[l] / (budget * w[l] / spent);
    const double bias = full->bias[s->at[s->L - 1]];
    return variance + bias * bias;
}

static int best_schedule(const schedule *list, int count, int most, const moments *m, int kind, double budget) {
    int best = -1;
    double least = INFINITY;
    for (int j = 0; j < count; j++) {
        if (list[j].L > most) continue;
        const double mse = schedule_mse(&list[j], m, kind, budget);
        if (mse < least) least = mse, best = j;
    }
    return best;
}

/* Mean squared error of the randomized-level estimator Y_0 + Y_l / p_l on the whole grid, p_l ~ sqrt(E Y_l^2 / r_l). */
static double randomized_mse(const moments *m, double budget) {
    double total = 0, variance = m->V0[0], reads = 0, mean = 0;
    for (int l = 1; l < m->n_levels; l++) total += sqrt(m->square[l] / (double)m->r[l]);
    if (!(total > 0)) return m->V0[0] * (double)m->r[0] / budget + m->bias[0] * m->bias[0];
    for (int l = 1; l < m->n_levels; l++) {
        const double p = sqrt(m->square[l] / (double)m->r[l]) / total;
        if (!(p > 0)) continue;
        variance += m->square[l] / p + 2 * m->with_base[l];
        mean += m->step[l];
        reads += p * (double)m->r[l];
    }
    variance -= mean * mean;
    const double bias = m->bias[m->n_levels - 1];
    return (variance > 0 ? variance : 0) * reads / budget + bias * bias;
}

/* ---- JSON
 * ---------------------------------------------------------------------------------------------------------------- */

static void add_curve(cJSON *rmse, const char *name, const double *mse, int n, double per) {
    cJSON *list = cJSON_AddArrayToObject(rmse, name);
    for (int b = 0; b < n; b++) cJSON_AddItemToArray(list, cJSON_CreateNumber(sqrt(mse[b] / per)));
}

static void add_ints(cJSON *object, const char *name, const schedule *s, const int64_t *r) {
    cJSON *list = cJSON_AddArrayToObject(object, name);
    for (int l = 0; l < s->L; l++) cJSON_AddItemToArray(list, cJSON_CreateNumber((double)r[s->at[l]]));
}

static void add_moments(cJSON *out, const moments *m) {
    cJSON *levels = cJSON_AddArrayToObject(out, "levels"), *steps = cJSON_AddArrayToObject(out, "increments");
    for (int f = 0; f < m->n_levels; f++) {
        cJSON *level = cJSON_CreateObject();
        cJSON_AddNumberToObject(level, "r", (double)m->r[f]);
        cJSON_AddNumberToObject(level, "variance", m->V0[f]);
        cJSON_AddNumberToObject(level, "bias", m->bias[f]);
        cJSON_AddItemToArray(levels, level);
        for (int c = 0; c < f; c++) {
            cJSON *step = cJSON_CreateObject();
            cJSON_AddNumberToObject(step, "from", (double)m->r[c]);
            cJSON_AddNumberToObject(step, "to", (double)m->r[f]);
            cJSON_AddNumberToObject(step, "variance", m->VY[PLAIN][c][f]);
            cJSON_AddNumberToObject(step, "antithetic_variance", m->VY[ANTITHETIC][c][f]);
            cJSON_AddItemToArray(steps, step);
        }
    }
}

/* Budget at which a falling curve reaches accuracy a: log-log interpolation on its running minimum; NaN outside. */
static double budget_for(const double *budgets, const double *rmse, int n, double a) {
    double least = INFINITY;
    for (int b = 0; b < n; b++) {
        const double now = rmse[b] < least ? rmse[b] : least;
        if (now <= a) {
            if (b == 0) return a <= now ? budgets[0] : NAN;
            if (!(now < least)) return budgets[b];
            const double share = log(least / a) / log(least / now);
            return exp(log(budgets[b - 1]) + share * log(budgets[b] / budgets[b - 1]));
        }
        least = now;
    }
    return NAN;
}

/* The same with the curve continued: above its first point the error is all variance (rmse^-2), beyond its last the
 * variance goes on around the bias floor that the last two points show. NaN where the floor is above a. */
static double needed_for(const double *budgets, const double *rmse, int n, double a) {
    if (rmse[0] <= a) return budgets[0] * (rmse[0] / a) * (rmse[0] / a);
    const double inside = budget_for(budgets, rmse, n, a);
    if (!isnan(inside) || n < 2) return inside;
    const double x = rmse[n - 2] * rmse[n - 2], y = rmse[n - 1] * rmse[n - 1];
    const double c = (x - y) / (1 / budgets[n - 2] - 1 / budgets[n - 1]), floor = y - c / budgets[n - 1];
    return c > 0 && a * a > floor ? c / (a * a - floor) : NAN;
}

/* Equal-accuracy budget ratio base/new over the accuracies of the base's curve: the largest, and where. */
static void add_saving(cJSON *savings, const char *name, const double *budgets, int n, const double *base,
                       const double *fresh) {
    double best = INFINITY, peak = -1, at = 0;
    for (int b = 0; b < n; b++) best = base[b] < best ? base[b] : best;
    cJSON *entry = cJSON_AddObjectToObject(savings, name);
    for (int j = 0; j < 200; j++) {
        const double a = exp(log(base[0]) + (log(best * 1.0001) - log(base[0])) * j / 199);
        const double ratio = needed_for(budgets, base, n, a) / needed_for(budgets, fresh, n, a);
        if (ratio > peak) peak = ratio, at = a;
    }
    if (peak > 0) {
        cJSON_AddNumberToObject(entry, "peak", peak);
        cJSON_AddNumberToObject(entry, "at_rmse", at);
    } else {
        tv_json_add_null(entry, "peak", "its bias is above every error that the base reaches");
    }
}

static void read_curve(const cJSON *rmse, const char *name, double *curve, int n) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(rmse, name);
    for (int b = 0; b < n; b++) {
        const cJSON *item = cJSON_GetArrayItem(list, b);
        curve[b] = item && cJSON_IsNumber(item) ? item->valuedouble : NAN;
    }
}

double tv_protocol_needed(const cJSON *protocol, const char *family, double eps) {
    const cJSON *budgets = cJSON_GetObjectItemCaseSensitive(protocol, "budgets");
    const int n = cJSON_GetArraySize(budgets);
    if (n < 2) return NAN;
    double *x = tv_xmalloc(2 * (size_t)n * sizeof *x), *y = x + n;
    for (int b = 0; b < n; b++) x[b] = cJSON_GetArrayItem(budgets, b)->valuedouble;
    read_curve(cJSON_GetObjectItemCaseSensitive(protocol, "rmse"), family, y, n);
    const double need = needed_for(x, y, n, eps);
    free(x);
    return need;
}

/* ---- Pilots
 * ---------------------------------------------------------------------------------------------------------------- */

/* The first `count` entries of a random order of 0..N-1; index [N]. */
static void shuffle(uint64_t seed, uint64_t draw, int64_t N, int64_t count, int64_t *index) {
    for (int64_t i = 0; i < N; i++) index[i] = i;
    for (int64_t i = 0; i < count; i++) {
        const tv_philox4 r = tv_philox(seed, draw, (uint64_t)TV_USE_PILOT << 32 | (uint32_t)i);
        const uint64_t word = (uint64_t)r.v[0] << 32 | r.v[1];
        const int64_t j = i + (int64_t)((unsigned __int128)word * (uint64_t)(N - i) >> 64);
        const int64_t swap = index[i];
        index[i] = index[j];
        index[j] = swap;
    }
}

static void subset_new(subset *s, const tv_levels *const *arms, int n_arms, int64_t pilot) {
    *s = (subset){0};
    for (int a = 0; a < n_arms; a++) {
        s->index[a] = tv_xmalloc((size_t)arms[a]->N * sizeof(int64_t));
        s->count[a] = pilot / n_arms;
    }
}
static void subset_draw(subset *s, const tv_levels *const *arms, int n_arms, uint64_t seed, uint64_t draw) {
    for (int a = 0; a < n_arms; a++) shuffle(seed, draw * 2 + (uint64_t)a, arms[a]->N, arms[a]->N, s->index[a]);
}
static void subset_free(subset *s) {
    for (int a = 0; a < 2; a++) free(s->index[a]);
}

/* ---- Recycling control
 * --------------------------------------------------------------------------------------------------- */

/* One simulated measurement at a budget: the schedule comes from the pilot; level l then takes N_l trajectories, with
 * the pilot's first (recycled) or without them (fresh). Other trajectories are drawn from those outside the pilot,
 * again and again where the store is too small. Returns the estimate. */
static double simulate(const tv_levels *const *arms, int n_arms, int64_t p, const schedule *s, const double *N_l,
                       const subset *pilot, int recycle, uint64_t seed, uint64_t draw) {
    double estimate = 0;
    for (int l = 0; l < s->L; l++)
        for (int a = 0; a < n_arms; a++) {
            const tv_levels *lv = arms[a];
            const double *z = tv_levels_z(lv, p, s->at[l]), *low = l ? tv_levels_z(lv, p, s->at[l - 1]) : NULL;
            const int64_t rest = lv->N - pilot->count[a];
            double want = ceil(N_l[l] / n_arms);
            if (want < 2) want = 2;
            if (want > 65536) want = 65536; /* more would only shrink a noise that is long gone */
            double sum = 0;
            int64_t taken = 0;
            if (recycle)
                for (; taken < pilot->count[a]; taken++) { /* read at every level already, so used at every level */
                    const int64_t i = pilot->index[a][taken];
                    sum += z[i] - (low ? low[i] : 0);
                }
            for (; taken < (int64_t)want; taken++) {
                const tv_philox4 r =
                    tv_philox(seed + 1, draw,
                              (uint64_t)TV_USE_PILOT << 32 | (uint32_t)((l * 2 + a) << 20 | (int)(taken & 0xfffff)));
                const uint64_t word = (uint64_t)r.v[0] << 32 | r.v[1];
                const int64_t i =
                    pilot->index[a][pilot->count[a] + (int64_t)((unsigned __int128)word * (uint64_t)rest >> 64)];
                sum += z[i] - (low ? low[i] : 0);
            }
            estimate += sum / (double)taken / n_arms;
        }
    return estimate;
}

static void add_recycling(cJSON *out, const tv_levels *const *arms, int n_arms, const schedule *list, int count,
                          const double *budgets, int n_budgets, int64_t pilot, int64_t simulations, uint64_t seed) {
    cJSON *rows = cJSON_AddArrayToObject(out, "recycling");
    double *recycled = tv_xmalloc(3 * (size_t)simulations * sizeof *recycled), *fresh = recycled + simulations;
    double *top = fresh + simulations; /* reads of the level that each simulation ended at */
    const int64_t P = arms[0]->n_perm;
    for (int b = 0; b < n_budgets; b++) {
        for (int64_t j = 0; j < 3 * simulations; j++) recycled[j] = NAN; /* one that were left out would show */
#pragma omp parallel
        {
            subset s;
            subset_new(&s, arms, n_arms, pilot);
#pragma omp for schedule(dynamic, 4)
            for (int64_t j = 0; j < simulations; j++) {
                const int64_t p = j % P;
                subset_draw(&s, arms, n_arms, seed, (uint64_t)1 << 32 | (uint64_t)j);
                const moments m = take_moments(arms, n_arms, p, p + 1, &s);
                const schedule *best = &list[best_schedule(list, count, TV_MAX_LEVELS, &m, PLAIN, budgets[b])];
                double V[TV_MAX_LEVELS], r[TV_MAX_LEVELS], N_l[TV_MAX_LEVELS], spent = 0, truth = 0;
                schedule_terms(best, &m, PLAIN, V, r);
                for (int l = 0; l < best->L; l++) spent += sqrt((V[l] > 1e-18 ? V[l] : 1e-18) * r[l]);
                for (int l = 0; l < best->L; l++)
                    N_l[l] = budgets[b] * sqrt((V[l] > 1e-18 ? V[l] : 1e-18) / r[l]) / spent;
                /* Against the chosen top level's mean over everything stored: bias of the level itself is not the
                 * question. */
                for (int a = 0; a < n_arms; a++)
                    truth += tv_stats_mean(tv_levels_z(arms[a], p, best->at[best->L - 1]), arms[a]->N) / n_arms;
                const uint64_t draw = (uint64_t)b << 32 | (uint64_t)j;
                recycled[j] = simulate(arms, n_arms, p, best, N_l, &s, 1, seed, draw) - truth;
                fresh[j] = simulate(arms, n_arms, p, best, N_l, &s, 0, seed, draw) - truth;
                top[j] = (double)arms[0]->r[best->at[best->L - 1]];
            }
            subset_free(&s);
        }
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "budget", budgets[b]);
        cJSON_AddNumberToObject(row, "simulations", (double)simulations);
        tv_json_add_number(row, "mean_top_reads", tv_stats_mean(top, simulations));
        const struct {
            const char *bias, *se, *rmse;
            const double *x;
        } kinds[2] = {{"recycled_bias", "recycled_bias_se", "recycled_rmse", recycled},
                      {"fresh_bias", "fresh_bias_se", "fresh_rmse", fresh}};
        for (int k = 0; k < 2; k++) {
            const double mean = tv_stats_mean(kinds[k].x, simulations),
                         variance = tv_stats_variance(kinds[k].x, simulations);
            cJSON_AddNumberToObject(row, kinds[k].bias, mean);
            cJSON_AddNumberToObject(row, kinds[k].se, sqrt(variance / (double)simulations));
            cJSON_AddNumberToObject(row, kinds[k].rmse,
                                    sqrt(variance * (double)(simulations - 1) / (double)simulations + mean * mean));
        }
        cJSON_AddItemToArray(rows, row);
    }
    free(recycled);
}

/* ---- The protocol
 * --------------------------------------------------------------------------------------------------------- */

typedef struct {
    int chosen;
    int64_t times;
} pick;

static void add_picks(cJSON *out, const schedule *list, int count, const int *chosen, int n_budgets, int64_t pilots,
                      const double *budgets, const int64_t *r) {
    cJSON *rows = cJSON_AddArrayToObject(out, "picks");
    for (int b = 0; b < n_budgets; b++) {
        pick best = {-1, 0};
        for (int j = 0; j < count; j++) {
            int64_t times = 0;
            for (int64_t p = 0; p < pilots; p++) times += chosen[p * n_budgets + b] == j;
            if (times > best.times) best = (pick){j, times};
        }
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "budget", budgets[b]);
        add_ints(row, "schedule", &list[best.chosen], r);
        cJSON_AddNumberToObject(row, "share", (double)best.times / (double)pilots);
        cJSON_AddItemToArray(rows, row);
    }
}

/* The one-level, best and theta figures that a table prints for a measurement. */
static void add_summary(cJSON *out, const double *budgets, int n, const cJSON *rmse) {
    double *curves = tv_xmalloc(3 * (size_t)n * sizeof *curves), *single = curves, *hindsight = curves + n,
           *fresh = curves + 2 * n;
    read_curve(rmse, "single", single, n);
    read_curve(rmse, "hindsight_single", hindsight, n);
    cJSON *over_pilot = cJSON_AddObjectToObject(out, "savings_over_pilot_single");
    cJSON *over_best = cJSON_AddObjectToObject(out, "savings_over_hindsight_single");
    cJSON *ratio =
        cJSON_AddObjectToObject(out, "rmse_ratio"); /* of the pilot-chosen single level, at the last budget */
    for (const cJSON *family = rmse->child; family; family = family->next) {
        if (!strcmp(family->string, "single") || !strcmp(family->string, "hindsight_single")) continue;
        read_curve(rmse, family->string, fresh, n);
        add_saving(over_pilot, family->string, budgets, n, single, fresh);
        add_saving(over_best, family->string, budgets, n, hindsight, fresh);
        tv_json_add_number(ratio, family->string, single[n - 1] / fresh[n - 1]);
    }
    free(curves);
}

static tv_status check_protocol(const tv_levels *const *arms, int n_arms, int64_t pilot, int64_t pilots, int most,
                                int n_budgets, const double *budgets, tv_err *err) {
    if (pilots < 1 || most < 1 || most > TV_MAX_LEVELS)
        return TV_FAIL(err, TV_EARG, "%lld pilot draws of schedules up to %d levels: both must be at least 1",
                       (long long)pilots, most);
    for (int a = 0; a < n_arms; a++) {
        if (!arms[a]->reference)
            return TV_FAIL(err, TV_EARG, "the protocol needs reads that are held out for a reference");
        if (arms[a]->n_levels != arms[0]->n_levels || arms[a]->n_perm != arms[0]->n_perm)
            return TV_FAIL(err, TV_EARG, "the two arms have different levels or permutations");
        if (pilot / n_arms < 2 || arms[a]->N < pilot / n_arms + 2)
            return TV_FAIL(err, TV_EARG,
                           "a pilot of %lld needs at least %lld trajectories from each of %d sides; there are %lld",
                           (long long)pilot, (long long)(pilot / n_arms + 2), n_arms, (long long)arms[a]->N);
    }
    for (int b = 0; b < n_budgets; b++)
        if (!(budgets[b] > 0) || !isfinite(budgets[b]) || (b && budgets[b] <= budgets[b - 1]))
            return TV_FAIL(err, TV_EARG, "budgets must ascend and be above 0; number %d is %g", b, budgets[b]);
    return TV_OK;
}

tv_status tv_protocol_run(const tv_levels *const *arms, int n_arms, const tv_protocol_options *o, cJSON **result,
                          tv_err *err) {
    *result = NULL;
    if (n_arms < 1 || n_arms > 2) return TV_FAIL(err, TV_EARG, "the protocol takes one or two arms, not %d", n_arms);
    const int64_t pilot = o->pilot > 0 ? o->pilot : 64, pilots = o->pilots > 0 ? o->pilots : 40;
    const int most = o->max_levels > 0 ? o->max_levels : 4, n_levels = arms[0]->n_levels;
    const int nb = o->n_budgets > 0 ? o->n_budgets : 13;
    double *budgets = tv_xmalloc((size_t)nb * sizeof *budgets);
    /* The pilot reads its trajectories at the top level, and that is charged: no smaller budget makes sense. */
    for (int b = 0; b < nb; b++)
        budgets[b] = o->n_budgets > 0 ? o->budgets[b] : (double)(pilot * arms[0]->r[n_levels - 1]) * pow(2, b);
    const tv_status status = check_protocol(arms, n_arms, pilot, pilots, most, nb, budgets, err);
    if (status != TV_OK) {
        free(budgets);
        return status;
    }
    const int64_t P = arms[0]->n_perm;
    int count;
    schedule *list = all_schedules(n_levels, most, &count);
    const moments full = take_moments(arms, n_arms, 0, P, NULL);
    enum { MULTI, SINGLE, ANTI, FAMILIES };
    double *mse = tv_xcalloc((size_t)FAMILIES * (size_t)nb * (size_t)pilots, sizeof *mse);
    int *chosen = tv_xmalloc((size_t)nb * (size_t)pilots * sizeof *chosen);
#pragma omp parallel
    {
        subset s;
        subset_new(&s, arms, n_arms, pilot);
#pragma omp for schedule(dynamic, 1)
        for (int64_t j = 0; j < pilots; j++) {
            subset_draw(&s, arms, n_arms, o->seed, (uint64_t)j);
            const moments m = take_moments(arms, n_arms, j % P, j % P + 1, &s);
            for (int b = 0; b < nb; b++) {
                const int multi = best_schedule(list, count, most, &m, PLAIN, budgets[b]);
                const int anti = best_schedule(list, count, most, &m, ANTITHETIC, budgets[b]);
                const int one = best_schedule(list, count, 1, &m, PLAIN, budgets[b]);
                chosen[j * nb + b] = multi;
                mse[(MULTI * pilots + j) * nb + b] = schedule_mse_allocated(&list[multi], &m, &full, PLAIN, budgets[b]);
                mse[(ANTI * pilots + j) * nb + b] =
                    schedule_mse_allocated(&list[anti], &m, &full, ANTITHETIC, budgets[b]);
                mse[(SINGLE * pilots + j) * nb + b] = schedule_mse(&list[one], &full, PLAIN, budgets[b]);
            }
        }
        subset_free(&s);
    }
    cJSON *out = cJSON_CreateObject();
    cJSON *grid = cJSON_AddArrayToObject(out, "grid"), *at = cJSON_AddArrayToObject(out, "budgets");
    for (int l = 0; l < n_levels; l++) cJSON_AddItemToArray(grid, cJSON_CreateNumber((double)full.r[l]));
    for (int b = 0; b < nb; b++) cJSON_AddItemToArray(at, cJSON_CreateNumber(budgets[b]));
    cJSON_AddNumberToObject(out, "pilot", (double)pilot);
    cJSON_AddNumberToObject(out, "pilot_cost", (double)(pilot * full.r[n_levels - 1]));
    cJSON_AddNumberToObject(out, "pilot_draws", (double)pilots);
    cJSON_AddNumberToObject(out, "permutations", (double)P);
    cJSON *rmse = cJSON_AddObjectToObject(out, "rmse");
    const char *names[FAMILIES] = {"multilevel", "single", "antithetic"};
    double *curve = tv_xcalloc((size_t)nb, sizeof *curve);
    for (int f = 0; f < FAMILIES; f++) {
        for (int b = 0; b < nb; b++) {
            curve[b] = 0;
            for (int64_t j = 0; j < pilots; j++) curve[b] += mse[(f * pilots + j) * nb + b];
        }
        add_curve(rmse, names[f], curve, nb, (double)pilots);
    }
    const struct {
        const char *name;
        int most, kind;
    } best[] = {{"hindsight_single", 1, PLAIN},
                {"hindsight_multilevel", most, PLAIN},
                {"hindsight_antithetic", most, ANTITHETIC}};
    for (int f = 0; f < 3; f++) {
        for (int b = 0; b < nb; b++)
            curve[b] = schedule_mse(&list[best_schedule(list, count, best[f].most, &full, best[f].kind, budgets[b])],
                                    &full, best[f].kind, budgets[b]);
        add_curve(rmse, best[f].name, curve, nb, 1);
    }
    for (int b = 0; b < nb; b++) curve[b] = randomized_mse(&full, budgets[b]);
    add_curve(rmse, "randomized_antithetic", curve, nb, 1);
    for (int f = 0; f < o->n_fixed; f++) {
        for (int b = 0; b < nb; b++)
            curve[b] = o->fixed[f].variance * o->fixed[f].reads / budgets[b] + o->fixed[f].bias * o->fixed[f].bias;
        add_curve(rmse, o->fixed[f].name, curve, nb, 1);
    }
    add_moments(out, &full);
    /* Work of the best schedule that ends at the deepest level over the single level's there. */
    double least = INFINITY;
    for (int j = 0; j < count; j++)
        if (list[j].at[list[j].L - 1] == n_levels - 1) {
            const double work =
                schedule_mse(&list[j], &full, PLAIN, 1) - full.bias[n_levels - 1] * full.bias[n_levels - 1];
            least = work < least ? work : least;
        }
    tv_json_add_number(
        out, "theta", full.V0[n_levels - 1] > 0 ? least / (full.V0[n_levels - 1] * (double)full.r[n_levels - 1]) : NAN);
    add_summary(out, budgets, nb, rmse);
    add_picks(out, list, count, chosen, nb, pilots, budgets, full.r);
    if (o->simulations >= 0)
        add_recycling(out, arms, n_arms, list, count, budgets, nb < 6 ? nb : 6, pilot,
                      o->simulations > 1 ? o->simulations : 300, o->seed);
    free(curve);
    free(mse);
    free(chosen);
    free(list);
    free(budgets);
    *result = out;
    return TV_OK;
}
