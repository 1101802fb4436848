/* The KV cache of a session: a block of device memory, carved into layers. */
#ifndef TV_KV_H
#define TV_KV_H

#include "engine/engine.h"

typedef struct {
    tv_kv_layer *layers; /* [L] host array; k and v [slots,G,S,HS] of dtype, scales [slots,G,S] f32, device */
    void *block;         /* device memory that they lie in, borrowed */
    uint64_t bytes;
    int n_layers;
} tv_kv;

/* Device bytes of a cache of `slots` sequences of S positions, its scales included; UINT64_MAX when that overflows. */
uint64_t tv_kv_bytes(const tv_config *config, tv_dtype dtype, int64_t slots, int64_t S);
/* block: tv_kv_bytes of device memory, at 64 bytes. */
void tv_kv_open(const tv_config *config, tv_dtype dtype, int slots, int S, void *block, tv_kv *kv);
void tv_kv_close(tv_kv *kv);
/* Fills the whole cache with one bf16 pattern: tests poison it with NaN to show that nothing reads what no step wrote.
 */
TV_NODISCARD tv_status tv_kv_fill(const tv_engine *engine, tv_kv *kv, tv_bf16 pattern, tv_err *err);

#endif
