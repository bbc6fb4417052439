/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a program's tests run: those that environment HSPMD_ONLY names (a pattern with * and ?), otherwise all. A program fails if it
 * names none. Include it after cmocka.h. */
#ifndef TESTS_ONLY_H
#define TESTS_ONLY_H

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

static inline void only_chosen_tests(const struct CMUnitTest *tests, size_t count)
{
	const char *only = getenv("HSPMD_ONLY");
	if (!only)
		return;
	for (size_t i = 0; i < count; i++)
		if (!fnmatch(only, tests[i].name, 0)) {
			cmocka_set_test_filter(only);
			return;
		}
	fprintf(stderr, "HSPMD_ONLY=%s names no test of this program. It has:", only);
	for (size_t i = 0; i < count; i++)
		fprintf(stderr, " %s", tests[i].name);
	fputc('\n', stderr);
	exit(1);
}

#endif
