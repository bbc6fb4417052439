/* SPDX-License-Identifier: Apache-2.0 */
/* Cost of steps as runtime/comm executes them. Members send directly to one another. A collective moves as many bytes as a ring would
 * (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009); an all-reduce is a reduce-scatter and
 * an all-gather or, if small, a gather of everything in a logarithmic number of rounds (Bruck et al. 1997). A device sends its messages one
 * after another and receives likewise, both at the same time (the one-port model); messages between the devices of a node and other nodes
 * share the node's network. Local copies are free. Devices with a library of their own gather and sum around a ring instead, unequal parts
 * in the cheaper of two forms (common/format/collective_cost.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/alloc.h"
#include "common/format/expert_rows.h"
#include "common/order.h"
#include "runtime/resharding/resolve_internal.h"

int hspmd_cost_prepare(struct resolver *r)
{
	size_t devices = (size_t)r->device_count;
	int *name = hspmd_arena_alloc(r->arena, devices, sizeof *name), count = 0;
	r->node = hspmd_arena_alloc(r->arena, devices, sizeof *r->node);
	r->network = hspmd_arena_alloc(r->arena, devices, sizeof *r->network);
	r->busy = hspmd_arena_alloc(r->arena, 2 * devices, sizeof *r->busy);
	if (!name || !r->node || !r->network || !r->busy)
		return -1;
	bool named = r->cost && r->cost->node;
	for (int d = 0; d < r->device_count; d++)
		r->node[d] = name[d] = named ? r->cost->node(r->cost->context, r->real[d]) : d;
	qsort(name, devices, sizeof *name, hspmd_int_order);
	for (int d = 0; d < r->device_count; d++)
		if (d == 0 || name[d] != name[count - 1])
			name[count++] = name[d];
	for (int d = 0; d < r->device_count; d++)
		r->node[d] = (int)((int *)bsearch(&r->node[d], name, (size_t)count, sizeof *name, hspmd_int_order) - name);
	double together = r->cost && r->cost->together > 0 ? r->cost->together : 1;
	for (int n = 0; n < count && named && r->cost->network; n++)
		r->network[n] = r->cost->network(r->cost->context, name[n]) / together;
	r->node_count = count;
	return 0;
}

/* Seconds for which a message keeps the network of node `node` busy. */
static double occupation(const struct resolver *r, int node, int from, int to, int64_t elements, double seconds)
{
	if (r->network[node] > 0)
		return (double)elements * (double)r->element_bytes / r->network[node];
	return seconds - hspmd_cost_message(r, from, to, 0);
}

/* Books `messages` messages, one after another, on the two devices and their nodes. */
static void book(struct resolver *r, int from, int to, int64_t elements, int messages, double *network_busy)
{
	double t = hspmd_cost_message(r, from, to, elements), *out = r->busy, *in = r->busy + r->device_count;
	out[from] += messages * t;
	in[to] += messages * t;
	if (r->node[from] == r->node[to])
		return;
	network_busy[r->node[from]] += messages * occupation(r, r->node[from], from, to, elements, t);
	network_busy[r->node_count + r->node[to]] += messages * occupation(r, r->node[to], from, to, elements, t);
}

static void book_begin(struct resolver *r)
{
	memset(r->busy, 0, 2 * (size_t)r->device_count * sizeof *r->busy);
}

static double book_end(const struct resolver *r)
{
	double busiest = 0;
	for (int d = 0; d < 2 * r->device_count; d++)
		busiest = r->busy[d] > busiest ? r->busy[d] : busiest;
	return busiest;
}

/* The boxes' elements. NULL: memory. */
static int64_t *count_elements(struct resolver *r, const struct hspmd_box *box, int count)
{
	int64_t *elements = hspmd_arena_alloc(r->arena, (size_t)count, sizeof *elements);
	for (int m = 0; elements && m < count; m++)
		elements[m] = hspmd_box_elements(&box[m]);
	return elements;
}

/* Every member sends as many elements as member j gets, to member j. */
static int book_parts(struct resolver *r, const struct hspmd_comm_step *step, double *network_busy)
{
	const int64_t *elements = count_elements(r, step->out, step->member_count);
	int status = elements ? hspmd_book_classes(r, step, elements, false, 1, network_busy) : -1;
	for (int j = 0; status > 0 && j < step->member_count; j++)
		for (int i = 0; i < step->member_count && elements[j] > 0; i++)
			if (i != j)
				book(r, step->members[i], step->members[j], elements[j], 1, network_busy);
	return status < 0 ? -1 : 0;
}

/* A box in its first two dimensions. Of the pairs of a thousand members few overlap, most of which this tells. */
struct box_bounds {
	int64_t lo[2], hi[2];
};

static struct box_bounds bounds_of(const struct hspmd_box *box)
{
	return (struct box_bounds){ .lo = { box->lo[0], box->rank > 1 ? box->lo[1] : 0 },
		                    .hi = { box->hi[0], box->rank > 1 ? box->hi[1] : 1 } };
}

static bool may_overlap(const struct box_bounds *a, const struct box_bounds *b)
{
	return (a->lo[0] < b->hi[0]) & (b->lo[0] < a->hi[0]) & (a->lo[1] < b->hi[1]) & (b->lo[1] < a->hi[1]);
}

static int book_overlaps(struct resolver *r, const struct hspmd_comm_step *step, double *network_busy)
{
	struct box_bounds *out = hspmd_arena_alloc(r->arena, (size_t)step->member_count, sizeof *out);
	struct hspmd_box common;
	for (int j = 0; out && j < step->member_count; j++)
		out[j] = bounds_of(&step->out[j]);
	for (int i = 0; out && i < step->member_count; i++) {
		const struct box_bounds in = bounds_of(&step->in[i]);
		for (int j = 0; j < step->member_count; j++)
			if (may_overlap(&in, &out[j]) && i != j && hspmd_box_intersect(&step->in[i], &step->out[j], &common))
				book(r, step->members[i], step->members[j], hspmd_box_elements(&common), 1, network_busy);
	}
	return out ? 0 : -1;
}

/* Every member sends member j what its input has of j's output. */
static int book_common(struct resolver *r, const struct hspmd_comm_step *step, double *network_busy)
{
	bool all = true; /* every member gets all inputs whole */
	for (int i = 0; all && i < step->member_count; i++)
		all = hspmd_box_equal(&step->out[i], &step->out[0]) &&
		      (hspmd_box_elements(&step->in[i]) == 0 || hspmd_box_contains(&step->out[0], &step->in[i]));
	const int64_t *elements = all ? count_elements(r, step->in, step->member_count) : NULL;
	int status = !all ? 1 : elements ? hspmd_book_classes(r, step, elements, true, 1, network_busy) : -1;
	return status > 0 ? book_overlaps(r, step, network_busy) : status;
}

/* ---- around a ring, in the devices' order */

/* In rounds of 1, 2, 4 .. a member receives that many parts from the member that far behind. */
static double gather_seconds(const struct resolver *r, const struct hspmd_comm_step *step)
{
	int64_t elements = hspmd_box_elements(&step->in[0]);
	double total = 0;
	for (int done = 1; done < step->member_count; done *= 2) {
		int parts = done < step->member_count - done ? done : step->member_count - done;
		double slowest = 0;
		for (int i = 0; i < step->member_count; i++) {
			double t =
			        hspmd_cost_message(r, step->members[(i + done) % step->member_count], step->members[i], parts * elements);
			slowest = t > slowest ? t : slowest;
		}
		total += slowest;
	}
	return total;
}

struct ring {
	const struct resolver *r;
	int n, *member;
};

static double ring_link(const void *context, int i, double bytes)
{
	const struct ring *ring = context;
	const struct resolver *r = ring->r;
	return hspmd_message_seconds(r->cost, r->real[ring->member[i]], r->real[ring->member[(i + 1) % ring->n]], bytes);
}

/* Returns true if all members of a collective step run it around a ring. */
static bool is_ring(const struct resolver *r, const struct hspmd_comm_step *step)
{
	bool all = r->cost && r->cost->rings;
	for (int m = 0; all && m < step->member_count; m++)
		all = r->cost->rings(r->cost->context, r->real[step->members[m]]);
	return all;
}

/* The parts of these boxes go around `rounds` times. */
static int book_ring(struct resolver *r, struct hspmd_comm_step *step, const struct hspmd_box *boxes, int rounds, double *network_busy)
{
	int n = step->member_count;
	struct ring ring = { r, n, hspmd_arena_alloc(r->arena, (size_t)n, sizeof *ring.member) };
	double *parts = hspmd_arena_alloc(r->arena, (size_t)n, sizeof *parts), most = 0, total = 0;
	if (!ring.member || !parts)
		return -1;
	memcpy(ring.member, step->members, (size_t)n * sizeof *ring.member);
	qsort(ring.member, (size_t)n, sizeof *ring.member, hspmd_int_order);
	for (int m = 0; m < n; m++) {
		int64_t elements = hspmd_box_elements(&boxes[m]);
		if (step->kind == HSPMD_COMM_ALL_REDUCE)
			elements = (elements + n - 1) / n;
		parts[m] = (double)elements * (double)r->element_bytes;
		most = parts[m] > most ? parts[m] : most;
		total += parts[m];
	}
	step->seconds = rounds * hspmd_ring_seconds(parts, n, ring_link, &ring, &step->form);
	double gathered = step->kind == HSPMD_COMM_ALL_REDUCE ? gather_seconds(r, step) : step->seconds; /* small ones, along a tree */
	step->seconds = gathered < step->seconds ? gathered : step->seconds;
	double bytes = rounds * (step->form == HSPMD_FORM_GROUPED ? total : (n - 1) * most);
	for (int i = 0; i < n; i++) {
		int from = r->node[ring.member[i]], to = r->node[ring.member[(i + 1) % n]];
		if (from == to)
			continue;
		network_busy[from] += r->network[from] > 0 ? bytes / r->network[from] : step->seconds;
		network_busy[r->node_count + to] += r->network[to] > 0 ? bytes / r->network[to] : step->seconds;
	}
	return 0;
}

/* ---- directly */

/* Moves are ordered by pair; those of a pair are one message. */
static void book_moves(struct resolver *r, const struct hspmd_comm_step *step, double *network_busy)
{
	for (int i = 0, end; i < step->move_count; i = end) {
		const struct hspmd_move *first = &step->moves[i];
		int64_t elements = 0;
		for (end = i; end < step->move_count && step->moves[end].from == first->from && step->moves[end].to == first->to; end++)
			elements += hspmd_box_elements(&step->moves[end].box);
		if (first->from != first->to)
			book(r, first->from, first->to, elements, 1, network_busy);
	}
}

/* The share of the rows of a move that is sent on average; `device` has the experts. */
static double sent_share(const struct hspmd_comm_step *step, int device)
{
	int m = 0;
	while (step->members[m] != device)
		m++;
	return hspmd_expert_row_share(step->experts[m].hi - step->experts[m].lo, step->expert_count, step->per_token);
}

/* Like book_moves, of the rows that are sent on average. */
static void book_rows(struct resolver *r, const struct hspmd_comm_step *step, double *network_busy)
{
	for (int i = 0, end; i < step->move_count; i = end) {
		const struct hspmd_move *first = &step->moves[i];
		double elements = 0, share = sent_share(step, step->kind == HSPMD_COMM_DISPATCH ? first->to : first->from);
		for (end = i; end < step->move_count && step->moves[end].from == first->from && step->moves[end].to == first->to; end++)
			elements += share * (double)hspmd_box_elements(&step->moves[end].box);
		if (first->from != first->to)
			book(r, first->from, first->to, (int64_t)ceil(elements), 1, network_busy);
	}
}

/* Until all members know the choice. */
static double choice_seconds(const struct resolver *r, const struct hspmd_comm_step *step)
{
	double slowest = 0;
	for (int m = 0; m < step->member_count; m++)
		slowest = fmax(slowest, r->cost->choice_seconds(r->cost->context, r->real[step->members[m]]));
	return slowest;
}

static int cost_all_reduce(struct resolver *r, struct hspmd_comm_step *step, double *network_busy)
{
	int n = step->member_count;
	int64_t part = (hspmd_box_elements(&step->in[0]) + n - 1) / n, *parts = hspmd_arena_alloc(r->arena, (size_t)n, sizeof *parts);
	if (!parts)
		return -1;
	for (int i = 0; i < n; i++)
		parts[i] = part;
	int status = hspmd_book_classes(r, step, parts, true, 2, network_busy);
	for (int i = 0; status > 0 && i < n; i++)
		for (int j = 0; j < n; j++)
			if (i != j)
				book(r, step->members[i], step->members[j], part, 2, network_busy);
	double direct = book_end(r), gathered = gather_seconds(r, step);
	step->seconds = gathered < direct ? gathered : direct;
	return status < 0 ? -1 : 0;
}

int hspmd_step_cost(struct resolver *r, struct hspmd_comm_step *step, double *network_busy)
{
	int status = 0;
	step->seconds = 0;
	step->form = HSPMD_FORM_DIRECT;
	book_begin(r);
	if (step->kind == HSPMD_COMM_ALL_REDUCE && is_ring(r, step))
		return book_ring(r, step, step->in, 2, network_busy);
	if (step->kind == HSPMD_COMM_REDUCE_SCATTER && is_ring(r, step))
		return book_ring(r, step, step->out, 1, network_busy);
	if (step->kind == HSPMD_COMM_ALL_GATHER && is_ring(r, step))
		return book_ring(r, step, step->in, 1, network_busy);
	switch (step->kind) {
	case HSPMD_COMM_SEND_RECEIVE:
		book(r, step->members[0], step->members[1], hspmd_box_elements(&step->in[0]), 1, network_busy);
		break;
	case HSPMD_COMM_ALL_REDUCE:
		return cost_all_reduce(r, step, network_busy);
	case HSPMD_COMM_REDUCE_SCATTER:
		status = book_parts(r, step, network_busy);
		break;
	case HSPMD_COMM_ALL_GATHER:
	case HSPMD_COMM_ALL_TO_ALL:
		status = book_common(r, step, network_busy);
		break;
	case HSPMD_COMM_BATCHED:
		book_moves(r, step, network_busy);
		break;
	case HSPMD_COMM_DISPATCH:
	case HSPMD_COMM_COMBINE:
		book_rows(r, step, network_busy);
		step->seconds = book_end(r) + choice_seconds(r, step);
		return 0;
	case HSPMD_COMM_COPY:
	case HSPMD_COMM_ZERO:
	case HSPMD_COMM_KIND_COUNT:
		return 0;
	}
	step->seconds = book_end(r);
	return status;
}

double hspmd_steps_seconds(struct resolver *r, const struct hspmd_comm_step *steps, size_t count, const double *network_busy)
{
	double last = 0, *clock = r->busy;
	book_begin(r);
	for (size_t s = 0; s < count; s++) {
		double start = 0;
		for (int m = 0; m < steps[s].member_count; m++)
			start = clock[steps[s].members[m]] > start ? clock[steps[s].members[m]] : start;
		for (int m = 0; m < steps[s].member_count; m++)
			clock[steps[s].members[m]] = start + steps[s].seconds;
		last = start + steps[s].seconds > last ? start + steps[s].seconds : last;
	}
	for (int p = 0; p < 2 * r->node_count; p++)
		last = network_busy[p] > last ? network_busy[p] : last;
	return last;
}

bool hspmd_cheaper(double a, double b)
{
	return a < b * (1 - 1e-9);
}

int hspmd_steps_reorder(struct resolver *r, struct hspmd_comm_step *steps, size_t count)
{
	struct hspmd_comm_step *order = hspmd_calloc(count, sizeof *order);
	size_t *busy = hspmd_calloc((size_t)r->device_count, sizeof *busy); /* last round a device is in, from 1 */
	bool *taken = hspmd_calloc(count, sizeof *taken);
	int rc = order && busy && taken ? 0 : -1;
	size_t placed = 0;
	for (size_t round = 1; rc == 0 && placed < count; round++)
		for (size_t s = 0; s < count; s++) {
			bool idle = !taken[s];
			for (int m = 0; m < steps[s].member_count && idle; m++)
				idle = busy[steps[s].members[m]] != round;
			if (!idle)
				continue;
			for (int m = 0; m < steps[s].member_count; m++)
				busy[steps[s].members[m]] = round;
			taken[s] = true;
			order[placed++] = steps[s];
		}
	for (size_t s = 0; s < placed; s++)
		steps[s] = order[s];
	free(order);
	free(busy);
	free(taken);
	return rc;
}
