/* The matrix product of the CPU device: packing of weights and the loops around the kernels (layout and order of
 * summation: linear.h). One parallel region a product; the panels of a chunk of rows are dealt out to threads, which
 * share the packed x. */
#include "kernels/cpu/linear.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of packed x that stay in a core's second-level cache (512 KiB and more) while the weights stream past. */
enum { CHUNK_BYTES = 384 << 10 };

void cpu_pack_panels(const unsigned char *const *rows, int N, int K, tv_bf16 *panels, int threads) {
    int n_panels = (N + CPU_PANEL - 1) / CPU_PANEL;
    size_t pairs = ((size_t)K + 1) / 2;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
    for (int p = 0; p < n_panels; p++) {
        tv_bf16 *out = panels + (size_t)p * pairs * CPU_PANEL * 2;
        int columns = N - p * CPU_PANEL < CPU_PANEL ? N - p * CPU_PANEL : CPU_PANEL;
        const unsigned char *const *w = rows + (size_t)p * CPU_PANEL;
        for (size_t k = 0; k < pairs; k++) {
            uint32_t pair[CPU_PANEL] = {0};
            size_t bytes = 2 * k + 1 < (size_t)K ? 4 : 2;
            if (bytes == 4)
                for (int n = 0; n < columns; n++) memcpy(&pair[n], w[n] + 4 * k, 4);
            else
                for (int n = 0; n < columns; n++) memcpy(&pair[n], w[n] + 4 * k, 2);
            memcpy(out + k * CPU_PANEL * 2, pair, sizeof pair);
        }
    }
}

/* `total` split into `parts` as evenly as can be: where part i begins. */
static int part_begin(int total, int parts, int i) {
    int base = total / parts, rest = total % parts;
    return i * base + (i < rest ? i : rest);
}

/* What all panels of one chunk of rows have in common. */
typedef struct {
    const cpu_isa *isa;
    const tv_linear_args *a;
    const float *x;     /* [rows,Kp] f32, packed in blocks */
    int rows, n_blocks; /* of the chunk */
    int row;            /* first row in y */
    size_t Kp;
} chunk;

/* One block of rows against `panels` panels: weights are used once, so they are fetched well ahead. */
static void run_stream(const chunk *c, int panel, int panels, float *tile) {
    const tv_linear_plan plan = c->a->plan;
    size_t w_stride = c->Kp * CPU_PANEL;
    const tv_bf16 *w = (const tv_bf16 *)c->a->w->data + panel * w_stride;
    for (int s = 0; s < plan.slices; s++) {
        size_t k = (size_t)s * plan.slice, end = s + 1 < plan.slices ? k + plan.slice : c->Kp;
        cpu_block b = {
            .x = c->x + k * c->rows,
            .w = w + k * CPU_PANEL,
            .w_stride = w_stride,
            .k = (int)(end - k),
            .out = tile,
            .tile_stride = CPU_CHUNK_ROWS * CPU_PANEL,
            .add = s > 0,
            .prefetch = (const char *)(w + k * CPU_PANEL) + 2048,
            .prefetch_step = 64,
        };
        c->isa->block(c->rows, panels, &b);
    }
}

/* Several blocks of rows against `panels` panels, passed over piece by piece so that a piece stays in the first-level
 * cache; the next piece is fetched bit by bit meanwhile. partial: the running slice's chains where they must not yet be
 * added. */
static void run_blocks(const chunk *c, int panel, int panels, int last_panel, float *tile, float *partial) {
    const tv_linear_plan plan = c->a->plan;
    size_t w_stride = c->Kp * CPU_PANEL;
    const tv_bf16 *w = (const tv_bf16 *)c->a->w->data + panel * w_stride;
    const tv_bf16 *next_panel = panel + panels < last_panel ? w + panels * w_stride : w;
    for (int s = 0; s < plan.slices; s++) {
        size_t slice = (size_t)s * plan.slice, end = s + 1 < plan.slices ? slice + plan.slice : c->Kp;
        for (size_t k = slice; k < end; k += c->isa->piece) {
            size_t k_end = k + c->isa->piece < end ? k + c->isa->piece : end;
            float *target = s > 0 && k_end < end ? partial : tile, *start = s > 0 ? partial : tile;
            const tv_bf16 *next = k_end < c->Kp ? w + k_end * CPU_PANEL : next_panel;
            for (int i = 0; i < c->n_blocks; i++) {
                int row = part_begin(c->rows, c->n_blocks, i), rows = part_begin(c->rows, c->n_blocks, i + 1) - row;
                cpu_block b = {
                    .x = c->x + row * c->Kp + k * rows,
                    .w = w + k * CPU_PANEL,
                    .w_stride = w_stride,
                    .k = (int)(k_end - k),
                    .in = k > slice ? start + row * CPU_PANEL : NULL,
                    .out = target + row * CPU_PANEL,
                    .tile_stride = CPU_CHUNK_ROWS * CPU_PANEL,
                    .add = s > 0 && k_end == end,
                    .prefetch = (const char *)next + (k_end - k) * 32 / c->n_blocks * i,
                    .prefetch_step = 64 / c->n_blocks,
                };
                c->isa->block(rows, panels, &b);
            }
        }
    }
}

static void finish(const chunk *c, int panel, int panels, const float *tile) {
    const tv_linear_args *a = c->a;
    cpu_out out = !a->y_f32 ? CPU_OUT_BF16 : a->round_bf16 ? CPU_OUT_F32_ROUNDED : CPU_OUT_F32;
    for (int p = 0; p < panels; p++) {
        int n = (panel + p) * CPU_PANEL, columns = a->w->N - n < CPU_PANEL ? a->w->N - n : CPU_PANEL;
        size_t at = (size_t)c->row * a->w->N + n;
        void *y = a->y_f32 ? (void *)((float *)a->y + at) : (void *)((tv_bf16 *)a->y + at);
        c->isa->finish(tile + (size_t)p * CPU_CHUNK_ROWS * CPU_PANEL, c->rows, columns,
                       a->w->bias ? a->w->bias + n : NULL, y, (size_t)a->w->N, out);
    }
}

/* Panels [begin,end) of a chunk. */
static void run_panels(const chunk *c, int begin, int end) {
    _Alignas(64) float tile[CPU_MAX_PANELS * CPU_CHUNK_ROWS * CPU_PANEL];
    _Alignas(64) float partial[CPU_MAX_PANELS * CPU_CHUNK_ROWS * CPU_PANEL];
    int stream = c->n_blocks == 1 ? c->isa->stream_panels[c->rows] : 0;
    int most = stream ? stream : c->isa->panels;
    for (int p = begin; p < end;) {
        int panels = end - p >= most ? most : 1;
        if (stream)
            run_stream(c, p, panels, tile);
        else
            run_blocks(c, p, panels, end, tile, partial);
        finish(c, p, panels, tile);
        p += panels;
    }
}

void cpu_linear_run(const cpu_isa *isa, int threads, float *scratch, const tv_linear_args *a) {
    const int N = a->w->N, K = a->w->K;
    const size_t Kp = ((size_t)K + 1) / 2 * 2;
    const int n_panels = (N + CPU_PANEL - 1) / CPU_PANEL;
    for (int row0 = 0; row0 < a->M; row0 += CPU_PACK_ROWS) {
        int M = a->M - row0 < CPU_PACK_ROWS ? a->M - row0 : CPU_PACK_ROWS;
        /* Rows go in chunks, a chunk's in blocks, each split evenly. */
        int chunk_rows = (int)(CHUNK_BYTES / (Kp * sizeof(float)));
        chunk_rows = chunk_rows > CPU_CHUNK_ROWS ? CPU_CHUNK_ROWS : chunk_rows / isa->rows * isa->rows;
        if (chunk_rows < isa->rows) chunk_rows = isa->rows;
        int n_chunks = (M + chunk_rows - 1) / chunk_rows;
        /* Few enough panels at a time that every thread gets several turns, however unevenly the machine lets them run.
         */
        int group = (int)((int64_t)n_panels * n_chunks / (threads * 8)) / CPU_MAX_PANELS * CPU_MAX_PANELS;
        group = group < CPU_MAX_PANELS ? CPU_MAX_PANELS : group > 64 ? 64 : group;
        int n_groups = (n_panels + group - 1) / group;
#pragma omp parallel num_threads(threads)
        {
            /* Each block's rows are consecutive in y, in x and in scratch. */
#pragma omp for schedule(static)
            for (int i = 0; i < n_chunks * ((chunk_rows + isa->rows - 1) / isa->rows); i++) {
                int per_chunk = (chunk_rows + isa->rows - 1) / isa->rows;
                int first = part_begin(M, n_chunks, i / per_chunk);
                int rows = part_begin(M, n_chunks, i / per_chunk + 1) - first,
                    n_blocks = (rows + isa->rows - 1) / isa->rows;
                if (i % per_chunk >= n_blocks) continue;
                int row = part_begin(rows, n_blocks, i % per_chunk);
                rows = part_begin(rows, n_blocks, i % per_chunk + 1) - row;
                row += first;
                isa->pack(a->x + (size_t)(row0 + row) * K, (size_t)K, rows, K, scratch + row * Kp);
            }
#pragma omp for schedule(dynamic) nowait
            for (int i = 0; i < n_chunks * n_groups; i++) {
                int first = part_begin(M, n_chunks, i / n_groups);
                int rows = part_begin(M, n_chunks, i / n_groups + 1) - first;
                chunk c = {
                    .isa = isa,
                    .a = a,
                    .x = scratch + first * Kp,
                    .rows = rows,
                    .row = row0 + first,
                    .Kp = Kp,
                    .n_blocks = (rows + isa->rows - 1) / isa->rows,
                };
                int begin = i % n_groups * group;
                run_panels(&c, begin, begin + group < n_panels ? begin + group : n_panels);
            }
        }
    }
}

tv_status cpu_linear(tv_dev *dev, const tv_linear_args *a, tv_err *err) {
    TV_TRY(tv_check_linear(a, err));
    void *scratch;
    TV_TRY(cpu_scratch(dev, CPU_SCRATCH_LINEAR, cpu_linear_scratch_bytes(a->M, a->w->K), &scratch, err));
    int threads = cpu_threads_for(dev, (double)a->M * a->w->N * a->w->K);
    cpu_linear_run(dev->isa, threads, scratch, a);
    return TV_OK;
}

tv_status cpu_isa_check(const cpu_isa *isa, tv_err *err) {
    /* Two slices and a ragged piece; every height of block, several chunks, ragged columns and an odd K. */
    enum { M = 29, N = 71, K = 71 };
    tv_bf16 x[M * K], w[N * K], bias[N];
    const unsigned char *rows[N];
    uint32_t state = 1;
    for (int i = 0; i < M * K + N * K + N; i++) {
        state = state * 1664525u + 1013904223u;
        /* sign, an exponent in 2^-3 .. 2^4 and a full mantissa: sums that need every rounding */
        tv_bf16 v = (tv_bf16)((state >> 31) << 15 | (124 + (state >> 28 & 7)) << 7 | (state >> 20 & 127));
        *(i < M * K ? &x[i] : i < M * K + N * K ? &w[i - M * K] : &bias[i - M * K - N * K]) = v;
    }
    for (int n = 0; n < N; n++) rows[n] = (const unsigned char *)&w[n * K];
    size_t panel_bytes = cpu_panel_bytes(N, K), scratch_bytes = cpu_linear_scratch_bytes(M, K);
    unsigned char *memory = cpu_pages(panel_bytes + scratch_bytes + 64);
    if (!memory) return TV_FAIL(err, TV_ENOMEM, "isa %s: no memory for its self-check", isa->name);
    tv_matrix matrix = {.N = N, .K = K, .data = memory, .bias = NULL};
    cpu_pack_panels(rows, N, K, matrix.data, 1);
    float *scratch = (float *)(memory + (panel_bytes + 63) / 64 * 64);
    tv_status status = TV_OK;
    for (int m = 1; m <= M && status == TV_OK; m++)
        for (int kind = 0; kind < 3 && status == TV_OK; kind++) {
            float want[M * N], got[M * N];
            tv_linear_args a = {.x = x,
                                .w = &matrix,
                                .y = want,
                                .M = m,
                                .y_f32 = kind > 0,
                                .round_bf16 = kind > 1,
                                .plan = kind ? (tv_linear_plan){1, K} : (tv_linear_plan){3, 32}};
            cpu_linear_run(&cpu_isa_scalar, 1, scratch, &a);
            a.y = got;
            cpu_linear_run(isa, 1, scratch, &a);
            if (memcmp(want, got, (size_t)m * N * (kind ? sizeof(float) : sizeof(tv_bf16))))
                status =
                    TV_FAIL(err, TV_EUNSUPPORTED,
                            "isa %s: its matrix product differs from the scalar one on this machine (M=%d); open the "
                            "device with isa scalar and please report this",
                            isa->name, m);
        }
    cpu_pages_free(memory, panel_bytes + scratch_bytes + 64);
    return status;
}
