/* SPDX-License-Identifier: Apache-2.0 */
/* The same elements in other dimensions. Dimensions of x and y are matched in groups of equal size, from the first on; the leading
 * dimension of a group can be split, in steps that are whole rows on both sides. */
#include <inttypes.h>

#include "runtime/op/op_internal.h"

/* numbers[0]: the rank; then the dimensions, of which one may be -1: what is left. */
static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	const int64_t *to = v->attr->numbers + 1, rank = v->attr->numbers[0];
	int64_t known = 1, all = v->in[0].rank < 0 ? 0 : hspmd_shape_elements(&v->in[0]);
	int open = -1;
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	if (rank < 0 || rank > HSPMD_MAX_RANK)
		return hspmd_fail(err, "%" PRId64 " dimensions, expected at most %d", rank, HSPMD_MAX_RANK);
	v->out[0].rank = (int)rank;
	v->out_dtype[0] = v->in_dtype[0];
	for (int d = 0; d < rank; d++) {
		if (to[d] < 1 && (to[d] != -1 || open >= 0))
			return hspmd_fail(err, "dimension %d becomes %" PRId64, d, to[d]);
		open = to[d] == -1 ? d : open;
		known *= to[d] == -1 ? 1 : to[d];
		v->out[0].dim[d] = to[d];
	}
	if (open >= 0)
		v->out[0].dim[open] = all / known;
	if (open >= 0 ? all % known : all != known)
		return hspmd_fail(err, "%" PRId64 " elements do not fit the new dimensions", all);
	return 0;
}

/* Only index 'h' has steps: one group of unequal leading dimensions gets it, others are not split. */
static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	static const char letters[] = "btcdefg";
	const struct hspmd_shape *x = &v->in[0], *y = &v->out[0];
	char in[HSPMD_MAX_RANK + 1] = "", out[HSPMD_MAX_RANK + 1] = "";
	bool stepped = false;
	*r = (struct hspmd_op_rule){ 0 };
	for (int i = 0, o = 0, group = 0; i < x->rank || o < y->rank; group++) {
		int64_t a = i < x->rank ? x->dim[i] : 1, b = o < y->rank ? y->dim[o] : 1, common = hspmd_common_divisor(a, b);
		bool equal = a == b;
		char index = equal ? letters[group] : stepped || common < 2 ? '!' : 'h';
		if (index == 'h') {
			r->in_step[0] = a / common;
			r->out_step[0] = b / common;
			stepped = true;
		}
		if (i < x->rank)
			in[i++] = index;
		if (o < y->rank)
			out[o++] = index;
		for (int64_t left = a, right = b; left != right;)
			if (left < right) {
				left *= x->dim[i];
				in[i++] = '!';
			} else {
				right *= y->dim[o];
				out[o++] = '!';
			}
	}
	snprintf(r->in[0], sizeof r->in[0], "+%s", in);
	snprintf(r->out[0], sizeof r->out[0], "%s", out);
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	return hspmd_graph_append_grad(g, HSPMD_OP_RESHAPE, &op->attr, op->layer, &dy, 1, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 0, flops, bytes);
}

#define CASE(text, dims, ...)                                                                                                              \
	{                                                                                                                                  \
		text, { .numbers = { dims, __VA_ARGS__ } },                                                                                \
		{                                                                                                                          \
			{                                                                                                                  \
				"x", { 3, { 4, 6, 10 } }, HSPMD_EXAMPLE_REAL                                                               \
			}                                                                                                                  \
		}                                                                                                                          \
	}
static const struct hspmd_op_example examples[] = {
	CASE("reshape to heads", 4, 4, 6, 5, -1),
	CASE("reshape, first two in one", 2, 24, 10),
	CASE("reshape, last two in one", 2, 4, 60),
	CASE("reshape, unequal", 4, 6, 2, 2, 10),
	CASE("reshape with ones", 5, 1, 4, 6, 10, 1),
	CASE("reshape, all in one", 1, 240),
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_reshape = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cheap = true,
	.cost = cost,
	.in_place = { 1 },
	.examples = examples,
};
