/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/run_checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policies/copies.h"

#define COPIES_MAX 4
#define STATE_BYTES 16.0       /* of a parameter: fp32 master, two moments, and what belongs to them */
#define NODE_BYTES_PER_S 1.25e9 /* before anything was measured: what 10 Gbit/s carry */
#define EVERY_S 60.0           /* where the program chooses */
#define PAUSE_S 5.0
#define HORIZON_S 3600.0

static int folder(char **to, const char *from, struct hspmd_error *err)
{
	if (*to || !from)
		return 0;
	*to = strdup(from);
	return *to ? 0 : hspmd_fail_memory(err, "taking the site's checkpoint folder");
}

int run_checkpoint_terms(struct hspmd_job *job, const struct hspmd_policy_terms *t, struct hspmd_error *err)
{
	if (folder(&job->checkpoint.local, t->local, err) || folder(&job->checkpoint.shared, t->shared, err))
		return -1;
	bool by_steps = job->checkpoint.every_s <= 0 && job->checkpoint.every_steps > 0;
	if (isfinite(t->max_interval_s) && (by_steps || job->checkpoint.every_s > t->max_interval_s))
		job->checkpoint.every_s = t->max_interval_s;
	if (job->checkpoint.replicas < t->min_replicas)
		job->checkpoint.replicas = t->min_replicas;
	return 0;
}

int run_checkpoint_copies(struct hspmd_job *job, const struct hspmd_model *model, int nodes, const json_t *cluster)
{
	const json_t *seen = json_object_get(cluster, "risk");
	struct hspmd_risk risk = { .losses_per_s = json_number_value(json_object_get(seen, "losses_per_node_s")),
				   .together = fmin(fmax(json_number_value(json_object_get(seen, "together")), 0), 1) };
	if (nodes < 2 || !(risk.losses_per_s > 0))
		return job->checkpoint.replicas;
	double every_s = job->checkpoint.every_s > 0 ? job->checkpoint.every_s : EVERY_S, state = STATE_BYTES * (double)hspmd_model_params(model);
	struct hspmd_copies c = { .nodes = nodes,
				  .least = job->checkpoint.replicas,
				  .most = job->checkpoint.replicas > COPIES_MAX ? job->checkpoint.replicas : COPIES_MAX,
				  .state_bytes = state,
				  .bytes_per_s = NODE_BYTES_PER_S,
				  .every_s = every_s,
				  .pause_s = PAUSE_S,
				  /* Shared storage is written less often and read by all nodes at once. */
				  .rollback_s = 10 * every_s + state / NODE_BYTES_PER_S };
	int best = hspmd_copies_choose(&c, &risk, HORIZON_S);
	if (best > job->checkpoint.replicas)
		job->checkpoint.replicas = best;
	return job->checkpoint.replicas;
}
