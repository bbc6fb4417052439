/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes are sorted by what they look like and fall into classes; a class has a device class for each type of device in it. How finely
 * slowdowns are told apart, and whether links that name nodes count, is relaxed step by step until there are few enough device classes:
 * with the last step nodes differ by what they hold alone. */
#include "controller/solver/search/device_classes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

/* What makes a node like another. */
struct look {
	const struct hspmd_cluster *c;
	const bool *named;
	double step;
	int node;
};

static int slow_step(const struct look *l)
{
	return (int)lround(log(l->c->nodes[l->node].slowdown) / l->step);
}

static int compare(double a, double b)
{
	return (a > b) - (a < b);
}

static int alike(const struct look *a, const struct look *b)
{
	const struct hspmd_node *x = &a->c->nodes[a->node], *y = &b->c->nodes[b->node];
	int d = compare(x->device_count, y->device_count);
	for (int i = 0; !d && i < x->device_count; i++)
		d = compare(a->c->devices[x->first_device + i].type, b->c->devices[y->first_device + i].type);
	d = d ? d : compare(slow_step(a), slow_step(b));
	d = d ? d : compare(x->network_gbytes_per_s, y->network_gbytes_per_s);
	d = d ? d : compare(x->price_per_hour, y->price_per_hour);
	if (!d && a->named && (a->named[a->node] || b->named[b->node]))
		d = compare(a->node, b->node);
	return d;
}

static int by_look(const void *a, const void *b)
{
	const struct look *x = a, *y = b;
	int d = alike(x, y);
	return d ? d : compare(x->node, y->node);
}

/* Add a class of nodes; -1 when there would be too many device classes. */
static int add_class(struct hspmd_device_classes *k, const struct hspmd_cluster *c, const bool *allowed, const struct look *looks,
                     int count, int node_class)
{
	const struct hspmd_node *first = &c->nodes[looks[0].node];
	for (int i = 0; i < first->device_count; i++) {
		int type = c->devices[first->first_device + i].type;
		struct hspmd_device_class *device_class = NULL;
		for (int j = 0; j < k->count; j++)
			if (k->list[j].node_class == node_class && k->list[j].type == type)
				device_class = &k->list[j];
		if (!allowed[type])
			continue;
		if (device_class) {
			device_class->per_node++;
			device_class->count += count;
			continue;
		}
		if (k->count == HSPMD_DEVICE_CLASSES_MAX)
			return -1;
		device_class = &k->list[k->count++];
		*device_class = (struct hspmd_device_class){ .type = type,
			                                     .node_class = node_class,
			                                     .per_node = 1,
			                                     .node_count = count,
			                                     .count = count,
			                                     .price = first->price_per_hour };
		for (int n = 0; n < count; n++)
			device_class->slowdown = fmax(device_class->slowdown, c->nodes[looks[n].node].slowdown);
	}
	return 0;
}

static int classify(struct hspmd_device_classes *k, const struct hspmd_cluster *c, const bool *allowed, struct look *looks)
{
	int classes = 0;
	k->count = 0;
	qsort(looks, (size_t)c->node_count, sizeof *looks, by_look);
	for (int i = 0, end; i < c->node_count; i = end) {
		for (end = i + 1; end < c->node_count && !alike(&looks[i], &looks[end]); end++)
			;
		if (c->nodes[looks[i].node].device_count && add_class(k, c, allowed, &looks[i], end - i, classes++))
			return -1;
	}
	return 0;
}

/* List each device class's nodes and name each device's device class, from the classes the looks are sorted into. */
static int list_nodes(struct hspmd_device_classes *k, const struct hspmd_cluster *c, const struct look *looks)
{
	int classes = 0;
	for (int i = 0, end; i < c->node_count; i = end) {
		for (end = i + 1; end < c->node_count && !alike(&looks[i], &looks[end]); end++)
			;
		if (!c->nodes[looks[i].node].device_count)
			continue;
		for (int j = 0; j < k->count; j++) {
			struct hspmd_device_class *device_class = &k->list[j];
			if (device_class->node_class != classes)
				continue;
			device_class->nodes = hspmd_calloc((size_t)device_class->node_count, sizeof *device_class->nodes);
			if (!device_class->nodes)
				return -1;
			for (int n = 0; n < device_class->node_count; n++) {
				const struct hspmd_node *node = &c->nodes[looks[i + n].node];
				device_class->nodes[n] = looks[i + n].node;
				k->index_in_node_class[looks[i + n].node] = n;
				k->node_class_of[looks[i + n].node] = classes;
				for (int d = node->first_device; d < node->first_device + node->device_count; d++)
					if (c->devices[d].type == device_class->type)
						k->class_of_device[d] = j;
			}
		}
		classes++;
	}
	return 0;
}

struct hspmd_device_classes *hspmd_device_classes_new(const struct hspmd_cluster *c, const bool *allowed, struct hspmd_error *err)
{
	/* Steps of ln(slowdown): first so fine that nothing is lost, in the end one for all. */
	static const double steps[] = { 0.02, 0.05, 0.15, 0.5, 1e9 };
	struct hspmd_device_classes *k = hspmd_calloc(1, sizeof *k);
	struct look *looks = hspmd_calloc((size_t)c->node_count, sizeof *looks);
	bool *named = hspmd_calloc((size_t)c->node_count, sizeof *named);
	int rc = -1;
	if (!k || !looks || !named || !(k->class_of_device = hspmd_calloc((size_t)c->device_count, sizeof *k->class_of_device)) ||
	    !(k->index_in_node_class = hspmd_calloc((size_t)c->node_count, sizeof *k->index_in_node_class)) ||
	    !(k->node_class_of = hspmd_calloc((size_t)c->node_count, sizeof *k->node_class_of)))
		goto memory;
	for (int n = 0; n < c->node_count; n++)
		k->node_class_of[n] = -1;
	for (int d = 0; d < c->device_count; d++)
		k->class_of_device[d] = -1;
	for (int i = 0; i < c->link_count; i++)
		if (c->links[i].nodes[0] >= 0 && c->links[i].nodes[0] != c->links[i].nodes[1])
			named[c->links[i].nodes[0]] = named[c->links[i].nodes[1]] = true;
	for (int names = 1; rc && names >= 0; names--)
		for (size_t s = 0; rc && s < sizeof steps / sizeof *steps; s++) {
			for (int n = 0; n < c->node_count; n++)
				looks[n] = (struct look){ c, names ? named : NULL, steps[s], n };
			rc = classify(k, c, allowed, looks);
		}
	if (rc) {
		hspmd_fail(err, "the nodes are of more than %d device classes", HSPMD_DEVICE_CLASSES_MAX);
		goto out;
	}
	rc = -1;
	if (!k->count) {
		hspmd_fail(err, "the limits allow none of the cluster's device types, %s%s", c->types[0].name,
		           c->type_count > 1 ? " and others" : "");
		goto out;
	}
	if (list_nodes(k, c, looks))
		goto memory;
	rc = 0;
	goto out;
memory:
	hspmd_fail_memory(err, "sorting the devices");
out:
	free(looks);
	free(named);
	if (rc) {
		hspmd_device_classes_destroy(k);
		return NULL;
	}
	return k;
}

void hspmd_device_classes_destroy(struct hspmd_device_classes *k)
{
	if (!k)
		return;
	for (int i = 0; i < k->count; i++)
		free(k->list[i].nodes);
	free(k->class_of_device);
	free(k->index_in_node_class);
	free(k->node_class_of);
	free(k);
}

int hspmd_device_class_device(const struct hspmd_cluster *c, const struct hspmd_device_class *device_class, int node, int i)
{
	const struct hspmd_node *n = &c->nodes[device_class->nodes[node]];
	for (int d = n->first_device;; d++)
		if (c->devices[d].type == device_class->type && i-- == 0)
			return d;
}
