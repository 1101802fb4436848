/* What surrounds cuDNN in its attention backend: segments in any slots, of any lengths, in calls of fixed shapes. The
 * library itself is stood in for by a plain kernel; the CPU device's whole-row attention says what must come out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/attention.h"
#include "kernels/cuda/device.h"
#include "tests/check.h"
#include "tests/simt/rig.h"

enum { SLOTS = 9, S = 192, MOST_ROWS = 512 };

typedef struct {
    int H, G, HS;
    tv_bf16 *q, *k, *v;
    tv_dev *cpu;
} world;

static size_t cache_values(const world *w) { return (size_t)SLOTS * (size_t)w->G * S * (size_t)w->HS; }

/* Positions from each segment's end on are NaN in both caches, as memory never written may be. */
static world make(int H, int G, int HS, const tv_segment *s, int n) {
    world w = {.H = H, .G = G, .HS = HS};
    tv_err err = {0};
    TV_ASSERT(tv_ops_cpu.open(&(tv_dev_options){.threads = 1}, &w.cpu, &err) == TV_OK);
    w.q = rig_normals(1, (size_t)MOST_ROWS * (size_t)(H * HS), 1);
    w.k = rig_normals(2, cache_values(&w), 1), w.v = rig_normals(3, cache_values(&w), 1);
    for (int slot = 0; slot < SLOTS; slot++) {
        int end = 1; /* position 0 is finite everywhere: an idle sequence attends it */
        for (int i = 0; i < n; i++)
            if (s[i].slot == slot) end = s[i].pos + s[i].n_rows;
        for (int g = 0; g < G; g++)
            for (int p = end; p < S; p++)
                for (int d = 0; d < HS; d++) {
                    size_t at = (((size_t)slot * (size_t)G + (size_t)g) * S + (size_t)p) * (size_t)HS + (size_t)d;
                    w.k[at] = w.v[at] = 0x7fc0;
                }
    }
    return w;
}

static void drop(world *w) {
    tv_ops_cpu.close(w->cpu);
    free(w->q), free(w->k), free(w->v);
}

static tv_attn_args args(const world *w, const tv_segment *s, int n, int M) {
    tv_attn_args a = {.segments = s, .n_segments = n, .M = M, .H = w->H, .scale = (float)(1 / sqrt(w->HS))};
    a.kv = (tv_kv_layer){.k = w->k, .v = w->v, .slots = SLOTS, .G = w->G, .S = S, .HS = w->HS};
    a.plan = (tv_attn_plan){64, 64};
    return a;
}

static void compare(const world *w, const tv_segment *s, int n, int M, int fixed) {
    tv_err err = {0};
    const size_t values = (size_t)M * (size_t)(w->H * w->HS), bytes = values * sizeof(tv_bf16);
    const size_t cache = cache_values(w) * sizeof(tv_bf16);
    tv_bf16 *want = tv_xmalloc(bytes), *got = tv_xmalloc(bytes);
    tv_attn_limits limits = {"cpu", w->H, w->G, w->HS, n, S};
    const tv_attn_backend *math = NULL;
    CHECK_OK(tv_attn_choose(&limits, "math", &math, &err), &err);
    tv_attn_args a = args(w, s, n, M);
    a.q = w->q, a.out = want;
    CHECK_OK(math->run(w->cpu, &a, &err), &err);

    tv_dev *dev = rig_open();
    a.kv.k = rig_put(dev, w->k, cache), a.kv.v = rig_put(dev, w->v, cache);
    a.q = rig_put(dev, w->q, bytes), a.out = rig_put(dev, NULL, bytes), a.fixed = fixed;
    CHECK_OK(cuda_attn_cudnn(dev, &a, &err), &err);
    rig_get(dev, got, a.out);
    double worst = 0;
    for (size_t i = 0; i < values; i++) {
        double x = tv_f32_from_bf16(got[i]), y = tv_f32_from_bf16(want[i]);
        double d = fabs(x - y) / (0x1p-7 * fmax(fabs(y), 0x1p-6));
        if (!(d <= worst)) worst = d;
    }
    CHECK(worst <= 1); /* one step of bf16: two f32 orders of summation */
    rig_close(dev);
    free(want), free(got);
}

/* Decode rows in scattered slots, more and fewer than a power of two, at lengths around the edges of pages. */
static void test_decode(void) {
    static const tv_segment s[] = {{7, 0, 1, 0},  {0, 1, 1, 62},  {8, 2, 1, 63}, {3, 3, 1, 64},
                                   {1, 4, 1, 65}, {5, 5, 1, 190}, {2, 6, 1, 191}};
    static const int shapes[][3] = {{4, 2, 32}, {6, 1, 64}, {4, 4, 16}, {16, 8, 128}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        world w = make(shapes[i][0], shapes[i][1], shapes[i][2], s, 7);
        for (int n = 1; n <= 7; n += 3) compare(&w, s, n, n, 0);
        compare(&w, s, 7, 7, 1);
        drop(&w);
    }
}

/* Prompts and chunks of several length classes beside decode rows: each row comes out once, in its place. */
static void test_mixed(void) {
    static const tv_segment s[] = {{4, 0, 5, 0},     {0, 5, 1, 100}, {6, 6, 130, 61},
                                   {2, 136, 2, 189}, {1, 138, 1, 0}, {8, 139, 64, 64}};
    world w = make(4, 2, 32, s, 6);
    compare(&w, s, 6, 203, 0);
    compare(&w, s, 6, 203, 1);
    drop(&w);
}

/* More prompts than fit in one call. */
static void test_many_prompts(void) {
    tv_segment s[SLOTS];
    for (int i = 0; i < SLOTS; i++) s[i] = (tv_segment){.slot = SLOTS - 1 - i, .row = 3 * i, .n_rows = 3, .pos = 7 * i};
    world w = make(2, 1, 16, s, SLOTS);
    compare(&w, s, SLOTS, 3 * SLOTS, 0);
    drop(&w);
}

/* Every plan that was made is listed once, however often it is used. */
static void test_plans_are_kept(void) {
    static const tv_segment s[] = {{7, 0, 1, 5}, {0, 1, 1, 62}};
    tv_err err = {0};
    world w = make(2, 1, 16, s, 2);
    tv_dev *dev = rig_open();
    tv_attn_args a = args(&w, s, 2, 2);
    const size_t cache = cache_values(&w) * sizeof(tv_bf16), bytes = 2 * 2 * 16 * sizeof(tv_bf16);
    a.kv.k = rig_put(dev, w.k, cache), a.kv.v = rig_put(dev, w.v, cache);
    a.q = rig_put(dev, w.q, bytes), a.out = rig_put(dev, NULL, bytes);
    for (int i = 0; i < 3; i++) CHECK_OK(cuda_attn_cudnn(dev, &a, &err), &err);
    char *text = cuda_cudnn_text(dev);
    CHECK_STR(text, "2 sequences, 1 rows, 128 keys: stand-in\n");
    free(text);
    a.kv.S = 100;
    CHECK_FAILS(cuda_attn_cudnn(dev, &a, &err), TV_EUNSUPPORTED, &err, "100 positions");
    rig_close(dev);
    drop(&w);
}

static const tv_test tests[] = {{"decode", test_decode},
                                {"mixed", test_mixed},
                                {"many prompts", test_many_prompts},
                                {"plans are kept", test_plans_are_kept}};
TV_TEST_MAIN(tests)
