/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine of devices whose memory the host cannot read. The host waits for the choice, which tells it the lengths of all
 * messages; the device packs the rows, and sums what comes. Messages go directly between the devices if all members can, else, cut into the
 * same blocks as everywhere, through host memory. */
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/devcomm_internal.h"
#include "runtime/comm/rows_internal.h"

struct exchange_rows {
	struct rows *r;
	const struct hspmd_move **out, **here; /* by place, then by device */
	int out_count, here_count;
	int64_t *send_rows, *come_rows; /* per member: all rows to it, and from it */
	char *packed, *came;            /* on the device: rows of one member behind those of another; NULL: none */
	/* lists for the device's sum_rows */
	void **to;
	int64_t *first, count;
	const void **from;
	int64_t from_count;
};

/* The moves to or from one member, block by block. */
struct cursor {
	const struct hspmd_move **list;
	int count, at;
	int64_t number;
};

/* The next block of a list that goes to or comes from `device`; false: there is none. */
static bool next_block(const struct rows *r, struct cursor *c, int device, bool outgoing, struct block *b)
{
	for (; c->at < c->count; c->at++, c->number = 0) {
		const struct hspmd_move *m = c->list[c->at];
		if ((outgoing ? m->to : m->from) == device && hspmd_rows_block(r, &m->box, c->number, b)) {
			c->number++;
			return true;
		}
	}
	return false;
}

static int64_t count_rows(struct exchange_rows *e, int member, bool outgoing)
{
	const struct rows *r = e->r;
	struct cursor c = { outgoing ? e->out : e->here, outgoing ? e->out_count : e->here_count, 0, 0 };
	struct block b;
	int64_t n = 0;
	while (next_block(r, &c, r->step->members[member], outgoing, &b))
		n += outgoing ? hspmd_rows_count(r, &b, r->self, member) : hspmd_rows_count(r, &b, member, r->self);
	return n;
}

/* The choice, in host memory. NULL: an error. */
static int32_t *fetch_choice(struct rows *r, struct hspmd_error *err)
{
	size_t bytes = (size_t)hspmd_box_elements(&r->choice->box) * sizeof(int32_t);
	int32_t *host = hspmd_calloc(1, bytes + 1);
	if (!host) {
		hspmd_fail_memory(err, "choosing rows");
		return NULL;
	}
	if (hspmd_comm_stream_wait(r->c, r->choice->data, bytes, err) ||
	    r->c->dev->ops->to_host(r->c->dev, host, r->choice->data, bytes, err)) {
		free(host);
		return NULL;
	}
	return host;
}

/* ---- on the device */

static int run_list(struct exchange_rows *e, struct hspmd_error *err)
{
	const struct rows *r = e->r;
	e->first[e->count] = e->from_count;
	return r->c->dev->ops->sum_rows(r->c->dev, e->to, e->first, e->from, e->count, (int64_t)(r->row_bytes / r->in->element_bytes),
	                                r->out->dtype, err);
}

static void begin_row(struct exchange_rows *e, void *to)
{
	e->to[e->count] = to;
	e->first[e->count++] = e->from_count;
}

static int pack(struct exchange_rows *e, struct hspmd_error *err)
{
	const struct rows *r = e->r;
	char *at = e->packed;
	e->count = e->from_count = 0;
	for (int m = 0; m < r->step->member_count; m++) {
		struct cursor c = { e->out, e->out_count, 0, 0 };
		struct block b;
		while (m != r->self && next_block(r, &c, r->step->members[m], true, &b))
			for (int64_t i = b.first; i < b.first + b.count; i++) {
				if (!hspmd_rows_chose(r, b.box, i, hspmd_rows_chosen_by(r, r->self, m)))
					continue;
				begin_row(e, at);
				e->from[e->from_count++] = r->in->data + hspmd_rows_offset(r, r->in, b.box, i);
				at += r->row_bytes;
			}
	}
	return e->count ? run_list(e, err) : 0;
}

/* One row of a box that comes from `count` members: what is there for it. next: per member, its next row that came. */
static void list_row(struct exchange_rows *e, const struct hspmd_move *const *moves, int count, int64_t row, const char **next)
{
	const struct rows *r = e->r;
	const struct hspmd_box *box = &moves[0]->box;
	int64_t before = e->from_count;
	begin_row(e, r->out->data + hspmd_rows_offset(r, r->out, box, row));
	for (int k = 0; k < count; k++) {
		int m = hspmd_rows_member(r, moves[k]->from);
		if (!hspmd_rows_chose(r, box, row, hspmd_rows_chosen_by(r, m, r->self)))
			continue;
		e->from[e->from_count++] = m == r->self ? r->in->data + hspmd_rows_offset(r, r->in, box, row) : next[m];
		next[m] += m == r->self ? 0 : r->row_bytes;
	}
	if (e->from_count == before && r->step->kind == HSPMD_COMM_DISPATCH)
		e->count--; /* nobody reads it */
}

static int unpack(struct exchange_rows *e, const char **next, struct hspmd_error *err)
{
	const struct rows *r = e->r;
	const char *at = e->came;
	e->count = e->from_count = 0;
	for (int m = 0; m < r->step->member_count; m++) {
		next[m] = at;
		at += m == r->self ? 0 : (size_t)e->come_rows[m] * r->row_bytes;
	}
	for (int i = 0, n; i < e->here_count; i += n) {
		n = hspmd_rows_same_box(e->here + i, e->here_count - i);
		for (int64_t row = 0; row < hspmd_rows_of(&e->here[i]->box); row++)
			list_row(e, e->here + i, n, row, next);
	}
	return e->count ? run_list(e, err) : 0;
}

/* ---- through host memory */

static int send_through_host(struct exchange_rows *e, int64_t total, struct hspmd_error *err)
{
	struct rows *r = e->r;
	size_t bytes = (size_t)total * r->row_bytes;
	struct hspmd_scratch *s = bytes ? hspmd_comm_scratch_acquire(r->c, bytes, err) : NULL;
	if (!bytes)
		return 0;
	int rv = s ? r->c->dev->ops->to_host(r->c->dev, s->data, e->packed, bytes, err) : -1;
	char *at = s ? s->data : NULL;
	for (int m = 0; !rv && m < r->step->member_count; m++) {
		struct cursor c = { e->out, e->out_count, 0, 0 };
		struct block b;
		while (!rv && m != r->self && next_block(r, &c, r->step->members[m], true, &b)) {
			size_t one = (size_t)hspmd_rows_count(r, &b, r->self, m) * r->row_bytes;
			rv = one ? hspmd_comm_send(r->c, r->step->members[m], r->tag, at, one, s, err) : 0;
			at += one;
		}
	}
	hspmd_comm_scratch_release(s);
	return rv;
}

/* Posts the receives of all messages, to host memory. request: room for all. */
static int post_all(struct exchange_rows *e, char *at, struct hspmd_request **request, int *posted, struct hspmd_error *err)
{
	struct rows *r = e->r;
	for (int m = 0; m < r->step->member_count; m++) {
		struct cursor c = { e->here, e->here_count, 0, 0 };
		struct block b;
		while (m != r->self && next_block(r, &c, r->step->members[m], false, &b)) {
			size_t one = (size_t)hspmd_rows_count(r, &b, m, r->self) * r->row_bytes;
			if (one && hspmd_comm_receive(r->c, r->step->members[m], r->tag, at, one, &request[(*posted)++], err))
				return -1;
			at += one;
		}
	}
	return 0;
}

static int through_host(struct exchange_rows *e, int64_t send, int64_t come, struct hspmd_error *err)
{
	struct rows *r = e->r;
	size_t bytes = (size_t)come * r->row_bytes, blocks = 0;
	for (int i = 0; i < e->here_count; i++)
		blocks += (size_t)(hspmd_rows_of(&e->here[i]->box) / r->per_block) + 1;
	struct hspmd_request **request = hspmd_calloc(blocks + 1, sizeof *request);
	struct hspmd_scratch *s = request && bytes ? hspmd_comm_scratch_acquire(r->c, bytes, err) : NULL;
	int posted = 0, rv = request ? 0 : hspmd_fail_memory(err, "choosing rows");
	if (!rv && bytes)
		rv = s ? post_all(e, s->data, request, &posted, err) : -1;
	if (!rv)
		rv = send_through_host(e, send, err);
	if (!rv)
		rv = hspmd_transport_wait(r->c->transport, request, posted, err);
	if (!rv && bytes)
		rv = r->c->dev->ops->to_device(r->c->dev, e->came, s->data, bytes, err);
	if (!rv)
		hspmd_comm_scratch_release(s); /* after a failure, messages may be in transit */
	free(request);
	return rv;
}

/* ---- all */

static int64_t total_of(const struct exchange_rows *e, const int64_t *rows)
{
	int64_t n = 0;
	for (int m = 0; m < e->r->step->member_count; m++)
		n += m == e->r->self ? 0 : rows[m];
	return n;
}

/* Counts what goes and comes, and makes room for it: on the device at most every row once per expert that it chooses. */
static int prepare(struct exchange_rows *e, struct hspmd_error *err)
{
	struct rows *r = e->r;
	int64_t held = 0;
	for (int m = 0; m < r->step->member_count; m++) {
		e->send_rows[m] = count_rows(e, m, true);
		e->come_rows[m] = count_rows(e, m, false);
		held += e->come_rows[m];
	}
	int64_t send = total_of(e, e->send_rows), come = total_of(e, e->come_rows), rows = send;
	for (int i = 0, n; i < e->here_count; i += n) {
		n = hspmd_rows_same_box(e->here + i, e->here_count - i);
		rows += hspmd_rows_of(&e->here[i]->box);
	}
	e->to = hspmd_calloc((size_t)rows + 1, sizeof *e->to);
	e->first = hspmd_calloc((size_t)rows + 2, sizeof *e->first);
	e->from = hspmd_calloc((size_t)(held > send ? held : send) + 1, sizeof *e->from);
	if (!e->to || !e->first || !e->from)
		return hspmd_fail_memory(err, "choosing rows");
	size_t bytes = (size_t)(send + come) * r->row_bytes;
	if (bytes && hspmd_comm_need_device_scratch(r->c, bytes, err))
		return -1;
	e->packed = r->c->device_scratch;
	e->came = e->packed + (size_t)send * r->row_bytes;
	return 0;
}

static int run(struct exchange_rows *e, struct hspmd_error *err)
{
	struct rows *r = e->r;
	size_t members = (size_t)r->step->member_count, row = r->row_bytes / r->in->element_bytes;
	e->out = hspmd_rows_moves(r, true, &e->out_count);
	e->here = hspmd_rows_moves(r, false, &e->here_count);
	e->send_rows = hspmd_calloc(members, sizeof *e->send_rows);
	e->come_rows = hspmd_calloc(members, sizeof *e->come_rows);
	const char **next = hspmd_calloc(members, sizeof *next);
	int rv = e->out && e->here && e->send_rows && e->come_rows && next ? prepare(e, err) : hspmd_fail_memory(err, "choosing rows");
	if (!rv)
		rv = pack(e, err);
	struct hspmd_devcomm *d = r->c->devcomm;
	int direct =
	        rv || !d ? 0 : hspmd_devcomm_exchange(d, r->step, e->packed, e->send_rows, e->came, e->come_rows, row, r->out->dtype, err);
	if (!rv)
		rv = direct < 0 ? -1 : direct ? 0 : through_host(e, total_of(e, e->send_rows), total_of(e, e->come_rows), err);
	if (!rv)
		rv = unpack(e, next, err);
	free(next);
	return rv;
}

int hspmd_rows_exchange_on_device(struct rows *r, struct hspmd_error *err)
{
	struct exchange_rows e = { .r = r };
	struct hspmd_row_choice known = *r->choice;
	if (!r->c->dev->ops->sum_rows)
		return hspmd_fail(err, "the device cannot choose rows");
	int32_t *choice = fetch_choice(r, err);
	if (!choice)
		return -1;
	known.data = choice;
	r->choice = &known;
	int rv = run(&e, err);
	free(e.out);
	free(e.here);
	free(e.send_rows);
	free(e.come_rows);
	free(e.to);
	free(e.first);
	free(e.from);
	free(choice);
	return rv;
}
