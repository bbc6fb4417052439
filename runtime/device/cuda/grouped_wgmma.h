/* SPDX-License-Identifier: Apache-2.0 */
/* What grouped products by warp-groups share (grouped_gemm_wgmma.cu, grouped_fp8_wgmma.cu): tiles, how they are copied, and how results are
 * stored. Depths and columns of operands are of BF16 numbers, which are pairs of FP8 codes. */
#ifndef HSPMD_CUDA_GROUPED_WGMMA_H
#define HSPMD_CUDA_GROUPED_WGMMA_H

#include "runtime/device/cuda/gate.h"
#include "runtime/device/cuda/grouped_gemm.h"
#include "runtime/device/cuda/kernel.h"
#include "runtime/device/cuda/row_tiles.h"
#include "runtime/device/cuda/tensor_map.h"
#include "runtime/device/cuda/wgmma.h"

#define ROWS (GROUPS * GROUP_ROWS)
#define COLUMNS 256
#define DEPTH SLAB_COLUMNS /* of a step */
#define STAGES 4
#define THREADS ((GROUPS + 1) * GROUP_THREADS)
#define SLAB_BYTES (DEPTH * SLAB_ROW_BYTES) /* of 64 rows or columns of an operand, and a step's depth */
#define HALF (COLUMNS / 2)
#define HALF_BYTES (HALF / SLAB_COLUMNS * SLAB_BYTES)
#define BAND 4 /* pairs of tiles of rows next to each other that are computed for one tile of columns after another */

/* Operands, as they lie in memory: [outer, depth] or [depth, outer] of each group. A second pair may follow the first, or the right operand
 * consist of two. */
struct operand_maps {
	CUtensorMap left[2], right[2];
};

struct stage_data {
	char left[ROWS / SLAB_COLUMNS * SLAB_BYTES], right[COLUMNS / SLAB_COLUMNS * SLAB_BYTES];
};

struct grouped_shared {
	struct stage_data stage[STAGES];
	uint64_t full[STAGES], empty[STAGES], cleared; /* cleared: what the last step has beyond the end */
};

/* One tile: its first row and column; the depth [begin, end), in `pairs` pairs of operands; the matrix of the right operand. */
struct tile_work {
	int row, column, begin, end, pairs, matrix;
	bool is_pair; /* the other block of the pair computes the tile of rows beside this one */
};

/* Which pair of tiles of rows, and which tile of columns, a pair of blocks computes. */
static __device__ __forceinline__ void tile_of(int pair, int rows, int columns, int *row, int *column)
{
	int band = pair / (BAND * columns), within = pair % (BAND * columns), high = rows - band * BAND < BAND ? rows - band * BAND : BAND;
	*row = band * BAND + within % high;
	*column = within / high;
}

/* The block's tile, of the pair that begins at row w->row of [.., end). Returns false if it has none. */
static __device__ __forceinline__ bool take_tile(struct tile_work *w, int end)
{
	w->is_pair = w->row + ROWS < end;
	if (blockIdx.x % 2 == 0)
		return true;
	w->row += ROWS;
	return w->is_pair;
}

/* One thread copies a step's part of one operand; to_both: to both blocks. */
template <bool depth_first, int outer>
static __device__ __forceinline__ void copy_operand(char *to, const CUtensorMap *map, int first, int depth, int matrix, uint64_t *b,
                                                    bool to_both)
{
	const int each = depth_first ? SLAB_COLUMNS : outer;
#pragma unroll
	for (int i = 0; i < outer; i += each) {
		char *slab = to + i / SLAB_COLUMNS * SLAB_BYTES;
		int x0 = depth_first ? first + i : depth, x1 = depth_first ? depth : first;
		if (to_both)
			copy_box_to_both_async(slab, map, x0, x1, matrix, 0, b);
		else
			copy_box_async(slab, map, x0, x1, matrix, 0, b);
	}
}

/* Runs on one warp. Rows of the depth beyond its end may hold anything, those of another group, too: they become zeros. two_rights: half of
 * the columns are of the second right operand. */
template <bool left_depth_first, bool right_depth_first, bool two_rights>
static __device__ __forceinline__ void copy_steps(const struct operand_maps &maps, struct grouped_shared *to, const struct tile_work &w)
{
	struct ring<STAGES> at = { 0, 1 }, last = at;
	for (int pair = 0; pair < w.pairs; pair++)
		for (int depth = w.begin; depth < w.end; depth += DEPTH, last = at, at.advance()) {
			struct stage_data *stage = &to->stage[at.stage];
			barrier_wait(&to->empty[at.stage], at.parity);
			if (threadIdx.x == 0) {
				barrier_arrive_expecting(&to->full[at.stage], (int)sizeof *stage);
				copy_operand<left_depth_first, ROWS>(stage->left, &maps.left[pair], w.row, depth, 0, &to->full[at.stage],
				                                     false);
				for (int half = 0; half < 2; half++)
					if (!w.is_pair || half == (int)(blockIdx.x % 2))
						copy_operand<right_depth_first, HALF>(stage->right + half * HALF_BYTES,
						                                      &maps.right[two_rights ? half : pair],
						                                      w.column + (two_rights ? 0 : half * HALF), depth,
						                                      w.matrix, &to->full[at.stage], w.is_pair);
			}
		}
	int beyond = (w.end - w.begin) % DEPTH;
	if (!left_depth_first || !beyond)
		return;
	barrier_wait(&to->full[last.stage], last.parity ^ 1);
	for (int slab = 0; slab < (int)sizeof(struct stage_data) / SLAB_BYTES; slab++)
#pragma unroll 1
		for (int i = beyond * SLAB_ROW_BYTES + (int)threadIdx.x * 16; i < SLAB_BYTES; i += WARP * 16)
			*(pack<uint32_t> *)(to->stage[last.stage].left + slab * SLAB_BYTES + i) = pack<uint32_t>{};
	shared_ready();
	barrier_arrive(&to->cleared);
}

/* A group's sums of 64 rows: of the first half of the columns, and of the second. */
typedef float tile_sums[2][HALF / 8][4];

/* Computes one tile: multiply(sums, shared memory) and store(sums) are called by the threads that have some. */
template <bool left_depth_first, bool right_depth_first, bool two_rights, typename M, typename F>
static __device__ __forceinline__ void compute_tile(const struct operand_maps &maps, char *shared, const struct tile_work &w, M multiply,
                                                    F store)
{
	struct grouped_shared *room = (struct grouped_shared *)align_tiles(shared);
	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			barrier_init(&room->full[i], 1);
			barrier_init(&room->empty[i], COMPUTING_WARPS * (w.is_pair ? 2 : 1));
		}
		barrier_init(&room->cleared, WARP);
		barriers_ready();
	}
	if (w.is_pair)
		pair_wait();
	else
		__syncthreads();
	if (threadIdx.x < GROUP_THREADS) {
		registers_lower<COPYING_REGISTERS>();
		if (threadIdx.x < WARP)
			copy_steps<left_depth_first, right_depth_first, two_rights>(maps, room, w);
	} else {
		tile_sums sums = {};
		registers_raise<COMPUTING_REGISTERS>();
		multiply(sums, room);
		store(sums);
	}
	if (w.is_pair)
		pair_wait();
}

/* Calls f(row, rows, j) for the thread's sums [.][j..j + each - 1][2 rows..2 rows + 1], which are those of the row `row` of the result. */
template <int each, typename F> static __device__ __forceinline__ void each_row(const struct tile_work &w, F f)
{
	int first = w.row + ((int)threadIdx.x / GROUP_THREADS - 1) * GROUP_ROWS + (int)(threadIdx.x % GROUP_THREADS / WARP) * 16;
#pragma unroll
	for (int rows = 0; rows < 2; rows++)
#pragma unroll
		for (int j = 0; j < HALF / 8; j += each)
			f(first + fragment_row(2 * rows), rows, j);
}

/* Stores eight elements of a row in BF16, of the 32 of which the thread and its neighbours have pairs; column: where the 32 begin. */
static __device__ __forceinline__ void store_eight(bf16 *row, uint32_t (&pairs)[4], int column, int end, bool is_there)
{
	pack<uint32_t> all;
	transpose_pairs(pairs);
#pragma unroll
	for (int i = 0; i < 4; i++)
		all.v[i] = pairs[i];
	int c = column + eight_column(0);
	if (is_there && c < end)
		store_whole((pack<uint32_t> *)(row + c), all);
}

struct rows_product {
	const int32_t *first;
	int groups, tiles; /* pairs of tiles of rows, at most */
	int pairs, n, depth;
	bf16 *c;
};

/* Which tile the block computes, `columns` wide, and where the rows of its group end. Returns false if there is none. */
static __device__ __forceinline__ bool find_rows(const struct rows_product &p, int columns, struct tile_work *w, int *end)
{
	int tile, column, row;
	tile_of(blockIdx.x / 2, p.tiles, (p.n + columns - 1) / columns, &tile, &column);
	int group = find_tile<2 * ROWS>(p.first, p.groups, tile, &row);
	if (group < 0)
		return false;
	*w = { row, column * columns, 0, p.depth, p.pairs, group };
	*end = p.first[group + 1];
	return take_tile(w, *end);
}

static __device__ __forceinline__ void store_rows(const struct rows_product &p, const struct tile_work &w, int end, const tile_sums &sums)
{
	each_row<4>(w, [&](int r, int rows, int j) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			uint32_t pairs[4];
#pragma unroll
			for (int i = 0; i < 4; i++)
				pairs[i] = pack_pair(sums[half][j + i][2 * rows], sums[half][j + i][2 * rows + 1]);
			store_eight(p.c + (int64_t)r * p.n, pairs, w.column + half * HALF + j * 8, p.n, r < end);
		}
	});
}

struct gate_up_product {
	struct rows_product of; /* c: not used */
	struct hspmd_cuda_gate_up to;
};

/* An element of gate or up as it is written: of two neighbouring sums. */
static __device__ __forceinline__ void round_pair(float *to, const float *sums, const void *bias, int64_t at)
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		to[i] = to_float(from_float<bf16>(sums[i]));
		if (bias)
			to[i] = to_float(from_float<bf16>(to[i] + to_float(((const bf16 *)bias)[at + i])));
	}
}

#define NO_ACTIVATION (-1)

/* Writes the activation, by store_act(row, pairs, column, is_there), or if that is NO_ACTIVATION gate and up. */
template <int activation, typename F>
static __device__ __forceinline__ void store_gate_up(const struct gate_up_product &p, const struct tile_work &w, int end,
                                                     const tile_sums &sums, F store_act)
{
	int n = p.of.n;
	each_row<4>(w, [&](int r, int rows, int j) {
		uint32_t pairs[2][4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int c = w.column + (j + i) * 8 + fragment_column(0);
			int64_t bias = (int64_t)w.matrix * n + (c < n ? c : 0);
			float gate[2], up[2];
			round_pair(gate, sums[0][j + i] + 2 * rows, p.to.biases[0], bias);
			round_pair(up, sums[1][j + i] + 2 * rows, p.to.biases[1], bias);
			if (activation == NO_ACTIVATION) {
				pairs[0][i] = pack_pair(gate[0], gate[1]);
				pairs[1][i] = pack_pair(up[0], up[1]);
			} else {
				pairs[0][i] = pack_pair(gate_value(activation, p.to.limit, gate[0], up[0]),
				                        gate_value(activation, p.to.limit, gate[1], up[1]));
			}
		}
		int64_t at = (int64_t)r * n;
		if (activation != NO_ACTIVATION) {
			store_act(at, pairs[0], w.column + j * 8, r < end);
			return;
		}
		store_eight((bf16 *)p.to.act_gate + at, pairs[0], w.column + j * 8, n, r < end);
		store_eight((bf16 *)p.to.act_up + at, pairs[1], w.column + j * 8, n, r < end);
	});
}

/* Gradients of the groups' matrices: sums over rows. */
struct grad_product {
	const int32_t *first;
	int m, n;
	bool accumulate;
	float *c;
};

/* Which tile of the group's matrix the block computes. Returns false if there is none. */
static __device__ __forceinline__ bool find_grad(const struct grad_product &p, struct tile_work *w)
{
	int row, column;
	tile_of(blockIdx.x / 2, (p.m + 2 * ROWS - 1) / (2 * ROWS), (p.n + COLUMNS - 1) / COLUMNS, &row, &column);
	w->row = row * 2 * ROWS;
	w->column = column * COLUMNS;
	return take_tile(w, p.m);
}

static __device__ __forceinline__ void store_grad(const struct grad_product &p, const struct tile_work &w, const tile_sums &sums)
{
	float *own = p.c + (int64_t)blockIdx.y * p.m * p.n;
	each_row<1>(w, [&](int r, int rows, int j) {
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int c = w.column + half * HALF + j * 8 + fragment_column(0);
			if (r >= p.m || c >= p.n)
				continue;
			float2 *to = (float2 *)(own + (int64_t)r * p.n + c), was = p.accumulate ? *to : make_float2(0, 0);
			*to = make_float2(was.x + sums[half][j][2 * rows], was.y + sums[half][j][2 * rows + 1]);
		}
	});
}

/* ---- for the host */

#define SHARED_BYTES (SWIZZLE_BYTES + sizeof(struct grouped_shared))

/* Describes `matrices` matrices of so many rows of `width`; box: rows that are copied at a time. */
static bool map_matrices(CUtensorMap *map, const void *data, int64_t matrices, int64_t rows, int64_t width, int box)
{
	const int64_t shape[4] = { width, rows, matrices, 1 }, stride[3] = { width, rows * width, matrices * rows * width };
	return hspmd_cuda_tensor_map(map, data, shape, stride, box);
}

/* Blocks of gradients of [m, n] for each group. */
static dim3 grad_grid(const struct hspmd_cuda_groups *groups, int64_t m, int64_t n)
{
	return dim3((unsigned)(2 * ceil_div(m, 2 * ROWS) * ceil_div(n, COLUMNS)), (unsigned)groups->count);
}

#endif
