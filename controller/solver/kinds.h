/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of devices: those that the search need not tell apart, of one type in nodes that are alike. Work grows with their number, not with the
 * number of devices. Private to the solver. */
#ifndef HSPMD_CONTROLLER_SOLVER_KINDS_H
#define HSPMD_CONTROLLER_SOLVER_KINDS_H

#include <stdbool.h>

#include "common/error.h"
#include "common/format/cluster.h"

#define HSPMD_KINDS_MAX 12

struct hspmd_kind {
	int type, node_class;
	int per_node;    /* devices of the type in one such node */
	int node_count;
	int *nodes;      /* the nodes, ascending */
	int count;       /* per_node * node_count */
	double slowdown; /* the worst of its nodes' */
	double price;    /* of one node and hour; 0: not known */
};

struct hspmd_kinds {
	int count;
	struct hspmd_kind kinds[HSPMD_KINDS_MAX];
	int *of_device; /* per device of the cluster: its kind, or -1 (not to be used) */
	int *in_class;  /* per node of the cluster: its place among the nodes of its class */
	int *class_of;  /* per node: its class, or -1 */
};

/* Nodes are alike when they hold the same devices in the same order, are equally slow (within a step that grows until there are few enough kinds),
 * have the same network and price, and no link names them. allowed: per device type. NULL and err on failure; no usable device is a failure. */
struct hspmd_kinds *hspmd_kinds_new(const struct hspmd_cluster *c, const bool *allowed, struct hspmd_error *err);
void hspmd_kinds_destroy(struct hspmd_kinds *k);

/* Device number `i` of kind `kind` in its node number `node` (both from 0). */
int hspmd_kind_device(const struct hspmd_cluster *c, const struct hspmd_kind *kind, int node, int i);

#endif
