/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of operators that the CUDA device runs as one, compared with running the two one after the other: kernels on the same numbers, in
 * place and not, with sizes for which cuBLASLt has an algorithm and others; and whole models with and without pairs. */
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
#include "tests/unit/draw.h"
#include "tests/unit/only.h"
#include "tests/unit/trainer.h"

#define F32_BOUND 1e-5 /* relative, by norm */
#define BF16_BOUND 1e-2

static struct hspmd_device *gpu;

/* The shapes of an operator's tensors: r rows, h and k widths, s statistics per row. */
struct pair_case {
	enum hspmd_opcode opcode;
	const char *in; /* one letter per input: "r": [rows, h]; "k": [rows, k]; "h": [h]; "w": the weight; "s": statistics;
	                   '-': not given */
	const char *out;
	bool transposed, accumulate;
};

static const struct pair_case cases[] = {
	{ HSPMD_OP_ADD_LAYERNORM, "rrhh", "rsr", false, false },
	{ HSPMD_OP_ADD_LAYERNORM, "rrh", "rsr", false, false },
	{ HSPMD_OP_ADD_RMSNORM, "rrh", "rsr", false, false },
	{ HSPMD_OP_LAYERNORM_GRAD_ADD, "rrhsr", "rHH", false, false },
	{ HSPMD_OP_LAYERNORM_GRAD_ADD, "rrhsr", "rHH", false, true },
	{ HSPMD_OP_RMSNORM_GRAD_ADD, "rrhsr", "rH", false, true },
	{ HSPMD_OP_LINEAR_ADD, "kwhr", "r", true, false },
	{ HSPMD_OP_LINEAR_ADD, "kw-r", "r", false, false },
	{ HSPMD_OP_LINEAR_GRAD_X_ADD, "rwk", "k", false, false },
	{ HSPMD_OP_LINEAR_GRAD_X_ADD, "rwk", "k", true, false },
	{ HSPMD_OP_LINEAR_GELU, "kwh", "rr", true, false },
	{ HSPMD_OP_LINEAR_GELU, "kw-", "rr", false, false },
	{ HSPMD_OP_LINEAR_GELU, "kwh", "r-", true, false },
	{ HSPMD_OP_LINEAR_GRAD_X_GELU, "rwk", "k", true, false },
	{ HSPMD_OP_LINEAR_GRAD_X_GELU, "rwk", "k", false, false },
};

struct sizes {
	int64_t rows, h, k;
};

/* The second: rows longer than a block's registers. The last: sizes that are no multiples of 8. */
static const struct sizes sizes[] = { { 24, 32, 16 }, { 3, 8200, 8 }, { 7, 27, 13 } };

static void must(int status, const struct hspmd_error *err)
{
	if (status)
		fail_msg("%s", err->text);
}

static struct hspmd_view shape_of(char what, const struct pair_case *c, const struct sizes *z, enum hspmd_dtype type)
{
	int64_t stats = c->opcode == HSPMD_OP_ADD_LAYERNORM || c->opcode == HSPMD_OP_LAYERNORM_GRAD_ADD ? 2 : 1;
	struct hspmd_view v = { .dtype = what == 's' || what == 'H' ? HSPMD_F32 : type, .rank = 2, .shape = { z->rows, z->h } };
	if (what == '-')
		return (struct hspmd_view){ .rank = -1 };
	if (what == 'h' || what == 'H') {
		v.rank = 1;
		v.shape[0] = z->h;
	} else if (what == 'k' || what == 's') {
		v.shape[1] = what == 'k' ? z->k : stats;
	} else if (what == 'w') {
		v.shape[0] = c->transposed ? z->k : z->h;
		v.shape[1] = c->transposed ? z->h : z->k;
	}
	memcpy(v.full, v.shape, sizeof v.full);
	return v;
}

static int64_t count_of(const struct hspmd_view *v)
{
	int64_t n = v->rank < 0 ? 0 : 1;
	for (int d = 0; d < v->rank; d++)
		n *= v->shape[d];
	return n;
}

/* Fills a tensor with numbers of a random stream, positive ones for statistics. */
static void fill(struct hspmd_view *v, uint64_t stream, bool positive)
{
	struct hspmd_error err = { "" };
	size_t n = (size_t)count_of(v), bytes = n * hspmd_dtype_bytes(v->dtype);
	char *host = malloc(bytes + 1);
	assert_non_null(host);
	for (size_t i = 0; i < n; i++) {
		double x = hspmd_random_normal(3, stream, i);
		x = positive ? 0.5 + fabs(x) : x;
		if (v->dtype == HSPMD_BF16)
			((uint16_t *)host)[i] = hspmd_bf16_from_float((float)x);
		else
			((float *)host)[i] = (float)x;
	}
	if (v->rank >= 0) {
		v->data = gpu->ops->allocate(gpu, bytes, &err);
		assert_non_null(v->data);
		must(gpu->ops->to_device(gpu, v->data, host, bytes, &err), &err);
	}
	free(host);
}

static float *take_back(const struct hspmd_view *v)
{
	struct hspmd_error err = { "" };
	size_t n = (size_t)count_of(v), bytes = n * hspmd_dtype_bytes(v->dtype);
	char *raw = malloc(bytes + 1);
	float *values = malloc((n + 1) * sizeof *values);
	assert_true(raw && values);
	must(gpu->ops->to_host(gpu, raw, v->data, bytes, &err), &err);
	for (size_t i = 0; i < n; i++)
		values[i] = v->dtype == HSPMD_BF16 ? hspmd_bf16_to_float(((uint16_t *)raw)[i]) : ((float *)raw)[i];
	free(raw);
	return values;
}

static void run(enum hspmd_opcode opcode, struct hspmd_kernel_args *args)
{
	struct hspmd_error err = { "" };
	args->workspace_bytes = gpu->ops->workspace(gpu, opcode, args);
	args->workspace = args->workspace_bytes ? gpu->ops->allocate(gpu, args->workspace_bytes, &err) : NULL;
	if (gpu->ops->run(gpu, opcode, args, &err))
		fail_msg("%s: %s", hspmd_opcode_names[opcode], err.text);
	gpu->ops->release(gpu, args->workspace);
}

static struct hspmd_kernel_args make_args(const struct pair_case *c, const struct sizes *z, enum hspmd_dtype type,
                                          const struct hspmd_op_attr *attr)
{
	struct hspmd_kernel_args args = { .attr = attr, .input_count = (int)strlen(c->in), .output_count = (int)strlen(c->out) };
	for (int k = 0; k < args.input_count; k++) {
		args.in[k] = shape_of(c->in[k], c, z, type);
		fill(&args.in[k], (uint64_t)k, c->in[k] == 's');
	}
	for (int k = 0; k < args.output_count; k++) {
		args.out[k] = shape_of(c->out[k], c, z, type);
		fill(&args.out[k], (uint64_t)(20 + k), false);
		args.out[k].accumulate = k && c->accumulate;
	}
	return args;
}

static void release(struct hspmd_kernel_args *args)
{
	for (int k = 0; k < args->input_count; k++)
		gpu->ops->release(gpu, args->in[k].data);
	for (int k = 0; k < args->output_count; k++)
		gpu->ops->release(gpu, args->out[k].data);
}

/* Does the same with two operators, through a buffer between them. */
static void run_apart(const struct pair_case *c, struct hspmd_kernel_args *both, enum hspmd_dtype type, const struct sizes *z)
{
	const struct hspmd_op_type *t = hspmd_op_types[c->opcode], *first = hspmd_op_types[t->pair.first];
	bool gone = t->pair.intermediate == HSPMD_OP_INTERMEDIATE_GONE;
	struct hspmd_kernel_args a = { .attr = both->attr, .output_count = 1 }, b = { .attr = both->attr };
	struct hspmd_view intermediate = shape_of(t->pair.first == HSPMD_OP_LINEAR_GRAD_X ? 'k' : 'r', c, z, type);
	fill(&intermediate, 99, false);
	for (int k = 0; k < first->max_inputs; k++)
		a.in[a.input_count++] = both->in[k];
	b.output_count = t->pair.second == HSPMD_OP_LAYERNORM || t->pair.second == HSPMD_OP_RMSNORM ? 2 : 1;
	memcpy(b.out, both->out, (size_t)b.output_count * sizeof *b.out);
	a.out[0] = intermediate;
	for (int k = b.output_count + !gone; k < both->output_count; k++)
		a.out[a.output_count++] = both->out[k];
	b.in[b.input_count++] = intermediate;
	for (int k = first->max_inputs; k < both->input_count; k++)
		b.in[b.input_count++] = both->in[k];
	run(t->pair.first, &a);
	run(t->pair.second, &b);
	if (!gone && both->out[b.output_count].rank >= 0) {
		gpu->ops->release(gpu, both->out[b.output_count].data);
		both->out[b.output_count].data = intermediate.data;
	} else {
		gpu->ops->release(gpu, intermediate.data);
	}
}

static void compare(const struct pair_case *c, const struct hspmd_kernel_args *got, const struct hspmd_kernel_args *want,
                    enum hspmd_dtype type)
{
	for (int k = 0; k < got->output_count; k++) {
		if (got->out[k].rank < 0)
			continue;
		float *x = take_back(&got->out[k]), *y = take_back(&want->out[k]);
		double off = 0, size = 0;
		for (int64_t i = 0; i < count_of(&got->out[k]); i++) {
			off += (x[i] - y[i]) * (double)(x[i] - y[i]);
			size += y[i] * (double)y[i];
		}
		if (!(sqrt(off) <= (type == HSPMD_F32 ? F32_BOUND : BF16_BOUND) * sqrt(size)))
			fail_msg("%s in %s (inputs %s, %lld rows of %lld and %lld): output %d is %g off by norm",
			         hspmd_opcode_names[c->opcode], hspmd_dtype_names[type], c->in, (long long)got->in[0].shape[0],
			         (long long)got->in[0].shape[1], (long long)got->out[0].shape[1], k, sqrt(off / size));
		free(x);
		free(y);
	}
}

static void check(const struct pair_case *c, const struct sizes *z, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .transposed = c->transposed, .eps = 1e-5 };
	struct hspmd_kernel_args want = make_args(c, z, type, &attr), got = make_args(c, z, type, &attr),
	                         in_place = make_args(c, z, type, &attr);
	run_apart(c, &want, type, z);
	run(c->opcode, &got);
	compare(c, &got, &want, type);
	int from = hspmd_op_types[c->opcode]->in_place[0] - 1;
	if (from >= 0) {
		gpu->ops->release(gpu, in_place.out[0].data);
		in_place.out[0].data = in_place.in[from].data;
		run(c->opcode, &in_place);
		compare(c, &in_place, &got, type);
		in_place.in[from].data = NULL;
	}
	release(&want);
	release(&got);
	release(&in_place);
}

static void check_all(enum hspmd_dtype type)
{
	static const char *const orders[] = { "0", "7" };
	const unsigned count = gpu_is_emulated() && getenv("HSPMD_LONG") ? 2 : 1, first = gpu_is_emulated() ? draw_first(count, 2) : 0;
	for (unsigned o = first; o < first + count; o++) {
		setenv("HSPMD_EMULATE_ORDER", orders[o], 1);
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
			for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
				check(&cases[i], &sizes[s], type);
	}
	setenv("HSPMD_EMULATE_ORDER", "0", 1);
}

static void pairs_f32(void **state)
{
	(void)state;
	check_all(HSPMD_F32);
}

static void pairs_bf16(void **state)
{
	(void)state;
	check_all(HSPMD_BF16);
}

/* ---- attention's gradient, turned back */

#define SAMPLES 2

/* Positions from `first` on are queries; all are keys. */
struct turned_case {
	int64_t heads, kv_heads, head_dim, positions, first;
};
static const struct turned_case turned_cases[] = {
	{ 4, 2, 6, 20, 0 },   { 4, 1, 64, 150, 0 },  { 2, 2, 64, 70, 0 },
	{ 2, 1, 64, 90, 33 }, { 2, 1, 128, 140, 0 }, { 4, 4, 10, 9, 3 }, /* heads of 10 do not begin on multiples of 16 bytes */
};

static struct hspmd_view heads_of(int64_t heads, int64_t head_dim, int64_t positions, int64_t first, enum hspmd_dtype type)
{
	struct hspmd_view v = {
		.dtype = type, .rank = 3, .shape = { SAMPLES, positions - first, heads * head_dim }, .start = { 0, first }
	};
	memcpy(v.full, v.shape, sizeof v.full);
	v.full[1] = positions;
	return v;
}

/* Gets the gradients of q and k from attention's gradient and two rotations, or from one operator. */
static void differentiate(const struct turned_case *c, enum hspmd_dtype type, const struct hspmd_kernel_args *of, bool at_once,
                          struct hspmd_view out[3])
{
	struct hspmd_kernel_args grad = *of;
	for (int k = 0; k < 3; k++) {
		out[k] = heads_of(k ? c->kv_heads : c->heads, c->head_dim, c->positions, 0, type);
		fill(&out[k], (uint64_t)(50 + k), false);
	}
	memcpy(grad.out, out, sizeof grad.out[0] * 3);
	if (at_once) {
		run(HSPMD_OP_ATTENTION_GRAD_ROPE, &grad);
		return;
	}
	grad.input_count = HSPMD_ATTENTION_GRAD_ANGLES;
	run(HSPMD_OP_ATTENTION_GRAD, &grad);
	for (int k = 0; k < 2; k++) {
		struct hspmd_kernel_args turn = { .attr = of->attr, .input_count = 2, .output_count = 1 };
		turn.in[0] = turn.out[0] = out[k];
		turn.in[1] = of->in[HSPMD_ATTENTION_GRAD_ANGLES];
		run(HSPMD_OP_ROPE_GRAD, &turn);
	}
}

static void check_turned(const struct turned_case *c, enum hspmd_dtype type)
{
	struct hspmd_op_attr attr = { .head_dim = c->head_dim, .heads = c->heads, .kv_heads = c->kv_heads, .scale = 0.2, .theta = 10000 };
	struct hspmd_kernel_args table = { .attr = &attr, .output_count = 1 },
	                         forward = { .attr = &attr, .input_count = 3, .output_count = 2 },
	                         grad = { .attr = &attr, .input_count = HSPMD_ATTENTION_GRAD_ANGLES + 1, .output_count = 3 };
	struct hspmd_view want[3], got[3];
	table.out[0] = (struct hspmd_view){ .dtype = HSPMD_F32, .rank = 3, .shape = { 1, c->positions, c->head_dim } };
	memcpy(table.out[0].full, table.out[0].shape, sizeof table.out[0].full);
	fill(&table.out[0], 1, false);
	run(HSPMD_OP_ROPE_TABLE, &table);
	for (int k = 0; k < 3; k++) {
		forward.in[k] = heads_of(k ? c->kv_heads : c->heads, c->head_dim, c->positions, 0, type);
		fill(&forward.in[k], (uint64_t)(2 + k), false);
	}
	forward.out[0] = heads_of(c->heads, c->head_dim, c->positions, c->first, type);
	forward.out[1] = (struct hspmd_view){ .dtype = HSPMD_F32, .rank = 3, .shape = { SAMPLES, c->heads, c->positions - c->first } };
	memcpy(forward.out[1].full, forward.out[1].shape, sizeof forward.out[1].full);
	fill(&forward.out[0], 6, false);
	fill(&forward.out[1], 7, false);
	run(HSPMD_OP_ATTENTION, &forward);
	for (int k = 0; k < HSPMD_ATTENTION_GRAD_ANGLES; k++)
		grad.in[k] = (struct hspmd_view){ .rank = -1 };
	grad.in[0] = heads_of(c->heads, c->head_dim, c->positions, c->first, type);
	fill(&grad.in[0], 8, false);
	memcpy(&grad.in[1], forward.in, 3 * sizeof *grad.in);
	memcpy(&grad.in[4], forward.out, 2 * sizeof *grad.in);
	grad.in[HSPMD_ATTENTION_GRAD_ANGLES] = table.out[0];
	differentiate(c, type, &grad, false, want);
	differentiate(c, type, &grad, true, got);
	for (int k = 0; k < 3; k++) {
		float *x = take_back(&got[k]), *y = take_back(&want[k]);
		for (int64_t i = 0; i < count_of(&got[k]); i++)
			if (!(x[i] == y[i])) /* zeros of rows that are not computed may have either sign */
				fail_msg("heads of %lld in %s, output %d: element %lld is %g, not %g", (long long)c->head_dim,
				         hspmd_dtype_names[type], k, (long long)i, (double)x[i], (double)y[i]);
		free(x);
		free(y);
		gpu->ops->release(gpu, got[k].data);
		gpu->ops->release(gpu, want[k].data);
	}
	release(&table);
	release(&grad);
	for (int k = 0; k < 3; k++)
		forward.in[k].data = NULL; /* those of `grad` */
}

/* To the last bit, by each of our kernels and behind cuDNN's plans. */
static void gradients_are_turned_back(void **state)
{
	(void)state;
	static const char *const wgmma[] = { "1", "0", "1" }, *const dnn[] = { "", "", "played" };
	for (int way = 0; way < (gpu_is_emulated() ? 3 : 2); way++) {
		gpu->ops->close(gpu);
		setenv("HSPMD_CUDA_WGMMA", wgmma[way], 1);
		setenv("HSPMD_CUDNN", dnn[way], 1);
		gpu = gpu_open();
		for (size_t i = 0; i < sizeof turned_cases / sizeof *turned_cases; i++) {
			check_turned(&turned_cases[i], HSPMD_BF16);
			if (turned_cases[i].head_dim < 64)
				check_turned(&turned_cases[i], HSPMD_F32);
		}
	}
	gpu->ops->close(gpu);
	unsetenv("HSPMD_CUDA_WGMMA");
	unsetenv("HSPMD_CUDNN");
	gpu = gpu_open();
}

#define STEPS 4

/* On one device, where all pairs are adjacent; on two, where a sum over both devices separates some pairs, or each device has positions of
 * its own. */
#define LAYOUTS 3
static const char *const layouts[LAYOUTS] = { "\"", "-1\"", "-1\"],\"context\":2,\"context_ratio\":[3,1" };

static void train(const char *model, int layers, const char *devices, bool bf16, const char *left, double *losses)
{
	struct hspmd_error err = { "" };
	char plan[512];
	snprintf(plan, sizeof plan,
	         "{\"format\":\"hspmd-plan-1\",\"global_batch\":4,\"micro_batch\":2,\"seq_len\":16,\"schedule\":\"1f1b\",\"pipelines\":["
	         "{\"micro_batches\":2,\"stages\":[{\"layers\":[0,%d],\"devices\":[\"n:0%s]}]}]}",
	         layers, devices);
	struct trainer_options o = { .model = model,
		                     .plan = plan,
		                     .devices = *devices == '-' ? 2 : 1,
		                     .steps = STEPS,
		                     .gpus = *devices == '-' ? 3 : 1,
		                     .bf16 = bf16 };
	if (left)
		setenv("HSPMD_UNFUSED", left, 1);
	must(trainer_train(&o, losses, &err), &err);
	unsetenv("HSPMD_UNFUSED");
}

static void whole_models(void **state)
{
	(void)state;
	static const struct {
		const char *config;
		int layers;
	} models[] = { { trainer_gpt2, 5 }, { trainer_llama, 5 }, { trainer_mixtral, 4 } };
	/* Emulated without HSPMD_LONG: each model in each type with one layout, so that each layout has two of the six. */
	const unsigned count = gpu_is_emulated() ? draw_count(1, LAYOUTS) : LAYOUTS, first = draw_first(count, LAYOUTS);
	for (unsigned m = 0; m < sizeof models / sizeof *models; m++)
		for (unsigned bf16 = 0; bf16 < 2; bf16++)
			for (unsigned i = first; i < first + count; i++) {
				unsigned l = (i + m + bf16) % LAYOUTS;
				double fused[STEPS], again[STEPS], apart[STEPS], tables[STEPS], bound = bf16 ? 5e-3 : 1e-6;
				train(models[m].config, models[m].layers, layouts[l], bf16 != 0, NULL, fused);
				train(models[m].config, models[m].layers, layouts[l], bf16 != 0, NULL, again);
				train(models[m].config, models[m].layers, layouts[l], bf16 != 0, "all", apart);
				train(models[m].config, models[m].layers, layouts[l], bf16 != 0, "rope_table", tables);
				assert_memory_equal(fused, again, sizeof fused);
				assert_memory_equal(fused, tables, sizeof fused);
				for (int s = 0; s < STEPS; s++)
					if (!(fabs(fused[s] - apart[s]) <= bound * apart[s]))
						fail_msg("model %u, layout %u in %s: loss of step %d is %.9g, not %.9g", m, l,
						         bf16 ? "BF16" : "F32", s, fused[s], apart[s]);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(pairs_f32), cmocka_unit_test(pairs_bf16),
		                            cmocka_unit_test(gradients_are_turned_back), cmocka_unit_test(whole_models) };
	only_chosen_tests(tests, sizeof tests / sizeof *tests);
	setenv("HSPMD_CUDA_SHARE", "1", 1); /* the name of HSPMD_CUDA_OVERSUBSCRIBE in earlier versions, which must continue to work */
	setenv("HSPMD_CUDA_TUNE", "0", 0);
	gpu = gpu_open();
	int status = cmocka_run_group_tests(tests, NULL, NULL);
	gpu->ops->close(gpu);
	return status;
}
