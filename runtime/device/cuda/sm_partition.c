/* SPDX-License-Identifier: Apache-2.0 */
/* Some of a GPU's multiprocessors as a device of their own (green contexts), for trying unequal devices on one GPU. The driver's functions
 * are looked up on demand, so that older drivers still work and nothing is linked. */
#include "runtime/device/cuda/sm_partition.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef EMULATE
#include <cuda.h>
#include <dlfcn.h>

#include "common/symbols.h"
#endif

/* Returns the number of multiprocessors of device `index` in a list like "88,44"; 0: none. */
static int partition_of(const char *list, int index)
{
	for (int i = 0; i < index && list; i++) {
		list = strchr(list, ',');
		list = list ? list + 1 : NULL;
	}
	return list ? atoi(list) : 0;
}

#if defined EMULATE || CUDA_VERSION < 12040
int hspmd_cuda_sm_partition_open(struct hspmd_cuda *cuda, int index, struct hspmd_error *err)
{
	const char *list = hspmd_cuda_getenv("HSPMD_CUDA_SM_PARTITION", "HSPMD_CUDA_SHARES");
	(void)cuda;
	return partition_of(list, index) > 0 ? hspmd_fail(err, "HSPMD_CUDA_SM_PARTITION: built without green contexts (CUDA 12.4)") : 0;
}

void hspmd_cuda_sm_partition_close(struct hspmd_cuda *cuda)
{
	(void)cuda;
}
#else
struct calls {
	CUresult (*resource)(CUdevice, CUdevResource *, CUdevResourceType);
	CUresult (*split)(CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, unsigned, unsigned);
	CUresult (*describe)(CUdevResourceDesc *, CUdevResource *, unsigned);
	CUresult (*create)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
	CUresult (*destroy)(CUgreenCtx);
	CUresult (*stream)(CUstream *, CUgreenCtx, unsigned, int);
};

static int find_calls(struct calls *c, struct hspmd_error *err)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	const struct hspmd_symbol calls[] = {
		{ "cuDeviceGetDevResource", &c->resource, false },    { "cuDevSmResourceSplitByCount", &c->split, false },
		{ "cuDevResourceGenerateDesc", &c->describe, false }, { "cuGreenCtxCreate", &c->create, false },
		{ "cuGreenCtxDestroy", &c->destroy, false },          { "cuGreenCtxStreamCreate", &c->stream, false },
	};
	if (!driver)
		return hspmd_fail(err, "the driver cannot be loaded: %s", dlerror());
	const char *lacks = hspmd_symbols_find(driver, calls, sizeof calls / sizeof *calls);
	return lacks ? hspmd_fail(err, "HSPMD_CUDA_SM_PARTITION: this driver has no green contexts (no %s)", lacks) : 0;
}

/* The parts of lower indices are split off first, the same in every device that is opened, so that no two parts overlap. */
static CUresult cut(const struct calls *c, const char *list, int index, CUdevice gpu, CUdevResource *own)
{
	CUdevResource left, rest;
	CUresult status = c->resource(gpu, &left, CU_DEV_RESOURCE_TYPE_SM);
	for (int i = 0; status == CUDA_SUCCESS && i <= index; i++) {
		unsigned groups = 1;
		status = c->split(own, &groups, &left, &rest, 0, (unsigned)partition_of(list, i));
		left = rest;
	}
	return status;
}

int hspmd_cuda_sm_partition_open(struct hspmd_cuda *cuda, int index, struct hspmd_error *err)
{
	const char *list = hspmd_cuda_getenv("HSPMD_CUDA_SM_PARTITION", "HSPMD_CUDA_SHARES");
	struct calls c;
	CUdevResource own;
	CUdevResourceDesc description;
	CUgreenCtx context;
	CUstream stream;
	if (partition_of(list, index) <= 0)
		return 0;
	cudaFree(NULL); /* creates the primary context, which the runtime's calls use */
	if (find_calls(&c, err))
		return -1;
	CUresult status = cut(&c, list, index, cuda->index, &own);
	if (status == CUDA_SUCCESS)
		status = c.describe(&description, &own, 1);
	if (status == CUDA_SUCCESS)
		status = c.create(&context, description, cuda->index, CU_GREEN_CTX_DEFAULT_STREAM);
	if (status != CUDA_SUCCESS)
		return hspmd_fail(err, "HSPMD_CUDA_SM_PARTITION=%s: part %d cannot be cut off (%d)", list, index, (int)status);
	status = c.stream(&stream, context, CU_STREAM_NON_BLOCKING, 0);
	if (status != CUDA_SUCCESS) {
		c.destroy(context);
		return hspmd_fail(err, "HSPMD_CUDA_SM_PARTITION=%s: no stream on part %d (%d)", list, index, (int)status);
	}
	cuda->green_context = context;
	cuda->stream = (cudaStream_t)stream;
	cuda->multiprocessors = (int)own.sm.smCount;
	size_t named = strlen(cuda->model);
	snprintf(cuda->model + named, sizeof cuda->model - named, " part of %d", cuda->multiprocessors);
	return 0;
}

void hspmd_cuda_sm_partition_close(struct hspmd_cuda *cuda)
{
	struct calls c;
	if (cuda->green_context && !find_calls(&c, NULL))
		c.destroy(cuda->green_context);
}
#endif
