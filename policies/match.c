/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/match.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

static void join(const struct hspmd_policy_list *l, char *buf, size_t size)
{
	size_t n = 0;
	buf[0] = '\0';
	for (int i = 0; i < l->count && n < size; i++)
		n += (size_t)snprintf(buf + n, size - n, "%s%s", i ? ", " : "", l->items[i]);
}

static enum hspmd_fit fit_one(const struct hspmd_policy_list *l, const char *what, const char *value, char *why, size_t size)
{
	char list[256];
	if (!l->count)
		return HSPMD_FIT_YES;
	for (int i = 0; i < l->count; i++)
		if (!strcmp(l->items[i], "*") || (value && !fnmatch(l->items[i], value, 0)))
			return HSPMD_FIT_YES;
	join(l, list, sizeof list);
	if (!value) {
		snprintf(why, size, "%s is not known yet (the rule is for %s)", what, list);
		return HSPMD_FIT_MAYBE;
	}
	snprintf(why, size, "%s \"%s\" is not one of: %s", what, value, list);
	return HSPMD_FIT_NO;
}

enum hspmd_fit hspmd_policy_fit(const struct hspmd_policy_rule *r, const struct hspmd_policy_who *who, char *why, size_t size)
{
	const struct hspmd_policy_match *m = &r->match;
	const struct {
		const struct hspmd_policy_list *list;
		const char *what, *value;
	} parts[] = { { &m->partition, "partition", who->partition },
		      { &m->account, "account", who->account },
		      { &m->user, "user", who->user },
		      { &m->qos, "QOS", who->qos } };
	const char *asked = who->policy ? who->policy : "default";
	enum hspmd_fit worst = HSPMD_FIT_YES;
	if (!why)
		size = 0;
	if (m->policy.count) {
		if (fit_one(&m->policy, "policy", asked, why, size) != HSPMD_FIT_YES)
			return HSPMD_FIT_NO;
	} else if (strcmp(asked, "default") != 0 && strcmp(asked, r->name) != 0) {
		snprintf(why, size, "policy \"%s\" was asked for", asked);
		return HSPMD_FIT_NO;
	}
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		char text[600];
		enum hspmd_fit f = fit_one(parts[i].list, parts[i].what, parts[i].value, text, sizeof text);
		if (f < worst) {
			worst = f;
			snprintf(why, size, "%s", text);
		}
	}
	return worst;
}

/* The user named a policy and no rule that goes by it is his. */
static int refuse_name(const struct hspmd_policy *p, const struct hspmd_policy_who *who, struct hspmd_error *err)
{
	char text[700];
	size_t n = 0;
	for (int i = 0; i < p->rule_count; i++) {
		const struct hspmd_policy_rule *r = &p->rules[i];
		if (strcmp(r->name, who->policy) != 0)
			continue;
		hspmd_policy_fit(r, who, text, sizeof text);
		return hspmd_fail(err, "policy %s (%s) is not for this job: %s", r->name, p->files[r->file], text);
	}
	text[0] = '\0';
	for (int i = 0; i < p->rule_count && n < sizeof text; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i ? ", " : "", p->rules[i].name);
	return hspmd_fail(err, "there is no policy \"%s\"; the site has: %s", who->policy, p->rule_count ? text : "none");
}

int hspmd_policy_candidates(const struct hspmd_policy *p, const struct hspmd_policy_who *who, int *rules, int max, struct hspmd_error *err)
{
	int n = 0;
	for (int i = 0; i < p->rule_count && n < max; i++) {
		enum hspmd_fit f = hspmd_policy_fit(&p->rules[i], who, NULL, 0);
		if (f != HSPMD_FIT_NO)
			rules[n++] = i;
		if (f == HSPMD_FIT_YES)
			return n;
	}
	bool named = who->policy && strcmp(who->policy, "default") != 0;
	if (named && n == 0)
		return refuse_name(p, who, err);
	if (!named && n < max)
		rules[n++] = HSPMD_POLICY_NO_RULE;
	return n;
}

int hspmd_policy_decide_rule(const struct hspmd_policy *p, const struct hspmd_policy_who *who, int *rule, struct hspmd_error *err)
{
	return hspmd_policy_candidates(p, who, rule, 1, err) < 0 ? -1 : 0;
}
