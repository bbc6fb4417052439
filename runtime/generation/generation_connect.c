/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/generation_connect.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/base64.h"
#include "common/log.h"

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

/* The addresses of one member's endpoints. A member sends them as one blob: the four sizes (32 bits each), then the four addresses. */
struct endpoint_addresses {
	struct hspmd_address transport, overlap_transport, devcomm[2]; /* devcomm: by lane */
};

/* The endpoints' addresses of all members: arrays by rank. They point into the members' blobs. */
struct peer_addresses {
	struct hspmd_address *transport, *overlap_transport, *devcomm[2];
};

/* Allocates blob->data. */
static int encode_addresses(const struct endpoint_addresses *own, struct hspmd_address *blob, struct hspmd_error *err)
{
	const struct hspmd_address *parts[] = { &own->transport, &own->overlap_transport, &own->devcomm[0], &own->devcomm[1] };
	uint32_t sizes[4];
	blob->size = sizeof sizes;
	for (int i = 0; i < 4; i++) {
		sizes[i] = (uint32_t)parts[i]->size;
		blob->size += parts[i]->size;
	}
	char *to = blob->data = malloc(blob->size);
	if (!to)
		return hspmd_fail_memory(err, "making an address");
	memcpy(to, sizes, sizeof sizes);
	to += sizeof sizes;
	for (int i = 0; i < 4; i++) {
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
		                          &peers->devcomm[1][rank] };
	uint32_t sizes[4];
	size_t left = blob->size;
	char *at = blob->data;
	if (left >= sizeof sizes) {
		memcpy(sizes, at, sizeof sizes);
		at += sizeof sizes;
		left -= sizeof sizes;
		for (int i = 0; i < 4 && sizes[i] <= left; i++) {
			*parts[i] = (struct hspmd_address){ .data = at, .size = sizes[i] };
			at += sizes[i];
			left -= sizes[i];
			if (i == 3)
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
		struct hspmd_devcomm_use *uses = hspmd_program_devcomm_uses(g->program, g->program->stage < 0 ? NULL : g->at_length,
		                                                            g->setup->job->length_count, lane, &o.use_count);
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
	                             open_devcomm(g, 0, &own.devcomm[0], err) || open_devcomm(g, 1, &own.devcomm[1], err) ||
	                             encode_addresses(&own, &g->own_address, err)
	                     ? -1
	                     : 0;
	free(own.transport.data);
	free(own.overlap_transport.data);
	free(own.devcomm[0].data);
	free(own.devcomm[1].data);
	return status;
}

int hspmd_generation_open_endpoints(struct hspmd_generation *g, struct hspmd_error *err)
{
	if (g->member_count == 1)
		return 0;
	if (open_all(g, hspmd_transport_find(g->setup->transport, err), err))
		return -1;
	/* A transport of its own, because the checkpoint's thread uses it. */
	return g->placement.any ? open_transport(g, &hspmd_transport_socket, &g->copy_transport, &g->copy_address, err) : 0;
}

/* ---- connecting to the others */

static void free_addresses(struct hspmd_address *all, int count)
{
	for (int r = 0; all && r < count; r++)
		free(all[r].data);
	free(all);
}

/* Decode the addresses of all members from base64. NULL and err on failure. */
static struct hspmd_address *read_addresses(const struct hspmd_generation *g, json_t *addresses, struct hspmd_error *err)
{
	if (json_array_size(addresses) != (size_t)g->member_count) {
		hspmd_fail(err, "start: %zu addresses for %d members", json_array_size(addresses), g->member_count);
		return NULL;
	}
	struct hspmd_address *all = hspmd_calloc((size_t)g->member_count, sizeof *all);
	int status = all ? 0 : hspmd_fail_memory(err, "connecting");
	for (int r = 0; !status && r < g->member_count; r++) {
		const char *text = json_string_value(json_array_get(addresses, (size_t)r));
		all[r].data = text ? hspmd_base64_decode(text, &all[r].size) : NULL;
		if (!all[r].data)
			status = hspmd_fail(err, "start: addresses[%d] is not base64", r);
	}
	if (!status)
		return all;
	free_addresses(all, g->member_count);
	return NULL;
}

/* Connect the endpoints to those of all members. transports: the two transports too; otherwise only device groups, whose creation
 * begins. */
static int connect_endpoints(struct hspmd_generation *g, json_t *addresses, bool transports, struct hspmd_error *err)
{
	if (!g->transport)
		return 0;
	size_t n = (size_t)g->member_count;
	struct hspmd_address *blobs = read_addresses(g, addresses, err), *parts = blobs ? hspmd_calloc(4 * n, sizeof *parts) : NULL;
	int status = parts ? 0 : blobs ? hspmd_fail_memory(err, "connecting") : -1;
	struct peer_addresses peers = { 0 };
	if (parts)
		peers = (struct peer_addresses){ parts, parts + n, { parts + 2 * n, parts + 3 * n } };
	for (int r = 0; !status && r < g->member_count; r++)
		status = decode_addresses(&blobs[r], r, &peers, err);
	if (!status && transports)
		status = g->transport->ops->connect(g->transport, peers.transport, err) ||
		                         g->overlap_transport->ops->connect(g->overlap_transport, peers.overlap_transport, err)
		                 ? -1
		                 : 0;
	for (int lane = 0; !status && lane < 2; lane++)
		if (g->devcomm[lane])
			status = hspmd_devcomm_preconnect(g->devcomm[lane], peers.devcomm[lane], err);
	free(parts);
	free_addresses(blobs, g->member_count);
	return status;
}

static int connect_copies(struct hspmd_generation *g, json_t *addresses, struct hspmd_error *err)
{
	if (!g->copy_transport)
		return 0;
	struct hspmd_address *all = read_addresses(g, addresses, err);
	int status = all ? g->copy_transport->ops->connect(g->copy_transport, all, err) : -1;
	free_addresses(all, g->member_count);
	return status;
}

bool hspmd_generation_needs_preconnect(const struct hspmd_generation *g)
{
	int communicators = 0, more = 0, made;
	hspmd_devcomm_counts(g->devcomm[0], &communicators, &made);
	hspmd_devcomm_counts(g->devcomm[1], &more, &made);
	return communicators + more > 0;
}

int hspmd_generation_preconnect(struct hspmd_generation *g, json_t *addresses, struct hspmd_error *err)
{
	return connect_endpoints(g, addresses, false, err);
}

int hspmd_generation_preconnected(struct hspmd_generation *g, struct hspmd_error *err)
{
	int made = 1;
	for (int lane = 0; lane < 2 && made == 1; lane++)
		made = g->devcomm[lane] ? hspmd_devcomm_preconnected(g->devcomm[lane], err) : 1;
	return made;
}

int hspmd_generation_connect(struct hspmd_generation *g, json_t *addresses, json_t *copy_transport, struct hspmd_error *err)
{
	if (connect_endpoints(g, addresses, true, err) || connect_copies(g, copy_transport, err) ||
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
