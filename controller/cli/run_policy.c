/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/run_policy.h"

#include "common/clock.h"
#include "common/format/policy.h"
#include "controller/cli/checkpoint_policy.h"

int run_policy_read(struct run_policy *t, struct hspmd_job *job, const char *where, const struct hspmd_policy_subject *subject,
                    struct hspmd_error *err)
{
	int rule = HSPMD_POLICY_NO_RULE;
	t->policy = NULL;
	struct hspmd_policy *p = where ? hspmd_policy_read_named(where, err) : hspmd_policy_create(err);
	if (!p)
		return -1;
	struct hspmd_policy_subject now = *subject;
	now.week_minute = hspmd_policy_when(hspmd_unix_time());
	int rc = where ? hspmd_policy_decide_rule(p, &now, &rule, err) : 0;
	if (!rc) {
		struct hspmd_policy_terms e = hspmd_policy_effective(p, rule);
		hspmd_policy_source(p, rule, hspmd_policy_field("limits", "max_nodes"), t->max_nodes_by, sizeof t->max_nodes_by);
		hspmd_policy_source(p, rule, hspmd_policy_field("limits", "max_devices"), t->max_devices_by, sizeof t->max_devices_by);
		t->policy_terms = (struct run_policy_terms){ .max_nodes = e.max_nodes,
			                                     .max_devices = e.max_devices,
			                                     .max_nodes_by = t->max_nodes_by,
			                                     .max_devices_by = t->max_devices_by,
			                                     .slower_than = e.slower_than,
			                                     .slower_for_s = e.slower_for_s,
			                                     .back_below = e.back_below,
			                                     .min_gain = e.min_gain };
		t->member_terms = (struct hspmd_slurm_member_terms){ e.grow_qos, e.grow_partition, e.time_min_s, NULL };
		rc = job ? checkpoint_policy_apply(job, &e, err) : 0;
	}
	if (rc) {
		hspmd_policy_destroy(p);
		return rc;
	}
	t->policy = p;
	t->rule = rule;
	return 0;
}

void run_policy_clear(struct run_policy *t)
{
	hspmd_policy_destroy(t->policy);
	*t = (struct run_policy){ 0 };
}

bool run_policy_want_quote(const struct run_policy *t)
{
	return t->policy && hspmd_policy_wants_quote(t->policy, t->rule);
}

int run_policy_check(const struct run_policy *t, const struct hspmd_policy_request *request, struct hspmd_error *err)
{
	return t->policy ? hspmd_policy_check_limits(t->policy, t->rule, request, err) : 0;
}
