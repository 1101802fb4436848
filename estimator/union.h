/* The union of the ids of several top-k records of one cell, with sums that belong to each id. */
#ifndef TV_UNION_H
#define TV_UNION_H

#include <stdint.h>

enum { TV_UNION_SUMS = 4 };

typedef struct {
    int64_t n, capacity;
    int32_t *ids;               /* [capacity] */
    double *sum[TV_UNION_SUMS]; /* [capacity] each */
} tv_union;

/* Place of id, added with zero sums where it is new. hint: where it was in the record before (records of one cell
 * mostly agree in order). The caller keeps capacity >= the ids that can occur. */
static inline int64_t tv_union_at(tv_union *u, int32_t id, int64_t hint) {
    if (hint < u->n && u->ids[hint] == id) return hint;
    for (int64_t j = 0; j < u->n; j++)
        if (u->ids[j] == id) return j;
    u->ids[u->n] = id;
    for (int c = 0; c < TV_UNION_SUMS; c++) u->sum[c][u->n] = 0;
    return u->n++;
}

/* 1 when there was memory. One allocation, behind ids. */
int tv_union_open(tv_union *u, int64_t capacity);
void tv_union_close(tv_union *u);

#endif
