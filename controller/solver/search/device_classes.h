/* SPDX-License-Identifier: Apache-2.0 */
/* Device classes: a class holds devices of one type in equal nodes, which the search need not tell apart. The work of the search grows
 * with the number of classes, not with the number of devices. Private to the solver. */
#ifndef HSPMD_SEARCH_DEVICE_CLASSES_H
#define HSPMD_SEARCH_DEVICE_CLASSES_H

#include <stdbool.h>

#include "common/error.h"
#include "common/format/cluster.h"

#define HSPMD_DEVICE_CLASSES_MAX 12

struct hspmd_device_class {
	int type, node_class;
	int per_node; /* devices of the type in one of its nodes */
	int node_count;
	int *nodes;      /* indexes of the nodes, ascending */
	int count;       /* per_node * node_count */
	double slowdown; /* the largest slowdown of its nodes */
	double price;    /* price of one node per hour; 0: unknown */
};

struct hspmd_device_classes {
	int count;
	struct hspmd_device_class list[HSPMD_DEVICE_CLASSES_MAX];
	int *class_of_device;     /* per device of the cluster: its device class; -1: the device may not be used */
	int *index_in_node_class; /* per node of the cluster: its index among the nodes of its class */
	int *node_class_of;       /* per node of the cluster: its node class; -1: none */
};

/* Sort the cluster's devices into classes. Nodes are equal if they hold the same devices in the same order, are equally slow (within a
 * step that is widened until there are few enough device classes), have the same network and price, and no link names them. allowed: per
 * device type, whether it may be used. Returns NULL with err on failure; it is a failure if no device may be used. */
struct hspmd_device_classes *hspmd_device_classes_new(const struct hspmd_cluster *c, const bool *allowed, struct hspmd_error *err);
void hspmd_device_classes_destroy(struct hspmd_device_classes *k);

/* Index of device `i` of the class in the class's node `node`; both count from 0. */
int hspmd_device_class_device(const struct hspmd_cluster *c, const struct hspmd_device_class *device_class, int node, int i);

#endif
