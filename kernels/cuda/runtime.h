/* The few things that the device needs of the CUDA runtime. Two implementations: runtime_cuda.c on the CUDA runtime,
 * and tests/simt/runtime_simt.cpp on the CPU, where launches and copies run only when something waits for them, so that
 * a missing wait reads poison. Streams run their work in order; everything but *_sync and open returns at once. */
#ifndef TV_CUDA_RUNTIME_H
#define TV_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_rt_stream cuda_rt_stream; /* a cudaStream_t */
typedef struct cuda_rt_event cuda_rt_event;   /* a cudaEvent_t */
typedef struct cuda_rt_graph cuda_rt_graph;   /* a cudaGraphExec_t */

typedef struct {
    char name[96];
    int major, minor; /* compute capability */
    int multiprocessors;
    int driver, runtime;   /* 13000 = 13.0 */
    uint64_t memory, free; /* bytes of the card, and of those not in use when it was opened */
} cuda_rt_info;

/* Number of cards; 0 with the reason in why ("no driver", "driver 12.4 is older than the toolkit's 13.0", ...). */
int cuda_rt_cards(char *why, size_t size);
/* Makes card gpu this thread's card. Fails with TV_EDEVICE or TV_EUNSUPPORTED: no driver, driver too old, no such card,
 * an architecture that the kernels were not built for. */
TV_NODISCARD tv_status cuda_rt_open(int gpu, cuda_rt_info *info, tv_err *err);

TV_NODISCARD tv_status cuda_rt_alloc(size_t bytes, void **p,
                                     tv_err *err); /* device memory, 256-byte aligned, undefined */
void cuda_rt_free(void *p);
TV_NODISCARD tv_status cuda_rt_host_alloc(size_t bytes, void **p, tv_err *err); /* pinned host memory */
void cuda_rt_host_free(void *p);

TV_NODISCARD tv_status cuda_rt_stream_open(cuda_rt_stream **stream, tv_err *err);
void cuda_rt_stream_close(cuda_rt_stream *stream);
TV_NODISCARD tv_status cuda_rt_stream_sync(cuda_rt_stream *stream, tv_err *err);
/* Host or device memory either way. Pinned host memory must stay as it is until the copy has run; pageable memory may
 * be written over as soon as the call returns when it is the source. */
TV_NODISCARD tv_status cuda_rt_copy(void *dst, const void *src, size_t bytes, cuda_rt_stream *stream, tv_err *err);
TV_NODISCARD tv_status cuda_rt_zero(void *dst, size_t bytes, cuda_rt_stream *stream, tv_err *err);
/* What the launch just made returned; kernel: its name for the message. */
TV_NODISCARD tv_status cuda_rt_launched(const char *kernel, tv_err *err);

TV_NODISCARD tv_status cuda_rt_event_open(cuda_rt_event **event, tv_err *err);
void cuda_rt_event_close(cuda_rt_event *event);
TV_NODISCARD tv_status cuda_rt_event_record(cuda_rt_event *event, cuda_rt_stream *stream, tv_err *err);
TV_NODISCARD tv_status cuda_rt_event_sync(cuda_rt_event *event, tv_err *err);
/* Milliseconds between two recorded events that have been waited for. */
TV_NODISCARD tv_status cuda_rt_event_elapsed(cuda_rt_event *from, cuda_rt_event *to, float *ms, tv_err *err);

/* Between begin and end nothing runs: what is put into the stream becomes a graph, which launch runs as often as
 * wanted. */
TV_NODISCARD tv_status cuda_rt_capture_begin(cuda_rt_stream *stream, tv_err *err);
TV_NODISCARD tv_status cuda_rt_capture_end(cuda_rt_stream *stream, cuda_rt_graph **graph, tv_err *err);
TV_NODISCARD tv_status cuda_rt_graph_launch(cuda_rt_graph *graph, cuda_rt_stream *stream, tv_err *err);
void cuda_rt_graph_close(cuda_rt_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
