/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/kernel.h"

#define THREADS 256

/* Each row of the packed tensor holds the query, key and value of a position. One thread per element of these, or per 16 bytes if the rows
 * allow it. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) unpack_kernel(const T *packed, T *q, T *k, T *v, int64_t rows, int64_t width)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, part = at / width % 3;
	if (at >= 3 * rows * width)
		return;
	(part == 0 ? q : part == 1 ? k : v)[at / (3 * width) * width + at % width] = packed[at];
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) pack_kernel(T *packed, const T *q, const T *k, const T *v, int64_t rows, int64_t width)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, part = at / width % 3;
	if (at >= 3 * rows * width)
		return;
	packed[at] = (part == 0 ? q : part == 1 ? k : v)[at / (3 * width) * width + at % width];
}

template <typename T> static void launch_unpack(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, int64_t rows, int64_t width)
{
	LAUNCH(unpack_kernel<T>, (unsigned)ceil_div(3 * rows * width, THREADS), THREADS, 0, cuda->stream, (const T *)args->in[0].data,
	       (T *)args->out[0].data, (T *)args->out[1].data, (T *)args->out[2].data, rows, width);
}

template <typename T> static void launch_pack(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, int64_t rows, int64_t width)
{
	LAUNCH(pack_kernel<T>, (unsigned)ceil_div(3 * rows * width, THREADS), THREADS, 0, cuda->stream, (T *)args->out[0].data,
	       (const T *)args->in[0].data, (const T *)args->in[1].data, (const T *)args->in[2].data, rows, width);
}

template <typename T> static int run_unpack(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	int64_t rows = hspmd_cuda_row_count(&args->out[0]), width = hspmd_cuda_row_length(&args->out[0]);
	if (rows && width && is_aligned16<T>(width))
		launch_unpack<pack<float>>(cuda, args, rows, width / pack<T>::count);
	else if (rows && width)
		launch_unpack<T>(cuda, args, rows, width);
	return 0;
}

template <typename T> static int run_pack(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	int64_t rows = hspmd_cuda_row_count(&args->in[0]), width = hspmd_cuda_row_length(&args->in[0]);
	if (rows && width && is_aligned16<T>(width))
		launch_pack<pack<float>>(cuda, args, rows, width / pack<T>::count);
	else if (rows && width)
		launch_pack<T>(cuda, args, rows, width);
	return 0;
}

static int split_qkv(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, run_unpack, cuda, args);
}

static int split_qkv_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, run_pack, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_split_qkv = { split_qkv, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_split_qkv_grad = { split_qkv_grad, NULL };
