/* KV caches of one byte an element: what a row becomes, that every backend computes on exactly that, and that prefill,
 * chunks and decode stay one distribution. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "tests/session_fixture.h"
#include "tests/tiny_checkpoint.h"

static const tv_dtype dtypes[] = {TV_F8_E4M3, TV_I8};
static double value(tv_bf16 x) { return tv_f32_from_bf16(x); }

/* Every code of E4M3 by its definition, and rounding to the nearest of them, ties to the even one, saturating at 448:
 * there is no infinity, so that an overflow would be a NaN. */
static void test_e4m3(void) {
    int wrong = 0;
    double codes[127];
    for (int b = 0; b < 256; b++) {
        int e = b >> 3 & 15, m = b & 7;
        double want = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m, -9);
        float got = tv_f32_from_f8_e4m3((uint8_t)b);
        if ((b & 127) == 127) {
            wrong += !isnan(got);
            continue;
        }
        if (b < 127) codes[b] = want;
        wrong += got != (b & 128 ? -want : want) || !signbit(got) != !(b & 128);
        wrong += tv_f8_e4m3_from_f32(got) != b;
    }
    CHECK_INT(wrong, 0);
    CHECK(codes[126] == 448);
    tv_rng rng = {1};
    for (int i = 0; i < 20000; i++) {
        int at = (int)(tv_rng_next(&rng) % 126), tie = i % 4 == 0;
        double step = codes[at + 1] - codes[at];
        float x = (float)(codes[at] + step * (tie ? 0.5 : tv_rng_uniform(&rng)));
        int want = tie ? at + (at & 1) : at + (x - codes[at] > step / 2);
        wrong += tv_f8_e4m3_from_f32(x) != want || tv_f8_e4m3_from_f32(-x) != (want | 128);
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(tv_f8_e4m3_from_f32(464), 0x7e);
    CHECK_INT(tv_f8_e4m3_from_f32(1e30f), 0x7e);
    CHECK_INT(tv_f8_e4m3_from_f32(-INFINITY), 0xfe);
    CHECK_INT(tv_f8_e4m3_from_f32(NAN) & 0x7f, 0x7f);
    CHECK_INT(tv_f8_e4m3_from_f32(1e-30f), 0);
}

/* x [HS] through a cache row and back. */
static float through(tv_dtype dtype, const tv_bf16 *x, int HS, tv_bf16 *out) {
    uint8_t bytes[CPU_ATTN_MAX_HEAD];
    float scale;
    tv_kv_layer kv = {.slots = 1, .G = 1, .S = 1, .HS = HS, .dtype = dtype};
    cpu_kv_quantize(&kv, bytes, &scale, 0, 0, 0, x);
    cpu_kv_dequantize(&kv, bytes, &scale, 0, 0, 1, out);
    return scale;
}

/* What a row loses: int8 half a step of its largest value / 127, fp8 a sixteenth of each value. K07: one channel far
 * above the others (600, and 60,000) neither saturates nor turns into NaN. Zeros, denormals and NaN stay themselves. */
static void test_rows(void) {
    enum { HS = 64 };
    tv_rng rng = {7};
    for (int f = 0; f < 2; f++) {
        const int fp8 = dtypes[f] == TV_F8_E4M3;
        uint64_t hash = 14695981039346656037u;
        for (int i = 0; i < 400; i++) {
            tv_bf16 x[HS], y[HS];
            float outlier = i % 4 == 0 ? 600 : i % 4 == 1 ? 6e4f : 0;
            for (int d = 0; d < HS; d++)
                x[d] = tv_bf16_from_f32((float)((int)(tv_rng_next(&rng) >> 40 & 1023) - 512) / 256);
            if (outlier > 0) x[i % HS] = tv_bf16_from_f32(i % 8 < 4 ? outlier : -outlier);
            double scale = through(dtypes[f], x, HS, y), off = 0;
            for (int d = 0; d < HS; d++) {
                double half = fp8 ? fmax(fabs(value(x[d])) / 16, scale * 0x1p-10) : scale / 2;
                off = fmax(off, fabs(value(y[d]) - value(x[d])) / (half * (1 + 1e-5) + fabs(value(y[d])) * 0x1p-8));
                hash = (hash ^ y[d]) * 1099511628211u;
            }
            CHECK(off <= 1);
            if (outlier > 0)
                CHECK_NEAR(fabs(value(y[i % HS])), fabs(value(x[i % HS])), 0.005); /* the largest is exact */
        }
        static const uint64_t want[2] = {0x5a06e139580e9d68,
                                         0xcc0aa37bd052829c}; /* on any machine: no mathematical library takes part */
        if (!CHECK(hash == want[f]))
            fprintf(stderr, "    %s: %#llx\n", tv_dtype_name(dtypes[f]), (unsigned long long)hash);

        tv_bf16 zero[8] = {0, 0x8000}, tiny[8] = {1, 0x8001, 0x0080, 0, 3}, out[8];
        CHECK(through(dtypes[f], zero, 8, out) == 0);
        for (int d = 0; d < 8; d++) CHECK(value(out[d]) == 0);
        through(dtypes[f], tiny, 8, out);
        CHECK(fabs(value(out[2]) / value(tiny[2]) - 1) < 0.01);
        for (int bad = 0; bad < 2; bad++) {
            tv_bf16 x[8] = {0x3f80, 0x3f80, bad ? 0x7f80 : 0x7fff, 0x3f80};
            CHECK(isnan(through(dtypes[f], x, 8, out)));
            CHECK(isnan(value(out[0])) && isnan(value(out[2]))); /* seen, not lost in a maximum */
        }
    }
}

enum { SLOTS = 5, H = 4, G = 2, S = 130, HS = 40 };
static const tv_segment lengths[SLOTS] = {{0, 0, 1, 0}, {1, 1, 15, 0}, {2, 16, 16, 0}, {3, 32, 17, 0}, {4, 49, 129, 0}};
enum { M = 1 + 15 + 16 + 17 + 129 };

static tv_bf16 *normals(tv_rng *rng, size_t n) {
    tv_bf16 *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = tv_bf16_from_f32((float)tv_rng_normal(rng));
    return p;
}

/* Every backend over a cache of bytes gives the bits that it gives over the bf16 cache of what the bytes mean, whole
 * prompts and decode rows alike; and what no step wrote is not read: NaN codes, NaN scales (K02: lengths 1, 15, 16, 17,
 * 129). */
static void test_attention(void) {
    tv_err err = {0};
    tv_rng rng = {5};
    tv_dev *dev = NULL;
    if (!CHECK_OK(tv_ops_cpu.open(&(tv_dev_options){.threads = 2, .isa = "auto"}, &dev, &err), &err)) return;
    const size_t rows = SLOTS * G * S, elements = rows * HS;
    tv_bf16 *x[2] = {normals(&rng, elements), normals(&rng, elements)}, *q = normals(&rng, M * H * HS);
    tv_bf16 *meant[2] = {malloc(elements * 2), malloc(elements * 2)};
    uint8_t *bytes[2] = {malloc(elements), malloc(elements)};
    float *scales[2] = {malloc(rows * sizeof(float)), malloc(rows * sizeof(float))};
    tv_bf16 *out[3];
    for (int i = 0; i < 3; i++) out[i] = malloc(M * H * HS * sizeof **out);
    for (int f = 0; f < 2; f++) {
        tv_kv_layer kv = {.k = (tv_bf16 *)(void *)bytes[0], .v = (tv_bf16 *)(void *)bytes[1]};
        kv.slots = SLOTS, kv.G = G, kv.S = S, kv.HS = HS, kv.dtype = dtypes[f];
        kv.k_scale = scales[0], kv.v_scale = scales[1];
        tv_kv_layer plain = {.k = meant[0], .v = meant[1], .slots = SLOTS, .G = G, .S = S, .HS = HS};
        for (int w = 0; w < 2; w++) {
            memset(bytes[w], 0x7f, elements);
            for (size_t i = 0; i < rows; i++) scales[w][i] = NAN;
            for (size_t i = 0; i < elements; i++) meant[w][i] = 0x7fff;
            for (int s = 0; s < SLOTS; s++)
                for (int g = 0; g < G; g++) {
                    size_t at = ((size_t)s * G + (size_t)g) * S * HS;
                    for (int pos = 0; pos < lengths[s].n_rows; pos++)
                        cpu_kv_quantize(&kv, bytes[w], scales[w], s, g, pos, x[w] + at + (size_t)pos * HS);
                    cpu_kv_dequantize(&kv, bytes[w], scales[w], s, g, lengths[s].n_rows, meant[w] + at);
                }
        }
        int n = 0;
        const tv_attn_backend *const *backends = tv_attn_backends(&n);
        for (int b = 0; b < n; b++) {
            if (strcmp(backends[b]->device, "cpu")) continue;
            tv_attn_args a = {.q = q, .kv = plain, .out = out[0], .segments = lengths, .n_segments = SLOTS, .M = M};
            a.H = H, a.scale = 0.2f, a.plan = (tv_attn_plan){16, 48};
            CHECK_OK(backends[b]->run(dev, &a, &err), &err);
            a.kv = kv, a.out = out[1];
            CHECK_OK(backends[b]->run(dev, &a, &err), &err);
            CHECK_BYTES(out[1], out[0], M * H * HS * sizeof **out);
            for (int s = 0; s < SLOTS; s++)
                for (int pos = 0; pos < lengths[s].n_rows; pos++) {
                    size_t at = (size_t)(lengths[s].row + pos) * H * HS;
                    tv_segment one = {s, 0, 1, pos};
                    a.segments = &one, a.n_segments = 1, a.M = 1, a.q = q + at, a.out = out[2] + at;
                    CHECK_OK(backends[b]->run(dev, &a, &err), &err);
                }
            CHECK_BYTES(out[2], out[0], M * H * HS * sizeof **out);
        }
    }
    for (int i = 0; i < 3; i++) free(out[i]);
    for (int w = 0; w < 2; w++) free(x[w]), free(meant[w]), free(bytes[w]), free(scales[w]);
    free(q);
    tv_ops_cpu.close(dev);
}

/* Appending quantizes the rows that a bf16 cache would hold, and writes no other. */
static void test_append(void) {
    enum { P = 6, ROWS = 9 };
    static const tv_segment segments[] = {{1, 0, 5, 1}, {0, 5, 1, 5}, {2, 6, 3, 0}};
    tv_err err = {0};
    tv_rng rng = {6};
    tv_dev *dev = NULL;
    if (!CHECK_OK(tv_ops_cpu.open(&(tv_dev_options){.threads = 2, .isa = "auto"}, &dev, &err), &err)) return;
    enum { CELLS = 3 * G * P };
    tv_bf16 *qkv = normals(&rng, ROWS * (H + 2 * G) * HS), *table = normals(&rng, P * HS), *weight = normals(&rng, HS);
    tv_bf16 q[2][ROWS * H * HS], k[CELLS * HS], v[CELLS * HS];
    tv_rope_args a = {.qkv = qkv, .q_weight = weight, .k_weight = weight, .cos = table, .sin = table + P * HS / 2};
    a.segments = segments, a.n_segments = 3, a.M = ROWS, a.H = H, a.positions = P, a.eps = 1e-6f, a.q = q[0];
    a.kv = (tv_kv_layer){.k = k, .v = v, .slots = 3, .G = G, .S = P, .HS = HS};
    CHECK_OK(tv_ops_cpu.rope(dev, &a, &err), &err);
    for (int f = 0; f < 2; f++) {
        uint8_t bytes[2][CELLS * HS], want[2][CELLS * HS];
        float scales[2][CELLS], want_scales[2][CELLS];
        memset(bytes, 0xca, sizeof bytes), memset(want, 0xca, sizeof want);
        memset(scales, 0xca, sizeof scales), memset(want_scales, 0xca, sizeof want_scales);
        tv_kv_layer plain = a.kv;
        tv_rope_args b = a;
        b.kv.dtype = dtypes[f], b.q = q[1];
        b.kv.k = (tv_bf16 *)(void *)bytes[0], b.kv.v = (tv_bf16 *)(void *)bytes[1];
        CHECK_FAILS(tv_ops_cpu.rope(dev, &b, &err), TV_EARG, &err, "k_scale");
        b.kv.k_scale = scales[0], b.kv.v_scale = scales[1];
        CHECK_OK(tv_ops_cpu.rope(dev, &b, &err), &err);
        for (int s = 0; s < 3; s++)
            for (int pos = segments[s].pos; pos < segments[s].pos + segments[s].n_rows; pos++)
                for (int g = 0; g < G; g++) {
                    size_t at = (((size_t)segments[s].slot * G + (size_t)g) * P + (size_t)pos) * HS;
                    cpu_kv_quantize(&b.kv, want[0], want_scales[0], segments[s].slot, g, pos, plain.k + at);
                    cpu_kv_quantize(&b.kv, want[1], want_scales[1], segments[s].slot, g, pos, plain.v + at);
                }
        CHECK_BYTES(q[1], q[0], sizeof q[0]);
        CHECK_BYTES(bytes, want, sizeof want);
        CHECK_BYTES(scales, want_scales, sizeof want_scales);
        b.kv.dtype = TV_F16;
        CHECK_FAILS(tv_ops_cpu.rope(dev, &b, &err), TV_EARG, &err, "kv.dtype");
    }
    free(qkv), free(table), free(weight);
    tv_ops_cpu.close(dev);
}

static int never_asked(const tv_attn_limits *limits, const char **why) {
    (void)limits, (void)why;
    return 1;
}

/* A backend that does not say that it reads bytes is not handed any. */
static void test_refused(void) {
    const tv_attn_backend b = {.name = "flash", .device = "other", .supports = never_asked};
    tv_attn_limits limits = {.device = "other", .H = 2, .G = 1, .HS = 8, .max_batch = 1, .max_keys = 8};
    const char *why = NULL;
    CHECK(tv_attn_supports(&b, &limits, &why));
    limits.kv_dtype = TV_I8;
    CHECK(!tv_attn_supports(&b, &limits, &why));
    CHECK(why && strstr(why, "bf16 cache only"));
}

/* Half the bytes, and a scale for each position and head of k and of v. */
static void test_bytes(void) {
    tv_config c = {.n_layers = 3, .n_kv_heads = 2, .head_size = 32};
    CHECK(tv_kv_bytes(&c, TV_BF16, 4, 64) == 3 * 2 * 4 * 64 * 2 * 32 * 2);
    CHECK(tv_kv_bytes(&c, TV_I8, 4, 64) == 3 * 2 * 4 * 64 * 2 * (32 + 4));
    CHECK(tv_kv_bytes(&c, TV_F8_E4M3, 4, 60) == tv_kv_bytes(&c, TV_I8, 4, 64));
    CHECK(tv_kv_bytes(&c, TV_I8, INT64_MAX / 2, 4096) == UINT64_MAX);
}

static float *logits_of(tv_engine *e, const tv_serving *serving, const int32_t *ids, int B, int T, int decode) {
    tv_err err = {0};
    tv_session *s = NULL;
    float *logits = calloc((size_t)B * (size_t)T * (size_t)e->model->config.vocab_size, sizeof *logits);
    if (CHECK_OK(tv_session_open(e, serving, B, T, &s, &err), &err)) {
        CHECK_OK(tv_kv_fill(e, &s->kv, 0x7fff, &err), &err); /* NaN in every precision */
        CHECK_OK(tv_session_logits(s, ids, B, T, decode, logits, NULL, &err), &err);
    }
    tv_session_close(s);
    return logits;
}

/* Largest and mean total variation distance between rows of logits. */
static void distances(const float *a, const float *b, int n, int V, double *largest, double *mean) {
    *largest = *mean = 0;
    for (int i = 0; i < n; i++, a += V, b += V) {
        double sum[2] = {0, 0}, d = 0;
        for (int v = 0; v < V; v++) sum[0] += exp(a[v]), sum[1] += exp(b[v]);
        for (int v = 0; v < V; v++) d += fabs(exp(a[v]) / sum[0] - exp(b[v]) / sum[1]) / 2;
        *largest = d <= *largest ? *largest : d; /* a NaN stays */
        *mean += d / n;
    }
}

/* K08: the same tokens in one prefill, in chunks of 1, 7 and 16 and by decode have the same bits under the fixed plan,
 * for every model, backend and precision: no path attends to keys that another reads rounded. The precisions move the
 * distribution, fp8 more than int8, and not far. */
static void test_paths_are_equal(void) {
    enum { B = 2, T = 40 };
    static const char *const models[] = {NULL, "models/qwen3-moe-mixed", "models/qwen2-dense"};
    static const char *const names[] = {"flash", "math", "eager"};
    for (int m = 0; m < 3; m++) {
        tv_err err = {0};
        tv_engine *e = NULL;
        tv_engine_options options = {
            .model = m ? tv_golden(models[m]) : tv_bundled_model(), .device = "cpu", .threads = 2};
        if (!CHECK_OK(tv_engine_open(&options, &e, &err), &err)) return;
        int V = e->model->config.vocab_size;
        int32_t ids[B * T];
        for (int i = 0; i < B * T; i++) ids[i] = (i * 131 + 7) % V;
        double mean[3] = {0};
        for (int dtype = TV_KV_FP8; dtype <= TV_KV_INT8; dtype++) {
            tv_serving serving = tv_serving_default();
            serving.reduction_fixed = 1, serving.store_k = serving.top_k = 8;
            snprintf(serving.backend, sizeof serving.backend, "%s", names[(m + dtype) % 3]);
            float *plain = logits_of(e, &serving, ids, B, T, 0);
            serving.kv_dtype = (tv_kv_dtype)dtype;
            float *whole = logits_of(e, &serving, ids, B, T, 0);
            for (int way = 0; way < 4; way++) {
                serving.prefill_chunk = way == 0 ? 1 : way == 1 ? 7 : way == 2 ? 16 : 0;
                float *parts = logits_of(e, &serving, ids, B, T, way == 3);
                CHECK_BYTES(parts, whole, (size_t)B * T * (size_t)V * sizeof *whole);
                free(parts);
            }
            double largest;
            distances(plain, whole, B * T, V, &largest, &mean[dtype]);
            printf("     %-24s %s: TV from a bf16 cache %.4f on average, %.4f at most\n", m ? models[m] : "bundled",
                   dtype == TV_KV_FP8 ? "fp8 " : "int8", mean[dtype], largest);
            CHECK(mean[dtype] > 0 && mean[dtype] < 0.1);
            free(plain), free(whole);
        }
        CHECK(mean[TV_KV_FP8] > mean[TV_KV_INT8]);
        tv_engine_close(e);
    }
}

/* K07: biased keys whose one channel lies at 600, beyond E4M3's largest value: finite logits, from the prompt on, and
 * fp8 moves them no more than it does elsewhere. (int8's steps are as wide for the small channels as for that one.) */
static void test_biased_keys(void) {
    enum { T = 40, V = 128 };
    tiny_options o = tiny_options_default(TV_QWEN2);
    tiny_checkpoint *c = tiny_new(&o);
    for (int l = 0; l < o.n_layers; l++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.k_proj.bias", l);
        tiny_set(tiny_find(c, name), 3, 600);
    }
    tiny_write(c, tv_test_dir());
    tiny_free(c);
    tv_err err = {0};
    tv_engine *e = NULL;
    tv_engine_options options = {.model = tv_test_dir(), .device = "cpu", .threads = 1};
    if (!CHECK_OK(tv_engine_open(&options, &e, &err), &err)) return;
    int32_t ids[T];
    for (int i = 0; i < T; i++) ids[i] = (i * 37 + 5) % V;
    tv_serving serving = tv_serving_default();
    serving.reduction_fixed = 1;
    float *plain = logits_of(e, &serving, ids, 1, T, 0);
    for (int dtype = TV_KV_FP8; dtype <= TV_KV_INT8; dtype++) {
        serving.kv_dtype = (tv_kv_dtype)dtype;
        float *got = logits_of(e, &serving, ids, 1, T, 0); /* refuses what is not finite */
        double largest, mean;
        distances(plain, got, T, V, &largest, &mean);
        printf("     %s: TV %.4f on average, %.4f at most\n", dtype == TV_KV_FP8 ? "fp8" : "int8", mean, largest);
        CHECK(mean > 0 && largest < 1);
        if (dtype == TV_KV_FP8) CHECK(mean < 0.15);
        free(got);
    }
    free(plain);
    tv_engine_close(e);
}

static const tv_test tests[] = {
    {"e4m3", test_e4m3},
    {"rows", test_rows},
    {"attention", test_attention},
    {"append", test_append},
    {"refused", test_refused},
    {"bytes", test_bytes},
    {"paths_are_equal", test_paths_are_equal},
    {"biased_keys", test_biased_keys},
};
TV_TEST_MAIN(tests)
