/* Measurements behind `tvgpu bench`: what the machine can do, and how much of it the kernels reach. Every series is
 * kept as median, MAD and best; fractions compare a kernel with limits measured in turn with it, because a shared
 * machine's speed wanders by tens of percent within minutes. */
#ifndef TV_BENCH_H
#define TV_BENCH_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdio.h>

#include "base/status.h"
#include "kernels/ops.h"

typedef struct {
    double median, mad, best; /* best: the largest (rates) */
    int n;
} tv_bench_stats;

/* Median, median absolute deviation and largest of values[0..n), n >= 1; sorts values. */
tv_bench_stats tv_bench_summary(double *values, int n);
/* Adds {"median","mad","best","n"} under key. */
void tv_bench_add(cJSON *object, const char *key, const tv_bench_stats *stats);
/* Seconds of the monotonic clock; CPU seconds of the calling thread. */
double tv_bench_wall(void);
double tv_bench_cpu(void);

/* The probe for the multiply-adds of a CPU device's products, by its description: "avx2", ...; "" where there is none
 * (matrix instructions: an f32 peak is no limit of theirs). */
const char *tv_probe_isa(const char *device);
/* Fused multiply-add rate in GFLOP/s over `threads` threads, each running for about `seconds` of its CPU time; isa:
 * "avx2", "avx512", "neon", "scalar". 0 where this machine or build has no such instructions. */
double tv_probe_fma(const char *isa, int threads, double seconds);
/* Memory to read from, as cpu_pages gives it, with pages of its own; NULL when exhausted. cpu_pages_free returns it. */
void *tv_probe_memory(size_t bytes);
/* Read rate in GB/s over buffer[0..bytes), shared out to `threads` threads, one pass; CPU time of the slowest thread.
 */
double tv_probe_read(const void *buffer, size_t bytes, int threads);

typedef struct {
    int threads;        /* 0 = all cores */
    const char *isa;    /* NULL = auto */
    int repeats;        /* of each measurement; 0 = 9 */
    const int *batches; /* rows to measure; NULL = 1, 8, 32, 128, 512 */
    int n_batches;
    tv_plan plan; /* reduction plan of the products; units 0 = serving with 132 units */
    int quick;    /* 1: only the rows of a whole step */
} tv_bench_options;

/* Read bandwidth (huge pages, 512 MiB) and FMA peak per instruction set, on 1 and on all threads. A table goes to out,
 * the same numbers into *json (NULL: not wanted; the caller deletes it). */
TV_NODISCARD tv_status tv_bench_limits(const tv_bench_options *options, FILE *out, cJSON **json, tv_err *err);

/* Every product of a model of Qwen3-0.6B's shape on a device, with weights that no cache holds, and a whole step of
 * them (28 layers and the logits): GFLOP/s, GB/s of weights, and, on the CPU device, the fraction of the limit that
 * binds (FMA peak or read bandwidth, whichever allows less). Needs about 0.7 GB of device memory. */
TV_NODISCARD tv_status tv_bench_ops(const tv_ops *ops, const tv_bench_options *options, FILE *out, cJSON **json,
                                    tv_err *err);

#endif
