/* SPDX-License-Identifier: Apache-2.0 */
/* T5 (Raffel et al., arXiv 1910.10683): an encoder, and a decoder that attends to it; positions are known by a learned bias of the
 * scores for each distance. Inputs, per sample: "source" [source] and "tokens", "targets" [target] integers; "mask" [source] floats,
 * -1e9 for padding, else 0; "encoder_distance" [source, source] and "decoder_distance" [target, target] integers, the number of each
 * distance (t5_distance), and "causal" [target, target] floats, -1e9 for later positions, else 0. Plan layers: 0: embedding, 1..blocks:
 * encoder, from blocks + 1 on: embedding of the target, decoder, and the head. */
#include "job.h"

#include <math.h>

struct t5 {
	int64_t words, width, heads, head, inner, source, target, blocks; /* head: width of one; source, target: positions */
	int64_t distances, farthest;
	double dropout;
};
static const struct t5 t5_small = { 32128, 512, 8, 64, 2048, 512, 128, 6, 32, 128, 0.1 };

static int t5_layers(const struct t5 *how)
{
	return 2 * (int)how->blocks + 3;
}

/* The number of the distance between a query and a key: near ones each have their own, farther ones share numbers on a logarithmic
 * scale. */
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
		hspmd_net_layer(net, (int)how->blocks + 2 + i);
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
	hspmd_net_layer(net, (int)how->blocks + 1);
	x = hspmd_net_embed(net, hspmd_net_integer_input(net, "tokens", 1, &how->target), table);
	x = t5_decoder(how, net, hspmd_net_dropout(net, x, how->dropout), encoded, mask);
	hspmd_net_layer(net, t5_layers(how) - 1);
	x = hspmd_net_scale(net, x, 1 / sqrt((double)how->width));
	hspmd_net_loss(net, hspmd_net_linear(net, x, table, -1), hspmd_net_integer_input(net, "targets", 1, &how->target));
}

/* ---- the model of a job: tokens of job.h. Spans of three tokens are missing in the source, and the target has them (section 3.1.4) */

#define SPAN 3

struct t5_job {
	struct t5 net;
	int64_t token_bytes;
};

/* Each span has a word of its own in the source, and the target has that word before it; one more word ends the target. */
static int64_t t5_spans(const struct t5 *how)
{
	return (how->target - 1) / (SPAN + 1);
}

/* Tokens of the text that a sample needs. */
static int64_t t5_text(const struct t5 *how)
{
	return how->source + t5_spans(how) * (SPAN - 1);
}

static int t5_configure(const char *config, struct hspmd_model_sizes *sizes, void **context, struct hspmd_error *err)
{
	struct t5_job *how = malloc(sizeof *how);
	if (!how)
		return failed(err, "out of memory");
	*how = (struct t5_job){ t5_small, 2 };
	const struct setting settings[] = {
		{ "words", &how->net.words, 1, NULL },         { "width", &how->net.width, 1, NULL },
		{ "heads", &how->net.heads, 1, NULL },         { "head", &how->net.head, 1, NULL },
		{ "inner", &how->net.inner, 1, NULL },         { "source", &how->net.source, 1, NULL },
		{ "target", &how->net.target, 5, NULL },       { "blocks", &how->net.blocks, 1, NULL },
		{ "distances", &how->net.distances, 4, NULL }, { "farthest", &how->net.farthest, 1, NULL },
		{ "token_bytes", &how->token_bytes, 1, NULL }, { "dropout", NULL, 0, &how->net.dropout },
	};
	int status = read_settings(config, settings, COUNT(settings), err) || check_token_bytes(how->token_bytes, err) ? -1 : 0;
	if (!status && (how->net.source < t5_spans(&how->net) || how->net.words <= t5_spans(&how->net)))
		status = failed(err, "source, words: expected more than %ld, a word for each missing span", (long)t5_spans(&how->net));
	if (status) {
		free(how);
		return -1;
	}
	sizes->layers = t5_layers(&how->net);
	*context = how;
	return 0;
}

static void *t5_open(void *context, const struct hspmd_model_data *data, int64_t *count, struct hspmd_error *err)
{
	const struct t5_job *how = context;
	if (data->length == how->net.target)
		return open_records(data, context, t5_text(&how->net) * how->token_bytes, count, err);
	failed(err, "seq_len: expected %ld, the model's target, got %ld", (long)how->net.target, (long)data->length);
	return NULL;
}

/* The words of "source" and "targets" are put together from the text. Spans lie in equal parts of it, one in each. */
static void t5_words(const struct records *r, int64_t sample, const int64_t *text, int64_t *source, int64_t *target)
{
	const struct t5 *how = r->how;
	int64_t spans = t5_spans(how), length = t5_text(how), from = 0, s = 0, t = 0;
	for (int64_t n = 0; n < spans; n++) {
		int64_t part = length * n / spans, room = length * (n + 1) / spans - part - SPAN;
		int64_t span = part + (int64_t)(random_number(r->seed, sample, n) % (uint64_t)(room + 1));
		while (from < span)
			source[s++] = text[from++];
		source[s++] = target[t++] = how->words - 1 - n;
		for (int i = 0; i < SPAN; i++)
			target[t++] = text[from++];
	}
	while (s < how->source)
		source[s++] = text[from++];
	target[t++] = how->words - 1 - spans;
	while (t < how->target)
		target[t++] = -1; /* is no target */
}

static int t5_read(void *samples, const char *input, int64_t sample, int64_t start, int64_t length, void *to, struct hspmd_error *err)
{
	const struct records *r = samples;
	const struct t5_job *how = r->how;
	const struct t5 *net = &how->net;
	int64_t each = !strcmp(input, "encoder_distance") ? net->source : !strcmp(input, "decoder_distance") ? net->target : 0;
	int64_t *text = read_tokens(r, sample, how->token_bytes, net->words, err);
	int64_t *source = malloc((size_t)(net->source + net->target) * sizeof *source), *target = source ? source + net->source : NULL;
	if (!text || !source) {
		free(text);
		free(source);
		return text ? failed(err, "out of memory") : -1;
	}
	t5_words(r, sample, text, source, target);
	for (int64_t i = start; i < start + length; i++) {
		if (!strcmp(input, "mask"))
			((float *)to)[i - start] = 0;
		else if (!strcmp(input, "source"))
			((int32_t *)to)[i - start] = (int32_t)source[i];
		else if (!strcmp(input, "targets"))
			((int32_t *)to)[i - start] = (int32_t)target[i];
		else if (!strcmp(input, "tokens")) /* the target one position later, after the word 0 */
			((int32_t *)to)[i - start] = i && target[i - 1] >= 0 ? (int32_t)target[i - 1] : 0;
		for (int64_t k = 0; !strcmp(input, "causal") && k < net->target; k++)
			((float *)to)[(i - start) * net->target + k] = k > i ? -1e9f : 0;
		for (int64_t k = 0; k < each; k++)
			((int32_t *)to)[(i - start) * each + k] = (int32_t)t5_distance(net, i, k, *input == 'e');
	}
	free(source);
	free(text);
	return 0;
}

const struct hspmd_model_definition hspmd_model = {
	.version = HSPMD_MODEL_VERSION,
	.name = "t5",
	.configure = t5_configure,
	.destroy = free,
	.build = t5_build,
	.open_samples = t5_open,
	.read_sample = t5_read,
	.close_samples = close_records,
};
