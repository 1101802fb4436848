/* Mixture of experts on the CUDA device: the bits of its parts put together, close to the CPU device, for every way of
 * routing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/cuda/device.h"
#include "tests/check.h"
#include "tests/simt/rig.h"

enum { MOST_E = 130, MOST_USED = 8 };

/* A layer on both devices, its rows, and what they are routed to. */
typedef struct {
    int M, D, F, E, used;
    tv_dev *cpu;
    tv_matrix gate_up[MOST_E], down[MOST_E], cpu_gate_up[MOST_E], cpu_down[MOST_E];
    tv_bf16 *x, *weights; /* [M,D], [M,used] */
    int32_t *ids;         /* [M,used] */
} layer;

static layer make(tv_dev *dev, int M, int D, int F, int E, int used) {
    layer l = {.M = M, .D = D, .F = F, .E = E, .used = used};
    tv_err err = {0};
    CHECK_OK(tv_ops_cpu.open(&(tv_dev_options){.threads = 1}, &l.cpu, &err), &err);
    for (int e = 0; e < E; e++)
        for (int part = 0; part < 2; part++) {
            const int N = part ? D : 2 * F, K = part ? F : D;
            tv_bf16 *w = rig_normals((uint64_t)(2 * e + part), (size_t)N * K, 1 / sqrt(K));
            CHECK_OK(tv_ops_cuda.matrix_load(dev, 1, (const void *[]){w}, &N, NULL, K,
                                             part ? &l.down[e] : &l.gate_up[e], &err),
                     &err);
            CHECK_OK(tv_ops_cpu.matrix_load(l.cpu, 1, (const void *[]){w}, &N, NULL, K,
                                            part ? &l.cpu_down[e] : &l.cpu_gate_up[e], &err),
                     &err);
            free(w);
        }
    l.x = rig_normals(77, (size_t)M * D, 1);
    l.weights = rig_normals(78, (size_t)M * used, 0.3);
    l.ids = tv_xmalloc(sizeof *l.ids * M * used);
    return l;
}

static void drop(tv_dev *dev, layer *l) {
    for (int e = 0; e < l->E; e++) {
        tv_ops_cuda.matrix_free(dev, &l->gate_up[e]), tv_ops_cuda.matrix_free(dev, &l->down[e]);
        tv_ops_cpu.matrix_free(l->cpu, &l->cpu_gate_up[e]), tv_ops_cpu.matrix_free(l->cpu, &l->cpu_down[e]);
    }
    tv_ops_cpu.close(l->cpu);
    free(l->x), free(l->weights), free(l->ids);
}

enum { SPREAD, SAME, HOLES };

/* SPREAD: `used` distinct experts, other ones for each row, in no order. SAME: every row takes the same experts. HOLES:
 * the odd experts get no row. */
static void assign(layer *l, int kind) {
    for (int m = 0; m < l->M; m++)
        for (int i = 0; i < l->used; i++) {
            int e = kind == SPREAD ? (m * 7 + (i + m) % l->used) % l->E
                    : kind == SAME ? l->E - 1 - i
                                   : (m + i) % ((l->E + 1) / 2) * 2;
            l->ids[m * l->used + i] = e;
        }
    for (int m = 0; m < l->M; m++)
        for (int i = 0; i < l->used; i++)
            for (int j = 0; j < i; j++) TV_ASSERT(l->ids[m * l->used + i] != l->ids[m * l->used + j]);
}

/* out [count,D]: rows row .. row+count-1 of the layer on the card; malloc'd. */
static tv_bf16 *run(tv_dev *dev, const layer *l, int row, int count, tv_plan plan) {
    tv_err err = {0};
    const size_t D = (size_t)l->D, used = (size_t)l->used, n = (size_t)count, first = (size_t)row;
    void *scratch = rig_put(dev, NULL, tv_ops_cuda.moe_scratch_bytes(count, l->D, l->F, l->used));
    void *x = rig_put(dev, l->x + first * D, n * D * sizeof(tv_bf16));
    void *ids = rig_put(dev, l->ids + first * used, n * used * sizeof(int32_t));
    void *weights = rig_put(dev, l->weights + first * used, n * used * sizeof(tv_bf16));
    void *out_dev = rig_put(dev, NULL, n * D * sizeof(tv_bf16));
    tv_moe_args a = {.x = x, .ids = ids, .weights = weights, .out = out_dev, .scratch = scratch, .M = count};
    a.gate_up = l->gate_up, a.down = l->down, a.D = l->D, a.F = l->F, a.E = l->E, a.used = l->used, a.plan = plan;
    CHECK_OK(tv_ops_cuda.moe(dev, &a, &err), &err);
    tv_bf16 *out = tv_xmalloc(n * D * sizeof *out);
    rig_get(dev, out, out_dev);
    void *whole = tv_xmalloc(tv_ops_cuda.moe_scratch_bytes(count, l->D, l->F, l->used));
    rig_get(dev, whole, scratch); /* checks its guards */
    free(whole);
    void *all[] = {scratch, x, ids, weights, out_dev};
    for (int i = 0; i < 5; i++) rig_drop(dev, all[i]);
    return out;
}

/* The same from the operations that it stands for: each expert's rows gathered, two products with the plan of that many
 * rows, and the sum over experts in plain code. */
static tv_bf16 *by_parts(tv_dev *dev, const layer *l, tv_plan plan) {
    tv_err err = {0};
    const size_t D = (size_t)l->D, F = (size_t)l->F, M = (size_t)l->M;
    tv_bf16 *out = tv_xcalloc(M * D, sizeof *out), *x = tv_xmalloc(M * D * sizeof *x),
            *y = tv_xmalloc(M * D * sizeof *y);
    int *choice = tv_xmalloc(M * sizeof *choice), *rows = tv_xmalloc(M * sizeof *rows);
    for (int e = 0; e < l->E; e++) {
        int n = 0;
        for (int i = 0; i < l->M * l->used; i++)
            if (l->ids[i] == e) {
                memcpy(x + (size_t)n * D, l->x + (size_t)(i / l->used) * D, D * sizeof *x);
                rows[n] = i / l->used, choice[n++] = i;
            }
        if (!n) continue;
        void *x_dev = rig_put(dev, x, (size_t)n * D * sizeof *x);
        void *gate_up = rig_put(dev, NULL, (size_t)n * 2 * F * sizeof *x);
        void *act = rig_put(dev, NULL, (size_t)n * F * sizeof *x);
        void *y_dev = rig_put(dev, NULL, (size_t)n * D * sizeof *x);
        tv_linear_args up = {.x = x_dev, .w = &l->gate_up[e], .y = gate_up, .M = n};
        tv_linear_args down = {.x = act, .w = &l->down[e], .y = y_dev, .M = n};
        up.plan = tv_plan_linear(&plan, n, 2 * l->F, l->D), down.plan = tv_plan_linear(&plan, n, l->D, l->F);
        CHECK_OK(tv_ops_cuda.linear(dev, &up, &err), &err);
        CHECK_OK(cuda_swiglu(dev, &(tv_swiglu_args){.gate_up = gate_up, .out = act, .M = n, .F = l->F}, &err), &err);
        CHECK_OK(tv_ops_cuda.linear(dev, &down, &err), &err);
        rig_get(dev, y, y_dev);
        void *all[] = {x_dev, gate_up, act, y_dev};
        for (int i = 0; i < 4; i++) rig_drop(dev, all[i]);
        for (int r = 0; r < n; r++) {
            const float weight = tv_f32_from_bf16(l->weights[choice[r]]);
            tv_bf16 *o = out + (size_t)rows[r] * D;
            for (size_t d = 0; d < D; d++)
                o[d] = tv_bf16_from_f32(tv_f32_from_bf16(o[d]) +
                                        tv_round_bf16(weight * tv_f32_from_bf16(y[(size_t)r * D + d])));
        }
    }
    free(x), free(y), free(choice), free(rows);
    return out;
}

static tv_bf16 *on_cpu(const layer *l, tv_plan plan) {
    tv_err err = {0};
    void *scratch, *out = tv_xmalloc((size_t)l->M * (size_t)l->D * sizeof(tv_bf16));
    const size_t bytes = tv_ops_cpu.moe_scratch_bytes(l->M, l->D, l->F, l->used);
    CHECK_OK(tv_ops_cpu.alloc(l->cpu, bytes, &scratch, &err), &err);
    tv_moe_args a = {.x = l->x, .ids = l->ids, .weights = l->weights, .out = out, .scratch = scratch, .M = l->M};
    a.gate_up = l->cpu_gate_up, a.down = l->cpu_down, a.D = l->D, a.F = l->F, a.E = l->E, a.used = l->used,
    a.plan = plan;
    CHECK_OK(tv_ops_cpu.moe(l->cpu, &a, &err), &err);
    tv_ops_cpu.free(l->cpu, scratch, bytes);
    return out;
}

static const tv_plan fixed = {TV_REDUCE_FIXED, 132}, serving = {TV_REDUCE_SERVING, 132};

/* Bit for bit what linear, swiglu and the weighted sum give, in tiles of every height, under both reductions (`serving`
 * slices by the rows that each expert receives); and within 2^-6 of a row's largest value of the CPU device, whose sums
 * round differently. Widths with and without 16-byte rows; one row, one expert, experts without rows, many experts. */
static void test_parts(void) {
    static const struct {
        int M, D, F, E, used, kind;
    } cases[] = {{1, 40, 24, 6, 2, SPREAD}, {33, 72, 40, 6, 3, SPREAD}, {70, 64, 96, 4, 2, SAME},
                 {20, 40, 24, 7, 2, HOLES}, {19, 36, 21, 5, 2, SPREAD}, {3, 8, 8, MOST_E, 8, SPREAD},
                 {5, 16, 8, 1, 1, SAME},    {140, 16, 64, 3, 2, SPREAD}};
    static const int heights[] = {16, 64, 128};
    tv_dev *dev = rig_open();
    dev->library_linear = NULL; /* the parts by our own kernels, which are the grouped ones' */
    const uint64_t conflicts = rig_bank_conflicts();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        layer l = make(dev, cases[c].M, cases[c].D, cases[c].F, cases[c].E, cases[c].used);
        assign(&l, cases[c].kind);
        const size_t n = (size_t)l.M * (size_t)l.D;
        for (int reduction = 0; reduction < 2; reduction++) {
            const tv_plan plan = reduction ? serving : fixed;
            dev->gemm_rows = 0;
            tv_bf16 *want = by_parts(dev, &l, plan), *cpu = on_cpu(&l, plan);
            for (int h = 0; h < 3; h++) {
                dev->gemm_rows = heights[h];
                tv_bf16 *got = run(dev, &l, 0, l.M, plan);
                if (!CHECK_BYTES(got, want, n * sizeof *got)) printf("  case %zu, height %d\n", c, heights[h]);
                free(got);
            }
            for (int m = 0; m < l.M; m++) {
                float most = 0, off = 0;
                for (int d = 0; d < l.D; d++) {
                    const size_t i = (size_t)m * (size_t)l.D + (size_t)d;
                    most = fmaxf(most, fabsf(tv_f32_from_bf16(cpu[i])));
                    off = fmaxf(off, fabsf(tv_f32_from_bf16(want[i]) - tv_f32_from_bf16(cpu[i])));
                }
                if (!CHECK(off <= most * 0x1p-6f)) printf("  case %zu, row %d: %g of %g\n", c, m, off, most);
            }
            free(want), free(cpu);
        }
        drop(dev, &l);
    }
    CHECK_INT(rig_bank_conflicts() - conflicts, 0);
    rig_close(dev);
}

/* Under `fixed` a row has the same bits alone and in batches of 2, 17 and 64, whatever the tiles; and no order of
 * blocks and threads changes any. */
static void test_batch_invariance(void) {
    enum { M = 64, D = 40, F = 24 };
    static const int batches[] = {1, 2, 17}, heights[] = {16, 64, 128};
    tv_dev *dev = rig_open();
    layer l = make(dev, M, D, F, 6, 2);
    assign(&l, SPREAD);
    tv_bf16 *whole = run(dev, &l, 0, M, fixed);
    for (size_t b = 0; b < 3; b++)
        for (int row = (int)b; row + batches[b] <= M; row += 13) {
            dev->gemm_rows = heights[((size_t)row + b) % 3];
            tv_bf16 *got = run(dev, &l, row, batches[b], fixed);
            CHECK_BYTES(got, whole + row * D, sizeof *got * D * (size_t)batches[b]);
            free(got);
        }
    for (int i = 0; i < rig_schedules(); i++) {
        rig_schedule(i);
        dev->gemm_rows = heights[i % 3];
        tv_bf16 *got = run(dev, &l, 0, M, fixed);
        CHECK_BYTES(got, whole, sizeof *got * M * D);
        free(got);
    }
    rig_schedule(0);
    free(whole);
    drop(dev, &l);
    rig_close(dev);
}

/* Experts that no row is routed to are not read: their weights may be NaN. A layer whose matrices moved is followed. */
static void test_matrices(void) {
    enum { M = 9, D = 16, F = 8 };
    tv_dev *dev = rig_open();
    dev->library_linear = NULL;
    tv_err err = {0};
    layer l = make(dev, M, D, F, 5, 2);
    assign(&l, HOLES); /* experts 0, 2, 4 */
    tv_bf16 *before = run(dev, &l, 0, M, fixed), poison[2 * F * D];
    memset(poison, 0xff, sizeof poison);
    CHECK_OK(tv_ops_cuda.upload(dev, l.gate_up[1].data, poison, sizeof poison, &err), &err);
    CHECK_OK(tv_ops_cuda.upload(dev, l.down[3].data, poison, sizeof *poison * F * D, &err), &err);
    tv_bf16 *after = run(dev, &l, 0, M, fixed);
    CHECK_BYTES(after, before, sizeof *after * M * D);
    tv_matrix first = l.gate_up[0];
    l.gate_up[0] = l.gate_up[2], l.gate_up[2] = first;
    tv_bf16 *swapped = run(dev, &l, 0, M, fixed), *want = by_parts(dev, &l, fixed);
    CHECK(memcmp(swapped, before, sizeof *swapped * M * D) != 0);
    CHECK_BYTES(swapped, want, sizeof *swapped * M * D);
    free(before), free(after), free(swapped), free(want);
    drop(dev, &l);
    rig_close(dev);
}

/* What the kernels cannot do is refused by name; all memory comes back at the end. */
static void test_refusals(void) {
    tv_dev *dev = rig_open();
    tv_err err = {0};
    layer l = make(dev, 1, 8, 8, 2, 1);
    tv_bf16 bias[16] = {0};
    const tv_matrix matrix = l.gate_up[1];
    l.gate_up[1].bias = bias;
    tv_moe_args a = {.x = bias, .ids = (int32_t *)(void *)bias, .weights = bias, .out = bias, .scratch = bias, .M = 1};
    a.gate_up = l.gate_up, a.down = l.down, a.D = 8, a.F = 8, a.E = 2, a.used = 1, a.plan = fixed;
    CHECK_FAILS(tv_ops_cuda.moe(dev, &a, &err), TV_EUNSUPPORTED, &err, "expert 1 has a bias");
    l.gate_up[1] = (tv_matrix){0};
    CHECK_FAILS(tv_ops_cuda.moe(dev, &a, &err), TV_EARG, &err, "expert 1 has no weights");
    l.gate_up[1] = matrix;
    drop(dev, &l);
    rig_close(dev);
}

static const tv_test tests[] = {{"parts", test_parts},
                                {"batch_invariance", test_batch_invariance},
                                {"matrices", test_matrices},
                                {"refusals", test_refusals}};
TV_TEST_MAIN(tests)
