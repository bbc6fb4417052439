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

/* The GPU's multiprocessors, cut once: the driver does not cut again what comes out of a cut, and cuts only into groups of equal size.
 * Every device that is opened cuts the same way, so that parts made of different groups do not overlap. */
struct cut {
	CUdevResource *group; /* groups of the least size, and what is left over as the last one if it is not empty */
	unsigned groups, size;
	bool rest;
};

static CUresult cut(const struct calls *c, CUdevice gpu, struct cut *into)
{
	CUdevResource all, rest;
	CUresult status = c->resource(gpu, &all, CU_DEV_RESOURCE_TYPE_SM);
	if (status == CUDA_SUCCESS)
		status = c->split(NULL, &into->groups, &all, NULL, 0, 1); /* only counts them; 1 is rounded up to the least size */
	if (status != CUDA_SUCCESS)
		return status;
	into->group = calloc(into->groups + 1, sizeof *into->group);
	if (!into->group)
		return CUDA_ERROR_OUT_OF_MEMORY;
	status = c->split(into->group, &into->groups, &all, &rest, 0, 1);
	if (status != CUDA_SUCCESS || !into->groups)
		return status == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : status;
	into->size = into->group[0].sm.smCount;
	into->rest = rest.type == CU_DEV_RESOURCE_TYPE_SM && rest.sm.smCount > 0;
	into->group[into->groups] = rest;
	return CUDA_SUCCESS;
}

/* Groups that a part of the list gets: as many multiprocessors as it says, rounded to whole groups, at least one. */
static unsigned groups_of(const struct cut *all, const char *list, int part)
{
	unsigned wanted = (unsigned)partition_of(list, part), groups = (wanted + all->size / 2) / all->size;
	return groups ? groups : 1;
}

/* Chooses the groups of a part: *count from *first. The last part of the list gets at most what the others leave, with what is left
 * over if it wants more than whole groups. Returns -1 and err if nothing is left. */
static int choose_groups(const struct cut *all, const char *list, int index, unsigned *first, unsigned *count, struct hspmd_error *err)
{
	bool last = partition_of(list, index + 1) <= 0;
	*first = 0;
	for (int i = 0; i < index; i++)
		*first += groups_of(all, list, i);
	unsigned wanted = (unsigned)partition_of(list, index), there = *first < all->groups ? all->groups - *first : 0;
	*count = groups_of(all, list, index);
	if (last && wanted > there * all->size)
		*count = there + all->rest;
	else if (last && *count > there)
		*count = there;
	if (!*count || *count > there + (last && all->rest))
		return hspmd_fail(err,
		                  "HSPMD_CUDA_SM_PARTITION=%s: part %d does not fit into the %u groups of %u multiprocessors of this GPU",
		                  list, index, all->groups, all->size);
	return 0;
}

static int open_part(struct hspmd_cuda *cuda, const struct calls *c, struct cut *all, const char *list, int index, struct hspmd_error *err)
{
	unsigned first, count;
	CUdevResourceDesc description;
	CUgreenCtx context;
	CUstream stream;
	CUresult status = cut(c, cuda->index, all);
	if (status == CUDA_SUCCESS && choose_groups(all, list, index, &first, &count, err))
		return -1;
	if (status == CUDA_SUCCESS)
		status = c->describe(&description, all->group + first, count);
	if (status == CUDA_SUCCESS)
		status = c->create(&context, description, cuda->index, CU_GREEN_CTX_DEFAULT_STREAM);
	if (status != CUDA_SUCCESS)
		return hspmd_fail(err, "HSPMD_CUDA_SM_PARTITION=%s: part %d cannot be cut off (%d)", list, index, (int)status);
	status = c->stream(&stream, context, CU_STREAM_NON_BLOCKING, 0);
	if (status != CUDA_SUCCESS) {
		c->destroy(context);
		return hspmd_fail(err, "HSPMD_CUDA_SM_PARTITION=%s: no stream on part %d (%d)", list, index, (int)status);
	}
	cuda->green_context = context;
	cuda->stream = (cudaStream_t)stream;
	cuda->multiprocessors = 0;
	for (unsigned i = 0; i < count; i++)
		cuda->multiprocessors += (int)all->group[first + i].sm.smCount;
	size_t named = strlen(cuda->model);
	snprintf(cuda->model + named, sizeof cuda->model - named, " part of %d", cuda->multiprocessors);
	return 0;
}

int hspmd_cuda_sm_partition_open(struct hspmd_cuda *cuda, int index, struct hspmd_error *err)
{
	const char *list = hspmd_cuda_getenv("HSPMD_CUDA_SM_PARTITION", "HSPMD_CUDA_SHARES");
	struct calls c;
	struct cut all = { 0 };
	if (partition_of(list, index) <= 0)
		return 0;
	cudaFree(NULL); /* creates the primary context, which the runtime's calls use */
	if (find_calls(&c, err))
		return -1;
	int rv = open_part(cuda, &c, &all, list, index, err);
	free(all.group);
	return rv;
}

void hspmd_cuda_sm_partition_close(struct hspmd_cuda *cuda)
{
	struct calls c;
	if (cuda->green_context && !find_calls(&c, NULL))
		c.destroy(cuda->green_context);
}
#endif
