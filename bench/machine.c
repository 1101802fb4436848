/* The limits that other numbers are set against: the probes of bench_limits.c, the best of several. */
#include "bench/machine.h"

#include <omp.h>

#include "bench/bench.h"
#include "kernels/cpu/cpu.h"

tv_machine tv_machine_measure(int threads) {
    enum { WINDOWS = 12, BYTES = 256 << 20 };
    static const char *const widest_first[] = {"avx512", "avx2", "neon", "scalar"};
    tv_machine m = {0};
    if (threads < 1) threads = omp_get_num_procs();
    for (int i = 0; !(m.gflops > 0); i++) {
        m.vectors = widest_first[i];
        for (int w = 0; w < WINDOWS; w++) {
            const double rate = tv_probe_fma(m.vectors, threads, 0.01);
            if (rate > m.gflops) m.gflops = rate;
        }
    }
    void *block = tv_probe_memory(BYTES);
    if (!block) return m;
    for (int w = 0; w < WINDOWS; w++) {
        const double rate = tv_probe_read(block, BYTES, threads);
        if (rate > m.read_gbs) m.read_gbs = rate;
    }
    cpu_pages_free(block, BYTES);
    return m;
}
