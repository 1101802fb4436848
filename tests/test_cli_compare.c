/* tvgpu compare from the outside: what it finds, what it writes, how it exits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/cli_run.h"
#include "tests/report_keys.h"

/* Small enough that a comparison takes a fraction of a second. */
#define SMALL "compare m --prompts p.jsonl -N 6 -n 5 --threads 1 -q "

/* Equal sides read exactly 0, and say so first; the report holds every key that readers rely on, those of
 * report_keys.h and those that the program adds. */
static void equal_sides(void) {
    static const char *const keys[] = {"tvgpu",       "model",          "a.backend",     "b.backend",
                                       "timing.date", "timing.threads", "timing.folder", "timing.resumed"};
    cli_tiny_model();
    CLI(0, "bit-identical", "tvgpu " SMALL "--backend-a flash --backend-b flash -o r");
    cJSON *r = cli_json("r/report.json");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!CHECK(cli_at(r, keys[i]) != NULL)) printf("    missing: %s\n", keys[i]);
    for (int i = 0; i < N_REPORT_KEYS; i++)
        if (!CHECK(cli_at(r, report_keys[i]) != NULL)) printf("    missing: %s\n", report_keys[i]);
    CHECK(cJSON_IsTrue(cli_at(r, "bit_identical")));
    CHECK(cli_number(r, "tv.estimate") == 0 && cli_number(r, "tv.se") == 0 && cli_number(r, "differing_values") == 0);
    CHECK(cli_number(r, "checks.sampling_agreement_a") == 0 && cli_number(r, "checks.own_zero_mass_b") == 0);
    CHECK_STR(cJSON_GetStringValue(cli_at(r, "a.backend")), "flash");
    cJSON_Delete(r);
    char *text = NULL, *page = NULL;
    size_t size;
    TV_ASSERT(tv_file_read(cli_path("r/report.json"), 1 << 28, &text, &size, NULL) == TV_OK);
    CHECK(!strstr(text, "nan") && !strstr(text, "NaN") && !strstr(text, "inf,"));
    TV_ASSERT(tv_file_read(cli_path("r/report.html"), 1 << 28, &page, &size, NULL) == TV_OK);
    CHECK(strstr(page, "</html>") != NULL);
    free(text);
    free(page);
}

/* Without an option for one side there is still something to compare, and the user hears what. */
static void default_sides(void) {
    cli_tiny_model();
    CLI(0, "side b gets --backend-b math", "tvgpu compare m --prompts p.jsonl -N 4 -n 3 -R 2 -o r");
    cJSON *r = cli_json("r/report.json");
    CHECK_STR(cJSON_GetStringValue(cli_at(r, "b.backend")), "math");
    CHECK(cJSON_IsFalse(cli_at(r, "bit_identical")));
    cJSON_Delete(r);
    CLI(0, NULL, "tvgpu compare m --prompts p.jsonl -N 4 -n 3 -R 2 -o s --batch-b 2");
    r = cli_json("s/report.json");
    CHECK_STR(cJSON_GetStringValue(cli_at(r, "b.backend")), cJSON_GetStringValue(cli_at(r, "a.backend")));
    CHECK(cli_number(r, "a.batch") == 0 && cli_number(r, "b.batch") == 2);
    cJSON_Delete(r);
}

/* Equal runs give equal reports and equal text whatever the folder and the number of threads: nothing that depends on
 * when and where reaches them. The sides draw new compositions per pass here, so that there is noise to get wrong. */
static void equal_runs(void) {
    cli_tiny_model();
    static const char options[] = "compare m --prompts p.jsonl -N 12 -n 40 -R 3 --batch 6 --order shuffled "
                                  "--arrivals staggered --backend-b math --top-k-b 12 --readout 16";
    cli_result one = cli_run(NULL, "tvgpu %s -q -o first --threads 1", options);
    cli_result two = cli_run(NULL, "tvgpu %s -q -o deep/er/second --threads 2", options);
    CHECK_INT(one.code, 0);
    CHECK_INT(two.code, 0);
    CHECK_STR(one.out, two.out);
    CHECK(one.out_size > 500);
    char *x = cli_without_timing("first/report.json"), *y = cli_without_timing("deep/er/second/report.json");
    CHECK_STR(x, y);
    cJSON *r = cli_json("first/report.json");
    CHECK(cli_number(r, "a.top_k") == 20 && cli_number(r, "b.top_k") == 12 && cli_number(r, "R") == 3);
    CHECK(cli_number(r, "sigma.a.union_chi2") > 0 && cli_number(r, "floor.a.estimate") > 0);
    cJSON_Delete(r);
    free(x), free(y);
    cli_free(&one), cli_free(&two);
}

/* --json prints what the file holds; the readout chooses how many stored slots count. */
static void json_and_readout(void) {
    cli_tiny_model();
    cli_result r = cli_run(NULL, "tvgpu " SMALL "--json --store-k 24 --top-k 8 --readout 8 -R 2 --backend-b math -o r");
    CHECK_INT(r.code, 0);
    cJSON *printed = NULL, *stored = cli_json("r/report.json");
    tv_err err = {0};
    CHECK_OK(tv_json_parse(r.out, r.out_size, "stdout", &printed, &err), &err);
    CHECK(cJSON_Compare(printed, stored, 1));
    CHECK(cli_number(printed, "support.a.k") == 8 && cli_number(printed, "a.store_k") == 24);
    cJSON_Delete(printed);
    cJSON_Delete(stored);
    cli_free(&r);
    CLI(2, "--readout 25", "tvgpu " SMALL "--store-k 24 --readout 25 -o s");
    CLI(2, "--store-k 8 is below --top-k 20", "tvgpu " SMALL "--store-k 8 -o s");
    CLI(2, "--store-k must be the same", "tvgpu " SMALL "--store-k-a 24 --store-k-b 32 -o s");
    CHECK_INT(cli_entries("s"), -1);
}

/* The gate of CI: 0 below, 3 above, 4 when the interval straddles the bound. */
static void fail_above(void) {
    cli_tiny_model();
    CLI(0, NULL, "tvgpu " SMALL "-R 2 --temperature-b 1.6 -o r");
    cJSON *r = cli_json("r/report.json");
    double low = cJSON_GetArrayItem(cli_at(r, "tv.ci95"), 0)->valuedouble;
    double high = cJSON_GetArrayItem(cli_at(r, "tv.ci95"), 1)->valuedouble;
    CHECK(low > 0 && high > low && high < 1);
    cJSON_Delete(r);
    CLI(3, "lies above", "tvgpu estimate r --fail-above %.17g", low / 2);
    CLI(4, "cannot tell", "tvgpu estimate r --fail-above %.17g", low * 0.75 + high * 0.25);
    CLI(4, "the trajectories (-N)", "tvgpu estimate r --fail-above %.17g", low * 0.75 + high * 0.25);
    CLI(0, "does not lie above", "tvgpu estimate r --fail-above %.17g", (1 + high) / 2);
    CLI(3, NULL, "tvgpu " SMALL "-R 2 --temperature-b 1.6 -o r --fail-above %.17g", low / 2);
    CLI(4, "no interval", "tvgpu compare m --prompts p.jsonl -N 1 -n 3 -R 2 -o one --backend-b math --fail-above 0.5");
    CLI(0, NULL, "tvgpu " SMALL "-R 2 --backend-a math --backend-b math -o s --fail-above 0");
}

/* --baseline sets the distance beside an earlier one, and refuses what is no report before any work is done. */
static void baseline(void) {
    cli_tiny_model();
    CLI(0, NULL, "tvgpu " SMALL "-R 2 --backend-b math -o r");
    CLI(0, "not distinguishable from no change", "tvgpu estimate r --baseline r/report.json");
    CLI(0, "moved", "tvgpu " SMALL "-R 2 --temperature-b 8 -o s --baseline r/report.json");
    cJSON *r = cli_json("s/report.json");
    CHECK(cli_number(r, "baseline.difference") > 0 && cli_number(r, "baseline.difference_se") > 0);
    cJSON_Delete(r);
    CLI(1, "nothing.json", "tvgpu " SMALL "-o t --baseline nothing.json");
    CLI(1, "p.jsonl", "tvgpu " SMALL "-o t --baseline p.jsonl");
    CLI(1, "tv.estimate", "tvgpu " SMALL "-o t --baseline m/config.json");
    CHECK_INT(cli_entries("t"), -1);
}

/* --dry-run says what a run needs and leaves no trace of itself. */
static void dry_run(void) {
    cli_tiny_model();
    int before = cli_entries(".");
    CLI(0, "18 over 6 trajectories of 5 tokens", "tvgpu " SMALL "--dry-run");
    cli_result r = cli_run(NULL, "tvgpu " SMALL "--dry-run --json -R 3 -o r");
    cJSON *need = NULL;
    tv_err err = {0};
    CHECK_INT(r.code, 0);
    CHECK_OK(tv_json_parse(r.out, r.out_size, "stdout", &need, &err), &err);
    CHECK(cli_number(need, "passes") == 14 && cli_number(need, "tokens") == 14 * 30);
    CHECK(cli_number(need, "memory_bytes") > 0 && cli_number(need, "disk_bytes") > 0 &&
          cli_number(need, "seconds") > 0);
    cJSON_Delete(need);
    cli_free(&r);
    CLI(0, "memory", "tvgpu sample m --prompts p.jsonl -N 6 -n 5 -o r --dry-run");
    CHECK_INT(cli_entries("."), before);
}

/* Two checkpoints: ids must mean the same. */
static void two_models(void) {
    cli_tiny_model();
    CLI(0, NULL, "cp -r m other && tvgpu " SMALL "-R 2 --model-b other -o r");
    cJSON *r = cli_json("r/report.json");
    CHECK(cJSON_IsTrue(cli_at(r, "bit_identical")));
    cJSON_Delete(r);
    /* C22: the same weights under another base frequency are another model, and the report says which field it is */
    CLI(0, "One field differs, so it is the cause: rope_theta is",
        "sed -i 's/\\(\"rope_theta\":[^0-9]*\\)[0-9.e+]*/\\11000/' other/config.json && "
        "! cmp -s m/config.json other/config.json && tvgpu " SMALL "-R 2 --model-b other -o theta");
    r = cli_json("theta/report.json");
    CHECK(cli_number(r, "b.rope_theta") == 1000 && cli_number(r, "a.rope_theta") != 1000);
    CHECK(cJSON_IsFalse(cli_at(r, "bit_identical")));
    cJSON_Delete(r);
    CLI(2, "do not share a vocabulary: 128 ids in m, 4096 in", "tvgpu " SMALL "--model-b '%s' -o s",
        tv_bundled_model());
    /* another tokenizer: two tokens change places */
    CLI(0, NULL,
        "cp -r '%s' one && cp -r one two && sed -i 's/\"!\": *0,/\"!\": 1,/; s/\"\\\\\"\": *1,/\"\\\\\"\": 0,/' "
        "two/tokenizer.json"
        " && ! cmp -s one/tokenizer.json two/tokenizer.json",
        tv_bundled_model());
    CLI(2, "tokenizers differ: id 0", "tvgpu compare one -q -N 2 -n 2 --model-b two -o s");
    CHECK_INT(cli_entries("s"), -1);
}

/* A deterministic side stops after two identical passes unless told otherwise. */
static void stops_early(void) {
    cli_tiny_model();
    CLI(0, "deterministic", "tvgpu compare m --prompts p.jsonl -N 3 -n 3 -R 5 --order-b shuffled --batch-b 2 -o r");
    CHECK(!tv_path_exists(cli_path("r/a-on-a.pass-0002.safetensors")));
    CHECK(tv_path_exists(cli_path("r/b-on-b.pass-0004.safetensors")));
    CLI(0, NULL, "tvgpu compare m --prompts p.jsonl -N 3 -n 3 -R 3 --backend-b math --always-repeat -o s");
    CHECK(tv_path_exists(cli_path("s/a-on-a.pass-0002.safetensors")));
}

/* Memory that a dry run announces. */
static double announced(const char *option) {
    cli_result r = cli_run(NULL, "tvgpu compare m --prompts p.jsonl -q -N 200 -n 100 --dry-run --json %s", option);
    cJSON *json = NULL;
    tv_err err = {0};
    CHECK_OK(tv_json_parse(r.out, r.out_size, "stdout", &json, &err), &err);
    double bytes = cli_number(json, "memory_bytes");
    cJSON_Delete(json);
    cli_free(&r);
    return bytes;
}

/* Precisions and limits of one side: the report names the field, another value is another run, a smaller cache is
 * announced, and what preemption does again is said. */
static void switches(void) {
    cli_tiny_model();
    static const char *const options[][2] = {
        {"--kv-dtype-b fp8", "One field differs, so it is the cause: kv_dtype is bf16 on side a and fp8 on side b"},
        {"--kv-dtype-b int8", "One field differs, so it is the cause: kv_dtype is bf16 on side a and int8 on side b"},
        {"--weight-dtype-b int8", "One field differs, so it is the cause: weight_dtype is bf16 on side a and int8 on"},
        {"--weight-dtype-a int4", "One field differs, so it is the cause: weight_dtype is int4 on side a and bf16 on"},
        {"--isa-b scalar-tiles",
         "One field differs, so it is the cause: numerics is fma on side a and tiles on side b"}};
    for (int i = 0; i < 5; i++) {
        cli_result r = cli_run(NULL, "tvgpu " SMALL "-R 2 -o r%d %s", i, options[i][0]);
        char *one_line = tv_xstrdup(r.out);
        size_t to = 0;
        for (size_t from = 0; one_line[from]; from++) /* as if the text were not wrapped */
            if (!(strchr(" \n", one_line[from]) && to && one_line[to - 1] == ' '))
                one_line[to++] = one_line[from] == '\n' ? ' ' : one_line[from];
        one_line[to] = 0;
        CHECK_INT(r.code, 0);
        if (!CHECK(strstr(one_line, options[i][1]) != NULL)) printf("    %s\n", r.out);
        free(one_line);
        cli_free(&r);
    }
    CLI(2, "b.kv_dtype is \"fp8\" in that run and \"int8\" in this command",
        "tvgpu " SMALL "-R 2 -o r0 --kv-dtype-b int8");
    CLI(2, "--kv-tokens 3: one sequence alone declares", "tvgpu " SMALL "-R 2 -o none --kv-tokens-b 3");
    CHECK_INT(cli_entries("none"), -1);
    CLI(0, " preemptions; ",
        "tvgpu compare m --prompts p.jsonl -N 6 -n 20 -R 2 -o grow --kv-tokens-b 40 --admission-b grow");
    cJSON *r = cli_json("grow/run.json");
    CHECK(cli_number(r, "b.kv_tokens") == 40 && cli_number(r, "a.kv_tokens") == 0);
    CHECK_STR(cJSON_GetStringValue(cli_at(r, "b.admission")), "grow");
    CHECK_STR(cJSON_GetStringValue(cli_at(r, "b.prefill")), "mixed");
    cJSON_Delete(r);
    CLI(0, NULL,
        "for o in '--logits f32' '--kv-dtype fp8' '--kv-dtype int8' '--weight-dtype int8' '--weight-dtype int4'; do "
        "tvgpu logits m --logits f32 $o --tokens '1 2 3 4' -o x && cksum <x; done | sort -u | wc -l | grep -q 5");
    double plain = announced(""), fp8 = announced("--kv-dtype fp8"), one_side = announced("--kv-dtype-b int8");
    CHECK(fp8 < plain && one_side == plain); /* the smaller cache lies where the larger one does */
    CHECK(announced("--weight-dtype-b int8") > plain); /* a second copy of the weights, as wide as the first */
}

/* --target-error: blocks and passes are added until the interval is as tight as asked; the same command, and a tighter
 * one, go on from there; estimate reads all blocks; a budget that does not reach ends with 4 and the reason. */
static void target_error(void) {
    cli_tiny_model();
#define TARGET "compare m --prompts p.jsonl -N 8 -n 6 -R 2 --threads 1 --backend-b math --batch-b 4 --order-b shuffled "
    CLI(0, "target +-0.2: reached", "tvgpu " TARGET "--target-error 0.2 -o r");
    cJSON *r = cli_json("r/report.json");
    CHECK(cli_number(r, "N") == 32 && cli_number(r, "target.trajectories") == 32);
    CHECK(cJSON_IsTrue(cli_at(r, "target.reached")) && cli_number(r, "target.half_width") <= 0.2);
    CHECK(cli_number(r, "checks.sampling_agreement_a") >= 0);
    const double half = cli_number(r, "target.half_width");
    cJSON_Delete(r);
    CHECK(tv_path_exists(cli_path("r/block-0003/b-on-b.pass-0001.safetensors")));
    CHECK(!tv_path_exists(cli_path("r/block-0004")));
    char *before = cli_without_timing("r/report.json");
    CLI(0, "going on in r", "tvgpu " TARGET "--target-error 0.2 -o r");
    char *after = cli_without_timing("r/report.json");
    CHECK_STR(after, before);
    free(before), free(after);
    CLI(4, "the budget is 500", "tvgpu " TARGET "--target-error %.17g --budget 500 -o r", half / 1.5);
    CLI(0, "block 5 of", "tvgpu " TARGET "--target-error %.17g -o r", half / 1.2);
    r = cli_json("r/report.json");
    const double N = cli_number(r, "N");
    CHECK(N > 32 && cli_number(r, "target.half_width") <= half / 1.2);
    cJSON_Delete(r);
    cli_result e = cli_run(NULL, "tvgpu estimate r --json > e.json && tvgpu export r -o b.safetensors");
    CHECK_INT(e.code, 0);
    cli_free(&e);
    r = cli_json("e.json");
    CHECK(cli_number(r, "N") == N);
    cJSON_Delete(r);
    CLI(0, "the interval is as tight as asked", "tvgpu schedule b.safetensors --target-error %.17g", half);
    CLI(0, "run next:", "tvgpu schedule r --target-error %.17g", half / 4);
    CLI(0, "run next:", "tvgpu schedule b.safetensors --budget 1e6");
}

static const tv_test tests[] = {
    {"target_error", target_error},
    {"equal_sides", equal_sides},
    {"default_sides", default_sides},
    {"equal_runs", equal_runs},
    {"json_and_readout", json_and_readout},
    {"fail_above", fail_above},
    {"baseline", baseline},
    {"dry_run", dry_run},
    {"two_models", two_models},
    {"stops_early", stops_early},
    {"switches", switches},
};
TV_TEST_MAIN(tests)
