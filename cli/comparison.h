/* A comparison while it runs: two sides, a run folder, and the passes of both over both. What compare, attribute and
 * figure share. */
#ifndef TV_CLI_COMPARISON_H
#define TV_CLI_COMPARISON_H

#include "cli/common.h"
#include "cli/folding.h"
#include "cli/progress.h"
#include "cli/share.h"
#include "cli/trace_writer.h"
#include "traces/rundir.h"

typedef struct cli_comparison {
    tv_args *args;        /* borrowed */
    char *dir[2];         /* checkpoints */
    tv_engine *engine[2]; /* may be the same */
    int borrowed[2];      /* the engine belongs to another comparison */
    tv_session *session[2];
    cli_prompts prompts;
    int64_t N, n, R;
    int64_t first; /* trajectory that the block being measured begins with; 0 without --target-error */
    cJSON *target; /* what --target-error came to, or NULL */
    tv_rundir *run;
    cli_trace_writer writer; /* of the pass before the one that runs */
    cli_folding folds;
    cli_share share; /* zeroed: this process does everything */
    tv_bar bar;
    double started;
    uint64_t done, computed; /* tokens finished, of them by this process */
} cli_comparison;

/* Opens models and prompts, fills in the sizes, and refuses what cannot run; computes and writes nothing. like: NULL,
 * or an open comparison whose engines serve where checkpoint and device are the same. Close it also after a failure. */
TV_NODISCARD tv_status cli_comparison_open(cli_comparison *c, tv_args *args, const cli_comparison *like, tv_err *err);
/* run.json: everything that decides the numbers; where and when they were made stays under "host". Caller deletes. */
cJSON *cli_comparison_manifest(const cli_comparison *c);
/* The default folder: the same command finds its own again, another command another. The caller frees. */
char *cli_comparison_folder(const char *command, const cJSON *manifest);
/* Tokens of the prompts of all N trajectories together. */
int64_t cli_comparison_prompt_tokens(const cli_comparison *c);
/* Device bytes that weights and sessions take: of one engine's sessions the larger one's. */
uint64_t cli_comparison_memory(const cli_comparison *c);
/* Bytes that the run takes on disk, with its passes kept or folded. */
uint64_t cli_comparison_disk(const cli_comparison *c, int folded);
/* Opens the sessions and the run folder, and makes the files that are missing in it; where the run is shared out, those
 * of this process's part, and process 0 then waits for the others. like: NULL, or a comparison that
 * has run and whose side a is the same: what that side made alone is taken over. */
TV_NODISCARD tv_status cli_comparison_run(cli_comparison *c, const char *folder, const cli_comparison *like,
                                          tv_err *err);
/* The report of a comparison that has run, with its timing, also written as DIR/report.json. Caller deletes. */
TV_NODISCARD tv_status cli_comparison_report(const cli_comparison *c, cJSON **report, tv_err *err);
/* Gives back the sessions; engines, prompts and the run folder stay. */
void cli_comparison_rest(cli_comparison *c);
/* Safe on a zeroed struct. Comparisons that borrowed its engines come first. */
void cli_comparison_close(cli_comparison *c);

#endif
