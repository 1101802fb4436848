/* cuDNN's plans for an H200, made without one: every shape that the engine can ask for is accepted by an engine, and a
 * plan of each kind is compiled to the end. Needs libcudnn and, in place of a driver, stand_in_driver.c. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cudnn_graph.h"
#include "tests/check.h"

static const struct {
    const char *models;
    int H, G, HS;
} families[] = {{"bundled, Qwen3 style", 4, 2, 32},
                {"Qwen2.5 0.5B", 14, 2, 64},
                {"Qwen2.5 1.5B", 12, 2, 128},
                {"Qwen2.5 3B", 16, 2, 128},
                {"Qwen2.5 7B", 28, 4, 128},
                {"Qwen3 0.6B, 1.7B", 16, 8, 128},
                {"Qwen3 4B, 8B", 32, 8, 128},
                {"Qwen3 30B-A3B", 32, 4, 128},
                {"Qwen3 14B; Qwen2.5 14B, 32B", 40, 8, 128},
                {"Qwen3 32B; Qwen2.5 72B", 64, 8, 128}};
enum { N_FAMILIES = sizeof families / sizeof *families };

static cudnn_lib *open_or_skip(void) {
    tv_err err = {0};
    cudnn_lib *lib = NULL;
    const char *why = NULL;
    if (!cudnn_version(&why)) {
        tv_test_skip(why);
        return NULL;
    }
    CHECK_OK(cudnn_lib_open(NULL, cudnn_h200, &lib, &err), &err);
    return lib;
}

static cudnn_shape shape(int family, int b, int sq, int skv, int config) {
    cudnn_shape s;
    memset(&s, 0, sizeof s);
    s.b = b, s.H = families[family].H, s.G = families[family].G, s.HS = families[family].HS;
    s.sq = sq, s.skv = skv, s.page = 64, s.S = skv + 64, s.pages = (int64_t)b * s.G * (s.S / 64);
    s.causal = sq > 1, s.config = config;
    return s;
}

/* Decode at every batch and extent, and prefill at every class, of every family, are taken by some engine. */
static void test_all_supported(void) {
    tv_err err = {0};
    cudnn_lib *lib = open_or_skip();
    if (!lib) return;
    int asked = 0;
    for (int f = 0; f < N_FAMILIES; f++) {
        for (int b = 1; b <= 512; b *= 2)
            for (int skv = 256; skv <= 65536; skv *= 4, asked++) {
                cudnn_shape s = shape(f, b, 1, skv, 0);
                CHECK_OK(cudnn_shape_supported(lib, &s, &err), &err);
            }
        for (int sq = 128; sq <= 8192; sq *= 2)
            for (int b = 1; b <= 16 && b * sq <= 16384; b *= 4, asked++) {
                cudnn_shape s = shape(f, b, sq, sq < 2048 ? 2048 : sq, 0);
                CHECK_OK(cudnn_shape_supported(lib, &s, &err), &err);
            }
    }
    printf("%d shapes supported\n", asked);
    cudnn_lib_close(lib);
}

/* One plan of each compiled kind is made to the end, says what it is, and may be recorded in a graph. */
static void test_plans(void) {
    static const struct {
        int family, b, sq, skv, config;
        const char *want;
    } cases[] = {{5, 1, 1, 256, 0, "engine 1, "},
                 {5, 1, 1, 2048, 0, "engine 1, configuration 35"},
                 {5, 8, 1, 2048, 0, "engine 1, configuration 35"},
                 {5, 64, 1, 2048, 0, "engine 1, configuration 35"},
                 {7, 512, 1, 1024, 0, "engine 1, configuration 35"},
                 {1, 8, 1, 2048, 0, "engine 1, "},
                 {0, 4, 1, 256, 0, "engine 1, "},
                 {5, 1, 1, 4096, 3, "engine 1, configuration 3"},
                 {5, 64, 1, 4096, 3, "engine 1, configuration 3"},
                 {5, 4, 512, 2048, 0, "engine 2, configuration 7"},
                 {9, 1, 8192, 8192, 0, "engine 2, configuration 7"},
                 {1, 16, 128, 512, 0, "engine 2, configuration 7"},
                 {0, 1, 128, 128, 0, "engine 2, configuration 7"}};
    tv_err err = {0};
    cudnn_lib *lib = open_or_skip();
    if (!lib) return;
    const int known = cudnn_version(NULL) / 100 == 919; /* numbers of configurations change between versions */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cudnn_shape s = shape(cases[i].family, cases[i].b, cases[i].sq, cases[i].skv, cases[i].config);
        cudnn_plan *plan = NULL;
        if (s.config && !known) continue;
        if (!CHECK_OK(cudnn_plan_open(lib, &s, &plan, &err), &err)) {
            tv_err_clear(&err);
            continue;
        }
        printf("%-28s %4d sequences %5d rows %6d keys: %s\n", families[cases[i].family].models, s.b, s.sq, s.skv,
               cudnn_plan_describe(plan));
        if (known) CHECK(!strncmp(cudnn_plan_describe(plan), cases[i].want, strlen(cases[i].want)));
        if (s.config) CHECK_INT(cudnn_plan_workspace(plan), 0); /* keys are not split */
        CHECK(cudnn_plan_recordable(plan));
        cudnn_plan_close(plan);
    }
    cudnn_lib_close(lib);
}

/* A shape that no engine takes is refused with the engines' reasons. */
static void test_refusal(void) {
    tv_err err = {0};
    cudnn_lib *lib = open_or_skip();
    if (!lib) return;
    cudnn_shape s = shape(5, 4, 128, 2048, 0);
    cudnn_plan *plan = NULL;
    s.HS = 36;
    CHECK_FAILS(cudnn_shape_supported(lib, &s, &err), TV_EUNSUPPORTED, &err, "multiple of 8");
    CHECK_FAILS(cudnn_plan_open(lib, &s, &plan, &err), TV_EUNSUPPORTED, &err, "HS=36");
    CHECK(!plan);
    cudnn_lib_close(lib);
}

static const tv_test tests[] = {
    {"all supported", test_all_supported}, {"plans", test_plans}, {"refusal", test_refusal}};
TV_TEST_MAIN(tests)
