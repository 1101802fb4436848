/* --keep-passes no: folds passes as they come, instead of keeping them. */
#ifndef TV_CLI_FOLDING_H
#define TV_CLI_FOLDING_H

#include "cli/options.h"
#include "engine/tv.h"
#include "traces/fold.h"
#include "traces/rundir.h"

typedef struct {
    int active; /* 0: passes are kept, and the functions below do nothing */
    const char *dir;
    int64_t R;
    int readout;         /* the k' that passes are renormalised over; 0 = all stored slots */
    int64_t count[2][2]; /* [side][set] passes folded so far */
} cli_folding;

/* The readout that the passes of sides `first` to `last` are folded with: --readout, or the sampler's top-k where it is
 * stored and the same for both; else 0. */
int cli_folding_readout(const tv_args *args, int first, int last);
/* Sees what is folded in dir already, for all sides and sets. */
TV_NODISCARD tv_status cli_folding_open(cli_folding *f, const tv_args *args, const char *dir, int64_t R, int readout,
                                        tv_err *err);
/* 1 when the pass is in its fold. */
int cli_folding_has(const cli_folding *f, int side, int set, int64_t pass);
/* Folds passes 0..pass of both sides over both sets that are not yet, measures what only they show (values that differ
 * between the sides, agreement with the sampling), and removes their files. A side that has stopped (its passes are
 * bit-identical) keeps the two that it has. Killed at any moment it goes on from what it finds. */
TV_NODISCARD tv_status cli_folding_take(cli_folding *f, const tv_rundir *run, tv_trace *const samples[2], int64_t pass,
                                        const int stopped[2], tv_err *err);
/* Folds a pass that the other side's never met, straight from memory. */
TV_NODISCARD tv_status cli_folding_add(cli_folding *f, const tv_trace *samples, const tv_trace *pass, tv_err *err);
/* Refuses folds over `set` by side that were made under another configuration than config. */
TV_NODISCARD tv_status cli_folding_check(const cli_folding *f, int side, const tv_trace *set, const char *config,
                                         tv_err *err);
/* Bytes of a folded comparison of R passes: the trajectories, the folds, and what is on disk while a pass is folded.
 * f: NULL, or what is complete already is left out. */
uint64_t cli_folding_disk(const cli_folding *f, int64_t N, int64_t n, int64_t store_k, int readout, int64_t R,
                          int64_t n_prompt_ids);

#endif
