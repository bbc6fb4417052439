/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in BF16 on tensor cores, for heads of 64 and 128. A block of four warps takes ROWS queries (for the gradients of keys and
 * values, ROWS keys), 16 per warp. It goes over the other side in steps, each of which is copied into shared memory one step ahead. */
#include "runtime/device/cuda/attention.h"
#include "runtime/device/cuda/mma.h"

#define WARPS 4
#define THREADS (WARPS * WARP)
#define ROWS (16 * WARPS)
#define STEP 32 /* rows of the other side per step */
#define PAD 8   /* elements after each row in shared memory, so that eight rows are in different banks */
#define TILES (STEP / 8)
#define HIDDEN -1e30f
#define LOG2E 1.4426950408889634f

/* Copies rows [first, first + count) of a head into shared memory, zeros beyond the last. */
template <int D, int count>
static __device__ __forceinline__ void copy_rows(bf16 *to, const struct head_rows &from, int batch, int head, int first, int rows)
{
	const bf16 *data = (const bf16 *)from.data + batch * from.batch + (int64_t)head * D;
	for (int i = threadIdx.x; i < count * D / 8; i += THREADS) {
		int r = i / (D / 8), c = i % (D / 8) * 8;
		bool valid = first + r < rows;
		copy_async(to + r * (D + PAD) + c, data + (valid ? (int64_t)(first + r) * from.row : 0) + c, valid);
	}
}

/* Loads the left operand: 16 rows from `row`, 16 columns from `column`. */
template <int D> static __device__ __forceinline__ void load_left(uint32_t *a, const bf16 *tile, int row, int column)
{
	int lane = threadIdx.x % WARP;
	load_matrices(a, tile + (row + lane % 16) * (D + PAD) + column + lane / 16 * 8);
}

/* c[TILES] += A (16 x D, fragments by load_left) times the transpose of STEP rows of a tile. */
template <int D> static __device__ __forceinline__ void multiply_rows(float (*c)[4], const bf16 *left, int row, const bf16 *right)
{
	int lane = threadIdx.x % WARP;
#pragma unroll
	for (int k = 0; k < D; k += 16) {
		uint32_t a[4], b[4];
		load_left<D>(a, left, row, k);
#pragma unroll
		for (int n = 0; n < TILES; n += 2) {
			load_matrices(b, right + (n * 8 + lane % 8 + lane / 16 * 8) * (D + PAD) + k + lane / 8 % 2 * 8);
			multiply_add(c[n], a, b[0], b[1]);
			multiply_add(c[n + 1], a, b[2], b[3]);
		}
	}
}

/* out[D / 8] += P (16 x STEP, as multiply_rows computes it) times STEP rows of a tile. */
template <int D> static __device__ __forceinline__ void multiply_columns(float (*out)[4], const float (*p)[4], const bf16 *right)
{
	int lane = threadIdx.x % WARP;
#pragma unroll
	for (int k = 0; k < TILES; k += 2) {
		uint32_t a[4] = { pack_pair(p[k][0], p[k][1]), pack_pair(p[k][2], p[k][3]), pack_pair(p[k + 1][0], p[k + 1][1]),
			          pack_pair(p[k + 1][2], p[k + 1][3]) };
#pragma unroll
		for (int n = 0; n < D / 8; n += 2) {
			uint32_t b[4];
			load_matrices_trans(b, right + (k * 8 + lane % 16) * (D + PAD) + n * 8 + lane / 16 * 8);
			multiply_add(out[n], a, b[0], b[1]);
			multiply_add(out[n + 1], a, b[2], b[3]);
		}
	}
}

/* Stores 16 x D sums as rows of a head in BF16. */
template <int D>
static __device__ __forceinline__ void store_rows(const struct head_rows &to, int batch, int head, int first, int rows,
                                                  const float (*sums)[4], const float *factor)
{
	bf16 *data = (bf16 *)to.data + batch * to.batch + (int64_t)head * D;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int r = first + fragment_row(2 * half);
		if (r >= rows)
			continue;
#pragma unroll
		for (int n = 0; n < D / 8; n++)
			*(uint32_t *)(data + (int64_t)r * to.row + n * 8 + fragment_column(0)) =
			        pack_pair(sums[n][2 * half] * factor[half], sums[n][2 * half + 1] * factor[half]);
	}
}

template <int D> static __global__ void __launch_bounds__(THREADS) forward_kernel(struct attention a, int tiles)
{
	DYNAMIC_SHARED(bf16, shared);
	bf16 *query = shared, *keys = query + ROWS * (D + PAD), *values = keys + 2 * STEP * (D + PAD);
	int q0 = (tiles - 1 - (int)(blockIdx.x % tiles)) * ROWS, head = blockIdx.x / tiles % a.heads, batch = blockIdx.x / tiles / a.heads,
	    first, end;
	int own = threadIdx.x / WARP * 16, kv = kv_of(a, head), stage = 0;
	float out[D / 8][4] = {}, high[2] = { HIDDEN, HIDDEN }, sum[2] = {}, scale = a.scale * LOG2E;
	keys_seen(a, batch, q0, ROWS, &first, &end);
	first = first / STEP * STEP;
	copy_rows<D, ROWS>(query, a.q, batch, head, q0, a.queries);
	copy_rows<D, STEP>(keys, a.k, batch, kv, first, a.keys);
	copy_rows<D, STEP>(values, a.v, batch, kv, first, a.keys);
	copies_commit();
	for (int k0 = first; k0 < end; k0 += STEP, stage ^= 1) {
		if (k0 + STEP < end) {
			copy_rows<D, STEP>(keys + (stage ^ 1) * STEP * (D + PAD), a.k, batch, kv, k0 + STEP, a.keys);
			copy_rows<D, STEP>(values + (stage ^ 1) * STEP * (D + PAD), a.v, batch, kv, k0 + STEP, a.keys);
		}
		copies_commit();
		copies_wait<1>();
		__syncthreads();
		float s[TILES][4] = {}, now[2] = { high[0], high[1] }, factor[2], more[2] = {};
		multiply_rows<D>(s, query, own, keys + stage * STEP * (D + PAD));
		bool inside = all_see(a, batch, q0 + own, 16, k0, STEP);
#pragma unroll
		for (int n = 0; n < TILES; n++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				bool seen = inside || sees(a, batch, q0 + own + fragment_row(i), k0 + n * 8 + fragment_column(i));
				s[n][i] = seen ? s[n][i] * scale : HIDDEN;
				now[i / 2] = fmaxf(now[i / 2], s[n][i]);
			}
		for (int h = 0; h < 2; h++) {
			now[h] = warp_reduce<Max>(now[h], 4);
			factor[h] = exp2f(high[h] - now[h]);
			high[h] = now[h];
		}
#pragma unroll
		for (int n = 0; n < TILES; n++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				s[n][i] = s[n][i] > HIDDEN ? exp2f(s[n][i] - now[i / 2]) : 0.0f;
				more[i / 2] += s[n][i];
			}
		for (int h = 0; h < 2; h++)
			sum[h] = sum[h] * factor[h] + warp_reduce<Sum>(more[h], 4);
#pragma unroll
		for (int n = 0; n < D / 8; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				out[n][i] *= factor[i / 2];
		multiply_columns<D>(out, s, values + stage * STEP * (D + PAD));
		__syncthreads(); /* all are done with this stage */
	}
	/* A query that sees no key has a sum of 0, and zeros as its result. */
	float inverse[2] = { sum[0] > 0.0f ? 1.0f / sum[0] : 0.0f, sum[1] > 0.0f ? 1.0f / sum[1] : 0.0f };
	store_rows<D>(a.o, batch, head, q0 + own, a.queries, out, inverse);
	for (int h = 0; h < 2; h++)
		if (threadIdx.x % 4 == 0 && q0 + own + fragment_row(2 * h) < a.queries)
			a.lse[stats_at(a, batch, head, q0 + own + fragment_row(2 * h))] =
			        sum[h] > 0.0f ? (high[h] + log2f(sum[h])) / LOG2E : HIDDEN;
}

/* On entry s holds the scores and ds the gradients of their probabilities; on return s holds the probabilities and ds the gradients of the
 * scores. transposed: rows are keys. */
static __device__ __forceinline__ void differentiate(const struct attention &a, int batch, int q0, int k0, bool transposed, bool inside,
                                                     float (*s)[4], float (*ds)[4], const float *lse, const float *delta)
{
#pragma unroll
	for (int n = 0; n < TILES; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int r = fragment_row(i), c = n * 8 + fragment_column(i), q = transposed ? c : r, k = transposed ? r : c;
			bool seen = inside || sees(a, batch, q0 + q, k0 + k);
			float p = seen ? exp2f((s[n][i] * a.scale - lse[transposed ? c : i / 2]) * LOG2E) : 0.0f;
			ds[n][i] = p * (ds[n][i] - delta[transposed ? c : i / 2]) * a.scale;
			s[n][i] = p;
		}
}

template <int D> static __global__ void __launch_bounds__(THREADS) keys_grad_kernel(struct attention a, int tiles)
{
	DYNAMIC_SHARED(bf16, shared);
	bf16 *key = shared, *value = key + ROWS * (D + PAD), *query = value + ROWS * (D + PAD), *dout = query + STEP * (D + PAD);
	__shared__ float lse[STEP], delta[STEP];
	int k0 = (int)(blockIdx.x % tiles) * ROWS, kv = blockIdx.x / tiles % a.kv_heads, batch = blockIdx.x / tiles / a.kv_heads, first,
	    end;
	int own = threadIdx.x / WARP * 16;
	float dk[D / 8][4] = {}, dv[D / 8][4] = {}, one[2] = { 1.0f, 1.0f };
	copy_rows<D, ROWS>(key, a.k, batch, kv, k0, a.keys);
	copy_rows<D, ROWS>(value, a.v, batch, kv, k0, a.keys);
	queries_seen(a, batch, k0, ROWS, &first, &end);
	for (int head = 0; head < a.heads; head++) {
		if (kv_of(a, head) != kv)
			continue;
		for (int q0 = first / STEP * STEP; q0 < end; q0 += STEP) {
			__syncthreads();
			copy_rows<D, STEP>(query, a.q, batch, head, q0, a.queries);
			copy_rows<D, STEP>(dout, a.dout, batch, head, q0, a.queries);
			copies_commit();
			if (threadIdx.x < STEP) {
				bool there = q0 + (int)threadIdx.x < a.queries;
				lse[threadIdx.x] = there ? a.lse[stats_at(a, batch, head, q0 + threadIdx.x)] : 0.0f;
				delta[threadIdx.x] = there ? a.delta[stats_at(a, batch, head, q0 + threadIdx.x)] : 0.0f;
			}
			copies_wait<0>();
			__syncthreads();
			float s[TILES][4] = {}, ds[TILES][4] = {};
			multiply_rows<D>(s, key, own, query);
			multiply_rows<D>(ds, value, own, dout);
			differentiate(a, batch, q0, k0 + own, true, all_see(a, batch, q0, STEP, k0 + own, 16), s, ds, lse, delta);
			multiply_columns<D>(dv, s, dout);
			multiply_columns<D>(dk, ds, query);
		}
	}
	if (a.angles)
		turn_back<D>(a, k0 + own + fragment_row(0), k0 + own + fragment_row(2), a.keys, dk);
	if (a.dk.data)
		store_rows<D>(a.dk, batch, kv, k0 + own, a.keys, dk, one);
	if (a.dv.data)
		store_rows<D>(a.dv, batch, kv, k0 + own, a.keys, dv, one);
}

template <int D> static __global__ void __launch_bounds__(THREADS) queries_grad_kernel(struct attention a, int tiles)
{
	DYNAMIC_SHARED(bf16, shared);
	bf16 *query = shared, *dout = query + ROWS * (D + PAD), *keys = dout + ROWS * (D + PAD), *values = keys + 2 * STEP * (D + PAD);
	int q0 = (tiles - 1 - (int)(blockIdx.x % tiles)) * ROWS, head = blockIdx.x / tiles % a.heads, batch = blockIdx.x / tiles / a.heads,
	    first, end;
	int own = threadIdx.x / WARP * 16, kv = kv_of(a, head), stage = 0;
	float dq[D / 8][4] = {}, lse[2], delta[2], one[2] = { 1.0f, 1.0f };
	for (int h = 0; h < 2; h++) {
		int q = q0 + own + fragment_row(2 * h);
		lse[h] = q < a.queries ? a.lse[stats_at(a, batch, head, q)] : 0.0f;
		delta[h] = q < a.queries ? a.delta[stats_at(a, batch, head, q)] : 0.0f;
	}
	keys_seen(a, batch, q0, ROWS, &first, &end);
	first = first / STEP * STEP;
	copy_rows<D, ROWS>(query, a.q, batch, head, q0, a.queries);
	copy_rows<D, ROWS>(dout, a.dout, batch, head, q0, a.queries);
	copy_rows<D, STEP>(keys, a.k, batch, kv, first, a.keys);
	copy_rows<D, STEP>(values, a.v, batch, kv, first, a.keys);
	copies_commit();
	for (int k0 = first; k0 < end; k0 += STEP, stage ^= 1) {
		const bf16 *key = keys + stage * STEP * (D + PAD), *value = values + stage * STEP * (D + PAD);
		if (k0 + STEP < end) {
			copy_rows<D, STEP>(keys + (stage ^ 1) * STEP * (D + PAD), a.k, batch, kv, k0 + STEP, a.keys);
			copy_rows<D, STEP>(values + (stage ^ 1) * STEP * (D + PAD), a.v, batch, kv, k0 + STEP, a.keys);
		}
		copies_commit();
		copies_wait<1>();
		__syncthreads();
		float s[TILES][4] = {}, ds[TILES][4] = {};
		multiply_rows<D>(s, query, own, key);
		multiply_rows<D>(ds, dout, own, value);
		differentiate(a, batch, q0 + own, k0, false, all_see(a, batch, q0 + own, 16, k0, STEP), s, ds, lse, delta);
		multiply_columns<D>(dq, ds, key);
		__syncthreads(); /* all are done with this stage */
	}
	if (a.angles) {
		int at = q0 + own + a.shift;
		turn_back<D>(a, at + fragment_row(0), at + fragment_row(2), a.queries + a.shift, dq);
	}
	store_rows<D>(a.dq, batch, head, q0 + own, a.queries, dq, one);
}

/* ---- for the host */

/* Bytes of so many rows in shared memory. */
template <int D> static size_t shared_bytes(int rows)
{
	return (size_t)(rows * (D + PAD)) * sizeof(bf16);
}

/* Return false if a block cannot have so much shared memory. */
template <int D> static bool forward_of(struct hspmd_cuda *cuda, const struct attention *a)
{
	const struct attention_kernel forward = { forward_kernel<D>, ROWS, THREADS, shared_bytes<D>(ROWS + 4 * STEP) };
	return !hspmd_cuda_attention_launch(cuda, a, &forward, NULL);
}

template <int D> static bool backward_of(struct hspmd_cuda *cuda, const struct attention *a)
{
	const struct attention_kernel keys = { keys_grad_kernel<D>, ROWS, THREADS, shared_bytes<D>(2 * ROWS + 2 * STEP) };
	const struct attention_kernel queries = { queries_grad_kernel<D>, ROWS, THREADS, shared_bytes<D>(2 * ROWS + 4 * STEP) };
	return !hspmd_cuda_attention_grad_launch(cuda, a, &keys, &queries, NULL);
}

bool hspmd_cuda_attention_mma(struct hspmd_cuda *cuda, const struct attention *a)
{
	return a->head_dim == 64 ? forward_of<64>(cuda, a) : a->head_dim == 128 ? forward_of<128>(cuda, a) : false;
}

bool hspmd_cuda_attention_mma_grad(struct hspmd_cuda *cuda, const struct attention *a)
{
	return a->head_dim == 64 ? backward_of<64>(cuda, a) : a->head_dim == 128 ? backward_of<128>(cuda, a) : false;
}
