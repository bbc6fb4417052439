/* SPDX-License-Identifier: Apache-2.0 */
/* Attention backward in BF16 for compute capability 9.0 and heads of 64 and 128, in two passes and five products, always with the same
 * bits. Keys' pass: a block takes ROWS keys, keeps the gradients of keys and values in registers, goes over the queries in tiles, and
 * writes the gradients of scores, dS, in BF16 into the workspace. Queries' pass: a block takes ROWS queries and multiplies their dS by the
 * keys. So nothing is added up in memory, where either the order would be left to chance or blocks would have to wait for each other; and
 * scores and their gradients are not computed twice, which would make seven products of five. Both passes go over the same tiles of ROWS
 * queries and ROWS keys in which some query may see some key (by causality, window, documents), so that all dS that is read was written.
 *
 * Heads and samples are computed in parts whose dS fits into a half of the workspace. A launch has the keys' blocks of a part and the
 * queries' blocks of the part before, which read the other half. Keys' blocks are bound by the tensor cores and queries' blocks by what a
 * multiprocessor is given, so that together they take less time than one after the other, when the second would be bound by memory. They
 * alternate such that both end at about the same time (attention_order.h). A block of queries computes several heads that read the same
 * keys, which are then copied once for all of them.
 *
 * With heads of 64 the products of a step run beside the exponentials and dS of the same and of the next: while probabilities are
 * computed, this step's dP and the last one's part of dK are in progress, and beside dS, dV and the next scores. The two groups of a block
 * never wait for each other. Heads of 128 leave no registers for the next scores.
 *
 * Per head of D and tile: 10 D ROWS^2 FLOPs; dS takes 2 ROWS^2 bytes each way. Bound of the keys' pass, which does 8 D ROWS^2 of them:
 * tensor cores. With D = 64 a tile takes them 2048 cycles, beside 1740 in which a scheduler issues instructions (430 for 32 scores of a
 * thread, as compiled), 1536 of shared memory for operands, 1024 of exponentials, and 32 KiB to write; with D = 128 4096, beside 3072 of
 * shared memory. Bound of the queries' pass: what its multiprocessor is given of dS and keys, at most 64 bytes a cycle: 768 cycles a tile
 * with D = 64, or 576 with four heads that read the same keys; alone, all dS from memory. Shared memory: up to 219 KiB, all registers, one
 * block per multiprocessor. */
#include "runtime/device/cuda/attention.h"

#if defined HSPMD_SM90A || defined EMULATE
#include "runtime/device/cuda/attention_queries_grad.h"

#define KEYS_GRAD_STAGES 4          /* two that products read, one that they read next, one that is copied */
#define STEP 64                     /* queries per stage of the keys' pass: registers allow no more */

struct keys_grad_maps {
	CUtensorMap q, k, v, dout;
};

struct keys_grad_stage_data {
	float lse[STEP], delta[STEP]; /* times LOG2E, and times the scale */
};

struct keys_grad_barriers {
	uint64_t whole, full[KEYS_GRAD_STAGES], empty[KEYS_GRAD_STAGES]; /* whole: the block's keys and values */
};

/* Dynamic shared memory of a block of keys. */
template <int D> struct keys_grad_shared {
	char key[tile_bytes<D>(ROWS)], value[tile_bytes<D>(ROWS)];
	char query[KEYS_GRAD_STAGES][tile_bytes<D>(STEP)], dout[KEYS_GRAD_STAGES][tile_bytes<D>(STEP)];
	struct keys_grad_stage_data rows[KEYS_GRAD_STAGES];
	struct keys_grad_barriers barriers;
};

/* What a block of keys computes: the local heads [head, head_end) that read its kv head, and tiles of queries. */
struct keys_grad_work {
	int k0, kv, batch, head, head_end, first, end;
};

/* Runs on one warp. */
template <int D>
static __device__ __forceinline__ void copy_queries(const struct attention &a, const struct keys_grad_maps &maps,
                                                    struct keys_grad_shared<D> *to, const struct keys_grad_work &w)
{
	struct keys_grad_barriers *b = &to->barriers;
	struct ring<KEYS_GRAD_STAGES> at = {
		0, 1
	};
	if (threadIdx.x == 0) {
		barrier_arrive_expecting(&b->whole, 2 * tile_bytes<D>(ROWS));
		copy_tile<D>(to->key, &maps.k, ROWS, w.k0, w.kv, w.batch, &b->whole);
		copy_tile<D>(to->value, &maps.v, ROWS, w.k0, w.kv, w.batch, &b->whole);
	}
	for (int head = w.head; head < w.head_end; head++)
		for (int q0 = w.first; q0 < w.end; q0 += STEP, at.advance()) {
			struct keys_grad_stage_data *rows = &to->rows[at.stage];
			barrier_wait(&b->empty[at.stage], at.parity);
			for (int i = threadIdx.x; i < STEP; i += WARP) {
				bool there = q0 + i < a.queries;
				rows->lse[i] = there ? a.lse[stats_at(a, w.batch, head, q0 + i)] * LOG2E : 0.0f;
				rows->delta[i] = there ? a.delta[stats_at(a, w.batch, head, q0 + i)] * a.scale : 0.0f;
			}
			if (threadIdx.x == 0) {
				barrier_arrive_expecting(&b->full[at.stage], 2 * tile_bytes<D>(STEP));
				copy_tile<D>(to->query[at.stage], &maps.q, STEP, q0, head, w.batch, &b->full[at.stage]);
				copy_tile<D>(to->dout[at.stage], &maps.dout, STEP, q0, head, w.batch, &b->full[at.stage]);
			} else {
				barrier_arrive(&b->full[at.stage]);
			}
		}
}

/* p = the probabilities that scores s of keys (rows) and queries give. */
template <int n>
static __device__ __forceinline__ void to_probabilities(const struct attention &a, int batch, int q0, int k0, const int (&document)[2],
                                                        const float *lse, const float (&s)[n / 8][4], float (&p)[n / 8][4])
{
	float scale = a.scale * LOG2E;
#pragma unroll
	for (int j = 0; j < n / 8; j++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			p[j][i] = exp2_fast(s[j][i] * scale - lse[j * 8 + fragment_column(i)]);
	if (all_see(a, batch, q0, n, k0, GROUP_ROWS))
		return;
	int own = k0 + (int)(threadIdx.x % GROUP_THREADS / WARP) * 16;
	if (!a.segments) {
		const struct columns seen[2] = { queries_of_key(a, own + fragment_row(0), q0),
			                         queries_of_key(a, own + fragment_row(2), q0) };
		hide_unseen(p, seen, 0.0f);
		return;
	}
#pragma unroll
	for (int j = 0; j < n / 8; j++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int q = q0 + j * 8 + fragment_column(i);
			p[j][i] = sees_other(a, batch, q, own + fragment_row(i), document[i / 2], q + a.shift) ? p[j][i] : 0.0f;
		}
}

/* Writes a group's fragments of dS: to its first key and first query. What a thread has of a key and 32 queries lies together, so that no
 * lanes exchange anything: query 8 i + 2 t + b of these is at place 8 t + 2 i + b. */
template <int n> static __device__ __forceinline__ void store_score_grads(bf16 *to, int64_t queries, const uint32_t (&ds)[n / 16][4])
{
	int own = (int)(threadIdx.x % GROUP_THREADS / WARP) * 16;
#pragma unroll
	for (int half = 0; half < 2; half++)
#pragma unroll
		for (int j = 0; j < n / 8; j += 4) {
			pack<uint32_t> all;
#pragma unroll
			for (int i = 0; i < 4; i++)
				all.v[i] = ds[(j + i) / 2][(j + i) % 2 * 2 + half];
			store_whole((pack<uint32_t> *)(to + (own + fragment_row(2 * half)) * queries + eight_column(j)), all);
		}
}

template <int D>
static __device__ __forceinline__ void compute_keys(const struct attention &a, struct keys_grad_shared<D> *from,
                                                    const struct keys_grad_work &w, const struct score_grads &to)
{
	const bool early = D == 64; /* the next scores are computed beside this dS: there are registers for them */
	struct keys_grad_barriers *b = &from->barriers;
	struct ring<KEYS_GRAD_STAGES> at = { 0, 0 }, before = at, next = at;
	float dk[D / 8][4] = {}, dv[D / 8][4] = {}, s[STEP / 8][4], one[2] = { 1.0f, 1.0f };
	uint32_t weights[STEP / 16][4], q[STEP / 16][4];
	int group = (int)threadIdx.x / GROUP_THREADS - 1, own = (int)(threadIdx.x % GROUP_THREADS / WARP) * 16,
	    k0 = w.k0 + group * GROUP_ROWS, head = w.head, q0 = w.first, steps = 0, document[2];
	uint64_t key = slab_descriptor(from->key + group * GROUP_BYTES, 0), value = slab_descriptor(from->value + group * GROUP_BYTES, 0),
	         query = slab_descriptor(from->query, STEP * SLAB_ROW_BYTES), dout = slab_descriptor(from->dout, STEP * SLAB_ROW_BYTES);
	if (w.end > w.first && w.head_end > w.head)
		steps = (w.end - w.first + STEP - 1) / STEP * (w.head_end - w.head);
	for (int h = 0; h < 2; h++)
		document[h] = document_of(a, w.batch, k0 + own + fragment_row(2 * h), a.keys);
	barrier_wait(&b->whole, 0);
	if (early && steps) {
		barrier_wait(&b->full[0], 0);
		products_begin();
		multiply_rows<D, STEP>(s, key, ROWS, query, STEP);
		products_commit();
		products_wait<0>();
		pin(s);
	}
	for (int step = 0; step < steps; step++, before = at, at = next) {
		uint64_t these = descriptor_after(query, at.stage * tile_bytes<D>(STEP)),
		         their = descriptor_after(dout, at.stage * tile_bytes<D>(STEP));
		const struct keys_grad_stage_data *rows = &from->rows[at.stage];
		float p[STEP / 8][4], ds[STEP / 8][4];
		next.advance();
		if (!early) {
			barrier_wait(&b->full[at.stage], at.parity);
			products_begin();
			multiply_rows<D, STEP>(s, key, ROWS, these, STEP);
			products_commit();
		}
		products_begin();
		multiply_rows<D, STEP>(ds, value, ROWS, their, STEP);
		products_commit();
		if (!early) {
			products_wait<1>(); /* in progress: ds */
			pin(s);
		}
		to_probabilities<STEP>(a, w.batch, q0, k0, document, rows->lse, s, p);
		to_fragments(weights, p);
		pin(weights);
		pin(dv);
		products_begin();
		multiply_columns<D, STEP>(dv, weights, their);
		products_commit();
		if (early) {
			bool more = step + 1 < steps; /* else the same scores again, for nobody */
			if (more)
				barrier_wait(&b->full[next.stage], next.parity);
			products_begin();
			multiply_rows<D, STEP>(s, key, ROWS, more ? descriptor_after(query, next.stage * tile_bytes<D>(STEP)) : these,
			                       STEP);
			products_commit();
		}
		products_wait<early ? 2 : 1>(); /* in progress: dv, and the next scores */
		pin(ds);
		pin(q);
		pin(dk);
		if (step)
			release_stage(&b->empty[before.stage]);
#pragma unroll
		for (int j = 0; j < STEP / 8; j++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				ds[j][i] = p[j][i] * (ds[j][i] * a.scale - rows->delta[j * 8 + fragment_column(i)]);
		to_fragments(q, ds);
		pin(q);
		products_begin();
		multiply_columns<D, STEP>(dk, q, these);
		products_commit();
		if (to.data)
			store_score_grads<STEP>(to.data + (((int64_t)w.batch * a.heads + head) * to.keys + k0) * to.queries + q0,
			                        to.queries, q);
		products_wait<early ? 1 : 0>(); /* in progress: dk */
		pin(s);
		pin(weights);
		if (!early) {
			pin(q);
			pin(dk);
			pin(dv);
		}
		q0 += STEP;
		if (q0 >= w.end) {
			q0 = w.first;
			head++;
		}
	}
	products_wait<0>();
	pin(weights);
	pin(q);
	pin(dk);
	pin(dv);
	int first = k0 + own + fragment_row(0), second = k0 + own + fragment_row(2);
	if (a.angles)
		turn_back<D>(a, first, second, a.keys, dk);
	if (a.dk.data)
		store_sums<D>(a.dk, w.batch, w.kv, first, second, a.keys, dk, one);
	if (a.dv.data)
		store_sums<D>(a.dv, w.batch, w.kv, first, second, a.keys, dv, one);
}

template <int D>
static __device__ __forceinline__ void run_keys(const struct grad_part &part, const struct keys_grad_maps &maps, char *shared, int block)
{
	const struct attention &a = part.a;
	struct keys_grad_shared<D> *room = (struct keys_grad_shared<D> *)align_tiles(shared);
	struct keys_grad_barriers *b = &room->barriers;
	struct place at = place_of(block, part.tiles, a.kv_heads, a.batches, part.together);
	int kv = at.head, before = (a.first_kv + kv) * a.group - a.first_head;
	struct keys_grad_work w = {
		at.rank * ROWS, kv, at.batch, before > 0 ? before : 0, before + a.group < a.heads ? before + a.group : a.heads, 0, 0
	};
	queries_seen(a, w.batch, w.k0, ROWS, &w.first, &w.end);
	w.first = w.first / ROWS * ROWS;
	w.end = (w.end + ROWS - 1) / ROWS * ROWS < a.queries ? (w.end + ROWS - 1) / ROWS * ROWS : a.queries;
	if (threadIdx.x == 0) {
		barrier_init(&b->whole, 1);
		for (int i = 0; i < KEYS_GRAD_STAGES; i++) {
			barrier_init(&b->full[i], WARP);
			barrier_init(&b->empty[i], COMPUTING_WARPS);
		}
		barriers_ready();
	}
	__syncthreads();
	if (threadIdx.x < GROUP_THREADS) {
		registers_lower<COPYING_REGISTERS>();
		if (threadIdx.x < WARP)
			copy_queries<D>(a, maps, room, w);
	} else {
		registers_raise<COMPUTING_REGISTERS>();
		compute_keys<D>(a, room, w, part.ds);
	}
}

struct grad_maps {
	struct keys_grad_maps keys;
	struct queries_grad_maps queries;
};

/* H: heads of a block of queries. */
template <int D, int H>
static __global__ void __launch_bounds__(THREADS, 1) grad_kernel(struct grad_part keys, struct grad_part queries,
                                                                 const __grid_constant__ struct grad_maps maps, struct alternation order)
{
	DYNAMIC_SHARED(char, shared);
	struct turn turn = turn_of(order, blockIdx.x);
	if (turn.other)
		run_queries<D, H>(queries, maps.queries, shared, turn.number);
	else
		run_keys<D>(keys, maps.keys, shared, turn.number);
}

/* ---- for the host */

/* The local heads that read local kv heads before number kv. */
static int heads_before(const struct attention *a, int kv)
{
	int heads = (a->first_kv + kv) * a->group - a->first_head;
	return heads < 0 ? 0 : heads > a->heads ? a->heads : heads;
}

/* For so many bytes of workspace. */
static struct hspmd_attention_parts parts_of(const struct hspmd_cuda *cuda, const struct attention *a, size_t bytes)
{
	struct hspmd_attention_sizes sizes = hspmd_cuda_attention_sizes(a);
	return hspmd_attention_parts_of(&sizes, cuda->multiprocessors, bytes);
}

size_t hspmd_cuda_attention_wgmma_workspace(const struct hspmd_cuda *cuda, const struct attention *a)
{
	const char *told = getenv("HSPMD_CUDA_ATTENTION_WORKSPACE");
	bool possible = (a->head_dim == 64 || a->head_dim == 128) && !a->noise && !a->mask && !(a->softcap > 0);
	if (!possible)
		return 0;
	size_t most = hspmd_workspace_within(told ? strtoull(told, NULL, 10) : HSPMD_ATTENTION_SCORES, a->workspace_most);
	struct hspmd_attention_parts p = parts_of(cuda, a, most);
	return p.bytes * (size_t)p.buffers;
}

/* Some heads and samples of an attention. */
static struct attention part_of(const struct attention *a, int batch, int batches, int kv, int kv_heads)
{
	struct attention part = *a;
	int head = heads_before(a, kv), end = heads_before(a, kv + kv_heads);
	struct head_rows *queries[] = { &part.q, &part.o, &part.dq, &part.dout }, *keys[] = { &part.k, &part.v, &part.dk, &part.dv };
	for (int i = 0; i < 4; i++) {
		if (queries[i]->data)
			queries[i]->data = (bf16 *)queries[i]->data + batch * queries[i]->batch + (int64_t)head * a->head_dim;
		if (keys[i]->data)
			keys[i]->data = (bf16 *)keys[i]->data + batch * keys[i]->batch + (int64_t)kv * a->head_dim;
	}
	part.lse += stats_at(*a, batch, head, 0);
	part.delta += stats_at(*a, batch, head, 0);
	part.segments = a->segments ? a->segments + batch * a->segment_length : NULL;
	part.documents = a->documents + batch * (query_tiles(*a) + key_tiles(*a));
	part.batches = batches;
	part.heads = end - head;
	part.kv_heads = kv_heads;
	part.first_head += head;
	part.first_kv += kv;
	return part;
}

template <int D, int H> static size_t grad_shared()
{
	size_t keys = sizeof(struct keys_grad_shared<D>), queries = sizeof(struct queries_grad_shared<D, H>);
	return SWIZZLE_BYTES + (keys > queries ? keys : queries);
}

template <int D> static bool map_keys_pass(struct keys_grad_maps *maps, const struct attention *a)
{
	return map_heads(&maps->q, a, &a->q, a->queries, a->heads, STEP) &&
	       map_heads(&maps->dout, a, &a->dout, a->queries, a->heads, STEP) &&
	       map_heads(&maps->k, a, &a->k, a->keys, a->kv_heads, ROWS) && map_heads(&maps->v, a, &a->v, a->keys, a->kv_heads, ROWS);
}

static bool map_queries_pass(struct queries_grad_maps *maps, const struct attention *a, const struct score_grads *ds)
{
	const int64_t shape[4] = { ds->queries, ds->keys, a->heads, a->batches };
	const int64_t stride[3] = { ds->queries, ds->keys * ds->queries, a->heads * ds->keys * ds->queries };
	return map_heads(&maps->k, a, &a->k, a->keys, a->kv_heads, KEY_STEP) &&
	       hspmd_cuda_tensor_map(&maps->ds, ds->data, shape, stride, KEY_STEP);
}

static struct score_grads score_grads_of(const struct attention *a)
{
	struct score_grads ds = { a->dq.data ? (bf16 *)a->scores : NULL, key_tiles(*a) * ROWS, query_tiles(*a) * ROWS };
	return ds;
}

/* Enqueues the keys' pass of a part and, beside it, the queries' pass of another; one of them may be NULL. */
template <int D, int H> static bool launch_passes(struct hspmd_cuda *cuda, const struct attention *keys, const struct attention *queries)
{
	auto *kernel = grad_kernel<D, H>;
	size_t shared = grad_shared<D, H>();
	struct grad_part of_keys = {}, of_queries = {};
	struct grad_maps maps = {};
	struct alternation order = {};
	if (keys) {
		of_keys = { *keys, score_grads_of(keys), key_tiles(*keys), heads_together(cuda, keys->queries, D, keys->group) };
		order.ones = of_keys.tiles * keys->batches * keys->kv_heads;
		order.lead = order.ones < cuda->multiprocessors * 3 / 4 ? order.ones : cuda->multiprocessors * 3 / 4;
		if (!map_keys_pass<D>(&maps.keys, keys))
			return false;
	}
	if (queries) {
		of_queries = { *queries, score_grads_of(queries), query_tiles(*queries), heads_together(cuda, queries->keys, D, H) };
		order.others = of_queries.tiles * queries->batches * (queries->heads / H);
		if (!map_queries_pass(&maps.queries, queries, &of_queries.ds))
			return false;
	}
	LAUNCH(kernel, (unsigned)(order.ones + order.others), THREADS, shared, cuda->stream, of_keys, of_queries, maps, order);
	return true;
}

template <int D, int H> static bool backward_with(struct hspmd_cuda *cuda, const struct attention *a, const struct hspmd_attention_parts &p)
{
	if (a->stage != ATTENTION_PREPARED && allow_shared((const void *)grad_kernel<D, H>, grad_shared<D, H>()))
		return false;
	if (a->stage == ATTENTION_PREPARING)
		return true;
	struct attention part, before;
	const struct attention *waiting = NULL; /* for its queries' pass */
	int number = 0;
	for (int batch = 0; batch < a->batches; batch += p.batches)
		for (int kv = 0; kv < a->kv_heads; kv += p.kv_heads) {
			part = part_of(a, batch, batch + p.batches < a->batches ? p.batches : a->batches - batch, kv,
			               kv + p.kv_heads < a->kv_heads ? p.kv_heads : a->kv_heads - kv);
			part.scores = (char *)a->scores + (size_t)(number++ % p.buffers) * p.bytes;
			if (waiting && p.buffers == 1) {
				if (!launch_passes<D, H>(cuda, NULL, waiting))
					return false;
				waiting = NULL;
			}
			if (!launch_passes<D, H>(cuda, &part, waiting))
				return false;
			before = part;
			waiting = part.dq.data ? &before : NULL;
		}
	return !waiting || launch_passes<D, H>(cuda, NULL, waiting);
}

template <int D> static bool backward_of(struct hspmd_cuda *cuda, const struct attention *a)
{
	const int most = most_heads<D>();
	struct hspmd_attention_parts p = parts_of(cuda, a, a->scores_bytes);
	if (p.kv_heads < 1)
		return false;
	/* The heads of every kv head are here, or as many times so many of them. */
	bool together = a->group % most == 0 && a->first_head % most == 0 && a->heads % most == 0;
	return together ? backward_with<D, most>(cuda, a, p) : backward_with<D, 1>(cuda, a, p);
}

bool hspmd_cuda_attention_wgmma_grad(struct hspmd_cuda *cuda, const struct attention *a)
{
	if (!hspmd_cuda_attention_is_aligned(a))
		return false;
	return a->head_dim == 64 ? backward_of<64>(cuda, a) : a->head_dim == 128 ? backward_of<128>(cuda, a) : false;
}
#else
size_t hspmd_cuda_attention_wgmma_workspace(const struct hspmd_cuda *, const struct attention *)
{
	return 0;
}

bool hspmd_cuda_attention_wgmma_grad(struct hspmd_cuda *, const struct attention *)
{
	return false;
}
#endif
