/* SPDX-License-Identifier: Apache-2.0 */
/* The tree along which the members of a generation exchange their addresses. Its nodes are the members' nodes, in the order in which they
 * first occur among the members; node k's children are nodes FANOUT k + 1 to FANOUT k + FANOUT; a node's first member leads it. The
 * controller sends each node only the addresses of its own members, and of the leaders of its parent and its children. Controller and
 * workers compute it alike from the list of members. */
#ifndef HSPMD_COMMON_ADDRESS_TREE_H
#define HSPMD_COMMON_ADDRESS_TREE_H

#include "common/error.h"

#define HSPMD_ADDRESS_TREE_FANOUT 4

struct hspmd_address_tree {
	int members, nodes;
	int *node;   /* by member */
	int *leader; /* by node: its first member */
	int *next;   /* by member: the next member of its node; -1: none */
};

/* member: device addresses "node:index", in rank order. 0, or -1 and err: out of memory. */
int hspmd_address_tree_create(struct hspmd_address_tree *t, const char *const *member, int count, struct hspmd_error *err);
void hspmd_address_tree_clear(struct hspmd_address_tree *t);
/* The leaders of the parent and the children of a node. Returns their number; the parent's, if there is one, comes first. */
int hspmd_address_tree_neighbours(const struct hspmd_address_tree *t, int node, int leader[1 + HSPMD_ADDRESS_TREE_FANOUT]);

#endif
