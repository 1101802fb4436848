/* The way through cuBLASLt without a card: the library's own descriptors, and a stand-in for what needs a device. The
 * stand-in reads the descriptors back and computes the product they describe in plain code. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/cuda/linear_cublaslt.h"
#include "tests/check.h"
#include "tests/simt/rig.h"

/* Where it finds no card, the library's Create loses a few bytes of its own: LeakSanitizer need not tell. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libcublasLt"; }

/* An algorithm of the stand-in, kept in the opaque structure. */
typedef struct {
    int32_t id, split_k;
    uint32_t reduction;
    uint64_t most_rows; /* AlgoCheck refuses more */
} algorithm;
static struct {
    algorithm offered[4];
    size_t workspace[4];
    int n_offered;
    int asked, checked, ran, last_id; /* calls so far */
    uint64_t wish_workspace, asked_rows;
    uint32_t wish_reduction;
    size_t last_workspace;
    cublasStatus_t fails_with;
    int counts_only; /* nothing is computed */
    tv_dev *dev;
} fake;

static cuda_lt_api real;
static cublasStatus_t (*get_op)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, void *, size_t, size_t *);
static cublasStatus_t (*get_layout)(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, void *, size_t, size_t *);
static cublasStatus_t (*get_wish)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, void *, size_t,
                                  size_t *);

typedef struct {
    uint32_t type;
    uint64_t rows, cols;
    int64_t ld;
} matrix;

static matrix read_layout(cublasLtMatrixLayout_t l) {
    matrix m;
    CHECK_INT(get_layout(l, CUBLASLT_MATRIX_LAYOUT_TYPE, &m.type, sizeof m.type, NULL), 0);
    CHECK_INT(get_layout(l, CUBLASLT_MATRIX_LAYOUT_ROWS, &m.rows, sizeof m.rows, NULL), 0);
    CHECK_INT(get_layout(l, CUBLASLT_MATRIX_LAYOUT_COLS, &m.cols, sizeof m.cols, NULL), 0);
    CHECK_INT(get_layout(l, CUBLASLT_MATRIX_LAYOUT_LD, &m.ld, sizeof m.ld, NULL), 0);
    return m;
}

static cublasStatus_t create(cublasLtHandle_t *handle) {
    *handle = (cublasLtHandle_t)(void *)&fake;
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t destroy(cublasLtHandle_t handle) {
    return handle == (cublasLtHandle_t)(void *)&fake ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t wish, int most, cublasLtMatmulHeuristicResult_t *results,
                                int *n) {
    (void)handle, (void)op, (void)a, (void)c, (void)d;
    fake.asked++;
    fake.asked_rows = read_layout(b).cols;
    CHECK_INT(get_wish(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &fake.wish_workspace, 8, NULL), 0);
    CHECK_INT(get_wish(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &fake.wish_reduction, 4, NULL), 0);
    for (int i = 0; i < fake.n_offered && i < most; i++) {
        memset(&results[i], 0, sizeof results[i]);
        memcpy(&results[i].algo, &fake.offered[i], sizeof fake.offered[i]);
        results[i].workspaceSize = fake.workspace[i];
    }
    *n = fake.n_offered;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                            cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                            const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
    (void)handle, (void)op, (void)a, (void)c, (void)d;
    algorithm it;
    memcpy(&it, algo, sizeof it);
    fake.checked++;
    if (read_layout(b).cols > it.most_rows) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(result, 0, sizeof *result);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t config(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t attribute,
                             void *value, size_t size, size_t *written) {
    (void)written;
    algorithm it;
    memcpy(&it, algo, sizeof it);
    uint32_t v = attribute == CUBLASLT_ALGO_CONFIG_ID                 ? (uint32_t)it.id
                 : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM       ? (uint32_t)it.split_k
                 : attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? it.reduction
                                                                      : 7;
    memcpy(value, &v, size < sizeof v ? size : sizeof v);
    return CUBLAS_STATUS_SUCCESS;
}

/* The bytes of memory on the card, when everything queued has run; malloc'd. */
static void *fetch(const void *p, size_t bytes) {
    tv_err err = {0};
    void *host = tv_xmalloc(bytes);
    CHECK_OK(tv_ops_cuda.download(fake.dev, host, p, bytes, &err), &err);
    return host;
}

/* D [A's columns, B's columns] = A^T B (+ bias), columns first, one chain of fmaf an output. */
static cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha, const void *a,
                             cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                             const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                             cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                             size_t workspace_bytes, cudaStream_t stream) {
    (void)handle, (void)c, (void)c_layout, (void)stream;
    algorithm it;
    memcpy(&it, algo, sizeof it);
    fake.last_id = it.id, fake.last_workspace = workspace_bytes, fake.ran++;
    CHECK(workspace != NULL);
    if (fake.fails_with || fake.counts_only) return fake.fails_with;
    const matrix A = read_layout(a_layout), B = read_layout(b_layout), D = read_layout(d_layout);
    int32_t transa = 0, transb = 0, type = 0, bias_type = -1;
    uint32_t epilogue = 0;
    const tv_bf16 *bias = NULL;
    CHECK_INT(get_op(op, CUBLASLT_MATMUL_DESC_TRANSA, &transa, 4, NULL), 0);
    CHECK_INT(get_op(op, CUBLASLT_MATMUL_DESC_TRANSB, &transb, 4, NULL), 0);
    CHECK_INT(get_op(op, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &type, 4, NULL), 0);
    CHECK_INT(get_op(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4, NULL), 0);
    CHECK_INT(get_op(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias, NULL), 0);
    CHECK_INT(get_op(op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, 4, NULL), 0);
    CHECK_INT(transa, CUBLAS_OP_T);
    CHECK_INT(transb, CUBLAS_OP_N);
    CHECK_INT(type, CUBLAS_COMPUTE_32F);
    CHECK(*(const float *)alpha == 1 && *(const float *)beta == 0);
    CHECK(A.type == CUDA_R_16BF && B.type == CUDA_R_16BF && (D.type == CUDA_R_16BF || D.type == CUDA_R_32F));
    CHECK(A.rows == B.rows && A.cols == D.rows && B.cols == D.cols);
    CHECK_INT(epilogue, bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    if (bias) CHECK_INT(bias_type, CUDA_R_16BF);
    const uint64_t K = A.rows, N = D.rows, M = D.cols;
    CHECK(A.ld == (int64_t)K && B.ld == (int64_t)K && D.ld == (int64_t)N);
    const size_t bytes = M * N * (D.type == CUDA_R_32F ? 4 : 2);
    tv_bf16 *w = fetch(a, N * K * sizeof *w), *x = fetch(b, M * K * sizeof *x);
    tv_bf16 *added = bias ? fetch(bias, N * sizeof *bias) : NULL;
    void *y = tv_xmalloc(bytes);
    for (uint64_t m = 0; m < M; m++)
        for (uint64_t n = 0; n < N; n++) {
            float sum = 0;
            for (uint64_t k = 0; k < K; k++)
                sum = fmaf(tv_f32_from_bf16(w[n * K + k]), tv_f32_from_bf16(x[m * K + k]), sum);
            if (added) sum += tv_f32_from_bf16(added[n]);
            if (D.type == CUDA_R_32F)
                ((float *)y)[m * N + n] = sum;
            else
                ((tv_bf16 *)y)[m * N + n] = tv_bf16_from_f32(sum);
        }
    tv_err err = {0};
    CHECK_OK(tv_ops_cuda.upload(fake.dev, d, y, bytes, &err), &err);
    free(w), free(x), free(added), free(y);
    return CUBLAS_STATUS_SUCCESS;
}

/* The emulated card with the stand-in's products, or NULL where the library is not installed (the test skips). */
static tv_dev *open_dev(void) {
    char why[256], name[64];
    if (!cuda_lt_load(&real, TV_CUDA_LIBRARIES, why, sizeof why)) {
        tv_test_skip(why);
        return NULL;
    }
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD), *p[3];
    if (!library) library = dlopen(TV_CUDA_LIBRARIES "/libcublasLt.so", RTLD_NOW | RTLD_LOCAL);
    TV_ASSERT(library);
    p[0] = dlsym(library, "cublasLtMatmulDescGetAttribute"), memcpy(&get_op, &p[0], sizeof p[0]);
    p[1] = dlsym(library, "cublasLtMatrixLayoutGetAttribute"), memcpy(&get_layout, &p[1], sizeof p[1]);
    p[2] = dlsym(library, "cublasLtMatmulPreferenceGetAttribute"), memcpy(&get_wish, &p[2], sizeof p[2]);
    TV_ASSERT(p[0] && p[1] && p[2]);
    memset(&fake, 0, sizeof fake);
    tv_dev *dev = fake.dev = rig_open();
    if (dev->lt)
        cuda_lt_close(dev);
    else
        CHECK(strstr(dev->lt_absent, "cannot start") != NULL); /* the library itself finds no card */
    cuda_lt_api api = real;
    api.Create = create, api.Destroy = destroy, api.MatmulAlgoGetHeuristic = heuristic, api.MatmulAlgoCheck = check;
    api.MatmulAlgoConfigGetAttribute = config, api.Matmul = matmul;
    tv_err err = {0};
    CHECK_OK(cuda_lt_attach(dev, &api, &err), &err);
    return dev;
}

static void offer(int n, const algorithm *algorithms, const size_t *workspace) {
    fake.n_offered = n;
    memcpy(fake.offered, algorithms, (size_t)n * sizeof *algorithms);
    memcpy(fake.workspace, workspace, (size_t)n * sizeof *workspace);
}

enum { MOST = 70 };
static const algorithm plain = {.id = 66, .split_k = 1, .most_rows = 1 << 20};

/* M rows of a product of normal values; y [M,N] as f32 values. */
static tv_status product(tv_dev *dev, int M, int N, int K, int with_bias, int f32, int rounded, int fixed, float *y,
                         tv_err *err) {
    tv_bf16 *x = rig_normals(1, MOST * (size_t)K, 1), *w = rig_normals(2, (size_t)N * K, 0.1),
            *b = rig_normals(3, N, 1);
    tv_matrix m;
    CHECK_OK(
        tv_ops_cuda.matrix_load(dev, 1, (const void *[]){w}, &N, with_bias ? (const void *[]){b} : NULL, K, &m, err),
        err);
    const size_t bytes = (size_t)M * N * (f32 ? 4 : 2);
    void *x_dev = rig_put(dev, x, (size_t)M * K * 2), *y_dev = rig_put(dev, NULL, bytes), *host = tv_xmalloc(bytes);
    tv_linear_args a = {.x = x_dev, .w = &m, .y = y_dev, .M = M, .y_f32 = f32, .round_bf16 = rounded, .fixed = fixed};
    a.plan = fixed ? (tv_linear_plan){1, K} : tv_plan_linear(&(tv_plan){TV_REDUCE_SERVING, 132}, M, N, K);
    tv_status s = tv_ops_cuda.linear(dev, &a, err);
    rig_get(dev, host, y_dev);
    for (int i = 0; i < M * N; i++) y[i] = f32 ? ((float *)host)[i] : tv_f32_from_bf16(((tv_bf16 *)host)[i]);
    rig_drop(dev, x_dev), rig_drop(dev, y_dev);
    tv_ops_cuda.matrix_free(dev, &m);
    free(x), free(w), free(b), free(host);
    return s;
}

/* Descriptors say what they should: layouts, transposition, types, bias and outputs give the product that our own
 * kernels give, to a rounding. */
static void test_descriptors(void) {
    static const struct {
        int M, N, K, bias, f32, rounded;
    } cases[] = {{1, 8, 8, 0, 0, 0}, {5, 24, 40, 1, 0, 0}, {7, 36, 16, 0, 1, 0}, {3, 12, 24, 0, 1, 1}};
    tv_dev *dev = open_dev();
    if (!dev) return;
    tv_err err = {0};
    offer(1, &plain, (size_t[]){4096});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int M = cases[i].M, N = cases[i].N, K = cases[i].K;
        float got[7 * 36], want[7 * 36];
        fake.ran = 0;
        CHECK_OK(product(dev, M, N, K, cases[i].bias, cases[i].f32, cases[i].rounded, 0, got, &err), &err);
        CHECK_INT(fake.ran, 1);
        CHECK_INT(fake.last_workspace, 4096);
        tv_status (*library)(tv_dev *, const tv_linear_args *, int *, tv_err *) = dev->library_linear;
        dev->library_linear = NULL;
        CHECK_OK(product(dev, M, N, K, cases[i].bias, cases[i].f32, cases[i].rounded, 0, want, &err), &err);
        dev->library_linear = library;
        CHECK_INT(fake.ran, 1);
        for (int j = 0; j < M * N; j++) {
            CHECK_NEAR(got[j], want[j], cases[i].f32 && !cases[i].rounded ? 1e-5 : 0x1p-7);
            if (cases[i].rounded) CHECK(got[j] == tv_round_bf16(got[j]));
        }
    }
    rig_close(dev);
}

/* `serving` asks once for each (M, N, K, bias, output), lets the library use its workspace and split K with f32 partial
 * sums, and takes the first algorithm; more shapes than the table begins with keep theirs. */
static void test_serving(void) {
    tv_dev *dev = open_dev();
    if (!dev) return;
    tv_err err = {0};
    tv_bf16 *w = rig_normals(1, 16 * 8, 1);
    tv_matrix matrices[3];
    for (int kind = 0; kind < 3; kind++)
        CHECK_OK(tv_ops_cuda.matrix_load(dev, 1, (const void *[]){w}, &(int){kind ? 8 : 16},
                                         kind == 2 ? (const void *[]){w} : NULL, 8, &matrices[kind], &err),
                 &err);
    free(w);
    void *x = rig_put(dev, NULL, MOST * 8 * 2), *y = rig_put(dev, NULL, MOST * 16 * 2);
    offer(2, (algorithm[]){{.id = 5, .split_k = 4, .reduction = 2}, plain}, (size_t[]){1 << 20, 0});
    fake.counts_only = 1;
    for (int turn = 0; turn < 2; turn++)
        for (int M = 1; M <= MOST; M++) {
            for (int kind = 0; kind < 3; kind++) {
                tv_linear_args a = {.x = x, .w = &matrices[kind], .y = y, .M = M, .plan = {1, 8}};
                CHECK_OK(tv_ops_cuda.linear(dev, &a, &err), &err);
            }
            CHECK_INT(fake.asked, turn ? 3 * MOST : 3 * M);
            CHECK_INT(fake.last_id, 5);
        }
    for (int kind = 0; kind < 3; kind++) tv_ops_cuda.matrix_free(dev, &matrices[kind]);
    CHECK_INT(fake.asked_rows, MOST);
    CHECK(fake.wish_workspace >= 1 << 20);
    CHECK_INT(fake.wish_reduction, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    CHECK_INT(fake.checked, 0);
    CHECK_INT(fake.ran, 2 * 3 * MOST);
    rig_close(dev);
}

/* Choices are told by product and algorithm, with the rows that each was chosen for; and of the steps of one user,
 * those that it made. */
static void test_text(void) {
    tv_dev *dev = open_dev();
    if (!dev) return;
    static const int rows[] = {7, 5, 1, 6, 17, 64, 2};
    tv_err err = {0};
    float y[MOST * 16];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        offer(1, rows[i] > 16 ? &(algorithm){.id = 5, .split_k = 4, .reduction = 2} : &plain, (size_t[]){1 << 20});
        dev->owner = rows[i] == 17 ? 1 : 2;
        CHECK_OK(product(dev, rows[i], 16, 8, 0, 0, 0, 0, y, &err), &err);
    }
    CHECK_OK(product(dev, 3, 8, 8, 1, 0, 0, 0, y, &err), &err);
    static const char split[] = "algorithm 5, tile 7, stages 7, split-K 4, reduction 2, custom 7, workspace 1048576\n",
                      whole[] = "algorithm 66, tile 7, stages 7, split-K 1, reduction 0, custom 7, workspace 1048576\n";
    char want[1024], *text = cuda_lt_text(dev, UINT64_MAX), *of_1 = cuda_lt_text(dev, 1);
    CHECK(!strncmp(text, "cuBLASLt ", 9) && !strncmp(of_1, "cuBLASLt ", 9));
    snprintf(want, sizeof want,
             "cuBLASLt, N 8, K 8, bf16 + bias, M 3: %scuBLASLt, N 16, K 8, bf16, M 17 64: %scuBLASLt, N 16, K 8, bf16, "
             "M 1-2 5-7: %s",
             whole, split, whole);
    CHECK_STR(strchr(text, '\n') + 1, want);
    snprintf(want, sizeof want, "cuBLASLt, N 16, K 8, bf16, M 17: %s", split);
    CHECK_STR(strchr(of_1, '\n') + 1, want);
    free(text), free(of_1);
    cuda_lt_forget(dev, 1);
    of_1 = cuda_lt_text(dev, 1);
    CHECK_STR(strchr(of_1, '\n') + 1, "");
    free(of_1);
    rig_close(dev);
}

/* `fixed` takes one algorithm for every M: the first that splits nothing, needs no workspace and is accepted for all
 * powers of two rows. */
static void test_fixed(void) {
    tv_dev *dev = open_dev();
    if (!dev) return;
    tv_err err = {0};
    float y[MOST * 16];
    offer(4,
          (algorithm[]){{.id = 1, .split_k = 2, .reduction = 2, .most_rows = 1 << 20},
                        {.id = 2, .split_k = 1, .most_rows = 1 << 20},
                        {.id = 3, .split_k = 1, .most_rows = 512},
                        {.id = 4, .split_k = 1, .most_rows = 1 << 20}},
          (size_t[]){0, 256, 0, 0});
    for (int M = 1; M <= MOST; M += 23) {
        CHECK_OK(product(dev, M, 16, 8, 0, 0, 0, 1, y, &err), &err);
        CHECK_INT(fake.last_id, 4);
    }
    CHECK_INT(fake.asked, 1);
    CHECK_INT(fake.checked, 11 + 21); /* algorithm 3 up to 1024 rows, algorithm 4 up to 2^20 */
    CHECK_INT(fake.wish_workspace, 0);
    CHECK_INT(fake.wish_reduction, CUBLASLT_REDUCTION_SCHEME_NONE);
    rig_close(dev);
}

/* Where none qualifies, every M goes to our own kernel, and so does what the library is never asked: odd sizes, and a
 * bias beside f32 outputs. */
static void test_own_kernels(void) {
    tv_dev *dev = open_dev();
    if (!dev) return;
    tv_err err = {0};
    float y[MOST * 16];
    offer(1, (algorithm[]){{.id = 3, .split_k = 1, .most_rows = 512}}, (size_t[]){0});
    for (int M = 1; M <= MOST; M += 23) CHECK_OK(product(dev, M, 16, 8, 0, 0, 0, 1, y, &err), &err);
    CHECK_INT(fake.asked, 1);
    CHECK_INT(fake.ran, 0);
    char *text = cuda_lt_text(dev, UINT64_MAX);
    CHECK(strstr(text, "N 16, K 8, bf16, M any: own kernel: none of 1 algorithms runs every M without split-K"));
    free(text);
    CHECK_OK(product(dev, 3, 12, 8, 0, 0, 0, 1, y, &err), &err);
    CHECK_OK(product(dev, 3, 16, 12, 0, 0, 0, 0, y, &err), &err);
    CHECK_OK(product(dev, 3, 8, 8, 1, 1, 0, 0, y, &err), &err);
    CHECK_INT(fake.asked, 1);
    rig_close(dev);
}

/* A failing library is an error with its words and the product's sizes. */
static void test_failure(void) {
    tv_dev *dev = open_dev();
    if (!dev) return;
    tv_err err = {0};
    float y[16];
    offer(1, &plain, (size_t[]){0});
    fake.fails_with = CUBLAS_STATUS_EXECUTION_FAILED;
    CHECK_FAILS(product(dev, 1, 16, 8, 0, 0, 0, 0, y, &err), TV_EDEVICE, &err, "1 rows, 16 outputs and 8 terms");
    rig_close(dev);
}

static const tv_test tests[] = {
    {"descriptors", test_descriptors}, {"serving", test_serving}, {"text", test_text}, {"fixed", test_fixed},
    {"own_kernels", test_own_kernels}, {"failure", test_failure}};
TV_TEST_MAIN(tests)
