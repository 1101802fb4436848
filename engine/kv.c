/* The KV cache of a session. */
#include "engine/kv.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

/* Positions of a slot are whole pages: attention backends that address the cache by pages count on it. */
enum { PAGE = 64 };
static int64_t whole_pages(int64_t S) { return (S + PAGE - 1) / PAGE * PAGE; }

/* Bytes of `each` for every position of every slot and kv head, rounded up to whole cache lines so that what follows is
 * aligned; UINT64_MAX when that overflows. */
static uint64_t tensor_bytes(const tv_config *c, int64_t slots, int64_t S, uint64_t each) {
    uint64_t row = (uint64_t)c->n_kv_heads * each, positions, bytes;
    if (__builtin_mul_overflow((uint64_t)slots, (uint64_t)S, &positions) ||
        __builtin_mul_overflow(positions, row, &bytes) || bytes > UINT64_MAX - 63)
        return UINT64_MAX;
    return (bytes + 63) / 64 * 64;
}

/* Of k or v of one layer: elements, then scales. */
static uint64_t elements_bytes(const tv_config *c, tv_dtype dtype, int64_t slots, int64_t S) {
    return tensor_bytes(c, slots, whole_pages(S), (uint64_t)c->head_size * tv_dtype_size(dtype));
}
static uint64_t scales_bytes(const tv_config *c, tv_dtype dtype, int64_t slots, int64_t S) {
    return dtype == TV_BF16 ? 0 : tensor_bytes(c, slots, whole_pages(S), sizeof(float));
}

uint64_t tv_kv_bytes(const tv_config *c, tv_dtype dtype, int64_t slots, int64_t S) {
    uint64_t elements = elements_bytes(c, dtype, slots, S), scales = scales_bytes(c, dtype, slots, S), one, all;
    if (elements == UINT64_MAX || scales == UINT64_MAX || __builtin_add_overflow(elements, scales, &one) ||
        __builtin_mul_overflow(one, 2 * (uint64_t)c->n_layers, &all))
        return UINT64_MAX;
    return all;
}

void tv_kv_open(const tv_config *c, tv_dtype dtype, int slots, int S, void *block, tv_kv *kv) {
    *kv = (tv_kv){.block = block, .n_layers = c->n_layers, .bytes = tv_kv_bytes(c, dtype, slots, S)};
    kv->layers = tv_xcalloc((size_t)c->n_layers, sizeof *kv->layers);
    S = (int)whole_pages(S);
    uint64_t elements = elements_bytes(c, dtype, slots, S), scales = scales_bytes(c, dtype, slots, S);
    char *at = kv->block;
    for (int l = 0; l < c->n_layers; l++, at += 2 * (elements + scales)) {
        tv_kv_layer *y = &kv->layers[l];
        *y = (tv_kv_layer){.slots = slots, .G = c->n_kv_heads, .S = S, .HS = c->head_size, .dtype = dtype};
        y->k = (tv_bf16 *)(void *)at, y->v = (tv_bf16 *)(void *)(at + elements);
        if (!scales) continue;
        y->k_scale = (float *)(void *)(at + 2 * elements);
        y->v_scale = (float *)(void *)(at + 2 * elements + scales);
    }
}

void tv_kv_close(tv_kv *kv) {
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
