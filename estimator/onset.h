/* From which position on do the sides differ by more than each differs from itself? */
#ifndef TV_ONSET_H
#define TV_ONSET_H

#include <stdint.h>

#include "estimator/distance.h"

typedef struct {
    int64_t first; /* position of the first clear difference; -1: none */
    double tv;     /* there: mean total variation of the next-token distributions of the sides, */
    double floor;  /* the mean of both sides' distances to themselves at the same number of reads, */
    double z;      /* and their difference in standard errors; infinite where it does not vary */
    int64_t reads; /* averaged on each side of every distance */
} tv_onset;

enum { TV_ONSET_Z = 4 }; /* what counts as clear: one position in thirty thousand by chance */

/* Halves of the reads are compared, between the sides and within each, paired by trajectory, over both sets. A
 * deterministic side's distance to itself is 0; where both are, any difference is clear. Fails (TV_EARG) when a side
 * that is not deterministic has one read. */
TV_NODISCARD tv_status tv_onset_run(const tv_dataset *data, int64_t reads, tv_readout readout, tv_onset *out,
                                    tv_err *err);

#endif
