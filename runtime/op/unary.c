/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one element. The gradient reads the result if the slope follows from it, so that the input need not be kept. */
#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, -1, false, err))
		return -1;
	if (v->attr->kind < 0 || v->attr->kind >= HSPMD_UNARY_COUNT)
		return hspmd_fail(err, "there is no function %d", v->attr->kind);
	hspmd_op_output_like(v, 0, 0);
	return 0;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ 0 };
	snprintf(r->in[0], sizeof r->in[0], "%s", hspmd_rule_leading(v->in[0].rank));
	snprintf(r->out[0], sizeof r->out[0], "%s", hspmd_rule_leading(v->in[0].rank));
}

/* The gradient is brought to the layout of the forward value. */
static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	rule(v, r);
	snprintf(r->in[1], sizeof r->in[1], "%s", r->in[0]);
	snprintf(r->priority, sizeof r->priority, "10");
}

static bool reads_input(int kind)
{
	return kind == HSPMD_UNARY_SILU || kind == HSPMD_UNARY_LOG || kind == HSPMD_UNARY_POWER;
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), reads_input(op->attr.kind) ? op->in[0] : op->out[0] };
	return hspmd_graph_append_grad(g, HSPMD_OP_UNARY_GRAD, &op->attr, op->layer, in, 2, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, v->attr->kind == HSPMD_UNARY_RELU ? 1 : 12, flops, bytes);
}

#define CASE(text, function, tensor)                                                                                                       \
	{                                                                                                                                  \
		text, { .kind = HSPMD_UNARY_##function, .exponent = 1.7 },                                                                 \
		{                                                                                                                          \
			{                                                                                                                  \
				tensor, { 4, { 3, 5, 2, 7 } }, HSPMD_EXAMPLE_REAL                                                          \
			}                                                                                                                  \
		}                                                                                                                          \
	}
static const struct hspmd_op_example examples[] = {
	CASE("relu", RELU, "x"),    CASE("sigmoid", SIGMOID, "x"), CASE("silu", SILU, "x"),        CASE("tanh", TANH, "x"),
	CASE("exp", EXP, "x"),      CASE("log", LOG, "positive"),  CASE("sqrt", SQRT, "positive"), CASE("power", POWER, "positive"),
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_unary = {
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
const struct hspmd_op_type hspmd_op_unary_grad = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.rule = rule_grad,
	.cost = cost,
	.in_place = { 1 },
	.streams = true,
};
