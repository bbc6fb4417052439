/* SPDX-License-Identifier: Apache-2.0 */
/* Writes measured links into a cluster: one entry per pair of types, and one per pair of nodes that differs from it. An assumed entry is
 * removed if everything that it covered was measured. */
#include <math.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/measure/measure.h"

/* Pairs whose times differ by less than this from those of their types, for small and large messages, get no entry of their own. */
#define TOLERANCE 0.25

struct curve {
	int from, to; /* devices */
	int count;
	double points[HSPMD_MEASURE_POINTS][2];
};

struct curves {
	struct hspmd_cluster *c;
	struct curve *list;
	size_t count, capacity, link_capacity;
};

static int read_curve(struct curves *all, int from, const json_t *at, struct hspmd_error *err)
{
	const json_t *points = json_object_get(at, "points");
	struct curve c = { .from = from, .to = (int)json_integer_value(json_object_get(at, "to")), .count = (int)json_array_size(points) };
	if (c.count < 2 || c.count > HSPMD_MEASURE_POINTS || c.to < 0 || c.to >= all->c->device_count || from < 0 ||
	    from >= all->c->device_count)
		return hspmd_fail(err, "a measured link cannot be read");
	for (int i = 0; i < c.count; i++)
		for (size_t k = 0; k < 2; k++)
			c.points[i][k] = json_number_value(json_array_get(json_array_get(points, (size_t)i), k));
	if (hspmd_array_grow(&all->list, &all->capacity, all->count, sizeof *all->list))
		return hspmd_fail_memory(err, "writing links");
	all->list[all->count++] = c;
	return 0;
}

static enum hspmd_link_scope scope_of(const struct curves *all, const struct curve *c)
{
	return all->c->devices[c->from].node == all->c->devices[c->to].node ? HSPMD_LINK_NODE : HSPMD_LINK_CLUSTER;
}

static bool is_of(const struct curves *all, const struct curve *c, enum hspmd_link_scope scope, int a, int b)
{
	int x = all->c->devices[c->from].type, y = all->c->devices[c->to].type;
	return scope_of(all, c) == scope && ((x == a && y == b) || (x == b && y == a));
}

static int add_link(struct curves *all, const struct hspmd_link *like, const double (*points)[2], int count)
{
	struct hspmd_cluster *c = all->c;
	if (hspmd_array_grow(&c->links, &all->link_capacity, (size_t)c->link_count, sizeof *c->links))
		return -1;
	struct hspmd_link l = *like;
	l.points = hspmd_calloc((size_t)count, sizeof *l.points);
	if (!l.points)
		return -1;
	memcpy(l.points, points, (size_t)count * sizeof *l.points);
	l.point_count = count;
	c->links[c->link_count++] = l;
	return 0;
}

/* The mean of the middle half of all curves of a pair of types, per point that at least one curve has. Returns the number of points; 0:
 * none measured, -1: memory. */
static int middle_curve(const struct curves *all, enum hspmd_link_scope scope, int a, int b, double points[HSPMD_MEASURE_POINTS][2])
{
	double *values = hspmd_calloc(all->count, sizeof *values);
	int count = 0;
	for (int k = 0; values && k < HSPMD_MEASURE_POINTS; k++) {
		int n = 0;
		for (size_t i = 0; i < all->count; i++) {
			const struct curve *c = &all->list[i];
			if (!is_of(all, c, scope, a, b) || k >= c->count)
				continue;
			values[n++] = c->points[k][1];
			points[k][0] = c->points[k][0];
		}
		if (!n)
			break;
		points[k][1] = hspmd_middle_mean(values, n);
		/* Fewer curves reach the larger sizes. */
		if (k && points[k][1] < points[k - 1][1])
			points[k][1] = points[k - 1][1];
		count++;
	}
	free(values);
	return values ? count : -1;
}

static bool differs(const struct curve *c, const double (*points)[2], int count)
{
	for (int k = 0; k < c->count && k < count; k++)
		if (fabs(c->points[k][1] - points[k][1]) > TOLERANCE * fmin(c->points[k][1], points[k][1]))
			return true;
	return false;
}

/* A node's own entry applies to its devices whatever their types, so it is possible only if the node has one pair of types. */
static bool nodes_say_types(const struct curves *all, const struct curve *c)
{
	const struct hspmd_cluster *cl = all->c;
	int ends[2] = { c->from, c->to };
	for (int side = 0; side < 2; side++) {
		const struct hspmd_node *n = &cl->nodes[cl->devices[ends[side]].node];
		for (int d = n->first_device; d < n->first_device + n->device_count; d++)
			if (cl->devices[d].type != cl->devices[ends[side]].type)
				return false;
	}
	return true;
}

static int add_of_types(struct curves *all, enum hspmd_link_scope scope, int a, int b)
{
	double points[HSPMD_MEASURE_POINTS][2];
	int count = middle_curve(all, scope, a, b, points);
	if (count <= 0)
		return count;
	struct hspmd_link of_types = { .scope = scope, .types = { a, b }, .nodes = { -1, -1 } };
	if (add_link(all, &of_types, points, count))
		return -1;
	for (size_t i = 0; i < all->count; i++) {
		const struct curve *c = &all->list[i];
		int x = all->c->devices[c->from].node, y = all->c->devices[c->to].node;
		struct hspmd_link of_nodes = { .scope = scope, .types = { -1, -1 }, .nodes = { x, y } };
		if (is_of(all, c, scope, a, b) && differs(c, points, count) && nodes_say_types(all, c) &&
		    add_link(all, &of_nodes, c->points, c->count))
			return -1;
	}
	return 0;
}

/* Returns true if there are two devices of these types within one node, or on two nodes. */
static bool pair_exists(const struct hspmd_cluster *c, enum hspmd_link_scope scope, int a, int b)
{
	int nodes_a = 0, nodes_b = 0, nodes_both = 0;
	for (int n = 0; n < c->node_count; n++) {
		int of_a = 0, of_b = 0;
		for (int d = c->nodes[n].first_device; d < c->nodes[n].first_device + c->nodes[n].device_count; d++) {
			of_a += c->devices[d].type == a;
			of_b += c->devices[d].type == b;
		}
		if (scope == HSPMD_LINK_NODE && of_a && of_b && (a != b || of_a > 1))
			return true;
		nodes_a += of_a > 0;
		nodes_b += of_b > 0;
		nodes_both += of_a && of_b;
	}
	/* On two nodes: one node with a, another with b. */
	return scope == HSPMD_LINK_CLUSTER && nodes_a && nodes_b && nodes_a + nodes_b - nodes_both > 1;
}

static bool all_measured(const struct curves *all, enum hspmd_link_scope scope)
{
	bool any = false;
	for (int a = 0; a < all->c->type_count; a++)
		for (int b = a; b < all->c->type_count; b++) {
			bool found = false;
			for (size_t i = 0; i < all->count && !found; i++)
				found = is_of(all, &all->list[i], scope, a, b);
			if (!found && pair_exists(all->c, scope, a, b))
				return false;
			any |= found;
		}
	return any;
}

static void drop_assumed(struct hspmd_cluster *c, enum hspmd_link_scope scope)
{
	int kept = 0;
	for (int i = 0; i < c->link_count; i++) {
		struct hspmd_link *l = &c->links[i];
		if (l->scope == scope && l->types[0] < 0 && l->nodes[0] < 0)
			free(l->points);
		else
			c->links[kept++] = *l;
	}
	c->link_count = kept;
}

int hspmd_measure_fill_links(const json_t *rows, struct hspmd_cluster *cluster, struct hspmd_error *err)
{
	struct curves all = { .c = cluster, .link_capacity = (size_t)cluster->link_count };
	size_t i, k;
	json_t *row, *at;
	int rv = 0;
	json_array_foreach((json_t *)rows, i, row)
		json_array_foreach(json_object_get(row, "links"), k, at)
			if (!rv)
				rv = read_curve(&all, (int)json_integer_value(json_object_get(row, "device")), at, err);
	for (int scope = HSPMD_LINK_NODE; !rv && scope <= HSPMD_LINK_CLUSTER; scope++) {
		if (all_measured(&all, (enum hspmd_link_scope)scope))
			drop_assumed(cluster, (enum hspmd_link_scope)scope);
		for (int a = 0; !rv && a < cluster->type_count; a++)
			for (int b = a; !rv && b < cluster->type_count; b++)
				if (add_of_types(&all, (enum hspmd_link_scope)scope, a, b))
					rv = hspmd_fail_memory(err, "writing links");
	}
	free(all.list);
	if (!rv && hspmd_cluster_reindex(cluster))
		rv = hspmd_fail_memory(err, "writing links");
	return rv;
}
