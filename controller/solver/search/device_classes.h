/* SPDX-License-Identifier: Apache-2.0 */
/* Device classes: devices that the search need not tell apart, of one type in nodes that are alike. Work grows with their number, not with
 * the number of devices. Private to the solver. */
#ifndef HSPMD_SEARCH_DEVICE_CLASSES_H
#define HSPMD_SEARCH_DEVICE_CLASSES_H

#include <stdbool.h>

#include "common/error.h"
#include "common/format/cluster.h"

#define HSPMD_DEVICE_CLASSES_MAX 12

struct hspmd_device_class {
	int type, node_class;
	int per_node; /* devices of the type in one such node */
	int node_count;
	int *nodes;      /* the nodes, ascending */
	int count;       /* per_node * node_count */
	double slowdown; /* the worst of its nodes' */
	double price;    /* of one node and hour; 0: not known */
};

struct hspmd_device_classes {
	int count;
	struct hspmd_device_class list[HSPMD_DEVICE_CLASSES_MAX];
	int *class_of_device;     /* per device of the cluster: its device class, or -1 (not to be used) */
	int *index_in_node_class; /* per node of the cluster: its place among the nodes of its class */
	int *node_class_of;       /* per node: its class, or -1 */
};

/* Nodes are alike when they hold the same devices in the same order, are equally slow (within a step that grows until there are few enough
 * device classes), have the same network and price, and no link names them. allowed: per device type. NULL and err on failure; no usable
 * device is a failure. */
struct hspmd_device_classes *hspmd_device_classes_new(const struct hspmd_cluster *c, const bool *allowed, struct hspmd_error *err);
void hspmd_device_classes_destroy(struct hspmd_device_classes *k);

/* Device number `i` of device class `device_class` in its node number `node` (both from 0). */
int hspmd_device_class_device(const struct hspmd_cluster *c, const struct hspmd_device_class *device_class, int node, int i);

#endif
