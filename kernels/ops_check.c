/* Argument checks that every device makes first. They look at sizes, host memory and NULL, never behind a device
 * pointer. */
#include "kernels/ops.h"

/* Products of dims stay far from the range of size_t and of int offsets inside a row. */
enum { MAX_ROWS = 1 << 20, MAX_WIDTH = 1 << 24, MAX_VOCAB = 1 << 28 };

static tv_status in_range(const char *op, const char *what, int64_t value, int64_t low, int64_t high, tv_err *err) {
    if (value < low || value > high)
        return TV_FAIL(err, TV_EARG, "%s: %s=%lld must be in %lld .. %lld", op, what, (long long)value, (long long)low,
                       (long long)high);
    return TV_OK;
}

static tv_status given(const char *op, const char *what, const void *p, tv_err *err) {
    if (!p) return TV_FAIL(err, TV_EARG, "%s: %s is NULL", op, what);
    return TV_OK;
}

static tv_status positive(const char *op, const char *what, float value, tv_err *err) {
    if (!(value > 0 && value <= 1e30f))
        return TV_FAIL(err, TV_EARG, "%s: %s=%g must be positive and finite", op, what, value);
    return TV_OK;
}

#define ARGS(op)                                                                                                       \
    const char *const op_name = op;                                                                                    \
    TV_TRY(given(op, "the argument struct", a, err))
#define GIVEN(field) TV_TRY(given(op_name, #field, a->field, err))
#define RANGE(field, low, high) TV_TRY(in_range(op_name, #field, a->field, low, high, err))

tv_status tv_check_embed(const tv_embed_args *a, tv_err *err) {
    ARGS("embed");
    RANGE(M, 1, MAX_ROWS);
    RANGE(V, 1, MAX_VOCAB);
    RANGE(D, 1, MAX_WIDTH);
    GIVEN(table);
    GIVEN(ids);
    GIVEN(out);
    return TV_OK;
}

tv_status tv_check_rmsnorm(const tv_rmsnorm_args *a, tv_err *err) {
    ARGS("rmsnorm");
    RANGE(M, 1, MAX_ROWS);
    RANGE(D, 1, MAX_WIDTH);
    GIVEN(x);
    GIVEN(weight);
    GIVEN(out);
    return positive("rmsnorm", "eps", a->eps, err);
}

tv_status tv_check_linear(const tv_linear_args *a, tv_err *err) {
    ARGS("linear");
    RANGE(M, 1, MAX_ROWS);
    GIVEN(x);
    GIVEN(w);
    GIVEN(y);
    TV_TRY(in_range("linear", "N", a->w->N, 1, MAX_VOCAB, err));
    TV_TRY(in_range("linear", "K", a->w->K, 1, MAX_WIDTH, err));
    TV_TRY(given("linear", "w->data", a->w->data, err));
    if (a->round_bf16 && !a->y_f32)
        return TV_FAIL(err, TV_EARG, "linear: round_bf16=%d is for f32 output; y_f32=0 already rounds", a->round_bf16);
    /* The slices cover K exactly, none is empty, and cuts fall on whole vectors of k. */
    const tv_linear_plan p = a->plan;
    int64_t K = a->w->K;
    if (p.slices < 1 || p.slice < 1 || (p.slices - 1) * (int64_t)p.slice >= K || p.slices * (int64_t)p.slice < K ||
        (p.slices > 1 && p.slice % 32))
        return TV_FAIL(
            err, TV_EARG,
            "linear: a plan of %d slices of %d does not cover K=%lld (slices must be multiples of 32, none empty)",
            p.slices, p.slice, (long long)K);
    return TV_OK;
}

static tv_status check_kv(const char *op, const tv_kv_layer *kv, int H, tv_err *err) {
    TV_TRY(given(op, "kv.k", kv->k, err));
    TV_TRY(given(op, "kv.v", kv->v, err));
    TV_TRY(in_range(op, "kv.slots", kv->slots, 1, MAX_ROWS, err));
    TV_TRY(in_range(op, "kv.G", kv->G, 1, 1 << 16, err));
    TV_TRY(in_range(op, "kv.S", kv->S, 1, MAX_WIDTH, err));
    TV_TRY(in_range(op, "kv.HS", kv->HS, 1, 1 << 16, err));
    TV_TRY(in_range(op, "H", H, 1, 1 << 16, err));
    if (kv->dtype != TV_BF16 && kv->dtype != TV_F8_E4M3 && kv->dtype != TV_I8)
        return TV_FAIL(err, TV_EARG, "%s: kv.dtype=%d must be BF16, F8_E4M3 or I8", op, (int)kv->dtype);
    if (kv->dtype != TV_BF16) {
        TV_TRY(given(op, "kv.k_scale", kv->k_scale, err));
        TV_TRY(given(op, "kv.v_scale", kv->v_scale, err));
    }
    if (H % kv->G) return TV_FAIL(err, TV_EARG, "%s: H=%d must be a multiple of kv.G=%d", op, H, kv->G);
    return TV_OK;
}

/* Every row of the step belongs to one segment, and each segment lies in its slot and below `positions`. */
static tv_status check_segments(const char *op, const tv_segment *s, int n, int M, const tv_kv_layer *kv, int positions,
                                tv_err *err) {
    TV_TRY(in_range(op, "n_segments", n, 1, M, err));
    TV_TRY(given(op, "segments", s, err));
    int64_t rows = 0;
    for (int i = 0; i < n; i++) {
        if (s[i].slot < 0 || s[i].slot >= kv->slots)
            return TV_FAIL(err, TV_EARG, "%s: segment %d has slot %d, with %d slots", op, i, s[i].slot, kv->slots);
        if (s[i].row < 0 || s[i].n_rows < 1 || (int64_t)s[i].row + s[i].n_rows > M)
            return TV_FAIL(err, TV_EARG, "%s: segment %d has rows %d + %d, with M=%d", op, i, s[i].row, s[i].n_rows, M);
        if (s[i].pos < 0 || (int64_t)s[i].pos + s[i].n_rows > kv->S || (int64_t)s[i].pos + s[i].n_rows > positions)
            return TV_FAIL(err, TV_EARG, "%s: segment %d has positions %d + %d, with %d cache positions and %d in all",
                           op, i, s[i].pos, s[i].n_rows, kv->S, positions);
        rows += s[i].n_rows;
    }
    if (rows != M) return TV_FAIL(err, TV_EARG, "%s: the segments hold %lld rows, with M=%d", op, (long long)rows, M);
    return TV_OK;
}

tv_status tv_check_rope(const tv_rope_args *a, tv_err *err) {
    ARGS("rope");
    RANGE(M, 1, MAX_ROWS);
    GIVEN(qkv);
    GIVEN(cos);
    GIVEN(sin);
    GIVEN(q);
    TV_TRY(check_kv("rope", &a->kv, a->H, err));
    if (a->kv.HS % 2) return TV_FAIL(err, TV_EARG, "rope: kv.HS=%d must be even", a->kv.HS);
    if (!a->q_weight != !a->k_weight)
        return TV_FAIL(err, TV_EARG, "rope: %s is NULL and the other norm weight is not",
                       a->q_weight ? "k_weight" : "q_weight");
    if (a->q_weight) TV_TRY(positive("rope", "eps", a->eps, err));
    RANGE(positions, 1, 1 << 28);
    return check_segments("rope", a->segments, a->n_segments, a->M, &a->kv, a->positions, err);
}

tv_status tv_check_attn(const tv_attn_args *a, tv_err *err) {
    ARGS("attention");
    RANGE(M, 1, MAX_ROWS);
    GIVEN(q);
    GIVEN(out);
    TV_TRY(check_kv("attention", &a->kv, a->H, err));
    TV_TRY(positive("attention", "scale", a->scale, err));
    const tv_attn_plan p = a->plan;
    if (p.key_tile < 1 || p.split_keys < p.key_tile || p.split_keys % p.key_tile)
        return TV_FAIL(err, TV_EARG,
                       "attention: a plan of splits of %d keys in tiles of %d: must be a multiple of the tile",
                       p.split_keys, p.key_tile);
    return check_segments("attention", a->segments, a->n_segments, a->M, &a->kv, a->kv.S, err);
}

tv_status tv_check_swiglu(const tv_swiglu_args *a, tv_err *err) {
    ARGS("swiglu");
    /* Expert layers hand over one row per token and expert. */
    RANGE(M, 1, 1 << 28);
    RANGE(F, 1, MAX_WIDTH);
    GIVEN(gate_up);
    GIVEN(out);
    return TV_OK;
}

tv_status tv_check_moe_route(const tv_moe_route_args *a, tv_err *err) {
    ARGS("moe_route");
    RANGE(M, 1, MAX_ROWS);
    RANGE(E, 1, 1 << 16);
    RANGE(used, 1, a->E);
    GIVEN(logits);
    GIVEN(ids);
    GIVEN(weights);
    return TV_OK;
}

tv_status tv_check_moe(const tv_moe_args *a, tv_err *err) {
    ARGS("moe");
    RANGE(M, 1, MAX_ROWS);
    RANGE(D, 1, MAX_WIDTH);
    RANGE(F, 1, MAX_WIDTH / 2);
    RANGE(E, 1, 1 << 16);
    RANGE(used, 1, a->E);
    TV_TRY(in_range("moe", "M * used", (int64_t)a->M * a->used, 1, 1 << 28, err));
    GIVEN(x);
    GIVEN(ids);
    GIVEN(weights);
    GIVEN(gate_up);
    GIVEN(down);
    GIVEN(out);
    GIVEN(scratch);
    TV_TRY(in_range("moe", "plan.units", a->plan.units, 1, 1 << 20, err));
    for (int e = 0; e < a->E; e++) {
        const tv_matrix *g = &a->gate_up[e], *d = &a->down[e];
        if (!g->data || !d->data) return TV_FAIL(err, TV_EARG, "moe: expert %d has no weights", e);
        if (g->N != 2 * a->F || g->K != a->D || d->N != a->D || d->K != a->F)
            return TV_FAIL(err, TV_EARG, "moe: expert %d has gate_up %d x %d and down %d x %d, with D=%d and F=%d", e,
                           g->N, g->K, d->N, d->K, a->D, a->F);
    }
    return TV_OK;
}

tv_status tv_check_logprobs(const tv_logprobs_args *a, tv_err *err) {
    ARGS("logprobs");
    RANGE(M, 1, MAX_ROWS);
    RANGE(V, 1, MAX_VOCAB);
    RANGE(k, 1, a->V);
    RANGE(n_suppressed, 0, a->V);
    GIVEN(logits);
    if (a->n_suppressed) GIVEN(suppressed);
    GIVEN(topk_ids);
    GIVEN(topk_logprobs);
    GIVEN(bad);
    if (a->token) {
        GIVEN(token_logprob);
        GIVEN(token_rank);
    }
    if (!(a->temperature > 0 && a->temperature <= 1e30f))
        return TV_FAIL(err, TV_EARG, "logprobs: temperature=%g must be positive and finite (below 1e-6 counts as 0)",
                       a->temperature);
    return TV_OK;
}

tv_status tv_check_sample(const tv_sample_args *a, tv_err *err) {
    ARGS("sample");
    RANGE(M, 1, MAX_ROWS);
    RANGE(k, 1, MAX_VOCAB);
    RANGE(top_k, 1, a->k);
    GIVEN(topk_ids);
    GIVEN(topk_logprobs);
    GIVEN(trajectory);
    GIVEN(position);
    GIVEN(token);
    return TV_OK;
}

tv_status tv_check_carry(const tv_carry_args *a, tv_err *err) {
    ARGS("carry");
    RANGE(n, 1, MAX_ROWS);
    GIVEN(to);
    GIVEN(from);
    return TV_OK;
}

static tv_status check_parts(int n_parts, const void *parts, const int *part_N, int K, const tv_matrix *out, int *N,
                             tv_err *err) {
    if (n_parts < 1 || !parts || !part_N || !out)
        return TV_FAIL(err, TV_EARG, "matrix_load: n_parts=%d, and parts, part_N and out must be given", n_parts);
    TV_TRY(in_range("matrix_load", "K", K, 1, MAX_WIDTH, err));
    int64_t rows = 0;
    for (int i = 0; i < n_parts; i++) {
        if (part_N[i] < 1) return TV_FAIL(err, TV_EARG, "matrix_load: part %d has %d rows", i, part_N[i]);
        rows += part_N[i];
    }
    TV_TRY(in_range("matrix_load", "rows in all", rows, 1, MAX_VOCAB, err));
    *N = (int)rows;
    return TV_OK;
}

tv_status tv_check_matrix_load(int n_parts, const void *const *parts, const int *part_N, int K, const tv_matrix *out,
                               int *N, tv_err *err) {
    TV_TRY(check_parts(n_parts, parts, part_N, K, out, N, err));
    for (int i = 0; i < n_parts; i++)
        if (!parts[i]) return TV_FAIL(err, TV_EARG, "matrix_load: part %d is NULL", i);
    return TV_OK;
}

tv_status tv_check_matrix_load_packed(int n_parts, const tv_packed_rows *parts, const int *part_N, int K,
                                      const tv_matrix *out, int *N, tv_err *err) {
    TV_TRY(check_parts(n_parts, parts, part_N, K, out, N, err));
    for (int i = 0; i < n_parts; i++) {
        if (!parts[i].q || !parts[i].scale)
            return TV_FAIL(err, TV_EARG, "matrix_load: q or scale of part %d is NULL", i);
        if ((parts[i].bits != 8 && parts[i].bits != 4) || parts[i].group < 1)
            return TV_FAIL(err, TV_EARG, "matrix_load: part %d has %d bits (must be 8 or 4) in groups of %d", i,
                           parts[i].bits, parts[i].group);
    }
    return TV_OK;
}
