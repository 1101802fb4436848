/* The matrix product of the CPU device: right against f64, and the same bits for a row whatever runs beside it. */
#include "tests/check.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/cpu/linear.h"

#ifdef TV_SIMDE
extern const cpu_isa cpu_isa_avx512_emulated, cpu_isa_avx512bf16_emulated;
#endif
/* The AMX kernels, on tiles in software. */
#include "tests/tiles.h"

#include "kernels/cpu/linear_amx.c"

enum { MOST_ISAS = 10 };
static const char *const numerics[] = {"fma", "bf16", "tiles"};
enum { N_NUMERICS = sizeof numerics / sizeof *numerics };

static tv_dev *open_dev(const char *isa, int threads) {
    tv_err err = {0};
    tv_dev *dev = NULL;
    tv_dev_options options = {.threads = threads, .isa = isa};
    CHECK_OK(cpu_dev_open(&options, &dev, &err), &err);
    return dev;
}

/* Every set of kernels of these numerics that this machine can run, the portable one first. Returns the count. */
static int isas_of(const char *of, const cpu_isa **isas) {
    const cpu_isa *all[MOST_ISAS];
    int n_all = 0, n = 0;
    all[n_all++] = &cpu_isa_scalar;
    all[n_all++] = &cpu_isa_scalar_bf16;
    all[n_all++] = &cpu_isa_scalar_tiles;
    all[n_all++] = &cpu_isa_amx_emulated;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        all[n_all++] = &cpu_isa_avx2;
#ifdef TV_SIMDE
        all[n_all++] = &cpu_isa_avx512_emulated;
        all[n_all++] = &cpu_isa_avx512bf16_emulated;
#endif
    }
    static const char *const by_name[] = {"avx512", "avx512bf16", "amx"};
    for (int i = 0; i < 3; i++) {
        tv_err err = {0};
        tv_dev *dev;
        if (cpu_dev_open(&(tv_dev_options){.threads = 1, .isa = by_name[i]}, &dev, &err) != TV_OK) continue;
        all[n_all++] = dev->isa;
        cpu_dev_close(dev);
    }
#elif defined(__aarch64__)
    all[n_all++] = &cpu_isa_neon;
#endif
    for (int i = 0; i < n_all; i++)
        if (!strcmp(all[i]->numerics, of)) isas[n++] = all[i];
    CHECK(n > 0 && isas[0] == isas[0]->reference);
    return n;
}

static tv_bf16 *random_bf16(tv_rng *rng, size_t n, double scale) {
    tv_bf16 *p = tv_xmalloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = tv_bf16_from_f32((float)(tv_rng_normal(rng) * scale));
    return p;
}

/* A product with its operands kept: W [N,K] and bias [N] as loaded, x [M,K]. */
typedef struct {
    int M, N, K;
    tv_bf16 *x, *w, *bias;
    tv_matrix matrix;
} product;

static product make(tv_dev *dev, uint64_t seed, int M, int N, int K, int with_bias) {
    tv_rng rng = {seed};
    product p = {.M = M, .N = N, .K = K};
    tv_err err = {0};
    p.x = random_bf16(&rng, (size_t)M * K, 1);
    p.w = random_bf16(&rng, (size_t)N * K, 0.05);
    p.bias = random_bf16(&rng, (size_t)N, 0.5);
    CHECK_OK(cpu_matrix_load(dev, 1, (const void *[]){p.w}, &N, with_bias ? (const void *[]){p.bias} : NULL, K,
                             &p.matrix, &err),
             &err);
    return p;
}

static void drop(tv_dev *dev, product *p) {
    cpu_matrix_free(dev, &p->matrix);
    free(p->x);
    free(p->w);
    free(p->bias);
}

static void linear(tv_dev *dev, const product *p, int row, int M, tv_linear_plan plan, int f32, void *y) {
    tv_err err = {0};
    tv_linear_args a = {.x = p->x + (size_t)row * p->K, .w = &p->matrix, .y = y, .M = M, .y_f32 = f32, .plan = plan};
    CHECK_OK(cpu_linear(dev, &a, &err), &err);
}

static float flushed(float v) { return fabsf(v) < FLT_MIN ? copysignf(0, v) : v; }
static float link_of(const product *p, int m, int n, int k, float chain) {
    int past = k >= p->K; /* the padding of an odd K: its +0 turns a -0 */
    float x = past ? 0 : tv_f32_from_bf16(p->x[(size_t)m * p->K + k]);
    float w = past ? 0 : tv_f32_from_bf16(p->w[(size_t)n * p->K + k]);
    return flushed(fmaf(flushed(x), flushed(w), chain));
}

/* The sum of products k = begin .. end-1, as linear.h describes each numerics. */
static float slice_by_contract(const char *of, const product *p, int m, int n, int begin, int end) {
    float sum = 0;
    if (!strcmp(of, "fma"))
        for (int k = begin; k < end; k++)
            sum = fmaf(tv_f32_from_bf16(p->x[(size_t)m * p->K + k]), tv_f32_from_bf16(p->w[(size_t)n * p->K + k]), sum);
    else if (!strcmp(of, "bf16"))
        for (int k = begin; k < end; k += 2) sum = link_of(p, m, n, k, link_of(p, m, n, k + 1, sum));
    else
        for (int tile = begin; tile < end; tile += 32) {
            float even = 0, odd = 0;
            for (int k = tile; k < tile + 32 && k < end; k += 2) {
                even = link_of(p, m, n, k, even);
                odd = link_of(p, m, n, k + 1, odd);
            }
            sum = flushed(sum + flushed(even + odd));
        }
    return sum;
}

/* The contract in plain code: a sum per slice, slices added in order, bias, one rounding. */
static float by_contract(const char *of, const product *p, int m, int n, tv_linear_plan plan) {
    float sum = 0;
    for (int s = 0; s < plan.slices; s++) {
        float part = slice_by_contract(of, p, m, n, s * plan.slice, s + 1 < plan.slices ? (s + 1) * plan.slice : p->K);
        sum = s ? sum + part : part;
    }
    return p->matrix.bias ? sum + tv_f32_from_bf16(p->bias[n]) : sum;
}

/* The sums are the documented ones of each numerics bit for bit: ragged N, odd K, slices, bias, all heights of blocks,
 * several chunks of rows, on every set of kernels. */
static void test_contract(void) {
    static const struct {
        int N, K, slices, slice, bias;
    } cases[] = {{1, 1, 1, 1, 0},        {16, 32, 1, 32, 1},  {17, 33, 1, 33, 0}, {37, 71, 3, 32, 1},
                 {64, 127, 2, 64, 1},    {100, 96, 3, 32, 0}, {48, 65, 2, 64, 1}, {70, 1153, 1, 1153, 1},
                 {33, 2306, 2, 1216, 0}, {81, 4, 1, 4, 1}};
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 17, 31, 97, 101};
    enum { MOST = 101, N_CASES = sizeof cases / sizeof *cases };
    tv_dev *dev = open_dev("scalar", 1);
    for (int job = 0; job < N_CASES * N_NUMERICS; job++) {
        const int c = job / N_NUMERICS;
        const char *of = numerics[job % N_NUMERICS];
        const cpu_isa *isas[MOST_ISAS];
        int n_isas = isas_of(of, isas);
        int N = cases[c].N;
        tv_linear_plan plan = {cases[c].slices, cases[c].slice};
        product p = make(dev, (uint64_t)c + 1, MOST, N, cases[c].K, cases[c].bias);
        for (int k = 0; k < cases[c].K; k++) p.x[3 * cases[c].K + k] &= 0x80ff; /* row 3: around and below 2^-126 */
        float *want = tv_xmalloc(sizeof(float) * MOST * N), *got = tv_xmalloc(sizeof(float) * (MOST * N + 16));
        for (int m = 0; m < MOST; m++)
            for (int n = 0; n < N; n++) want[m * N + n] = by_contract(of, &p, m, n, plan);
        for (int i = 0; i < n_isas; i++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                if (cases[c].K > 1000 && rows[r] > 13 && rows[r] != 97) continue;
                int M = rows[r];
                memset(got, 0xca, sizeof(float) * (MOST * N + 16));
                dev->isa = isas[i];
                linear(dev, &p, 0, M, plan, 1, got);
                if (!CHECK_BYTES(got, want, sizeof(float) * M * N))
                    printf("  isa %s M=%d N=%d K=%d slices=%d\n", isas[i]->name, M, N, cases[c].K, plan.slices);
                static const unsigned char guard[64] = {[0 ... 63] = 0xca};
                CHECK_BYTES(got + M * N, guard, sizeof guard); /* nothing is written past the last row */
                tv_bf16 *half = (tv_bf16 *)got;
                memset(got, 0xca, sizeof(float) * (MOST * N + 16));
                linear(dev, &p, 0, M, plan, 0, half);
                int same = 1;
                for (int j = 0; j < M * N; j++) same &= half[j] == tv_bf16_from_f32(want[j]);
                CHECK(same);
                CHECK_BYTES(half + M * N, guard, sizeof guard);
            }
        dev->isa = &cpu_isa_scalar;
        free(want);
        free(got);
        drop(dev, &p);
    }
    cpu_dev_close(dev);
}

/* N05: a row alone = the row in batches of 2, 17 and 64 at every position, with 1 and 2 threads, on every set of
 * kernels: what --reduction fixed promises. Also across the limit of rows packed at a time. */
static void test_batch_invariance(void) {
    static const int batches[] = {1, 2, 17, 64};
    enum { MOST = 64, N = 203, K = 261, MOST_THREADS = 3 };
    tv_dev *dev = open_dev("scalar", MOST_THREADS); /* threads: below, and by the work at hand */
    product p = make(dev, 7, MOST, N, K, 1);
    tv_linear_plan plans[] = {{1, K}, {4, 96}};
    plans[1].slices = (K + 95) / 96;
    float *want = tv_xmalloc(sizeof(float) * MOST * N), *got = tv_xmalloc(sizeof(float) * MOST * N);
    for (int job = 0; job < 2 * N_NUMERICS; job++) {
        const int s = job % 2;
        const cpu_isa *isas[MOST_ISAS];
        int n_isas = isas_of(numerics[job / 2], isas);
        dev->isa = isas[0];
        dev->threads = 1;
        for (int m = 0; m < MOST; m++) linear(dev, &p, m, 1, plans[s], 1, want + m * N);
        for (int i = 0; i < n_isas; i++)
            for (int threads = 1; threads <= MOST_THREADS; threads++)
                for (int b = 0; b < 4; b++)
                    for (int row = 0; row + batches[b] <= MOST; row += batches[b] < 17 ? batches[b] : 11) {
                        dev->isa = isas[i];
                        dev->threads = threads;
                        linear(dev, &p, row, batches[b], plans[s], 1, got);
                        if (!CHECK_BYTES(got, want + row * N, sizeof(float) * N * batches[b]))
                            printf("  isa %s threads %d batch %d row %d\n", isas[i]->name, threads, batches[b], row);
                    }
    }
    free(want);
    free(got);
    drop(dev, &p);

    enum { LONG = 2 * CPU_PACK_ROWS + 3, SMALL_N = 33, SMALL_K = 32 };
    p = make(dev, 8, LONG, SMALL_N, SMALL_K, 0);
    want = tv_xmalloc(sizeof(float) * LONG * SMALL_N), got = tv_xmalloc(sizeof(float) * LONG * SMALL_N);
    for (int which = 0; which < N_NUMERICS; which++) {
        const cpu_isa *isas[MOST_ISAS];
        int n_isas = isas_of(numerics[which], isas);
        dev->isa = isas[0];
        for (int m = 0; m < LONG; m++) linear(dev, &p, m, 1, (tv_linear_plan){1, SMALL_K}, 1, want + m * SMALL_N);
        for (int i = 0; i < n_isas; i++) {
            dev->isa = isas[i];
            linear(dev, &p, 0, LONG, (tv_linear_plan){1, SMALL_K}, 1, got);
            CHECK_BYTES(got, want, sizeof(float) * LONG * SMALL_N);
        }
    }
    free(want);
    free(got);
    drop(dev, &p);
    dev->isa = &cpu_isa_scalar;
    cpu_dev_close(dev);
}

/* Against f64: the error of a chain of K fused additions is at most about K u sum|x w|, u = 2^-24; of s slices less. */
static void test_against_f64(void) {
    static const struct {
        int M, N, K, slices, slice;
    } cases[] = {{3, 40, 512, 1, 512}, {33, 65, 300, 5, 64}, {8, 128, 2049, 1, 2049}, {12, 31, 1024, 32, 32}};
    tv_dev *dev = open_dev("auto", 2);
    const cpu_isa *isas[] = {dev->isa, &cpu_isa_scalar_bf16, &cpu_isa_scalar_tiles};
    enum { N_CASES = sizeof cases / sizeof *cases };
    for (int job = 0; job < N_CASES * 3; job++) {
        const int c = job / 3;
        int M = cases[c].M, N = cases[c].N, K = cases[c].K;
        dev->isa = isas[job % 3];
        product p = make(dev, 100 + (uint64_t)c, M, N, K, 1);
        float *y = tv_xmalloc(sizeof(float) * M * N);
        linear(dev, &p, 0, M, (tv_linear_plan){cases[c].slices, cases[c].slice}, 1, y);
        double worst = 0;
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++) {
                double bias = tv_f32_from_bf16(p.bias[n]), sum = bias, absolute = fabs(bias);
                for (int k = 0; k < K; k++) {
                    double v = (double)tv_f32_from_bf16(p.x[m * K + k]) * tv_f32_from_bf16(p.w[n * K + k]);
                    sum += v, absolute += fabs(v);
                }
                double error = fabs(y[m * N + n] - sum) / ((K + 1) * 0x1p-24 * absolute);
                if (!(error <= worst)) worst = error;
            }
        CHECK(worst <= 1);
        free(y);
        drop(dev, &p);
    }
    cpu_dev_close(dev);
}

/* Outputs: f32 rounded to bf16 values = bf16 output widened; a NaN stays one; infinities and -0 pass. */
static void test_outputs(void) {
    tv_dev *dev = open_dev("auto", 1);
    enum { M = 5, N = 24, K = 40 };
    product p = make(dev, 3, M, N, K, 0);
    p.x[2 * K + 7] = 0x7fc0;                             /* row 2: NaN */
    p.x[3 * K + 1] = 0x7f80;                             /* row 3: infinity times weights of both signs */
    for (int k = 0; k < K; k++) p.x[4 * K + k] = 0x8000; /* row 4: -0 */
    float rounded[M * N];
    tv_bf16 half[M * N];
    tv_err err = {0};
    tv_linear_args a = {.x = p.x, .w = &p.matrix, .y = rounded, .M = M, .y_f32 = 1, .round_bf16 = 1, .plan = {1, K}};
    CHECK_OK(cpu_linear(dev, &a, &err), &err);
    linear(dev, &p, 0, M, a.plan, 0, half);
    for (int i = 0; i < M * N; i++) {
        float wide = tv_f32_from_bf16(half[i]);
        if (i / N == 2)
            CHECK(isnan(wide) && isnan(rounded[i]));
        else
            CHECK_BYTES(&wide, &rounded[i], 4);
        if (i / N == 3) CHECK(isinf(wide));
        if (i / N == 4) CHECK(wide == 0);
    }
    drop(dev, &p);
    cpu_dev_close(dev);
}

/* Parts stacked under one another, unaligned sources, a part's bias missing: q, k and v of one fused projection. */
static void test_parts(void) {
    tv_dev *dev = open_dev("auto", 1);
    enum { K = 35, N = 13 + 4 + 30 };
    const int part_N[] = {13, 4, 30};
    tv_rng rng = {5};
    tv_bf16 *w = random_bf16(&rng, N * K, 1), *x = random_bf16(&rng, K, 1), *bias = random_bf16(&rng, N, 1);
    unsigned char *copies[3], *bias_copies[3];
    const void *parts[3], *biases[3];
    for (int i = 0, n = 0; i < 3; n += part_N[i++]) {
        copies[i] = tv_xmalloc(2 * part_N[i] * K + 1);
        parts[i] = memcpy(copies[i] + 1, w + n * K, 2 * part_N[i] * K);
        bias_copies[i] = tv_xmalloc(2 * part_N[i] + 1);
        biases[i] = memcpy(bias_copies[i] + 1, bias + n, 2 * part_N[i]);
    }
    biases[1] = NULL;
    memset(bias + 13, 0, 2 * 4);
    tv_err err = {0};
    tv_matrix split, whole;
    float got[N], want[N];
    CHECK_OK(cpu_matrix_load(dev, 3, parts, part_N, biases, K, &split, &err), &err);
    CHECK_OK(cpu_matrix_load(dev, 1, (const void *[]){w}, (int[]){N}, (const void *[]){bias}, K, &whole, &err), &err);
    CHECK_INT(split.N, N);
    tv_linear_args a = {.x = x, .w = &split, .y = got, .M = 1, .y_f32 = 1, .plan = {1, K}};
    CHECK_OK(cpu_linear(dev, &a, &err), &err);
    a.w = &whole, a.y = want;
    CHECK_OK(cpu_linear(dev, &a, &err), &err);
    CHECK_BYTES(got, want, sizeof want);
    cpu_matrix_free(dev, &split);
    cpu_matrix_free(dev, &whole);
    CHECK_INT(dev->allocated, 0);
    for (int i = 0; i < 3; i++) free(copies[i]), free(bias_copies[i]);
    free(w);
    free(x);
    free(bias);
    cpu_dev_close(dev);
}

/* Bad arguments are refused by name and value before anything is read. */
static void test_refuses(void) {
    tv_dev *dev = open_dev("scalar", 1);
    enum { M = 2, N = 16, K = 64 };
    product p = make(dev, 1, M, N, K, 0);
    float y[M * N];
    tv_err err = {0};
    const tv_linear_args good = {.x = p.x, .w = &p.matrix, .y = y, .M = M, .y_f32 = 1, .plan = {1, K}};
    tv_linear_args a = good;
    CHECK_FAILS(cpu_linear(dev, NULL, &err), TV_EARG, &err, "linear: the argument struct is NULL");
    a.M = 0;
    CHECK_FAILS(cpu_linear(dev, &a, &err), TV_EARG, &err, "linear: M=0 must be in");
    a = good, a.x = NULL;
    CHECK_FAILS(cpu_linear(dev, &a, &err), TV_EARG, &err, "linear: x is NULL");
    a = good, a.y_f32 = 0, a.round_bf16 = 1;
    CHECK_FAILS(cpu_linear(dev, &a, &err), TV_EARG, &err, "round_bf16=1");
    static const tv_linear_plan plans[] = {{0, 64}, {1, 32}, {2, 33}, {3, 32}, {-1, 64}, {2, 16}, {1, 0}};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        a = good, a.plan = plans[i];
        CHECK_FAILS(cpu_linear(dev, &a, &err), TV_EARG, &err, "does not cover K=64");
    }
    tv_matrix none = p.matrix;
    none.data = NULL;
    a = good, a.w = &none;
    CHECK_FAILS(cpu_linear(dev, &a, &err), TV_EARG, &err, "w->data is NULL");

    tv_matrix m;
    int zero = 0, n = N;
    const void *w = p.w;
    CHECK_FAILS(cpu_matrix_load(dev, 0, &w, &n, NULL, K, &m, &err), TV_EARG, &err, "n_parts=0");
    CHECK_FAILS(cpu_matrix_load(dev, 1, &w, &zero, NULL, K, &m, &err), TV_EARG, &err, "part 0 has 0 rows");
    CHECK_FAILS(cpu_matrix_load(dev, 1, &w, &n, NULL, 0, &m, &err), TV_EARG, &err, "K=0");
    drop(dev, &p);
    cpu_dev_close(dev);
}

/* Opening: names and thread counts; the self-check lets every set of kernels pass and stops one that rounds
 * differently. */
static void wrong_finish(const float *tile, int rows, int columns, const tv_bf16 *bias, void *y, size_t ldy,
                         cpu_out out) {
    float nudged[CPU_CHUNK_ROWS * CPU_PANEL];
    memcpy(nudged, tile, sizeof(float) * rows * CPU_PANEL);
    nudged[0] = nextafterf(nudged[0], INFINITY);
    cpu_finish_scalar(nudged, rows, columns, bias, y, ldy, out);
}
static void test_open(void) {
    tv_err err = {0};
    tv_dev *dev = NULL;
    CHECK_FAILS(cpu_dev_open(&(tv_dev_options){.threads = -1}, &dev, &err), TV_EARG, &err, "threads=-1");
    CHECK_FAILS(cpu_dev_open(&(tv_dev_options){.isa = "mmx"}, &dev, &err), TV_EUNSUPPORTED, &err,
                "isa mmx: unknown to this build; there are auto, scalar");
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx512f"))
        CHECK_FAILS(cpu_dev_open(&(tv_dev_options){.isa = "avx512"}, &dev, &err), TV_EUNSUPPORTED, &err,
                    "isa avx512: this processor does not have it; there are auto, scalar");
#endif
    dev = open_dev("scalar", 2);
    CHECK_STR(cpu_describe(dev), "cpu, 2 threads, scalar");
    CHECK(cpu_memory_total(dev) > 0);
    cpu_dev_close(dev);
    dev = open_dev("scalar-tiles", 1); /* numerics other than the usual are named wherever the device is */
    CHECK_STR(cpu_describe(dev), "cpu, 1 thread, scalar-tiles (tiles numerics)");
    CHECK_STR(cpu_numerics(dev), "tiles");
    cpu_dev_close(dev);
    dev = open_dev("auto", 1);
    CHECK_STR(cpu_numerics(dev), "fma"); /* auto: the same bits on every machine */
    cpu_dev_close(dev);
    for (int which = 0; which < N_NUMERICS; which++) {
        const cpu_isa *isas[MOST_ISAS];
        for (int i = isas_of(numerics[which], isas) - 1; i >= 0; i--) CHECK_OK(cpu_isa_check(isas[i], &err), &err);
    }
    cpu_isa wrong = cpu_isa_scalar;
    wrong.name = "wrong";
    wrong.finish = wrong_finish;
    CHECK_FAILS(cpu_isa_check(&wrong, &err), TV_EUNSUPPORTED, &err, "isa wrong: its matrix product differs");
}

/* Memory: zeroed and aligned, small and large, accounted for, refused beyond what there is. */
static void test_memory(void) {
    tv_err err = {0};
    tv_dev *dev = open_dev("scalar", 1);
    static const size_t sizes[] = {1, 100, (2 << 20) - 1, 2 << 20, (5 << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *p;
        if (!CHECK_OK(cpu_alloc(dev, sizes[i], &p, &err), &err)) continue;
        CHECK_INT((uintptr_t)p % 64, 0);
        int zero = 1;
        for (size_t j = 0; j < sizes[i]; j++) zero &= ((unsigned char *)p)[j] == 0;
        CHECK(zero);
        memset(p, 1, sizes[i]);
        CHECK_INT(dev->allocated, sizes[i]);
        cpu_free(dev, p, sizes[i]);
    }
    CHECK_INT(dev->allocated, 0);
    void *p;
    CHECK_FAILS(cpu_alloc(dev, cpu_memory_total(dev) + 1, &p, &err), TV_ENOMEM, &err, "MiB asked for, with 0.0 of");
    CHECK_FAILS(cpu_alloc(dev, SIZE_MAX, &p, &err), TV_ENOMEM, &err, "MiB asked for");
    int in[3] = {1, 2, 3}, out[3] = {0};
    CHECK_OK(cpu_upload(dev, out, in, sizeof in, &err), &err);
    CHECK_BYTES(out, in, sizeof in);
    CHECK_FAILS(cpu_download(dev, NULL, in, sizeof in, &err), TV_EARG, &err, "dst is NULL");
    CHECK_OK(cpu_sync(dev, &err), &err);
    cpu_dev_close(dev);
}

/* The AVX-512 and AVX512-BF16 sources run on this machine, natively or through SIMDe. */
static void test_avx512_executed(void) {
    int found = 0;
    for (int which = 0; which < 2; which++) {
        const cpu_isa *isas[MOST_ISAS];
        for (int i = isas_of(numerics[which], isas) - 1; i >= 0; i--) found += isas[i]->level == CPU_AVX512;
    }
    if (found < 2) tv_test_skip("no AVX-512 here and no SIMDe headers (libsimde-dev) to emulate it");
}

static const tv_test tests[] = {
    {"contract", test_contract},
    {"batch_invariance", test_batch_invariance},
    {"against_f64", test_against_f64},
    {"outputs", test_outputs},
    {"parts", test_parts},
    {"refuses", test_refuses},
    {"open", test_open},
    {"memory", test_memory},
    {"avx512_executed", test_avx512_executed},
};
TV_TEST_MAIN(tests)
