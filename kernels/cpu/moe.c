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

tv_status cpu_moe_route(tv_dev *dev, const tv_moe_route_args *a, tv_err *err) {
    TV_TRY(tv_check_moe_route(a, err));
    int threads = cpu_threads_for(dev, 8.0 * a->M * a->E * a->used);
    size_t stride = (size_t)a->E + a->used;
    void *memory;
    TV_TRY(cpu_scratch(dev, CPU_SCRATCH_MOE, (size_t)a->M * stride * sizeof(float), &memory, err));
    for (size_t i = 0; a->given && i < (size_t)a->M * (size_t)a->used; i++)
        if (a->given[i] < 0 || a->given[i] >= a->E)
            return TV_FAIL(err, TV_EARG, "moe_route: row %zu is given expert %d, with E=%d", i / (size_t)a->used,
                           a->given[i], a->E);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int m = 0; m < a->M; m++)
        route(a->logits + (size_t)m * a->E, a->E, a->used, a->norm, a->given ? a->given + (size_t)m * a->used : NULL,
              (float *)memory + (size_t)m * stride, a->ids + (size_t)m * a->used, a->weights + (size_t)m * a->used);
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

tv_status cpu_moe(tv_dev *dev, const tv_moe_args *a, tv_err *err) {
    TV_TRY(tv_check_moe(a, err));
    const int M = a->M, D = a->D, F = a->F, E = a->E, used = a->used;
    const size_t R = (size_t)M * used;
    void *memory;
    TV_TRY(cpu_scratch(dev, CPU_SCRATCH_MOE, ((size_t)E + 1) * sizeof(int32_t), &memory, err));
    int32_t *begin = memory; /* [E+1]: expert e has routed rows begin[e] .. begin[e+1]-1 */
    memset(begin, 0, ((size_t)E + 1) * sizeof *begin);
    for (size_t i = 0; i < R; i++) {
        if (a->ids[i] < 0 || a->ids[i] >= E)
            return TV_FAIL(err, TV_EARG, "moe: row %zu names expert %d, with E=%d", i / used, a->ids[i], E);
        begin[a->ids[i] + 1]++;
    }
    for (int e = 0; e < E; e++) begin[e + 1] += begin[e];

    layout l = lay_out(M, D, F, used);
    char *scratch = a->scratch;
    tv_bf16 *x = (tv_bf16 *)scratch, *y = x;             /* [R,D] */
    tv_bf16 *gate_up = (tv_bf16 *)(scratch + l.gate_up); /* [R,2F] */
    tv_bf16 *act = (tv_bf16 *)(scratch + l.act);         /* [R,F] */
    int32_t *source = (int32_t *)(scratch + l.source), *place = (int32_t *)(scratch + l.place);
    for (int m = 0; m < M; m++) /* counting sort: begin[e] moves up to its end ... */
        for (int i = 0; i < used; i++) {
            int32_t r = begin[a->ids[(size_t)m * used + i]]++;
            source[r] = m;
            place[(size_t)m * used + i] = r;
        }
    for (int e = E; e > 0; e--) begin[e] = begin[e - 1]; /* ... and back */
    begin[0] = 0;

    int threads = cpu_threads_for(dev, (double)R * D);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t r = 0; r < R; r++) memcpy(x + r * D, a->x + (size_t)source[r] * D, (size_t)D * sizeof *x);
    for (int pass = 0; pass < 2; pass++) {
        for (int e = 0; e < E; e++) {
            int rows = begin[e + 1] - begin[e];
            if (!rows) continue;
            const tv_matrix *w = pass ? &a->down[e] : &a->gate_up[e];
            tv_linear_args linear = {
                .x = (pass ? act : x) + (size_t)begin[e] * w->K,
                .w = w,
                .y = (pass ? y : gate_up) + (size_t)begin[e] * w->N,
                .M = rows,
                .plan = tv_plan_linear(&a->plan, rows, w->N, w->K),
            };
            TV_TRY(cpu_linear(dev, &linear, err));
        }
        if (!pass) TV_TRY(cpu_swiglu(dev, &(tv_swiglu_args){.gate_up = gate_up, .out = act, .M = (int)R, .F = F}, err));
    }

    /* A row's routed rows in ascending expert index are its places in ascending order. */
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int m = 0; m < M; m++) {
        tv_bf16 *out = a->out + (size_t)m * D;
        memset(out, 0, (size_t)D * sizeof *out);
        int last = -1;
        for (int n = 0; n < used; n++) {
            int next = -1; /* the smallest expert index above the last one; equal indices in the order given */
            for (int i = 0; i < used; i++) {
                int32_t p = place[(size_t)m * used + i];
                if (p > last && (next < 0 || p < place[(size_t)m * used + next])) next = i;
            }
            last = place[(size_t)m * used + next];
            float weight = tv_f32_from_bf16(a->weights[(size_t)m * used + next]);
            const tv_bf16 *row = y + (size_t)last * D;
            for (int d = 0; d < D; d++)
                out[d] = tv_bf16_from_f32(tv_f32_from_bf16(out[d]) + tv_round_bf16(weight * tv_f32_from_bf16(row[d])));
        }
    }
    return TV_OK;
}
