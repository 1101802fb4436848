#include "estimator/deviations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tv_status tv_deviations_run(const tv_dataset *data, int e, int s, int64_t reads, tv_readout readout, tv_deviations *out,
                            tv_err *err) {
    const tv_set *set = &data->set[s];
    const int64_t n = data->n;
    if (reads < 2 || out->bins < 1 || !(out->range > 0))
        return TV_FAIL(err, TV_EARG,
                       "deviations of %lld reads in %d bins within +-%g: two reads, a bin and a range are needed",
                       (long long)reads, out->bins, out->range);
    memset(out->count, 0, (size_t)out->bins * sizeof *out->count);
    out->values = 0, out->below = INFINITY, out->above = -INFINITY;
    double *q = malloc((size_t)(reads * n) * sizeof *q);
    if (!q)
        return TV_FAIL(err, TV_ENOMEM, "no memory for %lld reads of %lld positions", (long long)reads, (long long)n);
    const double widen = sqrt((double)reads / (double)(reads - 1));
    tv_status status = TV_OK;
    for (int64_t i = 0; i < set->N && status == TV_OK; i++) {
        status = tv_realised(data, e, s, reads, i, i + 1, readout, q, err);
        for (int64_t t = 0; status == TV_OK && t < tv_trajectory_length(data, set, i); t++) {
            double mean = 0;
            int seen = 1;
            for (int64_t r = 0; r < reads; r++) mean += q[r * n + t] / (double)reads, seen &= q[r * n + t] > 0;
            for (int64_t r = 0; r < reads && seen; r++) {
                const double d = (q[r * n + t] / mean - 1) * widen;
                const double at = floor((d + out->range) / (2 * out->range) * out->bins);
                out->count[at < 0 ? 0 : at >= out->bins ? out->bins - 1 : (int)at]++;
                out->values++;
                out->below = fmin(out->below, d), out->above = fmax(out->above, d);
            }
        }
    }
    free(q);
    return status;
}
