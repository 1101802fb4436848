/* What surrounds cuDNN in its attention backend: segments in any slots, of any lengths, in calls of fixed shapes. The
 * library itself is stood in for by a plain kernel; the CPU device's whole-row attention says what must come out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/attention.h"
#include "kernels/cuda/cudnn_graph.h"
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

/* Positions from each segment's end on are NaN in both caches, as memory never written may be; cuDNN itself multiplies
 * what it does not attend by zero, which leaves NaN, so that a card gets a number that would be seen. */
static world make(int H, int G, int HS, const tv_segment *s, int n) {
    world w = {.H = H, .G = G, .HS = HS};
    tv_err err = {0};
    TV_ASSERT(tv_ops_cpu.open(&(tv_dev_options){.threads = 1}, &w.cpu, &err) == TV_OK);
    w.q = rig_normals(1, (size_t)MOST_ROWS * (size_t)(H * HS), 1);
    w.k = rig_normals(2, cache_values(&w), 1), w.v = rig_normals(3, cache_values(&w), 1);
    const tv_bf16 poison = rig_emulated() ? 0x7fc0 : tv_bf16_from_f32(1e30f);
    for (int slot = 0; slot < SLOTS; slot++) {
        int end = 1; /* position 0 is finite everywhere: an idle sequence attends it */
        for (int i = 0; i < n; i++)
            if (s[i].slot == slot) end = s[i].pos + s[i].n_rows;
        for (int g = 0; g < G; g++)
            for (int p = end; p < S; p++)
                for (int d = 0; d < HS; d++) {
                    size_t at = (((size_t)slot * (size_t)G + (size_t)g) * S + (size_t)p) * (size_t)HS + (size_t)d;
                    w.k[at] = w.v[at] = poison;
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

/* Under fixed the backend insists on a kernel that it knows from this version. */
static int pins(void) { return cudnn_version(NULL) / 100 == 919; }

static void compare(const world *w, const tv_segment *s, int n, int M, int fixed) {
    if (fixed && !pins()) return;
    tv_err err = {0};
    const size_t values = (size_t)M * (size_t)(w->H * w->HS), bytes = values * sizeof(tv_bf16);
    const size_t cache = cache_values(w) * sizeof(tv_bf16);
    tv_bf16 *want = tv_xmalloc(bytes), *got = tv_xmalloc(bytes);
    tv_attn_limits limits = {.device = "cpu", .H = w->H, .G = w->G, .HS = w->HS, .max_batch = n, .max_keys = S};
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
    /* One step of bf16: two f32 orders of summation. cuDNN itself rounds the weights to bf16, by up to 2^-9 of the
     * values they weigh, which are below 1 on average. */
    const double weights = rig_emulated() ? 0 : 0x1p-9;
    double worst = 0;
    for (size_t i = 0; i < values; i++) {
        double x = tv_f32_from_bf16(got[i]), y = tv_f32_from_bf16(want[i]);
        double d = fabs(x - y) / (0x1p-7 * fmax(fabs(y), 0x1p-6) + weights);
        if (!(d <= worst)) worst = d;
    }
    CHECK(worst <= 1);
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

/* Every plan that was made is listed once, however often it is used; and under those whose steps used it, until they
 * are gone. */
static void test_plans_are_kept(void) {
    static const tv_segment s[] = {{7, 0, 1, 5}, {0, 1, 1, 62}};
    tv_err err = {0};
    world w = make(2, 1, 16, s, 2);
    tv_dev *dev = rig_open();
    tv_attn_args a = args(&w, s, 2, 2);
    const size_t cache = cache_values(&w) * sizeof(tv_bf16), bytes = 2 * 2 * 16 * sizeof(tv_bf16);
    a.kv.k = rig_put(dev, w.k, cache), a.kv.v = rig_put(dev, w.v, cache);
    a.q = rig_put(dev, w.q, bytes), a.out = rig_put(dev, NULL, bytes);
    for (int i = 0; i < 3; i++) {
        dev->owner = i ? 2 : 0;
        CHECK_OK(cuda_attn_cudnn(dev, &a, &err), &err);
    }
    char *all = cuda_cudnn_text(dev, UINT64_MAX), *of_2 = cuda_cudnn_text(dev, 2), *of_4 = cuda_cudnn_text(dev, 4);
    CHECK(!strncmp(all, "cuDNN ", 6));
    CHECK(strstr(all, "\ncuDNN, 2 sequences, 1 row, 256 keys: ") && strchr(strchr(all, '\n') + 1, '\n')[1] == 0);
    CHECK_STR(of_2, all);
    CHECK_STR(of_4, "");
    free(of_2);
    cuda_cudnn_forget(dev, 2);
    of_2 = cuda_cudnn_text(dev, 2);
    CHECK_STR(of_2, "");
    free(all), free(of_2), free(of_4);
    a.kv.S = 100;
    CHECK_FAILS(cuda_attn_cudnn(dev, &a, &err), TV_EUNSUPPORTED, &err, "100 positions");
    rig_close(dev);
    drop(&w);
}

/* ---- the backends of the card side by side ---- */

typedef struct {
    const char *what;
    int H, G, HS;
    int n, rows, pos; /* sequences, most query rows of one, most keys before them */
    int fixed;
} shape_class;

/* Bytes of a pool of normal values, again and again; its odd length puts other values into every page. */
static void *fill(tv_dev *dev, const tv_bf16 *pool, size_t pool_values, size_t values) {
    tv_err err = {0};
    void *p;
    TV_ASSERT(tv_ops_cuda.alloc(dev, values * sizeof *pool, &p, &err) == TV_OK);
    for (size_t at = 0; at < values; at += pool_values) {
        const size_t n = values - at < pool_values ? values - at : pool_values;
        TV_ASSERT(tv_ops_cuda.upload(dev, (tv_bf16 *)p + at, pool, n * sizeof *pool, &err) == TV_OK);
    }
    return p;
}

/* Root mean square of a - b over that of b. */
static double relative_rms(const tv_bf16 *a, const tv_bf16 *b, size_t n) {
    double d = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = tv_f32_from_bf16(a[i]), y = tv_f32_from_bf16(b[i]);
        d += (x - y) * (x - y), norm += y * y;
    }
    return sqrt(d / norm);
}

/* One class: sequences of different lengths up to the class's, in slots in falling order. */
static void side_by_side(const shape_class *c, const tv_bf16 *pool, size_t pool_values) {
    static tv_status (*const backends[])(tv_dev *, const tv_attn_args *, tv_err *) = {cuda_attn_cudnn, cuda_attn_math,
                                                                                      cuda_attn_flash};
    enum { PAGE = 64 };
    if (c->fixed && !pins()) return;
    tv_err err = {0};
    tv_dev *dev = rig_open();
    tv_segment *s = tv_xcalloc((size_t)c->n, sizeof *s);
    tv_attn_args a = {
        .segments = s, .n_segments = c->n, .H = c->H, .scale = (float)(1 / sqrt(c->HS)), .fixed = c->fixed};
    for (int i = 0; i < c->n; i++) {
        s[i] = (tv_segment){.slot = c->n - 1 - i, .row = a.M, .n_rows = c->rows - i % ((c->rows + 3) / 4)};
        s[i].pos = c->pos - i * 37 % (c->pos / 2 + 1);
        a.M += s[i].n_rows;
    }
    a.kv = (tv_kv_layer){.slots = c->n, .G = c->G, .HS = c->HS, .dtype = TV_BF16};
    a.kv.S = (c->pos + c->rows + PAGE - 1) / PAGE * PAGE;
    a.plan = tv_plan_attention(&(tv_plan){c->fixed ? TV_REDUCE_FIXED : TV_REDUCE_SERVING, 132}, c->n, c->G,
                               c->pos + c->rows);
    const size_t values = (size_t)a.M * (size_t)(c->H * c->HS), bytes = values * sizeof(tv_bf16);
    const size_t cache = (size_t)c->n * (size_t)c->G * (size_t)a.kv.S * (size_t)c->HS;
    void *q = fill(dev, pool, pool_values - 2, values), *out = fill(dev, pool, pool_values, values);
    a.kv.k = fill(dev, pool, pool_values, cache), a.kv.v = fill(dev, pool, pool_values - 1, cache);
    a.q = q, a.out = out;
    tv_bf16 *got[3];
    for (int b = 0; b < 3; b++) {
        got[b] = tv_xcalloc(values, sizeof **got);
        CHECK_OK(backends[b](dev, &a, &err), &err);
        CHECK_OK(tv_ops_cuda.download(dev, got[b], out, bytes, &err), &err);
    }
    const double math = relative_rms(got[0], got[1], values), flash = relative_rms(got[0], got[2], values);
    printf("class: %s, H %d, G %d, HS %d%s: %.1e from math, %.1e from flash\n", c->what, c->H, c->G, c->HS,
           c->fixed ? ", fixed" : "", math, flash);
    /* Roundings of outputs and weights to bf16 make 3e-3; a key too many or too few of 4096 would make 1.5e-2. */
    CHECK(math <= 8e-3 && flash <= 8e-3);
    const size_t kv = cache * sizeof(tv_bf16);
    tv_ops_cuda.free(dev, q, bytes), tv_ops_cuda.free(dev, out, bytes);
    tv_ops_cuda.free(dev, a.kv.k, kv), tv_ops_cuda.free(dev, a.kv.v, kv);
    for (int b = 0; b < 3; b++) free(got[b]);
    free(s);
    rig_close(dev);
}

/* cuDNN against both of our backends on the same card, for every class of shapes that steps have: decode by batch and
 * length, prompts, chunks behind cached positions, pinned and not, and the head counts of the models. */
static void test_shape_classes(void) {
    static const shape_class small[] = {{"decode, 3 x 70 keys", 4, 2, 32, 3, 1, 70, 0},
                                        {"decode, 5 x 300 keys", 4, 4, 16, 5, 1, 300, 1},
                                        {"prompts, 2 x 9 rows", 6, 1, 64, 2, 9, 0, 0},
                                        {"chunks, 2 x 20 rows behind 70", 4, 2, 32, 2, 20, 70, 0}},
                             card[] = {{"decode, 1 x 1000 keys", 16, 8, 128, 1, 1, 1000, 0},
                                       {"decode, 8 x 100 keys", 16, 8, 128, 8, 1, 100, 0},
                                       {"decode, 8 x 4000 keys", 16, 8, 128, 8, 1, 4000, 0},
                                       {"decode, 64 x 1000 keys", 16, 8, 128, 64, 1, 1000, 0},
                                       {"decode, 512 x 500 keys", 16, 8, 128, 512, 1, 500, 0},
                                       {"decode, 64 x 1000 keys", 16, 8, 128, 64, 1, 1000, 1},
                                       {"prompts, 4 x 100 rows", 16, 8, 128, 4, 100, 0, 0},
                                       {"prompts, 2 x 700 rows", 16, 8, 128, 2, 700, 0, 0},
                                       {"prompt, 1 x 4000 rows", 16, 8, 128, 1, 4000, 0, 0},
                                       {"chunks, 2 x 512 rows behind 1500", 16, 8, 128, 2, 512, 1500, 0},
                                       {"decode, 17 x 1000 keys", 14, 2, 64, 17, 1, 1000, 0},
                                       {"prompts, 3 x 300 rows", 14, 2, 64, 3, 300, 0, 0},
                                       {"decode, 17 x 1000 keys", 32, 4, 128, 17, 1, 1000, 0},
                                       {"decode, 17 x 1000 keys", 40, 8, 128, 17, 1, 1000, 0},
                                       {"decode, 17 x 1000 keys", 64, 8, 128, 17, 1, 1000, 0}};
    const size_t pool_values = rig_emulated() ? 10007 : 4000037;
    tv_bf16 *pool = rig_normals(5, pool_values, 1);
    const size_t n = rig_emulated() ? sizeof small / sizeof *small : sizeof card / sizeof *card;
    for (size_t i = 0; i < n; i++) side_by_side(rig_emulated() ? &small[i] : &card[i], pool, pool_values);
    free(pool);
}

static const tv_test tests[] = {{"decode", test_decode},
                                {"mixed", test_mixed},
                                {"many prompts", test_many_prompts},
                                {"plans are kept", test_plans_are_kept},
                                {"shape classes", test_shape_classes}};
TV_TEST_MAIN(tests)
