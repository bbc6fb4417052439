/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding (Su et al., "RoFormer", arXiv 2104.09864, section 3.4.2): pairs of elements of a head are rotated by the angle
 * position * frequency (opcode_list.h). Angles are computed in double, once per position, into a table that all samples and heads read: one
 * table for the whole program, or the call's own. */
#include <math.h>

#include "runtime/device/cuda/rotate.h"

#define THREADS 256

#define MOST_FREQUENCIES 128

/* Passed by value, so that the table can be computed again when a CUDA graph is replayed. */
struct frequencies {
	double theta, scale;
	int count; /* 0: theta^(-i / half) */
	double value[MOST_FREQUENCIES];
};

/* table[t][i] = cosine and sine of the angle of position first + t. */
static __global__ void __launch_bounds__(THREADS)
        angles_kernel(float2 *table, int64_t first, int64_t count, int64_t half, struct frequencies f)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (at >= count * half)
		return;
	double frequency = f.count ? f.value[at % half] : pow(f.theta, -(double)(at % half) / (double)half);
	double angle = (double)(first + at / half) * frequency, s, c;
	sincos(angle, &s, &c);
	table[at] = make_float2((float)(f.scale * c), (float)(f.scale * s));
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
	float a[n], b[n], turn[2 * n]; /* turn: cosine and sine of each pair */
	if (n == 1) {
		a[0] = to_float(from[0]);
		b[0] = to_float(from[half]);
	} else {
		load_pack(a, from, 0, n, true);
		load_pack(b, from + half, 0, n, true);
	}
	if (n == 1) {
		turn[0] = rotation->x;
		turn[1] = rotation->y;
	} else {
#pragma unroll
		for (int k = 0; k < 2 * n; k += pack<float>::count)
			load_pack(turn + k, (const float *)rotation, k, 2 * n, true);
	}
#pragma unroll
	for (int k = 0; k < n; k++)
		rotate_pair(&a[k], &b[k], turn[2 * k], direction * turn[2 * k + 1]);
	if (n == 1) {
		to[0] = from_float<T>(a[0]);
		to[half] = from_float<T>(b[0]);
	} else {
		store_pack(to, a, 0, n, true);
		store_pack(to + half, b, 0, n, true);
	}
}

/* One thread per element of a head, for the shapes that rotate_kernel does not have: pairs of neighbours, or a part of each head. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
        rotate_some_kernel(const T *x, T *y, const float2 *table, int64_t rows, int64_t length, int64_t width, int64_t size, int64_t half,
                           bool interleaved, float direction)
{
	int64_t pairs = size - half, heads = width / size, at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (at >= rows * heads * pairs)
		return;
	int64_t i = at % pairs, row = at / pairs / heads, head = row * width + at / pairs % heads * size;
	if (i >= half) { /* not rotated */
		y[head + half + i] = x[head + half + i];
		return;
	}
	int64_t first = head + (interleaved ? 2 * i : i), second = head + (interleaved ? 2 * i + 1 : i + half);
	float2 rotation = table[row % length * half + i];
	float a = to_float(x[first]), b = to_float(x[second]);
	rotate_pair(&a, &b, rotation.x, direction * rotation.y);
	y[first] = from_float<T>(a);
	y[second] = from_float<T>(b);
}

static int64_t rotated(const struct hspmd_op_attr *attr)
{
	return attr->rotary ? attr->rotary : attr->head_dim;
}

static int make_table(struct hspmd_cuda *cuda, float2 *table, int64_t first, int64_t count, const struct hspmd_op_attr *attr,
                      struct hspmd_error *err)
{
	int64_t half = rotated(attr) / 2;
	struct frequencies f = {};
	f.theta = attr->theta;
	f.scale = attr->rotation_scale > 0 ? attr->rotation_scale : 1;
	if (attr->frequencies && half > MOST_FREQUENCIES)
		return hspmd_fail(err, "the CUDA device has scaled rotation of at most %d elements of a head", 2 * MOST_FREQUENCIES);
	if (attr->frequencies) {
		f.count = (int)half;
		memcpy(f.value, attr->frequencies, (size_t)half * sizeof *f.value);
	}
	if (count)
		LAUNCH(angles_kernel, (unsigned)ceil_div(count * half, THREADS), THREADS, 0, cuda->stream, table, first, count, half, f);
	return 0;
}

static bool has_table(const struct hspmd_kernel_args *args)
{
	return args->input_count > 1 && args->in[1].rank >= 0;
}

template <typename T>
static int rotate(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, float direction, struct hspmd_error *err)
{
	const struct hspmd_view *x = &args->in[0];
	int64_t size = args->attr->head_dim, half = rotated(args->attr) / 2, rows = hspmd_cuda_row_count(x),
	        width = hspmd_cuda_row_length(x), length = x->shape[1];
	float2 *table = (float2 *)(has_table(args) ? args->in[1].data : args->workspace);
	if (!rows || !width)
		return 0;
	if (!has_table(args) && make_table(cuda, table, x->start[1], length, args->attr, err))
		return -1;
	if (size != 2 * half || args->attr->interleaved) {
		auto *some = rotate_some_kernel<T>;
		LAUNCH(some, (unsigned)ceil_div(rows * width / size * (size - half), THREADS), THREADS, 0, cuda->stream, (const T *)x->data,
		       (T *)args->out[0].data, table, rows, length, width, size, half, args->attr->interleaved, direction);
		return 0;
	}
	bool aligned = half % pack<T>::count == 0;
	auto *kernel = aligned ? rotate_kernel<T, pack<T>::count> : rotate_kernel<T, 1>;
	int64_t items = rows * width / 2 / (aligned ? pack<T>::count : 1);
	LAUNCH(kernel, (unsigned)ceil_div(items, THREADS), THREADS, 0, cuda->stream, (const T *)x->data, (T *)args->out[0].data, table,
	       rows, length, width, half, direction);
	return 0;
}

static int rope(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return BY_TYPE(args->in[0].dtype, rotate, cuda, args, 1.0f, err);
}

static int rope_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return BY_TYPE(args->in[0].dtype, rotate, cuda, args, -1.0f, err);
}

static int angles(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	const struct hspmd_view *table = &args->out[0];
	return make_table(cuda, (float2 *)table->data, table->start[1], table->shape[1], args->attr, err);
}

static size_t rope_workspace(struct hspmd_cuda *, const struct hspmd_kernel_args *args)
{
	return has_table(args) ? 0 : (size_t)(rotated(args->attr) / 2 * args->in[0].shape[1]) * sizeof(float2);
}

const struct hspmd_cuda_kernel hspmd_cuda_rope_table = { angles, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_rope = { rope, rope_workspace };
const struct hspmd_cuda_kernel hspmd_cuda_rope_grad = { rope_grad, rope_workspace };
