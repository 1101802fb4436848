/* Mixture of experts on the CPU device: routing, and experts' sums in the order and rounding of the reference. */
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/cpu/linear.h"

static tv_dev *open_dev(int threads) {
    tv_err err = {0};
    tv_dev *dev = NULL;
    CHECK_OK(cpu_dev_open(&(tv_dev_options){.threads = threads}, &dev, &err), &err);
    return dev;
}

static void route(const tv_bf16 *logits, int M, int E, int used, int norm, int32_t *ids, tv_bf16 *weights) {
    tv_err err = {0};
    tv_dev *dev = open_dev(2);
    tv_moe_route_args a = {
        .logits = logits, .ids = ids, .weights = weights, .M = M, .E = E, .used = used, .norm = norm};
    CHECK_OK(cpu_moe_route(dev, &a, &err), &err);
    cpu_dev_close(dev);
}

/* Against f64: the chosen experts are the largest, descending, and the weights are the probabilities to a bf16
 * rounding, with and without renormalisation. */
static void test_route_against_f64(void) {
    enum { M = 700, E = 37, USED = 5 };
    tv_rng rng = {1};
    tv_bf16 *logits = tv_xmalloc(sizeof(tv_bf16) * M * E), *weights = tv_xmalloc(sizeof(tv_bf16) * M * USED);
    int32_t *ids = tv_xmalloc(sizeof(int32_t) * M * USED);
    for (int i = 0; i < M * E; i++) logits[i] = tv_bf16_from_f32((float)tv_rng_normal(&rng) * 3);
    for (int norm = 0; norm < 2; norm++) {
        route(logits, M, E, USED, norm, ids, weights);
        int right = 1;
        for (int m = 0; m < M; m++) {
            const tv_bf16 *z = logits + m * E;
            double sum = 0, top = 0;
            for (int e = 0; e < E; e++) sum += exp(tv_f32_from_bf16(z[e]));
            for (int i = 0; i < USED; i++) top += exp(tv_f32_from_bf16(z[ids[m * USED + i]])) / sum;
            for (int i = 0; i < USED; i++) {
                int e = ids[m * USED + i], larger = 0;
                /* Exactly i experts come before it: a larger logit, or the same and a lower index. */
                for (int o = 0; o < E; o++) {
                    float a = tv_f32_from_bf16(z[o]), b = tv_f32_from_bf16(z[e]);
                    larger += a > b || (a == b && o < e);
                }
                double want = exp(tv_f32_from_bf16(z[e])) / sum / (norm ? top : 1);
                right &= larger == i && fabs(tv_f32_from_bf16(weights[m * USED + i]) - want) <= want * (0x1p-8 + 1e-5);
            }
        }
        CHECK(right);
    }
    free(logits);
    free(weights);
    free(ids);
}

/* Ties go to the lowest index; one expert with norm gets all; a NaN still gives distinct indices in range. */
static void test_route_ties(void) {
    enum { E = 6 };
    tv_bf16 logits[E], weights[E];
    int32_t ids[E];
    for (int e = 0; e < E; e++) logits[e] = tv_bf16_from_f32(e == 4 ? 2 : 1);
    route(logits, 1, E, 4, 0, ids, weights);
    CHECK(ids[0] == 4 && ids[1] == 0 && ids[2] == 1 && ids[3] == 2);
    route(logits, 1, E, 1, 1, ids, weights);
    CHECK_INT(ids[0], 4);
    CHECK_NEAR(tv_f32_from_bf16(weights[0]), 1, 0);
    for (int bad = 0; bad < 3; bad++) {
        int seen[E] = {0};
        for (int e = 0; e < E; e++) logits[e] = bad == 2 || e == bad ? 0x7fc0 : tv_bf16_from_f32((float)e);
        route(logits, 1, E, E, 1, ids, weights);
        for (int i = 0; i < E; i++)
            if (CHECK(ids[i] >= 0 && ids[i] < E)) seen[ids[i]]++;
        for (int e = 0; e < E; e++) CHECK_INT(seen[e], 1);
    }
}

enum { D = 40, F = 24, E = 5, USED = 2, MOST = 40 };

typedef struct {
    tv_dev *dev;
    tv_matrix gate_up[E], down[E];
    tv_bf16 *x, *weights; /* [MOST,D], [MOST,USED] */
    int32_t ids[MOST * USED];
    void *scratch;
    size_t scratch_bytes;
} layer;

static layer make(int threads) {
    layer l = {.dev = open_dev(threads)};
    tv_err err = {0};
    tv_rng rng = {9};
    tv_bf16 *w = tv_xmalloc(sizeof *w * 2 * F * D);
    for (int e = 0; e < E; e++)
        for (int part = 0; part < 2; part++) {
            for (int i = 0; i < 2 * F * D; i++) w[i] = tv_bf16_from_f32((float)tv_rng_normal(&rng) * 0.3f);
            int N = part ? D : 2 * F, K = part ? F : D;
            CHECK_OK(
                cpu_matrix_load(l.dev, 1, (const void *[]){w}, &N, NULL, K, part ? &l.down[e] : &l.gate_up[e], &err),
                &err);
        }
    free(w);
    l.x = tv_xmalloc(sizeof *l.x * MOST * D);
    l.weights = tv_xmalloc(sizeof *l.weights * MOST * USED);
    for (int i = 0; i < MOST * D; i++) l.x[i] = tv_bf16_from_f32((float)tv_rng_normal(&rng));
    for (int i = 0; i < MOST * USED; i++) l.weights[i] = tv_bf16_from_f32((float)tv_rng_uniform(&rng));
    l.scratch_bytes = cpu_moe_scratch_bytes(MOST, D, F, USED);
    CHECK_OK(cpu_alloc(l.dev, l.scratch_bytes, &l.scratch, &err), &err);
    return l;
}

static void drop(layer *l) {
    for (int e = 0; e < E; e++) cpu_matrix_free(l->dev, &l->gate_up[e]), cpu_matrix_free(l->dev, &l->down[e]);
    cpu_free(l->dev, l->scratch, l->scratch_bytes);
    CHECK_INT(l->dev->allocated, 0);
    cpu_dev_close(l->dev);
    free(l->x);
    free(l->weights);
}

static tv_moe_args args(layer *l, int row, int M, tv_reduction reduction, tv_bf16 *out) {
    return (tv_moe_args){.x = l->x + row * D,
                         .ids = l->ids + row * USED,
                         .weights = l->weights + row * USED,
                         .gate_up = l->gate_up,
                         .down = l->down,
                         .out = out,
                         .scratch = l->scratch,
                         .M = M,
                         .D = D,
                         .F = F,
                         .E = E,
                         .used = USED,
                         .plan = {reduction, 132}};
}

/* One row by the book: each expert alone, ascending, every product and partial sum rounded to bf16. */
static void by_the_book(layer *l, int m, tv_bf16 *out) {
    tv_err err = {0};
    memset(out, 0, sizeof *out * D);
    for (int e = 0; e < E; e++)
        for (int i = 0; i < USED; i++) {
            if (l->ids[m * USED + i] != e) continue;
            tv_bf16 gate_up[2 * F], act[F], y[D];
            tv_linear_args up = {.x = l->x + m * D, .w = &l->gate_up[e], .y = gate_up, .M = 1, .plan = {1, D}};
            tv_linear_args down = {.x = act, .w = &l->down[e], .y = y, .M = 1, .plan = {1, F}};
            CHECK_OK(cpu_linear(l->dev, &up, &err), &err);
            CHECK_OK(cpu_swiglu(l->dev, &(tv_swiglu_args){.gate_up = gate_up, .out = act, .M = 1, .F = F}, &err), &err);
            CHECK_OK(cpu_linear(l->dev, &down, &err), &err);
            float weight = tv_f32_from_bf16(l->weights[m * USED + i]);
            for (int d = 0; d < D; d++) {
                float product = tv_round_bf16(weight * tv_f32_from_bf16(y[d]));
                out[d] = tv_bf16_from_f32(tv_f32_from_bf16(out[d]) + product);
            }
        }
}

/* Routings that broke other engines (E06; E05: weights are applied behind down_proj): an expert without tokens, all
 * tokens to the same experts, more routed rows than 32, and an ordinary mixture in both orders of choice. Under `fixed`
 * a row is the same alone, in any batch, with any threads. */
static void test_moe_routings(void) {
    for (int threads = 1; threads <= 2; threads++)
        for (int kind = 0; kind < 3; kind++) {
            layer l = make(threads);
            for (int m = 0; m < MOST; m++) {
                int a, b;
                if (kind == 0)
                    a = m % E, b = (a + 1 + m / E % (E - 1)) % E; /* every pair */
                else if (kind == 1)
                    a = 3, b = 1; /* the same two for all */
                else
                    a = m % 2 ? 4 : 0, b = 2; /* experts 1 and 3 see no token */
                l.ids[m * USED] = m % 3 ? a : b;
                l.ids[m * USED + 1] = m % 3 ? b : a;
            }
            tv_bf16 want[MOST * D], got[MOST * D];
            tv_err err = {0};
            for (int m = 0; m < MOST; m++) by_the_book(&l, m, want + m * D);
            static const int batches[] = {1, 2, 17, MOST};
            for (int b = 0; b < 4; b++)
                for (int row = 0; row + batches[b] <= MOST; row += batches[b]) {
                    memset(got, 0xca, sizeof got);
                    memset(l.scratch, 0xca, l.scratch_bytes); /* nothing is read before it is written */
                    tv_moe_args a = args(&l, row, batches[b], TV_REDUCE_FIXED, got);
                    CHECK_OK(cpu_moe(l.dev, &a, &err), &err);
                    if (!CHECK_BYTES(got, want + row * D, sizeof *got * D * batches[b]))
                        printf("  routing %d, batch %d at row %d\n", kind, batches[b], row);
                }
            drop(&l);
        }
}

/* Experts that no row is routed to are not read: their weights may be poison. */
static void test_moe_touches_routed_only(void) {
    layer l = make(1);
    tv_bf16 want[MOST * D], got[MOST * D];
    tv_err err = {0};
    for (int m = 0; m < MOST; m++) l.ids[m * USED] = 1, l.ids[m * USED + 1] = 3;
    tv_moe_args a = args(&l, 0, MOST, TV_REDUCE_SERVING, want);
    CHECK_OK(cpu_moe(l.dev, &a, &err), &err);
    void *kept[3] = {l.gate_up[0].data, l.gate_up[2].data, l.gate_up[4].data};
    for (int i = 0; i < 3; i++) l.gate_up[2 * i].data = (void *)64; /* a read would fault */
    a.out = got;
    CHECK_OK(cpu_moe(l.dev, &a, &err), &err);
    CHECK_BYTES(got, want, sizeof want);
    for (int i = 0; i < 3; i++) l.gate_up[2 * i].data = kept[i];
    drop(&l);
}

/* Bad arguments, and an expert index that no expert has. */
static void test_moe_refuses(void) {
    layer l = make(1);
    tv_bf16 out[MOST * D];
    tv_err err = {0};
    memset(l.ids, 0, sizeof l.ids);
    const tv_moe_args good = args(&l, 0, MOST, TV_REDUCE_FIXED, out);
    tv_moe_args a = good;
    l.ids[3] = E;
    CHECK_FAILS(cpu_moe(l.dev, &a, &err), TV_EARG, &err, "moe: row 1 names expert 5, with E=5");
    l.ids[3] = -1;
    CHECK_FAILS(cpu_moe(l.dev, &a, &err), TV_EARG, &err, "expert -1");
    l.ids[3] = 0;
    a = good, a.M = 0;
    CHECK_FAILS(cpu_moe(l.dev, &a, &err), TV_EARG, &err, "moe: M=0");
    a = good, a.used = E + 1;
    CHECK_FAILS(cpu_moe(l.dev, &a, &err), TV_EARG, &err, "moe: used=6 must be in 1 .. 5");
    a = good, a.F = F + 1;
    CHECK_FAILS(cpu_moe(l.dev, &a, &err), TV_EARG, &err,
                "moe: expert 0 has gate_up 48 x 40 and down 40 x 24, with D=40 and F=25");
    a = good, a.scratch = NULL;
    CHECK_FAILS(cpu_moe(l.dev, &a, &err), TV_EARG, &err, "moe: scratch is NULL");
    a = good, a.plan.units = 0;
    CHECK_FAILS(cpu_moe(l.dev, &a, &err), TV_EARG, &err, "plan.units=0");
    tv_moe_route_args r = {.logits = out, .ids = l.ids, .weights = l.weights, .M = 1, .E = 2, .used = 3};
    CHECK_FAILS(cpu_moe_route(l.dev, &r, &err), TV_EARG, &err, "moe_route: used=3 must be in 1 .. 2");
    drop(&l);
}

static const tv_test tests[] = {
    {"route_against_f64", test_route_against_f64},
    {"route_ties", test_route_ties},
    {"moe_routings", test_moe_routings},
    {"moe_touches_routed_only", test_moe_touches_routed_only},
    {"moe_refuses", test_moe_refuses},
};
TV_TEST_MAIN(tests)
