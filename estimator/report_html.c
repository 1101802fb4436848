/* The report as one page that needs nothing else: inline styles, and plots drawn by gnuplot as inline SVG. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/gnuplot.h"
#include "estimator/report.h"
#include "estimator/report_view.h"

static const char STYLE[] =
    ":root{color-scheme:light "
    "dark;--bg:#fdfdfb;--ink:#1d2126;--soft:#5c6570;--line:#dcdfe3;--card:#f4f5f3;--a:#2f6fde;--b:#d9742b;--m:#8a8f98}"
    "@media(prefers-color-scheme:dark){:root{--bg:#14171b;--ink:#e6e8ea;--soft:#9aa3ad;--line:#2e343b;--card:#1c2126}}"
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,sans-serif}"
    "main{max-width:50rem;margin:0 auto;padding:1.2rem 1rem 3rem}h1{font-size:1.25rem;margin:.4rem 0 0}"
    "h2{font-size:1.05rem;margin:2.2rem 0 .3rem;padding-top:.9rem;border-top:1px solid var(--line)}h2 "
    "b{color:var(--soft);font-weight:600;margin-right:.5em}"
    ".soft{color:var(--soft);font-size:.92rem}.big{font-size:2.6rem;font-weight:650;line-height:1.1;margin:.9rem 0 "
    ".1rem;font-variant-numeric:tabular-nums}"
    ".gauge{position:relative;height:.8rem;background:var(--card);border:1px solid "
    "var(--line);border-radius:.4rem;margin:.8rem 0 .2rem}"
    ".gauge i{position:absolute;top:0;bottom:0;background:var(--a);opacity:.35;border-radius:.3rem;min-width:2px}"
    ".gauge "
    "u{position:absolute;top:-.25rem;bottom:-.25rem;width:3px;margin-left:-1.5px;background:var(--a);border-radius:2px}"
    ".ends{display:flex;justify-content:space-between;font-size:.8rem;color:var(--soft)}"
    "nav ol{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;padding:0;margin:1rem 0 0;list-style-position:inside}"
    "a{color:inherit}a:focus-visible,summary:focus-visible,.wide:focus-visible{outline:2px solid var(--a)}"
    ".sr{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}"
    ".wide{overflow-x:auto;position:relative}table{border-collapse:collapse;font-size:.92rem;margin:.7rem "
    "0;font-variant-numeric:tabular-nums}"
    "th,td{padding:.25rem .7rem .25rem 0;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left}th{font-weight:600;color:var(--soft)}"
    "th[scope=row]{font-weight:400;color:inherit}tr.lead>*{font-weight:650!important}"
    "td.note{min-width:17rem}td.token{text-align:left;min-width:5rem;font-family:ui-monospace,monospace;white-space:"
    "pre-wrap;overflow-wrap:anywhere;"
    "max-width:14rem}"
    "th.text{text-align:left}td.text{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:9rem;max-"
    "width:24rem}"
    "figure{margin:1.1rem 0}figcaption{font-size:.88rem;color:var(--soft)}figure "
    "svg{width:100%;max-width:42rem;height:auto;display:block}"
    "figure svg g{color:inherit}details{margin:.8rem 0}summary{cursor:pointer;color:var(--soft)}code{font-size:.92em}";

static void escape(FILE *f, const char *text) {
    for (; *text; text++) switch (*text) {
        case '&':
            fputs("&amp;", f);
            break;
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        case '\'':
            fputs("&#39;", f);
            break;
        default:
            if ((unsigned char)*text >= 32 || *text == '\n' || *text == '\t') fputc(*text, f);
        }
}

/* One table cell with a number; what NaN shows as is "-". */
static void cell(FILE *f, double value, double se) {
    char *text = tv_view_text(value, se);
    fprintf(f, "<td>%s</td>", text);
    free(text);
}

/* Begins a table that scrolls by itself where it is wider than the page: its columns, separated by '|'; one that begins
 * with '<' holds text. */
static void table_begin(FILE *f, const char *caption, const char *columns) {
    fprintf(f,
            "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"%s\"><table><caption "
            "class=\"sr\">%s</caption><thead><tr>",
            caption, caption);
    for (const char *c = columns; *c;) {
        size_t n = strcspn(c, "|");
        int text = *c == '<';
        fprintf(f, "<th scope=\"col\"%s>%.*s</th>", text ? " class=\"text\"" : "", (int)n - text, c + text);
        c += n + (c[n] == '|');
    }
    fputs("</tr></thead><tbody>\n", f);
}

static void table_end(FILE *f) { fputs("</tbody></table></div>\n", f); }

/* Begins a row that is named by what it is about. */
static void row_begin(FILE *f, const char *name, int leads) {
    fprintf(f, "<tr%s><th scope=\"row\">", leads ? " class=\"lead\"" : "");
    escape(f, name);
    fputs("</th>", f);
}

static void section(FILE *f, const tv_view_answers *answers, int which) {
    fprintf(f, "<section aria-labelledby=\"q%d\"><h2 id=\"q%d\"><b>%d</b>%s</h2>\n<p>", which + 1, which + 1, which + 1,
            tv_view_questions[which]);
    escape(f, answers->text[which]);
    fputs("</p>\n", f);
}

/* ---- plots ---- */

/* Writes gnuplot's SVG into the page: without prolog and fixed names, axes in the page's own ink, ids kept apart. */
static void put_svg(FILE *f, const char *svg, int number, const char *label) {
    const char *at = strstr(svg, "viewBox");
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" role=\"img\" "
               "aria-label=\"");
    escape(f, label);
    fputs("\" ", f);
    const char *view_end = strchr(at, '\n');
    fprintf(f, "%.*s>", (int)(view_end - at), at);
    const char *title = strstr(svg, "<title>"), *desc_end = strstr(svg, "</desc>");
    const char *body = title && desc_end ? desc_end + 7 : strchr(view_end, '>') + 1;
    static const struct {
        const char *from, *to;
    } SWAP[] = {{"rgb(  1,   2,   3)", "currentColor"},
                {"rgb(1,2,3)", "currentColor"},
                {"color=\"black\"", ""},
                {"color=\"white\"", ""}};
    while (*body) {
        int swapped = 0;
        for (size_t i = 0; i < sizeof SWAP / sizeof *SWAP && !swapped; i++)
            if (strncmp(body, SWAP[i].from, strlen(SWAP[i].from)) == 0) {
                fputs(SWAP[i].to, f);
                body += strlen(SWAP[i].from);
                swapped = 1;
            }
        if (swapped) continue;
        if (strncmp(body, "gpDot", 5) == 0 || strncmp(body, "gpPt", 4) == 0 || strncmp(body, "gnuplot_", 8) == 0 ||
            strncmp(body, "textbox", 7) == 0 || strncmp(body, "greybox", 7) == 0)
            fprintf(f, "p%d-", number);
        fputc(*body++, f);
    }
}

static const char HEAD[] =
    "set terminal svg size 560,330 dynamic font 'sans,15'\nset border 3 lc rgb '#010203'\nset "
    "tics nomirror tc rgb '#010203'\n"
    "set xlabel tc rgb '#010203'\nset ylabel tc rgb '#010203'\nset key above left samplen 2 width 1 tc rgb "
    "'#010203'\nset style fill transparent solid 0.2 noborder\n";

/* Both returned scripts are owned by the caller; NULL: nothing to draw. */
static char *script_length(const cJSON *r) {
    const cJSON *list = tv_view_item(r, "per_length");
    if (cJSON_GetArraySize(list) < 2) return NULL;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    fprintf(f, "%sset xlabel 'length, tokens'\nset ylabel 'total variation distance'\nset yrange [0:*]\n$d << EOD\n",
            HEAD);
    for (const cJSON *p = list->child; p; p = p->next) {
        double tv = tv_view_number(p, "tv"), se = tv_view_number(p, "se");
        if (!isfinite(se)) se = 0;
        fprintf(f, "%.9g %.9g %.9g %.9g %.9g\n", tv_view_number(p, "length"), tv, fmax(tv - 1.96 * se, 0),
                fmin(tv + 1.96 * se, 1), tv_view_number(p, "mismatch"));
    }
    fputs("EOD\nplot $d using 1:3:4 with filledcurves lc rgb '#2f6fde' title '95% band', $d using 1:2 with lines lw "
          "2.5 lc rgb '#2f6fde' title 'plug-in TV', "
          "$d using 1:5 with lines lw 2 dt 2 lc rgb '#d9742b' title 'mismatch share'\n",
          f);
    fclose(f);
    return text;
}

static char *script_repeats(const cJSON *r) {
    const cJSON *list = tv_view_item(r, "per_repeat");
    if (cJSON_GetArraySize(list) < 2 ||
        (cJSON_IsTrue(tv_view_item(r, "deterministic.a")) && cJSON_IsTrue(tv_view_item(r, "deterministic.b"))))
        return NULL; /* one read, or reads that are all the same: no curve */
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    fprintf(f,
            "%sset xlabel 'reads r'\nset ylabel 'total variation distance'\nset yrange [0:*]\nset "
            "datafile missing '?'\nset logscale x 2\n$d "
            "<< EOD\n",
            HEAD);
    for (const cJSON *p = list->child; p; p = p->next) {
        fprintf(f, "%.9g %.9g", tv_view_number(p, "r"), tv_view_number(p, "tv"));
        double v[3] = {tv_view_number(p, "se"), tv_view_number(p, "floor_a"), tv_view_number(p, "floor_b")};
        fprintf(f, " %.9g", isfinite(v[0]) ? v[0] : 0.0);
        for (int i = 1; i < 3; i++) isfinite(v[i]) ? fprintf(f, " %.9g", v[i]) : fprintf(f, " ?");
        fputc('\n', f);
    }
    double level = tv_view_number(r, "tv.estimate");
    fprintf(f,
            "EOD\nset xrange [0.93:%.9g]\nplot $d using 1:2 with lines lw 1.5 lc rgb '#2f6fde' notitle, "
            "$d using 1:2:(1.96*$3) with yerrorbars pt 7 ps 0.5 lw 1.5 lc rgb '#2f6fde' title 'plug-in, a against b', "
            "$d using 1:4 with linespoints pt 6 ps 0.6 lw 2 lc rgb '#d9742b' title 'a against itself', "
            "$d using 1:5 with linespoints pt 4 ps 0.6 lw 2 lc rgb '#8a8f98' title 'b against itself'",
            1.07 * tv_view_number(r, "R"));
    if (isfinite(level)) fprintf(f, ", %.9g with lines dt 3 lw 2 lc rgb '#2f6fde' title 'headline'", level);
    fputc('\n', f);
    fclose(f);
    return text;
}

static char *script_histogram(const cJSON *r) {
    const cJSON *list = tv_view_item(r, "token.delta_logprob.histogram");
    if (cJSON_GetArraySize(list) < 1) return NULL;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    fprintf(f,
            "%sset xlabel '|log p_b - log p_a| of the trajectory token, nats'\nset ylabel 'positions'\nset logscale x "
            "10\nset format x '10^{%%T}'\nset yrange [0:*]\nunset key\n$d << EOD\n",
            HEAD);
    for (const cJSON *p = list->child; p; p = p->next)
        fprintf(f, "%.9g %.9g 0 %.9g %.9g\n", tv_view_number(p, "from"), tv_view_number(p, "to"),
                tv_view_number(p, "count"), sqrt(tv_view_number(p, "from") * tv_view_number(p, "to")));
    fputs("EOD\nset style fill solid 0.55 border lc rgb '#2f6fde'\nplot $d using 5:4:1:2:3:4 with boxxyerror lc rgb "
          "'#2f6fde' notitle\n",
          f);
    fclose(f);
    return text;
}

static char *script_positions(const cJSON *r) {
    const cJSON *list = tv_view_item(r, "token.by_position");
    if (cJSON_GetArraySize(list) < 2) return NULL;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    fprintf(f,
            "%sset xlabel 'position, tokens'\nset ylabel 'token TV; share'\nset yrange [0:*]\n$d << "
            "EOD\n",
            HEAD);
    for (const cJSON *p = list->child; p; p = p->next)
        fprintf(f, "%.9g %.9g %.9g\n", 0.5 * (tv_view_number(p, "from") + tv_view_number(p, "to") - 1),
                tv_view_number(p, "tv"), tv_view_number(p, "flips"));
    fputs("EOD\nplot $d using 1:2 with steps lw 2 lc rgb '#2f6fde' title 'token TV', $d using 1:3 with steps lw 1.5 dt "
          "2 lc rgb '#d9742b' title 'most likely token differs'\n",
          f);
    fclose(f);
    return text;
}

/* The page's plots. svg: NULL where there is nothing to draw or gnuplot drew nothing. */
enum { PLOT_LENGTH, PLOT_REPEATS, PLOT_POSITIONS, PLOT_HISTOGRAM, PLOTS };
typedef struct {
    int wanted[PLOTS];
    char *svg[PLOTS]; /* within pictures */
    char *pictures;
    int told; /* how to get plots */
} plots;

/* All by one gnuplot, whose start takes longer than drawing. */
static plots draw(const cJSON *r) {
    char *script[PLOTS] = {script_length(r), script_repeats(r), script_positions(r), script_histogram(r)}, *all = NULL;
    plots p = {0};
    size_t size;
    FILE *f = open_memstream(&all, &size);
    for (int i = 0; i < PLOTS; i++)
        if (script[i]) fprintf(f, "%sset output\nreset\n", script[i]), p.wanted[i] = 1;
    fclose(f);
    char *at = size && tv_gnuplot(all, &p.pictures, &size) ? p.pictures : NULL;
    for (int i = 0; i < PLOTS; i++) {
        free(script[i]);
        if (!p.wanted[i] || !at || !(at = strstr(at, "<svg"))) continue;
        char *end = strstr(at, "</svg>");
        if (!end) break;
        p.svg[i] = at;
        at = end + strlen("</svg>");
        if (*at) *at++ = 0;
    }
    free(all);
    return p;
}

/* Puts a plot into the page, or says once how to draw it. */
static void figure(FILE *f, plots *p, int which, const char *caption) {
    if (p->svg[which]) {
        fputs("<figure>", f);
        put_svg(f, p->svg[which], which + 1, caption);
        fprintf(f, "<figcaption>");
        escape(f, caption);
        fputs("</figcaption></figure>\n", f);
    } else if (p->wanted[which] && !p->told) {
        p->told = 1;
        fputs("<p class=\"soft\">Plots need gnuplot: install it and write the report again (<code>tvgpu "
              "estimate RUN --html PAGE.html</code>). The tables hold "
              "every number.</p>\n",
              f);
    }
}

/* ---- tables ---- */

static void table_estimators(FILE *f, const cJSON *r) {
    static const char *const KEY[] = {"hedged", "plugin", "jackknife", "split_sign", "likelihood_ratio", "sign_bound"};
    static const char *const NAME[] = {"hedged",     "plug-in",          "jackknife",
                                       "split-sign", "likelihood ratio", "sign lower bound"};
    table_begin(f, "The distance by every estimator", "estimator|TV|se|95% interval|<the interval holds");
    for (int i = 0; i < 6; i++) {
        const cJSON *e = tv_view_item(tv_view_item(r, "estimators"), KEY[i]);
        double se = tv_view_number(e, "se");
        char *ci = tv_view_interval(tv_view_item(e, "ci95"), se);
        char reason[64];
        snprintf(reason, sizeof reason, "estimators.%s_reason", KEY[i]);
        row_begin(f, NAME[i], strcmp(tv_view_string(r, "tv.estimator"), KEY[i]) == 0);
        cell(f, tv_view_number(e, "estimate"), se);
        cell(f, se, se);
        fprintf(f, "<td>%s</td><td class=\"text note\">", ci);
        escape(f, cJSON_IsObject(e) ? tv_view_string(e, "interval") : tv_view_string(r, reason));
        fputs("</td></tr>\n", f);
        free(ci);
    }
    table_end(f);
    fputs("<p class=\"soft\">", f);
    escape(f, tv_view_string(r, "tv.method"));
    double za = tv_view_number(r, "faithfulness.a"), zb = tv_view_number(r, "faithfulness.b");
    fputs(".", f);
    if (isfinite(za) && isfinite(zb)) fprintf(f, " Faithfulness z: a %+.1f, b %+.1f.", za, zb);
    fputs("</p>\n", f);
}

static void table_noise(FILE *f, const cJSON *r) {
    static const struct {
        const char *name, *path;
    } ROW[] = {
        {"floor (against itself)", "floor.%c.estimate"}, {"sigma, union support", "sigma.%c.union_chi2"},
        {"sigma, realized token", "sigma.%c.realized"},  {"width by median", "sigma.%c.width_median"},
        {"excess kurtosis", "sigma.%c.kurtosis"},        {"drift over passes (1 = none)", "sigma.%c.drift.ratio"},
        {"distinct ids a position", "support.%c.mean"}};
    table_begin(f, "The noise of each side", "noise|side a|side b");
    for (size_t i = 0; i < sizeof ROW / sizeof *ROW; i++) {
        row_begin(f, ROW[i].name, 0);
        for (int e = 0; e < 2; e++) {
            char path[64];
            snprintf(path, sizeof path, "%.*s%c%s", (int)(strchr(ROW[i].path, '%') - ROW[i].path), ROW[i].path, 'a' + e,
                     strchr(ROW[i].path, '%') + 2);
            cell(f, tv_view_number(r, path), NAN);
        }
        fputs("</tr>\n", f);
    }
    table_end(f);
}

static void table_differences(FILE *f, const tv_view_differences *d) {
    if (d->n == 0) return;
    table_begin(f, "Fields in which the configurations differ", "field|<side a|<side b");
    for (int i = 0; i < d->n; i++) {
        row_begin(f, d->item[i].key, 0);
        fputs("<td class=\"text\">", f);
        escape(f, d->item[i].a);
        fputs("</td><td class=\"text\">", f);
        escape(f, d->item[i].b);
        fputs("</td></tr>\n", f);
    }
    table_end(f);
}

static void list_libraries(FILE *f, const cJSON *r) {
    tv_view_library_list lists[2];
    for (int i = 0, n = tv_view_libraries(r, lists); i < n; i++) {
        fprintf(f, "<details><summary>What libraries chose, %s</summary><ul>\n", lists[i].who);
        for (const cJSON *item = lists[i].list->child; item; item = item->next) {
            fputs("<li>", f);
            escape(f, cJSON_IsString(item) ? item->valuestring : "");
            fputs("</li>\n", f);
        }
        fputs("</ul></details>\n", f);
    }
}

static void table_tokens(FILE *f, const cJSON *r) {
    static const struct {
        const char *name, *path;
    } ROW[] = {{"token TV", "token.tv"},
               {"KL(a||b), shared support", "token.kl_ab"},
               {"KL(b||a), shared support", "token.kl_ba"},
               {"Jensen-Shannon", "token.js"},
               {"same most likely token", "token.same_top1"},
               {"top-k overlap", "token.topk_overlap"},
               {"mean log p_b - log p_a", "token.delta_logprob.mean"},
               {"root mean square of it", "token.delta_logprob.rms"},
               {"1% of it", "token.delta_logprob.p01"},
               {"99% of it", "token.delta_logprob.p99"},
               {"k3 KL, x from a", "token.rl.k3_kl_ab"},
               {"chi-square, x from a", "token.rl.chi2_token_ab"},
               {"near-tie mismatches", "near_tie_mismatch"}};
    table_begin(f, "Distances token by token", "per token|value");
    for (size_t i = 0; i < sizeof ROW / sizeof *ROW; i++) {
        row_begin(f, ROW[i].name, 0);
        cell(f, tv_view_number(r, ROW[i].path), NAN);
        fputs("</tr>\n", f);
    }
    table_end(f);
}

static void table_worst(FILE *f, const cJSON *r) {
    const cJSON *list = tv_view_item(r, "worst_tokens");
    if (cJSON_GetArraySize(list) == 0) return;
    fputs("<details open><summary>Worst tokens</summary>", f);
    table_begin(f, "The tokens on which the sides disagree most",
                "position|<token|p under a|p under b|margin, nats|gap, nats|id|trajectory|set");
    for (const cJSON *w = list->child; w; w = w->next) {
        fprintf(f, "<tr><th scope=\"row\">%.0f</th><td class=\"token\">", tv_view_number(w, "position"));
        escape(f, cJSON_IsString(tv_view_item(w, "text")) ? tv_view_string(w, "text") : "-");
        fputs("</td>", f);
        cell(f, tv_view_number(w, "p_a"), NAN);
        cell(f, tv_view_number(w, "p_b"), NAN);
        cell(f, tv_view_number(w, "margin"), NAN);
        cell(f, tv_view_number(w, "gap"), NAN);
        fprintf(f, "<td>%.0f</td><td>%.0f</td><td>%s</td></tr>\n", tv_view_number(w, "token"),
                tv_view_number(w, "trajectory"), strcmp(tv_view_string(w, "set"), "b") == 0 ? "b" : "a");
    }
    table_end(f);
    fputs("<p class=\"soft\">margin: between the two most likely tokens there, on the side that wrote the text; gap: "
          "from the "
          "token up to the last recorded slot of the side that lacks it.</p></details>\n",
          f);
}

static void table_curve(FILE *f, const cJSON *r, const char *key, const char *const columns[], int n,
                        const char *title) {
    const cJSON *list = tv_view_item(r, key);
    if (cJSON_GetArraySize(list) == 0) return;
    char names[128] = "";
    for (int c = 0; c < n; c++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", c ? "|" : "", columns[c]);
    fprintf(f, "<details><summary>%s</summary>", title);
    table_begin(f, title, names);
    for (const cJSON *p = list->child; p; p = p->next) {
        fprintf(f, "<tr><th scope=\"row\">%.0f</th>", tv_view_number(p, columns[0]));
        for (int c = 1; c < n; c++) cell(f, tv_view_number(p, columns[c]), 1e-3);
        fputs("</tr>\n", f);
    }
    table_end(f);
    fputs("</details>\n", f);
}

/* A row of what was measured, unless the report does not say. */
static void fact(FILE *f, const char *name, const cJSON *item) {
    if (!item || cJSON_IsNull(item)) return;
    char *text = cJSON_IsString(item) ? tv_xstrdup(item->valuestring) : tv_json_line(item);
    row_begin(f, name, 0);
    fputs("<td class=\"text\">", f);
    escape(f, text);
    fputs("</td></tr>\n", f);
    free(text);
}

/* Who was measured, with what, where and when; and both configurations in full. */
static void provenance(FILE *f, const cJSON *r) {
    static const struct {
        const char *name, *path;
    } ROW[] = {{"tvgpu", "tvgpu"},
               {"architecture", "model.architecture"},
               {"parameters", "model.parameters"},
               {"hash of the weights", "model.weights_hash"},
               {"trajectories a side", "N"},
               {"tokens a trajectory", "n"},
               {"reads a side", "R"},
               {"sampling seed of side a", "seed_a"},
               {"sampling seed of side b", "seed_b"},
               {"device of side a", "timing.device_a"},
               {"device of side b", "timing.device_b"},
               {"host", "timing.host"},
               {"date", "timing.date"},
               {"seconds", "timing.seconds"},
               {"run folder", "timing.folder"}};
    fputs("<section aria-labelledby=\"provenance\"><h2 id=\"provenance\">Provenance</h2>\n", f);
    table_begin(f, "What was measured, with what, where and when", "what|<value");
    for (size_t i = 0; i < sizeof ROW / sizeof *ROW; i++) fact(f, ROW[i].name, tv_view_item(r, ROW[i].path));
    table_end(f);
    const cJSON *a = tv_view_item(r, "a"), *b = tv_view_item(r, "b");
    if (cJSON_IsObject(a) && cJSON_IsObject(b)) {
        fputs("<details><summary>Both configurations in full</summary>", f);
        table_begin(f, "Both configurations in full", "field|<side a|<side b");
        for (const cJSON *x = a->child; x; x = x->next) {
            const cJSON *y = cJSON_GetObjectItemCaseSensitive(b, x->string);
            row_begin(f, x->string, 0);
            for (int e = 0; e < 2; e++) {
                const cJSON *item = e ? y : x;
                char *text = !item                  ? tv_xstrdup("-")
                             : cJSON_IsString(item) ? tv_xstrdup(item->valuestring)
                                                    : tv_json_line(item);
                fputs("<td class=\"text\">", f);
                escape(f, text);
                fputs("</td>", f);
                free(text);
            }
            fputs("</tr>\n", f);
        }
        table_end(f);
        fputs("</details>\n", f);
    }
    fputs("</section>\n", f);
}

static void gauge(FILE *f, const cJSON *r) {
    const cJSON *ci = tv_view_item(r, "tv.ci95");
    double tv = tv_view_number(r, "tv.estimate");
    if (!cJSON_IsArray(ci) || !isfinite(tv)) return;
    double low = cJSON_GetArrayItem(ci, 0)->valuedouble, high = cJSON_GetArrayItem(ci, 1)->valuedouble;
    fprintf(f,
            "<div class=\"gauge\" role=\"img\" aria-label=\"TV %.3f on a scale from 0 to 1, interval %.3f to %.3f\"><i "
            "style=\"left:%.2f%%;width:%.2f%%\"></i><u style=\"left:%.2f%%\"></u></div>"
            "<div class=\"ends\"><span>0: the same distribution</span><span>1: never the same text</span></div>\n",
            tv, low, high, 100 * low, 100 * (high - low), 100 * tv);
}

static void page(FILE *f, const cJSON *r) {
    tv_view_differences d = tv_view_diff(r);
    tv_view_answers answers = tv_view_answer(r, &d);
    char *subject = tv_view_subject(r),
         *value = tv_view_text(tv_view_number(r, "tv.estimate"), tv_view_number(r, "tv.se"));
    char *interval = tv_view_interval(tv_view_item(r, "tv.ci95"), tv_view_number(r, "tv.se"));
    int identical = cJSON_IsTrue(tv_view_item(r, "bit_identical"));
    plots drawn = {0};
    if (!identical) drawn = draw(r);
    fprintf(f,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
            "content=\"width=device-width,initial-scale=1\">"
            "<title>TV %s - tvgpu</title><style>%s</style></head><body><main>\n<header><h1>Total variation between two "
            "serving "
            "configurations</h1>\n<p class=\"soft\">",
            value, STYLE);
    escape(f, subject);
    fprintf(f, "</p>\n<p class=\"big\">%s</p><p class=\"soft\">95%% interval %s</p>\n", value, interval);
    gauge(f, r);
    fputs("</header>\n<nav aria-label=\"Questions\"><ol>", f);
    for (int q = 0; q < TV_ANSWERS; q++) fprintf(f, "<li><a href=\"#q%d\">%s</a></li>", q + 1, tv_view_questions[q]);
    fputs("</ol></nav>\n", f);
    section(f, &answers, TV_ANSWER_IDENTICAL);
    fputs("</section>\n", f);
    section(f, &answers, TV_ANSWER_DISTANCE);
    for (int e = 0; e < 2; e++) {
        char *text = tv_view_scoring(r, e);
        if (text) fputs("<p>", f), escape(f, text), fputs("</p>\n", f);
        free(text);
    }
    if (!identical) {
        table_estimators(f, r);
        figure(f, &drawn, PLOT_LENGTH,
               "Plug-in total variation against the length of the continuation, with its 95% band, and the share of "
               "mismatches");
    }
    static const char *const LENGTH[] = {"length", "tv", "se", "mismatch"}, *const REPEAT[] = {"r", "tv", "se",
                                                                                               "floor_a", "floor_b"};
    table_curve(f, r, "per_length", LENGTH, 4, "Numbers by length");
    fputs("</section>\n", f);
    section(f, &answers, TV_ANSWER_NOISE);
    table_noise(f, r);
    if (!identical)
        figure(f, &drawn, PLOT_REPEATS,
               "Plug-in total variation against the number of reads r, with the distance of each side against itself");
    table_curve(f, r, "per_repeat", REPEAT, 5, "Numbers by reads");
    fputs("</section>\n", f);
    section(f, &answers, TV_ANSWER_SWITCH);
    table_differences(f, &d);
    list_libraries(f, r);
    fputs("</section>\n", f);
    section(f, &answers, TV_ANSWER_WHERE);
    if (!identical) {
        figure(f, &drawn, PLOT_POSITIONS,
               "Mean total variation of the next-token distributions by position, and the share of positions where the "
               "most likely token differs");
        table_tokens(f, r);
        figure(f, &drawn, PLOT_HISTOGRAM,
               "How far apart the sides' log-probabilities of the trajectory tokens are: positions by size of the "
               "difference");
        table_worst(f, r);
    }
    fputs("</section>\n", f);
    section(f, &answers, TV_ANSWER_CI);
    fputs("</section>\n", f);
    provenance(f, r);
    fputs("</main></body></html>\n", f);
    free(subject);
    free(value);
    free(interval);
    free(drawn.pictures);
    tv_view_answers_free(&answers);
    tv_view_diff_free(&d);
}

tv_status tv_report_html(const cJSON *report, const char *path, tv_err *err) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return TV_FAIL(err, TV_ENOMEM, "%s: no memory for the page", path);
    page(f, report);
    int failed = ferror(f);
    failed = fclose(f) != 0 || failed;
    tv_status status =
        failed ? TV_FAIL(err, TV_ENOMEM, "%s: no memory for the page", path) : tv_file_write(path, text, size, err);
    free(text);
    return status;
}
