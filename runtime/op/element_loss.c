/* SPDX-License-Identifier: Apache-2.0 */
/* Losses that are sums over elements: of a tensor itself, of squared differences, or the cross-entropy of a sigmoid. */
#include "runtime/op/op_internal.h"

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	bool alone = v->attr->kind == HSPMD_LOSS_SUM;
	if (v->attr->kind < 0 || v->attr->kind >= HSPMD_LOSS_COUNT)
		return hspmd_fail(err, "there is no loss %d", v->attr->kind);
	if (hspmd_op_expect(v, 0, -1, false, err) ||
	    (!alone && (hspmd_op_expect(v, 1, -1, false, err) || hspmd_op_expect_same(v, 0, 1, err))))
		return -1;
	if (hspmd_op_has_input(v, 2)) {
		if (hspmd_op_expect(v, 2, -1, false, err))
			return -1;
		if (v->in[2].rank > v->in[0].rank)
			return hspmd_fail(err, "weights of %d dimensions for %d", v->in[2].rank, v->in[0].rank);
		for (int d = 0; d < v->in[2].rank; d++)
			if (hspmd_op_expect_dim(v, 2, d, v->in[0].dim[d], "that of input 0", err))
				return -1;
	}
	v->out[0] = (struct hspmd_shape){ 1, { 1 } };
	v->out_dtype[0] = HSPMD_F64;
	return 0;
}

static void rule_of(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ 0 };
	for (int i = 0; i < v->input_count; i++)
		snprintf(r->in[i], sizeof r->in[i], "%s", v->in[i].rank < 0 ? "" : hspmd_rule_leading(v->in[i].rank));
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	rule_of(v, r);
	snprintf(r->out[0], sizeof r->out[0], "!/%s", hspmd_rule_leading(v->in[0].rank));
}

static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	rule_of(v, r);
	snprintf(r->out[0], sizeof r->out[0], "%s", hspmd_rule_leading(v->in[0].rank));
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	for (int i = 1; i < op->input_count; i++)
		if (hspmd_op_depends_on_parameters(g, op->in[i]))
			return hspmd_fail(&g->error, "input %d of a loss has no gradient, but is computed from parameters", i);
	return hspmd_graph_append_grad(g, HSPMD_OP_ELEMENT_LOSS_GRAD, &op->attr, op->layer, op->in, op->input_count, op->in, 1);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, v->attr->kind == HSPMD_LOSS_LOGISTIC ? 20 : 3, flops, bytes);
}

#define GIVEN(name, ...)                                                                                                                   \
	{                                                                                                                                  \
		name, __VA_ARGS__, HSPMD_EXAMPLE_GIVEN                                                                                     \
	}
static const struct hspmd_op_example examples[] = {
	{ "loss of squares",
	  { .kind = HSPMD_LOSS_SQUARED, .scale = 0.3 },
	  { { "x", { 3, { 3, 5, 7 } }, HSPMD_EXAMPLE_REAL }, GIVEN("mask", { 3, { 3, 5, 7 } }) } },
	{ "loss of logits",
	  { .kind = HSPMD_LOSS_LOGISTIC, .scale = 0.3 },
	  { { "x", { 3, { 3, 5, 7 } }, HSPMD_EXAMPLE_REAL }, GIVEN("mask", { 3, { 3, 5, 7 } }), GIVEN("weights", { 2, { 3, 5 } }) } },
	{ "loss of a sum", { .kind = HSPMD_LOSS_SUM, .scale = 0.3 }, { { "x", { 3, { 3, 5, 7 } }, HSPMD_EXAMPLE_REAL } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_element_loss = {
	.min_inputs = 1,
	.max_inputs = 3,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.loss_output = 1,
	.accumulates = 1,
	.cost = cost,
	.examples = examples,
};
const struct hspmd_op_type hspmd_op_element_loss_grad = {
	.min_inputs = 1,
	.max_inputs = 3,
	.output_count = 1,
	.rule = rule_grad,
	.cost = cost,
};
