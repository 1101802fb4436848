/* The hedged estimator's inner loop for x86-64 with AVX2: the same operations, hence the same bits, as the portable
 * one. */
#if defined(__x86_64__)
#include <immintrin.h>

#define TV_VEC __attribute__((target("avx2,fma")))
#define TV_FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#define TV_HEDGED_TRAJECTORY tv_hedged_trajectory_avx2
#include "estimator/hedged_cell.h"
#else
typedef int tv_hedged_avx2_is_empty; /* C forbids an empty file */
#endif
