#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/tensor.h"

static int failures; /* of the running test */
static int skipped;
static char *test_dir;

static int fail_at(const char *file, int line) {
    failures++;
    fprintf(stderr, "    %s:%d: ", file, line);
    return 0;
}

int tv_check_true(int held, const char *expr, const char *file, int line) {
    if (held) return 1;
    fail_at(file, line);
    fprintf(stderr, "%s is false\n", expr);
    return 0;
}

int tv_check_int(long long got, long long want, const char *expr, const char *file, int line) {
    if (got == want) return 1;
    fail_at(file, line);
    fprintf(stderr, "%s = %lld, want %lld\n", expr, got, want);
    return 0;
}

int tv_check_str(const char *got, const char *want, const char *expr, const char *file, int line) {
    if (got && want && strcmp(got, want) == 0) return 1;
    fail_at(file, line);
    fprintf(stderr, "%s = \"%s\", want \"%s\"\n", expr, got ? got : "(null)", want ? want : "(null)");
    return 0;
}

int tv_check_near(double got, double want, double tol, const char *expr, const char *file, int line) {
    double scale = fabs(want) > 1 ? fabs(want) : 1;
    if (got == want || fabs(got - want) <= tol * scale) return 1;
    fail_at(file, line);
    fprintf(stderr, "%s = %.17g, want %.17g (difference %.3g, allowed %.3g)\n", expr, got, want, got - want,
            tol * scale);
    return 0;
}

int tv_check_bytes(const void *got, const void *want, size_t size, const char *expr, const char *file, int line) {
    const unsigned char *g = got, *w = want;
    size_t differ = 0, first = 0;
    for (size_t i = 0; i < size; i++)
        if (g[i] != w[i] && !differ++) first = i;
    if (!differ) return 1;
    fail_at(file, line);
    fprintf(stderr, "%s: %zu of %zu bytes differ, the first at %zu (%02x, want %02x)\n", expr, differ, size, first,
            g[first], w[first]);
    return 0;
}

int tv_check_ok(tv_status status, const tv_err *err, const char *expr, const char *file, int line) {
    if (status == TV_OK) return 1;
    fail_at(file, line);
    fprintf(stderr, "%s failed: %s (%s:%d)\n", expr, err ? err->message : "", err && err->file ? err->file : "?",
            err ? err->line : 0);
    return 0;
}

int tv_check_fails(tv_status status, tv_status want, tv_err *err, const char *part, const char *expr, const char *file,
                   int line) {
    int held = status == want && (!part || strstr(err->message, part));
    if (!held) {
        fail_at(file, line);
        fprintf(stderr, "%s: status %d, want %d; message \"%s\" should contain \"%s\"\n", expr, status, want,
                err->message, part ? part : "");
    }
    tv_err_clear(err);
    return held;
}

void tv_test_skip(const char *reason) {
    skipped = 1;
    fprintf(stderr, "    skipped: %s\n", reason);
}

static void remove_tree(const char *dir) {
    char *command = tv_xprintf("rm -rf '%s'", dir);
    if (system(command) != 0) fprintf(stderr, "    could not remove %s\n", dir);
    free(command);
}

const char *tv_test_dir(void) {
    if (!test_dir) {
        const char *base = getenv("TMPDIR");
        test_dir = tv_xprintf("%s/tvgpu-test-XXXXXX", base ? base : "/tmp");
        TV_ASSERT(mkdtemp(test_dir));
    }
    return test_dir;
}

const char *tv_golden(const char *name) {
    static char paths[4][4096];
    static int next;
    char *p = paths[next++ & 3];
    const char *root = getenv("TV_TEST_SOURCE"); /* for executables that were built in another folder */
    snprintf(p, sizeof paths[0], "%s/tests/goldens/%s", root ? root : TV_SOURCE_DIR, name);
    return p;
}

const char *tv_bundled_model(void) { return TV_SOURCE_DIR "/models/tiny-qwen3"; }

uint64_t tv_rng_next(tv_rng *rng) {
    uint64_t z = rng->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double tv_rng_uniform(tv_rng *rng) { return (double)(tv_rng_next(rng) >> 11) * 0x1p-53; }

double tv_rng_normal(tv_rng *rng) {
    double u = 1 - tv_rng_uniform(rng), v = tv_rng_uniform(rng);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

int tv_test_main(int argc, char **argv, const tv_test *tests, size_t n) {
    size_t ran = 0, failed = 0, skips = 0;
    if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < n; i++) puts(tests[i].name);
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        int wanted = argc < 2;
        for (int a = 1; a < argc; a++) wanted |= strstr(tests[i].name, argv[a]) != NULL;
        if (!wanted) continue;
        failures = skipped = 0;
        tests[i].fn();
        ran++;
        failed += failures != 0;
        skips += !failures && skipped;
        printf("%s %s\n", failures ? "FAIL" : skipped ? "skip" : "ok  ", tests[i].name);
        fflush(stdout);
        if (test_dir) {
            remove_tree(test_dir);
            free(test_dir);
            test_dir = NULL;
        }
    }
    printf("%zu passed, %zu failed, %zu skipped\n", ran - failed - skips, failed, skips);
    if (!ran) {
        fprintf(stderr, "no test matches \"%s\"\n", argc > 1 ? argv[1] : "");
        return 1;
    }
    return failed ? 1 : skips == ran ? 77 : 0;
}
