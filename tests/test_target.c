/* Measuring on to a target error: what is run next, when it ends, and that the interval at the end still covers. */
#include "estimator/target.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "check.h"
#include "estimator/stats.h"
#include "estimator_fixture.h"

static double number(const cJSON *json, const char *path) {
    const cJSON *item = fixture_at(json, path);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}
static const char *reason(const cJSON *json) {
    const char *text = cJSON_GetStringValue(fixture_at(json, "reason"));
    return text ? text : "";
}

/* A measurement that follows a law: the interval is 1.96 spread / sqrt(N) + allowance / reads^power wide to each side.
 */
typedef struct {
    double spread, allowance, power;
    int64_t block, blocks, reads;
    int measured, said;
    int fail;
} law;

static tv_status measure(void *user, int64_t blocks, int64_t reads, tv_err *err) {
    law *l = user;
    if (l->fail) return TV_FAIL(err, TV_EIO, "no disk");
    CHECK(blocks >= l->blocks && reads >= l->reads && (!l->measured || blocks > l->blocks || reads > l->reads));
    CHECK(!l->measured || (blocks <= 2 * l->blocks && reads <= 2 * l->reads));
    l->blocks = blocks, l->reads = reads;
    l->measured++;
    return TV_OK;
}

static tv_status report(void *user, int64_t blocks, cJSON **out, tv_err *err) {
    (void)err;
    law *l = user;
    CHECK_INT(blocks, l->blocks);
    const double N = (double)(blocks * l->block), se = l->spread / sqrt(N);
    const double half = 1.96 * se + l->allowance / pow((double)l->reads, l->power);
    char *text =
        isfinite(se)
            ? tv_xprintf("{\"n\":10,\"N\":%.17g,\"R\":%d,\"tv\":{\"estimate\":0.4,\"se\":%.17g,\"ci95\":[%.17g,"
                         "%.17g]}}",
                         N, (int)l->reads, se, 0.4 - half, 0.4 + half)
            : tv_xstrdup("{\"n\":10,\"N\":32,\"R\":1,\"tv\":{\"estimate\":0.4,\"se\":null}}");
    *out = cJSON_Parse(text);
    free(text);
    return TV_OK;
}

static void say(void *user, const char *line) {
    law *l = user;
    l->said++;
    CHECK(strstr(line, "trajectories a side") != NULL);
}

static cJSON *run(law *l, double target, double budget) {
    cJSON *out = NULL;
    tv_err err = {0};
    const tv_target_work work = {l, measure, report, say};
    l->blocks = l->reads = l->measured = l->said = 0;
    CHECK_OK(tv_target_run(&(tv_target_options){.target = target, .budget = budget, .block = l->block, .reads = 2},
                           &work, &out, &err),
             &err);
    CHECK_INT(l->said, l->measured);
    CHECK_INT(cJSON_GetArraySize(fixture_at(out, "rounds")), l->measured);
    return out;
}

/* Trajectories in blocks until they suffice and no more than needed; never fewer than a pilot of 32 a side. */
static void target_trajectories(void) {
    law l = {.spread = 0.25, .block = 10};
    cJSON *out = run(&l, 0.03, 0);
    CHECK(cJSON_IsTrue(fixture_at(out, "reached")));
    CHECK_INT(l.blocks, 27);  /* 1.96 .25 / sqrt(270) = 0.0298, and 260 trajectories give 0.0304 */
    CHECK_INT(l.measured, 4); /* 4, 8, 16 and 27 blocks */
    CHECK_NEAR(number(out, "half_width"), 1.96 * 0.25 / sqrt(270), 1e-12);
    CHECK_NEAR(number(out, "queries"), 2.0 * 270 * 10 * 2, 0);
    CHECK(cJSON_IsNull(fixture_at(out, "needed_trajectories")) && number(out, "reads") == 2);
    CHECK_NEAR(cJSON_GetArrayItem(fixture_at(out, "rounds"), 0)->child->valuedouble, 40, 0);
    cJSON_Delete(out);
    out = run(&l, 0.5, 0);
    CHECK(l.blocks == 4 && l.measured == 1);
    cJSON_Delete(out);
    l.block = 64;
    out = run(&l, 0.5, 0);
    CHECK(l.blocks == 1 && number(out, "trajectories") == 64);
    cJSON_Delete(out);
    l.block = 31; /* one short of the pilot */
    out = run(&l, 0.5, 0);
    CHECK(l.blocks == 2 && number(out, "trajectories") == 62);
    cJSON_Delete(out);
}

/* An allowance for bias that falls with the reads is removed by reads; one that does not ends the run with the reason.
 */
static void target_reads(void) {
    law l = {.spread = 0.02, .allowance = 0.08, .power = 1, .block = 32};
    cJSON *out = run(&l, 0.02, 0);
    CHECK(cJSON_IsTrue(fixture_at(out, "reached")) && l.reads >= 8 && l.reads <= 16);
    cJSON_Delete(out);
    l.power = 0;
    out = run(&l, 0.02, 0);
    CHECK(cJSON_IsFalse(fixture_at(out, "reached")));
    CHECK(l.reads == 8 && strstr(reason(out), "more reads do not bring it below") != NULL);
    CHECK_NEAR(number(out, "bias_allowance"), 0.08, 1e-9);
    CHECK(number(out, "needed_reads") > 8);
    cJSON_Delete(out);
}

/* A budget that the extrapolated cost exceeds ends it before it is spent, with what would be needed. */
static void target_budget(void) {
    law l = {.spread = 0.25, .block = 32};
    cJSON *out = run(&l, 0.01, 2e4);
    CHECK(cJSON_IsFalse(fixture_at(out, "reached")) && l.measured == 1);
    CHECK(strstr(reason(out), "the budget is 2e+04") != NULL);
    CHECK_NEAR(number(out, "needed_trajectories"), 2401, 0); /* (49)^2 */
    CHECK_NEAR(number(out, "needed_queries"), 2.0 * 2401 * 10 * 2, 0);
    cJSON_Delete(out);
    out = run(&l, 0.01, 1e5);
    CHECK(cJSON_IsTrue(fixture_at(out, "reached")));
    CHECK(number(out, "queries") <= 1e5 && l.blocks == 76);
    cJSON_Delete(out);
}

static void target_bad_input(void) {
    law l = {.spread = 0.1, .block = 32};
    tv_err err = {0};
    cJSON *out;
    const tv_target_work work = {&l, measure, report, NULL};
    const double bad[] = {0, -1, 1, NAN, INFINITY};
    for (int i = 0; i < 5; i++)
        CHECK_FAILS(tv_target_run(&(tv_target_options){.target = bad[i], .block = 1, .reads = 1}, &work, &out, &err),
                    TV_EARG, &err, "must lie within (0, 1)");
    CHECK_FAILS(tv_target_run(&(tv_target_options){.target = 0.1, .block = 0, .reads = 1}, &work, &out, &err), TV_EARG,
                &err, "at least 1 of each");
    CHECK_FAILS(tv_target_run(&(tv_target_options){.target = 0.1, .block = 1, .reads = 0}, &work, &out, &err), TV_EARG,
                &err, "at least 1 of each");
    l.fail = 1;
    CHECK_FAILS(tv_target_run(&(tv_target_options){.target = 0.1, .block = 1, .reads = 1}, &work, &out, &err), TV_EIO,
                &err, "no disk");
    l.fail = 0, l.spread = NAN;
    CHECK_FAILS(tv_target_run(&(tv_target_options){.target = 0.1, .block = 1, .reads = 1}, &work, &out, &err), TV_EARG,
                &err, "no interval");
    CHECK(!out);
}

/* Draws of the square of a uniform, mean 1/3, block after block. */
typedef struct {
    uint64_t seed;
    int64_t N;
    double low, high;
} live;

static tv_status live_measure(void *user, int64_t blocks, int64_t reads, tv_err *err) {
    (void)reads, (void)err;
    live *l = user;
    l->N = 16 * blocks;
    return TV_OK;
}

static tv_status live_report(void *user, int64_t blocks, cJSON **out, tv_err *err) {
    (void)blocks, (void)err;
    live *l = user;
    tv_rng rng = {l->seed};
    double *x = tv_xmalloc((size_t)l->N * sizeof *x);
    for (int64_t i = 0; i < l->N; i++) x[i] = pow(tv_rng_uniform(&rng), 2);
    const double se = sqrt(tv_stats_variance(x, l->N) / (double)l->N), mean = tv_stats_mean(x, l->N);
    free(x);
    l->low = mean - 1.96 * se, l->high = mean + 1.96 * se;
    char *text = tv_xprintf("{\"n\":10,\"N\":%d,\"R\":2,\"tv\":{\"se\":%.17g,\"ci95\":[%.17g,%.17g]}}", (int)l->N, se,
                            l->low, l->high);
    *out = cJSON_Parse(text);
    free(text);
    return TV_OK;
}

/* Stopping when the interval is tight enough must not cost its coverage: 1000 runs to within 0.05 of a known mean. */
static void target_coverage(void) {
    enum { RUNS = 1000 };
    int inside = 0, grew = 0;
    for (int j = 0; j < RUNS; j++) {
        live l = {.seed = 7919 * (uint64_t)j + 1};
        tv_err err = {0};
        const tv_target_work work = {&l, live_measure, live_report, NULL};
        cJSON *out = NULL;
        if (!CHECK_OK(tv_target_run(&(tv_target_options){.target = 0.05, .block = 16, .reads = 2}, &work, &out, &err),
                      &err))
            break;
        CHECK(cJSON_IsTrue(fixture_at(out, "reached")) && 0.5 * (l.high - l.low) <= 0.05);
        inside += 3 * l.low <= 1 && 1 <= 3 * l.high;
        grew += l.N > 64;
        cJSON_Delete(out);
    }
    printf("    %d of %d intervals hold the mean\n", inside, RUNS);
    CHECK(inside >= 929); /* 95% less 3 standard errors */
    CHECK(grew >= 990);
}

static const tv_test tests[] = {
    {"target_trajectories", target_trajectories},
    {"target_reads", target_reads},
    {"target_budget", target_budget},
    {"target_bad_input", target_bad_input},
    {"target_coverage", target_coverage},
};
TV_TEST_MAIN(tests)
