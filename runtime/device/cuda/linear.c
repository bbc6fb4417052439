/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers: y = x w + bias, and gradients. Rows are all dimensions of x but the last; columns all of w's output dimensions together. */
#include "runtime/device/cuda/cuda.h"
#include "runtime/device/cuda/product.h"

static struct hspmd_cuda_product forward(const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[0], *w = &args->in[1];
	int64_t k = hspmd_cuda_row_length(x);
	return (struct hspmd_cuda_product){
		.m = hspmd_cuda_row_count(x), .n = k ? hspmd_cuda_elements(w) / k : 0, .k = k, .a = x->data, .b = w->data, .d = args->out[0].data,
		.turn_b = !args->attr->transposed, .type = x->dtype, .d_type = args->out[0].dtype,
		/* Where K is split, one part adds the bias. */
		.bias = args->input_count > 2 && args->in[2].rank >= 0 && x->start[x->rank - 1] == 0 ? args->in[2].data : NULL,
		.has_bias = args->input_count > 2 && args->in[2].rank >= 0 && x->start[x->rank - 1] == 0,
	};
}

static struct hspmd_cuda_product grad_x(const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *dy = &args->in[0], *w = &args->in[1], *dx = &args->out[0];
	int64_t k = hspmd_cuda_row_length(dx);
	return (struct hspmd_cuda_product){
		.m = hspmd_cuda_row_count(dx), .n = k, .k = k ? hspmd_cuda_elements(w) / k : 0, .a = dy->data, .b = w->data, .d = dx->data,
		.turn_b = args->attr->transposed, .accumulate = dx->accumulate, .type = dy->dtype, .d_type = dx->dtype,
	};
}

static struct hspmd_cuda_product grad_w(const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *dy = &args->in[0], *x = &args->in[1], *dw = &args->out[0];
	int64_t k = hspmd_cuda_row_length(x), rows = hspmd_cuda_row_count(x), n = rows ? hspmd_cuda_elements(dy) / rows : 0;
	bool transposed = args->attr->transposed;
	return (struct hspmd_cuda_product){
		.m = transposed ? k : n, .n = transposed ? n : k, .k = rows, .a = transposed ? x->data : dy->data, .b = transposed ? dy->data : x->data,
		.d = dw->data, .turn_a = true, .accumulate = dw->accumulate, .type = x->dtype, .d_type = dw->dtype,
	};
}

static int run_forward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct hspmd_cuda_product p = forward(args);
	return hspmd_cuda_multiply(cuda, &p, args->workspace, args->workspace_bytes, err);
}

static int run_grad_x(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	struct hspmd_cuda_product p = grad_x(args);
	return hspmd_cuda_multiply(cuda, &p, args->workspace, args->workspace_bytes, err);
}

static int run_grad_w(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	const struct hspmd_view *dy = &args->in[0];
	int64_t rows = hspmd_cuda_row_count(&args->in[1]);
	if (args->output_count > 1 && args->out[1].data)
		hspmd_cuda_sum_columns(cuda, dy, rows, rows ? hspmd_cuda_elements(dy) / rows : 0, args->out[1].data, args->out[1].accumulate,
				       args->workspace);
	if (!args->out[0].data)
		return 0;
	struct hspmd_cuda_product p = grad_w(args);
	return hspmd_cuda_multiply(cuda, &p, args->workspace, args->workspace_bytes, err);
}

static size_t forward_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct hspmd_cuda_product p = forward(args);
	return hspmd_cuda_product_workspace(cuda, &p);
}

static size_t grad_x_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct hspmd_cuda_product p = grad_x(args);
	return hspmd_cuda_product_workspace(cuda, &p);
}

static size_t grad_w_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct hspmd_cuda_product p = grad_w(args);
	const struct hspmd_view *dy = &args->in[0];
	int64_t rows = hspmd_cuda_row_count(&args->in[1]);
	size_t sums = rows ? hspmd_cuda_column_workspace(cuda, rows, hspmd_cuda_elements(dy) / rows) : 0, product = hspmd_cuda_product_workspace(cuda, &p);
	return sums > product ? sums : product;
}

const struct hspmd_cuda_kernel hspmd_cuda_linear = { run_forward, forward_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_linear_grad_x = { run_grad_x, grad_x_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_linear_grad_w = { run_grad_w, grad_w_workspace };
