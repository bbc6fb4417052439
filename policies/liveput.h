/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan is worth where nodes are taken away: the tokens that it commits, not those that it computes. After Parcae's liveput (Duan et
 * al., NSDI'24, section 4: the expectation of throughput over the preemptions to come), with what each loss costs taken off, so that spare
 * nodes and copies of the state can be weighed against the throughput they cost. */
#ifndef HSPMD_POLICIES_LIVEPUT_H
#define HSPMD_POLICIES_LIVEPUT_H

/* How nodes go: each on its own at this rate; and when one goes, each other with this chance in the same blow (a rack, a price). */
struct hspmd_risk {
	double losses_per_s; /* of one node */
	double correlated;   /* 0 .. 1 */
};

struct hspmd_liveput_plan {
	int nodes;                  /* held, spares included */
	int spares;                 /* of these idle till another is lost */
	const double *tokens_per_s; /* [i]: working on i + 1 nodes, 0 <= i < nodes - spares */
	int replicas;               /* copies of each slice of the state on other nodes */
	double pause_s;             /* from a loss till it trains on again, state found on nodes that are left */
	double rollback_s;          /* work undone and state read back, when a slice's copies are all gone */
};

/* Chance that a loss takes a slice of the state with all its copies. */
double hspmd_state_loss_probability(const struct hspmd_risk *risk, int replicas);

/* Expected committed tokens over the next horizon_s seconds, no node coming back. Exact for nodes that go on their own (how many are left
 * is binomial), with costs small against the time between losses; integrated by Simpson's rule. Never below 0. */
double hspmd_liveput(const struct hspmd_liveput_plan *plan, const struct hspmd_risk *risk, double horizon_s);

/* Index of the plan with the greatest liveput, the first of equal ones; -1 when count is 0. */
int hspmd_liveput_best(const struct hspmd_liveput_plan *plans, int count, const struct hspmd_risk *risk, double horizon_s);

#endif
