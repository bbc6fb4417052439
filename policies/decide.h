/* SPDX-License-Identifier: Apache-2.0 */
/* The decision: policies and a snapshot in, actions with reasons out. Pure: no clock, no I/O, no memory of its own between calls, so the
 * very code that decides in production runs in `hspmd policy simulate` and in tests.
 *
 * In this order:
 *  1. A job that holds more than its limits allow gives back the rest.
 *  2. Waiting jobs, as Slurm would start them: idle nodes that let one start are promised to it and not grown into. Where it lacks k nodes,
 *     elastic jobs that its policy lets give for it give exactly k that it can use, where that loses least, or nothing if k cannot be had.
 *  3. Idle nodes go, one after the other, to the elastic job that gains most by them. With equal nodes and concave curves that is optimal:
 * the sets of increments that the nodes can serve form a matroid (exchange along augmenting paths), and a greedy choice is optimal on it.
 *  4. Where policy says `rebalance`, nodes move from a job to one that gains more by them.
 * Gain is weight x tokens per second (or tokens per second relative to the job's fewest nodes), with what unforeseen losses cost taken off:
 * the expected rate of *committed* tokens, Parcae's liveput (Duan et al., NSDI'24, section 4). A resize must bring min_gain, and must earn
 * its own pause back before the next may follow (cooldown_s).
 */
#ifndef HSPMD_POLICIES_DECIDE_H
#define HSPMD_POLICIES_DECIDE_H

#include "common/error.h"
#include "policies/snapshot.h"

#define HSPMD_REASON_MAX 256
/* A waiting job that could have started for this long and did not is held up by something the snapshot does not show: nodes are not kept
 * for it any longer. Two rounds of Slurm's slowest scheduler. */
#define HSPMD_STALE_PENDING_S 120.0

enum hspmd_resize_kind { HSPMD_RESIZE_GROW, HSPMD_RESIZE_SHRINK };

struct hspmd_resize_action {
	enum hspmd_resize_kind kind;
	int job; /* index into elastic */
	int node_count;
	int *nodes;      /* indexes into nodes, owned */
	int for_pending; /* SHRINK: index of the waiting job, or -1 */
	int for_job;     /* SHRINK: index of the elastic job that gets them, or -1 */
	double gain;     /* change of the site's weighted rate */
	char reason[HSPMD_REASON_MAX];
};

struct hspmd_decision {
	int count;
	struct hspmd_resize_action *actions;
	double *eligible_since_s;      /* per waiting job: since when it could start, NAN: cannot */
	char (*why)[HSPMD_REASON_MAX]; /* per elastic job: why nothing was done, "" when something was */
};

/* 0 or -1 (out of memory, or a snapshot that contradicts itself). The caller clears the decision in either case. */
int hspmd_policy_decide(const struct hspmd_snapshot *s, struct hspmd_decision *d, struct hspmd_error *err);
void hspmd_decision_clear(struct hspmd_decision *d);

#endif
