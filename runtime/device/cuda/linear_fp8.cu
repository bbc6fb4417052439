/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers of FP8 operands. On Hopper cuBLASLt multiplies E4M3 and E5M2 operands only if both have the dimension that is summed as
 * their rows' (its "TN" layout; cuBLAS 12, "cublasLtMatmul", FP8 kernels). Activations and gradients of a layer need both orders, and the
 * weight the one that it is not kept in, so the kernel that rounds an operand can write it transposed: the copy is made anyway, and a
 * transposed one costs no more bytes. It finds the operand's amax on its way. Where cuBLASLt has no such product (GPUs without FP8, sizes
 * that are no multiples of 16, elements of F32), the rounded operands are kept as elements of the type of x, which represents them exactly,
 * and multiplied as such: the same numbers up to the order of sums. Of calls that follow one another and read the same operand in the same
 * order (queries, keys and values; gate and up), the first rounds it. The others find on the device whether their histories, too, give its
 * scale.
 *
 * Bytes moved beside the product, for operands of BF16: 3 for each element of both. */
#include "runtime/device/cuda/fp8_round.h"
#include "runtime/device/cuda/gemm.h"

#define THREADS ROUND_THREADS
#define BINS_PER_LANE (HSPMD_AMAX_BINS / WARP)

/* ---- scales */

/* Rows of histories, whose scales are written as (scale, inverse) pairs. */
struct histories {
	const void *row[2];
	int unit[2];
	enum hspmd_fp8_operand operand[2];
	float form; /* how input 0 is rounded and where its result is, as a number; 0: not where the next call would look */
	bool repeats;
};

/* What follows the pairs: whether the first operand is there as this call needs it; its scale, and its form. */
enum { DONE = 4, DONE_SCALE, DONE_FORM };

template <typename T> static __global__ void __launch_bounds__(WARP) scales_kernel(struct histories h, float *out)
{
	for (int k = 0; k < 2; k++) {
		const T *row = (const T *)h.row[k];
		int level = 0;
		for (int i = 0; i < BINS_PER_LANE; i++)
			level += to_float(row[threadIdx.x * BINS_PER_LANE + i]) > 0 ? 1 : 0;
		level = warp_reduce<Sum>(level);
		int scale = hspmd_fp8_scale(level, h.unit[k], h.operand[k]);
		if (threadIdx.x == 0) {
			out[2 * k] = hspmd_power_of_two(scale);
			out[2 * k + 1] = hspmd_power_of_two(-scale);
		}
	}
	if (threadIdx.x == 0) {
		out[DONE] = h.repeats && h.form > 0 && out[DONE_FORM] == h.form && out[DONE_SCALE] == out[0] ? 1.0f : 0.0f;
		out[DONE_SCALE] = out[0];
		out[DONE_FORM] = h.form;
	}
}

/* Writes the thermometer of the largest of `count` partial amax, or adds it. */
static __global__ void __launch_bounds__(THREADS) thermometer_kernel(const float *parts, int count, int unit, float *out, bool accumulate)
{
	__shared__ float room[WARP];
	float most = 0;
	for (int i = threadIdx.x; i < count; i += THREADS)
		most = parts[i] > most ? parts[i] : most;
	most = block_reduce<Max>(most, 0.0f, room);
	int level = hspmd_amax_level(most, unit);
	if (threadIdx.x < HSPMD_AMAX_BINS)
		out[threadIdx.x] = (accumulate ? out[threadIdx.x] : 0) + ((int)threadIdx.x < level ? 1 : 0);
}

/* ---- calls */

enum { FORWARD, GRAD_X, GRAD_W };

/* One call: the product, and what of it is FP8. */
struct call {
	int which;
	const struct hspmd_kernel_args *args;
	struct hspmd_cuda_gemm product; /* of FP8 operands, or of the same type as x */
	bool fp8;
	bool across[2]; /* operand A, B: rounded into the transposed order of input `input` */
	int input[2];
	int64_t rows, n, k; /* of x; outputs; width of x */
};

static bool wants(const struct hspmd_kernel_args *args, int output)
{
	return output < args->output_count && args->out[output].rank > 0;
}

/* The product in the layout of FP8 operands: A[m, k] and B[n, k]. */
static struct call describe(int which, const struct hspmd_kernel_args *args)
{
	struct call c = {};
	const struct hspmd_view *x = &args->in[which == GRAD_W ? 1 : 0], *w = &args->in[1];
	bool transposed = args->attr->transposed;
	c.which = which;
	c.args = args;
	c.fp8 = true;
	if (which == GRAD_X) {
		const struct hspmd_view *dx = &args->out[0];
		c.k = transposed ? w->shape[0] : w->shape[w->rank - 1];
		c.n = hspmd_cuda_elements(w) / c.k;
		c.rows = hspmd_cuda_elements(&args->in[0]) / c.n;
		c.product.m = c.rows, c.product.n = c.k, c.product.k = c.n;
		c.product.d = dx->data;
		c.product.d_type = wants(args, 0) ? dx->dtype : args->in[0].dtype;
		c.product.accumulate = dx->accumulate;
		c.input[1] = 1;
		c.across[1] = !transposed;
	} else if (which == FORWARD) {
		c.k = hspmd_cuda_row_length(x);
		c.n = hspmd_cuda_elements(w) / c.k;
		c.rows = hspmd_cuda_row_count(x);
		c.product.m = c.rows, c.product.n = c.n, c.product.k = c.k;
		c.product.d = args->out[0].data;
		c.product.d_type = args->out[0].dtype;
		/* If K is split, one part adds the bias. */
		c.product.has_bias = args->in[2].rank >= 0 && x->start[x->rank - 1] == 0;
		c.product.bias = c.product.has_bias ? args->in[2].data : NULL;
		c.input[1] = 1;
		c.across[1] = transposed;
	} else {
		c.k = hspmd_cuda_row_length(x);
		c.rows = hspmd_cuda_row_count(x);
		c.n = hspmd_cuda_elements(&args->in[0]) / c.rows;
		c.product.m = transposed ? c.k : c.n, c.product.n = transposed ? c.n : c.k, c.product.k = c.rows;
		c.product.d = args->out[0].data;
		c.product.d_type = HSPMD_F32;
		c.product.accumulate = args->out[0].accumulate;
		c.input[0] = transposed ? 1 : 0;
		c.input[1] = transposed ? 0 : 1;
		c.across[0] = c.across[1] = true;
	}
	c.product.trans_b = true;
	c.product.type = x->dtype;
	c.product.fp8 = true;
	c.product.workspace_most = args->workspace_most;
	c.product.gradient_a = which == GRAD_X || (which == GRAD_W && c.input[0] == 0);
	c.product.gradient_b = which == GRAD_W && c.input[1] == 0;
	c.product.choice = (const struct hspmd_cuda_gemm_choice *)(args->prepared ? args->prepared->choice[0] : NULL);
	return c;
}

/* The same product of operands of the type of x, in the order of the inputs. */
static void use_elements(struct call *c)
{
	struct hspmd_cuda_gemm *p = &c->product;
	c->fp8 = p->fp8 = false;
	p->trans_a = c->across[0];
	p->trans_b = !c->across[1];
	c->across[0] = c->across[1] = false;
	p->choice = (const struct hspmd_cuda_gemm_choice *)(c->args->prepared ? c->args->prepared->choice[1] : NULL);
}

static struct call choose(struct hspmd_cuda *cuda, int which, const struct hspmd_kernel_args *args)
{
	struct call c = describe(which, args);
	if (c.product.type != HSPMD_BF16 || !hspmd_cuda_gemm_exists(cuda, &c.product))
		use_elements(&c);
	return c;
}

static size_t aligned(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

static size_t operand_bytes(const struct call *c, int operand)
{
	size_t each = c->fp8 ? 1 : hspmd_cuda_dtype_bytes(c->product.type);
	return aligned((size_t)hspmd_cuda_elements(&c->args->in[c->input[operand]]) * each);
}

/* The workspace: two scales with their inverses and what scales_kernel notes beside them, partial amax of both operands, the operands, and
 * the product's. */
#define SCALES_BYTES 64
#define PARTS_BYTES (MOST_BLOCKS * sizeof(float))

static size_t workspace_of(struct hspmd_cuda *cuda, const struct call *c)
{
	size_t product = hspmd_cuda_gemm_workspace(cuda, &c->product);
	size_t sums = c->which == GRAD_W && wants(c->args, 1) ? hspmd_cuda_column_sum_workspace(cuda, c->rows, c->n) : 0;
	return SCALES_BYTES + 2 * PARTS_BYTES + operand_bytes(c, 0) + operand_bytes(c, 1) + (sums > product ? sums : product);
}

template <typename T> static void find_scales(struct hspmd_cuda *cuda, const struct histories *h, float *out)
{
	auto *kernel = scales_kernel<T>;
	LAUNCH(kernel, 1, WARP, 0, cuda->stream, *h, out);
}

/* Rounds one operand, unless input 0 is there already. Returns the number of partial amax, which are written to `parts` if it is not
 * NULL. */
static unsigned round_operand(struct hspmd_cuda *cuda, const struct call *c, int operand, const float *scales, float *parts, void *to)
{
	const struct hspmd_view *x = &c->args->in[c->input[operand]];
	bool gradient = operand ? c->product.gradient_b : c->product.gradient_a, is_weight = c->which != GRAD_W && operand == 1;
	struct rounding r = {};
	r.rows = is_weight ? (c->args->attr->transposed ? c->k : c->n) : c->rows;
	r.columns = is_weight ? (c->args->attr->transposed ? c->n : c->k) : hspmd_cuda_elements(x) / c->rows;
	r.stride = r.columns;
	r.scale = scales + 2 * operand;
	r.done = operand == 0 && !parts ? scales + DONE : NULL;
	r.parts = parts;
	r.gradient = gradient;
	unsigned blocks = blocks_of(&r, c->across[operand]);
	if (c->across[operand]) /* only of FP8 */
		LAUNCH(turn_kernel, blocks, THREADS, 0, cuda->stream, (const bf16 *)x->data, (fp8_code *)to, r);
	else if (c->fp8)
		round_as<bf16, fp8_code>(cuda, x->data, to, &r, blocks);
	else if (x->dtype == HSPMD_F32)
		round_as<float, float>(cuda, x->data, to, &r, blocks);
	else
		round_as<bf16, bf16>(cuda, x->data, to, &r, blocks);
	return blocks;
}

static void note_level(struct hspmd_cuda *cuda, const float *parts, unsigned count, int unit, const struct hspmd_view *to, int row)
{
	LAUNCH(thermometer_kernel, 1, THREADS, 0, cuda->stream, parts, (int)count, unit, (float *)to->data + row * HSPMD_AMAX_BINS,
	       to->accumulate);
}

/* The rows of histories that say how the operands of the call are scaled, in the order of the product's operands. */
static struct histories histories_of(const struct call *c)
{
	const struct hspmd_kernel_args *args = c->args;
	const struct hspmd_view *history = &args->in[c->which == FORWARD ? 3 : 2], *weight = &args->in[c->which == FORWARD ? 4 : 3];
	size_t row = HSPMD_AMAX_BINS * hspmd_cuda_dtype_bytes(history->dtype);
	struct histories h = {};
	h.repeats = args->repeats_first;
	for (int k = 0; k < 2; k++) {
		bool gradient = k ? c->product.gradient_b : c->product.gradient_a, is_weight = c->which != GRAD_W && k == 1;
		h.row[k] = is_weight ? weight->data : (const char *)history->data + (gradient ? row : 0);
		h.unit[k] = gradient ? hspmd_amax_unit(args->attr->scale) : 0;
		h.form = k == 0 && c->input[0] == 0 ? (float)(1 + gradient + 2 * c->fp8 + 4 * c->across[0]) : h.form;
		h.operand[k] = is_weight ? HSPMD_FP8_WEIGHT : gradient ? HSPMD_FP8_GRADIENT : HSPMD_FP8_ACTIVATION;
	}
	return h;
}

static int run(struct hspmd_cuda *cuda, int which, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct call c = choose(cuda, which, args);
	char *at = (char *)args->workspace;
	float *scales = (float *)at, *parts[2] = { (float *)(at + SCALES_BYTES), (float *)(at + SCALES_BYTES + PARTS_BYTES) };
	char *operands[2] = { at + SCALES_BYTES + 2 * PARTS_BYTES, NULL };
	operands[1] = operands[0] + operand_bytes(&c, 0);
	char *rest = operands[1] + operand_bytes(&c, 1);
	struct histories h = histories_of(&c);
	const struct hspmd_view *noted = wants(args, which == GRAD_X ? 1 : 2) ? &args->out[which == GRAD_X ? 1 : 2] : NULL;
	unsigned counts[2];
	BY_TYPE(args->in[which == FORWARD ? 3 : 2].dtype, find_scales, cuda, &h, scales);
	for (int k = 0; k < 2; k++)
		counts[k] = round_operand(cuda, &c, k, scales, noted && (which == GRAD_W || k == 1) ? parts[k] : NULL, operands[k]);
	if (which == GRAD_X && noted)
		note_level(cuda, parts[1], counts[1], 0, noted, 0);
	for (int k = 0; which == GRAD_W && noted && k < 2; k++)
		note_level(cuda, parts[k], counts[k], h.unit[k], noted, c.input[k] == 0 ? 1 : 0);
	if (which == GRAD_W && wants(args, 1))
		hspmd_cuda_column_sum(cuda, &args->in[0], c.rows, c.n, (float *)args->out[1].data, args->out[1].accumulate, rest);
	if (which != FORWARD && !wants(args, 0))
		return 0;
	c.product.a = operands[0];
	c.product.b = operands[1];
	c.product.scale_a = scales + 1;
	c.product.scale_b = scales + 3;
	return hspmd_cuda_gemm_run(cuda, &c.product, rest, args->workspace_bytes - (size_t)(rest - at), err);
}

/* Both kinds of product are decided on: whether there is one of FP8 operands is itself a choice. */
static int prepare(struct hspmd_cuda *cuda, int which, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,
                   struct hspmd_error *err)
{
	struct call c = describe(which, args);
	c.product.choice = NULL;
	if (c.product.type == HSPMD_BF16 && hspmd_cuda_gemm_prepare(cuda, &c.product, &to->choice[0], err))
		return -1;
	use_elements(&c);
	c.product.choice = NULL;
	return hspmd_cuda_gemm_prepare(cuda, &c.product, &to->choice[1], err);
}

#define FUNCTIONS(which, name)                                                                                                             \
	static int run_##name(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)                      \
	{                                                                                                                                  \
		return run(cuda, which, args, err);                                                                                        \
	}                                                                                                                                  \
	static size_t name##_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)                                      \
	{                                                                                                                                  \
		struct call c = choose(cuda, which, args);                                                                                 \
		return workspace_of(cuda, &c);                                                                                             \
	}                                                                                                                                  \
	static int prepare_##name(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,                \
	                          struct hspmd_error *err)                                                                                 \
	{                                                                                                                                  \
		return prepare(cuda, which, args, to, err);                                                                                \
	}

FUNCTIONS(FORWARD, forward)
FUNCTIONS(GRAD_X, grad_x)
FUNCTIONS(GRAD_W, grad_w)

const struct hspmd_cuda_kernel hspmd_cuda_linear_fp8 = { run_forward, forward_workspace, NULL, prepare_forward };
const struct hspmd_cuda_kernel hspmd_cuda_linear_fp8_grad_x = { run_grad_x, grad_x_workspace, NULL, prepare_grad_x };
const struct hspmd_cuda_kernel hspmd_cuda_linear_fp8_grad_w = { run_grad_w, grad_w_workspace, NULL, prepare_grad_w };
