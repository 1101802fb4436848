/* Bounds on the total variation where sampling took tokens that the records do not list (imported top-k lists). */
#ifndef TV_TRUNCATED_H
#define TV_TRUNCATED_H

#include "traces/dataset.h"

typedef struct {
    int64_t N[2];
    double *low[2], *high[2]; /* [N] of each set: bounds on max(0, 1 - q(x)/p(x)), p the set's own side, q the other */
    double unknown[2];        /* share of the positions of a set whose token's probability one side does not give */
    double tail[2];           /* mean mass of side e's records outside of their list */
    double token_low, token_high; /* next-token total variation, mean over positions */
} tv_truncated;

/* 1 when a side says that it sampled from the whole vocabulary ("top_k" 0 in its configuration). */
int tv_truncated_applies(const tv_dataset *data);
/* Over the first `reads` reads, probabilities averaged (a deterministic side's read stands for all). A token's
 * probability is its slot's, else the stored token_logprobs, else anything up to the smallest slot and the unlisted
 * mass. The caller frees with tv_truncated_free. */
void tv_truncated_run(const tv_dataset *data, int64_t reads, tv_truncated *out);
void tv_truncated_free(tv_truncated *bounds);

#endif
