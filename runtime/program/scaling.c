/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/scaling.h"

#include <inttypes.h>
#include <string.h>

#include "common/alloc.h"

/* What a dimension grows with: bits of two. */
enum growth { WITH_NOTHING, WITH_LENGTH, WITH_SAMPLES, WITH_BOTH };

struct ratio {
	int64_t to, from;
};

static struct ratio ratio_of(const struct hspmd_scaling *s, enum growth growth)
{
	const struct hspmd_model_build_options *own = &s->from->how;
	struct ratio r = { (growth & WITH_LENGTH ? s->length : 1) * (growth & WITH_SAMPLES ? s->samples : 1),
		           (growth & WITH_LENGTH ? own->seq_len : 1) * (growth & WITH_SAMPLES ? own->batch : 1) };
	int64_t common = hspmd_common_divisor(r.to, r.from);
	return (struct ratio){ r.to / common, r.from / common };
}

static enum growth growth_in(uint16_t grows, int dimension)
{
	return (enum growth)(grows >> 2 * dimension & 3);
}

/* ---- which dimensions grow */

static int compare_dimension(struct hspmd_scaling *s, size_t number, int d, struct hspmd_error *err)
{
	const struct hspmd_tensor *a = &s->from->graph->tensors[number], *b = &s->graph->tensors[number];
	if (a->shape.dim[d] == b->shape.dim[d])
		return 0;
	for (int g = WITH_LENGTH; g <= WITH_BOTH && a->role != HSPMD_TENSOR_PARAMETER; g++) {
		struct ratio r = ratio_of(s, (enum growth)g);
		if (a->shape.dim[d] % r.from || a->shape.dim[d] / r.from * r.to != b->shape.dim[d])
			continue;
		s->grows[number] |= (uint16_t)(g << 2 * d);
		return 0;
	}
	return hspmd_fail(
	        err, "dimension %d of tensor %s is %" PRId64 " at length %" PRId64 " and %" PRId64 " at length %" PRId64 ", expected %s", d,
	        a->name, a->shape.dim[d], s->from->how.seq_len, b->shape.dim[d], s->length,
	        a->role == HSPMD_TENSOR_PARAMETER ? "parameters to stay" : "it to grow in proportion");
}

static int compare_tensor(struct hspmd_scaling *s, size_t number, struct hspmd_error *err)
{
	const struct hspmd_tensor *a = &s->from->graph->tensors[number], *b = &s->graph->tensors[number];
	if (strcmp(a->name, b->name) || a->role != b->role || a->dtype != b->dtype || a->shape.rank != b->shape.rank)
		return hspmd_fail(err, "tensor %s is another at length %" PRId64, a->name, s->length);
	for (int d = 0; d < a->shape.rank; d++)
		if (compare_dimension(s, number, d, err))
			return -1;
	return 0;
}

static int compare_graphs(struct hspmd_scaling *s, struct hspmd_error *err)
{
	const struct hspmd_graph *a = s->from->graph, *b = s->graph;
	bool same = a->tensor_count == b->tensor_count && a->op_count == b->op_count;
	for (size_t i = 0; same && i < a->op_count; i++)
		same = a->ops[i].opcode == b->ops[i].opcode && !memcmp(a->ops[i].in, b->ops[i].in, sizeof a->ops[i].in);
	if (!same)
		return hspmd_fail(err, "the net has other operators at length %" PRId64 " than at %" PRId64, s->length,
		                  s->from->how.seq_len);
	for (size_t t = 0; t < a->tensor_count; t++)
		if (compare_tensor(s, t, err))
			return -1;
	return 0;
}

int hspmd_scaling_open(struct hspmd_scaling *s, const struct hspmd_program *p, const struct hspmd_graph_source *source,
                       const struct hspmd_model_build_options *how, struct hspmd_error *err)
{
	*s = (struct hspmd_scaling){ .from = p, .length = how->seq_len, .samples = how->batch };
	s->grows = hspmd_calloc(p->graph->tensor_count, sizeof *s->grows);
	if (!s->grows)
		return hspmd_fail_memory(err, "specialising");
	s->graph = source->build(source->context, how, err);
	return s->graph ? compare_graphs(s, err) : -1;
}

void hspmd_scaling_close(struct hspmd_scaling *s)
{
	for (size_t i = 0; i < s->made_count; i++)
		hspmd_transfer_destroy(s->made[i].transfer);
	free(s->made);
	free(s->grows);
	hspmd_graph_destroy(s->graph);
	*s = (struct hspmd_scaling){ 0 };
}

/* ---- bounds */

static void look(struct hspmd_scaling *s, struct hspmd_box *box, uint16_t grows, unsigned own)
{
	for (int d = 0; d < box->rank; d++) {
		enum growth g = own >> d & 1 ? WITH_NOTHING : growth_in(grows, d);
		if (g == WITH_LENGTH)
			s->step = hspmd_common_divisor(hspmd_common_divisor(s->step, box->lo[d]), box->hi[d]);
		else if (g != WITH_NOTHING)
			s->uneven |= box->lo[d] % ratio_of(s, g).from || box->hi[d] % ratio_of(s, g).from;
	}
}

static void scale(struct hspmd_scaling *s, struct hspmd_box *box, uint16_t grows, unsigned own)
{
	for (int d = 0; d < box->rank; d++) {
		struct ratio r = ratio_of(s, own >> d & 1 ? WITH_NOTHING : growth_in(grows, d));
		box->lo[d] = box->lo[d] / r.from * r.to;
		box->hi[d] = box->hi[d] / r.from * r.to;
	}
}

static void scale_shape(const struct hspmd_scaling *s, struct hspmd_shape *shape, uint16_t grows, unsigned own)
{
	for (int d = 0; d < shape->rank; d++) {
		struct ratio r = ratio_of(s, own >> d & 1 ? WITH_NOTHING : growth_in(grows, d));
		shape->dim[d] = shape->dim[d] / r.from * r.to;
	}
}

static void each_box(struct hspmd_scaling *s, const struct hspmd_scaled_transfer *of,
                     void (*act)(struct hspmd_scaling *, struct hspmd_box *, uint16_t, unsigned))
{
	struct hspmd_transfer *t = of->transfer;
	for (int v = 0; v < t->value_count; v++)
		for (int i = 0; i < t->layout[v].device_count; i++)
			act(s, &t->layout[v].box[i], of->grows, 0);
	for (int k = 0; k < t->step_count; k++) {
		struct hspmd_comm_step *step = &t->steps[k];
		for (int m = 0; m < step->member_count; m++) {
			if (step->in)
				act(s, &step->in[m], of->grows, 0);
			if (step->out)
				act(s, &step->out[m], of->grows, 0);
		}
		for (int m = 0; m < step->move_count; m++)
			act(s, &step->moves[m].box, of->grows, 0);
	}
}

/* ---- transfers */

static uint16_t grows_in(const struct hspmd_scaling *s, const struct hspmd_instruction *in)
{
	int slot = in->in[0] >= 0 ? in->in[0] : in->out[0];
	int tensor = s->from->slot_types[s->from->slots[slot].slot_type].tensor;
	return tensor < 0 ? 0 : s->grows[tensor];
}

static struct hspmd_scaled_transfer *find_made(const struct hspmd_scaling *s, const struct hspmd_transfer *of, uint16_t grows)
{
	for (size_t i = s->made_count; i-- > 0;)
		if (s->made[i].of == of && s->made[i].grows == grows)
			return &s->made[i];
	return NULL;
}

const struct hspmd_transfer *hspmd_scaling_transfer(const struct hspmd_scaling *s, const struct hspmd_instruction *in)
{
	uint16_t grows = in->transfer ? grows_in(s, in) : 0;
	return grows ? find_made(s, in->transfer, grows)->transfer : in->transfer;
}

static int make_transfer(struct hspmd_scaling *s, const struct hspmd_instruction *in)
{
	uint16_t grows = in->transfer ? grows_in(s, in) : 0;
	if (!grows || find_made(s, in->transfer, grows))
		return 0;
	if (hspmd_array_grow(&s->made, &s->made_capacity, s->made_count, sizeof *s->made))
		return -1;
	struct hspmd_transfer *t = hspmd_transfer_copy(in->transfer);
	if (t)
		s->made[s->made_count++] = (struct hspmd_scaled_transfer){ in->transfer, grows, t };
	return t ? 0 : -1;
}

int hspmd_scaling_fit(struct hspmd_scaling *s, struct hspmd_error *err)
{
	const struct hspmd_program *p = s->from;
	int64_t own = p->how.seq_len;
	s->step = own;
	for (size_t i = 0; i < p->instruction_count; i++)
		if (make_transfer(s, &p->instructions[i]))
			return hspmd_fail_memory(err, "specialising");
	for (size_t f = 0; f < p->slot_type_count; f++)
		if (p->slot_types[f].tensor >= 0)
			look(s, &p->slot_types[f].box, s->grows[p->slot_types[f].tensor], p->slot_types[f].own);
	for (size_t i = 0; i < s->made_count; i++)
		each_box(s, &s->made[i], look);
	if (s->length % (own / s->step))
		return hspmd_fail(err,
		                  "a sequence length of %" PRId64 " cannot be split as this program's %" PRId64
		                  ": expected a multiple of %" PRId64,
		                  s->length, own, own / s->step);
	if (s->uneven)
		return hspmd_fail(err,
		                  "%" PRId64 " samples of %" PRId64 " tokens cannot be split as this program's %" PRId64 " of %" PRId64,
		                  s->samples, s->length, p->how.batch, own);
	for (size_t i = 0; i < s->made_count; i++) {
		each_box(s, &s->made[i], scale);
		scale_shape(s, &s->made[i].transfer->shape, s->made[i].grows, 0);
	}
	return 0;
}

/* ---- what refers to them */

ptrdiff_t hspmd_scaling_op(const struct hspmd_scaling *s, const struct hspmd_instruction *in)
{
	const struct hspmd_graph *g = s->from->graph;
	if (!g->op_count || in->attr < &g->ops[0].attr || in->attr > &g->ops[g->op_count - 1].attr)
		return -1;
	return ((const char *)in->attr - (const char *)&g->ops[0].attr) / (ptrdiff_t)sizeof *g->ops;
}

bool hspmd_scaling_grows(const struct hspmd_scaling *s, const struct hspmd_slot_type *type)
{
	return type->tensor >= 0 && s->grows[type->tensor];
}

void hspmd_scaling_slot_types(const struct hspmd_scaling *s, struct hspmd_slot_type *types)
{
	for (size_t f = 0; f < s->from->slot_type_count; f++) {
		struct hspmd_slot_type *t = &types[f];
		if (!hspmd_scaling_grows(s, t))
			continue;
		scale((struct hspmd_scaling *)s, &t->box, s->grows[t->tensor], t->own);
		scale_shape(s, &t->full, s->grows[t->tensor], t->own);
		t->bytes = hspmd_program_slot_type_bytes(t);
	}
}

static void *duplicate(const void *of, size_t count, size_t size)
{
	void *copy = hspmd_calloc(count, size);
	if (copy && count)
		memcpy(copy, of, count * size);
	return copy;
}

struct hspmd_program *hspmd_program_copy(const struct hspmd_program *p)
{
	struct hspmd_program *c = malloc(sizeof *c);
	if (!c)
		return NULL;
	*c = *p;
	c->borrows = true;
	c->layouts = NULL;
	c->fixed_of_tensor = NULL;
	c->batches = NULL;
	c->order = NULL;
	c->attrs = NULL;
	c->transfers = NULL;
	c->transfer_count = c->transfer_capacity = 0;
	c->slot_types = duplicate(p->slot_types, p->slot_type_count, sizeof *p->slot_types);
	c->slots = duplicate(p->slots, p->slot_count, sizeof *p->slots);
	c->instructions = duplicate(p->instructions, p->instruction_count, sizeof *p->instructions);
	c->states = duplicate(p->states, (size_t)p->state_count, sizeof *p->states);
	c->slot_type_capacity = c->slot_type_count;
	c->slot_capacity = c->slot_count;
	c->instruction_capacity = c->instruction_count;
	if (c->slot_types && c->slots && c->instructions && c->states)
		return c;
	hspmd_program_destroy(c);
	return NULL;
}
