/* SPDX-License-Identifier: Apache-2.0 */
/* Which checkpoints in the nodes' own folders stand, and where their manifests are. A large job's manifest is on few nodes, so the others
 * cannot see which checkpoints are committed: the controller remembers the last ones, and tells all nodes which to keep. What it does not
 * remember, because it died right after the manifest was written, is removed when a newer one is committed, on every node alike. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/losses.h"
#include "controller/core/controller_internal.h"

#define ALL_NODES 32   /* a job of more nodes has its manifests on some of them */
#define SPREAD_NODES 8 /* at least */

/* ---- where manifests are */

/* The cluster's nodes, in Slurm's order. */
struct places {
	const struct bound_plan *of;
	struct worker **on; /* per node: the worker that writes there; NULL: none */
	int *chosen, count; /* nodes that get the manifest */
	bool *taken;
	int *present, presents; /* nodes with a worker */
};

static void choose(struct places *p, int node)
{
	if (p->taken[node])
		return;
	p->taken[node] = true;
	p->chosen[p->count++] = node;
}

/* Add nodes until no loss that the copies survive takes all manifests. */
static int survive(struct places *p, bool *part, struct hspmd_error *err)
{
	struct hspmd_losses losses;
	for (int i = 0; i < p->presents; i++)
		part[p->present[i]] = true;
	if (hspmd_losses_make(p->of->cluster, part, p->of->copies, p->of->keep, &losses, err))
		return -1;
	long least = hspmd_losses_lack(&losses, p->chosen, p->count), now = least + 1;
	while (least > 0 && least < now && p->count < p->presents) {
		int best = -1;
		now = least;
		for (int i = 0; i < p->presents; i++) {
			if (p->taken[p->present[i]])
				continue;
			p->chosen[p->count] = p->present[i];
			long then = hspmd_losses_lack(&losses, p->chosen, p->count + 1);
			best = then < least ? p->present[i] : best;
			least = then < least ? then : least;
		}
		if (best >= 0)
			choose(p, best);
	}
	hspmd_losses_free(&losses);
	return 0;
}

static int choose_places(struct places *p, struct worker *const *one, int count, struct hspmd_error *err)
{
	const struct hspmd_cluster *c = p->of->cluster;
	for (int i = 0; i < count; i++) {
		int device = hspmd_cluster_find_device(c, one[i]->address, err);
		if (device < 0)
			return -1;
		p->on[c->devices[device].node] = one[i];
	}
	for (int n = 0; n < c->node_count; n++)
		if (p->on[n])
			p->present[p->presents++] = n;
	int some = p->presents <= ALL_NODES ? p->presents : SPREAD_NODES;
	for (int i = 0; i < some; i++) /* the first one too */
		choose(p, p->present[(int)((long)i * p->presents / some)]);
	bool *part = hspmd_calloc((size_t)c->node_count, sizeof *part);
	int status = part ? survive(p, part, err) : -1;
	free(part);
	return status;
}

int manifest_holders(struct hspmd_controller *m, const struct bound_plan *of, struct worker **one, int count)
{
	size_t nodes = (size_t)of->cluster->node_count;
	struct places p = { .of = of };
	struct hspmd_error err;
	p.on = hspmd_calloc(nodes, sizeof(struct worker *));
	p.chosen = hspmd_calloc(nodes + 1, sizeof *p.chosen);
	p.taken = hspmd_calloc(nodes, sizeof *p.taken);
	p.present = hspmd_calloc(nodes, sizeof *p.present);
	if (!p.on || !p.chosen || !p.taken || !p.present || choose_places(&p, one, count, &err))
		m->failed = true;
	for (int i = 0; !m->failed && i < p.count; i++)
		one[i] = p.on[p.chosen[i]];
	free(p.on);
	free(p.chosen);
	free(p.taken);
	free(p.present);
	return m->failed ? 0 : p.count;
}

int one_per_node(struct worker *const *who, int count, struct worker **one)
{
	int found = 0;
	for (int i = 0; i < count; i++) {
		bool known = !who[i] || who[i]->process != PROC_UP;
		for (int k = 0; k < found && !known; k++)
			known = one[k]->node == who[i]->node;
		if (!known)
			one[found++] = who[i];
	}
	return found;
}

/* ---- which stand */

static json_t *id_of(int64_t step, int64_t generation)
{
	return json_pack("[I, I]", (json_int_t)step, (json_int_t)generation);
}

/* Negative: a was written before b. */
static int written_order(const json_t *a, const json_t *b)
{
	for (size_t i = 2; i-- > 0;) { /* by generation, then by step */
		json_int_t x = json_integer_value(json_array_get(a, i)), y = json_integer_value(json_array_get(b, i));
		if (x != y)
			return x < y ? -1 : 1;
	}
	return 0;
}

/* Add to m->committed, newest first; the job's `keep` of them are remembered. Takes over `id`. */
static void add(struct hspmd_controller *m, json_t *id)
{
	size_t at = 0;
	if (!m->committed)
		m->committed = check_alloc(m, json_array());
	while (at < json_array_size(m->committed) && written_order(json_array_get(m->committed, at), id) > 0)
		at++;
	if (at < json_array_size(m->committed) && !written_order(json_array_get(m->committed, at), id))
		json_decref(id);
	else if (json_array_insert_new(m->committed, at, id))
		m->failed = true;
	while (json_array_size(m->committed) > (size_t)m->config->job->checkpoint.keep)
		json_array_remove(m->committed, json_array_size(m->committed) - 1);
}

void committed_restore(struct hspmd_controller *m, json_t *from)
{
	json_t *list = json_object_get(from, "committed"), *id;
	size_t i;
	m->committed_all = json_is_array(list); /* a controller of an earlier version wrote none */
	json_array_foreach(list, i, id)
		add(m, json_incref(id));
}

static bool all_have_answered(const struct hspmd_controller *m)
{
	bool all = true;
	for (size_t k = 0; k < m->nodes; k++)
		all &= !node_readable(m->node[k]) || json_object_get(m->checkpoint_search.found, m->node[k]->name);
	return all;
}

void committed_found(struct hspmd_controller *m, const json_t *chosen)
{
	const char *node;
	json_t *list, *one, *first = id_of(message_integer(chosen, "step", 0), message_integer(chosen, "generation", 0));
	size_t i;
	json_decref(m->committed);
	m->committed = NULL;
	json_object_foreach(m->checkpoint_search.found, node, list)
		json_array_foreach(list, i, one) {
			const char *place = json_string_value(json_object_get(one, "place"));
			json_t *id = json_object_get(one, "sum") && place && !strcmp(place, "local")
			                     ? id_of(message_integer(one, "step", 0), message_integer(one, "generation", 0))
			                     : NULL;
			if (id && written_order(id, first) <= 0) /* a later one is not whole */
				add(m, json_incref(id));
			json_decref(id);
		}
	json_decref(first);
	m->committed_all = all_have_answered(m);
}

void committed_none(struct hspmd_controller *m)
{
	const char *node;
	json_t *list, *one;
	size_t i;
	bool none = !m->committed && all_have_answered(m);
	json_object_foreach(m->checkpoint_search.found, node, list)
		json_array_foreach(list, i, one)
			none &= !json_object_get(one, "sum");
	m->committed_all |= none;
}

/* Tell all nodes which checkpoints in their folder stand. */
static void tell(struct hspmd_controller *m, const struct bound_plan *of, const char *folder, json_t *checkpoints)
{
	struct worker **one = hspmd_calloc((size_t)of->devices, sizeof *one);
	if (!one)
		m->failed = true;
	else
		send_workers(m, one, one_per_node(of->device, of->devices, one),
		             json_pack("{s:s, s:s, s:o}", "type", "committed", "folder", folder, "checkpoints", json_copy(checkpoints)));
	free(one);
}

void committed_in_memory(struct hspmd_controller *m, const struct bound_plan *of, int64_t step)
{
	json_t *newest = check_alloc(m, json_pack("[o]", id_of(step, of->generation)));
	if (newest)
		tell(m, of, m->config->memory, newest);
	json_decref(newest);
}

void committed_locally(struct hspmd_controller *m, const struct bound_plan *of, int64_t step)
{
	add(m, check_alloc(m, id_of(step, of->generation)));
	journal(m); /* before anything is removed */
	/* Whoever does not know all of them removes nothing until it knows as many as the job keeps. */
	if (!m->failed && committed_known(m))
		tell(m, of, m->config->local, m->committed);
}
