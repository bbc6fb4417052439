/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/failing_alloc.h"

#include <stdio.h>
#include <stdlib.h>

static long until_failure = -1; /* allocations that still succeed; below 0: all */
static long held;               /* allocations that were not freed */
static bool failed;
static bool failed_in_jansson;

static bool fails(void)
{
	if (until_failure < 0)
		return false;
	if (until_failure-- > 0)
		return false;
	failed = true;
	return true;
}

static void *took(void *p)
{
	held += p != NULL;
	return p;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void __real_free(void *p);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
int __real_vasprintf(char **text, const char *fmt, va_list ap);
char *__real_getcwd(char *buf, size_t size);
FILE *__real_open_memstream(char **text, size_t *size);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void __wrap_free(void *p);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);
int __wrap_vasprintf(char **text, const char *fmt, va_list ap);
char *__wrap_getcwd(char *buf, size_t size);
FILE *__wrap_open_memstream(char **text, size_t *size);

void *__wrap_malloc(size_t size)
{
	return fails() ? NULL : took(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : took(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t size)
{
	if (fails())
		return NULL;
	void *q = __real_realloc(p, size);
	held += q && !p;
	return q;
}

void __wrap_free(void *p)
{
	held -= p != NULL;
	__real_free(p);
}

char *__wrap_strdup(const char *text)
{
	return fails() ? NULL : took(__real_strdup(text));
}

char *__wrap_strndup(const char *text, size_t n)
{
	return fails() ? NULL : took(__real_strndup(text, n));
}

int __wrap_vasprintf(char **text, const char *fmt, va_list ap)
{
	int n = fails() ? -1 : __real_vasprintf(text, fmt, ap);
	held += n >= 0;
	return n;
}

char *__wrap_getcwd(char *buf, size_t size)
{
	return fails() ? NULL : took(__real_getcwd(buf, size));
}

FILE *__wrap_open_memstream(char **text, size_t *size)
{
	return fails() ? NULL : took(__real_open_memstream(text, size)); /* the caller frees its text */
}

/* jansson 2.14 drops a byte of a long key if the one allocation for that byte fails and the next succeeds; when memory is really short, the
 * next fails as well. */
void *failing_alloc_jansson(size_t size)
{
	failed_in_jansson |= fails();
	return failed_in_jansson ? NULL : took(__real_malloc(size));
}

void failing_alloc_free(void *p)
{
	__wrap_free(p);
}

bool failing_alloc_failed(void)
{
	return failed;
}

void failing_alloc_try(const struct failing_alloc_call *calls, size_t count, struct hspmd_error *err)
{
	for (size_t i = 0; i < count; i++) {
		bool done = false;
		for (long k = 0; !done && k < 100000; k++) {
			long before = held;
			err->text[0] = '\0';
			failed = failed_in_jansson = false;
			until_failure = k;
			bool succeeded = calls[i].call();
			until_failure = -1;
			done = !failed;
			if (held != before)
				fail_msg("%s, allocation %ld: %ld not given back", calls[i].name, k, held - before);
			if (succeeded != done)
				fail_msg("%s, allocation %ld: %s (%s)", calls[i].name, k, succeeded ? "succeeded" : "failed", err->text);
			if (failed && calls[i].fills_err && !*err->text)
				fail_msg("%s, allocation %ld: failed without a word", calls[i].name, k);
		}
		assert_true(done);
	}
}
