// The one header of device code that a kernel file includes: nvcc builds it for the GPU, g++ through simt.h for the CPU
// tests. Wrappers around inline PTX live here and nowhere else; each has a host twin in simt.h with the same meaning.
#ifndef TV_CUDA_DEV_H
#define TV_CUDA_DEV_H

#include <stdint.h>
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#define SIMT_LAUNCH(kernel, grid, block, smem, stream, ...) kernel<<<(grid), (block), (smem), (stream)>>>(__VA_ARGS__)
#define SIMT_SHARED(T, name, dims) __shared__ T name dims
#define SIMT_DYN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define SIMT_ALLOW_SMEM(kernel, bytes)                                                                                 \
    cudaFuncSetAttribute((const void *)(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))
#define SIMT_AT // call site: the emulator's error messages name it
#define SIMT_AT_PARAM
#else
#include "tests/simt/simt.h"
#define SIMT_LAUNCH(kernel, grid, block, smem, stream, ...)                                                            \
    simt::launch(#kernel, kernel, grid, block, smem, stream, __VA_ARGS__)
#define SIMT_SHARED(T, name, dims)                                                                                     \
    static simt::Slot name##_slot;                                                                                     \
    auto &name = *(T(*) dims)simt::smem_slot(&name##_slot, sizeof(T dims), alignof(T))
#define SIMT_DYN_SHARED(name) unsigned char *name = simt::g.dyn
#define SIMT_ALLOW_SMEM(kernel, bytes) simt::allow_smem(kernel, bytes)
#define SIMT_AT , sf_, sl_
#define SIMT_AT_PARAM , SIMT_SITE
#endif

// Two bf16 in a 32-bit word: plain bit operations, the same on both sides.
__device__ __forceinline__ float bf16_lo(uint32_t u) { return __uint_as_float(u << 16); }
__device__ __forceinline__ float bf16_hi(uint32_t u) { return __uint_as_float(u & 0xffff0000u); }
__device__ __forceinline__ uint32_t bf16_pack(float lo, float hi) {
    return (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(lo)) |
           (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(hi)) << 16;
}
__device__ __forceinline__ float exp2_approx(float x) { // ex2.approx: 2 ulp, 2^-inf = 0
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}
// Two E4M3 codes (the first lies low) as floats, exact; NaN codes are NaN.
__device__ __forceinline__ float e4m3_value(uint32_t code) {
    const float f = __uint_as_float((code & 0x7f) << 20); // the fields in place, with a bias that is 120 less
    return __uint_as_float(__float_as_uint((code & 0x7f) == 0x7f ? NAN : f * 0x1p120f) | (code & 0x80) << 24);
}
__device__ __forceinline__ float2 e4m3_pair(uint16_t codes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    float2 v;
    asm("{.reg .b32 both; .reg .b16 lo, hi;\n\t"
        "cvt.rn.f16x2.e4m3x2 both, %2; mov.b32 {lo, hi}, both; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi;}"
        : "=f"(v.x), "=f"(v.y)
        : "h"(codes));
    return v;
#else
    return make_float2(e4m3_value(codes & 0xff), e4m3_value(codes >> 8));
#endif
}
// d += a * b, one 16x8x16 tile per warp, bf16 in, f32 out. All 32 lanes.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2] SIMT_AT_PARAM) {
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    simt::mma_m16n8k16_bf16(d, a, b SIMT_AT);
#endif
}
// Four 8x8 b16 matrices; lane l gives the address of row l%8 of matrix l/8. All 32 lanes.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *smem SIMT_AT_PARAM) {
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(smem))
                 : "memory");
#else
    simt::ldmatrix(r, smem, 4, false SIMT_AT);
#endif
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *smem SIMT_AT_PARAM) {
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(smem))
                 : "memory");
#else
    simt::ldmatrix(r, smem, 4, true SIMT_AT);
#endif
}
// 16 bytes global -> shared; valid == false writes 16 zero bytes and reads nothing.
__device__ __forceinline__ void cp_async_16(void *smem, const void *global, bool valid SIMT_AT_PARAM) {
    int n = valid ? 16 : 0;
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(smem)),
                 "l"(__cvta_generic_to_global(global)), "r"(n)
                 : "memory");
#else
    simt::cp_async16(smem, global, n SIMT_AT);
#endif
}
__device__ __forceinline__ void cp_async_4(void *smem, const void *global, bool valid SIMT_AT_PARAM) { // 4 likewise
    int n = valid ? 4 : 0;
#ifdef __CUDACC__
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(smem)),
                 "l"(__cvta_generic_to_global(global)), "r"(n)
                 : "memory");
#else
    simt::cp_async4(smem, global, n SIMT_AT);
#endif
}
__device__ __forceinline__ void cp_async_commit() {
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    simt::cp_commit();
#endif
}
template <int KEEP> __device__ __forceinline__ void cp_async_wait() { // all but the newest KEEP groups are complete
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(KEEP) : "memory");
#else
    simt::cp_wait(KEEP);
#endif
}
// Barrier over some warps of the block (count threads, a multiple of 32); id 1..15.
__device__ __forceinline__ void bar_sync(int id, int count SIMT_AT_PARAM) {
#ifdef __CUDACC__
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
#else
    simt::barrier(id, count, "bar.sync" SIMT_AT);
#endif
}
__device__ __forceinline__ float warp_sum(float v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

#endif
