/* The smaller commands from the outside: what they read, print and write. */
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/cli_run.h"
#include "traces/safetensors.h"

#define NOISY                                                                                                          \
    "m --prompts p.jsonl -N 12 -n 40 -R 4 --batch 6 --order shuffled --arrivals staggered --backend-b math --threads " \
    "1 "                                                                                                               \
    "-q "

static cJSON *printed(const cli_result *r) {
    cJSON *json = NULL;
    tv_err err = {0};
    CHECK_INT(r->code, 0);
    CHECK_OK(tv_json_parse(r->out, r->out_size, "stdout", &json, &err), &err);
    TV_ASSERT(json);
    return json;
}

static tv_st_file *open_file(const char *name) {
    tv_st_file *f = NULL;
    tv_err err = {0};
    CHECK_OK(tv_st_open(cli_path(name), &f, &err), &err);
    TV_ASSERT(f);
    return f;
}

/* Logits of ids from the command line and from a file; both paths agree within bf16; no tokenizer is needed. */
static void logits(void) {
    cli_tiny_model();
    int32_t ids[6] = {5, 9, 17, 88, 2, 0};
    tv_st_tensor t = {
        .name = "tokens", .dtype = TV_I32, .n_dims = 2, .shape = {2, 3}, .data = (void *)ids, .bytes = sizeof ids};
    static const char *const none[] = {NULL};
    tv_err err = {0};
    CHECK_OK(tv_st_write(cli_path("ids.safetensors"), &t, 1, none, &err), &err);
    CLI(0, "wrote one.safetensors: logits f32 [1,3,128], prefill path",
        "tvgpu logits m --tokens '5 9 17' -o one.safetensors");
    CLI(0, NULL, "tvgpu logits m --tokens '[5, 9,17]' -o same.safetensors && cmp one.safetensors same.safetensors");
    CLI(0, "logits f32 [2,3,128]", "tvgpu logits m --tokens ids.safetensors --reduction fixed -o two.safetensors");
    CLI(0, "decode path",
        "tvgpu logits m --tokens ids.safetensors --path decode --reduction fixed -o step.safetensors");
    CLI(0, "math attention", "tvgpu logits m --tokens '5 9 17' --backend math --reduction fixed -o math.safetensors");
    static const int64_t shape[3] = {2, 3, 128};
    tv_st_file *one = open_file("one.safetensors"), *two = open_file("two.safetensors"),
               *step = open_file("step.safetensors");
    const tv_st_tensor *x, *y, *z;
    CHECK_OK(tv_st_need(one, "logits", TV_F32, 3, (int64_t[]){1, 3, 128}, &x, &err), &err);
    CHECK_OK(tv_st_need(two, "logits", TV_F32, 3, shape, &y, &err), &err);
    CHECK_OK(tv_st_need(step, "logits", TV_F32, 3, shape, &z, &err), &err);
    double largest = 0, apart = 0, row = 0;
    for (size_t i = 0; i < 2 * 3 * 128; i++) {
        float a, b, c;
        memcpy(&b, y->data + 4 * i, 4), memcpy(&c, z->data + 4 * i, 4);
        if (i < 3 * 128) {
            memcpy(&a, x->data + 4 * i, 4);
            row = fmax(row, fabs(a - b));
        }
        largest = fmax(largest, fabs(b)), apart = fmax(apart, fabs(b - c));
        CHECK(isfinite(b) && isfinite(c));
    }
    CHECK(largest > 1 && apart < 0.05 * largest && row < 0.05 * largest);
    tv_st_close(one), tv_st_close(two), tv_st_close(step);
    CLI(2, "choose one of prefill|decode", "tvgpu logits m --tokens 1 --path both -o l.safetensors");
}

/* tokenize answers each line before the next one is there, exactly one line for one. */
static void tokenize_streams(void) {
    int in[2], out[2];
    char buf[256];
    TV_ASSERT(pipe(in) == 0 && pipe(out) == 0);
    fflush(NULL);
    pid_t pid = fork();
    TV_ASSERT(pid >= 0);
    if (pid == 0) {
        dup2(in[0], 0), dup2(out[1], 1);
        close(in[0]), close(in[1]), close(out[0]), close(out[1]);
        char *line =
            tv_xprintf("exec " TV_RUN_PREFIX "'%s/tvgpu' tokenize '%s' --jsonl", TV_BINARY_DIR, tv_bundled_model());
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(97);
    }
    close(in[0]), close(out[1]);
    static const char *const lines[] = {"\"To be, or not\"\n", "\"\"\n", "\"To be, or not\"\r\n"};
    static const char *const ids[] = {"[648, 303, 11, 445, 356]\n", "[]\n", "[648, 303, 11, 445, 356]\n"};
    for (int i = 0; i < 3; i++) {
        TV_ASSERT(write(in[1], lines[i], strlen(lines[i])) > 0);
        struct pollfd p = {.fd = out[0], .events = POLLIN};
        if (!CHECK(poll(&p, 1, 60000) == 1)) break; /* it waits for more */
        ssize_t n = read(out[0], buf, sizeof buf - 1);
        buf[n < 0 ? 0 : n] = 0;
        CHECK_STR(buf, ids[i]);
    }
    close(in[1]), close(out[0]);
    int status;
    TV_ASSERT(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Every form of tokenize, there and back; only the two tokenizer files are needed. */
static void tokenize(void) {
    static const struct {
        const char *input, *options, *output;
    } cases[] = {{"To be, or not", "", "648 303 11 445 356\n"},
                 {"648 303 11 445 356", "--decode", "To be, or not"},
                 {"\"a\\u0000b\"\n\"\\u00e9\"\n", "--jsonl | tvgpu tokenize t --jsonl --decode",
                  "\"a\\u0000b\"\n\"\xC3\xA9\"\n"},
                 {"[]\n[648]\n", "--jsonl --decode", "\"\"\n\"To\"\n"}};
    CLI(0, NULL, "mkdir t && cp '%s'/tokenizer.json '%s'/tokenizer_config.json t", tv_bundled_model(),
        tv_bundled_model());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = cli_run(cases[i].input, "tvgpu tokenize t %s", cases[i].options);
        CHECK_INT(r.code, 0);
        CHECK_STR(r.out, cases[i].output);
        cli_free(&r);
    }
    static const char message[] = "[{\"role\": \"user\", \"content\": \"Hi\"}]\n";
    cli_result on = cli_run(message,
                            "tvgpu tokenize t --jsonl --chat --thinking on | tvgpu tokenize t --jsonl --decode"),
               off = cli_run(message,
                             "tvgpu tokenize t --jsonl --chat --thinking off | tvgpu tokenize t --jsonl --decode");
    CHECK(strstr(on.out, "user\\u000aHi<|im_end|>") != NULL && strstr(on.out, "<|im_start|>assistant") != NULL);
    CHECK(strstr(off.out, "<think>\\u000a\\u000a</think>") != NULL && !strstr(on.out, "</think>"));
    cli_free(&on), cli_free(&off);
    static const struct {
        const char *input, *options, *part;
        int code;
    } bad[] = {{"\"a\"\n\n\"b\"\n", "--jsonl", "line 2: empty", 2},
               {"\"a\"\n17\n", "--jsonl", "line 2: wants a JSON string", 2},
               {"\"a\n", "--jsonl", "line 1: not valid JSON", 1},
               {"[1, -2]\n", "--jsonl --decode", "line 1: -2 is not a token id", 2},
               {"[1.5]\n", "--jsonl --decode", "line 1: a token id is 1.5", 1},
               {"\"x\"\n", "--jsonl --decode", "line 1: --decode wants an array", 2},
               {"[{\"role\": \"user\"}]\n", "--jsonl --chat", "line 1: message 0 needs", 2},
               {"1 x", "--decode", "standard input: \"x\" is not a token id", 2},
               {"", "--chat", "give --jsonl too", 2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cli_result r = cli_run(bad[i].input, "tvgpu tokenize t %s", bad[i].options);
        CHECK_INT(r.code, bad[i].code);
        if (!CHECK(strstr(r.err, bad[i].part) != NULL)) printf("    said: %s", r.err);
        cli_free(&r);
    }
}

/* generate writes whole characters as they come, the same for the same seed, and stops where it is told. */
static void generate(void) {
    cli_result ten = cli_run(NULL, "tvgpu generate -n 10 -q"), twenty = cli_run(NULL, "tvgpu generate -n 20 -q"),
               other = cli_run(NULL, "tvgpu generate -n 20 -q --seed 3"),
               greedy = cli_run(NULL, "tvgpu generate -n 20 -q --temperature 0 --seed 1"),
               again = cli_run(NULL, "tvgpu generate -n 20 -q --temperature 0 --seed 2");
    CHECK_INT(ten.code, 0);
    CHECK(ten.out_size > 5 && ten.out[ten.out_size - 1] == '\n' && !strncmp(ten.out, twenty.out, ten.out_size - 1));
    CHECK(strcmp(twenty.out, other.out) != 0);
    CHECK_STR(greedy.out, again.out);
    CHECK_STR(ten.err, "");
    cli_free(&ten), cli_free(&twenty), cli_free(&other), cli_free(&greedy), cli_free(&again);
    CLI(0, NULL, "tvgpu generate -n 3000 --ignore-eos | head -c 20 | grep -q ."); /* nobody reads on: it ends */
}

/* info says what is there and why the rest is not, as text and as JSON. */
static void info(void) {
    cli_tiny_model();
    CLI(0, "vocabulary 128, at most 256 positions", "tvgpu info m");
    CLI(0, "cpu      available", "tvgpu info m");
    CLI(0, "Usage", "tvgpu info --help");
    cli_result r = cli_run(NULL, "tvgpu info m --json --plan --device cpu");
    cJSON *json = printed(&r);
    static const char *const keys[] = {"tvgpu",
                                       "model.architecture",
                                       "model.parameters",
                                       "model.weights_hash",
                                       "model.vocabulary",
                                       "model.max_positions",
                                       "device",
                                       "plan"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) CHECK(cli_at(json, keys[i]) != NULL);
    static const char *const lists[] = {"devices", "backends"};
    int cudnn = 0, works = 0;
    for (int l = 0; l < 2; l++) {
        const cJSON *item;
        cJSON_ArrayForEach(item, cli_at(json, lists[l])) {
            const char *name = cJSON_GetStringValue(cli_at(item, "name")),
                       *why = cJSON_GetStringValue(cli_at(item, "reason"));
            int available = cJSON_IsTrue(cli_at(item, "available"));
            CHECK(name && available == !why && (!why || strlen(why) > 10));
            works += available;
            cudnn += name && !strcmp(name, "cudnn") && !available;
        }
    }
    CHECK(cudnn == 1 && works >= 4); /* cpu, and three backends on it */
    cJSON_Delete(json);
    cli_free(&r);
}

static void drop(cJSON *json, const char *key) { cJSON_DeleteItemFromObjectCaseSensitive(json, key); }

/* What was measured is the same from the run folder, its bundle and its files, and with fewer reads or slots. */
static void estimate(void) {
    cli_tiny_model();
    cli_result made = cli_run(NULL, "tvgpu compare " NOISY "-o r");
    cli_result text = cli_run(NULL, "tvgpu estimate r"), json = cli_run(NULL, "tvgpu estimate r --json");
    CHECK_STR(text.out, made.out);
    cJSON *report = cli_json("r/report.json"), *read = printed(&json), *other;
    drop(report, "timing"), drop(read, "timing"), drop(read, "timing_reason");
    char *x = tv_json_text(report), *y = tv_json_text(read);
    CHECK_STR(y, x);
    free(x), free(y);
    CLI(0, "wrote b.safetensors", "tvgpu export r -o b.safetensors");
    CLI(0, NULL,
        "tvgpu estimate b.safetensors -q -o b.json --html b.html && tvgpu estimate r/*.safetensors -q -o f.json");
    static const char *const same[] = {"tv.estimate",
                                       "tv.se",
                                       "estimators.plugin.estimate",
                                       "estimators.hedged.estimate",
                                       "estimators.hedged.T2",
                                       "floor.a.estimate",
                                       "sigma.b.union_chi2",
                                       "differing_values"};
    other = cli_json("b.json");
    cJSON *files = cli_json("f.json");
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        CHECK(cli_number(read, same[i]) == cli_number(other, same[i]));
        CHECK(cli_number(read, same[i]) == cli_number(files, same[i]));
    }
    CHECK_STR(cJSON_GetStringValue(cli_at(files, "b.backend")), "math");
    cJSON_Delete(other);
    cJSON_Delete(files);
    char *page;
    size_t size;
    TV_ASSERT(tv_file_read(cli_path("b.html"), 1 << 28, &page, &size, NULL) == TV_OK);
    CHECK(strstr(page, "<html") && strstr(page, "</html>"));
    free(page);
    CLI(0, "--readout 5 is below the sampler's top-k 20", "tvgpu estimate r --readout 5 -q");
    CLI(0, "2 reads a side", "tvgpu estimate r --reads 2 --readout 5 --serving-order --seed 4 -q -o two.json");
    other = cli_json("two.json");
    CHECK(cli_number(other, "R") == 2 && cli_number(other, "support.a.k") == 5);
    CHECK(cli_number(other, "tv.estimate") != cli_number(read, "tv.estimate"));
    cJSON_Delete(other);
    CLI(2, "readout", "tvgpu estimate r --readout 33");
    CLI(2, "reads = 5, but side a stored 4 passes", "tvgpu estimate r --reads 5");
    CLI(1, "gone", "tvgpu estimate gone");
    cJSON_Delete(report);
    cJSON_Delete(read);
    cli_free(&made), cli_free(&text), cli_free(&json);
}

/* The statistics of the noise, and what to run next. */
static void calibrate_and_schedule(void) {
    cli_tiny_model();
    CLI(0, NULL, "tvgpu compare " NOISY "-o r");
    cli_result r = cli_run(NULL, "tvgpu calibrate r --json");
    cJSON *json = printed(&r), *report = cli_json("r/report.json");
    static const char *const pairs[] = {"a_on_a", "a_on_b", "b_on_a", "b_on_b"};
    double mean[2] = {0};
    for (int i = 0; i < 4; i++) {
        const cJSON *part = cli_at(json, pairs[i]);
        mean[i / 2] += cli_number(part, "sigma_union") / 2;
        CHECK(cli_number(part, "cells") > 0 && cJSON_GetArraySize(cli_at(part, "autocorrelation")) > 0);
    }
    CHECK_NEAR(mean[0], cli_number(report, "sigma.a.union_chi2"), 1e-9);
    CHECK_NEAR(mean[1], cli_number(report, "sigma.b.union_chi2"), 1e-9);
    CHECK(mean[0] + mean[1] > 0);
    cJSON_Delete(json);
    cJSON_Delete(report);
    cli_free(&r);
    CLI(0, "sigma, realized token", "tvgpu calibrate r --reads 2");
    CLI(0, "run next:", "tvgpu schedule r --target-error 0.001");
    r = cli_run(NULL, "tvgpu schedule r --budget 1e5 --json");
    json = printed(&r);
    CHECK(cli_number(json, "queries") <= 1e5 && cli_number(json, "trajectories") > 12 &&
          cli_number(json, "reads") >= 1);
    cJSON_Delete(json);
    cli_free(&r);
    CLI(2, "a pilot of 64 needs", "tvgpu schedule r");
    r = cli_run(NULL, "tvgpu schedule --theory -n 128 --sigma 0.1 --eps 0.05 --delta 0.01 --json");
    json = printed(&r);
    CHECK(cli_number(json, "n") == 128 && cli_number(json, "algorithm1.N") > 0 &&
          cJSON_GetArraySize(cli_at(json, "algorithm3.levels")) > 1);
    cJSON_Delete(json);
    cli_free(&r);
}

/* The sequence-level scorer fits the trajectories that decoding drew, and says in its files which it was. */
static void score_prefill(void) {
    cli_tiny_model();
    CLI(0, NULL,
        "for s in a b; do tvgpu sample m --prompts p.jsonl -N 6 -n 8 --reduction fixed -q -o r --side $s; done");
    CLI(0, NULL, "tvgpu score m --reduction fixed -q -o r --side a -R 2");
    CLI(0, "\"passes_written\":\t4", "tvgpu score m --reduction fixed --method prefill -o r --side b -R 2 --json -q");
    CLI(0, "\"passes_written\":\t0", "tvgpu score m --reduction fixed --method prefill -o r --side b -R 2 --json -q");
    CLI(2, "method is \"prefill\"", "tvgpu score m --reduction fixed -o r --side b -R 2");
    CLI(0, "method", "tvgpu estimate r -q -o e.json");
    cJSON *e = cli_json("e.json");
    CHECK_STR(cJSON_GetStringValue(cli_at(e, "b.method")), "prefill");
    CHECK_STR(cJSON_GetStringValue(cli_at(e, "scoring.b.method")), "prefill");
    CHECK(cli_number(e, "tv.estimate") < 0.5 && cli_number(e, "checks.sampling_agreement_a") == 0);
    cJSON_Delete(e);
}

/* Progress is one line, redrawn within its width, on a terminal, and nothing that needs one elsewhere. */
static void progress(void) {
    cli_tiny_model();
    int terminal = posix_openpt(O_RDWR | O_NOCTTY), n = 0;
    if (terminal < 0 || grantpt(terminal) || unlockpt(terminal)) {
        tv_test_skip("no pseudo-terminals here");
        return;
    }
    struct winsize size = {24, 60, 0, 0};
    int slave = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    TV_ASSERT(slave >= 0 && ioctl(slave, TIOCSWINSZ, &size) == 0);
    fflush(NULL);
    pid_t pid = fork();
    TV_ASSERT(pid >= 0);
    if (pid == 0) {
        dup2(slave, 2);
        close(slave), close(terminal);
        char *line =
            tv_xprintf("cd '%s' && exec " TV_RUN_PREFIX "'%s/tvgpu' compare m --prompts p.jsonl -N 16 -n 60 -R 2 "
                       "--backend-b math --threads 1 -o r >out",
                       tv_test_dir(), TV_BINARY_DIR);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(97);
    }
    close(slave);
    static char text[1 << 16];
    for (ssize_t got; n < (int)sizeof text - 1 && (got = read(terminal, text + n, sizeof text - 1 - (size_t)n)) > 0;)
        n += (int)got;
    close(terminal);
    int status;
    TV_ASSERT(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(strstr(text, "tokens/s") && strstr(text, "% ") && strstr(text, " left") && strstr(text, "sampling side a"));
    for (const char *c = text; (c = strstr(c, "\r\033[K"));) {
        c += 4;
        CHECK(strncmp(c, "tvgpu:", 6) == 0 || strcspn(c, "\r\n") <= 59);
    }
    CLI(0, NULL,
        "tvgpu compare m --prompts p.jsonl -N 4 -n 4 -R 2 --backend-b math -o s 2>log && ! grep -q "
        "\"$(printf '\\r')\" log && grep -q 'run folder s' log");
    CLI(0, NULL, "tvgpu compare m --prompts p.jsonl -N 4 -n 4 -R 2 --backend-b math -o q -q 2>log && ! test -s log");
}

/* synth's checks run at a size of a second; failing ones (too little work) are said by the exit code. */
static void synth(void) {
    cli_result r = cli_run(NULL, "tvgpu synth --scale 0.01 --json -q");
    cJSON *json = NULL;
    tv_err err = {0};
    CHECK_OK(tv_json_parse(r.out, r.out_size, "stdout", &json, &err), &err);
    CHECK_INT(r.code, cJSON_IsTrue(cli_at(json, "held")) ? 0 : 1);
    const cJSON *item;
    int hard = 0;
    cJSON_ArrayForEach(item, cli_at(json, "instances")) hard += fabs(cli_number(item, "tv") - 0.388315) < 1e-6;
    CHECK_INT(hard, 1);
    cJSON_Delete(json);
    cli_free(&r);
}

/* bench says which part it does not know, and prints the machine's limits as JSON, in a file too, and as a table. */
static void bench(void) {
    CLI(2, "choose limits, ops, engine, estimator, all, weights or steps", "tvgpu bench everything");
    CLI(2, "needs --out DIR", "tvgpu bench weights small");
    cli_result r = cli_run(NULL, "tvgpu bench limits --repetitions 1 --threads 1 --json -o limits.json -q");
    cJSON *json = printed(&r), *file = cli_json("limits.json");
    CHECK(cJSON_Compare(json, file, 1));
    CHECK(cJSON_IsString(cli_at(json, "machine.name")));
    cJSON_Delete(json);
    cJSON_Delete(file);
    cli_free(&r);
    CLI(0, NULL, "mkdir d && tvgpu bench limits --repetitions 2 --threads 1 -o d -q && mv d/*.csv limits.csv");
    CLI(0, NULL, "head -1 limits.csv | grep -qx number,median,mad,best,runs");
    CLI(0, NULL, "grep -qE '^one_thread/read_gb_per_s,[0-9.]+,[0-9.e-]+,[0-9.]+,2$' limits.csv");
}

/* What stands beside other engines does the steps asked for, on weights that the program wrote, and refuses others. */
static void bench_steps(void) {
    CLI(0, NULL, "tvgpu bench weights small -o w");
    CLI(0, "Qwen3ForCausalLM, 5.", "tvgpu info w --device cpu");
    CLI(2, "there are 0.6b, medium, moe and small", "tvgpu bench weights huge -o w");
    cli_result r = cli_run("open 2 6\nprefill 3\ndecode 2 3 9\nlimits\nclose\n", "tvgpu bench steps w --threads 1");
    CHECK_INT(r.code, 0);
    static const char *const wanted[] = {"name", "", "wall", "wall", "gflops", ""};
    char *line = r.out;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        cJSON *json = cJSON_Parse(line);
        TV_ASSERT(json);
        if (*wanted[i]) CHECK(cli_at(json, wanted[i]) != NULL);
        if (i == 3) CHECK_INT(cJSON_GetArraySize(cli_at(json, "cpu")), 3); /* positions 3, 4, 5 */
        cJSON_Delete(json);
        line += strcspn(line, "\n") + 1;
    }
    cli_free(&r);
    r = cli_run("open 2 6\nprefill 3\ndecode 3 3 1\n", "tvgpu bench steps w --threads 1");
    CHECK_INT(r.code, 2);
    CHECK(strstr(r.err, "cannot do now: decode 3 3 1") != NULL);
    cli_free(&r);
}

static const tv_test tests[] = {{"logits", logits},
                                {"tokenize_streams", tokenize_streams},
                                {"tokenize", tokenize},
                                {"generate", generate},
                                {"info", info},
                                {"estimate", estimate},
                                {"calibrate_and_schedule", calibrate_and_schedule},
                                {"score_prefill", score_prefill},
                                {"progress", progress},
                                {"synth", synth},
                                {"bench", bench},
                                {"bench_steps", bench_steps}};
TV_TEST_MAIN(tests)
