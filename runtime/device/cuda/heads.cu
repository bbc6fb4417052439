/* SPDX-License-Identifier: Apache-2.0 */
/* Joins and cuts the elements of heads: one thread per element of the result. */
#include "runtime/device/cuda/kernel.h"

#define THREADS 256

/* Where a thread's element is: `size` elements per head, of which the first `part` are of one tensor. */
struct heads {
	int64_t rows, count, size, part;
	bool shared; /* all heads have the same rest */
};

template <typename T> static __global__ void __launch_bounds__(THREADS) join_kernel(struct heads n, const T *a, const T *b, T *y)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, i = at % n.size, head = at / n.size, rest = n.size - n.part;
	if (head >= n.rows * n.count)
		return;
	if (i < n.part)
		y[at] = a[head * n.part + i];
	else
		y[at] = b ? b[(n.shared ? head / n.count : head) * rest + i - n.part] : from_float<T>(0.0f);
}

template <typename T> static __global__ void __launch_bounds__(THREADS) first_kernel(struct heads n, const T *y, T *a)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (at < n.rows * n.count * n.part)
		a[at] = y[at / n.part * n.size + at % n.part];
}

template <typename T> static __global__ void __launch_bounds__(THREADS) rest_kernel(struct heads n, const T *y, T *b)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, rest = n.size - n.part, head = at / rest, i = n.part + at % rest;
	if (head >= (n.shared ? n.rows : n.rows * n.count))
		return;
	float sum = 0;
	for (int64_t h = 0; h < (n.shared ? n.count : 1); h++)
		sum += to_float(y[((n.shared ? head * n.count : head) + h) * n.size + i]);
	b[at] = from_float<T>(sum);
}

static struct heads heads_of(const struct hspmd_kernel_args *args, int64_t size)
{
	struct heads n = {};
	n.rows = hspmd_cuda_row_count(&args->in[0]);
	n.count = hspmd_cuda_row_length(&args->in[0]) / size;
	n.size = args->attr->head_dim;
	n.part = args->attr->part;
	n.shared = args->attr->whole_kv;
	return n;
}

static unsigned grid_of(int64_t elements)
{
	return (unsigned)ceil_div(elements, THREADS);
}

template <typename T> static int join_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct heads n = heads_of(args, args->attr->part);
	const void *b = args->input_count > 1 && args->in[1].rank >= 0 ? args->in[1].data : NULL;
	auto *kernel = join_kernel<T>;
	if (n.rows * n.count > 0)
		LAUNCH(kernel, grid_of(n.rows * n.count * n.size), THREADS, 0, cuda->stream, n, (const T *)args->in[0].data, (const T *)b,
		       (T *)args->out[0].data);
	return 0;
}

template <typename T> static int cut_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct heads n = heads_of(args, args->attr->head_dim);
	int64_t rest = (n.shared ? n.rows : n.rows * n.count) * (n.size - n.part);
	auto *first = first_kernel<T>;
	auto *other = rest_kernel<T>;
	if (args->out[0].data && n.rows * n.count > 0)
		LAUNCH(first, grid_of(n.rows * n.count * n.part), THREADS, 0, cuda->stream, n, (const T *)args->in[0].data,
		       (T *)args->out[0].data);
	if (args->output_count > 1 && args->out[1].data && rest)
		LAUNCH(other, grid_of(rest), THREADS, 0, cuda->stream, n, (const T *)args->in[0].data, (T *)args->out[1].data);
	return 0;
}

static int join_heads(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, join_of, cuda, args);
}

static int cut_heads(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, cut_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_join_heads = { join_heads, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_join_heads_grad = { cut_heads, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_take_heads = { cut_heads, NULL };
