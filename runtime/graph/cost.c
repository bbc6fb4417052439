/* SPDX-License-Identifier: Apache-2.0 */
/* What steps cost. Collectives run as rings (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009): n - 1
 * rounds in each of which every member passes one part to the next, a round as slow as its slowest message. Point-to-point messages of one device
 * go out one after another and come in one after another, both at the same time. What stays on a device is free. */
#include <stdlib.h>

#include "runtime/graph/resolver.h"

double hspmd_message_seconds(const struct hspmd_link_cost *cost, int from, int to, double bytes)
{
	if (from == to)
		return 0;
	return cost && cost->seconds ? cost->seconds(cost->context, from, to, bytes) : 1e-5 + bytes / 1e9;
}

static double message(const struct resolver *r, int from, int to, int64_t elements)
{
	return hspmd_message_seconds(r->cost, r->real[from], r->real[to], (double)elements * (double)r->element_bytes);
}

static double ring_round(const struct resolver *r, const struct hspmd_comm_step *step, int64_t elements)
{
	double slowest = 0;
	for (int i = 0; i < step->member_count; i++) {
		double t = message(r, step->members[i], step->members[(i + 1) % step->member_count], elements);
		slowest = t > slowest ? t : slowest;
	}
	return slowest;
}

static int64_t largest(const struct hspmd_box *box, int count)
{
	int64_t most = 0;
	for (int i = 0; i < count; i++) {
		int64_t n = hspmd_box_elements(&box[i]);
		most = n > most ? n : most;
	}
	return most;
}

struct flow {
	int from, to;
	int64_t elements;
};

static int flow_order(const void *a, const void *b)
{
	const struct flow *x = a, *y = b;
	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	return (x->to > y->to) - (x->to < y->to);
}

/* One message a pair; the busiest sender or receiver decides. */
static double flows_seconds(const struct resolver *r, struct flow *flows, size_t count, double *out, double *in)
{
	qsort(flows, count, sizeof *flows, flow_order);
	for (size_t i = 0, end; i < count; i = end) {
		int64_t elements = 0;
		for (end = i; end < count && flow_order(&flows[i], &flows[end]) == 0; end++)
			elements += flows[end].elements;
		double t = message(r, flows[i].from, flows[i].to, elements);
		out[flows[i].from] += t;
		in[flows[i].to] += t;
	}
	double busiest = 0;
	for (int d = 0; d < r->device_count; d++) {
		busiest = out[d] > busiest ? out[d] : busiest;
		busiest = in[d] > busiest ? in[d] : busiest;
	}
	return busiest;
}

static size_t list_flows(const struct hspmd_comm_step *step, struct flow *flows)
{
	size_t n = 0;
	if (step->kind == HSPMD_COMM_BATCHED) {
		for (int i = 0; i < step->move_count; i++)
			if (step->moves[i].from != step->moves[i].to)
				flows[n++] = (struct flow){ step->moves[i].from, step->moves[i].to, hspmd_box_elements(&step->moves[i].box) };
		return n;
	}
	struct hspmd_box common;
	for (int i = 0; i < step->member_count; i++)
		for (int j = 0; j < step->member_count; j++)
			if (i != j && hspmd_box_intersect(&step->in[i], &step->out[j], &common))
				flows[n++] = (struct flow){ step->members[i], step->members[j], hspmd_box_elements(&common) };
	return n;
}

static int exchange_cost(struct resolver *r, struct hspmd_comm_step *step)
{
	size_t most = step->kind == HSPMD_COMM_BATCHED ? (size_t)step->move_count : (size_t)step->member_count * (size_t)step->member_count;
	struct flow *flows = malloc((most + 1) * sizeof *flows);
	double *busy = calloc((size_t)r->device_count * 2, sizeof *busy);
	int rc = flows && busy ? 0 : -1;
	if (rc == 0)
		step->seconds = flows_seconds(r, flows, list_flows(step, flows), busy, busy + r->device_count);
	free(flows);
	free(busy);
	return rc;
}

int hspmd_step_cost(struct resolver *r, struct hspmd_comm_step *step)
{
	int n = step->member_count;
	step->seconds = 0;
	switch (step->kind) {
	case HSPMD_COMM_SEND_RECEIVE:
		step->seconds = message(r, step->members[0], step->members[1], hspmd_box_elements(&step->in[0]));
		return 0;
	case HSPMD_COMM_ALL_REDUCE:
		step->seconds = 2 * (n - 1) * ring_round(r, step, (hspmd_box_elements(&step->in[0]) + n - 1) / n);
		return 0;
	case HSPMD_COMM_REDUCE_SCATTER:
		step->seconds = (n - 1) * ring_round(r, step, largest(step->out, n));
		return 0;
	case HSPMD_COMM_ALL_GATHER:
		step->seconds = (n - 1) * ring_round(r, step, largest(step->in, n));
		return 0;
	case HSPMD_COMM_ALL_TO_ALL:
	case HSPMD_COMM_BATCHED:
		return exchange_cost(r, step);
	case HSPMD_COMM_COPY:
	case HSPMD_COMM_ZERO:
	case HSPMD_COMM_KIND_COUNT:
		return 0;
	}
	return 0;
}

double hspmd_steps_seconds(struct resolver *r, const struct hspmd_comm_step *steps, size_t count)
{
	double *clock = calloc((size_t)r->device_count, sizeof *clock);
	if (!clock)
		return -1;
	double last = 0;
	for (size_t s = 0; s < count; s++) {
		double start = 0;
		for (int m = 0; m < steps[s].member_count; m++)
			start = clock[steps[s].members[m]] > start ? clock[steps[s].members[m]] : start;
		for (int m = 0; m < steps[s].member_count; m++)
			clock[steps[s].members[m]] = start + steps[s].seconds;
		last = start + steps[s].seconds > last ? start + steps[s].seconds : last;
	}
	free(clock);
	return last;
}

int hspmd_steps_spread(struct resolver *r, struct hspmd_comm_step *steps, size_t count)
{
	struct hspmd_comm_step *order = malloc((count + 1) * sizeof *order);
	size_t *busy = calloc((size_t)r->device_count, sizeof *busy); /* last round a device is in, from 1 */
	bool *taken = calloc(count + 1, sizeof *taken);
	int rc = order && busy && taken ? 0 : -1;
	size_t placed = 0;
	for (size_t round = 1; rc == 0 && placed < count; round++)
		for (size_t s = 0; s < count; s++) {
			bool free_now = !taken[s];
			for (int m = 0; m < steps[s].member_count && free_now; m++)
				free_now = busy[steps[s].members[m]] != round;
			if (!free_now)
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
