/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on communicators. Contiguous data is sent and received in place; other data is packed into buffers on the device. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/devcomm_internal.h"

/* ---- a collective in progress */

/* What one tensor's part of it needs: found before the launch, in which the calls of all tensors are grouped, and used behind it. */
struct work {
	const struct hspmd_comm_step *step;
	const struct hspmd_local_buffer *in, *out;
	struct devcomm_buffer *buffer[2];
	const char *from;       /* what is sent; NULL: there are several parts */
	char *to;               /* where the result comes; NULL: to `scratch`, and is copied behind the launch */
	char *scratch, *second; /* in the buffers; `second` may be in place */
	size_t most;            /* elements of the largest part */
	bool unpacks;           /* something is copied behind the launch */
};

struct call {
	struct hspmd_devcomm *d;
	const struct devcomm_group *g;
	struct hspmd_communicator *group;
	const struct hspmd_communicator_ops *ops;
	int self;    /* index of this device among the members of the steps */
	int *member; /* index among the steps' members, by index in the group */
	int count;
	struct work *work; /* per tensor */
	uint64_t ticket;
};

/* How a kind of collective works on one tensor. */
struct method {
	int (*prepare)(struct call *c, struct work *w, struct hspmd_error *err); /* packs */
	int (*launch)(struct call *c, struct work *w, struct hspmd_error *err);
	int (*finish)(struct call *c, struct work *w, struct hspmd_error *err); /* copies what was not received in place */
};

static int copy_box(struct call *c, const struct work *w, void *dst, const struct hspmd_box *dst_box, const void *src,
                    const struct hspmd_box *src_box, const struct hspmd_box *part, struct hspmd_error *err)
{
	struct hspmd_device *dev = c->d->o.device;
	return dev->ops->copy_box(dev, dst, dst_box, src, src_box, part, w->out->dtype, false, err);
}

static size_t elements_of(const struct hspmd_box *box)
{
	return (size_t)hspmd_box_elements(box);
}

/* `box` of the input as contiguous memory: in place, or packed to `room`. NULL: an error. */
static const char *packed(struct call *c, const struct work *w, const struct hspmd_box *box, char *room, struct hspmd_error *err)
{
	const char *at = hspmd_local_buffer_contiguous(w->in, box);
	if (at)
		return at;
	return copy_box(c, w, room, box, w->in->data, &w->in->box, box, err) ? NULL : room;
}

/* Copy a box that has been received to the output, in the group's order: the device's own work goes on. */
static int copy_received(struct call *c, const struct work *w, const void *from, const struct hspmd_box *from_box,
                         const struct hspmd_box *part, struct hspmd_error *err)
{
	return c->ops->copy_box(c->group, w->out->data, &w->out->box, from, from_box, part, w->out->dtype, err);
}

/* Copy the part of a received contiguous box that this device needs to the output. */
static int unpack(struct call *c, const struct work *w, const struct hspmd_box *box, const char *from, struct hspmd_error *err)
{
	struct hspmd_box wanted;
	if (!hspmd_box_intersect(box, &w->step->out[c->self], &wanted))
		return 0;
	return copy_received(c, w, from, box, &wanted, err);
}

/* Address in the output to which `box` may be received directly; NULL: not all of it is needed, or it is not contiguous. */
static char *target(const struct call *c, const struct work *w, const struct hspmd_box *box)
{
	return hspmd_box_contains(&w->step->out[c->self], box) ? hspmd_local_buffer_contiguous(w->out, box) : NULL;
}

static char *scratch_for(struct call *c, struct work *w, int which, size_t elements, struct hspmd_error *err)
{
	w->buffer[which] = hspmd_devcomm_buffer(c->d, elements * w->in->element_bytes, NULL, err);
	return w->buffer[which] ? w->buffer[which]->data : NULL;
}

/* For what is received: the device writes nothing there, and so need not wait until the group has used it before. */
static char *scratch_to_receive(struct call *c, struct work *w, size_t elements, struct hspmd_error *err)
{
	w->buffer[0] = hspmd_devcomm_buffer(c->d, elements * w->in->element_bytes, c->g->made, err);
	return w->buffer[0] ? w->buffer[0]->data : NULL;
}

/* Later device work waits for it when hspmd_devcomm_stream_wait is called. */
static int end(struct call *c, struct hspmd_error *err)
{
	if (c->ops->end(c->group, &c->ticket, err))
		return -1;
	for (int i = 0; i < c->count; i++) {
		const struct hspmd_local_buffer *parts[] = { c->work[i].in, c->work[i].out };
		for (int k = 0; k < 2; k++)
			if (parts[k]->data && (!k || parts[1]->data != parts[0]->data) &&
			    hspmd_devcomm_note_use(c->d, c->g->made, parts[k]->data, elements_of(&parts[k]->box) * parts[k]->element_bytes,
			                           c->ticket, err))
				return -1;
	}
	return 0;
}

/* Copies what was not received in place. */
static int finish(struct call *c, const struct method *how, struct hspmd_error *err)
{
	bool unpacks = false;
	for (int i = 0; i < c->count; i++) {
		unpacks |= c->work[i].unpacks;
		if (how->finish(c, &c->work[i], err))
			return -1;
	}
	return unpacks ? c->ops->copies_end(c->group, err) : 0;
}

/* ---- all-reduce */

static int prepare_all_reduce(struct call *c, struct work *w, struct hspmd_error *err)
{
	const struct hspmd_box *box = &w->step->in[c->self];
	size_t n = elements_of(box);
	if (!n)
		return 0;
	w->to = hspmd_local_buffer_contiguous(w->out, &w->step->out[c->self]);
	w->from = hspmd_local_buffer_contiguous(w->in, box);
	w->scratch = w->from && w->to ? NULL : scratch_for(c, w, 0, n, err);
	w->unpacks = !w->to;
	if ((!w->from || !w->to) && !w->scratch)
		return -1;
	if (!w->from)
		w->from = packed(c, w, box, w->scratch, err);
	return w->from ? 0 : -1;
}

static int launch_all_reduce(struct call *c, struct work *w, struct hspmd_error *err)
{
	size_t n = elements_of(&w->step->in[c->self]);
	return n ? c->ops->all_reduce(c->group, w->from, w->to ? w->to : w->scratch, n, w->out->dtype, err) : 0;
}

static int finish_all_reduce(struct call *c, struct work *w, struct hspmd_error *err)
{
	const struct hspmd_box *box = &w->step->in[c->self];
	if (!w->unpacks)
		return 0;
	return copy_received(c, w, w->scratch, box, &w->step->out[c->self], err);
}

/* ---- all-gather */

/* The size of the largest of the members' boxes. */
static size_t largest(const struct work *w, const struct hspmd_box *boxes)
{
	size_t most = 0;
	for (int i = 0; i < w->step->member_count; i++)
		most = elements_of(&boxes[i]) > most ? elements_of(&boxes[i]) : most;
	return most;
}

static size_t total_of(const struct call *c, const struct hspmd_box *boxes)
{
	size_t total = 0;
	for (int i = 0; i < c->g->count; i++)
		total += elements_of(&boxes[i]);
	return total;
}

/* The address of the first box if the boxes are adjacent in the group's order, each `each` elements long; NULL: they are not. */
static char *row_of(const struct call *c, const struct hspmd_local_buffer *part, const struct hspmd_box *boxes,
                    const struct hspmd_box *wanted, size_t each)
{
	char *first = NULL;
	for (int i = 0; i < c->g->count; i++) {
		const struct hspmd_box *box = &boxes[c->member[i]];
		char *at = elements_of(box) == each && hspmd_box_contains(wanted, box) ? hspmd_local_buffer_contiguous(part, box) : NULL;
		if (!i)
			first = at;
		if (!at || at != first + (size_t)i * each * part->element_bytes)
			return NULL;
	}
	return first;
}

/* One call in which all parts are padded to the longest. */
static int prepare_padded_gather(struct call *c, struct work *w, struct hspmd_error *err)
{
	const struct hspmd_box *parts = w->step->in;
	w->most = largest(w, parts);
	char *row = row_of(c, w->out, parts, &w->step->out[c->self], w->most);
	w->unpacks = !row;
	w->from = elements_of(&parts[c->self]) == w->most ? hspmd_local_buffer_contiguous(w->in, &parts[c->self]) : NULL;
	w->scratch = row       ? row
	             : w->from ? scratch_to_receive(c, w, w->most * (size_t)c->g->count, err)
	                       : scratch_for(c, w, 0, w->most * (size_t)c->g->count, err);
	if (w->from || !w->scratch)
		return w->scratch ? 0 : -1;
	char *place = w->scratch + (size_t)c->g->self * w->most * w->in->element_bytes;
	w->from = place;
	return elements_of(&parts[c->self]) ? copy_box(c, w, place, &parts[c->self], w->in->data, &w->in->box, &parts[c->self], err) : 0;
}

static int launch_padded_gather(struct call *c, struct work *w, struct hspmd_error *err)
{
	return c->ops->all_gather(c->group, w->from, w->scratch, w->most, w->out->dtype, err);
}

static int finish_padded_gather(struct call *c, struct work *w, struct hspmd_error *err)
{
	size_t stride = w->most * w->in->element_bytes;
	for (int i = 0; w->unpacks && i < c->g->count; i++) {
		const struct hspmd_box *box = &w->step->in[c->member[i]];
		if (elements_of(box) && unpack(c, w, box, w->scratch + (size_t)i * stride, err))
			return -1;
	}
	return 0;
}

/* One broadcast per part, all of them grouped. */
static int prepare_grouped_gather(struct call *c, struct work *w, struct hspmd_error *err)
{
	const struct hspmd_box *own = &w->step->in[c->self];
	w->unpacks = true;
	if (!(w->scratch = scratch_to_receive(c, w, total_of(c, w->step->in), err)))
		return -1;
	w->from = elements_of(own) ? hspmd_local_buffer_contiguous(w->in, own) : w->scratch;
	if (w->from)
		return 0;
	char *packing = scratch_for(c, w, 1, elements_of(own), err);
	w->from = packing ? packed(c, w, own, packing, err) : NULL;
	return w->from ? 0 : -1;
}

static int launch_grouped_gather(struct call *c, struct work *w, struct hspmd_error *err)
{
	char *at = w->scratch;
	for (int i = 0; i < c->g->count; i++) {
		const struct hspmd_box *box = &w->step->in[c->member[i]];
		char *to = target(c, w, box);
		size_t n = elements_of(box);
		if (n && c->ops->broadcast(c->group, i, w->from, to ? to : at, n, w->out->dtype, err))
			return -1;
		at += n * w->in->element_bytes;
	}
	return 0;
}

static int finish_grouped_gather(struct call *c, struct work *w, struct hspmd_error *err)
{
	const char *at = w->scratch;
	for (int i = 0; i < c->g->count; i++) {
		const struct hspmd_box *box = &w->step->in[c->member[i]];
		if (elements_of(box) && !target(c, w, box) && unpack(c, w, box, at, err))
			return -1;
		at += elements_of(box) * w->in->element_bytes;
	}
	return 0;
}

/* ---- reduce-scatter */

static int prepare_padded_scatter(struct call *c, struct work *w, struct hspmd_error *err)
{
	const struct hspmd_box *parts = w->step->out, *own = &parts[c->self];
	w->most = largest(w, parts);
	size_t stride = w->most * w->in->element_bytes;
	char *row = row_of(c, w->in, parts, &w->step->in[c->self], w->most);
	w->scratch = row ? row : scratch_for(c, w, 0, w->most * (size_t)c->g->count, err);
	w->to = elements_of(own) == w->most ? hspmd_local_buffer_contiguous(w->out, own) : NULL;
	w->second = w->to ? w->to : scratch_for(c, w, 1, w->most, err);
	w->unpacks = !w->to;
	if (!w->scratch || !w->second)
		return -1;
	for (int i = 0; !row && i < c->g->count; i++) {
		const struct hspmd_box *box = &parts[c->member[i]];
		if (elements_of(box) && copy_box(c, w, w->scratch + (size_t)i * stride, box, w->in->data, &w->in->box, box, err))
			return -1;
	}
	return 0;
}

static int launch_padded_scatter(struct call *c, struct work *w, struct hspmd_error *err)
{
	return c->ops->reduce_scatter(c->group, w->scratch, w->second, w->most, w->out->dtype, err);
}

/* One reduction per part, all of them grouped. */
static int prepare_grouped_scatter(struct call *c, struct work *w, struct hspmd_error *err)
{
	const struct hspmd_box *parts = w->step->out, *own = &parts[c->self];
	w->scratch = scratch_for(c, w, 0, total_of(c, parts), err);
	w->to = elements_of(own) ? hspmd_local_buffer_contiguous(w->out, own) : NULL;
	w->second = w->to ? w->to : scratch_for(c, w, 1, elements_of(own), err);
	w->unpacks = !w->to;
	if (!w->scratch || !w->second)
		return -1;
	char *at = w->scratch;
	for (int i = 0; i < c->g->count; i++) {
		const struct hspmd_box *box = &parts[c->member[i]];
		if (elements_of(box) && !packed(c, w, box, at, err))
			return -1;
		at += elements_of(box) * w->in->element_bytes;
	}
	return 0;
}

static int launch_grouped_scatter(struct call *c, struct work *w, struct hspmd_error *err)
{
	const char *at = w->scratch;
	for (int i = 0; i < c->g->count; i++) {
		const struct hspmd_box *box = &w->step->out[c->member[i]];
		const char *from = elements_of(box) ? hspmd_local_buffer_contiguous(w->in, box) : NULL;
		if (elements_of(box) && c->ops->reduce(c->group, i, from ? from : at, w->second, elements_of(box), w->out->dtype, err))
			return -1;
		at += elements_of(box) * w->in->element_bytes;
	}
	return 0;
}

static int finish_scatter(struct call *c, struct work *w, struct hspmd_error *err)
{
	const struct hspmd_box *own = &w->step->out[c->self];
	return w->to || !elements_of(own) ? 0 : copy_received(c, w, w->second, own, own, err);
}

/* ---- all-to-all */

static int launch_sends(struct call *c, struct work *w, struct hspmd_error *err)
{
	const char *at = w->scratch;
	for (int i = 0; i < c->g->count; i++) {
		struct hspmd_box box;
		if (i == c->g->self || !hspmd_box_intersect(&w->step->in[c->self], &w->step->out[c->member[i]], &box))
			continue;
		const char *from = hspmd_local_buffer_contiguous(w->in, &box);
		if (c->ops->send(c->group, i, from ? from : at, elements_of(&box), w->out->dtype, err))
			return -1;
		at += elements_of(&box) * w->in->element_bytes;
	}
	return 0;
}

/* unpacking: the data have been received. */
static int receive_parts(struct call *c, struct work *w, bool unpacking, struct hspmd_error *err)
{
	char *at = w->second;
	for (int i = 0; i < c->g->count; i++) {
		struct hspmd_box box;
		if (i == c->g->self || !hspmd_box_intersect(&w->step->in[c->member[i]], &w->step->out[c->self], &box))
			continue;
		char *to = hspmd_local_buffer_contiguous(w->out, &box);
		if (unpacking ? !to && unpack(c, w, &box, at, err)
		              : c->ops->receive(c->group, i, to ? to : at, elements_of(&box), w->out->dtype, err))
			return -1;
		at += elements_of(&box) * w->in->element_bytes;
	}
	return 0;
}

static int prepare_all_to_all(struct call *c, struct work *w, struct hspmd_error *err)
{
	const struct hspmd_box *own = &w->step->in[c->self];
	struct hspmd_box box;
	size_t total = 0; /* elements for other members; several may need the same ones */
	for (int i = 0; i < c->g->count; i++)
		if (hspmd_box_intersect(own, &w->step->out[c->member[i]], &box))
			total += elements_of(&box);
	w->unpacks = true;
	w->scratch = scratch_for(c, w, 0, total, err);
	w->second = scratch_for(c, w, 1, elements_of(&w->step->out[c->self]), err);
	char *at = w->scratch;
	if (!w->scratch || !w->second)
		return -1;
	for (int i = 0; i < c->g->count; i++) {
		if (i == c->g->self || !hspmd_box_intersect(own, &w->step->out[c->member[i]], &box))
			continue;
		if (!packed(c, w, &box, at, err))
			return -1;
		at += elements_of(&box) * w->in->element_bytes;
	}
	return hspmd_box_intersect(own, &w->step->out[c->self], &box)
	               ? copy_box(c, w, w->out->data, &w->out->box, w->in->data, &w->in->box, &box, err)
	               : 0;
}

static int launch_all_to_all(struct call *c, struct work *w, struct hspmd_error *err)
{
	return launch_sends(c, w, err) || receive_parts(c, w, false, err) ? -1 : 0;
}

static int finish_all_to_all(struct call *c, struct work *w, struct hspmd_error *err)
{
	return receive_parts(c, w, true, err);
}

/* ---- */

static const struct devcomm_step *find_step(const struct hspmd_devcomm *d, const struct hspmd_comm_step *step)
{
	size_t lo = 0, hi = d->step_count;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if ((uintptr_t)d->steps[mid].step < (uintptr_t)step)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < d->step_count && d->steps[lo].step == step ? &d->steps[lo] : NULL;
}

bool hspmd_devcomm_has_step(const struct hspmd_devcomm *d, const struct hspmd_comm_step *step)
{
	const struct devcomm_step *known = find_step(d, step);
	return known && d->groups[known->group].made;
}

/* The bytes of a tensor that this member sends, in a ring. */
static size_t sent_by(const struct call *c, const struct work *w)
{
	const struct hspmd_comm_step *step = w->step;
	const struct hspmd_box *parts = step->kind == HSPMD_COMM_REDUCE_SCATTER ? step->out : step->in;
	size_t elements = 0, members = (size_t)c->g->count;
	if (step->kind == HSPMD_COMM_ALL_REDUCE)
		return 2 * elements_of(&step->in[c->self]) * (members - 1) / members * w->in->element_bytes;
	for (int i = 0; i < c->g->count; i++) {
		struct hspmd_box box;
		if (step->kind != HSPMD_COMM_ALL_TO_ALL)
			elements += elements_of(&parts[c->member[i]]);
		else if (i != c->g->self && hspmd_box_intersect(&step->in[c->self], &step->out[c->member[i]], &box))
			elements += elements_of(&box);
	}
	return (step->kind == HSPMD_COMM_ALL_TO_ALL ? elements : elements * (members - 1) / members) * w->in->element_bytes;
}

static const struct method *method_of(enum hspmd_comm_kind kind, bool grouped)
{
	static const struct method all_reduce = { prepare_all_reduce, launch_all_reduce, finish_all_reduce },
	                           gather[] = { { prepare_padded_gather, launch_padded_gather, finish_padded_gather },
		                                { prepare_grouped_gather, launch_grouped_gather, finish_grouped_gather } },
	                           scatter[] = { { prepare_padded_scatter, launch_padded_scatter, finish_scatter },
		                                 { prepare_grouped_scatter, launch_grouped_scatter, finish_scatter } },
	                           all_to_all = { prepare_all_to_all, launch_all_to_all, finish_all_to_all };
	return kind == HSPMD_COMM_ALL_REDUCE       ? &all_reduce
	       : kind == HSPMD_COMM_ALL_GATHER     ? &gather[grouped]
	       : kind == HSPMD_COMM_REDUCE_SCATTER ? &scatter[grouped]
	                                           : &all_to_all;
}

/* All tensors' calls as one launch. */
static int run_call(struct call *c, const struct method *how, struct hspmd_error *err)
{
	for (int i = 0; i < c->count; i++)
		if (how->prepare(c, &c->work[i], err))
			return -1;
	if (c->ops->begin(c->group, err))
		return -1;
	for (int i = 0; i < c->count; i++)
		if (how->launch(c, &c->work[i], err))
			return -1;
	return end(c, err) || finish(c, how, err) ? -1 : 0;
}

/* Bytes of a step's tensor, the same on all members. */
static size_t step_bytes(const struct hspmd_comm_step *step, size_t element_bytes)
{
	const struct hspmd_box *parts = step->kind == HSPMD_COMM_REDUCE_SCATTER ? step->out : step->in;
	size_t elements = 0;
	for (int m = 0; m < (step->kind == HSPMD_COMM_ALL_REDUCE ? 1 : step->member_count); m++)
		elements += elements_of(&parts[m]);
	return elements * element_bytes;
}

/* The number of tensors of `j` from number `at` on whose calls are one launch: beyond so many bytes, their buffers would cost more than a
 * launch. */
#define LAUNCH_BYTES ((size_t)16 << 20)
static int launched_together(const struct hspmd_joint *j, int at)
{
	size_t bytes = step_bytes(j->step[at], j->in->element_bytes);
	int end = at + 1;
	while (end < j->count && (bytes += step_bytes(j->step[end], j->in->element_bytes)) <= LAUNCH_BYTES)
		end++;
	return end - at;
}

/* Tensors [at, at + count) of `j`. */
static int launch(struct call *c, const struct hspmd_joint *j, int at, int count, enum hspmd_collective_form form, struct hspmd_error *err)
{
	enum hspmd_comm_kind kind = j->step[at]->kind;
	size_t elements = 0;
	c->count = count;
	for (int i = 0; i < count; i++) {
		c->work[i] = (struct work){ .step = j->step[at + i], .in = &j->in[at + i], .out = &j->out[at + i] };
		elements += elements_of(&j->step[at + i]->in[j->self]);
	}
	if (!elements && kind == HSPMD_COMM_ALL_REDUCE)
		return 0;
	/* After a failure the buffers stay in use until the communicator is aborted. */
	if (run_call(c, method_of(kind, form == HSPMD_FORM_GROUPED), err))
		return -1;
	for (int i = 0; i < count; i++) {
		atomic_fetch_add_explicit(&c->d->sent_bytes, sent_by(c, &c->work[i]), memory_order_relaxed);
		for (int b = 0; b < 2; b++)
			hspmd_devcomm_buffer_release(c->work[i].buffer[b], c->g->made, c->ticket);
	}
	return 0;
}

int hspmd_devcomm_collective(struct hspmd_devcomm *d, const struct hspmd_joint *j, struct hspmd_error *err)
{
	const struct hspmd_comm_step *first = j->step[0];
	const struct devcomm_step *known = find_step(d, first);
	const struct devcomm_group *g = known ? &d->groups[known->group] : NULL;
	if (!g || !g->made)
		return 0;
	if (!g->made->group)
		return hspmd_fail(err, "the communicator of these devices was aborted");
	struct call c = { .d = d, .g = g, .group = g->made->group, .ops = g->made->ops, .self = j->self };
	c.member = hspmd_calloc((size_t)g->count, sizeof *c.member);
	c.work = hspmd_calloc((size_t)j->count, sizeof *c.work);
	int rv = c.member && c.work ? 0 : hspmd_fail_memory(err, "communicating");
	for (int i = 0; !rv && i < g->count; i++)
		for (int k = 0; k < g->count; k++)
			if (d->o.rank_of[first->members[k]] == g->ranks[i])
				c.member[i] = k;
	for (int at = 0; !rv && at < j->count;) {
		int count = launched_together(j, at);
		rv = launch(&c, j, at, count, known->form, err);
		at += count;
	}
	free(c.member);
	free(c.work);
	return rv ? -1 : 1;
}

int hspmd_devcomm_exchange(struct hspmd_devcomm *d, const struct hspmd_comm_step *step, const void *from, const int64_t *send, void *to,
                           const int64_t *come, size_t row, enum hspmd_dtype dtype, struct hspmd_error *err)
{
	const struct devcomm_step *known = find_step(d, step);
	const struct devcomm_group *g = known ? &d->groups[known->group] : NULL;
	const char *out = from;
	char *in = to;
	size_t element = hspmd_dtype_bytes(dtype), sent = 0;
	uint64_t ticket;
	if (!g || !g->made)
		return 0;
	if (!g->made->group)
		return hspmd_fail(err, "the communicator of these devices was aborted");
	const struct hspmd_communicator_ops *ops = g->made->ops;
	if (ops->begin(g->made->group, err))
		return -1;
	for (int m = 0; m < step->member_count; m++) {
		int i = 0; /* the member's index in the group */
		while (g->ranks[i] != d->o.rank_of[step->members[m]])
			i++;
		if (i == g->self)
			continue;
		if ((send[m] && ops->send(g->made->group, i, out, (size_t)send[m] * row, dtype, err)) ||
		    (come[m] && ops->receive(g->made->group, i, in, (size_t)come[m] * row, dtype, err)))
			return -1;
		out += (size_t)send[m] * row * element;
		in += (size_t)come[m] * row * element;
		sent += (size_t)send[m] * row * element;
	}
	if (ops->end(g->made->group, &ticket, err) || ops->stream_wait(g->made->group, ticket, err))
		return -1;
	atomic_fetch_add_explicit(&d->sent_bytes, sent, memory_order_relaxed);
	return 1;
}
