/* Fused attention by cuDNN's graph API, from plain C: the library loaded at run time, graphs, and the plans made from
 * them. Knows nothing of the engine; a plan can be made without a card, for one that a text describes. */
#ifndef TV_CUDNN_GRAPH_H
#define TV_CUDNN_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cudnn_lib cudnn_lib;
typedef struct cudnn_plan cudnn_plan;

/* Everything that is compiled into a plan: a plan serves calls of exactly this shape. Lengths are data. */
typedef struct {
    int b;         /* sequences */
    int H, G, HS;  /* query heads, kv heads, head size */
    int sq, skv;   /* most query rows and keys of a sequence */
    int page;      /* positions of a page: a power of two */
    int64_t pages; /* pages of the cache; page p begins at element p * page * HS */
    int64_t S;     /* positions from one kv head to the next within a page's sequence, a multiple of page */
    int causal;    /* row j of a sequence sees keys 0 .. length_kv - length_q + j; 0: all of its keys (one row each) */
    int config;    /* kernel configuration to insist on; 0: the heuristics' first choice */
} cudnn_shape;

/* Device pointers of one call; the scale is 1/sqrt(HS) unless given. */
typedef struct {
    const void *q;             /* [b,sq,H,HS] bf16 */
    const void *k, *v;         /* the cache's pages, bf16 */
    void *o;                   /* [b,sq,H,HS] bf16; rows from a sequence's length on are undefined */
    const int32_t *length_q;   /* [b] i32, 1 .. sq */
    const int32_t *length_kv;  /* [b] i32, 1 .. skv */
    const int32_t *page_table; /* [b, ceil(skv/page)] i32: page of each run of positions */
    void *workspace;           /* cudnn_plan_workspace bytes */
    float scale;
} cudnn_buffers;

/* Loads cuDNN (libcudnn.so.9). stream: the CUDA stream that plans run on; or NULL with device, cuDNN's JSON description
 * of the card to plan for, where there is none to run on. Fails with TV_EUNSUPPORTED and the reason. */
TV_NODISCARD tv_status cudnn_lib_open(void *stream, const char *device, cudnn_lib **lib, tv_err *err);
void cudnn_lib_close(cudnn_lib *lib);
/* cuDNN's version as 91900 for 9.19.0; 0 with the reason in *why (static string) where it cannot be loaded. */
size_t cudnn_version(const char **why);
/* An H200, described for planning without one. */
extern const char cudnn_h200[];

/* Asks cuDNN's engines whether any takes a shape: quick, and compiles nothing. Fails as cudnn_plan_open does. */
TV_NODISCARD tv_status cudnn_shape_supported(cudnn_lib *lib, const cudnn_shape *shape, tv_err *err);
/* Makes a plan: takes seconds, since cuDNN compiles the kernel. Fails with TV_EUNSUPPORTED and each engine's reason. */
TV_NODISCARD tv_status cudnn_plan_open(cudnn_lib *lib, const cudnn_shape *shape, cudnn_plan **plan, tv_err *err);
void cudnn_plan_close(cudnn_plan *plan);
size_t cudnn_plan_workspace(const cudnn_plan *plan);
/* "engine 1, configuration 35, workspace 266368 bytes"; valid while the plan is. */
const char *cudnn_plan_describe(const cudnn_plan *plan);
/* 1 when the engine knows CUDA graphs: once it has run, cudnn_plan_run may be captured. */
int cudnn_plan_recordable(const cudnn_plan *plan);
/* Puts the plan's kernels into the library's stream. */
TV_NODISCARD tv_status cudnn_plan_run(cudnn_lib *lib, cudnn_plan *plan, const cudnn_buffers *buffers, tv_err *err);

#ifdef __cplusplus
}
#endif
#endif
