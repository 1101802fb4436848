/* The CPU device: what its files share. Nothing outside kernels/cpu, tests and bench includes this.
 *
 * A source file whose name ends in _avx2.c, _avx512.c, _avx512bf16.c or _amx.c is compiled with those instructions (x86-64 only, see
 * kernels/CMakeLists.txt) and is entered only when the device was opened with that level; all others are baseline code.
 */
#ifndef TV_CPU_H
#define TV_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/ops.h"

/* Instruction sets, each including the ones before it. */
typedef enum { CPU_SCALAR, CPU_AVX2, CPU_AVX512 } cpu_level;

typedef struct cpu_isa cpu_isa;   /* kernels/cpu/linear.h */
typedef struct cpu_pool cpu_pool; /* kernels/cpu/threads.c */

/* Scratch buffers, one per operation that needs one, so that an operation may call another. */
enum {
    CPU_SCRATCH_LINEAR,
    CPU_SCRATCH_MOE,
    CPU_SCRATCH_ATTENTION,
    CPU_SCRATCH_LOGPROBS,
    CPU_SCRATCH_SAMPLE,
    CPU_N_SCRATCH
};

struct tv_dev {
    int threads;        /* that a call may use, the caller's own included; >= 1 */
    cpu_pool *pool;     /* the others; NULL with one thread */
    cpu_level level;    /* what this device may execute */
    const cpu_isa *isa; /* the matrix kernels of that level */
    uint64_t total;     /* bytes this process may use */
    uint64_t allocated; /* bytes handed out by alloc and matrix_load */
    void *scratch[CPU_N_SCRATCH];
    size_t scratch_bytes[CPU_N_SCRATCH];
    char description[96];
};

tv_status cpu_dev_open(const tv_dev_options *options, tv_dev **dev, tv_err *err);
void cpu_dev_close(tv_dev *dev);
const char *cpu_describe(const tv_dev *dev);
const char *cpu_numerics(const tv_dev *dev);
uint64_t cpu_memory_total(const tv_dev *dev);
tv_status cpu_alloc(tv_dev *dev, size_t bytes, void **p, tv_err *err);
void cpu_free(tv_dev *dev, void *p, size_t bytes);
tv_status cpu_upload(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err);
tv_status cpu_download(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err);
tv_status cpu_sync(tv_dev *dev, tv_err *err);
tv_status cpu_matrix_load(tv_dev *dev, int n_parts, const void *const *parts, const int *part_N,
                          const void *const *bias, int K, tv_matrix *out, tv_err *err);
void cpu_matrix_free(tv_dev *dev, tv_matrix *matrix);
size_t cpu_moe_scratch_bytes(int M, int D, int F, int used);

tv_status cpu_embed(tv_dev *dev, const tv_embed_args *a, tv_err *err);
tv_status cpu_rmsnorm(tv_dev *dev, const tv_rmsnorm_args *a, tv_err *err);
tv_status cpu_linear(tv_dev *dev, const tv_linear_args *a, tv_err *err);
tv_status cpu_rope(tv_dev *dev, const tv_rope_args *a, tv_err *err);
tv_status cpu_swiglu(tv_dev *dev, const tv_swiglu_args *a, tv_err *err);
tv_status cpu_moe_route(tv_dev *dev, const tv_moe_route_args *a, tv_err *err);
tv_status cpu_moe(tv_dev *dev, const tv_moe_args *a, tv_err *err);
tv_status cpu_logprobs(tv_dev *dev, const tv_logprobs_args *a, tv_err *err);
tv_status cpu_sample(tv_dev *dev, const tv_sample_args *a, tv_err *err);
tv_status cpu_carry(tv_dev *dev, const tv_carry_args *a, tv_err *err);

/* At least bytes of 64-byte aligned scratch of the given kind; its content is undefined, and it stays valid until the
 * next call for the same kind. Grows when asked for more than ever before (the only allocation that can happen inside a
 * step). */
TV_NODISCARD tv_status cpu_scratch(tv_dev *dev, int kind, size_t bytes, void **p, tv_err *err);

/* Part of a job: items begin .. end-1. worker is below the job's number of threads and belongs to no other running
 * part. */
typedef void (*cpu_task)(void *ctx, int worker, int begin, int end);
/* Runs task over items 0 .. n-1, cut into parts of grain items that are handed out in ascending order, on up to
 * `threads` threads (the caller is worker 0; fewer where the system has not let them run). Returns when all are done.
 * Which worker does which part is left to chance: results must not depend on it. Not from inside a task. */
void cpu_parallel(cpu_pool *pool, int threads, int n, int grain, cpu_task task, void *ctx);
TV_NODISCARD tv_status cpu_pool_open(int threads, cpu_pool **pool, tv_err *err);
void cpu_pool_close(cpu_pool *pool);

/* Threads worth waking for so many elementary operations (multiply-adds or the like): 1 below what one does in the time
 * that waking another takes. */
static inline int cpu_threads_for(const tv_dev *dev, double operations) { return operations < 2e5 ? 1 : dev->threads; }
/* The grain that gives each thread about eight parts of n items, so that one that runs late leaves its share to the
 * others. */
static inline int cpu_grain(int n, int threads) { return n / (8 * threads) > 1 ? n / (8 * threads) : 1; }

/* Memory as alloc gives it, without a device: 64-byte aligned, zeroed, in huge pages from 2 MiB on. NULL when
 * exhausted. */
void *cpu_pages(size_t bytes);
void cpu_pages_free(void *p, size_t bytes);

#endif
