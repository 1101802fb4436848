/* One trace file: a set of trajectories and, except in a pure sample set, one scoring pass over them. */
#ifndef TV_TRACE_H
#define TV_TRACE_H

#include <stdint.h>

#include "base/status.h"
#include "traces/safetensors.h"

/* File format "tvgpu-trace/1" (docs/formats.md). Arrays are owned by the trace, or point into its mapping. What lies
 * behind a trajectory's end is: token -1, ids -1, log-probabilities -inf, token log-probability 0, rank -1; readers
 * check the tokens there and skip the rest. */
typedef struct {
    int64_t N, n, k; /* trajectories, tokens each (the longest), stored slots (0: a sample file without records) */
    int64_t P;       /* prompts */
    const int32_t *tokens;         /* [N,n] i32; -1 behind a trajectory's end */
    const int32_t *lengths;        /* [N] i32, or NULL: every trajectory has n tokens */
    const int32_t *topk_ids;       /* [N,n,k] i32, -1 = empty slot */
    const float *topk_logprobs;    /* [N,n,k] f32, descending, ties by lowest id, -inf = empty slot */
    const float *token_logprobs;   /* [N,n] f32 of the trajectory's own token, same normalisation; NULL if absent */
    const int32_t *token_rank;     /* [N,n] i32, 0 = most likely; NULL if absent */
    const int32_t *prompt_ids;     /* [prompt_offsets[P]] i32, all prompts one after another */
    const int32_t *prompt_offsets; /* [P+1] i32 */
    const int32_t *prompt_index;   /* [N] i32: which prompt a trajectory follows */
    const int64_t *trajectory;     /* [N] i64: identity, also the RNG key */
    /* metadata; strings owned by the trace */
    char *side;   /* "a" or "b": who scored (or sampled) */
    char *set;    /* "a" or "b": whose trajectories */
    int64_t pass; /* 0, 1, ...; -1 for a sample file */
    double temperature;
    uint64_t seed;     /* sampling seed of the set */
    char *config_json; /* the serving configuration of side, as JSON text */
    char *libraries; /* what libraries chose for side's steps, a JSON array of strings as text; NULL: none took part */
    void *owner;     /* private */
} tv_trace;

/* Maps and checks a trace file: format tag, metadata, dtypes, shapes, tokens and lengths, prompt offsets and indices,
 * trajectory ids, log-probabilities not NaN and not above 1e-3, order and duplicates within a record, mass at most
 * 1 + 1e-3. Names the file, the tensor and the index. */
TV_NODISCARD tv_status tv_trace_open(const char *path, tv_trace **out, tv_err *err);
/* The same on bytes in memory that outlive the trace (fuzz entry). */
TV_NODISCARD tv_status tv_trace_parse(const unsigned char *data, size_t size, const char *name, tv_trace **out,
                                      tv_err *err);
void tv_trace_close(tv_trace *trace); /* NULL is fine; frees what open or new allocated, strings included */

/* A trace with writable zeroed arrays (see tv_trace_writable), pass -1, and NULL strings: side and set must be set
 * before it is written, to tv_xstrdup'ed text that the trace then owns. TV_EARG: N, n or P below 1, or k below 0;
 * TV_ENOMEM. */
TV_NODISCARD tv_status tv_trace_new(int64_t N, int64_t n, int64_t k, int64_t P, int64_t n_prompt_ids, tv_trace **out,
                                    tv_err *err);
/* Writable views of the arrays of a trace made by tv_trace_new, in the same shapes; lengths is present and filled with
 * n. prompt_offsets is zeroed but for its last entry. */
typedef struct {
    int32_t *tokens, *lengths, *topk_ids;
    float *topk_logprobs, *token_logprobs;
    int32_t *token_rank, *prompt_ids, *prompt_offsets, *prompt_index;
    int64_t *trajectory;
} tv_trace_mut;
tv_trace_mut tv_trace_writable(tv_trace *trace);
/* Gives everything behind the trajectories' ends its defined value, in a trace made by tv_trace_new. */
void tv_trace_clear_tails(tv_trace *trace);

/* Tokens of the longest of the trace's prompts. */
int64_t tv_trace_longest_prompt(const tv_trace *trace);

/* Checks the trace as tv_trace_open would (so nothing unreadable is ever stored) and writes it atomically. Equal traces
 * give equal bytes; lengths is left out where every trajectory has n tokens. */
TV_NODISCARD tv_status tv_trace_write(const tv_trace *trace, const char *path, tv_err *err);
/* Bytes of such a file, at most 64 KiB too many, for the disk check before a run. */
uint64_t tv_trace_file_size(int64_t N, int64_t n, int64_t k, int64_t n_prompt_ids);
/* 1 when ids, log-probabilities, token log-probabilities and ranks agree in every bit up to each trajectory's end (the
 * last two where both have them); counts differing values into *differing and compared ones into *of (either may be
 * NULL). Both must have the same N, n, k and tokens. */
int tv_trace_same(const tv_trace *x, const tv_trace *y, int64_t *differing, int64_t *of);
/* The count behind it: 32-bit words that differ between a and b, [n] each. */
int64_t tv_words_differing(const void *a, const void *b, int64_t n);

#endif
