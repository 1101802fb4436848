#include "tests/reference_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "models/rope.h"

void reference_open(const char *dir, reference_model *m) {
    tv_err err = {0};
    char *path = tv_path_join(dir, "model.safetensors");
    m->bf16_frequencies = 0;
    tv_status s = tv_config_load(dir, &m->config, &err);
    if (s == TV_OK) s = tv_st_open(path, &m->file, &err);
    if (s != TV_OK) fprintf(stderr, "reference model: %s\n", err.message);
    TV_ASSERT(s == TV_OK);
    free(path);
}

void reference_close(reference_model *m) {
    tv_config_free(&m->config);
    tv_st_close(m->file);
}

/* The named tensor as doubles, fresh memory; layer -1: a name without a layer. NULL when there is none. */
static double *load(const reference_model *m, int layer, const char *name) {
    char full[160];
    if (layer >= 0)
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    const tv_st_tensor *t = tv_st_find(m->file, full);
    if (!t) return NULL;
    TV_ASSERT(t->dtype == TV_BF16);
    double *out = tv_xmalloc((t->bytes / 2 + 1) * sizeof *out);
    for (size_t i = 0; i < t->bytes / 2; i++) {
        tv_bf16 h;
        memcpy(&h, t->data + 2 * i, 2);
        out[i] = tv_f32_from_bf16(h);
    }
    return out;
}

/* y [T,N] = x [T,K] W^T + b for tensors NAME.weight and, where there is one, NAME.bias. */
static double *linear(const reference_model *m, int layer, const char *name, const double *x, int T, int K, int N) {
    char full[160];
    snprintf(full, sizeof full, "%s.weight", name);
    double *w = load(m, layer, full);
    TV_ASSERT(w);
    snprintf(full, sizeof full, "%s.bias", name);
    double *b = load(m, layer, full), *y = tv_xmalloc((size_t)T * (size_t)N * sizeof *y);
    for (int t = 0; t < T; t++)
        for (int n = 0; n < N; n++) {
            double sum = b ? b[n] : 0;
            for (int k = 0; k < K; k++) sum += x[(size_t)t * K + k] * w[(size_t)n * K + k];
            y[(size_t)t * N + n] = sum;
        }
    free(w), free(b);
    return y;
}

/* out [rows,n] = x / rms(x) * w; out may be x. A missing tensor (Qwen2's q and k norms) leaves x as it is. */
static void norm(const reference_model *m, int layer, const char *name, const double *x, int rows, int n, double *out) {
    double *w = load(m, layer, name);
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += x[(size_t)r * n + i] * x[(size_t)r * n + i];
        double scale = w ? 1 / sqrt(sum / n + m->config.rms_eps) : 1;
        for (int i = 0; i < n; i++) out[(size_t)r * n + i] = x[(size_t)r * n + i] * scale * (w ? w[i] : 1);
    }
    free(w);
}

/* x [T,heads,HS], rotated in place by the half-split pairing. */
static void rope(const reference_model *m, double *x, int T, int heads) {
    const tv_config *c = &m->config;
    int half = c->head_size / 2;
    double freq[128], factor;
    tv_rope_frequencies(c, freq, &factor);
    for (int i = 0; i < half && m->bf16_frequencies; i++) freq[i] = tv_round_bf16((float)freq[i]);
    for (int t = 0; t < T; t++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < half; i++) {
                double *a = x + ((size_t)t * heads + h) * c->head_size + i, *b = a + half, x0 = *a, x1 = *b;
                double co = cos(t * freq[i]) * factor, si = sin(t * freq[i]) * factor;
                *a = x0 * co - x1 * si;
                *b = x1 * co + x0 * si;
            }
}

/* [T,H*HS]; consecutive query heads share a key head. */
static double *attention(const tv_config *c, const double *q, const double *k, const double *v, int T) {
    int H = c->n_heads, G = c->n_kv_heads, HS = c->head_size;
    double *out = tv_xcalloc((size_t)T * H * HS, sizeof *out), *p = tv_xmalloc((size_t)T * sizeof *p);
    for (int t = 0; t < T; t++)
        for (int h = 0; h < H; h++) {
            int g = h / (H / G);
            double max = -INFINITY, sum = 0;
            for (int s = 0; s <= t; s++) {
                p[s] = 0;
                for (int i = 0; i < HS; i++) p[s] += q[((size_t)t * H + h) * HS + i] * k[((size_t)s * G + g) * HS + i];
                p[s] /= sqrt(HS);
                if (p[s] > max) max = p[s];
            }
            for (int s = 0; s <= t; s++) sum += p[s] = exp(p[s] - max);
            for (int s = 0; s <= t; s++)
                for (int i = 0; i < HS; i++)
                    out[((size_t)t * H + h) * HS + i] += p[s] / sum * v[((size_t)s * G + g) * HS + i];
        }
    free(p);
    return out;
}

/* [T,D] = down(silu(gate x) * up x) for the tensors PREFIX.{gate,up,down}_proj. */
static double *mlp(const reference_model *m, int layer, const char *prefix, const double *x, int T, int D, int F) {
    char name[128];
    snprintf(name, sizeof name, "%s.gate_proj", prefix);
    double *gate = linear(m, layer, name, x, T, D, F);
    snprintf(name, sizeof name, "%s.up_proj", prefix);
    double *up = linear(m, layer, name, x, T, D, F);
    for (size_t i = 0; i < (size_t)T * F; i++) gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    snprintf(name, sizeof name, "%s.down_proj", prefix);
    double *out = linear(m, layer, name, gate, T, F, D);
    free(gate), free(up);
    return out;
}

/* Softmax over all experts, the most likely ones, renormalised where the configuration says so. */
static double *experts(const reference_model *m, int layer, const double *x, int T, int forced, int32_t *routes,
                       double *margins) {
    const tv_config *c = &m->config;
    int D = c->d_model, E = c->n_experts, used = c->n_experts_used;
    double *p = linear(m, layer, "mlp.gate", x, T, D, E), *out = tv_xcalloc((size_t)T * D, sizeof *out);
    for (int t = 0; t < T; t++) {
        double *p_t = p + (size_t)t * E, max = -INFINITY, sum = 0, top = 0;
        int32_t *chosen = routes + (size_t)t * used;
        char *taken = tv_xcalloc((size_t)E, 1);
        for (int e = 0; e < E; e++) max = p_t[e] > max ? p_t[e] : max;
        for (int e = 0; e < E; e++) sum += p_t[e] = exp(p_t[e] - max);
        for (int e = 0; e < E; e++) p_t[e] /= sum;
        for (int i = 0; i <= used && !forced; i++) { /* one more than used, for the margin */
            int best = -1;
            for (int e = 0; e < E; e++)
                if (!taken[e] && (best < 0 || p_t[e] > p_t[best])) best = e;
            if (i < used) taken[best] = 1, chosen[i] = best;
            if (i == used && margins) margins[t] = best < 0 ? 1 : p_t[chosen[used - 1]] - p_t[best];
        }
        for (int i = 0; i < used; i++) top += p_t[chosen[i]];
        for (int i = 0; i < used; i++) {
            char prefix[64];
            snprintf(prefix, sizeof prefix, "mlp.experts.%d", chosen[i]);
            double *y = mlp(m, layer, prefix, x + (size_t)t * D, 1, D, c->d_ff_expert);
            for (int d = 0; d < D; d++) out[(size_t)t * D + d] += p_t[chosen[i]] / (c->norm_topk_prob ? top : 1) * y[d];
            free(y);
        }
        free(taken);
    }
    free(p);
    return out;
}

void reference_logits(const reference_model *m, const int32_t *ids, int T, int forced, int32_t *routes, double *margins,
                      double *logits) {
    const tv_config *c = &m->config;
    int D = c->d_model, H = c->n_heads, G = c->n_kv_heads, HS = c->head_size, V = c->vocab_size,
        used = c->n_experts_used;
    double *table = load(m, -1, "model.embed_tokens.weight");
    double *x = tv_xmalloc((size_t)T * D * sizeof *x), *h = tv_xmalloc((size_t)T * D * sizeof *h);
    int32_t *own = routes ? NULL : tv_xcalloc((size_t)c->n_layers * T * (used + 1), sizeof *own);
    if (own) routes = own;
    for (int t = 0; t < T; t++) memcpy(x + (size_t)t * D, table + (size_t)ids[t] * D, (size_t)D * sizeof *x);
    for (int l = 0; l < c->n_layers; l++) {
        norm(m, l, "input_layernorm.weight", x, T, D, h);
        double *q = linear(m, l, "self_attn.q_proj", h, T, D, H * HS),
               *k = linear(m, l, "self_attn.k_proj", h, T, D, G * HS);
        double *v = linear(m, l, "self_attn.v_proj", h, T, D, G * HS);
        norm(m, l, "self_attn.q_norm.weight", q, T * H, HS, q);
        norm(m, l, "self_attn.k_norm.weight", k, T * G, HS, k);
        rope(m, q, T, H);
        rope(m, k, T, G);
        double *a = attention(c, q, k, v, T), *o = linear(m, l, "self_attn.o_proj", a, T, H * HS, D);
        for (size_t i = 0; i < (size_t)T * D; i++) x[i] += o[i];
        norm(m, l, "post_attention_layernorm.weight", x, T, D, h);
        double *f = c->layer_sparse[l] ? experts(m, l, h, T, forced, routes + (size_t)l * T * used,
                                                 margins ? margins + (size_t)l * T : NULL)
                                       : mlp(m, l, "mlp", h, T, D, c->d_ff);
        for (size_t i = 0; i < (size_t)T * D; i++) x[i] += f[i];
        free(q), free(k), free(v), free(a), free(o), free(f);
    }
    norm(m, -1, "model.norm.weight", x, T, D, h);
    double *y = linear(m, -1, c->tie_embeddings ? "model.embed_tokens" : "lm_head", h, T, D, V);
    memcpy(logits, y, (size_t)T * V * sizeof *y);
    free(y), free(x), free(h), free(table), free(own);
}
