/* Do two recordings agree to the bit, and how far apart are replayed and sampling-time log-probabilities? */
#ifndef TV_AGREEMENT_H
#define TV_AGREEMENT_H

#include <stdint.h>

#include "traces/dataset.h"

/* Counts recorded values (slots, token log-probabilities, ranks) that differ between read rho_x of scorer x and read
 * rho_y of scorer y over set s, and those compared. Slots are matched by id, so their order within a record does not
 * matter; a slot counts as one value (id and log-probability). A value that only one of them stores is not compared. */
void tv_reads_compare(const tv_dataset *data, int s, int x, int64_t rho_x, int y, int64_t rho_y, int64_t *differing,
                      int64_t *of);

/* The two sides against each other, over both sets and all passes (pass with pass; a deterministic side's read stands
 * for all). Returns 1 when nothing differs. Of folded passes: what was counted while they were there, or -1 in both
 * where the sides were folded apart; that nothing differs is known also then. */
int tv_sides_compare(const tv_dataset *data, int64_t *differing, int64_t *of);

/* 1 when side e stored at least two reads and all of them agree over both sets. */
int tv_reads_identical(const tv_dataset *data, int e);

/* Largest |difference| in nats between the records made while sampling set s and its own side's replays; missing counts
 * sampled slots that a replay did not record. Returns 0 when no sampling records are stored. */
int tv_sampling_agreement(const tv_dataset *data, int s, double *largest, int64_t *missing);

/* The log-probabilities of set s's tokens in its own side's passes, minus those recorded while sampling. */
typedef struct {
    int64_t values;   /* compared: finite in both, over all stored passes */
    double mean, rms; /* nats */
    double equal;     /* share that agree to the bit */
} tv_scoring_bias;
/* Returns 0 when not both of them are stored. */
int tv_scoring_bias_run(const tv_dataset *data, int s, tv_scoring_bias *out);

#endif
