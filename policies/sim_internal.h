/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated cluster. Private to policies/sim*.c. */
#ifndef HSPMD_POLICIES_SIM_INTERNAL_H
#define HSPMD_POLICIES_SIM_INTERNAL_H

#include "policies/decide.h"
#include "policies/simulate.h"

enum { SIM_IDLE = -1, SIM_DRAINING = -2 };

struct sim_node {
	bool up;
	int class;        /* -1 till it was first added */
	int job;          /* or SIM_IDLE, or SIM_DRAINING: of a job that was preempted, free at leaves_s */
	double since_s;   /* idle since */
	double leaves_s;  /* asked to be given back: free then; INFINITY */
	int reserved_for; /* the elastic job it was taken for; -1 */
};

enum sim_state { SIM_NOT_SUBMITTED, SIM_WAITING, SIM_RUNNING, SIM_DONE };

struct sim_job {
	const struct hspmd_trace_job *t;
	int partition;
	enum sim_state state;
	double queued_s;         /* in the queue since */
	double waited_s;         /* in the queue, times before that */
	bool started;            /* at least once */
	double start_s, ends_s;  /* INFINITY: not known */
	int held;                /* nodes that work for it (those that leave do not) */
	double eligible_since_s; /* as the engine said last */
	/* elastic */
	double tokens; /* done and kept so far, to last_s */
	double last_s, paused_until_s, resized_s;
	struct hspmd_policy_terms terms;
	int rule;
	unsigned char *usable; /* per class */
};

struct sim_class {
	int partition; /* -1: all */
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
	int *event_class; /* per event of the trace: class of the nodes it adds */
	const char **types;
	int up, used;
	int *queue, waiting; /* jobs that wait, in Slurm's order */
	/* arrays of the snapshot, kept between decisions */
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
void sim_start(struct sim *s, int job, int nodes); /* takes it out of the queue; so many idle nodes must be there */
void sim_finish(struct sim *s, int job);
void sim_requeue(struct sim *s, int job, double redo_s); /* loses so many seconds of its work; its nodes leave */
void sim_progress(struct sim *s, struct sim_job *j);     /* tokens up to now */
void sim_add_node(struct sim *s, int job, int node);     /* an idle node starts to work for it */
void sim_release_node(struct sim *s, int job, int node); /* a node stops working for it and leaves */
void sim_free_node(struct sim *s, int node);             /* a node has left or its job is gone */
void sim_pause(struct sim *s, int job);                  /* after a change of its nodes: pause, new end */
void sim_lose_node(struct sim *s, int node);             /* the node goes from the cluster */

/* sim_queue.c */
void sim_schedule(struct sim *s);

/* sim_snapshot.c */
int sim_decide(struct sim *s, struct hspmd_error *err);
double sim_next_wakeup(const struct sim *s); /* when time alone may change the decision; INFINITY: never */

#endif
