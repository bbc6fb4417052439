/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the many cases that a test can make up it tries this time. Without HSPMD_LONG it is a few of them; ./check draws which from the
 * commit (HSPMD_DRAW, a number), so that commits together try them all, and the same commit always the same. Without HSPMD_DRAW they are
 * the first. */
#ifndef HSPMD_TESTS_DRAW_H
#define HSPMD_TESTS_DRAW_H

#include <stdio.h>
#include <stdlib.h>

/* The first of `few` cases in a row, of the cases 0 ... all - 1. Says how to draw them again. */
static inline unsigned draw_first(unsigned few, unsigned all)
{
	const char *given = getenv("HSPMD_DRAW");
	unsigned first = few < all ? (unsigned)(strtoul(given ? given : "0", NULL, 10) % (all - few + 1)) : 0;
	printf("cases %u to %u of %u (HSPMD_DRAW=%s)\n", first, first + few - 1, all, given ? given : "0");
	return first;
}

#endif
