/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups in a cluster: nodes by name, devices by address, links by what talks.
 *
 * The planner asks for links millions of times, so each link becomes one entry per direction in an array sorted by what it is for; a table
 * of all pairs of types leads straight to the few entries of a pair. Without an index the same questions are answered by looking at
 * every link, which is also what the index is tested against. */
#include "common/format/cluster_index.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hostlist.h"

#define NODES_SHOWN 200 /* bytes of the list of nodes in a message */

/* Scopes of a link, from the most specific. */
enum level { FOR_NODES, FOR_TYPES, FOR_ALL };

/* One direction of one link. */
struct entry {
	int level, scope;
	int a, b;    /* nodes or types, 0 for FOR_ALL */
	int gpus[2]; /* 0, 0: any */
	int link;
};

struct named {
	const char *name;
	int node;
};

/* entries[first, end) */
struct cell {
	int first, end;
};

struct hspmd_cluster_index {
	int type_count, entry_count;
	int most_gpus;       /* largest number in `gpus` of an entry */
	int node_entries[2]; /* entries[0, n) of scope 0, then up to [1]: those for nodes */
	struct named *by_name;
	struct entry *entries;
	struct cell *by_types[2]; /* [scope][type a * type_count + type b] */
	struct cell all[2];
};

/* ---- making it */

static int compare_named(const void *a, const void *b)
{
	return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

static int order(int a, int b)
{
	return (a > b) - (a < b);
}

static int compare_places(const struct entry *a, const struct entry *b)
{
	int c = order(a->level, b->level);
	c = c ? c : order(a->scope, b->scope);
	c = c ? c : order(a->a, b->a);
	return c ? c : order(a->b, b->b);
}

/* Entries without gpus come first among those of one place. */
static int compare_entries(const void *pa, const void *pb)
{
	const struct entry *a = pa, *b = pb;
	int c = compare_places(a, b);
	c = c ? c : order(a->gpus[0], b->gpus[0]);
	c = c ? c : order(a->gpus[1], b->gpus[1]);
	return c ? c : order(a->link, b->link);
}

static struct entry link_entry(const struct hspmd_link *l, int number)
{
	struct entry e = { .level = FOR_ALL, .scope = (int)l->scope, .gpus = { l->gpus[0], l->gpus[1] }, .link = number };
	if (l->nodes[0] >= 0) {
		e.level = FOR_NODES;
		e.a = l->nodes[0];
		e.b = l->nodes[1];
	} else if (l->types[0] >= 0) {
		e.level = FOR_TYPES;
		e.a = l->types[0];
		e.b = l->types[1];
	}
	return e;
}

static struct entry turned(struct entry e)
{
	return (struct entry){ .level = e.level, .scope = e.scope, .a = e.b, .b = e.a, .gpus = { e.gpus[1], e.gpus[0] }, .link = e.link };
}

static void fill_entries(const struct hspmd_cluster *c, struct hspmd_cluster_index *x)
{
	for (int i = 0; i < c->link_count; i++) {
		struct entry e = link_entry(&c->links[i], i);
		for (int side = 0; side < 2; side++)
			x->most_gpus = e.gpus[side] > x->most_gpus ? e.gpus[side] : x->most_gpus;
		x->entries[x->entry_count++] = e;
		if (e.a != e.b || e.gpus[0] != e.gpus[1])
			x->entries[x->entry_count++] = turned(e);
	}
	qsort(x->entries, (size_t)x->entry_count, sizeof *x->entries, compare_entries);
}

static void fill_cells(struct hspmd_cluster_index *x)
{
	for (int i = 0, end; i < x->entry_count; i = end) {
		const struct entry *e = &x->entries[i];
		for (end = i + 1; end < x->entry_count && !compare_places(e, &x->entries[end]); end++)
			;
		struct cell cell = { i, end };
		if (e->level == FOR_TYPES)
			x->by_types[e->scope][e->a * x->type_count + e->b] = cell;
		else if (e->level == FOR_ALL)
			x->all[e->scope] = cell;
		else
			x->node_entries[e->scope] = end;
	}
	if (x->node_entries[1] < x->node_entries[0])
		x->node_entries[1] = x->node_entries[0];
}

int hspmd_cluster_reindex(struct hspmd_cluster *c)
{
	size_t cells = (size_t)c->type_count * (size_t)c->type_count;
	size_t named_bytes = (size_t)c->node_count * sizeof(struct named);
	size_t entry_bytes = (size_t)c->link_count * 2 * sizeof(struct entry);
	struct hspmd_cluster_index *x = calloc(1, sizeof *x + named_bytes + entry_bytes + 2 * cells * sizeof(struct cell));
	if (!x)
		return -1;
	x->type_count = c->type_count;
	x->by_name = (struct named *)(x + 1);
	x->entries = (struct entry *)(x->by_name + c->node_count);
	x->by_types[0] = (struct cell *)(x->entries + 2 * (size_t)c->link_count);
	x->by_types[1] = x->by_types[0] + cells;
	for (int i = 0; i < c->node_count; i++)
		x->by_name[i] = (struct named){ c->nodes[i].name, i };
	qsort(x->by_name, (size_t)c->node_count, sizeof *x->by_name, compare_named);
	fill_entries(c, x);
	fill_cells(x);
	free(c->index);
	c->index = x;
	return 0;
}

const char *hspmd_cluster_repeated_node(const struct hspmd_cluster *c)
{
	for (int i = 1; i < c->node_count; i++)
		if (!compare_named(&c->index->by_name[i - 1], &c->index->by_name[i]))
			return c->index->by_name[i].name;
	return NULL;
}

bool hspmd_cluster_repeated_link(const struct hspmd_cluster *c, int *first, int *second)
{
	const struct hspmd_cluster_index *x = c->index;
	for (int i = 1; i < x->entry_count; i++) {
		const struct entry *a = &x->entries[i - 1], *b = &x->entries[i];
		if (a->link == b->link || compare_places(a, b) || a->gpus[0] != b->gpus[0] || a->gpus[1] != b->gpus[1])
			continue;
		*first = a->link;
		*second = b->link;
		return true;
	}
	return false;
}

/* ---- names and addresses */

int hspmd_cluster_find_type(const struct hspmd_cluster *c, const char *name)
{
	for (int i = 0; i < c->type_count; i++)
		if (!strcmp(c->types[i].name, name))
			return i;
	return -1;
}

int hspmd_cluster_find_node(const struct hspmd_cluster *c, const char *name)
{
	if (c->index) {
		struct named key = { name, 0 };
		const struct named *hit = bsearch(&key, c->index->by_name, (size_t)c->node_count, sizeof key, compare_named);
		return hit ? hit->node : -1;
	}
	for (int i = 0; i < c->node_count; i++)
		if (!strcmp(c->nodes[i].name, name))
			return i;
	return -1;
}

static int no_such_node(const struct hspmd_cluster *c, const char *address, const char *node, struct hspmd_error *err)
{
	char **names = hspmd_calloc((size_t)c->node_count, sizeof *names);
	for (int i = 0; names && i < c->node_count; i++)
		names[i] = c->nodes[i].name;
	char *there = names ? hspmd_hostlist_fold(names, c->node_count) : NULL;
	free(names);
	if (there)
		hspmd_fail(err, "%s: there is no node \"%s\"; nodes are %.*s%s", address, node, NODES_SHOWN, there,
		           strlen(there) > NODES_SHOWN ? "..." : "");
	else
		hspmd_fail(err, "%s: there is no node \"%s\"", address, node);
	free(there);
	return -1;
}

static const char *read_index(const char *text, int *value)
{
	size_t n = strspn(text, "0123456789");
	if (!n || n > 9)
		return NULL;
	*value = (int)strtol(text, NULL, 10);
	return text + n;
}

/* "node:first-last" or "node:index" to the node and the run of indexes. */
static int parse_run(const struct hspmd_cluster *c, const char *run, int *node, int *first, int *last, struct hspmd_error *err)
{
	char name[256];
	const char *colon = strrchr(run, ':');
	size_t n = colon ? (size_t)(colon - run) : 0;
	if (!n || n >= sizeof name)
		return hspmd_fail(err, "\"%.80s\": expected a device as node:index or node:first-last", run);
	memcpy(name, run, n);
	name[n] = '\0';
	const char *p = read_index(colon + 1, first);
	*last = *first;
	if (p && *p == '-')
		p = read_index(p + 1, last);
	if (!p || *p)
		return hspmd_fail(err, "\"%.80s\": expected a device as node:index or node:first-last", run);
	*node = hspmd_cluster_find_node(c, name);
	if (*node < 0)
		return no_such_node(c, run, name, err);
	int count = c->nodes[*node].device_count;
	if (*last < *first)
		return hspmd_fail(err, "%s: the run goes backwards", run);
	if (count == 0)
		return hspmd_fail(err, "%s: node %s has no devices", run, name);
	if (*last >= count)
		return hspmd_fail(err, "%s: node %s has devices 0..%d only", run, name, count - 1);
	return 0;
}

int hspmd_cluster_find_device(const struct hspmd_cluster *c, const char *address, struct hspmd_error *err)
{
	int node, first, last;
	if (parse_run(c, address, &node, &first, &last, err))
		return -1;
	if (first != last)
		return hspmd_fail(err, "%s: expected one device, not a run of them", address);
	return c->nodes[node].first_device + first;
}

int hspmd_cluster_expand_devices(const struct hspmd_cluster *c, const char *run, int *out, int max, struct hspmd_error *err)
{
	int node, first, last;
	if (parse_run(c, run, &node, &first, &last, err))
		return -1;
	if (last - first + 1 > max)
		return hspmd_fail(err, "%s: more devices than can be used here", run);
	for (int i = first; i <= last; i++)
		out[i - first] = c->nodes[node].first_device + i;
	return last - first + 1;
}

const char *hspmd_cluster_device_address(const struct hspmd_cluster *c, int device, char *buf, size_t size)
{
	const struct hspmd_cluster_device *d = &c->devices[device];
	snprintf(buf, size, "%s:%d", c->nodes[d->node].name, d->index);
	return buf;
}

/* ---- links */

/* The entry of a cell for exactly these gpus, or else the entry without gpus. */
static const struct hspmd_link *in_cell(const struct hspmd_cluster *c, struct cell cell, int n, int m)
{
	const struct entry *entries = c->index->entries, *any = NULL;
	for (int i = cell.first; i < cell.end; i++) {
		if (entries[i].gpus[0] == n && entries[i].gpus[1] == m)
			return &c->links[entries[i].link];
		if (entries[i].gpus[0] == 0)
			any = &entries[i];
	}
	return any ? &c->links[any->link] : NULL;
}

/* The entries for a pair of nodes, by binary search. */
static struct cell node_cell(const struct hspmd_cluster_index *x, int scope, int a, int b)
{
	struct entry key = { .level = FOR_NODES, .scope = scope, .a = a, .b = b };
	int end = x->node_entries[scope], low = scope ? x->node_entries[0] : 0, high = end;
	while (low < high) {
		int middle = low + (high - low) / 2;
		if (compare_places(&x->entries[middle], &key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	struct cell cell = { low, low };
	while (cell.end < end && !compare_places(&x->entries[cell.end], &key))
		cell.end++;
	return cell;
}

/* The same answer without an index. */
static const struct hspmd_link *search_links(const struct hspmd_cluster *c, const struct entry *wanted, int n, int m)
{
	const struct hspmd_link *any = NULL;
	for (int i = 0; i < c->link_count; i++) {
		struct entry there = link_entry(&c->links[i], i);
		struct entry back = turned(there);
		bool forward = !compare_places(&there, wanted), backward = !compare_places(&back, wanted);
		if ((forward && there.gpus[0] == n && there.gpus[1] == m) || (backward && back.gpus[0] == n && back.gpus[1] == m))
			return &c->links[i];
		if ((forward || backward) && !there.gpus[0])
			any = &c->links[i];
	}
	return any;
}

const struct hspmd_link *hspmd_cluster_find_link(const struct hspmd_cluster *c, int a, int b, int n, int m)
{
	const struct hspmd_cluster_device *da = &c->devices[a], *db = &c->devices[b];
	const struct hspmd_cluster_index *x = c->index;
	int scope = da->node == db->node ? HSPMD_LINK_NODE : HSPMD_LINK_CLUSTER;
	if (a == b)
		return NULL;
	if (!x) {
		struct entry nodes = { .level = FOR_NODES, .scope = scope, .a = da->node, .b = db->node };
		struct entry types = { .level = FOR_TYPES, .scope = scope, .a = da->type, .b = db->type };
		struct entry all = { .level = FOR_ALL, .scope = scope };
		const struct hspmd_link *hit = search_links(c, &nodes, n, m);
		hit = hit ? hit : search_links(c, &types, n, m);
		return hit ? hit : search_links(c, &all, n, m);
	}
	const struct hspmd_link *hit = NULL;
	if (x->node_entries[1])
		hit = in_cell(c, node_cell(x, scope, da->node, db->node), n, m);
	if (!hit)
		hit = in_cell(c, x->by_types[scope][da->type * x->type_count + db->type], n, m);
	return hit ? hit : in_cell(c, x->all[scope], n, m);
}

bool hspmd_cluster_names_nodes(const struct hspmd_cluster *c)
{
	return !c->index || c->index->node_entries[1] > 0;
}

int hspmd_cluster_most_gpus(const struct hspmd_cluster *c)
{
	return c->index ? c->index->most_gpus : INT_MAX;
}

double hspmd_link_seconds(const struct hspmd_link *link, double bytes)
{
	if (!link->point_count)
		return link->alpha_s + bytes / (link->gbytes_per_s * 1e9);
	const double(*p)[2] = (const double(*)[2])link->points;
	int low = 0, high = link->point_count - 1; /* the segment [low, low + 1] */
	while (high - low > 1) {
		int middle = low + (high - low) / 2;
		if (p[middle][0] <= bytes)
			low = middle;
		else
			high = middle;
	}
	double slope = (p[low + 1][1] - p[low][1]) / (p[low + 1][0] - p[low][0]);
	double seconds = p[low][1] + slope * (bytes - p[low][0]);
	return seconds > 0 ? seconds : 0;
}
