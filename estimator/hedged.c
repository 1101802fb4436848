/* The hedged estimator's driver: arguments, tables of the value function, automatic parameters, threads. The arithmetic
 * of a trajectory is in hedged_cell.h. */
#include "estimator/hedged.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/hedged_internal.h"
#include "estimator/stats.h"

const double tv_hedged_inverse_factorial[TV_HEDGED_MAX_ORDER + 2] = {1.0,
                                                                     1.0,
                                                                     0.5,
                                                                     0.16666666666666666,
                                                                     0.041666666666666664,
                                                                     0.008333333333333333,
                                                                     0.001388888888888889,
                                                                     0.0001984126984126984,
                                                                     2.48015873015873e-05,
                                                                     2.7557319223985893e-06,
                                                                     2.755731922398589e-07,
                                                                     2.505210838544172e-08,
                                                                     2.08767569878681e-09,
                                                                     1.6059043836821613e-10,
                                                                     1.1470745597729725e-11,
                                                                     7.647163731819816e-13,
                                                                     4.779477332387385e-14,
                                                                     2.8114572543455206e-15,
                                                                     1.5619206968586225e-16,
                                                                     8.22063524662433e-18,
                                                                     4.110317623312165e-19,
                                                                     1.9572941063391263e-20};
/* sqrt((m-1)!) / (m+1)!: by Cramer's inequality |He_j| phi <= 0.44 sqrt(j!), the coefficient of the first term left
 * out. */
const double tv_hedged_term_bound[TV_HEDGED_MAX_ORDER + 2] = {
    1,         1,         0.1667,    0.05893,   0.02041,   0.006804, 0.002174,  0.0006655,
    0.0001956, 5.533e-05, 1.509e-05, 3.977e-06, 1.015e-06, 2.51e-07, 6.034e-08, 1.411e-08,
    3.215e-09, 7.144e-10, 1.55e-10,  3.289e-11, 6.827e-12, 1.388e-12};

static const char *side_name(int side) { return side == TV_A ? "a" : "b"; }

/* U_{-1}(0; tau2), in scalar arithmetic. */
static double first_value(const tv_hedged_params *p, double tau2, int64_t n) {
    const double H = -expm1(-p->h * (double)n), S = sqrt(p->V + tau2);
    double G = 0;
    if (S > 0)
        G = 0.5 * erfc(-0.5 * p->V / S / M_SQRT2) - exp(0.5 * tau2) * 0.5 * erfc((0.5 * p->V + tau2) / S / M_SQRT2);
    return H + (1 - H) * G;
}

static tv_hedged_scratch *scratch_new(const tv_hedged_job *job) {
    const int64_t slots = job->own.k < job->readout ? job->own.k : job->readout;
    const int64_t kmax = job->own.k > job->other.k ? job->own.k : job->other.k;
    const size_t cap = (size_t)((job->own.reads * slots + 3) & ~(int64_t)3), room = (size_t)kmax + 4;
    const size_t n_doubles = 16 * cap + room;
    tv_hedged_scratch *s = tv_xcalloc(1, sizeof *s);
    char *p = tv_xcalloc(1, n_doubles * sizeof(double) + (cap + 8 + 3 * room) * 4);
    s->block = p;
    double **fields[] = {&s->oA, &s->oB,  &s->wA, &s->wB, &s->dA,  &s->dB, &s->dAB, &s->xA,
                         &s->xB, &s->xAB, &s->pA, &s->pB, &s->pAB, &s->nA, &s->nB,  &s->nAB};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) *fields[f] = (double *)p, p += cap * sizeof(double);
    s->rw = (double *)p, p += room * sizeof(double);
    s->uid = (int32_t *)p, p += (cap + 8) * 4;
    s->hint = (int32_t *)p, p += room * 4;
    s->rid = (int32_t *)p, p += room * 4;
    s->rlp = (float *)p;
    return s;
}

static void scratch_free(tv_hedged_scratch *s) {
    free(s->block);
    free(s);
}

/* Runs every trajectory of the arm into rows [N]. */
static tv_status run_rows(const tv_hedged_job *job, tv_hedged_fn *fn, int what, int set, tv_hedged_row *rows,
                          tv_err *err) {
    tv_hedged_fault first = {0};
    int64_t first_i = job->N;
#pragma omp parallel
    {
        tv_hedged_scratch *scratch = scratch_new(job);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < job->N; i++) {
            tv_hedged_fault fault = {0};
            fn(job, scratch, i, what, &rows[i], &fault);
            if (fault.bad) {
#pragma omp critical(tv_hedged_fault)
                if (i < first_i) first_i = i, first = fault;
            }
        }
        scratch_free(scratch);
    }
    if (first.bad)
        return TV_FAIL(
            err, TV_EFORMAT,
            "set %s: the record of scorer %s, pass %lld, trajectory %lld, position %lld has a NaN or a total "
            "probability above 1; score this set again",
            side_name(set), side_name(first.side ? !set : set), (long long)first.read, (long long)first_i,
            (long long)first.t);
    return TV_OK;
}

/* Tables over t = -1..n-1 for the parameters; tables: [3, n+1]. */
static void set_tables(tv_hedged_job *job, const tv_hedged_params *p, double *tables) {
    double *v = tables, *S = v + job->n + 1, *H = S + job->n + 1;
    for (int64_t e = 0; e <= job->n; e++) {
        const double rem = (double)(job->n - e); /* entry e is t = e - 1, and rem = n - 1 - t */
        v[e] = p->V * rem / (double)job->n;
        S[e] = sqrt(v[e] + p->tau2);
        H[e] = -expm1(-p->h * rem);
    }
    job->v = v, job->S = S, job->H = H, job->tau2 = p->tau2;
}

/* The automatic parameters from the moments. Below two trajectories the standard error of qv counts as 0. */
static tv_hedged_params automatic(const tv_hedged_row *rows, int64_t N) {
    double *x = tv_xmalloc((size_t)N * sizeof *x);
    tv_hedged_params p = {0};
    for (int64_t i = 0; i < N; i++) x[i] = rows[i].qv;
    const double V = tv_stats_mean(x, N) - sqrt(tv_stats_variance(x, N) / (double)N);
    p.V = V > 0 ? V : 0;
    for (int64_t i = 0; i < N; i++) x[i] = rows[i].haz;
    const double h = tv_stats_mean(x, N);
    p.h = h > 0 ? h : 0;
    int64_t alive = 0;
    for (int64_t i = 0; i < N; i++) {
        const double gap = rows[i].DA - rows[i].DB;
        if (isfinite(gap)) x[alive++] = gap * gap / 4;
    }
    const double tau2 = 0.25 * tv_stats_mean(x, alive);
    p.tau2 = tau2 < 0.05 ? tau2 : 0.05;
    free(x);
    return p;
}

static tv_status check_side(const tv_dataset *data, int set, int e, int64_t reads, tv_hedged_side *side, tv_err *err) {
    const tv_set *s = &data->set[set];
    if (s->reads[e] < 1 || s->k[e] < 1 || !s->ids[e] || !(s->lps[e] || s->probs[e]))
        return TV_FAIL(err, TV_EARG, "set %s has no recorded slots of scorer %s; score it first", side_name(set),
                       side_name(e));
    if (!data->deterministic[e] && s->reads[e] < reads)
        return TV_FAIL(err, TV_EARG, "the hedged estimator wants %lld reads of scorer %s over set %s, which has %lld",
                       (long long)reads, side_name(e), side_name(set), (long long)s->reads[e]);
    *side = (tv_hedged_side){.ids = s->ids[e],
                             .lps = s->lps[e],
                             .probs = s->probs[e],
                             .k = s->k[e],
                             .reads = data->deterministic[e] ? 1 : reads};
    return TV_OK;
}

double tv_hedged_test_z(double mean, double variance, double predicted, int64_t N) {
    const double least = N < TV_FAITHFUL_N && predicted > variance ? predicted : variance;
    if (N < 2 || !(least > 0)) return NAN;
    const double t = mean / sqrt(least / (double)N), df = (double)(N - 1);
    return copysign((8 * df + 1) / (8 * df + 3) * sqrt(df * log1p(t * t / df)), t);
}

static tv_status run_arm(const tv_dataset *data, int set, int64_t reads, tv_readout readout,
                         const tv_hedged_params *fixed, tv_hedged_fn *fn, tv_hedged_arm *arm, tv_err *err) {
    const tv_set *s = &data->set[set];
    if (s->N < 1) return TV_FAIL(err, TV_EARG, "set %s has no trajectories", side_name(set));
    tv_hedged_job job = {.N = s->N,
                         .n = data->n,
                         .blocks = s->blocks > 1 ? s->blocks : 1,
                         .tokens = s->tokens,
                         .lengths = s->lengths,
                         .raw = readout.raw};
    TV_TRY(check_side(data, set, set, reads, &job.own, err));
    TV_TRY(check_side(data, set, !set, reads, &job.other, err));
    job.readout = readout.readout > 0 ? readout.readout : INT32_MAX;
    const size_t N = (size_t)s->N;
    tv_hedged_row *rows = tv_xcalloc(N, sizeof *rows);
    double *tables = tv_xcalloc(3 * ((size_t)job.n + 1), sizeof *tables);
    tv_status status = run_rows(&job, fn, TV_HEDGED_MOMENTS, set, rows, err);
    if (status == TV_OK) {
        arm->params = fixed ? *fixed : automatic(rows, s->N);
        set_tables(&job, &arm->params, tables);
        double gap2 = 0, mass = 0;
        for (size_t i = 0; i < N; i++) gap2 += rows[i].gap2, mass += rows[i].mass;
        job.noise = mass > 0 ? 1.5 * sqrt(gap2 / mass) : 0; /* d^AB has half the deviation of d^A - d^B */
        status = run_rows(&job, fn, TV_HEDGED_VALUES, set, rows, err);
    }
    if (status == TV_OK) {
        const double corr = first_value(&arm->params, 0, job.n) - first_value(&arm->params, arm->params.tau2, job.n);
        double **fields[] = {&arm->T0, &arm->T2,  &arm->T2x, &arm->T2pj, &arm->C,
                             &arm->qv, &arm->haz, &arm->DA,  &arm->DB,   &arm->DAB};
        double *block = tv_xcalloc(N * 10, sizeof *block);
        for (size_t f = 0; f < 10; f++) *fields[f] = block + f * N;
        arm->N = s->N;
        for (size_t i = 0; i < N; i++) {
            const tv_hedged_row *r = &rows[i];
            arm->T0[i] = corr + r->T0;
            arm->T2[i] = corr + r->T2;
            arm->T2x[i] = corr + r->T2x;
            arm->T2pj[i] = 2 * arm->T2[i] - arm->T2x[i];
            arm->C[i] = r->C, arm->qv[i] = r->qv, arm->haz[i] = r->haz, arm->DA[i] = r->DA, arm->DB[i] = r->DB;
            arm->DAB[i] = r->DAB;
            arm->steps += r->steps / (double)N, arm->inverse2 += r->inverse / (double)N;
        }
        const double variance = tv_stats_variance(arm->C, arm->N);
        const double mean = tv_stats_mean(arm->C, arm->N);
        arm->faithfulness_z = variance > 0 ? mean / sqrt(variance / (double)arm->N) : NAN;
        arm->test_z = tv_hedged_test_z(
            mean, variance, tv_stats_mean(arm->qv, arm->N) + (double)job.n * tv_stats_mean(arm->haz, arm->N), arm->N);
    }
    free(tables);
    free(rows);
    return status;
}

static tv_status run(const tv_dataset *data, int64_t reads, tv_readout readout, const tv_hedged_params *params,
                     tv_hedged_fn *fn, tv_hedged *out, tv_err *err) {
    memset(out, 0, sizeof *out);
    if (reads < 2 || reads % 2)
        return TV_FAIL(err, TV_EARG, "the hedged estimator needs an even number of reads, at least 2; got %lld",
                       (long long)reads);
    if (readout.readout < 0)
        return TV_FAIL(err, TV_EARG, "readout must be at least 1 (0 = all slots); got %d", readout.readout);
    if (data->n < 1) return TV_FAIL(err, TV_EARG, "the trajectories have no tokens");
    if (params && !(params->V >= 0 && params->V < 1e6 && params->h >= 0 && params->h < 1e6 && params->tau2 >= 0 &&
                    params->tau2 <= 10))
        return TV_FAIL(err, TV_EARG,
                       "hedged parameters V=%g, h=%g, tau2=%g: each must be a number from 0 on (tau2 to 10)", params->V,
                       params->h, params->tau2);
    out->reads = reads;
    for (int set = 0; set < 2; set++) {
        const tv_status status = run_arm(data, set, reads, readout, params, fn, &out->arm[set], err);
        if (status != TV_OK) {
            tv_hedged_free(out);
            return status;
        }
    }
    return TV_OK;
}

static int has_avx2(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 0;
#endif
}

const char *tv_hedged_isa(void) { return has_avx2() ? "avx2" : "portable"; }

tv_status tv_hedged_run(const tv_dataset *data, int64_t reads, tv_readout readout, const tv_hedged_params *params,
                        tv_hedged *out, tv_err *err) {
    tv_hedged_fn *fn = tv_hedged_trajectory_portable;
#if defined(__x86_64__)
    if (has_avx2()) fn = tv_hedged_trajectory_avx2;
#endif
    return run(data, reads, readout, params, fn, out, err);
}

tv_status tv_hedged_run_portable(const tv_dataset *data, int64_t reads, tv_readout readout,
                                 const tv_hedged_params *params, tv_hedged *out, tv_err *err) {
    return run(data, reads, readout, params, tv_hedged_trajectory_portable, out, err);
}

void tv_hedged_free(tv_hedged *h) {
    if (!h) return;
    for (int set = 0; set < 2; set++) free(h->arm[set].T0); /* one block holds all ten arrays */
    memset(h, 0, sizeof *h);
}

tv_hedged_value tv_hedged_combine(const tv_hedged *h, tv_hedged_variant variant) {
    double sum = 0, variance = 0;
    for (int set = 0; set < 2; set++) {
        const tv_hedged_arm *arm = &h->arm[set];
        const double *x[] = {arm->T0, arm->T2, arm->T2x, arm->T2pj};
        sum += tv_stats_mean(x[variant], arm->N);
        variance += tv_stats_variance(x[variant], arm->N) / (double)arm->N;
    }
    return (tv_hedged_value){.estimate = 0.5 * sum, .se = 0.5 * sqrt(variance)};
}

static double half_z(double d) { return isnan(d) ? 1 : tanh(0.5 * fabs(d)); }

/* What T2pj keeps of the noise bias where the log-ratio lives on atoms: docs/estimator-hedged.md. */
static double kink_allowance(const tv_hedged *h) {
    double removed = 0, s2 = 0, steps = 0, inverse2 = 0;
    int64_t alive = 0;
    for (int set = 0; set < 2; set++) {
        const tv_hedged_arm *arm = &h->arm[set];
        for (int64_t i = 0; i < arm->N; i++) {
            const double gap = arm->DA[i] - arm->DB[i];
            if (isfinite(gap)) s2 += gap * gap / 4, alive++;
        }
        steps += 0.5 * arm->steps, inverse2 += 0.5 * arm->inverse2;
        removed += 0.5 * (tv_stats_mean(arm->T0, arm->N) - tv_stats_mean(arm->T2pj, arm->N));
    }
    if (!(s2 > 0)) return 0;
    s2 /= (double)alive;
    const double spacing2 = inverse2 > 0 ? steps / inverse2 : 0, most = 1 + M_SQRT2;
    const double share = most * exp(-steps) + spacing2 / (5 * s2);
    return fabs(removed) * (share < most ? share : most);
}

double tv_hedged_bias_allowance(const tv_hedged *h) {
    double drop = 0, left = 0, whole = 0;
    for (int set = 0; set < 2; set++) {
        const tv_hedged_arm *arm = &h->arm[set];
        double *z = tv_xmalloc((size_t)arm->N * sizeof *z);
        for (int64_t i = 0; i < arm->N; i++)
            z[i] = 0.5 * (half_z(arm->DA[i]) + half_z(arm->DB[i])) - half_z(arm->DAB[i]);
        drop += 0.5 * tv_stats_mean(z, arm->N);
        for (int64_t i = 0; i < arm->N; i++) z[i] = half_z(arm->DAB[i]);
        whole += tv_stats_variance(z, arm->N);
        left += tv_stats_variance(arm->T2pj, arm->N);
        free(z);
    }
    const double misfit = left < whole ? sqrt(left / whole) : 1;
    const double bound = misfit * (1 + M_SQRT2 * misfit) * fabs(drop);
    const double spread =
        fabs(tv_hedged_combine(h, TV_HEDGED_T2PJ).estimate - tv_hedged_combine(h, TV_HEDGED_T2).estimate);
    return fmax(kink_allowance(h), spread > bound ? spread : bound);
}

tv_hedged_interval tv_hedged_interval95(const tv_hedged *h) {
    const tv_hedged_value best = tv_hedged_combine(h, TV_HEDGED_T2PJ);
    const double half = 1.96 * best.se + tv_hedged_bias_allowance(h);
    return (tv_hedged_interval){.low = best.estimate - half, .high = best.estimate + half};
}
