/* SPDX-License-Identifier: Apache-2.0 */
/* Node hours that the jobs of each rule have used, by days, for budgets (grow.budget_node_hours). Pure: the caller passes Unix times. */
#ifndef HSPMD_POLICIES_BUDGET_H
#define HSPMD_POLICIES_BUDGET_H

#include <jansson.h>

#include "common/error.h"
#include "common/format/policy.h"

#define HSPMD_BUDGET_FORMAT "hspmd-budget-1"
#define HSPMD_BUDGET_DAYS 366 /* for which hours are kept */

struct hspmd_budget_rule {
	char name[HSPMD_POLICY_NAME_MAX + 1];
	int64_t day[HSPMD_BUDGET_DAYS]; /* since 1970, in UTC; each day has its place, by its remainder */
	double node_s[HSPMD_BUDGET_DAYS];
};

struct hspmd_budget {
	int count;
	size_t capacity;
	struct hspmd_budget_rule *rules;
};

void hspmd_budget_clear(struct hspmd_budget *b);
/* Adds node seconds that jobs of a rule (NULL: of none, by the defaults) have used by now. Returns 0, or -1: out of memory. */
int hspmd_budget_add(struct hspmd_budget *b, const char *rule, double now_s, double node_s);
/* Returns the node hours of the last `days` days, today among them. */
double hspmd_budget_spent_hours(const struct hspmd_budget *b, const char *rule, double now_s, int days);
/* As a document, { format, rules: { NAME: { "DAY": node seconds } } }; a new reference, NULL: out of memory. */
json_t *hspmd_budget_to_json(const struct hspmd_budget *b);
/* Reads such a document into an empty budget. Returns 0, or -1 and err; the budget is then empty. */
int hspmd_budget_from_json(struct hspmd_budget *b, const json_t *value, struct hspmd_error *err);

#endif
