/* The hedged estimator's inner loop over one trajectory, built once for each instruction set (hedged_portable.c,
 * hedged_avx2.c define TV_VEC and TV_HEDGED_TRAJECTORY). docs/estimator-hedged.md has the formulas.
 *
 * A cell costs one exp for each stored slot, three logs for each candidate token and few evaluations of the value
 * function: the sums F^S(D) = sum_a o^S(a) G(D + d^S(a)) are needed at three prefixes D (AB, A, B), and nearly all
 * candidates have |d| below the width S of the value function. Around a prefix G is its Taylor series, whose
 * coefficients follow from one evaluation by G' = E and E' = phi/S - E and the Hermite recurrence; its argument enters
 * through the moments sum o d^m, which all prefixes share. Candidates farther out are evaluated one by one, lanes =
 * prefixes. */
#include "estimator/hedged_internal.h"

#include <math.h>
#include <string.h>

#include "estimator/vecmath.h"

enum { LANE_AB = 0, LANE_A = 1, LANE_B = 2 };

/* G(D, v, tau2) in each lane, and its parts: E = dG/dD = e^{-D + tau2/2} Phi(b), phi = the normal density at a. */
TV_VEC_FN tv_v4d value(tv_v4d D, double v, double S, double tau2, tv_v4d *E, tv_v4d *phi, tv_v4d *a_out) {
    if (!(S > 0)) {
        tv_v4i up = D > vset(0.0);
        *E = *phi = *a_out = vset(0.0);
        return vkeep(up, vset(1.0) - vexp(-vpick(up, D, vset(0.0))));
    }
    const double inv = 1.0 / S;
    /* Clipped so that squares stay finite; at 1e8 every tail is long 0. */
    tv_v4d a = (D + vset(0.5 * v)) * vset(inv);
    a = vpick(a < vset(1e8), a, vset(1e8));
    a = vpick(a > vset(-1e8), a, vset(-1e8));
    tv_v4d b = (D - vset(0.5 * v + tau2)) * vset(inv);
    b = vpick(b < vset(1e8), b, vset(1e8));
    b = vpick(b > vset(-1e8), b, vset(-1e8));
    const tv_v4d root_half = vset(0x1.6a09e667f3bcdp-1), zero = vset(0.0);
    /* e^{-D + tau2/2} e^{-b^2/2} = e^{-a^2/2}: both tails share one exponential, and no product overflows. */
    tv_v4d ea = vexp(vset(-0.5) * (a * a));
    tv_v4d tail_a = ea * vhalf_erfcx(vabs(a) * root_half), tail_b = ea * vhalf_erfcx(vabs(b) * root_half);
    tv_v4d cdf = vpick(a < zero, tail_a, vset(1.0) - tail_a);
    tv_v4d e = vpick(b < zero, tail_b, vexp(vset(0.5 * tau2) - vpick(b < zero, zero, D)) - tail_b);
    tv_v4i low = D < vset(-700.0);
    e = vpick(low, zero, e);
    *E = e;
    *phi = vpick(low, zero, ea * vset(0x1.9884533d43651p-2));
    *a_out = a;
    return vpick(low, zero, cdf - e);
}

/* Puts the record's most likely `limit` slots (in storage order where nothing is cut) into rid and rlp, padded with
 * empty slots to a multiple of four; returns that count. */
TV_VEC_FN int64_t take_record(const tv_hedged_scratch *s, const int32_t *ids, const float *lps, int64_t k,
                              int64_t limit) {
    int32_t *const rid = s->rid;
    float *const rlp = s->rlp;
    int64_t count = 0;
    if (limit >= k) {
        for (; count < k; count++) rid[count] = ids[count], rlp[count] = lps[count];
    } else {
        for (int64_t j = 0; j < k; j++) {
            if (ids[j] < 0) continue;
            /* Insert by descending log-probability, ties by lowest id; stored order makes this one comparison a slot.
             */
            int64_t at = count;
            while (at > 0 && (rlp[at - 1] < lps[j] || (rlp[at - 1] == lps[j] && rid[at - 1] > ids[j]))) at--;
            if (at >= limit) continue;
            if (count < limit) count++;
            for (int64_t q = count - 1; q > at; q--) rid[q] = rid[q - 1], rlp[q] = rlp[q - 1];
            rid[at] = ids[j], rlp[at] = lps[j];
        }
    }
    while (count % 4) rid[count] = -1, rlp[count] = 0, count++;
    return count;
}

/* Weights e^lp of a record into rw (0 in empty slots) and their sum. count: a multiple of four. */
TV_VEC_FN double weigh_record(const int32_t *ids, const float *lps, int64_t count, double *rw) {
    tv_v4d mass = vset(0.0);
    for (int64_t j = 0; j < count; j += 4) {
        tv_v4f lp;
        tv_v4w id;
        memcpy(&lp, lps + j, sizeof lp);
        memcpy(&id, ids + j, sizeof id);
        tv_v4i filled = __builtin_convertvector(id, tv_v4i) >= 0;
        tv_v4d w = vkeep(filled, vexp(__builtin_convertvector(lp, tv_v4d)));
        vstore(rw + j, w);
        mass += w;
    }
    return vsum(mass);
}

/* Index of id (>= 0) among the first n of uid, where it stands at most once, or -1. Reads up to seven entries behind n,
 * which may hold anything. */
TV_VEC_FN int32_t find(const int32_t *uid, int64_t n, int32_t id) {
    tv_v8w at = {1, 2, 3, 4, 5, 6, 7, 8}, found = {0}, all;
    for (int64_t j = 0; j < n; j += 8) {
        memcpy(&all, uid + j, sizeof all);
        found |= (all == id) & (at <= (int32_t)n) & at;
        at += 8;
    }
    const tv_v4i halves = (tv_v4i)found; /* one lane at most is not zero */
    const int64_t both = (halves[0] | halves[1]) | (halves[2] | halves[3]);
    return (int32_t)((uint64_t)both | (uint64_t)both >> 32) - 1;
}

/* Averages side's records of cell (i,t) into half A and B weights; own records extend the union, the other side's only
 * look it up. Returns the union's new size, or -1 with the fault filled. */
TV_VEC_FN int64_t gather(const tv_hedged_job *job, const tv_hedged_scratch *s, const tv_hedged_side *side, int is_other,
                         int64_t i, int64_t t, int64_t n_union, tv_hedged_fault *fault) {
    const int64_t half = side->reads > 1 ? side->reads / 2 : 1, k = side->k;
    const int64_t rows = job->N / job->blocks, block = i / rows;
    const size_t offset = ((size_t)(i - block * rows) * (size_t)job->n + (size_t)t) * (size_t)k;
    int32_t *const hint = s->hint, *const uid = s->uid;
    double *const oA = s->oA, *const oB = s->oB, *const wA = s->wA, *const wB = s->wB, *const rw = s->rw;
    for (int64_t rho = 0; rho < side->reads; rho++) {
        const int32_t *ids = side->ids[rho * job->blocks + block] + offset;
        int64_t count = k;
        double mass = 1;
        if (side->probs) { /* folded: renormalised over the readout already */
            memcpy(rw, side->probs[rho * job->blocks + block] + offset, (size_t)k * sizeof *rw);
            if (!(rw[0] > 0)) continue; /* the largest */
        } else {
            const float *lps = side->lps[rho * job->blocks + block] + offset;
            if (k % 4 || job->readout < k) {
                count = take_record(s, ids, lps, k, job->readout);
                ids = s->rid, lps = s->rlp;
            }
            mass = weigh_record(ids, lps, count, rw);
        }
        if (!(mass <= 1.0 + 2e-3)) { /* NaN and log-probabilities above 0 end here */
            *fault = (tv_hedged_fault){.bad = 1, .side = is_other, .read = rho, .t = t};
            return -1;
        }
        if (!(mass > 0)) continue; /* a record without a slot gives no mass to any token */
        const double scale = job->raw ? 1.0 / (double)half : 1.0 / (mass * (double)half);
        double *const into = is_other ? (rho < half ? wA : wB) : (rho < half ? oA : oB);
        if (n_union == 0 && !is_other) {
            /* The first record is the union: ids stand once in a record. */
            for (int64_t j = 0; j < count; j++) {
                if (ids[j] < 0) continue;
                const int64_t at = n_union++;
                uid[at] = ids[j];
                oA[at] = oB[at] = wA[at] = wB[at] = 0;
                into[at] = rw[j] * scale;
                hint[j] = (int32_t)at;
            }
            continue;
        }
        for (int64_t j = 0; j < count; j++) {
            const int32_t id = ids[j];
            if (id < 0) continue;
            /* Ranks seldom move: slot j is where slot j of the record before was found. */
            int64_t at = j < k ? hint[j] : 0;
            if (at >= n_union || uid[at] != id) {
                at = find(uid, n_union, id);
                if (at < 0) {
                    if (is_other) continue;
                    at = n_union++;
                    uid[at] = id;
                    oA[at] = oB[at] = wA[at] = wB[at] = 0;
                }
                hint[j] = (int32_t)at;
            }
            into[at] += rw[j] * scale;
        }
    }
    return n_union;
}

/* log(o/w) where both are positive, +inf elsewhere. */
TV_VEC_FN tv_v4d log_ratio(tv_v4d o, tv_v4d w) {
    const tv_v4d zero = vset(0.0), one = vset(1.0);
    tv_v4i both = (o > zero) & (w > zero);
    tv_v4d q = vpick(both, o, one) / vpick(both, w, one);
    q = vpick(q < vset(1e300), q, vset(1e300)); /* vlog wants normal, finite numbers */
    q = vpick(q > vset(1e-300), q, vset(1e-300));
    return vpick(both, vlog(q), vset(INFINITY));
}

TV_VEC void TV_HEDGED_TRAJECTORY(const tv_hedged_job *job, tv_hedged_scratch *s, int64_t i, int what,
                                 tv_hedged_row *row, tv_hedged_fault *fault) {
    const int64_t n = job->n, length = job->lengths ? job->lengths[i] : n;
    const int32_t *x = job->tokens + (size_t)i * (size_t)n;
    const tv_v4d zero = vset(0.0), infinity = vset(INFINITY);
    double D[4] = {0, 0, 0, 0}; /* prefixes, by lane */
    int dead[4] = {0, 0, 0, 1}; /* a dead prefix never moves again */
    double sum[3] = {0, 0, 0};  /* jackknifed increments by lane: T2, and the two halves of T2x */
    double T0 = 0, C = 0, qv = 0, haz = 0, gap2 = 0, mass = 0, steps = 0, inverse = 0;
    int64_t n_union = 0;
    /* Locals, because the compiler must otherwise expect every store to move the arrays. */
    double *const a_oA = s->oA, *const a_oB = s->oB, *const a_wA = s->wA, *const a_wB = s->wB;
    double *const a_dA = s->dA, *const a_dB = s->dB, *const a_dAB = s->dAB;
    double *const a_xA = s->xA, *const a_xB = s->xB, *const a_xAB = s->xAB;
    double *const a_pA = s->pA, *const a_pB = s->pB, *const a_pAB = s->pAB;
    double *const a_nA = s->nA, *const a_nB = s->nB, *const a_nAB = s->nAB;
    for (int64_t j = 0; j < (job->own.k > job->other.k ? job->own.k : job->other.k); j++) s->hint[j] = (int32_t)j;
    for (int64_t t = 0; t < length; t++) {
        if (dead[LANE_AB] && dead[LANE_A] && dead[LANE_B] && !(what & TV_HEDGED_MOMENTS)) break;
        n_union = gather(job, s, &job->own, 0, i, t, 0, fault);
        if (n_union < 0) return;
        if (gather(job, s, &job->other, 1, i, t, n_union, fault) < 0) return;
        if (job->own.reads == 1) memcpy(a_oB, a_oA, (size_t)n_union * sizeof(double));
        if (job->other.reads == 1) memcpy(a_wB, a_wA, (size_t)n_union * sizeof(double));
        const int64_t padded = (n_union + 3) & ~(int64_t)3;
        for (int64_t j = n_union; j < padded; j++) a_oA[j] = a_oB[j] = a_wA[j] = a_wB[j] = 0;
        const int32_t jx = x[t] >= 0 ? find(s->uid, n_union, x[t]) : -1;

        for (int64_t j = 0; j < padded; j += 4) {
            vstore(a_dA + j, log_ratio(vload(a_oA + j), vload(a_wA + j)));
            vstore(a_dB + j, log_ratio(vload(a_oB + j), vload(a_wB + j)));
        }
        /* The average over all reads: for every candidate where values are wanted, else for the realised token's four.
         */
        const int64_t from = what & TV_HEDGED_VALUES ? 0 : jx >= 0 ? jx & ~3 : padded;
        const int64_t upto = what & TV_HEDGED_VALUES ? padded : from < padded ? from + 4 : padded;
        for (int64_t j = from; j < upto; j += 4)
            vstore(a_dAB + j, log_ratio(vset(0.5) * (vload(a_oA + j) + vload(a_oB + j)),
                                        vset(0.5) * (vload(a_wA + j) + vload(a_wB + j))));
        if (what & TV_HEDGED_MOMENTS) {
            tv_v4d s1 = zero, sa = zero, sb = zero, mAB = zero, mA = zero, mB = zero, gap = zero, seen = zero;
            for (int64_t j = 0; j < padded; j += 4) {
                const tv_v4d oA = vload(a_oA + j), oB = vload(a_oB + j), wA = vload(a_wA + j), wB = vload(a_wB + j);
                const tv_v4d dA = vload(a_dA + j), dB = vload(a_dB + j), oAB = vset(0.5) * (oA + oB);
                const tv_v4i finite = (dA < infinity) & (dB < infinity);
                const tv_v4d ka = vkeep(finite, dA), kb = vkeep(finite, dB), ko = vkeep(finite, oAB);
                s1 += ko * ka * kb, sa += ko * ka, sb += ko * kb;
                gap += ko * (ka - kb) * (ka - kb), seen += ko;
                mAB += vkeep(vset(0.5) * (wA + wB) <= zero, oAB);
                mA += vkeep(wA <= zero, oA), mB += vkeep(wB <= zero, oB);
            }
            qv += vsum(s1) - vsum(sa) * vsum(sb);
            gap2 += vsum(gap), mass += vsum(seen);
            haz += 2 * vsum(mAB) - 0.5 * (vsum(mA) + vsum(mB));
        }

        if ((what & TV_HEDGED_VALUES) && !(dead[LANE_AB] && dead[LANE_A] && dead[LANE_B])) {
            const double v = job->v[t + 1], S = job->S[t + 1], H = job->H[t + 1], tau2 = job->tau2;
            const tv_v4d prefix = vload(D);
            tv_v4d E, phi, a;
            tv_v4d before = zero; /* U_{t-1}(D) */
            if (t > 0) {
                const double H0 = job->H[t];
                before = vset(H0) + vset(1.0 - H0) * value(prefix, job->v[t], job->S[t], tau2, &E, &phi, &a);
            }
            const tv_v4d centre = value(prefix, v, S, tau2, &E, &phi, &a);

            /* Near slots: |d| <= min(S, 1) in every average. */
            const double inv = S > 0 ? 1.0 / S : 0;
            const tv_v4d reach = vset(S < 1 ? S : 1.0);
            tv_v4d n0A = zero, n0B = zero, n0AB = zero, all_A = zero, all_B = zero, all_AB = zero;
            tv_v4d step = zero, small = zero;
            for (int64_t j = 0; j < padded; j += 4) {
                const tv_v4d dA = vload(a_dA + j), dB = vload(a_dB + j), dAB = vload(a_dAB + j);
                const tv_v4d oA = vload(a_oA + j), oB = vload(a_oB + j), oAB = vset(0.5) * (oA + oB);
                tv_v4i near = (vabs(dA) <= reach) & (vabs(dB) <= reach) & (vabs(dAB) <= reach);
                if (!(S > 0)) near = near & 0;
                vstore(a_xA + j, vkeep(near, dA) * vset(inv));
                vstore(a_xB + j, vkeep(near, dB) * vset(inv));
                vstore(a_xAB + j, vkeep(near, dAB) * vset(inv));
                vstore(a_pA + j, vkeep(near, vset(1.0)));
                vstore(a_pB + j, vkeep(near, vset(1.0)));
                vstore(a_pAB + j, vkeep(near, vset(1.0)));
                const tv_v4d nA = vkeep(near, oA), nB = vkeep(near, oB), nAB = vkeep(near, oAB);
                vstore(a_nA + j, nA);
                vstore(a_nB + j, nB);
                vstore(a_nAB + j, nAB);
                n0A += nA, n0B += nB, n0AB += nAB;
                all_A += oA, all_B += oB, all_AB += oAB;
                /* Candidates whose log-ratio stands out from the noise of the arm and from its own. */
                const tv_v4d size = vabs(dAB);
                const tv_v4i clear =
                    (dA < infinity) & (dB < infinity) & (size > vset(job->noise)) & (size > vabs(dA - dB));
                step += vkeep(clear, oAB), small += vkeep(clear, oAB / (dAB * dAB));
            }
            steps += vsum(step), inverse += vsum(small);
            const double massA = vsum(all_A), massB = vsum(all_B), massAB = vsum(all_AB);
            /* sum_a o G for each average, lanes = prefixes; crossP = sum_a o^Q G(D^AB + d^P(a)), Q the other half. */
            tv_v4d FA = vset(vsum(n0A)) * centre, FB = vset(vsum(n0B)) * centre, FAB = vset(vsum(n0AB)) * centre;
            double crossA = vsum(n0B) * centre[LANE_AB], crossB = vsum(n0A) * centre[LANE_AB];
            double realA = 1, realB = 1; /* G(D^AB + d^P(x)); 1 where the token is absent */
            const int near_x = jx >= 0 && a_pA[jx] > 0;
            if (near_x) realA = realB = centre[LANE_AB];

            if (S > 0) {
                /* Taylor: g = S^m G^(m)(D); h = (-1)^m He_m(a) phi(a). */
                tv_v4d g = vset(S) * E, h = phi, h_before = zero;
                for (int m = 1; m <= TV_HEDGED_MAX_ORDER; m++) {
                    tv_v4d cA = zero, cB = zero, cAB = zero, xA = zero, xB = zero;
                    for (int64_t j = 0; j < padded; j += 4) {
                        const tv_v4d pA = vload(a_pA + j) * vload(a_xA + j);
                        const tv_v4d pB = vload(a_pB + j) * vload(a_xB + j);
                        const tv_v4d pAB = vload(a_pAB + j) * vload(a_xAB + j);
                        vstore(a_pA + j, pA);
                        vstore(a_pB + j, pB);
                        vstore(a_pAB + j, pAB);
                        const tv_v4d nA = vload(a_nA + j), nB = vload(a_nB + j);
                        cA += nA * pA, cB += nB * pB, cAB += vload(a_nAB + j) * pAB;
                        xA += nB * pA, xB += nA * pB;
                    }
                    const tv_v4d c = g * vset(tv_hedged_inverse_factorial[m]);
                    const double momentA = vsum(cA), momentB = vsum(cB), momentAB = vsum(cAB);
                    const double mixedA = vsum(xA), mixedB = vsum(xB);
                    FA += c * vset(momentA), FB += c * vset(momentB), FAB += c * vset(momentAB);
                    crossA += c[LANE_AB] * mixedA, crossB += c[LANE_AB] * mixedB;
                    if (near_x) realA += c[LANE_AB] * a_pA[jx], realB += c[LANE_AB] * a_pB[jx];
                    if (m % 2 == 0) {
                        /* Even moments bound the next term: every candidate's power counts with its weight. */
                        double most = momentA > momentB ? momentA : momentB;
                        most = momentAB > most ? momentAB : most;
                        most = mixedA > most ? mixedA : most;
                        most = mixedB > most ? mixedB : most;
                        if (near_x) {
                            most = a_pA[jx] > most ? a_pA[jx] : most;
                            most = a_pB[jx] > most ? a_pB[jx] : most;
                        }
                        if (most * tv_hedged_term_bound[m] < 1e-15) break;
                    }
                    g = vset(S) * (h - g);
                    const tv_v4d h_next = -(a * h) - vset((double)(m - 1)) * h_before;
                    h_before = h, h = h_next;
                }
            }

            for (int64_t j = 0; j < n_union; j++) {
                if (a_nAB[j] > 0) continue;
                const double oA = a_oA[j], oB = a_oB[j];
                const double d[3] = {a_dAB[j], a_dA[j], a_dB[j]};
                tv_v4d G[3];
                for (int q = 0; q < 3; q++) {
                    tv_v4d e1, e2, e3;
                    G[q] = d[q] < INFINITY ? value(prefix + vset(d[q]), v, S, tau2, &e1, &e2, &e3) : vset(1.0);
                }
                FAB += vset(0.5 * (oA + oB)) * G[0];
                FA += vset(oA) * G[1], FB += vset(oB) * G[2];
                crossA += oB * G[1][LANE_AB], crossB += oA * G[2][LANE_AB];
                if (j == jx) realA = G[1][LANE_AB], realB = G[2][LANE_AB];
            }

            const tv_v4d one_H = vset(1.0 - H);
            FA = vset(H * massA) + one_H * FA, FB = vset(H * massB) + one_H * FB, FAB = vset(H * massAB) + one_H * FAB;
            const tv_v4d J = vset(2.0) * FAB - vset(0.5) * (FA + FB) - before;
            for (int lane = 0; lane < 3; lane++)
                if (!dead[lane]) sum[lane] += J[lane];
            if (!dead[LANE_AB]) {
                T0 += FAB[LANE_AB] - before[LANE_AB];
                C += 0.5 * ((H + (1 - H) * realA) - (H * massB + (1 - H) * crossA));
                C += 0.5 * ((H + (1 - H) * realB) - (H * massA + (1 - H) * crossB));
            }
        }

        const double step[3] = {jx >= 0 ? a_dAB[jx] : INFINITY, jx >= 0 ? a_dA[jx] : INFINITY,
                                jx >= 0 ? a_dB[jx] : INFINITY};
        for (int lane = 0; lane < 3; lane++) {
            if (dead[lane]) continue;
            if (step[lane] < INFINITY)
                D[lane] += step[lane];
            else
                dead[lane] = 1;
        }
    }
    if (what & TV_HEDGED_VALUES) {
        /* Behind an early end nothing is drawn any more: D stays, and what is left of the value function is paid. */
        tv_v4d e1, e2, e3;
        const tv_v4d prefix = vload(D);
        if (length < n) {
            tv_v4d last = value(prefix, job->v[n], job->S[n], job->tau2, &e1, &e2, &e3);
            if (length > 0) {
                const double H = job->H[length];
                last -=
                    vset(H) + vset(1.0 - H) * value(prefix, job->v[length], job->S[length], job->tau2, &e1, &e2, &e3);
            }
            for (int lane = 0; lane < 3; lane++)
                if (!dead[lane]) sum[lane] += last[lane];
            if (!dead[LANE_AB]) T0 += last[LANE_AB];
        }
        row->T0 = T0;
        row->T2 = sum[LANE_AB];
        row->T2x = 0.5 * (sum[LANE_A] + sum[LANE_B]);
        row->C = C;
        row->steps = steps, row->inverse = inverse;
    }
    if (what & TV_HEDGED_MOMENTS) {
        row->qv = qv;
        row->haz = haz / (double)n;
        row->gap2 = gap2, row->mass = mass;
        row->DA = dead[LANE_A] ? NAN : D[LANE_A];
        row->DB = dead[LANE_B] ? NAN : D[LANE_B];
        row->DAB = dead[LANE_AB] ? NAN : D[LANE_AB];
    }
}
