/* The cuDNN attention backend: a step's segments, which may lie in any slots and have any lengths, become calls of a
 * few fixed shapes, since a cuDNN plan is compiled for its sizes and takes seconds to make.
 *
 * Decode rows make one call; longer segments make calls by length class, several at a time while they are short. Batch
 * and extents are rounded up to powers of two; missing sequences are idle. Keys and values are read in place through a
 * page table: position p of slot s, head g is element ((s G + g) S + p) HS of the cache, so with pages of PAGE
 * positions and S a multiple of PAGE, page number (s G S + p) / PAGE holds it, and heads lie S HS elements apart.
 *
 * Under --reduction serving cuDNN chooses its kernel and its split of the keys from batch and extents. Under fixed the
 * decode kernel is pinned to one that does not split, and extents do not follow the lengths.
 *
 * Decode steps are recorded (steps.c): extents of decode come in powers of two from CUDA_REACH on, so that they are the
 * same for a step's own lengths as for its envelope; the plan is made, and run for a first time, in the step before the
 * one that is captured; its pointers are scratch, whose moves make recordings void. */
#include "kernels/cuda/attention_cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/cuda/cudnn_graph.h"

enum {
    PAGE = 64,      /* positions; the prefill engine keeps its fast kernel for 8 to 256 */
    SHORTEST = 128, /* extents are multiples of it: the kernels then need no tail */
    DECODE_KEYS = CUDA_REACH,
    PREFILL_ROWS = 16384, /* most query rows of a call of several prompts */
    MOST_PROMPTS = 16,
    PINNED_DECODE = 3, /* configuration of cuDNN 9.19: a 64 x 64 tile, keys not split */
    PINNED_MAJOR_MINOR = 919
};

typedef struct {
    cudnn_shape shape;
    cudnn_plan *plan;
    uint64_t owners; /* bits of dev->owners: whose steps used it */
} cached;

struct cuda_cudnn {
    cudnn_lib *lib;
    cached *plans;
    int n_plans;
};

void cuda_cudnn_close(tv_dev *dev) {
    struct cuda_cudnn *c = dev->cudnn;
    if (!c) return;
    for (int i = 0; i < c->n_plans; i++) cudnn_plan_close(c->plans[i].plan);
    cudnn_lib_close(c->lib);
    free(c->plans);
    free(c);
    dev->cudnn = NULL;
}

static tv_status state(tv_dev *dev, struct cuda_cudnn **out, tv_err *err) {
    if (!dev->cudnn) {
        dev->cudnn = tv_xcalloc(1, sizeof *dev->cudnn);
        tv_status s = cudnn_lib_open(dev->stream, NULL, &dev->cudnn->lib, err);
        if (s != TV_OK) {
            cuda_cudnn_close(dev);
            return s;
        }
    }
    *out = dev->cudnn;
    return TV_OK;
}

static tv_status find_plan(tv_dev *dev, struct cuda_cudnn *c, const cudnn_shape *shape, cudnn_plan **out, tv_err *err) {
    int i = 0;
    while (i < c->n_plans && memcmp(&c->plans[i].shape, shape, sizeof *shape)) i++;
    if (i == c->n_plans) {
        TV_TRY(cudnn_plan_open(c->lib, shape, out, err));
        c->plans = tv_xrealloc(c->plans, (size_t)(c->n_plans + 1) * sizeof *c->plans);
        memcpy(&c->plans[i].shape, shape, sizeof *shape); /* padding too, since bytes are compared */
        c->plans[i].plan = *out, c->plans[i].owners = 0;
        c->n_plans++;
    }
    c->plans[i].owners |= dev->owner;
    *out = c->plans[i].plan;
    if (!cudnn_plan_recordable(*out)) dev->unrecordable = 1;
    return TV_OK;
}

void cuda_cudnn_forget(tv_dev *dev, uint64_t owners) {
    for (int i = 0; dev->cudnn && i < dev->cudnn->n_plans; i++) dev->cudnn->plans[i].owners &= ~owners;
}

char *cuda_cudnn_text(const tv_dev *dev, uint64_t owners) {
    const struct cuda_cudnn *c = dev->cudnn;
    const char *why = NULL;
    int used = owners == UINT64_MAX;
    for (int i = 0; c && i < c->n_plans; i++) used |= (c->plans[i].owners & owners) != 0;
    if (!used) return tv_xstrdup("");
    const size_t version = cudnn_version(&why);
    if (!version) return tv_xprintf("cuDNN: %s\n", why);
    char *text = tv_xprintf("cuDNN %zu.%zu.%zu\n", version / 10000, version / 100 % 100, version % 100);
    for (int i = 0; c && i < c->n_plans; i++) {
        const cached *p = &c->plans[i];
        if (owners != UINT64_MAX && !(p->owners & owners)) continue;
        char *more =
            tv_xprintf("%scuDNN, %d sequence%s, %d row%s, %d keys: %s%s\n", text, p->shape.b,
                       p->shape.b == 1 ? "" : "s", p->shape.sq, p->shape.sq == 1 ? "" : "s", p->shape.skv,
                       cudnn_plan_describe(p->plan), cudnn_plan_recordable(p->plan) ? "" : "; not recorded in graphs");
        free(text);
        text = more;
    }
    return text;
}

static int power_of_two(int x, int from) {
    while (from < x) from *= 2;
    return from;
}

/* The shape of a call of n sequences of up to rows query rows and keys keys. */
static void shape_of(const tv_attn_args *a, int n, int rows, int keys, cudnn_shape *s) {
    const tv_kv_layer *kv = &a->kv;
    const int decode = rows == 1;
    memset(s, 0, sizeof *s); /* compared as bytes */
    s->b = power_of_two(n, 1);
    s->H = a->H, s->G = kv->G, s->HS = kv->HS;
    s->sq = decode ? 1 : power_of_two(rows, SHORTEST);
    s->skv = power_of_two(a->fixed ? kv->S : keys, decode ? DECODE_KEYS : SHORTEST);
    s->page = PAGE, s->S = kv->S;
    s->pages = (int64_t)kv->slots * kv->G * (kv->S / PAGE);
    s->causal = !decode;
    s->config = decode && a->fixed ? PINNED_DECODE : 0;
}

/* Whether the library's engines take a model's shapes, prompts and decode, on this thread's card; the reason in why. */
static int engines_take(const tv_attn_limits *l, char *why, size_t size) {
    enum { KEYS = 1024 }; /* what engines take does not depend on lengths */
    const tv_attn_args a = {.H = l->H, .kv = {.G = l->G, .HS = l->HS, .S = KEYS, .slots = 1}};
    tv_err err = {0};
    cudnn_lib *lib = NULL;
    tv_status s = cudnn_lib_open(NULL, NULL, &lib, &err);
    for (int rows = 1; rows <= SHORTEST && s == TV_OK; rows += SHORTEST - 1) {
        cudnn_shape shape;
        shape_of(&a, 1, rows, KEYS, &shape);
        s = cudnn_shape_supported(lib, &shape, &err);
    }
    cudnn_lib_close(lib);
    if (s != TV_OK) snprintf(why, size, "is refused: %s", err.message);
    tv_err_clear(&err);
    return s == TV_OK;
}

int cuda_cudnn_supports(const tv_attn_limits *l, const char **why) {
    static __thread struct {
        int H, G, HS, taken;
        char why[sizeof(((tv_err *)0)->message) + 16];
    } last; /* the library takes its time, and a model is asked about several times */
    *why = l->HS < 8 || l->HS % 8 || l->HS > CUDA_ATTN_MAX_HEAD
               ? "needs a head size that is a multiple of 8, at most 256"
           : l->G < 1 || l->H < 1 || l->H % l->G ? "needs a number of query heads that is a multiple of the kv heads"
                                                 : NULL;
    if (*why || !cudnn_version(why)) return 0;
    if (last.H != l->H || last.G != l->G || last.HS != l->HS) {
        last.taken = engines_take(l, last.why, sizeof last.why);
        last.H = l->H, last.G = l->G, last.HS = l->HS;
    }
    *why = last.taken ? NULL : last.why;
    return last.taken;
}

static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

static tv_status call(tv_dev *dev, struct cuda_cudnn *c, const tv_attn_args *a, const tv_segment *segments, int low,
                      int high, int first, int n, int rows, int keys, tv_err *err) {
    cudnn_shape shape;
    shape_of(a, n, rows, keys, &shape);
    const int columns = (shape.skv + PAGE - 1) / PAGE, width = a->H * a->kv.HS;
    cudnn_plan *plan;
    TV_TRY(find_plan(dev, c, &shape, &plan, err));
    const size_t b = (size_t)shape.b, ints = aligned(b * sizeof(int32_t));
    const size_t table = aligned(b * (size_t)columns * sizeof(int32_t));
    const size_t rows_bytes = aligned(b * (size_t)shape.sq * (size_t)width * sizeof(tv_bf16));
    void *scratch;
    TV_TRY(cuda_scratch(dev, CUDA_SCRATCH_ATTENTION,
                        3 * ints + table + 2 * rows_bytes + cudnn_plan_workspace(plan) + 256, &scratch, err));
    char *at = scratch;
    cuda_cudnn_call k = {.low = low, .high = high, .first = first, .b = shape.b, .sq = shape.sq};
    k.columns = columns, k.page = PAGE;
    k.member = (void *)at, at += ints;
    k.length_q = (void *)at, at += ints;
    k.length_kv = (void *)at, at += ints;
    k.page_table = (void *)at, at += table;
    k.q = (void *)at, at += rows_bytes;
    k.o = (void *)at, at += rows_bytes;
    TV_TRY(cuda_cudnn_tables(dev, &k, segments, a->n_segments, &a->kv, err));
    TV_TRY(cuda_cudnn_pack(dev, &k, segments, a->q, width, err));
    cudnn_buffers buffers = {.q = k.q, .k = a->kv.k, .v = a->kv.v, .o = k.o, .length_q = k.length_q};
    buffers.length_kv = k.length_kv, buffers.page_table = k.page_table, buffers.workspace = at,
    buffers.scale = a->scale;
    TV_TRY(cudnn_plan_run(c->lib, plan, &buffers, err));
    return cuda_cudnn_unpack(dev, &k, segments, a->out, width, err);
}

/* Calls for the segments with low <= n_rows < high, at most `most` at a time. */
static tv_status calls(tv_dev *dev, struct cuda_cudnn *c, const tv_attn_args *a, const tv_segment *segments, int low,
                       int high, int most, tv_err *err) {
    int first = 0, n = 0, rows = 0, keys = 0;
    for (int i = 0; i < a->n_segments; i++) {
        const tv_segment *s = &a->segments[i];
        if (s->n_rows < low || s->n_rows >= high) continue;
        if (n == most) {
            TV_TRY(call(dev, c, a, segments, low, high, first, n, rows, keys, err));
            first += n, n = rows = keys = 0;
        }
        n++;
        if (s->n_rows > rows) rows = s->n_rows;
        if (s->pos + s->n_rows > keys) keys = s->pos + s->n_rows;
    }
    return n ? call(dev, c, a, segments, low, high, first, n, rows, keys, err) : TV_OK;
}

tv_status cuda_attn_cudnn(tv_dev *dev, const tv_attn_args *a, tv_err *err) {
    TV_TRY(tv_check_attn(a, err));
    if (a->kv.S % PAGE)
        return TV_FAIL(err, TV_EUNSUPPORTED, "attention cudnn: a cache of %d positions is not whole pages of %d",
                       a->kv.S, PAGE);
    struct cuda_cudnn *c;
    TV_TRY(state(dev, &c, err));
    const size_t version = cudnn_version(NULL);
    if (a->fixed && version / 100 != PINNED_MAJOR_MINOR)
        return TV_FAIL(err, TV_EUNSUPPORTED,
                       "attention cudnn: under --reduction fixed its decode kernel is known for cuDNN 9.19 alone, and "
                       "this is %zu.%zu: use --backend flash, or --reduction serving",
                       version / 10000, version / 100 % 100);
    const tv_segment *segments;
    TV_TRY(cuda_segments(dev, a->segments, a->n_segments, &segments, err));
    TV_TRY(calls(dev, c, a, segments, 1, 2, a->n_segments, err));
    for (int low = 2, high = SHORTEST + 1; low <= a->M; low = high, high = 2 * (high - 1) + 1) {
        int most = PREFILL_ROWS / (high - 1);
        TV_TRY(calls(dev, c, a, segments, low, high, most < 1 ? 1 : most > MOST_PROMPTS ? MOST_PROMPTS : most, err));
    }
    return TV_OK;
}
