/* Stands where linear_cublaslt.c was not built: emulated cards, toolkits without cuBLASLt. */
#include <stdio.h>

#include "base/file.h"
#include "kernels/cuda/device.h"

tv_status cuda_lt_open(tv_dev *dev, tv_err *err) {
    (void)err;
    snprintf(dev->lt_absent, sizeof dev->lt_absent, "not in this build");
    return TV_OK;
}

void cuda_lt_close(tv_dev *dev) { (void)dev; }

void cuda_lt_forget(tv_dev *dev, uint64_t owners) { (void)dev, (void)owners; }

char *cuda_lt_text(const tv_dev *dev, uint64_t owners) {
    (void)owners;
    return tv_xprintf("cuBLASLt: %s; products by tvgpu's own kernels\n", dev->lt_absent);
}
