/* tvgpu calibrate: the noise of each side's reads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "estimator/calibrate.h"

static cJSON *part_json(const tv_calibration_part *p) {
    cJSON *o = cJSON_CreateObject();
    tv_json_add_number(o, "sigma_union", sqrt(p->sigma2_union));
    tv_json_add_number(o, "sigma_union_stored_order", sqrt(p->sigma2_union_stored));
    tv_json_add_number(o, "sigma_realized", sqrt(p->sigma2_realised));
    tv_json_add_number(o, "sigma2_union_median", p->sigma2_union_p50);
    tv_json_add_number(o, "sigma2_union_p99", p->sigma2_union_p99);
    tv_json_add_number(o, "sigma2_union_max", p->sigma2_union_max);
    tv_json_add_number(o, "cells", (double)p->cells);
    tv_json_add_number(o, "cells_excluded", (double)p->excluded);
    tv_json_add_number(o, "width_variance", p->width_variance);
    tv_json_add_number(o, "width_median", p->width_median);
    tv_json_add_number(o, "excess_kurtosis", p->kurtosis);
    cJSON *d = cJSON_AddObjectToObject(o, "deviation");
    tv_json_add_number(d, "p50", p->deviation_p50);
    tv_json_add_number(d, "p90", p->deviation_p90);
    tv_json_add_number(d, "p99", p->deviation_p99);
    tv_json_add_number(d, "p999", p->deviation_p999);
    tv_json_add_number(d, "max", p->deviation_max);
    cJSON *lags = cJSON_AddArrayToObject(o, "autocorrelation");
    for (int i = 0; i < p->n_lags; i++)
        cJSON_AddItemToArray(lags, isfinite(p->autocorrelation[i]) ? cJSON_CreateNumber(p->autocorrelation[i])
                                                                   : cJSON_CreateNull());
    tv_json_add_number(o, "autocorrelation_permuted", p->autocorrelation_permuted);
    tv_json_add_number(o, "drift", p->drift);
    tv_json_add_number(o, "drift_z", p->drift_z);
    cJSON *sizes = cJSON_AddArrayToObject(o, "support");
    for (int i = 0; i < p->n_sizes; i++) {
        cJSON *s = cJSON_CreateObject();
        cJSON_AddNumberToObject(s, "r", (double)p->size_r[i]);
        tv_json_add_number(s, "mean", p->size_mean[i]);
        cJSON_AddNumberToObject(s, "p99", (double)p->size_p99[i]);
        cJSON_AddNumberToObject(s, "max", (double)p->size_max[i]);
        cJSON_AddItemToArray(sizes, s);
    }
    return o;
}

/* A number or a dash, in a column. */
static void cell(double v) {
    if (isfinite(v))
        printf(" %10.4g", v);
    else
        printf(" %10s", "-");
}

static void print_row(const char *what, const tv_calibration *c, double (*value)(const tv_calibration_part *)) {
    printf("%-42s", what);
    for (int e = 0; e < 2; e++)
        for (int s = 0; s < 2; s++) cell(value(&c->part[e][s]));
    putchar('\n');
}

static double sigma_union(const tv_calibration_part *p) { return sqrt(p->sigma2_union); }
static double sigma_stored(const tv_calibration_part *p) { return sqrt(p->sigma2_union_stored); }
static double sigma_realised(const tv_calibration_part *p) { return sqrt(p->sigma2_realised); }
static double width_variance(const tv_calibration_part *p) { return p->width_variance; }
static double width_median(const tv_calibration_part *p) { return p->width_median; }
static double kurtosis(const tv_calibration_part *p) { return p->kurtosis; }
static double p99(const tv_calibration_part *p) { return p->deviation_p99; }
static double lag1(const tv_calibration_part *p) { return p->n_lags ? p->autocorrelation[0] : NAN; }
static double drift(const tv_calibration_part *p) { return p->drift; }
static double drift_z(const tv_calibration_part *p) { return p->drift_z; }
static double support_first(const tv_calibration_part *p) { return p->n_sizes ? p->size_mean[0] : NAN; }
static double support_all(const tv_calibration_part *p) { return p->n_sizes ? p->size_mean[p->n_sizes - 1] : NAN; }

static int run(tv_args *args, tv_err *err) {
    if (!args->n_positional) return (int)TV_FAIL(err, TV_EARG, "calibrate needs a run folder, a bundle or trace files");
    tv_dataset *data = NULL;
    tv_calibration c;
    tv_calibrate_options options = {.reads = args->reads, .stored_order = args->serving_order, .seed = args->seed[0]};
    tv_status status = tv_dataset_open(args->positional, args->n_positional, &data, err);
    if (status == TV_OK) status = tv_dataset_need_passes(data, "calibrate", err);
    if (status == TV_OK) options.readout = tv_readout_choose(data, args->readout);
    if (status == TV_OK && tv_calibrate(data, &options, &c, err) == TV_OK) {
        if (args->json) {
            cJSON *o = cJSON_CreateObject();
            static const char *const names[2][2] = {{"a_on_a", "a_on_b"}, {"b_on_a", "b_on_b"}};
            for (int e = 0; e < 2; e++)
                for (int s = 0; s < 2; s++) cJSON_AddItemToObject(o, names[e][s], part_json(&c.part[e][s]));
            cli_print_json(o);
            cJSON_Delete(o);
        } else {
            printf("%-42s %10s %10s %10s %10s\n", "noise of one read", "a on a", "a on b", "b on a", "b on b");
            print_row("sigma, whole vector (chi-square)", &c, sigma_union);
            print_row("  halves in stored order", &c, sigma_stored);
            print_row("sigma, realized token", &c, sigma_realised);
            print_row("width of deviations: root mean square", &c, width_variance);
            print_row("  from the median", &c, width_median);
            print_row("excess kurtosis", &c, kurtosis);
            print_row("99th percentile of |deviation|", &c, p99);
            print_row("autocorrelation between neighbouring passes", &c, lag1);
            print_row("drift over the passes (1 = none)", &c, drift);
            print_row("  z", &c, drift_z);
            print_row("support: ids in one read", &c, support_first);
            print_row("  in all reads together", &c, support_all);
            for (int e = 0; e < 2; e++)
                if (c.R[e] < 2 && !data->deterministic[e])
                    printf("side %c stored %lld pass: noise needs two\n", 'a' + e, (long long)c.R[e]);
                else if (data->deterministic[e])
                    printf("side %c is deterministic: its reads have no noise\n", 'a' + e);
        }
    }
    tv_dataset_close(data);
    return EXIT_DONE;
}

const tv_command tv_command_calibrate = {
    "calibrate",
    "the noise of each side's reads: sigma, support, tails, drift",
    CMD_CALIBRATE,
    TV_MOST_WORDS,
    "PATH... [options]",
    "Measures how much one read of a next-token distribution deviates from the mean over the passes:\n"
    "sigma by half-splits (whole vector, realized token), support size against the number of reads,\n"
    "tails, autocorrelation and drift along the passes.",
    "  tvgpu calibrate tvgpu-runs/compare-1a2b3c4d\n",
    run,
};
