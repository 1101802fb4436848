/* compare --target-error: block after block of trajectories until the interval is as tight as asked. */
#ifndef TV_CLI_TARGET_ERROR_H
#define TV_CLI_TARGET_ERROR_H

#include "cli/options.h"

/* Measures block `block` (0: the run folder's own trajectories) with `reads` passes; what is there stays. */
typedef tv_status cli_measure_block(void *user, int64_t block, int64_t reads, tv_err *err);

/* The folder of a block: FOLDER itself, FOLDER/block-0001, ...; the caller frees. */
char *cli_block_folder(const char *folder, int64_t block);

/* Measures in blocks of N trajectories a side, from R passes on, until the interval is within +-args->target_error,
 * says on stderr after each round where it stands, and gives what tv_target_run answers. */
TV_NODISCARD tv_status cli_target_error(const tv_args *args, const char *folder, int64_t N, int64_t R,
                                        cli_measure_block *measure, void *user, cJSON **answer, tv_err *err);
/* Says on stdout whether the target was reached, or why not; 1 when it was. */
int cli_target_print(const tv_args *args, const cJSON *answer);

#endif
