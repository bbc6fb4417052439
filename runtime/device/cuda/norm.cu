/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm and root-mean-square norm. The sum of two residuals before the norm, and the sum after its gradient, can be computed in the
 * same pass. All kernels are bound by memory: forward reads x (and the residual) and writes y (and the sum) once, backward reads x and dy
 * (and the addend) and writes dx once.
 *
 * Forward, one block per row: a row of up to HELD packs per thread is read once and kept in registers; the rest of a longer row is read
 * again. Backward, every block goes over its rows in order, loads the next row while it computes one, and sums the gradients of gain and
 * bias in registers; at its end it writes these sums, which are then added over the blocks in one order: the same bits every time. */
#include "runtime/device/cuda/kernel.h"

#define HELD 4
#define MOST_THREADS 256
#define GRAD_THREADS 512 /* also as many as a multiprocessor has registers for, at 128 each */

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

/* ---- backward */

struct backward_norm {
	const void *dy, *x, *gain, *residual; /* residual NULL: nothing is added to dx */
	const float *stats;
	void *dx;     /* NULL: not wanted; may be `residual` */
	float *parts; /* [2][blocks][width]: each block's dgain and, if centred, dbias */
	int64_t rows, width;
	float one; /* as forward */
	bool is_aligned;
};

/* What a thread has of one row, as it is in memory: half the registers of floats, so that the next row can be on its way. */
template <typename T, int packs> struct loaded_row {
	pack<T> x[packs], dy[packs];
	float mean, scale;

	template <bool centred> __device__ __forceinline__ void load(const struct backward_norm &a, int64_t r)
	{
		int64_t first = r * a.width;
		mean = centred ? a.stats[2 * r] : 0.0f;
		scale = a.stats[centred ? 2 * r + 1 : r];
#pragma unroll
		for (int h = 0; h < packs; h++) {
			int j = (h * (int)blockDim.x + (int)threadIdx.x) * pack<T>::count;
			x[h] = load_raw((const T *)a.x + first, j, a.width, a.is_aligned);
			dy[h] = load_raw((const T *)a.dy + first, j, a.width, a.is_aligned);
		}
	}
};

/* Sums both numbers over the block. One barrier: consecutive calls alternate between the halves of `room`. */
static __device__ __forceinline__ void block_sum_two(float *a, float *b, float (*room)[WARP])
{
	int warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
	*a = warp_reduce<Sum>(*a);
	*b = warp_reduce<Sum>(*b);
	if (warps == 1)
		return;
	if (lane == 0) {
		room[0][threadIdx.x / WARP] = *a;
		room[1][threadIdx.x / WARP] = *b;
	}
	__syncthreads();
	*a = warp_reduce<Sum>(lane < warps ? room[0][lane] : 0.0f);
	*b = warp_reduce<Sum>(lane < warps ? room[1][lane] : 0.0f);
}

/* Rows of at most `packs` packs per thread. Elements beyond a row's end are 0 and change nothing. */
template <typename T, bool centred, int packs>
static __global__ void __launch_bounds__(GRAD_THREADS) norm_grad_kernel(struct backward_norm a)
{
	const int n = pack<T>::count;
	__shared__ float room[2][2][WARP];
	float gains[packs][n] = {}, biases[packs][n] = {};
	const bool ahead = sizeof(T) == 4 || !centred || packs == 1; /* else there are no registers left for the next row */
	struct loaded_row<T, packs> next;
	pack<T> gain[packs];
	int turn = 0;
#pragma unroll
	for (int h = 0; h < packs; h++)
		gain[h] = load_raw((const T *)a.gain, (h * (int)blockDim.x + (int)threadIdx.x) * n, a.width, a.is_aligned);
	if (ahead && blockIdx.x < a.rows)
		next.template load<centred>(a, blockIdx.x);
	for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x, turn ^= 1) {
		struct loaded_row<T, packs> row;
		pack<T> residual[packs];
		float sum = 0, dot = 0;
		if (ahead)
			row = next;
		else
			row.template load<centred>(a, r);
		if (ahead && r + gridDim.x < a.rows)
			next.template load<centred>(a, r + gridDim.x);
#pragma unroll
		for (int h = 0; h < packs; h++)
			residual[h] = a.residual ? load_raw((const T *)a.residual + r * a.width,
			                                    (h * (int)blockDim.x + (int)threadIdx.x) * n, a.width, a.is_aligned)
			                         : pack<T>();
#pragma unroll
		for (int h = 0; h < packs; h++)
#pragma unroll
			for (int i = 0; i < n; i++) {
				float g = to_float(row.dy[h].v[i]), normal = (to_float(row.x[h].v[i]) - row.mean) * row.scale;
				gains[h][i] += g * normal;
				if (centred)
					biases[h][i] += g;
				g *= to_float(gain[h].v[i]) + a.one;
				sum += g;
				dot += g * normal;
			}
		if (!a.dx)
			continue;
		block_sum_two(&sum, &dot, room[turn]);
		float average = centred ? sum / (float)a.width : 0.0f, slope = dot / (float)a.width;
#pragma unroll
		for (int h = 0; h < packs; h++) {
			int j = (h * (int)blockDim.x + (int)threadIdx.x) * n;
			float out[n];
#pragma unroll
			for (int i = 0; i < n; i++) {
				float g = to_float(row.dy[h].v[i]) * (to_float(gain[h].v[i]) + a.one),
				      normal = (to_float(row.x[h].v[i]) - row.mean) * row.scale;
				out[i] = to_float(residual[h].v[i]) + (g - average - normal * slope) * row.scale;
			}
			if (j < a.width)
				store_pack((T *)a.dx + r * a.width, out, j, a.width, a.is_aligned);
		}
	}
#pragma unroll
	for (int h = 0; h < packs; h++) {
		int j = (h * (int)blockDim.x + (int)threadIdx.x) * n;
		bool aligned = is_aligned16<float>(a.width);
		float *to = a.parts + blockIdx.x * a.width;
#pragma unroll
		for (int i = 0; i < n && j < a.width; i += pack<float>::count) {
			store_pack(to, gains[h] + i, j + i, a.width, aligned);
			if (centred)
				store_pack(to + gridDim.x * a.width, biases[h] + i, j + i, a.width, aligned);
		}
	}
}

/* Rows of any length: they are read twice, and the sums are in memory. An element of the sums belongs to one thread. */
template <typename T, bool centred> static __global__ void __launch_bounds__(GRAD_THREADS) wide_norm_grad_kernel(struct backward_norm a)
{
	__shared__ float room[2][2][WARP];
	const T *gain = (const T *)a.gain;
	float *gains = a.parts + blockIdx.x * a.width, *biases = gains + gridDim.x * a.width;
	int turn = 0;
	for (int64_t j = threadIdx.x; j < a.width; j += blockDim.x) {
		gains[j] = 0;
		if (centred)
			biases[j] = 0;
	}
	for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x, turn ^= 1) {
		const T *x = (const T *)a.x + r * a.width, *dy = (const T *)a.dy + r * a.width;
		float mean = centred ? a.stats[2 * r] : 0.0f, scale = a.stats[centred ? 2 * r + 1 : r], sum = 0, dot = 0;
		for (int64_t j = threadIdx.x; j < a.width; j += blockDim.x) {
			float g = to_float(dy[j]), normal = (to_float(x[j]) - mean) * scale;
			gains[j] += g * normal;
			if (centred)
				biases[j] += g;
			g *= to_float(gain[j]) + a.one;
			sum += g;
			dot += g * normal;
		}
		if (!a.dx)
			continue;
		block_sum_two(&sum, &dot, room[turn]);
		float average = centred ? sum / (float)a.width : 0.0f, slope = dot / (float)a.width;
		T *dx = (T *)a.dx + r * a.width;
		for (int64_t j = threadIdx.x; j < a.width; j += blockDim.x) {
			float g = to_float(dy[j]) * (to_float(gain[j]) + a.one), normal = (to_float(x[j]) - mean) * scale;
			float more = a.residual ? to_float(((const T *)a.residual)[r * a.width + j]) : 0.0f;
			dx[j] = from_float<T>(more + (g - average - normal * slope) * scale);
		}
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

/* Packs of a row per thread; 0: more than there are registers for. */
static int grad_packs(int64_t width, int64_t each)
{
	return width <= GRAD_THREADS * each ? 1 : width <= 2 * GRAD_THREADS * each ? 2 : 0;
}

static int grad_threads(int64_t width, int64_t each)
{
	return row_threads(width, (int)each, GRAD_THREADS);
}

/* As many blocks as run on the device at once. */
static int64_t grad_blocks(const struct hspmd_cuda *cuda, int64_t rows, int64_t width, int64_t each)
{
	int64_t most = (int64_t)(GRAD_THREADS / grad_threads(width, each)) * cuda->multiprocessors;
	return rows < most ? rows : most;
}

template <typename T, bool centred> static int backward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
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
	a.parts = (float *)args->workspace;
	int64_t blocks = grad_blocks(cuda, a.rows, a.width, pack<T>::count);
	int packs = grad_packs(a.width, pack<T>::count);
	auto *kernel = packs == 1   ? norm_grad_kernel<T, centred, 1>
	               : packs == 2 ? norm_grad_kernel<T, centred, 2>
	                            : wide_norm_grad_kernel<T, centred>;
	if (blocks)
		LAUNCH(kernel, (unsigned)blocks, grad_threads(a.width, pack<T>::count), 0, cuda->stream, a);
	struct hspmd_cuda_parts of[2];
	int vectors = 0;
	for (int o = 1; o < args->output_count && o < 3; o++)
		if (args->out[o].data)
			of[vectors++] = (struct hspmd_cuda_parts){ a.parts + (o - 1) * blocks * a.width, (float *)args->out[o].data,
				                                   args->out[o].accumulate };
	hspmd_cuda_add_parts(cuda, of, vectors, blocks, a.width);
	return 0;
}

template <bool centred, bool summed> static int norm(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return args->in[0].dtype == HSPMD_F32 ? forward<float, centred>(cuda, args, summed) : forward<bf16, centred>(cuda, args, summed);
}

template <bool centred> static int norm_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return args->in[0].dtype == HSPMD_F32 ? backward<float, centred>(cuda, args) : backward<bf16, centred>(cuda, args);
}

static size_t grad_workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[1], *gain = &args->in[2];
	int64_t width = hspmd_cuda_row_length(gain), each = args->in[0].dtype == HSPMD_F32 ? pack<float>::count : pack<bf16>::count;
	return (size_t)(2 * grad_blocks(cuda, norm_rows(x, gain), width, each) * width) * sizeof(float);
}

const struct hspmd_cuda_kernel hspmd_cuda_layernorm = { norm<true, false>, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_add_layernorm = { norm<true, true>, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_layernorm_grad = { norm_grad<true>, grad_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_layernorm_grad_add = { norm_grad<true>, grad_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_rmsnorm = { norm<false, false>, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_add_rmsnorm = { norm<false, true>, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_rmsnorm_grad = { norm_grad<false>, grad_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_rmsnorm_grad_add = { norm_grad<false>, grad_workspace };
