/* SPDX-License-Identifier: Apache-2.0 */
/* Which tiles of attention documents leave. A block finds for one tile of queries the keys that they may see, or for one tile of keys the
 * queries that may see them, so that the kernels of attention skip what lies entirely in other documents.
 *
 * Let s be the document of each position. A tile whose positions are [begin, end) has low, the least of s from `begin` on, and high, the
 * largest of s before `end`. Two tiles meet if each has a low that is at most the other's high. That holds wherever two positions have the
 * same document, whatever numbers documents have; where numbers ascend, as in samples that are packed, hardly anywhere else. It is
 * symmetric, so that the backward pass writes the gradients of all scores that it reads. And since low and high never descend from one tile
 * to the next, the tiles that meet one are neighbours: from the first position with s >= low to the last with s <= high.
 *
 * Each block reads all documents of a sample twice: 8 bytes a position, from the L2 cache. */
#include "runtime/device/cuda/attention.h"

#define THREADS 256

/* Calls f(position, its document) for [begin, end), each by one thread. */
template <typename F> static __device__ __forceinline__ void each_position(const int32_t *documents, int begin, int end, F f)
{
	for (int at = begin + (int)threadIdx.x; at < end; at += THREADS)
		f(at, documents[at]);
}

/* The document of all positions, or DOCUMENTS_MANY. */
static __device__ __forceinline__ int32_t common_document(const int32_t *documents, int begin, int end, int32_t *room)
{
	int32_t low = INT32_MAX, high = INT32_MIN;
	each_position(documents, begin, end, [&](int, int32_t s) {
		low = Min::combine(low, s);
		high = Max::combine(high, s);
	});
	low = block_reduce<Min>(low, INT32_MAX, room);
	high = block_reduce<Max>(high, INT32_MIN, room);
	return low == high ? low : DOCUMENTS_MANY;
}

static __global__ void __launch_bounds__(THREADS) documents_kernel(struct attention a, struct tile_documents *to)
{
	__shared__ int32_t room[WARP];
	const int32_t *documents = a.segments + (int64_t)blockIdx.y * a.segment_length;
	bool of_keys = (int)blockIdx.x >= query_tiles(a);
	int tile = (int)blockIdx.x - (of_keys ? query_tiles(a) : 0), shift = of_keys ? 0 : a.shift, other_shift = of_keys ? a.shift : 0;
	int all = Max::combine(a.keys, a.queries + a.shift), begin = tile * DOCUMENT_TILE + shift,
	    end = Min::combine(begin + DOCUMENT_TILE, of_keys ? a.keys : a.queries + a.shift), others = of_keys ? a.queries : a.keys;
	int32_t low = INT32_MAX, high = INT32_MIN;
	each_position(documents, 0, all, [&](int at, int32_t s) {
		low = at >= begin ? Min::combine(low, s) : low;
		high = at < end ? Max::combine(high, s) : high;
	});
	low = block_reduce<Min>(low, INT32_MAX, room);
	high = block_reduce<Max>(high, INT32_MIN, room);
	int first = all, last = -1;
	each_position(documents, 0, all, [&](int at, int32_t s) {
		first = s >= low ? Min::combine(first, at) : first;
		last = s <= high ? Max::combine(last, at) : last;
	});
	struct tile_documents found = {};
	found.first = Max::combine(block_reduce<Min>(first, all, room) - other_shift, 0);
	found.end = Min::combine(block_reduce<Max>(last, -1, room) + 1 - other_shift, others);
	for (int half = 0; half < 2; half++) {
		int from = begin + half * DOCUMENT_TILE / 2;
		found.document[half] = common_document(documents, from, Min::combine(from + DOCUMENT_TILE / 2, end), room);
	}
	if (threadIdx.x == 0)
		to[(int64_t)blockIdx.y * gridDim.x + blockIdx.x] = found;
}

void hspmd_cuda_attention_find_documents(struct hspmd_cuda *cuda, const struct attention *a)
{
	if (!a->segments || a->stage == ATTENTION_PREPARING)
		return;
	dim3 grid((unsigned)(query_tiles(*a) + key_tiles(*a)), (unsigned)a->batches);
	LAUNCH(documents_kernel, grid, THREADS, 0, cuda->stream, *a, a->documents);
}
