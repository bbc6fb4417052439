/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/budget.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

#define DAY_S 86400.0

void hspmd_budget_clear(struct hspmd_budget *b)
{
	free(b->rules);
	*b = (struct hspmd_budget){ 0 };
}

/* No rule has the name "". */
static const char *name_of(const char *rule)
{
	return rule ? rule : "";
}

static struct hspmd_budget_rule *find(const struct hspmd_budget *b, const char *rule)
{
	for (int i = 0; i < b->count; i++)
		if (!strcmp(b->rules[i].name, name_of(rule)))
			return &b->rules[i];
	return NULL;
}

static int add_on(struct hspmd_budget *b, const char *rule, int64_t day, double node_s)
{
	struct hspmd_budget_rule *r = find(b, rule);
	if (!r) {
		if (hspmd_array_grow(&b->rules, &b->capacity, (size_t)b->count, sizeof *b->rules))
			return -1;
		r = &b->rules[b->count++];
		*r = (struct hspmd_budget_rule){ 0 };
		snprintf(r->name, sizeof r->name, "%s", name_of(rule));
	}
	int at = (int)(day % HSPMD_BUDGET_DAYS);
	if (r->day[at] != day) {
		r->day[at] = day;
		r->node_s[at] = 0;
	}
	r->node_s[at] += node_s;
	return 0;
}

int hspmd_budget_add(struct hspmd_budget *b, const char *rule, double now_s, double node_s)
{
	return node_s > 0 ? add_on(b, rule, (int64_t)(now_s / DAY_S), node_s) : 0;
}

double hspmd_budget_spent_hours(const struct hspmd_budget *b, const char *rule, double now_s, int days)
{
	const struct hspmd_budget_rule *r = find(b, rule);
	int64_t today = (int64_t)(now_s / DAY_S);
	double node_s = 0;
	for (int i = 0; r && i < HSPMD_BUDGET_DAYS; i++)
		if (r->day[i] <= today && r->day[i] > today - days)
			node_s += r->node_s[i];
	return node_s / 3600;
}

json_t *hspmd_budget_to_json(const struct hspmd_budget *b)
{
	json_t *rules = json_object(), *out = json_pack("{s:s, s:o}", "format", HSPMD_BUDGET_FORMAT, "rules", rules);
	for (int i = 0; out && i < b->count; i++) {
		const struct hspmd_budget_rule *r = &b->rules[i];
		json_t *days = json_object();
		json_object_set_new(rules, r->name, days);
		for (int d = 0; d < HSPMD_BUDGET_DAYS; d++) {
			char day[24];
			snprintf(day, sizeof day, "%lld", (long long)r->day[d]);
			if (r->node_s[d] > 0 && json_object_set_new(days, day, json_real(r->node_s[d]))) {
				json_decref(out);
				return NULL;
			}
		}
	}
	return out;
}

static int read_rule(struct hspmd_budget *b, const char *name, json_t *days, struct hspmd_error *err)
{
	const char *key;
	json_t *value;
	if (!json_is_object(days) || strlen(name) > HSPMD_POLICY_NAME_MAX)
		return hspmd_fail(err, "rules.%.64s: expected a rule's name and an object", name);
	json_object_foreach(days, key, value) {
		char *end;
		long long day = strtoll(key, &end, 10);
		double node_s = json_number_value(value);
		if (*end || day <= 0 || day > 1000000 || !json_is_number(value) || !(node_s >= 0) || !(node_s < 1e15))
			return hspmd_fail(err, "rules.%s.%.24s: expected a day and its node seconds", name, key);
		if (add_on(b, *name ? name : NULL, day, node_s))
			return hspmd_fail_memory(err, "reading a budget");
	}
	return 0;
}

int hspmd_budget_from_json(struct hspmd_budget *b, const json_t *value, struct hspmd_error *err)
{
	const char *format = json_string_value(json_object_get(value, "format")), *name;
	json_t *rules = json_object_get(value, "rules"), *days;
	int rc = 0;
	*b = (struct hspmd_budget){ 0 };
	if (!format || strcmp(format, HSPMD_BUDGET_FORMAT) != 0 || !json_is_object(rules))
		return hspmd_fail(err, "expected the format " HSPMD_BUDGET_FORMAT);
	json_object_foreach(rules, name, days)
		if (!rc)
			rc = read_rule(b, name, days, err);
	if (rc)
		hspmd_budget_clear(b);
	return rc;
}
