/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/cli/policy_limits.h"

#include <limits.h>
#include <math.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/clock.h"
#include "common/log.h"
#include "policies/match.h"

static int tighter(int own, int policy)
{
	if (policy == INT_MAX)
		return own;
	return own > 0 && own < policy ? own : policy;
}

/* The types that both lists allow; an empty list allows all. 0 or -1. */
static int common_types(const struct hspmd_solve_limits *asked, const struct hspmd_policy_list *allowed, struct hspmd_solve_limits *out,
                        struct hspmd_error *err)
{
	int most = asked->type_count > allowed->count ? asked->type_count : allowed->count;
	const char **both = hspmd_calloc((size_t)most, sizeof *both);
	out->types = both;
	out->type_count = 0;
	if (!both)
		return hspmd_fail_memory(err, "reading the limits");
	for (int i = 0; i < allowed->count; i++) {
		bool wanted = asked->type_count == 0;
		for (int k = 0; k < asked->type_count; k++)
			wanted = wanted || !strcmp(asked->types[k], allowed->items[i]);
		if (wanted)
			both[out->type_count++] = allowed->items[i];
	}
	for (int k = 0; allowed->count == 0 && k < asked->type_count; k++)
		both[out->type_count++] = asked->types[k];
	return allowed->count && !out->type_count ? hspmd_fail(err, "the policy allows none of the device types asked for") : 0;
}

static int apply_policy(const char *path, const char *rule, const struct hspmd_solve_limits *asked, struct hspmd_policy **set,
                        struct hspmd_solve_limits *out, struct hspmd_error *err)
{
	const struct passwd *me = getpwuid(getuid());
	struct hspmd_policy_subject subject = { .user = me ? me->pw_name : NULL,
		                                .policy = rule,
		                                .week_minute = hspmd_policy_when(hspmd_unix_time()) };
	int first;
	*set = hspmd_policy_read(path, NULL, err);
	if (!*set || hspmd_policy_candidates(*set, &subject, &first, 1, err) < 0)
		return -1;
	struct hspmd_policy_terms terms = hspmd_policy_effective(*set, first);
	out->max_nodes = tighter(asked->max_nodes, terms.max_nodes);
	out->max_devices = tighter(asked->max_devices, terms.max_devices);
	if (isfinite(terms.max_price_per_hour))
		out->max_price_per_hour = asked->max_price_per_hour > 0 ? fmin(asked->max_price_per_hour, terms.max_price_per_hour)
		                                                        : terms.max_price_per_hour;
	if (isnan(asked->cost_weight))
		out->cost_weight = terms.cost_weight;
	if (first == HSPMD_POLICY_NO_RULE)
		hspmd_info("no rule of %s is for you: its defaults hold", path);
	else
		hspmd_info("limits are those of policy %s (%s)", (*set)->rules[first].name, (*set)->files[(*set)->rules[first].file]);
	return common_types(asked, &terms.device_types, out, err);
}

int hspmd_policy_limits(const char *path, const char *rule, const struct hspmd_solve_limits *asked, struct hspmd_policy **set,
                        struct hspmd_solve_limits *out, struct hspmd_error *err)
{
	const struct hspmd_policy_list all = { 0 };
	*out = *asked;
	out->types = NULL;
	out->type_count = 0;
	int rc = path ? apply_policy(path, rule, asked, set, out, err) : common_types(asked, &all, out, err);
	out->cost_weight = isnan(out->cost_weight) ? 0 : out->cost_weight;
	return rc;
}

void hspmd_policy_limits_clear(struct hspmd_solve_limits *limits)
{
	free((void *)limits->types);
	limits->types = NULL;
	limits->type_count = 0;
}
