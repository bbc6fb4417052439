/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot of a cluster and its queue: what the engine decides on. Plain data, put together by hspmdctld from Slurm and from the
 * controllers' greetings, by `hspmd policy simulate` from a trace, by tests by hand. Times are seconds of one clock. All pointers are
 * borrowed.
 *
 * Nodes that are alike in all that a job may ask for (partitions, features, GRES, device type, price) form a class; what a job can use is
 * said per class. So constraints are understood in one place, by who makes the snapshot, and the engine counts.
 */
#ifndef HSPMD_POLICIES_SNAPSHOT_H
#define HSPMD_POLICIES_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/format/policy.h"

struct hspmd_snapshot_class {
	int type;              /* of its devices: index into types; -1: no device hspmd can use */
	int devices;           /* of one node */
	double price_per_hour; /* of one node; 0: not given */
	double losses_per_s;   /* how often a node is taken away unasked, observed; 0: never seen */
};

enum hspmd_snapshot_state { HSPMD_SNAPSHOT_IDLE, HSPMD_SNAPSHOT_HELD, HSPMD_SNAPSHOT_BUSY, HSPMD_SNAPSHOT_DOWN };

struct hspmd_snapshot_node {
	const char *name;
	int class;
	enum hspmd_snapshot_state state;
	int holder;            /* HELD: the elastic job, or -1 for a node that leaves a job which is gone; else -1 */
	double since_s;        /* IDLE: since when */
	double free_s;         /* BUSY: when its job ends at the latest; INFINITY: not known */
	uint32_t reserved_for; /* IDLE: id of the elastic job for which another was made to give it; 0: none */
	bool fixed;            /* HELD: never given back (the job's first node) */
	bool leaving;          /* HELD: its holder has been asked to give it back, or is gone: soon idle */
};

/* A job that waits. In the order in which Slurm would start them. */
struct hspmd_snapshot_pending {
	uint32_t id;
	int nodes;    /* the fewest it can start on */
	double run_s; /* its time limit; INFINITY: none */
	double priority;
	bool preempts;               /* Slurm would preempt elastic jobs of lower priority for it */
	double eligible_since_s;     /* since when it could have started, as told by the last decision; NAN: it could not */
	const unsigned char *usable; /* per class */
};

struct hspmd_snapshot_elastic {
	uint32_t id;
	int rule;                        /* of the policy set; for reasons */
	struct hspmd_policy_terms terms; /* what holds for it */
	int min_nodes, max_nodes;        /* its own; the terms' limit comes on top */
	double priority;
	int curve_count;                /* 0: its controller has told no gain */
	const double *tokens_per_s;     /* [i]: on i + 1 reference nodes; already bounded by what was measured */
	const double *relative_speed;   /* per device type, how many reference nodes a node of it is; NULL: 1 each */
	double pause_s;                 /* what a resize costs */
	double lost_s;                  /* what an unforeseen loss of a node costs beyond the pause: work undone, state read back */
	double resized_s;               /* when it last changed size; -INFINITY: never */
	double remaining_s;             /* till it ends; INFINITY: not known */
	bool reachable;                 /* its controller listens */
	bool request_pending;           /* a request to it is not answered yet */
	double declined_grow_until_s;   /* it declined: not asked to grow before then; -INFINITY: it has not */
	double declined_shrink_until_s; /* it declined to give: others are asked instead before then */
	const unsigned char *usable;    /* per class */
};

struct hspmd_snapshot {
	double now_s;
	int type_count, class_count, node_count, pending_count, elastic_count;
	const char *const *types;
	const struct hspmd_snapshot_class *classes;
	const struct hspmd_snapshot_node *nodes;
	const struct hspmd_snapshot_pending *pending;
	const struct hspmd_snapshot_elastic *elastic;
};

#endif
