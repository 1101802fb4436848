/* Whole sequences through prefill: sequence-level scores, and plain logits (those through decode, too). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/scheduler.h"
#include "engine/session.h"

/* A sequence of T rows, ids head[0..n_head) then tail; logits are wanted from row `want` on. */
typedef struct {
    const int32_t *head, *tail;
    int64_t n_head, T, want;
    int64_t index; /* of the trajectory or batch row */
} sequence;

/* Takes the results of a step: logit row r belongs to row t of sequence q. */
typedef struct {
    tv_status (*fn)(void *user, const sequence *q, int64_t t, int r, tv_err *err);
    void (*step)(void *user, const sequence *q, int64_t from, int64_t rows,
                 int64_t row); /* NULL, or told each segment */
    void *user;
    int32_t (*token)(void *user, const sequence *q, int64_t t); /* NULL, or the token to be scored behind row t */
} taker;

static int32_t id_at(const sequence *q, int64_t t) { return t < q->n_head ? q->head[t] : q->tail[t - q->n_head]; }

/* One prefill of the sequences, in slots 0..count-1: all rows in one step, or `chunk` of each at a time. Where a step's
 * logits are more than fit, the step runs again for the next part of them: its cache rows come out the same. */
static tv_status prefill(tv_session *s, const sequence *q, int count, int64_t chunk, int64_t most_logits,
                         tv_step_mode mode, const taker *take, tv_err *err) {
    int64_t longest = 0;
    for (int i = 0; i < count; i++)
        if (q[i].T > longest) longest = q[i].T;
    for (int64_t from = 0; from < longest; from += chunk) {
        int64_t M = 0, wanted = 0, n_segments = 0;
        for (int i = 0; i < count; i++) {
            int64_t to = q[i].T < from + chunk ? q[i].T : from + chunk, first = q[i].want > from ? q[i].want : from;
            if (to > from) M += to - from, n_segments++;
            if (to > first) wanted += to - first;
        }
        int64_t w = 0; /* wanted rows that earlier windows have done */
        do {
            int64_t window = wanted - w < most_logits ? wanted - w : most_logits, row = 0, seen = 0;
            tv_step_io *io = tv_step_begin(s, (int)M, (int)n_segments, (int)window);
            for (int i = 0, g = 0; i < count; i++) {
                int64_t to = q[i].T < from + chunk ? q[i].T : from + chunk;
                if (to <= from) continue;
                io->segments[g++] =
                    (tv_segment){.slot = i, .row = (int32_t)row, .n_rows = (int32_t)(to - from), .pos = (int32_t)from};
                for (int64_t t = from; t < to; t++, row++) {
                    io->ids[row] = id_at(&q[i], t);
                    if (t < q[i].want) continue;
                    int64_t r = seen++ - w;
                    if (r < 0 || r >= window) continue;
                    io->logit_rows[r] = (int32_t)row;
                    io->token[r] = take->token ? take->token(take->user, &q[i], t) : -1;
                    io->trajectory[r] = 0, io->position[r] = 0;
                }
            }
            TV_TRY(tv_step_run(s, mode, 0, err));
            row = 0, seen = 0;
            for (int i = 0; i < count; i++) {
                int64_t to = q[i].T < from + chunk ? q[i].T : from + chunk;
                if (to <= from) continue;
                if (take->step) take->step(take->user, &q[i], from, to - from, row);
                row += to - from;
                for (int64_t t = q[i].want > from ? q[i].want : from; t < to; t++) {
                    int64_t r = seen++ - w;
                    if (r >= 0 && r < window) TV_TRY(take->fn(take->user, &q[i], t, (int)r, err));
                }
            }
            w += window;
        } while (w < wanted);
    }
    return TV_OK;
}

/* Limits of a job within the session's: they differ only where a session was given room for fewer logits than usual. */
static tv_limits job_limits(const tv_session *s, int64_t N, int64_t positions) {
    tv_limits l = tv_session_limits(s->engine, &s->serving, N, positions, positions);
    if (l.logits > s->limits.logits) l.logits = s->limits.logits;
    return l;
}

static int64_t chunk_of(const tv_session *s, int64_t T) {
    return s->serving.prefill_chunk && s->serving.prefill_chunk < T ? s->serving.prefill_chunk : T;
}

/* ---- sequence-level scores ---- */

typedef struct {
    tv_session *s;
    const tv_pass *pass;
} scoring;

static int32_t scored_token(void *user, const sequence *q, int64_t t) {
    const scoring *c = user;
    return c->pass->given[q->index * c->pass->n + t - q->want];
}

static tv_status take_score(void *user, const sequence *q, int64_t t, int r, tv_err *err) {
    const scoring *c = user;
    if (c->s->io.bad[r]) return tv_pass_bad(c->pass, q->index, t - q->want, err);
    tv_pass_record(c->s, c->pass, q->index, t - q->want, r, scored_token(user, q, t));
    return TV_OK;
}

/* Scores the trajectories in order of admission, as many at once as the job's limits allow. */
static tv_status score_all(tv_session *s, const tv_pass *p, const int64_t *order, const int32_t *prompt_len,
                           tv_limits limits, int64_t longest, sequence *group, const tv_progress *progress,
                           tv_err *err) {
    scoring c = {s, p};
    taker take = {.fn = take_score, .token = scored_token, .user = &c};
    uint64_t done = 0, total = 0;
    for (int64_t i = 0; i < p->N; i++) total += (uint64_t)(p->given_lengths ? p->given_lengths[i] : p->n);
    int64_t chunk = chunk_of(s, longest);
    for (int64_t next = 0; next < p->N;) {
        int count = 0;
        int64_t rows = 0, logits = 0, tokens = 0;
        for (; next < p->N && count < limits.slots; next++) {
            int64_t i = order[next], length = p->given_lengths ? p->given_lengths[i] : p->n;
            if (length == 0) continue;
            /* The last token is scored and need not be fed. */
            sequence q = {.head = p->prompt_ids + p->prompt_offsets[p->prompt_index ? p->prompt_index[i] : 0],
                          .n_head = prompt_len[i],
                          .tail = p->given + i * p->n,
                          .T = prompt_len[i] + length - 1,
                          .want = prompt_len[i] - 1,
                          .index = i};
            int64_t its_rows = q.T < chunk ? q.T : chunk;
            if (count && (rows + its_rows > limits.rows || logits + length > limits.logits)) break;
            if (s->serving.kv_tokens && tokens + prompt_len[i] + p->n > s->serving.kv_tokens) break;
            rows += its_rows, logits += length, tokens += prompt_len[i] + p->n;
            group[count++] = q;
        }
        if (!count) break;
        TV_TRY(prefill(s, group, count, chunk, limits.logits, TV_STEP_SCORE, &take, err));
        done += (uint64_t)logits;
        tv_progress_report(progress, done, total);
    }
    return TV_OK;
}

tv_status tv_session_score_prefill(tv_session *s, const tv_trace *set, char side, int64_t number,
                                   const tv_progress *progress, tv_trace **out, tv_err *err) {
    tv_pass pass;
    TV_TRY(tv_pass_from_set(s, set, number, &pass, err));
    tv_trace *trace = NULL;
    TV_TRY(tv_pass_trace(s, &pass, side, set->set, "prefill", &trace, err));
    int32_t *prompt_len = NULL;
    int64_t *trajectory = NULL, longest = 0;
    tv_pass_sequences(&pass, &prompt_len, &trajectory, &longest);
    longest += pass.n - 1;
    if (longest > s->max_positions) longest = s->max_positions; /* shorter trajectories behind the longest prompt */
    tv_limits limits = job_limits(s, pass.N, longest);
    tv_sched_options options = {.slots = (int)limits.slots,
                                .order = s->serving.order,
                                .arrivals = s->serving.arrivals,
                                .max_rows = limits.rows,
                                .pass_seed = s->serving.pass_seed,
                                .pass = number,
                                .N = pass.N,
                                .prompt_len = prompt_len,
                                .length = pass.given_lengths,
                                .n = pass.n,
                                .trajectory = trajectory};
    tv_sched *sched = NULL;
    sequence *group = calloc((size_t)limits.slots, sizeof *group);
    tv_status status =
        group ? tv_sched_open(&options, &sched, err) : TV_FAIL(err, TV_ENOMEM, "no memory for a batch of sequences");
    if (status == TV_OK)
        status = score_all(s, &pass, tv_sched_admission(sched), prompt_len, limits, longest, group, progress, err);
    tv_sched_close(sched);
    free(group), free(prompt_len), free(trajectory);
    if (status != TV_OK) {
        tv_trace_close(trace);
        return status;
    }
    tv_pass_finish(s, trace);
    *out = trace;
    return TV_OK;
}

/* ---- plain logits ---- */

typedef struct {
    tv_session *s;
    int64_t B, T;
    float *logits;   /* [B,T,V] f32 host */
    int32_t *routes; /* [L,B,T,used] i32 host, or NULL */
    int used;
} wanted_logits;

/* Brings one row of logits to the host and refuses what is not a number. */
static tv_status take_logits(void *user, const sequence *q, int64_t t, int r, tv_err *err) {
    const wanted_logits *w = user;
    const tv_engine *e = w->s->engine;
    size_t V = (size_t)e->model->config.vocab_size;
    float *to = w->logits + ((size_t)q->index * (size_t)w->T + (size_t)t) * V;
    TV_TRY(e->ops->download(e->dev, to, tv_workspace_logits(w->s->ws) + (size_t)r * V, V * sizeof *to, err));
    int some = 0;
    for (size_t v = 0; v < V; v++) {
        if (!(to[v] < INFINITY))
            return TV_FAIL(err, TV_ENUMERIC, "non-finite logits at row %lld, position %lld (id %zu)",
                           (long long)q->index, (long long)t, v);
        some |= to[v] > -INFINITY;
    }
    if (!some)
        return TV_FAIL(err, TV_ENUMERIC, "non-finite logits at row %lld, position %lld: all are -inf",
                       (long long)q->index, (long long)t);
    return TV_OK;
}

/* Moves the expert choices of one segment from the step's [L,M,used] to their place. */
static void take_routes(void *user, const sequence *q, int64_t from, int64_t rows, int64_t row) {
    const wanted_logits *w = user;
    size_t used = (size_t)w->used, M = (size_t)w->s->io.M;
    const tv_config *c = &w->s->engine->model->config;
    for (int l = 0; l < c->n_layers; l++) {
        int32_t *to = w->routes + (((size_t)l * (size_t)w->B + (size_t)q->index) * (size_t)w->T + (size_t)from) * used;
        if (!c->layer_sparse || c->layer_sparse[l])
            memcpy(to, w->s->routes + ((size_t)l * M + (size_t)row) * used, (size_t)rows * used * sizeof *to);
        else
            for (size_t i = 0; i < (size_t)rows * used; i++) to[i] = -1;
    }
}

/* Token by token, `count` rows of ids side by side. */
static tv_status decode(tv_session *s, const sequence *q, int count, int64_t T, const taker *take, tv_err *err) {
    for (int64_t t = 0; t < T; t++) {
        tv_step_io *io = tv_step_begin(s, count, count, count);
        for (int i = 0; i < count; i++) {
            io->segments[i] = (tv_segment){.slot = i, .row = i, .n_rows = 1, .pos = (int32_t)t};
            io->ids[i] = id_at(&q[i], t);
            io->logit_rows[i] = i;
            io->token[i] = -1, io->trajectory[i] = 0, io->position[i] = 0;
        }
        TV_TRY(tv_step_run(s, TV_STEP_LOGITS, 0, err));
        for (int i = 0; i < count; i++) {
            if (take->step) take->step(take->user, &q[i], t, 1, i);
            TV_TRY(take->fn(take->user, &q[i], t, i, err));
        }
    }
    return TV_OK;
}

tv_status tv_session_logits(tv_session *s, const int32_t *ids, int64_t B, int64_t T, int by_decode, float *logits,
                            int32_t *routes, tv_err *err) {
    const tv_config *c = &s->engine->model->config;
    if (B < 1 || T < 1)
        return TV_FAIL(err, TV_EARG, "ids of %lld rows by %lld positions: there must be one of each", (long long)B,
                       (long long)T);
    if (T > s->max_positions)
        return TV_FAIL(err, TV_EARG, "%lld positions a row, and the session was opened for %lld (the model has %d)",
                       (long long)T, (long long)s->max_positions, c->max_positions);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            if (ids[b * T + t] < 0 || ids[b * T + t] >= c->vocab_size)
                return TV_FAIL(err, TV_EARG, "row %lld, position %lld: id %d is not in the vocabulary (0 .. %d)",
                               (long long)b, (long long)t, ids[b * T + t], c->vocab_size - 1);
    if (routes && !c->n_experts) return TV_FAIL(err, TV_EARG, "routes are asked for, and the model has no experts");

    wanted_logits w = {.s = s, .B = B, .T = T, .logits = logits, .routes = routes, .used = c->n_experts_used};
    taker take = {.fn = take_logits, .step = routes ? take_routes : NULL, .user = &w};
    tv_limits limits = job_limits(s, B < s->max_trajectories ? B : s->max_trajectories, T);
    int slots = by_decode ? (int)limits.slots : 1;
    sequence *group = calloc((size_t)slots, sizeof *group);
    int64_t rows = by_decode ? slots : chunk_of(s, T); /* of a step */
    if (routes && group) {
        s->routes = malloc((size_t)c->n_layers * (size_t)rows * (size_t)c->n_experts_used * sizeof *s->routes);
    }
    tv_status status = TV_OK;
    if (!group || (routes && !s->routes)) status = TV_FAIL(err, TV_ENOMEM, "no memory for %lld rows", (long long)rows);
    for (int64_t b = 0; b < B && status == TV_OK; b += slots) {
        int count = B - b < slots ? (int)(B - b) : slots;
        for (int i = 0; i < count; i++)
            group[i] = (sequence){.head = ids + (b + i) * T, .n_head = T, .T = T, .index = b + i};
        status = by_decode ? decode(s, group, count, T, &take, err)
                           : prefill(s, group, count, rows, limits.logits, TV_STEP_LOGITS, &take, err);
    }
    free(s->routes), free(group);
    s->routes = NULL;
    return status;
}
