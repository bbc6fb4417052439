/* SPDX-License-Identifier: Apache-2.0 */
/* The queries' pass of attention's gradient for compute capability 9.0 (attention_grad_wgmma.cu): a block multiplies the gradients of
 * scores of ROWS queries of some heads by the keys. */
#ifndef HSPMD_CUDA_ATTENTION_QUERIES_GRAD_H
#define HSPMD_CUDA_ATTENTION_QUERIES_GRAD_H

#include "runtime/device/cuda/attention_wgmma.h"

#define KEY_STEP 64                          /* keys per stage of the queries' pass */
#define DS_BYTES (KEY_STEP * SLAB_ROW_BYTES) /* a group's part of such a stage */

struct queries_grad_maps {
	CUtensorMap ds, k;
};

/* dS of sample b, local head h, key k and query q is data[((b * heads + h) * keys + k) * queries + q]. keys, queries: whole tiles. */
struct score_grads {
	bf16 *data; /* NULL: not wanted */
	int64_t keys, queries;
};

/* One part's blocks of keys, or of queries. */
struct grad_part {
	struct attention a;
	struct score_grads ds;
	int tiles, together; /* place_of */
};

/* Heads that read the same kv head and that a block of queries computes together, so that keys are copied once for all of them: as many
 * as there are registers for the sums of. */
template <int D> static constexpr int most_heads()
{
	return 256 / D;
}

/* Dynamic shared memory of a block of queries of H heads. As many stages as there is room for: what is on its way to a multiprocessor at a
 * time limits how fast it comes. */
template <int D, int H> struct queries_grad_shared {
	static const int stages = (218 << 10) / (H * GROUPS * DS_BYTES + tile_bytes<D>(KEY_STEP));
	char ds[stages][H][GROUPS * DS_BYTES], key[stages][tile_bytes<D>(KEY_STEP)];
	uint64_t full[stages], empty[stages];
};

/* What a block of queries computes: `head` is the first of its heads. */
struct queries_grad_work {
	int q0, head, batch, first, end;
};

/* The query whose dS is at a place of its group's. */
static __device__ __forceinline__ int query_at(int place)
{
	return place / 32 * 32 + place % 8 / 2 * 8 + place % 32 / 8 * 2 + place % 2;
}

/* Runs on one thread. */
template <int D, int H>
static __device__ __forceinline__ void copy_score_grads(const struct attention &a, const struct queries_grad_maps &maps,
                                                        struct queries_grad_shared<D, H> *to, const struct queries_grad_work &w)
{
	struct ring<queries_grad_shared<D, H>::stages> at = {
		0, 1
	};
	for (int k0 = w.first; k0 < w.end; k0 += KEY_STEP, at.advance()) {
		uint64_t *b = &to->full[at.stage];
		barrier_wait(&to->empty[at.stage], at.parity);
		barrier_arrive_expecting(b, (int)sizeof to->ds[0] + (int)sizeof to->key[0]);
		for (int h = 0; h < H; h++)
			for (int i = 0; i < GROUPS; i++)
				copy_box_async(to->ds[at.stage][h] + i * DS_BYTES, &maps.ds, w.q0 + i * GROUP_ROWS, k0, w.head + h, w.batch,
				               b);
		copy_tile<D>(to->key[at.stage], &maps.k, KEY_STEP, k0, kv_of(a, w.head), w.batch, b);
	}
}

template <int D, int H>
static __device__ __forceinline__ void compute_queries(const struct attention &a, struct queries_grad_shared<D, H> *from,
                                                       const struct queries_grad_work &w)
{
	struct ring<queries_grad_shared<D, H>::stages> at = { 0, 0 }, before = at;
	float dq[H][D / 8][4] = {}, one[2] = { 1.0f, 1.0f };
	int group = (int)threadIdx.x / GROUP_THREADS - 1, own = (int)(threadIdx.x % GROUP_THREADS / WARP) * 16,
	    q0 = w.q0 + group * GROUP_ROWS;
	uint64_t left = slab_descriptor(from->ds[0][0] + group * DS_BYTES, 0), right = slab_descriptor(from->key, DS_BYTES);
	for (int k0 = w.first; k0 < w.end; k0 += KEY_STEP, before = at, at.advance()) {
		uint64_t ds = descriptor_after(left, at.stage * (int)sizeof from->ds[0]),
		         key = descriptor_after(right, at.stage * (int)sizeof from->key[0]);
		barrier_wait(&from->full[at.stage], at.parity);
		products_begin();
#pragma unroll
		for (int h = 0; h < H; h++)
#pragma unroll
			for (int k = 0; k < KEY_STEP; k += 16)
				multiply_slabs<D, true, true>(dq[h], descriptor_after(ds, h * GROUPS * DS_BYTES + k * SLAB_ROW_BYTES),
				                              descriptor_after(key, k * SLAB_ROW_BYTES), true);
		products_commit();
		products_wait<1>();
		if (k0 > w.first)
			release_stage(&from->empty[before.stage]);
	}
	products_wait<0>();
	int first = q0 + query_at(own + fragment_row(0)), second = q0 + query_at(own + fragment_row(2));
#pragma unroll
	for (int h = 0; h < H; h++) {
		pin(dq[h]);
		if (a.angles)
			turn_back<D>(a, first + a.shift, second + a.shift, a.queries + a.shift, dq[h]);
		store_sums<D>(a.dq, w.batch, w.head + h, first, second, a.queries, dq[h], one);
	}
}

template <int D, int H>
static __device__ __forceinline__ void run_queries(const struct grad_part &part, const struct queries_grad_maps &maps, char *shared,
                                                   int block)
{
	const struct attention &a = part.a;
	struct queries_grad_shared<D, H> *room = (struct queries_grad_shared<D, H> *)align_tiles(shared);
	struct place at = place_of(block, part.tiles, a.heads / H, a.batches, part.together);
	struct queries_grad_work w = { (part.tiles - 1 - at.rank) * ROWS, at.head * H, at.batch, 0, 0 };
	keys_seen(a, w.batch, w.q0, ROWS, &w.first, &w.end);
	w.first = w.first / ROWS * ROWS;
	w.end = w.end < a.keys ? (w.end + ROWS - 1) / ROWS * ROWS : w.end;
	if (threadIdx.x == 0) {
		for (int i = 0; i < queries_grad_shared<D, H>::stages; i++) {
			barrier_init(&room->full[i], 1);
			barrier_init(&room->empty[i], COMPUTING_WARPS);
		}
		barriers_ready();
	}
	__syncthreads();
	if (threadIdx.x < GROUP_THREADS) {
		registers_lower<COPYING_REGISTERS>();
		if (threadIdx.x == 0)
			copy_score_grads<D, H>(a, maps, room, w);
	} else {
		registers_raise<COMPUTING_REGISTERS>();
		compute_queries<D, H>(a, room, w);
	}
}

#endif
