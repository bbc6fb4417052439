/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated cluster, shared by policies/sim*.c. */
#ifndef HSPMD_POLICIES_SIM_INTERNAL_H
#define HSPMD_POLICIES_SIM_INTERNAL_H

#include "policies/budget.h"
#include "policies/decide.h"
#include "policies/match.h"
#include "policies/simulate.h"

enum { SIM_IDLE = -1, SIM_DRAINING = -2 };

struct sim_node {
	bool up;
	int class;           /* -1 until it is first added */
	int job;             /* index, SIM_IDLE, or SIM_DRAINING: its job was preempted, it is free at leaves_s */
	double since_s;      /* idle since */
	double leaves_s;     /* time at which it is free, if its job is returning it; otherwise INFINITY */
	int reserved_for;    /* index of the elastic job for which it was reclaimed; -1: none */
	double held_since_s; /* when it was added to its job; 0: the job began with it */
};

enum sim_state { SIM_NOT_SUBMITTED, SIM_WAITING, SIM_RUNNING, SIM_DONE };

struct sim_job {
	const struct hspmd_trace_job *t;
	int partition;
	enum sim_state state;
	double queued_s;         /* time at which it entered the queue */
	double waited_s;         /* seconds in the queue before that */
	bool started;            /* at least once */
	double start_s, ends_s;  /* INFINITY: not known */
	int held;                /* nodes that train for it, without those it is returning */
	int fewest;              /* that it has held since its start */
	int owner;               /* in sim.owners */
	double eligible_since_s; /* of the last decision */
	/* elastic */
	double tokens; /* committed until last_s */
	double last_s, paused_until_s, resized_s;
	struct hspmd_policy_terms terms;
	int rule;
	unsigned char *usable; /* per class */
};

/* A user with an account, for fairshare. */
struct sim_owner {
	const char *user, *account;
	double used_node_s; /* with a half-life, as Slurm counts */
};

struct sim_class {
	int partition; /* index; -1: all */
	int type;
	int devices;
	double price_per_hour;
	double up_node_s, losses; /* observed so far */
	int up;
};

struct sim {
	const struct hspmd_policy *policy;
	const struct hspmd_trace *trace;
	struct hspmd_policy_sim_options options;
	struct hspmd_policy_sim_result *result;
	double now_s;
	int node_count, job_count, class_count, type_count;
	struct sim_node *nodes;
	struct sim_job *jobs;
	struct sim_class *classes;
	int *event_class; /* per event of the trace: class of the nodes that it adds */
	const char **types;
	int up, used;
	int owner_count;
	struct sim_owner *owners;
	struct hspmd_budget budget;
	double terms_until_s; /* when the times of some rule begin or end next */
	int *queue, waiting;  /* pending jobs in Slurm's order; their number */
	/* arrays of the snapshot, allocated once */
	struct hspmd_snapshot_class *snapshot_classes;
	struct hspmd_snapshot_node *snapshot_nodes;
	struct hspmd_snapshot_pending *snapshot_pending;
	struct hspmd_snapshot_elastic *snapshot_elastic;
	int *snapshot_job; /* elastic index -> job */
	int *job_snapshot; /* job -> elastic index */
	double *ends;      /* scratch of the scheduler */
};

/* sim_jobs.c */
bool sim_fits(const struct sim *s, const struct sim_job *j, int class);
void sim_queue(struct sim *s, int job);
void sim_start(struct sim *s, int job, int nodes); /* leaves the queue; at least `nodes` nodes are idle */
void sim_finish(struct sim *s, int job);
void sim_requeue(struct sim *s, int job, double redo_s); /* preempted; redo_s seconds of work are lost; its nodes drain */
void sim_progress(struct sim *s, struct sim_job *j);     /* updates its tokens to now */
void sim_add_node(struct sim *s, int job, int node);     /* the job gets an idle node */
void sim_release_node(struct sim *s, int job, int node); /* the job returns a node */
void sim_free_node(struct sim *s, int node);             /* a node is idle from now on */
void sim_pause(struct sim *s, int job);                  /* after a resize: pauses it, new end */
void sim_lose_node(struct sim *s, int node);             /* the cluster loses a node */

/* sim_terms.c: what changes the terms of jobs while they run: the time, fairshare, budgets */
void sim_set_owner(struct sim *s, int job);                                            /* of a job of the trace */
struct hspmd_policy_subject sim_subject(const struct sim *s, const struct sim_job *j); /* now */
int sim_use(struct sim *s, double dt); /* counts what all jobs use in the next dt seconds; -1: out of memory */
double sim_unix_time(const struct sim *s);
const char *sim_rule_name(const struct sim *s, const struct sim_job *j); /* NULL: the defaults alone */
void sim_refresh_terms(struct sim *s);                                   /* of all elastic jobs, if rules have times */
double sim_weight(const struct sim *s, const struct sim_job *j);
double sim_terms_wakeup(const struct sim *s); /* when time alone may change a decision, for these reasons */

/* sim_queue.c */
void sim_schedule(struct sim *s);

/* sim_snapshot.c */
int sim_decide(struct sim *s, struct hspmd_error *err);
double sim_next_wakeup(const struct sim *s); /* time at which the decision may change without an event; INFINITY: never */

#endif
