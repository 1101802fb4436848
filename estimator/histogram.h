/* Percentiles of very many values in fixed memory: counts in logarithmic bins, 64 to an octave (0.8% relative width).
 * Counts are integers, so merging the histograms of several threads gives the same result in any order. */
#ifndef TV_HISTOGRAM_H
#define TV_HISTOGRAM_H

#include <stdint.h>
#include <string.h>

enum {
    TV_HIST_PER_OCTAVE = 64,
    TV_HIST_LOW = -64,
    TV_HIST_HIGH = 16,
    TV_HIST_BINS = (TV_HIST_HIGH - TV_HIST_LOW) * TV_HIST_PER_OCTAVE
};

/* Of magnitudes: values from 2^-64 to 2^16; smaller positive ones fall into the first bin, larger into the last. */
typedef struct {
    uint64_t count, zero;
    uint64_t bin[TV_HIST_BINS];
} tv_histogram;

/* x >= 0, not NaN. */
static inline void tv_histogram_add(tv_histogram *h, double x) {
    h->count++;
    if (!(x > 0)) {
        h->zero++;
        return;
    }
    uint64_t bits;
    memcpy(&bits, &x, 8);
    int64_t at = ((int64_t)(bits >> 46)) -
                 (int64_t)(1023 + TV_HIST_LOW) * TV_HIST_PER_OCTAVE; /* exponent and 6 bits of mantissa */
    if (at < 0) at = 0;
    if (at >= TV_HIST_BINS) at = TV_HIST_BINS - 1;
    h->bin[at]++;
}

static inline void tv_histogram_merge(tv_histogram *a, const tv_histogram *b) {
    a->count += b->count;
    a->zero += b->zero;
    for (int i = 0; i < TV_HIST_BINS; i++) a->bin[i] += b->bin[i];
}

/* Middle of bin i. */
static inline double tv_histogram_value(int i) {
    uint64_t bits = ((uint64_t)(i + (1023 + TV_HIST_LOW) * TV_HIST_PER_OCTAVE) << 46) + (1ull << 45);
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

/* Value that the share p of all counted ones does not exceed, to within a bin; 0 for an empty histogram. */
static inline double tv_histogram_quantile(const tv_histogram *h, double p) {
    double want = p * (double)h->count;
    double seen = (double)h->zero;
    int last = -1;
    if (h->count == 0 || seen >= want) return 0;
    for (int i = 0; i < TV_HIST_BINS; i++) {
        if (!h->bin[i]) continue;
        last = i;
        seen += (double)h->bin[i];
        if (seen >= want) break;
    }
    return last < 0 ? 0 : tv_histogram_value(last);
}

/* The same over signed values whose negative ones were counted by magnitude in neg and the others in pos. */
static inline double tv_histogram_signed_quantile(const tv_histogram *neg, const tv_histogram *pos, double p) {
    double total = (double)(neg->count + pos->count), want = p * total, seen = 0;
    if (!(total > 0)) return 0;
    for (int i = TV_HIST_BINS - 1; i >= 0; i--) {
        seen += (double)neg->bin[i];
        if (neg->bin[i] && seen >= want) return -tv_histogram_value(i);
    }
    double share = (want - (double)neg->count) / (double)(pos->count ? pos->count : 1);
    return tv_histogram_quantile(pos, share < 0 ? 0 : share);
}

#endif
