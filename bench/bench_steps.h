/* Single steps on request, for bench/peers: the same work as another engine's, round by round beside it. */
#ifndef TV_BENCH_STEPS_H
#define TV_BENCH_STEPS_H

#include <stdio.h>

#include "engine/tv.h"

/* Opens the model and then answers each line of `in` with one line of JSON on `out` until `in` ends:
 *
 *   open B C      room for B sequences of C positions
 *   prefill T     sequence 0 anew from T tokens: {"wall": [s], "cpu": [s]}
 *   decode b T S  from T tokens in each of b sequences (copies of sequence 0's) step after step, each with the top 20
 * of every sequence, until S seconds have passed or C positions: the seconds of each step limits        {"gflops": ..,
 * "read_gbs": ..} of the machine right now, by CPU time close
 *
 * The first line, unasked, describes the model. CPU device only. */
TV_NODISCARD tv_status tv_bench_steps(const tv_engine_options *options, FILE *in, FILE *out, tv_err *err);

#endif
