/* The figures: what each measures, what they share. A figure is built as the data that cli/plot.h describes. */
#ifndef TV_CLI_FIGURE_H
#define TV_CLI_FIGURE_H

#include "cli/comparison.h"
#include "cli/plot.h"
#include "estimator/distance.h"

/* Measurements that figures share, each made when a figure first asks for it (figure_runs.c says how they differ). */
typedef enum {
    FIGURE_PAIR,    /* two attention kernels under serving noise */
    FIGURE_SAME,    /* one of them against itself under the same noise */
    FIGURE_NARROW,  /* the pair's trajectories in batches of another size */
    FIGURE_WIDE,    /* the same, in a third size */
    FIGURE_LENGTH,  /* the two kernels without noise, long trajectories */
    FIGURE_PROMPTS, /* the same over six prompts */
    FIGURE_PREFILL, /* the trajectories of FIGURE_LENGTH, each scored at once */
    FIGURE_LONG,    /* the two kernels without noise, trajectories as long as experiments have them */
    FIGURE_RESERVE, /* its trajectories in a small cache, admitted by their whole length */
    FIGURE_GROW,    /* the same, admitted by their current length */
    FIGURE_RUNS
} figure_run;

typedef struct {
    tv_args *args;
    int full;            /* --scale full */
    const char *out;     /* where figures go */
    char *runs;          /* folder of the run folders */
    cli_comparison base; /* the first run's: its engines serve all */
    cli_comparison pair; /* FIGURE_PAIR once it has run here */
    tv_args *run_args[FIGURE_RUNS];
    tv_dataset *data[FIGURE_RUNS];
    cJSON *schedule[2]; /* of the pair: permuted, in serving order */
    unsigned used;      /* runs that the figure at hand has asked for, as bits */
    cJSON *extra;       /* provenance of what is measured elsewhere (attribution), or NULL */
} figures;

/* The dataset of a run, measured now unless it is there; owned by f. */
TV_NODISCARD tv_status figure_data(figures *f, figure_run run, const tv_dataset **data, tv_err *err);
/* tv_schedule_run over the pair; owned by f. */
TV_NODISCARD tv_status figure_schedule(figures *f, int serving_order, const cJSON **result, tv_err *err);
/* Names of the six prompts, in the order of their prompt_index. */
extern const char *const figure_prompt_names[];
/* What the runs asked for since the last call were: {"runs": [...]}; the caller deletes. */
cJSON *figure_provenance(figures *f);
void figure_runs_close(figures *f);

/* A mean over both sets with its 95% interval. x: [N] of each set. */
typedef struct {
    double estimate, se, low, high;
} figure_bar;
figure_bar figure_mean(const tv_dataset *data, double *const x[2]);
/* The plug-in against the length of the text, and its mismatch part (NULL: not), as points of the series; what it ends
 * with goes into values. */
TV_NODISCARD tv_status figure_add_length(const tv_dataset *data, cJSON *tv, cJSON *mismatch, cJSON *values,
                                         tv_err *err);
/* Name of side e's attention kernel under which data was scored, "side a" where it is not known. */
const char *figure_backend(const tv_dataset *data, int e);

/* ---- the figures: figure_<subject>.c; each fills the object with panels or rows, a caption and values ---- */

typedef tv_status figure_fn(figures *f, cJSON *figure, tv_err *err);
figure_fn figure_noise, figure_support;                                       /* figure_noise.c */
figure_fn figure_repeats, figure_batch;                                       /* figure_repeats.c */
figure_fn figure_length, figure_long, figure_topk, figure_prompts;            /* figure_length.c */
figure_fn figure_scoring;                                                     /* figure_scoring.c */
figure_fn figure_budget, figure_levels, figure_complexity, figure_multilevel; /* figure_schedule.c */
figure_fn figure_synthetic, figure_sampleonly;                                /* figure_synthetic.c */
figure_fn figure_drift;                                                       /* figure_drift.c */

#endif
