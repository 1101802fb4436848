/* What several commands share: opening models, making prompts, finishing a report. */
#ifndef TV_CLI_COMMON_H
#define TV_CLI_COMMON_H

#include "base/json.h"
#include "cli/options.h"
#include "traces/dataset.h"

/* Exit codes (docs/commands.md). */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_ABOVE = 3, EXIT_CANNOT_TELL = 4 };

/* The exit code of a recorded failure: 2 for usage and configuration, 1 otherwise. */
int cli_exit_code(const tv_err *err);

/* MODEL of the command line, or the bundled checkpoint found relative to the program; the caller frees. */
TV_NODISCARD tv_status cli_model_dir(const char *given, char **dir, tv_err *err);
/* Opens the engine of one side with a loading bar. */
TV_NODISCARD tv_status cli_engine_open(const tv_args *args, const tv_side *side, const char *model_dir, tv_engine **engine, tv_err *err);

/* Prompts as token ids. Arrays are owned; free with cli_prompts_free. */
typedef struct {
    int64_t P;
    int32_t *ids;     /* [offsets[P]] */
    int32_t *offsets; /* [P+1] */
    int64_t longest;  /* tokens of the longest prompt */
} cli_prompts;

/* From --prompts, --prompt, --system, --raw, --thinking and the model's tokenizer. */
TV_NODISCARD tv_status cli_prompts_make(const tv_args *args, const char *model_dir, cli_prompts *prompts, tv_err *err);
void cli_prompts_free(cli_prompts *prompts);

/* Builds the report of data, adds provenance (manifest may be NULL), applies --baseline, prints text or JSON to stdout, and
 * returns the exit code under --fail-above. *report receives the report for the caller to delete. */
TV_NODISCARD tv_status cli_report(const tv_args *args, const tv_dataset *data, const cJSON *timing, cJSON **report, int *exit_code, tv_err *err);

/* Seconds as "12 s", "3 min 05 s", "2 h 10 min" into buf. */
void cli_duration(char *buf, size_t size, double seconds);
/* Bytes as "12.3 MB" into buf. */
void cli_bytes(char *buf, size_t size, double bytes);

#endif
