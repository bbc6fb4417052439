/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/host_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/gpu.h"

static __thread struct {
	bool on;
	const int *inside; /* the emulator's count of its own depth in this thread */
	long locks, allocations, lookups;
} here;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);

static bool counts(void)
{
	return here.on && !*here.inside;
}

void *malloc(size_t size)
{
	here.allocations += counts();
	return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	here.allocations += counts();
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	here.allocations += counts();
	return __libc_realloc(p, size);
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
	static int (*own)(pthread_mutex_t *);
	if (!own)
		*(void **)&own = dlsym(RTLD_NEXT, "pthread_mutex_lock");
	here.locks += counts();
	return own(m);
}

#endif

static long lookups(void)
{
	long counts[EMULATE_COUNTS];
	gpu_counts(counts);
	return counts[EMULATE_LOOKUPS];
}

void host_calls_begin(void)
{
	void *module = gpu_is_emulated() ? dlopen(getenv("HSPMD_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD) : NULL;
	here.inside = module ? dlsym(module, "emulate_inside") : NULL;
	here.locks = here.allocations = 0;
	here.lookups = lookups();
	if (module)
		dlclose(module);
	here.on = here.inside != NULL;
}

long host_calls_end(char text[HOST_CALLS_TEXT])
{
	here.on = false;
	long looked = lookups() - here.lookups;
	snprintf(text, HOST_CALLS_TEXT, "%ld locks, %ld allocations, %ld look-ups", here.locks, here.allocations, looked);
	return here.locks + here.allocations + looked;
}
