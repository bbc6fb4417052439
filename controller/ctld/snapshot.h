/* SPDX-License-Identifier: Apache-2.0 */
/* From the Slurm view and the job controllers' states to the snapshot on which the policy engine decides. Pure. */
#ifndef HSPMD_CTLD_SNAPSHOT_H
#define HSPMD_CTLD_SNAPSHOT_H

#include "controller/ctld_client/protocol.h"
#include "controller/slurm/slurm_view.h"
#include "policies/decide.h"

#define CTLD_CURVE_MAX 4096
#define CTLD_KINDS_MAX 32

/* An elastic job: its controller's last state as far as it was accepted, and the requests sent to it. */
struct ctld_peer {
	uint32_t job;   /* the anchor's id */
	uid_t uid;      /* user of the controller, proved */
	bool reachable; /* its controller is connected */
	int member_count;
	uint32_t members[CTLD_MEMBERS_MAX]; /* ids of its member jobs */
	int min_nodes, max_nodes;
	int fewest_nodes; /* that it has held; 0: not known */
	char policy[HSPMD_POLICY_NAME_MAX + 1];
	int curve_count;
	double *curve; /* [n - 1]: tokens per second on n reference nodes, bounded by measurements; owned */
	int kind_count;
	char kinds[CTLD_KINDS_MAX][65];        /* name of one node per kind */
	double relative_speed[CTLD_KINDS_MAX]; /* how many reference nodes a node of the kind equals */
	double tokens_per_s;                   /* now; 0: not training */
	double pause_s, lost_s;                /* of a resize: the pause, and computed steps that are lost */
	double overclaim_factor; /* ratio of the rate per node that it claims to the highest that is accepted; <= 1: accepted as it is */
	int64_t step;
	bool request_pending;                                  /* a request is not answered yet */
	double resized_s;                                      /* time of the last request that was carried out; -INFINITY: none */
	double declined_grow_until_s, declined_shrink_until_s; /* no such request before this time */
	double wait_until_s;                                   /* hspmd_snapshot_elastic.wait_until_s */
};

/* What is kept of a node between rounds. Losing it costs nothing but time. */
struct ctld_node_history {
	uint32_t reserved_for; /* elastic job that is to get it; 0: none */
	double reserved_until_s;
	uint32_t requested_from; /* elastic job that was requested to return it and has not declined; 0: none */
	double requested_until_s;
	double up_s;         /* seconds during which it was watched and usable */
	uint32_t held_by;    /* job that has it; 0: none, or not known */
	double held_since_s; /* when it was added to that job; 0: the job began with it, or it is not known */
	int losses;          /* times it became unusable while busy */
};

struct ctld_snapshot {
	struct hspmd_snapshot snapshot;
	int *elastic_peer; /* elastic index -> peer index */
	int *pending_job;  /* pending index -> view's job index */
	/* owned arrays to which `snapshot` points */
	struct hspmd_snapshot_class *classes;
	struct hspmd_snapshot_node *nodes;
	struct hspmd_snapshot_pending *pending;
	struct hspmd_snapshot_elastic *elastic;
	const char **types;
	char (*type_names)[32];
	unsigned char *usable;  /* [(pending + elastic) * classes] */
	double *relative_speed; /* [elastic * types] */
	struct hspmd_snapshot_limit *limits;
	char (*limit_names)[96];
	double *limit_cost; /* [elastic * limits] */
};

/* Returns since when a pending job could have started; NAN: not known. */
typedef double ctld_eligible_since(void *context, uint32_t job);

/* Builds the snapshot. A peer is left out unless Slurm knows its job as running and as its user's. node_histories: one per node of the
 * view. The caller calls ctld_snapshot_clear() in any case. The snapshot borrows from view, peers and policy. -1 and err: out of memory. */
int ctld_snapshot_build(struct ctld_snapshot *out, const struct hspmd_slurm_view *view, const struct hspmd_policy *policy,
                        const struct ctld_peer *peers, int peer_count, const struct ctld_node_history *node_histories, double now_s,
                        ctld_eligible_since *eligible_since, void *context, struct hspmd_error *err);
void ctld_snapshot_clear(struct ctld_snapshot *s);
/* Called by ctld_snapshot_build(): adds the limits of Slurm's accounting that bound elastic jobs (view->accounts). -1: out of memory. */
int ctld_snapshot_add_limits(struct ctld_snapshot *s, const struct hspmd_slurm_view *view, const struct ctld_peer *peers);

/* Returns how many nodes a peer's job and its member jobs (of the same user) hold; 0 if the view is NULL. */
int ctld_nodes_held(const struct hspmd_slurm_view *view, const struct ctld_peer *peer);
/* Returns the same in reference nodes, by the relative speeds that its controller claims. */
double ctld_reference_nodes(const struct hspmd_slurm_view *view, const struct ctld_peer *peer);

/* Returns true if a job with these requirements may run on a node: partition, features, GRES, CPUs, memory. A requirement in a syntax that
 * is not supported (counts, exclusive ors) fits no node. */
bool ctld_fits(const struct hspmd_slurm_view *view, const struct hspmd_slurm_view_job *job, int node);
/* The same without the partition. */
bool ctld_request_fits(const struct hspmd_slurm_view_job *job, const struct hspmd_slurm_view_node *node);
/* Returns true if a node with the features `has` (comma-separated) satisfies the constraint `wanted`. */
bool ctld_features_fit(const char *wanted, const char *has);
/* Returns a node's price per hour: the number after "price:" in one of its features; 0: none. */
double ctld_price(const char *features);

#endif
