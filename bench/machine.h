/* What this machine can do at most, measured: the limits that benches set their numbers against. */
#ifndef TV_BENCH_MACHINE_H
#define TV_BENCH_MACHINE_H

typedef struct {
    double gflops;       /* f32 multiply-adds of the widest vectors here, two operations each, 1e9 per second */
    double read_gbs;     /* reading memory far beyond the caches, 1e9 bytes per second */
    const char *vectors; /* "avx512", "avx2", "neon", "scalar" */
} tv_machine;

/* Measures with so many threads (0 = all cores) for about a second, in processor time: what the machine gives when it
 * has nothing else to do. The best of several windows each. read_gbs is 0 when there is no memory to read. */
tv_machine tv_machine_measure(int threads);

#endif
