/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes, agents and workers: who is there. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/core/controller_internal.h"

#define AGENT_ATTEMPTS 5   /* that a node's agent is started, before the node is given up until the allocation changes */
#define TYPE_TOLERANCE 0.1 /* devices of one type that measure within this of one another compute alike */

struct node *node_find(struct hspmd_controller *m, const char *name)
{
	for (size_t i = 0; name && i < m->nodes; i++)
		if (!strcmp(m->node[i]->name, name))
			return m->node[i];
	return NULL;
}

struct worker *worker_find(struct hspmd_controller *m, const char *address)
{
	for (size_t i = 0; address && i < m->nodes; i++)
		for (int k = 0; k < m->node[i]->workers; k++)
			if (!strcmp(m->node[i]->worker[k]->address, address))
				return m->node[i]->worker[k];
	return NULL;
}

bool node_usable(const struct node *n)
{
	return n->held && n->agent == PROC_UP && !n->leaving && !n->quarantined && !n->terminating;
}

int nodes_usable(const struct hspmd_controller *m)
{
	int count = 0;
	for (size_t i = 0; i < m->nodes; i++)
		count += node_usable(m->node[i]);
	return count;
}

int nodes_quarantined(const struct hspmd_controller *m)
{
	int count = 0;
	for (size_t i = 0; i < m->nodes; i++)
		count += m->node[i]->held && m->node[i]->quarantined;
	return count;
}

int nodes_held(const struct hspmd_controller *m)
{
	int count = 0;
	for (size_t i = 0; i < m->nodes; i++)
		count += m->node[i]->held;
	return count;
}

bool nodes_pending(const struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->held && !m->node[i]->leaving && m->node[i]->agent == PROC_STARTING)
			return true;
	return false;
}

/* Its agent did not come up, and will be started once more. */
static bool will_retry(const struct node *n)
{
	return n->held && !n->leaving && !n->released && !n->member && n->agent == PROC_NONE && n->retry_at > 0 &&
	       n->attempts < AGENT_ATTEMPTS;
}

bool nodes_to_retry(const struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		if (will_retry(m->node[i]))
			return true;
	return false;
}

void node_free(struct node *n)
{
	for (int i = 0; i < n->known; i++) {
		json_decref(n->worker[i]->report);
		free(n->worker[i]);
	}
	free(n->worker);
	free(n->name);
	json_decref(n->bindings);
	hspmd_cluster_destroy(n->part);
	free(n);
}

static struct node *node_add(struct hspmd_controller *m, const char *name)
{
	struct node *n = calloc(1, sizeof *n);
	if (!n || !(n->name = strdup(name)) || hspmd_array_grow(&m->node, &m->node_capacity, m->nodes, sizeof *m->node)) {
		if (n)
			free(n->name);
		free(n);
		m->failed = true;
		return NULL;
	}
	return m->node[m->nodes++] = n;
}

static void agent_start(struct hspmd_controller *m, struct node *n)
{
	n->agent = PROC_STARTING;
	n->attempts++;
	n->deadline = m->now + m->config->timeouts.startup;
	if (!n->member) /* a member's job starts its own */
		emit(m, ACTION_START_AGENT, n->name, NULL, 0);
}

/* The workers are gone with the agent, or with the node. */
static void node_lost(struct hspmd_controller *m, struct node *n, const char *why)
{
	n->agent = PROC_NONE;
	for (int i = 0; i < n->workers; i++)
		if (n->worker[i]->process != PROC_NONE)
			worker_lost(m, n->worker[i], why);
}

static void node_left(struct hspmd_controller *m, struct node *n)
{
	bool asked = n->leaving || n->released;
	char why[200];
	bool member = member_exit_reason(m, n, why, sizeof why);
	n->held = n->leaving = n->quarantined = n->released = false;
	n->attempts = n->quarantines = 0;
	n->retry_at = 0;
	if (n->agent == PROC_UP)
		emit(m, ACTION_DISCONNECT_AGENT, n->name, NULL, 0);
	bool had = n->agent != PROC_NONE;
	revive_drop_node(m, n);
	if (!member)
		snprintf(why, sizeof why, "node %s left the job", n->name);
	node_lost(m, n, why);
	if (!asked) {
		note_event(m, "node_left", "%s", why);
		if (had || m->change.wanted || m->current.phase == PHASE_ABORTING || m->current.phase == PHASE_SETTLING)
			request_replan(m, n->member ? "member-left" : "scontrol");
	}
	n->member = 0;
}

static bool listed(const json_t *names, const char *name)
{
	size_t i;
	json_t *v;
	json_array_foreach(names, i, v)
		if (json_is_string(v) && !strcmp(json_string_value(v), name))
			return true;
	return false;
}

/* In Slurm's order, in which it takes the last: the node with the batch script is named first, and is the first here. After a controller's
 * death agents call in any order, and nodes that left come back. Those that are not named lie behind. */
static void put_in_order(struct hspmd_controller *m, const json_t *names)
{
	size_t next = 0, i;
	json_t *v;
	json_array_foreach(names, i, v) {
		size_t at = next;
		while (at < m->nodes && strcmp(m->node[at]->name, json_string_value(v) ? json_string_value(v) : ""))
			at++;
		if (at == m->nodes)
			continue;
		struct node *n = m->node[at];
		memmove(m->node + next + 1, m->node + next, (at - next) * sizeof *m->node);
		m->node[next++] = n;
	}
}

void on_allocation(struct hspmd_controller *m, const struct run_event *e)
{
	json_t *names = json_object_get(e->value, "nodes"), *v, *end = json_object_get(e->value, "end_in_s");
	size_t i;
	m->slurm_confirm_until = 0;
	members_update(m, e->value);
	for (i = 0; i < m->nodes; i++)
		if (m->node[i]->held && !listed(names, m->node[i]->name))
			node_left(m, m->node[i]);
	json_array_foreach(names, i, v) {
		const char *name = json_string_value(v);
		struct node *n = name ? node_find(m, name) : NULL;
		if (!name || (!n && !(n = node_add(m, name))))
			continue;
		if (!n->held && m->startup_until < m->now)
			note_event(m, "node_came", "node %s joined the job", name);
		member_update(m, n, e->value);
		if (n->agent == PROC_NONE && m->adopt && m->now < m->adopt_until) {
			n->agent = PROC_STARTING; /* it calls again */
			n->deadline = m->adopt_until;
		}
		if (n->agent == PROC_NONE && n->attempts < AGENT_ATTEMPTS && m->now >= n->retry_at && !n->leaving && !n->released &&
		    !m->shutting_down && m->end == END_NONE)
			agent_start(m, n);
	}
	put_in_order(m, names);
	m->end_at = json_is_number(end) ? m->now + json_number_value(end) : INFINITY;
	const char *state = json_string_value(json_object_get(e->value, "state"));
	if (m->shutting_down && state && !strcmp(state, "preempted") && json_is_number(end))
		m->shutdown_by = m->end_at; /* its agents were told before we knew how long there is */
	if (state && strcmp(state, "running") && !m->shutting_down) {
		struct run_event shutdown = *e;
		shutdown.text = !strcmp(state, "preempted") ? "preemption" : "the end of the job";
		shutdown.seconds = json_is_number(end) ? json_number_value(end) : 0;
		on_shutdown(m, &shutdown);
	}
}

/* Worker objects for the devices of a part; those that exist already are used again. */
static int workers_make(struct hspmd_controller *m, struct node *n, int count)
{
	if (count > n->known) {
		struct worker **more = realloc(n->worker, (size_t)count * sizeof *more);
		if (!more)
			return -1;
		n->worker = more;
		for (; n->known < count; n->known++) {
			struct worker *w = calloc(1, sizeof *w);
			if (!w)
				return -1;
			w->node = n;
			w->index = n->known;
			snprintf(w->address, sizeof w->address, "%s:%d", n->name, n->known);
			n->worker[n->known] = w;
		}
	}
	n->workers = count;
	(void)m;
	return 0;
}

void node_restore(struct hspmd_controller *m, const char *name, int devices)
{
	struct node *n = node_find(m, name);
	if ((n || (n = node_add(m, name))) && n->agent != PROC_UP && n->workers < devices && workers_make(m, n, devices))
		m->failed = true;
}

void on_agent_up(struct hspmd_controller *m, const struct run_event *e)
{
	struct node *n = node_find(m, e->node);
	struct hspmd_error err = { "" };
	if (!n && !(n = node_add(m, e->node)))
		return;
	if (n->agent == PROC_UP)
		node_lost(m, n, "its agent was replaced by another");
	struct hspmd_cluster *part = hspmd_cluster_from_json(json_object_get(e->value, "cluster"), e->node, &err);
	if (part && (part->node_count != 1 || strcmp(part->nodes[0].name, e->node)))
		hspmd_fail(&err, "agent of %s speaks for %d nodes, the first %s", e->node, part->node_count,
		           part->node_count ? part->nodes[0].name : "-");
	if (err.text[0]) {
		log_msg(m, HSPMD_LOG_WARNING, "node %s is not used: %s", e->node, err.text);
		hspmd_cluster_destroy(part);
		emit(m, ACTION_DISCONNECT_AGENT, e->node, NULL, 0);
		return;
	}
	hspmd_cluster_destroy(n->part);
	n->part = part;
	n->base = part->nodes[0].slowdown;
	n->slowdown = 1;
	n->verdicts = 0;
	json_decref(n->bindings);
	n->bindings = json_incref(json_object_get(e->value, "bindings"));
	if (workers_make(m, n, part->device_count))
		m->failed = true;
	n->agent = PROC_UP;
	n->terminating = n->quit_sent = false;
	n->checkpoint_search = 0;
	adopt_workers(m, n, json_object_get(e->value, "workers"));
	if (m->current.bound_plan)
		log_msg(m, HSPMD_LOG_INFO, "agent of %s is there: %d device%s", n->name, part->device_count,
		        part->device_count == 1 ? "" : "s");
	n->held |= adopt_holds(m, n); /* Slurm has not been heard yet */
	if (member_admit(m, n, e->value))
		return;
	bool is_donor = n->leaving && m->adopt; /* what its workers hold may be nowhere else: it goes when it is used no more */
	if (!n->held || (n->leaving && !is_donor) || n->released || m->end != END_NONE) {
		send_node(m, n, json_pack("{s:s}", "type", "quit"));
		return;
	}
	revive_agent_up(m, n);
	if (!m->adopt && (m->current.phase != PHASE_NONE || m->change.open))
		request_replan(m, "grow");
}

void on_agent_lost(struct hspmd_controller *m, const struct run_event *e)
{
	struct node *n = node_find(m, e->node);
	if (!n || n->agent == PROC_NONE)
		return;
	n->unconfirmed_until = 0;
	if (m->end == END_NONE && !n->leaving && n->held) {
		note_event(m, "agent_lost", "lost the agent of %s: %s", n->name, e->text ? e->text : "no reason given");
		emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
		m->slurm_confirm_until = m->now + m->config->timeouts.slurm_confirm;
	}
	bool started = n->agent == PROC_UP;
	if (!started)
		revive_drop_node(m, n);
	node_lost(m, n, "its agent is gone");
	if (started)
		n->attempts = 0;
	/* A node that has just come, or come back, may still be ending what ran there, and refuse for a second or two; poll_missing_nodes
	 * asks. */
	n->retry_at = started ? 0 : m->now + (1 << (n->attempts < 4 ? n->attempts : 4)) / 2;
	if (!started && m->end == END_NONE)
		m->slurm_poll_at = fmin(m->slurm_poll_at, n->retry_at);
}

static void send_kill(struct hspmd_controller *m, const struct worker *w, int64_t serial)
{
	send_node(m, w->node, json_pack("{s:s, s:s, s:I}", "type", "kill", "device", w->address, "serial", (json_int_t)serial));
}

void worker_spawn(struct hspmd_controller *m, struct worker *w)
{
	/* A device has one process: one that was told to end, and hangs or is slow, must not be in the way. */
	if (w->quit_serial)
		send_kill(m, w, w->quit_serial);
	w->quit_serial = 0;
	w->heard_at = w->asked_at = 0;
	w->process = PROC_STARTING;
	w->adopted = false;
	w->holds = 0;
	w->serial = ++m->tickets;
	w->deadline = m->now + m->config->timeouts.spawn;
	send_node(m, w->node, json_pack("{s:s, s:s, s:I}", "type", "spawn", "device", w->address, "serial", (json_int_t)w->serial));
}

void on_worker_hello(struct hspmd_controller *m, struct worker *w)
{
	if (w->process != PROC_STARTING)
		return;
	w->process = PROC_UP;
	const struct hspmd_cluster *part = w->node->part;
	json_t *job = json_pack("{s:s, s:O, s:O, s:s, s:s, s:s, s:s, s:s*, s:s, s:s*}", "type", "job", "job", m->config->job_json, "model",
	                        m->config->model_json, "file", m->config->job->file, "output", m->config->output, "node", w->node->name,
	                        "device", w->address, "transport", m->config->transport, "kind",
	                        hspmd_device_kind_names[part->types[part->devices[w->index].type].kind], "memory", m->config->memory);
	json_t *binding = json_array_get(w->node->bindings, (size_t)w->index); /* threads, index */
	if (job && json_is_object(binding) && json_object_update_missing(job, binding))
		m->failed = true;
	send_workers(m, &w, 1, job);
	revive_ask(m, w);
}

/* What a worker that is gone was doing decides what is to be done about it. */
static void lose(struct hspmd_controller *m, struct worker *w, const char *cause, const char *why)
{
	struct generation *g = &m->current;
	bool donor = member_index(g, w) >= 0 && !bound_plan_uses(g->bound_plan, w);
	bool needed = member_index(g, w) >= 0 && !(donor && (g->phase != PHASE_STARTING || g->answer[member_index(g, w)]));
	bool in_next = member_index(&m->next, w) >= 0 || bound_plan_uses(m->next.bound_plan, w);
	w->process = PROC_NONE;
	w->holds = 0;
	json_decref(w->report);
	w->report = NULL;
	checkpoint_worker_lost(m, w);
	generation_remove_member(g, w);
	revive_drop(m, w);
	if ((m->end == END_NONE || m->end == END_SAVING) && g->finished && !m->shutting_down && needed) {
		/* The last checkpoint cannot be whole: what is lost is brought back first. */
		m->end = END_NONE;
		g->finished = false;
	}
	if (m->end != END_NONE)
		return;
	if (in_next)
		next_drop(m);
	if (needed && (g->phase == PHASE_STARTING || g->phase == PHASE_TRAINING || g->phase == PHASE_STOPPING)) {
		char text[300];
		snprintf(text, sizeof text, "worker %s is gone: %s", w->address, why);
		abort_current(m, text);
		revive_missing(m);
	} else if (needed && (g->phase == PHASE_SETTLING || g->phase == PHASE_HELD) && revive_missing(m)) {
		ask_holders(m); /* of one step they may be no more */
	} else if (needed && g->phase == PHASE_ABORTING) {
		revive_missing(m);
	}
	if (!needed && !in_next)
		return;
	request_replan(m, cause);
	if (strcmp(cause, "node-lost") != 0) {
		snprintf(m->last_error, sizeof m->last_error, "worker %s: %s", w->address, why);
		count_failure(m, w);
		check_attempts(m);
	}
}

static const char *lost_with(const struct worker *w, const char *cause)
{
	return w->node->held && w->node->agent == PROC_UP ? cause : "node-lost";
}

void worker_lost(struct hspmd_controller *m, struct worker *w, const char *why)
{
	lose(m, w, lost_with(w, "worker-lost"), why);
}

void worker_kill(struct hspmd_controller *m, struct worker *w, const char *cause, const char *why)
{
	if (w->process == PROC_NONE)
		return;
	log_msg(m, HSPMD_LOG_WARNING, "ending worker %s: %s", w->address, why);
	send_kill(m, w, w->serial);
	lose(m, w, lost_with(w, cause), why);
}

/* The parts of the nodes that `takes` says yes to, as one cluster. */
static json_t *merged(struct hspmd_controller *m, bool (*takes)(const struct node *n, const struct generation *g),
                      const struct generation *g, struct hspmd_error *err)
{
	const struct hspmd_cluster **part = hspmd_calloc(m->nodes, sizeof *part);
	int count = 0;
	if (!part) {
		m->failed = true;
		return NULL;
	}
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->part && takes(m->node[i], g))
			part[count++] = m->node[i]->part;
	struct hspmd_cluster *all = count ? hspmd_cluster_merge(part, count, TYPE_TOLERANCE, err) : NULL;
	for (int i = 0; all && i < all->node_count; i++)
		all->nodes[i].member = node_find(m, all->nodes[i].name)->member;
	if (!count)
		hspmd_fail(err, "there is no node to train on");
	json_t *value = all ? check_alloc(m, hspmd_cluster_to_json(all)) : NULL;
	hspmd_cluster_destroy(all);
	free(part);
	return value;
}

static bool is_usable(const struct node *n, const struct generation *g)
{
	(void)g;
	return node_usable(n);
}

static bool has_member(const struct node *n, const struct generation *g)
{
	for (int i = 0; i < g->members; i++)
		if (g->member[i]->node == n)
			return true;
	return false;
}

json_t *usable_cluster(struct hspmd_controller *m, struct hspmd_error *err)
{
	return merged(m, is_usable, NULL, err);
}

json_t *members_cluster(struct hspmd_controller *m, const struct generation *g, struct hspmd_error *err)
{
	return merged(m, has_member, g, err);
}

/* A node that is held but has no agent may be on its way out: Slurm is asked again soon, and then more and more seldom. So it is when an
 * agent is to be started again. */
static void poll_missing_nodes(struct hspmd_controller *m)
{
	bool missing = false;
	for (size_t i = 0; i < m->nodes; i++)
		missing |= m->node[i]->held && !m->node[i]->leaving && m->node[i]->agent != PROC_UP;
	if (!missing || (!m->generation && !nodes_to_retry(m)) || m->end != END_NONE) {
		m->slurm_poll_at = INFINITY;
		m->slurm_poll_interval = 1;
	} else if (isinf(m->slurm_poll_at)) {
		m->slurm_poll_at = m->now + m->slurm_poll_interval;
	} else if (m->now >= m->slurm_poll_at) {
		m->slurm_poll_interval = fmin(30, m->slurm_poll_interval * 2);
		m->slurm_poll_at = m->now + m->slurm_poll_interval;
		emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
	}
}

/* What made its workers fail may be over: a node that is held and of no use is worth another try. */
static void retry_quarantined(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes && m->end == END_NONE; i++) {
		struct node *n = m->node[i];
		if (!n->quarantined || m->now < n->quarantined_until)
			continue;
		n->quarantined = false;
		if (!node_usable(n))
			continue;
		note_event(m, "node_tried", "node %s, which was left out, is tried again", n->name);
		request_replan(m, "grow");
	}
}

void nodes_tick(struct hspmd_controller *m)
{
	poll_missing_nodes(m);
	retry_quarantined(m);
	members_tick(m);
	revive_tick(m);
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		if (n->held && n->agent == PROC_STARTING && m->now >= n->deadline) {
			log_msg(m, HSPMD_LOG_WARNING, "the agent of %s has not come in time", n->name);
			n->agent = PROC_NONE;
			if (n->member)
				member_release(m, n, "its member job started no agent that could join");
			else if (n->attempts < AGENT_ATTEMPTS && m->end == END_NONE)
				agent_start(m, n);
		}
		for (int k = 0; k < n->workers; k++)
			if (n->worker[k]->process == PROC_STARTING && m->now >= n->worker[k]->deadline) {
				char why[64];
				snprintf(why, sizeof why, "waited %.0f s for it to start", m->config->timeouts.spawn);
				worker_kill(m, n->worker[k], "hang", why);
			}
	}
}
