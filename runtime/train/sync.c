/* SPDX-License-Identifier: Apache-2.0 */
/* The step's part of a program: every parameter's gradient is brought from wherever it was accumulated (other pipelines, other widths of tensor parallelism, other
 * stages for tied weights) to where the optimizer's state lies, its norm is taken, and after the vote the state is updated and parameters go where they are used. */
#include <string.h>

#include "common/alloc.h"
#include "runtime/train/layout.h"
#include "runtime/train/program.h"

struct sync {
	struct hspmd_program *p;
	const struct hspmd_layouts *layouts;
	struct hspmd_spmd *const *spmds;
	const struct hspmd_link_cost *cost;
	struct hspmd_error *err;
};

/* Transfers of the step are numbered above all of a pipeline's nodes. */
#define SYNC_NUMBER(parameter, back) (HSPMD_PROGRAM_NODES + 2 * (uint64_t)(parameter) + (back))

/* How the gradient lies before it is summed: a sum over the holders. */
static struct hspmd_annotation *gradient_annotation(const struct sync *s, const struct hspmd_layout_parameter *l)
{
	const struct hspmd_annotation **parts = hspmd_calloc((size_t)l->holder_count, sizeof *parts);
	struct hspmd_annotation *all = NULL;
	int gradient = s->p->graph->tensors[l->tensor].grad, value = 0;
	for (int h = 0; parts && value >= 0 && h < l->holder_count; h++) {
		const struct hspmd_spmd *spmd = s->spmds[l->holders[h].pipeline];
		value = gradient < 0 ? -1 : hspmd_spmd_value(spmd, gradient, l->holders[h].stage);
		if (value >= 0)
			parts[h] = spmd->values[value].annotation;
	}
	if (!parts)
		hspmd_fail_memory(s->err, "specialising");
	else if (value < 0)
		hspmd_fail(s->err, "parameter %s: nothing computes its gradient", l->name);
	else if (!(all = hspmd_annotation_union(parts, l->holder_count, l->holder_count > 1 ? HSPMD_PARTIAL : HSPMD_DUPLICATE, 1, NULL)))
		hspmd_fail_memory(s->err, "specialising");
	free(parts);
	return all;
}

/* Resolve and keep the transfer with the program. NULL: failed. */
static const struct hspmd_transfer *resolve(const struct sync *s, const struct hspmd_layout_parameter *l, const struct hspmd_annotation *from,
					    const struct hspmd_annotation *to)
{
	struct hspmd_program *p = s->p;
	if (hspmd_grow(&p->transfers, &p->transfer_capacity, p->transfer_count, sizeof *p->transfers)) {
		hspmd_fail_memory(s->err, "specialising");
		return NULL;
	}
	struct hspmd_transfer *t = hspmd_resolve(&l->shape, hspmd_dtype_bytes(p->graph->tensors[l->tensor].dtype), from, to, s->cost, s->err);
	if (!t) {
		hspmd_error_prefix(s->err, "parameter %s", l->name);
		return NULL;
	}
	return p->transfers[p->transfer_count++] = t;
}

static int state_slot(const struct sync *s, const struct hspmd_layout_parameter *l, const struct hspmd_share *share, enum hspmd_region region)
{
	struct hspmd_form form = { .tensor = l->tensor, .dtype = s->p->graph->tensors[l->tensor].dtype, .box = share->box, .full = l->shape };
	int f = hspmd_program_form(s->p, &form, s->err);
	return f < 0 ? -1 : hspmd_program_slot(s->p, f, region, -1, s->err);
}

/* What of the parameter's state is here, and slots for it. */
static int lay_state(const struct sync *s, const struct hspmd_layout_parameter *l, struct hspmd_program_state *state)
{
	struct hspmd_program *p = s->p;
	*state = (struct hspmd_program_state){ .tensor = l->tensor, .name = l->name, .decay = l->decay, .param = -1, .m = -1, .v = -1, .used = -1,
					       .grad = -1 };
	state->used = p->fixed_of_tensor[l->tensor];
	if (!hspmd_annotation_share(l->state, &l->shape, p->device, &state->share))
		return 0;
	bool shared = state->used >= 0 && hspmd_box_equal(&p->forms[p->slots[state->used].form].box, &state->share.box);
	state->param = shared ? state->used : state_slot(s, l, &state->share, HSPMD_REGION_FIXED);
	state->m = state_slot(s, l, &state->share, HSPMD_REGION_FIXED);
	state->v = state_slot(s, l, &state->share, HSPMD_REGION_FIXED);
	return state->param < 0 || state->m < 0 || state->v < 0 ? -1 : 0;
}

/* A transfer that is one all-reduce can leave the sum where the addends are. */
static bool in_place(const struct hspmd_program *p, const struct hspmd_transfer *t, int slot, const struct hspmd_share *share)
{
	return slot >= 0 && t->step_count == 1 && t->steps[0].kind == HSPMD_COMM_ALL_REDUCE &&
	       hspmd_box_equal(&p->forms[p->slots[slot].form].box, &share->box);
}

static int sum_gradient(const struct sync *s, int number)
{
	struct hspmd_program *p = s->p;
	const struct hspmd_layout_parameter *l = &s->layouts->parameters[number];
	struct hspmd_program_state *state = &p->states[number];
	int own = p->graph->tensors[l->tensor].grad < 0 ? -1 : p->fixed_of_tensor[p->graph->tensors[l->tensor].grad];
	struct hspmd_annotation *from = gradient_annotation(s, l);
	const struct hspmd_transfer *t = from ? resolve(s, l, from, l->state) : NULL;
	hspmd_annotation_destroy(from);
	if (!t)
		return -1;
	if (t->step_count == 0 || in_place(p, t, own, &state->share))
		state->grad = own;
	else if (state->param >= 0 && (state->grad = state_slot(s, l, &state->share, HSPMD_REGION_ARENA)) < 0)
		return -1;
	struct hspmd_program_route route = {
		.tensor = l->tensor, .in = own, .out = state->grad, .micro_batch = -1, .layer = p->graph->tensors[l->tensor].layer, .backward = true,
		.number = SYNC_NUMBER(number, 0),
	};
	if (hspmd_program_transfer(p, t, &route, s->err))
		return -1;
	p->turn++;
	if (state->param < 0 || state->share.replica)
		return 0; /* another device counts these elements */
	struct hspmd_instruction *i = hspmd_program_add(p, HSPMD_ACTION_NORM, s->err);
	if (!i)
		return -1;
	i->opcode = HSPMD_OP_SUM_SQUARES;
	i->layer = route.layer;
	i->backward = true;
	i->input_count = 1;
	i->in[0] = state->grad;
	return 0;
}

static int update(const struct sync *s, int number)
{
	struct hspmd_program *p = s->p;
	const struct hspmd_program_state *state = &p->states[number];
	if (state->param < 0)
		return 0;
	struct hspmd_instruction *i = hspmd_program_add(p, HSPMD_ACTION_ADAM, s->err);
	if (!i)
		return -1;
	i->opcode = HSPMD_OP_ADAMW;
	i->layer = p->graph->tensors[state->tensor].layer;
	i->step = number;
	i->input_count = 1;
	i->in[0] = state->grad;
	i->output_count = 3;
	i->out[0] = state->param;
	i->out[1] = state->m;
	i->out[2] = state->v;
	return 0;
}

static int hand_back(const struct sync *s, int number)
{
	struct hspmd_program *p = s->p;
	const struct hspmd_layout_parameter *l = &s->layouts->parameters[number];
	const struct hspmd_transfer *t = resolve(s, l, l->state, l->used);
	if (!t)
		return -1;
	struct hspmd_program_route route = {
		.tensor = l->tensor, .in = p->states[number].param, .out = p->states[number].used, .micro_batch = -1,
		.layer = p->graph->tensors[l->tensor].layer, .number = SYNC_NUMBER(number, 1),
	};
	p->turn++;
	return hspmd_program_transfer(p, t, &route, s->err);
}

int hspmd_program_synchronise(struct hspmd_program *p, const struct hspmd_layouts *layouts, struct hspmd_spmd *const *spmds,
			      const struct hspmd_link_cost *cost, struct hspmd_error *err)
{
	struct sync s = { p, layouts, spmds, cost, err };
	p->state_count = layouts->parameter_count;
	p->states = hspmd_calloc((size_t)p->state_count, sizeof *p->states);
	if (!p->states)
		return hspmd_fail_memory(err, "specialising");
	for (int i = 0; i < p->state_count; i++)
		if (lay_state(&s, &layouts->parameters[i], &p->states[i]))
			return -1;
	/* The order in which backward passes finish them, which all devices share. */
	for (int i = p->state_count - 1; i >= 0; i--)
		if (sum_gradient(&s, i))
			return -1;
	p->vote = p->instruction_count;
	for (int i = 0; i < p->state_count; i++)
		if (update(&s, i))
			return -1;
	for (int i = 0; i < p->state_count; i++)
		if (hand_back(&s, i))
			return -1;
	return 0;
}
