#include "estimator/report_view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

const char *const tv_view_questions[TV_ANSWERS] = {"Bit-identical?", "How far apart?", "More than noise?",
                                                   "Which switch?",  "Where?",         "Can CI watch it?"};

const cJSON *tv_view_item(const cJSON *json, const char *path) {
    char key[64];
    while (json && *path) {
        size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        json = cJSON_GetObjectItemCaseSensitive(json, key);
        path += length + (path[length] == '.');
    }
    return json;
}

double tv_view_number(const cJSON *json, const char *path) {
    const cJSON *item = tv_view_item(json, path);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

const char *tv_view_string(const cJSON *json, const char *path) {
    const cJSON *item = tv_view_item(json, path);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static int digits_for(double se) {
    if (!(se > 0)) return 4;
    double d = ceil(-log10(se)) + 1;
    return d < 2 ? 2 : d > 6 ? 6 : (int)d;
}

char *tv_view_text(double value, double se) {
    if (!isfinite(value)) return tv_xstrdup("-");
    if (value == 0) return tv_xstrdup("0");
    if (!(se > 0) && fabs(value) < 1e-3) return tv_xprintf("%.2e", value);
    return tv_xprintf("%.*f", digits_for(se), value);
}

char *tv_view_interval(const cJSON *interval, double se) {
    if (!cJSON_IsArray(interval) || cJSON_GetArraySize(interval) != 2) return tv_xstrdup("-");
    char *low = tv_view_text(cJSON_GetArrayItem(interval, 0)->valuedouble, se);
    char *high = tv_view_text(cJSON_GetArrayItem(interval, 1)->valuedouble, se);
    char *text = tv_xprintf("[%s, %s]", low, high);
    free(low);
    free(high);
    return text;
}

char *tv_view_count(double count) {
    if (!isfinite(count)) return tv_xstrdup("-");
    char plain[32], grouped[48];
    snprintf(plain, sizeof plain, "%.0f", count);
    size_t length = strlen(plain), at = 0;
    for (size_t i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) grouped[at++] = ',';
        grouped[at++] = plain[i];
    }
    grouped[at] = 0;
    return tv_xstrdup(grouped);
}

/* ---- differences of the configurations ---- */

static char *scalar(const cJSON *item) {
    if (!item) return tv_xstrdup("(not set)");
    if (cJSON_IsString(item)) return tv_xstrdup(item->valuestring);
    char *text = cJSON_PrintUnformatted(item);
    return text ? text : tv_xstrdup("?");
}

static void diff_add(tv_view_differences *d, const char *key, const cJSON *a, const cJSON *b) {
    d->item = tv_xrealloc(d->item, (size_t)(d->n + 1) * sizeof *d->item);
    d->item[d->n++] = (tv_view_difference){tv_xstrdup(key), scalar(a), scalar(b)};
}

static void diff_walk(tv_view_differences *d, const char *prefix, const cJSON *a, const cJSON *b) {
    for (int side = 0; side < 2; side++) {
        const cJSON *from = side ? b : a, *other = side ? a : b;
        for (const cJSON *c = cJSON_IsObject(from) ? from->child : NULL; c; c = c->next) {
            const cJSON *o = cJSON_IsObject(other) ? cJSON_GetObjectItemCaseSensitive(other, c->string) : NULL;
            if (side && o) continue; /* met from a */
            char *key = tv_xprintf("%s%s%s", prefix, *prefix ? "." : "", c->string);
            if (cJSON_IsObject(c) && (!o || cJSON_IsObject(o)))
                diff_walk(d, key, side ? o : c, side ? c : o);
            else if (!o || !cJSON_Compare(c, o, 1))
                diff_add(d, key, side ? o : c, side ? c : o);
            free(key);
        }
    }
}

tv_view_differences tv_view_diff(const cJSON *report) {
    tv_view_differences d = {NULL, 0, 0};
    const cJSON *a = tv_view_item(report, "a"), *b = tv_view_item(report, "b");
    d.known = cJSON_IsObject(a) && cJSON_IsObject(b);
    if (d.known) diff_walk(&d, "", a, b);
    return d;
}

void tv_view_diff_free(tv_view_differences *d) {
    for (int i = 0; i < d->n; i++) {
        free(d->item[i].key);
        free(d->item[i].a);
        free(d->item[i].b);
    }
    free(d->item);
    memset(d, 0, sizeof *d);
}

int tv_view_libraries(const cJSON *report, tv_view_library_list lists[2]) {
    const cJSON *a = tv_view_item(report, "libraries.a"), *b = tv_view_item(report, "libraries.b");
    int n = 0;
    if (a && b && cJSON_Compare(a, b, 1)) {
        lists[n++] = (tv_view_library_list){"both sides", a};
    } else {
        if (a) lists[n++] = (tv_view_library_list){"side a", a};
        if (b) lists[n++] = (tv_view_library_list){"side b", b};
    }
    return n;
}

/* ---- answers ---- */

static char *answer_identical(const cJSON *r) {
    char *differing = tv_view_count(tv_view_number(r, "differing_values")),
         *of = tv_view_count(tv_view_number(r, "compared_values"));
    double share = 100 * tv_view_number(r, "differing_values") / tv_view_number(r, "compared_values");
    const int same = cJSON_IsTrue(tv_view_item(r, "bit_identical"));
    char *text = isnan(share) && same ? tv_xstrdup("Yes: all recorded values of both sides agree to the bit.")
                 : isnan(share) ? tv_xstrdup("No: recorded values differ; the sides' passes were folded apart, so "
                                             "nobody counted how many.")
                 : same         ? tv_xprintf("Yes: all %s recorded values of both sides agree to the bit.", of)
                                : tv_xprintf("No: %s of %s recorded values differ (%.3g%%).", differing, of, share);
    free(differing);
    free(of);
    return text;
}

static char *answer_distance(const cJSON *r) {
    double tv = tv_view_number(r, "tv.estimate"), se = tv_view_number(r, "tv.se");
    double low = tv_view_number(r, "truncated.low"), high = tv_view_number(r, "truncated.high");
    if (high > low) {
        char *from = tv_view_text(low, NAN), *to = tv_view_text(high, NAN),
             *around = tv_view_interval(tv_view_item(r, "tv.ci95"), se);
        char *text =
            tv_xprintf("TV lies between %s and %s, with sampling error 95%% within %s: the records list only the "
                       "most likely tokens, and some that were sampled are not among them.",
                       from, to, around);
        free(from);
        free(to);
        free(around);
        return text;
    }
    if (cJSON_IsTrue(tv_view_item(r, "bit_identical")))
        return tv_xstrdup("TV = 0 exactly. No text can tell the two sides apart.");
    char *value = tv_view_text(tv, se), *interval = tv_view_interval(tv_view_item(r, "tv.ci95"), se);
    char *text = isfinite(se)
                     ? tv_xprintf("TV = %s, 95%% interval %s. Shown one continuation of %.0f tokens, the best possible "
                                  "judge names the side "
                                  "that wrote it %.0f%% of the time; a coin manages 50%%.",
                                  value, interval, tv_view_number(r, "n"), 50 * (1 + tv))
                     : tv_xprintf("TV = %s, without an error bar: %s.", value, tv_view_string(r, "tv.se_reason"));
    free(value);
    free(interval);
    return text;
}

static char *floor_text(const cJSON *r, const char *key) {
    char path[32];
    snprintf(path, sizeof path, "floor.%s.estimate", key);
    double v = tv_view_number(r, path);
    snprintf(path, sizeof path, "floor.%s.se", key);
    return tv_view_text(v, tv_view_number(r, path));
}

static char *answer_noise(const cJSON *r) {
    const char *verdict = tv_view_string(r, "beyond_noise.verdict");
    int det_a = cJSON_IsTrue(tv_view_item(r, "deterministic.a")),
        det_b = cJSON_IsTrue(tv_view_item(r, "deterministic.b"));
    if (cJSON_IsTrue(tv_view_item(r, "bit_identical")))
        return tv_xstrdup(
            det_a && det_b
                ? "There is nothing to compare, and both sides repeat themselves to the bit: floors of exactly 0."
                : "There is no distance to compare with noise: the sides agree pass by pass.");
    if (det_a && det_b)
        return tv_xstrdup("Yes: both sides are deterministic (repeated passes agree to the bit, floors of exactly 0), "
                          "so every difference is theirs.");
    if (strcmp(verdict, "yes") != 0 && strcmp(verdict, "no") != 0)
        return tv_xstrdup("Cannot tell: one read a side shows no noise. Repeat the passes (--repeats 2 or more).");
    char *a = floor_text(r, "a"), *b = floor_text(r, "b");
    char *half = tv_view_text(tv_view_number(r, "floor.plugin_at_same_r.estimate"),
                              tv_view_number(r, "floor.plugin_at_same_r.se"));
    char *text = tv_xprintf("%s. At r = %.0f reads the plug-in reads %s between the sides, %s for a against itself%s, "
                            "%s for b against itself%s.",
                            *verdict == 'y' ? "Yes" : "No: the sides differ by no more than each differs from itself",
                            tv_view_number(r, "floor.plugin_at_same_r.r"), half, a, det_a ? " (deterministic)" : "", b,
                            det_b ? " (deterministic)" : "");
    free(a);
    free(b);
    free(half);
    return text;
}

static char *answer_switch(const tv_view_differences *d) {
    if (!d->known) return tv_xstrdup("These traces carry no configurations to compare.");
    if (d->n == 0) return tv_xstrdup("None: both sides run under the same configuration.");
    if (d->n == 1)
        return tv_xprintf("One field differs, so it is the cause: %s is %s on side a and %s on side b.", d->item[0].key,
                          d->item[0].a, d->item[0].b);
    return tv_xprintf("%d fields differ (below). \"tvgpu attribute\" flips one at a time and ranks them.", d->n);
}

static char *answer_where(const cJSON *r) {
    if (cJSON_IsTrue(tv_view_item(r, "bit_identical"))) return tv_xstrdup("Nowhere.");
    char *tv = tv_view_text(tv_view_number(r, "token.tv"), NAN);
    double flips = tv_view_number(r, "token.flips.trajectories"), first = tv_view_number(r, "token.flips.first_median");
    double mismatch = tv_view_number(r, "tv.mismatch"), half = tv_view_number(r, "length_at_half");
    char *flip =
        isfinite(first)
            ? tv_xprintf(" Greedy choices part ways in %.0f%% of the trajectories, first at position %.0f (median).",
                         100 * flips, first)
            : tv_xstrdup(" The most likely token never changes.");
    char *reach = isfinite(half) ? tv_xprintf(" The plug-in passes 0.5 at length %.0f.", half) : tv_xstrdup("");
    char *text = tv_xprintf("Next-token distributions are %s apart on average.%s%s %.1f%% of the trajectories hold a "
                            "token that one side's readout lacks.",
                            tv, flip, reach, 100 * mismatch);
    free(tv);
    free(flip);
    free(reach);
    return text;
}

static char *answer_ci(const cJSON *r) {
    const cJSON *ci = tv_view_item(r, "tv.ci95");
    if (!cJSON_IsArray(ci))
        return tv_xstrdup(
            "Not yet: without an error bar --fail-above cannot decide (exit code 4). Sample more trajectories.");
    if (cJSON_IsTrue(tv_view_item(r, "bit_identical")))
        return tv_xstrdup("Yes: --fail-above 0 passes (exit code 0) as long as the sides stay bit-identical, and fails "
                          "(3) when they clearly part.");
    double high = cJSON_GetArrayItem(ci, 1)->valuedouble, step = high < 0.01 ? 0.001 : 0.01,
           limit = ceil(high / step + 1e-9) * step;
    return tv_xprintf("Yes: --fail-above %.*f passes today (exit code 0). It fails (3) once the whole interval lies "
                      "above, and says so (4) when the "
                      "data cannot tell.",
                      step < 0.01 ? 3 : 2, fmin(limit, 1));
}

tv_view_answers tv_view_answer(const cJSON *report, const tv_view_differences *d) {
    return (tv_view_answers){{answer_identical(report), answer_distance(report), answer_noise(report), answer_switch(d),
                              answer_where(report), answer_ci(report)}};
}

void tv_view_answers_free(tv_view_answers *a) {
    for (int i = 0; i < TV_ANSWERS; i++) free(a->text[i]);
}

char *tv_view_scoring(const cJSON *report, int e) {
    const cJSON *o = tv_view_item(report, e ? "scoring.b" : "scoring.a"), *field;
    const int prefill = !strcmp(tv_view_string(o, "method"), "prefill");
    if (!prefill && cJSON_GetArraySize(tv_view_item(o, "other_options")) == 0) return NULL;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    fprintf(f, "Side %c scored each text ", 'a' + e);
    if (prefill) fputs("at once (prefill), not by the decode path that wrote it", f);
    const char *before = prefill ? ", and under another " : "under another ";
    cJSON_ArrayForEach(field, tv_view_item(o, "other_options")) {
        fprintf(f, "%s%s", before, field->valuestring);
        before = ", ";
    }
    if (isfinite(tv_view_number(o, "mean")))
        fprintf(f,
                ": its own tokens' log-probabilities move by %+.2g nats on average (rms %.2g; %.1f%% agree to the bit)",
                tv_view_number(o, "mean"), tv_view_number(o, "rms"), 100 * tv_view_number(o, "equal"));
    fputs(". The estimate is of these scores on those texts, not the TV of two samplers.", f);
    fclose(f);
    return text;
}

char *tv_view_subject(const cJSON *report) {
    const cJSON *model = tv_view_item(report, "model");
    const char *name = cJSON_IsString(model) ? model->valuestring : tv_view_string(model, "name");
    if (!*name) name = tv_view_string(model, "path");
    double N = tv_view_number(report, "N"), N_a = tv_view_number(report, "N_a"), N_b = tv_view_number(report, "N_b"),
           R = tv_view_number(report, "R");
    return tv_xprintf("%s%s%.0f tokens a trajectory, %.0f + %.0f trajectories, %.0f read%s a side", name,
                      *name ? ": " : "", tv_view_number(report, "n"), isfinite(N_a) ? N_a : N, isfinite(N_b) ? N_b : N,
                      R, R == 1 ? "" : "s");
}
