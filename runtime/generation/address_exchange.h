/* SPDX-License-Identifier: Apache-2.0 */
/* The members of a generation exchange their addresses over their own transport, along the tree of common/address_tree.h: the leader of
 * each node collects the addresses of its part of the tree, from the leaves up; the whole list then comes down from the first node, and
 * each leader passes it on to the other members of its node. The controller thus sends each node a number of addresses that does not
 * depend on the size of the job. */
#ifndef HSPMD_GENERATION_ADDRESS_EXCHANGE_H
#define HSPMD_GENERATION_ADDRESS_EXCHANGE_H

#include "common/address_tree.h"
#include "runtime/comm/transport.h"

#define HSPMD_ADDRESS_BYTES_MAX (1u << 20) /* of one member */

/* The addresses of all members; the bytes belong to the list. */
struct hspmd_address_list {
	struct hspmd_address *of; /* by rank; size 0: not known */
	int count;
	void **block; /* what they lie in */
	size_t blocks, capacity;
};

int hspmd_address_list_create(struct hspmd_address_list *l, int count, struct hspmd_error *err);
void hspmd_address_list_clear(struct hspmd_address_list *l);
/* Enter the address of a rank that is not known yet. Takes `data` over, which was allocated, also on failure. */
int hspmd_address_list_add(struct hspmd_address_list *l, int rank, void *data, size_t size, struct hspmd_error *err);

/* Complete `l`, in which the members of the own node and the leaders of its neighbours are known. The transport is connected to these.
 * Blocks as hspmd_transport_wait() does. All members of the tree call it. 0, or -1 and err: the transport can only be closed. */
int hspmd_address_exchange(struct hspmd_transport *t, const struct hspmd_address_tree *tree, struct hspmd_address_list *l,
                           struct hspmd_error *err);

#endif
