/* Decoding top-k records, the inner loop of everything that reads traces. Included once for each instruction set, with
 * TV_VEC (estimator/vecmath.h) and the names TV_SLOTS_EXP and TV_SLOTS_REALISED defined. Same bits everywhere. */
#include "estimator/slots.h"
#include "estimator/vecmath.h"

/* Probabilities of four slots (0 where empty). inside: every log-probability of a filled slot is within what
 * vexp_inside takes; the result has the same bits either way. */
TV_VEC_FN tv_v4d decode_four(const int32_t *ids, const float *lps, int inside, tv_v4w *id) {
    tv_v4w lp;
    memcpy(id, ids, sizeof *id);
    memcpy(&lp, lps, sizeof lp);
    const tv_v4w filled = *id >= 0;
    const tv_v4d x = __builtin_convertvector((tv_v4f)(lp & filled), tv_v4d);
    return vkeep(__builtin_convertvector(filled, tv_v4i), inside ? vexp_inside(x) : vexp(x));
}

/* Whether every log-probability of a filled slot is one that vexp_inside takes. */
TV_VEC_FN int slots_inside(const int32_t *ids, const float *lps, int64_t slots) {
    tv_v8w outside = {0, 0, 0, 0, 0, 0, 0, 0}, id;
    tv_v8f lp;
    int64_t j = 0;
    for (; j + 8 <= slots; j += 8) {
        memcpy(&id, ids + j, sizeof id);
        memcpy(&lp, lps + j, sizeof lp);
        outside |= (id >= 0) & ~((lp >= -708.0f) & (lp <= 709.0f));
    }
    int32_t any = 0;
    for (; j < slots; j++) any |= ids[j] >= 0 && !(lps[j] >= -708.0f && lps[j] <= 709.0f);
    for (int l = 0; l < 8; l++) any |= outside[l];
    return !any;
}

/* The slots behind the last four, padded with empty ones. */
TV_VEC_FN void pad_four(const int32_t *ids, const float *lps, int64_t from, int64_t k, int32_t *id, float *lp) {
    for (int64_t l = 0; l < 4; l++) {
        id[l] = from + l < k ? ids[from + l] : -1;
        lp[l] = from + l < k ? lps[from + l] : 0;
    }
}

TV_VEC void TV_SLOTS_EXP(const int32_t *ids, const float *lps, int64_t k, double *w) {
    tv_v4w wide;
    int64_t j = 0;
    for (; j + 4 <= k; j += 4) vstore(w + j, decode_four(ids + j, lps + j, 0, &wide));
    if (j < k) {
        int32_t id[4];
        float lp[4];
        double last[4];
        pad_four(ids, lps, j, k, id, lp);
        vstore(last, decode_four(id, lp, 0, &wide));
        memcpy(w + j, last, (size_t)(k - j) * sizeof *w);
    }
}

/* Sum of one record's probabilities; own: the token's; count: slots that hold it. */
TV_VEC_FN double one_record(int32_t token, const int32_t *ids, const float *lps, int64_t k, int inside, double *own,
                            int *count) {
    tv_v4d mass = vset(0), hit = vset(0), x;
    tv_v4w hits = {0, 0, 0, 0}, id, here;
    int64_t j = 0;
    for (; j + 4 <= k; j += 4) {
        x = decode_four(ids + j, lps + j, inside, &id);
        here = (id == token) & (id >= 0);
        mass += x;
        hit += vkeep(__builtin_convertvector(here, tv_v4i), x);
        hits -= here;
    }
    if (j < k) {
        int32_t last[4];
        float lp[4];
        pad_four(ids, lps, j, k, last, lp);
        x = decode_four(last, lp, inside, &id);
        here = (id == token) & (id >= 0);
        mass += x;
        hit += vkeep(__builtin_convertvector(here, tv_v4i), x);
        hits -= here;
    }
    *own = vsum(hit), *count = hits[0] + hits[1] + hits[2] + hits[3];
    return vsum(mass);
}

TV_VEC int64_t TV_SLOTS_REALISED(const int32_t *tokens, const int32_t *ids, const float *lps, int64_t m, int64_t k,
                                 int raw, double *q, int *twice) {
    const int inside = slots_inside(ids, lps, m * k);
    for (int64_t t = 0; t < m; t++, ids += k, lps += k) {
        double own;
        int count;
        const double sum = inside ? one_record(tokens[t], ids, lps, k, 1, &own, &count)
                                  : one_record(tokens[t], ids, lps, k, 0, &own, &count);
        *twice = count > 1;
        if (*twice || !(sum < TV_SLOTS_BROKEN)) return t;
        q[t] = raw || sum == 0 ? own : own / sum;
    }
    return -1;
}
