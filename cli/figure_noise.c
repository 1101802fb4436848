/* Figures about single reads: how a token's probability scatters, and which ids the reads see. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "cli/figure.h"
#include "estimator/calibrate.h"
#include "estimator/deviations.h"

static const int readouts[] = {5, 20, 100};
enum { READOUTS = sizeof readouts / sizeof *readouts };

/* Readout k of data, or fewer slots where fewer are stored. */
static tv_readout readout_of(const tv_dataset *data, int k) {
    int64_t stored = data->set[0].k[0] < data->set[1].k[0] ? data->set[0].k[0] : data->set[1].k[0];
    return (tv_readout){.readout = k < stored ? k : (int)stored};
}

static tv_status calibrate(const tv_dataset *data, int k, tv_calibration *out, tv_err *err) {
    tv_calibrate_options options = {.reads = tv_reads_usable(data), .readout = readout_of(data, k)};
    return tv_calibrate(data, &options, out, err);
}

static tv_status add_histogram(const tv_dataset *data, int e, const tv_calibration *cal, double range, cJSON *panel,
                               cJSON *values, tv_err *err) {
    enum { BINS = 81 };
    int64_t count[2][BINS];
    double total = 0, sigma = 0, kurtosis = 0, median = 0;
    for (int s = 0; s < 2; s++) {
        tv_deviations d = {.bins = BINS, .range = range, .count = count[s]};
        TV_TRY(tv_deviations_run(data, e, s, cal->R[e], readout_of(data, 20), &d, err));
        total += (double)d.values;
        sigma += 0.5 * cal->part[e][s].width_variance, kurtosis += 0.5 * cal->part[e][s].kurtosis;
        median += 0.5 * cal->part[e][s].width_median;
    }
    cJSON *series = plot_series(panel, figure_backend(data, e), "steps");
    double width = 2 * range / BINS;
    for (int b = 1; b + 1 < BINS; b++) /* the ends hold what lies outside, too */
        plot_point(series, -range + (b + 0.5) * width, (double)(count[0][b] + count[1][b]) / total / width, NAN, NAN);
    cJSON *o = cJSON_AddObjectToObject(values, e ? "b" : "a");
    cJSON_AddNumberToObject(o, "sigma", sigma);
    cJSON_AddNumberToObject(o, "width_median", median);
    cJSON_AddNumberToObject(o, "excess_kurtosis", kurtosis);
    cJSON_AddNumberToObject(o, "values", total);
    cJSON_AddNumberToObject(o, "sigma_union", tv_calibration_union(cal, e));
    cJSON_AddNumberToObject(o, "sigma_realized", tv_calibration_realised(cal, e));
    return TV_OK;
}

tv_status figure_noise(figures *f, cJSON *figure, tv_err *err) {
    const tv_dataset *data;
    tv_calibration cal;
    TV_TRY(figure_data(f, FIGURE_PAIR, &data, err));
    TV_TRY(calibrate(data, 20, &cal, err));
    cJSON *values = cJSON_AddObjectToObject(figure, "values");
    cJSON *panel = plot_panel(figure, "relative deviation of the token's probability in one pass",
                              "density (1 / relative deviation)", PLOT_LOG_Y);
    double sigma = 0, range = 0;
    for (int e = 0; e < 2; e++)
        for (int s = 0; s < 2; s++) {
            sigma = fmax(sigma, cal.part[e][s].width_variance);
            range = fmax(range, 1.2 * cal.part[e][s].deviation_p999);
        }
    range = fmax(range, 5 * sigma);
    if (!(sigma > 0)) return TV_FAIL(err, TV_EARG, "noise: both sides repeat themselves to the bit, there is none");
    for (int e = 0; e < 2; e++)
        if (cal.R[e] >= 2) TV_TRY(add_histogram(data, e, &cal, range, panel, values, err));
    cJSON *normal = plot_series(panel, "normal of the same sigma", "dashed");
    for (int i = -35; i <= 35; i++) {
        double z = i / 10.0;
        plot_point(normal, z * sigma, exp(-0.5 * z * z) / sqrt(2 * M_PI) / sigma, NAN, NAN);
    }
    panel = plot_panel(figure, "readout k", "sigma^2 of a position over the mean of all", PLOT_LOG_Y);
    /* of the whole record (union of ids), and of the trajectory's token alone */
    static const char *const tails[4] = {"record: 99%", "record: largest", "token: 99%", "token: largest"};
    cJSON *tail[4];
    for (int x = 0; x < 4; x++) tail[x] = plot_series(panel, tails[x], "points");
    for (int i = 0; i < READOUTS; i++) {
        char name[16];
        TV_TRY(calibrate(data, readouts[i], &cal, err));
        snprintf(name, sizeof name, "k = %d", readouts[i]);
        plot_category(panel, name);
        double mean[2] = {0}, high[2] = {0}, largest[2] = {0};
        for (int s = 0; s < 2; s++) {
            const tv_calibration_part *p = &cal.part[0][s];
            mean[0] += 0.5 * p->sigma2_union, high[0] += 0.5 * p->sigma2_union_p99;
            mean[1] += 0.5 * p->sigma2_realised, high[1] += 0.5 * p->sigma2_realised_p99;
            largest[0] = fmax(largest[0], p->sigma2_union_max);
            largest[1] = fmax(largest[1], p->sigma2_realised_max);
        }
        for (int x = 0; x < 2; x++) {
            plot_point(tail[2 * x], i - 0.06 + 0.12 * x, high[x] / mean[x], NAN, NAN);
            plot_point(tail[2 * x + 1], i - 0.06 + 0.12 * x, largest[x] / mean[x], NAN, NAN);
        }
    }
    cJSON_AddStringToObject(
        figure, "caption",
        "Left: what one pass does to the probability of a trajectory's token, relative to its mean "
        "over all passes (readout k = 20). Right: how unequal positions are in that noise (side a), by "
        "the chi-square of the whole record and by the trajectory's token alone. "
        "Reported for larger models: excess kurtosis about 9, 99th percentile 12 times and largest "
        "100 times the mean.");
    return TV_OK;
}

tv_status figure_support(figures *f, cJSON *figure, tv_err *err) {
    static const char *const what[] = {"mean ids seen / k", "99th percentile of ids seen / k", "most ids seen / k"};
    const tv_dataset *data;
    cJSON *panels[3];
    TV_TRY(figure_data(f, FIGURE_PAIR, &data, err));
    for (int i = 0; i < 3; i++) panels[i] = plot_panel(figure, "reads r", what[i], PLOT_LOG2_X);
    for (int x = 0; x < READOUTS; x++) {
        tv_calibration cal;
        char name[16];
        cJSON *series[3];
        TV_TRY(calibrate(data, readouts[x], &cal, err));
        double k = readout_of(data, readouts[x]).readout;
        snprintf(name, sizeof name, "k = %.0f", k);
        for (int i = 0; i < 3; i++) series[i] = plot_series(panels[i], name, "line");
        const tv_calibration_part *p = &cal.part[0][0], *q = &cal.part[0][1];
        for (int r = 0; r < p->n_sizes && r < q->n_sizes; r++) {
            double at = (double)p->size_r[r];
            plot_point(series[0], at, 0.5 * (p->size_mean[r] + q->size_mean[r]) / k, NAN, NAN);
            plot_point(series[1], at, fmax((double)p->size_p99[r], (double)q->size_p99[r]) / k, NAN, NAN);
            plot_point(series[2], at, fmax((double)p->size_max[r], (double)q->size_max[r]) / k, NAN, NAN);
        }
    }
    cJSON_AddStringToObject(
        figure, "caption",
        "Union of the top-k sets of r passes over one position, side a. Reported for larger models: "
        "3 to 5% over k (dense), 10% (expert models), at most 1.75 k.");
    return TV_OK;
}
