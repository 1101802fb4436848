/* Peak of multiply-adds and of reading memory. */
#include "bench/machine.h"

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Keeps a value in a register and its computation in the program. */
#if defined(__x86_64__)
#define PIN(v) __asm__ volatile("" : "+v"(v))
#elif defined(__aarch64__)
#define PIN(v) __asm__ volatile("" : "+w"(v))
#else
#define PIN(v) __asm__ volatile("" : "+m"(v))
#endif

/* Twelve chains hide the latency of an instruction on every core of today. fma(n) runs n rounds and returns the
 * multiply-adds of one round; sum(p, n) reads n floats, a multiple of 128. */
#define CHAINS(X) X(a0) X(a1) X(a2) X(a3) X(a4) X(a5) X(a6) X(a7) X(a8) X(a9) X(a10) X(a11)
#define PEAK_KERNELS(NAME, TARGET, VEC, LANES, SET, FMA, LOAD, ADD)                                                    \
    TARGET static double fma_##NAME(int64_t rounds) {                                                                  \
        VEC x = SET(0.999f), y = SET(1e-3f), a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, a6 = x, a7 = x, a8 = x,   \
            a9 = x, a10 = x, a11 = x;                                                                                  \
        CHAINS(PIN_CHAIN)                                                                                              \
        for (int64_t i = 0; i < rounds; i++) {                                                                         \
            FMA(a0) FMA(a1) FMA(a2) FMA(a3) FMA(a4) FMA(a5) FMA(a6) FMA(a7) FMA(a8) FMA(a9) FMA(a10) FMA(a11)          \
        }                                                                                                              \
        CHAINS(PIN_CHAIN)                                                                                              \
        return 12.0 * (LANES);                                                                                         \
    }                                                                                                                  \
    TARGET static void sum_##NAME(const float *p, size_t n) {                                                          \
        VEC a[8];                                                                                                      \
        for (int j = 0; j < 8; j++) a[j] = SET(0.0f);                                                                  \
        for (size_t i = 0; i < n; i += 8 * (LANES))                                                                    \
            for (int j = 0; j < 8; j++) a[j] = ADD(a[j], LOAD(p + i + (size_t)j * (LANES)));                           \
        for (int j = 0; j < 8; j++) PIN(a[j]);                                                                         \
    }
#define PIN_CHAIN(v) PIN(v);

#if defined(__x86_64__)
#define FMA_256(v) v = _mm256_fmadd_ps(v, x, y);
#define FMA_512(v) v = _mm512_fmadd_ps(v, x, y);
PEAK_KERNELS(avx2, __attribute__((target("avx2,fma"))), __m256, 8, _mm256_set1_ps, FMA_256, _mm256_load_ps,
             _mm256_add_ps)
PEAK_KERNELS(avx512, __attribute__((target("avx512f"))), __m512, 16, _mm512_set1_ps, FMA_512, _mm512_load_ps,
             _mm512_add_ps)
#elif defined(__aarch64__)
#define FMA_128(v) v = vfmaq_f32(y, v, x);
PEAK_KERNELS(neon, , float32x4_t, 4, vdupq_n_f32, FMA_128, vld1q_f32, vaddq_f32)
#endif
#define FMA_1(v) v = fmaf(v, x, y);
#define SET_1(v) (v)
#define LOAD_1(p) (*(p))
#define ADD_1(a, b) ((a) + (b))
PEAK_KERNELS(scalar, , float, 1, SET_1, FMA_1, LOAD_1, ADD_1)

typedef struct {
    const char *name;
    double (*fma)(int64_t rounds);
    void (*sum)(const float *p, size_t n);
} kernels;

static kernels widest(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return (kernels){"avx512", fma_avx512, sum_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return (kernels){"avx2", fma_avx2, sum_avx2};
#elif defined(__aarch64__)
    return (kernels){"neon", fma_neon, sum_neon};
#endif
    return (kernels){"scalar", fma_scalar, sum_scalar};
}

tv_machine tv_machine_measure(int threads) {
    enum { WINDOWS = 12, BYTES = 256 << 20 };
    kernels k = widest();
    tv_machine m = {.vectors = k.name};
    if (threads < 1) threads = omp_get_num_procs();

    int64_t rounds = 1 << 14;
    for (int w = 0; w < WINDOWS;) {
        double per_round = 0, start = seconds();
#pragma omp parallel num_threads(threads) reduction(+ : per_round)
        per_round += k.fma(rounds);
        double time = seconds() - start;
        if (time < 0.02) { /* windows long enough that waking threads costs nothing */
            rounds *= 2;
            continue;
        }
        double rate = 2 * per_round * (double)rounds / time / 1e9;
        if (rate > m.gflops) m.gflops = rate;
        w++;
    }

    char *block = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return m;
    madvise(block, BYTES, MADV_HUGEPAGE);
    size_t each = BYTES / sizeof(float) / (size_t)threads / 128 * 128;
#pragma omp parallel num_threads(threads)
    memset(block + (size_t)omp_get_thread_num() * each * sizeof(float), 0, each * sizeof(float));
    for (int w = 0; w < WINDOWS; w++) {
        double start = seconds();
#pragma omp parallel num_threads(threads)
        k.sum((const float *)block + (size_t)omp_get_thread_num() * each, each);
        double rate = (double)each * (double)threads * sizeof(float) / (seconds() - start) / 1e9;
        if (rate > m.read_gbs) m.read_gbs = rate;
    }
    munmap(block, BYTES);
    return m;
}
