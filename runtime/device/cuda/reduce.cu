/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions over dimensions: a block per result, or, where neighbouring results are of neighbouring elements, a thread. Each sums in one
 * fixed order. */
#include "runtime/device/cuda/loop.h"

struct work {
	struct loop kept, reduced; /* buffer 0: the result, buffer 1: x */
	int kind;
	float scale;
};

static struct work work_of(const struct hspmd_op_attr *attr, const struct hspmd_view *x)
{
	struct work w = {};
	int64_t step[HSPMD_MAX_RANK], next = 1;
	w.kind = attr->kind;
	w.scale = (float)attr->scale;
	w.kept.count = w.reduced.count = 1;
	packed_steps(x, step);
	for (int d = 0; d < x->rank; d++) {
		struct loop *l = attr->numbers[0] >> d & 1 ? &w.reduced : &w.kept;
		l->shape[l->rank] = x->shape[d];
		l->step[1][l->rank++] = step[d];
		l->count *= x->shape[d];
	}
	for (int d = w.kept.rank - 1; d >= 0; d--) {
		w.kept.step[0][d] = next;
		next *= w.kept.shape[d];
	}
	return w;
}

/* Element `i` of the reduced ones of a result. */
static __device__ __forceinline__ int64_t element_of(const struct work &w, int64_t at, int64_t i)
{
	int64_t from[LOOP_BUFFERS];
	loop_at(w.reduced, i, 2, from);
	return at + from[1];
}

static __device__ __forceinline__ float combine(int kind, float a, float b)
{
	return kind == HSPMD_REDUCE_MAX ? fmaxf(a, b) : a + b;
}

template <typename T> static __global__ void __launch_bounds__(LOOP_THREADS) thread_kernel(struct work w, const T *x, T *y)
{
	int64_t i = (int64_t)blockIdx.x * LOOP_THREADS + threadIdx.x, at[LOOP_BUFFERS];
	if (i >= w.kept.count)
		return;
	loop_at(w.kept, i, 2, at);
	float sum = w.kind == HSPMD_REDUCE_MAX ? -INFINITY : 0.0f;
	for (int64_t k = 0; k < w.reduced.count; k++)
		sum = combine(w.kind, sum, to_float(x[element_of(w, at[1], k)]));
	y[i] = from_float<T>(w.kind == HSPMD_REDUCE_MAX ? sum : w.scale * sum);
}

template <typename T> static __global__ void __launch_bounds__(LOOP_THREADS) block_kernel(struct work w, const T *x, T *y)
{
	__shared__ float room[WARP];
	int64_t at[LOOP_BUFFERS];
	loop_at(w.kept, blockIdx.x, 2, at);
	float sum = w.kind == HSPMD_REDUCE_MAX ? -INFINITY : 0.0f;
	for (int64_t k = threadIdx.x; k < w.reduced.count; k += LOOP_THREADS)
		sum = combine(w.kind, sum, to_float(x[element_of(w, at[1], k)]));
	if (w.kind == HSPMD_REDUCE_MAX)
		sum = block_reduce<Max>(sum, -INFINITY, room);
	else
		sum = w.scale * block_reduce<Sum>(sum, 0.0f, room);
	if (threadIdx.x == 0)
		y[blockIdx.x] = from_float<T>(sum);
}

template <typename T> static int reduce_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *x = &args->in[0];
	struct work w = work_of(args->attr, x);
	bool rows = w.kept.rank && w.kept.step[1][w.kept.rank - 1] == 1 && w.kept.count >= LOOP_THREADS;
	auto *thread = thread_kernel<T>;
	auto *block = block_kernel<T>;
	if (w.kept.count && rows)
		LAUNCH(thread, loop_grid(w.kept.count), LOOP_THREADS, 0, cuda->stream, w, (const T *)x->data, (T *)args->out[0].data);
	else if (w.kept.count)
		LAUNCH(block, (unsigned)w.kept.count, LOOP_THREADS, 0, cuda->stream, w, (const T *)x->data, (T *)args->out[0].data);
	return 0;
}

template <typename T>
static __global__ void __launch_bounds__(LOOP_THREADS) max_grad_kernel(struct work w, const T *dy, const T *y, const T *x, T *dx)
{
	__shared__ float room[WARP];
	int64_t at[LOOP_BUFFERS];
	loop_at(w.kept, blockIdx.x, 2, at);
	float most = to_float(y[blockIdx.x]), equal = 0.0f;
	for (int64_t k = threadIdx.x; k < w.reduced.count; k += LOOP_THREADS)
		equal += to_float(x[element_of(w, at[1], k)]) == most ? 1.0f : 0.0f;
	equal = block_reduce<Sum>(equal, 0.0f, room);
	for (int64_t k = threadIdx.x; k < w.reduced.count; k += LOOP_THREADS) {
		int64_t i = element_of(w, at[1], k);
		dx[i] = from_float<T>(to_float(x[i]) == most ? to_float(dy[blockIdx.x]) / equal : 0.0f);
	}
}

template <typename T> static int max_grad_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	struct work w = work_of(args->attr, &args->in[2]);
	auto *kernel = max_grad_kernel<T>;
	if (w.kept.count)
		LAUNCH(kernel, (unsigned)w.kept.count, LOOP_THREADS, 0, cuda->stream, w, (const T *)args->in[0].data,
		       (const T *)args->in[1].data, (const T *)args->in[2].data, (T *)args->out[0].data);
	return 0;
}

static int reduce(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, reduce_of, cuda, args);
}

static int max_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, max_grad_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_reduce = { reduce, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_max_grad = { max_grad, NULL };
