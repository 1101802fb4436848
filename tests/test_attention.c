/* Attention backends of the CPU device against plain f64 references, and bit for bit against themselves: alone or in a
 * batch, in one piece, in chunks or row by row, on any instruction set and thread count, whatever the unwritten cache
 * holds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/tensor.h"
#include "kernels/attention.h"
#include "kernels/ops.h"
#include "tests/check.h"

enum { POISON = 0x7fff }; /* a NaN */

static tv_dev *open_dev(const char *isa, int threads) {
    tv_err err = {0};
    tv_dev *dev = NULL;
    tv_dev_options options = {.threads = threads, .isa = isa};
    tv_status status = tv_ops_cpu.open(&options, &dev, &err);
    if (status == TV_EUNSUPPORTED && strcmp(isa, "scalar")) return NULL;
    CHECK_OK(status, &err);
    return dev;
}

static const char *const names[] = {"math", "eager", "flash"};
enum { N_NAMES = 3, FIXED_TILE = 64, FIXED_SPLIT = 256 };

static const tv_attn_backend *backend(const char *name, int H, int G, int HS) {
    tv_err err = {0};
    const tv_attn_backend *b = NULL;
    tv_attn_limits limits = {.device = "cpu", .H = H, .G = G, .HS = HS, .max_batch = 64, .max_keys = 4096};
    if (!CHECK_OK(tv_attn_choose(&limits, name, &b, &err), &err)) exit(1);
    return b;
}

/* A cache with queries for every position of every slot. */
typedef struct {
    int slots, H, G, S, HS;
    tv_bf16 *k, *v; /* [slots,G,S,HS] bf16 */
    tv_bf16 *q;     /* [slots,S,H,HS] bf16 */
    float scale;
} world;

static tv_bf16 *normals(tv_rng *rng, size_t n, double scale, double mean) {
    tv_bf16 *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = tv_bf16_from_f32((float)(mean + scale * tv_rng_normal(rng)));
    return p;
}

static world make(uint64_t seed, int slots, int H, int G, int S, int HS) {
    tv_rng rng = {seed};
    size_t cache = (size_t)slots * G * S * HS;
    return (world){slots,
                   H,
                   G,
                   S,
                   HS,
                   normals(&rng, cache, 1, 0),
                   normals(&rng, cache, 1, 0),
                   normals(&rng, (size_t)slots * S * H * HS, 1.5, 0),
                   1.0f / sqrtf((float)HS)};
}

static void drop(world *w) { free(w->k), free(w->v), free(w->q); }

static size_t at_kv(const world *w, int slot, int g, int pos) {
    return (((size_t)slot * w->G + g) * w->S + pos) * w->HS;
}

/* Runs segments (rows numbered as given) with the queries that their slots and positions have. Returns out [M,H,HS],
 * with a guard behind it checked. Caller frees. */
static tv_bf16 *run(tv_dev *dev, const world *w, const char *name, tv_attn_plan plan, const tv_segment *s, int n) {
    tv_err err = {0};
    int M = 0;
    for (int i = 0; i < n; i++) M += s[i].n_rows;
    size_t row = (size_t)w->H * w->HS, guard = 64;
    tv_bf16 *q = malloc((size_t)M * row * sizeof *q), *out = malloc(((size_t)M * row + guard) * sizeof *out);
    for (size_t i = 0; i < (size_t)M * row + guard; i++) out[i] = 0xcaca;
    for (int i = 0; i < n; i++)
        memcpy(q + (size_t)s[i].row * row, w->q + ((size_t)s[i].slot * w->S + s[i].pos) * row,
               (size_t)s[i].n_rows * row * sizeof *q);
    tv_attn_args a = {.q = q,
                      .kv = {.k = w->k, .v = w->v, .slots = w->slots, .G = w->G, .S = w->S, .HS = w->HS},
                      .out = out,
                      .segments = s,
                      .n_segments = n,
                      .M = M,
                      .H = w->H,
                      .scale = w->scale,
                      .plan = plan};
    CHECK_OK(backend(name, w->H, w->G, w->HS)->run(dev, &a, &err), &err);
    for (size_t i = 0; i < guard; i++)
        if (!CHECK_INT(out[(size_t)M * row + i], 0xcaca)) break;
    free(q);
    return out;
}

static double value(tv_bf16 x) { return tv_f32_from_bf16(x); }

/* One row and head in f64, with the backend's rounding points (eager) or none; *weight = sum of p |v| per element. */
static void reference(const world *w, int slot, int h, int pos, int eager, double *out, double *weight) {
    int g = h / (w->H / w->G), n = pos + 1;
    const tv_bf16 *q = w->q + (((size_t)slot * w->S + pos) * w->H + h) * w->HS;
    double *s = malloc((size_t)n * sizeof *s), max = -INFINITY, sum = 0;
    for (int j = 0; j < n; j++) {
        double dot = 0;
        for (int d = 0; d < w->HS; d++) dot += value(q[d]) * value(w->k[at_kv(w, slot, g, j) + d]);
        s[j] = eager ? tv_round_bf16(tv_round_bf16((float)dot) * w->scale) : dot * w->scale;
        if (s[j] > max) max = s[j];
    }
    for (int j = 0; j < n; j++) sum += s[j] = exp(s[j] - max);
    for (int d = 0; d < w->HS; d++) out[d] = weight[d] = 0;
    for (int j = 0; j < n; j++) {
        double p = eager ? tv_round_bf16((float)(s[j] / sum)) : s[j] / sum;
        for (int d = 0; d < w->HS; d++) {
            double v = value(w->v[at_kv(w, slot, g, j) + d]);
            out[d] += p * v;
            weight[d] += p * fabs(v);
        }
    }
    free(s);
}

/* Compares a row's heads with the reference. Half a bf16 step is up to 2^-8 of a value. math rounds once; flash rounds
 * P as well; eager is compared with its own rounding points, where a score beside a tie may fall to the other side,
 * rarely. */
static void check_row(const world *w, const char *name, int slot, int pos, const tv_bf16 *out) {
    double *want = malloc((size_t)w->HS * sizeof *want), *weight = malloc((size_t)w->HS * sizeof *weight);
    int eager = !strcmp(name, "eager"), far = 0;
    for (int h = 0; h < w->H; h++) {
        reference(w, slot, h, pos, eager, want, weight);
        for (int d = 0; d < w->HS; d++) {
            double got = value(out[(size_t)h * w->HS + d]), off = fabs(got - want[d]);
            double tight = 0x1.01p-8 * fabs(want[d]) + 2e-6 * (1 + weight[d]);
            double bound = !strcmp(name, "math") ? tight : tight + weight[d] * (eager ? 0x1p-4 : 0x1p-8);
            if (!(off <= tight + 0x1p-9 * weight[d])) far++;
            if (!(off <= bound)) {
                char what[160];
                snprintf(what, sizeof what, "%s HS=%d H=%d G=%d pos=%d head %d element %d: got %g, want %g", name,
                         w->HS, w->H, w->G, pos, h, d, got, want[d]);
                tv_check_true(0, what, __FILE__, __LINE__);
                h = w->H;
                break;
            }
        }
    }
    if (eager) CHECK(far <= w->H * w->HS / 4);
    free(want), free(weight);
}

static const int lengths[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 512};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

/* Every backend at every length around a tile's edge, for each number of heads per kv head and head size. */
static void test_attention_reference(void) {
    static const struct {
        int H, G, HS;
    } shapes[] = {{2, 2, 64}, {4, 2, 16}, {4, 1, 32}, {8, 1, 24}, {4, 2, 128}, {14, 2, 64}, {2, 1, 8}, {2, 1, 256}};
    tv_dev *dev = open_dev("auto", 2);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        world w = make(100 + i, 1, shapes[i].H, shapes[i].G, 512, shapes[i].HS);
        for (int b = 0; b < N_NAMES; b++)
            for (int l = 0; l < N_LENGTHS; l++) {
                tv_segment s = {0, 0, 1, lengths[l] - 1};
                tv_bf16 *out = run(dev, &w, names[b], (tv_attn_plan){FIXED_TILE, FIXED_SPLIT}, &s, 1);
                check_row(&w, names[b], 0, lengths[l] - 1, out);
                free(out);
            }
        drop(&w);
    }
    tv_ops_cpu.close(dev);
}

/* Any tile and split, also odd ones, one longer than the row, and splits of one key: A07's empty splits, -inf against
 * -inf. */
static void test_attention_splits(void) {
    static const tv_attn_plan plans[] = {{16, 16},      {16, 64},   {64, 64},     {64, 128},
                                         {64, 1 << 20}, {7, 21},    {1, 1},       {3, 3},
                                         {48, 48},      {512, 512}, {4096, 4096}, {64, INT32_MAX / 64 * 64}};
    tv_dev *dev = open_dev("auto", 1);
    world w = make(7, 1, 4, 2, 520, 32);
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++)
        for (int l = 0; l < N_LENGTHS; l++) {
            tv_segment s = {0, 0, 1, lengths[l] - 1};
            tv_bf16 *out = run(dev, &w, "flash", plans[p], &s, 1);
            check_row(&w, "flash", 0, lengths[l] - 1, out);
            free(out);
        }
    drop(&w);
    tv_ops_cpu.close(dev);
}

/* All scores -120, all +120, and one key far above or below the rest (A10): no overflow, no NaN. */
static void test_attention_extreme_scores(void) {
    tv_dev *dev = open_dev("auto", 1);
    for (int kind = 0; kind < 4; kind++) {
        world w = make(11 + kind, 1, 4, 2, 130, 16);
        for (int pos = 0; pos < w.S; pos++)
            for (int h = 0; h < w.H; h++)
                for (int d = 0; d < w.HS; d++) w.q[((size_t)pos * w.H + h) * w.HS + d] = tv_bf16_from_f32(d ? 0 : 8);
        for (int g = 0; g < w.G; g++)
            for (int j = 0; j < w.S; j++) {
                double score = kind == 0   ? -120
                               : kind == 1 ? 120
                               : kind == 2 ? (j == 70 ? 120 : -120)
                                           : (j == 70 ? -1e4 : 1);
                for (int d = 0; d < w.HS; d++)
                    w.k[at_kv(&w, 0, g, j) + d] = tv_bf16_from_f32(d ? 1 : (float)(score / 2));
            }
        for (int b = 0; b < N_NAMES; b++)
            for (int l = 0; l < N_LENGTHS - 1; l++) {
                tv_segment s = {0, 0, 1, lengths[l] - 1};
                tv_bf16 *out = run(dev, &w, names[b], (tv_attn_plan){16, 32}, &s, 1);
                check_row(&w, names[b], 0, lengths[l] - 1, out);
                free(out);
            }
        drop(&w);
    }
    tv_ops_cpu.close(dev);
}

/* One prompt whole, in chunks of 1, 7, 16 and 40, and row by row: the same bits on each path, with all cache positions
 * not yet written poisoned in both K and V (K02, K08, A13); the whole prompt also against f64. */
static void test_attention_prefill_is_chunks_is_decode(void) {
    static const int chunks[] = {1, 7, 16, 40, 300};
    tv_dev *dev = open_dev("auto", 2);
    static const struct { int H, G, HS; } shapes[] = {{4, 2, 16}, {6, 2, 64}, {8, 1, 32}, {3, 3, 128}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int L = 300;
        world w = make(20 + i, 2, shapes[i].H, shapes[i].G, L + 20, shapes[i].HS), full = w;
        size_t cache = (size_t)w.slots * w.G * w.S * w.HS, row = (size_t)w.H * w.HS;
        for (int b = 0; b < N_NAMES; b++) {
            tv_bf16 *first = NULL;
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
                tv_bf16 *out = malloc((size_t)L * row * sizeof *out);
                w.k = malloc(cache * sizeof *w.k), w.v = malloc(cache * sizeof *w.v);
                for (size_t j = 0; j < cache; j++) w.k[j] = w.v[j] = POISON;
                for (int pos = 0; pos < L; pos += chunks[c]) {
                    int n = L - pos < chunks[c] ? L - pos : chunks[c];
                    for (int g = 0; g < w.G; g++) {
                        memcpy(w.k + at_kv(&w, 1, g, pos), full.k + at_kv(&w, 1, g, pos),
                               (size_t)n * w.HS * sizeof *w.k);
                        memcpy(w.v + at_kv(&w, 1, g, pos), full.v + at_kv(&w, 1, g, pos),
                               (size_t)n * w.HS * sizeof *w.v);
                    }
                    tv_segment s = {1, 0, n, pos};
                    tv_bf16 *part = run(dev, &w, names[b], (tv_attn_plan){FIXED_TILE, 128}, &s, 1);
                    memcpy(out + (size_t)pos * row, part, (size_t)n * row * sizeof *out);
                    free(part);
                }
                free(w.k), free(w.v);
                if (first) {
                    CHECK_BYTES(out, first, (size_t)L * row * sizeof *out);
                    free(out);
                } else {
                    first = out;
                }
            }
            for (int pos = 0; pos < L; pos += 37) check_row(&full, names[b], 1, pos, first + (size_t)pos * row);
            free(first);
        }
        drop(&full);
    }
    tv_ops_cpu.close(dev);
}

/* A row must not see later rows of its own chunk either: poison them and nothing before changes. */
static void test_attention_causal_in_chunk(void) {
    tv_dev *dev = open_dev("auto", 1);
    world w = make(31, 1, 4, 2, 64, 32);
    size_t row = (size_t)w.H * w.HS;
    tv_segment s = {0, 0, 40, 0};
    for (int b = 0; b < N_NAMES; b++)
        for (int from = 39; from > 0; from -= 13) {
            tv_bf16 *clean = run(dev, &w, names[b], (tv_attn_plan){16, 32}, &s, 1);
            world p = make(31, 1, 4, 2, 64, 32);
            for (int g = 0; g < w.G; g++)
                for (size_t j = at_kv(&w, 0, g, from); j < at_kv(&w, 0, g, 0) + (size_t)w.S * w.HS; j++)
                    p.k[j] = p.v[j] = POISON;
            tv_bf16 *poisoned = run(dev, &p, names[b], (tv_attn_plan){16, 32}, &s, 1);
            CHECK_BYTES(poisoned, clean, (size_t)from * row * sizeof *clean);
            CHECK(isnan(tv_f32_from_bf16(poisoned[(size_t)from * row]))); /* a NaN that is seen is not hidden */
            free(clean), free(poisoned), drop(&p);
        }
    drop(&w);
    tv_ops_cpu.close(dev);
}

/* Decode rows and prompt chunks mixed in one call, rows in any order, one and two threads, scalar and vector code: each
 * segment has the bits that it has alone. */
static void test_attention_batch_invariance(void) {
    static const tv_segment mixed[] = {{3, 40, 1, 99},  {0, 0, 25, 60},  {5, 41, 1, 0}, {2, 25, 15, 0},
                                       {1, 42, 1, 511}, {4, 43, 7, 250}, {6, 50, 2, 63}};
    enum { N = sizeof mixed / sizeof *mixed };
    world w = make(41, 7, 6, 2, 512, 40);
    size_t row = (size_t)w.H * w.HS;
    tv_dev *scalar = open_dev("scalar", 1);
    for (int b = 0; b < N_NAMES; b++) {
        tv_attn_plan plan = {FIXED_TILE, FIXED_SPLIT};
        tv_bf16 *alone[N];
        for (int i = 0; i < N; i++) {
            tv_segment s = mixed[i];
            s.row = 0;
            alone[i] = run(scalar, &w, names[b], plan, &s, 1);
        }
        for (int threads = 1; threads <= 3; threads++)
            for (int vector = 0; vector < 2; vector++) {
                tv_dev *dev = open_dev(vector ? "avx2" : "scalar", threads);
                if (!dev) continue;
                tv_bf16 *out = run(dev, &w, names[b], plan, mixed, N);
                for (int i = 0; i < N; i++)
                    CHECK_BYTES(out + (size_t)mixed[i].row * row, alone[i],
                                (size_t)mixed[i].n_rows * row * sizeof *out);
                free(out);
                tv_ops_cpu.close(dev);
            }
        for (int i = 0; i < N; i++) free(alone[i]);
    }
    tv_ops_cpu.close(scalar);
    drop(&w);
}

/* Units of many rows are computed by kernels of their own: chunks that begin and end anywhere, under tiles of any size,
 * have the bits of each row alone, for ragged heads and every number of heads per kv head, whatever stands behind. */
static void test_attention_many_rows_are_each_alone(void) {
    static const struct {
        int H, G, HS;
    } shapes[] = {{1, 1, 8},  {4, 2, 24}, {3, 1, 40},  {8, 2, 64}, {10, 2, 16},
                  {6, 1, 72}, {7, 1, 32}, {8, 1, 128}, {13, 1, 8}, {2, 2, 256}};
    static const tv_attn_plan plans[] = {{16, 16}, {64, 128}, {7, 21}, {48, 48}, {100, 200}, {1, 3}};
    static const struct {
        int pos, n;
    } chunks[] = {{130, 33}, {61, 67}, {0, 70}, {5, 12}}; /* by their ends, from the last */
    enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_PLANS = sizeof plans / sizeof *plans, N_CHUNKS = 4 };
    static const char *const isas[] = {"scalar", "avx2"};
    tv_dev *dev[2] = {open_dev(isas[0], 1), open_dev(isas[1], 1)};
    for (int i = 0; i < N_SHAPES; i++) {
        world w = make(70 + (uint64_t)i, 1, shapes[i].H, shapes[i].G, 170, shapes[i].HS);
        size_t row = (size_t)w.H * w.HS;
        for (int c = 0; c < N_CHUNKS; c++) {
            const int pos = chunks[c].pos, n = chunks[c].n;
            for (int g = 0; g < w.G; g++)
                for (size_t j = at_kv(&w, 0, g, pos + n); j < at_kv(&w, 0, g, 0) + (size_t)w.S * w.HS; j++)
                    w.k[j] = w.v[j] = POISON;
            for (int b = 0; b < N_NAMES; b++) {
                const tv_attn_plan plan = plans[(i + c + b) % N_PLANS];
                tv_bf16 *alone = malloc((size_t)n * row * sizeof *alone);
                for (int r = 0; r < n; r++) {
                    tv_segment s = {0, 0, 1, pos + r};
                    tv_bf16 *out = run(dev[1] ? dev[1] : dev[0], &w, names[b], plan, &s, 1);
                    memcpy(alone + (size_t)r * row, out, row * sizeof *out);
                    free(out);
                }
                for (int d = 0; d < 2; d++) {
                    if (!dev[d]) continue;
                    tv_segment s = {0, 0, n, pos};
                    tv_bf16 *out = run(dev[d], &w, names[b], plan, &s, 1);
                    CHECK_BYTES(out, alone, (size_t)n * row * sizeof *out);
                    free(out);
                }
                free(alone);
            }
        }
        drop(&w);
    }
    for (int d = 0; d < 2; d++)
        if (dev[d]) tv_ops_cpu.close(dev[d]);
}

/* Different plans differ (else there would be no drift to measure); math and eager do not look at the plan. */
static void test_attention_plan_reaches_flash_only(void) {
    tv_dev *dev = open_dev("auto", 1);
    world w = make(51, 1, 8, 2, 512, 64);
    tv_segment s = {0, 0, 1, 400};
    for (int b = 0; b < N_NAMES; b++) {
        tv_bf16 *one = run(dev, &w, names[b], (tv_attn_plan){64, 512}, &s, 1);
        tv_bf16 *two = run(dev, &w, names[b], (tv_attn_plan){16, 48}, &s, 1);
        int differ = memcmp(one, two, (size_t)w.H * w.HS * sizeof *one) != 0;
        CHECK_INT(differ, !strcmp(names[b], "flash"));
        free(one), free(two);
    }
    drop(&w);
    tv_ops_cpu.close(dev);
}

/* The bits of another machine: what an x86-64 with AVX2 computed, aarch64 and baseline code must compute too. Inputs
 * come from integers, so that no mathematical library takes part. */
static void test_attention_bits_across_machines(void) {
    static const uint64_t want[N_NAMES] = {0x719e5ed3cfdcb707, 0xf2ad61be071221d3, 0x3652a0ed2e8c68c8};
    tv_dev *dev = open_dev("auto", 1);
    world w = make(61, 1, 6, 2, 200, 72);
    tv_rng rng = {62};
    size_t cache = (size_t)w.G * w.S * w.HS, queries = (size_t)w.S * w.H * w.HS;
    for (size_t i = 0; i < cache; i++) {
        w.k[i] = tv_bf16_from_f32((float)((int)(tv_rng_next(&rng) >> 40 & 1023) - 512) / 256);
        w.v[i] = tv_bf16_from_f32((float)((int)(tv_rng_next(&rng) >> 40 & 1023) - 512) / 256);
    }
    for (size_t i = 0; i < queries; i++)
        w.q[i] = tv_bf16_from_f32((float)((int)(tv_rng_next(&rng) >> 40 & 1023) - 512) / 128);
    w.scale = 0.1171875f;
    tv_segment s = {0, 0, 200, 0};
    for (int b = 0; b < N_NAMES; b++) {
        tv_bf16 *out = run(dev, &w, names[b], (tv_attn_plan){16, 48}, &s, 1);
        uint64_t hash = 14695981039346656037u;
        for (size_t i = 0; i < queries; i++) hash = (hash ^ out[i]) * 1099511628211u;
        if (!CHECK(hash == want[b])) fprintf(stderr, "    %s: %#llx\n", names[b], (unsigned long long)hash);
        free(out);
    }
    drop(&w);
    tv_ops_cpu.close(dev);
}

static void test_attention_choose(void) {
    tv_err err = {0};
    const tv_attn_backend *b = NULL;
    tv_attn_limits limits = {.device = "cpu", .H = 16, .G = 8, .HS = 128, .max_batch = 32, .max_keys = 512};
    CHECK_OK(tv_attn_choose(&limits, "auto", &b, &err), &err);
    CHECK_STR(b->name, "flash");
    for (int i = 0; i < N_NAMES; i++) {
        CHECK_OK(tv_attn_choose(&limits, names[i], &b, &err), &err);
        CHECK_STR(b->name, names[i]);
    }
    CHECK_FAILS(tv_attn_choose(&limits, "cudnn", &b, &err), TV_EUNSUPPORTED, &err, "cudnn needs a CUDA device");
    CHECK_FAILS(tv_attn_choose(&limits, "cudnn", &b, &err), TV_EUNSUPPORTED, &err,
                "flash (available), math (available), eager (available)");
    CHECK_FAILS(tv_attn_choose(&limits, "flsh", &b, &err), TV_EARG, &err, "flsh is unknown");
    CHECK_FAILS(tv_attn_choose(&limits, "", &b, &err), TV_EARG, &err, "flash (available)");
    limits.HS = 12;
    CHECK_FAILS(tv_attn_choose(&limits, "math", &b, &err), TV_EUNSUPPORTED, &err, "multiple of 8");
    CHECK_FAILS(tv_attn_choose(&limits, "auto", &b, &err), TV_EUNSUPPORTED, &err, "HS=12");
    limits.HS = 264;
    CHECK_FAILS(tv_attn_choose(&limits, "flash", &b, &err), TV_EUNSUPPORTED, &err, "at most 256");
    limits.HS = 128, limits.G = 3;
    CHECK_FAILS(tv_attn_choose(&limits, "eager", &b, &err), TV_EUNSUPPORTED, &err, "multiple of the kv heads");
    limits.G = 8, limits.device = "abacus";
    CHECK_FAILS(tv_attn_choose(&limits, "auto", &b, &err), TV_EUNSUPPORTED, &err, "none");
    int n = 0;
    CHECK(tv_attn_backends(&n) != NULL);
    CHECK(n >= N_NAMES);
}

/* Arguments that no backend may run: each is refused before anything is touched. */
static void test_attention_refuses(void) {
    tv_dev *dev = open_dev("auto", 1);
    tv_err err = {0};
    tv_bf16 q[2 * 12] = {0}, k[2 * 12] = {0}, v[2 * 12] = {0}, out[2 * 12];
    tv_segment s = {0, 0, 1, 0};
    const tv_attn_args good = {.q = q,
                               .kv = {.k = k, .v = v, .slots = 1, .G = 1, .S = 2, .HS = 8},
                               .out = out,
                               .segments = &s,
                               .n_segments = 1,
                               .M = 1,
                               .H = 1,
                               .scale = 1,
                               .plan = {16, 16}};
    for (int b = 0; b < N_NAMES; b++) {
        tv_status (*fn)(tv_dev *, const tv_attn_args *, tv_err *) = backend(names[b], 1, 1, 8)->run;
        CHECK_OK(fn(dev, &good, &err), &err);
        tv_attn_args a = good;
        a.kv.HS = 12;
        CHECK_FAILS(fn(dev, &a, &err), TV_EUNSUPPORTED, &err, "HS=12");
        a = good, a.plan.split_keys = 17;
        CHECK_FAILS(fn(dev, &a, &err), TV_EARG, &err, "17");
        a = good, a.q = NULL;
        CHECK_FAILS(fn(dev, &a, &err), TV_EARG, &err, "q");
        tv_segment beyond = {0, 0, 1, 2};
        a = good, a.segments = &beyond;
        CHECK_FAILS(fn(dev, &a, &err), TV_EARG, &err, NULL);
    }
    tv_ops_cpu.close(dev);
}

static const tv_test tests[] = {
    {"attention_reference", test_attention_reference},
    {"attention_splits", test_attention_splits},
    {"attention_extreme_scores", test_attention_extreme_scores},
    {"attention_prefill_is_chunks_is_decode", test_attention_prefill_is_chunks_is_decode},
    {"attention_causal_in_chunk", test_attention_causal_in_chunk},
    {"attention_batch_invariance", test_attention_batch_invariance},
    {"attention_many_rows_are_each_alone", test_attention_many_rows_are_each_alone},
    {"attention_plan_reaches_flash_only", test_attention_plan_reaches_flash_only},
    {"attention_bits_across_machines", test_attention_bits_across_machines},
    {"attention_choose", test_attention_choose},
    {"attention_refuses", test_attention_refuses},
};
TV_TEST_MAIN(tests)
