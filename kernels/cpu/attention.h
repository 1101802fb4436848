/* Attention of the CPU device: how a step is cut into units of work, and the backends that compute a unit. */
#ifndef TV_CPU_ATTENTION_H
#define TV_CPU_ATTENTION_H

#include "kernels/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"

enum {
    CPU_ATTN_HEAD_STEP = 8,  /* head sizes are multiples of this ... */
    CPU_ATTN_MAX_HEAD = 256, /* ... up to this */
    CPU_ATTN_ROWS = 64,      /* query rows (positions x heads of one kv head) of a unit, unless one position has more */
    CPU_ATTN_COLUMNS = 12,   /* rows of a unit from which on each gets a lane of its own (isa_columns.h) ... */
    CPU_ATTN_GROUP = 16,     /* ... in groups of so many */
    CPU_ATTN_KEYS = 64 /* keys that a unit passes all its rows over before it goes on: they stay in the L1 cache */
};

/* Stores x [HS] bf16 as the cache row of (slot, g, pos) in a cache whose elements are bytes: scale = the row's largest
 * magnitude / the dtype's largest value. A row that is not finite gets a NaN for scale, so that it reads as NaN. */
void cpu_kv_quantize(const tv_kv_layer *kv, void *cache, float *scales, int slot, int g, int pos, const tv_bf16 *x);
/* The first n positions of (slot, g) as [n,HS] bf16: each element round(value * scale). */
void cpu_kv_dequantize(const tv_kv_layer *kv, const void *cache, const float *scales, int slot, int g, int n,
                       tv_bf16 *out);

/* Some positions of one segment with all query heads of one kv head, so that its keys and values are read once. Rows
 * are ordered by position, then head. */
typedef struct {
    const tv_attn_args *a;
    const cpu_ops_isa *ops;
    const tv_bf16 *k, *v; /* [longest,HS] bf16 of this slot and kv head: the cache's rows, or what they dequantize to */
    int rows, HS;
    const int *n_keys; /* [rows] keys that each row sees, ascending */
    int *tile_keys;    /* [rows] for the backend's use */
    const float *q;    /* [rows,HS] f32 */
    float *scratch;    /* [floats] f32 for the backend's use */
    size_t stride;     /* as given to cpu_attn_run */
    tv_bf16 **out;     /* [rows] each to [HS] bf16 */
} cpu_attn_unit;

/* Computes every unit of a checked step with `unit` on the device's threads. max_rows: most rows of a unit (a
 * unit always holds at least one position with all its heads); floats: scratch of a unit; stride: handed to the units.
 * A row's result must not depend on what else its unit holds. */
TV_NODISCARD tv_status cpu_attn_run(tv_dev *dev, const tv_attn_args *a, int max_rows, size_t floats, size_t stride,
                                    void (*unit)(const cpu_attn_unit *u), tv_err *err);
/* Most rows that a unit has under max_rows. */
int cpu_attn_unit_rows(const tv_attn_args *a, int max_rows);

/* The shape both whole-row backends share: scores of all keys, `softmax` on each row, weighted values, one rounding. */
TV_NODISCARD tv_status cpu_attn_run_whole_rows(tv_dev *dev, const tv_attn_args *a, void (*unit)(const cpu_attn_unit *u),
                                               tv_err *err);
void cpu_attn_whole_rows(const cpu_attn_unit *u, void (*softmax)(float *s, int n, float scale),
                         void (*columns_softmax)(float *s, size_t ld, const int *n_keys, int rows, float scale));

tv_status cpu_attn_math(tv_dev *dev, const tv_attn_args *a, tv_err *err);
tv_status cpu_attn_eager(tv_dev *dev, const tv_attn_args *a, tv_err *err);
tv_status cpu_attn_flash(tv_dev *dev, const tv_attn_args *a, tv_err *err);

#endif
