/* The engine as the command line and benches see it: open a model on a device, open a session under a serving configuration,
 * sample, replay, score. Opaque; no device pointers. */
#ifndef TV_TV_H
#define TV_TV_H

#include <stdint.h>

#include "base/json.h"
#include "base/progress.h"
#include "base/status.h"
#include "models/quantize.h"
#include "traces/trace.h"

typedef struct tv_engine tv_engine;   /* a model on a device */
typedef struct tv_session tv_session; /* KV cache, workspace and scheduler under one serving configuration */

enum { TV_MAX_STORE_K = 128 }; /* most slots of a record */

typedef struct {
    const char *model;  /* checkpoint folder or Hugging Face cache path */
    const char *device; /* "auto", "cpu", "cuda" */
    int threads;        /* 0 = all cores */
    const char *isa;    /* CPU instruction set: "auto", "scalar", "avx2", ... */
    int gpu;
    const tv_progress *progress; /* loading, in bytes */
    int no_graphs; /* CUDA: 1 = every operation of a step is launched by itself; the same bits */
    tv_weight_dtype weight_dtype;
} tv_engine_options;

TV_NODISCARD tv_status tv_engine_open(const tv_engine_options *options, tv_engine **out, tv_err *err);
void tv_engine_close(tv_engine *engine);

typedef struct {
    char model_dir[4096], architecture[64], device[128];
    uint64_t weights_hash, weights_bytes, parameters;
    int n_layers, d_model, n_heads, n_kv_heads, head_size, vocab_size, max_positions, n_experts;
    int n_eos;
    int32_t eos[16];
    uint64_t layer_parameters; /* matrix elements of all layers: what a large step reads */
    uint64_t row_parameters;   /* of them, those that one row meets: all but the experts it does not choose */
} tv_engine_info;
void tv_engine_describe(const tv_engine *engine, tv_engine_info *info);

typedef enum { TV_ORDER_FIXED, TV_ORDER_SHUFFLED } tv_order;
typedef enum { TV_ARRIVALS_TOGETHER, TV_ARRIVALS_STAGGERED } tv_arrivals;
typedef enum { TV_ADMISSION_RESERVE, TV_ADMISSION_GROW } tv_admission;
typedef enum { TV_PREFILL_MIXED, TV_PREFILL_ALONE } tv_prefill_steps;
typedef enum { TV_KV_BF16, TV_KV_FP8, TV_KV_INT8 } tv_kv_dtype;
typedef enum { TV_EOS_STOP, TV_EOS_IGNORE, TV_EOS_SUPPRESS } tv_eos_mode;

/* One side: everything that may move the output distribution. */
typedef struct {
    char backend[16];      /* "auto", "math", "eager", "flash", "cudnn" */
    int batch;             /* most sequences running; 0 = all of the job */
    int pad_batch;         /* 1: padding sequences complete the last batch */
    tv_order order;
    tv_arrivals arrivals;
    int reduction_fixed;   /* 0: --reduction serving, 1: fixed */
    int plan_units;        /* multiprocessors of the plan; 132 */
    int logits_f32;        /* 0: --logits bf16 */
    int prefill_chunk;     /* prompt tokens per sequence and step; 0 = whole prompt */
    tv_prefill_steps prefill; /* whether decode rows run beside prompts */
    tv_kv_dtype kv_dtype;
    int64_t kv_tokens;     /* cache tokens that running sequences share; 0 = no limit */
    tv_admission admission; /* what a sequence takes of kv_tokens: its declared length, or its current one */
    int top_k;             /* sampling truncation */
    int store_k;           /* slots recorded */
    double temperature;
    tv_eos_mode eos;
    uint64_t pass_seed;    /* what a pass draws: composition, arrival steps */
} tv_serving;

/* The defaults of the program (backend auto, batch 0, temperature 1, top_k 20, store_k 32, suppressed EOS, ...). */
tv_serving tv_serving_default(void);
/* Checks ranges and combinations against the model; TV_EARG names the option. */
TV_NODISCARD tv_status tv_serving_check(const tv_serving *serving, const tv_engine *engine, tv_err *err);
/* The configuration as the manifest and traces store it; the caller deletes. Resolves "auto" to what was picked. */
cJSON *tv_serving_json(const tv_serving *serving, const tv_engine *engine);
/* 1 when a pass draws nothing new (order fixed, arrivals together): two equal passes then mean all are equal. */
int tv_serving_deterministic(const tv_serving *serving);

/* N trajectories at most at a time, prompt + n positions each. Prints nothing; sizes are checked against the device's memory
 * and the model's maximum before anything is allocated. An engine's sessions are called one after the other: those that are open
 * together and no larger than the first of them share its memory. */
TV_NODISCARD tv_status tv_session_open(tv_engine *engine, const tv_serving *serving, int64_t max_trajectories, int64_t max_positions,
                                       tv_session **out, tv_err *err);
void tv_session_close(tv_session *session);
/* Name of the attention backend in use ("flash"). */
const char *tv_session_backend(const tv_session *session);
/* The libraries that the session's steps so far were left to in part, and what they chose (kernels, algorithms): an array
 * of strings for reports, which the caller deletes. NULL on devices without libraries (CPU). */
cJSON *tv_session_libraries(const tv_session *session);
/* Device bytes a session would take. */
uint64_t tv_session_bytes(const tv_engine *engine, const tv_serving *serving, int64_t max_trajectories, int64_t max_positions);

/* What to sample: N trajectories of n tokens, trajectory i after prompt prompt_index[i]. */
typedef struct {
    int64_t N, n, P;
    const int32_t *prompt_ids;     /* [prompt_offsets[P]] */
    const int32_t *prompt_offsets; /* [P+1] */
    const int32_t *prompt_index;   /* [N], or NULL: all 0 */
    uint64_t seed;
    const int64_t *trajectory;     /* [N] identities, the keys of the draws; NULL: 0..N-1 */
} tv_job;

/* Everything that a session needs to know is refused up front with TV_EARG and the index and value: ids outside the vocabulary,
 * empty prompts, prompt + n beyond the session's positions. A logit that is NaN or +inf, or a row of -inf alone, ends the call
 * with TV_ENUMERIC, the trajectory and the position, and leaves no trace. The caller closes *out.
 *
 * Draws trajectories; the trace holds the records made while sampling. side: 'a' or 'b' goes into the metadata. */
TV_NODISCARD tv_status tv_session_sample(tv_session *session, const tv_job *job, char side, const tv_progress *progress,
                                         tv_trace **out, tv_err *err);
/* Pass number `pass` of teacher-forced replay over the set's trajectories through the decode path. */
TV_NODISCARD tv_status tv_session_replay(tv_session *session, const tv_trace *set, char side, int64_t pass,
                                         const tv_progress *progress, tv_trace **out, tv_err *err);
/* The experts that every row of a pass was sent to: of trajectory i's position p (its prompt from 0 on, then its tokens). */
typedef struct {
    int layers, used;
    int64_t N, positions; /* longest prompt + n */
    int32_t *ids;         /* [layers,N,positions,used] i32; -1 in dense layers and where nothing was fed */
} tv_routes;
/* Replay of an expert model that hands out its routes, or (replayed) takes those of another side's pass over the same set
 * instead of the router's choice, whose experts keep the weights that this side's router gives them. routes: zeroed or handed
 * out before; the caller frees. Where a preempted trajectory is computed again its last routes are kept. Refused (TV_EARG)
 * for dense models and, replayed, with padding sequences, which have no routes. */
TV_NODISCARD tv_status tv_session_replay_routes(tv_session *session, const tv_trace *set, char side, int64_t pass, int replayed,
                                                tv_routes *routes, const tv_progress *progress, tv_trace **out, tv_err *err);
void tv_routes_free(tv_routes *routes); /* safe on a zeroed struct */
/* Sequence-level scoring: the whole trajectory in one prefill. */
TV_NODISCARD tv_status tv_session_score_prefill(tv_session *session, const tv_trace *set, char side, int64_t pass,
                                                const tv_progress *progress, tv_trace **out, tv_err *err);
/* Logits of given ids [B,T]: through one prefill per row, or token by token through decode. logits: [B,T,V] f32 host. routes: NULL,
 * or [L,B,T,used] i32 host receiving the experts chosen (expert models; -1 in dense layers). Logits that are not finite fail. */
TV_NODISCARD tv_status tv_session_logits(tv_session *session, const int32_t *ids, int64_t B, int64_t T, int decode, float *logits,
                                         int32_t *routes, tv_err *err);

/* What one tap of the layer loop handed over: "qkv" of layer 3. */
typedef struct {
    char name[16];
    int layer;     /* -1: before or behind the layers */
    int width;
    int64_t rows;  /* positions; of "route": [N,positions] */
    float *values; /* [rows,width] f32, NULL for "route" */
    int32_t *ids;  /* [rows,width] i32 experts chosen ("route"), -1 where a trajectory has ended; else NULL */
} tv_activation;
typedef struct {
    int n;
    tv_activation *at; /* [n] in the order of computation */
} tv_activations;
/* Replays the first `positions` tokens of all trajectories as pass number `pass` would, and keeps the rows that gave the
 * distributions of trajectory `trajectory` (index in the set), and of "route" those of all trajectories. */
TV_NODISCARD tv_status tv_session_activations(tv_session *session, const tv_trace *set, int64_t trajectory, int64_t positions,
                                              int64_t pass, tv_activations *out, tv_err *err);
void tv_activations_free(tv_activations *activations); /* safe on a zeroed struct */

/* Streams one continuation: fn gets each token as it is drawn and returns 0 to go on. */
TV_NODISCARD tv_status tv_session_generate(tv_session *session, const int32_t *prompt, int64_t n_prompt, int64_t n, uint64_t seed,
                                           int (*fn)(void *user, int32_t id), void *user, tv_err *err);

/* What preemption (--admission grow) made a session do again since it was opened. */
typedef struct {
    int64_t preemptions;
    int64_t tokens;    /* whose records were computed again; the first ones stand */
    int64_t differing; /* of them, those that came out with other bits: 0 under --reduction fixed */
} tv_recomputed;
const tv_recomputed *tv_session_recomputed(const tv_session *session);

/* Where the time of a session's steps went, in seconds since tv_session_profile. Means something on devices whose calls have
 * done their work when they return (CPU). */
typedef struct {
    double embed, norms, qkv, attention, attention_out, ffn, head; /* the layer loop; attention: rope, cache and attention */
    double logprobs, sample, copies, host;                         /* around it; host: schedule and records */
    double total;
    int64_t steps, rows, logit_rows; /* counted also while no times are taken */
} tv_step_times;
typedef enum {
    TV_PROFILE_OFF,
    TV_PROFILE_WALL,
    TV_PROFILE_CPU /* processor time of the calling thread, for a device of one thread: what else the machine does is left out */
} tv_profile;
/* Starts again from zero, taking times or only counting. While they are taken, steps run one at a time and none is recorded. */
void tv_session_profile(tv_session *session, tv_profile profile);
const tv_step_times *tv_session_times(const tv_session *session);

/* Backends and devices with "available" or the reason: for info and error messages. The caller deletes. */
cJSON *tv_devices_json(void);
cJSON *tv_backends_json(const tv_engine *engine);
/* As tv_session_libraries, of all sessions of the engine so far. */
cJSON *tv_libraries_json(const tv_engine *engine);
/* The reduction plan of this model as text (info --plan); the caller frees. */
char *tv_plan_text(const tv_engine *engine, const tv_serving *serving);

#endif
