/* Histogram of what single passes do to the probability of a trajectory's token. */
#ifndef TV_DEVIATIONS_H
#define TV_DEVIATIONS_H

#include <stdint.h>

#include "estimator/distance.h"

typedef struct {
    int bins; /* equal bins over [-range, range); what lies outside falls into the ends */
    double range;
    int64_t *count;      /* [bins], the caller's */
    int64_t values;      /* sum of all counts */
    double below, above; /* smallest and largest value met */
} tv_deviations;

/* Relative deviations d = (q / mean - 1) sqrt(R / (R - 1)) of scorer e over set s, q the realised token's probability
 * in one of R >= 2 reads, mean over the reads, at positions where every read sees the token: its variance is that of
 * one read. bins, range and count are given, the rest is filled. */
TV_NODISCARD tv_status tv_deviations_run(const tv_dataset *data, int e, int s, int64_t reads, tv_readout readout,
                                         tv_deviations *out, tv_err *err);

#endif
