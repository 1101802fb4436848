/* Which switch moves the distribution: one measurement an option, and where each begins to show. */
#ifndef TV_CLI_ATTRIBUTION_H
#define TV_CLI_ATTRIBUTION_H

#include "cli/options.h"

/* Measures every axis (args->axis, or all known ones that this model and device have) against side a under `folder`
 * (NULL: the default one), one run folder each, and ranks them: the "axes" of the result are sorted. Folders that are
 * there are gone on with. The caller deletes *out. */
TV_NODISCARD tv_status cli_attribution_run(tv_args *args, const char *folder, cJSON **out, tv_err *err);
/* The larger of both sides' distances to themselves in one of the axes, by the estimator of its headline where that was
 * measured. */
double cli_attribution_floor(const cJSON *axis);
/* The same as a table. */
void cli_attribution_print(const cJSON *attribution, FILE *out);

#endif
