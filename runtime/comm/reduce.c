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
	const int *member;
	int members, self;
	const struct hspmd_local_buffer *in, *out;
	uint64_t tag;
	struct hspmd_pieces pieces;     /* of its range */
	struct hspmd_request **request; /* [WINDOW][members] */
	struct hspmd_scratch **scratch; /* of the same shape */
	const void **source;            /* [members] */
	bool send_totals;               /* all-reduce: send the totals to all members */
};

static int post(struct summing *s, size_t m, struct hspmd_error *err)
{
	if (m >= s->pieces.message_count)
		return 0;
	int n = s->members;
	for (int i = 0; i < n; i++) {
		size_t slot = m % WINDOW * (size_t)n + (size_t)i;
		if (i == s->self)
			continue;
		s->scratch[slot] = hspmd_comm_scratch_acquire(s->c, s->pieces.bytes[m], err);
		if (!s->scratch[slot])
			return -1;
		if (hspmd_comm_receive(s->c, s->member[i], s->tag | TAG_ADDEND, s->scratch[slot]->data, s->pieces.bytes[m],
		                       &s->request[slot], err)) {
			hspmd_comm_scratch_release(s->scratch[slot]);
			return -1;
		}
	}
	return 0;
}

static int send_total(struct summing *s, const void *total, size_t bytes, struct hspmd_scratch *scratch, struct hspmd_error *err)
{
	int n = s->members;
	for (int k = 1; s->send_totals && k < n; k++)
		if (hspmd_comm_send(s->c, s->member[(s->self + k) % n], s->tag | TAG_TOTAL, total, bytes, scratch, err))
			return -1;
	return 0;
}

static int sum_message(struct summing *s, size_t m, struct hspmd_error *err)
{
	int n = s->members;
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

static int start_summing(struct summing *s, struct hspmd_error *err)
{
	size_t n = (size_t)s->members;
	s->request = hspmd_calloc(WINDOW * n, sizeof *s->request);
	s->scratch = hspmd_calloc(WINDOW * n, sizeof *s->scratch);
	s->source = hspmd_calloc(n, sizeof *s->source);
	if (!s->request || !s->scratch || !s->source)
		return hspmd_fail_memory(err, "summing");
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

/* The pieces of what member `owner` gets of the sums. */
static int pieces_of_owner(const struct hspmd_joint *j, int owner, struct hspmd_pieces *p, struct hspmd_error *err)
{
	for (int i = 0; i < j->count; i++)
		if (hspmd_pieces_add(p, &j->step[i]->out[owner], i, j->in->element_bytes, err))
			return -1;
	return hspmd_pieces_close(p, j->in->element_bytes, err);
}

static int scatter_by_chain(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err)
{
	int n = j->step[0]->member_count, rv = 0;
	struct hspmd_chain_members members = { j->step[0]->members, n, j->self };
	struct hspmd_pieces *ranges = hspmd_calloc((size_t)n, sizeof *ranges);
	if (!ranges)
		return hspmd_fail_memory(err, "summing");
	for (int i = 0; !rv && i < n; i++)
		rv = pieces_of_owner(j, i, &ranges[i], err);
	if (!rv)
		rv = hspmd_comm_chain(c, &members, j->in, j->out, ranges, n, tag, err);
	else
		for (int i = 0; i < n; i++)
			hspmd_pieces_free(&ranges[i]);
	free(ranges);
	return rv;
}

int hspmd_comm_reduce_scatter(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err)
{
	const int *member = j->step[0]->members;
	int n = j->step[0]->member_count;
	struct summing s = { .c = c, .member = member, .members = n, .self = j->self, .in = j->in, .out = j->out, .tag = tag };
	if (n > HSPMD_COMM_FEW_MEMBERS)
		return scatter_by_chain(c, j, tag, err);
	int rv = pieces_of_owner(j, j->self, &s.pieces, err);
	if (!rv)
		rv = start_summing(&s, err);
	for (int k = 1; !rv && k < n; k++) {
		int to = (j->self + k) % n;
		struct hspmd_pieces p = { 0 };
		rv = pieces_of_owner(j, to, &p, err);
		if (!rv)
			rv = hspmd_comm_send_pieces(c, &p, j->in, member[to], tag | TAG_ADDEND, err);
		hspmd_pieces_free(&p);
	}
	if (!rv)
		rv = finish_summing(&s, err);
	end_summing(&s);
	return rv;
}

/* ---- all-reduce: on the packed boxes as a row of elements, of which every member owns an equal range */

#define ROW ((int64_t)8 << 20) /* bytes of the boxes of several tensors that are packed into one row at a time */

/* Boxes of the tensors as a row; scratch NULL: there is one, and it is contiguous in its part. */
struct row {
	struct hspmd_local_buffer part;
	struct hspmd_scratch *scratch;
};

static int64_t row_elements(const struct hspmd_joint *j)
{
	int64_t elements = 0;
	for (int i = 0; i < j->count; i++)
		elements += hspmd_box_elements(&j->step[i]->in[j->self]);
	return elements;
}

/* The box of the only tensor in its part's memory; NULL: there are several, or it is not contiguous in the host's memory. */
static char *row_in_place(const struct hspmd_joint *j, const struct hspmd_local_buffer *part, const struct hspmd_box *box)
{
	return j->count == 1 && part->on_host ? hspmd_local_buffer_contiguous(part, box) : NULL;
}

/* Copies all boxes between their parts and a row. */
static int copy_row(struct hspmd_comm *c, const struct hspmd_joint *j, char *row, bool pack, struct hspmd_error *err)
{
	for (int i = 0; i < j->count; i++) {
		const struct hspmd_box *box = pack ? &j->step[i]->in[j->self] : &j->step[i]->out[j->self];
		if (pack ? hspmd_local_buffer_pack(c, &j->in[i], box, row, err)
		         : hspmd_local_buffer_unpack(c, &j->out[i], box, row, false, err))
			return -1;
		row += (size_t)hspmd_box_elements(box) * j->in->element_bytes;
	}
	return 0;
}

/* Rows of the addends and of the sums; if neither can be in place, they are one. */
static int make_rows(struct hspmd_comm *c, const struct hspmd_joint *j, struct row *from, struct row *to, struct hspmd_error *err)
{
	int64_t elements = row_elements(j);
	from->part = j->in[0];
	from->part.box = (struct hspmd_box){ .rank = 1, .hi = { elements } };
	from->part.on_host = true;
	to->part = from->part;
	from->part.data = row_in_place(j, &j->in[0], &j->step[0]->in[j->self]);
	to->part.data = row_in_place(j, &j->out[0], &j->step[0]->out[j->self]);
	if (from->part.data && to->part.data)
		return 0;
	struct row *packed = from->part.data ? to : from;
	packed->scratch = hspmd_comm_scratch_acquire(c, (size_t)elements * j->in->element_bytes, err);
	if (!packed->scratch)
		return -1;
	if (!from->part.data && copy_row(c, j, packed->scratch->data, true, err))
		return -1;
	packed->part.data = packed->scratch->data;
	if (!to->part.data)
		to->part.data = packed->part.data;
	return 0;
}

static struct hspmd_box range(int64_t elements, int n, int owner)
{
	/* In units of a cache line of the smallest elements, so that ranges do not share one. */
	const int64_t unit = 32;
	int64_t units = (elements + unit - 1) / unit, lo = units * owner / n * unit, hi = units * (owner + 1) / n * unit;
	return (struct hspmd_box){ .rank = 1, .lo = { lo < elements ? lo : elements }, .hi = { hi < elements ? hi : elements } };
}

static int reduce_small(struct hspmd_comm *c, const struct hspmd_chain_members *members, const struct hspmd_local_buffer *in,
                        const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	int n = members->count, rv = -1;
	size_t bytes = (size_t)in->box.hi[0] * in->element_bytes;
	struct hspmd_scratch *all = hspmd_comm_scratch_acquire(c, bytes * (size_t)n, err);
	int *ranks = hspmd_calloc((size_t)n, sizeof *ranks);
	const void **source = hspmd_calloc((size_t)n, sizeof *source);
	if (!ranks || !source)
		hspmd_fail_memory(err, "summing");
	for (int i = 0; ranks && i < n; i++)
		ranks[i] = c->rank_of[members->member[i]];
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

static int post_totals(struct hspmd_comm *c, const struct hspmd_chain_members *members, int owner, const struct hspmd_local_buffer *out,
                       uint64_t tag, struct totals *t, struct hspmd_error *err)
{
	struct hspmd_pieces p = { 0 };
	struct hspmd_box box = range(out->box.hi[0], members->count, owner);
	int rv = hspmd_pieces_of(&p, &box, out->element_bytes, err);
	for (size_t m = 0; !rv && m < p.message_count; m++) {
		rv = hspmd_array_grow(&t->request, &t->capacity, t->count, sizeof *t->request);
		if (rv)
			hspmd_fail_memory(err, "summing");
		else
			rv = hspmd_comm_receive(c, members->member[owner], tag | TAG_TOTAL, hspmd_pieces_in_place(&p, m, out), p.bytes[m],
			                        &t->request[t->count++], err);
	}
	hspmd_pieces_free(&p);
	return rv;
}

static int reduce_large(struct hspmd_comm *c, const struct hspmd_chain_members *members, const struct hspmd_local_buffer *in,
                        const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	int n = members->count, self = members->self, rv = 0;
	int64_t elements = in->box.hi[0];
	struct summing s = {
		.c = c, .member = members->member, .members = n, .self = self, .in = in, .out = out, .tag = tag, .send_totals = true
	};
	struct totals totals = { 0 };
	struct hspmd_box mine = range(elements, n, self);
	for (int k = 1; !rv && k < n; k++)
		rv = post_totals(c, members, (self + n - k) % n, out, tag, &totals, err);
	if (!rv)
		rv = hspmd_pieces_of(&s.pieces, &mine, in->element_bytes, err);
	if (!rv)
		rv = start_summing(&s, err);
	for (int k = 1; !rv && k < n; k++) {
		struct hspmd_box box = range(elements, n, (self + k) % n);
		struct hspmd_pieces p = { 0 };
		rv = hspmd_pieces_of(&p, &box, in->element_bytes, err);
		if (!rv)
			rv = hspmd_comm_send_pieces(c, &p, in, members->member[(self + k) % n], tag | TAG_ADDEND, err);
		hspmd_pieces_free(&p);
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
static int reduce_by_chain(struct hspmd_comm *c, const struct hspmd_chain_members *members, const struct hspmd_local_buffer *in,
                           const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	struct hspmd_pieces all = { 0 };
	if (hspmd_pieces_of(&all, &in->box, in->element_bytes, err)) {
		hspmd_pieces_free(&all);
		return -1;
	}
	if (hspmd_comm_chain(c, members, in, out, &all, 1, tag, err))
		return -1;
	return hspmd_comm_flush(c, out->data, (size_t)out->box.hi[0] * out->element_bytes, err);
}

static bool is_small(int members, size_t bytes)
{
	return bytes * (size_t)members <= (members > HSPMD_COMM_FEW_MEMBERS ? HSPMD_COMM_SMALL_OF_MANY : SMALL);
}

/* Of all tensors of `j` in one row. */
static int reduce_row(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err)
{
	struct row from = { 0 }, to = { 0 };
	struct hspmd_chain_members members = { j->step[0]->members, j->step[0]->member_count, j->self };
	size_t bytes = (size_t)row_elements(j) * j->in->element_bytes;
	if (!bytes)
		return 0;
	int rv = make_rows(c, j, &from, &to, err);
	if (!rv)
		rv = is_small(members.count, bytes)           ? reduce_small(c, &members, &from.part, &to.part, tag, err)
		     : members.count > HSPMD_COMM_FEW_MEMBERS ? reduce_by_chain(c, &members, &from.part, &to.part, tag, err)
		                                              : reduce_large(c, &members, &from.part, &to.part, tag, err);
	if (rv)
		return -1; /* the rows' buffers keep their users: messages may be in transit */
	if (!row_in_place(j, &j->out[0], &j->step[0]->out[j->self]))
		rv = copy_row(c, j, to.part.data, false, err);
	hspmd_comm_scratch_release(from.scratch);
	hspmd_comm_scratch_release(to.scratch);
	return rv;
}

/* The next tensors of `j`, from number `at` on, that are summed in one row; the same on all members. */
static struct hspmd_joint next_row(const struct hspmd_joint *j, int at)
{
	struct hspmd_joint row = { 0, j->step + at, j->in + at, j->out + at, j->self };
	int64_t bytes = 0;
	do {
		bytes += hspmd_box_elements(&j->step[at + row.count]->in[j->self]) * (int64_t)j->in->element_bytes;
		row.count++;
	} while (at + row.count < j->count &&
	         bytes + hspmd_box_elements(&j->step[at + row.count]->in[j->self]) * (int64_t)j->in->element_bytes <= ROW);
	return row;
}

int hspmd_comm_all_reduce(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err)
{
	for (int at = 0; at < j->count;) {
		struct hspmd_joint row = next_row(j, at);
		if (reduce_row(c, &row, tag, err))
			return -1;
		at += row.count;
	}
	return 0;
}

/* Scratch bytes for what is sent or received in messages: of all messages, or of the `window` largest. A message that is contiguous in the
 * part needs none unless it is an addend. Frees the pieces. */
static int64_t buffers_of(struct hspmd_pieces *p, const struct hspmd_local_buffer *part, size_t window, bool addends)
{
	size_t all = 0, most = 0;
	for (size_t m = 0; m < p->message_count; m++) {
		size_t bytes = addends || !hspmd_pieces_in_place(p, m, part) ? hspmd_comm_scratch_size(p->bytes[m]) : 0;
		all += bytes;
		most = bytes > most ? bytes : most;
	}
	hspmd_pieces_free(p);
	return (int64_t)(window && all > window * most ? window * most : all);
}

/* The same for the sums that member `owner` gets. -1 and err. */
static int64_t owner_buffers(const struct hspmd_joint *j, int owner, const struct hspmd_local_buffer *part, size_t window, bool addends,
                             struct hspmd_error *err)
{
	struct hspmd_pieces p = { 0 };
	if (!pieces_of_owner(j, owner, &p, err))
		return buffers_of(&p, part, window, addends);
	hspmd_pieces_free(&p);
	return -1;
}

static int64_t scatter_scratch(const struct hspmd_joint *j, struct hspmd_error *err)
{
	int n = j->step[0]->member_count;
	int64_t total = 0, most = 0;
	if (n > HSPMD_COMM_FEW_MEMBERS) {
		for (int i = 0; i < n; i++) {
			int64_t elements = 0;
			for (int k = 0; k < j->count; k++)
				elements += hspmd_box_elements(&j->step[k]->out[i]);
			most = elements > most ? elements : most;
		}
		total = owner_buffers(j, j->self, j->out, 0, false, err);
		return total < 0 ? -1 : total + hspmd_comm_chain_scratch(j->in->element_bytes, (size_t)most * j->in->element_bytes);
	}
	int64_t addends = owner_buffers(j, j->self, j->out, WINDOW, true, err), own = owner_buffers(j, j->self, j->in, 1, false, err),
	        sum = owner_buffers(j, j->self, j->out, 1, false, err);
	if (addends < 0 || own < 0 || sum < 0)
		return -1;
	total = (n - 1) * addends + own + sum;
	for (int to = 0; to < n; to++) {
		int64_t sent = to == j->self ? 0 : owner_buffers(j, to, j->in, 0, false, err);
		if (sent < 0)
			return -1;
		total += sent;
	}
	return total;
}

/* Of one row. */
static int64_t row_scratch(const struct hspmd_joint *j, struct hspmd_error *err)
{
	int n = j->step[0]->member_count;
	int64_t elements = row_elements(j);
	size_t bytes = (size_t)elements * j->in->element_bytes;
	struct hspmd_local_buffer row = j->in[0];
	struct hspmd_box mine = range(elements, n, j->self);
	struct hspmd_pieces p = { 0 };
	bool in_place = row_in_place(j, &j->in[0], &j->step[0]->in[j->self]) && row_in_place(j, &j->out[0], &j->step[0]->out[j->self]);
	int64_t total = in_place ? 0 : (int64_t)hspmd_comm_scratch_size(bytes);
	if (is_small(n, bytes))
		return total + (int64_t)hspmd_comm_scratch_size(bytes * (size_t)n);
	if (n > HSPMD_COMM_FEW_MEMBERS)
		return total + hspmd_comm_chain_scratch(j->in->element_bytes, bytes);
	row.box = (struct hspmd_box){ .rank = 1, .hi = { elements } };
	if (hspmd_pieces_of(&p, &mine, row.element_bytes, err)) {
		hspmd_pieces_free(&p);
		return -1;
	}
	return total + (n - 1) * buffers_of(&p, &row, WINDOW, true);
}

int64_t hspmd_comm_sum_scratch(const struct hspmd_joint *j, struct hspmd_error *err)
{
	int64_t most = 0;
	if (j->step[0]->kind != HSPMD_COMM_ALL_REDUCE)
		return scatter_scratch(j, err);
	for (int at = 0; at < j->count;) {
		struct hspmd_joint row = next_row(j, at);
		int64_t bytes = row_scratch(&row, err);
		if (bytes < 0)
			return -1;
		most = bytes > most ? bytes : most;
		at += row.count;
	}
	return most;
}
