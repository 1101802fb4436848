/* The attribution as a figure. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/attribution.h"
#include "cli/figure.h"
#include "estimator/report_view.h"

tv_status figure_drift(figures *f, cJSON *figure, tv_err *err) {
    tv_args *args = tv_xmalloc(sizeof *args);
    char *folder = tv_path_join(f->runs, "attribution");
    cJSON *result = NULL;
    const cJSON *o;
    *args = *f->args;
    if (!args->N) args->N = f->full ? 256 : 48;
    if (!args->n) args->n = f->full ? 250 : 48;
    if (!args->R) args->R = f->full ? 16 : 4;
    tv_status s = cli_attribution_run(args, folder, &result, err);
    free(args), free(folder);
    TV_TRY(s);
    cJSON *panel = plot_panel(figure, "total variation distance from side a", "", PLOT_FROM_ZERO),
          *tv = plot_series(panel, "one option flipped, 95% interval", "hpoints"),
          *floors = plot_series(panel, "a side against itself (floor)", "hpoints");
    int row = 0;
    cJSON_ArrayForEach(o, tv_view_item(result, "axes")) {
        const cJSON *ci = tv_view_item(o, "tv.ci95");
        plot_category(panel, tv_view_string(o, "axis"));
        plot_point(tv, tv_view_number(o, "tv.estimate"), row, ci && ci->child ? ci->child->valuedouble : NAN,
                   ci && ci->child ? ci->child->next->valuedouble : NAN);
        double floor = cli_attribution_floor(o);
        if (floor > 0) plot_point(floors, floor, row + 0.25, floor, floor);
        row++;
    }
    f->extra = result;
    cJSON_AddStringToObject(
        figure, "caption",
        "Which switch moves the distribution: side a is the default configuration, each row flips one "
        "option. Rows at 0 agree with side a in every bit, or nearly.");
    return TV_OK;
}
