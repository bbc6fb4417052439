/* SPDX-License-Identifier: Apache-2.0 */
/* Two-dimensional pooling: one thread per result, and backward one per element of x, which sums over the windows that contain it. */
#include "runtime/device/cuda/kernel.h"

#define THREADS 256

struct pool {
	int64_t planes, height, width, out_height, out_width, window[2], stride[2], padding[2];
	bool largest;
};

struct range {
	int64_t y0, y1, x0, x1;
};

/* The part of the window of result (i, j) that is within the plane. */
static __device__ __forceinline__ struct range range_of(const struct pool &p, int64_t i, int64_t j)
{
	int64_t top = i * p.stride[0] - p.padding[0], left = j * p.stride[1] - p.padding[1];
	struct range r = { top > 0 ? top : 0, top + p.window[0] < p.height ? top + p.window[0] : p.height, left > 0 ? left : 0,
		           left + p.window[1] < p.width ? left + p.window[1] : p.width };
	return r;
}

/* Number of the first of the largest elements. */
template <typename T> static __device__ __forceinline__ int64_t largest_of(const struct pool &p, const T *plane, const struct range &r)
{
	int64_t best = r.y0 * p.width + r.x0;
	for (int64_t y = r.y0; y < r.y1; y++)
		for (int64_t x = r.x0; x < r.x1; x++)
			if (to_float(plane[y * p.width + x]) > to_float(plane[best]))
				best = y * p.width + x;
	return best;
}

template <typename T> static __global__ void __launch_bounds__(THREADS) pool_kernel(struct pool p, const T *x, T *y)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, size = p.out_height * p.out_width, plane = at / size;
	if (plane >= p.planes)
		return;
	const T *from = x + plane * p.height * p.width;
	struct range r = range_of(p, at / p.out_width % p.out_height, at % p.out_width);
	if (p.largest) {
		y[at] = from[largest_of(p, from, r)];
		return;
	}
	float sum = 0.0f;
	for (int64_t i = r.y0; i < r.y1; i++)
		for (int64_t j = r.x0; j < r.x1; j++)
			sum += to_float(from[i * p.width + j]);
	y[at] = from_float<T>(sum / (float)(p.window[0] * p.window[1]));
}

template <typename T> static __global__ void __launch_bounds__(THREADS) pool_grad_kernel(struct pool p, const T *dy, const T *x, T *dx)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, size = p.height * p.width, plane = at / size, own = at % size;
	if (plane >= p.planes)
		return;
	int64_t row = own / p.width + p.padding[0], column = own % p.width + p.padding[1];
	int64_t first_i = row < p.window[0] ? 0 : (row - p.window[0]) / p.stride[0] + 1, last_i = row / p.stride[0];
	int64_t first_j = column < p.window[1] ? 0 : (column - p.window[1]) / p.stride[1] + 1, last_j = column / p.stride[1];
	float sum = 0.0f;
	for (int64_t i = first_i; i <= last_i && i < p.out_height; i++)
		for (int64_t j = first_j; j <= last_j && j < p.out_width; j++) {
			float share = to_float(dy[(plane * p.out_height + i) * p.out_width + j]);
			if (!p.largest)
				sum += share / (float)(p.window[0] * p.window[1]);
			else if (largest_of(p, x + plane * size, range_of(p, i, j)) == own)
				sum += share;
		}
	dx[at] = from_float<T>(sum);
}

static struct pool pool_of(const struct hspmd_op_attr *attr, const struct hspmd_view *x, const struct hspmd_view *y)
{
	struct pool p = {};
	p.planes = x->shape[0] * x->shape[1];
	p.height = x->shape[2];
	p.width = x->shape[3];
	p.out_height = y->shape[2];
	p.out_width = y->shape[3];
	p.largest = attr->kind == HSPMD_REDUCE_MAX;
	for (int d = 0; d < 2; d++) {
		p.window[d] = attr->numbers[d];
		p.stride[d] = attr->numbers[2 + d];
		p.padding[d] = attr->numbers[4 + d];
	}
	return p;
}

template <typename T> static int run_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	bool backward = args->input_count > 1;
	struct pool p = pool_of(args->attr, &args->in[backward], backward ? &args->in[0] : &args->out[0]);
	int64_t count = hspmd_cuda_elements(&args->out[0]);
	auto *forward_kernel = pool_kernel<T>;
	auto *backward_kernel = pool_grad_kernel<T>;
	if (count && backward)
		LAUNCH(backward_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, cuda->stream, p, (const T *)args->in[0].data,
		       (const T *)args->in[1].data, (T *)args->out[0].data);
	else if (count)
		LAUNCH(forward_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, cuda->stream, p, (const T *)args->in[0].data,
		       (T *)args->out[0].data);
	return 0;
}

static int pool(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, run_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_pool = { pool, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_pool_grad = { pool, NULL };
