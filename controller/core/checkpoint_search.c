/* SPDX-License-Identifier: Apache-2.0 */
/* The search for a checkpoint to continue from. Every readable node names those that it sees. A large job's manifest has a megabyte and is
 * seen by all nodes, so one node is asked for the text of the one that is needed. If it refuses, or does not answer in time, two others are
 * asked, then four, and so on: that takes few deadlines even if most of a thousand nodes are bad, and usually one text. If a node of the
 * plan dies meanwhile, another plan and another search are made anyway. */
#include <stdio.h>
#include <string.h>

#include "controller/core/controller_internal.h"

/* Asks every readable node once per search, including nodes that became readable after the search began. */
static void ask_nodes(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		if (!node_readable(n) || n->checkpoint_search == m->checkpoint_search.id)
			continue;
		n->checkpoint_search = m->checkpoint_search.id;
		send_node(m, n,
		          json_pack("{s:s, s:I, s:s?, s:s?, s:s?}", "type", "list_checkpoints", "id", (json_int_t)m->checkpoint_search.id,
		                    "local", m->config->local, "shared", m->config->shared, "memory", m->config->memory));
	}
}

/* What is known of manifests stays, as their sums name them in every search; but those that nobody could send are asked for again. */
static void forget_missing(struct hspmd_controller *m)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	const char *sum;
	json_t *manifest;
	void *next;
	json_object_foreach_safe(f->manifests, next, sum, manifest)
	{
		if (json_is_null(manifest))
			json_object_del(f->manifests, sum);
	}
	f->wanted[0] = '\0';
}

void checkpoint_search_begin(struct hspmd_controller *m)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	json_decref(f->found);
	f->found = check_alloc(m, json_object());
	if (!f->manifests)
		f->manifests = check_alloc(m, json_object());
	forget_missing(m);
	f->pause_until = 0;
	f->id = ++m->tickets;
	f->asked = true;
	f->since = m->now;
	f->deadline = m->now + m->config->timeouts.checkpoint_search;
	f->done = !m->config->local && !m->config->shared && !m->config->memory;
	/* Checkpoints that are there before the first step of a job's first incarnation are of other jobs. */
	f->done |= !m->config->resumed && !m->steps_reported;
	if (!f->done)
		ask_nodes(m);
}

void checkpoint_search_clear(struct hspmd_controller *m)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	json_decref(f->found);
	json_decref(f->manifests);
	json_decref(f->senders);
	json_decref(f->bad);
}

void on_checkpoint_list(struct hspmd_controller *m, struct node *n, json_t *message)
{
	if (!m->checkpoint_search.asked || json_integer_value(json_object_get(message, "id")) != m->checkpoint_search.id)
		return;
	json_t *list = json_object_get(message, "checkpoints");
	if (json_object_set(m->checkpoint_search.found, n->name, list ? list : json_null()))
		m->failed = true;
}

static bool search_found_any(const struct hspmd_controller *m)
{
	const char *node;
	json_t *list;
	json_object_foreach(m->checkpoint_search.found, node, list)
		if (json_array_size(list))
			return true;
	return false;
}

static void check_lists(struct hspmd_controller *m)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	bool all = true;
	for (size_t i = 0; i < m->nodes; i++)
		if (node_readable(m->node[i]) && !json_object_get(f->found, m->node[i]->name))
			all = false;
	if (all || m->now < f->deadline) {
		f->done = all;
		return;
	}
	log_msg(m, HSPMD_LOG_WARNING, "waited %.0f s for nodes to list their checkpoints", m->now - f->since);
	/* Starting from step 0 is the last resort: a node that has not answered may have the checkpoint. */
	f->done = search_found_any(m) || m->now >= f->since + m->config->timeouts.nodes;
	f->deadline = m->now + m->config->timeouts.checkpoint_search;
}

/* ---- the manifest that is needed */

static bool names(const json_t *list, const char *sum)
{
	json_t *one;
	size_t i;
	json_array_foreach(list, i, one) {
		const char *its = json_string_value(json_object_get(one, "sum"));
		if (its && !strcmp(its, sum))
			return true;
	}
	return false;
}

/* Asks the next nodes that have named the manifest, twice as many as before. Returns false if all that are there were asked. */
static bool ask_more(struct hspmd_controller *m)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	const char *name;
	json_t *list;
	int count = 0;
	json_object_foreach(f->found, name, list) {
		struct node *n = node_find(m, name);
		if (count == f->at_once || !n || !node_readable(n) || json_object_get(f->senders, name) || !names(list, f->wanted))
			continue;
		count++;
		if (json_object_set_new(f->senders, name, json_true()))
			m->failed = true;
		send_node(m, n,
		          json_pack("{s:s, s:I, s:s, s:s?, s:s?, s:s?}", "type", "read_manifest", "id", (json_int_t)f->id, "sum", f->wanted,
		                    "local", m->config->local, "shared", m->config->shared, "memory", m->config->memory));
	}
	f->at_once *= 2;
	f->deadline = m->now + m->config->timeouts.checkpoint_search;
	return count > 0;
}

void checkpoint_search_want(struct hspmd_controller *m, const char *sum)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	snprintf(f->wanted, sizeof f->wanted, "%s", sum);
	json_decref(f->senders);
	f->senders = check_alloc(m, json_object());
	f->at_once = 1;
	f->done = false;
	f->deadline = m->now; /* the first is asked at once */
}

/* The choice can go on: with the manifest, or (null) without it. */
static void settle_wanted(struct hspmd_controller *m, json_t *manifest)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	if (json_object_set(f->manifests, f->wanted, manifest))
		m->failed = true;
	f->wanted[0] = '\0';
	f->done = true;
}

/* Nodes that have not answered yet. */
static int awaited(const struct checkpoint_search *f)
{
	const char *name;
	json_t *waits;
	int count = 0;
	json_object_foreach(f->senders, name, waits)
		count += json_is_true(waits);
	return count;
}

static void check_wanted(struct hspmd_controller *m)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	int waiting = awaited(f);
	if (waiting && m->now < f->deadline)
		return;
	if (waiting)
		log_msg(m, HSPMD_LOG_WARNING, "waited %.0f s for %d node%s to send the manifest of a checkpoint: others are asked",
		        m->config->timeouts.checkpoint_search, waiting, waiting == 1 ? "" : "s");
	if (ask_more(m))
		return;
	log_msg(m, HSPMD_LOG_WARNING, "no node that has manifest %s could send it: an older checkpoint is looked for", f->wanted);
	settle_wanted(m, json_null());
}

void on_manifest(struct hspmd_controller *m, struct node *n, json_t *message)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	const char *sum = json_string_value(json_object_get(message, "sum")), *error = json_string_value(json_object_get(message, "error"));
	json_t *manifest = json_object_get(message, "manifest");
	struct hspmd_error err = { "" };
	if (!f->wanted[0] || !sum || strcmp(sum, f->wanted) != 0 || json_integer_value(json_object_get(message, "id")) != f->id ||
	    !json_is_true(json_object_get(f->senders, n->name)))
		return; /* it was not asked, or somebody else was faster */
	if (manifest && !m->config->check_manifest(manifest, sum, &err)) {
		settle_wanted(m, manifest);
		return;
	}
	log_msg(m, HSPMD_LOG_WARNING, "node %s, asked for the manifest of a checkpoint: %.300s", n->name,
	        err.text[0] ? err.text
	        : error     ? error
	                    : "no manifest came");
	if (json_object_set_new(f->senders, n->name, json_false()))
		m->failed = true;
}

bool checkpoint_search_again(struct hspmd_controller *m)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	const char *sum;
	json_t *manifest;
	bool missing = false;
	json_object_foreach(f->manifests, sum, manifest)
		missing |= json_is_null(manifest);
	if (!missing || m->now >= f->since + m->config->timeouts.nodes)
		return false;
	log_msg(m, HSPMD_LOG_WARNING, "there is a checkpoint whose manifest no node could send: asking again in %.0f s",
	        m->config->timeouts.checkpoint_search);
	forget_missing(m);
	f->done = false;
	f->deadline = f->pause_until = m->now + m->config->timeouts.checkpoint_search;
	return true;
}

void checkpoint_search_check(struct hspmd_controller *m)
{
	struct checkpoint_search *f = &m->checkpoint_search;
	if (!f->asked || f->done || m->now < f->pause_until)
		return;
	ask_nodes(m);
	if (f->wanted[0])
		check_wanted(m);
	else
		check_lists(m);
}
