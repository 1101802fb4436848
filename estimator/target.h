/* Measuring on until the reported interval is as tight as asked, or saying why it cannot be. Decides what to run next
 * (tv_schedule_next) and when to stop; who measures is the caller's. */
#ifndef TV_TARGET_H
#define TV_TARGET_H

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

typedef struct {
    double target;    /* wanted half-width of the 95% interval, in (0, 1) */
    double budget;    /* most next-token queries a side; 0 = no limit */
    int64_t block;    /* trajectories a side in a block, all measured under the same conditions */
    int64_t reads;    /* passes to begin with, at least 1 */
    int64_t at_least; /* trajectories a side before an interval is believed; 0 = 32, a pilot of 64 in all */
} tv_target_options;

/* Both calls are for blocks 0..blocks-1 with reads passes each; what earlier calls measured stays. */
typedef struct {
    void *user;
    /* Sees to it that they are measured. */
    tv_status (*measure)(void *user, int64_t blocks, int64_t reads, tv_err *err);
    /* The report over them (keys n, N, R, tv). */
    tv_status (*report)(void *user, int64_t blocks, cJSON **report, tv_err *err);
    /* One line on where it stands; may be NULL. */
    void (*say)(void *user, const char *line);
} tv_target_work;

/* Rounds of measuring, reporting and extrapolating; trajectories and reads at most double from one round to the next,
 * since a pilot's error bar is itself uncertain. Stops when the interval is within +-target, when four times the reads
 * leave the allowance for bias about where it was, when the budget does not pay for what is needed, or when nothing
 * could. Returns
 * {"target_error", "reached", "reason", "half_width", "bias_allowance", "trajectories", "reads", "queries" (a side),
 * "needed_trajectories", "needed_reads", "needed_queries" (null where nothing is needed or nothing helps), "rounds":
 * [{"trajectories", "reads", "half_width", "bias_allowance"}]}. */
TV_NODISCARD tv_status tv_target_run(const tv_target_options *options, const tv_target_work *work, cJSON **result,
                                     tv_err *err);

#endif
