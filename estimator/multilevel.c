#include "estimator/multilevel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/moments.h"
#include "estimator/permute.h"
#include "estimator/stats.h"
#include "kernels/philox.h"

/* ---- Levels from recorded reads ---------------------------------------------------------------------------------- */

/* sum_t log(x[t] / r) as one logarithm: mantissas are multiplied, exponents added. -inf when any x is 0. */
static double log_mean_product(const double *x, int64_t n, double r) {
    double mantissa = 1, logs = 0;
    int64_t exponent = 0;
    for (int64_t t = 0; t < n; t++) {
        if (!(x[t] > 0)) return -INFINITY;
        uint64_t bits;
        memcpy(&bits, &x[t], 8);
        int64_t e = (int64_t)(bits >> 52);
        double m;
        if (e == 0) { /* subnormal */
            int power;
            m = frexp(x[t], &power);
            e = power + 1023;
        } else {
            bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
            memcpy(&m, &bits, 8);
        }
        mantissa *= m; /* in [1/2, 2): 512 factors stay below 2^512 */
        exponent += e - 1023;
        if ((t & 511) == 511) {
            logs += log(mantissa);
            mantissa = 1;
        }
    }
    return logs + log(mantissa) + (double)exponent * M_LN2 - (double)n * log(r);
}

/* Z of reads first..first+r-1. q[e]: [R][n]; sum: [n] scratch. */
static double block_z(const double *const q[2], int64_t n, int64_t first, int64_t r, double *sum) {
    double log_e[2];
    for (int e = 0; e < 2; e++) {
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t rho = first; rho < first + r; rho++) {
            const double *row = q[e] + rho * n;
            for (int64_t t = 0; t < n; t++) sum[t] += row[t];
        }
        log_e[e] = log_mean_product(sum, n, (double)r);
    }
    return tv_z(log_e[0], log_e[1]);
}

const double *tv_levels_z(const tv_levels *levels, int64_t perm, int level) {
    return levels->z + (perm * levels->n_levels + level) * levels->N;
}
const double *tv_levels_blocks(const tv_levels *levels, int64_t perm, int coarse, int fine) {
    return levels->blocks + ((perm * levels->n_levels + coarse) * levels->n_levels + fine) * levels->N;
}

void tv_levels_fill(tv_levels *out, int64_t perm, int64_t i, const double *const q[2], int64_t n, int64_t R,
                    int64_t held_out, double *scratch) {
    const int L = out->n_levels;
    double *sum = scratch, *z = scratch + n;
    for (int a = 0; a < L; a++) {
        const int64_t r = out->r[a], n_blocks = (R - held_out) / r;
        for (int64_t b = 0; b < n_blocks; b++) z[b] = block_z(q, n, b * r, r, sum);
        out->z[(perm * L + a) * out->N + i] = z[0];
        for (int b = a + 1; b < L; b++)
            out->blocks[((perm * L + a) * L + b) * out->N + i] = tv_stats_mean(z, out->r[b] / r);
    }
    if (out->reference) out->reference[perm * out->N + i] = block_z(q, n, R - held_out, held_out, sum);
}

tv_status tv_levels_new(int64_t N, const tv_levels_options *o, tv_levels *out, tv_err *err) {
    memset(out, 0, sizeof *out);
    const int64_t R = o->reads;
    if (N < 1) return TV_FAIL(err, TV_EARG, "levels need at least one trajectory");
    if (R < 1) return TV_FAIL(err, TV_EARG, "levels need at least one read that both sides recorded");
    if (o->held_out < 0 || o->held_out >= R)
        return TV_FAIL(err, TV_EARG, "cannot hold out %lld of %lld reads: at least one must be left for a level",
                       (long long)o->held_out, (long long)R);
    const int64_t most = R - o->held_out;
    if (o->n_levels < 0 || o->n_levels > TV_MAX_LEVELS)
        return TV_FAIL(err, TV_EARG, "%d levels: between 1 and %d are possible", o->n_levels, (int)TV_MAX_LEVELS);
    for (int a = 0; a < o->n_levels; a++) {
        out->r[out->n_levels++] = o->r[a];
        if (o->r[a] < 1 || o->r[a] > most || (a && o->r[a] <= o->r[a - 1]))
            return TV_FAIL(err, TV_EARG, "level %d wants %lld reads: levels must ascend within 1..%lld", a,
                           (long long)o->r[a], (long long)most);
    }
    if (o->n_levels == 0)
        for (int64_t r = 1; r <= most && out->n_levels < TV_MAX_LEVELS; r *= 2) out->r[out->n_levels++] = r;
    out->N = N;
    out->n_perm = o->n_perm > 0 ? o->n_perm : 1;
    const size_t P = (size_t)out->n_perm, L = (size_t)out->n_levels;
    out->z = tv_xcalloc(P * L * (size_t)N, sizeof(double));
    out->blocks = tv_xcalloc(P * L * L * (size_t)N, sizeof(double));
    if (o->held_out) out->reference = tv_xcalloc(P * (size_t)N, sizeof(double));
    return TV_OK;
}

tv_status tv_levels_run(const tv_dataset *data, int set, const tv_levels_options *o, tv_levels *out, tv_err *err) {
    memset(out, 0, sizeof *out);
    const tv_set *s = &data->set[set];
    tv_levels_options filled = *o;
    if (o->reads <= 0) filled.reads = tv_reads_usable(data);
    const int64_t R = filled.reads, n = data->n;
    if (s->N < 1) return TV_FAIL(err, TV_EARG, "set %s has no trajectories", set ? "b" : "a");
    for (int e = 0; e < 2; e++)
        if (s->reads[e] < (data->deterministic[e] ? 1 : R))
            return TV_FAIL(err, TV_EARG, "levels want %lld reads of scorer %s over set %s, which has %lld",
                           (long long)R, e ? "b" : "a", set ? "b" : "a", (long long)s->reads[e]);
    TV_TRY(tv_levels_new(o->limit > 0 && o->limit < s->N ? o->limit : s->N, &filled, out, err));
    tv_err first_err = {0};
    int64_t first_i = out->N;
#pragma omp parallel
    {
        const size_t cells = (size_t)R * (size_t)n;
        double *q = tv_xmalloc((4 * cells + (size_t)n + (size_t)R) * sizeof *q), *scratch = q + 4 * cells;
        int32_t *perm = tv_xmalloc((size_t)R * sizeof *perm);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < out->N; i++) {
            tv_err local = {0};
            tv_status status = TV_OK;
            for (int e = 0; e < 2 && status == TV_OK; e++)
                status = tv_realised(data, e, set, R, i, i + 1, o->readout, q + (size_t)e * cells, &local);
            if (status != TV_OK) {
#pragma omp critical(tv_levels_error)
                if (i < first_i) first_i = i, first_err = local;
                continue;
            }
            if (o->n_perm <= 0) {
                const double *const stored[2] = {q, q + cells};
                tv_levels_fill(out, 0, i, stored, n, R, o->held_out, scratch);
                continue;
            }
            for (int64_t p = 0; p < out->n_perm; p++) {
                for (int e = 0; e < 2; e++) {
                    const double *from = q + (size_t)e * cells;
                    double *to = q + (size_t)(2 + e) * cells;
                    for (int64_t t = 0; t < n; t++) {
                        tv_cell_permutation(R, o->seed, p, e, set, i, t, perm);
                        for (int64_t rho = 0; rho < R; rho++) to[rho * n + t] = from[perm[rho] * n + t];
                    }
                }
                const double *const shuffled[2] = {q + 2 * cells, q + 3 * cells};
                tv_levels_fill(out, p, i, shuffled, n, R, o->held_out, scratch);
            }
        }
        free(perm);
        free(q);
    }
    if (first_i < out->N) {
        tv_levels_free(out);
        if (err && err->code == TV_OK) *err = first_err;
        return first_err.code;
    }
    return TV_OK;
}

void tv_levels_free(tv_levels *levels) {
    free(levels->z);
    free(levels->blocks);
    free(levels->reference);
    memset(levels, 0, sizeof *levels);
}

void tv_levels_increment(const tv_levels *levels, int64_t perm, int coarse, int fine, int antithetic, double *y) {
    const double *top = tv_levels_z(levels, perm, fine);
    const double *low = coarse < 0   ? NULL
                        : antithetic ? tv_levels_blocks(levels, perm, coarse, fine)
                                     : tv_levels_z(levels, perm, coarse);
    for (int64_t i = 0; i < levels->N; i++) y[i] = top[i] - (low ? low[i] : 0);
}

/* ---- Allocation and schedules -------------------------------------------------------------------------------------
 */

double tv_allocation_work(int L, const double *V, const int64_t *r) {
    double sum = 0;
    for (int l = 0; l < L; l++) sum += sqrt(V[l] * (double)r[l]);
    return sum;
}

tv_status tv_allocate(int L, const double *V, const int64_t *r, double budget, double eps, int64_t *N, tv_err *err) {
    if (L < 1) return TV_FAIL(err, TV_EARG, "a schedule needs at least one level");
    for (int l = 0; l < L; l++)
        if (!(V[l] >= 0) || !isfinite(V[l]) || r[l] < 1)
            return TV_FAIL(err, TV_EARG, "level %d: variance %g at %lld reads is not usable", l, V[l], (long long)r[l]);
    if (!(budget > 0) && !(eps > 0))
        return TV_FAIL(err, TV_EARG, "an allocation needs a budget or a target error above 0");
    const double work = tv_allocation_work(L, V, r);
    const double scale = !(work > 0) ? 0 : budget > 0 ? budget / work : work / (eps * eps);
    for (int l = 0; l < L; l++) {
        const double want = ceil(scale * sqrt(V[l] / (double)r[l]) - 1e-9);
        if (!(want < 9e15)) return TV_FAIL(err, TV_EARG, "level %d would need %g trajectories", l, want);
        N[l] = want > 2 ? (int64_t)want : 2;
    }
    return TV_OK;
}

int tv_theory_levels(double n, double sigma2, double eps, double c, int most, int64_t *r) {
    const double start = ceil(c * n * sigma2);
    const int64_t r0 = start > 1 ? (int64_t)(start < 1e15 ? start : 1e15) : 1;
    const double top = ceil(2 * log2(1 / eps) - 1e-12);
    const int L = top > 0 ? (int)(top < 60 ? top : 60) : 0;
    for (int l = 0; l <= L && l < most; l++) r[l] = l < 62 && r0 <= (INT64_MAX >> (l + 1)) ? r0 << l : INT64_MAX;
    return L + 1;
}

int64_t tv_median_groups(double delta) {
    if (!(delta > 0 && delta < 1)) return 1;
    const int64_t G = (int64_t)ceil(log(1 / delta) / 0.32);
    return G < 1 ? 1 : G + 1 - G % 2;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double tv_median(double *x, int64_t n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

/* ---- Estimators from stored levels ----------------------------------------------------------------------------------
 */

tv_costed_estimate tv_algorithm1(const double *log_own, const double *log_other, int64_t N) {
    double *x = tv_xmalloc((size_t)(N > 0 ? N : 1) * sizeof *x);
    for (int64_t i = 0; i < N; i++) x[i] = tv_likelihood_ratio(log_own[i], log_other[i]);
    const tv_costed_estimate out = {.estimate = tv_stats_mean(x, N),
                                    .se = N > 0 ? sqrt(tv_stats_variance(x, N) / (double)N) : 0,
                                    .cost = (double)N};
    free(x);
    return out;
}

static tv_status check_schedule(const tv_levels *levels, int64_t perm, int L, const int *schedule, tv_err *err) {
    if (perm < 0 || perm >= levels->n_perm)
        return TV_FAIL(err, TV_EARG, "permutation %lld of %lld", (long long)perm, (long long)levels->n_perm);
    if (L < 1 || L > TV_MAX_LEVELS)
        return TV_FAIL(err, TV_EARG, "a schedule has between 1 and %d levels, not %d", (int)TV_MAX_LEVELS, L);
    for (int l = 0; l < L; l++)
        if (schedule[l] < 0 || schedule[l] >= levels->n_levels || (l && schedule[l] <= schedule[l - 1]))
            return TV_FAIL(err, TV_EARG, "schedule entry %d (level index %d) must ascend within 0..%d", l, schedule[l],
                           levels->n_levels - 1);
    return TV_OK;
}

tv_status tv_multilevel_stored(const tv_levels *levels, int64_t perm, int L, const int *schedule, const int64_t *N_l,
                               int nested, int antithetic, tv_costed_estimate *out, tv_err *err) {
    TV_TRY(check_schedule(levels, perm, L, schedule, err));
    int64_t first = 0, need = 0;
    for (int l = 0; l < L; l++) {
        if (N_l[l] < 1)
            return TV_FAIL(err, TV_EARG, "level %d has %lld trajectories; it needs at least one", l, (long long)N_l[l]);
        need = nested ? (N_l[l] > need ? N_l[l] : need) : need + N_l[l];
    }
    if (need > levels->N)
        return TV_FAIL(err, TV_EARG, "the schedule takes %lld trajectories and the set has %lld", (long long)need,
                       (long long)levels->N);
    double *y = tv_xmalloc((size_t)levels->N * sizeof *y), variance = 0;
    *out = (tv_costed_estimate){0};
    for (int l = 0; l < L; l++) {
        tv_levels_increment(levels, perm, l ? schedule[l - 1] : -1, schedule[l], antithetic, y);
        out->estimate += tv_stats_mean(y + first, N_l[l]);
        variance += tv_stats_variance(y + first, N_l[l]) / (double)N_l[l];
        out->cost += (double)N_l[l] * (double)levels->r[schedule[l]];
        if (!nested) first += N_l[l];
    }
    out->se = sqrt(variance);
    free(y);
    return TV_OK;
}

tv_status tv_randomized_stored(const tv_levels *levels, int64_t perm, int L, const int *schedule, int antithetic,
                               const double *p, uint64_t seed, tv_costed_estimate *out, tv_err *err) {
    TV_TRY(check_schedule(levels, perm, L, schedule, err));
    if (L < 2) return TV_FAIL(err, TV_EARG, "the randomized-level estimator needs at least two levels");
    const size_t N = (size_t)levels->N;
    double *y = tv_xmalloc((size_t)L * N * sizeof *y), chance[TV_MAX_LEVELS] = {0}, total = 0;
    for (int l = 0; l < L; l++)
        tv_levels_increment(levels, perm, l ? schedule[l - 1] : -1, schedule[l], antithetic, y + (size_t)l * N);
    for (int l = 1; l < L; l++) {
        double square = 0;
        for (size_t i = 0; i < N; i++) square += y[(size_t)l * N + i] * y[(size_t)l * N + i];
        /* The floor keeps every level possible: a level that these trajectories never moved may move others. */
        chance[l] = p ? p[l] : sqrt(square / (double)N / (double)levels->r[schedule[l]]) + 1e-12;
        total += chance[l];
        if (!(chance[l] > 0) || !isfinite(chance[l])) {
            free(y);
            return TV_FAIL(err, TV_EARG, "level %d has probability %g; each must be above 0", l, chance[l]);
        }
    }
    *out = (tv_costed_estimate){0};
    double *x = tv_xmalloc(N * sizeof *x);
    for (size_t i = 0; i < N; i++) {
        double u = (double)tv_philox_uniform(seed, i, 0, TV_USE_PILOT) * total;
        int l = 1;
        while (l < L - 1 && u >= chance[l]) u -= chance[l], l++;
        x[i] = y[i] + y[(size_t)l * N + i] * total / chance[l];
        out->cost += (double)levels->r[schedule[l]]; /* the fine reads contain the base level's */
    }
    out->estimate = tv_stats_mean(x, levels->N);
    out->se = sqrt(tv_stats_variance(x, levels->N) / (double)levels->N);
    free(x);
    free(y);
    return TV_OK;
}

/* ---- Estimators from an oracle --------------------------------------------------------------------------------------
 */

static tv_status draw_level(tv_increment_fn draw, void *user, const tv_multilevel_plan *plan, int l, int64_t first,
                            int64_t N, double *y, tv_err *err) {
    return draw(user, l, first, N, l ? plan->r[l - 1] : 0, plan->r[l], plan->antithetic, y, err);
}

/* Samples a level from the plan, or from pilot variances. The pilot's samples are the first of each level. */
static tv_status choose_counts(tv_increment_fn draw, void *user, const tv_multilevel_plan *plan, int64_t *N,
                               tv_err *err) {
    if (plan->N) {
        memcpy(N, plan->N, (size_t)plan->L * sizeof *N);
        return TV_OK;
    }
    if (plan->pilot < 2)
        return TV_FAIL(err, TV_EARG, "a pilot needs at least two samples a level; got %lld", (long long)plan->pilot);
    double V[TV_MAX_LEVELS], *y = tv_xmalloc((size_t)plan->pilot * sizeof *y);
    tv_status status = TV_OK;
    for (int l = 0; l < plan->L && status == TV_OK; l++) {
        status = draw_level(draw, user, plan, l, 0, plan->pilot, y, err);
        V[l] = tv_stats_variance(y, plan->pilot);
    }
    free(y);
    if (status != TV_OK) return status;
    TV_TRY(tv_allocate(plan->L, V, plan->r, plan->budget, plan->eps, N, err));
    for (int l = 0; l < plan->L; l++)
        if (N[l] < plan->pilot) N[l] = plan->pilot;
    return TV_OK;
}

tv_status tv_multilevel_run(tv_increment_fn draw, void *user, const tv_multilevel_plan *plan, tv_multilevel_result *out,
                            tv_err *err) {
    memset(out, 0, sizeof *out);
    if (plan->L < 1 || plan->L > TV_MAX_LEVELS)
        return TV_FAIL(err, TV_EARG, "a schedule has between 1 and %d levels, not %d", (int)TV_MAX_LEVELS, plan->L);
    for (int l = 0; l < plan->L; l++)
        if (plan->r[l] < 1 || (l && plan->r[l] <= plan->r[l - 1]))
            return TV_FAIL(err, TV_EARG, "level %d has %lld reads; levels must ascend from 1", l,
                           (long long)plan->r[l]);
    if (plan->delta < 0 || plan->delta >= 1) return TV_FAIL(err, TV_EARG, "delta %g is not in [0, 1)", plan->delta);
    out->L = plan->L;
    TV_TRY(choose_counts(draw, user, plan, out->N, err));
    out->groups = plan->delta > 0 ? tv_median_groups(plan->delta) : 1;
    double *groups = tv_xcalloc((size_t)out->groups, sizeof *groups), variance = 0;
    tv_status status = TV_OK;
    for (int l = 0; l < plan->L && status == TV_OK; l++) {
        int64_t N = out->N[l];
        if (N < 2 * out->groups && out->groups > 1) N = out->N[l] = 2 * out->groups;
        if (N < 1) {
            status = TV_FAIL(err, TV_EARG, "level %d has %lld samples; it needs at least one", l, (long long)N);
            break;
        }
        double *y = tv_xmalloc((size_t)N * sizeof *y);
        status = draw_level(draw, user, plan, l, 0, N, y, err);
        if (status == TV_OK) {
            tv_moments m = {0};
            for (int64_t i = 0; i < N; i++) tv_moments_add(&m, y[i], (double)plan->r[l]);
            out->mean[l] = tv_stats_mean(y, N);
            out->variance[l] = tv_stats_variance(y, N);
            out->kurtosis[l] = tv_moments_kurtosis(&m);
            out->cost += m.cost;
            variance += out->variance[l] / (double)N;
            for (int64_t g = 0; g < out->groups; g++) {
                const int64_t lo = N * g / out->groups, hi = N * (g + 1) / out->groups;
                groups[g] += tv_stats_mean(y + lo, hi - lo);
            }
        }
        free(y);
    }
    if (status == TV_OK) {
        out->estimate = tv_median(groups, out->groups);
        out->se = sqrt(variance);
        const int top = plan->L - 1;
        out->bias_bound = top > 0 ? fabs(out->mean[top]) / (M_SQRT2 - 1) : out->estimate;
        /* The increment enters the lower end twice: in the estimate and in the bound. */
        const double twice = 1 + 1 / (M_SQRT2 - 1);
        out->bound_se =
            top > 0 ? sqrt(variance + (twice * twice - 1) * out->variance[top] / (double)out->N[top]) : out->se;
    }
    free(groups);
    return status;
}
