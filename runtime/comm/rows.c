/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine: only the rows of a box that chose one of some experts travel. Both sides of a message count them in the choice,
 * which both hold, so that no message says how long the next one is. A box is cut into blocks of rows, of each of which at most one message
 * goes from one device to another: in the order of the boxes, then of the blocks. The receiver sums a row's addends in the order of their
 * senders, in F32 for BF16. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/comm_internal.h"

#define WINDOW 4 /* blocks that are received into buffers at a time */

struct rows {
	struct hspmd_comm *c;
	const struct hspmd_comm_step *step;
	int self; /* among the members */
	const struct hspmd_local_buffer *in, *out;
	const struct hspmd_row_choice *choice;
	uint64_t tag;
	size_t row_bytes;
	int64_t per_block; /* rows of a block */
};

/* Rows [first, first + count) of a box, counted through its leading dimensions. */
struct block {
	const struct hspmd_box *box;
	int64_t first, count;
};

/* A block that this device gets, and who sends its rows: the copies, or addends of them. */
struct incoming {
	struct block block;
	int sender_count;
	int *sender;                    /* members, ascending by device; this device may be one */
	struct hspmd_request **request; /* per sender */
	struct hspmd_scratch *scratch;  /* of all messages, one behind the other; NULL: nothing comes */
};

/* ---- rows */

static int64_t rows_of(const struct hspmd_box *box)
{
	int64_t rows = 1;
	for (int d = 0; d < box->rank - 1; d++)
		rows *= box->hi[d] - box->lo[d];
	return rows;
}

/* The number of a row of `box` among those of `within`. */
static int64_t row_within(const struct hspmd_box *box, int64_t row, const struct hspmd_box *within)
{
	int64_t at = 0, stride = 1;
	for (int d = box->rank - 2; d >= 0; d--) {
		int64_t size = box->hi[d] - box->lo[d];
		at += (box->lo[d] + row % size - within->lo[d]) * stride;
		stride *= within->hi[d] - within->lo[d];
		row /= size;
	}
	return at;
}

/* Returns true if a row of a box chose one of these experts. */
static bool chose(const struct rows *r, const struct hspmd_box *box, int64_t row, const struct hspmd_expert_range *experts)
{
	const struct hspmd_box *known = &r->choice->box;
	int64_t per_token = known->hi[known->rank - 1] - known->lo[known->rank - 1];
	const int32_t *choice = r->choice->data + row_within(box, row, known) * per_token;
	for (int64_t k = 0; k < per_token; k++)
		if (choice[k] >= experts->lo && choice[k] < experts->hi)
			return true;
	return false;
}

static char *row_at(const struct rows *r, const struct hspmd_local_buffer *part, const struct hspmd_box *box, int64_t row)
{
	return part->data + (size_t)row_within(box, row, &part->box) * r->row_bytes;
}

static int member_of(const struct rows *r, int device)
{
	int m = 0;
	while (m < r->step->member_count && r->step->members[m] != device)
		m++;
	return m;
}

/* The experts by which rows are chosen that go from one member to another. */
static const struct hspmd_expert_range *chosen_by(const struct rows *r, int from, int to)
{
	return &r->step->experts[r->step->kind == HSPMD_COMM_DISPATCH ? to : from];
}

/* ---- lists of moves */

static int peer_of(const struct rows *r, const struct hspmd_move *m)
{
	return m->from == r->step->members[r->self] ? m->to : m->from;
}

static int place_order(const void *a, const void *b, void *rows)
{
	const struct hspmd_move *x = *(const struct hspmd_move *const *)a, *y = *(const struct hspmd_move *const *)b;
	for (int d = 0; d < x->box.rank; d++)
		if (x->box.lo[d] != y->box.lo[d])
			return x->box.lo[d] < y->box.lo[d] ? -1 : 1;
	int p = peer_of(rows, x), q = peer_of(rows, y);
	return (p > q) - (p < q);
}

/* The moves from this device to others, or those to this device, by place, then by the other device. The caller frees it. NULL: memory. */
static const struct hspmd_move **list_moves(struct rows *r, bool outgoing, int *count)
{
	int device = r->step->members[r->self];
	const struct hspmd_move **list = hspmd_calloc((size_t)r->step->move_count + 1, sizeof *list);
	*count = 0;
	for (int i = 0; list && i < r->step->move_count; i++) {
		const struct hspmd_move *m = &r->step->moves[i];
		if (outgoing ? m->from == device && m->to != device : m->to == device)
			list[(*count)++] = m;
	}
	if (list)
		qsort_r(list, (size_t)*count, sizeof *list, place_order, r);
	return list;
}

/* The number of moves at the start of a list that are of the first one's box. */
static int same_box(const struct hspmd_move *const *list, int count)
{
	int n = 1;
	while (n < count && hspmd_box_equal(&list[n]->box, &list[0]->box))
		n++;
	return n;
}

/* Block `number` of a box; false: there is none. */
static bool block_of(const struct rows *r, const struct hspmd_box *box, int64_t number, struct block *b)
{
	int64_t first = number * r->per_block, left = rows_of(box) - first;
	*b = (struct block){ box, first, left < r->per_block ? left : r->per_block };
	return left > 0;
}

/* The most bytes of a block's messages to or from n other devices: a row chooses experts of only so many as it chooses experts. */
static size_t most_bytes(const struct rows *r, const struct block *b, int n, bool by_others)
{
	int copies = by_others && n > r->step->per_token ? r->step->per_token : n;
	return (size_t)copies * (size_t)b->count * r->row_bytes;
}

/* ---- sending */

static size_t pack(const struct rows *r, const struct block *b, const struct hspmd_expert_range *experts, char *to)
{
	size_t bytes = 0;
	for (int64_t i = 0; i < b->count; i++) {
		if (!chose(r, b->box, b->first + i, experts))
			continue;
		memcpy(to + bytes, row_at(r, r->in, b->box, b->first + i), r->row_bytes);
		bytes += r->row_bytes;
	}
	return bytes;
}

/* The messages of one block, beginning with that to the device after this one, so that not all send to the same one at once. */
static int send_block(struct rows *r, const struct block *b, const struct hspmd_move *const *moves, int n, struct hspmd_error *err)
{
	struct hspmd_scratch *s = hspmd_comm_scratch_acquire(r->c, most_bytes(r, b, n, r->step->kind == HSPMD_COMM_DISPATCH), err);
	int first = 0, rv = s ? 0 : -1;
	while (first < n && moves[first]->to < r->step->members[r->self])
		first++;
	char *at = s ? s->data : NULL;
	for (int k = 0; !rv && k < n; k++) {
		int to = member_of(r, moves[(first + k) % n]->to);
		size_t bytes = pack(r, b, chosen_by(r, r->self, to), at);
		rv = bytes ? hspmd_comm_send(r->c, r->step->members[to], r->tag, at, bytes, s, err) : 0;
		at += bytes;
	}
	hspmd_comm_scratch_release(s);
	return rv;
}

static int send_all(struct rows *r, struct hspmd_error *err)
{
	int count, rv = 0;
	const struct hspmd_move **list = list_moves(r, true, &count);
	if (!list)
		return hspmd_fail_memory(err, "choosing rows");
	for (int i = 0, n; !rv && i < count; i += n) {
		struct block b;
		n = same_box(list + i, count - i);
		for (int64_t k = 0; !rv && block_of(r, &list[i]->box, k, &b); k++)
			rv = send_block(r, &b, list + i, n, err);
	}
	free(list);
	return rv;
}

/* ---- receiving */

/* Bytes that come of a block from its sender number s. */
static size_t coming_bytes(const struct rows *r, const struct incoming *in, int s)
{
	const struct hspmd_expert_range *experts = chosen_by(r, in->sender[s], r->self);
	int64_t n = 0;
	for (int64_t i = 0; in->sender[s] != r->self && i < in->block.count; i++)
		n += chose(r, in->block.box, in->block.first + i, experts);
	return (size_t)n * r->row_bytes;
}

static int post(struct rows *r, struct incoming *in, struct hspmd_error *err)
{
	int others = 0;
	for (int s = 0; s < in->sender_count; s++)
		others += in->sender[s] != r->self;
	in->scratch = NULL;
	memset(in->request, 0, (size_t)in->sender_count * sizeof *in->request);
	if (!others)
		return 0;
	in->scratch = hspmd_comm_scratch_acquire(r->c, most_bytes(r, &in->block, others, r->step->kind == HSPMD_COMM_COMBINE), err);
	if (!in->scratch)
		return -1;
	char *at = in->scratch->data;
	for (int s = 0; s < in->sender_count; s++) {
		size_t bytes = coming_bytes(r, in, s);
		if (bytes && hspmd_comm_receive(r->c, r->step->members[in->sender[s]], r->tag, at, bytes, &in->request[s], err))
			return -1;
		at += bytes;
	}
	return 0;
}

/* Writes the rows of a block whose messages have come. source, from: one per sender. */
static void unpack(const struct rows *r, const struct incoming *in, const void **source, const char **from)
{
	const char *at = in->scratch ? in->scratch->data : NULL;
	for (int s = 0; s < in->sender_count; s++) {
		from[s] = at;
		at += coming_bytes(r, in, s);
	}
	for (int64_t i = 0; i < in->block.count; i++) {
		int64_t row = in->block.first + i;
		int sources = 0;
		for (int s = 0; s < in->sender_count; s++) {
			if (!chose(r, in->block.box, row, chosen_by(r, in->sender[s], r->self)))
				continue;
			bool own = in->sender[s] == r->self;
			source[sources++] = own ? row_at(r, r->in, in->block.box, row) : from[s];
			from[s] += own ? 0 : r->row_bytes;
		}
		char *to = row_at(r, r->out, in->block.box, row);
		if (sources)
			hspmd_comm_add(r->out->dtype, to, source, sources, r->row_bytes / r->out->element_bytes);
		else if (r->step->kind == HSPMD_COMM_COMBINE)
			memset(to, 0, r->row_bytes);
	}
}

struct inbox {
	struct incoming *list;
	size_t count, capacity;
	int *senders;                    /* of all boxes */
	struct hspmd_request **requests; /* [WINDOW][members] */
	const void **source;             /* [members] */
	const char **from;               /* [members] */
};

/* Lists the blocks that come. */
static int list_incoming(const struct rows *r, const struct hspmd_move *const *here, int count, struct inbox *box)
{
	for (int i = 0, n; i < count; i += n) {
		struct incoming next = { .sender = box->senders + i };
		n = same_box(here + i, count - i);
		for (int k = i; k < i + n; k++)
			next.sender[next.sender_count++] = member_of(r, here[k]->from);
		for (int64_t k = 0; block_of(r, &here[i]->box, k, &next.block); k++) {
			if (hspmd_array_grow(&box->list, &box->capacity, box->count, sizeof *box->list))
				return -1;
			next.request = box->requests + box->count % WINDOW * (size_t)r->step->member_count;
			box->list[box->count++] = next;
		}
	}
	return 0;
}

static int finish(struct rows *r, struct incoming *in, struct inbox *box, struct hspmd_error *err)
{
	if (hspmd_transport_wait(r->c->transport, in->request, in->sender_count, err))
		return -1;
	unpack(r, in, box->source, box->from);
	hspmd_comm_scratch_release(in->scratch);
	return 0;
}

/* Posts the first receives, sends, and writes what comes. After a failure, buffers of pending receives keep their user, so that they are
 * not reused. */
static int exchange(struct rows *r, struct inbox *box, struct hspmd_error *err)
{
	for (size_t b = 0; b < WINDOW && b < box->count; b++)
		if (post(r, &box->list[b], err))
			return -1;
	if (send_all(r, err))
		return -1;
	for (size_t b = 0; b < box->count; b++)
		if (finish(r, &box->list[b], box, err) || (b + WINDOW < box->count && post(r, &box->list[b + WINDOW], err)))
			return -1;
	return 0;
}

static int64_t rows_per_block(size_t row_bytes)
{
	return row_bytes < HSPMD_COMM_MESSAGE ? (int64_t)(HSPMD_COMM_MESSAGE / row_bytes) : 1;
}

static size_t bytes_of_row(const struct hspmd_transfer *t)
{
	return (size_t)t->shape.dim[t->shape.rank - 1] * t->element_bytes;
}

/* Returns true if the choice of all rows that this device sends or gets is known. */
static bool knows_choice(const struct rows *r)
{
	int device = r->step->members[r->self];
	const struct hspmd_box *known = &r->choice->box;
	for (int i = 0; i < r->step->move_count; i++) {
		const struct hspmd_move *m = &r->step->moves[i];
		for (int d = 0; (m->from == device || m->to == device) && d < m->box.rank - 1; d++)
			if (known->rank != m->box.rank || m->box.lo[d] < known->lo[d] || m->box.hi[d] > known->hi[d])
				return false;
	}
	return true;
}

int hspmd_comm_exchange_rows(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, int self,
                             const struct hspmd_local_buffer *in, const struct hspmd_local_buffer *out,
                             const struct hspmd_row_choice *choice, uint64_t tag, struct hspmd_error *err)
{
	struct rows r = { c, step, self, in, out, choice, tag, bytes_of_row(transfer), rows_per_block(bytes_of_row(transfer)) };
	size_t members = (size_t)step->member_count;
	struct inbox box = { 0 };
	int count = 0, rv = -1;
	if (!choice || !choice->data || !knows_choice(&r))
		return hspmd_fail(err, "the choice of experts is not known of all rows");
	if (!c->dev->ops->host_memory)
		return hspmd_fail(err, "the device's memory cannot be read to choose rows");
	const struct hspmd_move **here = list_moves(&r, false, &count);
	box.senders = hspmd_calloc((size_t)count + 1, sizeof *box.senders);
	box.requests = hspmd_calloc(WINDOW * members, sizeof *box.requests);
	box.source = hspmd_calloc(members, sizeof *box.source);
	box.from = hspmd_calloc(members, sizeof *box.from);
	if (here && box.senders && box.requests && box.source && box.from && !list_incoming(&r, here, count, &box))
		rv = exchange(&r, &box, err);
	else
		hspmd_fail_memory(err, "choosing rows");
	free(here);
	free(box.list);
	free(box.senders);
	free(box.requests);
	free(box.source);
	free(box.from);
	return rv;
}

/* Scratch bytes of the blocks of a box that go to, or come from, n other devices: of all, or of the `window` largest. */
static int64_t box_scratch(const struct rows *r, const struct hspmd_box *box, int n, bool by_others, int64_t window)
{
	struct block b;
	int64_t bytes = 0;
	for (int64_t k = 0; n > 0 && (!window || k < window) && block_of(r, box, k, &b); k++)
		bytes += (int64_t)hspmd_comm_scratch_size(most_bytes(r, &b, n, by_others));
	return bytes;
}

int64_t hspmd_comm_rows_scratch(const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, int self,
                                struct hspmd_error *err)
{
	struct rows r = {
		.step = step, .self = self, .row_bytes = bytes_of_row(transfer), .per_block = rows_per_block(bytes_of_row(transfer))
	};
	int64_t bytes = 0, received = 0;
	for (int outgoing = 0; outgoing < 2; outgoing++) {
		int count;
		const struct hspmd_move **list = list_moves(&r, outgoing, &count);
		if (!list)
			return hspmd_fail_memory(err, "choosing rows");
		for (int i = 0, n; i < count; i += n) {
			int others = 0;
			n = same_box(list + i, count - i);
			for (int k = i; k < i + n; k++)
				others += list[k]->from != list[k]->to;
			bool by_others = (step->kind == HSPMD_COMM_DISPATCH) == (outgoing == 1);
			*(outgoing ? &bytes : &received) += box_scratch(&r, &list[i]->box, others, by_others, outgoing ? 0 : WINDOW);
		}
		free(list);
	}
	return bytes + received;
}
