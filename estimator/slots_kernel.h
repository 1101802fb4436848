/* Decoding top-k records, the inner loop of everything that reads traces. Included once for each instruction set, with
 * TV_VEC (estimator/vecmath.h) and the names TV_SLOTS_EXP and TV_SLOTS_REALISED defined. Same bits everywhere. */
#include "estimator/slots.h"
#include "estimator/vecmath.h"

/* Probabilities of four slots (0 where empty), and their ids in 64 bits. */
TV_VEC_FN tv_v4d decode_four(const int32_t *ids, const float *lps, tv_v4i *wide) {
    tv_v4w id;
    tv_v4f lp;
    memcpy(&id, ids, sizeof id);
    memcpy(&lp, lps, sizeof lp);
    *wide = __builtin_convertvector(id, tv_v4i);
    return vkeep(*wide >= 0, vexp(__builtin_convertvector(lp, tv_v4d)));
}

/* The slots behind the last four, padded with empty ones. */
TV_VEC_FN void pad_four(const int32_t *ids, const float *lps, int64_t from, int64_t k, int32_t *id, float *lp) {
    for (int64_t l = 0; l < 4; l++) {
        id[l] = from + l < k ? ids[from + l] : -1;
        lp[l] = from + l < k ? lps[from + l] : 0;
    }
}

TV_VEC void TV_SLOTS_EXP(const int32_t *ids, const float *lps, int64_t k, double *w) {
    tv_v4i wide;
    int64_t j = 0;
    for (; j + 4 <= k; j += 4) vstore(w + j, decode_four(ids + j, lps + j, &wide));
    if (j < k) {
        int32_t id[4];
        float lp[4];
        double last[4];
        pad_four(ids, lps, j, k, id, lp);
        vstore(last, decode_four(id, lp, &wide));
        memcpy(w + j, last, (size_t)(k - j) * sizeof *w);
    }
}

TV_VEC int64_t TV_SLOTS_REALISED(const int32_t *tokens, const int32_t *ids, const float *lps, int64_t m, int64_t k,
                                 int raw, double *q, int *twice) {
    for (int64_t t = 0; t < m; t++, ids += k, lps += k) {
        tv_v4d mass = vset(0), hit = vset(0), x;
        tv_v4i hits = {0, 0, 0, 0}, token = {tokens[t], tokens[t], tokens[t], tokens[t]}, wide, here;
        int64_t j = 0;
        for (; j + 4 <= k; j += 4) {
            x = decode_four(ids + j, lps + j, &wide);
            here = (wide == token) & (wide >= 0);
            mass += x;
            hit += vkeep(here, x);
            hits -= here;
        }
        if (j < k) {
            int32_t id[4];
            float lp[4];
            pad_four(ids, lps, j, k, id, lp);
            x = decode_four(id, lp, &wide);
            here = (wide == token) & (wide >= 0);
            mass += x;
            hit += vkeep(here, x);
            hits -= here;
        }
        double sum = vsum(mass);
        *twice = hits[0] + hits[1] + hits[2] + hits[3] > 1;
        if (*twice || !(sum < TV_SLOTS_BROKEN)) return t;
        double own = vsum(hit);
        q[t] = raw || sum == 0 ? own : own / sum;
    }
    return -1;
}
