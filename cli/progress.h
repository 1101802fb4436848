/* One line that says how far long work is: a bar with rate and ETA on a terminal, plain lines otherwise. */
#ifndef TV_CLI_PROGRESS_H
#define TV_CLI_PROGRESS_H

#include <stdint.h>

#include "base/progress.h"

typedef struct {
    char label[64];
    const char *unit;            /* "tokens", "MB" */
    double unit_scale;           /* units per counted item: 1, or 1e-6 for bytes in MB */
    uint64_t done_before, total; /* over several calls: what earlier calls finished, and the whole */
    double started, shown;       /* seconds of the monotonic clock */
    uint64_t first, last;
    int terminal, quiet;
    tv_progress progress; /* hand &p.progress to the work */
} tv_bar;

/* Starts a bar over total items (0: taken from the work's own reports). */
void tv_bar_start(tv_bar *bar, const char *label, const char *unit, double unit_scale, uint64_t total, int quiet);
/* Says which part is running; its reports are added to what earlier parts finished. */
void tv_bar_part(tv_bar *bar, const char *label, uint64_t done_before);
/* Clears the line; without a terminal prints the closing line. */
void tv_bar_finish(tv_bar *bar);
/* Seconds of the monotonic clock. */
double tv_clock(void);

#endif
