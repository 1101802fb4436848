/* Recorded steps: a decode step's launches become a graph, which later steps of the same shape replay in one call.
 *
 * What a graph holds must not change from step to step. Inputs, segments and lengths are read from the card. What the
 * host decides from lengths (grids, scratch, runs of segments) is decided for an envelope: every segment as long as the
 * longest, rounded up to CUDA_REACH keys. The summation order is none of that: it comes from the plan, which is part of
 * the key. So a graph gives the bits of launching each operation.
 *
 * The first step of a key runs as usual, in the envelope, so that scratch grows to what it needs; the second is
 * captured; later ones replay. Where scratch has moved since, they begin anew. What a library takes its time for
 * (cuDNN's plans) is made in the first; a step with an operation that says it cannot be captured runs as usual every
 * time. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/cuda/device.h"

enum { MOST = 64 }; /* graphs kept: each holds some hundred launches */

/* Compared as bytes: all 8-byte members. */
typedef struct {
    const void *owner;
    tv_step_key key;
    int64_t reach;
} identity;

typedef struct {
    identity id;
    uint64_t generation;  /* dev->generation that it ran under; 0: it has not */
    uint64_t used;        /* when, counted in steps */
    cuda_rt_graph *graph; /* NULL: ran once */
} recorded;

struct cuda_steps {
    recorded list[MOST];
    int n;
    recorded *current; /* between begin and end; NULL: a step that is not recorded */
    int capturing;
    uint64_t clock;
    tv_segment *envelope;
    int max_envelope;
};

static void drop(struct cuda_steps *steps, recorded *r) {
    if (r->graph) cuda_rt_graph_close(r->graph);
    *r = steps->list[--steps->n];
}

/* The bit of an owner: its place, else a free one, else the last. */
static uint64_t owner_bit(tv_dev *dev, const void *owner) {
    int at = CUDA_OWNERS - 1;
    for (int i = CUDA_OWNERS - 1; i >= 0; i--)
        if (!dev->owners[i]) at = i;
    for (int i = 0; i < CUDA_OWNERS; i++)
        if (dev->owners[i] == owner) at = i;
    dev->owners[at] = owner;
    return UINT64_C(1) << at;
}

void cuda_steps_forget(tv_dev *dev, const void *owner) {
    for (int i = 0; i < CUDA_OWNERS; i++)
        if (dev->owners[i] == owner) {
            dev->owners[i] = NULL;
            cuda_lt_forget(dev, UINT64_C(1) << i);
            cuda_cudnn_forget(dev, UINT64_C(1) << i);
        }
    struct cuda_steps *steps = dev->steps;
    for (int i = steps ? steps->n - 1 : -1; i >= 0; i--)
        if (steps->list[i].id.owner == owner) drop(steps, &steps->list[i]);
}

void cuda_steps_close(tv_dev *dev) {
    struct cuda_steps *steps = dev->steps;
    if (!steps) return;
    while (steps->n) drop(steps, &steps->list[0]);
    free(steps->envelope);
    free(steps);
    dev->steps = NULL;
}

/* The record of id, made where there is none, in place of the one not used for longest where there are too many. */
static recorded *find(struct cuda_steps *steps, const identity *id) {
    int oldest = 0;
    for (int i = 0; i < steps->n; i++) {
        if (!memcmp(&steps->list[i].id, id, sizeof *id)) return &steps->list[i];
        if (steps->list[i].used < steps->list[oldest].used) oldest = i;
    }
    if (steps->n == MOST) drop(steps, &steps->list[oldest]);
    recorded *r = &steps->list[steps->n++];
    *r = (recorded){.id = *id};
    return r;
}

tv_status cuda_step_begin(tv_dev *dev, const void *owner, const tv_step_key *key, const tv_segment *segments,
                          const tv_segment *device_segments, int n, int *run, tv_err *err) {
    if (!dev->steps) dev->steps = tv_xcalloc(1, sizeof *dev->steps);
    struct cuda_steps *steps = dev->steps;
    int64_t longest = 0;
    int decode = 1;
    *run = 1;
    steps->current = NULL;
    dev->step_host = segments, dev->step_card = device_segments;
    dev->owner = owner_bit(dev, owner);
    dev->unrecordable = 0;
    for (int i = 0; i < n; i++) {
        decode &= segments[i].n_rows == 1;
        if (segments[i].pos + segments[i].n_rows > longest) longest = segments[i].pos + segments[i].n_rows;
    }
    if (!decode || !key) return TV_OK;

    const identity id = {owner, *key, (longest + CUDA_REACH - 1) / CUDA_REACH * CUDA_REACH};
    recorded *r = find(steps, &id);
    r->used = ++steps->clock;
    const int known = r->generation == dev->generation;
    if (!known && r->graph) {
        cuda_rt_graph_close(r->graph);
        r->graph = NULL;
    }
    if (known && r->graph) {
        *run = 0;
        dev->step_host = dev->step_card = NULL;
        dev->graph_launches++;
        return cuda_rt_graph_launch(r->graph, dev->stream, err);
    }
    if (n > steps->max_envelope) {
        steps->envelope = tv_xrealloc(steps->envelope, (size_t)n * sizeof *steps->envelope);
        steps->max_envelope = n;
    }
    if (known) {
        tv_status s = cuda_rt_capture_begin(dev->stream, err);
        if (s != TV_OK) {
            dev->step_host = dev->step_card = NULL;
            return s;
        }
        steps->capturing = 1;
    }
    steps->current = r;
    dev->reach = (int)id.reach;
    return TV_OK;
}

tv_status cuda_step_end(tv_dev *dev, tv_status status, tv_err *err) {
    struct cuda_steps *steps = dev->steps;
    recorded *r = steps->current;
    steps->current = NULL;
    dev->step_host = dev->step_card = NULL;
    dev->reach = 0;
    if (!r) return status;
    if (!steps->capturing) {
        r->generation = dev->unrecordable ? 0 : dev->generation;
        return status;
    }
    steps->capturing = 0;
    cuda_rt_graph *graph = NULL;
    tv_status ended = cuda_rt_capture_end(dev->stream, &graph, err);
    if (status != TV_OK || ended != TV_OK) {
        if (graph) cuda_rt_graph_close(graph);
        return status != TV_OK ? status : ended;
    }
    r->graph = graph;
    dev->graph_launches++;
    return cuda_rt_graph_launch(graph, dev->stream, err);
}

/* A backend on the step's envelope; the kernels read the segments themselves from the card. */
static tv_status enveloped(tv_dev *dev, const tv_attn_args *a,
                           tv_status (*attention)(tv_dev *, const tv_attn_args *, tv_err *), tv_err *err) {
    if (!dev->reach) return attention(dev, a, err);
    struct cuda_steps *steps = dev->steps;
    TV_ASSERT(a->n_segments <= steps->max_envelope);
    const int last = (dev->reach < a->kv.S ? dev->reach : a->kv.S) - 1;
    for (int i = 0; i < a->n_segments; i++) {
        steps->envelope[i] = a->segments[i];
        steps->envelope[i].pos = last;
    }
    tv_attn_args wide = *a;
    wide.segments = steps->envelope;
    return attention(dev, &wide, err);
}

tv_status cuda_backend_math(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    return enveloped(dev, a, cuda_attn_math, err);
}
tv_status cuda_backend_eager(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    return enveloped(dev, a, cuda_attn_eager, err);
}
tv_status cuda_backend_flash(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    return enveloped(dev, a, cuda_attn_flash, err);
}
tv_status cuda_backend_cudnn(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    return enveloped(dev, a, cuda_attn_cudnn, err);
}
