/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/comm/devcomm_internal.h"

struct hspmd_comm *hspmd_comm_create(struct hspmd_device *dev, struct hspmd_transport *transport, const int *rank_of, int count, int self,
                                     struct hspmd_error *err)
{
	if (self < 0 || self >= count || rank_of[self] != transport->options.rank) {
		hspmd_fail(err, "communication: device %d of %d is not rank %d", self, count, transport->options.rank);
		return NULL;
	}
	struct hspmd_comm *c = hspmd_calloc(1, sizeof *c);
	if (c)
		c->rank_of = hspmd_calloc((size_t)count, sizeof *c->rank_of);
	if (!c || !c->rank_of) {
		free(c);
		hspmd_fail_memory(err, "preparing communication");
		return NULL;
	}
	memcpy(c->rank_of, rank_of, (size_t)count * sizeof *c->rank_of);
	c->dev = dev;
	c->transport = transport;
	c->count = count;
	c->self = self;
	return c;
}

void hspmd_comm_use_devcomm(struct hspmd_comm *c, struct hspmd_devcomm *devcomm)
{
	c->devcomm = devcomm;
}

uint64_t hspmd_comm_sent_bytes(const struct hspmd_comm *c)
{
	return atomic_load_explicit(&c->sent_bytes, memory_order_relaxed) +
	       (c->devcomm ? atomic_load_explicit(&c->devcomm->sent_bytes, memory_order_relaxed) : 0);
}

void hspmd_comm_destroy(struct hspmd_comm *c)
{
	if (!c)
		return;
	hspmd_comm_drop_early(c);
	if (c->device_scratch)
		c->dev->ops->release(c->dev, c->device_scratch);
	while (c->pool) {
		struct hspmd_scratch *next = c->pool->next;
		/* An abandoned message may still read or write it. */
		if (c->pool->users)
			hspmd_transport_free_on_close(c->transport, &c->pool->deferred);
		else
			free(c->pool);
		c->pool = next;
	}
	free(c->pending);
	free(c->rank_of);
	free(c);
}

/* The part of a value that this device holds; data NULL if it holds none. */
static struct hspmd_local_buffer part_of(const struct hspmd_comm *c, const struct hspmd_transfer *t, int value, enum hspmd_dtype dtype,
                                         void *data)
{
	struct hspmd_local_buffer p = { .element_bytes = t->element_bytes, .dtype = dtype, .on_host = c->dev->ops->host_memory };
	int at = hspmd_layout_find(&t->layout[value], c->self);
	if (at >= 0) {
		p.box = t->layout[value].box[at];
		p.data = data;
	}
	return p;
}

static int copy(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                const struct hspmd_local_buffer *out, struct hspmd_error *err)
{
	struct hspmd_box both;
	if (!hspmd_box_intersect(&step->in[self], &step->out[self], &both))
		return 0;
	return c->dev->ops->copy_box(c->dev, out->data, &out->box, in->data, &in->box, &both, out->dtype, false, err);
}

static int zero(struct hspmd_comm *c, const struct hspmd_box *box, const struct hspmd_local_buffer *out, struct hspmd_error *err)
{
	const struct hspmd_device_ops *ops = c->dev->ops;
	size_t bytes = (size_t)hspmd_box_elements(box) * out->element_bytes;
	if (!bytes)
		return 0;
	char *at = hspmd_local_buffer_contiguous(out, box);
	if (at)
		return ops->zero(c->dev, at, bytes, err);
	if (hspmd_comm_need_device_scratch(c, bytes, err) || ops->zero(c->dev, c->device_scratch, bytes, err))
		return -1;
	return ops->copy_box(c->dev, out->data, &out->box, c->device_scratch, box, box, out->dtype, false, err);
}

/* The moves between this member and the others in a collective that only moves data: member i sends j the intersection of i's input and
 * j's output. The caller frees the array. */
static struct hspmd_move *moves_of(const struct hspmd_comm_step *step, int self, size_t *moved, struct hspmd_error *err)
{
	int n = step->member_count, count = 0;
	struct hspmd_move *moves = hspmd_calloc(2 * (size_t)n, sizeof *moves);
	if (!moves) {
		hspmd_fail_memory(err, "exchanging");
		return NULL;
	}
	for (int k = 0; k < 2 * n; k++) {
		/* Receives first, then sends; the move within this device once. */
		int i = k < n ? k : self, j = k < n ? self : k - n;
		struct hspmd_move m = { .from = step->members[i], .to = step->members[j] };
		if ((k >= n && j == self) || !hspmd_box_intersect(&step->in[i], &step->out[j], &m.box))
			continue;
		moves[count++] = m;
	}
	*moved = (size_t)count;
	return moves;
}

static int exchange_all(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
                        const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	size_t count;
	if (step->member_count > HSPMD_COMM_FEW_MEMBERS)
		return step->kind == HSPMD_COMM_ALL_GATHER ? hspmd_comm_ring_gather(c, step, self, in, out, tag, err)
		                                           : hspmd_comm_pairwise(c, step, self, in, out, tag, err);
	struct hspmd_move *moves = moves_of(step, self, &count, err);
	int rv = moves ? hspmd_comm_exchange(c, moves, count, in, out, tag, err) : -1;
	free(moves);
	return rv;
}

static struct hspmd_move single_move(const struct hspmd_comm_step *step)
{
	return (struct hspmd_move){ .from = step->members[0], .to = step->members[1], .box = step->in[0] };
}

static int run(struct hspmd_comm *c, const struct hspmd_comm_step *step, int self, const struct hspmd_local_buffer *in,
               const struct hspmd_local_buffer *out, uint64_t tag, struct hspmd_error *err)
{
	struct hspmd_move single;
	switch (step->kind) {
	case HSPMD_COMM_COPY:
		return copy(c, step, self, in, out, err);
	case HSPMD_COMM_ZERO:
		return zero(c, &step->out[self], out, err);
	case HSPMD_COMM_SEND_RECEIVE:
		single = single_move(step);
		return hspmd_comm_exchange(c, &single, 1, in, out, tag, err);
	case HSPMD_COMM_ALL_REDUCE:
		return hspmd_comm_all_reduce(c, step, self, in, out, tag, err);
	case HSPMD_COMM_REDUCE_SCATTER:
		return hspmd_comm_reduce_scatter(c, step, self, in, out, tag, err);
	case HSPMD_COMM_ALL_GATHER:
	case HSPMD_COMM_ALL_TO_ALL:
		return exchange_all(c, step, self, in, out, tag, err);
	case HSPMD_COMM_BATCHED:
		return hspmd_comm_exchange(c, step->moves, (size_t)step->move_count, in, out, tag, err);
	case HSPMD_COMM_DISPATCH:
	case HSPMD_COMM_COMBINE:
		return hspmd_fail(err, "communication: the choice of rows is not given");
	case HSPMD_COMM_KIND_COUNT:
		break;
	}
	return hspmd_fail(err, "communication: step of unknown kind %d", (int)step->kind);
}

static size_t part_bytes(const struct hspmd_local_buffer *p)
{
	return (size_t)hspmd_box_elements(&p->box) * p->element_bytes;
}

bool hspmd_comm_step_uses_devcomm(const struct hspmd_comm *c, const struct hspmd_comm_step *step)
{
	struct hspmd_move single;
	const struct hspmd_move *moves = step->moves;
	int count = step->move_count;
	if (!c->devcomm || step->kind == HSPMD_COMM_COPY || step->kind == HSPMD_COMM_ZERO)
		return c->devcomm != NULL;
	if (step->kind == HSPMD_COMM_SEND_RECEIVE) {
		single = single_move(step);
		moves = &single;
		count = 1;
	} else if (hspmd_comm_chooses_rows(step)) {
		return false;
	} else if (step->kind != HSPMD_COMM_BATCHED) {
		return hspmd_devcomm_has_step(c->devcomm, step);
	}
	for (int i = 0; i < count; i++)
		if (moves[i].from != moves[i].to && (moves[i].from == c->self || moves[i].to == c->self) &&
		    !hspmd_devcomm_pair(c->devcomm, moves[i].from, moves[i].to))
			return false;
	return true;
}

/* Finds this device among the members and its parts of the step's values. Returns its index; -1: it is not a member; -2 and err. */
static int find_parts(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step,
                      enum hspmd_dtype dtype, const void *in, void *out, struct hspmd_local_buffer *from, struct hspmd_local_buffer *to,
                      struct hspmd_error *err)
{
	int self = 0;
	while (self < step->member_count && step->members[self] != c->self)
		self++;
	if (self == step->member_count)
		return -1;
	for (int i = 0; i < step->member_count; i++)
		if (step->members[i] < 0 || step->members[i] >= c->count || c->rank_of[step->members[i]] < 0) {
			hspmd_fail(err, "communication: device %d is not in this generation", step->members[i]);
			return -2;
		}
	*from = part_of(c, transfer, step->input, dtype, (void *)(uintptr_t)in);
	*to = part_of(c, transfer, step->output, dtype, out);
	/* Steps see each other's results. */
	if (c->devcomm && ((from->data && hspmd_comm_stream_wait(c, from->data, part_bytes(from), err)) ||
	                   (to->data && hspmd_comm_stream_wait(c, to->data, part_bytes(to), err))))
		return -2;
	return self;
}

int hspmd_comm_run(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, enum hspmd_dtype dtype,
                   const void *in, void *out, uint64_t tag, struct hspmd_error *err)
{
	struct hspmd_local_buffer from, to;
	int self = find_parts(c, transfer, step, dtype, in, out, &from, &to, err);
	if (self < 0)
		return self + 1;
	int devcomm = c->devcomm ? hspmd_devcomm_collective(c->devcomm, step, self, &from, &to, err) : 0;
	if (devcomm)
		return devcomm < 0 ? -1 : 0;
	return run(c, step, self, &from, &to, tag, err);
}

int hspmd_comm_run_rows(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step,
                        enum hspmd_dtype dtype, const void *in, void *out, const struct hspmd_row_choice *choice, uint64_t tag,
                        struct hspmd_error *err)
{
	struct hspmd_local_buffer from, to;
	int self = find_parts(c, transfer, step, dtype, in, out, &from, &to, err);
	return self < 0 ? self + 1 : hspmd_comm_exchange_rows(c, transfer, step, self, &from, &to, choice, tag, err);
}

int hspmd_comm_post_receives(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step,
                             enum hspmd_dtype dtype, uint64_t tag, struct hspmd_error *err)
{
	struct hspmd_move single;
	const struct hspmd_move *moves = step->moves;
	size_t count = (size_t)step->move_count, comes = 0;
	if (step->kind == HSPMD_COMM_SEND_RECEIVE) {
		single = single_move(step);
		moves = &single;
		count = 1;
	} else if (step->kind != HSPMD_COMM_BATCHED) {
		return 0;
	}
	for (size_t i = 0; i < count; i++)
		comes += moves[i].to == c->self && moves[i].from != c->self;
	if (!comes)
		return 0;
	struct hspmd_local_buffer to = part_of(c, transfer, step->output, dtype, NULL);
	return hspmd_comm_exchange_early(c, moves, count, &to, tag, err) ? -1 : 1;
}

/* A packed host buffer without memory, for computing addresses only. */
static struct hspmd_local_buffer imagined(const struct hspmd_transfer *t, int value, int device)
{
	static char somewhere;
	struct hspmd_local_buffer p = { .data = &somewhere, .element_bytes = t->element_bytes, .on_host = true };
	int at = hspmd_layout_find(&t->layout[value], device);
	if (at >= 0)
		p.box = t->layout[value].box[at];
	return p;
}

int64_t hspmd_comm_scratch_bytes(const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, int device,
                                 struct hspmd_error *err)
{
	struct hspmd_local_buffer in = imagined(transfer, step->input, device), out = imagined(transfer, step->output, device);
	struct hspmd_move *moves, single;
	size_t count;
	int64_t bytes;
	int self = 0;
	while (self < step->member_count && step->members[self] != device)
		self++;
	if (self == step->member_count)
		return 0;
	switch (step->kind) {
	case HSPMD_COMM_SEND_RECEIVE:
		single = single_move(step);
		return hspmd_comm_exchange_scratch(&single, 1, &in, &out, device, true, err);
	case HSPMD_COMM_BATCHED:
		return hspmd_comm_exchange_scratch(step->moves, (size_t)step->move_count, &in, &out, device, true, err);
	case HSPMD_COMM_ALL_REDUCE:
	case HSPMD_COMM_REDUCE_SCATTER:
		return hspmd_comm_sum_scratch(step, self, &in, &out, err);
	case HSPMD_COMM_ALL_GATHER:
	case HSPMD_COMM_ALL_TO_ALL:
		if (step->member_count > HSPMD_COMM_FEW_MEMBERS)
			return hspmd_comm_ring_scratch(step, self, &in, &out, err);
		moves = moves_of(step, self, &count, err);
		bytes = moves ? hspmd_comm_exchange_scratch(moves, count, &in, &out, device, false, err) : -1;
		free(moves);
		return bytes;
	case HSPMD_COMM_DISPATCH:
	case HSPMD_COMM_COMBINE:
		return hspmd_comm_rows_scratch(transfer, step, self, err);
	case HSPMD_COMM_COPY:
	case HSPMD_COMM_ZERO:
	case HSPMD_COMM_KIND_COUNT:
		break;
	}
	return 0;
}
