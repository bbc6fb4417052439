/* SPDX-License-Identifier: Apache-2.0 */
/* BERT (Devlin et al., arXiv 1810.04805) with both of its losses: masked words, and whether the second sentence follows the first; and BERT
 * with experts, where every second block has a mixture of experts (Shazeer et al., arXiv 1701.06538) instead of its two linear layers.
 * Inputs, per sample: "tokens", "types", "targets" [length] integers; "mask" [length] floats, -1e9 for padding, else 0; "weights" [length] floats, not 0
 * for positions whose word is to be found; "follows" [1] integers. Plan layers: 0: embeddings, 1..blocks, and the head. */
#include "parts.h"

struct bert {
	int64_t words, width, heads, inner;
	int blocks;
	double dropout;
	int64_t experts; /* 0: BERT itself */
	int per_token;
	double balance;
};
static const struct bert bert_base = { 30522, 768, 12, 3072, 12, 0.1, 0, 0, 0 };

static int bert_layers(const struct bert *how)
{
	return how->blocks + 2;
}

static int bert_embeddings(const struct bert *how, struct hspmd_net *net, int table)
{
	int64_t length = hspmd_net_length(net), width = how->width;
	int x = hspmd_net_embed(net, hspmd_net_integers(net, "tokens"), table);
	int types = hspmd_net_gather(net, parameter(net, "embeddings", "types", 2, DIMS(2, width), 0, 0.02),
	                             hspmd_net_integers(net, "types"), 0);
	x = hspmd_net_positions(net, hspmd_net_add(net, x, types),
	                        parameter(net, "embeddings", "positions", 2, DIMS(length, width), 0, 0.02));
	return hspmd_net_dropout(net, layer_norm(net, "embeddings.norm", x, 1e-12), how->dropout);
}

/* What is added to the scores of each key, for all heads and queries. */
static int bert_mask(struct hspmd_net *net)
{
	int64_t length = hspmd_net_length(net);
	return hspmd_net_reshape(net, hspmd_net_float_input(net, "mask", 1, &length), 4, DIMS(hspmd_net_samples(net), 1, 1, length));
}

static int bert_experts(const struct bert *how, struct hspmd_net *net, int number, int x)
{
	char name[96];
	int64_t count = how->experts, width = how->width, inner = how->inner;
	int router = parameter(net, named(&name, "blocks", number, "router"), "weight", 2, DIMS(count, width), 0, 0.02), parts[3];
	parts[0] = parameter(net, named(&name, "blocks", number, "experts"), "gate", 3, DIMS(count, inner, width), 0, 0.02);
	parts[1] = parameter(net, name, "up", 3, DIMS(count, inner, width), 0, 0.02);
	parts[2] = parameter(net, name, "down", 3, DIMS(count, width, inner), 0, 0.02);
	for (int i = 0; i < 3; i++)
		hspmd_net_split(net, parts[i], 0, 1);
	return hspmd_net_experts(net, x, router, parts, how->per_token, how->balance, HSPMD_GATE_GELU_EXACT);
}

static int bert_block(const struct bert *how, struct hspmd_net *net, int number, int x, int mask)
{
	char name[96];
	int y = hspmd_net_dropout(net, self_attention(net, "blocks", number, x, how->heads, mask, how->dropout), how->dropout);
	x = layer_norm(net, named(&name, "blocks", number, "norm1"), hspmd_net_add(net, x, y), 1e-12);
	y = how->experts && number % 2 ? bert_experts(how, net, number, x) : mlp(net, "blocks", number, x, how->inner);
	y = hspmd_net_dropout(net, y, how->dropout);
	return layer_norm(net, named(&name, "blocks", number, "norm2"), hspmd_net_add(net, x, y), 1e-12);
}

static void bert_build(void *context, struct hspmd_net *net)
{
	const struct bert *how = context;
	int table = parameter(net, "embeddings", "words", 2, DIMS(how->words, how->width), 0, 0.02);
	int mask = bert_mask(net), x = bert_embeddings(how, net, table);
	for (int i = 0; i < how->blocks; i++) {
		hspmd_net_layer(net, i + 1);
		x = bert_block(how, net, i, x, mask);
	}
	hspmd_net_layer(net, how->blocks + 1);
	struct hspmd_cross_entropy weighted = HSPMD_CROSS_ENTROPY;
	weighted.weights = hspmd_net_float_input(net, "weights", 1, DIMS(hspmd_net_length(net)));
	int y = layer_norm(net, "head.norm", hspmd_net_gelu_exact(net, linear(net, "head.dense", x, how->width, WHOLE, 1, 1)), 1e-12);
	y = hspmd_net_linear(net, y, table, parameter(net, "head", "bias", 1, &how->words, 0, 0));
	hspmd_net_cross_entropy(net, y, hspmd_net_integers(net, "targets"), &weighted);
	y = hspmd_net_tanh(net, linear(net, "pooler", hspmd_net_slice(net, x, 1, 0, 1), how->width, WHOLE, 1, 1));
	hspmd_net_loss(net, linear(net, "follows", y, 2, WHOLE, 1, 1), hspmd_net_integer_input(net, "follows", 1, DIMS(1)));
}
