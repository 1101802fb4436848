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
        CHECK_INT(size[0], size[1]);
        enum { VALUES = 5 * 128 };
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

static const tv_test tests[] = {
    {"no_card", test_no_card}, {"compare", test_compare}, {"devices_agree", test_devices_agree}};
TV_TEST_MAIN(tests)
