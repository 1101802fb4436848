/* Weights as an engine with quantized weights computes on them: rounded to integers with a scale, and back to bf16. */
#ifndef TV_QUANTIZE_H
#define TV_QUANTIZE_H

#include "kernels/ops.h"

typedef enum {
    TV_WEIGHTS_BF16,
    TV_WEIGHTS_INT8, /* symmetric, a scale for each output channel */
    TV_WEIGHTS_INT4  /* symmetric, a scale for every 128 inputs of an output channel */
} tv_weight_dtype;

enum { TV_INT4_GROUP = 128 };

const char *tv_weight_dtype_name(tv_weight_dtype dtype); /* "bf16", "int8", "int4" */

/* Rows [N,K] bf16 (any alignment, finite) as integers with a scale for each group: s = r(a / 127) (int8) or r(a / 7.5)
 * (int4) with a the group's largest magnitude and r rounding to bf16; q = w / s rounded to the nearest even integer in
 * -127 .. 127 (int8) or -8 .. 7 (int4), 0 where s is. *out is malloc'd; 0 when there is no memory. */
int tv_weights_pack(tv_weight_dtype dtype, const void *rows, int N, int K, tv_packed_rows *out);
void tv_weights_packed_free(tv_packed_rows *rows);

/* out [N,K] bf16 = what rows are in dtype: an element is r(q * s), and no zero is negative. */
void tv_weights_quantize(tv_weight_dtype dtype, const void *rows, int N, int K, tv_bf16 *out);

#endif
