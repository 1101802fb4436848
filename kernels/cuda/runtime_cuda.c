/* runtime.h on the CUDA runtime. */
#include "kernels/cuda/runtime.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

/* A failed kernel fails every later call, with errors that say nothing of it: the first failure is kept and said again.
 */
static char first_failure[256];

static tv_status failed(cudaError_t e, const char *what, tv_err *err) {
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* not sticky: the next call starts afresh */
        return TV_FAIL(err, TV_ENOMEM, "cuda: %s: no memory left", what);
    }
    if (!*first_failure) {
        snprintf(first_failure, sizeof first_failure, "%s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
        return TV_FAIL(err, TV_EDEVICE, "cuda: %s", first_failure);
    }
    return TV_FAIL(err, TV_EDEVICE, "cuda: %s failed after an earlier failure: %s", what, first_failure);
}

#define TRY(call, what, err)                                                                                           \
    do {                                                                                                               \
        cudaError_t try_error_ = (call);                                                                               \
        if (try_error_ != cudaSuccess) return failed(try_error_, what, err);                                           \
    } while (0)

static int capability(int gpu, int *major, int *minor) {
    return cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, gpu) == cudaSuccess &&
           cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, gpu) == cudaSuccess;
}

int cuda_rt_cards(char *why, size_t size) {
    int n = 0, driver = 0, runtime = 0, major = 0, minor = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (e == cudaErrorInsufficientDriver || e == cudaErrorStubLibrary) {
        if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0 ||
            cudaRuntimeGetVersion(&runtime) != cudaSuccess)
            snprintf(why, size, "no NVIDIA driver is installed");
        else
            snprintf(
                why, size,
                "the NVIDIA driver is for CUDA %d.%d, and tvgpu was built with CUDA %d.%d: update the driver, or build "
                "with an older toolkit",
                driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        return 0;
    }
    if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0)) {
        snprintf(why, size, "the NVIDIA driver shows no card%s%s", visible ? "; CUDA_VISIBLE_DEVICES is " : "",
                 visible ? visible : "");
        return 0;
    }
    if (e != cudaSuccess) {
        snprintf(why, size, "%s (%s)", cudaGetErrorString(e), cudaGetErrorName(e));
        return 0;
    }
    for (int gpu = 0; gpu < n; gpu++)
        if (capability(gpu, &major, &minor) && 10 * major + minor >= TV_CUDA_ARCH) return n;
    snprintf(why, size, "no card of compute capability %.1f or later, which this build needs; card 0 has %d.%d",
             TV_CUDA_ARCH / 10.0, major, minor);
    return 0;
}

tv_status cuda_rt_open(int gpu, cuda_rt_info *info, tv_err *err) {
    char why[256];
    int n = cuda_rt_cards(why, sizeof why);
    if (!n) return TV_FAIL(err, TV_EUNSUPPORTED, "--device cuda: %s", why);
    if (gpu < 0 || gpu >= n)
        return TV_FAIL(err, TV_EARG, "--gpu %d: there %s %d card%s, counted from 0", gpu, n == 1 ? "is" : "are", n,
                       n == 1 ? "" : "s");
    struct cudaDeviceProp p;
    TRY(cudaGetDeviceProperties(&p, gpu), "asking for the card's properties", err);
    if (10 * p.major + p.minor < TV_CUDA_ARCH)
        return TV_FAIL(
            err, TV_EUNSUPPORTED,
            "--gpu %d: %s has compute capability %d.%d, and the kernels were built for %.1f and later: configure "
            "with -DTV_CUDA_ARCH=%d%d",
            gpu, p.name, p.major, p.minor, TV_CUDA_ARCH / 10.0, p.major, p.minor);
    TRY(cudaSetDevice(gpu), "selecting the card", err);
    *info = (cuda_rt_info){.major = p.major, .minor = p.minor, .multiprocessors = p.multiProcessorCount};
    snprintf(info->name, sizeof info->name, "%.95s", p.name);
    size_t free = 0, total = 0;
    TRY(cudaMemGetInfo(&free, &total), "starting on the card", err);
    info->free = free, info->memory = total;
    TRY(cudaDriverGetVersion(&info->driver), "asking for the driver's version", err);
    TRY(cudaRuntimeGetVersion(&info->runtime), "asking for the runtime's version", err);
    return TV_OK;
}

tv_status cuda_rt_alloc(size_t bytes, void **p, tv_err *err) {
    TRY(cudaMalloc(p, bytes ? bytes : 256), "allocating memory of the card", err);
    return TV_OK;
}

/* Freeing fails only where an earlier failure already has. */
void cuda_rt_free(void *p) { (void)cudaFree(p); }

tv_status cuda_rt_host_alloc(size_t bytes, void **p, tv_err *err) {
    TRY(cudaMallocHost(p, bytes ? bytes : 1), "allocating pinned memory of the host", err);
    return TV_OK;
}

void cuda_rt_host_free(void *p) { (void)cudaFreeHost(p); }

tv_status cuda_rt_stream_open(cuda_rt_stream **stream, tv_err *err) {
    TRY(cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking), "creating a stream", err);
    return TV_OK;
}

void cuda_rt_stream_close(cuda_rt_stream *stream) { (void)cudaStreamDestroy((cudaStream_t)stream); }

tv_status cuda_rt_stream_sync(cuda_rt_stream *stream, tv_err *err) {
    TRY(cudaStreamSynchronize((cudaStream_t)stream), "waiting for the card", err);
    return TV_OK;
}

tv_status cuda_rt_copy(void *dst, const void *src, size_t bytes, cuda_rt_stream *stream, tv_err *err) {
    TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, (cudaStream_t)stream), "copying", err);
    return TV_OK;
}

tv_status cuda_rt_zero(void *dst, size_t bytes, cuda_rt_stream *stream, tv_err *err) {
    TRY(cudaMemsetAsync(dst, 0, bytes, (cudaStream_t)stream), "clearing memory", err);
    return TV_OK;
}

tv_status cuda_rt_launched(const char *kernel, tv_err *err) {
    TRY(cudaGetLastError(), kernel, err);
    return TV_OK;
}

tv_status cuda_rt_event_open(cuda_rt_event **event, tv_err *err) {
    TRY(cudaEventCreate((cudaEvent_t *)event), "creating an event", err);
    return TV_OK;
}

void cuda_rt_event_close(cuda_rt_event *event) { (void)cudaEventDestroy((cudaEvent_t)event); }

tv_status cuda_rt_event_record(cuda_rt_event *event, cuda_rt_stream *stream, tv_err *err) {
    TRY(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream), "recording an event", err);
    return TV_OK;
}

tv_status cuda_rt_event_sync(cuda_rt_event *event, tv_err *err) {
    TRY(cudaEventSynchronize((cudaEvent_t)event), "waiting for the card", err);
    return TV_OK;
}

tv_status cuda_rt_event_elapsed(cuda_rt_event *from, cuda_rt_event *to, float *ms, tv_err *err) {
    TRY(cudaEventElapsedTime(ms, (cudaEvent_t)from, (cudaEvent_t)to), "taking the time between events", err);
    return TV_OK;
}

tv_status cuda_rt_capture_begin(cuda_rt_stream *stream, tv_err *err) {
    TRY(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal), "beginning a capture", err);
    return TV_OK;
}

tv_status cuda_rt_capture_end(cuda_rt_stream *stream, cuda_rt_graph **graph, tv_err *err) {
    cudaGraph_t captured = NULL;
    TRY(cudaStreamEndCapture((cudaStream_t)stream, &captured), "ending a capture", err);
    cudaError_t e = cudaGraphInstantiate((cudaGraphExec_t *)graph, captured, 0);
    (void)cudaGraphDestroy(captured);
    TRY(e, "instantiating a graph", err);
    return TV_OK;
}

tv_status cuda_rt_graph_launch(cuda_rt_graph *graph, cuda_rt_stream *stream, tv_err *err) {
    TRY(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream), "launching a graph", err);
    return TV_OK;
}

void cuda_rt_graph_close(cuda_rt_graph *graph) { (void)cudaGraphExecDestroy((cudaGraphExec_t)graph); }
