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

/* Two addresses as one: the size of the first, the first, the second. */
static int join_addresses(const struct hspmd_address *a, const struct hspmd_address *b, struct hspmd_address *both, struct hspmd_error *err)
{
	uint32_t first = (uint32_t)a->size;
	both->size = sizeof first + a->size + b->size;
	both->data = malloc(both->size);
	if (!both->data)
		return hspmd_fail_memory(err, "making an address");
	memcpy(both->data, &first, sizeof first);
	memcpy((char *)both->data + sizeof first, a->data, a->size);
	memcpy((char *)both->data + sizeof first + a->size, b->data, b->size);
	return 0;
}

/* Borrows from `both`. */
static int part_address(const struct hspmd_address *both, int which, struct hspmd_address *part, struct hspmd_error *err)
{
	uint32_t first;
	if (both->size >= sizeof first)
		memcpy(&first, both->data, sizeof first);
	if (both->size < sizeof first || first > both->size - sizeof first)
		return hspmd_fail(err, "start: an address of %zu bytes is cut short", both->size);
	part->data = (char *)both->data + sizeof first + (which ? first : 0);
	part->size = which ? both->size - sizeof first - first : first;
	return 0;
}

/* What of one lane goes straight between devices, if anything does; its address. */
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

/* The address is two of transports and two of what needs none. */
static int open_all(struct hspmd_generation *g, const struct hspmd_transport_ops *ops, struct hspmd_error *err)
{
	struct hspmd_address part[4] = { { 0 } }, half[2] = { { 0 } };
	int status = open_transport(g, ops, &g->transport, &part[0], err) || open_transport(g, ops, &g->overlap_transport, &part[1], err) ||
	                             open_devcomm(g, 0, &part[2], err) || open_devcomm(g, 1, &part[3], err) ||
	                             join_addresses(&part[0], &part[1], &half[0], err) ||
	                             join_addresses(&part[2], &part[3], &half[1], err) ||
	                             join_addresses(&half[0], &half[1], &g->own_address, err)
	                     ? -1
	                     : 0;
	for (int i = 0; i < 4; i++)
		free(part[i].data);
	free(half[0].data);
	free(half[1].data);
	return status;
}

int hspmd_generation_open_endpoints(struct hspmd_generation *g, struct hspmd_error *err)
{
	if (g->member_count == 1)
		return 0;
	if (open_all(g, hspmd_transport_find(g->setup->transport, err), err))
		return -1;
	/* One of its own: it is used by the checkpoint's thread. */
	return g->placement.any ? open_transport(g, &hspmd_transport_socket, &g->copy_transport, &g->copy_address, err) : 0;
}

/* ---- meeting the others */

static void free_addresses(struct hspmd_address *all, int count)
{
	for (int r = 0; all && r < count; r++)
		free(all[r].data);
	free(all);
}

/* Every member's, from base64. NULL and err. */
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

/* Of all members' addresses the part with this number. */
static int take_parts(const struct hspmd_generation *g, const struct hspmd_address *all, int number, struct hspmd_address *parts,
                      struct hspmd_error *err)
{
	for (int r = 0; r < g->member_count; r++) {
		struct hspmd_address half = { 0 };
		if (part_address(&all[r], number / 2, &half, err) || part_address(&half, number % 2, &parts[r], err))
			return -1;
	}
	return 0;
}

/* connect: the transports too; else only groups of devices, of which the making begins. */
static int meet_members(struct hspmd_generation *g, json_t *addresses, bool connect, struct hspmd_error *err)
{
	if (!g->transport)
		return 0;
	struct hspmd_transport *transports[] = { g->transport, g->overlap_transport };
	struct hspmd_address *all = read_addresses(g, addresses, err);
	struct hspmd_address *parts = all ? hspmd_calloc((size_t)g->member_count, sizeof *parts) : NULL;
	int status = parts ? 0 : all ? hspmd_fail_memory(err, "connecting") : -1;
	for (int number = connect ? 0 : 2; !status && number < 4; number++) {
		struct hspmd_devcomm *devcomm = number < 2 ? NULL : g->devcomm[number - 2];
		if (number >= 2 && !devcomm)
			continue;
		status = take_parts(g, all, number, parts, err);
		if (!status)
			status = devcomm ? hspmd_devcomm_preconnect(devcomm, parts, err)
			                 : transports[number]->ops->connect(transports[number], parts, err);
	}
	free(parts);
	free_addresses(all, g->member_count);
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
	return meet_members(g, addresses, false, err);
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
	if (meet_members(g, addresses, true, err) || connect_copies(g, copy_transport, err) ||
	    (g->devcomm[0] && hspmd_devcomm_wait_ready(g->devcomm[0], err)) ||
	    (g->devcomm[1] && hspmd_devcomm_wait_ready(g->devcomm[1], err)))
		return -1;
	int communicators[2], straight[2];
	for (int lane = 0; lane < 2; lane++)
		hspmd_devcomm_counts(g->devcomm[lane], &communicators[lane], &straight[lane]);
	if (communicators[0] + communicators[1])
		hspmd_info("%d of %d groups of devices communicate straight", straight[0] + straight[1],
		           communicators[0] + communicators[1]);
	return 0;
}

void hspmd_generation_disconnect(struct hspmd_generation *g)
{
	/* Before what waits for the device: members that are gone would keep it busy for ever. */
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
