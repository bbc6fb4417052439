/* SPDX-License-Identifier: Apache-2.0 */
/* What a decision works on: the snapshot, and beside it what each job would hold after the steps taken so far. Private to policies/. */
#ifndef HSPMD_POLICIES_DESK_H
#define HSPMD_POLICIES_DESK_H

#include "policies/decide.h"

/* What a job holds or would hold. */
struct desk_hold {
	int nodes, devices;
	double size;   /* in nodes of worth 1 */
	double price;  /* per hour */
	double losses; /* unforeseen losses per second */
};

struct desk_job {
	const struct hspmd_site_elastic *e;
	double *hull;          /* concave form of its curve; NULL: not told */
	double slope;          /* without a curve: tokens per second a node, the mean of the others */
	double scale;          /* weight, over the rate on its fewest nodes where shares are relative; see desk.c where they are proportional */
	struct desk_hold was, now;
	int held_count;
	int *held;             /* its nodes, in desk.held */
	bool gave;             /* gives nodes this round: gets none */
	bool barred;           /* what it could get is not worth a resize */
};

struct desk {
	const struct hspmd_site *s;
	struct hspmd_decision *d;
	struct desk_job *jobs;
	int *held;
	bool *taken;   /* per node: promised, or part of an action of this round */
	bool *wanted;  /* per class: a waiting job that cannot start yet could use it */
	int blocked;   /* the first waiting job that cannot start even if all gave what they may; -1 */
	double start_s; /* when that one can, and how many nodes are left over then */
	int extra;
};

int desk_open(struct desk *k, const struct hspmd_site *s, struct hspmd_decision *d, struct hspmd_error *err);
void desk_close(struct desk *k);

/* What the expected rate of committed tokens is worth to the site, on the hull and on the true curve: weight times the rate, or where shares are
 * proportional weight times its logarithm (proportional fairness: Kelly, European Transactions on Telecommunications 8, 1997). */
double desk_value(const struct desk_job *j, const struct desk_hold *h);
double desk_true_value(const struct desk_job *j, const struct desk_hold *h);
/* The rate itself, and what in terms of value all of it is: a pause of so many seconds costs so many times that. */
double desk_rate(const struct desk_job *j, const struct desk_hold *h);
double desk_whole(const struct desk_job *j, const struct desk_hold *h);

/* What one node of a class adds to or takes from what is held. */
struct desk_hold desk_with(const struct desk *k, const struct desk_job *j, const struct desk_hold *h, int class, int count);
/* May the job hold this, and nodes of this class at all? */
bool desk_allowed(const struct desk *k, const struct desk_job *j, const struct desk_hold *h, int class);
/* Its devices, as far as their type goes. */
bool desk_type_allowed(const struct desk *k, const struct desk_job *j, int class);

/* New empty action for a job, room for n nodes; NULL: out of memory. desk_action_node appends and marks the node as taken. */
struct hspmd_action *desk_action(struct desk *k, enum hspmd_action_kind kind, int job, int n);
void desk_action_node(struct desk *k, struct hspmd_action *a, int node);

void desk_why(struct desk *k, int job, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Choose `n` of the job's nodes to give (those that `usable` allows, NULL: all; not fixed, not leaving, not taken), the least missed first.
 * Returns how many were found. */
int desk_choose(const struct desk *k, int job, const unsigned char *usable, int n, int *out);

/* The steps. 0 or -1 (memory). */
int step_limits(struct desk *k, struct hspmd_error *err);
int step_pending(struct desk *k, struct hspmd_error *err);
int step_grow(struct desk *k, struct hspmd_error *err);
int step_rebalance(struct desk *k, struct hspmd_error *err);

/* Is a resize from `was` to `now` worth its pause before the next is allowed, and min_gain? */
bool desk_worth_it(const struct desk_job *j, const struct desk_hold *was, const struct desk_hold *now);

#endif
