/* SPDX-License-Identifier: Apache-2.0 */
#include "common/alloc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int hspmd_array_grow(void *base, size_t *capacity, size_t count, size_t size)
{
	if (count < *capacity)
		return 0;
	size_t wanted = *capacity ? *capacity * 2 : 8;
	void **array = base;
	if (wanted <= *capacity || wanted > (size_t)-1 / 2 / size) {
		errno = ENOMEM;
		return -1;
	}
	char *grown = realloc(*array, wanted * size);
	if (!grown)
		return -1;
	memset(grown + *capacity * size, 0, (wanted - *capacity) * size);
	*array = grown;
	*capacity = wanted;
	return 0;
}

void *hspmd_calloc(size_t n, size_t size)
{
	return calloc(n ? n : 1, size ? size : 1);
}

char *hspmd_asprintf(const char *fmt, ...)
{
	va_list ap;
	char *text = NULL;
	va_start(ap, fmt);
	int n = vasprintf(&text, fmt, ap);
	va_end(ap);
	return n < 0 ? NULL : text;
}
