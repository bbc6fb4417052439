/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that a plan does not use, but that have shards of the checkpoint from which it continues. One worker on each becomes a member of
 * the generation: it reads the node's files and sends them, and quits when all have started, like a worker that leaves. Which nodes these
 * are is known when they have named their checkpoints, so the generation is then begun again with these members. */
#include "controller/core/readers.h"

#include <stdio.h>
#include <string.h>

static bool has_member(const struct generation *g, const struct node *n)
{
	for (int i = 0; i < n->workers; i++)
		if (member_index(g, n->worker[i]) >= 0 || bound_plan_uses(g->bound_plan, n->worker[i]))
			return true;
	return false;
}

/* The plan uses no worker here, and one could read: also if the node is quarantined. */
static bool is_spare(const struct generation *g, const struct node *n)
{
	return node_readable(n) && n->workers && !has_member(g, n);
}

/* The worker that reads on this node for the generation; NULL: none, or a worker of the plan does. */
static struct worker *reader_on(const struct generation *g, const struct node *n)
{
	return n->reads && is_spare(g, n) ? n->worker[0] : NULL;
}

void readers_spawn(struct hspmd_controller *m, const struct generation *g)
{
	for (size_t i = 0; i < m->nodes; i++) {
		struct worker *w = reader_on(g, m->node[i]);
		if (w && w->process == PROC_NONE)
			worker_spawn(m, w);
	}
}

bool readers_up(const struct hspmd_controller *m, const struct generation *g)
{
	for (size_t i = 0; i < m->nodes; i++) {
		struct worker *w = reader_on(g, m->node[i]);
		if (w && w->process != PROC_UP)
			return false;
	}
	return true;
}

int readers_join(struct hspmd_controller *m, struct generation *g)
{
	for (size_t i = 0; i < m->nodes; i++) {
		struct worker *w = reader_on(g, m->node[i]);
		if (w && w->process == PROC_UP && generation_add_member(m, g, w))
			return -1;
	}
	return 0;
}

bool reads_for_next(const struct hspmd_controller *m, const struct worker *w)
{
	return m->next.bound_plan && reader_on(&m->next, w->node) == w;
}

void readers_forget(struct hspmd_controller *m)
{
	for (size_t i = 0; i < m->nodes; i++)
		m->node[i]->reads = false;
}

/* Adds to `readers` a worker of each readable node without a member that has named a checkpoint. Returns how many. */
static int add_others(struct hspmd_controller *m, const struct generation *g, json_t *readers)
{
	int count = 0;
	for (size_t i = 0; i < m->nodes; i++) {
		const struct node *n = m->node[i];
		if (!is_spare(g, n) || !json_array_size(json_object_get(m->checkpoint_search.found, n->name)))
			continue;
		if (json_object_set_new(readers, n->name, json_string(n->worker[0]->address)))
			m->failed = true;
		count++;
	}
	return count;
}

static bool has_checkpoint(const struct hspmd_controller *m, const struct node *n, int64_t step)
{
	json_t *one;
	size_t i;
	json_array_foreach(json_object_get(m->checkpoint_search.found, n->name), i, one)
		if (json_integer_value(json_object_get(one, "step")) == step)
			return true;
	return false;
}

/* The next generation needs members on the nodes that have something of the checkpoint of this step. */
static void want_readers(struct hspmd_controller *m, int64_t step)
{
	char names[200] = "";
	for (size_t i = 0; i < m->nodes; i++) {
		struct node *n = m->node[i];
		if (!is_spare(&m->next, n) || !has_checkpoint(m, n, step))
			continue;
		size_t used = strlen(names); /* of very many nodes the first are named */
		snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", n->name);
		n->reads = true;
	}
	log_msg(m, HSPMD_LOG_INFO, "the plan does not use %s, where parts of the checkpoint of step %lld are: they are read there", names,
	        (long long)step);
	m->next.again = true;
}

bool readers_beyond(struct hspmd_controller *m, const json_t *readers, int64_t step)
{
	json_t *all = check_alloc(m, json_copy((json_t *)readers));
	struct run_checkpoint_choice choice = { 0 };
	struct hspmd_error err;
	int chosen = all && add_others(m, &m->next, all) ? checkpoint_choose(m, all, &choice, &err) : 0;
	json_decref(all);
	json_decref(choice.manifest);
	json_decref(choice.files);
	if (chosen == 2)
		checkpoint_search_want(m, choice.sum);
	else if (chosen == 1 && choice.step > step)
		want_readers(m, choice.step);
	else
		return false;
	return true;
}
