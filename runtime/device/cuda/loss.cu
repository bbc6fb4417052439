/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax cross-entropy over a vocabulary that may be split: the statistics of each shard's logits in one pass, the loss from all shards'
 * statistics, and the gradient of the shard's logits, in place if the program says so. */
#include "runtime/device/cuda/kernel.h"

#define MOST_THREADS 512
#define LOSS_THREADS 512

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS)
        stats_kernel(const T *logits, const int32_t *targets, float *stats, int64_t n, int64_t first, bool aligned)
{
	const int c = pack<T>::count;
	__shared__ float room[WARP];
	int64_t r = blockIdx.x;
	const T *x = logits + r * n;
	float most = -INFINITY, sum = 0;
	for (int64_t j = (int64_t)threadIdx.x * c; j < n; j += (int64_t)blockDim.x * c) {
		float v[c], high = most;
		load_pack(v, x, j, n, aligned);
		for (int i = 0; i < c; i++)
			if (j + i < n)
				high = fmaxf(high, v[i]);
		sum *= expf(most - high); /* 0 * 0 at first: most is -infinity, high is not */
		most = high;
		for (int i = 0; i < c; i++)
			if (j + i < n)
				sum += expf(v[i] - most);
	}
	float all = block_reduce<Max>(most, -INFINITY, room);
	sum = block_reduce<Sum>(most > -INFINITY ? sum * expf(most - all) : 0.0f, 0.0f, room);
	if (threadIdx.x)
		return;
	int64_t target = targets[r] - first;
	stats[3 * r] = all;
	stats[3 * r + 1] = sum;
	stats[3 * r + 2] = targets[r] >= 0 && target >= 0 && target < n ? to_float(x[target]) : 0.0f;
}

/* Computes the log of the sum of exponentials over all shards, and the target's logit, of row r. stats is [parts][rows][3]. */
static __device__ __forceinline__ double log_sum(const float *stats, int64_t parts, int64_t rows, int64_t r, double *target)
{
	float most = stats[3 * r];
	double sum = 0;
	*target = 0;
	for (int64_t p = 0; p < parts; p++) {
		const float *s = stats + 3 * (p * rows + r);
		most = fmaxf(most, s[0]);
		*target += s[2];
	}
	for (int64_t p = 0; p < parts; p++) {
		const float *s = stats + 3 * (p * rows + r);
		sum += s[1] * exp((double)(s[0] - most));
	}
	return (double)most + log(sum);
}

/* One block; every thread sums its rows in order, then the block sums its threads. */
static __global__ void __launch_bounds__(LOSS_THREADS)
        loss_kernel(const float *stats, const int32_t *targets, double *out, int64_t parts, int64_t rows, double scale, bool accumulate)
{
	__shared__ double room[WARP];
	double total = 0, target;
	for (int64_t r = threadIdx.x; r < rows; r += blockDim.x)
		if (targets[r] >= 0)
			total += log_sum(stats, parts, rows, r, &target) - target;
	total = block_reduce<Sum>(total, 0.0, room);
	if (threadIdx.x == 0)
		*out = (accumulate ? *out : 0) + scale * total;
}

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS)
        loss_grad_kernel(const T *logits, const int32_t *targets, const float *stats, T *dlogits, int64_t parts, int64_t rows, int64_t n,
                         int64_t first, float scale, bool aligned)
{
	const int c = pack<T>::count;
	int64_t r = blockIdx.x, target = targets[r] - first;
	double ignored;
	bool counts = targets[r] >= 0;
	float shift = counts ? (float)log_sum(stats, parts, rows, r, &ignored) : 0.0f;
	for (int64_t j = (int64_t)threadIdx.x * c; j < n; j += (int64_t)blockDim.x * c) {
		float v[c];
		load_pack(v, logits + r * n, j, n, aligned);
		for (int i = 0; i < c; i++)
			v[i] = counts ? scale * (expf(v[i] - shift) - (j + i == target ? 1.0f : 0.0f)) : 0.0f;
		store_pack(dlogits + r * n, v, j, n, aligned);
	}
}

template <typename T> static int stats_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *logits = &args->in[0];
	int64_t rows = hspmd_cuda_row_count(logits), n = hspmd_cuda_row_length(logits);
	auto *kernel = stats_kernel<T>;
	if (rows)
		LAUNCH(kernel, (unsigned)rows, row_threads(n, pack<T>::count, MOST_THREADS), 0, cuda->stream, (const T *)logits->data,
		       (const int32_t *)args->in[1].data, (float *)args->out[0].data, n, logits->start[logits->rank - 1],
		       is_aligned16<T>(n));
	return 0;
}

template <typename T> static int grad_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *logits = &args->in[0], *stats = &args->in[2];
	int64_t rows = hspmd_cuda_row_count(logits), n = hspmd_cuda_row_length(logits);
	auto *kernel = loss_grad_kernel<T>;
	if (rows)
		LAUNCH(kernel, (unsigned)rows, row_threads(n, pack<T>::count, MOST_THREADS), 0, cuda->stream, (const T *)logits->data,
		       (const int32_t *)args->in[1].data, (const float *)stats->data, (T *)args->out[0].data, stats->shape[0], rows, n,
		       logits->start[logits->rank - 1], (float)args->attr->scale, is_aligned16<T>(n));
	return 0;
}

static int vocab_stats(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, stats_of, cuda, args);
}

static int loss(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	const struct hspmd_view *stats = &args->in[0];
	LAUNCH(loss_kernel, 1, LOSS_THREADS, 0, cuda->stream, (const float *)stats->data, (const int32_t *)args->in[1].data,
	       (double *)args->out[0].data, stats->shape[0], hspmd_cuda_elements(&args->in[1]), args->attr->scale, args->out[0].accumulate);
	return 0;
}

static int loss_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, grad_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_vocab_stats = { vocab_stats, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_loss = { loss, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_loss_grad = { loss_grad, NULL };
