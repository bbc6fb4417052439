/* SPDX-License-Identifier: Apache-2.0 */
/* Two layers are of one kind if their forward operators are the same, on tensors of the same shapes that come from the same places: from
 * operators of the layer itself, from weights of its own or of another layer, or from another layer's result. */
#include <string.h>

#include "common/alloc.h"
#include "runtime/facts/facts_internal.h"
#include "runtime/op/op.h"

void hspmd_layer_kinds_clear(struct hspmd_layer_kinds *kinds)
{
	free(kinds->kind_of_layer);
	free(kinds->first_layer);
	free(kinds->ops);
	free(kinds->start);
	*kinds = (struct hspmd_layer_kinds){ 0 };
}

static bool same_shape(const struct hspmd_shape *a, const struct hspmd_shape *b)
{
	return a->rank == b->rank && !memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim);
}

/* The place of an operator within its layer. */
static size_t place(const struct hspmd_layer_kinds *kinds, const struct hspmd_graph *g, int op)
{
	size_t at = kinds->start[g->ops[op].layer];
	while (kinds->ops[at] != (size_t)op)
		at++;
	return at - kinds->start[g->ops[op].layer];
}

static int output_index(const struct hspmd_op *op, int tensor)
{
	int o = 0;
	while (op->out[o] != tensor)
		o++;
	return o;
}

/* Returns true if tensors a and b, read in layers `la` and `lb`, are alike and come from the same place. */
static bool same_input(const struct hspmd_layer_kinds *kinds, const struct hspmd_graph *g, int a, int la, int b, int lb)
{
	if (a < 0 || b < 0)
		return a == b;
	const struct hspmd_tensor *x = &g->tensors[a], *y = &g->tensors[b];
	if (x->role != y->role || x->dtype != y->dtype || !same_shape(&x->shape, &y->shape) || (x->layer == la) != (y->layer == lb) ||
	    x->annotation || y->annotation)
		return false;
	if (x->role == HSPMD_TENSOR_PARAMETER)
		return x->split_dim == y->split_dim && x->split_unit == y->split_unit;
	if (x->layer != la || x->producer < 0)
		return true;
	return place(kinds, g, x->producer) == place(kinds, g, y->producer) &&
	       output_index(&g->ops[x->producer], a) == output_index(&g->ops[y->producer], b);
}

static bool same_attr(const struct hspmd_op_attr *a, const struct hspmd_op_attr *b)
{
	return a->kind == b->kind && !memcmp(a->numbers, b->numbers, sizeof a->numbers) && a->head_dim == b->head_dim &&
	       a->heads == b->heads && a->kv_heads == b->kv_heads && a->window == b->window &&
	       a->parts == b->parts && a->experts == b->experts && a->experts_per_token == b->experts_per_token &&
	       a->transposed == b->transposed && a->exact == b->exact;
}

static bool same_layer(const struct hspmd_layer_kinds *kinds, const struct hspmd_graph *g, int a, int b)
{
	size_t n = kinds->start[a + 1] - kinds->start[a];
	if (n != kinds->start[b + 1] - kinds->start[b])
		return false;
	for (size_t i = 0; i < n; i++) {
		const struct hspmd_op *x = &g->ops[kinds->ops[kinds->start[a] + i]], *y = &g->ops[kinds->ops[kinds->start[b] + i]];
		if (x->opcode != y->opcode || x->input_count != y->input_count || x->output_count != y->output_count ||
		    !same_attr(&x->attr, &y->attr))
			return false;
		for (int k = 0; k < x->input_count; k++)
			if (!same_input(kinds, g, x->in[k], a, y->in[k], b))
				return false;
		for (int o = 0; o < x->output_count; o++)
			if (!same_shape(&g->tensors[x->out[o]].shape, &g->tensors[y->out[o]].shape))
				return false;
	}
	return true;
}

/* Sort the forward operators by layer. */
static void sort_operators(const struct hspmd_graph *g, struct hspmd_layer_kinds *out)
{
	for (size_t i = 0; i < g->op_count; i++)
		out->start[g->ops[i].layer + 1] += !g->ops[i].backward;
	for (int l = 0; l < out->layer_count; l++)
		out->start[l + 1] += out->start[l];
	for (size_t i = 0; i < g->op_count; i++)
		if (!g->ops[i].backward)
			out->ops[out->start[g->ops[i].layer]++] = i;
	for (int l = out->layer_count; l > 0; l--)
		out->start[l] = out->start[l - 1];
	out->start[0] = 0;
}

int hspmd_layer_kinds_find(const struct hspmd_graph *g, int layer_count, struct hspmd_layer_kinds *out, struct hspmd_error *err)
{
	size_t n = (size_t)layer_count;
	*out = (struct hspmd_layer_kinds){ .layer_count = layer_count,
		                           .kind_of_layer = hspmd_calloc(n, sizeof *out->kind_of_layer),
		                           .first_layer = hspmd_calloc(n, sizeof *out->first_layer),
		                           .ops = hspmd_calloc(g->op_count, sizeof *out->ops),
		                           .start = hspmd_calloc(n + 1, sizeof *out->start) };
	if (!out->kind_of_layer || !out->first_layer || !out->ops || !out->start) {
		hspmd_layer_kinds_clear(out);
		return hspmd_fail_memory(err, "comparing layers");
	}
	sort_operators(g, out);
	for (int l = 0; l < layer_count; l++) {
		int k = l && l + 1 < layer_count ? 1 : out->kind_count;
		while (k < out->kind_count && !same_layer(out, g, out->first_layer[k], l))
			k++;
		if (k == out->kind_count)
			out->first_layer[out->kind_count++] = l;
		out->kind_of_layer[l] = k;
	}
	return 0;
}

/* ---- copies of graphs */

struct copy {
	const struct hspmd_graph *from;
	struct hspmd_graph *to;
	const struct hspmd_layer_kinds *kinds; /* NULL: all layers are copied */
	int *tensor;                           /* per tensor of `from`: its number in `to`, -1: not there */
};

static int layer_of(const struct copy *c, int layer)
{
	return c->kinds ? c->kinds->kind_of_layer[layer] : layer;
}

static bool is_kept(const struct copy *c, int layer)
{
	return !c->kinds || c->kinds->first_layer[c->kinds->kind_of_layer[layer]] == layer;
}

/* The copy of an input or a weight. */
static int copied_leaf(struct copy *c, int tensor)
{
	const struct hspmd_tensor *t = &c->from->tensors[tensor];
	enum hspmd_dtype dtype = t->dtype == HSPMD_F32 ? c->to->compute_dtype : t->dtype;
	int made = t->role == HSPMD_TENSOR_INPUT ? hspmd_graph_input(c->to, t->name, dtype, t->shape, layer_of(c, t->layer))
	                                         : hspmd_graph_parameter(c->to, t->name, t->shape, layer_of(c, t->layer), t->init_mean,
	                                                                 t->init_std, t->decay, t->split_dim, t->split_unit);
	if (made >= 0)
		c->to->tensors[made].history = t->history;
	if (made >= 0 && t->annotation) {
		struct hspmd_annotation *a = hspmd_annotation_copy(t->annotation);
		if (!a || hspmd_graph_annotate(c->to, made, a))
			return -1;
	}
	return c->tensor[tensor] = made;
}

static bool is_read_in(const struct copy *c, int tensor, int layer)
{
	for (size_t i = c->kinds->start[layer]; i < c->kinds->start[layer + 1]; i++) {
		const struct hspmd_op *op = &c->from->ops[c->kinds->ops[i]];
		for (int k = 0; k < op->input_count; k++)
			if (op->in[k] == tensor)
				return true;
	}
	return false;
}

/* The next result of a layer, from operator `from` and its output `o` on, that the layer after it reads; -1: none. Sets *from and *o behind
 * it. */
static int next_result(const struct copy *c, int layer, size_t *from, int *o)
{
	for (; *from < c->kinds->start[layer + 1]; (*from)++, *o = 0) {
		const struct hspmd_op *op = &c->from->ops[c->kinds->ops[*from]];
		for (; *o < op->output_count; (*o)++)
			if (is_read_in(c, op->out[*o], layer + 1))
				return op->out[(*o)++];
	}
	return -1;
}

/* The layers that are kept form a chain as the layers of the whole model do: a result of the layer before is replaced by the same result of
 * the kept layer before. -1: it has none of this shape. */
static int result_before(const struct copy *c, int tensor, int layer)
{
	int before = layer - 1, a, b, oa = 0, ob = 0;
	while (before > 0 && !is_kept(c, before))
		before--;
	size_t at = c->kinds->start[layer - 1], bt = c->kinds->start[before];
	do {
		a = next_result(c, layer - 1, &at, &oa);
		b = next_result(c, before, &bt, &ob);
	} while (a >= 0 && b >= 0 && a != tensor);
	if (a != tensor || b < 0 || !same_shape(&c->from->tensors[a].shape, &c->from->tensors[b].shape))
		return -1;
	return c->tensor[b];
}

/* The copy of an input of an operator in `layer`. If the input's layer was left out: of the layer of its kind. */
static int copied(struct copy *c, int tensor, int layer)
{
	if (tensor < 0)
		return -1;
	const struct hspmd_tensor *t = &c->from->tensors[tensor];
	int producer = t->producer, same_result = c->kinds && producer >= 0 && t->layer == layer - 1 ? result_before(c, tensor, layer) : -1;
	if (same_result >= 0)
		return same_result;
	if (c->tensor[tensor] >= 0)
		return c->tensor[tensor];
	if (producer < 0)
		return copied_leaf(c, tensor);
	const struct hspmd_op *op = &c->from->ops[producer];
	if (is_kept(c, op->layer))
		return -1;
	int first = c->kinds->first_layer[c->kinds->kind_of_layer[op->layer]];
	const struct hspmd_op *same = &c->from->ops[c->kinds->ops[c->kinds->start[first] + place(c->kinds, c->from, producer)]];
	return c->tensor[same->out[output_index(op, tensor)]];
}

static struct hspmd_graph *copy_forward(const struct hspmd_graph *g, const struct hspmd_layer_kinds *kinds, enum hspmd_dtype dtype,
                                        struct hspmd_error *err)
{
	struct copy c = {
		.from = g, .to = hspmd_graph_create(hspmd_op_types), .kinds = kinds, .tensor = malloc(g->tensor_count * sizeof(int))
	};
	bool failed = !c.to || !c.tensor;
	if (!failed) {
		memset(c.tensor, -1, g->tensor_count * sizeof(int));
		c.to->compute_dtype = dtype;
	}
	for (size_t i = 0; !failed && i < g->op_count; i++) {
		const struct hspmd_op *op = &g->ops[i];
		int in[HSPMD_OP_MAX_IO], out[HSPMD_OP_MAX_IO];
		if (op->backward || !is_kept(&c, op->layer))
			continue;
		for (int k = 0; k < op->input_count; k++)
			in[k] = copied(&c, op->in[k], op->layer);
		failed = hspmd_graph_append(c.to, op->opcode, &op->attr, layer_of(&c, op->layer), in, op->input_count, out) < 0;
		for (int o = 0; !failed && o < op->output_count; o++)
			c.tensor[op->out[o]] = out[o];
	}
	free(c.tensor);
	if (!failed)
		return c.to;
	if (c.to && c.to->failed)
		hspmd_fail(err, "%s", c.to->error.text);
	else
		hspmd_fail_memory(err, "copying a graph");
	hspmd_graph_destroy(c.to);
	return NULL;
}

struct hspmd_graph *hspmd_layer_kinds_graph(const struct hspmd_graph *g, const struct hspmd_layer_kinds *kinds, struct hspmd_error *err)
{
	return copy_forward(g, kinds, g->compute_dtype, err);
}

struct hspmd_graph *hspmd_graph_copy_forward(const struct hspmd_graph *g, bool bf16, struct hspmd_error *err)
{
	return copy_forward(g, NULL, bf16 ? HSPMD_BF16 : HSPMD_F32, err);
}
