#include "traces/dataset.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "traces/dataset_private.h"
#include "traces/fold.h"
#include "traces/rundir.h"

enum { MAX_MANIFEST = 64 << 20, SAMPLES = 2 }; /* SAMPLES stands where a scorer would */

static const char LETTER[] = "ab";

/* ---- what both kinds share ---- */

tv_dataset *tv_dataset_make(const char *source) {
    tv_dataset *d = tv_xcalloc(1, sizeof *d);
    d->owner = tv_xcalloc(1, sizeof(tv_dataset_owner));
    d->source = tv_xstrdup(source);
    d->temperature = NAN;
    return d;
}

void *tv_dataset_keep(tv_dataset *d, void *block) {
    tv_dataset_owner *o = d->owner;
    o->kept = tv_xrealloc(o->kept, (size_t)(o->n_kept + 1) * sizeof *o->kept);
    return o->kept[o->n_kept++] = block;
}

void tv_dataset_close(tv_dataset *d) {
    if (!d) return;
    tv_dataset_owner *o = d->owner;
    for (int64_t i = 0; i < o->n_traces; i++) tv_trace_close(o->traces[i]);
    for (int64_t i = 0; i < o->n_kept; i++) free(o->kept[i]);
    for (int64_t b = 0; b < d->n_blocks; b++) tv_dataset_close(d->block[b]);
    free(d->block);
    tv_st_close(o->bundle);
    free(o->traces);
    free(o->kept);
    free(o);
    cJSON_Delete(d->manifest);
    for (int e = 0; e < 2; e++) {
        cJSON_Delete(d->config[e]);
        cJSON_Delete(d->sampled_config[e]);
        cJSON_Delete(d->libraries[e]);
    }
    free(d->source);
    free(d);
}

int tv_dataset_reads_agree(const tv_dataset *d, int e) {
    for (int s = 0; s < 2; s++) {
        const tv_set *set = &d->set[s];
        int64_t n = d->n, k = set->k[e];
        for (int64_t r = 1; r < set->reads[e]; r++)
            for (int64_t i = 0; i < set->N; i++) {
                int64_t words = (set->lengths ? set->lengths[i] : n) * k, at = i * n * k;
                if (words && (memcmp(set->ids[e][0] + at, set->ids[e][r] + at, (size_t)words * 4) != 0 ||
                              memcmp(set->lps[e][0] + at, set->lps[e][r] + at, (size_t)words * 4) != 0))
                    return 0;
            }
    }
    return 1;
}

tv_status tv_dataset_check_k(const tv_dataset *d, tv_err *err) {
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++)
            if (!d->folded.any && d->set[s].k[e] != d->set[0].k[0]) /* averages hold unions, each its own */
                return TV_FAIL(
                    err, TV_EFORMAT,
                    "%s: k is %" PRId64 " in side a's passes over set a and %" PRId64
                    " in side %c's over set %c; readouts "
                    "renormalised over different supports must not meet: record both with the same --store-k",
                    d->source, d->set[0].k[0], d->set[s].k[e], LETTER[e], LETTER[s]);
    return TV_OK;
}

/* ---- trace files ---- */

/* The trace files of a measurement, sorted by set, then scorer (sample file last), then pass. */
typedef struct {
    tv_trace *trace; /* owned by the dataset */
    const char *path;
    int set, scorer; /* scorer: TV_A, TV_B or SAMPLES */
} member;

static int order_members(const void *a, const void *b) {
    const member *x = a, *y = b;
    if (x->set != y->set) return x->set - y->set;
    if (x->scorer != y->scorer) return x->scorer - y->scorer;
    return (x->trace->pass > y->trace->pass) - (x->trace->pass < y->trace->pass);
}

static tv_status open_member(tv_dataset *d, const char *path, member *m, tv_err *err) {
    tv_dataset_owner *o = d->owner;
    TV_TRY(tv_trace_open(path, &m->trace, err));
    o->traces = tv_xrealloc(o->traces, (size_t)(o->n_traces + 1) * sizeof *o->traces);
    o->traces[o->n_traces++] = m->trace;
    m->path = tv_dataset_keep(d, tv_xstrdup(path));
    m->set = m->trace->set[0] - 'a';
    m->scorer = m->trace->pass < 0 ? SAMPLES : m->trace->side[0] - 'a';
    return TV_OK;
}

static tv_status differs(const member *x, const member *y, const char *field, double x_value, double y_value,
                         tv_err *err) {
    return TV_FAIL(err, TV_EFORMAT, "%s is %.17g in %s and %.17g in %s: not one measurement", field, x_value, x->path,
                   y_value, y->path);
}

/* 1 when the trace's own configuration says the temperature that its metadata says. */
static int states_temperature(const tv_trace *t) {
    cJSON *config = cJSON_Parse(t->config_json);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, "temperature");
    int stated = cJSON_IsNumber(item) && item->valuedouble == t->temperature;
    cJSON_Delete(config);
    return stated;
}

/* Fields that agree in every file of a measurement. The temperature is part of a side: the sides may differ in it when
 * both configurations say so, and then the report does too. */
static tv_status check_common(const member *x, const member *y, tv_err *err) {
    const tv_trace *p = x->trace, *q = y->trace;
    if (p->temperature != q->temperature &&
        (p->side[0] == q->side[0] || !states_temperature(p) || !states_temperature(q)))
        return differs(x, y, "temperature", p->temperature, q->temperature, err);
    if (p->n != q->n) return differs(x, y, "n", (double)p->n, (double)q->n, err);
    if (p->P != q->P) return differs(x, y, "the number of prompts", (double)p->P, (double)q->P, err);
    for (int64_t i = 0; i <= p->P; i++)
        if (p->prompt_offsets[i] != q->prompt_offsets[i])
            return differs(x, y, "prompt_offsets", p->prompt_offsets[i], q->prompt_offsets[i], err);
    for (int64_t i = 0; i < p->prompt_offsets[p->P]; i++)
        if (p->prompt_ids[i] != q->prompt_ids[i])
            return differs(x, y, "prompt_ids", p->prompt_ids[i], q->prompt_ids[i], err);
    return TV_OK;
}

/* Two passes of one side must have been made under one configuration. */
static tv_status check_config(const member *x, const member *y, tv_err *err) {
    if (strcmp(x->trace->config_json, y->trace->config_json) == 0) return TV_OK;
    cJSON *p = NULL, *q = NULL;
    tv_status s = tv_json_parse(x->trace->config_json, strlen(x->trace->config_json), x->path, &p, err);
    if (s == TV_OK) s = tv_json_parse(y->trace->config_json, strlen(y->trace->config_json), y->path, &q, err);
    char *difference = s == TV_OK ? tv_fields_differ(p, x->path, q, y->path, NULL) : NULL;
    if (difference) s = TV_FAIL(err, TV_EFORMAT, "two configurations of side %s: %s", x->trace->side, difference);
    free(difference);
    cJSON_Delete(p);
    cJSON_Delete(q);
    return s;
}

/* What run.json says of a side is what its passes were made under, field by field of those that both state. */
static tv_status check_manifest(const tv_dataset *d, int e, const char *config_json, const char *path, tv_err *err) {
    const char key[2] = {LETTER[e], 0};
    const cJSON *stated = cJSON_GetObjectItemCaseSensitive(d->manifest, key), *field;
    cJSON *config = cJSON_IsObject(stated) ? cJSON_Parse(config_json) : NULL;
    tv_status s = TV_OK;
    if (config) cJSON_ArrayForEach(field, stated) {
            const cJSON *made = cJSON_GetObjectItemCaseSensitive(config, field->string);
            char *difference = made ? tv_fields_differ(field, "run.json", made, path, NULL) : NULL;
            if (difference)
                s = TV_FAIL(err, TV_EFORMAT, "%s: of another run: in %s of side %s, %s", d->source, field->string, key,
                            difference);
            free(difference);
        }
    cJSON_Delete(config);
    return s;
}

typedef struct {
    int64_t id, row;
} id_row;

static int order_ids(const void *a, const void *b) {
    const id_row *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static id_row *sorted_ids(const tv_trace *t) {
    id_row *p = tv_xmalloc((size_t)t->N * sizeof *p);
    for (int64_t i = 0; i < t->N; i++) p[i] = (id_row){t->trajectory[i], i};
    qsort(p, (size_t)t->N, sizeof *p, order_ids);
    return p;
}

/* row[i]: where in m the i-th trajectory of base is; *same: the order is the same. */
static tv_status match_rows(const member *base, const member *m, int64_t *row, int *same, tv_err *err) {
    const tv_trace *b = base->trace, *t = m->trace;
    id_row *x = sorted_ids(b), *y = sorted_ids(t);
    tv_status s = TV_OK;
    int64_t both = b->N < t->N ? b->N : t->N, i = 0;
    while (i < both && x[i].id == y[i].id) i++;
    if (i < b->N || i < t->N) {
        int missing = i < b->N && (i == t->N || x[i].id < y[i].id); /* in m, else in base */
        s = TV_FAIL(err, TV_EFORMAT,
                    "trajectory %" PRId64 " is in %s and not in %s (%" PRId64 " and %" PRId64
                    " trajectories): not the same set",
                    missing ? x[i].id : y[i].id, missing ? base->path : m->path, missing ? m->path : base->path,
                    missing ? b->N : t->N, missing ? t->N : b->N);
    }
    *same = 1;
    for (i = 0; s == TV_OK && i < b->N; i++) {
        row[x[i].row] = y[i].row;
        *same &= x[i].row == y[i].row;
    }
    free(x);
    free(y);
    return s;
}

static int64_t length_of(const tv_trace *t, int64_t row) { return t->lengths ? t->lengths[row] : t->n; }

/* Tokens, lengths and prompts of m's trajectories are those of base. */
static tv_status check_rows(const member *base, const member *m, const int64_t *row, tv_err *err) {
    const tv_trace *b = base->trace, *t = m->trace;
    if (b->seed != t->seed)
        return TV_FAIL(err, TV_EFORMAT, "seed is %" PRIu64 " in %s and %" PRIu64 " in %s: not the same set", b->seed,
                       base->path, t->seed, m->path);
    for (int64_t i = 0; i < b->N; i++) {
        char field[64];
        int64_t id = b->trajectory[i];
        if (length_of(b, i) != length_of(t, row[i])) {
            snprintf(field, sizeof field, "the length of trajectory %" PRId64, id);
            return differs(base, m, field, (double)length_of(b, i), (double)length_of(t, row[i]), err);
        }
        if (b->prompt_index[i] != t->prompt_index[row[i]]) {
            snprintf(field, sizeof field, "prompt_index of trajectory %" PRId64, id);
            return differs(base, m, field, b->prompt_index[i], t->prompt_index[row[i]], err);
        }
        const int32_t *x = b->tokens + i * b->n, *y = t->tokens + row[i] * t->n;
        if (memcmp(x, y, (size_t)b->n * sizeof *x) == 0) continue;
        int64_t at = 0;
        while (x[at] == y[at]) at++;
        snprintf(field, sizeof field, "token %" PRId64 " of trajectory %" PRId64, at, id);
        return differs(base, m, field, x[at], y[at], err);
    }
    return TV_OK;
}

/* array with its N rows of bytes each in the order of row, kept by d; array itself when *same. NULL stays NULL. */
static tv_status in_order(tv_dataset *d, const void *array, int64_t N, size_t bytes, const int64_t *row, int same,
                          const member *m, const void **out, tv_err *err) {
    *out = array;
    if (!array || same) return TV_OK;
    char *copy = malloc((size_t)N * bytes + 1);
    if (!copy)
        return TV_FAIL(err, TV_ENOMEM, "%s: no memory to bring its trajectories in order (%zu bytes)", m->path,
                       (size_t)N * bytes);
    for (int64_t i = 0; i < N; i++)
        memcpy(copy + (size_t)i * bytes, (const char *)array + (size_t)row[i] * bytes, bytes);
    *out = tv_dataset_keep(d, copy);
    return TV_OK;
}

/* The pointer arrays of one scorer over one set, filled below and then only read. */
typedef struct {
    const void **ids, **lps, **own, **rank; /* [reads] */
} columns;

static const void **pointer_array(tv_dataset *d, int64_t n) {
    return tv_dataset_keep(d, tv_xcalloc((size_t)n, sizeof(void *)));
}

/* Fills d->set[s] from members [0,n) of that set. */
static tv_status build_set(tv_dataset *d, int s, const member *members, int64_t n, tv_err *err) {
    tv_set *set = &d->set[s];
    int64_t first[4] = {0}; /* scorer e's members are [first[e], first[e+1]) */
    for (int e = 0; e < 3; e++) {
        first[e + 1] = first[e];
        while (first[e + 1] < n && members[first[e + 1]].scorer == e) first[e + 1]++;
    }
    for (int e = 0; e < 2; e++)
        if (first[e] == first[e + 1] && !d->folded.side[e])
            return TV_FAIL(err, TV_EFORMAT,
                           "%s: no complete pass of side %c over the trajectories of side %c; both sides must have "
                           "scored both sets "
                           "(an interrupted run goes on with the command that began it)",
                           d->source, LETTER[e], LETTER[s]);
    for (int64_t i = 1; i < n; i++)
        if (order_members(&members[i - 1], &members[i]) == 0)
            return TV_FAIL(err, TV_EFORMAT, "%s and %s are both pass %" PRId64 " of side %s over set %s",
                           members[i - 1].path, members[i].path, members[i].trace->pass, members[i].trace->side,
                           members[i].trace->set);
    if (d->folded.any && first[2] == n)
        return TV_FAIL(err, TV_EFORMAT, "%s: no %c.samples.safetensors: folded passes are read beside the trajectories",
                       d->source, LETTER[s]);
    const member *base = first[2] < n ? &members[first[2]] : &members[first[s]]; /* the sample file, or an own pass */
    const tv_trace *b = base->trace;
    set->N = b->N;
    set->tokens = b->tokens;
    set->lengths = b->lengths;
    set->prompt_index = b->prompt_index;
    set->trajectory = b->trajectory;
    if (first[2] < n && b->k) {
        set->sample_ids = b->topk_ids;
        set->sample_lps = b->topk_logprobs;
        set->sample_own_lp = b->token_logprobs;
        set->k_sample = b->k;
    }
    int64_t *row = tv_dataset_keep(d, tv_xmalloc((size_t)b->N * sizeof *row));
    for (int e = 0; e < 2; e++) {
        int64_t reads = first[e + 1] - first[e];
        if (!reads) continue; /* folded */
        columns c = {pointer_array(d, reads), pointer_array(d, reads), pointer_array(d, reads),
                     pointer_array(d, reads)};
        int own = 1, rank = 1;
        set->reads[e] = reads;
        set->k[e] = members[first[e]].trace->k;
        for (int64_t r = 0; r < reads; r++) {
            const member *m = &members[first[e] + r];
            const tv_trace *t = m->trace;
            int same;
            size_t cells = (size_t)t->n * 4;
            if (t->k != set->k[e]) return differs(&members[first[e]], m, "k", (double)set->k[e], (double)t->k, err);
            TV_TRY(check_common(base, m, err));
            TV_TRY(match_rows(base, m, row, &same, err));
            TV_TRY(check_rows(base, m, row, err));
            TV_TRY(in_order(d, t->topk_ids, t->N, cells * (size_t)t->k, row, same, m, &c.ids[r], err));
            TV_TRY(in_order(d, t->topk_logprobs, t->N, cells * (size_t)t->k, row, same, m, &c.lps[r], err));
            TV_TRY(in_order(d, t->token_logprobs, t->N, cells, row, same, m, &c.own[r], err));
            TV_TRY(in_order(d, t->token_rank, t->N, cells, row, same, m, &c.rank[r], err));
            own &= c.own[r] != NULL;
            rank &= c.rank[r] != NULL;
        }
        set->ids[e] = (const int32_t *const *)c.ids;
        set->lps[e] = (const float *const *)c.lps;
        set->own_lp[e] = own ? (const float *const *)c.own : NULL;
        set->rank[e] = rank ? (const int32_t *const *)c.rank : NULL;
    }
    return TV_OK;
}

/* The configuration of side e: from the manifest when it has one, else from a pass; fresh, or NULL. */
static cJSON *side_config(const tv_dataset *d, int e, const char *config_json) {
    const char key[2] = {LETTER[e], 0};
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(d->manifest, key);
    if (cJSON_IsObject(config)) return cJSON_Duplicate(config, 1);
    return cJSON_Parse(config_json);
}

static int string_is(const cJSON *object, const char *key, const char *value) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text && strcmp(text, value) == 0;
}

static int whole_number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= 1e9 ? (int)item->valuedouble : 0;
}

/* What the last pass of side e says of libraries, which covers those before it in the same process; fresh, or NULL.
 * Without passes (folded) the sample file stands in: the same steps, but for padding. */
static cJSON *side_libraries(int e, const member *members, int64_t n) {
    const char *text = NULL;
    for (int samples = 0; samples < 2 && !text; samples++)
        for (int64_t i = 0; i < n; i++)
            if (members[i].trace->libraries &&
                (samples ? members[i].scorer == SAMPLES && members[i].set == e : members[i].scorer == e))
                text = members[i].trace->libraries;
    return text ? cJSON_Parse(text) : NULL;
}

/* The folds of scorer e, which scored at the temperature that its own trajectories were drawn at. */
static tv_status attach_folds(tv_dataset *d, const char *dir, int e, const int64_t *last_pass, const member *members,
                              int64_t n, const char **config, tv_err *err) {
    double temperature;
    TV_TRY(tv_folded_attach(d, dir, e, last_pass, config, &temperature, err));
    for (int64_t i = 0; i < n; i++)
        if (members[i].scorer == SAMPLES && members[i].set == e && members[i].trace->temperature != temperature)
            return TV_FAIL(err, TV_EFORMAT,
                           "temperature is %.17g in %s and %.17g in the folds of side %c: not one measurement",
                           members[i].trace->temperature, members[i].path, temperature, LETTER[e]);
    return TV_OK;
}

/* Puts the dataset together from all its trace files, and in a run folder (else dir is NULL) from the folds beside
 * them; last_pass [2][2]: see tv_folded_attach. */
static tv_status build(tv_dataset *d, member *members, int64_t n, const char *dir, int64_t (*last_pass)[2],
                       tv_err *err) {
    qsort(members, (size_t)n, sizeof *members, order_members);
    int64_t split = 0;
    while (split < n && members[split].set == TV_A) split++;
    TV_TRY(build_set(d, TV_A, members, split, err));
    TV_TRY(build_set(d, TV_B, members + split, n - split, err));
    TV_TRY(check_common(&members[0], &members[split], err));
    d->n = members[0].trace->n;
    d->temperature = members[0].trace->temperature;
    for (int64_t i = 1; i < n; i++)
        if (members[i].trace->temperature != d->temperature) d->temperature = NAN; /* each side has its own */
    TV_TRY(tv_dataset_check_k(d, err));
    int top_k[2];
    for (int e = 0; e < 2; e++) {
        const member *one = NULL;
        for (int64_t i = 0; i < n; i++) {
            if (members[i].scorer == SAMPLES && members[i].set == e && !d->sampled_config[e])
                d->sampled_config[e] = cJSON_Parse(members[i].trace->config_json);
            if (members[i].scorer != e) continue;
            if (one) TV_TRY(check_config(one, &members[i], err));
            one = &members[i];
        }
        const char *made = one ? one->trace->config_json : NULL, *where = one ? one->path : dir;
        if (d->folded.side[e]) TV_TRY(attach_folds(d, dir, e, last_pass[e], members, n, &made, err));
        TV_TRY(check_manifest(d, e, made, where, err));
        cJSON *config = d->config[e] = side_config(d, e, made);
        d->libraries[e] = side_libraries(e, members, n);
        d->deterministic[e] = string_is(config, "order", "fixed") && string_is(config, "arrivals", "together") &&
                              (d->folded.side[e] ? d->folded.identical[e] : tv_dataset_reads_agree(d, e));
        top_k[e] = whole_number(config, "top_k");
    }
    d->top_k = top_k[0] == top_k[1] ? top_k[0] : 0;
    if (!top_k[0] && !top_k[1]) d->top_k = whole_number(d->manifest, "top_k");
    return tv_folded_check(d, err);
}

/* ---- run folders ---- */

typedef struct {
    int64_t *pass[2][2]; /* [side][set]: numbers of the passes there, ascending */
    int64_t n[2][2];
    int64_t last[2][2]; /* the largest of them, or -1 */
    int samples[2], folded[2];
} listing;

static int compare_i64(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static tv_status list_folder(const char *dir, listing *l, tv_err *err) {
    DIR *folder = opendir(dir);
    if (!folder) return TV_FAIL(err, TV_EIO, "%s: cannot read the folder: %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(folder));) {
        int side, set, index;
        int64_t pass;
        if (tv_fold_parse_name(entry->d_name, &side, &set, &index)) l->folded[side] = 1;
        if (!tv_rundir_parse_name(entry->d_name, &side, &set, &pass)) continue;
        if (pass < 0) {
            l->samples[side] = 1;
            continue;
        }
        int64_t n = l->n[side][set]++;
        l->pass[side][set] = tv_xrealloc(l->pass[side][set], (size_t)(n + 1) * sizeof(int64_t));
        l->pass[side][set][n] = pass;
        if (pass > l->last[side][set]) l->last[side][set] = pass;
    }
    closedir(folder);
    return TV_OK;
}

/* Opens one file of the folder and checks that it is what its name says. */
static tv_status open_named(tv_dataset *d, const char *dir, int side, int set, int64_t pass, member *m, tv_err *err) {
    char *path = pass < 0 ? tv_samples_path(dir, side) : tv_pass_path(dir, side, set, pass);
    tv_status s = open_member(d, path, m, err);
    if (s == TV_OK && (m->trace->side[0] != LETTER[side] || m->set != set || m->trace->pass != pass))
        s = TV_FAIL(err, TV_EFORMAT, "%s: holds pass %" PRId64 " of side %s over set %s: renamed?", path,
                    m->trace->pass, m->trace->side, m->trace->set);
    free(path);
    return s;
}

static tv_status open_listed(tv_dataset *d, const char *dir, listing *l, member **members, int64_t *n, tv_err *err) {
    int64_t most = 2;
    for (int e = 0; e < 2; e++)
        for (int s = 0; s < 2; s++) most += l->n[e][s];
    member *m = *members = tv_xcalloc((size_t)most, sizeof **members);
    for (int s = 0; s < 2; s++)
        if (l->samples[s]) TV_TRY(open_named(d, dir, s, s, -1, &m[(*n)++], err));
    for (int e = 0; e < 2; e++)
        for (int s = 0; s < 2; s++) {
            int64_t have = l->n[e][s], *pass = l->pass[e][s], leading = 0;
            if (have) qsort(pass, (size_t)have, sizeof *pass, compare_i64);
            if (d->folded.side[e]) continue; /* what is left of passes that were folded */
            while (leading < have && pass[leading] == leading) leading++;
            if (leading < have)
                tv_warn("%s: pass %" PRId64 " of side %c over set %c is missing: the %" PRId64
                        " before it are used, %" PRId64 " later are not",
                        dir, leading, LETTER[e], LETTER[s], leading, have - leading);
            for (int64_t r = 0; r < leading; r++) TV_TRY(open_named(d, dir, e, s, r, &m[(*n)++], err));
        }
    return TV_OK;
}

static tv_status load_folder(tv_dataset *d, const char *dir, member **members, tv_err *err) {
    listing l = {.last = {{-1, -1}, {-1, -1}}};
    int64_t n = 0;
    char *json_path = tv_path_join(dir, "run.json");
    int has_manifest = tv_path_exists(json_path);
    tv_status s = has_manifest ? tv_json_load(json_path, MAX_MANIFEST, &d->manifest, err) : TV_OK;
    free(json_path);
    if (s == TV_OK) s = list_folder(dir, &l, err);
    for (int e = 0; e < 2; e++) d->folded.any |= d->folded.side[e] = l.folded[e];
    if (s == TV_OK) s = open_listed(d, dir, &l, members, &n, err);
    for (int e = 0; e < 2; e++)
        for (int set = 0; set < 2; set++) free(l.pass[e][set]);
    TV_TRY(s);
    if (!n)
        return TV_FAIL(err, TV_EFORMAT,
                       has_manifest ? "%s: the run has finished nothing yet"
                                    : "%s: not a run folder (no run.json, no passes)",
                       dir);
    return build(d, *members, n, dir, l.last, err);
}

/* ---- blocks of a run folder ---- */

/* 1 when the block has as many passes as its run promises, and as the first block has: one that is being measured has
 * not. */
static int block_complete(const tv_dataset *first, const char *dir) {
    const int promised = whole_number(first->manifest, "R");
    for (int e = 0; e < 2; e++)
        for (int s = 0; s < 2; s++) {
            int64_t reads = first->set[s].reads[e];
            if (promised && promised < reads) reads = promised;
            char *path = tv_pass_path(dir, e, s, reads - 1);
            int there = tv_path_exists(path);
            free(path);
            if (!there) return 0;
        }
    return 1;
}

/* The blocks of the run: the folder's own trajectories, then those of block-0001, block-0002, ... */
static tv_status load_blocks(tv_dataset *d, const char *dir, tv_err *err) {
    for (int64_t b = 0;; b++) {
        char *name = tv_xprintf("block-%04" PRId64, b), *path = b ? tv_path_join(dir, name) : tv_xstrdup(dir);
        tv_status s = TV_OK;
        int there = !b || tv_path_is_dir(path);
        if (there && b && !block_complete(d->block[0], path)) {
            tv_warn("%s: the block is not complete: the %" PRId64 " before it are used", path, b);
            there = 0;
        }
        if (there) {
            member *members = NULL;
            d->block = tv_xrealloc(d->block, (size_t)(b + 1) * sizeof *d->block);
            d->block[d->n_blocks++] = tv_dataset_make(path);
            s = load_folder(d->block[b], path, &members, err);
            free(members);
            if (s == TV_OK && d->block[b]->folded.any)
                s = TV_FAIL(err, TV_EFORMAT, "%s: folded passes in a run of several blocks", path);
        }
        free(path);
        free(name);
        TV_TRY(s);
        if (!there) break;
    }
    if (d->n_blocks > 1) return tv_dataset_join(d, err);
    tv_dataset *only = d->block[0], shell = *d; /* one after all: it is the dataset */
    *d = *only;
    *only = shell;
    free(only->block);
    only->block = NULL, only->n_blocks = 0;
    tv_dataset_close(only);
    return TV_OK;
}

/* ---- opening ---- */

static tv_status load_list(tv_dataset *d, const char *const *paths, int n_paths, member **members, tv_err *err) {
    *members = tv_xcalloc((size_t)n_paths, sizeof **members);
    for (int i = 0; i < n_paths; i++) {
        if (tv_path_is_dir(paths[i]))
            return TV_FAIL(err, TV_EARG,
                           "%s: a folder among several files; give one run folder, one bundle, or trace files",
                           paths[i]);
        TV_TRY(open_member(d, paths[i], &(*members)[i], err));
    }
    return build(d, *members, n_paths, NULL, NULL, err);
}

static int is_trace(const tv_st_file *f) {
    const char *format = tv_st_meta(f, "format");
    return format && strncmp(format, "tvgpu-trace/", 12) == 0;
}

static tv_status load(tv_dataset *d, const char *const *paths, int n_paths, member **members, tv_err *err) {
    if (n_paths == 1 && tv_path_is_dir(paths[0])) {
        char *second = tv_path_join(paths[0], "block-0001");
        const int blocks = tv_path_is_dir(second);
        free(second);
        return blocks ? load_blocks(d, paths[0], err) : load_folder(d, paths[0], members, err);
    }
    if (n_paths == 1) {
        tv_st_file *file;
        TV_TRY(tv_st_open(paths[0], &file, err));
        if (!is_trace(file)) return tv_bundle_load(d, file, err);
        tv_st_close(file);
    }
    return load_list(d, paths, n_paths, members, err);
}

tv_status tv_dataset_open(const char *const *paths, int n_paths, tv_dataset **out, tv_err *err) {
    *out = NULL;
    if (n_paths < 1) return TV_FAIL(err, TV_EARG, "no run folder, bundle or trace file given");
    char *source = n_paths == 1 ? tv_xstrdup(paths[0]) : tv_xprintf("%s and %d more", paths[0], n_paths - 1);
    tv_dataset *d = tv_dataset_make(source);
    member *members = NULL;
    tv_status s = load(d, paths, n_paths, &members, err);
    free(members);
    free(source);
    if (s != TV_OK)
        tv_dataset_close(d);
    else
        *out = d;
    return s;
}

tv_status tv_dataset_parse_bundle(const unsigned char *bytes, size_t size, const char *name, tv_dataset **out,
                                  tv_err *err) {
    tv_st_file *file;
    *out = NULL;
    TV_TRY(tv_st_parse(bytes, size, name, &file, err));
    tv_dataset *d = tv_dataset_make(name);
    tv_status s = tv_bundle_load(d, file, err);
    if (s != TV_OK)
        tv_dataset_close(d);
    else
        *out = d;
    return s;
}
