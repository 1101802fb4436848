/* The program from the outside: on a machine without a card, and whole runs on the emulated one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/ops.h"
#include "tests/check.h"
#include "tests/cli_run.h"

#define SIMT TV_BINARY_DIR "/tvgpu-simt "

/* Without a card: what is missing is said in one sentence with exit code 2, `auto` quietly takes the CPU, and what a
 * name would need is listed beside what there is. */
static void test_no_card(void) {
    cli_tiny_model();
    cli_result r = cli_run(NULL, "tvgpu info m --json");
    cJSON *info = cJSON_Parse(r.out);
    const cJSON *cuda = cJSON_GetArrayItem(cli_at(info, "devices"), 0);
    CHECK_INT(r.code, 0);
    CHECK_STR(r.err, "");
    if (cJSON_IsTrue(cli_at(cuda, "available"))) {
        tv_test_skip("there is a card");
    } else {
        const char *why = cJSON_GetStringValue(cli_at(cuda, "reason"));
        CHECK_STR(cJSON_GetStringValue(cli_at(cuda, "name")), "cuda");
        CHECK(why && *why);
        CLI(0, why, "tvgpu info m");
        CLI(0, "cpu      available", "tvgpu info m");
        CLI(2, why, "tvgpu compare m --device cuda -o run --prompts p.jsonl");
        CLI(2, why, "tvgpu logits m --device cuda --tokens '1 2' -o l.safetensors");
        CHECK_INT(cli_entries("run"), -1);
        CLI(2, "flash (available)", "tvgpu compare m --backend-a cudnn --backend-b math -o run --prompts p.jsonl");
    }
    cJSON_Delete(info);
    cli_free(&r);
}

/* compare runs to its end on the card, gives the same report with graphs and without, and measures a distance between
 * two backends that is there and small. */
static void test_compare(void) {
    static const char rest[] =
        "m --device cuda --backend-a flash --backend-b math -N 4 -n 12 -R 2 --prompts p.jsonl -q";
    cli_tiny_model();
    CLI(0, NULL, SIMT "compare %s -o with", rest);
    CLI(0, NULL, SIMT "compare %s -o without --graphs off", rest);
    char *with = cli_without_timing("with/report.json"), *without = cli_without_timing("without/report.json");
    CHECK_STR(with, without);
    cJSON *report = cli_json("with/report.json");
    double tv = cli_number(report, "tv.estimate");
    CHECK(tv >= 0 && tv < 0.2);
    CHECK_STR(cJSON_GetStringValue(cli_at(report, "a.device")), "cuda");
    cJSON_Delete(report);
    free(with), free(without);
}

/* Every output of a run on the card names the libraries and what they chose: info, traces by way of estimate, the
 * report as JSON, text and page, bench, logits. A run on the CPU says nothing of it. */
static void test_library_choices(void) {
    static const char plan[] = "cuDNN, 4 sequences, 1 row, 256 keys: stand-in",
                      absent[] = "cuBLASLt: not in this build";
    cli_tiny_model();
    CLI(0, absent, SIMT "info m --device cuda");
    CLI(0, "cuDNN, 1 sequence, 1 row, 256 keys: stand-in", SIMT "info m --device cuda --plan");
    CLI(0, plan, SIMT "info m --device cuda --plan --batch 3 --json");
    CLI(0, "steps of 1000000 sequences cannot run: ", SIMT "info m --device cuda --plan --batch 1000000");
    CLI(0, plan,
        SIMT "compare m --device cuda --backend-a cudnn --backend-b math -N 3 -n 6 -R 2 --prompts p.jsonl -o run");
    CLI(0, plan, SIMT "estimate run");
    CLI(0, plan, SIMT "estimate run --json");
    CLI(0, plan, "cat run/report.html");
    cJSON *report = cli_json("run/report.json");
    char *a = tv_json_line(cli_at(report, "libraries.a")), *b = tv_json_line(cli_at(report, "libraries.b"));
    CHECK(strstr(a, plan) && strstr(a, absent) && !strstr(b, "cuDNN") && strstr(b, absent));
    free(a), free(b);
    cJSON_Delete(report);
    CLI(0, NULL, SIMT "logits m --device cuda --tokens '1 2 3' --path decode --backend cudnn -o l.safetensors");
    CLI(0, "1", "grep -ac cuDNN l.safetensors");

    cli_result r =
        cli_run(NULL, "tvgpu info m --plan --device cpu; tvgpu compare m -N 3 -n 6 -R 2 --prompts p.jsonl --device cpu"
                      " --backend-b math -o cpu; cat cpu/report.json; grep -ac libraries cpu/*");
    CHECK(strstr(r.out, "bit_identical") && !strstr(r.out, "librar") && !strstr(r.out, "cuBLASLt"));
    CHECK(strstr(r.out, "report.html:0"));
    cli_free(&r);
}

/* A model that cuDNN's engines refuse: info says so in the library's words, `auto` takes the next backend, and asking
 * for it by name fails with the reason and what exists instead. */
static void test_refused_by_cudnn(void) {
    static const char refuses[] = "SIMT_CUDNN_REFUSES='no such mask'";
    cli_tiny_model();
    CLI(0, "cudnn    available", SIMT "info m --device cuda");
    CLI(0, "cudnn    not available: is refused: cuDNN has no plan for attention of b=1, H=4: engine 0: no such mask",
        "%s %s", refuses, SIMT "info m --device cuda");
    CLI(2, "engine 0: no such mask (H=4, G=2, HS=32); on device cuda there are:", "%s %s", refuses,
        SIMT "logits m --device cuda --backend cudnn --tokens '1 2' -o l.safetensors");
    CLI(0, "flash attention", "%s %s", refuses, SIMT "logits m --device cuda --tokens '1 2' -o l.safetensors");
}

/* The same logits from the card and from the CPU, to what bf16 leaves: another drift to measure, not another model. */
static void test_devices_agree(void) {
    static const char *const paths[] = {"prefill", "decode"};
    cli_tiny_model();
    for (int i = 0; i < 2; i++) {
        CLI(0, NULL, SIMT "logits m --device cuda --tokens '1 2 3 4 5' --path %s -o cuda.safetensors -q", paths[i]);
        CLI(0, NULL, SIMT "logits m --device cpu --tokens '1 2 3 4 5' --path %s -o cpu.safetensors -q", paths[i]);
        size_t size[2];
        char *text[2];
        tv_err err = {0};
        TV_ASSERT(tv_file_read(cli_path("cuda.safetensors"), 1 << 20, &text[0], &size[0], &err) == TV_OK);
        TV_ASSERT(tv_file_read(cli_path("cpu.safetensors"), 1 << 20, &text[1], &size[1], &err) == TV_OK);
        enum { VALUES = 5 * 128 };
        CHECK(size[0] > 4 * VALUES && size[1] > 4 * VALUES); /* headers differ: the card names its libraries */
        double d = 0, norm = 0;
        for (size_t j = 0; j < VALUES; j++) {
            float a, b;
            memcpy(&a, text[0] + size[0] - 4 * (VALUES - j), 4);
            memcpy(&b, text[1] + size[1] - 4 * (VALUES - j), 4);
            d += ((double)a - b) * ((double)a - b), norm += (double)b * b;
        }
        CHECK(norm > 0 && sqrt(d / norm) < 0.02);
        free(text[0]), free(text[1]);
    }
    CLI(2, "flash (available)",
        SIMT "logits m --device cuda --backend cudnn --kv-dtype fp8 --tokens '1 2' -o l.safetensors");
    CLI(2, "card 0 alone", SIMT "logits m --device cuda --gpu 1 --tokens '1 2' -o l.safetensors");
}

static const tv_test tests[] = {{"no_card", test_no_card},
                                {"compare", test_compare},
                                {"library_choices", test_library_choices},
                                {"refused_by_cudnn", test_refused_by_cudnn},
                                {"devices_agree", test_devices_agree}};
TV_TEST_MAIN(tests)
