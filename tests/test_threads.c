/* The threads of the CPU device: every item is done once and is done when the call returns. */
#include "tests/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

typedef struct {
    unsigned char *count; /* [n] times an item was done; plain, so that a sanitizer sees two workers on one item */
    atomic_int busy[8];   /* a worker index is in use by one part at a time */
    int threads, grain, bad;
} job;

static void count(void *ctx, int worker, int begin, int end) {
    job *j = ctx;
    if (worker < 0 || worker >= j->threads || begin >= end || (j->threads > 1 && end - begin > j->grain)) j->bad = 1;
    if (atomic_fetch_add(&j->busy[worker], 1)) j->bad = 1;
    for (int i = begin; i < end; i++) j->count[i]++;
    atomic_fetch_sub(&j->busy[worker], 1);
}

/* Many short jobs in a row, more and fewer items than threads, more threads asked for than there are. */
static void test_every_item_once(void) {
    tv_err err = {0};
    for (int threads = 1; threads <= 5; threads += 2) {
        cpu_pool *pool;
        if (!CHECK_OK(cpu_pool_open(threads, &pool, &err), &err)) return;
        unsigned char counts[1000];
        for (int round = 0; round < 3000; round++) {
            int n = round % 7 == 0 ? 1000 : round % 40, grain = 1 + round % 3;
            job j = {.count = counts, .threads = threads, .grain = grain};
            memset(counts, 0, sizeof counts);
            cpu_parallel(pool, round % 5 ? threads : 8, n, grain, count, &j);
            int right = !j.bad;
            for (int i = 0; i < 1000; i++) right &= counts[i] == (i < n);
            if (!CHECK(right)) break;
        }
        cpu_pool_close(pool);
    }
}

/* No pool: the caller does it all. */
static void test_without_pool(void) {
    unsigned char counts[10] = {0};
    job j = {.count = counts, .threads = 1};
    cpu_parallel(NULL, 4, 10, 1, count, &j);
    cpu_parallel(NULL, 4, 0, 1, count, &j);
    CHECK(!j.bad);
    for (int i = 0; i < 10; i++) CHECK_INT(counts[i], 1);
}

static const tv_test tests[] = {{"every_item_once", test_every_item_once}, {"without_pool", test_without_pool}};
TV_TEST_MAIN(tests)
