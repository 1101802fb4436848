/* tvgpu figure from the outside: the files that are promised, and the shape that each figure must have. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/cli_run.h"
#include "tests/figure_shape.h"

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
    cli_small_model();
    CLI(0, NULL, "tvgpu figure m support topk length prompts" SMALL);
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
        "cp fig/support.csv before.csv && tvgpu figure m support --run fig/runs/pair -q -o other "
        "&& cmp before.csv other/support.csv && ! test -e other/runs");
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

static const tv_test tests[] = {{"synthetic", synthetic},
                                {"measured", measured},
                                {"repeats", repeats},
                                {"pictures", pictures},
                                {"refused", refused}};
TV_TEST_MAIN(tests)
