/* How long work reports that it goes on. */
#ifndef TV_PROGRESS_H
#define TV_PROGRESS_H

#include <stdint.h>

typedef struct {
    void (*fn)(void *user, uint64_t done, uint64_t total); /* NULL: silent. Bytes, tokens or whatever the call counts */
    void *user;
} tv_progress;

static inline void tv_progress_report(const tv_progress *p, uint64_t done, uint64_t total) {
    if (p && p->fn) p->fn(p->user, done, total);
}

#endif
