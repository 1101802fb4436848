/* Single-level and multilevel estimators (Algorithms 1, 2, 3): levels of recorded reads, coupled increments,
 * allocation, median of means, the randomized-level (unbiased) variant. Formulas: docs/estimator-hedged.md. */
#ifndef TV_MULTILEVEL_H
#define TV_MULTILEVEL_H

#include <stdint.h>

#include "estimator/distance.h"
#include "traces/dataset.h"

enum { TV_MAX_LEVELS = 16 };

/* ---- Levels from recorded reads ---------------------------------------------------------------------------------- */

typedef struct {
    int64_t reads;    /* R: reads to use; 0 = all that both sides can give */
    int64_t held_out; /* the last reads of these are kept for the reference and seen by no level; 0 = no reference */
    int n_levels;     /* 0 = powers of two up to reads - held_out */
    const int64_t *r; /* [n_levels] ascending reads a level, or NULL */
    tv_readout readout;
    int64_t n_perm; /* independent permutations of the repeat axis in every cell; 0 = one replicate in stored order */
    uint64_t seed;  /* of the permutations */
    int64_t limit;  /* most trajectories; 0 = all */
} tv_levels_options;

/* Z of every level, permutation and trajectory of one set. */
typedef struct {
    int64_t N, n_perm;
    int n_levels;
    int64_t r[TV_MAX_LEVELS]; /* ascending */
    double *z;                /* [n_perm, n_levels, N] Z of reads 0..r-1 */
    double *blocks;    /* [n_perm, n_levels, n_levels, N] entry (a, b), a < b: mean of Z over the r_b / r_a (rounded
                        * down) consecutive blocks of r_a reads: the coarse half of an antithetic increment */
    double *reference; /* [n_perm, N] Z of the held-out reads; NULL without */
} tv_levels;

/* One pass over set's trajectories under both scorers. Memory: the result, and 4 R n doubles a thread. */
TV_NODISCARD tv_status tv_levels_run(const tv_dataset *data, int set, const tv_levels_options *options, tv_levels *out,
                                     tv_err *err);
/* An empty table for reads that come from elsewhere: check of options->reads (must be given), levels and held_out as
 * above. */
TV_NODISCARD tv_status tv_levels_new(int64_t N, const tv_levels_options *options, tv_levels *out, tv_err *err);
/* Fills permutation perm, trajectory i from q[e] [R,n] f64, realised-token probabilities in the order wanted; scratch
 * [n + R] f64. Different (perm, i) may be filled at once. */
void tv_levels_fill(tv_levels *levels, int64_t perm, int64_t i, const double *const q[2], int64_t n, int64_t R,
                    int64_t held_out, double *scratch);
void tv_levels_free(tv_levels *levels); /* safe on a zeroed struct */
/* Row of [N] doubles. */
const double *tv_levels_z(const tv_levels *levels, int64_t perm, int level);
const double *tv_levels_blocks(const tv_levels *levels, int64_t perm, int coarse, int fine);

/* y[i] = Z_{fine}[i] minus its coarse part (coarse < 0: none): Z_coarse on the first reads of the fine ones (plain), or
 * the mean over blocks (antithetic). y: [N]. */
void tv_levels_increment(const tv_levels *levels, int64_t perm, int coarse, int fine, int antithetic, double *y);

/* ---- Allocation and schedules -------------------------------------------------------------------------------------
 */

/* N_l proportional to sqrt(V_l / r_l), at least 2, scaled so that sum N_l r_l reaches budget (> 0) or, with budget 0,
 * that sum V_l / N_l reaches eps^2. V: [L], r: [L], N: [L]. Fails (TV_EARG) on V or r that are negative or not finite,
 * and when both budget and eps are missing. */
TV_NODISCARD tv_status tv_allocate(int L, const double *V, const int64_t *r, double budget, double eps, int64_t *N,
                                   tv_err *err);
/* sum_l sqrt(V_l r_l): its square over the budget is the best variance. */
double tv_allocation_work(int L, const double *V, const int64_t *r);

/* Algorithm 3's levels r_l = r_0 2^l, r_0 = max(1, ceil(c n sigma^2)), L = ceil(2 log2(1/eps)): writes at most `most`
 * and returns how many there are (may exceed `most`). */
int tv_theory_levels(double n, double sigma2, double eps, double c, int most, int64_t *r);
/* Groups of a median of means that turns nine-in-ten confidence into 1 - delta: the smallest odd G >= ln(1/delta)/0.32.
 */
int64_t tv_median_groups(double delta);
/* Median of x [n] (x is sorted in place); the mean of the middle two when n is even. */
double tv_median(double *x, int64_t n);

/* ---- Estimators from stored levels ----------------------------------------------------------------------------------
 */

typedef struct {
    double estimate, se;
    double cost; /* trajectory-reads spent a side: sum N_l r_l */
} tv_costed_estimate;

/* Algorithm 1: mean of (1 - exp(other - own))_+ over trajectories of own. logs: [N]. */
tv_costed_estimate tv_algorithm1(const double *log_own, const double *log_other, int64_t N);
/* Algorithm 3 on stored levels: schedule [L] indexes levels, N_l [L] trajectories a level. nested: level l uses
 * trajectories 0..N_l-1, else the next N_l ones. se treats levels as independent. Fails when the set has too few
 * trajectories. */
TV_NODISCARD tv_status tv_multilevel_stored(const tv_levels *levels, int64_t perm, int L, const int *schedule,
                                            const int64_t *N_l, int nested, int antithetic, tv_costed_estimate *out,
                                            tv_err *err);
/* Randomized level: every trajectory pays Y_0 and one increment Y_l / p_l, l drawn with probability p_l, l >= 1:
 * unbiased for the schedule's top level. p is chosen proportional to sqrt(E Y_l^2 / r_l) from these trajectories when
 * NULL; draws are Philox(seed, trajectory). */
TV_NODISCARD tv_status tv_randomized_stored(const tv_levels *levels, int64_t perm, int L, const int *schedule,
                                            int antithetic, const double *p, uint64_t seed, tv_costed_estimate *out,
                                            tv_err *err);

/* ---- Estimators from an oracle --------------------------------------------------------------------------------------
 */

/* Fills y [N] with independent increments Z_fine - coarse part (r_coarse = 0: none) for samples first..first+N-1 of
 * stream `level`; samples of different (level, index) must be independent. */
typedef tv_status (*tv_increment_fn)(void *user, int level, int64_t first, int64_t N, int64_t r_coarse, int64_t r_fine,
                                     int antithetic, double *y, tv_err *err);

typedef struct {
    int L;
    const int64_t *r;   /* [L] ascending */
    const int64_t *N;   /* [L] samples a level; NULL: from pilot and (eps or budget) */
    int64_t pilot;      /* samples a level that estimate V_l; counted and used */
    double eps, budget; /* one of them where N is NULL */
    int antithetic;
    double delta; /* > 0: median of means for confidence 1 - delta; 0: the mean */
} tv_multilevel_plan;

typedef struct {
    double estimate, se, cost;
    int L;
    int64_t groups; /* of the median of means; 1 for a mean */
    int64_t N[TV_MAX_LEVELS];
    double mean[TV_MAX_LEVELS], variance[TV_MAX_LEVELS], kurtosis[TV_MAX_LEVELS]; /* of Y_l; excess kurtosis */
    double bias_bound; /* of the top level: |mean Y_L| / (sqrt 2 - 1), for a bias that falls at least like r^{-1/2} */
    double bound_se;   /* of estimate - bias_bound: the plug-in's bias is positive, so a 95% interval is
                        * [estimate - bias_bound - 1.96 bound_se, estimate + 1.96 se] */
} tv_multilevel_result;

/* Algorithm 3. With delta > 0 each level's samples are dealt to G groups and the median of the groups' sums is the
 * estimate (se then is that of the mean: the median's own spread is what delta bounds). */
TV_NODISCARD tv_status tv_multilevel_run(tv_increment_fn draw, void *user, const tv_multilevel_plan *plan,
                                         tv_multilevel_result *out, tv_err *err);

#endif
