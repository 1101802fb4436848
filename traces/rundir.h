/* A run folder: the manifest that says what the run is, and the files it has finished. */
#ifndef TV_RUNDIR_H
#define TV_RUNDIR_H

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "traces/trace.h"

typedef struct tv_rundir tv_rundir;

/* Makes or reopens DIR for the run that manifest describes. An existing run.json must agree in every field except those
 * under the top-level keys "timing" and "host"; the first that differs is named with both values (TV_EARG). Leftover
 * temporary files of killed runs are removed. The manifest is copied. A folder with other content and no run.json is
 * refused (TV_EARG), one that cannot be read or written is an error now rather than after the first pass (TV_EIO).
 * Several processes may open the same folder for the same run at once. */
TV_NODISCARD tv_status tv_rundir_open(const char *dir, const cJSON *manifest, tv_rundir **out, tv_err *err);
void tv_rundir_close(tv_rundir *run); /* NULL is fine */
const char *tv_rundir_path(const tv_rundir *run);
int tv_rundir_resumed(const tv_rundir *run); /* 1 when run.json was already there */
/* The stored run.json of a resumed run, else the copy of what was given; owned by run. */
const cJSON *tv_rundir_manifest(const tv_rundir *run);

/* Removes what killed runs left half-written in dir; files of a living process stay. */
void tv_rundir_clean(const char *dir);

/* "DIR/a.samples.safetensors"; the caller frees. side: TV_A or TV_B (traces/dataset.h). */
char *tv_samples_path(const char *dir, int side);
/* "DIR/a-on-b.pass-0007.safetensors": pass of side a over set b; the caller frees. */
char *tv_pass_path(const char *dir, int side, int set, int64_t pass);
/* The same of a run's folder. */
char *tv_rundir_samples_path(const tv_rundir *run, int side);
char *tv_rundir_pass_path(const tv_rundir *run, int side, int set, int64_t pass);
/* "DIR/process-2-of-4.alive", for index 1 of 4: touched and locked while that process works on the run; the caller
 * frees. */
char *tv_rundir_alive_path(const char *dir, int index, int count);
/* 1 when the file is there (renamed into place, so complete). */
int tv_rundir_has_samples(const tv_rundir *run, int side);
int tv_rundir_has_pass(const tv_rundir *run, int side, int set, int64_t pass);
/* Reads such a file name (without folder): 1 and side, set, pass (-1 for samples), or 0 when it is none. */
int tv_rundir_parse_name(const char *name, int *side, int *set, int64_t *pass);

/* Bytes that a run writes: both sample files with k slots each, passes[side] passes of each side over both sets, and a
 * report. N [2] trajectories per set. With run, files that are already there are left out; run may be NULL. */
uint64_t tv_rundir_disk_need(const tv_rundir *run, const int64_t *N, int64_t n, int64_t k, const int64_t *passes,
                             int64_t n_prompt_ids);
/* TV_ENOMEM when the file system of dir (which need not exist yet) has less than need bytes free: says how much is
 * needed, how much there is, and which options reduce it. */
TV_NODISCARD tv_status tv_rundir_check_disk(const char *dir, uint64_t need, tv_err *err);

/* The first field in which x and y differ, as text "a.backend is \"flash\" in X and \"math\" in Y" in fresh memory,
 * with the names given for X and Y; NULL when they agree. Members of the top-level object named in ignore
 * (NULL-terminated; may be NULL) are skipped; the order of members does not matter. */
char *tv_fields_differ(const cJSON *x, const char *x_name, const cJSON *y, const char *y_name,
                       const char *const *ignore);

#endif
