/* A small test harness: named tests in a table, checks that print what they saw, comparators that NaN cannot pass. */
#ifndef TV_CHECK_H
#define TV_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct {
    const char *name;
    void (*fn)(void);
} tv_test;

/* Runs the tests whose names contain one of the arguments (all without any; --list prints them). Returns 0 when all
 * passed, 1 when one failed, 77 when every test that ran skipped itself. */
int tv_test_main(int argc, char **argv, const tv_test *tests, size_t n);
#define TV_TEST_MAIN(tests)                                                                                            \
    int main(int argc, char **argv) { return tv_test_main(argc, argv, tests, sizeof tests / sizeof *tests); }

/* A failed check is printed and counted; the test goes on. Each returns 1 when it held. */
int tv_check_true(int held, const char *expr, const char *file, int line);
int tv_check_int(long long got, long long want, const char *expr, const char *file, int line);
int tv_check_str(const char *got, const char *want, const char *expr, const char *file, int line);
/* |got - want| <= tol * max(1, |want|); equal infinities pass; NaN never does. */
int tv_check_near(double got, double want, double tol, const char *expr, const char *file, int line);
/* Equal bytes; prints the first differing index. */
int tv_check_bytes(const void *got, const void *want, size_t size, const char *expr, const char *file, int line);
/* status is OK; prints the recorded error otherwise. */
int tv_check_ok(tv_status status, const tv_err *err, const char *expr, const char *file, int line);
/* status is want and the message contains part (NULL: any). Clears err. */
int tv_check_fails(tv_status status, tv_status want, tv_err *err, const char *part, const char *expr, const char *file,
                   int line);

#define CHECK(x) tv_check_true(!!(x), #x, __FILE__, __LINE__)
#define CHECK_INT(got, want) tv_check_int((long long)(got), (long long)(want), #got, __FILE__, __LINE__)
#define CHECK_STR(got, want) tv_check_str((got), (want), #got, __FILE__, __LINE__)
#define CHECK_NEAR(got, want, tol) tv_check_near((got), (want), (tol), #got, __FILE__, __LINE__)
#define CHECK_BYTES(got, want, size) tv_check_bytes((got), (want), (size), #got, __FILE__, __LINE__)
#define CHECK_OK(call, err) tv_check_ok((call), (err), #call, __FILE__, __LINE__)
#define CHECK_FAILS(call, want, err, part) tv_check_fails((call), (want), (err), (part), #call, __FILE__, __LINE__)

/* Marks the running test as skipped, with the reason; it should return then. */
void tv_test_skip(const char *reason);
/* A fresh empty folder for the running test, removed when it ends. */
const char *tv_test_dir(void);
/* The folder tests/goldens of the source tree, or a file in it; static storage, the last four calls stay valid. */
const char *tv_golden(const char *name);
/* The bundled checkpoint's folder. */
const char *tv_bundled_model(void);

/* Seeded generator for test data (splitmix64): uniform 64 bits, [0,1), standard normal. */
typedef struct {
    uint64_t state;
} tv_rng;
uint64_t tv_rng_next(tv_rng *rng);
double tv_rng_uniform(tv_rng *rng);
double tv_rng_normal(tv_rng *rng);

#endif
