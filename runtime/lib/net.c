/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/lib/net_internal.h"

#include <math.h>
#include <string.h>

int64_t hspmd_net_samples(const struct hspmd_net *net)
{
	return net->how->batch;
}

int64_t hspmd_net_length(const struct hspmd_net *net)
{
	return net->how->seq_len;
}

void hspmd_net_layer(struct hspmd_net *net, int layer)
{
	if (net->g->failed)
		return;
	if (layer < net->layer || layer >= net->layers) {
		hspmd_fail(&net->g->error, "layer %d after layer %d: expected %d..%d", layer, net->layer, net->layer, net->layers - 1);
		refuse(net);
		return;
	}
	net->layer = layer;
}

/* ---- tensors */

int hspmd_net_integers(struct hspmd_net *net, const char *name)
{
	return hspmd_graph_input(net->g, name, HSPMD_I32, (struct hspmd_shape){ 2, { net->how->batch, net->how->seq_len } }, net->layer);
}

int hspmd_net_floats(struct hspmd_net *net, const char *name, int64_t width)
{
	struct hspmd_shape shape = { 3, { net->how->batch, net->how->seq_len, width } };
	return hspmd_net_computed(net, hspmd_graph_input(net->g, name, HSPMD_F32, shape, net->layer));
}

int hspmd_net_computed(struct hspmd_net *net, int x)
{
	if (net->g->compute_dtype == HSPMD_F32)
		return x;
	return append(net, HSPMD_OP_CAST, &(struct hspmd_op_attr){ .kind = (int)net->g->compute_dtype }, &x, 1);
}

int hspmd_net_parameter(struct hspmd_net *net, const char *name, int rank, const int64_t *dims, double mean, double deviation)
{
	struct hspmd_shape shape = { .rank = rank };
	if (net->g->failed)
		return -1;
	if (rank >= 0 && rank <= HSPMD_MAX_RANK) /* otherwise the graph reports the error */
		memcpy(shape.dim, dims, (size_t)rank * sizeof *dims);
	if (!isfinite(mean) || !(deviation >= 0 && isfinite(deviation))) {
		hspmd_fail(&net->g->error, "parameter %s: mean %g and deviation %g are not valid", name, mean, deviation);
		return refuse(net);
	}
	return hspmd_graph_parameter(net->g, name, shape, net->layer, mean, deviation, true, -1, 1);
}

/* A parameter of this net; NULL after a failure, which this itself may be. */
static struct hspmd_tensor *parameter(struct hspmd_net *net, int number)
{
	if (net->g->failed || number < 0)
		return NULL;
	if (number < (int)net->g->tensor_count && net->g->tensors[number].role == HSPMD_TENSOR_PARAMETER)
		return &net->g->tensors[number];
	hspmd_fail(&net->g->error, "tensor %d is no parameter", number);
	refuse(net);
	return NULL;
}

void hspmd_net_no_decay(struct hspmd_net *net, int number)
{
	struct hspmd_tensor *t = parameter(net, number);
	if (t)
		t->decay = false;
}

void hspmd_net_split(struct hspmd_net *net, int number, int dim, int64_t unit)
{
	struct hspmd_tensor *t = parameter(net, number);
	if (!t)
		return;
	if (dim < 0 || dim >= t->shape.rank || unit < 1) {
		hspmd_fail(&net->g->error, "parameter %s: cannot be split along dimension %d in units of %lld", t->name, dim,
		           (long long)unit);
		refuse(net);
		return;
	}
	t->split_dim = dim;
	t->split_unit = unit;
}

void hspmd_net_annotate(struct hspmd_net *net, int tensor, const char *annotation)
{
	if (net->g->failed || tensor < 0)
		return;
	if (tensor >= (int)net->g->tensor_count) {
		hspmd_fail(&net->g->error, "tensor %d is no tensor of this net", tensor);
		refuse(net);
		return;
	}
	struct hspmd_annotation *a = hspmd_annotation_parse(annotation, &net->g->error);
	if (!a) {
		hspmd_error_prefix(&net->g->error, "tensor %s", net->g->tensors[tensor].name);
		refuse(net);
		return;
	}
	hspmd_graph_annotate(net->g, tensor, a);
}

/* ---- operators */

int hspmd_net_embed(struct hspmd_net *net, int integers, int table)
{
	return append(net, HSPMD_OP_EMBED, NULL, (int[]){ integers, table }, 2);
}

int hspmd_net_linear(struct hspmd_net *net, int x, int weight, int bias)
{
	return append(net, HSPMD_OP_LINEAR, NULL, (int[]){ x, weight, bias }, bias >= 0 ? 3 : 2);
}

int hspmd_net_layer_norm(struct hspmd_net *net, int x, int gain, int bias, double eps)
{
	return append(net, HSPMD_OP_LAYERNORM, &(struct hspmd_op_attr){ .eps = eps }, (int[]){ x, gain, bias }, bias >= 0 ? 3 : 2);
}

int hspmd_net_rms_norm(struct hspmd_net *net, int x, int gain, double eps)
{
	return append(net, HSPMD_OP_RMSNORM, &(struct hspmd_op_attr){ .eps = eps }, (int[]){ x, gain }, 2);
}

int hspmd_net_gelu(struct hspmd_net *net, int x)
{
	return append(net, HSPMD_OP_GELU, NULL, &x, 1);
}

int hspmd_net_swiglu(struct hspmd_net *net, int gate, int up)
{
	return append(net, HSPMD_OP_SWIGLU, NULL, (int[]){ gate, up }, 2);
}

int hspmd_net_rope(struct hspmd_net *net, int x, int64_t head_width, double theta)
{
	return append(net, HSPMD_OP_ROPE, &(struct hspmd_op_attr){ .head_dim = head_width, .theta = theta }, &x, 1);
}

int hspmd_net_attention(struct hspmd_net *net, int q, int k, int v, int segments, int64_t head_width)
{
	struct hspmd_op_attr attr = {
		.head_dim = head_width,
		.heads = heads_of(net, q, head_width),
		.kv_heads = heads_of(net, k, head_width),
		.scale = head_width > 0 ? 1 / sqrt((double)head_width) : 0,
	};
	return append(net, HSPMD_OP_ATTENTION, &attr, (int[]){ q, k, v, segments }, segments >= 0 ? 4 : 3);
}

static int parts_of(const struct hspmd_subgroup *g, int dim)
{
	int parts = 1;
	for (int i = 0; i < g->split_count; i++)
		parts *= g->splits[i].dim == dim ? g->splits[i].parts : 1;
	return parts;
}

/* Number of parts in which logits are split along their last dimension: as the outputs of the weight that computes them, if all
 * subgroups agree. */
int hspmd_net_vocabulary_parts(const struct hspmd_net *net, int logits)
{
	int producer = logits >= 0 && logits < (int)net->g->tensor_count ? net->g->tensors[logits].producer : -1;
	if (producer < 0 || net->g->ops[producer].opcode != HSPMD_OP_LINEAR)
		return 1;
	const struct hspmd_tensor *w = &net->g->tensors[net->g->ops[producer].in[1]];
	if (!w->annotation)
		return w->split_dim == 0 ? net->how->vocab_parts : 1;
	int parts = parts_of(&w->annotation->groups[0], 0);
	for (int g = 0; g < w->annotation->hsize; g++)
		if (w->annotation->hdim == 0 || parts_of(&w->annotation->groups[g], 0) != parts)
			return 1;
	return parts;
}

/* ---- a graph source */

static struct hspmd_graph *build(void *context, const struct hspmd_model_build_options *how, struct hspmd_error *err)
{
	const struct hspmd_net_source *source = context;
	struct hspmd_net net = { .g = hspmd_graph_create(hspmd_op_types), .how = how, .layers = source->layers, .loss = -1 };
	if (!net.g) {
		hspmd_fail_memory(err, "building the net");
		return NULL;
	}
	net.g->compute_dtype = how->bf16 ? HSPMD_BF16 : HSPMD_F32;
	source->build(source->context, &net);
	if (!net.g->failed && net.loss < 0) {
		hspmd_fail(&net.g->error, "it has no loss");
		refuse(&net);
	}
	if (!net.g->failed && how->documents && hspmd_graph_find(net.g, HSPMD_TENSOR_SEGMENTS) < 0) {
		hspmd_fail(&net.g->error, "it has no input \"" HSPMD_TENSOR_SEGMENTS
		                          "\", which attention needs because the data are documents (document_end)");
		refuse(&net);
	}
	if (!net.g->failed && (how->forward_only || !hspmd_graph_differentiate(net.g)))
		return net.g;
	hspmd_fail(err, "the net: %s", net.g->error.text);
	hspmd_graph_destroy(net.g);
	return NULL;
}

struct hspmd_graph_source hspmd_net_graph_source(const struct hspmd_net_source *source)
{
	return (struct hspmd_graph_source){ .build = build, .context = (void *)source, .layers = source->layers };
}
