/* What tests of a device's operations share: device memory that is checked for overruns. Failures abort: in a test they
 * are not what is tested. */
#ifndef TV_SIMT_RIG_H
#define TV_SIMT_RIG_H

#include "kernels/ops.h"

/* The CUDA device of this build (emulated, or a card). One at a time; closing frees what is left. */
tv_dev *rig_open(void);
void rig_close(tv_dev *dev);
/* Device memory holding the bytes of host, or 0xff (NaN, -1) throughout where host is NULL, with guards around. */
void *rig_put(tv_dev *dev, const void *host, size_t bytes);
/* The content of what rig_put returned, into host; checks that the guards still stand. */
void rig_get(tv_dev *dev, void *host, const void *p);
/* Frees what rig_put returned, before rig_close would. */
void rig_drop(tv_dev *dev, void *p);
/* bf16 values of normal distribution, malloc'd. */
tv_bf16 *rig_normals(uint64_t seed, size_t n, double scale);
/* Schedules of blocks and threads there are (1 on a card), and the choice of one until the next. */
int rig_schedules(void);
void rig_schedule(int i);
/* Bank conflicts of ldmatrix since the program began; 0 on a card. */
uint64_t rig_bank_conflicts(void);

#endif
