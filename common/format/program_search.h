/* SPDX-License-Identifier: Apache-2.0 */
/* What the solver asks of the search for a stage's program (runtime/synthesis), which it does not know: plain data and one function. */
#ifndef HSPMD_FORMAT_PROGRAM_SEARCH_H
#define HSPMD_FORMAT_PROGRAM_SEARCH_H

#include "common/error.h"
#include "common/format/cluster.h"
#include "common/format/plan.h"

/* What a program takes. Arrays have an element per device of the plan's only stage; owned. */
struct hspmd_program_cost {
	double operators_s; /* of a micro-batch, forward and backward: every operator as long as its slowest device */
	double messages_s;  /* of a micro-batch; nothing overlaps */
	double sync_s;      /* of a step: sums of gradients */
	double operators;   /* number of operators of a micro-batch */
	double *busy_s;     /* of a micro-batch: the device's own operators */
	double *parameters; /* that the device keeps and updates */
	double *bytes;      /* of device memory that the program needs, without workspace; of the device of its type that needs most */
};
void hspmd_program_cost_clear(struct hspmd_program_cost *c);

/* How much is searched; 0: all. */
struct hspmd_program_limits {
	double seconds; /* after which a search gives up */
	double step_s;  /* programs that take as long for a step, or longer, are not wanted */
};

struct hspmd_program_search {
	/* plan: of one stage, with `synthesis`. If it has no program, finds the fastest one of those that are wanted, by the sum of its
	 * operators, messages and sums of gradients, and sets plan->program. Fills *cost, which the caller clears. 0; 1: none is wanted;
	 * -1 and err: there is none. Blocks; may be called from any thread, but from one at a time. */
	int (*find)(const void *context, const struct hspmd_cluster *cluster, struct hspmd_plan *plan,
	            const struct hspmd_program_limits *limits, struct hspmd_program_cost *cost, struct hspmd_error *err);
	const void *context;
};

#endif
