/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of any size along the tree of common/address_tree.h, between members of a generation. The first member of a node leads it: it
 * talks to the leaders of the parent and the children, and to the members of its node. */
#ifndef HSPMD_GENERATION_TREE_MESSAGES_H
#define HSPMD_GENERATION_TREE_MESSAGES_H

#include <stdint.h>

#include "common/address_tree.h"
#include "runtime/comm/transport.h"

/* What a message is about: messages of one purpose between two members arrive in order. */
enum hspmd_tree_purpose { HSPMD_TREE_ADDRESSES, HSPMD_TREE_BROADCAST };

/* A transport may still use it after a failure. */
struct hspmd_tree_message {
	struct hspmd_deferred_free deferred;
	uint64_t size;
	char bytes[];
};

/* Free with free(). NULL and err: memory. */
struct hspmd_tree_message *hspmd_tree_message_create(uint64_t size, struct hspmd_error *err);
/* The next message of a member; one of more than `most` bytes is an error. NULL and err. */
struct hspmd_tree_message *hspmd_tree_receive(struct hspmd_transport *t, int from, enum hspmd_tree_purpose purpose, uint64_t most,
                                              struct hspmd_error *err);
/* Send a message to several members at once. Takes it over. 0 or -1 and err. */
int hspmd_tree_send(struct hspmd_transport *t, struct hspmd_tree_message *message, enum hspmd_tree_purpose purpose, const int *to,
                    int count, struct hspmd_error *err);
/* Those that the leader of a node sends to on the way down: the children's leaders and the other members of the node. Returns the list,
 * which the caller frees; NULL and err: memory. */
int *hspmd_tree_receivers(const struct hspmd_address_tree *tree, int node, int *count, struct hspmd_error *err);

/* All members call this: each gets the message of the first one, down the tree. own: the first member's message, which is taken over; NULL
 * at the others. The members must be connected. The caller frees the result; NULL and err. */
struct hspmd_tree_message *hspmd_tree_broadcast(struct hspmd_transport *t, const struct hspmd_address_tree *tree,
                                                struct hspmd_tree_message *own, uint64_t most, struct hspmd_error *err);

#endif
