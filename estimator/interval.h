/* Error bars for the mean over two arms of trajectories: delta method and bootstrap, both clustered by prompt. */
#ifndef TV_INTERVAL_H
#define TV_INTERVAL_H

#include <stdint.h>

#include "base/status.h"

/* One value per trajectory of the two sets; the estimate weighs the sets equally. Trajectories that share a cluster
 * number (their prompt) are resampled together, over both sets; NULL in either: every trajectory stands alone. */
typedef struct {
    const double *x[2]; /* [N[s]] f64 */
    int64_t N[2];
    const int32_t *cluster[2]; /* [N[s]] i32, or NULL */
} tv_arms;

typedef struct {
    double estimate; /* (mean_a + mean_b) / 2 */
    double mean[2];
    double se;        /* standard error of the estimate; NaN when it cannot be known (see clusters) */
    double quantile;  /* 97.5% quantile that goes with se: 1.96, or Student's t with clusters - 1 degrees of freedom */
    int64_t clusters; /* distinct prompts when several, else 0 (independent trajectories) */
} tv_estimate;

/* se is NaN when a set holds one trajectory (or, clustered, when there is one prompt only: then trajectories count as
 * independent given the prompt). Never NaN otherwise for finite input. */
tv_estimate tv_arms_estimate(const tv_arms *arms);

/* Percentile bootstrap of the same estimate: replicates draws of trajectories (within each set) or of clusters (over
 * both sets), from Philox(seed, replicate, draw), so the result depends on nothing else. [*lo, *hi] covers 95%. Fails
 * (TV_EARG) where se would be NaN or replicates < 40. */
TV_NODISCARD tv_status tv_arms_bootstrap(const tv_arms *arms, uint64_t seed, int64_t replicates, double *lo, double *hi,
                                         tv_err *err);

/* [lower, upper] widened to hold estimate, and cut to where a total variation can lie without losing it. */
void tv_interval_clip(double estimate, double *lower, double *upper);

/* 97.5% quantile of Student's t; df >= 1. */
double tv_t_quantile(int64_t df);

/* Where a CI lies against a threshold X: -1 wholly at or below, +1 above, 0 cannot tell. */
int tv_interval_verdict(double lower, double upper, double threshold);

#endif
