/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on tensors of any number of dimensions. */
#include "runtime/lib/net_internal.h"

#include <math.h>
#include <string.h>

int hspmd_net_rank(const struct hspmd_net *net, int tensor)
{
	const struct hspmd_shape *s = shape_of(net, tensor);
	return s ? s->rank : -1;
}

int64_t hspmd_net_dim(const struct hspmd_net *net, int tensor, int dim)
{
	const struct hspmd_shape *s = shape_of(net, tensor);
	dim += s && dim < 0 ? s->rank : 0;
	return s && dim >= 0 && dim < s->rank ? s->dim[dim] : -1;
}

/* ---- inputs */

static int input(struct hspmd_net *net, const char *name, enum hspmd_dtype type, int rank, const int64_t *dims)
{
	struct hspmd_shape shape = { .rank = rank + 1, .dim = { net->how->batch } };
	if (net->g->failed)
		return -1;
	if (rank < 0 || rank >= HSPMD_MAX_RANK) {
		hspmd_fail(&net->g->error, "input %s: %d dimensions per sample, expected 0..%d", name, rank, HSPMD_MAX_RANK - 1);
		return refuse(net);
	}
	memcpy(shape.dim + 1, dims, (size_t)rank * sizeof *dims);
	return hspmd_graph_input(net->g, name, type, shape, net->layer);
}

int hspmd_net_integer_input(struct hspmd_net *net, const char *name, int rank, const int64_t *dims)
{
	return input(net, name, HSPMD_I32, rank, dims);
}

int hspmd_net_float_input(struct hspmd_net *net, const char *name, int rank, const int64_t *dims)
{
	return hspmd_net_computed(net, input(net, name, HSPMD_F32, rank, dims));
}

/* ---- element by element */

static int unary(struct hspmd_net *net, enum hspmd_unary kind, double exponent, int x)
{
	return append(net, HSPMD_OP_UNARY, &(struct hspmd_op_attr){ .kind = kind, .exponent = exponent }, &x, 1);
}

int hspmd_net_relu(struct hspmd_net *net, int x)
{
	return unary(net, HSPMD_UNARY_RELU, 0, x);
}

int hspmd_net_sigmoid(struct hspmd_net *net, int x)
{
	return unary(net, HSPMD_UNARY_SIGMOID, 0, x);
}

int hspmd_net_silu(struct hspmd_net *net, int x)
{
	return unary(net, HSPMD_UNARY_SILU, 0, x);
}

int hspmd_net_tanh(struct hspmd_net *net, int x)
{
	return unary(net, HSPMD_UNARY_TANH, 0, x);
}

int hspmd_net_exp(struct hspmd_net *net, int x)
{
	return unary(net, HSPMD_UNARY_EXP, 0, x);
}

int hspmd_net_log(struct hspmd_net *net, int x)
{
	return unary(net, HSPMD_UNARY_LOG, 0, x);
}

int hspmd_net_sqrt(struct hspmd_net *net, int x)
{
	return unary(net, HSPMD_UNARY_SQRT, 0, x);
}

int hspmd_net_power(struct hspmd_net *net, int x, double exponent)
{
	return unary(net, HSPMD_UNARY_POWER, exponent, x);
}

int hspmd_net_gelu_exact(struct hspmd_net *net, int x)
{
	return append(net, HSPMD_OP_GELU, &(struct hspmd_op_attr){ .exact = true }, &x, 1);
}

int hspmd_net_scale(struct hspmd_net *net, int x, double factor)
{
	return append(net, HSPMD_OP_SCALE, &(struct hspmd_op_attr){ .scale = factor }, &x, 1);
}

static int binary(struct hspmd_net *net, enum hspmd_binary kind, int a, int b)
{
	return append(net, HSPMD_OP_BINARY, &(struct hspmd_op_attr){ .kind = kind }, (int[]){ a, b }, 2);
}

static bool same_shape(const struct hspmd_shape *a, const struct hspmd_shape *b)
{
	return a && b && a->rank == b->rank && !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim);
}

int hspmd_net_add(struct hspmd_net *net, int a, int b)
{
	if (same_shape(shape_of(net, a), shape_of(net, b)))
		return append(net, HSPMD_OP_ADD, NULL, (int[]){ a, b }, 2);
	return binary(net, HSPMD_BINARY_ADD, a, b);
}

int hspmd_net_subtract(struct hspmd_net *net, int a, int b)
{
	return binary(net, HSPMD_BINARY_SUB, a, b);
}

int hspmd_net_multiply(struct hspmd_net *net, int a, int b)
{
	return binary(net, HSPMD_BINARY_MUL, a, b);
}

int hspmd_net_divide(struct hspmd_net *net, int a, int b)
{
	return binary(net, HSPMD_BINARY_DIV, a, b);
}

/* Whether positions of the tensor, its second dimension, are those of the samples, and begin anew in each document. */
static bool resets(const struct hspmd_net *net, int x)
{
	return net->how->reset_positions && hspmd_net_dim(net, x, 1) == net->how->seq_len;
}

int hspmd_net_positions(struct hspmd_net *net, int x, int table)
{
	if (resets(net, x)) {
		int positions = hspmd_graph_find(net->g, HSPMD_TENSOR_POSITIONS);
		if (positions < 0)
			positions = hspmd_net_integers(net, HSPMD_TENSOR_POSITIONS);
		return hspmd_net_add(net, x, hspmd_net_embed(net, positions, table));
	}
	return append(net, HSPMD_OP_POSITION_EMBED, NULL, (int[]){ x, table }, 2);
}

/* Noise of the positions of tensor x, whose second dimension they are; one input for each number of positions. */
static int noise_of(struct hspmd_net *net, int x)
{
	int64_t positions = hspmd_net_dim(net, x, 1);
	char name[64] = HSPMD_TENSOR_NOISE;
	if (positions != net->how->seq_len)
		snprintf(name, sizeof name, HSPMD_TENSOR_NOISE ".%lld", (long long)positions);
	int noise = hspmd_graph_find(net->g, name);
	return noise >= 0 ? noise : hspmd_net_integer_input(net, name, 1, &positions);
}

int hspmd_net_dropout(struct hspmd_net *net, int x, double rate)
{
	if (net->g->failed || x < 0 || rate == 0 || net->how->forward_only)
		return x;
	struct hspmd_op_attr attr = { .rate = rate, .random = { .stream = net->dropouts++ } };
	return append(net, HSPMD_OP_DROPOUT, &attr, (int[]){ x, noise_of(net, x) }, 2);
}

/* ---- shapes */

/* Copies at most HSPMD_MAX_RANK dimensions to `to`; an invalid rank is left for the operator to report. */
static void copy_dims(int64_t *to, int rank, const int64_t *dims)
{
	if (rank >= 0 && rank <= HSPMD_MAX_RANK)
		memcpy(to, dims, (size_t)rank * sizeof *dims);
}

int hspmd_net_reshape(struct hspmd_net *net, int x, int rank, const int64_t *dims)
{
	struct hspmd_op_attr attr = { .numbers = { rank } };
	copy_dims(attr.numbers + 1, rank, dims);
	return append(net, HSPMD_OP_RESHAPE, &attr, &x, 1);
}

int hspmd_net_transpose(struct hspmd_net *net, int x, const int *order)
{
	struct hspmd_op_attr attr = { 0 };
	for (int d = 0; d < hspmd_net_rank(net, x); d++)
		attr.numbers[d] = order[d];
	return append(net, HSPMD_OP_TRANSPOSE, &attr, &x, 1);
}

/* Sizes of x for SLICE and PAD, in which dimension `dim` begins at `first` and has `size` elements. -1: no such dimension. */
static int box(struct hspmd_net *net, int x, int dim, int64_t first, int64_t size, struct hspmd_op_attr *attr)
{
	const struct hspmd_shape *s = shape_of(net, x);
	*attr = (struct hspmd_op_attr){ 0 };
	if (!s)
		return -1;
	if (dim < 0 || dim >= s->rank) {
		hspmd_fail(&net->g->error, "tensor %s has no dimension %d", net->g->tensors[x].name, dim);
		return refuse(net);
	}
	copy_dims(attr->numbers + HSPMD_MAX_RANK, s->rank, s->dim);
	attr->numbers[dim] = first;
	attr->numbers[HSPMD_MAX_RANK + dim] = size;
	return 0;
}

int hspmd_net_slice(struct hspmd_net *net, int x, int dim, int64_t first, int64_t count)
{
	struct hspmd_op_attr attr;
	return box(net, x, dim, first, count, &attr) ? -1 : append(net, HSPMD_OP_SLICE, &attr, &x, 1);
}

int hspmd_net_pad(struct hspmd_net *net, int x, int dim, int64_t before, int64_t after)
{
	struct hspmd_op_attr attr;
	return box(net, x, dim, before, before + hspmd_net_dim(net, x, dim) + after, &attr) ? -1 : append(net, HSPMD_OP_PAD, &attr, &x, 1);
}

int hspmd_net_concat(struct hspmd_net *net, const int *tensors, int count, int dim)
{
	for (int i = 0; i < count; i++)
		if (tensors[i] < 0)
			return -1;
	return append(net, HSPMD_OP_CONCAT, &(struct hspmd_op_attr){ .numbers = { dim } }, tensors, count);
}

int hspmd_net_repeat(struct hspmd_net *net, int x, int rank, const int64_t *dims)
{
	const struct hspmd_shape *s = shape_of(net, x);
	struct hspmd_op_attr attr = { .scale = 1, .numbers = { 0, 1, rank } };
	copy_dims(attr.numbers + 3, rank, dims);
	for (int d = 0; s && d < rank && rank <= HSPMD_MAX_RANK; d++)
		if (d < rank - s->rank || s->dim[d - rank + s->rank] != dims[d])
			attr.numbers[0] |= INT64_C(1) << d;
	return append(net, HSPMD_OP_BROADCAST, &attr, &x, 1);
}

int hspmd_net_gather(struct hspmd_net *net, int x, int integers, int batch_dims)
{
	return append(net, HSPMD_OP_GATHER, &(struct hspmd_op_attr){ .numbers = { batch_dims } }, (int[]){ x, integers }, 2);
}

int hspmd_net_reshard(struct hspmd_net *net, int x, const char *annotation)
{
	int y = append(net, HSPMD_OP_RESHARD, NULL, &x, 1);
	hspmd_net_annotate(net, y, annotation);
	return net->g->failed ? -1 : y;
}

/* ---- reductions */

static int reduce(struct hspmd_net *net, enum hspmd_reduction kind, int x, const int *dims, int count, int keep, bool mean)
{
	const struct hspmd_shape *s = shape_of(net, x);
	struct hspmd_op_attr attr = { .kind = kind, .scale = 1, .numbers = { 0, keep != 0 } };
	for (int i = 0; s && i < count; i++) {
		if (dims[i] < 0 || dims[i] >= s->rank) {
			hspmd_fail(&net->g->error, "tensor %s has no dimension %d", net->g->tensors[x].name, dims[i]);
			return refuse(net);
		}
		attr.scale /= mean && !(attr.numbers[0] >> dims[i] & 1) ? (double)s->dim[dims[i]] : 1;
		attr.numbers[0] |= INT64_C(1) << dims[i];
	}
	return append(net, HSPMD_OP_REDUCE, &attr, &x, 1);
}

int hspmd_net_sum(struct hspmd_net *net, int x, const int *dims, int count, int keep)
{
	return reduce(net, HSPMD_REDUCE_SUM, x, dims, count, keep, false);
}

int hspmd_net_mean(struct hspmd_net *net, int x, const int *dims, int count, int keep)
{
	return reduce(net, HSPMD_REDUCE_SUM, x, dims, count, keep, true);
}

int hspmd_net_max(struct hspmd_net *net, int x, const int *dims, int count, int keep)
{
	return reduce(net, HSPMD_REDUCE_MAX, x, dims, count, keep, false);
}

/* ---- products, norms, windows */

int hspmd_net_matmul(struct hspmd_net *net, int a, int b, int transpose_a, int transpose_b)
{
	struct hspmd_op_attr attr = { .kind = (transpose_a ? 1 : 0) | (transpose_b ? 2 : 0) };
	return append(net, HSPMD_OP_MATMUL, &attr, (int[]){ a, b }, 2);
}

int hspmd_net_softmax(struct hspmd_net *net, int x)
{
	return append(net, HSPMD_OP_SOFTMAX, NULL, &x, 1);
}

int hspmd_net_group_norm(struct hspmd_net *net, int x, int groups, int gain, int bias, double eps)
{
	return append(net, HSPMD_OP_GROUP_NORM, &(struct hspmd_op_attr){ .groups = groups, .eps = eps }, (int[]){ x, gain, bias }, 3);
}

static int64_t or_one(int64_t n)
{
	return n ? n : 1;
}

int hspmd_net_conv2d(struct hspmd_net *net, int x, int weight, int bias, const struct hspmd_window *window, int groups)
{
	struct hspmd_op_attr attr = { .groups = groups };
	for (int d = 0; d < 2; d++) {
		attr.numbers[d] = or_one(window->stride[d]);
		attr.numbers[2 + d] = window->padding[d];
		attr.numbers[4 + d] = or_one(window->dilation[d]);
	}
	return append(net, HSPMD_OP_CONV, &attr, (int[]){ x, weight, bias }, bias >= 0 ? 3 : 2);
}

static int pool(struct hspmd_net *net, enum hspmd_reduction kind, int x, const struct hspmd_window *window)
{
	struct hspmd_op_attr attr = { .kind = kind };
	for (int d = 0; d < 2; d++) {
		attr.numbers[d] = window->size[d];
		attr.numbers[2 + d] = window->stride[d] ? window->stride[d] : window->size[d];
		attr.numbers[4 + d] = window->padding[d];
	}
	return append(net, HSPMD_OP_POOL, &attr, &x, 1);
}

int hspmd_net_max_pool2d(struct hspmd_net *net, int x, const struct hspmd_window *window)
{
	return pool(net, HSPMD_REDUCE_MAX, x, window);
}

int hspmd_net_avg_pool2d(struct hspmd_net *net, int x, const struct hspmd_window *window)
{
	return pool(net, HSPMD_REDUCE_SUM, x, window);
}

int hspmd_net_attend(struct hspmd_net *net, int q, int k, int v, int64_t head_width, const struct hspmd_attention *how)
{
	bool drops = how->dropout > 0 && !net->how->forward_only;
	struct hspmd_op_attr attr = {
		.head_dim = head_width,
		.heads = heads_of(net, q, head_width),
		.kv_heads = heads_of(net, k, head_width),
		.scale = how->scale != 0  ? how->scale
		         : head_width > 0 ? 1 / sqrt((double)head_width)
		                          : 0,
		.window = how->window,
		.bidirectional = !how->causal,
		.rate = drops ? how->dropout : 0,
	};
	int noise = -1;
	if (drops) {
		attr.random.stream = net->dropouts++;
		noise = shape_of(net, q) ? noise_of(net, hspmd_net_dim(net, q, 1) > hspmd_net_dim(net, k, 1) ? q : k) : -1;
	}
	int in[] = { q, k, v, how->segments, -1, noise, how->mask };
	return append(net, HSPMD_OP_ATTENTION, &attr, in, how->mask >= 0 ? 7 : noise >= 0 ? 6 : how->segments >= 0 ? 4 : 3);
}

/* ---- experts */

int hspmd_net_experts(struct hspmd_net *net, int x, int router, const int *gate_up_down, int per_token, double balance,
                      enum hspmd_gate gate)
{
	static const enum hspmd_activation activations[] = { HSPMD_SILU, HSPMD_GELU_TANH, HSPMD_GELU_ERF };
	struct hspmd_op_attr attr = {
		.experts = (int)hspmd_net_dim(net, router, 0),
		.experts_per_token = per_token,
		.scale = balance * net->how->loss_scale,
		.activation = (unsigned)gate < 3 ? activations[gate] : HSPMD_SILU,
	};
	int logits = append(net, HSPMD_OP_LINEAR, NULL, (int[]){ x, router }, 2), routed[HSPMD_OP_MAX_IO];
	if (hspmd_graph_append(net->g, HSPMD_OP_TOPK_ROUTER, &attr, net->layer, &logits, 1, routed) < 0)
		return -1;
	int in[] = { x, routed[1], routed[0], gate_up_down[0], gate_up_down[1], gate_up_down[2] };
	return append(net, HSPMD_OP_EXPERTS, &attr, in, 6);
}
