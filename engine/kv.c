/* The KV cache of a session. */
#include "engine/kv.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* Positions of a slot are whole pages: attention backends that address the cache by pages count on it. */
enum { PAGE = 64 };
static int64_t whole_pages(int64_t S) { return (S + PAGE - 1) / PAGE * PAGE; }

/* Bytes of k or v of one layer of S positions a slot (whole pages), rounded up to whole cache lines so that every tensor is aligned. */
static uint64_t tensor_bytes(const tv_config *c, int64_t slots, int64_t S) {
    uint64_t row = (uint64_t)c->n_kv_heads * (uint64_t)c->head_size * sizeof(tv_bf16), positions, bytes;
    if (__builtin_mul_overflow((uint64_t)slots, (uint64_t)S, &positions) ||
        __builtin_mul_overflow(positions, row, &bytes) || bytes > UINT64_MAX - 63)
        return UINT64_MAX;
    return (bytes + 63) / 64 * 64;
}

uint64_t tv_kv_bytes(const tv_config *c, int64_t slots, int64_t S) {
    uint64_t one = tensor_bytes(c, slots, whole_pages(S)), all;
    return one == UINT64_MAX || __builtin_mul_overflow(one, 2 * (uint64_t)c->n_layers, &all) ? UINT64_MAX : all;
}

tv_status tv_kv_open(const tv_engine *e, int slots, int S, tv_kv *kv, tv_err *err) {
    const tv_config *c = &e->model->config;
    *kv = (tv_kv){.n_layers = c->n_layers, .bytes = tv_kv_bytes(c, slots, S)};
    TV_TRY(e->ops->alloc(e->dev, kv->bytes, &kv->block, err));
    kv->layers = tv_xcalloc((size_t)c->n_layers, sizeof *kv->layers);
    S = (int)whole_pages(S);
    uint64_t one = tensor_bytes(c, slots, S);
    char *at = kv->block;
    for (int l = 0; l < c->n_layers; l++, at += 2 * one)
        kv->layers[l] = (tv_kv_layer){.k = (tv_bf16 *)at,
                                      .v = (tv_bf16 *)(at + one),
                                      .slots = slots,
                                      .G = c->n_kv_heads,
                                      .S = S,
                                      .HS = c->head_size};
    return TV_OK;
}

void tv_kv_close(const tv_engine *e, tv_kv *kv) {
    if (kv->block) e->ops->free(e->dev, kv->block, kv->bytes);
    free(kv->layers);
    *kv = (tv_kv){0};
}

tv_status tv_kv_fill(const tv_engine *e, tv_kv *kv, tv_bf16 pattern, tv_err *err) {
    enum { CHUNK = 1 << 16 };
    tv_bf16 *chunk = tv_xmalloc(CHUNK * sizeof *chunk);
    for (size_t i = 0; i < CHUNK; i++) chunk[i] = pattern;
    tv_status s = TV_OK;
    for (uint64_t at = 0; at < kv->bytes && s == TV_OK; at += CHUNK * sizeof *chunk) {
        uint64_t left = kv->bytes - at, size = left < CHUNK * sizeof *chunk ? left : CHUNK * sizeof *chunk;
        s = e->ops->upload(e->dev, (char *)kv->block + at, chunk, size, err);
    }
    if (s == TV_OK) s = e->ops->sync(e->dev, err); /* the chunk must outlive the copies */
    free(chunk);
    return s;
}
