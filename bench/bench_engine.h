/* Speed of the engine as it is used: prefill, sampling and replay over batch sizes, against the limits of the machine.
 */
#ifndef TV_BENCH_ENGINE_H
#define TV_BENCH_ENGINE_H

#include <stdio.h>

#include "engine/tv.h"

typedef struct {
    const char *model;  /* checkpoint, or NULL: random weights of `shape`, written to a temporary folder and removed */
    const char *shape;  /* "0.6b" (NULL: that), "small" */
    const char *tmp;    /* where the temporary folder goes; NULL: /tmp */
    const char *device; /* as in tv_engine_options */
    int threads;
    const char *isa;
    int gpu;
    const int *batches; /* [n_batches]; NULL: 1, 8, 32, 128; on a card 1, 64, 512 */
    int n_batches;
    int prefill;               /* prompt tokens of the prefill row; 0: 512 */
    double seconds;            /* to measure each row for, about; 0: 3 */
    const tv_serving *serving; /* NULL: the defaults */
} tv_bench_engine_options;

/* Measures and prints a table to out (NULL: none): tokens/s (median and best of the runs), the rates of arithmetic and
 * memory that amount to with their fractions of the machine's limits as measured around each row (on a card: 0, its
 * limits are not measured), and where the time went. Trajectories have 500 tokens on a card, elsewhere what the time
 * allows, at most 64. *json (NULL: not wanted) receives the same numbers with every run's time; the caller deletes. */
TV_NODISCARD tv_status tv_bench_engine(const tv_bench_engine_options *options, FILE *out, cJSON **json, tv_err *err);

#endif
