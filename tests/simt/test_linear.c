/* The matrix product of the CUDA device: right against f64, and the same bits for a row whatever runs beside it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kernels/cuda/device.h"
#include "tests/check.h"
#include "tests/simt/rig.h"

/* A product with its operands on both sides. */
typedef struct {
    int M, N, K;
    tv_bf16 *x, *w, *bias; /* [M,K], [N,K], [N] on the host */
    const tv_bf16 *x_dev;
    tv_matrix matrix;
} product;

static product make(tv_dev *dev, uint64_t seed, int M, int N, int K, int with_bias) {
    product p = {.M = M, .N = N, .K = K};
    tv_err err = {0};
    p.x = rig_normals(seed, (size_t)M * K, 1);
    p.w = rig_normals(seed + 100, (size_t)N * K, 0.05);
    p.bias = rig_normals(seed + 200, (size_t)N, 0.5);
    p.x_dev = rig_put(dev, p.x, (size_t)M * K * sizeof(tv_bf16));
    CHECK_OK(tv_ops_cuda.matrix_load(dev, 1, (const void *[]){p.w}, &N, with_bias ? (const void *[]){p.bias} : NULL, K,
                                     &p.matrix, &err),
             &err);
    return p;
}

static void drop(tv_dev *dev, product *p) {
    tv_ops_cuda.matrix_free(dev, &p->matrix);
    free(p->x);
    free(p->w);
    free(p->bias);
}

/* The device with our own kernels alone: on a card cuBLASLt would take most products. */
static tv_dev *open_own(void) {
    tv_dev *dev = rig_open();
    dev->library_linear = NULL;
    return dev;
}

enum { BF16, F32, F32_ROUNDED };

/* Rows row .. row+M-1 of the product as f32 values, whatever they are stored as; malloc'd. */
static float *linear(tv_dev *dev, const product *p, int row, int M, tv_linear_plan plan, int kind) {
    const size_t n = (size_t)M * p->N, bytes = n * (kind == BF16 ? sizeof(tv_bf16) : sizeof(float));
    tv_err err = {0};
    void *y_dev = rig_put(dev, NULL, bytes), *y = malloc(bytes);
    tv_linear_args a = {.x = p->x_dev + (size_t)row * p->K, .w = &p->matrix, .y = y_dev, .M = M, .y_f32 = kind != BF16};
    a.round_bf16 = kind == F32_ROUNDED, a.plan = plan, a.fixed = 1;
    CHECK_OK(tv_ops_cuda.linear(dev, &a, &err), &err);
    rig_get(dev, y, y_dev);
    rig_drop(dev, y_dev);
    float *values = tv_xmalloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++) values[i] = kind == BF16 ? tv_f32_from_bf16(((tv_bf16 *)y)[i]) : ((float *)y)[i];
    free(y);
    return values;
}

/* Every height of tile, f32, bf16 and rounded f32 out, with and without bias, one slice and up to five, ragged M, N and
 * K, against f64: the tensor core's sums lose at most 2^-20 of the sum of magnitudes in each 16 elements. All tiles
 * give the same bits. */
static void test_against_f64(void) {
    static const struct {
        int M, N, K, slices, slice, bias;
    } cases[] = {{1, 1, 8, 1, 8, 0},        {1, 100, 264, 1, 264, 1}, {15, 7, 40, 1, 40, 1},
                 {16, 8, 72, 1, 72, 0},     {17, 129, 72, 2, 64, 1},  {63, 100, 40, 1, 40, 0},
                 {64, 8, 264, 3, 96, 1},    {65, 129, 72, 1, 72, 0},  {130, 100, 40, 2, 32, 1},
                 {1, 129, 1000, 5, 224, 0}, {17, 7, 264, 2, 160, 0},  {130, 8, 1000, 4, 256, 1},
                 {2, 5, 7, 1, 7, 1},        {65, 9, 33, 2, 32, 0},    {17, 100, 71, 3, 32, 1}};
    static const int heights[] = {16, 64, 128};
    tv_dev *dev = open_own();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int M = cases[c].M, N = cases[c].N, K = cases[c].K;
        const tv_linear_plan plan = {cases[c].slices, cases[c].slice};
        product p = make(dev, c + 1, M, N, K, cases[c].bias);
        float *first = NULL;
        for (size_t h = 0; h < 3; h++) {
            dev->gemm_rows = heights[h];
            float *y = linear(dev, &p, 0, M, plan, F32);
            if (first) {
                CHECK_BYTES(y, first, (size_t)M * N * sizeof *y);
            } else {
                double worst = 0;
                for (int m = 0; m < M; m++)
                    for (int n = 0; n < N; n++) {
                        double sum = cases[c].bias ? tv_f32_from_bf16(p.bias[n]) : 0, size = fabs(sum);
                        for (int k = 0; k < K; k++) {
                            double xw = (double)tv_f32_from_bf16(p.x[m * K + k]) * tv_f32_from_bf16(p.w[n * K + k]);
                            sum += xw, size += fabs(xw);
                        }
                        double off = fabs(y[m * N + n] - sum) / (size * (K / 16 + plan.slices + 1) * 0x1p-20);
                        if (!(off <= worst)) worst = off;
                    }
                if (!CHECK(worst <= 1)) printf("  M=%d N=%d K=%d: %g of the bound\n", M, N, K, worst);
            }
            for (int kind = BF16; kind <= F32_ROUNDED; kind += F32_ROUNDED) {
                float *rounded = linear(dev, &p, 0, M, plan, kind);
                int same = 1;
                for (int i = 0; i < M * N; i++) same &= rounded[i] == tv_round_bf16(y[i]);
                if (!CHECK(same)) printf("  M=%d N=%d K=%d kind %d height %d\n", M, N, K, kind, heights[h]);
                free(rounded);
            }
            if (first)
                free(y);
            else
                first = y;
        }
        free(first);
        drop(dev, &p);
    }
    rig_close(dev);
}

/* A row alone = the row in batches of 2, 17 and 64: in tiles of every height, under the plan of one slice and under one
 * of several; and on a card by cuBLASLt's pinned algorithm. It is what --reduction fixed promises. */
static void test_batch_invariance(void) {
    enum { MOST = 64, N = 48, K = 200 };
    static const int batches[] = {2, 17, MOST}, heights[] = {16, 64, 128};
    static const tv_linear_plan plans[] = {{1, K}, {3, 96}, {1, K}};
    tv_dev *dev = rig_open();
    product p = make(dev, 5, MOST, N, K, 1);
    tv_status (*const library)(tv_dev *, const tv_linear_args *, int *, tv_err *) = dev->library_linear;
    for (size_t i = 0; i < (library ? 3 : 2); i++) {
        float *alone[MOST];
        dev->gemm_rows = 0, dev->library_linear = i == 2 ? library : NULL;
        for (int m = 0; m < MOST; m++) alone[m] = linear(dev, &p, m, 1, plans[i], i == 2 ? BF16 : F32);
        for (size_t b = 0; b < 3; b++)
            for (int row = 0; row + batches[b] <= MOST; row += batches[b] < 17 ? 31 : 17) {
                dev->gemm_rows = heights[((size_t)row + b) % 3];
                float *y = linear(dev, &p, row, batches[b], plans[i], i == 2 ? BF16 : F32);
                for (int m = 0; m < batches[b]; m++) CHECK_BYTES(y + m * N, alone[row + m], N * sizeof *y);
                free(y);
            }
        for (int m = 0; m < MOST; m++) free(alone[m]);
    }
    drop(dev, &p);
    rig_close(dev);
}

/* Slices are what the plan says: f32 products of the slices alone, added in ascending order, then the bias. */
static void test_slices(void) {
    enum { M = 5, N = 19, K = 232 };
    static const tv_linear_plan plans[] = {{1, K}, {2, 128}, {3, 96}, {4, 64}};
    tv_dev *dev = open_own();
    product p = make(dev, 7, M, N, K, 1);
    for (size_t i = 0; i < 4; i++) {
        const tv_linear_plan plan = plans[i];
        float *got = linear(dev, &p, 0, M, plan, F32), sum[M * N] = {0};
        for (int s = 0; s < plan.slices; s++) {
            const int k = s * plan.slice, length = k + plan.slice < K ? plan.slice : K - k;
            product part = make(dev, 1, M, N, length, 0);
            for (int m = 0; m < M; m++) memcpy(part.x + m * length, p.x + m * K + k, (size_t)length * sizeof *p.x);
            for (int n = 0; n < N; n++) memcpy(part.w + n * length, p.w + n * K + k, (size_t)length * sizeof *p.w);
            tv_err err = {0};
            CHECK_OK(tv_ops_cuda.upload(dev, (void *)part.x_dev, part.x, sizeof *p.x * M * length, &err), &err);
            CHECK_OK(tv_ops_cuda.upload(dev, part.matrix.data, part.w, sizeof *p.w * N * length, &err), &err);
            float *y = linear(dev, &part, 0, M, (tv_linear_plan){1, length}, F32);
            for (int j = 0; j < M * N; j++) sum[j] = s ? sum[j] + y[j] : y[j];
            free(y);
            drop(dev, &part);
        }
        for (int j = 0; j < M * N; j++) sum[j] += tv_f32_from_bf16(p.bias[j % N]);
        CHECK_BYTES(got, sum, sizeof sum);
        free(got);
    }
    drop(dev, &p);
    rig_close(dev);
}

/* No order of blocks and threads changes a bit, and shared memory is read without bank conflicts. */
static void test_schedules(void) {
    enum { M = 70, N = 136, K = 328 };
    static const int heights[] = {16, 64, 128};
    tv_dev *dev = open_own();
    product p = make(dev, 9, M, N, K, 1);
    float *first = NULL;
    const uint64_t conflicts = rig_bank_conflicts();
    for (int i = 0; i < rig_schedules(); i++) {
        rig_schedule(i);
        dev->gemm_rows = heights[i % 3];
        float *y = linear(dev, &p, 0, M, (tv_linear_plan){2, 192}, BF16);
        if (first) CHECK_BYTES(y, first, sizeof *y * M * N);
        if (first)
            free(y);
        else
            first = y;
    }
    rig_schedule(0);
    CHECK_INT(rig_bank_conflicts() - conflicts, 0);
    free(first);
    drop(dev, &p);
    rig_close(dev);
}

/* A row that holds a NaN or an infinity touches no other row, and a NaN in an output's weights no other output. */
static void test_bad_values_stay(void) {
    enum { M = 18, N = 40, K = 72 };
    tv_dev *dev = open_own();
    product p = make(dev, 11, M, N, K, 0);
    float *clean = linear(dev, &p, 0, M, (tv_linear_plan){1, K}, F32);
    p.x[3 * K + 70] = 0x7fc0, p.x[17 * K] = 0x7f80;
    p.w[33 * K + 5] = 0x7fc0;
    tv_err err = {0};
    CHECK_OK(tv_ops_cuda.upload(dev, (void *)p.x_dev, p.x, sizeof *p.x * M * K, &err), &err);
    CHECK_OK(tv_ops_cuda.upload(dev, p.matrix.data, p.w, sizeof *p.w * N * K, &err), &err);
    float *y = linear(dev, &p, 0, M, (tv_linear_plan){1, K}, F32);
    int right = 1;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            float got = y[m * N + n];
            right &= m == 3 || n == 33 ? isnan(got) : m == 17 ? !isfinite(got) : got == clean[m * N + n];
        }
    CHECK(right);
    free(clean);
    free(y);
    drop(dev, &p);
    rig_close(dev);
}

/* What the kernel cannot do is refused by name before anything is launched. */
static void test_refusals(void) {
    tv_dev *dev = open_own();
    tv_err err = {0};
    product p = make(dev, 13, 1, 8, 8, 0);
    tv_linear_args a = {.x = p.x_dev, .w = &p.matrix, .y = (char *)p.matrix.data + 2, .M = 1, .plan = {1, 8}};
    CHECK_FAILS(tv_ops_cuda.linear(dev, &a, &err), TV_EUNSUPPORTED, &err, "aligned to 16 bytes");
    tv_matrix wide = {.N = 1 << 28, .K = 8, .data = p.matrix.data};
    a.w = &wide, a.y = p.matrix.data;
    CHECK_FAILS(tv_ops_cuda.linear(dev, &a, &err), TV_EUNSUPPORTED, &err, "N=268435456");
    a.plan.slices = 2;
    CHECK_FAILS(tv_ops_cuda.linear(dev, &a, &err), TV_EARG, &err, "2 slices of 8");
    drop(dev, &p);
    rig_close(dev);
}

/* Tiles grow with the rows as long as blocks remain for the card. */
static void test_tile_choice(void) {
    tv_dev *dev = open_own();
    CHECK_INT(cuda_gemm_rows(dev, 1, 1 << 20, 1), 16);
    CHECK_INT(cuda_gemm_rows(dev, 64, 1024, 1), 16);
    CHECK_INT(cuda_gemm_rows(dev, 64, 4096, 1), 64);
    CHECK_INT(cuda_gemm_rows(dev, 64, 1024, 8), 64);
    CHECK_INT(cuda_gemm_rows(dev, 512, 4096, 1), 128);
    rig_close(dev);
}

static const tv_test tests[] = {
    {"against_f64", test_against_f64}, {"batch_invariance", test_batch_invariance}, {"slices", test_slices},
    {"schedules", test_schedules},     {"bad_values_stay", test_bad_values_stay},   {"refusals", test_refusals},
    {"tile_choice", test_tile_choice}};
TV_TEST_MAIN(tests)
