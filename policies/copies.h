/* SPDX-License-Identifier: Apache-2.0 */
/* How many copies of its state a job should keep on other nodes. A copy always costs throughput, and avoids a rollback to shared storage if
 * several nodes are lost at once. The criterion is the expected number of committed tokens (liveput.h), not throughput. */
#ifndef HSPMD_POLICIES_COPIES_H
#define HSPMD_POLICIES_COPIES_H

#include "policies/liveput.h"

#define HSPMD_COPIES_NODES 512 /* a larger job is computed as one of this size: the ratio of the costs decides */

struct hspmd_copies_problem {
	int nodes;
	int least, most;    /* allowed number of copies; with too few nodes for `least`, as many as fit */
	double state_bytes; /* of the whole job; one copy transfers so much each time */
	double bytes_per_s; /* rate at which one node sends */
	double every_s;     /* interval between two times that copies are made */
	double pause_s;     /* cost of a loss that a copy survives */
	double rollback_s;  /* additional cost of a loss of the last copy: steps lost, state read back */
};

/* Returns the number of copies with the greatest liveput over `horizon_s`, the smallest if several are equal; `least` if nodes are never
 * lost; -1: out of memory. */
int hspmd_copies_choose(const struct hspmd_copies_problem *c, const struct hspmd_risk *risk, double horizon_s);

#endif
