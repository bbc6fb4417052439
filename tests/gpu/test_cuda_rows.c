/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are padded, and losses of a whole vocabulary: products and losses on padded rows against the same on packed ones, with NaN
 * where nothing belongs; the loss's statistics and its gradient in one pass against one after the other, to the bit; and models whose
 * vocabulary is no multiple of anything, against the CPU device. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/half.h"
#include "runtime/device/random.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/trainer.h"

#define F32_BOUND 1e-5 /* relative, by norm */
#define BF16_BOUND 1e-2
#define STEPS 4

static struct hspmd_device *gpu;

static void must(int status, const struct hspmd_error *err)
{
	if (status)
		fail_msg("%s", err->text);
}

/* ---- matrices; bytes between rows are 0xff, which is NaN in both types */

static int64_t stride_of(const struct hspmd_view *v)
{
	return v->row_stride ? v->row_stride : v->shape[v->rank - 1];
}

static int64_t rows_of(const struct hspmd_view *v)
{
	int64_t rows = 1;
	for (int d = 0; d + 1 < v->rank; d++)
		rows *= v->shape[d];
	return rows;
}

static size_t bytes_of(const struct hspmd_view *v)
{
	return (size_t)(rows_of(v) * stride_of(v)) * hspmd_dtype_bytes(v->dtype);
}

static void upload(struct hspmd_view *v, const void *host)
{
	struct hspmd_error err = { "" };
	v->data = gpu->ops->allocate(gpu, bytes_of(v), &err);
	assert_non_null(v->data);
	must(gpu->ops->to_device(gpu, v->data, host, bytes_of(v), &err), &err);
}

static void *download(const struct hspmd_view *v)
{
	struct hspmd_error err = { "" };
	char *host = malloc(bytes_of(v) + 1);
	assert_non_null(host);
	must(gpu->ops->to_host(gpu, host, v->data, bytes_of(v), &err), &err);
	return host;
}

/* [rows, n] of rank 2, or [1, rows, n]: random numbers of a stream. stride 0: packed. rows 0: [n]. */
static struct hspmd_view matrix(enum hspmd_dtype type, int rank, int64_t rows, int64_t n, int64_t stride, uint64_t stream)
{
	struct hspmd_view v = { .dtype = type, .rank = rank, .row_stride = stride, .shape = { n } };
	if (rank > 1) {
		for (int d = 0; d < rank - 2; d++)
			v.shape[d] = 1;
		v.shape[rank - 2] = rows;
		v.shape[rank - 1] = n;
	}
	memcpy(v.full, v.shape, sizeof v.full);
	char *host = malloc(bytes_of(&v) + 1);
	assert_non_null(host);
	memset(host, 0xff, bytes_of(&v));
	for (int64_t r = 0; r < rows_of(&v); r++)
		for (int64_t j = 0; j < n; j++) {
			float x = (float)hspmd_random_normal(3, stream, (uint64_t)(r * n + j));
			if (type == HSPMD_BF16)
				((uint16_t *)host)[r * stride_of(&v) + j] = hspmd_bf16_from_float(x);
			else
				((float *)host)[r * stride_of(&v) + j] = x;
		}
	upload(&v, host);
	free(host);
	return v;
}

static void release(const struct hspmd_kernel_args *args)
{
	for (int k = 0; k < args->input_count; k++)
		gpu->ops->release(gpu, args->in[k].rank < 0 ? NULL : args->in[k].data);
	for (int k = 0; k < args->output_count; k++)
		if (args->out[k].data != args->in[0].data)
			gpu->ops->release(gpu, args->out[k].rank < 0 ? NULL : args->out[k].data);
}

static void run(enum hspmd_opcode opcode, struct hspmd_kernel_args *args, bool prepared)
{
	struct hspmd_error err = { "" };
	struct hspmd_prepared *p = NULL;
	args->workspace_bytes = gpu->ops->workspace(gpu, opcode, args);
	args->workspace = args->workspace_bytes ? gpu->ops->allocate(gpu, args->workspace_bytes, &err) : NULL;
	if (prepared)
		must(gpu->ops->prepare(gpu, opcode, args, &p, &err), &err);
	args->prepared = p;
	if (gpu->ops->run(gpu, opcode, args, &err))
		fail_msg("%s: %s", hspmd_opcode_names[opcode], err.text);
	gpu->ops->prepared_free(gpu, p);
	gpu->ops->release(gpu, args->workspace);
}

/* What is between rows has stayed. */
static void check_between(const struct hspmd_view *v, const char *what)
{
	size_t size = hspmd_dtype_bytes(v->dtype), row = (size_t)stride_of(v) * size, used = (size_t)v->shape[v->rank - 1] * size;
	unsigned char *host = download(v);
	for (int64_t r = 0; r < rows_of(v); r++)
		for (size_t i = used; i < row; i++)
			if (host[(size_t)r * row + i] != 0xff)
				fail_msg("%s: something was written behind row %lld", what, (long long)r);
	free(host);
}

static double value(const void *host, const struct hspmd_view *v, int64_t r, int64_t j)
{
	int64_t i = r * stride_of(v) + j;
	return v->dtype == HSPMD_BF16 ? (double)hspmd_bf16_to_float(((const uint16_t *)host)[i]) : (double)((const float *)host)[i];
}

/* Relative, by norm. */
static double distance(const struct hspmd_view *a, const struct hspmd_view *b)
{
	void *x = download(a), *y = download(b);
	double off = 0, size = 0;
	for (int64_t r = 0; r < rows_of(a); r++)
		for (int64_t j = 0; j < a->shape[a->rank - 1]; j++) {
			double d = value(x, a, r, j) - value(y, b, r, j);
			off += d * d;
			size += value(y, b, r, j) * value(y, b, r, j);
		}
	free(x);
	free(y);
	return sqrt(off / size);
}

static bool same_bits(const struct hspmd_view *a, const struct hspmd_view *b)
{
	char *x = download(a), *y = download(b);
	size_t size = hspmd_dtype_bytes(a->dtype), used = (size_t)a->shape[a->rank - 1] * size;
	bool same = true;
	for (int64_t r = 0; r < rows_of(a); r++)
		same &= !memcmp(x + (size_t)(r * stride_of(a)) * size, y + (size_t)(r * stride_of(b)) * size, used);
	free(x);
	free(y);
	return same;
}

/* ---- products */

#define DEPTH 16

/* The padded operand is y [rows, n]: the result of the product, or its gradient. */
static struct hspmd_kernel_args product(enum hspmd_opcode opcode, const struct hspmd_op_attr *attr, enum hspmd_dtype type, int64_t rows,
                                        int64_t n, int64_t stride)
{
	struct hspmd_kernel_args args = { .attr = attr, .input_count = 2, .output_count = 1 };
	bool gives_w = opcode == HSPMD_OP_LINEAR_GRAD_W;
	struct hspmd_view y = matrix(type, 2, rows, n, stride, 1), x = matrix(type, 2, rows, DEPTH, 0, 2);
	struct hspmd_view w = matrix(gives_w ? HSPMD_F32 : type, 2, attr->transposed ? DEPTH : n, attr->transposed ? n : DEPTH, 0, 3);
	if (opcode == HSPMD_OP_LINEAR) {
		args.input_count = 3;
		args.in[0] = x;
		args.in[1] = w;
		args.in[2] = matrix(type, 1, 0, n, 0, 4);
		args.out[0] = y;
	} else if (opcode == HSPMD_OP_LINEAR_GRAD_X) {
		args.in[0] = y;
		args.in[1] = w;
		args.out[0] = x;
	} else {
		args.output_count = 2;
		args.in[0] = y;
		args.in[1] = x;
		args.out[0] = w;
		args.out[1] = matrix(HSPMD_F32, 1, 0, n, 0, 5);
		args.out[0].accumulate = args.out[1].accumulate = true;
	}
	return args;
}

static void products(void **state)
{
	(void)state;
	static const enum hspmd_opcode opcodes[] = { HSPMD_OP_LINEAR, HSPMD_OP_LINEAR_GRAD_X, HSPMD_OP_LINEAR_GRAD_W };
	/* Rows for which cuBLASLt has algorithms only if they are padded, only if they are not, and in both cases. */
	static const struct {
		int64_t rows, n, stride;
	} sizes[] = { { 24, 27, 32 }, { 7, 40, 43 }, { 5, 40, 128 }, { 300, 19, 24 } };
	for (int type = 0; type < 2; type++)
		for (int o = 0; o < 3; o++)
			for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
				for (int transposed = 0; transposed < 2; transposed++) {
					enum hspmd_dtype dtype = type ? HSPMD_BF16 : HSPMD_F32;
					struct hspmd_op_attr attr = { .transposed = transposed };
					struct hspmd_kernel_args want = product(opcodes[o], &attr, dtype, sizes[s].rows, sizes[s].n, 0);
					struct hspmd_kernel_args got =
					        product(opcodes[o], &attr, dtype, sizes[s].rows, sizes[s].n, sizes[s].stride);
					run(opcodes[o], &want, false);
					run(opcodes[o], &got, s & 1);
					for (int k = 0; k < got.output_count; k++) {
						double off = distance(&got.out[k], &want.out[k]);
						if (!(off <= (type ? BF16_BOUND : F32_BOUND)))
							fail_msg("%s in %s, %lld rows of %lld, %lld apart: output %d is %g off",
							         hspmd_opcode_names[opcodes[o]], hspmd_dtype_names[dtype],
							         (long long)sizes[s].rows, (long long)sizes[s].n,
							         (long long)sizes[s].stride, k, off);
						check_between(&got.out[k], hspmd_opcode_names[opcodes[o]]);
					}
					release(&want);
					release(&got);
				}
}

/* ---- losses */

#define ROWS 5
#define IGNORED 7

static struct hspmd_view targets_of(int64_t n)
{
	struct hspmd_view v = { .dtype = HSPMD_I32, .rank = 2, .shape = { 1, ROWS }, .full = { 1, ROWS } };
	const int32_t classes[ROWS] = { (int32_t)n - 1, -1, 0, IGNORED, (int32_t)n / 2 };
	upload(&v, classes);
	return v;
}

struct loss_case {
	enum hspmd_dtype type;
	int64_t n, stride;
	bool smoothing, weighted, in_place, prepared;
};

static struct hspmd_kernel_args loss_args(const struct loss_case *c, const struct hspmd_op_attr *attr, int64_t stride)
{
	struct hspmd_kernel_args args = { .attr = attr, .input_count = c->weighted ? 3 : 2, .output_count = 2 };
	args.in[0] = matrix(c->type, 3, ROWS, c->n, stride, 11);
	args.in[1] = targets_of(c->n);
	args.in[2] = matrix(c->type, 2, 1, ROWS, 0, 12);
	args.out[0] = matrix(c->type, 3, ROWS, c->n, stride, 13);
	args.out[1] = matrix(HSPMD_F32, 4, ROWS, c->smoothing ? 4 : 3, 0, 14);
	return args;
}

/* One after the other, on packed rows. */
static void run_apart(struct hspmd_kernel_args *both)
{
	struct hspmd_kernel_args stats = { .attr = both->attr, .input_count = 2, .output_count = 1 }, grad = stats;
	grad.input_count = both->input_count > 2 ? 4 : 3;
	stats.in[0] = grad.in[0] = both->in[0];
	stats.in[1] = grad.in[1] = both->in[1];
	stats.out[0] = grad.in[2] = both->out[1];
	grad.in[3] = both->in[2];
	grad.out[0] = both->out[0];
	run(HSPMD_OP_VOCAB_STATS, &stats, false);
	run(HSPMD_OP_LOSS_GRAD, &grad, false);
}

static void check_loss(const struct loss_case *c)
{
	struct hspmd_op_attr attr = {
		.parts = 1, .scale = 0.3, .smoothing = c->smoothing ? 0.1 : 0, .ignores = true, .numbers = { IGNORED }
	};
	struct hspmd_kernel_args want = loss_args(c, &attr, 0), got = loss_args(c, &attr, c->stride),
	                         apart = loss_args(c, &attr, c->stride);
	char what[200];
	snprintf(what, sizeof what, "loss in %s over %lld, %lld apart%s%s%s%s", hspmd_dtype_names[c->type], (long long)c->n,
	         (long long)c->stride, c->smoothing ? ", smoothed" : "", c->weighted ? ", weighted" : "", c->in_place ? ", in place" : "",
	         c->prepared ? ", prepared" : "");
	if (c->in_place) {
		gpu->ops->release(gpu, got.out[0].data);
		got.out[0].data = got.in[0].data;
	}
	run_apart(&want);
	run_apart(&apart);
	run(HSPMD_OP_CROSS_ENTROPY, &got, c->prepared);
	for (int k = 0; k < 2; k++) {
		if (!same_bits(&got.out[k], &want.out[k]) || !same_bits(&apart.out[k], &want.out[k]))
			fail_msg("%s: %s has other bits", what, k ? "its statistics" : "its gradient");
		check_between(&got.out[k], what);
		check_between(&apart.out[k], what);
	}
	if (!c->weighted) { /* it is not among the inputs */
		gpu->ops->release(gpu, want.in[2].data);
		gpu->ops->release(gpu, got.in[2].data);
		gpu->ops->release(gpu, apart.in[2].data);
	}
	release(&want);
	release(&got);
	release(&apart);
}

/* Rows of whole packs and others, of one warp and of all, and longer than shared memory. */
static void losses(void **state)
{
	(void)state;
	static const int64_t sizes[][2] = { { 27, 0 }, { 27, 64 }, { 1000, 0 }, { 4099, 4160 }, { 60011, 60032 } };
	for (int type = 0; type < 2; type++)
		for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
			for (int how = 0; how < 16; how++) {
				struct loss_case c = { .type = type ? HSPMD_BF16 : HSPMD_F32,
					               .n = sizes[s][0],
					               .stride = sizes[s][1],
					               .smoothing = how & 1,
					               .weighted = how & 2,
					               .in_place = how & 4,
					               .prepared = how & 8 };
				check_loss(&c);
			}
}

/* ---- models */

static const char gpt2_odd[] = "{\"model_type\":\"gpt2\",\"n_embd\":24,\"n_layer\":1,\"n_head\":4,\"n_positions\":32,\"vocab_size\":2051,"
                               "\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}";

/* masked: tokens with weights. apart: HSPMD_UNFUSED. */
static void train(bool on_gpu, bool bf16, bool masked, const char *apart, int devices, double *to)
{
	struct hspmd_error err = { "" };
	char plan[400];
	snprintf(plan, sizeof plan,
	         "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\",\"zero_stage\":0,"
	         "\"pipelines\":[{\"micro_batches\":2,\"stages\":[{\"layers\":[0,3],\"devices\":[\"n:0%s\"]}]}]}",
	         devices > 1 ? "-1" : "");
	struct trainer_options o = { .model = gpt2_odd,
		                     .plan = plan,
		                     .devices = devices,
		                     .steps = STEPS,
		                     .gpus = on_gpu ? 3 : 0,
		                     .bf16 = bf16,
		                     .documents = masked,
		                     .masked = masked };
	if (apart)
		setenv("HSPMD_UNFUSED", apart, 1);
	must(trainer_train(&o, to, &err), &err);
	unsetenv("HSPMD_UNFUSED");
}

static void check_close(const double *got, const double *want, double bound, const char *what)
{
	for (int s = 0; s < STEPS; s++)
		if (!(fabs(got[s] - want[s]) <= bound * want[s]))
			fail_msg("%s: the loss of step %d is %.9g, not %.9g", what, s, got[s], want[s]);
}

/* Padding and one pass change nothing that the CPU device would see, and one pass no bit. */
static void models(void **state)
{
	(void)state;
	for (int devices = 1; devices < 3; devices++)
		for (int bf16 = 0; bf16 < 2; bf16++) {
			double cpu[STEPS], all[STEPS], apart[STEPS], packed[STEPS], bound = bf16 ? 5e-3 : 1e-5;
			bool masked = devices == 1;
			train(false, false, masked, NULL, devices, cpu);
			train(true, bf16, masked, NULL, devices, all);
			train(true, bf16, masked, "cross_entropy", devices, apart);
			train(true, bf16, masked, "pad_rows", devices, packed);
			assert_memory_equal(all, apart, sizeof all);
			check_close(all, cpu, bound, "padded, against the CPU device");
			check_close(packed, cpu, bound, "packed, against the CPU device");
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(products), cmocka_unit_test(losses), cmocka_unit_test(models) };
	setenv("HSPMD_CUDA_OVERSUBSCRIBE", "1", 1);
	setenv("HSPMD_CUDA_TUNE", "0", 0);
	gpu = gpu_open();
	int status = cmocka_run_group_tests_name("rows", tests, NULL, NULL);
	gpu->ops->close(gpu);
	return status;
}
