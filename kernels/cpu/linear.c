/* The matrix product of the CPU device: packing of weights and the loops around the kernels (layout and order of
 * summation: linear.h). One parallel region a product; the panels of a chunk of rows are dealt out to threads, which
 * share the packed x. */
#include "kernels/cpu/linear.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of packed x that stay in a core's second-level cache (512 KiB and more) while the weights stream past. */
enum { CHUNK_BYTES = 384 << 10 };
/* Elements of x that one thread packs sooner than two agree to. */
enum { PACK_ALONE = 1 << 16 };

typedef struct {
    const unsigned char *const *rows; /* [N] rows of [K] bf16, any alignment */
    int N, K;
    tv_bf16 *panels;
} packing;

static void pack_panels(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const packing *job = ctx;
    const size_t pairs = ((size_t)job->K + 1) / 2, whole = (size_t)job->K / 2;
    for (int p = begin; p < end; p++) {
        const unsigned char *const *w = job->rows + (size_t)p * CPU_PANEL;
        int columns = job->N - p * CPU_PANEL < CPU_PANEL ? job->N - p * CPU_PANEL : CPU_PANEL;
        tv_bf16 *out = job->panels + (size_t)p * pairs * CPU_PANEL * 2;
        for (size_t k = 0; k < pairs; k++) {
            tv_bf16 pair[CPU_PANEL][2] = {{0}};
            for (int n = 0; n < columns; n++) memcpy(pair[n], w[n] + 4 * k, k < whole ? 4 : 2);
            memcpy(out + k * CPU_PANEL * 2, pair, sizeof pair);
        }
    }
}

void cpu_pack_panels(cpu_pool *pool, int threads, const unsigned char *const *rows, int N, int K, tv_bf16 *panels) {
    packing job = {rows, N, K, panels};
    cpu_parallel(pool, threads, (N + CPU_PANEL - 1) / CPU_PANEL, 4, pack_panels, &job);
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
            .x = c->x + k / 2 * c->isa->pair * c->rows,
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
static void run_blocks(const chunk *c, int panel, int panels, int next_panel, float *tile, float *partial) {
    const tv_linear_plan plan = c->a->plan;
    size_t w_stride = c->Kp * CPU_PANEL;
    const tv_bf16 *w = (const tv_bf16 *)c->a->w->data + panel * w_stride;
    const tv_bf16 *next_w = (const tv_bf16 *)c->a->w->data + next_panel * w_stride;
    for (int s = 0; s < plan.slices; s++) {
        size_t slice = (size_t)s * plan.slice, end = s + 1 < plan.slices ? slice + plan.slice : c->Kp;
        for (size_t k = slice; k < end; k += c->isa->piece) {
            size_t k_end = k + c->isa->piece < end ? k + c->isa->piece : end;
            float *target = s > 0 && k_end < end ? partial : tile, *start = s > 0 ? partial : tile;
            const tv_bf16 *next = k_end < c->Kp ? w + k_end * CPU_PANEL : next_w;
            for (int i = 0; i < c->n_blocks; i++) {
                int row = part_begin(c->rows, c->n_blocks, i), rows = part_begin(c->rows, c->n_blocks, i + 1) - row;
                cpu_block b = {
                    .x = c->x + row * c->Kp + k / 2 * c->isa->pair * rows,
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

/* Whether the chunk is a lone block that streams; panels that the kernels take at once for it. */
static int streams(const chunk *c) { return c->n_blocks == 1 && c->isa->stream_panels[c->rows]; }
static int panels_at_once(const chunk *c) {
    if (streams(c)) return c->isa->stream_panels[c->rows];
    return c->isa->panels_of_4 && c->n_blocks > 1 && c->rows == 4 * c->n_blocks ? c->isa->panels_of_4 : c->isa->panels;
}

/* Panels [begin,end) of a chunk; next: the one that this thread will probably begin with then, to be fetched. */
static void run_panels(const chunk *c, int begin, int end, int next) {
    _Alignas(64) float tile[CPU_MAX_PANELS * CPU_CHUNK_ROWS * CPU_PANEL];
    _Alignas(64) float partial[CPU_MAX_PANELS * CPU_CHUNK_ROWS * CPU_PANEL];
    const int most = panels_at_once(c), stream = streams(c);
    for (int p = begin; p < end;) {
        int panels = end - p >= most ? most : 1;
        if (stream)
            run_stream(c, p, panels, tile);
        else
            run_blocks(c, p, panels, p + panels < end ? p + panels : next, tile, partial);
        finish(c, p, panels, tile);
        p += panels;
    }
}

/* A product of at most CPU_PACK_ROWS rows: rows go in chunks, a chunk's in blocks, each split evenly; panels in groups.
 */
typedef struct {
    const cpu_isa *isa;
    const tv_linear_args *a;
    float *scratch; /* [M,Kp] f32: blocks one after another, each packed */
    size_t Kp;
    int row0, M;                /* first row in y and x, rows */
    int n_chunks, chunk_blocks; /* most blocks of a chunk */
    int n_panels, group, n_groups, threads;
} product;

/* Where group i begins. */
static int group_begin(const product *p, int i) { return i * p->group < p->n_panels ? i * p->group : p->n_panels; }

static chunk chunk_of(const product *p, int i) {
    int first = part_begin(p->M, p->n_chunks, i), rows = part_begin(p->M, p->n_chunks, i + 1) - first;
    return (chunk){.isa = p->isa,
                   .a = p->a,
                   .x = p->scratch + first * p->Kp,
                   .rows = rows,
                   .row = p->row0 + first,
                   .Kp = p->Kp,
                   .n_blocks = (rows + p->isa->rows - 1) / p->isa->rows};
}

static void pack_blocks(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const product *p = ctx;
    const size_t K = (size_t)p->a->w->K;
    for (int i = begin; i < end; i++) {
        chunk c = chunk_of(p, i / p->chunk_blocks);
        int b = i % p->chunk_blocks;
        if (b >= c.n_blocks) continue;
        int row = part_begin(c.rows, c.n_blocks, b), rows = part_begin(c.rows, c.n_blocks, b + 1) - row;
        float *out = p->scratch + (c.row - p->row0 + row) * p->Kp;
        p->isa->pack(p->a->x + (size_t)(c.row + row) * K, K, rows, (int)K, out);
    }
}

static void run_groups(void *ctx, int worker, int begin, int end) {
    (void)worker;
    const product *p = ctx;
    for (int i = begin; i < end; i++) {
        chunk c = chunk_of(p, i / p->n_groups);
        int group = i % p->n_groups, next = (i + p->threads) % p->n_groups;
        run_panels(&c, group_begin(p, group), group_begin(p, group + 1), group_begin(p, next));
    }
}

void cpu_linear_run(const cpu_isa *isa, cpu_pool *pool, int threads, float *scratch, const tv_linear_args *a) {
    product p = {.isa = isa, .a = a, .scratch = scratch, .threads = threads};
    p.Kp = ((size_t)a->w->K + 1) / 2 * 2;
    p.n_panels = (a->w->N + CPU_PANEL - 1) / CPU_PANEL;
    int rows = (int)(CHUNK_BYTES / (p.Kp * sizeof(float)));
    if (rows > CPU_CHUNK_ROWS) rows = CPU_CHUNK_ROWS;
    if (rows < isa->rows) rows = isa->rows;
    for (p.row0 = 0; p.row0 < a->M; p.row0 += CPU_PACK_ROWS) {
        p.M = a->M - p.row0 < CPU_PACK_ROWS ? a->M - p.row0 : CPU_PACK_ROWS;
        p.n_chunks = (p.M + rows - 1) / rows;
        const chunk largest = chunk_of(&p, 0);
        p.chunk_blocks = largest.n_blocks;
        const int whole = panels_at_once(&largest);
        p.group = cpu_grain((int)((int64_t)p.n_panels * p.n_chunks), threads);
        p.group = (p.group < CPU_MAX_PANELS ? CPU_MAX_PANELS : p.group > 64 ? 64 : p.group) / whole * whole;
        p.n_groups = (p.n_panels + p.group - 1) / p.group;
        int blocks = p.n_chunks * p.chunk_blocks, pack_threads = (double)p.M * p.Kp < PACK_ALONE ? 1 : threads;
        cpu_parallel(pool, pack_threads, blocks, cpu_grain(blocks, pack_threads), pack_blocks, &p);
        cpu_parallel(pool, threads, p.n_chunks * p.n_groups, 1, run_groups, &p);
    }
}

tv_status cpu_linear(tv_dev *dev, const tv_linear_args *a, tv_err *err) {
    TV_TRY(tv_check_linear(a, err));
    void *scratch;
    TV_TRY(cpu_scratch(dev, CPU_SCRATCH_LINEAR, cpu_linear_scratch_bytes(a->M, a->w->K), &scratch, err));
    int threads = cpu_threads_for(dev, (double)a->M * a->w->N * a->w->K);
    cpu_linear_run(dev->isa, dev->pool, threads, scratch, a);
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
    cpu_pack_panels(NULL, 1, rows, N, K, matrix.data);
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
            cpu_linear_run(isa->reference, NULL, 1, scratch, &a);
            a.y = got;
            cpu_linear_run(isa, NULL, 1, scratch, &a);
            if (memcmp(want, got, (size_t)m * N * (kind ? sizeof(float) : sizeof(tv_bf16))))
                status = TV_FAIL(
                    err, TV_EUNSUPPORTED,
                    "isa %s: its matrix product differs from that of %s on this machine (M=%d); open the device with "
                    "isa %s and please report this",
                    isa->name, isa->reference->name, m, isa->reference->name);
        }
    cpu_pages_free(memory, panel_bytes + scratch_bytes + 64);
    return status;
}
