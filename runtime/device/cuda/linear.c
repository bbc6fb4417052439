/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers: y = x w + bias, and gradients. Rows are all dimensions of x except the last; columns are all output dimensions of w
 * together. */
#include "runtime/device/cuda/cuda.h"
#include "runtime/device/cuda/gemm.h"

/* Of a prepared call: the choices of the product with its epilogue, and of the product alone. */
enum { WHOLE, ALONE };

static const struct hspmd_cuda_gemm_choice *choice_of(const struct hspmd_kernel_args *args, int which)
{
	return args->prepared ? args->prepared->choice[which] : NULL;
}

static struct hspmd_cuda_gemm forward(const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[0], *w = &args->in[1];
	int64_t k = hspmd_cuda_row_length(x);
	/* If K is split, one part adds the bias. */
	bool has_bias = args->input_count > 2 && args->in[2].rank >= 0 && x->start[x->rank - 1] == 0;
	return (struct hspmd_cuda_gemm){
		.m = hspmd_cuda_row_count(x),
		.n = k ? hspmd_cuda_elements(w) / k : 0,
		.k = k,
		.a = x->data,
		.b = w->data,
		.d = args->out[0].data,
		.ldd = args->out[0].row_stride,
		.trans_b = !args->attr->transposed,
		.type = x->dtype,
		.d_type = args->out[0].dtype,
		.tf32 = args->tf32,
		.workspace_most = args->workspace_most,
		.choice = choice_of(args, WHOLE),
		.bias = has_bias ? args->in[2].data : NULL,
		.has_bias = has_bias,
	};
}

static struct hspmd_cuda_gemm grad_x(const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *dy = &args->in[0], *w = &args->in[1], *dx = &args->out[0];
	int64_t k = hspmd_cuda_row_length(dx);
	return (struct hspmd_cuda_gemm){
		.m = hspmd_cuda_row_count(dx),
		.n = k,
		.k = k ? hspmd_cuda_elements(w) / k : 0,
		.a = dy->data,
		.b = w->data,
		.d = dx->data,
		.lda = dy->row_stride,
		.trans_b = args->attr->transposed,
		.accumulate = dx->accumulate,
		.type = dy->dtype,
		.d_type = dx->dtype,
		.tf32 = args->tf32,
		.workspace_most = args->workspace_most,
		.choice = choice_of(args, WHOLE),
	};
}

static struct hspmd_cuda_gemm grad_w(const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *dy = &args->in[0], *x = &args->in[1], *dw = &args->out[0];
	int64_t k = hspmd_cuda_row_length(x), rows = hspmd_cuda_row_count(x), n = rows ? hspmd_cuda_elements(dy) / rows : 0;
	bool transposed = args->attr->transposed;
	return (struct hspmd_cuda_gemm){
		.m = transposed ? k : n,
		.n = transposed ? n : k,
		.k = rows,
		.a = transposed ? x->data : dy->data,
		.b = transposed ? dy->data : x->data,
		.d = dw->data,
		.lda = transposed ? 0 : dy->row_stride,
		.ldb = transposed ? dy->row_stride : 0,
		.trans_a = true,
		.accumulate = dw->accumulate,
		.type = x->dtype,
		.d_type = dw->dtype,
		.tf32 = args->tf32,
		.workspace_most = args->workspace_most,
		.choice = choice_of(args, WHOLE),
	};
}

/* The product with the second operator of a pair as its epilogue: an addition adds in[3] or in[2], GELU can also write its own input, and
 * GELU's gradient reads it. */
static struct hspmd_cuda_gemm forward_add(const struct hspmd_kernel_args *args)
{
	struct hspmd_cuda_gemm p = forward(args);
	p.has_residual = true;
	p.residual = args->in[3].data;
	return p;
}

static struct hspmd_cuda_gemm grad_x_add(const struct hspmd_kernel_args *args)
{
	struct hspmd_cuda_gemm p = grad_x(args);
	p.has_residual = true;
	p.residual = args->in[2].data;
	return p;
}

static struct hspmd_cuda_gemm forward_gelu(const struct hspmd_kernel_args *args)
{
	struct hspmd_cuda_gemm p = forward(args);
	p.epilogue = HSPMD_EPILOGUE_GELU;
	p.has_aux = args->out[1].rank > 0;
	p.beside = args->out[1].data;
	return p;
}

static struct hspmd_cuda_gemm grad_x_gelu(const struct hspmd_kernel_args *args)
{
	struct hspmd_cuda_gemm p = grad_x(args);
	p.epilogue = HSPMD_EPILOGUE_GELU_GRAD;
	p.has_aux = true;
	p.beside = args->in[2].data;
	return p;
}

static bool wants_sums(const struct hspmd_kernel_args *args)
{
	return args->output_count > 1 && args->out[1].rank > 0;
}

/* Also computes the bias's gradient, which has exactly as many elements as a row of dw. */
static struct hspmd_cuda_gemm grad_w_sums(const struct hspmd_kernel_args *args)
{
	struct hspmd_cuda_gemm p = grad_w(args);
	p.epilogue = args->attr->transposed ? HSPMD_EPILOGUE_BGRAD_B : HSPMD_EPILOGUE_BGRAD_A;
	p.bgrad = args->out[1].data;
	return p;
}

/* The product without its epilogue, for shapes that cuBLASLt cannot compute with it. */
static struct hspmd_cuda_gemm alone(const struct hspmd_kernel_args *args, struct hspmd_cuda_gemm p)
{
	p.epilogue = HSPMD_EPILOGUE_NONE;
	p.has_aux = false;
	p.choice = choice_of(args, ALONE);
	return p;
}

static int run(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return hspmd_cuda_gemm_run(cuda, p, args->workspace, args->workspace_bytes, err);
}

/* Operators that are a single product. */
#define ONE_PRODUCT(name)                                                                                                                  \
	static int run_##name(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)                      \
	{                                                                                                                                  \
		struct hspmd_cuda_gemm p = name(args);                                                                                     \
		return run(cuda, &p, args, err);                                                                                           \
	}                                                                                                                                  \
	static size_t name##_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)                                      \
	{                                                                                                                                  \
		struct hspmd_cuda_gemm p = name(args);                                                                                     \
		return hspmd_cuda_gemm_workspace(cuda, &p);                                                                                \
	}                                                                                                                                  \
	static int prepare_##name(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,                \
	                          struct hspmd_error *err)                                                                                 \
	{                                                                                                                                  \
		struct hspmd_cuda_gemm p = name(args);                                                                                     \
		return hspmd_cuda_gemm_prepare(cuda, &p, &to->choice[WHOLE], err);                                                         \
	}

ONE_PRODUCT(forward)
ONE_PRODUCT(forward_add)
ONE_PRODUCT(grad_x)
ONE_PRODUCT(grad_x_add)

static int run_forward_gelu(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct hspmd_cuda_gemm p = forward_gelu(args);
	if (hspmd_cuda_gemm_exists(cuda, &p))
		return run(cuda, &p, args, err);
	const struct hspmd_view *y = &args->out[p.has_aux ? 1 : 0];
	static const struct hspmd_op_attr tanh_form;
	struct hspmd_kernel_args gelu = { .attr = &tanh_form, .input_count = 1, .output_count = 1, .in = { *y }, .out = { args->out[0] } };
	p = alone(args, p);
	p.d = y->data;
	return run(cuda, &p, args, err) ? -1 : hspmd_cuda_gelu.run(cuda, &gelu, err);
}

static int run_grad_x_gelu(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct hspmd_cuda_gemm p = grad_x_gelu(args);
	if (hspmd_cuda_gemm_exists(cuda, &p))
		return run(cuda, &p, args, err);
	static const struct hspmd_op_attr tanh_form;
	struct hspmd_kernel_args gelu = {
		.attr = &tanh_form, .input_count = 2, .output_count = 1, .in = { args->out[0], args->in[2] }, .out = { args->out[0] }
	};
	p = alone(args, p);
	return run(cuda, &p, args, err) ? -1 : hspmd_cuda_gelu_grad.run(cuda, &gelu, err);
}

static size_t aligned(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

static int64_t bias_length(const struct hspmd_kernel_args *args)
{
	int64_t rows = hspmd_cuda_row_count(&args->in[1]);
	return rows ? hspmd_cuda_elements(&args->in[0]) / rows : 0;
}

/* Computes the sums of dy in the product's epilogue. The epilogue cannot add to existing sums, so accumulated sums take a second step. */
static int run_grad_w_sums(struct hspmd_cuda *cuda, struct hspmd_cuda_gemm *p, const struct hspmd_kernel_args *args,
                           struct hspmd_error *err)
{
	float *own = (float *)((char *)args->workspace + aligned(hspmd_cuda_gemm_workspace(cuda, p)));
	if (args->out[1].accumulate)
		p->bgrad = own;
	if (run(cuda, p, args, err))
		return -1;
	struct hspmd_cuda_parts sums = { own, args->out[1].data, true };
	if (args->out[1].accumulate)
		hspmd_cuda_add_parts(cuda, &sums, 1, 1, bias_length(args));
	return 0;
}

static int run_grad_w(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct hspmd_cuda_gemm p = grad_w_sums(args);
	if (wants_sums(args) && p.d && hspmd_cuda_gemm_exists(cuda, &p))
		return run_grad_w_sums(cuda, &p, args, err);
	if (wants_sums(args))
		hspmd_cuda_column_sum(cuda, &args->in[0], hspmd_cuda_row_count(&args->in[1]), bias_length(args), args->out[1].data,
		                      args->out[1].accumulate, args->workspace);
	p = alone(args, p);
	return p.d ? run(cuda, &p, args, err) : 0;
}

/* The workspace of the product with its epilogue if it exists, else of the product alone. With less workspace than is fastest it may exist
 * with a choice that is made elsewhere, and not with another: then it is room for either. */
static size_t either_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, const struct hspmd_cuda_gemm *p)
{
	struct hspmd_cuda_gemm q = alone(args, *p);
	bool exists = hspmd_cuda_gemm_exists(cuda, p);
	size_t whole = exists || p->workspace_most ? hspmd_cuda_gemm_workspace(cuda, p) : 0,
	       product = !exists || p->workspace_most ? hspmd_cuda_gemm_workspace(cuda, &q) : 0;
	return whole > product ? whole : product;
}

static size_t forward_gelu_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct hspmd_cuda_gemm p = forward_gelu(args);
	return either_workspace(cuda, args, &p);
}

static size_t grad_x_gelu_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct hspmd_cuda_gemm p = grad_x_gelu(args);
	return either_workspace(cuda, args, &p);
}

/* Whatever epilogues cuBLASLt has now, choices that are made elsewhere do not change that. */
static int prepare_either(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, const struct hspmd_cuda_gemm *p,
                          struct hspmd_prepared *to, struct hspmd_error *err)
{
	struct hspmd_cuda_gemm q = alone(args, *p);
	if (hspmd_cuda_gemm_prepare(cuda, p, &to->choice[WHOLE], err))
		return -1;
	return hspmd_cuda_gemm_exists(cuda, p) ? 0 : hspmd_cuda_gemm_prepare(cuda, &q, &to->choice[ALONE], err);
}

static int prepare_forward_gelu(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,
                                struct hspmd_error *err)
{
	struct hspmd_cuda_gemm p = forward_gelu(args);
	return prepare_either(cuda, args, &p, to, err);
}

static int prepare_grad_x_gelu(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,
                               struct hspmd_error *err)
{
	struct hspmd_cuda_gemm p = grad_x_gelu(args);
	return prepare_either(cuda, args, &p, to, err);
}

/* The multiprocessors that the product leaves to what runs beside it; 0: nothing does. *other: if something does. */
static int left_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, int *other)
{
	struct hspmd_cuda_gemm p = alone(args, grad_w(args));
	*other = 0;
	return args->bytes_beside && args->out[0].rank > 0 ? hspmd_cuda_gemm_leave(cuda, &p, args->bytes_beside, other) : 0;
}

static int prepare_grad_w(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to, struct hspmd_error *err)
{
	struct hspmd_cuda_gemm p = grad_w_sums(args), q = alone(args, p);
	if (args->out[0].rank <= 0)
		return 0;
	int other;
	p.left = q.left = left_of(cuda, args, &other);
	to->apart = p.left > 0;
	return wants_sums(args) ? prepare_either(cuda, args, &p, to, err) : hspmd_cuda_gemm_prepare(cuda, &q, &to->choice[ALONE], err);
}

static size_t workspace_leaving(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, int left)
{
	struct hspmd_cuda_gemm p = grad_w_sums(args), q = alone(args, p);
	p.left = q.left = left;
	bool summed = wants_sums(args) && args->out[0].rank > 0, exists = summed && hspmd_cuda_gemm_exists(cuda, &p);
	size_t whole = 0;
	if (exists || (summed && p.workspace_most)) /* room for either, as in either_workspace */
		whole = aligned(hspmd_cuda_gemm_workspace(cuda, &p)) + (size_t)bias_length(args) * sizeof(float);
	if (exists && !p.workspace_most)
		return whole;
	size_t sums = wants_sums(args) ? hspmd_cuda_column_sum_workspace(cuda, hspmd_cuda_row_count(&args->in[1]), bias_length(args)) : 0;
	size_t product = args->out[0].rank > 0 ? hspmd_cuda_gemm_workspace(cuda, &q) : 0;
	product = sums > product ? sums : product;
	return whole > product ? whole : product;
}

static size_t grad_w_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	int other;
	left_of(cuda, args, &other); /* measured here, when a program is built */
	size_t whole = workspace_leaving(cuda, args, 0), held = other ? workspace_leaving(cuda, args, other) : 0;
	return held > whole ? held : whole;
}

const struct hspmd_cuda_kernel hspmd_cuda_linear = { .run = run_forward, .workspace = forward_workspace, .prepare = prepare_forward };
const struct hspmd_cuda_kernel hspmd_cuda_linear_add = { .run = run_forward_add,
	                                                 .workspace = forward_add_workspace,
	                                                 .prepare = prepare_forward_add };
const struct hspmd_cuda_kernel hspmd_cuda_linear_gelu = { .run = run_forward_gelu,
	                                                  .workspace = forward_gelu_workspace,
	                                                  .prepare = prepare_forward_gelu };
const struct hspmd_cuda_kernel hspmd_cuda_linear_grad_x = { .run = run_grad_x, .workspace = grad_x_workspace, .prepare = prepare_grad_x };
const struct hspmd_cuda_kernel hspmd_cuda_linear_grad_x_add = { .run = run_grad_x_add,
	                                                        .workspace = grad_x_add_workspace,
	                                                        .prepare = prepare_grad_x_add };
const struct hspmd_cuda_kernel hspmd_cuda_linear_grad_x_gelu = { .run = run_grad_x_gelu,
	                                                         .workspace = grad_x_gelu_workspace,
	                                                         .prepare = prepare_grad_x_gelu };
const struct hspmd_cuda_kernel hspmd_cuda_linear_grad_w = { .run = run_grad_w, .workspace = grad_w_workspace, .prepare = prepare_grad_w };
