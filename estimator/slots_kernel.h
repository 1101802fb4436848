/* Decoding top-k records, the inner loop of everything that reads traces. Included once for each instruction set, with
 * TV_VEC (estimator/vecmath.h) and the names TV_SLOTS_EXP and TV_SLOTS_REALISED defined. Same bits everywhere. */
#include "estimator/slots.h"
#include "estimator/vecmath.h"

/* Probabilities of four slots (0 where empty). inside: every log-probability of a filled slot is within what
 * vexp_inside takes; the result has the same bits either way. */
TV_VEC_FN tv_v4d decode_four(const int32_t *ids, const float *lps, int inside) {
    tv_v4w id, lp;
    memcpy(&id, ids, sizeof id);
    memcpy(&lp, lps, sizeof lp);
    const tv_v4w empty = id >> 31; /* all ones below 0 */
    const tv_v4d x = vwiden((tv_v4f)(lp & ~empty));
    return vkeep(~vwiden_bits(empty), inside ? vexp_inside(x) : vexp(x));
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

/* w[j] of all slots, as tv_slots_exp. */
TV_VEC_FN void decode(const int32_t *ids, const float *lps, int64_t slots, int inside, double *w) {
    int64_t j = 0;
    for (; j + 4 <= slots; j += 4) vstore(w + j, decode_four(ids + j, lps + j, inside));
    if (j == slots) return;
    int32_t id[4] = {-1, -1, -1, -1};
    float lp[4] = {0, 0, 0, 0};
    double last[4];
    for (int64_t l = 0; j + l < slots; l++) id[l] = ids[j + l], lp[l] = lps[j + l];
    vstore(last, decode_four(id, lp, inside));
    memcpy(w + j, last, (size_t)(slots - j) * sizeof *w);
}

TV_VEC void TV_SLOTS_EXP(const int32_t *ids, const float *lps, int64_t k, double *w) { decode(ids, lps, k, 0, w); }

/* Sum of one decoded record; own: the token's; count: slots that hold it. */
TV_VEC_FN double one_record(int32_t token, const int32_t *ids, const double *w, int64_t k, double *own, int *count) {
    tv_v4d mass = vset(0), hit = vset(0);
    tv_v4w hits = {0, 0, 0, 0}, id;
    int64_t j = 0;
    for (; j + 4 <= k; j += 4) {
        const tv_v4d x = vload(w + j);
        memcpy(&id, ids + j, sizeof id);
        const tv_v4w here = id == token;
        mass += x;
        hit += vkeep(vwiden_bits(here), x);
        hits -= here;
    }
    for (int l = 0; j + l < k; l++) {
        const int here = ids[j + l] == token;
        mass[l] += w[j + l];
        hit[l] += here ? w[j + l] : 0;
        hits[l] += here;
    }
    *own = vsum(hit), *count = token < 0 ? 0 : hits[0] + hits[1] + hits[2] + hits[3];
    return vsum(mass);
}

TV_VEC int64_t TV_SLOTS_REALISED(const int32_t *tokens, const int32_t *ids, const float *lps, int64_t m, int64_t k,
                                 int raw, double *w, double *q, int *twice) {
    if (slots_inside(ids, lps, m * k))
        decode(ids, lps, m * k, 1, w);
    else
        decode(ids, lps, m * k, 0, w);
    for (int64_t t = 0; t < m; t++, ids += k, w += k) {
        double own;
        int count;
        const double sum = one_record(tokens[t], ids, w, k, &own, &count);
        *twice = count > 1;
        if (*twice || !(sum < TV_SLOTS_BROKEN)) return t;
        q[t] = raw || sum == 0 ? own : own / sum;
    }
    return -1;
}
