/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax cross-entropy over a vocabulary that may be split: the statistics of each shard's logits in one pass, the loss from all shards'
 * statistics, and the gradient of the shard's logits, in place if the program says so. */
#include "runtime/device/cuda/kernel.h"

#define MOST_THREADS 512
#define LOSS_THREADS 512

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS) stats_kernel(const T *logits, const int32_t *targets, float *stats, int width,
                                                                    int64_t n, int64_t first, int64_t vocabulary, bool aligned)
{
	const int c = pack<T>::count;
	__shared__ float room[WARP];
	int64_t r = blockIdx.x;
	const T *x = logits + r * n;
	float most = -INFINITY, sum = 0, plain = 0;
	for (int64_t j = (int64_t)threadIdx.x * c; j < n; j += (int64_t)blockDim.x * c) {
		float v[c], high = most;
		load_pack(v, x, j, n, aligned);
		for (int i = 0; i < c; i++)
			if (j + i < n)
				high = fmaxf(high, v[i]);
		sum *= expf(most - high); /* 0 * 0 at first: most is -infinity, high is not */
		most = high;
		for (int i = 0; i < c; i++)
			if (j + i < n) {
				sum += expf(v[i] - most);
				plain += v[i];
			}
	}
	if (width > 3)
		plain = block_reduce<Sum>(plain, 0.0f, room);
	float all = block_reduce<Max>(most, -INFINITY, room);
	sum = block_reduce<Sum>(most > -INFINITY ? sum * expf(most - all) : 0.0f, 0.0f, room);
	if (threadIdx.x)
		return;
	int64_t target = targets[r] - first;
	stats += width * r;
	stats[0] = all;
	stats[1] = sum;
	stats[2] = targets[r] >= 0 && target >= 0 && target < n ? to_float(x[target]) : 0.0f;
	if (width > 3)
		stats[3] = plain / (float)vocabulary;
}

/* What the loss and its gradient know of all tokens. */
struct tokens {
	const float *stats; /* [parts][rows][width] */
	const int32_t *targets;
	const void *weights; /* NULL: all are 1 */
	int64_t parts, rows, ignored;
	int width;
	bool ignores;
	double scale, smoothing;
};

/* What row r counts: 0 if its target is ignored. */
template <typename T> static __device__ __forceinline__ double weight_of(const struct tokens &t, int64_t r)
{
	if (t.targets[r] < 0 || (t.ignores && t.targets[r] == t.ignored))
		return 0;
	return t.scale * (t.weights ? (double)to_float(((const T *)t.weights)[r]) : 1.0);
}

/* Computes the log of the sum of exponentials over all shards, and the target's logit, with smoothing, of row r. */
static __device__ __forceinline__ double log_sum(const struct tokens &t, int64_t r, double *target)
{
	float most = t.stats[t.width * r];
	double sum = 0;
	*target = 0;
	for (int64_t p = 0; p < t.parts; p++) {
		const float *s = t.stats + t.width * (p * t.rows + r);
		most = fmaxf(most, s[0]);
		*target += t.width > 3 ? (1 - t.smoothing) * s[2] + t.smoothing * s[3] : (double)s[2];
	}
	for (int64_t p = 0; p < t.parts; p++) {
		const float *s = t.stats + t.width * (p * t.rows + r);
		sum += s[1] * exp((double)(s[0] - most));
	}
	return (double)most + log(sum);
}

/* One block; every thread sums its rows in order, then the block sums its threads. */
template <typename T> static __global__ void __launch_bounds__(LOSS_THREADS) loss_kernel(struct tokens t, double *out, bool accumulate)
{
	__shared__ double room[WARP];
	double total = 0, target;
	for (int64_t r = threadIdx.x; r < t.rows; r += blockDim.x) {
		double weight = weight_of<T>(t, r);
		if (weight != 0)
			total += weight * (log_sum(t, r, &target) - target);
	}
	total = block_reduce<Sum>(total, 0.0, room);
	if (threadIdx.x == 0)
		*out = (accumulate ? *out : 0) + total;
}

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS)
        loss_grad_kernel(struct tokens t, const T *logits, T *dlogits, int64_t n, int64_t first, int64_t vocabulary, bool aligned)
{
	const int c = pack<T>::count;
	int64_t r = blockIdx.x, target = t.targets[r] - first;
	double ignored;
	float scale = (float)weight_of<T>(t, r), one = (float)(1 - t.smoothing), uniform = (float)(t.smoothing / (double)vocabulary);
	bool counts = scale != 0.0f;
	float shift = counts ? (float)log_sum(t, r, &ignored) : 0.0f;
	for (int64_t j = (int64_t)threadIdx.x * c; j < n; j += (int64_t)blockDim.x * c) {
		float v[c];
		load_pack(v, logits + r * n, j, n, aligned);
		for (int i = 0; i < c; i++)
			v[i] = counts ? scale * (expf(v[i] - shift) - uniform - (j + i == target ? one : 0.0f)) : 0.0f;
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
		       (const int32_t *)args->in[1].data, (float *)args->out[0].data, (int)hspmd_cuda_row_length(&args->out[0]), n,
		       logits->start[logits->rank - 1], logits->full[logits->rank - 1], is_aligned16<T>(n));
	return 0;
}

/* stats, weights: input numbers. */
static struct tokens tokens_of(const struct hspmd_kernel_args *args, int stats, int weights)
{
	struct tokens t = {};
	t.stats = (const float *)args->in[stats].data;
	t.targets = (const int32_t *)args->in[1].data;
	t.weights = args->input_count > weights && args->in[weights].rank >= 0 ? args->in[weights].data : NULL;
	t.parts = args->in[stats].shape[0];
	t.rows = hspmd_cuda_elements(&args->in[1]);
	t.width = (int)hspmd_cuda_row_length(&args->in[stats]);
	t.ignores = args->attr->ignores;
	t.ignored = args->attr->numbers[0];
	t.scale = args->attr->scale;
	t.smoothing = args->attr->smoothing;
	return t;
}

template <typename T> static int grad_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *logits = &args->in[0];
	int64_t rows = hspmd_cuda_row_count(logits), n = hspmd_cuda_row_length(logits);
	auto *kernel = loss_grad_kernel<T>;
	if (rows)
		LAUNCH(kernel, (unsigned)rows, row_threads(n, pack<T>::count, MOST_THREADS), 0, cuda->stream, tokens_of(args, 2, 3),
		       (const T *)logits->data, (T *)args->out[0].data, n, logits->start[logits->rank - 1], logits->full[logits->rank - 1],
		       is_aligned16<T>(n));
	return 0;
}

static int vocab_stats(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, stats_of, cuda, args);
}

template <typename T> static int loss_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	auto *kernel = loss_kernel<T>;
	LAUNCH(kernel, 1, LOSS_THREADS, 0, cuda->stream, tokens_of(args, 0, 2), (double *)args->out[0].data, args->out[0].accumulate);
	return 0;
}

static int loss(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	bool weighted = args->input_count > 2 && args->in[2].rank >= 0;
	return BY_TYPE(weighted ? args->in[2].dtype : HSPMD_F32, loss_of, cuda, args);
}

static int loss_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, grad_of, cuda, args);
}

const struct hspmd_cuda_kernel hspmd_cuda_vocab_stats = { vocab_stats, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_loss = { loss, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_loss_grad = { loss_grad, NULL };
