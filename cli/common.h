/* What several commands share: opening models, making prompts, finishing a report. */
#ifndef TV_CLI_COMMON_H
#define TV_CLI_COMMON_H

#include "base/json.h"
#include "bench/machine.h"
#include "cli/options.h"
#include "traces/dataset.h"

/* Exit codes (docs/commands.md). */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_ABOVE = 3, EXIT_CANNOT_TELL = 4 };

/* The exit code of a recorded failure: 2 for usage and configuration, 1 otherwise. */
int cli_exit_code(const tv_err *err);

/* MODEL of the command line, or the bundled checkpoint found relative to the program; the caller frees. */
TV_NODISCARD tv_status cli_model_dir(const char *given, char **dir, tv_err *err);
/* Opens the engine of one side with a loading bar. */
TV_NODISCARD tv_status cli_engine_open(const tv_args *args, const tv_side *side, const char *model_dir,
                                       tv_engine **engine, tv_err *err);

/* 1 when the engine runs on an accelerator, whose defaults are larger. */
int cli_on_gpu(const tv_engine *engine);

/* Prompts as token ids. Arrays are owned; free with cli_prompts_free. */
typedef struct {
    int64_t P;
    int32_t *ids;     /* [offsets[P]] */
    int32_t *offsets; /* [P+1] */
    int64_t *line;    /* [P] line of the prompts file that holds it; 0 = from the command line */
    int64_t longest;  /* tokens of the longest prompt */
} cli_prompts;

/* From --prompts, --prompt, --system, --raw, --thinking and the model's tokenizer. */
TV_NODISCARD tv_status cli_prompts_make(const tv_args *args, const char *model_dir, cli_prompts *prompts, tv_err *err);
/* Refuses ids that the vocabulary of V lacks, by line, before anything is written. */
TV_NODISCARD tv_status cli_prompts_check(const tv_args *args, const cli_prompts *prompts, int V, tv_err *err);
/* Refuses n tokens after the longest prompt where the model has no such positions. */
TV_NODISCARD tv_status cli_positions_check(const cli_prompts *prompts, int64_t n, const tv_engine_info *info,
                                           tv_err *err);
void cli_prompts_free(cli_prompts *prompts);

/* Whole numbers from 0 between white space, commas and brackets, as ids; the caller frees. name goes into messages. */
TV_NODISCARD tv_status cli_ids_parse(const char *text, const char *name, int32_t **ids, int64_t *n, tv_err *err);

/* Refuses a --baseline that is no report, before hours of work. */
TV_NODISCARD tv_status cli_baseline_check(const tv_args *args, tv_err *err);

/* The report of data: what the estimators say, who was measured, the text of tokens where the model's tokenizer is at
 * hand (model_dir; NULL: where the data were made), --baseline, and timing (NULL: estimated from files). The caller
 * deletes it. */
TV_NODISCARD tv_status cli_report_make(const tv_args *args, const tv_dataset *data, const char *model_dir,
                                       const cJSON *timing, cJSON **report, tv_err *err);
/* "libraries" {a, b}: what libraries chose for the sides' steps, where any took part (docs/formats.md). */
void cli_add_libraries(cJSON *object, const tv_dataset *data);
/* Prints it to stdout, as text or with --json as JSON. */
void cli_report_print(const tv_args *args, const cJSON *report);
/* The exit code under --fail-above, said on stderr. */
int cli_report_verdict(const tv_args *args, const cJSON *report);

/* Seconds that `passes` passes over N trajectories of n tokens take if they reach half of the machine's measured
 * limits. prompt: tokens of all N prompts together. Runs nothing of the model. */
double cli_seconds(const tv_machine *machine, const tv_engine_info *info, const tv_serving *serving, int64_t N,
                   int64_t n, int64_t prompt, double passes);
/* Prints what --dry-run of compare, sample and score says: passes over N trajectories of n tokens, time, memory, disk,
 * and where. disk: with passes kept; folded: with --keep-passes no, or 0 where there are none. */
void cli_print_need(const tv_args *args, const tv_engine_info *info, int64_t passes, int64_t N, int64_t n,
                    double seconds, uint64_t memory, uint64_t disk, uint64_t folded, const char *folder);
/* Says what preemption made the session do again, if anything. session may be NULL. */
void cli_note_recomputed(const tv_session *session, const char *what);
/* Prints json to stdout. */
void cli_print_json(const cJSON *json);

/* Seconds as "12 s", "3 min 05 s", "2 h 10 min" into buf. */
void cli_duration(char *buf, size_t size, double seconds);
/* Bytes as "12.3 MB" into buf. */
void cli_bytes(char *buf, size_t size, double bytes);

#endif
