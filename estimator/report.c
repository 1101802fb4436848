#include "estimator/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/agreement.h"
#include "estimator/calibrate.h"
#include "estimator/distance.h"
#include "estimator/hedged.h"
#include "estimator/interval.h"
#include "estimator/token_metrics.h"
#include "estimator/truncated.h"

enum { MOST_LENGTHS = 64, MOST_REPEATS = 64, REPLICATES = 2000 };
static const double FAITHFUL = 3; /* |z| below which the scorer's mean is taken to be what sampled the set */

/* Everything measured before it is written down. */
typedef struct {
    tv_dataset data;           /* a view of the caller's, with the deterministic sides marked */
    tv_report_options options; /* as given, but for what folded passes leave no choice */
    const tv_report_options *o;
    int64_t R;
    tv_readout readout;
    int both_deterministic;
    int identical;
    int64_t differing, compared;
    int64_t lengths[MOST_LENGTHS], n_lengths;
    tv_distance d;
    tv_calibration cal;
    tv_token_metrics token;
    tv_hedged hedged;
    int has_hedged;
    /* The hedged distance of a side to itself, the first half of its reads against the second: what is left of it is
     * bias, since the truth is 0. NaN when it was not measured (fewer than 4 reads). */
    struct {
        double estimate, se;
    } hedged_floor[2];
    int64_t floor_reads; /* reads of each half */
    int is_truncated;    /* sampling took tokens that the records do not list */
    tv_truncated bounds;
    double *x[2]; /* [N] scratch per set */
} state;

/* A number with its error bar; NaN = does not exist. */
typedef struct {
    tv_estimate e;
    double low, high;
} bar;

static const char ONE_TRAJECTORY[] = "a set of one trajectory has no error bar; sample at least two";

static const char FOLDED[] = "passes were folded (--keep-passes no): this needs each of them";

static void add(cJSON *o, const char *key, double value, const char *reason) {
    if (isfinite(value))
        cJSON_AddNumberToObject(o, key, value);
    else
        tv_json_add_null(o, key, reason);
}

static cJSON *add_interval(cJSON *o, const char *key, double low, double high, const char *reason) {
    if (!isfinite(low) || !isfinite(high)) {
        tv_json_add_null(o, key, reason);
        return NULL;
    }
    cJSON *list = cJSON_AddArrayToObject(o, key);
    cJSON_AddItemToArray(list, cJSON_CreateNumber(low));
    cJSON_AddItemToArray(list, cJSON_CreateNumber(high));
    return list;
}

static tv_arms arms_of(const state *st, const double *a, const double *b) {
    tv_arms arms = {
        {a, b}, {st->data.set[0].N, st->data.set[1].N}, {st->data.set[0].prompt_index, st->data.set[1].prompt_index}};
    return arms;
}

/* The estimate over x[0], x[1] with a symmetric interval of quantile se + allowance. */
static bar bar_of(const state *st, double *const x[2], double allowance) {
    tv_arms arms = arms_of(st, x[0], x[1]);
    bar b = {.e = tv_arms_estimate(&arms)};
    b.low = b.e.estimate - b.e.quantile * b.e.se - allowance;
    b.high = b.e.estimate + b.e.quantile * b.e.se + allowance;
    if (isfinite(b.e.se))
        tv_interval_clip(b.e.estimate, &b.low, &b.high);
    else
        b.low = b.high = NAN;
    return b;
}

static cJSON *add_bar(cJSON *parent, const char *key, const bar *b, const char *interval) {
    cJSON *o = cJSON_AddObjectToObject(parent, key);
    add(o, "estimate", b->e.estimate, "not a number");
    add(o, "se", b->e.se, ONE_TRAJECTORY);
    add_interval(o, "ci95", b->low, b->high, ONE_TRAJECTORY);
    cJSON_AddStringToObject(o, "interval", interval);
    return o;
}

/* ---- headline and estimators ---- */

/* Lower end that holds whatever the noise of the reads: P_a(D > 0) - P_b(D > 0), D = log a - log b, over both sets. */
static bar sign_bound(const state *st) {
    for (int s = 0; s < 2; s++) {
        const tv_distance_set *set = &st->d.set[s];
        int64_t at = (st->R - 1) * set->N;
        /* Twice the share with its sign, so that the mean over both sets is the difference of shares. */
        for (int64_t i = 0; i < set->N; i++)
            st->x[s][i] = (set->log[TV_A][at + i] > set->log[TV_B][at + i]) * (s == TV_A ? 2.0 : -2.0);
    }
    return bar_of(st, st->x, 0);
}

static int faithful(const tv_hedged_arm *arm) {
    if (!isnan(arm->test_z)) return fabs(arm->test_z) < FAITHFUL;
    for (int64_t i = 0; i < arm->N; i++)
        if (arm->C[i] != 0) return 0;
    return 1; /* nothing to test: no position offers a choice that the sides value differently */
}

typedef struct {
    bar value;
    double one_sided[2];
    const char *estimator; /* "bit-identical", "hedged" or "plugin" */
    char *method;          /* owned */
} headline;

/* Noise that hangs together along a trajectory (a pass whose batch made all its rows differ alike) outlives corrections
 * that take positions to be independent; the self-distance shows it. Where it stands out from its own error, it widens
 * the interval; it was measured at half of the reads, so it is not too small. */
static double bias_allowance(const state *st) {
    double allowance = st->both_deterministic ? 0 : tv_hedged_bias_allowance(&st->hedged);
    for (int e = 0; e < 2; e++)
        if (fabs(st->hedged_floor[e].estimate) > 2 * st->hedged_floor[e].se)
            allowance = fmax(allowance, fabs(st->hedged_floor[e].estimate));
    return allowance;
}

static double mean_of(const tv_hedged_arm *arm, const double *x) { return tv_mean(x, arm->N); }

static void add_hedged(state *st, cJSON *estimators, headline *head) {
    if (!st->has_hedged) {
        tv_json_add_null(estimators, "hedged",
                         st->R < 2 ? "needs two reads a side, or sides whose reads are known to be bit-identical"
                                   : "no readout to hedge with");
        return;
    }
    const tv_hedged *h = &st->hedged;
    double *pj[2] = {h->arm[0].T2pj, h->arm[1].T2pj};
    double allowance = bias_allowance(st);
    bar b = bar_of(st, pj, allowance);
    cJSON *o = add_bar(estimators, "hedged", &b,
                       st->both_deterministic ? "sampling error; the reads carry no noise"
                                              : "sampling error and bias allowance");
    cJSON_AddNumberToObject(o, "r", (double)h->reads);
    cJSON_AddNumberToObject(o, "bias_allowance", allowance);
    for (int v = 0; v < 4; v++) {
        static const char *const NAME[4] = {"T0", "T2", "T2x", "T2pj"};
        static const tv_hedged_variant VARIANT[4] = {TV_HEDGED_T0, TV_HEDGED_T2, TV_HEDGED_T2X, TV_HEDGED_T2PJ};
        cJSON_AddNumberToObject(o, NAME[v], tv_hedged_combine(h, VARIANT[v]).estimate);
    }
    cJSON_AddNumberToObject(o, "one_sided_a", mean_of(&h->arm[0], pj[0]));
    cJSON_AddNumberToObject(o, "one_sided_b", mean_of(&h->arm[1], pj[1]));
    cJSON *parameters = cJSON_AddObjectToObject(o, "parameters");
    for (int s = 0; s < 2; s++) {
        cJSON *arm = cJSON_AddObjectToObject(parameters, s ? "b" : "a");
        cJSON_AddNumberToObject(arm, "V", h->arm[s].params.V);
        cJSON_AddNumberToObject(arm, "h", h->arm[s].params.h);
        cJSON_AddNumberToObject(arm, "tau2", h->arm[s].params.tau2);
    }
    if (isfinite(b.e.se) && faithful(&h->arm[0]) && faithful(&h->arm[1])) {
        head->value = b;
        head->estimator = "hedged";
        for (int s = 0; s < 2; s++) head->one_sided[s] = mean_of(&h->arm[s], pj[s]);
        head->method =
            st->both_deterministic
                ? tv_xprintf(
                      "hedged, both sides deterministic: full readouts are stored and both faithfulness tests pass "
                      "(|z| < 3); one read "
                      "stands for all, so there is no read noise to remove and the interval holds sampling error alone")
                : tv_xprintf("hedged T2pj at r = %lld: full readouts are stored and both faithfulness tests pass (|z| "
                             "< 3); the interval holds "
                             "sampling error and an allowance for bias",
                             (long long)h->reads);
    }
}

/* Where sampling took tokens that the records do not list, the estimators above are about lists cut and renormalised;
 * the headline is then what the tokens' own probabilities say, between bounds where those are not all known. */
static void lead_with_bounds(const state *st, cJSON *report, headline *head) {
    const tv_truncated *t = &st->bounds;
    const bar low = bar_of(st, t->low, 0), high = bar_of(st, t->high, 0);
    const int open = high.e.estimate > low.e.estimate;
    if (st->identical && !open) return;
    free(head->method);
    head->estimator = "truncated";
    head->value = high;
    head->value.e.estimate = 0.5 * (low.e.estimate + high.e.estimate);
    head->value.low = low.low;
    head->value.e.se = fmax(low.e.se, high.e.se);
    for (int s = 0; s < 2; s++) head->one_sided[s] = 0.5 * (low.e.mean[s] + high.e.mean[s]);
    head->method =
        open ? tv_xprintf("truncated records: sampling took the whole vocabulary, the records list the %lld most "
                          "likely tokens; the distance lies in [%.4g, %.4g] (estimate: their middle), and the "
                          "interval adds the sampling error of either end",
                          (long long)st->data.set[0].k[0], low.e.estimate, high.e.estimate)
             : tv_xprintf("token log-probabilities: sampling took the whole vocabulary, of which the records "
                          "list the %lld most likely tokens; every sampled token's own probability is known, "
                          "so nothing is cut off; interval: sampling error alone",
                          (long long)st->data.set[0].k[0]);
    cJSON *o = cJSON_AddObjectToObject(report, "truncated");
    cJSON_AddNumberToObject(o, "low", low.e.estimate);
    cJSON_AddNumberToObject(o, "high", high.e.estimate);
    add_interval(o, "ci95", low.low, high.high, ONE_TRAJECTORY);
    for (int e = 0; e < 2; e++) {
        cJSON_AddNumberToObject(o, e ? "tail_b" : "tail_a", t->tail[e]);
        cJSON_AddNumberToObject(o, e ? "unknown_tokens_b" : "unknown_tokens_a", t->unknown[e]);
    }
    cJSON *token = cJSON_AddObjectToObject(o, "token_tv");
    cJSON_AddNumberToObject(token, "low", t->token_low);
    cJSON_AddNumberToObject(token, "high", t->token_high);
    cJSON_AddStringToObject(
        o, "note",
        "bounds on the distance of the whole distributions; estimators, floors, curves and token metrics "
        "are of the recorded lists, renormalised");
}

static void add_estimators(state *st, cJSON *report, headline *head) {
    cJSON *estimators = cJSON_CreateObject();
    tv_plugin p = tv_plugin_at(&st->d, st->R);
    for (int s = 0; s < 2; s++) tv_distance_z(&st->d, s, st->R, st->x[s]);
    bar plug = bar_of(st, st->x, 0), bound = sign_bound(st);
    const char *rests_on = "sampling error; the reads carry no noise";
    bar split = bound;
    if (st->R >= 2) {
        for (int s = 0; s < 2; s++) tv_distance_split_sign(&st->d, s, st->x[s]);
        split = bar_of(st, st->x, 0);
    }
    if (!st->both_deterministic) {
        /* The plug-in's bias is positive, that of split-sign (and of the sign bound) negative: they bracket the TV. */
        rests_on = st->R >= 2 ? "bracket [split-sign - 1.96 se, plug-in + 1.96 se]"
                              : "bracket [sign bound - 1.96 se, plug-in + 1.96 se]";
        plug.low = split.e.estimate - split.e.quantile * split.e.se;
        plug.high = plug.e.estimate + plug.e.quantile * plug.e.se;
        if (isfinite(plug.low) && isfinite(plug.high)) tv_interval_clip(plug.e.estimate, &plug.low, &plug.high);
    }
    cJSON *o = add_bar(estimators, "plugin", &plug, rests_on);
    cJSON_AddNumberToObject(o, "r", (double)st->R);
    cJSON_AddNumberToObject(o, "one_sided_a", p.tv[0]);
    cJSON_AddNumberToObject(o, "one_sided_b", p.tv[1]);
    cJSON_AddNumberToObject(o, "mismatch", p.mismatch_sym);
    cJSON_AddNumberToObject(o, "shared", p.shared_sym);
    static const char NEEDS_TWO[] = "needs two reads a side";
    if (st->R >= 2) {
        for (int s = 0; s < 2; s++) tv_distance_jackknife(&st->d, s, st->x[s]);
        bar jack = bar_of(st, st->x, 0);
        o = add_bar(estimators, "jackknife", &jack, "sampling error alone");
        cJSON_AddNumberToObject(o, "r", (double)(2 * st->d.h));
        o = add_bar(estimators, "split_sign", &split, "sampling error alone; biased down where log-ratios are smooth");
        cJSON_AddNumberToObject(o, "r", (double)(2 * st->d.h));
    } else {
        tv_json_add_null(estimators, "jackknife", NEEDS_TWO);
        tv_json_add_null(estimators, "split_sign", NEEDS_TWO);
    }
    for (int s = 0; s < 2; s++) tv_distance_likelihood_ratio(&st->d, s, st->R, st->x[s]);
    bar ratio = bar_of(st, st->x, 0);
    add_bar(estimators, "likelihood_ratio", &ratio, "sampling error alone; for exact logits (Algorithm 1)");
    add_bar(estimators, "sign_bound", &bound, "sampling error alone; its mean never exceeds the TV");
    add_hedged(st, estimators, head);

    if (!head->estimator) {
        head->value = plug;
        head->estimator = "plugin";
        head->one_sided[0] = p.tv[0], head->one_sided[1] = p.tv[1];
        const char *why =
            !isfinite(plug.e.se) ? "a set of one trajectory has no error bar"
            : !st->has_hedged
                ? "one read a side leaves nothing to hedge with"
                : "a faithfulness test fails (|z| >= 3: the scorer's mean is not what sampled the set), so the "
                  "hedged value would follow the scorer";
        head->method = tv_xprintf("plug-in at r = %lld: %s; interval: %s", (long long)st->R, why, rests_on);
    }
    if (st->identical) {
        free(head->method);
        head->value = (bar){.e = {.estimate = 0, .se = 0}, .low = 0, .high = 0};
        head->one_sided[0] = head->one_sided[1] = 0;
        head->estimator = "bit-identical";
        head->method =
            tv_xprintf("bit-identical: every recorded value of both sides agrees, so the distance is exactly 0");
    }
    if (st->is_truncated) lead_with_bounds(st, report, head);
    cJSON *tv = cJSON_AddObjectToObject(report, "tv");
    bar *v = &head->value;
    double value =
        fmin(fmax(v->e.estimate, 0), 1); /* a corrected estimate may leave [0,1]; a total variation does not */
    if (isfinite(v->low)) v->low = fmin(fmax(v->low, 0), value), v->high = fmax(fmin(v->high, 1), value);
    add(tv, "estimate", value, "not a number");
    add(tv, "se", v->e.se, ONE_TRAJECTORY);
    add_interval(tv, "ci95", v->low, v->high, ONE_TRAJECTORY);
    cJSON_AddStringToObject(tv, "method", head->method);
    cJSON_AddStringToObject(tv, "estimator", head->estimator);
    add(tv, "one_sided_a", head->one_sided[0], "not a number");
    add(tv, "one_sided_b", head->one_sided[1], "not a number");
    cJSON_AddNumberToObject(tv, "mismatch", st->identical ? 0 : p.mismatch_sym);
    cJSON_AddNumberToObject(tv, "shared", st->identical ? 0 : p.shared_sym);
    cJSON_AddItemToObject(report, "estimators", estimators);
}

/* Percentile bootstrap of the headline's sampling error, beside the delta method. */
static tv_status add_bootstrap(state *st, cJSON *tv, const headline *head, tv_err *err) {
    double *x[2] = {st->x[0], st->x[1]};
    if (!isfinite(head->value.e.se) || st->identical) {
        if (st->identical)
            add_interval(tv, "bootstrap95", 0, 0, "");
        else
            tv_json_add_null(tv, "bootstrap95", ONE_TRAJECTORY);
        return TV_OK;
    }
    if (!strcmp(head->estimator, "truncated")) {
        tv_json_add_null(tv, "bootstrap95",
                         "the headline follows from token log-probabilities or their bounds; its interval is analytic");
        return TV_OK;
    }
    for (int s = 0; s < 2; s++) {
        if (strcmp(head->estimator, "hedged") == 0)
            x[s] = st->hedged.arm[s].T2pj;
        else
            tv_distance_z(&st->d, s, st->R, x[s]);
    }
    tv_arms arms = arms_of(st, x[0], x[1]);
    double low, high;
    TV_TRY(tv_arms_bootstrap(&arms, st->o->seed, REPLICATES, &low, &high, err));
    add_interval(tv, "bootstrap95", low, high, "");
    return TV_OK;
}

/* ---- noise: floors, sigma, support ---- */

static bar floor_bar(const state *st, int e, int64_t r) {
    double *rows[2];
    for (int s = 0; s < 2; s++) rows[s] = st->d.set[s].floor_z[e] + (r - 1) * st->d.set[s].N;
    return bar_of(st, rows, 0);
}

static void add_floors(state *st, cJSON *report) {
    cJSON *floors = cJSON_AddObjectToObject(report, "floor"), *beyond = cJSON_AddObjectToObject(report, "beyond_noise");
    static const char NEEDS[] = "one read a side: no half to compare with the other; use --repeats 2 or more";
    for (int e = 0; e < 2; e++) {
        const char *key = e ? "b" : "a";
        if (st->R < 2 && !st->data.deterministic[e]) {
            tv_json_add_null(floors, key, NEEDS);
            continue;
        }
        cJSON *o = cJSON_AddObjectToObject(floors, key);
        if (st->data.deterministic[e]) {
            cJSON_AddNumberToObject(o, "estimate", 0);
            cJSON_AddNumberToObject(o, "se", 0);
        } else {
            bar b = floor_bar(st, e, st->d.h);
            add(o, "estimate", b.e.estimate, "not a number");
            add(o, "se", b.e.se, ONE_TRAJECTORY);
        }
        if (st->d.h) cJSON_AddNumberToObject(o, "r", (double)st->d.h);
        if (isfinite(st->hedged_floor[e].estimate)) {
            cJSON *hedged = cJSON_AddObjectToObject(o, "hedged");
            cJSON_AddNumberToObject(hedged, "estimate", st->hedged_floor[e].estimate);
            add(hedged, "se", st->hedged_floor[e].se, ONE_TRAJECTORY);
            cJSON_AddNumberToObject(hedged, "r", (double)st->floor_reads);
        }
        cJSON_AddBoolToObject(o, "deterministic", st->data.deterministic[e]);
    }
    if (st->identical) {
        cJSON_AddStringToObject(beyond, "verdict", "no");
        cJSON_AddStringToObject(beyond, "because", "the sides are bit-identical");
        return;
    }
    if (st->both_deterministic) {
        cJSON_AddStringToObject(beyond, "verdict", "yes");
        cJSON_AddStringToObject(beyond, "because", "both sides are deterministic, so every difference is theirs");
        return;
    }
    if (st->R < 2) {
        cJSON_AddStringToObject(beyond, "verdict", "cannot tell");
        cJSON_AddStringToObject(beyond, "because", NEEDS);
        return;
    }
    for (int s = 0; s < 2; s++) tv_distance_z(&st->d, s, st->d.h, st->x[s]);
    bar half = bar_of(st, st->x, 0);
    cJSON *o = cJSON_AddObjectToObject(floors, "plugin_at_same_r");
    add(o, "estimate", half.e.estimate, "not a number");
    add(o, "se", half.e.se, ONE_TRAJECTORY);
    cJSON_AddNumberToObject(o, "r", (double)st->d.h);
    /* Paired on the trajectory, which removes most of the spread between trajectories. */
    for (int s = 0; s < 2; s++) {
        const tv_distance_set *set = &st->d.set[s];
        for (int64_t i = 0; i < set->N; i++) {
            int64_t at = (st->d.h - 1) * set->N + i;
            st->x[s][i] -= 0.5 * (set->floor_z[0][at] + set->floor_z[1][at]);
        }
    }
    tv_arms arms = arms_of(st, st->x[0], st->x[1]);
    tv_estimate d = tv_arms_estimate(&arms);
    const char *verdict = isfinite(d.se) ? (d.estimate - d.quantile * d.se > 0 ? "yes" : "no") : "cannot tell";
    cJSON_AddStringToObject(beyond, "verdict", verdict);
    cJSON_AddStringToObject(beyond, "because",
                            "plug-in minus the mean of both floors at the same r, paired by trajectory");
    cJSON_AddNumberToObject(beyond, "difference", d.estimate);
    add(beyond, "se", d.se, ONE_TRAJECTORY);
}

static double both_sets(const tv_calibration_part part[2], size_t offset) {
    double a, b;
    memcpy(&a, (const char *)&part[0] + offset, sizeof a);
    memcpy(&b, (const char *)&part[1] + offset, sizeof b);
    return 0.5 * (a + b);
}
#define BOTH(field) both_sets(st->cal.part[e], offsetof(tv_calibration_part, field))

/* 1 when the average of side e over its first r reads is known. */
static int known(const state *st, int e, int64_t r) {
    return st->data.deterministic[e] || !st->data.folded.side[e] || tv_dataset_knows(&st->data, r);
}

static void add_sigma(state *st, cJSON *report) {
    cJSON *sigma = cJSON_AddObjectToObject(report, "sigma"), *support = cJSON_AddObjectToObject(report, "support");
    for (int e = 0; e < 2; e++) {
        const tv_calibration_part *part = st->cal.part[e];
        cJSON *o = cJSON_AddObjectToObject(sigma, e ? "b" : "a");
        static const char NEEDS[] = "one read: its noise cannot be seen; use --repeats 2 or more";
        static const char NO_CELL[] = "no position where both halves of the reads see the trajectory's token";
        if (st->data.deterministic[e]) {
            cJSON_AddNumberToObject(o, "union_chi2", 0);
            cJSON_AddNumberToObject(o, "realized", 0);
        } else {
            add(o, "union_chi2", tv_calibration_union(&st->cal, e), NEEDS);
            add(o, "realized", tv_calibration_realised(&st->cal, e), st->cal.R[e] ? NO_CELL : NEEDS);
        }
        cJSON_AddNumberToObject(o, "reads", (double)st->cal.R[e]);
        cJSON_AddStringToObject(o, "order", st->o->serving_order ? "serving" : "permuted");
        if (st->cal.R[e]) {
            cJSON_AddNumberToObject(o, "union_chi2_serving_order",
                                    0.5 * (sqrt(part[0].sigma2_union_stored) + sqrt(part[1].sigma2_union_stored)));
            double mean = BOTH(sigma2_union), worst = fmax(part[0].sigma2_union_max, part[1].sigma2_union_max);
            cJSON_AddNumberToObject(o, "cell_p50_over_mean", mean > 0 ? BOTH(sigma2_union_p50) / mean : 0);
            cJSON_AddNumberToObject(o, "cell_p99_over_mean", mean > 0 ? BOTH(sigma2_union_p99) / mean : 0);
            cJSON_AddNumberToObject(o, "cell_max_over_mean", mean > 0 ? worst / mean : 0);
            cJSON_AddNumberToObject(o, "excluded", (double)(part[0].excluded + part[1].excluded));
        }
        if (st->cal.R[e] && st->data.folded.side[e] && !st->data.deterministic[e]) {
            static const char *const NONE[] = {"width_variance",
                                               "width_median",
                                               "kurtosis",
                                               "deviation",
                                               "autocorrelation",
                                               "autocorrelation_permuted",
                                               "autocorrelation_expected",
                                               "drift"};
            for (size_t x = 0; x < sizeof NONE / sizeof *NONE; x++) tv_json_add_null(o, NONE[x], FOLDED);
        } else if (st->cal.R[e]) {
            cJSON_AddNumberToObject(o, "width_variance", BOTH(width_variance));
            cJSON_AddNumberToObject(o, "width_median", BOTH(width_median));
            cJSON_AddNumberToObject(o, "kurtosis", BOTH(kurtosis));
            cJSON *d = cJSON_AddObjectToObject(o, "deviation");
            cJSON_AddNumberToObject(d, "p50", BOTH(deviation_p50));
            cJSON_AddNumberToObject(d, "p90", BOTH(deviation_p90));
            cJSON_AddNumberToObject(d, "p99", BOTH(deviation_p99));
            cJSON_AddNumberToObject(d, "p999", BOTH(deviation_p999));
            cJSON_AddNumberToObject(d, "max", fmax(part[0].deviation_max, part[1].deviation_max));
            cJSON *lags = cJSON_AddArrayToObject(o, "autocorrelation");
            for (int lag = 0; lag < part[0].n_lags; lag++)
                cJSON_AddItemToArray(
                    lags, cJSON_CreateNumber(0.5 * (part[0].autocorrelation[lag] + part[1].autocorrelation[lag])));
            cJSON_AddNumberToObject(o, "autocorrelation_permuted", BOTH(autocorrelation_permuted));
            cJSON_AddNumberToObject(o, "autocorrelation_expected",
                                    st->data.deterministic[e] ? 0 : -1.0 / (double)(st->cal.R[e] - 1));
            cJSON *drift = cJSON_AddObjectToObject(o, "drift");
            cJSON_AddNumberToObject(drift, "ratio", BOTH(drift));
            for (int s = 0; s < 2; s++)
                add(drift, s ? "z_on_b" : "z_on_a", part[s].drift_z,
                    st->data.deterministic[e] ? "the reads carry no noise" : "one trajectory, or reads without noise");
        }
        o = cJSON_AddObjectToObject(support, e ? "b" : "a");
        cJSON_AddNumberToObject(o, "k", (double)(st->readout.readout ? st->readout.readout : st->data.set[0].k[e]));
        const tv_calibration_part *p = &part[0], *q = &part[1];
        int last = p->n_sizes - 1;
        cJSON_AddNumberToObject(o, "r", (double)p->size_r[last]);
        cJSON_AddNumberToObject(o, "mean", 0.5 * (p->size_mean[last] + q->size_mean[last]));
        cJSON_AddNumberToObject(
            o, "max", (double)(p->size_max[last] > q->size_max[last] ? p->size_max[last] : q->size_max[last]));
        cJSON *by_r = cJSON_AddArrayToObject(o, "by_r");
        for (int x = 0; x < p->n_sizes && x < q->n_sizes; x++) {
            if (!known(st, e, p->size_r[x])) continue;
            cJSON *row = cJSON_CreateObject();
            cJSON_AddNumberToObject(row, "r", (double)p->size_r[x]);
            cJSON_AddNumberToObject(row, "mean", 0.5 * (p->size_mean[x] + q->size_mean[x]));
            cJSON_AddNumberToObject(row, "p99",
                                    (double)(p->size_p99[x] > q->size_p99[x] ? p->size_p99[x] : q->size_p99[x]));
            cJSON_AddNumberToObject(row, "max",
                                    (double)(p->size_max[x] > q->size_max[x] ? p->size_max[x] : q->size_max[x]));
            cJSON_AddItemToArray(by_r, row);
        }
    }
}

/* ---- curves ---- */

static void add_curves(state *st, cJSON *report) {
    cJSON *list = cJSON_AddArrayToObject(report, "per_length");
    double half = NAN;
    for (int64_t l = 0; l < st->n_lengths; l++) {
        double *rows[2], mismatch = 0;
        for (int s = 0; s < 2; s++) {
            int64_t N = st->d.set[s].N, dead = 0;
            rows[s] = st->d.set[s].prefix_z + l * N;
            for (int64_t i = 0; i < N; i++) dead += st->d.set[s].dead_at[i] < st->lengths[l];
            mismatch += 0.5 * (double)dead / (double)N;
        }
        bar b = bar_of(st, rows, 0);
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "length", (double)st->lengths[l]);
        cJSON_AddNumberToObject(row, "tv", b.e.estimate);
        add(row, "se", b.e.se, ONE_TRAJECTORY);
        cJSON_AddNumberToObject(row, "mismatch", mismatch);
        cJSON_AddItemToArray(list, row);
        if (isnan(half) && b.e.estimate >= 0.5) half = (double)st->lengths[l];
    }
    add(report, "length_at_half", half, "the plug-in does not reach 0.5 within n tokens");

    list = cJSON_AddArrayToObject(report, "per_repeat");
    for (int64_t x = 0, last = 0; x < MOST_REPEATS; x++) {
        int64_t r = st->R <= MOST_REPEATS ? x + 1 : (x + 1) * st->R / MOST_REPEATS;
        if (r > st->R || r == last || !known(st, TV_A, r) || !known(st, TV_B, r)) continue;
        last = r;
        for (int s = 0; s < 2; s++) tv_distance_z(&st->d, s, r, st->x[s]);
        bar b = bar_of(st, st->x, 0);
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "r", (double)r);
        cJSON_AddNumberToObject(row, "tv", b.e.estimate);
        add(row, "se", b.e.se, ONE_TRAJECTORY);
        for (int e = 0; e < 2; e++) {
            int whole = r <= st->d.h && known(st, e, 2 * r);
            double f = st->data.deterministic[e] ? 0 : whole ? floor_bar(st, e, r).e.estimate : NAN;
            add(row, e ? "floor_b" : "floor_a", f, whole || r > st->d.h ? "needs 2 r reads" : FOLDED);
        }
        cJSON_AddItemToArray(list, row);
    }
}

/* ---- tokens and checks ---- */

static void add_summary(cJSON *o, const char *key, const tv_token_summary *s, double infinite) {
    static const char NONE[] = "no position where both sides recorded a common token";
    cJSON *x = cJSON_AddObjectToObject(o, key);
    add(x, "mean", s->mean, NONE);
    cJSON_AddNumberToObject(x, "p50", s->p50);
    cJSON_AddNumberToObject(x, "p99", s->p99);
    cJSON_AddNumberToObject(x, "max", s->max);
    if (infinite >= 0) cJSON_AddNumberToObject(x, "infinite_share", infinite);
}

static void add_tokens(state *st, cJSON *report) {
    const tv_token_metrics *m = &st->token;
    static const char NONE[] = "no position where both sides recorded anything";
    static const char NO_DELTA[] = "no position where both sides give the trajectory's token mass";
    cJSON *token = cJSON_AddObjectToObject(report, "token");
    add(token, "tv", m->tv.mean, NONE);
    add(token, "kl_ab", m->kl_ab.mean, NONE);
    add(token, "kl_ba", m->kl_ba.mean, NONE);
    add(token, "js", m->js.mean, NONE);
    add(token, "same_top1", m->same_top1, NONE);
    add(token, "topk_overlap", m->topk_overlap, NONE);
    cJSON *d = cJSON_AddObjectToObject(token, "delta_logprob");
    const struct {
        const char *key;
        double value;
    } delta[] = {{"mean", m->delta_mean}, {"rms", m->delta_rms}, {"mean_abs", m->delta_mean_abs}, {"min", m->delta_min},
                 {"p01", m->delta_p01},   {"p05", m->delta_p05}, {"p50", m->delta_p50},           {"p95", m->delta_p95},
                 {"p99", m->delta_p99},   {"max", m->delta_max}};
    for (size_t x = 0; x < sizeof delta / sizeof *delta; x++) add(d, delta[x].key, delta[x].value, NO_DELTA);
    cJSON_AddNumberToObject(d, "positions", (double)m->delta_cells);
    cJSON_AddNumberToObject(d, "exactly_zero", (double)m->delta_zero);
    cJSON *bins = cJSON_AddArrayToObject(d, "histogram");
    for (int x = 0; x < 32; x++) {
        if (!m->delta_octave[x]) continue;
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "from", ldexp(1, x - 24));
        cJSON_AddNumberToObject(row, "to", ldexp(1, x - 23));
        cJSON_AddNumberToObject(row, "count", (double)m->delta_octave[x]);
        cJSON_AddItemToArray(bins, row);
    }
    cJSON *detail = cJSON_AddObjectToObject(token, "detail");
    add_summary(detail, "tv", &m->tv, -1);
    add_summary(detail, "js", &m->js, -1);
    add_summary(detail, "kl_ab", &m->kl_ab, isfinite(m->kl_ab_infinite) ? m->kl_ab_infinite : -1);
    add_summary(detail, "kl_ba", &m->kl_ba, isfinite(m->kl_ba_infinite) ? m->kl_ba_infinite : -1);
    tv_arms arms = arms_of(st, m->mean_tv[0], m->mean_tv[1]);
    add(cJSON_GetObjectItem(detail, "tv"), "se", tv_arms_estimate(&arms).se, ONE_TRAJECTORY);
    cJSON_AddNumberToObject(detail, "positions", (double)m->cells);
    cJSON_AddNumberToObject(detail, "empty_positions", (double)m->empty);
    cJSON *rl = cJSON_AddObjectToObject(token, "rl");
    for (int s = 0; s < 2; s++) {
        add(rl, s ? "k3_kl_ba" : "k3_kl_ab", m->k3[s], NO_DELTA);
        add(rl, s ? "chi2_token_ba" : "chi2_token_ab", m->chi2_token[s], NO_DELTA);
        add(rl, s ? "mult_prob_error_b" : "mult_prob_error_a", m->mult_prob_error[s], NO_DELTA);
    }
    cJSON *flips = cJSON_AddObjectToObject(token, "flips");
    cJSON_AddNumberToObject(flips, "trajectories", m->flip_share);
    add(flips, "first_median", m->first_flip_median, "no flip of the most likely token");
    add(flips, "margin_p50", m->flip_margin_p50, "no flip of the most likely token");
    cJSON *profile = cJSON_AddArrayToObject(token, "by_position");
    for (int64_t x = 0; x < m->profile.n_positions; x++) {
        if (!isfinite(m->profile.tv[x])) continue; /* behind every trajectory's end */
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "from", (double)m->profile.from[x]);
        cJSON_AddNumberToObject(row, "to", (double)m->profile.to[x]);
        cJSON_AddNumberToObject(row, "tv", m->profile.tv[x]);
        cJSON_AddNumberToObject(row, "flips", m->profile.flips[x]);
        cJSON_AddItemToArray(profile, row);
    }
    cJSON *worst = cJSON_AddArrayToObject(report, "worst_tokens");
    for (int64_t x = 0; x < m->n_worst; x++) {
        const tv_worst_token *w = &m->worst[x];
        const tv_set *set = &st->data.set[w->set];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "set", w->set ? "b" : "a");
        cJSON_AddNumberToObject(row, "trajectory",
                                (double)(set->trajectory ? set->trajectory[w->trajectory] : w->trajectory));
        cJSON_AddNumberToObject(row, "position", (double)w->position);
        cJSON_AddNumberToObject(row, "token", w->token);
        cJSON_AddNumberToObject(row, "p_a", w->p[0]);
        cJSON_AddNumberToObject(row, "p_b", w->p[1]);
        add(row, "delta", w->delta, "one side gives the token no mass");
        add(row, "margin", w->margin, "the side that sampled saw fewer than two tokens");
        int absent = !(w->p[0] > 0) || !(w->p[1] > 0);
        add(row, "gap", w->gap,
            absent ? "token_logprobs are not stored, or not finite" : "both sides recorded the token");
        cJSON_AddItemToArray(worst, row);
    }
    add(report, "near_tie_mismatch", m->near_tie_mismatch,
        st->data.folded.any ? FOLDED : "token_logprobs are not stored, so the gap of a missing token is unknown");
}

static void add_checks(state *st, cJSON *report) {
    cJSON *f = cJSON_AddObjectToObject(report, "faithfulness");
    for (int s = 0; s < 2; s++) {
        if (st->has_hedged)
            add(f, s ? "b" : "a", st->hedged.arm[s].test_z,
                st->hedged.arm[s].N < 2 ? ONE_TRAJECTORY : "the companion does not vary: nothing to test");
        else
            tv_json_add_null(f, s ? "b" : "a", "needs the hedged estimator");
    }
    cJSON *checks = cJSON_AddObjectToObject(report, "checks");
    tv_plugin p = tv_plugin_at(&st->d, st->R);
    cJSON_AddNumberToObject(checks, "own_zero_mass_a", p.dead[TV_A][TV_A]);
    cJSON_AddNumberToObject(checks, "own_zero_mass_b", p.dead[TV_B][TV_B]);
    for (int s = 0; s < 2; s++) {
        double largest;
        int64_t missing;
        const char *key = s ? "sampling_agreement_b" : "sampling_agreement_a";
        if (!tv_sampling_agreement(&st->data, s, &largest, &missing)) {
            tv_json_add_null(checks, key, "no records of the sampling are stored");
            continue;
        }
        add(checks, key, largest, "a log-probability is infinite in one of the two");
        cJSON_AddNumberToObject(checks, s ? "sampling_missing_b" : "sampling_missing_a", (double)missing);
    }
    cJSON_AddNumberToObject(checks, "both_dead", 0.5 * (p.dead_both[0] + p.dead_both[1]));
}

/* How each side's passes score what it sampled: by what method, under which other options, and how far off. */
static void add_scoring(const state *st, cJSON *report) {
    cJSON *scoring = cJSON_AddObjectToObject(report, "scoring");
    for (int s = 0; s < 2; s++) {
        const cJSON *passes = st->data.config[s], *drawn = st->data.sampled_config[s], *field;
        const char *method = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(passes, "method"));
        cJSON *o = cJSON_AddObjectToObject(scoring, s ? "b" : "a"), *other = NULL;
        cJSON_AddStringToObject(o, "method", method ? method : "replay");
        if (passes && drawn) other = cJSON_AddArrayToObject(o, "other_options");
        if (!other) tv_json_add_null(o, "other_options", "the data do not say what the trajectories were drawn under");
        for (field = other ? drawn->child : NULL; field; field = field->next) {
            const cJSON *now = cJSON_GetObjectItemCaseSensitive(passes, field->string);
            if (!cJSON_Compare(field, now, 1)) cJSON_AddItemToArray(other, cJSON_CreateString(field->string));
        }
        tv_scoring_bias bias;
        int known = tv_scoring_bias_run(&st->data, s, &bias);
        const char *why = "the tokens' log-probabilities are not stored of both";
        add(o, "mean", known ? bias.mean : NAN, why);
        add(o, "rms", known ? bias.rms : NAN, why);
        add(o, "equal", known ? bias.equal : NAN, why);
    }
}

/* ---- */

/* Scorer "a" and "b" of the view are the two halves of side e's reads, over its own trajectories. */
static tv_status measure_hedged_floor(state *st, int e, tv_err *err) {
    const tv_set *own = &st->data.set[e];
    tv_dataset view = st->data;
    tv_hedged h;
    st->hedged_floor[e].estimate = st->hedged_floor[e].se = NAN;
    if (st->data.deterministic[e] || st->floor_reads < 2) return TV_OK;
    for (int s = 0; s < 2; s++) {
        view.deterministic[s] = 0;
        view.set[s] = *own;
        for (int half = 0; half < 2; half++) {
            tv_set *to = &view.set[s];
            to->ids[half] = own->ids[e], to->lps[half] = own->lps[e], to->probs[half] = own->probs[e];
            to->own_lp[half] = NULL, to->rank[half] = NULL;
            to->k[half] = own->k[e], to->reads[half] = own->reads[e];
            tv_set_skip_reads(to, half, half * st->floor_reads);
            to->reads[half] = st->floor_reads;
        }
    }
    TV_TRY(tv_hedged_run(&view, st->floor_reads, st->readout, NULL, &h, err));
    double *mean = tv_xmalloc((size_t)own->N * sizeof *mean); /* both arms hold the same trajectories */
    for (int64_t i = 0; i < own->N; i++) mean[i] = 0.5 * (h.arm[0].T2pj[i] + h.arm[1].T2pj[i]);
    tv_arms arms = {{mean, mean}, {own->N, own->N}, {own->prompt_index, own->prompt_index}};
    tv_estimate value = tv_arms_estimate(&arms);
    st->hedged_floor[e].estimate = value.estimate;
    st->hedged_floor[e].se = value.se * sqrt(2); /* not two independent arms but one */
    free(mean);
    tv_hedged_free(&h);
    return TV_OK;
}

static tv_status measure(state *st, tv_err *err) {
    tv_dataset *data = &st->data;
    const tv_report_options *o = st->o;
    TV_TRY(tv_reads_check(data, 1, st->readout, err));
    for (int e = 0; e < 2; e++)
        if (!data->deterministic[e]) data->deterministic[e] = tv_reads_identical(data, e);
    st->both_deterministic = data->deterministic[0] && data->deterministic[1];
    st->R = o->reads ? o->reads : tv_reads_usable(data);
    if (data->folded.R && st->R != data->folded.R)
        return TV_FAIL(err, TV_EARG, "reads = %lld, but the passes were folded (--keep-passes no) for R = %lld",
                       (long long)st->R, (long long)data->folded.R);
    TV_TRY(tv_reads_check(data, st->R, st->readout, err));
    st->identical = tv_sides_compare(data, &st->differing, &st->compared);
    int64_t last = 0;
    for (int64_t x = 0; x < MOST_LENGTHS; x++) {
        int64_t l = data->n <= MOST_LENGTHS ? x + 1 : ((x + 1) * data->n + MOST_LENGTHS - 1) / MOST_LENGTHS;
        if (l <= data->n && l > last) st->lengths[st->n_lengths++] = last = l;
    }
    tv_distance_options d = {.reads = st->R,
                             .readout = st->readout,
                             .lengths = st->lengths,
                             .n_lengths = st->n_lengths,
                             .floors = 1,
                             .permute_floors = !o->serving_order,
                             .seed = o->seed};
    TV_TRY(tv_distance_run(data, &d, &st->d, err));
    tv_calibrate_options c = {
        .reads = st->R, .readout = st->readout, .stored_order = o->serving_order, .seed = o->seed};
    TV_TRY(tv_calibrate(data, &c, &st->cal, err));
    TV_TRY(tv_token_metrics_run(data, st->R, st->readout, &st->token, err));
    if (st->R >= 2) {
        TV_TRY(tv_hedged_run(data, st->R - st->R % 2, st->readout, NULL, &st->hedged, err));
        st->has_hedged = 1;
    }
    st->is_truncated = tv_truncated_applies(data);
    if (st->is_truncated) tv_truncated_run(data, st->R, &st->bounds);
    st->floor_reads = st->R / 2 - st->R / 2 % 2;
    for (int e = 0; e < 2; e++) TV_TRY(measure_hedged_floor(st, e, err));
    for (int s = 0; s < 2; s++) {
        st->x[s] = malloc((size_t)data->set[s].N * sizeof(double));
        if (!st->x[s]) return TV_FAIL(err, TV_ENOMEM, "no memory for %lld trajectories", (long long)data->set[s].N);
    }
    return TV_OK;
}

static tv_status write_down(state *st, cJSON *report, tv_err *err) {
    const tv_dataset *data = &st->data;
    cJSON_AddNumberToObject(report, "n", (double)data->n);
    cJSON_AddNumberToObject(report, "N", (double)data->set[0].N);
    if (data->set[0].N != data->set[1].N) {
        cJSON_AddNumberToObject(report, "N_a", (double)data->set[0].N);
        cJSON_AddNumberToObject(report, "N_b", (double)data->set[1].N);
    }
    cJSON_AddNumberToObject(report, "R", (double)st->R);
    cJSON *stored = cJSON_AddObjectToObject(report, "reads_stored"),
          *fixed = cJSON_AddObjectToObject(report, "deterministic");
    for (int e = 0; e < 2; e++) {
        cJSON_AddNumberToObject(stored, e ? "b" : "a", (double)tv_reads_stored(data, e));
        cJSON_AddBoolToObject(fixed, e ? "b" : "a", data->deterministic[e]);
    }
    cJSON_AddNumberToObject(report, "readout", (double)st->readout.readout);
    add(report, "temperature", data->temperature, "unknown, or each side has its own (a.temperature, b.temperature)");
    cJSON_AddBoolToObject(report, "bit_identical", st->identical);
    static const char APART[] = "the sides' passes were folded apart (--keep-passes no), so no two met";
    add(report, "differing_values", st->compared < 0 && st->differing ? NAN : (double)st->differing, APART);
    add(report, "compared_values", st->compared < 0 ? NAN : (double)st->compared, APART);
    if (data->folded.any) {
        cJSON *folded = cJSON_AddObjectToObject(report, "folded");
        for (int e = 0; e < 2; e++) cJSON_AddBoolToObject(folded, e ? "b" : "a", data->folded.side[e]);
        cJSON_AddNumberToObject(folded, "readout", data->folded.readout);
        cJSON_AddStringToObject(
            folded, "note",
            "--keep-passes no: averages exist at the reads where a fold ends, in serving order; what "
            "needs each pass is null or left out");
    }
    headline head = {0};
    add_estimators(st, report, &head);
    cJSON *tv = cJSON_GetObjectItem(report, "tv");
    tv_status status = add_bootstrap(st, tv, &head, err);
    cJSON_AddNumberToObject(tv, "clusters", (double)head.value.e.clusters);
    free(head.method);
    if (status != TV_OK) return status;
    add_floors(st, report);
    add_sigma(st, report);
    add_curves(st, report);
    add_tokens(st, report);
    add_checks(st, report);
    add_scoring(st, report);
    return TV_OK;
}

tv_status tv_report_build(const tv_dataset *data, const tv_report_options *options, cJSON **report, tv_err *err) {
    static const tv_report_options DEFAULTS = {0};
    state *st = tv_xcalloc(1, sizeof *st);
    *report = NULL;
    st->data = *data;
    st->options = options ? *options : DEFAULTS;
    st->options.serving_order |= data->folded.any;
    st->o = &st->options;
    st->readout = tv_readout_choose(data, st->o->readout);
    tv_status status =
        st->o->reads < 0 ? TV_FAIL(err, TV_EARG, "reads = %lld", (long long)st->o->reads) : measure(st, err);
    if (status == TV_OK) {
        cJSON *json = cJSON_CreateObject();
        status = write_down(st, json, err);
        if (status == TV_OK)
            *report = json;
        else
            cJSON_Delete(json);
    }
    tv_distance_free(&st->d);
    tv_truncated_free(&st->bounds);
    tv_token_metrics_free(&st->token);
    if (st->has_hedged) tv_hedged_free(&st->hedged);
    free(st->x[0]);
    free(st->x[1]);
    free(st);
    return status;
}
