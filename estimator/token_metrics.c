#include "estimator/token_metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/moments.h"
#include "estimator/union.h"

enum { SUMS_A, SUMS_B };
static const double FIXED = 0x1p40; /* token TV is at most 1: sums of multiples of 2^-40 are exact in any order */

/* Sums over one trajectory; merged in order. */
typedef struct {
    double tv, js, kl[2], overlap;
    double delta, delta2, delta_abs, k3, chi2, error;
    int64_t cells, empty, kl_cells[2], infinite[2], same, delta_cells, first_flip;
    int dead, near_tie;
} sums;

typedef struct {
    tv_histogram tv, js, kl[2], neg, pos, margin;
    double max_tv, max_js, max_kl[2], delta_min, delta_max;
    int64_t position_cells[TV_POSITIONS], position_flips[TV_POSITIONS];
    uint64_t position_tv[TV_POSITIONS];
    int64_t n_worst;
    tv_worst_token worst[TV_WORST];
    int near_tie_unknown;
} counters;

typedef struct {
    tv_union u;
    double *p;      /* [k] one decoded record */
    int8_t *top[2]; /* [capacity] among the k most likely */
    counters count;
} worker;

typedef struct {
    const tv_dataset *data;
    tv_readout readout;
    int s;
    int64_t reads[2], top_k, capacity, k_max;
} job;

double tv_bf16_step(const int32_t *ids, const float *lps, int64_t k, double temperature) {
    double top = -INFINITY, T = temperature > 0 ? temperature : 1;
    for (int64_t j = 0; j < k; j++)
        if (ids[j] >= 0 && lps[j] > top) top = lps[j];
    for (int m = 0; m >= -8; m--) {
        double step = ldexp(1, m), last = 0;
        int fits = 1, different = 0;
        for (int64_t j = 0; j < k && fits; j++) {
            if (ids[j] < 0 || lps[j] == -INFINITY) continue;
            double gap = (top - lps[j]) * T / step;
            fits = fabs(gap - nearbyint(gap)) <= 0.02;
            if (gap > 0.5 && fabs(gap - last) > 0.5) different++, last = gap;
        }
        if (fits && different >= 3) return step;
    }
    return 0x1p-4;
}

/* Bad before good: absent tokens first, by what the other side gave them, then by |delta|; ties by place. */
static int worse(const tv_worst_token *x, const tv_worst_token *y) {
    double kx = isfinite(x->delta) ? fabs(x->delta) : 1e6 + fmax(x->p[0], x->p[1]);
    double ky = isfinite(y->delta) ? fabs(y->delta) : 1e6 + fmax(y->p[0], y->p[1]);
    if (kx != ky) return kx > ky;
    if (x->set != y->set) return x->set < y->set;
    if (x->trajectory != y->trajectory) return x->trajectory < y->trajectory;
    return x->position < y->position;
}

static void worst_add(counters *c, const tv_worst_token *w) {
    if (c->n_worst == TV_WORST && !worse(w, &c->worst[TV_WORST - 1])) return;
    int64_t at = c->n_worst < TV_WORST ? c->n_worst++ : TV_WORST - 1;
    for (; at > 0 && worse(w, &c->worst[at - 1]); at--) c->worst[at] = c->worst[at - 1];
    c->worst[at] = *w;
}

/* Gap in nats between the trajectory's token and the last slot that scorer e recorded (the smallest over its reads),
 * and whether it is under one bf16 step. NaN: token_logprobs are not stored. */
static double gap_to_last_slot(const job *j, int e, int64_t i, int64_t t, int *near_tie) {
    const tv_set *set = &j->data->set[j->s];
    int64_t k = set->k[e];
    double best = INFINITY;
    *near_tie = 0;
    if (!set->own_lp[e]) return NAN;
    for (int64_t rho = 0; rho < j->reads[e]; rho++) {
        const int32_t *ids = tv_row_ids(j->data, j->s, e, rho, i) + t * k;
        const float *lps = tv_row_lps(j->data, j->s, e, rho, i) + t * k;
        double last = INFINITY, own = tv_row_own_lp(j->data, j->s, e, rho, i)[t];
        for (int64_t x = 0; x < k; x++)
            if (ids[x] >= 0 && lps[x] < last && lps[x] > -INFINITY) last = lps[x];
        if (!(last < INFINITY)) continue;
        double gap = last - own, T = j->data->temperature > 0 ? j->data->temperature : 1;
        if (gap < best) best = gap;
        if (gap * T < tv_bf16_step(ids, lps, k, T)) *near_tie = 1;
    }
    return best < 0 ? 0 : best;
}

/* Marks the top_k most likely ids (ties by lowest id) and finds the two most likely; returns how many are marked. */
static int64_t mark_top(const job *j, const tv_union *u, int which, int8_t *top, int64_t *first, double *second) {
    const double *p = u->sum[which];
    int64_t positive = 0, marked = 0;
    *first = -1;
    *second = 0;
    for (int64_t x = 0; x < u->n; x++) {
        positive += p[x] > 0;
        if (p[x] > 0 && (*first < 0 || p[x] > p[*first] || (p[x] == p[*first] && u->ids[x] < u->ids[*first])))
            *first = x;
    }
    for (int64_t x = 0; x < u->n; x++)
        if (x != *first && p[x] > *second) *second = p[x];
    for (int64_t x = 0; x < u->n; x++) {
        top[x] = p[x] > 0;
        if (positive > j->top_k && p[x] > 0) {
            int64_t before = 0;
            for (int64_t y = 0; y < u->n; y++) before += p[y] > p[x] || (p[y] == p[x] && u->ids[y] < u->ids[x]);
            top[x] = before < j->top_k;
        }
        marked += top[x];
    }
    return marked;
}

static void note(tv_histogram *h, double *max, double x) {
    tv_histogram_add(h, x);
    if (x > *max) *max = x;
}

/* log p1 - log p2 of the side that sampled. */
static double margin_of(const job *j, const tv_union *u) {
    const double *p = u->sum[j->s];
    double first = 0, second = 0;
    for (int64_t x = 0; x < u->n; x++)
        if (p[x] > first)
            second = first, first = p[x];
        else if (p[x] > second)
            second = p[x];
    return log(first) - log(second);
}

static void own_token(const job *j, worker *b, int64_t i, int64_t t, const double q[2], sums *a) {
    const tv_set *set = &j->data->set[j->s];
    counters *c = &b->count;
    tv_worst_token w = {j->s, i, t, set->tokens[i * j->data->n + t], {q[0], q[1]}, 0, margin_of(j, &b->u), NAN};
    if (q[0] > 0 && q[1] > 0) {
        double delta = log(q[1]) - log(q[0]);
        a->delta += delta, a->delta2 += delta * delta, a->delta_abs += fabs(delta), a->delta_cells++;
        tv_histogram_add(delta < 0 ? &c->neg : &c->pos, fabs(delta));
        c->delta_min = fmin(c->delta_min, delta);
        c->delta_max = fmax(c->delta_max, delta);
        double l = j->s == TV_A ? delta : -delta;
        l = fmin(fmax(l, -20), 20);
        a->k3 += expm1(l) - l, a->chi2 += expm1(2 * l), a->error += exp(fabs(l));
        w.delta = delta;
        if (delta != 0) worst_add(c, &w);
        return;
    }
    w.delta = q[0] > 0 ? -INFINITY : q[1] > 0 ? INFINITY : NAN;
    int all_near = 1;
    for (int e = 0; e < 2; e++) {
        if (q[e] > 0) continue;
        int near_tie;
        double gap = gap_to_last_slot(j, e, i, t, &near_tie);
        if (isnan(gap)) c->near_tie_unknown = 1;
        all_near = all_near && near_tie;
        if (!(w.gap >= gap)) w.gap = gap;
    }
    if (!isfinite(w.gap)) w.gap = NAN;
    a->near_tie = a->dead ? a->near_tie && all_near : all_near;
    a->dead = 1;
    worst_add(c, &w);
}

static void cell(const job *j, worker *b, int64_t i, int64_t t, sums *a) {
    tv_union *u = &b->u;
    counters *c = &b->count;
    double mass[2] = {0, 0}, q[2] = {0, 0};
    int32_t token = j->data->set[j->s].tokens[i * j->data->n + t];
    for (int64_t x = 0; x < u->n; x++)
        for (int e = 0; e < 2; e++) {
            mass[e] += u->sum[e][x];
            if (u->ids[x] == token) q[e] = u->sum[e][x];
        }
    own_token(j, b, i, t, q, a);
    if (!(mass[0] > 0) || !(mass[1] > 0)) {
        a->empty++;
        return;
    }
    double tv = 0, js = 0, shared[2] = {0, 0};
    int lacks[2] = {0, 0};
    for (int64_t x = 0; x < u->n; x++) {
        double pa = u->sum[0][x], pb = u->sum[1][x], m = 0.5 * (pa + pb);
        tv += fabs(pa - pb);
        if (pa > 0) js += pa * log(pa / m);
        if (pb > 0) js += pb * log(pb / m);
        if (pa > 0 && pb > 0) shared[0] += pa, shared[1] += pb;
        lacks[0] |= pa > 0 && !(pb > 0);
        lacks[1] |= pb > 0 && !(pa > 0);
    }
    tv = fmin(0.5 * tv, 1), js = fmax(0.5 * js, 0);
    double kl[2] = {0, 0};
    for (int64_t x = 0; x < u->n && shared[0] > 0 && shared[1] > 0; x++) {
        double pa = u->sum[0][x] / shared[0], pb = u->sum[1][x] / shared[1];
        if (pa > 0 && pb > 0) kl[0] += pa * log(pa / pb), kl[1] += pb * log(pb / pa);
    }
    a->cells++, a->tv += tv, a->js += js;
    note(&c->tv, &c->max_tv, tv);
    note(&c->js, &c->max_js, js);
    for (int e = 0; e < 2; e++) {
        a->infinite[e] += lacks[e];
        if (!(shared[0] > 0 && shared[1] > 0)) continue;
        kl[e] = fmax(kl[e], 0);
        a->kl[e] += kl[e], a->kl_cells[e]++;
        note(&c->kl[e], &c->max_kl[e], kl[e]);
    }
    int64_t first[2], marked[2], common = 0;
    double second[2];
    for (int e = 0; e < 2; e++) marked[e] = mark_top(j, u, e, b->top[e], &first[e], &second[e]);
    for (int64_t x = 0; x < u->n; x++) common += b->top[0][x] && b->top[1][x];
    a->overlap += (double)common / (double)(marked[0] > marked[1] ? marked[0] : marked[1]);
    int64_t bucket = t * (j->data->n < TV_POSITIONS ? j->data->n : TV_POSITIONS) / j->data->n;
    c->position_cells[bucket]++;
    c->position_tv[bucket] += (uint64_t)(tv * FIXED);
    if (first[0] == first[1]) {
        a->same++;
    } else {
        c->position_flips[bucket]++;
        if (a->first_flip < 0) a->first_flip = t;
        double p1 = u->sum[j->s][first[j->s]], p2 = second[j->s];
        if (p2 > 0) tv_histogram_add(&c->margin, log(p1) - log(p2));
    }
}

static tv_status trajectory(const job *j, worker *b, int64_t i, sums *a, tv_err *err) {
    const tv_set *set = &j->data->set[j->s];
    int64_t length = tv_trajectory_length(j->data, set, i);
    a->first_flip = -1;
    for (int64_t t = 0; t < length; t++) {
        b->u.n = 0;
        for (int e = 0; e < 2; e++) {
            int64_t k = set->k[e];
            for (int64_t rho = 0; rho < j->reads[e]; rho++) {
                const int32_t *ids = tv_row_ids(j->data, j->s, e, rho, i) + t * k;
                if (!(tv_row_record(j->data, j->s, e, rho, i, t, j->readout, b->p) >= 0))
                    return TV_FAIL(err, TV_ENUMERIC,
                                   "%s scored by side %c, set %c, pass %lld, trajectory %lld, position %lld: a "
                                   "log-probability is NaN or "
                                   "infinite; that pass is damaged, score it again",
                                   j->data->source ? j->data->source : "data", 'a' + e, 'a' + j->s, (long long)rho,
                                   (long long)i, (long long)t);
                for (int64_t x = 0; x < k; x++)
                    if (b->p[x] > 0) b->u.sum[e][tv_union_at(&b->u, ids[x], x)] += b->p[x];
            }
            for (int64_t x = 0; x < b->u.n; x++) b->u.sum[e][x] /= (double)j->reads[e];
        }
        cell(j, b, i, t, a);
    }
    return TV_OK;
}

static void counters_merge(counters *a, const counters *b) {
    tv_histogram_merge(&a->tv, &b->tv);
    tv_histogram_merge(&a->js, &b->js);
    tv_histogram_merge(&a->neg, &b->neg);
    tv_histogram_merge(&a->pos, &b->pos);
    tv_histogram_merge(&a->margin, &b->margin);
    for (int e = 0; e < 2; e++) {
        tv_histogram_merge(&a->kl[e], &b->kl[e]);
        a->max_kl[e] = fmax(a->max_kl[e], b->max_kl[e]);
    }
    a->max_tv = fmax(a->max_tv, b->max_tv), a->max_js = fmax(a->max_js, b->max_js);
    a->delta_min = fmin(a->delta_min, b->delta_min), a->delta_max = fmax(a->delta_max, b->delta_max);
    for (int x = 0; x < TV_POSITIONS; x++) {
        a->position_cells[x] += b->position_cells[x];
        a->position_flips[x] += b->position_flips[x];
        a->position_tv[x] += b->position_tv[x];
    }
    for (int64_t x = 0; x < b->n_worst; x++) worst_add(a, &b->worst[x]);
    a->near_tie_unknown |= b->near_tie_unknown;
}

static void worker_close(worker *b) {
    if (!b) return;
    tv_union_close(&b->u);
    free(b->p);
    free(b->top[0]);
    free(b->top[1]);
    free(b);
}

static worker *worker_open(const job *j) {
    worker *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->p = malloc((size_t)j->k_max * sizeof *b->p);
    for (int e = 0; e < 2; e++) b->top[e] = malloc((size_t)j->capacity);
    if (tv_union_open(&b->u, j->capacity) && b->p && b->top[0] && b->top[1]) return b;
    worker_close(b);
    return NULL;
}

static tv_status set_run(const job *j, sums *all, counters *total, tv_err *err) {
    int64_t N = j->data->set[j->s].N, first_bad = INT64_MAX;
    tv_status status = TV_OK;
    tv_err first_err = {0};
#pragma omp parallel
    {
        worker *b = worker_open(j);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < N; i++) {
            tv_err local = {0};
            tv_status got = b ? trajectory(j, b, i, &all[i], &local)
                              : TV_FAIL(&local, TV_ENOMEM, "no memory for the token metrics");
            if (got != TV_OK) {
#pragma omp critical(token_error)
                if (i < first_bad) first_bad = i, status = got, first_err = local;
            }
        }
        if (b) {
#pragma omp critical(token_merge)
            counters_merge(total, &b->count);
        }
        worker_close(b);
    }
    if (status != TV_OK) tv_err_set(err, status, first_err.file, first_err.line, "%s", first_err.message);
    return status;
}

static int compare_i64(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void summary(tv_token_summary *s, double mean, const tv_histogram *h, double max) {
    *s = (tv_token_summary){mean, fmin(tv_histogram_quantile(h, 0.5), max), fmin(tv_histogram_quantile(h, 0.99), max),
                            max};
}

static void conclude(const tv_dataset *data, sums *const all[2], const counters *c, tv_token_metrics *out) {
    double mean[6] = {0}, infinite[2] = {0, 0};
    int64_t flips = 0, near_ties[2] = {0, 0}, dead = 0;
    double delta = 0, delta2 = 0, delta_abs = 0, delta_weight = 0, kl_weight = 0, weight = 0;
    int64_t *first = tv_xmalloc((size_t)(data->set[0].N + data->set[1].N) * sizeof *first);
    for (int s = 0; s < 2; s++) {
        enum { TV, JS, KL_AB, KL_BA, OVERLAP, DELTA, DELTA2, ABS, K3, CHI2, ERROR, N_SUMS };
        tv_sum sum[N_SUMS] = {{0, 0}};
        int64_t cells = 0, same = 0, kl_cells = 0, delta_cells = 0, inf[2] = {0, 0}, N = data->set[s].N;
        for (int64_t i = 0; i < N; i++) {
            const sums *a = &all[s][i];
            const double add[N_SUMS] = {a->tv,     a->js,        a->kl[0], a->kl[1], a->overlap, a->delta,
                                        a->delta2, a->delta_abs, a->k3,    a->chi2,  a->error};
            for (int x = 0; x < N_SUMS; x++) tv_sum_add(&sum[x], add[x]);
            cells += a->cells, same += a->same, kl_cells += a->kl_cells[0], delta_cells += a->delta_cells,
                out->empty += a->empty;
            inf[0] += a->infinite[0], inf[1] += a->infinite[1];
            if (a->first_flip >= 0) first[flips++] = a->first_flip;
            dead += a->dead, near_ties[s] += a->dead && a->near_tie;
            out->mean_tv[s][i] = a->cells ? a->tv / (double)a->cells : 0;
        }
        double v[N_SUMS], d = (double)(delta_cells ? delta_cells : 1);
        for (int x = 0; x < N_SUMS; x++) v[x] = tv_sum_value(&sum[x]);
        if (cells) {
            weight++;
            mean[0] += v[TV] / (double)cells, mean[1] += v[JS] / (double)cells, mean[4] += v[OVERLAP] / (double)cells;
            mean[5] += (double)same / (double)cells;
            for (int e = 0; e < 2; e++) infinite[e] += (double)inf[e] / (double)cells;
        }
        if (kl_cells) kl_weight++, mean[2] += v[KL_AB] / (double)kl_cells, mean[3] += v[KL_BA] / (double)kl_cells;
        if (delta_cells) delta_weight++, delta += v[DELTA] / d, delta2 += v[DELTA2] / d, delta_abs += v[ABS] / d;
        out->k3[s] = delta_cells ? v[K3] / d : NAN;
        out->chi2_token[s] = delta_cells ? v[CHI2] / d : NAN;
        out->mult_prob_error[s] = delta_cells ? v[ERROR] / d : NAN;
        out->cells += cells, out->delta_cells += delta_cells;
    }
    summary(&out->tv, mean[0] / weight, &c->tv, c->max_tv); /* 0/0 = NaN: no position had both records */
    summary(&out->js, mean[1] / weight, &c->js, c->max_js);
    summary(&out->kl_ab, mean[2] / kl_weight, &c->kl[0], c->max_kl[0]);
    summary(&out->kl_ba, mean[3] / kl_weight, &c->kl[1], c->max_kl[1]);
    out->topk_overlap = mean[4] / weight, out->same_top1 = mean[5] / weight;
    out->kl_ab_infinite = infinite[0] / weight, out->kl_ba_infinite = infinite[1] / weight;
    out->delta_mean = delta / delta_weight, out->delta_rms = sqrt(delta2 / delta_weight),
    out->delta_mean_abs = delta_abs / delta_weight;
    double *const p[5] = {&out->delta_p01, &out->delta_p05, &out->delta_p50, &out->delta_p95, &out->delta_p99};
    static const double SHARE[5] = {0.01, 0.05, 0.5, 0.95, 0.99};
    out->delta_min = out->delta_cells ? c->delta_min : NAN, out->delta_max = out->delta_cells ? c->delta_max : NAN;
    for (int x = 0; x < 5; x++)
        *p[x] = out->delta_cells
                    ? fmin(fmax(tv_histogram_signed_quantile(&c->neg, &c->pos, SHARE[x]), c->delta_min), c->delta_max)
                    : NAN;
    out->delta_zero = c->pos.zero;
    for (int x = 0; x < TV_HIST_BINS; x++) {
        int octave = x / TV_HIST_PER_OCTAVE + TV_HIST_LOW + 24;
        out->delta_octave[octave < 0 ? 0 : octave > 31 ? 31 : octave] += c->neg.bin[x] + c->pos.bin[x];
    }
    qsort(first, (size_t)flips, sizeof *first, compare_i64);
    out->flip_share = (double)flips / (double)(data->set[0].N + data->set[1].N);
    out->first_flip_median = flips ? 0.5 * (double)(first[(flips - 1) / 2] + first[flips / 2]) : NAN;
    out->flip_margin_p50 = c->margin.count ? tv_histogram_quantile(&c->margin, 0.5) : NAN;
    out->near_tie_known = !c->near_tie_unknown || dead == 0;
    out->near_tie_mismatch =
        out->near_tie_known
            ? 0.5 * ((double)near_ties[0] / (double)data->set[0].N + (double)near_ties[1] / (double)data->set[1].N)
            : NAN;
    tv_token_profile *f = &out->profile;
    f->n_positions = data->n < TV_POSITIONS ? data->n : TV_POSITIONS;
    for (int64_t x = 0; x < f->n_positions; x++) {
        f->from[x] = (x * data->n + f->n_positions - 1) / f->n_positions;
        f->to[x] = ((x + 1) * data->n + f->n_positions - 1) / f->n_positions;
        double cells = (double)c->position_cells[x];
        f->tv[x] = cells > 0 ? (double)c->position_tv[x] / FIXED / cells : NAN;
        f->flips[x] = cells > 0 ? (double)c->position_flips[x] / cells : NAN;
    }
    out->n_worst = c->n_worst;
    memcpy(out->worst, c->worst, sizeof out->worst);
    free(first);
}

tv_status tv_token_metrics_run(const tv_dataset *data, int64_t reads, tv_readout readout, tv_token_metrics *out,
                               tv_err *err) {
    memset(out, 0, sizeof *out);
    TV_TRY(tv_reads_check(data, reads, readout, err));
    counters *total = tv_xcalloc(1, sizeof *total);
    sums *all[2] = {NULL, NULL};
    tv_status status = TV_OK;
    for (int s = 0; s < 2 && status == TV_OK; s++) {
        const tv_set *set = &data->set[s];
        job j = {.data = data, .readout = readout, .s = s};
        for (int e = 0; e < 2; e++) {
            j.reads[e] = data->deterministic[e] ? 1 : reads;
            j.capacity += j.reads[e] * set->k[e];
            if (set->k[e] > j.k_max) j.k_max = set->k[e];
        }
        j.top_k = readout.readout ? readout.readout : set->k[0] < set->k[1] ? set->k[0] : set->k[1];
        all[s] = calloc((size_t)set->N, sizeof **all);
        out->mean_tv[s] = malloc((size_t)set->N * sizeof(double));
        status =
            all[s] && out->mean_tv[s]
                ? set_run(&j, all[s], total, err)
                : TV_FAIL(err, TV_ENOMEM, "no memory for the token metrics of %lld trajectories", (long long)set->N);
    }
    if (status == TV_OK)
        conclude(data, all, total, out);
    else
        tv_token_metrics_free(out);
    free(all[0]);
    free(all[1]);
    free(total);
    return status;
}

void tv_token_metrics_free(tv_token_metrics *m) {
    free(m->mean_tv[0]);
    free(m->mean_tv[1]);
    memset(m, 0, sizeof *m);
}
