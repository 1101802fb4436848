/* Rotary position tables. */
#ifndef TV_ROPE_H
#define TV_ROPE_H

#include "base/tensor.h"
#include "models/config.h"

/* Angle per position of each of the head_size/2 pairs, and the factor on cos and sin (1 without yarn), in f64.
 * inv_freq: [head_size/2]. Default: theta^(-2i/HS). Yarn: a linear ramp over the pairs from that (pairs that turn more
 * than beta_fast times within the original positions) to that divided by the factor (fewer than beta_slow turns). */
void tv_rope_frequencies(const tv_config *config, double *inv_freq, double *attention_factor);

/* cos, sin: [max_positions,head_size/2] bf16 host memory, rounded once from f64. */
void tv_rope_tables(const tv_config *config, tv_bf16 *cos_table, tv_bf16 *sin_table);

#endif
