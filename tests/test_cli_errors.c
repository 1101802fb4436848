/* What goes wrong at the command line: the message names the file and the thing, the exit code is not 0, and nothing
 * is left behind. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/check.h"
#include "tests/cli_run.h"
#include "traces/safetensors.h"

#define SMALL "compare m --prompts p.jsonl -N 4 -n 4 -R 2 --backend-b math -q "

static void write_text(const char *name, const char *text) {
    TV_ASSERT(tv_file_write(cli_path(name), text, strlen(text), NULL) == TV_OK);
}

/* Ids that are negative, fractional or not in the vocabulary are refused wherever ids come from, before any work. */
static void token_ids(void) {
    static const struct {
        const char *line, *part;
        int code;
    } prompts[] = {{"{\"ids\": [5, -1]}", "q.jsonl:2: -1 is not a token id", 2},
                   {"{\"ids\": [5, 1.5]}", "q.jsonl:2: a token id is 1.5, not a whole number", 1},
                   {"{\"ids\": [5, 128]}", "q.jsonl:2: token id 128 (number 1 of the prompt) is not in the model's", 2},
                   {"{\"ids\": [5, 1e300]}", "q.jsonl:2: a token id is", 1},
                   {"{\"ids\": [5, \"7\"]}", "q.jsonl:2: a token id is not a number", 1},
                   {"{\"ids\": []}", "q.jsonl:2: a prompt without tokens", 2},
                   {"{\"text\": \"a\"}", "q.jsonl:2: a prompt is a string, ", 1},
                   {"{\"ids\": [1]", "q.jsonl:2: not valid JSON", 1},
                   {"\"a\\u0000b\"", "q.jsonl:2: a NUL character", 1}};
    static const struct {
        const char *ids, *part;
    } given[] = {{"1 -2 3", "\"-2\" is not a token id"},
                 {"1 2.5", "\"2.5\" is not a token id"},
                 {"1 128", "id 128 at row 0, position 1 is not in the model's vocabulary (0 to 127)"},
                 {"1 99999999999", "is not a token id"},
                 {"0x1", "is not a token id"},
                 {"1 two", "\"two\" is not a token id"},
                 {" ", "holds no ids"}};
    cli_tiny_model();
    int before = cli_entries(".");
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        char *text = tv_xprintf("{\"ids\": [1]}\n%s\n", prompts[i].line);
        write_text("q.jsonl", text);
        free(text);
        CLI(prompts[i].code, prompts[i].part, "tvgpu compare m --prompts q.jsonl -N 4 -n 3 -o r");
    }
    CLI(2, "q.jsonl:1: token id 128", "echo '{\"ids\": [128]}' >q.jsonl; tvgpu sample m --prompts q.jsonl -o r");
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        CLI(2, given[i].part, "tvgpu logits m --tokens '%s' -o l.safetensors", given[i].ids);
    int32_t ids[4] = {5, 7, 200, -1};
    tv_st_tensor t = {
        .name = "tokens", .dtype = TV_I32, .n_dims = 2, .shape = {2, 2}, .data = (void *)ids, .bytes = sizeof ids};
    static const char *const none[] = {NULL};
    tv_err err = {0};
    CHECK_OK(tv_st_write(cli_path("ids.safetensors"), &t, 1, none, &err), &err);
    CLI(2, "ids.safetensors: id 200 at row 1, position 0", "tvgpu logits m --tokens ids.safetensors -o l.safetensors");
    ids[2] = 3;
    CHECK_OK(tv_st_write(cli_path("ids.safetensors"), &t, 1, none, &err), &err);
    CLI(2, "ids.safetensors: id -1 at row 1, position 1", "tvgpu logits m --tokens ids.safetensors -o l.safetensors");
    t.dtype = TV_F32;
    CHECK_OK(tv_st_write(cli_path("ids.safetensors"), &t, 1, none, &err), &err);
    CLI(1, "ids.safetensors: tensor \"tokens\" is F32 [2, 2], expected I32",
        "tvgpu logits m --tokens ids.safetensors -o l.safetensors");
    CHECK_INT(cli_entries("."), before + 2); /* q.jsonl and ids.safetensors */
}

/* More tokens than the model has positions, or the memory has room for. */
static void too_long(void) {
    cli_tiny_model(); /* 256 positions */
    CLI(2, "--length 251 after a prompt of 6 tokens is more than the 256 positions of m; at most --length 250",
        "tvgpu compare m --prompts p.jsonl -N 4 -n 251 -o r");
    CLI(0, NULL, "tvgpu sample m --prompts p.jsonl -N 1 -n 250 -o edge -q"); /* the bound itself is allowed */
    CLI(2, "at most --length 250", "tvgpu sample m --prompts p.jsonl -N 4 -n 251 -o r");
    CLI(2, "rows of 257 ids are longer than the 256 positions",
        "tvgpu logits m --tokens \"$(yes 1 | head -257)\" -o l");
    CLI(1, "--batch", "tvgpu sample m --prompts p.jsonl -N 10000000 -n 250 -o r");
    CHECK_INT(cli_entries("r"), -1);
}

/* A disk that is full from the start is noticed before the start. One that fills later ends the run with the system's
 * reason; what is finished stays, nothing is there by halves, and with room again the same command goes on. */
static void full_disk(void) {
    cli_tiny_model();
    CLI(0, NULL, "tvgpu " SMALL "-o whole");
    /* a limit on the size of files: writing fails as on a full disk, in the middle of a.samples */
    CLI(1, "r/a.samples.safetensors: cannot write: File too large; nothing was left behind",
        "trap '' XFSZ; ulimit -f 8; tvgpu " SMALL "-o r");
    CLI(0, NULL, "test \"$(ls -A r)\" = run.json");
    CLI(1, "File too large", "trap '' XFSZ; ulimit -f 8; tvgpu export whole -o b.safetensors");
    CLI(1, "File too large", "trap '' XFSZ; ulimit -f 8; tvgpu logits m --tokens '1 2 3 4 5 6 7 8 9' -o l.safetensors");
    CLI(1, "e.html: cannot write: File too large", "trap '' XFSZ; ulimit -f 8; tvgpu estimate whole --html e.html");
    CLI(0, NULL, "test \"$(echo *)\" = 'm p.jsonl r whole' && tvgpu " SMALL "-o r && diff -r -x 'report.*' r whole");
    CLI(1, "standard output could not be written", "tvgpu estimate whole >/dev/full");
    CLI(1, "/dev/full: cannot write", "tvgpu estimate whole -o /dev/full");
    CLI(1, "r/report.json: cannot write", "rm r/report.json && mkdir r/report.json && tvgpu " SMALL "-o r");
    /* a real one, where this user may mount */
    cli_result may = cli_run(NULL, "unshare -m sh -c 'mkdir d && mount -t tmpfs -o size=64k none d'");
    if (may.code == 0) {
#define ON_SMALL_DISK(command)                                                                                         \
    "unshare -m sh -c 'mount -t tmpfs -o size=64k none d; %s/tvgpu " command "; r=$?; "                                \
    "find d -mindepth 1; exit $r'",                                                                                    \
        TV_RUN_PREFIX TV_BINARY_DIR
        CLI(1, "d/r: the run needs", ON_SMALL_DISK(SMALL "-o d/r"));
        CLI(1, "d/r: the run needs", ON_SMALL_DISK("sample m --prompts p.jsonl -N 20 -n 20 -q -o d/r"));
        cli_result r = cli_run(NULL,
                               ON_SMALL_DISK("export whole -o d/b.safetensors; %s/tvgpu logits m --tokens "
                                             "\"$(yes 1 | head -250)\" -o d/l.safetensors"),
                               TV_RUN_PREFIX TV_BINARY_DIR);
        CHECK_INT(r.code, 1);
        CHECK(strstr(r.err, "d/l.safetensors: cannot write: No space left on device") != NULL);
        CHECK(!strstr(r.out, "l.safetensors"));
        cli_free(&r);
    } else {
        printf("    (no mount for this user: the file-size limit stands for a full disk)\n");
    }
    cli_free(&may);
}

/* Folders and files that this user may not read or write. */
static void unreadable(void) {
    static const struct {
        const char *command, *part;
    } cases[] = {{"tvgpu info m", "m/config.json: cannot open: Permission denied"},
                 {"tvgpu estimate r", "r/run.json: cannot open: Permission denied"},
                 {"tvgpu estimate closed", "closed: cannot"},
                 {"tvgpu compare open --prompts p.jsonl -N 2 -n 2 -o locked/r", "locked/r: cannot make the folder"},
                 {"tvgpu compare open --prompts p.jsonl -N 2 -n 2 -o closed", "closed: cannot"},
                 {"tvgpu logits open --tokens 1 -o locked/l", "locked/l: cannot write: Permission denied"},
                 {"tvgpu compare open --prompts closed/p.jsonl", "closed/p.jsonl: cannot open: Permission denied"}};
    cli_tiny_model();
    CLI(0, NULL,
        "tvgpu " SMALL "-o r && cp -r m open && mkdir closed locked && chmod 000 r/run.json m/config.json closed && "
        "chmod 555 locked && chmod -R a+rX open p.jsonl");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int ran;
        cli_result r = cli_run_unprivileged(&ran, "%s", cases[i].command);
        if (ran) {
            CHECK_INT(r.code, 1);
            if (!CHECK(strstr(r.err, cases[i].part) != NULL)) printf("    %s said: %s\n", cases[i].command, r.err);
        }
        cli_free(&r);
        if (!ran) break; /* the build lies where only root may look: the paths below are all that is left to try */
    }
    CLI(0, NULL, "chmod 755 closed locked && chmod 644 r/run.json m/config.json");
    CLI(1, "p.jsonl: exists and is not a folder", "tvgpu " SMALL "-o p.jsonl");
    CLI(1, "p.jsonl/r: cannot make the folder", "tvgpu " SMALL "-o p.jsonl/r");
    CLI(2, "m: holds \"", "tvgpu " SMALL "-o m");
    CLI(2, "p.jsonl: not a folder", "tvgpu info p.jsonl");
    CLI(1, "gone: no such folder", "tvgpu info gone");
}

/* Run folders that were damaged, cut, mixed or renamed: refused by name, and left as they are. */
static void damaged_folders(void) {
    static const struct {
        const char *damage, *part;
    } cases[] = {
        {"truncate -s -4 r/a-on-b.pass-0001.safetensors",
         "r/a-on-b.pass-0001.safetensors: tensor \"prompt_index\" ends at"},
        {": >r/b-on-a.pass-0000.safetensors", "r/b-on-a.pass-0000.safetensors: 0 bytes"},
        {"printf x | dd of=r/a.samples.safetensors bs=1 seek=9 conv=notrunc", "r/a.samples.safetensors: header byte 1"},
        {"cp s/b-on-b.pass-0001.safetensors r",
         "seed is 1 in r/b.samples.safetensors and 5 in r/b-on-b.pass-0001.safetensors"},
        {"cp s/[ab]*.safetensors r", "of another run: in top_k of side b"},
        {"cp t/b-on-b.pass-0000.safetensors t/b-on-a.pass-0000.safetensors r",
         "temperature is 1 in r/b.samples.safetensors and 3 in"},
        {"mv r/a-on-a.pass-0001.safetensors r/a-on-b.pass-0001.safetensors", "renamed?"},
        {"echo '{\"a\": 1, \"a\": 2}' >r/run.json", "r/run.json: duplicate key \"a\""},
        {"echo nonsense >r/run.json", "r/run.json: not valid JSON"},
        {"rm r/b-on-*", "no complete pass of side b"},
        {"rm r/[ab]*", "the run has finished nothing yet"},
        {"rm r/*", "not a run folder"},
    };
    cli_tiny_model();
    CLI(0, NULL,
        "tvgpu " SMALL "-o whole && tvgpu " SMALL "--seed-b 5 --top-k-b 5 -o s && tvgpu " SMALL
        "--temperature-b 3 -o t");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CLI(0, NULL, "rm -rf r seen && cp -r whole r && { %s; } 2>/dev/null && cp -r r seen", cases[i].damage);
        cli_result r = cli_run(NULL, "tvgpu estimate r");
        int named = CHECK_INT(r.code, 1) & CHECK(strstr(r.err, "tvgpu: error: ") != NULL) &
                    CHECK(strstr(r.err, cases[i].part) != NULL) & CHECK_INT((long long)r.out_size, 0);
        if (!named) printf("    %s: %s%s\n", cases[i].damage, r.out, r.err);
        cli_free(&r);
        CLI(0, NULL, "diff -r r seen");
    }
    /* compare that would go on in such a folder refuses, too, rather than report on it */
    CLI(1, "r/a-on-b.pass-0001.safetensors: tensor",
        "rm -rf r && cp -r whole r && truncate -s -4 r/a-on-b.pass-0001.safetensors && tvgpu " SMALL "-o r");
    CLI(1, NULL, "rm r/b-on-*; tvgpu " SMALL "-o r"); /* before anything else is computed */
    CHECK(!tv_path_exists(cli_path("r/b-on-a.pass-0000.safetensors")));
    CLI(0, NULL, "rm r/a-on-b.pass-0001.safetensors && tvgpu " SMALL "-o r && diff -r -x 'report.*' r whole");
    CLI(1, "r/run.json: ", "echo nonsense >r/run.json && tvgpu " SMALL "-o r");
    CLI(2, "and no run.json", "rm r/run.json && tvgpu " SMALL "-o r");
}

/* Every null of a report stands beside its reason. */
static int reasons_missing(const cJSON *object) {
    int missing = 0;
    for (const cJSON *item = object->child; item; item = item->next) {
        if (cJSON_IsNull(item) && cJSON_IsObject(object)) {
            char *key = tv_xprintf("%s_reason", item->string);
            const char *reason = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
            if (!reason || !*reason) missing++, printf("    null without a reason: %s\n", item->string);
            free(key);
        }
        missing += reasons_missing(item);
    }
    return missing;
}

/* Blanks the strings of JSON text: tokens may spell anything. */
static void drop_strings(char *json) {
    for (int inside = 0; *json; json++) {
        if (*json == '"') inside = !inside;
        if (inside && *json == '\\' && json[1]) *json++ = ' ';
        if (inside) *json = ' ';
    }
}

/* L09: numbers that do not exist (an error bar of one trajectory, hedging one read, logarithms of nothing) are null
 * with a reason; NaN, infinities and stand-ins never reach JSON. */
static void no_nan_in_json(void) {
    static const char *const runs[] = {"-N 1 -n 1 -R 1 --backend-b math", "-N 2 -n 3 -R 1 --backend-b math",
                                       "-N 3 -n 4 -R 2 --temperature-b 0 --store-k 2 --top-k 2",
                                       "-N 4 -n 6 -R 3 --top-k 1 --batch-b 2 --order-b shuffled --stop-eos"};
    cli_tiny_model();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        cli_result r = cli_run(NULL, "tvgpu compare m --prompts p.jsonl -q --json -o r%zu %s", i, runs[i]);
        cJSON *json = NULL;
        tv_err err = {0};
        if (!CHECK_INT(r.code, 0)) printf("    %s: %s\n", runs[i], r.err);
        CHECK_OK(tv_json_parse(r.out, r.out_size, "stdout", &json, &err), &err);
        if (json) CHECK_INT(reasons_missing(json), 0);
        drop_strings(r.out);
        CHECK(!strstr(r.out, "nan") && !strstr(r.out, "NaN") && !strstr(r.out, "-9999"));
        for (const char *c = r.out; (c = strstr(c, "inf")); c++) CHECK(c[-1] != '\t' && c[-1] != '-' && c[-1] != ' ');
        cJSON_Delete(json);
        cli_free(&r);
        /* neither do they reach the reader as text */
        r = cli_run(NULL, "tvgpu estimate r%zu", i);
        CHECK_INT(r.code, 0);
        CHECK(!strstr(r.out, " nan") && !strstr(r.out, "-nan") && !strstr(r.out, " inf") && !strstr(r.out, "-inf"));
        cli_free(&r);
    }
}

/* A weight that is not finite ends the run before a number of it is recorded. */
static void bad_weights(void) {
    cli_tiny_model();
    CLI(0, NULL,
        "printf '\\300\\177' | dd of=m/model.safetensors bs=1 seek=$(($(wc -c <m/model.safetensors) - 2)) "
        "conv=notrunc 2>/dev/null"); /* bf16 NaN as the last value */
    CLI(1, "m/model.safetensors", "tvgpu " SMALL "-o r");
    CLI(1, "m/model.safetensors", "truncate -s -2 m/model.safetensors; tvgpu " SMALL "-o r");
    CLI(1, "m/config.json: ", "echo '{' >m/config.json; tvgpu " SMALL "-o r");
    CHECK_INT(cli_entries("r"), -1);
}

static const tv_test tests[] = {{"token_ids", token_ids},     {"too_long", too_long},
                                {"full_disk", full_disk},     {"unreadable", unreadable},
                                {"damaged", damaged_folders}, {"no_nan_in_json", no_nan_in_json},
                                {"bad_weights", bad_weights}};
TV_TEST_MAIN(tests)
