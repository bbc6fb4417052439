/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm and root-mean-square norm, one block per row. A row of up to HELD packs per thread is read once and kept in registers; the
 * rest of a longer row is read again. The sum of two residuals before the norm, and the sum after its gradient, can be computed in the same
 * pass. In the backward pass every block goes over its rows in order and sums the gradients of gain and bias for itself; then the blocks'
 * sums are added in order: the same bits every time. */
#include "runtime/device/cuda/kernel.h"

#define HELD 4
#define MOST_THREADS 256

struct forward_norm {
	const void *x, *residual, *gain, *bias; /* residual NULL: the norm of x, else of x + residual; bias NULL: none */
	void *sum;                              /* x + residual; may be x or residual */
	void *y;
	float *stats;
	int64_t width;
	float eps, one; /* rows are multiplied by gain + one */
	bool is_aligned;
};

/* This thread's packs of one row: the first HELD in registers. */
template <typename T> struct row_of {
	float held[HELD][pack<T>::count];
	const T *row;
	int64_t width;
	bool is_aligned;

	__device__ __forceinline__ void load(const T *from, int64_t n, bool aligned)
	{
		row = from;
		width = n;
		is_aligned = aligned;
#pragma unroll
		for (int h = 0; h < HELD; h++) {
			int64_t j = at(h);
			if (j < width)
				load_pack(held[h], row, j, width, is_aligned);
		}
	}
	/* Loads the row a + b, rounded, and writes it to `sum`. */
	__device__ __forceinline__ void load_sum(const T *a, const T *b, T *sum, int64_t n, bool aligned)
	{
		row = sum;
		width = n;
		is_aligned = aligned;
		float rest[pack<T>::count];
#pragma unroll
		for (int h = 0; h < HELD; h++)
			if (at(h) < width)
				add_pack(held[h], a, b, sum, at(h));
		for (int64_t h = HELD; at(h) < width; h++)
			add_pack(rest, a, b, sum, at(h));
	}
	__device__ __forceinline__ void add_pack(float *to, const T *a, const T *b, T *sum, int64_t j)
	{
		float residual[pack<T>::count];
		load_pack(to, a, j, width, is_aligned);
		load_pack(residual, b, j, width, is_aligned);
#pragma unroll
		for (int i = 0; i < pack<T>::count; i++)
			to[i] = to_float(from_float<T>(to[i] + residual[i]));
		store_pack(sum, to, j, width, is_aligned);
	}
	__device__ __forceinline__ int64_t at(int64_t h) const
	{
		return (h * blockDim.x + threadIdx.x) * pack<T>::count;
	}
	/* Calls f(pack's floats, first element) for every pack of this thread. */
	template <typename F> __device__ __forceinline__ void each(F f) const
	{
#pragma unroll
		for (int h = 0; h < HELD; h++)
			if (at(h) < width)
				f(held[h], at(h));
		for (int64_t h = HELD; at(h) < width; h++) {
			float residual[pack<T>::count];
			load_pack(residual, row, at(h), width, is_aligned);
			f(residual, at(h));
		}
	}
};

template <typename T, bool centred> static __global__ void __launch_bounds__(MOST_THREADS) norm_kernel(struct forward_norm a)
{
	const int n = pack<T>::count;
	__shared__ float room[WARP];
	int64_t r = blockIdx.x;
	struct row_of<T> x;
	if (a.residual)
		x.load_sum((const T *)a.x + r * a.width, (const T *)a.residual + r * a.width, (T *)a.sum + r * a.width, a.width,
		           a.is_aligned);
	else
		x.load((const T *)a.x + r * a.width, a.width, a.is_aligned);
	float mean = 0, squares = 0;
	if (centred) {
		float sum = 0;
		x.each([&](const float *v, int64_t) {
			for (int i = 0; i < n; i++)
				sum += v[i];
		});
		mean = block_reduce<Sum>(sum, 0.0f, room) / (float)a.width;
	}
	x.each([&](const float *v, int64_t j) {
		for (int i = 0; i < n; i++)
			if (j + i < a.width)
				squares += (v[i] - mean) * (v[i] - mean);
	});
	float scale = 1.0f / sqrtf(block_reduce<Sum>(squares, 0.0f, room) / (float)a.width + a.eps);
	T *y = (T *)a.y + r * a.width;
	x.each([&](const float *v, int64_t j) {
		float gain[n], bias[n], out[n];
		load_pack(gain, (const T *)a.gain, j, a.width, a.is_aligned);
		if (a.bias)
			load_pack(bias, (const T *)a.bias, j, a.width, a.is_aligned);
		for (int i = 0; i < n; i++)
			out[i] = (v[i] - mean) * scale * (gain[i] + a.one) + (a.bias ? bias[i] : 0.0f);
		store_pack(y, out, j, a.width, a.is_aligned);
	});
	if (threadIdx.x == 0) {
		if (centred)
			a.stats[2 * r] = mean;
		a.stats[centred ? 2 * r + 1 : r] = scale;
	}
}

struct backward_norm {
	const void *dy, *x, *gain, *residual; /* residual NULL: nothing is added to dx */
	const float *stats;
	void *dx;              /* NULL: not wanted; may be `residual` */
	float *gains, *biases; /* [blocks][width] */
	int64_t rows, width;
	float one; /* as forward */
	bool is_aligned;
};

/* Computes one row's dx. Adds its part of dgain and dbias to this thread's sums in `gains` and `biases`, which are the block's own part of
 * the workspace. */
template <typename T, bool centred>
static __device__ __forceinline__ void row_grad(const struct backward_norm &a, int64_t r, float *gains, float *biases, float *room)
{
	const int n = pack<T>::count;
	float mean = centred ? a.stats[2 * r] : 0.0f, scale = a.stats[centred ? 2 * r + 1 : r], sum = 0, dot = 0;
	struct row_of<T> x, dy;
	x.load((const T *)a.x + r * a.width, a.width, a.is_aligned);
	dy.load((const T *)a.dy + r * a.width, a.width, a.is_aligned);
	auto part = [&](const float *v, const float *g, int64_t j) {
		float gain[n];
		load_pack(gain, (const T *)a.gain, j, a.width, a.is_aligned);
		for (int i = 0; i < n; i++) {
			if (j + i >= a.width)
				break;
			float normal = (v[i] - mean) * scale;
			gains[j + i] += g[i] * normal;
			if (centred)
				biases[j + i] += g[i];
			sum += g[i] * (gain[i] + a.one);
			dot += g[i] * (gain[i] + a.one) * normal;
		}
	};
#pragma unroll
	for (int h = 0; h < HELD; h++)
		if (x.at(h) < a.width)
			part(x.held[h], dy.held[h], x.at(h));
	for (int64_t h = HELD; x.at(h) < a.width; h++) {
		float v[n], g[n];
		load_pack(v, x.row, x.at(h), a.width, a.is_aligned);
		load_pack(g, dy.row, x.at(h), a.width, a.is_aligned);
		part(v, g, x.at(h));
	}
	if (!a.dx)
		return;
	float average = centred ? block_reduce<Sum>(sum, 0.0f, room) / (float)a.width : 0.0f;
	float slope = block_reduce<Sum>(dot, 0.0f, room) / (float)a.width;
	T *dx = (T *)a.dx + r * a.width;
	auto put = [&](const float *v, const float *g, int64_t j) {
		float gain[n], out[n] = {};
		load_pack(gain, (const T *)a.gain, j, a.width, a.is_aligned);
		if (a.residual)
			load_pack(out, (const T *)a.residual + r * a.width, j, a.width, a.is_aligned);
		for (int i = 0; i < n; i++)
			out[i] += (g[i] * (gain[i] + a.one) - average - (v[i] - mean) * scale * slope) * scale;
		store_pack(dx, out, j, a.width, a.is_aligned);
	};
#pragma unroll
	for (int h = 0; h < HELD; h++)
		if (x.at(h) < a.width)
			put(x.held[h], dy.held[h], x.at(h));
	for (int64_t h = HELD; x.at(h) < a.width; h++) {
		float v[n], g[n];
		load_pack(v, x.row, x.at(h), a.width, a.is_aligned);
		load_pack(g, dy.row, x.at(h), a.width, a.is_aligned);
		put(v, g, x.at(h));
	}
}

template <typename T, bool centred> static __global__ void __launch_bounds__(MOST_THREADS) norm_grad_kernel(struct backward_norm a)
{
	__shared__ float room[WARP];
	DYNAMIC_SHARED(float, sums); /* dgain[width], dbias[width]; an element belongs to one thread */
	float *gains = sums, *biases = sums + a.width;
	for (int64_t j = threadIdx.x; j < (centred ? 2 : 1) * a.width; j += blockDim.x)
		sums[j] = 0;
	__syncthreads();
	for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x)
		row_grad<T, centred>(a, r, gains, biases, room);
	__syncthreads();
	for (int64_t j = threadIdx.x; j < a.width; j += blockDim.x) {
		a.gains[(int64_t)blockIdx.x * a.width + j] = gains[j];
		if (centred)
			a.biases[(int64_t)blockIdx.x * a.width + j] = biases[j];
	}
}

/* Rows as long as the gain: a row of x, or each head of one. */
static int64_t norm_rows(const struct hspmd_view *x, const struct hspmd_view *gain)
{
	int64_t width = hspmd_cuda_row_length(gain);
	return width ? hspmd_cuda_elements(x) / width : 0;
}

template <typename T, bool centred> static int forward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, bool summed)
{
	const struct hspmd_view *x = &args->in[0];
	int gain = summed ? 2 : 1;
	struct forward_norm a = {};
	a.x = x->data;
	a.residual = summed ? args->in[1].data : NULL;
	a.sum = summed ? args->out[2].data : NULL;
	a.gain = args->in[gain].data;
	a.bias = centred && args->input_count > gain + 1 ? args->in[gain + 1].data : NULL;
	a.y = args->out[0].data;
	a.stats = (float *)args->out[1].data;
	a.width = hspmd_cuda_row_length(&args->in[gain]);
	a.eps = (float)args->attr->eps;
	a.one = args->attr->plus_one;
	a.is_aligned = is_aligned16<T>(a.width);
	int64_t rows = norm_rows(x, &args->in[gain]);
	auto *kernel = norm_kernel<T, centred>;
	if (rows)
		LAUNCH(kernel, (unsigned)rows, row_threads(a.width, pack<T>::count, MOST_THREADS), 0, cuda->stream, a);
	return 0;
}

static int64_t grad_blocks(const struct hspmd_cuda *cuda, int64_t rows)
{
	int64_t most = 2 * (int64_t)cuda->multiprocessors;
	return rows < most ? rows : most;
}

template <typename T, bool centred>
static int backward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	const struct hspmd_view *x = &args->in[1];
	struct backward_norm a = {};
	a.dy = args->in[0].data;
	a.x = x->data;
	a.gain = args->in[2].data;
	a.stats = (const float *)args->in[3].data;
	a.residual = args->input_count > 4 ? args->in[4].data : NULL;
	a.dx = args->out[0].data;
	a.rows = norm_rows(x, &args->in[2]);
	a.width = hspmd_cuda_row_length(&args->in[2]);
	a.one = args->attr->plus_one;
	a.is_aligned = is_aligned16<T>(a.width);
	int64_t blocks = grad_blocks(cuda, a.rows);
	a.gains = (float *)args->workspace;
	a.biases = a.gains + blocks * a.width;
	size_t shared = (size_t)((centred ? 2 : 1) * a.width) * sizeof(float);
	auto *kernel = norm_grad_kernel<T, centred>;
	cudaError_t status = allow_shared((const void *)kernel, shared);
	if (status)
		return hspmd_cuda_failed(status, "rows too long for a norm's gradient", err);
	if (blocks)
		LAUNCH(kernel, (unsigned)blocks, row_threads(a.width, pack<T>::count, MOST_THREADS), shared, cuda->stream, a);
	for (int o = 1; o < args->output_count && o < 3; o++)
		if (args->out[o].data)
			hspmd_cuda_add_parts(cuda, o == 1 ? a.gains : a.biases, blocks, a.width, (float *)args->out[o].data,
			                     args->out[o].accumulate);
	return 0;
}

template <bool centred, bool summed> static int norm(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return args->in[0].dtype == HSPMD_F32 ? forward<float, centred>(cuda, args, summed) : forward<bf16, centred>(cuda, args, summed);
}

template <bool centred> static int norm_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return args->in[0].dtype == HSPMD_F32 ? backward<float, centred>(cuda, args, err) : backward<bf16, centred>(cuda, args, err);
}

static size_t grad_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[1], *gain = &args->in[2];
	return (size_t)(2 * grad_blocks(cuda, norm_rows(x, gain)) * hspmd_cuda_row_length(gain)) * sizeof(float);
}

const struct hspmd_cuda_kernel hspmd_cuda_layernorm = { norm<true, false>, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_add_layernorm = { norm<true, true>, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_layernorm_grad = { norm_grad<true>, grad_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_layernorm_grad_add = { norm_grad<true>, grad_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_rmsnorm = { norm<false, false>, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_add_rmsnorm = { norm<false, true>, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_rmsnorm_grad = { norm_grad<false>, grad_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_rmsnorm_grad_add = { norm_grad<false>, grad_workspace };
