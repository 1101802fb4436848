/* The protocol on recorded measurements, the theory's parameters, and what to run next. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/hedged.h"
#include "estimator/schedule.h"
#include "estimator/stats.h"

/* ---- The protocol on a recorded measurement
 * ------------------------------------------------------------------------------ */

/* A view of data whose reads start at `first` (a deterministic side keeps its read). */
static tv_dataset shifted(const tv_dataset *data, int64_t first) {
    tv_dataset view = *data;
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++) {
            if (data->deterministic[e]) continue;
            tv_set_skip_reads(&view.set[s], e, first);
        }
    return view;
}

/* The hedged family at `reads` against a deep hedged reference from the held-out reads, on the same trajectories. arm:
 * -1 = both, else one side alone. */
static tv_fixed_family hedged_family(const char *name, const tv_hedged *h, const tv_hedged *deep, int arm) {
    tv_fixed_family f = {.name = name, .reads = (double)h->reads};
    double bias = 0, paired = 0;
    const int n_arms = arm < 0 ? 2 : 1;
    int64_t total = 0;
    for (int s = 0; s < 2; s++) {
        if (arm >= 0 && s != arm) continue;
        const int64_t N = h->arm[s].N;
        double *d = tv_xmalloc((size_t)N * sizeof *d);
        for (int64_t i = 0; i < N; i++) d[i] = h->arm[s].T2pj[i] - deep->arm[s].T2pj[i];
        f.variance += tv_stats_variance(h->arm[s].T2pj, N) / n_arms;
        bias += tv_stats_mean(d, N) / n_arms;
        paired += tv_stats_variance(d, N) / n_arms;
        total += N;
        free(d);
    }
    const double floor = sqrt(paired / (double)total);
    f.bias = fabs(bias) > floor ? fabs(bias) : floor;
    return f;
}

static tv_status run_families(const tv_dataset *data, int64_t R, int64_t held_out, tv_readout readout, tv_hedged *h,
                              int *n_hedged, tv_hedged *deep, tv_err *err) {
    const tv_dataset tail = shifted(data, R - held_out);
    const int64_t deep_reads = held_out & ~(int64_t)1;
    TV_TRY(tv_hedged_run(&tail, deep_reads, readout, NULL, deep, err));
    for (int64_t r = 2; r <= 4 && r <= R - held_out; r += 2) {
        const tv_status status = tv_hedged_run(data, r, readout, NULL, &h[*n_hedged], err);
        if (status != TV_OK) return status;
        ++*n_hedged;
    }
    return TV_OK;
}

tv_status tv_schedule_run(const tv_dataset *data, const tv_schedule_options *o, cJSON **result, tv_err *err) {
    *result = NULL;
    if (data->deterministic[0] && data->deterministic[1])
        return TV_FAIL(err, TV_EARG,
                       "both sides are deterministic: one read stands for every r, so there is nothing to schedule");
    const int64_t R = tv_reads_usable(data);
    if (R < 4)
        return TV_FAIL(err, TV_EARG,
                       "a schedule needs at least 4 passes (half are the reference); this measurement has %lld",
                       (long long)R);
    const int64_t held_out = R / 2;
    tv_levels levels[2] = {{0}, {0}};
    tv_hedged h[2] = {{{{0}, {0}}, 0}}, deep = {{{0}, {0}}, 0};
    int n_hedged = 0;
    const tv_levels_options lo = {.reads = R,
                                  .held_out = held_out,
                                  .readout = o->readout,
                                  .seed = o->protocol.seed,
                                  .n_perm = o->serving_order      ? 0
                                            : o->permutations > 0 ? o->permutations
                                                                  : 20};
    const uint64_t total = (uint64_t)data->set[0].N + (uint64_t)data->set[1].N;
    tv_status status = TV_OK;
    cJSON *out = cJSON_CreateObject();
    tv_progress_report(o->progress, 0, total);
    for (int s = 0; s < 2 && status == TV_OK; s++) {
        status = tv_levels_run(data, s, &lo, &levels[s], err);
        tv_progress_report(o->progress, s ? total : (uint64_t)data->set[0].N, total);
    }
    if (status == TV_OK) status = run_families(data, R, held_out, o->readout, h, &n_hedged, &deep, err);
    const char *names[3] = {"symmetric", "one_sided_a", "one_sided_b"}, *family_names[2] = {"hedged_r2", "hedged_r4"};
    for (int which = 0; which < 3 && status == TV_OK; which++) {
        const tv_levels *const both[2] = {&levels[0], &levels[1]}, *const one[1] = {&levels[which == 2]};
        tv_fixed_family fixed[2];
        for (int f = 0; f < n_hedged; f++) fixed[f] = hedged_family(family_names[f], &h[f], &deep, which - 1);
        tv_protocol_options po = o->protocol;
        po.n_fixed = n_hedged;
        po.fixed = fixed;
        cJSON *part = NULL;
        status = tv_protocol_run(which ? one : both, which ? 1 : 2, &po, &part, err);
        if (status == TV_OK) cJSON_AddItemToObject(out, names[which], part);
    }
    if (status == TV_OK) {
        cJSON_AddNumberToObject(out, "reads", (double)R);
        cJSON_AddNumberToObject(out, "held_out", (double)held_out);
        cJSON_AddNumberToObject(out, "permutations", (double)lo.n_perm);
        cJSON *faith = cJSON_AddObjectToObject(out, "faithfulness");
        tv_json_add_number(faith, "a", h[0].arm[0].test_z);
        tv_json_add_number(faith, "b", h[0].arm[1].test_z);
        *result = out;
    } else {
        cJSON_Delete(out);
    }
    for (int s = 0; s < 2; s++) tv_levels_free(&levels[s]);
    for (int s = 0; s < 2; s++) tv_hedged_free(&h[s]);
    tv_hedged_free(&deep);
    return status;
}

/* ---- Theory
 * --------------------------------------------------------------------------------------------------------------- */

static cJSON *add_algorithm(cJSON *out, const char *name, double N, double r, double queries) {
    cJSON *a = cJSON_AddObjectToObject(out, name);
    cJSON_AddNumberToObject(a, "N", N);
    cJSON_AddNumberToObject(a, "r", r);
    cJSON_AddNumberToObject(a, "queries", queries);
    return a;
}

tv_status tv_schedule_theory(double n, double sigma, double eps, double delta, double K, cJSON **result, tv_err *err) {
    *result = NULL;
    if (!(n >= 1 && n <= 1e9)) return TV_FAIL(err, TV_EARG, "n=%g is not within 1..1e9 tokens", n);
    if (!(sigma >= 0 && sigma <= 1e3)) return TV_FAIL(err, TV_EARG, "sigma=%g is not within 0..1000", sigma);
    if (!(eps > 1e-6 && eps < 1)) return TV_FAIL(err, TV_EARG, "eps=%g is not within (1e-6, 1)", eps);
    if (!(delta > 0 && delta < 1)) return TV_FAIL(err, TV_EARG, "delta=%g is not within (0, 1)", delta);
    if (!(K == 0 || K >= 2)) return TV_FAIL(err, TV_EARG, "K=%g: a support has at least two tokens (0 = unknown)", K);
    cJSON *out = cJSON_CreateObject();
    cJSON_AddNumberToObject(out, "n", n);
    cJSON_AddNumberToObject(out, "sigma", sigma);
    cJSON_AddNumberToObject(out, "eps", eps);
    cJSON_AddNumberToObject(out, "delta", delta);
    /* Algorithm 1: the summand is in [0,1]; Hoeffding. Each trajectory is scored by both sides. */
    const double N1 = ceil(log(2 / delta) / (2 * eps * eps));
    add_algorithm(out, "algorithm1", N1, 1, 2 * n * N1);
    /* Algorithm 2: |Z_r - Z| <= |D_r - D|/2 and E (D_r - D)^2 <= 2 n sigma^2 / r, so the bias is at most sqrt(n sigma^2
     * / 2r); half of eps for it, half for the mean of N bounded values. */
    const double s2 = n * sigma * sigma, r2 = fmax(1, ceil(2 * s2 / (eps * eps))),
                 N2 = ceil(2 * log(2 / delta) / (eps * eps));
    add_algorithm(out, "algorithm2", N2, r2, 2 * n * N2 * r2);
    /* Algorithm 3: E Y_l^2 <= n sigma^2 / (2 r_l), V_0 <= 1/4; variance eps^2/40 for nine-in-ten confidence at eps/2
     * (Chebyshev), then the median of G groups. */
    int64_t r[64], N3[64];
    double V[64], total = 0;
    int L = tv_theory_levels(n, sigma * sigma, eps, 1.0, 64, r);
    if (!(sigma > 0)) L = 1; /* an exact oracle has one level */
    for (int l = 0; l < L; l++) V[l] = l ? fmin(0.25, s2 / (2 * (double)r[l])) : 0.25;
    const tv_status status = tv_allocate(L, V, r, 0, eps / sqrt(40), N3, err);
    if (status != TV_OK) {
        cJSON_Delete(out);
        return status;
    }
    const double G = (double)tv_median_groups(delta);
    cJSON *a3 = cJSON_AddObjectToObject(out, "algorithm3"), *levels = cJSON_AddArrayToObject(a3, "levels");
    for (int l = 0; l < L; l++) {
        cJSON *level = cJSON_CreateObject();
        cJSON_AddNumberToObject(level, "r", (double)r[l]);
        cJSON_AddNumberToObject(level, "N", (double)N3[l]);
        cJSON_AddItemToArray(levels, level);
        total += (double)r[l] * (double)N3[l];
    }
    cJSON_AddNumberToObject(a3, "groups", G);
    cJSON_AddNumberToObject(a3, "queries", 2 * n * total * G);
    /* Orders of magnitude (factors and logs left out), and what no algorithm can beat. */
    cJSON *upper = cJSON_AddObjectToObject(out, "order"), *lower = cJSON_AddObjectToObject(out, "lower_bound");
    cJSON_AddNumberToObject(upper, "exact", n / (eps * eps));
    cJSON_AddNumberToObject(upper, "noisy", (n + n * s2) / (eps * eps));
    cJSON_AddNumberToObject(lower, "exact", n / (eps * eps));
    if (K > 0) {
        cJSON_AddNumberToObject(upper, "samples", n * K / (eps * eps));
        cJSON_AddNumberToObject(lower, "samples", n * K / (eps * eps * log(K)));
        cJSON_AddNumberToObject(lower, "noisy", n * fmax(1, sigma * sigma) / (eps * eps * log(K)));
    } else {
        tv_json_add_null(upper, "samples", "the support size K is not known");
        tv_json_add_null(lower, "samples", "the support size K is not known");
        tv_json_add_null(lower, "noisy", "the support size K is not known");
    }
    *result = out;
    return TV_OK;
}

/* ---- What next
 * ------------------------------------------------------------------------------------------------------------ */

/* A number, or the smaller of {"a", "b"} or [a, b]; NaN when neither. */
static double least_number(const cJSON *item) {
    if (cJSON_IsNumber(item)) return item->valuedouble;
    double least = NAN;
    for (const cJSON *part = item ? item->child : NULL; part; part = part->next)
        if (cJSON_IsNumber(part) && !(part->valuedouble >= least)) least = part->valuedouble;
    return least;
}

tv_status tv_schedule_next(const cJSON *report, double target, double budget, cJSON **result, tv_err *err) {
    *result = NULL;
    if (!(target > 0 && target < 1) && !(budget > 0 && isfinite(budget)))
        return TV_FAIL(err, TV_EARG,
                       "say what to aim at: a target error in (0, 1) (got %g) or a budget of queries above 0 (got %g)",
                       target, budget);
    const cJSON *tv = cJSON_GetObjectItemCaseSensitive(report, "tv"),
                *ci = cJSON_GetObjectItemCaseSensitive(tv, "ci95");
    const double n = least_number(cJSON_GetObjectItemCaseSensitive(report, "n"));
    const double N = least_number(cJSON_GetObjectItemCaseSensitive(report, "N"));
    const double R = least_number(cJSON_GetObjectItemCaseSensitive(report, "R"));
    const cJSON *se_item = cJSON_GetObjectItemCaseSensitive(tv, "se");
    const double se = cJSON_IsNumber(se_item) ? se_item->valuedouble : NAN;
    const cJSON *low = cJSON_GetArrayItem(ci, 0), *high = cJSON_GetArrayItem(ci, 1);
    if (!(n >= 1 && N >= 1 && R >= 1)) return TV_FAIL(err, TV_EFORMAT, "the report lacks n, N or R");
    if (!(se >= 0) || !cJSON_IsNumber(low) || !cJSON_IsNumber(high))
        return TV_FAIL(err, TV_EARG,
                       "the report's headline has no interval (at least two trajectories a side are needed): run a "
                       "pilot of 64 first");
    const double half = 0.5 * (high->valuedouble - low->valuedouble), spread = 1.96 * se;
    const double bias = half > spread ? half - spread : 0;
    cJSON *out = cJSON_CreateObject();
    cJSON_AddNumberToObject(out, "half_width", half);
    cJSON_AddNumberToObject(out, "bias_allowance", bias);
    double trajectories = N, reads = R, expected = half;
    int possible = 1, done = 0;
    const char *reason;
    if (target > 0) {
        if (half <= target) {
            done = 1;
            reason = "the interval is as tight as asked";
        } else if (bias < 0.9 * target) {
            /* The spread falls like N^-1/2, the bias allowance stays. */
            trajectories = ceil(N * pow(spread / (target - bias), 2));
            expected = spread * sqrt(N / trajectories) + bias;
            reason = "more trajectories: the spread of the mean is what keeps the interval wide";
        } else if (R <= 1) {
            possible = 0;
            reason = "the interval's allowance for bias is above the target, and with one deterministic read more "
                     "reads change nothing";
        } else {
            /* The allowance falls at least like 1/r where the log-ratio is smooth: bring it to half of the target. */
            reads = 2 * ceil(R * bias / (0.5 * target) / 2);
            trajectories = fmax(N, ceil(N * pow(spread / (0.5 * target), 2)));
            expected = spread * sqrt(N / trajectories) + bias * R / reads;
            reason = "more reads: the allowance for the bias of noisy reads is above what the target leaves";
        }
        if (!(trajectories * reads * n < 1e15)) {
            possible = 0;
            reason = "the target would need more than 1e15 queries";
        }
    } else {
        trajectories = floor(budget / (2 * n * R));
        if (trajectories < 2) {
            possible = 0;
            reason = "the budget does not pay for two trajectories a side";
        } else {
            expected = spread * sqrt(N / trajectories) + bias;
            reason = "all of the budget in trajectories at the reads in use";
            if (spread * sqrt(N / trajectories) < bias && R > 1) {
                /* Past the point where bias leads, reads buy more: split so that both parts are about equal. */
                const double more = fmin(2 * floor(sqrt(bias / (spread * sqrt(N / trajectories))) * R / 2),
                                         floor(budget / (2 * n * 2)));
                if (more > R) {
                    reads = more;
                    trajectories = floor(budget / (2 * n * reads));
                    expected = spread * sqrt(N / trajectories) + bias * R / reads;
                    reason = "more reads a trajectory, because the allowance for their bias would lead";
                }
            }
        }
    }
    cJSON_AddBoolToObject(out, "done", done);
    cJSON_AddBoolToObject(out, "possible", possible);
    cJSON_AddStringToObject(out, "reason", reason);
    if (possible) {
        cJSON_AddNumberToObject(out, "trajectories", trajectories);
        cJSON_AddNumberToObject(out, "reads", reads);
        cJSON_AddNumberToObject(out, "queries", 2 * trajectories * n * reads);
        cJSON_AddNumberToObject(out, "expected_half_width", expected);
    } else {
        const char *keys[] = {"trajectories", "reads", "queries", "expected_half_width"};
        for (int k = 0; k < 4; k++) tv_json_add_null(out, keys[k], reason);
    }
    *result = out;
    return TV_OK;
}
