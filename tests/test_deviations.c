/* The histogram of single passes' deviations against what calibration measures of the same reads. */
#include "estimator/deviations.h"

#include <math.h>

#include "estimator/calibrate.h"
#include "estimator/synthetic.h"
#include "tests/check.h"

/* Every tracked value is counted once, and the histogram's second moment is the width that calibration reports. */
static void moments(void) {
    tv_markov_options options = {.n = 60, .contexts = 8, .topics = 2, .k = 5, .delta = 0.1, .seed = 1};
    tv_oracle oracle = {.kind = TV_ORACLE_HEAVY, .sigma = 0.05, .seed = 9};
    tv_chain chain;
    tv_dataset *data = NULL;
    tv_calibration cal;
    tv_err err = {0};
    enum { BINS = 4001, R = 8 };
    static int64_t count[BINS];
    CHECK_OK(tv_chain_markov(&options, &chain, &err), &err);
    CHECK_OK(tv_chain_record(&chain, &oracle, 0, 30, R, &data, &err), &err);
    CHECK_OK(tv_calibrate(data, &(tv_calibrate_options){.reads = R}, &cal, &err), &err);
    for (int s = 0; s < 2; s++) {
        tv_deviations d = {.bins = BINS, .range = 1, .count = count};
        CHECK_OK(tv_deviations_run(data, 0, s, R, (tv_readout){0}, &d, &err), &err);
        CHECK_INT(d.values, cal.part[0][s].tracked * R);
        CHECK(d.below < 0 && d.above > 0 && d.above < 1);
        double sum = 0, square = 0;
        for (int b = 0; b < BINS; b++) {
            double x = -1 + (b + 0.5) * 2 / BINS;
            sum += (double)count[b], square += (double)count[b] * x * x;
        }
        CHECK_INT(sum, d.values);
        CHECK_NEAR(sqrt(square / sum), cal.part[0][s].width_variance, 1e-3);
    }
    /* What lies outside the range is counted in the bins at its ends. */
    tv_deviations d = {.bins = 3, .range = 1e-9, .count = count};
    CHECK_OK(tv_deviations_run(data, 0, 0, R, (tv_readout){0}, &d, &err), &err);
    CHECK(count[0] > d.values / 4 && count[2] > d.values / 4 && count[0] + count[1] + count[2] == d.values);
    d = (tv_deviations){.bins = BINS, .range = 1, .count = count};
    CHECK_FAILS(tv_deviations_run(data, 0, 0, 1, (tv_readout){0}, &d, &err), TV_EARG, &err, "two reads");
    tv_chain_record_free(data);
    tv_chain_free(&chain);
}

static const tv_test tests[] = {{"moments", moments}};
TV_TEST_MAIN(tests)
