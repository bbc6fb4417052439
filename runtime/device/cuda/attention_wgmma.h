/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of attention for compute capability 9.0 share (attention_wgmma.cu, attention_grad_wgmma.cu). A block has three
 * warp-groups: one copies tiles into shared memory, stage after stage, and two compute 64 rows each (Shah et al., "FlashAttention-3", arXiv
 * 2407.08608, section 3.1). Every sum has one fixed order. */
#ifndef HSPMD_CUDA_ATTENTION_WGMMA_H
#define HSPMD_CUDA_ATTENTION_WGMMA_H

#include "runtime/device/cuda/attention.h"
#include "runtime/device/cuda/tensor_map.h"
#include "runtime/device/cuda/wgmma.h"

#define HSPMD_ORDER_FUNCTION static __device__ __forceinline__
#include "runtime/device/cuda/attention_order.h"

#define ROWS (GROUPS * GROUP_ROWS)
static_assert(ROWS == DOCUMENT_TILE, "blocks skip tiles as they are found");
#define THREADS ((GROUPS + 1) * GROUP_THREADS)
#define GROUP_BYTES (GROUP_ROWS * SLAB_ROW_BYTES) /* a group's part of a slab of ROWS rows */
#define LOG2E 1.4426950408889634f

/* The slabs of a tile of D columns and so many rows, one after the other. */
template <int D> static __host__ __device__ constexpr int tile_bytes(int rows)
{
	return D / SLAB_COLUMNS * rows * SLAB_ROW_BYTES;
}

/* One thread copies rows [first, first + rows) of a head, zeros beyond the last; `rows` is the box of the map. */
template <int D>
static __device__ __forceinline__ void copy_tile(char *to, const CUtensorMap *map, int rows, int first, int head, int batch, uint64_t *b)
{
#pragma unroll
	for (int slab = 0; slab < D / SLAB_COLUMNS; slab++)
		copy_box_async(to + slab * rows * SLAB_ROW_BYTES, map, slab * SLAB_COLUMNS, first, head, batch, b);
}

/* c (64 x n) = rows of `left` times the transpose of n rows of `right`, over D columns; both are tiles of so many rows. left, right:
 * descriptors. */
template <int D, int n>
static __device__ __forceinline__ void multiply_rows(float (&c)[n / 8][4], uint64_t left, int left_rows, uint64_t right, int right_rows)
{
#pragma unroll
	for (int d = 0; d < D; d += 16) {
		int slab = d / SLAB_COLUMNS, within = d % SLAB_COLUMNS * 2;
		multiply_slabs<n, false, false>(c, descriptor_after(left, slab * left_rows * SLAB_ROW_BYTES + within),
		                                descriptor_after(right, slab * right_rows * SLAB_ROW_BYTES + within), d > 0);
	}
}

/* out (64 x D) += P (64 x rows, fragments) times the tile of so many rows that `right` describes. */
template <int D, int rows>
static __device__ __forceinline__ void multiply_columns(float (&out)[D / 8][4], const uint32_t (&p)[rows / 16][4], uint64_t right)
{
#pragma unroll
	for (int k = 0; k < rows; k += 16)
		multiply_fragment<D, true>(out, p[k / 16], descriptor_after(right, k * SLAB_ROW_BYTES), true);
}

/* An accumulator of n columns as fragments of the left operand. */
template <int n> static __device__ __forceinline__ void to_fragments(uint32_t (&p)[n / 2][4], const float (&c)[n][4])
{
#pragma unroll
	for (int i = 0; i < n; i++) {
		p[i / 2][i % 2 * 2] = pack_pair(c[i][0], c[i][1]);
		p[i / 2][i % 2 * 2 + 1] = pack_pair(c[i][2], c[i][3]);
	}
}

/* Stores 64 x D sums times factors in BF16: the thread's two rows as these rows of a head, unless they are not among the first `rows`. */
template <int D>
static __device__ __forceinline__ void store_sums(const struct head_rows &to, int batch, int head, int first, int second, int rows,
                                                  const float (&sums)[D / 8][4], const float (&factor)[2])
{
	bf16 *data = (bf16 *)to.data + batch * to.batch + (int64_t)head * D;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int r = half ? second : first;
#pragma unroll
		for (int n = 0; n < D / 8; n += 4) {
			pack<uint32_t> all;
#pragma unroll
			for (int i = 0; i < 4; i++)
				all.v[i] = pack_pair(sums[n + i][2 * half] * factor[half], sums[n + i][2 * half + 1] * factor[half]);
			transpose_pairs(all.v);
			if (r < rows)
				store_whole((pack<uint32_t> *)(data + (int64_t)r * to.row + eight_column(n)), all);
		}
	}
}

/* The document of position `at` of a sample; those without documents have one. */
static __device__ __forceinline__ int document_of(const struct attention &a, int batch, int at, int positions)
{
	return a.segments && at < positions ? a.segments[batch * a.segment_length + at] : 0;
}

/* `sees` with documents for a query or key whose document is known; the other's is at position `other`. */
static __device__ __forceinline__ bool sees_other(const struct attention &a, int batch, int q, int k, int document, int other)
{
	return q < a.queries && k < a.keys && is_near(a, q + a.shift - k) && a.segments[batch * a.segment_length + other] == document;
}

/* Columns of a tile, from number `first` on. */
struct columns {
	int first, count;
};

static __device__ __forceinline__ struct columns columns_between(int first, int last)
{
	struct columns c = { first, last < first ? 0 : last + 1 - first };
	return c;
}

/* Without documents: the keys from k0 on that query q sees, and the queries from q0 on that see key k. */
static __device__ __forceinline__ struct columns keys_of_query(const struct attention &a, int q, int k0)
{
	int own = q + a.shift - k0, first = a.window ? own - a.window + 1 : 0, last = a.window ? own + a.window - 1 : INT32_MAX - 1,
	    end = q >= a.queries ? INT32_MIN : a.keys - 1 - k0;
	last = a.bidirectional ? last : own;
	return columns_between(first, last < end ? last : end);
}

static __device__ __forceinline__ struct columns queries_of_key(const struct attention &a, int k, int q0)
{
	int own = k - a.shift - q0, first = a.window ? own - a.window + 1 : 0, last = a.window ? own + a.window - 1 : INT32_MAX - 1,
	    end = k >= a.keys ? INT32_MIN : a.queries - 1 - q0;
	return columns_between(a.bidirectional ? first : own, last < end ? last : end);
}

/* Sets what a thread's two rows of `s` do not see to `unseen`. */
template <int n> static __device__ __forceinline__ void hide_unseen(float (&s)[n][4], const struct columns (&rows)[2], float unseen)
{
#pragma unroll
	for (int j = 0; j < n; j++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			unsigned after = (unsigned)(j * 8 + fragment_column(i) - rows[i / 2].first);
			s[j][i] = after < (unsigned)rows[i / 2].count ? s[j][i] : unseen;
		}
}

/* ---- for the host */

/* The heads of a set: such that two tensors of so many rows of `group` heads of each fit into attention_cached. */
static inline int heads_together(const struct hspmd_cuda *cuda, int rows, int head_dim, int group)
{
	int64_t heads = cuda->attention_cached / ((int64_t)rows * head_dim * group * 2 * (int64_t)sizeof(bf16));
	return heads < 1 ? 1 : heads > 1024 ? 1024 : (int)heads;
}

/* Describes the heads of one tensor to the copies: boxes of so many rows of 64 columns. */
static inline bool map_heads(CUtensorMap *map, const struct attention *a, const struct head_rows *of, int rows, int heads, int box)
{
	const int64_t shape[4] = { a->head_dim, rows, heads, a->batches }, stride[3] = { of->row, a->head_dim, of->batch };
	return hspmd_cuda_tensor_map(map, of->data, shape, stride, box);
}

#endif
