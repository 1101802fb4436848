/* The options of every command: ONE table (options.c) drives the parser and the help. */
#ifndef TV_OPTIONS_H
#define TV_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "engine/tv.h"
#include "models/tokenizer.h"

/* Commands an option belongs to, as bits. */
enum {
    CMD_COMPARE = 1 << 0,
    CMD_SAMPLE = 1 << 1,
    CMD_SCORE = 1 << 2,
    CMD_ESTIMATE = 1 << 3,
    CMD_GENERATE = 1 << 4,
    CMD_LOGITS = 1 << 5,
    CMD_TOKENIZE = 1 << 6,
    CMD_INFO = 1 << 7,
    CMD_CALIBRATE = 1 << 8,
    CMD_SCHEDULE = 1 << 9,
    CMD_SYNTH = 1 << 10,
    CMD_EXPORT = 1 << 11,
    CMD_BENCH = 1 << 12,
    CMD_ATTRIBUTE = 1 << 13,
    CMD_FIGURE = 1 << 14,
    CMD_IMPORT = 1 << 15,
    CMD_MODEL = CMD_COMPARE | CMD_ATTRIBUTE | CMD_SAMPLE | CMD_SCORE | CMD_GENERATE | CMD_LOGITS |
                CMD_INFO, /* open an engine that options configure */
    CMD_RUN = CMD_COMPARE | CMD_ATTRIBUTE | CMD_SAMPLE | CMD_SCORE,
    CMD_SHARED = CMD_COMPARE | CMD_SAMPLE | CMD_SCORE,     /* several processes may share a run */
    CMD_DATA = CMD_ESTIMATE | CMD_CALIBRATE | CMD_SCHEDULE /* numbers from recorded passes */
};

enum { TV_MOST_WORDS = 4096 }; /* words of a command line beside options: trace files, above all */

/* One side of a comparison. */
typedef struct {
    const char *model, *device; /* NULL until resolved */
    const char *isa;            /* CPU instructions, as tv_engine_options.isa */
    tv_weight_dtype weight_dtype;
    tv_serving serving;
} tv_side;

/* Every option's value, with the defaults filled in. Strings point into argv. */
typedef struct {
    tv_side side[2]; /* commands with one side use side[0] */
    int side_given;  /* an option with -a or -b was used */
    int64_t N, n, R; /* 0 = not given: the command's default */
    uint64_t seed[2];
    const char *prompt, *system, *prompts;
    int raw;
    tv_thinking thinking;
    int64_t readout, reads;
    int serving_order, always_repeat;
    const char *keep_passes;         /* "yes" or "no" */
    double fail_above, target_error; /* NaN = not given */
    const char *baseline, *out, *html, *method, *path, *tokens;
    const char *side_name;  /* "a" or "b" */
    const char *axis;       /* "NAME=VALUE,..." */
    const char *form, *set_name, *engine_name; /* of import: the dump's form; whose trajectories; what made it */
    int by_prefix, dump_top_k;
    double dump_temperature;
    const char *size, *run; /* of figures: "quick" or "full"; a folder of earlier runs */
    const char *shard;      /* "I/N", or NULL */
    double wait;            /* seconds */
    int quick, dry_run, json;
    int threads, gpu;
    const char *graphs;
    int plan, chat, jsonl, decode;
    int64_t reps;
    /* schedule, synth */
    int theory, coverage;
    double sigma, eps, delta, budget, scale;
    int quiet, help, version;
    int suppress_eos, ignore_eos, stop_eos; /* which was given */
    /* what is left: MODEL, files, sub-command words */
    const char *positional[TV_MOST_WORDS];
    int n_positional;
} tv_args;

typedef struct tv_command {
    const char *name, *summary;
    unsigned bit;
    int most_words;                         /* words beside options: MODEL, paths */
    const char *usage;                      /* behind "tvgpu NAME " */
    const char *describe;                   /* paragraphs for --help */
    const char *examples;                   /* lines for --help, may be NULL */
    int (*run)(tv_args *args, tv_err *err); /* returns the exit code; a failure is recorded in err */
} tv_command;

/* Parses argv[2..) for command; TV_EARG names the option and what it wants. */
TV_NODISCARD tv_status tv_args_parse(const tv_command *command, int argc, char **argv, tv_args *args, tv_err *err);
/* Gives side the value of the one-sided option `name` of the command (without dashes), as "--name value" would. */
TV_NODISCARD tv_status tv_args_set_side(unsigned command, const char *name, const char *value, tv_side *side,
                                        tv_err *err);
/* Edits (insertions, deletions, replacements of a letter) between a[0..n_a) and b; SIZE_MAX for words of 64 and more.
 */
size_t tv_word_distance(const char *a, size_t n_a, const char *b);
/* Prints a command's help: usage, what it does, its options by group with defaults and units, examples. */
void tv_args_help(const tv_command *command, FILE *out);

#endif
