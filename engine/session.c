/* A session: its memory, sized before anything is allocated, and one step of it. */
#include "engine/session.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "engine/scheduler.h"

enum { MOST_ROWS = 1 << 20 }; /* of a step; what the operations take */
static const double GiB = 1 << 30;

double tv_session_now(const tv_session *s) {
    struct timespec t;
    clock_gettime(s->profile == TV_PROFILE_CPU ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- sizes ---- */

tv_limits tv_session_limits(const tv_engine *e, const tv_serving *s, int64_t N, int64_t positions, int64_t chunk) {
    tv_limits l;
    l.slots = s->batch ? s->batch : N;
    if (!s->pad_batch && l.slots > N) l.slots = N;
    if (s->prefill_chunk && chunk > s->prefill_chunk) chunk = s->prefill_chunk;
    l.rows = tv_sched_rows(l.slots, chunk);
    int64_t scored = TV_LOGIT_BYTES / ((int64_t)sizeof(float) * e->model->config.vocab_size);
    if (scored > positions) scored = positions;
    l.logits = scored > l.slots ? scored : l.slots;
    return l;
}

/* Inputs of a step; those that only drawing reads come last. */
static uint64_t in_bytes(int64_t rows, int64_t segments, int64_t logits, int draw) {
    uint64_t always = (uint64_t)segments * sizeof(tv_segment) +
                      (uint64_t)logits * (sizeof(int64_t) + 3 * sizeof(int32_t)) + (uint64_t)rows * sizeof(int32_t);
    return always + (draw ? (uint64_t)(logits + rows) * sizeof(int32_t) : 0);
}

static uint64_t out_bytes(int64_t logits, int k) {
    return (uint64_t)logits * ((uint64_t)k * (sizeof(int32_t) + sizeof(float)) + sizeof(float) + 3 * sizeof(int32_t));
}

/* Device memory of a session, in its parts; 0 when a size is beyond what a step can count. */
typedef struct {
    uint64_t kv, workspace, io, total;
} bytes_needed;

static int size_session(const tv_engine *e, const tv_serving *s, int64_t N, int64_t positions, bytes_needed *need) {
    tv_limits l = tv_session_limits(e, s, N, positions, positions);
    if (l.slots > MOST_ROWS || positions > MOST_ROWS || l.rows > MOST_ROWS) return 0;
    need->kv = tv_kv_bytes(&e->model->config, tv_kv_storage(s->kv_dtype), l.slots, positions);
    if (need->kv == UINT64_MAX) return 0;
    need->workspace = tv_workspace_bytes(e->model, (int)l.rows, (int)l.logits);
    need->io = in_bytes(l.rows, l.slots, l.logits, 1) + out_bytes(l.logits, s->store_k) +
               ((uint64_t)l.slots + TV_MAX_EOS) * sizeof(int32_t);
    need->total = need->kv + need->workspace + need->io;
    return need->total >= need->kv;
}

uint64_t tv_session_bytes(const tv_engine *e, const tv_serving *s, int64_t N, int64_t positions) {
    bytes_needed need;
    return size_session(e, s, N, positions, &need) ? need.total : UINT64_MAX;
}

/* Refuses what the device cannot hold: how much is needed, how much there is, and what would fit. */
static tv_status check_memory(const tv_engine *e, const tv_serving *s, int64_t N, int64_t positions, tv_err *err) {
    uint64_t total = e->ops->memory_total(e->dev), weights = e->model->bytes,
             room = total > weights ? total - weights : 0;
    bytes_needed need = {0};
    int countable = size_session(e, s, N, positions, &need);
    if (countable && need.total <= room) return TV_OK;

    tv_limits l = tv_session_limits(e, s, N, positions, positions);
    char asks[128] = "more memory than can be counted", cure[160];
    if (countable)
        snprintf(asks, sizeof asks, "%.2f GiB (KV cache %.2f, activations %.2f)", (double)need.total / GiB,
                 (double)need.kv / GiB, (double)(need.workspace + need.io) / GiB);
    int64_t low = 0, high = l.slots; /* low fits, high does not */
    while (high - low > 1) {
        tv_serving smaller = *s;
        int64_t mid = low + (high - low) / 2;
        smaller.batch = mid > INT_MAX ? INT_MAX : (int)mid;
        if (tv_session_bytes(e, &smaller, mid, positions) <= room)
            low = mid;
        else
            high = mid;
    }
    if (low > 0) {
        snprintf(cure, sizeof cure, "--batch %lld fits, or a smaller -n", (long long)low);
    } else {
        tv_serving one = *s;
        one.batch = 1;
        int64_t few = 0, many = positions;
        while (many - few > 1) {
            int64_t mid = few + (many - few) / 2;
            if (tv_session_bytes(e, &one, 1, mid) <= room)
                few = mid;
            else
                many = mid;
        }
        snprintf(cure, sizeof cure, "with --batch 1, prompt + -n of %lld positions would fit", (long long)few);
    }
    return TV_FAIL(
        err, TV_ENOMEM, "%lld sequences of %lld positions need %s; %s has %.2f GiB beside %.2f GiB of weights: %s",
        (long long)l.slots, (long long)positions, asks, e->ops->name, (double)room / GiB, (double)weights / GiB, cure);
}

/* ---- open, close ---- */

static tv_status host_alloc(const tv_ops *ops, size_t bytes, void **p, tv_err *err) {
    if (ops->host_alloc) {
        TV_TRY(ops->host_alloc(bytes, p, err));
        memset(*p, 0, bytes);
        return TV_OK;
    }
    *p = calloc(1, bytes);
    return *p ? TV_OK
              : TV_FAIL(err, TV_ENOMEM, "no host memory for the %.1f MiB that go into and out of a step",
                        (double)bytes / (1 << 20));
}

static void host_free(const tv_ops *ops, void *p) {
    if (ops->host_free)
        ops->host_free(p);
    else
        free(p);
}

static tv_status open_flights(tv_session *s, tv_err *err) {
    const tv_engine *e = s->engine;
    const tv_limits *l = &s->limits;
    s->n_flights = e->in_flight;
    s->flights = tv_xcalloc((size_t)s->n_flights, sizeof *s->flights);
    for (int i = 0; i < s->n_flights; i++) {
        tv_flight *f = &s->flights[i];
        int64_t logits = i ? l->slots : l->logits;
        TV_TRY(host_alloc(e->ops, in_bytes(l->rows, l->slots, logits, 1), &f->host_in, err));
        TV_TRY(host_alloc(e->ops, out_bytes(logits, s->serving.store_k), &f->host_out, err));
        if (e->ops->event_open) TV_TRY(e->ops->event_open(e->dev, &f->done, err));
    }
    return TV_OK;
}

static void close_flights(tv_session *s) {
    const tv_ops *ops = s->engine->ops;
    for (int i = 0; s->flights && i < s->n_flights; i++) {
        if (ops->event_close) ops->event_close(s->flights[i].done);
        host_free(ops, s->flights[i].host_in), host_free(ops, s->flights[i].host_out);
    }
    free(s->flights);
}

/* Cache and activations of s, in the engine's lent block where they fit into it. */
static tv_status borrow(tv_session *s, tv_err *err) {
    tv_engine *e = s->engine;
    const tv_config *c = &e->model->config;
    const tv_limits *l = &s->limits;
    const tv_dtype dtype = tv_kv_storage(s->serving.kv_dtype);
    const uint64_t activations = tv_workspace_bytes(e->model, (int)l->rows, (int)l->logits);
    const uint64_t bytes = activations + tv_kv_bytes(c, dtype, l->slots, s->max_positions);
    if (e->borrowers && bytes <= e->lent_bytes)
        s->memory = e->lent;
    else
        TV_TRY(e->ops->alloc(e->dev, bytes, &s->memory, err));
    s->memory_bytes = bytes;
    if (!e->borrowers) e->lent = s->memory, e->lent_bytes = bytes;
    e->borrowers += s->memory == e->lent;
    s->ws = tv_workspace_make(e->model, (int)l->rows, (int)l->logits, s->memory);
    tv_kv_open(c, dtype, (int)l->slots, (int)s->max_positions, (char *)s->memory + activations, &s->kv);
    return TV_OK;
}

static void give_back(tv_session *s) {
    tv_engine *e = s->engine;
    tv_kv_close(&s->kv);
    free(s->ws);
    if (!s->memory) return;
    if (s->memory != e->lent) {
        e->ops->free(e->dev, s->memory, s->memory_bytes);
    } else if (!--e->borrowers) {
        e->ops->free(e->dev, e->lent, e->lent_bytes);
        e->lent = NULL;
    }
}

static tv_status open_memory(tv_session *s, tv_err *err) {
    tv_engine *e = s->engine;
    const tv_ops *ops = e->ops;
    const tv_limits *l = &s->limits;
    TV_TRY(borrow(s, err));
    s->in_bytes = in_bytes(l->rows, l->slots, l->logits, 1);
    s->out_bytes = out_bytes(l->logits, s->serving.store_k);
    TV_TRY(ops->alloc(e->dev, s->in_bytes, &s->in, err));
    TV_TRY(ops->alloc(e->dev, s->out_bytes, &s->out, err));
    TV_TRY(open_flights(s, err));
    int32_t ids[TV_MAX_EOS];
    s->n_suppressed = tv_suppressed_ids(e, &s->serving, ids);
    void *p = NULL;
    TV_TRY(ops->alloc(e->dev, (size_t)l->slots * sizeof *s->drawn, &p, err));
    s->drawn = p;
    TV_TRY(ops->alloc(e->dev, sizeof ids, &p, err));
    s->suppressed = p;
    TV_TRY(ops->upload(e->dev, s->suppressed, ids, (size_t)s->n_suppressed * sizeof *ids, err));
    return ops->sync(e->dev, err); /* ids is on the stack */
}

tv_status tv_session_open(tv_engine *e, const tv_serving *serving, int64_t N, int64_t positions, tv_session **out,
                          tv_err *err) {
    TV_TRY(tv_serving_check(serving, e, err));
    if (N < 1) return TV_FAIL(err, TV_EARG, "-N %lld: there must be at least one trajectory", (long long)N);
    if (positions < 1) return TV_FAIL(err, TV_EARG, "%lld positions: there must be at least one", (long long)positions);
    if (positions > e->model->config.max_positions)
        return TV_FAIL(err, TV_EARG,
                       "prompt + -n is %lld positions, and the model ends at %d: shorten the prompt or -n",
                       (long long)positions, e->model->config.max_positions);
    TV_TRY(tv_declared_check(serving, positions, err));
    TV_TRY(check_memory(e, serving, N, positions, err));
    tv_limits limits = tv_session_limits(e, serving, N, positions, positions);
    const tv_attn_backend *backend = NULL;
    TV_TRY(tv_backend_choose(e, serving, (int)limits.slots, (int)positions, &backend, err));

    tv_session *s = tv_xcalloc(1, sizeof *s);
    s->engine = e;
    s->serving = *serving;
    snprintf(s->serving.backend, sizeof s->serving.backend, "%s", backend->name);
    s->backend = backend;
    s->plan = (tv_plan){.reduction = serving->reduction_fixed ? TV_REDUCE_FIXED : TV_REDUCE_SERVING,
                        .units = serving->plan_units};
    s->max_trajectories = N;
    s->max_positions = positions;
    s->limits = limits;
    s->graphs = e->graphs && e->ops->step_begin && backend->caps & TV_ATTN_GRAPH_SAFE;
    tv_status status = open_memory(s, err);
    if (status != TV_OK) {
        tv_session_close(s);
        return status;
    }
    *out = s;
    return TV_OK;
}

void tv_session_close(tv_session *s) {
    if (!s) return;
    const tv_engine *e = s->engine;
    tv_steps_abandon(s);
    if (e->ops->steps_forget) e->ops->steps_forget(e->dev, s);
    give_back(s);
    if (s->in) e->ops->free(e->dev, s->in, s->in_bytes);
    if (s->out) e->ops->free(e->dev, s->out, s->out_bytes);
    if (s->suppressed) e->ops->free(e->dev, s->suppressed, TV_MAX_EOS * sizeof(int32_t));
    if (s->drawn) e->ops->free(e->dev, s->drawn, (size_t)s->limits.slots * sizeof *s->drawn);
    close_flights(s);
    free(s);
}

const char *tv_session_backend(const tv_session *s) { return s->backend->name; }

cJSON *tv_session_libraries(const tv_session *s) { return tv_libraries_of(s->engine, s); }

void tv_session_profile(tv_session *s, tv_profile profile) {
    s->profile = profile;
    s->times = (tv_step_times){0};
}

const tv_recomputed *tv_session_recomputed(const tv_session *s) { return &s->recomputed; }

const tv_step_times *tv_session_times(const tv_session *s) { return &s->times; }

/* ---- one step ---- */

/* Hands out consecutive pieces of a block. */
static void *carve(char **at, size_t bytes) {
    void *p = *at;
    *at += bytes;
    return p;
}

/* io's input pointers over `block` (host or device); the widest type first, so that each is aligned. */
static void carve_in(tv_step_io *io, void *block) {
    char *at = block;
    size_t n = (size_t)io->n_logits;
    io->segments = carve(&at, (size_t)io->n_segments * sizeof *io->segments);
    io->trajectory = carve(&at, n * sizeof *io->trajectory);
    io->position = carve(&at, n * sizeof *io->position);
    io->logit_rows = carve(&at, n * sizeof *io->logit_rows);
    io->token = carve(&at, n * sizeof *io->token);
    io->ids = carve(&at, (size_t)io->M * sizeof *io->ids);
    io->keep = carve(&at, n * sizeof *io->keep);
    io->carry = carve(&at, (size_t)io->M * sizeof *io->carry);
}

static void carve_out(tv_step_io *io, void *block, int k) {
    char *at = block;
    size_t n = (size_t)io->n_logits;
    io->topk_ids = carve(&at, n * (size_t)k * sizeof *io->topk_ids);
    io->topk_logprobs = carve(&at, n * (size_t)k * sizeof *io->topk_logprobs);
    io->token_logprob = carve(&at, n * sizeof *io->token_logprob);
    io->token_rank = carve(&at, n * sizeof *io->token_rank);
    io->drawn = carve(&at, n * sizeof *io->drawn);
    io->bad = carve(&at, n * sizeof *io->bad);
}

tv_step_io *tv_step_begin(tv_session *s, int M, int n_segments, int n_logits) {
    if (s->submitted == s->collected) s->submitted = s->collected = s->reached = 0;
    TV_ASSERT(s->submitted - s->collected < (uint64_t)s->n_flights);
    TV_ASSERT(M >= 1 && M <= s->limits.rows && n_segments <= s->limits.slots && n_logits >= 0 &&
              n_logits <= (s->submitted ? s->limits.slots : s->limits.logits));
    tv_flight *f = &s->flights[s->submitted % (uint64_t)s->n_flights];
    f->io = (tv_step_io){.M = M, .n_segments = n_segments, .n_logits = n_logits};
    carve_in(&f->io, f->host_in);
    carve_out(&f->io, f->host_out, s->serving.store_k);
    s->io = f->io;
    return &s->io;
}

static void take_time(tv_session *s, double *into) {
    double now = tv_session_now(s);
    *into += now - s->mark;
    s->mark = now;
}

static double *stage_time(tv_step_times *t, const char *name) {
    if (!strcmp(name, "embed")) return &t->embed;
    if (!strcmp(name, "qkv")) return &t->qkv;
    if (!strcmp(name, "attn")) return &t->attention;
    if (!strcmp(name, "attn_out")) return &t->attention_out;
    if (!strcmp(name, "route") || !strcmp(name, "ffn_out")) return &t->ffn;
    if (!strcmp(name, "logits")) return &t->head;
    return &t->norms;
}

static void on_tap(void *user, const char *name, int layer, const void *data, int rows, int width, tv_dtype dtype) {
    tv_session *s = user;
    if (s->observer.fn) s->observer.fn(s->observer.user, name, layer, data, rows, width, dtype);
    if (s->profile) take_time(s, stage_time(&s->times, name));
    if (s->routes && !s->imposed && !strcmp(name, "route") && s->tap_status == TV_OK) {
        size_t values = (size_t)rows * (size_t)width;
        s->tap_status = s->engine->ops->download(s->engine->dev, s->routes + (size_t)layer * values, data,
                                                 values * sizeof *s->routes, s->tap_err);
    }
}

/* The operations of a step, on its inputs and results in device memory. */
static tv_status compute(tv_session *s, tv_step_mode mode, uint64_t seed, tv_err *err) {
    const tv_engine *e = s->engine;
    const tv_ops *ops = e->ops;
    int k = s->serving.store_k, n = s->io.n_logits;
    tv_step_io dev = s->io; /* the same layout in device memory */
    carve_in(&dev, s->in);
    carve_out(&dev, s->out, k);
    tv_step step = {.ids = dev.ids,
                    .segments = s->io.segments,
                    .n_segments = s->io.n_segments,
                    .M = s->io.M,
                    .logit_rows = dev.logit_rows,
                    .n_logits = n,
                    .kv = s->kv.layers,
                    .backend = s->backend,
                    .plan = s->plan,
                    .logits_f32 = s->serving.logits_f32,
                    .routes = s->imposed};
    if (s->profile || s->routes || s->observer.fn) step.tap = (tv_tap){on_tap, s};
    s->tap_status = TV_OK;
    s->tap_err = err;
    if (mode == TV_STEP_DRAW) {
        tv_carry_args last = {.to = dev.ids, .from = s->drawn, .from_at = dev.carry, .n = s->io.M};
        TV_TRY(ops->carry(e->dev, &last, err));
    }
    TV_TRY(tv_forward(e->model, s->ws, &step, err));
    if (s->tap_status != TV_OK) return s->tap_status;
    if (s->profile) take_time(s, &s->times.head);
    if (mode == TV_STEP_LOGITS || n == 0) return TV_OK;

    float T = (float)s->serving.temperature;
    tv_logprobs_args lp = {.logits = tv_workspace_logits(s->ws),
                           .suppressed = s->suppressed,
                           .token = mode == TV_STEP_SCORE ? dev.token : NULL,
                           .topk_ids = dev.topk_ids,
                           .topk_logprobs = dev.topk_logprobs,
                           .token_logprob = dev.token_logprob,
                           .token_rank = dev.token_rank,
                           .bad = dev.bad,
                           .M = n,
                           .V = e->model->config.vocab_size,
                           .k = k,
                           .n_suppressed = s->n_suppressed,
                           .temperature = T < 1e-7f ? 1e-7f : T /* 0: argmax */};
    TV_TRY(ops->logprobs(e->dev, &lp, err));
    if (s->profile) take_time(s, &s->times.logprobs);
    if (mode != TV_STEP_DRAW) return TV_OK;
    tv_sample_args draw = {.topk_ids = dev.topk_ids,
                           .topk_logprobs = dev.topk_logprobs,
                           .trajectory = dev.trajectory,
                           .position = dev.position,
                           .token = dev.drawn,
                           .M = n,
                           .k = k,
                           .top_k = s->serving.top_k,
                           .seed = seed};
    TV_TRY(ops->sample(e->dev, &draw, err));
    tv_carry_args keep = {.to = s->drawn, .to_at = dev.keep, .from = dev.drawn, .n = n};
    TV_TRY(ops->carry(e->dev, &keep, err));
    if (s->profile) take_time(s, &s->times.sample);
    return TV_OK;
}

/* The same between the device's begin and end, which may know a recording of it. Observers look between the operations:
 * with one nothing is recorded. */
static tv_status compute_recorded(tv_session *s, tv_step_mode mode, uint64_t seed, tv_err *err) {
    const tv_engine *e = s->engine;
    const tv_step_io *io = &s->io;
    if (!e->ops->step_begin) return compute(s, mode, seed, err);
    int longest = 0, run = 1, watched = s->profile || s->routes || s->observer.fn;
    for (int i = 0; i < io->n_segments; i++) {
        int keys = io->segments[i].pos + io->segments[i].n_rows;
        if (keys > longest) longest = keys;
    }
    tv_attn_plan plan = tv_plan_attention(&s->plan, io->n_segments, e->model->config.n_kv_heads, longest);
    tv_step_key key = {{io->M, io->n_segments, io->n_logits, mode, plan.key_tile, plan.split_keys, (int64_t)seed}};
    tv_step_io dev = *io;
    carve_in(&dev, s->in);
    TV_TRY(e->ops->step_begin(e->dev, s, s->graphs && !watched ? &key : NULL, io->segments, dev.segments,
                              io->n_segments, &run, err));
    return run ? e->ops->step_end(e->dev, compute(s, mode, seed, err), err) : TV_OK;
}

/* Inputs to the device, the operations, results back, and the event behind them. */
static tv_status enqueue(tv_session *s, const tv_flight *f, tv_step_mode mode, uint64_t seed, tv_err *err) {
    const tv_engine *e = s->engine;
    const tv_ops *ops = e->ops;
    int n = s->io.n_logits;
    size_t in = in_bytes(s->io.M, s->io.n_segments, n, mode == TV_STEP_DRAW),
           out = mode == TV_STEP_LOGITS ? 0 : out_bytes(n, s->serving.store_k);
    TV_TRY((ops->upload_pinned ? ops->upload_pinned : ops->upload)(e->dev, s->in, f->host_in, in, err));
    if (s->profile) take_time(s, &s->times.copies);
    TV_TRY(compute_recorded(s, mode, seed, err));
    if (out)
        TV_TRY((ops->download_pinned ? ops->download_pinned : ops->download)(e->dev, f->host_out, s->out, out, err));
    return f->done ? ops->event_record(e->dev, f->done, err) : TV_OK;
}

tv_status tv_step_submit(tv_session *s, tv_step_mode mode, uint64_t seed, tv_err *err) {
    if (s->profile) s->mark = s->start = tv_session_now(s);
    tv_status status = enqueue(s, &s->flights[s->submitted % (uint64_t)s->n_flights], mode, seed, err);
    if (status == TV_OK)
        s->submitted++;
    else
        tv_steps_abandon(s);
    return status;
}

tv_status tv_step_collect(tv_session *s, tv_err *err) {
    TV_ASSERT(s->collected < s->submitted);
    const uint64_t flights = (uint64_t)s->n_flights, block = s->n_flights > 1 ? flights / 2 : 1;
    if (s->collected == s->reached) {
        s->reached = s->collected + block < s->submitted ? s->collected + block : s->submitted;
        tv_event *last = s->flights[(s->reached - 1) % flights].done;
        tv_status status = last ? s->engine->ops->event_wait(last, err) : TV_OK;
        if (status != TV_OK) {
            tv_steps_abandon(s);
            return status;
        }
    }
    s->io = s->flights[s->collected++ % flights].io;
    if (s->profile) {
        take_time(s, &s->times.copies);
        s->times.total += s->mark - s->start;
    }
    s->times.steps++, s->times.rows += s->io.M, s->times.logit_rows += s->io.n_logits;
    return TV_OK;
}

tv_status tv_step_run(tv_session *s, tv_step_mode mode, uint64_t seed, tv_err *err) {
    TV_ASSERT(s->submitted == s->collected);
    TV_TRY(tv_step_submit(s, mode, seed, err));
    return tv_step_collect(s, err);
}

void tv_steps_abandon(tv_session *s) {
    tv_err own = {0};
    if (s->engine->ops->sync(s->engine->dev, &own) != TV_OK) tv_err_clear(&own); /* what failed first was reported */
    s->submitted = s->collected = s->reached = 0;
}
