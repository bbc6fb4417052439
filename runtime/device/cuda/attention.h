/* SPDX-License-Identifier: Apache-2.0 */
/* What attention's kernels share: which positions see which. The kernels work on blocks of keys with a running maximum (Dao et al.,
 * "FlashAttention", arXiv 2205.14135; "FlashAttention-2", arXiv 2307.08691): no T x T matrix is ever stored. In the backward pass different
 * kernels sum the gradients of keys and of queries, each in one fixed order, so that the bits are always the same. */
#ifndef HSPMD_CUDA_ATTENTION_H
#define HSPMD_CUDA_ATTENTION_H

#include "runtime/device/cuda/attention_desc.h"
#include "runtime/device/cuda/kernel.h"

/* Returns the local kv head that local head h reads. */
static __device__ __forceinline__ int kv_of(const struct attention &a, int h)
{
	return (a.first_head + h) / a.group - a.first_kv;
}

/* Returns true if the query that is `distance` positions after a key may see it, by causality and window. */
static __device__ __forceinline__ bool is_near(const struct attention &a, int distance)
{
	return (distance >= 0 || a.bidirectional) && (!a.window || (distance < a.window && -distance < a.window));
}

static __device__ __forceinline__ bool sees(const struct attention &a, int batch, int q, int k)
{
	int distance = q + a.shift - k;
	if (q >= a.queries || k >= a.keys || !is_near(a, distance))
		return false;
	const int32_t *s = a.segments ? a.segments + batch * a.segment_length : NULL;
	return !s || s[q + a.shift] == s[k];
}

/* Returns true if all queries [q, q + queries) see all keys [k, k + keys). */
static __device__ __forceinline__ bool all_see(const struct attention &a, int q, int queries, int k, int keys)
{
	return !a.segments && q + queries <= a.queries && k + keys <= a.keys && is_near(a, q + a.shift - (k + keys - 1)) &&
	       is_near(a, q + queries - 1 + a.shift - k);
}

/* Sets [*first, *end) to the keys that some query of [q0, q0 + count) may see, by causality and window. */
static __device__ __forceinline__ void keys_seen(const struct attention &a, int q0, int count, int *first, int *end)
{
	*first = a.window && q0 + a.shift - a.window + 1 > 0 ? q0 + a.shift - a.window + 1 : 0;
	int ahead = a.bidirectional && a.window ? a.window - 1 : 0;
	bool all = (a.bidirectional && !a.window) || q0 + count + a.shift + ahead > a.keys;
	*end = all ? a.keys : q0 + count + a.shift + ahead;
}

/* Sets [*first, *end) to the queries that may see some key of [k0, k0 + count). */
static __device__ __forceinline__ void queries_seen(const struct attention &a, int k0, int count, int *first, int *end)
{
	int behind = a.bidirectional && a.window ? a.window - 1 : 0;
	bool all = (a.bidirectional && !a.window) || k0 - a.shift - behind < 0;
	*first = all ? 0 : k0 - a.shift - behind;
	*end = a.window && k0 + count - 1 - a.shift + a.window < a.queries ? k0 + count - 1 - a.shift + a.window : a.queries;
}

static __host__ __device__ __forceinline__ int64_t stats_at(const struct attention &a, int batch, int head, int q)
{
	return ((int64_t)batch * a.heads + head) * a.queries + q;
}

/* A kernel of attention: a block takes `rows` queries, or keys, of one head. */
struct attention_kernel {
	void (*run)(struct attention a, int tiles); /* tiles: blocks per head */
	int rows, threads;
	size_t shared; /* bytes of dynamic shared memory per block */
};

/* attention_launch.cu: enqueue the forward pass, and the backward pass without the computation of delta. 0, or -1 and err if a block cannot
 * have so much shared memory; then nothing is enqueued. */
int hspmd_cuda_attention_launch(struct hspmd_cuda *cuda, const struct attention *a, const struct attention_kernel *forward,
                                struct hspmd_error *err);
int hspmd_cuda_attention_grad_launch(struct hspmd_cuda *cuda, const struct attention *a, const struct attention_kernel *keys,
                                     const struct attention_kernel *queries, struct hspmd_error *err);

/* Kernels on tensor cores for BF16 (attention_mma.cu). Return false, and enqueue nothing, if they do not support such heads. The gradient
 * expects a->delta to be computed already. */
bool hspmd_cuda_attention_mma(struct hspmd_cuda *cuda, const struct attention *a);
bool hspmd_cuda_attention_mma_grad(struct hspmd_cuda *cuda, const struct attention *a);
/* The same for compute capability 9.0 alone (attention_wgmma.cu, attention_grad_wgmma.cu); the gradient also needs a->scores. */
bool hspmd_cuda_attention_wgmma(struct hspmd_cuda *cuda, const struct attention *a);
bool hspmd_cuda_attention_wgmma_grad(struct hspmd_cuda *cuda, const struct attention *a);

#endif
