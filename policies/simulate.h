/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy would have done over a recorded (or made up) trace. The decisions are the engine's own; Slurm is simulated: jobs start in
 * the order of priority, then of submission, with EASY backfill; a node that goes takes its rigid job with it, which is requeued from the
 * start. */
#ifndef HSPMD_POLICIES_SIMULATE_H
#define HSPMD_POLICIES_SIMULATE_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/policy.h"
#include "common/format/trace.h"

enum hspmd_policy_sim_mode {
	HSPMD_POLICY_SIM_POLICY,  /* elastic jobs start on what they ask for and are grown and shrunk by the policy; Slurm preempts them
	                      whole where  they have nothing left to give and the more important job has waited preempt_s, and they save their
	                      state when  told to end */
	HSPMD_POLICY_SIM_WITHOUT, /* nobody resizes: an elastic job keeps what it started on */
	HSPMD_POLICY_SIM_PREEMPT  /* elastic jobs start on as many nodes as lie idle, up to max_nodes, and are preempted and requeued whole
	                      for jobs  of higher priority; they go on from their last checkpoint */
};
extern const char *const hspmd_policy_sim_mode_names[]; /* "policy", "without", "preempt" */

struct hspmd_policy_sim_options {
	enum hspmd_policy_sim_mode mode;
	double leave_s;      /* from the request, or the signal to end, till a node is free; default 2 */
	double preempt_s;    /* default 1: what the policy has to give is given first */
	double checkpoint_s; /* jobs that are not resized write a checkpoint so often; default 1800 */
	double local_s;      /* elastic jobs keep copies so often that need fewer nodes than they have lost; default 60 */
};
extern const struct hspmd_policy_sim_options hspmd_policy_sim_defaults;

struct hspmd_policy_sim_result {
	enum hspmd_policy_sim_mode mode;
	double end_s;
	double node_s, used_node_s; /* nodes that were up, and of these those in a job */
	double stalled_node_s;      /* in elastic jobs that were being resized */
	int rigid, rigid_started, rigid_done;
	double rigid_wait_s, rigid_wait_max_s; /* mean and greatest time in the queue, those that never started counted to the end */
	int elastic, elastic_started, elastic_done;
	double elastic_wait_s;
	int preemptions, node_losses, requeues;
	int grows, shrinks, nodes_grown, nodes_given;
	double lost_node_s, lost_tokens; /* work that was done and has to be done again */
	double tokens;                   /* committed */
	int decisions;
};

int hspmd_policy_simulate(const struct hspmd_policy *p, const struct hspmd_trace *t, const struct hspmd_policy_sim_options *options,
                          struct hspmd_policy_sim_result *result, struct hspmd_error *err);
json_t *hspmd_policy_sim_result_to_json(const struct hspmd_policy_sim_result *r);

#endif
