/* The vector kernels compiled for AVX2 and FMA. */
#define CPU_OPS_TABLE cpu_ops_avx2
#define CPU_OPS_NAME "avx2"
#include "kernels/cpu/isa_table.h"
