#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/common.h"

double tv_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
    double rate = elapsed > 0 ? (double)(at - bar->first) / elapsed : 0;
    char eta[32] = "?";
    if (rate > 0 && whole >= at) cli_duration(eta, sizeof eta, (double)(whole - at) / rate);
    if (!bar->terminal) {
        fprintf(stderr, "tvgpu: %s: %.0f%%, %.4g %s/s, %s left\n", bar->label, 100 * fraction, rate * bar->unit_scale, bar->unit, eta);
        return;
    }
    char cells[25];
    int full = (int)(fraction * 24);
    for (int i = 0; i < 24; i++) cells[i] = i < full ? '#' : '.';
    cells[24] = 0;
    fprintf(stderr, "\r\033[K%-26s [%s] %3.0f%%  %.4g %s/s  %s left", bar->label, cells, 100 * fraction, rate * bar->unit_scale, bar->unit, eta);
    fflush(stderr);
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
    if (!bar->done_before && !bar->last) bar->first = done_before; /* resumed work is not this run's speed */
    bar->done_before = done_before;
}

void tv_bar_finish(tv_bar *bar) {
    if (bar->quiet || !bar->last) return;
    double elapsed = tv_clock() - bar->started;
    if (bar->terminal) fputs("\r\033[K", stderr);
    else if (elapsed > 1) {
        char took[32];
        cli_duration(took, sizeof took, elapsed);
        fprintf(stderr, "tvgpu: %s: done in %s, %.4g %s/s\n", bar->label, took, (double)(bar->last - bar->first) / elapsed * bar->unit_scale, bar->unit);
    }
    fflush(stderr);
}
