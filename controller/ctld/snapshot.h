/* SPDX-License-Identifier: Apache-2.0 */
/* From what Slurm and the job controllers say to the snapshot that the engine decides on. Pure. */
#ifndef HSPMD_CTLD_SNAPSHOT_H
#define HSPMD_CTLD_SNAPSHOT_H

#include "controller/ctld_client/protocol.h"
#include "controller/slurm/slurm_view.h"
#include "policies/decide.h"

#define CTLD_CURVE_MAX 4096
#define CTLD_KINDS_MAX 32

/* An elastic job as its controller tells of it, and what is known of their talk. */
struct ctld_peer {
	uint32_t job; /* the anchor's id */
	uid_t uid;    /* who the controller is, proved */
	bool reachable;
	int member_count;
	uint32_t members[CTLD_MEMBERS_MAX]; /* further Slurm jobs whose nodes work for it */
	int min_nodes, max_nodes;
	char policy[HSPMD_POLICY_NAME_MAX + 1];
	int curve_count;
	double *curve;  /* bounded by what was measured; owned */
	int kind_count; /* of nodes that it knows: the name of one, and how many reference nodes it and those like it are */
	char kinds[CTLD_KINDS_MAX][65];
	double relative_speed[CTLD_KINDS_MAX];
	double tokens_per_s, pause_s, lost_s;
	double overclaim_factor; /* so many times what is believed of it a node, beside the others', it claims to make; 1 or less: no more
	                            than is believed */
	int64_t step;
	bool request_pending;                                             /* a request is not answered yet */
	double resized_s, declined_grow_until_s, declined_shrink_until_s; /* declined: to grow, to give */
};

/* What is remembered of a node between rounds. Losing it costs nothing but time. */
struct ctld_node_history {
	uint32_t reserved_for; /* elastic job that is to get it */
	double reserved_until_s;
	uint32_t asked_of; /* elastic job that was asked to give it, and has not declined */
	double asked_until_s;
	double up_s; /* watched while up */
	int losses;  /* went without being asked to */
};

struct ctld_snapshot {
	struct hspmd_snapshot snapshot;
	int *elastic_peer; /* elastic index -> peer index */
	int *pending_job;  /* waiting index -> view's job index */
	/* what `site` borrows */
	struct hspmd_snapshot_class *classes;
	struct hspmd_snapshot_node *nodes;
	struct hspmd_snapshot_pending *pending;
	struct hspmd_snapshot_elastic *elastic;
	const char **types;
	char (*type_names)[32];
	unsigned char *usable;  /* [(pending + elastic) * classes] */
	double *relative_speed; /* [elastic * types] */
};

/* Since when a waiting job could have started, by job id; NAN: not known. */
typedef double ctld_eligible_since(void *context, uint32_t job);

/* A peer whose job Slurm does not know as running and its user's is left out. Notes are one per node of the view. The caller clears the
 * site in any case; it borrows from view, peers and policies. */
int ctld_snapshot_build(struct ctld_snapshot *out, const struct hspmd_slurm_view *view, const struct hspmd_policy *policy,
                        const struct ctld_peer *peers, int peer_count, const struct ctld_node_history *node_histories, double now_s,
                        ctld_eligible_since *eligible_since, void *context, struct hspmd_error *err);
void ctld_snapshot_clear(struct ctld_snapshot *s);

/* What a job's nodes are together, in reference nodes, by its own word on what they are worth. */
double ctld_reference_nodes(const struct hspmd_slurm_view *view, const struct ctld_peer *peer);

/* May a job with these wishes run on a node: partition, features, GRES, CPUs, memory. What is not understood (counts, exclusive ors) does
 * not fit. */
bool ctld_fits(const struct hspmd_slurm_view *view, const struct hspmd_slurm_view_job *job, int node);
bool ctld_request_fits(const struct hspmd_slurm_view_job *job, const struct hspmd_slurm_view_node *node); /* the partition apart */
bool ctld_features_fit(const char *wanted, const char *has);
/* A node's price an hour: what follows "price:" in one of its features; 0: none. */
double ctld_price(const char *features);

#endif
