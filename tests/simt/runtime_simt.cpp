// The runtime of kernels/cuda/runtime.h on the CPU.
#include "kernels/cuda/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simt/simt.h"

extern "C" {
int cuda_rt_cards(char *why, size_t size) {
    (void)why, (void)size;
    return 1;
}
tv_status cuda_rt_open(int gpu, cuda_rt_info *info, tv_err *err) {
    if (gpu != 0) return TV_FAIL(err, TV_EARG, "--gpu %d: there is card 0 alone (emulated)", gpu);
    *info = cuda_rt_info{};
    snprintf(info->name, sizeof info->name, "emulated card");
    info->major = 9, info->minor = 0, info->multiprocessors = 132, info->memory = info->free = (uint64_t)4 << 30;
    return TV_OK;
}
tv_status cuda_rt_alloc(size_t bytes, void **p, tv_err *err) {
    *p = aligned_alloc(256, bytes ? (bytes + 255) / 256 * 256 : 256);
    if (!*p) return TV_FAIL(err, TV_ENOMEM, "emulated card: no memory for %zu bytes", bytes);
    memset(*p, 0xff, bytes);
    return TV_OK;
}
void cuda_rt_free(void *p) { free(p); }
tv_status cuda_rt_host_alloc(size_t bytes, void **p, tv_err *err) { return cuda_rt_alloc(bytes, p, err); }
void cuda_rt_host_free(void *p) { free(p); }
tv_status cuda_rt_stream_open(cuda_rt_stream **stream, tv_err *err) {
    (void)err;
    *stream = nullptr;
    return TV_OK;
}
void cuda_rt_stream_close(cuda_rt_stream *stream) { (void)stream; }
tv_status cuda_rt_stream_sync(cuda_rt_stream *stream, tv_err *err) {
    (void)stream, (void)err;
    return TV_OK;
}
tv_status cuda_rt_copy(void *dst, const void *src, size_t bytes, cuda_rt_stream *stream, tv_err *err) {
    (void)stream, (void)err;
    memcpy(dst, src, bytes);
    return TV_OK;
}
tv_status cuda_rt_zero(void *dst, size_t bytes, cuda_rt_stream *stream, tv_err *err) {
    (void)stream, (void)err;
    memset(dst, 0, bytes);
    return TV_OK;
}
tv_status cuda_rt_launched(const char *kernel, tv_err *err) {
    (void)kernel, (void)err;
    return TV_OK;
}

// For tests (rig.c). Order in which blocks and threads run: forward, reverse, two random ones.
void simt_schedule(int i) {
    simt::g.order = i == 0 ? simt::FORWARD : i == 1 ? simt::REVERSE : simt::RANDOM;
    simt::g.seed = i == 2 ? 1 : 2654435761u;
}
uint64_t simt_bank_conflicts(void) { return simt::g.stats.ldsm_conflicts; }
}
