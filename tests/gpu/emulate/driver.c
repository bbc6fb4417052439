/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for CUDA's driver library (libcuda.so.1) on a machine without a GPU: it accepts kernels and runs none. cuDNN needs no more to
 * make plans for a GPU given by a description: it compiles their kernels and has them loaded. test_dnn loads this library first; because of
 * its soname cuDNN then finds it. */
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))
#define DONE 0
#define NOT_HERE 801 /* CUDA_ERROR_NOT_SUPPORTED */

static int thing; /* stands for every object */

/* GIVES: functions that return an object through their first argument. SETS: functions that only set. LACKS: functions that making a plan
 * must not call. */
#define GIVES(name)                                                                                                                        \
	EXPORT int name(void **first);                                                                                                     \
	EXPORT int name(void **first)                                                                                                      \
	{                                                                                                                                  \
		*first = &thing;                                                                                                           \
		return DONE;                                                                                                               \
	}
#define SETS(name)                                                                                                                         \
	EXPORT int name(void);                                                                                                             \
	EXPORT int name(void)                                                                                                              \
	{                                                                                                                                  \
		return DONE;                                                                                                               \
	}
#define LACKS(name)                                                                                                                        \
	EXPORT int name(void);                                                                                                             \
	EXPORT int name(void)                                                                                                              \
	{                                                                                                                                  \
		return NOT_HERE;                                                                                                           \
	}

GIVES(cuLibraryLoadData)
GIVES(cuLibraryLoadFromFile)
GIVES(cuLibraryGetKernel)
GIVES(cuLibraryGetModule)
GIVES(cuKernelGetFunction)
GIVES(cuModuleLoadData)
GIVES(cuModuleGetFunction)
LACKS(cuInit)
SETS(cuLibraryUnload)
SETS(cuModuleUnload)
SETS(cuKernelSetAttribute)
SETS(cuFuncSetAttribute)
LACKS(cuLibraryGetGlobal)
LACKS(cuKernelGetAttribute)
LACKS(cuOccupancyMaxActiveClusters)
LACKS(cuOccupancyMaxPotentialClusterSize)
LACKS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
LACKS(cuCtxGetCurrent)
LACKS(cuCtxGetLimit)
LACKS(cuCtxPopCurrent)
LACKS(cuCtxPushCurrent)
LACKS(cuStreamGetCtx)
LACKS(cuLinkCreate)
LACKS(cuLinkAddData)
LACKS(cuLinkComplete)
LACKS(cuLinkDestroy)
LACKS(cuLaunchKernel)
LACKS(cuLaunchKernelEx)
LACKS(cuLaunchCooperativeKernel)
LACKS(cuDeviceGetCount)
LACKS(cuDeviceGet)
LACKS(cuDriverGetVersion)

static int word(const char **text)
{
	*text = "not on this machine";
	return DONE;
}

EXPORT int cuGetErrorName(int status, const char **text);
EXPORT int cuGetErrorName(int status, const char **text)
{
	(void)status;
	return word(text);
}

EXPORT int cuGetErrorString(int status, const char **text);
EXPORT int cuGetErrorString(int status, const char **text)
{
	(void)status;
	return word(text);
}
