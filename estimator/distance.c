#include "estimator/distance.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimator/moments.h"
#include "estimator/permute.h"
#include "estimator/slots.h"

enum { CHUNK = 64, GROUP = 8 }; /* records decoded at once; probabilities multiplied before one logarithm is taken */

static const char *const SIDE[2] = {"a", "b"};

int64_t tv_reads_stored(const tv_dataset *data, int e) {
    return data->set[TV_A].reads[e] < data->set[TV_B].reads[e] ? data->set[TV_A].reads[e] : data->set[TV_B].reads[e];
}

int64_t tv_reads_usable(const tv_dataset *data) {
    int64_t a = tv_reads_stored(data, TV_A), b = tv_reads_stored(data, TV_B);
    if (data->deterministic[TV_A] && data->deterministic[TV_B]) {
        int64_t most = a > b ? a : b;
        return most > 2 ? most : 2;
    }
    if (data->deterministic[TV_A]) return b;
    if (data->deterministic[TV_B]) return a;
    return a < b ? a : b;
}

tv_status tv_reads_check(const tv_dataset *data, int64_t R, tv_readout readout, tv_err *err) {
    if (R < 1) return TV_FAIL(err, TV_EARG, "reads = %lld; at least 1 is needed", (long long)R);
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++) {
            const tv_set *set = &data->set[s];
            if (set->N < 1) return TV_FAIL(err, TV_EARG, "set %s holds no trajectory", SIDE[s]);
            if (set->reads[e] < 1)
                return TV_FAIL(err, TV_EARG, "set %s has no pass scored by side %s", SIDE[s], SIDE[e]);
            if (set->reads[e] < R && !data->deterministic[e])
                return TV_FAIL(err, TV_EARG,
                               "reads = %lld, but side %s stored %lld pass%s over set %s; ask for at most %lld",
                               (long long)R, SIDE[e], (long long)set->reads[e], set->reads[e] == 1 ? "" : "es", SIDE[s],
                               (long long)tv_reads_usable(data));
            if (data->folded.side[e] && (readout.raw || readout.readout != data->folded.readout))
                return TV_FAIL(err, TV_EARG,
                               "readout = %d%s, but the passes of side %s were folded over readout %d (0 = all slots), "
                               "renormalised; measure again with --keep-passes yes, or fold with that readout",
                               readout.readout, readout.raw ? ", raw" : "", SIDE[e], data->folded.readout);
            if (readout.readout < 0 || readout.readout > set->k[e])
                return TV_FAIL(err, TV_EARG,
                               "readout = %d, but side %s stored %lld slots a position over set %s; ask for 1 to %lld",
                               readout.readout, SIDE[e], (long long)set->k[e], SIDE[s], (long long)set->k[e]);
        }
    if (data->n < 1) return TV_FAIL(err, TV_EARG, "trajectories of length %lld", (long long)data->n);
    return TV_OK;
}

/* Sum of w [k] in four interleaved lanes, added in the order of tv_slots_realised: a fixed order, and a fast one. */
static double lane_sum(const double *w, int64_t k) {
    double lane[4] = {0, 0, 0, 0};
    int64_t j = 0;
    for (; j + 4 <= k; j += 4)
        for (int l = 0; l < 4; l++) lane[l] += w[j + l];
    for (int l = 0; j + l < k; l++) lane[l] += w[j + l];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

/* Zeroes what lies outside the k' most likely slots (ties by lowest id). */
static void keep_most_likely(const int32_t *ids, const float *lps, int64_t k, int keep, double *w) {
    int sorted = 1;
    for (int64_t j = 1; j < k && sorted; j++)
        sorted =
            ids[j] < 0 || (ids[j - 1] >= 0 && (lps[j - 1] > lps[j] || (lps[j - 1] == lps[j] && ids[j - 1] < ids[j])));
    if (sorted) {
        for (int64_t j = keep; j < k; j++) w[j] = 0;
        return;
    }
    for (int64_t j = 0; j < k; j++) {
        int64_t before = 0;
        if (ids[j] < 0) continue;
        for (int64_t l = 0; l < k; l++)
            before += ids[l] >= 0 && (lps[l] > lps[j] || (lps[l] == lps[j] && ids[l] < ids[j]));
        if (before >= keep) w[j] = 0;
    }
}

/* Mass of one decoded record whose w [k] is narrowed to the readout; NaN for input that is no log-probability. */
static double record_mass(const int32_t *ids, const float *lps, int64_t k, tv_readout readout, double *w) {
    double all = lane_sum(w, k);
    if (!(all < TV_SLOTS_BROKEN)) return NAN;
    if (readout.readout == 0 || readout.readout >= k) return all;
    keep_most_likely(ids, lps, k, readout.readout, w);
    return lane_sum(w, k);
}

double tv_record_probs(const int32_t *ids, const float *lps, int64_t k, tv_readout readout, double *p) {
    tv_slots_exp(ids, lps, k, p);
    double mass = record_mass(ids, lps, k, readout, p);
    if (!readout.raw && mass > 0) {
#pragma omp simd
        for (int64_t j = 0; j < k; j++) p[j] /= mass;
    }
    return mass;
}

double tv_row_record(const tv_dataset *data, int s, int e, int64_t read, int64_t i, int64_t t, tv_readout readout,
                     double *p) {
    const int64_t k = data->set[s].k[e];
    if (!data->folded.side[e])
        return tv_record_probs(tv_row_ids(data, s, e, read, i) + t * k, tv_row_lps(data, s, e, read, i) + t * k, k,
                               readout, p);
    memcpy(p, tv_row_probs(data, s, e, read, i) + t * k, (size_t)k * sizeof *p);
    return lane_sum(p, k);
}

/* q[t] for m records one after another. Returns -1, or the first record that is faulty, with the reason in *twice. */
static int64_t realised_chunk(const int32_t *tokens, const int32_t *ids, const float *lps, int64_t m, int64_t k,
                              tv_readout readout, double *w, double *q, int *twice) {
    if (readout.readout == 0 || readout.readout >= k)
        return tv_slots_realised(tokens, ids, lps, m, k, readout.raw, w, q, twice);
    tv_slots_exp(ids, lps, m * k, w);
    for (int64_t t = 0; t < m; t++, ids += k, lps += k, w += k) {
        double mass = record_mass(ids, lps, k, readout, w);
        int32_t hits = 0;
        int64_t at = 0;
        for (int64_t j = 0; j < k; j++) {
            int hit = ids[j] == tokens[t] && ids[j] >= 0;
            hits += hit;
            at = hit ? j : at;
        }
        *twice = hits > 1;
        if (hits > 1 || !(mass >= 0)) return t;
        q[t] = !hits ? 0 : readout.raw || mass == 0 ? w[at] : w[at] / mass;
    }
    return -1;
}

/* One trajectory and read; w: [CHUNK*k] scratch. */
static tv_status realised_one(const tv_dataset *data, int e, int s, int64_t rho, int64_t i, tv_readout readout,
                              double *w, double *q, tv_err *err) {
    const tv_set *set = &data->set[s];
    int64_t n = data->n, k = set->k[e], length = tv_trajectory_length(data, set, i), read = tv_read_index(set, e, rho);
    const int32_t *tokens = set->tokens + i * n, *ids = tv_row_ids(data, s, e, read, i);
    for (int64_t t = length; t < n; t++) q[t] = 1;
    if (data->folded.side[e]) {
        const double *p = tv_row_probs(data, s, e, read, i);
        for (int64_t t = 0; t < length; t++) {
            q[t] = 0;
            for (int64_t j = 0; j < k; j++)
                if (ids[t * k + j] == tokens[t]) q[t] = p[t * k + j];
        }
        return TV_OK;
    }
    const float *lps = tv_row_lps(data, s, e, read, i);
    for (int64_t t = 0; t < length; t += CHUNK) {
        int64_t m = length - t < CHUNK ? length - t : CHUNK;
        int twice;
        int64_t bad = realised_chunk(tokens + t, ids + t * k, lps + t * k, m, k, readout, w, q + t, &twice);
        if (bad >= 0)
            return TV_FAIL(err, twice ? TV_EFORMAT : TV_ENUMERIC,
                           "%s scored by side %s, set %s, pass %lld, trajectory %lld, position %lld: %s; that pass is "
                           "damaged, score it again",
                           data->source ? data->source : "data", SIDE[e], SIDE[s], (long long)read, (long long)i,
                           (long long)(t + bad),
                           twice ? "the token is recorded twice" : "a log-probability is NaN or infinite");
    }
    return TV_OK;
}

tv_status tv_realised(const tv_dataset *data, int e, int s, int64_t R, int64_t i0, int64_t i1, tv_readout readout,
                      double *q, tv_err *err) {
    TV_TRY(tv_reads_check(data, R, readout, err));
    if (i0 < 0 || i1 > data->set[s].N || i0 > i1)
        return TV_FAIL(err, TV_EARG, "trajectories %lld..%lld of %lld", (long long)i0, (long long)i1,
                       (long long)data->set[s].N);
    double *w = malloc((size_t)CHUNK * (size_t)data->set[s].k[e] * sizeof *w);
    if (!w) return TV_FAIL(err, TV_ENOMEM, "no memory to decode a block of records");
    tv_status status = TV_OK;
    int64_t n = data->n, rows = i1 - i0, stored = data->set[s].reads[e];
    for (int64_t rho = 0; rho < R && status == TV_OK; rho++)
        for (int64_t i = i0; i < i1 && status == TV_OK; i++) {
            double *row = q + (size_t)(rho * rows + i - i0) * (size_t)n;
            if (rho < stored)
                status = realised_one(data, e, s, rho, i, readout, w, row, err);
            else
                memcpy(row, q + (size_t)((stored - 1) * rows + i - i0) * (size_t)n, (size_t)n * sizeof *row);
        }
    free(w);
    return status;
}

double tv_z(double log_x, double log_y) {
    if (log_x == -INFINITY || log_y == -INFINITY) return 1;
    return tanh(fabs(log_x - log_y) * 0.5);
}

double tv_likelihood_ratio(double log_own, double log_other) {
    if (log_own == -INFINITY) return 0;
    if (log_other == -INFINITY) return 1;
    return fmax(-expm1(log_other - log_own), 0);
}

/* log of the product of m <= GROUP factors in [0,1+]; falls back to single logarithms before the product underflows. */
static double group_log(const double *q, int64_t m, int64_t stride) {
    double product = 1;
    for (int64_t t = 0; t < m; t++) product *= q[t * stride];
    if (product > 1e-290) return log(product);
    double sum = 0;
    for (int64_t t = 0; t < m; t++) {
        if (q[t * stride] == 0) return -INFINITY;
        sum += log(q[t * stride]);
    }
    return sum;
}

double tv_log_product(const double *q, int64_t n, int64_t stride) {
    double sum = 0;
    for (int64_t t = 0; t < n; t += GROUP) sum += group_log(q + t * stride, n - t < GROUP ? n - t : GROUP, stride);
    return sum;
}

double tv_split_sign(double own_a, double other_a, double own_b, double other_b) {
    const double own[2] = {own_a, own_b}, other[2] = {other_a, other_b};
    double magnitude = 0, sign = 1;
    for (int half = 0; half < 2; half++) {
        double o = own[half], w = other[half];
        magnitude += 0.5 * tv_z(o, w);
        if (w == -INFINITY)
            sign *= 1;
        else if (o == -INFINITY)
            sign *= -1;
        else
            sign *= (o > w) - (o < w);
    }
    return magnitude * sign;
}

/* ----------------------------------------------------------------------------------------------------------------------
 */

/* Buffers of one thread; all inside one allocation. */
typedef struct {
    double *q[2];                 /* [R,n] realised probabilities of scorers a and b */
    double *p;                    /* [R,n] the shuffled reads of one scorer (floors only) */
    double *sum, *mean[2], *half; /* [n] */
    double *w;                    /* [CHUNK,k] */
    int32_t *perm;                /* [R] */
    void *base;
} worker;

static int worker_open(worker *b, const tv_dataset *data, int64_t R, int floors) {
    size_t n = (size_t)data->n, cells = (size_t)R * n, k = 0;
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++)
            if ((size_t)data->set[s].k[e] > k) k = (size_t)data->set[s].k[e];
    size_t doubles = 2 * cells + (floors ? cells : 0) + 4 * n + CHUNK * k;
    double *at = b->base = malloc(doubles * sizeof *at + (size_t)R * sizeof *b->perm);
    if (!at) return 0;
    b->q[0] = at, at += cells;
    b->q[1] = at, at += cells;
    b->p = at, at += floors ? cells : 0;
    b->sum = at, at += n;
    b->mean[0] = at, at += n;
    b->mean[1] = at, at += n;
    b->half = at, at += n;
    b->w = at, at += CHUNK * k;
    b->perm = (int32_t *)at;
    return 1;
}

/* Shuffles the reads of every cell of one trajectory: to[rho,t] = from[perm[rho],t]; to and from [R,n], apart. */
static void shuffle_reads(const double *from, double *to, int64_t R, int64_t n, const tv_distance_options *o, int e,
                          int s, int64_t i, int32_t *perm) {
    for (int64_t t = 0; t < n; t++) {
        tv_cell_permutation(R, o->seed, o->replicate, e, s, i, t, perm);
        for (int64_t rho = 0; rho < R; rho++) to[rho * n + t] = from[perm[rho] * n + t];
    }
}

/* Z of reads 0..r-1 against r..2r-1 for every r up to h; p [R,n] becomes running sums. */
static void floor_one(double *p, int64_t n, int64_t length, int64_t h, int64_t N, int64_t i, double *mean, double *half,
                      double *z) {
    for (int64_t rho = 1; rho < 2 * h; rho++)
        for (int64_t t = 0; t < length; t++) p[rho * n + t] += p[(rho - 1) * n + t];
    for (int64_t r = 1; r <= h; r++) {
        const double *first = p + (r - 1) * n, *both = p + (2 * r - 1) * n;
        /* A sum minus its own prefix is exactly 0 where the later reads are 0, so a dead half stays dead. */
        for (int64_t t = 0; t < length; t++) mean[t] = first[t] / (double)r, half[t] = (both[t] - first[t]) / (double)r;
        z[(r - 1) * N + i] = tv_z(tv_log_product(mean, length, 1), tv_log_product(half, length, 1));
    }
}

static tv_status trajectory_run(const tv_dataset *data, const tv_distance_options *o, int64_t R, int s, int64_t i,
                                worker *b, tv_distance_set *out, tv_err *err) {
    const tv_set *set = &data->set[s];
    int64_t n = data->n, N = set->N, h = R / 2, length = tv_trajectory_length(data, set, i);
    size_t row = (size_t)n * sizeof(double);
    for (int e = 0; e < 2; e++) {
        int64_t different = data->deterministic[e] ? 1 : R; /* reads that can differ */
        for (int64_t rho = 0; rho < different; rho++)
            TV_TRY(realised_one(data, e, s, rho, i, o->readout, b->w, b->q[e] + rho * n, err));
        double *mean = b->mean[e];
        if (data->deterministic[e]) { /* every average is the one read itself, to the bit */
            memcpy(mean, b->q[e], row);
            double value = tv_log_product(mean, length, 1);
            for (int64_t r = 0; r < R; r++) out->log[e][r * N + i] = value;
            for (int half = 0; half < 2 && h; half++) out->half[e][half][i] = value;
            for (int64_t r = 0; r < h && o->floors; r++) out->floor_z[e][r * N + i] = 0;
            continue;
        }
        double *q = b->q[e];
        if (o->permute) {
            q = b->p;
            shuffle_reads(b->q[e], q, R, n, o, e, s, i, b->perm);
        }
        memset(b->sum, 0, row);
        for (int64_t r = 1; r <= R; r++) {
            const double *read = q + (r - 1) * n;
            double *sum = b->sum, reads = (double)r;
#pragma omp simd
            for (int64_t t = 0; t < length; t++) {
                sum[t] += read[t];
                mean[t] = sum[t] / reads;
            }
            out->log[e][(r - 1) * N + i] = tv_log_product(mean, length, 1);
        }
        if (h) {
            memset(b->half, 0, row);
            for (int64_t rho = h; rho < 2 * h; rho++)
                for (int64_t t = 0; t < length; t++) b->half[t] += q[rho * n + t];
            for (int64_t t = 0; t < length; t++) b->half[t] /= (double)h;
            out->half[e][0][i] = out->log[e][(h - 1) * N + i];
            out->half[e][1][i] = tv_log_product(b->half, length, 1);
        }
        if (o->floors) {
            if (o->permute_floors && !o->permute)
                shuffle_reads(b->q[e], b->p, R, n, o, e, s, i, b->perm);
            else if (!o->permute)
                memcpy(b->p, b->q[e], (size_t)R * row);
            floor_one(b->p, n, length, h, N, i, b->sum, b->half, out->floor_z[e]);
        }
    }
    int64_t dead = 0;
    while (dead < length && b->mean[0][dead] > 0 && b->mean[1][dead] > 0) dead++;
    out->dead_at[i] = dead < length ? dead : n;
    double whole[2] = {0, 0}; /* of complete groups, so that a prefix has the bits of tv_log_product over it */
    int64_t done = 0;
    for (int64_t l = 0; l < o->n_lengths; l++) {
        int64_t end = o->lengths[l] < length ? o->lengths[l] : length;
        double logs[2];
        for (; done + GROUP <= end; done += GROUP)
            for (int e = 0; e < 2; e++) whole[e] += group_log(b->mean[e] + done, GROUP, 1);
        for (int e = 0; e < 2; e++)
            logs[e] = end > done ? whole[e] + group_log(b->mean[e] + done, end - done, 1) : whole[e];
        out->prefix_z[l * N + i] = tv_z(logs[0], logs[1]);
    }
    return TV_OK;
}

static int set_alloc(tv_distance_set *set, int64_t N, int64_t R, const tv_distance_options *o) {
    int64_t h = R / 2;
    set->N = N;
    int ok = (set->dead_at = malloc((size_t)N * sizeof *set->dead_at)) != NULL;
    if (o->n_lengths) ok = ok && (set->prefix_z = malloc((size_t)(o->n_lengths * N) * sizeof(double))) != NULL;
    for (int e = 0; e < 2; e++) {
        ok = ok && (set->log[e] = malloc((size_t)(R * N) * sizeof(double))) != NULL;
        for (int half = 0; half < 2 && h; half++)
            ok = ok && (set->half[e][half] = malloc((size_t)N * sizeof(double))) != NULL;
        if (o->floors && h) ok = ok && (set->floor_z[e] = malloc((size_t)(h * N) * sizeof(double))) != NULL;
    }
    return ok;
}

static tv_status set_run(const tv_dataset *data, const tv_distance_options *o, int64_t R, int s, tv_distance_set *out,
                         tv_err *err) {
    int64_t N = data->set[s].N, first_bad = INT64_MAX;
    tv_status status = TV_OK;
    tv_err first_err = {0};
#pragma omp parallel
    {
        worker b = {0};
        int have = worker_open(&b, data, R, o->floors || o->permute);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < N; i++) {
            tv_err local = {0};
            tv_status got =
                have ? trajectory_run(data, o, R, s, i, &b, out, &local)
                     : TV_FAIL(&local, TV_ENOMEM, "no memory for %lld reads of %lld positions; use fewer reads",
                               (long long)R, (long long)data->n);
            if (got != TV_OK) {
#pragma omp critical
                if (i < first_bad) first_bad = i, status = got, first_err = local;
            }
        }
        free(b.base);
    }
    if (status != TV_OK) tv_err_set(err, status, first_err.file, first_err.line, "%s", first_err.message);
    return status;
}

tv_status tv_distance_run(const tv_dataset *data, const tv_distance_options *options, tv_distance *out, tv_err *err) {
    static const tv_distance_options DEFAULTS = {0};
    tv_distance_options o = options ? *options : DEFAULTS;
    memset(out, 0, sizeof *out);
    int64_t R = o.reads ? o.reads : tv_reads_usable(data);
    TV_TRY(tv_reads_check(data, R, o.readout, err));
    if (R > INT32_MAX) return TV_FAIL(err, TV_EARG, "reads = %lld; at most %d", (long long)R, INT32_MAX);
    for (int64_t l = 0; l < o.n_lengths; l++)
        if (o.lengths[l] < 1 || o.lengths[l] > data->n || (l && o.lengths[l] <= o.lengths[l - 1]))
            return TV_FAIL(err, TV_EARG, "prefix length %lld: lengths must ascend from 1 to %lld",
                           (long long)o.lengths[l], (long long)data->n);
    if (R < 2) o.floors = 0;
    out->n = data->n, out->R = R, out->h = R / 2, out->n_lengths = o.n_lengths;
    tv_status status = TV_OK;
    for (int s = 0; s < 2 && status == TV_OK; s++) {
        if (!set_alloc(&out->set[s], data->set[s].N, R, &o))
            status =
                TV_FAIL(err, TV_ENOMEM, "no memory for the results of %lld trajectories", (long long)data->set[s].N);
        else
            status = set_run(data, &o, R, s, &out->set[s], err);
    }
    if (status != TV_OK) tv_distance_free(out);
    return status;
}

void tv_distance_free(tv_distance *d) {
    for (int s = 0; s < 2; s++) {
        tv_distance_set *set = &d->set[s];
        for (int e = 0; e < 2; e++) {
            free(set->log[e]);
            free(set->half[e][0]);
            free(set->half[e][1]);
            free(set->floor_z[e]);
        }
        free(set->prefix_z);
        free(set->dead_at);
    }
    memset(d, 0, sizeof *d);
}

/* ----------------------------------------------------------------------------------------------------------------------
 */

double tv_mean(const double *x, int64_t n) {
    tv_sum sum = {0, 0};
    for (int64_t i = 0; i < n; i++) tv_sum_add(&sum, x[i]);
    return tv_sum_value(&sum) / (double)n;
}

void tv_distance_z(const tv_distance *d, int s, int64_t r, double *z) {
    const tv_distance_set *set = &d->set[s];
    for (int64_t i = 0; i < set->N; i++)
        z[i] = tv_z(set->log[0][(r - 1) * set->N + i], set->log[1][(r - 1) * set->N + i]);
}

void tv_distance_likelihood_ratio(const tv_distance *d, int s, int64_t r, double *x) {
    const tv_distance_set *set = &d->set[s];
    for (int64_t i = 0; i < set->N; i++)
        x[i] = tv_likelihood_ratio(set->log[s][(r - 1) * set->N + i], set->log[!s][(r - 1) * set->N + i]);
}

void tv_distance_jackknife(const tv_distance *d, int s, double *x) {
    const tv_distance_set *set = &d->set[s];
    TV_ASSERT(d->h >= 1);
    tv_distance_z(d, s, 2 * d->h, x);
    for (int64_t i = 0; i < set->N; i++)
        x[i] = tv_jackknife(x[i], tv_z(set->half[0][0][i], set->half[1][0][i]),
                            tv_z(set->half[0][1][i], set->half[1][1][i]));
}

void tv_distance_split_sign(const tv_distance *d, int s, double *x) {
    const tv_distance_set *set = &d->set[s];
    TV_ASSERT(d->h >= 1);
    for (int64_t i = 0; i < set->N; i++)
        x[i] = tv_split_sign(set->half[s][0][i], set->half[!s][0][i], set->half[s][1][i], set->half[!s][1][i]);
}

tv_plugin tv_plugin_at(const tv_distance *d, int64_t r) {
    tv_plugin p;
    TV_ASSERT(r >= 1 && r <= d->R);
    for (int s = 0; s < 2; s++) {
        const tv_distance_set *set = &d->set[s];
        tv_sum all = {0, 0}, alive = {0, 0};
        int64_t dead[2] = {0, 0}, either = 0, both = 0;
        for (int64_t i = 0; i < set->N; i++) {
            double a = set->log[0][(r - 1) * set->N + i], b = set->log[1][(r - 1) * set->N + i], z = tv_z(a, b);
            int da = a == -INFINITY, db = b == -INFINITY;
            dead[0] += da, dead[1] += db, either += da || db, both += da && db;
            tv_sum_add(&all, z);
            if (!da && !db) tv_sum_add(&alive, z);
        }
        double N = (double)set->N;
        p.tv[s] = tv_sum_value(&all) / N;
        p.shared[s] = tv_sum_value(&alive) / N;
        p.mismatch[s] = (double)either / N;
        p.dead_both[s] = (double)both / N;
        for (int e = 0; e < 2; e++) p.dead[s][e] = (double)dead[e] / N;
    }
    p.tv_sym = 0.5 * (p.tv[0] + p.tv[1]);
    p.mismatch_sym = 0.5 * (p.mismatch[0] + p.mismatch[1]);
    p.shared_sym = 0.5 * (p.shared[0] + p.shared[1]);
    return p;
}

tv_readout tv_readout_choose(const tv_dataset *data, int64_t asked) {
    tv_readout readout = {(int)asked, 0};
    if (!asked && data->folded.any) readout.readout = data->folded.readout;
    if (asked || data->folded.any || data->top_k <= 0) return readout;
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++)
            if (data->top_k > data->set[s].k[e]) return readout;
    readout.readout = data->top_k;
    return readout;
}
