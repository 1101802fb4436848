/* The hedged estimator's inner loop for the baseline instruction set. */
#define TV_VEC
#define TV_HEDGED_TRAJECTORY tv_hedged_trajectory_portable
#include "estimator/hedged_cell.h"
