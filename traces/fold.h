/* Folded passes (--keep-passes no): sums over consecutive passes in place of the passes, so that disk and time to read
 * them back do not grow with R. What a pass adds is in its renormalised readout; a fold never sees it again. */
#ifndef TV_FOLD_H
#define TV_FOLD_H

#include <stdint.h>

#include "base/status.h"
#include "traces/trace.h"

enum { TV_FOLD_MOST = 7 };

/* Where the folds of R passes end: passes bound[f]..bound[f+1]-1 are fold f. The bounds are those of every average that
 * the report takes in stored order: both halves of R (of R - 1 where R is odd), and the quarters that the hedged floor
 * takes; 4 folds where 4 divides R. Returns the number of folds. bound [TV_FOLD_MOST + 1]; R >= 1. */
int tv_fold_bounds(int64_t R, int64_t *bound);
/* The fold that pass 0 <= pass < R belongs to. */
int tv_fold_of_pass(int64_t R, int64_t pass);

/* What else a pass shows, measured while it is still there; zero where it was not measured. */
typedef struct {
    int64_t differing, compared; /* recorded values against the other side's pass; compared 0: not measured here */
    int sampled;                 /* 1: the two below are known (a side over its own set, recorded while sampling) */
    double agreement;            /* largest |difference| in nats from the records of the sampling; may be inf */
    int64_t missing;             /* sampled slots that the pass did not record */
} tv_fold_facts;

typedef struct {
    int side, set, index;
    int64_t R, first, end, count; /* of R passes this fold takes first..end-1, of which count are in */
    int readout;                  /* k' that each pass was renormalised over; 0 = all its slots */
    int64_t N, n, k;              /* k: slots of the largest union so far, at least 1 */
    int32_t *ids;                 /* [N,n,k] i32, -1 = empty; owned */
    double *sums; /* [N,n,k] f64: sums of probabilities, descending, ties by lowest id; 0 = empty; owned */
    double temperature;
    uint64_t set_hash;   /* of the trajectories scored */
    char *config_json;   /* the serving configuration of the side; owned */
    int identical;       /* 1: all count passes agree in every recorded bit */
    uint64_t first_hash; /* of the first pass in the fold */
    uint64_t chain;      /* of all passes in their order: equal chains mean equal passes */
    tv_fold_facts facts; /* sums, and the largest agreement, over the passes */
} tv_fold;

/* "DIR/a-on-b.fold-0.safetensors"; the caller frees. */
char *tv_fold_path(const char *dir, int side, int set, int index);
/* Reads such a file name (without folder): 1 and side, set, index; or 0 when it is none. */
int tv_fold_parse_name(const char *name, int *side, int *set, int *index);
/* A hash of the trajectories of a trace: tokens, lengths, identities. */
uint64_t tv_fold_set_hash(int64_t N, int64_t n, const int32_t *tokens, const int32_t *lengths,
                          const int64_t *trajectory);

/* The readout of one record: p [k] f64, the probabilities of its slots renormalised over the `readout` most likely (0:
 * all), 0 in empty slots and outside. ids [k] i32, lps [k] f32. Given, because estimators must read averages of exactly
 * what they make of single passes (tv_record_probs). */
typedef double tv_fold_record(const int32_t *ids, const float *lps, int64_t k, int readout, double *p);

/* An empty fold `index` of R for passes like this one. */
tv_fold *tv_fold_new(const tv_trace *pass, int64_t R, int index, int readout);
/* Adds the next pass: passes come in the order of their numbers, so that every bit of the sums is the same however
 * often the run was stopped. TV_EARG, naming the field: another number, side, set, configuration, temperature or
 * trajectories; TV_ENOMEM. */
TV_NODISCARD tv_status tv_fold_add(tv_fold *fold, const tv_trace *pass, tv_fold_record *record,
                                   const tv_fold_facts *facts, tv_err *err);
/* Writes it atomically; equal folds give equal bytes. */
TV_NODISCARD tv_status tv_fold_write(const tv_fold *fold, const char *path, tv_err *err);
/* Reads and checks such a file. */
TV_NODISCARD tv_status tv_fold_open(const char *path, tv_fold **out, tv_err *err);
void tv_fold_free(tv_fold *fold); /* NULL is fine */

/* Passes of side over set folded in dir so far; 0 where there is none. With fold files, they must have been made for
 * the same R and readout (TV_EARG, naming the field). */
TV_NODISCARD tv_status tv_fold_count(const char *dir, int side, int set, int64_t R, int readout, int64_t *count,
                                     tv_err *err);
/* Folds the pass into its file in dir. */
TV_NODISCARD tv_status tv_fold_pass(const char *dir, const tv_trace *pass, int64_t R, int readout,
                                    tv_fold_record *record, const tv_fold_facts *facts, tv_err *err);
/* About how many bytes the folds of one side over one set take, when passes see twice the slots of one of them. */
uint64_t tv_fold_disk_need(int64_t N, int64_t n, int64_t slots, int64_t R);

#endif
