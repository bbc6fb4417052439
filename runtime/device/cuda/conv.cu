/* SPDX-License-Identifier: Apache-2.0 */
/* Two-dimensional convolution as products of matrices: the windows of a sample's output positions are written as columns [channels and
 * window][positions], of which the weight, [outputs][channels and window], is a linear function. */
#include "runtime/device/cuda/gemm.h"
#include "runtime/device/cuda/kernel.h"

#define THREADS 256

struct conv {
	int64_t samples, groups, inputs, outputs; /* of one group */
	int64_t height, width, window_height, window_width, out_width;
	int64_t depth, positions; /* rows of the columns; output positions */
	int64_t stride[2], padding[2], dilation[2];
};

static struct conv conv_of(const struct hspmd_op_attr *attr, const struct hspmd_view *x, const struct hspmd_view *w,
                           const struct hspmd_view *y)
{
	struct conv c = {};
	c.samples = x->shape[0];
	c.inputs = attr->groups > 1 ? w->shape[1] : x->shape[1];
	c.groups = attr->groups > 1 ? x->shape[1] / c.inputs : 1;
	c.outputs = w->shape[0] / c.groups;
	c.height = x->shape[2];
	c.width = x->shape[3];
	c.window_height = w->shape[2];
	c.window_width = w->shape[3];
	c.out_width = y->shape[3];
	c.depth = c.inputs * c.window_height * c.window_width;
	c.positions = y->shape[2] * y->shape[3];
	for (int d = 0; d < 2; d++) {
		c.stride[d] = attr->numbers[d];
		c.padding[d] = attr->numbers[2 + d];
		c.dilation[d] = attr->numbers[4 + d];
	}
	return c;
}

template <typename T> static __global__ void __launch_bounds__(THREADS) columns_kernel(struct conv c, const T *x, T *columns)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = at / c.positions, position = at % c.positions;
	if (row >= c.depth)
		return;
	int64_t channel = row / (c.window_height * c.window_width);
	int64_t i = position / c.out_width * c.stride[0] + row / c.window_width % c.window_height * c.dilation[0] - c.padding[0];
	int64_t j = position % c.out_width * c.stride[1] + row % c.window_width * c.dilation[1] - c.padding[1];
	bool inside = i >= 0 && i < c.height && j >= 0 && j < c.width;
	columns[at] = inside ? x[(channel * c.height + i) * c.width + j] : from_float<T>(0.0f);
}

/* The sum, in one order, of all columns' elements that an element of x was written to. */
template <typename T> static __global__ void __launch_bounds__(THREADS) collect_kernel(struct conv c, const T *columns, T *dx)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, channel = at / (c.height * c.width), height = c.positions / c.out_width;
	if (channel >= c.inputs)
		return;
	float sum = 0.0f;
	for (int64_t p = 0; p < c.window_height; p++)
		for (int64_t q = 0; q < c.window_width; q++) {
			int64_t i = at / c.width % c.height + c.padding[0] - p * c.dilation[0],
			        j = at % c.width + c.padding[1] - q * c.dilation[1];
			if (i < 0 || j < 0 || i % c.stride[0] || j % c.stride[1])
				continue;
			i /= c.stride[0];
			j /= c.stride[1];
			if (i < height && j < c.out_width)
				sum += to_float(columns[((channel * c.window_height + p) * c.window_width + q) * c.positions +
				                        i * c.out_width + j]);
		}
	dx[at] = from_float<T>(sum);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) bias_kernel(T *y, const T *bias, int64_t count, int64_t positions, int64_t outputs)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (i < count)
		y[i] = from_float<T>(to_float(y[i]) + to_float(bias[i / positions % outputs]));
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
        bias_grad_kernel(const T *dy, float *dbias, int64_t samples, int64_t outputs, int64_t positions, bool add)
{
	__shared__ float room[WARP];
	float sum = 0.0f;
	for (int64_t i = threadIdx.x; i < samples * positions; i += THREADS)
		sum += to_float(dy[(i / positions * outputs + blockIdx.x) * positions + i % positions]);
	sum = block_reduce<Sum>(sum, 0.0f, room);
	if (threadIdx.x == 0)
		dbias[blockIdx.x] = (add ? dbias[blockIdx.x] : 0.0f) + sum;
}

/* ---- for the host */

static unsigned grid_of(int64_t count)
{
	return (unsigned)ceil_div(count, THREADS);
}

static size_t columns_bytes(const struct conv *c, enum hspmd_dtype type)
{
	return ((size_t)(c->depth * c->positions) * hspmd_cuda_dtype_bytes(type) + 255) / 256 * 256;
}

/* Offset in elements of a sample's group. */
static int64_t x_at(const struct conv *c, int64_t i)
{
	return i * c->inputs * c->height * c->width;
}

static int64_t y_at(const struct conv *c, int64_t i)
{
	return i * c->outputs * c->positions;
}

static int64_t w_at(const struct conv *c, int64_t i)
{
	return i % c->groups * c->outputs * c->depth;
}

/* y = w columns */
static struct hspmd_cuda_gemm forward_gemm(const struct conv *c, enum hspmd_dtype type)
{
	struct hspmd_cuda_gemm p = {};
	p.m = c->outputs;
	p.n = c->positions;
	p.k = c->depth;
	p.type = p.d_type = type;
	return p;
}

/* columns' gradient = transpose of w times dy */
static struct hspmd_cuda_gemm grad_x_gemm(const struct conv *c, enum hspmd_dtype type)
{
	struct hspmd_cuda_gemm p = {};
	p.m = c->depth;
	p.n = c->positions;
	p.k = c->outputs;
	p.trans_a = true;
	p.type = p.d_type = type;
	return p;
}

/* dw += dy times transpose of columns */
static struct hspmd_cuda_gemm grad_w_gemm(const struct conv *c, enum hspmd_dtype type)
{
	struct hspmd_cuda_gemm p = {};
	p.m = c->outputs;
	p.n = c->depth;
	p.k = c->positions;
	p.trans_b = true;
	p.type = type;
	p.d_type = HSPMD_F32;
	return p;
}

/* Of a prepared call: the choice of the product, and of one that is added to what is there. */
static int multiply(struct hspmd_cuda *cuda, struct hspmd_cuda_gemm *p, const struct hspmd_kernel_args *args, size_t columns,
                    struct hspmd_error *err)
{
	p->tf32 = args->tf32;
	p->workspace_most = args->workspace_most;
	p->choice = args->prepared ? (const struct hspmd_cuda_gemm_choice *)args->prepared->choice[p->accumulate] : NULL;
	return hspmd_cuda_gemm_run(cuda, p, (char *)args->workspace + columns, args->workspace_bytes - columns, err);
}

template <typename T> static void write_columns(struct hspmd_cuda *cuda, const struct conv *c, const T *x, T *columns)
{
	auto *kernel = columns_kernel<T>;
	LAUNCH(kernel, grid_of(c->depth * c->positions), THREADS, 0, cuda->stream, *c, x, columns);
}

template <typename T> static int forward_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	const struct hspmd_view *x = &args->in[0], *y = &args->out[0];
	struct conv c = conv_of(args->attr, x, &args->in[1], y);
	struct hspmd_cuda_gemm p = forward_gemm(&c, x->dtype);
	auto *add_bias = bias_kernel<T>;
	/* If input channels are split, the part that starts at 0 adds the bias. */
	bool has_bias = args->input_count > 2 && args->in[2].rank >= 0 && (args->attr->groups > 1 || x->start[1] == 0);
	for (int64_t i = 0; i < c.samples * c.groups; i++) {
		write_columns(cuda, &c, (const T *)x->data + x_at(&c, i), (T *)args->workspace);
		p.a = (const T *)args->in[1].data + w_at(&c, i);
		p.b = args->workspace;
		p.d = (T *)y->data + y_at(&c, i);
		if (multiply(cuda, &p, args, columns_bytes(&c, x->dtype), err))
			return -1;
	}
	int64_t count = hspmd_cuda_elements(y);
	if (has_bias && count)
		LAUNCH(add_bias, grid_of(count), THREADS, 0, cuda->stream, (T *)y->data, (const T *)args->in[2].data, count, c.positions,
		       y->shape[1]);
	return 0;
}

template <typename T> static int grad_x_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	const struct hspmd_view *dx = &args->out[0];
	struct conv c = conv_of(args->attr, dx, &args->in[1], &args->in[0]);
	struct hspmd_cuda_gemm p = grad_x_gemm(&c, dx->dtype);
	auto *collect = collect_kernel<T>;
	for (int64_t i = 0; i < c.samples * c.groups; i++) {
		p.a = (const T *)args->in[1].data + w_at(&c, i);
		p.b = (const T *)args->in[0].data + y_at(&c, i);
		p.d = args->workspace;
		if (multiply(cuda, &p, args, columns_bytes(&c, dx->dtype), err))
			return -1;
		LAUNCH(collect, grid_of(c.inputs * c.height * c.width), THREADS, 0, cuda->stream, c, (const T *)args->workspace,
		       (T *)dx->data + x_at(&c, i));
	}
	return 0;
}

/* The weight's shape if its gradient is not wanted. */
static struct hspmd_view weight_view(const struct hspmd_kernel_args *args)
{
	struct hspmd_view none = {};
	none.rank = 4;
	none.shape[0] = args->in[0].shape[1];
	none.shape[1] = none.shape[2] = none.shape[3] = 1;
	return args->out[0].rank == 4 ? args->out[0] : none;
}

template <typename T> static int grad_w_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	const struct hspmd_view *dy = &args->in[0], *x = &args->in[1], w = weight_view(args);
	struct conv c = conv_of(args->attr, x, &w, dy);
	struct hspmd_cuda_gemm p = grad_w_gemm(&c, x->dtype);
	auto *bias = bias_grad_kernel<T>;
	for (int64_t i = 0; w.data && i < c.samples * c.groups; i++) {
		write_columns(cuda, &c, (const T *)x->data + x_at(&c, i), (T *)args->workspace);
		p.a = (const T *)dy->data + y_at(&c, i);
		p.b = args->workspace;
		p.d = (float *)w.data + w_at(&c, i);
		p.accumulate = w.accumulate || i >= c.groups;
		if (multiply(cuda, &p, args, columns_bytes(&c, x->dtype), err))
			return -1;
	}
	if (args->output_count > 1 && args->out[1].data && dy->shape[1])
		LAUNCH(bias, (unsigned)dy->shape[1], THREADS, 0, cuda->stream, (const T *)dy->data, (float *)args->out[1].data, c.samples,
		       dy->shape[1], c.positions, args->out[1].accumulate);
	return 0;
}

static int conv(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return BY_TYPE(args->in[0].dtype, forward_of, cuda, args, err);
}

static int conv_grad_x(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return BY_TYPE(args->in[0].dtype, grad_x_of, cuda, args, err);
}

static int conv_grad_w(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	for (int o = 0; o < args->output_count; o++)
		if (args->out[o].data && args->out[o].dtype != HSPMD_F32)
			return hspmd_fail(err, "gradients of a convolution's weight and bias are computed in F32");
	return BY_TYPE(args->in[0].dtype, grad_w_of, cuda, args, err);
}

/* ---- before a call: the product of each operator */

static struct hspmd_cuda_gemm forward_product(const struct hspmd_kernel_args *args, struct conv *c)
{
	*c = conv_of(args->attr, &args->in[0], &args->in[1], &args->out[0]);
	struct hspmd_cuda_gemm p = forward_gemm(c, args->in[0].dtype);
	p.tf32 = args->tf32;
	p.workspace_most = args->workspace_most;
	return p;
}

static struct hspmd_cuda_gemm grad_x_product(const struct hspmd_kernel_args *args, struct conv *c)
{
	*c = conv_of(args->attr, &args->out[0], &args->in[1], &args->in[0]);
	struct hspmd_cuda_gemm p = grad_x_gemm(c, args->in[0].dtype);
	p.tf32 = args->tf32;
	p.workspace_most = args->workspace_most;
	return p;
}

static struct hspmd_cuda_gemm grad_w_product(const struct hspmd_kernel_args *args, struct conv *c)
{
	struct hspmd_view w = weight_view(args);
	*c = conv_of(args->attr, &args->in[1], &w, &args->in[0]);
	struct hspmd_cuda_gemm p = grad_w_gemm(c, args->in[0].dtype);
	p.tf32 = args->tf32;
	p.workspace_most = args->workspace_most;
	return p;
}

static size_t workspace_of(struct hspmd_cuda *cuda, const struct conv *c, const struct hspmd_cuda_gemm *p)
{
	return columns_bytes(c, p->type) + hspmd_cuda_gemm_workspace(cuda, p);
}

static size_t conv_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct conv c;
	struct hspmd_cuda_gemm p = forward_product(args, &c);
	return workspace_of(cuda, &c, &p);
}

static size_t conv_grad_x_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct conv c;
	struct hspmd_cuda_gemm p = grad_x_product(args, &c);
	return workspace_of(cuda, &c, &p);
}

/* The first sample's product may overwrite what the others add to: cuBLAS may choose a different algorithm for each. */
static size_t conv_grad_w_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct conv c;
	struct hspmd_cuda_gemm p = grad_w_product(args, &c);
	size_t first = workspace_of(cuda, &c, &p);
	p.accumulate = true;
	size_t next = workspace_of(cuda, &c, &p);
	return next > first ? next : first;
}

static int prepare_conv(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to, struct hspmd_error *err)
{
	struct conv c;
	struct hspmd_cuda_gemm p = forward_product(args, &c);
	return hspmd_cuda_gemm_prepare(cuda, &p, &to->choice[0], err);
}

static int prepare_conv_grad_x(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,
                               struct hspmd_error *err)
{
	struct conv c;
	struct hspmd_cuda_gemm p = grad_x_product(args, &c);
	return hspmd_cuda_gemm_prepare(cuda, &p, &to->choice[0], err);
}

static int prepare_conv_grad_w(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to,
                               struct hspmd_error *err)
{
	struct conv c;
	struct hspmd_cuda_gemm p = grad_w_product(args, &c);
	if (hspmd_cuda_gemm_prepare(cuda, &p, &to->choice[0], err))
		return -1;
	p.accumulate = true;
	return hspmd_cuda_gemm_prepare(cuda, &p, &to->choice[1], err);
}

const struct hspmd_cuda_kernel hspmd_cuda_conv = { conv, conv_workspace, NULL, prepare_conv };
const struct hspmd_cuda_kernel hspmd_cuda_conv_grad_x = { conv_grad_x, conv_grad_x_workspace, NULL, prepare_conv_grad_x };
const struct hspmd_cuda_kernel hspmd_cuda_conv_grad_w = { conv_grad_w, conv_grad_w_workspace, NULL, prepare_conv_grad_w };
