/* --keep-passes no: the same numbers as with the passes kept, on a disk that does not grow with R, however it is
 * stopped. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/cli_run.h"

#define OPTIONS "m --prompts p.jsonl -N 12 -n 40 --batch 6 --backend-b math --threads 1 -q"
#define NOISY OPTIONS " --order shuffled --arrivals staggered"

/* All numbers of y that x has are within 1e-12 of it; flags and words agree. What y lacks or has as null is counted. */
static int compare_json(const cJSON *x, const cJSON *y, const char *path) {
    if (!y || cJSON_IsNull(y)) return !cJSON_IsNull(x);
    int lost = 0;
    if (cJSON_IsObject(x)) {
        for (const cJSON *m = x->child; m; m = m->next) {
            char *below = tv_xprintf("%s.%s", path, m->string);
            if (strcmp(below, ".timing") != 0) lost += compare_json(m, cJSON_GetObjectItem(y, m->string), below);
            free(below);
        }
    } else if (cJSON_IsArray(x)) {
        for (int i = 0; i < cJSON_GetArraySize(x); i++) {
            char *below = tv_xprintf("%s[%d]", path, i);
            lost += compare_json(cJSON_GetArrayItem(x, i), cJSON_GetArrayItem(y, i), below);
            free(below);
        }
    } else if (cJSON_IsNumber(x)) {
        if (!(fabs(x->valuedouble - y->valuedouble) <= 1e-12 * fmax(1, fabs(x->valuedouble)))) {
            printf("%s: %.17g kept, %.17g folded\n", path, x->valuedouble, y->valuedouble);
            CHECK(!"equal within 1e-12");
        }
    } else {
        CHECK(cJSON_Compare(x, y, 1) || !printf("%s differs\n", path));
    }
    return lost;
}

/* Parts of the report that rest on the averages alone. The lists of the worst tokens and quantiles may swap equals. */
static void same_report(const char *kept, const char *folded) {
    static const char *const parts[] = {"tv",
                                        "estimators",
                                        "floor",
                                        "beyond_noise",
                                        "per_length",
                                        "checks",
                                        "bit_identical",
                                        "differing_values",
                                        "compared_values",
                                        "faithfulness",
                                        "deterministic",
                                        "reads_stored",
                                        "R",
                                        "readout",
                                        "sigma.a.union_chi2",
                                        "sigma.b.union_chi2",
                                        "sigma.a.realized",
                                        "sigma.b.realized",
                                        "support.a.mean",
                                        "support.b.max",
                                        "token.tv",
                                        "token.kl_ab",
                                        "token.js",
                                        "token.same_top1"};
    cJSON *x = cli_json(kept), *y = cli_json(folded);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!CHECK_INT(compare_json(cli_at(x, parts[i]), cli_at(y, parts[i]), parts[i]), 0)) printf("%s\n", parts[i]);
    cJSON_Delete(x);
    cJSON_Delete(y);
}

static void both_ways(const char *options, int64_t folds, int64_t passes) {
    cli_tiny_model();
    CLI(0, NULL, "rm -rf kept folded; tvgpu compare %s --serving-order -o kept", options);
    CLI(0, NULL, "tvgpu compare %s --keep-passes no -o folded", options);
    same_report("kept/report.json", "folded/report.json");
    CHECK_INT(cli_entries("folded"), 1 + 2 + folds + passes + 2); /* manifest, samples, reports */
    cli_result x = cli_run(NULL, "tvgpu compare %s --keep-passes no -o folded", options); /* nothing left to do */
    CHECK_INT(x.code, 0);
    CHECK(!strstr(x.out, "nan"));
    cli_free(&x);
}

/* Both sides draw compositions: R a multiple of 4, odd, and even with folds of unequal size. */
static void noisy(void) {
    both_ways(NOISY " -R 8", 16, 0);
    cJSON *r = cli_json("folded/report.json");
    CHECK(cli_number(r, "sigma.a.union_chi2") > 0); /* the passes do differ */
    CHECK(cJSON_IsNull(cli_at(r, "sigma.a.kurtosis")) && cli_at(r, "sigma.a.kurtosis_reason"));
    CHECK_INT(cJSON_GetArraySize(cli_at(r, "per_repeat")), 4);
    CHECK_NEAR(cli_number(cJSON_GetArrayItem(cli_at(r, "per_repeat"), 3), "r"), 8, 0);
    CHECK_NEAR(cli_number(cJSON_GetArrayItem(cli_at(r, "per_repeat"), 3), "tv"),
               cli_number(r, "estimators.plugin.estimate"), 0);
    CHECK(isfinite(cli_number(cJSON_GetArrayItem(cli_at(r, "per_repeat"), 1), "floor_a"))); /* r = 4 of 8 */
    cJSON_Delete(r);
}
static void odd(void) { both_ways(NOISY " -R 5", 20, 0); }
static void unequal(void) { both_ways(NOISY " -R 6", 20, 0); }
static void one_pass(void) { both_ways(NOISY " -R 1", 4, 0); }

/* A deterministic side stops after two passes, which stay as they are; beside a side that draws, and beside its like.
 */
static void deterministic(void) {
    both_ways(OPTIONS " -R 8 --order-b shuffled", 8, 4);
    both_ways(OPTIONS " -R 8", 0, 8);
    both_ways("m --prompts p.jsonl -N 4 -n 8 -R 4 --backend-a flash --backend-b flash --always-repeat --threads 1 -q",
              16, 0);
}

static int stop_at(const char *folder, int entries, const char *command) {
    const pid_t pid = cli_start("%s", command);
    int status = 0;
    for (;;) {
        const pid_t ended = waitpid(pid, &status, WNOHANG);
        TV_ASSERT(ended >= 0);
        if (ended) return 0;
        if (cli_entries(folder) >= entries) break;
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    kill(pid, SIGKILL);
    TV_ASSERT(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status);
}

/* kill -9 within sampling, between and within passes and folds; the last go ends the run with the same bytes. */
static void killed(void) {
    static const char command[] = "tvgpu compare " NOISY " -R 8 --keep-passes no -o parts";
    cli_tiny_model();
    CLI(0, NULL, "tvgpu compare " NOISY " -R 8 --keep-passes no -o whole");
    int stopped = 0;
    for (int entries = 1; entries < 19; entries += 3) stopped += stop_at("parts", entries, command);
    CHECK(stopped >= 4);
    CLI(0, NULL, "%s", command);
    CLI(0, NULL,
        "for f in whole/*.safetensors; do cmp $f parts/${f##*/} || exit 1; done; ls whole >w; ls parts >p; cmp w p");
    char *x = cli_without_timing("whole/report.json"), *y = cli_without_timing("parts/report.json");
    CHECK_STR(y, x);
    free(x), free(y);
}

/* score folds one side at a time and on from where it stopped; what needs both sides' passes at once is null. */
static void score(void) {
    static const char more[] = "--batch 4 --order shuffled --threads 1 -q";
    cli_tiny_model();
    for (int e = 0; e < 2; e++)
        CLI(0, NULL, "tvgpu sample m --prompts p.jsonl -N 6 -n 20 %s -o kept --side %c", more, 'a' + e);
    CLI(0, NULL, "cp -r kept folded");
    for (int e = 0; e < 2; e++) {
        const char *backend = e ? "math" : "flash";
        CLI(0, NULL, "tvgpu score m %s -R 4 --backend %s -o kept --side %c", more, backend, 'a' + e);
        CLI(0, NULL, "tvgpu score m %s -R 4 --backend %s -o folded --side %c --keep-passes no", more, backend, 'a' + e);
        CLI(0, "0", "tvgpu score m %s -R 4 --backend %s -o folded --side %c --keep-passes no --json", more, backend,
            'a' + e);
    }
    CHECK_INT(cli_entries("folded"), 2 + 16);
    CLI(0, NULL, "tvgpu estimate kept --serving-order --json >kept.json && tvgpu estimate folded --json >folded.json");
    cJSON *x = cli_json("kept.json"), *y = cli_json("folded.json");
    compare_json(cli_at(x, "estimators"), cli_at(y, "estimators"), "estimators");
    CHECK_INT(compare_json(cli_at(x, "checks"), cli_at(y, "checks"), "checks"), 0);
    CHECK(cJSON_IsFalse(cli_at(y, "bit_identical")) && cJSON_IsNull(cli_at(y, "differing_values")));
    CHECK(cli_at(y, "differing_values_reason") != NULL);
    cJSON_Delete(x), cJSON_Delete(y);
    CLI(0, "folded apart", "tvgpu estimate folded");
    CLI(2, "folded for R = 4", "tvgpu score m %s -R 8 --backend flash -o folded --side a --keep-passes no", more);
    CLI(2, "keep_passes", "tvgpu score m %s -R 4 --backend flash -o folded --side a", more);
    CLI(2, "keep_passes", "tvgpu score m %s -R 4 --backend flash -o kept --side a --keep-passes no", more);
    CLI(2, "backend is", "tvgpu score m %s -R 4 --backend eager -o folded --side a --keep-passes no", more);
}

/* What needs the passes says so; run.json holds the choice; --dry-run shows both needs. */
static void refusals(void) {
    cli_tiny_model();
    CLI(0, NULL, "tvgpu compare " NOISY " -R 4 --keep-passes no -o r && cp -r r kept");
    CLI(2, "keep_passes is \"no\" in that run", "tvgpu compare " NOISY " -R 4 -o r");
    CLI(2, "readout = 7", "tvgpu estimate r --readout 7");
    CLI(2, "for R = 4", "tvgpu estimate r --reads 2");
    CLI(0, NULL, "tvgpu estimate r --readout 20 --reads 4");
    CLI(2, "calibrate needs each", "tvgpu calibrate r");
    CLI(2, "schedule needs each", "tvgpu schedule r");
    CLI(2, "a bundle needs each", "tvgpu export r -o bundle.safetensors");
    CLI(2, "--target-error", "tvgpu compare " NOISY " --keep-passes no --target-error 0.1 -o other");
    CLI(0, NULL, "diff -r r kept");
    CLI(0, "with --keep-passes no", "tvgpu compare " NOISY " -R 64 --dry-run");
    CLI(0, NULL,
        "tvgpu compare " NOISY " -R 64 --keep-passes no --dry-run --json >d64.json && "
        "tvgpu compare " NOISY " -R 1024 --keep-passes no --dry-run --json >d1024.json");
    cJSON *x = cli_json("d64.json"), *y = cli_json("d1024.json");
    CHECK_NEAR(cli_number(y, "disk_bytes"), cli_number(x, "disk_bytes"), 0);
    CHECK(cli_number(y, "disk_bytes_kept") > 10 * cli_number(y, "disk_bytes"));
    cJSON_Delete(x), cJSON_Delete(y);
    /* a damaged or missing fold, and passes beside folds */
    CLI(0, NULL, "rm r/a-on-b.fold-1.safetensors");
    CLI(1, "1 of 4 passes of side a over set b", "tvgpu estimate r");
    CLI(0, NULL, "cp kept/a-on-b.fold-2.safetensors r/a-on-b.fold-1.safetensors");
    CLI(1, "holds fold 2", "tvgpu estimate r");
    CLI(0, NULL,
        "rm -r r && cp -r kept r && tvgpu compare " NOISY " -R 5 -o k5 && cp k5/a-on-b.pass-0004.safetensors r");
    CLI(1, "two runs in one folder", "tvgpu estimate r");
}

static const tv_test tests[] = {{"noisy", noisy},
                                {"odd", odd},
                                {"unequal", unequal},
                                {"one_pass", one_pass},
                                {"deterministic", deterministic},
                                {"killed", killed},
                                {"score", score},
                                {"refusals", refusals}};
TV_TEST_MAIN(tests)
