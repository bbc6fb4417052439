/* SPDX-License-Identifier: Apache-2.0 */
/* BERT (Devlin et al., arXiv 1810.04805) with both of its losses: masked words, and whether the second sentence follows the first; and
 * BERT with experts, where every second block has a mixture of experts (Shazeer et al., arXiv 1701.06538) instead of its two linear
 * layers. Inputs, per sample: "tokens", "types", "targets" [length] integers; "mask" [length] floats, -1e9 for padding, else 0;
 * "weights" [length] floats, not 0 for positions whose word is to be found; "follows" [1] integers. Plan layers: 0: embeddings,
 * 1..blocks, and the head. */
#include "job.h"

struct bert {
	int64_t words, width, heads, inner, blocks;
	double dropout;
	int64_t experts; /* 0: BERT itself */
	int64_t per_token;
	double balance;
};
static const struct bert bert_base = { 30522, 768, 12, 3072, 12, 0.1, 0, 0, 0 };

static int bert_layers(const struct bert *how)
{
	return (int)how->blocks + 2;
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
	return hspmd_net_experts(net, x, router, parts, (int)how->per_token, how->balance, HSPMD_GATE_GELU_EXACT);
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
	hspmd_net_layer(net, bert_layers(how) - 1);
	struct hspmd_cross_entropy weighted = HSPMD_CROSS_ENTROPY;
	weighted.weights = hspmd_net_float_input(net, "weights", 1, DIMS(hspmd_net_length(net)));
	int y = layer_norm(net, "head.norm", hspmd_net_gelu_exact(net, linear(net, "head.dense", x, how->width, WHOLE, 1, 1)), 1e-12);
	y = hspmd_net_linear(net, y, table, parameter(net, "head", "bias", 1, &how->words, 0, 0));
	hspmd_net_cross_entropy(net, y, hspmd_net_integers(net, "targets"), &weighted);
	y = hspmd_net_tanh(net, linear(net, "pooler", hspmd_net_slice(net, x, 1, 0, 1), how->width, WHOLE, 1, 1));
	hspmd_net_loss(net, linear(net, "follows", y, 2, WHOLE, 1, 1), hspmd_net_integer_input(net, "follows", 1, DIMS(1)));
}

/* ---- the model of a job: tokens of job.h, as many for each sample as it has positions less 3 */

struct bert_job {
	struct bert net;
	int64_t token_bytes, cls, sep, masked; /* numbers of the words [CLS], [SEP] and [MASK] */
};

static int bert_configure(const char *config, struct hspmd_model_sizes *sizes, void **context, struct hspmd_error *err)
{
	struct bert_job *how = malloc(sizeof *how);
	if (!how)
		return failed(err, "out of memory");
	*how = (struct bert_job){ bert_base, 2, 101, 102, 103 }; /* as in bert-base-uncased */
	const struct setting settings[] = {
		{ "words", &how->net.words, 1, NULL },
		{ "width", &how->net.width, 1, NULL },
		{ "heads", &how->net.heads, 1, NULL },
		{ "inner", &how->net.inner, 1, NULL },
		{ "blocks", &how->net.blocks, 1, NULL },
		{ "experts", &how->net.experts, 0, NULL },
		{ "per_token", &how->net.per_token, 0, NULL },
		{ "token_bytes", &how->token_bytes, 1, NULL },
		{ "cls", &how->cls, 0, NULL },
		{ "sep", &how->sep, 0, NULL },
		{ "masked", &how->masked, 0, NULL },
		{ "dropout", NULL, 0, &how->net.dropout },
		{ "balance", NULL, 0, &how->net.balance },
	};
	int status = read_settings(config, settings, COUNT(settings), err) || check_token_bytes(how->token_bytes, err) ? -1 : 0;
	if (!status && (how->cls >= how->net.words || how->sep >= how->net.words || how->masked >= how->net.words))
		status = failed(err, "cls, sep, masked: expected less than words");
	if (status) {
		free(how);
		return -1;
	}
	sizes->layers = bert_layers(&how->net);
	*context = how;
	return 0;
}

static void *bert_open(void *context, const struct hspmd_model_data *data, int64_t *count, struct hspmd_error *err)
{
	if (data->length >= 5)
		return open_records(data, context, (data->length - 3) * ((const struct bert_job *)context)->token_bytes, count, err);
	failed(err, "seq_len: expected at least 5, got %ld", (long)data->length);
	return NULL;
}

/* A sample: two halves of the text, of which the second follows the first or is another sample's; some are short. */
struct bert_sample {
	int64_t *first, *second; /* tokens of records */
	int64_t half, end;       /* tokens of the first half; positions before the padding */
	int follows;
};

static int bert_sample(const struct records *r, int64_t number, struct bert_sample *s, struct hspmd_error *err)
{
	const struct bert_job *how = r->how;
	int64_t rest = r->length - 3 - (r->length - 3) / 2, other = (int64_t)(random_number(r->seed, number, -1) % (uint64_t)r->count);
	uint64_t shorter = random_number(r->seed, number, -3);
	s->half = r->length - 3 - rest;
	s->end = r->length - (shorter % 10 ? 0 : (int64_t)(shorter / 10 % (uint64_t)rest));
	s->follows = (int)(random_number(r->seed, number, -2) & 1);
	s->first = read_tokens(r, number, how->token_bytes, how->net.words, err);
	s->second = s->first ? read_tokens(r, s->follows ? number : other, how->token_bytes, how->net.words, err) : NULL;
	if (s->second)
		return 0;
	free(s->first);
	return -1;
}

/* The word at a position: [CLS] first half [SEP] second half [SEP] padding. */
static int64_t bert_word(const struct bert_job *how, const struct bert_sample *s, int64_t i)
{
	if (i == 0 || i >= s->end)
		return i == 0 ? how->cls : 0;
	if (i == s->half + 1 || i == s->end - 1)
		return how->sep;
	return i <= s->half ? s->first[i - 1] : s->second[i - 2];
}

/* 15 % of the words are to be found: four fifths of them are masked, a tenth is replaced by any word, a tenth stays (section 3.1). */
static double bert_value(const struct records *r, const struct bert_sample *s, const char *input, int64_t sample, int64_t i)
{
	const struct bert_job *how = r->how;
	uint64_t random = random_number(r->seed, sample, i);
	int is_word = i > 0 && i < s->end - 1 && i != s->half + 1, found = is_word && random % 100 < 15;
	if (!strcmp(input, "types"))
		return i > s->half + 1 && i < s->end;
	if (!strcmp(input, "mask"))
		return i < s->end ? 0 : -1e9;
	if (!strcmp(input, "weights"))
		return found;
	if (!strcmp(input, "follows"))
		return s->follows;
	if (!found || !strcmp(input, "targets") || random / 100 % 10 == 9)
		return (double)bert_word(how, s, i);
	return (double)(random / 100 % 10 < 8 ? how->masked : (int64_t)(random / 1000 % (uint64_t)how->net.words));
}

static int bert_read(void *samples, const char *input, int64_t sample, int64_t start, int64_t length, void *to, struct hspmd_error *err)
{
	const struct records *r = samples;
	struct bert_sample s;
	if (bert_sample(r, sample, &s, err))
		return -1;
	int floats = !strcmp(input, "mask") || !strcmp(input, "weights");
	for (int64_t i = 0; i < length; i++) {
		double value = bert_value(r, &s, input, sample, start + i);
		if (floats)
			((float *)to)[i] = (float)value;
		else
			((int32_t *)to)[i] = (int32_t)value;
	}
	free(s.first);
	free(s.second);
	return 0;
}

const struct hspmd_model_definition hspmd_model = {
	.version = HSPMD_MODEL_VERSION,
	.name = "bert",
	.configure = bert_configure,
	.destroy = free,
	.build = bert_build,
	.open_samples = bert_open,
	.read_sample = bert_read,
	.close_samples = close_records,
};
