/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/generation_connect.h"
#include "runtime/generation/member_moves.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/device_runs.h"
#include "common/log.h"
#include "runtime/generation/old_plan.h"

size_t hspmd_generation_parameter_bytes(const struct hspmd_generation *g, int parameter)
{
	return hspmd_dtype_bytes(hspmd_dtype_master(g->program->graph->tensors[g->layouts->parameters[parameter].tensor].dtype));
}

size_t *hspmd_generation_element_bytes(const struct hspmd_generation *g)
{
	int tensors = g->layouts->parameter_count * HSPMD_STATE_KIND_COUNT;
	size_t *bytes = hspmd_calloc((size_t)tensors, sizeof *bytes);
	for (int i = 0; bytes && i < tensors; i++)
		bytes[i] = hspmd_generation_parameter_bytes(g, i / HSPMD_STATE_KIND_COUNT);
	return bytes;
}

/* State that survivors of an old plan hold. */
struct live {
	struct hspmd_old_plan under;
	int *rank_of; /* per device of the plan's cluster; -1: it is no holder */
};

static void live_clear(struct live *l)
{
	hspmd_old_plan_clear(&l->under);
	free(l->rank_of);
}

/* On failure what is there must still be cleared. */
static int live_read(const struct hspmd_generation *g, json_t *value, struct live *l, struct hspmd_error *err)
{
	json_t *holders = json_object_get(value, "holders");
	if (hspmd_old_plan_read(&g->setup->source, hspmd_generation_plain_graph(g), g->plan, json_object_get(value, "cluster"),
	                        json_object_get(value, "plan"), "live", &l->under, err))
		return -1;
	const struct hspmd_cluster *cluster = l->under.cluster;
	l->rank_of = malloc(((size_t)cluster->device_count + 1) * sizeof *l->rank_of);
	if (!l->rank_of)
		return hspmd_fail_memory(err, "planning state moves");
	for (int d = 0; d < cluster->device_count; d++)
		l->rank_of[d] = -1;
	char(*address)[HSPMD_DEVICE_RUNS_ADDRESS];
	int count = hspmd_device_runs_expand(holders, &address, err), status = count < 0 ? -1 : 0, rank = -1;
	for (int h = 0; !status && h < count; h++) {
		bool follows = rank + 1 < g->member_count && !strcmp(g->members[rank + 1], address[h]);
		rank = follows ? rank + 1 : hspmd_generation_rank(g, address[h]);
		int device = hspmd_cluster_find_device(cluster, address[h], err);
		if (rank < 0 || device < 0)
			status = hspmd_fail(err, "start: holder %s is not a member of the generation and a device of the old plan",
			                    address[h]);
		else
			l->rank_of[device] = rank;
	}
	free(address);
	return status;
}

/* Links between ranks. */
struct rank_links {
	const struct hspmd_cluster *cluster;
	int *device; /* per rank; -1: not in the cluster */
};

static double link_seconds(const void *context, int from, int to, double bytes)
{
	const struct rank_links *links = context;
	int a = links->device[from], b = links->device[to];
	const struct hspmd_link *link = a >= 0 && b >= 0 && a != b ? hspmd_cluster_find_link(links->cluster, a, b, 1, 1) : NULL;
	return link ? hspmd_link_seconds(link, bytes) : 1e-5 + bytes / 1e9;
}

static int plan(const struct hspmd_generation *g, const struct live *lives, size_t live_count, const struct hspmd_stored_state *stored,
                struct hspmd_member_moves *moves, struct hspmd_error *err)
{
	struct rank_links links = { g->cluster, hspmd_calloc((size_t)g->member_count, sizeof *links.device) };
	struct hspmd_link_cost cost = { .seconds = link_seconds, .context = &links };
	struct hspmd_state_side now = { g->layouts, g->rank_of, g->cluster->device_count };
	struct hspmd_state_side *sides = hspmd_calloc(live_count, sizeof *sides);
	size_t *element_bytes = hspmd_generation_element_bytes(g);
	int status = links.device && sides && element_bytes ? 0 : hspmd_fail_memory(err, "planning state moves");
	for (int r = 0; !status && r < g->member_count; r++)
		links.device[r] = hspmd_cluster_find_device(g->cluster, g->members[r], &(struct hspmd_error){ "" });
	for (size_t s = 0; !status && s < live_count; s++)
		sides[s] = (struct hspmd_state_side){ lives[s].under.layouts, lives[s].rank_of, lives[s].under.cluster->device_count };
	if (!status) {
		struct hspmd_state_moves m = {
			.self = g->rank,
			.kinds = hspmd_generation_state_kinds(g),
			.element_bytes = element_bytes,
			.now = &now,
			.live = sides,
			.live_count = (int)live_count,
			.stored = stored ? stored->part : NULL,
			.stored_count = stored ? stored->count : 0,
			.files = stored ? hspmd_stored_state_files(stored) : NULL,
			.absent = stored ? stored->absent : NULL,
			.cost = &cost,
		};
		status = hspmd_state_moves_plan(&m, &moves->list, &moves->count, err);
	}
	free(links.device);
	free(sides);
	free(element_bytes);
	return status;
}

int hspmd_member_moves_plan(const struct hspmd_generation *g, json_t *live, const struct hspmd_stored_state *stored,
                            struct hspmd_member_moves *moves, struct hspmd_error *err)
{
	size_t count = json_array_size(live);
	struct live *lives = hspmd_calloc(count, sizeof *lives);
	int status = lives ? 0 : hspmd_fail_memory(err, "planning state moves");
	*moves = (struct hspmd_member_moves){ 0 };
	for (size_t i = 0; !status && i < count; i++)
		status = live_read(g, json_array_get(live, i), &lives[i], err);
	if (!status)
		status = plan(g, lives, count, stored, moves, err);
	for (size_t i = 0; lives && i < count; i++)
		live_clear(&lives[i]);
	free(lives);
	return status;
}

void hspmd_member_moves_expect(struct hspmd_generation *g, json_t *live)
{
	struct hspmd_error why;
	if (!live)
		return;
	g->expected_live = json_incref(live);
	g->moves_planned = !hspmd_member_moves_plan(g, live, NULL, &g->expected_moves, &why);
	if (!g->moves_planned)
		hspmd_warn("moves of state are planned when they begin: %s", why.text);
}

bool hspmd_member_moves_take(struct hspmd_generation *g, json_t *live, struct hspmd_member_moves *moves)
{
	if (!g->moves_planned || !json_equal(live, g->expected_live))
		return false;
	*moves = g->expected_moves;
	g->expected_moves.list = NULL;
	g->moves_planned = false;
	return true;
}
