#include "estimator/interval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/distance.h"
#include "estimator/moments.h"
#include "kernels/philox.h"

static const double Z975 = 1.959963984540054;

double tv_t_quantile(int64_t df) {
    static const double TABLE[] = {12.706204736432095, 4.302652729911275, 3.182446305284263,  2.7764451051977987,
                                   2.5705818366147395, 2.446911848791681, 2.3646242510102993, 2.306004135204166,
                                   2.2621571627409915, 2.2281388519649385};
    if (df < 1) return NAN;
    if (df <= 10) return TABLE[df - 1];
    /* Cornish-Fisher in 1/df; from df = 11 the error is below 2e-5. */
    double z = Z975, z2 = z * z, d = (double)df;
    double g1 = z * (z2 + 1) / 4, g2 = z * ((5 * z2 + 16) * z2 + 3) / 96,
           g3 = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
    double g4 = z * ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / 92160;
    return z + g1 / d + g2 / (d * d) + g3 / (d * d * d) + g4 / (d * d * d * d);
}

/* Clusters numbered 0..G-1 in order of their labels; index[s] [N[s]]. G <= 1 means: do not cluster. */
typedef struct {
    int64_t G;
    int32_t *index[2];
} clusters;

static int compare_i32(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static clusters clusters_of(const tv_arms *arms) {
    clusters c = {0, {NULL, NULL}};
    if (!arms->cluster[0] || !arms->cluster[1]) return c;
    int64_t total = arms->N[0] + arms->N[1];
    int32_t *labels = tv_xmalloc((size_t)total * sizeof *labels);
    memcpy(labels, arms->cluster[0], (size_t)arms->N[0] * sizeof *labels);
    memcpy(labels + arms->N[0], arms->cluster[1], (size_t)arms->N[1] * sizeof *labels);
    qsort(labels, (size_t)total, sizeof *labels, compare_i32);
    int64_t G = 0;
    for (int64_t i = 0; i < total; i++)
        if (i == 0 || labels[i] != labels[i - 1]) labels[G++] = labels[i];
    c.G = G;
    if (G > 1)
        for (int s = 0; s < 2; s++) {
            c.index[s] = tv_xmalloc((size_t)arms->N[s] * sizeof **c.index);
            for (int64_t i = 0; i < arms->N[s]; i++) {
                const int32_t *at = bsearch(&arms->cluster[s][i], labels, (size_t)G, sizeof *labels, compare_i32);
                c.index[s][i] = (int32_t)(at - labels);
            }
        }
    free(labels);
    return c;
}

static void clusters_free(clusters *c) {
    free(c->index[0]);
    free(c->index[1]);
}

tv_estimate tv_arms_estimate(const tv_arms *arms) {
    tv_estimate out = {.quantile = Z975};
    for (int s = 0; s < 2; s++) out.mean[s] = tv_mean(arms->x[s], arms->N[s]);
    out.estimate = 0.5 * (out.mean[0] + out.mean[1]);
    clusters c = clusters_of(arms);
    if (c.G > 1) { /* sandwich: what each prompt moves the estimate by, summed over both sets */
        double *moved = tv_xcalloc((size_t)c.G, sizeof *moved);
        for (int s = 0; s < 2; s++)
            for (int64_t i = 0; i < arms->N[s]; i++)
                moved[c.index[s][i]] += 0.5 * (arms->x[s][i] - out.mean[s]) / (double)arms->N[s];
        tv_sum square = {0, 0};
        for (int64_t g = 0; g < c.G; g++) tv_sum_add(&square, moved[g] * moved[g]);
        free(moved);
        out.clusters = c.G;
        out.se = sqrt(tv_sum_value(&square) * (double)c.G / (double)(c.G - 1));
        out.quantile = tv_t_quantile(c.G - 1);
    } else if (arms->N[0] < 2 || arms->N[1] < 2) {
        out.se = NAN;
    } else {
        double variance = 0;
        for (int s = 0; s < 2; s++) {
            tv_sum square = {0, 0};
            for (int64_t i = 0; i < arms->N[s]; i++)
                tv_sum_add(&square, (arms->x[s][i] - out.mean[s]) * (arms->x[s][i] - out.mean[s]));
            variance += tv_sum_value(&square) / (double)(arms->N[s] - 1) / (double)arms->N[s];
        }
        out.se = 0.5 * sqrt(variance);
    }
    clusters_free(&c);
    return out;
}

/* Uniform in 0..count-1 from 32 bits; the bias of count / 2^32 is far below any error bar. */
static int64_t draw(uint64_t seed, int64_t replicate, int64_t index, int64_t count) {
    tv_philox4 r = tv_philox(seed, (uint64_t)replicate, (uint64_t)TV_USE_BOOTSTRAP << 56 | (uint64_t)index);
    return (int64_t)((uint64_t)r.v[0] * (uint64_t)count >> 32);
}

static int compare_f64(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Linear interpolation between order statistics (type 7). */
static double sorted_quantile(const double *x, int64_t n, double p) {
    double at = p * (double)(n - 1);
    int64_t below = (int64_t)at;
    if (below >= n - 1) return x[n - 1];
    return x[below] + (at - (double)below) * (x[below + 1] - x[below]);
}

tv_status tv_arms_bootstrap(const tv_arms *arms, uint64_t seed, int64_t replicates, double *lo, double *hi,
                            tv_err *err) {
    if (replicates < 40)
        return TV_FAIL(err, TV_EARG, "%lld bootstrap replicates; 95%% needs at least 40", (long long)replicates);
    clusters c = clusters_of(arms);
    if (c.G <= 1 && (arms->N[0] < 2 || arms->N[1] < 2)) {
        clusters_free(&c);
        return TV_FAIL(err, TV_EARG, "one trajectory a set has no error bar; sample at least two");
    }
    double *values = tv_xmalloc((size_t)replicates * sizeof *values);
    double *sum[2] = {NULL, NULL}, *count[2] = {NULL, NULL};
    if (c.G > 1)
        for (int s = 0; s < 2; s++) {
            sum[s] = tv_xcalloc((size_t)c.G, sizeof **sum);
            count[s] = tv_xcalloc((size_t)c.G, sizeof **count);
            for (int64_t i = 0; i < arms->N[s]; i++)
                sum[s][c.index[s][i]] += arms->x[s][i], count[s][c.index[s][i]] += 1;
        }
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < replicates; b++) {
        double total[2] = {0, 0}, n[2] = {0, 0};
        if (c.G > 1) {
            for (int64_t g = 0; g < c.G; g++) {
                int64_t j = draw(seed, b, g, c.G);
                for (int s = 0; s < 2; s++) total[s] += sum[s][j], n[s] += count[s][j];
            }
        } else {
            for (int s = 0; s < 2; s++) {
                n[s] = (double)arms->N[s];
                for (int64_t i = 0; i < arms->N[s]; i++)
                    total[s] += arms->x[s][draw(seed, b, s ? arms->N[0] + i : i, arms->N[s])];
            }
        }
        /* A resample without any trajectory of one set (prompts sampled by one side only) stands on the other. */
        values[b] = n[0] == 0   ? total[1] / n[1]
                    : n[1] == 0 ? total[0] / n[0]
                                : 0.5 * (total[0] / n[0] + total[1] / n[1]);
    }
    qsort(values, (size_t)replicates, sizeof *values, compare_f64);
    *lo = sorted_quantile(values, replicates, 0.025);
    *hi = sorted_quantile(values, replicates, 0.975);
    free(values);
    for (int s = 0; s < 2; s++) free(sum[s]), free(count[s]);
    clusters_free(&c);
    return TV_OK;
}

void tv_interval_clip(double estimate, double *lower, double *upper) {
    double floor_ = fmin(0, estimate), ceiling = fmax(1, estimate);
    *lower = fmin(fmax(*lower, floor_), estimate);
    *upper = fmax(fmin(*upper, ceiling), estimate);
}

int tv_interval_verdict(double lower, double upper, double threshold) {
    return lower > threshold ? 1 : upper <= threshold ? -1 : 0;
}
