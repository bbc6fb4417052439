/* SPDX-License-Identifier: Apache-2.0 */
/* What users and hspmdctld ask of a running job: status, events, checkpoint, grow, shrink. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/core/controller_internal.h"

static struct request *add(struct hspmd_controller *m, const struct run_event *e, int kind)
{
	if (hspmd_array_grow(&m->request, &m->request_capacity, m->requests, sizeof *m->request)) {
		m->failed = true;
		return NULL;
	}
	struct request *r = &m->request[m->requests++];
	memset(r, 0, sizeof *r);
	r->id = e->id;
	r->kind = kind;
	double limit = json_number_value(json_object_get(e->value, "timeout_s"));
	r->deadline = m->now + (limit > 0 ? limit : 600);
	return r;
}

static void drop(struct hspmd_controller *m, struct request *r)
{
	*r = m->request[--m->requests];
}

static void answer(struct hspmd_controller *m, const struct request *r, bool ok, const char *text)
{
	if (!r->gone)
		reply(m, r->id, ok, "%s", text);
}

static struct request *resize_under_way(const struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->requests; i++)
		if (m->request[i].kind != REQUEST_CHECKPOINT)
			return &m->request[i];
	return NULL;
}

/* What has not come yet is wanted no more; what has come stays. */
static void end_grow(struct hspmd_controller *m, struct request *r, const char *why)
{
	char text[300];
	snprintf(text, sizeof text, "%s: the job has %d of %d nodes; what has not come is asked for no more", why, nodes_held(m),
	         r->target);
	note_event(m, "grow_ended", "%s", text);
	answer(m, r, false, text);
	emit(m, ACTION_CANCEL_GROW, NULL, NULL, 0);
	drop(m, r);
}

/* Growing may wait for long, and must not keep others from having their nodes back. */
static void cancel_grow_for_shrink(struct hspmd_controller *m)
{
	struct request *r = resize_under_way(m);
	if (r && r->kind == REQUEST_GROW && r->resized && nodes_held(m) < r->target)
		end_grow(m, r, "a shrink was asked for");
}

/* Why the job cannot be resized just now, or NULL. */
static const char *resize_obstacle(const struct hspmd_controller *m)
{
	if (!m->config->resizable)
		return "this job's nodes cannot be changed";
	if (m->shutting_down || m->end != END_NONE || m->current.finished)
		return "the job is ending";
	if (resize_under_way(m))
		return "another resize is under way";
	return NULL;
}

/* What the site's policy has against it, as if new nodes were like those that are there; false: nothing. */
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
		reply(m, e->id, false, "elastic.max_nodes of the job file is %d: it cannot grow to %lld", most, (long long)target);
	else if (policy_forbids(m, target, why, sizeof why))
		reply(m, e->id, false, "%s", why);
	else {
		struct request *r = add(m, e, REQUEST_GROW);
		if (!r)
			return;
		r->target = (int)target;
		r->ticket = ++m->tickets;
		note_event(m, "grow", "asked to grow from %d to %d nodes", have, r->target);
		emit(m, ACTION_GROW, NULL, NULL, r->ticket);
		if (!m->failed)
			m->actions->list[m->actions->count - 1].count = r->target - have;
	}
}

/* Mark who leaves: those named, else the last. The first node of the allocation has the batch script and stays. */
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
	/* Members first: their nodes go back as whole jobs. */
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
		reply(m, e->id, false, "elastic.min_nodes of the job file is %d: it cannot shrink to %lld", least, (long long)target);
	else if (!mark_leaving(m, names, have - (int)target, &err))
		reply(m, e->id, false, "%s", err.text);
	else {
		struct request *r = add(m, e, REQUEST_SHRINK);
		if (!r)
			return;
		r->target = (int)target;
		note_event(m, "shrink", "asked to shrink from %d to %d nodes", have, r->target);
		request_replan(m, "shrink");
	}
}

static void checkpoint(struct hspmd_controller *m, const struct run_event *e)
{
	if (!m->config->local && !m->config->shared)
		reply(m, e->id, false, "the job file names no checkpoint folder");
	else if (m->shutting_down || m->end != END_NONE)
		reply(m, e->id, false, "the job is ending");
	else
		add(m, e, REQUEST_CHECKPOINT);
}

static void reply_with(struct hspmd_controller *m, int64_t id, json_t *value)
{
	if (!check_alloc(m, value))
		return;
	emit(m, ACTION_REPLY, NULL, value, id);
	if (!m->failed)
		m->actions->list[m->actions->count - 1].last = true;
}

void on_command(struct hspmd_controller *m, const struct run_event *e)
{
	const char *command = json_string_value(json_object_get(e->value, "command"));
	if (!command)
		reply(m, e->id, false, "no command was given");
	else if (!strcmp(command, "status"))
		reply_with(m, e->id,
		           json_pack("{s:s, s:b, s:o}", "type", "reply", "ok", 1, "status",
		                     check_alloc(m, hspmd_controller_status(m, m->now, m->wall))));
	else if (!strcmp(command, "events"))
		reply_with(m, e->id, json_pack("{s:s, s:b, s:O}", "type", "reply", "ok", 1, "events", m->events));
	else if (!strcmp(command, "grow"))
		grow(m, e);
	else if (!strcmp(command, "shrink"))
		shrink(m, e);
	else if (!strcmp(command, "checkpoint"))
		checkpoint(m, e);
	else
		reply(m, e->id, false, "unknown command '%.40s'", command);
}

void on_disconnected(struct hspmd_controller *m, const struct run_event *e)
{
	for (size_t i = 0; i < m->requests; i++)
		if (m->request[i].id == e->id)
			m->request[i].gone = true;
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
			answer(m, r, false, e->text);
			if (r->kind == REQUEST_SHRINK) {
				unmark_leaving(m);
				emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
			}
			drop(m, r);
		} else {
			r->resized = true;
			emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
		}
		return;
	}
}

void requests_checkpoint_done(struct hspmd_controller *m, int64_t number, const char *why_not)
{
	for (size_t i = m->requests; i-- > 0;) {
		struct request *r = &m->request[i];
		if (r->kind != REQUEST_CHECKPOINT || r->number != number)
			continue;
		char text[200];
		snprintf(text, sizeof text, "checkpoint of step %lld is complete", (long long)m->checkpoint_step);
		answer(m, r, !why_not, why_not ? why_not : text);
		drop(m, r);
	}
}

void requests_end(struct hspmd_controller *m)
{
	while (m->requests) {
		struct request *r = &m->request[0];
		char text[sizeof m->exit_text + 40];
		bool done = r->kind == REQUEST_CHECKPOINT && m->steps_reported > 0 && m->checkpoint_step >= m->steps_reported;
		if (done)
			snprintf(text, sizeof text, "checkpoint of step %lld is complete", (long long)m->checkpoint_step);
		else
			snprintf(text, sizeof text, "the job is ending: %s", m->exit_text);
		answer(m, r, done, text);
		drop(m, r);
	}
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
		answer(m, r, false,
		       r->kind == REQUEST_CHECKPOINT ? "the checkpoint was not complete in time" : "the resize was not done in time");
		if (r->kind == REQUEST_SHRINK && !r->ticket)
			unmark_leaving(m);
		drop(m, r);
	}
}

double requests_deadline(const struct hspmd_controller *m)
{
	double first = INFINITY;
	for (size_t i = 0; i < m->requests; i++)
		first = fmin(first, m->request[i].deadline);
	return first;
}

/* All train by the plan that was wanted, though perhaps no step of it is done yet: somebody is waiting for the nodes it does not use. */
static bool switched(const struct hspmd_controller *m)
{
	return m->current.phase == PHASE_TRAINING && m->next.phase == PHASE_NONE && !m->change.wanted;
}

bool is_steady(const struct hspmd_controller *m)
{
	return switched(m) && !m->change.open;
}

static bool plan_uses_leaving(const struct hspmd_controller *m)
{
	for (int i = 0; i < m->current.bound_plan->devices; i++)
		if (m->current.bound_plan->device[i]->node->leaving)
			return true;
	return false;
}

void release_nodes(struct hspmd_controller *m, bool (*goes)(const struct node *n), int64_t ticket)
{
	json_t *list = check_alloc(m, json_array());
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->held && goes(m->node[i]) && json_array_append_new(list, json_string(m->node[i]->name)))
			m->failed = true;
	emit(m, ACTION_SHRINK, NULL, list, ticket);
}

static bool is_leaving(const struct node *n)
{
	return n->leaving;
}

/* Nodes are given back once nothing of the job runs on them. */
static bool advance_shrink(struct hspmd_controller *m, struct request *r)
{
	if (r->resized) {
		if (nodes_held(m) > r->target)
			return false;
		char text[100];
		snprintf(text, sizeof text, "the job has %d node%s, generation %lld", nodes_held(m), nodes_held(m) == 1 ? "" : "s",
		         (long long)m->generation);
		answer(m, r, true, text);
		drop(m, r);
		return true;
	}
	if (r->ticket || !switched(m))
		return false;
	if (plan_uses_leaving(m)) {
		answer(m, r, false, "there is no plan for the nodes that would be left");
		unmark_leaving(m);
		drop(m, r);
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
		if (r->kind == REQUEST_CHECKPOINT && !r->number && m->checkpoint.phase == CHECKPOINT_NONE &&
		    checkpoint_begin(m, "asked for", TARGET_ALL)) {
			r->number = m->checkpoint.number;
			return true;
		}
		if (r->kind == REQUEST_GROW && r->resized && nodes_held(m) >= r->target &&
		    nodes_usable(m) + nodes_quarantined(m) >= r->target && is_steady(m)) {
			int held = nodes_held(m), out = nodes_quarantined(m);
			char text[160];
			size_t n = (size_t)snprintf(text, sizeof text, "the job has %d nodes, generation %lld", held,
			                            (long long)m->generation);
			if (out)
				snprintf(text + n, sizeof text - n, "; %d of them %s left out for a while, because workers failed there",
				         out, out == 1 ? "is" : "are");
			answer(m, r, true, text);
			drop(m, r);
			return true;
		}
		if (r->kind == REQUEST_SHRINK && advance_shrink(m, r))
			return true;
	}
	return false;
}
