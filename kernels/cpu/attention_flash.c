/* The flash backend: tiles of keys with an online softmax in f32, P rounded to bf16 before P V, splits of keys merged
 * in f32.
 *
 * Each split runs over its tiles in ascending order from an empty state; the first split's state (maximum m, sum l,
 * output o not yet divided) is taken as it is, every further one is merged into it in ascending order, and o / l is
 * rounded. Splits and tiles are counted from key 0, and a row has only the splits that hold a key it sees: its bits
 * depend on the plan and on its own keys, not on whether it came alone or in a chunk. */
#include "kernels/cpu/attention.h"

#include <math.h>
#include <string.h>

/* Floats for one of each row; vectors may begin at any row. */
static size_t columns_ld(int rows) {
    return ((size_t)rows + 2 * (CPU_ATTN_GROUP - 1)) / CPU_ATTN_GROUP * CPU_ATTN_GROUP;
}

static int smaller(int a, int b) { return a < b ? a : b; }

/* Rows first .. rows-1 over the keys begin .. end-1 of one split. */
static void run_split(const cpu_attn_unit *u, int first, int begin, int end, float *m, float *sum, float *acc,
                      float *s) {
    const int HS = u->HS, tile = u->a->plan.key_tile, rows = u->rows;
    const size_t ld = u->stride;
    for (int r = first; r < rows; r++) m[r] = -INFINITY, sum[r] = 0;
    memset(acc + (size_t)first * HS, 0, (size_t)(rows - first) * HS * sizeof *acc);
    for (int t = begin, n; t < end; t += n) {
        n = smaller(tile, end - t);
        while (u->n_keys[first] <= t) first++;
        const tv_bf16 *k = u->k + (size_t)t * HS, *v = u->v + (size_t)t * HS;
        u->ops->scores(u->q + (size_t)first * HS, rows - first, HS, k, n, s + first * ld, ld, v);
        for (int r = first; r < rows; r++) {
            u->tile_keys[r] = smaller(n, u->n_keys[r] - t);
            u->ops->softmax_tile(s + r * ld, u->tile_keys[r], u->a->scale, &m[r], &sum[r], acc + (size_t)r * HS, HS);
        }
        /* The next tile's keys, also where that is the next split's first. */
        const tv_bf16 *next = u->n_keys[rows - 1] - t >= 2 * n ? k + (size_t)n * HS : NULL;
        u->ops->values(s + first * ld, ld, u->tile_keys + first, rows - first, HS, v, acc + (size_t)first * HS, next);
    }
}

/* The same with rows in columns: q [HS,ld]. */
static void run_split_columns(const cpu_attn_unit *u, const float *q, size_t ld, int first, int begin, int end,
                              float *m, float *sum, float *shrink, float *acc, float *s) {
    const int HS = u->HS;
    for (size_t r = (size_t)first; r < ld; r++) m[r] = -INFINITY, sum[r] = 0;
    for (int t = begin, n; t < end; t += n) {
        n = smaller(u->a->plan.key_tile, end - t);
        while (u->n_keys[first] <= t) first++;
        const int *n_keys = u->n_keys + first, rows = u->rows - first;
        u->ops->columns_scores(q + first, ld, n_keys, rows, HS, u->k + (size_t)t * HS, t, n, s + first);
        u->ops->columns_softmax_tile(s + first, ld, n_keys, rows, t, n, u->a->scale, m + first, sum + first,
                                     shrink + first);
        u->ops->columns_values(s + first, ld, n_keys, rows, HS, u->v + (size_t)t * HS, t, n,
                               t > begin ? shrink + first : NULL, acc + (size_t)first * HS);
    }
}

static void unit(const cpu_attn_unit *u) {
    const int HS = u->HS, rows = u->rows, longest = u->n_keys[rows - 1], split = u->a->plan.split_keys;
    const int columns = rows >= CPU_ATTN_COLUMNS;
    const size_t ld = columns_ld(rows);
    float *o = u->scratch, *acc = o + (size_t)rows * HS;          /* [rows,HS] f32 each: merged, of the running split */
    float *m = acc + (size_t)rows * HS, *sum = m + ld;            /* [ld] f32 of the merged splits */
    float *next_m = sum + ld, *next_sum = next_m + ld;            /* [ld] f32 of the running split */
    float *s = next_sum + ld;                                     /* [rows,stride] f32, or [stride,ld] */
    float *q = s + ld * u->stride, *shrink = q + ld * (size_t)HS; /* [HS,ld], [ld] f32 where rows are columns */
    if (columns) u->ops->columns_turn(u->q, rows, HS, q, ld);
    for (int begin = 0, first = 0, n; begin < longest; begin += n) {
        n = smaller(split, longest - begin);
        while (u->n_keys[first] <= begin) first++;
        float *to = begin ? acc : o, *to_m = begin ? next_m : m, *to_sum = begin ? next_sum : sum;
        if (columns)
            run_split_columns(u, q, ld, first, begin, begin + n, to_m, to_sum, shrink, to, s);
        else
            run_split(u, first, begin, begin + n, to_m, to_sum, to, s);
        if (begin)
            u->ops->merge(rows - first, m + first, sum + first, o + (size_t)first * HS, next_m + first,
                          next_sum + first, acc + (size_t)first * HS, HS);
    }
    for (int r = 0; r < rows; r++) u->ops->finish(o + (size_t)r * HS, sum[r], u->out[r], HS);
}

tv_status cpu_attn_flash(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    TV_TRY(tv_check_attn(a, err));
    size_t stride = ((size_t)smaller(a->plan.key_tile, a->kv.S) + 7) / 8 * 8; /* a tile's scores in whole vectors */
    /* Sized for the usual tile at least: scratch should not grow when a later step's plan has longer ones. */
    size_t room = stride > CPU_ATTN_KEYS ? stride : CPU_ATTN_KEYS;
    const int rows = cpu_attn_unit_rows(a, CPU_ATTN_ROWS);
    size_t floats = (size_t)rows * 2 * (size_t)a->kv.HS + columns_ld(rows) * (5 + room + (size_t)a->kv.HS);
    return cpu_attn_run(dev, a, CPU_ATTN_ROWS, floats, stride, unit, err);
}
