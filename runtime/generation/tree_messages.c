/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/tree_messages.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"

static uint64_t size_tag(enum hspmd_tree_purpose purpose)
{
	return HSPMD_TAG_LIMIT - 1024 + 2 * (uint64_t)purpose;
}

struct hspmd_tree_message *hspmd_tree_message_create(uint64_t size, struct hspmd_error *err)
{
	struct hspmd_tree_message *m = size < SIZE_MAX - sizeof *m ? malloc(sizeof *m + size) : NULL;
	if (!m)
		hspmd_fail_memory(err, "a message between members");
	else
		m->size = size;
	return m;
}

struct hspmd_tree_message *hspmd_tree_receive(struct hspmd_transport *t, int from, enum hspmd_tree_purpose purpose, uint64_t most,
                                              struct hspmd_error *err)
{
	struct hspmd_request *r = NULL;
	uint64_t bytes, tag = size_tag(purpose);
	struct hspmd_tree_message *size = hspmd_tree_message_create(sizeof bytes, err), *m = NULL;
	if (!size)
		return NULL;
	if (t->ops->receive(t, from, tag, size->bytes, size->size, &r, err) || hspmd_transport_wait(t, &r, 1, err)) {
		hspmd_transport_free_on_close(t, &size->deferred);
		return NULL;
	}
	memcpy(&bytes, size->bytes, sizeof bytes);
	free(size);
	if (bytes > most) {
		hspmd_fail(err, "a message of %llu bytes from rank %d, expected at most %llu", (unsigned long long)bytes, from,
		           (unsigned long long)most);
		return NULL;
	}
	m = hspmd_tree_message_create(bytes, err);
	if (m && (t->ops->receive(t, from, tag + 1, m->bytes, bytes, &r, err) || hspmd_transport_wait(t, &r, 1, err))) {
		hspmd_transport_free_on_close(t, &m->deferred);
		return NULL;
	}
	return m;
}

int hspmd_tree_send(struct hspmd_transport *t, struct hspmd_tree_message *message, enum hspmd_tree_purpose purpose, const int *to,
                    int count, struct hspmd_error *err)
{
	struct hspmd_request **r = hspmd_calloc(2 * (size_t)count, sizeof *r);
	uint64_t tag = size_tag(purpose);
	int status = r ? 0 : hspmd_fail_memory(err, "sending to members");
	for (int i = 0; !status && i < count; i++)
		status = t->ops->send(t, to[i], tag, &message->size, sizeof message->size, &r[2 * i], err) ||
		                         t->ops->send(t, to[i], tag + 1, message->bytes, message->size, &r[2 * i + 1], err)
		                 ? -1
		                 : 0;
	if (!status)
		status = hspmd_transport_wait(t, r, 2 * count, err);
	free(r);
	if (status)
		hspmd_transport_free_on_close(t, &message->deferred);
	else
		free(message);
	return status;
}

int *hspmd_tree_receivers(const struct hspmd_address_tree *tree, int node, int *count, struct hspmd_error *err)
{
	int near[1 + HSPMD_ADDRESS_TREE_FANOUT], neighbours = hspmd_address_tree_neighbours(tree, node, near);
	int *to = hspmd_calloc((size_t)tree->members + HSPMD_ADDRESS_TREE_FANOUT, sizeof *to);
	*count = 0;
	if (!to) {
		hspmd_fail_memory(err, "sending to members");
		return NULL;
	}
	for (int i = node > 0; i < neighbours; i++)
		to[(*count)++] = near[i];
	for (int m = tree->next[tree->leader[node]]; m >= 0; m = tree->next[m])
		to[(*count)++] = m;
	return to;
}

/* Sends a copy, as sending takes it over. */
static int send_copy(struct hspmd_transport *t, const struct hspmd_tree_message *message, const int *to, int count, struct hspmd_error *err)
{
	struct hspmd_tree_message *copy = count ? hspmd_tree_message_create(message->size, err) : NULL;
	if (!copy)
		return count ? -1 : 0;
	memcpy(copy->bytes, message->bytes, message->size);
	return hspmd_tree_send(t, copy, HSPMD_TREE_BROADCAST, to, count, err);
}

struct hspmd_tree_message *hspmd_tree_broadcast(struct hspmd_transport *t, const struct hspmd_address_tree *tree,
                                                struct hspmd_tree_message *own, uint64_t most, struct hspmd_error *err)
{
	int rank = t->options.rank, node = tree->node[rank], leader = tree->leader[node], near[1 + HSPMD_ADDRESS_TREE_FANOUT];
	if (rank) {
		hspmd_address_tree_neighbours(tree, node, near);
		own = hspmd_tree_receive(t, rank == leader ? near[0] : leader, HSPMD_TREE_BROADCAST, most, err);
	}
	if (!own || rank != leader)
		return own;
	int count, *to = hspmd_tree_receivers(tree, node, &count, err);
	if (!to || send_copy(t, own, to, count, err)) {
		free(own);
		own = NULL;
	}
	free(to);
	return own;
}
