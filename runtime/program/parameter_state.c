/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/parameter_state.h"

#include <stdlib.h>

#include "common/alloc.h"

enum hspmd_dtype hspmd_parameter_used_type(const struct hspmd_program *p, const struct hspmd_parameter_layout *l)
{
	return p->graph->tensors[l->tensor].dtype;
}

enum hspmd_dtype hspmd_parameter_kept_type(const struct hspmd_program *p, const struct hspmd_parameter_layout *l)
{
	return hspmd_dtype_master(hspmd_parameter_used_type(p, l));
}

bool hspmd_parameter_is_here(const struct hspmd_program *p, int number)
{
	const struct hspmd_parameter_layout *l = &p->layouts->parameters[number];
	for (int h = 0; h < l->holder_count; h++)
		if (l->holders[h].pipeline == p->pipeline && l->holders[h].stage == p->stage)
			return true;
	return false;
}

int hspmd_parameter_slot(struct hspmd_program *p, const struct hspmd_parameter_layout *l, const struct hspmd_box *box,
                         enum hspmd_dtype dtype, enum hspmd_arena_kind memory, struct hspmd_error *err)
{
	struct hspmd_slot_type slot_type = { .tensor = l->tensor, .dtype = dtype, .box = *box, .full = l->shape, .annotation = l->state };
	int f = hspmd_program_add_slot_type(p, &slot_type, err);
	return f < 0 ? -1 : hspmd_program_add_slot(p, f, memory, -1, err);
}

/* ---- transfers */

struct hspmd_annotation *hspmd_parameter_gradient(const struct hspmd_program *p, const struct hspmd_pipelines *pipelines,
                                                  const struct hspmd_parameter_layout *l, struct hspmd_error *err)
{
	struct hspmd_annotation **parts = hspmd_calloc((size_t)l->holder_count, sizeof *parts), *all = NULL;
	int gradient = p->graph->tensors[l->tensor].grad, status = parts ? 0 : hspmd_fail_memory(err, "specialising");
	for (int h = 0; !status && h < l->holder_count; h++)
		if (!(parts[h] = hspmd_pipelines_annotation(pipelines, gradient, l->holders[h], err)))
			status = hspmd_error_prefix(err, "gradient of parameter %s", l->name);
	if (!status)
		all = hspmd_parameter_layout_join(l, (const struct hspmd_annotation *const *)parts, HSPMD_PARTIAL, err);
	for (int h = 0; parts && h < l->holder_count; h++)
		hspmd_annotation_destroy(parts[h]);
	free(parts);
	return all;
}

int hspmd_parameter_own_transfer(struct hspmd_program *p, struct hspmd_transfer *t, struct hspmd_error *err)
{
	if (hspmd_array_grow(&p->transfers, &p->transfer_capacity, p->transfer_count, sizeof *p->transfers)) {
		hspmd_transfer_destroy(t);
		return hspmd_fail_memory(err, "specialising");
	}
	p->transfers[p->transfer_count++] = t;
	return 0;
}

/* The caller destroys the result. NULL and err. */
static struct hspmd_transfer *resolve(const struct hspmd_parameter_layout *l, const struct hspmd_annotation *from,
                                      const struct hspmd_annotation *to, enum hspmd_dtype dtype, const struct hspmd_link_cost *cost,
                                      struct hspmd_error *err)
{
	struct hspmd_transfer *t = hspmd_resolve(&l->shape, hspmd_dtype_bytes(dtype), from, to, cost, err);
	if (!t)
		hspmd_error_prefix(err, "parameter %s", l->name);
	return t;
}

const struct hspmd_transfer *hspmd_parameter_resolve(struct hspmd_program *p, const struct hspmd_parameter_layout *l,
                                                     const struct hspmd_annotation *from, const struct hspmd_annotation *to,
                                                     enum hspmd_dtype dtype, const struct hspmd_link_cost *cost, struct hspmd_error *err)
{
	struct hspmd_transfer *t = resolve(l, from, to, dtype, cost, err);
	return t && !hspmd_parameter_own_transfer(p, t, err) ? t : NULL;
}

static struct hspmd_transfer *resolve_path(const struct hspmd_program *p, const struct hspmd_parameter_path *path,
                                           const struct hspmd_link_cost *cost, struct hspmd_error *err)
{
	const struct hspmd_parameter_layout *l = &p->layouts->parameters[path->number];
	if (path->back)
		return resolve(l, l->state, l->used, hspmd_parameter_used_type(p, l), cost, err);
	struct hspmd_annotation *from = hspmd_parameter_gradient(p, path->pipelines, l, err);
	struct hspmd_transfer *t = from ? resolve(l, from, l->state, hspmd_parameter_kept_type(p, l), cost, err) : NULL;
	hspmd_annotation_destroy(from);
	return t;
}

const struct hspmd_transfer *hspmd_parameter_likely(const struct hspmd_program *p, const struct hspmd_parameter_path *path,
                                                    struct hspmd_joined_costs *costs, struct hspmd_error *err)
{
	const struct hspmd_parameter_layout *l = &p->layouts->parameters[path->number];
	enum hspmd_dtype type = path->back ? hspmd_parameter_used_type(p, l) : hspmd_parameter_kept_type(p, l);
	struct hspmd_link_cost likely = hspmd_joined_likely(costs, &l->shape, hspmd_dtype_bytes(type));
	struct hspmd_transfer *t = resolve_path(p, path, &likely, err);
	return t && !hspmd_joined_keep(costs, t, err) ? t : NULL;
}

const struct hspmd_transfer *hspmd_parameter_joined(struct hspmd_program *p, const struct hspmd_parameter_path *path,
                                                    const struct hspmd_joined_bytes *bytes, struct hspmd_joined_costs *costs,
                                                    struct hspmd_error *err)
{
	struct hspmd_link_cost cost;
	struct hspmd_transfer *t = hspmd_joined_cost(costs, bytes, &cost, err) ? NULL : resolve_path(p, path, &cost, err);
	return t && !hspmd_parameter_own_transfer(p, t, err) ? t : NULL;
}

/* ---- states */

/* The master parameter and its moments, of which those that only the update uses can be offloaded. `used`: the slot of the parameter as
 * operators use it; -1: there is none all the time. */
static int add_masters(struct hspmd_program *p, const struct hspmd_parameter_layout *l, struct hspmd_program_state *state, int used,
                       struct hspmd_error *err)
{
	bool shared = used >= 0 && hspmd_box_equal(&p->slot_types[p->slots[used].slot_type].box, &state->shard.box);
	enum hspmd_dtype kept = hspmd_parameter_kept_type(p, l), type = hspmd_parameter_used_type(p, l);
	const struct hspmd_box *box = &state->shard.box;
	enum hspmd_arena_kind updated = p->offloads ? HSPMD_ARENA_HOST : HSPMD_ARENA_FIXED;
	if (kept != type && (state->copy = shared ? used : hspmd_parameter_slot(p, l, box, type, HSPMD_ARENA_FIXED, err)) < 0)
		return -1;
	state->param =
	        shared && kept == type ? used : hspmd_parameter_slot(p, l, box, kept, kept == type ? HSPMD_ARENA_FIXED : updated, err);
	for (int k = 0; state->param >= 0 && k < hspmd_optimizer_types[p->optimizer]->moments; k++)
		if ((state->moments[k] = hspmd_parameter_slot(p, l, box, kept, updated, err)) < 0)
			return -1;
	return state->param < 0 ? -1 : 0;
}

/* This device's part of a state that is kept in parts during the passes. */
static int add_part(struct hspmd_program *p, int number, struct hspmd_error *err)
{
	const struct hspmd_parameter_layout *l = &p->layouts->parameters[number];
	struct hspmd_program_state *state = &p->states[number];
	if (!hspmd_annotation_local_shard(l->state, &l->shape, p->device, &state->shard))
		return 0;
	state->grad = hspmd_parameter_slot(p, l, &state->shard.box, hspmd_parameter_kept_type(p, l), HSPMD_ARENA_FIXED, err);
	return state->grad < 0 || (state->gather && add_masters(p, l, state, -1, err)) ? -1 : 0;
}

/* Resolves the transfers of one direction of all parameters that are kept in parts; those of a layer travel together. */
static int shard_path(struct hspmd_program *p, bool back, const struct hspmd_pipelines *pipelines, struct hspmd_joined_costs *costs,
                      struct hspmd_error *err)
{
	size_t most = (size_t)p->state_count + 1;
	const struct hspmd_transfer **likely = hspmd_calloc(most, sizeof(*likely));
	struct hspmd_joined_bytes *bytes = hspmd_calloc(most, sizeof *bytes);
	int *layer = hspmd_calloc(most, sizeof *layer), status = likely && bytes && layer ? 0 : hspmd_fail_memory(err, "specialising");
	for (int i = 0; !status && i < p->state_count; i++) {
		const struct hspmd_parameter_layout *l = &p->layouts->parameters[i];
		layer[i] = p->graph->tensors[l->tensor].layer;
		if ((back ? l->sharded_parameter : l->sharded_gradient) && hspmd_parameter_is_here(p, i) &&
		    !(likely[i] = hspmd_parameter_likely(p, &(struct hspmd_parameter_path){ i, back, pipelines }, costs, err)))
			status = -1;
	}
	if (!status)
		status = hspmd_joined_totals(likely, layer, p->state_count, bytes, err);
	hspmd_joined_forget(costs);
	for (int i = 0; !status && i < p->state_count; i++) {
		const struct hspmd_transfer **at = back ? &p->states[i].gather : &p->states[i].scatter;
		if (bytes[i].own &&
		    !(*at = hspmd_parameter_joined(p, &(struct hspmd_parameter_path){ i, back, pipelines }, &bytes[i], costs, err)))
			status = -1;
	}
	free(likely);
	free(bytes);
	free(layer);
	return status;
}

int hspmd_parameter_shard_states(struct hspmd_program *p, const struct hspmd_pipelines *pipelines, const struct hspmd_link_cost *cost,
                                 struct hspmd_error *err)
{
	struct hspmd_joined_costs costs;
	p->state_count = p->layouts->parameter_count;
	p->states = hspmd_calloc((size_t)p->state_count, sizeof *p->states);
	int status = hspmd_joined_costs_init(&costs, cost, err);
	if (!status && !p->states)
		status = hspmd_fail_memory(err, "specialising");
	for (int i = 0; !status && i < p->state_count; i++) {
		const struct hspmd_parameter_layout *l = &p->layouts->parameters[i];
		p->states[i] = (struct hspmd_program_state){ .tensor = l->tensor,
			                                     .name = l->name,
			                                     .decay = l->decay,
			                                     .param = -1,
			                                     .moments = { -1, -1 },
			                                     .copy = -1,
			                                     .used = -1,
			                                     .grad = -1 };
	}
	if (!status)
		status = shard_path(p, false, pipelines, &costs, err) || shard_path(p, true, pipelines, &costs, err) ? -1 : 0;
	for (int i = 0; !status && i < p->state_count; i++)
		if (p->states[i].scatter)
			status = add_part(p, i, err);
	hspmd_joined_costs_clear(&costs);
	return status;
}

int hspmd_parameter_add_state(struct hspmd_program *p, int number, struct hspmd_error *err)
{
	const struct hspmd_parameter_layout *l = &p->layouts->parameters[number];
	struct hspmd_program_state *state = &p->states[number];
	if (state->gather)
		return 0;
	state->used = p->fixed_of_tensor[l->tensor];
	if (!hspmd_annotation_local_shard(l->state, &l->shape, p->device, &state->shard))
		return 0;
	return add_masters(p, l, state, state->used, err);
}
