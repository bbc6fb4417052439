/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: plans drawn at random, of every shape that the runtime takes. */
#ifndef TESTS_RANDOM_PLAN_H
#define TESTS_RANDOM_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#define RANDOM_PLAN_BATCH 8 /* global batch of every plan */

extern uint64_t random_plan_state;     /* of the generator: the same state draws the same */
unsigned random_plan_draw(unsigned n); /* 0 ... n - 1 */

struct random_plan {
	int layers, heads;  /* of the model; heads: units of tensor parallelism */
	int first, devices; /* devices n:first ... of one node; at most 8, at least two if least_zero is above 1 */
	int seq_len;
	int least_zero, most_zero; /* of zero_stage */
	/* For steps that mix lengths, of which the shortest and all others are multiples of 4: every pipeline takes that, some all. */
	bool mixed;
	const char *shorter;       /* what follows the plan's pipelines; NULL: nothing */
	unsigned offloads;         /* bit d: device n:d has memory of its own and some of its host's */
	bool borrows_state;        /* works on another plan's training state, and so does not offload it */
	const struct random_plan_operators *operators; /* of which stages recompute some; NULL: they list none */
};

/* Names of the operators that a stage of the model may recompute. */
struct random_plan_operators {
	int count;
	char names[64][64];
};
/* config: the model's config.json as text; fp8: its products are in FP8. */
void random_plan_find_operators(const char *config, bool fp8, struct random_plan_operators *out);

/* hspmd-plan-1 as text, malloc'd. The runtime may refuse it because a ratio leaves a device without a head. */
char *random_plan(const struct random_plan *of);

#endif
