/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/scale/change.h"

#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/state/manifest.h"

#define ELEMENT_BYTES 4 /* of the master parameters and their moments */

int scale_change_create(int devices, bool leaves, enum scale_shapes shapes, struct scale_change *c, struct hspmd_error *err)
{
	struct hspmd_model_build_options how = { .batch = 1, .seq_len = 4096, .vocab_parts = 8, .widest = 8, .loss_scale = 1 };
	*c = (struct scale_change){ 0 };
	if (scale_problem_create(devices, SCALE_ALIKE, &c->before, err))
		return -1;
	struct hspmd_graph_source source = hspmd_graph_source_model(c->before.model);
	c->after = scale_plan(c->before.cluster, leaves ? devices - SCALE_STAGE_DEVICES : devices, shapes, err);
	c->graph = c->after ? source.build(source.context, &how, err) : NULL;
	return c->graph ? 0 : -1;
}

int scale_change_lay_out(struct scale_change *c, struct hspmd_error *err)
{
	int devices = c->before.cluster->device_count;
	c->old = hspmd_parameter_layouts_build(c->graph, c->before.plan, err);
	c->now = c->old ? hspmd_parameter_layouts_build(c->graph, c->after, err) : NULL;
	if (!c->now)
		return -1;
	int tensors = c->now->parameter_count * HSPMD_STATE_KIND_COUNT;
	c->rank_of = hspmd_calloc((size_t)devices, sizeof *c->rank_of);
	c->element_bytes = hspmd_calloc((size_t)tensors, sizeof *c->element_bytes);
	if (!c->rank_of || !c->element_bytes)
		return hspmd_fail_memory(err, "changing a plan");
	for (int d = 0; d < devices; d++)
		c->rank_of[d] = d;
	for (int i = 0; i < tensors; i++)
		c->element_bytes[i] = ELEMENT_BYTES;
	return 0;
}

int scale_change_moves(const struct scale_change *c, int self, struct hspmd_planned_move **moves, size_t *count, struct hspmd_error *err)
{
	struct hspmd_link_cost cost = hspmd_link_cost_of_cluster(c->before.cluster);
	struct hspmd_state_side held = { c->old, c->rank_of, c->before.cluster->device_count },
	                        needed = { c->now, c->rank_of, c->before.cluster->device_count };
	struct hspmd_state_moves m = {
		.self = self,
		.kinds = HSPMD_STATE_KIND_COUNT,
		.element_bytes = c->element_bytes,
		.now = &needed,
		.live = &held,
		.live_count = !c->stored && !c->files,
		.stored = c->stored,
		.stored_count = c->stored_count,
		.files = c->files,
		.cost = &cost,
	};
	return hspmd_state_moves_plan(&m, moves, count, err);
}

void scale_change_clear(struct scale_change *c)
{
	free(c->rank_of);
	free(c->element_bytes);
	hspmd_parameter_layouts_destroy(c->now);
	hspmd_parameter_layouts_destroy(c->old);
	hspmd_graph_destroy(c->graph);
	hspmd_plan_destroy(c->after);
	scale_problem_clear(&c->before);
}
