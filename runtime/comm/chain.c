/* SPDX-License-Identifier: Apache-2.0 */
/* Reduce-scatter and all-reduce of many members. Partial sums pass along the members in their order, each of which adds its own values, in
 * messages of which several are under way; the last member has the totals. They come back along the members, or for a reduce-scatter go
 * from the last one to their owners. It is a ring (Patarasuk and Yuan 2009) that all ranges enter at the first member: a member sends and
 * receives as many bytes, but sums are made in member order, with the same bits as if one member had summed all (reduce.c). A member talks
 * to two others and holds a few messages, however many members there are. */
#include <stdlib.h>

#include "common/alloc.h"
#include "runtime/comm/comm_internal.h"

#define WINDOW 4 /* messages that are received, and that are sent, at a time */

enum { TAG_PARTIAL = 0, TAG_TOTAL = 1 };

/* Message m of all: number `at` of range `range`. */
struct place {
	int range;
	size_t at;
};

struct chain {
	struct hspmd_comm *c;
	const int *member;
	int self, last; /* indexes among the members */
	const struct hspmd_local_buffer *in, *out;
	uint64_t tag;
	int range_count;             /* 1, or as many as members: each owns one */
	struct hspmd_pieces *ranges; /* in `in`, in the order in which they pass */
	size_t count;                /* of messages */
	struct place *place;
	struct hspmd_request *received[WINDOW], *sent[WINDOW];
	struct hspmd_scratch *partial[WINDOW], *leaving[WINDOW];
	struct hspmd_request **total; /* receives of totals, in place or in `buffer` */
	struct hspmd_scratch **buffer;
	size_t total_count, passed; /* passed: totals that were passed on to the member before */
};

static size_t elements_of(const struct chain *h, size_t m)
{
	return h->ranges[h->place[m].range].bytes[h->place[m].at] / h->in->element_bytes;
}

/* Bytes of a partial sum: it has the precision in which its type is summed. */
static size_t partial_bytes(const struct chain *h, size_t m)
{
	return elements_of(h, m) * hspmd_comm_sum_bytes(h->in->element_bytes);
}

static int post(struct chain *h, size_t m, struct hspmd_error *err)
{
	if (m >= h->count || !h->self)
		return 0;
	struct hspmd_scratch *s = hspmd_comm_scratch_acquire(h->c, partial_bytes(h, m), err);
	if (!s)
		return -1;
	h->partial[m % WINDOW] = s;
	return hspmd_comm_receive(h->c, h->member[h->self - 1], h->tag | TAG_PARTIAL, s->data, partial_bytes(h, m),
	                          &h->received[m % WINDOW], err);
}

/* This member's values of message m, in place or packed into *packed. NULL and err. */
static const void *own_values(struct chain *h, size_t m, struct hspmd_scratch **packed, struct hspmd_error *err)
{
	const struct hspmd_pieces *p = &h->ranges[h->place[m].range];
	const char *at = hspmd_pieces_in_place(p, h->place[m].at, h->in);
	*packed = NULL;
	if (at)
		return at;
	*packed = hspmd_comm_scratch_acquire(h->c, p->bytes[h->place[m].at], err);
	return *packed && !hspmd_pieces_pack(h->c, p, h->place[m].at, h->in, (*packed)->data, err) ? (*packed)->data : NULL;
}

/* Sends message m from `s`, which it takes over. At most WINDOW such messages are under way. */
static int send_on(struct chain *h, size_t m, struct hspmd_scratch *s, int member, unsigned tag, size_t bytes, struct hspmd_error *err)
{
	size_t slot = m % WINDOW;
	if (h->sent[slot] && hspmd_transport_wait(h->c->transport, &h->sent[slot], 1, err))
		return -1;
	hspmd_comm_scratch_release(h->leaving[slot]);
	h->leaving[slot] = s;
	return hspmd_comm_send_tracked(h->c, h->member[member], h->tag | tag, s->data, bytes, &h->sent[slot], err);
}

/* The last member: a total is complete. All-reduce: it is put in place, and goes back along the members. Reduce-scatter: it goes to its
 * owner. */
static int deliver(struct chain *h, size_t m, const void *sum, struct hspmd_error *err)
{
	const struct hspmd_pieces *p = &h->ranges[h->place[m].range];
	size_t at = h->place[m].at, bytes = p->bytes[at];
	bool all = h->range_count == 1, mine = all || h->place[m].range == h->self;
	char *to = mine ? hspmd_pieces_in_place(p, at, h->out) : NULL;
	struct hspmd_scratch *s = to ? NULL : hspmd_comm_scratch_acquire(h->c, bytes, err);
	if (!to && !s)
		return -1;
	hspmd_comm_sum_end(h->in->dtype, to ? to : s->data, sum, elements_of(h, m), h->in->element_bytes);
	if (!mine)
		return send_on(h, m, s, h->place[m].range, TAG_TOTAL, bytes, err);
	if (all)
		return hspmd_comm_send(h->c, h->member[h->self - 1], h->tag | TAG_TOTAL, to, bytes, NULL, err);
	int rv = to ? 0 : hspmd_pieces_unpack(h->c, p, at, h->out, s->data, false, err);
	hspmd_comm_scratch_release(s);
	return rv;
}

static int add_message(struct chain *h, size_t m, struct hspmd_error *err)
{
	struct hspmd_scratch *packed, *sum = NULL;
	size_t slot = m % WINDOW;
	const void *own = own_values(h, m, &packed, err);
	int rv = own ? 0 : -1;
	if (!rv && h->self)
		rv = hspmd_transport_wait(h->c->transport, &h->received[slot], 1, err);
	if (!rv)
		sum = h->self ? h->partial[slot] : hspmd_comm_scratch_acquire(h->c, partial_bytes(h, m), err);
	if (!sum) {
		hspmd_comm_scratch_release(packed);
		return -1;
	}
	if (h->self)
		hspmd_comm_sum_add(h->in->dtype, sum->data, own, elements_of(h, m));
	else
		hspmd_comm_sum_begin(h->in->dtype, sum->data, own, elements_of(h, m), h->in->element_bytes);
	hspmd_comm_scratch_release(packed);
	h->partial[slot] = NULL;
	if (h->self < h->last)
		return send_on(h, m, sum, h->self + 1, TAG_PARTIAL, partial_bytes(h, m), err);
	rv = deliver(h, m, sum->data, err);
	hspmd_comm_scratch_release(sum);
	return rv;
}

/* ---- totals that come to this member */

static int post_totals(struct chain *h, struct hspmd_error *err)
{
	bool all = h->range_count == 1;
	const struct hspmd_pieces *p = &h->ranges[all ? 0 : h->self];
	if (h->self == h->last)
		return 0;
	h->total = hspmd_calloc(p->message_count, sizeof *h->total);
	h->buffer = hspmd_calloc(p->message_count, sizeof *h->buffer);
	if (!h->total || !h->buffer)
		return hspmd_fail_memory(err, "summing");
	for (size_t i = 0; i < p->message_count; i++) {
		char *to = hspmd_pieces_in_place(p, i, h->out);
		if (!to && !(h->buffer[i] = hspmd_comm_scratch_acquire(h->c, p->bytes[i], err)))
			return -1;
		h->total_count++;
		if (hspmd_comm_receive(h->c, h->member[all ? h->self + 1 : h->last], h->tag | TAG_TOTAL, to ? to : h->buffer[i]->data,
		                       p->bytes[i], &h->total[i], err))
			return -1;
	}
	return 0;
}

/* Takes the next total, and of an all-reduce passes it on. */
static int take_total(struct chain *h, struct hspmd_error *err)
{
	bool all = h->range_count == 1;
	const struct hspmd_pieces *p = &h->ranges[all ? 0 : h->self];
	size_t i = h->passed++;
	if (hspmd_transport_wait(h->c->transport, &h->total[i], 1, err))
		return -1;
	if (all && h->self) /* in place: an all-reduce works on rows */
		return hspmd_comm_send(h->c, h->member[h->self - 1], h->tag | TAG_TOTAL, hspmd_pieces_in_place(p, i, h->out), p->bytes[i],
		                       NULL, err);
	int rv = h->buffer[i] ? hspmd_pieces_unpack(h->c, p, i, h->out, h->buffer[i]->data, false, err) : 0;
	hspmd_comm_scratch_release(h->buffer[i]);
	h->buffer[i] = NULL;
	return rv;
}

/* Totals begin to come back while partial sums still pass: those that are `behind` messages behind have probably come. */
static int take_totals(struct chain *h, size_t m, size_t behind, struct hspmd_error *err)
{
	while (h->range_count == 1 && h->passed < h->total_count && h->passed + behind <= m)
		if (take_total(h, err))
			return -1;
	return 0;
}

static int run_chain(struct chain *h, struct hspmd_error *err)
{
	/* Each message visits the members after this one and comes back. */
	size_t behind = 2 * (size_t)(h->last - h->self) + 2 * WINDOW;
	if (post_totals(h, err))
		return -1;
	for (size_t m = 0; m < WINDOW; m++)
		if (post(h, m, err))
			return -1;
	for (size_t m = 0; m < h->count; m++)
		if (add_message(h, m, err) || post(h, m + WINDOW, err) || take_totals(h, m, behind, err))
			return -1;
	while (h->passed < h->total_count)
		if (take_total(h, err))
			return -1;
	if (hspmd_transport_wait(h->c->transport, h->sent, WINDOW, err))
		return -1;
	for (int i = 0; i < WINDOW; i++)
		hspmd_comm_scratch_release(h->leaving[i]);
	return 0;
}

/* After a failure, buffers of messages keep their users, so that they are not reused. */
static void end_chain(struct chain *h)
{
	for (int i = 0; i < h->range_count; i++)
		hspmd_pieces_free(&h->ranges[i]);
	free(h->place);
	free(h->total);
	free(h->buffer);
}

static int list_messages(struct chain *h, struct hspmd_error *err)
{
	for (int i = 0; i < h->range_count; i++)
		h->count += h->ranges[i].message_count;
	if (!(h->place = hspmd_calloc(h->count, sizeof *h->place)))
		return hspmd_fail_memory(err, "summing");
	size_t m = 0;
	for (int i = 0; i < h->range_count; i++)
		for (size_t at = 0; at < h->ranges[i].message_count; at++)
			h->place[m++] = (struct place){ i, at };
	return 0;
}

int hspmd_comm_chain(struct hspmd_comm *c, const struct hspmd_chain_members *members, const struct hspmd_local_buffer *in,
                     const struct hspmd_local_buffer *out, struct hspmd_pieces *ranges, int range_count, uint64_t tag,
                     struct hspmd_error *err)
{
	struct chain h = { .c = c,
		           .member = members->member,
		           .self = members->self,
		           .last = members->count - 1,
		           .in = in,
		           .out = out,
		           .tag = tag,
		           .range_count = range_count,
		           .ranges = ranges };
	int rv = list_messages(&h, err) || run_chain(&h, err) ? -1 : 0;
	end_chain(&h);
	return rv;
}

int64_t hspmd_comm_chain_scratch(size_t element_bytes, size_t bytes)
{
	size_t most = bytes < HSPMD_COMM_MESSAGE ? bytes : HSPMD_COMM_MESSAGE;
	size_t sum = most / element_bytes * hspmd_comm_sum_bytes(element_bytes);
	return (int64_t)((2 * WINDOW + 1) * hspmd_comm_scratch_size(sum) + hspmd_comm_scratch_size(most));
}
