/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes are sorted by their properties and divided into node classes; a node class has a device class for each type of device in it. How
 * finely slowdowns are distinguished, and whether links that name nodes count, is relaxed step by step until there are few enough device
 * classes; in the last step nodes differ only by their devices, network and price. */
#include "controller/solver/search/device_classes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

/* The properties by which nodes are compared. */
struct node_key {
	const struct hspmd_cluster *c;
	const bool *named;
	double step;
	int node;
};

static int slow_step(const struct node_key *l)
{
	return (int)lround(log(l->c->nodes[l->node].slowdown) / l->step);
}

static int compare(double a, double b)
{
	return (a > b) - (a < b);
}

static int alike(const struct node_key *a, const struct node_key *b)
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

static int by_key(const void *a, const void *b)
{
	const struct node_key *x = a, *y = b;
	int d = alike(x, y);
	return d ? d : compare(x->node, y->node);
}

/* Add a class of nodes. Returns -1 if there would be too many device classes. */
static int add_class(struct hspmd_device_classes *k, const struct hspmd_cluster *c, const bool *allowed, const struct node_key *keys,
                     int count, int node_class)
{
	const struct hspmd_node *first = &c->nodes[keys[0].node];
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
			device_class->slowdown = fmax(device_class->slowdown, c->nodes[keys[n].node].slowdown);
	}
	return 0;
}

static int classify(struct hspmd_device_classes *k, const struct hspmd_cluster *c, const bool *allowed, struct node_key *keys)
{
	int classes = 0;
	k->count = 0;
	qsort(keys, (size_t)c->node_count, sizeof *keys, by_key);
	for (int i = 0, end; i < c->node_count; i = end) {
		for (end = i + 1; end < c->node_count && !alike(&keys[i], &keys[end]); end++)
			;
		if (c->nodes[keys[i].node].device_count && add_class(k, c, allowed, &keys[i], end - i, classes++))
			return -1;
	}
	return 0;
}

/* Fill in each device class's nodes and each device's device class, from the sorted keys. */
static int list_nodes(struct hspmd_device_classes *k, const struct hspmd_cluster *c, const struct node_key *keys)
{
	int classes = 0;
	for (int i = 0, end; i < c->node_count; i = end) {
		for (end = i + 1; end < c->node_count && !alike(&keys[i], &keys[end]); end++)
			;
		if (!c->nodes[keys[i].node].device_count)
			continue;
		for (int j = 0; j < k->count; j++) {
			struct hspmd_device_class *device_class = &k->list[j];
			if (device_class->node_class != classes)
				continue;
			device_class->nodes = hspmd_calloc((size_t)device_class->node_count, sizeof *device_class->nodes);
			if (!device_class->nodes)
				return -1;
			for (int n = 0; n < device_class->node_count; n++) {
				const struct hspmd_node *node = &c->nodes[keys[i + n].node];
				device_class->nodes[n] = keys[i + n].node;
				k->index_in_node_class[keys[i + n].node] = n;
				k->node_class_of[keys[i + n].node] = classes;
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
	/* Steps of ln(slowdown): the first is so fine that nothing is lost, with the last one all slowdowns are equal. */
	static const double steps[] = { 0.02, 0.05, 0.15, 0.5, 1e9 };
	struct hspmd_device_classes *k = hspmd_calloc(1, sizeof *k);
	struct node_key *keys = hspmd_calloc((size_t)c->node_count, sizeof *keys);
	bool *named = hspmd_calloc((size_t)c->node_count, sizeof *named);
	int rc = -1;
	if (!k || !keys || !named || !(k->class_of_device = hspmd_calloc((size_t)c->device_count, sizeof *k->class_of_device)) ||
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
				keys[n] = (struct node_key){ c, names ? named : NULL, steps[s], n };
			rc = classify(k, c, allowed, keys);
		}
	if (rc) {
		hspmd_fail(err, "the nodes form more than %d device classes", HSPMD_DEVICE_CLASSES_MAX);
		goto out;
	}
	rc = -1;
	if (!k->count) {
		hspmd_fail(err, "the limits allow none of the cluster's device types, %s%s", c->types[0].name,
		           c->type_count > 1 ? " and others" : "");
		goto out;
	}
	if (list_nodes(k, c, keys))
		goto memory;
	rc = 0;
	goto out;
memory:
	hspmd_fail_memory(err, "sorting the devices");
out:
	free(keys);
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
