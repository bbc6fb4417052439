/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/symbols.h"
#include "runtime/device/cuda/nccl/nccl.h"

#if defined HAVE_NCCL && !defined EMULATE
#include <nccl.h>
_Static_assert(NCCL_UNIQUE_ID_BYTES == HSPMD_COMMUNICATOR_ID_BYTES && sizeof(ncclUniqueId) == sizeof(struct nccl_id),
               "an identifier is 128 bytes");
_Static_assert((int)ncclSuccess == NCCL_SUCCESS && (int)ncclInProgress == NCCL_IN_PROGRESS && (int)ncclSum == NCCL_SUM, "NCCL's words");
_Static_assert((int)ncclInt32 == NCCL_INT32 && (int)ncclFloat32 == NCCL_FLOAT32 && (int)ncclFloat64 == NCCL_FLOAT64, "NCCL's types");
_Static_assert(offsetof(ncclConfig_t, blocking) == offsetof(struct nccl_config, blocking), "NCCL's configuration");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 10, 0)
_Static_assert((int)ncclBfloat16 == NCCL_BFLOAT16, "NCCL's types");
#endif
#endif

/* The first version with non-blocking communicators. */
#define OLDEST 21400
/* These versions are known to crash when communicators are created again, which every change of plan does. */
#define FAULTY_FIRST 22803
#define FAULTY_LAST 22808

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hspmd_nccl loaded;
static bool is_loaded;

static const char *version_text(int version, char *buf, size_t size)
{
	snprintf(buf, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
	return buf;
}

int hspmd_nccl_check_version(int version, struct hspmd_error *err)
{
	char text[32];
	if (version < OLDEST)
		return hspmd_fail(err, "NCCL %s is too old: install 2.14 or newer", version_text(version, text, sizeof text));
	if (version >= FAULTY_FIRST && version <= FAULTY_LAST)
		return hspmd_fail(err, "NCCL %s is known to crash when communicators are made anew: install 2.28.9 or newer, or 2.27",
		                  version_text(version, text, sizeof text));
	return 0;
}

static int find_calls(void *library, struct hspmd_nccl *n, const char *name, struct hspmd_error *err)
{
	const struct hspmd_symbol calls[] = {
		{ "ncclGetVersion", &n->get_version, false },
		{ "ncclGetUniqueId", &n->get_unique_id, false },
		{ "ncclCommInitRankConfig", &n->comm_init, false },
		{ "ncclCommGetAsyncError", &n->comm_async_error, false },
		{ "ncclCommAbort", &n->comm_abort, false },
		{ "ncclCommFinalize", &n->comm_finalize, false },
		{ "ncclCommDestroy", &n->comm_destroy, false },
		{ "ncclGroupStart", &n->group_start, false },
		{ "ncclGroupEnd", &n->group_end, false },
		{ "ncclSend", &n->send, false },
		{ "ncclRecv", &n->receive, false },
		{ "ncclBroadcast", &n->broadcast, false },
		{ "ncclReduce", &n->reduce, false },
		{ "ncclAllReduce", &n->all_reduce, false },
		{ "ncclAllGather", &n->all_gather, false },
		{ "ncclReduceScatter", &n->reduce_scatter, false },
		{ "ncclGetErrorString", &n->error_string, false },
		{ "ncclGetLastError", &n->last_error, true },
	};
	const char *lacks = hspmd_symbols_find(library, calls, sizeof calls / sizeof *calls);
	if (lacks == calls[0].name)
		return hspmd_fail(err, "%s is not NCCL", name);
	return lacks ? hspmd_fail(err, "%s is too old an NCCL (it has no %s): install 2.14 or newer", name, lacks) : 0;
}

/* Several processes on one GPU, for tests: NCCL takes each for a machine of its own. Connections are made when the communicator is created,
 * not at their first use. */
static void set_environment(void)
{
	const char *oversubscribe = hspmd_cuda_getenv("HSPMD_CUDA_OVERSUBSCRIBE", "HSPMD_CUDA_SHARE");
	char id[32];
	snprintf(id, sizeof id, "hspmd-%ld", (long)getpid());
	if (oversubscribe && !strcmp(oversubscribe, "1"))
		setenv("NCCL_HOSTID", id, 0);
	setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

#ifdef EMULATE
#define NAME "" /* the real NCCL cannot access an emulated GPU's memory */
#else
#define NAME "libnccl.so.2"
#endif

const struct hspmd_nccl *hspmd_nccl_load(struct hspmd_error *err)
{
	const char *named = getenv("HSPMD_NCCL"), *name = named ? named : NAME;
	int rv = 0;
	pthread_mutex_lock(&lock);
	if (!is_loaded) {
		void *library = *name ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
		if (!*name)
			rv = hspmd_fail(err, "NCCL is not to be used (HSPMD_NCCL names none)");
		else if (!library)
			rv = hspmd_fail(err, "NCCL cannot be loaded: %s", dlerror());
		else if (!(rv = find_calls(library, &loaded, name, err)) && loaded.get_version(&loaded.version))
			rv = hspmd_fail(err, "%s does not say which version it is", name);
		if (!rv)
			rv = hspmd_nccl_check_version(loaded.version, err);
		if (rv && library)
			dlclose(library);
		is_loaded = !rv;
		if (is_loaded)
			set_environment();
	}
	pthread_mutex_unlock(&lock);
	return rv ? NULL : &loaded;
}
