/* SPDX-License-Identifier: Apache-2.0 */
/* A user's own graph on three unequal devices: which of three spirals does a point of the plane belong to? It is no language model, and no
 * model that hspmd knows.
 *
 *     cc -o own-graph own-graph.c $(pkg-config --cflags --libs hspmd) -lm && ./own-graph
 *
 * n:0 has two cores, n:1 and n:2 one each. n:0 and n:1 work together on three of every four samples, n:0 with the larger part of the inner
 * layer; n:2 has all of the layer, and the fourth sample. `./own-graph --program n:0` prints n:0's program instead of training. */
#include <hspmd/hspmd.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPIRALS 3
#define WIDTH 48
#define STEPS 300

static const char cluster[] =
        "{ \"format\": \"hspmd-cluster-1\","
        "  \"device_types\": {"
        "    \"big\":   { \"kind\": \"cpu\", \"memory_bytes\": 1073741824, \"gbytes_per_s\": 20, \"peak_tflops\": { \"fp32\": 0.1 } },"
        "    \"small\": { \"kind\": \"cpu\", \"memory_bytes\": 1073741824, \"gbytes_per_s\": 10, \"peak_tflops\": { \"fp32\": 0.05 } } },"
        "  \"nodes\": [ { \"name\": \"n\", \"devices\": [ { \"type\": \"big\", \"count\": 1 }, { \"type\": \"small\", \"count\": 2 } ] } ],"
        "  \"links\": [ { \"scope\": \"node\", \"alpha_s\": 1e-6, \"gbytes_per_s\": 5 } ] }";

/* A sample is 64 points; 8 samples per step, in micro-batches of four. All three devices are one stage: the annotations below say how they
 * divide its work. */
static const char plan[] =
        "{ \"format\": \"hspmd-plan-1\", \"global_batch\": 8, \"micro_batch\": 4, \"seq_len\": 64,"
        "  \"pipelines\": [ { \"micro_batches\": 2, \"stages\": [ { \"layers\": [0, 3], \"devices\": [\"n:0-2\"] } ] } ] }";

/* Samples: two subgroups; the first has three of four samples (h0: along dimension 0), on both of its devices. */
#define SAMPLES "{[0,1]: -1:2 | [2]} h0(3:1)"

static int weight(struct hspmd_net *net, const char *name, int64_t out, int64_t in)
{
	return hspmd_net_parameter(net, name, 2, (int64_t[]){ out, in }, 0, 1 / sqrt((double)in));
}

static int vector(struct hspmd_net *net, const char *name, int64_t n, double value)
{
	int v = hspmd_net_parameter(net, name, 1, (int64_t[]){ n }, value, 0);
	hspmd_net_no_decay(net, v);
	return v;
}

/* points -> 48 -> (norm, 48 -> 96 -> 48, added) -> 3 */
static void build(void *context, struct hspmd_net *net)
{
	(void)context;
	int points = hspmd_net_floats(net, "points", 2), targets = hspmd_net_integers(net, "spirals");
	hspmd_net_annotate(net, points, SAMPLES);
	hspmd_net_annotate(net, targets, SAMPLES);

	int w_in = weight(net, "in", WIDTH, 2), b_in = vector(net, "in.bias", WIDTH, 0);
	int x = hspmd_net_gelu(net, hspmd_net_linear(net, points, w_in, b_in));

	/* Five eighths of the inner width (rows of `up`, columns of `down`) are on the first device, the rest on the second; the third has
	 * a copy of all. */
	hspmd_net_layer(net, 1);
	int normed = hspmd_net_layer_norm(net, x, vector(net, "gain", WIDTH, 1), vector(net, "bias", WIDTH, 0), 1e-5);
	int up = weight(net, "up", 2 * WIDTH, WIDTH), down = weight(net, "down", WIDTH, 2 * WIDTH);
	hspmd_net_annotate(net, up, "{[0,1]: 0:2(5:3) | [2]}");
	hspmd_net_annotate(net, down, "{[0,1]: 1:2(5:3) | [2]}");
	int inner = hspmd_net_gelu(net, hspmd_net_linear(net, normed, up, -1));
	x = hspmd_net_add(net, x, hspmd_net_linear(net, inner, down, -1));

	hspmd_net_layer(net, 2);
	int out = weight(net, "out", SPIRALS, WIDTH);
	hspmd_net_loss(net, hspmd_net_linear(net, x, out, vector(net, "out.bias", SPIRALS, 0)), targets);
}

/* Point `number`, and its spiral: the same for every call. */
static int point(int64_t number, float *to)
{
	uint64_t z = (uint64_t)number * UINT64_C(0x9e3779b97f4a7c15) + 1;
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z ^= z >> 27;
	int spiral = (int)(z % SPIRALS);
	double along = (double)(z >> 11 & 0xffff) / 65536, angle = 4 * along + 2 * M_PI / SPIRALS * spiral;
	to[0] = (float)(2 * along * cos(angle));
	to[1] = (float)(2 * along * sin(angle));
	return spiral;
}

static int read_sample(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to)
{
	(void)context;
	for (int64_t i = 0; i < count; i++) {
		float at[2];
		int spiral = point(number * 64 + start + i, at);
		if (!strcmp(name, "points"))
			memcpy((float *)to + 2 * i, at, sizeof at);
		else
			((int32_t *)to)[i] = spiral;
	}
	return 0;
}

struct losses {
	double first, last;
};

static void take_loss(void *context, int64_t step, double loss)
{
	struct losses *l = context;
	if (step == 0)
		l->first = loss;
	l->last = loss;
	if (step % 50 == 0 || step == STEPS - 1)
		printf("step %3d  loss %.4f\n", (int)step, loss);
}

static int train(struct hspmd_training *t, struct losses *losses, struct hspmd_error *err)
{
	float gain[WIDTH];
	hspmd_training_samples(t, read_sample, NULL);
	hspmd_training_on_loss(t, take_loss, losses);
	if (hspmd_training_threads(t, "n:0", 2, err) ||
	    hspmd_training_optimizer(t, "{ \"lr\": 0.005, \"warmup_steps\": 10, \"schedule\": \"cosine\", \"weight_decay\": 0 }", err) ||
	    hspmd_training_run(t, STEPS, err) || hspmd_training_parameter(t, "gain", gain, WIDTH, err))
		return -1;
	printf("the norm's first gain is %.4f\n", gain[0]);
	return 0;
}

int main(int argc, char **argv)
{
	struct hspmd_error err = { "" };
	struct losses losses = { 0, 0 };
	struct hspmd_training *t = hspmd_training_create(build, NULL, 3);
	int status = t && !hspmd_training_cluster(t, cluster, &err) && !hspmd_training_plan(t, plan, &err) ? 0 : -1;
	if (!status && argc == 3 && !strcmp(argv[1], "--program")) {
		char *text = hspmd_training_program(t, argv[2], &err);
		status = text ? 0 : -1;
		fputs(text ? text : "", stdout);
		free(text);
	} else if (!status && !(status = train(t, &losses, &err)) && !(losses.last < losses.first / 4)) {
		fprintf(stderr, "own-graph: the loss went from %g to %g only\n", losses.first, losses.last);
		status = -1;
	}
	if (err.text[0])
		fprintf(stderr, "own-graph: %s\n", err.text);
	hspmd_training_destroy(t);
	return status ? EXIT_FAILURE : EXIT_SUCCESS;
}
