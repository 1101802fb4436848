/* Attention backends: one static table in order of preference, one chooser, no silent fallback. */
#ifndef TV_ATTENTION_H
#define TV_ATTENTION_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TV_ATTN_BATCH_INVARIANT = 1, /* under --reduction fixed a row's bits depend on nothing else */
    TV_ATTN_GRAPH_SAFE = 2,      /* may be captured in a CUDA graph */
    TV_ATTN_KV_BYTES = 4         /* reads fp8 and int8 caches; without it the backend is chosen for bf16 caches only */
};

/* What a session will ask of its backend. */
typedef struct {
    const char *device; /* tv_ops.name */
    int H, G, HS;       /* query heads, kv heads, head size */
    int max_batch;      /* sequences in a step */
    int max_keys;       /* cache positions per slot */
    tv_dtype kv_dtype;  /* of the cache */
} tv_attn_limits;

typedef struct {
    const char *name;   /* "math", "eager", "flash", "cudnn" */
    const char *device; /* the device it runs on */
    unsigned caps;
    /* 1 when it can run these limits; else 0 with the reason in *why (static string). The only home of limits; asked
     * through tv_attn_supports. */
    int (*supports)(const tv_attn_limits *limits, const char **why);
    tv_status (*run)(tv_dev *dev, const tv_attn_args *a, tv_err *err);
} tv_attn_backend;

/* All backends of this build; *n receives the count. */
const tv_attn_backend *const *tv_attn_backends(int *n);
/* 1 when the backend reads caches of the limits' kv_dtype (a backend without TV_ATTN_KV_BYTES would take bytes for
 * bf16) and supports the limits; else 0 with the reason in *why. */
int tv_attn_supports(const tv_attn_backend *backend, const tv_attn_limits *limits, const char **why);
/* Picks name ("auto": the first in order of preference that the device supports). Fails with TV_EUNSUPPORTED (TV_EARG
 * for an unknown name), listing every backend of the device with "available" or its reason. */
TV_NODISCARD tv_status tv_attn_choose(const tv_attn_limits *limits, const char *name, const tv_attn_backend **out,
                                      tv_err *err);

#ifdef __cplusplus
}
#endif
#endif
