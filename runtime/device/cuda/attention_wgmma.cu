/* SPDX-License-Identifier: Apache-2.0 */
/* Attention forward in BF16 for compute capability 9.0 and heads of 64 and 128. A block takes ROWS queries of one head and goes over the
 * keys in tiles of KEYS. While the tensor cores multiply the next keys, a group computes the weights of these ("FlashAttention-3", section
 * 3.2), and while one group computes weights the other's products run: they take turns at asking for products (section 3.1), without which
 * both would want the tensor cores, and then the special function units, at the same time.
 *
 * Per head of D and pair of a query and a key that sees it: 4 D FLOPs and one exponential. A block reads 2 D (ROWS + 2 keys) bytes, keys
 * and values mostly from the L2 cache, and writes 2 D ROWS. Bound: tensor cores; a tile with D = 128 takes a multiprocessor's 2048 cycles,
 * its special function units 1024 for exponentials beside them, and shared memory 1280 for operands. With D = 64 both take 1024. One block
 * per multiprocessor: 161 KiB of shared memory (D = 128), 81 KiB (D = 64), all registers. */
#include "runtime/device/cuda/attention.h"

#if defined HSPMD_SM90A || defined EMULATE
#include "runtime/device/cuda/attention_wgmma.h"

#define KEYS 128
#define STAGES 2

struct forward_maps {
	CUtensorMap q, k, v;
};

/* Barriers at the end of the dynamic shared memory. */
struct forward_barriers {
	uint64_t query, keys[STAGES], values[STAGES], keys_free[STAGES], values_free[STAGES];
};

template <int D>
static __device__ __forceinline__ void copy_keys(const struct attention &a, const struct forward_maps &maps, char *query, char *keys,
                                                 char *values, struct forward_barriers *b, int q0, int head, int batch, int first, int end)
{
	const int bytes = tile_bytes<D>(KEYS);
	struct ring<STAGES> at = { 0, 1 };
	int kv = kv_of(a, head);
	if (first >= end)
		return;
	barrier_arrive_expecting(&b->query, tile_bytes<D>(ROWS));
	copy_tile<D>(query, &maps.q, ROWS, q0, head, batch, &b->query);
	for (int k0 = first; k0 < end; k0 += KEYS, at.advance()) {
		barrier_wait(&b->keys_free[at.stage], at.parity);
		barrier_arrive_expecting(&b->keys[at.stage], bytes);
		copy_tile<D>(keys + at.stage * bytes, &maps.k, KEYS, k0, kv, batch, &b->keys[at.stage]);
		barrier_wait(&b->values_free[at.stage], at.parity);
		barrier_arrive_expecting(&b->values[at.stage], bytes);
		copy_tile<D>(values + at.stage * bytes, &maps.v, KEYS, k0, kv, batch, &b->values[at.stage]);
	}
}

/* A thread's two rows: the highest score so far, and its part of the sum of weights. */
struct softmax_rows {
	float high[2], sum[2];
	int document[2];
};

/* Scores to weights; factor: what earlier sums are to be multiplied by. The first of the group's queries is q0. */
static __device__ __forceinline__ void weigh(const struct attention &a, int batch, int q0, int k0, float (&s)[KEYS / 8][4],
                                             struct softmax_rows *rows, float (&factor)[2])
{
	float scale = a.scale * LOG2E, now[2] = { rows->high[0], rows->high[1] }, base[2];
	if (!all_see(a, batch, q0, GROUP_ROWS, k0, KEYS)) {
		int own = q0 + (int)(threadIdx.x % GROUP_THREADS / WARP) * 16;
		if (!a.segments) {
			const struct columns seen[2] = { keys_of_query(a, own + fragment_row(0), k0),
				                         keys_of_query(a, own + fragment_row(2), k0) };
			hide_unseen(s, seen, -INFINITY);
		} else {
#pragma unroll
			for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
				for (int i = 0; i < 4; i++) {
					int k = k0 + n * 8 + fragment_column(i);
					s[n][i] = sees_other(a, batch, own + fragment_row(i), k, rows->document[i / 2], k) ? s[n][i]
					                                                                                   : -INFINITY;
				}
		}
	}
#pragma unroll
	for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			now[i / 2] = fmaxf(now[i / 2], s[n][i]);
#pragma unroll
	for (int h = 0; h < 2; h++) {
		now[h] = warp_reduce<Max>(now[h], 4);
		base[h] = now[h] > -INFINITY ? now[h] * scale : 0.0f; /* nothing seen yet */
		factor[h] = exp2_fast(rows->high[h] * scale - base[h]);
		rows->high[h] = now[h];
		rows->sum[h] *= factor[h];
	}
#pragma unroll
	for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			s[n][i] = exp2_fast(s[n][i] * scale - base[i / 2]);
			rows->sum[i / 2] += s[n][i];
		}
}

template <int D>
static __device__ __forceinline__ void compute_queries(const struct attention &a, const char *query, const char *keys, const char *values,
                                                       struct forward_barriers *b, int q0, int head, int batch, int first, int end)
{
	const int bytes = tile_bytes<D>(KEYS);
	struct ring<STAGES> at = { 0, 0 }, before = at;
	struct softmax_rows rows = { { -INFINITY, -INFINITY }, {}, {} };
	float out[D / 8][4] = {}, s[KEYS / 8][4], factor[2];
	uint32_t p[KEYS / 16][4];
	int group = (int)threadIdx.x / GROUP_THREADS - 1, own = (int)(threadIdx.x % GROUP_THREADS / WARP) * 16;
	uint64_t left = slab_descriptor(query + group * GROUP_BYTES, 0), right = slab_descriptor(keys, 0),
	         weighed = slab_descriptor(values, KEYS * SLAB_ROW_BYTES);
	q0 += group * GROUP_ROWS;
	for (int h = 0; h < 2; h++)
		rows.document[h] = document_of(a, batch, q0 + own + fragment_row(2 * h) + a.shift, a.keys);
	if (first < end) {
		if (group)
			turn_pass(group);
		barrier_wait(&b->query, 0);
		barrier_wait(&b->keys[0], 0);
		turn_wait(group);
		products_begin();
		multiply_rows<D, KEYS>(s, left, ROWS, right, KEYS);
		products_commit();
		if (!group || first + KEYS < end)
			turn_pass(group);
		products_wait<0>();
		pin(s);
		release_stage(&b->keys_free[0]);
		weigh(a, batch, q0, first, s, &rows, factor);
		to_fragments(p, s);
		at.advance();
	}
	for (int k0 = first + KEYS; k0 < end; k0 += KEYS, before = at, at.advance()) {
		barrier_wait(&b->keys[at.stage], at.parity);
		barrier_wait(&b->values[before.stage], before.parity);
		pin(out);
		pin(p);
		turn_wait(group);
		products_begin();
		multiply_rows<D, KEYS>(s, left, ROWS, descriptor_after(right, at.stage * bytes), KEYS);
		products_commit();
		multiply_columns<D, KEYS>(out, p, descriptor_after(weighed, before.stage * bytes));
		products_commit();
		if (!group || k0 + KEYS < end)
			turn_pass(group);
		products_wait<1>();
		pin(s);
		release_stage(&b->keys_free[at.stage]);
		weigh(a, batch, q0, k0, s, &rows, factor);
		products_wait<0>();
		pin(out);
		pin(p);
		release_stage(&b->values_free[before.stage]);
#pragma unroll
		for (int n = 0; n < D / 8; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				out[n][i] *= factor[i / 2];
		to_fragments(p, s);
	}
	if (first < end) {
		barrier_wait(&b->values[before.stage], before.parity);
		pin(out);
		pin(p);
		products_begin();
		multiply_columns<D, KEYS>(out, p, descriptor_after(weighed, before.stage * bytes));
		products_commit();
		products_wait<0>();
		pin(out);
		pin(p);
	}
	for (int h = 0; h < 2; h++) {
		float sum = warp_reduce<Sum>(rows.sum[h], 4);
		int q = q0 + own + fragment_row(2 * h);
		factor[h] = sum > 0.0f ? 1.0f / sum : 0.0f;
		if (threadIdx.x % 4 == 0 && q < a.queries)
			a.lse[stats_at(a, batch, head, q)] = sum > 0.0f ? rows.high[h] * a.scale + logf(sum) : -1e30f;
	}
	store_sums<D>(a.o, batch, head, q0 + own + fragment_row(0), q0 + own + fragment_row(2), a.queries, out, factor);
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 1)
        forward_kernel(struct attention a, const __grid_constant__ struct forward_maps maps, int tiles, int together)
{
	DYNAMIC_SHARED(char, shared);
	char *query = align_tiles(shared), *keys = query + tile_bytes<D>(ROWS), *values = keys + STAGES * tile_bytes<D>(KEYS);
	struct forward_barriers *b = (struct forward_barriers *)(values + STAGES * tile_bytes<D>(KEYS));
	struct place at = place_of(blockIdx.x, tiles, a.heads, a.batches, together);
	int q0 = (tiles - 1 - at.rank) * ROWS, head = at.head, batch = at.batch, first, end;
	keys_seen(a, batch, q0, ROWS, &first, &end);
	first = first / KEYS * KEYS;
	if (threadIdx.x == 0) {
		barrier_init(&b->query, 1);
		for (int i = 0; i < STAGES; i++) {
			barrier_init(&b->keys[i], 1);
			barrier_init(&b->values[i], 1);
			barrier_init(&b->keys_free[i], COMPUTING_WARPS);
			barrier_init(&b->values_free[i], COMPUTING_WARPS);
		}
		barriers_ready();
	}
	__syncthreads();
	if (threadIdx.x < GROUP_THREADS) {
		registers_lower<COPYING_REGISTERS>();
		if (threadIdx.x == 0)
			copy_keys<D>(a, maps, query, keys, values, b, q0, head, batch, first, end);
	} else {
		registers_raise<COMPUTING_REGISTERS>();
		compute_queries<D>(a, query, keys, values, b, q0, head, batch, first, end);
	}
}

/* ---- for the host */

template <int D> static bool forward_of(struct hspmd_cuda *cuda, const struct attention *a)
{
	size_t shared = SWIZZLE_BYTES + tile_bytes<D>(ROWS) + 2 * STAGES * tile_bytes<D>(KEYS) + sizeof(struct forward_barriers);
	int tiles = query_tiles(*a);
	auto *kernel = forward_kernel<D>;
	struct forward_maps maps;
	if (a->stage != ATTENTION_PREPARED && allow_shared((const void *)kernel, shared))
		return false;
	if (a->stage == ATTENTION_PREPARING)
		return true;
	if (!map_heads(&maps.q, a, &a->q, a->queries, a->heads, ROWS) || !map_heads(&maps.k, a, &a->k, a->keys, a->kv_heads, KEYS) ||
	    !map_heads(&maps.v, a, &a->v, a->keys, a->kv_heads, KEYS))
		return false;
	LAUNCH(kernel, (unsigned)(tiles * a->batches * a->heads), THREADS, shared, cuda->stream, *a, maps, tiles,
	       heads_together(cuda, a->keys, D, 1));
	return true;
}

bool hspmd_cuda_attention_wgmma(struct hspmd_cuda *cuda, const struct attention *a)
{
	if (!(a->scale > 0) || !hspmd_cuda_attention_is_aligned(a))
		return false;
	return a->head_dim == 64 ? forward_of<64>(cuda, a) : a->head_dim == 128 ? forward_of<128>(cuda, a) : false;
}
#else
bool hspmd_cuda_attention_wgmma(struct hspmd_cuda *, const struct attention *)
{
	return false;
}
#endif
