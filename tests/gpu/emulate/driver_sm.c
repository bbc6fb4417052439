/* SPDX-License-Identifier: Apache-2.0 */
/* Green contexts of the emulated driver (driver.c): a GPU of 132 multiprocessors that, like compute capability 9.0, is cut into groups of
 * multiples of 8. It refuses what cuda.h says the driver refuses: to cut what came out of a cut, and to join the results of two cuts.
 * emulate_green_contexts has the multiprocessors of each context that was made. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/emulate/driver_sm.h"

#define EXPORT __attribute__((visibility("default")))
#define MULTIPROCESSORS 132
#define LEAST 8

EXPORT struct emulate_green_context emulate_green_contexts[EMULATE_GREEN_CONTEXTS];

/* What the driver keeps in the padding of a resource. */
struct origin {
	int cut; /* 0: the whole GPU */
	unsigned first;
};

static struct origin origin_of(const CUdevResource *r)
{
	struct origin o;
	memcpy(&o, r->_internal_padding, sizeof o);
	return o;
}

static CUdevResource resource(int cut, unsigned first, unsigned count)
{
	CUdevResource r;
	struct origin o = { cut, first };
	memset(&r, 0, sizeof r);
	r.type = count ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID;
	r.sm.smCount = count;
	memcpy(r._internal_padding, &o, sizeof o);
	return r;
}

EXPORT CUresult CUDAAPI cuDeviceGetDevResource(CUdevice device, CUdevResource *to, CUdevResourceType type)
{
	(void)device;
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	*to = resource(0, 0, MULTIPROCESSORS);
	return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource *result, unsigned *groups, const CUdevResource *input,
                                                    CUdevResource *remaining, unsigned flags, unsigned least)
{
	static int cuts;
	unsigned size = (least + LEAST - 1) / LEAST * LEAST, most = size ? MULTIPROCESSORS / size : 0;
	if (origin_of(input).cut || flags || !most)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	*groups = result && *groups < most ? *groups : most;
	cuts += result != NULL;
	for (unsigned i = 0; result && i < *groups; i++)
		result[i] = resource(cuts, i * size, size);
	if (result && remaining)
		*remaining = resource(cuts, *groups * size, MULTIPROCESSORS - *groups * size);
	return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc *description, CUdevResource *resources, unsigned count)
{
	struct emulate_green_context *c = calloc(1, sizeof *c);
	for (unsigned i = 0; c && i < count; i++) {
		struct origin o = origin_of(&resources[i]);
		if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM || o.cut != origin_of(&resources[0]).cut) {
			free(c);
			return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
		}
		memset(c->has + o.first, 1, resources[i].sm.smCount);
	}
	*description = (CUdevResourceDesc)(void *)c;
	return c ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc description, CUdevice device, unsigned flags)
{
	(void)device;
	for (int i = 0; i < EMULATE_GREEN_CONTEXTS && (flags & CU_GREEN_CTX_DEFAULT_STREAM); i++)
		if (!emulate_green_contexts[i].open) {
			memcpy(&emulate_green_contexts[i], description, sizeof *emulate_green_contexts);
			free((void *)description);
			emulate_green_contexts[i].open = true;
			*context = (CUgreenCtx)(void *)&emulate_green_contexts[i];
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx context)
{
	((struct emulate_green_context *)(void *)context)->open = false;
	return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx context, unsigned flags, int priority)
{
	(void)flags;
	(void)priority;
	*stream = (CUstream)(void *)context;
	return CUDA_SUCCESS;
}
