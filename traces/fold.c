#include "traces/fold.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

#define FORMAT "tvgpu-fold/1"

static const char LETTER[] = "ab";

/* ---- bounds and names ---- */

int tv_fold_bounds(int64_t R, int64_t *bound) {
    const int64_t h = R / 2, even = h - h % 2; /* reads of each half of the hedged floor */
    const int64_t at[] = {0, even / 2, even, 3 * (even / 2), 2 * even, h, 2 * h, R};
    int folds = 0;
    bound[0] = 0;
    while (bound[folds] < R) {
        int64_t next = R;
        for (size_t i = 0; i < sizeof at / sizeof *at; i++)
            if (at[i] > bound[folds] && at[i] < next) next = at[i];
        bound[++folds] = next;
    }
    return folds;
}

int tv_fold_of_pass(int64_t R, int64_t pass) {
    int64_t bound[TV_FOLD_MOST + 1];
    const int folds = tv_fold_bounds(R, bound);
    int f = 0;
    while (f + 1 < folds && pass >= bound[f + 1]) f++;
    return f;
}

static void fold_name(char name[64], int side, int set, int index) {
    snprintf(name, 64, "%c-on-%c.fold-%d.safetensors", LETTER[side], LETTER[set], index);
}

char *tv_fold_path(const char *dir, int side, int set, int index) {
    char name[64];
    fold_name(name, side, set, index);
    return tv_path_join(dir, name);
}

int tv_fold_parse_name(const char *name, int *side, int *set, int *index) {
    char expected[64];
    for (*side = 0; *side < 2; ++*side)
        for (*set = 0; *set < 2; ++*set)
            for (*index = 0; *index < TV_FOLD_MOST; ++*index) {
                fold_name(expected, *side, *set, *index);
                if (strcmp(name, expected) == 0) return 1;
            }
    return 0;
}

/* ---- hashes ---- */

static uint64_t hash_words(uint64_t h, const void *data, int64_t words) {
    const unsigned char *p = data;
    for (int64_t i = 0; i < words; i++, p += 4) {
        uint32_t w;
        memcpy(&w, p, sizeof w);
        h = (h ^ w) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

uint64_t tv_fold_set_hash(int64_t N, int64_t n, const int32_t *tokens, const int32_t *lengths,
                          const int64_t *trajectory) {
    uint64_t h = hash_words(1, &N, 2);
    h = hash_words(h, &n, 2);
    h = hash_words(h, tokens, N * n); /* lengths show in them: -1 stands behind an end */
    for (int64_t i = 0; i < N; i++) {
        const int32_t length = lengths ? lengths[i] : (int32_t)n;
        const int64_t identity = trajectory ? trajectory[i] : i;
        h = hash_words(h, &length, 1);
        h = hash_words(h, &identity, 2);
    }
    return h;
}

/* Of every recorded value up to the trajectories' ends. */
static uint64_t pass_hash(const tv_trace *t) {
    uint64_t h = hash_words(2, &t->k, 2);
    for (int64_t i = 0; i < t->N; i++) {
        const int64_t length = t->lengths ? t->lengths[i] : t->n, at = i * t->n;
        h = hash_words(h, t->topk_ids + at * t->k, length * t->k);
        h = hash_words(h, t->topk_logprobs + at * t->k, length * t->k);
        if (t->token_logprobs) h = hash_words(h, t->token_logprobs + at, length);
        if (t->token_rank) h = hash_words(h, t->token_rank + at, length);
    }
    return h;
}

/* ---- adding ---- */

tv_fold *tv_fold_new(const tv_trace *pass, int64_t R, int index, int readout) {
    int64_t bound[TV_FOLD_MOST + 1];
    tv_fold *f = tv_xcalloc(1, sizeof *f);
    TV_ASSERT(index < tv_fold_bounds(R, bound));
    f->side = pass->side[0] - 'a', f->set = pass->set[0] - 'a', f->index = index;
    f->R = R, f->first = bound[index], f->end = bound[index + 1];
    f->readout = readout;
    f->N = pass->N, f->n = pass->n;
    f->temperature = pass->temperature;
    f->set_hash = tv_fold_set_hash(pass->N, pass->n, pass->tokens, pass->lengths, pass->trajectory);
    f->config_json = tv_xstrdup(pass->config_json);
    f->identical = 1;
    return f;
}

static tv_status check_pass(const tv_fold *f, const tv_trace *pass, tv_err *err) {
    const char *field = NULL;
    if (pass->side[0] != LETTER[f->side])
        field = "side";
    else if (pass->set[0] != LETTER[f->set])
        field = "set";
    else if (pass->N != f->N || pass->n != f->n ||
             tv_fold_set_hash(pass->N, pass->n, pass->tokens, pass->lengths, pass->trajectory) != f->set_hash)
        field = "tokens";
    else if (pass->temperature != f->temperature)
        field = "temperature";
    else if (strcmp(pass->config_json, f->config_json) != 0)
        field = "configuration";
    if (field)
        return TV_FAIL(err, TV_EARG, "fold %d of %c on %c: pass %" PRId64 " has another %s than the passes in it",
                       f->index, LETTER[f->side], LETTER[f->set], pass->pass, field);
    if (pass->pass != f->first + f->count || pass->pass >= f->end)
        return TV_FAIL(err, TV_EARG,
                       "fold %d of %c on %c takes passes %" PRId64 " to %" PRId64 " in their order; pass %" PRId64
                       " came after %" PRId64 " of them",
                       f->index, LETTER[f->side], LETTER[f->set], f->first, f->end - 1, pass->pass, f->count);
    return TV_OK;
}

/* Descending sums, ties by lowest id, empty slots last. Passes mostly agree in order, so that little moves. */
static void sort_slots(int32_t *ids, double *sums, int64_t used) {
    for (int64_t j = 1; j < used; j++) {
        const int32_t id = ids[j];
        const double sum = sums[j];
        int64_t at = j;
        for (; at > 0 && (sums[at - 1] < sum || (sums[at - 1] == sum && ids[at - 1] > id)); at--)
            ids[at] = ids[at - 1], sums[at] = sums[at - 1];
        ids[at] = id, sums[at] = sum;
    }
}

/* Adds the probabilities p of a record's slots to a cell of `used` slots; returns how many it has then. */
static int64_t add_record(int32_t *ids, double *sums, int64_t used, const int32_t *from, const double *p, int64_t k) {
    const int64_t before = used;
    for (int64_t j = 0; j < k; j++) {
        if (from[j] < 0 || !(p[j] > 0)) continue;
        int64_t at = j < before && ids[j] == from[j] ? j : 0;
        while (at < before && ids[at] != from[j]) at++; /* an id stands once in a record */
        if (at == before) ids[at = used++] = from[j], sums[at] = 0;
        sums[at] += p[j];
    }
    return used;
}

tv_status tv_fold_add(tv_fold *f, const tv_trace *pass, tv_fold_record *record, const tv_fold_facts *facts,
                      tv_err *err) {
    TV_TRY(check_pass(f, pass, err));
    const int64_t kept = f->readout && f->readout < pass->k ? f->readout : pass->k, wide = f->k + kept;
    const size_t cells = (size_t)f->N * (size_t)f->n;
    int32_t *ids = malloc(cells * (size_t)wide * sizeof *ids);
    double *sums = malloc(cells * (size_t)wide * sizeof *sums);
    if (!ids || !sums) {
        free(ids), free(sums);
        return TV_FAIL(err, TV_ENOMEM, "no memory to fold a pass of %zu positions into %" PRId64 " slots", cells, wide);
    }
    int64_t largest = 1;
#pragma omp parallel reduction(max : largest)
    {
        double *p = tv_xmalloc((size_t)pass->k * sizeof *p);
#pragma omp for schedule(static)
        for (int64_t cell = 0; cell < f->N * f->n; cell++) {
            const int64_t i = cell / f->n;
            const int32_t *from = pass->topk_ids + cell * pass->k;
            int32_t *to = ids + cell * wide;
            double *sum = sums + cell * wide;
            int64_t used = 0;
            for (; used < f->k && f->ids[cell * f->k + used] >= 0; used++)
                to[used] = f->ids[cell * f->k + used], sum[used] = f->sums[cell * f->k + used];
            if (cell % f->n < (pass->lengths ? pass->lengths[i] : pass->n)) {
                record(from, pass->topk_logprobs + cell * pass->k, pass->k, f->readout, p);
                used = add_record(to, sum, used, from, p, pass->k);
                sort_slots(to, sum, used);
            }
            if (used > largest) largest = used;
            for (; used < wide; used++) to[used] = -1, sum[used] = 0;
        }
        free(p);
    }
    for (size_t cell = 1; cell < cells && largest < wide; cell++) { /* close ranks; never over what is still to move */
        memmove(ids + cell * (size_t)largest, ids + cell * (size_t)wide, (size_t)largest * sizeof *ids);
        memmove(sums + cell * (size_t)largest, sums + cell * (size_t)wide, (size_t)largest * sizeof *sums);
    }
    free(f->ids), free(f->sums);
    f->ids = ids, f->sums = sums, f->k = largest;
    const uint64_t hash = pass_hash(pass);
    if (!f->count) f->first_hash = hash;
    f->identical &= hash == f->first_hash;
    f->chain = hash_words(f->chain, &hash, 2);
    f->count++;
    f->facts.differing += facts->differing, f->facts.compared += facts->compared;
    f->facts.sampled = f->facts.sampled || facts->sampled;
    f->facts.agreement = fmax(f->facts.agreement, facts->agreement);
    f->facts.missing += facts->missing;
    return TV_OK;
}

void tv_fold_free(tv_fold *f) {
    if (!f) return;
    free(f->ids);
    free(f->sums);
    free(f->config_json);
    free(f);
}

/* ---- files ---- */

static void add_hash(cJSON *o, const char *key, uint64_t hash) { /* as text: JSON numbers end at 2^53 */
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    cJSON_AddStringToObject(o, key, text);
}

static cJSON *state_json(const tv_fold *f) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "R", (double)f->R);
    cJSON_AddNumberToObject(o, "readout", f->readout);
    cJSON_AddNumberToObject(o, "fold", f->index);
    cJSON_AddNumberToObject(o, "first_pass", (double)f->first);
    cJSON_AddNumberToObject(o, "end_pass", (double)f->end);
    cJSON_AddNumberToObject(o, "passes", (double)f->count);
    cJSON_AddNumberToObject(o, "temperature", f->temperature);
    cJSON_AddBoolToObject(o, "identical", f->identical);
    cJSON_AddNumberToObject(o, "differing_values", (double)f->facts.differing);
    cJSON_AddNumberToObject(o, "compared_values", (double)f->facts.compared);
    cJSON_AddBoolToObject(o, "sampled", f->facts.sampled);
    if (isfinite(f->facts.agreement)) cJSON_AddNumberToObject(o, "sampling_agreement", f->facts.agreement);
    cJSON_AddNumberToObject(o, "sampling_missing", (double)f->facts.missing);
    add_hash(o, "set", f->set_hash);
    add_hash(o, "first_hash", f->first_hash);
    add_hash(o, "chain", f->chain);
    return o;
}

tv_status tv_fold_write(const tv_fold *f, const char *path, tv_err *err) {
    const char side[2] = {LETTER[f->side], 0}, set[2] = {LETTER[f->set], 0};
    const size_t slots = (size_t)f->N * (size_t)f->n * (size_t)f->k;
    const tv_st_tensor tensors[] = {{.name = "sums",
                                     .dtype = TV_F64,
                                     .n_dims = 3,
                                     .shape = {f->N, f->n, f->k},
                                     .data = (const unsigned char *)f->sums,
                                     .bytes = slots * sizeof *f->sums},
                                    {.name = "ids",
                                     .dtype = TV_I32,
                                     .n_dims = 3,
                                     .shape = {f->N, f->n, f->k},
                                     .data = (const unsigned char *)f->ids,
                                     .bytes = slots * sizeof *f->ids}};
    cJSON *json = state_json(f);
    char *state = tv_json_line(json);
    const char *metadata[] = {"format",        FORMAT,         "side",  side,  "set", set,
                              "configuration", f->config_json, "state", state, NULL};
    const tv_status s = tv_st_write(path, tensors, 2, metadata, err);
    free(state);
    cJSON_Delete(json);
    return s;
}

/* A whole number of the state in lowest..2^53. */
static tv_status whole(const cJSON *state, const char *key, double lowest, const char *name, int64_t *out,
                       tv_err *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(state, key);
    const double v = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(v >= lowest && v <= 0x1p53) || v != floor(v))
        return TV_FAIL(err, TV_EFORMAT, "%s: \"%s\" of the fold's state is no count it can be", name, key);
    *out = (int64_t)v;
    return TV_OK;
}

static tv_status hash_of(const cJSON *state, const char *key, const char *name, uint64_t *out, tv_err *err) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(state, key));
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return TV_FAIL(err, TV_EFORMAT, "%s: \"%s\" of the fold's state is no hash", name, key);
    *out = strtoull(text, NULL, 16);
    return TV_OK;
}

static tv_status read_state(tv_fold *f, const cJSON *state, const char *name, tv_err *err) {
    int64_t readout, index, bound[TV_FOLD_MOST + 1];
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(state, "temperature");
    TV_TRY(whole(state, "R", 1, name, &f->R, err));
    TV_TRY(whole(state, "readout", 0, name, &readout, err));
    TV_TRY(whole(state, "fold", 0, name, &index, err));
    TV_TRY(whole(state, "first_pass", 0, name, &f->first, err));
    TV_TRY(whole(state, "end_pass", 1, name, &f->end, err));
    TV_TRY(whole(state, "passes", 1, name, &f->count, err));
    TV_TRY(whole(state, "differing_values", 0, name, &f->facts.differing, err));
    TV_TRY(whole(state, "compared_values", 0, name, &f->facts.compared, err));
    TV_TRY(whole(state, "sampling_missing", 0, name, &f->facts.missing, err));
    TV_TRY(hash_of(state, "set", name, &f->set_hash, err));
    TV_TRY(hash_of(state, "first_hash", name, &f->first_hash, err));
    TV_TRY(hash_of(state, "chain", name, &f->chain, err));
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0))
        return TV_FAIL(err, TV_EFORMAT, "%s: the fold's state has no temperature", name);
    f->temperature = item->valuedouble;
    f->identical = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(state, "identical"));
    f->facts.sampled = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(state, "sampled"));
    item = cJSON_GetObjectItemCaseSensitive(state, "sampling_agreement");
    f->facts.agreement = cJSON_IsNumber(item) ? item->valuedouble : INFINITY;
    const int folds = tv_fold_bounds(f->R, bound);
    if (readout > INT32_MAX || index >= folds || f->first != bound[index] || f->end != bound[index + 1] ||
        f->count > f->end - f->first)
        return TV_FAIL(err, TV_EFORMAT,
                       "%s: %" PRId64 " passes from %" PRId64 " to %" PRId64 " are not fold %" PRId64 " of %" PRId64,
                       name, f->count, f->first, f->end, index, f->R);
    f->readout = (int)readout, f->index = (int)index;
    return TV_OK;
}

/* Sums of probabilities: each cell's at most the passes', descending, each id once. */
static tv_status check_sums(const tv_fold *f, const char *name, tv_err *err) {
    for (int64_t cell = 0; cell < f->N * f->n; cell++) {
        const int32_t *ids = f->ids + cell * f->k;
        const double *sums = f->sums + cell * f->k;
        double total = 0;
        int good = 1;
        for (int64_t j = 0; j < f->k && good; j++) {
            if (ids[j] < 0) {
                good = ids[j] == -1 && sums[j] == 0;
            } else {
                good = sums[j] >= 0 && (!j || (ids[j - 1] >= 0 && (sums[j - 1] > sums[j] ||
                                                                   (sums[j - 1] == sums[j] && ids[j - 1] < ids[j]))));
                for (int64_t l = 0; l < j && good; l++) good = ids[l] != ids[j];
            }
            total += sums[j];
        }
        if (!good || !(total <= (double)f->count * (1 + 1e-9)))
            return TV_FAIL(err, TV_EFORMAT,
                           "%s: sums[%" PRId64 ",%" PRId64 "] are no sums of %" PRId64 " readouts: the file is damaged",
                           name, cell / f->n, cell % f->n, f->count);
    }
    return TV_OK;
}

static tv_status load(tv_fold *f, const tv_st_file *file, tv_err *err) {
    const char *name = tv_st_name(file), *format = tv_st_meta(file, "format"), *side = tv_st_meta(file, "side"),
               *set = tv_st_meta(file, "set"), *config = tv_st_meta(file, "configuration"),
               *text = tv_st_meta(file, "state");
    if (!format || strcmp(format, FORMAT) != 0)
        return TV_FAIL(err, TV_EFORMAT, "%s: format is \"%.60s\", not \"" FORMAT "\"", name, format ? format : "");
    if (!side || !set || !config || !text || (strcmp(side, "a") && strcmp(side, "b")) ||
        (strcmp(set, "a") && strcmp(set, "b")))
        return TV_FAIL(err, TV_EFORMAT, "%s: a fold names its side, set, configuration and state", name);
    f->side = side[0] - 'a', f->set = set[0] - 'a';
    f->config_json = tv_xstrdup(config);
    cJSON *state;
    TV_TRY(tv_json_parse(text, strlen(text), name, &state, err));
    const tv_status s = read_state(f, state, name, err);
    cJSON_Delete(state);
    TV_TRY(s);
    const tv_st_tensor *sums, *ids;
    TV_TRY(tv_st_need(file, "sums", TV_F64, 3, (int64_t[]){-1, -1, -1}, &sums, err));
    TV_TRY(tv_st_need(file, "ids", TV_I32, 3, sums->shape, &ids, err));
    f->N = sums->shape[0], f->n = sums->shape[1], f->k = sums->shape[2];
    if (!sums->bytes) return TV_FAIL(err, TV_EFORMAT, "%s: sums is empty", name);
    f->sums = malloc(sums->bytes);
    f->ids = malloc(ids->bytes);
    if (!f->sums || !f->ids)
        return TV_FAIL(err, TV_ENOMEM, "%s: no memory for %zu bytes of sums", name, sums->bytes + ids->bytes);
    memcpy(f->sums, sums->data, sums->bytes);
    memcpy(f->ids, ids->data, ids->bytes);
    return check_sums(f, name, err);
}

tv_status tv_fold_open(const char *path, tv_fold **out, tv_err *err) {
    tv_st_file *file;
    *out = NULL;
    TV_TRY(tv_st_open(path, &file, err));
    tv_fold *f = tv_xcalloc(1, sizeof *f);
    const tv_status s = load(f, file, err);
    tv_st_close(file);
    if (s != TV_OK)
        tv_fold_free(f);
    else
        *out = f;
    return s;
}

/* ---- in a folder ---- */

/* Opens fold `index`; *out stays NULL where it is not there. Refuses one that was made for another R or readout. */
static tv_status open_like(const char *dir, int side, int set, int index, int64_t R, int readout, tv_fold **out,
                           tv_err *err) {
    char *path = tv_fold_path(dir, side, set, index);
    tv_status s = TV_OK;
    *out = NULL;
    if (tv_path_exists(path)) s = tv_fold_open(path, out, err);
    const tv_fold *f = *out;
    if (f && (f->side != side || f->set != set || (f->R == R && f->index != index)))
        s = TV_FAIL(err, TV_EFORMAT, "%s: holds fold %d of %c on %c: renamed?", path, f->index, LETTER[f->side],
                    LETTER[f->set]);
    else if (f && f->R != R)
        s = TV_FAIL(err, TV_EARG,
                    "%s: folded for R = %" PRId64 ", and this command has R = %" PRId64
                    "; folded passes cannot be divided anew: repeat that run's options, or use another folder",
                    path, f->R, R);
    else if (f && f->readout != readout)
        s = TV_FAIL(err, TV_EARG, "%s: folded with readout %d, and this command has %d; use another folder", path,
                    f->readout, readout);
    if (s != TV_OK) {
        tv_fold_free(*out);
        *out = NULL;
    }
    free(path);
    return s;
}

tv_status tv_fold_count(const char *dir, int side, int set, int64_t R, int readout, int64_t *count, tv_err *err) {
    *count = 0;
    for (int index = 0; index < TV_FOLD_MOST; index++) {
        tv_fold *f;
        TV_TRY(open_like(dir, side, set, index, R, readout, &f, err));
        if (!f) break;
        const int whole_fold = f->count == f->end - f->first;
        *count += f->count;
        tv_fold_free(f);
        if (!whole_fold) break;
    }
    return TV_OK;
}

tv_status tv_fold_pass(const char *dir, const tv_trace *pass, int64_t R, int readout, tv_fold_record *record,
                       const tv_fold_facts *facts, tv_err *err) {
    const int side = pass->side[0] - 'a', set = pass->set[0] - 'a', index = tv_fold_of_pass(R, pass->pass);
    tv_fold *f;
    TV_TRY(open_like(dir, side, set, index, R, readout, &f, err));
    if (!f) f = tv_fold_new(pass, R, index, readout);
    char *path = tv_fold_path(dir, side, set, index);
    tv_status s = tv_fold_add(f, pass, record, facts, err);
    if (s == TV_OK) s = tv_fold_write(f, path, err);
    tv_fold_free(f);
    free(path);
    return s;
}

uint64_t tv_fold_disk_need(int64_t N, int64_t n, int64_t slots, int64_t R) {
    int64_t bound[TV_FOLD_MOST + 1];
    uint64_t need = 0;
    const int folds = tv_fold_bounds(R, bound);
    for (int f = 0; f < folds; f++)
        need += 65536 + (uint64_t)N * (uint64_t)n * 12 * (uint64_t)slots * (bound[f + 1] - bound[f] > 1 ? 2 : 1);
    return need;
}
