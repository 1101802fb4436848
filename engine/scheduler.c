/* Continuous batching.
 *
 * The queue holds the trajectories by (arrival step, order key, index). A step admits from its head while slots are
 * free, gives each sequence behind its prompt one row, then each prompt its next chunk in order of admission while rows
 * are left. Where cache tokens are limited, it first takes the slot of the youngest trajectories until the others'
 * tokens fit; those return to the head of the queue and run again from their prompt on, token by token through the same
 * decode rows. Nothing else decides, so the composition of every step follows from sizes, lengths and (pass seed, pass,
 * trajectory). */
#include "engine/scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/philox.h"

enum { FREE = -1, TRAJECTORY = 0, PADDING = 1 };

/* One cache slot. */
typedef struct {
    int kind;         /* FREE, TRAJECTORY or PADDING */
    int64_t seq;      /* index of the trajectory, or number of the padding sequence */
    int64_t admitted; /* orders prompts: a trajectory's place in the queue, or a padding sequence's number */
    int32_t prompt_len, length;
    int32_t pos;    /* rows of it that earlier steps have put into the cache */
    int32_t n_rows; /* rows in the current step */
    int finished;   /* ends with the current step */
} slot;

typedef struct {
    int64_t arrival;
    uint64_t key;
    int64_t index;
} queued;

struct tv_sched {
    tv_sched_options o;
    slot *slots;             /* [slots] */
    int *waiting;            /* [slots] slots in a prompt, by admission */
    tv_sched_entry *entries; /* [slots] */
    queued *queue;           /* [N] */
    int64_t *admission;      /* [N] */
    int64_t *arrival;        /* [N] */
    int32_t *done;           /* [N] tokens that each trajectory has produced */
    int64_t *preempted; /* [slots] places in the queue, the first on top: they were the youngest, so it is sorted */
    int n_preempted;
    int64_t head, padded, now, preemptions;
    int started;
};

static int by_arrival(const void *a, const void *b) {
    const queued *x = a, *y = b;
    if (x->arrival != y->arrival) return x->arrival < y->arrival ? -1 : 1;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* 64 bits for one trajectory in one pass. */
static uint64_t draw(const tv_sched_options *o, int64_t i, uint32_t use) {
    uint64_t pass = (uint64_t)(o->pass + 1) & 0xffffffffu; /* the sampling pass is 0 */
    tv_philox4 r = tv_philox(o->pass_seed, (uint64_t)o->trajectory[i], (uint64_t)use << 32 | pass);
    return (uint64_t)r.v[1] << 32 | r.v[0];
}

/* What a trajectory asks for up front: not where it will end, which sampling cannot know. */
static int64_t declared(const tv_sched_options *o, int64_t i) { return o->prompt_len[i] + o->n; }
static int32_t length_of(const tv_sched_options *o, int64_t i) { return o->length ? o->length[i] : (int32_t)o->n; }

int64_t tv_sched_rows(int64_t slots, int64_t chunk) {
    int64_t most = slots + chunk > TV_STEP_ROWS ? slots + chunk : TV_STEP_ROWS;
    if (chunk > most / slots) return most; /* slots * chunk without its overflow */
    return slots * chunk < most ? slots * chunk : most;
}

int32_t tv_sched_padding(uint64_t pass_seed, int64_t p, int64_t t, int V) {
    uint32_t r = tv_philox(pass_seed, (uint64_t)p, (uint64_t)TV_USE_PADDING << 32 | (uint32_t)t).v[0];
    return (int32_t)((uint64_t)r * (uint64_t)V >> 32);
}

tv_status tv_sched_open(const tv_sched_options *options, tv_sched **out, tv_err *err) {
    const tv_sched_options *o = options;
    TV_ASSERT(o->slots >= 1 && o->N >= 0 && o->n >= 0 && o->prefill_chunk >= 0);
    tv_sched *s = calloc(1, sizeof *s);
    size_t B = (size_t)o->slots, N = (size_t)o->N;
    if (s) {
        s->o = *o;
        s->slots = calloc(B, sizeof *s->slots);
        s->waiting = calloc(B, sizeof *s->waiting);
        s->entries = calloc(B, sizeof *s->entries);
        s->queue = calloc(N + 1, sizeof *s->queue);
        s->admission = calloc(N + 1, sizeof *s->admission);
        s->arrival = calloc(N + 1, sizeof *s->arrival);
        s->done = calloc(N + 1, sizeof *s->done);
        s->preempted = calloc(B, sizeof *s->preempted);
    }
    if (!s || !s->slots || !s->waiting || !s->entries || !s->queue || !s->admission || !s->arrival || !s->done ||
        !s->preempted) {
        tv_sched_close(s);
        return TV_FAIL(err, TV_ENOMEM, "no memory for the schedule of %lld trajectories", (long long)o->N);
    }
    for (size_t b = 0; b < B; b++) s->slots[b].kind = FREE;
    /* Arrivals spread over the time that the slots need for the whole job at full load, so that the batch fills and
     * drains. */
    uint64_t window = o->N ? (uint64_t)o->n * (uint64_t)((o->N + o->slots - 1) / o->slots) : 0;
    for (size_t i = 0; i < N; i++) {
        TV_ASSERT(o->prompt_len[i] >= 1 && length_of(o, (int64_t)i) >= 0);
        TV_ASSERT(!o->kv_tokens || declared(o, (int64_t)i) <= o->kv_tokens);
        queued *q = &s->queue[i];
        q->index = (int64_t)i;
        if (o->order == TV_ORDER_SHUFFLED) q->key = draw(o, (int64_t)i, TV_USE_COMPOSITION);
        if (o->arrivals == TV_ARRIVALS_STAGGERED)
            q->arrival = (int64_t)(((draw(o, (int64_t)i, TV_USE_ARRIVAL) & 0xffffffffu) * window) >> 32);
        s->arrival[i] = q->arrival;
    }
    qsort(s->queue, N, sizeof *s->queue, by_arrival);
    for (size_t i = 0; i < N; i++) s->admission[i] = s->queue[i].index;
    *out = s;
    return TV_OK;
}

void tv_sched_close(tv_sched *s) {
    if (!s) return;
    free(s->slots), free(s->waiting), free(s->entries), free(s->queue), free(s->admission), free(s->arrival);
    free(s->done), free(s->preempted);
    free(s);
}

const int64_t *tv_sched_admission(const tv_sched *s) { return s->admission; }
int64_t tv_sched_arrival(const tv_sched *s, int64_t i) { return s->arrival[i]; }
int64_t tv_sched_preemptions(const tv_sched *s) { return s->preemptions; }
int64_t tv_sched_now(const tv_sched *s) { return s->now; }

void tv_sched_finish(tv_sched *s, int64_t seq) {
    for (int b = 0; b < s->o.slots; b++)
        if (s->slots[b].kind == TRAJECTORY && s->slots[b].seq == seq) s->slots[b].finished = 1;
}

/* Closes the books of the step that ran: positions move on, sequences that are done leave. */
static void advance(tv_sched *s) {
    for (int b = 0; b < s->o.slots; b++) {
        slot *p = &s->slots[b];
        if (p->kind == FREE) continue;
        p->pos += p->n_rows;
        if (p->kind == TRAJECTORY && p->pos >= p->prompt_len + s->done[p->seq])
            s->done[p->seq] = p->pos - p->prompt_len + 1;
        /* The token behind the last row is drawn and needs no row of its own. */
        if (p->finished || (p->n_rows && p->pos >= p->prompt_len + p->length - 1)) p->kind = FREE;
        p->n_rows = 0;
    }
}

/* Cache tokens that trajectory i takes while it runs. */
static int64_t held(const tv_sched *s, int64_t i) {
    return s->o.admission == TV_ADMISSION_RESERVE ? declared(&s->o, i) : s->o.prompt_len[i] + s->done[i];
}

/* Takes the slots of the youngest until what runs fits into the cache's tokens; returns what it takes. One alone fits.
 */
static int64_t preempt(tv_sched *s) {
    int64_t taken = 0;
    if (!s->o.kv_tokens) return 0;
    for (int b = 0; b < s->o.slots; b++)
        if (s->slots[b].kind == TRAJECTORY) taken += held(s, s->slots[b].seq);
    while (taken > s->o.kv_tokens) {
        slot *youngest = NULL;
        for (int b = 0; b < s->o.slots; b++) {
            slot *p = &s->slots[b];
            if (p->kind == TRAJECTORY && (!youngest || p->admitted > youngest->admitted)) youngest = p;
        }
        TV_ASSERT(youngest && s->n_preempted < s->o.slots);
        taken -= held(s, youngest->seq);
        s->preempted[s->n_preempted++] = youngest->admitted;
        s->preemptions++;
        youngest->kind = FREE;
    }
    return taken;
}

/* Place in the queue of the next trajectory that may run: the first of those that lost their slot, else the head of the
 * queue when it has arrived; -1 for none. */
static int64_t next_in_line(tv_sched *s) {
    if (s->n_preempted) return s->preempted[s->n_preempted - 1];
    while (s->head < s->o.N && length_of(&s->o, s->queue[s->head].index) == 0) s->head++;
    return s->head == s->o.N || s->queue[s->head].arrival > s->now ? -1 : s->head;
}

/* Puts those next in line into slots, the lowest first, while their tokens fit beside the `taken` ones; a padding
 * sequence makes room. */
static int admit(tv_sched *s, int64_t taken) {
    int running = 0;
    for (int b = 0; b < s->o.slots; b++) {
        slot *p = &s->slots[b];
        if (p->kind != TRAJECTORY) {
            int64_t place = next_in_line(s);
            if (place < 0) continue;
            int64_t i = s->queue[place].index;
            if (s->o.kv_tokens && taken + held(s, i) > s->o.kv_tokens) continue;
            taken += held(s, i);
            if (s->n_preempted)
                s->n_preempted--;
            else
                s->head++;
            *p = (slot){.kind = TRAJECTORY,
                        .seq = i,
                        .admitted = place,
                        .prompt_len = s->o.prompt_len[i],
                        .length = length_of(&s->o, i)};
        }
        running++;
    }
    return running;
}

static void pad(tv_sched *s) {
    for (int b = 0; b < s->o.slots; b++) {
        slot *p = &s->slots[b];
        if (p->kind != FREE) continue;
        int64_t number = s->padded++, like = number % s->o.N;
        *p = (slot){.kind = PADDING,
                    .seq = number,
                    .admitted = number,
                    .prompt_len = s->o.prompt_len[like],
                    .length = (int32_t)(s->o.n ? s->o.n : 1)};
    }
}

/* Gives rows to the sequences of one kind: first one to each behind its prompt (where decode rows run), then chunks in
 * order of admission. */
static void give_rows(tv_sched *s, int kind, int decode, int64_t *left) {
    int n_waiting = 0;
    for (int b = 0; b < s->o.slots; b++) {
        slot *p = &s->slots[b];
        if (p->kind != kind) continue;
        if (p->pos >= p->prompt_len) {
            if (decode && *left > 0) p->n_rows = 1, --*left;
            continue;
        }
        int at = n_waiting++; /* insertion: slots fill in ascending order, so mostly at the end */
        for (; at > 0 && s->slots[s->waiting[at - 1]].admitted > p->admitted; at--) s->waiting[at] = s->waiting[at - 1];
        s->waiting[at] = b;
    }
    for (int w = 0; w < n_waiting; w++) {
        slot *p = &s->slots[s->waiting[w]];
        int32_t rows = p->prompt_len - p->pos;
        if (s->o.prefill_chunk && rows > s->o.prefill_chunk) rows = s->o.prefill_chunk;
        if (rows > *left) return; /* it keeps its turn */
        p->n_rows = rows;
        *left -= rows;
    }
}

/* 1 when a sequence is in its prompt. */
static int prompts_run(const tv_sched *s) {
    for (int b = 0; b < s->o.slots; b++)
        if (s->slots[b].kind != FREE && s->slots[b].pos < s->slots[b].prompt_len) return 1;
    return 0;
}

int tv_sched_step(tv_sched *s, const tv_sched_entry **entries) {
    if (s->started) {
        advance(s);
        s->now++;
    }
    s->started = 1;
    int running = admit(s, preempt(s));
    if (!running) {
        if (s->head == s->o.N) return 0;
        s->now = s->queue[s->head].arrival; /* idle steps pass at once */
        running = admit(s, 0);
    }
    if (s->o.pad) pad(s);
    int64_t left = s->o.max_rows;
    int decode = s->o.prefill == TV_PREFILL_MIXED || !prompts_run(s);
    give_rows(s, TRAJECTORY, decode, &left);
    if (s->o.pad) give_rows(s, PADDING, decode, &left);

    int n = 0;
    for (int b = 0; b < s->o.slots; b++) {
        const slot *p = &s->slots[b];
        if (p->kind == FREE || !p->n_rows) continue;
        int32_t t = p->pos + p->n_rows - p->prompt_len;
        s->entries[n++] = (tv_sched_entry){.seq = p->kind == TRAJECTORY ? p->seq : -1 - p->seq,
                                           .slot = b,
                                           .pos = p->pos,
                                           .n_rows = p->n_rows,
                                           .t = t < 0 ? -1 : t,
                                           .again = p->kind == TRAJECTORY && t >= 0 && t < s->done[p->seq]};
    }
    TV_ASSERT(n > 0);
    *entries = s->entries;
    return n;
}
