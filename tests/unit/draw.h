/* SPDX-License-Identifier: Apache-2.0 */
/* Which of its many cases a test tries in this run. Without HSPMD_LONG it tries a few of them. ./check draws them by the commit
 * (HSPMD_DRAW, a number), so that all commits together try all cases, and one commit always the same. Without HSPMD_DRAW they are the
 * first. */
#ifndef HSPMD_TESTS_DRAW_H
#define HSPMD_TESTS_DRAW_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Returns how many cases to try: `all` of them with HSPMD_LONG, else `few`, of which make check-changed tries a quarter. */
static inline unsigned draw_count(unsigned few, unsigned all)
{
	const char *is_long = getenv("HSPMD_LONG");
	if (is_long && *is_long == '1')
		return all;
	return getenv("HSPMD_CHANGED") ? (few + 3) / 4 : few;
}

/* Returns the first of `few` consecutive cases out of 0 ... all - 1, and prints how to draw them again. */
static inline unsigned draw_first(unsigned few, unsigned all)
{
	const char *given = getenv("HSPMD_DRAW");
	unsigned first = few < all ? (unsigned)(strtoul(given ? given : "0", NULL, 10) % (all - few + 1)) : 0;
	printf("cases %u to %u of %u (HSPMD_DRAW=%s)\n", first, first + few - 1, all, given ? given : "0");
	return first;
}

/* Returns true for one in `of` cases, others with each draw; with HSPMD_LONG for all. */
static inline bool draw_takes(unsigned i, unsigned of)
{
	const char *given = getenv("HSPMD_DRAW");
	return draw_count(1, of) == of || (i + strtoul(given ? given : "0", NULL, 10)) % of == 0;
}

#endif
