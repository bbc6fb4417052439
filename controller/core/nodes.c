/* SPDX-License-Identifier: Apache-2.0 */
/* The table of nodes, their agents and workers, and the clusters that they make. */
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/order.h"
#include "controller/core/controller_internal.h"

#define TYPE_TOLERANCE 0.1 /* greatest relative difference between measurements of devices that count as the same type */

struct node *node_find(struct hspmd_controller *m, const char *name)
{
	void *at = name ? tfind(&name, &m->node_by_name, hspmd_name_order) : NULL;
	return at ? *(struct node **)at : NULL;
}

static void keep(void *node)
{
	(void)node;
}

void nodes_forget_names(struct hspmd_controller *m)
{
	tdestroy(m->node_by_name, keep);
	m->node_by_name = NULL;
}

struct worker *worker_find(struct hspmd_controller *m, const char *address)
{
	char name[ADDRESS_MAX];
	const char *colon = address ? strrchr(address, ':') : NULL;
	if (!colon || (size_t)(colon - address) >= sizeof name)
		return NULL;
	memcpy(name, address, (size_t)(colon - address));
	name[colon - address] = '\0';
	const struct node *n = node_find(m, name);
	long index = strtol(colon + 1, NULL, 10);
	if (!n || index < 0 || index >= n->workers || strcmp(n->worker[index]->address, address) != 0)
		return NULL;
	return n->worker[index];
}

bool node_usable(const struct node *n)
{
	return n->held && n->agent == PROC_UP && !n->leaving && !n->quarantined && !n->terminating;
}

bool node_readable(const struct node *n)
{
	return n->held && n->agent == PROC_UP && !n->leaving && !n->terminating && (!n->quarantined || n->failed_reads < FAILED_READS);
}

int nodes_usable(const struct hspmd_controller *m)
{
	int count = 0;
	for (size_t i = 0; i < m->nodes; i++)
		count += node_usable(m->node[i]);
	return count;
}

void nodes_rejoin(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++) {
		if (m->node[i]->rejoins)
			m->node[i]->quarantined_until = m->now;
		m->node[i]->rejoins = false;
	}
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

/* Returns true if the node's agent failed to start, and will be started again. */
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
	for (int i = 0; i < n->known; i++)
		free(n->worker[i]);
	free(n->worker);
	free(n->name);
	json_decref(n->newcomer);
	json_decref(n->holds);
	json_decref(n->granted);
	json_decref(n->bindings);
	hspmd_cluster_destroy(n->part);
	free(n);
}

struct node *node_add(struct hspmd_controller *m, const char *name)
{
	struct node *n = calloc(1, sizeof *n);
	if (!n || !(n->name = strdup(name)) || hspmd_array_grow(&m->node, &m->node_capacity, m->nodes, sizeof *m->node)) {
		if (n)
			free(n->name);
		free(n);
		m->failed = true;
		return NULL;
	}
	if (!tsearch(n, &m->node_by_name, hspmd_name_order)) {
		node_free(n);
		m->failed = true;
		return NULL;
	}
	return m->node[m->nodes++] = n;
}

void agent_start(struct hspmd_controller *m, struct node *n)
{
	n->agent = PROC_STARTING;
	n->attempts++;
	n->deadline = m->now + m->config->timeouts.startup;
	if (!n->member) /* a member job starts its agent itself */
		emit(m, ACTION_START_AGENT, n->name, NULL, 0);
}

bool name_listed(const json_t *names, const char *name)
{
	size_t i;
	json_t *v;
	json_array_foreach(names, i, v)
		if (json_is_string(v) && !strcmp(json_string_value(v), name))
			return true;
	return false;
}

int workers_make(struct hspmd_controller *m, struct node *n, int count)
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

void send_kill(struct hspmd_controller *m, const struct worker *w, int64_t serial)
{
	send_node(m, w->node, json_pack("{s:s, s:s, s:I}", "type", "kill", "device", w->address, "serial", (json_int_t)serial));
}

void worker_spawn(struct hspmd_controller *m, struct worker *w)
{
	/* A device has one process: an earlier one that was told to quit, and may hang, is killed. */
	if (w->quit_serial)
		send_kill(m, w, w->quit_serial);
	w->quit_serial = 0;
	w->heard_at = w->asked_at = 0;
	w->process = PROC_STARTING;
	w->adopted = false;
	w->holds = 0;
	w->serial = ++m->tickets;
	w->deadline = m->now + m->config->timeouts.spawn;
	const char *command = !runs_command(m) ? NULL : m->config->job->command.per_node ? "node" : "device";
	send_node(m, w->node,
	          json_pack("{s:s, s:s, s:I, s:s*}", "type", "spawn", "device", w->address, "serial", (json_int_t)w->serial, "command",
	                    command));
}

/* Merges the parts of the nodes for which `takes` returns true. New reference; NULL and err: none, or memory is short. */
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

void forgive_failures(struct hspmd_controller *m)
{
	m->attempts = 0;
	m->attempted = -1;
	for (size_t i = 0; i < m->nodes; i++) {
		m->node[i]->failed_reads = 0;
		for (int k = 0; k < m->node[i]->workers; k++)
			m->node[i]->worker[k]->faults = m->node[i]->worker[k]->revivals = 0;
	}
}

void release_nodes(struct hspmd_controller *m, bool (*matches)(const struct node *n), int64_t ticket)
{
	json_t *list = check_alloc(m, json_array());
	for (size_t i = 0; i < m->nodes; i++)
		if (m->node[i]->held && matches(m->node[i]) && json_array_append_new(list, json_string(m->node[i]->name)))
			m->failed = true;
	emit(m, ACTION_SHRINK, NULL, list, ticket);
}
