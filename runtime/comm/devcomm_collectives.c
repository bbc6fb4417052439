/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on groups. What lies in one piece takes part where it is; the rest is packed into buffers on the device. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/devcomm_internal.h"

#define ALIGN 64

/* ---- memory on the device */

struct devcomm_buffer *hspmd_devcomm_buffer(struct hspmd_devcomm *d, size_t bytes, struct hspmd_error *err)
{
	struct devcomm_buffer *best = NULL;
	for (struct devcomm_buffer *b = d->buffers; b; b = b->next)
		if (!b->used && b->size >= bytes && (!best || b->size < best->size))
			best = b;
	/* A buffer many times too large would be missing for what it was made for. */
	if (!best || best->size / 4 > bytes + 65536) {
		struct devcomm_buffer *b = hspmd_calloc(1, sizeof *b);
		if (!b) {
			hspmd_fail_memory(err, "communicating");
			return NULL;
		}
		b->size = bytes < ALIGN ? ALIGN : bytes;
		b->data = d->o.device->ops->allocate(d->o.device, b->size, err);
		if (!b->data) {
			free(b);
			return NULL;
		}
		b->next = d->buffers;
		d->buffers = best = b;
	}
	if (best->group && best->group->group && best->group->ops->stream_wait(best->group->group, best->ticket, err))
		return NULL;
	best->group = NULL;
	best->used = true;
	return best;
}

void hspmd_devcomm_buffer_release(struct devcomm_buffer *b, struct cached_communicator *group, uint64_t ticket)
{
	if (!b)
		return;
	b->used = false;
	b->group = group;
	b->ticket = ticket;
}

/* ---- the user's memory */

int hspmd_devcomm_note_use(struct hspmd_devcomm *d, struct cached_communicator *group, const void *data, size_t bytes, uint64_t ticket,
                           struct hspmd_error *err)
{
	if (hspmd_array_grow(&d->spans, &d->span_capacity, d->span_count, sizeof *d->spans))
		return hspmd_fail_memory(err, "communicating");
	d->spans[d->span_count++] = (struct devcomm_span){ data, bytes, group, ticket };
	return 0;
}

int hspmd_devcomm_stream_wait(struct hspmd_devcomm *d, const void *data, size_t bytes, struct hspmd_error *err)
{
	const char *from = data;
	size_t left = 0;
	int rv = 0;
	for (size_t i = 0; i < d->span_count; i++) {
		struct devcomm_span *s = &d->spans[i];
		bool wanted = !data || (s->data < from + bytes && from < s->data + s->bytes);
		if (rv || !wanted)
			d->spans[left++] = *s;
		else if (s->group->group)
			rv = s->group->ops->stream_wait(s->group->group, s->ticket, err);
	}
	d->span_count = left;
	return rv;
}

/* ---- a collective on its way */

struct call {
	struct hspmd_devcomm *d;
	const struct devcomm_group *g;
	struct hspmd_communicator *group;
	const struct hspmd_communicator_ops *ops;
	const struct hspmd_comm_step *step;
	const struct hspmd_local_buffer *in, *out;
	int self;    /* member of the step */
	int *member; /* of the step, by place in the group */
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

/* `box` of the input as one piece: where it lies, or packed to `room`. NULL: an error. */
static const char *packed(struct call *c, const struct hspmd_box *box, char *room, struct hspmd_error *err)
{
	const char *at = hspmd_local_buffer_contiguous(c->in, box);
	if (at)
		return at;
	return copy_box(c, room, box, c->in->data, &c->in->box, box, err) ? NULL : room;
}

/* What came as one piece, of which the part that this device wants goes to the output. */
static int unpack(struct call *c, const struct hspmd_box *box, const char *from, struct hspmd_error *err)
{
	struct hspmd_box wanted;
	if (!hspmd_box_intersect(box, &c->step->out[c->self], &wanted))
		return 0;
	return copy_box(c, c->out->data, &c->out->box, from, box, &wanted, err);
}

/* Where `box` may be written in place; NULL: it is not all wanted, or not one piece. */
static char *target(struct call *c, const struct hspmd_box *box)
{
	return hspmd_box_contains(&c->step->out[c->self], box) ? hspmd_local_buffer_contiguous(c->out, box) : NULL;
}

static char *room_for(struct call *c, int which, size_t elements, struct hspmd_error *err)
{
	c->buffer[which] = hspmd_devcomm_buffer(c->d, elements * c->in->element_bytes, err);
	return c->buffer[which] ? c->buffer[which]->data : NULL;
}

/* unpacks: the device goes on with what came at once; else when somebody asks for it. */
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
	char *room = from && to ? NULL : room_for(c, 0, n, err);
	if ((!from || !to) && !room)
		return -1;
	if (!from)
		from = packed(c, box, room, err);
	if (!from || c->ops->begin(c->group, err) || c->ops->all_reduce(c->group, from, to ? to : room, n, c->out->dtype, err) ||
	    end(c, !to, err))
		return -1;
	return to ? 0 : copy_box(c, c->out->data, &c->out->box, room, box, &c->step->out[c->self], err);
}

/* Members' boxes by place in the group, and the largest of them. */
static size_t largest(const struct call *c, const struct hspmd_box *boxes)
{
	size_t most = 0;
	for (int i = 0; i < c->step->member_count; i++)
		most = elements_of(&boxes[i]) > most ? elements_of(&boxes[i]) : most;
	return most;
}

/* Do the boxes lie one after another, in the group's order, each `each` elements long? The first's place; NULL: no. */
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

/* One call, all parts as long as the longest. */
static int gather_padded(struct call *c, struct hspmd_error *err)
{
	const struct hspmd_box *parts = c->step->in;
	size_t most = largest(c, parts), stride = most * c->in->element_bytes;
	char *row = row_of(c, c->out, parts, &c->step->out[c->self], most),
	     *room = row ? row : room_for(c, 0, most * (size_t)c->g->count, err);
	const char *own = room && elements_of(&parts[c->self]) == most ? hspmd_local_buffer_contiguous(c->in, &parts[c->self]) : NULL;
	if (!room)
		return -1;
	if (!own) {
		char *place = room + (size_t)c->g->self * stride;
		if (elements_of(&parts[c->self]) && copy_box(c, place, &parts[c->self], c->in->data, &c->in->box, &parts[c->self], err))
			return -1;
		own = place;
	}
	if (c->ops->begin(c->group, err) || c->ops->all_gather(c->group, own, room, most, c->out->dtype, err) || end(c, !row, err))
		return -1;
	for (int i = 0; !row && i < c->g->count; i++)
		if (elements_of(&parts[c->member[i]]) && unpack(c, &parts[c->member[i]], room + (size_t)i * stride, err))
			return -1;
	return 0;
}

/* One broadcast a part, all at once. */
static int gather_grouped(struct call *c, struct hspmd_error *err)
{
	const struct hspmd_box *parts = c->step->in;
	size_t total = 0, at = 0;
	for (int i = 0; i < c->g->count; i++)
		total += elements_of(&parts[i]);
	char *room = room_for(c, 0, total, err);
	if (!room)
		return -1;
	const char *own = elements_of(&parts[c->self]) ? hspmd_local_buffer_contiguous(c->in, &parts[c->self]) : room;
	if (!own) {
		char *packing = room_for(c, 1, elements_of(&parts[c->self]), err);
		own = packing ? packed(c, &parts[c->self], packing, err) : NULL;
	}
	if (!own || c->ops->begin(c->group, err))
		return -1;
	for (int i = 0; i < c->g->count; i++) {
		const struct hspmd_box *box = &parts[c->member[i]];
		char *to = target(c, box);
		size_t n = elements_of(box);
		if (n && c->ops->broadcast(c->group, i, own, to ? to : room + at * c->in->element_bytes, n, c->out->dtype, err))
			return -1;
		at += n;
	}
	if (end(c, true, err))
		return -1;
	at = 0;
	for (int i = 0; i < c->g->count; i++) {
		const struct hspmd_box *box = &parts[c->member[i]];
		if (elements_of(box) && !target(c, box) && unpack(c, box, room + at * c->in->element_bytes, err))
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
	     *room = row ? row : room_for(c, 0, most * (size_t)c->g->count, err);
	char *to = elements_of(own) == most ? hspmd_local_buffer_contiguous(c->out, own) : NULL, *sum = to ? to : room_for(c, 1, most, err);
	if (!room || !sum)
		return -1;
	for (int i = 0; !row && i < c->g->count; i++) {
		const struct hspmd_box *box = &parts[c->member[i]];
		if (elements_of(box) && copy_box(c, room + (size_t)i * stride, box, c->in->data, &c->in->box, box, err))
			return -1;
	}
	if (c->ops->begin(c->group, err) || c->ops->reduce_scatter(c->group, room, sum, most, c->out->dtype, err) || end(c, !to, err))
		return -1;
	return to || !elements_of(own) ? 0 : copy_box(c, c->out->data, &c->out->box, sum, own, own, err);
}

/* One reduction a part, all at once. */
static int scatter_grouped(struct call *c, struct hspmd_error *err)
{
	const struct hspmd_box *parts = c->step->out, *own = &parts[c->self];
	size_t total = 0, at = 0;
	for (int i = 0; i < c->g->count; i++)
		total += elements_of(&parts[i]);
	char *room = room_for(c, 0, total, err), *to = elements_of(own) ? hspmd_local_buffer_contiguous(c->out, own) : NULL;
	char *sum = to ? to : room_for(c, 1, elements_of(own), err);
	if (!room || !sum)
		return -1;
	for (int i = 0; i < c->g->count; at += elements_of(&parts[c->member[i++]])) {
		const struct hspmd_box *box = &parts[c->member[i]];
		if (elements_of(box) && !packed(c, box, room + at * c->in->element_bytes, err))
			return -1;
	}
	if (c->ops->begin(c->group, err))
		return -1;
	at = 0;
	for (int i = 0; i < c->g->count; at += elements_of(&parts[c->member[i++]])) {
		const struct hspmd_box *box = &parts[c->member[i]];
		const char *from = elements_of(box) ? hspmd_local_buffer_contiguous(c->in, box) : NULL;
		if (elements_of(box) &&
		    c->ops->reduce(c->group, i, from ? from : room + at * c->in->element_bytes, sum, elements_of(box), c->out->dtype, err))
			return -1;
	}
	if (end(c, !to, err))
		return -1;
	return to || !elements_of(own) ? 0 : copy_box(c, c->out->data, &c->out->box, sum, own, own, err);
}

/* ---- everybody to everybody */

static int send_parts(struct call *c, char *room, struct hspmd_error *err)
{
	for (int i = 0; i < c->g->count; i++) {
		struct hspmd_box box;
		if (i == c->g->self || !hspmd_box_intersect(&c->step->in[c->self], &c->step->out[c->member[i]], &box))
			continue;
		const char *from = hspmd_local_buffer_contiguous(c->in, &box);
		if (c->ops->send(c->group, i, from ? from : room, elements_of(&box), c->out->dtype, err))
			return -1;
		room += elements_of(&box) * c->in->element_bytes;
	}
	return 0;
}

static int pack_parts(struct call *c, char *room, struct hspmd_error *err)
{
	for (int i = 0; i < c->g->count; i++) {
		struct hspmd_box box;
		if (i == c->g->self || !hspmd_box_intersect(&c->step->in[c->self], &c->step->out[c->member[i]], &box))
			continue;
		if (!packed(c, &box, room, err))
			return -1;
		room += elements_of(&box) * c->in->element_bytes;
	}
	return 0;
}

/* unpacking: they have come. */
static int receive_parts(struct call *c, char *room, bool unpacking, struct hspmd_error *err)
{
	for (int i = 0; i < c->g->count; i++) {
		struct hspmd_box box;
		if (i == c->g->self || !hspmd_box_intersect(&c->step->in[c->member[i]], &c->step->out[c->self], &box))
			continue;
		char *to = hspmd_local_buffer_contiguous(c->out, &box);
		if (unpacking ? !to && unpack(c, &box, room, err)
		              : c->ops->receive(c->group, i, to ? to : room, elements_of(&box), c->out->dtype, err))
			return -1;
		room += elements_of(&box) * c->in->element_bytes;
	}
	return 0;
}

static int all_to_all(struct call *c, struct hspmd_error *err)
{
	struct hspmd_box kept;
	size_t total = 0; /* of what goes to others: several may want the same */
	for (int i = 0; i < c->g->count; i++)
		if (hspmd_box_intersect(&c->step->in[c->self], &c->step->out[c->member[i]], &kept))
			total += elements_of(&kept);
	char *sent = room_for(c, 0, total, err), *came = room_for(c, 1, elements_of(&c->step->out[c->self]), err);
	if (!sent || !came || pack_parts(c, sent, err))
		return -1;
	if (hspmd_box_intersect(&c->step->in[c->self], &c->step->out[c->self], &kept) &&
	    copy_box(c, c->out->data, &c->out->box, c->in->data, &c->in->box, &kept, err))
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

int hspmd_devcomm_collective(struct hspmd_devcomm *d, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                             const struct hspmd_local_buffer *out, struct hspmd_error *err)
{
	const struct devcomm_step *known = find_step(d, step);
	const struct devcomm_group *g = known ? &d->groups[known->group] : NULL;
	if (!g || !g->made)
		return 0;
	if (!g->made->group)
		return hspmd_fail(err, "the group of these devices was given up");
	struct call c = { .d = d, .g = g, .group = g->made->group, .ops = g->made->ops, .step = step, .in = in, .out = out, .self = self };
	c.member = hspmd_calloc((size_t)g->count, sizeof *c.member);
	if (!c.member)
		return hspmd_fail_memory(err, "communicating");
	for (int i = 0; i < g->count; i++)
		for (int k = 0; k < g->count; k++)
			if (d->o.rank_of[step->members[k]] == g->ranks[i])
				c.member[i] = k;
	bool grouped = known->algorithm == DEVCOMM_GROUPED;
	int rv = step->kind == HSPMD_COMM_ALL_REDUCE       ? all_reduce(&c, err)
	         : step->kind == HSPMD_COMM_ALL_GATHER     ? (grouped ? gather_grouped(&c, err) : gather_padded(&c, err))
	         : step->kind == HSPMD_COMM_REDUCE_SCATTER ? (grouped ? scatter_grouped(&c, err) : scatter_padded(&c, err))
	                                                   : all_to_all(&c, err);
	/* After a failure they stay in use until the group is abandoned. */
	for (int b = 0; !rv && b < 2; b++)
		hspmd_devcomm_buffer_release(c.buffer[b], g->made, c.ticket);
	free(c.member);
	return rv ? -1 : 1;
}
