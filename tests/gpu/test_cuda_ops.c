/* SPDX-License-Identifier: Apache-2.0 */
/* Every operator of the CUDA device, forward and backward, against the CPU device in double precision on the same inputs; the same bits twice; and what is not
 * part of a model's graph: optimizer, random numbers, casts, copies. HSPMD_LONG=1 tries more shapes. */
#include <dlfcn.h>
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/half.h"
#include "runtime/device/random.h"
#include "runtime/op/op.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/wide_case.h"
#include "tests/unit/op_case.h"

/* Distance by norm that rounding explains: a few units of the last place of the type, times the depth of the sums. */
#define F32_BOUND 2e-5
#define BF16_BOUND 3e-2

static struct hspmd_device *gpu;

/* Tensors of one graph on the GPU, in `type` where the graph has F64. */
struct mirror {
	const struct op_values *want;
	enum hspmd_dtype type;
	void **data;
	void *workspace;
	size_t workspace_bytes;
};

static size_t count_of(const struct mirror *m, int t)
{
	return (size_t)hspmd_shape_elements(&m->want->g->tensors[t].shape);
}

/* Does output o of an operator keep more than BF16 has? Statistics and what real parameters get (here activations are "parameters" too). */
static bool keeps_f32(const struct hspmd_op *op, int o)
{
	switch (op->opcode) {
	case HSPMD_OP_VOCAB_STATS:
	case HSPMD_OP_EMBED_GRAD:
	case HSPMD_OP_POSITION_GRAD:
	case HSPMD_OP_LINEAR_GRAD_W:
		return true;
	case HSPMD_OP_ATTENTION:
	case HSPMD_OP_LAYERNORM:
	case HSPMD_OP_RMSNORM:
	case HSPMD_OP_LAYERNORM_GRAD:
	case HSPMD_OP_RMSNORM_GRAD:
		return o > 0;
	case HSPMD_OP_ROUTE:
		return o == 3;
	case HSPMD_OP_EXPERTS_GRAD:
		return o > 1;
	default:
		return false;
	}
}

static enum hspmd_dtype type_of(const struct mirror *m, int t)
{
	const struct hspmd_graph *g = m->want->g;
	const struct hspmd_tensor *tensor = &g->tensors[t];
	if (tensor->dtype != HSPMD_F64 || tensor->role == HSPMD_TENSOR_LOSS)
		return tensor->dtype;
	for (int o = 0; tensor->producer >= 0 && o < g->ops[tensor->producer].output_count; o++)
		if (g->ops[tensor->producer].out[o] == t && keeps_f32(&g->ops[tensor->producer], o))
			return HSPMD_F32;
	return m->type;
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

static void must(int status, const struct hspmd_error *err)
{
	if (status)
		fail_msg("%s", err->text);
}

static void *on_gpu(size_t bytes)
{
	struct hspmd_error err;
	void *data = gpu->ops->allocate(gpu, bytes, &err);
	if (!data)
		fail_msg("%s", err.text);
	return data;
}

static bool is_given(const struct hspmd_tensor *t)
{
	return t->role == HSPMD_TENSOR_INPUT || t->role == HSPMD_TENSOR_PARAMETER;
}

/* Inputs go over; everything else starts as NaN, or as 0 where it is accumulated. Inputs are rounded to the GPU's type on both sides. */
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
		m->data[t] = on_gpu(bytes);
		must(gpu->ops->to_device(gpu, m->data[t], host, bytes, &err), &err);
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

static void run_kernel(struct mirror *m, enum hspmd_opcode opcode, struct hspmd_kernel_args *args)
{
	struct hspmd_error err;
	size_t need = gpu->ops->workspace(gpu, opcode, args);
	if (need > m->workspace_bytes) {
		gpu->ops->release(gpu, m->workspace);
		m->workspace = on_gpu(need);
		m->workspace_bytes = need;
	}
	args->workspace = m->workspace;
	args->workspace_bytes = need;
	if (gpu->ops->run(gpu, opcode, args, &err))
		fail_msg("%s: %s", hspmd_op_type(opcode)->name, err.text);
}

/* Statistics of logits in parts, each from a box of its own. */
static void run_stats(struct mirror *m, const struct hspmd_op *op)
{
	struct hspmd_view logits = view_of(m, op->in[0]), stats = view_of(m, op->out[0]);
	int64_t rows = logits.shape[0] * logits.shape[1], width = logits.shape[2];
	struct hspmd_box whole = { 3, { 0 }, { logits.shape[0], logits.shape[1], width } };
	struct hspmd_error err;
	for (int p = 0; p < op->attr.parts; p++) {
		struct hspmd_kernel_args args = { .attr = &op->attr, .input_count = 2, .output_count = 1 };
		int64_t lo, hi;
		hspmd_part_range(width, 1, op->attr.parts, NULL, p, &lo, &hi);
		struct hspmd_box box = whole;
		box.lo[2] = lo;
		box.hi[2] = hi;
		void *part = on_gpu((size_t)(rows * (hi - lo)) * hspmd_dtype_bytes(logits.dtype));
		must(gpu->ops->copy_box(gpu, part, &box, logits.data, &whole, &box, logits.dtype, false, &err), &err);
		args.in[0] = logits;
		args.in[0].data = part;
		args.in[0].start[2] = lo;
		args.in[0].shape[2] = hi - lo;
		args.in[1] = view_of(m, op->in[1]);
		args.out[0] = stats;
		args.out[0].data = (char *)stats.data + p * rows * 3 * (int64_t)sizeof(float);
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

static void *take_back(const void *data, size_t bytes)
{
	struct hspmd_error err;
	char *host = malloc(bytes + 1);
	assert_non_null(host);
	must(gpu->ops->to_host(gpu, host, data, bytes, &err), &err);
	return host;
}

/* Distance of two tensors by norm, against the larger of the wanted one's and a floor for what should be nearly nothing. */
static double distance(const struct mirror *m, int t)
{
	enum hspmd_dtype own = type_of(m, t), theirs = m->want->g->tensors[t].dtype;
	size_t n = count_of(m, t);
	void *host = take_back(m->data[t], n * hspmd_dtype_bytes(own));
	double off = 0, size = 0;
	for (size_t i = 0; i < n; i++) {
		double want = op_value_get(m->want->data[t], theirs, (int64_t)i), got = read_value(host, own, i);
		off += (got - want) * (got - want);
		size += want * want;
	}
	free(host);
	return sqrt(off) / fmax(sqrt(size), 1e-3 * sqrt((double)n));
}

static void check_case(const struct op_case *c, enum hspmd_dtype type, double bound)
{
	struct hspmd_graph *g = op_case_graph(c, HSPMD_F64);
	struct op_values want;
	struct mirror m, again;
	op_values_open(&want, g, 1);
	op_values_fill(&want, 11);
	open_mirror(&m, &want, type);
	open_mirror(&again, &want, type);
	op_values_run(&want, true);
	run_all(&m);
	run_all(&again);
	for (size_t t = 0; t < g->tensor_count; t++) {
		if (is_given(&g->tensors[t]) || g->tensors[t].producer < 0)
			continue;
		double off = distance(&m, (int)t);
		if (!(off < bound))
			fail_msg("%s in %s: %s is %g off by norm", c->name, hspmd_dtype_words[type], g->tensors[t].name, off);
		size_t bytes = count_of(&m, (int)t) * hspmd_dtype_bytes(type_of(&m, (int)t));
		void *first = take_back(m.data[t], bytes), *second = take_back(again.data[t], bytes);
		if (memcmp(first, second, bytes))
			fail_msg("%s in %s: %s has other bits the second time", c->name, hspmd_dtype_words[type], g->tensors[t].name);
		free(first);
		free(second);
	}
	close_mirror(&again);
	close_mirror(&m);
	op_values_close(&want);
	hspmd_graph_destroy(g);
}

/* On the emulated device also with threads run in other orders, which a missing barrier does not survive. */
static void check_cases(enum hspmd_dtype type, double bound)
{
	static const char *const orders[] = { "0", "1", "7" };
	for (int o = 0; o < (gpu_is_emulated() ? 3 : 1); o++) {
		setenv("HSPMD_EMULATE_ORDER", orders[o], 1);
		for (size_t i = 0; i < op_case_count; i++)
			check_case(&op_cases[i], type, bound);
		for (size_t i = 0; i < wide_case_count; i++)
			if (!wide_cases[i].large || !gpu_is_emulated() || o == 0 || getenv("HSPMD_LONG"))
				check_case(&wide_cases[i], type, bound);
	}
	setenv("HSPMD_EMULATE_ORDER", "0", 1);
}

static void operators_f32(void **state)
{
	(void)state;
	check_cases(HSPMD_F32, F32_BOUND);
}

static void operators_bf16(void **state)
{
	(void)state;
	check_cases(HSPMD_BF16, BF16_BOUND);
}

static struct hspmd_view vector(void *data, enum hspmd_dtype type, int64_t n)
{
	return (struct hspmd_view){ .data = data, .dtype = type, .rank = 1, .shape = { n }, .full = { n } };
}

static void run_on(struct hspmd_device *dev, enum hspmd_opcode opcode, struct hspmd_kernel_args *args)
{
	struct hspmd_error err;
	args->workspace_bytes = dev->ops->workspace(dev, opcode, args);
	args->workspace = args->workspace_bytes ? dev->ops->allocate(dev, args->workspace_bytes, &err) : NULL;
	must(dev->ops->run(dev, opcode, args, &err), &err);
	dev->ops->release(dev, args->workspace);
}

static struct hspmd_device *open_cpu(void)
{
	struct hspmd_error err;
	struct hspmd_device *dev;
	must(hspmd_device_find("cpu", &err)->open(&dev, 0, 1, &err), &err);
	return dev;
}

/* One operator on both devices over the same F32 vectors: in and out, `outs` of them first read, then written. */
static void check_vectors(enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, int ins, int outs, int n, double bound)
{
	struct hspmd_device *cpu = open_cpu();
	struct hspmd_kernel_args mine = { .attr = attr, .input_count = ins, .output_count = outs }, theirs = mine;
	struct hspmd_error err;
	float *host[8];
	for (int k = 0; k < ins + outs; k++) {
		host[k] = malloc((size_t)n * sizeof(float));
		assert_non_null(host[k]);
		for (int i = 0; i < n; i++)
			host[k][i] = fabsf((float)hspmd_random_normal(4, (uint64_t)k, (uint64_t)i));
		void *device = on_gpu((size_t)n * sizeof(float));
		must(gpu->ops->to_device(gpu, device, host[k], (size_t)n * sizeof(float), &err), &err);
		*(k < ins ? &mine.in[k] : &mine.out[k - ins]) = vector(device, HSPMD_F32, n);
		*(k < ins ? &theirs.in[k] : &theirs.out[k - ins]) = vector(host[k], HSPMD_F32, n);
	}
	run_on(gpu, opcode, &mine);
	run_on(cpu, opcode, &theirs);
	for (int o = 0; o < outs; o++) {
		float *got = take_back(mine.out[o].data, (size_t)n * sizeof(float));
		for (int i = 0; i < n; i++)
			if (!(fabs((double)got[i] - (double)host[ins + o][i]) <= bound * (1 + fabs((double)host[ins + o][i]))))
				fail_msg("%s: output %d, element %d is %.9g, not %.9g", hspmd_op_type(opcode)->name, o, i, (double)got[i], (double)host[ins + o][i]);
		free(got);
	}
	for (int k = 0; k < ins + outs; k++) {
		gpu->ops->release(gpu, (k < ins ? &mine.in[k] : &mine.out[k - ins])->data);
		free(host[k]);
	}
	cpu->ops->close(cpu);
}

static void optimizer(void **state)
{
	(void)state;
	struct hspmd_op_attr attr = { .scale = 0.5 };
	attr.adam.lr = 0.01;
	attr.adam.beta1 = 0.9;
	attr.adam.beta2 = 0.95;
	attr.adam.eps = 1e-8;
	attr.adam.weight_decay = 0.1;
	attr.adam.step = 3;
	check_vectors(HSPMD_OP_ADAMW, &attr, 1, 3, 1031, 1e-6);
}

static void random_numbers(void **state)
{
	(void)state;
	struct hspmd_op_attr attr = { .random = { .seed = 5, .stream = 9, .mean = 1, .deviation = 2 } };
	check_vectors(HSPMD_OP_NORMAL, &attr, 0, 1, 1031, 1e-6);
	struct hspmd_op_attr value = { .scale = 3 };
	check_vectors(HSPMD_OP_FILL, &value, 0, 1, 1031, 0);
}

static void sum_of_squares(void **state)
{
	(void)state;
	enum { N = 3 * 16384 + 5 };
	static float x[N];
	struct hspmd_error err;
	double start = 100, expected = 100;
	for (int i = 0; i < N; i++) {
		x[i] = (float)hspmd_random_normal(2, 1, (uint64_t)i);
		expected += (double)x[i] * (double)x[i];
	}
	void *data = on_gpu(sizeof x), *total = on_gpu(sizeof start);
	must(gpu->ops->to_device(gpu, data, x, sizeof x, &err), &err);
	must(gpu->ops->to_device(gpu, total, &start, sizeof start, &err), &err);
	struct hspmd_kernel_args args = { .input_count = 1, .output_count = 1, .in = { vector(data, HSPMD_F32, N) }, .out = { vector(total, HSPMD_F64, 1) } };
	args.out[0].accumulate = true;
	run_on(gpu, HSPMD_OP_SUM_SQUARES, &args);
	double *got = take_back(total, sizeof start);
	assert_true(fabs(*got - expected) < 1e-9 * expected);
	free(got);
	gpu->ops->release(gpu, data);
	gpu->ops->release(gpu, total);
}

/* More vectors than a launch takes, of all sizes, some without weight decay: the bits of one after the other, but for the order in which squares are summed. */
static void many_at_once(void **state)
{
	(void)state;
	enum { COUNT = 131 };
	static struct hspmd_kernel_args all[2][COUNT], squares[COUNT];
	struct hspmd_op_attr attr = { .scale = 0.5, .adam = { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 3 } }, decays = attr;
	struct hspmd_error err = { "" };
	double start = 0, sums[2];
	void *total = on_gpu(sizeof start), *workspace = on_gpu(4096);
	decays.adam.weight_decay = 0.1;
	for (int way = 0; way < 2; way++)
		for (int i = 0; i < COUNT; i++) {
			int n = i % 7 == 0 ? 4096 * (i % 3) + i : i + 1;
			struct hspmd_kernel_args *a = &all[way][i];
			*a = (struct hspmd_kernel_args){ .attr = i % 2 ? &attr : &decays, .input_count = 1, .output_count = i % 3 ? 4 : 3 };
			for (int k = 0; k < 5; k++) {
				struct hspmd_op_attr fill = { .random = { .seed = 5, .stream = (uint64_t)(5 * i + k), .mean = 4, .deviation = 1 } };
				struct hspmd_kernel_args f = { .attr = &fill, .output_count = 1 };
				struct hspmd_view *to = k ? &a->out[k - 1] : &a->in[0];
				*to = vector(on_gpu((size_t)n * sizeof(float) + 64), k == 4 ? HSPMD_BF16 : HSPMD_F32, n);
				f.out[0] = vector(to->data, HSPMD_F32, k == 4 ? (n + 1) / 2 : n);
				run_on(gpu, HSPMD_OP_NORMAL, &f);
			}
			squares[i] = (struct hspmd_kernel_args){ .input_count = 1, .output_count = 1, .in = { a->in[0] }, .out = { vector(total, HSPMD_F64, 1) },
								 .workspace = workspace, .workspace_bytes = 64 };
			squares[i].out[0].accumulate = true;
		}
	for (int i = 0; i < COUNT; i++)
		run_on(gpu, HSPMD_OP_ADAMW, &all[0][i]);
	must(gpu->ops->run_all(gpu, HSPMD_OP_ADAMW, all[1], COUNT, &err), &err);
	for (int way = 0; way < 2; way++) {
		must(gpu->ops->to_device(gpu, total, &start, sizeof start, &err), &err);
		for (int i = 0; way == 0 && i < COUNT; i++)
			must(gpu->ops->run(gpu, HSPMD_OP_SUM_SQUARES, &squares[i], &err), &err);
		if (way)
			must(gpu->ops->run_all(gpu, HSPMD_OP_SUM_SQUARES, squares, COUNT, &err), &err);
		must(gpu->ops->to_host(gpu, &sums[way], total, sizeof sums[way], &err), &err);
	}
	assert_true(sums[0] > 0 && fabs(sums[1] - sums[0]) < 1e-12 * sums[0]);
	for (int i = 0; i < COUNT; i++)
		for (int k = 0; k < 5; k++) {
			const struct hspmd_view *one = k ? &all[0][i].out[k - 1] : &all[0][i].in[0], *other = k ? &all[1][i].out[k - 1] : &all[1][i].in[0];
			size_t bytes = (size_t)one->shape[0] * hspmd_dtype_bytes(one->dtype);
			void *x = take_back(one->data, bytes), *y = take_back(other->data, bytes);
			if (memcmp(x, y, bytes))
				fail_msg("vector %d of %lld elements: %d has other bits", i, (long long)one->shape[0], k);
			free(x);
			free(y);
			gpu->ops->release(gpu, one->data);
			gpu->ops->release(gpu, other->data);
		}
	gpu->ops->release(gpu, total);
	gpu->ops->release(gpu, workspace);
}

static void casts(void **state)
{
	(void)state;
	/* 1 + 2^-8 lies between two bf16: to even, down; 1 + 3 * 2^-8 to even, up. */
	float x[9] = { 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, NAN, -2.5f, 0, 1e30f, -1e-30f, 3, 4 };
	struct hspmd_error err;
	void *wide = on_gpu(sizeof x), *half = on_gpu(9 * 2), *back = on_gpu(sizeof x);
	must(gpu->ops->to_device(gpu, wide, x, sizeof x, &err), &err);
	struct hspmd_kernel_args args = { .input_count = 1, .output_count = 1, .in = { vector(wide, HSPMD_F32, 9) }, .out = { vector(half, HSPMD_BF16, 9) } };
	run_on(gpu, HSPMD_OP_CAST, &args);
	args.in[0] = vector(half, HSPMD_BF16, 9);
	args.out[0] = vector(back, HSPMD_F32, 9);
	run_on(gpu, HSPMD_OP_CAST, &args);
	float *got = take_back(back, sizeof x);
	assert_true(got[0] == 1 && got[1] == 1 + 4 * 0x1p-8f && isnan(got[2]) && got[3] == -2.5f && got[8] == 4);
	free(got);
	gpu->ops->release(gpu, wide);
	gpu->ops->release(gpu, half);
	gpu->ops->release(gpu, back);
}

static void copies(void **state)
{
	(void)state;
	struct hspmd_error err;
	struct hspmd_box from = { 3, { 0, 0, 0 }, { 2, 5, 6 } }, to = { 3, { 0, 1, 2 }, { 2, 4, 6 } }, part = { 3, { 0, 2, 3 }, { 2, 4, 5 } };
	float src[60], dst[24];
	void *source = on_gpu(sizeof src), *target = on_gpu(sizeof dst);
	for (int i = 0; i < 60; i++)
		src[i] = (float)i;
	must(gpu->ops->to_device(gpu, source, src, sizeof src, &err), &err);
	for (int add = 0; add < 2; add++) {
		for (int i = 0; i < 24; i++)
			dst[i] = 1000;
		must(gpu->ops->to_device(gpu, target, dst, sizeof dst, &err), &err);
		must(gpu->ops->copy_box(gpu, target, &to, source, &from, &part, HSPMD_F32, add, &err), &err);
		must(gpu->ops->to_host(gpu, dst, target, sizeof dst, &err), &err);
		for (int64_t a = 0; a < 2; a++)
			for (int64_t b = 1; b < 4; b++)
				for (int64_t c = 2; c < 6; c++) {
					bool in = b >= 2 && c >= 3 && c < 5;
					float expected = in ? src[(a * 5 + b) * 6 + c] + (add ? 1000 : 0) : 1000;
					assert_true(dst[(a * 3 + b - 1) * 4 + c - 2] == expected);
				}
	}
	must(gpu->ops->zero(gpu, target, sizeof dst, &err), &err);
	must(gpu->ops->to_host(gpu, dst, target, sizeof dst, &err), &err);
	for (int i = 0; i < 24; i++)
		assert_true(dst[i] == 0);
	assert_int_equal(gpu->ops->copy_box(gpu, target, &to, source, &from, &part, HSPMD_I32, true, &err), -1);
	gpu->ops->release(gpu, source);
	gpu->ops->release(gpu, target);
}

/* Boxes of all ranks whose rows begin on 16 bytes in both buffers, in one, or in none, against a copy on the host. */
static void many_copies(void **state)
{
	(void)state;
	enum { TRIALS = 400, MOST = 3 * 3 * 73 };
	uint16_t from[2 * MOST], to[2 * MOST], want[2 * MOST];
	void *source = on_gpu(sizeof from), *target = on_gpu(sizeof to);
	struct hspmd_error err;
	uint64_t drawn = 0;
	for (size_t i = 0; i < 2 * MOST; i++)
		from[i] = (uint16_t)(i + 1);
	must(gpu->ops->to_device(gpu, source, from, sizeof from, &err), &err);
	for (int trial = 0; trial < TRIALS; trial++) {
		enum hspmd_dtype type = trial % 2 ? HSPMD_BF16 : HSPMD_F32;
		struct hspmd_box a = { .rank = 1 + trial % 3 }, b = a, part = a;
		for (int d = 0; d < a.rank; d++) {
			int64_t grain = d + 1 < a.rank ? 1 : trial % 5 ? 8 : 3, cut[4];
			uint32_t word[4];
			hspmd_random_words(3, 0, drawn++, word);
			for (int k = 0; k < 4; k++)
				cut[k] = word[k] % (d + 1 < a.rank ? 2 : 5) * grain;
			part.lo[d] = cut[0];
			part.hi[d] = cut[0] + cut[1] + grain; /* a and b hold it */
			a.lo[d] = cut[2] < cut[0] ? cut[2] : cut[0];
			b.lo[d] = cut[3] < cut[0] ? cut[3] : cut[0];
			a.hi[d] = part.hi[d];
			b.hi[d] = part.hi[d] + (trial % 7 == 0 && d + 1 == a.rank ? 1 : 0);
			assert_true(a.hi[d] - a.lo[d] <= (d + 1 < a.rank ? 3 : 72));
		}
		memset(to, 0xee, sizeof to);
		memcpy(want, to, sizeof to);
		hspmd_box_copy(want, &b, from, &a, &part, hspmd_dtype_bytes(type));
		must(gpu->ops->to_device(gpu, target, to, sizeof to, &err), &err);
		must(gpu->ops->copy_box(gpu, target, &b, source, &a, &part, type, false, &err), &err);
		must(gpu->ops->to_host(gpu, to, target, sizeof to, &err), &err);
		if (memcmp(to, want, sizeof to))
			fail_msg("copy %d of %s is wrong", trial, hspmd_dtype_words[type]);
	}
	gpu->ops->release(gpu, source);
	gpu->ops->release(gpu, target);
}

/* More than the ring of pinned memory holds, both ways. */
static void large_copies(void **state)
{
	(void)state;
	struct hspmd_error err;
	size_t bytes = ((size_t)33 << 20) + 5;
	char *host = malloc(bytes), *back = malloc(bytes);
	void *data = on_gpu(bytes);
	assert_true(host && back);
	for (size_t i = 0; i < bytes; i++)
		host[i] = (char)(i * 2654435761u >> 13);
	must(gpu->ops->to_device(gpu, data, host, bytes, &err), &err);
	must(gpu->ops->to_host(gpu, back, data, bytes, &err), &err);
	assert_memory_equal(host, back, bytes);
	gpu->ops->release(gpu, data);
	free(host);
	free(back);
}

/* ---- attention by cuDNN; on the emulated device it is played (tests/gpu/emulate/dnn.cc) */

static void reopen_with(const char *library, const char *tune, const char *workspace)
{
	gpu->ops->close(gpu);
	if (gpu_is_emulated())
		setenv("HSPMD_CUDNN", library, 1);
	setenv("HSPMD_CUDA_TUNE", tune, 1);
	setenv("HSPMD_CUDNN_WORKSPACE", workspace, 1);
	gpu = gpu_open();
}

static void restore_gpu(void)
{
	unsetenv("HSPMD_CUDNN");
	unsetenv("HSPMD_CUDNN_WORKSPACE");
	unsetenv("HSPMD_CUDA_TUNE");
	gpu->ops->close(gpu);
	gpu = gpu_open();
}

/* Cases of attention; how often the played cuDNN ran its plans for them. */
static void check_attention(long runs[2])
{
	void *module = gpu_is_emulated() ? dlopen(getenv("HSPMD_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD) : NULL;
	long *count = module ? dlsym(module, "emulate_dnn_runs") : NULL, before[2] = { 0 };
	assert_true(count || !gpu_is_emulated());
	for (int i = 0; count && i < 2; i++)
		before[i] = count[i];
	for (size_t i = 0; i < op_case_count; i++)
		if (strstr(op_cases[i].name, "attention"))
			check_case(&op_cases[i], HSPMD_BF16, BF16_BOUND);
	for (size_t i = 0; i < wide_case_count; i++)
		if (strstr(wide_cases[i].name, "attention"))
			check_case(&wide_cases[i], HSPMD_BF16, BF16_BOUND);
	for (int i = 0; i < 2; i++)
		runs[i] = count ? count[i] - before[i] : 0;
	if (module)
		dlclose(module);
}

/* Is there a cuDNN for a GPU to compute with? */
static bool has_dnn(void)
{
	const char *named = getenv("HSPMD_CUDNN");
	void *library = dlopen(named ? named : "libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
	if (library)
		dlclose(library);
	return library != NULL;
}

/* On a GPU also sequences of several of its kernels' tiles; its own plan is taken wherever it has one. */
static void attention_by_dnn(void **state)
{
	(void)state;
	long all[2], parts[2], none[2];
	if (!gpu_is_emulated() && !has_dnn())
		skip();
	reopen_with("played", "0", "268435456");
	check_attention(all);
	for (size_t i = 0; i < long_case_count && (!gpu_is_emulated() || getenv("HSPMD_LONG")); i++)
		check_case(&long_cases[i], HSPMD_BF16, BF16_BOUND);
	/* Some of the cases' gradients in parts (samples, kv heads), some not at all. */
	reopen_with("played", "0", "30000");
	check_attention(parts);
	reopen_with("refusing", "0", "268435456");
	check_attention(none);
	if (gpu_is_emulated()) {
		assert_true(all[0] > 0 && parts[0] > 0 && parts[0] != all[0]);
		assert_true(all[1] == 0 && parts[1] == 0 && none[0] == 0 && none[1] == 0);
	}
	restore_gpu();
}

/* Lines of the files in the folder that do not choose `word` in their fifth word; *lines: of all. */
static int other_choices(const char *folder, unsigned word, int *lines)
{
	char pattern[4096], line[512], have[32], want[32];
	glob_t found;
	int others = 0;
	*lines = 0;
	snprintf(pattern, sizeof pattern, "%s/cudnn-*", folder);
	snprintf(want, sizeof want, "%x", word);
	if (glob(pattern, 0, NULL, &found))
		return 0;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		FILE *f = fopen(found.gl_pathv[i], "r");
		while (f && fgets(line, sizeof line, f))
			if (sscanf(line, "%*s %*s %*s %*s %31s", have) == 1) {
				++*lines;
				others += strcmp(have, want) != 0;
			}
		if (f)
			fclose(f);
	}
	globfree(&found);
	return others;
}

/* Make every choice that is written down another. */
static void rewrite_choices(const char *folder, int word)
{
	char command[8192];
	snprintf(command, sizeof command, "sed -i -E 's/^(([^ ]+ ){4})[^ ]+/\\1%x/' '%s'/cudnn-*", (unsigned)word, folder);
	assert_int_equal(system(command), 0);
}

/* What was measured is done from then on; what does not run is not taken. */
static void attention_is_chosen(void **state)
{
	(void)state;
	char folder[] = "/tmp/hspmd-choices-XXXXXX", command[64];
	const char *cache = getenv("HSPMD_CUDA_CACHE");
	char *old = cache ? strdup(cache) : NULL;
	long runs[2];
	int lines;
	if (!gpu_is_emulated())
		skip();
	assert_non_null(mkdtemp(folder));
	setenv("HSPMD_CUDA_CACHE", folder, 1);
	reopen_with("failing", "1", "268435456");
	check_attention(runs);
	assert_true(runs[0] == 0 && runs[1] == 0);
	assert_int_equal(other_choices(folder, 1, &lines), 0);
	assert_true(lines > 5);
	reopen_with("played", "1", "268435456");
	check_attention(runs);
	assert_true(runs[0] == 0 && runs[1] == 0); /* written down: our kernels */
	rewrite_choices(folder, 3);
	reopen_with("played", "1", "268435456");
	check_attention(runs);
	assert_true(runs[0] == 0 && runs[1] > 0); /* the second plan */
	restore_gpu();
	if (old)
		setenv("HSPMD_CUDA_CACHE", old, 1);
	free(old);
	snprintf(command, sizeof command, "rm -r %s", folder);
	assert_int_equal(system(command), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(operators_f32), cmocka_unit_test(operators_bf16), cmocka_unit_test(optimizer), cmocka_unit_test(many_at_once), cmocka_unit_test(random_numbers),
		cmocka_unit_test(sum_of_squares), cmocka_unit_test(casts), cmocka_unit_test(copies), cmocka_unit_test(many_copies), cmocka_unit_test(large_copies),
		cmocka_unit_test(attention_by_dnn), cmocka_unit_test(attention_is_chosen),
	};
	gpu = gpu_open();
	int status = cmocka_run_group_tests(tests, NULL, NULL);
	gpu->ops->close(gpu);
	return status;
}
