/* SPDX-License-Identifier: Apache-2.0 */
/* A second agent of a node. It was started because the first had lost its connection, which is back meanwhile; or by hand; or by an earlier
 * incarnation of the controller. Or the first is dead, and nothing has told the controller so. The first has the workers, and their memory:
 * as long as it answers, the second is turned away. Meanwhile the second waits.
 *
 * The agents of a node compete for a lock (`alone` in the hello, common/wire.h). So the second also knows of a first one that is not
 * connected: then that one has a while to connect again. If the second has the lock that the first one had, that one is most likely dead
 * (unless each is in a container with a memory of its own), and has less time to answer. */
#include <math.h>
#include <string.h>

#include "controller/core/controller_internal.h"

#define ANSWER_S 10.0  /* for the first agent's answer to `ping`, since its last message */
#define LOCK_LOST_S 3.0 /* the same if the second one has the lock that it had */
#define CONNECT_S 15.0 /* for the first agent to connect again: it tries every second */

static void forget(struct node *n)
{
	json_decref(n->newcomer);
	n->newcomer = NULL;
	n->pinged = false;
}

static void turn_away(struct hspmd_controller *m, struct node *n, const char *why)
{
	forget(n);
	log_msg(m, HSPMD_LOG_INFO, "another agent of %s is turned away: %s", n->name, why);
	emit_words(m, ACTION_TURN_AWAY, n->name, why);
}

static void take_over(struct hspmd_controller *m, struct node *n, const char *why)
{
	json_t *hello = json_incref(n->newcomer);
	forget(n);
	if (n->agent == PROC_UP)
		on_agent_lost(m, &(struct run_event){ .kind = EVENT_AGENT_LOST, .node = n->name, .text = why });
	emit_words(m, ACTION_REPLACE_AGENT, n->name, why);
	on_agent_up(m, &(struct run_event){ .kind = EVENT_AGENT_UP, .node = n->name, .value = hello });
	json_decref(hello);
}

static void ping(struct hspmd_controller *m, struct node *n)
{
	bool lost = n->agent_locks && json_is_true(json_object_get(n->newcomer, "alone"));
	double until = m->now + (lost ? LOCK_LOST_S : ANSWER_S);
	n->newcomer_until = n->pinged ? fmin(n->newcomer_until, until) : until;
	if (!n->pinged)
		send_node(m, n, json_pack("{s:s}", "type", "ping"));
	n->pinged = true;
}

static void decide(struct hspmd_controller *m, struct node *n)
{
	const json_t *alone = json_object_get(n->newcomer, "alone");
	if (n->agent == PROC_UP) {
		if (!n->pinged)
			log_msg(m, HSPMD_LOG_INFO, "another agent of %s has come: asking the first one whether it lives", n->name);
		ping(m, n);
	} else if (!alone || json_is_true(alone)) {
		take_over(m, n, "another agent of the node has come");
	} else {
		log_msg(m, HSPMD_LOG_INFO, "the agent of %s that has come is not alone there: waiting for the other one", n->name);
		n->pinged = false;
		n->newcomer_until = m->now + CONNECT_S;
	}
}

void on_newcomer(struct hspmd_controller *m, const struct run_event *e)
{
	struct node *n = node_find(m, e->node);
	if (!n && !(n = node_add(m, e->node)))
		return;
	bool waited = n->newcomer != NULL; /* its deadline, or that of the one before it, stays */
	json_decref(n->newcomer);
	n->newcomer = json_incref(e->value);
	if (!waited || json_is_true(json_object_get(e->value, "alone")))
		decide(m, n);
}

void on_newcomer_message(struct hspmd_controller *m, const struct run_event *e)
{
	struct node *n = node_find(m, e->node);
	const char *type = json_string_value(json_object_get(e->value, "type"));
	if (!n || !n->newcomer || !type || strcmp(type, "alone") != 0)
		return;
	if (json_object_set_new(n->newcomer, "alone", json_true()))
		m->failed = true;
	decide(m, n);
}

void on_newcomer_gone(struct hspmd_controller *m, const struct run_event *e)
{
	struct node *n = node_find(m, e->node);
	if (n)
		forget(n);
}

void newcomer_first_lives(struct hspmd_controller *m, const char *node)
{
	struct node *n = node_find(m, node);
	if (n && n->newcomer && n->agent == PROC_UP)
		turn_away(m, n, "the node's first agent is connected, and lives");
}

void newcomer_first_heard(struct hspmd_controller *m, struct node *n)
{
	if (n->pinged) /* the answer may be behind many other messages */
		n->newcomer_until = m->now + ANSWER_S;
}

static void ping_again(struct hspmd_controller *m, struct node *n)
{
	n->pinged = false;
	ping(m, n);
}

/* If the controller looks as late as that, it was stopped itself, and has not read an answer either. */
static bool controller_was_stopped(const struct hspmd_controller *m, const struct node *n)
{
	return n->pinged && m->now > n->newcomer_until + ANSWER_S;
}

void newcomers_tick(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		if (!n->newcomer)
			continue;
		if (m->end != END_NONE)
			turn_away(m, n, "the job ends");
		else if (n->pinged && n->agent != PROC_UP) /* the first one's connection is gone */
			decide(m, n);
		else if (m->now >= n->newcomer_until && controller_was_stopped(m, n))
			ping_again(m, n);
		else if (m->now >= n->newcomer_until)
			take_over(m, n,
			          n->pinged ? "it does not answer, and another agent of the node has come"
			                    : "it has not connected again, and another agent of the node has come");
	}
}

double newcomers_deadline(const struct hspmd_controller *m)
{
	double first = INFINITY;
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->newcomer)
			first = fmin(first, m->node[i]->newcomer_until);
	return first;
}
