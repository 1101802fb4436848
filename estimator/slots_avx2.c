/* Record decoding for x86-64 with AVX2. */
#if defined(__x86_64__)
#define TV_VEC __attribute__((target("avx2")))
#define TV_SLOTS_EXP tv_slots_exp_avx2
#define TV_SLOTS_REALISED tv_slots_realised_avx2
#include "estimator/slots_kernel.h"
#else
typedef int tv_slots_avx2_is_empty; /* C forbids an empty file */
#endif
