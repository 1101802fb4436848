/* What the sides do token by token: distances of next-token distributions, agreement, and the worst positions. */
#ifndef TV_TOKEN_METRICS_H
#define TV_TOKEN_METRICS_H

#include <stdint.h>

#include "estimator/distance.h"
#include "estimator/histogram.h"

enum { TV_WORST = 20, TV_POSITIONS = 64 };

/* Records averaged over the reads, at every position of every trajectory, over the union of both sides' ids. Means
 * weigh the two sets equally and the positions of a set equally. */
typedef struct {
    double mean, p50, p99, max;
} tv_token_summary;

typedef struct {
    int set;
    int64_t trajectory, position; /* trajectory: index in the set */
    int32_t token;
    double p[2];   /* averaged probability of the token under a and b; 0 = absent from every read */
    double delta;  /* log p_b - log p_a; +-inf when one is 0; NaN when both are */
    double margin; /* log p1 - log p2 of the sampling side there, over its two most likely tokens; +inf: it saw one */
    double gap; /* nats from the token up to the last recorded slot of the side that lacks it; NaN when not recorded */
} tv_worst_token;

typedef struct {
    int64_t n_positions;                          /* buckets used */
    int64_t from[TV_POSITIONS], to[TV_POSITIONS]; /* positions from..to-1 */
    double tv[TV_POSITIONS], flips[TV_POSITIONS]; /* mean token TV; share of positions with another most likely token */
} tv_token_profile;

typedef struct {
    int64_t cells; /* positions counted, both sets */
    int64_t empty; /* positions left out because a side recorded nothing */
    tv_token_summary tv, js;
    tv_token_summary kl_ab, kl_ba; /* over the shared support, renormalised on it; finite by construction */
    double kl_ab_infinite,
        kl_ba_infinite; /* share of positions where the left side has mass that the right one lacks */
    double same_top1, topk_overlap;
    /* delta = log q_b - log q_a of the trajectory's own token, where both are positive (delta_cells of them). */
    int64_t delta_cells;
    double delta_mean, delta_rms, delta_mean_abs, delta_p01, delta_p05, delta_p50, delta_p95, delta_p99, delta_min,
        delta_max;
    uint64_t delta_zero, delta_octave[32]; /* |delta| exactly 0; |delta| in [2^(j-24), 2^(j-23)), ends open */
    /* From x drawn by own, l = log q_other - log q_own clamped to +-20: the names that RL trainers know. Index: set. */
    double k3[2], chi2_token[2], mult_prob_error[2];
    /* Greedy decoding: share of trajectories with a flip of the most likely token, and where the first one lies. */
    double flip_share, first_flip_median; /* NaN without flips */
    double flip_margin_p50;               /* median log p1 - log p2 of the sampling side at flips; NaN without */
    double near_tie_mismatch; /* share of trajectories; NaN when no token_logprobs tell the gap of a mismatch */
    int near_tie_known;
    tv_token_profile profile;
    int64_t n_worst;
    tv_worst_token worst[TV_WORST];
    double *mean_tv[2]; /* [N[s]] mean token TV of each trajectory, for error bars */
} tv_token_metrics;

/* reads: R >= 1 (a deterministic side's read stands for all). A mismatch is "near-tie" when at each of the trajectory's
 * positions without mass the missing token lay less than one bf16 step of the logit under the last recorded slot. */
TV_NODISCARD tv_status tv_token_metrics_run(const tv_dataset *data, int64_t reads, tv_readout readout,
                                            tv_token_metrics *out, tv_err *err);
void tv_token_metrics_free(tv_token_metrics *m);

/* The step of the bf16 grid that the logits behind one record lie on, in logits: the largest power of two that divides
 * all their differences. Records of f32 logits, or with fewer than three different values, tell nothing: 2^-4, the step
 * of a logit between 8 and 16. lps [k] f32, ids [k] i32. */
double tv_bf16_step(const int32_t *ids, const float *lps, int64_t k, double temperature);

#endif
