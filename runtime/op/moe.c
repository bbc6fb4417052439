/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture of experts (Jiang et al., "Mixtral of Experts", arXiv 2401.04088, section 2.1). The router sends each token to the k experts of
 * largest logit. Experts may be divided among devices (expert parallel); every device adds the results of its own experts, and reads and
 * adds to only the rows that chose one of them (struct hspmd_op_type, rows), so that no others need to be sent. The balance loss
 * is computed for each sample alone (the product of fractions in Fedus et al., "Switch Transformers", arXiv 2101.03961, section 2.2, taken
 * over the tokens of a sample), so that it does not depend on how samples are divided among micro-batches and devices. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/op/moe.h"

static int route_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_op_expect(v, 0, 3, false, err) || hspmd_op_expect_dim(v, 0, 2, v->attr->experts, "the number of experts", err))
		return -1;
	int64_t b = v->in[0].dim[0], t = v->in[0].dim[1], k = v->attr->experts_per_token;
	if (k < 1 || k > v->attr->experts)
		return hspmd_fail(err, "%" PRId64 " experts per token, expected 1..%d", k, v->attr->experts);
	if (v->attr->groups &&
	    (v->attr->experts % v->attr->groups || v->attr->groups > 64 || v->attr->top_groups < 1 ||
	     v->attr->top_groups > v->attr->groups || k > (int64_t)v->attr->experts / v->attr->groups * v->attr->top_groups))
		return hspmd_fail(err, "%d experts in %d groups, of which %d are chosen", v->attr->experts, v->attr->groups,
		                  v->attr->top_groups);
	if (hspmd_op_has_input(v, 1) &&
	    (hspmd_op_expect(v, 1, 1, false, err) || hspmd_op_expect_dim(v, 1, 0, v->attr->experts, "the number of experts", err)))
		return -1;
	v->out[0] = v->out[1] = (struct hspmd_shape){ 3, { b, t, k } };
	v->out[2] = (struct hspmd_shape){ 1, { 1 } };
	v->out[3] = (struct hspmd_shape){ 2, { b, v->attr->experts } };
	v->out_dtype[0] = v->in_dtype[0];
	v->out_dtype[1] = HSPMD_I32;
	v->out_dtype[2] = HSPMD_F64;
	v->out_dtype[3] = hspmd_dtype_master(v->in_dtype[0]);
	return 0;
}

/* The load is counted over a whole sample. */
static void route_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "b!!", "!" }, .out = { "b!!", "b!!", "!/b", "b!" } };
}

static void route_grad_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "b!!", "b!!", "b!!", "b!!", "b!" }, .out = { "b!!", "!/b" }, .priority = "41230" };
}

static int route_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->in[0], op->out[0], op->out[1], op->out[3] };
	return hspmd_graph_append_grad(g, HSPMD_OP_TOPK_ROUTER_GRAD, &op->attr, op->layer, in, 5, op->in, op->input_count);
}

static int expect_biases(const struct hspmd_op_view *v, const struct hspmd_shape *gate, int64_t width, struct hspmd_error *err)
{
	if (v->input_count != 9)
		return hspmd_fail(err, "%d inputs, expected 6, or 9 with the biases of gate, up and down", v->input_count);
	for (int i = 6; i < 9; i++)
		if (hspmd_op_expect(v, i, 2, false, err) || hspmd_op_expect_dim(v, i, 0, gate->dim[0], "the experts of input 3", err) ||
		    hspmd_op_expect_dim(v, i, 1, i < 8 ? gate->dim[1] : width, "the width of the matrix", err))
			return -1;
	return 0;
}

int hspmd_experts_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	const struct hspmd_shape *x = &v->in[0], *gate = &v->in[3];
	if (hspmd_op_expect(v, 0, 3, false, err) || hspmd_op_expect(v, 1, 3, true, err) || hspmd_op_expect(v, 2, 3, false, err) ||
	    hspmd_op_expect(v, 3, 3, false, err) || hspmd_op_expect(v, 4, 3, false, err) || hspmd_op_expect(v, 5, 3, false, err) ||
	    hspmd_op_expect_same(v, 1, 2, err) || hspmd_op_expect_same(v, 3, 4, err) ||
	    hspmd_op_expect_dim(v, 1, 0, x->dim[0], "the samples of input 0", err) ||
	    hspmd_op_expect_dim(v, 1, 1, x->dim[1], "the positions of input 0", err) ||
	    hspmd_op_expect_dim(v, 3, 2, x->dim[2], "the width of input 0", err) ||
	    hspmd_op_expect_dim(v, 5, 0, gate->dim[0], "the experts of input 3", err) ||
	    hspmd_op_expect_dim(v, 5, 1, x->dim[2], "the width of input 0", err) ||
	    hspmd_op_expect_dim(v, 5, 2, gate->dim[1], "the inner width of input 3", err))
		return -1;
	hspmd_op_output_like(v, 0, 0);
	return 0;
}

static int experts_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (hspmd_experts_shape(v, err))
		return -1;
	return v->input_count > 6 ? expect_biases(v, &v->in[3], v->in[0].dim[2], err) : 0;
}

void hspmd_experts_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ .in = { "bt!", "bt!", "bt!", "ef!", "ef!", "e!f", "ef", "ef", "e!" }, .out = { "bt!/ef" } };
	strcpy(r->priority, v->input_count > 6 ? "345012678" : "345012");
}

/* dy, x, choice, weights, gate, up, down, (biases) -> dx, dweights, dgate, dup, ddown, (dbiases). */
void hspmd_experts_rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ .in = { "+bt!", "bt!", "bt!", "bt!", "ef!", "ef!", "e!f", "ef", "ef", "e!" },
		                     .out = { "bt!/ef", "bt!/ef", "ef!/bt", "ef!/bt", "e!f/bt", "ef/bt", "ef/bt", "e!/bt" } };
	strcpy(r->priority, v->input_count > 7 ? "4561230789" : "4561230");
}

static int experts_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]),
		     op->in[0],
		     op->in[1],
		     op->in[2],
		     op->in[3],
		     op->in[4],
		     op->in[5],
		     op->in[6],
		     op->in[7],
		     op->in[8] };
	int wrt[] = { op->in[0], op->in[2], op->in[3], op->in[4], op->in[5], op->in[6], op->in[7], op->in[8] };
	int biases = op->input_count - 6;
	return hspmd_graph_append_grad(g, HSPMD_OP_EXPERTS_GRAD, &op->attr, op->layer, in, 7 + biases, wrt, 5 + biases);
}

static void route_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 20, flops, bytes);
}

/* Assumes that tokens spread evenly over all experts; this call computes those of its gate->dim[0] local experts. */
static void cost_of(const struct hspmd_op_view *v, const struct hspmd_shape *x, const struct hspmd_shape *gate, double products,
                    double *flops, double *bytes)
{
	double tokens = (double)(x->dim[0] * x->dim[1]) * v->attr->experts_per_token * (double)gate->dim[0] / v->attr->experts;
	*flops = 2 * products * tokens * (double)(gate->dim[1] * gate->dim[2]);
	*bytes = hspmd_op_bytes(v);
}

/* Rows of all tokens that may choose one expert, as it gets them and within it: in F32 one expert after another, or in their own type. */
static double workspace_of(const struct hspmd_op_view *v, const struct hspmd_shape *x, const struct hspmd_shape *gate, bool backward,
                           bool at_once)
{
	double rows = (double)(x->dim[0] * x->dim[1]) * (at_once ? v->attr->experts_per_token : 1);
	double width = (double)x->dim[2], inner = (double)gate->dim[1], wide = width > inner ? width : inner;
	double size = at_once ? (double)hspmd_dtype_bytes(v->in_dtype[backward]) : 4;
	return size * rows * ((backward ? 2 : 1) * width + 3 * inner + wide);
}

double hspmd_experts_workspace(const struct hspmd_op_view *v, bool at_once)
{
	return workspace_of(v, &v->in[0], &v->in[3], false, at_once);
}

double hspmd_experts_workspace_grad(const struct hspmd_op_view *v, bool at_once)
{
	return workspace_of(v, &v->in[1], &v->in[4], true, at_once);
}

/* The tokens of one expert may be all. */
static void product_of(const struct hspmd_shape *x, const struct hspmd_shape *gate, double *extent, double *rows)
{
	*extent = fmax((double)x->dim[2], (double)gate->dim[1]);
	*rows = (double)(x->dim[0] * x->dim[1]);
}

void hspmd_experts_product(const struct hspmd_op_view *v, double *extent, double *rows)
{
	product_of(&v->in[0], &v->in[3], extent, rows);
}

void hspmd_experts_product_grad(const struct hspmd_op_view *v, double *extent, double *rows)
{
	product_of(&v->in[1], &v->in[4], extent, rows);
}

void hspmd_experts_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	cost_of(v, &v->in[0], &v->in[3], 3, flops, bytes);
}

void hspmd_experts_cost_grad(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	cost_of(v, &v->in[1], &v->in[4], 8, flops, bytes);
}

const struct hspmd_op_type hspmd_op_topk_router = {
	.min_inputs = 1,
	.max_inputs = 2,
	.output_count = 4,
	.shape = route_shape,
	.rule = route_rule,
	.backward = route_backward,
	.loss_output = 3,
	.cost = route_cost,
	.accumulates = 1 << 2,
	.adds_gradients = true,
};
const struct hspmd_op_type hspmd_op_topk_router_grad = {
	.min_inputs = 5,
	.max_inputs = 5,
	.output_count = 1,
	.rule = route_grad_rule,
	.cost = route_cost,
	.accumulates = 1 << 1,
};
const struct hspmd_op_type hspmd_op_experts = {
	.min_inputs = 6,
	.max_inputs = 9,
	.output_count = 1,
	.shape = experts_shape,
	.rule = hspmd_experts_rule,
	.backward = experts_backward,
	.cost = hspmd_experts_cost,
	.workspace = hspmd_experts_workspace,
	.product = hspmd_experts_product,
	.rows = { .choice = 1 + 1, .in = 1 << 0, .out = 1 << 0 },
	.adds_gradients = true,
};
const struct hspmd_op_type hspmd_op_experts_grad = {
	.min_inputs = 7,
	.max_inputs = 10,
	.output_count = 5,
	.rule = hspmd_experts_rule_grad,
	.cost = hspmd_experts_cost_grad,
	.workspace = hspmd_experts_workspace_grad,
	.product = hspmd_experts_product_grad,
	.rows = { .choice = 1 + 2, .in = 1 << 0 | 1 << 1, .out = 1 << 0 },
	.accumulates = 0xfc,
};
