/* SPDX-License-Identifier: Apache-2.0 */
/* What attention's kernels share: which positions see which. The kernels work on blocks of keys with a running maximum (Dao et al.,
 * "FlashAttention", arXiv 2205.14135; "FlashAttention-2", arXiv 2307.08691): no T x T matrix is ever stored. In the backward pass different
 * kernels sum the gradients of keys and of queries, each in one fixed order, so that the bits are always the same. */
#ifndef HSPMD_CUDA_ATTENTION_H
#define HSPMD_CUDA_ATTENTION_H

#include "runtime/device/cuda/attention_desc.h"
#include "runtime/device/cuda/mma.h"
#include "runtime/device/cuda/rotate.h"

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

static __host__ __device__ __forceinline__ int query_tiles(const struct attention &a)
{
	return (a.queries + DOCUMENT_TILE - 1) / DOCUMENT_TILE;
}

static __host__ __device__ __forceinline__ int key_tiles(const struct attention &a)
{
	return (a.keys + DOCUMENT_TILE - 1) / DOCUMENT_TILE;
}

/* The documents of the tile that has query, or key, number `at`; there must be segments. */
static __device__ __forceinline__ const struct tile_documents *documents_of(const struct attention &a, int batch, int at, bool of_keys)
{
	int tiles = query_tiles(a), first = batch * (tiles + key_tiles(a)) + (of_keys ? tiles : 0);
	return a.documents + first + at / DOCUMENT_TILE;
}

/* Returns true if [at, at + count), queries or keys within a tile, are all of `document`. */
static __device__ __forceinline__ bool all_of_document(const struct attention &a, int batch, int at, int count, bool of_keys,
                                                       int32_t document)
{
	const struct tile_documents *tile = documents_of(a, batch, at, of_keys);
	const int half = DOCUMENT_TILE / 2;
	return tile->document[at / half % 2] == document && tile->document[(at + count - 1) / half % 2] == document;
}

/* Returns true if all queries [q, q + queries), within half a tile of documents, see all keys [k, k + keys), within a tile. */
static __device__ __forceinline__ bool all_see(const struct attention &a, int batch, int q, int queries, int k, int keys)
{
	if (q + queries > a.queries || k + keys > a.keys || !is_near(a, q + a.shift - (k + keys - 1)) ||
	    !is_near(a, q + queries - 1 + a.shift - k))
		return false;
	if (!a.segments)
		return true;
	int32_t document = documents_of(a, batch, q, false)->document[q / (DOCUMENT_TILE / 2) % 2];
	return document != DOCUMENTS_MANY && all_of_document(a, batch, k, keys, true, document);
}

/* Narrows [*first, *end) to what documents leave for the tile of queries, or keys, that has number `at`. */
static __device__ __forceinline__ void narrow(const struct attention &a, int batch, int at, bool of_keys, int *first, int *end)
{
	if (!a.segments)
		return;
	const struct tile_documents *tile = documents_of(a, batch, at, of_keys);
	*first = tile->first > *first ? tile->first : *first;
	*end = tile->end < *end ? tile->end : *end;
}

/* Sets [*first, *end) to the keys that some query of [q0, q0 + count), within a tile of documents, may see by causality and window, and as
 * far as whole tiles tell by documents. */
static __device__ __forceinline__ void keys_seen(const struct attention &a, int batch, int q0, int count, int *first, int *end)
{
	*first = a.window && q0 + a.shift - a.window + 1 > 0 ? q0 + a.shift - a.window + 1 : 0;
	int ahead = a.bidirectional && a.window ? a.window - 1 : 0;
	bool all = (a.bidirectional && !a.window) || q0 + count + a.shift + ahead > a.keys;
	*end = all ? a.keys : q0 + count + a.shift + ahead;
	narrow(a, batch, q0, false, first, end);
}

/* Sets [*first, *end) to the queries that may see some key of [k0, k0 + count). */
static __device__ __forceinline__ void queries_seen(const struct attention &a, int batch, int k0, int count, int *first, int *end)
{
	int behind = a.bidirectional && a.window ? a.window - 1 : 0;
	bool all = (a.bidirectional && !a.window) || k0 - a.shift - behind < 0;
	*first = all ? 0 : k0 - a.shift - behind;
	*end = a.window && k0 + count - 1 - a.shift + a.window < a.queries ? k0 + count - 1 - a.shift + a.window : a.queries;
	narrow(a, batch, k0, true, first, end);
}

static __host__ __device__ __forceinline__ int64_t stats_at(const struct attention &a, int batch, int head, int q)
{
	return ((int64_t)batch * a.heads + head) * a.queries + q;
}

/* Turns back 16 x D fragments of the gradients of q or k, which are rounded to BF16 first, as they are where this is another kernel: the
 * thread's two rows are at these positions among the keys, if they are below `rows`. */
template <int D>
static __device__ __forceinline__ void turn_back(const struct attention &a, int first, int second, int rows, float (&sums)[D / 8][4])
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int row = half ? second : first;
		if (row >= rows)
			continue;
		const float *turns = a.angles + (int64_t)row * D + 2 * fragment_column(0);
#pragma unroll
		for (int n = 0; n < D / 16; n++) {
			float4 turn = *(const float4 *)(turns + n * 16);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float *x = &sums[n][2 * half + i], *y = &sums[n + D / 16][2 * half + i];
				*x = to_float(from_float<bf16>(*x));
				*y = to_float(from_float<bf16>(*y));
				rotate_pair(x, y, i ? turn.z : turn.x, i ? -turn.w : -turn.y);
			}
		}
	}
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

/* attention_documents.cu: enqueues what fills a->documents, if there are segments; before the kernels. */
void hspmd_cuda_attention_find_documents(struct hspmd_cuda *cuda, const struct attention *a);

/* attention_sinks.cu: enqueues the computation of a->delta; there must be queries. */
void hspmd_cuda_attention_find_delta(struct hspmd_cuda *cuda, const struct attention *a, enum hspmd_dtype dtype);

/* attention_rope.cu: turn dq and dk back in place, by a->angles or, as the operator that is a pass of its own does, by those of a call. */
void hspmd_cuda_attention_turn_back(struct hspmd_cuda *cuda, const struct attention *a, enum hspmd_dtype dtype);
int hspmd_cuda_attention_turn_back_alone(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err);

/* Kernels on tensor cores for BF16 (attention_mma.cu). Return false, and enqueue nothing, if they do not support such heads. The gradient
 * expects a->delta to be computed already; dq and dk are turned back if there are a->angles. */
bool hspmd_cuda_attention_mma(struct hspmd_cuda *cuda, const struct attention *a);
bool hspmd_cuda_attention_mma_grad(struct hspmd_cuda *cuda, const struct attention *a);
/* The same for compute capability 9.0 alone (attention_wgmma.cu, attention_grad_wgmma.cu); the gradient also needs a->scores. */
bool hspmd_cuda_attention_wgmma(struct hspmd_cuda *cuda, const struct attention *a);
bool hspmd_cuda_attention_wgmma_grad(struct hspmd_cuda *cuda, const struct attention *a);

#endif
