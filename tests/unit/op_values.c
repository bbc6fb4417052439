/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of an operator's case, and the operators run on them. */
#include "tests/unit/op_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "runtime/device/cpu/cpu.h"
#include "runtime/device/random.h"
#include "runtime/op/op.h"

const int64_t op_case_documents[] = { 40, 130, 200, 256, 520 };
const size_t op_case_document_count = sizeof op_case_documents / sizeof *op_case_documents;

static int64_t elements(const struct hspmd_graph *g, int t)
{
	return hspmd_shape_elements(&g->tensors[t].shape);
}

void op_values_open(struct op_values *v, const struct hspmd_graph *g, int threads)
{
	struct hspmd_error err = { "" };
	const struct hspmd_device_ops *ops = hspmd_device_find("cpu", &err);
	*v = (struct op_values){ .g = g };
	if (!ops || ops->open(&v->dev, 0, threads, &err))
		fail_msg("%s", err.text);
	hspmd_thread_pool_share_all(((struct hspmd_cpu *)v->dev)->pool);
	v->data = calloc(g->tensor_count, sizeof *v->data);
	assert_non_null(v->data);
	for (size_t t = 0; t < g->tensor_count; t++) {
		size_t bytes = (size_t)elements(g, (int)t) * hspmd_dtype_bytes(g->tensors[t].dtype);
		v->data[t] = ops->allocate(v->dev, bytes, &err);
		assert_non_null(v->data[t]);
		memset(v->data[t], 0xff, bytes); /* NaN: shows reads of elements that nothing has written */
	}
}

void op_values_close(struct op_values *v)
{
	for (size_t t = 0; t < v->g->tensor_count; t++)
		v->dev->ops->release(v->dev, v->data[t]);
	free(v->data);
	v->dev->ops->release(v->dev, v->workspace);
	v->dev->ops->close(v->dev);
}

double op_value_get(const void *data, enum hspmd_dtype type, int64_t i)
{
	return type == HSPMD_F64   ? ((const double *)data)[i]
	       : type == HSPMD_F32 ? (double)((const float *)data)[i]
	                           : ((const int32_t *)data)[i];
}

void op_value_set(void *data, enum hspmd_dtype type, int64_t i, double value)
{
	if (type == HSPMD_F64)
		((double *)data)[i] = value;
	else if (type == HSPMD_F32)
		((float *)data)[i] = (float)value;
	else
		((int32_t *)data)[i] = (int32_t)value;
}

/* The document of a position in a sample of many: their numbers ascend, descend, or return. */
static int32_t one_of_many(const char *order, int64_t at)
{
	int32_t number = 0;
	for (size_t i = 0; i < op_case_document_count && at >= op_case_documents[i]; i++)
		number++;
	return !strcmp(order, "descending") ? 7 - number : !strcmp(order, "returning") ? number % 3 : number;
}

static int32_t integer_of(const struct hspmd_tensor *t, unsigned seed, int64_t i)
{
	uint32_t w[4];
	hspmd_random_words(seed, 1, (uint64_t)i, w);
	if (!strncmp(t->name, "segments, ", 10))
		return one_of_many(t->name + 10, i % t->shape.dim[1]);
	if (!strcmp(t->name, "segments")) {
		int64_t length = t->shape.dim[1], at = i % length;
		return (int32_t)((at > length / 3) + (at > length / 2));
	}
	int32_t token = (int32_t)(w[0] % OP_CASE_VOCAB);
	return !strcmp(t->name, "targets") && w[1] % 7 == 0 ? -1 : token;
}

double op_case_value(const char *tensor, double value)
{
	return strncmp(tensor, "positive", 8) ? value : fabs(value) + 0.5;
}

void op_values_fill(struct op_values *v, unsigned seed)
{
	for (size_t t = 0; t < v->g->tensor_count; t++) {
		const struct hspmd_tensor *tensor = &v->g->tensors[t];
		if (tensor->role != HSPMD_TENSOR_INPUT && tensor->role != HSPMD_TENSOR_PARAMETER)
			continue;
		for (int64_t i = 0; i < elements(v->g, (int)t); i++)
			op_value_set(v->data[t], tensor->dtype, i,
			             tensor->dtype == HSPMD_I32
			                     ? integer_of(tensor, seed, i)
			                     : op_case_value(tensor->name, (double)(float)hspmd_random_normal(seed, 2 + t, (uint64_t)i)));
	}
}

void op_values_kernel(struct op_values *v, enum hspmd_opcode opcode, struct hspmd_kernel_args *args)
{
	struct hspmd_error err = { "" };
	size_t need = v->dev->ops->workspace(v->dev, opcode, args);
	if (need > v->workspace_bytes) {
		v->dev->ops->release(v->dev, v->workspace);
		v->workspace = v->dev->ops->allocate(v->dev, need, &err);
		v->workspace_bytes = need;
		assert_non_null(v->workspace);
	}
	if (v->workspace)
		memset(v->workspace, 0xff, v->workspace_bytes);
	args->workspace = v->workspace;
	args->workspace_bytes = v->workspace_bytes;
	if (v->dev->ops->run(v->dev, opcode, args, &err))
		fail_msg("%s", err.text);
}

struct hspmd_view op_values_view(const struct op_values *v, int t)
{
	if (t < 0)
		return (struct hspmd_view){ .rank = -1 };
	const struct hspmd_tensor *tensor = &v->g->tensors[t];
	struct hspmd_view view = { .data = v->data[t], .dtype = tensor->dtype, .rank = tensor->shape.rank };
	memcpy(view.shape, tensor->shape.dim, sizeof view.shape);
	memcpy(view.full, tensor->shape.dim, sizeof view.full);
	return view;
}

/* Statistics of logits in several parts are computed part by part: no device computes all of them. */
static void run_stats(struct op_values *v, const struct hspmd_op *op)
{
	struct hspmd_view logits = op_values_view(v, op->in[0]), stats = op_values_view(v, op->out[0]);
	int64_t rows = logits.shape[0] * logits.shape[1], width = logits.shape[2], bytes = (int64_t)hspmd_dtype_bytes(logits.dtype);
	char *part = malloc((size_t)(rows * width * bytes));
	assert_non_null(part);
	for (int p = 0; p < op->attr.parts; p++) {
		struct hspmd_kernel_args args = { .attr = &op->attr, .input_count = 2, .output_count = 1 };
		int64_t lo, hi;
		hspmd_split_range(width, 1, op->attr.parts, NULL, p, &lo, &hi);
		for (int64_t r = 0; r < rows; r++)
			memcpy(part + r * (hi - lo) * bytes, (char *)logits.data + (r * width + lo) * bytes, (size_t)((hi - lo) * bytes));
		args.in[0] = logits;
		args.in[0].data = part;
		args.in[0].start[2] = lo;
		args.in[0].shape[2] = hi - lo;
		args.in[1] = op_values_view(v, op->in[1]);
		args.out[0] = stats;
		args.out[0].data = (char *)stats.data + p * rows * stats.shape[3] * bytes;
		args.out[0].start[0] = p;
		args.out[0].shape[0] = 1;
		op_values_kernel(v, op->opcode, &args);
	}
	free(part);
}

void op_values_run(struct op_values *v, bool backward)
{
	bool *written = calloc(v->g->tensor_count, sizeof *written);
	assert_non_null(written);
	for (size_t i = 0; i < v->g->op_count; i++) {
		const struct hspmd_op *op = &v->g->ops[i];
		struct hspmd_kernel_args args = { .attr = &op->attr, .input_count = op->input_count, .output_count = op->output_count };
		if (op->backward && !backward)
			continue;
		if (op->opcode == HSPMD_OP_VOCAB_STATS) {
			run_stats(v, op);
			continue;
		}
		for (int k = 0; k < op->input_count; k++)
			args.in[k] = op_values_view(v, op->in[k]);
		for (int k = 0; k < op->output_count; k++) {
			args.out[k] = op_values_view(v, op->out[k]);
			if (op->out[k] < 0)
				continue;
			args.out[k].accumulate = written[op->out[k]];
			written[op->out[k]] = true;
		}
		op_values_kernel(v, op->opcode, &args);
	}
	free(written);
}

double op_case_loss(const struct op_values *v)
{
	const struct hspmd_graph *g = v->g;
	int seed = hspmd_graph_find(g, "seed");
	double sum = 0;
	for (size_t t = 0; t < g->tensor_count; t++) {
		if (g->tensors[t].role == HSPMD_TENSOR_LOSS)
			sum += op_value_get(v->data[t], g->tensors[t].dtype, 0);
		if (seed < 0 || g->tensors[t].grad != seed || g->tensors[t].producer < 0)
			continue;
		for (int64_t i = 0; i < elements(g, (int)t); i++)
			sum += op_value_get(v->data[t], g->tensors[t].dtype, i) * op_value_get(v->data[seed], g->tensors[t].dtype, i);
	}
	return sum;
}
