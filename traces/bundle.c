/* Bundles: one file that holds a whole measurement, "tvgpu-bundle/1" (docs/formats.md). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "traces/dataset_private.h"
#include "traces/records.h"

#define FORMAT "tvgpu-bundle/1"

enum { MAX_TENSORS = 40, NAME = 64 };

/* Two spellings of the sides: ours, and that of files which name the distributions. */
static const char *const SIDES[2][2] = {{"a", "b"}, {"pi", "mu"}};

/* ---- reading ---- */

typedef struct {
    tv_dataset *d;
    const tv_st_file *f;
    const char *const *side; /* [2] */
} bundle;

/* Binds *out to the tensor, copied where it is misaligned; found (may be NULL) gets the shape. */
static tv_status bind(bundle *b, const char *name, tv_dtype dtype, int n_dims, const int64_t *shape, const void **out,
                      int64_t *found, tv_err *err) {
    const tv_st_tensor *t;
    void *copy;
    TV_TRY(tv_st_need(b->f, name, dtype, n_dims, shape, &t, err));
    *out = tv_st_aligned(t, &copy);
    if (!*out)
        return TV_FAIL(err, TV_ENOMEM, "%s: no memory for a copy of %s (%zu bytes)", tv_st_name(b->f), name, t->bytes);
    if (copy) tv_dataset_keep(b->d, copy);
    if (found) memcpy(found, t->shape, (size_t)n_dims * sizeof *found);
    return TV_OK;
}

/* The same for a tensor that may be absent: NULL then. */
static tv_status bind_optional(bundle *b, const char *name, tv_dtype dtype, int n_dims, const int64_t *shape,
                               const void **out, tv_err *err) {
    *out = NULL;
    return tv_st_find(b->f, name) ? bind(b, name, dtype, n_dims, shape, out, NULL, err) : TV_OK;
}

/* Where lengths are not stored, a trajectory ends at its first -1. NULL when all have n tokens. */
static const int32_t *find_lengths(tv_dataset *d, const tv_set *set) {
    int64_t n = d->n, cells = set->N * n, negative = 0;
    for (int64_t i = 0; i < cells; i++) negative += set->tokens[i] < 0;
    if (!negative) return NULL;
    int32_t *lengths = tv_dataset_keep(d, tv_xmalloc((size_t)set->N * sizeof *lengths));
    for (int64_t i = 0; i < set->N; i++) {
        int64_t t = 0;
        while (t < n && set->tokens[i * n + t] >= 0) t++;
        lengths[i] = (int32_t)t;
    }
    return lengths;
}

/* [reads] pointers to the reads of a tensor whose first dimension they are; NULL for NULL. */
static const void *split_reads(tv_dataset *d, const void *data, int64_t reads, size_t bytes_each) {
    if (!data) return NULL;
    const char **p = tv_dataset_keep(d, tv_xmalloc((size_t)reads * sizeof *p));
    for (int64_t r = 0; r < reads; r++) p[r] = (const char *)data + (size_t)r * bytes_each;
    return p;
}

static tv_status load_scores(bundle *b, int e, int s, tv_err *err) {
    tv_set *set = &b->d->set[s];
    char ids_name[NAME], lps_name[NAME], own_name[NAME], rank_name[NAME];
    snprintf(ids_name, NAME, "ids_%s_%s", b->side[e], b->side[s]);
    snprintf(lps_name, NAME, "lps_%s_%s", b->side[e], b->side[s]);
    snprintf(own_name, NAME, "token_logprobs_%s_%s", b->side[e], b->side[s]);
    snprintf(rank_name, NAME, "token_rank_%s_%s", b->side[e], b->side[s]);
    const void *ids, *lps, *own, *rank;
    int64_t shape[4], N = set->N, n = b->d->n;
    TV_TRY(bind(b, ids_name, TV_I32, 4, (int64_t[]){-1, N, n, -1}, &ids, shape, err));
    int64_t reads = shape[0], k = shape[3];
    if (!reads || !k)
        return TV_FAIL(err, TV_EFORMAT, "%s: %s has %" PRId64 " reads of %" PRId64 " slots: nothing to read",
                       tv_st_name(b->f), ids_name, reads, k);
    TV_TRY(bind(b, lps_name, TV_F32, 4, (int64_t[]){reads, N, n, k}, &lps, NULL, err));
    TV_TRY(bind_optional(b, own_name, TV_F32, 3, (int64_t[]){reads, N, n}, &own, err));
    TV_TRY(bind_optional(b, rank_name, TV_I32, 3, (int64_t[]){reads, N, n}, &rank, err));
    size_t cells = (size_t)N * (size_t)n * 4;
    set->reads[e] = reads;
    set->k[e] = k;
    set->ids[e] = split_reads(b->d, ids, reads, cells * (size_t)k);
    set->lps[e] = split_reads(b->d, lps, reads, cells * (size_t)k);
    set->own_lp[e] = split_reads(b->d, own, reads, cells);
    set->rank[e] = split_reads(b->d, rank, reads, cells);
    for (int64_t r = 0; r < reads; r++) {
        tv_records records = {.N = N,
                              .n = n,
                              .k = k,
                              .ids = set->ids[e][r],
                              .lps = set->lps[e][r],
                              .own = own ? set->own_lp[e][r] : NULL,
                              .rank = rank ? set->rank[e][r] : NULL,
                              .lengths = set->lengths,
                              .file = tv_st_name(b->f),
                              .ids_name = ids_name,
                              .lps_name = lps_name,
                              .own_name = own_name,
                              .rank_name = rank_name,
                              .read = r};
        TV_TRY(tv_records_check(&records, err));
    }
    return TV_OK;
}

/* Records made while sampling: sample_ids_S, sample_lps_S, sample_token_logprobs_S. */
static tv_status load_samples(bundle *b, int s, tv_err *err) {
    tv_set *set = &b->d->set[s];
    char ids_name[NAME], lps_name[NAME], own_name[NAME];
    snprintf(ids_name, NAME, "sample_ids_%s", b->side[s]);
    snprintf(lps_name, NAME, "sample_lps_%s", b->side[s]);
    snprintf(own_name, NAME, "sample_token_logprobs_%s", b->side[s]);
    if (!tv_st_find(b->f, ids_name)) return TV_OK;
    const void *ids, *lps, *own;
    int64_t shape[3], N = set->N, n = b->d->n;
    TV_TRY(bind(b, ids_name, TV_I32, 3, (int64_t[]){N, n, -1}, &ids, shape, err));
    TV_TRY(bind(b, lps_name, TV_F32, 3, shape, &lps, NULL, err));
    TV_TRY(bind_optional(b, own_name, TV_F32, 2, (int64_t[]){N, n}, &own, err));
    if (!shape[2]) return TV_OK;
    set->sample_ids = ids;
    set->sample_lps = lps;
    set->sample_own_lp = own;
    set->k_sample = shape[2];
    tv_records records = {.N = N,
                          .n = n,
                          .k = shape[2],
                          .ids = ids,
                          .lps = lps,
                          .own = own,
                          .lengths = set->lengths,
                          .file = tv_st_name(b->f),
                          .ids_name = ids_name,
                          .lps_name = lps_name,
                          .own_name = own_name,
                          .read = -1};
    return tv_records_check(&records, err);
}

static tv_status load_set(bundle *b, int s, tv_err *err) {
    tv_set *set = &b->d->set[s];
    const char *file = tv_st_name(b->f);
    char tokens_name[NAME], lengths_name[NAME], index_name[NAME], trajectory_name[NAME];
    snprintf(tokens_name, NAME, "tokens_%s", b->side[s]);
    snprintf(lengths_name, NAME, "lengths_%s", b->side[s]);
    snprintf(index_name, NAME, "prompt_index_%s", b->side[s]);
    snprintf(trajectory_name, NAME, "trajectory_%s", b->side[s]);
    const void *tokens, *lengths, *index, *trajectory;
    int64_t shape[2];
    TV_TRY(bind(b, tokens_name, TV_I32, 2, (int64_t[]){-1, -1}, &tokens, shape, err));
    if (!shape[0] || !shape[1])
        return TV_FAIL(err, TV_EFORMAT, "%s: %s is [%" PRId64 ", %" PRId64 "]: no tokens", file, tokens_name, shape[0],
                       shape[1]);
    if (shape[1] > INT32_MAX)
        return TV_FAIL(err, TV_EFORMAT, "%s: %s has trajectories of %" PRId64 " tokens", file, tokens_name, shape[1]);
    if (s == TV_B && shape[1] != b->d->n)
        return TV_FAIL(err, TV_EFORMAT, "%s: n is %" PRId64 " in tokens_%s and %" PRId64 " in %s: not one measurement",
                       file, b->d->n, b->side[0], shape[1], tokens_name);
    const int64_t N = set->N = shape[0];
    b->d->n = shape[1];
    set->tokens = tokens;
    TV_TRY(bind_optional(b, lengths_name, TV_I32, 1, &N, &lengths, err));
    TV_TRY(bind_optional(b, index_name, TV_I32, 1, &N, &index, err));
    TV_TRY(bind_optional(b, trajectory_name, TV_I64, 1, &N, &trajectory, err));
    set->lengths = lengths ? lengths : find_lengths(b->d, set);
    set->prompt_index = index;
    set->trajectory = trajectory;
    TV_TRY(tv_tokens_check(set->tokens, set->lengths, N, b->d->n, file, tokens_name, lengths_name, err));
    if (trajectory) TV_TRY(tv_trajectories_check(trajectory, N, file, trajectory_name, err));
    for (int64_t i = 0; index && i < N; i++)
        if (set->prompt_index[i] < 0)
            return TV_FAIL(err, TV_EFORMAT, "%s: %s[%" PRId64 "] is %d", file, index_name, i, set->prompt_index[i]);
    TV_TRY(load_scores(b, TV_A, s, err));
    TV_TRY(load_scores(b, TV_B, s, err));
    return load_samples(b, s, err);
}

/* A number of the metadata in lowest..highest; *out stays when the key is absent. */
static tv_status meta_number(const bundle *b, const char *key, double lowest, double highest, double *out,
                             tv_err *err) {
    const char *text = tv_st_meta(b->f, key);
    if (!text) return TV_OK;
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= lowest && v <= highest))
        return TV_FAIL(err, TV_EFORMAT, "%s: metadata \"%s\" is \"%.60s\", not a number it can be", tv_st_name(b->f),
                       key, text);
    *out = v;
    return TV_OK;
}

static tv_status load_metadata(bundle *b, tv_err *err) {
    tv_dataset *d = b->d;
    double top_k = 0, said[2] = {-1, -1}; /* -1: the file does not say */
    TV_TRY(meta_number(b, "temperature", 0, 1e30, &d->temperature, err));
    TV_TRY(meta_number(b, "top_k", 0, 1e9, &top_k, err));
    TV_TRY(meta_number(b, "deterministic_a", 0, 1, &said[TV_A], err));
    TV_TRY(meta_number(b, "deterministic_b", 0, 1, &said[TV_B], err));
    d->top_k = (int)top_k;
    for (int e = 0; e < 2; e++) {
        if (said[e] == 0) continue;
        int repeated = d->set[TV_A].reads[e] > 1 && d->set[TV_B].reads[e] > 1;
        int agree = (repeated || said[e] > 0) && tv_dataset_reads_agree(d, e);
        if (said[e] > 0 && !agree)
            return TV_FAIL(err, TV_EFORMAT, "%s: metadata \"deterministic_%c\" is 1 and side %c's reads differ",
                           tv_st_name(b->f), "ab"[e], "ab"[e]);
        d->deterministic[e] = agree;
    }
    const char *run = tv_st_meta(b->f, "run");
    if (run) TV_TRY(tv_json_parse(run, strlen(run), tv_st_name(b->f), &d->manifest, err));
    return TV_OK;
}

tv_status tv_bundle_load(tv_dataset *d, tv_st_file *file, tv_err *err) {
    ((tv_dataset_owner *)d->owner)->bundle = file;
    const char *format = tv_st_meta(file, "format");
    if (format && strcmp(format, FORMAT) != 0)
        return TV_FAIL(err, TV_EFORMAT, "%s: format is \"%.60s\", neither \"tvgpu-trace/1\" nor \"" FORMAT "\"",
                       tv_st_name(file), format);
    int ours = tv_st_find(file, "tokens_a") != NULL;
    if (!ours && !tv_st_find(file, "tokens_pi"))
        return TV_FAIL(err, TV_EFORMAT, "%s: neither a trace file nor a bundle: no tensor \"tokens_a\"",
                       tv_st_name(file));
    bundle b = {d, file, SIDES[!ours]};
    TV_TRY(load_set(&b, TV_A, err));
    TV_TRY(load_set(&b, TV_B, err));
    TV_TRY(tv_dataset_check_k(d, err));
    return load_metadata(&b, err);
}

/* ---- writing ---- */

typedef struct {
    tv_st_tensor tensors[MAX_TENSORS];
    tv_st_pieces pieces[MAX_TENSORS];
    char names[MAX_TENSORS][NAME];
    size_t n;
} content;

/* Adds a tensor PREFIX_[E_]S of shape [reads,] N, n [, k]; data for one piece, or n_pieces equal pieces. NULL data adds
 * nothing. */
static void add(content *c, const char *prefix, int e, int s, tv_dtype dtype, int n_dims, const int64_t *shape,
                const void *data, const void *const *pieces, int64_t n_pieces) {
    if (!data && !pieces) return;
    TV_ASSERT(c->n < MAX_TENSORS);
    size_t i = c->n++;
    tv_st_tensor *t = &c->tensors[i];
    if (e >= 0)
        snprintf(c->names[i], NAME, "%s_%c_%c", prefix, "ab"[e], "ab"[s]);
    else
        snprintf(c->names[i], NAME, "%s_%c", prefix, "ab"[s]);
    *t = (tv_st_tensor){
        .name = c->names[i], .dtype = dtype, .n_dims = n_dims, .data = data, .bytes = tv_dtype_size(dtype)};
    for (int j = 0; j < n_dims; j++) {
        t->shape[j] = shape[j];
        t->bytes *= (size_t)shape[j];
    }
    c->pieces[i] = (tv_st_pieces){pieces, pieces ? (size_t)n_pieces : 0};
}

/* Records made while sampling set s, block by block; nothing where a block has none. at: [3,blocks] pointers to fill.
 */
static void add_samples(content *c, const tv_dataset *d, int s, const void **at) {
    const int64_t blocks = d->n_blocks > 1 ? d->n_blocks : 1, N = d->set[s].N, n = d->n;
    int all = 1, own = 1;
    int64_t k = 0;
    for (int64_t b = 0; b < blocks; b++) {
        const tv_set *set = d->n_blocks > 1 ? &d->block[b]->set[s] : &d->set[s];
        at[b] = set->sample_ids, at[blocks + b] = set->sample_lps, at[2 * blocks + b] = set->sample_own_lp;
        all &= set->sample_ids && (!b || set->k_sample == k);
        own &= set->sample_own_lp != NULL;
        k = set->k_sample;
    }
    if (all) {
        add(c, "sample_ids", -1, s, TV_I32, 3, (int64_t[]){N, n, k}, NULL, at, blocks);
        add(c, "sample_lps", -1, s, TV_F32, 3, (int64_t[]){N, n, k}, NULL, at + blocks, blocks);
    }
    if (own) add(c, "sample_token_logprobs", -1, s, TV_F32, 2, (int64_t[]){N, n}, NULL, at + 2 * blocks, blocks);
}

tv_status tv_dataset_write_bundle(const tv_dataset *d, const char *path, tv_err *err) {
    TV_TRY(tv_dataset_need_passes(d, "a bundle", err));
    content *c = tv_xcalloc(1, sizeof *c);
    const size_t n_blocks = (size_t)(d->n_blocks > 1 ? d->n_blocks : 1);
    const void **sampling[2] = {tv_xcalloc(3 * n_blocks, sizeof(void *)), tv_xcalloc(3 * n_blocks, sizeof(void *))};
    for (int s = 0; s < 2; s++) /* the 8-byte dtype first: alignment */
        add(c, "trajectory", -1, s, TV_I64, 1, &d->set[s].N, d->set[s].trajectory, NULL, 0);
    for (int s = 0; s < 2; s++) {
        const tv_set *set = &d->set[s];
        const int64_t N = set->N, n = d->n;
        add(c, "tokens", -1, s, TV_I32, 2, (int64_t[]){N, n}, set->tokens, NULL, 0);
        add(c, "lengths", -1, s, TV_I32, 1, &N, set->lengths, NULL, 0);
        add(c, "prompt_index", -1, s, TV_I32, 1, &N, set->prompt_index, NULL, 0);
        for (int e = 0; e < 2; e++) {
            const int64_t shape[] = {set->reads[e], N, n, set->k[e]};
            const int64_t pieces = set->reads[e] * (set->blocks > 1 ? set->blocks : 1);
            add(c, "ids", e, s, TV_I32, 4, shape, NULL, (const void *const *)set->ids[e], pieces);
            add(c, "lps", e, s, TV_F32, 4, shape, NULL, (const void *const *)set->lps[e], pieces);
            add(c, "token_logprobs", e, s, TV_F32, 3, shape, NULL, (const void *const *)set->own_lp[e], pieces);
            add(c, "token_rank", e, s, TV_I32, 3, shape, NULL, (const void *const *)set->rank[e], pieces);
        }
        add_samples(c, d, s, sampling[s]);
    }
    char temperature[32], top_k[32];
    char *run = d->manifest ? tv_json_line(d->manifest) : NULL;
    const char *metadata[16] = {"format", FORMAT};
    size_t n = 2;
    if (isfinite(d->temperature)) {
        snprintf(temperature, sizeof temperature, "%.17g", d->temperature);
        metadata[n++] = "temperature", metadata[n++] = temperature;
    }
    if (d->top_k) {
        snprintf(top_k, sizeof top_k, "%d", d->top_k);
        metadata[n++] = "top_k", metadata[n++] = top_k;
    }
    metadata[n++] = "deterministic_a", metadata[n++] = d->deterministic[TV_A] ? "1" : "0";
    metadata[n++] = "deterministic_b", metadata[n++] = d->deterministic[TV_B] ? "1" : "0";
    if (run) metadata[n++] = "run", metadata[n++] = run;
    tv_status s = tv_st_write_pieces(path, c->tensors, c->pieces, c->n, metadata, err);
    free(run);
    free(sampling[0]);
    free(sampling[1]);
    free(c);
    return s;
}
