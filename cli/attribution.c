#include "cli/attribution.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/comparison.h"
#include "estimator/distance.h"
#include "estimator/interval.h"
#include "estimator/onset.h"
#include "estimator/report_view.h"

/* What is flipped without --axis: every value that side a does not have already. What this build or device lacks is
 * left out and said. */
static const struct {
    const char *option, *values;
} known[] = {
    {"backend", "flash|math|eager|cudnn"},
    {"reduction", "serving|fixed"},
    {"batch", "8"},
    {"order", "fixed|shuffled"},
    {"arrivals", "together|staggered"},
    {"logits", "bf16|f32"},
    {"prefill-chunk", "16"},
    {"kv-dtype", "fp8|int8"},
    {"weight-dtype", "int8|int4"},
    {"device", "cpu|cuda"},
};

/* How many positions of the trajectories are replayed to find the first layer; and how far the sides' activations must
 * be apart there, in multiples of each side's distance to itself, itself a noisy number. */
enum { LAYER_POSITIONS = 32, LAYER_PASSES = 2 };
static const double LAYER_FACTOR = 1.5;

/* ---- the axes ---- */

typedef struct {
    char *text; /* "batch=8+order=shuffled" */
    int asked;  /* by --axis: then it must be possible */
} axis;

typedef struct {
    axis *at;
    int n;
} axes;

static void axes_add(axes *a, const char *text, size_t length, int asked) {
    a->at = tv_xrealloc(a->at, (size_t)(a->n + 1) * sizeof *a->at);
    a->at[a->n++] = (axis){tv_xprintf("%.*s", (int)length, text), asked};
}

static void axes_free(axes *a) {
    for (int i = 0; i < a->n; i++) free(a->at[i].text);
    free(a->at);
}

static int devices_here(void) {
    cJSON *devices = tv_devices_json(), *d;
    int n = 0;
    cJSON_ArrayForEach(d, devices) n += cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(d, "available"));
    cJSON_Delete(devices);
    return n;
}

static axes axes_of(const tv_args *args) {
    axes list = {NULL, 0};
    for (const char *c = args->axis; c && *c;) {
        size_t length = strcspn(c, ",");
        axes_add(&list, c, length, 1);
        c += length + (c[length] == ',');
    }
    for (size_t i = 0; !args->axis && i < sizeof known / sizeof *known; i++) {
        if (!strcmp(known[i].option, "device") && devices_here() < 2) continue;
        for (const char *v = known[i].values; *v;) {
            size_t length = strcspn(v, "|");
            char *text = tv_xprintf("%s=%.*s", known[i].option, (int)length, v);
            axes_add(&list, text, strlen(text), 0);
            free(text);
            v += length + (v[length] == '|');
        }
    }
    return list;
}

/* Sets what the axis says on side. */
static tv_status apply(const axis *a, tv_side *side, tv_err *err) {
    char *copy = tv_xstrdup(a->text), *rest = copy;
    tv_status s = TV_OK;
    for (char *part; s == TV_OK && (part = strsep(&rest, "+"));) {
        char *value = strchr(part, '=');
        if (!value || value == part) {
            s = TV_FAIL(err, TV_EARG, "--axis %s: an axis is NAME=VALUE, as in backend=math", a->text);
            break;
        }
        *value++ = 0;
        s = tv_args_set_side(CMD_ATTRIBUTE, part, value, side, err);
    }
    free(copy);
    return s;
}

/* ---- where a difference begins ---- */

static double relative(const tv_activation *x, const tv_activation *y) {
    double gap = 0, size = 0;
    for (int64_t i = 0; i < x->rows * x->width; i++) {
        double d = (double)x->values[i] - (double)y->values[i];
        if (!(d == 0)) gap += d * d; /* two infinities alike are no difference */
        size += 0.5 * ((double)x->values[i] * x->values[i] + (double)y->values[i] * y->values[i]);
    }
    return gap == 0 ? 0 : sqrt(gap / size);
}

/* Share of expert choices, over all rows, that are in x and not in y. */
static double rerouted(const tv_activation *x, const tv_activation *y) {
    int64_t changed = 0, choices = 0;
    for (int64_t r = 0; r < x->rows; r++)
        for (int i = 0; i < x->width; i++) {
            int32_t id = x->ids[r * x->width + i];
            int found = 0;
            for (int j = 0; j < x->width; j++) found |= y->ids[r * x->width + j] == id;
            if (id < 0) continue;
            choices++, changed += !found;
        }
    return choices ? (double)changed / (double)choices : NAN;
}

/* Activations of both sides over trajectory 0 of set a, in LAYER_PASSES passes each. */
static tv_status record(const cli_comparison *c, tv_activations by[2][LAYER_PASSES], int64_t *positions, tv_err *err) {
    tv_trace *set = NULL;
    char *path = tv_rundir_samples_path(c->run, TV_A);
    tv_status s = tv_trace_open(path, &set, err);
    free(path);
    *positions = s != TV_OK ? 0 : set->n < LAYER_POSITIONS ? set->n : LAYER_POSITIONS;
    for (int e = 0; e < 2; e++)
        for (int pass = 0; pass < LAYER_PASSES && s == TV_OK; pass++)
            s = tv_session_activations(c->session[e], set, 0, *positions, pass, &by[e][pass], err);
    tv_trace_close(set);
    return s;
}

static void add_layers(cJSON *o, tv_activations by[2][LAYER_PASSES], int64_t positions) {
    cJSON *layers = cJSON_AddArrayToObject(o, "layers"), *routing = NULL, *first = NULL;
    for (int x = 0; x < by[0][0].n; x++) {
        const tv_activation *at[2][LAYER_PASSES];
        int routes = by[0][0].at[x].ids != NULL;
        double (*distance)(const tv_activation *, const tv_activation *) = routes ? rerouted : relative;
        for (int e = 0; e < 2; e++)
            for (int pass = 0; pass < LAYER_PASSES; pass++) at[e][pass] = &by[e][pass].at[x];
        double between = 0.5 * (distance(at[0][0], at[1][0]) + distance(at[0][1], at[1][1]));
        double floor = fmax(distance(at[0][0], at[0][1]), distance(at[1][0], at[1][1]));
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "layer", at[0][0]->layer);
        if (!routes) cJSON_AddStringToObject(row, "activation", at[0][0]->name);
        tv_json_add_number(row, routes ? "changed" : "distance", between);
        tv_json_add_number(row, "floor", floor);
        if (routes) {
            if (!routing) routing = cJSON_CreateArray();
            cJSON_AddItemToArray(routing, row);
            continue;
        }
        cJSON_AddItemToArray(layers, row);
        if (!first && between > LAYER_FACTOR * floor) first = row;
    }
    if (first)
        cJSON_AddItemToObject(o, "first_layer", cJSON_Duplicate(first, 1));
    else
        tv_json_add_null(o, "first_layer", "no activation of the trajectory replayed differs by more than its floor");
    if (routing) cJSON_AddItemToObject(o, "routing", routing);
    cJSON_AddNumberToObject(o, "layer_positions", (double)positions);
}

static tv_status add_first_layer(const cli_comparison *c, cJSON *o, tv_err *err) {
    tv_activations by[2][LAYER_PASSES];
    int64_t positions = 0;
    memset(by, 0, sizeof by);
    tv_status s = record(c, by, &positions, err);
    if (s == TV_OK) add_layers(o, by, positions);
    for (int e = 0; e < 2; e++)
        for (int pass = 0; pass < LAYER_PASSES; pass++) tv_activations_free(&by[e][pass]);
    return s;
}

static tv_status add_first_position(const cli_comparison *c, int64_t reads, cJSON *o, tv_err *err) {
    const char *folder = tv_rundir_path(c->run);
    tv_dataset *data = NULL;
    tv_onset onset;
    TV_TRY(tv_dataset_open(&folder, 1, &data, err));
    tv_status s = TV_OK;
    if (reads < 2 && !(data->deterministic[0] && data->deterministic[1])) {
        tv_json_add_null(o, "first_position", "one read a side: noise is unknown; use --repeats 2 or more");
    } else {
        s = tv_onset_run(data, reads, tv_readout_choose(data, c->args->readout), &onset, err);
        if (s == TV_OK && onset.first >= 0) {
            cJSON *at = cJSON_AddObjectToObject(o, "first_position");
            cJSON_AddNumberToObject(at, "position", (double)onset.first);
            cJSON_AddNumberToObject(at, "token_tv", onset.tv);
            cJSON_AddNumberToObject(at, "floor", onset.floor);
            if (isfinite(onset.z)) cJSON_AddNumberToObject(at, "z", onset.z);
        } else if (s == TV_OK) {
            tv_json_add_null(o, "first_position", "no position differs by more than the sides differ from themselves");
        }
    }
    tv_dataset_close(data);
    return s;
}

/* ---- expert models: the distance with routes replayed ---- */

/* Side b's pass over set a on the routes that side a's pass takes; kept beside the run's own passes. */
static tv_status routed_pass(const cli_comparison *c, const char *folder, const tv_trace *set, int64_t pass,
                             tv_trace **out, tv_err *err) {
    char *path = tv_pass_path(folder, TV_B, TV_A, pass);
    tv_routes routes = {0};
    tv_trace *own = NULL;
    tv_status s = TV_OK;
    if (tv_path_exists(path)) {
        s = tv_trace_open(path, out, err);
    } else {
        s = tv_session_replay_routes(c->session[0], set, 'a', pass, 0, &routes, NULL, &own, err);
        if (s == TV_OK) s = tv_session_replay_routes(c->session[1], set, 'b', pass, 1, &routes, NULL, out, err);
        if (s == TV_OK) s = tv_trace_write(*out, path, err);
    }
    tv_trace_close(own);
    tv_routes_free(&routes);
    free(path);
    return s;
}

/* Mean of x over the trajectories of set a; distance: 1 where it is one. */
static void add_mean(cJSON *o, const char *key, const tv_set *set, const double *x, int distance) {
    /* One arm given as both: the delta method of one prompt then takes every trajectory for two independent ones. */
    const tv_arms arms = {{x, x}, {set->N, set->N}, {set->prompt_index, set->prompt_index}};
    tv_estimate e = tv_arms_estimate(&arms);
    double se = e.clusters ? e.se : e.se * sqrt(2), low = e.estimate - e.quantile * se,
           high = e.estimate + e.quantile * se;
    cJSON *v = cJSON_AddObjectToObject(o, key), *ci = NULL;
    cJSON_AddNumberToObject(v, "estimate", e.estimate);
    tv_json_add_number(v, "se", se);
    if (!isfinite(se)) return;
    if (distance) tv_interval_clip(e.estimate, &low, &high);
    ci = cJSON_AddArrayToObject(v, "ci95");
    cJSON_AddItemToArray(ci, cJSON_CreateNumber(low));
    cJSON_AddItemToArray(ci, cJSON_CreateNumber(high));
}

/* The distance over side a's trajectories alone, which the likelihood ratio gives: side b on side a's routes cannot
 * draw trajectories of its own. routed [R]: its passes. */
static tv_status add_routed_distance(const cli_comparison *c, const tv_dataset *data, tv_trace *const *routed,
                                     int64_t R, cJSON *o, tv_err *err) {
    tv_dataset view = *data;
    tv_set *set = &view.set[TV_A];
    const int32_t **ids = tv_xmalloc((size_t)R * sizeof *ids);
    const float **lps = tv_xmalloc((size_t)R * sizeof *lps);
    for (int64_t r = 0; r < R; r++) ids[r] = routed[r]->topk_ids, lps[r] = routed[r]->topk_logprobs;
    set->ids[TV_B] = ids, set->lps[TV_B] = lps, set->own_lp[TV_B] = NULL, set->rank[TV_B] = NULL;
    set->reads[TV_B] = R, set->k[TV_B] = routed[0]->k;
    view.deterministic[TV_B] = data->deterministic[TV_A] && data->deterministic[TV_B];
    const tv_distance_options options = {.reads = R, .readout = tv_readout_choose(data, c->args->readout)};
    double *x[2] = {NULL, NULL};
    tv_status s = TV_OK;
    for (int way = 0; way < 2 && s == TV_OK; way++) {
        tv_distance d;
        s = tv_distance_run(way ? &view : data, &options, &d, err);
        if (s != TV_OK) break;
        x[way] = tv_xmalloc((size_t)set->N * sizeof(double));
        tv_distance_likelihood_ratio(&d, TV_A, R, x[way]);
        tv_distance_free(&d);
    }
    if (s == TV_OK) {
        cJSON *v = cJSON_AddObjectToObject(o, "routes");
        cJSON_AddStringToObject(v, "estimator", "likelihood ratio over side a's trajectories");
        cJSON_AddNumberToObject(v, "reads", (double)R);
        add_mean(v, "own", set, x[0], 1);
        add_mean(v, "replayed", set, x[1], 1);
        for (int64_t i = 0; i < set->N; i++) x[0][i] -= x[1][i];
        add_mean(v, "difference", set, x[0], 0);
    }
    free(x[0]), free(x[1]), free(ids), free(lps);
    return s;
}

static tv_status add_routes(const cli_comparison *c, cJSON *o, tv_err *err) {
    tv_engine_info info;
    tv_engine_describe(c->engine[1], &info);
    if (!info.n_experts || !strcmp(tv_view_string(o, "verdict"), "identical")) return TV_OK;
    if (c->args->side[1].serving.pad_batch) {
        tv_json_add_null(o, "routes", "padding sequences have no routes to replay");
        return TV_OK;
    }
    const char *run = tv_rundir_path(c->run);
    char *path = tv_rundir_samples_path(c->run, TV_A), *folder = tv_path_join(run, "routes");
    tv_dataset *data = NULL;
    tv_trace *set = NULL, **routed = NULL;
    int64_t R = 0;
    tv_status s = tv_dir_make(folder, err);
    if (s == TV_OK) tv_rundir_clean(folder);
    if (s == TV_OK) s = tv_dataset_open(&run, 1, &data, err);
    if (s == TV_OK) s = tv_trace_open(path, &set, err);
    if (s == TV_OK) R = data->deterministic[TV_A] && data->deterministic[TV_B] ? 1 : tv_reads_usable(data);
    routed = tv_xcalloc((size_t)R + 1, sizeof(tv_trace *));
    for (int64_t r = 0; r < R && s == TV_OK; r++) s = routed_pass(c, folder, set, r, &routed[r], err);
    if (s == TV_OK) s = add_routed_distance(c, data, routed, R, o, err);
    for (int64_t r = 0; r < R; r++) tv_trace_close(routed[r]);
    free(routed), free(path), free(folder);
    tv_trace_close(set);
    tv_dataset_close(data);
    return s;
}

/* ---- one axis ---- */

static void copy(cJSON *to, const char *key, const cJSON *from, const char *path) {
    const cJSON *item = tv_view_item(from, path);
    cJSON_AddItemToObject(to, key, item ? cJSON_Duplicate(item, 1) : cJSON_CreateNull());
}

/* One end of the headline's interval; NaN without. */
static double interval_end(const cJSON *o, int end) {
    const cJSON *item = cJSON_GetArrayItem(tv_view_item(o, "tv.ci95"), end);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* What the report of an axis says, in the words of an attribution. Other bits are not yet a distance: the interval must
 * clear 0, too. */
static void add_verdict(cJSON *o, const cJSON *report) {
    int identical = cJSON_IsTrue(tv_view_item(report, "bit_identical"));
    int beyond = !strcmp(tv_view_string(report, "beyond_noise.verdict"), "yes"), clear = interval_end(report, 0) > 0;
    cJSON_AddStringToObject(o, "verdict", identical ? "identical" : beyond && clear ? "moves" : "cannot tell");
    cJSON_AddStringToObject(o, "because",
                            beyond && !clear ? "the sides differ, and the interval of their distance holds 0"
                                             : tv_view_string(report, "beyond_noise.because"));
    copy(o, "tv", report, "tv");
    copy(o, "floor", report, "floor");
    copy(o, "token", report, "token");
    copy(o, "differing_values", report, "differing_values");
    copy(o, "compared_values", report, "compared_values");
    copy(o, "reads", report, "R");
}

/* 1 when the two sides would write the same configuration into run.json. */
static int sides_equal(const cli_comparison *c) {
    cJSON *m = cli_comparison_manifest(c);
    int same = cJSON_Compare(cJSON_GetObjectItemCaseSensitive(m, "a"), cJSON_GetObjectItemCaseSensitive(m, "b"), 1) &&
               !cJSON_GetObjectItemCaseSensitive(m, "model_b");
    cJSON_Delete(m);
    return same;
}

static void skip(cJSON *skipped, const axis *a, const char *why) {
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "axis", a->text);
    cJSON_AddStringToObject(o, "why", why);
    cJSON_AddItemToArray(skipped, o);
}

/* Opens the comparison of an axis; *open is 0 when it is left out (and then c is closed). like: NULL or an open one. */
static tv_status open_axis(const axis *a, cli_comparison *c, tv_args *args, const cli_comparison *like, cJSON *skipped,
                           int *open, tv_err *err) {
    tv_err why = {0};
    *open = 0;
    tv_status s = apply(a, &args->side[1], &why);
    if (s == TV_OK) s = cli_comparison_open(c, args, like, &why);
    if (s == TV_OK && !sides_equal(c)) {
        tv_serving *b = &args->side[1].serving;
        if (!tv_serving_deterministic(b)) b->pass_seed++; /* what it draws must not be what side a draws */
        *open = 1;
        return TV_OK;
    }
    cli_comparison_close(c);
    /* of the known axes what cannot be is left out; another failure would meet every axis */
    if (s != TV_OK && (a->asked || (why.code != TV_EARG && why.code != TV_EUNSUPPORTED)))
        return TV_FAIL(err, why.code, "%s%s", a->asked ? "" : "attribute: ", why.message);
    if (s == TV_OK && a->asked)
        return TV_FAIL(err, TV_EARG, "--axis %s: side a has that already; name another value", a->text);
    if (s != TV_OK) skip(skipped, a, why.message);
    return TV_OK;
}

static tv_status measure_axis(const axis *a, cli_comparison *c, const char *folder, const cli_comparison *like,
                              cJSON *list, tv_err *err) {
    cJSON *o = cJSON_CreateObject(), *report = NULL;
    char *path = tv_path_join(folder, a->text);
    tv_note("axis %s", a->text);
    tv_status s = cli_comparison_run(c, path, like, err);
    if (s == TV_OK) s = cli_comparison_report(c, &report, err);
    if (s == TV_OK) {
        cJSON_AddStringToObject(o, "axis", a->text);
        cJSON_AddStringToObject(o, "folder", path);
        tv_view_differences d = tv_view_diff(report);
        cJSON *changed = cJSON_AddArrayToObject(o, "changed");
        for (int i = 0; i < d.n; i++) {
            cJSON *row = cJSON_CreateObject();
            cJSON_AddStringToObject(row, "field", d.item[i].key);
            cJSON_AddStringToObject(row, "a", d.item[i].a);
            cJSON_AddStringToObject(row, "b", d.item[i].b);
            cJSON_AddItemToArray(changed, row);
        }
        tv_view_diff_free(&d);
        add_verdict(o, report);
        if (tv_view_item(report, "libraries")) copy(o, "libraries", report, "libraries");
        s = add_first_position(c, (int64_t)tv_view_number(report, "R"), o, err);
        if (s == TV_OK) s = add_first_layer(c, o, err);
        if (s == TV_OK) s = add_routes(c, o, err);
    }
    cJSON_Delete(report);
    free(path);
    if (s == TV_OK)
        cJSON_AddItemToArray(list, o);
    else
        cJSON_Delete(o);
    return s;
}

/* ---- ranking ---- */

static int rank_class(const cJSON *o) {
    const char *v = tv_view_string(o, "verdict");
    return !strcmp(v, "moves") ? 0 : !strcmp(v, "cannot tell") ? 1 : 2;
}

static int before(const void *x, const void *y) {
    const cJSON *a = *(cJSON *const *)x, *b = *(cJSON *const *)y;
    double ta = tv_view_number(a, "tv.estimate"), tb = tv_view_number(b, "tv.estimate");
    if (rank_class(a) != rank_class(b)) return rank_class(a) - rank_class(b);
    return ta > tb ? -1 : ta < tb ? 1 : strcmp(tv_view_string(a, "axis"), tv_view_string(b, "axis"));
}

/* Sorts the list; among those that move the distribution, says where the next one's interval lies wholly below. */
static cJSON *ranked(cJSON *list) {
    int n = cJSON_GetArraySize(list);
    cJSON **item = tv_xmalloc((size_t)(n + 1) * sizeof *item), *sorted = cJSON_CreateArray();
    for (int i = 0; i < n; i++) item[i] = cJSON_DetachItemFromArray(list, 0);
    qsort(item, (size_t)n, sizeof *item, before);
    for (int i = 0; i < n; i++) {
        if (i + 1 < n && !rank_class(item[i]) && !rank_class(item[i + 1]))
            cJSON_AddBoolToObject(item[i], "apart_from_next", interval_end(item[i], 0) > interval_end(item[i + 1], 1));
        cJSON_AddItemToArray(sorted, item[i]);
    }
    free(item);
    cJSON_Delete(list);
    return sorted;
}

/* ---- all of it ---- */

static void dry_run(const tv_args *args, const cli_comparison *c, int n, double seconds, double passes, uint64_t disk,
                    const char *folder) {
    tv_engine_info info;
    tv_engine_describe(c->engine[0], &info);
    tv_note("%d axes", n);
    cli_print_need(args, &info, (int64_t)passes, c->N, c->n, seconds, cli_comparison_memory(c), disk, 0, folder);
}

tv_status cli_attribution_run(tv_args *args, const char *given, cJSON **out, tv_err *err) {
    axes list = axes_of(args);
    cJSON *result = cJSON_CreateObject(), *measured = cJSON_CreateArray(), *skipped = cJSON_CreateArray();
    cli_comparison *c = tv_xcalloc((size_t)list.n + 1, sizeof *c);
    tv_args *axis_args = tv_xcalloc((size_t)list.n + 1, sizeof *axis_args);
    char *folder = given ? tv_xstrdup(given) : NULL;
    double seconds = 0, passes = 0;
    uint64_t disk = 0;
    int first = -1;
    tv_machine machine = {0};
    tv_status s = list.n ? TV_OK : TV_FAIL(err, TV_EARG, "--axis names nothing to flip");
    if (args->dry_run) machine = tv_machine_measure(args->threads);
    args->seed[1] = args->seed[0] + 1;
    *out = NULL;
    for (int i = 0; i < list.n && s == TV_OK; i++) {
        int open;
        axis_args[i] = *args;
        const cli_comparison *like = first < 0 ? NULL : &c[first];
        s = open_axis(&list.at[i], &c[i], &axis_args[i], like, skipped, &open, err);
        if (s != TV_OK || !open) continue;
        if (first < 0) {
            first = i;
            cJSON *m = cli_comparison_manifest(&c[i]);
            cJSON_DeleteItemFromObjectCaseSensitive(m, "b");
            cJSON_AddStringToObject(m, "axis", args->axis ? args->axis : "");
            if (!folder) folder = cli_comparison_folder("attribute", m);
            static const char *const keys[] = {"tvgpu", "model", "a", "N", "n", "R", "seed_a"};
            for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) copy(result, keys[k], m, keys[k]);
            cJSON_Delete(m);
        }
        if (args->dry_run) {
            double R = (double)c[i].R, mine[2] = {i == first ? 1 + 2 * R : R, 1 + 2 * R};
            for (int e = 0; e < 2; e++) {
                tv_engine_info info;
                tv_engine_describe(c[i].engine[e], &info);
                if (info.n_experts) mine[e] += R; /* with routes replayed */
                passes += mine[e];
                seconds += cli_seconds(&machine, &info, &axis_args[i].side[e].serving, c[i].N, c[i].n,
                                       cli_comparison_prompt_tokens(&c[i]), mine[e]);
            }
            disk += cli_comparison_disk(&c[i], 0);
        } else {
            s = measure_axis(&list.at[i], &c[i], folder, like, measured, err);
            cli_comparison_rest(&c[i]);
        }
        if (i != first) cli_comparison_close(&c[i]);
    }
    if (s == TV_OK && first < 0) s = TV_FAIL(err, TV_EARG, "there is nothing to flip: side a has every known value");
    if (s == TV_OK && args->dry_run)
        dry_run(&axis_args[first], &c[first], list.n - cJSON_GetArraySize(skipped), seconds, passes, disk, folder);
    measured = ranked(measured);
    cJSON_AddItemToObject(result, "axes", measured);
    cJSON_AddItemToObject(result, "skipped", skipped);
    if (s == TV_OK && !args->dry_run) {
        char *path = tv_path_join(folder, "attribution.json");
        s = tv_json_save(result, path, err);
        if (s == TV_OK) tv_note("attribution: %s", path);
        free(path);
    }
    if (first >= 0) cli_comparison_close(&c[first]);
    if (s == TV_OK && !args->dry_run)
        *out = result;
    else
        cJSON_Delete(result);
    free(c), free(axis_args), free(folder);
    axes_free(&list);
    return s;
}

/* ---- the table ---- */

double cli_attribution_floor(const cJSON *o) {
    double floor[2];
    for (int e = 0; e < 2; e++) {
        double hedged = tv_view_number(o, e ? "floor.b.hedged.estimate" : "floor.a.hedged.estimate");
        floor[e] = isfinite(hedged) && !strcmp(tv_view_string(o, "tv.estimator"), "hedged")
                       ? hedged
                       : tv_view_number(o, e ? "floor.b.estimate" : "floor.a.estimate");
    }
    return fmax(floor[0], floor[1]);
}

void cli_attribution_print(const cJSON *r, FILE *out) {
    const cJSON *list = tv_view_item(r, "axes"), *o;
    int width = 4, place = 0;
    cJSON_ArrayForEach(o, list) {
        int length = (int)strlen(tv_view_string(o, "axis"));
        if (length > width) width = length;
    }
    fprintf(out, "side a: %s attention, %s reduction, %s logits; N %.0f, n %.0f, R %.0f\n\n",
            tv_view_string(r, "a.backend"), tv_view_string(r, "a.reduction"), tv_view_string(r, "a.logits"),
            tv_view_number(r, "N"), tv_view_number(r, "n"), tv_view_number(r, "R"));
    fprintf(out, "    %-*s  %-8s %-18s %-8s %-9s %-9s %-9s %s\n", width, "axis", "TV", "95% interval", "floor",
            "token TV", "same top1", "position", "layer");
    cJSON_ArrayForEach(o, list) {
        int class = rank_class(o);
        if (class == 2) {
            fprintf(out, " =  %-*s  bit-identical: moves nothing\n", width, tv_view_string(o, "axis"));
            continue;
        }
        double se = tv_view_number(o, "tv.se");
        char *tv = tv_view_text(tv_view_number(o, "tv.estimate"), se),
             *interval = tv_view_interval(tv_view_item(o, "tv.ci95"), se),
             *floor = tv_view_text(cli_attribution_floor(o), se);
        char position[24] = "-", layer[48] = "-", mark[16] = " ?";
        double at = tv_view_number(o, "first_position.position"), l = tv_view_number(o, "first_layer.layer");
        if (isfinite(at)) snprintf(position, sizeof position, "%.0f", at);
        const char *activation = tv_view_string(o, "first_layer.activation");
        if (isfinite(l) && l >= 0)
            snprintf(layer, sizeof layer, "%.0f (%s)", l, activation);
        else if (isfinite(l))
            snprintf(layer, sizeof layer, "%s", activation);
        if (!class)
            snprintf(mark, sizeof mark, "%2d%s", ++place,
                     cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(o, "apart_from_next")) ? "~" : "");
        fprintf(out, "%-3s %-*s  %-8s %-18s %-8s %-9.4f %8.2f%% %-9s %s\n", mark, width, tv_view_string(o, "axis"), tv,
                interval, floor, tv_view_number(o, "token.tv"), 100 * tv_view_number(o, "token.same_top1"), position,
                layer);
        free(tv), free(interval), free(floor);
    }
    fputs("\nTV: against side a. position, layer: the first that differ by more than each side differs from itself.\n"
          "~ its interval overlaps the next one's: their order is not certain. ? cannot be told from noise or from 0: "
          "more\n"
          "passes (-R) or trajectories (-N) may. = agrees with side a in every bit.\n",
          out);
    cJSON_ArrayForEach(o, list) {
        const cJSON *row, *routing = tv_view_item(o, "routing");
        if (!routing) continue;
        fprintf(out, "%s: routing decisions that change, by layer:", tv_view_string(o, "axis"));
        cJSON_ArrayForEach(row, routing) fprintf(out, " %.2f%%", 100 * tv_view_number(row, "changed"));
        fputc('\n', out);
        if (!cJSON_IsObject(tv_view_item(o, "routes"))) continue;
        char *text[2];
        for (int way = 0; way < 2; way++) {
            const cJSON *v = tv_view_item(o, way ? "routes.replayed" : "routes.own");
            double se = tv_view_number(v, "se");
            char *tv = tv_view_text(tv_view_number(v, "estimate"), se),
                 *interval = tv_view_interval(tv_view_item(v, "ci95"), se);
            text[way] = tv_xprintf("%s %s", tv, interval);
            free(tv), free(interval);
        }
        fprintf(out, "%s: TV over side a's texts: %s on its own routes, %s with side a's routes replayed\n",
                tv_view_string(o, "axis"), text[0], text[1]);
        free(text[0]), free(text[1]);
    }
    cJSON_ArrayForEach(o, tv_view_item(r, "skipped"))
        fprintf(out, "left out: %s (%s)\n", tv_view_string(o, "axis"), tv_view_string(o, "why"));
}
