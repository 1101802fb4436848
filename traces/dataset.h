/* Everything a measurement recorded, wherever it lies: a run folder, trace files or a bundle. What estimators read. */
#ifndef TV_DATASET_H
#define TV_DATASET_H

#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

enum { TV_A = 0, TV_B = 1 };

/* The trajectories that one side sampled, with every pass of both sides over them. */
typedef struct {
    int64_t N;
    const int32_t *tokens;         /* [N,n] i32 */
    const int32_t *lengths;        /* [N] i32, or NULL: all n */
    const int32_t *prompt_index;   /* [N] i32, or NULL: one prompt */
    const int64_t *trajectory;     /* [N] i64, or NULL: 0..N-1 */
    int64_t reads[2];              /* passes stored by scorer e over this set */
    int64_t k[2];                  /* slots stored by scorer e over this set */
    const int32_t *const *ids[2];  /* [reads[e]] pointers to [N,n,k[e]] i32; id < 0 = empty slot; slots in any order */
    const float *const *lps[2];    /* [reads[e]] pointers to [N,n,k[e]] f32; of empty slots: ignored */
    const float *const *own_lp[2]; /* [reads[e]] pointers to [N,n] f32 (token_logprobs), or NULL when not stored */
    const int32_t *const *rank[2]; /* [reads[e]] pointers to [N,n] i32 (token_rank), or NULL */
    const int32_t *sample_ids;     /* [N,n,k_sample] the records made while sampling, or NULL */
    const float *sample_lps;       /* [N,n,k_sample] */
    const float *sample_own_lp;    /* [N,n] or NULL */
    int64_t k_sample;
} tv_set;

typedef struct {
    int64_t n;
    tv_set set[2]; /* [TV_A], [TV_B]: set[s] was sampled by side s */
    /* 1: side e's passes are known to be bit-identical (the run stopped repeating): one read stands for every r. */
    int deterministic[2];
    double temperature;
    int top_k;       /* the sampling truncation; 0 when unknown */
    cJSON *manifest; /* run.json, or NULL */
    char *source;    /* the path it came from */
    void *owner;     /* private */
} tv_dataset;

/* Opens a run folder (its complete passes), a bundle, or several trace files of one measurement. paths holds n_paths
 * names. Files are mapped, never copied. Refuses, naming the field, whatever must not meet: other tokens, temperature,
 * k, format, trajectories; a NaN or log-probability above 0 (1e-3 slack); a duplicate id within a record; a set without
 * both scorers. */
TV_NODISCARD tv_status tv_dataset_open(const char *const *paths, int n_paths, tv_dataset **out, tv_err *err);
void tv_dataset_close(tv_dataset *data);
/* Writes the bundle form ("tvgpu-bundle/1"). */
TV_NODISCARD tv_status tv_dataset_write_bundle(const tv_dataset *data, const char *path, tv_err *err);

#endif
