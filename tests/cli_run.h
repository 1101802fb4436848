/* Runs the program as a user would, for the tests of the command line. Failures of the harness itself abort. */
#ifndef TV_TESTS_CLI_RUN_H
#define TV_TESTS_CLI_RUN_H

#include <stddef.h>

#include "base/json.h"
#include "base/status.h"

typedef struct {
    int code;        /* exit code; 128 + signal when one ended it */
    char *out, *err; /* what it printed, NUL-terminated; owned */
    size_t out_size; /* bytes of out */
} cli_result;

/* Runs a shell command line in the test's folder (tv_test_dir); "tvgpu" in it is the program just built. input goes to
 * standard input (NULL: empty). */
cli_result cli_run(const char *input, const char *fmt, ...) TV_PRINTF(2, 3);
/* The same as a user who owns nothing, where the tests run as root; *ran: 1, or 0 when that user cannot reach the
 * program (the result is empty then). */
cli_result cli_run_unprivileged(int *ran, const char *fmt, ...) TV_PRINTF(2, 3);
void cli_free(cli_result *r);
/* Starts it without waiting, its output thrown away; the process is the program itself, so that a signal meets it. */
int cli_start(const char *fmt, ...) TV_PRINTF(1, 2);
/* cli_run with checks: the exit code, and that standard output or standard error contains part (NULL: anything). */
int cli_check(const char *file, int line, int code, const char *part, const char *fmt, ...) TV_PRINTF(5, 6);
#define CLI(code, part, ...) cli_check(__FILE__, __LINE__, (code), (part), __VA_ARGS__)

/* Makes folder "m" (a random checkpoint of vocabulary 128 without a tokenizer) and the prompts file "p.jsonl" of three
 * prompts of ids in the test's folder. */
void cli_tiny_model(void);
/* Makes folder "m": a random checkpoint with the bundled model's tokenizer and a tenth of its arithmetic. */
void cli_small_model(void);
/* DIR/NAME in the test's folder, static storage, the last eight stay valid. */
const char *cli_path(const char *name);
/* JSON file in the test's folder; aborts when it is none. The caller deletes. */
cJSON *cli_json(const char *name);
/* Member at a dotted path ("tv.ci95"), or NULL. */
const cJSON *cli_at(const cJSON *json, const char *path);
/* Number there, or NaN. */
double cli_number(const cJSON *json, const char *path);
/* Text of a report without its timing, and without what depends on when and where; the caller frees. */
char *cli_without_timing(const char *name);
/* Number of entries of a folder of the test's folder; -1 when there is none. */
int cli_entries(const char *name);

#endif
