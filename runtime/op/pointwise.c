/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise operators: gelu, swiglu (gate, up -> f(gate) * up), add, scale, softcap. */
#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	for (int i = 0; i < v->input_count; i++)
		if (hspmd_op_expect(v, i, -1, false, err) || hspmd_op_expect_same(v, 0, i, err))
			return -1;
	hspmd_op_output_like(v, 0, 0);
	return 0;
}

/* `linear`: a prefix for each input: "+" if it may be partial, else "". */
static void rule_of(const struct hspmd_op_view *v, struct hspmd_op_rule *r, const char *linear)
{
	const char *all = hspmd_rule_leading(v->in[0].rank);
	*r = (struct hspmd_op_rule){ 0 };
	for (int i = 0; i < v->input_count; i++)
		snprintf(r->in[i], sizeof r->in[i], "%s%s", linear, all);
	for (int o = 0; o < v->output_count; o++)
		snprintf(r->out[o], sizeof r->out[o], "%s", all);
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	rule_of(v, r, "");
}

/* The forward operator's input has priority: the gradient is brought to its layout. */
static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	rule_of(v, r, "");
	snprintf(r->priority, sizeof r->priority, "%s", v->input_count > 2 ? "120" : "10");
}

/* A partial addend is preferably brought to the layout of the other one. */
static void rule_add(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	rule_of(v, r, "+");
	if (v->annotation[0] && hspmd_annotation_is_partial(v->annotation[0]))
		snprintf(r->priority, sizeof r->priority, "10");
}

static int gelu_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->in[0] };
	return hspmd_graph_append_grad(g, HSPMD_OP_GELU_GRAD, &op->attr, op->layer, in, 2, op->in, 1);
}

/* A multiple of partial addends is partial. */
static void rule_scale(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	rule_of(v, r, "+");
}

static int scale_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	return hspmd_graph_append_grad(g, HSPMD_OP_SCALE, &op->attr, op->layer, &dy, 1, op->in, 1);
}

static int softcap_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->out[0] };
	return hspmd_graph_append_grad(g, HSPMD_OP_SOFTCAP_GRAD, &op->attr, op->layer, in, 2, op->in, 1);
}

static int swiglu_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->in[0], op->in[1] };
	return hspmd_graph_append_grad(g, HSPMD_OP_SWIGLU_GRAD, &op->attr, op->layer, in, 3, op->in, 2);
}

static int add_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	return hspmd_graph_pass_grad(g, dy, op->in[0], op->layer) || hspmd_graph_pass_grad(g, dy, op->in[1], op->layer) ? -1 : 0;
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 12, flops, bytes);
}

static void add_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 1, flops, bytes);
}

const struct hspmd_op_type hspmd_op_scale = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = shape,
	.rule = rule_scale,
	.backward = scale_backward,
	.cheap = true,
	.cost = add_cost,
	.in_place = { 1 },
};
const struct hspmd_op_type hspmd_op_softcap = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = softcap_backward,
	.cheap = true,
	.cost = cost,
	.in_place = { 1 },
};
const struct hspmd_op_type hspmd_op_softcap_grad = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.rule = rule_grad,
	.cost = cost,
	.in_place = { 1 },
	.streams = true,
};
const struct hspmd_op_type hspmd_op_gelu = {
	.min_inputs = 1,
	.max_inputs = 1,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = gelu_backward,
	.cheap = true,
	.cost = cost,
	.in_place = { 1 },
};
const struct hspmd_op_type hspmd_op_gelu_grad = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.rule = rule_grad,
	.cost = cost,
	.in_place = { 1 },
	.streams = true,
};
const struct hspmd_op_type hspmd_op_swiglu = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = swiglu_backward,
	.cheap = true,
	.cost = cost,
	.in_place = { 1 },
};
const struct hspmd_op_type hspmd_op_swiglu_grad = {
	.min_inputs = 3,
	.max_inputs = 3,
	.output_count = 2,
	.rule = rule_grad,
	.cost = cost,
	.in_place = { 1, 2 },
	.streams = true,
};
const struct hspmd_op_type hspmd_op_add = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.shape = shape,
	.rule = rule_add,
	.backward = add_backward,
	.cost = add_cost,
	.in_place = { 1 },
};
