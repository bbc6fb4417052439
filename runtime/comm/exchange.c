/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/devcomm_internal.h"

/* Number of messages from one peer that are received into buffers at a time. */
#define WINDOW 4

/* Tags within the step: moves that overwrite, and moves that add. */
enum { TAG_MOVE = 0, TAG_ADD = 1 };

/* The messages from one peer, in order. */
struct flow {
	int device;
	bool add;
	struct hspmd_pieces pieces;
	size_t posted, done, window;
	struct hspmd_request **request; /* of message m at m % window */
	struct hspmd_scratch **scratch; /* NULL: received in place */
	struct devcomm_group *devcomm;  /* the data are received on the device, all at once; NULL: in host memory */
	struct devcomm_buffer *buffer;  /* NULL: in place */
	uint64_t ticket;
	bool taken;
};

struct exchange {
	struct hspmd_comm *c;
	const struct hspmd_local_buffer *in, *out;
	uint64_t tag;
	struct flow *flows;
	size_t flow_count, flow_capacity;
	bool early;            /* posted before the destination is known: everything is received into buffers */
	struct exchange *next; /* in the list of early exchanges */
};

static int post(struct exchange *e, struct flow *f, struct hspmd_error *err)
{
	while (f->posted < f->pieces.message_count && f->posted < f->done + f->window) {
		size_t m = f->posted, slot = m % f->window, bytes = f->pieces.bytes[m];
		char *to = f->add || e->early ? NULL : hspmd_pieces_in_place(&f->pieces, m, e->out);
		f->scratch[slot] = to ? NULL : hspmd_comm_scratch_acquire(e->c, bytes, err);
		if (!to && !f->scratch[slot])
			return -1;
		if (hspmd_comm_receive(e->c, f->device, e->tag | (f->add ? TAG_ADD : TAG_MOVE), to ? to : f->scratch[slot]->data, bytes,
		                       &f->request[slot], err)) {
			hspmd_comm_scratch_release(f->scratch[slot]);
			f->scratch[slot] = NULL;
			return -1;
		}
		f->posted++;
	}
	return 0;
}

/* Process the next message of a flow: wait for it, copy it to its destination, post the receive for the message after the window. */
static int finish_next(struct exchange *e, struct flow *f, struct hspmd_error *err)
{
	size_t slot = f->done % f->window;
	if (hspmd_transport_wait(e->c->transport, &f->request[slot], 1, err))
		return -1;
	struct hspmd_scratch *s = f->scratch[slot];
	f->scratch[slot] = NULL;
	int rv = s ? hspmd_pieces_unpack(e->c, &f->pieces, f->done, e->out, s->data, f->add, err) : 0;
	hspmd_comm_scratch_release(s);
	f->done++;
	return rv ? -1 : post(e, f, err);
}

/* The moves between two devices that add, or that do not, as pieces. */
static int gather_pieces(const struct hspmd_move_list *l, int from, int to, bool add, size_t element_bytes, struct hspmd_pieces *p,
                         struct hspmd_error *err)
{
	for (size_t i = 0; i < l->count; i++)
		if (l->move[i].from == from && l->move[i].to == to && !l->move[i].add == !add &&
		    hspmd_pieces_add(p, &l->move[i].box, hspmd_move_part(l, i), element_bytes, err))
			return -1;
	return hspmd_pieces_close(p, element_bytes, err);
}

/* Returns true if this is the first move of its pair and kind; only that one starts a flow. */
static bool first_of_pair(const struct hspmd_move *moves, size_t at)
{
	for (size_t i = at; i-- > 0;) {
		if (moves[i].from != moves[at].from || moves[i].to != moves[at].to)
			return true; /* the moves of a pair are neighbours */
		if (!moves[i].add == !moves[at].add)
			return false;
	}
	return true;
}

static int start_receives(struct exchange *e, const struct hspmd_move_list *l, struct hspmd_error *err)
{
	const struct hspmd_move *moves = l->move;
	int self = e->c->self;
	for (size_t i = 0; i < l->count; i++) {
		if (moves[i].to != self || moves[i].from == self || !first_of_pair(moves, i))
			continue;
		if (hspmd_array_grow(&e->flows, &e->flow_capacity, e->flow_count, sizeof *e->flows))
			return hspmd_fail_memory(err, "receiving");
		struct flow *f = &e->flows[e->flow_count++];
		f->device = moves[i].from;
		f->add = moves[i].add;
		f->devcomm = e->c->devcomm ? hspmd_devcomm_pair(e->c->devcomm, f->device, self) : NULL;
		if (f->devcomm) {
			if (hspmd_devcomm_receive(e->c->devcomm, f->devcomm, l, f->device, self, f->add, e->early, e->out, &f->buffer,
			                          &f->ticket, err))
				return -1;
			continue;
		}
		if (gather_pieces(l, f->device, self, f->add, e->out->element_bytes, &f->pieces, err))
			return -1;
		f->window = e->early ? f->pieces.message_count : WINDOW;
		f->request = hspmd_calloc(f->window, sizeof *f->request);
		f->scratch = hspmd_calloc(f->window, sizeof *f->scratch);
		if (!f->request || !f->scratch)
			return hspmd_fail_memory(err, "receiving");
		if (post(e, f, err))
			return -1;
	}
	return 0;
}

/* After a failure, buffers of pending receives keep their user, so that they are not reused. */
static void end(struct exchange *e)
{
	for (size_t i = 0; i < e->flow_count; i++) {
		hspmd_pieces_free(&e->flows[i].pieces);
		free(e->flows[i].request);
		free(e->flows[i].scratch);
	}
	free(e->flows);
}

static int send_pair(struct exchange *e, const struct hspmd_move_list *l, int to, bool add, struct hspmd_error *err)
{
	struct hspmd_pieces p = { 0 };
	struct devcomm_group *g = e->c->devcomm ? hspmd_devcomm_pair(e->c->devcomm, e->c->self, to) : NULL;
	if (g)
		return hspmd_devcomm_send(e->c->devcomm, g, l, e->c->self, to, add, e->in, err);
	int rv = gather_pieces(l, e->c->self, to, add, e->in->element_bytes, &p, err);
	if (!rv)
		rv = hspmd_comm_send_pieces(e->c, &p, e->in, to, e->tag | (add ? TAG_ADD : TAG_MOVE), err);
	hspmd_pieces_free(&p);
	return rv;
}

/* First the devices after this one in the list, so that not all devices send to the same one at once. */
static int start_sends(struct exchange *e, const struct hspmd_move_list *l, struct hspmd_error *err)
{
	const struct hspmd_move *moves = l->move;
	int self = e->c->self;
	for (int turn = 0; turn < 2; turn++)
		for (size_t i = 0; i < l->count; i++)
			if (moves[i].from == self && moves[i].to != self && (moves[i].to > self) == !turn && first_of_pair(moves, i) &&
			    send_pair(e, l, moves[i].to, moves[i].add, err))
				return -1;
	return 0;
}

static int copy_here(struct exchange *e, const struct hspmd_move_list *l, size_t at, struct hspmd_error *err)
{
	const struct hspmd_local_buffer *in = &e->in[hspmd_move_part(l, at)], *out = &e->out[hspmd_move_part(l, at)];
	const struct hspmd_move *m = &l->move[at];
	return e->c->dev->ops->copy_box(e->c->dev, out->data, &out->box, in->data, &in->box, &m->box, out->dtype, m->add, err);
}

/* Complete a receive on the device. */
static int finish_devcomm(struct exchange *e, struct flow *f, const struct hspmd_move_list *l, struct hspmd_error *err)
{
	if (f->taken)
		return 0;
	f->taken = true;
	return hspmd_devcomm_unpack(e->c->devcomm, f->devcomm, l, f->device, e->c->self, f->add, e->out, f->buffer, f->ticket, err);
}

static int finish_moves(struct exchange *e, const struct hspmd_move_list *l, struct hspmd_error *err)
{
	for (size_t i = 0; i < l->count; i++)
		if (l->move[i].from == e->c->self && l->move[i].to == e->c->self && !l->move[i].add && copy_here(e, l, i, err))
			return -1;
	for (bool more = true; more;) {
		more = false;
		for (size_t i = 0; i < e->flow_count; i++) {
			struct flow *f = &e->flows[i];
			if (f->add || f->done == f->pieces.message_count)
				continue;
			if (finish_next(e, f, err))
				return -1;
			more = true;
		}
	}
	for (size_t i = 0; i < e->flow_count; i++)
		if (e->flows[i].devcomm && !e->flows[i].add && finish_devcomm(e, &e->flows[i], l, err))
			return -1;
	return 0;
}

/* In the order of the list, which is the order of the senders. */
static int finish_adds(struct exchange *e, const struct hspmd_move_list *l, struct hspmd_error *err)
{
	const struct hspmd_move *moves = l->move;
	for (size_t i = 0; i < l->count; i++) {
		if (moves[i].to != e->c->self || !moves[i].add)
			continue;
		/* The values that they are added to may still be in transit to the device; those of all tensors that the message has. */
		for (size_t k = i; k < l->count && moves[k].from == moves[i].from && moves[k].to == moves[i].to; k++) {
			const struct hspmd_local_buffer *out = &e->out[hspmd_move_part(l, k)];
			if (hspmd_comm_stream_wait(e->c, out->data, (size_t)hspmd_box_elements(&out->box) * out->element_bytes, err))
				return -1;
		}
		if (moves[i].from == e->c->self) {
			if (copy_here(e, l, i, err))
				return -1;
			continue;
		}
		for (size_t k = 0; k < e->flow_count; k++) {
			struct flow *f = &e->flows[k];
			if (f->add && f->devcomm && f->device == moves[i].from && finish_devcomm(e, f, l, err))
				return -1;
			while (f->add && f->device == moves[i].from && f->done < f->pieces.message_count)
				if (finish_next(e, f, err))
					return -1;
		}
	}
	return 0;
}

int hspmd_comm_exchange_early(struct hspmd_comm *c, const struct hspmd_move_list *moves, const struct hspmd_local_buffer *out, uint64_t tag,
                              struct hspmd_error *err)
{
	struct exchange *e = hspmd_calloc(1, sizeof *e);
	if (!e)
		return hspmd_fail_memory(err, "receiving");
	*e = (struct exchange){ .c = c, .out = out, .tag = tag, .early = true };
	int rv = start_receives(e, moves, err);
	e->out = NULL;
	if (rv) {
		end(e);
		free(e);
		return -1;
	}
	struct exchange **last = &c->early;
	while (*last)
		last = &(*last)->next;
	*last = e;
	return 0;
}

/* The oldest: a step may be posted again before it runs (a tied weight's gradient is summed twice in a pass), and its messages come in
 * order. */
static bool find_early(struct hspmd_comm *c, uint64_t tag, struct exchange *out)
{
	for (struct exchange **at = &c->early; *at; at = &(*at)->next) {
		struct exchange *e = *at;
		if (e->tag != tag)
			continue;
		*at = e->next;
		*out = *e;
		free(e);
		return true;
	}
	return false;
}

void hspmd_comm_drop_early(struct hspmd_comm *c)
{
	while (c->early) {
		struct exchange *next = c->early->next;
		end(c->early);
		free(c->early);
		c->early = next;
	}
}

int hspmd_comm_exchange(struct hspmd_comm *c, const struct hspmd_move_list *moves, const struct hspmd_local_buffer *in,
                        const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	struct exchange e = { .c = c, .tag = tag };
	bool early = find_early(c, tag, &e);
	e.in = in;
	e.out = out;
	int rv = early ? 0 : start_receives(&e, moves, err);
	if (!rv)
		rv = start_sends(&e, moves, err);
	if (!rv)
		rv = finish_moves(&e, moves, err);
	if (!rv)
		rv = finish_adds(&e, moves, err);
	end(&e);
	return rv;
}

int64_t hspmd_comm_exchange_scratch(const struct hspmd_move_list *l, const struct hspmd_local_buffer *in,
                                    const struct hspmd_local_buffer *out, int self, bool early, struct hspmd_error *err)
{
	const struct hspmd_move *moves = l->move;
	int64_t total = 0;
	for (size_t i = 0; i < l->count; i++) {
		bool gives = moves[i].from == self, gets = moves[i].to == self;
		if (gives == gets || !first_of_pair(moves, i))
			continue;
		const struct hspmd_local_buffer *mine = gives ? in : out;
		struct hspmd_pieces p = { 0 };
		size_t all = 0, most = 0;
		int rv = gather_pieces(l, moves[i].from, moves[i].to, moves[i].add, mine->element_bytes, &p, err);
		for (size_t m = 0; !rv && m < p.message_count; m++) {
			bool buffered = (gets && (early || moves[i].add)) || !hspmd_pieces_in_place(&p, m, mine);
			size_t bytes = buffered ? hspmd_comm_scratch_size(p.bytes[m]) : 0;
			all += bytes;
			most = bytes > most ? bytes : most;
		}
		hspmd_pieces_free(&p);
		if (rv)
			return -1;
		total += (int64_t)(gets && !early && all > WINDOW * most ? WINDOW * most : all);
	}
	return total;
}
