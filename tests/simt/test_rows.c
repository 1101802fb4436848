/* The row kernels of the CUDA device: bit for bit those of the CPU device (NaN payloads excepted), in every schedule.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/tensor.h"
#include "kernels/cpu/vec.h"
#include "kernels/philox.h"
#include "tests/check.h"
#include "tests/simt/rig.h"

static tv_dev *cpu;
static tv_dev *open_both(void) {
    tv_err err = {0};
    CHECK_OK(tv_ops_cpu.open(&(tv_dev_options){.threads = 1, .isa = "auto"}, &cpu, &err), &err);
    return rig_open();
}
static void close_both(tv_dev *dev) {
    rig_close(dev);
    tv_ops_cpu.close(cpu);
}

static void *copy_of(const void *p, size_t bytes) { return memcpy(tv_xmalloc(bytes), p, bytes); }
static int is_nan(tv_bf16 x) { return (x & 0x7fff) > 0x7f80; }
/* Equal bits; a NaN equals a NaN. */
static int same(const tv_bf16 *got, const tv_bf16 *want, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i] && !(is_nan(got[i]) && is_nan(want[i]))) {
            fprintf(stderr, "    %s: %#x at %zu, and not %#x\n", what, got[i], i, want[i]);
            return 0;
        }
    return 1;
}
/* n values, among them some that are not numbers or leave the range of bf16. */
static tv_bf16 *odd_values(uint64_t seed, size_t n) {
    static const tv_bf16 odd[] = {0x7f80, 0xff80, 0x7fc1, 0x7f7f, 0xff7f, 0x0001, 0x8000, 0x0080, 0x5f00};
    tv_rng rng = {seed};
    tv_bf16 *p = rig_normals(seed, n, 1);
    for (size_t i = 0; i < n; i++)
        if (tv_rng_next(&rng) % 500 == 0) p[i] = odd[tv_rng_next(&rng) % (sizeof odd / sizeof *odd)];
    return p;
}

/* Rows are copied whole, at widths with and without vector loads. */
static void test_embed(void) {
    static const int widths[] = {1, 8, 36, 1000, 1024};
    enum { V = 7, M = 5 };
    static const int32_t ids[M] = {6, 0, 3, 3, 5};
    tv_err err = {0};
    tv_dev *dev = rig_open();
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        const int D = widths[w];
        const size_t row = (size_t)D * sizeof(tv_bf16);
        tv_bf16 *table = rig_normals(1, (size_t)V * (size_t)D, 1), *out = tv_xmalloc(M * row);
        tv_embed_args a = {.M = M, .V = V, .D = D};
        a.table = rig_put(dev, table, V * row), a.ids = rig_put(dev, ids, sizeof ids);
        a.out = rig_put(dev, NULL, M * row);
        CHECK_OK(tv_ops_cuda.embed(dev, &a, &err), &err);
        rig_get(dev, out, a.out);
        for (int i = 0; i < M; i++) CHECK_BYTES(out + i * D, table + ids[i] * D, row);
        free(table), free(out);
    }
    rig_close(dev);
}

/* One call beside the CPU device's: the output, the stream where it was added to, and the rows that were not named.
 * shift: elements by which pointers miss their alignment. */
static void rmsnorm_case(tv_dev *dev, int D, int M, int with_delta, const int32_t *rows, int n_rows, int odd,
                         int shift) {
    const size_t n = (size_t)n_rows * (size_t)D, m = (size_t)M * (size_t)D, s = (size_t)shift;
    tv_err err = {0};
    tv_bf16 *x = odd ? odd_values(3, n + s) : rig_normals(3, n + s, 1.5), *delta = rig_normals(4, n + s, 0.5);
    tv_bf16 *weight = rig_normals(5, (size_t)D + s, 1), *out = tv_xcalloc(m + s, sizeof *out);
    tv_bf16 *x_want = copy_of(x, (n + s) * sizeof *x), *out_want = tv_xcalloc(m + s, sizeof *out);
    tv_rmsnorm_args a = {x_want + s, with_delta ? delta + s : NULL, weight + s, rows, out_want + s, M, D, 1e-6f};
    CHECK_OK(tv_ops_cpu.rmsnorm(cpu, &a, &err), &err);

    tv_bf16 *x_dev = rig_put(dev, x, (n + s) * sizeof *x), *delta_dev = rig_put(dev, delta, (n + s) * sizeof *x);
    tv_bf16 *weight_dev = rig_put(dev, weight, ((size_t)D + s) * sizeof *x);
    tv_bf16 *out_dev = rig_put(dev, NULL, (m + s) * sizeof *x);
    int32_t *rows_dev = rows ? rig_put(dev, rows, (size_t)M * sizeof *rows) : NULL;
    a = (tv_rmsnorm_args){x_dev + s, with_delta ? delta_dev + s : NULL, weight_dev + s, rows_dev, out_dev + s, M, D,
                          1e-6f};
    CHECK_OK(tv_ops_cuda.rmsnorm(dev, &a, &err), &err);
    rig_get(dev, out, out_dev), rig_get(dev, x, x_dev);
    if (!CHECK(same(out + s, out_want + s, m, "rmsnorm") && same(x, x_want, n + s, "x")))
        fprintf(stderr, "    D=%d M=%d delta=%d rows=%d odd=%d shift=%d\n", D, M, with_delta, !!rows, odd, shift);
    rig_drop(dev, x_dev), rig_drop(dev, delta_dev), rig_drop(dev, weight_dev), rig_drop(dev, out_dev);
    if (rows) rig_drop(dev, rows_dev);
    free(x), free(delta), free(weight), free(out), free(x_want), free(out_want);
}

/* Widths around every edge of lanes, vector loads, threads and chunks of shared memory; residual add; gathered rows. */
static void test_rmsnorm(void) {
    static const int widths[] = {1,    2,    7,    8,    31,   32,   33,   64,   255,  264,  1000,
                                 1024, 2560, 4096, 4104, 5120, 8191, 8192, 8200, 9001, 16392};
    static const int32_t gathered[] = {4, 0, 2};
    tv_dev *dev = open_both();
    for (int schedule = 0; schedule < rig_schedules(); schedule++) {
        rig_schedule(schedule);
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            const int D = widths[w];
            if (schedule && D > 1024) continue;
            rmsnorm_case(dev, D, 1, 0, NULL, 1, 0, 0);
            rmsnorm_case(dev, D, 2, 1, NULL, 2, 0, 0);
            rmsnorm_case(dev, D, 3, 1, gathered, 5, 1, 0);
            rmsnorm_case(dev, D, 2, 0, gathered, 5, 1, 1);
        }
    }
    rig_schedule(0);
    close_both(dev);
}

/* A row that the order of the sum of squares shows in: chains of lanes added (c0 + c2) + (c1 + c3), the rest as it
 * should be, give another output. 256 values. */
static tv_bf16 *fragile_row(void) {
    enum { D = 256 };
    for (uint64_t seed = 1;; seed++) {
        tv_bf16 *x = rig_normals(seed, D, 1);
        float acc[32] = {0}, scale[2];
        for (int i = 0; i < D; i++) acc[i % 32] = fmaf(tv_f32_from_bf16(x[i]), tv_f32_from_bf16(x[i]), acc[i % 32]);
        for (int wrong = 0; wrong < 2; wrong++) {
            const float *c1 = acc + (wrong ? 16 : 8), *c2 = acc + (wrong ? 8 : 16);
            float l[8];
            for (int i = 0; i < 8; i++) l[i] = (acc[i] + c1[i]) + (c2[i] + acc[24 + i]);
            float sum = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
            scale[wrong] = 1.0f / sqrtf(sum / D + 1e-6f);
        }
        for (int i = 0; i < D; i++)
            if (tv_bf16_from_f32(tv_f32_from_bf16(x[i]) * scale[0]) !=
                tv_bf16_from_f32(tv_f32_from_bf16(x[i]) * scale[1]))
                return x;
        free(x);
    }
}

/* rmsnorm and the norm of heads add in the order of docs/numerics.md: on most rows any order gives the same bf16. */
static void test_norm_order(void) {
    enum { D = 256 };
    static const tv_segment segment = {0, 0, 1, 0};
    tv_err err = {0};
    tv_dev *dev = open_both();
    tv_bf16 *x = fragile_row(), qkv[3 * D], ones[D], zeros[D / 2] = {0}, want[D], got[D];
    for (int i = 0; i < 3 * D; i++) qkv[i] = x[i % D], ones[i % D] = 0x3f80;
    CHECK_OK(tv_ops_cpu.rmsnorm(cpu, &(tv_rmsnorm_args){x, NULL, ones, NULL, want, 1, D, 1e-6f}, &err), &err);
    tv_bf16 *x_dev = rig_put(dev, qkv, sizeof qkv), *one = rig_put(dev, ones, sizeof ones),
            *out = rig_put(dev, NULL, sizeof got);
    CHECK_OK(tv_ops_cuda.rmsnorm(dev, &(tv_rmsnorm_args){x_dev, NULL, one, NULL, out, 1, D, 1e-6f}, &err), &err);
    rig_get(dev, got, out);
    CHECK_BYTES(got, want, sizeof got);
    tv_rope_args a = {.qkv = x_dev, .q_weight = one, .k_weight = one, .cos = one, .q = rig_put(dev, NULL, sizeof got)};
    a.sin = rig_put(dev, zeros, sizeof zeros);
    a.kv = (tv_kv_layer){out, rig_put(dev, NULL, sizeof got), 1, 1, 1, D};
    a.segments = &segment, a.n_segments = a.M = a.H = a.positions = 1, a.eps = 1e-6f;
    CHECK_OK(tv_ops_cuda.rope(dev, &a, &err), &err);
    rig_get(dev, got, a.q);
    CHECK_BYTES(got, want, sizeof got);
    free(x);
    close_both(dev);
}

/* Against the formula in f64, so that both devices are not wrong alike: within one rounding of each step. */
static void test_rmsnorm_formula(void) {
    enum { D = 1536 };
    tv_err err = {0};
    tv_dev *dev = rig_open();
    tv_bf16 *x = rig_normals(8, D, 3), *weight = rig_normals(9, D, 1), out[D];
    tv_rmsnorm_args a = {.M = 1, .D = D, .eps = 1e-5f};
    a.x = rig_put(dev, x, D * sizeof *x), a.weight = rig_put(dev, weight, D * sizeof *x);
    a.out = rig_put(dev, NULL, D * sizeof *x);
    CHECK_OK(tv_ops_cuda.rmsnorm(dev, &a, &err), &err);
    rig_get(dev, out, a.out);
    double sum = 0;
    for (int i = 0; i < D; i++) sum += pow(tv_f32_from_bf16(x[i]), 2);
    for (int i = 0; i < D; i++) {
        double want = tv_f32_from_bf16(x[i]) / sqrt(sum / D + 1e-5) * tv_f32_from_bf16(weight[i]);
        if (!CHECK(fabs(tv_f32_from_bf16(out[i]) - want) <= 0x1.01p-7 * fabs(want))) break;
    }
    free(x), free(weight);
    rig_close(dev);
}

/* One step beside the CPU device's: q, and the whole cache, so that nothing else was written. */
static void rope_case(tv_dev *dev, int H, int G, int HS, int norm, const tv_segment *segments, int n_segments, int M,
                      int slots, int S) {
    const size_t head = (size_t)HS, half = head / 2, qkv_n = (size_t)M * (size_t)(H + 2 * G) * head;
    const size_t q_n = (size_t)M * (size_t)H * head, kv_n = (size_t)(slots * G * S) * head, table_n = (size_t)S * half;
    const size_t e = sizeof(tv_bf16);
    tv_err err = {0};
    tv_bf16 *qkv = odd_values(11, qkv_n), *q_weight = rig_normals(12, head, 1), *k_weight = rig_normals(13, head, 1);
    tv_bf16 *cos_table = rig_normals(14, table_n, 0.5), *sin_table = rig_normals(15, table_n, 0.5);
    tv_bf16 *q = tv_xmalloc(q_n * e), *k = tv_xmalloc(kv_n * e), *v = tv_xmalloc(kv_n * e);
    tv_bf16 *q_want = tv_xmalloc(q_n * e), *k_want = tv_xmalloc(kv_n * e), *v_want = tv_xmalloc(kv_n * e);
    memset(k_want, 0xff, kv_n * e), memset(v_want, 0xff, kv_n * e); /* as rig_put(NULL) leaves it */
    tv_rope_args a = {.qkv = qkv,
                      .q_weight = norm ? q_weight : NULL,
                      .k_weight = norm ? k_weight : NULL,
                      .cos = cos_table,
                      .sin = sin_table,
                      .q = q_want,
                      .kv = {k_want, v_want, slots, G, S, HS},
                      .segments = segments,
                      .n_segments = n_segments,
                      .M = M,
                      .H = H,
                      .positions = S,
                      .eps = 1e-6f};
    CHECK_OK(tv_ops_cpu.rope(cpu, &a, &err), &err);
    void *in[5] = {rig_put(dev, qkv, qkv_n * e), rig_put(dev, q_weight, head * e), rig_put(dev, k_weight, head * e),
                   rig_put(dev, cos_table, table_n * e), rig_put(dev, sin_table, table_n * e)};
    a.qkv = in[0], a.q_weight = norm ? in[1] : NULL, a.k_weight = norm ? in[2] : NULL, a.cos = in[3], a.sin = in[4];
    a.q = rig_put(dev, NULL, q_n * e), a.kv.k = rig_put(dev, NULL, kv_n * e), a.kv.v = rig_put(dev, NULL, kv_n * e);
    CHECK_OK(tv_ops_cuda.rope(dev, &a, &err), &err);
    rig_get(dev, q, a.q), rig_get(dev, k, a.kv.k), rig_get(dev, v, a.kv.v);
    if (!CHECK(same(q, q_want, q_n, "q") && same(k, k_want, kv_n, "k") && !memcmp(v, v_want, kv_n * e)))
        fprintf(stderr, "    H=%d G=%d HS=%d norm=%d segments=%d\n", H, G, HS, norm, n_segments);
    for (int i = 0; i < 5; i++) rig_drop(dev, in[i]);
    rig_drop(dev, a.q), rig_drop(dev, a.kv.k), rig_drop(dev, a.kv.v);
    free(qkv), free(q_weight), free(k_weight), free(cos_table), free(sin_table);
    free(q), free(k), free(v), free(q_want), free(k_want), free(v_want);
}

/* Head sizes around the lanes, numbers of heads around the warps of a block, segments in any order. */
static void test_rope(void) {
    static const int sizes[] = {2, 16, 18, 62, 64, 66, 80, 96, 128, 250, 256};
    static const tv_segment mixed[] = {{2, 4, 3, 5}, {0, 0, 1, 11}, {1, 1, 2, 0}, {3, 7, 1, 7}, {4, 3, 1, 0}};
    static const tv_segment whole[] = {{1, 0, 8, 3}};
    tv_dev *dev = open_both();
    for (int schedule = 0; schedule < rig_schedules(); schedule++) {
        rig_schedule(schedule);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if (schedule && sizes[i] % 64) continue;
            rope_case(dev, 4, 2, sizes[i], (int)i % 2, mixed, 5, 8, 5, 12);
            rope_case(dev, 5, 5, sizes[i], !(i % 2), whole, 1, 8, 2, 11);
        }
    }
    rig_schedule(0);
    enum { MANY = 300 }; /* more segments than a block has threads, none at its row's place */
    tv_segment many[MANY];
    for (int i = 0; i < MANY; i++) many[i] = (tv_segment){i, MANY - 1 - i, 1, i % 3};
    rope_case(dev, 1, 1, 16, 1, many, MANY, MANY, MANY, 3);
    close_both(dev);
}

static void test_rope_refuses(void) {
    tv_err err = {0};
    tv_dev *dev = rig_open();
    tv_bf16 x[4] = {0};
    const tv_segment s = {0, 0, 1, 0};
    tv_rope_args a = {.qkv = x,
                      .cos = x,
                      .sin = x,
                      .q = x,
                      .kv = {x, x, 1, 1, 1, 258},
                      .segments = &s,
                      .n_segments = 1,
                      .M = 1,
                      .H = 1,
                      .positions = 1};
    CHECK_FAILS(tv_ops_cuda.rope(dev, &a, &err), TV_EUNSUPPORTED, &err, "HS=258 must be at most 256");
    rig_close(dev);
}

static void swiglu_case(tv_dev *dev, const tv_bf16 *in, int M, int F, int shift) {
    const size_t n = (size_t)M * (size_t)F, s = (size_t)shift, e = sizeof(tv_bf16);
    tv_err err = {0};
    tv_bf16 *got = tv_xmalloc((n + s) * e), *want = tv_xmalloc(n * e), *shifted = tv_xcalloc(2 * n + s, e);
    memcpy(shifted + s, in, 2 * n * e);
    tv_swiglu_args a = {in, want, M, F};
    CHECK_OK(tv_ops_cpu.swiglu(cpu, &a, &err), &err);
    tv_bf16 *in_dev = rig_put(dev, shifted, (2 * n + s) * e), *out_dev = rig_put(dev, NULL, (n + s) * e);
    a = (tv_swiglu_args){in_dev + s, out_dev + s, M, F};
    CHECK_OK(tv_ops_cuda.swiglu(dev, &a, &err), &err);
    rig_get(dev, got, out_dev);
    if (!CHECK(same(got + s, want, n, "swiglu"))) fprintf(stderr, "    M=%d F=%d shift=%d\n", M, F, shift);
    rig_drop(dev, in_dev), rig_drop(dev, out_dev);
    free(got), free(want), free(shifted);
}

/* Every bf16 as gate; widths with and without vector loads. */
static void test_swiglu(void) {
    static const int widths[] = {1, 7, 8, 12, 128, 333, 1023, 1024, 1032, 3072};
    tv_dev *dev = open_both();
    tv_bf16 *all = tv_xmalloc(2 * 65536 * sizeof *all), *up = rig_normals(2, 65536, 1);
    for (int i = 0; i < 65536; i++) all[i] = (tv_bf16)i, all[65536 + i] = up[i];
    swiglu_case(dev, all, 1, 65536, 0);
    for (int schedule = 0; schedule < rig_schedules(); schedule++) {
        rig_schedule(schedule);
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            tv_bf16 *in = odd_values(i + 20, (size_t)(2 * 3 * widths[i]));
            swiglu_case(dev, in, 3, widths[i], 0);
            swiglu_case(dev, in, 1, widths[i], 1);
            free(in);
        }
    }
    rig_schedule(0);
    free(all), free(up);
    close_both(dev);
}

static void route_case(tv_dev *dev, const tv_bf16 *logits, int M, int E, int used, int norm, const int32_t *given) {
    const size_t n = (size_t)(M * used), e = sizeof(tv_bf16);
    tv_err err = {0};
    tv_bf16 *weights = tv_xmalloc(n * e), *weights_want = tv_xmalloc(n * e);
    int32_t *ids = tv_xmalloc(n * sizeof *ids), *ids_want = tv_xmalloc(n * sizeof *ids);
    tv_moe_route_args a = {logits, ids_want, weights_want, M, E, used, norm, given};
    CHECK_OK(tv_ops_cpu.moe_route(cpu, &a, &err), &err);
    a.logits = rig_put(dev, logits, (size_t)(M * E) * e), a.ids = rig_put(dev, NULL, n * sizeof *ids);
    a.weights = rig_put(dev, NULL, n * e), a.given = given ? rig_put(dev, given, n * sizeof *given) : NULL;
    CHECK_OK(tv_ops_cuda.moe_route(dev, &a, &err), &err);
    rig_get(dev, ids, a.ids), rig_get(dev, weights, a.weights);
    if (!CHECK(!memcmp(ids, ids_want, n * sizeof *ids) && same(weights, weights_want, n, "weights")))
        fprintf(stderr, "    M=%d E=%d used=%d norm=%d given=%d\n", M, E, used, norm, !!given);
    rig_drop(dev, (void *)(uintptr_t)a.logits), rig_drop(dev, a.ids), rig_drop(dev, a.weights);
    if (given) rig_drop(dev, (void *)(uintptr_t)a.given);
    free(weights), free(weights_want), free(ids), free(ids_want);
}

/* Router logits of 128 experts whose weights show that an exponential is not f64's rounded, but good to an ulp or so.
 */
static tv_bf16 *fragile_logits(void) {
    enum { E = 128 };
    for (uint64_t seed = 1;; seed++) {
        tv_bf16 *logits = rig_normals(seed, E, 2);
        float max = -INFINITY, p[2][E], sum[2] = {0};
        for (int e = 0; e < E; e++) max = fmaxf(max, tv_f32_from_bf16(logits[e]));
        for (int e = 0; e < E; e++) {
            const float x = tv_f32_from_bf16(logits[e]) - max;
            p[0][e] = (float)exp((double)x), p[1][e] = vec_exp(x);
            sum[0] += p[0][e], sum[1] += p[1][e];
        }
        for (int e = 0; e < E; e++)
            if (tv_bf16_from_f32(p[0][e] / sum[0]) != tv_bf16_from_f32(p[1][e] / sum[1])) return logits;
        free(logits);
    }
}

/* Ids and weights are the CPU device's for spread, tied and faulty logits; also probabilities down to denormals, which
 * show whether the exponential is the rounded one of f64. */
static void test_moe_route(void) {
    static const int sizes[][2] = {{1, 1},  {2, 1},   {8, 2},   {31, 31},   {33, 4},
                                   {60, 4}, {128, 8}, {257, 6}, {512, 512}, {1024, 8}};
    tv_dev *dev = open_both();
    for (int schedule = 0; schedule < rig_schedules(); schedule++) {
        rig_schedule(schedule);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            enum { M = 9 };
            const int E = sizes[i][0], used = sizes[i][1];
            if (schedule && E > 300) continue;
            tv_rng rng = {i + 1};
            tv_bf16 *logits = rig_normals(i + 30, (size_t)(M * E), 2);
            int32_t *given = tv_xmalloc((size_t)(M * used) * sizeof *given);
            for (int j = 0; j < M * used; j++) given[j] = (j % used * 7 + j / used) % E;
            for (int j = 0; j < E; j++) { /* row 0 as it is */
                logits[E + j % E] = tv_bf16_from_f32((float)(tv_rng_next(&rng) % 3));
                if (M * E > 4 * E) logits[2 * E + j] = tv_bf16_from_f32(-0.21875f * (float)j); /* to e^-104 and below */
                logits[3 * E + j] = 0xff80;                                                    /* -inf */
                logits[4 * E + j] = 0;
            }
            logits[5 * E + E / 2] = 0x7fc0, logits[6 * E + E / 3] = 0x7f80, logits[7 * E + E - 1] = 0xff80;
            route_case(dev, logits, M, E, used, (int)i % 2, NULL);
            route_case(dev, logits, 1, E, used, !(i % 2), NULL);
            route_case(dev, logits, M, E, used, 1, given);
            free(logits), free(given);
        }
    }
    rig_schedule(0);
    tv_bf16 *logits = fragile_logits();
    route_case(dev, logits, 1, 128, 128, 0, NULL);
    free(logits);
    tv_err err = {0};
    tv_bf16 x;
    int32_t id;
    tv_moe_route_args a = {&x, &id, &x, 1, 1025, 1, 0, NULL};
    CHECK_FAILS(tv_ops_cuda.moe_route(dev, &a, &err), TV_EUNSUPPORTED, &err, "E=1025 must be at most 1024");
    close_both(dev);
}

/* Draws are the CPU device's: records of every length, exhausted, empty and faulty ones, at every place in a batch. */
static void test_sample(void) {
    enum { M = 203, K = 130 };
    static const int tops[] = {1, 2, 31, 32, 33, 64, 128, 130};
    tv_err err = {0};
    tv_dev *dev = open_both();
    tv_rng rng = {17};
    float *lp = tv_xmalloc(sizeof *lp * M * K);
    int32_t *ids = tv_xmalloc(sizeof *ids * M * K), position[M], got[M], want[M];
    int64_t trajectory[M];
    for (int m = 0; m < M; m++) {
        double at = -3 * tv_rng_uniform(&rng);
        const int alive = 1 + (int)(tv_rng_next(&rng) % K);
        for (int j = 0; j < K; j++) {
            ids[m * K + j] = (int)(tv_rng_next(&rng) % 151936);
            lp[m * K + j] = j < alive ? (float)at : -INFINITY;
            at -= (m % 3 ? 0.02 : 3) * tv_rng_uniform(&rng);
        }
        if (m == 5 || m == 77) lp[m * K] = m == 5 ? -INFINITY : NAN;
        if (m == 60) lp[m * K + 2] = NAN;
        trajectory[m] = (int64_t)(tv_rng_next(&rng) >> 1), position[m] = (int)(tv_rng_next(&rng) % 5000);
    }
    tv_sample_args d = {rig_put(dev, ids, sizeof *ids * M * K),
                        rig_put(dev, lp, sizeof *lp * M * K),
                        rig_put(dev, trajectory, sizeof trajectory),
                        rig_put(dev, position, sizeof position),
                        rig_put(dev, NULL, sizeof got),
                        M,
                        K,
                        K,
                        0x123456789abcdefull};
    for (int schedule = 0; schedule < rig_schedules(); schedule++) {
        rig_schedule(schedule);
        for (size_t i = 0; i < sizeof tops / sizeof *tops; i++) {
            tv_sample_args a = {ids, lp, trajectory, position, want, M, K, tops[i], d.seed};
            d.top_k = tops[i], d.M = M;
            CHECK_OK(tv_ops_cpu.sample(cpu, &a, &err), &err);
            CHECK_OK(tv_ops_cuda.sample(dev, &d, &err), &err);
            rig_get(dev, got, d.token);
            CHECK_BYTES(got, want, sizeof got);
        }
    }
    d.M = 1; /* alone as in the batch; the others stay */
    CHECK_OK(tv_ops_cuda.sample(dev, &d, &err), &err);
    rig_get(dev, got, d.token);
    CHECK_BYTES(got, want, sizeof got);
    rig_schedule(0);
    free(lp), free(ids);

    /* u * total on the boundary of two entries: the later one's. */
    float equal[64] = {0}, u = 0;
    int32_t numbers[64];
    for (int j = 0; j < 64; j++) numbers[j] = j;
    while (u == 0 || u * 64 != floorf(u * 64))
        u = tv_philox_uniform(d.seed, (uint64_t)++trajectory[0], 0, TV_USE_SAMPLE);
    position[0] = 0;
    d.topk_logprobs = rig_put(dev, equal, sizeof equal), d.topk_ids = rig_put(dev, numbers, sizeof numbers);
    d.trajectory = rig_put(dev, trajectory, sizeof *trajectory), d.position = rig_put(dev, position, sizeof *position);
    d.k = d.top_k = 64;
    CHECK_OK(tv_ops_cuda.sample(dev, &d, &err), &err);
    rig_get(dev, got, d.token);
    CHECK_INT(got[0], (int)(u * 64));
    close_both(dev);
}

static const tv_test tests[] = {
    {"embed", test_embed},
    {"rmsnorm", test_rmsnorm},
    {"norm_order", test_norm_order},
    {"rmsnorm_formula", test_rmsnorm_formula},
    {"rope", test_rope},
    {"rope_refuses", test_rope_refuses},
    {"swiglu", test_swiglu},
    {"moe_route", test_moe_route},
    {"sample", test_sample},
};
TV_TEST_MAIN(tests)
