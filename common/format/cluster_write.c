/* SPDX-License-Identifier: Apache-2.0 */
/* Writing hspmd-cluster-1. Every helper returns a new reference, or NULL: out of memory. */
#include "common/format/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/hostlist.h"
#include "common/json.h"

#define COUNT_MAX 1024 /* devices of one entry, as the reader allows */

static json_t *rates(const double *values)
{
	json_t *o = json_object();
	int bad = !o;
	for (int p = 0; p < HSPMD_PRECISION_COUNT; p++)
		if (values[p] > 0)
			bad |= json_object_set_new(o, hspmd_precision_names[p], hspmd_json_real(values[p]));
	return hspmd_json_unless_failed(bad, o);
}

static bool any_rate(const double *values)
{
	for (int p = 0; p < HSPMD_PRECISION_COUNT; p++)
		if (values[p] > 0)
			return true;
	return false;
}

json_t *hspmd_product_blocks_to_json(const struct hspmd_product_blocks *b)
{
	return json_pack("{s:I, s:I, s:I}", "depth", (json_int_t)b->depth, "columns", (json_int_t)b->columns, "rows", (json_int_t)b->rows);
}

json_t *hspmd_host_memory_to_json(const struct hspmd_host_memory *h)
{
	return json_pack("{s:I, s:o}", "memory_bytes", (json_int_t)h->memory_bytes, "gbytes_per_s", hspmd_json_real(h->gbytes_per_s));
}

static json_t *type_json(const struct hspmd_device_type *t)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "kind", json_string(hspmd_device_kind_names[t->kind]));
	bad |= json_object_set_new(o, "memory_bytes", json_integer(t->memory_bytes));
	bad |= json_object_set_new(o, "gbytes_per_s", hspmd_json_real(t->gbytes_per_s));
	if (any_rate(t->peak_tflops))
		bad |= json_object_set_new(o, "peak_tflops", rates(t->peak_tflops));
	if (any_rate(t->tflops))
		bad |= json_object_set_new(o, "tflops", rates(t->tflops));
	if (t->operator_s > 0)
		bad |= json_object_set_new(o, "operator_s", hspmd_json_real(t->operator_s));
	if (t->compute_capability)
		bad |= json_object_set_new(o, "compute_capability", hspmd_json_real(t->compute_capability / 10.0));
	if (t->product_blocks.depth)
		bad |= json_object_set_new(o, "product_blocks", hspmd_product_blocks_to_json(&t->product_blocks));
	if (t->host.memory_bytes)
		bad |= json_object_set_new(o, "host", hspmd_host_memory_to_json(&t->host));
	return hspmd_json_unless_failed(bad, o);
}

static json_t *types_json(const struct hspmd_cluster *c)
{
	json_t *o = json_object();
	int bad = !o;
	for (int i = 0; i < c->type_count; i++)
		bad |= json_object_set_new(o, c->types[i].name, type_json(&c->types[i]));
	return hspmd_json_unless_failed(bad, o);
}

/* ---- nodes */

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

/* Returns true if two nodes can share an entry: they are equal except for the name. */
static bool alike(const struct hspmd_cluster *c, int i, int j)
{
	const struct hspmd_node *a = &c->nodes[i], *b = &c->nodes[j];
	if (a->device_count != b->device_count || a->slowdown != b->slowdown || a->network_gbytes_per_s != b->network_gbytes_per_s ||
	    a->price_per_hour != b->price_per_hour || !same_text(a->rack, b->rack) || a->member != b->member)
		return false;
	for (int k = 0; k < a->device_count; k++) {
		const struct hspmd_cluster_device *x = &c->devices[a->first_device + k], *y = &c->devices[b->first_device + k];
		if (x->type != y->type || x->numa != y->numa || !same_text(x->pci, y->pci))
			return false;
	}
	return true;
}

static json_t *device_runs(const struct hspmd_cluster *c, const struct hspmd_node *n)
{
	const struct hspmd_cluster_device *d = &c->devices[n->first_device];
	json_t *runs = json_array();
	int bad = !runs;
	for (int i = 0, end; i < n->device_count; i = end) {
		for (end = i + 1; end < n->device_count && d[end].type == d[i].type && end - i < COUNT_MAX; end++)
			;
		bad |= json_array_append_new(runs, json_pack("{s:s, s:i}", "type", c->types[d[i].type].name, "count", end - i));
	}
	return hspmd_json_unless_failed(bad, runs);
}

/* An array with one value per device, if any device has one. */
static int set_places(json_t *o, const struct hspmd_cluster *c, const struct hspmd_node *n)
{
	const struct hspmd_cluster_device *d = &c->devices[n->first_device];
	bool has_numa = false, has_pci = false;
	for (int i = 0; i < n->device_count; i++) {
		has_numa |= d[i].numa >= 0;
		has_pci |= d[i].pci != NULL;
	}
	json_t *numa = json_array(), *pci = json_array();
	int bad = !numa || !pci;
	for (int i = 0; i < n->device_count; i++) {
		if (has_numa)
			bad |= json_array_append_new(numa, d[i].numa >= 0 ? json_integer(d[i].numa) : json_null());
		if (has_pci)
			bad |= json_array_append_new(pci, d[i].pci ? json_string(d[i].pci) : json_null());
	}
	if (has_numa)
		bad |= json_object_set(o, "numa", numa);
	if (has_pci)
		bad |= json_object_set(o, "pci", pci);
	json_decref(numa);
	json_decref(pci);
	return bad;
}

/* The entry for nodes[first, end), which are identical. */
static json_t *node_json(const struct hspmd_cluster *c, int first, int end)
{
	const struct hspmd_node *n = &c->nodes[first];
	char **names = hspmd_calloc((size_t)(end - first), sizeof *names);
	if (!names)
		return NULL;
	for (int i = first; i < end; i++)
		names[i - first] = c->nodes[i].name;
	char *folded = hspmd_hostlist_fold(names, end - first);
	free(names);
	json_t *o = folded ? json_object() : NULL;
	int bad = !o;
	if (!bad) {
		bad |= json_object_set_new(o, "name", json_string(folded));
		bad |= json_object_set_new(o, "devices", device_runs(c, n));
		if (n->slowdown != 1.0)
			bad |= json_object_set_new(o, "slowdown", hspmd_json_real(n->slowdown));
		if (n->network_gbytes_per_s > 0)
			bad |= json_object_set_new(o, "network_gbytes_per_s", hspmd_json_real(n->network_gbytes_per_s));
		if (n->price_per_hour > 0)
			bad |= json_object_set_new(o, "price_per_hour", hspmd_json_real(n->price_per_hour));
		if (n->rack)
			bad |= json_object_set_new(o, "rack", json_string(n->rack));
		if (n->member)
			bad |= json_object_set_new(o, "member", json_integer(n->member));
		bad |= set_places(o, c, n);
	}
	free(folded);
	return hspmd_json_unless_failed(bad, o);
}

static json_t *nodes_json(const struct hspmd_cluster *c)
{
	json_t *a = json_array();
	int bad = !a;
	for (int i = 0, end; i < c->node_count && !bad; i = end) {
		for (end = i + 1; end < c->node_count && alike(c, i, end); end++)
			;
		bad |= json_array_append_new(a, node_json(c, i, end));
	}
	return hspmd_json_unless_failed(bad, a);
}

/* ---- links */

static json_t *points_json(const struct hspmd_link *l)
{
	json_t *a = json_array();
	int bad = !a;
	for (int i = 0; i < l->point_count; i++) {
		json_t *point = json_array();
		bad |= json_array_append_new(point, hspmd_json_real(l->points[i][0]));
		bad |= json_array_append_new(point, hspmd_json_real(l->points[i][1]));
		bad |= json_array_append_new(a, point);
	}
	return hspmd_json_unless_failed(bad, a);
}

static json_t *link_json(const struct hspmd_cluster *c, const struct hspmd_link *l)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "scope", json_string(l->scope == HSPMD_LINK_NODE ? "node" : "cluster"));
	if (l->types[0] >= 0)
		bad |= json_object_set_new(o, "types", json_pack("[ss]", c->types[l->types[0]].name, c->types[l->types[1]].name));
	if (l->nodes[0] >= 0)
		bad |= json_object_set_new(o, "nodes", json_pack("[ss]", c->nodes[l->nodes[0]].name, c->nodes[l->nodes[1]].name));
	if (l->gpus[0])
		bad |= json_object_set_new(o, "gpus", json_pack("[ii]", l->gpus[0], l->gpus[1]));
	if (l->point_count) {
		bad |= json_object_set_new(o, "points", points_json(l));
	} else {
		bad |= json_object_set_new(o, "alpha_s", hspmd_json_real(l->alpha_s));
		bad |= json_object_set_new(o, "gbytes_per_s", hspmd_json_real(l->gbytes_per_s));
	}
	return hspmd_json_unless_failed(bad, o);
}

static json_t *links_json(const struct hspmd_cluster *c)
{
	json_t *a = json_array();
	int bad = !a;
	for (int i = 0; i < c->link_count; i++)
		bad |= json_array_append_new(a, link_json(c, &c->links[i]));
	return hspmd_json_unless_failed(bad, a);
}

json_t *hspmd_cluster_to_json(const struct hspmd_cluster *c)
{
	json_t *o = json_object();
	int bad = !o;
	bad |= json_object_set_new(o, "format", json_string(HSPMD_CLUSTER_FORMAT));
	bad |= json_object_set_new(o, "device_types", types_json(c));
	bad |= json_object_set_new(o, "nodes", nodes_json(c));
	bad |= json_object_set_new(o, "links", links_json(c));
	return hspmd_json_unless_failed(bad, o);
}

struct hspmd_cluster *hspmd_cluster_part(const struct hspmd_cluster *c, const int *nodes, int count, struct hspmd_error *err)
{
	json_t *o = json_object(), *list = json_array(), *links = links_json(c), *kept = json_array(), *link;
	struct hspmd_cluster *part = NULL;
	size_t i;
	bool bad = !o || !list || !links || !kept;
	for (int n = 0; n < count && !bad; n++)
		bad |= json_array_append_new(list, node_json(c, nodes[n], nodes[n] + 1)) != 0;
	json_array_foreach(links, i, link)
		if (!json_object_get(link, "nodes"))
			bad |= json_array_append(kept, link) != 0;
	bad |= json_object_set_new(o, "format", json_string(HSPMD_CLUSTER_FORMAT)) || json_object_set_new(o, "device_types", types_json(c));
	bad |= json_object_set(o, "nodes", list) || json_object_set(o, "links", kept);
	if (bad)
		hspmd_fail_memory(err, "taking nodes out of a cluster");
	else
		part = hspmd_cluster_from_json(o, c->nodes[nodes[0]].name, err);
	json_decref(o);
	json_decref(list);
	json_decref(links);
	json_decref(kept);
	return part;
}
