/* One trace file written by a thread of its own while the next pass runs. */
#ifndef TV_CLI_TRACE_WRITER_H
#define TV_CLI_TRACE_WRITER_H

#include <pthread.h>

#include "traces/trace.h"

/* {0}: nothing under way. */
typedef struct {
    pthread_t thread;
    int busy;
    tv_trace *trace;
    char *path;
    tv_status status;
    tv_err err;
} cli_trace_writer;

/* Waits for the file under way, then begins to write trace to path; takes both, and closes and frees them. Fails as the
 * file before did: then this one is not written. Files thus appear whole, in the order of the calls. */
TV_NODISCARD tv_status cli_trace_writer_put(cli_trace_writer *writer, tv_trace *trace, char *path, tv_err *err);
/* Waits for the file under way; fails as its writing did. */
TV_NODISCARD tv_status cli_trace_writer_wait(cli_trace_writer *writer, tv_err *err);

#endif
