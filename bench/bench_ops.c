/* How fast the matrix products of a model run, beside what the machine allows. */
#include "bench/bench.h"

#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

/* Qwen3-0.6B. LAYERS_HELD layers are loaded and used in turn: 30 MiB each, far more in all than caches hold. */
enum {
    D = 1024,
    Q = 2048,
    KV = 1024,
    F = 3072,
    V = 151936,
    LAYERS = 28,
    LAYERS_HELD = 10,
    N_PRODUCTS = 5,
    MOST_REPEATS = 64
};
static const struct {
    const char *name;
    int N, K;
} products[N_PRODUCTS] = {{"qkv", Q + 2 * KV, D}, {"o", D, Q}, {"gate_up", 2 * F, D}, {"down", D, F}, {"logits", V, D}};

typedef struct {
    const tv_ops *ops;
    tv_dev *dev;
    tv_plan plan;
    tv_matrix matrices[N_PRODUCTS][LAYERS_HELD]; /* of the logits one only */
    void *x, *y;                                 /* [most rows,F] bf16; [most rows,V] bf16 */
    size_t x_bytes, y_bytes;
    double (*clock)(void); /* the thread's own where one thread does all: others' load is left out */
    int layer;             /* next to be used: products never find their weights in a cache */
} bench;

static tv_status load(bench *b, tv_err *err) {
    const size_t largest = (size_t)V * D;
    tv_bf16 *w = tv_xmalloc(largest * sizeof *w);
    uint32_t state = 1;
    for (size_t i = 0; i < largest; i++) { /* both signs, exponents -8 .. -5: never denormal, never far from typical */
        state = state * 1664525u + 1013904223u;
        w[i] = (tv_bf16)((state >> 31) << 15 | (119 + (state >> 29 & 3)) << 7 | (state >> 20 & 127));
    }
    tv_status status = TV_OK;
    for (int p = 0; p < N_PRODUCTS && status == TV_OK; p++)
        for (int l = 0; l < (p == N_PRODUCTS - 1 ? 1 : LAYERS_HELD) && status == TV_OK; l++)
            status = b->ops->matrix_load(b->dev, 1, (const void *[]){w}, &products[p].N, NULL, products[p].K,
                                         &b->matrices[p][l], err);
    if (status == TV_OK) status = b->ops->alloc(b->dev, b->x_bytes, &b->x, err);
    if (status == TV_OK) status = b->ops->alloc(b->dev, b->y_bytes, &b->y, err);
    if (status == TV_OK) status = b->ops->upload(b->dev, b->x, w, b->x_bytes, err);
    free(w);
    return status;
}

static tv_status run_product(bench *b, int p, int M, tv_err *err) {
    const tv_matrix *w = &b->matrices[p][p == N_PRODUCTS - 1 ? 0 : b->layer];
    tv_linear_args a = {.x = b->x, .w = w, .y = b->y, .M = M, .plan = tv_plan_linear(&b->plan, M, w->N, w->K)};
    return b->ops->linear(b->dev, &a, err);
}

/* Product p, or with p = N_PRODUCTS all of a step, until about `least` seconds have passed: seconds for one. */
static tv_status measure(bench *b, int p, int M, double least, double *seconds, tv_err *err) {
    double begin = b->clock(), now;
    int n = 0;
    do {
        if (p < N_PRODUCTS) {
            TV_TRY(run_product(b, p, M, err));
            b->layer = (b->layer + 1) % LAYERS_HELD;
        } else {
            for (int l = 0; l < LAYERS; l++) {
                for (int q = 0; q < N_PRODUCTS - 1; q++) TV_TRY(run_product(b, q, M, err));
                b->layer = (b->layer + 1) % LAYERS_HELD;
            }
            TV_TRY(run_product(b, N_PRODUCTS - 1, M, err));
        }
        TV_TRY(b->ops->sync(b->dev, err));
        n++;
        now = b->clock();
    } while (now - begin < least);
    *seconds = (now - begin) / n;
    return TV_OK;
}

/* The limits as they are right now; 0 where unknown. */
typedef struct {
    const char *isa;
    int threads;
    const void *buffer;
    size_t bytes;
} probes;

static tv_status bench_row(bench *b, int p, int M, int repeats, const probes *probe, FILE *out, cJSON *rows,
                           tv_err *err) {
    double flop = 0, bytes = 0;
    for (int q = 0; q < N_PRODUCTS; q++) {
        int times = p < N_PRODUCTS ? q == p : q == N_PRODUCTS - 1 ? 1 : LAYERS;
        flop += 2.0 * times * M * products[q].N * products[q].K;
        bytes += 2.0 * times * products[q].N * products[q].K;
    }
    double rate[MOST_REPEATS], fraction[MOST_REPEATS], seconds;
    double best_peak = 0, best_read = 0;
    TV_TRY(measure(b, p, M, 0, &seconds, err)); /* warm up */
    for (int r = 0; r < repeats; r++) {
        /* A probe before and one after: their mean is what the machine gave meanwhile. */
        double peak = tv_probe_fma(probe->isa, probe->threads, 0.01);
        double read = probe->buffer ? tv_probe_read(probe->buffer, probe->bytes, probe->threads) : 0;
        TV_TRY(measure(b, p, M, 0.03, &seconds, err));
        peak = (peak + tv_probe_fma(probe->isa, probe->threads, 0.01)) / 2;
        if (probe->buffer) read = (read + tv_probe_read(probe->buffer, probe->bytes, probe->threads)) / 2;
        rate[r] = 1 / seconds;
        double bound = flop / peak > bytes / read ? flop / peak : bytes / read; /* nanoseconds at least needed */
        fraction[r] = peak > 0 && read > 0 ? bound * 1e-9 / seconds : 0;
        if (peak > best_peak) best_peak = peak;
        if (read > best_read) best_read = read;
    }
    const char *name = p < N_PRODUCTS ? products[p].name : "step", *bound = "";
    tv_bench_stats per_s = tv_bench_summary(rate, repeats), of_limit = tv_bench_summary(fraction, repeats);
    if (best_peak > 0 && best_read > 0) bound = flop / best_peak > bytes / best_read ? "fma" : "read";
    fprintf(out, "%-8s %7d %6d %5d %10.3f %7.1f%% %9.1f %8.2f", name, p < N_PRODUCTS ? products[p].N : 0,
            p < N_PRODUCTS ? products[p].K : 0, M, 1e3 / per_s.median, 100 * per_s.mad / per_s.median,
            flop * per_s.median / 1e9, bytes * per_s.median / 1e9);
    if (*bound)
        fprintf(out, "   %3.0f%% %3.0f%% of %s\n", 100 * of_limit.median, 100 * of_limit.best, bound);
    else
        fprintf(out, "   -\n");
    fflush(out);

    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "product", name);
    if (p < N_PRODUCTS) {
        cJSON_AddNumberToObject(row, "N", products[p].N);
        cJSON_AddNumberToObject(row, "K", products[p].K);
    }
    cJSON_AddNumberToObject(row, "M", M);
    tv_bench_add(row, "per_second", &per_s);
    tv_json_add_number(row, "gflop_per_s", flop * per_s.median / 1e9);
    tv_json_add_number(row, "gb_per_s", bytes * per_s.median / 1e9);
    if (*bound) {
        cJSON_AddStringToObject(row, "limit", bound);
        tv_bench_add(row, "fraction", &of_limit);
        tv_json_add_number(row, "peak_gflop_per_s", best_peak);
        tv_json_add_number(row, "read_gb_per_s", best_read);
    } else {
        tv_json_add_null(row, "fraction", "no limit is measured for this device and instruction set");
    }
    cJSON_AddItemToArray(rows, row);
    return TV_OK;
}

static tv_status bench_rows(bench *b, const tv_bench_options *options, const int *batches, int n_batches, int repeats,
                            FILE *out, cJSON *rows, tv_err *err) {
    TV_TRY(load(b, err));
    probes probe = {.isa = "", .threads = options->threads ? options->threads : omp_get_num_procs()};
    if (!strcmp(b->ops->name, "cpu")) {
        /* The logits' weights are a buffer of the right kind at hand: device memory, huge pages, larger than caches. */
        probe.isa = tv_probe_isa(b->ops->describe(b->dev));
        probe.buffer = b->matrices[N_PRODUCTS - 1][0].data;
        probe.bytes = (size_t)128 << 20;
    }
    fprintf(out, "%s; Qwen3-0.6B shapes; limits measured in turn; share: median and best\n", b->ops->describe(b->dev));
    fprintf(out, "product        N      K  rows         ms      MAD   GFLOP/s     GB/s   share of limit\n");
    for (int i = 0; i < n_batches; i++)
        for (int p = options->quick ? N_PRODUCTS : 0; p <= N_PRODUCTS; p++)
            TV_TRY(bench_row(b, p, batches[i], repeats, &probe, out, rows, err));
    return TV_OK;
}

tv_status tv_bench_ops(const tv_ops *ops, const tv_bench_options *options, FILE *out, cJSON **json, tv_err *err) {
    static const int default_batches[] = {1, 8, 32, 128, 512};
    const int *batches = options->batches ? options->batches : default_batches;
    int n_batches = options->batches ? options->n_batches : (int)(sizeof default_batches / sizeof *default_batches);
    int repeats = options->repeats ? options->repeats : 9, most = 1;
    if (repeats < 1 || repeats > MOST_REPEATS)
        return TV_FAIL(err, TV_EARG, "bench: repeats=%d must be in 1 .. %d", repeats, MOST_REPEATS);
    for (int i = 0; i < n_batches; i++) {
        if (batches[i] < 1 || batches[i] > 4096)
            return TV_FAIL(err, TV_EARG, "bench: %d rows must be in 1 .. 4096", batches[i]);
        if (batches[i] > most) most = batches[i];
    }
    bench *b = tv_xcalloc(1, sizeof *b);
    b->clock = !strcmp(ops->name, "cpu") && options->threads == 1 ? tv_bench_cpu : tv_bench_wall;
    b->ops = ops;
    b->plan = options->plan.units ? options->plan : (tv_plan){TV_REDUCE_SERVING, 132};
    b->x_bytes = (size_t)most * F * sizeof(tv_bf16);
    b->y_bytes = (size_t)most * V * sizeof(tv_bf16);
    cJSON *root = cJSON_CreateObject();
    tv_dev_options dev_options = {.threads = options->threads, .isa = options->isa};
    tv_status status = ops->open(&dev_options, &b->dev, err);
    if (status == TV_OK) {
        cJSON_AddStringToObject(root, "device", ops->describe(b->dev));
        cJSON_AddStringToObject(root, "shapes", "Qwen3-0.6B");
        cJSON_AddStringToObject(root, "reduction", b->plan.reduction == TV_REDUCE_FIXED ? "fixed" : "serving");
        status = bench_rows(b, options, batches, n_batches, repeats, out, cJSON_AddArrayToObject(root, "rows"), err);
        for (int p = 0; p < N_PRODUCTS; p++)
            for (int l = 0; l < LAYERS_HELD; l++) ops->matrix_free(b->dev, &b->matrices[p][l]);
        ops->free(b->dev, b->x, b->x_bytes);
        ops->free(b->dev, b->y, b->y_bytes);
        ops->close(b->dev);
    }
    free(b);
    if (status == TV_OK && json)
        *json = root;
    else
        cJSON_Delete(root);
    return status;
}
