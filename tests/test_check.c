/* The comparators themselves: a check that cannot fail protects nothing. Each row runs in a child process, because a
 * failed check counts against the test that made it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/tensor.h"
#include "tests/check.h"

static void near_nan(void) { CHECK_NEAR(NAN, 1.0, 1e9); }
static void near_nan_want(void) { CHECK_NEAR(1.0, NAN, 1e9); }
static void near_above(void) { CHECK_NEAR(1.0 + 3e-12, 1.0, 2e-12); }
static void near_inf(void) { CHECK_NEAR(INFINITY, 1.0, 1e300); }
static void bytes_last(void) { CHECK_BYTES("abc", "abd", 3); }
static void ok_of_failure(void) {
    tv_err err = {0};
    CHECK_OK(TV_FAIL(&err, TV_EIO, "expected"), &err);
}
static void fails_other_text(void) {
    tv_err err = {0};
    CHECK_FAILS(TV_FAIL(&err, TV_EIO, "one thing"), TV_EIO, &err, "another");
}
static void fails_other_code(void) {
    tv_err err = {0};
    CHECK_FAILS(TV_FAIL(&err, TV_EIO, "one thing"), TV_EARG, &err, NULL);
}
static void only_skips(void) { tv_test_skip("on purpose"); }

static int exit_of(void (*fn)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        tv_test row = {"child", fn};
        char *argv[] = {(char *)"child", NULL};
        if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(99);
        _exit(tv_test_main(1, argv, &row, 1));
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_check_rejects(void) {
    CHECK_INT(exit_of(near_nan), 1);
    CHECK_INT(exit_of(near_nan_want), 1);
    CHECK_INT(exit_of(near_above), 1);
    CHECK_INT(exit_of(near_inf), 1);
    CHECK_INT(exit_of(bytes_last), 1);
    CHECK_INT(exit_of(ok_of_failure), 1);
    CHECK_INT(exit_of(fails_other_text), 1);
    CHECK_INT(exit_of(fails_other_code), 1);
}

static void test_check_skip_is_77(void) { CHECK_INT(exit_of(only_skips), 77); }

/* Conversions against the definition: every half and a sweep of floats around rounding ties. */
static void test_tensor_conversions(void) {
    for (uint32_t h = 0; h < 65536; h++) {
        int e = h >> 10 & 31, m = h & 1023;
        if (e == 31 && m) {
            CHECK(isnan(tv_f32_from_f16((uint16_t)h)));
            continue;
        }
        double want = e == 31 ? INFINITY : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        if (h & 0x8000) want = -want;
        if (!CHECK(tv_f32_from_f16((uint16_t)h) == (float)want)) break;
        if (!CHECK_INT(tv_bf16_from_f32(tv_f32_from_bf16((tv_bf16)h)) & 0x7f80, h & 0x7f80)) break;
    }
    CHECK_INT(tv_bf16_from_f32(1.0f + 0x1p-8f), 0x3f80);            /* tie: to even, down */
    CHECK_INT(tv_bf16_from_f32(1.0f + 0x1p-7f + 0x1p-8f), 0x3f82);  /* tie: to even, up */
    CHECK_INT(tv_bf16_from_f32(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81); /* above the tie */
    CHECK_INT(tv_bf16_from_f32(3.4e38f), 0x7f80);                   /* overflows to infinity */
    CHECK(isnan(tv_f32_from_bf16(tv_bf16_from_f32(NAN))));
}

static const tv_test tests[] = {
    {"check_rejects", test_check_rejects},
    {"check_skip_is_77", test_check_skip_is_77},
    {"tensor_conversions", test_tensor_conversions},
};
TV_TEST_MAIN(tests)
