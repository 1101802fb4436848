/* Top-k records as probabilities: the functions behind tv_record_probs and tv_realised. */
#ifndef TV_SLOTS_H
#define TV_SLOTS_H

#include <stdint.h>

/* Sums of exp(log-probability) that no record can reach: a NaN or an infinity was in it. */
#define TV_SLOTS_BROKEN 1e300

/* w[j] = exp(lps[j]), 0 for empty slots (id < 0); a NaN counts as e^709. ids [k] i32, lps [k] f32, w [k] f64. */
void tv_slots_exp(const int32_t *ids, const float *lps, int64_t k, double *w);
/* q[t] for m records one after another, over all slots. tokens [m] i32, ids [m,k] i32, lps [m,k] f32, w [m,k] f64
 * (scratch: as tv_slots_exp), q [m] f64. Returns -1, or the first faulty record: *twice tells whether its token is
 * recorded twice, otherwise a value is not finite. */
int64_t tv_slots_realised(const int32_t *tokens, const int32_t *ids, const float *lps, int64_t m, int64_t k, int raw,
                          double *w, double *q, int *twice);

/* The two builds of slots_kernel.h; call the ones above. */
void tv_slots_exp_portable(const int32_t *ids, const float *lps, int64_t k, double *w);
void tv_slots_exp_avx2(const int32_t *ids, const float *lps, int64_t k, double *w);
int64_t tv_slots_realised_portable(const int32_t *tokens, const int32_t *ids, const float *lps, int64_t m, int64_t k,
                                   int raw, double *w, double *q, int *twice);
int64_t tv_slots_realised_avx2(const int32_t *tokens, const int32_t *ids, const float *lps, int64_t m, int64_t k,
                               int raw, double *w, double *q, int *twice);

#endif
