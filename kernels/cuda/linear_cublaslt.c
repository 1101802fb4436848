/* linear through cuBLASLt: bf16 in, f32 sums, bf16 or f32 out, the bias added in f32 before the one rounding.
 *
 * The library sees columns first: y [M,N] row-major is D [N,M], W [N,K] is A [K,N] transposed, x [M,K] is B [K,M].
 * What it takes is decided by sizes and dtypes alone (`takes`): K a multiple of 8, rows of y a multiple of 16 bytes, no
 * bias beside f32 outputs. The rest goes to linear.cu.
 *
 * NUMERICS. `serving`: the library's heuristic chooses an algorithm for each (M, N, K, bias, output), once, as
 * production engines let it; the order of summation is the algorithm's, and the plan's slices play no part. It may
 * split K, with partial sums in f32 and never in bf16: outputs are rounded once. `fixed`: one algorithm for each (N, K,
 * bias, output), whatever M: without split-K, without reduction, and without workspace, in which work of one output
 * could be shared; AlgoCheck must accept it for every power of two rows. Then the summation order of an output is that
 * of its tile's loop over K, which M does not enter. That this holds is checked on a card by comparing rows across
 * batch sizes (bench/gpu_check.sh). Where no algorithm qualifies, linear.cu computes that (N, K, bias, output) for
 * every M. Nothing is allocated in a step; a first (M, N, K) costs a query of the heuristic on the host. */
#include "kernels/cuda/linear_cublaslt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum {
    WORKSPACE = 32 << 20, /* what NVIDIA advises for Hopper */
    CANDIDATES = 32,
    PIN_ROWS = 64, /* the size that a pinned algorithm is chosen for: an ordinary decode batch */
    MOST_ROWS = 1 << 20
};

/* A product as the library is asked for it. rows = 0: any number (`fixed`). */
typedef struct {
    int rows, N, K;
    int bias, f32;
} shape;

typedef struct {
    shape shape;
    int usable; /* 0: linear.cu computes this shape */
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    int32_t id, split_k;
    uint32_t tile, stages, reduction, custom;
    char why[96];    /* where not usable */
    uint64_t owners; /* bits of dev->owners: whose steps used it */
} choice;

struct cuda_lt {
    cuda_lt_api api;
    cublasLtHandle_t handle;
    void *workspace;
    choice *choices;
    int n_choices, max_choices;
    int *slots, n_slots; /* hash table of indices into choices, -1 free; a power of two, at most half full */
};

int cuda_lt_load(cuda_lt_api *api, const char *folder, char *why, size_t size) {
    char name[32], path[1024];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library && folder) {
        snprintf(path, sizeof path, "%s/%s", folder, name);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) {
        snprintf(why, size, "%s was not found", name);
        return 0;
    }
    const char *missing = NULL;
    void *p;
#define LOAD(type, function, parameters)                                                                               \
    p = dlsym(library, "cublasLt" #function);                                                                          \
    if (!p) missing = "cublasLt" #function;                                                                            \
    memcpy(&api->function, &p, sizeof p);
    CUDA_LT_FUNCTIONS(LOAD)
#undef LOAD
    if (missing) snprintf(why, size, "%s has no %s", name, missing);
    return !missing;
}

static tv_status failed(const struct cuda_lt *lt, const char *call, cublasStatus_t status, tv_err *err) {
    return TV_FAIL(err, TV_EDEVICE, "cuBLASLt: %s failed: %s (%d)", call, lt->api.GetStatusString(status), (int)status);
}
#define LT_TRY(lt, call)                                                                                               \
    do {                                                                                                               \
        cublasStatus_t status_ = (lt)->api.call;                                                                       \
        if (status_ != CUBLAS_STATUS_SUCCESS) return failed((lt), #call, status_, err);                                \
    } while (0)

/* The descriptors of one product. */
typedef struct {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, y;
} problem;

static tv_status describe(const struct cuda_lt *lt, const shape *s, int rows, const tv_bf16 *bias, problem *p,
                          tv_err *err) {
    const uint64_t M = (uint64_t)rows, N = (uint64_t)s->N, K = (uint64_t)s->K;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    LT_TRY(lt, MatmulDescInit_internal(&p->op, sizeof p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_TRY(lt, MatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    if (s->bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const cudaDataType_t type = CUDA_R_16BF;
        LT_TRY(lt, MatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        LT_TRY(lt, MatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
        LT_TRY(lt, MatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    }
    LT_TRY(lt, MatrixLayoutInit_internal(&p->w, sizeof p->w, CUDA_R_16BF, K, N, s->K));
    LT_TRY(lt, MatrixLayoutInit_internal(&p->x, sizeof p->x, CUDA_R_16BF, K, M, s->K));
    LT_TRY(lt, MatrixLayoutInit_internal(&p->y, sizeof p->y, s->f32 ? CUDA_R_32F : CUDA_R_16BF, N, M, s->N));
    return TV_OK;
}

static tv_status ask(const struct cuda_lt *lt, problem *p, int fixed, cublasLtMatmulHeuristicResult_t *results, int *n,
                     tv_err *err) {
    cublasLtMatmulPreferenceOpaque_t wish;
    const uint64_t workspace = fixed ? 0 : WORKSPACE;
    const uint32_t reduction = fixed ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t aligned = 16; /* what takes() makes sure of: the choice must not depend on addresses */
    static const cublasLtMatmulPreferenceAttributes_t operands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    LT_TRY(lt, MatmulPreferenceInit_internal(&wish, sizeof wish));
    LT_TRY(lt,
           MatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    LT_TRY(lt, MatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                                            sizeof reduction));
    for (int i = 0; i < 4; i++) LT_TRY(lt, MatmulPreferenceSetAttribute(&wish, operands[i], &aligned, sizeof aligned));
    cublasStatus_t status =
        lt->api.MatmulAlgoGetHeuristic(lt->handle, &p->op, &p->w, &p->x, &p->y, &p->y, &wish, CANDIDATES, results, n);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
        *n = 0;
        return TV_OK;
    }
    return status == CUBLAS_STATUS_SUCCESS ? TV_OK : failed(lt, "MatmulAlgoGetHeuristic", status, err);
}

/* What an algorithm is, for reports and for `fixed`. */
static tv_status read_config(const struct cuda_lt *lt, choice *c, tv_err *err) {
    const struct {
        cublasLtMatmulAlgoConfigAttributes_t attribute;
        void *value;
    } fields[] = {{CUBLASLT_ALGO_CONFIG_ID, &c->id},
                  {CUBLASLT_ALGO_CONFIG_TILE_ID, &c->tile},
                  {CUBLASLT_ALGO_CONFIG_STAGES_ID, &c->stages},
                  {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &c->split_k},
                  {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &c->reduction},
                  {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &c->custom}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        LT_TRY(lt, MatmulAlgoConfigGetAttribute(&c->algo, fields[i].attribute, fields[i].value, 4, NULL));
    return TV_OK;
}

/* Whether the algorithm runs every number of rows in the way that `fixed` needs. */
static tv_status pinnable(const struct cuda_lt *lt, const choice *c, const tv_bf16 *bias, int *ok, tv_err *err) {
    *ok = c->split_k <= 1 && c->reduction == CUBLASLT_REDUCTION_SCHEME_NONE && c->workspace == 0;
    for (int rows = 1; *ok && rows <= MOST_ROWS; rows *= 2) {
        problem p;
        cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_NOT_SUPPORTED};
        TV_TRY(describe(lt, &c->shape, rows, bias, &p, err));
        *ok = lt->api.MatmulAlgoCheck(lt->handle, &p.op, &p.w, &p.x, &p.y, &p.y, &c->algo, &result) ==
                  CUBLAS_STATUS_SUCCESS &&
              result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize == 0;
    }
    return TV_OK;
}

static tv_status choose(const struct cuda_lt *lt, const tv_bf16 *bias, choice *c, tv_err *err) {
    const int fixed = c->shape.rows == 0;
    problem p;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    int n = 0;
    TV_TRY(describe(lt, &c->shape, fixed ? PIN_ROWS : c->shape.rows, bias, &p, err));
    TV_TRY(ask(lt, &p, fixed, results, &n, err));
    for (int i = 0; i < n && !c->usable; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS || results[i].workspaceSize > WORKSPACE) continue;
        c->algo = results[i].algo, c->workspace = results[i].workspaceSize;
        TV_TRY(read_config(lt, c, err));
        c->usable = 1;
        if (fixed) TV_TRY(pinnable(lt, c, bias, &c->usable, err));
    }
    if (!c->usable)
        snprintf(c->why, sizeof c->why, fixed ? "none of %d algorithms runs every M without split-K" : "%d algorithms",
                 n);
    return TV_OK;
}

static uint32_t hash(const shape *s) {
    const uint32_t words[] = {(uint32_t)s->rows, (uint32_t)s->N, (uint32_t)s->K, (uint32_t)(s->bias * 2 + s->f32)};
    uint32_t h = 2166136261u;
    for (int i = 0; i < 4; i++) h = (h ^ words[i]) * 16777619u, h ^= h >> 15;
    return h;
}

/* The slot of s, or the free one where it belongs. */
static int *slot_of(struct cuda_lt *lt, const shape *s) {
    uint32_t i = hash(s);
    for (;; i++) {
        int *slot = &lt->slots[i & (uint32_t)(lt->n_slots - 1)];
        if (*slot < 0 || !memcmp(&lt->choices[*slot].shape, s, sizeof *s)) return slot;
    }
}

static tv_status choice_of(struct cuda_lt *lt, const shape *s, const tv_bf16 *bias, choice **out, tv_err *err) {
    int *slot = slot_of(lt, s);
    if (*slot < 0) {
        choice c = {.shape = *s};
        TV_TRY(choose(lt, bias, &c, err));
        if (lt->n_choices == lt->max_choices) {
            lt->max_choices *= 2, lt->n_slots *= 2;
            lt->choices = tv_xrealloc(lt->choices, (size_t)lt->max_choices * sizeof c);
            lt->slots = tv_xrealloc(lt->slots, (size_t)lt->n_slots * sizeof *lt->slots);
            for (int i = 0; i < lt->n_slots; i++) lt->slots[i] = -1;
            for (int i = 0; i < lt->n_choices; i++) *slot_of(lt, &lt->choices[i].shape) = i;
            slot = slot_of(lt, s);
        }
        *slot = lt->n_choices;
        lt->choices[lt->n_choices++] = c;
    }
    *out = &lt->choices[*slot];
    return TV_OK;
}

/* Whether the library is asked at all: never a matter of M. */
static int takes(const tv_linear_args *a) {
    const tv_matrix *w = a->w;
    const uintptr_t addresses = (uintptr_t)a->x | (uintptr_t)w->data | (uintptr_t)a->y | (uintptr_t)w->bias;
    return w->K % 8 == 0 && w->N % (a->y_f32 ? 4 : 8) == 0 && addresses % 16 == 0 && !(w->bias && a->y_f32);
}

static tv_status lt_linear(tv_dev *dev, const tv_linear_args *a, int *done, tv_err *err) {
    struct cuda_lt *lt = dev->lt;
    const shape s = {a->fixed ? 0 : a->M, a->w->N, a->w->K, a->w->bias != NULL, a->y_f32};
    choice *c;
    *done = 0;
    if (!takes(a)) return TV_OK;
    TV_TRY(choice_of(lt, &s, a->w->bias, &c, err));
    c->owners |= dev->owner;
    if (!c->usable) return TV_OK;
    problem p;
    TV_TRY(describe(lt, &s, a->M, a->w->bias, &p, err));
    const float one = 1, zero = 0;
    cublasStatus_t status =
        lt->api.Matmul(lt->handle, &p.op, &one, a->w->data, &p.w, a->x, &p.x, &zero, a->y, &p.y, a->y, &p.y, &c->algo,
                       lt->workspace, c->workspace, (cudaStream_t)(void *)dev->stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        return TV_FAIL(err, TV_EDEVICE, "cuBLASLt: a product of %d rows, %d outputs and %d terms failed: %s (%d)", a->M,
                       s.N, s.K, lt->api.GetStatusString(status), (int)status);
    *done = 1;
    return a->round_bf16 ? cuda_linear_round(dev, a->y, (size_t)a->M * (size_t)s.N, err) : TV_OK;
}

tv_status cuda_lt_attach(tv_dev *dev, const cuda_lt_api *api, tv_err *err) {
    struct cuda_lt *lt = tv_xcalloc(1, sizeof *lt);
    lt->api = *api;
    cublasStatus_t status = lt->api.Create(&lt->handle);
    tv_status s = status == CUBLAS_STATUS_SUCCESS ? TV_OK : failed(lt, "Create", status, err);
    if (s == TV_OK) {
        s = tv_ops_cuda.alloc(dev, WORKSPACE, &lt->workspace, err);
        if (s != TV_OK) lt->api.Destroy(lt->handle);
    }
    if (s != TV_OK) {
        free(lt);
        return s;
    }
    lt->max_choices = 64, lt->n_slots = 128;
    lt->choices = tv_xmalloc((size_t)lt->max_choices * sizeof *lt->choices);
    lt->slots = tv_xmalloc((size_t)lt->n_slots * sizeof *lt->slots);
    for (int i = 0; i < lt->n_slots; i++) lt->slots[i] = -1;
    dev->lt = lt, dev->library_linear = lt_linear;
    return TV_OK;
}

#ifndef TV_CUDA_LIBRARIES
#define TV_CUDA_LIBRARIES NULL
#endif

tv_status cuda_lt_open(tv_dev *dev, tv_err *err) {
    cuda_lt_api api;
    cublasLtHandle_t handle;
    if (!cuda_lt_load(&api, TV_CUDA_LIBRARIES, dev->lt_absent, sizeof dev->lt_absent)) return TV_OK;
    cublasStatus_t status = api.Create(&handle);
    if (status != CUBLAS_STATUS_SUCCESS) { /* an old driver, say: our own kernels may still run */
        snprintf(dev->lt_absent, sizeof dev->lt_absent, "cannot start: %s", api.GetStatusString(status));
        return TV_OK;
    }
    api.Destroy(handle);
    return cuda_lt_attach(dev, &api, err);
}

void cuda_lt_close(tv_dev *dev) {
    struct cuda_lt *lt = dev->lt;
    if (!lt) return;
    lt->api.Destroy(lt->handle);
    tv_ops_cuda.free(dev, lt->workspace, WORKSPACE);
    free(lt->choices);
    free(lt->slots);
    free(lt);
    dev->lt = NULL, dev->library_linear = NULL;
}

void cuda_lt_forget(tv_dev *dev, uint64_t owners) {
    for (int i = 0; dev->lt && i < dev->lt->n_choices; i++) dev->lt->choices[i].owners &= ~owners;
}

/* All that a line says but the rows. */
static int compare_lines(const choice *a, const choice *b) {
    const int64_t d[] = {a->shape.N - b->shape.N,
                         a->shape.K - b->shape.K,
                         a->shape.f32 - b->shape.f32,
                         a->shape.bias - b->shape.bias,
                         (a->shape.rows == 0) - (b->shape.rows == 0),
                         b->usable - a->usable,
                         (int64_t)a->id - b->id,
                         (int64_t)a->tile - b->tile,
                         (int64_t)a->stages - b->stages,
                         (int64_t)a->split_k - b->split_k,
                         (int64_t)a->reduction - b->reduction,
                         (int64_t)a->custom - b->custom,
                         (int64_t)a->workspace - (int64_t)b->workspace};
    for (size_t i = 0; i < sizeof d / sizeof *d; i++)
        if (d[i]) return d[i] < 0 ? -1 : 1;
    return strcmp(a->why, b->why);
}

static int compare_choices(const void *x, const void *y) {
    const choice *a = *(const choice *const *)x, *b = *(const choice *const *)y;
    const int line = compare_lines(a, b);
    return line ? line : a->shape.rows - b->shape.rows;
}

static char *append(char *text, char *more) {
    char *longer = tv_xprintf("%s%s", text, more);
    free(text);
    free(more);
    return longer;
}

char *cuda_lt_text(const tv_dev *dev, uint64_t owners) {
    const struct cuda_lt *lt = dev->lt;
    if (!lt) return tv_xprintf("cuBLASLt: %s; products by tvgpu's own kernels\n", dev->lt_absent);
    const size_t version = lt->api.GetVersion();
    char *text = tv_xprintf("cuBLASLt %zu.%zu.%zu\n", version / 10000, version / 100 % 100, version % 100);
    const choice **list = tv_xmalloc(((size_t)lt->n_choices + 1) * sizeof *list);
    int n = 0;
    for (int i = 0; i < lt->n_choices; i++)
        if (owners == UINT64_MAX || lt->choices[i].owners & owners) list[n++] = &lt->choices[i];
    qsort(list, (size_t)n, sizeof *list, compare_choices);
    for (int i = 0; i < n;) {
        const choice *c = list[i];
        text = append(text, tv_xprintf("cuBLASLt, N %d, K %d, %s%s, M", c->shape.N, c->shape.K,
                                       c->shape.f32 ? "f32" : "bf16", c->shape.bias ? " + bias" : ""));
        if (!c->shape.rows) text = append(text, tv_xstrdup(" any")), i++;
        while (c->shape.rows && i < n && !compare_lines(c, list[i])) { /* 1 3-8 512 */
            const int from = list[i]->shape.rows;
            int to = from;
            for (i++; i < n && !compare_lines(c, list[i]) && list[i]->shape.rows == to + 1; i++) to++;
            text = append(text, from == to ? tv_xprintf(" %d", from) : tv_xprintf(" %d-%d", from, to));
        }
        if (c->usable)
            text =
                append(text, tv_xprintf(": algorithm %d, tile %u, stages %u, split-K %d, reduction %u, custom %u, "
                                        "workspace %zu\n",
                                        c->id, c->tile, c->stages, c->split_k, c->reduction, c->custom, c->workspace));
        else
            text = append(text, tv_xprintf(": own kernel: %s\n", c->why));
    }
    free(list);
    return text;
}
