/* Runs that are stopped at any moment go on with the same command and end as if they had not been stopped. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/cli_run.h"

/* New compositions in every pass, so that a pass that were run twice, or left out, would show. */
#define OPTIONS                                                                                                        \
    "m --prompts p.jsonl -N 12 -n 40 -R 4 --batch 6 --order shuffled --arrivals staggered --backend-b math "           \
    "--threads 1 -q"

/* Starts the command and sends it signal once folder holds at least `entries` entries. 1 when that ended it. */
static int stop_at(const char *folder, int entries, int signal, const char *command) {
    pid_t pid = cli_start("%s", command);
    int status = 0;
    for (;;) {
        pid_t ended = waitpid(pid, &status, WNOHANG);
        TV_ASSERT(ended >= 0);
        if (ended) return 0;
        if (cli_entries(folder) >= entries) break;
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    kill(pid, signal);
    TV_ASSERT(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status);
}

/* Both folders hold the same names, and the same bytes in all that does not tell when and where. */
static void same_folders(const char *x, const char *y) {
    CLI(0, NULL, "for d in %s %s; do (cd $d && ls -A | LC_ALL=C sort >../$d.names); done; cmp %s.names %s.names", x, y,
        x, y);
    CLI(0, NULL, "for f in %s/*.safetensors; do cmp $f %s/${f##*/} || exit 1; done", x, y);
}

/* kill -9 and Ctrl-C after the manifest, within sampling, between and within passes; the last go ends the run. */
static void compare(void) {
    static const struct {
        int entries, signal;
    } stops[] = {{1, SIGKILL}, {2, SIGKILL}, {3, SIGINT}, {5, SIGKILL}, {9, SIGKILL}, {14, SIGTERM}};
    cli_tiny_model();
    CLI(0, NULL, "tvgpu compare " OPTIONS " -o whole");
    CHECK_INT(cli_entries("whole"), 21); /* run.json, two sets, sixteen passes, two reports */
    int stopped = 0;
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        stopped += stop_at("parts", stops[i].entries, stops[i].signal, "tvgpu compare " OPTIONS " -o parts");
    CHECK(stopped >= 3);
    CLI(0, NULL, "tvgpu compare " OPTIONS " -o parts");
    same_folders("whole", "parts");
    char *x = cli_without_timing("whole/report.json"), *y = cli_without_timing("parts/report.json");
    CHECK_STR(y, x);
    free(x), free(y);
    cJSON *whole = cli_json("whole/report.json"), *parts = cli_json("parts/report.json");
    CHECK(cli_number(whole, "sigma.a.union_chi2") > 0); /* passes do differ */
    CHECK(cJSON_IsTrue(cli_at(parts, "timing.resumed")) && cJSON_IsFalse(cli_at(whole, "timing.resumed")));
    CHECK(cli_number(parts, "timing.tokens_computed") < cli_number(whole, "timing.tokens_computed"));
    cJSON_Delete(whole);
    cJSON_Delete(parts);
    /* with nothing left to do it only reports, and says the same */
    cli_result first = cli_run(NULL, "tvgpu compare " OPTIONS " -o whole"),
               again = cli_run(NULL, "tvgpu compare " OPTIONS " -o parts --threads 2");
    CHECK_INT(again.code, 0);
    CHECK_STR(again.out, first.out);
    cli_free(&first), cli_free(&again);
}

/* A lost pass is made again, whichever it was. */
static void lost_pass(void) {
    cli_tiny_model();
    CLI(0, NULL,
        "tvgpu compare " OPTIONS " -o whole && cp -r whole parts && rm parts/a-on-b.pass-0001.safetensors "
        "parts/b.samples.safetensors");
    CLI(0, NULL, "tvgpu compare " OPTIONS " -o parts");
    same_folders("whole", "parts");
}

/* sample and score, stopped and repeated in a script as a whole, end where compare ends. */
static void halves(void) {
    static const char script[] =
        "for s in a b; do\n"
        "  tvgpu sample m --prompts p.jsonl -N 12 -n 40 --batch 6 --order shuffled --threads 1 "
        "-q -o $1 --side $s || exit 1\n"
        "done\n"
        "for s in a b; do tvgpu score m -R 3 --batch 6 --order shuffled --threads 1 -q -o $1 "
        "--side $s || exit 1; done\n";
    cli_tiny_model();
    CLI(0, NULL, "set whole\n%s", script);
    CHECK_INT(cli_entries("whole"), 2 + 12);
    CLI(0, NULL, "cp -r whole parts && rm parts/*-on-*");
    int stopped = 0;
    for (int entries = 3; entries < 9; entries += 2)
        stopped += stop_at("parts", entries, SIGKILL,
                           "tvgpu score m -R 3 --batch 6 --order shuffled --threads 1 -q -o parts --side a");
    CHECK(stopped >= 1);
    CLI(0, NULL, "touch parts/a-on-a.pass-0001.safetensors.tmp-999999"); /* as a killed run leaves it */
    CLI(0, NULL, "set parts\n%s", script);
    same_folders("whole", "parts");
    cli_result x = cli_run(NULL, "tvgpu estimate whole --json"), y = cli_run(NULL, "tvgpu estimate parts --json");
    CHECK_INT(x.code, 0);
    CHECK_STR(y.out, x.out);
    cli_free(&x), cli_free(&y);
    /* the same measurement as compare's */
    CLI(0, NULL,
        "tvgpu compare m --prompts p.jsonl -N 12 -n 40 -R 3 --batch 6 --order shuffled --backend-b auto "
        "--threads 1 -q -o together");
    CLI(0, NULL, "for f in whole/*.safetensors; do cmp $f together/${f##*/} || exit 1; done");
}

/* Another command finds the folder taken: the field is named, and nothing changes in it. */
static void other_options(void) {
    static const struct {
        const char *command, *part;
    } cases[] = {
        {"compare m --prompts p.jsonl -N 5 -n 4 -R 2 --backend-b math -q -o r", "N is 4 in that run and 5 in this"},
        {"compare m --prompts p.jsonl -N 4 -n 4 -R 2 --backend-b eager -q -o r", "b.backend is \"math\" in that run"},
        {"compare m --prompts p.jsonl -N 4 -n 4 -R 2 --backend-b math --seed-b 9 -q -o r", "seed_b is \"1\""},
        {"compare m --prompts p.jsonl -N 4 -n 4 -R 2 --backend-b math --temperature 0.30000000000000004 -q -o r",
         "a.temperature is 1 in that run and 0.30000000000000004 in this"},
        {"compare m --prompts q.jsonl -N 4 -n 4 -R 2 --backend-b math -q -o r", "prompt_ids"},
        {"compare other --prompts p.jsonl -N 4 -n 4 -R 2 --backend-b math -q -o r", "weights_hash"},
        {"sample m --prompts p.jsonl -N 4 -n 5 -q -o r", "n is 4 in it and 5 in this command"},
        {"score m --top-k 7 -R 2 -q -o r", "top_k is 20 in it and 7 in this command"},
    };
    cli_tiny_model();
    CLI(0, NULL,
        "tvgpu compare m --prompts p.jsonl -N 4 -n 4 -R 2 --backend-b math -q -o r && cp -r r kept"
        " && echo '{\"ids\": [7]}' >q.jsonl && cp -r m other");
    CLI(0, NULL,
        "printf '\\001' | dd of=other/model.safetensors bs=1 seek=$(($(wc -c <m/model.safetensors) - 9)) "
        "conv=notrunc 2>/dev/null && ! cmp -s m/model.safetensors other/model.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) CLI(2, cases[i].part, "tvgpu %s", cases[i].command);
    CLI(0, NULL, "diff -r r kept");
}

static const tv_test tests[] = {
    {"compare", compare}, {"lost_pass", lost_pass}, {"halves", halves}, {"other_options", other_options}};
TV_TEST_MAIN(tests)
