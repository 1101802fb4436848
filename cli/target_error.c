#include "cli/target_error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "estimator/report.h"
#include "estimator/target.h"
#include "traces/dataset.h"

/* What a run with a target holds between rounds. */
typedef struct {
    const tv_args *args;
    const char *folder;
    cli_measure_block *measure;
    void *user;
    int64_t blocks, *reads; /* [blocks] passes seen to for each block by this process */
} target_run;

char *cli_block_folder(const char *folder, int64_t block) {
    if (!block) return tv_xstrdup(folder);
    char *name = tv_xprintf("block-%04lld", (long long)block), *path = tv_path_join(folder, name);
    free(name);
    return path;
}

static tv_status measure(void *user, int64_t blocks, int64_t reads, tv_err *err) {
    target_run *t = user;
    if (blocks > t->blocks) {
        t->reads = tv_xrealloc(t->reads, (size_t)blocks * sizeof *t->reads);
        while (t->blocks < blocks) t->reads[t->blocks++] = 0;
    }
    for (int64_t b = 0; b < blocks; b++) {
        if (t->reads[b] >= reads) continue;
        if (blocks > 1)
            tv_note("block %lld of %lld, %lld passes", (long long)b + 1, (long long)blocks, (long long)reads);
        TV_TRY(t->measure(t->user, b, reads, err));
        t->reads[b] = reads;
    }
    return TV_OK;
}

static tv_status report(void *user, int64_t blocks, cJSON **out, tv_err *err) {
    (void)blocks; /* a folder that was measured before may hold more: they count */
    const target_run *t = user;
    const tv_report_options options = {0, (int)t->args->readout, t->args->serving_order, 0};
    tv_dataset *data = NULL;
    TV_TRY(tv_dataset_open(&t->folder, 1, &data, err));
    const tv_status s = tv_report_build(data, &options, out, err);
    tv_dataset_close(data);
    return s;
}

static void say(void *user, const char *line) {
    (void)user;
    tv_note("%s", line);
}

tv_status cli_target_error(const tv_args *args, const char *folder, int64_t N, int64_t R, cli_measure_block *measured,
                           void *user, cJSON **answer, tv_err *err) {
    target_run t = {.args = args, .folder = folder, .measure = measured, .user = user};
    const tv_target_options options = {
        .target = args->target_error, .budget = isfinite(args->budget) ? args->budget : 0, .block = N, .reads = R};
    const tv_target_work work = {&t, measure, report, say};
    const tv_status s = tv_target_run(&options, &work, answer, err);
    free(t.reads);
    return s;
}

int cli_target_print(const tv_args *args, const cJSON *answer) {
    const int reached = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(answer, "reached"));
    const char *reason = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(answer, "reason"));
    if (!args->json)
        printf("\ntarget +-%g: %s: %s\n", args->target_error, reached ? "reached" : "not reached",
               reason ? reason : "");
    return reached;
}
