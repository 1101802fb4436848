#include "models/forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* Activations of a step. M, n: the most rows and the most rows with logits. */
struct tv_workspace {
    const tv_model *model;
    int max_rows, max_logits;
    tv_bf16 *x;     /* [M,D] residual stream */
    tv_bf16 *h;     /* [M,D] its norm, what the projections read */
    tv_bf16 *delta; /* [M,D] a block's output, added to x by the norm that follows */
    /* within attention */
    tv_bf16 *qkv;  /* [M,(H+2G)*HS] */
    tv_bf16 *q;    /* [M,H,HS] roped */
    tv_bf16 *attn; /* [M,H*HS] */
    /* within the feed-forward block, in the same memory */
    tv_bf16 *gate_up; /* [M,2F] */
    tv_bf16 *ffn;     /* [M,F] */
    tv_bf16 *router;  /* [M,E] router logits */
    int32_t *ids;     /* [M,used] experts chosen */
    tv_bf16 *weights; /* [M,used] */
    void *scratch;    /* of ops->moe */
    /* behind the layers, in the same memory */
    tv_bf16 *final; /* [n,D] final norm */
    float *logits;  /* [n,V] */
};

/* Places every buffer behind base, each at 64 bytes; returns the bytes taken. Run with base 0 it only measures. */
static size_t carve(tv_workspace *ws, const tv_model *model, int max_rows, int max_logits, uintptr_t base) {
    const tv_config *c = &model->config;
    const size_t M = (size_t)max_rows, n = (size_t)max_logits, D = (size_t)c->d_model, HS = (size_t)c->head_size;
    const size_t H = (size_t)c->n_heads, G = (size_t)c->n_kv_heads, F = (size_t)c->d_ff, V = (size_t)c->vocab_size;
    const size_t E = (size_t)c->n_experts, used = (size_t)c->n_experts_used;
    size_t at = 0, shared, end = 0;
#define PLACE(field, size)                                                                                             \
    do {                                                                                                               \
        ws->field = (void *)(base + at);                                                                               \
        at += ((size) + 63) & ~(size_t)63;                                                                             \
    } while (0)
#define SHARE() (end = at > end ? at : end, at = shared) /* what follows begins where the part before began */
    PLACE(x, M * D * sizeof *ws->x);
    PLACE(h, M * D * sizeof *ws->h);
    PLACE(delta, M * D * sizeof *ws->delta);
    shared = at; /* fewer pages to touch and lines to keep in the cache */
    PLACE(qkv, M * (H + 2 * G) * HS * sizeof *ws->qkv);
    PLACE(q, M * H * HS * sizeof *ws->q);
    PLACE(attn, M * H * HS * sizeof *ws->attn);
    SHARE();
    PLACE(gate_up, M * 2 * F * sizeof *ws->gate_up);
    PLACE(ffn, M * F * sizeof *ws->ffn);
    if (E) {
        PLACE(router, M * E * sizeof *ws->router);
        PLACE(ids, M * used * sizeof *ws->ids);
        PLACE(weights, M * used * sizeof *ws->weights);
        PLACE(scratch, model->ops->moe_scratch_bytes(max_rows, c->d_model, c->d_ff_expert, c->n_experts_used));
    }
    SHARE();
    PLACE(final, n * D * sizeof *ws->final);
    PLACE(logits, n * V * sizeof *ws->logits);
    SHARE();
#undef PLACE
#undef SHARE
    return end;
}

uint64_t tv_workspace_bytes(const tv_model *model, int max_rows, int max_logits) {
    tv_workspace ws = {0};
    return carve(&ws, model, max_rows, max_logits, 0);
}

tv_workspace *tv_workspace_make(const tv_model *model, int max_rows, int max_logits, void *memory) {
    TV_ASSERT(max_rows >= 1 && max_logits >= 1);
    tv_workspace *ws = tv_xcalloc(1, sizeof *ws);
    ws->model = model, ws->max_rows = max_rows, ws->max_logits = max_logits;
    carve(ws, model, max_rows, max_logits, (uintptr_t)memory);
    return ws;
}

float *tv_workspace_logits(tv_workspace *ws) { return ws->logits; }

static tv_status check_step(const tv_model *m, const tv_workspace *ws, const tv_step *s, tv_err *err) {
    TV_ASSERT(ws->model == m);
    if (s->M < 1 || s->M > ws->max_rows)
        return TV_FAIL(err, TV_EARG, "forward: %d rows, the workspace holds 1 to %d", s->M, ws->max_rows);
    if (s->n_logits < 0 || s->n_logits > ws->max_logits)
        return TV_FAIL(err, TV_EARG, "forward: logits of %d rows, the workspace holds 0 to %d", s->n_logits,
                       ws->max_logits);
    int row = 0;
    for (int i = 0; i < s->n_segments; i++) {
        const tv_segment *g = &s->segments[i];
        if (g->row != row || g->n_rows < 1)
            return TV_FAIL(err, TV_EARG, "forward: segment %d has %d rows from row %d on, expected some from row %d on",
                           i, g->n_rows, g->row, row);
        if (g->pos < 0 || g->n_rows > m->config.max_positions - g->pos)
            return TV_FAIL(err, TV_EARG, "forward: segment %d ends at position %lld, the model has %d", i,
                           (long long)g->pos + g->n_rows, m->config.max_positions);
        row += g->n_rows;
    }
    if (row != s->M) return TV_FAIL(err, TV_EARG, "forward: the segments cover %d of %d rows", row, s->M);
    return TV_OK;
}

static void tap(const tv_step *s, const char *name, int layer, const void *data, int rows, int width, tv_dtype dtype) {
    if (s->tap.fn) s->tap.fn(s->tap.user, name, layer, data, rows, width, dtype);
}

static int longest_range(const tv_step *s) {
    int longest = 0;
    for (int i = 0; i < s->n_segments; i++)
        if (s->segments[i].pos + s->segments[i].n_rows > longest) longest = s->segments[i].pos + s->segments[i].n_rows;
    return longest;
}

/* The operations with what stays the same within a step filled in. m, ws, s: model, workspace, step. -----------------
 */

static tv_status embed(const tv_model *m, const tv_workspace *ws, const tv_step *s, tv_err *err) {
    tv_embed_args a = {.table = m->embed, .ids = s->ids, .out = ws->x, .M = s->M};
    a.V = m->config.vocab_size, a.D = m->config.d_model;
    return m->ops->embed(m->dev, &a, err);
}

/* x += delta (NULL: nothing); out [M,D] = norm(x) of all rows, or of the M given ones. */
static tv_status norm(const tv_model *m, const tv_workspace *ws, const tv_bf16 *delta, const tv_bf16 *weight,
                      const int32_t *rows, int M, tv_bf16 *out, tv_err *err) {
    tv_rmsnorm_args a = {.x = ws->x, .delta = delta, .weight = weight, .rows = rows, .out = out, .M = M};
    a.D = m->config.d_model, a.eps = m->config.rms_eps;
    return m->ops->rmsnorm(m->dev, &a, err);
}

/* y [M,N] bf16 = x [M,K] W^T (+ bias). */
static tv_status project(const tv_model *m, const tv_step *s, const tv_bf16 *x, const tv_matrix *w, tv_bf16 *y,
                         tv_err *err) {
    tv_linear_args a = {.x = x, .w = w, .y = y, .M = s->M, .plan = tv_plan_linear(&s->plan, s->M, w->N, w->K)};
    a.fixed = s->plan.reduction == TV_REDUCE_FIXED;
    return m->ops->linear(m->dev, &a, err);
}

/* ws->q and this step's cache rows from ws->qkv. */
static tv_status rope(const tv_model *m, const tv_workspace *ws, const tv_step *s, int l, tv_err *err) {
    tv_rope_args a = {.qkv = ws->qkv, .cos = m->cos, .sin = m->sin, .q = ws->q, .kv = s->kv[l], .M = s->M};
    a.q_weight = m->layers[l].q_norm, a.k_weight = m->layers[l].k_norm;
    a.segments = s->segments, a.n_segments = s->n_segments;
    a.H = m->config.n_heads, a.positions = m->config.max_positions, a.eps = m->config.rms_eps;
    return m->ops->rope(m->dev, &a, err);
}

static tv_status attention(const tv_model *m, const tv_workspace *ws, const tv_step *s, int l, tv_err *err) {
    tv_attn_args a = {.q = ws->q, .kv = s->kv[l], .out = ws->attn, .M = s->M, .H = m->config.n_heads};
    a.segments = s->segments, a.n_segments = s->n_segments;
    a.scale = (float)(1 / sqrt(m->config.head_size));
    a.plan = tv_plan_attention(&s->plan, s->n_segments, m->config.n_kv_heads, longest_range(s));
    a.fixed = s->plan.reduction == TV_REDUCE_FIXED;
    return s->backend->run(m->dev, &a, err);
}

static tv_status swiglu(const tv_model *m, const tv_workspace *ws, const tv_step *s, tv_err *err) {
    return m->ops->swiglu(
        m->dev, &(tv_swiglu_args){.gate_up = ws->gate_up, .out = ws->ffn, .M = s->M, .F = m->config.d_ff}, err);
}

/* ws->ids and ws->weights from ws->router. */
static tv_status route(const tv_model *m, const tv_workspace *ws, const tv_step *s, int l, tv_err *err) {
    tv_moe_route_args a = {.logits = ws->router, .ids = ws->ids, .weights = ws->weights, .M = s->M};
    a.E = m->config.n_experts, a.used = m->config.n_experts_used, a.norm = m->config.norm_topk_prob;
    if (s->routes) a.given = s->routes + (size_t)l * (size_t)s->M * (size_t)a.used;
    return m->ops->moe_route(m->dev, &a, err);
}

static tv_status experts(const tv_model *m, const tv_workspace *ws, const tv_step *s, int l, tv_err *err) {
    tv_moe_args a = {.x = ws->h, .ids = ws->ids, .weights = ws->weights, .out = ws->delta, .scratch = ws->scratch};
    a.gate_up = m->layers[l].expert_gate_up, a.down = m->layers[l].expert_down;
    a.M = s->M, a.D = m->config.d_model, a.F = m->config.d_ff_expert;
    a.E = m->config.n_experts, a.used = m->config.n_experts_used, a.plan = s->plan;
    return m->ops->moe(m->dev, &a, err);
}

/* ws->logits [n_logits,V] f32. */
static tv_status head(const tv_model *m, const tv_workspace *ws, const tv_step *s, tv_err *err) {
    tv_linear_args a = {.x = ws->final, .w = &m->lm_head, .y = ws->logits, .M = s->n_logits, .y_f32 = 1};
    a.round_bf16 = !s->logits_f32;
    a.plan = tv_plan_linear(&s->plan, s->n_logits, m->lm_head.N, m->lm_head.K);
    a.fixed = s->plan.reduction == TV_REDUCE_FIXED;
    return m->ops->linear(m->dev, &a, err);
}

tv_status tv_forward(const tv_model *m, tv_workspace *ws, const tv_step *s, tv_err *err) {
    const tv_config *c = &m->config;
    const int M = s->M, D = c->d_model, H = c->n_heads, G = c->n_kv_heads, HS = c->head_size;
    const tv_bf16 *delta = NULL; /* [M,D] the previous block's output, not yet added to x */
    TV_TRY(check_step(m, ws, s, err));

    TV_TRY(embed(m, ws, s, err));
    tap(s, "embed", -1, ws->x, M, D, TV_BF16);
    for (int l = 0; l < c->n_layers; l++) {
        const tv_layer *w = &m->layers[l];
        TV_TRY(norm(m, ws, delta, w->input_norm, NULL, M, ws->h, err));
        tap(s, "attn_norm", l, ws->h, M, D, TV_BF16);
        TV_TRY(project(m, s, ws->h, &w->qkv, ws->qkv, err));
        tap(s, "qkv", l, ws->qkv, M, (H + 2 * G) * HS, TV_BF16);
        TV_TRY(rope(m, ws, s, l, err));
        TV_TRY(attention(m, ws, s, l, err));
        tap(s, "attn", l, ws->attn, M, H * HS, TV_BF16);
        TV_TRY(project(m, s, ws->attn, &w->o, ws->delta, err));
        tap(s, "attn_out", l, ws->delta, M, D, TV_BF16);

        TV_TRY(norm(m, ws, ws->delta, w->post_norm, NULL, M, ws->h, err));
        tap(s, "ffn_norm", l, ws->h, M, D, TV_BF16);
        if (c->layer_sparse[l]) {
            TV_TRY(project(m, s, ws->h, &w->router, ws->router, err));
            tap(s, "router", l, ws->router, M, c->n_experts, TV_BF16);
            TV_TRY(route(m, ws, s, l, err));
            tap(s, "route", l, ws->ids, M, c->n_experts_used, TV_I32);
            TV_TRY(experts(m, ws, s, l, err));
        } else {
            TV_TRY(project(m, s, ws->h, &w->gate_up, ws->gate_up, err));
            TV_TRY(swiglu(m, ws, s, err));
            TV_TRY(project(m, s, ws->ffn, &w->down, ws->delta, err));
        }
        tap(s, "ffn_out", l, ws->delta, M, D, TV_BF16);
        delta = ws->delta;
    }
    if (!s->n_logits) return TV_OK;
    TV_TRY(norm(m, ws, delta, m->norm, s->logit_rows, s->n_logits, ws->final, err));
    tap(s, "final_norm", -1, ws->final, s->n_logits, D, TV_BF16);
    TV_TRY(head(m, ws, s, err));
    tap(s, "logits", -1, ws->logits, s->n_logits, c->vocab_size, TV_F32);
    return TV_OK;
}
