/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/core/risk.h"

#include <math.h>
#include <stdlib.h>

#include "common/alloc.h"
#include "common/optimizer/optimizer.h"
#include "policies/copies.h"

#define COPIES_MAX 4
#define NODE_BYTES_PER_S 1.25e9 /* assumed before anything was measured: 10 Gbit/s */
#define COPY_EVERY_S 5.0        /* greatest age of copies in other nodes' memory, which cost little */
#define PAUSE_S 5.0
#define HORIZON_S 3600.0

struct hspmd_risk run_risk_read(const json_t *v)
{
	double losses = json_number_value(json_object_get(v, "losses_per_node_s")),
	       correlated = json_number_value(json_object_get(v, "together"));
	return (struct hspmd_risk){ .losses_per_s = losses > 0 && losses < 1 ? losses : 0, .correlated = fmin(fmax(correlated, 0), 1) };
}

static double state_bytes(const struct hspmd_model_facts *facts)
{
	return hspmd_optimizer_state_bytes(facts->moments) * facts->params;
}

/* Seconds lost if the state comes from shared storage, which is written less often, and read by all nodes at once. */
static double from_shared_s(const struct run_intervals *every, const struct hspmd_model_facts *facts)
{
	return every->shared_every_s + state_bytes(facts) / NODE_BYTES_PER_S;
}

int run_risk_copies(const struct hspmd_job *job, const struct hspmd_model_facts *facts, int nodes, const struct run_intervals *every,
                    const struct hspmd_risk *risk)
{
	int asked = job->checkpoint.replicas;
	if (nodes < 2 || !facts || !(risk->losses_per_s > 0))
		return asked;
	struct hspmd_copies_problem c = { .nodes = nodes,
		                          .least = asked,
		                          .most = asked > COPIES_MAX ? asked : COPIES_MAX,
		                          .state_bytes = state_bytes(facts),
		                          .bytes_per_s = NODE_BYTES_PER_S,
		                          .every_s = every->every_s,
		                          .pause_s = PAUSE_S,
		                          .rollback_s = from_shared_s(every, facts) };
	int best = hspmd_copies_choose(&c, risk, HORIZON_S);
	return best > asked ? best : asked;
}

/* Expected committed tokens on `nodes` nodes, of which none that is lost comes back. `rates`: scratch of `nodes` values. */
static double liveput(const struct hspmd_plan *p, const struct hspmd_job *job, const struct hspmd_model_facts *facts, int nodes, int copies,
                      const struct run_intervals *every, const struct hspmd_risk *risk, double *rates)
{
	/* Pipelines that each hold the whole state are copies that are always up to date. */
	int live = p->zero_stage ? 0 : p->pipeline_count - 1;
	double rate = p->predicted.step_s > 0 ? (double)(job->global_batch * job->seq_len) / p->predicted.step_s : 0;
	for (int i = 0; i < nodes; i++)
		rates[i] = rate * (i + 1) / nodes;
	double old_s = COPY_EVERY_S + state_bytes(facts) / nodes / NODE_BYTES_PER_S, gone = hspmd_state_loss_probability(risk, copies);
	struct hspmd_liveput_plan l = { .nodes = nodes,
		                        .tokens_per_s = rates,
		                        .replicas = live,
		                        .pause_s = PAUSE_S,
		                        .rollback_s = copies ? (1 - gone) * old_s + gone * from_shared_s(every, facts)
		                                             : from_shared_s(every, facts) };
	return hspmd_liveput(&l, risk, HORIZON_S);
}

bool run_risk_prefers(const struct hspmd_job *job, const struct hspmd_model_facts *facts, int nodes, int copies,
                      const struct run_intervals *every, const struct hspmd_risk *risk, const struct hspmd_plan *whole,
                      const struct hspmd_plan *other)
{
	int n = nodes < HSPMD_COPIES_NODES ? nodes : HSPMD_COPIES_NODES;
	double *rates = n > 0 && facts ? hspmd_calloc((size_t)n, sizeof *rates) : NULL;
	bool yes = rates &&
	           liveput(other, job, facts, n, copies, every, risk, rates) > liveput(whole, job, facts, n, copies, every, risk, rates);
	free(rates);
	return yes;
}
