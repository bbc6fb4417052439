/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that join and leave the allocation, and agents and workers that start on them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controller/core/controller_internal.h"

static void node_left(struct hspmd_controller *m, struct node *n)
{
	bool asked = n->leaving || n->released;
	char why[200];
	bool member = member_exit_reason(m, n, why, sizeof why);
	n->held = n->leaving = n->quarantined = n->rejoins = n->released = false;
	n->attempts = n->quarantines = 0;
	n->left_out_why[0] = 0;
	n->retry_at = 0;
	if (n->agent == PROC_UP)
		emit(m, ACTION_DISCONNECT_AGENT, n->name, NULL, 0);
	bool had = n->agent == PROC_UP; /* of one whose agent has yet to start no plan knows */
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

/* Slurm does not name the node any more. */
static void node_missing(struct hspmd_controller *m, struct node *n, const json_t *allocation)
{
	int64_t ending = member_ending_job(m, n, allocation);
	if (!ending) {
		node_left(m, n);
		return;
	}
	n->member = ending;
	member_terminating(m, n);
}

/* Orders the nodes as Slurm does, which shrinks a job from the end of its list: the node with the batch script is named first, and is the
 * first here. After a restart of the controller agents connect in any order, and nodes that left may come back. Unnamed nodes come last. */
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
	m->allocated = true;
	members_update(m, e->value);
	for (i = 0; i < m->nodes; i++)
		if (m->node[i]->held && !name_listed(names, m->node[i]->name))
			node_missing(m, m->node[i], e->value);
	json_array_foreach(names, i, v) {
		const char *name = json_string_value(v);
		struct node *n = name ? node_find(m, name) : NULL;
		if (!name || (!n && !(n = node_add(m, name))))
			continue;
		if (!n->held && m->startup_until < m->now)
			note_event(m, "node_came", "node %s joined the job", name);
		member_update(m, n, e->value);
		json_decref(n->holds);
		n->holds = json_incref(json_object_get(json_object_get(e->value, "held"), name));
		idle_check(m, n);
		if (n->agent == PROC_NONE && m->adopt && m->now < m->adopt_until) {
			n->agent = PROC_STARTING; /* it reconnects */
			n->deadline = m->adopt_until;
		}
		if (n->agent == PROC_NONE && !n->newcomer && n->attempts < AGENT_ATTEMPTS && m->now >= n->retry_at && !n->leaving &&
		    !n->released && !m->shutting_down && m->end == END_NONE)
			agent_start(m, n);
	}
	put_in_order(m, names);
	m->end_at = json_is_number(end) ? m->now + json_number_value(end) : INFINITY;
	const char *state = json_string_value(json_object_get(e->value, "state"));
	if (m->shutting_down && state && !strcmp(state, "preempted") && json_is_number(end))
		m->shutdown_by = m->end_at; /* the agents' `terminating` came first, without the time that is left */
	if (state && strcmp(state, "running") && !m->shutting_down) {
		struct run_event shutdown = *e;
		shutdown.text = !strcmp(state, "preempted") ? "preemption" : "the end of the job";
		shutdown.seconds = json_is_number(end) ? json_number_value(end) : 0;
		on_shutdown(m, &shutdown);
	}
}

/* Every node makes its own part of a plan, so all of them must run the same hspmd. A node that was upgraded under a running job is left out
 * until the job is requeued. */
static bool leave_out_other_version(struct hspmd_controller *m, struct node *n, const json_t *hello)
{
	const char *version = json_string_value(json_object_get(hello, "version"));
	char *why = n->left_out_why;
	if (!version || !strcmp(version, PACKAGE_VERSION))
		return false;
	snprintf(why, sizeof n->left_out_why,
	         "it runs hspmd %.32s, and this job was started by hspmd %s: install that version on it, or requeue the job, which then "
	         "runs "
	         "the new one on all nodes",
	         version, PACKAGE_VERSION);
	note_event(m, "other_version", "node %s is not used: %s", n->name, why);
	send_node(m, n, json_pack("{s:s}", "type", "quit"));
	n->agent = PROC_NONE;
	n->attempts = AGENT_ATTEMPTS;
	member_release(m, n, why);
	return true;
}

void on_agent_up(struct hspmd_controller *m, const struct run_event *e)
{
	struct node *n = node_find(m, e->node);
	struct hspmd_error err = { "" };
	if (!n && !(n = node_add(m, e->node)))
		return;
	if (n->agent == PROC_UP)
		node_lost(m, n, "its agent has connected again");
	if (leave_out_other_version(m, n, e->value))
		return;
	struct hspmd_cluster *part = hspmd_cluster_from_json(json_object_get(e->value, "cluster"), e->node, &err);
	if (part && (part->node_count != 1 || strcmp(part->nodes[0].name, e->node)))
		hspmd_fail(&err, "agent of %s speaks for %d nodes, the first %s", e->node, part->node_count,
		           part->node_count ? part->nodes[0].name : "-");
	if (err.text[0]) {
		snprintf(n->left_out_why, sizeof n->left_out_why, "%.200s", err.text);
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
	json_decref(n->granted);
	n->granted = json_incref(json_object_get(e->value, "granted"));
	n->idle_checked = false;
	if (workers_make(m, n, part->device_count))
		m->failed = true;
	n->agent = PROC_UP;
	if (!n->quarantined)
		n->left_out_why[0] = 0;
	n->agent_locks = json_is_true(json_object_get(e->value, "alone"));
	n->terminating = n->quit_sent = false;
	n->checkpoint_search = 0;
	adopt_workers(m, n, json_object_get(e->value, "workers"));
	if (m->current.bound_plan)
		log_msg(m, HSPMD_LOG_INFO, "agent of %s is connected: %d device%s", n->name, part->device_count,
		        part->device_count == 1 ? "" : "s");
	n->held |= adopt_holds(m, n); /* Slurm has not been polled yet */
	if (member_admit(m, n, e->value))
		return;
	idle_check(m, n);
	bool is_donor = n->leaving && m->adopt; /* its workers may hold state that nobody else has: it leaves later */
	if (!n->held || (n->leaving && !is_donor) || n->released || m->end != END_NONE) {
		send_node(m, n, json_pack("{s:s}", "type", "quit"));
		return;
	}
	revive_agent_up(m, n);
	if (!m->adopt && (m->current.phase != PHASE_NONE || m->change.open))
		request_replan(m, "grow");
}

void on_worker_hello(struct hspmd_controller *m, struct worker *w)
{
	if (w->process != PROC_STARTING)
		return;
	w->process = PROC_UP;
	const struct hspmd_cluster *part = w->node->part;
	json_t *job = json_pack("{s:s, s:O, s:O, s:s, s:s, s:s, s:s, s:s*, s:s, s:s*, s:s*, s:s*, s:O*}", "type", "job", "job",
	                        m->config->job_json, "model", m->config->model_json, "file", m->config->job->file, "output",
	                        m->config->output, "node", w->node->name, "device", w->address, "transport", m->config->transport, "kind",
	                        hspmd_device_kind_names[part->types[part->devices[w->index].type].kind], "memory", m->config->memory, "id",
	                        runs_command(m) ? m->config->job_id : NULL, "checkpoint", m->config->save_folder, "object",
	                        m->config->object_json);
	json_t *binding = json_array_get(w->node->bindings, (size_t)w->index); /* threads, index */
	if (job && json_is_object(binding) && json_object_update_missing(job, binding))
		m->failed = true;
	send_workers(m, &w, 1, job);
	revive_ask(m, w);
}

/* A held node without an agent may be about to leave: Slurm is polled soon, and then at growing intervals. The same if an agent must be
 * started again. */
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

/* The reason for the failures of its workers may be over: after its quarantine a node is used again. */
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
			snprintf(n->left_out_why, sizeof n->left_out_why, "its agent did not connect in time");
			log_msg(m, HSPMD_LOG_WARNING, "the agent of %s did not connect in time", n->name);
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
