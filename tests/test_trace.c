/* Trace files: what is written reads back bit for bit, and a file that breaks the format is refused by name and index.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/check.h"
#include "traces/trace.h"

enum { N = 3, n = 5, K = 4 };

/* A valid pass of side b over set a: random records, the last slot of some empty, trajectory 1 ended early. */
static tv_trace *sample(uint64_t seed) {
    tv_err err = {0};
    tv_rng rng = {seed};
    tv_trace *t;
    if (!CHECK_OK(tv_trace_new(N, n, K, 2, 3, &t, &err), &err)) return NULL;
    tv_trace_mut m = tv_trace_writable(t);
    for (int i = 0; i < N * n; i++) {
        double w[K], sum = 0.1;
        for (int j = 0; j < K; j++) sum += w[j] = (K - j) + tv_rng_uniform(&rng);
        for (int j = 0; j < K; j++) {
            m.topk_ids[i * K + j] = 10 * j + (int)(tv_rng_next(&rng) % 10);
            m.topk_logprobs[i * K + j] = (float)log(w[j] / sum);
        }
        m.tokens[i] = m.topk_ids[i * K + 1];
        m.token_logprobs[i] = m.topk_logprobs[i * K + 1];
        m.token_rank[i] = 1;
        if (i % 4 == 0) m.topk_ids[i * K + K - 1] = -1, m.topk_logprobs[i * K + K - 1] = -INFINITY;
    }
    for (int i = 0; i < N; i++) m.trajectory[i] = 7 - i, m.prompt_index[i] = i & 1;
    m.prompt_ids[0] = 4, m.prompt_ids[1] = 5, m.prompt_ids[2] = 6;
    m.prompt_offsets[1] = 1;
    m.lengths[1] = 2;
    tv_trace_clear_tails(t);
    t->side = tv_xstrdup("b"), t->set = tv_xstrdup("a");
    t->pass = 12, t->temperature = 0.7, t->seed = 18446744073709551615u;
    t->config_json = tv_xstrdup("{\"backend\":\"math\",\"note\":\"\xc3\xa9 \\\"x\\\"\"}");
    t->libraries = tv_xstrdup("[\"cuBLASLt 13.1.0\",\"N 4, K 8\"]");
    return t;
}

static char *path_of(const char *name) { return tv_path_join(tv_test_dir(), name); }

static void check_equal(const tv_trace *x, const tv_trace *y) {
    CHECK(x->N == y->N && x->n == y->n && x->k == y->k && x->P == y->P);
    CHECK_BYTES(x->tokens, y->tokens, sizeof(int32_t[N * n]));
    CHECK_BYTES(x->topk_ids, y->topk_ids, sizeof(int32_t[N * n * K]));
    CHECK_BYTES(x->topk_logprobs, y->topk_logprobs, sizeof(float[N * n * K]));
    CHECK_BYTES(x->token_logprobs, y->token_logprobs, sizeof(float[N * n]));
    CHECK_BYTES(x->token_rank, y->token_rank, sizeof(int32_t[N * n]));
    CHECK_BYTES(x->prompt_ids, y->prompt_ids, 12);
    CHECK_BYTES(x->prompt_offsets, y->prompt_offsets, 12);
    CHECK_BYTES(x->prompt_index, y->prompt_index, sizeof(int32_t[N]));
    CHECK_BYTES(x->trajectory, y->trajectory, sizeof(int64_t[N]));
    if (x->lengths && y->lengths) CHECK_BYTES(x->lengths, y->lengths, sizeof(int32_t[N]));
    CHECK_STR(x->side, y->side);
    CHECK_STR(x->set, y->set);
    CHECK_STR(x->config_json, y->config_json);
    CHECK_STR(x->libraries, y->libraries);
    CHECK(x->pass == y->pass && x->temperature == y->temperature && x->seed == y->seed);
}

static void test_round_trip(void) {
    tv_err err = {0};
    tv_trace *t = sample(1), *back;
    char *path = path_of("t.safetensors"), *again = path_of("u.safetensors");
    CHECK_OK(tv_trace_write(t, path, &err), &err);
    CHECK_OK(tv_trace_open(path, &back, &err), &err);
    check_equal(back, t);
    CHECK(back->lengths && tv_trace_same(t, back, NULL, NULL));
    CHECK_INT((uintptr_t)back->trajectory % 64, 0);
    CHECK_OK(tv_trace_write(back, again, &err), &err);
    tv_map x, y;
    CHECK_OK(tv_map_open(path, &x, &err), &err);
    CHECK_OK(tv_map_open(again, &y, &err), &err);
    CHECK(x.size == y.size && CHECK_BYTES(x.data, y.data, x.size));
    uint64_t estimate = tv_trace_file_size(N, n, K, 3);
    CHECK(estimate >= x.size && estimate <= x.size + 65536);
    tv_map_close(&x), tv_map_close(&y);
    tv_trace_close(back), tv_trace_close(t);
    free(path), free(again);
}

/* lengths is stored only when some trajectory ended early: files of the usual case do not depend on who filled it. */
static void test_full_length_has_no_lengths(void) {
    tv_err err = {0};
    tv_trace *t = sample(2), *back;
    tv_trace_mut m = tv_trace_writable(t);
    m.lengths[1] = n;
    for (int i = n; i < 2 * n; i++) {
        memcpy(m.topk_ids + i * K, m.topk_ids, sizeof(int32_t[K])),
            memcpy(m.topk_logprobs + i * K, m.topk_logprobs, sizeof(float[K]));
        m.tokens[i] = 0, m.token_rank[i] = 0;
    }
    char *path = path_of("t.safetensors");
    CHECK_OK(tv_trace_write(t, path, &err), &err);
    CHECK_OK(tv_trace_open(path, &back, &err), &err);
    CHECK(!back->lengths);
    tv_trace_close(back), tv_trace_close(t);
    free(path);
}

/* A pure sample set: tokens, no records. */
static void test_sample_set_without_records(void) {
    tv_err err = {0};
    tv_trace *t, *back;
    char *path = path_of("t.safetensors");
    CHECK_OK(tv_trace_new(2, 3, 0, 1, 0, &t, &err), &err);
    tv_trace_writable(t).trajectory[1] = 1;
    t->side = tv_xstrdup("a"), t->set = tv_xstrdup("a");
    CHECK_OK(tv_trace_write(t, path, &err), &err);
    CHECK_OK(tv_trace_open(path, &back, &err), &err);
    CHECK(back->k == 0 && !back->topk_ids && back->pass == -1 && back->P == 1);
    CHECK_STR(back->config_json, "{}");
    CHECK(!back->libraries);
    CHECK(tv_trace_same(t, back, NULL, NULL));
    t->pass = 0;
    CHECK_FAILS(tv_trace_write(t, path, &err), TV_EFORMAT, &err, "without topk_ids");
    tv_trace_close(t), tv_trace_close(back);
    CHECK_FAILS(tv_trace_new(0, 3, 1, 1, 0, &t, &err), TV_EARG, &err, "N=0");
    CHECK_FAILS(tv_trace_new(INT64_MAX, 1 << 30, 64, 1, 0, &t, &err), TV_ENOMEM, &err, "fits no memory");
    free(path);
}

/* Every rule of the format: one value is broken, and the message names the tensor and the index. The same check stands
 * before a write, so that a fault of the engine is never stored. */
static void refuse(void (*spoil)(tv_trace *, tv_trace_mut), const char *part) {
    tv_err err = {0};
    tv_trace *t = sample(3);
    spoil(t, tv_trace_writable(t));
    char *path = path_of("bad.safetensors");
    CHECK_FAILS(tv_trace_write(t, path, &err), TV_EFORMAT, &err, part);
    CHECK(!tv_path_exists(path));
    tv_trace_close(t);
    free(path);
}
#define SPOIL(name, statement)                                                                                         \
    static void name(tv_trace *t, tv_trace_mut m) {                                                                    \
        (void)t, (void)m;                                                                                              \
        statement;                                                                                                     \
    }
enum { AT = (2 * n + 3) * K }; /* the record of trajectory 2, position 3 */
SPOIL(lp_nan, m.topk_logprobs[AT + 1] = NAN)
SPOIL(lp_positive, m.topk_logprobs[AT] = 0.01f)
SPOIL(lp_inf, m.topk_logprobs[AT] = INFINITY)
SPOIL(id_below, m.topk_ids[AT + 3] = -2)
SPOIL(empty_with_lp, m.topk_ids[AT + 3] = -1)
SPOIL(empty_inside, (m.topk_ids[AT + 2] = -1, m.topk_logprobs[AT + 2] = -INFINITY))
SPOIL(ascending, m.topk_logprobs[AT + 2] = m.topk_logprobs[AT + 1] + 0.01f)
SPOIL(tie_by_highest, (m.topk_logprobs[AT + 2] = m.topk_logprobs[AT + 1], m.topk_ids[AT + 1] = 99))
SPOIL(twice, m.topk_ids[AT + 3] = m.topk_ids[AT])
SPOIL(mass, (m.topk_logprobs[AT] = 0, m.topk_logprobs[AT + 1] = -1))
SPOIL(own_nan, m.token_logprobs[2 * n + 3] = NAN)
SPOIL(own_positive, m.token_logprobs[2 * n + 3] = 1)
SPOIL(rank_negative, m.token_rank[2 * n + 3] = -1)
SPOIL(token_negative, m.tokens[2 * n + 3] = -1)
SPOIL(tail_token, m.tokens[1 * n + 4] = 5)
SPOIL(length_above, m.lengths[0] = n + 1)
SPOIL(length_negative, m.lengths[0] = -1)
SPOIL(offsets_start, m.prompt_offsets[0] = 1)
SPOIL(offsets_fall, m.prompt_offsets[1] = 4)
SPOIL(prompt_negative, m.prompt_ids[2] = -1)
SPOIL(index_out, m.prompt_index[1] = 2)
SPOIL(index_negative, m.prompt_index[1] = -1)
SPOIL(trajectory_twice, m.trajectory[2] = 7)
SPOIL(trajectory_negative, m.trajectory[2] = -7)
SPOIL(side_c, t->side[0] = 'c')
SPOIL(set_c, t->set[0] = 'c')
SPOIL(pass_low, t->pass = -2)
SPOIL(sample_of_other, t->pass = -1)
SPOIL(temperature_nan, t->temperature = NAN)
SPOIL(temperature_low, t->temperature = -1)
SPOIL(config_text, t->config_json[0] = '[')
SPOIL(libraries_object, (free(t->libraries), t->libraries = tv_xstrdup("{\"a\":1}")))
SPOIL(libraries_number, (free(t->libraries), t->libraries = tv_xstrdup("[\"a\",1]")))

static void test_refuses_by_name_and_index(void) {
    refuse(lp_nan, "topk_logprobs[2,3,1] is nan");
    refuse(lp_positive, "topk_logprobs[2,3,0] is 0.01: not a log-probability");
    refuse(lp_inf, "topk_logprobs[2,3,0] is inf");
    refuse(id_below, "topk_ids[2,3,3] is -2");
    refuse(empty_with_lp, "where the slot is empty");
    refuse(empty_inside, "topk_logprobs[2,3,3] (id");
    refuse(ascending, "topk_logprobs[2,3,2] (id");
    refuse(tie_by_highest, "ties go by lowest id");
    refuse(twice, "topk_ids[2,3] holds id");
    refuse(mass, "topk_logprobs[2,3] sum to 1.");
    refuse(own_nan, "token_logprobs[2,3] is nan");
    refuse(own_positive, "token_logprobs[2,3] is 1");
    refuse(rank_negative, "token_rank[2,3] is -1");
    refuse(token_negative, "tokens[2,3] is -1");
    refuse(tail_token, "tokens[1,4] is 5: -1 is due");
    refuse(length_above, "lengths[0] is 6, not within 0..5");
    refuse(length_negative, "lengths[0] is -1");
    refuse(offsets_start, "prompt_offsets[0] is 1");
    refuse(offsets_fall, "prompt_offsets[2] is 3, less than the 4");
    refuse(prompt_negative, "prompt_ids[2] is -1");
    refuse(index_out, "prompt_index[1] is 2 with 2 prompts");
    refuse(index_negative, "prompt_index[1] is -1");
    refuse(trajectory_twice, "trajectory holds id 7 twice");
    refuse(trajectory_negative, "negative id -7");
    refuse(side_c, "side is \"c\"");
    refuse(set_c, "set is \"c\"");
    refuse(pass_low, "pass is -2");
    refuse(sample_of_other, "sample file of side \"b\" and set \"a\"");
    refuse(temperature_nan, "temperature is nan");
    refuse(temperature_low, "temperature is -1");
    refuse(config_text, "bad.safetensors");
    refuse(libraries_object, "libraries is not a JSON array of strings");
    refuse(libraries_number, "libraries is not a JSON array of strings");
}

/* What lies behind a trajectory's end is no record: leftovers of a ragged batch there do not make a file unreadable. */
static void test_tail_records_are_not_looked_at(void) {
    tv_err err = {0};
    tv_trace *t = sample(4), *u = sample(4), *back;
    tv_trace_mut m = tv_trace_writable(t);
    int at = (1 * n + 2) * K; /* trajectory 1 has 2 tokens */
    m.topk_logprobs[at] = NAN, m.topk_ids[at] = -9, m.token_logprobs[1 * n + 2] = NAN, m.token_rank[1 * n + 2] = -3;
    int64_t differing, of;
    CHECK_INT(tv_trace_same(t, u, &differing, &of), 1);
    CHECK_INT(differing, 0);
    CHECK_INT(of, (2 * n + 2) * (2 * K + 2));
    char *path = path_of("t.safetensors");
    CHECK_OK(tv_trace_write(t, path, &err), &err);
    CHECK_OK(tv_trace_open(path, &back, &err), &err);
    tv_trace_close(back), tv_trace_close(t), tv_trace_close(u);
    free(path);
}

/* Bits, not values: -0 and 0 differ, and so do two log-probabilities one ulp apart. */
static void test_same_counts_bits(void) {
    tv_trace *x = sample(5), *y = sample(5);
    tv_trace_mut m = tv_trace_writable(y);
    int64_t differing, of;
    m.topk_logprobs[3] = nextafterf(m.topk_logprobs[3], 0);
    m.topk_ids[K] = 1000;
    m.token_logprobs[0] = -0.0f, tv_trace_writable(x).token_logprobs[0] = 0;
    m.token_rank[2] = 3;
    CHECK_INT(tv_trace_same(x, y, &differing, &of), 0);
    CHECK_INT(differing, 4);
    CHECK_INT(of, (2 * n + 2) * (2 * K + 2));
    x->token_rank = NULL; /* what one side lacks is not compared */
    CHECK_INT(tv_trace_same(x, y, &differing, &of), 0);
    CHECK_INT(differing, 3);
    tv_trace_close(x), tv_trace_close(y);
}

/* Wide records (whole vocabularies) find duplicates by sorting, narrow ones by pairs: both must. */
static void test_duplicates_in_wide_records(void) {
    tv_err err = {0};
    for (int64_t k = 120; k <= 1000; k += 110) {
        tv_trace *t;
        CHECK_OK(tv_trace_new(1, 1, k, 1, 0, &t, &err), &err);
        tv_trace_mut m = tv_trace_writable(t);
        for (int64_t j = 0; j < k; j++)
            m.topk_ids[j] = (int32_t)(j * 7919 % 100003), m.topk_logprobs[j] = -9 - (float)j / 64;
        t->side = tv_xstrdup("a"), t->set = tv_xstrdup("a"), t->pass = 0;
        char *path = path_of("t.safetensors");
        CHECK_OK(tv_trace_write(t, path, &err), &err);
        m.topk_ids[k - 1] = m.topk_ids[2];
        CHECK_FAILS(tv_trace_write(t, path, &err), TV_EFORMAT, &err, "topk_ids[0,0] holds id 15838 twice");
        tv_trace_close(t);
        free(path);
    }
}

/* The first fault in order is the one named, however many threads look. */
static void test_first_fault_is_named(void) {
    tv_err err = {0};
    tv_trace *t;
    CHECK_OK(tv_trace_new(500, 40, 2, 1, 0, &t, &err), &err);
    tv_trace_mut m = tv_trace_writable(t);
    for (int i = 0; i < 500 * 40; i++)
        m.topk_ids[2 * i + 1] = 1, m.topk_logprobs[2 * i] = -1, m.topk_logprobs[2 * i + 1] = -2;
    for (int i = 0; i < 500; i++) m.trajectory[i] = i;
    t->side = tv_xstrdup("a"), t->set = tv_xstrdup("a"), t->pass = 0;
    for (int i = 123; i < 500; i += 50) m.topk_logprobs[2 * (40 * i + 39)] = NAN;
    char *path = path_of("t.safetensors");
    for (int i = 0; i < 5; i++)
        CHECK_FAILS(tv_trace_write(t, path, &err), TV_EFORMAT, &err, "topk_logprobs[123,39,0] is nan");
    tv_trace_close(t);
    free(path);
}

/* Rewrites the file with one metadata value replaced (NULL: left out) or one tensor left out, and opens it. */
static tv_status open_changed(const char *key, const char *value, const char *without, tv_err *err) {
    tv_trace *t = sample(6), *back = NULL;
    char *path = path_of("t.safetensors"), *changed = path_of("changed.safetensors");
    static const char *const keys[] = {"format", "side", "set", "pass", "k", "temperature", "seed", "configuration"};
    const char *meta[17] = {0};
    tv_st_tensor tensors[16];
    tv_st_file *f;
    size_t count = 0, used = 0;
    CHECK_OK(tv_trace_write(t, path, err), err);
    CHECK_OK(tv_st_open(path, &f, err), err);
    for (size_t i = 0; i < 8; i++) {
        const char *v = key && strcmp(key, keys[i]) == 0 ? value : tv_st_meta(f, keys[i]);
        if (v) meta[used] = keys[i], meta[used + 1] = v, used += 2;
    }
    for (size_t i = 0; i < tv_st_count(f); i++)
        if (!without || strcmp(tv_st_at(f, i)->name, without) != 0) tensors[count++] = *tv_st_at(f, i);
    CHECK_OK(tv_st_write(changed, tensors, count, meta, err), err);
    tv_st_close(f);
    tv_status s = tv_trace_open(changed, &back, err);
    tv_trace_close(back), tv_trace_close(t);
    free(path), free(changed);
    return s;
}

static void test_metadata_is_strict(void) {
    tv_err err = {0};
    CHECK_OK(open_changed(NULL, NULL, NULL, &err), &err);
    static const char *const keys[] = {"side", "set", "pass", "k", "temperature", "seed", "configuration"};
    for (size_t i = 0; i < 7; i++) CHECK_FAILS(open_changed(keys[i], NULL, NULL, &err), TV_EFORMAT, &err, keys[i]);
    CHECK_FAILS(open_changed("format", NULL, NULL, &err), TV_EFORMAT, &err, "format is \"\"");
    CHECK_FAILS(open_changed("format", "tvgpu-trace/2", NULL, &err), TV_EFORMAT, &err,
                "\"tvgpu-trace/2\", not \"tvgpu-trace/1\"");
    CHECK_FAILS(open_changed("k", "5", NULL, &err), TV_EFORMAT, &err, "\"k\" is 5 and topk_ids has 4 slots");
    static const char *const bad[] = {"", " 1", "1 ", "1.5", "x", "0x10", "99999999999999999999", "+1"};
    for (size_t i = 0; i < 8; i++) CHECK_FAILS(open_changed("pass", bad[i], NULL, &err), TV_EFORMAT, &err, "\"pass\"");
    for (size_t i = 0; i < 8; i++) CHECK_FAILS(open_changed("seed", bad[i], NULL, &err), TV_EFORMAT, &err, "\"seed\"");
    CHECK_FAILS(open_changed("seed", "-1", NULL, &err), TV_EFORMAT, &err, "\"seed\"");
    CHECK_FAILS(open_changed("temperature", "nan", NULL, &err), TV_EFORMAT, &err, "\"temperature\"");
    CHECK_FAILS(open_changed("temperature", "", NULL, &err), TV_EFORMAT, &err, "\"temperature\"");
    CHECK_FAILS(open_changed("temperature", "1e999", NULL, &err), TV_EFORMAT, &err, "\"temperature\"");
}

static void test_tensors_are_needed(void) {
    tv_err err = {0};
    static const char *const needed[] = {"trajectory", "tokens",         "topk_ids",    "topk_logprobs",
                                         "prompt_ids", "prompt_offsets", "prompt_index"};
    for (size_t i = 0; i < 7; i++) CHECK_FAILS(open_changed(NULL, NULL, needed[i], &err), TV_EFORMAT, &err, needed[i]);
    CHECK_FAILS(open_changed(NULL, NULL, "lengths", &err), TV_EFORMAT, &err, "tokens[1,2] is -1");
    CHECK_OK(open_changed(NULL, NULL, "token_logprobs", &err), &err);
    CHECK_OK(open_changed(NULL, NULL, "token_rank", &err), &err);
}

/* A cut file never opens; a flipped byte never makes the reader misbehave (the sanitizers watch). */
static void test_cut_and_flipped(void) {
    tv_err err = {0};
    tv_trace *t = sample(7), *back;
    char *path = path_of("t.safetensors"), *text;
    size_t size;
    CHECK_OK(tv_trace_write(t, path, &err), &err);
    CHECK_OK(tv_file_read(path, 1 << 20, &text, &size, &err), &err);
    for (size_t cut = 0; cut < size; cut += 7)
        CHECK_FAILS(tv_trace_parse((unsigned char *)text, cut, "x", &back, &err), TV_EFORMAT, &err, NULL);
    tv_rng rng = {9};
    for (int i = 0; i < 3000; i++) {
        size_t at = tv_rng_next(&rng) % size;
        char keep = text[at];
        text[at] = (char)tv_rng_next(&rng);
        if (tv_trace_parse((unsigned char *)text, size, "x", &back, &err) == TV_OK) tv_trace_close(back);
        tv_err_clear(&err);
        text[at] = keep;
    }
    free(text), free(path);
    tv_trace_close(t);
}

static const tv_test tests[] = {
    {"round_trip", test_round_trip},
    {"full_length_has_no_lengths", test_full_length_has_no_lengths},
    {"sample_set_without_records", test_sample_set_without_records},
    {"refuses_by_name_and_index", test_refuses_by_name_and_index},
    {"tail_records_are_not_looked_at", test_tail_records_are_not_looked_at},
    {"same_counts_bits", test_same_counts_bits},
    {"duplicates_in_wide_records", test_duplicates_in_wide_records},
    {"first_fault_is_named", test_first_fault_is_named},
    {"metadata_is_strict", test_metadata_is_strict},
    {"tensors_are_needed", test_tensors_are_needed},
    {"cut_and_flipped", test_cut_and_flipped},
};
TV_TEST_MAIN(tests)
