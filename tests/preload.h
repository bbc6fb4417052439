/* SPDX-License-Identifier: Apache-2.0 */
/* For libraries that are preloaded into programs and intercept calls of the C library. */
#ifndef HSPMD_TESTS_PRELOAD_H
#define HSPMD_TESTS_PRELOAD_H

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

#define DESCRIPTORS 1024 /* those above are not followed */
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* int name(path, flags, mode), for open and its like, with what to do given all three. */
#define OPEN(name, ...)                                                                                                                    \
	int name(const char *path, int flags, ...)                                                                                         \
	{                                                                                                                                  \
		va_list ap;                                                                                                                \
		va_start(ap, flags);                                                                                                       \
		mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;                                                                    \
		va_end(ap);                                                                                                                \
		__VA_ARGS__                                                                                                                \
	}

#endif
