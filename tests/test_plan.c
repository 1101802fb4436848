/* The reduction plans: what they promise to kernels, that `fixed` never looks at the batch and that `serving` does. */
#include "tests/check.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/plan.h"

static const tv_plan serving = {TV_REDUCE_SERVING, 132}, fixed = {TV_REDUCE_FIXED, 132};

static int covers(tv_linear_plan p, int K) {
    return p.slices >= 1 && (p.slices == 1 ? p.slice == K : p.slice % 32 == 0 && p.slice >= 32) &&
           (long long)(p.slices - 1) * p.slice < K && (long long)p.slices * p.slice >= K;
}

/* Slices cover K, none is empty, none is shorter than 32 and cuts are multiples of 32, for every size and number of
 * units. */
static void test_linear_covers(void) {
    static const int sizes[] = {1,   2,   31,  32,   33,   63,   64,   65,    96,    127,
                                128, 200, 384, 1000, 1024, 3072, 5120, 25600, 151936};
    static const int rows[] = {1, 2, 3, 4, 5, 8, 17, 64, 512, 4096}, units[] = {1, 2, 7, 132, 1000, 1 << 20};
    enum { N_SIZES = sizeof sizes / sizeof *sizes };
    for (int u = 0; u < 6; u++)
        for (int n = 0; n < N_SIZES; n++)
            for (int k = 0; k < N_SIZES; k++)
                for (int m = 0; m < 10; m++) {
                    tv_linear_plan p =
                        tv_plan_linear(&(tv_plan){TV_REDUCE_SERVING, units[u]}, rows[m], sizes[n], sizes[k]);
                    CHECK(covers(p, sizes[k]));
                    p = tv_plan_linear(&(tv_plan){TV_REDUCE_FIXED, units[u]}, rows[m], sizes[n], sizes[k]);
                    CHECK(p.slices == 1 && p.slice == sizes[k]);
                }
}

/* On the bundled model (D 128, q 256, k and v 128 each, F 384, V 4096) the split changes between a batch of 1 and of 8
 * for the logits, and between 1 and 128 for every product: that is what makes its drift visible. */
static void test_linear_bundled_model(void) {
    static const struct { int N, K; } products[] = {{512, 128}, {128, 256}, {768, 128}, {128, 384}, {4096, 128}};
    int at_8 = 0, at_128 = 0;
    for (int i = 0; i < 5; i++) {
        int one = tv_plan_linear(&serving, 1, products[i].N, products[i].K).slices;
        CHECK(one > 1);
        at_8 += tv_plan_linear(&serving, 8, products[i].N, products[i].K).slices != one;
        at_128 += tv_plan_linear(&serving, 128, products[i].N, products[i].K).slices != one;
    }
    CHECK(at_8 >= 1);
    CHECK_INT(at_128, 5);
    CHECK_INT(tv_plan_linear(&serving, 1, 4096, 128).slices, 4);
    CHECK_INT(tv_plan_linear(&serving, 8, 4096, 128).slices, 2);
    CHECK_INT(tv_plan_linear(&serving, 128, 4096, 128).slices, 1);
}

/* More rows never mean more slices; one unit never splits. */
static void test_linear_monotone(void) {
    int last = 1 << 30;
    for (int m = 1; m <= 600; m++) {
        int slices = tv_plan_linear(&serving, m, 1024, 3072).slices;
        CHECK(slices <= last);
        last = slices;
        CHECK_INT(tv_plan_linear(&(tv_plan){TV_REDUCE_SERVING, 1}, m, 1024, 3072).slices, 1);
    }
    CHECK_INT(last, 1);
}

/* Splits of keys: whole tiles, tiles of 16, 32, 48 or 64 keys, at least 16 keys a split, and no more splits than asked
 * for. */
static void test_attention(void) {
    for (int seqs = 1; seqs <= 256; seqs *= 2)
        for (int len = 1; len <= 5000; len += len < 300 ? 1 : 97) {
            tv_attn_plan p = tv_plan_attention(&serving, seqs, 2, len);
            CHECK(p.key_tile >= 16 && p.key_tile <= 64 && p.key_tile % 16 == 0);
            CHECK(p.split_keys >= p.key_tile && p.split_keys % p.key_tile == 0);
            int wanted = 132 / (seqs * 2) < 1 ? 1 : 132 / (seqs * 2);
            CHECK((len + p.split_keys - 1) / p.split_keys <= wanted);
            tv_attn_plan f = tv_plan_attention(&fixed, seqs, 2, len), first = tv_plan_attention(&fixed, 1, 8, 1);
            CHECK(f.key_tile == first.key_tile && f.split_keys == first.split_keys);
        }
    /* 128 keys of the bundled model (2 kv heads): alone eight splits of 16, in a batch of 32 two of 64, in 128 one. */
    CHECK_INT(tv_plan_attention(&serving, 1, 2, 128).split_keys, 16);
    CHECK_INT(tv_plan_attention(&serving, 32, 2, 128).split_keys, 64);
    CHECK_INT(tv_plan_attention(&serving, 128, 2, 128).split_keys, 128);
}

/* The description names the numbers that the functions give, and stops at the end of its buffer. */
static void test_describe(void) {
    char text[8192], small[40];
    tv_plan_describe(&serving, 128, 4, 2, 64, 384, 4096, text, sizeof text);
    CHECK(strstr(text, "to fill 132 units") != NULL);
    CHECK(strstr(text, "logits") && strstr(text, "4x32") && strstr(text, "2x64") && strstr(text, "1x128"));
    CHECK(strstr(text, "16x16(16)") && strstr(text, "1x512(64)"));
    CHECK(strlen(text) < 4000 && text[strlen(text) - 1] == '\n');
    memset(small, 0x55, sizeof small);
    tv_plan_describe(&serving, 128, 4, 2, 64, 384, 4096, small, 32);
    CHECK_INT(strlen(small), 31);
    CHECK_BYTES(small, text, 31);
    CHECK_INT(small[32], 0x55);
    tv_plan_describe(&fixed, 128, 4, 2, 64, 384, 4096, text, sizeof text);
    CHECK(strstr(text, "reduction fixed") && strstr(text, "1x384"));
}

static const tv_test tests[] = {
    {"linear_covers", test_linear_covers},
    {"linear_bundled_model", test_linear_bundled_model},
    {"linear_monotone", test_linear_monotone},
    {"attention", test_attention},
    {"describe", test_describe},
};
TV_TEST_MAIN(tests)
