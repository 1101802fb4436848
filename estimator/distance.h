/* Distances between two sides from recorded reads: realised probabilities, Z, plug-in, prefixes, floors. */
#ifndef TV_DISTANCE_H
#define TV_DISTANCE_H

#include <stdint.h>

#include "traces/dataset.h"

/* Which readout a record gives. */
typedef struct {
    int readout; /* k' <= stored k: the k' most likely slots; 0 = all */
    int raw;     /* 1: do not renormalise over the slots */
} tv_readout;

/* Realised-token probabilities q[rho,i,t] of scorer e over set s for trajectories i0..i1-1 and reads 0..R-1 (a deterministic
 * side's read is repeated). q: [R][i1-i0][n] doubles, 0 where the token is absent; positions behind a trajectory's end: 1. */
TV_NODISCARD tv_status tv_realised(const tv_dataset *data, int e, int s, int64_t R, int64_t i0, int64_t i1, tv_readout readout,
                                   double *q, tv_err *err);

/* Z = tanh(|log own - log other| / 2); 1 when either or both are -inf (the mismatch). Never NaN for non-NaN input. */
double tv_z(double log_x, double log_y);
/* The summand of Algorithm 1 for X drawn from own: (1 - exp(other - own))_+; other dead: 1; own dead: 0. */
double tv_likelihood_ratio(double log_own, double log_other);
/* sum_t log q[t] in a fixed order; -inf when any is 0. stride in doubles. */
double tv_log_product(const double *q, int64_t n, int64_t stride);

#endif
