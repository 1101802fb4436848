#include "estimator/calibrate.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimator/histogram.h"
#include "estimator/moments.h"
#include "estimator/permute.h"
#include "estimator/union.h"

enum { CHUNK = 16 }; /* positions whose reads are decoded at once */
/* Differences of this size, relative to what is compared, are the rounding of sums of equal reads, and count as none:
 * a mean of three equal numbers need not be that number. Log-probabilities are stored in float32, far coarser. */
static const double ROUNDING = 16 * DBL_EPSILON;

/* Sums over one trajectory; merged in the order of trajectories. */
typedef struct {
    double chi2, chi2_stored, chi2_max, realised, realised_max;
    double d2, d3, d4, d_max, lagged[TV_CAL_LAGS], lagged_permuted;
    double slope2, slope2_expected;
    int64_t cells, realised_cells, tracked;
    int64_t size_sum[TV_CAL_SIZES], size_max[TV_CAL_SIZES];
} sums;

/* Counters of one thread; sizes: [n_sizes, cap+1]. */
typedef struct {
    tv_histogram chi2, realised, deviation;
    uint64_t *sizes;
} counters;

typedef struct {
    double *p;             /* [R,CHUNK,k] decoded slots */
    double *q, *shuffled;  /* [R] realised probabilities of one cell, then deviations */
    int32_t *perm, *place; /* [R] permutation and its inverse */
    tv_union u;
    counters count;
} worker;

typedef struct {
    const tv_dataset *data;
    const tv_calibrate_options *o;
    int e, s;
    int64_t R, stored, k, cap;
    int n_sizes, n_lags;
    const int64_t *size_r;
} job;

static void worker_close(worker *b) {
    free(b->p);
    free(b->q);
    free(b->perm);
    free(b->count.sizes);
    tv_union_close(&b->u);
}

static int worker_open(worker *b, const job *j) {
    b->p = malloc((size_t)(j->R * CHUNK * j->k) * sizeof *b->p);
    b->q = malloc((size_t)(2 * j->R) * sizeof *b->q);
    b->perm = malloc((size_t)(2 * j->R) * sizeof *b->perm);
    b->count.sizes = calloc((size_t)(j->n_sizes * (j->cap + 1)), sizeof *b->count.sizes);
    int ok = tv_union_open(&b->u, j->cap) && b->p && b->q && b->perm && b->count.sizes;
    if (ok) b->shuffled = b->q + j->R, b->place = b->perm + j->R;
    return ok;
}

/* Deviations of one cell in stored order (b->q on entry: realised probabilities, all positive). */
static void deviations(const job *j, worker *b, sums *a) {
    int64_t R = j->R;
    double mean = 0;
    for (int64_t rho = 0; rho < R; rho++) mean += b->q[rho];
    mean /= (double)R;
    double square = 0, slope = 0, centre = 0.5 * (double)(R - 1);
    for (int64_t rho = 0; rho < R; rho++) {
        double d = b->q[rho] / mean - 1;
        if (fabs(d) <= ROUNDING) d = 0;
        b->q[rho] = d;
        square += d * d;
        a->d3 += d * d * d;
        a->d4 += d * d * d * d;
        slope += ((double)rho - centre) * d;
        if (fabs(d) > a->d_max) a->d_max = fabs(d);
        tv_histogram_add(&b->count.deviation, fabs(d));
    }
    a->d2 += square;
    a->tracked++;
    for (int lag = 1; lag <= j->n_lags; lag++)
        for (int64_t rho = 0; rho + lag < R; rho++) a->lagged[lag - 1] += b->q[rho] * b->q[rho + lag];
    for (int64_t rho = 0; rho < R; rho++) b->shuffled[rho] = b->q[b->perm[rho]];
    for (int64_t rho = 0; rho + 1 < R; rho++) a->lagged_permuted += b->shuffled[rho] * b->shuffled[rho + 1];
    double sxx = (double)R * ((double)R * (double)R - 1) / 12;
    a->slope2 += slope * slope;
    a->slope2_expected += square / (double)(R - 1) * sxx;
}

/* One cell: its reads are decoded in p + rho CHUNK k. sums of the union: 0, 1 halves in the chosen order, 2, 3 stored.
 */
static void cell(const job *j, worker *b, int64_t i, int64_t t, int64_t in_chunk, sums *a) {
    const tv_set *set = &j->data->set[j->s];
    int64_t R = j->R, h = R / 2, k = j->k, n = j->data->n;
    int32_t token = set->tokens[i * n + t];
    tv_union *u = &b->u;
    u->n = 0;
    tv_cell_permutation(R, j->o->seed, j->o->replicate, j->e, j->s, i, t, b->perm);
    for (int64_t rho = 0; rho < R; rho++) b->place[b->perm[rho]] = (int32_t)rho;
    int size = 0;
    double half[2] = {0, 0};
    int seen = 1;
    for (int64_t rho = 0; rho < R; rho++) {
        const int32_t *ids = tv_row_ids(j->data, j->s, j->e, tv_read_index(set, j->e, rho), i) + t * k;
        const double *p = b->p + (rho * CHUNK + in_chunk) * k;
        int64_t place = j->o->stored_order ? rho : b->place[rho];
        int side = place < h ? 0 : place < 2 * h ? 1 : -1, stored = rho < h ? 2 : rho < 2 * h ? 3 : -1;
        b->q[rho] = 0;
        for (int64_t slot = 0; slot < k; slot++) {
            if (ids[slot] < 0 || (p[slot] == 0 && j->o->readout.readout)) continue; /* outside the readout */
            int64_t at = tv_union_at(u, ids[slot], slot);
            if (side >= 0) u->sum[side][at] += p[slot];
            if (stored >= 0) u->sum[stored][at] += p[slot];
            if (ids[slot] == token) b->q[rho] = p[slot];
        }
        if (side >= 0) half[side] += b->q[rho];
        seen = seen && b->q[rho] > 0;
        if (rho + 1 == j->size_r[size]) {
            a->size_sum[size] += u->n;
            if (u->n > a->size_max[size]) a->size_max[size] = u->n;
            b->count.sizes[size * (j->cap + 1) + u->n]++;
            size++;
        }
    }
    a->cells++;
    if (R < 2) return;
    double chi2 = 0, stored = 0, H = (double)h;
    for (int64_t x = 0; x < u->n; x++) {
        double d = (u->sum[0][x] - u->sum[1][x]) / H, m = (u->sum[0][x] + u->sum[1][x]) / H;
        double ds = (u->sum[2][x] - u->sum[3][x]) / H, ms = (u->sum[2][x] + u->sum[3][x]) / H;
        if (fabs(d) > ROUNDING * m) chi2 += d * d / m;
        if (fabs(ds) > ROUNDING * ms) stored += ds * ds / ms;
    }
    chi2 *= H;
    a->chi2 += chi2;
    a->chi2_stored += stored * H;
    if (chi2 > a->chi2_max) a->chi2_max = chi2;
    tv_histogram_add(&b->count.chi2, chi2);
    if (half[0] > 0 && half[1] > 0) {
        double d = (half[0] - half[1]) / H, m = 0.5 * (half[0] + half[1]) / H;
        double value = fabs(d) > ROUNDING * m ? 0.5 * H * d * d / (m * m) : 0;
        a->realised += value;
        a->realised_max = fmax(a->realised_max, value);
        a->realised_cells++;
        tv_histogram_add(&b->count.realised, value);
    }
    if (seen) deviations(j, b, a);
}

static tv_status trajectory(const job *j, worker *b, int64_t i, sums *a, tv_err *err) {
    const tv_set *set = &j->data->set[j->s];
    int64_t k = j->k, length = tv_trajectory_length(j->data, set, i);
    for (int64_t t0 = 0; t0 < length; t0 += CHUNK) {
        int64_t m = length - t0 < CHUNK ? length - t0 : CHUNK;
        for (int64_t rho = 0; rho < j->R; rho++) {
            double *p = b->p + rho * CHUNK * k;
            if (rho >= j->stored) {
                memcpy(p, b->p + (j->stored - 1) * CHUNK * k, (size_t)(CHUNK * k) * sizeof *p);
                continue;
            }
            for (int64_t t = 0; t < m; t++) {
                double mass = tv_row_record(j->data, j->s, j->e, rho, i, t0 + t, j->o->readout, p + t * k);
                if (!(mass >= 0))
                    return TV_FAIL(err, TV_ENUMERIC,
                                   "%s scored by side %c, set %c, pass %lld, trajectory %lld, position %lld: a "
                                   "log-probability is NaN or "
                                   "infinite; that pass is damaged, score it again",
                                   j->data->source ? j->data->source : "data", 'a' + j->e, 'a' + j->s, (long long)rho,
                                   (long long)i, (long long)(t0 + t));
            }
        }
        for (int64_t t = 0; t < m; t++) cell(j, b, i, t0 + t, t, a);
    }
    return TV_OK;
}

static int64_t count_quantile(const uint64_t *count, int64_t bins, double p) {
    uint64_t total = 0, seen = 0;
    for (int64_t i = 0; i < bins; i++) total += count[i];
    for (int64_t i = 0; i < bins; i++) {
        seen += count[i];
        if ((double)seen >= p * (double)total) return i;
    }
    return 0;
}

/* Merges the trajectories' sums in their order into the results. */
static void conclude(const job *j, const sums *all, const counters *count, tv_calibration_part *out) {
    enum { CHI2, STORED, REALISED, D2, D3, D4, LAG_P, SLOPE, EXPECTED, LAGS, N_SUMS = LAGS + TV_CAL_LAGS };
    tv_sum sum[N_SUMS] = {{0, 0}};
    int64_t N = j->data->set[j->s].N, realised = 0, size_sum[TV_CAL_SIZES] = {0};
    for (int64_t i = 0; i < N; i++) {
        const sums *a = &all[i];
        const double add[LAGS] = {a->chi2,   a->chi2_stored,    a->realised, a->d2, a->d3, a->d4, a->lagged_permuted,
                                  a->slope2, a->slope2_expected};
        for (int c = 0; c < LAGS; c++) tv_sum_add(&sum[c], add[c]);
        for (int lag = 0; lag < j->n_lags; lag++) tv_sum_add(&sum[LAGS + lag], a->lagged[lag]);
        out->cells += a->cells, realised += a->realised_cells, out->tracked += a->tracked;
        out->sigma2_union_max = fmax(out->sigma2_union_max, a->chi2_max);
        out->sigma2_realised_max = fmax(out->sigma2_realised_max, a->realised_max);
        out->deviation_max = fmax(out->deviation_max, a->d_max);
        for (int r = 0; r < j->n_sizes; r++) {
            size_sum[r] += a->size_sum[r];
            if (a->size_max[r] > out->size_max[r]) out->size_max[r] = a->size_max[r];
        }
    }
    double v[N_SUMS], cells = (double)(out->cells ? out->cells : 1);
    for (int c = 0; c < N_SUMS; c++) v[c] = tv_sum_value(&sum[c]);
    out->n_sizes = j->n_sizes;
    for (int r = 0; r < j->n_sizes; r++) {
        out->size_r[r] = j->size_r[r];
        out->size_mean[r] = (double)size_sum[r] / cells;
        out->size_p99[r] = count_quantile(count->sizes + r * (j->cap + 1), j->cap + 1, 0.99);
    }
    if (j->R < 2) return;
    out->sigma2_union = v[CHI2] / cells;
    out->sigma2_union_stored = v[STORED] / cells;
    out->sigma2_union_p50 = tv_histogram_quantile(&count->chi2, 0.5);
    out->sigma2_union_p99 = tv_histogram_quantile(&count->chi2, 0.99);
    out->sigma2_realised = realised ? v[REALISED] / (double)realised : NAN;
    out->sigma2_realised_p99 = realised ? tv_histogram_quantile(&count->realised, 0.99) : NAN;
    out->excluded = out->cells - realised;
    double R = (double)j->R, draws = (double)out->tracked * R, correct = sqrt(R / (R - 1));
    if (out->tracked) {
        out->width_variance = sqrt(v[D2] / draws) * correct;
        out->deviation_p50 = tv_histogram_quantile(&count->deviation, 0.5);
        out->deviation_p90 = tv_histogram_quantile(&count->deviation, 0.9);
        out->deviation_p99 = tv_histogram_quantile(&count->deviation, 0.99);
        out->deviation_p999 = tv_histogram_quantile(&count->deviation, 0.999);
        out->width_median = out->deviation_p50 / 0.6744897501960817 * correct;
    }
    out->n_lags = j->n_lags;
    if (v[D2] > 0) {
        out->kurtosis = draws * v[D4] / (v[D2] * v[D2]) - 3;
        /* Each lag has R - lag products a cell against R squares. */
        for (int lag = 1; lag <= j->n_lags; lag++)
            out->autocorrelation[lag - 1] = v[LAGS + lag - 1] / (R - lag) / (v[D2] / R);
        out->autocorrelation_permuted = v[LAG_P] / (R - 1) / (v[D2] / R);
        out->drift = v[SLOPE] / v[EXPECTED];
        tv_sum square = {0, 0};
        for (int64_t i = 0; i < N; i++) {
            double d = all[i].slope2 - all[i].slope2_expected;
            tv_sum_add(&square, d * d);
        }
        double spread = sqrt(tv_sum_value(&square));
        out->drift_z = N > 1 && spread > 0 ? (v[SLOPE] - v[EXPECTED]) / spread : NAN;
    } else {
        out->drift_z = NAN;
    }
}

static tv_status part_run(const tv_dataset *data, const tv_calibrate_options *o, int e, int s, int64_t R,
                          tv_calibration_part *out, tv_err *err) {
    const tv_set *set = &data->set[s];
    int64_t size_r[TV_CAL_SIZES] = {0};
    job j = {data, o, e, s, R, set->reads[e], set->k[e], 0, 0, 0, size_r};
    if (data->deterministic[e]) j.stored = 1;
    j.cap = set->k[e] * (R < j.stored ? R : j.stored);
    for (int64_t r = 1; r < R && j.n_sizes < TV_CAL_SIZES - 1; r *= 2) size_r[j.n_sizes++] = r;
    size_r[j.n_sizes++] = R;
    j.n_lags = (int)(R - 1 < TV_CAL_LAGS ? R - 1 : TV_CAL_LAGS);
    sums *all = calloc((size_t)set->N, sizeof *all);
    counters total = {.sizes = calloc((size_t)(j.n_sizes * (j.cap + 1)), sizeof *total.sizes)};
    tv_status status = TV_OK;
    int64_t first_bad = INT64_MAX;
    tv_err first_err = {0};
    if (!all || !total.sizes) {
        free(all);
        free(total.sizes);
        return TV_FAIL(err, TV_ENOMEM, "no memory for the noise of %lld trajectories", (long long)set->N);
    }
#pragma omp parallel
    {
        worker *b = calloc(1, sizeof *b); /* histograms are too large for a thread's stack */
        int have = b && worker_open(b, &j);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < set->N; i++) {
            tv_err local = {0};
            tv_status got = have
                                ? trajectory(&j, b, i, &all[i], &local)
                                : TV_FAIL(&local, TV_ENOMEM, "no memory to decode %lld reads; use fewer", (long long)R);
            if (got != TV_OK) {
#pragma omp critical(calibrate_error)
                if (i < first_bad) first_bad = i, status = got, first_err = local;
            }
        }
        if (have) {
#pragma omp critical(calibrate_merge)
            {
                tv_histogram_merge(&total.chi2, &b->count.chi2);
                tv_histogram_merge(&total.realised, &b->count.realised);
                tv_histogram_merge(&total.deviation, &b->count.deviation);
                for (int64_t x = 0; x < j.n_sizes * (j.cap + 1); x++) total.sizes[x] += b->count.sizes[x];
            }
        }
        if (b) worker_close(b);
        free(b);
    }
    if (status == TV_OK)
        conclude(&j, all, &total, out);
    else
        tv_err_set(err, status, first_err.file, first_err.line, "%s", first_err.message);
    free(all);
    free(total.sizes);
    return status;
}

tv_status tv_calibrate(const tv_dataset *data, const tv_calibrate_options *options, tv_calibration *out, tv_err *err) {
    static const tv_calibrate_options DEFAULTS = {0};
    const tv_calibrate_options *o = options ? options : &DEFAULTS;
    memset(out, 0, sizeof *out);
    if (o->reads < 0) return TV_FAIL(err, TV_EARG, "reads = %lld", (long long)o->reads);
    TV_TRY(tv_reads_check(data, 1, o->readout, err));
    for (int e = 0; e < 2; e++) {
        int64_t R = tv_reads_stored(data, e);
        if (data->deterministic[e] && R < 2) R = 2;
        if (o->reads && o->reads < R) R = o->reads;
        for (int s = 0; s < 2; s++) TV_TRY(part_run(data, o, e, s, R, &out->part[e][s], err));
        out->R[e] = R >= 2 ? R : 0;
    }
    return TV_OK;
}

static double sigma(double x, double y) { return 0.5 * (sqrt(x) + sqrt(y)); }

double tv_calibration_union(const tv_calibration *c, int e) {
    return c->R[e] ? sigma(c->part[e][TV_A].sigma2_union, c->part[e][TV_B].sigma2_union) : NAN;
}
double tv_calibration_realised(const tv_calibration *c, int e) {
    return c->R[e] ? sigma(c->part[e][TV_A].sigma2_realised, c->part[e][TV_B].sigma2_realised) : NAN;
}
