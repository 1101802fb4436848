/* The vector kernels in baseline code: the reference, and what runs on machines without AVX2. */
#define CPU_OPS_TABLE cpu_ops_scalar
#define CPU_OPS_NAME "scalar"
#include "kernels/cpu/isa_table.h"
