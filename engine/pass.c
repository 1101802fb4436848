/* A pass: the step loop over the scheduler, the same whether the next token is drawn or given, and what it records. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/scheduler.h"
#include "engine/session.h"

static int64_t prompt_of(const tv_pass *p, int64_t i) { return p->prompt_index ? p->prompt_index[i] : 0; }
static int64_t identity_of(const tv_pass *p, int64_t i) { return p->trajectory ? p->trajectory[i] : i; }
static int32_t given_length(const tv_pass *p, int64_t i) {
    return p->given_lengths ? p->given_lengths[i] : (int32_t)p->n;
}

tv_status tv_pass_check(const tv_session *s, const tv_pass *p, tv_err *err) {
    int V = s->engine->model->config.vocab_size;
    if (p->N < 1)
        return TV_FAIL(err, TV_EARG, "there are %lld trajectories, and there must be at least one", (long long)p->N);
    if (p->n < 1)
        return TV_FAIL(err, TV_EARG, "trajectories of %lld tokens: there must be at least one", (long long)p->n);
    if (p->P < 1 || !p->prompt_ids || !p->prompt_offsets) return TV_FAIL(err, TV_EARG, "there is no prompt");
    if (p->N > s->max_trajectories)
        return TV_FAIL(err, TV_EARG, "%lld trajectories in a session opened for %lld", (long long)p->N,
                       (long long)s->max_trajectories);
    if (p->prompt_offsets[0] != 0)
        return TV_FAIL(err, TV_EARG, "prompt offsets begin with %d instead of 0", p->prompt_offsets[0]);
    for (int64_t q = 0; q < p->P; q++) {
        int64_t from = p->prompt_offsets[q], to = p->prompt_offsets[q + 1];
        if (to <= from)
            return TV_FAIL(err, TV_EARG, "prompt %lld has %lld tokens: a prompt needs at least one", (long long)q,
                           (long long)(to - from));
        for (int64_t j = from; j < to; j++)
            if (p->prompt_ids[j] < 0 || p->prompt_ids[j] >= V)
                return TV_FAIL(err, TV_EARG, "prompt %lld, token %lld: id %d is not in the vocabulary (0 .. %d)",
                               (long long)q, (long long)(j - from), p->prompt_ids[j], V - 1);
    }
    for (int64_t i = 0; i < p->N; i++) {
        int64_t q = prompt_of(p, i);
        if (q < 0 || q >= p->P)
            return TV_FAIL(err, TV_EARG, "trajectory %lld follows prompt %lld, and there are %lld", (long long)i,
                           (long long)q, (long long)p->P);
        int64_t length = p->given ? given_length(p, i) : p->n, prompt = p->prompt_offsets[q + 1] - p->prompt_offsets[q];
        if (length < 0 || length > p->n)
            return TV_FAIL(err, TV_EARG, "trajectory %lld: length %lld is not in 0 .. %lld", (long long)i,
                           (long long)length, (long long)p->n);
        TV_TRY(tv_declared_check(&s->serving, prompt + p->n, err));
        if (s->serving.pad_batch) length = p->n; /* a padding sequence may copy this prompt and run its n tokens */
        if (prompt + length > s->max_positions)
            return TV_FAIL(err, TV_EARG,
                           "prompt %lld has %lld tokens; with %lld more it ends at position %lld, beyond the %lld of "
                           "this session (the model has %d): shorten the prompt or -n",
                           (long long)q, (long long)prompt, (long long)length, (long long)(prompt + length),
                           (long long)s->max_positions, s->engine->model->config.max_positions);
        for (int64_t t = 0; p->given && t < length; t++) {
            int32_t id = p->given[i * p->n + t];
            if (id < 0 || id >= V)
                return TV_FAIL(err, TV_EARG, "trajectory %lld, position %lld: id %d is not in the vocabulary (0 .. %d)",
                               (long long)i, (long long)t, id, V - 1);
        }
    }
    return TV_OK;
}

void tv_pass_sequences(const tv_pass *p, int32_t **prompt_len, int64_t **trajectory, int64_t *longest) {
    *prompt_len = tv_xmalloc((size_t)p->N * sizeof **prompt_len);
    *trajectory = tv_xmalloc((size_t)p->N * sizeof **trajectory);
    *longest = 0;
    for (int64_t i = 0; i < p->N; i++) {
        int64_t q = prompt_of(p, i);
        (*prompt_len)[i] = p->prompt_offsets[q + 1] - p->prompt_offsets[q];
        (*trajectory)[i] = identity_of(p, i);
        if ((*prompt_len)[i] > *longest) *longest = (*prompt_len)[i];
    }
}

tv_status tv_pass_bad(const tv_pass *p, int64_t i, int64_t t, tv_err *err) {
    return TV_FAIL(err, TV_ENUMERIC,
                   "non-finite logits at trajectory %lld, position %lld: the weights or the arithmetic overflow",
                   (long long)identity_of(p, i), (long long)t);
}

void tv_pass_record(const tv_session *s, const tv_pass *p, int64_t i, int64_t t, int row, int32_t own) {
    size_t k = (size_t)s->serving.store_k, cell = (size_t)i * (size_t)p->n + (size_t)t;
    const int32_t *ids = s->io.topk_ids + (size_t)row * k;
    const float *lps = s->io.topk_logprobs + (size_t)row * k;
    if (!p->topk_ids) return;
    int32_t *to = p->topk_ids + cell * k;
    memcpy(to, ids, k * sizeof *to);
    memcpy(p->topk_logprobs + cell * k, lps, k * sizeof *lps);
    for (size_t j = k; j-- > 0 && lps[j] == -INFINITY;) to[j] = -1; /* no mass: an empty slot */
    size_t j = 0; /* where it has a slot its values are the slot's, drawn or given */
    while (j < k && ids[j] != own) j++;
    TV_ASSERT(j < k || p->given); /* a drawn token is one of its record */
    p->token_logprobs[cell] = j < k ? lps[j] : s->io.token_logprob[row];
    p->token_rank[cell] = j < k ? (int32_t)j : s->io.token_rank[row];
}

/* Fills io's inputs for the entries of a step. */
static void fill(tv_session *s, const tv_pass *p, const tv_sched_entry *e, int n, const int32_t *prompt_len,
                 const int64_t *trajectory) {
    int M = 0, n_logits = 0;
    for (int i = 0; i < n; i++) M += e[i].n_rows, n_logits += e[i].t >= 0;
    tv_step_io *io = tv_step_begin(s, M, n, n_logits);
    int V = s->engine->model->config.vocab_size;
    const int32_t *tokens = p->given ? p->given : p->tokens;
    for (int i = 0, row = 0, out = 0; i < n; i++) {
        int64_t padding = -1 - e[i].seq, like = padding >= 0 ? padding % p->N : e[i].seq;
        const int32_t *prompt = p->prompt_ids + p->prompt_offsets[prompt_of(p, like)];
        io->segments[i] = (tv_segment){.slot = e[i].slot, .row = row, .n_rows = e[i].n_rows, .pos = e[i].pos};
        for (int32_t pos = e[i].pos; pos < e[i].pos + e[i].n_rows; pos++, row++) {
            int64_t t = pos - prompt_len[like];
            io->carry[row] = -1;
            if (t < 0)
                io->ids[row] = prompt[pos];
            else if (padding >= 0)
                io->ids[row] = tv_sched_padding(s->serving.pass_seed, padding, t, V);
            else if ((io->ids[row] = tokens[like * p->n + t]) < 0) /* a step in flight draws it */
                io->ids[row] = 0, io->carry[row] = e[i].slot;
        }
        if (e[i].t < 0) continue;
        io->logit_rows[out] = row - 1;
        io->trajectory[out] = padding >= 0 ? 0 : trajectory[like];
        io->position[out] = e[i].t;
        io->keep[out] = e[i].slot;
        io->token[out] = padding >= 0 || !p->given ? -1 : p->given[like * p->n + e[i].t];
        out++;
    }
}

/* Moves the experts of the entries' rows between the step's [L,M,used] and the pass's routes. */
static void move_routes(const tv_session *s, const tv_pass *p, const tv_sched_entry *e, int n) {
    const tv_config *c = &s->engine->model->config;
    const tv_routes *r = p->routes;
    size_t used = (size_t)r->used, M = (size_t)s->io.M;
    for (int l = 0; l < r->layers; l++) {
        size_t row = 0;
        for (int i = 0; i < n; row += (size_t)e[i++].n_rows) {
            if (e[i].seq < 0 || !c->layer_sparse[l]) continue;
            size_t at = ((size_t)l * (size_t)r->N + (size_t)e[i].seq) * (size_t)r->positions + (size_t)e[i].pos;
            int32_t *step = s->routes + ((size_t)l * M + row) * used, *kept = r->ids + at * used;
            memcpy(p->replayed ? step : kept, p->replayed ? kept : step, (size_t)e[i].n_rows * used * sizeof *kept);
        }
    }
}

/* Memory of a pass with routes, for steps of at most `rows` rows. */
static tv_status open_routes(tv_session *s, const tv_pass *p, int64_t rows, size_t *bytes, tv_err *err) {
    void *device = NULL;
    *bytes = (size_t)p->routes->layers * (size_t)rows * (size_t)p->routes->used * sizeof *s->routes;
    s->routes = calloc(1, *bytes); /* of dense layers 0 stays: nobody reads it, and it names an expert */
    if (!s->routes) return TV_FAIL(err, TV_ENOMEM, "no memory for the routes of %lld rows", (long long)rows);
    if (p->replayed) TV_TRY(s->engine->ops->alloc(s->engine->dev, *bytes, &device, err));
    s->imposed = device;
    return TV_OK;
}

/* Sends the routes of the step about to be submitted to the device. */
static tv_status impose_routes(tv_session *s, const tv_pass *p, const tv_sched_entry *e, int n, tv_err *err) {
    const tv_engine *engine = s->engine;
    move_routes(s, p, e, n);
    return engine->ops->upload(
        engine->dev, s->imposed, s->routes,
        (size_t)p->routes->layers * (size_t)s->io.M * (size_t)p->routes->used * sizeof *s->routes, err);
}

static void close_routes(tv_session *s, size_t bytes) {
    if (s->imposed) s->engine->ops->free(s->engine->dev, s->imposed, bytes);
    free(s->routes);
    s->routes = s->imposed = NULL;
}

/* 1 when logit row `row` has the bits that trajectory i's record of token t has. */
static int same_record(const tv_session *s, const tv_pass *p, int64_t i, int64_t t, int row) {
    size_t k = (size_t)s->serving.store_k, cell = (size_t)i * (size_t)p->n + (size_t)t;
    const int32_t *ids = s->io.topk_ids + (size_t)row * k, *was = p->topk_ids + cell * k;
    const float *lps = s->io.topk_logprobs + (size_t)row * k;
    int same = !memcmp(lps, p->topk_logprobs + cell * k, k * sizeof *lps);
    for (size_t j = 0; j < k && was[j] >= 0; j++) same &= ids[j] == was[j]; /* behind are empty slots */
    return same;
}

/* Takes the results of a step: records, drawn tokens, ends. Adds the tokens done, cut-off tails included, to *done. */
static tv_status take(tv_session *s, const tv_pass *p, tv_sched *sched, const tv_sched_entry *e, int n, uint64_t *done,
                      tv_err *err) {
    const tv_config *c = &s->engine->model->config;
    for (int i = 0, row = 0; i < n; i++) {
        if (e[i].t < 0) continue;
        int r = row++;
        if (e[i].seq < 0) continue; /* padding runs and is not recorded */
        int64_t q = e[i].seq, t = e[i].t;
        if (s->io.bad[r]) return tv_pass_bad(p, q, t, err);
        if (e[i].again) { /* what was handed out before the preemption stands */
            s->recomputed.tokens++;
            s->recomputed.differing += !same_record(s, p, q, t, r);
            continue;
        }
        ++*done;
        if (p->given) {
            tv_pass_record(s, p, q, t, r, p->given[q * p->n + t]);
            continue;
        }
        int32_t id = s->io.drawn[r];
        int ends = 0;
        p->tokens[q * p->n + t] = id;
        p->lengths[q] = (int32_t)t + 1;
        tv_pass_record(s, p, q, t, r, id);
        for (int j = 0; s->serving.eos == TV_EOS_STOP && j < c->n_eos; j++) ends |= id == c->eos[j];
        if (p->on_token && p->on_token(p->user, id)) ends = 1;
        if (ends) {
            tv_sched_finish(sched, q);
            *done += (uint64_t)(p->n - t - 1);
        }
    }
    return TV_OK;
}

/* A pass under way: what its steps in flight do, and how far it is. */
typedef struct {
    tv_session *s;
    const tv_pass *pass;
    tv_sched *sched;
    tv_sched_entry *entries; /* [most, slots] of the steps in flight, round and round */
    int *n;                  /* [most] how many */
    int slots, most;         /* most: steps in flight, >= 1 */
    uint64_t submitted, collected, done, total;
} running;

/* Steps that may be in flight at once: one where a step's results decide who runs in the next, or are watched. */
static int most_in_flight(const tv_session *s, const tv_pass *p) {
    int may_end = !p->given && s->serving.eos == TV_EOS_STOP && s->engine->model->config.n_eos;
    return may_end || p->on_token || p->routes || s->profile ? 1 : s->n_flights;
}

static tv_status collect(running *r, const tv_progress *progress, tv_err *err) {
    TV_TRY(tv_step_collect(r->s, err));
    size_t i = (size_t)(r->collected++ % (uint64_t)r->most);
    if (r->pass->routes && !r->pass->replayed) move_routes(r->s, r->pass, r->entries + i * (size_t)r->slots, r->n[i]);
    tv_status status = take(r->s, r->pass, r->sched, r->entries + i * (size_t)r->slots, r->n[i], &r->done, err);
    tv_progress_report(progress, r->done, r->total);
    return status;
}

/* 1 when a step in flight draws a token that the entries need from the host: a preempted trajectory runs its tokens
 * again, in another slot. */
static int must_collect(const tv_pass *p, const tv_sched_entry *e, int n) {
    for (int i = 0; i < n; i++)
        if (e[i].seq >= 0 && e[i].again && !p->given && p->tokens[e[i].seq * p->n + e[i].t] < 0) return 1;
    return 0;
}

/* Submits step after step and collects the oldest when as many as may be are in flight. */
static tv_status run_steps(running *r, const int32_t *prompt_len, const int64_t *trajectory,
                           const tv_progress *progress, tv_err *err) {
    const tv_pass *p = r->pass;
    const tv_sched_entry *entries = NULL;
    for (int n; (n = tv_sched_step(r->sched, &entries)) > 0;) {
        while (must_collect(p, entries, n)) TV_TRY(collect(r, progress, err));
        size_t i = (size_t)(r->submitted % (uint64_t)r->most);
        memcpy(r->entries + i * (size_t)r->slots, entries, (size_t)n * sizeof *entries);
        r->n[i] = n;
        fill(r->s, p, entries, n, prompt_len, trajectory);
        if (p->routes && p->replayed) TV_TRY(impose_routes(r->s, p, entries, n, err));
        TV_TRY(tv_step_submit(r->s, p->given ? TV_STEP_SCORE : TV_STEP_DRAW, p->seed, err));
        r->submitted++;
        if (r->submitted - r->collected == (uint64_t)r->most) TV_TRY(collect(r, progress, err));
    }
    while (r->collected < r->submitted) TV_TRY(collect(r, progress, err));
    return TV_OK;
}

tv_status tv_pass_run(tv_session *s, const tv_pass *p, const tv_progress *progress, tv_err *err) {
    int32_t *prompt_len = NULL;
    int64_t *trajectory = NULL, longest = 0;
    tv_pass_sequences(p, &prompt_len, &trajectory, &longest);
    tv_limits limits = tv_session_limits(s->engine, &s->serving, p->N, longest + p->n, longest);
    tv_sched_options options = {.slots = (int)limits.slots,
                                .pad = s->serving.pad_batch,
                                .order = s->serving.order,
                                .arrivals = s->serving.arrivals,
                                .prefill_chunk = s->serving.prefill_chunk,
                                .prefill = s->serving.prefill,
                                .kv_tokens = s->serving.kv_tokens,
                                .admission = s->serving.admission,
                                .max_rows = limits.rows,
                                .pass_seed = s->serving.pass_seed,
                                .pass = p->pass,
                                .N = p->N,
                                .prompt_len = prompt_len,
                                .length = p->given ? p->given_lengths : NULL,
                                .n = p->n,
                                .trajectory = trajectory};
    running r = {.s = s, .pass = p, .slots = options.slots, .most = most_in_flight(s, p)};
    for (int64_t i = 0; i < p->N; i++) {
        r.total += (uint64_t)(p->given ? given_length(p, i) : p->n);
        for (int64_t t = 0; !p->given && t < p->n; t++) p->tokens[i * p->n + t] = -1;
    }
    r.entries = tv_xcalloc((size_t)r.most * (size_t)r.slots, sizeof *r.entries);
    r.n = tv_xcalloc((size_t)r.most, sizeof *r.n);
    size_t route_bytes = 0;
    tv_status status = tv_sched_open(&options, &r.sched, err);
    if (status == TV_OK && p->routes) status = open_routes(s, p, limits.rows, &route_bytes, err);
    double start = tv_session_now(s), steps = s->times.total;
    if (status == TV_OK) status = run_steps(&r, prompt_len, trajectory, progress, err);
    if (status != TV_OK) tv_steps_abandon(s);
    close_routes(s, route_bytes);
    if (s->profile) { /* what was not spent inside steps */
        double host = tv_session_now(s) - start - (s->times.total - steps);
        s->times.host += host, s->times.total += host;
    }
    if (r.sched) s->recomputed.preemptions += tv_sched_preemptions(r.sched);
    tv_sched_close(r.sched);
    free(r.entries), free(r.n), free(prompt_len), free(trajectory);
    return status;
}
