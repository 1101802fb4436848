#include "estimator/onset.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/stats.h"
#include "estimator/union.h"

enum { HALVES = 4 }; /* a's first and second half of the reads, then b's */

/* Averages the reads from..to-1 of scorer e at one cell into the union's sum `into`. */
static int add_reads(const tv_set *set, int e, int64_t from, int64_t to, size_t cell, tv_readout readout, double *p,
                     tv_union *u, int into) {
    const int64_t k = set->k[e];
    for (int64_t rho = from; rho < to; rho++) {
        const int64_t read = tv_read_index(set, e, rho);
        const int32_t *ids = set->ids[e][read] + cell * (size_t)k;
        if (!(tv_record_probs(ids, set->lps[e][read] + cell * (size_t)k, k, readout, p) >= 0)) return 0;
        for (int64_t x = 0; x < k; x++)
            if (p[x] > 0) u->sum[into][tv_union_at(u, ids[x], x)] += p[x] / (double)(to - from);
    }
    return 1;
}

static double distance(const tv_union *u, int x, int y) {
    double sum = 0;
    for (int64_t j = 0; j < u->n; j++) sum += fabs(u->sum[x][j] - u->sum[y][j]);
    return 0.5 * sum;
}

tv_status tv_onset_run(const tv_dataset *data, int64_t reads, tv_readout readout, tv_onset *out, tv_err *err) {
    TV_TRY(tv_reads_check(data, reads, readout, err));
    const int both_fixed = data->deterministic[0] && data->deterministic[1];
    const int64_t h = both_fixed ? 1 : reads / 2, most = data->set[0].N + data->set[1].N;
    if (h < 1)
        return TV_FAIL(err, TV_EARG,
                       "one read a side: it cannot be told from noise; two or more are needed (--repeats)");
    *out = (tv_onset){.first = -1, .reads = h};
    int64_t capacity = 0, k_max = 1;
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++) {
            const int64_t k = data->set[s].k[e];
            if (k > k_max) k_max = k;
        }
    capacity = 2 * HALVES * h * k_max;
    tv_union u;
    double *p = tv_xmalloc((size_t)k_max * sizeof *p), *gap = tv_xmalloc((size_t)most * sizeof *gap);
    if (!tv_union_open(&u, capacity)) {
        free(p), free(gap);
        return TV_FAIL(err, TV_ENOMEM, "no memory for %lld ids", (long long)capacity);
    }
    tv_status status = TV_OK;
    for (int64_t t = 0; t < data->n && out->first < 0 && status == TV_OK; t++) {
        int64_t cells = 0;
        double between = 0, within = 0;
        for (int s = 0; s < 2 && status == TV_OK; s++) {
            const tv_set *set = &data->set[s];
            for (int64_t i = 0; i < set->N && status == TV_OK; i++) {
                if (t >= tv_trajectory_length(data, set, i)) continue;
                const size_t cell = (size_t)(i * data->n + t);
                u.n = 0;
                for (int e = 0; e < 2 && status == TV_OK; e++)
                    for (int half = 0; half < 2; half++) {
                        const int64_t from = data->deterministic[e] ? 0 : half * h;
                        if (!add_reads(set, e, from, from + h, cell, readout, p, &u, 2 * e + half))
                            status = TV_FAIL(err, TV_ENUMERIC,
                                             "scorer %c, set %c, trajectory %lld, position %lld: a log-probability is "
                                             "NaN or infinite",
                                             'a' + e, 'a' + s, (long long)i, (long long)t);
                    }
                const double ab = 0.5 * (distance(&u, 0, 2) + distance(&u, 1, 3)),
                             self = 0.5 * (distance(&u, 0, 1) + distance(&u, 2, 3));
                between += ab, within += self;
                gap[cells++] = ab - self;
            }
        }
        if (status != TV_OK || !cells) continue;
        const double mean = tv_stats_mean(gap, cells), se = sqrt(tv_stats_variance(gap, cells) / (double)cells);
        const double z = se > 0 ? mean / se : mean > 0 ? INFINITY : 0;
        if (both_fixed ? mean > 0 : z > TV_ONSET_Z)
            *out = (tv_onset){t, between / (double)cells, within / (double)cells, z, h};
    }
    tv_union_close(&u);
    free(p), free(gap);
    return status;
}
