/* SPDX-License-Identifier: Apache-2.0 */
/* After a repaired plan: as soon as a generation of one is on its way, a better plan is searched for, beside preparing, starting and
 * training. Once the generation trains, a plan that pays off replaces it by a planned change; by the rule for all changes without which a
 * job would go on (change_pays_off). Any other change ends the search: its own plan is searched for, from what is there then. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/core/controller_internal.h"

#define STEPS_LEAST 2 /* of the generation, before it is decided: the first step says little of how long the others take */

/* The repaired plan that is in use, or that will be; NULL: there is none, or something else will follow it. */
static struct bound_plan *repaired(const struct hspmd_controller *m)
{
	struct bound_plan *l = m->next.bound_plan ? m->next.bound_plan : m->current.bound_plan;
	bool ends = m->end != END_NONE || m->shutting_down || m->current.finished;
	bool runs = m->next.bound_plan || m->current.phase == PHASE_STARTING || m->current.phase == PHASE_TRAINING;
	return l && l->behind > 0 && runs && !ends && !m->adopt && !m->change.wanted && m->next.phase != PHASE_SOLVING ? l : NULL;
}

void better_plan_forget(struct hspmd_controller *m)
{
	struct better_plan *b = &m->better_plan;
	if (b->solve)
		emit(m, ACTION_CANCEL_SOLVE, NULL, NULL, b->solve);
	json_decref(b->answer);
	memset(b, 0, sizeof *b);
}

/* It stays; a later incarnation need not search again. */
static void keep(struct hspmd_controller *m, struct bound_plan *l, const char *why)
{
	snprintf(l->found, sizeof l->found, "the repaired plan stays: %.200s", why);
	note_event(m, "better_plan", "%s", l->found);
	better_plan_forget(m);
	l->behind = 0;
	if (l == m->current.bound_plan)
		journal(m);
}

static void search(struct hspmd_controller *m, struct bound_plan *l)
{
	struct hspmd_error err;
	json_t *cluster = usable_cluster(m, &err);
	if (!cluster) {
		keep(m, l, err.text);
		return;
	}
	m->better_plan = (struct better_plan){ .solve = solve_ask(m, cluster, l, false),
		                               .generation = l->generation,
		                               .since = m->now,
		                               .deadline = m->now + m->config->timeouts.solve };
}

static void decide(struct hspmd_controller *m, struct bound_plan *l)
{
	struct hspmd_error err = { "" };
	json_t *answer = m->better_plan.answer, *plan = json_object_get(answer, "plan");
	struct bound_plan *better = NULL;
	if (!plan || plans_same_work(plan, l->plan_json))
		hspmd_fail(&err, "no other was found");
	else
		better = bound_plan_create(m, json_object_get(answer, "cluster"), plan, "plan", &err);
	if (better && !bound_plan_agents_up(better)) { /* a node was lost that is not in use */
		better_plan_forget(m);
	} else if (better &&
	           change_pays_off(m, json_number_value(json_object_get(answer, "current_step_s")), better->plan->predicted.step_s, &err)) {
		l->behind = 0;
		snprintf(l->found, sizeof l->found, "a better one, which replaces it");
		better_plan_forget(m);
		change_open(m, "better-plan");
		next_begin(m, bound_plan_ref(better));
	} else {
		keep(m, l, err.text);
	}
	bound_plan_unref(better);
}

bool advance_better_plan(struct hspmd_controller *m)
{
	struct better_plan *b = &m->better_plan;
	struct bound_plan *l = repaired(m);
	if ((b->solve || b->answer) && (!l || l->generation != b->generation)) {
		better_plan_forget(m);
		return true;
	}
	if (!l)
		return false;
	if (b->solve && m->now >= b->deadline) {
		keep(m, l, "the solver did not answer in time");
		return true;
	}
	if (!b->solve && !b->answer) {
		search(m, l);
		return true;
	}
	if (!b->answer || !is_steady(m) || m->recent_count < STEPS_LEAST)
		return false;
	decide(m, l);
	return true;
}

void on_better_plan(struct hspmd_controller *m, const struct run_event *e)
{
	struct better_plan *b = &m->better_plan;
	if (!b->solve || e->id != b->solve)
		return;
	b->solve = 0;
	b->answer = check_alloc(m, e->value ? json_incref(e->value) : json_object());
}

double better_plan_deadline(const struct hspmd_controller *m)
{
	return m->better_plan.solve ? m->better_plan.deadline : INFINITY;
}

json_t *better_plan_status(const struct hspmd_controller *m, double now)
{
	const struct better_plan *b = &m->better_plan;
	const struct bound_plan *l = m->current.bound_plan;
	if (!l || !(l->behind > 0 || l->found[0])) /* it was not repaired */
		return NULL;
	bool its = b->generation == l->generation;
	if (b->solve && its)
		return json_pack("{s:s, s:f, s:o}", "search", "running", "for_s", now - b->since, "text",
		                 json_sprintf("after a loss; a search for a better plan runs, for %.0f s so far", now - b->since));
	if (b->answer && its)
		return json_pack("{s:s, s:s}", "search", "answered", "text",
		                 "after a loss; a search has ended, and is decided on after some steps");
	if (!l->found[0])
		return json_pack("{s:s, s:s}", "search", "none", "text",
		                 "after a loss; a better plan is searched for after the change under way");
	return json_pack("{s:s, s:s, s:o}", "search", "ended", "found", l->found, "text",
	                 json_sprintf("after a loss; a search has ended: %s", l->found));
}
