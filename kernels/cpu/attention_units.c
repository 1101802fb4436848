/* Cuts a step of attention into units, shares them out among the threads, and holds what whole-row backends share. */
#include "kernels/cpu/attention.h"

#include <limits.h>
#include <string.h>

static size_t round_up(size_t x, size_t to) { return (x + to - 1) / to * to; }

/* Units are numbered segment by segment, then by tile of positions, then by kv head. They are handed out in ascending
 * order, so that each worker walks a cursor of its own forward to the next. */
typedef struct {
    int segment;
    int64_t first; /* number of the segment's first unit */
} cursor;

static int64_t segment_units(const tv_segment *s, int positions, int G) {
    return (int64_t)((s->n_rows + positions - 1) / positions) * G;
}

/* read: room for [2,S,HS] bf16 where the cache holds bytes. */
static void fill_unit(cpu_attn_unit *u, float *q, int *n_keys, tv_bf16 *read, const tv_segment *s, int64_t number,
                      int positions) {
    const tv_attn_args *a = u->a;
    const int G = a->kv.G, HS = a->kv.HS, heads = a->H / G, g = (int)(number % G);
    int first = (int)(number / G) * positions, n = s->n_rows - first < positions ? s->n_rows - first : positions;
    if (a->kv.dtype == TV_BF16) {
        size_t cache = ((size_t)s->slot * G + g) * a->kv.S * HS;
        u->k = a->kv.k + cache, u->v = a->kv.v + cache;
    } else {
        int n_read = s->pos + first + n;
        tv_bf16 *read_v = read + (size_t)a->kv.S * HS;
        cpu_kv_dequantize(&a->kv, a->kv.k, a->kv.k_scale, s->slot, g, n_read, read);
        cpu_kv_dequantize(&a->kv, a->kv.v, a->kv.v_scale, s->slot, g, n_read, read_v);
        u->k = read, u->v = read_v;
    }
    u->rows = n * heads;
    for (int j = 0, r = 0; j < n; j++)
        for (int h = 0; h < heads; h++, r++) {
            size_t at = ((size_t)(s->row + first + j) * a->H + (size_t)g * heads + h) * HS;
            u->ops->widen(a->q + at, q + (size_t)r * HS, HS);
            u->out[r] = a->out + at;
            n_keys[r] = s->pos + first + j + 1;
        }
}

typedef struct {
    const tv_attn_args *a;
    const cpu_ops_isa *ops;
    void (*unit)(const cpu_attn_unit *u);
    size_t stride;
    int positions;
    char *scratch; /* [threads,worker_bytes]: each worker's cursor, and at these offsets what its units need */
    size_t out, n_keys, tile_keys, q, read, own, worker_bytes;
} job;

static void some_units(void *ctx, int worker, int begin, int end) {
    const job *j = ctx;
    const tv_attn_args *a = j->a;
    char *p = j->scratch + j->worker_bytes * (size_t)worker;
    cursor *c = (cursor *)(void *)p;
    int *n_keys = (int *)(void *)(p + j->n_keys);
    float *q = (float *)(void *)(p + j->q);
    cpu_attn_unit u = {.a = a,
                       .ops = j->ops,
                       .HS = a->kv.HS,
                       .stride = j->stride,
                       .n_keys = n_keys,
                       .tile_keys = (int *)(void *)(p + j->tile_keys),
                       .q = q,
                       .scratch = (float *)(void *)(p + j->own),
                       .out = (tv_bf16 **)(void *)(p + j->out)};
    for (int number = begin; number < end; number++) {
        for (int64_t n; number >= c->first + (n = segment_units(&a->segments[c->segment], j->positions, a->kv.G));
             c->segment++)
            c->first += n;
        fill_unit(&u, q, n_keys, (tv_bf16 *)(void *)(p + j->read), &a->segments[c->segment], number - c->first,
                  j->positions);
        j->unit(&u);
    }
}

int cpu_attn_unit_rows(const tv_attn_args *a, int max_rows) {
    int heads = a->H / a->kv.G;
    return max_rows / heads > 1 ? max_rows / heads * heads : heads;
}

tv_status cpu_attn_run(tv_dev *dev, const tv_attn_args *a, int max_rows, size_t floats, size_t stride,
                       void (*unit)(const cpu_attn_unit *u), tv_err *err) {
    const int G = a->kv.G, HS = a->kv.HS;
    if (HS % CPU_ATTN_HEAD_STEP || HS > CPU_ATTN_MAX_HEAD)
        return TV_FAIL(err, TV_EUNSUPPORTED, "attention: HS=%d must be a multiple of %d, at most %d", HS,
                       CPU_ATTN_HEAD_STEP, CPU_ATTN_MAX_HEAD);
    const int rows = cpu_attn_unit_rows(a, max_rows), positions = rows / (a->H / G);

    int64_t units = 0;
    double operations = 0;
    for (int i = 0; i < a->n_segments; i++) {
        const tv_segment *s = &a->segments[i];
        units += segment_units(s, positions, G);
        operations += 2.0 * s->n_rows * (s->pos + 0.5 * s->n_rows) * a->H * HS;
    }
    if (units > INT_MAX) return TV_FAIL(err, TV_EUNSUPPORTED, "attention: %d rows are too many for one call", a->M);
    int threads = cpu_threads_for(dev, operations);

    job j = {.a = a, .ops = cpu_ops_for(dev), .unit = unit, .stride = stride, .positions = positions};
    j.out = round_up(sizeof(cursor), 64);
    j.n_keys = j.out + round_up((size_t)rows * sizeof(tv_bf16 *), 64);
    j.tile_keys = j.n_keys + round_up((size_t)rows * sizeof(int), 64);
    j.q = j.tile_keys + round_up((size_t)rows * sizeof(int), 64);
    j.read = j.q + round_up((size_t)rows * HS * sizeof(float), 64);
    j.own = j.read + (a->kv.dtype == TV_BF16 ? 0 : round_up(2 * (size_t)a->kv.S * HS * sizeof(tv_bf16), 64));
    j.worker_bytes = j.own + round_up(floats * sizeof(float), 64);
    void *scratch;
    TV_TRY(cpu_scratch(dev, CPU_SCRATCH_ATTENTION, j.worker_bytes * (size_t)dev->threads, &scratch, err));
    j.scratch = scratch;
    for (int i = 0; i < threads; i++) *(cursor *)(void *)(j.scratch + j.worker_bytes * (size_t)i) = (cursor){0, 0};
    cpu_parallel(dev->pool, threads, (int)units, 1, some_units, &j);
    return TV_OK;
}

/* Rows of a unit with those that only fill vectors. */
static size_t columns_of(int rows) {
    return rows < CPU_ATTN_COLUMNS ? (size_t)rows : round_up((size_t)rows, CPU_ATTN_GROUP);
}

tv_status cpu_attn_run_whole_rows(tv_dev *dev, const tv_attn_args *a, void (*unit)(const cpu_attn_unit *u),
                                  tv_err *err) {
    TV_TRY(tv_check_attn(a, err));
    /* The scores of a unit should stay in the L2 cache. Scratch follows the cache's positions, not the step's longest
     * row, so that it does not grow from step to step. */
    const size_t cached = 64 << 10;
    int longest = 0;
    for (int i = 0; i < a->n_segments; i++) {
        int keys = a->segments[i].pos + a->segments[i].n_rows;
        if (keys > longest) longest = keys;
    }
    const int heads = a->H / a->kv.G;
    size_t stride = round_up((size_t)longest, 8), fit = cached / stride;
    if (fit >= CPU_ATTN_GROUP) fit -= fit % CPU_ATTN_GROUP;
    int rows = cpu_attn_unit_rows(a, fit < CPU_ATTN_ROWS ? (int)fit : CPU_ATTN_ROWS);
    size_t most = round_up((size_t)cpu_attn_unit_rows(a, CPU_ATTN_ROWS), CPU_ATTN_GROUP) * 2 * a->kv.HS;
    size_t one_position = columns_of(heads) * round_up((size_t)a->kv.S, 8);
    size_t several = cached / CPU_ATTN_COLUMNS * CPU_ATTN_GROUP;
    return cpu_attn_run(dev, a, rows, most + (one_position > several ? one_position : several), stride, unit, err);
}

static void whole_rows_in_columns(const cpu_attn_unit *u,
                                  void (*softmax)(float *s, size_t ld, const int *n_keys, int rows, float scale)) {
    const int HS = u->HS, rows = u->rows, longest = u->n_keys[rows - 1];
    const size_t ld = columns_of(rows);
    float *acc = u->scratch, *q = acc + ld * (size_t)HS; /* [rows,HS], [HS,ld] f32 */
    float *s = q + ld * (size_t)HS;                      /* [longest,ld] f32 */
    u->ops->columns_turn(u->q, rows, HS, q, ld);
    u->ops->columns_scores(q, ld, u->n_keys, rows, HS, u->k, 0, longest, s);
    softmax(s, ld, u->n_keys, rows, u->a->scale);
    u->ops->columns_values(s, ld, u->n_keys, rows, HS, u->v, 0, longest, NULL, acc);
    for (int r = 0; r < rows; r++) u->ops->finish(acc + (size_t)r * HS, 1.0f, u->out[r], HS);
}

void cpu_attn_whole_rows(const cpu_attn_unit *u, void (*softmax)(float *s, int n, float scale),
                         void (*columns_softmax)(float *s, size_t ld, const int *n_keys, int rows, float scale)) {
    if (u->rows >= CPU_ATTN_COLUMNS) {
        whole_rows_in_columns(u, columns_softmax);
        return;
    }
    const int HS = u->HS, rows = u->rows, longest = u->n_keys[rows - 1];
    const size_t ld = u->stride;
    float *acc = u->scratch, *s = acc + (size_t)rows * HS; /* [rows,HS], [rows,ld] f32 */
    for (int t = 0, first = 0; t < longest; t += CPU_ATTN_KEYS) {
        while (u->n_keys[first] <= t) first++;
        int n = longest - t < CPU_ATTN_KEYS ? longest - t : CPU_ATTN_KEYS;
        const tv_bf16 *k = u->k + (size_t)t * HS, *next = longest - t >= 2 * n ? k + (size_t)n * HS : NULL;
        u->ops->scores(u->q + (size_t)first * HS, rows - first, HS, k, n, s + first * ld + t, ld, next);
    }
    for (int r = 0; r < rows; r++) softmax(s + r * ld, u->n_keys[r], u->a->scale);
    memset(acc, 0, (size_t)rows * HS * sizeof *acc);
    for (int t = 0, first = 0; t < longest; t += CPU_ATTN_KEYS) {
        while (u->n_keys[first] <= t) first++;
        for (int r = first; r < rows; r++) {
            int n = u->n_keys[r] - t;
            u->tile_keys[r] = n < CPU_ATTN_KEYS ? n : CPU_ATTN_KEYS;
        }
        const tv_bf16 *v = u->v + (size_t)t * HS;
        const tv_bf16 *next = longest - t >= 2 * CPU_ATTN_KEYS ? v + (size_t)CPU_ATTN_KEYS * HS : NULL;
        u->ops->values(s + first * ld + t, ld, u->tile_keys + first, rows - first, HS, v, acc + (size_t)first * HS,
                       next);
    }
    for (int r = 0; r < rows; r++) u->ops->finish(acc + (size_t)r * HS, 1.0f, u->out[r], HS);
}
