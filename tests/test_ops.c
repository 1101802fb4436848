/* The row operations and log-probabilities of the CPU device: against plain references that round where
 * docs/numerics.md says, and scalar = vector code = any thread count, bit for bit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/tensor.h"
#include "kernels/cpu/isa.h"
#include "kernels/ops.h"
#include "tests/check.h"

enum { MAX_DEVS = 4 };
typedef struct {
    tv_dev *dev[MAX_DEVS]; /* the first is scalar with one thread */
    int n;
} devices;

static devices open_all(void) {
    static const tv_dev_options all[] = {{1, "scalar", 0}, {3, "scalar", 0}, {1, "avx2", 0}, {2, "auto", 0}};
    devices d = {0};
    for (int i = 0; i < MAX_DEVS; i++) {
        tv_err err = {0};
        if (tv_ops_cpu.open(&all[i], &d.dev[d.n], &err) == TV_OK)
            d.n++;
        else
            CHECK_INT(err.code, TV_EUNSUPPORTED);
    }
    CHECK(d.n >= 3);
    return d;
}

static void close_all(devices *d) {
    for (int i = 0; i < d->n; i++) tv_ops_cpu.close(d->dev[i]);
}

static int tables(const cpu_ops_isa *out[2]) {
    out[0] = &cpu_ops_scalar;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        out[1] = &cpu_ops_avx2;
        return 2;
    }
#endif
    return 1;
}

static tv_bf16 *normals(tv_rng *rng, size_t n, double scale, double mean) {
    tv_bf16 *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = tv_bf16_from_f32((float)(mean + scale * tv_rng_normal(rng)));
    return p;
}

static float value(tv_bf16 x) { return tv_f32_from_bf16(x); }

/* Counts bf16 results that are not the wanted number rounded, and fails beyond one step: a reference in f64 and an f32
 * computation may fall to two sides of a tie, rarely. */
static void check_rounded(const tv_bf16 *got, const double *want, size_t n, double allowed, const char *what) {
    size_t other = 0;
    for (size_t i = 0; i < n; i++) {
        float w = tv_round_bf16((float)want[i]);
        if (value(got[i]) == w) continue;
        other++;
        if (!(fabs(value(got[i]) - w) <= 0x1p-7 * fabs(w))) {
            char text[120];
            snprintf(text, sizeof text, "%s %zu: got %g, want %g", what, i, value(got[i]), want[i]);
            tv_check_true(0, text, __FILE__, __LINE__);
            return;
        }
    }
    if (!CHECK(other <= allowed * (double)n)) fprintf(stderr, "    %s: %zu of %zu differ\n", what, other, n);
}

/* The stores of both paths round as tv_bf16_from_f32 does: every upper half with lower halves around the tie; NaN with
 * the lower half that computing from bf16 gives. */
static void test_ops_rounding(void) {
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x4000, 0xc000};
    const cpu_ops_isa *table[2];
    for (int t = 0, n = tables(table); t < n; t++)
        for (uint32_t high = 0; high < 65536; high++) {
            float x[8];
            tv_bf16 got[8];
            int same = 1;
            for (int i = 0; i < 8; i++) {
                uint32_t u = high << 16 | low[i];
                memcpy(&x[i], &u, 4);
            }
            table[t]->finish(x, 1.0f, got, 8);
            for (int i = 0; i < 8; i++)
                same &= isnan(x[i]) ? low[i] || isnan(value(got[i])) : got[i] == tv_bf16_from_f32(x[i]);
            if (!CHECK(same)) break;
        }
}

/* exp: error over its whole range, exact ends, equal bits on both paths. */
static void test_ops_exp(void) {
    const cpu_ops_isa *table[2];
    int n = tables(table);
    double worst = 0;
    for (double x = 0; x > -87.336; x -= 0.00073) {
        float z = (float)x, got = table[0]->sum_exp(&z, 1, 0, 1);
        double off = fabs(got / exp(z) - 1);
        if (!(off <= worst)) worst = off;
        if (n == 2 && !CHECK(table[1]->sum_exp(&z, 1, 0, 1) == got)) break;
    }
    if (!CHECK(worst <= 1.2e-7)) fprintf(stderr, "    relative error %g\n", worst);
    for (int t = 0; t < n; t++) {
        const float zero = 0, below = -87.34f, least = -87.33f, nothing = -INFINITY, huge = -3e38f, nan = NAN;
        CHECK(table[t]->sum_exp(&zero, 1, 0, 1) == 1.0f);
        CHECK(table[t]->sum_exp(&below, 1, 0, 1) == 0.0f);
        CHECK(table[t]->sum_exp(&least, 1, 0, 1) >= 0x1p-126f);
        CHECK(table[t]->sum_exp(&nothing, 1, 0, 1) == 0.0f);
        CHECK(table[t]->sum_exp(&huge, 1, 0, 1) == 0.0f);
        CHECK(isnan(table[t]->sum_exp(&nan, 1, 0, 1)));
    }
}

static void test_ops_embed(void) {
    devices d = open_all();
    tv_rng rng = {1};
    enum { V = 11, D = 5, M = 4 };
    tv_bf16 *table = normals(&rng, V * D, 1, 0), out[M * D];
    int32_t ids[M] = {10, 0, 3, 3};
    tv_err err = {0};
    tv_embed_args a = {table, ids, out, M, V, D};
    for (int i = 0; i < d.n; i++) {
        memset(out, 0xca, sizeof out);
        CHECK_OK(tv_ops_cpu.embed(d.dev[i], &a, &err), &err);
        for (int m = 0; m < M; m++) CHECK_BYTES(out + m * D, table + ids[m] * D, D * sizeof *out);
    }
    ids[2] = V;
    CHECK_FAILS(tv_ops_cpu.embed(d.dev[0], &a, &err), TV_EARG, &err, "token id 11 at row 2");
    ids[2] = -1;
    CHECK_FAILS(tv_ops_cpu.embed(d.dev[0], &a, &err), TV_EARG, &err, "token id -1");
    free(table);
    close_all(&d);
}

/* Rounding before the weight (N01): weights of 1.01 and 3 show it. The residual added in place has the bits of adding
 * it by itself (N04); chosen rows, odd sizes. */
static void test_ops_rmsnorm(void) {
    static const int sizes[] = {1, 7, 8, 20, 31, 32, 33, 64, 100, 1000, 1024, 5120};
    devices d = open_all();
    tv_err err = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        enum { ROWS = 60, M = 50 };
        const int D = sizes[i];
        tv_rng rng = {i + 1};
        const float eps = 1e-6f;
        tv_bf16 *x = normals(&rng, (size_t)ROWS * D, 3, 0.2), *delta = normals(&rng, (size_t)ROWS * D, 1, 0);
        tv_bf16 *weight = normals(&rng, (size_t)D, 0.5, i % 2 ? 1.01 : 3);
        double *want = malloc(sizeof *want * M * (size_t)D);
        int32_t rows[M];
        for (int m = 0; m < M; m++) rows[m] = (m * 7 + 3) % ROWS;
        tv_bf16 *sum = malloc(sizeof *sum * ROWS * (size_t)D), *first = NULL;
        memcpy(sum, x, sizeof *sum * ROWS * (size_t)D);
        for (int m = 0; m < M; m++) {
            double square = 0;
            tv_bf16 *s = sum + (size_t)rows[m] * D;
            for (int j = 0; j < D; j++) {
                s[j] = tv_bf16_from_f32(value(s[j]) + value(delta[(size_t)rows[m] * D + j]));
                square += (double)value(s[j]) * value(s[j]);
            }
            for (int j = 0; j < D; j++)
                want[(size_t)m * D + j] =
                    (double)tv_round_bf16((float)(value(s[j]) / sqrt(square / D + eps))) * value(weight[j]);
        }
        for (int k = 0; k < d.n; k++) {
            tv_bf16 *in = malloc(sizeof *in * ROWS * (size_t)D), *out = malloc(sizeof *out * M * (size_t)D);
            memcpy(in, x, sizeof *in * ROWS * (size_t)D);
            tv_rmsnorm_args a = {in, delta, weight, rows, out, M, D, eps};
            CHECK_OK(tv_ops_cpu.rmsnorm(d.dev[k], &a, &err), &err);
            CHECK_BYTES(in, sum, sizeof *in * ROWS * (size_t)D); /* rows not chosen stay as they were */
            check_rounded(out, want, (size_t)M * D, 0.002, "rmsnorm");
            if (first) CHECK_BYTES(out, first, sizeof *out * M * (size_t)D);
            /* Without residual and choice: the same row gives the same bits. */
            tv_bf16 *plain = malloc(sizeof *plain * ROWS * (size_t)D);
            tv_rmsnorm_args b = {in, NULL, weight, NULL, plain, ROWS, D, eps};
            CHECK_OK(tv_ops_cpu.rmsnorm(d.dev[k], &b, &err), &err);
            for (int m = 0; m < M; m++)
                CHECK_BYTES(plain + (size_t)rows[m] * D, out + (size_t)m * D, sizeof *out * (size_t)D);
            free(plain), free(in);
            if (first)
                free(out);
            else
                first = out;
        }
        free(first), free(sum), free(want), free(weight), free(delta), free(x);
    }
    /* Zeros stay zeros, and a NaN stays visible. */
    tv_bf16 zero[8] = {0}, one[8], out[8];
    for (int j = 0; j < 8; j++) one[j] = tv_bf16_from_f32(1);
    tv_rmsnorm_args a = {zero, NULL, one, NULL, out, 1, 8, 1e-6f};
    CHECK_OK(tv_ops_cpu.rmsnorm(d.dev[0], &a, &err), &err);
    CHECK_BYTES(out, zero, sizeof out);
    zero[3] = 0x7fff;
    for (int k = 0; k < d.n; k++) {
        CHECK_OK(tv_ops_cpu.rmsnorm(d.dev[k], &a, &err), &err);
        CHECK(isnan(value(out[0])));
    }
    a.eps = 0;
    CHECK_FAILS(tv_ops_cpu.rmsnorm(d.dev[0], &a, &err), TV_EARG, &err, "eps");
    int32_t negative = -1;
    a.eps = 1e-6f, a.rows = &negative;
    CHECK_FAILS(tv_ops_cpu.rmsnorm(d.dev[0], &a, &err), TV_EARG, &err, "-1");
    close_all(&d);
}

/* Positions far out (N02), with and without q/k norm, several segments; every value against the rounding rule and
 * against the exact rotation; nothing but the step's own cache rows is written. */
static void test_ops_rope(void) {
    static const int sizes[] = {8, 16, 24, 64, 128};
    static const tv_segment segments[] = {
        {2, 3, 1, 15962}, {0, 0, 3, 254}, {1, 5, 1, 32767}, {3, 4, 1, 1000}, {4, 6, 30, 0}};
    enum { N = 5, M = 36, H = 4, G = 2, SLOTS = 5, S = 32768 };
    devices d = open_all();
    tv_err err = {0};
    for (size_t i = 0; i < 2 * (sizeof sizes / sizeof *sizes); i++) {
        const int HS = sizes[i / 2], half = HS / 2, norm = i % 2;
        tv_rng rng = {i + 50};
        tv_bf16 *qkv = normals(&rng, (size_t)M * (H + 2 * G) * HS, 1, 0);
        tv_bf16 *q_weight = normals(&rng, (size_t)HS, 0.3, 1), *k_weight = normals(&rng, (size_t)HS, 0.3, 1);
        tv_bf16 *cos_table = calloc((size_t)S * half, 2), *sin_table = calloc((size_t)S * half, 2);
        for (int n = 0; n < N; n++)
            for (int p = segments[n].pos; p < segments[n].pos + segments[n].n_rows; p++)
                for (int j = 0; j < half; j++) {
                    double angle = p * pow(1e6, -2.0 * j / HS);
                    cos_table[(size_t)p * half + j] = tv_bf16_from_f32((float)cos(angle));
                    sin_table[(size_t)p * half + j] = tv_bf16_from_f32((float)sin(angle));
                }
        size_t cache = (size_t)SLOTS * G * S * HS;
        tv_bf16 *first_q = NULL;
        for (int k = 0; k < d.n; k++) {
            tv_bf16 *q = malloc(sizeof *q * M * H * (size_t)HS);
            /* Untouched pages of a zeroed allocation cost nothing: the cache is large and nearly all unwritten. */
            tv_bf16 *ck = calloc(cache, 2), *cv = calloc(cache, 2);
            tv_rope_args a = {qkv,
                              norm ? q_weight : NULL,
                              norm ? k_weight : NULL,
                              cos_table,
                              sin_table,
                              q,
                              {.k = ck, .v = cv, .slots = SLOTS, .G = G, .S = S, .HS = HS},
                              segments,
                              N,
                              M,
                              H,
                              S,
                              1e-6f};
            CHECK_OK(tv_ops_cpu.rope(d.dev[k], &a, &err), &err);
            for (int n = 0; n < N && !first_q; n++)
                for (int r = 0; r < segments[n].n_rows; r++) {
                    int row = segments[n].row + r, p = segments[n].pos + r, off = 0;
                    for (int h = 0; h < H + 2 * G; h++) {
                        const tv_bf16 *x = qkv + ((size_t)row * (H + 2 * G) + h) * HS;
                        size_t at = (((size_t)segments[n].slot * G + (size_t)((h - H) % G)) * S + p) * HS;
                        const tv_bf16 *got = h < H ? q + ((size_t)row * H + h) * HS : h < H + G ? ck + at : cv + at;
                        if (h >= H + G) {
                            CHECK_BYTES(got, x, sizeof *x * (size_t)HS);
                            continue;
                        }
                        tv_bf16 normed[128];
                        if (norm) {
                            tv_rmsnorm_args b = {(tv_bf16 *)x, NULL, h < H ? q_weight : k_weight, NULL, normed, 1,
                                                 HS,           1e-6f};
                            CHECK_OK(tv_ops_cpu.rmsnorm(d.dev[0], &b, &err), &err);
                            x = normed;
                        }
                        for (int j = 0; j < half; j++) {
                            float c = value(cos_table[(size_t)p * half + j]),
                                  s = value(sin_table[(size_t)p * half + j]);
                            float u = value(x[j]), v = value(x[j + half]);
                            off |= got[j] != tv_bf16_from_f32(tv_round_bf16(u * c) + tv_round_bf16(-v * s));
                            off |= got[j + half] != tv_bf16_from_f32(tv_round_bf16(v * c) + tv_round_bf16(u * s));
                            double angle = p * pow(1e6, -2.0 * j / HS), size = fabs(u) + fabs(v);
                            off |= !(fabs(value(got[j]) - (u * cos(angle) - v * sin(angle))) <= 0x1p-6 * size);
                            off |= !(fabs(value(got[j + half]) - (v * cos(angle) + u * sin(angle))) <= 0x1p-6 * size);
                        }
                    }
                    if (!CHECK(!off)) break;
                }
            /* The neighbours of what was written. */
            for (int j = 0; j < HS; j++) {
                CHECK_INT(ck[((size_t)2 * G * S + 15961) * HS + j] | cv[((size_t)2 * G * S + 15963) * HS + j], 0);
                CHECK_INT(ck[(size_t)257 * HS + j] | cv[(size_t)253 * HS + j], 0);
            }
            if (first_q) {
                CHECK_BYTES(q, first_q, sizeof *q * M * H * (size_t)HS);
                free(q);
            } else {
                first_q = q;
            }
            free(ck), free(cv);
        }
        free(first_q), free(sin_table), free(cos_table), free(k_weight), free(q_weight), free(qkv);
    }
    close_all(&d);
}

/* N08: numbers below 2^-126 are numbers: sums, products and what they round to keep them, on every thread. */
static void test_ops_denormals(void) {
    enum { ROWS = 4096, D = 64 };
    devices d = open_all();
    tv_err err = {0};
    size_t size = (size_t)ROWS * D * sizeof(tv_bf16);
    tv_bf16 *x = malloc(size), *delta = malloc(size), *out = malloc(size), *gate_up = malloc(2 * size), weight[D];
    for (int j = 0; j < D; j++) weight[j] = tv_bf16_from_f32(1);
    for (int i = 0; i < ROWS * D; i++) {
        delta[i] = 3;
        gate_up[i / D * 2 * D + i % D] = tv_bf16_from_f32(40); /* silu(40) = 40 */
        gate_up[i / D * 2 * D + D + i % D] = 1;
    }
    for (int k = 0; k < d.n; k++) {
        int wrong = 0;
        for (int i = 0; i < ROWS * D; i++) x[i] = 33;
        tv_rmsnorm_args norm = {x, delta, weight, NULL, out, ROWS, D, 1e-6f};
        CHECK_OK(tv_ops_cpu.rmsnorm(d.dev[k], &norm, &err), &err);
        for (int i = 0; i < ROWS * D; i++) wrong += x[i] != 36 || !(value(out[i]) > 0);
        CHECK_INT(wrong, 0);
        tv_swiglu_args swiglu = {gate_up, out, ROWS, D};
        CHECK_OK(tv_ops_cpu.swiglu(d.dev[k], &swiglu, &err), &err);
        for (int i = 0; i < ROWS * D; i++) wrong += out[i] != 40;
        CHECK_INT(wrong, 0);
    }
    free(x), free(delta), free(out), free(gate_up);
    close_all(&d);
}

/* silu over its whole range, then the product; odd sizes. */
static void test_ops_swiglu(void) {
    static const int sizes[] = {1, 7, 8, 12, 333, 3072};
    devices d = open_all();
    tv_err err = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        enum { M = 40 };
        const int F = sizes[i];
        tv_rng rng = {i + 9};
        tv_bf16 *in = normals(&rng, (size_t)M * 2 * F, i % 2 ? 30 : 3, 0), *first = NULL;
        double *want = malloc(sizeof *want * M * (size_t)F);
        for (int m = 0; m < M; m++)
            for (int j = 0; j < F; j++) {
                double g = value(in[(size_t)m * 2 * F + j]);
                /* Below -87 the exponential is 0 by definition. */
                double silu = g < -87 ? -0.0 : tv_round_bf16((float)(g / (1 + exp(-g))));
                want[(size_t)m * F + j] = silu * value(in[(size_t)m * 2 * F + F + j]);
            }
        for (int k = 0; k < d.n; k++) {
            tv_bf16 *out = malloc(sizeof *out * M * (size_t)F);
            tv_swiglu_args a = {in, out, M, F};
            CHECK_OK(tv_ops_cpu.swiglu(d.dev[k], &a, &err), &err);
            check_rounded(out, want, (size_t)M * F, 0.002, "swiglu");
            if (first) {
                CHECK_BYTES(out, first, sizeof *out * M * (size_t)F);
                free(out);
            } else {
                first = out;
            }
        }
        free(first), free(want), free(in);
    }
    close_all(&d);
}

typedef struct {
    int M, V, k;
    float *logits, *topk_logprobs, *token_logprob;
    int32_t *token, *topk_ids, *token_rank, *bad;
} rows;

static rows rows_new(int M, int V, int k) {
    return (rows){M,
                  V,
                  k,
                  malloc(sizeof(float) * M * (size_t)V),
                  malloc(sizeof(float) * M * (size_t)k),
                  malloc(sizeof(float) * (size_t)M),
                  malloc(4 * (size_t)M),
                  malloc(4 * (size_t)M * (size_t)k),
                  malloc(4 * (size_t)M),
                  malloc(4 * (size_t)M)};
}
static void rows_free(rows *r) {
    free(r->logits), free(r->topk_logprobs), free(r->token_logprob);
    free(r->token), free(r->topk_ids), free(r->token_rank), free(r->bad);
}
static void rows_run(tv_dev *dev, rows *r, float temperature, const int32_t *suppressed, int n_suppressed) {
    tv_err err = {0};
    memset(r->topk_logprobs, 0xca, sizeof(float) * r->M * (size_t)r->k);
    memset(r->topk_ids, 0xca, 4 * r->M * (size_t)r->k);
    memset(r->token_logprob, 0xca, 4 * (size_t)r->M), memset(r->token_rank, 0xca, 4 * (size_t)r->M);
    memset(r->bad, 0xca, 4 * (size_t)r->M);
    tv_logprobs_args a = {
        r->logits, suppressed, r->token, r->topk_ids, r->topk_logprobs, r->token_logprob, r->token_rank,
        r->bad,    r->M,       r->V,     r->k,        n_suppressed,     temperature};
    CHECK_OK(tv_ops_cpu.logprobs(dev, &a, &err), &err);
}
static int rows_differ(const rows *a, const rows *b) {
    size_t k = sizeof(float) * a->M * (size_t)a->k, m = 4 * (size_t)a->M;
    return memcmp(a->topk_logprobs, b->topk_logprobs, k) || memcmp(a->topk_ids, b->topk_ids, k) ||
           memcmp(a->token_logprob, b->token_logprob, m) || memcmp(a->token_rank, b->token_rank, m) ||
           memcmp(a->bad, b->bad, m);
}

/* One row against f64: values, descending order with ties by lowest id, membership, token and rank. Returns the largest
 * error in units of max(1, |log p|). */
static double check_logprobs_row(const rows *r, int m, double temperature) {
    const float *z = r->logits + (size_t)m * r->V, *got = r->topk_logprobs + (size_t)m * r->k;
    const int32_t *ids = r->topk_ids + (size_t)m * r->k;
    double max = -INFINITY, sum = 0, worst = 0;
    for (int i = 0; i < r->V; i++)
        if (z[i] > max) max = z[i];
    for (int i = 0; i < r->V; i++) sum += exp((z[i] - max) / temperature);
    int ok = r->bad[m] == 0, last = -1, rank = 0;
    for (int j = 0; j < r->k; j++) {
        /* The next one in order, by looking at all of them. */
        int next = -1;
        for (int i = 0; i < r->V; i++) {
            int after = last < 0 || z[i] < z[last] || (z[i] == z[last] && i > last);
            if (after && z[i] > -INFINITY && (next < 0 || z[i] > z[next])) next = i;
        }
        ok &= ids[j] == next;
        if (next < 0) {
            ok &= got[j] == -INFINITY;
            continue;
        }
        double want = (z[next] - max) / temperature - log(sum), off = fabs(got[j] - want) / fmax(1, fabs(want));
        if (!(off <= worst)) worst = off;
        last = next;
    }
    int t = r->token[m];
    if (t >= 0) {
        for (int i = 0; i < r->V; i++) rank += z[i] > z[t] || (z[i] == z[t] && i < t);
        ok &= r->token_rank[m] == rank;
        double want = (z[t] - max) / temperature - log(sum);
        if (want == -INFINITY) {
            ok &= r->token_logprob[m] == -INFINITY;
        } else {
            double off = fabs(r->token_logprob[m] - want) / fmax(1, fabs(want));
            if (!(off <= worst)) worst = off;
        }
        if (rank < r->k && z[t] > -INFINITY) ok &= ids[rank] == t && got[rank] == r->token_logprob[m];
    } else {
        ok &= r->token_rank[m] == -1 && r->token_logprob[m] == -INFINITY;
    }
    CHECK(ok);
    return worst;
}

/* Vocabularies around every block edge, temperatures, logits rounded to bf16 (many ties) or not, all devices alike. */
static void test_ops_logprobs(void) {
    static const int sizes[] = {1, 2, 7, 8, 9, 31, 32, 33, 63, 511, 512, 513, 1025, 2500, 5000};
    static const float temperatures[] = {1, 0.6f, 2.5f, 0.01f};
    devices d = open_all();
    double worst = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int t = 0; t < 4; t++) {
            enum { M = 6 };
            int V = sizes[i], k = t == 0 ? (V < 128 ? V : 128) : V < 20 ? V : 20;
            rows r = rows_new(M, V, k), first = rows_new(M, V, k);
            tv_rng rng = {i * 10 + (size_t)t + 1};
            for (size_t j = 0; j < (size_t)M * V; j++) {
                double z = 4 * tv_rng_normal(&rng);
                r.logits[j] = t % 2 ? (float)z : tv_round_bf16((float)z);
            }
            for (int m = 0; m < M; m++)
                r.token[m] = first.token[m] = m == 0   ? -1
                                              : m == 1 ? 0
                                              : m == 2 ? V - 1
                                                       : (int)(tv_rng_next(&rng) % (unsigned)V);
            memcpy(first.logits, r.logits, sizeof(float) * M * (size_t)V);
            rows_run(d.dev[0], &first, temperatures[t], NULL, 0);
            for (int m = 0; m < M; m++) {
                double off = check_logprobs_row(&first, m, temperatures[t]);
                if (!(off <= worst)) worst = off;
            }
            for (int k2 = 1; k2 < d.n; k2++) {
                rows_run(d.dev[k2], &r, temperatures[t], NULL, 0);
                CHECK(!rows_differ(&r, &first));
            }
            rows_free(&r), rows_free(&first);
        }
    if (!CHECK(worst <= 4e-7)) fprintf(stderr, "    largest error %g\n", worst);
    close_all(&d);
}

/* A full vocabulary: error of the sum over 151,936 logits, and of a flat row where every term counts. */
static void test_ops_logprobs_large(void) {
    devices d = open_all();
    rows r = rows_new(2, 151936, 20), s = rows_new(2, 151936, 20);
    tv_rng rng = {77};
    for (int i = 0; i < r.V; i++) {
        r.logits[i] = (float)(3 * tv_rng_normal(&rng));
        r.logits[r.V + i] = (float)(1e-3 * tv_rng_normal(&rng));
    }
    r.token[0] = s.token[0] = 151935, r.token[1] = s.token[1] = 70000;
    memcpy(s.logits, r.logits, sizeof(float) * 2 * (size_t)r.V);
    rows_run(d.dev[0], &r, 0.7f, NULL, 0);
    rows_run(d.dev[d.n - 1], &s, 0.7f, NULL, 0);
    CHECK(!rows_differ(&r, &s));
    for (int m = 0; m < 2; m++) {
        double off = check_logprobs_row(&r, m, 0.7f);
        if (!CHECK(off <= 4e-7)) fprintf(stderr, "    row %d: error %g\n", m, off);
    }
    rows_free(&r), rows_free(&s);
    close_all(&d);
}

/* The order of the sum as docs/numerics.md states it, written as a recursion over blocks. */
static float block_sum(const float *z, int n) {
    float chain[4][8] = {{0}}, c[8];
    for (int i = 0; i < n; i++) chain[i / 8 % 4][i % 8] += cpu_ops_scalar.sum_exp(&z[i], 1, 0, 1);
    for (int l = 0; l < 8; l++) c[l] = (chain[0][l] + chain[1][l]) + (chain[2][l] + chain[3][l]);
    return ((c[0] + c[4]) + (c[2] + c[6])) + ((c[1] + c[5]) + (c[3] + c[7]));
}
static void test_ops_sum_order(void) {
    static const int sizes[] = {5, 511, 513, 1500, 2049, 3600, 6000};
    const cpu_ops_isa *table[2];
    int n_tables = tables(table);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int V = sizes[i], n = (V + 511) / 512;
        float *z = malloc(sizeof *z * (size_t)V), level[16];
        tv_rng rng = {i};
        for (int j = 0; j < V; j++) z[j] = (float)(-fabs(5 * tv_rng_normal(&rng)));
        for (int b = 0; b < n; b++) level[b] = block_sum(z + 512 * b, V - 512 * b < 512 ? V - 512 * b : 512);
        for (; n > 1; n = (n + 1) / 2)
            for (int b = 0; b < n; b += 2) level[b / 2] = b + 1 < n ? level[b] + level[b + 1] : level[b];
        for (int t = 0; t < n_tables; t++) CHECK(table[t]->sum_exp(z, V, 0, 1) == level[0]);
        free(z);
    }
}

/* Ties everywhere, descending and ascending rows, one finite logit, suppressed ids (repeated, and the best one), T near
 * 0; in long rows, too, which are scanned from a floor on. */
static void test_ops_logprobs_ties(void) {
    devices d = open_all();
    for (int run = 0; run < 2 * d.n; run++) {
        const int dev = run / 2, V = run % 2 ? 2500 : 300, last = V - 1;
        rows r = rows_new(5, V, 40);
        for (int i = 0; i < V; i++) {
            r.logits[i] = 1.5f;
            r.logits[V + i] = (float)i;
            r.logits[2 * V + i] = (float)-i;
            r.logits[3 * V + i] = i == last ? 2 : -INFINITY;
            r.logits[4 * V + i] = (float)(i % 3);
        }
        for (int m = 0; m < 5; m++) r.token[m] = 50 * m + 51;
        const int32_t suppressed[] = {last, 2, last, 5};
        rows_run(d.dev[dev], &r, 1, NULL, 0);
        for (int m = 0; m < 5; m++) CHECK(check_logprobs_row(&r, m, 1) <= 4e-7);
        CHECK_INT(r.topk_ids[39], 39);
        CHECK_INT(r.topk_ids[40], last);
        CHECK_INT(r.topk_ids[3 * 40], last);
        CHECK(r.topk_logprobs[3 * 40] == 0);
        CHECK_INT(r.topk_ids[3 * 40 + 1], -1); /* absent: no probability, no id */
        CHECK_INT(r.topk_ids[4 * 40 + 1], 5);
        rows_run(d.dev[dev], &r, 1, suppressed, 4);
        for (int m = 0; m < 5; m++)
            if (m != 3) CHECK(check_logprobs_row(&r, m, 1) <= 4e-7);
        CHECK_INT(r.topk_ids[40], last - 1);
        CHECK_INT(r.topk_ids[4 * 40], 8);
        CHECK_INT(r.bad[3], 1); /* the only finite logit is suppressed */
        CHECK_INT(r.topk_ids[3 * 40], -1);
        CHECK(r.logits[2] == -INFINITY && r.logits[last] == -INFINITY);
        r.token[1] = last - 1, r.token[2] = 0;
        rows_run(d.dev[dev], &r, 1e-45f, NULL, 0); /* M01: counts as 0 */
        CHECK(r.topk_logprobs[0] == 0 && r.topk_logprobs[1] == -INFINITY && r.topk_ids[0] == 0 && r.topk_ids[1] == -1);
        CHECK(r.token_logprob[0] == -INFINITY && r.token_logprob[1] == 0 && r.token_logprob[2] == 0);
        rows_free(&r);
    }
    close_all(&d);
}

/* M03, L07: one row of each kind side by side; the good rows have the bits they have alone. A NaN or +inf is found at
 * every index, whichever vector or tail it falls in, also where the id is suppressed. */
static void test_ops_logprobs_bad(void) {
    devices d = open_all();
    for (int run = 0; run < 2 * d.n; run++) {
        enum { K = 5, LONGEST = 2055 };
        const int dev = run / 2, V = run % 2 ? LONGEST : 77;
        rows one = rows_new(1, V, K);
        tv_rng rng = {5};
        float z[LONGEST];
        for (int i = 0; i < V; i++) z[i] = (float)tv_rng_normal(&rng);
        one.token[0] = 40;
        memcpy(one.logits, z, (size_t)V * sizeof *z);
        rows_run(d.dev[dev], &one, 1, NULL, 0);
        for (int i = 0; i < V; i++)
            for (int kind = 0; kind < 3; kind++) {
                rows r = rows_new(3, V, K);
                for (int m = 0; m < 3; m++) memcpy(r.logits + m * V, z, (size_t)V * sizeof *z), r.token[m] = 40;
                r.logits[V + i] = kind == 0 ? NAN : kind == 1 ? INFINITY : -NAN;
                rows_run(d.dev[dev], &r, 1, NULL, 0);
                CHECK_INT(r.bad[1], 1);
                CHECK_INT(r.topk_ids[K], -1);
                CHECK(r.topk_logprobs[K] == -INFINITY && r.token_logprob[1] == -INFINITY && r.token_rank[1] == -1);
                for (int m = 0; m < 3; m += 2) {
                    CHECK_INT(r.bad[m], 0);
                    CHECK_BYTES(r.topk_logprobs + m * K, one.topk_logprobs, K * sizeof(float));
                    CHECK_BYTES(r.topk_ids + m * K, one.topk_ids, K * sizeof(int32_t));
                    CHECK(r.token_logprob[m] == one.token_logprob[0] && r.token_rank[m] == one.token_rank[0]);
                }
                rows_free(&r);
            }
        const int32_t suppressed = 9;
        memcpy(one.logits, z, (size_t)V * sizeof *z);
        one.logits[9] = NAN;
        rows_run(d.dev[dev], &one, 1, &suppressed, 1);
        CHECK_INT(one.bad[0], 1);
        rows_free(&one);
    }
    close_all(&d);
}

static void test_ops_logprobs_refuses(void) {
    devices d = open_all();
    tv_err err = {0};
    float logits[8] = {0}, logprobs[4], token_logprob[1];
    int32_t ids[4], token[1] = {8}, rank[1], bad[1], suppressed[1] = {-1};
    tv_logprobs_args a = {logits, NULL, token, ids, logprobs, token_logprob, rank, bad, 1, 8, 4, 0, 1};
    CHECK_FAILS(tv_ops_cpu.logprobs(d.dev[0], &a, &err), TV_EARG, &err, "token 8 of row 0");
    token[0] = -2;
    CHECK_FAILS(tv_ops_cpu.logprobs(d.dev[0], &a, &err), TV_EARG, &err, "token -2");
    token[0] = -1, a.suppressed = suppressed, a.n_suppressed = 1;
    CHECK_FAILS(tv_ops_cpu.logprobs(d.dev[0], &a, &err), TV_EARG, &err, "suppressed id -1");
    suppressed[0] = 8;
    CHECK_FAILS(tv_ops_cpu.logprobs(d.dev[0], &a, &err), TV_EARG, &err, "suppressed id 8");
    const float temperatures[] = {0, -1, NAN, INFINITY};
    a.n_suppressed = 0;
    for (int i = 0; i < 4; i++) {
        a.temperature = temperatures[i];
        CHECK_FAILS(tv_ops_cpu.logprobs(d.dev[0], &a, &err), TV_EARG, &err, "temperature");
    }
    close_all(&d);
}

static uint64_t hash_bytes(uint64_t hash, const void *p, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char *)p)[i]) * 1099511628211u;
    return hash;
}

/* The bits of another machine: what an x86-64 with AVX2 computed, aarch64 and baseline code must compute too. Inputs
 * come from integers; of the mathematical library only sqrtf (exact everywhere) and one f64 log per row, rounded to
 * f32, take part. */
static void test_ops_bits_across_machines(void) {
    enum { M = 3, D = 172, H = 1, G = 1, V = 3001, K = 50 };
    static const uint64_t want[4] = {0x52795f752f9165a3, 0xfec9e23ce4b15ae9, 0xe9d764920bc442ce, 0x2887dfba15ab1912};
    devices d = open_all();
    tv_err err = {0};
    tv_rng rng = {99};
    tv_bf16 x[M * 4 * D], weight[D], out[M * D], k[8 * D] = {0}, v[8 * D] = {0};
    tv_segment s = {0, 0, M, 2};
    rows r = rows_new(M, V, K);
    for (int i = 0; i < M * 4 * D; i++)
        x[i] = tv_bf16_from_f32((float)((int)(tv_rng_next(&rng) >> 40 & 4095) - 2048) / 256);
    for (int i = 0; i < D; i++) weight[i] = tv_bf16_from_f32((float)((int)(tv_rng_next(&rng) >> 40 & 255) + 1) / 128);
    for (int i = 0; i < M * V; i++) r.logits[i] = (float)((int)(tv_rng_next(&rng) >> 40 & 0xffff) - 32768) / 3000;
    for (int m = 0; m < M; m++) r.token[m] = 1000 * m + 7;
    for (int i = 0; i < d.n; i++) {
        uint64_t hash[4] = {1, 2, 3, 4};
        tv_rmsnorm_args norm = {x, NULL, weight, NULL, out, M, D, 1e-6f};
        CHECK_OK(tv_ops_cpu.rmsnorm(d.dev[i], &norm, &err), &err);
        hash[0] = hash_bytes(hash[0], out, sizeof out);
        tv_rope_args rope = {
            x,  weight, weight, x + D, x + 5 * D, out,  {.k = k, .v = v, .slots = 1, .G = G, .S = 8, .HS = D},
            &s, 1,      M,      H,     5,         1e-6f};
        CHECK_OK(tv_ops_cpu.rope(d.dev[i], &rope, &err), &err);
        hash[1] = hash_bytes(hash_bytes(hash_bytes(hash[1], out, sizeof out), k, sizeof k), v, sizeof v);
        tv_swiglu_args swiglu = {x, out, M, D};
        CHECK_OK(tv_ops_cpu.swiglu(d.dev[i], &swiglu, &err), &err);
        hash[2] = hash_bytes(hash[2], out, sizeof out);
        rows_run(d.dev[i], &r, 0.7f, NULL, 0);
        hash[3] = hash_bytes(hash[3], r.topk_logprobs, sizeof(float) * M * K);
        hash[3] =
            hash_bytes(hash_bytes(hash[3], r.topk_ids, sizeof(int32_t) * M * K), r.token_logprob, sizeof(float) * M);
        for (int j = 0; j < 4; j++)
            if (!CHECK(hash[j] == want[j])) fprintf(stderr, "    %d: %#llx\n", j, (unsigned long long)hash[j]);
    }
    rows_free(&r);
    close_all(&d);
}

static const tv_test tests[] = {
    {"ops_rounding", test_ops_rounding},
    {"ops_exp", test_ops_exp},
    {"ops_embed", test_ops_embed},
    {"ops_rmsnorm", test_ops_rmsnorm},
    {"ops_rope", test_ops_rope},
    {"ops_denormals", test_ops_denormals},
    {"ops_swiglu", test_ops_swiglu},
    {"ops_logprobs", test_ops_logprobs},
    {"ops_logprobs_large", test_ops_logprobs_large},
    {"ops_sum_order", test_ops_sum_order},
    {"ops_logprobs_ties", test_ops_logprobs_ties},
    {"ops_logprobs_bad", test_ops_logprobs_bad},
    {"ops_bits_across_machines", test_ops_bits_across_machines},
    {"ops_logprobs_refuses", test_ops_logprobs_refuses},
};
TV_TEST_MAIN(tests)
