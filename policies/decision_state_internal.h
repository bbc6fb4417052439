/* SPDX-License-Identifier: Apache-2.0 */
/* State of a decision under way: the snapshot, and what each job would hold after the actions chosen so far. */
#ifndef HSPMD_POLICIES_DECISION_STATE_INTERNAL_H
#define HSPMD_POLICIES_DECISION_STATE_INTERNAL_H

#include "policies/decide.h"

/* Resources that a job holds or would hold. */
struct holding {
	int nodes, devices;
	double size;   /* in reference nodes */
	double price;  /* per hour */
	double losses; /* expected unforeseen losses of nodes per second */
};

struct decision_job {
	const struct hspmd_snapshot_elastic *e;
	double *hull;            /* concave hull of its curve; NULL: its controller has sent none */
	double slope;            /* without a curve: tokens per second per reference node, the mean of the others */
	double scale;            /* factor from rate to value; see set_scale() */
	struct holding was, now; /* in the snapshot; after the actions chosen so far */
	int held_count;
	int *held;   /* its nodes, in decision_state.held */
	bool shrunk; /* returns nodes in this round, therefore gets none */
	bool barred; /* no growth that it could get pays off */
};

struct decision_state {
	const struct hspmd_snapshot *s;
	struct hspmd_decision *d;
	struct decision_job *jobs;
	int *held;
	bool *taken;        /* per node: kept for a pending job, or part of an action of this round */
	bool *wanted;       /* per class: a pending job that cannot start yet could use it */
	int blocked;        /* the first pending job that cannot start even if all jobs returned what they may; -1: none */
	double start_s;     /* when the blocked job can start */
	int extra;          /* nodes left over then */
	double *limit_used; /* per limit of Slurm: what the actions chosen so far take of it */
};

int decision_state_open(struct decision_state *k, const struct hspmd_snapshot *s, struct hspmd_decision *d, struct hspmd_error *err);
void decision_state_close(struct decision_state *k);

/* Return the value to the site of the expected rate of committed tokens, on the hull and on the true curve: weight times the rate, or with
 * proportional shares weight times its logarithm (proportional fairness: Kelly, European Transactions on Telecommunications 8, 1997). */
double holding_value(const struct decision_job *j, const struct holding *h);
double holding_true_value(const struct decision_job *j, const struct holding *h);
/* Return the expected rate of committed tokens itself, and the value that one second of pause costs. */
double holding_rate(const struct decision_job *j, const struct holding *h);
double holding_pause_cost_per_s(const struct decision_job *j, const struct holding *h);

/* Returns `h` with `count` more nodes of a class (fewer if negative). */
struct holding holding_with_nodes(const struct decision_state *k, const struct decision_job *j, const struct holding *h, int class,
                                  int count);
/* Returns true if the job may hold `h`, and nodes of this class. */
bool decision_allowed(const struct decision_state *k, const struct decision_job *j, const struct holding *h, int class);
/* Returns true if the job's policy allows the device type of this class. */
bool decision_type_allowed(const struct decision_state *k, const struct decision_job *j, int class);

/* Appends an action for a job with space for n nodes; NULL: out of memory. decision_add_node() adds a node to it and marks it as taken. */
struct hspmd_resize_action *decision_new_action(struct decision_state *k, enum hspmd_resize_kind kind, int job, int n);
void decision_add_node(struct decision_state *k, struct hspmd_resize_action *a, int node);

void decision_set_why(struct decision_state *k, int job, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Chooses up to `n` of the job's nodes to return, those whose loss costs least first: of classes that `usable` has (NULL: all), not fixed,
 * not leaving, not taken, and unless `young` is true none that was added less than min_life_s ago. Returns how many were found. */
int decision_choose_nodes(const struct decision_state *k, int job, const unsigned char *usable, bool young, int n, int *out);

/* Returns true if the jobs of the rule have used up its budget of node hours. */
bool decision_budget_is_spent(const struct decision_job *j);
/* Adds what `count` more nodes of the job take of Slurm's limits (less if negative). */
void decision_use_limits(struct decision_state *k, const struct decision_job *j, int count);
/* Returns a limit of Slurm that `count` more nodes of the job would exceed; `from`: a job that gives them, or NULL. NULL: none. */
const struct hspmd_snapshot_limit *decision_limit_in_way(const struct decision_state *k, const struct decision_job *j,
                                                         const struct decision_job *from, int count);

/* The four steps of decide.h. Return 0, or -1 and err: out of memory. */
int reclaim_over_limit(struct decision_state *k, struct hspmd_error *err);
int reclaim_for_pending(struct decision_state *k, struct hspmd_error *err);
int grow_into_idle(struct decision_state *k, struct hspmd_error *err);
int rebalance_jobs(struct decision_state *k, struct hspmd_error *err);

/* Returns true if a resize from `was` to `now` brings min_gain, and earns back its pause before the next one is allowed. */
bool resize_pays_off(const struct decision_state *k, const struct decision_job *j, const struct holding *was, const struct holding *now);

#endif
