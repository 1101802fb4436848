/* KV caches of one byte an element on the CUDA device: appended with the CPU device's bits; read by math and eager with
 * the CPU device's bits, and by flash with those that it gives over the bf16 cache of what the bytes mean. What no step
 * wrote holds NaN codes and NaN scales. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/attention.h"
#include "kernels/cuda/device.h"
#include "tests/check.h"
#include "tests/simt/rig.h"

enum { FP8, INT8, N_KINDS };
static const tv_dtype dtypes[N_KINDS] = {TV_F8_E4M3, TV_I8};
enum { MATH, EAGER, FLASH, N_BACKENDS };
static const char *const names[N_BACKENDS] = {"math", "eager", "flash"};
static tv_status (*const on_card[N_BACKENDS])(tv_dev *, const tv_attn_args *,
                                              tv_err *) = {cuda_attn_math, cuda_attn_eager, cuda_attn_flash};

static tv_dev *cpu;
static tv_dev *open_both(void) {
    tv_err err = {0};
    tv_dev *dev = rig_open();
    CHECK_OK(tv_ops_cpu.open(&(tv_dev_options){.threads = 1, .isa = "auto"}, &cpu, &err), &err);
    return dev;
}
static void close_both(tv_dev *dev) {
    rig_schedule(0);
    tv_ops_cpu.close(cpu);
    rig_close(dev);
}

static int is_nan(tv_bf16 x) { return (x & 0x7fff) > 0x7f80; }
/* The same bits, but for what a NaN carries. */
static int same(const tv_bf16 *got, const tv_bf16 *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i] && !(is_nan(got[i]) && is_nan(want[i]))) {
            fprintf(stderr, "    [%zu] %04x, not %04x\n", i, got[i], want[i]);
            return 0;
        }
    return 1;
}

/* Appending ------------------------------------------------------------------------------------------------------- */

/* Heads of normal values, and of what rounding, scales and saturation meet: zeros of both signs, denormals, one value
 * far above the rest (600, 6e4: beyond E4M3's 448; the largest bf16), an infinity, a NaN. */
static tv_bf16 *heads(uint64_t seed, size_t n_heads, int HS) {
    static const tv_bf16 rare[] = {0x4416, 0xc76a, 0x7f7f, 0xff80, 0x7fc0, 0x0001, 0x8000};
    tv_bf16 *x = rig_normals(seed, n_heads * (size_t)HS, 2);
    for (size_t h = 0; h < n_heads; h++)
        for (int d = 0; d < HS; d++) {
            tv_bf16 *at = &x[h * (size_t)HS + (size_t)d];
            if (h % 16 == 7) *at = (tv_bf16)(d % 3 ? 0 : 0x8000);
            if (h % 16 == 8) *at = (tv_bf16)(d + 1 + d % 2 * 0x8000); /* denormals */
            if (h % 16 < 7 && d == (int)(h * 5) % HS) *at = rare[h % 16];
        }
    return x;
}

/* One step beside the CPU device's: q, every byte and scale of the cache, so that nothing else was written. */
static void append_case(tv_dev *dev, tv_dtype dtype, int H, int G, int HS, int norm, const tv_segment *segments,
                        int n_segments, int M, int slots, int S) {
    const size_t e = sizeof(tv_bf16), head = (size_t)HS, rows = (size_t)(slots * G * S), bytes = rows * head;
    const size_t n_heads = (size_t)M * (size_t)(H + 2 * G), q_n = (size_t)M * (size_t)H * head;
    tv_err err = {0};
    tv_bf16 *qkv = heads(11, n_heads, HS), *weight = rig_normals(12, head, 1);
    tv_bf16 *table = rig_normals(14, (size_t)S * head, 0.5), *q = tv_xmalloc(q_n * e), *q_want = tv_xmalloc(q_n * e);
    unsigned char *got[4], *want[4]; /* k, v, their scales */
    const size_t sizes[4] = {bytes, bytes, rows * sizeof(float), rows * sizeof(float)};
    void *card[4];
    for (int i = 0; i < 4; i++) {
        got[i] = tv_xmalloc(sizes[i]), want[i] = tv_xmalloc(sizes[i]);
        memset(want[i], 0xff, sizes[i]); /* as rig_put(NULL) leaves it */
        card[i] = rig_put(dev, NULL, sizes[i]);
    }
    tv_rope_args a = {.qkv = qkv, .cos = table, .sin = table + (size_t)S * head / 2, .q = q_want, .segments = segments};
    a.n_segments = n_segments, a.M = M, a.H = H, a.positions = S, a.eps = 1e-6f;
    a.q_weight = a.k_weight = norm ? weight : NULL;
    a.kv = (tv_kv_layer){(tv_bf16 *)(void *)want[0], (tv_bf16 *)(void *)want[1], slots, G, S, HS, dtype,
                         (float *)(void *)want[2],   (float *)(void *)want[3]};
    CHECK_OK(tv_ops_cpu.rope(cpu, &a, &err), &err);
    void *in[3] = {rig_put(dev, qkv, n_heads * head * e), rig_put(dev, weight, head * e),
                   rig_put(dev, table, (size_t)S * head * e)};
    a.qkv = in[0], a.q_weight = a.k_weight = norm ? in[1] : NULL;
    a.cos = in[2], a.sin = (tv_bf16 *)in[2] + (size_t)S * head / 2, a.q = rig_put(dev, NULL, q_n * e);
    a.kv.k = card[0], a.kv.v = card[1], a.kv.k_scale = card[2], a.kv.v_scale = card[3];
    CHECK_OK(tv_ops_cuda.rope(dev, &a, &err), &err);
    rig_get(dev, q, a.q);
    for (int i = 0; i < 4; i++) {
        rig_get(dev, got[i], card[i]);
        if (!CHECK_BYTES(got[i], want[i], sizes[i]))
            fprintf(stderr, "    %s H=%d G=%d HS=%d norm=%d part %d\n", tv_dtype_name(dtype), H, G, HS, norm, i);
        rig_drop(dev, card[i]);
        free(got[i]), free(want[i]);
    }
    CHECK(same(q, q_want, q_n));
    for (int i = 0; i < 3; i++) rig_drop(dev, in[i]);
    rig_drop(dev, a.q);
    free(qkv), free(weight), free(table), free(q), free(q_want);
}

/* Bytes and scales are the CPU device's: head sizes around the lanes, heads around the warps of a block, every
 * schedule.
 */
static void test_append(void) {
    static const int sizes[] = {2, 16, 18, 64, 66, 80, 128, 256};
    static const tv_segment mixed[] = {{2, 4, 3, 5}, {0, 0, 1, 11}, {1, 1, 2, 0}, {3, 7, 1, 7}, {4, 3, 1, 0}};
    static const tv_segment whole[] = {{1, 0, 8, 3}};
    tv_dev *dev = open_both();
    for (int schedule = 0; schedule < rig_schedules(); schedule++) {
        rig_schedule(schedule);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if (schedule && sizes[i] % 64) continue;
            const tv_dtype dtype = dtypes[(i + (size_t)schedule) % N_KINDS];
            append_case(dev, dtype, 4, 2, sizes[i], (int)i % 2, mixed, 5, 8, 5, 12);
            append_case(dev, dtype, 5, 5, sizes[i], 0, whole, 1, 8, 2, 11);
        }
    }
    append_case(dev, TV_F8_E4M3, 2, 1, 128, 0, whole, 1, 8, 2, 11);
    append_case(dev, TV_I8, 2, 1, 256, 0, whole, 1, 8, 2, 11);
    close_both(dev);
}

/* Attention ------------------------------------------------------------------------------------------------------- */

/* A cache of bytes, the bf16 cache that they mean, and queries for every position of every slot, on the host. */
typedef struct {
    tv_kv_layer kv, meant; /* unwritten positions: NaN codes with NaN scales, NaN */
    int H;
    tv_bf16 *q; /* [slots,S,H,HS] bf16 */
} world;

static size_t rows_in(const world *w) { return (size_t)w->kv.slots * (size_t)w->kv.G * (size_t)w->kv.S; }
static size_t row_bytes(const world *w) { return (size_t)w->H * (size_t)w->kv.HS * sizeof(tv_bf16); }

static world make(tv_dtype dtype, int slots, int H, int G, int S, int HS, uint64_t seed) {
    world w = {.H = H};
    const size_t rows = (size_t)(slots * G * S), elements = rows * (size_t)HS;
    tv_bf16 *parts[4];
    float *scales[2];
    for (int i = 0; i < 2; i++) {
        parts[i] = tv_xmalloc(elements), parts[2 + i] = tv_xmalloc(elements * sizeof(tv_bf16));
        memset(parts[i], 0x7f, elements);
        for (size_t j = 0; j < elements; j++) parts[2 + i][j] = 0x7fff;
        scales[i] = tv_xmalloc(rows * sizeof(float));
        for (size_t j = 0; j < rows; j++) scales[i][j] = NAN;
    }
    w.kv = (tv_kv_layer){parts[0], parts[1], slots, G, S, HS, dtype, scales[0], scales[1]};
    w.meant = (tv_kv_layer){parts[2], parts[3], slots, G, S, HS, TV_BF16, NULL, NULL};
    w.q = rig_normals(seed, (size_t)(slots * S * H * HS), 1.5);
    return w;
}

static void drop(world *w) {
    free(w->kv.k), free(w->kv.v), free(w->kv.k_scale), free(w->kv.v_scale);
    free(w->meant.k), free(w->meant.v), free(w->q);
}

/* Appends rows x [n,2G,HS] (k, then v, of each position) on the CPU device, unturned, and notes what they mean. */
static void append(const world *w, int slot, int pos, int n, const tv_bf16 *x) {
    const int G = w->kv.G, HS = w->kv.HS;
    const size_t head = (size_t)HS, row = 3 * (size_t)G * head, table_n = (size_t)w->kv.S * head / 2;
    tv_bf16 *qkv = tv_xcalloc((size_t)n * row, sizeof *qkv), *q = tv_xcalloc((size_t)n * G * head, sizeof *q);
    tv_bf16 *ones = tv_xmalloc(table_n * sizeof *ones), *zeros = tv_xcalloc(table_n, sizeof *zeros);
    for (size_t i = 0; i < table_n; i++) ones[i] = 0x3f80;
    for (size_t i = 0; i < (size_t)n; i++)
        memcpy(qkv + i * row + G * head, x + i * 2 * G * head, 2 * G * head * sizeof *x);
    const tv_segment s = {slot, 0, n, pos};
    tv_rope_args a = {.qkv = qkv, .cos = ones, .sin = zeros, .q = q, .kv = w->kv, .segments = &s, .n_segments = 1};
    a.M = n, a.H = G, a.positions = w->kv.S;
    tv_err err = {0};
    CHECK_OK(tv_ops_cpu.rope(cpu, &a, &err), &err);
    for (int g = 0; g < 2 * G; g++)
        for (int i = pos; i < pos + n; i++) {
            const size_t at = ((size_t)slot * G + (size_t)(g % G)) * w->kv.S + (size_t)i;
            const uint8_t *bytes = (const uint8_t *)(g < G ? w->kv.k : w->kv.v) + at * head;
            const float scale = (g < G ? w->kv.k_scale : w->kv.v_scale)[at];
            for (int d = 0; d < HS; d++) {
                float f = w->kv.dtype == TV_I8 ? (float)(int8_t)bytes[d] : tv_f32_from_f8_e4m3(bytes[d]);
                (g < G ? w->meant.k : w->meant.v)[at * head + (size_t)d] = tv_bf16_from_f32(f * scale);
            }
        }
    free(qkv), free(q), free(ones), free(zeros);
}

/* Writes the first n positions of a slot: normal values, in some rows one far above them; rows of zeros (scale 0). */
static void fill(const world *w, int slot, int n, uint64_t seed) {
    const int HS = w->kv.HS, heads = 2 * w->kv.G;
    tv_bf16 *x = rig_normals(seed + (uint64_t)slot, (size_t)(n * heads * HS), 1);
    for (int i = 0; i < n * heads; i++) {
        if (i % 7 == 3) x[i * HS + i % HS] = i % heads < w->kv.G ? 0x4130 : 0xc416; /* 11, -600 */
        if (i % 11 == 5) memset(x + i * HS, 0, (size_t)HS * sizeof *x);
    }
    append(w, slot, 0, n, x);
    free(x);
}

static tv_attn_args args(const world *w, const tv_kv_layer *kv, tv_attn_plan plan, const tv_segment *s, int n) {
    tv_attn_args a = {.kv = *kv, .segments = s, .n_segments = n, .H = w->H, .plan = plan};
    for (int i = 0; i < n; i++) a.M += s[i].n_rows;
    a.scale = 1.0f / sqrtf((float)kv->HS);
    return a;
}

/* The queries of some segments, in the order of their rows; malloc'd. */
static tv_bf16 *queries(const world *w, const tv_attn_args *a) {
    tv_bf16 *q = tv_xmalloc((size_t)a->M * row_bytes(w));
    const size_t row = (size_t)w->H * w->kv.HS;
    for (int i = 0; i < a->n_segments; i++) {
        const tv_segment *s = &a->segments[i];
        memcpy(q + (size_t)s->row * row, w->q + ((size_t)s->slot * w->kv.S + s->pos) * row,
               (size_t)s->n_rows * row_bytes(w));
    }
    return q;
}

/* Both return out [M,H,HS]; malloc'd. */
static tv_bf16 *run(tv_dev *dev, const world *w, const tv_kv_layer *kv, int backend, tv_attn_plan plan,
                    const tv_segment *s, int n) {
    tv_attn_args a = args(w, kv, plan, s, n);
    const size_t bytes = (size_t)a.M * row_bytes(w), cache = rows_in(w) * kv->HS * tv_dtype_size(kv->dtype);
    tv_bf16 *q = queries(w, &a), *out = tv_xmalloc(bytes);
    tv_err err = {0};
    a.kv.k = rig_put(dev, kv->k, cache), a.kv.v = rig_put(dev, kv->v, cache);
    if (kv->k_scale) {
        a.kv.k_scale = rig_put(dev, kv->k_scale, rows_in(w) * sizeof(float));
        a.kv.v_scale = rig_put(dev, kv->v_scale, rows_in(w) * sizeof(float));
    }
    a.q = rig_put(dev, q, bytes), a.out = rig_put(dev, NULL, bytes);
    CHECK_OK(on_card[backend](dev, &a, &err), &err);
    rig_get(dev, out, a.out);
    rig_drop(dev, a.kv.k), rig_drop(dev, a.kv.v), rig_drop(dev, (void *)a.q), rig_drop(dev, a.out);
    if (kv->k_scale) rig_drop(dev, a.kv.k_scale), rig_drop(dev, a.kv.v_scale);
    free(q);
    return out;
}

static tv_bf16 *run_cpu(const world *w, int backend, tv_attn_plan plan, const tv_segment *s, int n) {
    const tv_attn_limits limits = {.device = "cpu", .H = w->H, .G = w->kv.G, .HS = w->kv.HS, .kv_dtype = w->kv.dtype};
    const tv_attn_backend *b = NULL;
    tv_attn_args a = args(w, &w->kv, plan, s, n);
    tv_bf16 *q = queries(w, &a);
    tv_err err = {0};
    a.q = q, a.out = tv_xmalloc((size_t)a.M * row_bytes(w));
    CHECK_OK(tv_attn_choose(&limits, names[backend], &b, &err), &err);
    CHECK_OK(b->run(cpu, &a, &err), &err);
    free(q);
    return a.out;
}

/* flash over bytes beside flash over what they mean: the same bits where a tensor core's sum of 16 products does not
 * depend on their order (as the emulator's, Hopper's); on other cards as close as rounding allows. */
static void check_flash(tv_dev *dev, const world *w, tv_attn_plan plan, const tv_segment *s, int n,
                        const tv_bf16 *got) {
    tv_bf16 *want = run(dev, w, &w->meant, FLASH, plan, s, n);
    const size_t all = (size_t)args(w, &w->kv, plan, s, n).M * (size_t)w->H * w->kv.HS;
    if (rig_emulated()) {
        CHECK(same(got, want, all));
    } else {
        size_t differ = 0;
        for (size_t i = 0; i < all; i++) differ += got[i] != want[i];
        CHECK((double)differ <= 0.02 * (double)all);
    }
    free(want);
}

static const struct {
    int H, G, HS;
} shapes[] = {{2, 2, 16}, {4, 2, 32}, {3, 1, 64}, {4, 1, 80}, {8, 1, 128}, {14, 2, 48}, {2, 1, 256}, {18, 1, 40}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static const int lengths[] = {1, 2, 7, 15, 16, 17, 63, 64, 65, 130};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

/* Every length as a decode row, then a prompt, a chunk of a few rows and one of many behind other keys: one call. */
enum { N_MIXED = N_LENGTHS + 3, MIXED_KEYS = 130 };
static world make_mixed(tv_dtype dtype, uint64_t seed, int shape, tv_segment s[N_MIXED]) {
    world w = make(dtype, N_MIXED, shapes[shape].H, shapes[shape].G, MIXED_KEYS, shapes[shape].HS, seed);
    for (int i = 0, row = 0; i < N_MIXED; row += s[i++].n_rows) {
        s[i] = (tv_segment){(i * 5) % N_MIXED, row, 1, i < N_LENGTHS ? lengths[i] - 1 : 0};
        if (i == N_LENGTHS) s[i].n_rows = 37;
        if (i == N_LENGTHS + 1) s[i].n_rows = 2, s[i].pos = 127;
        if (i == N_LENGTHS + 2) s[i].n_rows = 23, s[i].pos = 70;
        fill(&w, s[i].slot, s[i].pos + s[i].n_rows, seed + 1);
    }
    return w;
}

/* math and eager have the CPU device's bits, flash those over a bf16 cache: every shape, length and cut of a step,
 * plans with and without splits, each schedule; ldmatrix meets no bank twice; what was not written is not read. */
static void test_attention(void) {
    static const tv_attn_plan plans[] = {{64, 256}, {16, 16}, {32, 96}, {48, 144}, {64, 64}, {16, 64}, {48, 48}};
    tv_dev *dev = open_both();
    size_t differ = 0, all = 0;
    for (int i = 0; i < N_SHAPES; i++) {
        tv_segment s[N_MIXED];
        world w = make_mixed(dtypes[i % N_KINDS], 10 + i, i, s);
        const tv_attn_plan plan = plans[i % 7];
        const size_t n = (size_t)args(&w, &w.kv, plan, s, N_MIXED).M * w.H * w.kv.HS;
        for (int b = MATH; b <= EAGER; b++) {
            rig_schedule((2 * i + b) % rig_schedules());
            tv_bf16 *got = run(dev, &w, &w.kv, b, plan, s, N_MIXED), *want = run_cpu(&w, b, plan, s, N_MIXED);
            CHECK_BYTES(got, want, n * sizeof *got);
            free(got), free(want);
        }
        rig_schedule(i % rig_schedules());
        if (w.kv.HS % CUDA_ATTN_BYTES_HEAD_STEP == 0 && w.kv.HS <= CUDA_ATTN_BYTES_MAX_HEAD) {
            tv_bf16 *got = run(dev, &w, &w.kv, FLASH, plan, s, N_MIXED), *other = run_cpu(&w, FLASH, plan, s, N_MIXED);
            check_flash(dev, &w, plan, s, N_MIXED, got);
            for (size_t j = 0; j < n; j++) differ += got[j] != other[j];
            all += n;
            free(got), free(other);
        }
        drop(&w);
    }
    printf("     flash: %.2f%% of outputs differ from the CPU device's\n", 100.0 * (double)differ / (double)all);
    CHECK((double)differ <= 0.02 * (double)all);
    CHECK_INT(rig_bank_conflicts(), 0);
    close_both(dev);
}

/* Each precision in each kernel of flash and math, on one small step: decode rows that split, and a prompt. */
static void test_kernels(void) {
    static const int sizes[] = {64, 128};
    static const tv_segment s[] = {{0, 0, 1, 40}, {1, 1, 1, 0}, {2, 2, 24, 12}};
    tv_dev *dev = open_both();
    for (int f = 0; f < N_KINDS; f++)
        for (int i = 0; i < 2; i++) {
            world w = make(dtypes[f], 3, 2, 1, 41, sizes[i], 30);
            for (int j = 0; j < 3; j++) fill(&w, j, s[j].pos + s[j].n_rows, 40);
            const tv_attn_plan plan = {16, 32};
            tv_bf16 *got = run(dev, &w, &w.kv, FLASH, plan, s, 3);
            check_flash(dev, &w, plan, s, 3, got);
            free(got);
            for (int rows = 1; rows <= 4; rows *= 2) { /* 2, 4 and 8 rows of a unit; 1: a head alone */
                const tv_segment chunk = {0, 0, rows, 41 - rows};
                got = run(dev, &w, &w.kv, MATH, plan, &chunk, 1);
                tv_bf16 *want = run_cpu(&w, MATH, plan, &chunk, 1);
                CHECK_BYTES(got, want, (size_t)rows * row_bytes(&w));
                free(got), free(want);
            }
            drop(&w);
        }
    close_both(dev);
}

/* Every code, under scales from denormal to 2^119, 0 and NaN, is read as the CPU device reads it: with one key the
 * output is its value. */
static void test_every_code(void) {
    static const float scales[] = {1, 0.37f, 1e-41f, 2e-38f, 3e35f, 0, NAN};
    enum { HS = 128, N = 2 * (int)(sizeof scales / sizeof *scales) }; /* half of the codes in a row */
    tv_dev *dev = open_both();
    for (int f = 0; f < N_KINDS; f++) {
        world w = make(dtypes[f], N, 1, 1, 1, HS, 50);
        tv_segment s[N];
        for (int i = 0; i < N; i++) {
            s[i] = (tv_segment){i, i, 1, 0};
            w.kv.k_scale[i] = 0, w.kv.v_scale[i] = scales[i / 2];
            memset((uint8_t *)w.kv.k + i * HS, 0, HS);
            for (int d = 0; d < HS; d++) ((uint8_t *)w.kv.v)[i * HS + d] = (uint8_t)(i % 2 * HS + d);
        }
        for (int b = 0; b < N_BACKENDS; b++) {
            const tv_attn_plan plan = {16, 16};
            tv_bf16 *got = run(dev, &w, &w.kv, b, plan, s, N), *want = run_cpu(&w, b, plan, s, N);
            if (!CHECK(same(got, want, N * HS))) fprintf(stderr, "    %s\n", names[b]);
            free(got), free(want);
        }
        drop(&w);
    }
    close_both(dev);
}

/* A row that held a NaN or an infinity when it was appended makes NaN of who sees it, and of nobody else. */
static void test_bad_rows(void) {
    enum { BAD = 9, LENGTH = 20 };
    static const tv_segment s[] = {{0, 0, 1, BAD - 1}, {0, 1, 1, BAD}, {0, 2, 1, LENGTH - 1}};
    tv_dev *dev = open_both();
    for (int f = 0; f < N_KINDS; f++)
        for (int value = 0; value < 2; value++) {
            world w = make(dtypes[f], 1, 2, 1, LENGTH, 32, 60);
            fill(&w, 0, LENGTH, 61);
            tv_bf16 x[2 * 32] = {0}; /* a NaN in k, or an infinity in v */
            x[value * 32 + 5] = value ? 0x7f80 : 0x7fc0;
            append(&w, 0, BAD, 1, x);
            for (int b = 0; b < N_BACKENDS; b++) {
                const tv_attn_plan plan = {16, 16};
                tv_bf16 *got = run(dev, &w, &w.kv, b, plan, s, 3);
                for (int i = 0; i < 3; i++)
                    for (int d = 0; d < 64; d++) CHECK_INT(is_nan(got[i * 64 + d]), i > 0);
                free(got);
            }
            drop(&w);
        }
    close_both(dev);
}

/* A prompt whole, in chunks and row by row has the same bits in each backend, as has a row in batches of 2 and 17,
 * under each schedule: no path reads a byte otherwise. */
static void test_paths_are_equal(void) {
    enum { L = 75, SLOTS = 17 };
    static const int chunks[] = {40, 7, 1};
    tv_dev *dev = open_both();
    for (int b = 0; b < N_BACKENDS; b++) {
        world w = make(dtypes[b % N_KINDS], SLOTS, 4, 2, L, 64, 70);
        const size_t row = (size_t)w.H * w.kv.HS;
        fill(&w, 1, L, 71);
        for (int slot = 0; slot < SLOTS; slot++)
            if (slot != 1) fill(&w, slot, 1 + slot * 4, 72);
        const tv_attn_plan plan = {16, 48};
        const tv_segment whole = {1, 0, L, 0};
        tv_bf16 *first = run(dev, &w, &w.kv, b, plan, &whole, 1);
        for (int c = 0; c < 3; c++) {
            rig_schedule(c % rig_schedules());
            const int skip = chunks[c] == 1 ? 13 : 0;
            for (int pos = 0, n; pos < L; pos += n + skip) {
                n = L - pos < chunks[c] ? L - pos : chunks[c];
                const tv_segment s = {1, 0, n, pos};
                tv_bf16 *part = run(dev, &w, &w.kv, b, plan, &s, 1);
                CHECK_BYTES(part, first + (size_t)pos * row, (size_t)n * row_bytes(&w));
                free(part);
            }
        }
        for (int B = 2; B <= SLOTS; B += SLOTS - 2) {
            tv_segment s[SLOTS];
            for (int i = 0; i < B; i++) s[i] = (tv_segment){i, (i + 1) % B, 1, i * 4};
            s[1].pos = L - 1;
            rig_schedule(B % rig_schedules());
            tv_bf16 *out = run(dev, &w, &w.kv, b, plan, s, B);
            CHECK_BYTES(out + (size_t)s[1].row * row, first + (L - 1) * row, row_bytes(&w));
            free(out);
        }
        free(first), drop(&w);
    }
    close_both(dev);
}

/* What the kernels cannot do is refused, naming the value; and which backend can is known before a session opens. */
static void test_refuses(void) {
    tv_err err = {0};
    tv_dev *dev = rig_open();
    tv_bf16 *p = rig_put(dev, NULL, 4096);
    const tv_segment s = {0, 0, 1, 0};
    tv_attn_args a = {.q = p, .out = p, .segments = &s, .n_segments = 1, .M = 1, .H = 1, .scale = 1, .plan = {16, 16}};
    a.kv = (tv_kv_layer){p, p, 1, 1, 1, 24, TV_I8, (float *)(void *)p, (float *)(void *)p};
    CHECK_FAILS(cuda_attn_flash(dev, &a, &err), TV_EUNSUPPORTED, &err, "HS=24 of a cache of bytes");
    a.kv.HS = 144;
    CHECK_FAILS(cuda_attn_flash(dev, &a, &err), TV_EUNSUPPORTED, &err, "HS=144");
    a.kv.v_scale = NULL;
    for (int b = 0; b < N_BACKENDS; b++) CHECK_FAILS(on_card[b](dev, &a, &err), TV_EARG, &err, "kv.v_scale");
    const tv_attn_backend *chosen = NULL;
    tv_attn_limits limits = {.device = "cuda", .H = 2, .G = 1, .HS = 24, .kv_dtype = TV_F8_E4M3};
    CHECK_OK(tv_attn_choose(&limits, "auto", &chosen, &err), &err);
    CHECK(chosen && !strcmp(chosen->name, "math"));
    CHECK_FAILS(tv_attn_choose(&limits, "flash", &chosen, &err), TV_EUNSUPPORTED, &err, "multiple of 16");
    limits.HS = 128;
    CHECK_OK(tv_attn_choose(&limits, "auto", &chosen, &err), &err);
    CHECK(chosen && !strcmp(chosen->name, "flash"));
    CHECK_FAILS(tv_attn_choose(&limits, "cudnn", &chosen, &err), TV_EUNSUPPORTED, &err,
                "cudnn (reads a bf16 cache only (--kv-dtype bf16)), flash (available), math (available)");
    rig_close(dev);
}

static const tv_test tests[] = {
    {"append", test_append},         {"attention", test_attention}, {"kernels", test_kernels},
    {"every_code", test_every_code}, {"bad_rows", test_bad_rows},   {"paths_are_equal", test_paths_are_equal},
    {"refuses", test_refuses},
};
TV_TEST_MAIN(tests)
