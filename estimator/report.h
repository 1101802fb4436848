/* The report: every number of a measurement as JSON (docs/estimator.md has the keys), and its two printed forms. */
#ifndef TV_REPORT_H
#define TV_REPORT_H

#include <stdio.h>

#include "base/json.h"
#include "traces/dataset.h"

typedef struct {
    int64_t reads;     /* 0 = all stored */
    int readout;       /* 0 = all slots */
    int serving_order; /* 1: do not permute the repeat axis for sigma, floors and levels */
    uint64_t seed;     /* of permutations and bootstrap draws */
} tv_report_options;

/* Computes everything the data allows; the bits do not depend on threads. TV_EARG: more reads or slots asked for than
 * stored; TV_ENUMERIC, TV_EFORMAT: a damaged record, by place. The result is a fresh cJSON object without "tvgpu",
 * "model", "a", "b", "timing" (the caller adds provenance). Numbers that do not exist are null with "<key>_reason". */
TV_NODISCARD tv_status tv_report_build(const tv_dataset *data, const tv_report_options *options, cJSON **report,
                                       tv_err *err);
/* The text that a terminal shows, answering in order: bit-identical? how far, with error bar? more than noise? where?
 */
void tv_report_print(const cJSON *report, FILE *out);
/* A self-contained HTML page with the plots (drawn by gnuplot; without it tables and one line that says so). Atomic
 * write. data may be NULL (no per-token table then). */
TV_NODISCARD tv_status tv_report_html(const cJSON *report, const char *path, tv_err *err);

#endif
