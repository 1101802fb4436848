/* The CPU device: choice of instructions, memory, packed matrices. */
#include "kernels/cpu/cpu.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/file.h"
#include "kernels/cpu/linear.h"

static const size_t HUGE_PAGE = (size_t)2 << 20;

/* Blocks below a huge page come from malloc, others from mmap, which gives zeroed pages that are backed when touched.
 */
void *cpu_pages(size_t bytes) {
    if (bytes > SIZE_MAX - 2 * HUGE_PAGE) return NULL;
    if (bytes < HUGE_PAGE) {
        size_t rounded = bytes ? (bytes + 63) / 64 * 64 : 64;
        void *p = aligned_alloc(64, rounded);
        if (p) memset(p, 0, rounded);
        return p;
    }
    /* Map a huge page too many and cut off what lies outside the aligned range. */
    size_t rounded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    char *map = mmap(NULL, rounded + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return NULL;
    size_t head = (HUGE_PAGE - (uintptr_t)map % HUGE_PAGE) % HUGE_PAGE;
    if (head) munmap(map, head);
    munmap(map + head + rounded, HUGE_PAGE - head);
    madvise(map + head, rounded, MADV_HUGEPAGE); /* a hint: slower without, nothing else */
    return map + head;
}

void cpu_pages_free(void *p, size_t bytes) {
    if (!p) return;
    if (bytes < HUGE_PAGE)
        free(p);
    else
        munmap(p, (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
}

/* Physical memory, or the control group's limit where that is smaller. */
static uint64_t memory_limit(void) {
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "r");
    unsigned long long limit;
    if (f) {
        if (fscanf(f, "%llu", &limit) == 1 && limit < total) total = limit; /* "max" does not parse: no limit */
        fclose(f);
    }
    return total;
}

static const cpu_isa *const isas[] = {
#if defined(__x86_64__)
    &cpu_isa_avx512, &cpu_isa_avx2,        &cpu_isa_avx512bf16,  &cpu_isa_amx,
#elif defined(__aarch64__)
    &cpu_isa_neon,
#endif
    &cpu_isa_scalar, &cpu_isa_scalar_bf16, &cpu_isa_scalar_tiles};
enum { N_ISAS = sizeof isas / sizeof *isas };

#if defined(__x86_64__)
/* Word `reg` (0 eax .. 3 edx) of a CPUID leaf has this bit. */
static int cpuid_has(unsigned leaf, unsigned part, int reg, int bit) {
    unsigned word[4] = {0};
    return __get_cpuid_count(leaf, part, &word[0], &word[1], &word[2], &word[3]) && (word[reg] >> bit & 1);
}

/* The system keeps the state components whose bits are given. */
static int system_saves(uint32_t components) {
    if (!cpuid_has(1, 0, 2, 27)) return 0; /* OSXSAVE: XGETBV exists */
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & components) == components;
}

/* AMX tiles must be asked for once a process: 8 KiB more of state for each thread that touches them. */
static int may_use_tiles(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_CONFIG = 17, TILE_DATA = 18 };
    return cpuid_has(7, 0, 3, 24) && cpuid_has(7, 0, 3, 22) && system_saves(1u << TILE_CONFIG | 1u << TILE_DATA) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}
#endif

static int isa_runs(const cpu_isa *isa) {
#if defined(__x86_64__)
    if (isa == &cpu_isa_avx512bf16 && !cpuid_has(7, 1, 0, 5)) return 0;
    if (isa == &cpu_isa_amx && !may_use_tiles()) return 0;
    if (isa->level >= CPU_AVX2 && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))) return 0;
    if (isa->level >= CPU_AVX512 && !__builtin_cpu_supports("avx512f")) return 0;
#endif
    return isa->level >= CPU_SCALAR;
}

/* Cores this process may run on. */
static int cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
}

static tv_status choose_isa(const char *name, const cpu_isa **out, tv_err *err) {
    int known = 0;
    for (int i = 0; i < N_ISAS; i++) {
        int named = !strcmp(name, isas[i]->name);
        known |= named;
        /* auto never changes the numerics: bits are the same on every machine */
        if ((named || (!strcmp(name, "auto") && isas[i]->reference == &cpu_isa_scalar)) && isa_runs(isas[i])) {
            *out = isas[i];
            return isas[i] == isas[i]->reference ? TV_OK : cpu_isa_check(isas[i], err);
        }
    }
    char list[128] = "";
    for (int i = N_ISAS - 1; i >= 0; i--)
        if (isa_runs(isas[i])) {
            size_t used = strlen(list);
            snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", isas[i]->name);
        }
    return TV_FAIL(err, TV_EUNSUPPORTED, "isa %s: %s; there are auto, %s", name,
                   known ? "this processor does not have it" : "unknown to this build", list);
}

tv_status cpu_dev_open(const tv_dev_options *options, tv_dev **out, tv_err *err) {
    int threads = options->threads ? options->threads : cores();
    if (threads < 1 || threads > 4096)
        return TV_FAIL(err, TV_EARG, "cpu: threads=%d must be in 1 .. 4096, or 0 for all cores", options->threads);
    const cpu_isa *isa = NULL;
    TV_TRY(choose_isa(options->isa ? options->isa : "auto", &isa, err));
    cpu_pool *pool;
    TV_TRY(cpu_pool_open(threads, &pool, err));
    tv_dev *dev = tv_xcalloc(1, sizeof *dev);
    dev->pool = pool;
    dev->threads = threads;
    dev->isa = isa;
    dev->level = isa->level;
    dev->total = memory_limit();
    int usual = isa->reference == &cpu_isa_scalar;
    snprintf(dev->description, sizeof dev->description, "cpu, %d thread%s, %s%s%s%s", threads, threads == 1 ? "" : "s",
             isa->name, usual ? "" : " (", usual ? "" : isa->numerics, usual ? "" : " numerics)");
    *out = dev;
    return TV_OK;
}

void cpu_dev_close(tv_dev *dev) {
    if (!dev) return;
    cpu_pool_close(dev->pool);
    for (int i = 0; i < CPU_N_SCRATCH; i++) cpu_pages_free(dev->scratch[i], dev->scratch_bytes[i]);
    free(dev);
}

const char *cpu_describe(const tv_dev *dev) { return dev->description; }

const char *cpu_numerics(const tv_dev *dev) { return dev->isa->numerics; }

uint64_t cpu_memory_total(const tv_dev *dev) { return dev->total; }

tv_status cpu_alloc(tv_dev *dev, size_t bytes, void **p, tv_err *err) {
    /* Pages are backed when first touched, so an allocation that cannot be met would kill the process later. */
    *p = dev->allocated <= dev->total && bytes <= dev->total - dev->allocated ? cpu_pages(bytes) : NULL;
    if (!*p)
        return TV_FAIL(err, TV_ENOMEM, "cpu: %.1f MiB asked for, with %.1f of %.1f MiB in use",
                       (double)bytes / (1 << 20), (double)dev->allocated / (1 << 20), (double)dev->total / (1 << 20));
    dev->allocated += bytes;
    return TV_OK;
}

void cpu_free(tv_dev *dev, void *p, size_t bytes) {
    if (!p) return;
    cpu_pages_free(p, bytes);
    dev->allocated -= bytes;
}

tv_status cpu_upload(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err) {
    (void)dev;
    if (bytes && (!dst || !src)) return TV_FAIL(err, TV_EARG, "upload: %s is NULL", dst ? "src" : "dst");
    if (bytes) memcpy(dst, src, bytes);
    return TV_OK;
}

tv_status cpu_download(tv_dev *dev, void *dst, const void *src, size_t bytes, tv_err *err) {
    (void)dev;
    if (bytes && (!dst || !src)) return TV_FAIL(err, TV_EARG, "download: %s is NULL", dst ? "src" : "dst");
    if (bytes) memcpy(dst, src, bytes);
    return TV_OK;
}

tv_status cpu_sync(tv_dev *dev, tv_err *err) {
    (void)dev, (void)err;
    return TV_OK; /* every call has done its work when it returns */
}

tv_status cpu_scratch(tv_dev *dev, int kind, size_t bytes, void **p, tv_err *err) {
    TV_ASSERT(kind >= 0 && kind < CPU_N_SCRATCH);
    if (bytes > dev->scratch_bytes[kind]) {
        void *larger = cpu_pages(bytes);
        if (!larger)
            return TV_FAIL(err, TV_ENOMEM, "cpu: no memory for %.1f MiB of scratch", (double)bytes / (1 << 20));
        cpu_pages_free(dev->scratch[kind], dev->scratch_bytes[kind]);
        dev->scratch[kind] = larger;
        dev->scratch_bytes[kind] = bytes;
    }
    *p = dev->scratch[kind];
    return TV_OK;
}

/* Packed panels, then the bias padded with zeros to whole panels. */
static size_t bias_bytes(int N) { return ((size_t)N + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL * sizeof(tv_bf16); }

tv_status cpu_matrix_load(tv_dev *dev, int n_parts, const void *const *parts, const int *part_N,
                          const void *const *bias, int K, tv_matrix *out, tv_err *err) {
    int N = 0;
    TV_TRY(tv_check_matrix_load(n_parts, parts, part_N, K, out, &N, err));

    /* Here, not in a step, is where the scratch of later products grows. */
    void *scratch;
    TV_TRY(cpu_scratch(dev, CPU_SCRATCH_LINEAR, cpu_linear_scratch_bytes(CPU_PACK_ROWS, K), &scratch, err));
    size_t panel_bytes = cpu_panel_bytes(N, K);
    void *data;
    TV_TRY(cpu_alloc(dev, panel_bytes + (bias ? bias_bytes(N) : 0), &data, err));
    const unsigned char **rows = tv_xmalloc((size_t)N * sizeof *rows);
    tv_bf16 *packed_bias = (tv_bf16 *)((char *)data + panel_bytes);
    size_t n = 0;
    for (int i = 0; i < n_parts; i++) {
        if (bias && bias[i]) memcpy(packed_bias + n, bias[i], (size_t)part_N[i] * sizeof(tv_bf16));
        for (int j = 0; j < part_N[i]; j++)
            rows[n++] = (const unsigned char *)parts[i] + (size_t)j * K * sizeof(tv_bf16);
    }
    cpu_pack_panels(dev->pool, cpu_threads_for(dev, (double)N * K), rows, N, K, data);
    free(rows);
    *out = (tv_matrix){.N = N, .K = K, .data = data, .bias = bias ? packed_bias : NULL};
    return TV_OK;
}

void cpu_matrix_free(tv_dev *dev, tv_matrix *matrix) {
    if (!matrix->data) return;
    cpu_free(dev, matrix->data, cpu_panel_bytes(matrix->N, matrix->K) + (matrix->bias ? bias_bytes(matrix->N) : 0));
    *matrix = (tv_matrix){0};
}
