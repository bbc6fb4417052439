/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/address_exchange.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/generation/tree_messages.h"

#define HEAD sizeof(struct entry_head)

/* A list in transit: for each address a head, then its bytes. */
struct entry_head {
	uint32_t rank, size;
};

int hspmd_address_list_create(struct hspmd_address_list *l, int count, struct hspmd_error *err)
{
	*l = (struct hspmd_address_list){ .count = count, .of = hspmd_calloc((size_t)count, sizeof *l->of) };
	return l->of ? 0 : hspmd_fail_memory(err, "collecting addresses");
}

void hspmd_address_list_clear(struct hspmd_address_list *l)
{
	for (size_t i = 0; i < l->blocks; i++)
		free(l->block[i]);
	free(l->block);
	free(l->of);
	memset(l, 0, sizeof *l);
}

/* Keep a block until the list is cleared. Takes it over, also on failure. */
static int keep_block(struct hspmd_address_list *l, void *block, struct hspmd_error *err)
{
	if (hspmd_array_grow(&l->block, &l->capacity, l->blocks, sizeof *l->block)) {
		free(block);
		return hspmd_fail_memory(err, "collecting addresses");
	}
	l->block[l->blocks++] = block;
	return 0;
}

/* The bytes lie in a block of the list. */
static int enter(struct hspmd_address_list *l, uint32_t rank, void *data, size_t size, struct hspmd_error *err)
{
	if (rank >= (uint32_t)l->count || !size || size > HSPMD_ADDRESS_BYTES_MAX)
		return hspmd_fail(err, "an address of %zu bytes for rank %u of %d", size, rank, l->count);
	if (!l->of[rank].size)
		l->of[rank] = (struct hspmd_address){ .data = data, .size = size };
	return 0;
}

int hspmd_address_list_add(struct hspmd_address_list *l, int rank, void *data, size_t size, struct hspmd_error *err)
{
	return keep_block(l, data, err) ? -1 : enter(l, (uint32_t)rank, data, size, err);
}

/* The addresses of the members in `has`, as they travel. */
static struct hspmd_tree_message *write_list(const struct hspmd_address_list *l, const bool *has, struct hspmd_error *err)
{
	uint64_t size = 0;
	for (int r = 0; r < l->count; r++)
		size += has[r] ? HEAD + l->of[r].size : 0;
	struct hspmd_tree_message *b = hspmd_tree_message_create(size, err);
	char *at = b ? b->bytes : NULL;
	for (int r = 0; at && r < l->count; r++) {
		if (!has[r])
			continue;
		struct entry_head head = { (uint32_t)r, (uint32_t)l->of[r].size };
		memcpy(at, &head, HEAD);
		memcpy(at + HEAD, l->of[r].data, l->of[r].size);
		at += HEAD + l->of[r].size;
	}
	return b;
}

/* Enter what a peer has sent, and note it in `has`. The bytes are copied, as the buffer may be sent on. */
static int read_list(struct hspmd_address_list *l, const struct hspmd_tree_message *b, bool *has, struct hspmd_error *err)
{
	char *copy = malloc(b->size + 1);
	if (!copy)
		return hspmd_fail_memory(err, "collecting addresses");
	memcpy(copy, b->bytes, b->size);
	if (keep_block(l, copy, err))
		return -1;
	for (uint64_t at = 0; at < b->size;) {
		struct entry_head head;
		if (b->size - at < HEAD)
			return hspmd_fail(err, "a list of addresses is cut short");
		memcpy(&head, copy + at, HEAD);
		at += HEAD;
		if (b->size - at < head.size)
			return hspmd_fail(err, "a list of addresses is cut short");
		if (enter(l, head.rank, copy + at, head.size, err))
			return -1;
		has[head.rank] = true;
		at += head.size;
	}
	return 0;
}

static struct hspmd_tree_message *receive(struct hspmd_transport *t, const struct hspmd_address_list *l, int from, struct hspmd_error *err)
{
	return hspmd_tree_receive(t, from, HSPMD_TREE_ADDRESSES, (uint64_t)l->count * (HEAD + HSPMD_ADDRESS_BYTES_MAX), err);
}

/* The leader's part on the way up: what the children's parts of the tree have, and the own node, go to the parent. */
static int collect(struct hspmd_transport *t, const struct hspmd_address_tree *tree, int node, const int *child, int children, int parent,
                   struct hspmd_address_list *l, struct hspmd_error *err)
{
	bool *has = hspmd_calloc((size_t)l->count, sizeof *has);
	int status = has ? 0 : hspmd_fail_memory(err, "collecting addresses");
	for (int m = tree->leader[node]; !status && m >= 0; m = tree->next[m])
		has[m] = true;
	for (int i = 0; !status && i < children; i++) {
		struct hspmd_tree_message *part = receive(t, l, child[i], err);
		status = part ? read_list(l, part, has, err) : -1;
		free(part);
	}
	if (!status && parent >= 0) {
		struct hspmd_tree_message *part = write_list(l, has, err);
		status = part ? hspmd_tree_send(t, part, HSPMD_TREE_ADDRESSES, &parent, 1, err) : -1;
	}
	free(has);
	return status;
}

static int check_all_known(const struct hspmd_transport *t, const struct hspmd_address_list *l, struct hspmd_error *err)
{
	for (int r = 0; r < l->count; r++)
		if (!l->of[r].size)
			return hspmd_transport_fail_unknown(t, r, err);
	return 0;
}

/* On the way down: the whole list comes from `from` (-1: this member has collected it) and goes to `to`. */
static int pass_on(struct hspmd_transport *t, int from, const int *to, int count, struct hspmd_address_list *l, struct hspmd_error *err)
{
	bool *has = hspmd_calloc((size_t)l->count, sizeof *has);
	struct hspmd_tree_message *list = NULL;
	int status = has ? 0 : hspmd_fail_memory(err, "passing addresses on");
	if (!status && from >= 0) {
		list = receive(t, l, from, err);
		status = list ? read_list(l, list, has, err) : -1;
	}
	status = status ? status : check_all_known(t, l, err);
	if (!status && from < 0) {
		memset(has, 1, (size_t)l->count * sizeof *has);
		list = write_list(l, has, err);
		status = list ? 0 : -1;
	}
	free(has);
	if (!status)
		return hspmd_tree_send(t, list, HSPMD_TREE_ADDRESSES, to, count, err);
	free(list);
	return -1;
}

int hspmd_address_exchange(struct hspmd_transport *t, const struct hspmd_address_tree *tree, struct hspmd_address_list *l,
                           struct hspmd_error *err)
{
	int rank = t->options.rank, node = tree->node[rank], leader = tree->leader[node], near[1 + HSPMD_ADDRESS_TREE_FANOUT];
	if (rank != leader)
		return pass_on(t, leader, NULL, 0, l, err);
	int count = hspmd_address_tree_neighbours(tree, node, near), parent = node ? near[0] : -1;
	if (collect(t, tree, node, near + (node > 0), count - (node > 0), parent, l, err))
		return -1;
	int receivers, *to = hspmd_tree_receivers(tree, node, &receivers, err),
	               status = to ? pass_on(t, parent, to, receivers, l, err) : -1;
	free(to);
	return status;
}
