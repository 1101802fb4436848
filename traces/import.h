/* Recorded log-probabilities of other engines (docs/formats.md, "Imported forms") as trace files. */
#ifndef TV_IMPORT_H
#define TV_IMPORT_H

#include <stdint.h>

#include "base/status.h"

typedef enum { TV_FORM_AUTO, TV_FORM_VLLM, TV_FORM_SGLANG, TV_FORM_OPENAI } tv_import_form;

typedef struct {
    tv_import_form form;
    int side;           /* TV_A or TV_B: whose dump it is */
    int set;            /* whose trajectories it scores; -1: it holds what the side sampled */
    int by_prefix;      /* with set: records of the side's own samples, wherever their beginning is the trajectory's */
    int64_t length;     /* tokens used of every completion; 0 = all */
    double temperature; /* that the log-probabilities and samples are of */
    int top_k;          /* the sampling truncation; 0 = the whole vocabulary */
    uint64_t seed;      /* of the sampling, for the record */
    const char *engine; /* what made the dump; NULL: the form's name */
} tv_import_options;

typedef struct {
    int64_t N, n, k, pass; /* pass: its number; 0 with samples, which are their own first pass */
    int strings;           /* 1: tokens came as text, numbered by DIR/tokens.json */
    int from_prompt;       /* 1: scores of prompts, taken all at once and not step by step */
    int64_t prompts;       /* distinct ones; 1 also when the dump states none */
} tv_import_result;

/* Reads the dumps, in order, as one set of requests and writes into dir, which is made where missing:
 * SIDE.samples.safetensors and its own pass 0, or the next free SIDE-on-SET pass beside the trajectories that are
 * there. Everything is checked before anything is written; messages name file, line or entry, and key. TV_EFORMAT: what
 * a dump holds; TV_EARG: what does not fit the folder. */
TV_NODISCARD tv_status tv_import(const char *const *paths, int n_paths, const char *dir,
                                 const tv_import_options *options, tv_import_result *result, tv_err *err);

#endif
