/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864, section 3.4.2) in Llama's form: element i of a head is rotated with
 * element i + head_dim / 2 by the angle position * theta^(-2 i / head_dim). Angles are computed in double, once per position, into a table
 * that all samples and heads read: one table for the whole program, or the call's own. */
#include <math.h>

#include "runtime/device/cuda/kernel.h"

#define THREADS 256

/* table[t][i] = cosine and sine of the angle of position first + t. */
static __global__ void __launch_bounds__(THREADS) angles_kernel(float2 *table, int64_t first, int64_t count, int64_t half, double theta)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (at >= count * half)
		return;
	double angle = (double)(first + at / half) * pow(theta, -(double)(at % half) / (double)half), s, c;
	sincos(angle, &s, &c);
	table[at] = make_float2((float)c, (float)s);
}

/* One thread per pair of elements, or per pack of pairs if half a head is a multiple of a pack. */
template <typename T, int n>
static __global__ void __launch_bounds__(THREADS)
        rotate_kernel(const T *x, T *y, const float2 *table, int64_t rows, int64_t length, int64_t width, int64_t half, float direction)
{
	int64_t groups = width / 2 / n, at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (at >= rows * groups)
		return;
	int64_t row = at / groups, pair = at % groups * n, head = pair / half, i = pair % half;
	const T *from = x + row * width + head * 2 * half + i;
	T *to = y + row * width + head * 2 * half + i;
	const float2 *rotation = table + row % length * half + i;
	float a[n], b[n];
	if (n == 1) {
		a[0] = to_float(from[0]);
		b[0] = to_float(from[half]);
	} else {
		load_pack(a, from, 0, n, true);
		load_pack(b, from + half, 0, n, true);
	}
#pragma unroll
	for (int k = 0; k < n; k++) {
		float c = rotation[k].x, s = direction * rotation[k].y, first = a[k] * c - b[k] * s;
		b[k] = b[k] * c + a[k] * s;
		a[k] = first;
	}
	if (n == 1) {
		to[0] = from_float<T>(a[0]);
		to[half] = from_float<T>(b[0]);
	} else {
		store_pack(to, a, 0, n, true);
		store_pack(to + half, b, 0, n, true);
	}
}

static void make_table(struct hspmd_cuda *cuda, float2 *table, int64_t first, int64_t count, int64_t half, double theta)
{
	if (count)
		LAUNCH(angles_kernel, (unsigned)ceil_div(count * half, THREADS), THREADS, 0, cuda->stream, table, first, count, half,
		       theta);
}

static bool has_table(const struct hspmd_kernel_args *args)
{
	return args->input_count > 1 && args->in[1].rank >= 0;
}

template <typename T> static int rotate(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, float direction)
{
	const struct hspmd_view *x = &args->in[0];
	int64_t half = args->attr->head_dim / 2, rows = hspmd_cuda_row_count(x), width = hspmd_cuda_row_length(x), length = x->shape[1];
	float2 *table = (float2 *)(has_table(args) ? args->in[1].data : args->workspace);
	if (!rows || !width)
		return 0;
	if (!has_table(args))
		make_table(cuda, table, x->start[1], length, half, args->attr->theta);
	bool aligned = half % pack<T>::count == 0;
	auto *kernel = aligned ? rotate_kernel<T, pack<T>::count> : rotate_kernel<T, 1>;
	int64_t items = rows * width / 2 / (aligned ? pack<T>::count : 1);
	LAUNCH(kernel, (unsigned)ceil_div(items, THREADS), THREADS, 0, cuda->stream, (const T *)x->data, (T *)args->out[0].data, table,
	       rows, length, width, half, direction);
	return 0;
}

static int rope(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, rotate, cuda, args, 1.0f);
}

static int rope_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, rotate, cuda, args, -1.0f);
}

static int angles(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	const struct hspmd_view *table = &args->out[0];
	make_table(cuda, (float2 *)table->data, table->start[1], table->shape[1], table->shape[2] / 2, args->attr->theta);
	return 0;
}

static size_t rope_workspace(struct hspmd_cuda *, const struct hspmd_kernel_args *args)
{
	return has_table(args) ? 0 : (size_t)(args->attr->head_dim / 2 * args->in[0].shape[1]) * sizeof(float2);
}

const struct hspmd_cuda_kernel hspmd_cuda_rope_table = { angles, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_rope = { rope, rope_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_rope_grad = { rope_grad, rope_workspace };
