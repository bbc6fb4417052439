/* SPDX-License-Identifier: Apache-2.0 */
/* The value of a plan if nodes may be lost: the tokens that it commits, not those that it computes. After Parcae's liveput (Duan et al.,
 * NSDI'24, section 4: expected throughput over future preemptions), less the cost of each loss, so that spare nodes and copies of the state
 * can be weighed against the throughput that they cost. */
#ifndef HSPMD_POLICIES_LIVEPUT_H
#define HSPMD_POLICIES_LIVEPUT_H

/* How nodes are lost: each independently at a rate; and if one is lost, each other node at the same time with a probability (a rack fails,
 * a spot price rises). */
struct hspmd_risk {
	double losses_per_s; /* of one node */
	double correlated;   /* 0 .. 1 */
};

struct hspmd_liveput_plan {
	int nodes;                  /* held, spares included */
	int spares;                 /* of these idle until another is lost */
	const double *tokens_per_s; /* [i]: on i + 1 nodes, 0 <= i < nodes - spares */
	int replicas;               /* copies of each slice of the state on other nodes */
	double pause_s;             /* from a loss until training continues, if the remaining nodes have the whole state */
	double rollback_s;          /* additional, if all copies of a slice are lost: steps lost, state read back */
};

/* Returns the probability that a loss takes a slice of the state with all its copies. */
double hspmd_state_loss_probability(const struct hspmd_risk *risk, int replicas);

/* Returns the expected committed tokens over the next horizon_s seconds, if no node comes back. Exact for independent losses (the number of
 * remaining nodes is binomial) whose costs are small against the time between losses; integrated by Simpson's rule. Never below 0. */
double hspmd_liveput(const struct hspmd_liveput_plan *plan, const struct hspmd_risk *risk, double horizon_s);

/* Returns the index of the plan with the greatest liveput, the first if several are equal; -1 if count is 0. */
int hspmd_liveput_best(const struct hspmd_liveput_plan *plans, int count, const struct hspmd_risk *risk, double horizon_s);

#endif
