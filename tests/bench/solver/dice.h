/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of planning problems: the same seed draws the same. */
#ifndef HSPMD_TESTS_BENCH_SOLVER_DICE_H
#define HSPMD_TESTS_BENCH_SOLVER_DICE_H

#include <math.h>
#include <stdint.h>

struct dice {
	uint64_t state;
};

/* 0 <= x < 1. splitmix64 (Steele et al., OOPSLA'14). */
static inline double roll(struct dice *d)
{
	uint64_t z = d->state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (double)((z ^ z >> 31) >> 11) / 9007199254740992.0;
}

static inline int pick(struct dice *d, int least, int most)
{
	return least + (int)(roll(d) * (most - least + 1));
}

/* least <= x < most; each doubling between them is as likely as another. */
static inline double between(struct dice *d, double least, double most)
{
	return least * pow(most / least, roll(d));
}

#endif
