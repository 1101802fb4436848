/* The hedged estimator: a martingale control variate from the full recorded vectors (docs/estimator.md). */
#ifndef TV_HEDGED_H
#define TV_HEDGED_H

#include <stdint.h>

#include "estimator/distance.h"
#include "traces/dataset.h"

typedef struct {
    double V, h, tau2;
} tv_hedged_params;

/* Per-trajectory results of one arm (set s). Arrays [N] doubles. */
typedef struct {
    int64_t N;
    double *T0, *T2, *T2x, *T2pj, *C; /* C: companion of mean zero when the scorer's mean sampled the set */
    double *qv, *haz;                 /* moments behind the automatic parameters */
    double *DA, *DB;                  /* log own - log other on each half; NaN marks a dead half (never printed) */
    double *DAB;                      /* the same on all reads */
    /* Steps: candidates whose |d^AB| exceeds |d^A - d^B| and three standard deviations of read noise; alive prefixes.
     */
    double steps;    /* mean number in a trajectory, by own mass */
    double inverse2; /* the same with each counted as 1/(d^AB)^2 */
    tv_hedged_params params;
    double faithfulness_z; /* mean C / se; NaN when se is 0 or N < 2 */
    double test_z;         /* the z to judge it by, whatever N: tv_hedged_test_z; NaN as above */
} tv_hedged_arm;

typedef struct {
    tv_hedged_arm arm[2]; /* [TV_A], [TV_B] */
    int64_t reads;        /* even number of reads used per side */
} tv_hedged;

/* reads: even, >= 2 (a deterministic side's read stands for all). params: NULL = automatic, from the data, per arm.
 * Threads: OpenMP; bits do not depend on their number, nor on the instruction set. Working memory: a few KiB a thread.
 * TV_EARG: reads odd or more than stored, a set that is empty or unscored, parameters that are negative or not finite;
 * TV_EFORMAT: a record with a NaN or a mass above 1, named by set, scorer, pass, trajectory and position. A record
 * without any slot gives no mass to any token: its trajectory is a mismatch. */
TV_NODISCARD tv_status tv_hedged_run(const tv_dataset *data, int64_t reads, tv_readout readout,
                                     const tv_hedged_params *params, tv_hedged *out, tv_err *err);
void tv_hedged_free(tv_hedged *h);

typedef enum { TV_HEDGED_T0, TV_HEDGED_T2, TV_HEDGED_T2X, TV_HEDGED_T2PJ } tv_hedged_variant;

/* The faithfulness z on the scale of a standard normal, so that one threshold fits every N. Few trajectories seldom
 * hold the rare jumps of C, and a standard error without them is too small; below TV_FAITHFUL_N it is at least
 * sqrt(predicted / N), where predicted bounds the variance that C must have (|dU/dD| <= 1, and a mismatch moves U by at
 * most 1). Then Student's t with N - 1 degrees of freedom is carried over to the normal (Wallace 1959, within 2%). NaN
 * when N < 2 or both variances are 0. */
enum { TV_FAITHFUL_N = 64 };
double tv_hedged_test_z(double mean, double variance, double predicted, int64_t N);

/* Symmetric value (mean of the two arms' means) and its standard error; clusters of trajectories are the caller's
 * matter. An arm of one trajectory adds no variance: check N >= 2 before printing se. */
typedef struct {
    double estimate, se;
} tv_hedged_value;
tv_hedged_value tv_hedged_combine(const tv_hedged *h, tv_hedged_variant variant);

/* What the interval adds for bias that the jackknives cannot remove: max(|T2pj - T2|, misfit (1 + sqrt 2 misfit) drop,
 * kink).
 *
 * drop = |mean Z(halves) - mean Z(all)|; misfit = sd T2pj / sd Z (at most 1), the share of the spread that the value
 * function leaves unexplained.
 *
 * kink = |T0 - T2pj| min(c, c e^{-steps} + spacing^2 / (5 s^2)), c = 1 + sqrt 2: what is left where the log-ratio lives
 * on atoms; s^2 = mean (D_A - D_B)^2 / 4, its read noise; spacing^2 = steps / inverse2, the harmonic mean of squared
 * steps.
 *
 * docs/estimator-hedged.md derives them and says what they were measured on. */
double tv_hedged_bias_allowance(const tv_hedged *h);
/* The bias-inclusive nominal 95% interval T2pj +- (1.96 se + allowance). Not clipped to [0,1]. */
typedef struct {
    double low, high;
} tv_hedged_interval;
tv_hedged_interval tv_hedged_interval95(const tv_hedged *h);

/* Which inner loop this machine runs: "avx2" or "portable". Both give the same bits; the second function is
 * the portable loop whatever the machine, for tests. */
const char *tv_hedged_isa(void);
TV_NODISCARD tv_status tv_hedged_run_portable(const tv_dataset *data, int64_t reads, tv_readout readout,
                                              const tv_hedged_params *params, tv_hedged *out, tv_err *err);

#endif
