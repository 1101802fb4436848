/* Prefill, sampling and replay over batch sizes. */
#include "bench/bench_engine.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/random_model.h"

enum { MAX_RUNS = 64, SHARES = 11 };

/* What one measured run did and how long it took. */
typedef struct {
    double seconds;
    tv_step_times times;
} bench_run;

typedef struct {
    char name[32];
    int batch;
    int64_t tokens;      /* of one run: drawn, scored or prefilled */
    double flops, bytes; /* of one run: multiply-adds twice, weights and cache read */
    int n_runs;
    bench_run runs[MAX_RUNS];
} row;

typedef enum { PREFILL, SAMPLE, REPLAY } kind;
static const char *const kind_names[] = {"prefill", "sample", "replay"};

static const char *const share_names[SHARES] = {"embed", "norms",    "qkv",    "attention", "attention_out", "ffn",
                                                "head",  "logprobs", "sample", "copies",    "host"};
/* Of all runs together. */
static void shares_of(const row *r, double *share) {
    double total = 0;
    for (int i = 0; i < SHARES; i++) share[i] = 0;
    for (int run = 0; run < r->n_runs; run++) {
        const tv_step_times *t = &r->runs[run].times;
        const double part[SHARES] = {t->embed, t->norms,    t->qkv,    t->attention, t->attention_out, t->ffn,
                                     t->head,  t->logprobs, t->sample, t->copies,    t->host};
        for (int i = 0; i < SHARES; i++) share[i] += part[i];
        total += t->total;
    }
    for (int i = 0; i < SHARES; i++) share[i] = total > 0 ? share[i] / total : 0;
}

/* Arithmetic and memory traffic of a run of `rows` rows, `logit_rows` logit rows and `steps` steps, whose rows attend
 * `keys` keys in total. Weights are read once a step, as far as the step's rows meet them. */
static void count_work(const tv_engine_info *m, const tv_step_times *t, double keys, row *r) {
    double head = (double)m->vocab_size * m->d_model, rows = (double)t->rows, steps = (double)t->steps;
    double heads = (double)m->n_heads * m->head_size, kv_row = 2.0 * m->n_kv_heads * m->head_size;
    double met = rows / steps * (double)m->row_parameters;
    if (met > (double)m->layer_parameters || !m->n_experts) met = (double)m->layer_parameters;
    r->flops = 2 * (rows * (double)m->row_parameters + (double)t->logit_rows * head) + 4 * keys * heads * m->n_layers;
    r->bytes = 2 * (steps * (met + head) + keys * kv_row * m->n_layers);
}

/* profile: TV_PROFILE_OFF on a card, where taking the time of each stage would stop graphs and steps ahead. */
static tv_status run_once(tv_session *s, kind what, tv_profile profile, const tv_job *job, const tv_trace *set,
                          bench_run *run, tv_err *err) {
    tv_trace *trace = NULL;
    tv_session_profile(s, profile);
    const double begin = tv_bench_wall();
    tv_status status = what == REPLAY ? tv_session_replay(s, set, 'a', 0, NULL, &trace, err)
                                      : tv_session_sample(s, job, 'a', NULL, &trace, err);
    run->times = *tv_session_times(s);
    run->seconds = profile == TV_PROFILE_OFF ? tv_bench_wall() - begin : run->times.total;
    tv_session_profile(s, TV_PROFILE_OFF);
    tv_trace_close(trace);
    return status;
}

/* Measures one row: a run to size the work, then runs until the time is used. length: tokens of a trajectory, or 0 for
 * at most 64, as many as the time allows. */
static tv_status measure(tv_engine *e, const tv_engine_info *m, const tv_serving *serving, kind what,
                         tv_profile profile, int batch, int prompt, int length, double budget, row *r, tv_err *err) {
    int64_t n = what == PREFILL ? 1 : 3, most = length ? length : 64;
    if (most > m->max_positions - prompt) most = m->max_positions - prompt;
    int32_t *ids = tv_xmalloc((size_t)prompt * sizeof *ids), offsets[2] = {0, prompt};
    for (int i = 0; i < prompt; i++) ids[i] = (int32_t)(((int64_t)i * 7919 + 11) % m->vocab_size);
    tv_job job = {.N = batch, .n = n, .P = 1, .prompt_ids = ids, .prompt_offsets = offsets, .seed = 1};
    *r = (row){.batch = batch};
    snprintf(r->name, sizeof r->name, "%s", kind_names[what]);
    tv_session *s = NULL;
    tv_trace *set = NULL;
    bench_run warm;
    tv_status status = tv_session_open(e, serving, batch, prompt + (what == PREFILL ? 1 : most), &s, err);
    if (status == TV_OK) status = run_once(s, SAMPLE, profile, &job, NULL, &warm, err);
    if (status == TV_OK && what != PREFILL) { /* several runs, each of many steps */
        double steps = budget / 4 / (warm.seconds / (double)n);
        job.n = length || steps > (double)most ? most : steps < 3 ? 3 : (int64_t)steps;
    }
    if (status == TV_OK && what == REPLAY) status = tv_session_sample(s, &job, 'a', NULL, &set, err);
    double used = 0;
    while (status == TV_OK && r->n_runs < MAX_RUNS && (used < budget || r->n_runs < 3)) {
        status = run_once(s, what, profile, &job, set, &r->runs[r->n_runs], err);
        if (status == TV_OK) used += r->runs[r->n_runs++].seconds;
    }
    if (status == TV_OK) {
        double keys = (double)batch * prompt * (prompt + 1) / 2;
        for (int64_t t = 1; t < job.n; t++) keys += (double)batch * (double)(prompt + t);
        r->tokens = what == PREFILL ? (int64_t)batch * prompt : batch * job.n;
        count_work(m, &r->runs[0].times, keys, r);
    }
    tv_trace_close(set);
    tv_session_close(s);
    free(ids);
    return status;
}

static cJSON *report_row(row *r, const tv_machine *machine, FILE *out) {
    cJSON *o = cJSON_CreateObject(), *times = cJSON_CreateArray(), *parts = cJSON_CreateObject();
    double rate[MAX_RUNS];
    for (int i = 0; i < r->n_runs; i++) {
        cJSON_AddItemToArray(times, cJSON_CreateNumber(r->runs[i].seconds));
        rate[i] = (double)r->tokens / r->runs[i].seconds;
    }
    const tv_bench_stats s = tv_bench_summary(rate, r->n_runs);
    const double runs_per_s = s.median / (double)r->tokens;
    const double gflops = r->flops * runs_per_s / 1e9, gbs = r->bytes * runs_per_s / 1e9;
    const double of_peak = machine->gflops > 0 ? gflops / machine->gflops : 0,
                 of_read = machine->read_gbs > 0 ? gbs / machine->read_gbs : 0;
    cJSON_AddStringToObject(o, "what", r->name);
    cJSON_AddNumberToObject(o, "batch", r->batch);
    cJSON_AddNumberToObject(o, "tokens", (double)r->tokens);
    tv_bench_add(o, "tokens_per_second", &s);
    tv_json_add_number(o, "gflops", gflops);
    tv_json_add_number(o, "gflops_limit", machine->gflops);
    tv_json_add_number(o, "gflops_fraction", of_peak);
    tv_json_add_number(o, "read_gbs", gbs);
    tv_json_add_number(o, "read_gbs_limit", machine->read_gbs);
    tv_json_add_number(o, "read_fraction", of_read);
    double share[SHARES];
    shares_of(r, share);
    for (int i = 0; i < SHARES; i++) tv_json_add_number(parts, share_names[i], share[i]);
    cJSON_AddItemToObject(o, "time_share", parts);
    cJSON_AddItemToObject(o, "seconds", times);
    if (out) {
        fprintf(out, "%-8s %5d %9.1f %9.1f %4.0f%%  %8.1f %4.0f%%  %7.1f %4.0f%%  ", r->name, r->batch, s.median,
                s.best, 100 * s.mad / s.median, gflops, 100 * of_peak, gbs, 100 * of_read);
        for (int i = 0; i < SHARES; i++)
            if (share[i] >= 0.005) fprintf(out, " %s %.0f%%", share_names[i], 100 * share[i]);
        fprintf(out, "\n");
        fflush(out);
    }
    return o;
}

static tv_status bench_rows(tv_engine *e, const tv_bench_engine_options *o, FILE *out, cJSON *json, tv_err *err) {
    static const int usual[] = {1, 8, 32, 128}, of_card[] = {1, 64, 512};
    int prefill = o->prefill ? o->prefill : 512;
    double budget = o->seconds > 0 ? o->seconds : 3;
    tv_serving serving = o->serving ? *o->serving : tv_serving_default();
    tv_engine_info info;
    tv_engine_describe(e, &info);
    const int card = strncmp(info.device, "cpu", 3) != 0;
    const int *batches = o->batches ? o->batches : card ? of_card : usual;
    const int n_batches = o->batches ? o->n_batches : card ? 3 : 4;
    if (prefill < 1 || prefill >= info.max_positions)
        return TV_FAIL(err, TV_EARG, "a prefill of %d tokens: must be in 1 .. %d", prefill, info.max_positions - 1);
    for (int i = 0; i < n_batches; i++)
        if (batches[i] < 1) return TV_FAIL(err, TV_EARG, "batch %d: must be 1 or more", batches[i]);

    /* One thread does everything: what else the machine does is left out. */
    const tv_profile profile = !card && o->threads == 1 ? TV_PROFILE_CPU : TV_PROFILE_WALL;
    /* Again behind each row: shared machines vary by the minute. What is measured is the host: no limit of a card. */
    const tv_machine none = {.vectors = "none"};
    tv_machine machine = card ? none : tv_machine_measure(o->threads);
    cJSON *limits = cJSON_AddObjectToObject(json, "limits"), *rows = cJSON_AddArrayToObject(json, "rows");
    cJSON_AddStringToObject(json, "device", info.device);
    cJSON_AddStringToObject(json, "architecture", info.architecture);
    cJSON_AddNumberToObject(json, "parameters", (double)info.parameters);
    cJSON_AddStringToObject(json, "clock", profile == TV_PROFILE_CPU ? "processor time" : "elapsed time");
    tv_json_add_number(limits, "gflops", machine.gflops);
    tv_json_add_number(limits, "read_gbs", machine.read_gbs);
    cJSON_AddStringToObject(limits, "vectors", machine.vectors);
    if (out) {
        fprintf(out, "%s, %.1f M parameters, on %s\n", info.architecture, (double)info.parameters / 1e6, info.device);
        if (!card)
            fprintf(out, "limits: %.1f GFLOP/s of f32 multiply-adds (%s), %.1f GB/s of reading\n", machine.gflops,
                    machine.vectors, machine.read_gbs);
        fprintf(out, "%-8s %5s %9s %9s %5s  %8s %5s  %7s %5s   %s\n", "what", "batch", "tokens/s", "best", "+-",
                "GFLOP/s", "of", "GB/s", "of", "time");
    }
    row *r = tv_xmalloc(sizeof *r);
    tv_status status = TV_OK;
    for (int i = 0; i < 1 + 2 * n_batches && status == TV_OK; i++) {
        kind what = i == 0 ? PREFILL : i % 2 ? SAMPLE : REPLAY;
        int batch = i == 0 ? 1 : batches[(i - 1) / 2];
        status = measure(e, &info, &serving, what, profile, batch, what == PREFILL ? prefill : 1, card ? 500 : 0,
                         budget, r, err);
        if (status != TV_OK) break;
        tv_machine after = card ? none : tv_machine_measure(o->threads), most = machine;
        if (after.gflops > most.gflops) most.gflops = after.gflops;
        if (after.read_gbs > most.read_gbs) most.read_gbs = after.read_gbs;
        cJSON_AddItemToArray(rows, report_row(r, &most, out));
        machine = after;
    }
    free(r);
    cJSON *libraries = tv_libraries_json(e);
    if (libraries) cJSON_AddItemToObject(json, "libraries", libraries);
    return status;
}

/* Removes the two files and the folder that random_folder made. */
static void remove_folder(char *dir) {
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char *path = tv_path_join(dir, names[i]);
        unlink(path);
        free(path);
    }
    rmdir(dir);
    free(dir);
}

static tv_status random_folder(const tv_bench_engine_options *o, char **out, tv_err *err) {
    tv_model_shape shape;
    TV_TRY(tv_model_shape_find(o->shape ? o->shape : "0.6b", &shape, err));
    char *dir = tv_path_join(o->tmp ? o->tmp : "/tmp", "tvgpu-bench-XXXXXX");
    if (!mkdtemp(dir)) {
        tv_status status = TV_FAIL(err, TV_EIO, "%s: no folder can be made there for random weights", dir);
        free(dir);
        return status;
    }
    tv_status status = tv_random_model_write(dir, &shape, 1, err);
    if (status == TV_OK)
        *out = dir;
    else
        remove_folder(dir);
    return status;
}

tv_status tv_bench_engine(const tv_bench_engine_options *o, FILE *out, cJSON **json, tv_err *err) {
    char *made = NULL;
    if (!o->model) TV_TRY(random_folder(o, &made, err));
    tv_engine_options options = {
        .model = made ? made : o->model, .device = o->device, .threads = o->threads, .isa = o->isa, .gpu = o->gpu};
    tv_engine *e = NULL;
    tv_status status = tv_engine_open(&options, &e, err);
    if (made) remove_folder(made); /* the engine has its own copy of the weights */
    cJSON *report = cJSON_CreateObject();
    if (status == TV_OK) status = bench_rows(e, o, out, report, err);
    tv_engine_close(e);
    if (status == TV_OK && json)
        *json = report;
    else
        cJSON_Delete(report);
    return status;
}
