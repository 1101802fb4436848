/* Shared between the hedged estimator's driver and the two builds of its inner loop. Not for other files. */
#ifndef TV_HEDGED_INTERNAL_H
#define TV_HEDGED_INTERNAL_H

#include <stdint.h>

/* One scorer's records over one set. */
typedef struct {
    const int32_t *const *ids;  /* [reads,blocks] pointers to [N/blocks,n,k] i32 */
    const float *const *lps;    /* [reads,blocks] pointers to [N/blocks,n,k] f32 */
    const double *const *probs; /* where passes are folded, in place of lps: pointers to [N/blocks,n,k] f64; or NULL */
    int64_t k;                  /* stored slots */
    int64_t reads;              /* reads to use: even; 1 when the side is deterministic (it stands for both halves) */
} tv_hedged_side;

/* One arm: the trajectories of a set, its own scorer and the other one, and the value function's tables. */
typedef struct {
    int64_t N, n, blocks;   /* blocks: at least 1, divides N */
    const int32_t *tokens;  /* [N,n] i32 */
    const int32_t *lengths; /* [N] i32 or NULL */
    tv_hedged_side own, other;
    int64_t readout; /* most slots of a record that count; at least 1 */
    int raw;
    double tau2;
    double noise; /* a candidate's |d^AB| above it is a step: three standard deviations of its read noise */
    /* Tables over t = -1..n-1, entry t + 1: */
    const double *v; /* [n+1] V rem/n */
    const double *S; /* [n+1] sqrt(v + tau2) */
    const double *H; /* [n+1] 1 - exp(-h rem) */
} tv_hedged_job;

enum { TV_HEDGED_VALUES = 1, TV_HEDGED_MOMENTS = 2 };
enum { TV_HEDGED_MAX_ORDER = 20 };

typedef struct {
    double T0, T2, T2x, C; /* without the smoothing correction */
    double qv, haz, DA, DB, DAB;
    double gap2, mass;     /* sums over candidates of o^AB (d^A - d^B)^2, and of o^AB, where both are finite */
    double steps, inverse; /* sums over steps of o^AB, and of o^AB / d^AB^2; while the prefixes live */
} tv_hedged_row;

/* Working memory of one thread, sized by tv_hedged_scratch_new. */
typedef struct {
    int32_t *uid;                          /* [cap + 8] the union of own ids, in order of first appearance */
    double *oA, *oB, *wA, *wB;             /* [cap] averages of each half, own (o) and other (w) */
    double *dA, *dB, *dAB;                 /* [cap] log o - log w; +inf where either is 0 */
    double *xA, *xB, *xAB, *pA, *pB, *pAB; /* [cap] near slots: d/S and its powers; 0 elsewhere */
    double *nA, *nB, *nAB;                 /* [cap] near slots: own weights; 0 elsewhere */
    int32_t *hint;                         /* [2, kmax] where slot j of the last record of each side was found */
    int32_t *rid;                          /* [kmax + 4] the current record's ids */
    float *rlp;                            /* [kmax + 4] and log-probabilities */
    double *rw;                            /* [kmax + 4] and weights */
    void *block;                           /* the allocation behind them all */
} tv_hedged_scratch;

/* Where a record was refused: its side (0 own, 1 other), read and position. */
typedef struct {
    int bad, side;
    int64_t read, t;
} tv_hedged_fault;

/* Runs trajectory i; what: TV_HEDGED_VALUES and/or TV_HEDGED_MOMENTS (qv, haz; DA and DB always). */
typedef void tv_hedged_fn(const tv_hedged_job *job, tv_hedged_scratch *scratch, int64_t i, int what, tv_hedged_row *row,
                          tv_hedged_fault *fault);
tv_hedged_fn tv_hedged_trajectory_portable;
#if defined(__x86_64__)
tv_hedged_fn tv_hedged_trajectory_avx2;
#endif

/* 1/(m!), and the weight of |x|^m in the bound on the first neglected term, m = 0..TV_HEDGED_MAX_ORDER. */
extern const double tv_hedged_inverse_factorial[TV_HEDGED_MAX_ORDER + 2];
extern const double tv_hedged_term_bound[TV_HEDGED_MAX_ORDER + 2];

#endif
