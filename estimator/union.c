#include "estimator/union.h"

#include <stdlib.h>

int tv_union_open(tv_union *u, int64_t capacity) {
    double *at = malloc((size_t)capacity * (TV_UNION_SUMS * sizeof(double) + sizeof(int32_t)));
    u->n = 0;
    u->capacity = capacity;
    u->ids = NULL;
    for (int c = 0; c < TV_UNION_SUMS; c++) u->sum[c] = at ? at + c * capacity : NULL;
    if (at) u->ids = (int32_t *)(at + TV_UNION_SUMS * capacity);
    return at != NULL;
}

void tv_union_close(tv_union *u) {
    free(u->sum[0]);
    u->ids = NULL;
    u->sum[0] = NULL;
}
