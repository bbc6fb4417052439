/* SPDX-License-Identifier: Apache-2.0 */
/* Two-dimensional convolution. Samples and output channels can be split, input channels too (the result is then partial, as a linear
 * layer's is), and with several groups only whole groups; positions cannot. numbers: stride, padding and dilation, each for rows and
 * columns. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/op/op_internal.h"

/* A CPU device has the windows of so many positions of a sample as columns at a time, or of several samples if they have few positions
 * (runtime/device/cpu/conv.c). */
#define PART 2048
#define JOINED 512

static int64_t groups_of(const struct hspmd_op_attr *attr)
{
	return attr->groups > 1 ? attr->groups : 1;
}

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	const struct hspmd_shape *x = &v->in[0], *w = &v->in[1];
	const int64_t *n = v->attr->numbers, groups = groups_of(v->attr);
	if (hspmd_op_expect(v, 0, 4, false, err) || hspmd_op_expect(v, 1, 4, false, err))
		return -1;
	if (x->dim[1] % groups || w->dim[0] % groups)
		return hspmd_fail(err, "%" PRId64 " and %" PRId64 " channels do not make %" PRId64 " groups", x->dim[1], w->dim[0], groups);
	if (hspmd_op_expect_dim(v, 1, 1, x->dim[1] / groups, "the channels of a group", err))
		return -1;
	if (hspmd_op_has_input(v, 2) &&
	    (hspmd_op_expect(v, 2, 1, false, err) || hspmd_op_expect_dim(v, 2, 0, w->dim[0], "the weight's outputs", err)))
		return -1;
	v->out[0] = (struct hspmd_shape){ 4, { x->dim[0], w->dim[0] } };
	v->out_dtype[0] = v->in_dtype[0];
	for (int d = 0; d < 2; d++) {
		int64_t room = x->dim[2 + d] + 2 * n[2 + d] - n[4 + d] * (w->dim[2 + d] - 1) - 1;
		if (n[d] < 1 || n[2 + d] < 0 || n[4 + d] < 1 || room < 0)
			return hspmd_fail(err, "a window of %" PRId64 " does not fit into %" PRId64 " positions", w->dim[2 + d],
			                  x->dim[2 + d]);
		v->out[0].dim[2 + d] = room / n[d] + 1;
	}
	return 0;
}

/* Several groups are split together: index h in steps of a group. Else o are outputs, c inputs. */
struct patterns {
	const char *x, *w, *bias, *y, *y_sum, *x_sum, *w_sum, *bias_sum;
};

static struct patterns patterns_of(const struct hspmd_op_attr *attr)
{
	if (groups_of(attr) > 1)
		return (struct patterns){ "bh!!", "h!!!", "h", "bh!!", "bh!!", "bh!!", "h!!!/b", "h/b" };
	return (struct patterns){ "bc!!", "oc!!", "o", "bo!!", "bo!!/c", "bc!!/o", "oc!!/b", "o/b" };
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	struct patterns p = patterns_of(v->attr);
	int64_t groups = groups_of(v->attr);
	*r = (struct hspmd_op_rule){ .priority = "1201" };
	snprintf(r->in[0], sizeof r->in[0], "%s%s", hspmd_op_has_input(v, 2) ? "" : "+", p.x);
	strcpy(r->in[1], p.w);
	strcpy(r->in[2], p.bias);
	strcpy(r->out[0], p.y_sum);
	r->in_step[0] = v->in[0].dim[1] / groups;
	r->in_step[1] = r->in_step[2] = r->out_step[0] = v->in[1].dim[0] / groups;
}

static void rule_grad_x(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	struct patterns p = patterns_of(v->attr);
	int64_t groups = groups_of(v->attr);
	*r = (struct hspmd_op_rule){ .priority = "10" };
	snprintf(r->in[0], sizeof r->in[0], "+%s", p.y);
	strcpy(r->in[1], p.w);
	strcpy(r->out[0], p.x_sum);
	r->in_step[0] = r->in_step[1] = v->in[1].dim[0] / groups;
	r->out_step[0] = v->in[1].dim[1];
}

/* Splits of channels have priority over those of samples: they leave dw split like the weight. */
static void rule_grad_w(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	struct patterns p = patterns_of(v->attr);
	int64_t groups = groups_of(v->attr);
	*r = (struct hspmd_op_rule){ .priority = "0oh1ch01" };
	snprintf(r->in[0], sizeof r->in[0], "+%s", p.y);
	strcpy(r->in[1], p.x);
	strcpy(r->out[0], p.w_sum);
	strcpy(r->out[1], p.bias_sum);
	r->in_step[0] = r->out_step[0] = r->out_step[1] = v->in[0].dim[1] / groups;
	r->in_step[1] = v->in[1].dim[1] / groups;
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int dy = hspmd_graph_grad_of(g, op->out[0]);
	int for_x[] = { dy, op->in[1] }, for_w[] = { dy, op->in[0] }, wrt[] = { op->in[1], op->input_count > 2 ? op->in[2] : -1 };
	return hspmd_graph_append_grad(g, HSPMD_OP_CONV_GRAD_W, &op->attr, op->layer, for_w, 2, wrt, 2) ||
	                       hspmd_graph_append_grad(g, HSPMD_OP_CONV_GRAD_X, &op->attr, op->layer, for_x, 2, op->in, 1)
	               ? -1
	               : 0;
}

/* Each output is a sum over a window of the channels of its group. */
static void cost_of(const struct hspmd_op_view *v, const struct hspmd_shape *y, const struct hspmd_shape *w, double *flops, double *bytes)
{
	*flops = 2 * hspmd_op_elements(y) * hspmd_op_elements(w) / (double)w->dim[0];
	*bytes = hspmd_op_bytes(v);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	cost_of(v, &v->out[0], &v->in[1], flops, bytes);
}

static void cost_grad_x(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	cost_of(v, &v->in[0], &v->in[1], flops, bytes);
}

static void cost_grad_w(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	*flops = 0;
	*bytes = hspmd_op_bytes(v);
	if (v->out[0].rank >= 0) /* else only the bias has a gradient */
		cost_of(v, &v->in[0], &v->out[0], flops, bytes);
}

static bool is_joined(double positions)
{
	return positions <= JOINED / 2;
}

static double windows_of(const struct hspmd_op_view *v, const struct hspmd_shape *y, const struct hspmd_shape *w)
{
	double window = (double)(w->dim[1] * w->dim[2] * w->dim[3]) * (double)groups_of(v->attr);
	return window * (double)(y->dim[0] * y->dim[2] * y->dim[3]) * (double)hspmd_dtype_bytes(v->in_dtype[0]);
}

static double windows(const struct hspmd_op_view *v)
{
	return windows_of(v, &v->out[0], &v->in[1]);
}

static double windows_grad_x(const struct hspmd_op_view *v)
{
	return windows_of(v, &v->in[0], &v->in[1]);
}

static double windows_grad_w(const struct hspmd_op_view *v)
{
	return v->out[0].rank < 0 ? 0 : windows_of(v, &v->in[0], &v->out[0]);
}

/* The windows of a sample's positions as columns, on CPU devices part by part, or with the results of samples that are joined. `most`: of
 * as many samples as are computed at a time, otherwise of one. */
static double columns_of(const struct hspmd_op_view *v, const struct hspmd_shape *y, const struct hspmd_shape *w, bool at_once, bool most)
{
	double positions = (double)(y->dim[2] * y->dim[3]), window = (double)(w->dim[1] * w->dim[2] * w->dim[3]);
	bool joined = !at_once && is_joined(positions);
	double results = joined ? (double)w->dim[0] / (double)groups_of(v->attr) : 0,
	       samples = joined && most ? floor(JOINED / positions) : 1;
	return (window + results) * samples * (at_once ? positions : fmin(positions, PART)) * (double)hspmd_dtype_bytes(v->in_dtype[0]);
}

static double workspace(const struct hspmd_op_view *v, bool at_once)
{
	return columns_of(v, &v->out[0], &v->in[1], at_once, false);
}

static double most_workspace(const struct hspmd_op_view *v, bool at_once)
{
	return columns_of(v, &v->out[0], &v->in[1], at_once, true);
}

static double workspace_grad_x(const struct hspmd_op_view *v, bool at_once)
{
	return columns_of(v, &v->in[0], &v->in[1], at_once, false);
}

static double most_workspace_grad_x(const struct hspmd_op_view *v, bool at_once)
{
	return columns_of(v, &v->in[0], &v->in[1], at_once, true);
}

static double workspace_grad_w(const struct hspmd_op_view *v, bool at_once)
{
	return v->out[0].rank < 0 ? 0 : columns_of(v, &v->in[0], &v->out[0], at_once, false);
}

static double most_workspace_grad_w(const struct hspmd_op_view *v, bool at_once)
{
	return v->out[0].rank < 0 ? 0 : columns_of(v, &v->in[0], &v->out[0], at_once, true);
}

/* Columns, the weight and the results are the factors. */
static void product_of(const struct hspmd_shape *y, const struct hspmd_shape *w, double *extent, double *rows)
{
	double positions = (double)(y->dim[2] * y->dim[3]);
	*extent = fmax((double)(w->dim[1] * w->dim[2] * w->dim[3]), is_joined(positions) ? JOINED : fmin(positions, PART));
	*rows = 0;
}

static void product(const struct hspmd_op_view *v, double *extent, double *rows)
{
	product_of(&v->out[0], &v->in[1], extent, rows);
}

static void product_grad_x(const struct hspmd_op_view *v, double *extent, double *rows)
{
	product_of(&v->in[0], &v->in[1], extent, rows);
	*extent = fmax(*extent, (double)v->in[1].dim[0]);
}

static void product_grad_w(const struct hspmd_op_view *v, double *extent, double *rows)
{
	*extent = *rows = 0;
	if (v->out[0].rank >= 0)
		product_of(&v->in[0], &v->out[0], extent, rows);
}

static const struct hspmd_op_example examples[] = {
	{ "convolution",
	  { .numbers = { 1, 1, 1, 1, 1, 1 } },
	  { { "x", { 4, { 3, 4, 5, 6 } }, HSPMD_EXAMPLE_REAL },
	    { "w", { 4, { 6, 4, 3, 3 } }, HSPMD_EXAMPLE_REAL },
	    { "bias", { 1, { 6 } }, 0 } } },
	{ "convolution of patches",
	  { .numbers = { 2, 3, 0, 0, 1, 1 } },
	  { { "x", { 4, { 3, 2, 6, 9 } }, HSPMD_EXAMPLE_REAL }, { "w", { 4, { 5, 2, 2, 3 } }, HSPMD_EXAMPLE_REAL } } },
	{ "convolution in groups",
	  { .groups = 3, .numbers = { 2, 1, 2, 0, 2, 1 } },
	  { { "x", { 4, { 2, 6, 7, 5 } }, HSPMD_EXAMPLE_REAL },
	    { "w", { 4, { 3, 2, 3, 2 } }, HSPMD_EXAMPLE_REAL },
	    { "bias", { 1, { 3 } }, 0 } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_conv = {
	.min_inputs = 2,
	.max_inputs = 3,
	.output_count = 1,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cost = cost,
	.windows = windows,
	.workspace = workspace,
	.most_workspace = most_workspace,
	.product = product,
	.examples = examples,
	.adds_gradients = true,
};
const struct hspmd_op_type hspmd_op_conv_grad_x = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 1,
	.rule = rule_grad_x,
	.cost = cost_grad_x,
	.windows = windows_grad_x,
	.workspace = workspace_grad_x,
	.most_workspace = most_workspace_grad_x,
	.product = product_grad_x,
};
const struct hspmd_op_type hspmd_op_conv_grad_w = {
	.min_inputs = 2,
	.max_inputs = 2,
	.output_count = 2,
	.rule = rule_grad_w,
	.accumulates = 1 << 0 | 1 << 1,
	.cost = cost_grad_w,
	.windows = windows_grad_w,
	.workspace = workspace_grad_w,
	.most_workspace = most_workspace_grad_w,
	.product = product_grad_w,
};
