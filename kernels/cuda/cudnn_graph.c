/* Attention as a cuDNN graph. The composite form is used for prefill and decode alike: two matrix products with mask
 * and softmax as pointwise operations and reductions between them, which cuDNN's engines recognise as one fused kernel.
 *
 *     S = scale Q K^T;  S = -inf where row >= length_q or column >= length_kv, and (causal) where column > row +
 * length_kv - length_q P = exp(S - max S) / sum exp(S - max S), rounded to bf16;  O = P V
 *
 * The recognised pattern contains the softmax statistics, log(sum) + max, although nothing reads them here. K and V
 * come through a page table, so that a call's sequences may lie anywhere in the cache. */
#include "kernels/cuda/cudnn_graph.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

typedef cudnnBackendDescriptor_t descriptor;

/* ---- the library ---- */

#define CUDNN_FUNCTIONS(X)                                                                                             \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnSetCallback)                                                                                                \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnGetLastErrorString)                                                                                         \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)

#define DECLARE(name) static __typeof__(name) *fn_##name;
CUDNN_FUNCTIONS(DECLARE)
#undef DECLARE

static const char *load_failure; /* NULL: loaded */
static char load_message[256];

static void load(void) {
    void *so = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!so) so = dlopen("libcudnn.so", RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        load_failure = "needs cuDNN 9, and libcudnn.so.9 was not found (LD_LIBRARY_PATH?)";
        return;
    }
#define RESOLVE(name)                                                                                                  \
    fn_##name = (__typeof__(name) *)dlsym(so, #name);                                                                  \
    if (!fn_##name) {                                                                                                  \
        snprintf(load_message, sizeof load_message, "needs cuDNN 9, and libcudnn.so lacks %s", #name);                 \
        load_failure = load_message;                                                                                   \
        return;                                                                                                        \
    }
    CUDNN_FUNCTIONS(RESOLVE)
#undef RESOLVE
    size_t version = fn_cudnnGetVersion();
    if (version < 90800) { /* the operation graph without a handle, and descriptions of devices */
        snprintf(load_message, sizeof load_message, "needs cuDNN 9.8 or newer, and there is %zu.%zu", version / 10000,
                 version / 100 % 100);
        load_failure = load_message;
    }
}

size_t cudnn_version(const char **why) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (why) *why = load_failure;
    return load_failure ? 0 : fn_cudnnGetVersion();
}

/* Why engines were refused comes through a callback alone: lines that end in NUL, one more NUL after the last. After a
 * line that names an engine the first "Reason: " is the innermost. */
static __thread char refusals[640];

static void on_message(cudnnSeverity_t severity, void *user, const cudnnDebug_t *debug, const char *message) {
    (void)severity, (void)user, (void)debug;
    int engine = -1;
    for (const char *line = message; *line; line += strlen(line) + 1) {
        const char *id = strstr(line, "\"engineId\":"), *reason = strstr(line, "Reason: ");
        if (id) engine = atoi(id + strlen("\"engineId\":"));
        if (!reason || engine < 0) continue;
        char text[200];
        snprintf(text, sizeof text, "engine %d: %.150s", engine, reason + strlen("Reason: "));
        engine = -1;
        size_t used = strlen(refusals);
        if (!strstr(refusals, text) && used + strlen(text) + 3 < sizeof refusals)
            snprintf(refusals + used, sizeof refusals - used, "%s%s", used ? "; " : "", text);
    }
}

struct cudnn_lib {
    cudnnHandle_t handle; /* NULL: plans only */
    descriptor device;
};

static tv_status failed(cudnnStatus_t status, const char *what, tv_err *err) {
    char text[512] = "";
    fn_cudnnGetLastErrorString(text, sizeof text);
    tv_status code = status == CUDNN_STATUS_ALLOC_FAILED       ? TV_ENOMEM
                     : status >= CUDNN_STATUS_EXECUTION_FAILED ? TV_EDEVICE
                                                               : TV_EUNSUPPORTED;
    return TV_FAIL(err, code, "cuDNN: %s: %s%s%s", what, fn_cudnnGetErrorString(status), *text ? ": " : "", text);
}
#define CUDNN_TRY(call, what)                                                                                          \
    do {                                                                                                               \
        cudnnStatus_t status_ = (call);                                                                                \
        if (status_ != CUDNN_STATUS_SUCCESS) return failed(status_, what, err);                                        \
    } while (0)

/* The 23 values that cuDNN 9.19 wants to know of a card. */
const char cudnn_h200[] =
    "{\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"driverVer\":13000,\"cudaDeviceId\":0,\"pciDeviceId\":0,"
    "\"multiProcessorCount\":132,\"warpSize\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
    "\"maxCtasPerSM\":32,\"maxBlockSize\":[1024,1024,64],\"maxGridSize\":[2147483647,65535,65535],"
    "\"regsPerBlock\":65536,\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,\"l2CacheSize\":62914560,"
    "\"totalGlobalMem\":150754820096,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
    "\"isTccDriver\":0,\"supportCoopLaunch\":1}";

tv_status cudnn_lib_open(void *stream, const char *device, cudnn_lib **out, tv_err *err) {
    const char *why = NULL;
    *out = NULL;
    if (!cudnn_version(&why)) return TV_FAIL(err, TV_EUNSUPPORTED, "attention backend cudnn %s", why);
    fn_cudnnSetCallback(CUDNN_SEV_ERROR_EN | CUDNN_SEV_WARNING_EN, NULL, on_message);
    cudnn_lib *lib = tv_xcalloc(1, sizeof *lib);
    *out = lib;
    if (!device) {
        CUDNN_TRY(fn_cudnnCreate(&lib->handle), "opening it");
        CUDNN_TRY(fn_cudnnSetStream(lib->handle, stream), "choosing the stream");
    }
    CUDNN_TRY(fn_cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &lib->device),
              "describing the card");
    if (device)
        CUDNN_TRY(fn_cudnnBackendSetAttribute(lib->device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                              (int64_t)strlen(device) + 1, device),
                  "describing the card");
    else
        CUDNN_TRY(
            fn_cudnnBackendSetAttribute(lib->device, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &lib->handle),
            "describing the card");
    CUDNN_TRY(fn_cudnnBackendFinalize(lib->device), "describing the card");
    return TV_OK;
}

void cudnn_lib_close(cudnn_lib *lib) {
    if (!lib) return;
    if (lib->device) fn_cudnnBackendDestroyDescriptor(lib->device);
    if (lib->handle) fn_cudnnDestroy(lib->handle);
    free(lib);
}

/* ---- a graph under construction: after the first failure everything does nothing ---- */

enum {
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_O,
    UID_SCALE,
    UID_MINUS_INF,
    UID_LENGTH_Q,
    UID_LENGTH_KV,
    UID_TABLE_K,
    UID_TABLE_V,
    UID_VIRTUAL = 100
};
enum { N_POINTERS = UID_TABLE_V, MOST_DESCRIPTORS = 256, MOST_OPERATIONS = 40 };

typedef struct {
    descriptor all[MOST_DESCRIPTORS]; /* destroyed together */
    int n_all;
    descriptor operations[MOST_OPERATIONS];
    int n_operations;
    int64_t next_uid;
    tv_status status;
    tv_err *err;
} graph;

static void begin(graph *g, tv_err *err) {
    g->n_all = g->n_operations = 0;
    g->next_uid = UID_VIRTUAL, g->status = TV_OK, g->err = err;
}

static void end(graph *g) {
    while (g->n_all) fn_cudnnBackendDestroyDescriptor(g->all[--g->n_all]);
}

/* Makes the call unless something has failed, and keeps its failure. */
#define CHECKED(g, call, what)                                                                                         \
    do {                                                                                                               \
        cudnnStatus_t status_ = (g)->status == TV_OK ? (call) : CUDNN_STATUS_SUCCESS;                                  \
        if (status_ != CUDNN_STATUS_SUCCESS) (g)->status = failed(status_, what, (g)->err);                            \
    } while (0)

static descriptor make(graph *g, cudnnBackendDescriptorType_t type, const char *what) {
    descriptor d = NULL;
    CHECKED(g, fn_cudnnBackendCreateDescriptor(type, &d), what);
    if (g->status != TV_OK) return NULL;
    TV_ASSERT(g->n_all < MOST_DESCRIPTORS);
    return g->all[g->n_all++] = d;
}

static void set(graph *g, descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                const void *value, const char *what) {
    CHECKED(g, fn_cudnnBackendSetAttribute(d, name, type, n, value), what);
}

static void set_descriptor(graph *g, descriptor d, cudnnBackendAttributeName_t name, descriptor value,
                           const char *what) {
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

static void finish(graph *g, descriptor d, const char *what) { CHECKED(g, fn_cudnnBackendFinalize(d), what); }

typedef enum { REAL, VIRTUAL, BY_VALUE } storage;

static descriptor tensor(graph *g, int64_t uid, cudnnDataType_t type, const int64_t dim[4], const int64_t stride[4],
                         storage where, const char *what) {
    const int64_t alignment = 16;
    const bool yes = true;
    descriptor t = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
    set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
    set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim, what);
    set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride, what);
    set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid, what);
    set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, what);
    if (where == VIRTUAL) set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes, what);
    if (where == BY_VALUE) set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes, what);
    finish(g, t, what);
    return t;
}

static descriptor packed(graph *g, cudnnDataType_t type, const int64_t dim[4], const char *what) {
    const int64_t stride[4] = {dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1};
    return tensor(g, g->next_uid++, type, dim, stride, VIRTUAL, what);
}

static descriptor scalar(graph *g, int64_t uid, const char *what) {
    static const int64_t one[4] = {1, 1, 1, 1};
    return tensor(g, uid, CUDNN_DATA_FLOAT, one, one, BY_VALUE, what);
}

static void add(graph *g, descriptor operation, const char *what) {
    finish(g, operation, what);
    if (g->status != TV_OK) return;
    TV_ASSERT(g->n_operations < MOST_OPERATIONS);
    g->operations[g->n_operations++] = operation;
}

/* y = mode(x, b, t), b and t where the mode has them; axis for GEN_INDEX, else -1. */
static void pointwise(graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, int64_t axis, descriptor x,
                      descriptor b, descriptor t, descriptor y, const char *what) {
    descriptor p = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
    set(g, p, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
    set(g, p, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision, what);
    if (axis >= 0) set(g, p, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis, what);
    finish(g, p, what);
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, p, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, what);
    if (b) set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b, what);
    if (t) set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, what);
    add(g, op, what);
}

static void reduction(graph *g, cudnnReduceTensorOp_t how, descriptor x, descriptor y, const char *what) {
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    descriptor r = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
    set(g, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32, what);
    set(g, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how, what);
    finish(g, r, what);
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
    add(g, op, what);
}

/* c = a b; lengths override the sizes of m, n and k where given. */
static void product(graph *g, descriptor a, descriptor b, descriptor c, descriptor m, descriptor n, descriptor k,
                    const char *what) {
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    descriptor p = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
    set(g, p, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32, what);
    finish(g, p, what);
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, p, what);
    if (m) set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m, what);
    if (n) set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n, what);
    if (k) set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k, what);
    add(g, op, what);
}

static void paged_load(graph *g, descriptor pages, descriptor table, descriptor length, descriptor y,
                       const char *what) {
    descriptor op = make(g, CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC, pages, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC, table, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC, length, what);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC, y, what);
    add(g, op, what);
}

/* S where keep, -inf elsewhere. */
static descriptor masked(graph *g, descriptor s, descriptor minus_inf, descriptor keep, const int64_t dim[4],
                         const char *what) {
    descriptor out = packed(g, CUDNN_DATA_FLOAT, dim, what);
    pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, s, minus_inf, keep, out, what);
    return out;
}

static descriptor build(graph *g, const cudnn_shape *s) {
    const cudnnDataType_t BF16 = CUDNN_DATA_BFLOAT16, F32 = CUDNN_DATA_FLOAT, I32 = CUDNN_DATA_INT32,
                          BOOL = CUDNN_DATA_BOOLEAN;
    const int64_t b = s->b, H = s->H, G = s->G, HS = s->HS, sq = s->sq, skv = s->skv,
                  columns = (skv + s->page - 1) / s->page;
    const int64_t rows[4] = {b, H, sq, HS}, row_strides[4] = {sq * H * HS, HS, H * HS, 1};
    const int64_t cache[4] = {s->pages, G, s->page, HS}, cache_strides[4] = {s->page * HS, s->S * HS, HS, 1};
    const int64_t lengths[4] = {b, 1, 1, 1}, ones[4] = {1, 1, 1, 1};
    const int64_t table[4] = {b, 1, columns, 1}, table_strides[4] = {columns, columns, 1, 1};
    const int64_t scores[4] = {b, H, sq, skv}, per_row[4] = {b, H, sq, 1};
    const int64_t k_dim[4] = {b, G, HS, skv}, k_strides[4] = {G * HS * skv, HS * skv, 1, HS},
                  v_dim[4] = {b, G, skv, HS};

    descriptor q = tensor(g, UID_Q, BF16, rows, row_strides, REAL, "q");
    descriptor o = tensor(g, UID_O, BF16, rows, row_strides, REAL, "output");
    descriptor k_pages = tensor(g, UID_K, BF16, cache, cache_strides, REAL, "k pages");
    descriptor v_pages = tensor(g, UID_V, BF16, cache, cache_strides, REAL, "v pages");
    descriptor length_q = tensor(g, UID_LENGTH_Q, I32, lengths, ones, REAL, "query lengths");
    descriptor length_kv = tensor(g, UID_LENGTH_KV, I32, lengths, ones, REAL, "key lengths");
    descriptor table_k = tensor(g, UID_TABLE_K, I32, table, table_strides, REAL, "page table of k");
    descriptor table_v = tensor(g, UID_TABLE_V, I32, table, table_strides, REAL, "page table of v");
    descriptor scale = scalar(g, UID_SCALE, "scale"), minus_inf = scalar(g, UID_MINUS_INF, "-inf");

    descriptor k = tensor(g, g->next_uid++, BF16, k_dim, k_strides, VIRTUAL, "k transposed");
    paged_load(g, k_pages, table_k, length_kv, k, "loading k");
    descriptor raw = packed(g, F32, scores, "q k"), x = packed(g, F32, scores, "scores");
    product(g, q, k, raw, length_q, length_kv, NULL, "q k");
    pointwise(g, CUDNN_POINTWISE_MUL, F32, -1, raw, scale, NULL, x, "scale");

    descriptor row = packed(g, I32, scores, "row"), column = packed(g, I32, scores, "column");
    descriptor in_q = packed(g, BOOL, scores, "row in length"), in_kv = packed(g, BOOL, scores, "column in length");
    descriptor in = packed(g, BOOL, scores, "in lengths");
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, I32, 2, x, NULL, NULL, row, "row");
    pointwise(g, CUDNN_POINTWISE_GEN_INDEX, I32, 3, x, NULL, NULL, column, "column");
    pointwise(g, CUDNN_POINTWISE_CMP_LT, BOOL, -1, row, length_q, NULL, in_q, "row in length");
    pointwise(g, CUDNN_POINTWISE_CMP_LT, BOOL, -1, column, length_kv, NULL, in_kv, "column in length");
    pointwise(g, CUDNN_POINTWISE_LOGICAL_AND, BOOL, -1, in_q, in_kv, NULL, in, "in lengths");
    x = masked(g, x, minus_inf, in, scores, "scores in lengths");
    if (s->causal) { /* its own indices: the engines know the two masks as two patterns */
        descriptor r = packed(g, I32, scores, "causal row"), c = packed(g, I32, scores, "causal column");
        descriptor r1 = packed(g, I32, scores, "row + keys"), r2 = packed(g, I32, scores, "row + keys - queries");
        descriptor keep = packed(g, BOOL, scores, "column <= row");
        pointwise(g, CUDNN_POINTWISE_GEN_INDEX, F32, 2, x, NULL, NULL, r, "causal row");
        pointwise(g, CUDNN_POINTWISE_GEN_INDEX, F32, 3, x, NULL, NULL, c, "causal column");
        pointwise(g, CUDNN_POINTWISE_ADD, I32, -1, r, length_kv, NULL, r1, "row + keys");
        pointwise(g, CUDNN_POINTWISE_SUB, I32, -1, r1, length_q, NULL, r2, "row + keys - queries");
        pointwise(g, CUDNN_POINTWISE_CMP_GE, BOOL, -1, r2, c, NULL, keep, "column <= row");
        x = masked(g, x, minus_inf, keep, scores, "causal scores");
    }

    descriptor max = packed(g, F32, per_row, "max"), below = packed(g, F32, scores, "scores - max");
    descriptor e = packed(g, F32, scores, "exp"), sum = packed(g, F32, per_row, "sum"),
               p = packed(g, BF16, scores, "p");
    descriptor log_sum = packed(g, F32, per_row, "log sum"), statistics = packed(g, F32, per_row, "statistics");
    reduction(g, CUDNN_REDUCE_TENSOR_MAX, x, max, "max");
    pointwise(g, CUDNN_POINTWISE_SUB, F32, -1, x, max, NULL, below, "scores - max");
    pointwise(g, CUDNN_POINTWISE_EXP, F32, -1, below, NULL, NULL, e, "exp");
    reduction(g, CUDNN_REDUCE_TENSOR_ADD, e, sum, "sum");
    pointwise(g, CUDNN_POINTWISE_LOG, F32, -1, sum, NULL, NULL, log_sum, "log sum");
    pointwise(g, CUDNN_POINTWISE_ADD, F32, -1, max, log_sum, NULL, statistics, "statistics");
    pointwise(g, CUDNN_POINTWISE_DIV, F32, -1, e, sum, NULL, p, "p");
    descriptor v = packed(g, BF16, v_dim, "v");
    paged_load(g, v_pages, table_v, length_kv, v, "loading v");
    product(g, p, v, o, length_q, NULL, length_kv, "p v");

    descriptor all = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph");
    set(g, all, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_operations, g->operations,
        "the graph");
    finish(g, all, "the graph");
    return all;
}

/* ---- plans ---- */

struct cudnn_plan {
    graph g;
    descriptor plan;
    int64_t workspace;
    int recordable;
    char description[128];
};

/* The plan of a configuration, or NULL: the next may do. */
static descriptor finalized(graph *g, descriptor config) {
    descriptor plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "the plan");
    set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config, "the plan");
    return g->status == TV_OK && fn_cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS ? plan : NULL;
}

enum { MOST_CONFIGURATIONS = 8 };

/* The configurations that the heuristics propose in a mode and the engines accept; returns how many. None is how "not
 * supported" looks: the status is success. */
static int configurations(graph *g, descriptor whole, descriptor device, cudnnBackendHeurMode_t mode,
                          descriptor found[MOST_CONFIGURATIONS]) {
    descriptor h = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the heuristics");
    set_descriptor(g, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole, "the heuristics");
    set(g, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, "the heuristics");
    set_descriptor(g, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device, "the heuristics");
    if (g->status != TV_OK || fn_cudnnBackendFinalize(h) != CUDNN_STATUS_SUCCESS) return 0;
    for (int j = 0; j < MOST_CONFIGURATIONS; j++)
        found[j] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "the heuristics");
    int64_t n = 0;
    if (g->status != TV_OK ||
        fn_cudnnBackendGetAttribute(h, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                    MOST_CONFIGURATIONS, &n, found) != CUDNN_STATUS_SUCCESS)
        return 0;
    return n < MOST_CONFIGURATIONS ? (int)n : MOST_CONFIGURATIONS;
}

static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
enum { N_MODES = sizeof modes / sizeof *modes };

static descriptor plan_by_heuristics(graph *g, descriptor whole, descriptor device, descriptor *config) {
    for (int i = 0; i < N_MODES; i++) {
        descriptor found[MOST_CONFIGURATIONS];
        for (int j = 0, n = configurations(g, whole, device, modes[i], found); j < n; j++) {
            descriptor plan = finalized(g, found[j]);
            *config = found[j];
            if (plan) return plan;
        }
    }
    return NULL;
}

/* The plan of one kernel configuration, whichever engine has it. */
static descriptor plan_by_configuration(graph *g, descriptor whole, descriptor device, int64_t value,
                                        descriptor *config) {
    const cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_KERNEL_CFG;
    int64_t engines = 0, n = 0;
    if (fn_cudnnBackendGetAttribute(whole, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64, 1, &n,
                                    &engines) != CUDNN_STATUS_SUCCESS)
        return NULL;
    for (int64_t i = 0; i < engines && g->status == TV_OK; i++) {
        descriptor engine = make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "the engine");
        set_descriptor(g, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, whole, "the engine");
        set(g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &i, "the engine");
        set_descriptor(g, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, device, "the engine");
        if (g->status != TV_OK || fn_cudnnBackendFinalize(engine) != CUDNN_STATUS_SUCCESS) continue;
        descriptor knob = make(g, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "the configuration");
        set(g, knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type, "the configuration");
        set(g, knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value, "the configuration");
        finish(g, knob, "the configuration");
        descriptor c = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "the configuration");
        set_descriptor(g, c, CUDNN_ATTR_ENGINECFG_ENGINE, engine, "the configuration");
        set_descriptor(g, c, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, knob, "the configuration");
        if (g->status != TV_OK || fn_cudnnBackendFinalize(c) != CUDNN_STATUS_SUCCESS) continue;
        descriptor plan = finalized(g, c);
        *config = c;
        if (plan) return plan;
    }
    return NULL;
}

/* Engine and kernel configuration of what was chosen, and whether the engine knows CUDA graphs. */
static void describe(cudnn_plan *p, descriptor config) {
    graph *g = &p->g;
    int64_t engine = -1, value = -1, n = 0;
    descriptor e = make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "the engine");
    if (fn_cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &e) ==
        CUDNN_STATUS_SUCCESS)
        fn_cudnnBackendGetAttribute(e, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &engine);
    cudnnBackendBehaviorNote_t notes[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    n = 0;
    if (fn_cudnnBackendGetAttribute(e, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                    CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &n, notes) != CUDNN_STATUS_SUCCESS)
        n = 0;
    for (int64_t i = 0; i < n && i < CUDNN_BEHAVIOR_NOTE_TYPE_COUNT; i++)
        p->recordable |= notes[i] == CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API;
    enum { MOST = 32 };
    descriptor knobs[MOST];
    for (int i = 0; i < MOST; i++) knobs[i] = make(g, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "the configuration");
    n = 0;
    fn_cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST, &n,
                                knobs);
    for (int64_t i = 0; i < n && i < MOST; i++) {
        cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
        int64_t got = 0, v = -1;
        fn_cudnnBackendGetAttribute(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &got, &type);
        fn_cudnnBackendGetAttribute(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &got, &v);
        if (type == CUDNN_KNOB_TYPE_KERNEL_CFG) value = v;
    }
    snprintf(p->description, sizeof p->description, "engine %lld, configuration %lld, workspace %lld bytes",
             (long long)engine, (long long)value, (long long)p->workspace);
}

static tv_status refused(const cudnn_shape *s, tv_err *err) {
    return TV_FAIL(err, TV_EUNSUPPORTED,
                   "cuDNN has no plan for attention of b=%d, H=%d, G=%d, HS=%d, %d rows, %d keys%s: %s", s->b, s->H,
                   s->G, s->HS, s->sq, s->skv, s->config ? " in the pinned configuration" : "",
                   *refusals ? refusals : "no engine gave a reason");
}

/* A plan with its graph alone. */
static cudnn_plan *plan_of(const cudnn_shape *s, descriptor *whole, tv_err *err) {
    TV_ASSERT(s->page > 0 && s->S % s->page == 0);
    cudnn_plan *p = tv_xcalloc(1, sizeof *p);
    begin(&p->g, err);
    *refusals = 0;
    *whole = build(&p->g, s);
    return p;
}

tv_status cudnn_shape_supported(cudnn_lib *lib, const cudnn_shape *s, tv_err *err) {
    descriptor whole, found[MOST_CONFIGURATIONS];
    cudnn_plan *p = plan_of(s, &whole, err);
    int n = 0;
    for (int i = 0; i < N_MODES && p->g.status == TV_OK && !n; i++)
        n = configurations(&p->g, whole, lib->device, modes[i], found);
    tv_status status = p->g.status == TV_OK && !n ? refused(s, err) : p->g.status;
    cudnn_plan_close(p);
    return status;
}

tv_status cudnn_plan_open(cudnn_lib *lib, const cudnn_shape *s, cudnn_plan **out, tv_err *err) {
    *out = NULL;
    descriptor whole, config = NULL;
    cudnn_plan *p = plan_of(s, &whole, err);
    graph *g = &p->g;
    if (g->status == TV_OK)
        p->plan = s->config ? plan_by_configuration(g, whole, lib->device, s->config, &config)
                            : plan_by_heuristics(g, whole, lib->device, &config);
    if (g->status == TV_OK && !p->plan) g->status = refused(s, err);
    int64_t n = 0;
    CHECKED(g,
            fn_cudnnBackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                        &p->workspace),
            "the plan's workspace");
    const tv_status status = g->status;
    if (status != TV_OK) {
        cudnn_plan_close(p);
        return status;
    }
    describe(p, config);
    *out = p;
    return TV_OK;
}

void cudnn_plan_close(cudnn_plan *p) {
    if (!p) return;
    end(&p->g);
    free(p);
}

size_t cudnn_plan_workspace(const cudnn_plan *p) { return (size_t)p->workspace; }

const char *cudnn_plan_describe(const cudnn_plan *p) { return p->description; }

int cudnn_plan_recordable(const cudnn_plan *p) { return p->recordable; }

tv_status cudnn_plan_run(cudnn_lib *lib, cudnn_plan *p, const cudnn_buffers *b, tv_err *err) {
    static const int64_t uids[N_POINTERS] = {UID_Q,         UID_K,        UID_V,         UID_O,       UID_SCALE,
                                             UID_MINUS_INF, UID_LENGTH_Q, UID_LENGTH_KV, UID_TABLE_K, UID_TABLE_V};
    float scale = b->scale, minus_inf = -INFINITY; /* by value: read in this call */
    const void *pointers[N_POINTERS] = {b->q,       b->k,        b->v,         b->o,          &scale,
                                        &minus_inf, b->length_q, b->length_kv, b->page_table, b->page_table};
    static const char what[] = "attention";
    graph g;
    begin(&g, err);
    descriptor pack = make(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, what);
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, N_POINTERS, uids, what);
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, N_POINTERS, pointers, what);
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &b->workspace, what);
    finish(&g, pack, what);
    CHECKED(&g, fn_cudnnBackendExecute(lib->handle, p->plan, pack), what);
    end(&g);
    return g.status;
}
