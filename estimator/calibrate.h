/* The noise of a side's reads: sigma, support size, tails, and whether the order of the passes carries anything. */
#ifndef TV_CALIBRATE_H
#define TV_CALIBRATE_H

#include <stdint.h>

#include "estimator/distance.h"

enum { TV_CAL_SIZES = 24, TV_CAL_LAGS = 8 };

typedef struct {
    int64_t reads; /* R >= 2; 0 = all that the side stored */
    tv_readout readout;
    int stored_order; /* 1: halves by stored order; 0: after an independent permutation in every cell */
    uint64_t seed;
    int64_t replicate;
} tv_calibrate_options;

/* Scorer e over set s. h = R/2; halves are reads 0..h-1 and h..2h-1 in the chosen order. */
typedef struct {
    int64_t cells;
    /* Half-split sigma^2 of one read: union-support chi-square, and that of the realised token over the cells where
     * both halves see it (`excluded` is the number of the others; 0 cells left: NaN). */
    double sigma2_union, sigma2_union_max, sigma2_union_p50, sigma2_union_p99;
    double sigma2_realised, sigma2_realised_max, sigma2_realised_p99;
    int64_t excluded;
    double sigma2_union_stored; /* the same with halves by stored order: passes that drift or repeat make it differ */
    /* Union of ids over reads 0..r-1, for r = 1, 2, 4, ..., R. */
    int n_sizes;
    int64_t size_r[TV_CAL_SIZES], size_max[TV_CAL_SIZES];
    double size_mean[TV_CAL_SIZES];
    int64_t size_p99[TV_CAL_SIZES];
    /* Relative deviations d = q / mean - 1 of the realised token's probability, over the cells where every read sees it
     * (`tracked`), in stored order. Widths are standard deviations of one read: root mean square (corrected by
     * R/(R-1)), and median |d| / 0.6745 with the same correction; heavy tails pull them apart. */
    int64_t tracked;
    double width_variance, width_median, kurtosis; /* kurtosis: excess */
    double deviation_p50, deviation_p90, deviation_p99, deviation_p999, deviation_max;
    /* Autocorrelation of d at lags 1..n_lags (stored order) and at lag 1 after the permutation. Exchangeable passes
     * give -1/(R-1) at every lag. */
    int n_lags;
    double autocorrelation[TV_CAL_LAGS], autocorrelation_permuted;
    /* Drift: mean squared slope of d against the pass number over what exchangeable passes give; 1 = no drift. z by
     * trajectories; NaN with fewer than two or no noise. */
    double drift, drift_z;
} tv_calibration_part;

typedef struct {
    int64_t R[2]; /* reads used of each scorer; 0: it stored fewer than 2, its parts hold sizes only */
    tv_calibration_part part[2][2]; /* [scorer][set] */
} tv_calibration;

/* A side that is deterministic has sigma, widths and deviations of exactly 0. Memory: one chunk of positions over all
 * reads a thread. Errors as tv_realised. */
TV_NODISCARD tv_status tv_calibrate(const tv_dataset *data, const tv_calibrate_options *options, tv_calibration *out,
                                    tv_err *err);

/* sigma of scorer e: mean over both sets of the square root; NaN when it stored fewer than 2 reads and is not
 * deterministic. */
double tv_calibration_union(const tv_calibration *c, int e);
double tv_calibration_realised(const tv_calibration *c, int e);

#endif
