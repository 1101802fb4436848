/* Everything a measurement recorded, wherever it lies: a run folder, trace files or a bundle. What estimators read. */
#ifndef TV_DATASET_H
#define TV_DATASET_H

#include <stddef.h>
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
    /* 1: side e's passes are known to be bit-identical: one read stands for every r. Run folders and trace files: its
     * configuration draws nothing per pass ("order" is "fixed" and "arrivals" is "together") and all stored reads agree
     * in every bit. Bundles: the metadata says so, or there are two or more reads and they agree. */
    int deterministic[2];
    double temperature; /* NAN when unknown (a bundle need not say) or the sides differ in it */
    int top_k;          /* the sampling truncation; 0 when unknown */
    cJSON *manifest;    /* run.json, or NULL */
    cJSON *config[2];   /* configuration of each side, from run.json or its passes; NULL when unknown (bundles) */
    char *source;       /* the path it came from */
    void *owner;        /* private */
} tv_dataset;

/* Opens a run folder, a bundle, or several trace files of one measurement. paths holds n_paths names. Of a run folder
 * the passes 0, 1, ... up to the first that is missing count, for each (side, set) by itself; when later ones exist a
 * warning says that they do not. Files are mapped, never copied, but for a trace file whose trajectories come in
 * another order than the sample file's: its rows are put in order in memory. Refuses, naming the field and both values,
 * whatever must not meet: other tokens, lengths, prompts, temperature (of one side; two sides may differ in it when
 * their configurations say so), sampling seed, k, format; missing trajectories; two configurations of one side; a NaN
 * or log-probability above 0 (1e-3 slack); a duplicate id within a record; a set without both scorers. */
TV_NODISCARD tv_status tv_dataset_open(const char *const *paths, int n_paths, tv_dataset **out, tv_err *err);
/* A bundle from bytes in memory that outlive the dataset (fuzz entry). */
TV_NODISCARD tv_status tv_dataset_parse_bundle(const unsigned char *bytes, size_t size, const char *name,
                                               tv_dataset **out, tv_err *err);
void tv_dataset_close(tv_dataset *data); /* NULL is fine */
/* Writes the bundle form ("tvgpu-bundle/1"), atomically. */
TV_NODISCARD tv_status tv_dataset_write_bundle(const tv_dataset *data, const char *path, tv_err *err);

#endif
