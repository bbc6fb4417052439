/* SPDX-License-Identifier: Apache-2.0 */
/* How many copies of its state a job should keep on other nodes: a copy costs throughput all the time and saves a return to shared storage
 * when nodes are lost together. Decided by the expected tokens that are committed (liveput.h), not by throughput. */
#ifndef HSPMD_POLICIES_COPIES_H
#define HSPMD_POLICIES_COPIES_H

#include "policies/liveput.h"

#define HSPMD_COPIES_NODES 512 /* of a larger job only so many are reckoned with; what decides is the ratio of costs */

struct hspmd_copies_problem {
	int nodes;
	int least, most;    /* allowed; where nodes are too few for `least`, as many as there can be */
	double state_bytes; /* of the whole job: what a copy moves every time */
	double bytes_per_s; /* that one node sends */
	double every_s;     /* between two times */
	double pause_s;     /* of a loss that a copy outlives */
	double rollback_s;  /* of one that takes the last copy: work undone, state read back */
};

/* The number of copies with the greatest liveput over `horizon_s`; the fewest of equal ones. Nodes that are never lost: `least`. -1: memory
 * is short. */
int hspmd_copies_choose(const struct hspmd_copies_problem *c, const struct hspmd_risk *risk, double horizon_s);

#endif
