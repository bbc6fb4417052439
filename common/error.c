/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void hspmd_sanitize_line(char *text, size_t length)
{
	for (size_t i = 0; i < length && text[i]; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			text[i] = '?';
}

int hspmd_fail(struct hspmd_error *err, const char *fmt, ...)
{
	int saved = errno;
	if (err) {
		va_list ap;
		va_start(ap, fmt);
		vsnprintf(err->text, sizeof err->text, fmt, ap);
		va_end(ap);
		hspmd_sanitize_line(err->text, sizeof err->text);
	}
	errno = saved;
	return -1;
}

int hspmd_fail_errno(struct hspmd_error *err, const char *fmt, ...)
{
	int saved = errno;
	if (err) {
		va_list ap;
		va_start(ap, fmt);
		int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
		va_end(ap);
		if (n >= 0 && (size_t)n < sizeof err->text)
			snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", strerror(saved));
		hspmd_sanitize_line(err->text, sizeof err->text);
	}
	errno = saved;
	return -1;
}

int hspmd_fail_memory(struct hspmd_error *err, const char *what)
{
	errno = ENOMEM;
	return hspmd_fail(err, "out of memory while %s", what);
}

int hspmd_error_prefix(struct hspmd_error *err, const char *fmt, ...)
{
	if (err) {
		char old[HSPMD_ERROR_MAX];
		memcpy(old, err->text, sizeof old);
		va_list ap;
		va_start(ap, fmt);
		int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
		va_end(ap);
		hspmd_sanitize_line(err->text, sizeof err->text);
		if (n < 0 || (size_t)n + 3 > sizeof err->text)
			return -1;
		memcpy(err->text + n, ": ", 2);
		n += 2;
		size_t kept = strnlen(old, sizeof err->text - 1 - (size_t)n);
		memcpy(err->text + n, old, kept);
		err->text[(size_t)n + kept] = '\0';
	}
	return -1;
}
