/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of readers: a good text with one change. */
#ifndef HSPMD_TESTS_EDIT_H
#define HSPMD_TESTS_EDIT_H

#include <stdlib.h>
#include <string.h>

/* A change, and the error that it must cause ("": none; else a part of the message). */
struct edit {
	const char *find, *replace, *error;
};

/* Returns `text` with the first `find` replaced, malloc'd, or NULL if `find` is not in it. */
static inline char *edited(const char *text, const char *find, const char *replace)
{
	const char *at = strstr(text, find);
	if (!at)
		return NULL;
	size_t before = (size_t)(at - text);
	char *out = malloc(strlen(text) + strlen(replace) + 1);
	if (!out)
		return NULL;
	memcpy(out, text, before);
	strcpy(out + before, replace);
	strcat(out, at + strlen(find));
	return out;
}

#endif
