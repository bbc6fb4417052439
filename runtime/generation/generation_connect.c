/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/generation_connect.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/base64.h"
#include "common/log.h"
#include "common/wire.h"
#include "runtime/generation/tree_messages.h"

static int open_transport(struct hspmd_generation *g, const struct hspmd_transport_ops *ops, struct hspmd_transport **t,
                          struct hspmd_address *own, struct hspmd_error *err)
{
	struct hspmd_transport_options options = {
		.rank = g->rank,
		.size = g->member_count,
		.abort = &g->abort,
		.timeout_s = g->setup->timeout_s,
		.names = g->members,
	};
	if (!ops || ops->open(&options, t, err))
		return -1;
	return ops->address(*t, own, err);
}

#define ENDPOINTS 5
#define MANY_MEMBERS 256 /* whose addresses are exchanged while the previous generation trains */

/* The addresses of one member's endpoints. A member sends them as one blob: the five sizes (32 bits each), then the five addresses. */
struct endpoint_addresses {
	struct hspmd_address transport, overlap_transport, devcomm[2], copies; /* devcomm: by lane; copies: of copy_transport, or empty */
};

/* The endpoints' addresses of all members: arrays by rank. They point into the members' blobs. */
struct peer_addresses {
	struct hspmd_address *transport, *overlap_transport, *devcomm[2], *copies;
};

/* Allocates blob->data. */
static int encode_addresses(const struct endpoint_addresses *own, struct hspmd_address *blob, struct hspmd_error *err)
{
	const struct hspmd_address *parts[] = { &own->transport, &own->overlap_transport, &own->devcomm[0], &own->devcomm[1],
		                                &own->copies };
	uint32_t sizes[ENDPOINTS];
	blob->size = sizeof sizes;
	for (int i = 0; i < ENDPOINTS; i++) {
		sizes[i] = (uint32_t)parts[i]->size;
		blob->size += parts[i]->size;
	}
	char *to = blob->data = malloc(blob->size);
	if (!to)
		return hspmd_fail_memory(err, "making an address");
	memcpy(to, sizes, sizeof sizes);
	to += sizeof sizes;
	for (int i = 0; i < ENDPOINTS; i++) {
		if (parts[i]->size)
			memcpy(to, parts[i]->data, parts[i]->size);
		to += parts[i]->size;
	}
	return 0;
}

/* Enter the addresses of member `rank`, which stay in its blob. The blob comes from a peer: its sizes are checked. */
static int decode_addresses(const struct hspmd_address *blob, int rank, const struct peer_addresses *peers, struct hspmd_error *err)
{
	struct hspmd_address *parts[] = { &peers->transport[rank], &peers->overlap_transport[rank], &peers->devcomm[0][rank],
		                          &peers->devcomm[1][rank], &peers->copies[rank] };
	uint32_t sizes[ENDPOINTS];
	size_t left = blob->size;
	char *at = blob->data;
	if (left >= sizeof sizes) {
		memcpy(sizes, at, sizeof sizes);
		at += sizeof sizes;
		left -= sizeof sizes;
		for (int i = 0; i < ENDPOINTS && sizes[i] <= left; i++) {
			*parts[i] = (struct hspmd_address){ .data = at, .size = sizes[i] };
			at += sizes[i];
			left -= sizes[i];
			if (i == ENDPOINTS - 1)
				return 0;
		}
	}
	return hspmd_fail(err, "start: an address of %zu bytes is cut short", blob->size);
}

/* Open the device-to-device communication of one lane, if there is any, and get its address. */
static int open_devcomm(struct hspmd_generation *g, int lane, struct hspmd_address *own, struct hspmd_error *err)
{
	struct hspmd_link_cost cost = hspmd_link_cost_of_cluster(g->cluster);
	struct hspmd_devcomm_options o = {
		.device = g->setup->device,
		.cache = g->setup->communicators,
		.lane = lane,
		.rank = g->rank,
		.size = g->member_count,
		.names = g->members,
		.rank_of = g->rank_of,
		.count = g->cluster->device_count,
		.cost = &cost,
		.abort = &g->abort,
		.timeout_s = g->setup->timeout_s,
	};
	if (g->setup->communicators) {
		struct hspmd_devcomm_use *uses = hspmd_program_set_devcomm_uses(g->programs, lane, &o.use_count);
		o.uses = uses;
		int status = uses ? hspmd_devcomm_open(&o, &g->devcomm[lane], err) : hspmd_fail_memory(err, "preparing a generation");
		free(uses);
		if (status)
			return -1;
	}
	return hspmd_devcomm_address(g->devcomm[lane], own, err);
}

/* Open this member's endpoints and encode their addresses. */
static int open_all(struct hspmd_generation *g, const struct hspmd_transport_ops *ops, struct hspmd_error *err)
{
	struct endpoint_addresses own = { 0 };
	int status = open_transport(g, ops, &g->transport, &own.transport, err) ||
	                             open_transport(g, ops, &g->overlap_transport, &own.overlap_transport, err) ||
	                             open_devcomm(g, 0, &own.devcomm[0], err) || open_devcomm(g, 1, &own.devcomm[1], err)
	                     ? -1
	                     : 0;
	/* A transport of its own, because the checkpoint's thread uses it. */
	if (!status && g->placement.any)
		status = open_transport(g, &hspmd_transport_socket, &g->copy_transport, &own.copies, err);
	if (!status)
		status = encode_addresses(&own, &g->own_address, err);
	free(own.transport.data);
	free(own.overlap_transport.data);
	free(own.devcomm[0].data);
	free(own.devcomm[1].data);
	free(own.copies.data);
	return status;
}

int hspmd_generation_open_endpoints(struct hspmd_generation *g, struct hspmd_error *err)
{
	return g->member_count == 1 ? 0 : open_all(g, hspmd_transport_find(g->setup->transport, err), err);
}

/* ---- the others' addresses */

int hspmd_generation_rank(const struct hspmd_generation *g, const char *address)
{
	for (int r = 0; address && r < g->member_count; r++)
		if (!strcmp(g->members[r], address))
			return r;
	return -1;
}

/* Read the addresses that the controller has sent, by device. */
static int read_addresses(struct hspmd_generation *g, json_t *addresses, struct hspmd_error *err)
{
	const char *member;
	json_t *value;
	json_object_foreach(addresses, member, value) {
		size_t size = 0;
		int rank = hspmd_generation_rank(g, member);
		const char *text = json_string_value(value);
		char *data = text && rank >= 0 ? hspmd_base64_decode(text, &size) : NULL;
		if (!data)
			return hspmd_fail(err, "start: the address of %.80s is not base64, or it is not a member", member);
		if (hspmd_address_list_add(&g->addresses, rank, data, size, err))
			return -1;
	}
	return 0;
}

/* The endpoints' addresses of all members that are known. The caller frees peers->transport. */
static int decode_known(const struct hspmd_generation *g, struct peer_addresses *peers, struct hspmd_error *err)
{
	size_t n = (size_t)g->member_count;
	struct hspmd_address *parts = hspmd_calloc(ENDPOINTS * n, sizeof *parts);
	int status = parts ? 0 : hspmd_fail_memory(err, "connecting");
	*peers = (struct peer_addresses){ 0 };
	if (parts)
		*peers = (struct peer_addresses){ parts, parts + n, { parts + 2 * n, parts + 3 * n }, parts + 4 * n };
	for (int r = 0; !status && r < g->member_count; r++)
		if (g->addresses.of[r].size)
			status = decode_addresses(&g->addresses.of[r], r, peers, err);
	return status;
}

static int connect_to_neighbours(struct hspmd_generation *g, struct hspmd_error *err)
{
	struct peer_addresses peers;
	int status = decode_known(g, &peers, err);
	if (!status)
		status = g->transport->ops->connect(g->transport, peers.transport, err);
	free(peers.transport);
	return status;
}

static int make_tree(const struct hspmd_generation *g, struct hspmd_address_tree *tree, struct hspmd_error *err)
{
	const char **name = hspmd_calloc((size_t)g->member_count, sizeof *name);
	int status = name ? 0 : hspmd_fail_memory(err, "connecting");
	for (int r = 0; !status && r < g->member_count; r++)
		name[r] = g->members[r];
	if (!status)
		status = hspmd_address_tree_create(tree, name, g->member_count, err);
	free(name);
	return status;
}

static int exchange_addresses(struct hspmd_generation *g, json_t *addresses, struct hspmd_error *err)
{
	struct hspmd_address_tree tree = { 0 };
	int status = hspmd_address_list_create(&g->addresses, g->member_count, err);
	if (!status)
		status = make_tree(g, &tree, err);
	if (!status)
		status = read_addresses(g, addresses, err);
	/* The members of a single node have been sent all addresses. */
	if (!status && tree.nodes > 1)
		status = connect_to_neighbours(g, err) || hspmd_address_exchange(g->transport, &tree, &g->addresses, err) ? -1 : 0;
	hspmd_address_tree_clear(&tree);
	return status ? hspmd_error_prefix(err, "exchanging addresses") : 0;
}

int hspmd_generation_learn_addresses(struct hspmd_generation *g, json_t *addresses, struct hspmd_error *err)
{
	if (!g->transport)
		return 0;
	if (!g->addresses.of && exchange_addresses(g, addresses, err))
		return -1;
	for (int r = 0; r < g->member_count; r++) /* the exchange may have failed earlier */
		if (!g->addresses.of[r].size)
			return hspmd_transport_fail_unknown(g->transport, r, err);
	return 0;
}

/* ---- what the first member was sent for all */

/* NULL and err: memory, or there is no value. */
static struct hspmd_tree_message *message_of(const json_t *value, struct hspmd_error *err)
{
	char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
	struct hspmd_tree_message *m = text ? hspmd_tree_message_create(strlen(text), err) : NULL;
	if (!value)
		hspmd_fail(err, "this member, which is the first, was not sent it");
	else if (!text)
		hspmd_fail_memory(err, "passing it on");
	if (m)
		memcpy(m->bytes, text, m->size);
	free(text);
	return m;
}

json_t *hspmd_generation_pass_down(struct hspmd_generation *g, const json_t *own, struct hspmd_error *err)
{
	struct hspmd_address_tree tree = { 0 };
	json_error_t at;
	struct hspmd_tree_message *m = g->rank ? NULL : message_of(own, err);
	bool ready = (g->rank || m) && !make_tree(g, &tree, err);
	if (ready && g->transport)
		m = hspmd_tree_broadcast(g->transport, &tree, m, HSPMD_WIRE_MAX, err);
	json_t *value = ready && m ? json_loadb(m->bytes, m->size, 0, &at) : NULL;
	if (ready && m && !value)
		hspmd_fail(err, "%s", at.text);
	free(m);
	hspmd_address_tree_clear(&tree);
	return value;
}

/* ---- connecting to them */

/* Connect the endpoints to those of all members. transports: the transports too; otherwise only device groups, whose creation begins. */
static int connect_endpoints(struct hspmd_generation *g, bool transports, struct hspmd_error *err)
{
	if (!g->transport)
		return 0;
	struct peer_addresses peers;
	int status = decode_known(g, &peers, err);
	if (!status && transports)
		status = g->transport->ops->connect(g->transport, peers.transport, err) ||
		                         g->overlap_transport->ops->connect(g->overlap_transport, peers.overlap_transport, err) ||
		                         (g->copy_transport && g->copy_transport->ops->connect(g->copy_transport, peers.copies, err))
		                 ? -1
		                 : 0;
	for (int lane = 0; !status && lane < 2; lane++)
		if (g->devcomm[lane])
			status = hspmd_devcomm_preconnect(g->devcomm[lane], peers.devcomm[lane], err);
	free(peers.transport);
	return status;
}

bool hspmd_generation_needs_preconnect(const struct hspmd_generation *g)
{
	int communicators = 0, more = 0, made;
	hspmd_devcomm_counts(g->devcomm[0], &communicators, &made);
	hspmd_devcomm_counts(g->devcomm[1], &more, &made);
	return communicators + more > 0 || g->member_count >= MANY_MEMBERS;
}

int hspmd_generation_preconnect(struct hspmd_generation *g, struct hspmd_error *err)
{
	return connect_endpoints(g, false, err);
}

int hspmd_generation_preconnected(struct hspmd_generation *g, struct hspmd_error *err)
{
	int made = 1;
	for (int lane = 0; lane < 2 && made == 1; lane++)
		made = g->devcomm[lane] ? hspmd_devcomm_preconnected(g->devcomm[lane], err) : 1;
	return made;
}

int hspmd_generation_connect(struct hspmd_generation *g, struct hspmd_error *err)
{
	if (connect_endpoints(g, true, err) ||
	    (g->devcomm[0] && hspmd_devcomm_wait_ready(g->devcomm[0], err)) ||
	    (g->devcomm[1] && hspmd_devcomm_wait_ready(g->devcomm[1], err)))
		return -1;
	int communicators[2], straight[2];
	for (int lane = 0; lane < 2; lane++)
		hspmd_devcomm_counts(g->devcomm[lane], &communicators[lane], &straight[lane]);
	if (communicators[0] + communicators[1])
		hspmd_info("%d of %d device groups use device-to-device communication", straight[0] + straight[1],
		           communicators[0] + communicators[1]);
	return 0;
}

void hspmd_generation_disconnect(struct hspmd_generation *g)
{
	/* First, because communication with failed members would keep the device busy for ever, and what follows waits for the device. */
	bool broken = atomic_load(&g->abort);
	for (int lane = 0; broken && lane < 2; lane++)
		hspmd_devcomm_abort(g->devcomm[lane]);
	for (int lane = 0; lane < 2; lane++) {
		hspmd_devcomm_close(g->devcomm[lane], broken);
		g->devcomm[lane] = NULL;
	}
	atomic_store(&g->abort, 1);
	if (g->executor)
		hspmd_executor_disconnect(g->executor);
	if (g->transport)
		g->transport->ops->close(g->transport);
	if (g->overlap_transport)
		g->overlap_transport->ops->close(g->overlap_transport);
	if (g->copy_transport)
		g->copy_transport->ops->close(g->copy_transport);
	g->transport = g->overlap_transport = g->copy_transport = NULL;
}
