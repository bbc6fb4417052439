/* SPDX-License-Identifier: Apache-2.0 */
/* Token and position embeddings and their gradients. One block sums the gradient of a table row over the tokens that refer to it, in their
 * order. */
#include "runtime/device/cuda/kernel.h"
#include "runtime/device/cuda/stable_sort.h"

#define MOST_THREADS 256
#define AHEAD 8 /* rows whose loads are in progress at a time */

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS)
        embed_kernel(const int32_t *tokens, const T *table, T *x, int64_t first, int64_t table_rows, int64_t width, bool aligned)
{
	const int n = pack<T>::count;
	int64_t r = blockIdx.x, row = tokens[r] - first;
	bool here = row >= 0 && row < table_rows;
	for (int64_t j = (int64_t)threadIdx.x * n; j < width; j += (int64_t)blockDim.x * n) {
		float v[n] = {};
		if (here)
			load_pack(v, table + row * width, j, width, aligned);
		store_pack(x + r * width, v, j, width, aligned);
	}
}

/* Loads the sums accumulated so far in a gradient's row, or zeros. A row of complete packs of T also consists of complete packs of
 * float. */
static __device__ __forceinline__ void take_sums(float *sum, int n, const float *row, int64_t j, int64_t width, bool aligned,
                                                 bool accumulate)
{
	for (int i = 0; i < n; i += pack<float>::count)
		if (accumulate)
			load_pack(sum + i, row, j + i, width, aligned);
		else
			sum[i] = sum[i + 1] = sum[i + 2] = sum[i + 3] = 0;
}

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS) embed_grad_kernel(const T *dx, float *dtable, const int32_t *first,
                                                                         const int32_t *list, int64_t width, bool aligned, bool accumulate)
{
	const int n = pack<T>::count;
	int64_t row = blockIdx.x;
	int begin = first[row], end = first[row + 1];
	if (begin == end && accumulate)
		return;
	for (int64_t j = (int64_t)threadIdx.x * n; j < width; j += (int64_t)blockDim.x * n) {
		float sum[n];
		take_sums(sum, n, dtable + row * width, j, width, aligned, accumulate);
		for (int at = begin; at < end; at += AHEAD) {
			float v[AHEAD][n];
#pragma unroll
			for (int k = 0; k < AHEAD; k++)
				if (at + k < end)
					load_pack(v[k], dx + (int64_t)list[at + k] * width, j, width, aligned);
#pragma unroll
			for (int k = 0; k < AHEAD; k++)
				for (int i = 0; i < n && at + k < end; i++)
					sum[i] += v[k][i];
		}
		for (int i = 0; i < n; i += pack<float>::count)
			store_pack(dtable + row * width, sum + i, j + i, width, aligned);
	}
}

/* x + table[position]; one block per row. shift: table row of the first local position. */
template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS)
        position_kernel(const T *x, const T *table, T *y, int64_t length, int64_t shift, int64_t width, bool aligned)
{
	const int n = pack<T>::count;
	int64_t r = blockIdx.x, row = r % length + shift;
	for (int64_t j = (int64_t)threadIdx.x * n; j < width; j += (int64_t)blockDim.x * n) {
		float a[n], b[n];
		load_pack(a, x + r * width, j, width, aligned);
		load_pack(b, table + row * width, j, width, aligned);
		for (int i = 0; i < n; i++)
			a[i] += b[i];
		store_pack(y + r * width, a, j, width, aligned);
	}
}

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS) position_grad_kernel(const T *dy, float *dtable, int64_t batches, int64_t length,
                                                                            int64_t shift, int64_t width, bool aligned, bool accumulate)
{
	const int n = pack<T>::count;
	int64_t row = blockIdx.x, t = row - shift;
	bool here = t >= 0 && t < length;
	if (!here && accumulate)
		return;
	for (int64_t j = (int64_t)threadIdx.x * n; j < width; j += (int64_t)blockDim.x * n) {
		float sum[n];
		take_sums(sum, n, dtable + row * width, j, width, aligned, accumulate);
		for (int64_t b = 0; here && b < batches; b++) {
			float v[n];
			load_pack(v, dy + (b * length + t) * width, j, width, aligned);
			for (int i = 0; i < n; i++)
				sum[i] += v[i];
		}
		for (int i = 0; i < n; i += pack<float>::count)
			store_pack(dtable + row * width, sum + i, j + i, width, aligned);
	}
}

template <typename T> static int embed_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *table = &args->in[1], *x = &args->out[0];
	int64_t rows = hspmd_cuda_row_count(x), width = hspmd_cuda_row_length(x);
	auto *kernel = embed_kernel<T>;
	if (rows)
		LAUNCH(kernel, (unsigned)rows, row_threads(width, pack<T>::count, MOST_THREADS), 0, cuda->stream,
		       (const int32_t *)args->in[0].data, (const T *)table->data, (T *)x->data, table->start[0], table->shape[0], width,
		       is_aligned16<T>(width));
	return 0;
}

template <typename T> static int embed_grad_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *dx = &args->in[1], *dtable = &args->out[0];
	int64_t rows = hspmd_cuda_row_count(dx), width = hspmd_cuda_row_length(dx);
	struct hspmd_cuda_stable_sort order;
	hspmd_cuda_stable_sort_run(cuda, (const int32_t *)args->in[0].data, rows, (int32_t)dtable->start[0], dtable->shape[0],
	                           args->workspace, &order);
	auto *kernel = embed_grad_kernel<T>;
	LAUNCH(kernel, (unsigned)dtable->shape[0], row_threads(width, pack<T>::count, MOST_THREADS), 0, cuda->stream, (const T *)dx->data,
	       (float *)dtable->data, order.first, order.list, width, is_aligned16<T>(width), dtable->accumulate);
	return 0;
}

template <typename T> static int position_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[0], *table = &args->in[1];
	int64_t rows = hspmd_cuda_row_count(x), width = hspmd_cuda_row_length(x);
	auto *kernel = position_kernel<T>;
	if (rows)
		LAUNCH(kernel, (unsigned)rows, row_threads(width, pack<T>::count, MOST_THREADS), 0, cuda->stream, (const T *)x->data,
		       (const T *)table->data, (T *)args->out[0].data, x->shape[1], x->start[1] - table->start[0], width,
		       is_aligned16<T>(width));
	return 0;
}

template <typename T> static int position_grad_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *dy = &args->in[0], *dtable = &args->out[0];
	int64_t width = hspmd_cuda_row_length(dy);
	auto *kernel = position_grad_kernel<T>;
	LAUNCH(kernel, (unsigned)dtable->shape[0], row_threads(width, pack<T>::count, MOST_THREADS), 0, cuda->stream, (const T *)dy->data,
	       (float *)dtable->data, dy->shape[0], dy->shape[1], dy->start[1] - dtable->start[0], width, is_aligned16<T>(width),
	       dtable->accumulate);
	return 0;
}

static int embed(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->out[0].dtype, embed_of, cuda, args);
}

static int embed_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[1].dtype, embed_grad_of, cuda, args);
}

static size_t embed_grad_workspace(struct hspmd_cuda *, const struct hspmd_kernel_args *args)
{
	return hspmd_cuda_stable_sort_workspace(hspmd_cuda_row_count(&args->in[1]), args->out[0].shape[0]);
}

static int position(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, position_of, cuda, args);
}

static int position_embed_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, position_grad_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_embed = { embed, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_embed_grad = { embed_grad, embed_grad_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_position_embed = { position, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_position_embed_grad = { position_embed_grad, NULL };
