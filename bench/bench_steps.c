#include "bench/bench_steps.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "bench/bench.h"
#include "engine/session.h"
#include "kernels/cpu/cpu.h"

enum { TOP = 20, PROBE_BYTES = 128 << 20 };

typedef struct {
    tv_engine *engine;
    tv_session *session;
    int B, C;      /* sequences and positions of the session */
    int T, copied; /* tokens that sequence 0 was filled with; sequences that hold them */
    const char *isa;
    void *probe; /* [PROBE_BYTES] */
} bench;

/* Processor time of all threads. */
static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The id at a position of a sequence; the peers take the same. */
static int32_t id_at(const bench *b, int seq, int pos) {
    return (int32_t)((12345 + (int64_t)seq * 7919 + (int64_t)pos * 104729) % b->engine->model->config.vocab_size);
}

/* One step of `sequences` segments of n_rows rows each from position pos on. */
static tv_status step(bench *b, int sequences, int pos, int n_rows, double *wall, double *cpu, tv_err *err) {
    const double begin = tv_bench_wall(), used = cpu_seconds();
    tv_step_io *io = tv_step_begin(b->session, sequences * n_rows, sequences, sequences);
    for (int s = 0; s < sequences; s++) {
        io->segments[s] = (tv_segment){.slot = s, .row = s * n_rows, .n_rows = n_rows, .pos = pos};
        for (int i = 0; i < n_rows; i++) io->ids[s * n_rows + i] = id_at(b, s, pos + i);
        io->trajectory[s] = s;
        io->position[s] = pos + n_rows - 1;
        io->logit_rows[s] = s * n_rows + n_rows - 1;
        io->token[s] = id_at(b, s, pos + n_rows);
    }
    TV_TRY(tv_step_run(b->session, TV_STEP_SCORE, 0, err));
    *wall = tv_bench_wall() - begin;
    *cpu = cpu_seconds() - used;
    for (int s = 0; s < sequences; s++)
        if (b->session->io.bad[s]) return TV_FAIL(err, TV_ENUMERIC, "non-finite logits of sequence %d", s);
    return TV_OK;
}

/* Sequences up to `sequences` get sequence 0's cache. */
static void copy_cache(bench *b, int sequences) {
    for (int l = 0; l < b->session->kv.n_layers; l++) {
        const tv_kv_layer *y = &b->session->kv.layers[l];
        const size_t head = (size_t)y->S * (size_t)y->HS, used = (size_t)b->T * (size_t)y->HS * sizeof *y->k;
        for (size_t g = 0; g < (size_t)y->G; g++)
            for (size_t s = (size_t)b->copied; s < (size_t)sequences; s++) {
                memcpy(y->k + (s * (size_t)y->G + g) * head, y->k + g * head, used);
                memcpy(y->v + (s * (size_t)y->G + g) * head, y->v + g * head, used);
            }
    }
    if (b->copied < sequences) b->copied = sequences;
}

static void put_times(FILE *out, const double *wall, const double *cpu, int n) {
    const double *const times[2] = {wall, cpu};
    for (int k = 0; k < 2; k++) {
        fprintf(out, "%s\"%s\": [", k ? ", " : "{", k ? "cpu" : "wall");
        for (int i = 0; i < n; i++) fprintf(out, "%s%.9g", i ? ", " : "", times[k][i]);
        fputs("]", out);
    }
    fputs("}\n", out);
}

static tv_status prefill(bench *b, int T, FILE *out, tv_err *err) {
    double wall, cpu;
    TV_TRY(step(b, 1, 0, T, &wall, &cpu, err));
    b->T = T, b->copied = 1;
    put_times(out, &wall, &cpu, 1);
    return TV_OK;
}

static tv_status decode(bench *b, int sequences, double seconds, FILE *out, tv_err *err) {
    enum { MOST = 4096 };
    double wall[MOST], cpu[MOST];
    int n = 0;
    copy_cache(b, sequences);
    const double begin = tv_bench_wall();
    do TV_TRY(step(b, sequences, b->T + n, 1, &wall[n], &cpu[n], err));
    while (++n < MOST && b->T + n < b->C && tv_bench_wall() - begin < seconds);
    put_times(out, wall, cpu, n);
    return TV_OK;
}

static tv_status answer(bench *b, const char *line, FILE *out, tv_err *err) {
    int x, T;
    double seconds;
    if (sscanf(line, "open %d %d", &x, &T) == 2) {
        tv_serving serving = tv_serving_default();
        serving.store_k = serving.top_k = TOP;
        TV_TRY(tv_session_open(b->engine, &serving, x, T, &b->session, err));
        b->B = x, b->C = T, b->T = b->copied = 0;
        fputs("{}\n", out);
    } else if (sscanf(line, "prefill %d", &T) == 1 && b->session && T > 0 && T <= b->C) {
        return prefill(b, T, out, err);
    } else if (sscanf(line, "decode %d %d %lf", &x, &T, &seconds) == 3 && b->session && x > 0 && x <= b->B &&
               T == b->T && T < b->C) {
        return decode(b, x, seconds, out, err);
    } else if (!strcmp(line, "limits\n")) {
        const int threads = b->engine->dev->threads;
        fprintf(out, "{\"gflops\": %.6g, \"read_gbs\": %.6g}\n", tv_probe_fma(b->isa, threads, 0.02),
                tv_probe_read(b->probe, PROBE_BYTES, threads));
    } else if (!strcmp(line, "close\n")) {
        tv_session_close(b->session);
        b->session = NULL;
        fputs("{}\n", out);
    } else {
        return TV_FAIL(err, TV_EARG, "bench steps: cannot do now: %s", line);
    }
    return TV_OK;
}

tv_status tv_bench_steps(const tv_engine_options *options, FILE *in, FILE *out, tv_err *err) {
    bench b = {0};
    TV_TRY(tv_engine_open(options, &b.engine, err));
    tv_status s = TV_OK;
    tv_engine_info info;
    tv_engine_describe(b.engine, &info);
    if (strcmp(b.engine->ops->name, "cpu"))
        s = TV_FAIL(err, TV_EUNSUPPORTED, "bench steps runs on the cpu device alone, not on %s", info.device);
    b.isa = tv_probe_isa(info.device);
    b.probe = tv_probe_memory(PROBE_BYTES);
    if (!b.probe && s == TV_OK) s = TV_FAIL(err, TV_ENOMEM, "bench steps: no memory for a buffer of 128 MiB");
    if (s == TV_OK) {
        const double head = (double)info.vocab_size * info.d_model;
        fprintf(out, "{\"name\": \"tvgpu\", \"device\": \"%s\", \"weight_bytes\": %.0f, \"flop_per_row\": %.0f}\n",
                info.device, 2 * ((double)info.layer_parameters + head), 2 * ((double)info.row_parameters + head));
    }
    char line[256];
    while (s == TV_OK && fflush(out) == 0 && fgets(line, sizeof line, in)) s = answer(&b, line, out, err);
    cpu_pages_free(b.probe, PROBE_BYTES);
    tv_session_close(b.session);
    tv_engine_close(b.engine);
    return s;
}
