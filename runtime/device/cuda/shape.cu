/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that only move elements: other dimensions, another order, a part, several in one, repeated. */
#include "runtime/device/cuda/loop.h"

template <typename T> static __global__ void __launch_bounds__(LOOP_THREADS) copy_kernel(struct loop l, T *to, const T *from, float scale)
{
	int64_t i = (int64_t)blockIdx.x * LOOP_THREADS + threadIdx.x, at[LOOP_BUFFERS];
	if (i >= l.count)
		return;
	loop_at(l, i, 2, at);
	to[at[0]] = scale == 1.0f ? from[at[1]] : from_float<T>(scale * to_float(from[at[1]]));
}

template <typename T> static void copy_of(struct hspmd_cuda *cuda, const struct loop *l, void *to, const void *from, double scale)
{
	auto *kernel = copy_kernel<T>;
	LAUNCH(kernel, loop_grid(l->count), LOOP_THREADS, 0, cuda->stream, *l, (T *)to, (const T *)from, (float)scale);
}

static void copy(struct hspmd_cuda *cuda, const struct loop *l, const struct hspmd_view *to, const struct hspmd_view *from, double scale)
{
	if (l->count)
		BY_TYPE(from->dtype, copy_of, cuda, l, to->data, from->data, scale);
}

static int reshape(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	const struct hspmd_view *x = &args->in[0];
	if (args->out[0].data == x->data)
		return 0;
	size_t bytes = (size_t)hspmd_cuda_elements(x) * hspmd_cuda_dtype_bytes(x->dtype);
	cudaError_t status = cudaMemcpyAsync(args->out[0].data, x->data, bytes, cudaMemcpyDeviceToDevice, cuda->stream);
	return status ? hspmd_cuda_failed(status, "copying a tensor", err) : 0;
}

static int transpose(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	struct loop l = loop_over(&args->out[0], 0);
	int64_t step[HSPMD_MAX_RANK];
	packed_steps(&args->in[0], step);
	for (int d = 0; d < args->in[0].rank; d++)
		l.step[1][d] = step[args->attr->numbers[d]];
	copy(cuda, &l, &args->out[0], &args->in[0], 1);
	return 0;
}

/* A box within a larger buffer; dimensions that are not cut may be split. */
static int64_t begin_of(const struct hspmd_view *large, const int64_t *begin, int64_t *step)
{
	int64_t base = 0;
	packed_steps(large, step);
	for (int d = 0; d < large->rank; d++)
		base += begin[d] * step[d];
	return base;
}

static int slice(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	struct loop l = loop_over(&args->out[0], 0);
	l.base[1] = begin_of(&args->in[0], args->attr->numbers, l.step[1]);
	copy(cuda, &l, &args->out[0], &args->in[0], 1);
	return 0;
}

static int pad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	const struct hspmd_view *y = &args->out[0];
	struct loop l = loop_over(&args->in[0], 1);
	l.base[0] = begin_of(y, args->attr->numbers, l.step[0]);
	cudaError_t status = cudaMemsetAsync(y->data, 0, (size_t)hspmd_cuda_elements(y) * hspmd_cuda_dtype_bytes(y->dtype), cuda->stream);
	if (status)
		return hspmd_cuda_failed(status, "clearing a tensor", err);
	copy(cuda, &l, y, &args->in[0], 1);
	return 0;
}

static int concat(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	int64_t begin[HSPMD_MAX_RANK] = {}, axis = args->attr->numbers[0];
	for (int i = 0; i < args->input_count; i++) {
		struct loop l = loop_over(&args->in[i], 1);
		l.base[0] = begin_of(&args->out[0], begin, l.step[0]);
		begin[axis] += args->in[i].shape[axis];
		copy(cuda, &l, &args->out[0], &args->in[i], 1);
	}
	return 0;
}

static int broadcast(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	const struct hspmd_view *x = &args->in[0], *y = &args->out[0];
	const struct hspmd_op_attr *attr = args->attr;
	struct loop l = loop_over(y, 0);
	int64_t step[HSPMD_MAX_RANK];
	packed_steps(x, step);
	for (int d = y->rank - 1, own = x->rank - 1; d >= 0; d--) {
		bool repeated = attr->numbers[0] >> d & 1;
		l.step[1][d] = repeated || own < 0 ? 0 : step[own];
		own -= !repeated || attr->numbers[1];
	}
	copy(cuda, &l, y, x, attr->scale);
	return 0;
}

const struct hspmd_cuda_kernel hspmd_cuda_reshape = { reshape, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_reshard = { reshape, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_transpose = { transpose, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_slice = { slice, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_pad = { pad, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_concat = { concat, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_broadcast = { broadcast, NULL };
