/* SPDX-License-Identifier: Apache-2.0 */
/* Which of a program's tests run: those that environment HSPMD_ONLY names (a pattern with * and ?), otherwise all. Include it after
 * cmocka.h. */
#ifndef TESTS_ONLY_H
#define TESTS_ONLY_H

#include <stdlib.h>

static inline void only_chosen_tests(void)
{
	const char *only = getenv("HSPMD_ONLY");
	if (only)
		cmocka_set_test_filter(only);
}

#endif
