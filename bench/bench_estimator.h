/* Throughput of the estimators, beside a NumPy implementation of the same. */
#ifndef TV_BENCH_ESTIMATOR_H
#define TV_BENCH_ESTIMATOR_H

#include <stdint.h>

#include "base/json.h"

typedef struct {
    int64_t N, reads;    /* trajectories a side of the measured block, passes; 0 = 64 and 8 */
    int n, k;            /* tokens, slots; 0 = 500 and 20 */
    double cells;        /* (trajectory, position, pass) cells that the plug-in reads, block after block; 0 = 6.6e7 */
    const char *python;  /* interpreter with NumPy, or NULL: no comparison */
    const char *script;  /* path of bench/peers/numpy_estimator.py */
    const char *scratch; /* folder for the bundle that the script reads */
} tv_bench_estimator_options;

/* Measures on a recorded Markov pair with heavy-tailed noise: {"plugin": {"cells_per_second", "seconds", "cells",
 * "read_gb_per_second", "machine_read_gb_per_second", "read_fraction"},
 * "hedged":
 * {"cells_per_second", "cells", "isa"}, "numpy": {...}, "plugin_ratio", "hedged_ratio"}: "cells" of the plug-in are
 * (trajectory, position, pass) of both scorers, of the hedged estimator (trajectory, position) at two reads a side with
 * automatic parameters. Fails when the two implementations disagree by more than 1e-9. */
TV_NODISCARD tv_status tv_bench_estimator(const tv_bench_estimator_options *options, cJSON **out, tv_err *err);

#endif
