/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of rows that attention's backward pass begins with, and from them the gradient of its sinks. */
#include "runtime/device/cuda/attention.h"

#define THREADS 128

/* delta = sum of dout * o; one warp per query and head. */
template <typename T> static __global__ void __launch_bounds__(THREADS) delta_kernel(struct attention a)
{
	int64_t at = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
	int q = (int)(at % a.queries), head = (int)(at / a.queries % a.heads), batch = (int)(at / a.queries / a.heads), d = a.head_dim;
	if (batch >= a.batches)
		return;
	const T *o = (const T *)a.o.data + batch * a.o.batch + q * a.o.row + (int64_t)head * d;
	const T *dout = (const T *)a.dout.data + batch * a.dout.batch + q * a.dout.row + (int64_t)head * d;
	float sum = 0;
	for (int c = threadIdx.x % WARP; c < d; c += WARP)
		sum += to_float(o[c]) * to_float(dout[c]);
	sum = warp_reduce<Sum>(sum);
	if (threadIdx.x % WARP == 0)
		a.delta[stats_at(a, batch, head, q)] = sum;
}

template <typename T> static void find_delta(struct hspmd_cuda *cuda, const struct attention *a)
{
	auto *kernel = delta_kernel<T>;
	LAUNCH(kernel, (unsigned)ceil_div((int64_t)a->batches * a->heads * a->queries, THREADS / WARP), THREADS, 0, cuda->stream, *a);
}

void hspmd_cuda_attention_find_delta(struct hspmd_cuda *cuda, const struct attention *a, enum hspmd_dtype dtype)
{
	BY_TYPE(dtype, find_delta, cuda, a);
}

/* A sink's score has the probability p = exp(sink - lse) and the gradient -p * delta. One block per head sums over all queries, in
 * order. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) sinks_grad_kernel(struct attention a, const T *sinks, float *to, bool accumulate)
{
	__shared__ float room[WARP];
	int head = blockIdx.x;
	float sum = 0, sink = to_float(sinks[head]);
	for (int64_t i = threadIdx.x; i < (int64_t)a.batches * a.queries; i += THREADS) {
		int64_t at = stats_at(a, (int)(i / a.queries), head, (int)(i % a.queries));
		sum -= expf(sink - a.lse[at]) * a.delta[at];
	}
	sum = block_reduce<Sum>(sum, 0.0f, room);
	if (threadIdx.x == 0)
		to[head] = (accumulate ? to[head] : 0.0f) + sum;
}

template <typename T> static int sinks_grad_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *o = &args->in[1];
	struct attention a = {};
	a.head_dim = (int)args->attr->head_dim;
	a.batches = (int)o->shape[0];
	a.queries = (int)o->shape[1];
	a.heads = (int)(o->shape[2] / a.head_dim);
	a.o.row = o->shape[2];
	a.o.batch = a.queries * a.o.row;
	a.dout = a.o;
	a.dout.data = args->in[0].data;
	a.o.data = o->data;
	a.lse = (float *)args->in[2].data;
	a.delta = (float *)args->workspace;
	int64_t rows = (int64_t)a.batches * a.heads * a.queries;
	auto *sum = sinks_grad_kernel<T>;
	if (rows)
		hspmd_cuda_attention_find_delta(cuda, &a, args->in[1].dtype);
	if (a.heads)
		LAUNCH(sum, (unsigned)a.heads, THREADS, 0, cuda->stream, a, (const T *)args->in[3].data, (float *)args->out[0].data,
		       args->out[0].accumulate);
	return 0;
}

static int sinks_backward(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[1].dtype, sinks_grad_of, cuda, args);
}

static size_t sinks_workspace(struct hspmd_cuda *, const struct hspmd_kernel_args *args)
{
	return (size_t)(hspmd_cuda_elements(&args->in[1]) / args->attr->head_dim) * sizeof(float);
}

const struct hspmd_cuda_kernel hspmd_cuda_attention_sinks_grad = { sinks_backward, sinks_workspace };
