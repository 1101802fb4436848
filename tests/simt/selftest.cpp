// Emulator self-test: no argument must pass; n, w, t, d each plant one error that must be reported (w and t need TSan).
#include <stdio.h>
#include "kernels/cuda/dev.h"
__global__ void k_big(int* o) { SIMT_DYN_SHARED(s); int* p = (int*)s; p[threadIdx.x * 100] = threadIdx.x; __syncthreads(); o[threadIdx.x] = p[(127 - threadIdx.x) * 100]; }
__global__ void k_named(int* o) {  // two producer warps, two consumer warps: named barriers as in warp-specialised kernels
    SIMT_SHARED(int, s, [64]);
    int w = threadIdx.x / 32;
    if (w < 2) { s[threadIdx.x] = (int)threadIdx.x * 2; bar_sync(1, 128); } else { bar_sync(1, 128); o[threadIdx.x - 64] = s[127 - threadIdx.x]; }
}
__global__ void k_sw(int* o, bool sync) { SIMT_SHARED(int, s, [32]); s[threadIdx.x] = threadIdx.x; if (sync) __syncwarp(); o[threadIdx.x] = s[threadIdx.x ^ 1]; }
__global__ void k_ticket(int* cnt, float* part, float* out, int nb) {  // last block done sums up
    if (threadIdx.x == 0) { part[blockIdx.x] = blockIdx.x + 1.0f; __threadfence(); if (atomicAdd(cnt, 1) == nb - 1) { float t = 0; for (int i = 0; i < nb; i++) t += part[i]; *out = t; } }
}
__global__ void k_ticket_bad(int* cnt, float* part, float* out, int nb) {
    if (threadIdx.x == 0) { part[blockIdx.x] = blockIdx.x + 1.0f; if (blockIdx.x == (unsigned)nb - 1) { float t = 0; for (int i = 0; i < nb; i++) t += part[i]; *out = t; } } (void)cnt;
}
int main(int c, char** v) { int o[128] = {}, cnt = 0; float part[8], out = 0; const char* m = c > 1 ? v[1] : "";
    if (*m == 'n') SIMT_LAUNCH(k_big, 1, 128, 65536, nullptr, o);
    SIMT_ALLOW_SMEM(k_big, 65536); SIMT_LAUNCH(k_big, 1, 128, 65536, nullptr, o); printf("big %d\n", o[0]);
    SIMT_LAUNCH(k_named, 1, 128, 0, nullptr, o); printf("named %d %d\n", o[0], o[63]);
    SIMT_LAUNCH(k_sw, 1, 32, 0, nullptr, o, *m != 'w');
    SIMT_LAUNCH(k_ticket, 8, 32, 0, nullptr, &cnt, part, &out, 8); printf("ticket %g\n", out);
    if (*m == 't') SIMT_LAUNCH(k_ticket_bad, 8, 32, 0, nullptr, &cnt, part, &out, 8);
    if (*m == 'd') SIMT_LAUNCH(k_sw, 1, 48, 0, nullptr, o, true);  // half-filled last warp with a full mask
}
