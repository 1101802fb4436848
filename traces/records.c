#include "traces/records.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static const float MAX_LP = 1e-3f;    /* f32 log-softmax may end a rounding above 0 */
static const float MAX_MASS = 1.001f; /* and so may a sum of exponentials */
enum { PAIRWISE_K = 128 };            /* up to here comparing all pairs beats sorting */

/* gcc vectorises at -O2 only where asked; clang does by itself, and warns when asked for it under a sanitizer. */
#ifdef __clang__
#define SIMD_OR(flag)
#else
#define PRAGMA(text) _Pragma(#text)
#define SIMD_OR(flag) PRAGMA(omp simd reduction(| : flag))
#endif

static int compare_i32(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* An id that occurs twice among ids[0..k), or -1. scratch [k] is needed above PAIRWISE_K. */
static int32_t duplicate_id(const int32_t *ids, int64_t k, int32_t *scratch) {
    if (k <= PAIRWISE_K) {
        for (int64_t a = 0; a < k; a++) {
            int32_t id = ids[a];
            int hit = 0;
            SIMD_OR(hit)
            for (int64_t b = a + 1; b < k; b++) hit |= ids[b] == id;
            if (hit && id >= 0) return id;
        }
        return -1;
    }
    memcpy(scratch, ids, (size_t)k * sizeof *ids);
    qsort(scratch, (size_t)k, sizeof *scratch, compare_i32);
    for (int64_t j = 1; j < k; j++)
        if (scratch[j] == scratch[j - 1] && scratch[j] >= 0) return scratch[j];
    return -1;
}

static float record_mass(const int32_t *ids, const float *lps, int64_t k) {
    float mass = 0;
    for (int64_t j = 0; j < k; j++)
        if (ids[j] >= 0) mass += expf(lps[j]);
    return mass;
}

/* Slot j may stand behind slot j-1 in a trace file. */
static int ordered(const int32_t *ids, const float *lps, int64_t j) {
    if (ids[j] < 0) return 1;
    if (ids[j - 1] < 0) return 0;
    return lps[j - 1] > lps[j] || (lps[j - 1] == lps[j] && ids[j - 1] < ids[j]);
}

/* Nothing to complain of in record at = i*n + t; explain() finds out what when there is. */
static int record_good(const tv_records *r, int64_t at, int32_t *scratch) {
    const int32_t *ids = r->k ? r->ids + at * r->k : NULL;
    const float *lps = r->k ? r->lps + at * r->k : NULL;
    int bad = 0;
    SIMD_OR(bad)
    for (int64_t j = 0; j < r->k; j++) bad |= (ids[j] >= 0) & !(lps[j] <= MAX_LP);
    if (r->strict) {
        SIMD_OR(bad)
        for (int64_t j = 0; j < r->k; j++) bad |= (ids[j] < 0) & ((ids[j] != -1) | !(lps[j] == -INFINITY));
        SIMD_OR(bad)
        for (int64_t j = 1; j < r->k; j++)
            bad |= (ids[j] >= 0) &
                   ((ids[j - 1] < 0) | !((lps[j - 1] > lps[j]) | ((lps[j - 1] == lps[j]) & (ids[j - 1] < ids[j]))));
    }
    if (r->own) bad |= !(r->own[at] <= MAX_LP);
    if (r->rank) bad |= r->rank[at] < 0;
    return !bad && record_mass(ids, lps, r->k) <= MAX_MASS && duplicate_id(ids, r->k, scratch) < 0;
}

/* The record at is not good: says why. */
static tv_status explain(const tv_records *r, int64_t at, int32_t *scratch, tv_err *err) {
    const int32_t *ids = r->k ? r->ids + at * r->k : NULL;
    const float *lps = r->k ? r->lps + at * r->k : NULL;
    char where[96];
    int used = r->read >= 0 ? snprintf(where, sizeof where, "%" PRId64 ",", r->read) : 0;
    snprintf(where + used, sizeof where - (size_t)used, "%" PRId64 ",%" PRId64, at / r->n, at % r->n);
    for (int64_t j = 0; j < r->k; j++) {
        if (ids[j] >= 0 && !(lps[j] <= MAX_LP))
            return TV_FAIL(err, TV_EFORMAT, "%s: %s[%s,%" PRId64 "] is %g: not a log-probability (id %d)", r->file,
                           r->lps_name, where, j, (double)lps[j], ids[j]);
        if (!r->strict) continue;
        if (ids[j] < -1)
            return TV_FAIL(err, TV_EFORMAT, "%s: %s[%s,%" PRId64 "] is %d: neither a token id nor -1 for an empty slot",
                           r->file, r->ids_name, where, j, ids[j]);
        if (ids[j] < 0 && !(lps[j] == -INFINITY))
            return TV_FAIL(err, TV_EFORMAT,
                           "%s: %s[%s,%" PRId64 "] is %g where the slot is empty (id -1) and -inf is due", r->file,
                           r->lps_name, where, j, (double)lps[j]);
        if (j && !ordered(ids, lps, j))
            return TV_FAIL(err, TV_EFORMAT,
                           "%s: %s[%s,%" PRId64
                           "] (id %d, %.9g) is out of order behind id %d, %.9g: slots descend, ties go "
                           "by lowest id, each id once, empty slots last",
                           r->file, r->lps_name, where, j, ids[j], (double)lps[j], ids[j - 1], (double)lps[j - 1]);
    }
    if (r->own && !(r->own[at] <= MAX_LP))
        return TV_FAIL(err, TV_EFORMAT, "%s: %s[%s] is %g: not a log-probability", r->file, r->own_name, where,
                       (double)r->own[at]);
    if (r->rank && r->rank[at] < 0)
        return TV_FAIL(err, TV_EFORMAT, "%s: %s[%s] is %d: a rank counts from 0", r->file, r->rank_name, where,
                       r->rank[at]);
    int32_t twice = duplicate_id(ids, r->k, scratch);
    if (twice >= 0) return TV_FAIL(err, TV_EFORMAT, "%s: %s[%s] holds id %d twice", r->file, r->ids_name, where, twice);
    return TV_FAIL(err, TV_EFORMAT, "%s: the probabilities of %s[%s] sum to %.6g, more than 1", r->file, r->lps_name,
                   where, (double)record_mass(ids, lps, r->k));
}

tv_status tv_records_check(const tv_records *r, tv_err *err) {
    int64_t first_bad = INT64_MAX;
    int wide = r->k > PAIRWISE_K;
#pragma omp parallel if (r->N * r->n > 4096) reduction(min : first_bad)
    {
        int32_t *scratch = wide ? tv_xmalloc((size_t)r->k * sizeof *scratch) : NULL;
#pragma omp for
        for (int64_t i = 0; i < r->N; i++) {
            int64_t at = i * r->n, end = at + (r->lengths ? r->lengths[i] : r->n);
            while (at < end && record_good(r, at, scratch)) at++;
            if (at < end && at < first_bad) first_bad = at;
        }
        free(scratch);
    }
    if (first_bad == INT64_MAX) return TV_OK;
    int32_t *scratch = tv_xmalloc((size_t)r->k * sizeof *scratch);
    tv_status s = explain(r, first_bad, scratch, err);
    free(scratch);
    return s;
}

tv_status tv_tokens_check(const int32_t *tokens, const int32_t *lengths, int64_t N, int64_t n, const char *file,
                          const char *tokens_name, const char *lengths_name, tv_err *err) {
    for (int64_t i = 0; i < N; i++) {
        const int32_t *x = tokens + i * n;
        int64_t length = lengths ? lengths[i] : n;
        if (length < 0 || length > n)
            return TV_FAIL(err, TV_EFORMAT, "%s: %s[%" PRId64 "] is %" PRId64 ", not within 0..%" PRId64, file,
                           lengths_name, i, length, n);
        int bad = 0;
        SIMD_OR(bad)
        for (int64_t t = 0; t < length; t++) bad |= x[t] < 0;
        SIMD_OR(bad)
        for (int64_t t = length; t < n; t++) bad |= x[t] != -1;
        if (!bad) continue;
        int64_t t = 0;
        while (t < length ? x[t] >= 0 : x[t] == -1) t++;
        return TV_FAIL(err, TV_EFORMAT, "%s: %s[%" PRId64 ",%" PRId64 "] is %d: %s", file, tokens_name, i, t, x[t],
                       t < length ? "token ids are 0 or more up to a trajectory's end"
                                  : "-1 is due behind a trajectory's end");
    }
    return TV_OK;
}

static int compare_i64(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

tv_status tv_trajectories_check(const int64_t *trajectory, int64_t N, const char *file, const char *name, tv_err *err) {
    int64_t *sorted = malloc((size_t)N * sizeof *sorted);
    if (!sorted) return TV_FAIL(err, TV_ENOMEM, "%s: no memory for %" PRId64 " trajectory ids", file, N);
    memcpy(sorted, trajectory, (size_t)N * sizeof *sorted);
    qsort(sorted, (size_t)N, sizeof *sorted, compare_i64);
    tv_status s = TV_OK;
    if (sorted[0] < 0) s = TV_FAIL(err, TV_EFORMAT, "%s: %s holds the negative id %" PRId64, file, name, sorted[0]);
    for (int64_t i = 1; i < N && s == TV_OK; i++)
        if (sorted[i] == sorted[i - 1])
            s = TV_FAIL(err, TV_EFORMAT, "%s: %s holds id %" PRId64 " twice", file, name, sorted[i]);
    free(sorted);
    return s;
}
