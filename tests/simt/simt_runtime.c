/* The emulated card's runtime: what a program gets wrong about a card shows, every time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/device.h"
#include "tests/check.h"
#include "tests/simt/rig.h"
#include "tests/simt/runtime_simt.h"

enum { N = 64 };
static tv_dev *dev;
static tv_err err;

static void *card_memory(size_t bytes) {
    void *p = NULL;
    TV_ASSERT(cuda_rt_alloc(bytes, &p, &err) == TV_OK);
    return p;
}

static void *pinned_memory(size_t bytes) {
    void *p = NULL;
    TV_ASSERT(cuda_rt_host_alloc(bytes, &p, &err) == TV_OK);
    return p;
}

static void copy(void *dst, const void *src, size_t bytes) {
    TV_ASSERT(cuda_rt_copy(dst, src, bytes, dev->stream, &err) == TV_OK);
}

static void finish(void) { TV_ASSERT(cuda_rt_stream_sync(dev->stream, &err) == TV_OK); }

static int all(const void *p, int byte, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)p)[i] != byte) return 0;
    return 1;
}

/* fn ends the process, saying `part`. */
static void check_dies(void (*fn)(void), const char *part) {
    int ends[2], status = 0;
    char text[4096] = "";
    TV_ASSERT(pipe(ends) == 0);
    pid_t child = fork();
    TV_ASSERT(child >= 0);
    if (!child) {
        dup2(ends[1], 2);
        close(ends[0]), close(ends[1]);
        fn();
        _exit(0);
    }
    close(ends[1]);
    for (size_t used = 0; used < sizeof text - 1;) {
        ssize_t n = read(ends[0], text + used, sizeof text - 1 - used);
        if (n <= 0) break;
        used += (size_t)n;
    }
    close(ends[0]);
    waitpid(child, &status, 0);
    CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    if (!CHECK(strstr(text, part) != NULL)) printf("     it said: %s\n", text);
}

/* Results are poison until something waits, on the host and on the card. */
static void test_nothing_runs_before_a_wait(void) {
    unsigned char there[N], back[N];
    void *a = card_memory(N), *b = card_memory(N);
    memset(there, 7, N);
    copy(a, there, N);
    memset(there, 9, N); /* pageable memory was read when the copy was queued */
    copy(b, a, N);
    memset(back, 1, N);
    copy(back, b, N);
    CHECK(all(back, 0xff, N));
    finish();
    CHECK(all(back, 7, N));
    cuda_rt_free(a), cuda_rt_free(b);
}

/* Pinned memory is read when the copy runs: writing over it too early shows. */
static void test_pinned_memory_is_read_late(void) {
    unsigned char back[N];
    unsigned char *there = pinned_memory(N);
    void *a = card_memory(N);
    memset(there, 7, N);
    copy(a, there, N);
    memset(there, 9, N);
    copy(back, a, N);
    finish();
    CHECK(all(back, 9, N));
    cuda_rt_free(a), cuda_rt_host_free(there);
}

/* An event waits for what was queued before it, and for no more. */
static void test_events(void) {
    unsigned char there[N], first[N], second[N];
    cuda_rt_event *from, *to;
    float ms = -1;
    void *a = card_memory(N);
    memset(there, 7, N);
    TV_ASSERT(cuda_rt_event_open(&from, &err) == TV_OK && cuda_rt_event_open(&to, &err) == TV_OK);
    CHECK_OK(cuda_rt_event_record(from, dev->stream, &err), &err);
    copy(a, there, N);
    copy(first, a, N);
    CHECK_OK(cuda_rt_event_record(to, dev->stream, &err), &err);
    copy(second, a, N);
    CHECK_FAILS(cuda_rt_event_elapsed(from, to, &ms, &err), TV_EDEVICE, &err, "not reached");
    CHECK_OK(cuda_rt_event_sync(to, &err), &err);
    CHECK(all(first, 7, N));
    CHECK(all(second, 0xff, N));
    CHECK_OK(cuda_rt_event_elapsed(from, to, &ms, &err), &err);
    CHECK(ms >= 0);
    finish();
    CHECK(all(second, 7, N));
    cuda_rt_event_close(from), cuda_rt_event_close(to);
    cuda_rt_free(a);
}

/* A graph does nothing while it is captured, and the same each time it is launched, with what its inputs then hold. */
static void test_graphs(void) {
    enum { V = 3, M = 2, D = 8 };
    static const int32_t ids[2][M] = {{2, 0}, {1, 1}};
    tv_bf16 table[V * D], out[M * D];
    for (int i = 0; i < V * D; i++) table[i] = (tv_bf16)i;
    int32_t *in = pinned_memory(sizeof ids[0]);
    void *d_ids = card_memory(sizeof ids[0]), *d_table = card_memory(sizeof table), *d_out = card_memory(sizeof out);
    copy(d_table, table, sizeof table);
    tv_embed_args a = {.table = d_table, .ids = d_ids, .out = d_out, .M = M, .V = V, .D = D};
    cuda_rt_graph *graph, *again, *other;
    for (int i = 0; i < 3; i++) {
        if (i == 2) a.M = 1;
        TV_ASSERT(cuda_rt_capture_begin(dev->stream, &err) == TV_OK);
        copy(d_ids, in, sizeof ids[0]);
        CHECK_OK(cuda_embed(dev, &a, &err), &err);
        TV_ASSERT(cuda_rt_capture_end(dev->stream, i == 0 ? &graph : i == 1 ? &again : &other, &err) == TV_OK);
    }
    copy(out, d_out, sizeof out);
    finish();
    CHECK(all(out, 0xff, sizeof out));
    for (int i = 0; i < 2; i++) {
        memcpy(in, ids[i], sizeof ids[i]);
        CHECK_OK(cuda_rt_graph_launch(graph, dev->stream, &err), &err);
        copy(out, d_out, sizeof out);
        finish();
        for (int m = 0; m < M; m++) CHECK_BYTES(out + m * D, table + ids[i][m] * D, D * sizeof *out);
    }
    CHECK(simt_same_graph(graph, again));
    CHECK(!simt_same_graph(graph, other));
    cuda_rt_graph_close(graph), cuda_rt_graph_close(again), cuda_rt_graph_close(other);
    cuda_rt_free(d_ids), cuda_rt_free(d_table), cuda_rt_free(d_out), cuda_rt_host_free(in);
}

static void touch_card(void) { *(volatile char *)card_memory(N) = 1; }
static void begin_capture(void) { TV_ASSERT(cuda_rt_capture_begin(dev->stream, &err) == TV_OK); }
static void allocate_in_capture(void) { begin_capture(), card_memory(N); }
static void wait_in_capture(void) { begin_capture(), finish(); }
static void free_twice(void) {
    void *p = card_memory(N);
    cuda_rt_free(p), cuda_rt_free(p);
}
static void pageable_in_capture(void) {
    void *p = card_memory(N);
    char here[N] = "";
    begin_capture(), copy(p, here, N);
}

/* What a card would forgive by chance, or answer with an error long after. */
static void test_misuse_dies(void) {
    check_dies(touch_card, "host code touched memory of the card");
    check_dies(allocate_in_capture, "an allocation inside a capture");
    check_dies(wait_in_capture, "waiting inside a capture");
    check_dies(pageable_in_capture, "pageable memory inside a capture");
    check_dies(free_twice, "which is no allocation");
}

/* More memory than the card has is refused, with the numbers, and leaves the device usable; freed memory serves again.
 */
static void test_memory_ends(void) {
    void *p = NULL, *q = NULL;
    CHECK_FAILS(tv_ops_cuda.alloc(dev, (size_t)5 << 30, &p, &err), TV_ENOMEM, &err, "5120.0 MiB asked for");
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tv_ops_cuda.alloc(dev, N, &p, &err), &err);
        CHECK(!q || q == p);
        q = p;
        tv_ops_cuda.free(dev, p, N);
    }
}

/* Large uploads go through pinned buffers, piece by piece and two at a time; whatever the size, every byte arrives. */
static void test_staged_uploads(void) {
    static const size_t sizes[] = {1, CUDA_STAGE, CUDA_STAGE + 1, 5 * (size_t)CUDA_STAGE / 2};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        tv_rng rng = {i};
        unsigned char *there = malloc(sizes[i]), *back = malloc(sizes[i]);
        for (size_t j = 0; j < sizes[i]; j++) there[j] = (unsigned char)tv_rng_next(&rng);
        void *p = card_memory(sizes[i]);
        CHECK_OK(tv_ops_cuda.upload(dev, p, there, sizes[i], &err), &err);
        unsigned char last = there[sizes[i] - 1];
        there[sizes[i] - 1] = (unsigned char)~last; /* the call has read all of it */
        CHECK_OK(tv_ops_cuda.download(dev, back, p, sizes[i], &err), &err);
        there[sizes[i] - 1] = last;
        CHECK_BYTES(back, there, sizes[i]);
        cuda_rt_free(p);
        free(there), free(back);
    }
}

static const tv_test tests[] = {{"nothing runs before a wait", test_nothing_runs_before_a_wait},
                                {"pinned memory is read late", test_pinned_memory_is_read_late},
                                {"events", test_events},
                                {"graphs", test_graphs},
                                {"misuse dies", test_misuse_dies},
                                {"memory ends", test_memory_ends},
                                {"staged uploads", test_staged_uploads}};

int main(int argc, char **argv) {
    dev = rig_open();
    int result = tv_test_main(argc, argv, tests, sizeof tests / sizeof *tests);
    rig_close(dev);
    return result;
}
