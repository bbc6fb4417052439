/* SPDX-License-Identifier: Apache-2.0 */
/* Rows by number, and the sum of gradients into them: there a thread has one column of one batch and takes the numbers in order. */
#include "runtime/device/cuda/loop.h"

struct rows {
	int64_t batches, chosen, count, first, width; /* per batch: numbers; rows of x that are here, from number `first` on */
};

static struct rows rows_of(const struct hspmd_kernel_args *args, const struct hspmd_view *x)
{
	int batch = (int)args->attr->numbers[0];
	struct rows r = {};
	r.batches = r.chosen = r.width = 1;
	for (int d = 0; d < batch; d++)
		r.batches *= x->shape[d];
	for (int d = batch; d < args->in[1].rank; d++)
		r.chosen *= args->in[1].shape[d];
	for (int d = batch + 1; d < x->rank; d++)
		r.width *= x->shape[d];
	r.count = x->shape[batch];
	r.first = x->start[batch];
	return r;
}

template <typename T>
static __global__ void __launch_bounds__(LOOP_THREADS) take_kernel(struct rows r, const T *x, const int32_t *index, T *y)
{
	int64_t i = (int64_t)blockIdx.x * LOOP_THREADS + threadIdx.x, k = i / r.width;
	if (k >= r.batches * r.chosen)
		return;
	int64_t row = index[k] - r.first;
	y[i] = row >= 0 && row < r.count ? x[(k / r.chosen * r.count + row) * r.width + i % r.width] : from_float<T>(0.0f);
}

template <typename T, typename U>
static __global__ void __launch_bounds__(LOOP_THREADS) add_kernel(struct rows r, const T *dy, const int32_t *index, U *dx, bool add)
{
	int64_t i = (int64_t)blockIdx.x * LOOP_THREADS + threadIdx.x, batch = i / r.width, j = i % r.width;
	if (batch >= r.batches)
		return;
	U *to = dx + batch * r.count * r.width + j;
	for (int64_t n = 0; !add && n < r.count; n++)
		to[n * r.width] = from_float<U>(0.0f);
	for (int64_t k = batch * r.chosen; k < (batch + 1) * r.chosen; k++) {
		int64_t row = index[k] - r.first;
		if (row >= 0 && row < r.count)
			to[row * r.width] = from_float<U>(to_float(to[row * r.width]) + to_float(dy[k * r.width + j]));
	}
}

template <typename T> static int take_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct rows r = rows_of(args, &args->in[0]);
	int64_t count = r.batches * r.chosen * r.width;
	auto *kernel = take_kernel<T>;
	if (count)
		LAUNCH(kernel, loop_grid(count), LOOP_THREADS, 0, cuda->stream, r, (const T *)args->in[0].data,
		       (const int32_t *)args->in[1].data, (T *)args->out[0].data);
	return 0;
}

template <typename T, typename U> static int add_to(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct rows r = rows_of(args, &args->in[2]);
	auto *kernel = add_kernel<T, U>;
	if (r.batches && r.width)
		LAUNCH(kernel, loop_grid(r.batches * r.width), LOOP_THREADS, 0, cuda->stream, r, (const T *)args->in[0].data,
		       (const int32_t *)args->in[1].data, (U *)args->out[0].data, args->out[0].accumulate);
	return 0;
}

template <typename T> static int add_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	return args->out[0].dtype == HSPMD_F32 ? add_to<T, float>(cuda, args) : add_to<T, T>(cuda, args);
}

static int gather(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, take_of, cuda, args);
}

static int gather_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, add_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_gather = { gather, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_gather_grad = { gather_grad, NULL };
