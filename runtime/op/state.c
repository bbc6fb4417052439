/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on parameters, gradients and optimizer state, which are run outside a graph, and the conversion of floating types. */
#include "runtime/op/op_internal.h"

static void cast_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->in[0], sizeof r->in[0], "+%s", hspmd_rule_leading(v->in[0].rank));
	snprintf(r->out[0], sizeof r->out[0], "%s", hspmd_rule_leading(v->in[0].rank));
}

/* In a graph, attr.kind is the type of the result. */
static int cast_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	hspmd_op_output_like(v, 0, 0);
	v->out_dtype[0] = (enum hspmd_dtype)v->attr->kind;
	return 0;
}

static void sum_squares_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->in[0], sizeof r->in[0], "%s", hspmd_rule_leading(v->in[0].rank));
	snprintf(r->out[0], sizeof r->out[0], "!/%s", hspmd_rule_leading(v->in[0].rank));
}

static void sum_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 2, flops, bytes);
}

static void adamw_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 15, flops, bytes);
	*bytes += 3 * hspmd_op_elements(&v->in[0]) * (double)hspmd_dtype_bytes(v->in_dtype[0]); /* the outputs are read too */
}

static void fill_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = 0;
	*bytes = hspmd_op_bytes(v);
}

const struct hspmd_op_type hspmd_op_sum_squares = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.rule = sum_squares_rule,
	.cost = sum_cost,
};
const struct hspmd_op_type hspmd_op_adamw = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 3,
	.cost = adamw_cost,
};
const struct hspmd_op_type hspmd_op_normal = {
	.min_inputs = 0,
	.max_inputs = 0,
	.output_count = 1,
	.cost = fill_cost,
};
const struct hspmd_op_type hspmd_op_fill = {
	.min_inputs = 0,
	.max_inputs = 0,
	.output_count = 1,
	.cost = fill_cost,
};
const struct hspmd_op_type hspmd_op_cast = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = cast_shape,
	.rule = cast_rule,
	.cost = fill_cost,
};
