/* SPDX-License-Identifier: Apache-2.0 */
/* A model of one's own for `hspmd run` and `sbatch --hspmd`: which of three spirals does a point of the plane belong to?
 *
 *     hspmd build own-model.c && hspmd run --job own-job.json --local 3
 *
 * own-job.json has its width and depth ("model_config"), and no data files: the samples are computed. */
#include <hspmd/hspmd.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPIRALS 3
#define SAMPLES 4096 /* of an epoch; a sample is seq_len points */

struct spirals {
	int64_t width;
	int layers;
};

/* ---- the net: points -> width -> blocks (norm, width -> 2 width -> width, added) -> 3 */

static int weight(struct hspmd_net *net, const char *name, int64_t out, int64_t in, int split)
{
	int w = hspmd_net_parameter(net, name, 2, (int64_t[]){ out, in }, 0, 1 / sqrt((double)in));
	if (split >= 0)
		hspmd_net_split(net, w, split, 1);
	return w;
}

static int vector(struct hspmd_net *net, const char *name, int64_t n, double value)
{
	int v = hspmd_net_parameter(net, name, 1, (int64_t[]){ n }, value, 0);
	hspmd_net_no_decay(net, v);
	return v;
}

/* Tensor parallelism divides the inner width: rows of `up`, columns of `down`. */
static int block(struct hspmd_net *net, int x, int layer, int64_t width)
{
	char name[4][64];
	const char *const parts[4] = { "norm.gain", "norm.bias", "up", "down" };
	for (int i = 0; i < 4; i++)
		snprintf(name[i], sizeof name[i], "blocks.%d.%s", layer - 1, parts[i]);
	hspmd_net_layer(net, layer);
	int normed = hspmd_net_layer_norm(net, x, vector(net, name[0], width, 1), vector(net, name[1], width, 0), 1e-5);
	int inner = hspmd_net_gelu(net, hspmd_net_linear(net, normed, weight(net, name[2], 2 * width, width, 0), -1));
	return hspmd_net_add(net, x, hspmd_net_linear(net, inner, weight(net, name[3], width, 2 * width, 1), -1));
}

static void build(void *context, struct hspmd_net *net)
{
	const struct spirals *s = context;
	int points = hspmd_net_floats(net, "points", 2);
	int first = hspmd_net_linear(net, points, weight(net, "in", s->width, 2, -1), vector(net, "in.bias", s->width, 0));
	int x = hspmd_net_gelu(net, first);
	for (int layer = 1; layer + 1 < s->layers; layer++)
		x = block(net, x, layer, s->width);
	hspmd_net_layer(net, s->layers - 1);
	int targets = hspmd_net_integers(net, "spirals");
	int logits = hspmd_net_linear(net, x, weight(net, "out", SPIRALS, s->width, -1), vector(net, "out.bias", SPIRALS, 0));
	hspmd_net_loss(net, logits, targets);
}

/* ---- its sizes */

/* The number of "name": in a JSON object of numbers; `absent` if it is not there. */
static long number(const char *config, const char *name, long absent)
{
	char key[64];
	snprintf(key, sizeof key, "\"%s\"", name);
	const char *at = strstr(config, key);
	at = at ? strchr(at + strlen(key), ':') : NULL;
	return at ? strtol(at + 1, NULL, 10) : absent;
}

static int configure(const char *config, struct hspmd_model_sizes *sizes, void **context, struct hspmd_error *err)
{
	long width = number(config, "width", 48), depth = number(config, "depth", 2);
	struct spirals *s = malloc(sizeof *s);
	if (!s || width < 1 || width > 65536 || depth < 0 || depth > 1000) {
		snprintf(err->text, sizeof err->text, "width: expected 1..65536; depth: expected 0..1000");
		free(s);
		return -1;
	}
	*s = (struct spirals){ width, (int)depth + 2 };
	sizes->layers = s->layers;
	*context = s;
	return 0;
}

/* ---- its samples: functions of their number alone, and so the same under every plan */

static void *open_samples(void *context, const struct hspmd_model_data *data, int64_t *count, struct hspmd_error *err)
{
	int64_t *length = malloc(sizeof *length);
	(void)context;
	if (!length)
		snprintf(err->text, sizeof err->text, "out of memory");
	else
		*length = data->length;
	*count = SAMPLES;
	return length;
}

static int point(int64_t at, float *to)
{
	uint64_t z = (uint64_t)at * UINT64_C(0x9e3779b97f4a7c15) + 1;
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z ^= z >> 27;
	int spiral = (int)(z % SPIRALS);
	double along = (double)(z >> 11 & 0xffff) / 65536, angle = 4 * along + 2 * M_PI / SPIRALS * spiral;
	to[0] = (float)(2 * along * cos(angle));
	to[1] = (float)(2 * along * sin(angle));
	return spiral;
}

static int read_sample(void *samples, const char *input, int64_t sample, int64_t start, int64_t length, void *to, struct hspmd_error *err)
{
	const int64_t *points = samples;
	(void)err;
	for (int64_t i = 0; i < length; i++) {
		float at[2];
		int spiral = point(sample * *points + start + i, at);
		if (!strcmp(input, "points"))
			memcpy((float *)to + 2 * i, at, sizeof at);
		else
			((int32_t *)to)[i] = spiral;
	}
	return 0;
}

const struct hspmd_model_definition hspmd_model = {
	.version = HSPMD_MODEL_VERSION,
	.name = "spirals",
	.configure = configure,
	.destroy = free,
	.build = build,
	.open_samples = open_samples,
	.read_sample = read_sample,
	.close_samples = free,
};
