/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/tensor_map.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#include "common/symbols.h"

#if CUDA_VERSION >= 12000
#define COLUMNS 64

/* The driver's function is looked up, so that nothing is linked and older drivers still work. */
static __typeof__(&cuTensorMapEncodeTiled) encode;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void)
{
#ifdef EMULATE
	encode = cuTensorMapEncodeTiled;
#else
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (driver)
		hspmd_symbols_find(driver, &(struct hspmd_symbol){ "cuTensorMapEncodeTiled", &encode, true }, 1);
#endif
}

bool hspmd_cuda_has_tensor_maps(void)
{
	pthread_once(&once, find);
	return encode != NULL;
}

bool hspmd_cuda_tensor_map(CUtensorMap *map, const void *data, const int64_t shape[4], const int64_t stride[3], int rows)
{
	cuuint64_t dim[4], bytes[3];
	const cuuint32_t box[4] = { COLUMNS, (cuuint32_t)rows, 1, 1 }, each[4] = { 1, 1, 1, 1 };
	for (int d = 0; d < 4; d++)
		dim[d] = (cuuint64_t)shape[d];
	for (int d = 0; d < 3; d++)
		bytes[d] = (cuuint64_t)stride[d] * 2;
	return hspmd_cuda_has_tensor_maps() &&
	       encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)(uintptr_t)data, dim, bytes, box, each,
	              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
	              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
#else
bool hspmd_cuda_has_tensor_maps(void)
{
	return false;
}
#endif
