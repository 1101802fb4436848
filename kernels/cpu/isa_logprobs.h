/* Vector kernels over a row of logits: top k with rank, and the sum of exponentials. Part of isa_table.h. */
#ifndef TV_CPU_ISA_LOGPROBS_H
#define TV_CPU_ISA_LOGPROBS_H

#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec.h"

typedef struct {
    const float *logits; /* [V] f32 */
    float *top;          /* [k] f32, descending */
    int32_t *ids;        /* [k] i32 */
    int k, n;
    float threshold; /* what a logit must exceed to be kept */
    int above;       /* logits counted for the rank */
} scan_state;

/* Ids arrive in ascending order and equals stay behind those already kept: ties go to the lowest id. */
static void scan_keep(scan_state *s, int id) {
    float x = s->logits[id];
    if (!(x > s->threshold)) return;
    int j = s->n < s->k ? s->n++ : s->k - 1;
    for (; j > 0 && s->top[j - 1] < x; j--) s->top[j] = s->top[j - 1], s->ids[j] = s->ids[j - 1];
    s->top[j] = x, s->ids[j] = id;
    if (s->n == s->k) s->threshold = s->top[s->k - 1];
}

/* Ids from .. to-1. count: 0 no rank, 1 count logits >= token's (ids before the token), 2 count logits > token's. */
VEC_FN void scan_range(scan_state *s, int from, int to, float token, int count) {
    const v8 of_token = v8_set1(token);
    v8 above = v8_zero(); /* exact: below 2^24 a lane */
    int i = from;
    for (; i + 4 * VEC_LANES <= to; i += 4 * VEC_LANES) {
        v8 x[4];
        VEC_UNROLL
        for (int c = 0; c < 4; c++) {
            x[c] = v8_load(s->logits + i + c * VEC_LANES);
            if (count)
                above = v8_add(above, count == 1 ? v8_ones_at_least(x[c], of_token) : v8_ones_greater(x[c], of_token));
        }
        const v8 threshold = v8_set1(s->threshold);
        if (!v8_bits_greater(v8_max(v8_max(x[0], x[1]), v8_max(x[2], x[3])), threshold)) continue;
        unsigned keep = 0;
        VEC_UNROLL
        for (int c = 0; c < 4; c++) keep |= v8_bits_greater(x[c], threshold) << c * VEC_LANES;
        for (; keep; keep &= keep - 1) scan_keep(s, i + __builtin_ctz(keep));
    }
    s->above += (int)v8_sum(above);
    for (; i < to; i++) {
        float x = s->logits[i];
        if (count) s->above += count == 1 ? x >= token : x > token;
        scan_keep(s, i);
    }
}

/* A number that at least k logits exceed and few beside them, or -inf. Without it a scan keeps about k ln(V / k) logits
 * that later ones push out again. At least k of the groups' largest logits reach it; where it lies is found by halves.
 */
static float scan_floor(const float *logits, int V, int k) {
    enum { VECTORS = 32, GROUPS = VECTORS * VEC_LANES, HALVINGS = 10 };
    float largest[GROUPS], low = INFINITY, high = -INFINITY; /* of the ids of one remainder by GROUPS */
    if (k > GROUPS / 2 || V < 8 * GROUPS) return -INFINITY;
    for (int c = 0; c < GROUPS; c += VEC_LANES) v8_store(largest + c, v8_load(logits + c));
    for (int i = GROUPS; i + GROUPS <= V; i += GROUPS) VEC_UNROLL
    for (int c = 0; c < GROUPS; c += VEC_LANES)
        v8_store(largest + c, v8_max(v8_load(logits + i + c), v8_load(largest + c)));
    for (int g = 0; g < GROUPS; g++) {
        low = largest[g] < low ? largest[g] : low;
        high = largest[g] > high ? largest[g] : high;
    }
    for (int h = 0, reach = GROUPS; h < HALVINGS && reach > k + k / 8; h++) {
        float middle = 0.5f * low + 0.5f * high;
        v8 n = v8_zero();
        VEC_UNROLL
        for (int c = 0; c < GROUPS; c += VEC_LANES)
            n = v8_add(n, v8_ones_at_least(v8_load(largest + c), v8_set1(middle)));
        if (v8_sum(n) >= (float)k)
            low = middle, reach = (int)v8_sum(n);
        else
            high = middle;
    }
    return nextafterf(low, -INFINITY);
}

static cpu_scan scan_logits(const float *logits, int V, int k, int token, float *top, int32_t *ids) {
    scan_state s = {.logits = logits, .top = top, .ids = ids, .k = k, .threshold = scan_floor(logits, V, k)};
    if (token < 0) {
        scan_range(&s, 0, V, 0, 0);
    } else {
        scan_range(&s, 0, token, logits[token], 1);
        scan_range(&s, token, V, logits[token], 2);
    }
    return (cpu_scan){.n = s.n, .rank = s.above};
}

/* Blocks of 512 logits: element i joins chain (i / 8) % 4 in lane i % 8. Block sums are added in adjacent pairs, then
 * pairs of pairs, an odd one moving up unchanged: `level` keeps the finished left parts, bit b of the block count
 * saying that level[b] holds 2^b blocks. */
static float sum_exp(const float *logits, int V, float max, float temperature) {
    enum { BLOCK = 512, LEVELS = 24 };
    float level[LEVELS];
    const v8 m = v8_set1(max), t = v8_set1(temperature);
    unsigned blocks = 0;
    for (int start = 0; start < V; start += BLOCK, blocks++) {
        int end = V - start < BLOCK ? V : start + BLOCK, i = start;
        v8 chain[4] = {v8_zero(), v8_zero(), v8_zero(), v8_zero()};
        if (temperature == 1) {
            for (; i + 4 * VEC_LANES <= end; i += 4 * VEC_LANES) VEC_UNROLL
            for (int c = 0; c < 4; c++)
                chain[c] = v8_add(chain[c], v8_exp(v8_sub(v8_load(logits + i + c * VEC_LANES), m)));
        } else {
            for (; i + 4 * VEC_LANES <= end; i += 4 * VEC_LANES) VEC_UNROLL
            for (int c = 0; c < 4; c++)
                chain[c] = v8_add(chain[c], v8_exp(v8_div(v8_sub(v8_load(logits + i + c * VEC_LANES), m), t)));
        }
        VEC_UNROLL
        for (int c = 0; c < 4; c++, i += VEC_LANES) {
            if (i >= end) break;
            float tail[VEC_LANES]; /* absent logits are -inf and add +0 */
            for (int j = 0; j < VEC_LANES; j++) tail[j] = i + j < end ? logits[i + j] : -INFINITY;
            chain[c] = v8_add(chain[c], v8_exp(v8_div(v8_sub(v8_load(tail), m), t)));
        }
        float sum = v8_sum(v8_add(v8_add(chain[0], chain[1]), v8_add(chain[2], chain[3])));
        int b = 0;
        for (; blocks >> b & 1; b++) sum = level[b] + sum;
        level[b] = sum;
    }
    float sum = 0;
    int have = 0;
    for (int b = 0; blocks >> b; b++)
        if (blocks >> b & 1) sum = have ? level[b] + sum : level[b], have = 1;
    return sum;
}

#endif
