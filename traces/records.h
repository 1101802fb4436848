/* Checks of recorded next-token distributions, shared by trace files and bundles. */
#ifndef TV_RECORDS_H
#define TV_RECORDS_H

#include <stdint.h>

#include "base/status.h"

/* One pass: a record of k slots for each of n positions of N trajectories. */
typedef struct {
    int64_t N, n, k;
    const int32_t *ids;     /* [N,n,k] i32, < 0 = empty slot */
    const float *lps;       /* [N,n,k] f32 */
    const float *own;       /* [N,n] f32 log-probability of the trajectory's token, or NULL */
    const int32_t *rank;    /* [N,n] i32, or NULL */
    const int32_t *lengths; /* [N] i32, or NULL: all n. Records behind a trajectory's end are not looked at */
    int strict;             /* 1: trace files: descending, ties by lowest id, empty slots last, exactly -1 and -inf */
    /* names for messages; index [i,t,j] is appended, preceded by read when it is >= 0 */
    const char *file, *ids_name, *lps_name, *own_name, *rank_name;
    int64_t read;
} tv_records;

/* TV_EFORMAT at the first record (in order of trajectory, then position) with a NaN or a log-probability above 1e-3, an
 * id twice, a mass above 1 + 1e-3, a negative rank, or, when strict, an order that is not the format's. Uses threads.
 */
TV_NODISCARD tv_status tv_records_check(const tv_records *records, tv_err *err);

/* Checks tokens [N,n] i32: >= 0 up to a trajectory's length, exactly -1 behind it; lengths [N] (NULL: all n) in 0..n.
 */
TV_NODISCARD tv_status tv_tokens_check(const int32_t *tokens, const int32_t *lengths, int64_t N, int64_t n,
                                       const char *file, const char *tokens_name, const char *lengths_name,
                                       tv_err *err);
/* Checks trajectory [N] i64: >= 0 and no two alike. */
TV_NODISCARD tv_status tv_trajectories_check(const int64_t *trajectory, int64_t N, const char *file, const char *name,
                                             tv_err *err);

#endif
