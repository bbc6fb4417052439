/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded, this emulates slow shared storage: all processes together read at most HSPMD_SLOW_RATE bytes per second from files below
 * HSPMD_SLOW_UNDER. The file HSPMD_SLOW_CLOCK, which all processes map, contains the time at which the storage is free again. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/preload.h"

static atomic_bool slow[DESCRIPTORS];

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Nanoseconds of CLOCK_MONOTONIC at which the storage is free. */
static _Atomic int64_t *free_from(void)
{
	static _Atomic(_Atomic int64_t *) mapped;
	_Atomic int64_t *at = atomic_load(&mapped);
	const char *path = getenv("HSPMD_SLOW_CLOCK");
	if (at || !path)
		return at;
	int fd = REAL(open)(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *at))
		_exit(97);
	at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		_exit(97);
	atomic_store(&mapped, at);
	return at;
}

static void pay(int fd, ssize_t bytes)
{
	const char *rate = getenv("HSPMD_SLOW_RATE");
	_Atomic int64_t *at = fd >= 0 && fd < DESCRIPTORS && atomic_load(&slow[fd]) && bytes > 0 && rate ? free_from() : NULL;
	if (!at)
		return;
	int64_t cost = (int64_t)((double)bytes * 1e9 / atof(rate)), was = atomic_load(at), begin, now;
	do {
		now = now_ns();
		begin = was > now ? was : now;
	} while (!atomic_compare_exchange_weak(at, &was, begin + cost));
	int64_t until = begin + cost;
	struct timespec t = { until / 1000000000, until % 1000000000 };
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
		;
}

static int note(int fd, const char *path)
{
	const char *under = getenv("HSPMD_SLOW_UNDER");
	if (fd >= 0 && fd < DESCRIPTORS)
		atomic_store(&slow[fd], under && !strncmp(path, under, strlen(under)));
	return fd;
}

OPEN(open, return note(REAL(open)(path, flags, mode), path);)
OPEN(open64, return note(REAL(open64)(path, flags, mode), path);)

ssize_t read(int fd, void *data, size_t bytes)
{
	ssize_t n = REAL(read)(fd, data, bytes);
	pay(fd, n);
	return n;
}

#define PREAD(name)                                                                                                                        \
	ssize_t name(int fd, void *data, size_t bytes, off_t at)                                                                           \
	{                                                                                                                                  \
		ssize_t n = REAL(name)(fd, data, bytes, at);                                                                               \
		pay(fd, n);                                                                                                                \
		return n;                                                                                                                  \
	}
PREAD(pread)
PREAD(pread64)
