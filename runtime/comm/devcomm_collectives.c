/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on communicators. Contiguous data is sent and received in place; other data is packed into buffers on the device. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/devcomm_internal.h"

/* ---- a collective in progress */

struct call {
	struct hspmd_devcomm *d;
	const struct devcomm_group *g;
	struct hspmd_communicator *group;
	const struct hspmd_communicator_ops *ops;
	const struct hspmd_comm_step *step;
	const struct hspmd_local_buffer *in, *out;
	int self;    /* index of this device among the members of the step */
	int *member; /* index among the step's members, by index in the group */
	struct devcomm_buffer *buffer[2];
	uint64_t ticket;
};

static int copy_box(struct call *c, void *dst, const struct hspmd_box *dst_box, const void *src, const struct hspmd_box *src_box,
                    const struct hspmd_box *part, struct hspmd_error *err)
{
	struct hspmd_device *dev = c->d->o.device;
	return dev->ops->copy_box(dev, dst, dst_box, src, src_box, part, c->out->dtype, false, err);
}

static size_t elements_of(const struct hspmd_box *box)
{
	return (size_t)hspmd_box_elements(box);
}

/* `box` of the input as contiguous memory: in place, or packed to `room`. NULL: an error. */
static const char *packed(struct call *c, const struct hspmd_box *box, char *scratch, struct hspmd_error *err)
{
	const char *at = hspmd_local_buffer_contiguous(c->in, box);
	if (at)
		return at;
	return copy_box(c, scratch, box, c->in->data, &c->in->box, box, err) ? NULL : scratch;
}

/* Copy the part of a received contiguous box that this device needs to the output. */
static int unpack(struct call *c, const struct hspmd_box *box, const char *from, struct hspmd_error *err)
{
	struct hspmd_box wanted;
	if (!hspmd_box_intersect(box, &c->step->out[c->self], &wanted))
		return 0;
	return copy_box(c, c->out->data, &c->out->box, from, box, &wanted, err);
}

/* Address in the output to which `box` may be received directly; NULL: not all of it is needed, or it is not contiguous. */
static char *target(struct call *c, const struct hspmd_box *box)
{
	return hspmd_box_contains(&c->step->out[c->self], box) ? hspmd_local_buffer_contiguous(c->out, box) : NULL;
}

static char *scratch_for(struct call *c, int which, size_t elements, struct hspmd_error *err)
{
	c->buffer[which] = hspmd_devcomm_buffer(c->d, elements * c->in->element_bytes, err);
	return c->buffer[which] ? c->buffer[which]->data : NULL;
}

/* unpacks: later device work waits for the received data at once; otherwise when hspmd_devcomm_stream_wait is called. */
static int end(struct call *c, bool unpacks, struct hspmd_error *err)
{
	if (c->ops->end(c->group, &c->ticket, err))
		return -1;
	if (unpacks)
		return c->ops->stream_wait(c->group, c->ticket, err);
	const struct hspmd_local_buffer *parts[] = { c->in, c->out };
	for (int i = 0; i < 2; i++)
		if (parts[i]->data && (!i || c->out->data != c->in->data) &&
		    hspmd_devcomm_note_use(c->d, c->g->made, parts[i]->data, elements_of(&parts[i]->box) * parts[i]->element_bytes,
		                           c->ticket, err))
			return -1;
	return 0;
}

static int all_reduce(struct call *c, struct hspmd_error *err)
{
	const struct hspmd_box *box = &c->step->in[c->self];
	size_t n = elements_of(box);
	if (!n)
		return 0;
	char *to = hspmd_local_buffer_contiguous(c->out, &c->step->out[c->self]);
	const char *from = hspmd_local_buffer_contiguous(c->in, box);
	char *scratch = from && to ? NULL : scratch_for(c, 0, n, err);
	if ((!from || !to) && !scratch)
		return -1;
	if (!from)
		from = packed(c, box, scratch, err);
	if (!from || c->ops->begin(c->group, err) || c->ops->all_reduce(c->group, from, to ? to : scratch, n, c->out->dtype, err) ||
	    end(c, !to, err))
		return -1;
	return to ? 0 : copy_box(c, c->out->data, &c->out->box, scratch, box, &c->step->out[c->self], err);
}

/* Members' boxes by index in the group, and the size of the largest. */
static size_t largest(const struct call *c, const struct hspmd_box *boxes)
{
	size_t most = 0;
	for (int i = 0; i < c->step->member_count; i++)
		most = elements_of(&boxes[i]) > most ? elements_of(&boxes[i]) : most;
	return most;
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
static int gather_padded(struct call *c, struct hspmd_error *err)
{
	const struct hspmd_box *parts = c->step->in;
	size_t most = largest(c, parts), stride = most * c->in->element_bytes;
	char *row = row_of(c, c->out, parts, &c->step->out[c->self], most),
	     *scratch = row ? row : scratch_for(c, 0, most * (size_t)c->g->count, err);
	const char *own = scratch && elements_of(&parts[c->self]) == most ? hspmd_local_buffer_contiguous(c->in, &parts[c->self]) : NULL;
	if (!scratch)
		return -1;
	if (!own) {
		char *place = scratch + (size_t)c->g->self * stride;
		if (elements_of(&parts[c->self]) && copy_box(c, place, &parts[c->self], c->in->data, &c->in->box, &parts[c->self], err))
			return -1;
		own = place;
	}
	if (c->ops->begin(c->group, err) || c->ops->all_gather(c->group, own, scratch, most, c->out->dtype, err) || end(c, !row, err))
		return -1;
	for (int i = 0; !row && i < c->g->count; i++)
		if (elements_of(&parts[c->member[i]]) && unpack(c, &parts[c->member[i]], scratch + (size_t)i * stride, err))
			return -1;
	return 0;
}

/* One broadcast per part, all of them grouped. */
static int gather_grouped(struct call *c, struct hspmd_error *err)
{
	const struct hspmd_box *parts = c->step->in;
	size_t total = 0, at = 0;
	for (int i = 0; i < c->g->count; i++)
		total += elements_of(&parts[i]);
	char *scratch = scratch_for(c, 0, total, err);
	if (!scratch)
		return -1;
	const char *own = elements_of(&parts[c->self]) ? hspmd_local_buffer_contiguous(c->in, &parts[c->self]) : scratch;
	if (!own) {
		char *packing = scratch_for(c, 1, elements_of(&parts[c->self]), err);
		own = packing ? packed(c, &parts[c->self], packing, err) : NULL;
	}
	if (!own || c->ops->begin(c->group, err))
		return -1;
	for (int i = 0; i < c->g->count; i++) {
		const struct hspmd_box *box = &parts[c->member[i]];
		char *to = target(c, box);
		size_t n = elements_of(box);
		if (n && c->ops->broadcast(c->group, i, own, to ? to : scratch + at * c->in->element_bytes, n, c->out->dtype, err))
			return -1;
		at += n;
	}
	if (end(c, true, err))
		return -1;
	at = 0;
	for (int i = 0; i < c->g->count; i++) {
		const struct hspmd_box *box = &parts[c->member[i]];
		if (elements_of(box) && !target(c, box) && unpack(c, box, scratch + at * c->in->element_bytes, err))
			return -1;
		at += elements_of(box);
	}
	return 0;
}

static int scatter_padded(struct call *c, struct hspmd_error *err)
{
	const struct hspmd_box *parts = c->step->out, *own = &parts[c->self];
	size_t most = largest(c, parts), stride = most * c->in->element_bytes;
	char *row = row_of(c, c->in, parts, &c->step->in[c->self], most),
	     *scratch = row ? row : scratch_for(c, 0, most * (size_t)c->g->count, err);
	char *to = elements_of(own) == most ? hspmd_local_buffer_contiguous(c->out, own) : NULL,
	     *sum = to ? to : scratch_for(c, 1, most, err);
	if (!scratch || !sum)
		return -1;
	for (int i = 0; !row && i < c->g->count; i++) {
		const struct hspmd_box *box = &parts[c->member[i]];
		if (elements_of(box) && copy_box(c, scratch + (size_t)i * stride, box, c->in->data, &c->in->box, box, err))
			return -1;
	}
	if (c->ops->begin(c->group, err) || c->ops->reduce_scatter(c->group, scratch, sum, most, c->out->dtype, err) || end(c, !to, err))
		return -1;
	return to || !elements_of(own) ? 0 : copy_box(c, c->out->data, &c->out->box, sum, own, own, err);
}

/* One reduction per part, all of them grouped. */
static int scatter_grouped(struct call *c, struct hspmd_error *err)
{
	const struct hspmd_box *parts = c->step->out, *own = &parts[c->self];
	size_t total = 0, at = 0;
	for (int i = 0; i < c->g->count; i++)
		total += elements_of(&parts[i]);
	char *scratch = scratch_for(c, 0, total, err), *to = elements_of(own) ? hspmd_local_buffer_contiguous(c->out, own) : NULL;
	char *sum = to ? to : scratch_for(c, 1, elements_of(own), err);
	if (!scratch || !sum)
		return -1;
	for (int i = 0; i < c->g->count; at += elements_of(&parts[c->member[i++]])) {
		const struct hspmd_box *box = &parts[c->member[i]];
		if (elements_of(box) && !packed(c, box, scratch + at * c->in->element_bytes, err))
			return -1;
	}
	if (c->ops->begin(c->group, err))
		return -1;
	at = 0;
	for (int i = 0; i < c->g->count; at += elements_of(&parts[c->member[i++]])) {
		const struct hspmd_box *box = &parts[c->member[i]];
		const char *from = elements_of(box) ? hspmd_local_buffer_contiguous(c->in, box) : NULL;
		if (elements_of(box) && c->ops->reduce(c->group, i, from ? from : scratch + at * c->in->element_bytes, sum,
		                                       elements_of(box), c->out->dtype, err))
			return -1;
	}
	if (end(c, !to, err))
		return -1;
	return to || !elements_of(own) ? 0 : copy_box(c, c->out->data, &c->out->box, sum, own, own, err);
}

/* ---- all-to-all */

static int send_parts(struct call *c, char *scratch, struct hspmd_error *err)
{
	for (int i = 0; i < c->g->count; i++) {
		struct hspmd_box box;
		if (i == c->g->self || !hspmd_box_intersect(&c->step->in[c->self], &c->step->out[c->member[i]], &box))
			continue;
		const char *from = hspmd_local_buffer_contiguous(c->in, &box);
		if (c->ops->send(c->group, i, from ? from : scratch, elements_of(&box), c->out->dtype, err))
			return -1;
		scratch += elements_of(&box) * c->in->element_bytes;
	}
	return 0;
}

static int pack_parts(struct call *c, char *scratch, struct hspmd_error *err)
{
	for (int i = 0; i < c->g->count; i++) {
		struct hspmd_box box;
		if (i == c->g->self || !hspmd_box_intersect(&c->step->in[c->self], &c->step->out[c->member[i]], &box))
			continue;
		if (!packed(c, &box, scratch, err))
			return -1;
		scratch += elements_of(&box) * c->in->element_bytes;
	}
	return 0;
}

/* unpacking: the data have been received. */
static int receive_parts(struct call *c, char *scratch, bool unpacking, struct hspmd_error *err)
{
	for (int i = 0; i < c->g->count; i++) {
		struct hspmd_box box;
		if (i == c->g->self || !hspmd_box_intersect(&c->step->in[c->member[i]], &c->step->out[c->self], &box))
			continue;
		char *to = hspmd_local_buffer_contiguous(c->out, &box);
		if (unpacking ? !to && unpack(c, &box, scratch, err)
		              : c->ops->receive(c->group, i, to ? to : scratch, elements_of(&box), c->out->dtype, err))
			return -1;
		scratch += elements_of(&box) * c->in->element_bytes;
	}
	return 0;
}

static int all_to_all(struct call *c, struct hspmd_error *err)
{
	struct hspmd_box own_box;
	size_t total = 0; /* elements for other members; several may need the same ones */
	for (int i = 0; i < c->g->count; i++)
		if (hspmd_box_intersect(&c->step->in[c->self], &c->step->out[c->member[i]], &own_box))
			total += elements_of(&own_box);
	char *sent = scratch_for(c, 0, total, err), *came = scratch_for(c, 1, elements_of(&c->step->out[c->self]), err);
	if (!sent || !came || pack_parts(c, sent, err))
		return -1;
	if (hspmd_box_intersect(&c->step->in[c->self], &c->step->out[c->self], &own_box) &&
	    copy_box(c, c->out->data, &c->out->box, c->in->data, &c->in->box, &own_box, err))
		return -1;
	if (c->ops->begin(c->group, err) || send_parts(c, sent, err) || receive_parts(c, came, false, err) || end(c, true, err))
		return -1;
	return receive_parts(c, came, true, err);
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

/* The bytes that this member sends, in a ring. */
static size_t sent_by(const struct call *c)
{
	const struct hspmd_box *parts = c->step->kind == HSPMD_COMM_REDUCE_SCATTER ? c->step->out : c->step->in;
	size_t elements = 0, members = (size_t)c->g->count;
	if (c->step->kind == HSPMD_COMM_ALL_REDUCE)
		return 2 * elements_of(&c->step->in[c->self]) * (members - 1) / members * c->in->element_bytes;
	for (int i = 0; i < c->g->count; i++) {
		struct hspmd_box box;
		if (c->step->kind != HSPMD_COMM_ALL_TO_ALL)
			elements += elements_of(&parts[c->member[i]]);
		else if (i != c->g->self && hspmd_box_intersect(&c->step->in[c->self], &c->step->out[c->member[i]], &box))
			elements += elements_of(&box);
	}
	return (c->step->kind == HSPMD_COMM_ALL_TO_ALL ? elements : elements * (members - 1) / members) * c->in->element_bytes;
}

int hspmd_devcomm_collective(struct hspmd_devcomm *d, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                             const struct hspmd_local_buffer *out, struct hspmd_error *err)
{
	const struct devcomm_step *known = find_step(d, step);
	const struct devcomm_group *g = known ? &d->groups[known->group] : NULL;
	if (!g || !g->made)
		return 0;
	if (!g->made->group)
		return hspmd_fail(err, "the communicator of these devices was aborted");
	struct call c = { .d = d, .g = g, .group = g->made->group, .ops = g->made->ops, .step = step, .in = in, .out = out, .self = self };
	c.member = hspmd_calloc((size_t)g->count, sizeof *c.member);
	if (!c.member)
		return hspmd_fail_memory(err, "communicating");
	for (int i = 0; i < g->count; i++)
		for (int k = 0; k < g->count; k++)
			if (d->o.rank_of[step->members[k]] == g->ranks[i])
				c.member[i] = k;
	bool grouped = known->form == HSPMD_FORM_GROUPED;
	int rv = step->kind == HSPMD_COMM_ALL_REDUCE       ? all_reduce(&c, err)
	         : step->kind == HSPMD_COMM_ALL_GATHER     ? (grouped ? gather_grouped(&c, err) : gather_padded(&c, err))
	         : step->kind == HSPMD_COMM_REDUCE_SCATTER ? (grouped ? scatter_grouped(&c, err) : scatter_padded(&c, err))
	                                                   : all_to_all(&c, err);
	if (!rv)
		atomic_fetch_add_explicit(&d->sent_bytes, sent_by(&c), memory_order_relaxed);
	/* After a failure the buffers stay in use until the communicator is aborted. */
	for (int b = 0; !rv && b < 2; b++)
		hspmd_devcomm_buffer_release(c.buffer[b], g->made, c.ticket);
	free(c.member);
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
