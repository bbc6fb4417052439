/* SPDX-License-Identifier: Apache-2.0 */
/* Failures: processes that are lost, report a fault, or are killed because they did not answer in time. What follows from a lost process is
 * decided here: whether the generation is aborted, state revived, or a new plan requested. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/core/controller_internal.h"
#include "controller/core/readers.h"

#define QUARANTINE_S 60.0      /* the first quarantine of a node; each later one is twice as long ... */
#define QUARANTINE_DOUBLINGS 6 /* ... up to so many times */

/* A quarantined node, which no plan uses, may have the only copy of the state, and is read then. It cannot hold up the job for ever. */
static void count_failed_read(struct hspmd_controller *m, const struct worker *w)
{
	if (++w->node->failed_reads == FAILED_READS)
		note_event(m, "not_read",
		           "node %s, which is left out, failed %d times to send what it has of the state: the job goes on without that",
		           w->node->name, FAILED_READS);
}

/* Counts a failure. If a worker fails repeatedly without a committed step between, its node is quarantined, provided that there are enough
 * others. */
static void count_failure(struct hspmd_controller *m, struct worker *w)
{
	count_attempt(m);
	if (w->node->quarantined)
		count_failed_read(m, w);
	if (++w->faults < 2 || w->node->quarantined || nodes_usable(m) <= m->config->job->elastic.min_nodes)
		return;
	double seconds =
	        QUARANTINE_S * (1 << (w->node->quarantines < QUARANTINE_DOUBLINGS ? w->node->quarantines++ : QUARANTINE_DOUBLINGS));
	w->node->quarantined = true;
	w->node->failed_reads = 0;
	w->node->quarantined_until = m->now + seconds;
	snprintf(w->node->left_out_why, sizeof w->node->left_out_why, "worker %s failed %d times without a step between", w->address,
	         w->faults);
	note_event(m, "quarantined", "node %s is left out for %.0f s: %s", w->node->name, seconds, w->node->left_out_why);
}

/* The other ranks of an elastic command go on at once. The lost one's node joins them again when they train, and its new process is made
 * ready beside that. */
static void let_rejoin(struct hspmd_controller *m, struct worker *w)
{
	struct node *n = w->node;
	if (!m->elastic || n->quarantined || !node_usable(n) || nodes_usable(m) <= m->config->job->elastic.min_nodes || nodes_usable(m) < 2)
		return;
	n->quarantined = n->rejoins = true;
	n->quarantined_until = m->now + QUARANTINE_S;
	snprintf(n->left_out_why, sizeof n->left_out_why, "joins again when the others train: rank %s was lost", w->address);
	note_event(m, "rejoins", "node %s %s", n->name, n->left_out_why);
	next_drop(m); /* if it was planned with that node, it would wait for the new process */
}

static bool trains(const struct hspmd_controller *m, const struct node *n)
{
	for (int i = 0; i < n->workers; i++)
		if (n->worker[i]->process == PROC_UP && member_index(&m->current, n->worker[i]) >= 0)
			return true;
	return false;
}

/* Nor do they wait for a process that has yet to start: nodes that were about to join wait until the others train. */
static void let_join_later(struct hspmd_controller *m)
{
	int left = 0;
	for (size_t i = 0; i < m->nodes; i++)
		left += node_usable(m->node[i]) && trains(m, m->node[i]);
	if (!m->elastic || left < 1 || left < m->config->job->elastic.min_nodes)
		return;
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		if (!node_usable(n) || trains(m, n))
			continue;
		n->quarantined = n->rejoins = true;
		n->quarantined_until = m->now + QUARANTINE_S;
		snprintf(n->left_out_why, sizeof n->left_out_why, "joins when the others train: it was about to join when a rank was lost");
		note_event(m, "rejoins", "node %s %s", n->name, n->left_out_why);
		next_drop(m);
	}
}

/* A worker is gone. What it was needed for decides what happens. */
static void lose(struct hspmd_controller *m, struct worker *w, const char *cause, const char *why)
{
	struct generation *g = &m->current;
	int at = member_index(g, w);
	/* A member that is not in the plan only sends state, and has sent it once it has started. If the start failed, its state is needed
	 * again. */
	bool sent = at >= 0 && g->phase == PHASE_STARTING && g->answer[at] && !bound_plan_uses(g->bound_plan, w);
	bool needed = at >= 0 && !sent;
	bool in_next = member_index(&m->next, w) >= 0 || bound_plan_uses(m->next.bound_plan, w) || reads_for_next(m, w);
	w->process = PROC_NONE;
	w->holds = 0;
	checkpoint_worker_lost(m, w);
	trace_worker_lost(m, w, why);
	generation_remove_member(g, w);
	revive_drop(m, w);
	if ((m->end == END_NONE || m->end == END_SAVING) && g->finished && !m->shutting_down && needed) {
		/* The last checkpoint cannot be complete: the lost state is recovered first. */
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
		ask_holders(m); /* the revived workers may be at another step */
	} else if (needed && g->phase == PHASE_ABORTING) {
		revive_missing(m);
	}
	if (!needed && !in_next)
		return;
	request_replan(m, cause);
	if (strcmp(cause, "node-lost") != 0) {
		snprintf(m->last_error, sizeof m->last_error, "worker %s: %s", w->address, why);
		count_failure(m, w);
		let_rejoin(m, w);
		check_attempts(m);
	}
	if (needed)
		let_join_later(m);
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

/* The workers are gone with the agent, or with the node. */
void node_lost(struct hspmd_controller *m, struct node *n, const char *why)
{
	n->agent = PROC_NONE;
	for (int i = 0; i < n->workers; i++)
		if (n->worker[i]->process != PROC_NONE)
			worker_lost(m, n->worker[i], why);
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
	if (!n->quarantined)
		snprintf(n->left_out_why, sizeof n->left_out_why, "lost its agent: %s", e->text ? e->text : "no reason given");
	node_lost(m, n, "its agent is gone");
	if (started)
		n->attempts = 0;
	/* A node that has just joined may still be ending an earlier job step, and refuse a new one for a second or two.
	 * poll_missing_nodes() polls Slurm, and then the agent is started again. */
	n->retry_at = started ? 0 : m->now + (1 << (n->attempts < 4 ? n->attempts : 4)) / 2;
	if (!started && m->end == END_NONE)
		m->slurm_poll_at = fmin(m->slurm_poll_at, n->retry_at);
}

/* Notes a shard that this node cannot read, so that the next search takes it from elsewhere. */
static void note_unreadable(struct hspmd_controller *m, const struct node *n, json_t *unreadable)
{
	json_t *bad = check_alloc(m, json_copy(unreadable));
	if (!m->checkpoint_search.bad)
		m->checkpoint_search.bad = check_alloc(m, json_array());
	if (json_object_set_new(bad, "node", json_string(n->name)) ||
	    json_object_set_new(bad, "sum", json_string(m->checkpoint_search.taken)) ||
	    json_array_append_new(m->checkpoint_search.bad, bad))
		m->failed = true;
}

void on_fault(struct hspmd_controller *m, struct worker *w, json_t *message)
{
	struct generation *g = &m->current;
	int64_t of = message_integer(message, "generation", -1);
	const char *text = json_string_value(json_object_get(message, "text"));
	bool next = m->next.bound_plan && of == m->next.bound_plan->generation;
	bool now = g->bound_plan && of == g->bound_plan->generation &&
	           (g->phase == PHASE_STARTING || g->phase == PHASE_TRAINING || g->phase == PHASE_STOPPING);
	bool unfit = of == 0; /* the worker could not be set up for the job */
	json_t *unreadable = json_object_get(message, "unreadable");
	if ((!next && !now && !unfit) || m->end != END_NONE)
		return;
	if (now && runs_command(m) && g->phase == PHASE_STOPPING) { /* any end is expected, also of a rank that others leave first */
		record_answer(g, w, message);
		return;
	}
	char cause[HSPMD_ERROR_MAX];
	snprintf(cause, sizeof cause, "%s: %s", w->address, text ? text : "fault without a reason");
	json_decref(m->tail);
	m->tail = json_incref(json_object_get(message, "tail"));
	if (json_is_object(unreadable))
		note_unreadable(m, w->node, unreadable); /* does not count as the worker's failure */
	else
		count_failure(m, w);
	if (now) {
		if (!json_is_true(json_object_get(message, "lives")))
			let_rejoin(m, w);
		let_join_later(m);
		abort_current(m, cause);
	} else {
		snprintf(m->last_error, sizeof m->last_error, "%s", cause);
		note_event(m, "fault", "%s: %s", unfit ? "a worker cannot be set up" : "a generation cannot begin", cause);
		next_drop(m);
	}
	if (unfit)
		worker_kill(m, w, "worker-lost", "it cannot be set up");
	emit(m, ACTION_POLL_SLURM, NULL, NULL, 0);
	request_replan(m, "fault");
	check_attempts(m);
}

/* Kills the members of g that have not answered, so that nothing waits for them any more. */
static void kill_unresponsive(struct hspmd_controller *m, struct generation *g, const char *waited_for)
{
	char who[512];
	list_unanswered(g, who, sizeof who);
	log_msg(m, HSPMD_LOG_WARNING, "waited %.1f s for \"%s\" from %s", m->now - g->since, waited_for, who);
	int count = 0;
	struct worker **silent = hspmd_calloc((size_t)g->members, sizeof *silent);
	if (!silent) {
		m->failed = true;
		return;
	}
	for (int i = 0; i < g->members; i++)
		if (!g->answer[i])
			silent[count++] = g->member[i];
	for (int i = 0; i < count; i++)
		if (silent[i]->process == PROC_NONE)
			worker_lost(m, silent[i], waited_for);
		else
			worker_kill(m, silent[i], "hang", waited_for);
	free(silent);
}

/* Returns the message that all members of g are expected to send by the deadline of its phase; NULL: the members are not waited for
 * here. */
static const char *awaited_message(const struct generation *g)
{
	switch (g->phase) {
	case PHASE_PREPARING:
		return "prepared";
	case PHASE_STARTING:
		return "started";
	case PHASE_ABORTING:
		return "aborted";
	case PHASE_SETTLING:
		return "settled";
	default:
		return NULL;
	}
}

static bool overdue(struct hspmd_controller *m, struct generation *g)
{
	const char *message = awaited_message(g);
	if (!message || all_answered(g) || m->now < g->deadline)
		return false;
	if (g->phase == PHASE_STARTING)
		count_attempt(m);
	kill_unresponsive(m, g, message);
	return true;
}

bool advance_current_overdue(struct hspmd_controller *m)
{
	return overdue(m, &m->current);
}

bool advance_next_overdue(struct hspmd_controller *m)
{
	return !m->shutting_down && m->end == END_NONE && !m->current.finished && overdue(m, &m->next);
}

void revive_tick(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		for (int k = 0; k < m->node[i]->workers; k++) {
			struct worker *w = m->node[i]->worker[k];
			if (!w->reviving || m->now < w->revive_by)
				continue;
			if (w->process == PROC_NONE) {
				log_msg(m, HSPMD_LOG_WARNING,
				        "the agent of %s did not reconnect: the state that worker %s left is not taken up", w->node->name,
				        w->address);
				revive_give_up(m, w);
			} else {
				worker_kill(m, w, "hang", "it did not take up its predecessor's state");
			}
		}
}
