/* Who runs in each step: every trajectory gets each of its positions once and in order, slots are never shared, and
 * what a pass draws follows from its seed, its number and the trajectory alone. */
#include <stdlib.h>
#include <string.h>

#include "engine/scheduler.h"
#include "tests/check.h"

enum { MAX_N = 64 };

typedef struct {
    tv_sched_options o;
    int32_t prompt_len[MAX_N], length[MAX_N];
    int64_t trajectory[MAX_N];
} job;

static job *job_new(int64_t N, int64_t n, int32_t prompt) {
    static job j;
    memset(&j, 0, sizeof j);
    for (int64_t i = 0; i < N; i++) j.prompt_len[i] = prompt, j.length[i] = (int32_t)n, j.trajectory[i] = i;
    j.o = (tv_sched_options){.slots = (int)N,
                             .max_rows = TV_STEP_ROWS,
                             .pass_seed = 7,
                             .N = N,
                             .prompt_len = j.prompt_len,
                             .length = j.length,
                             .n = n,
                             .trajectory = j.trajectory};
    return &j;
}

/* What a whole pass did. */
typedef struct {
    int64_t steps, rows, padding_rows, most_rows;
    int most, least;      /* sequences in a step */
    int64_t first[MAX_N]; /* step in which a trajectory first ran */
    int64_t last[MAX_N];
    int32_t slot[MAX_N];
    int restarts[MAX_N];        /* how often a trajectory began again */
    int64_t preemptions, again; /* again: entries whose token had been produced before */
    int64_t most_held; /* cache tokens of a step's trajectories: reserve: prompt + n each; grow: rows in the cache */
    int mixed;         /* steps with decode rows beside prompt rows */
    uint64_t hash;     /* of every entry */
} pass_log;

/* Runs the pass, ending trajectory i early behind token stop[i] (NULL: none), and checks what must hold in any of them.
 */
static pass_log run(const tv_sched_options *o, const int32_t *stop) {
    pass_log log = {.least = 1 << 30};
    for (int i = 0; i < MAX_N; i++) log.first[i] = -1, log.slot[i] = -1;
    int32_t pos[MAX_N] = {0}, next_t[MAX_N] = {0};
    tv_err err = {0};
    tv_sched *s = NULL;
    if (!CHECK_OK(tv_sched_open(o, &s, &err), &err)) return log;
    const tv_sched_entry *e;
    int n;
    while ((n = tv_sched_step(s, &e)) > 0) {
        int64_t rows = 0, held = 0;
        int real = 0, in_prompt = 0, behind = 0;
        CHECK(n <= o->slots);
        for (int i = 0; i < n; i++) {
            CHECK(e[i].n_rows >= 1 && e[i].slot >= 0 && e[i].slot < o->slots);
            CHECK(i == 0 || e[i].slot > e[i - 1].slot);
            rows += e[i].n_rows;
            uint64_t word[5] = {(uint64_t)e[i].seq, (uint64_t)e[i].slot, (uint64_t)e[i].pos, (uint64_t)e[i].n_rows,
                                (uint64_t)tv_sched_now(s)};
            for (int w = 0; w < 5; w++) log.hash = (log.hash ^ word[w]) * 0x9E3779B97F4A7C15u;
            int like = (int)(e[i].seq < 0 ? (-1 - e[i].seq) % o->N : e[i].seq);
            if (e[i].pos < o->prompt_len[like])
                in_prompt = 1;
            else
                behind = 1;
            if (e[i].seq < 0) {
                log.padding_rows += e[i].n_rows;
                continue;
            }
            real++;
            int64_t q = e[i].seq;
            CHECK(q < o->N);
            if (log.first[q] < 0) log.first[q] = tv_sched_now(s), log.slot[q] = e[i].slot;
            if (e[i].pos == 0 && pos[q] > 0) { /* it lost its slot: from the prompt on again */
                CHECK(o->kv_tokens && o->admission == TV_ADMISSION_GROW);
                log.restarts[q]++;
                pos[q] = 0, log.slot[q] = e[i].slot;
            }
            CHECK_INT(e[i].slot, log.slot[q]);
            CHECK_INT(e[i].pos, pos[q]);
            pos[q] += e[i].n_rows;
            CHECK(tv_sched_now(s) >= tv_sched_arrival(s, q));
            if (o->prefill_chunk && e[i].pos < o->prompt_len[q]) CHECK(e[i].n_rows <= o->prefill_chunk);
            if (pos[q] < o->prompt_len[q]) {
                CHECK_INT(e[i].t, -1);
            } else {
                CHECK_INT(e[i].t, pos[q] - o->prompt_len[q]);
                CHECK_INT(e[i].again, e[i].t < next_t[q]);
                CHECK(e[i].t <= next_t[q]);
                log.again += e[i].again;
                next_t[q] += !e[i].again;
                if (stop && e[i].t == stop[q]) tv_sched_finish(s, q);
            }
            held += o->admission == TV_ADMISSION_GROW ? pos[q] : o->prompt_len[q] + o->n;
            log.last[q] = tv_sched_now(s);
        }
        CHECK(real > 0 || (o->pad && o->prefill == TV_PREFILL_ALONE)); /* padding has prompts, too */
        CHECK(rows <= o->max_rows);
        if (o->kv_tokens) CHECK(held <= o->kv_tokens);
        if (held > log.most_held) log.most_held = held;
        if (o->prefill == TV_PREFILL_ALONE) CHECK(!(in_prompt && behind));
        log.mixed += in_prompt && behind;
        log.steps++, log.rows += rows;
        if (rows > log.most_rows) log.most_rows = rows;
        if (n > log.most) log.most = n;
        if (n < log.least) log.least = n;
    }
    for (int64_t i = 0; i < o->N; i++) {
        int32_t want = o->length ? o->length[i] : (int32_t)o->n;
        if (stop && stop[i] < want) want = stop[i] + 1;
        CHECK_INT(next_t[i], want);
    }
    log.preemptions = tv_sched_preemptions(s);
    tv_sched_close(s);
    return log;
}

/* The sampling condition: one batch in lockstep, one step a token. */
static void test_together(void) {
    job *j = job_new(8, 10, 5);
    pass_log l = run(&j->o, NULL);
    CHECK_INT(l.steps, 10);
    CHECK_INT(l.rows, 8 * (5 + 9));
    CHECK_INT(l.most, 8);
    CHECK_INT(l.least, 8);
    for (int i = 0; i < 8; i++) CHECK_INT(l.slot[i], i);
}

/* A freed slot goes to the next in line in the next step. */
static void test_slots_are_handed_on(void) {
    job *j = job_new(7, 4, 3);
    j->o.slots = 3;
    j->length[1] = 2; /* leaves after two steps */
    pass_log l = run(&j->o, NULL);
    CHECK_INT(l.most, 3);
    CHECK_INT(l.first[3], 2);
    CHECK_INT(l.slot[3], 1);
    CHECK_INT(l.first[4], 4);
    CHECK_INT(l.slot[4], 0);
    int32_t stop[MAX_N];
    for (int i = 0; i < MAX_N; i++) stop[i] = 100;
    stop[0] = 0; /* ends with its first token */
    l = run(&j->o, stop);
    CHECK_INT(l.last[0], 0);
    CHECK_INT(l.first[3], 1);
    CHECK_INT(l.slot[3], 0);
}

/* Lengths 0 and 1, prompts of several lengths, one slot. */
static void test_odd_lengths(void) {
    job *j = job_new(6, 5, 2);
    j->o.slots = 1;
    for (int i = 0; i < 6; i++) j->length[i] = i, j->prompt_len[i] = 1 + i * i;
    pass_log l = run(&j->o, NULL);
    CHECK_INT(l.steps, 1 + 2 + 3 + 4 + 5);
    CHECK_INT(l.first[0], -1);
    j->o.N = 0;
    CHECK_INT(run(&j->o, NULL).steps, 0);
    j = job_new(3, 0, 2);
    CHECK_INT(run(&j->o, NULL).steps, 0);
}

static void test_chunks(void) {
    static const int chunks[] = {1, 2, 3, 7, 8, 9, 40};
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        job *j = job_new(5, 6, 8);
        j->prompt_len[2] = 17;
        j->o.slots = 2, j->o.prefill_chunk = chunks[c];
        pass_log l = run(&j->o, NULL);
        CHECK_INT(l.rows, 4 * 8 + 17 + 5 * 5);
    }
    job *j = job_new(2, 6, 8); /* decode rows of the one run beside the other's chunks */
    j->prompt_len[1] = 20, j->o.prefill_chunk = 4;
    pass_log l = run(&j->o, NULL);
    CHECK_INT(l.last[0], 1 + 5);
    CHECK_INT(l.last[1], 4 + 5);
}

/* Prompts that do not fit into a step wait, in order, and decode rows never do. */
static void test_row_limit(void) {
    job *j = job_new(6, 5, 10);
    j->o.max_rows = 6 + 10;
    pass_log l = run(&j->o, NULL);
    CHECK(l.most_rows <= 16);
    for (int i = 1; i < 6; i++) CHECK_INT(l.first[i], i);
    CHECK_INT(tv_sched_rows(8, 30), 240);
    CHECK_INT(tv_sched_rows(4096, 30), TV_STEP_ROWS);
    CHECK_INT(tv_sched_rows(512, 40000), 40512);
    CHECK_INT(tv_sched_rows(1, 1), 1);
    CHECK_INT(tv_sched_rows(INT64_C(1) << 40, INT64_C(1) << 40), INT64_C(2) << 40);
}

/* Padding keeps the batch at its size while a trajectory runs, and makes room for those that wait. */
static void test_padding(void) {
    job *j = job_new(5, 6, 3);
    j->o.slots = 4, j->o.pad = 1;
    pass_log l = run(&j->o, NULL);
    CHECK_INT(l.most, 4);
    CHECK_INT(l.least, 4);
    CHECK_INT(l.steps, 12);
    CHECK_INT(l.rows, 2 * 4 * (3 + 5)); /* the second batch has the shapes of the first */
    CHECK_INT(l.padding_rows, 3 * (3 + 5));
    j->o.slots = 9;
    l = run(&j->o, NULL);
    CHECK_INT(l.least, 9);
    CHECK_INT(l.steps, 6);
    j->o.arrivals = TV_ARRIVALS_STAGGERED, j->o.slots = 3;
    l = run(&j->o, NULL);
    CHECK_INT(l.least, 3);
    for (int32_t t = 0; t < 1000; t++) {
        int32_t id = tv_sched_padding(7, 2, t, 50);
        CHECK(id >= 0 && id < 50);
    }
    CHECK(tv_sched_padding(7, 2, 0, 1 << 30) != tv_sched_padding(7, 3, 0, 1 << 30));
    CHECK(tv_sched_padding(7, 2, 0, 1 << 30) != tv_sched_padding(7, 2, 1, 1 << 30));
}

/* A limit on cache tokens that reserves: as many run as declare no more, in order, and a limit that all fit changes
 * nothing. */
static void test_reserve(void) {
    job *j = job_new(8, 6, 4);
    uint64_t plain = run(&j->o, NULL).hash;
    j->o.kv_tokens = 8 * 10;
    CHECK(run(&j->o, NULL).hash == plain);
    j->o.kv_tokens = 8 * 10 - 1;
    CHECK_INT(run(&j->o, NULL).most, 7);
    j->o.kv_tokens = 35;
    pass_log l = run(&j->o, NULL);
    CHECK_INT(l.most, 3);
    CHECK_INT(l.most_held, 30);
    CHECK_INT(l.preemptions, 0);
    CHECK_INT(l.steps, 18);
    for (int i = 0; i < 8; i++) CHECK_INT(l.first[i], i / 3 * 6);
    j->length[0] = 2; /* declared is what is asked for, not where it will end */
    l = run(&j->o, NULL);
    CHECK_INT(l.first[3], 2);
    CHECK_INT(l.most, 3);
    j->o.kv_tokens = 10;
    CHECK_INT(run(&j->o, NULL).most, 1);
}

/* A limit that grows with what runs: more run at first than reserve lets in, the youngest give way and come back in
 * order, the eldest never does, and nothing is admitted past those that wait. */
static void test_grow(void) {
    job *j = job_new(8, 12, 4);
    uint64_t plain = run(&j->o, NULL).hash;
    j->o.admission = TV_ADMISSION_GROW, j->o.kv_tokens = 8 * 16;
    CHECK(run(&j->o, NULL).hash == plain);
    j->o.kv_tokens = 40;
    pass_log l = run(&j->o, NULL);
    CHECK_INT(l.most, 8); /* eight prompts of four, and a token each, fit: 40 */
    CHECK(l.preemptions > 3 && l.again > 0);
    CHECK(l.most_held > 36 && l.most_held <= 40);
    CHECK_INT(l.restarts[0], 0);
    CHECK_INT(l.restarts[1], 0); /* two sequences of 16 always fit */
    CHECK(l.restarts[7] > 0);
    int64_t restarts = 0;
    for (int i = 0; i < 8; i++) {
        restarts += l.restarts[i];
        CHECK(i == 0 || l.last[i] >= l.last[i - 1]);
    }
    CHECK_INT(restarts, l.preemptions);
    CHECK_INT(l.rows, 8 * (4 + 11) + l.again + l.preemptions * 3); /* what is done again: prompts, and a row a token */
    j->o.kv_tokens = 16;                                           /* one at its full length */
    l = run(&j->o, NULL);
    CHECK_INT(l.last[7], l.steps - 1);
    j->o.slots = 2, j->o.pad = 1; /* padding takes no tokens and makes room */
    l = run(&j->o, NULL);
    CHECK_INT(l.least, 2);
}

/* Prompts alone: a step has prompt rows or decode rows, never both. */
static void test_prefill_alone(void) {
    job *j = job_new(6, 6, 9);
    j->o.slots = 3, j->o.prefill_chunk = 4, j->length[0] = 3;
    CHECK(run(&j->o, NULL).mixed > 0);
    int64_t rows = run(&j->o, NULL).rows;
    j->o.prefill = TV_PREFILL_ALONE;
    pass_log l = run(&j->o, NULL);
    CHECK_INT(l.mixed, 0);
    CHECK_INT(l.rows, rows);
    j = job_new(8, 10, 5); /* nothing to change where all start together */
    uint64_t plain = run(&j->o, NULL).hash;
    j->o.prefill = TV_PREFILL_ALONE;
    CHECK(run(&j->o, NULL).hash == plain);
}

/* Staggered requests: the running batch grows and shrinks. */
static void test_staggered(void) {
    job *j = job_new(40, 30, 4);
    j->o.arrivals = TV_ARRIVALS_STAGGERED;
    pass_log l = run(&j->o, NULL);
    CHECK(l.least < 5);
    CHECK(l.most > 15);
    int late = 0;
    for (int i = 0; i < 40; i++) late += l.first[i] > 15;
    CHECK(late > 8 && late < 32);
    j->o.slots = 4;
    l = run(&j->o, NULL);
    CHECK_INT(l.most, 4);
    CHECK(l.least < 4);
}

/* A pass's draws: same seed and number, same schedule; another of either, another one; fixed and together, always the
 * same. */
static void test_draws(void) {
    job *j = job_new(24, 6, 3);
    j->o.slots = 5;
    uint64_t plain = run(&j->o, NULL).hash;
    j->o.pass = 1, j->o.pass_seed = 8;
    CHECK(run(&j->o, NULL).hash == plain);
    for (int staggered = 0; staggered < 2; staggered++)
        for (int shuffled = 0; shuffled < 2; shuffled++) {
            if (!staggered && !shuffled) continue;
            j->o.arrivals = staggered ? TV_ARRIVALS_STAGGERED : TV_ARRIVALS_TOGETHER;
            j->o.order = shuffled ? TV_ORDER_SHUFFLED : TV_ORDER_FIXED;
            uint64_t hash[4];
            for (int p = 0; p < 4; p++) {
                j->o.pass = p == 3 ? -1 : p / 2, j->o.pass_seed = p == 1 ? 8 : 7;
                hash[p] = run(&j->o, NULL).hash;
                CHECK(run(&j->o, NULL).hash == hash[p]);
                for (int q = 0; q < p; q++) CHECK(hash[p] != hash[q]);
            }
        }
}

/* Draws follow a trajectory's identity, not its row: the same trajectories in other rows are admitted in the same
 * order. */
static void test_draws_follow_identity(void) {
    job *j = job_new(16, 6, 3);
    j->o.order = TV_ORDER_SHUFFLED, j->o.arrivals = TV_ARRIVALS_STAGGERED, j->o.slots = 3;
    int64_t order[16], steps[16];
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 16; i++) j->trajectory[i] = turn ? 15 - i : i;
        tv_err err = {0};
        tv_sched *s = NULL;
        CHECK_OK(tv_sched_open(&j->o, &s, &err), &err);
        for (int i = 0; i < 16; i++) {
            int64_t row = tv_sched_admission(s)[i], id = j->trajectory[row];
            if (turn == 0)
                order[i] = id, steps[i] = tv_sched_arrival(s, row);
            else
                CHECK(order[i] == id && steps[i] == tv_sched_arrival(s, row));
        }
        tv_sched_close(s);
    }
}

/* Every permutation is about as likely: the place of trajectory 0 over many passes is uniform. */
static void test_shuffle_is_uniform(void) {
    job *j = job_new(8, 1, 1);
    j->o.order = TV_ORDER_SHUFFLED;
    int count[8] = {0};
    enum { PASSES = 4000 };
    for (int p = 0; p < PASSES; p++) {
        j->o.pass = p;
        tv_err err = {0};
        tv_sched *s = NULL;
        CHECK_OK(tv_sched_open(&j->o, &s, &err), &err);
        for (int i = 0; i < 8; i++) count[i] += tv_sched_admission(s)[i] == 0;
        tv_sched_close(s);
    }
    double chi2 = 0;
    for (int i = 0; i < 8; i++) chi2 += (count[i] - PASSES / 8.0) * (count[i] - PASSES / 8.0) / (PASSES / 8.0);
    CHECK(chi2 < 24.3); /* 7 degrees of freedom: 0.1% */
}

/* Random jobs under random options: run() holds what must hold in each. */
static void test_random_jobs(void) {
    tv_rng rng = {11};
    for (int round = 0; round < 300; round++) {
        job *j = job_new(1 + (int64_t)(tv_rng_next(&rng) % 20), 1 + (int64_t)(tv_rng_next(&rng) % 12), 1);
        int32_t longest = 1, stop[MAX_N];
        for (int64_t i = 0; i < j->o.N; i++) {
            j->prompt_len[i] = 1 + (int32_t)(tv_rng_next(&rng) % 23);
            j->length[i] = (int32_t)(tv_rng_next(&rng) % (uint64_t)(j->o.n + 1));
            stop[i] = (int32_t)(tv_rng_next(&rng) % 16);
            if (j->prompt_len[i] > longest) longest = j->prompt_len[i];
        }
        j->o.slots = 1 + (int)(tv_rng_next(&rng) % 24);
        j->o.pad = (int)(tv_rng_next(&rng) % 2);
        j->o.order = tv_rng_next(&rng) % 2 ? TV_ORDER_SHUFFLED : TV_ORDER_FIXED;
        j->o.arrivals = tv_rng_next(&rng) % 2 ? TV_ARRIVALS_STAGGERED : TV_ARRIVALS_TOGETHER;
        j->o.prefill_chunk = (int)(tv_rng_next(&rng) % 9);
        j->o.pass = (int64_t)(tv_rng_next(&rng) % 5) - 1;
        if (tv_rng_next(&rng) % 2) j->o.max_rows = j->o.slots + longest;
        if (tv_rng_next(&rng) % 2) j->o.kv_tokens = longest + j->o.n + (int64_t)(tv_rng_next(&rng) % 60);
        j->o.admission = tv_rng_next(&rng) % 2 ? TV_ADMISSION_GROW : TV_ADMISSION_RESERVE;
        j->o.prefill = tv_rng_next(&rng) % 2 ? TV_PREFILL_ALONE : TV_PREFILL_MIXED;
        run(&j->o, tv_rng_next(&rng) % 2 ? stop : NULL);
    }
}

static const tv_test tests[] = {
    {"together", test_together},
    {"slots_are_handed_on", test_slots_are_handed_on},
    {"odd_lengths", test_odd_lengths},
    {"chunks", test_chunks},
    {"row_limit", test_row_limit},
    {"padding", test_padding},
    {"reserve", test_reserve},
    {"grow", test_grow},
    {"prefill_alone", test_prefill_alone},
    {"staggered", test_staggered},
    {"draws", test_draws},
    {"draws_follow_identity", test_draws_follow_identity},
    {"shuffle_is_uniform", test_shuffle_is_uniform},
    {"random_jobs", test_random_jobs},
};
TV_TEST_MAIN(tests)
