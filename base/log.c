#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static int quiet_notes; /* the one process-wide setting: set once by the command line */

static void print(const char *prefix, const char *fmt, va_list ap) {
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
    fputs(prefix, stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

void tv_note(const char *fmt, ...) {
    if (quiet_notes) return;
    va_list ap;
    va_start(ap, fmt);
    print("tvgpu: ", fmt, ap);
    va_end(ap);
}

void tv_warn(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    print("tvgpu: warning: ", fmt, ap);
    va_end(ap);
}

void tv_log_quiet(int quiet) { quiet_notes = quiet; }
