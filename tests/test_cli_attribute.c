/* tvgpu attribute from the outside: what it ranks, what it calls identical, how it resumes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/cli_run.h"
#include "tests/tiny_checkpoint.h"

#define SMALL "attribute m --prompts p.jsonl -N 8 -n 6 -R 2 --threads 1 -q "

static const cJSON *axis(const cJSON *result, const char *name) {
    const cJSON *o;
    cJSON_ArrayForEach(o, cli_at(result, "axes")) if (!strcmp(cli_at(o, "axis")->valuestring, name)) return o;
    return NULL;
}

/* Every known axis is measured or left out with a reason; what moves comes first, largest first; one that cannot move
 * anything is identical; side a is computed once and shared. */
static void ranks(void) {
    cli_tiny_model();
    CLI(0, "backend=math", "tvgpu " SMALL "-o out");
    cJSON *r = cli_json("out/attribution.json");
    const cJSON *list = cli_at(r, "axes"), *o;
    CHECK(cJSON_GetArraySize(list) >= 7);
    int class = 0;
    double last = INFINITY;
    cJSON_ArrayForEach(o, list) {
        const char *verdict = cli_at(o, "verdict")->valuestring;
        int mine = !strcmp(verdict, "moves") ? 0 : !strcmp(verdict, "cannot tell") ? 1 : 2;
        CHECK(mine >= class);
        if (mine > class) last = INFINITY;
        CHECK(cli_number(o, "tv.estimate") <= last);
        class = mine, last = cli_number(o, "tv.estimate");
        CHECK(cJSON_GetArraySize(cli_at(o, "tv.ci95")) == 2 && cJSON_GetArraySize(cli_at(o, "layers")) > 5);
    }
    CHECK_STR(cli_at(axis(r, "order=shuffled"), "verdict")->valuestring, "identical");
    CHECK(cJSON_IsNull(cli_at(axis(r, "order=shuffled"), "first_layer")));
    CHECK_STR(cli_at(axis(r, "backend=math"), "first_layer.activation")->valuestring, "attn");
    CHECK_INT(cli_number(axis(r, "backend=math"), "first_layer.layer"), 0);
    CHECK_STR(cli_at(axis(r, "logits=f32"), "first_layer.activation")->valuestring, "logits");
    CHECK(!axis(r, "logits=bf16") && !axis(r, "backend=flash")); /* what side a has */
    cJSON_ArrayForEach(o, cli_at(r, "skipped")) CHECK(*cli_at(o, "why")->valuestring);
    cJSON_Delete(r);
    char *a = tv_xprintf("cmp out/backend=math/a.samples.safetensors out/logits=f32/a.samples.safetensors");
    CLI(0, NULL, "%s", a);
    free(a);
    /* a deleted pass is made again, with the same result */
    char *before = cli_without_timing("out/attribution.json");
    CLI(0, NULL, "rm out/logits=f32/b-on-b.pass-0001.safetensors && tvgpu " SMALL "-o out");
    char *after = cli_without_timing("out/attribution.json");
    CHECK_STR(after, before);
    free(before), free(after);
}

/* Several options flipped together are one axis; what cannot be is refused with the axis named. */
static void given(void) {
    cli_tiny_model();
    CLI(0, NULL, "tvgpu " SMALL "-o out --axis batch=3+order=shuffled,temperature=3 --json > r.json");
    cJSON *r = cli_json("r.json");
    CHECK_INT(cJSON_GetArraySize(cli_at(r, "axes")), 2);
    CHECK_STR(cli_at(axis(r, "temperature=3"), "verdict")->valuestring, "moves");
    CHECK_INT(cJSON_GetArraySize(cli_at(axis(r, "batch=3+order=shuffled"), "changed")), 3); /* and pass_seed */
    cJSON_Delete(r);
    CLI(2, "side a has that already", "tvgpu " SMALL "--axis logits=bf16");
    CLI(2, "--backend triton: choose one of", "tvgpu " SMALL "--axis backend=triton");
    CLI(2, "an axis is NAME=VALUE", "tvgpu " SMALL "--axis math");
    CLI(2, "--bakend: no option of the serving configuration", "tvgpu " SMALL "--axis bakend=math");
    CLI(2, "attention backend cudnn needs", "tvgpu " SMALL "--axis backend=cudnn");
    CLI(2, "--axis names nothing", "tvgpu " SMALL "--axis ''");
    CLI(0, "passes     10 ", "tvgpu " SMALL "--axis logits=f32 --dry-run");
}

/* Expert models: the share of routing decisions that change, layer by layer; side a's own is 0. And the distance on
 * side a's routes, which an option that moves no route leaves as it is. */
static void experts(void) {
    tiny_options options = tiny_options_default(TV_QWEN3_MOE);
    tiny_checkpoint *c = tiny_new(&options);
    cli_tiny_model();
    tiny_write(c, cli_path("moe"));
    tiny_free(c);
    CLI(0, "routing decisions that change",
        "tvgpu attribute moe --prompts p.jsonl -N 8 -n 6 -R 2 --threads 1 -q -o out --axis backend=math,logits=f32");
    cJSON *r = cli_json("out/attribution.json");
    const cJSON *row;
    int rows = 0;
    cJSON_ArrayForEach(row, cli_at(axis(r, "backend=math"), "routing")) {
        CHECK(cli_number(row, "changed") >= 0 && cli_number(row, "changed") <= 1 && cli_number(row, "floor") == 0);
        rows++;
    }
    CHECK(rows > 0);
    cJSON_ArrayForEach(row, cli_at(axis(r, "logits=f32"), "routing")) CHECK(cli_number(row, "changed") == 0);
    const cJSON *moved = cli_at(axis(r, "backend=math"), "routes"), *same = cli_at(axis(r, "logits=f32"), "routes");
    CHECK(cli_number(moved, "replayed.estimate") >= 0 && cli_number(moved, "replayed.estimate") <= 1);
    CHECK(cli_number(moved, "difference.estimate") != 0 && cli_number(moved, "difference.se") > 0);
    CHECK(cli_number(same, "own.estimate") > 0 && cli_number(same, "difference.estimate") == 0);
    cJSON_Delete(r);
    /* kept like other passes: made again with the same bits where it is missing */
    char *before = cli_without_timing("out/attribution.json");
    CLI(0, "with side a's routes replayed",
        "rm out/backend=math/routes/b-on-a.pass-0000.safetensors && tvgpu attribute moe --prompts p.jsonl -N 8 -n 6 "
        "-R 2 --threads 1 -q -o out --axis backend=math,logits=f32");
    char *after = cli_without_timing("out/attribution.json");
    CHECK_STR(after, before);
    free(before), free(after);
}

static const tv_test tests[] = {{"ranks", ranks}, {"given", given}, {"experts", experts}};
TV_TEST_MAIN(tests)
