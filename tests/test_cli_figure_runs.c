/* tvgpu figure from the outside: the shapes of figures that measure noise, batches, caches, scoring and switches. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/cli_run.h"
#include "tests/figure_shape.h"

/* Long texts: mismatch and own tokens without mass can only grow; the batch that sampled leaves none of those, a cache
 * that holds a quarter of the texts leaves some. What is cached changes neither trajectories nor what is measured. */
static void small_cache(void) {
    cli_small_model();
    CLI(0, NULL, "tvgpu figure m long -N 64 -n 64 -R 2 --threads 2 -q -o fig");
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
    cli_small_model();
    CLI(0, NULL, "tvgpu figure m scoring drift -N 12 -n 12 -R 2 --threads 2 -q -o fig");
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

static const tv_test tests[] = {
    {"small_cache", small_cache}, {"batches", batches}, {"noisy", noisy}, {"scoring_and_drift", scoring_and_drift}};
TV_TEST_MAIN(tests)
