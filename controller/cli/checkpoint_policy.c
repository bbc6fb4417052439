/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/checkpoint_policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int folder(char **to, const char *from, struct hspmd_error *err)
{
	if (*to || !from)
		return 0;
	*to = strdup(from);
	return *to ? 0 : hspmd_fail_memory(err, "taking the site's checkpoint folder");
}

int checkpoint_policy_apply(struct hspmd_job *job, const struct hspmd_policy_terms *t, struct hspmd_error *err)
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
