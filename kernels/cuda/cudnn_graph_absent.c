/* In place of cudnn_graph.c where cuDNN's headers were missing when tvgpu was built. */
#include "kernels/cuda/cudnn_graph.h"

const char cudnn_h200[] = "";

static const char reason[] = "needs cuDNN, and tvgpu was built without its headers";

size_t cudnn_version(const char **why) {
    if (why) *why = reason;
    return 0;
}

tv_status cudnn_lib_open(void *stream, const char *device, cudnn_lib **lib, tv_err *err) {
    (void)stream, (void)device;
    *lib = NULL;
    return TV_FAIL(err, TV_EUNSUPPORTED, "attention backend cudnn %s", reason);
}

/* Nothing below is reached: there is no library to call them with. */
void cudnn_lib_close(cudnn_lib *lib) { TV_ASSERT(!lib); }

tv_status cudnn_shape_supported(cudnn_lib *lib, const cudnn_shape *shape, tv_err *err) {
    (void)lib, (void)shape;
    return TV_FAIL(err, TV_EUNSUPPORTED, "attention backend cudnn %s", reason);
}

tv_status cudnn_plan_open(cudnn_lib *lib, const cudnn_shape *shape, cudnn_plan **plan, tv_err *err) {
    (void)lib, (void)shape, (void)plan;
    return TV_FAIL(err, TV_EUNSUPPORTED, "attention backend cudnn %s", reason);
}

void cudnn_plan_close(cudnn_plan *plan) { TV_ASSERT(!plan); }

size_t cudnn_plan_workspace(const cudnn_plan *plan) { return TV_ASSERT(!plan), 0; }

const char *cudnn_plan_describe(const cudnn_plan *plan) { return TV_ASSERT(!plan), reason; }

int cudnn_plan_recordable(const cudnn_plan *plan) { return TV_ASSERT(!plan), 0; }

tv_status cudnn_plan_run(cudnn_lib *lib, cudnn_plan *plan, const cudnn_buffers *buffers, tv_err *err) {
    (void)lib, (void)plan, (void)buffers;
    return TV_FAIL(err, TV_EUNSUPPORTED, "attention backend cudnn %s", reason);
}
