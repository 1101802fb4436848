/* A run folder: the manifest that says what the run is, and the files it has finished. */
#ifndef TV_RUNDIR_H
#define TV_RUNDIR_H

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "traces/trace.h"

typedef struct tv_rundir tv_rundir;

/* Makes or reopens DIR for the run that manifest describes. An existing run.json must agree in every field except those
 * under "timing" and "host"; the first that differs is named with both values (TV_EARG). Leftover temporary files of
 * killed runs are removed. The manifest is copied. A folder with other content and no run.json is refused. */
TV_NODISCARD tv_status tv_rundir_open(const char *dir, const cJSON *manifest, tv_rundir **out, tv_err *err);
void tv_rundir_close(tv_rundir *run);
const char *tv_rundir_path(const tv_rundir *run);
int tv_rundir_resumed(const tv_rundir *run); /* 1 when run.json was already there */

/* "DIR/a.samples.safetensors"; the caller frees. side: TV_A or TV_B. */
char *tv_rundir_samples_path(const tv_rundir *run, int side);
/* "DIR/a-on-b.pass-0007.safetensors"; the caller frees. */
char *tv_rundir_pass_path(const tv_rundir *run, int side, int set, int64_t pass);
/* 1 when the file is there (renamed into place, so complete). */
int tv_rundir_has_samples(const tv_rundir *run, int side);
int tv_rundir_has_pass(const tv_rundir *run, int side, int set, int64_t pass);

#endif
