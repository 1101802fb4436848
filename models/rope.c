#include "models/rope.h"

#include <math.h>
#include <stdlib.h>

#include "base/file.h"

/* The (fractional) pair that turns `turns` times within the original positions. */
static double pair_of_turns(const tv_config *c, double turns) {
    double two_pi = 6.283185307179586476925286766559;
    return c->head_size * log(c->yarn_original_positions / (turns * two_pi)) / (2 * log(c->rope_theta));
}

void tv_rope_frequencies(const tv_config *c, double *inv_freq, double *attention_factor) {
    int half = c->head_size / 2;
    for (int i = 0; i < half; i++) inv_freq[i] = pow(c->rope_theta, -2.0 * i / c->head_size);
    *attention_factor = 1;
    if (!c->rope_yarn) return;
    double low = pair_of_turns(c, c->yarn_beta_fast), high = pair_of_turns(c, c->yarn_beta_slow);
    if (c->yarn_truncate) low = floor(low), high = ceil(high);
    if (!(low > 0)) low = 0;
    if (!(high < c->head_size - 1)) high = c->head_size - 1;
    if (low == high) high += 0.001; /* the reference implementation's guard against a ramp of no width */
    for (int i = 0; i < half; i++) {
        double ramp = (i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        inv_freq[i] = inv_freq[i] / c->yarn_factor * ramp + inv_freq[i] * (1 - ramp);
    }
    if (c->yarn_attention_factor > 0)
        *attention_factor = c->yarn_attention_factor;
    else if (c->yarn_factor > 1)
        *attention_factor = 0.1 * log(c->yarn_factor) + 1;
}

void tv_rope_tables(const tv_config *c, tv_bf16 *cos_table, tv_bf16 *sin_table) {
    size_t half = (size_t)c->head_size / 2;
    double factor, *inv_freq = tv_xmalloc(half * sizeof *inv_freq);
    tv_rope_frequencies(c, inv_freq, &factor);
#pragma omp parallel for schedule(static)
    for (int p = 0; p < c->max_positions; p++)
        for (size_t i = 0; i < half; i++) {
            double angle = p * inv_freq[i];
            cos_table[(size_t)p * half + i] = tv_bf16_from_f32((float)(cos(angle) * factor));
            sin_table[(size_t)p * half + i] = tv_bf16_from_f32((float)(sin(angle) * factor));
        }
    free(inv_freq);
}
