/* SPDX-License-Identifier: Apache-2.0 */
#include "policies/shadow.h"

#include <fnmatch.h>
#include <stdbool.h>
#include <string.h>

/* Whether a pattern matches everything that another matches. False if that cannot be told. */
static bool pattern_covers(const char *pattern, const char *other)
{
	size_t prefix = strcspn(pattern, "*?[\\");
	if (!strcmp(pattern, other))
		return true;
	if (!other[strcspn(other, "*?[\\")])
		return !fnmatch(pattern, other, 0);
	return !strcmp(pattern + prefix, "*") && !strncmp(pattern, other, prefix) && strcspn(other, "*?[\\") >= prefix;
}

static bool list_covers_word(const struct hspmd_policy_list *l, const char *word)
{
	for (int i = 0; i < l->count; i++)
		if (pattern_covers(l->items[i], word))
			return true;
	return false;
}

static bool list_covers(const struct hspmd_policy_list *l, const struct hspmd_policy_list *other)
{
	if (!l->count || list_covers_word(l, "*"))
		return true;
	for (int i = 0; i < other->count; i++)
		if (!list_covers_word(l, other->items[i]))
			return false;
	return other->count > 0;
}

/* Two rules whose times differ are not compared further. */
static bool times_cover(const struct hspmd_policy_list *l, const struct hspmd_policy_list *other)
{
	bool same = l->count == other->count;
	for (int i = 0; i < l->count && same; i++)
		same = !strcmp(l->items[i], other->items[i]);
	return !l->count || same;
}

/* Whether an earlier rule takes the jobs of another that ask for the policy `word`. */
static bool takes(const struct hspmd_policy_rule *r, const struct hspmd_policy_rule *other, const char *word)
{
	const struct hspmd_policy_match *m = &r->match, *o = &other->match;
	bool named = m->policy.count ? list_covers_word(&m->policy, word) : !strcmp(word, "default") || !strcmp(word, r->name);
	return named && list_covers(&m->partition, &o->partition) && list_covers(&m->account, &o->account) &&
	       list_covers(&m->user, &o->user) && list_covers(&m->qos, &o->qos) && times_cover(&m->times, &o->times);
}

static bool taken_earlier(const struct hspmd_policy *p, int rule, const char *word, int *by)
{
	for (int i = 0; i < rule; i++)
		if (takes(&p->rules[i], &p->rules[rule], word)) {
			*by = i;
			return true;
		}
	return false;
}

enum hspmd_policy_shadow hspmd_policy_find_shadow(const struct hspmd_policy *p, int rule, int *by)
{
	const struct hspmd_policy_rule *r = &p->rules[rule];
	const char *implied[] = { "default", r->name };
	int count = r->match.policy.count ? r->match.policy.count : 2, taken = 0, first = 0;
	bool by_default = false;
	for (int i = 0; i < count; i++) {
		const char *word = r->match.policy.count ? r->match.policy.items[i] : implied[i];
		if (!taken_earlier(p, rule, word, &first))
			continue;
		if (!taken++ || !strcmp(word, "default"))
			*by = first;
		by_default |= !strcmp(word, "default");
	}
	return taken == count ? HSPMD_POLICY_UNREACHED : by_default ? HSPMD_POLICY_BY_NAME_ONLY : HSPMD_POLICY_REACHED;
}
