/* One trace file written by a thread of its own while the next pass runs. */
#include "cli/trace_writer.h"

#include <stdlib.h>

static void finish(cli_trace_writer *w) {
    tv_trace_close(w->trace);
    free(w->path);
    w->trace = NULL, w->path = NULL;
}

static void *write_trace(void *user) {
    cli_trace_writer *w = user;
    w->status = tv_trace_write(w->trace, w->path, &w->err);
    return NULL;
}

tv_status cli_trace_writer_put(cli_trace_writer *w, tv_trace *trace, char *path, tv_err *err) {
    tv_status s = cli_trace_writer_wait(w, err);
    w->trace = trace, w->path = path;
    if (s == TV_OK && !pthread_create(&w->thread, NULL, write_trace, w)) {
        w->busy = 1;
        return TV_OK;
    }
    if (s == TV_OK) s = tv_trace_write(trace, path, err); /* where the system has no thread left */
    finish(w);
    return s;
}

tv_status cli_trace_writer_wait(cli_trace_writer *w, tv_err *err) {
    if (!w->busy) return TV_OK;
    pthread_join(w->thread, NULL);
    w->busy = 0;
    finish(w);
    if (w->status == TV_OK) return TV_OK;
    tv_status s = TV_FAIL(err, w->status, "%s", w->err.message);
    tv_err_clear(&w->err);
    return s;
}
