/* A figure as data, and the files that it is written as. A figure is a cJSON object
 *
 *     {"name", "title", "caption", "panels": [{"x", "y", "log_x", "log_y", "series": [{"name", "style",
 *      "points": [[x, y, low, high], ...]}]}], "values": {...}}       or, a table,
 *     {"name", "title", "caption", "columns": [...], "rows": [[...], ...], "values": {...}}
 *
 * in which low and high are the ends of a 95% interval, or null. */
#ifndef TV_CLI_PLOT_H
#define TV_CLI_PLOT_H

#include "base/json.h"
#include "base/status.h"

enum { PLOT_LOG_X = 1, PLOT_LOG2_X = 2, PLOT_LOG_Y = 4, PLOT_FROM_ZERO = 8 };

/* Adds a panel with labelled axes (units in the label). */
cJSON *plot_panel(cJSON *figure, const char *x, const char *y, int flags);
/* Adds a series. style: "line" (points joined, intervals as a band), "points" (intervals as bars), "dashed" (a
 * reference without points), "steps" (a histogram: x is a bin's middle),
 * "hpoints" (y a category's number, the interval in x). */
cJSON *plot_series(cJSON *panel, const char *name, const char *style);
/* Adds a point; NaN for low and high: no interval. A point whose x or y is NaN is left out. */
void plot_point(cJSON *series, double x, double y, double low, double high);
/* Names the numbers 0, 1, ... of the category axis. */
void plot_category(cJSON *panel, const char *name);
/* Starts a table, and adds a row; the caller adds the cells (strings or numbers) to the array returned. */
void plot_columns(cJSON *figure, const char *const *columns, int n);
cJSON *plot_row(cJSON *figure);

/* The gnuplot script that draws the figure on terminal "svg" or "png"; NULL for a table. The caller frees. */
char *plot_script(const cJSON *figure, const char *terminal);
/* Writes DIR/NAME.csv and .json, and of what is no table .svg and .png where gnuplot is there: *drawn says whether. */
TV_NODISCARD tv_status plot_write(const cJSON *figure, const char *dir, int *drawn, tv_err *err);
/* DIR/index.html over all figures of DIR whose JSON is in list. drawn: whether pictures are there. */
TV_NODISCARD tv_status plot_index(const cJSON *figures, const char *dir, int drawn, tv_err *err);

#endif
