#include "estimator/agreement.h"

#include <math.h>
#include <string.h>

#include "estimator/distance.h"

/* Values of one record that differ; the slots of both are matched by id. */
static int64_t record_differing(const int32_t *ix, const float *lx, int64_t kx, const int32_t *iy, const float *ly,
                                int64_t ky) {
    int64_t used_x = 0, used_y = 0, same = 0;
    for (int64_t j = 0; j < ky; j++) used_y += iy[j] >= 0;
    for (int64_t j = 0; j < kx; j++) {
        if (ix[j] < 0) continue;
        used_x++;
        for (int64_t l = 0; l < ky; l++)
            if (iy[l] == ix[j]) {
                same += memcmp(&lx[j], &ly[l], sizeof *lx) == 0;
                break;
            }
    }
    return (used_x > used_y ? used_x : used_y) - same;
}

void tv_reads_compare(const tv_dataset *data, int s, int x, int64_t rho_x, int y, int64_t rho_y, int64_t *differing,
                      int64_t *of) {
    const tv_set *set = &data->set[s];
    int64_t kx = set->k[x], ky = set->k[y], k = kx > ky ? kx : ky, bad = 0, compared = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad, compared)
    for (int64_t i = 0; i < set->N; i++) {
        int64_t length = tv_trajectory_length(data, set, i);
        const int32_t *ix = tv_row_ids(data, s, x, rho_x, i), *iy = tv_row_ids(data, s, y, rho_y, i);
        const float *lx = tv_row_lps(data, s, x, rho_x, i), *ly = tv_row_lps(data, s, y, rho_y, i);
        const float *ox = tv_row_own_lp(data, s, x, rho_x, i), *oy = tv_row_own_lp(data, s, y, rho_y, i);
        const int32_t *rx = tv_row_rank(data, s, x, rho_x, i), *ry = tv_row_rank(data, s, y, rho_y, i);
        compared += length * (k + (ox && oy) + (rx && ry));
        if (kx != ky || memcmp(ix, iy, (size_t)(length * kx) * sizeof *ix) != 0 ||
            memcmp(lx, ly, (size_t)(length * kx) * sizeof *lx) != 0)
            for (int64_t t = 0; t < length; t++)
                bad += record_differing(ix + t * kx, lx + t * kx, kx, iy + t * ky, ly + t * ky, ky);
        for (int64_t t = 0; t < length && ox && oy; t++) bad += memcmp(&ox[t], &oy[t], sizeof *ox) != 0;
        for (int64_t t = 0; t < length && rx && ry; t++) bad += rx[t] != ry[t];
    }
    *differing += bad;
    *of += compared;
}

int tv_sides_compare(const tv_dataset *data, int64_t *differing, int64_t *of) {
    *differing = *of = 0;
    if (data->folded.any) {
        *differing = data->folded.differing, *of = data->folded.compared;
        return *differing == 0;
    }
    int64_t passes = tv_reads_usable(data);
    for (int s = 0; s < 2; s++)
        for (int64_t rho = 0; rho < passes; rho++) {
            int64_t a = tv_read_index(&data->set[s], TV_A, rho), b = tv_read_index(&data->set[s], TV_B, rho);
            if (rho && a == tv_read_index(&data->set[s], TV_A, rho - 1) &&
                b == tv_read_index(&data->set[s], TV_B, rho - 1))
                break;
            tv_reads_compare(data, s, TV_A, a, TV_B, b, differing, of);
        }
    return *differing == 0;
}

int tv_reads_identical(const tv_dataset *data, int e) {
    if (tv_reads_stored(data, e) < 2) return 0;
    if (data->folded.side[e]) return data->folded.identical[e];
    int64_t differing = 0, of = 0;
    for (int s = 0; s < 2; s++)
        for (int64_t rho = 1; rho < data->set[s].reads[e] && !differing; rho++)
            tv_reads_compare(data, s, e, 0, e, rho, &differing, &of);
    return differing == 0;
}

/* Over the blocks of data: the largest difference and all that is missing; 0 when a block has no records of sampling.
 */
static int blocks_agreement(const tv_dataset *data, int s, double *largest, int64_t *missing) {
    int known = 1;
    *largest = 0, *missing = 0;
    for (int64_t b = 0; b < data->n_blocks && known; b++) {
        double worst;
        int64_t absent;
        known = tv_sampling_agreement(data->block[b], s, &worst, &absent);
        if (known && worst > *largest) *largest = worst;
        if (known) *missing += absent;
    }
    return known;
}

int tv_sampling_agreement(const tv_dataset *data, int s, double *largest, int64_t *missing) {
    if (data->n_blocks > 1) return blocks_agreement(data, s, largest, missing);
    if (data->folded.side[s]) {
        *largest = data->folded.agreement[s], *missing = data->folded.missing[s];
        return data->folded.sampled[s];
    }
    const tv_set *set = &data->set[s];
    int64_t n = data->n, k = set->k[s], ks = set->k_sample, absent = 0;
    double worst = 0;
    int own = set->sample_own_lp && set->own_lp[s];
    *largest = 0, *missing = 0;
    if (!own && !set->sample_ids) return 0;
    for (int64_t rho = 0; rho < set->reads[s]; rho++) {
#pragma omp parallel for schedule(static) reduction(max : worst) reduction(+ : absent)
        for (int64_t i = 0; i < set->N; i++) {
            int64_t length = tv_trajectory_length(data, set, i);
            for (int64_t t = 0; t < length; t++) {
                int64_t at = i * n + t;
                if (own) {
                    double d = fabs((double)set->sample_own_lp[at] - (double)set->own_lp[s][rho][at]);
                    if (d > worst) worst = d; /* both -inf: NaN, which is no difference */
                }
                for (int64_t j = 0; set->sample_ids && j < ks; j++) {
                    int32_t id = set->sample_ids[at * ks + j];
                    if (id < 0) continue;
                    const int32_t *ids = set->ids[s][rho] + at * k;
                    int64_t found = j < k && ids[j] == id ? j : 0;
                    while (found < k && ids[found] != id) found++;
                    if (found == k) {
                        absent++;
                        continue;
                    }
                    double d = fabs((double)set->sample_lps[at * ks + j] - (double)set->lps[s][rho][at * k + found]);
                    if (d > worst) worst = d;
                }
            }
        }
    }
    *largest = worst;
    *missing = absent;
    return 1;
}

/* Adds the sums of one block, in index order: the bits depend on nothing else. */
static void add_bias(const tv_dataset *data, int s, tv_scoring_bias *sums) {
    const tv_set *set = &data->set[s];
    if (data->folded.side[s] || !set->sample_own_lp || !set->own_lp[s]) return;
    for (int64_t rho = 0; rho < set->reads[s]; rho++)
        for (int64_t i = 0; i < set->N; i++)
            for (int64_t t = 0; t < tv_trajectory_length(data, set, i); t++) {
                double d = (double)set->own_lp[s][rho][i * data->n + t] - (double)set->sample_own_lp[i * data->n + t];
                if (!isfinite(d)) continue;
                sums->values++, sums->mean += d, sums->rms += d * d, sums->equal += d == 0;
            }
}

int tv_scoring_bias_run(const tv_dataset *data, int s, tv_scoring_bias *out) {
    *out = (tv_scoring_bias){0};
    if (data->n_blocks > 1)
        for (int64_t b = 0; b < data->n_blocks; b++) add_bias(data->block[b], s, out);
    else
        add_bias(data, s, out);
    if (!out->values) return 0;
    out->mean /= (double)out->values;
    out->rms = sqrt(out->rms / (double)out->values);
    out->equal /= (double)out->values;
    return 1;
}
