/* The argument checks every device makes: a wrong size or segment is named before it becomes a wild address. */
#include "tests/check.h"

#include <math.h>

#include "kernels/ops.h"

static tv_bf16 some[4]; /* stands for any tensor: the checks look at no element */
static float some_f32[4];
static int32_t some_i32[4];
static int64_t some_i64[4];

static void test_rows(void) {
    tv_err err = {0};
    const tv_embed_args embed = {.table = some, .ids = some_i32, .out = some, .M = 1, .V = 4, .D = 1};
    tv_embed_args e = embed;
    CHECK_OK(tv_check_embed(&e, &err), &err);
    e.M = 0;
    CHECK_FAILS(tv_check_embed(&e, &err), TV_EARG, &err, "embed: M=0 must be in 1 ..");
    e = embed, e.ids = NULL;
    CHECK_FAILS(tv_check_embed(&e, &err), TV_EARG, &err, "embed: ids is NULL");
    CHECK_FAILS(tv_check_embed(NULL, &err), TV_EARG, &err, "embed: the argument struct is NULL");

    const tv_rmsnorm_args rmsnorm = {.x = some, .weight = some, .out = some, .M = 1, .D = 4, .eps = 1e-6f};
    tv_rmsnorm_args r = rmsnorm;
    CHECK_OK(tv_check_rmsnorm(&r, &err), &err);
    static const float eps[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        r.eps = eps[i];
        CHECK_FAILS(tv_check_rmsnorm(&r, &err), TV_EARG, &err, "must be positive and finite");
    }
    tv_swiglu_args s = {.gate_up = some, .out = some, .M = 1, .F = -3};
    CHECK_FAILS(tv_check_swiglu(&s, &err), TV_EARG, &err, "swiglu: F=-3");
}

static void test_segments(void) {
    tv_err err = {0};
    const tv_segment good[] = {{0, 0, 3, 5}, {1, 3, 1, 0}};
    const tv_attn_args attention = {.q = some,
                                    .kv = {.k = some, .v = some, .slots = 2, .G = 2, .S = 8, .HS = 4},
                                    .out = some,
                                    .segments = good,
                                    .n_segments = 2,
                                    .M = 4,
                                    .H = 4,
                                    .scale = 0.5f,
                                    .plan = {16, 32}};
    tv_attn_args a = attention;
    CHECK_OK(tv_check_attn(&a, &err), &err);
    static const struct {
        tv_segment segment;
        const char *part;
    } bad[] = {
        {{2, 0, 3, 5}, "attention: segment 0 has slot 2, with 2 slots"},
        {{-1, 0, 3, 5}, "has slot -1"},
        {{0, 2, 3, 5}, "has rows 2 + 3, with M=4"},
        {{0, -1, 3, 5}, "has rows -1 + 3"},
        {{0, 0, 0, 5}, "has rows 0 + 0"},
        {{0, 0, 3, 6}, "has positions 6 + 3, with 8 cache positions"},
        {{0, 0, 3, -1}, "has positions -1 + 3"},
        {{0, 0, 3, INT32_MAX}, "has positions 2147483647 + 3"},
        {{0, 0, 2, 5}, "the segments hold 3 rows, with M=4"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tv_segment segments[] = {bad[i].segment, good[1]};
        a.segments = segments;
        CHECK_FAILS(tv_check_attn(&a, &err), TV_EARG, &err, bad[i].part);
    }
    a = attention, a.n_segments = 0;
    CHECK_FAILS(tv_check_attn(&a, &err), TV_EARG, &err, "n_segments=0");
    a = attention, a.H = 3;
    CHECK_FAILS(tv_check_attn(&a, &err), TV_EARG, &err, "H=3 must be a multiple of kv.G=2");
    a = attention, a.scale = NAN;
    CHECK_FAILS(tv_check_attn(&a, &err), TV_EARG, &err, "scale=nan");
    a = attention, a.plan.split_keys = 40;
    CHECK_FAILS(tv_check_attn(&a, &err), TV_EARG, &err, "splits of 40 keys in tiles of 16");

    const tv_rope_args rope = {.qkv = some,
                               .cos = some,
                               .sin = some,
                               .q = some,
                               .kv = attention.kv,
                               .segments = good,
                               .n_segments = 2,
                               .M = 4,
                               .H = 4,
                               .positions = 8,
                               .eps = 1e-6f};
    tv_rope_args r = rope;
    CHECK_OK(tv_check_rope(&r, &err), &err);
    r.positions = 7;
    CHECK_FAILS(tv_check_rope(&r, &err), TV_EARG, &err,
                "rope: segment 0 has positions 5 + 3, with 8 cache positions and 7 in all");
    r = rope, r.kv.HS = 5;
    CHECK_FAILS(tv_check_rope(&r, &err), TV_EARG, &err, "rope: kv.HS=5 must be even");
    r = rope, r.q_weight = some;
    CHECK_FAILS(tv_check_rope(&r, &err), TV_EARG, &err, "rope: k_weight is NULL and the other norm weight is not");
}

static void test_sampling(void) {
    tv_err err = {0};
    const tv_logprobs_args logprobs = {.logits = some_f32,
                                       .topk_ids = some_i32,
                                       .topk_logprobs = some_f32,
                                       .bad = some_i32,
                                       .M = 1,
                                       .V = 4,
                                       .k = 2,
                                       .temperature = 1};
    tv_logprobs_args l = logprobs;
    CHECK_OK(tv_check_logprobs(&l, &err), &err);
    static const float temperatures[] = {0, -1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        l.temperature = temperatures[i];
        CHECK_FAILS(tv_check_logprobs(&l, &err), TV_EARG, &err, "must be positive and finite");
    }
    l = logprobs, l.k = 5;
    CHECK_FAILS(tv_check_logprobs(&l, &err), TV_EARG, &err, "logprobs: k=5 must be in 1 .. 4");
    l = logprobs, l.token = some_i32;
    CHECK_FAILS(tv_check_logprobs(&l, &err), TV_EARG, &err, "token_logprob is NULL");
    l = logprobs, l.n_suppressed = 1;
    CHECK_FAILS(tv_check_logprobs(&l, &err), TV_EARG, &err, "suppressed is NULL");

    tv_sample_args s = {.topk_ids = some_i32,
                        .topk_logprobs = some_f32,
                        .trajectory = some_i64,
                        .position = some_i32,
                        .token = some_i32,
                        .M = 1,
                        .k = 2,
                        .top_k = 2};
    CHECK_OK(tv_check_sample(&s, &err), &err);
    s.top_k = 3;
    CHECK_FAILS(tv_check_sample(&s, &err), TV_EARG, &err, "sample: top_k=3 must be in 1 .. 2");
}

static const tv_test tests[] = {{"rows", test_rows}, {"segments", test_segments}, {"sampling", test_sampling}};
TV_TEST_MAIN(tests)
