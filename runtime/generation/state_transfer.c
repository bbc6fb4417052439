/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/generation/state_transfer.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/clock.h"

#define MOVE_TAG ((UINT64_C(1) << 44) - 512)
#define BUCKET_BYTES                                                                                                                       \
	((size_t)8 << 20) /* large enough for the full rate, small enough to overlap packing with sending; one slice may be larger */
#define ALONE_BYTES                                                                                                                        \
	((size_t)256 << 10) /* slices of at least this many bytes are separate messages: a message then costs little compared with copying \
	                       the slice */

/* Memory that a message reads or writes; the transport owns it after the message was abandoned. */
struct block {
	struct hspmd_deferred_free deferred;
	_Alignas(64) char data[];
};

/* One direction between this member and a peer: its moves in order, with one bucket in transit. */
struct channel {
	int peer;
	bool sending;
	size_t next, end; /* moves not yet started: indices into the plan; the moves of this pair are adjacent in it */
	size_t first;     /* first move of the bucket in transit */
	struct block *block;
	size_t capacity;
	char *data; /* of the message in transit: in the block, or the only slice itself */
	struct hspmd_request *request;
};

struct engine {
	struct hspmd_transport *transport;
	int self;
	const struct hspmd_planned_move *moves;
	const size_t *element_bytes;
	const struct hspmd_state_endpoint *end;
	struct hspmd_state_transfer_report *report;
	struct hspmd_error *err;
	struct channel *channels;
	size_t channel_count, channel_capacity;
	size_t local, local_end; /* moves within this member that are not done: indices into the plan */
};

static size_t move_bytes(const struct engine *e, size_t i)
{
	return (size_t)hspmd_box_elements(&e->moves[i].box) * e->element_bytes[e->moves[i].tensor];
}

/* Determine how many moves from `first` on go into one message; both sides compute the same. */
static size_t bucket_end(const struct engine *e, size_t first, size_t end, size_t *bytes)
{
	size_t i = first + 1;
	*bytes = move_bytes(e, first);
	if (*bytes >= ALONE_BYTES)
		return i;
	for (; i < end; i++) {
		size_t more = move_bytes(e, i);
		if (more >= ALONE_BYTES || *bytes + more > BUCKET_BYTES)
			break;
		*bytes += more;
	}
	return i;
}

static int reserve(struct engine *e, struct channel *c, size_t bytes)
{
	if (bytes <= c->capacity)
		return 0;
	struct block *larger = NULL; /* nothing in the old block is in transit */
	if (posix_memalign((void **)&larger, _Alignof(struct block), sizeof *larger + bytes))
		return hspmd_fail_memory(e->err, "moving state");
	free(c->block);
	c->block = larger;
	c->capacity = bytes;
	return 0;
}

/* Address of the only slice of a message if it is packed in memory; NULL otherwise. */
static char *packed_slice(const struct engine *e, const struct channel *c, size_t stop)
{
	const struct hspmd_planned_move *m = &e->moves[c->next];
	return e->end->place && stop == c->next + 1 ? e->end->place(e->end->context, m->tensor, &m->box, c->sending) : NULL;
}

static int pack(struct engine *e, struct channel *c, size_t stop, size_t bytes)
{
	size_t at = 0;
	if (reserve(e, c, bytes))
		return -1;
	c->data = c->block->data;
	for (size_t i = c->next; c->sending && i < stop; at += move_bytes(e, i++))
		if (e->end->get(e->end->context, e->moves[i].tensor, &e->moves[i].box, false, c->data + at, e->err))
			return -1;
	return 0;
}

static int start_bucket(struct engine *e, struct channel *c)
{
	size_t bytes, stop = bucket_end(e, c->next, c->end, &bytes);
	c->data = packed_slice(e, c, stop);
	if (!c->data && pack(e, c, stop, bytes))
		return -1;
	c->first = c->next;
	c->next = stop;
	const struct hspmd_transport_ops *ops = e->transport->ops;
	return c->sending ? ops->send(e->transport, c->peer, MOVE_TAG, c->data, bytes, &c->request, e->err)
	                  : ops->receive(e->transport, c->peer, MOVE_TAG, c->data, bytes, &c->request, e->err);
}

static int finish_bucket(struct engine *e, struct channel *c)
{
	bool packed = c->block && c->data == c->block->data;
	size_t at = 0;
	c->request = NULL;
	for (size_t i = c->first; i < c->next; at += move_bytes(e, i++))
		if (packed && !c->sending && e->end->put(e->end->context, e->moves[i].tensor, &e->moves[i].box, c->data + at, e->err))
			return -1;
	*(c->sending ? &e->report->bytes_sent : &e->report->bytes_received) += (int64_t)at;
	return 0;
}

static int copy_local(struct engine *e, size_t i)
{
	const struct hspmd_state_endpoint *end = e->end;
	const struct hspmd_planned_move *m = &e->moves[i];
	size_t bytes = move_bytes(e, i);
	e->report->bytes_local += (int64_t)bytes;
	int copied = end->copy ? end->copy(end->context, m->tensor, &m->box, e->err) : 0;
	if (copied)
		return copied < 0 ? -1 : 0;
	char *buffer = malloc(bytes + 1);
	if (!buffer)
		return hspmd_fail_memory(e->err, "moving state");
	int status = end->get(end->context, m->tensor, &m->box, true, buffer, e->err) ||
	                             end->put(end->context, m->tensor, &m->box, buffer, e->err)
	                     ? -1
	                     : 0;
	free(buffer);
	return status;
}

/* Check every channel once. `busy`: there is work left; `moved`: something was done. */
static int poll_channels(struct engine *e, bool *busy, bool *moved)
{
	*busy = *moved = false;
	if (e->channel_count)
		e->transport->ops->progress(e->transport);
	for (size_t k = 0; k < e->channel_count; k++) {
		struct channel *c = &e->channels[k];
		if (c->request) {
			int done = e->transport->ops->test(e->transport, c->request, e->err);
			if (done < 0) {
				c->request = NULL;
				return -1;
			}
			if (done && finish_bucket(e, c))
				return -1;
			*moved |= done > 0;
		}
		if (!c->request && c->next < c->end) {
			if (start_bucket(e, c))
				return -1;
			*moved = true;
		}
		*busy |= c->request != NULL;
	}
	return 0;
}

static int abandon(struct engine *e)
{
	size_t k = 0;
	while (k + 1 < e->channel_count && !e->channels[k].request)
		k++;
	const struct channel *c = &e->channels[k];
	char peer[80];
	return hspmd_fail(e->err, "moving state: waited %.3g s for %zu bytes %s %s, slices %zu to %zu of %zu",
	                  e->transport->options.timeout_s, c->request->bytes, c->sending ? "to" : "from",
	                  hspmd_transport_peer(e->transport, c->peer, peer, sizeof peer), c->first, c->next - 1, c->end);
}

/* Copies within this member run while messages are in transit. */
static int run_channels(struct engine *e)
{
	bool busy = true, moved;
	double since = hspmd_now();
	while (busy) {
		if (e->transport && hspmd_transport_aborted(e->transport))
			return hspmd_fail(e->err, "moving state was aborted");
		if (poll_channels(e, &busy, &moved))
			return hspmd_error_prefix(e->err, "moving state");
		if (e->local < e->local_end) {
			if (copy_local(e, e->local++))
				return -1;
			busy = moved = true;
		}
		if (moved)
			since = hspmd_now();
		else if (busy && hspmd_now() - since > e->transport->options.timeout_s)
			return abandon(e);
		else if (busy)
			e->transport->ops->block(e->transport, 0.01);
	}
	return 0;
}

static int add_channel(struct engine *e, int peer, bool sending, size_t first, size_t end)
{
	if (!e->transport)
		return hspmd_fail(e->err, "state is expected from member %d, but this generation has one member", peer);
	if (hspmd_array_grow(&e->channels, &e->channel_capacity, e->channel_count, sizeof *e->channels))
		return hspmd_fail_memory(e->err, "moving state");
	e->channels[e->channel_count++] = (struct channel){ .peer = peer, .sending = sending, .next = first, .end = end };
	return 0;
}

int hspmd_state_transfer_run(struct hspmd_transport *transport, int self, const struct hspmd_planned_move *moves, size_t count,
                             const size_t *element_bytes, const struct hspmd_state_endpoint *end,
                             struct hspmd_state_transfer_report *report, struct hspmd_error *err)
{
	struct engine e = {
		.transport = transport,
		.self = self,
		.moves = moves,
		.element_bytes = element_bytes,
		.end = end,
		.report = report,
		.err = err,
	};
	int status = 0;
	for (size_t i = 0, stop; !status && i < count; i = stop) { /* the plan is ordered by (from, to) */
		for (stop = i + 1; stop < count && moves[stop].from == moves[i].from && moves[stop].to == moves[i].to;)
			stop++;
		if (moves[i].from == self && moves[i].to == self)
			e.local = i, e.local_end = stop;
		else if (moves[i].from == self)
			status = add_channel(&e, moves[i].to, true, i, stop);
		else if (moves[i].to == self)
			status = add_channel(&e, moves[i].from, false, i, stop);
	}
	if (!status)
		status = run_channels(&e);
	for (size_t k = 0; k < e.channel_count; k++)
		if (e.channels[k].request && e.channels[k].block) /* abandoned: it may still be written until the transport is closed */
			hspmd_transport_free_on_close(transport, &e.channels[k].block->deferred);
		else
			free(e.channels[k].block);
	free(e.channels);
	return status;
}
