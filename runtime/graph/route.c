/* SPDX-License-Identifier: Apache-2.0 */
/* Routes: compositions of hops. Between source and destination a value may stand reduced in place (all-reduce first), scattered over its source
 * (reduce-scatter first: less to send on) and scattered over its destination (every byte enters once, then an all-gather). All compositions of these
 * are costed and the cheapest is taken. */
#include <stdio.h>
#include <string.h>

#include "runtime/graph/resolver.h"

/* More additions than this are listed one by one only where nothing else is possible. */
#define ADD_LIMIT 4096

enum stop { SOURCE, REDUCED, SCATTERED, ENTERED, DESTINATION, STOPS };

static const enum stop PATHS[][4] = {
	{ SOURCE, DESTINATION },
	{ SOURCE, REDUCED, DESTINATION },
	{ SOURCE, SCATTERED, DESTINATION },
	{ SOURCE, ENTERED, DESTINATION },
	{ SOURCE, SCATTERED, ENTERED, DESTINATION },
	{ SOURCE, REDUCED, ENTERED, DESTINATION },
};
#define PATH_COUNT (sizeof PATHS / sizeof *PATHS)

struct map {
	struct resolver *r;
	const struct placement *at[STOPS]; /* NULL: not a stop of its own */
	struct hop hop[STOPS][STOPS];
	int known[STOPS][STOPS]; /* 0: not yet, 1: found, 2: not offered */
	struct route route[PATH_COUNT]; /* hop_count 0: not possible */
	char name[PATH_COUNT][96];
};

static int find_stops(struct map *m, const struct placement *from, const struct placement *to)
{
	struct resolver *r = m->r;
	m->at[SOURCE] = from;
	m->at[DESTINATION] = to;
	if (hspmd_placement_is_partial(from)) {
		m->at[REDUCED] = hspmd_placement_reduced(r, from);
		m->at[SCATTERED] = hspmd_placement_scattered(r, from, NULL);
		if (!m->at[REDUCED] || !m->at[SCATTERED])
			return -1;
		if (m->at[SCATTERED] == from)
			m->at[SCATTERED] = NULL;
	}
	m->at[ENTERED] = hspmd_placement_scattered(r, to, from);
	if (!m->at[ENTERED])
		return -1;
	for (enum stop s = REDUCED; s < DESTINATION; s++)
		for (enum stop t = SOURCE; t < STOPS; t++)
			if (s != t && m->at[s] && m->at[t] && (t < s || t == DESTINATION) && hspmd_placement_equal(m->at[s], m->at[t]))
				m->at[s] = NULL;
	return 0;
}

/* 0 found, 1 not offered, -1 failed. */
static int hop_between(struct map *m, enum stop from, enum stop to, size_t add_limit)
{
	if (m->known[from][to] == 0) {
		int rc = hspmd_hop_find(m->r, m->at[from], m->at[to], add_limit, &m->hop[from][to]);
		if (rc < 0)
			return -1;
		m->known[from][to] = rc == 0 ? 1 : 2;
	}
	return m->known[from][to] == 1 ? 0 : 1;
}

static int follow(struct map *m, size_t path, size_t add_limit)
{
	struct route *route = &m->route[path];
	struct hspmd_comm_step *all = NULL;
	size_t count = 0, capacity = 0;
	int hops = 0;
	for (; PATHS[path][hops] != DESTINATION; hops++) {
		enum stop from = PATHS[path][hops], to = PATHS[path][hops + 1];
		int rc = m->at[from] && m->at[to] ? hop_between(m, from, to, add_limit) : 1;
		if (rc != 0)
			return rc;
		route->hop[hops] = m->hop[from][to];
		if (hops > 0)
			route->between[hops - 1] = m->at[from];
		for (size_t s = 0; s < m->hop[from][to].count; s++) {
			if (hspmd_arena_grow(m->r->arena, &all, &capacity, count, sizeof *all) != 0)
				return hspmd_fail_memory(m->r->err, "resolving");
			all[count++] = m->hop[from][to].step[s];
		}
	}
	route->seconds = hspmd_steps_seconds(m->r, all, count);
	if (route->seconds < 0)
		return hspmd_fail_memory(m->r->err, "resolving");
	route->hop_count = hops;
	return 0;
}

/* "reduce-scatter, 2 all-gather": the steps that talk, by kind. */
static void name_route(const struct route *route, char *name, size_t size)
{
	size_t n = 0;
	name[0] = '\0';
	for (int h = 0; h < route->hop_count; h++)
		for (int kind = 0; kind < HSPMD_COMM_KIND_COUNT; kind++) {
			int count = 0;
			for (size_t s = 0; s < route->hop[h].count; s++)
				count += (int)route->hop[h].step[s].kind == kind;
			if (count == 0 || n >= size)
				continue;
			n += (size_t)snprintf(name + n, size - n, "%s", n ? ", " : "");
			if (count > 1 && n < size)
				n += (size_t)snprintf(name + n, size - n, "%d ", count);
			if (n < size)
				n += (size_t)snprintf(name + n, size - n, "%s", hspmd_comm_words[kind]);
		}
}

static int explain(struct map *m, size_t best, struct route *route)
{
	size_t size = PATH_COUNT * (sizeof m->name[0] + 32), n = 0;
	char *why = hspmd_arena_alloc(m->r->arena, size, 1);
	if (!why)
		return hspmd_fail_memory(m->r->err, "resolving");
	for (size_t p = 0; p < PATH_COUNT; p++)
		if (m->route[p].hop_count)
			name_route(&m->route[p], m->name[p], sizeof m->name[p]);
	n += (size_t)snprintf(why, size, "%s (%.3g s)", m->name[best], m->route[best].seconds);
	const char *word = " over ";
	for (size_t p = 0; p < PATH_COUNT; p++) {
		if (p == best || m->route[p].hop_count == 0 || (strcmp(m->name[p], m->name[best]) == 0))
			continue;
		n += (size_t)snprintf(why + n, size - n, "%s%s (%.3g s)", word, m->name[p], m->route[p].seconds);
		word = "; ";
	}
	route->why = why;
	return 0;
}

/* On a tie the path with fewer hops, then the earlier one. */
static int choose(struct map *m)
{
	int best = -1;
	for (size_t p = 0; p < PATH_COUNT; p++) {
		const struct route *route = &m->route[p];
		if (route->hop_count == 0)
			continue;
		if (best < 0 || route->seconds < m->route[best].seconds ||
		    (!(route->seconds > m->route[best].seconds) && route->hop_count < m->route[best].hop_count))
			best = (int)p;
	}
	return best;
}

int hspmd_route_find(struct resolver *r, const struct placement *from, const struct placement *to, struct route *route)
{
	struct map *m = hspmd_arena_alloc(r->arena, 1, sizeof *m);
	if (!m)
		return hspmd_fail_memory(r->err, "resolving");
	m->r = r;
	if (find_stops(m, from, to) != 0)
		return hspmd_fail_memory(r->err, "resolving");
	for (size_t p = 0; p < PATH_COUNT; p++)
		if (follow(m, p, ADD_LIMIT) < 0)
			return -1;
	int best = choose(m);
	if (best < 0) {
		m->known[SOURCE][DESTINATION] = 0;
		if (follow(m, 0, 0) != 0)
			return -1;
		best = 0;
	}
	*route = m->route[best];
	return explain(m, (size_t)best, route);
}
