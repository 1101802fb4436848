// Does the emulated card notice? Kernels that are right must run, and each planted error must end the program with the
// words that name it. Races need ThreadSanitizer.
#include <stdio.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/dev.h"

#if SIMT_TSAN
extern "C" const char *__tsan_default_options() { return "halt_on_error=1 history_size=0"; }
#endif

__global__ void big(int *out) {
    SIMT_DYN_SHARED(bytes);
    int *shared = (int *)bytes;
    shared[threadIdx.x * 100] = (int)threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = shared[(127 - threadIdx.x) * 100];
}
// Two warps produce, two consume: named barriers.
__global__ void named(int *out) {
    SIMT_SHARED(int, shared, [64]);
    if (threadIdx.x < 64) {
        shared[threadIdx.x] = (int)threadIdx.x * 2;
        bar_sync(1, 128);
    } else {
        bar_sync(1, 128);
        out[threadIdx.x - 64] = shared[127 - threadIdx.x];
    }
}
__global__ void exchange(int *out, bool sync) {
    SIMT_SHARED(int, shared, [32]);
    shared[threadIdx.x] = (int)threadIdx.x;
    if (sync) __syncwarp();
    out[threadIdx.x] = shared[threadIdx.x ^ 1];
}
// The block that is done last adds up what all wrote; it knows by a ticket, or does not.
__global__ void last_block(int *tickets, float *part, float *out, bool ticket) {
    if (threadIdx.x) return;
    part[blockIdx.x] = (float)blockIdx.x + 1;
    __threadfence();
    if (ticket ? atomicAdd(tickets, 1) != (int)gridDim.x - 1 : blockIdx.x != gridDim.x - 1) return;
    *out = 0;
    for (unsigned i = 0; i < gridDim.x; i++) *out += part[i];
}
__global__ void overrun(int *out, int by) {
    SIMT_SHARED(int, shared, [32]);
    shared[(int)threadIdx.x + by] = 1;
    __syncthreads();
    out[threadIdx.x] = shared[threadIdx.x];
}
__global__ void early(int *out) {
    if (threadIdx.x == 3) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}
__global__ void unwaited(int *out, const int *from) {
    SIMT_SHARED(int, shared, [128]);
    cp_async_16(shared + threadIdx.x * 4, from + threadIdx.x * 4, true);
    cp_async_commit();
    out[threadIdx.x] = shared[threadIdx.x * 4];
}

static int out[128], tickets;
static float part[8], sum;

static void right() {
    SIMT_ALLOW_SMEM(big, 65536);
    SIMT_LAUNCH(big, 1, 128, 65536, nullptr, out);
    if (out[0] != 127) abort();
    SIMT_LAUNCH(named, 1, 128, 0, nullptr, out);
    if (out[0] != 126) abort();
    SIMT_LAUNCH(exchange, 1, 32, 0, nullptr, out, true);
    SIMT_LAUNCH(last_block, 8, 32, 0, nullptr, &tickets, part, &sum, true);
    if (sum != 36) abort();
}

static int failed;

// Runs f in a process of its own: it must end well where words is null, and otherwise badly, saying words.
static void expect(const char *what, const char *words, void (*f)()) {
    int ends[2];
    if (pipe(ends)) abort();
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        f();
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char part_of_it[4096];
    for (ssize_t n; (n = read(ends[0], part_of_it, sizeof part_of_it)) > 0;) said.append(part_of_it, (size_t)n);
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    const bool held = words ? status != 0 && said.find(words) != std::string::npos : status == 0;
    printf("%s %s\n", held ? "ok  " : "FAIL", what);
    if (!held) fprintf(stderr, "%s", said.c_str()), failed = 1;
}

int main() {
    expect("right kernels", nullptr, right);
    expect("too much shared memory", "bytes of dynamic shared memory, limit 49152",
           [] { SIMT_LAUNCH(big, 1, 128, 65536, nullptr, out); });
    expect("a full mask in half a warp", "names lanes that do not exist",
           [] { SIMT_LAUNCH(exchange, 1, 48, 0, nullptr, out, true); });
    expect("a write past a shared array", "write past the end of shared variable",
           [] { SIMT_LAUNCH(overrun, 1, 32, 0, nullptr, out, 1); });
    expect("an early return", "a thread returned while others wait",
           [] { SIMT_LAUNCH(early, 1, 64, 0, nullptr, out); });
    expect("a copy never waited for", "cp.async copies never waited for",
           [] { SIMT_LAUNCH(unwaited, 1, 32, 0, nullptr, out, (const int *)out); });
#if SIMT_TSAN
    expect("no barrier in a warp", "data race", [] { SIMT_LAUNCH(exchange, 1, 32, 0, nullptr, out, false); });
    expect("no order between blocks", "data race",
           [] { SIMT_LAUNCH(last_block, 8, 32, 0, nullptr, &tickets, part, &sum, false); });
#endif
    return failed;
}
