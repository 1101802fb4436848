/* Which schedule of reads and trajectories to run: the pilot protocol and its baselines on recorded measurements, the
 * theory's parameters, and what to run next for a target error. Definitions: docs/estimator-hedged.md. */
#ifndef TV_SCHEDULE_H
#define TV_SCHEDULE_H

#include <stdint.h>

#include "base/json.h"
#include "base/progress.h"
#include "estimator/distance.h"
#include "estimator/multilevel.h"

/* A fixed-cost estimator that takes part in the comparison: variance of one trajectory, its reads, its bias. */
typedef struct {
    const char *name;
    double variance, reads, bias;
} tv_fixed_family;

typedef struct {
    int64_t pilot;       /* trajectories of a pilot, over all arms; 0 = 64 */
    int64_t pilots;      /* pilot draws; 0 = 40 */
    int max_levels;      /* 0 = 4 */
    int64_t simulations; /* of the recycling control for each budget; 0 = 300; < 0: no control */
    uint64_t seed;
    int n_budgets;         /* 0 = a grid of 13 from the pilot's cost on, factor 2 */
    const double *budgets; /* [n_budgets] trajectory-reads a side, ascending */
    int n_fixed;
    const tv_fixed_family *fixed; /* [n_fixed] */
} tv_protocol_options;

/* Runs the protocol on the levels of one or two arms (set a, set b: half of the trajectories from each), whose
 * `reference` must be there. Returns {"grid", "budgets", "rmse": {family: []}, "levels", "increments",
 * "savings_over_pilot_single", "savings_over_hindsight_single", "theta", "rmse_ratio", "picks", "recycling"}:
 * docs/formats.md. A family that cannot be judged has null entries with a reason. */
TV_NODISCARD tv_status tv_protocol_run(const tv_levels *const *arms, int n_arms, const tv_protocol_options *options,
                                       cJSON **out, tv_err *err);

/* Trajectory-reads a side that the family needs for a root-mean-square error of eps, from its curve in a protocol
 * result (log-log interpolation; beyond the last budget 1/N around the family's bias floor). NaN when it cannot reach
 * eps. */
double tv_protocol_needed(const cJSON *protocol, const char *family, double eps);

typedef struct {
    tv_readout readout;
    int serving_order;    /* 1: do not permute the repeat axis */
    int64_t permutations; /* 0 = 20 */
    tv_protocol_options protocol;
    const tv_progress *progress; /* trajectories */
} tv_schedule_options;

/* The protocol on a recorded measurement: levels from the first half of the (permuted) reads, reference from the
 * second, the hedged family at r = 2, 4 beside it, symmetric and for each arm alone: {"symmetric": protocol,
 * "one_sided_a": protocol, "one_sided_b": protocol, "reads", "held_out", "permutations"}. Fails (TV_EARG) below 4
 * reads, with a deterministic side (one read stands for every r: there is nothing to schedule), and below 2 pilots'
 * worth of trajectories. */
TV_NODISCARD tv_status tv_schedule_run(const tv_dataset *data, const tv_schedule_options *options, cJSON **out,
                                       tv_err *err);

/* Algorithms 1, 2 and 3 with their parameters: {"algorithm1": {N, queries}, "algorithm2": {N, r, queries},
 * "algorithm3": {levels:
 * [{r, N}], queries, groups}, "samples": {queries}, ...}. K: support size, 0 = leave the sample bound out. */
TV_NODISCARD tv_status tv_schedule_theory(double n, double sigma, double eps, double delta, double K, cJSON **out,
                                          tv_err *err);

/* What to run next, from a report (report.json keys n, N, R, estimators, tv): for target > 0 the trajectories a side at
 * which the headline's 95% interval has half-width <= target; for budget > 0 (next-token queries a side, in all) the
 * best use of it. Returns {"done", "reason", "trajectories", "reads", "queries", "expected_half_width", "possible"}. */
TV_NODISCARD tv_status tv_schedule_next(const cJSON *report, double target, double budget, cJSON **out, tv_err *err);

#endif
