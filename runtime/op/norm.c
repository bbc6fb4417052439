/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm (Ba et al., arXiv 1607.06450): x[..,H], gain[H], bias[H] (optional) -> y, stats[..,2] = mean, 1/deviation. RMS norm (Zhang
 * and Sennrich, arXiv 1910.07467): x[..,n*H], gain[H] -> y, stats[..,n] = 1/rms. With n > 1, heads are normed each for itself and may be
 * split. With sequence parallelism, each device norms its part of the positions, and the gradients of gain and bias are partial. */
#include <string.h>

#include "runtime/op/op_internal.h"

static bool norms_heads(const struct hspmd_shape *x, const struct hspmd_shape *gain)
{
	return hspmd_op_last_dim(x) != hspmd_op_last_dim(gain);
}

static int shape_of(struct hspmd_op_view *v, int64_t stats, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	if (v->in[0].rank < 1)
		return hspmd_fail(err, "input 0 is a scalar");
	for (int i = 1; i < v->input_count; i++)
		if (hspmd_op_has_input(v, i) && (hspmd_op_expect(v, i, 1, false, err) ||
		                                 hspmd_op_expect_dim(v, i, 0, hspmd_op_last_dim(&v->in[0]), "the width of input 0", err)))
			return -1;
	if (!hspmd_op_has_input(v, 1))
		return hspmd_fail(err, "input 1 is missing");
	hspmd_op_output_like(v, 0, 0);
	v->out[1] = v->in[0];
	v->out[1].dim[v->out[1].rank - 1] = stats;
	v->out_dtype[1] = hspmd_dtype_master(v->in_dtype[0]);
	return 0;
}

static int layernorm_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	return shape_of(v, 2, err);
}

static int rmsnorm_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	bool heads = v->in[0].rank == 3 && v->in[1].rank == 1 && norms_heads(&v->in[0], &v->in[1]);
	if (!heads || hspmd_op_last_dim(&v->in[0]) % hspmd_op_last_dim(&v->in[1]))
		return shape_of(v, 1, err);
	if (hspmd_op_expect(v, 0, 3, false, err) || hspmd_op_expect(v, 1, 1, false, err))
		return -1;
	hspmd_op_output_like(v, 0, 0);
	v->out[1] = v->in[0];
	v->out[1].dim[2] /= hspmd_op_last_dim(&v->in[1]);
	v->out_dtype[1] = hspmd_dtype_master(v->in_dtype[0]);
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ .in = { "", "!", "!" } };
	if (norms_heads(&v->in[0], &v->in[1])) {
		r->in_step[0] = r->out_step[0] = hspmd_op_last_dim(&v->in[1]);
		strcpy(r->in[0], "bth");
		strcpy(r->out[0], "bth");
		strcpy(r->out[1], "bth");
		return;
	}
	snprintf(r->in[0], sizeof r->in[0], "%s!", hspmd_rule_leading(v->in[0].rank - 1));
	strcpy(r->out[0], r->in[0]);
	strcpy(r->out[1], r->in[0]);
}

/* The statistics' annotation shows how the forward operator was split. */
static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	const char *rows = hspmd_rule_leading(v->in[1].rank - 1);
	*r = (struct hspmd_op_rule){ .in = { "", "", "!", "" }, .priority = "310" };
	if (norms_heads(&v->in[1], &v->in[2])) {
		*r = (struct hspmd_op_rule){ .in = { "bth", "bth", "!", "bth" }, .out = { "bth", "!/bth" }, .priority = "310" };
		r->in_step[0] = r->in_step[1] = r->out_step[0] = hspmd_op_last_dim(&v->in[2]);
		return;
	}
	for (int i = 0; i < 4; i++)
		if (i != 2)
			snprintf(r->in[i], sizeof r->in[i], "%s!", rows);
	strcpy(r->out[0], r->in[0]);
	snprintf(r->out[1], sizeof r->out[1], "!/%s", rows);
	strcpy(r->out[2], r->out[1]);
}

static int layernorm_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->in[0], op->in[1], op->out[1] };
	int wrt[] = { op->in[0], op->in[1], op->input_count > 2 ? op->in[2] : -1 };
	return hspmd_graph_append_grad(g, HSPMD_OP_LAYERNORM_GRAD, &op->attr, op->layer, in, 4, wrt, 3);
}

static int rmsnorm_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->in[0], op->in[1], op->out[1] };
	return hspmd_graph_append_grad(g, HSPMD_OP_RMSNORM_GRAD, &op->attr, op->layer, in, 4, op->in, 2);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 8, flops, bytes);
}

static void cost_grad(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 14, flops, bytes);
}

const struct hspmd_op_type hspmd_op_layernorm = {
	.min_inputs = 2,
	.max_inputs = 3,
	.output_count = 2,
	.shape = layernorm_shape,
	.rule = rule,
	.backward = layernorm_backward,
	.cheap = true,
	.cost = cost,
	.adds_gradients = true,
};
const struct hspmd_op_type hspmd_op_layernorm_grad = {
	.min_inputs = 4,
	.max_inputs = 4,
	.output_count = 3,
	.rule = rule_grad,
	.cost = cost_grad,
	.accumulates = 1 << 1 | 1 << 2,
	.streams = true,
};
const struct hspmd_op_type hspmd_op_rmsnorm = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 2,
	.shape = rmsnorm_shape,
	.rule = rule,
	.backward = rmsnorm_backward,
	.cheap = true,
	.cost = cost,
	.adds_gradients = true,
};
const struct hspmd_op_type hspmd_op_rmsnorm_grad = {
	.min_inputs = 4,
	.max_inputs = 4,
	.output_count = 2,
	.rule = rule_grad,
	.cost = cost_grad,
	.accumulates = 1 << 1,
	.streams = true,
};
