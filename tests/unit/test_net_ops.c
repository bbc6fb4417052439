/* SPDX-License-Identifier: Apache-2.0 */
/* The general operators of libhspmd in one net: what each function builds, by its value; the same losses however the tensors lie, with dropout
 * and communication placed by hand; and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "common/error.h"
#include "runtime/lib/hspmd.h"

#define STEPS 4
#define DIMS(...) ((int64_t[]){ __VA_ARGS__ })
#define ORDER(...) ((int[]){ __VA_ARGS__ })

static const char cluster[] =
        "{\"format\":\"hspmd-cluster-1\",\"device_types\":{\"c\":{\"kind\":\"cpu\",\"memory_bytes\":1000000000,\"gbytes_per_s\":10,"
        "\"peak_tflops\":{\"fp32\":0.01}}},\"nodes\":[{\"name\":\"n\",\"devices\":[{\"type\":\"c\",\"count\":3}]}],"
        "\"links\":[{\"scope\":\"node\",\"alpha_s\":1e-6,\"gbytes_per_s\":5}]}";

/* Element i of input x of any sample; all are above 0. */
static double x_at(int64_t number, int64_t i)
{
	return 0.25 + (double)((number * 7 + i * 5) % 11) / 8;
}

static int read_sample(void *context, const char *name, int64_t number, int64_t start, int64_t count, void *to)
{
	(void)context;
	if (!strcmp(name, "n")) {
		for (int64_t i = 0; i < count; i++)
			((int32_t *)to)[i] = (int32_t)((number + start + i) % 4);
		return 0;
	}
	int64_t each = !strcmp(name, "image") ? 36 : 6;
	if (strcmp(name, "x") && strcmp(name, "image"))
		return -1;
	for (int64_t i = 0; i < count * each; i++)
		((float *)to)[i] = (float)x_at(number, start * each + i);
	return 0;
}

static void take_loss(void *context, int64_t step, double loss)
{
	((double *)context)[step] = loss;
}

struct run {
	void (*build)(void *context, struct hspmd_net *net);
	void *context;
	const char *devices; /* of the only stage */
	double losses[STEPS];
	char *program; /* of its first device */
};

static int train(struct run *r, int steps, struct hspmd_error *err)
{
	char plan[512];
	snprintf(plan, sizeof plan,
	         "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":4,\"seq_len\":4,\"pipelines\":[{\"micro_batches\":1,"
	         "\"stages\":[{\"layers\":[0,1],\"devices\":[\"%s\"]}]}]}",
	         r->devices);
	struct hspmd_training *t = hspmd_training_create(r->build, r->context, 1);
	assert_non_null(t);
	hspmd_training_samples(t, read_sample, NULL);
	hspmd_training_on_loss(t, take_loss, r->losses);
	int status = hspmd_training_cluster(t, cluster, err) || hspmd_training_plan(t, plan, err) ||
	                             hspmd_training_optimizer(t, "{\"lr\":0.01,\"schedule\":\"constant\"}", err) ||
	                             !(r->program = hspmd_training_program(t, "n:0", err)) || hspmd_training_run(t, steps, err)
	                     ? -1
	                     : 0;
	hspmd_training_destroy(t);
	return status;
}

/* ---- the value of each function: a net whose only loss is the mean of the function of x[samples, 4, 6] */

static int x_of(struct hspmd_net *net)
{
	return hspmd_net_float_input(net, "x", 2, DIMS(4, 6));
}

static int samples(struct hspmd_net *net)
{
	return (int)hspmd_net_samples(net);
}

static int half(struct hspmd_net *net)
{
	return hspmd_net_parameter(net, "half", 1, DIMS(1), 0.5, 0);
}

#define FUNCTION(name, expression)                                                                                                         \
	static int name(struct hspmd_net *net)                                                                                             \
	{                                                                                                                                  \
		int x = x_of(net);                                                                                                         \
		return expression;                                                                                                         \
	}
FUNCTION(relu, hspmd_net_relu(net, hspmd_net_subtract(net, x, half(net))))
FUNCTION(sigmoid, hspmd_net_sigmoid(net, x))
FUNCTION(silu, hspmd_net_silu(net, x))
FUNCTION(tanh_of, hspmd_net_tanh(net, x))
FUNCTION(gelu_exact, hspmd_net_gelu_exact(net, x))
FUNCTION(exp_of, hspmd_net_exp(net, x))
FUNCTION(log_of, hspmd_net_log(net, x))
FUNCTION(sqrt_of, hspmd_net_sqrt(net, x))
FUNCTION(power, hspmd_net_power(net, x, 2.5))
FUNCTION(scaled, hspmd_net_scale(net, x, -3))
FUNCTION(sum_with_half, hspmd_net_add(net, x, half(net)))
FUNCTION(product, hspmd_net_multiply(net, x, half(net)))
FUNCTION(quotient, hspmd_net_divide(net, half(net), x))
FUNCTION(reshaped,
         hspmd_net_mean(net, hspmd_net_slice(net, hspmd_net_reshape(net, x, 3, DIMS(samples(net), 6, -1)), 2, 1, 1), ORDER(1), 1, 1))
FUNCTION(transposed, hspmd_net_slice(net, hspmd_net_transpose(net, x, ORDER(0, 2, 1)), 1, 2, 1))
FUNCTION(padded, hspmd_net_pad(net, x, 1, 2, 1))
FUNCTION(joined, hspmd_net_concat(net, ORDER(x, hspmd_net_scale(net, x, 2), x), 3, 2))
FUNCTION(repeated, hspmd_net_add(net, hspmd_net_repeat(net, half(net), 3, DIMS(samples(net), 4, 6)), x))
FUNCTION(gathered, hspmd_net_gather(net, x, hspmd_net_integer_input(net, "n", 1, DIMS(2)), 1))
FUNCTION(summed, hspmd_net_sum(net, x, ORDER(1, 2), 2, 0))
FUNCTION(largest, hspmd_net_max(net, x, ORDER(2), 1, 1))
FUNCTION(products, hspmd_net_matmul(net, x, x, 0, 1))
FUNCTION(shares, hspmd_net_multiply(net, hspmd_net_softmax(net, x), x))

/* The same numbers, in plain C: of one sample's 24 elements. */
static double mean_of(const double *x, int count)
{
	double sum = 0;
	for (int i = 0; i < count; i++)
		sum += x[i];
	return sum / count;
}

#define EACH(name, expression)                                                                                                             \
	static double want_##name(const double *x, int64_t number)                                                                         \
	{                                                                                                                                  \
		double sum = 0;                                                                                                            \
		(void)number;                                                                                                              \
		for (int i = 0; i < 24; i++) {                                                                                             \
			double v = x[i];                                                                                                   \
			sum += expression;                                                                                                 \
		}                                                                                                                          \
		return sum / 24;                                                                                                           \
	}
EACH(relu, v > 0.5 ? v - 0.5 : 0)
EACH(sigmoid, 1 / (1 + exp(-v)))
EACH(silu, v / (1 + exp(-v)))
EACH(tanh_of, tanh(v))
EACH(gelu_exact, v *(1 + erf(v / sqrt(2))) / 2)
EACH(exp_of, exp(v))
EACH(log_of, log(v))
EACH(sqrt_of, sqrt(v))
EACH(power, pow(v, 2.5))
EACH(scaled, -3 * v)
EACH(sum_with_half, v + 0.5)
EACH(product, v / 2)
EACH(quotient, 0.5 / v)
EACH(reshaped, i % 4 == 1 ? 4 * v : 0)
EACH(transposed, i % 6 == 2 ? 6 * v : 0)
EACH(padded, v * 4 / 7)
EACH(joined, v * 4 / 3)
EACH(repeated, v + 0.5)
EACH(gathered, i / 6 == number % 4 || i / 6 == (number + 1) % 4 ? 2 * v : 0)
EACH(summed, 24 * v)

static double want_largest(const double *x, int64_t number)
{
	double sum = 0;
	(void)number;
	for (int r = 0; r < 4; r++) {
		double most = 0;
		for (int i = 0; i < 6; i++)
			most = fmax(most, x[6 * r + i]);
		sum += most / 4;
	}
	return sum;
}

static double want_products(const double *x, int64_t number)
{
	double sum = 0;
	(void)number;
	for (int r = 0; r < 4; r++)
		for (int c = 0; c < 4; c++)
			for (int i = 0; i < 6; i++)
				sum += x[6 * r + i] * x[6 * c + i] / 16;
	return sum;
}

static double want_shares(const double *x, int64_t number)
{
	double sum = 0;
	(void)number;
	for (int r = 0; r < 4; r++) {
		double all = 0, weighted = 0;
		for (int i = 0; i < 6; i++) {
			all += exp(x[6 * r + i]);
			weighted += exp(x[6 * r + i]) * x[6 * r + i];
		}
		sum += weighted / all / 24;
	}
	return sum;
}

static const struct function {
	const char *name;
	int (*build)(struct hspmd_net *net);
	double (*want)(const double *x, int64_t number);
} functions[] = {
#define ROW(name)                                                                                                                          \
	{                                                                                                                                  \
#name, name, want_##name                                                                                                   \
	}
	ROW(relu),   ROW(sigmoid),  ROW(silu),     ROW(tanh_of),  ROW(gelu_exact), ROW(exp_of),        ROW(log_of),     ROW(sqrt_of),
	ROW(power),  ROW(scaled),   ROW(product),  ROW(quotient), ROW(reshaped),   ROW(sum_with_half), ROW(transposed), ROW(padded),
	ROW(joined), ROW(repeated), ROW(gathered), ROW(summed),   ROW(largest),    ROW(products),      ROW(shares),
};

static void build_function(void *context, struct hspmd_net *net)
{
	const struct function *f = context;
	int y = f->build(net);
	/* something to train, and to have a gradient */
	y = hspmd_net_multiply(net, y, hspmd_net_parameter(net, "one", 1, DIMS(1), 1, 0));
	hspmd_net_mean_loss(net, y, 2);
}

static void test_values(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		struct hspmd_error err = { "" };
		struct run r = { .build = build_function, .context = (void *)&functions[i], .devices = "n:0" };
		double want[4], x[24];
		if (train(&r, 1, &err))
			fail_msg("%s: %s", functions[i].name, err.text);
		for (int64_t s = 0; s < 4; s++) {
			for (int k = 0; k < 24; k++)
				x[k] = x_at(s, k);
			want[s] = 2 * functions[i].want(x, s);
		}
		if (!(fabs(r.losses[0] - mean_of(want, 4)) <= 1e-5 * fabs(mean_of(want, 4))))
			fail_msg("%s: %.8g, expected %.8g", functions[i].name, r.losses[0], mean_of(want, 4));
		free(r.program);
	}
}

/* ---- all of them together, however the tensors lie */

struct place {
	const char *devices, *image, *x, *w, *conv, *middle, *late; /* annotations; NULL: none. middle: of a result; late: of a reshard */
};

static int annotated(struct hspmd_net *net, int tensor, const char *how)
{
	if (how)
		hspmd_net_annotate(net, tensor, how);
	return tensor;
}

/* Convolution, group norm and pooling of an image; its mean joins positions. */
static int picture(const struct place *p, struct hspmd_net *net)
{
	const struct hspmd_window three = { .padding = { 1, 1 } }, two = { .size = { 2, 3 } };
	int image = annotated(net, hspmd_net_float_input(net, "image", 3, DIMS(2, 6, 6)), p->image);
	int w = annotated(net, hspmd_net_parameter(net, "filter", 4, DIMS(6, 2, 3, 3), 0, 0.3), p->conv);
	int y = hspmd_net_conv2d(net, image, w, -1, &three, 1);
	y = hspmd_net_group_norm(net, y, 3, hspmd_net_parameter(net, "gain", 1, DIMS(6), 1, 0),
	                         hspmd_net_parameter(net, "shift", 1, DIMS(6), 0, 0), 1e-5);
	y = hspmd_net_avg_pool2d(net, y, &two);
	return hspmd_net_mean(net, y, ORDER(2, 3), 2, 0);
}

static void build_all(void *context, struct hspmd_net *net)
{
	const struct place *p = context;
	int x = annotated(net, x_of(net), p->x), w = annotated(net, hspmd_net_parameter(net, "w", 2, DIMS(6, 6), 0, 0.4), p->w);
	int y = hspmd_net_add(net, hspmd_net_linear(net, x, w, -1), hspmd_net_parameter(net, "rows", 2, DIMS(4, 6), 0, 0.1));
	y = annotated(net, hspmd_net_dropout(net, hspmd_net_gelu_exact(net, y), 0.3), p->middle);
	y = hspmd_net_concat(net, ORDER(y, hspmd_net_reshape(net, picture(p, net), 3, DIMS(samples(net), 1, 6))), 2, 1);
	struct hspmd_attention how = HSPMD_ATTENTION;
	how.dropout = 0.2;
	y = hspmd_net_add(net, y, hspmd_net_attend(net, y, y, y, 3, &how));
	y = p->late ? hspmd_net_reshard(net, y, p->late) : y;
	/* w is read again: its gradient has two addends */
	int z = hspmd_net_linear(net, y, w, -1), target = hspmd_net_slice(net, hspmd_net_pad(net, x, 1, 0, 1), 1, 0, 5);
	hspmd_net_squared_loss(net, z, target, -1);
	hspmd_net_logistic_loss(net, hspmd_net_slice(net, z, 1, 0, 4), hspmd_net_sigmoid(net, x), -1);
	struct hspmd_cross_entropy smooth = HSPMD_CROSS_ENTROPY;
	smooth.smoothing = 0.1;
	smooth.ignores = 1;
	smooth.ignored = 2;
	hspmd_net_cross_entropy(net, hspmd_net_slice(net, z, 1, 0, 4), hspmd_net_integers(net, "n"), &smooth);
	hspmd_net_mean_loss(net, hspmd_net_power(net, w, 2), 0.01);
}

static const struct place places[] = {
	{ "n:0", NULL, NULL, NULL, NULL, NULL, NULL },
	{ "n:0-2", "{[0-2]: 0:3(2:1:1)}", "{[0-2]: 0:3(2:1:1)}", NULL, NULL, NULL, NULL }, /* samples */
	{ "n:0-1", NULL, NULL, "{[0,1]: 0:2(2:1)}", "{[0,1]: 0:2/2(2:1)}", NULL, NULL },   /* outputs and channels */
	{ "n:0-1", NULL, NULL, "{[0,1]: 1:2}", "{[0,1]: 1:2}", NULL, NULL },               /* inputs: sums of parts */
	{ "n:0-1", NULL, NULL, NULL, NULL, "{[0,1]: 1:2(3:1)}", "{[0,1]: 0:2}" },
	{ "n:0-2", NULL, "{[0,1]: -1:2 | [2]} h0(3:1)", NULL, NULL, "{[0,1]: 0:2 | [2]} h0(2:2)", "{[0,1]: 2:2/3 | [2]} h0(1:3)" },
};

static void test_places(void **state)
{
	(void)state;
	double alone[STEPS];
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		struct hspmd_error err = { "" };
		struct run r = { .build = build_all, .context = (void *)&places[i], .devices = places[i].devices };
		if (train(&r, STEPS, &err))
			fail_msg("place %zu: %s", i, err.text);
		if (i == 0)
			memcpy(alone, r.losses, sizeof alone);
		for (int s = 0; s < STEPS; s++)
			if (!(fabs(r.losses[s] - alone[s]) <= 1e-6 * alone[s]))
				fail_msg("place %zu, step %d: %.9g, not %.9g", i, s, r.losses[s], alone[s]);
		/* what was asked for is in the program */
		for (int k = 0; k < 2; k++) {
			const char *asked = k ? places[i].late : places[i].middle;
			if (asked && !strstr(r.program, asked))
				fail_msg("place %zu: no %s in\n%s", i, asked, r.program);
		}
		free(r.program);
	}
	assert_true(alone[STEPS - 1] < alone[0]);
}

/* ---- faults */

static void build_wrong(void *context, struct hspmd_net *net)
{
	int x = x_of(net), which = *(const int *)context, w = hspmd_net_parameter(net, "w", 1, DIMS(6), 1, 0),
	    y = hspmd_net_multiply(net, x, w);
	struct hspmd_attention how = HSPMD_ATTENTION;
	const struct hspmd_window wide = { .size = { 9, 9 } };
	how.mask = hspmd_net_reshape(net, hspmd_net_slice(net, hspmd_net_matmul(net, y, y, 0, 1), 1, 0, 4), 4, DIMS(samples(net), 1, 4, 4));
	switch (which) {
	case 0:
		y = hspmd_net_reshape(net, y, 2, DIMS(5, -1));
		break;
	case 1:
		y = hspmd_net_transpose(net, y, ORDER(0, 0, 1));
		break;
	case 2:
		y = hspmd_net_slice(net, y, 1, 3, 2);
		break;
	case 3:
		y = hspmd_net_slice(net, y, 3, 0, 1);
		break;
	case 4:
		y = hspmd_net_add(net, y, hspmd_net_parameter(net, "b", 1, DIMS(4), 0, 0));
		break;
	case 5:
		y = hspmd_net_matmul(net, y, y, 0, 0);
		break;
	case 6:
		y = hspmd_net_max_pool2d(net, hspmd_net_reshape(net, y, 4, DIMS(samples(net), 1, 4, 6)), &wide);
		break;
	case 7:
		y = hspmd_net_attend(net, y, y, y, 3, &how);
		break;
	case 8:
		hspmd_net_squared_loss(net, x, y, -1);
		break;
	case 9:
		hspmd_net_annotate(net, y, "{[0]: 0:2}");
		break;
	case 10:
		y = hspmd_net_reshard(net, y, "{[0,1]: 0:2}");
		break;
	case 11:
		y = hspmd_net_repeat(net, y, 3, DIMS(samples(net), 4, 12));
		break;
	case 13:
		hspmd_net_annotate(net, x, "{[0,1]: 2:2}");
		break;
	case 12:
		y = hspmd_net_group_norm(net, y, 3, w, w, 1e-5);
		break;
	}
	hspmd_net_mean_loss(net, y, 1);
}

static void test_mistakes(void **state)
{
	static const char *const reasons[] = {
		"operator reshape: 96 elements do not fit the new dimensions",
		"operator transpose: the order does not name each of 3 dimensions once",
		"operator slice: dimension 1 of 4: 2 elements from 3 on",
		"has no dimension 3",
		"operator binary: a dimension of 6 meets one of 4",
		"operator matmul: 6 columns and 4 rows, expected the same",
		"operator pool: a window of 9 with padding 0 does not fit into 4 positions",
		"the mask of an attention has no gradient",
		"input 1 of a loss has no gradient, but is computed from parameters",
		"annotation {[0]: 0:2}: subgroup 0: 1 devices, but its state has more parts",
		"annotation {[0,1]: 0:2} is not over the 1 devices of its stage",
		"operator broadcast: dimension 2 cannot become 12",
		"operator group_norm: 4 channels do not make 3 groups",
		"tensor x: an input can be split along samples and positions only",
	};
	(void)state;
	for (int i = 0; i < (int)(sizeof reasons / sizeof *reasons); i++) {
		struct hspmd_error err = { "" };
		struct run r = { .build = build_wrong, .context = &i, .devices = i == 13 ? "n:0-1" : "n:0" };
		assert_int_equal(train(&r, 1, &err), -1);
		if (!strstr(err.text, reasons[i]))
			fail_msg("%d: \"%s\", expected \"%s\"", i, err.text, reasons[i]);
		free(r.program);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_mistakes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
