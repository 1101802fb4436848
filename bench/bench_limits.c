/* What the machine can do: read bandwidth and fused multiply-add peak. */
#include "bench/bench.h"

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "kernels/cpu/cpu.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double middle(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

tv_bench_stats tv_bench_summary(double *values, int n) {
    tv_bench_stats s = {.median = middle(values, n), .best = values[n - 1], .n = n};
    double *deviations = tv_xmalloc((size_t)n * sizeof *deviations);
    for (int i = 0; i < n; i++) deviations[i] = values[i] > s.median ? values[i] - s.median : s.median - values[i];
    s.mad = middle(deviations, n);
    free(deviations);
    return s;
}

void tv_bench_add(cJSON *object, const char *key, const tv_bench_stats *stats) {
    cJSON *o = cJSON_AddObjectToObject(object, key);
    tv_json_add_number(o, "median", stats->median);
    tv_json_add_number(o, "mad", stats->mad);
    tv_json_add_number(o, "best", stats->best);
    tv_json_add_number(o, "n", stats->n);
}

static double clock_seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
double tv_bench_wall(void) { return clock_seconds(CLOCK_MONOTONIC); }
double tv_bench_cpu(void) { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }

/* Independent chains of one instruction: enough of them to cover the latency of every multiply-add unit. Each value
 * stays in its register because the asm says so; x = 0 keeps it normal. Returns multiply-adds per lane. */
#define FMA_PROBE(name, attribute, vector, reg, instruction)                                                           \
    attribute static double name(long rounds) {                                                                        \
        vector a = {0}, b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a, x = {0}, y = {0}; \
        for (long n = 0; n < rounds; n++)                                                                              \
            __asm__ volatile(                                                                                          \
                instruction(0) instruction(1) instruction(2) instruction(3) instruction(4) instruction(5)              \
                    instruction(6) instruction(7) instruction(8) instruction(9) instruction(10) instruction(11)        \
                : reg(a), reg(b), reg(c), reg(d), reg(e), reg(f), reg(g), reg(h), reg(i), reg(j), reg(k), reg(l)       \
                : PROBE_IN(x), PROBE_IN(y));                                                                           \
        return 12.0 * (double)rounds;                                                                                  \
    }
#if defined(__x86_64__)
#define PROBE_REG(v) "+x"(v)
#define PROBE_REG512(v) "+v"(v)
#define PROBE_IN(v) "v"(v)
#define PROBE_X86(n) "vfmadd231ps %12, %13, %" #n "\n"
FMA_PROBE(probe_avx2, __attribute__((target("avx2,fma"))), __m256, PROBE_REG, PROBE_X86)
#undef PROBE_IN
#define PROBE_IN(v) "v"(v)
FMA_PROBE(probe_avx512, __attribute__((target("avx512f"))), __m512, PROBE_REG512, PROBE_X86)
#elif defined(__aarch64__)
typedef float neon __attribute__((vector_size(16)));
#define PROBE_REG(v) "+w"(v)
#define PROBE_IN(v) "w"(v)
#define PROBE_ARM(n) "fmla %" #n ".4s, %12.4s, %13.4s\n"
FMA_PROBE(probe_neon, , neon, PROBE_REG, PROBE_ARM)
#endif

static double probe_scalar(long rounds) {
    float a[12] = {0}, x = 0, y = 0;
    for (long n = 0; n < rounds; n++) {
        __asm__ volatile("" : "+m"(x), "+m"(y));
        for (int i = 0; i < 12; i++) a[i] = fmaf(x, y, a[i]);
    }
    __asm__ volatile("" : : "m"(a));
    return 12.0 * (double)rounds;
}

const char *tv_probe_isa(const char *device) {
    static const char *const isas[] = {"avx512", "avx2", "neon", "scalar"};
    for (size_t i = 0; i < sizeof isas / sizeof *isas && !strstr(device, "numerics"); i++)
        if (strstr(device, isas[i])) return isas[i];
    return "";
}

double tv_probe_fma(const char *isa, int threads, double seconds) {
    double (*probe)(long) = NULL;
    int lanes = 0;
    if (!strcmp(isa, "scalar")) probe = probe_scalar, lanes = 1;
#if defined(__x86_64__)
    if (!strcmp(isa, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        probe = probe_avx2, lanes = 8;
    if (!strcmp(isa, "avx512") && __builtin_cpu_supports("avx512f")) probe = probe_avx512, lanes = 16;
#elif defined(__aarch64__)
    if (!strcmp(isa, "neon")) probe = probe_neon, lanes = 4;
#endif
    if (!probe) return 0;
    double rate = 0;
#pragma omp parallel num_threads(threads) reduction(+ : rate)
    {
        double done = 0, begin = tv_bench_cpu(), used;
        do {
            done += probe(20000);
            used = tv_bench_cpu() - begin;
        } while (used < seconds);
        rate += done * lanes * 2 / used / 1e9;
    }
    return rate;
}

void *tv_probe_memory(size_t bytes) {
    void *p = cpu_pages(bytes);
    if (p) memset(p, 1, bytes); /* else every page is the same page of zeros */
    return p;
}

typedef uint64_t wide __attribute__((vector_size(32)));

/* Four streams at once, each fetched 2 KiB ahead, over one window after another: on the machines tried this reads a
 * third faster than one stream left to the hardware's prefetchers, and a tenth faster than four streams far apart, so
 * it is the honest limit. */
double tv_probe_read(const void *buffer, size_t bytes, int threads) {
    enum { STREAMS = 4, AHEAD = 2048, LINE = 64, STREAM = 32 << 10, WINDOW = STREAMS * STREAM };
    double slowest = 0;
    const size_t windows = bytes / (size_t)threads / WINDOW;
#pragma omp parallel num_threads(threads) reduction(max : slowest)
    {
        const char *p = (const char *)buffer + (size_t)omp_get_thread_num() * windows * WINDOW;
        wide sum[2 * STREAMS] = {{0}};
        double begin = tv_bench_cpu();
        for (size_t w = 0; w < windows; w++, p += WINDOW)
            for (size_t i = 0; i < STREAM; i += LINE)
                for (int s = 0; s < STREAMS; s++) {
                    const char *line = p + s * STREAM + i;
                    __builtin_prefetch(line + (i + AHEAD < STREAM ? AHEAD : AHEAD + WINDOW - STREAM));
                    sum[2 * s] ^= ((const wide *)line)[0];
                    sum[2 * s + 1] ^= ((const wide *)line)[1];
                }
        for (int s = 1; s < 2 * STREAMS; s++) sum[0] ^= sum[s];
        __asm__ volatile("" : : "m"(sum[0]) : "memory"); /* the reading must not be optimised away */
        slowest = tv_bench_cpu() - begin;
    }
    return (double)windows * WINDOW * threads / slowest / 1e9;
}

tv_status tv_bench_limits(const tv_bench_options *options, FILE *out, cJSON **json, tv_err *err) {
    static const char *const isas[] = {"avx2", "avx512", "neon"};
    enum { MOST = 64 };
    int repeats = options->repeats ? options->repeats : 9;
    if (repeats < 1 || repeats > MOST)
        return TV_FAIL(err, TV_EARG, "bench: repeats=%d must be in 1 .. %d", repeats, MOST);
    int all = options->threads ? options->threads : omp_get_num_procs();
    if (all < 1 || all > 4096) return TV_FAIL(err, TV_EARG, "bench: threads=%d must be in 1 .. 4096", all);
    const size_t bytes = (size_t)512 << 20;
    void *buffer = tv_probe_memory(bytes);
    if (!buffer) return TV_FAIL(err, TV_ENOMEM, "bench: no memory for a buffer of 512 MiB");
    cJSON *root = cJSON_CreateObject();
    double values[MOST];
    fprintf(out, "limit                          threads      best    median       MAD\n");
    for (int pass = 0; pass < (all > 1 ? 2 : 1); pass++) {
        int threads = pass ? all : 1;
        cJSON *o = cJSON_AddObjectToObject(root, pass ? "all_threads" : "one_thread");
        cJSON_AddNumberToObject(o, "threads", threads);
        for (int r = 0; r < repeats; r++) values[r] = tv_probe_read(buffer, bytes, threads);
        tv_bench_stats s = tv_bench_summary(values, repeats);
        fprintf(out, "%-30s %7d %9.1f %9.1f %9.1f\n", "read, huge pages (GB/s)", threads, s.best, s.median, s.mad);
        tv_bench_add(o, "read_gb_per_s", &s);
        for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
            if (!(tv_probe_fma(isas[i], 1, 0) > 0)) continue;
            for (int r = 0; r < repeats; r++) values[r] = tv_probe_fma(isas[i], threads, 0.02);
            s = tv_bench_summary(values, repeats);
            char name[64];
            snprintf(name, sizeof name, "f32 multiply-add, %s (GFLOP/s)", isas[i]);
            fprintf(out, "%-30s %7d %9.1f %9.1f %9.1f\n", name, threads, s.best, s.median, s.mad);
            snprintf(name, sizeof name, "fma_%s_gflop_per_s", isas[i]);
            tv_bench_add(o, name, &s);
        }
    }
    cpu_pages_free(buffer, bytes);
    if (json)
        *json = root;
    else
        cJSON_Delete(root);
    return TV_OK;
}
