/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/autotune_log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LINE_BYTES 1024

static const char *file_name(void)
{
	const char *name = getenv("HSPMD_CUDA_TUNE_LOG");
	return name && *name ? name : NULL;
}

bool hspmd_cuda_autotune_log_is_on(void)
{
	return file_name() != NULL;
}

void hspmd_cuda_autotune_log(const char *fmt, ...)
{
	char line[LINE_BYTES];
	va_list args;
	if (!file_name())
		return;
	va_start(args, fmt);
	int length = vsnprintf(line, sizeof line - 1, fmt, args);
	va_end(args);
	if (length < 0 || (size_t)length >= sizeof line - 1)
		return;
	line[length++] = '\n';
	int fd = open(file_name(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	/* A single write, so that lines of several processes do not mix. */
	if (write(fd, line, (size_t)length) != length)
		fprintf(stderr, "HSPMD_CUDA_TUNE_LOG=%s: a line is missing, the disk may be full\n", file_name());
	close(fd);
}
