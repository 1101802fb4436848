/* Continuous batching: who runs in each step of a pass, in which cache slot, with which positions. Sizes and seeds
 * only; it sees no tokens, no model and no device. */
#ifndef TV_SCHEDULER_H
#define TV_SCHEDULER_H

#include <stdint.h>

#include "base/status.h"
#include "engine/tv.h"

/* Rows a step may have unless one sequence alone needs more: prompts that do not fit wait for the next step. */
enum { TV_STEP_ROWS = 16384 };

/* What a pass runs under, and over which sequences. Arrays are borrowed until tv_sched_close. */
typedef struct {
    int slots;                /* most sequences in a step; >= 1 */
    int pad;                  /* 1: free slots run padding sequences while a trajectory runs */
    tv_order order;           /* shuffled: admission order drawn per pass */
    tv_arrivals arrivals;     /* staggered: arrival steps drawn per pass */
    int prefill_chunk;        /* prompt rows per sequence and step; 0 = whole prompt */
    tv_prefill_steps prefill; /* alone: decode rows wait while a prompt has rows to run */
    int64_t kv_tokens; /* cache tokens for running trajectories together; 0 = no limit; else >= prompt + n of each */
    tv_admission admission;    /* what a trajectory takes of them: reserve: prompt + n; grow: prompt + tokens so far */
    int64_t max_rows;          /* rows of a step; at least tv_sched_rows(slots, longest chunk) for that many slots */
    uint64_t pass_seed;        /* key of whatever the pass draws */
    int64_t pass;              /* -1 = the sampling pass, else the replay pass's number */
    int64_t N;                 /* trajectories */
    const int32_t *prompt_len; /* [N] i32, >= 1 */
    const int32_t *length;     /* [N] i32 tokens each, >= 0 (0: never runs), or NULL: all n */
    int64_t n;                 /* the longest length; also that of padding sequences */
    const int64_t *trajectory; /* [N] i64 identities, the counters of the draws */
} tv_sched_options;

/* What one sequence does in one step: rows pos .. pos+n_rows-1 of slot. */
typedef struct {
    int64_t seq; /* trajectory's index in [0,N), or -1-p: padding sequence p, which copies the prompt of trajectory p
                    mod N */
    int32_t slot, pos, n_rows;
    int32_t t; /* index of the token that follows the last row; -1 while the prompt goes on (no logits wanted) */
    int again; /* 1: token t was produced before the trajectory was preempted; it stands */
} tv_sched_entry;

typedef struct tv_sched tv_sched;

/* Everything is allocated here. Never fails but for memory. */
TV_NODISCARD tv_status tv_sched_open(const tv_sched_options *options, tv_sched **out, tv_err *err);
void tv_sched_close(tv_sched *sched); /* NULL is fine */

/* The next step: *entries receives the entries (owned by sched, valid until the next call), in order of slot. Returns
 * how many; 0 when every trajectory has ended. */
int tv_sched_step(tv_sched *sched, const tv_sched_entry **entries);
/* The trajectory of an entry of the step just returned ends with the token that follows it (an end-of-sequence id). */
void tv_sched_finish(tv_sched *sched, int64_t seq);
/* Number of the step last returned, counted from 0 with the idle steps that staggered arrivals leave. */
int64_t tv_sched_now(const tv_sched *sched);
/* [N] i64: the trajectories in the order in which they are admitted; owned by sched. */
const int64_t *tv_sched_admission(const tv_sched *sched);
/* How often a trajectory lost its slot to older ones so far. */
int64_t tv_sched_preemptions(const tv_sched *sched);
/* Step in which trajectory i arrives. */
int64_t tv_sched_arrival(const tv_sched *sched, int64_t i);

/* Rows that a step may need: all slots' chunks at once, or else TV_STEP_ROWS, or a row for each slot and one chunk. */
int64_t tv_sched_rows(int64_t slots, int64_t chunk);
/* Token of padding sequence p at position t of its continuation, in [0,V). */
int32_t tv_sched_padding(uint64_t pass_seed, int64_t p, int64_t t, int V);

#endif
