/* Stands in for libcuda.so.1 where there is no driver, so that tests can make cuDNN's plans: cuDNN hands the kernels
 * that it compiled to the driver. This one takes every module and runs none; it has no card. For tests only. */
enum { NO_DEVICE = 100 };

int cuInit(unsigned flags) { return (void)flags, NO_DEVICE; }
int cuDeviceGetCount(int *n) { return *n = 0, NO_DEVICE; }
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuGetErrorString(int error, const char **text) { return (void)error, *text = "stand-in driver", 0; }
int cuGetErrorName(int error, const char **text) { return (void)error, *text = "STAND_IN", 0; }
int cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    (void)code, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return *library = (void *)0x1000, 0;
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)library, (void)name;
    return *kernel = (void *)0x2000, 0;
}
int cuLibraryUnload(void *library) { return (void)library, 0; }
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device) {
    return (void)attribute, (void)value, (void)kernel, (void)device, 0;
}

/* cuDNN 9.19 looks these up and refuses a driver that lacks one; none is called. */
#define ABSENT(name)                                                                                                   \
    int name(void) { return NO_DEVICE; }
ABSENT(cuCtxGetCurrent)
ABSENT(cuCtxGetDevice)
ABSENT(cuCtxGetLimit)
ABSENT(cuCtxPopCurrent)
ABSENT(cuCtxPushCurrent)
ABSENT(cuDeviceGet)
ABSENT(cuDeviceGetAttribute)
ABSENT(cuDevicePrimaryCtxRelease)
ABSENT(cuDevicePrimaryCtxReset)
ABSENT(cuDevicePrimaryCtxRetain)
ABSENT(cuFuncGetAttribute)
ABSENT(cuFuncSetAttribute)
ABSENT(cuKernelGetAttribute)
ABSENT(cuKernelGetFunction)
ABSENT(cuLaunchCooperativeKernel)
ABSENT(cuLaunchKernel)
ABSENT(cuLaunchKernelEx)
ABSENT(cuLibraryLoadFromFile)
ABSENT(cuLinkAddData)
ABSENT(cuLinkAddData_v2)
ABSENT(cuLinkAddFile_v2)
ABSENT(cuLinkComplete)
ABSENT(cuLinkCreate)
ABSENT(cuLinkCreate_v2)
ABSENT(cuLinkDestroy)
ABSENT(cuMemcpyDtoH_v2)
ABSENT(cuModuleGetFunction)
ABSENT(cuModuleGetGlobal_v2)
ABSENT(cuModuleLoadData)
ABSENT(cuModuleLoadDataEx)
ABSENT(cuModuleLoadFatBinary)
ABSENT(cuModuleUnload)
ABSENT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
ABSENT(cuOccupancyMaxPotentialClusterSize)
ABSENT(cuStreamGetCtx)
ABSENT(cuStreamSynchronize)
ABSENT(cuTensorMapEncodeTiled)
