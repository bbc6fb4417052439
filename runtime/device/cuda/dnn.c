/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/symbols.h"
#include "runtime/device/cuda/dnn_internal.h"

/* The first version that clears the memory in which its backward pass accumulates, and that makes plans for a GPU given by a
 * description. */
#define OLDEST 90800

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hspmd_dnn_calls loaded;
static bool is_loaded;

static int find_calls(void *library, struct hspmd_dnn_calls *c, const char *name, struct hspmd_error *err)
{
	const struct hspmd_symbol calls[] = {
		{ "cudnnGetVersion", &c->get_version, false },
		{ "cudnnGetErrorString", &c->error_string, false },
		{ "cudnnCreate", &c->create, false },
		{ "cudnnDestroy", &c->destroy, false },
		{ "cudnnSetStream", &c->set_stream, false },
		{ "cudnnBackendCreateDescriptor", &c->describe, false },
		{ "cudnnBackendDestroyDescriptor", &c->forget, false },
		{ "cudnnBackendSetAttribute", &c->set, false },
		{ "cudnnBackendGetAttribute", &c->get, false },
		{ "cudnnBackendFinalize", &c->finalize, false },
		{ "cudnnBackendExecute", &c->execute, false },
		{ "cudnnGetLastErrorString", &c->last_error, false },
	};
	const char *lacks = hspmd_symbols_find(library, calls, sizeof calls / sizeof *calls);
	return lacks ? hspmd_fail(err, "%s is no cuDNN of version 9 (it has no %s)", name, lacks) : 0;
}

static int load(struct hspmd_error *err)
{
	const char *named = getenv("HSPMD_CUDNN"), *name = named ? named : "libcudnn.so.9";
	if (!*name)
		return hspmd_fail(err, "cuDNN is not to be used (HSPMD_CUDNN names none)");
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return hspmd_fail(err, "cuDNN cannot be loaded: %s", dlerror());
	int rv = find_calls(library, &loaded, name, err);
	if (!rv && loaded.get_version() < OLDEST)
		rv = hspmd_fail(err, "cuDNN %zu is too old: %d (9.8) is the first that is used", loaded.get_version(), OLDEST);
	if (rv)
		dlclose(library);
	return rv;
}

static struct hspmd_dnn *make(struct hspmd_error *err)
{
	pthread_mutex_lock(&lock);
	if (!is_loaded)
		is_loaded = !load(err);
	bool there = is_loaded;
	pthread_mutex_unlock(&lock);
	struct hspmd_dnn *dnn = there ? calloc(1, sizeof *dnn) : NULL;
	if (dnn)
		dnn->call = &loaded;
	else if (there)
		hspmd_fail_memory(err, "opening cuDNN");
	return dnn;
}

int hspmd_dnn_failed(const struct hspmd_dnn *dnn, cudnnStatus_t status, const char *what, struct hspmd_error *err)
{
	char why[256] = "";
	dnn->call->last_error(why, sizeof why);
	return hspmd_fail(err, "%s: %s %s", what, dnn->call->error_string(status), why);
}

int hspmd_dnn_open(struct hspmd_dnn **dnn, cudaStream_t stream, struct hspmd_error *err)
{
	struct hspmd_dnn *d = make(err);
	if (!d)
		return -1;
	cudnnStatus_t status = d->call->create(&d->handle);
	if (!status)
		status = d->call->set_stream(d->handle, stream);
	if (status) {
		hspmd_dnn_failed(d, status, "cuDNN cannot be used", err);
		hspmd_dnn_close(d);
		return -1;
	}
	*dnn = d;
	return 0;
}

int hspmd_dnn_open_described(struct hspmd_dnn **dnn, const char *properties, struct hspmd_error *err)
{
	struct hspmd_dnn *d = make(err);
	if (!d)
		return -1;
	cudnnStatus_t status = d->call->describe(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d->properties);
	if (!status)
		status = d->call->set(d->properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
		                      (int64_t)strlen(properties), properties);
	if (!status)
		status = d->call->finalize(d->properties);
	if (status) {
		hspmd_dnn_failed(d, status, "describing a GPU to cuDNN", err);
		hspmd_dnn_close(d);
		return -1;
	}
	*dnn = d;
	return 0;
}

void hspmd_dnn_close(struct hspmd_dnn *dnn)
{
	if (!dnn)
		return;
	if (dnn->properties)
		dnn->call->forget(dnn->properties);
	if (dnn->handle)
		dnn->call->destroy(dnn->handle);
	free(dnn);
}

size_t hspmd_dnn_version(const struct hspmd_dnn *dnn)
{
	return dnn->call->get_version();
}
