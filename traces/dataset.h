/* Everything a measurement recorded, wherever it lies: a run folder, trace files or a bundle. What estimators read. */
#ifndef TV_DATASET_H
#define TV_DATASET_H

#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "traces/fold.h"

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
    /* Of a scorer whose passes are folded (tv_folded below), else NULL: [reads[e]] pointers to [N,n,k[e]] f64, the
     * probabilities of ids, renormalised and averaged over the passes folded together; read rho points to the fold that
     * pass rho went into, 0 stands in empty slots, and lps, own_lp and rank are NULL. */
    const double *const *probs[2];
    int64_t blocks;             /* > 1: the four above are [reads[e],blocks] pointers to N / blocks rows each; 0 = 1 */
    const int32_t *sample_ids;  /* [N,n,k_sample] the records made while sampling, or NULL */
    const float *sample_lps;    /* [N,n,k_sample] */
    const float *sample_own_lp; /* [N,n] or NULL */
    int64_t k_sample;
} tv_set;

/* What a run with --keep-passes no leaves of its passes besides the averages. */
typedef struct {
    int side[2];      /* 1: the passes of the side are folded, over both sets */
    int any;          /* either */
    int readout;      /* k' of the averages; 0 = all slots that were stored */
    int64_t R;        /* passes that were divided into folds, of the sides that are not deterministic; 0: none such */
    int identical[2]; /* 1: all passes of the side agree in every bit */
    int64_t differing, compared; /* recorded values of the two sides against each other; -1: not known */
    int sampled[2];              /* 1: the two below are known */
    double agreement[2];         /* sampling agreement of side s over its own set */
    int64_t missing[2];
    uint64_t first_hash[2][2],
        chain[2][2][TV_FOLD_MOST]; /* [side][set] of the first pass; of the passes in each fold, in order */
} tv_folded;

typedef struct tv_dataset {
    int64_t n;
    tv_set set[2]; /* [TV_A], [TV_B]: set[s] was sampled by side s */
    /* 1: side e's passes are known to be bit-identical: one read stands for every r. Run folders and trace files: its
     * configuration draws nothing per pass ("order" is "fixed" and "arrivals" is "together") and all stored reads agree
     * in every bit. Bundles: the metadata says so, or there are two or more reads and they agree. */
    int deterministic[2];
    double temperature; /* NAN when unknown (a bundle need not say) or the sides differ in it */
    int top_k;          /* the sampling truncation; 0 when unknown */
    tv_folded folded;
    struct tv_dataset **block; /* [n_blocks] the blocks that a run with --target-error was put together from; NULL: one.
                                * Their sample_* stay in them; the sets above have none. */
    int64_t n_blocks;
    cJSON *manifest;          /* run.json, or NULL */
    cJSON *config[2];         /* configuration of each side, from run.json or its passes; NULL when unknown (bundles) */
    cJSON *sampled_config[2]; /* what the side's own trajectories were drawn under, from their file; NULL when unknown */
    cJSON *libraries[2];      /* what libraries chose for each side's steps, from its last trace; NULL: none took part */
    char *source;             /* the path it came from */
    void *owner;              /* private */
} tv_dataset;

/* Row i of stored read `read` begins at element tv_row_offset of the array that pointer tv_row_pointer leads to; width:
 * elements of a row. */
static inline int64_t tv_row_pointer(const tv_set *set, int64_t read, int64_t i) {
    return set->blocks > 1 ? read * set->blocks + i / (set->N / set->blocks) : read;
}
static inline size_t tv_row_offset(const tv_set *set, int64_t i, size_t width) {
    return (size_t)(set->blocks > 1 ? i % (set->N / set->blocks) : i) * width;
}
/* The records of trajectory i in stored read `read` of scorer e: [n,k[e]]. */
static inline const int32_t *tv_row_ids(const tv_dataset *data, int s, int e, int64_t read, int64_t i) {
    const tv_set *set = &data->set[s];
    return set->ids[e][tv_row_pointer(set, read, i)] + tv_row_offset(set, i, (size_t)(data->n * set->k[e]));
}
static inline const float *tv_row_lps(const tv_dataset *data, int s, int e, int64_t read, int64_t i) {
    const tv_set *set = &data->set[s];
    return set->lps[e][tv_row_pointer(set, read, i)] + tv_row_offset(set, i, (size_t)(data->n * set->k[e]));
}
/* The probabilities of trajectory i in read `read` of scorer e, whose passes are folded: [n,k[e]]. */
static inline const double *tv_row_probs(const tv_dataset *data, int s, int e, int64_t read, int64_t i) {
    const tv_set *set = &data->set[s];
    return set->probs[e][tv_row_pointer(set, read, i)] + tv_row_offset(set, i, (size_t)(data->n * set->k[e]));
}
/* Its token log-probabilities [n] and ranks [n]; NULL where they are not stored. */
static inline const float *tv_row_own_lp(const tv_dataset *data, int s, int e, int64_t read, int64_t i) {
    const tv_set *set = &data->set[s];
    return set->own_lp[e] ? set->own_lp[e][tv_row_pointer(set, read, i)] + tv_row_offset(set, i, (size_t)data->n)
                          : NULL;
}
static inline const int32_t *tv_row_rank(const tv_dataset *data, int s, int e, int64_t read, int64_t i) {
    const tv_set *set = &data->set[s];
    return set->rank[e] ? set->rank[e][tv_row_pointer(set, read, i)] + tv_row_offset(set, i, (size_t)data->n) : NULL;
}
/* Makes the pointer arrays of scorer e start at stored read `first`, in a copy of a set. */
static inline void tv_set_skip_reads(tv_set *set, int e, int64_t first) {
    const int64_t pointers = first * (set->blocks > 1 ? set->blocks : 1);
    set->ids[e] += pointers;
    if (set->lps[e]) set->lps[e] += pointers;
    if (set->probs[e]) set->probs[e] += pointers;
    if (set->own_lp[e]) set->own_lp[e] += pointers;
    if (set->rank[e]) set->rank[e] += pointers;
    set->reads[e] -= first;
}

/* 1 when the average over reads 0..r-1 is what the passes would give: always where nothing is folded, else where a fold
 * ends. */
int tv_dataset_knows(const tv_dataset *data, int64_t r);
/* TV_EUNSUPPORTED where passes are folded: `what` needs each by itself. */
TV_NODISCARD tv_status tv_dataset_need_passes(const tv_dataset *data, const char *what, tv_err *err);

/* Opens a run folder, a bundle, or several trace files of one measurement. paths holds n_paths names. Of a run folder
 * the passes 0, 1, ... up to the first that is missing count, for each (side, set) by itself; when later ones exist a
 * warning says that they do not. Files are mapped, never copied, but for a trace file whose trajectories come in
 * another order than the sample file's: its rows are put in order in memory. Folders block-0001, block-0002, ... in a
 * run folder are further trajectories of the same run: those count that have a complete pass of each side over each
 * set, in order up to the first that has not, and of all of them the reads that every one has. Refuses, naming the
 * field and both values, whatever must not meet: other tokens, lengths, prompts, temperature (of one side; two sides
 * may differ in it when their configurations say so), sampling seed, k, format; missing trajectories; two
 * configurations of one side; a NaN or log-probability above 0 (1e-3 slack); a duplicate id within a record; a set
 * without both scorers. A run folder may hold the folds of a side's passes instead (traces/fold.h), complete ones, over
 * both sets and with the sample files beside them; both sides folded alike, or the other one deterministic. */
TV_NODISCARD tv_status tv_dataset_open(const char *const *paths, int n_paths, tv_dataset **out, tv_err *err);
/* A bundle from bytes in memory that outlive the dataset (fuzz entry). */
TV_NODISCARD tv_status tv_dataset_parse_bundle(const unsigned char *bytes, size_t size, const char *name,
                                               tv_dataset **out, tv_err *err);
void tv_dataset_close(tv_dataset *data); /* NULL is fine */
/* Writes the bundle form ("tvgpu-bundle/1"), atomically. */
TV_NODISCARD tv_status tv_dataset_write_bundle(const tv_dataset *data, const char *path, tv_err *err);

#endif
