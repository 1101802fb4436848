#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/common.h"

double tv_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Columns of the terminal; 80 when it does not say. */
static int columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

/* One line that fits: label, bar, share, rate and time left. A longer one would wrap, and the next could not replace
 * it. */
static void draw(const tv_bar *bar, double fraction, double rate, const char *eta) {
    char tail[96], cells[41];
    int n_tail = snprintf(tail, sizeof tail, " %3.0f%%  %.4g %s/s  %s left", 100 * fraction, rate * bar->unit_scale,
                          bar->unit, eta);
    int room = columns() - 1, label = room - n_tail, width = 0;
    if (label > 26 + 8) width = label - 26 - 3 < 40 ? label - 26 - 3 : 40, label = 26;
    if (label < 0) label = 0;
    int full = (int)(fraction * width);
    for (int i = 0; i < width; i++) cells[i] = i < full ? '#' : '.';
    cells[width] = 0;
    fprintf(stderr, "\r\033[K%-*.*s", label, label, bar->label);
    if (width) fprintf(stderr, " [%s]", cells);
    fprintf(stderr, "%.*s", room, tail);
    fflush(stderr);
}

static void report(void *user, uint64_t done, uint64_t total) {
    tv_bar *bar = user;
    if (bar->quiet) return;
    double now = tv_clock();
    uint64_t whole = bar->total ? bar->total : total, at = bar->done_before + done;
    bar->last = at;
    /* a terminal is redrawn ten times a second, a log file gets a line every ten seconds */
    if (now - bar->shown < (bar->terminal ? 0.1 : 10)) return;
    bar->shown = now;
    double elapsed = now - bar->started, fraction = whole ? (double)at / (double)whole : 0;
    if (fraction > 1) fraction = 1;
    double rate = elapsed > 0 && at > bar->first ? (double)(at - bar->first) / elapsed : 0;
    char eta[32] = "?";
    if (rate > 0 && whole >= at) cli_duration(eta, sizeof eta, (double)(whole - at) / rate);
    if (bar->terminal)
        draw(bar, fraction, rate, eta);
    else
        fprintf(stderr, "tvgpu: %s: %.0f%%, %.4g %s/s, %s left\n", bar->label, 100 * fraction, rate * bar->unit_scale,
                bar->unit, eta);
}

void tv_bar_start(tv_bar *bar, const char *label, const char *unit, double unit_scale, uint64_t total, int quiet) {
    memset(bar, 0, sizeof *bar);
    snprintf(bar->label, sizeof bar->label, "%s", label);
    bar->unit = unit;
    bar->unit_scale = unit_scale;
    bar->total = total;
    bar->started = tv_clock();
    bar->terminal = isatty(STDERR_FILENO);
    bar->shown = bar->terminal ? 0 : bar->started;
    bar->quiet = quiet;
    bar->progress.fn = report;
    bar->progress.user = bar;
}

void tv_bar_part(tv_bar *bar, const char *label, uint64_t done_before) {
    snprintf(bar->label, sizeof bar->label, "%s", label);
    /* what an earlier run finished is not this run's speed */
    uint64_t skipped = done_before > bar->last ? done_before - bar->last : 0;
    bar->first += skipped;
    bar->last = done_before;
    bar->done_before = done_before;
}

void tv_bar_finish(tv_bar *bar) {
    if (bar->quiet || bar->last <= bar->first) return;
    double elapsed = tv_clock() - bar->started;
    if (bar->terminal)
        fputs("\r\033[K", stderr);
    else if (elapsed > 1) {
        char took[32];
        cli_duration(took, sizeof took, elapsed);
        fprintf(stderr, "tvgpu: done in %s, %.4g %s/s\n", took,
                (double)(bar->last - bar->first) / elapsed * bar->unit_scale, bar->unit);
    }
    fflush(stderr);
}
