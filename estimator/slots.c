/* Record decoding on any machine, and the choice between the builds. */
#define TV_SLOTS_EXP tv_slots_exp_portable
#define TV_SLOTS_REALISED tv_slots_realised_portable
#include "estimator/slots_kernel.h"

#if defined(__x86_64__)
#define FASTEST(name) (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? name##_avx2 : name##_portable)
#else
#define FASTEST(name) name##_portable
#endif

void tv_slots_exp(const int32_t *ids, const float *lps, int64_t k, double *w) { FASTEST(tv_slots_exp)(ids, lps, k, w); }

int64_t tv_slots_realised(const int32_t *tokens, const int32_t *ids, const float *lps, int64_t m, int64_t k, int raw,
                          double *w, double *q, int *twice) {
    return FASTEST(tv_slots_realised)(tokens, ids, lps, m, k, raw, w, q, twice);
}
