/* Cuts a step of attention into units, shares them out among the threads, and holds what whole-row backends share. */
#include "kernels/cpu/attention.h"

#include <string.h>

static size_t round_up(size_t x, size_t to) { return (x + to - 1) / to * to; }

/* The running threads' view of one call. Units are numbered segment by segment, then by tile of positions, then by kv
 * head; each thread takes the next number and walks its own cursor forward to it. */
typedef struct {
    int segment;
    int64_t first; /* number of the segment's first unit */
} cursor;

static int64_t segment_units(const tv_segment *s, int positions, int G) {
    return (int64_t)((s->n_rows + positions - 1) / positions) * G;
}

static void fill_unit(cpu_attn_unit *u, float *q, int *n_keys, const tv_segment *s, int64_t number, int positions) {
    const tv_attn_args *a = u->a;
    const int G = a->kv.G, HS = a->kv.HS, heads = a->H / G, g = (int)(number % G);
    int first = (int)(number / G) * positions, n = s->n_rows - first < positions ? s->n_rows - first : positions;
    size_t cache = ((size_t)s->slot * G + g) * a->kv.S * HS;
    u->k = a->kv.k + cache;
    u->v = a->kv.v + cache;
    u->rows = n * heads;
    for (int j = 0, r = 0; j < n; j++)
        for (int h = 0; h < heads; h++, r++) {
            size_t at = ((size_t)(s->row + first + j) * a->H + (size_t)g * heads + h) * HS;
            u->ops->widen(a->q + at, q + (size_t)r * HS, HS);
            u->out[r] = a->out + at;
            n_keys[r] = s->pos + first + j + 1;
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
    int threads = cpu_threads_for(dev, operations);
    if (threads > units) threads = (int)units;

    size_t out_bytes = round_up((size_t)rows * sizeof(tv_bf16 *), 64),
           int_bytes = round_up((size_t)rows * sizeof(int), 64);
    size_t q_bytes = round_up((size_t)rows * HS * sizeof(float), 64), own_bytes = round_up(floats * sizeof(float), 64);
    size_t thread_bytes = out_bytes + 2 * int_bytes + q_bytes + own_bytes;
    void *scratch;
    TV_TRY(cpu_scratch(dev, CPU_SCRATCH_ATTENTION, thread_bytes * (size_t)dev->threads, &scratch, err));

    int64_t next = 0;
    int claimed = 0;
#pragma omp parallel num_threads(threads)
    {
        int mine;
#pragma omp atomic capture
        mine = claimed++;
        char *p = (char *)scratch + thread_bytes * (size_t)mine;
        int *n_keys = (int *)(void *)(p + out_bytes);
        float *q = (float *)(void *)(p + out_bytes + 2 * int_bytes);
        cpu_attn_unit u = {.a = a,
                           .ops = cpu_ops_for(dev),
                           .HS = HS,
                           .stride = stride,
                           .n_keys = n_keys,
                           .tile_keys = (int *)(void *)(p + out_bytes + int_bytes),
                           .q = q,
                           .scratch = (float *)(void *)(p + out_bytes + 2 * int_bytes + q_bytes),
                           .out = (tv_bf16 **)(void *)p};
        cursor c = {0, 0};
        for (;;) {
            int64_t number;
#pragma omp atomic capture
            number = next++;
            if (number >= units) break;
            for (int64_t n; number >= c.first + (n = segment_units(&a->segments[c.segment], positions, G)); c.segment++)
                c.first += n;
            fill_unit(&u, q, n_keys, &a->segments[c.segment], number - c.first, positions);
            unit(&u);
        }
    }
    return TV_OK;
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
    size_t stride = round_up((size_t)longest, 8), fit = cached / stride;
    int rows = cpu_attn_unit_rows(a, fit < CPU_ATTN_ROWS ? (int)fit : CPU_ATTN_ROWS);
    size_t most = (size_t)cpu_attn_unit_rows(a, CPU_ATTN_ROWS) * a->kv.HS;
    size_t one_position = (size_t)(a->H / a->kv.G) * round_up((size_t)a->kv.S, 8);
    return cpu_attn_run(dev, a, rows, most + (one_position > cached ? one_position : cached), stride, unit, err);
}

void cpu_attn_whole_rows(const cpu_attn_unit *u, void (*softmax)(float *s, int n, float scale)) {
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
