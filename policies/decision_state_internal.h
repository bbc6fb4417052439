/* SPDX-License-Identifier: Apache-2.0 */
/* What a decision works on: the snapshot, and beside it what each job would hold after the steps taken so far. Private to policies/. */
#ifndef HSPMD_POLICIES_DECISION_STATE_INTERNAL_H
#define HSPMD_POLICIES_DECISION_STATE_INTERNAL_H

#include "policies/decide.h"

/* What a job holds or would hold. */
struct holding {
	int nodes, devices;
	double size;   /* in reference nodes */
	double price;  /* per hour */
	double losses; /* unforeseen losses per second */
};

struct decision_job {
	const struct hspmd_snapshot_elastic *e;
	double *hull; /* concave form of its curve; NULL: not told */
	double slope; /* without a curve: tokens per second a node, the mean of the others */
	double scale; /* weight, over the rate on its fewest nodes where shares are relative; see decision_state.c where they are
	                 proportional */
	struct holding was, now;
	int held_count;
	int *held;   /* its nodes, in decision_state.held */
	bool shrunk; /* gives nodes this round: gets none */
	bool barred; /* what it could get is not worth a resize */
};

struct decision_state {
	const struct hspmd_snapshot *s;
	struct hspmd_decision *d;
	struct decision_job *jobs;
	int *held;
	bool *taken;    /* per node: promised, or part of an action of this round */
	bool *wanted;   /* per class: a waiting job that cannot start yet could use it */
	int blocked;    /* the first waiting job that cannot start even if all gave what they may; -1 */
	double start_s; /* when that one can, and how many nodes are left over then */
	int extra;
};

int decision_state_open(struct decision_state *k, const struct hspmd_snapshot *s, struct hspmd_decision *d, struct hspmd_error *err);
void decision_state_close(struct decision_state *k);

/* What the expected rate of committed tokens is worth to the site, on the hull and on the true curve: weight times the rate, or where
 * shares are proportional weight times its logarithm (proportional fairness: Kelly, European Transactions on Telecommunications 8,
 * 1997). */
double holding_value(const struct decision_job *j, const struct holding *h);
double holding_true_value(const struct decision_job *j, const struct holding *h);
/* The rate itself, and what in terms of value all of it is: a pause of so many seconds costs so many times that. */
double holding_rate(const struct decision_job *j, const struct holding *h);
double holding_pause_cost_per_s(const struct decision_job *j, const struct holding *h);

/* What one node of a class adds to or takes from what is held. */
struct holding holding_with_nodes(const struct decision_state *k, const struct decision_job *j, const struct holding *h, int class,
                                  int count);
/* May the job hold this, and nodes of this class at all? */
bool decision_allowed(const struct decision_state *k, const struct decision_job *j, const struct holding *h, int class);
/* Its devices, as far as their type goes. */
bool decision_type_allowed(const struct decision_state *k, const struct decision_job *j, int class);

/* New empty action for a job, room for n nodes; NULL: out of memory. decision_add_node appends and marks the node as taken. */
struct hspmd_resize_action *decision_new_action(struct decision_state *k, enum hspmd_resize_kind kind, int job, int n);
void decision_add_node(struct decision_state *k, struct hspmd_resize_action *a, int node);

void decision_set_why(struct decision_state *k, int job, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Choose `n` of the job's nodes to give (those that `usable` allows, NULL: all; not fixed, not leaving, not taken), the least missed first.
 * Returns how many were found. */
int decision_choose_nodes(const struct decision_state *k, int job, const unsigned char *usable, int n, int *out);

/* The steps. 0 or -1 (memory). */
int reclaim_over_limit(struct decision_state *k, struct hspmd_error *err);
int reclaim_for_pending(struct decision_state *k, struct hspmd_error *err);
int grow_into_idle(struct decision_state *k, struct hspmd_error *err);
int rebalance_jobs(struct decision_state *k, struct hspmd_error *err);

/* Is a resize from `was` to `now` worth its pause before the next is allowed, and min_gain? */
bool resize_pays_off(const struct decision_job *j, const struct holding *was, const struct holding *now);

#endif
