/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/match.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "common/format/week_times.h"

static void join(const struct hspmd_policy_list *l, char *buf, size_t size)
{
	size_t n = 0;
	buf[0] = '\0';
	for (int i = 0; i < l->count && n < size; i++)
		n += (size_t)snprintf(buf + n, size - n, "%s%s", i ? ", " : "", l->items[i]);
}

static enum hspmd_match_result fit_one(const struct hspmd_policy_list *l, const char *what, const char *value, char *why, size_t size)
{
	char list[256];
	if (!l->count)
		return HSPMD_MATCH_YES;
	for (int i = 0; i < l->count; i++)
		if (!strcmp(l->items[i], "*") || (value && !fnmatch(l->items[i], value, 0)))
			return HSPMD_MATCH_YES;
	join(l, list, sizeof list);
	if (!value) {
		snprintf(why, size, "%s is not known yet (the rule is for %s)", what, list);
		return HSPMD_MATCH_MAYBE;
	}
	snprintf(why, size, "%s \"%s\" is not one of: %s", what, value, list);
	return HSPMD_MATCH_NO;
}

int hspmd_policy_when(double unix_s)
{
	return 1 + hspmd_week_minute((time_t)unix_s);
}

static enum hspmd_match_result fit_times(const struct hspmd_policy_list *l, int week_minute, char *why, size_t size)
{
	char list[256];
	for (int i = 0; i < l->count && week_minute; i++)
		if (hspmd_week_times_include(l->items[i], week_minute - 1))
			return HSPMD_MATCH_YES;
	if (!l->count)
		return HSPMD_MATCH_YES;
	join(l, list, sizeof list);
	snprintf(why, size, "%s (the rule is for %s)", week_minute ? "it is not the time" : "the time is not known", list);
	return week_minute ? HSPMD_MATCH_NO : HSPMD_MATCH_MAYBE;
}

enum hspmd_match_result hspmd_policy_match_rule(const struct hspmd_policy_rule *r, const struct hspmd_policy_subject *subject, char *why,
                                                size_t size)
{
	const struct hspmd_policy_match *m = &r->match;
	const struct {
		const struct hspmd_policy_list *list;
		const char *what, *value;
	} parts[] = { { &m->partition, "partition", subject->partition },
		      { &m->account, "account", subject->account },
		      { &m->user, "user", subject->user },
		      { &m->qos, "QOS", subject->qos } };
	const char *asked = subject->policy ? subject->policy : "default";
	enum hspmd_match_result worst = HSPMD_MATCH_YES;
	if (!why)
		size = 0;
	if (m->policy.count) {
		if (fit_one(&m->policy, "policy", asked, why, size) != HSPMD_MATCH_YES)
			return HSPMD_MATCH_NO;
	} else if (strcmp(asked, "default") != 0 && strcmp(asked, r->name) != 0) {
		snprintf(why, size, "policy \"%s\" was asked for", asked);
		return HSPMD_MATCH_NO;
	}
	for (size_t i = 0; i <= sizeof parts / sizeof *parts; i++) {
		char text[600];
		enum hspmd_match_result f = i < sizeof parts / sizeof *parts
		                                    ? fit_one(parts[i].list, parts[i].what, parts[i].value, text, sizeof text)
		                                    : fit_times(&m->times, subject->week_minute, text, sizeof text);
		if (f < worst) {
			worst = f;
			snprintf(why, size, "%s", text);
		}
	}
	return worst;
}

/* Fails: the user named a policy, and no rule of that name matches the job. */
static int refuse_name(const struct hspmd_policy *p, const struct hspmd_policy_subject *subject, struct hspmd_error *err)
{
	char text[700];
	size_t n = 0;
	for (int i = 0; i < p->rule_count; i++) {
		const struct hspmd_policy_rule *r = &p->rules[i];
		if (strcmp(r->name, subject->policy) != 0)
			continue;
		hspmd_policy_match_rule(r, subject, text, sizeof text);
		return hspmd_fail(err, "policy %s (%s) is not for this job: %s", r->name, p->files[r->file], text);
	}
	text[0] = '\0';
	for (int i = 0; i < p->rule_count && n < sizeof text; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i ? ", " : "", p->rules[i].name);
	return hspmd_fail(err, "there is no policy \"%s\"; the site has: %s", subject->policy, p->rule_count ? text : "none");
}

int hspmd_policy_candidates(const struct hspmd_policy *p, const struct hspmd_policy_subject *subject, int *rules, int max,
                            struct hspmd_error *err)
{
	int n = 0;
	for (int i = 0; i < p->rule_count && n < max; i++) {
		enum hspmd_match_result f = hspmd_policy_match_rule(&p->rules[i], subject, NULL, 0);
		if (f != HSPMD_MATCH_NO)
			rules[n++] = i;
		if (f == HSPMD_MATCH_YES)
			return n;
	}
	bool named = subject->policy && strcmp(subject->policy, "default") != 0;
	if (named && n == 0)
		return refuse_name(p, subject, err);
	if (!named && n < max)
		rules[n++] = HSPMD_POLICY_NO_RULE;
	return n;
}

int hspmd_policy_decide_rule(const struct hspmd_policy *p, const struct hspmd_policy_subject *subject, int *rule, struct hspmd_error *err)
{
	return hspmd_policy_candidates(p, subject, rule, 1, err) < 0 ? -1 : 0;
}
