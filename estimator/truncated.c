#include "estimator/truncated.h"

#include <math.h>
#include <stdlib.h>

#include "base/file.h"

int tv_truncated_applies(const tv_dataset *data) {
    for (int e = 0; e < 2; e++) {
        const cJSON *top_k = cJSON_GetObjectItemCaseSensitive(data->config[e], "top_k");
        if (!data->folded.any && cJSON_IsNumber(top_k) && top_k->valuedouble == 0) return 1;
    }
    return 0;
}

/* One record: its listed mass, its smallest slot, and the most that an unlisted token can have. */
typedef struct {
    const int32_t *ids;
    const float *lps;
    int64_t k;
    double tail, cap;
} record;

static record record_of(const tv_dataset *data, int s, int e, int64_t read, int64_t i, int64_t t) {
    const int64_t k = data->set[s].k[e];
    record x = {tv_row_ids(data, s, e, read, i) + t * k, tv_row_lps(data, s, e, read, i) + t * k, k, 1, 1};
    for (int64_t j = 0; j < k; j++) {
        if (x.ids[j] < 0) continue;
        const double p = exp(x.lps[j]);
        x.tail -= p;
        if (p < x.cap) x.cap = p;
    }
    x.tail = fmax(x.tail, 0);
    x.cap = fmin(x.cap, x.tail);
    return x;
}

/* Probability of id, or -1 when it is not listed. */
static double listed(const record *x, int32_t id) {
    for (int64_t j = 0; j < x->k; j++)
        if (x->ids[j] == id) return exp(x->lps[j]);
    return -1;
}

/* Read r of side e, where a side with fewer reads is known to repeat its first. */
static int64_t read_of(const tv_dataset *data, int s, int e, int64_t r) { return r < data->set[s].reads[e] ? r : 0; }

/* Bounds on 1 - sum of min(p, q) of one position. The mass that both sides may share beyond the tokens that both list
 * lies between nothing and what each may put where the other, too, has some. */
static void token_bounds(const record *a, const record *b, double *low, double *high) {
    double both = 0, common[2] = {0, 0}, one = 0;
    for (int64_t j = 0; j < a->k; j++) {
        if (a->ids[j] < 0) continue;
        const double p = exp(a->lps[j]), q = listed(b, a->ids[j]);
        if (q < 0) {
            one += fmin(p, b->cap);
        } else {
            both += fmin(p, q);
            common[0] += p, common[1] += q;
        }
    }
    for (int64_t j = 0; j < b->k; j++)
        if (b->ids[j] >= 0 && listed(a, b->ids[j]) < 0) one += fmin(exp(b->lps[j]), a->cap);
    const double rest = fmin(fmax(1 - common[0], 0), fmax(1 - common[1], 0));
    *high = fmin(fmax(1 - both, 0), 1);
    *low = fmax(*high - fmin(rest, one + fmin(a->tail, b->tail)), 0);
}

/* max(0, 1 - exp(q - p)) of log-probabilities; 1 where only q is nothing, 0 where p is. */
static double excess(double p, double q) { return p == -INFINITY ? 0 : q >= p ? 0 : -expm1(q - p); }

void tv_truncated_run(const tv_dataset *data, int64_t reads, tv_truncated *out) {
    *out = (tv_truncated){0};
    double sums[4] = {0, 0, 0, 0}; /* tails, token bounds */
    int64_t cells = 0;
    for (int s = 0; s < 2; s++) {
        const tv_set *set = &data->set[s];
        int64_t unknown = 0, positions = 0;
        out->N[s] = set->N;
        out->low[s] = tv_xcalloc((size_t)set->N, sizeof(double));
        out->high[s] = tv_xcalloc((size_t)set->N, sizeof(double));
        for (int64_t i = 0; i < set->N; i++) {
            double low[2] = {0, 0}, high[2] = {0, 0}; /* log-probability of the trajectory under each side */
            const int64_t n = set->lengths ? set->lengths[i] : data->n;
            for (int64_t t = 0; t < n; t++) {
                const int32_t token = set->tokens[i * data->n + t];
                double p[2] = {0, 0}, q[2] = {0, 0};
                int open = 0;
                for (int64_t r = 0; r < reads; r++) {
                    record x[2];
                    for (int e = 0; e < 2; e++) {
                        const int64_t read = read_of(data, s, e, r);
                        const float *own = tv_row_own_lp(data, s, e, read, i);
                        x[e] = record_of(data, s, e, read, i, t);
                        const double said = listed(&x[e], token);
                        const double from = said >= 0 ? said : own ? exp(own[t]) : 0;
                        const double to = said >= 0 || own ? from : x[e].cap;
                        p[e] += from / (double)reads;
                        q[e] += to / (double)reads;
                        open |= to > from;
                        sums[e] += x[e].tail;
                    }
                    double least, most;
                    token_bounds(&x[TV_A], &x[TV_B], &least, &most);
                    sums[2] += least, sums[3] += most;
                    cells++;
                }
                for (int e = 0; e < 2; e++) low[e] += log(p[e]), high[e] += log(q[e]);
                unknown += open;
                positions++;
            }
            out->low[s][i] = excess(low[s], high[!s]);
            /* A sampled token has some probability: where that cannot be told, neither can the ratio. */
            out->high[s][i] = high[s] == -INFINITY ? 1 : excess(high[s], low[!s]);
        }
        out->unknown[s] = positions ? (double)unknown / (double)positions : 0;
    }
    const double n = cells ? (double)cells : 1;
    for (int e = 0; e < 2; e++) out->tail[e] = sums[e] / n;
    out->token_low = sums[2] / n, out->token_high = sums[3] / n;
}

void tv_truncated_free(tv_truncated *bounds) {
    for (int s = 0; s < 2; s++) {
        free(bounds->low[s]);
        free(bounds->high[s]);
    }
}
