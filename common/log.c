/* SPDX-License-Identifier: Apache-2.0 */
#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/error.h"

static const char *const names[] = { "error", "warning", "info", "debug" };

static char speaker[64] = "hspmd";
static atomic_int level_max = -1; /* -1: HSPMD_LOG has not been read yet */
static int with_time;
static int tee_fd = -1;
static void (*tee_write)(void *context, const char *line, size_t size);
static void *tee_context;

void hspmd_log_name(const char *name)
{
	snprintf(speaker, sizeof speaker, "%s", name);
}

void hspmd_log_level(enum hspmd_log_level level)
{
	level_max = (int)level;
}

void hspmd_log_time(int on)
{
	with_time = on;
}

void hspmd_log_tee(int fd)
{
	tee_fd = fd;
}

void hspmd_log_tee_to(void (*write)(void *context, const char *line, size_t size), void *context)
{
	tee_context = context;
	tee_write = write;
}

static int level_from_environment(void)
{
	const char *e = getenv("HSPMD_LOG");
	for (int i = 0; e && i < 4; i++)
		if (!strcmp(e, names[i]))
			return i;
	return HSPMD_LOG_INFO;
}

void hspmd_log(enum hspmd_log_level level, const char *fmt, ...)
{
	int saved = errno;
	int most = atomic_load_explicit(&level_max, memory_order_relaxed);
	if (most < 0)
		atomic_store_explicit(&level_max, most = level_from_environment(), memory_order_relaxed);
	if ((int)level > most)
		return;
	char line[2048];
	size_t n = 0;
	if (with_time) {
		struct timespec ts;
		struct tm tm;
		clock_gettime(CLOCK_REALTIME, &ts);
		localtime_r(&ts.tv_sec, &tm);
		n = strftime(line, sizeof line, "%H:%M:%S", &tm);
		n += (size_t)snprintf(line + n, sizeof line - n, ".%03ld ", ts.tv_nsec / 1000000);
	}
	n += (size_t)snprintf(line + n, sizeof line - n, level == HSPMD_LOG_INFO ? "%s: " : "%s: %s: ", speaker, names[level]);
	va_list ap;
	va_start(ap, fmt);
	int m = vsnprintf(line + n, sizeof line - n, fmt, ap);
	va_end(ap);
	n += m < 0 ? 0 : (size_t)m;
	if (n > sizeof line - 2)
		n = sizeof line - 2;
	hspmd_sanitize_line(line, n);
	line[n++] = '\n';
	ssize_t done = write(STDERR_FILENO, line, n);
	if (tee_write)
		tee_write(tee_context, line, n);
	else if (tee_fd >= 0)
		done = write(tee_fd, line, n);
	(void)done; /* a failure to log cannot be logged */
	errno = saved;
}
