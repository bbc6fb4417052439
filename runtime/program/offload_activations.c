/* SPDX-License-Identifier: Apache-2.0 */
/* Offloaded activations: what a forward pass saves for its backward pass is copied to the host's memory after its last use in the forward
 * pass, and back into a new slot before its first use in the backward pass (vDNN, arXiv 1602.08124, section 3). Copies run beside what
 * follows them; an AWAIT ends each, so that the memory plan, which knows nothing of them, keeps both slots for as long as the copy needs.
 *
 * The passes are divided into groups: the instructions of one layer in one schedule entry. Messages between stages, beside which a copy
 * may have no time, are of the group before. A copy out may take until the end of the group behind its last use; a copy back begins with
 * the group before its first use. If not a single group would lie between the two, nothing would become free, and the slot stays where it
 * is. */
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/program/program.h"

/* Where a slot is used. Instructions that run with others count as one. */
struct span {
	bool used, kept;    /* kept: it is written again, or is not worth its copies */
	int entry;          /* the schedule entry that writes it */
	size_t last, first; /* behind its last use in that entry; its first use in another one, 0: none */
	int host, back;     /* the slots that it goes to; -1: none */
	int number;         /* of the latest copy */
};

enum action { END_OUT, BEGIN_OUT, BEGIN_BACK, END_BACK }; /* at one place in this order: what becomes free comes first */

struct added {
	size_t at; /* before this instruction */
	enum action action;
	int slot;
};

struct offload {
	struct hspmd_program *p;
	struct span *spans; /* per slot that there was */
	size_t slot_count;
	size_t *group_of; /* per instruction */
	size_t *begin;    /* per group */
	struct added *added;
	size_t count, capacity;
	struct hspmd_error *err;
};

static void see(struct offload *o, int slot, bool written, size_t begin, size_t end)
{
	int entry = o->p->instructions[begin].schedule_index;
	if (slot < 0 || !o->p->slots[slot].offloads)
		return;
	struct span *s = &o->spans[slot];
	if (!s->used) {
		s->used = true;
		s->entry = entry;
	}
	if (s->entry == entry) {
		s->last = end;
		return;
	}
	s->first = s->first ? s->first : begin;
	s->kept |= written;
}

static bool is_between_stages(const struct hspmd_instruction *in)
{
	return in->kind == HSPMD_INSTRUCTION_COMM && in->peer_pipeline_rank >= 0;
}

static void find_spans(struct offload *o)
{
	const struct hspmd_program *p = o->p;
	const struct hspmd_instruction *latest = p->instructions; /* but for those that are of a later layer, ahead */
	for (size_t i = 0, begin = 0, end = 0, group = 0; i < p->instruction_count; i++) {
		const struct hspmd_instruction *in = &p->instructions[i];
		begin = in->joins ? begin : i;
		end = in->joins ? end : i + (size_t)in->joined + 1;
		bool goes_on = in->joins || in->ahead || is_between_stages(in);
		if (i && !goes_on && (in->schedule_index != latest->schedule_index || in->layer != latest->layer))
			o->begin[++group] = i;
		latest = in->ahead || is_between_stages(in) ? latest : in;
		o->group_of[i] = group;
		for (int k = 0; k < in->input_count; k++)
			see(o, in->in[k], false, begin, end);
		for (int k = 0; k < in->output_count; k++)
			see(o, in->out[k], true, begin, end);
	}
}

static int add(struct offload *o, size_t at, enum action action, int slot)
{
	if (hspmd_array_grow(&o->added, &o->capacity, o->count, sizeof *o->added))
		return hspmd_fail_memory(o->err, "specialising");
	o->added[o->count++] = (struct added){ at, action, slot };
	return 0;
}

static int offload_slot(struct offload *o, int slot)
{
	struct hspmd_program *p = o->p;
	struct span *s = &o->spans[slot];
	s->host = s->back = -1;
	if (!s->first || s->kept)
		return 0;
	size_t out = o->group_of[s->last - 1] + 2, back = o->group_of[s->first];
	if (back < out + 1)
		return 0;
	const struct hspmd_slot was = p->slots[slot];
	s->host = hspmd_program_add_slot(p, was.slot_type, HSPMD_ARENA_SAVED, was.micro_batch, o->err);
	s->back = s->host < 0 ? -1 : hspmd_program_add_slot(p, was.slot_type, HSPMD_ARENA_TRANSIENT, was.micro_batch, o->err);
	return s->back < 0 || add(o, s->last, BEGIN_OUT, slot) || add(o, o->begin[out], END_OUT, slot) ||
	                       add(o, o->begin[back - 1], BEGIN_BACK, slot) || add(o, s->first, END_BACK, slot)
	               ? -1
	               : 0;
}

static int by_place(const void *a, const void *b)
{
	const struct added *x = a, *y = b;
	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return x->action != y->action ? (x->action < y->action ? -1 : 1) : x->slot < y->slot ? -1 : x->slot > y->slot;
}

/* beside: the instruction whose pass it belongs to. *copies: how many there are so far. */
static struct hspmd_instruction make(struct offload *o, const struct added *one, const struct hspmd_instruction *beside, int *copies)
{
	struct span *s = &o->spans[one->slot];
	bool begins = one->action == BEGIN_OUT || one->action == BEGIN_BACK, back = one->action == BEGIN_BACK || one->action == END_BACK;
	struct hspmd_instruction in = {
		.kind = begins ? HSPMD_INSTRUCTION_COPY : HSPMD_INSTRUCTION_AWAIT,
		.micro_batch = o->p->slots[one->slot].micro_batch,
		.layer = beside->layer,
		.schedule_index = beside->schedule_index,
		.backward = beside->backward,
		.input_count = 1,
		.in = { !back    ? one->slot
		        : begins ? s->host
		                 : s->back },
		.peer_pipeline_rank = -1,
	};
	if (begins) {
		in.out[in.output_count++] = back ? s->back : s->host;
		s->number = (*copies)++ % HSPMD_DEVICE_COPIES;
	}
	in.step = s->number;
	return in;
}

/* Later uses are of the slot that the copy comes back to. */
static void use_copies(const struct offload *o, struct hspmd_instruction *in)
{
	for (int k = 0; k < in->input_count; k++)
		if (in->in[k] >= 0 && (size_t)in->in[k] < o->slot_count && o->spans[in->in[k]].back >= 0 &&
		    in->schedule_index != o->spans[in->in[k]].entry)
			in->in[k] = o->spans[in->in[k]].back;
}

static int merge(struct offload *o)
{
	struct hspmd_program *p = o->p;
	size_t count = p->instruction_count + o->count, next = 0, out = 0;
	struct hspmd_instruction *all = hspmd_calloc(count + 1, sizeof *all);
	int copies = 0;
	if (!all)
		return hspmd_fail_memory(o->err, "specialising");
	qsort(o->added, o->count, sizeof *o->added, by_place);
	for (size_t i = 0; i <= p->instruction_count; i++) {
		for (; next < o->count && o->added[next].at == i; next++) {
			bool behind = o->added[next].action == BEGIN_OUT;
			all[out++] = make(o, &o->added[next], &p->instructions[behind ? i - 1 : i], &copies);
		}
		if (i == p->instruction_count)
			break;
		use_copies(o, &p->instructions[i]);
		all[out++] = p->instructions[i];
	}
	free(p->instructions);
	p->instructions = all;
	p->instruction_count = count;
	p->instruction_capacity = count + 1;
	return 0;
}

int hspmd_program_offload_activations(struct hspmd_program *p, struct hspmd_error *err)
{
	struct offload o = { .p = p, .err = err, .slot_count = p->slot_count };
	bool any = false;
	for (size_t s = 0; s < p->slot_count; s++)
		any |= p->slots[s].offloads;
	if (!any)
		return 0;
	o.spans = hspmd_calloc(p->slot_count, sizeof *o.spans);
	o.group_of = hspmd_calloc(p->instruction_count + 1, sizeof *o.group_of);
	o.begin = hspmd_calloc(p->instruction_count + 1, sizeof *o.begin);
	int status = o.spans && o.group_of && o.begin ? 0 : hspmd_fail_memory(err, "specialising");
	if (!status)
		find_spans(&o);
	for (size_t s = 0; !status && s < o.slot_count; s++)
		status = offload_slot(&o, (int)s);
	if (!status && o.count)
		status = merge(&o);
	free(o.spans);
	free(o.group_of);
	free(o.begin);
	free(o.added);
	return status;
}
