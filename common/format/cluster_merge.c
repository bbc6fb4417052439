/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/cluster.h"

/* The message size by which the slower of two links is determined: 16 MiB. */
#define PROBE_BYTES (1 << 24)

/* Measured memory rates vary this much more between measurements than rates of products. */
#define RATE_SLACK 3

/* A type of a part, and the type of the result into which it is merged. */
struct piece {
	const struct hspmd_device_type *type;
	int part, number; /* of that part's types */
	int group;
};

/* A type of the result during merging. */
struct group {
	const struct hspmd_device_type *leader; /* the fastest of them */
	int pieces;
};

struct merge {
	const struct hspmd_cluster *const *parts;
	int count;
	double tolerance;
	struct piece *pieces; /* fastest first within a name */
	int piece_count;
	struct group *groups;
	int group_count;
	struct hspmd_cluster *c;
};

static double speed(const struct hspmd_device_type *t)
{
	for (int p = 0; p < HSPMD_PRECISION_COUNT; p++)
		if (t->tflops[p] > 0)
			return t->tflops[p];
	for (int p = 0; p < HSPMD_PRECISION_COUNT; p++)
		if (t->peak_tflops[p] > 0)
			return t->peak_tflops[p];
	return 0;
}

static bool near(double a, double b, double tolerance)
{
	return fabs(a - b) <= tolerance * fmax(a, b);
}

static bool agree(const struct hspmd_device_type *a, const struct hspmd_device_type *b, double tolerance)
{
	bool same = a->kind == b->kind && !strcmp(a->name, b->name) && a->compute_capability == b->compute_capability &&
	            near((double)a->memory_bytes, (double)b->memory_bytes, tolerance) &&
	            near(a->gbytes_per_s, b->gbytes_per_s, RATE_SLACK * tolerance);
	if (a->host.memory_bytes && b->host.memory_bytes)
		same = same && near(a->host.gbytes_per_s, b->host.gbytes_per_s, RATE_SLACK * tolerance);
	for (int p = 0; p < HSPMD_PRECISION_COUNT; p++)
		same = same && near(a->tflops[p], b->tflops[p], tolerance) && near(a->peak_tflops[p], b->peak_tflops[p], tolerance);
	return same;
}

/* Orders by name, then the fastest first; ties in the order of parts, so that the result does not depend on the sort. */
static int by_speed(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;
	int names = strcmp(x->type->name, y->type->name);
	double sx = speed(x->type), sy = speed(y->type);
	if (names || sx != sy)
		return names ? names : sx > sy ? -1 : 1;
	return x->part != y->part ? x->part - y->part : x->number - y->number;
}

static int group_types(struct merge *m, struct hspmd_error *err)
{
	for (int i = 0; i < m->count; i++)
		m->piece_count += m->parts[i]->type_count;
	m->pieces = hspmd_calloc((size_t)m->piece_count, sizeof *m->pieces);
	m->groups = hspmd_calloc((size_t)m->piece_count, sizeof *m->groups);
	if (!m->pieces || !m->groups)
		return hspmd_fail_memory(err, "merging clusters");
	int n = 0;
	for (int i = 0; i < m->count; i++)
		for (int t = 0; t < m->parts[i]->type_count; t++)
			m->pieces[n++] = (struct piece){ .type = &m->parts[i]->types[t], .part = i, .number = t };
	qsort(m->pieces, (size_t)n, sizeof *m->pieces, by_speed);
	for (int i = 0; i < n; i++) {
		int g = 0;
		while (g < m->group_count && !agree(m->groups[g].leader, m->pieces[i].type, m->tolerance))
			g++;
		if (g == m->group_count)
			m->groups[m->group_count++].leader = m->pieces[i].type;
		m->groups[g].pieces++;
		m->pieces[i].group = g;
	}
	return m->group_count <= HSPMD_CLUSTER_MAX_TYPES ? 0 : hspmd_fail(err, "merging clusters: %d types of devices", m->group_count);
}

static bool name_taken(const struct merge *m, const char *name, int before)
{
	for (int g = 0; g < before; g++)
		if (!strcmp(m->c->types[g].name, name))
			return true;
	/* A part may already contain a type of that name. */
	for (int g = before + 1; g < m->group_count; g++)
		if (!strcmp(m->groups[g].leader->name, name))
			return true;
	return false;
}

static char *group_name(const struct merge *m, int g)
{
	const char *base = m->groups[g].leader->name;
	int fastest = 0;
	while (strcmp(m->groups[fastest].leader->name, base))
		fastest++;
	if (fastest == g)
		return strdup(base);
	double ratio = speed(m->groups[g].leader) / speed(m->groups[fastest].leader);
	char *name = hspmd_asprintf("%s@%.0f%%", base, 100 * ratio);
	for (int more = 2; name && name_taken(m, name, g); more++) {
		free(name);
		name = hspmd_asprintf("%s@%.0f%%-%d", base, 100 * ratio, more);
	}
	return name;
}

static int64_t larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* What all devices of the merged types have of their hosts. share: of this type among them. */
static void merge_host(const struct hspmd_host_memory *from, double share, bool first, struct hspmd_host_memory *to)
{
	bool given = from->memory_bytes && (first || to->memory_bytes);
	to->memory_bytes = !given ? 0 : first || from->memory_bytes < to->memory_bytes ? from->memory_bytes : to->memory_bytes;
	to->gbytes_per_s = given ? to->gbytes_per_s + share * from->gbytes_per_s : 0;
}

static int make_types(struct merge *m, struct hspmd_error *err)
{
	m->c->types = hspmd_calloc((size_t)m->group_count, sizeof *m->c->types);
	if (!m->c->types)
		return hspmd_fail_memory(err, "merging clusters");
	for (int g = 0; g < m->group_count; g++) {
		struct hspmd_device_type *t = &m->c->types[g];
		t->kind = m->groups[g].leader->kind;
		t->memory_bytes = m->groups[g].leader->memory_bytes;
		t->compute_capability = m->groups[g].leader->compute_capability;
		t->name = group_name(m, g);
		m->c->type_count++;
		if (!t->name)
			return hspmd_fail_memory(err, "merging clusters");
	}
	for (int i = 0; i < m->piece_count; i++) {
		const struct hspmd_device_type *from = m->pieces[i].type;
		struct hspmd_device_type *t = &m->c->types[m->pieces[i].group];
		double share = 1.0 / m->groups[m->pieces[i].group].pieces;
		merge_host(&from->host, share, t->gbytes_per_s <= 0, &t->host);
		t->memory_bytes = from->memory_bytes < t->memory_bytes ? from->memory_bytes : t->memory_bytes;
		t->gbytes_per_s += from->gbytes_per_s * share;
		t->operator_s += from->operator_s * share;
		t->product_blocks.depth = larger(from->product_blocks.depth, t->product_blocks.depth);
		t->product_blocks.columns = larger(from->product_blocks.columns, t->product_blocks.columns);
		t->product_blocks.rows = larger(from->product_blocks.rows, t->product_blocks.rows);
		for (int p = 0; p < HSPMD_PRECISION_COUNT; p++) {
			t->tflops[p] += from->tflops[p] * share;
			t->peak_tflops[p] += from->peak_tflops[p] * share;
		}
	}
	return 0;
}

static int type_of(const struct merge *m, int part, int number)
{
	for (int i = 0; i < m->piece_count; i++)
		if (m->pieces[i].part == part && m->pieces[i].number == number)
			return m->pieces[i].group;
	return -1;
}

static int copy_text(char **out, const char *text)
{
	*out = text ? strdup(text) : NULL;
	return text && !*out ? -1 : 0;
}

static int add_nodes(struct merge *m, int part, struct hspmd_error *err)
{
	const struct hspmd_cluster *from = m->parts[part];
	struct hspmd_cluster *c = m->c;
	for (int i = 0; i < from->device_count; i++) {
		struct hspmd_cluster_device *d = &c->devices[c->device_count + i];
		*d = from->devices[i];
		d->node += c->node_count;
		d->type = type_of(m, part, d->type);
		if (copy_text(&d->pci, from->devices[i].pci)) {
			c->device_count += i;
			return hspmd_fail_memory(err, "merging clusters");
		}
	}
	for (int i = 0; i < from->node_count; i++) {
		struct hspmd_node *n = &c->nodes[c->node_count + i];
		*n = from->nodes[i];
		n->first_device += c->device_count;
		int bad = copy_text(&n->name, from->nodes[i].name);
		bad |= copy_text(&n->rack, from->nodes[i].rack);
		if (bad) {
			c->node_count += i + 1;
			c->device_count += from->device_count;
			return hspmd_fail_memory(err, "merging clusters");
		}
	}
	c->node_count += from->node_count;
	c->device_count += from->device_count;
	return 0;
}

/* Returns true if both links have the same scope, ends and gpus. Pairs are unordered; `gpus` belong to `types`. */
static bool same_ends(const struct hspmd_link *a, const struct hspmd_link *b)
{
	bool straight = a->types[0] == b->types[0] && a->types[1] == b->types[1] && a->gpus[0] == b->gpus[0] && a->gpus[1] == b->gpus[1];
	bool crossed = a->types[0] == b->types[1] && a->types[1] == b->types[0] && a->gpus[0] == b->gpus[1] && a->gpus[1] == b->gpus[0];
	bool nodes =
	        (a->nodes[0] == b->nodes[0] && a->nodes[1] == b->nodes[1]) || (a->nodes[0] == b->nodes[1] && a->nodes[1] == b->nodes[0]);
	return a->scope == b->scope && nodes && (straight || crossed);
}

static int add_links(struct merge *m, int part, int first_node, struct hspmd_error *err)
{
	const struct hspmd_cluster *from = m->parts[part];
	for (int i = 0; i < from->link_count; i++) {
		struct hspmd_link l = from->links[i];
		for (int side = 0; side < 2; side++) {
			l.types[side] = l.types[side] < 0 ? -1 : type_of(m, part, l.types[side]);
			l.nodes[side] = l.nodes[side] < 0 ? -1 : l.nodes[side] + first_node;
		}
		int at = 0;
		while (at < m->c->link_count && !same_ends(&m->c->links[at], &l))
			at++;
		if (at < m->c->link_count && hspmd_link_seconds(&m->c->links[at], PROBE_BYTES) >= hspmd_link_seconds(&l, PROBE_BYTES))
			continue;
		l.points = NULL;
		if (l.point_count) {
			l.points = hspmd_calloc((size_t)l.point_count, sizeof *l.points);
			if (!l.points)
				return hspmd_fail_memory(err, "merging clusters");
			memcpy(l.points, from->links[i].points, (size_t)l.point_count * sizeof *l.points);
		}
		free(m->c->links[at].points);
		m->c->links[at] = l;
		m->c->link_count += at == m->c->link_count;
	}
	return 0;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_names(const struct hspmd_cluster *c, struct hspmd_error *err)
{
	char **names = hspmd_calloc((size_t)c->node_count, sizeof *names);
	int rv = names ? 0 : hspmd_fail_memory(err, "merging clusters");
	for (int i = 0; names && i < c->node_count; i++)
		names[i] = c->nodes[i].name;
	if (names)
		qsort(names, (size_t)c->node_count, sizeof *names, by_text);
	for (int i = 1; !rv && i < c->node_count; i++)
		if (!strcmp(names[i - 1], names[i]))
			rv = hspmd_fail(err, "node %s is there twice", names[i]);
	free(names);
	return rv;
}

static int assemble(struct merge *m, struct hspmd_error *err)
{
	size_t nodes = 0, devices = 0, links = 0;
	for (int i = 0; i < m->count; i++) {
		nodes += (size_t)m->parts[i]->node_count;
		devices += (size_t)m->parts[i]->device_count;
		links += (size_t)m->parts[i]->link_count;
	}
	if (devices > HSPMD_CLUSTER_MAX_DEVICES || nodes > HSPMD_CLUSTER_MAX_DEVICES)
		return hspmd_fail(err, "merging clusters: more than %d devices or nodes", HSPMD_CLUSTER_MAX_DEVICES);
	m->c->nodes = hspmd_calloc(nodes, sizeof *m->c->nodes);
	m->c->devices = hspmd_calloc(devices, sizeof *m->c->devices);
	m->c->links = hspmd_calloc(links, sizeof *m->c->links);
	if (!m->c->nodes || !m->c->devices || !m->c->links)
		return hspmd_fail_memory(err, "merging clusters");
	if (group_types(m, err) || make_types(m, err))
		return -1;
	for (int i = 0; i < m->count; i++) {
		int first_node = m->c->node_count;
		if (add_nodes(m, i, err) || add_links(m, i, first_node, err))
			return -1;
	}
	if (check_names(m->c, err))
		return -1;
	return hspmd_cluster_reindex(m->c) ? hspmd_fail_memory(err, "merging clusters") : 0;
}

struct hspmd_cluster *hspmd_cluster_merge(const struct hspmd_cluster *const *parts, int count, double tolerance, struct hspmd_error *err)
{
	struct merge m = { .parts = parts, .count = count, .tolerance = tolerance };
	m.c = hspmd_calloc(1, sizeof *m.c);
	int rv = m.c ? assemble(&m, err) : hspmd_fail_memory(err, "merging clusters");
	if (rv) {
		hspmd_cluster_destroy(m.c);
		m.c = NULL;
	}
	free(m.pieces);
	free(m.groups);
	return m.c;
}
