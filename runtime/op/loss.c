/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax cross-entropy over a vocabulary that may be split: statistics per shard, which are small and therefore gathered, then
 * the loss; the gradient again per shard. */
#include <inttypes.h>

#include "runtime/op/op_internal.h"

static int expect_targets(const struct hspmd_op_view *v, int64_t b, int64_t t, struct hspmd_error *err)
{
	return hspmd_op_expect(v, 1, 2, true, err) || hspmd_op_expect_dim(v, 1, 0, b, "the samples of input 0", err) ||
	                       hspmd_op_expect_dim(v, 1, 1, t, "the positions of input 0", err)
	               ? -1
	               : 0;
}

static int stats_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	const struct hspmd_shape *logits = &v->in[0];
	if (hspmd_op_expect(v, 0, 3, false, err) || expect_targets(v, logits->dim[0], logits->dim[1], err))
		return -1;
	if (v->attr->parts < 1 || v->attr->parts > logits->dim[2])
		return hspmd_fail(err, "a vocabulary of %" PRId64 " cannot be split into %d parts", logits->dim[2], v->attr->parts);
	if (!(v->attr->smoothing >= 0 && v->attr->smoothing < 1))
		return hspmd_fail(err, "labels are smoothed by %g, expected 0 .. 1", v->attr->smoothing);
	v->out[0] = (struct hspmd_shape){ 4, { v->attr->parts, logits->dim[0], logits->dim[1], v->attr->smoothing > 0 ? 4 : 3 } };
	v->out_dtype[0] = hspmd_dtype_master(v->in_dtype[0]);
	return 0;
}

static int loss_shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	const struct hspmd_shape *stats = &v->in[0];
	if (hspmd_op_expect(v, 0, 4, false, err) ||
	    hspmd_op_expect_dim(v, 0, 3, v->attr->smoothing > 0 ? 4 : 3, "the statistics of a token", err) ||
	    expect_targets(v, stats->dim[1], stats->dim[2], err))
		return -1;
	if (hspmd_op_has_input(v, 2) &&
	    (hspmd_op_expect(v, 2, 2, false, err) || hspmd_op_expect_dim(v, 2, 0, stats->dim[1], "the samples of the targets", err) ||
	     hspmd_op_expect_dim(v, 2, 1, stats->dim[2], "the positions of the targets", err)))
		return -1;
	v->out[0] = (struct hspmd_shape){ 1, { 1 } };
	v->out_dtype[0] = HSPMD_F64;
	return 0;
}

static void stats_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "btv", "bt" }, .out = { "Vbt!" } };
}

static void loss_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "!bt!", "bt", "bt" }, .out = { "!/bt" } };
}

static void loss_grad_rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	(void)v;
	*r = (struct hspmd_op_rule){ .in = { "btv", "bt", "!bt!", "bt" }, .out = { "btv" } };
}

/* The gradient needs the logits from which the statistics were made. The loss is the value that is differentiated; its own gradient is
 * 1. */
static int loss_backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int producer = g->tensors[op->in[0]].producer;
	if (producer < 0 || g->ops[producer].opcode != HSPMD_OP_VOCAB_STATS)
		return hspmd_fail(&g->error, "the loss must be made from statistics of logits (vocab_stats) to be differentiated");
	int logits = g->ops[producer].in[0];
	int in[] = { logits, op->in[1], op->in[0], op->input_count > 2 ? op->in[2] : -1 };
	if (op->input_count > 2 && hspmd_op_depends_on_parameters(g, op->in[2]))
		return hspmd_fail(&g->error, "the weights of a loss have no gradient");
	return hspmd_graph_append_grad(g, HSPMD_OP_LOSS_GRAD, &op->attr, op->layer, in, op->input_count > 2 ? 4 : 3, &logits, 1);
}

static void stats_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 12, flops, bytes);
}

static void loss_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 20, flops, bytes);
}

static void cross_entropy_cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 24, flops, bytes);
}

static int64_t stats_choices(const struct hspmd_graph *g, const struct hspmd_op *op)
{
	const struct hspmd_shape *logits = &g->tensors[op->in[0]].shape;
	return logits->dim[logits->rank - 1];
}

const struct hspmd_op_type hspmd_op_vocab_stats = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.shape = stats_shape,
	.rule = stats_rule,
	.cost = stats_cost,
	.choices = stats_choices,
	.padded_in = 1,
};
const struct hspmd_op_type hspmd_op_loss = {
	.min_inputs = 2,
	.max_inputs = 3,
	.output_count = 1,
	.shape = loss_shape,
	.rule = loss_rule,
	.backward = loss_backward,
	.loss_output = 1,
	.cost = loss_cost,
	.accumulates = 1,
};
const struct hspmd_op_type hspmd_op_loss_grad = {
	.min_inputs = 3,
	.max_inputs = 4,
	.output_count = 1,
	.rule = loss_grad_rule,
	.cost = stats_cost,
	.in_place = { 1 },
	.padded_in = 1,
	.padded_out = 1,
};
const struct hspmd_op_type hspmd_op_cross_entropy = {
	.min_inputs = 2,
	.max_inputs = 3,
	.output_count = 2,
	.cost = cross_entropy_cost,
	.in_place = { 1 },
	.padded_in = 1,
	.padded_out = 1,
};
