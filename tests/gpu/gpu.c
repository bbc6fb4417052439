/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Chooses the build folder's module, unless another is named. */
static void choose_module(void)
{
	const char *build = getenv("builddir");
	char path[4096], *whole;
	snprintf(path, sizeof path, "%s/hspmd-cuda-emulated.so", build ? build : ".");
	if (getenv("HSPMD_CUDA_MODULE") || !(whole = realpath(path, NULL)))
		return;
	setenv("HSPMD_CUDA_MODULE", whole, 1);
	setenv("HSPMD_CUDA_CACHE", "", 1);
	free(whole);
}

struct hspmd_device *gpu_open(void)
{
	struct hspmd_error err = { "" };
	struct hspmd_device *dev = NULL;
	choose_module();
	const struct hspmd_device_ops *ops = hspmd_device_find("cuda", &err);
	if (ops && ops->open(&dev, 0, 0, &err) == 0)
		return dev;
	printf("skipped: no GPU (%s)\n", err.text);
	exit(gpu_is_emulated() ? 1 : 77);
}

bool gpu_is_emulated(void)
{
	const char *module = getenv("HSPMD_CUDA_MODULE");
	return module && strstr(module, "emulated");
}

void gpu_counts(long counts[EMULATE_COUNTS])
{
	void *module = gpu_is_emulated() ? dlopen(getenv("HSPMD_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD) : NULL;
	const long *now = module ? dlsym(module, "emulate_counts") : NULL;
	for (int i = 0; i < EMULATE_COUNTS; i++)
		counts[i] = now ? __atomic_load_n(&now[i], __ATOMIC_RELAXED) : 0;
	if (module)
		dlclose(module);
}

long gpu_wgmma_runs(void)
{
	static long before;
	long counts[EMULATE_COUNTS], was = before;
	gpu_counts(counts);
	before = counts[EMULATE_WGMMA];
	return before - was;
}
