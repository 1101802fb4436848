/* The row kernels of the CUDA device, against the CPU device. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/simt/rig.h"

/* Rows are copied whole, at widths with and without vector loads. */
static void test_embed(void) {
    static const int widths[] = {1, 8, 36, 1000, 1024};
    enum { V = 7, M = 5 };
    static const int32_t ids[M] = {6, 0, 3, 3, 5};
    tv_err err = {0};
    tv_dev *dev = rig_open();
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        const int D = widths[w];
        const size_t row = (size_t)D * sizeof(tv_bf16);
        tv_bf16 *table = rig_normals(1, (size_t)V * (size_t)D, 1), *out = malloc(M * row);
        tv_embed_args a = {.M = M, .V = V, .D = D};
        a.table = rig_put(dev, table, V * row), a.ids = rig_put(dev, ids, sizeof ids), a.out = rig_put(dev, NULL, M * row);
        CHECK_OK(tv_ops_cuda.embed(dev, &a, &err), &err);
        rig_get(dev, out, a.out);
        for (int i = 0; i < M; i++) CHECK_BYTES(out + i * D, table + ids[i] * D, row);
        free(table), free(out);
    }
    rig_close(dev);
}

static const tv_test tests[] = {{"embed", test_embed}};
TV_TEST_MAIN(tests)
