#include "bench/bench_estimator.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "bench/bench.h"
#include "bench/machine.h"
#include "estimator/distance.h"
#include "estimator/hedged.h"
#include "estimator/stats.h"
#include "estimator/synthetic.h"

enum { RUNS = 7 };

/* One thread's processor time leaves out what else the machine does. */
static double now(void) { return omp_get_max_threads() == 1 ? tv_bench_cpu() : tv_bench_wall(); }

static cJSON *add_rates(cJSON *out, const char *name, double cells, double *rate, double value) {
    const tv_bench_stats s = tv_bench_summary(rate, RUNS);
    cJSON *row = cJSON_AddObjectToObject(out, name);
    cJSON_AddNumberToObject(row, "cells", cells);
    tv_bench_add(row, "cells_per_second", &s);
    cJSON_AddNumberToObject(row, "value", value);
    return row;
}

/* Median rate of a row. */
static double rate_of(const cJSON *out, const char *name) {
    const cJSON *row = cJSON_GetObjectItemCaseSensitive(out, name),
                *rate = cJSON_GetObjectItemCaseSensitive(row, "cells_per_second");
    return cJSON_GetObjectItemCaseSensitive(rate, "median")->valuedouble;
}

/* The plug-in, block after block until `cells` are read in all runs together; returns the symmetric value. */
static tv_status bench_plugin(const tv_dataset *data, int64_t reads, double cells, cJSON *out, double *value,
                              tv_err *err) {
    const double block = (double)(data->set[0].N + data->set[1].N) * (double)data->n * 2 * (double)reads;
    const int64_t rounds = cells > block * RUNS ? (int64_t)ceil(cells / block / RUNS) : 1;
    double rate[RUNS];
    for (int run = 0; run < RUNS; run++) {
        const double start = now();
        for (int64_t round = 0; round < rounds; round++) {
            tv_distance d;
            TV_TRY(tv_distance_run(data, &(tv_distance_options){.reads = reads}, &d, err));
            *value = 0;
            for (int s = 0; s < 2; s++) {
                double *z = tv_xmalloc((size_t)d.set[s].N * sizeof *z);
                tv_distance_z(&d, s, reads, z);
                *value += 0.5 * tv_stats_mean(z, d.set[s].N);
                free(z);
            }
            tv_distance_free(&d);
        }
        rate[run] = (double)rounds * block / (now() - start);
    }
    add_rates(out, "plugin", (double)rounds * block, rate, *value);
    return TV_OK;
}

/* What the plug-in reads, against what this machine can read: nothing that looks at every record is faster than that.
 */
static void add_bandwidth(cJSON *out, int k) {
    cJSON *row = cJSON_GetObjectItemCaseSensitive(out, "plugin");
    const double rate = rate_of(out, "plugin") * 8e-9 * k;
    const double limit = tv_machine_measure(omp_get_max_threads()).read_gbs;
    cJSON_AddNumberToObject(row, "read_gb_per_second", rate);
    cJSON_AddNumberToObject(row, "machine_read_gb_per_second", limit);
    if (limit > 0)
        cJSON_AddNumberToObject(row, "read_fraction", rate / limit);
    else
        tv_json_add_null(row, "read_fraction", "no memory to measure the machine's read bandwidth with");
}

static tv_status bench_hedged(const tv_dataset *data, cJSON *out, double *value, tv_err *err) {
    const double cells = (double)(data->set[0].N + data->set[1].N) * (double)data->n;
    double rate[RUNS];
    for (int i = 0; i < RUNS; i++) {
        tv_hedged h;
        const double start = now();
        TV_TRY(tv_hedged_run(data, 2, (tv_readout){0}, NULL, &h, err));
        rate[i] = cells / (now() - start);
        *value = tv_hedged_combine(&h, TV_HEDGED_T2PJ).estimate;
        tv_hedged_free(&h);
    }
    cJSON_AddStringToObject(add_rates(out, "hedged", cells, rate, *value), "isa", tv_hedged_isa());
    return TV_OK;
}

/* Single quotes around a path for the shell; the caller frees. NULL when the path holds one itself. */
static char *quoted(const char *path) {
    for (const char *p = path; *p; p++)
        if (*p == '\'') return NULL;
    return tv_xprintf("'%s'", path);
}

static tv_status run_numpy(const tv_bench_estimator_options *o, const char *bundle, int64_t reads, cJSON **result,
                           tv_err *err) {
    char *parts[3] = {quoted(o->python), quoted(o->script), quoted(bundle)};
    tv_status status = TV_OK;
    if (!parts[0] || !parts[1] || !parts[2])
        status = TV_FAIL(err, TV_EARG, "a path with a quote cannot be passed on: %s", bundle);
    if (status == TV_OK) {
        char *command = tv_xprintf("%s %s %s %lld", parts[0], parts[1], parts[2], (long long)reads), text[4096];
        FILE *pipe = popen(command, "r");
        const size_t size = pipe ? fread(text, 1, sizeof text - 1, pipe) : 0;
        const int code = pipe ? pclose(pipe) : -1;
        if (code != 0)
            status = TV_FAIL(err, TV_EIO, "%s ended with code %d: is NumPy installed there?", command, code);
        else
            status = tv_json_parse(text, size, "output of the NumPy implementation", result, err);
        free(command);
    }
    for (int i = 0; i < 3; i++) free(parts[i]);
    return status;
}

static tv_status compare(const tv_bench_estimator_options *o, const tv_dataset *data, int64_t reads, cJSON *out,
                         double plugin, double hedged, tv_err *err) {
    char *bundle = tv_path_join(o->scratch ? o->scratch : ".", "bench-estimator.safetensors");
    cJSON *numpy = NULL;
    tv_status status = tv_dataset_write_bundle(data, bundle, err);
    if (status == TV_OK) status = run_numpy(o, bundle, reads, &numpy, err);
    unlink(bundle);
    free(bundle);
    if (status != TV_OK) return status;
    const char *names[2] = {"plugin", "hedged"}, *rates[2] = {"plugin_cells_per_second", "hedged_cells_per_second"},
               *ratios[2] = {"plugin_ratio", "hedged_ratio"};
    const double values[2] = {plugin, hedged};
    for (int i = 0; i < 2 && status == TV_OK; i++) {
        const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(numpy, names[i]),
                    *rate = cJSON_GetObjectItemCaseSensitive(numpy, rates[i]);
        if (!cJSON_IsNumber(theirs) || !cJSON_IsNumber(rate) || !(fabs(theirs->valuedouble - values[i]) <= 1e-9))
            status = TV_FAIL(err, TV_ENUMERIC, "the NumPy %s is %.17g, ours %.17g", names[i],
                             cJSON_IsNumber(theirs) ? theirs->valuedouble : (double)NAN, values[i]);
        else
            cJSON_AddNumberToObject(out, ratios[i], rate_of(out, names[i]) / rate->valuedouble);
    }
    cJSON_AddItemToObject(out, "numpy", numpy);
    return status;
}

tv_status tv_bench_estimator(const tv_bench_estimator_options *o, cJSON **result, tv_err *err) {
    *result = NULL;
    const int64_t N = o->N > 0 ? o->N : 64, reads = o->reads > 0 ? o->reads : 8;
    const tv_markov_options pair = {
        .n = o->n > 0 ? o->n : 500, .contexts = 64, .topics = 4, .k = o->k > 0 ? o->k : 20, .delta = 0.0458, .seed = 1};
    if (reads < 2) return TV_FAIL(err, TV_EARG, "the benchmark needs at least two reads, not %lld", (long long)reads);
    tv_chain chain;
    TV_TRY(tv_chain_markov(&pair, &chain, err));
    tv_dataset *data = NULL;
    tv_status status = tv_chain_record(&chain, &(tv_oracle){TV_ORACLE_HEAVY, 0.02, 1}, 0, N, reads, &data, err);
    tv_chain_free(&chain);
    if (status != TV_OK) return status;
    cJSON *out = cJSON_CreateObject();
    cJSON_AddNumberToObject(out, "N", (double)N);
    cJSON_AddNumberToObject(out, "n", pair.n);
    cJSON_AddNumberToObject(out, "k", pair.k);
    cJSON_AddNumberToObject(out, "reads", (double)reads);
    cJSON_AddNumberToObject(out, "threads", omp_get_max_threads());
    double plugin = 0, hedged = 0;
    status = bench_plugin(data, reads, o->cells > 0 ? o->cells : 6.6e7, out, &plugin, err);
    if (status == TV_OK) add_bandwidth(out, pair.k);
    if (status == TV_OK) status = bench_hedged(data, out, &hedged, err);
    if (status == TV_OK && o->python) status = compare(o, data, reads, out, plugin, hedged, err);
    tv_chain_record_free(data);
    if (status == TV_OK)
        *result = out;
    else
        cJSON_Delete(out);
    return status;
}
