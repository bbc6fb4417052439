/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets: sums of many gradients as sums of a few rows. Gradients that are adjacent in memory travel together, whatever tensors they
 * belong to. If a group of devices spans nodes, it sums within the nodes first if the cluster's links make that cheaper, so that every
 * byte crosses between nodes once per node (as in hierarchical all-reduce: Jia et al., arXiv 1807.11205, section 3.3); the resolver
 * finds such a route. */
#include <string.h>

#include "common/alloc.h"
#include "runtime/program/program.h"

static struct hspmd_transfer *empty_transfer(size_t element_bytes, int values, int steps)
{
	struct hspmd_transfer *t = calloc(1, sizeof *t);
	if (!t)
		return NULL;
	t->element_bytes = element_bytes;
	t->shape = (struct hspmd_shape){ 1, { 0 } };
	t->steps = hspmd_calloc((size_t)steps, sizeof *t->steps);
	t->layout = hspmd_calloc((size_t)values, sizeof *t->layout);
	if (!t->steps || !t->layout) {
		hspmd_transfer_destroy(t);
		return NULL;
	}
	t->value_count = values;
	return t;
}

/* The layout before and after the transfer: the devices of group k, which are those of `like`'s step k, have the group's row. */
static int lay_out(struct hspmd_transfer *t, const struct hspmd_transfer *like, const int64_t *elements)
{
	size_t n = (size_t)like->layout[0].device_count;
	for (int v = 0; v < t->value_count; v += t->value_count - 1) {
		struct hspmd_layout *l = &t->layout[v];
		l->devices = hspmd_calloc(n, sizeof *l->devices);
		l->box = hspmd_calloc(n, sizeof *l->box);
		if (!l->devices || !l->box)
			return -1;
		l->device_count = (int)n;
		memcpy(l->devices, like->layout[0].devices, n * sizeof *l->devices);
		for (int k = 0; k < like->step_count; k++)
			for (int m = 0; m < like->steps[k].member_count; m++)
				l->box[hspmd_layout_find(l, like->steps[k].members[m])] =
				        (struct hspmd_box){ .rank = 1, .hi = { elements[k] } };
	}
	for (int k = 0; k < like->step_count; k++)
		t->shape.dim[0] = elements[k] > t->shape.dim[0] ? elements[k] : t->shape.dim[0];
	return 0;
}

/* One all-reduce per group. */
static struct hspmd_transfer *fuse_plainly(const struct hspmd_transfer *like, const int64_t *elements)
{
	struct hspmd_transfer *t = empty_transfer(like->element_bytes, 2, like->step_count);
	int status = t ? lay_out(t, like, elements) : -1;
	for (int k = 0; !status && k < like->step_count; k++) {
		struct hspmd_comm_step *step = &t->steps[t->step_count++];
		size_t n = (size_t)like->steps[k].member_count;
		*step = (struct hspmd_comm_step){ .kind = HSPMD_COMM_ALL_REDUCE, .output = 1, .member_count = (int)n };
		step->members = hspmd_calloc(n, sizeof *step->members);
		step->in = hspmd_calloc(n, sizeof *step->in);
		step->out = hspmd_calloc(n, sizeof *step->out);
		if (!step->members || !step->in || !step->out) {
			status = -1;
			break;
		}
		memcpy(step->members, like->steps[k].members, n * sizeof *step->members);
		for (size_t m = 0; m < n; m++)
			step->in[m] = step->out[m] = (struct hspmd_box){ .rank = 1, .hi = { elements[k] } };
	}
	if (!status)
		return t;
	hspmd_transfer_destroy(t);
	return NULL;
}

/* The cheapest route that the resolver finds for a group to sum its row. */
static struct hspmd_transfer *resolve_group(const struct hspmd_comm_step *group, int64_t elements, size_t element_bytes,
                                            const struct hspmd_link_cost *cost, struct hspmd_error *err)
{
	struct hspmd_shape row = { 1, { elements } };
	struct hspmd_link_cost alone = *cost;
	struct hspmd_annotation *from = hspmd_annotation_single(group->members, group->member_count);
	struct hspmd_annotation *to = hspmd_annotation_single(group->members, group->member_count);
	struct hspmd_transfer *t = NULL;
	alone.cache = NULL; /* cached transfers are shared, and this one is taken apart */
	if (!from || !to || hspmd_annotation_split(from, 0, HSPMD_PARTIAL, group->member_count, 1, NULL) ||
	    hspmd_annotation_split(to, 0, HSPMD_DUPLICATE, group->member_count, 1, NULL))
		hspmd_fail_memory(err, "specialising");
	else
		t = hspmd_resolve(&row, element_bytes, from, to, &alone, err);
	hspmd_annotation_destroy(from);
	hspmd_annotation_destroy(to);
	return t;
}

/* Source and destination are the same row in memory. Returns true if the transfer reads all of the source before it writes the
 * destination. */
static bool works_in_place(const struct hspmd_transfer *t)
{
	bool written = false;
	int last = t->value_count - 1;
	for (int k = 0; k < t->step_count; k++) {
		bool reads = t->steps[k].input == 0, writes = t->steps[k].output == last;
		if (reads && (written || (writes && t->steps[k].kind != HSPMD_COMM_ALL_REDUCE)))
			return false;
		written |= writes;
	}
	return true;
}

/* Move the steps of one group's transfer into the common transfer. Its values from `first` on are still unused. */
static void append_steps(struct hspmd_transfer *t, struct hspmd_transfer *route, int first)
{
	int last = route->value_count - 1;
	for (int v = 1; v < last; v++) {
		t->layout[first + v - 1] = route->layout[v];
		route->layout[v] = (struct hspmd_layout){ 0 };
	}
	for (int k = 0; k < route->step_count; k++) {
		struct hspmd_comm_step *step = &t->steps[t->step_count++];
		*step = route->steps[k];
		step->input = step->input == 0 ? 0 : first + step->input - 1;
		step->output = step->output == last ? t->value_count - 1 : first + step->output - 1;
	}
	route->step_count = 0;
}

struct hspmd_transfer *hspmd_program_bucket(const struct hspmd_transfer *like, const int64_t *elements, const struct hspmd_link_cost *cost,
                                            bool *hops, struct hspmd_error *err)
{
	size_t groups = (size_t)like->step_count;
	struct hspmd_transfer **routes = hspmd_calloc(groups, sizeof *routes), *t = NULL;
	int values = 2, steps = 0, status = routes ? 0 : hspmd_fail_memory(err, "specialising");
	*hops = false;
	for (size_t k = 0; !status && k < groups; k++) {
		routes[k] = resolve_group(&like->steps[k], elements[k], like->element_bytes, cost, err);
		if (!routes[k] || !works_in_place(routes[k]))
			status = routes[k] ? 1 : -1;
		else
			*hops = *hops || routes[k]->step_count > 1;
		values += routes[k] ? routes[k]->value_count - 2 : 0;
		steps += routes[k] ? routes[k]->step_count : 0;
	}
	*hops = *hops && !status && steps < HSPMD_PROGRAM_MAX_TRANSFER_STEPS;
	if (status >= 0) {
		t = *hops ? empty_transfer(like->element_bytes, values, steps) : fuse_plainly(like, elements);
		if (!t || (*hops && lay_out(t, like, elements))) {
			hspmd_transfer_destroy(t);
			t = NULL;
			hspmd_fail_memory(err, "specialising");
		}
	}
	for (size_t k = 0, first = 1; t && *hops && k < groups; k++) {
		append_steps(t, routes[k], (int)first);
		first += (size_t)routes[k]->value_count - 2;
	}
	for (size_t k = 0; routes && k < groups; k++)
		hspmd_transfer_destroy(routes[k]);
	free(routes);
	return t;
}
