/* cuBLASLt as linear_cublaslt.c calls it: the functions it needs, from the library or, in tests, from a stand-in. */
#ifndef TV_CUDA_LINEAR_CUBLASLT_H
#define TV_CUDA_LINEAR_CUBLASLT_H

#include <cublasLt.h>

#include "kernels/cuda/device.h"

/* X(return type, name without cublasLt, parameters) */
#define CUDA_LT_FUNCTIONS(X)                                                                                           \
    X(size_t, GetVersion, (void))                                                                                      \
    X(const char *, GetStatusString, (cublasStatus_t))                                                                 \
    X(cublasStatus_t, Create, (cublasLtHandle_t *))                                                                    \
    X(cublasStatus_t, Destroy, (cublasLtHandle_t))                                                                     \
    X(cublasStatus_t, MatmulDescInit_internal, (cublasLtMatmulDesc_t, size_t, cublasComputeType_t, cudaDataType_t))    \
    X(cublasStatus_t, MatmulDescSetAttribute,                                                                          \
      (cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t))                                    \
    X(cublasStatus_t, MatrixLayoutInit_internal,                                                                       \
      (cublasLtMatrixLayout_t, size_t, cudaDataType, uint64_t, uint64_t, int64_t))                                     \
    X(cublasStatus_t, MatmulPreferenceInit_internal, (cublasLtMatmulPreference_t, size_t))                             \
    X(cublasStatus_t, MatmulPreferenceSetAttribute,                                                                    \
      (cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t))                        \
    X(cublasStatus_t, MatmulAlgoGetHeuristic,                                                                          \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
       cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t[], int *))             \
    X(cublasStatus_t, MatmulAlgoCheck,                                                                                 \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
       cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, cublasLtMatmulHeuristicResult_t *))                       \
    X(cublasStatus_t, MatmulAlgoConfigGetAttribute,                                                                    \
      (const cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t, void *, size_t, size_t *))                  \
    X(cublasStatus_t, Matmul,                                                                                          \
      (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, const void *,       \
       cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t,     \
       const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t))

typedef struct {
#define CUDA_LT_MEMBER(type, name, parameters) type(*name) parameters;
    CUDA_LT_FUNCTIONS(CUDA_LT_MEMBER)
#undef CUDA_LT_MEMBER
} cuda_lt_api;

/* Fills api from the library found where programs' libraries are found, or in folder (NULL: nowhere else). On failure
 * 0, with the reason in why. */
int cuda_lt_load(cuda_lt_api *api, const char *folder, char *why, size_t size);
/* Makes api's product dev's (dev->library_linear); api is copied. */
TV_NODISCARD tv_status cuda_lt_attach(tv_dev *dev, const cuda_lt_api *api, tv_err *err);

#endif
