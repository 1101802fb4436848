#include "estimator/synthetic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "estimator/permute.h"
#include "kernels/philox.h"

/* ---- Random numbers
 * -------------------------------------------------------------------------------------------------- */

/* Draws 0, 1, 2, ... of sample `id` of a stream. */
typedef struct {
    uint64_t key, id;
    uint32_t next;
    int left;
    tv_philox4 buffer;
    int have_normal;
    double normal;
} stream;

/* A key for the tuple (seed, a, b, c). */
static uint64_t fold_key(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
    const uint64_t parts[3] = {a, b, c};
    for (int i = 0; i < 3; i++) {
        uint64_t state = seed ^ parts[i];
        seed = tv_splitmix64(&state);
    }
    return seed;
}

static stream stream_new(uint64_t key, uint64_t id) { return (stream){.key = key, .id = id}; }

static uint32_t stream_word(stream *s) {
    if (s->left == 0) {
        s->buffer = tv_philox(s->key, s->id, (uint64_t)TV_USE_SYNTHETIC << 32 | s->next++);
        s->left = 4;
    }
    return s->buffer.v[--s->left];
}
/* Uniform in (0,1), 32 bits. */
static double stream_uniform(stream *s) { return ((double)stream_word(s) + 0.5) * 0x1p-32; }
/* Standard normal (Box and Muller). */
static double stream_normal(stream *s) {
    if (s->have_normal) {
        s->have_normal = 0;
        return s->normal;
    }
    const double radius = sqrt(-2 * log(stream_uniform(s))), angle = 2 * M_PI * stream_uniform(s);
    s->normal = radius * sin(angle);
    s->have_normal = 1;
    return radius * cos(angle);
}

/* ---- Chains
 * ---------------------------------------------------------------------------------------------------------- */

static const unsigned char hard_mask[512] = {
#include "estimator/hard_mask.h"
};
static int hard_active(int block) { return hard_mask[block >> 3] >> (block & 7) & 1; }

static tv_status chain_new(tv_chain *c, const char *name, int n, int S, int k, tv_err *err) {
    memset(c, 0, sizeof *c);
    if (n < 1 || n > 1 << 20 || S < 1 || k < 2 || k > 4096 || (int64_t)S * k > 1 << 24)
        return TV_FAIL(err, TV_EARG, "%s instance: n=%d, %d contexts, %d tokens is outside what can be built", name, n,
                       S, k);
    c->n = n, c->S = S, c->k = k;
    const size_t cells = (size_t)S * (size_t)k;
    for (int side = 0; side < 2; side++) {
        c->p[side] = tv_xcalloc(cells, sizeof(double));
        c->cum[side] = tv_xcalloc(cells, sizeof(double));
    }
    c->step = tv_xcalloc(cells, sizeof *c->step);
    c->next = tv_xcalloc(cells, sizeof *c->next);
    snprintf(c->name, sizeof c->name, "%s", name);
    return TV_OK;
}

void tv_chain_free(tv_chain *c) {
    for (int side = 0; side < 2; side++) {
        free(c->p[side]);
        free(c->cum[side]);
    }
    free(c->step);
    free(c->next);
    memset(c, 0, sizeof *c);
}

static void chain_finish(tv_chain *c) {
    for (int side = 0; side < 2; side++)
        for (int s = 0; s < c->S; s++) {
            double sum = 0;
            for (int j = 0; j < c->k; j++) c->cum[side][s * c->k + j] = sum += c->p[side][s * c->k + j];
        }
}

static void set_token(tv_chain *c, int s, int j, double pa, double pb, int step, int next) {
    c->p[0][s * c->k + j] = pa;
    c->p[1][s * c->k + j] = pb;
    c->step[s * c->k + j] = step;
    c->next[s * c->k + j] = next;
}

tv_status tv_chain_hard(tv_chain *c, tv_err *err) {
    enum { BITS = 12, BLOCKS = 1 << BITS, CERTAIN = 115 };
    /* Contexts: the 4095 inner nodes of the block tree (heap order from 1, context = node - 1), then for inactive (0)
     * and active (1) blocks the 115 certain positions and the last bit. */
    const int tail = BLOCKS - 1;
    TV_TRY(chain_new(c, "hard", BITS + CERTAIN + 1, tail + 2 * (CERTAIN + 1), 2, err));
    c->delta = log(0.99 / 0.01);
    for (int node = 1; node < BLOCKS; node++)
        for (int bit = 0; bit < 2; bit++) {
            const int child = 2 * node + bit;
            set_token(c, node - 1, bit, 0.5, 0.5, 0,
                      child < BLOCKS ? child - 1 : tail + hard_active(child - BLOCKS) * (CERTAIN + 1));
        }
    for (int active = 0; active < 2; active++) {
        const int from = tail + active * (CERTAIN + 1);
        for (int t = 0; t < CERTAIN; t++) set_token(c, from + t, 0, 1, 1, 0, from + t + 1);
        set_token(c, from + CERTAIN, 0, active ? 0.99 : 0.5, active ? 0.01 : 0.5, active, from + CERTAIN);
        set_token(c, from + CERTAIN, 1, active ? 0.01 : 0.5, active ? 0.99 : 0.5, -active, from + CERTAIN);
    }
    chain_finish(c);
    return TV_OK;
}

tv_status tv_chain_escape(int n, int K, double delta, tv_chain *c, tv_err *err) {
    if (K < 2 || K % 2 || !(delta >= 0 && delta < 50))
        return TV_FAIL(err, TV_EARG, "escape instance: K=%d must be even and at least 2, delta=%g within [0, 50)", K,
                       delta);
    TV_TRY(chain_new(c, "escape", n, 2, K + 1, err));
    c->delta = delta;
    const double leave = 1.0 / n, high = 2.0 / K / (1 + exp(-delta)), low = 2.0 / K / (1 + exp(delta));
    set_token(c, 0, 0, 1 - leave, 1 - leave, 0, 0);
    for (int j = 1; j <= K; j++)
        set_token(c, 0, j, leave * (j % 2 ? high : low), leave * (j % 2 ? low : high), j % 2 ? 1 : -1, 1);
    set_token(c, 1, 0, 1, 1, 0, 1);
    chain_finish(c);
    return TV_OK;
}

tv_status tv_chain_markov(const tv_markov_options *o, tv_chain *c, tv_err *err) {
    if (o->k < 3 || o->topics < 1 || o->contexts < o->topics || !(o->delta >= 0 && o->delta <= 1) ||
        !(o->mismatch >= 0 && o->mismatch <= 1))
        return TV_FAIL(
            err, TV_EARG,
            "Markov instance: k=%d (at least 3), %d topics, %d contexts (at least one a topic), delta=%g and "
            "mismatch=%g within [0, 1]",
            o->k, o->topics, o->contexts, o->delta, o->mismatch);
    TV_TRY(chain_new(c, o->mismatch > 0 ? "markov-mismatch" : "markov", o->n, o->contexts, o->k, err));
    c->delta = o->delta;
    const int per_topic = o->contexts / o->topics, k = o->k, pairs = (k - 1) / 2;
    const int exclusive_pair = pairs < 3 ? pairs : 3;
    for (int s = 0; s < c->S; s++) {
        stream g = stream_new(fold_key(o->seed, 1, 0, 0), (uint64_t)s);
        const int topic = s / per_topic < o->topics ? s / per_topic : o->topics - 1;
        /* Masses: the top token, then pairs of equal total. The top token's log-ratio is 0, as most tokens' nearly is.
         */
        double mass[2048], total = 0;
        const double peak = exp(0.6 + stream_normal(&g));
        for (int j = 0; j <= pairs; j++) {
            double lg = -peak * pow(2.0 * j, 0.8) + 0.4 * stream_normal(&g);
            mass[j] = exp(lg > -14 ? lg : -14) * (j ? 2 : 1);
            total += mass[j];
        }
        const double spread = 1.0 + topic; /* topics carry different amounts of evidence */
        const double exclusive = stream_uniform(&g);
        for (int j = 0; j <= pairs; j++) {
            const double m = mass[j] / total;
            int next[2];
            for (int side = 0; side < 2; side++) {
                const int to = stream_uniform(&g) < 0.02 ? (int)(stream_uniform(&g) * o->topics) : topic;
                next[side] = to * per_topic + (int)(stream_uniform(&g) * per_topic);
            }
            if (j == 0) {
                set_token(c, s, 0, m, m, 0, next[0]);
                continue;
            }
            /* Student-like steps: a normal over a chi with five degrees. */
            double chi = 0;
            for (int q = 0; q < 5; q++) {
                const double z = stream_normal(&g);
                chi += z * z;
            }
            int step = (int)lrint(spread * stream_normal(&g) / sqrt(chi / 5));
            step = step > 12 ? 12 : step < -12 ? -12 : step;
            const double high = m / (1 + exp(-step * o->delta)), low = m / (1 + exp(step * o->delta));
            if (j == exclusive_pair && exclusive < o->mismatch) {
                set_token(c, s, 2 * j - 1, m, 0, TV_STEP_ONLY_A, next[0]);
                set_token(c, s, 2 * j, 0, m, TV_STEP_ONLY_B, next[1]);
            } else {
                set_token(c, s, 2 * j - 1, high, low, step, next[0]);
                set_token(c, s, 2 * j, low, high, -step, next[1]);
            }
        }
    }
    chain_finish(c);
    return TV_OK;
}

/* ---- Exact distance
 * -------------------------------------------------------------------------------------------------- */

/* f[s][d - low] = probability under side a of context s and lattice log-ratio d, d in low..low+width-1. */
tv_status tv_chain_exact(const tv_chain *c, tv_chain_distance *out, tv_err *err) {
    const double drop = 1e-18;
    int most = 0;
    for (int j = 0; j < c->S * c->k; j++) {
        const int step = abs(c->step[j]);
        if (step < TV_STEP_ONLY_A && step > most) most = step;
    }
    /* The table holds what could be reached; pruning keeps the part in use far smaller. */
    const int64_t reach = (int64_t)c->n * most;
    if ((2 * reach + 1) * c->S > (int64_t)1 << 27)
        return TV_FAIL(err, TV_ENOMEM,
                       "%s instance: exact TV needs a table of %lld x %d values; use fewer tokens or contexts", c->name,
                       (long long)(2 * reach + 1), c->S);
    *out = (tv_chain_distance){0};
    for (int side = 0; side < 2; side++) {
        const size_t width = (size_t)(2 * reach + 1), cells = width * (size_t)c->S;
        double *now = calloc(cells, sizeof *now), *then = calloc(cells, sizeof *then);
        if (!now || !then) {
            free(now);
            free(then);
            return TV_FAIL(err, TV_ENOMEM, "%s instance: %zu bytes for the exact TV are not available", c->name,
                           2 * cells * sizeof *now);
        }
        int64_t low = reach, high = reach; /* indices in use */
        double dead = 0;
        now[(size_t)c->start * width + (size_t)reach] = 1;
        for (int t = 0; t < c->n; t++) {
            for (int s = 0; s < c->S; s++) {
                const double *row = now + (size_t)s * width;
                for (int j = 0; j < c->k; j++) {
                    const double p = c->p[side][s * c->k + j];
                    if (!(p > 0)) continue;
                    const int step = c->step[s * c->k + j];
                    if (abs(step) >= TV_STEP_ONLY_A) {
                        for (int64_t d = low; d <= high; d++) dead += row[d] * p;
                        continue;
                    }
                    double *to = then + (size_t)c->next[s * c->k + j] * width + step;
                    for (int64_t d = low; d <= high; d++) to[d] += row[d] * p;
                }
            }
            const int64_t from = low, upto = high;
            low -= most, high += most; /* never beyond the table: it has room for n such steps */
            for (int s = 0; s < c->S; s++)
                memset(now + (size_t)s * width + from, 0, (size_t)(upto - from + 1) * sizeof *now);
            double *swap = now;
            now = then, then = swap;
            /* Drop lattice ends that carry next to nothing over all contexts. */
            for (int end = 0; end < 2; end++)
                for (double gone = 0; low < high;) {
                    int64_t *edge = end ? &high : &low;
                    for (int s = 0; s < c->S; s++) gone += now[(size_t)s * width + (size_t)*edge];
                    if (!(gone < drop)) break;
                    for (int s = 0; s < c->S; s++) now[(size_t)s * width + (size_t)*edge] = 0;
                    *edge += end ? -1 : 1;
                }
        }
        if (side == 0) {
            double tv = dead;
            for (int64_t d = low; d <= high; d++) {
                double sum = 0;
                for (int s = 0; s < c->S; s++) sum += now[(size_t)s * width + (size_t)d];
                if (d > reach) tv += sum * -expm1(-(double)(d - reach) * c->delta);
            }
            out->tv = tv;
        }
        out->mismatch[side] = dead;
        free(now);
        free(then);
    }
    return TV_OK;
}

/* ---- Oracles
 * --------------------------------------------------------------------------------------------------------- */

enum { TABLE = 4096 };

/* Quantiles at (i + 1/2)/4096 of the read noise (mean 0, variance 1) and of the cell scale (mean square 1). */
typedef struct {
    double noise[TABLE], scale[TABLE];
    double unit; /* sigma over the root of the mean of sum_a p(1-p) that side a visits */
} noise_table;

/* z with Phi(z) = u: Newton's method from the logistic approximation. */
static double normal_quantile(double u) {
    double z = log(u / (1 - u)) / 1.702;
    for (int i = 0; i < 60; i++) {
        const double f = 0.5 * erfc(-z / M_SQRT2) - u, slope = exp(-0.5 * z * z) / sqrt(2 * M_PI);
        double move = f / (slope > 1e-12 ? slope : 1e-12);
        move = move > 0.5 ? 0.5 : move < -0.5 ? -0.5 : move;
        z -= move;
        if (fabs(move) < 1e-15) break;
    }
    return z;
}

static int draw_token(const tv_chain *c, int side, int s, double u) {
    const double *cum = c->cum[side] + (size_t)s * (size_t)c->k, *p = c->p[side] + (size_t)s * (size_t)c->k;
    int last = 0;
    u *= cum[c->k - 1];
    for (int j = 0; j < c->k; j++) {
        if (!(p[j] > 0)) continue;
        last = j;
        if (u < cum[j]) break;
    }
    return last;
}

/* Contexts and tokens [n] of trajectory id of a side. */
static void draw_path(const tv_chain *c, uint64_t seed, int side, uint64_t id, int32_t *contexts, int32_t *tokens) {
    stream g = stream_new(fold_key(seed, 2, (uint64_t)side, 0), id);
    int s = c->start;
    for (int t = 0; t < c->n; t++) {
        contexts[t] = s;
        const double *p = c->p[side] + (size_t)s * (size_t)c->k;
        const int x = p[0] >= 1 ? 0 : draw_token(c, side, s, stream_uniform(&g)); /* certain tokens cost no draw */
        tokens[t] = x;
        s = c->next[(size_t)s * (size_t)c->k + (size_t)x];
    }
}

static noise_table *noise_new(const tv_chain *c, const tv_oracle *o) {
    noise_table *table = tv_xcalloc(1, sizeof *table);
    if (o->kind != TV_ORACLE_HEAVY) return table;
    double square_n = 0, square_s = 0;
    for (int i = 0; i < TABLE; i++) {
        const double z = normal_quantile((i + 0.5) / TABLE);
        table->noise[i] = sinh(0.81 * z); /* Johnson's SU: excess kurtosis about 9 */
        table->scale[i] = exp(0.83 * z);  /* square: lognormal, 99th percentile 12 times the mean */
        square_n += table->noise[i] * table->noise[i];
        square_s += table->scale[i] * table->scale[i];
    }
    for (int i = 0; i < TABLE; i++)
        table->noise[i] /= sqrt(square_n / TABLE), table->scale[i] /= sqrt(square_s / TABLE);
    int32_t *contexts = tv_xmalloc(2 * (size_t)c->n * sizeof *contexts);
    double chi = 0;
    const int paths = 64;
    for (int i = 0; i < paths; i++) {
        draw_path(c, fold_key(o->seed, 3, 0, 0), 0, (uint64_t)i, contexts, contexts + c->n);
        for (int t = 0; t < c->n; t++) {
            double sum = 1;
            for (int j = 0; j < c->k; j++) sum -= c->p[0][contexts[t] * c->k + j] * c->p[0][contexts[t] * c->k + j];
            chi += sum;
        }
    }
    free(contexts);
    table->unit = chi > 0 ? o->sigma / sqrt(chi / paths / c->n) : 0;
    return table;
}

/* Who asks: the scorer, the set (whose trajectories), the trajectory and the read. */
typedef struct {
    int e, set;
    uint64_t id;
    uint64_t read;
} call;

/* One heavy-tailed read of context s at position t into q [k]. */
static void read_heavy(const tv_chain *c, const tv_oracle *o, const noise_table *table, const call *who, int t, int s,
                       double *q) {
    const double *p = c->p[who->e] + (size_t)s * (size_t)c->k;
    if (p[0] >= 1) {
        memcpy(q, p, (size_t)c->k * sizeof *q);
        return;
    }
    /* The scale belongs to the cell: all reads of an engine share it. */
    const uint64_t cell_key = fold_key(o->seed, 4, (uint64_t)who->e * 2 + (uint64_t)who->set, 0);
    const tv_philox4 cell = tv_philox(cell_key, who->id, (uint64_t)TV_USE_SYNTHETIC << 32 | (uint32_t)t);
    const double scale = table->unit * table->scale[cell.v[0] >> 20];
    const uint64_t key = fold_key(o->seed, 5, (uint64_t)who->e * 2 + (uint64_t)who->set, who->read);
    uint64_t words[2] = {0, 0};
    int left = 0, word = 2;
    uint32_t block = 0;
    double mean = 0;
    for (int j = 0; j < c->k; j++) {
        if (left == 0) {
            if (word == 2) {
                const tv_philox4 r =
                    tv_philox(key, who->id, (uint64_t)TV_USE_SYNTHETIC << 32 | ((uint32_t)t << 10 | block++));
                words[0] = (uint64_t)r.v[0] << 32 | r.v[1], words[1] = (uint64_t)r.v[2] << 32 | r.v[3];
                word = 0;
            }
            left = 5; /* five 12-bit numbers a word */
        }
        double eps = table->noise[words[word] & (TABLE - 1)] * scale;
        words[word] >>= 12;
        if (--left == 0) word++;
        eps = eps > 0.45 ? 0.45 : eps < -0.45 ? -0.45 : eps;
        q[j] = eps;
        mean += p[j] * eps;
    }
    for (int j = 0; j < c->k; j++) q[j] = p[j] * (1 + q[j] - mean);
}

/* One read into q [k]; random draws of the Gauss and sample oracles come from g. */
static void read_vector(const tv_chain *c, const tv_oracle *o, const noise_table *table, const call *who, stream *g,
                        int t, int s, double *q) {
    const double *p = c->p[who->e] + (size_t)s * (size_t)c->k;
    switch (o->kind) {
    case TV_ORACLE_EXACT:
        memcpy(q, p, (size_t)c->k * sizeof *q);
        break;
    case TV_ORACLE_HEAVY:
        read_heavy(c, o, table, who, t, s, q);
        break;
    case TV_ORACLE_GAUSS:
        memcpy(q, p, (size_t)c->k * sizeof *q);
        if (p[0] < 1) {
            const double x = p[0] + o->sigma * sqrt(p[0] * (1 - p[0])) * stream_normal(g);
            q[0] = x < 0 ? 0 : x > 1 ? 1 : x;
            q[1] = 1 - q[0];
        }
        break;
    case TV_ORACLE_SAMPLES:
        memset(q, 0, (size_t)c->k * sizeof *q);
        q[p[0] >= 1 ? 0 : draw_token(c, who->e, s, stream_uniform(g))] = 1;
        break;
    }
}

static tv_status check_oracle(const tv_chain *c, const tv_oracle *o, tv_err *err) {
    if (!(o->sigma >= 0 && o->sigma <= 100)) return TV_FAIL(err, TV_EARG, "sigma %g is not within [0, 100]", o->sigma);
    if (o->kind == TV_ORACLE_GAUSS && c->k != 2)
        return TV_FAIL(err, TV_EARG, "the Gauss oracle is for chains of two tokens; %s has %d", c->name, c->k);
    if (o->kind == TV_ORACLE_HEAVY && c->n >= 1 << 22)
        return TV_FAIL(err, TV_EARG, "n=%d is too long for the heavy-tailed oracle", c->n);
    return TV_OK;
}

/* ---- Recorded measurements
 * ------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t *tokens[2];
    int32_t **ids[2][2]; /* [set][scorer] */
    float **lps[2][2];
    int64_t reads;
} record_owner;

void tv_chain_record_free(tv_dataset *data) {
    if (!data) return;
    record_owner *owner = data->owner;
    for (int s = 0; s < 2; s++) free(owner->tokens[s]);
    for (int pair = 0; pair < 4; pair++) {
        int32_t **ids = owner->ids[pair / 2][pair % 2];
        float **lps = owner->lps[pair / 2][pair % 2];
        for (int64_t r = 0; ids && r < owner->reads; r++) free(ids[r]);
        for (int64_t r = 0; lps && r < owner->reads; r++) free(lps[r]);
        free(ids);
        free(lps);
    }
    free(owner);
    free(data);
}

tv_status tv_chain_record(const tv_chain *c, const tv_oracle *o, int64_t first, int64_t N, int64_t reads,
                          tv_dataset **out, tv_err *err) {
    *out = NULL;
    TV_TRY(check_oracle(c, o, err));
    if (o->kind == TV_ORACLE_EXACT) reads = 1;
    if (N < 1 || reads < 1)
        return TV_FAIL(err, TV_EARG, "cannot record %lld trajectories in %lld reads", (long long)N, (long long)reads);
    const size_t slots = (size_t)N * (size_t)c->n * (size_t)c->k;
    tv_dataset *data = tv_xcalloc(1, sizeof *data);
    record_owner *owner = tv_xcalloc(1, sizeof *owner);
    data->owner = owner;
    data->n = c->n;
    data->temperature = 1;
    data->top_k = c->k;
    owner->reads = reads;
    noise_table *table = noise_new(c, o);
    int failed = 0;
    for (int set = 0; set < 2; set++) {
        tv_set *s = &data->set[set];
        s->N = N;
        s->tokens = owner->tokens[set] = tv_xmalloc((size_t)N * (size_t)c->n * sizeof(int32_t));
        for (int e = 0; e < 2; e++) {
            owner->ids[set][e] = tv_xcalloc((size_t)reads, sizeof(int32_t *));
            owner->lps[set][e] = tv_xcalloc((size_t)reads, sizeof(float *));
            for (int64_t r = 0; r < reads; r++) {
                owner->ids[set][e][r] = malloc(slots * sizeof(int32_t));
                owner->lps[set][e][r] = malloc(slots * sizeof(float));
                failed |= !owner->ids[set][e][r] || !owner->lps[set][e][r];
            }
            s->reads[e] = reads;
            s->k[e] = c->k;
            s->ids[e] = (const int32_t *const *)owner->ids[set][e];
            s->lps[e] = (const float *const *)owner->lps[set][e];
            data->deterministic[e] = o->kind == TV_ORACLE_EXACT;
        }
    }
    if (failed) {
        free(table);
        tv_chain_record_free(data);
        return TV_FAIL(err, TV_ENOMEM, "no memory for %lld recorded trajectories of %s; record fewer at a time",
                       (long long)N, c->name);
    }
#pragma omp parallel
    {
        int32_t *contexts = tv_xmalloc((size_t)c->n * sizeof *contexts);
        double *q = tv_xmalloc((size_t)c->k * sizeof *q);
#pragma omp for collapse(2) schedule(dynamic, 4)
        for (int set = 0; set < 2; set++)
            for (int64_t i = 0; i < N; i++) {
                const uint64_t id = (uint64_t)(first + i);
                draw_path(c, o->seed, set, id, contexts, owner->tokens[set] + (size_t)i * (size_t)c->n);
                for (int e = 0; e < 2; e++)
                    for (int64_t r = 0; r < reads; r++) {
                        const call who = {.e = e, .set = set, .id = id, .read = (uint64_t)r};
                        stream g = stream_new(fold_key(o->seed, 6, (uint64_t)e * 2 + (uint64_t)set, (uint64_t)r), id);
                        for (int t = 0; t < c->n; t++) {
                            const size_t at = ((size_t)i * (size_t)c->n + (size_t)t) * (size_t)c->k;
                            read_vector(c, o, table, &who, &g, t, contexts[t], q);
                            for (int j = 0; j < c->k; j++) {
                                owner->ids[set][e][r][at + (size_t)j] = q[j] > 0 ? j : -1;
                                owner->lps[set][e][r][at + (size_t)j] = q[j] > 0 ? logf((float)q[j]) : 0;
                            }
                        }
                    }
            }
        free(q);
        free(contexts);
    }
    free(table);
    *out = data;
    return TV_OK;
}

/* ---- Coupled increments
 * ---------------------------------------------------------------------------------------------- */

typedef struct {
    int32_t *contexts, *tokens; /* [n] */
    double *q;                  /* [k] */
    double *sum[2];             /* [n] of the block at hand */
    double *total[2];           /* [n] of all reads so far */
} increment_scratch;

/* Adds reads from..from+count-1 of both scorers' realised-token probabilities into block sums. */
static void add_reads(const tv_chain *c, const tv_oracle *o, const noise_table *table, int set, uint64_t id,
                      int64_t from, int64_t count, stream *g, increment_scratch *w) {
    for (int e = 0; e < 2; e++) {
        double *sum = w->sum[e];
        if (o->kind == TV_ORACLE_GAUSS || o->kind == TV_ORACLE_EXACT) {
            /* A sum of Gaussian reads is Gaussian: one draw a block. */
            for (int t = 0; t < c->n; t++) {
                const double p = c->p[e][(size_t)w->contexts[t] * (size_t)c->k + (size_t)w->tokens[t]];
                sum[t] = (double)count * p;
                if (o->kind == TV_ORACLE_GAUSS && p < 1)
                    sum[t] += sqrt((double)count) * o->sigma * sqrt(p * (1 - p)) * stream_normal(g);
            }
            continue;
        }
        memset(sum, 0, (size_t)c->n * sizeof *sum);
        for (int64_t r = from; r < from + count; r++) {
            const call who = {.e = e, .set = set, .id = id, .read = (uint64_t)r};
            for (int t = 0; t < c->n; t++) {
                const double *p = c->p[e] + (size_t)w->contexts[t] * (size_t)c->k;
                if (p[0] >= 1) {
                    sum[t] += 1;
                    continue;
                }
                read_vector(c, o, table, &who, g, t, w->contexts[t], w->q);
                sum[t] += w->q[w->tokens[t]];
            }
        }
    }
}

static double sums_z(const tv_chain *c, double *const sum[2], int64_t r, int floor) {
    double log_e[2] = {0, 0};
    for (int e = 0; e < 2; e++)
        for (int t = 0; t < c->n; t++) {
            double q = sum[e][t] / (double)r;
            if (floor) q = q < 1e-12 ? 1e-12 : q > 1 ? 1 : q;
            if (!(q > 0)) {
                log_e[e] = -INFINITY;
                break;
            }
            if (q != 1) log_e[e] += log(q);
        }
    return tv_z(log_e[0], log_e[1]);
}

static double exact_z(const tv_chain *c, const int32_t *contexts, const int32_t *tokens) {
    int64_t d = 0;
    for (int t = 0; t < c->n; t++) {
        const int step = c->step[(size_t)contexts[t] * (size_t)c->k + (size_t)tokens[t]];
        if (abs(step) >= TV_STEP_ONLY_A) return 1;
        d += step;
    }
    return tanh(0.5 * fabs((double)d) * c->delta);
}

tv_status tv_chain_increment(void *user, int level, int64_t first, int64_t N, int64_t r_coarse, int64_t r_fine,
                             int antithetic, double *y, tv_err *err) {
    const tv_chain_sampler *sampler = user;
    const tv_chain *c = sampler->chain;
    const tv_oracle *o = &sampler->oracle;
    TV_TRY(check_oracle(c, o, err));
    if (r_fine < 1 || r_coarse < 0 || r_coarse >= r_fine)
        return TV_FAIL(err, TV_EARG, "increment from %lld to %lld reads", (long long)r_coarse, (long long)r_fine);
    noise_table *table = noise_new(c, o);
    const uint64_t seed = fold_key(o->seed, 7, (uint64_t)level, 0);
    tv_oracle level_oracle = *o;
    level_oracle.seed = seed;
    const int floor = o->kind == TV_ORACLE_GAUSS;
    const int64_t n_blocks = r_coarse ? (antithetic ? r_fine / r_coarse : 1) : 0, rest = r_fine - n_blocks * r_coarse;
#pragma omp parallel
    {
        const size_t n = (size_t)c->n;
        increment_scratch w = {.contexts = tv_xmalloc(n * sizeof(int32_t)),
                               .tokens = tv_xmalloc(n * sizeof(int32_t)),
                               .q = tv_xmalloc((size_t)c->k * sizeof(double))};
        for (int e = 0; e < 2; e++)
            w.sum[e] = tv_xmalloc(n * sizeof(double)), w.total[e] = tv_xmalloc(n * sizeof(double));
#pragma omp for schedule(dynamic, 16)
        for (int64_t i = 0; i < N; i++) {
            const uint64_t id = (uint64_t)(first + i);
            const int set = sampler->side >= 0 ? sampler->side : (int)(id % 2);
            draw_path(c, seed, set, id, w.contexts, w.tokens);
            stream g = stream_new(fold_key(seed, 8, 0, 0), id);
            for (int e = 0; e < 2; e++) memset(w.total[e], 0, n * sizeof(double));
            double coarse = 0;
            for (int64_t b = 0; b < n_blocks; b++) {
                add_reads(c, &level_oracle, table, set, id, b * r_coarse, r_coarse, &g, &w);
                coarse += sums_z(c, w.sum, r_coarse, floor);
                for (int e = 0; e < 2; e++)
                    for (size_t t = 0; t < n; t++) w.total[e][t] += w.sum[e][t];
            }
            if (rest) {
                add_reads(c, &level_oracle, table, set, id, n_blocks * r_coarse, rest, &g, &w);
                for (int e = 0; e < 2; e++)
                    for (size_t t = 0; t < n; t++) w.total[e][t] += w.sum[e][t];
            }
            const double fine = sums_z(c, w.total, r_fine, floor);
            y[i] = fine - (n_blocks ? coarse / (double)n_blocks : 0);
            if (sampler->level) sampler->level[i] = fine;
            if (sampler->exact) sampler->exact[i] = exact_z(c, w.contexts, w.tokens);
        }
        for (int e = 0; e < 2; e++) free(w.sum[e]), free(w.total[e]);
        free(w.q);
        free(w.tokens);
        free(w.contexts);
    }
    free(table);
    return TV_OK;
}

/* ---- Levels without records
 * ------------------------------------------------------------------------------------------ */

/* Probability of token x after keeping the `most` largest entries of q [k] (ties by lowest index) and renormalising. */
static double truncated(const double *q, int k, int most, int x) {
    if (most <= 0 || most >= k) return q[x];
    int rank = 0;
    for (int j = 0; j < k; j++) rank += q[j] > q[x] || (q[j] == q[x] && j < x);
    if (rank >= most || !(q[x] > 0)) return 0;
    double mass = 0;
    for (int j = 0; j < k; j++) {
        int above = 0;
        for (int l = 0; l < k; l++) above += q[l] > q[j] || (q[l] == q[j] && l < j);
        if (above < most) mass += q[j];
    }
    return q[x] / mass;
}

tv_status tv_chain_levels(const tv_chain *c, const tv_oracle *o, int side, int64_t first, int64_t N,
                          const tv_levels_options *options, tv_levels *out, tv_err *err) {
    memset(out, 0, sizeof *out);
    TV_TRY(check_oracle(c, o, err));
    tv_levels_options wanted = *options;
    wanted.held_out = 0;
    wanted.n_perm = 0;
    TV_TRY(tv_levels_new(N, &wanted, out, err));
    out->reference = tv_xcalloc((size_t)N, sizeof(double));
    const int64_t R = wanted.reads, distinct = o->kind == TV_ORACLE_EXACT ? 1 : R, n = c->n;
    noise_table *table = noise_new(c, o);
#pragma omp parallel
    {
        const size_t cells = (size_t)R * (size_t)n;
        int32_t *contexts = tv_xmalloc(2 * (size_t)n * sizeof *contexts), *tokens = contexts + n;
        double *reads = tv_xmalloc((2 * cells + (size_t)(n + R) + (size_t)c->k) * sizeof *reads);
        double *scratch = reads + 2 * cells, *q = scratch + n + R;
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < N; i++) {
            const uint64_t id = (uint64_t)(first + i);
            draw_path(c, o->seed, side, id, contexts, tokens);
            for (int e = 0; e < 2; e++) {
                double *rows = reads + (size_t)e * cells;
                for (int64_t r = 0; r < R; r++) {
                    if (r >= distinct) {
                        memcpy(rows + r * n, rows, (size_t)n * sizeof *rows);
                        continue;
                    }
                    const call who = {.e = e, .set = side, .id = id, .read = (uint64_t)r};
                    stream g = stream_new(fold_key(o->seed, 6, (uint64_t)e * 2 + (uint64_t)side, (uint64_t)r), id);
                    for (int t = 0; t < c->n; t++) {
                        read_vector(c, o, table, &who, &g, t, contexts[t], q);
                        rows[r * n + t] = truncated(q, c->k, options->readout.readout, tokens[t]);
                    }
                }
            }
            const double *const both[2] = {reads, reads + cells};
            tv_levels_fill(out, 0, i, both, n, R, 0, scratch);
            out->reference[i] = exact_z(c, contexts, tokens);
        }
        free(reads);
        free(contexts);
    }
    free(table);
    return TV_OK;
}
