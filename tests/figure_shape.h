/* What the tests of figures read out of a figure's JSON. */
#ifndef TV_TESTS_FIGURE_SHAPE_H
#define TV_TESTS_FIGURE_SHAPE_H

#include <math.h>

#include "tests/cli_run.h"

/* Sizes that take seconds. */
#define SMALL " -N 24 -n 24 -R 4 --threads 2 -q -o fig"

static inline const cJSON *series(const cJSON *figure, int panel, int number) {
    return cli_at(cJSON_GetArrayItem(cli_at(cJSON_GetArrayItem(cli_at(figure, "panels"), panel), "series"), number),
                  "points");
}

static inline double value(const cJSON *point, int i) {
    const cJSON *item = cJSON_GetArrayItem(point, i);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static inline int monotone(const cJSON *points) {
    double last = -INFINITY;
    const cJSON *p;
    cJSON_ArrayForEach(p, points) {
        if (!(value(p, 1) >= last)) return 0;
        last = value(p, 1);
    }
    return cJSON_GetArraySize(points) > 1;
}

static inline double last(const cJSON *points) {
    return value(cJSON_GetArrayItem(points, cJSON_GetArraySize(points) - 1), 1);
}

#endif
