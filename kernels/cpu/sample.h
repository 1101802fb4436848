/* The draw behind cpu_sample, apart from its random number. */
#ifndef TV_CPU_SAMPLE_H
#define TV_CPU_SAMPLE_H

/* The index that u in [0,1) picks among logprobs [n] f32, descending: the first j with u * total < p_0 + .. + p_j,
 * where p_j = exp(logprob_j - logprob_0) and sums run in f32 in ascending j; the last j of nonzero p when rounding
 * leaves none. Always an index with p_j > 0; -1 when n is 0 or logprob_0 is -inf or NaN. */
int cpu_pick(const float *logprobs, int n, float u);

#endif
