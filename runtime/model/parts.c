/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/model_internal.h"

#include <stdio.h>
#include <string.h>

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

int hspmd_builder_linear(struct hspmd_builder *b, int x, int w, int bias, bool transposed)
{
	struct hspmd_op_attr attr = { .transposed = transposed };
	return hspmd_builder_op(b, HSPMD_OP_LINEAR, &attr, (int[]){ x, w, bias }, bias >= 0 ? 3 : 2, NULL);
}

int hspmd_builder_norm(struct hspmd_builder *b, int x, const char *name)
{
	char full[96];
	int outputs[HSPMD_OP_MAX_IO];
	struct hspmd_op_attr attr = { .eps = b->m->norm_eps };
	snprintf(full, sizeof full, "%s.weight", name);
	int gain = hspmd_builder_vector(b, full, HSPMD_SHAPE(b->m->hidden), 1, -1, 1);
	if (b->m->rms_norm)
		return hspmd_builder_op(b, HSPMD_OP_RMSNORM, &attr, (int[]){ x, gain }, 2, outputs);
	snprintf(full, sizeof full, "%s.bias", name);
	int bias = hspmd_builder_vector(b, full, HSPMD_SHAPE(b->m->hidden), 0, -1, 1);
	return hspmd_builder_op(b, HSPMD_OP_LAYERNORM, &attr, (int[]){ x, gain, bias }, 3, outputs);
}

int hspmd_builder_attention(struct hspmd_builder *b, const struct hspmd_op_attr *attr, const int *inputs, int count)
{
	int in[HSPMD_OP_MAX_IO], outputs[HSPMD_OP_MAX_IO];
	memcpy(in, inputs, (size_t)count * sizeof *in);
	if (b->segments >= 0)
		in[count++] = b->segments;
	return hspmd_builder_op(b, HSPMD_OP_ATTENTION, attr, in, count, outputs);
}

int hspmd_builder_add(struct hspmd_builder *b, int x, int y)
{
	return hspmd_builder_op(b, HSPMD_OP_ADD, NULL, (int[]){ x, y }, 2, NULL);
}

void hspmd_builder_head(struct hspmd_builder *b, int x, const char *prefix, const char *norm, int table)
{
	const struct hspmd_model *m = b->m;
	b->layer = m->block_count + 1;
	snprintf(b->prefix, sizeof b->prefix, "%s", prefix);
	x = hspmd_builder_norm(b, x, norm);
	b->prefix[0] = '\0';
	int head = m->tied ? table : hspmd_builder_matrix(b, "lm_head.weight", HSPMD_SHAPE(m->vocab, m->hidden), m->init_range, 0, 1);
	struct hspmd_op_attr attr = { .parts = b->how->vocab_parts, .scale = b->how->loss_scale };
	int logits = hspmd_builder_linear(b, x, head, -1, false);
	int stats = hspmd_builder_op(b, HSPMD_OP_VOCAB_STATS, &attr, (int[]){ logits, b->targets }, 2, NULL);
	hspmd_builder_op(b, HSPMD_OP_LOSS, &attr, (int[]){ stats, b->targets }, 2, NULL);
}
