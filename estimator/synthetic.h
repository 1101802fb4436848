/* Instances of known distance: pairs of finite-context chains whose log-ratio lives on a lattice, so that the total
 * variation distance follows exactly from dynamic programming; their oracles; and recorded measurements of them.
 *
 * Every draw is Philox(seed ..., TV_USE_SYNTHETIC): equal options give equal bits, whatever the threads. */
#ifndef TV_SYNTHETIC_H
#define TV_SYNTHETIC_H

#include <stdint.h>

#include "base/progress.h"
#include "estimator/multilevel.h"
#include "traces/dataset.h"

/* Log-ratio steps of tokens that only one side has. */
enum { TV_STEP_ONLY_A = 1 << 20, TV_STEP_ONLY_B = -(1 << 20) };

/* Both sides share contexts and transitions; in context c the next token is drawn from p[side][c]. */
typedef struct {
    int n, S, k;    /* tokens a trajectory, contexts, tokens a context */
    int start;      /* first context */
    double delta;   /* lattice spacing: log p[a] - log p[b] = step * delta */
    double *p[2];   /* [S,k] f64 probabilities; unused tokens have 0 on both sides */
    double *cum[2]; /* [S,k] running sums of p */
    int32_t *step;  /* [S,k] i32 */
    int32_t *next;  /* [S,k] i32: the context after the token */
    char name[32];
} tv_chain;

/* The hard instance: n = 128, 12 free bits name one of 4096 blocks, 115 bits follow for certain, and the last bit is
 * fair on both sides or, in the 1623 active blocks, 0.99/0.01 against 0.01/0.99. Tokens are named so that 0 is the
 * block's leaf bit, which changes no probability. TV = 0.98 * 1623/4096 = 0.388315... */
TV_NODISCARD tv_status tv_chain_hard(tv_chain *out, tv_err *err);
/* Rare escape: a stay token, and with probability 1/n a position one draw among K tokens (K even, >= 2), from P or from
 * Q with log P/Q = +-delta; after it the stay token is certain. TV = (1 - (1 - 1/n)^n) tanh(delta/2). */
TV_NODISCARD tv_status tv_chain_escape(int n, int K, double delta, tv_chain *out, tv_err *err);

/* A Markov pair like a language model's: contexts in topics, peaked next-token distributions, per-token log-ratios that
 * are heavy-tailed and differ between topics. mismatch: share of contexts in which one pair of tokens is exclusive (one
 * token only a has, one only b). */
typedef struct {
    int n, contexts, topics, k; /* k odd or even, >= 3 */
    double delta;               /* lattice spacing: larger is farther apart */
    double mismatch;            /* share of contexts with exclusive tokens */
    uint64_t seed;
} tv_markov_options;
TV_NODISCARD tv_status tv_chain_markov(const tv_markov_options *options, tv_chain *out, tv_err *err);
void tv_chain_free(tv_chain *chain); /* safe on a zeroed struct */

/* Exact TV, and for each side the exact share of its trajectories that the other side cannot have. Lattice tails of
 * less than 1e-18 a step are dropped. */
typedef struct {
    double tv, mismatch[2];
} tv_chain_distance;
TV_NODISCARD tv_status tv_chain_exact(const tv_chain *chain, tv_chain_distance *out, tv_err *err);

/* What one scoring call returns for a next-token distribution p. All but TV_ORACLE_GAUSS are unbiased on the simplex.
 */
typedef enum {
    TV_ORACLE_EXACT,
    TV_ORACLE_GAUSS, /* two tokens: q = p + sigma sqrt(p(1-p)) N(0,1), and 1 - q. Recorded vectors are clipped to [0,1],
                      * which biases them where p is within sigma of an end; increments use unclipped sums, floor 1e-12
                      */
    TV_ORACLE_HEAVY, /* p(a)(1 + eps_a - sum_b p_b eps_b), eps heavy-tailed (excess kurtosis about 9), lognormal scale a
                        cell */
    TV_ORACLE_SAMPLES /* one sampled token, as a one-hot vector */
} tv_oracle_kind;
typedef struct {
    tv_oracle_kind kind;
    double sigma; /* sqrt of the mean chi-square variance of one call over the contexts that side a visits */
    uint64_t seed;
} tv_oracle;

/* A recorded measurement: N trajectories from each side, `reads` passes of both sides. first: index of the first
 * trajectory, so that blocks of one measurement can be made one after another. An exact oracle makes one pass, marked
 * deterministic. Memory: 8 bytes a slot, 4 N n k (reads + 1) slots in all. */
TV_NODISCARD tv_status tv_chain_record(const tv_chain *chain, const tv_oracle *oracle, int64_t first, int64_t N,
                                       int64_t reads, tv_dataset **out, tv_err *err);
void tv_chain_record_free(tv_dataset *data);

/* Coupled increments of a chain under an oracle: a tv_increment_fn, user = tv_chain_sampler. Samples alternate between
 * the sides (X ~ M = (a+b)/2), or come from one (side 0 or 1). */
typedef struct {
    const tv_chain *chain;
    tv_oracle oracle;
    int side;      /* -1: alternate */
    double *exact; /* NULL, or [N]: receives the exact Z of each sample of the last call */
    double *level; /* NULL, or [N]: receives Z at r_fine of each sample of the last call */
} tv_chain_sampler;
TV_NODISCARD tv_status tv_chain_increment(void *sampler, int level, int64_t first, int64_t N, int64_t r_coarse,
                                          int64_t r_fine, int antithetic, double *y, tv_err *err);

/* Levels of one side's trajectories first..first+N-1 (the very paths and reads of tv_chain_record) without storing any
 * record; the reference is the exact Z. options: reads, n_levels, r and readout count. */
TV_NODISCARD tv_status tv_chain_levels(const tv_chain *chain, const tv_oracle *oracle, int side, int64_t first,
                                       int64_t N, const tv_levels_options *options, tv_levels *out, tv_err *err);

/* ---- What `synth` prints (estimator/synth_report.c, estimator/coverage.c)
 * --------------------------------------------- */

typedef struct {
    uint64_t seed;
    double effort;        /* 1 = the defaults, within 60 s on two cores; cost and precision grow in proportion */
    int coverage;         /* 1: the coverage study instead */
    int64_t replications; /* of the coverage study; 0 = 2000 */
} tv_synth_options;

/* The whole check as JSON: "instances" (exact TVs), "rates", "queries", "checks" ([] of {name, value, low, high,
 * held}), "held" (all of them), or with options->coverage "coverage". progress counts thousandths. */
TV_NODISCARD tv_status tv_synth_run(const tv_synth_options *options, const tv_progress *progress, cJSON **report,
                                    tv_err *err);

/* Mean absolute error of the mean of N exact Z against N = 32, 64, ..., X from both sides in turn. */
enum { TV_SYNTH_POINTS = 8 };
typedef struct {
    double N[TV_SYNTH_POINTS], mae[TV_SYNTH_POINTS], mae_se[TV_SYNTH_POINTS];
    double gaussian[TV_SYNTH_POINTS]; /* what normal errors of the measured variance give: sqrt(2/pi) sd / sqrt N */
    double slope;                     /* of log mae on log N */
    double mean, mean_se;             /* of Z at the largest N, to hold against tv */
} tv_synth_rate;
/* batches: groups of N that each mean absolute error averages over. tv: the chain's exact distance. */
TV_NODISCARD tv_status tv_synth_error_rate(const tv_chain *chain, double tv, uint64_t seed, int64_t batches,
                                           tv_synth_rate *out, tv_err *err);

/* Coverage of the reported 95% intervals on five instances of known TV: an array of {instance, tv, estimator,
 * replications, coverage, mean_width, bias, held, conservative}. */
TV_NODISCARD tv_status tv_coverage_run(const tv_synth_options *options, const tv_progress *progress, cJSON **report,
                                       tv_err *err);

#endif
