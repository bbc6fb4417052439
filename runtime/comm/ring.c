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

static int copy_own(struct hspmd_comm *c, const struct hspmd_joint *j, struct hspmd_error *err)
{
	for (int i = 0; i < j->count; i++) {
		const struct hspmd_local_buffer *in = &j->in[i], *out = &j->out[i];
		struct hspmd_box both;
		if (hspmd_box_intersect(&j->step[i]->in[j->self], &j->step[i]->out[j->self], &both) &&
		    c->dev->ops->copy_box(c->dev, out->data, &out->box, in->data, &in->box, &both, out->dtype, false, err))
			return -1;
	}
	return 0;
}

/* ---- all-gather */

static void pieces_free(struct hspmd_pieces *p, int count)
{
	for (int i = 0; p && i < count; i++)
		hspmd_pieces_free(&p[i]);
	free(p);
}

static int part_of_member(const struct hspmd_joint *j, int member, struct hspmd_pieces *p, struct hspmd_error *err)
{
	for (int i = 0; i < j->count; i++)
		if (hspmd_pieces_add(p, &j->step[i]->in[member], i, j->out->element_bytes, err))
			return -1;
	return hspmd_pieces_close(p, j->out->element_bytes, err);
}

/* The messages of each member's part. NULL and err. */
static struct hspmd_pieces *parts_of(const struct hspmd_joint *j, struct hspmd_error *err)
{
	int n = j->step[0]->member_count;
	struct hspmd_pieces *part = hspmd_calloc((size_t)n, sizeof *part);
	if (!part)
		hspmd_fail_memory(err, "gathering");
	for (int i = 0; part && i < n; i++)
		if (part_of_member(j, i, &part[i], err)) {
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

static int gather_around(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err)
{
	const int *members = j->step[0]->members;
	int n = j->step[0]->member_count, self = j->self;
	struct hspmd_pieces *part = parts_of(j, err);
	struct ring g = { .c = c,
		          .in = j->in,
		          .out = j->out,
		          .tag = tag,
		          .sent.device = members[(self + 1) % n],
		          .received.device = members[(self + n - 1) % n] };
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

static size_t part_bytes(const struct hspmd_joint *j, int member)
{
	size_t elements = 0;
	for (int i = 0; i < j->count; i++)
		elements += (size_t)hspmd_box_elements(&j->step[i]->in[member]);
	return elements * j->out->element_bytes;
}

static size_t longest_part(const struct hspmd_joint *j)
{
	size_t most = 0;
	for (int i = 0; i < j->step[0]->member_count; i++)
		most = part_bytes(j, i) > most ? part_bytes(j, i) : most;
	return most;
}

/* Copy a member's part, its tensors one after the other, between the tensors and packed host memory. */
static int copy_part(struct hspmd_comm *c, const struct hspmd_joint *j, int member, char *host, bool pack, struct hspmd_error *err)
{
	for (int i = 0; i < j->count; i++) {
		const struct hspmd_box *box = &j->step[i]->in[member];
		if (hspmd_box_empty(box))
			continue;
		if (pack ? hspmd_local_buffer_pack(c, &j->in[i], box, host, err)
		         : hspmd_local_buffer_unpack(c, &j->out[i], box, host, false, err))
			return -1;
		host += (size_t)hspmd_box_elements(box) * j->out->element_bytes;
	}
	return 0;
}

/* Every part counts as the longest one. */
static int gather_small(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err)
{
	int n = j->step[0]->member_count, *ranks = hspmd_calloc((size_t)n, sizeof *ranks), rv = -1;
	size_t bytes = longest_part(j);
	struct hspmd_scratch *own = hspmd_comm_scratch_acquire(c, bytes, err), *all = hspmd_comm_scratch_acquire(c, bytes * (size_t)n, err);
	if (!ranks)
		hspmd_fail_memory(err, "gathering");
	for (int i = 0; ranks && i < n; i++)
		ranks[i] = c->rank_of[j->step[0]->members[i]];
	if (ranks && own && all) {
		memset(own->data, 0, bytes);
		rv = copy_part(c, j, j->self, own->data, true, err);
	}
	if (!rv)
		rv = hspmd_transport_all_gather(c->transport, ranks, n, tag, own->data, bytes, all->data, err);
	for (int i = 0; !rv && i < n; i++)
		if (i != j->self)
			rv = copy_part(c, j, i, all->data + (size_t)i * bytes, false, err);
	free(ranks);
	hspmd_comm_scratch_release(own);
	hspmd_comm_scratch_release(all);
	return rv;
}

static bool is_small(const struct hspmd_joint *j)
{
	return longest_part(j) * (size_t)j->step[0]->member_count <= HSPMD_COMM_SMALL_OF_MANY;
}

int hspmd_comm_ring_gather(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err)
{
	if (copy_own(c, j, err))
		return -1;
	return is_small(j) ? gather_small(c, j, tag, err) : gather_around(c, j, tag, err);
}

/* ---- all-to-all */

/* What one member sends to another; no messages if that is nothing. */
static int pieces_between(const struct hspmd_joint *j, int from, int to, struct hspmd_pieces *p, struct hspmd_error *err)
{
	struct hspmd_box box;
	for (int i = 0; i < j->count; i++)
		if (hspmd_box_intersect(&j->step[i]->in[from], &j->step[i]->out[to], &box) &&
		    hspmd_pieces_add(p, &box, i, j->out->element_bytes, err))
			return -1;
	return p->count ? hspmd_pieces_close(p, j->out->element_bytes, err) : 0;
}

static int exchange_round(struct hspmd_comm *c, const struct hspmd_joint *j, int round, size_t most, uint64_t tag, struct hspmd_error *err)
{
	int n = j->step[0]->member_count, to = (j->self + round) % n, from = (j->self + n - round) % n;
	struct hspmd_pieces p[2] = { 0 };
	struct ring g = { .c = c,
		          .in = j->in,
		          .out = j->out,
		          .tag = tag,
		          .most = most,
		          .sent.device = j->step[0]->members[to],
		          .received.device = j->step[0]->members[from] };
	int rv = pieces_between(j, j->self, to, &p[0], err) || pieces_between(j, from, j->self, &p[1], err) ||
	                         add_messages(&g.sent, &p[0], err) || add_messages(&g.received, &p[1], err)
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

static size_t bytes_between(const struct hspmd_joint *j, int from, int to)
{
	size_t elements = 0;
	struct hspmd_box box;
	for (int i = 0; i < j->count; i++)
		if (hspmd_box_intersect(&j->step[i]->in[from], &j->step[i]->out[to], &box))
			elements += (size_t)hspmd_box_elements(&box);
	return elements * j->out->element_bytes;
}

/* Bytes of the longest message that this member sends or receives. */
static size_t longest_exchanged(const struct hspmd_joint *j)
{
	size_t most = 0;
	for (int i = 0; i < j->step[0]->member_count; i++)
		for (int sends = 0; i != j->self && sends < 2; sends++) {
			size_t bytes = bytes_between(j, sends ? j->self : i, sends ? i : j->self);
			most = bytes > most ? bytes : most;
		}
	return most < HSPMD_COMM_MESSAGE ? most : HSPMD_COMM_MESSAGE;
}

int hspmd_comm_pairwise(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err)
{
	size_t most = longest_exchanged(j);
	int rv = copy_own(c, j, err);
	for (int round = 1; !rv && round < j->step[0]->member_count; round++)
		rv = exchange_round(c, j, round, most, tag, err);
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

int64_t hspmd_comm_ring_scratch(const struct hspmd_joint *j, struct hspmd_error *err)
{
	int n = j->step[0]->member_count;
	size_t bytes = longest_part(j);
	if (j->step[0]->kind != HSPMD_COMM_ALL_GATHER)
		return (int64_t)(2 * WINDOW * hspmd_comm_scratch_size(longest_exchanged(j)));
	if (is_small(j))
		return (int64_t)(hspmd_comm_scratch_size(bytes) + hspmd_comm_scratch_size(bytes * (size_t)n));
	struct hspmd_pieces *part = parts_of(j, err);
	if (!part)
		return -1;
	bool received = false, sent = false;
	for (int i = 0; i < n; i++) {
		received |= i != j->self && any_elsewhere(&part[i], j->out);
		sent |= any_elsewhere(&part[i], i == j->self ? j->in : j->out);
	}
	size_t one = hspmd_comm_scratch_size(longest_message(part, n));
	pieces_free(part, n);
	return (int64_t)(((size_t)received + (size_t)sent) * WINDOW * one);
}
