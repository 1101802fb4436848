/* The one layer loop: a step of M rows over all sequences, on any device. */
#ifndef TV_FORWARD_H
#define TV_FORWARD_H

#include "kernels/attention.h"
#include "models/weights.h"

/* A named activation handed to the observer: data is a device pointer, valid during the call. */
typedef struct {
    void (*fn)(void *user, const char *name, int layer, const void *data, int rows, int width, tv_dtype dtype);
    void *user;
} tv_tap;

/* Activations of one step, in borrowed device memory. */
typedef struct tv_workspace tv_workspace;
/* For steps of at most max_rows rows of which at most max_logits ask for logits, both at least 1. memory:
 * tv_workspace_bytes of the device's, at 64 bytes. The caller frees the workspace. */
tv_workspace *tv_workspace_make(const tv_model *model, int max_rows, int max_logits, void *memory);
uint64_t tv_workspace_bytes(const tv_model *model, int max_rows, int max_logits);
float *tv_workspace_logits(tv_workspace *ws); /* [max_logits,V] f32, result of the last forward */

typedef struct {
    const int32_t *ids;         /* [M] i32 device */
    const tv_segment *segments; /* [n_segments] host; rows cover 0..M-1 in order */
    int n_segments, M;
    const int32_t *logit_rows; /* [n_logits] i32 device: rows whose logits are wanted */
    int n_logits;              /* may be 0: a chunk of a prompt that no one reads */
    tv_kv_layer *kv;           /* [L] host array */
    const tv_attn_backend *backend;
    tv_plan plan;
    int logits_f32;        /* 0: logits rounded to bf16 values */
    const int32_t *routes; /* NULL, or [L,M,used] device: expert ids to use instead of the router's choice */
    tv_tap tap;            /* fn NULL: none */
} tv_step;

/* Runs the step (TV_EARG: rows, segments or positions that do not fit); logits land in
 * tv_workspace_logits(ws)[0..n_logits). Allocates nothing. Taps: "embed", and per layer "attn_norm", "qkv", "attn",
 * "attn_out", "ffn_norm", in expert layers "router" (logits) and "route" (i32 ids), "ffn_out"; then "final_norm",
 * "logits". */
TV_NODISCARD tv_status tv_forward(const tv_model *model, tv_workspace *ws, const tv_step *step, tv_err *err);

#endif
