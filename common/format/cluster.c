/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and checking hspmd-cluster-1. Lookups are in cluster_index.c, writing in cluster_write.c. */
#include "common/format/cluster.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/cluster_index.h"
#include "common/format/device_traits.h"
#include "common/hostlist.h"
#include "common/json.h"
#include "common/log.h"

#define COUNT_MAX 1024                /* devices of one entry */
#define MEMORY_MAX ((int64_t)1 << 50) /* bytes of one device */
#define RATE_MAX 1e9                  /* GB/s, TFLOP/s: beyond it a unit is wrong */
#define SECONDS_MAX 1e9
#define CAPABILITY_MAX 100
#define OPERATOR_MAX 1.0 /* seconds of an operator without work: beyond it a unit is wrong */
#define LINKS_MAX (1 << 20)
#define POINTS_MAX 4096
#define NUMA_MAX 65535
#define BLOCK_MAX (1 << 24) /* rows or columns */

static const char *const scope_names[] = { "node", "cluster", NULL };

/* The reader first fills growing arrays; the counts of struct hspmd_cluster say how far they are filled. */
struct reader {
	struct hspmd_cluster *c;
	size_t node_room, device_room, link_room;
};

/* ---- device types */

static int read_rates(struct hspmd_json *type, const char *key, double *rates)
{
	struct hspmd_json o = hspmd_json_object_or_none(type, key);
	int given = 0;
	for (int p = 0; p < HSPMD_PRECISION_COUNT; p++) {
		rates[p] = hspmd_json_number_or(&o, hspmd_precision_names[p], HSPMD_JSON_POSITIVE, RATE_MAX, 0);
		given += rates[p] > 0;
	}
	hspmd_json_check_keys(&o);
	return given;
}

static void read_product_blocks(struct hspmd_json *type, struct hspmd_product_blocks *b)
{
	if (!hspmd_json_has(type, "product_blocks"))
		return;
	struct hspmd_json o = hspmd_json_object(type, "product_blocks");
	b->depth = hspmd_json_int(&o, "depth", 1, BLOCK_MAX);
	b->columns = hspmd_json_int(&o, "columns", 1, BLOCK_MAX);
	b->rows = hspmd_json_int(&o, "rows", 1, BLOCK_MAX);
	hspmd_json_check_keys(&o);
}

static int read_host(struct hspmd_json *type, struct hspmd_device_type *t)
{
	if (!hspmd_json_has(type, "host"))
		return 0;
	struct hspmd_json o = hspmd_json_object(type, "host");
	t->host.memory_bytes = hspmd_json_int(&o, "memory_bytes", 1, MEMORY_MAX);
	t->host.gbytes_per_s = hspmd_json_number(&o, "gbytes_per_s", HSPMD_JSON_POSITIVE, RATE_MAX);
	if (hspmd_json_check_keys(&o))
		return -1;
	return hspmd_device_traits(t->kind)->host_memory
	               ? hspmd_json_fail(&o, "devices of kind \"%s\" compute in the host's memory; they have no other",
	                                 hspmd_device_kind_names[t->kind])
	               : 0;
}

static int read_type(struct hspmd_json *at, struct hspmd_device_type *t)
{
	if (!hspmd_json_expect_object(at))
		return -1;
	t->kind = (enum hspmd_device_kind)hspmd_json_enum(at, "kind", hspmd_device_kind_names);
	t->memory_bytes = hspmd_json_int(at, "memory_bytes", 1, MEMORY_MAX);
	t->gbytes_per_s = hspmd_json_number(at, "gbytes_per_s", HSPMD_JSON_POSITIVE, RATE_MAX);
	int given = read_rates(at, "peak_tflops", t->peak_tflops);
	given += read_rates(at, "tflops", t->tflops);
	if (!given)
		hspmd_json_fail(at, "expected a rate of at least one precision in peak_tflops or tflops");
	if (hspmd_json_has(at, "operator_s"))
		t->operator_s = hspmd_json_number(at, "operator_s", HSPMD_JSON_POSITIVE, OPERATOR_MAX);
	t->compute_capability = (int)lround(10 * hspmd_json_number_or(at, "compute_capability", HSPMD_JSON_POSITIVE, CAPABILITY_MAX, 0));
	read_product_blocks(at, &t->product_blocks);
	return read_host(at, t) ? -1 : hspmd_json_check_keys(at);
}

static int read_types(struct reader *r, struct hspmd_json *root)
{
	struct hspmd_cluster *c = r->c;
	struct hspmd_json all = hspmd_json_object(root, "device_types"), at;
	const char *name;
	size_t count = json_object_size(all.value);
	if (hspmd_json_failed(root))
		return -1;
	if (!count || count > HSPMD_CLUSTER_MAX_TYPES)
		return hspmd_json_fail(&all, "expected 1..%d device types, got %zu", HSPMD_CLUSTER_MAX_TYPES, count);
	c->types = hspmd_calloc(count, sizeof *c->types);
	if (!c->types)
		return hspmd_json_fail_memory(&all);
	for (size_t i = 0; hspmd_json_member(&all, i, &name, &at); i++) {
		struct hspmd_device_type *t = &c->types[c->type_count++];
		if (!*name)
			return hspmd_json_fail(&at, "a device type needs a name");
		t->name = strdup(name);
		if (!t->name)
			return hspmd_json_fail_memory(&at);
		if (read_type(&at, t))
			return -1;
	}
	return hspmd_json_failed(root) ? -1 : 0;
}

/* ---- nodes */

/* One entry of "nodes" before it is multiplied by its names. */
struct node_entry {
	char **names;
	int name_count;
	int run_count;    /* entries of "devices" */
	int (*runs)[2];   /* type, count */
	int device_count; /* of one node */
	double slowdown, network_gbytes_per_s, price_per_hour;
	const char *rack;
	int64_t member;
	struct hspmd_json numa, pci;
};

static int read_device_runs(const struct hspmd_cluster *c, struct hspmd_json *at, struct node_entry *e)
{
	struct hspmd_json devices = hspmd_json_array(at, "devices", 0, HSPMD_CLUSTER_MAX_DEVICES);
	size_t n = hspmd_json_length(&devices);
	e->runs = hspmd_calloc(n, sizeof *e->runs);
	if (!e->runs)
		return hspmd_json_fail_memory(&devices);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json run = hspmd_json_at(&devices, i);
		const char *type = hspmd_json_string(&run, "type");
		int count = (int)hspmd_json_int(&run, "count", 1, COUNT_MAX);
		if (!type || hspmd_json_check_keys(&run))
			return -1;
		int t = hspmd_cluster_find_type(c, type);
		if (t < 0) {
			struct hspmd_json where = hspmd_json_any(&run, "type");
			return hspmd_json_fail(&where, "\"%s\" is not among device_types", type);
		}
		e->runs[e->run_count][0] = t;
		e->runs[e->run_count++][1] = count;
		e->device_count += count;
		if (e->device_count > HSPMD_CLUSTER_MAX_DEVICES)
			return hspmd_json_fail(&devices, "more than %d devices", HSPMD_CLUSTER_MAX_DEVICES);
	}
	return 0;
}

static int read_names(struct hspmd_json *at, struct node_entry *e)
{
	const char *name = hspmd_json_string(at, "name");
	if (!name)
		return -1;
	struct hspmd_error why;
	e->name_count = hspmd_hostlist_expand(name, HSPMD_CLUSTER_MAX_DEVICES, &e->names, &why);
	if (e->name_count > 0)
		return 0;
	struct hspmd_json where = hspmd_json_any(at, "name");
	return hspmd_json_fail(&where, "%s", why.text);
}

static int read_node_entry(const struct hspmd_cluster *c, struct hspmd_json *at, struct node_entry *e)
{
	if (read_names(at, e) || read_device_runs(c, at, e))
		return -1;
	e->slowdown = hspmd_json_number_or(at, "slowdown", HSPMD_JSON_POSITIVE, 1e6, 1.0);
	e->network_gbytes_per_s = hspmd_json_number_or(at, "network_gbytes_per_s", HSPMD_JSON_POSITIVE, RATE_MAX, 0);
	e->price_per_hour = hspmd_json_number_or(at, "price_per_hour", 0, 1e9, 0);
	e->rack = hspmd_json_string_or(at, "rack", NULL);
	e->member = hspmd_json_int_or(at, "member", 1, UINT32_MAX, 0);
	e->numa = hspmd_json_array_or_none(at, "numa", (size_t)e->device_count, (size_t)e->device_count);
	e->pci = hspmd_json_array_or_none(at, "pci", (size_t)e->device_count, (size_t)e->device_count);
	return hspmd_json_check_keys(at);
}

static int set_place(struct hspmd_cluster_device *d, const struct node_entry *e, size_t i)
{
	struct hspmd_json numa = hspmd_json_at(&e->numa, i), pci = hspmd_json_at(&e->pci, i);
	d->numa = -1;
	if (e->numa.value && !hspmd_json_is_null(&numa))
		d->numa = (int)hspmd_json_int_value(&numa, 0, NUMA_MAX);
	if (!e->pci.value || hspmd_json_is_null(&pci))
		return 0;
	const char *text = hspmd_json_string_value(&pci);
	if (!text)
		return -1;
	d->pci = strdup(text);
	return d->pci ? 0 : hspmd_json_fail_memory(&pci);
}

static int add_devices(struct reader *r, const struct hspmd_json *at, const struct node_entry *e)
{
	struct hspmd_cluster *c = r->c;
	int index = 0;
	for (int i = 0; i < e->run_count; i++) {
		for (int k = 0; k < e->runs[i][1]; k++) {
			if (hspmd_array_grow(&c->devices, &r->device_room, (size_t)c->device_count, sizeof *c->devices))
				return hspmd_json_fail_memory(at);
			struct hspmd_cluster_device *d = &c->devices[c->device_count++];
			*d = (struct hspmd_cluster_device){ .node = c->node_count - 1, .index = index, .type = e->runs[i][0] };
			if (set_place(d, e, (size_t)index))
				return -1;
			index++;
		}
	}
	return 0;
}

static int add_nodes(struct reader *r, const struct hspmd_json *at, struct node_entry *e)
{
	struct hspmd_cluster *c = r->c;
	int64_t devices = c->device_count + (int64_t)e->name_count * e->device_count;
	int64_t nodes = (int64_t)c->node_count + e->name_count;
	if (devices > HSPMD_CLUSTER_MAX_DEVICES || nodes > HSPMD_CLUSTER_MAX_DEVICES)
		return hspmd_json_fail(at, "makes %lld devices on %lld nodes; at most %d of each can be handled", (long long)devices,
		                       (long long)nodes, HSPMD_CLUSTER_MAX_DEVICES);
	for (int i = 0; i < e->name_count; i++) {
		if (hspmd_array_grow(&c->nodes, &r->node_room, (size_t)c->node_count, sizeof *c->nodes))
			return hspmd_json_fail_memory(at);
		struct hspmd_node *n = &c->nodes[c->node_count++];
		*n = (struct hspmd_node){ .name = e->names[i],
			                  .first_device = c->device_count,
			                  .device_count = e->device_count,
			                  .slowdown = e->slowdown,
			                  .network_gbytes_per_s = e->network_gbytes_per_s,
			                  .price_per_hour = e->price_per_hour,
			                  .member = e->member };
		e->names[i] = NULL;
		if (e->rack && !(n->rack = strdup(e->rack)))
			return hspmd_json_fail_memory(at);
		if (add_devices(r, at, e))
			return -1;
	}
	return 0;
}

static int read_node(struct reader *r, struct hspmd_json *at)
{
	struct node_entry e = { .names = NULL };
	int rc = read_node_entry(r->c, at, &e);
	if (!rc)
		rc = add_nodes(r, at, &e);
	hspmd_hostlist_free(e.names, e.name_count);
	free(e.runs);
	return rc;
}

static int read_nodes(struct reader *r, struct hspmd_json *root)
{
	struct hspmd_json all = hspmd_json_array(root, "nodes", 1, SIZE_MAX);
	for (size_t i = 0; i < hspmd_json_length(&all); i++) {
		struct hspmd_json at = hspmd_json_at(&all, i);
		if (read_node(r, &at))
			return -1;
	}
	if (hspmd_json_failed(root))
		return -1;
	if (!r->c->device_count)
		return hspmd_json_fail(&all, "there is no device on any node");
	if (hspmd_cluster_reindex(r->c))
		return hspmd_json_fail_memory(&all);
	const char *twice = hspmd_cluster_repeated_node(r->c);
	if (twice)
		return hspmd_json_fail(&all, "node %s is there twice", twice);
	return 0;
}

/* ---- links */

typedef int find_name(const struct hspmd_cluster *c, const char *name);

/* An optional pair of names, looked up by `find`, as indexes. A name that is not there is an error if `among` says where it should be, else
 * -1. */
static int read_pair(const struct hspmd_cluster *c, struct hspmd_json *at, const char *key, find_name *find, const char *among, int *pair)
{
	struct hspmd_json both = hspmd_json_array_or_none(at, key, 2, 2);
	for (size_t i = 0; i < hspmd_json_length(&both); i++) {
		struct hspmd_json one = hspmd_json_at(&both, i);
		const char *name = hspmd_json_string_value(&one);
		if (!name)
			return -1;
		pair[i] = find(c, name);
		if (pair[i] < 0 && among)
			return hspmd_json_fail(&one, "\"%s\" is not among %s", name, among);
	}
	return 0;
}

static int read_points(struct hspmd_json *at, struct hspmd_link *l)
{
	struct hspmd_json points = hspmd_json_array(at, "points", 2, POINTS_MAX);
	size_t n = hspmd_json_length(&points);
	l->points = hspmd_calloc(n, sizeof *l->points);
	if (!l->points)
		return hspmd_json_fail_memory(&points);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json point = hspmd_json_at(&points, i);
		if (!hspmd_json_expect_array(&point, 2, 2))
			return -1;
		struct hspmd_json bytes = hspmd_json_at(&point, 0), seconds = hspmd_json_at(&point, 1);
		l->points[i][0] = hspmd_json_number_value(&bytes, 0, 1e18);
		l->points[i][1] = hspmd_json_number_value(&seconds, HSPMD_JSON_POSITIVE, SECONDS_MAX);
		if (i && !hspmd_json_failed(at) && l->points[i][0] <= l->points[i - 1][0])
			return hspmd_json_fail(&bytes, "expected more bytes than at the point before");
		l->point_count++;
	}
	if (n > 1 && !hspmd_json_failed(at) && l->points[n - 1][1] < l->points[n - 2][1])
		return hspmd_json_fail(&points,
		                       "the last point takes less time than the one before it, so larger messages would take none");
	return 0;
}

static int check_link_places(const struct hspmd_json *at, const struct hspmd_link *l)
{
	if (l->nodes[0] >= 0 && l->types[0] >= 0)
		return hspmd_json_fail(at, "expected types or nodes, not both");
	if (l->nodes[0] >= 0 && l->scope == HSPMD_LINK_NODE && l->nodes[0] != l->nodes[1])
		return hspmd_json_fail(at, "scope \"node\" is within one node, but nodes names two");
	if (l->nodes[0] >= 0 && l->scope == HSPMD_LINK_CLUSTER && l->nodes[0] == l->nodes[1])
		return hspmd_json_fail(at, "scope \"cluster\" is between two nodes, but nodes names one twice");
	return 0;
}

static int read_link(const struct hspmd_cluster *c, struct hspmd_json *at, struct hspmd_link *l)
{
	*l = (struct hspmd_link){ .types = { -1, -1 }, .nodes = { -1, -1 } };
	l->scope = (enum hspmd_link_scope)hspmd_json_enum(at, "scope", scope_names);
	if (read_pair(c, at, "types", hspmd_cluster_find_type, NULL, l->types) ||
	    read_pair(c, at, "nodes", hspmd_cluster_find_node, "the nodes", l->nodes))
		return -1;
	struct hspmd_json gpus = hspmd_json_array_or_none(at, "gpus", 2, 2);
	for (size_t i = 0; i < hspmd_json_length(&gpus); i++) {
		struct hspmd_json one = hspmd_json_at(&gpus, i);
		l->gpus[i] = (int)hspmd_json_int_value(&one, 1, HSPMD_CLUSTER_MAX_DEVICES);
	}
	if (!hspmd_json_has(at, "points")) {
		l->alpha_s = hspmd_json_number(at, "alpha_s", 0, SECONDS_MAX);
		l->gbytes_per_s = hspmd_json_number(at, "gbytes_per_s", HSPMD_JSON_POSITIVE, RATE_MAX);
	} else if (hspmd_json_has(at, "alpha_s") || hspmd_json_has(at, "gbytes_per_s")) {
		hspmd_json_fail(at, "expected points, or alpha_s and gbytes_per_s, not both");
	} else if (read_points(at, l)) {
		return -1;
	}
	return hspmd_json_check_keys(at) ? -1 : check_link_places(at, l);
}

/* The type of an entry's `types` that the cluster does not have, or NULL. A file may have the links of more than is there now. */
static const char *absent_type(const struct hspmd_cluster *c, const struct hspmd_json *at)
{
	size_t i;
	json_t *type;
	json_array_foreach(json_object_get(at->value, "types"), i, type)
		if (hspmd_cluster_find_type(c, json_string_value(type)) < 0)
			return json_string_value(type);
	return NULL;
}

/* The entry of the file that became links[number]. */
static struct hspmd_json entry_of(const struct hspmd_cluster *c, const struct hspmd_json *all, int number)
{
	struct hspmd_json at = hspmd_json_at(all, 0);
	for (size_t i = 0; i < hspmd_json_length(all) && number >= 0; i++) {
		at = hspmd_json_at(all, i);
		number -= !absent_type(c, &at);
	}
	return at;
}

static int read_links(struct reader *r, struct hspmd_json *root)
{
	struct hspmd_cluster *c = r->c;
	struct hspmd_json all = hspmd_json_array_or_none(root, "links", 0, LINKS_MAX);
	size_t n = hspmd_json_length(&all);
	for (size_t i = 0; i < n; i++) {
		struct hspmd_json at = hspmd_json_at(&all, i);
		if (hspmd_array_grow(&c->links, &r->link_room, i, sizeof *c->links))
			return hspmd_json_fail_memory(&all);
		if (read_link(c, &at, &c->links[c->link_count++]))
			return -1;
		const char *absent = absent_type(c, &at);
		if (!absent)
			continue;
		hspmd_warn("%s: links[%zu] is left out: \"%s\" is not among device_types", root->doc->file, i, absent);
		free(c->links[--c->link_count].points);
	}
	if (hspmd_json_failed(root))
		return -1;
	if (hspmd_cluster_reindex(c))
		return hspmd_json_fail_memory(&all);
	int first, second;
	if (hspmd_cluster_repeated_link(c, &first, &second)) {
		struct hspmd_json at = entry_of(c, &all, second), other = entry_of(c, &all, first);
		return hspmd_json_fail(&at, "says how fast the same devices talk as links[%zu] does; one of the two must go", other.index);
	}
	return 0;
}

/* ---- the whole */

static struct hspmd_cluster *from_doc(struct hspmd_json_doc *doc)
{
	struct hspmd_json root = hspmd_json_root(doc);
	struct reader r = { .c = calloc(1, sizeof *r.c) };
	if (!r.c) {
		hspmd_json_fail_memory(&root);
		return NULL;
	}
	if (hspmd_json_format(&root, HSPMD_CLUSTER_FORMAT) || read_types(&r, &root) || read_nodes(&r, &root) || read_links(&r, &root) ||
	    hspmd_json_check_keys(&root)) {
		hspmd_cluster_destroy(r.c);
		return NULL;
	}
	return r.c;
}

struct hspmd_cluster *hspmd_cluster_read(const char *path, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	if (hspmd_json_open(&doc, path, err))
		return NULL;
	struct hspmd_cluster *c = from_doc(&doc);
	hspmd_json_close(&doc);
	if (c && !(c->file = strdup(path))) {
		hspmd_fail_memory(err, "reading a cluster");
		hspmd_cluster_destroy(c);
		return NULL;
	}
	return c;
}

struct hspmd_cluster *hspmd_cluster_from_json(const json_t *value, const char *name, struct hspmd_error *err)
{
	struct hspmd_json_doc doc;
	hspmd_json_wrap(&doc, name, (json_t *)value, err);
	struct hspmd_cluster *c = from_doc(&doc);
	hspmd_json_close(&doc);
	return c;
}

void hspmd_cluster_destroy(struct hspmd_cluster *c)
{
	if (!c)
		return;
	for (int i = 0; i < c->type_count; i++)
		free(c->types[i].name);
	for (int i = 0; i < c->node_count; i++) {
		free(c->nodes[i].name);
		free(c->nodes[i].rack);
	}
	for (int i = 0; i < c->device_count; i++)
		free(c->devices[i].pci);
	for (int i = 0; i < c->link_count; i++)
		free(c->links[i].points);
	free(c->file);
	free(c->types);
	free(c->nodes);
	free(c->devices);
	free(c->links);
	free(c->index);
	free(c);
}
