/* Golden trace fixtures as tests see them: the arrays of one file, and a tv_dataset over them. */
#ifndef TV_ESTIMATOR_FIXTURE_H
#define TV_ESTIMATOR_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "check.h"
#include "traces/dataset.h"

typedef struct {
    unsigned char *bytes;
    cJSON *header;   /* safetensors header */
    size_t data;     /* offset of the first tensor */
    cJSON *expected; /* the file's expected values, or NULL */
    tv_dataset set;  /* side a = pi, side b = mu */
    const int32_t *ids[2][2][64];
    const float *lps[2][2][64];
} fixture;

/* The named tensor's bytes; shape receives up to 4 dims. NULL when absent. */
static inline const void *fixture_tensor(const fixture *f, const char *name, int64_t shape[4]) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(f->header, name);
    if (!item) return NULL;
    const cJSON *dims = cJSON_GetObjectItemCaseSensitive(item, "shape");
    for (int d = 0; d < 4; d++)
        shape[d] = d < cJSON_GetArraySize(dims) ? (int64_t)cJSON_GetArrayItem(dims, d)->valuedouble : 1;
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    return f->bytes + f->data + (size_t)cJSON_GetArrayItem(offsets, 0)->valuedouble;
}

/* Loads traces/NAME.safetensors; names: the two sides' suffixes ("pi","mu" or "a","b"). expected: NULL or a file name.
 */
static inline int fixture_open(fixture *f, const char *name, const char *expected, const char *side_a,
                               const char *side_b) {
    memset(f, 0, sizeof *f);
    tv_err err = {0};
    char path[256];
    size_t size = 0;
    snprintf(path, sizeof path, "traces/%s.safetensors", name);
    if (!CHECK_OK(tv_file_read(tv_golden(path), (size_t)1 << 26, (char **)&f->bytes, &size, &err), &err)) return 0;
    uint64_t header = 0;
    memcpy(&header, f->bytes, 8);
    f->data = 8 + (size_t)header;
    f->header = cJSON_ParseWithLength((const char *)f->bytes + 8, (size_t)header);
    if (!CHECK(f->header != NULL)) return 0;
    if (expected) {
        snprintf(path, sizeof path, "traces/%s", expected);
        if (!CHECK_OK(tv_json_load(tv_golden(path), (size_t)1 << 24, &f->expected, &err), &err)) return 0;
    }
    if (!side_a) return 1;
    const char *names[2] = {side_a, side_b};
    for (int s = 0; s < 2; s++) {
        int64_t shape[4];
        tv_set *set = &f->set.set[s];
        snprintf(path, sizeof path, "tokens_%s", names[s]);
        set->tokens = fixture_tensor(f, path, shape);
        set->N = shape[0];
        f->set.n = shape[1];
        for (int e = 0; e < 2; e++) {
            snprintf(path, sizeof path, "ids_%s_%s", names[e], names[s]);
            const int32_t *ids = fixture_tensor(f, path, shape);
            snprintf(path, sizeof path, "lps_%s_%s", names[e], names[s]);
            const float *lps = fixture_tensor(f, path, shape);
            set->reads[e] = shape[0];
            set->k[e] = shape[3];
            for (int64_t r = 0; r < shape[0] && r < 64; r++) {
                f->ids[s][e][r] = ids + r * shape[1] * shape[2] * shape[3];
                f->lps[s][e][r] = lps + r * shape[1] * shape[2] * shape[3];
            }
            set->ids[e] = f->ids[s][e];
            set->lps[e] = f->lps[s][e];
        }
    }
    f->set.temperature = 1;
    return 1;
}

static inline void fixture_close(fixture *f) {
    free(f->bytes);
    cJSON_Delete(f->header);
    cJSON_Delete(f->expected);
    memset(f, 0, sizeof *f);
}

/* Member at a path of keys separated by '/'; NULL when any is missing. */
static inline const cJSON *fixture_at(const cJSON *json, const char *path) {
    char key[64];
    while (json && *path) {
        size_t len = strcspn(path, "/");
        snprintf(key, sizeof key, "%.*s", (int)len, path);
        json = cJSON_GetObjectItemCaseSensitive(json, key);
        path += len + (path[len] == '/');
    }
    return json;
}

#endif
