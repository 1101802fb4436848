/* The layer loop: right (against the reference implementation's f64 logits and a plain f64 model), and the same bits on
 * every path under the fixed reduction. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "models/forward.h"
#include "tests/check.h"
#include "tests/reference_model.h"
#include "tests/tiny_checkpoint.h"

/* The device under test: cmake/cuda.cmake builds this file for the CUDA device too. */
#ifdef TV_TEST_OPS
#define BESIDE_CPU
#else
#define TV_TEST_OPS tv_ops_cpu
#endif

static const char *const backends[] = {"math", "eager", "flash"};
static const tv_plan fixed = {TV_REDUCE_FIXED, 132}, serving = {TV_REDUCE_SERVING, 132};

/* A model on the CPU device with a cache and a workspace ------------------------------------------------------------
 */

enum { MAX_SEQS = 80, SPARE = 16 }; /* SPARE: room for the ids of steps that are too large */

typedef struct {
    const tv_ops *ops;
    tv_dev *dev;
    tv_model *model;
    void *activations;
    tv_workspace *ws;
    tv_kv_layer *kv; /* [L] */
    int slots, S, max_rows;
    tv_dtype kv_dtype;
    int32_t *ids, *rows, *routes; /* device */
    tv_tap tap;
} rig;

static void must(tv_status status, const tv_err *err) {
    if (status != TV_OK) fprintf(stderr, "    %s\n", err->message);
    TV_ASSERT(status == TV_OK);
}

static void *dev_alloc(rig *r, size_t bytes) {
    tv_err err = {0};
    void *p;
    must(r->ops->alloc(r->dev, bytes, &p, &err), &err);
    return p;
}

static size_t kv_bytes(const rig *r) {
    const tv_config *c = &r->model->config;
    return (size_t)r->slots * (size_t)c->n_kv_heads * (size_t)r->S * (size_t)c->head_size * tv_dtype_size(r->kv_dtype);
}

static size_t scale_bytes(const rig *r) {
    return (size_t)r->slots * (size_t)r->model->config.n_kv_heads * (size_t)r->S * sizeof(float);
}

static size_t routes_bytes(const rig *r) {
    return (size_t)r->model->config.n_layers * (size_t)r->max_rows * (size_t)(r->model->config.n_experts_used + 1) * 4;
}

/* isa NULL: auto. Steps of at most max_rows rows, all of which may ask for logits. 0 when this machine lacks the isa.
 */
static int rig_open_on(rig *r, const tv_ops *ops, tv_dtype kv_dtype, const char *dir, int threads, const char *isa,
                       int slots, int S, int max_rows) {
    tv_err err = {0};
    *r = (rig){.ops = ops, .slots = slots, .S = S, .max_rows = max_rows, .kv_dtype = kv_dtype};
    tv_dev_options options = {.threads = threads, .isa = isa ? isa : "auto"};
    char why[256];
    if (r->ops->available && !r->ops->available(why, sizeof why)) { /* then no test here can run */
        printf("skip: %s\n", why);
        exit(77);
    }
    if (r->ops->open(&options, &r->dev, &err) != TV_OK) return 0;
    must(tv_model_load(dir, r->ops, r->dev, TV_WEIGHTS_BF16, NULL, &r->model, &err), &err);
    r->activations = dev_alloc(r, tv_workspace_bytes(r->model, max_rows, max_rows));
    r->ws = tv_workspace_make(r->model, max_rows, max_rows, r->activations);
    const tv_config *c = &r->model->config;
    r->kv = tv_xcalloc((size_t)c->n_layers, sizeof *r->kv);
    for (int l = 0; l < c->n_layers; l++) {
        r->kv[l] = (tv_kv_layer){.slots = slots, .G = c->n_kv_heads, .S = S, .HS = c->head_size, .dtype = kv_dtype};
        r->kv[l].k = dev_alloc(r, kv_bytes(r));
        r->kv[l].v = dev_alloc(r, kv_bytes(r));
        if (kv_dtype == TV_BF16) continue;
        r->kv[l].k_scale = dev_alloc(r, scale_bytes(r));
        r->kv[l].v_scale = dev_alloc(r, scale_bytes(r));
    }
    r->ids = dev_alloc(r, ((size_t)max_rows + SPARE) * 4);
    r->rows = dev_alloc(r, ((size_t)max_rows + SPARE) * 4);
    r->routes = dev_alloc(r, routes_bytes(r));
    return 1;
}

static int rig_open(rig *r, const char *dir, int threads, const char *isa, int slots, int S, int max_rows) {
    return rig_open_on(r, &TV_TEST_OPS, TV_BF16, dir, threads, isa, slots, S, max_rows);
}

static void rig_close(rig *r) {
    for (int l = 0; l < r->model->config.n_layers; l++) {
        r->ops->free(r->dev, r->kv[l].k, kv_bytes(r));
        r->ops->free(r->dev, r->kv[l].v, kv_bytes(r));
        r->ops->free(r->dev, r->kv[l].k_scale, scale_bytes(r)); /* NULL with bf16 */
        r->ops->free(r->dev, r->kv[l].v_scale, scale_bytes(r));
    }
    r->ops->free(r->dev, r->ids, ((size_t)r->max_rows + SPARE) * 4);
    r->ops->free(r->dev, r->rows, ((size_t)r->max_rows + SPARE) * 4);
    r->ops->free(r->dev, r->routes, routes_bytes(r));
    free(r->kv);
    free(r->ws);
    r->ops->free(r->dev, r->activations, tv_workspace_bytes(r->model, r->max_rows, r->max_rows));
    tv_model_free(r->model);
    r->ops->close(r->dev);
}

static const tv_attn_backend *backend(const rig *r, const char *name) {
    tv_err err = {0};
    const tv_attn_backend *b;
    const tv_config *c = &r->model->config;
    tv_attn_limits limits = {.device = r->ops->name,
                             .H = c->n_heads,
                             .G = c->n_kv_heads,
                             .HS = c->head_size,
                             .max_batch = r->slots,
                             .max_keys = r->S,
                             .kv_dtype = r->kv_dtype};
    must(tv_attn_choose(&limits, name, &b, &err), &err);
    return b;
}

/* One step; every row's logits into logits [M,V] (host), or those of the n given rows. routes: NULL, or [L,M,used]
 * host. */
static tv_status rig_step(rig *r, const tv_attn_backend *b, const tv_plan *plan, int logits_f32, const int32_t *ids,
                          const tv_segment *segments, int n_segments, int M, const int32_t *rows, int n,
                          const int32_t *routes, float *logits, tv_err *err) {
    int32_t all[4096];
    const tv_config *c = &r->model->config;
    for (int i = 0; i < M; i++) all[i] = i;
    TV_TRY(r->ops->upload(r->dev, r->ids, ids, (size_t)M * 4, err));
    TV_TRY(r->ops->upload(r->dev, r->rows, rows ? rows : all, (size_t)n * 4, err));
    if (routes)
        TV_TRY(r->ops->upload(r->dev, r->routes, routes,
                              (size_t)c->n_layers * (size_t)M * (size_t)c->n_experts_used * 4, err));
    tv_step step = {
        .ids = r->ids, .segments = segments, .n_segments = n_segments, .M = M, .logit_rows = r->rows, .n_logits = n};
    step.kv = r->kv, step.backend = b, step.plan = *plan, step.logits_f32 = logits_f32;
    step.routes = routes ? r->routes : NULL, step.tap = r->tap;
    TV_TRY(tv_forward(r->model, r->ws, &step, err));
    if (!n) return r->ops->sync(r->dev, err);
    return r->ops->download(r->dev, logits, tv_workspace_logits(r->ws), (size_t)n * (size_t)c->vocab_size * 4, err);
}

/* B sequences of T tokens, chunk tokens of each at a time (T: prefill, 1: decode), sequence i in slot i: logits
 * [B,T,V]. given: NULL, or routes [L,B,T,used] to follow. */
static void run_all(rig *r, const char *name, const tv_plan *plan, int chunk, const int32_t *tokens, int B, int T,
                    const int32_t *given, float *logits) {
    const tv_config *c = &r->model->config;
    const size_t V = (size_t)c->vocab_size, used = (size_t)c->n_experts_used, BT = (size_t)B * (size_t)T;
    const tv_attn_backend *b = backend(r, name);
    int32_t *ids = tv_xmalloc((size_t)B * (size_t)chunk * 4);
    int32_t *routes = tv_xmalloc(routes_bytes(r));
    float *out = tv_xmalloc((size_t)B * (size_t)chunk * V * 4);
    for (int at = 0; at < T; at += chunk) {
        int n = T - at < chunk ? T - at : chunk, M = B * n;
        tv_segment segments[MAX_SEQS];
        for (int i = 0; i < B; i++) {
            segments[i] = (tv_segment){.slot = i, .row = i * n, .n_rows = n, .pos = at};
            memcpy(ids + i * n, tokens + (size_t)i * T + at, (size_t)n * 4);
            for (size_t l = 0; given && l < (size_t)c->n_layers; l++)
                memcpy(routes + (l * (size_t)M + (size_t)(i * n)) * used,
                       given + (l * BT + (size_t)i * (size_t)T + (size_t)at) * used, (size_t)n * used * 4);
        }
        tv_err err = {0};
        must(rig_step(r, b, plan, 0, ids, segments, B, M, NULL, M, given ? routes : NULL, out, &err), &err);
        for (int i = 0; i < B; i++)
            memcpy(logits + ((size_t)i * T + at) * V, out + (size_t)(i * n) * V, (size_t)n * V * 4);
    }
    free(ids), free(routes), free(out);
}

/* A tap that keeps the experts used, [L,M,used] of one step, and those that the router itself prefers (differs where
 * routes are given). */
typedef struct {
    rig *r;
    int32_t *used, *preferred;
} route_tap;

static void keep_routes(void *user, const char *name, int layer, const void *data, int rows, int width,
                        tv_dtype dtype) {
    route_tap *k = user;
    tv_err err = {0};
    size_t n = (size_t)rows * (size_t)width, used = (size_t)k->r->model->config.n_experts_used;
    if (strcmp(name, "route") == 0) {
        TV_ASSERT(dtype == TV_I32);
        must(k->r->ops->download(k->r->dev, k->used + (size_t)layer * n, data, n * 4, &err), &err);
    } else if (strcmp(name, "router") == 0) {
        tv_bf16 *logits = tv_xmalloc(n * sizeof *logits);
        TV_ASSERT(dtype == TV_BF16);
        must(k->r->ops->download(k->r->dev, logits, data, n * sizeof *logits, &err), &err);
        for (int t = 0; t < rows; t++) {
            int32_t *chosen = k->preferred + ((size_t)layer * (size_t)rows + (size_t)t) * used;
            uint64_t taken = 0;
            for (size_t i = 0; i < used; i++) { /* the largest logits, the lowest index on ties */
                int best = -1;
                for (int e = 0; e < width; e++)
                    if (!(taken >> e & 1) &&
                        (best < 0 || tv_f32_from_bf16(logits[(size_t)t * (size_t)width + (size_t)e]) >
                                         tv_f32_from_bf16(logits[(size_t)t * (size_t)width + (size_t)best])))
                        best = e;
                taken |= 1ull << best;
                chosen[i] = best;
            }
        }
        free(logits);
    }
}

static void random_ids(tv_rng *rng, int V, int32_t *ids, int n) {
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(tv_rng_next(rng) % (uint64_t)V);
}

/* Golden logits -----------------------------------------------------------------------------------------------------
 */

static const char *const golden_names[] = {"qwen3-dense", "qwen3-dense-untied", "qwen2-dense", "qwen3-moe",
                                           "qwen3-moe-mixed"};

typedef struct {
    char dir[600];
    int B, T, V, L, used;
    int32_t *tokens;    /* [B,T] */
    double *logits;     /* [B,T,V] of the reference implementation */
    double *ours;       /* [B,T,V] of reference_model */
    int32_t *routes;    /* [L,B,T,used] of reference_model */
    double *margins;    /* [L,B,T] */
    double allowed;     /* 1.25 times the larger of the reference implementation's bf16 errors */
    double allowed_low; /* 1.25 times the smaller one */
} golden;

static double relative(const double *a, const double *b, size_t n) {
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) d += (a[i] - b[i]) * (a[i] - b[i]), s += b[i] * b[i];
    return sqrt(d / s);
}

static void golden_open(golden *g, const char *name) {
    tv_err err = {0};
    const tv_st_tensor *tokens, *logits;
    tv_st_file *file;
    reference_model reference;
    snprintf(g->dir, sizeof g->dir, "%s/%s", tv_golden("models"), name);
    char *path = tv_path_join(g->dir, "reference.safetensors"),
         *errors_path = tv_path_join(tv_golden("models"), "errors.json");
    must(tv_st_open(path, &file, &err), &err);
    must(tv_st_need(file, "tokens", TV_I32, 2, (int64_t[]){-1, -1}, &tokens, &err), &err);
    g->B = (int)tokens->shape[0], g->T = (int)tokens->shape[1];
    must(tv_st_need(file, "logits", TV_F32, 3, (int64_t[]){g->B, g->T, -1}, &logits, &err), &err);
    g->V = (int)logits->shape[2];
    size_t BT = (size_t)g->B * (size_t)g->T, n = BT * (size_t)g->V;
    g->tokens = tv_xmalloc(tokens->bytes);
    memcpy(g->tokens, tokens->data, tokens->bytes);
    g->logits = tv_xmalloc(n * sizeof *g->logits);
    g->ours = tv_xmalloc(n * sizeof *g->ours);
    for (size_t i = 0; i < n; i++) {
        float f;
        memcpy(&f, logits->data + 4 * i, 4);
        g->logits[i] = f;
    }
    tv_st_close(file);

    reference_open(g->dir, &reference);
    reference.bf16_frequencies = 1; /* how the golden logits were made: the error of it, 2e-3, is in them */
    g->L = reference.config.n_layers, g->used = reference.config.n_experts_used;
    size_t used = (size_t)g->used, T = (size_t)g->T;
    g->routes = tv_xcalloc((size_t)g->L * BT * (used + 1), sizeof *g->routes);
    g->margins = tv_xcalloc((size_t)g->L * BT, sizeof *g->margins);
    int32_t *routes = tv_xcalloc((size_t)g->L * T * (used + 1), sizeof *routes);
    double *margins = tv_xcalloc((size_t)g->L * T, sizeof *margins);
    for (size_t b = 0; b < (size_t)g->B; b++) {
        reference_logits(&reference, g->tokens + b * T, g->T, 0, routes, margins, g->ours + b * T * (size_t)g->V);
        for (size_t l = 0; l < (size_t)g->L; l++) {
            memcpy(g->routes + (l * BT + b * T) * used, routes + l * T * used, T * used * 4);
            memcpy(g->margins + l * BT + b * T, margins + l * T, T * sizeof *margins);
        }
    }
    free(routes), free(margins);
    reference_close(&reference);

    cJSON *errors;
    must(tv_json_load(errors_path, 1 << 16, &errors, &err), &err);
    const cJSON *mine = cJSON_GetObjectItemCaseSensitive(errors, name);
    double eager = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(mine, "bf16_eager"));
    double sdpa = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(mine, "bf16_sdpa"));
    TV_ASSERT(eager > 0 && sdpa > 0);
    g->allowed = 1.25 * fmax(eager, sdpa), g->allowed_low = 1.25 * fmin(eager, sdpa);
    cJSON_Delete(errors);
    free(path), free(errors_path);
}

static void golden_close(golden *g) {
    free(g->tokens), free(g->logits), free(g->ours), free(g->routes), free(g->margins);
}

/* Error over the positions t < upto[b] of each sequence (upto NULL: all). */
static double golden_error(const golden *g, const float *logits, const int *upto) {
    double d = 0, s = 0;
    for (int b = 0; b < g->B; b++)
        for (size_t i = 0; i < (size_t)(upto ? upto[b] : g->T) * (size_t)g->V; i++) {
            size_t at = (size_t)b * (size_t)g->T * (size_t)g->V + i;
            double e = logits[at] - g->logits[at];
            d += e * e, s += g->logits[at] * g->logits[at];
        }
    return sqrt(d / s);
}

/* The plain f64 model of these tests is the reference implementation's model: two witnesses for the golden logits, and
 * the leave to take routes and logits of other small models from it. (The reference implementation's norms, rope angles
 * and softmax are f32 even in its f64 model.) */
static void test_reference_model_agrees(void) {
    for (size_t k = 0; k < sizeof golden_names / sizeof *golden_names; k++) {
        golden g;
        golden_open(&g, golden_names[k]);
        double e = relative(g.ours, g.logits, (size_t)g.B * (size_t)g.T * (size_t)g.V);
        printf("     %-20s f64 model against golden logits: %.2e\n", golden_names[k], e);
        CHECK(e <= 2e-6);
        golden_close(&g);
    }
}

/* Where a run's experts (as sets) differ from the f64 model's. */
typedef struct {
    int positions;       /* that differ in some layer */
    int choices;         /* (layer, position) that differ */
    int first[MAX_SEQS]; /* of each sequence; T: none does */
    double widest;       /* largest f64 margin, in router probability, at which a choice differs */
} route_diff;

static route_diff compare_routes(const golden *g, const int32_t *routes) {
    size_t BT = (size_t)g->B * (size_t)g->T, used = (size_t)g->used;
    route_diff d = {0};
    for (int b = 0; b < g->B; b++) {
        d.first[b] = g->T;
        for (int t = 0; t < g->T; t++) {
            int differs = 0;
            for (size_t l = 0; l < (size_t)g->L; l++) {
                size_t at = l * BT + (size_t)b * (size_t)g->T + (size_t)t;
                uint64_t mine = 0, theirs = 0;
                for (size_t i = 0; i < used; i++)
                    mine |= 1ull << routes[at * used + i], theirs |= 1ull << g->routes[at * used + i];
                if (mine == theirs) continue;
                differs = 1;
                d.choices++;
                d.widest = fmax(d.widest, g->margins[at]);
            }
            d.positions += differs;
            if (differs && d.first[b] == g->T) d.first[b] = t;
        }
    }
    return d;
}

/* Near-ties of the router. Along the f64 model's experts, the router's own choice differs at few positions, each a
 * near-tie. Left to its own choice, a run is the same up to the first such position of a sequence; from there on it is
 * another function of its input, and only its distance is reported. */
static void check_router(rig *r, const golden *g, const char *name, const tv_plan *plan, float *logits) {
    size_t n = (size_t)g->L * (size_t)g->B * (size_t)g->T * (size_t)g->used;
    route_tap along = {r, tv_xcalloc(n, 4), tv_xcalloc(n, 4)}, own = {r, tv_xcalloc(n, 4), tv_xcalloc(n, 4)};
    r->tap = (tv_tap){keep_routes, &along};
    run_all(r, name, plan, g->T, g->tokens, g->B, g->T, g->routes, logits);
    r->tap = (tv_tap){keep_routes, &own};
    run_all(r, name, plan, g->T, g->tokens, g->B, g->T, NULL, logits);
    r->tap = (tv_tap){0};
    CHECK_BYTES(along.used, g->routes, n * 4); /* what was given was taken */
    CHECK_INT(compare_routes(g, own.used).positions, compare_routes(g, own.preferred).positions);
    route_diff turns = compare_routes(g, along.preferred), free_run = compare_routes(g, own.used);
    int before = 0, sparse = 0;
    for (int b = 0; b < g->B; b++) before += free_run.first[b];
    for (int l = 0; l < g->L; l++) sparse += r->model->config.layer_sparse[l];
    double e = golden_error(g, logits, free_run.first);
    printf("     %-15s %-5s %-7s router turns at %d of %d choices (margins up to %.1e); run freely, %d of %d positions "
           "take "
           "other experts: error %.4f over the %d before them, %.4f over all\n",
           strrchr(g->dir, '/') + 1, name, plan->reduction == TV_REDUCE_FIXED ? "fixed" : "serving", turns.choices,
           sparse * g->B * g->T, turns.widest, free_run.positions, g->B * g->T, e, before,
           golden_error(g, logits, NULL));
    CHECK(turns.choices <= 0.03 * sparse * g->B * g->T);
    CHECK(turns.widest <= 0.02); /* what two percent of error in a router logit can move a probability of a half by */
    if (plan->reduction == TV_REDUCE_FIXED)
        for (int b = 0; b < g->B; b++) CHECK_INT(free_run.first[b], turns.first[b]);
    CHECK(e <= g->allowed_low);
    CHECK(free_run.positions <= 0.1 * g->B * g->T);
    free(along.used), free(along.preferred), free(own.used), free(own.preferred);
}

/* The CPU's other numerics of matrix products (VDPBF16PS, AMX) are within the same limits: prefill and decode. */
static void check_numerics(const golden *g, const char *isa, float *logits) {
    rig r;
    TV_ASSERT(rig_open(&r, g->dir, 2, isa, g->B, g->T, g->B * g->T));
    for (int decode = 0; decode < 2; decode++) {
        run_all(&r, "flash", &serving, decode ? 1 : g->T, g->tokens, g->B, g->T, g->used ? g->routes : NULL, logits);
        double e = golden_error(g, logits, NULL);
        if (!CHECK(e <= g->allowed) || !CHECK(e <= g->allowed_low * 1.1))
            fprintf(stderr, "    %s %s %s: %g, allowed %g\n", g->dir, isa, decode ? "decode" : "prefill", e,
                    g->allowed);
    }
    rig_close(&r);
}

/* Every backend, reduction and path is as close to the f64 logits as the reference implementation in bf16. Expert
 * models follow the f64 model's experts here, so that every position counts; and once their own. */
static void test_golden(void) {
    for (size_t k = 0; k < sizeof golden_names / sizeof *golden_names; k++) {
        golden g;
        rig r;
        golden_open(&g, golden_names[k]);
        TV_ASSERT(rig_open(&r, g.dir, 2, NULL, g.B, g.T, g.B * g.T));
        float *logits = tv_xmalloc((size_t)g.B * (size_t)g.T * (size_t)g.V * sizeof *logits);
        double worst = 0, best = 1;
        for (int mode = 0; mode < 12; mode++) {
            const char *name = backends[mode % 3];
            const tv_plan *plan = mode / 3 % 2 ? &serving : &fixed;
            run_all(&r, name, plan, mode / 6 ? 1 : g.T, g.tokens, g.B, g.T, g.used ? g.routes : NULL, logits);
            double e = golden_error(&g, logits, NULL);
            if (!CHECK(e <= g.allowed) || !CHECK(e <= g.allowed_low * 1.1))
                fprintf(stderr, "    %s %s %s %s: %g, allowed %g\n", golden_names[k], name,
                        mode / 3 % 2 ? "serving" : "fixed", mode / 6 ? "decode" : "prefill", e, g.allowed);
            worst = fmax(worst, e), best = fmin(best, e);
        }
        printf("     %-20s error %.4f to %.4f over 3 backends x 2 reductions x 2 paths, allowed %.4f\n",
               golden_names[k], best, worst, g.allowed);
        for (int mode = 0; mode < 6 && g.used; mode++)
            check_router(&r, &g, backends[mode % 3], mode / 3 ? &serving : &fixed, logits);
        rig_close(&r);
        if (!strcmp(TV_TEST_OPS.name, "cpu")) {
            check_numerics(&g, "scalar-bf16", logits);
            check_numerics(&g, "scalar-tiles", logits);
        }
        free(logits);
        golden_close(&g);
    }
}

#ifdef BESIDE_CPU
/* With caches of fp8 and int8 the device's logits are the CPU device's, as far as those of a bf16 cache may lie from
 * f64: whole prompts and decode, fp8 in flash, int8 in math and eager. Expert models follow the f64 model's experts. */
static void test_golden_caches(void) {
    static const tv_dtype dtypes[] = {TV_F8_E4M3, TV_I8};
    for (size_t k = 0; k < sizeof golden_names / sizeof *golden_names; k++) {
        golden g;
        golden_open(&g, golden_names[k]);
        const size_t n = (size_t)g.B * (size_t)g.T * (size_t)g.V;
        float *logits[2] = {tv_xmalloc(n * sizeof(float)), tv_xmalloc(n * sizeof(float))};
        for (int f = 0; f < 2; f++) {
            rig r[2];
            double most = 0, error[2] = {0};
            TV_ASSERT(rig_open_on(&r[0], &TV_TEST_OPS, dtypes[f], g.dir, 2, NULL, g.B, g.T, g.B * g.T));
            TV_ASSERT(rig_open_on(&r[1], &tv_ops_cpu, dtypes[f], g.dir, 2, NULL, g.B, g.T, g.B * g.T));
            for (int mode = 0; mode < 2; mode++) { /* whole prompts, decode */
                const char *name = f == 0 ? "flash" : mode ? "eager" : "math";
                double d = 0, s = 0;
                for (int i = 0; i < 2; i++) {
                    run_all(&r[i], name, mode ? &serving : &fixed, mode ? 1 : g.T, g.tokens, g.B, g.T,
                            g.used ? g.routes : NULL, logits[i]);
                    error[i] = fmax(error[i], golden_error(&g, logits[i], NULL));
                }
                for (size_t i = 0; i < n; i++)
                    d += pow((double)logits[0][i] - logits[1][i], 2), s += pow(logits[1][i], 2);
                d = sqrt(d / s);
                if (!CHECK(d <= g.allowed)) fprintf(stderr, "    %s %s mode %d: %g\n", golden_names[k], name, mode, d);
                most = fmax(most, d);
            }
            printf("     %-20s %-7s %.4f from the CPU device, allowed %.4f; from f64 %.4f, the CPU device %.4f\n",
                   golden_names[k], tv_dtype_name(dtypes[f]), most, g.allowed, error[0], error[1]);
            CHECK(error[0] <= 1.1 * error[1]);
            rig_close(&r[0]), rig_close(&r[1]);
        }
        free(logits[0]), free(logits[1]);
        golden_close(&g);
    }
}
#endif

/* The same bits on every path ----------------------------------------------------------------------------------------
 */

/* A folder of each kind, with weights that are not random in one of them. */
static const char *model_dir(int i) {
    static char path[3][600];
    if (i == 0) return tv_bundled_model();
    snprintf(path[i], sizeof path[i], "%s/%s", tv_golden("models"), i == 1 ? "qwen3-moe-mixed" : "qwen2-dense");
    return path[i];
}

/* Under the fixed reduction a prompt in one step, in chunks, and token by token gives the same logits, bit for bit. */
static void test_fixed_paths_are_equal(void) {
    enum { B = 2, T = 40 };
    static const int chunks[] = {1, 7, 16};
    for (int i = 0; i < 3; i++) {
        rig r;
        TV_ASSERT(rig_open(&r, model_dir(i), 2, NULL, B, T, B * T));
        int V = r.model->config.vocab_size;
        int32_t tokens[B * T];
        random_ids(&(tv_rng){11}, V, tokens, B * T);
        size_t n = (size_t)(B * T) * (size_t)V;
        float *whole = tv_xmalloc(n * 4), *parts = tv_xmalloc(n * 4);
        for (int k = 0; k < 3; k++) {
            run_all(&r, backends[k], &fixed, T, tokens, B, T, NULL, whole);
            for (int c = 0; c < 3; c++) {
                run_all(&r, backends[k], &fixed, chunks[c], tokens, B, T, NULL, parts);
                CHECK_BYTES(parts, whole, n * 4);
            }
        }
        free(whole), free(parts);
        rig_close(&r);
    }
}

enum { PROMPT = 13, LONG_PROMPT = 160, STEPS = 5 };

/* Sequence `tokens` (a prompt, then STEPS more) among batch - 1 others of various lengths, in the given slot, as
 * segment number `place`: the logits of its last prompt token and of STEPS decoded ones, [STEPS+1,V]. */
static void run_among(rig *r, const char *name, const tv_plan *plan, const int32_t *tokens, int prompt, int batch,
                      int slot, int place, int logits_f32, float *logits) {
    const size_t V = (size_t)r->model->config.vocab_size;
    const tv_attn_backend *b = backend(r, name);
    tv_segment segments[MAX_SEQS];
    int32_t ids[1024], last[MAX_SEQS], length[MAX_SEQS];
    tv_rng rng = {17 + (uint64_t)batch};
    float *out = tv_xmalloc((size_t)batch * V * 4);
    for (int step = 0; step <= STEPS; step++) {
        int M = 0;
        for (int i = 0; i < batch; i++) {
            if (!step) length[i] = i == place ? prompt : 1 + (i * 7) % 11;
            tv_segment s = {.slot = (slot + i - place + batch) % batch, .row = M, .n_rows = step ? 1 : length[i]};
            s.pos = step ? length[i] + step - 1 : 0;
            for (int j = 0; j < s.n_rows; j++) {
                if (i == place)
                    ids[M + j] = tokens[s.pos + j];
                else
                    random_ids(&rng, (int)V, &ids[M + j], 1);
            }
            M += s.n_rows;
            last[i] = M - 1;
            segments[i] = s;
        }
        tv_err err = {0};
        must(rig_step(r, b, plan, logits_f32, ids, segments, batch, M, last, batch, NULL, out, &err), &err);
        memcpy(logits + (size_t)step * V, out + (size_t)place * V, V * 4);
    }
    free(out);
}

/* Under the fixed reduction a row alone has the bits of the row in a batch of 2, 17 or 64, in any slot and place, with
 * one thread or two, with each instruction set. */
static void test_fixed_rows_do_not_depend_on_neighbours(void) {
    static const struct {
        int batch, slot, place;
    } cases[] = {{2, 1, 0}, {2, 0, 1}, {17, 5, 16}, {17, 16, 3}, {64, 63, 0}, {64, 10, 40}};
    static const char *const isas[] = {"scalar", "avx2", "avx512", "avx512bf16", "amx"};
    for (int i = 0; i < 3; i++)
        for (int isa = 0; isa < 5; isa++) {
            float *alone = NULL, *among = NULL;
            if (isa == 0 && i == 0) continue;
            for (int threads = 1; threads <= 2; threads++) {
                rig r;
                if (!rig_open(&r, model_dir(i), threads, isas[isa], 64, 64, 1024)) continue;
                size_t V = (size_t)r.model->config.vocab_size, n = (STEPS + 1) * V * 4;
                int32_t tokens[PROMPT + STEPS];
                random_ids(&(tv_rng){5}, (int)V, tokens, PROMPT + STEPS);
                if (!among) alone = tv_xcalloc(3, n), among = tv_xmalloc(n);
                for (int k = 0; k < 3; k++) {
                    float *mine = (float *)((char *)alone + (size_t)k * n);
                    if (threads == 1) run_among(&r, backends[k], &fixed, tokens, PROMPT, 1, 0, 0, 0, mine);
                    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
                        /* portable code takes its time: in a batch of 64, one model and two backends */
                        if (isa == 0 && cases[c].batch == 64 && (i != 1 || k != (int)c % 3)) continue;
                        run_among(&r, backends[k], &fixed, tokens, PROMPT, cases[c].batch, cases[c].slot,
                                  cases[c].place, 0, among);
                        CHECK_BYTES(among, mine, n);
                    }
                }
                rig_close(&r);
            }
            free(alone), free(among);
        }
}

/* Under the serving reduction the noise is real: the same row in a batch of 1 and of 8 has other bits, in the sums of
 * lm_head (seen in f32 logits) and, where there are keys enough to split, in flash attention and from there in
 * everything; and a rerun has the same. */
static void test_serving_depends_on_the_batch(void) {
    rig r;
    TV_ASSERT(rig_open(&r, tv_bundled_model(), 2, NULL, 8, 192, 512));
    size_t V = (size_t)r.model->config.vocab_size, n = (STEPS + 1) * V;
    int32_t tokens[LONG_PROMPT + STEPS];
    random_ids(&(tv_rng){5}, (int)V, tokens, LONG_PROMPT + STEPS);
    float *alone = tv_xmalloc(n * 4), *among = tv_xmalloc(n * 4);
    for (int k = 0; k < 3; k++)
        for (int f32 = 0; f32 < 2; f32++) {
            run_among(&r, backends[k], &serving, tokens, LONG_PROMPT, 1, 0, 0, f32, alone);
            run_among(&r, backends[k], &serving, tokens, LONG_PROMPT, 8, 3, 4, f32, among);
            size_t differ = 0;
            double largest = 0;
            for (size_t i = 0; i < n; i++) {
                differ += alone[i] != among[i];
                largest = fmax(largest, fabs((double)alone[i] - among[i]));
            }
            printf("     %-5s %s logits, B = 1 against 8: %zu of %zu differ, by %.2e at most\n", backends[k],
                   f32 ? "f32" : "bf16", differ, n, largest);
            if (f32) CHECK(differ > n / 4);
            if (k == 2) CHECK(differ > n / 4);
            CHECK(largest < 1);
            run_among(&r, backends[k], &serving, tokens, LONG_PROMPT, 1, 0, 0, f32, among);
            CHECK_BYTES(among, alone, n * 4);
        }
    free(alone), free(among);
    rig_close(&r);
}

/* Small models with each switch ---------------------------------------------------------------------------------------
 */

static const char *sub(const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", tv_test_dir(), name);
    return path;
}

/* The engine's logits of the checkpoint in dir are within bf16's reach of the plain f64 model's. */
static double against_reference(const char *dir, int T, const int32_t *routes, const char *name) {
    rig r;
    reference_model reference;
    int32_t tokens[256];
    TV_ASSERT(rig_open(&r, dir, 2, NULL, 1, T, T));
    int V = r.model->config.vocab_size;
    size_t n = (size_t)T * (size_t)V;
    random_ids(&(tv_rng){3}, V, tokens, T);
    tokens[T - 1] = V - 1; /* C19: ids that no tokenizer gives are rows like others */
    reference_open(dir, &reference);
    const tv_config *c = &reference.config;
    int32_t *chosen = tv_xcalloc((size_t)c->n_layers * (size_t)T * (size_t)(c->n_experts_used + 1), 4);
    double *want = tv_xmalloc(n * sizeof *want), *got = tv_xmalloc(n * sizeof *got);
    float *logits = tv_xmalloc(n * sizeof *logits);
    if (routes) memcpy(chosen, routes, (size_t)c->n_layers * (size_t)T * (size_t)c->n_experts_used * 4);
    reference_logits(&reference, tokens, T, routes != NULL, chosen, NULL, want);
    run_all(&r, name, &fixed, T, tokens, 1, T, c->n_experts ? chosen : NULL, logits);
    for (size_t i = 0; i < n; i++) got[i] = logits[i];
    double e = relative(got, want, n);
    free(chosen), free(want), free(got), free(logits);
    reference_close(&reference);
    rig_close(&r);
    return e;
}

enum { PLAIN, BIASED, TIED, WIDE_HEADS, YARN, ONE_LAYER, DENSE_BETWEEN, RAW_WEIGHTS, N_VARIANTS };

/* C01, C03, C09, C15, C16, E02: heads wider than D/H, tied heads, yarn, biases, dense layers between expert layers. A
 * switch that is read but not acted on moves logits by tens of percent; bf16 moves them by two. */
static void test_variants(void) {
    for (int family = TV_QWEN2; family <= TV_QWEN3_MOE; family++)
        for (int variant = 0; variant < N_VARIANTS; variant++) {
            tiny_options o = tiny_options_default(family);
            if (variant >= DENSE_BETWEEN && family != TV_QWEN3_MOE) continue;
            if (variant == WIDE_HEADS && family == TV_QWEN2) continue;
            o.seed = 40 + (uint64_t)variant;
            if (variant == BIASED) o.attention_bias = 1;
            if (variant == TIED) o.tie_embeddings = 1;
            if (variant == WIDE_HEADS) o.head_size = 72, o.n_heads = 6;
            if (variant == ONE_LAYER) o.n_layers = 1;
            if (variant == RAW_WEIGHTS) o.norm_topk_prob = 0, o.n_experts_used = 3;
            tiny_checkpoint *c = tiny_new(&o);
            if (variant == YARN) {
                cJSON *yarn = cJSON_AddObjectToObject(c->config, "rope_scaling");
                cJSON_AddStringToObject(yarn, "rope_type", "yarn");
                cJSON_AddNumberToObject(yarn, "factor", 4);
                cJSON_AddNumberToObject(yarn, "original_max_position_embeddings", 64);
            }
            if (variant == DENSE_BETWEEN) {
                cJSON_AddNumberToObject(c->config, "decoder_sparse_step", 2);
                tv_rng rng = {9};
                tiny_fill(tiny_add(c, "model.layers.0.mlp.gate_proj.weight", 96, 64, 0), &rng, 0, 0.2);
                tiny_fill(tiny_add(c, "model.layers.0.mlp.up_proj.weight", 96, 64, 0), &rng, 0, 0.2);
                tiny_fill(tiny_add(c, "model.layers.0.mlp.down_proj.weight", 64, 96, 0), &rng, 0, 0.2);
            }
            tiny_write(c, sub("variant"));
            double e = against_reference(sub("variant"), 50, NULL, backends[variant % 3]);
            if (!CHECK(e <= 0.03)) fprintf(stderr, "    family %d, variant %d: %g\n", family, variant, e);
            tiny_free(c);
        }
}

/* E06: experts without a row, all rows on one expert, more routed rows than any tile. */
static void test_rigged_routes(void) {
    enum { T = 60, L = 2, USED = 2 };
    tiny_options o = tiny_options_default(TV_QWEN3_MOE);
    tiny_checkpoint *c = tiny_new(&o);
    tiny_write(c, sub("rigged"));
    int32_t routes[L * T * USED];
    for (int i = 0; i < L * T; i++) routes[2 * i] = 3, routes[2 * i + 1] = 1;
    CHECK(against_reference(sub("rigged"), T, routes, "math") <= 0.03);
    for (int i = 0; i < L * T; i++) routes[2 * i] = i % 3, routes[2 * i + 1] = 3;
    CHECK(against_reference(sub("rigged"), T, routes, "math") <= 0.03);
    tiny_free(c);
}

/* N07: the final norm's weight is used: twice the weight is exactly twice the logits. C19: a scaled row of lm_head is
 * scored. */
static void test_final_norm_weight(void) {
    tiny_options o = tiny_options_default(TV_QWEN3);
    float logits[3][20 * 128];
    int32_t tokens[20];
    random_ids(&(tv_rng){8}, 128, tokens, 20);
    for (int k = 0; k < 3; k++) {
        tiny_checkpoint *c = tiny_new(&o);
        tiny_tensor *norm = tiny_find(c, "model.norm.weight"), *head = tiny_find(c, "lm_head.weight");
        for (size_t i = 0; i < 64; i++) tiny_set(norm, i, k == 1 ? 2 : 1);
        for (size_t i = 0; k == 2 && i < 64; i++) tiny_set(head, 126 * 64 + i, 64 * tiny_get(head, 126 * 64 + i));
        tiny_write(c, sub("norm"));
        rig r;
        TV_ASSERT(rig_open(&r, sub("norm"), 1, NULL, 1, 20, 20));
        run_all(&r, "math", &fixed, 20, tokens, 1, 20, NULL, logits[k]);
        rig_close(&r);
        tiny_free(c);
    }
    for (int i = 0; i < 20 * 128; i++) {
        CHECK(logits[1][i] == 2 * logits[0][i]);
        CHECK(logits[2][i] == (i % 128 == 126 ? 64 : 1) * logits[0][i]);
    }
}

/* Steps ---------------------------------------------------------------------------------------------------------------
 */

/* Logits of some rows, in any order, are those rows' logits; f32 logits round to the bf16 ones; no rows at all is fine.
 */
static void test_wanted_rows(void) {
    enum { T = 12 };
    tv_err err = {0};
    rig r;
    TV_ASSERT(rig_open(&r, tv_bundled_model(), 2, NULL, 2, 64, 64));
    size_t V = (size_t)r.model->config.vocab_size;
    const tv_attn_backend *b = backend(&r, "flash");
    int32_t ids[T];
    random_ids(&(tv_rng){2}, (int)V, ids, T);
    tv_segment segment = {.slot = 1, .row = 0, .n_rows = T, .pos = 0};
    float *all = tv_xmalloc(T * V * 4), *some = tv_xmalloc(T * V * 4);
    CHECK_OK(rig_step(&r, b, &fixed, 0, ids, &segment, 1, T, NULL, T, NULL, all, &err), &err);
    const int32_t wanted[3] = {11, 0, 5};
    CHECK_OK(rig_step(&r, b, &fixed, 0, ids, &segment, 1, T, wanted, 3, NULL, some, &err), &err);
    for (size_t i = 0; i < 3; i++) CHECK_BYTES(some + i * V, all + (size_t)wanted[i] * V, V * 4);
    CHECK_OK(rig_step(&r, b, &fixed, 1, ids, &segment, 1, T, NULL, T, NULL, some, &err), &err);
    size_t rounded = 0;
    for (size_t i = 0; i < T * V; i++) {
        CHECK(tv_round_bf16(some[i]) == all[i]);
        rounded += some[i] != all[i];
    }
    CHECK(rounded > T * V / 2);
    /* a chunk without logits leaves the same cache behind as one with */
    tv_segment first = {.slot = 0, .row = 0, .n_rows = T - 1, .pos = 0},
               second = {.slot = 0, .row = 0, .n_rows = 1, .pos = T - 1};
    CHECK_OK(rig_step(&r, b, &fixed, 0, ids, &first, 1, T - 1, NULL, 0, NULL, NULL, &err), &err);
    CHECK_OK(rig_step(&r, b, &fixed, 0, ids + T - 1, &second, 1, 1, NULL, 1, NULL, some, &err), &err);
    CHECK_BYTES(some, all + (T - 1) * V, V * 4);
    free(all), free(some);
    rig_close(&r);
}

typedef struct {
    rig *r;
    char names[2000];
    tv_bf16 embed[4 * 64], attn_norm[4 * 64];
    float logits[4 * 128];
    int wrong;
} seen;

static void see(void *user, const char *name, int layer, const void *data, int rows, int width, tv_dtype dtype) {
    seen *s = user;
    tv_err err = {0};
    size_t at = strlen(s->names), bytes = (size_t)rows * (size_t)width * tv_dtype_size(dtype);
    snprintf(s->names + at, sizeof s->names - at, "%s%d:%dx%d:%s ", name, layer, rows, width, tv_dtype_name(dtype));
    void *to = NULL;
    if (strcmp(name, "embed") == 0) to = s->embed;
    if (strcmp(name, "attn_norm") == 0 && layer == 0) to = s->attn_norm;
    if (strcmp(name, "logits") == 0) to = s->logits;
    if (to) must(s->r->ops->download(s->r->dev, to, data, bytes, &err), &err);
}

/* Taps come in order with the shapes of what they show. N01: the norm rounds twice, before and after its weight. */
static void test_taps(void) {
    tiny_options o = tiny_options_default(TV_QWEN3_MOE);
    o.n_layers = 2;
    tiny_checkpoint *c = tiny_new(&o);
    cJSON_AddItemToObject(c->config, "mlp_only_layers", cJSON_CreateIntArray((int[]){1}, 1));
    tv_rng rng = {9};
    tiny_fill(tiny_add(c, "model.layers.1.mlp.gate_proj.weight", 96, 64, 0), &rng, 0, 0.2);
    tiny_fill(tiny_add(c, "model.layers.1.mlp.up_proj.weight", 96, 64, 0), &rng, 0, 0.2);
    tiny_fill(tiny_add(c, "model.layers.1.mlp.down_proj.weight", 64, 96, 0), &rng, 0, 0.2);
    tiny_write(c, sub("taps"));
    rig r;
    TV_ASSERT(rig_open(&r, sub("taps"), 1, NULL, 1, 8, 8));
    seen s = {.r = &r};
    r.tap = (tv_tap){see, &s};
    const int32_t ids[4] = {5, 127, 0, 9}, row = 2;
    float logits[128];
    tv_err err = {0};
    CHECK_OK(rig_step(&r, backend(&r, "eager"), &serving, 0, ids, &(tv_segment){0, 0, 4, 0}, 1, 4, &row, 1, NULL,
                      logits, &err),
             &err);
    CHECK_STR(s.names, "embed-1:4x64:BF16 "
                       "attn_norm0:4x64:BF16 qkv0:4x256:BF16 attn0:4x128:BF16 attn_out0:4x64:BF16 ffn_norm0:4x64:BF16 "
                       "router0:4x4:BF16 route0:4x2:I32 "
                       "ffn_out0:4x64:BF16 "
                       "attn_norm1:4x64:BF16 qkv1:4x256:BF16 attn1:4x128:BF16 attn_out1:4x64:BF16 ffn_norm1:4x64:BF16 "
                       "ffn_out1:4x64:BF16 final_norm-1:1x64:BF16 logits-1:1x128:F32 ");
    CHECK_BYTES(s.logits, logits, sizeof logits);
    const tiny_tensor *table = tiny_find(c, "model.embed_tokens.weight"),
                      *w = tiny_find(c, "model.layers.0.input_layernorm.weight");
    for (size_t t = 0; t < 4; t++) {
        double sum = 0;
        for (size_t i = 0; i < 64; i++) sum += pow(tiny_get(table, (size_t)ids[t] * 64 + i), 2);
        for (size_t i = 0; i < 64; i++) {
            float x = tiny_get(table, (size_t)ids[t] * 64 + i);
            float want = tv_round_bf16(tv_round_bf16((float)(x / sqrt(sum / 64 + 1e-6))) * tiny_get(w, i));
            CHECK(tv_f32_from_bf16(s.embed[t * 64 + i]) == x);
            CHECK(tv_f32_from_bf16(s.attn_norm[t * 64 + i]) == want);
        }
    }
    tiny_free(c);
    rig_close(&r);
}

static void test_bad_steps_are_refused(void) {
    tv_err err = {0};
    rig r;
    char dir[600];
    snprintf(dir, sizeof dir, "%s/qwen3-moe", tv_golden("models"));
    TV_ASSERT(rig_open(&r, dir, 1, NULL, 2, 2000, 16));
    const tv_attn_backend *b = backend(&r, "math");
    const int32_t ids[32] = {0};
    float *logits = tv_xmalloc(32 * 512 * sizeof *logits);
#define STEP(M, n, ...)                                                                                                \
    rig_step(&r, b, &fixed, 0, ids, (tv_segment[]){__VA_ARGS__},                                                       \
             sizeof((tv_segment[]){__VA_ARGS__}) / sizeof(tv_segment), M, NULL, n, NULL, logits, &err)
    CHECK_OK(STEP(16, 16, {0, 0, 16, 0}), &err);
    CHECK_FAILS(STEP(0, 0, {0, 0, 1, 0}), TV_EARG, &err, "0 rows");
    CHECK_FAILS(STEP(17, 1, {0, 0, 17, 0}), TV_EARG, &err, "17 rows, the workspace holds 1 to 16");
    CHECK_FAILS(STEP(16, 17, {0, 0, 16, 0}), TV_EARG, &err, "logits of 17 rows");
    CHECK_FAILS(STEP(4, 4, {0, 0, 3, 0}), TV_EARG, &err, "cover 3 of 4 rows");
    CHECK_FAILS(STEP(4, 4, {0, 0, 2, 0}, {1, 1, 2, 0}), TV_EARG, &err, "segment 1");
    CHECK_FAILS(STEP(4, 4, {0, 0, 4, 0}, {1, 4, 0, 0}), TV_EARG, &err, "segment 1 has 0 rows");
    CHECK_FAILS(STEP(4, 4, {0, 0, 4, 1021}), TV_EARG, &err, "ends at position 1025, the model has 1024");
    CHECK_FAILS(STEP(4, 4, {0, 0, 4, -1}), TV_EARG, &err, "position");
    CHECK_FAILS(STEP(4, 4, {0, 0, 4, 2147483647}), TV_EARG, &err, "the model has 1024");
    CHECK_FAILS(STEP(4, 4, {2, 0, 4, 0}), TV_EARG, &err, "slot 2");
    CHECK_OK(STEP(4, 4, {1, 0, 4, 1020}), &err);
#undef STEP
    int32_t routes[3 * 16 * 2] = {0};
    routes[5] = 8;
    CHECK_FAILS(rig_step(&r, b, &fixed, 0, ids, &(tv_segment){0, 0, 4, 0}, 1, 4, NULL, 4, routes, logits, &err),
                TV_EARG, &err, "expert 8");
    CHECK(tv_workspace_bytes(r.model, 1 << 30, 1 << 30) > 1ull << 40);
    CHECK(tv_workspace_bytes(r.model, 16, 16) >= 16 * 512 * 4);
    free(logits);
    rig_close(&r);
}

static const tv_test tests[] = {
    {"reference_model_agrees", test_reference_model_agrees},
    {"golden", test_golden},
#ifdef BESIDE_CPU
    {"golden_caches", test_golden_caches},
#endif
    {"fixed_paths_are_equal", test_fixed_paths_are_equal},
    {"fixed_rows_do_not_depend_on_neighbours", test_fixed_rows_do_not_depend_on_neighbours},
    {"serving_depends_on_the_batch", test_serving_depends_on_the_batch},
    {"variants", test_variants},
    {"rigged_routes", test_rigged_routes},
    {"final_norm_weight", test_final_norm_weight},
    {"wanted_rows", test_wanted_rows},
    {"taps", test_taps},
    {"bad_steps_are_refused", test_bad_steps_are_refused},
};
TV_TEST_MAIN(tests)
