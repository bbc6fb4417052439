/* SPDX-License-Identifier: Apache-2.0 */
/* The snapshot of the simulated cluster for the engine, and the execution of the engine's actions. */
#include <math.h>

#include "policies/sim_internal.h"

/* Returns the job for which the node is reserved: as long as the job runs, and for a limited time. */
static uint32_t reserved_for(const struct sim *s, const struct sim_node *n)
{
	bool kept = n->reserved_for >= 0 && s->jobs[n->reserved_for].state == SIM_RUNNING && s->now_s - n->since_s < HSPMD_STALE_PENDING_S;
	return kept ? s->jobs[n->reserved_for].t->id : 0;
}

static enum hspmd_snapshot_state state_of(const struct sim *s, const struct sim_node *n)
{
	if (!n->up)
		return HSPMD_SNAPSHOT_DOWN;
	if (n->job == SIM_IDLE)
		return HSPMD_SNAPSHOT_IDLE;
	return n->job == SIM_DRAINING || s->jobs[n->job].t->elastic ? HSPMD_SNAPSHOT_HELD : HSPMD_SNAPSHOT_BUSY;
}

static void snapshot_nodes(struct sim *s)
{
	for (int c = 0; c < s->class_count; c++) {
		const struct sim_class *k = &s->classes[c];
		s->snapshot_classes[c] =
		        (struct hspmd_snapshot_class){ .type = k->type,
			                               .devices = k->devices,
			                               .price_per_hour = k->price_per_hour,
			                               .losses_per_s = k->losses && k->up_node_s > 0 ? k->losses / k->up_node_s : 0 };
	}
	for (int i = 0; i < s->node_count; i++) {
		const struct sim_node *n = &s->nodes[i];
		bool elastic = n->job >= 0 && s->jobs[n->job].t->elastic;
		s->snapshot_nodes[i] = (struct hspmd_snapshot_node){
			.name = s->trace->nodes[i],
			.class = n->class < 0 ? 0 : n->class,
			.state = state_of(s, n),
			.holder = elastic ? s->job_snapshot[n->job] : -1,
			.since_s = n->since_s,
			.free_s = n->job >= 0 ? s->jobs[n->job].ends_s : INFINITY,
			.reserved_for = reserved_for(s, n),
			.leaving = isfinite(n->leaves_s),
			.held_since_s = n->held_since_s,
		};
	}
}

static int snapshot_jobs(struct sim *s)
{
	int elastic = 0;
	for (int i = 0; i < s->job_count; i++) {
		struct sim_job *j = &s->jobs[i];
		if (!j->t->elastic || j->state != SIM_RUNNING)
			continue;
		s->job_snapshot[i] = elastic;
		s->snapshot_job[elastic] = i;
		s->snapshot_elastic[elastic++] = (struct hspmd_snapshot_elastic){
			.id = j->t->id,
			.rule = j->rule,
			.terms = j->terms,
			.min_nodes = j->t->min_nodes,
			.max_nodes = j->t->max_nodes,
			.priority = j->t->priority,
			.curve_count = j->t->curve_count,
			.tokens_per_s = j->t->tokens_per_s,
			.pause_s = j->t->pause_s,
			.resized_s = j->resized_s == j->start_s ? -INFINITY : j->resized_s,
			.remaining_s = j->ends_s - s->now_s,
			.reachable = true,
			.declined_grow_until_s = -INFINITY,
			.wait_until_s = -INFINITY, /* a job that ends leaves its nodes at once */
			.usable = j->usable,
			.fewest_nodes = j->fewest,
			.spent_node_hours =
			        hspmd_budget_spent_hours(&s->budget, sim_rule_name(s, j), sim_unix_time(s), j->terms.budget_days),
		};
		s->snapshot_elastic[elastic - 1].terms.weight = sim_weight(s, j);
	}
	for (int i = 0; i < s->waiting; i++) {
		const struct sim_job *j = &s->jobs[s->queue[i]];
		s->snapshot_pending[i] = (struct hspmd_snapshot_pending){ .id = j->t->id,
			                                                  .nodes = j->t->nodes,
			                                                  .run_s = j->t->elastic ? INFINITY : j->t->run_s,
			                                                  .priority = j->t->priority,
			                                                  .preempts = !j->t->elastic,
			                                                  .eligible_since_s = j->eligible_since_s,
			                                                  .usable = j->usable };
	}
	return elastic;
}

static void apply(struct sim *s, const struct hspmd_resize_action *a)
{
	int job = s->snapshot_job[a->job];
	sim_progress(s, &s->jobs[job]);
	for (int i = 0; i < a->node_count; i++) {
		if (a->kind == HSPMD_RESIZE_GROW) {
			sim_add_node(s, job, a->nodes[i]);
			s->nodes[a->nodes[i]].held_since_s = s->now_s;
		} else {
			sim_release_node(s, job, a->nodes[i]);
			s->nodes[a->nodes[i]].reserved_for = a->for_job < 0 ? -1 : s->snapshot_job[a->for_job];
		}
	}
	sim_pause(s, job);
	bool grow = a->kind == HSPMD_RESIZE_GROW;
	*(grow ? &s->result->grows : &s->result->shrinks) += 1;
	*(grow ? &s->result->nodes_grown : &s->result->nodes_given) += a->node_count;
}

int sim_decide(struct sim *s, struct hspmd_error *err)
{
	struct hspmd_decision d;
	sim_refresh_terms(s);
	int elastic = snapshot_jobs(s);
	if (!elastic)
		return 0;
	snapshot_nodes(s);
	struct hspmd_snapshot site = { .now_s = s->now_s,
		                       .type_count = s->type_count,
		                       .class_count = s->class_count,
		                       .node_count = s->node_count,
		                       .pending_count = s->waiting,
		                       .elastic_count = elastic,
		                       .types = s->types,
		                       .classes = s->snapshot_classes,
		                       .nodes = s->snapshot_nodes,
		                       .pending = s->snapshot_pending,
		                       .elastic = s->snapshot_elastic };
	int rc = hspmd_policy_decide(&site, &d, err);
	s->result->decisions++;
	for (int i = 0; rc == 0 && i < s->waiting; i++)
		s->jobs[s->queue[i]].eligible_since_s = d.eligible_since_s[i];
	for (int i = 0; rc == 0 && i < d.count; i++)
		apply(s, &d.actions[i]);
	hspmd_decision_clear(&d);
	return rc;
}

static void sooner(const struct sim *s, double at, double *wake)
{
	if (at > s->now_s && at < *wake)
		*wake = at;
}

double sim_next_wakeup(const struct sim *s)
{
	double wake = sim_terms_wakeup(s);
	for (int i = 0; i < s->waiting; i++) {
		sooner(s, s->jobs[s->queue[i]].eligible_since_s + HSPMD_STALE_PENDING_S, &wake);
		sooner(s, s->jobs[s->queue[i]].queued_s + s->options.preempt_s, &wake);
	}
	for (int i = 0; i < s->job_count; i++) {
		const struct sim_job *j = &s->jobs[i];
		if (!j->t->elastic || j->state != SIM_RUNNING)
			continue;
		sooner(s, j->resized_s + j->terms.grow_cooldown_s, &wake);
		sooner(s, j->resized_s + j->terms.shrink_cooldown_s, &wake);
		for (int n = 0; n < s->node_count && j->terms.min_life_s > 0; n++)
			if (s->nodes[n].job == i && s->nodes[n].held_since_s > 0)
				sooner(s, s->nodes[n].held_since_s + j->terms.min_life_s, &wake);
		double youngest = s->now_s - j->terms.after_idle_s;
		for (int n = 0; n < s->node_count && j->terms.into_idle; n++)
			if (s->nodes[n].up && s->nodes[n].job == SIM_IDLE && s->nodes[n].since_s > youngest)
				sooner(s, s->nodes[n].since_s + j->terms.after_idle_s, &wake);
	}
	return wake + 1e-6; /* so that a condition "for at least so long" holds in spite of rounding */
}
