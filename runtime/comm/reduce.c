/* SPDX-License-Identifier: Apache-2.0 */
/* Reduce-scatter and all-reduce. Every element is summed in one place, in member order, and then sent to all members that need it, so
 * that the result depends neither on sizes nor on which member is first. Each member sends directly to the owner of a range, which moves
 * as many bytes as a ring does, (n-1)/n of the tensor per member and phase (Patarasuk and Yuan 2009), in two rounds instead of 2(n-1).
 * Among many members that would be as many connections and buffers each: their sums pass along the members instead (chain.c). */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/comm_internal.h"

#define WINDOW 4

/* Up to this many bytes in total (HSPMD_COMM_SMALL_OF_MANY among many members), every member gathers all addends and sums them itself: one
 * logarithmic all-gather. */
#define SMALL (64u << 10)

enum { TAG_ADDEND = 0, TAG_TOTAL = 1, TAG_SMALL = 2 };

/* The owner's side: receives addends of its range from all other members, message by message. */
struct summing {
	struct hspmd_comm *c;
	const struct hspmd_comm_step *step;
	int self;
	const struct hspmd_local_buffer *in, *out;
	uint64_t tag;
	struct hspmd_pieces pieces;
	struct hspmd_request **request; /* [WINDOW][members] */
	struct hspmd_scratch **scratch; /* of the same shape */
	const void **source;            /* [members] */
	bool send_totals;               /* all-reduce: send the totals to all members */
};

static int post(struct summing *s, size_t m, struct hspmd_error *err)
{
	if (m >= s->pieces.message_count)
		return 0;
	int n = s->step->member_count;
	for (int i = 0; i < n; i++) {
		size_t slot = m % WINDOW * (size_t)n + (size_t)i;
		if (i == s->self)
			continue;
		s->scratch[slot] = hspmd_comm_scratch_acquire(s->c, s->pieces.bytes[m], err);
		if (!s->scratch[slot])
			return -1;
		if (hspmd_comm_receive(s->c, s->step->members[i], s->tag | TAG_ADDEND, s->scratch[slot]->data, s->pieces.bytes[m],
		                       &s->request[slot], err)) {
			hspmd_comm_scratch_release(s->scratch[slot]);
			return -1;
		}
	}
	return 0;
}

static int send_total(struct summing *s, const void *total, size_t bytes, struct hspmd_scratch *scratch, struct hspmd_error *err)
{
	int n = s->step->member_count;
	for (int k = 1; s->send_totals && k < n; k++)
		if (hspmd_comm_send(s->c, s->step->members[(s->self + k) % n], s->tag | TAG_TOTAL, total, bytes, scratch, err))
			return -1;
	return 0;
}

static int sum_message(struct summing *s, size_t m, struct hspmd_error *err)
{
	int n = s->step->member_count;
	size_t base = m % WINDOW * (size_t)n, bytes = s->pieces.bytes[m];
	struct hspmd_scratch *own = NULL, *total = NULL;
	const char *mine = hspmd_pieces_in_place(&s->pieces, m, s->in);
	char *to = hspmd_pieces_in_place(&s->pieces, m, s->out);
	int rv = hspmd_transport_wait(s->c->transport, s->request + base, n, err);
	if (!rv && !mine) {
		own = hspmd_comm_scratch_acquire(s->c, bytes, err);
		rv = own ? hspmd_pieces_pack(s->c, &s->pieces, m, s->in, own->data, err) : -1;
		mine = own ? own->data : NULL;
	}
	if (!rv && !to) {
		total = hspmd_comm_scratch_acquire(s->c, bytes, err);
		rv = total ? 0 : -1;
		to = total ? total->data : NULL;
	}
	if (rv) {
		hspmd_comm_scratch_release(own);
		return -1;
	}
	for (int i = 0; i < n; i++)
		s->source[i] = i == s->self ? (const void *)mine : s->scratch[base + (size_t)i]->data;
	hspmd_comm_add(s->out->dtype, to, s->source, n, bytes / s->out->element_bytes);
	for (int i = 0; i < n; i++)
		if (i != s->self)
			hspmd_comm_scratch_release(s->scratch[base + (size_t)i]);
	if (total)
		rv = hspmd_pieces_unpack(s->c, &s->pieces, m, s->out, to, false, err);
	if (!rv)
		rv = send_total(s, to, bytes, total, err);
	hspmd_comm_scratch_release(own);
	hspmd_comm_scratch_release(total);
	return rv;
}

/* box: this member's range. */
static int start_summing(struct summing *s, const struct hspmd_box *box, struct hspmd_error *err)
{
	size_t n = (size_t)s->step->member_count;
	s->request = hspmd_calloc(WINDOW * n, sizeof *s->request);
	s->scratch = hspmd_calloc(WINDOW * n, sizeof *s->scratch);
	s->source = hspmd_calloc(n, sizeof *s->source);
	if (!s->request || !s->scratch || !s->source)
		return hspmd_fail_memory(err, "summing");
	if (hspmd_pieces_of(&s->pieces, box, s->in->element_bytes, err))
		return -1;
	for (size_t m = 0; m < WINDOW; m++)
		if (post(s, m, err))
			return -1;
	return 0;
}

static int finish_summing(struct summing *s, struct hspmd_error *err)
{
	for (size_t m = 0; m < s->pieces.message_count; m++)
		if (sum_message(s, m, err) || post(s, m + WINDOW, err))
			return -1;
	return 0;
}

static void end_summing(struct summing *s)
{
	hspmd_pieces_free(&s->pieces);
	free(s->request);
	free(s->scratch);
	free(s->source);
}

static int send_box(struct hspmd_comm *c, const struct hspmd_local_buffer *part, const struct hspmd_box *box, int device, uint64_t tag,
                    struct hspmd_error *err)
{
	struct hspmd_pieces p = { 0 };
	int rv = hspmd_pieces_of(&p, box, part->element_bytes, err);
	if (!rv)
		rv = hspmd_comm_send_pieces(c, &p, part, device, tag, err);
	hspmd_pieces_free(&p);
	return rv;
}

int hspmd_comm_reduce_scatter(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                              const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	struct summing s = { .c = c, .step = step, .self = self, .in = in, .out = out, .tag = tag };
	int n = step->member_count;
	if (n > HSPMD_COMM_FEW_MEMBERS)
		return hspmd_comm_chain(c, step, self, in, out, step->out, n, tag, err);
	int rv = start_summing(&s, &step->out[self], err);
	for (int k = 1; !rv && k < n; k++) {
		int to = (self + k) % n;
		rv = send_box(c, in, &step->out[to], step->members[to], tag | TAG_ADDEND, err);
	}
	if (!rv)
		rv = finish_summing(&s, err);
	end_summing(&s);
	return rv;
}

/* ---- all-reduce: on the packed box as a row of elements, of which every member owns an equal range */

/* A box of a part as a row; scratch NULL: the box is contiguous there. */
struct row {
	struct hspmd_local_buffer part;
	struct hspmd_scratch *scratch;
};

static int make_row(struct hspmd_comm *c, const struct hspmd_local_buffer *part, const struct hspmd_box *box, bool fill, struct row *row,
                    struct hspmd_error *err)
{
	int64_t elements = hspmd_box_elements(box);
	*row = (struct row){ .part = *part };
	row->part.box = (struct hspmd_box){ .rank = 1, .hi = { elements } };
	row->part.data = part->on_host ? hspmd_local_buffer_contiguous(part, box) : NULL;
	row->part.on_host = true;
	if (row->part.data)
		return 0;
	row->scratch = hspmd_comm_scratch_acquire(c, (size_t)elements * part->element_bytes, err);
	if (!row->scratch)
		return -1;
	row->part.data = row->scratch->data;
	return fill ? hspmd_local_buffer_pack(c, part, box, row->part.data, err) : 0;
}

static struct hspmd_box range(int64_t elements, int n, int owner)
{
	/* In units of a cache line of the smallest elements, so that ranges do not share one. */
	const int64_t unit = 32;
	int64_t units = (elements + unit - 1) / unit, lo = units * owner / n * unit, hi = units * (owner + 1) / n * unit;
	return (struct hspmd_box){ .rank = 1, .lo = { lo < elements ? lo : elements }, .hi = { hi < elements ? hi : elements } };
}

static int reduce_small(struct hspmd_comm *c, const struct hspmd_comm_step *step, const struct hspmd_local_buffer *in,
                        const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	int n = step->member_count, rv = -1;
	size_t bytes = (size_t)in->box.hi[0] * in->element_bytes;
	struct hspmd_scratch *all = hspmd_comm_scratch_acquire(c, bytes * (size_t)n, err);
	int *ranks = hspmd_calloc((size_t)n, sizeof *ranks);
	const void **source = hspmd_calloc((size_t)n, sizeof *source);
	if (!ranks || !source)
		hspmd_fail_memory(err, "summing");
	for (int i = 0; ranks && i < n; i++)
		ranks[i] = c->rank_of[step->members[i]];
	if (all && ranks && source)
		rv = hspmd_transport_all_gather(c->transport, ranks, n, tag | TAG_SMALL, in->data, bytes, all->data, err);
	for (int i = 0; !rv && i < n; i++)
		source[i] = all->data + (size_t)i * bytes;
	if (!rv)
		hspmd_comm_add(out->dtype, out->data, source, n, (size_t)in->box.hi[0]);
	free(ranks);
	free(source);
	hspmd_comm_scratch_release(all);
	return rv;
}

/* Receives the totals of the other members' ranges, directly at their destination. */
struct totals {
	struct hspmd_request **request;
	size_t count, capacity;
};

static int post_totals(struct hspmd_comm *c, const struct hspmd_comm_step *step, int owner, const struct hspmd_local_buffer *out,
                       uint64_t tag, struct totals *t, struct hspmd_error *err)
{
	struct hspmd_pieces p = { 0 };
	struct hspmd_box box = range(out->box.hi[0], step->member_count, owner);
	int rv = hspmd_pieces_of(&p, &box, out->element_bytes, err);
	for (size_t m = 0; !rv && m < p.message_count; m++) {
		rv = hspmd_array_grow(&t->request, &t->capacity, t->count, sizeof *t->request);
		if (rv)
			hspmd_fail_memory(err, "summing");
		else
			rv = hspmd_comm_receive(c, step->members[owner], tag | TAG_TOTAL, hspmd_pieces_in_place(&p, m, out), p.bytes[m],
			                        &t->request[t->count++], err);
	}
	hspmd_pieces_free(&p);
	return rv;
}

static int reduce_large(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                        const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	int n = step->member_count, rv = 0;
	int64_t elements = in->box.hi[0];
	struct summing s = { .c = c, .step = step, .self = self, .in = in, .out = out, .tag = tag, .send_totals = true };
	struct totals totals = { 0 };
	struct hspmd_box mine = range(elements, n, self);
	for (int k = 1; !rv && k < n; k++)
		rv = post_totals(c, step, (self + n - k) % n, out, tag, &totals, err);
	if (!rv)
		rv = start_summing(&s, &mine, err);
	for (int k = 1; !rv && k < n; k++) {
		struct hspmd_box box = range(elements, n, (self + k) % n);
		rv = send_box(c, in, &box, step->members[(self + k) % n], tag | TAG_ADDEND, err);
	}
	if (!rv)
		rv = finish_summing(&s, err);
	if (!rv)
		rv = hspmd_transport_wait(c->transport, totals.request, (int)totals.count, err);
	/* All members take part in this step, so these sends end soon; afterwards out may be used freely. */
	size_t bytes = (size_t)elements * in->element_bytes;
	if (!rv)
		rv = hspmd_comm_flush(c, out->data, bytes, err);
	if (!rv)
		rv = hspmd_comm_flush(c, in->data, bytes, err);
	end_summing(&s);
	free(totals.request);
	return rv;
}

/* Along the members; afterwards out may be used freely. */
static int reduce_by_chain(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                           const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	if (hspmd_comm_chain(c, step, self, in, out, &in->box, 1, tag, err))
		return -1;
	return hspmd_comm_flush(c, out->data, (size_t)out->box.hi[0] * out->element_bytes, err);
}

static bool is_small(int members, size_t bytes)
{
	return bytes * (size_t)members <= (members > HSPMD_COMM_FEW_MEMBERS ? HSPMD_COMM_SMALL_OF_MANY : SMALL);
}

int hspmd_comm_all_reduce(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                          const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	struct row from = { 0 }, to = { 0 };
	const struct hspmd_box *box = &step->in[self];
	size_t bytes = (size_t)hspmd_box_elements(box) * in->element_bytes;
	if (!bytes)
		return 0;
	int rv = make_row(c, in, box, true, &from, err);
	if (!rv)
		rv = make_row(c, out, &step->out[self], false, &to, err);
	if (!rv)
		rv = is_small(step->member_count, bytes)           ? reduce_small(c, step, &from.part, &to.part, tag, err)
		     : step->member_count > HSPMD_COMM_FEW_MEMBERS ? reduce_by_chain(c, step, self, &from.part, &to.part, tag, err)
		                                                   : reduce_large(c, step, self, &from.part, &to.part, tag, err);
	if (rv)
		return -1; /* the rows' buffers keep their users: messages may be in transit */
	if (to.scratch)
		rv = hspmd_local_buffer_unpack(c, out, &step->out[self], to.part.data, false, err);
	hspmd_comm_scratch_release(from.scratch);
	hspmd_comm_scratch_release(to.scratch);
	return rv;
}

/* Scratch bytes for a box that is sent or received in messages: of all messages, or of the `window` largest. A message that is
 * contiguous in the part needs none unless it is an addend. */
static int64_t buffers_of(const struct hspmd_box *box, const struct hspmd_local_buffer *part, size_t window, bool addends,
                          struct hspmd_error *err)
{
	struct hspmd_pieces p = { 0 };
	size_t all = 0, most = 0;
	int rv = hspmd_pieces_of(&p, box, part->element_bytes, err);
	for (size_t m = 0; !rv && m < p.message_count; m++) {
		size_t bytes = addends || !hspmd_pieces_in_place(&p, m, part) ? hspmd_comm_scratch_size(p.bytes[m]) : 0;
		all += bytes;
		most = bytes > most ? bytes : most;
	}
	hspmd_pieces_free(&p);
	return rv ? -1 : (int64_t)(window && all > window * most ? window * most : all);
}

static int64_t row_buffer(const struct hspmd_local_buffer *part, const struct hspmd_box *box)
{
	return hspmd_local_buffer_contiguous(part, box)
	               ? 0
	               : (int64_t)hspmd_comm_scratch_size((size_t)hspmd_box_elements(box) * part->element_bytes);
}

/* `total`: of an all-reduce's rows, in which its totals are received. */
static int64_t chain_scratch(const struct hspmd_comm_step *step, const struct hspmd_local_buffer *in, const struct hspmd_local_buffer *out,
                             int self, int64_t total, struct hspmd_error *err)
{
	bool all = step->kind == HSPMD_COMM_ALL_REDUCE;
	size_t most = 0;
	for (int i = 0; i < (all ? 1 : step->member_count); i++) {
		size_t bytes = (size_t)hspmd_box_elements(all ? &step->in[self] : &step->out[i]) * in->element_bytes;
		most = bytes > most ? bytes : most;
	}
	int64_t totals = all ? 0 : buffers_of(&step->out[self], out, 0, false, err);
	return totals < 0 ? -1 : total + totals + hspmd_comm_chain_scratch(in->element_bytes, most);
}

int64_t hspmd_comm_sum_scratch(const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                               const struct hspmd_local_buffer *out, struct hspmd_error *err)
{
	int n = step->member_count;
	bool all = step->kind == HSPMD_COMM_ALL_REDUCE;
	int64_t elements = hspmd_box_elements(&step->in[self]);
	size_t bytes = (size_t)elements * in->element_bytes;
	struct hspmd_box mine = all ? range(elements, n, self) : step->out[self];
	struct hspmd_local_buffer row = {
		.data = in->data, .box = { .rank = 1, .hi = { elements } }, .element_bytes = in->element_bytes, .on_host = true
	};
	int64_t total = all ? row_buffer(in, &step->in[self]) + row_buffer(out, &step->out[self]) : 0;
	if (all && is_small(n, bytes))
		return total + (int64_t)hspmd_comm_scratch_size(bytes * (size_t)n);
	if (n > HSPMD_COMM_FEW_MEMBERS)
		return chain_scratch(step, in, out, self, total, err);
	int64_t addends = buffers_of(&mine, all ? &row : out, WINDOW, true, err);
	int64_t own = all ? 0 : buffers_of(&mine, in, 1, false, err), sum = all ? 0 : buffers_of(&mine, out, 1, false, err);
	if (addends < 0 || own < 0 || sum < 0)
		return -1;
	total += (n - 1) * addends + own + sum;
	for (int to = 0; !all && to < n; to++) {
		int64_t sent = to == self ? 0 : buffers_of(&step->out[to], in, 0, false, err);
		if (sent < 0)
			return -1;
		total += sent;
	}
	return total;
}
