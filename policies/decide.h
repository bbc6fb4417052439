/* SPDX-License-Identifier: Apache-2.0 */
/* The policy engine: policies and a snapshot in, actions with reasons out. Pure: no clock, no I/O, no state between calls, so that the code
 * that decides in production also runs in `hspmd policy simulate` and in tests.
 *
 * Steps, in this order:
 *  1. A job that holds more than its limits allow returns the excess (reclaim.c).
 *  2. Pending jobs, in the order in which Slurm would start them: idle nodes on which one can start are kept for it. If a job lacks k
 * nodes, elastic jobs whose policies allow it return exactly k nodes that the job can use, where the loss is least, or none if k cannot be
 *     reached (reclaim.c).
 *  3. Idle nodes go, one after the other, to the elastic job that gains most by them (grow_into_idle.c). With equal nodes and concave
 * curves this is optimal: the sets of increments that the nodes can serve form a matroid (exchange along augmenting paths), on which a
 * greedy choice is optimal. A job waits for up to HSPMD_GATHER_S if it could soon grow by more.
 *  4. Between jobs whose policies say `rebalance`, nodes move to a job that gains more by them than the other loses (rebalance.c).
 * Gain is weight x tokens per second (or tokens per second relative to the rate on the job's fewest nodes), less the cost of unforeseen
 * losses: the expected rate of *committed* tokens, Parcae's liveput (Duan et al., NSDI'24, section 4). A resize must bring min_gain, and
 * must earn back its own pause before the next may follow (cooldown_s).
 */
#ifndef HSPMD_POLICIES_DECIDE_H
#define HSPMD_POLICIES_DECIDE_H

#include "common/error.h"
#include "policies/snapshot.h"

#define HSPMD_REASON_MAX 256
/* A pending job that could have started for this long and did not is held up by something that the snapshot does not show: nodes are kept
 * for it no longer. Two rounds of Slurm's slowest scheduler. */
#define HSPMD_STALE_PENDING_S 120.0

/* A job that is to grow waits for so long if nodes that it could use as well are about to be idle: those of an ended job become so one by
 * one, and each resize is a pause. */
#define HSPMD_GATHER_S 5.0

enum hspmd_resize_kind { HSPMD_RESIZE_GROW, HSPMD_RESIZE_SHRINK };

struct hspmd_resize_action {
	enum hspmd_resize_kind kind;
	int job; /* index into elastic */
	int node_count;
	int *nodes;      /* indexes into nodes, owned */
	int for_pending; /* SHRINK: index of the pending job that is to start, or -1 */
	int for_job;     /* SHRINK: index of the elastic job that is to get the nodes, or -1 */
	double gain;     /* change of the job's value; for_job >= 0: of both jobs' */
	char reason[HSPMD_REASON_MAX];
};

struct hspmd_decision {
	int count;
	struct hspmd_resize_action *actions;
	double *eligible_since_s;      /* per pending job: since when it could start; NAN: it cannot */
	double *wait_until_s;          /* per elastic job: when its wait for further nodes ends, or has ended; NAN: it is not to grow */
	char (*why)[HSPMD_REASON_MAX]; /* per elastic job: why it is not grown; "" if it is, or no reason applies */
};

/* Returns 0, or -1 and err: out of memory, or an inconsistent snapshot. The caller calls hspmd_decision_clear() in either case. */
int hspmd_policy_decide(const struct hspmd_snapshot *s, struct hspmd_decision *d, struct hspmd_error *err);
void hspmd_decision_clear(struct hspmd_decision *d);

#endif
