/* SPDX-License-Identifier: Apache-2.0 */
/* T5 (Raffel et al., arXiv 1910.10683): an encoder, and a decoder that attends to it; positions are known by a learned bias of the scores for each
 * distance. Inputs, per sample: "source" [source] and "tokens", "targets" [target] integers; "mask" [source] floats, -1e9 for padding, else 0;
 * "encoder_distance" [source, source] and "decoder_distance" [target, target] integers, the number of each distance (t5_distance), and "causal"
 * [target, target] floats, -1e9 for later positions, else 0. Plan layers: 0: embedding, 1..blocks: encoder, from blocks + 1 on: embedding of the
 * target, decoder, and the head. */
#include "parts.h"

#include <math.h>

struct t5 {
	int64_t words, width, heads, head, inner, source, target; /* head: width of one; source, target: positions */
	int blocks;
	int64_t distances, farthest;
	double dropout;
};
static const struct t5 t5_small = { 32128, 512, 8, 64, 2048, 512, 128, 6, 32, 128, 0.1 };

static int t5_layers(const struct t5 *how)
{
	return 2 * how->blocks + 3;
}

/* The number of the distance between a query and a key: near ones each have their own, farther ones share numbers on a logarithmic scale. */
static inline int64_t t5_distance(const struct t5 *how, int64_t query, int64_t key, int both_sides)
{
	int64_t count = both_sides ? how->distances / 2 : how->distances, first = both_sides && key > query ? count : 0;
	int64_t far = query - key, own = count / 2;
	far = far < 0 ? both_sides ? -far : 0 : far;
	if (far < own)
		return first + far;
	double part = log((double)far / (double)own) / log((double)how->farthest / (double)own);
	int64_t number = own + (int64_t)(part * (double)(count - own));
	return first + (number < count ? number : count - 1);
}

static int t5_norm(struct hspmd_net *net, const char *prefix, int x)
{
	int64_t width = hspmd_net_dim(net, x, -1);
	return hspmd_net_rms_norm(net, x, parameter(net, prefix, "weight", 1, &width, 1, 0), 1e-6);
}

/* The bias of each head for each pair of positions: [samples, heads, positions, positions]. */
static int t5_bias(const struct t5 *how, struct hspmd_net *net, const char *name, int64_t positions)
{
	char input[64];
	snprintf(input, sizeof input, "%s_distance", name);
	int table = parameter(net, name, "bias", 2, DIMS(how->distances, how->heads), 0, 0.1);
	int bias = hspmd_net_gather(net, table, hspmd_net_integer_input(net, input, 2, DIMS(positions, positions)), 0);
	return hspmd_net_transpose(net, bias, (int[]){ 0, 3, 1, 2 });
}

/* [samples, positions, heads * head] -> [samples, heads, positions, head] */
static int t5_heads(const struct t5 *how, struct hspmd_net *net, int x)
{
	x = hspmd_net_reshape(net, x, 4, DIMS(hspmd_net_samples(net), hspmd_net_dim(net, x, 1), how->heads, how->head));
	return hspmd_net_transpose(net, x, (int[]){ 0, 2, 1, 3 });
}

static int t5_linear(const struct t5 *how, struct hspmd_net *net, const char *prefix, const char *name, int x)
{
	char full[160];
	snprintf(full, sizeof full, "%s.%s", prefix, name);
	return linear(net, full, x, how->heads * how->head, BY_OUTPUT, how->head, 0);
}

/* Attention whose scores get a learned bias: of single products, so that the bias has a gradient. */
static int t5_self_attention(const struct t5 *how, struct hspmd_net *net, const char *prefix, int x, int bias)
{
	char full[160];
	int q = t5_heads(how, net, t5_linear(how, net, prefix, "query", x)), k = t5_heads(how, net, t5_linear(how, net, prefix, "key", x));
	int v = t5_heads(how, net, t5_linear(how, net, prefix, "value", x));
	int shares = hspmd_net_softmax(net, hspmd_net_add(net, hspmd_net_matmul(net, q, k, 0, 1), bias));
	int y = hspmd_net_transpose(net, hspmd_net_matmul(net, shares, v, 0, 0), (int[]){ 0, 2, 1, 3 });
	y = hspmd_net_reshape(net, y, 3, DIMS(hspmd_net_samples(net), hspmd_net_dim(net, x, 1), how->heads * how->head));
	snprintf(full, sizeof full, "%s.output", prefix);
	return hspmd_net_dropout(net, linear(net, full, y, how->width, BY_INPUT, how->head, 0), how->dropout);
}

static int t5_cross_attention(const struct t5 *how, struct hspmd_net *net, const char *prefix, int x, int encoded, int mask)
{
	struct hspmd_attention across = HSPMD_ATTENTION;
	char full[160];
	across.scale = 1;
	across.mask = mask;
	int k = t5_linear(how, net, prefix, "key", encoded), v = t5_linear(how, net, prefix, "value", encoded);
	int y = hspmd_net_attend(net, t5_linear(how, net, prefix, "query", x), k, v, how->head, &across);
	snprintf(full, sizeof full, "%s.output", prefix);
	return hspmd_net_dropout(net, linear(net, full, y, how->width, BY_INPUT, how->head, 0), how->dropout);
}

static int t5_mlp(const struct t5 *how, struct hspmd_net *net, const char *prefix, int number, int x)
{
	char name[96];
	int y = t5_norm(net, named(&name, prefix, number, "norm3"), x);
	y = hspmd_net_relu(net, linear(net, named(&name, prefix, number, "up"), y, how->inner, BY_OUTPUT, 1, 0));
	y = linear(net, named(&name, prefix, number, "down"), y, how->width, BY_INPUT, 1, 0);
	return hspmd_net_add(net, x, hspmd_net_dropout(net, y, how->dropout));
}

static int t5_encoder(const struct t5 *how, struct hspmd_net *net, int x, int mask)
{
	char name[96];
	int bias = -1;
	for (int i = 0; i < how->blocks; i++) {
		hspmd_net_layer(net, i + 1);
		if (i == 0)
			bias = hspmd_net_add(net, t5_bias(how, net, "encoder", how->source), mask);
		int y = t5_norm(net, named(&name, "encoder", i, "norm1"), x);
		x = hspmd_net_add(net, x, t5_self_attention(how, net, named(&name, "encoder", i, "self"), y, bias));
		x = t5_mlp(how, net, "encoder", i, x);
	}
	return hspmd_net_dropout(net, t5_norm(net, "encoder.norm", x), how->dropout);
}

static int t5_decoder(const struct t5 *how, struct hspmd_net *net, int x, int encoded, int mask)
{
	char name[96];
	int bias = -1;
	for (int i = 0; i < how->blocks; i++) {
		hspmd_net_layer(net, how->blocks + 2 + i);
		if (i == 0) {
			int causal = hspmd_net_float_input(net, "causal", 2, DIMS(how->target, how->target));
			causal = hspmd_net_reshape(net, causal, 4, DIMS(hspmd_net_samples(net), 1, how->target, how->target));
			bias = hspmd_net_add(net, t5_bias(how, net, "decoder", how->target), causal);
		}
		int y = t5_norm(net, named(&name, "decoder", i, "norm1"), x);
		x = hspmd_net_add(net, x, t5_self_attention(how, net, named(&name, "decoder", i, "self"), y, bias));
		y = t5_norm(net, named(&name, "decoder", i, "norm2"), x);
		x = hspmd_net_add(net, x, t5_cross_attention(how, net, named(&name, "decoder", i, "cross"), y, encoded, mask));
		x = t5_mlp(how, net, "decoder", i, x);
	}
	return hspmd_net_dropout(net, t5_norm(net, "decoder.norm", x), how->dropout);
}

static void t5_build(void *context, struct hspmd_net *net)
{
	const struct t5 *how = context;
	int table = parameter(net, "", "words", 2, DIMS(how->words, how->width), 0, 1);
	int mask = hspmd_net_float_input(net, "mask", 1, &how->source);
	mask = hspmd_net_reshape(net, mask, 4, DIMS(hspmd_net_samples(net), 1, 1, how->source));
	int x = hspmd_net_embed(net, hspmd_net_integer_input(net, "source", 1, &how->source), table);
	int encoded = t5_encoder(how, net, hspmd_net_dropout(net, x, how->dropout), mask);
	hspmd_net_layer(net, how->blocks + 1);
	x = hspmd_net_embed(net, hspmd_net_integer_input(net, "tokens", 1, &how->target), table);
	x = t5_decoder(how, net, hspmd_net_dropout(net, x, how->dropout), encoded, mask);
	hspmd_net_layer(net, 2 * how->blocks + 2);
	x = hspmd_net_scale(net, x, 1 / sqrt((double)how->width));
	hspmd_net_loss(net, hspmd_net_linear(net, x, table, -1), hspmd_net_integer_input(net, "targets", 1, &how->target));
}
