/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/device/cuda/module.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct hspmd_device_ops *loaded;

static const struct hspmd_device_ops *load_file(const char *path, struct hspmd_error *err)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		hspmd_fail(err, "the CUDA device cannot be loaded: %s", dlerror());
		return NULL;
	}
	const struct hspmd_cuda_module *module = dlsym(library, "hspmd_cuda_module");
	if (!module || module->version != HSPMD_CUDA_MODULE_VERSION) {
		hspmd_fail(err, "%s is not this release's CUDA device", path);
		dlclose(library);
		return NULL;
	}
	return module->ops;
}

/* Looks for the module in the folder of the running program and those above it, as in the build folder. Returns false if it is not there or
 * the folder is unknown. */
static bool beside_program(char *path, size_t size)
{
	char program[4096];
	ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
	if (n <= 0)
		return false;
	program[n] = '\0';
	for (char *end = program + n; end > program; end--) {
		if (*end != '/')
			continue;
		*end = '\0';
		if ((size_t)snprintf(path, size, "%s/" HSPMD_CUDA_FILE, program) < size && !access(path, R_OK))
			return true;
	}
	return false;
}

const struct hspmd_device_ops *hspmd_device_cuda(struct hspmd_error *err)
{
	char path[4200];
	const char *named = getenv("HSPMD_CUDA_MODULE");
	pthread_mutex_lock(&lock);
	if (!loaded) {
		/* Number the GPUs like the management library, which discovered them: CUDA's own order puts the fastest first. */
		setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
		/* Streams that share one of the device's queues wait for one another, and each communicator has a stream. */
		setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
		if (named && *named)
			loaded = load_file(named, err);
		else if (beside_program(path, sizeof path))
			loaded = load_file(path, err);
		else if (!access(HSPMD_PKGLIBDIR "/" HSPMD_CUDA_FILE, R_OK))
			loaded = load_file(HSPMD_PKGLIBDIR "/" HSPMD_CUDA_FILE, err);
		else
			hspmd_fail(err, "the CUDA device (%s) is not in %s", HSPMD_CUDA_FILE, HSPMD_PKGLIBDIR);
	}
	const struct hspmd_device_ops *ops = loaded;
	pthread_mutex_unlock(&lock);
	return ops;
}
