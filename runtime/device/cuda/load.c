/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/module_path.h"
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

static const struct hspmd_device_ops *load(struct hspmd_error *err)
{
	const char *named = getenv("HSPMD_CUDA_MODULE");
	const struct hspmd_device_ops *ops = NULL;
	char **path;
	if (named && *named)
		return load_file(named, err);
	int count = hspmd_module_paths(HSPMD_CUDA_FILE, &path, err);
	if (!count)
		hspmd_fail(err, "the CUDA device (%s) is not in %s", HSPMD_CUDA_FILE, HSPMD_PKGLIBDIR);
	else if (count > 0)
		ops = load_file(path[0], err);
	hspmd_module_paths_free(path, count);
	return ops;
}

const struct hspmd_device_ops *hspmd_device_cuda(struct hspmd_error *err)
{
	pthread_mutex_lock(&lock);
	if (!loaded) {
		/* Number the GPUs like the management library, which discovered them: CUDA's own order puts the fastest first. */
		setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
		/* Streams that share one of the device's queues wait for one another, and each communicator has a stream. */
		setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
		loaded = load(err);
	}
	const struct hspmd_device_ops *ops = loaded;
	pthread_mutex_unlock(&lock);
	return ops;
}
