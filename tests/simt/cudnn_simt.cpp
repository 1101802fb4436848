// In place of cuDNN where the device is emulated: the same plans and buffers, worked off by a plain kernel in f32. What
// it checks is everything around cuDNN: which rows, which lengths, which pages, when plans are made.
// SIMT_CUDNN_REFUSES=REASON: the engines take no shape. SIMT_CUDNN_UNRECORDABLE=1: they do not know CUDA graphs.
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/dev.h"
#include "tests/simt/runtime_simt.h"

#include <stdio.h>
#include <stdlib.h>

const char cudnn_h200[] = "";

struct cudnn_lib {
    void *stream;
};
struct cudnn_plan {
    cudnn_shape shape;
    char description[64];
};

__global__ void stand_in_attention_kernel(cudnn_shape s, cudnn_buffers b) {
    const int i = (int)blockIdx.x, t = (int)blockIdx.y, h = (int)threadIdx.x;
    const int n_q = b.length_q[i], n_kv = b.length_kv[i], columns = (s.skv + s.page - 1) / s.page;
    if (n_q < 1 || n_q > s.sq || n_kv < n_q || n_kv > s.skv) abort();
    if (t >= n_q) return;
    const int keys = s.causal ? n_kv - n_q + t + 1 : n_kv, g = h / (s.H / s.G);
    const size_t row = (((size_t)i * s.sq + t) * s.H + h) * s.HS;
    const uint16_t *q = (const uint16_t *)b.q + row, *k = (const uint16_t *)b.k, *v = (const uint16_t *)b.v;
    uint16_t *o = (uint16_t *)b.o + row;
    float sum = 0, max = -INFINITY, acc[256] = {0};
    for (int pass = 0; pass < 2; pass++) // the largest score, then the weights
        for (int j = 0; j < keys; j++) {
            const int page = b.page_table[(size_t)i * columns + j / s.page];
            if (page < 0 || page >= s.pages) abort();
            const size_t at = ((size_t)page * s.page + (size_t)g * s.S + j % s.page) * s.HS;
            float x = 0;
            for (int d = 0; d < s.HS; d++) x = fmaf(bf16_lo(q[d]), bf16_lo(k[at + d]), x);
            x *= b.scale;
            if (pass == 0) {
                max = fmaxf(max, x);
                continue;
            }
            const float p = expf(x - max);
            sum += p;
            for (int d = 0; d < s.HS; d++) acc[d] = fmaf(p, bf16_lo(v[at + d]), acc[d]);
        }
    for (int d = 0; d < s.HS; d++) o[d] = (uint16_t)bf16_pack(acc[d] / sum, 0);
}

extern "C" {
size_t cudnn_version(const char **why) {
    if (why) *why = NULL;
    return 91900;
}
tv_status cudnn_lib_open(void *stream, const char *device, cudnn_lib **lib, tv_err *err) {
    (void)device, (void)err;
    *lib = new cudnn_lib{stream};
    return TV_OK;
}
void cudnn_lib_close(cudnn_lib *lib) { delete lib; }
tv_status cudnn_shape_supported(cudnn_lib *lib, const cudnn_shape *shape, tv_err *err) {
    (void)lib;
    const char *reason = getenv("SIMT_CUDNN_REFUSES");
    return reason ? TV_FAIL(err, TV_EUNSUPPORTED, "cuDNN has no plan for attention of b=%d, H=%d: engine 0: %s",
                            shape->b, shape->H, reason)
                  : TV_OK;
}
tv_status cudnn_plan_open(cudnn_lib *lib, const cudnn_shape *shape, cudnn_plan **plan, tv_err *err) {
    TV_TRY(cudnn_shape_supported(lib, shape, err));
    simt_no_capture("making a plan"); // it takes seconds, allocates and loads kernels
    *plan = new cudnn_plan{*shape, "stand-in"};
    return TV_OK;
}
void cudnn_plan_close(cudnn_plan *plan) { delete plan; }
size_t cudnn_plan_workspace(const cudnn_plan *plan) { return (void)plan, 0; }
const char *cudnn_plan_describe(const cudnn_plan *plan) { return plan->description; }
int cudnn_plan_recordable(const cudnn_plan *plan) { return (void)plan, !getenv("SIMT_CUDNN_UNRECORDABLE"); }
tv_status cudnn_plan_run(cudnn_lib *lib, cudnn_plan *plan, const cudnn_buffers *buffers, tv_err *err) {
    (void)err;
    const dim3 grid((unsigned)plan->shape.b, (unsigned)plan->shape.sq);
    SIMT_LAUNCH(stand_in_attention_kernel, grid, (unsigned)plan->shape.H, 0, (cudaStream_t)lib->stream, plan->shape,
                *buffers);
    return TV_OK;
}
}
