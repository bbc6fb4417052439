/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a program that changes files. At the call with number HSPMD_CRASH_AT it kills the process (a write has then written half),
 * or, with HSPMD_CRASH_ERRNO, lets that call fail. With HSPMD_CRASH_LOG it logs every call, so that the order of writes, syncs and renames
 * can be judged as a power failure would. Only calls on paths that begin with HSPMD_CRASH_UNDER (several are separated by colons), and on
 * descriptors opened there, count.
 *
 * A file that HSPMD_CRASH_ORDER names gives orders to running processes: "CALL TEXT WHAT" (or "any" call; TEXT is part of the path). The
 * first process that makes such a call removes the file and kills itself (WHAT is "kill"), stops itself ("stop"), or lets the call fail (an
 * errno); "keep ERRNO" lets all such calls fail while the file exists, "hold" makes all wait until it is removed. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/preload.h"

static atomic_int calls;
static char *names[DESCRIPTORS]; /* path of each descriptor that counts */

static void append(const char *text)
{
	const char *log = getenv("HSPMD_CRASH_LOG");
	int fd = log ? REAL(open)(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
	if (fd < 0)
		return;
	if (REAL(write)(fd, text, strlen(text)) < 0)
		_exit(99);
	REAL(close)(fd);
}

static bool counts(const char *path)
{
	for (const char *under = getenv("HSPMD_CRASH_UNDER"), *end; path && under && *under; under = *end ? end + 1 : end) {
		end = strchrnul(under, ':');
		if (!strncmp(path, under, (size_t)(end - under)))
			return true;
	}
	return false;
}

static const char *name_of(int fd)
{
	return fd >= 0 && fd < DESCRIPTORS ? names[fd] : NULL;
}

static void die(void)
{
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
}

/* As strike, by the order in that file, if there is one. */
static int obey(const char *what, const char *path, void (*half)(void *), void *arg)
{
	const char *order = getenv("HSPMD_CRASH_ORDER");
	int fd = order ? REAL(open)(order, O_RDONLY | O_CLOEXEC) : -1, error = 0;
	char text[256], call[16], part[128], act[16];
	if (fd < 0)
		return 0;
	ssize_t n = read(fd, text, sizeof text - 1);
	REAL(close)(fd);
	text[n > 0 ? n : 0] = '\0';
	if (sscanf(text, "%15s %127s %15s %d", call, part, act, &error) < 3 || (strcmp(call, "any") && strcmp(call, what)) ||
	    !strstr(path, part))
		return 0;
	if (!strcmp(act, "hold")) {
		while (!access(order, F_OK))
			usleep(10000);
		return 0;
	}
	if (strcmp(act, "keep") && REAL(unlink)(order))
		return 0; /* another was first */
	if (!strcmp(act, "stop")) {
		raise(SIGSTOP); /* this thread must not go on, whichever others there are */
		return 0;
	}
	if (!strcmp(act, "kill")) {
		if (half)
			half(arg);
		die();
	}
	errno = error ? error : atoi(act);
	return -1;
}

/* 0: go on; -1: this call fails, errno is set. half: done before the process is killed. */
static int strike(const char *what, const char *path, const char *other, void (*half)(void *), void *arg)
{
	char line[1024];
	if (!path)
		return 0;
	snprintf(line, sizeof line, "%s %s%s%s\n", what, path, other ? " " : "", other ? other : "");
	append(line);
	const char *at = getenv("HSPMD_CRASH_AT"), *error = getenv("HSPMD_CRASH_ERRNO");
	if (!at)
		return obey(what, path, half, arg);
	if (atomic_fetch_add(&calls, 1) + 1 != atoi(at))
		return 0;
	if (error) {
		errno = atoi(error);
		return -1;
	}
	if (half)
		half(arg);
	die();
	return -1;
}

static int remember(int fd, const char *path)
{
	if (fd >= 0 && fd < DESCRIPTORS) {
		free(names[fd]);
		names[fd] = counts(path) ? strdup(path) : NULL;
		/* A folder may be opened with a slash at its end. */
		size_t n = names[fd] ? strlen(names[fd]) : 0;
		while (n > 1 && names[fd][n - 1] == '/')
			names[fd][--n] = '\0';
	}
	return fd;
}

static bool struck_open(const char *path, int flags)
{
	return flags & O_CREAT && counts(path) && strike("open", path, NULL, NULL, NULL);
}
OPEN(open, return struck_open(path, flags) ? -1 : remember(REAL(open)(path, flags, mode), path);)
OPEN(open64, return struck_open(path, flags) ? -1 : remember(REAL(open64)(path, flags, mode), path);)

struct half_write {
	int fd;
	const void *data;
	size_t bytes;
};

static void write_half(void *arg)
{
	const struct half_write *h = arg;
	if (REAL(write)(h->fd, h->data, h->bytes / 2) < 0)
		_exit(99);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
	struct half_write h = { fd, data, bytes };
	return strike("write", name_of(fd), NULL, write_half, &h) ? -1 : REAL(write)(fd, data, bytes);
}

int fsync(int fd)
{
	return strike("fsync", name_of(fd), NULL, NULL, NULL) ? -1 : REAL(fsync)(fd);
}

int close(int fd)
{
	int struck = strike("close", name_of(fd), NULL, NULL, NULL), error = errno;
	if (fd >= 0 && fd < DESCRIPTORS) {
		free(names[fd]);
		names[fd] = NULL;
	}
	int rv = REAL(close)(fd);
	if (struck)
		errno = error;
	return struck ? -1 : rv;
}

#define FALLOCATE(name)                                                                                                                    \
	int name(int fd, int mode, off_t offset, off_t bytes)                                                                              \
	{                                                                                                                                  \
		return strike("fallocate", name_of(fd), NULL, NULL, NULL) ? -1 : REAL(name)(fd, mode, offset, bytes);                      \
	}
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

int rename(const char *from, const char *to)
{
	return strike("rename", counts(to) ? from : NULL, to, NULL, NULL) ? -1 : REAL(rename)(from, to);
}

int mkdir(const char *path, mode_t mode)
{
	/* An existing folder stays as it is. */
	bool new = counts(path) && access(path, F_OK);
	return strike("mkdir", new ? path : NULL, NULL, NULL, NULL) ? -1 : REAL(mkdir)(path, mode);
}

int unlink(const char *path)
{
	return strike("unlink", counts(path) ? path : NULL, NULL, NULL, NULL) ? -1 : REAL(unlink)(path);
}

int rmdir(const char *path)
{
	return strike("rmdir", counts(path) ? path : NULL, NULL, NULL, NULL) ? -1 : REAL(rmdir)(path);
}

/* Relative to a folder somewhere below HSPMD_CRASH_UNDER: its descriptor need not be one of ours. */
int unlinkat(int fd, const char *path, int flags)
{
	return strike("unlinkat", path, NULL, NULL, NULL) ? -1 : REAL(unlinkat)(fd, path, flags);
}
