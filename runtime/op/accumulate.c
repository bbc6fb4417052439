/* SPDX-License-Identifier: Apache-2.0 */
/* Adds a gradient to that of a parameter, where the operator that computes it cannot (op_type.h, accumulates). */
#include "runtime/op/op_internal.h"

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	const char *all = hspmd_rule_leading(v->in[0].rank);
	*r = (struct hspmd_op_rule){ .priority = "1" };
	snprintf(r->in[0], sizeof r->in[0], "%s%s", v->attr->kind ? "" : "+", all);
	snprintf(r->in[1], sizeof r->in[1], "%s", all);
	snprintf(r->out[0], sizeof r->out[0], "%s", all);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	double elements = hspmd_op_elements(&v->in[0]);
	*flops = elements;
	*bytes = elements * (double)(hspmd_dtype_bytes(v->in_dtype[0]) + 2 * hspmd_dtype_bytes(v->out_dtype[0]));
}

const struct hspmd_op_type hspmd_op_accumulate = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.rule = rule,
	.accumulates = 1,
	.cost = cost,
};
