#include "cli/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/gnuplot.h"
#include "estimator/report_view.h"

/* ---- building ---- */

static cJSON *array_of(cJSON *object, const char *key) {
    cJSON *list = cJSON_GetObjectItemCaseSensitive(object, key);
    return list ? list : cJSON_AddArrayToObject(object, key);
}

cJSON *plot_panel(cJSON *figure, const char *x, const char *y, int flags) {
    cJSON *panel = cJSON_CreateObject();
    cJSON_AddStringToObject(panel, "x", x);
    cJSON_AddStringToObject(panel, "y", y);
    if (flags & (PLOT_LOG_X | PLOT_LOG2_X)) cJSON_AddNumberToObject(panel, "log_x", flags & PLOT_LOG_X ? 10 : 2);
    if (flags & PLOT_LOG_Y) cJSON_AddNumberToObject(panel, "log_y", 10);
    if (flags & PLOT_FROM_ZERO) cJSON_AddBoolToObject(panel, "from_zero", 1);
    cJSON_AddArrayToObject(panel, "series");
    cJSON_AddItemToArray(array_of(figure, "panels"), panel);
    return panel;
}

cJSON *plot_series(cJSON *panel, const char *name, const char *style) {
    cJSON *series = cJSON_CreateObject();
    cJSON_AddStringToObject(series, "name", name);
    cJSON_AddStringToObject(series, "style", style);
    cJSON_AddArrayToObject(series, "points");
    cJSON_AddItemToArray(array_of(panel, "series"), series);
    return series;
}

void plot_point(cJSON *series, double x, double y, double low, double high) {
    if (!isfinite(x) || !isfinite(y)) return;
    const double value[4] = {x, y, low, high};
    cJSON *point = cJSON_CreateArray();
    for (int i = 0; i < 4; i++)
        cJSON_AddItemToArray(point, isfinite(value[i]) ? cJSON_CreateNumber(value[i]) : cJSON_CreateNull());
    cJSON_AddItemToArray(array_of(series, "points"), point);
}

void plot_category(cJSON *panel, const char *name) {
    cJSON_AddItemToArray(array_of(panel, "categories"), cJSON_CreateString(name));
}

void plot_columns(cJSON *figure, const char *const *columns, int n) {
    for (int i = 0; i < n; i++) cJSON_AddItemToArray(array_of(figure, "columns"), cJSON_CreateString(columns[i]));
    array_of(figure, "rows");
}

cJSON *plot_row(cJSON *figure) {
    cJSON *row = cJSON_CreateArray();
    cJSON_AddItemToArray(array_of(figure, "rows"), row);
    return row;
}

/* ---- comma-separated values ---- */

static void csv_text(FILE *f, const char *text) {
    if (!text[strcspn(text, ",\"\n")]) {
        fputs(text, f);
        return;
    }
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"') fputc('"', f);
        fputc(*text, f);
    }
    fputc('"', f);
}

static void csv_cell(FILE *f, const cJSON *item) {
    if (cJSON_IsNumber(item))
        fprintf(f, "%.9g", item->valuedouble);
    else if (cJSON_IsString(item))
        csv_text(f, item->valuestring);
}

static char *csv(const cJSON *figure) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    const cJSON *columns = tv_view_item(figure, "columns"), *item, *row;
    if (columns) {
        cJSON_ArrayForEach(item, columns) {
            csv_cell(f, item);
            fputc(item->next ? ',' : '\n', f);
        }
        cJSON_ArrayForEach(row, tv_view_item(figure, "rows")) {
            cJSON_ArrayForEach(item, row) {
                csv_cell(f, item);
                fputc(item->next ? ',' : '\n', f);
            }
        }
    } else {
        int number = 0;
        const cJSON *panel, *series, *point;
        fputs("panel,series,x,y,low,high\n", f);
        cJSON_ArrayForEach(panel, tv_view_item(figure, "panels")) {
            number++;
            cJSON_ArrayForEach(series, tv_view_item(panel, "series")) {
                cJSON_ArrayForEach(point, tv_view_item(series, "points")) {
                    fprintf(f, "%d,", number);
                    csv_text(f, tv_view_string(series, "name"));
                    cJSON_ArrayForEach(item, point) {
                        fputc(',', f);
                        csv_cell(f, item);
                    }
                    fputc('\n', f);
                }
            }
        }
    }
    fclose(f);
    return text;
}

/* ---- gnuplot ---- */

enum { COLOURS = 5, WIDTH = 560, HEIGHT = 430 };
/* Dark to light, so that they stay apart in greyscale; dashes and marks differ, too. */
static const char *const COLOUR[COLOURS] = {"#10284f", "#a33412", "#3d9c90", "#e0ac3c", "#8a8f98"};
static const int DASH[COLOURS] = {1, 2, 4, 5, 3}, MARK[COLOURS] = {7, 4, 9, 12, 6};

/* Text in single quotes for gnuplot, which doubles them inside. */
static void quote(FILE *f, const char *text) {
    fputc('\'', f);
    for (; *text; text++) {
        if (*text == '\'') fputc('\'', f);
        fputc(*text, f);
    }
    fputc('\'', f);
}

static void put_block(FILE *f, const cJSON *series, int panel, int number) {
    const cJSON *point, *item;
    fprintf(f, "$d%d_%d << EOD\n", panel, number);
    cJSON_ArrayForEach(point, tv_view_item(series, "points")) {
        cJSON_ArrayForEach(item, point) {
            if (cJSON_IsNumber(item))
                fprintf(f, "%.9g ", item->valuedouble);
            else
                fputs("? ", f);
        }
        fputc('\n', f);
    }
    fputs("EOD\n", f);
}

static int has_intervals(const cJSON *series) {
    const cJSON *point;
    cJSON_ArrayForEach(point,
                       tv_view_item(series, "points")) if (cJSON_IsNumber(cJSON_GetArrayItem(point, 2))) return 1;
    return 0;
}

/* The plot elements of one series; `first` is cleared when it is not the panel's first element. */
static void put_elements(FILE *f, const cJSON *series, int panel, int number, int *first) {
    const char *style = tv_view_string(series, "style"), *colour = COLOUR[number % COLOURS];
    int dash = DASH[number % COLOURS], mark = MARK[number % COLOURS], interval = has_intervals(series);
    char data[32];
    if (!tv_view_item(series, "points")->child) return;
    snprintf(data, sizeof data, "$d%d_%d", panel, number);
    fputs(*first ? "plot " : ", ", f);
    *first = 0;
    if (!strcmp(style, "line") && interval)
        fprintf(f, "%s using 1:3:4 with filledcurves fc rgb '%s' fs transparent solid 0.16 noborder notitle, ", data,
                colour);
    if (!strcmp(style, "points") && interval)
        fprintf(f, "%s using 1:2:3:4 with yerrorbars lw 1.6 pt %d ps 0.7 lc rgb '%s' title ", data, mark, colour);
    else if (!strcmp(style, "points"))
        fprintf(f, "%s using 1:2 with points pt %d ps 0.9 lc rgb '%s' title ", data, mark, colour);
    else if (!strcmp(style, "dashed"))
        fprintf(f, "%s using 1:2 with lines lw 1.6 dt '-' lc rgb '%s' title ", data, "#5c6570");
    else if (!strcmp(style, "steps"))
        fprintf(f, "%s using 1:2 with histeps lw %.2g lc rgb '%s' title ", data, number ? 1.6 : 2.4, colour);
    else if (!strcmp(style, "hpoints"))
        fprintf(f, "%s using 1:2:3:4 with xerrorbars lw 1.8 pt %d ps 0.9 lc rgb '%s' title ", data, mark, colour);
    else /* marks about ten times along a long line */
        fprintf(f, "%s using 1:2 with linespoints lw 2 dt %d pt %d ps 0.7 pi %d lc rgb '%s' title ", data, dash, mark,
                1 + cJSON_GetArraySize(tv_view_item(series, "points")) / 12, colour);
    quote(f, tv_view_string(series, "name"));
}

/* The range of a logarithmic axis, i = 0 for x and 1 for y: gnuplot's own would run on to the next power. */
static void put_log_range(FILE *f, const cJSON *panel, int i) {
    const cJSON *series, *point;
    double low = INFINITY, high = 0;
    cJSON_ArrayForEach(series, tv_view_item(panel, "series")) {
        cJSON_ArrayForEach(point, tv_view_item(series, "points")) {
            for (int j = i; j < 4; j += i ? 1 : 4) {
                const cJSON *item = cJSON_GetArrayItem(point, j);
                if (!cJSON_IsNumber(item) || !(item->valuedouble > 0)) continue;
                low = fmin(low, item->valuedouble), high = fmax(high, item->valuedouble);
            }
        }
    }
    if (!(low < high)) return;
    double margin = pow(high / low, 0.04);
    fprintf(f, "set %crange [%.6g:%.6g]\n", "xy"[i], low / margin, high * margin);
    if (high / low > 60) {
        fprintf(f, "set format %c '10^{%%T}'\n", "xy"[i]);
    } else { /* powers of ten alone would leave a short axis nearly bare */
        static const double coarse[] = {1, 2, 5}, fine[] = {1, 1.5, 2, 3, 4, 5, 7};
        const double *steps = high / low > 8 ? coarse : fine;
        const int n = high / low > 8 ? 3 : 7;
        fprintf(f, "set %ctics (", "xy"[i]);
        for (double ten = pow(10, floor(log10(low))); ten <= high; ten *= 10)
            for (int j = 0; j < n; j++) fprintf(f, "%s%g", ten > low || j ? ", " : "", ten * steps[j]);
        fputs(")\n", f);
    }
}

static void put_panel(FILE *f, const cJSON *panel, int number) {
    const cJSON *series, *item, *categories = tv_view_item(panel, "categories");
    int i = 0, first = 1, horizontal = 0, n = cJSON_GetArraySize(categories);
    double log_x = tv_view_number(panel, "log_x");
    cJSON_ArrayForEach(series, tv_view_item(panel, "series")) {
        put_block(f, series, number, i++);
        horizontal |= !strcmp(tv_view_string(series, "style"), "hpoints");
    }
    fputs("unset logscale\nset format '%h'\nset autoscale\nset xtics auto\nset ytics auto\nset xlabel ", f);
    quote(f, tv_view_string(panel, "x"));
    fputs("\nset ylabel ", f);
    quote(f, tv_view_string(panel, "y"));
    fputc('\n', f);
    if (isfinite(log_x)) {
        fprintf(f, "set logscale x %.0f\n", log_x);
        if (log_x == 10) put_log_range(f, panel, 0);
    }
    if (isfinite(tv_view_number(panel, "log_y"))) {
        fputs("set logscale y 10\n", f);
        put_log_range(f, panel, 1);
    }
    if (cJSON_IsTrue(tv_view_item(panel, "from_zero"))) fprintf(f, "set %srange [0:*]\n", horizontal ? "x" : "y");
    if (categories) {
        fprintf(f, "set %stics (", horizontal ? "y" : "x");
        i = 0;
        cJSON_ArrayForEach(item, categories) {
            quote(f, item->valuestring);
            fprintf(f, " %d%s", i++, item->next ? ", " : "");
        }
        if (horizontal)
            fprintf(f, ")\nset yrange [%d.5:-0.5]\n", n - 1);
        else
            fprintf(f, ")\nset xrange [-0.6:%d.6]\n", n - 1);
    }
    i = 0;
    cJSON_ArrayForEach(series, tv_view_item(panel, "series")) put_elements(f, series, number, i++, &first);
    fputc('\n', f);
}

char *plot_script(const cJSON *figure, const char *terminal) {
    const cJSON *panels = tv_view_item(figure, "panels"), *panel;
    if (!panels) return NULL;
    int n = cJSON_GetArraySize(panels), number = 0, svg = !strcmp(terminal, "svg");
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (svg)
        fprintf(f, "set terminal svg size %d,%d dynamic font 'Helvetica,sans-serif,14' background rgb 'white'\n",
                n * WIDTH, HEIGHT);
    else
        fprintf(f, "set terminal pngcairo size %d,%d font 'Sans,11' fontscale 1.8 linewidth 1.8 pointscale 1.8\n",
                2 * n * WIDTH, 2 * HEIGHT);
    fputs("set encoding utf8\nset datafile missing '?'\nset border 3 lw 1\nset tics nomirror out\nset grid lc rgb "
          "'#e3e6ea' lt 1 lw 0.6\nset key outside above center horizontal Left reverse maxrows 3 samplen 3 width 1\n",
          f);
    if (n > 1) fprintf(f, "set multiplot layout 1,%d\n", n);
    cJSON_ArrayForEach(panel, panels) put_panel(f, panel, number++);
    if (n > 1) fputs("unset multiplot\n", f);
    fclose(f);
    return text;
}

/* ---- files ---- */

static tv_status write_file(const char *dir, const char *name, const char *suffix, const void *data, size_t size,
                            tv_err *err) {
    char *file = tv_xprintf("%s%s", name, suffix), *path = tv_path_join(dir, file);
    tv_status s = tv_file_write(path, data, size, err);
    free(file), free(path);
    return s;
}

tv_status plot_write(const cJSON *figure, const char *dir, int *drawn, tv_err *err) {
    const char *name = tv_view_string(figure, "name");
    char *table = csv(figure), *json = tv_json_text(figure);
    tv_status s = write_file(dir, name, ".csv", table, strlen(table), err);
    if (s == TV_OK) s = write_file(dir, name, ".json", json, strlen(json), err);
    free(table), free(json);
    *drawn = 1;
    static const char *const kinds[] = {"svg", "png"};
    for (int k = 0; k < 2 && s == TV_OK; k++) {
        char *script = plot_script(figure, kinds[k]), *picture = NULL, suffix[8];
        size_t size;
        snprintf(suffix, sizeof suffix, ".%s", kinds[k]);
        if (script && tv_gnuplot(script, &picture, &size))
            s = write_file(dir, name, suffix, picture, size, err);
        else if (script)
            *drawn = 0;
        free(script), free(picture);
    }
    return s;
}

static void html_text(FILE *f, const char *text) {
    for (; *text; text++)
        if (*text == '<')
            fputs("&lt;", f);
        else if (*text == '>')
            fputs("&gt;", f);
        else if (*text == '&')
            fputs("&amp;", f);
        else
            fputc(*text, f);
}

static void html_cell(FILE *f, const cJSON *item, const char *tag) {
    fprintf(f, "<%s%s>", tag, strcmp(tag, "th") ? "" : " scope=\"col\"");
    if (cJSON_IsNumber(item))
        fprintf(f, "%.4g", item->valuedouble);
    else
        html_text(f, cJSON_IsString(item) ? item->valuestring : "-");
    fprintf(f, "</%s>", tag);
}

static void html_table(FILE *f, const cJSON *figure) {
    const cJSON *row, *item;
    fputs("<div class=\"wide\"><table><tr>", f);
    cJSON_ArrayForEach(item, tv_view_item(figure, "columns")) html_cell(f, item, "th");
    fputs("</tr>\n", f);
    cJSON_ArrayForEach(row, tv_view_item(figure, "rows")) {
        fputs("<tr>", f);
        cJSON_ArrayForEach(item, row) html_cell(f, item, "td");
        fputs("</tr>\n", f);
    }
    fputs("</table></div>\n", f);
}

tv_status plot_index(const cJSON *figures, const char *dir, int drawn, tv_err *err) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    const cJSON *figure;
    fputs(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        "content=\"width=device-width,initial-scale=1\"><title>tvgpu figures</title><style>body{margin:0 auto;"
        "max-width:60rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;color:#1d2126;background:#fff}img{max-width:"
        "100%;height:auto}h2{font-size:1.1rem;margin-top:2.2rem}.wide{overflow-x:auto}table{border-collapse:collapse;"
        "font-variant-numeric:tabular-nums}th,td{padding:.2rem .8rem .2rem 0;text-align:right;border-bottom:1px solid "
        "#dcdfe3}th:first-child,td:first-child{text-align:left}</style></head><body><main>\n<h1>Figures</h1>\n",
        f);
    cJSON_ArrayForEach(figure, figures) {
        const char *name = tv_view_string(figure, "name");
        fprintf(f, "<section aria-labelledby=\"%s\"><h2 id=\"%s\">", name, name);
        html_text(f, tv_view_string(figure, "title"));
        fputs("</h2>\n", f);
        if (tv_view_item(figure, "columns"))
            html_table(f, figure);
        else if (drawn) {
            fprintf(f, "<img src=\"%s.svg\" alt=\"", name);
            html_text(f, tv_view_string(figure, "title"));
            fputs("\">\n", f);
        }
        fputs("<p>", f);
        html_text(f, tv_view_string(figure, "caption"));
        fprintf(f, " <a href=\"%s.csv\">data (CSV)</a>, <a href=\"%s.json\">with provenance (JSON)</a></p></section>\n",
                name, name);
    }
    fputs("</main></body></html>\n", f);
    fclose(f);
    tv_status s = write_file(dir, "index", ".html", text, size, err);
    free(text);
    return s;
}
