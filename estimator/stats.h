/* Means and variances whose bits do not depend on anything but the values and their order. */
#ifndef TV_STATS_H
#define TV_STATS_H

#include <math.h>
#include <stdint.h>

/* Compensated (Neumaier) sum of x[0..N). */
static inline double tv_stats_sum(const double *x, int64_t N) {
    double sum = 0, lost = 0;
    for (int64_t i = 0; i < N; i++) {
        const double next = sum + x[i];
        lost += fabs(sum) >= fabs(x[i]) ? (sum - next) + x[i] : (x[i] - next) + sum;
        sum = next;
    }
    return sum + lost;
}

/* Mean; 0 for N = 0. */
static inline double tv_stats_mean(const double *x, int64_t N) { return N > 0 ? tv_stats_sum(x, N) / (double)N : 0; }

/* Sample variance (divisor N - 1), two passes; 0 below two values. */
static inline double tv_stats_variance(const double *x, int64_t N) {
    if (N < 2) return 0;
    const double mean = tv_stats_mean(x, N);
    double sum = 0, lost = 0;
    for (int64_t i = 0; i < N; i++) {
        const double d = (x[i] - mean) * (x[i] - mean), next = sum + d;
        lost += fabs(sum) >= d ? (sum - next) + d : (d - next) + sum;
        sum = next;
    }
    return (sum + lost) / (double)(N - 1);
}

#endif
