/* Byte-pair merging of one word: the merge rules, and their application in order of rank. */
#ifndef TV_BPE_H
#define TV_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct {
    int32_t left, right, merged; /* token ids */
} tv_merge;

/* Rules in order of rank and a table from (left, right) to rank. */
typedef struct {
    tv_merge *merges; /* [n] owned */
    uint32_t n;
    uint64_t *keys;  /* [slots] left << 32 | right; owned */
    uint32_t *ranks; /* [slots] UINT32_MAX: empty; owned */
    uint32_t slots;  /* a power of two, at least 2n */
} tv_bpe;

/* Takes over merges [n] (from malloc). Fails with the index of the second of two equal rules in *twice, else -1. */
TV_NODISCARD tv_status tv_bpe_open(tv_merge *merges, uint32_t n, tv_bpe *bpe, int64_t *twice, tv_err *err);
void tv_bpe_close(tv_bpe *bpe);

/* Scratch of one caller, grown as needed; zero-initialise it. */
typedef struct {
    uint32_t *prev, *next; /* [capacity] the chain of symbols that are left */
    uint64_t *heap;        /* [3 * capacity] rank << 32 | place of the left symbol, smallest first */
    size_t capacity;
} tv_bpe_scratch;
void tv_bpe_scratch_free(tv_bpe_scratch *scratch);

/* Merges ids[0..*n) in place as Hugging Face's BPE does: always the applicable pair of lowest rank, the leftmost of
 * equals. A heap over a linked list: n log n. *n < 2^32. */
TV_NODISCARD tv_status tv_bpe_merge(const tv_bpe *bpe, int32_t *ids, size_t *n, tv_bpe_scratch *scratch, tv_err *err);

#endif
