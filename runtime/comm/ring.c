/* SPDX-License-Identifier: Apache-2.0 */
/* All-gather and all-to-all of many members. In an all-gather each member passes every part on to the next one (the second half of
 * Patarasuk and Yuan's ring, 2009): it talks to two others and sends as many bytes as if it had sent its own part to all. Small parts take
 * the logarithmic all-gather of the transport. In an all-to-all the members exchange in rounds, in each of which everyone sends to one and
 * receives from one (pairwise exchange: Thakur, Rabenseifner and Gropp 2005, section 4.4): it needs all connections, but few messages at a
 * time. In both a member holds a few messages, however many members there are. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/comm_internal.h"

#define WINDOW 4 /* messages that are received, and that are sent, at a time */

/* Messages in the order in which they go to one member, or come from one: number `at` of a box's pieces. */
struct lane {
	int device;
	size_t count, capacity;
	struct place {
		const struct hspmd_pieces *pieces;
		size_t at;
	} * place;
};

struct ring {
	struct hspmd_comm *c;
	const struct hspmd_local_buffer *in, *out;
	uint64_t tag;
	size_t most; /* bytes of the longest message: all buffers have as many */
	struct lane sent, received;
	size_t own; /* messages that are sent from `in`, the first ones; the others have come before, and are in `out` */
	size_t posted, done, begun;
	struct hspmd_request *coming[WINDOW], *leaving[WINDOW];
	struct hspmd_scratch *came[WINDOW], *left[WINDOW]; /* NULL: in place */
};

static size_t bytes_of(const struct place *p)
{
	return p->pieces->bytes[p->at];
}

static int add_messages(struct lane *l, const struct hspmd_pieces *p, struct hspmd_error *err)
{
	for (size_t at = 0; at < p->message_count; at++) {
		if (hspmd_array_grow(&l->place, &l->capacity, l->count, sizeof *l->place))
			return hspmd_fail_memory(err, "exchanging");
		l->place[l->count++] = (struct place){ p, at };
	}
	return 0;
}

static int post(struct ring *g, struct hspmd_error *err)
{
	if (g->posted == g->received.count)
		return 0;
	const struct place *p = &g->received.place[g->posted];
	size_t slot = g->posted % WINDOW;
	char *to = hspmd_pieces_in_place(p->pieces, p->at, g->out);
	g->came[slot] = to ? NULL : hspmd_comm_scratch_acquire(g->c, g->most, err);
	if (!to && !g->came[slot])
		return -1;
	g->posted++;
	return hspmd_comm_receive(g->c, g->received.device, g->tag, to ? to : g->came[slot]->data, bytes_of(p), &g->coming[slot], err);
}

static int take(struct ring *g, struct hspmd_error *err)
{
	const struct place *p = &g->received.place[g->done];
	size_t slot = g->done % WINDOW;
	if (hspmd_transport_wait(g->c->transport, &g->coming[slot], 1, err))
		return -1;
	struct hspmd_scratch *s = g->came[slot];
	int rv = s ? hspmd_pieces_unpack(g->c, p->pieces, p->at, g->out, s->data, false, err) : 0;
	g->came[slot] = NULL;
	hspmd_comm_scratch_release(s);
	g->done++;
	return rv ? -1 : post(g, err);
}

static int send(struct ring *g, struct hspmd_error *err)
{
	const struct place *p = &g->sent.place[g->begun];
	const struct hspmd_local_buffer *part = g->begun < g->own ? g->in : g->out;
	size_t slot = g->begun % WINDOW;
	if (g->leaving[slot] && hspmd_transport_wait(g->c->transport, &g->leaving[slot], 1, err))
		return -1;
	hspmd_comm_scratch_release(g->left[slot]);
	g->left[slot] = NULL;
	const char *from = hspmd_pieces_in_place(p->pieces, p->at, part);
	if (!from) {
		g->left[slot] = hspmd_comm_scratch_acquire(g->c, g->most, err);
		if (!g->left[slot] || hspmd_pieces_pack(g->c, p->pieces, p->at, part, g->left[slot]->data, err))
			return -1;
		from = g->left[slot]->data;
	}
	g->begun++;
	return hspmd_comm_send_tracked(g->c, g->sent.device, g->tag, from, bytes_of(p), &g->leaving[slot], err);
}

/* One message is sent for each that is received: nobody waits for a message whose sender waits for its own receiver. After a failure,
 * buffers of messages keep their users, so that they are not reused. */
static int pass(struct ring *g, struct hspmd_error *err)
{
	for (int i = 0; i < WINDOW; i++)
		if (post(g, err))
			return -1;
	while (g->begun < g->sent.count || g->done < g->received.count) {
		if (g->begun < g->sent.count && g->begun < g->own + g->done && send(g, err))
			return -1;
		if (g->done < g->received.count && take(g, err))
			return -1;
	}
	if (hspmd_transport_wait(g->c->transport, g->leaving, WINDOW, err))
		return -1;
	for (int i = 0; i < WINDOW; i++)
		hspmd_comm_scratch_release(g->left[i]);
	return 0;
}

static void ring_clear(struct ring *g)
{
	free(g->sent.place);
	free(g->received.place);
}

static int copy_own(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                    const struct hspmd_local_buffer *out, struct hspmd_error *err)
{
	struct hspmd_box both;
	if (!hspmd_box_intersect(&step->in[self], &step->out[self], &both))
		return 0;
	return c->dev->ops->copy_box(c->dev, out->data, &out->box, in->data, &in->box, &both, out->dtype, false, err);
}

/* ---- all-gather */

static void pieces_free(struct hspmd_pieces *p, int count)
{
	for (int i = 0; p && i < count; i++)
		hspmd_pieces_free(&p[i]);
	free(p);
}

/* The messages of each member's part. NULL and err. */
static struct hspmd_pieces *parts_of(const struct hspmd_comm_step *step, size_t element_bytes, struct hspmd_error *err)
{
	int n = step->member_count;
	struct hspmd_pieces *part = hspmd_calloc((size_t)n, sizeof *part);
	if (!part)
		hspmd_fail_memory(err, "gathering");
	for (int i = 0; part && i < n; i++)
		if (hspmd_pieces_of(&part[i], &step->in[i], element_bytes, err)) {
			pieces_free(part, n);
			return NULL;
		}
	return part;
}

static size_t longest_message(const struct hspmd_pieces *p, int count)
{
	size_t most = 0;
	for (int i = 0; i < count; i++)
		for (size_t m = 0; m < p[i].message_count; m++)
			most = p[i].bytes[m] > most ? p[i].bytes[m] : most;
	return most;
}

static int gather_around(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                         const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	int n = step->member_count;
	struct hspmd_pieces *part = parts_of(step, out->element_bytes, err);
	struct ring g = { .c = c,
		          .in = in,
		          .out = out,
		          .tag = tag,
		          .sent.device = step->members[(self + 1) % n],
		          .received.device = step->members[(self + n - 1) % n] };
	int rv = part ? 0 : -1;
	for (int k = 0; !rv && k < n; k++) {
		const struct hspmd_pieces *p = &part[(self + n - k) % n];
		if (k < n - 1)
			rv = add_messages(&g.sent, p, err);
		if (!rv && k > 0)
			rv = add_messages(&g.received, p, err);
		g.own = k ? g.own : g.sent.count;
	}
	g.most = part ? longest_message(part, n) : 0;
	if (!rv)
		rv = pass(&g, err);
	ring_clear(&g);
	pieces_free(part, n);
	return rv;
}

static size_t longest_part(const struct hspmd_comm_step *step, size_t element_bytes)
{
	size_t most = 0;
	for (int i = 0; i < step->member_count; i++) {
		size_t bytes = (size_t)hspmd_box_elements(&step->in[i]) * element_bytes;
		most = bytes > most ? bytes : most;
	}
	return most;
}

/* Every part counts as the longest one. */
static int gather_small(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                        const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	int n = step->member_count, *ranks = hspmd_calloc((size_t)n, sizeof *ranks), rv = -1;
	size_t bytes = longest_part(step, out->element_bytes);
	struct hspmd_scratch *own = hspmd_comm_scratch_acquire(c, bytes, err), *all = hspmd_comm_scratch_acquire(c, bytes * (size_t)n, err);
	if (!ranks)
		hspmd_fail_memory(err, "gathering");
	for (int i = 0; ranks && i < n; i++)
		ranks[i] = c->rank_of[step->members[i]];
	if (ranks && own && all) {
		memset(own->data, 0, bytes);
		rv = hspmd_box_empty(&step->in[self]) ? 0 : hspmd_local_buffer_pack(c, in, &step->in[self], own->data, err);
	}
	if (!rv)
		rv = hspmd_transport_all_gather(c->transport, ranks, n, tag, own->data, bytes, all->data, err);
	for (int i = 0; !rv && i < n; i++)
		if (i != self && !hspmd_box_empty(&step->in[i]))
			rv = hspmd_local_buffer_unpack(c, out, &step->in[i], all->data + (size_t)i * bytes, false, err);
	free(ranks);
	hspmd_comm_scratch_release(own);
	hspmd_comm_scratch_release(all);
	return rv;
}

static bool is_small(const struct hspmd_comm_step *step, size_t element_bytes)
{
	return longest_part(step, element_bytes) * (size_t)step->member_count <= HSPMD_COMM_SMALL_OF_MANY;
}

int hspmd_comm_ring_gather(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                           const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	if (copy_own(c, step, self, in, out, err))
		return -1;
	return is_small(step, out->element_bytes) ? gather_small(c, step, self, in, out, tag, err)
	                                          : gather_around(c, step, self, in, out, tag, err);
}

/* ---- all-to-all */

/* What member i sends to member j; no messages if that is nothing. */
static int pieces_between(const struct hspmd_comm_step *step, int i, int j, size_t element_bytes, struct hspmd_pieces *p,
                          struct hspmd_error *err)
{
	struct hspmd_box box;
	return hspmd_box_intersect(&step->in[i], &step->out[j], &box) ? hspmd_pieces_of(p, &box, element_bytes, err) : 0;
}

static int exchange_round(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, int round,
                          const struct hspmd_local_buffer *in, const struct hspmd_local_buffer *out, size_t most, uint64_t tag,
                          struct hspmd_error *err)
{
	int n = step->member_count, to = (self + round) % n, from = (self + n - round) % n;
	struct hspmd_pieces p[2] = { 0 };
	struct ring g = { .c = c,
		          .in = in,
		          .out = out,
		          .tag = tag,
		          .most = most,
		          .sent.device = step->members[to],
		          .received.device = step->members[from] };
	int rv = pieces_between(step, self, to, out->element_bytes, &p[0], err) ||
	                         pieces_between(step, from, self, out->element_bytes, &p[1], err) || add_messages(&g.sent, &p[0], err) ||
	                         add_messages(&g.received, &p[1], err)
	                 ? -1
	                 : 0;
	g.own = g.sent.count;
	if (!rv)
		rv = pass(&g, err);
	ring_clear(&g);
	hspmd_pieces_free(&p[0]);
	hspmd_pieces_free(&p[1]);
	return rv;
}

/* Bytes of the longest message that this member sends or receives. */
static size_t longest_exchanged(const struct hspmd_comm_step *step, int self, size_t element_bytes)
{
	size_t most = 0;
	for (int i = 0; i < step->member_count; i++) {
		struct hspmd_box box;
		for (int sends = 0; sends < 2; sends++) {
			int from = sends ? self : i, to = sends ? i : self;
			size_t bytes = i != self && hspmd_box_intersect(&step->in[from], &step->out[to], &box)
			                       ? (size_t)hspmd_box_elements(&box) * element_bytes
			                       : 0;
			most = bytes > most ? bytes : most;
		}
	}
	return most < HSPMD_COMM_MESSAGE ? most : HSPMD_COMM_MESSAGE;
}

int hspmd_comm_pairwise(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                        const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	size_t most = longest_exchanged(step, self, out->element_bytes);
	int rv = copy_own(c, step, self, in, out, err);
	for (int round = 1; !rv && round < step->member_count; round++)
		rv = exchange_round(c, step, self, round, in, out, most, tag, err);
	return rv;
}

/* ---- memory */

static bool any_elsewhere(const struct hspmd_pieces *p, const struct hspmd_local_buffer *part)
{
	for (size_t m = 0; m < p->message_count; m++)
		if (!hspmd_pieces_in_place(p, m, part))
			return true;
	return false;
}

int64_t hspmd_comm_ring_scratch(const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                                const struct hspmd_local_buffer *out, struct hspmd_error *err)
{
	int n = step->member_count;
	size_t bytes = longest_part(step, out->element_bytes);
	if (step->kind != HSPMD_COMM_ALL_GATHER)
		return (int64_t)(2 * WINDOW * hspmd_comm_scratch_size(longest_exchanged(step, self, out->element_bytes)));
	if (is_small(step, out->element_bytes))
		return (int64_t)(hspmd_comm_scratch_size(bytes) + hspmd_comm_scratch_size(bytes * (size_t)n));
	struct hspmd_pieces *part = parts_of(step, out->element_bytes, err);
	if (!part)
		return -1;
	bool received = false, sent = false;
	for (int i = 0; i < n; i++) {
		received |= i != self && any_elsewhere(&part[i], out);
		sent |= any_elsewhere(&part[i], i == self ? in : out);
	}
	size_t one = hspmd_comm_scratch_size(longest_message(part, n));
	pieces_free(part, n);
	return (int64_t)(((size_t)received + (size_t)sent) * WINDOW * one);
}
