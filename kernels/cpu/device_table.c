/* The CPU device as the rest of the program sees it. */
#include "kernels/cpu/cpu.h"

const tv_ops tv_ops_cpu = {
    .name = "cpu",
    .open = cpu_dev_open,
    .close = cpu_dev_close,
    .describe = cpu_describe,
    .numerics = cpu_numerics,
    .memory_total = cpu_memory_total,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_upload,
    .download = cpu_download,
    .sync = cpu_sync,
    .matrix_load = cpu_matrix_load,
    .matrix_free = cpu_matrix_free,
    .moe_scratch_bytes = cpu_moe_scratch_bytes,
    .embed = cpu_embed,
    .rmsnorm = cpu_rmsnorm,
    .linear = cpu_linear,
    .rope = cpu_rope,
    .swiglu = cpu_swiglu,
    .moe_route = cpu_moe_route,
    .moe = cpu_moe,
    .logprobs = cpu_logprobs,
    .sample = cpu_sample,
    .carry = cpu_carry,
};
