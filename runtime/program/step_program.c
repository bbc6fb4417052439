/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/step_program.h"

#include <inttypes.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/op/op.h"
#include "runtime/program/scaling.h"

/* Micro-batches of one size. */
struct shape {
	struct hspmd_scaling scaling;
	struct hspmd_slot_type *slot_types; /* of the program, at this size */
	size_t workspace_bytes, beside_bytes; /* of a program with it; 0 if not measured */
	bool measured;
};

struct hspmd_step_programs {
	const struct hspmd_program *any;
	struct hspmd_graph_source source;
	struct hspmd_device *dev;
	int64_t *lengths;
	int count;
	bool *loss;            /* per operator: its scale is a factor of the loss */
	struct shape **shapes; /* those that steps have had */
	size_t shape_count, shape_capacity;
};

/* ---- what the programs have in common */

/* Operators whose scale follows that of the loss, found by building the graph with another. Products of FP8 operands choose their exponents
 * by it, which then stay the same from step to step. */
static int find_losses(struct hspmd_step_programs *s, struct hspmd_error *err)
{
	const struct hspmd_graph *g = s->any->graph;
	struct hspmd_model_build_options how = s->any->how;
	how.loss_scale *= 2;
	struct hspmd_graph *other = s->source.build(s->source.context, &how, err);
	if (!other)
		return -1;
	for (size_t i = 0; i < g->op_count && i < other->op_count; i++) {
		s->loss[i] = !hspmd_op_types[g->ops[i].opcode]->fp8 && g->ops[i].attr.scale != other->ops[i].attr.scale;
	}
	hspmd_graph_destroy(other);
	return 0;
}

struct hspmd_step_programs *hspmd_step_programs_create(const struct hspmd_program *any, const struct hspmd_graph_source *source,
                                                       const int64_t *lengths, int count, struct hspmd_device *dev, struct hspmd_error *err)
{
	struct hspmd_step_programs *s = calloc(1, sizeof *s);
	if (s) {
		*s = (struct hspmd_step_programs){ .any = any, .source = *source, .dev = dev, .count = count };
		s->lengths = hspmd_calloc((size_t)count, sizeof *s->lengths);
		s->loss = hspmd_calloc(any->graph->op_count + 1, sizeof *s->loss);
	}
	if (!s || !s->lengths || !s->loss) {
		hspmd_fail_memory(err, "specialising");
		hspmd_step_programs_destroy(s);
		return NULL;
	}
	memcpy(s->lengths, lengths, (size_t)count * sizeof *lengths);
	if (!find_losses(s, err))
		return s;
	hspmd_step_programs_destroy(s);
	return NULL;
}

static void destroy_shape(struct shape *of)
{
	if (!of)
		return;
	hspmd_scaling_close(&of->scaling);
	free(of->slot_types);
	free(of);
}

void hspmd_step_programs_destroy(struct hspmd_step_programs *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->shape_count; i++)
		destroy_shape(s->shapes[i]);
	free(s->shapes);
	free(s->lengths);
	free(s->loss);
	free(s);
}

/* ---- sizes */

/* Raises the room of the program's slots to what they need at another size. */
static int raise_room(struct hspmd_program *p, const struct hspmd_graph_source *source, const struct hspmd_pipeline_length *size,
                      struct hspmd_slot_type *types, struct hspmd_error *err)
{
	struct hspmd_scaling s;
	struct hspmd_model_build_options how = p->how;
	how.seq_len = size->seq_len;
	how.batch = size->micro_batch;
	memcpy(types, p->slot_types, p->slot_type_count * sizeof *types);
	int status = hspmd_scaling_open(&s, p, source, &how, err);
	if (!status)
		hspmd_scaling_slot_types(&s, types);
	for (size_t f = 0; !status && f < p->slot_type_count; f++)
		if (types[f].bytes > p->slot_types[f].bytes && types[f].bytes > p->slot_types[f].room)
			p->slot_types[f].room = types[f].bytes;
	hspmd_scaling_close(&s);
	return status;
}

int hspmd_program_make_room(struct hspmd_program *p, const struct hspmd_graph_source *source, const struct hspmd_plan *plan,
                            struct hspmd_error *err)
{
	const struct hspmd_pipeline *pipe = &plan->pipelines[p->pipeline];
	struct hspmd_slot_type *types = hspmd_calloc(p->slot_type_count + 1, sizeof *types);
	int status = types ? 0 : hspmd_fail_memory(err, "specialising");
	for (int i = 0; !status && p->stage >= 0 && i < pipe->length_count; i++)
		status = raise_room(p, source, &pipe->lengths[i], types, err);
	free(types);
	return status;
}

/* The memory is that of the program's own sizes. */
static int check_memory(const struct hspmd_step_programs *s, const struct shape *of, struct hspmd_error *err)
{
	const struct hspmd_program *p = s->any;
	for (size_t i = 0; i < p->slot_count; i++) {
		const struct hspmd_slot_type *own = &p->slot_types[p->slots[i].slot_type], *now = &of->slot_types[p->slots[i].slot_type];
		if (!hspmd_scaling_grows(&of->scaling, own))
			continue;
		bool passes = p->slots[i].memory == HSPMD_ARENA_TRANSIENT || p->slots[i].memory == HSPMD_ARENA_SAVED;
		if (!passes || p->slots[i].micro_batch < 0)
			return hspmd_fail(err, "tensor %s outlives its micro-batch and has its size, so that steps cannot mix lengths",
			                  p->graph->tensors[own->tensor].name);
		if (now->bytes > (own->room > own->bytes ? own->room : own->bytes))
			return hspmd_fail(
			        err,
			        "a micro-batch of %" PRId64 " samples of %" PRId64 " tokens needs more memory for tensor %s than one of "
			        "%" PRId64 " of %" PRId64 ", which there is memory for",
			        of->scaling.samples, of->scaling.length, p->graph->tensors[own->tensor].name, p->how.batch, p->how.seq_len);
	}
	return 0;
}

static int fill_shape(const struct hspmd_step_programs *s, struct shape *of, int64_t length, int64_t samples, struct hspmd_error *err)
{
	const struct hspmd_program *p = s->any;
	struct hspmd_model_build_options how = p->how;
	how.seq_len = length;
	how.batch = samples;
	if (hspmd_scaling_open(&of->scaling, p, &s->source, &how, err) || hspmd_scaling_fit(&of->scaling, err))
		return -1;
	if (!(of->slot_types = hspmd_calloc(p->slot_type_count, sizeof *of->slot_types)))
		return hspmd_fail_memory(err, "specialising");
	memcpy(of->slot_types, p->slot_types, p->slot_type_count * sizeof *of->slot_types);
	hspmd_scaling_slot_types(&of->scaling, of->slot_types);
	return check_memory(s, of, err);
}

/* The number of the shape; -1 and err. */
static int find_shape(struct hspmd_step_programs *s, int64_t length, int64_t samples, struct hspmd_error *err)
{
	for (size_t i = 0; i < s->shape_count; i++)
		if (s->shapes[i]->scaling.length == length && s->shapes[i]->scaling.samples == samples)
			return (int)i;
	struct shape *of = calloc(1, sizeof *of);
	if (!of || hspmd_array_grow(&s->shapes, &s->shape_capacity, s->shape_count, sizeof(*s->shapes))) {
		free(of);
		return hspmd_fail_memory(err, "specialising");
	}
	if (fill_shape(s, of, length, samples, err)) {
		destroy_shape(of);
		return -1;
	}
	s->shapes[s->shape_count] = of;
	return (int)s->shape_count++;
}

int hspmd_step_programs_check(struct hspmd_step_programs *s, const int *most, struct hspmd_error *err)
{
	for (int l = 0; l < s->count; l++)
		if (most[l] && (find_shape(s, s->lengths[l], 1, err) < 0 || find_shape(s, s->lengths[l], most[l], err) < 0))
			return -1;
	return 0;
}

/* ---- a step's program */

struct binding {
	struct hspmd_step_programs *s;
	struct hspmd_program *to;
	const struct hspmd_step_batches *batches;
	const struct hspmd_micro_batch *own; /* of this pipeline */
	int *shape_of;                       /* per micro-batch of the step */
	double factor;                       /* of losses, for their mean over the step's tokens */
	size_t attrs;
};

static int find_shapes(struct binding *b, struct hspmd_error *err)
{
	for (int m = 0; m < b->to->micro_batches; m++) {
		b->shape_of[m] = find_shape(b->s, b->s->lengths[b->own[m].length], b->own[m].samples, err);
		if (b->shape_of[m] < 0)
			return -1;
		b->to->batches[m] = (struct hspmd_program_batch){ b->own[m].first, b->own[m].samples };
	}
	return 0;
}

/* Drops the micro-batches that the step does not have. */
static void drop_instructions(struct hspmd_program *p)
{
	size_t kept = 0, vote = 0;
	for (size_t i = 0; i < p->instruction_count; i++) {
		if (p->instructions[i].micro_batch >= p->micro_batches)
			continue;
		vote += i < p->vote;
		p->instructions[kept++] = p->instructions[i];
	}
	p->instruction_count = kept;
	p->vote = vote;
}

static void bind_instruction(struct binding *b, struct hspmd_instruction *in)
{
	const struct shape *shape = b->s->shapes[b->shape_of[in->micro_batch]];
	ptrdiff_t op = hspmd_scaling_op(&shape->scaling, in);
	in->transfer = hspmd_scaling_transfer(&shape->scaling, in);
	in->attr = op < 0 ? in->attr : &shape->scaling.graph->ops[op].attr;
	if (op < 0 || !b->s->loss[op])
		return;
	struct hspmd_op_attr *own = &b->to->attrs[b->attrs++];
	*own = *in->attr;
	own->scale *= b->own[in->micro_batch].first < 0 ? 0 : b->factor;
	in->attr = own;
}

/* A value's type is that of its micro-batch's shape: the program's types come once for each shape. */
static int bind_slots(struct binding *b)
{
	struct hspmd_program *p = b->to;
	size_t types = p->slot_type_count, shapes = b->s->shape_count;
	struct hspmd_slot_type *all = hspmd_calloc(types * (shapes + 1), sizeof *all);
	if (!all)
		return -1;
	memcpy(all, p->slot_types, types * sizeof *all);
	for (size_t k = 0; k < shapes; k++)
		memcpy(&all[types * (k + 1)], b->s->shapes[k]->slot_types, types * sizeof *all);
	free(p->slot_types);
	p->slot_types = all;
	p->slot_type_count = p->slot_type_capacity = types * (shapes + 1);
	for (size_t i = 0; i < p->slot_count; i++)
		if (p->slots[i].micro_batch >= 0 && p->slots[i].micro_batch < p->micro_batches)
			p->slots[i].slot_type += (int)types * (1 + b->shape_of[p->slots[i].micro_batch]);
	return 0;
}

/* The workspace is asked for when a step is the first that has one of its shapes. */
static void measure_workspace(struct binding *b)
{
	size_t most = 0, beside = 0;
	bool measured = true;
	for (int m = 0; m < b->to->micro_batches; m++) {
		const struct shape *shape = b->s->shapes[b->shape_of[m]];
		measured = measured && shape->measured;
		most = shape->workspace_bytes > most ? shape->workspace_bytes : most;
		beside = shape->beside_bytes > beside ? shape->beside_bytes : beside;
	}
	b->to->workspace_bytes = most;
	b->to->beside_bytes = beside;
	if (measured)
		return;
	hspmd_program_query_workspace(b->to, b->s->dev);
	for (int m = 0; m < b->to->micro_batches; m++) {
		struct shape *shape = b->s->shapes[b->shape_of[m]];
		shape->workspace_bytes = shape->measured ? shape->workspace_bytes : b->to->workspace_bytes;
		shape->beside_bytes = shape->measured ? shape->beside_bytes : b->to->beside_bytes;
		shape->measured = true;
	}
}

/* How many instructions have attributes of their own. */
static size_t count_losses(const struct binding *b)
{
	size_t count = 0;
	for (size_t i = 0; i < b->to->instruction_count; i++) {
		ptrdiff_t op = hspmd_scaling_op(&b->s->shapes[0]->scaling, &b->to->instructions[i]);
		count += op >= 0 && b->s->loss[op];
	}
	return count;
}

static int bind(struct binding *b, struct hspmd_error *err)
{
	struct hspmd_program *p = b->to;
	if (find_shapes(b, err))
		return -1;
	drop_instructions(p);
	p->attrs = hspmd_calloc(count_losses(b) + 1, sizeof *p->attrs);
	if (!p->attrs || bind_slots(b))
		return hspmd_fail_memory(err, "specialising");
	for (size_t i = 0; i < p->instruction_count; i++)
		if (p->instructions[i].micro_batch >= 0)
			bind_instruction(b, &p->instructions[i]);
	measure_workspace(b);
	return 0;
}

/* Tokens of all samples of the step. */
static int64_t count_tokens(const struct hspmd_step_programs *s, const struct hspmd_step_batches *batches)
{
	int64_t tokens = 0;
	for (int m = 0; m < batches->batch_count; m++)
		if (batches->batches[m].first >= 0)
			tokens += batches->batches[m].samples * s->lengths[batches->batches[m].length];
	return tokens;
}

struct hspmd_program *hspmd_step_program_make(struct hspmd_step_programs *s, const struct hspmd_step_batches *batches,
                                              struct hspmd_error *err)
{
	int pipeline = s->any->pipeline, first = batches->begin[pipeline], count = batches->begin[pipeline + 1] - first, samples = 0;
	if (count > s->any->micro_batches) {
		hspmd_fail(err, "a step has %d micro-batches in pipelines[%d], whose program has %d", count, pipeline,
		           s->any->micro_batches);
		return NULL;
	}
	struct binding b = { .s = s,
		             .to = hspmd_program_copy(s->any),
		             .batches = batches,
		             .own = &batches->batches[first],
		             .shape_of = hspmd_calloc((size_t)count, sizeof *b.shape_of),
		             .factor = 1 / (s->any->how.loss_scale * (double)count_tokens(s, batches)) };
	for (int m = 0; m < batches->batch_count; m++)
		samples += batches->batches[m].first < 0 ? 0 : batches->batches[m].samples;
	if (b.to) {
		b.to->micro_batches = count;
		b.to->batches = hspmd_calloc((size_t)count, sizeof *b.to->batches);
		b.to->order = hspmd_calloc((size_t)samples, sizeof *b.to->order);
	}
	int status = -1;
	if (!b.to || !b.shape_of || !b.to->batches || !b.to->order)
		hspmd_fail_memory(err, "specialising");
	else
		status = bind(&b, err);
	if (!status)
		memcpy(b.to->order, batches->order, (size_t)samples * sizeof *b.to->order);
	free(b.shape_of);
	if (!status)
		return b.to;
	hspmd_program_destroy(b.to);
	return NULL;
}
