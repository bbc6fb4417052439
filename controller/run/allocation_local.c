/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of a cluster file, which this machine emulates with one agent process per node. The job grows and shrinks among them as in a Slurm
 * allocation. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "controller/run/allocation.h"

struct local {
	struct run_allocation base;
	const struct hspmd_cluster *cluster;
	bool *held;
};

static json_t *poll_allocation(struct run_allocation *a, struct hspmd_error *err)
{
	struct local *l = (struct local *)a;
	json_t *nodes = json_array();
	for (int i = 0; nodes && i < l->cluster->node_count; i++)
		if (l->held[i] && json_array_append_new(nodes, json_string(l->cluster->nodes[i].name))) {
			json_decref(nodes);
			nodes = NULL;
		}
	json_t *v = nodes ? json_pack("{s:o, s:s, s:n}", "nodes", nodes, "state", "running", "end_in_s") : NULL;
	if (!v)
		hspmd_fail_memory(err, "listing nodes");
	return v;
}

/* Each agent is started by a command of its own. */
static char **start(struct run_allocation *a, char **nodes, int *count, const char *const *command, struct hspmd_error *err)
{
	size_t n = 0;
	(void)a;
	*count = 1;
	while (command[n])
		n++;
	char **list = hspmd_calloc(n + 3, sizeof *list);
	if (!list) {
		hspmd_fail_memory(err, "starting an agent");
		return NULL;
	}
	for (size_t i = 0; i < n; i++)
		list[i] = (char *)command[i];
	list[n] = "--node";
	list[n + 1] = nodes[0];
	return list;
}

static int held(const struct local *l)
{
	int count = 0;
	for (int i = 0; i < l->cluster->node_count; i++)
		count += l->held[i];
	return count;
}

static int grow(struct run_allocation *a, int count, const char *const *command, struct hspmd_error *err)
{
	struct local *l = (struct local *)a;
	(void)command;
	if (held(l) + count > l->cluster->node_count)
		return hspmd_fail(err, "there are %d nodes, %d of them held: cannot add %d", l->cluster->node_count, held(l), count);
	for (int i = 0; i < l->cluster->node_count && count > 0; i++)
		if (!l->held[i]) {
			l->held[i] = true;
			count--;
		}
	return 0;
}

static int shrink(struct run_allocation *a, char *const *nodes, int count, struct hspmd_error *err)
{
	struct local *l = (struct local *)a;
	(void)err;
	for (int i = 0; i < l->cluster->node_count; i++)
		for (int k = 0; k < count; k++)
			if (!strcmp(nodes[k], l->cluster->nodes[i].name))
				l->held[i] = false;
	return 0;
}

static int cancel_grow(struct run_allocation *a, struct hspmd_error *err)
{
	(void)a, (void)err;
	return 0;
}

static void end(struct run_allocation *a, bool done)
{
	(void)a, (void)done;
}

static double poll_interval(struct run_allocation *a)
{
	(void)a;
	return 0;
}

static void destroy(struct run_allocation *a)
{
	struct local *l = (struct local *)a;
	if (l)
		free(l->held);
	free(l);
}

struct run_allocation *run_allocation_local(const struct hspmd_cluster *c, int first, struct hspmd_error *err)
{
	static const struct run_allocation_ops ops = { poll_allocation, start, grow, shrink, cancel_grow, poll_interval, end, destroy };
	struct local *l = calloc(1, sizeof *l);
	if (!l || !(l->held = hspmd_calloc((size_t)c->node_count, sizeof *l->held))) {
		free(l);
		hspmd_fail_memory(err, "listing nodes");
		return NULL;
	}
	l->base = (struct run_allocation){ .ops = &ops, .resizable = true };
	l->cluster = c;
	for (int i = 0; i < c->node_count; i++)
		l->held[i] = !first || i < first;
	return &l->base;
}

void run_allocation_local_hold(struct run_allocation *a, const json_t *names)
{
	struct local *l = (struct local *)a;
	size_t k;
	json_t *v;
	for (int i = 0; i < l->cluster->node_count; i++) {
		l->held[i] = false;
		json_array_foreach(names, k, v)
			l->held[i] |= json_is_string(v) && !strcmp(json_string_value(v), l->cluster->nodes[i].name);
	}
}
