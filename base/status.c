#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tv_status tv_err_set(tv_err *err, tv_status code, const char *file, int line, const char *fmt, ...) {
    if (err && err->code == TV_OK) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
        err->code = code;
        err->file = file;
        err->line = line;
    }
    return code;
}

void tv_err_clear(tv_err *err) { memset(err, 0, sizeof *err); }

void tv_assert_failed(const char *expr, const char *file, int line) {
    fprintf(stderr, "tvgpu: internal error: %s is false at %s:%d (please report this)\n", expr, file, line);
    abort();
}
