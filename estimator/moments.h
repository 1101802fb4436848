/* Running sums that can be merged: a compensated sum, and central moments of order 1 to 4 with the cost that they took.
 * All merging is done in a fixed order by the callers, so results do not depend on the number of threads. */
#ifndef TV_MOMENTS_H
#define TV_MOMENTS_H

#include <math.h>
#include <stdint.h>

/* Neumaier's compensated sum: the error stays near one rounding however many terms are added. */
typedef struct {
    double sum, carry;
} tv_sum;

static inline void tv_sum_add(tv_sum *s, double x) {
    double t = s->sum + x;
    s->carry += fabs(s->sum) >= fabs(x) ? (s->sum - t) + x : (x - t) + s->sum;
    s->sum = t;
}
static inline double tv_sum_value(const tv_sum *s) { return s->sum + s->carry; }

/* Count, mean and central sums: m2 = sum (x - mean)^2, m3, m4 likewise; cost in whatever the caller counts. */
typedef struct {
    double n, mean, m2, m3, m4, cost;
} tv_moments;

/* Merges b into a (Pebay, SAND2008-6212, formulas for arbitrary subsets). */
static inline void tv_moments_merge(tv_moments *a, const tv_moments *b) {
    double cost = a->cost + b->cost;
    if (b->n > 0 && a->n == 0) {
        *a = *b;
    } else if (b->n > 0) {
        double na = a->n, nb = b->n, n = na + nb, d = b->mean - a->mean, d2 = d * d;
        double m4 = a->m4 + b->m4 + d2 * d2 * na * nb * (na * na - na * nb + nb * nb) / (n * n * n) +
                    6 * d2 * (na * na * b->m2 + nb * nb * a->m2) / (n * n) + 4 * d * (na * b->m3 - nb * a->m3) / n;
        double m3 = a->m3 + b->m3 + d2 * d * na * nb * (na - nb) / (n * n) + 3 * d * (na * b->m2 - nb * a->m2) / n;
        a->m2 += b->m2 + d2 * na * nb / n;
        a->m3 = m3;
        a->m4 = m4;
        a->mean += d * nb / n;
        a->n = n;
    }
    a->cost = cost;
}
static inline void tv_moments_add(tv_moments *a, double x, double cost) {
    tv_moments one = {1, x, 0, 0, 0, cost};
    tv_moments_merge(a, &one);
}
/* Unbiased variance; 0 below two values (callers that need "does not exist" ask n). */
static inline double tv_moments_variance(const tv_moments *a) { return a->n > 1 ? a->m2 / (a->n - 1) : 0; }
/* Excess kurtosis n m4 / m2^2 - 3; 0 when all values are equal. */
static inline double tv_moments_kurtosis(const tv_moments *a) {
    return a->m2 > 0 ? a->n * a->m4 / (a->m2 * a->m2) - 3 : 0;
}

#endif
