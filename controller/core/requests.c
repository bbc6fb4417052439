/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of users and of hspmdctld to a running job: status, events, checkpoint, grow, shrink, trace. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/core/controller_internal.h"

static struct request *resize_under_way(const struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->requests; i++)
		if (m->request[i].kind == REQUEST_GROW || m->request[i].kind == REQUEST_SHRINK)
			return &m->request[i];
	return NULL;
}

/* Ends a growth: nodes that have not come are cancelled, the others stay. */
static void end_grow(struct hspmd_controller *m, struct request *r, const char *why)
{
	char text[300];
	snprintf(text, sizeof text, "%s: the job has %d of %d nodes; what has not come is asked for no more", why, nodes_held(m),
	         r->target);
	note_event(m, "grow_ended", "%s", text);
	request_answer(m, r, false, text);
	emit(m, ACTION_CANCEL_GROW, NULL, NULL, 0);
	request_drop(m, r);
}

/* A growth may wait for nodes for long; it must not delay a shrink. */
static void cancel_grow_for_shrink(struct hspmd_controller *m)
{
	struct request *r = resize_under_way(m);
	if (r && r->kind == REQUEST_GROW && r->resized && nodes_held(m) < r->target)
		end_grow(m, r, "a shrink was asked for");
}

/* Returns why the job cannot be resized now; NULL: it can. */
static const char *resize_obstacle(const struct hspmd_controller *m)
{
	if (!m->config->resizable)
		return "this job's nodes cannot be changed";
	if (m->shutting_down || m->end != END_NONE || m->current.finished)
		return "the job is ending";
	if (!m->allocated)
		return "the job controller has just started and does not know the job's nodes yet; try again";
	if (resize_under_way(m))
		return "another resize is under way";
	return NULL;
}

/* Returns true, and writes why, if the site's policy forbids so many nodes. New nodes are assumed to have as many devices as the present
 * ones on average. */
static bool policy_forbids(const struct hspmd_controller *m, int64_t target, char *why, size_t size)
{
	const struct run_policy_terms *policy_terms = &m->config->policy_terms;
	int devices = 0, known = 0;
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->held && m->node[i]->part) {
			devices += m->node[i]->workers;
			known++;
		}
	int64_t would = known ? (int64_t)ceil((double)devices / known * (double)target) : target;
	if (policy_terms->max_nodes_by && target > policy_terms->max_nodes)
		snprintf(why, size, "%s allows at most %d node%s: it cannot grow to %lld", policy_terms->max_nodes_by,
		         policy_terms->max_nodes, policy_terms->max_nodes == 1 ? "" : "s", (long long)target);
	else if (policy_terms->max_devices_by && would > policy_terms->max_devices)
		snprintf(why, size, "%s allows at most %d device%s: it cannot grow to %lld nodes, which have %lld",
		         policy_terms->max_devices_by, policy_terms->max_devices, policy_terms->max_devices == 1 ? "" : "s",
		         (long long)target, (long long)would);
	else
		return false;
	return true;
}

/* Notes what the site's policy wants (hspmdctld's requests say why), or has forbidden. */
static void note_policy(struct hspmd_controller *m, const struct run_event *e, const char *forbidden)
{
	const char *reason = json_string_value(json_object_get(e->value, "reason")),
	           *command = json_string_value(json_object_get(e->value, "command"));
	if (forbidden)
		note_event(m, "policy", "%s refused: %s", command, forbidden);
	else if (reason)
		note_event(m, "policy", "hspmdctld asks to %s: %.600s", command, reason);
}

static void grow(struct hspmd_controller *m, const struct run_event *e)
{
	int have = nodes_held(m), most = m->config->job->elastic.max_nodes;
	char why[400];
	json_t *v = json_object_get(e->value, "nodes"), *by = json_object_get(e->value, "by");
	int64_t target = json_is_integer(by) ? have + json_integer_value(by) : json_is_integer(v) ? json_integer_value(v) : -1;
	const char *no = resize_obstacle(m);
	if (no)
		reply(m, e->id, false, "%s", no);
	else if (target <= have || target > INT_MAX)
		reply(m, e->id, false, "the job has %d node%s already; it can only be grown to more (or by +N)", have,
		      have == 1 ? "" : "s");
	else if (target > most)
		reply(m, e->id, false, "elastic.max_nodes, or --hspmd-nodes in its place, is %d: it cannot grow to %lld", most,
		      (long long)target);
	else if (policy_forbids(m, target, why, sizeof why)) {
		note_policy(m, e, why);
		reply(m, e->id, false, "%s", why);
	} else {
		struct request *r = request_add(m, e, REQUEST_GROW);
		if (!r)
			return;
		note_policy(m, e, NULL);
		r->target = (int)target;
		r->ticket = ++m->tickets;
		note_event(m, "grow", "asked to grow from %d to %d nodes", have, r->target);
		emit(m, ACTION_GROW, NULL, NULL, r->ticket);
		if (!m->failed)
			m->actions->list[m->actions->count - 1].count = r->target - have;
	}
}

/* Marks the nodes that leave: the named ones, else the last `count`. The first node of the allocation runs the batch script and stays. */
static bool mark_leaving(struct hspmd_controller *m, json_t *names, int count, struct hspmd_error *err)
{
	size_t i;
	json_t *v;
	struct node *anchor = NULL;
	for (i = 0; i < m->nodes && !anchor; i++)
		if (m->node[i]->held)
			anchor = m->node[i];
	json_array_foreach(names, i, v) {
		struct node *n = node_find(m, json_string_value(v));
		if (!n || !n->held || n == anchor) {
			for (size_t k = 0; k < m->nodes; k++)
				m->node[k]->leaving = false;
			hspmd_fail(err, n == anchor && n ? "node %s runs the batch script and must stay" : "the job does not hold node %s",
			           json_string_value(v) ? json_string_value(v) : "?");
			return false;
		}
		n->leaving = true;
	}
	/* Nodes of members first: their jobs end as a whole. */
	for (int round = 0; round < 2 && json_array_size(names) == 0; round++)
		for (i = m->nodes; i-- > 0 && count > 0;)
			if (m->node[i]->held && !m->node[i]->leaving && m->node[i] != anchor && (round || m->node[i]->member)) {
				m->node[i]->leaving = true;
				count--;
			}
	return true;
}

static void shrink(struct hspmd_controller *m, const struct run_event *e)
{
	struct hspmd_error err = { "" };
	int have = nodes_held(m), least = m->config->job->elastic.min_nodes;
	json_t *v = json_object_get(e->value, "nodes"), *by = json_object_get(e->value, "by"), *names = json_object_get(e->value, "names");
	int64_t target = json_array_size(names) ? have - (int64_t)json_array_size(names)
	                 : json_is_integer(by)  ? have - json_integer_value(by)
	                 : json_is_integer(v)   ? json_integer_value(v)
	                                        : -1;
	if (target < have && target >= least && target > 0)
		cancel_grow_for_shrink(m);
	const char *no = resize_obstacle(m);
	if (no)
		reply(m, e->id, false, "%s", no);
	else if (target >= have)
		reply(m, e->id, false, "the job has %d node%s already; it can only be shrunk to fewer (or by -N)", have,
		      have == 1 ? "" : "s");
	else if (target < least || target < 1)
		reply(m, e->id, false, "elastic.min_nodes, or --hspmd-nodes in its place, is %d: it cannot shrink to %lld", least,
		      (long long)target);
	else if (!mark_leaving(m, names, have - (int)target, &err))
		reply(m, e->id, false, "%s", err.text);
	else {
		struct request *r = request_add(m, e, REQUEST_SHRINK);
		if (!r)
			return;
		note_policy(m, e, NULL);
		r->target = (int)target;
		note_event(m, "shrink", "asked to shrink from %d to %d nodes", have, r->target);
		request_replan(m, "shrink");
	}
}

/* Returns true if a checkpoint was asked for by a signal (its request has no id), and is not complete: all processes of a job get the
 * signal at the same time. */
static bool signalled(const struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->requests; i++)
		if (m->request[i].kind == REQUEST_CHECKPOINT && !m->request[i].id)
			return true;
	return false;
}

static void checkpoint(struct hspmd_controller *m, const struct run_event *e)
{
	if (runs_command(m))
		reply(m, e->id, false, "the job's command writes its checkpoints itself");
	else if (!m->config->local && !m->config->shared)
		reply(m, e->id, false, "the job file names no checkpoint folder");
	else if (m->shutting_down || m->end != END_NONE)
		reply(m, e->id, false, "the job is ending");
	else if (e->id || !signalled(m))
		request_add(m, e, REQUEST_CHECKPOINT);
}

static void trace(struct hspmd_controller *m, const struct run_event *e)
{
	int64_t steps = message_integer(e->value, "steps", 0);
	const char *no = trace_obstacle(m, steps);
	if (no)
		reply(m, e->id, false, "%s", no);
	else if (request_add(m, e, REQUEST_TRACE))
		trace_begin(m, -1, steps);
}

static void reply_with(struct hspmd_controller *m, int64_t id, json_t *value)
{
	if (!check_alloc(m, value))
		return;
	emit(m, ACTION_REPLY, NULL, value, id);
	if (!m->failed)
		m->actions->list[m->actions->count - 1].last = true;
}

static void status(struct hspmd_controller *m, const struct run_event *e)
{
	json_t *s = check_alloc(m, hspmd_controller_status(m, m->now, m->wall));
	if (s && json_is_true(json_object_get(e->value, "detail")) && status_add_detail(m, s))
		m->failed = true;
	reply_with(m, e->id, json_pack("{s:s, s:b, s:o}", "type", "reply", "ok", 1, "status", s));
}

void on_command(struct hspmd_controller *m, const struct run_event *e)
{
	const char *command = json_string_value(json_object_get(e->value, "command"));
	if (!command)
		reply(m, e->id, false, "no command was given");
	else if (!strcmp(command, "status"))
		status(m, e);
	else if (!strcmp(command, "events"))
		reply_with(m, e->id, json_pack("{s:s, s:b, s:O}", "type", "reply", "ok", 1, "events", m->events));
	else if (!strcmp(command, "grow"))
		grow(m, e);
	else if (!strcmp(command, "shrink"))
		shrink(m, e);
	else if (!strcmp(command, "checkpoint"))
		checkpoint(m, e);
	else if (!strcmp(command, "trace"))
		trace(m, e);
	else
		reply(m, e->id, false, "unknown command '%.40s'", command);
}

static void unmark_leaving(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		m->node[i]->leaving = false;
}

void on_resized(struct hspmd_controller *m, const struct run_event *e)
{
	for (size_t i = 0; i < m->requests; i++) {
		struct request *r = &m->request[i];
		if (!r->ticket || r->ticket != e->id)
			continue;
		if (e->text) {
			note_event(m, "resize_failed", "%s: %s", r->kind == REQUEST_GROW ? "could not grow" : "could not shrink", e->text);
			request_answer(m, r, false, e->text);
			if (r->kind == REQUEST_SHRINK) {
				unmark_leaving(m);
				emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
			}
			request_drop(m, r);
		} else {
			r->resized = true;
			emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
		}
		return;
	}
	/* Nobody waits for it any more, but the nodes that were to leave have no agent now. */
	emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
	if (!e->text)
		return;
	note_event(m, "resize_failed", "a resize that nobody waits for any more has failed: %s", e->text);
	if (!resize_under_way(m))
		unmark_leaving(m);
}

void requests_tick(struct hspmd_controller *m)
{
	for (size_t i = m->requests; i-- > 0;) {
		struct request *r = &m->request[i];
		if (m->now < r->deadline)
			continue;
		if (r->kind == REQUEST_GROW && r->resized && nodes_held(m) < r->target) {
			end_grow(m, r, "the time to grow is over");
			continue;
		}
		request_answer(m, r, false,
		               r->kind == REQUEST_CHECKPOINT ? "the checkpoint was not complete in time"
		               : r->kind == REQUEST_TRACE    ? "its steps were not over in time; the trace is still being recorded"
		                                             : "the resize was not done in time");
		if (r->kind == REQUEST_SHRINK && (!r->ticket || r->resized)) {
			unmark_leaving(m);
			request_replan(m, "grow"); /* the plan that was being made lacks these nodes */
			emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
		}
		request_drop(m, r);
	}
}

static bool plan_uses_leaving(const struct hspmd_controller *m)
{
	for (int i = 0; i < m->current.bound_plan->devices; i++)
		if (m->current.bound_plan->device[i]->node->leaving)
			return true;
	return false;
}

static bool is_leaving(const struct node *n)
{
	return n->leaving;
}

static bool any_leaving(const struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->leaving)
			return true;
	return false;
}

/* Gives nodes back once nothing of the job runs on them. */
static bool advance_shrink(struct hspmd_controller *m, struct request *r)
{
	if (r->resized) {
		if (any_leaving(m)) /* their number says nothing: others may have joined meanwhile */
			return false;
		char text[100];
		snprintf(text, sizeof text, "the job has %d node%s, generation %lld", nodes_held(m), nodes_held(m) == 1 ? "" : "s",
		         (long long)m->generation);
		request_answer(m, r, true, text);
		request_drop(m, r);
		return true;
	}
	if (r->ticket || !is_switched(m))
		return false;
	if (plan_uses_leaving(m)) {
		request_answer(m, r, false, "there is no plan for the nodes that would be left");
		unmark_leaving(m);
		request_drop(m, r);
		return true;
	}
	bool gone = true;
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->leaving && m->node[i]->agent == PROC_UP) {
			gone = false;
			if (!m->node[i]->terminating)
				send_node(m, m->node[i], json_pack("{s:s}", "type", "quit"));
			m->node[i]->terminating = true;
		}
	if (!gone)
		return false;
	r->ticket = ++m->tickets;
	release_nodes(m, is_leaving, r->ticket);
	return true;
}

bool advance_requests(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->requests; i++) {
		struct request *r = &m->request[i];
		if (r->kind == REQUEST_CHECKPOINT && !r->number && checkpoint_begin(m, "asked for", TARGET_ALL)) {
			r->number = m->checkpoint_count;
			r->own_only = m->config->shared && m->checkpoint[PART_SHARED].number != r->number;
			return true;
		}
		char text[160];
		if (is_steady(m) && request_grown(m, r, text, sizeof text)) {
			request_answer(m, r, true, text);
			request_drop(m, r);
			return true;
		}
		if (r->kind == REQUEST_SHRINK && advance_shrink(m, r))
			return true;
	}
	return false;
}
