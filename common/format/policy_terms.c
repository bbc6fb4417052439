/* SPDX-License-Identifier: Apache-2.0 */
/* The terms of a rule: its own, then the defaults, then the built-in values; and checks that they fit together. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/format/policy.h"

struct hspmd_policy_terms hspmd_policy_effective(const struct hspmd_policy *p, int rule)
{
	struct hspmd_policy_terms t = hspmd_policy_builtin;
	for (int i = 0; i < hspmd_policy_field_count; i++) {
		const struct hspmd_policy_terms *from = NULL;
		uint64_t bit = UINT64_C(1) << i;
		if (rule >= 0 && p->rules[rule].terms.given & bit)
			from = &p->rules[rule].terms;
		else if (p->defaults.given & bit)
			from = &p->defaults;
		if (!from)
			continue;
		size_t offset = hspmd_policy_fields[i].offset;
		memcpy((char *)&t + offset, (const char *)from + offset, hspmd_policy_field_size(i));
		t.given |= bit;
	}
	return t;
}

const char *hspmd_policy_source(const struct hspmd_policy *p, int rule, int field, char *buf, size_t size)
{
	uint64_t bit = UINT64_C(1) << field;
	if (rule >= 0 && p->rules[rule].terms.given & bit)
		snprintf(buf, size, "policy %s (%s)", p->rules[rule].name, p->files[p->rules[rule].file]);
	else if (p->defaults.given & bit)
		snprintf(buf, size, "site default (%s)", p->files[p->defaults_file[field]]);
	else
		snprintf(buf, size, "built-in default");
	return buf;
}

int hspmd_policy_field(const char *section, const char *key)
{
	for (int i = 0; i < hspmd_policy_field_count; i++)
		if (!strcmp(hspmd_policy_fields[i].section, section) && !strcmp(hspmd_policy_fields[i].key, key))
			return i;
	return -1;
}

/* ---- contradictions between files */

static bool gives(const struct hspmd_policy *p, int rule, int f)
{
	return p->rules[rule].terms.given >> f & 1;
}

/* Where a rule stands in its file. */
static int place(const struct hspmd_policy *p, int rule)
{
	int first = rule;
	while (first > 0 && p->rules[first - 1].file == p->rules[rule].file)
		first--;
	return rule - first;
}

/* "FILE: rules[N].WHERE: rule NAME: WHAT, which ... gives" */
static int contradicts(const struct hspmd_policy *p, int rule, const char *where, const char *what, int other, struct hspmd_error *err)
{
	char by[160];
	const struct hspmd_policy_rule *r = &p->rules[rule];
	return hspmd_fail(err, "%s: rules[%d].%s: rule %s: %s, which %s gives", p->files[r->file], place(p, rule), where, r->name, what,
	                  hspmd_policy_source(p, rule, other, by, sizeof by));
}

/* The rule's own values must fit the values that it inherits. That one limit makes another superfluous is no contradiction. */
static int check_rule(const struct hspmd_policy *p, int rule, struct hspmd_error *err)
{
	const struct hspmd_policy_terms t = hspmd_policy_effective(p, rule);
	int nodes = hspmd_policy_field("limits", "max_nodes"), devices = hspmd_policy_field("limits", "max_devices");
	int slower = hspmd_policy_field("straggler", "slower_than"), back = hspmd_policy_field("straggler", "back_below");
	int yield = hspmd_policy_field("shrink", "yield_before_preemption"), pending = hspmd_policy_field("shrink", "for_pending");
	char what[160];
	if (gives(p, rule, nodes) && !gives(p, rule, devices) && t.max_devices < t.max_nodes) {
		snprintf(what, sizeof what, "%d nodes have at least as many devices: more than limits.max_devices (%d)", t.max_nodes,
		         t.max_devices);
		return contradicts(p, rule, "limits.max_nodes", what, devices, err);
	}
	if ((gives(p, rule, slower) || gives(p, rule, back)) && t.back_below >= t.slower_than) {
		bool own = gives(p, rule, slower);
		snprintf(what, sizeof what, "back_below (%g) must be less than slower_than (%g)", t.back_below, t.slower_than);
		return contradicts(p, rule, own ? "straggler.slower_than" : "straggler.back_below", what, own ? back : slower, err);
	}
	if (gives(p, rule, yield) && t.yield_before_preemption && t.for_pending == HSPMD_PENDING_NONE)
		return contradicts(p, rule, "shrink.yield_before_preemption", "contradicts shrink.for_pending \"none\"", pending, err);
	if (gives(p, rule, pending) && !gives(p, rule, yield) && t.yield_before_preemption && t.for_pending == HSPMD_PENDING_NONE)
		return contradicts(p, rule, "shrink.for_pending", "\"none\" contradicts shrink.yield_before_preemption", yield, err);
	if (gives(p, rule, hspmd_policy_field("grow", "budget_days")) && isinf(t.budget_node_hours))
		return hspmd_fail(err, "%s: rules[%d].grow.budget_days: rule %s: there is no grow.budget_node_hours that it would be for",
		                  p->files[p->rules[rule].file], place(p, rule), p->rules[rule].name);
	return 0;
}

int hspmd_policy_check(const struct hspmd_policy *p, struct hspmd_error *err)
{
	for (int i = 0; i < p->rule_count; i++)
		if (check_rule(p, i, err) < 0)
			return -1;
	return 0;
}
