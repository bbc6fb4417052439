/* SPDX-License-Identifier: Apache-2.0 */
/* Attention. Split by heads, it needs no data of other devices; split along the sequence (context parallel), every device
 * needs all keys and values, and its gradients of them are partial. Heads are counted in kv heads, so that queries stay with the keys they
 * read. */
#include <inttypes.h>
#include <string.h>

#include "runtime/op/op_internal.h"

static bool is_packed(const struct hspmd_shape *first)
{
	return first->rank == 4;
}

static int check_heads(const struct hspmd_op_view *v, int i, struct hspmd_error *err)
{
	int64_t width = hspmd_op_last_dim(&v->in[i]), d = v->attr->head_dim;
	if (d < 1 || width % d)
		return hspmd_fail(err, "width %" PRId64 " of input %d is no multiple of head_dim %" PRId64, width, i, d);
	return 0;
}

static int check_separate(const struct hspmd_op_view *v, struct hspmd_error *err)
{
	if (v->input_count < 3)
		return hspmd_fail(err, "expected q, k and v, got %d inputs", v->input_count);
	for (int i = 0; i < 3; i++)
		if (hspmd_op_expect(v, i, 3, false, err) || check_heads(v, i, err) ||
		    hspmd_op_expect_dim(v, i, 0, v->in[0].dim[0], "the samples of q", err))
			return -1;
	if (hspmd_op_expect_same(v, 1, 2, err))
		return -1;
	if (v->in[0].dim[2] % v->in[1].dim[2])
		return hspmd_fail(err, "%" PRId64 " query heads are no multiple of %" PRId64 " kv heads",
		                  v->in[0].dim[2] / v->attr->head_dim, v->in[1].dim[2] / v->attr->head_dim);
	if (v->in[0].dim[1] > v->in[1].dim[1] && !v->attr->bidirectional)
		return hspmd_fail(err, "%" PRId64 " positions of q, but %" PRId64 " of k", v->in[0].dim[1], v->in[1].dim[1]);
	return 0;
}

static int check_mask(const struct hspmd_op_view *v, int i, const struct hspmd_shape *q, const struct hspmd_shape *keys,
                      struct hspmd_error *err)
{
	int64_t full[] = { q->dim[0], hspmd_op_last_dim(q) / v->attr->head_dim, q->dim[1], keys->dim[1] };
	if (hspmd_op_expect(v, i, 4, false, err))
		return -1;
	for (int d = 0; d < 4; d++)
		if (v->in[i].dim[d] != 1 && hspmd_op_expect_dim(v, i, d, full[d], "samples, heads, queries and keys, or 1", err))
			return -1;
	return v->attr->softcap > 0 ? hspmd_fail(err, "scores with a mask are not capped") : 0;
}

static int shape(struct hspmd_op_view *v, struct hspmd_error *err)
{
	bool packed = is_packed(&v->in[0]);
	int segments = packed ? 1 : 3;
	if (packed ? hspmd_op_expect(v, 0, 4, false, err) || check_heads(v, 0, err) ||
	                     hspmd_op_expect_dim(v, 0, 2, 3, "query, key and value", err)
	           : check_separate(v, err))
		return -1;
	const struct hspmd_shape *q = &v->in[0], *keys = packed ? q : &v->in[1];
	if (v->input_count > segments + 4)
		return hspmd_fail(err, "%d inputs are too many", v->input_count);
	if (hspmd_op_has_input(v, segments + 1) &&
	    (hspmd_op_expect(v, segments + 1, 1, false, err) ||
	     hspmd_op_expect_dim(v, segments + 1, 0, hspmd_op_last_dim(q) / v->attr->head_dim, "the heads of q", err)))
		return -1;
	if (hspmd_op_has_input(v, segments) &&
	    (hspmd_op_expect(v, segments, 2, true, err) || hspmd_op_expect_dim(v, segments, 0, q->dim[0], "the samples of q", err) ||
	     hspmd_op_expect_dim(v, segments, 1, keys->dim[1], "the positions of k", err)))
		return -1;
	if (hspmd_op_has_input(v, segments + 2) && (hspmd_op_expect(v, segments + 2, 2, true, err) ||
	                                            hspmd_op_expect_dim(v, segments + 2, 0, q->dim[0], "the samples of q", err) ||
	                                            hspmd_op_expect_dim(v, segments + 2, 1, keys->dim[1], "the positions of k", err)))
		return -1;
	if (hspmd_op_has_input(v, segments) && q->dim[1] != keys->dim[1] && v->attr->bidirectional)
		return hspmd_fail(err, "segments of %" PRId64 " queries and %" PRId64 " keys", q->dim[1], keys->dim[1]);
	if (hspmd_op_has_input(v, segments + 3) && check_mask(v, segments + 3, q, keys, err))
		return -1;
	int64_t width = hspmd_op_last_dim(q);
	v->out[0] = (struct hspmd_shape){ 3, { q->dim[0], q->dim[1], width } };
	v->out[1] = (struct hspmd_shape){ 3, { q->dim[0], width / v->attr->head_dim, q->dim[1] } };
	v->out_dtype[0] = v->in_dtype[0];
	v->out_dtype[1] = hspmd_dtype_master(v->in_dtype[0]);
	return 0;
}

/* Query elements per kv head. */
static int64_t query_step(const struct hspmd_op_view *v, int first)
{
	if (is_packed(&v->in[first]) || v->attr->whole_kv)
		return v->attr->head_dim;
	return v->in[first].dim[2] / v->in[first + 1].dim[2] * v->attr->head_dim;
}

/* The inputs q, k, v (or qkv) from number `first` on, and segments at the end. */
static void rule_inputs(const struct hspmd_op_view *v, struct hspmd_op_rule *r, int first, int segments)
{
	if (is_packed(&v->in[first])) {
		strcpy(r->in[first], "bT!h");
		r->in_step[first] = v->attr->head_dim;
	} else {
		strcpy(r->in[first], "bth");
		r->in_step[first] = query_step(v, first);
		for (int i = first + 1; i < first + 3; i++) {
			strcpy(r->in[i], v->attr->whole_kv ? "b!!" : "b!h");
			r->in_step[i] = v->attr->head_dim;
		}
	}
	if (hspmd_op_has_input(v, segments))
		strcpy(r->in[segments], "b!");
}

/* Input i is a mask, `first` the first of q, k, v. */
static void rule_mask(const struct hspmd_op_view *v, struct hspmd_op_rule *r, int i, int first)
{
	for (int d = 0; d < 4; d++)
		r->in[i][d] = v->in[i].dim[d] == 1 ? '!' : "bht!"[d];
	r->in_step[i] = query_step(v, first) / v->attr->head_dim;
}

static void rule(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ .out = { "bth", "bht" } };
	int segments = is_packed(&v->in[0]) ? 1 : 3;
	rule_inputs(v, r, 0, segments);
	if (hspmd_op_has_input(v, segments + 1)) {
		strcpy(r->in[segments + 1], "h");
		r->in_step[segments + 1] = query_step(v, 0) / v->attr->head_dim;
	}
	if (hspmd_op_has_input(v, segments + 2))
		strcpy(r->in[segments + 2], "b!");
	if (hspmd_op_has_input(v, segments + 3))
		rule_mask(v, r, segments + 3, 0);
	r->out_step[0] = query_step(v, 0);
	r->out_step[1] = query_step(v, 0) / v->attr->head_dim;
}

/* Inputs: do, (q, k, v | qkv), o, lse, (segments), (noise), (mask). The annotations of the forward outputs o and lse show how the forward
 * operator was split. */
static void rule_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	bool packed = is_packed(&v->in[1]);
	int o = packed ? 2 : 4;
	*r = (struct hspmd_op_rule){ .in = { "bth" } };
	rule_inputs(v, r, 1, o + 2);
	if (hspmd_op_has_input(v, o + 3))
		strcpy(r->in[o + 3], "b!");
	if (hspmd_op_has_input(v, o + 4))
		rule_mask(v, r, o + 4, 1);
	strcpy(r->in[o], "bth");
	strcpy(r->in[o + 1], "bht");
	r->in_step[0] = r->in_step[o] = query_step(v, 1);
	r->in_step[o + 1] = query_step(v, 1) / v->attr->head_dim;
	snprintf(r->priority, sizeof r->priority, "%d012345678", o);
	r->priority[v->input_count + 1] = '\0';
	strcpy(r->out[0], packed ? "b!!h/t" : "bth");
	for (int i = 1; i < 3; i++)
		strcpy(r->out[i], v->attr->whole_kv ? "b!!/th" : "b!h/t");
	r->out_step[0] = r->in_step[1];
	r->out_step[1] = r->out_step[2] = v->attr->head_dim;
}

/* Inputs: do, o, lse, sinks. Query heads need not stay with kv heads here. */
static void rule_sinks_grad(const struct hspmd_op_view *v, struct hspmd_op_rule *r)
{
	*r = (struct hspmd_op_rule){ .in = { "bth", "bth", "bht", "h" }, .out = { "h/bt" }, .priority = "1203" };
	r->in_step[0] = r->in_step[1] = v->attr->head_dim;
}

static int sinks_backward(struct hspmd_graph *g, const struct hspmd_op *op, int sinks)
{
	int in[] = { hspmd_graph_grad_of(g, op->out[0]), op->out[0], op->out[1], op->in[sinks] };
	return hspmd_graph_append_grad(g, HSPMD_OP_ATTENTION_SINKS_GRAD, &op->attr, op->layer, in, 4, &op->in[sinks], 1);
}

static int backward(struct hspmd_graph *g, const struct hspmd_op *op)
{
	int in[HSPMD_OP_MAX_IO], n = 0;
	int tensors = is_packed(&g->tensors[op->in[0]].shape) ? 1 : 3;
	in[n++] = hspmd_graph_grad_of(g, op->out[0]);
	for (int i = 0; i < tensors; i++)
		in[n++] = op->in[i];
	in[n++] = op->out[0];
	in[n++] = op->out[1];
	if (op->input_count > tensors)
		in[n++] = op->in[tensors];
	if (op->input_count > tensors + 2)
		in[n++] = op->in[tensors + 2];
	if (op->input_count > tensors + 3) {
		if (hspmd_op_depends_on_parameters(g, op->in[tensors + 3]))
			return hspmd_fail(&g->error, "the mask of an attention has no gradient: compute the scores by matrix products");
		in[n++] = op->in[tensors + 3];
	}
	if (op->input_count > tensors + 1 && op->in[tensors + 1] >= 0 && sinks_backward(g, op, tensors + 1) < 0)
		return -1;
	return hspmd_graph_append_grad(g, HSPMD_OP_ATTENTION_GRAD, &op->attr, op->layer, in, n, op->in, tensors);
}

/* `products`: matrix products over the scores, of which causal attention computes half. */
static void cost_of(const struct hspmd_op_view *v, const struct hspmd_shape *o, const struct hspmd_shape *k, double products, double *flops,
                    double *bytes)
{
	double keys = (double)k->dim[1] * (v->attr->bidirectional ? 2 : 1), window = (double)v->attr->window;
	if (window > 0 && window < keys / 2)
		keys = 2 * window;
	*flops = products * hspmd_op_elements(o) * keys;
	*bytes = hspmd_op_bytes(v);
}

static void cost(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	cost_of(v, &v->out[0], &v->in[is_packed(&v->in[0]) ? 0 : 1], 2, flops, bytes);
}

static void cost_grad(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	cost_of(v, &v->in[0], &v->in[is_packed(&v->in[1]) ? 1 : 2], 5, flops, bytes);
}

static void cost_sinks_grad(const struct hspmd_op_view *v, double *flops, double *bytes)
{
	hspmd_op_cost_per_element(v, 2, flops, bytes);
}

/* Neither GPU kernels on tensor cores nor cuDNN compute all of it. Inputs as in rule_grad. */
static void sizes_grad(const struct hspmd_op_view *v, struct hspmd_attention_sizes *sizes)
{
	const struct hspmd_shape *q = &v->in[1], *k = is_packed(q) ? q : &v->in[2];
	int64_t d = v->attr->head_dim;
	int segments = is_packed(q) ? 4 : 6;
	bool whole = !hspmd_op_has_input(v, segments + 1) && !hspmd_op_has_input(v, segments + 2) && !(v->attr->softcap > 0);
	*sizes = (struct hspmd_attention_sizes){ .batches = q->dim[0],
		                                 .queries = v->in[0].dim[1],
		                                 .keys = k->dim[1],
		                                 .heads = hspmd_op_last_dim(q) / d,
		                                 .kv_heads = hspmd_op_last_dim(k) / d,
		                                 .head_dim = d };
	sizes->group = sizes->heads / sizes->kv_heads;
	sizes->wgmma = whole && (d == 64 || d == 128);
	sizes->dnn = sizes->wgmma && !hspmd_op_has_input(v, segments) && !v->attr->bidirectional &&
	             sizes->queries % HSPMD_ATTENTION_TILE == 0 && sizes->keys % HSPMD_ATTENTION_TILE == 0;
}

#define REAL(name, ...)                                                                                                                    \
	{                                                                                                                                  \
		name, __VA_ARGS__, HSPMD_EXAMPLE_REAL                                                                                      \
	}
static const struct hspmd_op_example examples[] = {
	{ "attention to both sides",
	  { .head_dim = 6, .heads = 4, .kv_heads = 2, .scale = 0.4, .bidirectional = true },
	  { REAL("q", { 3, { 2, 13, 24 } }), REAL("k", { 3, { 2, 13, 12 } }), REAL("v", { 3, { 2, 13, 12 } }) } },
	{ "attention to both sides, window",
	  { .head_dim = 5, .heads = 2, .kv_heads = 2, .scale = 0.4, .bidirectional = true, .window = 9 },
	  { REAL("q", { 3, { 2, 37, 10 } }), REAL("k", { 3, { 2, 37, 10 } }), REAL("v", { 3, { 2, 37, 10 } }) } },
	{ "attention across",
	  { .head_dim = 5, .heads = 2, .kv_heads = 2, .scale = 0.4, .bidirectional = true },
	  { REAL("q", { 3, { 2, 19, 10 } }),
	    REAL("k", { 3, { 2, 7, 10 } }),
	    REAL("v", { 3, { 2, 7, 10 } }),
	    { 0 },
	    { 0 },
	    { 0 },
	    { "mask", { 4, { 2, 1, 1, 7 } }, HSPMD_EXAMPLE_GIVEN } } },
	{ "attention with a mask",
	  { .head_dim = 4, .heads = 4, .kv_heads = 2, .scale = 0.4 },
	  { REAL("q", { 3, { 2, 11, 16 } }),
	    REAL("k", { 3, { 2, 11, 8 } }),
	    REAL("v", { 3, { 2, 11, 8 } }),
	    { 0 },
	    { 0 },
	    { 0 },
	    { "mask", { 4, { 1, 4, 11, 11 } }, HSPMD_EXAMPLE_GIVEN } } },
	{ NULL, { 0 }, { { 0 } } },
};

const struct hspmd_op_type hspmd_op_attention_sinks_grad = {
	.min_inputs = 4,
	.max_inputs = 4,
	.output_count = 1,
	.rule = rule_sinks_grad,
	.cost = cost_sinks_grad,
	.accumulates = 1,
};
const struct hspmd_op_type hspmd_op_attention = {
	.min_inputs = 1,
	.max_inputs = 7,
	.output_count = 2,
	.shape = shape,
	.rule = rule,
	.backward = backward,
	.cost = cost,
	.examples = examples,
	.adds_gradients = true,
};
const struct hspmd_op_type hspmd_op_attention_grad = {
	.min_inputs = 4,
	.max_inputs = 9,
	.output_count = 3,
	.rule = rule_grad,
	.cost = cost_grad,
	.attention = sizes_grad,
};
