/* SPDX-License-Identifier: Apache-2.0 */
/* Group norm (Wu and He, arXiv 1803.08494): the channels of a sample are normed in groups, each over its channels and all positions. Channels
 * can be split between groups. */
#include <inttypes.h>

#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	if (v->in[0].rank < 2)
		return hspmd_fail(err, "input 0 has no channels");
	int64_t channels = v->in[0].dim[1], groups = v->attr->groups;
	if (groups < 1 || channels % groups)
		return hspmd_fail(err, "%" PRId64 " channels do not make %" PRId64 " groups", channels, groups);
	for (int i = 1; i < 3; i++)
		if (hspmd_op_expect(v, i, 1, false, err) || hspmd_op_expect_dim(v, i, 0, channels, "the channels of input 0", err))
			return -1;
	hspmd_op_output_like(v, 0, 0);
	v->out[1] = (struct hspmd_shape){ 3, { v->in[0].dim[0], groups, 2 } };
	v->out_dtype[1] = hspmd_dtype_master(v->in_dtype[0]);
	return 0;
}

/* Samples, channels in steps of a group, whole positions. */
static void set_pattern(char *to, const struct hspmd_shape *x)
{
	snprintf(to, HSPMD_MAX_RANK + 1, "%.*s", x->rank, "bh!!!!");
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	int64_t step = v->in[0].dim[1] / v->attr->groups;
	*r = (struct hspmd_op_rule){ .in = { "", "h", "h" }, .out = { "", "bh!" } };
	set_pattern(r->in[0], &v->in[0]);
	set_pattern(r->out[0], &v->in[0]);
	r->in_step[0] = r->in_step[1] = r->in_step[2] = r->out_step[0] = step;
}

/* Inputs: dy, x, gain, stats. */
static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	int64_t step = v->in[1].dim[1] / v->attr->groups;
	*r = (struct hspmd_op_rule){ .in = { "", "", "h", "bh!" }, .out = { "", "h/b", "h/b" }, .priority = "3102" };
	set_pattern(r->in[0], &v->in[1]);
	set_pattern(r->in[1], &v->in[1]);
	set_pattern(r->out[0], &v->in[1]);
	r->in_step[0] = r->in_step[1] = r->in_step[2] = r->out_step[0] = r->out_step[1] = r->out_step[2] = step;
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->in[0], op->in[1], op->out[1] };
	return hspmd_graph_append_grad(g, HSPMD_OP_GROUP_NORM_GRAD, &op->attr, op->layer, in, 4, op->in, 3);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 8, flops, bytes);
}

static void cost_grad(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 14, flops, bytes);
}

static const struct hspmd_op_example examples[] = {
	{ "group norm",
	  { .groups = 3, .eps = 1e-5 },
	  { { "x", { 4, { 3, 6, 5, 7 } }, HSPMD_EXAMPLE_REAL },
	    { "gain", { 1, { 6 } }, HSPMD_EXAMPLE_REAL },
	    { "bias", { 1, { 6 } }, 0 } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_group_norm = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 2,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cheap = true,
	.cost = cost,
	.examples = examples,
	.adds_gradients = true,
};
const struct hspmd_op_type hspmd_op_group_norm_grad = {
	.min_inputs = 4,
	.max_inputs = 4,
	.output_count = 3,
	.rule = rule_grad,
	.accumulates = 1 << 1 | 1 << 2,
	.cost = cost_grad,
};
