/* Record decoding for x86-64 with AVX2 and FMA. */
#if defined(__x86_64__)
#include <immintrin.h>

#define TV_VEC __attribute__((target("avx2,fma")))
#define TV_FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#define TV_WIDEN(x) _mm256_cvtps_pd(x)
#define TV_WIDEN_BITS(x) _mm256_cvtepi32_epi64(x)
#define TV_SLOTS_EXP tv_slots_exp_avx2
#define TV_SLOTS_REALISED tv_slots_realised_avx2
#include "estimator/slots_kernel.h"
#else
typedef int tv_slots_avx2_is_empty; /* C forbids an empty file */
#endif
