/* Folded passes as the reads of a dataset. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "traces/dataset_private.h"
#include "traces/fold.h"
#include "traces/rundir.h"

static const char LETTER[] = "ab";

int tv_dataset_knows(const tv_dataset *d, int64_t r) {
    int64_t bound[TV_FOLD_MOST + 1];
    if (!d->folded.R) return 1;
    const int folds = tv_fold_bounds(d->folded.R, bound);
    for (int f = 1; f <= folds; f++)
        if (bound[f] == r) return 1;
    return 0;
}

tv_status tv_dataset_need_passes(const tv_dataset *d, const char *what, tv_err *err) {
    if (!d->folded.any) return TV_OK;
    return TV_FAIL(err, TV_EUNSUPPORTED,
                   "%s: the passes were folded (--keep-passes no), and %s needs each of them; measure again with "
                   "--keep-passes yes",
                   d->source, what);
}

static void free_folds(tv_fold **fold, int n) {
    for (int f = 0; f < n; f++) tv_fold_free(fold[f]);
}

/* All folds of e over s, whole ones, or the reason why not. */
static tv_status open_folds(const tv_dataset *d, const char *dir, int e, int s, tv_fold **fold, int *n, tv_err *err) {
    int64_t R = 0, count = 0;
    for (*n = 0; *n < TV_FOLD_MOST; ++*n) {
        char *path = tv_fold_path(dir, e, s, *n);
        tv_status status = TV_OK;
        const int there = tv_path_exists(path);
        if (there) status = tv_fold_open(path, &fold[*n], err);
        const tv_fold *x = there && status == TV_OK ? fold[*n] : NULL;
        if (x && (x->side != e || x->set != s || x->index != *n || (R && x->R != R)))
            status =
                TV_FAIL(err, TV_EFORMAT, "%s: holds fold %d of %" PRId64 " passes of %c on %c, beside one of %" PRId64,
                        path, x->index, x->R, LETTER[x->side], LETTER[x->set], R);
        else if (x && (x->n != d->n || x->N != d->set[s].N ||
                       x->set_hash != tv_fold_set_hash(d->set[s].N, d->n, d->set[s].tokens, d->set[s].lengths,
                                                       d->set[s].trajectory)))
            status = TV_FAIL(err, TV_EFORMAT, "%s: folded over other trajectories than those of %c.samples.safetensors",
                             path, LETTER[s]);
        else if (x && *n && (x->readout != fold[0]->readout || strcmp(x->config_json, fold[0]->config_json) != 0))
            status = TV_FAIL(err, TV_EFORMAT, "%s: folded under another %s than fold 0", path,
                             x->readout != fold[0]->readout ? "readout" : "configuration");
        free(path);
        if (status != TV_OK) {
            *n += x != NULL;
            return status;
        }
        if (!there) break;
        R = x->R, count += x->count;
    }
    if (!R || count < R)
        return TV_FAIL(err, TV_EFORMAT,
                       "%s: %" PRId64 " of %" PRId64
                       " passes of side %c over set %c are folded; the command that began "
                       "it goes on",
                       dir, count, R, LETTER[e], LETTER[s]);
    return TV_OK;
}

/* The folds as reads; each read that went into a fold points to it. */
static tv_status fill_set(tv_dataset *d, int e, int s, tv_fold *const *fold, int n, tv_err *err) {
    tv_set *set = &d->set[s];
    const int64_t R = fold[0]->R;
    const size_t cells = (size_t)set->N * (size_t)d->n;
    int64_t k = fold[0]->readout > 1 ? fold[0]->readout : 1; /* so that readout <= k, as where slots are stored */
    for (int f = 0; f < n; f++)
        if (fold[f]->k > k) k = fold[f]->k;
    const int32_t **ids = tv_dataset_keep(d, tv_xcalloc((size_t)R, sizeof *ids));
    const double **probs = tv_dataset_keep(d, tv_xcalloc((size_t)R, sizeof *probs));
    for (int f = 0; f < n; f++) {
        const tv_fold *x = fold[f];
        int32_t *to = malloc(cells * (size_t)k * sizeof *to);
        double *p = malloc(cells * (size_t)k * sizeof *p);
        if (to) tv_dataset_keep(d, to);
        if (p) tv_dataset_keep(d, p);
        if (!to || !p)
            return TV_FAIL(err, TV_ENOMEM, "%s: no memory for the averages of %zu positions", d->source, cells);
        for (size_t cell = 0; cell < cells; cell++)
            for (int64_t j = 0; j < k; j++) {
                const size_t from = cell * (size_t)x->k + (size_t)j, at = cell * (size_t)k + (size_t)j;
                to[at] = j < x->k ? x->ids[from] : -1;
                p[at] = j < x->k ? x->sums[from] / (double)x->count : 0;
            }
        for (int64_t rho = x->first; rho < x->end; rho++) ids[rho] = to, probs[rho] = p;
    }
    set->reads[e] = R;
    set->k[e] = k;
    set->ids[e] = ids;
    set->probs[e] = probs;
    return TV_OK;
}

/* Adds what one set's folds know besides: of one side, over all its passes. */
static void sum_up(tv_folded *to, int e, int s, tv_fold *const *fold, int n) {
    for (int f = 0; f < n; f++) {
        const tv_fold *x = fold[f];
        to->identical[e] &= x->identical && x->first_hash == fold[0]->first_hash;
        to->differing += x->facts.differing, to->compared += x->facts.compared;
        if (e != s || !x->facts.sampled) continue;
        to->sampled[s] = 1;
        to->agreement[s] = fmax(to->agreement[s], x->facts.agreement);
        to->missing[s] += x->facts.missing;
    }
}

tv_status tv_folded_attach(tv_dataset *d, const char *dir, int e, const int64_t *last_pass, const char **config,
                           double *temperature, tv_err *err) {
    tv_folded *to = &d->folded;
    int64_t R = 0;
    to->identical[e] = 1;
    for (int s = 0; s < 2; s++) {
        tv_fold *fold[TV_FOLD_MOST] = {NULL};
        int n;
        tv_status status = open_folds(d, dir, e, s, fold, &n, err);
        if (status == TV_OK && last_pass[s] >= fold[0]->R)
            status = TV_FAIL(err, TV_EFORMAT,
                             "%s: side %c has folded passes 0 to %" PRId64 " over set %c and kept pass %" PRId64
                             ": two runs in one folder",
                             dir, LETTER[e], fold[0]->R - 1, LETTER[s], last_pass[s]);
        if (status == TV_OK && s && (fold[0]->R != R || strcmp(fold[0]->config_json, *config) != 0))
            status = TV_FAIL(err, TV_EFORMAT, "%s: side %c scored the two sets under another %s", dir, LETTER[e],
                             fold[0]->R != R ? "R" : "configuration");
        if (status == TV_OK && (s || (e && to->side[TV_A])) && fold[0]->readout != to->readout)
            status = TV_FAIL(err, TV_EFORMAT,
                             "%s: readout is %d in the folds of %c on %c and %d in others: averages of different "
                             "readouts must not meet",
                             dir, fold[0]->readout, LETTER[e], LETTER[s], to->readout);
        if (status == TV_OK) {
            R = fold[0]->R;
            to->readout = fold[0]->readout;
            *temperature = fold[0]->temperature;
            if (!s) *config = tv_dataset_keep(d, tv_xstrdup(fold[0]->config_json));
            sum_up(to, e, s, fold, n);
            for (int f = 0; f < n; f++) to->chain[e][s][f] = fold[f]->chain;
            to->first_hash[e][s] = fold[0]->first_hash;
            status = fill_set(d, e, s, fold, n, err);
        }
        free_folds(fold, n);
        TV_TRY(status);
    }
    return TV_OK;
}

/* 1 when the hashes tell that every pass of one side is that of the other. */
static int same_passes(const tv_dataset *d) {
    const tv_folded *f = &d->folded;
    if (!f->side[0] || !f->side[1]) return 0;
    if (f->identical[0] && f->identical[1])
        return memcmp(f->first_hash[0], f->first_hash[1], sizeof f->first_hash[0]) == 0;
    return d->set[0].reads[0] == d->set[0].reads[1] && memcmp(f->chain[0], f->chain[1], sizeof f->chain[0]) == 0;
}

tv_status tv_folded_check(tv_dataset *d, tv_err *err) {
    tv_folded *f = &d->folded;
    if (!f->any) return TV_OK;
    for (int e = 0; e < 2; e++) {
        if (f->side[e] && f->identical[e] && d->set[0].reads[e] > 1) d->deterministic[e] = 1;
        if (d->deterministic[e]) continue;
        if (!f->side[e])
            return TV_FAIL(err, TV_EFORMAT,
                           "%s: the passes of side %c are kept and those of side %c folded; score both with the same "
                           "--keep-passes",
                           d->source, LETTER[e], LETTER[!e]);
        const int64_t R = d->set[0].reads[e];
        if (f->R && f->R != R)
            return TV_FAIL(err, TV_EFORMAT,
                           "%s: R is %" PRId64 " in the folds of side a and %" PRId64
                           " in those of side b; folds of different R have no read in common",
                           d->source, f->R, R);
        f->R = R;
    }
    if (!f->compared) {
        f->differing = same_passes(d) ? 0 : -1;
        f->compared = -1;
    }
    return TV_OK;
}
