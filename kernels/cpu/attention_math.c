/* The math backend: scores, softmax and output in f32 over the whole row, one rounding at the end. */
#include "kernels/cpu/attention.h"

static void unit(const cpu_attn_unit *u) { cpu_attn_whole_rows(u, u->ops->softmax_math, u->ops->columns_softmax_math); }

tv_status cpu_attn_math(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    return cpu_attn_run_whole_rows(dev, a, unit, err);
}
