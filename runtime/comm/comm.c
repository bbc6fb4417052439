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

static struct hspmd_move single_move(const struct hspmd_comm_step *step)
{
	return (struct hspmd_move){ .from = step->members[0], .to = step->members[1], .box = step->in[0] };
}

/* A move of several tensors' lists, and where it stands in them. */
struct numbered_move {
	struct hspmd_move move;
	int part;
	size_t at;
};

static int by_pair(const void *a, const void *b)
{
	const struct numbered_move *x = a, *y = b;
	if (x->move.from != y->move.from)
		return x->move.from < y->move.from ? -1 : 1;
	if (x->move.to != y->move.to)
		return x->move.to < y->move.to ? -1 : 1;
	return (x->at > y->at) - (x->at < y->at);
}

/* The moves of a joint step, at least those in which this device takes part; of several tensors by pairs of devices, and there tensor by
 * tensor. The caller frees with drop_moves, also after a failure. -1 and err. */
static int joint_moves(const struct hspmd_joint *j, struct hspmd_move_list *l, struct hspmd_error *err)
{
	struct numbered_move *all = NULL;
	size_t capacity = 0, count = 0;
	int status = 0;
	*l = (struct hspmd_move_list){ 0 };
	for (int i = 0; !status && i < j->count; i++) {
		const struct hspmd_comm_step *step = j->step[i];
		struct hspmd_move single, *made = NULL;
		const struct hspmd_move *moves = step->moves;
		size_t own = (size_t)step->move_count;
		if (step->kind == HSPMD_COMM_SEND_RECEIVE) {
			single = single_move(step);
			moves = &single;
			own = 1;
		} else if (step->kind != HSPMD_COMM_BATCHED) {
			moves = made = moves_of(step, j->self, &own, err);
			status = made ? 0 : -1;
		}
		for (size_t k = 0; !status && k < own; k++) {
			if (hspmd_array_grow(&all, &capacity, count, sizeof *all))
				status = hspmd_fail_memory(err, "exchanging");
			else
				all[count] = (struct numbered_move){ moves[k], i, count };
			count++;
		}
		free(made);
	}
	if (!status && j->count > 1 && count)
		qsort(all, count, sizeof *all, by_pair);
	struct hspmd_move *move = status ? NULL : hspmd_calloc(count + 1, sizeof *move);
	int *part = status ? NULL : hspmd_calloc(count + 1, sizeof *part);
	for (size_t k = 0; move && part && k < count; k++) {
		move[k] = all[k].move;
		part[k] = all[k].part;
	}
	free(all);
	*l = (struct hspmd_move_list){ move, count, part };
	return status || (move && part) ? status : hspmd_fail_memory(err, "exchanging");
}

static void drop_moves(struct hspmd_move_list *l)
{
	free((void *)(uintptr_t)l->move);
	free((void *)(uintptr_t)l->part);
}

static bool goes_around(const struct hspmd_comm_step *step)
{
	return (step->kind == HSPMD_COMM_ALL_GATHER || step->kind == HSPMD_COMM_ALL_TO_ALL) && step->member_count > HSPMD_COMM_FEW_MEMBERS;
}

static int exchange(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err)
{
	const struct hspmd_comm_step *step = j->step[0];
	if (goes_around(step))
		return step->kind == HSPMD_COMM_ALL_GATHER ? hspmd_comm_ring_gather(c, j, tag, err) : hspmd_comm_pairwise(c, j, tag, err);
	struct hspmd_move_list l = { step->moves, (size_t)step->move_count, NULL };
	if (j->count == 1 && step->kind == HSPMD_COMM_BATCHED)
		return hspmd_comm_exchange(c, &l, j->in, j->out, tag, err);
	int rv = joint_moves(j, &l, err);
	if (!rv)
		rv = hspmd_comm_exchange(c, &l, j->in, j->out, tag, err);
	drop_moves(&l);
	return rv;
}

static int copy_all(struct hspmd_comm *c, const struct hspmd_joint *j, struct hspmd_error *err)
{
	for (int i = 0; i < j->count; i++)
		if (j->step[i]->kind == HSPMD_COMM_COPY ? copy(c, j->step[i], j->self, &j->in[i], &j->out[i], err)
		                                        : zero(c, &j->step[i]->out[j->self], &j->out[i], err))
			return -1;
	return 0;
}

static int run(struct hspmd_comm *c, const struct hspmd_joint *j, uint64_t tag, struct hspmd_error *err)
{
	switch (j->step[0]->kind) {
	case HSPMD_COMM_COPY:
	case HSPMD_COMM_ZERO:
		return copy_all(c, j, err);
	case HSPMD_COMM_ALL_REDUCE:
		return hspmd_comm_all_reduce(c, j, tag, err);
	case HSPMD_COMM_REDUCE_SCATTER:
		return hspmd_comm_reduce_scatter(c, j, tag, err);
	case HSPMD_COMM_SEND_RECEIVE:
	case HSPMD_COMM_ALL_GATHER:
	case HSPMD_COMM_ALL_TO_ALL:
	case HSPMD_COMM_BATCHED:
		return exchange(c, j, tag, err);
	case HSPMD_COMM_DISPATCH:
	case HSPMD_COMM_COMBINE:
		return hspmd_fail(err, "communication: the choice of rows is not given");
	case HSPMD_COMM_KIND_COUNT:
		break;
	}
	return hspmd_fail(err, "communication: step of unknown kind %d", (int)j->step[0]->kind);
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

int hspmd_comm_run_joined(struct hspmd_comm *c, const struct hspmd_comm_part *parts, int count, enum hspmd_dtype dtype, uint64_t tag,
                          struct hspmd_error *err)
{
	struct hspmd_local_buffer one[2], *from = one, *to = one + 1;
	const struct hspmd_comm_step *only = parts->step, **steps = &only;
	int rv = -1, self = -1;
	if (count > 1) {
		from = hspmd_calloc((size_t)count, sizeof *from);
		to = hspmd_calloc((size_t)count, sizeof *to);
		steps = hspmd_calloc((size_t)count, sizeof(struct hspmd_comm_step *));
	}
	if (!from || !to || !steps) {
		hspmd_fail_memory(err, "communicating");
		goto out;
	}
	for (int i = 0; i < count; i++) {
		steps[i] = parts[i].step;
		self = find_parts(c, parts[i].transfer, parts[i].step, dtype, parts[i].in, parts[i].out, &from[i], &to[i], err);
		if (self < 0)
			break;
	}
	if (self >= 0) {
		struct hspmd_joint j = { count, steps, from, to, self };
		int devcomm = c->devcomm ? hspmd_devcomm_collective(c->devcomm, &j, err) : 0;
		rv = devcomm ? (devcomm < 0 ? -1 : 0) : run(c, &j, tag, err);
	} else {
		rv = self + 1;
	}
out:
	if (count > 1) {
		free(from);
		free(to);
		free(steps);
	}
	return rv;
}

int hspmd_comm_run(struct hspmd_comm *c, const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, enum hspmd_dtype dtype,
                   const void *in, void *out, uint64_t tag, struct hspmd_error *err)
{
	struct hspmd_comm_part only = { transfer, step, in, out };
	return hspmd_comm_run_joined(c, &only, 1, dtype, tag, err);
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
	struct hspmd_move_list l = { moves, count, NULL };
	return hspmd_comm_exchange_early(c, &l, &to, tag, err) ? -1 : 1;
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

static int64_t joint_scratch(const struct hspmd_joint *j, int device, struct hspmd_error *err)
{
	struct hspmd_move_list l;
	bool early = j->count == 1;
	int64_t bytes = 0;
	switch (j->step[0]->kind) {
	case HSPMD_COMM_SEND_RECEIVE:
	case HSPMD_COMM_BATCHED:
	case HSPMD_COMM_ALL_GATHER:
	case HSPMD_COMM_ALL_TO_ALL:
		early = early && (j->step[0]->kind == HSPMD_COMM_SEND_RECEIVE || j->step[0]->kind == HSPMD_COMM_BATCHED);
		if (goes_around(j->step[0]))
			return hspmd_comm_ring_scratch(j, err);
		bytes = joint_moves(j, &l, err) ? -1 : hspmd_comm_exchange_scratch(&l, j->in, j->out, device, early, err);
		drop_moves(&l);
		return bytes;
	case HSPMD_COMM_ALL_REDUCE:
	case HSPMD_COMM_REDUCE_SCATTER:
		return hspmd_comm_sum_scratch(j, err);
	case HSPMD_COMM_COPY:
	case HSPMD_COMM_ZERO:
	case HSPMD_COMM_DISPATCH:
	case HSPMD_COMM_COMBINE:
	case HSPMD_COMM_KIND_COUNT:
		break;
	}
	return bytes;
}

int64_t hspmd_comm_joined_scratch_bytes(const struct hspmd_comm_part *parts, int count, int device, struct hspmd_error *err)
{
	const struct hspmd_comm_step *first = parts->step;
	int64_t bytes = -1;
	int self = 0;
	while (self < first->member_count && first->members[self] != device)
		self++;
	if (self == first->member_count)
		return 0;
	if (hspmd_comm_chooses_rows(first))
		return hspmd_comm_rows_scratch(parts->transfer, first, self, err);
	const struct hspmd_comm_step **steps = hspmd_calloc((size_t)count, sizeof(struct hspmd_comm_step *));
	struct hspmd_local_buffer *in = hspmd_calloc((size_t)count, sizeof *in), *out = hspmd_calloc((size_t)count, sizeof *out);
	if (steps && in && out) {
		for (int i = 0; i < count; i++) {
			steps[i] = parts[i].step;
			in[i] = imagined(parts[i].transfer, parts[i].step->input, device);
			out[i] = imagined(parts[i].transfer, parts[i].step->output, device);
		}
		bytes = joint_scratch(&(struct hspmd_joint){ count, steps, in, out, self }, device, err);
	} else {
		hspmd_fail_memory(err, "planning communication");
	}
	free(steps);
	free(in);
	free(out);
	return bytes;
}

int64_t hspmd_comm_scratch_bytes(const struct hspmd_transfer *transfer, const struct hspmd_comm_step *step, int device,
                                 struct hspmd_error *err)
{
	struct hspmd_comm_part only = { .transfer = transfer, .step = step };
	return hspmd_comm_joined_scratch_bytes(&only, 1, device, err);
}
