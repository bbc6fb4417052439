/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/mirror.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/half.h"
#include "runtime/op/op.h"
#include "tests/gpu/host_calls.h"

struct hspmd_device *gpu;

/* The tensors of one graph on the GPU, in `type` if the graph has F64. */
struct mirror {
	const struct op_values *want;
	enum hspmd_dtype type;
	void **data;
	void *workspace;
	size_t workspace_bytes;
	bool prepares; /* calls are prepared before they are run */
};

static size_t count_of(const struct mirror *m, int t)
{
	return (size_t)hspmd_shape_elements(&m->want->g->tensors[t].shape);
}

/* Returns true if a tensor is kept in F32 also in BF16: gradients of parameters, and what the operator's shapes say of statistics. */
static bool keeps_f32(const struct hspmd_graph *g, int t)
{
	const struct hspmd_tensor *tensor = &g->tensors[t];
	const struct hspmd_op *op = tensor->producer < 0 ? NULL : &g->ops[tensor->producer];
	struct hspmd_op_view v = { .attr = op ? &op->attr : NULL, .input_count = op ? op->input_count : 0 };
	if (tensor->role == HSPMD_TENSOR_PARAMETER_GRADIENT)
		return true;
	if (!op || op->backward || !hspmd_op_types[op->opcode]->shape)
		return false;
	for (int i = 0; i < op->input_count; i++) {
		v.in[i].rank = -1;
		if (op->in[i] < 0)
			continue;
		v.in[i] = g->tensors[op->in[i]].shape;
		v.in_dtype[i] = g->tensors[op->in[i]].dtype == HSPMD_I32 ? HSPMD_I32 : HSPMD_BF16;
	}
	assert_int_equal(hspmd_op_types[op->opcode]->shape(&v, NULL), 0);
	for (int o = 0; o < op->output_count; o++)
		if (op->out[o] == t)
			return v.out_dtype[o] == HSPMD_F32;
	return false;
}

static enum hspmd_dtype type_of(const struct mirror *m, int t)
{
	const struct hspmd_graph *g = m->want->g;
	const struct hspmd_tensor *tensor = &g->tensors[t];
	if (tensor->dtype != HSPMD_F64 || tensor->role == HSPMD_TENSOR_LOSS)
		return tensor->dtype;
	return keeps_f32(g, t) ? HSPMD_F32 : m->type;
}

static double read_value(const void *data, enum hspmd_dtype type, size_t i)
{
	if (type == HSPMD_BF16)
		return (double)hspmd_bf16_to_float(((const uint16_t *)data)[i]);
	return op_value_get(data, type, (int64_t)i);
}

static void write_value(void *data, enum hspmd_dtype type, size_t i, double value)
{
	if (type == HSPMD_BF16)
		((uint16_t *)data)[i] = hspmd_bf16_from_float((float)value);
	else
		op_value_set(data, type, (int64_t)i, value);
}

void mirror_must(int status, const struct hspmd_error *err)
{
	if (status)
		fail_msg("%s", err->text);
}

void *mirror_allocate(size_t bytes)
{
	struct hspmd_error err;
	void *data = gpu->ops->allocate(gpu, bytes, &err);
	if (!data)
		fail_msg("%s", err.text);
	return data;
}

/* Nobody may rely on what is there. */
static void *allocate_nan(size_t bytes)
{
	struct hspmd_error err;
	char *host = malloc(bytes + 1);
	void *data = mirror_allocate(bytes);
	assert_non_null(host);
	memset(host, 0xff, bytes);
	mirror_must(gpu->ops->to_device(gpu, data, host, bytes, &err), &err);
	free(host);
	return data;
}

static bool is_given(const struct hspmd_tensor *t)
{
	return t->role == HSPMD_TENSOR_INPUT || t->role == HSPMD_TENSOR_PARAMETER;
}

/* Copies the inputs to the GPU; everything else starts as NaN, or as 0 if it is accumulated. Inputs are rounded to the GPU's type on both
 * sides. */
static void open_mirror(struct mirror *m, const struct op_values *want, enum hspmd_dtype type)
{
	const struct hspmd_graph *g = want->g;
	struct hspmd_error err;
	*m = (struct mirror){ .want = want, .type = type, .data = calloc(g->tensor_count, sizeof *m->data) };
	assert_non_null(m->data);
	for (size_t t = 0; t < g->tensor_count; t++) {
		enum hspmd_dtype own = type_of(m, (int)t);
		size_t n = count_of(m, (int)t), bytes = n * hspmd_dtype_bytes(own);
		char *host = malloc(bytes + 1);
		assert_non_null(host);
		memset(host, 0xff, bytes);
		for (size_t i = 0; is_given(&g->tensors[t]) && i < n; i++) {
			write_value(host, own, i, op_value_get(want->data[t], g->tensors[t].dtype, (int64_t)i));
			op_value_set(want->data[t], g->tensors[t].dtype, (int64_t)i, read_value(host, own, i));
		}
		m->data[t] = mirror_allocate(bytes);
		mirror_must(gpu->ops->to_device(gpu, m->data[t], host, bytes, &err), &err);
		free(host);
	}
}

static void close_mirror(struct mirror *m)
{
	for (size_t t = 0; t < m->want->g->tensor_count; t++)
		gpu->ops->release(gpu, m->data[t]);
	gpu->ops->release(gpu, m->workspace);
	free(m->data);
}

static struct hspmd_view view_of(const struct mirror *m, int t)
{
	struct hspmd_view v = op_values_view(m->want, t);
	if (t >= 0) {
		v.data = m->data[t];
		v.dtype = type_of(m, t);
	}
	return v;
}

/* Runs a prepared call, which must decide nothing any more. */
static void run_prepared(enum hspmd_opcode opcode, struct hspmd_kernel_args *args)
{
	struct hspmd_prepared *prepared = NULL;
	struct hspmd_error err;
	char asked[HOST_CALLS_TEXT];
	mirror_must(gpu->ops->prepare(gpu, opcode, args, &prepared, &err), &err);
	args->prepared = prepared;
	host_calls_begin();
	int status = gpu->ops->run(gpu, opcode, args, &err);
	if (host_calls_end(asked) && !status)
		fail_msg("%s asked for %s although it was prepared", hspmd_opcode_names[opcode], asked);
	gpu->ops->prepared_free(gpu, prepared);
	if (status)
		fail_msg("%s, prepared: %s", hspmd_opcode_names[opcode], err.text);
}

static void run_kernel(struct mirror *m, enum hspmd_opcode opcode, struct hspmd_kernel_args *args)
{
	struct hspmd_error err;
	size_t need = gpu->ops->workspace(gpu, opcode, args);
	if (need > m->workspace_bytes) {
		gpu->ops->release(gpu, m->workspace);
		m->workspace = allocate_nan(need);
		m->workspace_bytes = need;
	}
	args->workspace = m->workspace;
	args->workspace_bytes = need;
	if (m->prepares)
		run_prepared(opcode, args);
	else if (gpu->ops->run(gpu, opcode, args, &err))
		fail_msg("%s: %s", hspmd_opcode_names[opcode], err.text);
}

/* Runs the statistics of logits in parts, each from a box of its own. */
static void run_stats(struct mirror *m, const struct hspmd_op *op)
{
	struct hspmd_view logits = view_of(m, op->in[0]), stats = view_of(m, op->out[0]);
	int64_t rows = logits.shape[0] * logits.shape[1], width = logits.shape[2];
	struct hspmd_box whole = { 3, { 0 }, { logits.shape[0], logits.shape[1], width } };
	struct hspmd_error err;
	for (int p = 0; p < op->attr.parts; p++) {
		struct hspmd_kernel_args args = { .attr = &op->attr, .input_count = 2, .output_count = 1 };
		int64_t lo, hi;
		hspmd_split_range(width, 1, op->attr.parts, NULL, p, &lo, &hi);
		struct hspmd_box box = whole;
		box.lo[2] = lo;
		box.hi[2] = hi;
		void *part = mirror_allocate((size_t)(rows * (hi - lo)) * hspmd_dtype_bytes(logits.dtype));
		mirror_must(gpu->ops->copy_box(gpu, part, &box, logits.data, &whole, &box, logits.dtype, false, &err), &err);
		args.in[0] = logits;
		args.in[0].data = part;
		args.in[0].start[2] = lo;
		args.in[0].shape[2] = hi - lo;
		args.in[1] = view_of(m, op->in[1]);
		args.out[0] = stats;
		args.out[0].data = (char *)stats.data + p * rows * stats.shape[3] * (int64_t)sizeof(float);
		args.out[0].start[0] = p;
		args.out[0].shape[0] = 1;
		run_kernel(m, op->opcode, &args);
		gpu->ops->release(gpu, part);
	}
}

static void run_all(struct mirror *m)
{
	const struct hspmd_graph *g = m->want->g;
	for (size_t i = 0; i < g->op_count; i++) {
		const struct hspmd_op *op = &g->ops[i];
		struct hspmd_kernel_args args = { .attr = &op->attr, .input_count = op->input_count, .output_count = op->output_count };
		if (op->opcode == HSPMD_OP_VOCAB_STATS) {
			run_stats(m, op);
			continue;
		}
		for (int k = 0; k < op->input_count; k++)
			args.in[k] = view_of(m, op->in[k]);
		for (int k = 0; k < op->output_count; k++)
			args.out[k] = view_of(m, op->out[k]);
		run_kernel(m, op->opcode, &args);
	}
}

void *mirror_take_back(const void *data, size_t bytes)
{
	struct hspmd_error err;
	char *host = malloc(bytes + 1);
	assert_non_null(host);
	mirror_must(gpu->ops->to_host(gpu, host, data, bytes, &err), &err);
	return host;
}

/* Returns the distance of two tensors by norm, relative to the larger of the expected norm and a floor for tensors that should be nearly
 * zero. */
static double distance(const struct mirror *m, int t)
{
	enum hspmd_dtype own = type_of(m, t), theirs = m->want->g->tensors[t].dtype;
	size_t n = count_of(m, t);
	void *host = mirror_take_back(m->data[t], n * hspmd_dtype_bytes(own));
	double off = 0, size = 0;
	for (size_t i = 0; i < n; i++) {
		double want = op_value_get(m->want->data[t], theirs, (int64_t)i), got = read_value(host, own, i);
		off += (got - want) * (got - want);
		size += want * want;
	}
	free(host);
	return sqrt(off) / fmax(sqrt(size), 1e-3 * sqrt((double)n));
}

void mirror_measure_case(const struct op_case *c, enum hspmd_dtype type, void (*take)(const struct mirror_result *r, void *context),
                         void *context)
{
	struct hspmd_graph *g = op_case_graph(c, HSPMD_F64);
	struct op_values want;
	struct mirror m, again;
	op_values_open(&want, g, 1);
	op_values_fill(&want, 11);
	open_mirror(&m, &want, type);
	open_mirror(&again, &want, type);
	op_values_run(&want, true);
	again.prepares = true;
	run_all(&m);
	run_all(&again);
	for (size_t t = 0; t < g->tensor_count; t++) {
		if (is_given(&g->tensors[t]) || g->tensors[t].producer < 0)
			continue;
		struct mirror_result r = { c->name, g->tensors[t].name, type, distance(&m, (int)t), 0, false };
		size_t bytes = count_of(&m, (int)t) * hspmd_dtype_bytes(type_of(&m, (int)t));
		void *first = mirror_take_back(m.data[t], bytes), *second = mirror_take_back(again.data[t], bytes);
		r.same_bits = !memcmp(first, second, bytes);
		for (size_t i = 0; i < bytes; i++)
			r.bits = (r.bits ^ ((unsigned char *)first)[i]) * 1099511628211u; /* FNV-1a */
		free(first);
		free(second);
		take(&r, context);
	}
	close_mirror(&again);
	close_mirror(&m);
	op_values_close(&want);
	hspmd_graph_destroy(g);
}

static void check_result(const struct mirror_result *r, void *bound)
{
	if (!(r->error < *(double *)bound))
		fail_msg("%s in %s: %s is %g off by norm", r->name, hspmd_dtype_names[r->type], r->tensor, r->error);
	if (!r->same_bits)
		fail_msg("%s in %s: %s has other bits the second time", r->name, hspmd_dtype_names[r->type], r->tensor);
}

void mirror_check_case(const struct op_case *c, enum hspmd_dtype type, double bound)
{
	mirror_measure_case(c, type, check_result, &bound);
}

void mirror_add_result(const struct mirror_result *r, void *sum)
{
	struct mirror_sum *to = sum;
	check_result(r, &to->bound);
	to->bits = to->bits * 1099511628211u + r->bits;
}
