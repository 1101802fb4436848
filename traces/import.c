/* Completions of a dump as one trace file: which trajectory, which prompt, how many slots, and what must agree. */
#include "traces/import.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "traces/dataset.h"
#include "traces/import_private.h"
#include "traces/rundir.h"
#include "traces/trace.h"

static const double MAX_MASS = 1.001; /* of a record: rounding of f32 sums */
static const double FULL_MASS = 0.999;
static const char LETTER[] = "ab";
static const char *const FORM_NAME[] = {"unknown", "vLLM", "SGLang", "OpenAI-style"};

/* Record t of completion c stands for position t of a trajectory. */
typedef struct {
    const tv_completion *c;
    int64_t t;
} record;

/* What is written: N trajectories with the record of every position, and their prompts. */
typedef struct {
    int64_t N, n, k, P;
    int64_t *length, *trajectory; /* [N] */
    int32_t *prompt_index;        /* [N] */
    record *records;              /* [N,n] */
    const int32_t **prompt;       /* [P], of completions or of the base */
    int64_t *n_prompt;            /* [P] */
    const int32_t **tokens;       /* [N] */
    uint64_t seed;
    int unknown_own; /* 1: some token's own log-probability is not known */
} plan;

static void plan_make(plan *p, int64_t N, int64_t n) {
    *p = (plan){.N = N, .n = n};
    p->length = tv_xcalloc((size_t)N, sizeof *p->length);
    p->trajectory = tv_xcalloc((size_t)N, sizeof *p->trajectory);
    p->prompt_index = tv_xcalloc((size_t)N, sizeof *p->prompt_index);
    p->records = tv_xcalloc((size_t)(N * n) + 1, sizeof *p->records);
    p->tokens = tv_xcalloc((size_t)N, sizeof *p->tokens);
}

static void plan_free(plan *p) {
    free(p->length);
    free(p->trajectory);
    free(p->prompt_index);
    free(p->records);
    free(p->tokens);
    free(p->prompt);
    free(p->n_prompt);
}

/* ---- prompts ---- */

static void add_prompt(plan *p, const int32_t *ids, int64_t n) {
    p->prompt = tv_xrealloc(p->prompt, (size_t)(p->P + 1) * sizeof *p->prompt);
    p->n_prompt = tv_xrealloc(p->n_prompt, (size_t)(p->P + 1) * sizeof *p->n_prompt);
    p->prompt[p->P] = ids;
    p->n_prompt[p->P++] = n;
}

static int64_t find_prompt(const plan *p, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < p->P; i++)
        if (p->n_prompt[i] == n && !memcmp(p->prompt[i], ids, (size_t)n * sizeof *ids)) return i;
    return -1;
}

static void take_prompts(plan *p, const tv_trace *of) {
    for (int64_t i = 0; i < of->P; i++)
        add_prompt(p, of->prompt_ids + of->prompt_offsets[i], of->prompt_offsets[i + 1] - of->prompt_offsets[i]);
}

/* The prompt of a sampled completion, added unless the prompts are those of files that are there. */
static tv_status place_prompt(plan *p, const tv_completion *c, const char *fixed_by, int32_t *index, tv_err *err) {
    static const int32_t none[1];
    const int32_t *ids = c->prompt ? c->prompt : none;
    int64_t at = find_prompt(p, ids, c->n_prompt);
    if (at < 0 && !c->prompt && fixed_by && p->P == 1) at = 0; /* one for all, and the dump does not repeat it */
    if (at < 0 && fixed_by)
        return TV_FAIL(err, TV_EARG,
                       "%s: its prompt (%" PRId64 " tokens or bytes) is not among those of %s: both sides "
                       "must answer the same prompts, given in the same form",
                       c->where, c->n_prompt, fixed_by);
    if (at < 0) add_prompt(p, ids, c->n_prompt), at = p->P - 1;
    *index = (int32_t)at;
    return TV_OK;
}

/* ---- which record belongs where ---- */

static int order_numbers(const void *a, const void *b) {
    const tv_completion *const *x = a, *const *y = b;
    return ((*x)->trajectory > (*y)->trajectory) - ((*x)->trajectory < (*y)->trajectory);
}

/* The completions by trajectory: as the dump numbers them, else in its order. The caller frees. */
static tv_status in_order(const tv_reader *r, const tv_completion ***out, tv_err *err) {
    const tv_completion **list = *out = tv_xcalloc((size_t)r->n_c + 1, sizeof *list);
    int64_t numbered = 0;
    for (int64_t i = 0; i < r->n_c; i++) list[i] = &r->c[i], numbered += r->c[i].trajectory >= 0;
    if (!numbered) return TV_OK;
    for (int64_t i = 0; i < r->n_c; i++)
        if (list[i]->trajectory < 0)
            return TV_FAIL(err, TV_EFORMAT, "%s: no \"trajectory\", which other entries have", list[i]->where);
    qsort(list, (size_t)r->n_c, sizeof *list, order_numbers);
    for (int64_t i = 1; i < r->n_c; i++)
        if (list[i]->trajectory == list[i - 1]->trajectory)
            return TV_FAIL(err, TV_EFORMAT, "%s and %s are both trajectory %" PRId64, list[i - 1]->where,
                           list[i]->where, list[i]->trajectory);
    return TV_OK;
}

static int64_t cut(int64_t length, const tv_import_options *o) {
    return o->length && o->length < length ? o->length : length;
}

/* Trajectories of the side's own. other: the other side's samples, or NULL. */
static tv_status plan_samples(plan *p, const tv_reader *r, const tv_completion *const *list, const tv_trace *other,
                              const char *other_path, tv_err *err) {
    int64_t n = 0;
    for (int64_t i = 0; i < r->n_c; i++) {
        const int64_t length = cut(list[i]->n, r->options);
        if (!length) return TV_FAIL(err, TV_EFORMAT, "%s: no tokens", list[i]->where);
        if (length > n) n = length;
    }
    plan_make(p, r->n_c, n);
    p->seed = r->options->seed;
    if (other) take_prompts(p, other);
    if (other && n != other->n)
        return TV_FAIL(err, TV_EARG,
                       "%s: the longest completion has %" PRId64 " tokens and %s has %" PRId64
                       ": use the first of both with --length",
                       list[0]->where, n, other_path, other->n);
    for (int64_t i = 0; i < p->N; i++) {
        p->trajectory[i] = list[i]->trajectory >= 0 ? list[i]->trajectory : i;
        p->length[i] = cut(list[i]->n, r->options);
        p->tokens[i] = list[i]->tokens;
        for (int64_t t = 0; t < p->length[i]; t++) p->records[i * n + t] = (record){list[i], t};
        TV_TRY(place_prompt(p, list[i], other ? other_path : NULL, &p->prompt_index[i], err));
    }
    return TV_OK;
}

static void plan_base(plan *p, const tv_trace *base) {
    plan_make(p, base->N, base->n);
    take_prompts(p, base);
    p->seed = base->seed;
    for (int64_t i = 0; i < p->N; i++) {
        p->trajectory[i] = base->trajectory[i];
        p->length[i] = base->lengths ? base->lengths[i] : base->n;
        p->tokens[i] = base->tokens + i * base->n;
        p->prompt_index[i] = base->prompt_index[i];
    }
}

/* Scores of the trajectories of base: entry by entry, the tokens must be theirs. */
static tv_status plan_scores(plan *p, const tv_reader *r, const tv_completion *const *list, const tv_trace *base,
                             const char *base_path, tv_err *err) {
    plan_base(p, base);
    if (r->n_c != p->N)
        return TV_FAIL(err, TV_EARG, "%s: %" PRId64 " scored trajectories, and %s holds %" PRId64,
                       r->c[r->n_c - 1].where, r->n_c, base_path, p->N);
    int numbered = list[0]->trajectory >= 0;
    for (int64_t i = 0; i < p->N; i++) {
        int64_t row = i;
        const tv_completion *c = list[i];
        if (numbered)
            for (row = 0; row < p->N && p->trajectory[row] != c->trajectory;) row++;
        if (row == p->N)
            return TV_FAIL(err, TV_EARG, "%s: trajectory %" PRId64 " is not in %s", c->where, c->trajectory, base_path);
        const int64_t length = p->length[row], skip = c->from_prompt ? c->n - length : 0;
        if (skip < 0 || c->n < length || (!c->from_prompt && !r->options->length && c->n != length))
            return TV_FAIL(err, TV_EARG, "%s: %" PRId64 " tokens, and trajectory %" PRId64 " of %s has %" PRId64,
                           c->where, c->n, p->trajectory[row], base_path, length);
        for (int64_t t = 0; t < length; t++) {
            if (c->tokens[skip + t] != p->tokens[row][t])
                return TV_FAIL(err, TV_EARG,
                               "%s: token %" PRId64 " is %d, and trajectory %" PRId64 " of %s has %d there", c->where,
                               t, c->tokens[skip + t], p->trajectory[row], base_path, p->tokens[row][t]);
            p->records[row * p->n + t] = (record){c, skip + t};
        }
        const int64_t q = p->prompt_index[row];
        /* Of a scored text, how long its end is in bytes is not known: it begins with the prompt, and the tokens agree.
         */
        const int64_t said = !c->from_prompt ? c->n_prompt : c->is_text ? p->n_prompt[q] : c->n_prompt - length;
        if (c->prompt && (said != p->n_prompt[q] || said > c->n_prompt ||
                          memcmp(c->prompt, p->prompt[q], (size_t)said * sizeof *c->prompt) != 0))
            return TV_FAIL(err, TV_EARG, "%s: its prompt is not that of trajectory %" PRId64 " of %s", c->where,
                           p->trajectory[row], base_path);
    }
    return TV_OK;
}

/* Records of the side's own samples where they begin as the trajectories of base do. */
static tv_status plan_by_prefix(plan *p, const tv_reader *r, const tv_trace *base, const char *base_path, tv_err *err) {
    plan_base(p, base);
    for (int64_t i = 0; i < p->N; i++) {
        const tv_completion *best = NULL;
        int64_t most = -1;
        for (int64_t j = 0; j < r->n_c; j++) {
            const tv_completion *c = &r->c[j];
            const int64_t q = p->prompt_index[i];
            if (c->prompt ? c->n_prompt != p->n_prompt[q] ||
                                memcmp(c->prompt, p->prompt[q], (size_t)c->n_prompt * sizeof *c->prompt)
                          : p->P > 1)
                continue;
            int64_t same = 0;
            while (same < p->length[i] && same < c->n && c->tokens[same] == p->tokens[i][same]) same++;
            if (same == c->n) same--; /* its last record is that of its last token */
            if (same > most) most = same, best = c;
        }
        if (most < p->length[i] - 1)
            return TV_FAIL(err, TV_EARG,
                           "trajectory %" PRId64 " of %s: no completion of the dump begins with its first %" PRId64
                           " tokens (at most %" PRId64 "), so nothing says what side %c gives token %" PRId64
                           "; compare the first tokens alone (--length 1), or score by echo or replay",
                           p->trajectory[i], base_path, p->length[i] - 1, most < 0 ? 0 : most, LETTER[r->options->side],
                           most + 1);
        for (int64_t t = 0; t < p->length[i]; t++) p->records[i * p->n + t] = (record){best, t};
    }
    return TV_OK;
}

/* ---- records ---- */

/* Slots of a record. Where the token itself was added behind the most likely ones, *own is its slot, else -1. */
static int64_t slots_of(const record *x, int64_t *own) {
    const tv_completion *c = x->c;
    const int64_t from = c->first[x->t], to = c->first[x->t + 1];
    *own = -1;
    for (int64_t j = from; j < to; j++) {
        if (c->ids[j] != c->tokens[x->t]) continue;
        for (int64_t i = from; i < to; i++)
            if (c->lps[i] < c->lps[j]) return to - from; /* not the last of them: one of the most likely */
        *own = j;
    }
    return to - from;
}

static double mass_of(const record *x) {
    double mass = 0;
    for (int64_t j = x->c->first[x->t]; j < x->c->first[x->t + 1]; j++) mass += exp(x->c->lps[j]);
    return mass;
}

/* k: the slots that every record has, but for those that hold the whole mass with fewer. A record may hold its own
 * token beyond them. */
static tv_status find_k(plan *p, tv_err *err) {
    int64_t fewest = INT64_MAX, most = 0;
    for (int64_t i = 0; i < p->N; i++)
        for (int64_t t = 0; t < p->length[i]; t++) {
            const record *x = &p->records[i * p->n + t];
            int64_t own, slots = slots_of(x, &own);
            const double mass = mass_of(x);
            if (!slots)
                return TV_FAIL(err, TV_EFORMAT,
                               "%s: record %" PRId64 " lists no likely tokens: ask the engine for some", x->c->where,
                               x->t);
            if (!(mass <= MAX_MASS))
                return TV_FAIL(err, TV_EFORMAT, "%s: the probabilities of record %" PRId64 " sum to %.6g, more than 1",
                               x->c->where, x->t, mass);
            if (slots > most) most = slots;
            if (slots < fewest && mass < FULL_MASS) fewest = slots;
        }
    p->k = fewest < most ? fewest : most;
    for (int64_t i = 0; i < p->N; i++)
        for (int64_t t = 0; t < p->length[i]; t++) {
            const record *x = &p->records[i * p->n + t];
            int64_t own, slots = slots_of(x, &own);
            if (slots > p->k + (own >= 0))
                return TV_FAIL(err, TV_EFORMAT,
                               "%s: record %" PRId64 " lists %" PRId64 " tokens and another lists %" PRId64
                               ": records over different supports must not meet; ask for the same number everywhere",
                               x->c->where, x->t, slots, p->k);
        }
    return TV_OK;
}

typedef struct {
    float lp;
    int32_t id;
} slot;

static int order_slots(const void *a, const void *b) {
    const slot *x = a, *y = b;
    return x->lp != y->lp ? (x->lp < y->lp) - (x->lp > y->lp) : (x->id > y->id) - (x->id < y->id);
}

static void fill(const plan *p, const tv_trace_mut *m) {
    slot *slots = tv_xcalloc((size_t)p->k + 1, sizeof *slots);
    for (int64_t i = 0; i < p->N; i++)
        for (int64_t t = 0; t < p->length[i]; t++) {
            const record *x = &p->records[i * p->n + t];
            const tv_completion *c = x->c;
            const int64_t at = i * p->n + t;
            int64_t own, n = 0;
            const int beyond = slots_of(x, &own) > p->k;
            for (int64_t j = c->first[x->t]; j < c->first[x->t + 1]; j++)
                if ((!beyond || j != own) && c->lps[j] > -INFINITY) slots[n++] = (slot){c->lps[j], c->ids[j]};
            qsort(slots, (size_t)n, sizeof *slots, order_slots);
            for (int64_t j = 0; j < p->k; j++) {
                m->topk_ids[at * p->k + j] = j < n ? slots[j].id : -1;
                m->topk_logprobs[at * p->k + j] = j < n ? slots[j].lp : -INFINITY;
            }
            m->tokens[at] = p->tokens[i][t];
            m->token_logprobs[at] = c->own[x->t];
        }
    free(slots);
}

static tv_status make_trace(const plan *p, const tv_import_options *o, int set, const char *engine, tv_trace **out,
                            tv_err *err) {
    int64_t total = 0;
    for (int64_t i = 0; i < p->P; i++) total += p->n_prompt[i];
    TV_TRY(tv_trace_new(p->N, p->n, p->k, p->P, total, out, err));
    tv_trace *t = *out;
    tv_trace_mut m = tv_trace_writable(t);
    for (int64_t i = 0, to = 0; i < p->P; i++) {
        memcpy(m.prompt_ids + to, p->prompt[i], (size_t)p->n_prompt[i] * sizeof *m.prompt_ids);
        m.prompt_offsets[i] = (int32_t)to;
        to += p->n_prompt[i];
    }
    for (int64_t i = 0; i < p->N; i++) {
        m.lengths[i] = (int32_t)p->length[i];
        m.trajectory[i] = p->trajectory[i];
        m.prompt_index[i] = p->prompt_index[i];
    }
    fill(p, &m);
    tv_trace_clear_tails(t);
    t->token_rank = NULL; /* a list of the most likely does not say */
    if (p->unknown_own) t->token_logprobs = NULL;
    cJSON *config = cJSON_CreateObject();
    cJSON_AddStringToObject(config, "engine", engine);
    cJSON_AddNumberToObject(config, "top_k", o->top_k);
    cJSON_AddNumberToObject(config, "store_k", (double)p->k);
    cJSON_AddNumberToObject(config, "temperature", o->temperature);
    t->config_json = tv_json_line(config);
    cJSON_Delete(config);
    t->side = tv_xprintf("%c", LETTER[o->side]);
    t->set = tv_xprintf("%c", LETTER[set]);
    t->temperature = o->temperature;
    t->seed = p->seed;
    return TV_OK;
}

/* ---- the folder ---- */

/* Token texts are numbered by the folder: they meet no ids of a vocabulary. */
static tv_status check_tokens(const tv_reader *r, int any_there, int table_there, const char *table, tv_err *err) {
    const tv_labels *l = &r->labels;
    if (l->used_text && l->used_ids)
        return TV_FAIL(err, TV_EFORMAT, "%s: tokens as text and as ids in one dump", r->c[0].where);
    if (l->used_text && any_there && !table_there)
        return TV_FAIL(err, TV_EARG,
                       "%s: tokens are text, and those of the folder are ids of a vocabulary: ask the server "
                       "for ids (vLLM: return_tokens_as_token_ids)",
                       r->c[0].where);
    if (l->used_ids && table_there)
        return TV_FAIL(err, TV_EARG,
                       "%s: tokens are ids, and those of the folder are texts numbered by %s: use another "
                       "folder",
                       r->c[0].where, table);
    return TV_OK;
}

static tv_status write_passes(tv_trace *t, const char *dir, const tv_import_options *o, tv_import_result *result,
                              tv_err *err) {
    const int set = o->set < 0 ? o->side : o->set;
    int64_t pass = 0;
    char *path = NULL;
    TV_TRY(tv_dir_make(dir, err));
    for (;; pass++) {
        path = tv_pass_path(dir, o->side, set, pass);
        if (!tv_path_exists(path)) break;
        free(path);
    }
    t->pass = result->pass = pass;
    tv_status s = TV_OK;
    if (o->set < 0 && pass)
        s = TV_FAIL(err, TV_EARG, "%s holds passes of side %c and no samples: use another folder", dir,
                    LETTER[o->side]);
    if (s == TV_OK) s = tv_trace_write(t, path, err);
    free(path);
    if (s != TV_OK || o->set >= 0) return s;
    t->pass = -1; /* the samples last: with them the import is complete */
    path = tv_samples_path(dir, o->side);
    s = tv_trace_write(t, path, err);
    free(path);
    return s;
}

static tv_status import(tv_reader *r, const char *dir, const char *const *path, tv_trace *const *there,
                        const char *table, tv_import_result *result, tv_err *err) {
    const tv_import_options *o = r->options;
    const int set = o->set < 0 ? o->side : o->set;
    const tv_completion **list = NULL;
    plan p = {0};
    tv_trace *t = NULL;
    tv_status s = in_order(r, &list, err);
    if (s == TV_OK)
        s = o->set < 0     ? plan_samples(&p, r, list, there[!o->side], path[!o->side], err)
            : o->by_prefix ? plan_by_prefix(&p, r, there[set], path[set], err)
                           : plan_scores(&p, r, list, there[set], path[set], err);
    if (s == TV_OK) s = find_k(&p, err);
    for (int64_t i = 0; s == TV_OK && i < p.N; i++)
        for (int64_t x = 0; x < p.length[i]; x++) {
            const record *at = &p.records[i * p.n + x];
            p.unknown_own |= isnan(at->c->own[at->t]) || at->c->tokens[at->t] != p.tokens[i][x];
        }
    if (s == TV_OK) s = make_trace(&p, o, set, o->engine ? o->engine : FORM_NAME[r->form], &t, err);
    if (s == TV_OK && r->labels.used_text) {
        s = tv_dir_make(dir, err);
        if (s == TV_OK) s = tv_labels_save(&r->labels, table, err);
    }
    if (s == TV_OK) s = write_passes(t, dir, o, result, err);
    if (s == TV_OK) {
        result->N = p.N, result->n = p.n, result->k = p.k, result->prompts = p.P;
        result->strings = r->labels.used_text;
        result->from_prompt = r->c[0].from_prompt;
    }
    tv_trace_close(t);
    free(list);
    plan_free(&p);
    return s;
}

tv_status tv_import(const char *const *paths, int n_paths, const char *dir, const tv_import_options *options,
                    tv_import_result *result, tv_err *err) {
    tv_import_options o = *options;
    tv_reader r = {.options = &o, .form = o.form, .scoring = o.set >= 0 && !o.by_prefix};
    char *path[2] = {tv_samples_path(dir, TV_A), tv_samples_path(dir, TV_B)}, *table = tv_path_join(dir, "tokens.json");
    tv_trace *there[2] = {NULL, NULL};
    *result = (tv_import_result){0};
    tv_status s = TV_OK;
    for (int i = 0; i < 2 && s == TV_OK; i++)
        if (tv_path_exists(path[i])) s = tv_trace_open(path[i], &there[i], err);
    if (s == TV_OK && o.set >= 0 && !there[o.set])
        s = TV_FAIL(err, TV_EARG, "%s is not there: import what side %c sampled first", path[o.set], LETTER[o.set]);
    if (s == TV_OK && o.set < 0 && there[o.side])
        s = TV_FAIL(err, TV_EARG, "%s is there already; with --set %c the dump is read as a replay of it", path[o.side],
                    LETTER[o.side]);
    const int table_there = tv_path_exists(table);
    if (s == TV_OK) s = tv_labels_load(&r.labels, table, err);
    for (int i = 0; i < n_paths && s == TV_OK; i++) s = tv_import_file(&r, paths[i], err);
    if (s == TV_OK && !r.n_c) s = TV_FAIL(err, TV_EFORMAT, "%s: no entries", n_paths ? paths[0] : dir);
    if (s == TV_OK) s = check_tokens(&r, there[0] || there[1], table_there, table, err);
    if (s == TV_OK) s = import(&r, dir, (const char *const *)path, there, table, result, err);
    for (int i = 0; i < 2; i++) {
        tv_trace_close(there[i]);
        free(path[i]);
    }
    free(table);
    tv_reader_free(&r);
    return s;
}
