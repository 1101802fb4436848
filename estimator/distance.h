/* Distances between two sides from recorded reads: realised probabilities, Z, plug-in, prefixes, floors.
 * Formulas: docs/estimator.md. Sums over positions and trajectories are made in double in one fixed order, so that no
 * bit depends on threads. Reads are numbered from 0; a deterministic side's last stored read stands for every later
 * one. */
#ifndef TV_DISTANCE_H
#define TV_DISTANCE_H

#include <stdint.h>

#include "traces/dataset.h"

/* Which readout a record gives. */
typedef struct {
    int readout; /* k' <= stored k: the k' most likely slots, ties by lowest id; 0 = all */
    int raw;     /* 1: do not renormalise over the slots */
} tv_readout;

/* The readout asked for (> 0); else the one that the trajectories were sampled from, top_k of the sampler, where it is
 * known and stored (of folded passes: the one they were folded with): only then is the scorer's distribution the one
 * that sampled. Else all slots. */
tv_readout tv_readout_choose(const tv_dataset *data, int64_t asked);

/* Reads of scorer e that estimators may use: the fewest over both sets. */
int64_t tv_reads_stored(const tv_dataset *data, int e);
/* The most reads that both sides can give: the fewest stored by a side that is not deterministic; when both are
 * deterministic, two (a read and its equal). */
int64_t tv_reads_usable(const tv_dataset *data);
/* Fails (TV_EARG, says what there is) unless 1 <= R and every side can give R reads, and readout <= every stored k, and
 * is the one that folded passes were folded with. */
TV_NODISCARD tv_status tv_reads_check(const tv_dataset *data, int64_t R, tv_readout readout, tv_err *err);
/* Stored read that stands for read rho of scorer e over set s. */
static inline int64_t tv_read_index(const tv_set *set, int e, int64_t rho) {
    return rho < set->reads[e] ? rho : set->reads[e] - 1;
}
/* Tokens of trajectory i of the set: n, or less where it ended. */
static inline int64_t tv_trajectory_length(const tv_dataset *data, const tv_set *set, int64_t i) {
    return set->lengths ? set->lengths[i] : data->n;
}

/* Probabilities of one record's slots: p[j] = exp(lps[j]), over the chosen slots' sum unless raw; 0 for empty slots and
 * for those outside the readout. ids [k] i32, lps [k] f32, p [k] f64. Returns the sum of p before renormalisation; NaN
 * when a log-probability is NaN or +inf. */
double tv_record_probs(const int32_t *ids, const float *lps, int64_t k, tv_readout readout, double *p);

/* The same of position t of trajectory i in stored read `read` of scorer e over set s; averages, where its passes are
 * folded. */
double tv_row_record(const tv_dataset *data, int s, int e, int64_t read, int64_t i, int64_t t, tv_readout readout,
                     double *p);

/* Realised-token probabilities q[rho,i,t] of scorer e over set s for trajectories i0..i1-1 and reads 0..R-1 (a
 * deterministic side's read is repeated). q: [R][i1-i0][n] doubles, 0 where the token is absent; positions behind a
 * trajectory's end: 1. TV_ENUMERIC names the cell of a NaN; TV_EFORMAT that of a token recorded twice. */
TV_NODISCARD tv_status tv_realised(const tv_dataset *data, int e, int s, int64_t R, int64_t i0, int64_t i1,
                                   tv_readout readout, double *q, tv_err *err);

/* Z = tanh(|log own - log other| / 2); 1 when either or both are -inf (the mismatch). Never NaN for non-NaN input. */
double tv_z(double log_x, double log_y);
/* The summand of Algorithm 1 for X drawn from own: (1 - exp(other - own))_+; other dead: 1; own dead: 0. */
double tv_likelihood_ratio(double log_own, double log_other);
/* sum_t log q[t] in a fixed order; -inf when any is 0. stride in doubles. */
double tv_log_product(const double *q, int64_t n, int64_t stride);

/* 2 Z(all reads) - (Z(first half) + Z(second half)) / 2: removes the part of the bias that goes like 1/r. */
static inline double tv_jackknife(double z_ab, double z_a, double z_b) { return 2 * z_ab - 0.5 * (z_a + z_b); }
/* Magnitude from one half of the reads, sign from the other:
 * (tanh(|D_A|/2) + tanh(|D_B|/2))/2 * sgn D_A * sgn D_B, D = log own - log other of a half. A dead half has magnitude 1
 * and sign +1 (other or both dead) or -1 (own dead only); sgn 0 = 0. */
double tv_split_sign(double own_a, double other_a, double own_b, double other_b);

/* What tv_distance_run is to compute. Zero-initialised = all reads, all slots, stored order, no prefixes, no floors. */
typedef struct {
    int64_t reads; /* R; 0 = tv_reads_usable */
    tv_readout readout;
    int permute; /* 1: shuffle the repeat axis of every cell first, replicate `replicate` of `seed` */
    int64_t replicate;
    uint64_t seed;
    const int64_t *lengths; /* [n_lengths] ascending prefix lengths in 1..n; may be NULL */
    int64_t n_lengths;
    int floors;         /* 1: also the half-split floors of both sides for r = 1..R/2 */
    int permute_floors; /* 1: with the repeat axis of every cell shuffled for the floors alone (same seed, replicate) */
} tv_distance_options;

/* Per-trajectory results over one set. log[e] is scorer e's log-probability of the whole trajectory under the average
 * of reads 0..r-1; h = R/2. */
typedef struct {
    int64_t N;
    double *log[2];     /* [R,N]: row r-1 */
    double *half[2][2]; /* half[e][0] from reads 0..h-1, half[e][1] from h..2h-1: [N]; NULL when R = 1 */
    double *prefix_z;   /* [n_lengths,N] at r = R, or NULL */
    int64_t
        *dead_at; /* [N] first position to which an averaged readout (r = R) gives zero mass; n where there is none */
    double
        *floor_z[2]; /* [h,N]: Z of scorer e's reads 0..r-1 against its reads r..2r-1, row r-1; NULL without floors */
} tv_distance_set;

typedef struct {
    int64_t n, R, h, n_lengths;
    tv_distance_set set[2];
} tv_distance;

/* One pass over the data; memory is the results above and 2 R n doubles a thread. */
TV_NODISCARD tv_status tv_distance_run(const tv_dataset *data, const tv_distance_options *options, tv_distance *out,
                                       tv_err *err);
void tv_distance_free(tv_distance *d); /* safe on a zeroed struct */

/* The plug-in at r reads. Index 0: set a, 1: set b. tv = mismatch + shared per set; the symmetric values weigh the sets
 * equally, also when N differs. */
typedef struct {
    double tv[2], mismatch[2], shared[2];
    double dead[2][2];   /* dead[s][e]: share of set s to which scorer e gives zero mass */
    double dead_both[2]; /* share to which both do */
    double tv_sym, mismatch_sym, shared_sym;
} tv_plugin;

/* r in 1..R. */
tv_plugin tv_plugin_at(const tv_distance *d, int64_t r);
/* Z at r reads of every trajectory of set s: z [N]. */
void tv_distance_z(const tv_distance *d, int s, int64_t r, double *z);
/* Algorithm 1's summand at r reads: x [N]. */
void tv_distance_likelihood_ratio(const tv_distance *d, int s, int64_t r, double *x);
/* Jackknife and split-sign from halves 0..h-1 and h..2h-1 of the reads (an odd last read is left out): x [N]. Need R
 * >= 2. */
void tv_distance_jackknife(const tv_distance *d, int s, double *x);
void tv_distance_split_sign(const tv_distance *d, int s, double *x);
/* Mean of x [n] by a compensated sum in index order. */
double tv_mean(const double *x, int64_t n);

#endif
