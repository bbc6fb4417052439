/* SPDX-License-Identifier: Apache-2.0 */
/* Routes: compositions of hops. Between source and destination a value may be reduced in place (all-reduce first), scattered over its
 * source (reduce-scatter first: fewer bytes to send on), scattered over its destination (every byte arrives once, then an all-gather) or
 * over each node of the destination (every byte enters each node once). A sum may begin within the nodes, so that fewer bytes go between
 * them. All compositions of these are costed and the cheapest is taken. */
#include <stdio.h>
#include <string.h>

#include "common/format/collective_cost.h"
#include "runtime/resharding/resolve_internal.h"

enum stop { SOURCE, REDUCED, SCATTERED, ENTERED, NODES, DESTINATION, STOPS };

static const enum stop PATHS[][4] = {
	{ SOURCE, DESTINATION },
	{ SOURCE, REDUCED, DESTINATION },
	{ SOURCE, SCATTERED, DESTINATION },
	{ SOURCE, ENTERED, DESTINATION },
	{ SOURCE, NODES, DESTINATION },
	{ SOURCE, SCATTERED, ENTERED, DESTINATION },
	{ SOURCE, SCATTERED, NODES, DESTINATION },
	{ SOURCE, REDUCED, ENTERED, DESTINATION },
	{ SOURCE, REDUCED, NODES, DESTINATION },
	{ SOURCE, ENTERED, NODES, DESTINATION },
};
#define PATH_COUNT (sizeof PATHS / sizeof *PATHS)

/* The stops between a source and a destination, and the hops between them that are known so far. */
struct map {
	struct resolver *r;
	const struct placement *at[STOPS]; /* NULL: the stop does not exist */
	struct hop hop[STOPS][STOPS];
	enum { UNKNOWN, FOUND, NOT_OFFERED } known[STOPS][STOPS];
};

struct candidates {
	size_t count, capacity;
	struct route *route;
};

static bool is_new(const struct map *m, enum stop s)
{
	for (enum stop t = SOURCE; t < STOPS; t++)
		if ((t < s || t == DESTINATION) && m->at[t] && (m->at[t] == m->at[s] || hspmd_placement_equal(m->at[t], m->at[s])))
			return false;
	return true;
}

static int find_stops(struct map *m, const struct placement *from, const struct placement *to)
{
	struct resolver *r = m->r;
	m->at[SOURCE] = from;
	m->at[DESTINATION] = to;
	m->at[ENTERED] = hspmd_placement_scattered(r, to, from, false);
	m->at[NODES] = hspmd_placement_scattered(r, to, from, true);
	if (!m->at[ENTERED] || !m->at[NODES])
		return -1;
	if (hspmd_placement_is_partial(from)) {
		m->at[REDUCED] = hspmd_placement_reduced(r, from);
		m->at[SCATTERED] = hspmd_placement_scattered(r, from, to, false);
		if (!m->at[REDUCED] || !m->at[SCATTERED])
			return -1;
	}
	for (enum stop s = REDUCED; s < DESTINATION; s++)
		if (m->at[s] && !is_new(m, s))
			m->at[s] = NULL;
	return 0;
}

/* 0 found, 1 not offered, -1 failed. */
static int hop_between(struct map *m, enum stop from, enum stop to, bool bounded)
{
	if (m->known[from][to] == UNKNOWN) {
		int rc = hspmd_hop_find(m->r, m->at[from], m->at[to], bounded, &m->hop[from][to]);
		if (rc < 0)
			return -1;
		m->known[from][to] = rc == 0 ? FOUND : NOT_OFFERED;
	}
	return m->known[from][to] == FOUND ? 0 : 1;
}

/* Fills route->seconds. */
static int cost_route(struct resolver *r, struct route *route)
{
	struct hspmd_comm_step *all = NULL;
	double *network_busy = hspmd_arena_alloc(r->arena, 2 * (size_t)r->node_count, sizeof *network_busy);
	size_t count = 0, capacity = 0;
	for (int h = 0; h < route->hop_count && network_busy; h++) {
		for (int p = 0; p < 2 * r->node_count; p++)
			network_busy[p] += route->hop[h].network_busy[p];
		for (size_t s = 0; s < route->hop[h].count; s++) {
			if (hspmd_arena_array_grow(r->arena, &all, &capacity, count, sizeof *all) != 0)
				return hspmd_fail_memory(r->err, "resolving");
			all[count++] = route->hop[h].step[s];
		}
	}
	if (!network_busy)
		return hspmd_fail_memory(r->err, "resolving");
	route->seconds = hspmd_steps_seconds(r, all, count, network_busy);
	return 0;
}

/* The route of one path, after `before` (NULL: none) has brought the value to the map's source. 0 added, 1 not offered, -1 failed. */
static int follow(struct map *m, const enum stop *path, const struct hop *before, bool bounded, struct candidates *list)
{
	struct route route = { 0 };
	if (before) {
		route.hop[route.hop_count++] = *before;
		route.between[0] = m->at[SOURCE];
	}
	for (; *path != DESTINATION; path++) {
		int rc = m->at[path[0]] && m->at[path[1]] ? hop_between(m, path[0], path[1], bounded) : 1;
		if (rc != 0)
			return rc;
		if (route.hop_count > 0)
			route.between[route.hop_count - 1] = m->at[path[0]];
		route.hop[route.hop_count++] = m->hop[path[0]][path[1]];
	}
	if (cost_route(m->r, &route) != 0)
		return -1;
	if (hspmd_arena_array_grow(m->r->arena, &list->route, &list->capacity, list->count, sizeof *list->route) != 0)
		return hspmd_fail_memory(m->r->err, "resolving");
	list->route[list->count++] = route;
	return 0;
}

static int follow_all(struct resolver *r, const struct placement *from, const struct placement *to, const struct hop *before,
                      struct candidates *list)
{
	struct map *m = hspmd_arena_alloc(r->arena, 1, sizeof *m);
	if (!m)
		return hspmd_fail_memory(r->err, "resolving");
	m->r = r;
	if (find_stops(m, from, to) != 0)
		return hspmd_fail_memory(r->err, "resolving");
	for (size_t p = 0; p < PATH_COUNT; p++)
		if (follow(m, PATHS[p], before, true, list) < 0)
			return -1;
	if (list->count > 0)
		return 0;
	m->known[SOURCE][DESTINATION] = UNKNOWN;
	return follow(m, PATHS[0], before, false, list);
}

/* Sums within all nodes at once. 0 found, 1 not offered, -1 failed. */
static int hop_within(struct resolver *r, const struct placement *from, const struct placement *within, struct hop *hop)
{
	*hop = (struct hop){ .network_busy = hspmd_arena_alloc(r->arena, 2 * (size_t)r->node_count, sizeof *hop->network_busy) };
	if (!hop->network_busy)
		return hspmd_fail_memory(r->err, "resolving");
	for (int node = 0; node < r->node_count; node++) {
		struct hspmd_arena *own = r->arena;
		r->arena = r->scratch[SCRATCH_NODE];
		hspmd_arena_clear(r->arena);
		struct placement *x = hspmd_placement_of_node(r, from, node), *y = hspmd_placement_of_node(r, within, node);
		struct hop part;
		r->arena = own;
		if (!x || !y)
			return hspmd_fail_memory(r->err, "resolving");
		for (int i = 0; i < y->count; i++)
			y->piece[i].addends = 1; /* within its node it is the full value */
		int rc = hspmd_hop_find(r, x, y, true, &part);
		if (rc != 0)
			return rc;
		for (size_t s = 0; s < part.count; s++) {
			if (hspmd_arena_array_grow(r->arena, &hop->step, &hop->capacity, hop->count, sizeof *hop->step) != 0)
				return hspmd_fail_memory(r->err, "resolving");
			hop->step[hop->count++] = part.step[s];
		}
	}
	return 0;
}

/* ---- explaining */

/* "reduce-scatter, 2 padded all-gather": the steps that communicate, by kind. */
static char *name_route(struct resolver *r, const struct route *route)
{
	const size_t size = 256;
	char *name = hspmd_arena_alloc(r->arena, size, 1);
	size_t n = 0;
	for (int h = 0; h < route->hop_count && name; h++)
		for (int kind = 0; kind < HSPMD_COMM_KIND_COUNT; kind++) {
			int count = 0;
			const char *form = "";
			for (size_t s = 0; s < route->hop[h].count; s++) {
				const struct hspmd_comm_step *step = &route->hop[h].step[s];
				count += (int)step->kind == kind;
				if ((int)step->kind == kind && step->form > HSPMD_FORM_EVEN)
					form = step->form == HSPMD_FORM_PADDED ? "padded " : "grouped ";
			}
			if (count == 0 || n + 50 > size)
				continue;
			n += (size_t)snprintf(name + n, size - n, "%s", n ? ", " : "");
			if (count > 1)
				n += (size_t)snprintf(name + n, size - n, "%d ", count);
			n += (size_t)snprintf(name + n, size - n, "%s%s", form, hspmd_comm_kind_names[kind]);
		}
	return name;
}

/* Explains the best route: its seconds, and those of every route with another name. */
static int explain(struct resolver *r, const struct candidates *list, struct route *best)
{
	size_t size = list->count * 300 + 1, n = 0;
	char *why = hspmd_arena_alloc(r->arena, size, 1), *chosen = name_route(r, best);
	const char *word = " over ";
	if (!why || !chosen)
		return hspmd_fail_memory(r->err, "resolving");
	n += (size_t)snprintf(why, size, "%s (%.3g s)", chosen, best->seconds);
	for (size_t i = 0; i < list->count; i++) {
		char *name = name_route(r, &list->route[i]);
		if (!name)
			return hspmd_fail_memory(r->err, "resolving");
		if (strcmp(name, chosen) == 0)
			continue;
		n += (size_t)snprintf(why + n, size - n, "%s%s (%.3g s)", word, name, list->route[i].seconds);
		word = "; ";
	}
	best->why = why;
	return 0;
}

static double worth(const struct route *route)
{
	return route->seconds * (1 + HSPMD_WORTH_A_HOP * (route->hop_count - 1));
}

/* On a tie the route with fewer hops, then the earlier one. */
static const struct route *choose(const struct candidates *list)
{
	const struct route *best = &list->route[0];
	for (size_t i = 1; i < list->count; i++) {
		const struct route *other = &list->route[i];
		if (hspmd_cheaper(worth(other), worth(best)) ||
		    (!hspmd_cheaper(worth(best), worth(other)) && other->hop_count < best->hop_count))
			best = other;
	}
	return best;
}

int hspmd_route_find(struct resolver *r, const struct placement *from, const struct placement *to, struct route *route)
{
	struct candidates list = { 0 };
	if (follow_all(r, from, to, NULL, &list) != 0)
		return -1;
	const struct placement *within = hspmd_placement_reduced_per_node(r, from, to);
	if (!within)
		return hspmd_fail_memory(r->err, "resolving");
	if (within != from) {
		struct hop before;
		int rc = hop_within(r, from, within, &before);
		if (rc < 0 || (rc == 0 && follow_all(r, within, to, &before, &list) < 0))
			return -1;
	}
	*route = *choose(&list);
	return explain(r, &list, route);
}
