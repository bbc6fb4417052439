/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over dimensions, and their converse, which repeats a tensor along dimensions: either is the gradient of the other for sums. A
 * dimension of the larger tensor is reduced if its bit in numbers[0] is set; the smaller one lacks it, or, with numbers[1], has one element
 * there (or none, if it has fewer dimensions: they are aligned at the last). */
#include <inttypes.h>
#include <string.h>

#include "runtime/op/op_internal.h"

static bool is_reduced(const struct hspmd_op_attr *attr, int dim)
{
	return attr->numbers[0] >> dim & 1;
}

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	if (v->attr->numbers[0] >> v->in[0].rank)
		return hspmd_fail(err, "input 0 has %d dimensions only", v->in[0].rank);
	v->out_dtype[0] = v->in_dtype[0];
	for (int d = 0; d < v->in[0].rank; d++)
		if (!is_reduced(v->attr, d) || v->attr->numbers[1])
			v->out[0].dim[v->out[0].rank++] = is_reduced(v->attr, d) ? 1 : v->in[0].dim[d];
	return 0;
}

/* numbers[2] and those after it: rank and dimensions of the result. */
static int broadcast_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	const struct hspmd_shape *x = &v->in[0];
	const int64_t *to = v->attr->numbers + 3, rank = v->attr->numbers[2];
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	if (rank < x->rank || rank > HSPMD_MAX_RANK)
		return hspmd_fail(err, "%d dimensions cannot become %" PRId64, x->rank, rank);
	v->out[0].rank = (int)rank;
	memcpy(v->out[0].dim, to, (size_t)rank * sizeof *to);
	v->out_dtype[0] = v->in_dtype[0];
	for (int d = 0; d < rank; d++) {
		int own = d - (int)rank + x->rank;
		bool repeated = own < 0 || x->dim[own] != to[d];
		if (to[d] < 1 || (repeated && own >= 0 && x->dim[own] != 1) || repeated != is_reduced(v->attr, d) || !v->attr->numbers[1])
			return hspmd_fail(err, "dimension %d cannot become %" PRId64, d, to[d]);
	}
	return 0;
}

/* Indices of the larger tensor's dimensions, those of the smaller one, and those that are reduced. */
struct indices {
	char large[HSPMD_MAX_RANK + 1], small[HSPMD_MAX_RANK + 1], reduced[HSPMD_MAX_RANK + 1];
};

static struct indices indices_of(const struct hspmd_op_attr *attr, int rank, int small_rank)
{
	struct indices x = { 0 };
	char *small = x.small, *reduced = x.reduced;
	strcpy(x.large, hspmd_rule_leading(rank));
	for (int d = 0; d < rank; d++) {
		bool is = is_reduced(attr, d);
		if (is)
			*reduced++ = x.large[d];
		if (attr->numbers[1] ? d >= rank - small_rank : !is)
			*small++ = is ? '!' : x.large[d];
	}
	return x;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	struct indices x = indices_of(v->attr, v->in[0].rank, v->out[0].rank);
	*r = (struct hspmd_op_rule){ 0 };
	if (v->attr->kind == HSPMD_REDUCE_SUM) {
		snprintf(r->in[0], sizeof r->in[0], "+%s", x.large);
		snprintf(r->out[0], sizeof r->out[0], "%s/%s", x.small, x.reduced);
		return;
	}
	for (int d = 0; d < v->in[0].rank; d++)
		x.large[d] = is_reduced(v->attr, d) ? '!' : x.large[d];
	strcpy(r->in[0], x.large);
	strcpy(r->out[0], x.small);
}

static void broadcast_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	struct indices x = indices_of(v->attr, v->out[0].rank, v->in[0].rank);
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->in[0], sizeof r->in[0], "+%s", x.small);
	strcpy(r->out[0], x.large);
}

static void max_grad_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	struct indices x = indices_of(v->attr, v->in[2].rank, v->in[0].rank);
	*r = (struct hspmd_op_rule){ .priority = "210" };
	for (int d = 0; d < v->in[2].rank; d++)
		x.large[d] = is_reduced(v->attr, d) ? '!' : x.large[d];
	strcpy(r->in[0], x.small);
	strcpy(r->in[1], x.small);
	strcpy(r->in[2], x.large);
	strcpy(r->out[0], x.large);
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->out[0], op->in[0] };
	bool sum = op->attr.kind == HSPMD_REDUCE_SUM;
	return hspmd_graph_append_grad(g, sum ? HSPMD_OP_BROADCAST : HSPMD_OP_MAX_GRAD, &op->attr, op->layer, in, sum ? 1 : 3, op->in, 1);
}

static int broadcast_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	struct hspmd_op_attr attr = op->attr;
	attr.kind = HSPMD_REDUCE_SUM;
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	return hspmd_graph_append_grad(g, HSPMD_OP_REDUCE, &attr, op->layer, &dy, 1, op->in, 1);
}

int hspmd_op_sum_to(struct hspmd_graph *g, int grad, int wrt, int layer)
{
	const struct hspmd_shape *large = &g->tensors[grad].shape, *small = &g->tensors[wrt].shape;
	struct hspmd_op_attr attr = { .kind = HSPMD_REDUCE_SUM, .scale = 1, .numbers = { 0, 1 } };
	for (int d = 0; d < large->rank; d++) {
		int own = d - large->rank + small->rank;
		if (own < 0 || small->dim[own] != large->dim[d])
			attr.numbers[0] |= INT64_C(1) << d;
	}
	if (!attr.numbers[0])
		return hspmd_graph_pass_grad(g, grad, wrt, layer);
	return hspmd_graph_append_grad(g, HSPMD_OP_REDUCE, &attr, layer, &grad, 1, &wrt, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 1, flops, bytes);
}

static void broadcast_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = hspmd_op_elements(&v->out[0]);
	*bytes = hspmd_op_bytes(v);
}

static void max_grad_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = 2 * hspmd_op_elements(&v->in[2]);
	*bytes = hspmd_op_bytes(v);
}

#define CASE(text, function, ...)                                                                                                          \
	{                                                                                                                                  \
		text, { .kind = HSPMD_REDUCE_##function, .scale = 0.25, .numbers = { __VA_ARGS__ } },                                      \
		{                                                                                                                          \
			{                                                                                                                  \
				"x", { 4, { 3, 2, 7, 21 } }, HSPMD_EXAMPLE_REAL                                                            \
			}                                                                                                                  \
		}                                                                                                                          \
	}
static const struct hspmd_op_example examples[] = {
	CASE("sum over the last", SUM, 1 << 3, 0),
	CASE("sum over the first", SUM, 1 << 0 | 1 << 1, 0),
	CASE("sum over all", SUM, 15, 0),
	CASE("sum over planes", SUM, 1 << 2 | 1 << 3, 1),
	CASE("max over the last", MAX, 1 << 3, 1),
	CASE("max over the middle", MAX, 1 << 1 | 1 << 2, 0),
	{ NULL, { 0 }, { { 0 } } },
};
static const struct hspmd_op_example broadcast_examples[] = {
	{ "repeat", { .scale = 0.5, .numbers = { 1 << 0 | 1 << 2, 1, 3, 4, 5, 6 } }, { { "x", { 2, { 5, 1 } }, HSPMD_EXAMPLE_REAL } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_reduce = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cost = cost,
	.examples = examples,
};
const struct hspmd_op_type hspmd_op_max_grad = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 1,
	.rule = max_grad_rule,
	.cost = max_grad_cost,
};
const struct hspmd_op_type hspmd_op_broadcast = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = broadcast_shape,
	.rule = broadcast_rule,
	.backward = broadcast_backward,
	.cheap = true,
	.cost = broadcast_cost,
	.examples = broadcast_examples,
};
