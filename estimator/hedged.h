/* The hedged estimator: a martingale control variate from the full recorded vectors (docs/estimator.md). */
#ifndef TV_HEDGED_H
#define TV_HEDGED_H

#include <stdint.h>

#include "estimator/distance.h"
#include "traces/dataset.h"

typedef struct { double V, h, tau2; } tv_hedged_params;

/* Per-trajectory results of one arm (set s). Arrays [N] doubles. */
typedef struct {
    int64_t N;
    double *T0, *T2, *T2x, *T2pj, *C; /* C: companion of mean zero when the scorer's mean sampled the set */
    double *qv, *haz;                 /* moments behind the automatic parameters */
    double *DA, *DB;                  /* log own - log other on each half; NaN marks a dead half (never printed) */
    tv_hedged_params params;
    double faithfulness_z;            /* mean C / se; NaN when se is 0 or N < 2 */
} tv_hedged_arm;

typedef struct {
    tv_hedged_arm arm[2]; /* [TV_A], [TV_B] */
    int64_t reads;        /* even number of reads used per side */
} tv_hedged;

/* reads: even, >= 2 (a deterministic side's read stands for all). params: NULL = automatic, from the data, per arm. Threads:
 * OpenMP; bits do not depend on their number. */
TV_NODISCARD tv_status tv_hedged_run(const tv_dataset *data, int64_t reads, tv_readout readout, const tv_hedged_params *params,
                                     tv_hedged *out, tv_err *err);
void tv_hedged_free(tv_hedged *h);

#endif
