#include "traces/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "traces/records.h"

#define FORMAT "tvgpu-trace/1"

enum { MAX_ARRAYS = 16 };

typedef struct {
    tv_st_file *file;         /* NULL for a trace made by tv_trace_new */
    void *arrays[MAX_ARRAYS]; /* allocated: copies of misaligned tensors, or the arrays of tv_trace_new */
    int n_arrays;
    tv_trace_mut mut; /* of tv_trace_new */
} owner;

/* ---- checks that a file and a trace about to be written share ---- */

static tv_status check_prompts(const tv_trace *t, int64_t n_prompt_ids, const char *name, tv_err *err) {
    const int32_t *o = t->prompt_offsets;
    if (o[0] != 0) return TV_FAIL(err, TV_EFORMAT, "%s: prompt_offsets[0] is %d, not 0", name, o[0]);
    for (int64_t p = 0; p < t->P; p++)
        if (o[p + 1] < o[p])
            return TV_FAIL(err, TV_EFORMAT, "%s: prompt_offsets[%" PRId64 "] is %d, less than the %d before it", name,
                           p + 1, o[p + 1], o[p]);
    if (o[t->P] != n_prompt_ids)
        return TV_FAIL(err, TV_EFORMAT, "%s: prompt_offsets end at %d and prompt_ids has %" PRId64, name, o[t->P],
                       n_prompt_ids);
    for (int64_t j = 0; j < n_prompt_ids; j++)
        if (t->prompt_ids[j] < 0)
            return TV_FAIL(err, TV_EFORMAT, "%s: prompt_ids[%" PRId64 "] is %d", name, j, t->prompt_ids[j]);
    for (int64_t i = 0; i < t->N; i++)
        if (t->prompt_index[i] < 0 || t->prompt_index[i] >= t->P)
            return TV_FAIL(err, TV_EFORMAT, "%s: prompt_index[%" PRId64 "] is %d with %" PRId64 " prompts", name, i,
                           t->prompt_index[i], t->P);
    return TV_OK;
}

static int is_side(const char *s) { return s && (strcmp(s, "a") == 0 || strcmp(s, "b") == 0); }

static tv_status check_libraries(const char *text, const char *name, tv_err *err) {
    cJSON *list;
    TV_TRY(tv_json_parse(text, strlen(text), name, &list, err));
    int strings = cJSON_IsArray(list);
    for (const cJSON *item = strings ? list->child : NULL; item; item = item->next) strings &= cJSON_IsString(item);
    cJSON_Delete(list);
    return strings ? TV_OK : TV_FAIL(err, TV_EFORMAT, "%s: libraries is not a JSON array of strings", name);
}

static tv_status check(const tv_trace *t, int64_t n_prompt_ids, const char *name, tv_err *err) {
    if (!is_side(t->side))
        return TV_FAIL(err, TV_EFORMAT, "%s: side is \"%.40s\", neither \"a\" nor \"b\"", name, t->side ? t->side : "");
    if (!is_side(t->set))
        return TV_FAIL(err, TV_EFORMAT, "%s: set is \"%.40s\", neither \"a\" nor \"b\"", name, t->set ? t->set : "");
    if (t->pass < -1) return TV_FAIL(err, TV_EFORMAT, "%s: pass is %" PRId64, name, t->pass);
    if (t->pass >= 0 && !t->k) return TV_FAIL(err, TV_EFORMAT, "%s: pass %" PRId64 " without topk_ids", name, t->pass);
    if (t->pass < 0 && strcmp(t->side, t->set) != 0)
        return TV_FAIL(err, TV_EFORMAT, "%s: a sample file of side \"%s\" and set \"%s\"", name, t->side, t->set);
    if (!(t->temperature >= 0) || !isfinite(t->temperature))
        return TV_FAIL(err, TV_EFORMAT, "%s: temperature is %g", name, t->temperature);
    cJSON *config;
    TV_TRY(tv_json_parse(t->config_json, strlen(t->config_json), name, &config, err));
    int is_object = cJSON_IsObject(config);
    cJSON_Delete(config);
    if (!is_object) return TV_FAIL(err, TV_EFORMAT, "%s: configuration is not a JSON object", name);
    if (t->libraries) TV_TRY(check_libraries(t->libraries, name, err));
    TV_TRY(tv_tokens_check(t->tokens, t->lengths, t->N, t->n, name, "tokens", "lengths", err));
    TV_TRY(tv_trajectories_check(t->trajectory, t->N, name, "trajectory", err));
    TV_TRY(check_prompts(t, n_prompt_ids, name, err));
    tv_records r = {.N = t->N,
                    .n = t->n,
                    .k = t->k,
                    .ids = t->topk_ids,
                    .lps = t->topk_logprobs,
                    .own = t->token_logprobs,
                    .rank = t->token_rank,
                    .lengths = t->lengths,
                    .strict = 1,
                    .file = name,
                    .ids_name = "topk_ids",
                    .lps_name = "topk_logprobs",
                    .own_name = "token_logprobs",
                    .rank_name = "token_rank",
                    .read = -1};
    return tv_records_check(&r, err);
}

/* ---- reading ---- */

/* Binds *data to the tensor, copied where it is misaligned. shape: see tv_st_need; found (may be NULL) gets the real
 * one. */
static tv_status bind(owner *o, const char *name, tv_dtype dtype, int n_dims, const int64_t *shape, const void *data,
                      int64_t *found, tv_err *err) {
    const tv_st_tensor *t;
    void *copy;
    TV_TRY(tv_st_need(o->file, name, dtype, n_dims, shape, &t, err));
    const void *p = tv_st_aligned(t, &copy);
    if (!p)
        return TV_FAIL(err, TV_ENOMEM, "%s: no memory for a copy of %s (%zu bytes)", tv_st_name(o->file), name,
                       t->bytes);
    if (copy) o->arrays[o->n_arrays++] = copy;
    memcpy((void *)(uintptr_t)data, &p, sizeof p); /* data points at a const pointer of the tensor's type */
    if (found) memcpy(found, t->shape, (size_t)n_dims * sizeof *found);
    return TV_OK;
}

static tv_status need_meta(const tv_st_file *f, const char *key, const char **out, tv_err *err) {
    *out = tv_st_meta(f, key);
    if (!*out) return TV_FAIL(err, TV_EFORMAT, "%s: no \"%s\" in its __metadata__", tv_st_name(f), key);
    return TV_OK;
}

static tv_status bad_number(const tv_st_file *f, const char *key, const char *text, tv_err *err) {
    return TV_FAIL(err, TV_EFORMAT, "%s: metadata \"%s\" is \"%.60s\", not a number it can be", tv_st_name(f), key,
                   text);
}

static tv_status meta_i64(const tv_st_file *f, const char *key, int64_t *out, tv_err *err) {
    const char *text;
    char *end;
    TV_TRY(need_meta(f, key, &text, err));
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || *end || !((*text >= '0' && *text <= '9') || *text == '-')) return bad_number(f, key, text, err);
    *out = v;
    return TV_OK;
}

static tv_status meta_u64(const tv_st_file *f, const char *key, uint64_t *out, tv_err *err) {
    const char *text;
    char *end;
    TV_TRY(need_meta(f, key, &text, err));
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || *end || *text < '0' || *text > '9') return bad_number(f, key, text, err);
    *out = v;
    return TV_OK;
}

static tv_status meta_double(const tv_st_file *f, const char *key, double *out, tv_err *err) {
    const char *text;
    char *end;
    TV_TRY(need_meta(f, key, &text, err));
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v)) return bad_number(f, key, text, err);
    *out = v;
    return TV_OK;
}

static tv_status load(tv_trace *t, tv_err *err) {
    owner *o = t->owner;
    const tv_st_file *f = o->file;
    const char *name = tv_st_name(f), *text;
    int64_t shape[3], k;
    if (!tv_st_meta(f, "format") || strcmp(tv_st_meta(f, "format"), FORMAT) != 0)
        return TV_FAIL(err, TV_EFORMAT, "%s: format is \"%.60s\", not \"" FORMAT "\"", name,
                       tv_st_meta(f, "format") ? tv_st_meta(f, "format") : "");
    TV_TRY(need_meta(f, "side", &text, err));
    t->side = tv_xstrdup(text);
    TV_TRY(need_meta(f, "set", &text, err));
    t->set = tv_xstrdup(text);
    TV_TRY(need_meta(f, "configuration", &text, err));
    t->config_json = tv_xstrdup(text);
    if ((text = tv_st_meta(f, "libraries"))) t->libraries = tv_xstrdup(text);
    TV_TRY(meta_i64(f, "pass", &t->pass, err));
    TV_TRY(meta_i64(f, "k", &k, err));
    TV_TRY(meta_double(f, "temperature", &t->temperature, err));
    TV_TRY(meta_u64(f, "seed", &t->seed, err));

    TV_TRY(bind(o, "tokens", TV_I32, 2, (int64_t[]){-1, -1}, &t->tokens, shape, err));
    t->N = shape[0];
    t->n = shape[1];
    if (!t->N || !t->n)
        return TV_FAIL(err, TV_EFORMAT, "%s: tokens is [%" PRId64 ", %" PRId64 "]: no tokens", name, t->N, t->n);
    const int64_t N = t->N, n = t->n;
    if (tv_st_find(f, "lengths")) TV_TRY(bind(o, "lengths", TV_I32, 1, &N, &t->lengths, NULL, err));
    if (tv_st_find(f, "topk_ids") || tv_st_find(f, "topk_logprobs")) {
        TV_TRY(bind(o, "topk_ids", TV_I32, 3, (int64_t[]){N, n, -1}, &t->topk_ids, shape, err));
        t->k = shape[2];
        TV_TRY(bind(o, "topk_logprobs", TV_F32, 3, (int64_t[]){N, n, t->k}, &t->topk_logprobs, NULL, err));
    }
    if (k != t->k)
        return TV_FAIL(err, TV_EFORMAT, "%s: metadata \"k\" is %" PRId64 " and topk_ids has %" PRId64 " slots", name, k,
                       t->k);
    if (tv_st_find(f, "token_logprobs"))
        TV_TRY(bind(o, "token_logprobs", TV_F32, 2, (int64_t[]){N, n}, &t->token_logprobs, NULL, err));
    if (tv_st_find(f, "token_rank"))
        TV_TRY(bind(o, "token_rank", TV_I32, 2, (int64_t[]){N, n}, &t->token_rank, NULL, err));
    TV_TRY(bind(o, "prompt_offsets", TV_I32, 1, (int64_t[]){-1}, &t->prompt_offsets, shape, err));
    t->P = shape[0] - 1;
    if (t->P < 1)
        return TV_FAIL(err, TV_EFORMAT, "%s: prompt_offsets has %" PRId64 " entries: no prompt", name, shape[0]);
    int64_t n_prompt_ids;
    TV_TRY(bind(o, "prompt_ids", TV_I32, 1, (int64_t[]){-1}, &t->prompt_ids, &n_prompt_ids, err));
    TV_TRY(bind(o, "prompt_index", TV_I32, 1, &N, &t->prompt_index, NULL, err));
    TV_TRY(bind(o, "trajectory", TV_I64, 1, &N, &t->trajectory, NULL, err));
    return check(t, n_prompt_ids, name, err);
}

static tv_status from_file(tv_st_file *file, tv_trace **out, tv_err *err) {
    tv_trace *t = tv_xcalloc(1, sizeof *t);
    owner *o = t->owner = tv_xcalloc(1, sizeof *o);
    o->file = file;
    tv_status s = load(t, err);
    if (s != TV_OK)
        tv_trace_close(t);
    else
        *out = t;
    return s;
}

tv_status tv_trace_parse(const unsigned char *data, size_t size, const char *name, tv_trace **out, tv_err *err) {
    tv_st_file *file;
    *out = NULL;
    TV_TRY(tv_st_parse(data, size, name, &file, err));
    return from_file(file, out, err);
}

tv_status tv_trace_open(const char *path, tv_trace **out, tv_err *err) {
    tv_st_file *file;
    *out = NULL;
    TV_TRY(tv_st_open(path, &file, err));
    return from_file(file, out, err);
}

void tv_trace_close(tv_trace *t) {
    if (!t) return;
    owner *o = t->owner;
    for (int i = 0; i < o->n_arrays; i++) free(o->arrays[i]);
    tv_st_close(o->file);
    free(o);
    free(t->side);
    free(t->set);
    free(t->config_json);
    free(t->libraries);
    free(t);
}

/* ---- making and writing ---- */

/* count zeroed elements of 4 or 8 bytes; NULL in the result when there is no memory. */
static void *new_array(owner *o, size_t count, size_t element) {
    void *p = calloc(count ? count : 1, element);
    if (p) o->arrays[o->n_arrays++] = p;
    return p;
}

tv_status tv_trace_new(int64_t N, int64_t n, int64_t k, int64_t P, int64_t n_prompt_ids, tv_trace **out, tv_err *err) {
    size_t cells, slots;
    *out = NULL;
    if (N < 1 || n < 1 || k < 0 || P < 1 || n_prompt_ids < 0 || n_prompt_ids > INT32_MAX || n > INT32_MAX)
        return TV_FAIL(err, TV_EARG,
                       "a trace of N=%" PRId64 ", n=%" PRId64 ", k=%" PRId64 ", %" PRId64 " prompts with %" PRId64
                       " ids cannot be made",
                       N, n, k, P, n_prompt_ids);
    if (__builtin_mul_overflow((size_t)N, (size_t)n, &cells) || __builtin_mul_overflow(cells, (size_t)k, &slots) ||
        slots > SIZE_MAX / 64)
        return TV_FAIL(err, TV_ENOMEM, "a trace of N=%" PRId64 ", n=%" PRId64 ", k=%" PRId64 " fits no memory", N, n,
                       k);
    tv_trace *t = tv_xcalloc(1, sizeof *t);
    owner *o = t->owner = tv_xcalloc(1, sizeof *o);
    tv_trace_mut *m = &o->mut;
    t->N = N, t->n = n, t->k = k, t->P = P, t->pass = -1;
    t->trajectory = m->trajectory = new_array(o, (size_t)N, 8);
    t->tokens = m->tokens = new_array(o, cells, 4);
    t->lengths = m->lengths = new_array(o, (size_t)N, 4);
    t->topk_ids = m->topk_ids = new_array(o, slots, 4);
    t->topk_logprobs = m->topk_logprobs = new_array(o, slots, 4);
    t->token_logprobs = m->token_logprobs = new_array(o, cells, 4);
    t->token_rank = m->token_rank = new_array(o, cells, 4);
    t->prompt_ids = m->prompt_ids = new_array(o, (size_t)n_prompt_ids, 4);
    t->prompt_offsets = m->prompt_offsets = new_array(o, (size_t)P + 1, 4);
    t->prompt_index = m->prompt_index = new_array(o, (size_t)N, 4);
    if (o->n_arrays != 10) {
        tv_trace_close(t);
        return TV_FAIL(err, TV_ENOMEM,
                       "no memory for %zu bytes of records (N=%" PRId64 ", n=%" PRId64 ", k=%" PRId64
                       "); a smaller --store-k needs less",
                       8 * (slots + cells), N, n, k);
    }
    for (int64_t i = 0; i < N; i++) m->lengths[i] = (int32_t)n;
    m->prompt_offsets[P] = (int32_t)n_prompt_ids;
    *out = t;
    return TV_OK;
}

tv_trace_mut tv_trace_writable(tv_trace *t) {
    owner *o = t->owner;
    TV_ASSERT(!o->file);
    return o->mut;
}

void tv_trace_clear_tails(tv_trace *t) {
    tv_trace_mut m = tv_trace_writable(t);
    for (int64_t i = 0; i < t->N; i++)
        for (int64_t at = i * t->n + m.lengths[i]; at < (i + 1) * t->n; at++) {
            m.tokens[at] = -1;
            m.token_logprobs[at] = 0;
            m.token_rank[at] = -1;
            for (int64_t j = at * t->k; j < (at + 1) * t->k; j++) {
                m.topk_ids[j] = -1;
                m.topk_logprobs[j] = -INFINITY;
            }
        }
}

/* The shortest decimal that reads back as v. */
static void double_text(char text[32], double v) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, v);
        if (strtod(text, NULL) == v) return;
    }
}

static tv_st_tensor tensor(const char *name, tv_dtype dtype, const void *data, int n_dims, int64_t d0, int64_t d1,
                           int64_t d2) {
    tv_st_tensor t = {.name = name, .dtype = dtype, .n_dims = n_dims, .shape = {d0, d1, d2}, .data = data};
    t.bytes = tv_dtype_size(dtype) * (size_t)d0 * (size_t)(n_dims > 1 ? d1 : 1) * (size_t)(n_dims > 2 ? d2 : 1);
    return t;
}

static int all_full(const tv_trace *t) {
    for (int64_t i = 0; t->lengths && i < t->N; i++)
        if (t->lengths[i] != t->n) return 0;
    return 1;
}

tv_status tv_trace_write(const tv_trace *t, const char *path, tv_err *err) {
    tv_trace checked = *t;
    char none[] = "{}";
    if (!checked.config_json) checked.config_json = none;
    int64_t n_prompt_ids = t->prompt_offsets[t->P];
    TV_TRY(check(&checked, n_prompt_ids, path, err));
    tv_st_tensor tensors[MAX_ARRAYS];
    size_t n = 0;
    tensors[n++] =
        tensor("trajectory", TV_I64, t->trajectory, 1, t->N, 0, 0); /* the one 8-byte dtype first: alignment */
    tensors[n++] = tensor("tokens", TV_I32, t->tokens, 2, t->N, t->n, 0);
    if (!all_full(t)) tensors[n++] = tensor("lengths", TV_I32, t->lengths, 1, t->N, 0, 0);
    if (t->k) {
        tensors[n++] = tensor("topk_ids", TV_I32, t->topk_ids, 3, t->N, t->n, t->k);
        tensors[n++] = tensor("topk_logprobs", TV_F32, t->topk_logprobs, 3, t->N, t->n, t->k);
    }
    if (t->token_logprobs) tensors[n++] = tensor("token_logprobs", TV_F32, t->token_logprobs, 2, t->N, t->n, 0);
    if (t->token_rank) tensors[n++] = tensor("token_rank", TV_I32, t->token_rank, 2, t->N, t->n, 0);
    tensors[n++] = tensor("prompt_ids", TV_I32, t->prompt_ids, 1, n_prompt_ids, 0, 0);
    tensors[n++] = tensor("prompt_offsets", TV_I32, t->prompt_offsets, 1, t->P + 1, 0, 0);
    tensors[n++] = tensor("prompt_index", TV_I32, t->prompt_index, 1, t->N, 0, 0);
    char pass[32], k[32], temperature[32], seed[32];
    snprintf(pass, sizeof pass, "%" PRId64, t->pass);
    snprintf(k, sizeof k, "%" PRId64, t->k);
    snprintf(seed, sizeof seed, "%" PRIu64, t->seed);
    double_text(temperature, t->temperature);
    const char *metadata[] = {
        "format", FORMAT, "side",        t->side,     "set",  t->set, "pass",          pass,
        "k",      k,      "temperature", temperature, "seed", seed,   "configuration", checked.config_json,
        NULL,     NULL,   NULL};
    if (t->libraries) metadata[16] = "libraries", metadata[17] = t->libraries;
    return tv_st_write(path, tensors, n, metadata, err);
}

int64_t tv_trace_longest_prompt(const tv_trace *trace) {
    int64_t longest = 0;
    for (int64_t p = 0; p < trace->P; p++) {
        const int64_t length = trace->prompt_offsets[p + 1] - trace->prompt_offsets[p];
        if (length > longest) longest = length;
    }
    return longest;
}

uint64_t tv_trace_file_size(int64_t N, int64_t n, int64_t k, int64_t n_prompt_ids) {
    uint64_t cells = (uint64_t)N * (uint64_t)n;
    return 65536 + cells * (12 + 8 * (uint64_t)k) + (uint64_t)N * 16 + 4 * (uint64_t)n_prompt_ids;
}

/* ---- comparing ---- */

int64_t tv_words_differing(const void *a, const void *b, int64_t n) {
    if (!n || memcmp(a, b, (size_t)n * 4) == 0) return 0; /* the common case of deterministic sides, at memory speed */
    const char *p = a, *q = b;
    int64_t differing = 0;
    for (int64_t i = 0; i < n; i++) differing += memcmp(p + 4 * i, q + 4 * i, 4) != 0;
    return differing;
}

int tv_trace_same(const tv_trace *x, const tv_trace *y, int64_t *differing, int64_t *of) {
    TV_ASSERT(x->N == y->N && x->n == y->n && x->k == y->k);
    int64_t differ = 0, compared = 0;
    for (int64_t i = 0; i < x->N; i++) {
        int64_t length = x->lengths ? x->lengths[i] : x->n, at = i * x->n;
        if (x->k) {
            differ += tv_words_differing(x->topk_ids + at * x->k, y->topk_ids + at * x->k, length * x->k);
            differ += tv_words_differing(x->topk_logprobs + at * x->k, y->topk_logprobs + at * x->k, length * x->k);
            compared += 2 * length * x->k;
        }
        if (x->token_logprobs && y->token_logprobs) {
            differ += tv_words_differing(x->token_logprobs + at, y->token_logprobs + at, length);
            compared += length;
        }
        if (x->token_rank && y->token_rank) {
            differ += tv_words_differing(x->token_rank + at, y->token_rank + at, length);
            compared += length;
        }
    }
    if (differing) *differing = differ;
    if (of) *of = compared;
    return differ == 0;
}
