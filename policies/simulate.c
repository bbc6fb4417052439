/* SPDX-License-Identifier: Apache-2.0 */
/* The main loop: advance to the next event, let simulated Slurm schedule, let the engine decide. */
#include "policies/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "policies/match.h"
#include "policies/sim_internal.h"

const char *const hspmd_policy_sim_mode_names[] = { "policy", "without", "preempt", NULL };
const struct hspmd_policy_sim_options hspmd_policy_sim_defaults = {
	.mode = HSPMD_POLICY_SIM_POLICY, .leave_s = 2, .preempt_s = 1, .checkpoint_s = 1800, .local_s = 60
};

/* ---- setting up */

static int type_number(struct sim *s, const char *name)
{
	for (int i = 0; i < s->type_count; i++)
		if (!strcmp(s->types[i], name ? name : ""))
			return i;
	s->types[s->type_count] = name ? name : "";
	return s->type_count++;
}

static int class_number(struct sim *s, const struct hspmd_trace_event *e)
{
	int type = type_number(s, e->device_type), c = 0;
	for (; c < s->class_count; c++) {
		const struct sim_class *k = &s->classes[c];
		if (k->partition == e->partition && k->type == type && k->devices == e->devices && k->price_per_hour == e->price_per_hour)
			return c;
	}
	s->classes[c] =
	        (struct sim_class){ .partition = e->partition, .type = type, .devices = e->devices, .price_per_hour = e->price_per_hour };
	return s->class_count++;
}

static int partition_number(const struct hspmd_trace *t, const char *name)
{
	int p = 0;
	while (p < t->partition_count && strcmp(t->partitions[p], name) != 0)
		p++;
	return p;
}

static int make_job(struct sim *s, int job, struct hspmd_error *err)
{
	struct sim_job *j = &s->jobs[job];
	j->t = &s->trace->jobs[job];
	j->partition = partition_number(s->trace, j->t->partition);
	sim_set_owner(s, job);
	j->ends_s = INFINITY;
	j->eligible_since_s = NAN;
	j->usable = hspmd_calloc((size_t)s->class_count, 1);
	if (!j->usable)
		return hspmd_fail_memory(err, "simulating");
	for (int c = 0; c < s->class_count; c++)
		j->usable[c] = sim_fits(s, j, c);
	if (!j->t->elastic)
		return 0;
	struct hspmd_policy_subject subject = sim_subject(s, j);
	if (hspmd_policy_decide_rule(s->policy, &subject, &j->rule, err) < 0)
		return hspmd_error_prefix(err, "job %u", j->t->id);
	j->terms = hspmd_policy_effective(s->policy, j->rule);
	return 0;
}

static int allocate(struct sim *s, struct hspmd_error *err)
{
	size_t nodes = (size_t)s->node_count, jobs = (size_t)s->job_count, events = (size_t)s->trace->event_count + 1;
	s->nodes = hspmd_calloc(nodes, sizeof *s->nodes);
	s->jobs = hspmd_calloc(jobs, sizeof *s->jobs);
	s->classes = hspmd_calloc(events, sizeof *s->classes);
	s->event_class = hspmd_calloc(events, sizeof *s->event_class);
	s->types = hspmd_calloc(events, sizeof *s->types);
	s->queue = hspmd_calloc(jobs + 1, sizeof *s->queue);
	s->snapshot_classes = hspmd_calloc(events, sizeof *s->snapshot_classes);
	s->snapshot_nodes = hspmd_calloc(nodes, sizeof *s->snapshot_nodes);
	s->snapshot_pending = hspmd_calloc(jobs, sizeof *s->snapshot_pending);
	s->snapshot_elastic = hspmd_calloc(jobs, sizeof *s->snapshot_elastic);
	s->snapshot_job = hspmd_calloc(jobs, sizeof *s->snapshot_job);
	s->job_snapshot = hspmd_calloc(jobs, sizeof *s->job_snapshot);
	s->ends = hspmd_calloc(nodes, sizeof *s->ends);
	s->owners = hspmd_calloc(jobs, sizeof *s->owners);
	if (!s->nodes || !s->jobs || !s->classes || !s->event_class || !s->types || !s->queue || !s->snapshot_classes ||
	    !s->snapshot_nodes || !s->snapshot_pending || !s->snapshot_elastic || !s->snapshot_job || !s->job_snapshot || !s->ends ||
	    !s->owners)
		return hspmd_fail_memory(err, "simulating");
	return 0;
}

static int set_up(struct sim *s, struct hspmd_error *err)
{
	if (allocate(s, err) < 0)
		return -1;
	for (int i = 0; i < s->node_count; i++)
		s->nodes[i] = (struct sim_node){ .class = -1, .job = SIM_IDLE, .leaves_s = INFINITY, .reserved_for = -1 };
	for (int e = 0; e < s->trace->event_count; e++)
		s->event_class[e] = s->trace->events[e].kind == HSPMD_TRACE_ADD ? class_number(s, &s->trace->events[e]) : -1;
	for (int i = 0; i < s->job_count; i++)
		if (make_job(s, i, err) < 0)
			return -1;
	return 0;
}

static void tear_down(struct sim *s)
{
	for (int i = 0; s->jobs && i < s->job_count; i++)
		free(s->jobs[i].usable);
	free(s->nodes);
	free(s->jobs);
	free(s->classes);
	free(s->event_class);
	free(s->types);
	free(s->queue);
	free(s->snapshot_classes);
	free(s->snapshot_nodes);
	free(s->snapshot_pending);
	free(s->snapshot_elastic);
	free(s->snapshot_job);
	free(s->job_snapshot);
	free(s->ends);
	free(s->owners);
	hspmd_budget_clear(&s->budget);
}

/* ---- events */

static void happen(struct sim *s, int event)
{
	const struct hspmd_trace_event *e = &s->trace->events[event];
	if (e->kind == HSPMD_TRACE_SUBMIT) {
		sim_queue(s, e->job);
		return;
	}
	for (int i = 0; i < e->node_count; i++) {
		struct sim_node *n = &s->nodes[e->nodes[i]];
		if (e->kind == HSPMD_TRACE_REMOVE) {
			s->classes[n->class].up--;
			sim_lose_node(s, e->nodes[i]);
			continue;
		}
		*n = (struct sim_node){ .up = true,
			                .class = s->event_class[event],
			                .job = SIM_IDLE,
			                .since_s = s->now_s,
			                .leaves_s = INFINITY,
			                .reserved_for = -1 };
		s->classes[n->class].up++;
		s->up++;
	}
}

static int advance(struct sim *s, double to)
{
	double dt = to - s->now_s;
	int rc = sim_use(s, dt);
	s->result->node_s += dt * s->up;
	s->result->used_node_s += dt * s->used;
	for (int c = 0; c < s->class_count; c++)
		s->classes[c].up_node_s += dt * s->classes[c].up;
	s->now_s = to;
	return rc;
}

static double next_time(const struct sim *s, int event, double wake)
{
	double at = fmin(wake, s->trace->end_s);
	if (event < s->trace->event_count)
		at = fmin(at, s->trace->events[event].time_s);
	for (int i = 0; i < s->job_count; i++)
		if (s->jobs[i].state == SIM_RUNNING)
			at = fmin(at, s->jobs[i].ends_s);
	for (int i = 0; i < s->node_count; i++)
		at = fmin(at, s->nodes[i].leaves_s);
	return fmax(at, s->now_s);
}

static int run(struct sim *s, struct hspmd_error *err)
{
	int event = 0;
	double wake = INFINITY;
	bool policy = s->options.mode == HSPMD_POLICY_SIM_POLICY;
	while (s->now_s < s->trace->end_s || event < s->trace->event_count) {
		if (s->options.on_time)
			s->options.on_time(s->now_s, s->trace->end_s);
		if (advance(s, next_time(s, event, wake)) < 0)
			return hspmd_fail_memory(err, "simulating");
		for (int i = 0; i < s->job_count; i++)
			if (s->jobs[i].state == SIM_RUNNING && s->jobs[i].ends_s <= s->now_s)
				sim_finish(s, i);
		for (int i = 0; i < s->node_count; i++)
			if (s->nodes[i].leaves_s <= s->now_s)
				sim_free_node(s, i);
		for (; event < s->trace->event_count && s->trace->events[event].time_s <= s->now_s; event++)
			happen(s, event);
		sim_schedule(s);
		if (policy && sim_decide(s, err) < 0)
			return -1;
		wake = policy ? sim_next_wakeup(s) : INFINITY;
	}
	return 0;
}

static void sum_up(struct sim *s)
{
	struct hspmd_policy_sim_result *r = s->result;
	double rigid = 0, elastic = 0;
	r->end_s = s->trace->end_s;
	for (int i = 0; i < s->job_count; i++) {
		struct sim_job *j = &s->jobs[i];
		if (j->t->elastic && j->state == SIM_RUNNING)
			sim_progress(s, j);
		double waited = j->waited_s + (j->state == SIM_WAITING ? s->now_s - j->queued_s : 0);
		*(j->t->elastic ? &r->elastic : &r->rigid) += 1;
		*(j->t->elastic ? &elastic : &rigid) += waited;
		if (!j->t->elastic)
			r->rigid_wait_max_s = fmax(r->rigid_wait_max_s, waited);
	}
	r->rigid_wait_s = r->rigid ? rigid / r->rigid : 0;
	r->elastic_wait_s = r->elastic ? elastic / r->elastic : 0;
}

int hspmd_policy_simulate(const struct hspmd_policy *p, const struct hspmd_trace *t, const struct hspmd_policy_sim_options *options,
                          struct hspmd_policy_sim_result *result, struct hspmd_error *err)
{
	struct sim s = {
		.policy = p, .trace = t, .options = *options, .result = result, .node_count = t->node_count, .job_count = t->job_count
	};
	*result = (struct hspmd_policy_sim_result){ .mode = options->mode };
	int rc = set_up(&s, err);
	if (rc == 0)
		rc = run(&s, err);
	if (rc == 0)
		sum_up(&s);
	tear_down(&s);
	return rc;
}

json_t *hspmd_policy_sim_result_to_json(const struct hspmd_policy_sim_result *r)
{
	return json_pack("{s:s, s:f, s:f, s:f, s:f, s:{s:i, s:i, s:i, s:f, s:f}, s:{s:i, s:i, s:i, s:f}, s:i, s:i, s:i, s:i, s:i, s:i, "
	                 "s:i, s:f, s:f, s:f, s:i}",
	                 "mode", hspmd_policy_sim_mode_names[r->mode], "end_s", r->end_s, "utilisation",
	                 r->node_s > 0 ? r->used_node_s / r->node_s : 0, "nodes_used_mean", r->end_s > 0 ? r->used_node_s / r->end_s : 0,
	                 "stalled_node_s", r->stalled_node_s, "rigid", "jobs", r->rigid, "started", r->rigid_started, "done", r->rigid_done,
	                 "wait_mean_s", r->rigid_wait_s, "wait_max_s", r->rigid_wait_max_s, "elastic", "jobs", r->elastic, "started",
	                 r->elastic_started, "done", r->elastic_done, "wait_mean_s", r->elastic_wait_s, "preemptions", r->preemptions,
	                 "requeues", r->requeues, "node_losses", r->node_losses, "grows", r->grows, "shrinks", r->shrinks, "nodes_grown",
	                 r->nodes_grown, "nodes_given", r->nodes_given, "lost_node_s", r->lost_node_s, "lost_tokens", r->lost_tokens,
	                 "tokens", r->tokens, "decisions", r->decisions);
}
