/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/limits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "policies/match.h"

static const char *by(const struct hspmd_policy *p, int rule, const char *key, char *buf, size_t size)
{
	return hspmd_policy_source(p, rule, hspmd_policy_field("limits", key), buf, size);
}

static int check_types(const struct hspmd_policy *p, int rule, const struct hspmd_policy_list *allowed,
                       const struct hspmd_policy_request *request, struct hspmd_error *err)
{
	char who[160], list[256];
	size_t n = 0;
	for (int i = 0; i < request->type_count; i++) {
		int k = 0;
		while (k < allowed->count && strcmp(allowed->items[k], request->types[i]) != 0)
			k++;
		if (k < allowed->count)
			continue;
		list[0] = '\0';
		for (k = 0; k < allowed->count && n < sizeof list; k++)
			n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", k ? ", " : "", allowed->items[k]);
		return hspmd_fail(err, "%s allows devices of type %s; %s asked", by(p, rule, "device_types", who, sizeof who), list,
		                  request->types[i]);
	}
	return 0;
}

int hspmd_policy_check_limits(const struct hspmd_policy *p, int rule, const struct hspmd_policy_request *request, struct hspmd_error *err)
{
	struct hspmd_policy_terms t = hspmd_policy_effective(p, rule);
	char who[160];
	if (request->nodes > t.max_nodes)
		return hspmd_fail(err, "%s allows at most %d node%s; %d asked", by(p, rule, "max_nodes", who, sizeof who), t.max_nodes,
		                  t.max_nodes == 1 ? "" : "s", request->nodes);
	if (request->devices > t.max_devices)
		return hspmd_fail(err, "%s allows at most %d device%s; %d asked", by(p, rule, "max_devices", who, sizeof who),
		                  t.max_devices, t.max_devices == 1 ? "" : "s", request->devices);
	if (request->jobs_of_user > t.max_jobs_per_user)
		return hspmd_fail(err, "%s allows a user at most %d elastic job%s; this would be number %d",
		                  by(p, rule, "max_jobs_per_user", who, sizeof who), t.max_jobs_per_user,
		                  t.max_jobs_per_user == 1 ? "" : "s", request->jobs_of_user);
	if (request->price_per_hour > t.max_price_per_hour)
		return hspmd_fail(err, "%s allows at most %g an hour; %g asked", by(p, rule, "max_price_per_hour", who, sizeof who),
		                  t.max_price_per_hour, request->price_per_hour);
	return t.device_types.count ? check_types(p, rule, &t.device_types, request, err) : 0;
}

void hspmd_policy_widen_bound(const struct hspmd_policy *p, int rule, int asked, int each, struct hspmd_policy_bound *bound)
{
	struct hspmd_policy_terms t = hspmd_policy_effective(p, rule);
	bool devices = each > 0 && t.max_devices / each < t.max_nodes;
	int most = devices ? t.max_devices / each : t.max_nodes;
	char who[160];
	if (most <= bound->nodes)
		return;
	bound->nodes = most;
	bound->fewer[0] = '\0';
	if (asked > most)
		snprintf(bound->fewer, sizeof bound->fewer, "%s allows at most %d of %d nodes",
		         by(p, rule, devices ? "max_devices" : "max_nodes", who, sizeof who), most, asked);
}

bool hspmd_policy_wants_quote(const struct hspmd_policy *p, int rule)
{
	struct hspmd_policy_terms t = hspmd_policy_effective(p, rule);
	return t.max_jobs_per_user < INT_MAX || isfinite(t.max_price_per_hour);
}
