/* Messages for the person at the terminal; all go to stderr. */
#ifndef TV_LOG_H
#define TV_LOG_H

#include "base/status.h"

/* "tvgpu: MESSAGE" on its own line; a progress bar on the line is cleared first. */
void tv_note(const char *fmt, ...) TV_PRINTF(1, 2);
/* "tvgpu: warning: MESSAGE". */
void tv_warn(const char *fmt, ...) TV_PRINTF(1, 2);
/* Silences tv_note (warnings stay): --quiet and tests. */
void tv_log_quiet(int quiet);

#endif
