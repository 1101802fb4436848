/* Attention of the CUDA device: math and eager bit for bit against the CPU device; flash against f64, no further from
 * it than the CPU's flash, and bit for bit against itself, alone or in a batch, row by row, in chunks or whole. All
 * cache positions past what a row sees hold NaN. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/attention.h"
#include "kernels/cuda/device.h"
#include "tests/check.h"
#include "tests/simt/rig.h"

enum { POISON = 0x7fff }; /* a NaN */
enum { MATH, EAGER, FLASH, N_BACKENDS };
static const char *const names[N_BACKENDS] = {"math", "eager", "flash"};
static tv_status (*const on_card[N_BACKENDS])(tv_dev *, const tv_attn_args *,
                                              tv_err *) = {cuda_attn_math, cuda_attn_eager, cuda_attn_flash};

/* A cache with queries for every position of every slot, on the host. */
typedef struct {
    int slots, H, G, S, HS;
    tv_bf16 *k, *v; /* [slots,G,S,HS] bf16 */
    tv_bf16 *q;     /* [slots,S,H,HS] bf16 */
    float scale;
} world;

static world make(uint64_t seed, int slots, int H, int G, int S, int HS) {
    const size_t cache = (size_t)slots * G * S * HS;
    world w = {slots, H, G, S, HS, rig_normals(seed, cache, 1), rig_normals(seed + 1, cache, 1), NULL, 0};
    w.q = rig_normals(seed + 2, (size_t)slots * S * H * HS, 1.5);
    w.scale = 1.0f / sqrtf((float)HS);
    return w;
}

static void drop(world *w) { free(w->k), free(w->v), free(w->q); }

static size_t at_kv(const world *w, int slot, int g, int pos) {
    return (((size_t)slot * w->G + g) * w->S + pos) * w->HS;
}

static size_t row_bytes(const world *w) { return (size_t)w->H * w->HS * sizeof(tv_bf16); }

static void poison(const world *w, int slot, int from) {
    for (int g = 0; g < w->G; g++)
        for (size_t i = at_kv(w, slot, g, from); i < at_kv(w, slot, g, 0) + (size_t)w->S * w->HS; i++)
            w->k[i] = w->v[i] = POISON;
}

static int rows_of(const tv_segment *s, int n) {
    int M = 0;
    for (int i = 0; i < n; i++) M += s[i].n_rows;
    return M;
}

/* The queries of some segments, in the order of their rows; malloc'd. */
static tv_bf16 *queries(const world *w, const tv_segment *s, int n) {
    const size_t row = (size_t)w->H * w->HS;
    tv_bf16 *q = tv_xmalloc((size_t)rows_of(s, n) * row_bytes(w));
    for (int i = 0; i < n; i++)
        memcpy(q + (size_t)s[i].row * row, w->q + ((size_t)s[i].slot * w->S + s[i].pos) * row,
               (size_t)s[i].n_rows * row_bytes(w));
    return q;
}

static tv_attn_args args(const world *w, tv_attn_plan plan, const tv_segment *s, int n) {
    return (tv_attn_args){.kv = {w->k, w->v, w->slots, w->G, w->S, w->HS},
                          .segments = s,
                          .n_segments = n,
                          .M = rows_of(s, n),
                          .H = w->H,
                          .scale = w->scale,
                          .plan = plan};
}

/* Each returns out [M,H,HS]; malloc'd. */
static tv_bf16 *run(tv_dev *dev, const world *w, int backend, tv_attn_plan plan, const tv_segment *s, int n) {
    const size_t cache = (size_t)w->slots * w->G * w->S * w->HS * sizeof(tv_bf16);
    tv_attn_args a = args(w, plan, s, n);
    const size_t bytes = (size_t)a.M * row_bytes(w);
    tv_bf16 *q = queries(w, s, n), *out = tv_xmalloc(bytes);
    tv_err err = {0};
    a.kv.k = rig_put(dev, w->k, cache), a.kv.v = rig_put(dev, w->v, cache);
    a.q = rig_put(dev, q, bytes), a.out = rig_put(dev, NULL, bytes);
    CHECK_OK(on_card[backend](dev, &a, &err), &err);
    rig_get(dev, out, a.out);
    rig_drop(dev, a.kv.k), rig_drop(dev, a.kv.v), rig_drop(dev, (void *)a.q), rig_drop(dev, a.out);
    free(q);
    return out;
}

static tv_bf16 *run_cpu(const world *w, int backend, tv_attn_plan plan, const tv_segment *s, int n) {
    const tv_attn_limits limits = {"cpu", w->H, w->G, w->HS, 64, w->S};
    const tv_attn_backend *b = NULL;
    tv_attn_args a = args(w, plan, s, n);
    tv_bf16 *q = queries(w, s, n);
    tv_dev *dev = NULL;
    tv_err err = {0};
    a.q = q, a.out = tv_xmalloc((size_t)a.M * row_bytes(w));
    CHECK_OK(tv_ops_cpu.open(&(tv_dev_options){.threads = 1, .isa = "auto"}, &dev, &err), &err);
    CHECK_OK(tv_attn_choose(&limits, names[backend], &b, &err), &err);
    CHECK_OK(b->run(dev, &a, &err), &err);
    tv_ops_cpu.close(dev);
    free(q);
    return a.out;
}

static double value(tv_bf16 x) { return tv_f32_from_bf16(x); }

/* One row and head in f64; *weight = sum of p |v| per element. */
static void reference(const world *w, int slot, int h, int pos, double *out, double *weight) {
    const int g = h / (w->H / w->G), n = pos + 1;
    const tv_bf16 *q = w->q + (((size_t)slot * w->S + pos) * w->H + h) * w->HS;
    double *s = tv_xmalloc((size_t)n * sizeof *s), max = -INFINITY, sum = 0;
    for (int j = 0; j < n; j++) {
        double dot = 0;
        for (int d = 0; d < w->HS; d++) dot += value(q[d]) * value(w->k[at_kv(w, slot, g, j) + d]);
        s[j] = dot * w->scale;
        if (s[j] > max) max = s[j];
    }
    for (int j = 0; j < n; j++) sum += s[j] = exp(s[j] - max);
    for (int d = 0; d < w->HS; d++) out[d] = weight[d] = 0;
    for (int j = 0; j < n; j++)
        for (int d = 0; d < w->HS; d++) {
            double v = value(w->v[at_kv(w, slot, g, j) + d]);
            out[d] += s[j] / sum * v;
            weight[d] += s[j] / sum * fabs(v);
        }
    free(s);
}

/* Distances from f64 in units of half a bf16 step of the weight: rounding P and the output moves a value by up to 2. */
typedef struct {
    double most, sum, n;
} distances;

static void add_row(distances *to, const world *w, int slot, int pos, const tv_bf16 *out) {
    double want[CUDA_ATTN_MAX_HEAD], weight[CUDA_ATTN_MAX_HEAD];
    for (int h = 0; h < w->H; h++) {
        reference(w, slot, h, pos, want, weight);
        for (int d = 0; d < w->HS; d++) {
            double off = fabs(value(out[(size_t)h * w->HS + d]) - want[d]) / (weight[d] + 1e-6) * 256;
            if (!(off <= to->most)) to->most = off; /* a NaN stays */
            to->sum += off, to->n++;
        }
    }
}

static void check_flash(const world *w, const tv_segment *s, int n, const tv_bf16 *out, distances *all) {
    distances here = {0};
    for (int i = 0; i < n; i++)
        for (int j = 0; j < s[i].n_rows; j += j % 5 + 1)
            add_row(&here, w, s[i].slot, s[i].pos + j, out + ((size_t)s[i].row + j) * w->H * w->HS);
    if (!CHECK(here.most <= 2.02)) fprintf(stderr, "    HS=%d H=%d G=%d: %g\n", w->HS, w->H, w->G, here.most);
    if (!(here.most <= all->most)) all->most = here.most;
    all->sum += here.sum, all->n += here.n;
}

static const struct {
    int H, G, HS;
} shapes[] = {{2, 2, 16}, {4, 2, 32}, {3, 1, 64}, {4, 1, 80}, {8, 1, 128}, {14, 2, 40}, {2, 1, 256}, {18, 1, 24}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
static const int lengths[] = {1, 2, 7, 15, 16, 17, 63, 64, 65, 130, 300};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

/* Every length as a decode row, then a prompt, a chunk of a few rows and one of many behind other keys: one call. */
enum { N_MIXED = N_LENGTHS + 3, MIXED_SLOTS = N_MIXED, MIXED_KEYS = 300 };
static world make_mixed(uint64_t seed, int H, int G, int HS, tv_segment s[N_MIXED]) {
    world w = make(seed, MIXED_SLOTS, H, G, MIXED_KEYS, HS);
    int row = 0;
    for (int i = 0; i < N_MIXED; i++) {
        s[i] = (tv_segment){(i * 5) % MIXED_SLOTS, row, 1, i < N_LENGTHS ? lengths[i] - 1 : 0};
        if (i == N_LENGTHS) s[i].n_rows = 41;
        if (i == N_LENGTHS + 1) s[i].n_rows = 2, s[i].pos = 127;
        if (i == N_LENGTHS + 2) s[i].n_rows = 23, s[i].pos = 100;
        row += s[i].n_rows;
        poison(&w, s[i].slot, s[i].pos + s[i].n_rows);
    }
    return w;
}

/* math and eager have the CPU device's bits, in every shape, length and cut of a step, under each schedule. */
static void test_attention_rows_bits(void) {
    tv_dev *dev = rig_open();
    for (int i = 0; i < N_SHAPES; i++) {
        tv_segment s[N_MIXED];
        world w = make_mixed(10 + i, shapes[i].H, shapes[i].G, shapes[i].HS, s);
        for (int b = MATH; b <= EAGER; b++) {
            rig_schedule((2 * i + b) % rig_schedules());
            tv_bf16 *got = run(dev, &w, b, (tv_attn_plan){64, 256}, s, N_MIXED);
            tv_bf16 *want = run_cpu(&w, b, (tv_attn_plan){64, 256}, s, N_MIXED);
            CHECK_BYTES(got, want, (size_t)rows_of(s, N_MIXED) * row_bytes(&w));
            free(got), free(want);
        }
        drop(&w);
    }
    rig_schedule(0);
    rig_close(dev);
}

/* Rows too long for shared memory, and blocks that take more than one unit, which must not disturb one another. */
static void test_attention_rows_scratch(void) {
    static const tv_segment s[] = {{1, 0, 1, 2099}, {0, 1, 1, 700}, {2, 2, 3, 2080}};
    enum { N = sizeof s / sizeof *s };
    tv_dev *dev = rig_open();
    dev->info.multiprocessors = 1;
    world w = make(30, 3, 8, 1, 2100, 16);
    for (int i = 0; i < N; i++) poison(&w, s[i].slot, s[i].pos + s[i].n_rows);
    for (int b = MATH; b <= EAGER; b++) {
        tv_bf16 *got = run(dev, &w, b, (tv_attn_plan){64, 256}, s, N),
                *want = run_cpu(&w, b, (tv_attn_plan){64, 256}, s, N);
        CHECK_BYTES(got, want, (size_t)rows_of(s, N) * row_bytes(&w));
        free(got), free(want);
    }
    CHECK(dev->scratch_bytes[CUDA_SCRATCH_ATTENTION] > 0);
    drop(&w);
    rig_close(dev);
}

/* flash is as close to f64 as the CPU's, whose rounding points it shares, in every shape, length and plan; ldmatrix
 * meets no bank twice. */
static void test_attention_flash_reference(void) {
    static const tv_attn_plan plans[] = {{64, 256}, {16, 16},      {32, 96}, {48, 144},
                                         {64, 64},  {64, 1 << 30}, {16, 64}, {48, 48}};
    tv_dev *dev = rig_open();
    distances card = {0}, cpu = {0};
    size_t differ = 0, all = 0;
    for (int i = 0; i < N_SHAPES; i++) {
        tv_segment s[N_MIXED];
        world w = make_mixed(50 + i, shapes[i].H, shapes[i].G, shapes[i].HS, s);
        tv_bf16 *got = run(dev, &w, FLASH, plans[i], s, N_MIXED), *other = run_cpu(&w, FLASH, plans[i], s, N_MIXED);
        check_flash(&w, s, N_MIXED, got, &card);
        check_flash(&w, s, N_MIXED, other, &cpu);
        const size_t n = (size_t)rows_of(s, N_MIXED) * w.H * w.HS;
        for (size_t j = 0; j < n; j++) differ += got[j] != other[j];
        all += n;
        free(got), free(other), drop(&w);
    }
    printf("    flash from f64: most %.3f, mean %.4f; the CPU's: most %.3f, mean %.4f; %.2f%% of outputs differ\n",
           card.most, card.sum / card.n, cpu.most, cpu.sum / cpu.n, 100.0 * (double)differ / (double)all);
    CHECK(card.sum / card.n <= 1.02 * cpu.sum / cpu.n);
    CHECK((double)differ <= 0.02 * (double)all);
    CHECK_INT(rig_bank_conflicts(), 0);
    rig_close(dev);
}

/* Scores of several hundred, all alike, and one key far above or below the rest: no overflow, no NaN. */
static void test_attention_flash_extreme_scores(void) {
    tv_dev *dev = rig_open();
    distances all = {0};
    for (int kind = 0; kind < 4; kind++) {
        world w = make(70 + kind, 1, 4, 2, 130, 16);
        for (int pos = 0; pos < w.S; pos++)
            for (int h = 0; h < w.H; h++)
                for (int d = 0; d < w.HS; d++) w.q[((size_t)pos * w.H + h) * w.HS + d] = tv_bf16_from_f32(d ? 0 : 8);
        for (int g = 0; g < w.G; g++)
            for (int j = 0; j < w.S; j++) {
                double score = kind == 0   ? -500
                               : kind == 1 ? 500
                               : kind == 2 ? (j == 70 ? 300 : -300)
                               : j == 70   ? -1e4
                                           : 1;
                for (int d = 0; d < w.HS; d++)
                    w.k[at_kv(&w, 0, g, j) + d] = tv_bf16_from_f32(d ? 1 : (float)(score / 2));
            }
        for (int l = 0; l < N_LENGTHS - 1; l++) {
            const tv_segment s = {0, 0, 1, lengths[l] - 1}, prompt = {0, 0, lengths[l], 0};
            tv_bf16 *row = run(dev, &w, FLASH, (tv_attn_plan){16, 32}, &s, 1);
            check_flash(&w, &s, 1, row, &all);
            if (l % 3 == 0) {
                tv_bf16 *rows = run(dev, &w, FLASH, (tv_attn_plan){16, 32}, &prompt, 1);
                CHECK_BYTES(rows + (size_t)s.pos * w.H * w.HS, row, row_bytes(&w));
                free(rows);
            }
            free(row);
        }
        drop(&w);
    }
    rig_close(dev);
}

/* One prompt whole, in chunks and row by row: the same bits, under every plan, with what is not yet written poisoned.
 */
static void test_attention_flash_prefill_is_chunks_is_decode(void) {
    static const tv_attn_plan plans[] = {{64, 64}, {16, 32}, {48, 96}, {64, 256}};
    static const int chunks[] = {1, 5, 40};
    enum { L = 150, N_PLANS = sizeof plans / sizeof *plans };
    tv_dev *dev = rig_open();
    for (int i = 0; i < N_PLANS; i++) {
        static const int used[N_PLANS] = {4, 1, 5, 2}; /* shapes */
        world w = make(80 + i, 2, shapes[used[i]].H, shapes[used[i]].G, L + 20, shapes[used[i]].HS), full = w;
        const size_t cache = (size_t)w.slots * w.G * w.S * w.HS, row = (size_t)w.H * w.HS;
        const tv_segment whole = {1, 0, L, 0};
        poison(&full, 1, L);
        tv_bf16 *first = run(dev, &full, FLASH, plans[i], &whole, 1);
        w.k = tv_xmalloc(cache * sizeof *w.k), w.v = tv_xmalloc(cache * sizeof *w.v);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            rig_schedule((int)c % rig_schedules());
            for (size_t j = 0; j < cache; j++) w.k[j] = w.v[j] = POISON;
            int skip = chunks[c] == 1 ? 7 : 0; /* row by row: every eighth, to save time */
            for (int pos = 0, n; pos < L; pos += n + skip) {
                n = L - pos < chunks[c] ? L - pos : chunks[c];
                for (int g = 0; g < w.G; g++) {
                    const size_t written = (size_t)(pos + n) * w.HS * sizeof *w.k;
                    memcpy(w.k + at_kv(&w, 1, g, 0), full.k + at_kv(&w, 1, g, 0), written);
                    memcpy(w.v + at_kv(&w, 1, g, 0), full.v + at_kv(&w, 1, g, 0), written);
                }
                const tv_segment s = {1, 0, n, pos};
                tv_bf16 *part = run(dev, &w, FLASH, plans[i], &s, 1);
                CHECK_BYTES(part, first + (size_t)pos * row, (size_t)n * row_bytes(&w));
                free(part);
            }
        }
        free(w.k), free(w.v), free(first), drop(&full);
    }
    rig_schedule(0);
    rig_close(dev);
}

/* A row has its bits alone, in batches of 2, 17 and 64, in any slot and place, beside a prompt, under each schedule,
 * and when scratch holds few rows at a time. */
static void test_attention_batch_invariance(void) {
    static const int sizes[] = {1, 2, 17, 64};
    enum { SLOTS = 64, S = 150, N_ROWS = 8 };
    tv_dev *dev = rig_open();
    world w = make(90, SLOTS, 4, 2, S, 32);
    const size_t row = (size_t)w.H * w.HS, slot_q = (size_t)S * row;
    for (int slot = N_ROWS; slot < SLOTS; slot++) { /* slots are copies of the first ones */
        for (int g = 0; g < w.G; g++) {
            memcpy(w.k + at_kv(&w, slot, g, 0), w.k + at_kv(&w, slot % N_ROWS, g, 0), (size_t)S * w.HS * sizeof *w.k);
            memcpy(w.v + at_kv(&w, slot, g, 0), w.v + at_kv(&w, slot % N_ROWS, g, 0), (size_t)S * w.HS * sizeof *w.v);
        }
        memcpy(w.q + (size_t)slot * slot_q, w.q + (size_t)(slot % N_ROWS) * slot_q, slot_q * sizeof *w.q);
    }
    static const int pos[N_ROWS] = {149, 0, 63, 64, 97, 15, 130, 31};
    for (int b = 0; b < N_BACKENDS; b++) {
        const tv_attn_plan plan = {16, 64};
        tv_bf16 *alone[N_ROWS];
        for (int i = 0; i < N_ROWS; i++) {
            const tv_segment s = {i, 0, 1, pos[i]};
            alone[i] = run(dev, &w, b, plan, &s, 1);
        }
        for (size_t z = 0; z < 2 * sizeof sizes / sizeof *sizes; z++) {
            const int B = sizes[z / 2], prompt = z % 2 ? 20 : 0;
            tv_segment s[SLOTS + 1];
            for (int i = 0; i < B; i++) {
                const int slot = (SLOTS - 1 - i) * 5 % SLOTS;
                s[i] = (tv_segment){slot, prompt + (i + 1) % B, 1, pos[slot % N_ROWS]};
            }
            if (prompt) s[B] = s[B / 2], s[B / 2] = (tv_segment){3, 0, prompt, 70};
            rig_schedule((int)z % rig_schedules());
            dev->flash_scratch = z % 2 ? 20000 : 0;
            const int n = B + (prompt > 0);
            tv_bf16 *out = run(dev, &w, b, plan, s, n);
            for (int i = 0; i < n; i++)
                if (s[i].n_rows == 1)
                    CHECK_BYTES(out + (size_t)s[i].row * row, alone[s[i].slot % N_ROWS], row_bytes(&w));
            free(out);
        }
        for (int i = 0; i < N_ROWS; i++) free(alone[i]);
    }
    rig_schedule(0);
    drop(&w);
    rig_close(dev);
}

/* Different plans differ, and a rerun is the run, under every schedule. */
static void test_attention_flash_plan_and_rerun(void) {
    tv_dev *dev = rig_open();
    world w = make(95, 1, 8, 2, 200, 64);
    const tv_segment s = {0, 0, 20, 180};
    tv_bf16 *one = run(dev, &w, FLASH, (tv_attn_plan){64, 192}, &s, 1);
    tv_bf16 *two = run(dev, &w, FLASH, (tv_attn_plan){16, 48}, &s, 1);
    CHECK(memcmp(one, two, 20 * row_bytes(&w)));
    for (int i = 0; i < rig_schedules(); i++) {
        rig_schedule(i);
        tv_bf16 *again = run(dev, &w, FLASH, (tv_attn_plan){64, 192}, &s, 1);
        CHECK_BYTES(again, one, 20 * row_bytes(&w));
        free(again);
    }
    rig_schedule(0);
    free(one), free(two), drop(&w);
    rig_close(dev);
}

/* What the kernels cannot do is refused, naming the value. */
static void test_attention_refuses(void) {
    tv_dev *dev = rig_open();
    tv_err err = {0};
    tv_bf16 *p = rig_put(dev, NULL, 4096);
    const tv_segment s = {0, 0, 1, 0};
    const tv_attn_args good = {.q = p,
                               .kv = {p, p, 1, 1, 1, 16},
                               .out = p,
                               .segments = &s,
                               .n_segments = 1,
                               .M = 1,
                               .H = 1,
                               .scale = 1,
                               .plan = {16, 16}};
    for (int b = 0; b < N_BACKENDS; b++) {
        tv_attn_args a = good;
        a.kv.HS = 12;
        CHECK_FAILS(on_card[b](dev, &a, &err), TV_EUNSUPPORTED, &err, "HS=12");
        a.kv.HS = 264;
        CHECK_FAILS(on_card[b](dev, &a, &err), TV_EUNSUPPORTED, &err, "HS=264");
        a = good, a.q = p + 1;
        CHECK_FAILS(on_card[b](dev, &a, &err), TV_EARG, &err, "16 bytes");
        a = good, a.plan.split_keys = 17;
        CHECK_FAILS(on_card[b](dev, &a, &err), TV_EARG, &err, "17");
    }
    tv_attn_args a = good;
    a.plan = (tv_attn_plan){24, 48};
    CHECK_FAILS(cuda_attn_flash(dev, &a, &err), TV_EUNSUPPORTED, &err, "24 keys");
    a.plan = (tv_attn_plan){128, 128};
    CHECK_FAILS(cuda_attn_flash(dev, &a, &err), TV_EUNSUPPORTED, &err, "128 keys");
    rig_close(dev);
}

static const tv_test tests[] = {
    {"attention_rows_bits", test_attention_rows_bits},
    {"attention_rows_scratch", test_attention_rows_scratch},
    {"attention_flash_reference", test_attention_flash_reference},
    {"attention_flash_extreme_scores", test_attention_flash_extreme_scores},
    {"attention_flash_prefill_is_chunks_is_decode", test_attention_flash_prefill_is_chunks_is_decode},
    {"attention_batch_invariance", test_attention_batch_invariance},
    {"attention_flash_plan_and_rerun", test_attention_flash_plan_and_rerun},
    {"attention_refuses", test_attention_refuses},
};
TV_TEST_MAIN(tests)
