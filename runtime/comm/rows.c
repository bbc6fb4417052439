/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine between devices that compute in host memory (rows_internal.h). */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/rows_internal.h"

#define WINDOW 4 /* blocks that are received into buffers at a time */

/* A block that this device gets, and who sends its rows: the copies, or addends of them. */
struct incoming {
	struct block block;
	int sender_count;
	int *sender;                    /* members, ascending by device; this device may be one */
	struct hspmd_request **request; /* per sender */
	struct hspmd_scratch *scratch;  /* of all messages, one behind the other; NULL: nothing comes */
};

static char *row_at(const struct rows *r, const struct hspmd_local_buffer *part, const struct hspmd_box *box, int64_t row)
{
	return part->data + hspmd_rows_offset(r, part, box, row);
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
		if (!hspmd_rows_chose(r, b->box, b->first + i, experts))
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
		int to = hspmd_rows_member(r, moves[(first + k) % n]->to);
		size_t bytes = pack(r, b, hspmd_rows_chosen_by(r, r->self, to), at);
		rv = bytes ? hspmd_comm_send(r->c, r->step->members[to], r->tag, at, bytes, s, err) : 0;
		at += bytes;
	}
	hspmd_comm_scratch_release(s);
	return rv;
}

static int send_all(struct rows *r, struct hspmd_error *err)
{
	int count, rv = 0;
	const struct hspmd_move **list = hspmd_rows_moves(r, true, &count);
	if (!list)
		return hspmd_fail_memory(err, "choosing rows");
	for (int i = 0, n; !rv && i < count; i += n) {
		struct block b;
		n = hspmd_rows_same_box(list + i, count - i);
		for (int64_t k = 0; !rv && hspmd_rows_block(r, &list[i]->box, k, &b); k++)
			rv = send_block(r, &b, list + i, n, err);
	}
	free(list);
	return rv;
}

/* ---- receiving */

/* Bytes that come of a block from its sender number s. */
static size_t coming_bytes(const struct rows *r, const struct incoming *in, int s)
{
	int64_t n = in->sender[s] == r->self ? 0 : hspmd_rows_count(r, &in->block, in->sender[s], r->self);
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
			if (!hspmd_rows_chose(r, in->block.box, row, hspmd_rows_chosen_by(r, in->sender[s], r->self)))
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
		n = hspmd_rows_same_box(here + i, count - i);
		for (int k = i; k < i + n; k++)
			next.sender[next.sender_count++] = hspmd_rows_member(r, here[k]->from);
		for (int64_t k = 0; hspmd_rows_block(r, &here[i]->box, k, &next.block); k++) {
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
	struct rows r = { .c = c, .step = step, .self = self, .in = in, .out = out, .choice = choice, .tag = tag };
	size_t members = (size_t)step->member_count;
	struct inbox box = { 0 };
	int count = 0, rv = -1;
	hspmd_rows_measure(&r, transfer);
	if (!choice || !choice->data || !knows_choice(&r))
		return hspmd_fail(err, "the choice of experts is not known of all rows");
	if (!c->dev->ops->host_memory)
		return hspmd_rows_exchange_on_device(&r, err);
	const struct hspmd_move **here = hspmd_rows_moves(&r, false, &count);
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
	for (int64_t k = 0; n > 0 && (!window || k < window) && hspmd_rows_block(r, box, k, &b); k++)
		bytes += (int64_t)hspmd_comm_scratch_size(most_bytes(r, &b, n, by_others));
	return bytes;
}

int64_t hspmd_comm_rows_scratch(const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, int self,
                                struct hspmd_error *err)
{
	struct rows r = { .step = step, .self = self };
	int64_t bytes = 0, received = 0;
	hspmd_rows_measure(&r, transfer);
	for (int outgoing = 0; outgoing < 2; outgoing++) {
		int count;
		const struct hspmd_move **list = hspmd_rows_moves(&r, outgoing, &count);
		if (!list)
			return hspmd_fail_memory(err, "choosing rows");
		for (int i = 0, n; i < count; i += n) {
			int others = 0;
			n = hspmd_rows_same_box(list + i, count - i);
			for (int k = i; k < i + n; k++)
				others += list[k]->from != list[k]->to;
			bool by_others = (step->kind == HSPMD_COMM_DISPATCH) == (outgoing == 1);
			*(outgoing ? &bytes : &received) += box_scratch(&r, &list[i]->box, others, by_others, outgoing ? 0 : WINDOW);
		}
		free(list);
	}
	return bytes + received;
}
