/* SPDX-License-Identifier: Apache-2.0 */
/* What changes the terms of a simulated job while it runs: the time of the week, its owner's fairshare, its rule's budget. */
#include <math.h>
#include <string.h>

#include "common/format/week_times.h"
#include "policies/sim_internal.h"

#define HALF_LIFE_S (7 * 86400.0) /* PriorityDecayHalfLife of Slurm, if slurm.conf does not give it */
#define BUDGET_LOOK_S 600.0       /* how often a budget that is being used is looked at */

double sim_unix_time(const struct sim *s)
{
	return s->trace->began_s + s->now_s;
}

static int week_minute(const struct sim *s, double at_s)
{
	return s->trace->began_s > 0 ? hspmd_week_minute((time_t)(s->trace->began_s + at_s))
	                             : (int)fmod(at_s / 60, HSPMD_WEEK_MINUTES); /* from a Monday */
}

static const char *text(const char *name)
{
	return name ? name : "";
}

struct hspmd_policy_subject sim_subject(const struct sim *s, const struct sim_job *j)
{
	return (struct hspmd_policy_subject){ text(j->t->user), text(j->t->account), j->t->partition,
		                              text(j->t->qos),  j->t->policy,        1 + week_minute(s, s->now_s) };
}

/* ---- times */

static bool any_differs(const struct hspmd_policy *p, int minute, int other)
{
	for (int i = 0; i < p->rule_count; i++)
		for (int k = 0; k < p->rules[i].match.times.count; k++)
			if (hspmd_week_times_include(p->rules[i].match.times.items[k], minute) !=
			    hspmd_week_times_include(p->rules[i].match.times.items[k], other))
				return true;
	return false;
}

/* Returns the second at which the times of some rule begin or end next; INFINITY: none has any. */
static double next_change(const struct sim *s)
{
	double minute_s = 60 * floor((sim_unix_time(s)) / 60) - s->trace->began_s;
	int now = week_minute(s, s->now_s);
	for (int m = 1; m <= HSPMD_WEEK_MINUTES; m++)
		if (any_differs(s->policy, now, week_minute(s, minute_s + 60.0 * m)))
			return minute_s + 60.0 * m;
	return INFINITY;
}

void sim_refresh_terms(struct sim *s)
{
	if (s->now_s < s->terms_until_s)
		return;
	s->terms_until_s = next_change(s);
	for (int i = 0; i < s->job_count; i++) {
		struct sim_job *j = &s->jobs[i];
		struct hspmd_policy_subject subject = sim_subject(s, j);
		if (!j->t->elastic)
			continue;
		if (hspmd_policy_decide_rule(s->policy, &subject, &j->rule, NULL) < 0)
			j->rule = HSPMD_POLICY_NO_RULE; /* as hspmdctld: the rule that it asked for is not for this time */
		j->terms = hspmd_policy_effective(s->policy, j->rule);
	}
}

/* ---- fairshare: 2^(-usage / share), with equal shares, as Slurm's classic formula */

void sim_set_owner(struct sim *s, int job)
{
	struct sim_job *j = &s->jobs[job];
	const char *user = text(j->t->user), *account = text(j->t->account);
	int at = 0;
	while (at < s->owner_count && (strcmp(s->owners[at].user, user) != 0 || strcmp(s->owners[at].account, account) != 0))
		at++;
	if (at == s->owner_count)
		s->owners[s->owner_count++] = (struct sim_owner){ .user = user, .account = account };
	j->owner = at;
}

double sim_weight(const struct sim *s, const struct sim_job *j)
{
	double all = 0;
	if (j->terms.weight != HSPMD_POLICY_FAIRSHARE)
		return j->terms.weight;
	for (int i = 0; i < s->owner_count; i++)
		all += s->owners[i].used_node_s;
	return all > 0 ? fmax(HSPMD_FAIRSHARE_LEAST, exp2(-s->owners[j->owner].used_node_s / all * s->owner_count)) : 1;
}

/* ---- use */

const char *sim_rule_name(const struct sim *s, const struct sim_job *j)
{
	return j->rule < 0 ? NULL : s->policy->rules[j->rule].name;
}

int sim_use(struct sim *s, double dt)
{
	double kept = exp2(-dt / HALF_LIFE_S);
	int rc = 0;
	for (int i = 0; i < s->owner_count; i++)
		s->owners[i].used_node_s *= kept;
	for (int i = 0; i < s->job_count; i++) {
		struct sim_job *j = &s->jobs[i];
		if (j->state != SIM_RUNNING)
			continue;
		s->owners[j->owner].used_node_s += dt * j->held;
		if (j->t->elastic && isfinite(j->terms.budget_node_hours))
			rc |= hspmd_budget_add(&s->budget, sim_rule_name(s, j), sim_unix_time(s), dt * (j->held - j->fewest));
	}
	return rc;
}

double sim_terms_wakeup(const struct sim *s)
{
	double wake = s->terms_until_s;
	for (int i = 0; i < s->job_count; i++) {
		const struct sim_job *j = &s->jobs[i];
		if (j->state == SIM_RUNNING && j->t->elastic && isfinite(j->terms.budget_node_hours))
			wake = fmin(wake, s->now_s + BUDGET_LOOK_S);
	}
	return wake;
}
