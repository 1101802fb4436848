#include "cli/folding.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "estimator/agreement.h"
#include "estimator/distance.h"

int cli_folding_readout(const tv_args *args, int first, int last) {
    const tv_serving *x = &args->side[first].serving, *y = &args->side[last].serving;
    if (args->readout) return (int)args->readout;
    return x->top_k == y->top_k && x->top_k <= x->store_k ? x->top_k : 0;
}

tv_status cli_folding_open(cli_folding *f, const tv_args *args, const char *dir, int64_t R, int readout, tv_err *err) {
    *f = (cli_folding){.active = !strcmp(args->keep_passes, "no"), .dir = dir, .R = R, .readout = readout};
    for (int side = 0; side < 2 && f->active; side++)
        for (int set = 0; set < 2; set++) TV_TRY(tv_fold_count(dir, side, set, R, readout, &f->count[side][set], err));
    return TV_OK;
}

int cli_folding_has(const cli_folding *f, int side, int set, int64_t pass) {
    return f->active && pass < f->count[side][set];
}

/* One pass of each side (or NULL) over one set, as estimators read them. */
typedef struct {
    tv_dataset data;
    const int32_t *ids[2], *rank[2];
    const float *lps[2], *own[2];
} pass_view;

static void view_passes(pass_view *v, int s, const tv_trace *samples, tv_trace *const pass[2]) {
    memset(v, 0, sizeof *v);
    tv_set *set = &v->data.set[s];
    v->data.n = samples->n;
    set->N = samples->N;
    set->tokens = samples->tokens;
    set->lengths = samples->lengths;
    if (samples->k) {
        set->sample_ids = samples->topk_ids, set->sample_lps = samples->topk_logprobs;
        set->sample_own_lp = samples->token_logprobs;
        set->k_sample = samples->k;
    }
    for (int e = 0; e < 2; e++) {
        if (!pass[e]) continue;
        set->reads[e] = 1;
        set->k[e] = pass[e]->k;
        v->ids[e] = pass[e]->topk_ids, set->ids[e] = &v->ids[e];
        v->lps[e] = pass[e]->topk_logprobs, set->lps[e] = &v->lps[e];
        v->own[e] = pass[e]->token_logprobs, set->own_lp[e] = v->own[e] ? &v->own[e] : NULL;
        v->rank[e] = pass[e]->token_rank, set->rank[e] = v->rank[e] ? &v->rank[e] : NULL;
    }
}

static double record(const int32_t *ids, const float *lps, int64_t k, int readout, double *p) {
    return tv_record_probs(ids, lps, k, (tv_readout){readout, 0}, p);
}

/* Folds the pass of side e over set s; with the other side's, what differs between them is counted. */
static tv_status fold(cli_folding *f, int e, int s, const tv_trace *samples, tv_trace *const pass[2], int compare,
                      tv_err *err) {
    pass_view v;
    tv_fold_facts facts = {0};
    view_passes(&v, s, samples, pass);
    if (compare) tv_reads_compare(&v.data, s, TV_A, 0, TV_B, 0, &facts.differing, &facts.compared);
    if (e == s) facts.sampled = tv_sampling_agreement(&v.data, s, &facts.agreement, &facts.missing);
    TV_TRY(tv_fold_pass(f->dir, pass[e], f->R, f->readout, record, &facts, err));
    f->count[e][s]++;
    return TV_OK;
}

tv_status cli_folding_add(cli_folding *f, const tv_trace *samples, const tv_trace *pass, tv_err *err) {
    const int e = pass->side[0] - 'a', s = pass->set[0] - 'a';
    tv_trace *both[2] = {NULL, NULL};
    tv_trace own = *pass;
    both[e] = &own;
    return fold(f, e, s, samples, both, 0, err);
}

static tv_status take_one(cli_folding *f, const tv_rundir *run, const tv_trace *samples, int s, int64_t pass,
                          const int stopped[2], tv_err *err) {
    const int counts = stopped[TV_B] ? TV_A : TV_B; /* in whose folds the differing values are counted: the last made,
                                                     * so that the other's pass is still there also after a stop */
    tv_trace *trace[2] = {NULL, NULL};
    char *path[2];
    tv_status status = TV_OK;
    int todo[2];
    for (int e = 0; e < 2; e++) {
        todo[e] = !stopped[e] && f->count[e][s] <= pass;
        path[e] = tv_rundir_pass_path(run, e, s, stopped[e] && pass > 1 ? 1 : pass);
    }
    for (int e = 0; e < 2 && status == TV_OK; e++)
        if (todo[e] || todo[counts]) status = tv_trace_open(path[e], &trace[e], err);
    for (int i = 0; i < 2 && status == TV_OK; i++) {
        const int e = i ? !counts : counts;
        if (todo[e]) status = fold(f, e, s, samples, trace, e == counts, err);
    }
    for (int e = 0; e < 2; e++) {
        tv_trace_close(trace[e]);
        if (status == TV_OK && !stopped[e]) unlink(path[e]);
        free(path[e]);
    }
    return status;
}

tv_status cli_folding_take(cli_folding *f, const tv_rundir *run, tv_trace *const samples[2], int64_t pass,
                           const int stopped[2], tv_err *err) {
    if (!f->active || (stopped[0] && stopped[1])) return TV_OK;
    for (int64_t p = pass == 1 ? 0 : pass; p <= pass; p++) /* pass 0 may have waited for pass 1 */
        for (int s = 0; s < 2; s++) TV_TRY(take_one(f, run, samples[s], s, p, stopped, err));
    return TV_OK;
}

tv_status cli_folding_check(const cli_folding *f, int side, const tv_trace *set, const char *config, tv_err *err) {
    const int s = set->set[0] - 'a';
    char *path = tv_fold_path(f->dir, side, s, 0);
    tv_fold *x = NULL;
    tv_status status = tv_path_exists(path) ? tv_fold_open(path, &x, err) : TV_OK;
    cJSON *theirs = x ? cJSON_Parse(x->config_json) : NULL, *ours = cJSON_Parse(config);
    char *difference = x ? tv_fields_differ(theirs, "it", ours, "this command", NULL) : NULL;
    if (difference)
        status = TV_FAIL(err, TV_EARG, "%s was made under other options: %s; repeat those, or use another folder", path,
                         difference);
    else if (x && x->set_hash != tv_fold_set_hash(set->N, set->n, set->tokens, set->lengths, set->trajectory))
        status = TV_FAIL(err, TV_EARG,
                         "%s scored other trajectories than the folder's %s.samples.safetensors; use another folder",
                         path, set->set);
    free(difference);
    cJSON_Delete(theirs);
    cJSON_Delete(ours);
    tv_fold_free(x);
    free(path);
    return status;
}

uint64_t cli_folding_disk(const cli_folding *f, int64_t N, int64_t n, int64_t store_k, int readout, int64_t R,
                          int64_t n_prompt_ids) {
    const int64_t sizes[2] = {N, N}, in_flight[2] = {R < 2 ? R : 2, R < 2 ? R : 2};
    const int64_t slots = readout && readout < store_k ? readout : store_k;
    uint64_t need = tv_rundir_disk_need(NULL, sizes, n, store_k, in_flight, n_prompt_ids);
    for (int side = 0; side < 2; side++)
        for (int set = 0; set < 2; set++)
            if (!f || f->count[side][set] < R) need += tv_fold_disk_need(N, n, slots, R);
    return need + tv_fold_disk_need(N, n, slots, 2); /* a fold is written beside what it replaces */
}
