/* SPDX-License-Identifier: Apache-2.0 */
/* Generations: plans bound to workers, the members and their answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/address_tree.h"
#include "common/alloc.h"
#include "controller/core/controller_internal.h"

static int bind_workers(struct hspmd_controller *m, struct bound_plan *l)
{
	l->device = hspmd_calloc((size_t)hspmd_plan_device_count(l->plan), sizeof *l->device);
	if (!l->device) {
		m->failed = true;
		return -1;
	}
	for (int p = 0; p < l->plan->pipeline_count; p++)
		for (int s = 0; s < l->plan->pipelines[p].stage_count / l->plan->virtual_stages;
		     s++) { /* each device once: later chunks have the same */
			const struct hspmd_stage *stage = &l->plan->pipelines[p].stages[s];
			for (int d = 0; d < stage->device_count; d++) {
				char address[ADDRESS_MAX];
				hspmd_cluster_device_address(l->cluster, stage->devices[d], address, sizeof address);
				struct worker *w = worker_find(m, address);
				if (!w)
					return -1;
				l->device[l->devices++] = w;
			}
		}
	return 0;
}

struct bound_plan *bound_plan_create(struct hspmd_controller *m, json_t *cluster, json_t *plan, const char *name, struct hspmd_error *err)
{
	struct bound_plan *l = calloc(1, sizeof *l);
	if (!l) {
		m->failed = true;
		return NULL;
	}
	l->refs = 1;
	l->cluster_json = json_incref(cluster);
	l->plan_json = json_incref(plan);
	l->cluster = hspmd_cluster_from_json(cluster, "cluster", err);
	l->plan = l->cluster ? hspmd_plan_from_json(plan, name, l->cluster, m->config->layers, err) : NULL;
	if (l->plan && bind_workers(m, l)) {
		hspmd_fail(err, "the plan names a device that has left");
		bound_plan_unref(l);
		return NULL;
	}
	if (!l->plan) {
		bound_plan_unref(l);
		return NULL;
	}
	l->nodes = nodes_usable(m);
	l->copies = copies_wanted(m, l->nodes);
	layout_keep_nodes(m, l);
	for (int i = 0; i < l->devices; i++) {
		l->nodes_used += l->device[i]->node->counted != l;
		l->device[i]->node->counted = l;
	}
	for (int i = 0; i < l->devices; i++)
		l->device[i]->node->counted = NULL; /* the next plan may have this address */
	return l;
}

struct bound_plan *bound_plan_ref(struct bound_plan *l)
{
	if (l)
		l->refs++;
	return l;
}

void bound_plan_unref(struct bound_plan *l)
{
	if (!l || --l->refs)
		return;
	hspmd_plan_destroy(l->plan);
	hspmd_cluster_destroy(l->cluster);
	json_decref(l->plan_json);
	json_decref(l->cluster_json);
	free(l->device);
	free(l);
}

char *bound_plan_summary(const struct hspmd_controller *m, const struct bound_plan *l)
{
	if (!runs_command(m))
		return hspmd_plan_summary(l->plan, l->cluster);
	return hspmd_asprintf("%d rank%s on %d node%s", l->devices, l->devices == 1 ? "" : "s", l->nodes_used,
	                      l->nodes_used == 1 ? "" : "s");
}

/* Searched first from where it was when this generation was bound towards the front: members that were removed have moved it there. */
int place_of(struct worker *const *list, int count, int64_t generation, const struct worker *w)
{
	int first = w->place[generation & 1];
	if (first >= count)
		first = count - 1;
	for (int i = first; i >= 0; i--)
		if (list[i] == w)
			return i;
	for (int i = first + 1; i < count; i++)
		if (list[i] == w)
			return i;
	return -1;
}

bool bound_plan_uses(const struct bound_plan *l, const struct worker *w)
{
	return l && place_of(l->device, l->devices, l->generation, w) >= 0;
}

bool bound_plan_agents_up(const struct bound_plan *l)
{
	for (int i = 0; i < l->devices; i++)
		if (l->device[i]->node->agent != PROC_UP)
			return false;
	return true;
}

bool plans_same_work(json_t *a, json_t *b)
{
	static const char *const keys[] = { "pipelines", "micro_batch", "global_batch", "seq_len", "schedule", "zero_stage" };
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		json_t *x = json_object_get(a, keys[i]), *y = json_object_get(b, keys[i]);
		if (x != y && !json_equal(x, y))
			return false;
	}
	return true;
}

bool bound_plan_is_whole(const struct bound_plan *l)
{
	for (int i = 0; i < l->devices; i++)
		if (l->device[i]->process != PROC_UP || l->device[i]->holds != l->generation)
			return false;
	return true;
}

int member_index(const struct generation *g, const struct worker *w)
{
	return g->bound_plan ? place_of(g->member, g->members, g->bound_plan->generation, w) : -1;
}

static void add_member(struct generation *g, struct worker *w)
{
	w->place[g->bound_plan->generation & 1] = g->members;
	g->member[g->members++] = w;
}

void generation_clear(struct generation *g)
{
	for (int i = 0; i < g->members; i++)
		json_decref(g->answer[i]);
	free(g->answer);
	free(g->member);
	json_decref(g->expected);
	bound_plan_unref(g->bound_plan);
	memset(g, 0, sizeof *g);
}

void next_drop(struct hspmd_controller *m)
{
	generation_clear(&m->next);
	if (m->solve)
		emit(m, ACTION_CANCEL_SOLVE, NULL, NULL, m->solve);
	m->solve = 0;
}

int generation_set_members(struct hspmd_controller *m, struct generation *g, struct bound_plan *l, struct bound_plan *donor)
{
	int most = l->devices + (donor ? donor->devices : 0);
	g->member = hspmd_calloc((size_t)most, sizeof *g->member);
	g->answer = hspmd_calloc((size_t)most, sizeof *g->answer);
	g->members = 0;
	if (!g->member || !g->answer) {
		m->failed = true;
		return -1;
	}
	for (int i = 0; i < l->devices; i++)
		add_member(g, l->device[i]);
	for (int i = 0; donor && i < donor->devices; i++)
		if (donor->device[i]->process == PROC_UP && donor->device[i]->holds == donor->generation &&
		    member_index(g, donor->device[i]) < 0)
			add_member(g, donor->device[i]);
	return 0;
}

void record_answer(struct generation *g, const struct worker *w, json_t *message)
{
	int at = member_index(g, w);
	if (at >= 0 && !g->answer[at])
		g->answer[at] = json_incref(message);
}

void generation_remove_member(struct generation *g, const struct worker *w)
{
	int at = member_index(g, w);
	if (at < 0)
		return;
	json_decref(g->answer[at]);
	g->members--;
	for (int i = at; i < g->members; i++) {
		g->member[i] = g->member[i + 1];
		g->answer[i] = g->answer[i + 1];
	}
}

int generation_add_member(struct hspmd_controller *m, struct generation *g, struct worker *w)
{
	size_t count = (size_t)g->members + 1;
	struct worker **member = realloc(g->member, count * sizeof *member);
	g->member = member ? member : g->member;
	json_t **answer = member ? realloc(g->answer, count * sizeof *answer) : NULL;
	if (!answer) {
		m->failed = true;
		return -1;
	}
	g->answer = answer;
	g->answer[g->members] = NULL;
	add_member(g, w);
	return 0;
}

void enter_phase(struct generation *g, enum phase phase, double now, double timeout_s)
{
	for (int i = 0; i < g->members; i++) {
		json_decref(g->answer[i]);
		g->answer[i] = NULL;
	}
	g->phase = phase;
	g->since = now;
	g->deadline = now + timeout_s;
}

bool all_answered(const struct generation *g)
{
	for (int i = 0; i < g->members; i++)
		if (!g->answer[i])
			return false;
	return true;
}

void list_unanswered(const struct generation *g, char *text, size_t size)
{
	size_t n = 0;
	int more = 0;
	text[0] = 0;
	for (int i = 0; i < g->members; i++) {
		if (g->answer[i])
			continue;
		if (n + ADDRESS_MAX + 20 > size) {
			more++;
			continue;
		}
		n += (size_t)snprintf(text + n, size - n, "%s%s", n ? ", " : "", g->member[i]->address);
	}
	if (more)
		snprintf(text + n, size - n, " and %d more", more);
}

const char **member_names(struct hspmd_controller *m, const struct generation *g)
{
	const char **name = hspmd_calloc((size_t)g->members, sizeof *name);
	if (!name)
		m->failed = true;
	for (int i = 0; name && i < g->members; i++)
		name[i] = g->member[i]->address;
	return name;
}

/* Enter the address of member i, as it has answered. */
static void add_address(struct hspmd_controller *m, const struct generation *g, int i, json_t *to)
{
	json_t *a = json_object_get(g->answer[i], "address");
	if (a && json_object_set(to, g->member[i]->address, a))
		m->failed = true;
}

/* What the members on a node of the tree must know to exchange the rest. */
static json_t *addresses_of_node(struct hspmd_controller *m, const struct generation *g, const struct hspmd_address_tree *t, int node)
{
	int near[1 + HSPMD_ADDRESS_TREE_FANOUT], count = hspmd_address_tree_neighbours(t, node, near);
	json_t *own = check_alloc(m, json_object());
	for (int i = t->leader[node]; own && i >= 0; i = t->next[i])
		add_address(m, g, i, own);
	for (int i = 0; own && i < count; i++)
		add_address(m, g, near[i], own);
	return own;
}

json_t *member_addresses(struct hspmd_controller *m, const struct generation *g)
{
	struct hspmd_error err;
	struct hspmd_address_tree t;
	const char **name = member_names(m, g);
	json_t *by_node = check_alloc(m, json_object());
	if (!name || !by_node || hspmd_address_tree_create(&t, name, g->members, &err)) {
		m->failed = true;
		free(name);
		return by_node;
	}
	for (int k = 0; k < t.nodes; k++) {
		json_t *own = runs_command(m) ? check_alloc(m, json_object()) : addresses_of_node(m, g, &t, k);
		if (runs_command(m)) /* the ranks meet where rank 0 is */
			add_address(m, g, 0, own);
		if (json_object_set_new(by_node, g->member[t.leader[k]]->node->name, own))
			m->failed = true;
	}
	hspmd_address_tree_clear(&t);
	free(name);
	return by_node;
}
