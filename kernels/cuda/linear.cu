/* linear: y [M,N] = x [M,K] W^T (+ bias), bf16 in, f32 sums, bf16 or f32 out.
 *
 * Two ways. On a card cuBLASLt (linear_cublaslt.c) takes the products it can; these kernels take the rest, and all of
 * them where dev->library_linear is NULL (emulated cards, tests, --own-gemm of the checks).
 *
 * linear_kernel: grid (row tiles, output tiles, slices), one tile of gemm_tile.h a block; row tiles run fastest, so
 * that weights come from memory once and from the L2 cache for the other row tiles. 16 x 32, 64 x 64 or 128 x 128
 * outputs, 128 or 256 threads, 48, 64 or 96 KiB. One slice: bias and rounding in the epilogue. Several: f32 partial
 * sums [slices,M,N] in scratch and linear_reduce_kernel, which adds them in ascending order, then the bias, and rounds.
 *
 * NUMERICS: as in gemm_tile.h. The tile is chosen by M, N and the card, and every tile gives the same bits: under
 * `fixed` no row's bits depend on M. The plan's slices are kept exactly; nothing else touches the order.
 * Limits: N <= 65535 tiles of outputs, slices <= 65535. K % 8 != 0 or operands off 16 bytes: element loads, 64 x 64. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm_tile.h"

enum { USUAL_SCRATCH = 1 << 20 };

template <class T, bool VEC>
__global__ void __launch_bounds__(T::THREADS, T::BLOCKS)
    linear_kernel(void *__restrict__ y, const uint16_t *__restrict__ x, const uint16_t *__restrict__ w,
                  const uint16_t *__restrict__ bias, int M, int N, int K, int slice, int out) {
    SIMT_DYN_SHARED(smem);
    const int m0 = (int)blockIdx.x * T::BM, n0 = (int)blockIdx.y * T::BN, begin = (int)blockIdx.z * slice;
    const gemm_operands o = {x, w, nullptr, M, N, K, begin, min(begin + slice, K), slice};
    float acc[T::MI][T::NI][4];
    gemm_accumulate<T, VEC, false, false>(o, m0, n0, smem, acc);
    void *to = gridDim.z == 1 ? y : (float *)y + (size_t)blockIdx.z * M * N;
    gemm_store<T>(acc, m0, n0, M, N, bias, to, out, smem);
}

/* y = partial sums [slices,count] in ascending order, + bias [N]; a thread an output. */
__global__ void __launch_bounds__(256)
    linear_reduce_kernel(void *__restrict__ y, const float *__restrict__ partial, const uint16_t *__restrict__ bias,
                         size_t count, int N, int slices, int out) {
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    float sum = partial[i];
    for (int s = 1; s < slices; s++) sum += partial[s * count + i];
    if (bias) sum += bf16_lo(bias[i % (size_t)N]);
    const uint16_t rounded = __bfloat16_as_ushort(__float2bfloat16_rn(sum));
    if (out == GEMM_BF16)
        ((uint16_t *)y)[i] = rounded;
    else
        ((float *)y)[i] = out == GEMM_F32 ? sum : bf16_lo(rounded);
}

__global__ void __launch_bounds__(256) linear_round_kernel(float *y, size_t count) {
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i < count) y[i] = __bfloat162float(__float2bfloat16_rn(y[i]));
}

extern "C" tv_status cuda_linear_round(tv_dev *dev, float *y, size_t count, tv_err *err) {
    SIMT_LAUNCH(linear_round_kernel, (unsigned)((count + 255) / 256), 256, 0, (cudaStream_t)dev->stream, y, count);
    return cuda_rt_launched("linear_round", err);
}

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

extern "C" int cuda_gemm_rows(const tv_dev *dev, int64_t M, int64_t N, int64_t copies) {
    static const struct {
        int rows, columns, above; /* above: with so few rows most of the tile would be padding */
    } tiles[] = {{128, 128, 64}, {64, 64, 16}};
    if (dev->gemm_rows) return dev->gemm_rows;
    for (int i = 0; i < 2; i++) {
        const int64_t rows = tiles[i].rows, columns = tiles[i].columns;
        const int64_t blocks = (M + rows - 1) / rows * ((N + columns - 1) / columns) * copies;
        if (M > tiles[i].above && blocks * 3 >= dev->info.multiprocessors) return tiles[i].rows;
    }
    return 16;
}

template <class T, bool VEC>
static tv_status launch(tv_dev *dev, const tv_linear_args *a, void *y, const tv_bf16 *bias, int out, tv_err *err) {
    const int tiles_m = ceil_div(a->M, T::BM), tiles_n = ceil_div(a->w->N, T::BN), slices = a->plan.slices;
    if (tiles_n > 65535 || slices > 65535)
        return TV_FAIL(err, TV_EUNSUPPORTED,
                       "linear: N=%d in %d slices is more than this kernel's %d outputs and 65535 slices", a->w->N,
                       slices, 65535 * T::BN);
    SIMT_ALLOW_SMEM((linear_kernel<T, VEC>), T::SMEM);
    SIMT_LAUNCH((linear_kernel<T, VEC>), dim3((unsigned)tiles_m, (unsigned)tiles_n, (unsigned)slices), T::THREADS,
                T::SMEM, (cudaStream_t)dev->stream, y, a->x, (const uint16_t *)a->w->data, bias, a->M, a->w->N, a->w->K,
                a->plan.slice, out);
    return cuda_rt_launched("linear", err);
}

extern "C" tv_status cuda_linear(tv_dev *dev, const tv_linear_args *a, tv_err *err) {
    TV_TRY(tv_check_linear(a, err));
    /* Once for all what any plan of `serving` needs: the scratch must not grow in a step that is captured. */
    void *scratch;
    TV_TRY(cuda_scratch(dev, CUDA_SCRATCH_LINEAR, USUAL_SCRATCH, &scratch, err));
    if (dev->library_linear) {
        int done = 0;
        TV_TRY(dev->library_linear(dev, a, &done, err));
        if (done) return TV_OK;
    }
    const int N = a->w->N, K = a->w->K, slices = a->plan.slices;
    const int out = !a->y_f32 ? GEMM_BF16 : a->round_bf16 ? GEMM_F32_ROUNDED : GEMM_F32;
    const bool vec = K % 8 == 0 && ((uintptr_t)a->x | (uintptr_t)a->w->data) % 16 == 0;
    void *y = a->y;
    if ((uintptr_t)y % 16)
        return TV_FAIL(err, TV_EUNSUPPORTED, "linear: y=%p must be aligned to 16 bytes on this device", y);
    if (slices > 1)
        TV_TRY(
            cuda_scratch(dev, CUDA_SCRATCH_LINEAR, (size_t)slices * (size_t)a->M * (size_t)N * sizeof(float), &y, err));
    const tv_bf16 *bias = slices > 1 ? NULL : a->w->bias;
    const int first = slices > 1 ? GEMM_F32 : out;
    const int rows = vec ? cuda_gemm_rows(dev, a->M, N, slices) : 64;
    tv_status s = !vec         ? launch<gemm_tile_64, false>(dev, a, y, bias, first, err)
                  : rows == 16 ? launch<gemm_tile_16, true>(dev, a, y, bias, first, err)
                  : rows == 64 ? launch<gemm_tile_64, true>(dev, a, y, bias, first, err)
                               : launch<gemm_tile_128, true>(dev, a, y, bias, first, err);
    if (s != TV_OK || slices == 1) return s;
    const size_t count = (size_t)a->M * (size_t)N;
    if (count > (size_t)256 * 0x7fffffff)
        return TV_FAIL(err, TV_EUNSUPPORTED, "linear: %zu sums of slices are more than one launch holds", count);
    SIMT_LAUNCH(linear_reduce_kernel, (unsigned)((count + 255) / 256), 256, 0, (cudaStream_t)dev->stream, a->y,
                (const float *)y, a->w->bias, count, N, slices, out);
    return cuda_rt_launched("linear_reduce", err);
}
