/* SPDX-License-Identifier: Apache-2.0 */
/* Deduction against numbers. For every operator and every annotation of its inputs on up to 4 devices (all combinations if they are few,
 * else a random part, another with each HSPMD_DRAW, which HSPMD_LONG=1 makes large enough to contain every annotation of every input):
 * deduces, runs every device's part on slices of the full tensors, assembles the outputs, and compares them with the unsplit run. Covers
 * every operator that graphs have. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/device/random.h"
#include "runtime/op/op.h"
#include "tests/unit/annotations.h"
#include "tests/unit/draw.h"
#include "tests/unit/op_case.h"

enum { MAX_DEVICES = 4 };

/* One operator under test and one combination of its inputs' annotations. */
struct trial {
	struct op_values *v;
	const struct hspmd_op *op;
	struct hspmd_op_view view;
	struct hspmd_annotation *want[HSPMD_OP_MAX_IO], *out[HSPMD_OP_MAX_IO];
	void *local[HSPMD_OP_MAX_IO][MAX_DEVICES]; /* outputs by device */
};

static char *describe(const struct trial *t)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	assert_non_null(f);
	fprintf(f, "%s:", hspmd_opcode_names[t->op->opcode]);
	for (int i = 0; i < t->view.input_count; i++) {
		char *has = t->view.annotation[i] ? hspmd_annotation_text(t->view.annotation[i]) : NULL;
		char *wants = t->want[i] ? hspmd_annotation_text(t->want[i]) : NULL;
		fprintf(f, " %s%s%s", has ? has : "-", wants ? " => " : "", wants ? wants : "");
		free(has);
		free(wants);
	}
	fputs(" ->", f);
	for (int o = 0; o < t->view.output_count; o++) {
		char *is = t->out[o] ? hspmd_annotation_text(t->out[o]) : NULL;
		fprintf(f, " %s", is ? is : "-");
		free(is);
	}
	fclose(f);
	return text;
}

static size_t bytes_of(const struct hspmd_box *box, enum hspmd_dtype type)
{
	return (size_t)hspmd_box_elements(box) * hspmd_dtype_bytes(type);
}

static struct hspmd_view view_of(const struct hspmd_tensor *tensor, const struct hspmd_box *box, void *data)
{
	struct hspmd_view view = { .data = data, .dtype = tensor->dtype, .rank = box->rank };
	for (int d = 0; d < box->rank; d++) {
		view.start[d] = box->lo[d];
		view.shape[d] = box->hi[d] - box->lo[d];
		view.full[d] = tensor->shape.dim[d];
	}
	return view;
}

/* Element i of the box, as an index in the full tensor. */
static int64_t whole_index(const struct hspmd_shape *shape, const struct hspmd_box *box, int64_t i)
{
	int64_t index = 0, step = 1;
	uint32_t left = (uint32_t)i; /* tensors are small, and divisions of 64 bits took a third of this program's time */
	for (int d = shape->rank - 1; d >= 0; d--) {
		uint32_t n = (uint32_t)(box->hi[d] - box->lo[d]);
		index += (box->lo[d] + left % n) * step;
		step *= shape->dim[d];
		left /= n;
	}
	return index;
}

/* An addend of a value: noise, and for the last addend the rest of the value. */
static double addend(double value, int part, int parts, int64_t index)
{
	double noise = 0;
	if (part + 1 < parts)
		return hspmd_random_normal(21, (uint64_t)part, (uint64_t)index);
	for (int p = 0; p + 1 < parts; p++)
		noise += hspmd_random_normal(21, (uint64_t)p, (uint64_t)index);
	return value - noise;
}

/* The part of a tensor with annotation `a` that a device holds. malloc'd. */
static void *slice(const struct op_values *v, int tensor, const struct hspmd_annotation *a, int device, struct hspmd_local_shard *shard)
{
	const struct hspmd_tensor *t = &v->g->tensors[tensor];
	assert_true(hspmd_annotation_local_shard(a, &t->shape, device, shard));
	struct hspmd_box all = hspmd_box_full(&t->shape);
	void *data = malloc(bytes_of(&shard->box, t->dtype));
	assert_non_null(data);
	hspmd_box_copy(data, &shard->box, v->data[tensor], &all, &shard->box, hspmd_dtype_bytes(t->dtype));
	for (int64_t i = 0; shard->partials > 1 && i < hspmd_box_elements(&shard->box); i++)
		op_value_set(
		        data, t->dtype, i,
		        addend(op_value_get(data, t->dtype, i), shard->partial, shard->partials, whole_index(&t->shape, &shard->box, i)));
	return data;
}

static void run_device(struct trial *t, int device)
{
	const struct hspmd_op *op = t->op;
	struct hspmd_kernel_args args = { .attr = &op->attr, .input_count = op->input_count, .output_count = op->output_count };
	for (int i = 0; i < op->input_count; i++) {
		struct hspmd_local_shard shard;
		args.in[i].rank = -1;
		if (op->in[i] < 0)
			continue;
		void *data = slice(t->v, op->in[i], t->want[i] ? t->want[i] : t->view.annotation[i], device, &shard);
		args.in[i] = view_of(&t->v->g->tensors[op->in[i]], &shard.box, data);
	}
	for (int o = 0; o < op->output_count; o++) {
		struct hspmd_local_shard shard;
		args.out[o].rank = -1;
		if (op->out[o] < 0)
			continue;
		const struct hspmd_tensor *tensor = &t->v->g->tensors[op->out[o]];
		assert_true(hspmd_annotation_local_shard(t->out[o], &tensor->shape, device, &shard));
		t->local[o][device] = malloc(bytes_of(&shard.box, tensor->dtype));
		assert_non_null(t->local[o][device]);
		memset(t->local[o][device], 0xff, bytes_of(&shard.box, tensor->dtype));
		args.out[o] = view_of(tensor, &shard.box, t->local[o][device]);
	}
	op_values_kernel(t->v, op->opcode, &args);
	for (int i = 0; i < op->input_count; i++)
		free(args.in[i].data);
}

static void wrong(const struct trial *t, const char *what, int output, int64_t index, double is, double expected)
{
	char *text = describe(t);
	fail_msg("%s: output %d[%lld] is %.12g, %s %.12g", text, output, (long long)index, is, what, expected);
}

/* Of a sum of thermometers only the signs are the same (runtime/tensor/fp8.h). */
static bool is_thermometer(const struct trial *t, int o)
{
	return (t->op->opcode == HSPMD_OP_LINEAR_FP8_GRAD_X && o == 1) || (t->op->opcode == HSPMD_OP_LINEAR_FP8_GRAD_W && o == 2) ||
	       (t->op->opcode == HSPMD_OP_EXPERTS_FP8_GRAD && o == 5);
}

/* The counted copies of all addends add up to the full value, and the other copies are equal to them. */
static void check_output(const struct trial *t, int o, int devices)
{
	const struct hspmd_tensor *tensor = &t->v->g->tensors[t->op->out[o]];
	int64_t n = hspmd_shape_elements(&tensor->shape);
	double *sum = calloc((size_t)n, sizeof *sum);
	struct hspmd_local_shard shard[MAX_DEVICES];
	assert_non_null(sum);
	for (int k = 0; k < devices; k++) {
		assert_true(hspmd_annotation_local_shard(t->out[o], &tensor->shape, k, &shard[k]));
		for (int64_t i = 0; shard[k].replica == 0 && i < hspmd_box_elements(&shard[k].box); i++)
			sum[whole_index(&tensor->shape, &shard[k].box, i)] += op_value_get(t->local[o][k], tensor->dtype, i);
	}
	for (int64_t i = 0; i < n; i++) {
		double expected = op_value_get(t->v->data[t->op->out[o]], tensor->dtype, i);
		if (is_thermometer(t, o)) {
			if ((sum[i] > 0) != (expected > 0))
				wrong(t, "unsplit", o, i, sum[i], expected);
			continue;
		}
		if (!(fabs(sum[i] - expected) <= 1e-9 * (1 + fabs(expected))))
			wrong(t, "unsplit", o, i, sum[i], expected);
	}
	for (int k = 0; k < devices; k++)
		for (int64_t i = 0; shard[k].partials == 1 && i < hspmd_box_elements(&shard[k].box); i++) {
			double copy = op_value_get(t->local[o][k], tensor->dtype, i),
			       first = sum[whole_index(&tensor->shape, &shard[k].box, i)];
			bool same = is_thermometer(t, o) ? (copy > 0) == (first > 0) : fabs(copy - first) <= 1e-9 * (1 + fabs(first));
			if (!same)
				wrong(t, "another copy", o, i, copy, first);
		}
	free(sum);
}

/* Statistics depend on how the vocabulary is cut; the values computed from them must not: log of the sum of exponentials, and the target's
 * logit. */
static void check_stats(const struct trial *t, int devices)
{
	const struct hspmd_tensor *stats = &t->v->g->tensors[t->op->out[0]], *logits = &t->v->g->tensors[t->op->in[0]];
	int64_t rows = stats->shape.dim[1] * stats->shape.dim[2], width = logits->shape.dim[2], each = stats->shape.dim[3];
	for (int64_t r = 0; r < rows; r++) {
		double sum = 0, target = 0, expected = 0;
		for (int k = 0; k < devices; k++) {
			struct hspmd_local_shard shard;
			assert_true(hspmd_annotation_local_shard(t->out[0], &stats->shape, k, &shard));
			for (int64_t i = 0; shard.replica == 0 && i < hspmd_box_elements(&shard.box); i += each)
				if (whole_index(&stats->shape, &shard.box, i) / each % rows == r) {
					const double *s = (const double *)t->local[0][k] + i;
					sum += s[1] * exp(s[0]);
					target += s[2];
				}
		}
		const double *x = (const double *)t->v->data[t->op->in[0]] + r * width;
		int32_t wanted = ((const int32_t *)t->v->data[t->op->in[1]])[r];
		for (int64_t j = 0; j < width; j++)
			expected += exp(x[j]);
		if (!(fabs(sum - expected) <= 1e-9 * expected))
			wrong(t, "sum of exponentials", 0, r, sum, expected);
		if (!(fabs(target - (wanted < 0 ? 0 : x[wanted])) <= 1e-9))
			wrong(t, "target's logit", 0, r, target, wanted < 0 ? 0 : x[wanted]);
	}
}

/* Tries one combination. Returns false if it cannot be run (devices that do not fit the parts of a vocabulary). */
static bool try_one(struct trial *t, int devices)
{
	struct hspmd_error err = { "" };
	if (hspmd_op_deduce(hspmd_op_types[t->op->opcode], &t->view, t->want, t->out, &err)) {
		if (strstr(err.text, "parts of index"))
			return false;
		char *text = describe(t);
		fail_msg("%s: %s", text, err.text);
	}
	for (int k = 0; k < devices; k++)
		run_device(t, k);
	for (int o = 0; o < t->op->output_count; o++) {
		if (t->op->out[o] < 0)
			continue;
		if (t->op->opcode == HSPMD_OP_VOCAB_STATS)
			check_stats(t, devices);
		else
			check_output(t, o, devices);
		for (int k = 0; k < devices; k++)
			free(t->local[o][k]);
	}
	for (int i = 0; i < t->op->input_count; i++)
		hspmd_annotation_destroy(t->want[i]);
	for (int o = 0; o < t->op->output_count; o++)
		hspmd_annotation_destroy(t->out[o]);
	return true;
}

static struct hspmd_op_view view_op(const struct hspmd_graph *g, const struct hspmd_op *op)
{
	struct hspmd_op_view view = { .attr = &op->attr, .input_count = op->input_count, .output_count = op->output_count };
	for (int i = 0; i < op->input_count; i++) {
		view.in[i].rank = -1;
		if (op->in[i] >= 0) {
			view.in[i] = g->tensors[op->in[i]].shape;
			view.in_dtype[i] = g->tensors[op->in[i]].dtype;
		}
	}
	for (int o = 0; o < op->output_count; o++) {
		view.out[o].rank = -1;
		if (op->out[o] >= 0) {
			view.out[o] = g->tensors[op->out[o]].shape;
			view.out_dtype[o] = g->tensors[op->out[o]].dtype;
		}
	}
	return view;
}

/* Tries combinations of annotations on `devices` devices: all, or `limit` random ones. Returns how many ran. */
static size_t try_devices(struct op_values *v, size_t number, int devices, size_t limit, unsigned seed)
{
	const struct hspmd_op *op = &v->g->ops[number];
	struct annotation_list list[HSPMD_OP_MAX_IO] = { { 0 } };
	double combinations = 1;
	size_t ran = 0;
	for (int i = 0; i < op->input_count; i++) {
		int64_t units[HSPMD_MAX_RANK];
		if (op->in[i] < 0)
			continue;
		const struct hspmd_tensor *tensor = &v->g->tensors[op->in[i]];
		for (int d = 0; d < HSPMD_MAX_RANK; d++)
			units[d] = op->attr.head_dim && d == tensor->shape.rank - 1 ? op->attr.head_dim : 2;
		annotation_list_fill(&list[i], &tensor->shape, devices, units, seed + (unsigned)i);
		if (list[i].count == 0) { /* a scalar, or too small for that many devices */
			combinations = 0;
			break;
		}
		combinations *= (double)list[i].count;
	}
	size_t tries = combinations <= (double)limit ? (size_t)combinations : limit;
	for (size_t k = 0; k < tries; k++) {
		struct trial t = { .v = v, .op = op, .view = view_op(v->g, op) };
		size_t rest = k;
		t.view.sequence_parallel = k % 3 == 0;
		for (int i = 0; i < op->input_count; i++) {
			uint32_t w[4];
			if (op->in[i] < 0)
				continue;
			/* all combinations; or, for random ones, each annotation of the inputs at least once if the limit allows it */
			hspmd_random_words(seed, 100 + (uint64_t)i, k / list[i].count, w);
			t.view.annotation[i] = list[i].item[tries == limit ? (k + w[0]) % list[i].count : rest % list[i].count];
			rest /= list[i].count;
		}
		ran += try_one(&t, devices);
	}
	for (int i = 0; i < op->input_count; i++)
		annotation_list_free(&list[i]);
	return ran;
}

static void test_all_annotations(void **state)
{
	(void)state;
	const char *given = getenv("HSPMD_SEED") ? getenv("HSPMD_SEED") : getenv("HSPMD_DRAW");
	unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : 1;
	size_t limit = draw_count(150, 20000), total = 0, tried[HSPMD_OP_COUNT] = { 0 };
	print_message("seed %u (HSPMD_SEED)\n", seed);
	for (size_t c = 0; c < op_case_count(); c++) {
		struct hspmd_graph *g = op_case_graph(op_case_at(c), HSPMD_F64);
		size_t share = op_case_at(c)->large ? 20 : op_case_at(c)->example ? 4 : 1; /* operators have several examples */
		struct op_values v;
		op_values_open(&v, g, 1);
		op_values_fill(&v, 3);
		op_values_run(&v, true);
		for (size_t i = 0; i < g->op_count; i++)
			for (int devices = 1; devices <= MAX_DEVICES; devices++)
				tried[g->ops[i].opcode] += try_devices(&v, i, devices, limit / share, seed);
		op_values_close(&v);
		hspmd_graph_destroy(g);
	}
	static const enum hspmd_opcode of_graphs[] = {
#define OP_GRAPH(opcode, name) HSPMD_OP_##opcode,
#include "runtime/tensor/opcode_list.h"
	};
	for (size_t i = 0; i < sizeof of_graphs / sizeof *of_graphs; i++) {
		if (tried[of_graphs[i]] < limit / 4)
			fail_msg("operator %s: %zu combinations were tried: has it an example?", hspmd_opcode_names[of_graphs[i]],
			         tried[of_graphs[i]]);
		total += tried[of_graphs[i]];
	}
	print_message("%zu combinations of annotations agree with the unsplit operator\n", total);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_all_annotations) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
