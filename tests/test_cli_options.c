/* The option table against the help that people read and the command lines that they type. Includes the parser's
 * source, whose table is its own. */
#include "cli/options.c"

#include "base/file.h"
#include "tests/check.h"
#include "tests/cli_run.h"

static const struct {
    const char *name;
    unsigned bit;
} commands[] = {
    {"compare", CMD_COMPARE},     {"sample", CMD_SAMPLE},       {"score", CMD_SCORE},       {"estimate", CMD_ESTIMATE},
    {"calibrate", CMD_CALIBRATE}, {"schedule", CMD_SCHEDULE},   {"synth", CMD_SYNTH},       {"export", CMD_EXPORT},
    {"generate", CMD_GENERATE},   {"logits", CMD_LOGITS},       {"tokenize", CMD_TOKENIZE}, {"bench", CMD_BENCH},
    {"info", CMD_INFO},           {"attribute", CMD_ATTRIBUTE}, {"figure", CMD_FIGURE},     {"import", CMD_IMPORT}};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* Parses "tvgpu NAME WORDS..." (words separated by spaces, _ for an empty one). */
static tv_status parse(unsigned bit, const char *words, tv_args *args, tv_err *err) {
    static char copy[512];
    static char *argv[32];
    tv_command command = {.name = "it", .bit = bit, .most_words = 1};
    int argc = 2;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " ")) argv[argc++] = strcmp(w, "_") ? w : w + 1;
    argv[argc] = NULL;
    return tv_args_parse(&command, argc, argv, args, err);
}

/* A value that the option takes; static storage. */
static const char *some_value(const option *o) {
    static char text[64];
    switch (o->kind) {
    case FLAG:
        return "";
    case CHOICE:
        snprintf(text, sizeof text, "%.*s", (int)strcspn(o->value, "|"), o->value);
        return text;
    case TEXT:
        return "x";
    case U64:
        return "3";
    default:
        snprintf(text, sizeof text, "%.15g", o->high);
        return text;
    }
}

/* Every option that a command accepts is in its --help with its value, and every option of the help is accepted. */
static void help(void) {
    tv_args *args = tv_xmalloc(sizeof *args);
    for (int c = 0; c < N_COMMANDS; c++) {
        cli_result r = cli_run(NULL, "tvgpu %s --help", commands[c].name),
                   h = cli_run(NULL, "tvgpu help %s", commands[c].name);
        CHECK_INT(r.code, 0);
        CHECK_STR(h.out, r.out);
        int n = 0, shown = 0;
        for (int i = 0; i < N_OPTIONS; i++) {
            const option *o = &table[i];
            if (!(o->commands & commands[c].bit)) continue;
            n++;
            CHECK(!strchr(o->help, '\n')); /* lines are broken where they are printed */
            int suffixed = o->sided && commands[c].bit == CMD_COMPARE;
            char *line = o->letter ? tv_xprintf("\n  -%c, --%s%s%s%s", o->letter, o->name, suffixed ? "[-a|-b]" : "",
                                                o->value ? " " : "", o->value ? o->value : "")
                                   : tv_xprintf("\n      --%s%s%s%s", o->name, suffixed ? "[-a|-b]" : "",
                                                o->value ? " " : "", o->value ? o->value : "");
            const char *at = strstr(r.out, line);
            while (at && !strchr(" \n", at[strlen(line)])) at = strstr(at + 1, line); /* --plan is not --plan-units */
            if (!CHECK(at != NULL)) printf("    %s --help lacks%s\n", commands[c].name, line);
            char *spelled = tv_xprintf("--%s %s", o->name, some_value(o));
            tv_err err = {0};
            CHECK_OK(parse(commands[c].bit, spelled, args, &err), &err);
            free(spelled), free(line);
            for (int j = 0; j < i; j++) /* one row a command: the second would never be found */
                CHECK(!(table[j].commands & commands[c].bit) ||
                      (strcmp(table[j].name, o->name) && (!o->letter || table[j].letter != o->letter)));
        }
        for (const char *l = r.out; (l = strchr(l, '\n')); l++)
            shown += !strncmp(l, "\n      --", 9) || (!strncmp(l, "\n  -", 4) && !strncmp(l + 5, ", --", 4));
        CHECK_INT(shown, n);
        CHECK(strstr(r.out, "Examples:") && strstr(r.out, "Usage: tvgpu "));
        for (const char *l = r.out; *l; l += strcspn(l, "\n"), l += *l == '\n') CHECK(strcspn(l, "\n") <= 110);
        cli_free(&r), cli_free(&h);
    }
    free(args);
    cli_result all = cli_run(NULL, "tvgpu --help");
    for (int c = 0; c < N_COMMANDS; c++) {
        char *line = tv_xprintf("\n  %s ", commands[c].name);
        CHECK(strstr(all.out, line) != NULL);
        free(line);
    }
    cli_free(&all);
}

/* Numbers are taken whole or not at all. */
static void numbers(void) {
    static const char *const bad[] = {"-N 1e3",
                                      "-N 0",
                                      "-N +5",
                                      "-N 5x",
                                      "-N _",
                                      "-N 0x10",
                                      "-N -3",
                                      "-N 99999999999999999999",
                                      "-N 2.0",
                                      "--top-k 129",
                                      "--top-k 0",
                                      "--seed -1",
                                      "--seed 18446744073709551616",
                                      "--temperature nan",
                                      "--temperature inf",
                                      "--temperature -1",
                                      "--temperature 0x1",
                                      "--temperature 1e7",
                                      "--temperature 1,5",
                                      "--temperature _",
                                      "--fail-above 1.1",
                                      "--threads -1",
                                      "--backend",
                                      "--backend fla",
                                      "--backend _",
                                      "--order shuffled,fixed",
                                      "--raw=1",
                                      "--quick=yes",
                                      "--length",
                                      "--nonsense 3",
                                      "-Z",
                                      "--seed-c 3",
                                      "--prompt-a x",
                                      "--suppress-eos --ignore-eos",
                                      "one two"};
    tv_args *args = tv_xmalloc(sizeof *args);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tv_err err = {0};
        if (!CHECK(parse(CMD_COMPARE, bad[i], args, &err) == TV_EARG && err.code == TV_EARG))
            printf("    %s\n", bad[i]);
    }
    tv_err err = {0};
    CHECK_OK(
        parse(
            CMD_COMPARE,
            "MODEL -N7 --length=9 --seed 18446744073709551615 --temperature .5 --temperature-b 1e-3 --backend-a eager "
            "--fail-above 0.05 --prompt=-x- --thinking off -q",
            args, &err),
        &err);
    CHECK(args->N == 7 && args->n == 9 && args->seed[0] == UINT64_MAX && args->seed[1] == UINT64_MAX);
    CHECK(args->side[0].serving.temperature == 0.5 && args->side[1].serving.temperature == 1e-3);
    CHECK_STR(args->side[0].serving.backend, "eager");
    CHECK_STR(args->side[1].serving.backend, "auto");
    CHECK(args->fail_above == 0.05 && args->quiet && args->side_given && args->thinking == TV_THINKING_OFF);
    CHECK_STR(args->prompt, "-x-");
    CHECK_INT(args->n_positional, 1);
    CHECK_OK(parse(CMD_COMPARE, "-- --odd", args, &err), &err);
    CHECK_STR(args->positional[0], "--odd");
    CHECK(isnan(args->fail_above) && isnan(args->budget) && !args->side_given && args->seed[1] == 1);
    free(args);
}

/* A word that is nearly an option or a command is answered with what was meant. */
static void suggestions(void) {
    CLI(2, "--bakend: no such option of compare (did you mean --backend?); see tvgpu compare --help",
        "tvgpu compare --bakend math");
    CLI(2, "(did you mean --temperature-b?)", "tvgpu compare --temprature-b 2");
    CLI(2, "--zzzzzzzz: no such option of score; see tvgpu score --help", "tvgpu score --zzzzzzzz");
    CLI(2, "--backend-a: no such option of sample", "tvgpu sample --backend-a math"); /* one side has no a and b */
    CLI(2, "no command \"comapre\" (did you mean compare?)", "tvgpu comapre");
    CLI(2, "no command \"zz\"; tvgpu --help lists them", "tvgpu zz");
    CLI(2, "\"two\": compare takes one MODEL", "tvgpu compare one two");
    CLI(2, "\"one\": synth takes no words beside options", "tvgpu synth one");
    CLI(2, "Usage: tvgpu COMMAND", "tvgpu");
    CLI(0, "tvgpu ", "tvgpu --version && tvgpu compare --version");
    CLI(2, "estimate needs", "tvgpu estimate");
    CLI(2, "score needs --out", "tvgpu score");
    CLI(2, "sample needs --out", "tvgpu sample");
    CLI(2, "logits needs --tokens", "tvgpu logits");
    CLI(2, "export needs", "tvgpu export x");
    CLI(2, "import needs", "tvgpu import x");
}

static const tv_test tests[] = {{"help", help}, {"numbers", numbers}, {"suggestions", suggestions}};
TV_TEST_MAIN(tests)
