/* A run shared out to several processes: which of them does what, and how one waits for another. They meet in the run
 * folder and nowhere else: each writes the files of its part, and waits for those of others to appear. */
#ifndef TV_CLI_SHARE_H
#define TV_CLI_SHARE_H

#include <pthread.h>
#include <stdint.h>

#include "cli/options.h"

typedef struct {
    int index, count;   /* process `index` of 0..count-1; {0}: one process that does everything */
    double patience;    /* seconds without a sign of life after which waiting ends */
    char *alive;        /* file in the run folder that says that this process lives, or NULL */
    const char *folder; /* borrowed */
    pthread_t thread;   /* touches it */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int ending;
} cli_share;

/* From --shard I/N, else from the variables of a launcher (Open MPI, torchrun, Slurm), where it says which; else one
 * process. TV_EARG: numbers that name no part. */
TV_NODISCARD tv_status cli_share_find(cli_share *share, const tv_args *args, tv_err *err);
/* 1 when there are other processes. */
int cli_share_divided(const cli_share *share);
/* The process that makes part `item` of the run (0, 1, ..), and whether that is this one. Neighbouring items go to
 * different processes, and no process always gets the same kind where kinds follow one another in a cycle. */
int cli_share_owner(const cli_share *share, int64_t item);
int cli_share_mine(const cli_share *share, int64_t item);

/* Begins to show the others, in folder (which stays valid, and exists), that this process lives. Nothing where there
 * are none. */
TV_NODISCARD tv_status cli_share_begin(cli_share *share, const char *folder, tv_err *err);
/* Waits until `path`, which process `owner` makes, is there. TV_EIO when that process gives no sign of life. */
TV_NODISCARD tv_status cli_share_wait(const cli_share *share, const char *path, int owner, tv_err *err);
/* Ends what cli_share_begin began. Safe on a zeroed struct. */
void cli_share_end(cli_share *share);

#endif
