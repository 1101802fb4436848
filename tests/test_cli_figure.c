/* tvgpu figure from the outside: the files that are promised, and the shape that each figure must have. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/cli_run.h"

/* The bundled model at sizes that take seconds. */
#define SMALL " -N 24 -n 24 -R 4 --threads 2 -q -o fig"

static const cJSON *series(const cJSON *figure, int panel, int number) {
    return cli_at(cJSON_GetArrayItem(cli_at(cJSON_GetArrayItem(cli_at(figure, "panels"), panel), "series"), number),
                  "points");
}

static double value(const cJSON *point, int i) {
    const cJSON *item = cJSON_GetArrayItem(point, i);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static int monotone(const cJSON *points) {
    double last = -INFINITY;
    const cJSON *p;
    cJSON_ArrayForEach(p, points) {
        if (!(value(p, 1) >= last)) return 0;
        last = value(p, 1);
    }
    return cJSON_GetArraySize(points) > 1;
}

/* Exact probabilities: the error falls like the square root of N, and lies on what normal errors give. */
static void synthetic(void) {
    CLI(0, "fig/index.html", "tvgpu figure synthetic -q -o fig");
    cJSON *f = cli_json("fig/synthetic.json");
    CHECK(cli_number(f, "values.slope") >= -0.53 && cli_number(f, "values.slope") <= -0.47);
    CHECK(fabs(cli_number(f, "values.mean") - cli_number(f, "values.tv")) < 4 * cli_number(f, "values.mean_se"));
    CHECK_INT(cJSON_GetArraySize(series(f, 0, 0)), 8);
    CHECK_STR(cli_at(f, "provenance.scale")->valuestring, "quick");
    cJSON_Delete(f);
    CLI(0, "panel,series,x,y,low,high", "head -1 fig/synthetic.csv");
}

/* Shapes that hold whatever the model: more reads see more ids, mismatch grows with the text, and is most of the
 * distance where the readout is cut below what the sampler took. */
static void measured(void) {
    CLI(0, NULL, "tvgpu figure support topk length prompts" SMALL);
    cJSON *f = cli_json("fig/support.json");
    for (int panel = 0; panel < 3; panel++)
        for (int k = 0; k < 3; k++) CHECK(monotone(series(f, panel, k)));
    cJSON_Delete(f);
    f = cli_json("fig/length.json");
    CHECK(monotone(series(f, 0, 1)));
    CHECK(cli_number(f, "values.tv") > 0 && cli_number(f, "values.mismatch") <= cli_number(f, "values.tv"));
    CHECK_INT(cJSON_GetArraySize(series(f, 1, 0)), 6);
    cJSON_Delete(f);
    f = cli_json("fig/prompts.json");
    CHECK_INT(cJSON_GetArraySize(cli_at(f, "rows")), 7);
    cJSON_Delete(f);
    f = cli_json("fig/topk.json");
    CHECK_INT(cJSON_GetArraySize(series(f, 0, 0)), 5);
    CHECK(value(cJSON_GetArrayItem(series(f, 0, 1), 0), 1) > value(cJSON_GetArrayItem(series(f, 0, 1), 4), 1));
    cJSON_Delete(f);
    /* what is there is not measured again, and can be brought along */
    CLI(0, NULL,
        "cp fig/support.csv before.csv && tvgpu figure support --run fig/runs/pair -q -o other "
        "&& cmp before.csv other/support.csv && ! test -e other/runs");
}

static double last(const cJSON *points) { return value(cJSON_GetArrayItem(points, cJSON_GetArraySize(points) - 1), 1); }

/* Long texts: mismatch and own tokens without mass can only grow; the batch that sampled leaves none of those, a cache
 * that holds a quarter of the texts leaves some. What is cached changes neither trajectories nor what is measured. */
static void small_cache(void) {
    CLI(0, NULL, "tvgpu figure long -N 64 -n 64 -R 2 --threads 2 -q -o fig");
    cJSON *f = cli_json("fig/long.json");
    for (int way = 0; way < 3; way++) {
        CHECK(monotone(series(f, 1, way)) && monotone(series(f, 2, way)));
        CHECK(way ? last(series(f, 2, way)) > 0 : last(series(f, 2, way)) == 0);
        CHECK(last(series(f, 0, way)) >= last(series(f, 1, way)));
    }
    CHECK_STR(cli_at(cJSON_GetArrayItem(cli_at(f, "provenance.runs"), 1), "trajectories_of")->valuestring, "long");
    cJSON_Delete(f);
    CLI(0, NULL, "cmp fig/runs/long/b.samples.safetensors fig/runs/long-grow/b.samples.safetensors");
}

/* Figures of the noise and of what to do about it: heavy tails, and of all positions the largest above the 99th
 * percentile; error falls with the budget, and no pilot does better than hindsight; the variance of levels halves with
 * the reads where noise is small; bounds grow as the error shrinks, noisy ones above exact ones, samples above both. */
static void noisy(void) {
    CLI(0, NULL, "tvgpu figure noise budget levels complexity multilevel -N 72 -n 16 -R 8 --threads 2 -q -o fig");
    cJSON *f = cli_json("fig/noise.json");
    for (int e = 0; e < 2; e++) {
        const cJSON *v = cli_at(f, e ? "values.b" : "values.a");
        CHECK(cli_number(v, "sigma") > 0 && cli_number(v, "excess_kurtosis") > 0);
        CHECK(cli_number(v, "width_median") < cli_number(v, "sigma"));
        for (int k = 0; k < 3; k++) /* by record, by token */
            CHECK(value(cJSON_GetArrayItem(series(f, 1, 2 * e + 1), k), 1) >=
                  value(cJSON_GetArrayItem(series(f, 1, 2 * e), k), 1));
    }
    cJSON_Delete(f);
    f = cli_json("fig/budget.json");
    for (int i = 0; i < cJSON_GetArraySize(series(f, 0, 0)); i++) {
        double pilot = value(cJSON_GetArrayItem(series(f, 0, 0), i), 1),
               hindsight = value(cJSON_GetArrayItem(series(f, 0, 1), i), 1);
        CHECK(hindsight > 0 && hindsight <= pilot);
        if (i) CHECK(hindsight <= value(cJSON_GetArrayItem(series(f, 0, 1), i - 1), 1));
    }
    cJSON_Delete(f);
    f = cli_json("fig/levels.json");
    double first = value(series(f, 0, 0)->child, 1), ratio = pow(last(series(f, 0, 0)) / first, 1.0 / 7);
    CHECK(cJSON_GetArraySize(series(f, 0, 0)) == 8 && ratio > 0.44 && ratio < 0.58);
    CHECK(cJSON_GetArraySize(series(f, 1, 0)) >= 2 && cJSON_GetArraySize(series(f, 1, 1)) >= 2);
    cJSON_Delete(f);
    f = cli_json("fig/complexity.json");
    double queries = 0;
    const cJSON *row;
    cJSON_ArrayForEach(row, cli_at(f, "rows")) {
        CHECK(value(row, 1) > queries && value(row, 2) >= value(row, 1));
        CHECK(value(row, 4) <= value(row, 5) && value(row, 5) <= value(row, 6));
        queries = value(row, 1);
    }
    CHECK(queries > 0);
    cJSON_Delete(f);
    f = cli_json("fig/multilevel.json");
    CHECK_INT(cJSON_GetArraySize(cli_at(f, "rows")), 6);
    cJSON_ArrayForEach(row, cli_at(f, "rows")) CHECK(value(row, 1) > 0 && value(row, 2) > 0);
    cJSON_Delete(f);
}

/* Scored step by step as sampled no own token lacks mass, and scoring at once moves side a; the attribution's rows are
 * its axes, with an interval around each, and 0 for the shuffle that moves nothing. */
static void scoring_and_drift(void) {
    CLI(0, NULL, "tvgpu figure scoring drift -N 12 -n 12 -R 2 --threads 2 -q -o fig");
    cJSON *f = cli_json("fig/scoring.json");
    CHECK(cli_number(f, "values.replay.own_zero_mass_a") == 0 && cli_number(f, "values.replay.own_zero_mass_b") == 0);
    CHECK(cli_number(f, "values.mean_abs_difference_a") > 0 && cli_number(f, "values.equal_share_a") < 1);
    CHECK(cli_number(f, "values.prefill.tv") > 0 && cli_number(f, "values.prefill.tv") < 1);
    cJSON_Delete(f);
    f = cli_json("fig/drift.json");
    const cJSON *categories = cli_at(cJSON_GetArrayItem(cli_at(f, "panels"), 0), "categories"),
                *points = series(f, 0, 0);
    CHECK(cJSON_GetArraySize(points) >= 11 && cJSON_GetArraySize(points) == cJSON_GetArraySize(categories));
    for (int i = 0; i < cJSON_GetArraySize(points); i++) {
        const cJSON *p = cJSON_GetArrayItem(points, i);
        CHECK(value(p, 2) <= value(p, 0) && value(p, 0) <= value(p, 3));
        if (!strcmp(cJSON_GetArrayItem(categories, i)->valuestring, "order=shuffled")) CHECK(value(p, 0) == 0);
    }
    cJSON_Delete(f);
}

/* The batch figure rescores fixed trajectories: the same in every size, each side noisy in each; more slots leave less
 * mismatch and a smaller distance. */
static void batches(void) {
    CLI(0, NULL, "tvgpu figure batch" SMALL);
    cJSON *f = cli_json("fig/batch.json");
    for (int s = 0; s < 2; s++) {
        CHECK_INT(cJSON_GetArraySize(series(f, 0, s)), 3);
        for (int x = 0; x < 3; x++) {
            CHECK(value(cJSON_GetArrayItem(series(f, 1, s), x), 1) > 0);
            CHECK(value(cJSON_GetArrayItem(series(f, 0, 1), x), 1) < value(cJSON_GetArrayItem(series(f, 0, 0), x), 1));
        }
    }
    cJSON_Delete(f);
    for (int x = 0; x < 2; x++)
        CLI(0, NULL, "cmp fig/runs/pair/a.samples.safetensors fig/runs/batch-%s/a.samples.safetensors",
            x ? "wide" : "narrow");
}

/* Averaging takes two sides of one distribution to their floor; different ones stay above it. Their common side is
 * computed once. */
static void repeats(void) {
    CLI(0, NULL,
        "tvgpu compare -N 24 -n 16 -R 8 --batch 6 --order shuffled --arrivals staggered --pass-seed-b 1 "
        "--temperature-b 1.4 -q -o run");
    CLI(0, NULL, "tvgpu figure repeats --run run -N 24 -n 16 -R 8 --threads 2 -q -o fig");
    cJSON *f = cli_json("fig/repeats.json");
    for (int pair = 0; pair < 2; pair++) {
        const cJSON *v = cli_at(f, pair ? "values.same" : "values.different");
        double gap = cli_number(v, "gap"), se = cli_number(v, "gap_se");
        CHECK(se > 0 && (pair ? gap < 2 * se : gap > 2 * se));
    }
    CHECK_INT(cJSON_GetArraySize(cli_at(f, "provenance.runs")), 2);
    cJSON_Delete(f);
    CLI(0, NULL,
        "tvgpu figure repeats -N 6 -n 4 -R 2 --threads 2 -q -o two && cmp "
        "two/runs/pair/a-on-a.pass-0001.safetensors two/runs/same/a-on-a.pass-0001.safetensors");
}

/* Pictures where gnuplot is, one line that says how to get them where it is not; the data in both cases. */
static void pictures(void) {
    int here = !system("command -v gnuplot >/dev/null 2>&1");
    CLI(0, NULL, "tvgpu figure sampleonly -q -o fig");
    CHECK_INT(tv_path_exists(cli_path("fig/sampleonly.png")), here);
    CHECK_INT(tv_path_exists(cli_path("fig/sampleonly.svg")), here);
    CLI(0, "install it", "p=$(command -v tvgpu); PATH=/nowhere \"$p\" figure sampleonly -o bare");
    CHECK(tv_path_exists(cli_path("bare/sampleonly.csv")) && !tv_path_exists(cli_path("bare/sampleonly.png")));
    cJSON *f = cli_json("bare/sampleonly.json");
    CHECK(cli_number(f, "values.queries_samples") > 50 * cli_number(f, "values.queries_replay"));
    cJSON_Delete(f);
}

static void refused(void) {
    CLI(2, "no figure \"nois\"; there are all noise repeats", "tvgpu figure nois");
    CLI(2, "figure needs a NAME", "tvgpu figure");
    CLI(2, "choose one of quick|full", "tvgpu figure all --scale 2");
}

static const tv_test tests[] = {
    {"synthetic", synthetic}, {"measured", measured}, {"small_cache", small_cache},
    {"batches", batches},     {"noisy", noisy},       {"scoring_and_drift", scoring_and_drift},
    {"repeats", repeats},     {"pictures", pictures}, {"refused", refused}};
TV_TEST_MAIN(tests)
