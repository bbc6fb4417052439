/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax cross-entropy over a vocabulary that may be split: the statistics of each shard's logits in one pass, the loss from all shards'
 * statistics, and the gradient of the shard's logits, in place if the program says so. Of a vocabulary that is whole, statistics and
 * gradient in one pass: a block keeps its row in shared memory between the two, if it fits. All are bound by memory: stats_kernel reads
 * the logits, loss_grad_kernel reads and writes them, cross_entropy_kernel reads and writes them (longer rows: reads them twice, the
 * second time from L2). */
#include "runtime/device/cuda/kernel.h"
#include "runtime/device/step_values.h"

#define MOST_THREADS 512
#define LOSS_THREADS 512
#define KEPT_MOST (99 * 1024 - 512) /* bytes of a row: with the block's sums, what a block may have on every GPU */

/* Statistics of a row: its largest element, the sum of exponentials from there, its target's logit and the sum of all. */
struct row_stats {
	float most, sum, at, plain;
};

/* Every thread of the block gets the same but for `at`, which the first gets. keep: each thread copies the elements that it reads to the
 * same places of `kept`. target: index in the row; -1: none. */
template <typename T, bool keep>
static __device__ __forceinline__ struct row_stats stats_of_row(const T *x, T *kept, int64_t n, int64_t target, bool wants_plain,
                                                                bool aligned, float *room)
{
	const int c = pack<T>::count;
	struct row_stats s = { -INFINITY, 0, 0, 0 };
	if (threadIdx.x == 0 && target >= 0 && target < n)
		s.at = to_float(x[target]); /* before any thread may write the gradient in its place */
	float most = -INFINITY;
	for (int64_t j = (int64_t)threadIdx.x * c; j < n; j += (int64_t)blockDim.x * c) {
		float v[c], high = most;
		pack<T> raw = load_raw(x, j, n, aligned);
		if (keep)
			*(pack<T> *)(kept + j) = raw;
		for (int i = 0; i < c; i++) {
			v[i] = to_float(raw.v[i]);
			if (j + i < n)
				high = fmaxf(high, v[i]);
		}
		s.sum *= expf(most - high); /* 0 * 0 at first: most is -infinity, high is not */
		most = high;
		for (int i = 0; i < c; i++)
			if (j + i < n) {
				s.sum += expf(v[i] - most);
				s.plain += v[i];
			}
	}
	if (wants_plain)
		s.plain = block_reduce<Sum>(s.plain, 0.0f, room);
	s.most = block_reduce<Max>(most, -INFINITY, room);
	s.sum = block_reduce<Sum>(most > -INFINITY ? s.sum * expf(most - s.most) : 0.0f, 0.0f, room);
	return s;
}

static __device__ __forceinline__ void write_stats(float *stats, int width, const struct row_stats &s, int64_t vocabulary)
{
	stats[0] = s.most;
	stats[1] = s.sum;
	stats[2] = s.at;
	if (width > 3)
		stats[3] = s.plain / (float)vocabulary;
}

/* Where a shard's logits are: rows of n elements, `stride` apart, from element `first` of the vocabulary on. */
struct shard {
	int64_t n, stride, first, vocabulary;
	bool aligned;       /* rows begin on multiples of 16 bytes */
	float one, uniform; /* what the gradient subtracts at the target, and everywhere */
};

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS)
        stats_kernel(const T *logits, const int32_t *targets, float *stats, int width, struct shard of)
{
	__shared__ float room[WARP];
	int64_t r = blockIdx.x, target = targets[r] < 0 ? -1 : targets[r] - of.first;
	struct row_stats s = stats_of_row<T, false>(logits + r * of.stride, (T *)NULL, of.n, target, width > 3, of.aligned, room);
	if (threadIdx.x == 0)
		write_stats(stats + width * r, width, s, of.vocabulary);
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
	const struct hspmd_step_values *values; /* NULL: of a step whose losses have no factor of their own */
};

/* What row r counts: 0 if its target is ignored. */
template <typename T> static __device__ __forceinline__ double weight_of(const struct tokens &t, int64_t r)
{
	if (t.targets[r] < 0 || (t.ignores && t.targets[r] == t.ignored))
		return 0;
	double scale = t.values ? t.scale * t.values->loss_factor : t.scale;
	return scale * (t.weights ? (double)to_float(((const T *)t.weights)[r]) : 1.0);
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

/* What the gradient of a row needs to know besides its logits. */
struct row_grad {
	float scale, shift; /* scale: 0 if the target is ignored */
	int64_t target;
};

template <typename T> static __device__ __forceinline__ struct row_grad grad_of(const struct tokens &t, const struct shard &of, int64_t r)
{
	return { (float)weight_of<T>(t, r), 0, t.targets[r] - of.first };
}

/* x: the row, or its copy in shared memory. */
template <typename T>
static __device__ __forceinline__ void write_grad(const T *x, bool x_aligned, T *dx, const struct shard &of, const struct row_grad &g)
{
	const int c = pack<T>::count;
	bool counts = g.scale != 0.0f;
	for (int64_t j = (int64_t)threadIdx.x * c; j < of.n; j += (int64_t)blockDim.x * c) {
		float v[c];
		load_pack(v, x, j, of.n, x_aligned);
		for (int i = 0; i < c; i++)
			v[i] = counts ? g.scale * (expf(v[i] - g.shift) - of.uniform - (j + i == g.target ? of.one : 0.0f)) : 0.0f;
		store_pack(dx, v, j, of.n, of.aligned);
	}
}

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS)
        loss_grad_kernel(struct tokens t, const T *logits, T *dlogits, struct shard of, int64_t dstride)
{
	__shared__ float shift;
	int64_t r = blockIdx.x;
	double ignored;
	struct row_grad g = grad_of<T>(t, of, r);
	if (threadIdx.x == 0)
		shift = g.scale != 0.0f ? (float)log_sum(t, r, &ignored) : 0.0f;
	__syncthreads();
	g.shift = shift;
	write_grad(logits + r * of.stride, of.aligned, dlogits + r * dstride, of, g);
}

/* A block's row: both of the above with the same sums in the same order, and so the same bits. */
template <typename T, bool keep>
static __global__ void __launch_bounds__(MOST_THREADS)
        cross_entropy_kernel(struct tokens t, const T *logits, T *dlogits, float *stats, struct shard of, int64_t dstride)
{
	__shared__ float room[WARP], shift;
	DYNAMIC_SHARED(T, kept);
	int64_t r = blockIdx.x;
	const T *x = logits + r * of.stride;
	struct row_grad g = grad_of<T>(t, of, r);
	struct row_stats s = stats_of_row<T, keep>(x, kept, of.n, t.targets[r] < 0 ? -1 : g.target, t.width > 3, of.aligned, room);
	if (threadIdx.x == 0)
		shift = (float)((double)s.most + log((double)s.sum)); /* one thread: logarithms in double precision are dear */
	__syncthreads();
	g.shift = shift;
	write_grad(keep ? kept : x, keep || of.aligned, dlogits + r * dstride, of, g);
	if (threadIdx.x == 0)
		write_stats(stats + t.width * r, t.width, s, of.vocabulary);
}

/* aligned: also those of the gradient are, if there is one. */
template <typename T> static struct shard shard_of(const struct hspmd_kernel_args *args, const struct hspmd_view *gradient)
{
	const struct hspmd_view *logits = &args->in[0];
	int64_t stride = hspmd_cuda_row_stride(logits), dstride = gradient ? hspmd_cuda_row_stride(gradient) : stride;
	struct shard of = {};
	of.n = hspmd_cuda_row_length(logits);
	of.stride = stride;
	of.first = logits->start[logits->rank - 1];
	of.vocabulary = logits->full[logits->rank - 1];
	of.aligned = is_aligned16<T>(stride) && is_aligned16<T>(dstride);
	of.one = (float)(1 - args->attr->smoothing);
	of.uniform = (float)(args->attr->smoothing / (double)of.vocabulary);
	return of;
}

template <typename T> static int stats_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *logits = &args->in[0];
	int64_t rows = hspmd_cuda_row_count(logits);
	auto *kernel = stats_kernel<T>;
	if (rows)
		LAUNCH(kernel, (unsigned)rows, row_threads(hspmd_cuda_row_length(logits), pack<T>::count, MOST_THREADS), 0, cuda->stream,
		       (const T *)logits->data, (const int32_t *)args->in[1].data, (float *)args->out[0].data,
		       (int)hspmd_cuda_row_length(&args->out[0]), shard_of<T>(args, NULL));
	return 0;
}

/* weights: input number. */
static struct tokens tokens_of(const struct hspmd_kernel_args *args, const struct hspmd_view *stats, int weights)
{
	struct tokens t = {};
	t.stats = (const float *)stats->data;
	t.targets = (const int32_t *)args->in[1].data;
	t.weights = args->input_count > weights && args->in[weights].rank >= 0 ? args->in[weights].data : NULL;
	t.parts = stats->shape[0];
	t.rows = hspmd_cuda_elements(&args->in[1]);
	t.width = (int)hspmd_cuda_row_length(stats);
	t.ignores = args->attr->ignores;
	t.ignored = args->attr->numbers[0];
	t.scale = args->attr->scale;
	t.smoothing = args->attr->smoothing;
	t.values = args->values;
	return t;
}

template <typename T> static int loss_grad_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	const struct hspmd_view *logits = &args->in[0], *gradient = &args->out[0];
	int64_t rows = hspmd_cuda_row_count(logits);
	auto *kernel = loss_grad_kernel<T>;
	if (rows)
		LAUNCH(kernel, (unsigned)rows, row_threads(hspmd_cuda_row_length(logits), pack<T>::count, MOST_THREADS), 0, cuda->stream,
		       tokens_of(args, &args->in[2], 3), (const T *)logits->data, (T *)gradient->data, shard_of<T>(args, gradient),
		       hspmd_cuda_row_stride(gradient));
	return 0;
}

/* Bytes of shared memory for a row; 0: it does not fit. */
template <typename T> static size_t kept_bytes(const struct hspmd_kernel_args *args)
{
	const int c = pack<T>::count;
	size_t bytes = (size_t)(ceil_div(hspmd_cuda_row_length(&args->in[0]), c) * c) * sizeof(T);
	return bytes <= KEPT_MOST ? bytes : 0;
}

template <typename T> static int allow_kept(const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	auto *kernel = cross_entropy_kernel<T, true>;
	cudaError_t status = allow_shared((const void *)kernel, kept_bytes<T>(args));
	return status ? hspmd_cuda_failed(status, "a row of logits in shared memory", err) : 0;
}

template <typename T> static int cross_entropy_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	const struct hspmd_view *logits = &args->in[0], *gradient = &args->out[0], *stats = &args->out[1];
	int64_t rows = hspmd_cuda_row_count(logits);
	size_t kept = kept_bytes<T>(args);
	auto *kernel = kept ? cross_entropy_kernel<T, true> : cross_entropy_kernel<T, false>;
	if (!args->prepared && allow_kept<T>(args, err))
		return -1;
	if (rows)
		LAUNCH(kernel, (unsigned)rows, row_threads(hspmd_cuda_row_length(logits), pack<T>::count, MOST_THREADS), kept, cuda->stream,
		       tokens_of(args, stats, 2), (const T *)logits->data, (T *)gradient->data, (float *)stats->data,
		       shard_of<T>(args, gradient), hspmd_cuda_row_stride(gradient));
	return 0;
}

static int vocab_stats(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, stats_of, cuda, args);
}

template <typename T> static int loss_of(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	auto *kernel = loss_kernel<T>;
	LAUNCH(kernel, 1, LOSS_THREADS, 0, cuda->stream, tokens_of(args, &args->in[0], 2), (double *)args->out[0].data,
	       args->out[0].accumulate);
	return 0;
}

static int loss(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	bool weighted = args->input_count > 2 && args->in[2].rank >= 0;
	return BY_TYPE(weighted ? args->in[2].dtype : HSPMD_F32, loss_of, cuda, args);
}

static int loss_grad(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *)
{
	return BY_TYPE(args->in[0].dtype, loss_grad_of, cuda, args);
}

static int cross_entropy(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	return BY_TYPE(args->in[0].dtype, cross_entropy_of, cuda, args, err);
}

static int prepare_cross_entropy(struct hspmd_cuda *, const struct hspmd_kernel_args *args, struct hspmd_prepared *,
                                 struct hspmd_error *err)
{
	return BY_TYPE(args->in[0].dtype, allow_kept, args, err);
}

const struct hspmd_cuda_kernel hspmd_cuda_vocab_stats = { vocab_stats, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_loss = { loss, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_loss_grad = { loss_grad, NULL };
const struct hspmd_cuda_kernel hspmd_cuda_cross_entropy = { cross_entropy, NULL, NULL, prepare_cross_entropy };
