/* What the files of engine/ share about a session: its memory, one step of it, and a pass of steps. */
#ifndef TV_SESSION_H
#define TV_SESSION_H

#include "engine/engine.h"
#include "engine/kv.h"
#include "kernels/attention.h"
#include "models/forward.h"

/* ---- serving.c ---- */

/* The attention backend of a serving configuration for steps of max_batch sequences of at most max_keys keys. */
TV_NODISCARD tv_status tv_backend_choose(const tv_engine *engine, const tv_serving *serving, int max_batch,
                                         int max_keys, const tv_attn_backend **out, tv_err *err);
/* Element type of the cache in memory. */
tv_dtype tv_kv_storage(tv_kv_dtype dtype);
/* Distinct ids whose logits are set to -inf; ids holds TV_MAX_EOS. Returns how many. */
int tv_suppressed_ids(const tv_engine *engine, const tv_serving *serving, int32_t *ids);

/* Refuses a sequence whose declared length (prompt + n) is beyond --kv-tokens: it could never run. */
TV_NODISCARD tv_status tv_declared_check(const tv_serving *serving, int64_t declared, tv_err *err);

/* ---- session.c ---- */

/* Logits of a step that scores whole sequences take at most this much, unless decode itself needs more. */
enum { TV_LOGIT_BYTES = 256 << 20 };

/* What a session, or one job in it, may use. A job's limits follow from the job alone, so that its steps do not depend
 * on how large the session was opened; they never exceed the session's when its N and positions do not. */
typedef struct {
    int64_t slots;  /* sequences in a step */
    int64_t rows;   /* rows of a step */
    int64_t logits; /* rows of a step with logits */
} tv_limits;
/* chunk: the longest run of rows that one sequence puts into a step when prompts are not chunked. */
tv_limits tv_session_limits(const tv_engine *engine, const tv_serving *serving, int64_t N, int64_t positions,
                            int64_t chunk);

/* Inputs and results of one step in host memory, packed so that one copy moves each; n = n_logits, k = store_k. */
typedef struct {
    int M, n_segments, n_logits;
    tv_segment *segments; /* [n_segments] */
    int64_t *trajectory;  /* [n] i64 sampling key */
    int32_t *position;    /* [n] i32 sampling key */
    int32_t *logit_rows;  /* [n] i32 rows of the step whose logits are wanted */
    int32_t *token;       /* [n] i32 token to be scored, -1 = none (score) */
    int32_t *ids;         /* [M] i32 */
    int32_t *keep;        /* [n] i32 cache slot whose last token the drawn one becomes (draw) */
    int32_t *carry;       /* [M] i32 cache slot whose last drawn token is the row's id; -1 = none: ids has it (draw) */
    int32_t *topk_ids;    /* [n,k] i32 out */
    float *topk_logprobs; /* [n,k] f32 out */
    float *token_logprob; /* [n] f32 out (score) */
    int32_t *token_rank;  /* [n] i32 out (score) */
    int32_t *drawn;       /* [n] i32 out (draw) */
    int32_t *bad;         /* [n] i32 out: 1 = logits not finite */
} tv_step_io;

typedef enum {
    TV_STEP_LOGITS, /* leaves logits in the workspace */
    TV_STEP_SCORE,  /* records of each logit row, with the given token's log-probability and rank */
    TV_STEP_DRAW    /* records of each logit row, and a token drawn from them */
} tv_step_mode;

/* A step between its submission and its results: what the host may not touch meanwhile. */
typedef struct {
    tv_step_io io;
    void *host_in, *host_out; /* behind io's pointers, pinned where the device has such */
    tv_event *done;           /* NULL on devices that are done when they return */
} tv_flight;

struct tv_session {
    tv_engine *engine;
    tv_serving serving; /* with the backend that "auto" became */
    const tv_attn_backend *backend;
    tv_plan plan;
    int64_t max_trajectories, max_positions;
    tv_limits limits;
    void *memory; /* device: the activations, then the cache; the engine's lent block or one of its own */
    uint64_t memory_bytes;
    tv_kv kv;
    tv_workspace *ws;
    void *in, *out; /* device copies of io's inputs and results */
    uint64_t in_bytes, out_bytes;
    int32_t *drawn;      /* [slots] i32 device: the token last drawn in each cache slot */
    int32_t *suppressed; /* [n_suppressed] i32 device */
    int n_suppressed;
    /* Steps begun go round the flights. The first has room for limits.logits, the others, which only a pass of steps of
     * one logit row a sequence needs, for limits.slots. */
    tv_flight *flights;
    int n_flights;
    uint64_t submitted, collected; /* steps since nothing was in flight */
    uint64_t reached;              /* of them, those known to be done */
    tv_step_io io;                 /* of the step begun or collected last */
    tv_recomputed recomputed;
    /* observers */
    int32_t *routes;      /* NULL, or host memory [L,M,used] of the step's expert choices ... */
    int32_t *imposed;     /* ... and NULL, or device memory [L,rows,used]: taken from there instead of the router */
    tv_tap observer;      /* fn NULL: none */
    tv_status tap_status; /* first failure inside a tap */
    tv_err *tap_err;
    tv_profile profile;
    int graphs;   /* steps may be recorded and replayed */
    double mark;  /* time of the last tap */
    double start; /* of the step */
    tv_step_times times;
};

/* Lays out io for a step; the caller fills the inputs (keep and carry: to draw). M and n_logits lie within the
 * session's limits; fewer than n_flights steps are in flight, and where one is, n_logits <= limits.slots. */
tv_step_io *tv_step_begin(tv_session *session, int M, int n_segments, int n_logits);
/* Puts the step that io describes behind those in flight. Waits for nothing and allocates nothing. seed: of drawing. */
TV_NODISCARD tv_status tv_step_submit(tv_session *session, tv_step_mode mode, uint64_t seed, tv_err *err);
/* io becomes that of the oldest step in flight, with its results. Waits where they have not been waited for yet, for a
 * block of steps at once: half of the flights. Results stay until the flight's turn comes again. */
TV_NODISCARD tv_status tv_step_collect(tv_session *session, tv_err *err);
/* Submits and collects one step; nothing is in flight. */
TV_NODISCARD tv_status tv_step_run(tv_session *session, tv_step_mode mode, uint64_t seed, tv_err *err);
/* Waits for what is in flight and forgets it. */
void tv_steps_abandon(tv_session *session);

/* Seconds on the clock of the session's profile. */
double tv_session_now(const tv_session *session);

/* ---- pass.c ---- */

/* A pass over N trajectories through the scheduler: tokens are given (replay) or drawn. Arrays are borrowed. */
typedef struct {
    int64_t N, n, P;
    const int32_t *prompt_ids;     /* [prompt_offsets[P]] i32 */
    const int32_t *prompt_offsets; /* [P+1] i32 */
    const int32_t *prompt_index;   /* [N] i32, or NULL: all 0 */
    const int64_t *trajectory;     /* [N] i64, or NULL: 0..N-1 */
    const int32_t *given;          /* [N,n] i32 tokens, or NULL: drawn */
    const int32_t *given_lengths;  /* [N] i32, or NULL: all n */
    uint64_t seed;                 /* of drawing */
    int64_t pass;                  /* -1 = sampling */
    int32_t *tokens;               /* [N,n] i32 out, when drawn */
    int32_t *lengths;              /* [N] i32 out, when drawn */
    /* records, or NULL all: as in tv_trace */
    int32_t *topk_ids;     /* [N,n,k] i32 */
    float *topk_logprobs;  /* [N,n,k] f32 */
    float *token_logprobs; /* [N,n] f32 */
    int32_t *token_rank;   /* [N,n] i32 */
    tv_routes *routes;     /* NULL, or the experts of every row a trajectory feeds: written to it ... */
    int replayed;          /* ... or, 1, taken from it */
    int (*on_token)(void *user, int32_t id); /* NULL, or called with each drawn token; not 0 ends the trajectory */
    void *user;
} tv_pass;

/* Refuses a job that does not fit the model or the session, naming index and value. */
TV_NODISCARD tv_status tv_pass_check(const tv_session *session, const tv_pass *pass, tv_err *err);
/* Prompt length of each trajectory and their identities, in fresh memory (caller frees); *longest: the longest prompt.
 */
void tv_pass_sequences(const tv_pass *pass, int32_t **prompt_len, int64_t **trajectory, int64_t *longest);
TV_NODISCARD tv_status tv_pass_run(tv_session *session, const tv_pass *pass, const tv_progress *progress, tv_err *err);
/* Writes logit row `row` of the step as the record of trajectory i's token t: own is that token. */
void tv_pass_record(const tv_session *session, const tv_pass *pass, int64_t i, int64_t t, int row, int32_t own);
/* TV_ENUMERIC naming the trajectory and the position. */
tv_status tv_pass_bad(const tv_pass *pass, int64_t i, int64_t t, tv_err *err);

/* ---- replay.c ---- */

/* A trace for the pass's records with prompts, tokens, identities and metadata filled in, and the pass's record
 * pointers set to its arrays. method: NULL, or said in the stored configuration. */
TV_NODISCARD tv_status tv_pass_trace(tv_session *session, tv_pass *pass, char side, const char *set, const char *method,
                                     tv_trace **out, tv_err *err);
/* After the pass: what lies behind the trajectories' ends, and what libraries chose up to here. */
void tv_pass_finish(const tv_session *session, tv_trace *trace);
/* The pass that replays set's trajectories, checked. */
TV_NODISCARD tv_status tv_pass_from_set(const tv_session *session, const tv_trace *set, int64_t number, tv_pass *pass,
                                        tv_err *err);

#endif
