/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/program/seq_len.h"

#include <inttypes.h>
#include <string.h>

#include "common/alloc.h"

struct scaling {
	const struct hspmd_program *from;
	struct hspmd_program *to;
	int64_t length, own;  /* the requested length, and the program's */
	unsigned char *grows; /* per tensor: bit d is set if dimension d grows with the length */
	int64_t step;         /* every bound in a growing dimension is a multiple of it */
	struct made *made;    /* transfers at the new length */
	size_t made_count, made_capacity;
	struct hspmd_error *err;
};

struct made {
	const struct hspmd_transfer *of;
	unsigned char grows;
	struct hspmd_transfer *transfer;
};

/* ---- which dimensions grow */

static int compare_tensor(struct scaling *s, size_t number)
{
	const struct hspmd_tensor *a = &s->from->graph->tensors[number], *b = &s->to->graph->tensors[number];
	if (strcmp(a->name, b->name) || a->role != b->role || a->dtype != b->dtype || a->shape.rank != b->shape.rank)
		return hspmd_fail(s->err, "tensor %s is another at length %" PRId64, a->name, s->length);
	for (int d = 0; d < a->shape.rank; d++) {
		if (a->shape.dim[d] == b->shape.dim[d])
			continue;
		if (a->shape.dim[d] * s->length != b->shape.dim[d] * s->own || a->role == HSPMD_TENSOR_PARAMETER)
			return hspmd_fail(s->err,
			                  "dimension %d of tensor %s is %" PRId64 " at length %" PRId64 " and %" PRId64
			                  " at length %" PRId64 ", expected %s",
			                  d, a->name, a->shape.dim[d], s->own, b->shape.dim[d], s->length,
			                  a->role == HSPMD_TENSOR_PARAMETER ? "parameters to stay" : "it to grow in proportion");
		s->grows[number] |= (unsigned char)(1 << d);
	}
	return 0;
}

static int compare_graphs(struct scaling *s)
{
	const struct hspmd_graph *a = s->from->graph, *b = s->to->graph;
	bool same = a->tensor_count == b->tensor_count && a->op_count == b->op_count;
	for (size_t i = 0; same && i < a->op_count; i++)
		same = a->ops[i].opcode == b->ops[i].opcode && !memcmp(a->ops[i].in, b->ops[i].in, sizeof a->ops[i].in);
	if (!same)
		return hspmd_fail(s->err, "the net has other operators at length %" PRId64 " than at %" PRId64, s->length, s->own);
	for (size_t t = 0; t < a->tensor_count; t++)
		if (compare_tensor(s, t))
			return -1;
	return 0;
}

/* ---- bounds */

static void check_box(struct scaling *s, const struct hspmd_box *box, unsigned char grows)
{
	for (int d = 0; d < box->rank; d++)
		if (grows >> d & 1)
			s->step = hspmd_common_divisor(hspmd_common_divisor(s->step, box->lo[d]), box->hi[d]);
}

static void scale_box(const struct scaling *s, struct hspmd_box *box, unsigned char grows)
{
	for (int d = 0; d < box->rank; d++)
		if (grows >> d & 1) {
			box->lo[d] = box->lo[d] / s->step * (s->length / (s->own / s->step));
			box->hi[d] = box->hi[d] / s->step * (s->length / (s->own / s->step));
		}
}

static void each_box(struct scaling *s, struct hspmd_transfer *t, unsigned char grows,
                     void (*act)(const struct scaling *, struct hspmd_box *, unsigned char))
{
	for (int v = 0; v < t->value_count; v++)
		for (int i = 0; i < t->layout[v].device_count; i++)
			act(s, &t->layout[v].box[i], grows);
	for (int k = 0; k < t->step_count; k++) {
		struct hspmd_comm_step *step = &t->steps[k];
		for (int m = 0; m < step->member_count; m++) {
			if (step->in)
				act(s, &step->in[m], grows);
			if (step->out)
				act(s, &step->out[m], grows);
		}
		for (int m = 0; m < step->move_count; m++)
			act(s, &step->moves[m].box, grows);
	}
}

static void look(const struct scaling *s, struct hspmd_box *box, unsigned char grows)
{
	check_box((struct scaling *)s, box, grows);
}

/* ---- transfers */

static unsigned char grows_in(const struct scaling *s, const struct hspmd_instruction *in)
{
	int slot = in->in[0] >= 0 ? in->in[0] : in->out[0];
	int tensor = s->from->slot_types[s->from->slots[slot].slot_type].tensor;
	return tensor < 0 ? 0 : s->grows[tensor];
}

/* The transfer of an instruction at the new length; a transfer that does not grow stays the program's own. */
static const struct hspmd_transfer *transfer_at(struct scaling *s, const struct hspmd_instruction *in)
{
	unsigned char grows = grows_in(s, in);
	if (!grows)
		return in->transfer;
	for (size_t i = s->made_count; i-- > 0;)
		if (s->made[i].of == in->transfer && s->made[i].grows == grows)
			return s->made[i].transfer;
	struct hspmd_program *to = s->to;
	if (hspmd_array_grow(&s->made, &s->made_capacity, s->made_count, sizeof *s->made) ||
	    hspmd_array_grow(&to->transfers, &to->transfer_capacity, to->transfer_count, sizeof *to->transfers))
		return NULL;
	struct hspmd_transfer *t = hspmd_transfer_copy(in->transfer);
	if (!t)
		return NULL;
	to->transfers[to->transfer_count++] = t;
	s->made[s->made_count++] = (struct made){ in->transfer, grows, t };
	return t;
}

static int copy_instructions(struct scaling *s)
{
	const struct hspmd_graph *graph = s->from->graph;
	for (size_t i = 0; i < s->to->instruction_count; i++) {
		struct hspmd_instruction *in = &s->to->instructions[i];
		if (in->attr >= &graph->ops[0].attr && in->attr <= &graph->ops[graph->op_count - 1].attr)
			in->attr =
			        &s->to->graph
			                 ->ops[((const char *)in->attr - (const char *)&graph->ops[0].attr) / (ptrdiff_t)sizeof *graph->ops]
			                 .attr;
		if (in->transfer && !(in->transfer = transfer_at(s, in)))
			return hspmd_fail_memory(s->err, "specialising");
	}
	return 0;
}

/* Scale the sizes of everything that grows. */
static int scale(struct scaling *s)
{
	struct hspmd_program *p = s->to;
	s->step = s->own;
	for (size_t f = 0; f < p->slot_type_count; f++)
		if (p->slot_types[f].tensor >= 0)
			check_box(s, &p->slot_types[f].box, s->grows[p->slot_types[f].tensor]);
	for (size_t i = 0; i < s->made_count; i++)
		each_box(s, s->made[i].transfer, s->made[i].grows, look);
	if (s->length % (s->own / s->step))
		return hspmd_fail(s->err,
		                  "a sequence length of %" PRId64 " cannot be split as this program's %" PRId64
		                  ": expected a multiple of %" PRId64,
		                  s->length, s->own, s->own / s->step);
	for (size_t f = 0; f < p->slot_type_count; f++) {
		struct hspmd_slot_type *slot_type = &p->slot_types[f];
		if (slot_type->tensor < 0 || !s->grows[slot_type->tensor])
			continue;
		scale_box(s, &slot_type->box, s->grows[slot_type->tensor]);
		slot_type->full = p->graph->tensors[slot_type->tensor].shape;
		slot_type->bytes = hspmd_program_slot_type_bytes(slot_type);
	}
	for (size_t i = 0; i < s->made_count; i++) {
		each_box(s, s->made[i].transfer, s->made[i].grows, scale_box);
		for (int d = 0; d < s->made[i].transfer->shape.rank; d++)
			if (s->made[i].grows >> d & 1)
				s->made[i].transfer->shape.dim[d] = s->made[i].transfer->shape.dim[d] * s->length / s->own;
	}
	return 0;
}

static void *duplicate(const void *of, size_t count, size_t size)
{
	void *copy = hspmd_calloc(count, size);
	if (copy)
		memcpy(copy, of, count * size);
	return copy;
}

/* Copy everything except what p owns of graph and transfers. */
static struct hspmd_program *copy_program(const struct hspmd_program *p)
{
	struct hspmd_program *c = malloc(sizeof *c);
	if (!c)
		return NULL;
	*c = *p;
	c->graph = NULL;
	c->spmd = NULL;
	c->layouts = NULL;
	c->fixed_of_tensor = NULL;
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

static int fill(struct scaling *s, const struct hspmd_graph_source *source)
{
	struct hspmd_model_build_options how = s->from->how;
	how.seq_len = s->length;
	how.loss_scale *= (double)s->own / (double)s->length;
	s->to->how = how;
	s->grows = hspmd_calloc(s->from->graph->tensor_count, 1);
	if (!s->grows)
		return hspmd_fail_memory(s->err, "specialising");
	s->to->graph = source->build(source->context, &how, s->err);
	if (!s->to->graph || compare_graphs(s) || copy_instructions(s) || scale(s))
		return -1;
	for (int i = 0; i < s->to->state_count; i++)
		s->to->states[i].name = s->to->graph->tensors[s->to->states[i].tensor].name;
	return 0;
}

struct hspmd_program *hspmd_program_at_length(const struct hspmd_program *p, const struct hspmd_graph_source *source, int64_t length,
                                              struct hspmd_device *dev, struct hspmd_error *err)
{
	if (length < 1 || length > p->how.seq_len) {
		hspmd_fail(err, "a sequence length of %" PRId64 ": expected 1..%" PRId64 ", which the program is for", length,
		           p->how.seq_len);
		return NULL;
	}
	struct scaling s = { .from = p, .to = copy_program(p), .length = length, .own = p->how.seq_len, .err = err };
	int status = s.to ? fill(&s, source) : hspmd_fail_memory(err, "specialising");
	free(s.grows);
	free(s.made);
	if (status) {
		hspmd_program_destroy(s.to);
		return NULL;
	}
	s.to->workspace_bytes = 0;
	hspmd_program_query_workspace(s.to, dev);
	return s.to;
}
