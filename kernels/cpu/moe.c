/* Mixture of experts: the router, and the experts' products grouped by expert so that only routed experts are read.
 *
 * NUMERICS: a row's result depends on the other rows only through the plan of each product (rows per expert). */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* Softmax in f32 over all E in ascending order, the largest `used` of the probabilities (lowest index on ties) or the
 * given ones, divided by their sum in that order when norm, rounded to bf16. */
static void route(const tv_bf16 *logits, int E, int used, int norm, const int32_t *given, float *p, int32_t *ids,
                  tv_bf16 *weights) {
    float max = -INFINITY, sum = 0;
    for (int e = 0; e < E; e++) {
        p[e] = tv_f32_from_bf16(logits[e]);
        if (p[e] > max) max = p[e];
    }
    for (int e = 0; e < E; e++) {
        /* exp in double and one rounding: the same f32 from any libm whose exp is good to a few ulp. */
        p[e] = (float)exp((double)(p[e] - max));
        sum += p[e];
    }
    for (int e = 0; e < E; e++) p[e] /= sum;
    float top = 0;
    for (int i = 0; i < used; i++) {
        /* Probabilities taken are marked -1 and NaN compares with nothing: the first free index stands in, so that ids
         * are distinct and in range whatever the logits. */
        int best = given ? given[i] : -1;
        for (int e = 0; e < E && !given; e++)
            if (p[e] != -1 && (best < 0 || p[e] > p[best])) best = e;
        ids[i] = best;
        top += p[best];
        weights[i] = tv_bf16_from_f32(p[best]);
        p[E + i] = p[best];
        if (!given) p[best] = -1;
    }
    if (norm)
        for (int i = 0; i < used; i++) weights[i] = tv_bf16_from_f32(p[E + i] / top);
}

typedef struct {
    const tv_moe_route_args *a;
    float *scratch; /* [threads,E+used] f32 */
} routing;

static void route_rows(void *ctx, int worker, int begin, int end) {
    const routing *job = ctx;
    const tv_moe_route_args *a = job->a;
    float *p = job->scratch + (size_t)worker * (a->E + a->used);
    for (int m = begin; m < end; m++)
        route(a->logits + (size_t)m * a->E, a->E, a->used, a->norm, a->given ? a->given + (size_t)m * a->used : NULL, p,
              a->ids + (size_t)m * a->used, a->weights + (size_t)m * a->used);
}

tv_status cpu_moe_route(tv_dev *dev, const tv_moe_route_args *a, tv_err *err) {
    TV_TRY(tv_check_moe_route(a, err));
    int threads = cpu_threads_for(dev, 8.0 * a->M * a->E * a->used);
    for (size_t i = 0; a->given && i < (size_t)a->M * (size_t)a->used; i++)
        if (a->given[i] < 0 || a->given[i] >= a->E)
            return TV_FAIL(err, TV_EARG, "moe_route: row %zu is given expert %d, with E=%d", i / (size_t)a->used,
                           a->given[i], a->E);
    void *scratch;
    TV_TRY(cpu_scratch(dev, CPU_SCRATCH_MOE, (size_t)threads * (a->E + a->used) * sizeof(float), &scratch, err));
    routing job = {a, scratch};
    cpu_parallel(dev->pool, threads, a->M, cpu_grain(a->M, threads), route_rows, &job);
    return TV_OK;
}

/* Scratch, for R = M * used routed rows sorted by expert, then by row:
 *   x [R,D], gate_up [R,2F], act [R,F], y [R,D] bf16, each 64-byte aligned (y takes x's place); source [R] i32: the row
 * a routed row came from; place [M,used] i32: where each (row, choice) went. */
typedef struct {
    size_t gate_up, act, source, place, total;
} layout;

static size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }

static layout lay_out(int M, int D, int F, int used) {
    size_t R = (size_t)M * used;
    layout l;
    l.gate_up = align64(R * D * sizeof(tv_bf16));
    l.act = l.gate_up + align64(R * 2 * F * sizeof(tv_bf16));
    l.source = l.act + align64(R * F * sizeof(tv_bf16));
    l.place = l.source + align64(R * sizeof(int32_t));
    l.total = l.place + align64(R * sizeof(int32_t));
    return l;
}

size_t cpu_moe_scratch_bytes(int M, int D, int F, int used) { return lay_out(M, D, F, used).total; }

/* The routed rows and where they lie; pointers as in lay_out. */
typedef struct {
    const tv_moe_args *a;
    tv_bf16 *x, *y; /* [R,D] */
    int32_t *source, *place;
} grouping;

static void gather(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const grouping *g = ctx;
    const size_t D = (size_t)g->a->D;
    for (int r = begin; r < end; r++) memcpy(g->x + r * D, g->a->x + (size_t)g->source[r] * D, D * sizeof *g->x);
}

/* out[m]: its experts' rows in ascending expert index, which is the order of their places. */
static void combine(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const grouping *g = ctx;
    const int D = g->a->D, used = g->a->used;
    for (int m = begin; m < end; m++) {
        const int32_t *place = g->place + (size_t)m * used;
        tv_bf16 *out = g->a->out + (size_t)m * D;
        memset(out, 0, (size_t)D * sizeof *out);
        int last = -1;
        for (int n = 0; n < used; n++) {
            int next = -1;
            for (int i = 0; i < used; i++)
                if (place[i] > last && (next < 0 || place[i] < place[next])) next = i;
            last = place[next];
            float weight = tv_f32_from_bf16(g->a->weights[(size_t)m * used + next]);
            const tv_bf16 *row = g->y + (size_t)last * D;
            for (int d = 0; d < D; d++)
                out[d] = tv_bf16_from_f32(tv_f32_from_bf16(out[d]) + tv_round_bf16(weight * tv_f32_from_bf16(row[d])));
        }
    }
}

tv_status cpu_moe(tv_dev *dev, const tv_moe_args *a, tv_err *err) {
    TV_TRY(tv_check_moe(a, err));
    const int M = a->M, D = a->D, F = a->F, E = a->E, used = a->used, R = M * used;
    void *memory;
    TV_TRY(cpu_scratch(dev, CPU_SCRATCH_MOE, ((size_t)E + 1) * sizeof(int32_t), &memory, err));
    int32_t *first = memory; /* [E+1]: expert e has routed rows first[e] .. first[e+1]-1 */
    memset(first, 0, ((size_t)E + 1) * sizeof *first);
    for (int i = 0; i < R; i++) {
        if (a->ids[i] < 0 || a->ids[i] >= E)
            return TV_FAIL(err, TV_EARG, "moe: row %d names expert %d, with E=%d", i / used, a->ids[i], E);
        first[a->ids[i] + 1]++;
    }
    for (int e = 0; e < E; e++) first[e + 1] += first[e];

    layout l = lay_out(M, D, F, used);
    char *scratch = a->scratch;
    tv_bf16 *gate_up = (tv_bf16 *)(void *)(scratch + l.gate_up); /* [R,2F] */
    tv_bf16 *act = (tv_bf16 *)(void *)(scratch + l.act);         /* [R,F] */
    grouping g = {.a = a,
                  .x = a->scratch,
                  .y = a->scratch,
                  .source = (int32_t *)(void *)(scratch + l.source),
                  .place = (int32_t *)(void *)(scratch + l.place)};
    for (int i = 0; i < R; i++) { /* counting sort: first[e] moves up to its end ... */
        int32_t r = first[a->ids[i]]++;
        g.source[r] = i / used;
        g.place[i] = r;
    }
    for (int e = E; e > 0; e--) first[e] = first[e - 1]; /* ... and back */
    first[0] = 0;

    int threads = cpu_threads_for(dev, (double)R * D);
    cpu_parallel(dev->pool, threads, R, cpu_grain(R, threads), gather, &g);
    for (int pass = 0; pass < 2; pass++) {
        for (int e = 0; e < E; e++) {
            int rows = first[e + 1] - first[e];
            if (!rows) continue;
            const tv_matrix *w = pass ? &a->down[e] : &a->gate_up[e];
            tv_linear_args linear = {
                .x = (pass ? act : g.x) + (size_t)first[e] * w->K,
                .w = w,
                .y = (pass ? g.y : gate_up) + (size_t)first[e] * w->N,
                .M = rows,
                .plan = tv_plan_linear(&a->plan, rows, w->N, w->K),
            };
            TV_TRY(cpu_linear(dev, &linear, err));
        }
        if (!pass) TV_TRY(cpu_swiglu(dev, &(tv_swiglu_args){.gate_up = gate_up, .out = act, .M = R, .F = F}, err));
    }
    cpu_parallel(dev->pool, threads, M, cpu_grain(M, threads), combine, &g);
    return TV_OK;
}
