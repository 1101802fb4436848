/* Packed weights on the CUDA device become the bf16 values that the host makes of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/cuda/device.h"
#include "models/weights.h"
#include "tests/check.h"
#include "tests/simt/rig.h"

/* Rows of normal values of many sizes, a group of zeros, and one far value a row that leaves the others small. */
static tv_bf16 *weights(uint64_t seed, int N, int K) {
    tv_bf16 *w = rig_normals(seed, (size_t)N * (size_t)K, 0.05);
    for (int j = 0; j < N; j++) {
        if (j % 3 == 1) w[(size_t)j * (size_t)K + (size_t)(j % K)] = 0x4100;
        for (int k = 0; j % 4 == 2 && k < K && k < TV_INT4_GROUP; k++) w[(size_t)j * (size_t)K + (size_t)k] = 0x8000;
    }
    return w;
}

/* Two parts of a matrix with a bias, each row beside the host's; room: bytes of scratch, 0 for all there is. */
static void expand_case(tv_dev *dev, tv_weight_dtype dtype, int K, size_t room) {
    static const int part_N[2] = {5, 8};
    const size_t n = 13 * (size_t)K;
    tv_err err = {0};
    tv_bf16 *w = weights(7, 13, K), *want = tv_xmalloc(n * sizeof *want), *got = tv_xmalloc(n * sizeof *got);
    tv_bf16 *bias = rig_normals(8, 13, 1), got_bias[13];
    const void *const biases[2] = {bias, bias + 5};
    tv_packed_rows parts[2];
    for (int p = 0; p < 2; p++) TV_ASSERT(tv_weights_pack(dtype, w + (p ? 5 * (size_t)K : 0), part_N[p], K, &parts[p]));
    tv_weights_quantize(dtype, w, 13, K, want);
    dev->expand_scratch = room;
    tv_matrix m = {0};
    if (CHECK_OK(tv_ops_cuda.matrix_load_packed(dev, 2, parts, part_N, biases, K, &m, &err), &err)) {
        CHECK_INT(m.N, 13);
        CHECK_INT(m.K, K);
        CHECK_OK(tv_ops_cuda.download(dev, got, m.data, n * sizeof *got, &err), &err);
        if (!CHECK_BYTES(got, want, n * sizeof *got)) fprintf(stderr, "    %s K=%d\n", tv_weight_dtype_name(dtype), K);
        CHECK_OK(tv_ops_cuda.download(dev, got_bias, m.bias, sizeof got_bias, &err), &err);
        CHECK_BYTES(got_bias, bias, sizeof got_bias);
    }
    tv_ops_cuda.matrix_free(dev, &m);
    for (int p = 0; p < 2; p++) tv_weights_packed_free(&parts[p]);
    free(w), free(want), free(got), free(bias);
}

/* Rows of whole and of broken groups, runs and bytes, whole matrices at once and one row at a time, every schedule. */
static void test_expand_rows(void) {
    static const int sizes[] = {1, 7, 8, 127, 128, 129, 136, 200, 2056};
    tv_dev *dev = rig_open();
    for (int dtype = TV_WEIGHTS_INT8; dtype <= TV_WEIGHTS_INT4; dtype++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            rig_schedule((int)i % rig_schedules());
            expand_case(dev, (tv_weight_dtype)dtype, sizes[i], i % 2 ? 1 : 0);
        }
    CHECK(dev->scratch_bytes[CUDA_SCRATCH_EXPAND] > 0);
    rig_schedule(0);
    rig_close(dev);
}

static void check_matrix(tv_dev *dev, const tv_matrix *a, const tv_matrix *b) {
    tv_err err = {0};
    const size_t bytes = (size_t)a->N * (size_t)a->K * sizeof(tv_bf16);
    char *x = tv_xmalloc(bytes), *y = tv_xmalloc(bytes);
    CHECK_OK(tv_ops_cuda.download(dev, x, a->data, bytes, &err), &err);
    CHECK_OK(tv_ops_cuda.download(dev, y, b->data, bytes, &err), &err);
    CHECK_BYTES(x, y, bytes);
    free(x), free(y);
}

/* A checkpoint loaded in packed form has the matrices that the host's rounding gives, the experts' among them. */
static void test_expand_model(void) {
    tv_err err = {0};
    tv_dev *dev = rig_open();
    tv_ops by_host = tv_ops_cuda;
    by_host.matrix_load_packed = NULL;
    for (int dtype = TV_WEIGHTS_INT8; dtype <= TV_WEIGHTS_INT4; dtype++) {
        tv_model *a = NULL, *b = NULL;
        const char *dir = tv_golden("models/qwen3-moe-mixed");
        CHECK_OK(tv_model_load(dir, &tv_ops_cuda, dev, (tv_weight_dtype)dtype, NULL, &a, &err), &err);
        CHECK_OK(tv_model_load(dir, &by_host, dev, (tv_weight_dtype)dtype, NULL, &b, &err), &err);
        for (int l = 0; a && b && l < a->config.n_layers; l++) {
            const tv_layer *x = &a->layers[l], *y = &b->layers[l];
            check_matrix(dev, &x->qkv, &y->qkv);
            check_matrix(dev, &x->o, &y->o);
            if (a->config.layer_sparse[l])
                check_matrix(dev, &x->expert_down[1], &y->expert_down[1]);
            else
                check_matrix(dev, &x->gate_up, &y->gate_up);
        }
        tv_model_free(a), tv_model_free(b);
    }
    rig_close(dev);
}

static void test_expand_refuses(void) {
    tv_err err = {0};
    tv_dev *dev = rig_open();
    uint8_t q[8] = {0};
    tv_bf16 scale[8] = {0};
    const int rows = 1, none = 0;
    tv_matrix m = {0};
    tv_packed_rows part = {5, 8, q, scale};
    CHECK_FAILS(tv_ops_cuda.matrix_load_packed(dev, 1, &part, &rows, NULL, 8, &m, &err), TV_EARG, &err, "5 bits");
    part.bits = 8, part.scale = NULL;
    CHECK_FAILS(tv_ops_cuda.matrix_load_packed(dev, 1, &part, &rows, NULL, 8, &m, &err), TV_EARG, &err,
                "scale of part 0");
    const void *const bytes[1] = {NULL};
    CHECK_FAILS(tv_ops_cuda.matrix_load(dev, 1, bytes, &rows, NULL, 8, &m, &err), TV_EARG, &err, "part 0 is NULL");
    CHECK_FAILS(tv_ops_cuda.matrix_load(dev, 1, bytes, &none, NULL, 8, &m, &err), TV_EARG, &err, "part 0 has 0 rows");
    CHECK_FAILS(tv_ops_cuda.matrix_load(dev, 1, bytes, &rows, NULL, 0, &m, &err), TV_EARG, &err, "K=0");
    CHECK_FAILS(tv_ops_cuda.matrix_load(dev, 0, bytes, &rows, NULL, 8, &m, &err), TV_EARG, &err, "n_parts=0");
    rig_close(dev);
}

static const tv_test tests[] = {
    {"expand_rows", test_expand_rows},
    {"expand_model", test_expand_model},
    {"expand_refuses", test_expand_refuses},
};
TV_TEST_MAIN(tests)
