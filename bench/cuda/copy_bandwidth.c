/* copy_bandwidth: bytes per second that the card reads and writes in copies within its memory, the limit that decoding
 * is set against (bench/gpu_check.sh). Prints the best of the copies in GB/s, reads and writes counted. Exit 77: no
 * card. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/runtime.h"

enum { COPIES = 20 };

static tv_status measure(size_t bytes, double *best, tv_err *err) {
    cuda_rt_info info;
    cuda_rt_stream *stream = NULL;
    cuda_rt_event *from = NULL, *to = NULL;
    void *a, *b;
    TV_TRY(cuda_rt_open(0, &info, err));
    TV_TRY(cuda_rt_alloc(bytes, &a, err));
    TV_TRY(cuda_rt_alloc(bytes, &b, err));
    TV_TRY(cuda_rt_stream_open(&stream, err));
    TV_TRY(cuda_rt_event_open(&from, err));
    TV_TRY(cuda_rt_event_open(&to, err));
    TV_TRY(cuda_rt_zero(a, bytes, stream, err));
    for (int i = 0; i < COPIES; i++) {
        float ms;
        TV_TRY(cuda_rt_event_record(from, stream, err));
        TV_TRY(cuda_rt_copy(b, a, bytes, stream, err));
        TV_TRY(cuda_rt_event_record(to, stream, err));
        TV_TRY(cuda_rt_event_sync(to, err));
        TV_TRY(cuda_rt_event_elapsed(from, to, &ms, err));
        const double gbs = 2e-6 * (double)bytes / ms;
        if (ms > 0 && gbs > *best) *best = gbs;
    }
    return TV_OK;
}

/* copy_bandwidth [MiB of the buffer, default 1024] */
int main(int argc, char **argv) {
    char why[256];
    if (!cuda_rt_cards(why, sizeof why)) {
        fprintf(stderr, "copy_bandwidth: %s\n", why);
        return 77;
    }
    tv_err err = {0};
    double best = 0;
    if (measure((size_t)(argc > 1 ? atol(argv[1]) : 1024) << 20, &best, &err) != TV_OK) {
        fprintf(stderr, "copy_bandwidth: %s\n", err.message);
        return 1;
    }
    printf("%.1f\n", best);
    return 0;
}
