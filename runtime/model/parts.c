/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/model_internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/tensor/fp8.h"

static int parameter(struct hspmd_builder *b, const char *name, struct hspmd_shape shape, double mean, double deviation, bool decay,
                     int split_dim, int64_t unit)
{
	char full[192];
	snprintf(full, sizeof full, "%s%s", b->prefix, name);
	return hspmd_graph_parameter(b->g, full, shape, b->layer, mean, deviation, decay, split_dim, unit);
}

int hspmd_builder_matrix(struct hspmd_builder *b, const char *name, struct hspmd_shape shape, double deviation, int split_dim, int64_t unit)
{
	return parameter(b, name, shape, 0, deviation, true, split_dim, unit);
}

int hspmd_builder_vector(struct hspmd_builder *b, const char *name, struct hspmd_shape shape, double value, int split_dim, int64_t unit)
{
	return parameter(b, name, shape, value, 0, false, split_dim, unit);
}

int hspmd_builder_op(struct hspmd_builder *b, enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, const int *inputs, int count,
                     int *outputs)
{
	return hspmd_graph_append(b->g, opcode, attr, b->layer, inputs, count, outputs);
}

int hspmd_builder_history(struct hspmd_builder *b, int w, const char *name, int64_t rows)
{
	const char *weight = w < 0 ? "" : b->g->tensors[w].name;
	size_t length = strlen(weight);
	char full[256];
	length -= length > 7 && !strcmp(weight + length - 7, ".weight") ? 7 : 0;
	snprintf(full, sizeof full, "%.*s%s", (int)length, weight, name);
	return hspmd_graph_history(b->g, full, rows, b->layer);
}

static int product(struct hspmd_builder *b, int x, int w, int bias, bool transposed, bool fp8)
{
	struct hspmd_op_attr attr = { .transposed = transposed };
	if (!fp8)
		return hspmd_builder_op(b, HSPMD_OP_LINEAR, &attr, (int[]){ x, w, bias }, bias >= 0 ? 3 : 2, NULL);
	attr.scale = b->how->loss_scale;
	int in[] = { x, w, bias, hspmd_builder_history(b, w, HSPMD_AMAX_HISTORY, 2),
		     hspmd_builder_history(b, w, HSPMD_WEIGHT_AMAX_HISTORY, 1) };
	return hspmd_builder_op(b, HSPMD_OP_LINEAR_FP8, &attr, in, 5, NULL);
}

int hspmd_builder_linear(struct hspmd_builder *b, int x, int w, int bias, bool transposed)
{
	return product(b, x, w, bias, transposed, b->how->fp8);
}

static int projection(struct hspmd_builder *b, int x, const char *name, int64_t out, int64_t in, bool bias, struct hspmd_cut cut, bool fp8)
{
	char full[96];
	snprintf(full, sizeof full, "%s.weight", name);
	int w = hspmd_builder_matrix(b, full, HSPMD_SHAPE(out, in), b->d->init_range, cut.dim, cut.unit);
	snprintf(full, sizeof full, "%s.bias", name);
	return product(b, x, w, bias ? hspmd_builder_vector(b, full, HSPMD_SHAPE(out), 0, cut.dim == 0 ? 0 : -1, cut.unit) : -1, false,
	               fp8);
}

int hspmd_builder_projection(struct hspmd_builder *b, int x, const char *name, int64_t out, int64_t in, bool bias, struct hspmd_cut cut)
{
	return projection(b, x, name, out, in, bias, cut, b->how->fp8);
}

int hspmd_builder_router(struct hspmd_builder *b, int x, const char *name, int64_t experts, bool bias)
{
	return projection(b, x, name, experts, b->m->hidden, bias, (struct hspmd_cut){ -1, 1 }, false);
}

int hspmd_builder_norm(struct hspmd_builder *b, int x, const char *name, int64_t width)
{
	char full[96];
	int outputs[HSPMD_OP_MAX_IO];
	struct hspmd_op_attr attr = { .eps = b->d->norm_eps, .plus_one = b->d->gain_plus_one };
	snprintf(full, sizeof full, "%s.weight", name);
	int gain = hspmd_builder_vector(b, full, HSPMD_SHAPE(width), b->d->gain_plus_one ? 0 : 1, -1, 1);
	if (!b->d->layer_norm)
		return hspmd_builder_op(b, HSPMD_OP_RMSNORM, &attr, (int[]){ x, gain }, 2, outputs);
	snprintf(full, sizeof full, "%s.bias", name);
	int bias = hspmd_builder_vector(b, full, HSPMD_SHAPE(width), 0, -1, 1);
	return hspmd_builder_op(b, HSPMD_OP_LAYERNORM, &attr, (int[]){ x, gain, bias }, 3, outputs);
}

int hspmd_builder_rms_norm(struct hspmd_builder *b, int x, const char *name, int64_t width, double eps)
{
	char full[96];
	int outputs[HSPMD_OP_MAX_IO];
	struct hspmd_op_attr attr = { .eps = eps };
	snprintf(full, sizeof full, "%s.weight", name);
	return hspmd_builder_op(b, HSPMD_OP_RMSNORM, &attr, (int[]){ x, hspmd_builder_vector(b, full, HSPMD_SHAPE(width), 1, -1, 1) }, 2,
	                        outputs);
}

int hspmd_builder_attention(struct hspmd_builder *b, const struct hspmd_op_attr *attr, const int *inputs, int count, int sinks)
{
	int in[HSPMD_OP_MAX_IO], outputs[HSPMD_OP_MAX_IO];
	struct hspmd_op_attr own = *attr;
	memcpy(in, inputs, (size_t)count * sizeof *in);
	bool drops = b->noise >= 0 && b->d->dropout.attention > 0;
	if (b->segments >= 0 || sinks >= 0 || drops)
		in[count++] = b->segments;
	if (sinks >= 0 || drops)
		in[count++] = sinks;
	if (drops) {
		in[count++] = b->noise;
		own.rate = b->d->dropout.attention;
		own.random.stream = (uint64_t)b->drops++;
	}
	return hspmd_builder_op(b, HSPMD_OP_ATTENTION, &own, in, count, outputs);
}

int hspmd_builder_dropout(struct hspmd_builder *b, int x, double rate)
{
	struct hspmd_op_attr attr = { .rate = rate };
	if (b->noise < 0 || rate <= 0)
		return x;
	attr.random.stream = (uint64_t)b->drops++;
	return hspmd_builder_op(b, HSPMD_OP_DROPOUT, &attr, (int[]){ x, b->noise }, 2, NULL);
}

int hspmd_builder_add(struct hspmd_builder *b, int x, int y)
{
	return hspmd_builder_op(b, HSPMD_OP_ADD, NULL, (int[]){ x, y }, 2, NULL);
}

void hspmd_builder_block(struct hspmd_builder *b, const char *blocks, int number)
{
	b->layer = number + 1;
	snprintf(b->prefix, sizeof b->prefix, "%s%d.", blocks, number);
}

int hspmd_builder_embedding(struct hspmd_builder *b, const char *prefix, const char *name, int *table)
{
	const struct hspmd_model *m = b->m;
	snprintf(b->prefix, sizeof b->prefix, "%s", prefix);
	*table = hspmd_builder_matrix(b, name, HSPMD_SHAPE(m->vocab, m->hidden), b->d->init_range, 0, 1);
	int x = hspmd_builder_op(b, HSPMD_OP_EMBED, NULL, (int[]){ b->tokens, *table }, 2, NULL);
	struct hspmd_op_attr attr = { .scale = b->d->embedding_scale };
	return attr.scale == 1 ? x : hspmd_builder_op(b, HSPMD_OP_SCALE, &attr, &x, 1, NULL);
}

void hspmd_builder_head(struct hspmd_builder *b, int x, const char *prefix, const char *norm, const char *head, int table)
{
	const struct hspmd_model *m = b->m;
	b->layer = m->block_count + 1;
	snprintf(b->prefix, sizeof b->prefix, "%s", prefix);
	x = hspmd_builder_norm(b, x, norm, m->hidden);
	b->prefix[0] = '\0';
	int w = m->tied ? table : hspmd_builder_matrix(b, head, HSPMD_SHAPE(m->vocab, m->hidden), b->d->init_range, 0, 1);
	struct hspmd_op_attr attr = { .parts = b->how->vocab_parts, .scale = b->how->loss_scale };
	struct hspmd_op_attr cap = { .softcap = b->d->logit_softcap };
	int logits = product(b, x, w, -1, false, false);
	if (cap.softcap > 0)
		logits = hspmd_builder_op(b, HSPMD_OP_SOFTCAP, &cap, &logits, 1, NULL);
	int stats = hspmd_builder_op(b, HSPMD_OP_VOCAB_STATS, &attr, (int[]){ logits, b->targets }, 2, NULL);
	hspmd_builder_op(b, HSPMD_OP_LOSS, &attr, (int[]){ stats, b->targets }, 2, NULL);
}
