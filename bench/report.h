/* What every bench says about the machine it ran on, and its numbers as a table. */
#ifndef TV_BENCH_REPORT_H
#define TV_BENCH_REPORT_H

#include <cjson/cJSON.h>

#include "base/status.h"

/* {"name", "processor", "family", "model", "cpus"}: the processor, not the host. name is fit for a file:
 * "amd-epyc-25-1-2-cpus". */
cJSON *tv_bench_machine(void);
/* A line for each number in json: its place ("engine/replay/batch 8/tokens_per_second"), median, MAD, best, runs;
 * single numbers stand under median. Lists of numbers, and what describes a row, have no line. path: a file. */
TV_NODISCARD tv_status tv_bench_csv(const cJSON *json, const char *path, tv_err *err);

#endif
