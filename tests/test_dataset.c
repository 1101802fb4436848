/* Datasets: run folders, lists of trace files and bundles give the same data, and what must not meet is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/check.h"
#include "traces/dataset.h"
#include "traces/trace.h"

enum { n = 6, K = 4, COUNT_A = 3, COUNT_B = 5 };

static int swapped; /* the sides' configurations change places */
static double temperature_of[2] = {0.7, 0.7};
static const char *const DETERMINISTIC =
    "{\"backend\":\"math\",\"order\":\"fixed\",\"arrivals\":\"together\",\"top_k\":20}";
static const char *const SHUFFLED =
    "{\"backend\":\"flash\",\"order\":\"shuffled\",\"arrivals\":\"together\",\"top_k\":20}";

/* A pass (or, with pass -1, the samples) of a made-up measurement: side a is noisy, side b repeats itself. */
static tv_trace *make(int side, int set, int64_t pass) {
    tv_err err = {0};
    int64_t N = set == TV_A ? COUNT_A : COUNT_B;
    tv_trace *t = NULL;
    TV_ASSERT(tv_trace_new(N, n, K, 1, 2, &t, &err) == TV_OK);
    tv_trace_mut m = tv_trace_writable(t);
    tv_rng tokens = {(uint64_t)(100 + set)}, noise = {(uint64_t)(side == TV_A ? 7 + 31 * pass : 3)};
    for (int64_t i = 0; i < N * n; i++) {
        for (int j = 0; j < K; j++) {
            m.topk_ids[i * K + j] = 5 * j + (int)(tv_rng_next(&tokens) % 5);
            m.topk_logprobs[i * K + j] = (float)(-1.5 - j - 0.1 * tv_rng_uniform(&noise));
        }
        m.tokens[i] = m.topk_ids[i * K + (int)(tv_rng_next(&tokens) % K)];
        m.token_logprobs[i] = -2, m.token_rank[i] = 1;
    }
    for (int64_t i = 0; i < N; i++) m.trajectory[i] = 10 + i;
    m.prompt_ids[0] = 8, m.prompt_ids[1] = 9;
    m.lengths[1] = 4;
    tv_trace_clear_tails(t);
    t->side = tv_xstrdup(side == TV_A ? "a" : "b"), t->set = tv_xstrdup(set == TV_A ? "a" : "b");
    t->pass = pass, t->temperature = temperature_of[side], t->seed = (uint64_t)set;
    t->config_json = tv_xstrdup((side == TV_A) != swapped ? SHUFFLED : DETERMINISTIC);
    return t;
}

static char *name_of(int side, int set, int64_t pass) {
    return pass < 0 ? tv_xprintf("%c.samples.safetensors", "ab"[side])
                    : tv_xprintf("%c-on-%c.pass-%04d.safetensors", "ab"[side], "ab"[set], (int)pass);
}

static void write_trace(const char *dir, tv_trace *t) {
    tv_err err = {0};
    char *name = name_of(t->side[0] - 'a', t->set[0] - 'a', t->pass), *path = tv_path_join(dir, name);
    CHECK_OK(tv_trace_write(t, path, &err), &err);
    tv_trace_close(t);
    free(name), free(path);
}

static void write_text(const char *dir, const char *name, const char *text) {
    tv_err err = {0};
    char *path = tv_path_join(dir, name);
    CHECK_OK(tv_file_write(path, text, strlen(text), &err), &err);
    free(path);
}

/* A complete run: three passes of side a, two of side b. */
static const char *write_run(void) {
    const char *dir = tv_test_dir();
    for (int s = 0; s < 2; s++) {
        write_trace(dir, make(s, s, -1));
        for (int pass = 0; pass < 3; pass++) write_trace(dir, make(TV_A, s, pass));
        for (int pass = 0; pass < 2; pass++) write_trace(dir, make(TV_B, s, pass));
    }
    char *json = tv_xprintf("{\"a\":%s,\"b\":%s,\"model\":\"tiny\"}", swapped ? DETERMINISTIC : SHUFFLED,
                            swapped ? SHUFFLED : DETERMINISTIC);
    write_text(dir, "run.json", json);
    free(json);
    return dir;
}

static void drop(const char *dir, int side, int set, int64_t pass) {
    char *name = name_of(side, set, pass), *path = tv_path_join(dir, name);
    CHECK_INT(remove(path), 0);
    free(name), free(path);
}

static tv_status open_one(const char *path, tv_dataset **d, tv_err *err) { return tv_dataset_open(&path, 1, d, err); }

/* Opening dir is refused with part in the message. */
static void refused(const char *dir, tv_status status, const char *part) {
    tv_err err = {0};
    tv_dataset *d;
    CHECK_FAILS(open_one(dir, &d, &err), status, &err, part);
    CHECK(!d);
}

static void check_run(const tv_dataset *d, int64_t reads_a, int64_t reads_b) {
    CHECK_INT(d->n, n);
    CHECK_NEAR(d->temperature, 0.7, 0);
    CHECK_INT(d->top_k, 20);
    CHECK_INT(d->deterministic[TV_A], 0);
    CHECK_INT(d->deterministic[TV_B], 1);
    for (int s = 0; s < 2; s++) {
        const tv_set *set = &d->set[s];
        CHECK_INT(set->N, s == TV_A ? COUNT_A : COUNT_B);
        CHECK(set->lengths && set->lengths[0] == n && set->lengths[1] == 4);
        CHECK_INT(set->reads[TV_A], reads_a);
        CHECK_INT(set->reads[TV_B], reads_b);
        CHECK(set->trajectory[0] == 10 && set->prompt_index[0] == 0);
        for (int e = 0; e < 2; e++) {
            CHECK_INT(set->k[e], K);
            for (int64_t r = 0; r < set->reads[e]; r++) {
                tv_trace *want = make(e, s, r);
                CHECK_BYTES(set->tokens, want->tokens, (size_t)(set->N * n) * 4);
                CHECK_BYTES(set->ids[e][r], want->topk_ids, (size_t)(set->N * n * K) * 4);
                CHECK_BYTES(set->lps[e][r], want->topk_logprobs, (size_t)(set->N * n * K) * 4);
                CHECK_BYTES(set->own_lp[e][r], want->token_logprobs, (size_t)(set->N * n) * 4);
                CHECK_BYTES(set->rank[e][r], want->token_rank, (size_t)(set->N * n) * 4);
                tv_trace_close(want);
            }
        }
        tv_trace *want = make(s, s, -1);
        CHECK_INT(set->k_sample, K);
        CHECK_BYTES(set->sample_ids, want->topk_ids, (size_t)(set->N * n * K) * 4);
        CHECK_BYTES(set->sample_lps, want->topk_logprobs, (size_t)(set->N * n * K) * 4);
        CHECK_BYTES(set->sample_own_lp, want->token_logprobs, (size_t)(set->N * n) * 4);
        tv_trace_close(want);
    }
}

static void test_run_folder(void) {
    tv_err err = {0};
    tv_dataset *d;
    const char *dir = write_run();
    if (CHECK_OK(open_one(dir, &d, &err), &err)) {
        check_run(d, 3, 2);
        CHECK_STR(d->source, dir);
        CHECK_STR(cJSON_GetStringValue(cJSON_GetObjectItem(d->manifest, "model")), "tiny");
        tv_dataset_close(d);
    }
}

static void test_trace_files_in_any_order(void) {
    tv_err err = {0};
    tv_dataset *d;
    const char *dir = write_run();
    char *paths[12];
    int used = 0;
    for (int s = 1; s >= 0; s--) {
        for (int pass = 2; pass >= 0; pass--)
            for (int e = 0; e < 2; e++)
                if (e == TV_A || pass < 2) {
                    char *name = name_of(e, s, pass);
                    paths[used++] = tv_path_join(dir, name);
                    free(name);
                }
        char *name = name_of(s, s, -1);
        paths[used++] = tv_path_join(dir, name);
        free(name);
    }
    CHECK_INT(used, 12);
    if (CHECK_OK(tv_dataset_open((const char *const *)paths, 12, &d, &err), &err)) {
        check_run(d, 3, 2);
        CHECK(!d->manifest);
        tv_dataset_close(d);
    }
    char *twice[3] = {paths[0], paths[1], paths[0]};
    CHECK_FAILS(tv_dataset_open((const char *const *)twice, 3, &d, &err), TV_EFORMAT, &err,
                "no complete pass of side a over");
    char *again[13];
    memcpy(again, paths, sizeof paths);
    again[12] = paths[0];
    CHECK_FAILS(tv_dataset_open((const char *const *)again, 13, &d, &err), TV_EFORMAT, &err,
                "are both pass 2 of side a over set b");
    const char *mixed[2] = {paths[0], dir};
    CHECK_FAILS(tv_dataset_open(mixed, 2, &d, &err), TV_EARG, &err, "a folder among several files");
    CHECK_FAILS(tv_dataset_open(mixed, 1, &d, &err), TV_EFORMAT, &err, "both sides must have scored both sets");
    CHECK_FAILS(tv_dataset_open(mixed, 0, &d, &err), TV_EARG, &err, "no run folder");
    for (int i = 0; i < used; i++) free(paths[i]);
}

/* A run that stopped in the middle: the leading passes count, for each scorer and set by itself. */
static void test_interrupted_run(void) {
    tv_err err = {0};
    tv_dataset *d;
    const char *dir = write_run();
    drop(dir, TV_A, TV_B, 1);
    if (CHECK_OK(open_one(dir, &d, &err), &err)) {
        CHECK_INT(d->set[TV_B].reads[TV_A], 1);
        CHECK_INT(d->set[TV_A].reads[TV_A], 3);
        tv_dataset_close(d);
    }
    drop(dir, TV_B, TV_A, 1);
    if (CHECK_OK(open_one(dir, &d, &err), &err)) {
        CHECK_INT(d->set[TV_A].reads[TV_B], 1);
        CHECK_INT(d->deterministic[TV_B], 1);
        tv_dataset_close(d);
    }
    drop(dir, TV_A, TV_A, -1); /* without the samples the tokens of the passes stand for them */
    if (CHECK_OK(open_one(dir, &d, &err), &err)) {
        CHECK(!d->set[TV_A].sample_ids && d->set[TV_B].sample_ids && d->set[TV_A].N == COUNT_A);
        tv_dataset_close(d);
    }
    drop(dir, TV_A, TV_A, 0);
    refused(dir, TV_EFORMAT, "no complete pass of side a over the trajectories of side a");
}

static void test_folders_that_are_no_run(void) {
    const char *dir = tv_test_dir();
    refused(dir, TV_EFORMAT, "not a run folder");
    write_text(dir, "run.json", "{}");
    refused(dir, TV_EFORMAT, "finished nothing yet");
    write_text(dir, "run.json", "{\"a\":1,\"a\":2}");
    refused(dir, TV_EFORMAT, "duplicate key \"a\"");
    refused("/nonexistent", TV_EIO, "/nonexistent");
    char *path = tv_path_join(dir, "a-on-b.pass-0000.safetensors");
    write_text(dir, "run.json", "{}");
    write_trace(dir, make(TV_A, TV_A, 0));
    char *from = tv_path_join(dir, "a-on-a.pass-0000.safetensors");
    CHECK_INT(rename(from, path), 0);
    refused(dir, TV_EFORMAT, "holds pass 0 of side a over set a: renamed?");
    free(path), free(from);
}

/* One file of the run is made under something else: the field and both values are named. */
static void changed(void (*change)(tv_trace *, tv_trace_mut), const char *part) {
    const char *dir = write_run();
    tv_trace *t = make(TV_A, TV_B, 1);
    change(t, tv_trace_writable(t));
    write_trace(dir, t);
    refused(dir, TV_EFORMAT, part);
}
#define CHANGE(name, statement)                                                                                        \
    static void name(tv_trace *t, tv_trace_mut m) {                                                                    \
        (void)t, (void)m;                                                                                              \
        statement;                                                                                                     \
    }
CHANGE(temperature, t->temperature = 1)
CHANGE(seed, t->seed = 77)
CHANGE(token, m.tokens[2 * n + 1] = 444)
CHANGE(length, (m.lengths[1] = 3, tv_trace_clear_tails(t)))
CHANGE(prompt, m.prompt_ids[1] = 99)
CHANGE(trajectory, m.trajectory[2] = 99)
CHANGE(configuration, (free(t->config_json),
                       t->config_json = tv_xstrdup(
                           "{\"backend\":\"eager\",\"order\":\"shuffled\",\"arrivals\":\"together\",\"top_k\":20}")))

static void test_what_must_not_meet(void) {
    changed(temperature, "temperature is 0.69999999999999996 in "); /* cases X09 */
    changed(temperature, "and 1 in ");
    temperature_of[TV_A] = 0.6, temperature_of[TV_B] = 1; /* cases L03: side a against side b */
    const char *dir = write_run();
    refused(dir, TV_EFORMAT, "temperature is 0.59999999999999998 in ");
    refused(dir, TV_EFORMAT, "and 1 in ");
    temperature_of[TV_A] = temperature_of[TV_B] = 0.7;
    changed(seed, "seed is 1 in ");
    changed(token, "token 1 of trajectory 12 is ");
    changed(token, "and 444 in ");
    changed(length, "the length of trajectory 11 is 4 in ");
    changed(prompt, "prompt_ids is 9 in ");
    changed(trajectory, "trajectory 12 is in ");
    changed(configuration, "two configurations of side a: backend is ");
    changed(configuration, "\"eager\" in ");
}

/* Passes of another k, one trajectory fewer, or another n. */
static void test_other_shapes(void) {
    tv_err err = {0};
    for (int which = 0; which < 4; which++) {
        const char *dir = write_run();
        tv_trace *t, *u = make(TV_A, TV_B, 1);
        int64_t N = COUNT_B - (which == 0), k = K - (which == 1 || which == 3), len = n - (which == 2);
        CHECK_OK(tv_trace_new(N, len, k, 1, 2, &t, &err), &err);
        tv_trace_mut m = tv_trace_writable(t);
        for (int64_t i = 0; i < N; i++)
            for (int64_t j = 0; j < len; j++) {
                m.tokens[i * len + j] = u->tokens[i * n + j];
                for (int64_t l = 0; l < k; l++)
                    m.topk_ids[(i * len + j) * k + l] = (int32_t)l,
                                                   m.topk_logprobs[(i * len + j) * k + l] = -2 - (float)l;
            }
        memcpy(m.trajectory, u->trajectory, (size_t)N * 8), memcpy(m.prompt_ids, u->prompt_ids, 8);
        m.lengths[1] = 4;
        tv_trace_clear_tails(t);
        t->side = tv_xstrdup("a"), t->set = tv_xstrdup("b"), t->pass = 1, t->temperature = 0.7, t->seed = 1;
        t->config_json = tv_xstrdup(SHUFFLED);
        if (which == 3) { /* the only pass of side a over set b: k differs between the sets */
            t->pass = 0;
            drop(dir, TV_A, TV_B, 1), drop(dir, TV_A, TV_B, 2);
        }
        write_trace(dir, t);
        static const char *const part[] = {"trajectory 14 is in ", "k is 4 in ", "n is 6 in ",
                                           "k is 4 in side a's passes over set a and 3 in side a's over set b"};
        refused(dir, TV_EFORMAT, part[which]);
        tv_trace_close(u);
    }
}

/* Rows in another order are the same trajectories: matched by id. */
static void test_permuted_trajectories(void) {
    tv_err err = {0};
    const char *dir = write_run();
    static const int row[COUNT_B] = {3, 0, 4, 1, 2};
    tv_trace *t = make(TV_A, TV_B, 1), *u = make(TV_A, TV_B, 1);
    tv_trace_mut m = tv_trace_writable(t);
    for (int i = 0; i < COUNT_B; i++) {
        memcpy(m.tokens + i * n, u->tokens + row[i] * n, n * 4);
        memcpy(m.topk_ids + i * n * K, u->topk_ids + row[i] * n * K, n * K * 4);
        memcpy(m.topk_logprobs + i * n * K, u->topk_logprobs + row[i] * n * K, n * K * 4);
        memcpy(m.token_logprobs + i * n, u->token_logprobs + row[i] * n, n * 4);
        memcpy(m.token_rank + i * n, u->token_rank + row[i] * n, n * 4);
        m.lengths[i] = u->lengths[row[i]];
        m.trajectory[i] = u->trajectory[row[i]];
    }
    write_trace(dir, t);
    tv_trace_close(u);
    tv_dataset *d;
    if (CHECK_OK(open_one(dir, &d, &err), &err)) {
        check_run(d, 3, 2);
        tv_dataset_close(d);
    }
}

/* Bit-identical passes are called deterministic only where the condition draws nothing, and only when they are. */
static void test_deterministic_sides(void) {
    tv_err err = {0};
    tv_dataset *d;
    const char *dir = write_run();
    tv_trace *t = make(TV_B, TV_B, 1);
    tv_trace_writable(t).topk_logprobs[5] = nextafterf(t->topk_logprobs[5], -9);
    write_trace(dir, t);
    if (CHECK_OK(open_one(dir, &d, &err), &err)) {
        CHECK_INT(d->deterministic[TV_B], 0);
        tv_dataset_close(d);
    }
    swapped = 1;
    write_run();
    swapped = 0;
    if (CHECK_OK(open_one(dir, &d, &err), &err)) {
        CHECK_INT(d->deterministic[TV_A], 0); /* draws nothing, and differs */
        CHECK_INT(d->deterministic[TV_B], 0); /* agrees by chance */
        tv_dataset_close(d);
    }
}

/* Passes that another run left under this one's names do not pass for it, however well they fit one another. */
static void test_passes_of_another_run(void) {
    const char *dir = write_run();
    char *json = tv_xprintf("{\"a\":%s,\"b\":%s}", DETERMINISTIC, DETERMINISTIC);
    write_text(dir, "run.json", json);
    free(json);
    refused(dir, TV_EFORMAT, "run.json and \"flash\" in");
    write_text(dir, "run.json", "{\"a\":{\"top_k\":20},\"b\":{\"note\":\"by hand\"}}"); /* says less: fine */
    tv_err err = {0};
    tv_dataset *d;
    if (CHECK_OK(open_one(dir, &d, &err), &err)) tv_dataset_close(d);
}

static int64_t lps_bytes(const tv_dataset *d, int s, int e) { return d->set[s].N * d->n * d->set[s].k[e] * 4; }

static void check_same_data(const tv_dataset *x, const tv_dataset *y) {
    CHECK(x->n == y->n && x->top_k == y->top_k);
    CHECK(x->temperature == y->temperature || (isnan(x->temperature) && isnan(y->temperature)));
    for (int s = 0; s < 2; s++) {
        const tv_set *p = &x->set[s], *q = &y->set[s];
        size_t cells = (size_t)(p->N * x->n) * 4;
        CHECK(p->N == q->N && CHECK_BYTES(p->tokens, q->tokens, cells));
        CHECK(!p->lengths == !q->lengths && !p->trajectory == !q->trajectory && !p->prompt_index == !q->prompt_index);
        if (p->lengths && q->lengths) CHECK_BYTES(p->lengths, q->lengths, (size_t)p->N * 4);
        if (p->trajectory && q->trajectory) CHECK_BYTES(p->trajectory, q->trajectory, (size_t)p->N * 8);
        if (p->prompt_index && q->prompt_index) CHECK_BYTES(p->prompt_index, q->prompt_index, (size_t)p->N * 4);
        CHECK(!p->sample_ids == !q->sample_ids && p->k_sample == q->k_sample);
        if (p->sample_ids && q->sample_ids) CHECK_BYTES(p->sample_ids, q->sample_ids, cells * (size_t)p->k_sample);
        if (p->sample_lps && q->sample_lps) CHECK_BYTES(p->sample_lps, q->sample_lps, cells * (size_t)p->k_sample);
        for (int e = 0; e < 2; e++) {
            CHECK_INT(x->deterministic[e], y->deterministic[e]);
            if (!CHECK(p->reads[e] == q->reads[e] && p->k[e] == q->k[e] && !p->own_lp[e] == !q->own_lp[e])) continue;
            for (int64_t r = 0; r < p->reads[e]; r++) {
                CHECK_BYTES(p->ids[e][r], q->ids[e][r], (size_t)lps_bytes(x, s, e));
                CHECK_BYTES(p->lps[e][r], q->lps[e][r], (size_t)lps_bytes(x, s, e));
                if (p->own_lp[e] && q->own_lp[e]) CHECK_BYTES(p->own_lp[e][r], q->own_lp[e][r], cells);
                if (p->rank[e] && q->rank[e]) CHECK_BYTES(p->rank[e][r], q->rank[e][r], cells);
            }
        }
    }
}

/* Run folder -> bundle -> bundle: the same data, and the second bundle has the bytes of the first. */
static void test_bundle_round_trip(void) {
    tv_err err = {0};
    tv_dataset *d, *b;
    const char *dir = write_run();
    char *path = tv_path_join(dir, "bundle.safetensors"), *again = tv_path_join(dir, "again.safetensors");
    CHECK_OK(open_one(dir, &d, &err), &err);
    CHECK_OK(tv_dataset_write_bundle(d, path, &err), &err);
    if (CHECK_OK(open_one(path, &b, &err), &err)) {
        check_run(b, 3, 2);
        check_same_data(d, b);
        CHECK_STR(cJSON_GetStringValue(cJSON_GetObjectItem(b->manifest, "model")), "tiny");
        CHECK_OK(tv_dataset_write_bundle(b, again, &err), &err);
        tv_map x, y;
        CHECK_OK(tv_map_open(path, &x, &err), &err);
        CHECK_OK(tv_map_open(again, &y, &err), &err);
        CHECK(x.size == y.size && CHECK_BYTES(x.data, y.data, x.size));
        tv_map_close(&x), tv_map_close(&y);
        tv_dataset_close(b);
    }
    tv_dataset_close(d);
    free(path), free(again);
}

/* Files of other programs: the fixtures name the sides pi and mu and have no metadata. */
static void test_bundles_of_other_programs(void) {
    tv_err err = {0};
    tv_dataset *d, *b;
    static const struct {
        const char *name;
        int64_t N_a, N_b, n, k, reads;
        int deterministic_a, deterministic_b;
    } rows[] = {{"traces/g1_tiny.safetensors", 4, 4, 4, 3, 2, 0, 0},
                {"traces/g2_basic.safetensors", 12, 12, 16, 5, 8, 0, 0},
                {"traces/g3_mismatch.safetensors", 16, 14, 24, 6, 8, 0, 0},
                {"traces/g4_ties.safetensors", 8, 9, 12, 8, 16, 0, 1},
                {"traces/real_transformers.safetensors", 48, 48, 96, 20, 1, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!CHECK_OK(open_one(tv_golden(rows[i].name), &d, &err), &err)) continue;
        CHECK_INT(d->n, rows[i].n);
        CHECK_INT(d->set[TV_A].N, rows[i].N_a);
        CHECK_INT(d->set[TV_B].N, rows[i].N_b);
        for (int s = 0; s < 2; s++)
            for (int e = 0; e < 2; e++) CHECK(d->set[s].reads[e] == rows[i].reads && d->set[s].k[e] == rows[i].k);
        CHECK_INT(d->deterministic[TV_A], rows[i].deterministic_a);
        CHECK_INT(d->deterministic[TV_B], rows[i].deterministic_b);
        CHECK(isnan(d->temperature) && !d->manifest && !d->set[TV_A].lengths && !d->set[TV_A].own_lp[0]);
        char *path = tv_path_join(tv_test_dir(), "b.safetensors");
        CHECK_OK(tv_dataset_write_bundle(d, path, &err), &err);
        if (CHECK_OK(open_one(path, &b, &err), &err)) {
            check_same_data(d, b);
            tv_dataset_close(b);
        }
        free(path);
        tv_dataset_close(d);
    }
}

/* ---- bundles made by hand ---- */

enum { R = 2, N = 2, BK = 3, CELLS = N * 2, SLOTS = R * CELLS * BK };
typedef struct {
    int32_t tokens[2][CELLS], ids[2][2][SLOTS]; /* [scorer][set] */
    float lps[2][2][SLOTS];
    tv_st_tensor t[16];
    size_t count;
    const char *meta[12];
} hand;

static void hand_make(hand *h) {
    static const char *const tokens[] = {"tokens_a", "tokens_b"};
    static const char *const ids[2][2] = {{"ids_a_a", "ids_a_b"}, {"ids_b_a", "ids_b_b"}};
    static const char *const lps[2][2] = {{"lps_a_a", "lps_a_b"}, {"lps_b_a", "lps_b_b"}};
    memset(h, 0, sizeof *h);
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < CELLS; i++) h->tokens[s][i] = i % 3;
        h->t[h->count++] =
            (tv_st_tensor){tokens[s], TV_I32, 2, {N, 2}, (unsigned char *)h->tokens[s], sizeof h->tokens[s]};
        for (int e = 0; e < 2; e++) {
            for (int i = 0; i < SLOTS; i++) h->ids[e][s][i] = 2 - i % 3, h->lps[e][s][i] = -3 + (float)(i % 3);
            h->t[h->count++] =
                (tv_st_tensor){ids[e][s], TV_I32, 4, {R, N, 2, BK}, (unsigned char *)h->ids[e][s], sizeof h->ids[e][s]};
            h->t[h->count++] =
                (tv_st_tensor){lps[e][s], TV_F32, 4, {R, N, 2, BK}, (unsigned char *)h->lps[e][s], sizeof h->lps[e][s]};
        }
    }
    h->meta[0] = "format", h->meta[1] = "tvgpu-bundle/1";
}

static tv_status hand_open(const hand *h, tv_dataset **d, tv_err *err) {
    char *path = tv_path_join(tv_test_dir(), "hand.safetensors");
    CHECK_OK(tv_st_write(path, h->t, h->count, h->meta, err), err);
    tv_status s = open_one(path, d, err);
    free(path);
    return s;
}

static void hand_refused(const hand *h, const char *part) {
    tv_err err = {0};
    tv_dataset *d;
    CHECK_FAILS(hand_open(h, &d, &err), TV_EFORMAT, &err, part);
    CHECK(!d);
}

static tv_st_tensor *hand_find(hand *h, const char *name) {
    for (size_t i = 0; i < h->count; i++)
        if (strcmp(h->t[i].name, name) == 0) return &h->t[i];
    return NULL;
}

static void test_bundle_records(void) {
    tv_err err = {0};
    tv_dataset *d;
    hand h;
    hand_make(&h);
    if (CHECK_OK(hand_open(&h, &d, &err), &err)) {
        CHECK(d->deterministic[0] && d->deterministic[1]); /* two reads, bit for bit */
        tv_dataset_close(d);
    }
    hand_make(&h), h.lps[1][0][SLOTS - 1] = NAN;
    hand_refused(&h, "lps_b_a[1,1,1,2] is nan");
    hand_make(&h), h.lps[0][1][0] = 0.002f;
    hand_refused(&h, "lps_a_b[0,0,0,0] is 0.002");
    hand_make(&h), h.ids[0][0][4] = h.ids[0][0][3];
    hand_refused(&h, "ids_a_a[0,0,1] holds id 2 twice");
    hand_make(&h), h.lps[0][0][0] = -0.1f, h.lps[0][0][1] = -0.1f;
    hand_refused(&h, "the probabilities of lps_a_a[0,0,0] sum to 2.17755, more than 1");
    /* slack for f32 rounding */
    hand_make(&h), h.lps[0][0][0] = h.lps[0][0][1] = -30, h.lps[0][0][2] = 0.0009f;
    if (CHECK_OK(hand_open(&h, &d, &err), &err)) tv_dataset_close(d);
    /* what an empty slot holds does not matter; slots come in any order; -inf is probability 0 */
    hand_make(&h), h.ids[0][0][1] = -7, h.lps[0][0][1] = NAN, h.ids[0][0][2] = -7, h.lps[0][0][2] = 55,
                   h.lps[0][0][3] = -INFINITY;
    if (CHECK_OK(hand_open(&h, &d, &err), &err)) {
        CHECK(!d->deterministic[0] && d->deterministic[1]);
        tv_dataset_close(d);
    }
}

static void test_bundle_shapes(void) {
    tv_err err = {0};
    tv_dataset *d;
    hand h;
    hand_make(&h), hand_find(&h, "ids_b_a")->name = "ids_x";
    hand_refused(&h, "no tensor \"ids_b_a\"");
    hand_make(&h), hand_find(&h, "tokens_a")->name = "tokens_x";
    hand_refused(&h, "neither a trace file nor a bundle");
    hand_make(&h), hand_find(&h, "lps_a_b")->dtype = TV_I32;
    hand_refused(&h, "tensor \"lps_a_b\" is I32 [2, 2, 2, 3], expected F32 [2, 2, 2, 3]");
    hand_make(&h), h.meta[1] = "tvgpu-bundle/2";
    hand_refused(&h, "format is \"tvgpu-bundle/2\", neither");
    hand_make(&h), h.meta[0] = NULL;
    if (CHECK_OK(hand_open(&h, &d, &err), &err)) tv_dataset_close(d);
    /* side b repeated once, side a twice: allowed */
    hand_make(&h);
    for (int i = 0; i < 4; i++) {
        tv_st_tensor *t = hand_find(&h, ((const char *[]){"ids_b_a", "lps_b_a", "ids_b_b", "lps_b_b"})[i]);
        t->shape[0] = 1, t->bytes /= 2;
    }
    if (CHECK_OK(hand_open(&h, &d, &err), &err)) {
        CHECK(d->set[0].reads[0] == 2 && d->set[0].reads[1] == 1 && d->deterministic[0] && !d->deterministic[1]);
        tv_dataset_close(d);
    }
    h.meta[2] = "deterministic_b", h.meta[3] = "1", h.meta[4] = "deterministic_a", h.meta[5] = "0";
    if (CHECK_OK(hand_open(&h, &d, &err), &err)) {
        CHECK(!d->deterministic[0] && d->deterministic[1]);
        tv_dataset_close(d);
    }
    hand_make(&h), h.lps[1][0][0] = -4, h.meta[2] = "deterministic_b", h.meta[3] = "1";
    hand_refused(&h, "\"deterministic_b\" is 1 and side b's reads differ");
    /* another k on one side */
    hand_make(&h);
    for (int i = 0; i < 4; i++) {
        tv_st_tensor *t = hand_find(&h, ((const char *[]){"ids_b_a", "lps_b_a", "ids_b_b", "lps_b_b"})[i]);
        t->shape[3] = 2, t->bytes = R * CELLS * 2 * 4;
        if (t->dtype == TV_I32)
            for (int j = 0; j < R * CELLS * 2; j++) ((int32_t *)(uintptr_t)t->data)[j] = j % 2;
        else
            for (int j = 0; j < R * CELLS * 2; j++) ((float *)(uintptr_t)t->data)[j] = -2;
    }
    hand_refused(&h, "k is 3 in side a's passes over set a and 2 in side b's over set a");
    /* no reads, no tokens, another n */
    hand_make(&h), hand_find(&h, "ids_a_a")->shape[0] = 0, hand_find(&h, "ids_a_a")->bytes = 0;
    hand_refused(&h, "0 reads of 3 slots");
    hand_make(&h), hand_find(&h, "tokens_a")->shape[0] = 0, hand_find(&h, "tokens_a")->bytes = 0;
    hand_refused(&h, "tokens_a is [0, 2]: no tokens");
    hand_make(&h), hand_find(&h, "tokens_b")->shape[0] = 4, hand_find(&h, "tokens_b")->shape[1] = 1;
    hand_refused(&h, "n is 2 in tokens_a and 1 in tokens_b");
    hand_make(&h), h.meta[2] = "temperature", h.meta[3] = "nan";
    hand_refused(&h, "\"temperature\" is \"nan\"");
    hand_make(&h), h.meta[2] = "run", h.meta[3] = "{";
    hand_refused(&h, "not valid JSON");
}

/* Trajectories that ended early: with lengths, or with -1 behind the end alone. */
static void test_bundle_lengths(void) {
    tv_err err = {0};
    tv_dataset *d;
    hand h;
    hand_make(&h), h.tokens[0][1] = -1;
    h.lps[0][0][BK] = NAN; /* behind the end of trajectory 0 */
    if (CHECK_OK(hand_open(&h, &d, &err), &err)) {
        CHECK(d->set[0].lengths && d->set[0].lengths[0] == 1 && d->set[0].lengths[1] == 2 && !d->set[1].lengths);
        tv_dataset_close(d);
    }
    hand_make(&h), h.tokens[0][0] = -1;
    hand_refused(&h, "tokens_a[0,1] is 1: -1 is due behind");
    int32_t lengths[N] = {1, 2};
    hand_make(&h), h.tokens[0][1] = -1;
    h.t[h.count++] = (tv_st_tensor){"lengths_a", TV_I32, 1, {N}, (unsigned char *)lengths, sizeof lengths};
    if (CHECK_OK(hand_open(&h, &d, &err), &err)) {
        CHECK(d->set[0].lengths && d->set[0].lengths[0] == 1);
        tv_dataset_close(d);
    }
    lengths[1] = 3;
    hand_refused(&h, "lengths_a[1] is 3, not within 0..2");
}

/* Block b of the run in dir: other trajectories, other numbers; passes of each side over each set. */
static void write_block(const char *dir, int b, int passes, const char *manifest) {
    tv_err err = {0};
    char *name = tv_xprintf("block-%04d", b), *folder = tv_path_join(dir, name);
    CHECK_OK(tv_dir_make(folder, &err), &err);
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++)
            for (int pass = e == s ? -1 : 0; pass < (e == TV_A ? passes : 2); pass++) {
                tv_trace *t = make(e, s, pass);
                tv_trace_mut m = tv_trace_writable(t);
                for (int64_t i = 0; i < t->N; i++) m.trajectory[i] += 100 * b;
                for (int64_t i = 0; i < t->N * n * K; i++) m.topk_logprobs[i] -= 0.01f * (float)b;
                write_trace(folder, t);
            }
    write_text(folder, "run.json", manifest);
    free(folder), free(name);
}

/* Blocks of one run count as one set: rows, pointers, lengths and identities follow one another, whatever the number of
 * passes; as a bundle they are one array; a block that is being measured does not count; foreign blocks are refused. */
static void test_blocks(void) {
    tv_err err = {0};
    tv_dataset *d, *part[3];
    const char *dir = write_run();
    char *json = tv_xprintf("{\"a\":%s,\"b\":%s,\"model\":\"tiny\",\"first_trajectory\":7}", SHUFFLED, DETERMINISTIC);
    write_block(dir, 1, 3, json);
    write_block(dir, 2, 4, json);
    write_block(dir, 3, 2, json);
    char *bundle = tv_path_join(dir, "all.safetensors");
    for (int b = 0; b < 3; b++) {
        char *name = tv_xprintf("block-%04d", b), *folder = tv_path_join(dir, name);
        const char *own[12]; /* the folder's own files, without its blocks */
        char *file[12];
        int used = 0;
        for (int s = 0; s < 2; s++)
            for (int pass = 0; pass < 3; pass++)
                for (int e = 0; e < (pass < 2 ? 2 : 1); e++) {
                    char *trace = name_of(e, s, pass);
                    own[used] = file[used] = tv_path_join(b ? folder : dir, trace);
                    used++;
                    free(trace);
                }
        CHECK_OK(tv_dataset_open(own, used, &part[b], &err), &err);
        for (int i = 0; i < used; i++) free(file[i]);
        free(folder), free(name);
    }
    for (int stored = 0; stored < 2; stored++) { /* the folder, then its bundle */
        if (!CHECK_OK(open_one(stored ? bundle : dir, &d, &err), &err)) continue;
        CHECK(d->n == n && d->deterministic[TV_B] && !d->deterministic[TV_A] && d->top_k == 20);
        for (int s = 0; s < 2; s++) {
            const tv_set *set = &d->set[s];
            const int64_t N = part[0]->set[s].N;
            CHECK_INT(set->N, 3 * N);
            CHECK(set->reads[TV_A] == 3 && set->reads[TV_B] == 2);
            for (int64_t i = 0; i < set->N; i++) {
                const tv_dataset *from = part[i / N];
                const int64_t row = i % N;
                CHECK_INT(set->trajectory[i], from->set[s].trajectory[row]);
                CHECK_INT(set->lengths[i], from->set[s].lengths[row]);
                CHECK_BYTES(set->tokens + i * n, from->set[s].tokens + row * n, n * 4);
                for (int e = 0; e < 2; e++)
                    for (int64_t r = 0; r < set->reads[e]; r++) {
                        CHECK_BYTES(tv_row_ids(d, s, e, r, i), tv_row_ids(from, s, e, r, row), n * K * 4);
                        CHECK_BYTES(tv_row_lps(d, s, e, r, i), tv_row_lps(from, s, e, r, row), n * K * 4);
                        CHECK_BYTES(tv_row_own_lp(d, s, e, r, i), tv_row_own_lp(from, s, e, r, row), n * 4);
                        CHECK_BYTES(tv_row_rank(d, s, e, r, i), tv_row_rank(from, s, e, r, row), n * 4);
                    }
            }
            tv_set later = *set; /* a view that begins at read 1 */
            tv_set_skip_reads(&later, TV_A, 1);
            CHECK(later.reads[TV_A] == 2 &&
                  later.ids[TV_A][tv_row_pointer(&later, 0, N)] == set->ids[TV_A][tv_row_pointer(set, 1, N)]);
            CHECK(later.rank[TV_A][tv_row_pointer(&later, 1, 2 * N)] == set->rank[TV_A][tv_row_pointer(set, 2, 2 * N)]);
        }
        if (stored) CHECK_INT(d->set[TV_B].k_sample, K);
        if (!stored) CHECK_OK(tv_dataset_write_bundle(d, bundle, &err), &err);
        tv_dataset_close(d);
    }
    for (int b = 0; b < 3; b++) tv_dataset_close(part[b]);
    char *other = tv_xprintf("{\"a\":%s,\"b\":%s,\"model\":\"large\"}", SHUFFLED, DETERMINISTIC);
    write_block(dir, 2, 3, other);
    refused(dir, TV_EFORMAT, "two blocks of different runs: model is \"tiny\"");
    write_block(dir, 2, 3, json);
    char *second = tv_path_join(dir, "block-0002"), *third = tv_path_join(dir, "block-0003");
    char *away = tv_path_join(dir, "away");
    CHECK_INT(rename(third, away), 0);
    free(away);
    CHECK_INT(rename(second, third), 0);
    CHECK_OK(tv_dir_make(second, &err), &err); /* begun: the first two count */
    if (CHECK_OK(open_one(dir, &d, &err), &err)) {
        CHECK(d->n_blocks == 2 && d->set[TV_A].N == 2 * COUNT_A);
        tv_dataset_close(d);
    }
    free(second), free(third), free(other), free(bundle), free(json);
}

static const tv_test tests[] = {
    {"run_folder", test_run_folder},
    {"blocks", test_blocks},
    {"trace_files_in_any_order", test_trace_files_in_any_order},
    {"interrupted_run", test_interrupted_run},
    {"folders_that_are_no_run", test_folders_that_are_no_run},
    {"what_must_not_meet", test_what_must_not_meet},
    {"other_shapes", test_other_shapes},
    {"permuted_trajectories", test_permuted_trajectories},
    {"deterministic_sides", test_deterministic_sides},
    {"passes_of_another_run", test_passes_of_another_run},
    {"bundle_round_trip", test_bundle_round_trip},
    {"bundles_of_other_programs", test_bundles_of_other_programs},
    {"bundle_records", test_bundle_records},
    {"bundle_shapes", test_bundle_shapes},
    {"bundle_lengths", test_bundle_lengths},
};
TV_TEST_MAIN(tests)
