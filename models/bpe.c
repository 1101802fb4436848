#include "models/bpe.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = UINT32_MAX };

static uint64_t pair_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static uint32_t slot_of(const tv_bpe *bpe, uint64_t key) {
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h ^ h >> 32) & (bpe->slots - 1);
}

static uint32_t rank_of(const tv_bpe *bpe, int32_t left, int32_t right) {
    uint64_t key = pair_key(left, right);
    for (uint32_t i = slot_of(bpe, key);; i = (i + 1) & (bpe->slots - 1)) {
        if (bpe->ranks[i] == NONE) return NONE;
        if (bpe->keys[i] == key) return bpe->ranks[i];
    }
}

tv_status tv_bpe_open(tv_merge *merges, uint32_t n, tv_bpe *bpe, int64_t *twice, tv_err *err) {
    *twice = -1;
    *bpe = (tv_bpe){.merges = merges, .n = n, .slots = 16};
    TV_ASSERT(n < 1u << 30);
    while (bpe->slots < 2 * n) bpe->slots *= 2;
    bpe->keys = malloc(bpe->slots * sizeof *bpe->keys);
    bpe->ranks = malloc(bpe->slots * sizeof *bpe->ranks);
    if (!bpe->keys || !bpe->ranks) {
        tv_bpe_close(bpe);
        return TV_FAIL(err, TV_ENOMEM, "no memory for %u merge rules", n);
    }
    memset(bpe->ranks, 0xFF, bpe->slots * sizeof *bpe->ranks);
    for (uint32_t r = 0; r < n; r++) {
        uint64_t key = pair_key(merges[r].left, merges[r].right);
        uint32_t i = slot_of(bpe, key);
        for (; bpe->ranks[i] != NONE; i = (i + 1) & (bpe->slots - 1))
            if (bpe->keys[i] == key) {
                *twice = r;
                tv_bpe_close(bpe);
                return TV_FAIL(err, TV_EFORMAT, "merge rule %u is listed twice", r);
            }
        bpe->keys[i] = key;
        bpe->ranks[i] = r;
    }
    return TV_OK;
}

void tv_bpe_close(tv_bpe *bpe) {
    free(bpe->merges), free(bpe->keys), free(bpe->ranks);
    *bpe = (tv_bpe){0};
}

void tv_bpe_scratch_free(tv_bpe_scratch *scratch) {
    free(scratch->prev), free(scratch->next), free(scratch->heap);
    *scratch = (tv_bpe_scratch){0};
}

static tv_status grow(tv_bpe_scratch *s, size_t n, tv_err *err) {
    if (n <= s->capacity) return TV_OK;
    size_t capacity = n < 256 ? 256 : n + n / 2;
    tv_bpe_scratch_free(s);
    s->prev = malloc(capacity * sizeof *s->prev);
    s->next = malloc(capacity * sizeof *s->next);
    s->heap = malloc(3 * capacity * sizeof *s->heap);
    if (!s->prev || !s->next || !s->heap) {
        tv_bpe_scratch_free(s);
        return TV_FAIL(err, TV_ENOMEM, "no memory to merge a word of %zu bytes", n);
    }
    s->capacity = capacity;
    return TV_OK;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t x = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= x) break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

static void push(uint64_t *heap, size_t *n, uint64_t x) {
    size_t i = (*n)++;
    for (; i && heap[(i - 1) / 2] > x; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = x;
}

tv_status tv_bpe_merge(const tv_bpe *bpe, int32_t *ids, size_t *n, tv_bpe_scratch *scratch, tv_err *err) {
    size_t count = *n, queued = 0;
    if (count < 2) return TV_OK;
    if (count >= NONE)
        return TV_FAIL(err, TV_EUNSUPPORTED, "a word of %zu bytes: at most 2^32 - 2 can be merged", count);
    TV_TRY(grow(scratch, count, err));
    uint32_t *prev = scratch->prev, *next = scratch->next;
    uint64_t *heap = scratch->heap;
    for (uint32_t i = 0; i < count; i++) {
        prev[i] = i ? i - 1 : NONE;
        next[i] = i + 1 < count ? i + 1 : NONE;
        uint32_t rank = i + 1 < count ? rank_of(bpe, ids[i], ids[i + 1]) : NONE;
        if (rank != NONE) heap[queued++] = (uint64_t)rank << 32 | i;
    }
    for (size_t i = queued / 2; i-- > 0;) sift_down(heap, queued, i);
    while (queued) {
        uint64_t top = heap[0];
        heap[0] = heap[--queued];
        if (queued) sift_down(heap, queued, 0);
        /* An entry is stale when its symbols have since been merged into others; ids below 0 mark swallowed symbols. */
        uint32_t at = (uint32_t)top;
        const tv_merge *m = &bpe->merges[top >> 32];
        uint32_t right = next[at];
        if (ids[at] != m->left || right == NONE || ids[right] != m->right) continue;
        ids[at] = m->merged;
        ids[right] = -1;
        next[at] = next[right];
        if (next[at] != NONE) prev[next[at]] = at;
        /* At most two entries a merge, and fewer merges than symbols: 3n entries suffice. */
        if (next[at] != NONE) {
            uint32_t rank = rank_of(bpe, ids[at], ids[next[at]]);
            if (rank != NONE) push(heap, &queued, (uint64_t)rank << 32 | at);
        }
        if (prev[at] != NONE) {
            uint32_t rank = rank_of(bpe, ids[prev[at]], ids[at]);
            if (rank != NONE) push(heap, &queued, (uint64_t)rank << 32 | prev[at]);
        }
    }
    size_t left = 0;
    for (uint32_t i = 0; i != NONE;) {
        uint32_t following = next[i]; /* left <= i: the write never overtakes */
        ids[left++] = ids[i];
        i = following;
    }
    *n = left;
    return TV_OK;
}
