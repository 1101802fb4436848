/* The eager backend: the separate operations of a framework, each rounding what it returns to bf16: scores, scaled
 * scores, probabilities (softmax itself in f32), output. */
#include "kernels/cpu/attention.h"

static void unit(const cpu_attn_unit *u) {
    cpu_attn_whole_rows(u, u->ops->softmax_eager, u->ops->columns_softmax_eager);
}

tv_status cpu_attn_eager(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    return cpu_attn_run_whole_rows(dev, a, unit, err);
}
