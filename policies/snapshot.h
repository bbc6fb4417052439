/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot of a cluster and its queue, the input of the policy engine. Plain data, built by hspmdctld from Slurm's view and the
 * controllers' states, by `hspmd policy simulate` from a trace, and by tests. Times are seconds of one clock. All pointers are borrowed.
 *
 * Nodes that are equal in everything that a job may request (partitions, features, GRES, device type, price) form a class, and what a job
 * can use is given per class. Constraints are therefore evaluated in one place, where the snapshot is built, and the engine only
 * counts. */
#ifndef HSPMD_POLICIES_SNAPSHOT_H
#define HSPMD_POLICIES_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/format/policy.h"

struct hspmd_snapshot_class {
	int type;              /* of its devices: index into types; -1: no device that hspmd can use */
	int devices;           /* of one node */
	double price_per_hour; /* of one node; 0: not given */
	double losses_per_s;   /* observed unforeseen losses per node; 0: none */
};

enum hspmd_snapshot_state { HSPMD_SNAPSHOT_IDLE, HSPMD_SNAPSHOT_HELD, HSPMD_SNAPSHOT_BUSY, HSPMD_SNAPSHOT_DOWN };

struct hspmd_snapshot_node {
	const char *name;
	int class;
	enum hspmd_snapshot_state state;
	int holder;            /* HELD: the elastic job, or -1 if the job has ended and the node is not free yet; otherwise -1 */
	double since_s;        /* IDLE: time since which it is idle */
	double free_s;         /* BUSY: latest end of its job; INFINITY: not known */
	uint32_t reserved_for; /* IDLE: id of the elastic job for which this node was reclaimed; 0: none */
	bool fixed;            /* HELD: never returned (the job's first node) */
	bool leaving;          /* HELD: soon idle, because its holder was requested to return it or has ended */
	double held_since_s;   /* HELD: when it was added to its holder; 0: the holder began with it, or it is not known */
};

/* A limit of Slurm's accounting, on what the jobs of a QOS, account or user take together. */
struct hspmd_snapshot_limit {
	const char *name; /* for reasons: "GrpTRES node of account lab" */
	double left;      /* of its own unit */
};

/* A pending job. In the order in which Slurm would start them. */
struct hspmd_snapshot_pending {
	uint32_t id;
	int nodes;    /* the fewest on which it can start */
	double run_s; /* its time limit; INFINITY: none */
	double priority;
	bool preempts;               /* Slurm would preempt elastic jobs of lower priority for it */
	double eligible_since_s;     /* since when it could have started, from the last decision; NAN: it could not */
	const unsigned char *usable; /* per class: 1 if it may use the nodes */
};

struct hspmd_snapshot_elastic {
	uint32_t id;
	int rule;                        /* index into the policy's rules, for reasons */
	struct hspmd_policy_terms terms; /* the policy's terms for it */
	int min_nodes, max_nodes;        /* its own; the terms limit it further */
	double priority;
	int curve_count;                /* 0: its controller has sent no curve */
	const double *tokens_per_s;     /* [i]: on i + 1 reference nodes; already bounded by measurements */
	const double *relative_speed;   /* per device type: how many reference nodes one node equals; NULL: 1 each */
	double pause_s;                 /* pause of a resize */
	double lost_s;                  /* additional cost of an unforeseen loss of a node: steps lost, state read back */
	double resized_s;               /* time of its last resize; -INFINITY: never */
	double remaining_s;             /* until its end; INFINITY: not known */
	bool reachable;                 /* its controller is connected */
	bool request_pending;           /* a request to it is not answered yet */
	double declined_grow_until_s;   /* it declined to grow: no such request before; -INFINITY: it has not */
	double declined_shrink_until_s; /* it declined to shrink: other jobs are requested until then */
	double wait_until_s;            /* of the last decision; NAN: it was not to grow; -INFINITY: it never waits for further nodes */
	const unsigned char *usable;    /* per class */
	int fewest_nodes;               /* that it has held; more were added, and count against the budget */
	double spent_node_hours;        /* of its rule's budget, by all jobs of the rule in the last budget_days */
	const double *limit_cost;       /* [limit]: what one more node takes of it, 0: the limit is not for this job; NULL: none is */
};

struct hspmd_snapshot {
	double now_s;
	int type_count, class_count, node_count, pending_count, elastic_count, limit_count;
	const char *const *types;
	const struct hspmd_snapshot_class *classes;
	const struct hspmd_snapshot_node *nodes;
	const struct hspmd_snapshot_pending *pending;
	const struct hspmd_snapshot_elastic *elastic;
	const struct hspmd_snapshot_limit *limits;
};

#endif
