/* What dataset.c (run folders, trace files) and bundle.c share. */
#ifndef TV_DATASET_PRIVATE_H
#define TV_DATASET_PRIVATE_H

#include "traces/dataset.h"
#include "traces/safetensors.h"
#include "traces/trace.h"

/* Everything that lives as long as the dataset. */
typedef struct {
    tv_trace **traces; /* [n_traces] */
    int64_t n_traces;
    tv_st_file *bundle; /* or NULL */
    void **kept;        /* [n_kept] malloc'ed: pointer arrays and copies */
    int64_t n_kept;
} tv_dataset_owner;

/* An empty dataset with its owner. */
tv_dataset *tv_dataset_make(const char *source);
/* Hands a malloc'ed block to the dataset and returns it. */
void *tv_dataset_keep(tv_dataset *data, void *block);
/* 1 when all reads of scorer e over both sets agree in every bit up to the trajectories' ends. */
int tv_dataset_reads_agree(const tv_dataset *data, int e);
/* Fills in the reads of scorer e from its folds in dir (traces/folded.c), and data->folded. last_pass: the largest pass
 * kept of e over each set, -1 for none. *config: the configuration that made them, owned by data; *temperature: the
 * side's. Refuses incomplete folds and those of other trajectories, R or readout. */
TV_NODISCARD tv_status tv_folded_attach(tv_dataset *data, const char *dir, int e, const int64_t *last_pass,
                                        const char **config, double *temperature, tv_err *err);
/* Once both sides are filled in: takes identical passes for deterministic, and refuses a folded side beside a kept one
 * that is not deterministic, or one of another R. */
TV_NODISCARD tv_status tv_folded_check(tv_dataset *data, tv_err *err);
/* Turns d, whose block [n_blocks >= 2] are filled, into all their trajectories together (traces/blocks.c). Refuses
 * blocks that are not one run. */
tv_status tv_dataset_join(tv_dataset *data, tv_err *err);
/* Refuses when the four k or the two n differ; sets data->n. */
tv_status tv_dataset_check_k(const tv_dataset *data, tv_err *err);
/* Fills data from a bundle file, which data then owns (also on failure). */
tv_status tv_bundle_load(tv_dataset *data, tv_st_file *file, tv_err *err);

#endif
