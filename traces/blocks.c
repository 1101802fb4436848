/* Run folders whose trajectories lie in several blocks (compare --target-error): one dataset over all of them. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "traces/dataset_private.h"
#include "traces/rundir.h"

static const char LETTER[] = "ab";

/* One run: the same manifest but for the trajectories of the block, the same sizes, and every trajectory once. */
static tv_status check_block(const tv_dataset *first, const tv_dataset *x, tv_err *err) {
    static const char *const ignore[] = {"timing", "host", "first_trajectory", NULL};
    char *difference = tv_fields_differ(first->manifest, first->source, x->manifest, x->source, ignore);
    if (difference) {
        tv_status s = TV_FAIL(err, TV_EFORMAT, "two blocks of different runs: %s", difference);
        free(difference);
        return s;
    }
    if (x->n != first->n)
        return TV_FAIL(err, TV_EFORMAT, "n is %" PRId64 " in %s and %" PRId64 " in %s: not one run", first->n,
                       first->source, x->n, x->source);
    for (int s = 0; s < 2; s++) {
        if (x->set[s].N != first->set[s].N)
            return TV_FAIL(err, TV_EFORMAT,
                           "set %c has %" PRId64 " trajectories in %s and %" PRId64
                           " in %s: blocks of one run are equal",
                           LETTER[s], first->set[s].N, first->source, x->set[s].N, x->source);
        for (int e = 0; e < 2; e++)
            if (x->set[s].k[e] != first->set[s].k[e])
                return TV_FAIL(err, TV_EFORMAT, "k is %" PRId64 " in %s and %" PRId64 " in %s: not one run",
                               first->set[s].k[e], first->source, x->set[s].k[e], x->source);
    }
    return TV_OK;
}

static int order_i64(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static tv_status check_once(const tv_dataset *d, int s, tv_err *err) {
    const int64_t N = d->set[s].N;
    int64_t *sorted = tv_xmalloc((size_t)N * sizeof *sorted);
    memcpy(sorted, d->set[s].trajectory, (size_t)N * sizeof *sorted);
    qsort(sorted, (size_t)N, sizeof *sorted, order_i64);
    tv_status status = TV_OK;
    for (int64_t i = 1; i < N && status == TV_OK; i++)
        if (sorted[i] == sorted[i - 1])
            status = TV_FAIL(err, TV_EFORMAT, "%s: trajectory %" PRId64 " of side %c is in two blocks", d->source,
                             sorted[i], LETTER[s]);
    free(sorted);
    return status;
}

/* The pointers of all blocks, read by read: [reads,blocks]. which: 0 ids, 1 lps, 2 own_lp, 3 rank. NULL when a block
 * has none. */
static const void *join_pointers(tv_dataset *d, int s, int e, int which) {
    const int64_t reads = d->set[s].reads[e], blocks = d->n_blocks;
    const void **all = tv_xcalloc((size_t)(reads * blocks), sizeof *all);
    for (int64_t b = 0; b < blocks; b++) {
        const tv_set *x = &d->block[b]->set[s];
        const void *const *part = which == 0   ? (const void *const *)x->ids[e]
                                  : which == 1 ? (const void *const *)x->lps[e]
                                  : which == 2 ? (const void *const *)x->own_lp[e]
                                               : (const void *const *)x->rank[e];
        if (!part) {
            free(all);
            return NULL;
        }
        for (int64_t r = 0; r < reads; r++) all[r * blocks + b] = part[r];
    }
    return tv_dataset_keep(d, all);
}

static void join_set(tv_dataset *d, int s) {
    tv_set *set = &d->set[s];
    const tv_set *first = &d->block[0]->set[s];
    const int64_t N = first->N, n = d->n;
    set->blocks = d->n_blocks;
    set->N = N * d->n_blocks;
    int32_t *tokens = tv_dataset_keep(d, tv_xmalloc((size_t)(set->N * n) * sizeof *tokens));
    int32_t *lengths = tv_dataset_keep(d, tv_xmalloc((size_t)set->N * sizeof *lengths));
    int32_t *prompt = tv_dataset_keep(d, tv_xcalloc((size_t)set->N, sizeof *prompt));
    int64_t *identity = tv_dataset_keep(d, tv_xmalloc((size_t)set->N * sizeof *identity));
    int whole = 1, prompts = 0;
    for (int64_t b = 0; b < d->n_blocks; b++) {
        const tv_set *x = &d->block[b]->set[s];
        memcpy(tokens + b * N * n, x->tokens, (size_t)(N * n) * sizeof *tokens);
        for (int64_t i = 0; i < N; i++) {
            lengths[b * N + i] = x->lengths ? x->lengths[i] : (int32_t)n;
            identity[b * N + i] = x->trajectory ? x->trajectory[i] : b * N + i;
            if (x->prompt_index) prompt[b * N + i] = x->prompt_index[i];
        }
        whole &= !x->lengths;
        prompts |= x->prompt_index != NULL;
    }
    set->tokens = tokens;
    set->lengths = whole ? NULL : lengths;
    set->prompt_index = prompts ? prompt : NULL;
    set->trajectory = identity;
    for (int e = 0; e < 2; e++) {
        set->k[e] = first->k[e];
        set->reads[e] = first->reads[e];
        for (int64_t b = 1; b < d->n_blocks; b++)
            if (d->block[b]->set[s].reads[e] < set->reads[e]) set->reads[e] = d->block[b]->set[s].reads[e];
        set->ids[e] = join_pointers(d, s, e, 0);
        set->lps[e] = join_pointers(d, s, e, 1);
        set->own_lp[e] = join_pointers(d, s, e, 2);
        set->rank[e] = join_pointers(d, s, e, 3);
    }
}

tv_status tv_dataset_join(tv_dataset *d, tv_err *err) {
    const tv_dataset *first = d->block[0];
    for (int64_t b = 1; b < d->n_blocks; b++) TV_TRY(check_block(first, d->block[b], err));
    d->n = first->n;
    d->temperature = first->temperature;
    d->top_k = first->top_k;
    d->manifest = first->manifest ? cJSON_Duplicate(first->manifest, 1) : NULL;
    for (int e = 0; e < 2; e++) {
        d->config[e] = first->config[e] ? cJSON_Duplicate(first->config[e], 1) : NULL;
        const cJSON *libraries = d->block[d->n_blocks - 1]->libraries[e];
        d->libraries[e] = libraries ? cJSON_Duplicate(libraries, 1) : NULL;
        d->sampled_config[e] = first->sampled_config[e] ? cJSON_Duplicate(first->sampled_config[e], 1) : NULL;
        d->deterministic[e] = 1;
        for (int64_t b = 0; b < d->n_blocks; b++) d->deterministic[e] &= d->block[b]->deterministic[e];
    }
    for (int s = 0; s < 2; s++) {
        join_set(d, s);
        TV_TRY(check_once(d, s, err));
    }
    return TV_OK;
}
