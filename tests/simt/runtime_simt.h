/* What the emulated card's runtime offers to tests beyond kernels/cuda/runtime.h. */
#ifndef TV_RUNTIME_SIMT_H
#define TV_RUNTIME_SIMT_H

#include "kernels/cuda/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Order in which blocks and threads run from now on: forward, reverse, two random ones. Finish what is queued first. */
void simt_schedule(int i);
/* Bank conflicts of ldmatrix since the program began. */
uint64_t simt_bank_conflicts(void);
/* Allocations of device and of pinned memory since the program began. */
uint64_t simt_allocations(void);
/* Waits of the host for a stream or an event since the program began. */
uint64_t simt_waits(void);
/* Dies inside a capture, naming what may not be done there. */
void simt_no_capture(const char *what);
/* 1 when both graphs do the same: kernels, grids, arguments, copies. */
int simt_same_graph(const cuda_rt_graph *a, const cuda_rt_graph *b);

#ifdef __cplusplus
}
#endif
#endif
