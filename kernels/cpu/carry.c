/* Token ids from one step to the next. */
#include "kernels/cpu/cpu.h"

tv_status cpu_carry(tv_dev *dev, const tv_carry_args *a, tv_err *err) {
    (void)dev;
    TV_TRY(tv_check_carry(a, err));
    for (int i = 0; i < a->n; i++) {
        int to = a->to_at ? a->to_at[i] : i, from = a->from_at ? a->from_at[i] : i;
        if (to >= 0 && from >= 0 && a->from[from] >= 0) a->to[to] = a->from[from];
    }
    return TV_OK;
}
