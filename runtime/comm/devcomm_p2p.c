/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between two devices on their group; matched by the order of calls alone. */
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/devcomm_internal.h"

struct devcomm_group *hspmd_devcomm_pair(const struct hspmd_devcomm *d, int from, int to)
{
	int a = d->o.rank_of[from], b = d->o.rank_of[to];
	for (size_t i = 0; i < d->group_count; i++) {
		struct devcomm_group *g = &d->groups[i];
		if (g->pair && g->ranks[0] == a && g->ranks[1] == b)
			return g->made ? g : NULL;
	}
	return NULL;
}

/* The moves of a message: their number, their elements, and one of them with its tensor. */
struct message {
	size_t moves, elements;
	const struct hspmd_move *one;
	int part;
};

static bool belongs(const struct hspmd_move *m, int from, int to, bool add)
{
	return m->from == from && m->to == to && !m->add == !add;
}

static struct message measure(const struct hspmd_move_list *l, int from, int to, bool add)
{
	struct message m = { 0 };
	for (size_t i = 0; i < l->count; i++) {
		if (!belongs(&l->move[i], from, to, add) || hspmd_box_elements(&l->move[i].box) == 0)
			continue;
		m.moves++;
		m.elements += (size_t)hspmd_box_elements(&l->move[i].box);
		m.one = &l->move[i];
		m.part = hspmd_move_part(l, i);
	}
	return m;
}

static int group_of(const struct devcomm_group *g, struct hspmd_communicator **group, struct hspmd_error *err)
{
	*group = g->made->group;
	return *group ? 0 : hspmd_fail(err, "the communicator of these devices was aborted");
}

int hspmd_devcomm_send(struct hspmd_devcomm *d, struct devcomm_group *g, const struct hspmd_move_list *l, int from, int to, bool add,
                       const struct hspmd_local_buffer *in, struct hspmd_error *err)
{
	struct hspmd_device *dev = d->o.device;
	struct message m = measure(l, from, to, add);
	struct devcomm_buffer *buffer = NULL;
	struct hspmd_communicator *group;
	uint64_t ticket;
	if (!m.elements)
		return 0;
	if (group_of(g, &group, err))
		return -1;
	const char *data = m.moves == 1 ? hspmd_local_buffer_contiguous(&in[m.part], &m.one->box) : NULL;
	if (!data) {
		buffer = hspmd_devcomm_buffer(d, m.elements * in->element_bytes, NULL, err);
		char *at = buffer ? buffer->data : NULL;
		for (size_t i = 0; at && i < l->count; i++) {
			const struct hspmd_local_buffer *part = &in[hspmd_move_part(l, i)];
			const struct hspmd_box *box = &l->move[i].box;
			if (!belongs(&l->move[i], from, to, add))
				continue;
			if (dev->ops->copy_box(dev, at, box, part->data, &part->box, box, part->dtype, false, err))
				return -1;
			at += (size_t)hspmd_box_elements(box) * part->element_bytes;
		}
		if (!at)
			return -1;
		data = buffer->data;
	}
	if (g->made->ops->begin(group, err) || g->made->ops->send(group, 1, data, m.elements, in->dtype, err) ||
	    g->made->ops->end(group, &ticket, err))
		return -1;
	atomic_fetch_add_explicit(&d->sent_bytes, m.elements * in->element_bytes, memory_order_relaxed);
	hspmd_devcomm_buffer_release(buffer, g->made, ticket);
	return buffer ? 0 : hspmd_devcomm_note_use(d, g->made, data, m.elements * in->element_bytes, ticket, err);
}

int hspmd_devcomm_receive(struct hspmd_devcomm *d, struct devcomm_group *g, const struct hspmd_move_list *l, int from, int to, bool add,
                          bool early, const struct hspmd_local_buffer *out, struct devcomm_buffer **buffer, uint64_t *ticket,
                          struct hspmd_error *err)
{
	struct message m = measure(l, from, to, add);
	struct hspmd_communicator *group;
	*buffer = NULL;
	*ticket = 0;
	if (!m.elements)
		return 0;
	if (group_of(g, &group, err))
		return -1;
	char *at = m.moves == 1 && !add && !early ? hspmd_local_buffer_contiguous(&out[m.part], &m.one->box) : NULL;
	if (!at) {
		*buffer = hspmd_devcomm_buffer(d, m.elements * out->element_bytes, NULL, err);
		if (!*buffer)
			return -1;
		at = (*buffer)->data;
	}
	return g->made->ops->begin(group, err) || g->made->ops->receive(group, 0, at, m.elements, out->dtype, err) ||
	                       g->made->ops->end(group, ticket, err)
	               ? -1
	               : 0;
}

int hspmd_devcomm_unpack(struct hspmd_devcomm *d, struct devcomm_group *g, const struct hspmd_move_list *l, int from, int to, bool add,
                         const struct hspmd_local_buffer *out, struct devcomm_buffer *buffer, uint64_t ticket, struct hspmd_error *err)
{
	struct hspmd_device *dev = d->o.device;
	struct hspmd_communicator *group;
	if (!ticket)
		return 0;
	if (group_of(g, &group, err))
		return -1;
	if (!buffer) {
		struct message m = measure(l, from, to, add);
		return hspmd_devcomm_note_use(d, g->made, hspmd_local_buffer_contiguous(&out[m.part], &m.one->box),
		                              m.elements * out->element_bytes, ticket, err);
	}
	if (g->made->ops->stream_wait(group, ticket, err))
		return -1;
	const char *at = buffer->data;
	for (size_t i = 0; i < l->count; i++) {
		const struct hspmd_local_buffer *part = &out[hspmd_move_part(l, i)];
		const struct hspmd_box *box = &l->move[i].box;
		if (!belongs(&l->move[i], from, to, add))
			continue;
		if (dev->ops->copy_box(dev, part->data, &part->box, at, box, box, part->dtype, add, err))
			return -1;
		at += (size_t)hspmd_box_elements(box) * part->element_bytes;
	}
	hspmd_devcomm_buffer_release(buffer, NULL, 0);
	return 0;
}
