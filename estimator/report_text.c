/* The report on a terminal: six answers, each with the numbers behind it, within 98 columns of plain ASCII. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/report.h"
#include "estimator/report_view.h"

enum { INDENT = 21, WIDTH = 98, PLOT_W = 64, PLOT_H = 8, GAUGE_W = 60 };

/* Prints words from column INDENT on, wrapped before WIDTH; the cursor is at that column already. */
static void wrap(FILE *out, const char *text) {
    int column = INDENT;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column > INDENT && column + 1 + (int)word > WIDTH) {
            fprintf(out, "\n%*s", INDENT, "");
            column = INDENT;
        } else if (column > INDENT) {
            fputc(' ', out);
            column++;
        }
        /* Words beyond a line's width (paths) are cut hard. */
        for (size_t i = 0; i < word; i++) {
            if (column == WIDTH) {
                fprintf(out, "\n%*s", INDENT, "");
                column = INDENT;
            }
            unsigned char c = (unsigned char)text[i];
            fputc(c < 32 || c == 127 ? '?' : c, out); /* names come from files: no terminal codes */
            column++;
        }
        text += word;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void question(FILE *out, const tv_view_answers *answers, int which) {
    fprintf(out, "\n%d  %-*s", which + 1, INDENT - 3, tv_view_questions[which]);
    wrap(out, answers->text[which]);
}

static void line(FILE *out, const char *text) {
    fprintf(out, "%*s", INDENT, "");
    wrap(out, text);
}

/* 0 |.......====#====......| 1 */
static void gauge(FILE *out, const cJSON *r) {
    const cJSON *ci = tv_view_item(r, "tv.ci95");
    if (!cJSON_IsArray(ci)) return;
    char bar[GAUGE_W + 1];
    int low = (int)lround(cJSON_GetArrayItem(ci, 0)->valuedouble * (GAUGE_W - 1)),
        high = (int)lround(cJSON_GetArrayItem(ci, 1)->valuedouble * (GAUGE_W - 1));
    int at = (int)lround(tv_view_number(r, "tv.estimate") * (GAUGE_W - 1));
    for (int i = 0; i < GAUGE_W; i++) bar[i] = i == at ? '#' : i >= low && i <= high ? '=' : '.';
    bar[GAUGE_W] = 0;
    fprintf(out, "%*s0 |%s| 1\n", INDENT, "", bar);
}

static void estimators(FILE *out, const cJSON *r) {
    static const char *const KEY[] = {"hedged", "plugin", "jackknife", "split_sign"};
    static const char *const NAME[] = {"hedged", "plug-in", "jackknife", "split-sign"};
    const char *leads = tv_view_string(r, "tv.estimator");
    fprintf(out, "%*s  %-11s %9s %9s  %s\n", INDENT, "", "estimator", "TV", "se", "95% interval");
    for (int i = 0; i < 4; i++) {
        const cJSON *e = tv_view_item(tv_view_item(r, "estimators"), KEY[i]);
        double se = tv_view_number(e, "se");
        char *value = tv_view_text(tv_view_number(e, "estimate"), se), *bar = tv_view_text(se, se),
             *ci = tv_view_interval(tv_view_item(e, "ci95"), se);
        fprintf(out, "%*s%c %-11s %9s %9s  %s%s\n", INDENT, "", strcmp(leads, KEY[i]) == 0 ? '>' : ' ', NAME[i], value,
                bar, ci, i == 1 && strstr(tv_view_string(e, "interval"), "bracket") ? "  bracket" : "");
        free(value);
        free(bar);
        free(ci);
    }
    char *text = tv_xprintf("Leads: %s.", tv_view_string(r, "tv.method"));
    line(out, text);
    free(text);
    double za = tv_view_number(r, "faithfulness.a"), zb = tv_view_number(r, "faithfulness.b");
    if (isfinite(za) && isfinite(zb)) {
        text = tv_xprintf("Faithfulness z: a %+.1f, b %+.1f.", za, zb);
        line(out, text);
        free(text);
    }
}

static void noise(FILE *out, const cJSON *r) {
    for (int e = 0; e < 2; e++) {
        const cJSON *s = tv_view_item(r, e ? "sigma.b" : "sigma.a"),
                    *k = tv_view_item(r, e ? "support.b" : "support.a");
        double u = tv_view_number(s, "union_chi2"), q = tv_view_number(s, "realized");
        if (!isfinite(u)) continue;
        const double kurtosis = tv_view_number(s, "kurtosis");
        char *tails = isfinite(kurtosis) ? tv_xprintf("kurtosis %.1f; ", kurtosis) : tv_xstrdup("");
        char *text = u == 0 ? tv_xprintf("side %c: sigma 0, every read the same", 'a' + e)
                            : tv_xprintf("side %c: sigma %.2e union, %.2e realized; %s%.1f ids in %.0f reads", 'a' + e,
                                         u, q, tails, tv_view_number(k, "mean"), tv_view_number(k, "r"));
        line(out, text);
        free(text);
        free(tails);
    }
}

static void differences(FILE *out, const tv_view_differences *d) {
    if (d->n < 2) return;
    int widest = 4;
    for (int i = 0; i < d->n; i++)
        if ((int)strlen(d->item[i].key) > widest) widest = (int)strlen(d->item[i].key);
    if (widest > 28) widest = 28;
    for (int i = 0; i < d->n && i < 12; i++)
        fprintf(out, "%*s%-*.*s  %.20s | %.20s\n", INDENT, "", widest, widest, d->item[i].key, d->item[i].a,
                d->item[i].b);
    if (d->n > 12) fprintf(out, "%*sand %d more\n", INDENT, "", d->n - 12);
}

/* What libraries chose, as far as a terminal can bear it. */
static void libraries(FILE *out, const cJSON *r) {
    enum { MOST = 8 };
    tv_view_library_list lists[2];
    for (int i = 0, n = tv_view_libraries(r, lists); i < n; i++) {
        const int length = cJSON_GetArraySize(lists[i].list);
        fprintf(out, "%*slibraries of %s:\n", INDENT, "", lists[i].who);
        const cJSON *item = lists[i].list->child;
        for (int j = 0; j < MOST && item; j++, item = item->next)
            if (cJSON_IsString(item)) line(out, item->valuestring);
        if (length > MOST) fprintf(out, "%*sand %d more in report.json\n", INDENT, "", length - MOST);
    }
}

/* TV (*) and mismatch share (x) against length. */
static void curve(FILE *out, const cJSON *r) {
    const cJSON *list = tv_view_item(r, "per_length");
    int n = cJSON_GetArraySize(list);
    double n_max = tv_view_number(r, "n"), top = 0;
    if (n < 2 || !(n_max > 1)) return;
    char grid[PLOT_H][PLOT_W + 1];
    for (int y = 0; y < PLOT_H; y++) memset(grid[y], ' ', PLOT_W), grid[y][PLOT_W] = 0;
    for (const cJSON *p = list->child; p; p = p->next)
        top = fmax(top, fmax(tv_view_number(p, "tv"), tv_view_number(p, "mismatch")));
    if (!(top > 0)) return;
    for (int pass = 0; pass < 2; pass++) { /* the TV over the mismatch share where they meet */
        const char *key = pass ? "tv" : "mismatch";
        const cJSON *p = list->child;
        for (int x = 0; x < PLOT_W; x++) { /* between two points: the straight line */
            double at = 1 + x * (n_max - 1) / (PLOT_W - 1);
            while (p->next && tv_view_number(p->next, "length") <= at) p = p->next;
            double v = tv_view_number(p, key), from = tv_view_number(p, "length");
            if (p->next)
                v += (tv_view_number(p->next, key) - v) * fmax(at - from, 0) /
                     (tv_view_number(p->next, "length") - from);
            int y = (int)lround(v / top * (PLOT_H - 1));
            if (y >= 0 && y < PLOT_H) grid[PLOT_H - 1 - y][x] = pass ? '*' : 'x';
        }
    }
    for (int y = 0; y < PLOT_H; y++) {
        if (y == 0 || y == PLOT_H - 1)
            fprintf(out, "%*s%6.3f |", INDENT - 1, "", y == 0 ? top : 0.0);
        else
            fprintf(out, "%*s%6s |", INDENT - 1, "", "");
        int last = PLOT_W;
        while (last > 0 && grid[y][last - 1] == ' ') last--;
        fprintf(out, "%.*s\n", last, grid[y]);
    }
    fprintf(out, "%*s%6s +", INDENT - 1, "", "");
    for (int x = 0; x < PLOT_W; x++) fputc('-', out);
    fprintf(out, "\n%*s1%*.0f\n", INDENT + 7, "", PLOT_W - 1, n_max);
    fprintf(out, "%*s* plug-in TV, x share of mismatches, against length in tokens\n", INDENT, "");
}

static void tokens(FILE *out, const cJSON *r) {
    static const struct {
        const char *name, *path;
        int percent;
    } ROW[] = {{"KL(a||b)", "token.kl_ab", 0},
               {"KL(b||a)", "token.kl_ba", 0},
               {"JS", "token.js", 0},
               {"same top", "token.same_top1", 1},
               {"top-k overlap", "token.topk_overlap", 1},
               {"k3 KL", "token.rl.k3_kl_ab", 0},
               {"dlogp rms", "token.delta_logprob.rms", 0},
               {"dlogp 1%", "token.delta_logprob.p01", 0},
               {"dlogp 99%", "token.delta_logprob.p99", 0}};
    for (size_t i = 0; i < sizeof ROW / sizeof *ROW; i++) {
        double v = tv_view_number(r, ROW[i].path);
        char text[32] = "-";
        if (isfinite(v) && ROW[i].percent)
            snprintf(text, sizeof text, "%.2f%%", 100 * v);
        else if (isfinite(v))
            snprintf(text, sizeof text, "%.6f", v);
        int end = i % 3 == 2;
        fprintf(out, "%*s%-14s%*s%s", i % 3 == 0 ? INDENT : 0, "", ROW[i].name, end ? 0 : -12, text, end ? "\n" : "");
    }
}

static void worst(FILE *out, const cJSON *r) {
    const cJSON *list = tv_view_item(r, "worst_tokens");
    if (cJSON_GetArraySize(list) == 0) return;
    fprintf(out, "%*sworst tokens: set  trajectory  position   token      p(a)      p(b)  gap/nats\n", INDENT, "");
    int i = 0;
    for (const cJSON *w = list->child; w && i < 5; w = w->next, i++) {
        char *a = tv_view_text(tv_view_number(w, "p_a"), NAN), *b = tv_view_text(tv_view_number(w, "p_b"), NAN),
             *gap = tv_view_text(tv_view_number(w, "gap"), NAN);
        fprintf(out, "%*s%17s  %10.0f  %8.0f  %6.0f  %8s  %8s  %8s\n", INDENT, "", tv_view_string(w, "set"),
                tv_view_number(w, "trajectory"), tv_view_number(w, "position"), tv_view_number(w, "token"), a, b, gap);
        free(a);
        free(b);
        free(gap);
    }
}

static void mismatches(FILE *out, const cJSON *r) {
    double near = tv_view_number(r, "near_tie_mismatch"), all = tv_view_number(r, "tv.mismatch");
    double own_a = tv_view_number(r, "checks.own_zero_mass_a"), own_b = tv_view_number(r, "checks.own_zero_mass_b");
    if (all > 0 && isfinite(near)) {
        char *text = tv_xprintf("Of the %.1f%% mismatches, %.1f%% are near ties: the missing token lay within one bf16 "
                                "step of the last slot.",
                                100 * all, 100 * near);
        line(out, text);
        free(text);
    }
    if ((own_a > 0 || own_b > 0) && !tv_view_item(r, "truncated")) { /* cut lists lack some by nature */
        char *text = tv_xprintf("Check: a side's replay gives no mass to its own token in %.1f%% (a) and %.1f%% (b) of "
                                "its trajectories; under the "
                                "sampling condition this must be 0.",
                                100 * own_a, 100 * own_b);
        line(out, text);
        free(text);
    }
    for (int s = 0; s < 2; s++) {
        double d = tv_view_number(r, s ? "checks.sampling_agreement_b" : "checks.sampling_agreement_a");
        if (!(d > 0)) continue;
        char *text = tv_xprintf("Side %c's replay differs from its sampling by up to %.3g nats.", 'a' + s, d);
        line(out, text);
        free(text);
    }
}

void tv_report_print(const cJSON *report, FILE *out) {
    tv_view_differences d = tv_view_diff(report);
    tv_view_answers answers = tv_view_answer(report, &d);
    char *subject = tv_view_subject(report);
    int identical = cJSON_IsTrue(tv_view_item(report, "bit_identical"));
    fprintf(out, "Total variation between two serving configurations\n");
    for (const char *c = subject; *c; c++) fputc((unsigned char)*c < 32 || *c == 127 ? '?' : *c, out);
    fputc('\n', out);
    question(out, &answers, TV_ANSWER_IDENTICAL);
    question(out, &answers, TV_ANSWER_DISTANCE);
    if (!identical) {
        gauge(out, report);
        estimators(out, report);
    }
    for (int e = 0; e < 2; e++) {
        char *text = tv_view_scoring(report, e);
        if (text) line(out, text);
        free(text);
    }
    question(out, &answers, TV_ANSWER_NOISE);
    noise(out, report);
    question(out, &answers, TV_ANSWER_SWITCH);
    differences(out, &d);
    libraries(out, report);
    question(out, &answers, TV_ANSWER_WHERE);
    mismatches(out, report);
    if (!identical) {
        curve(out, report);
        tokens(out, report);
        worst(out, report);
    }
    question(out, &answers, TV_ANSWER_CI);
    free(subject);
    tv_view_answers_free(&answers);
    tv_view_diff_free(&d);
}
