/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a policy over a recorded or invented trace. The decisions are the engine's own (decide.h); Slurm is simulated: jobs start in order
 * of priority, then of submission, with EASY backfill; a rigid job that loses a node is requeued from its start. */
#ifndef HSPMD_POLICIES_SIMULATE_H
#define HSPMD_POLICIES_SIMULATE_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/policy.h"
#include "common/format/trace.h"

enum hspmd_policy_sim_mode {
	/* Elastic jobs start on the nodes they request, and the policy resizes them. Slurm preempts whole jobs only if they can shrink no
	 * further and the more important job has waited preempt_s; they save their state at SIGTERM. */
	HSPMD_POLICY_SIM_POLICY,
	HSPMD_POLICY_SIM_WITHOUT, /* no resizes: an elastic job keeps the nodes on which it started */
	/* Elastic jobs start on as many nodes as are idle, up to max_nodes, and are preempted and requeued for jobs of higher priority;
	 * they continue from their last checkpoint. */
	HSPMD_POLICY_SIM_PREEMPT
};
extern const char *const hspmd_policy_sim_mode_names[]; /* "policy", "without", "preempt" */

struct hspmd_policy_sim_options {
	enum hspmd_policy_sim_mode mode;
	double leave_s;      /* from the request, or SIGTERM, until a node is free; default 2 */
	double preempt_s;    /* how long Slurm waits before it preempts, so that jobs can shrink first; default 1 */
	double checkpoint_s; /* interval between checkpoints of jobs that are not resized; default 1800 */
	double local_s;      /* interval between copies of an elastic job's state that survive the loss of a node; default 60 */
	void (*on_time)(double now_s, double end_s); /* called at each moment of the trace that is replayed; NULL: not */
};
extern const struct hspmd_policy_sim_options hspmd_policy_sim_defaults;

struct hspmd_policy_sim_result {
	enum hspmd_policy_sim_mode mode;
	double end_s;
	double node_s, used_node_s; /* node-seconds up, and of these in a job */
	double stalled_node_s;      /* in elastic jobs during a resize */
	int rigid, rigid_started, rigid_done;
	double rigid_wait_s, rigid_wait_max_s; /* mean and greatest time in the queue; jobs that never started count until the end */
	int elastic, elastic_started, elastic_done;
	double elastic_wait_s;
	int preemptions, node_losses, requeues;
	int grows, shrinks, nodes_grown, nodes_given;
	double lost_node_s, lost_tokens; /* work that has to be repeated */
	double tokens;                   /* committed */
	int decisions;
};

/* Returns 0, or -1 and err: out of memory, or the engine failed. */
int hspmd_policy_simulate(const struct hspmd_policy *p, const struct hspmd_trace *t, const struct hspmd_policy_sim_options *options,
                          struct hspmd_policy_sim_result *result, struct hspmd_error *err);
/* Returns a new reference; NULL: out of memory. */
json_t *hspmd_policy_sim_result_to_json(const struct hspmd_policy_sim_result *r);

#endif
