/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped products in BF16 for compute capability 9.0 (grouped_gemm.h). A block computes ROWS x COLUMNS of one group's result: one
 * warp-group copies steps of DEPTH of both operands by the tensor memory accelerator, and two multiply 64 rows each. Every sum is in the
 * order of its steps. Two blocks of the same columns on neighbouring multiprocessors are a pair: each copies half of the right operand to
 * both. If a group has no rows for the second block, it ends, and the first works alone.
 *
 * Bound: a step is 2 ROWS COLUMNS DEPTH FLOPs, 1024 cycles of a multiprocessor's tensor cores, beside 768 of its shared memory, and a block
 * of a pair reads 32 KiB from the L2 cache for it (48 KiB alone): 128 FLOPs a byte, 704 Tflop/s at 5.5 TB/s, of 750 that the tensor cores
 * reach (alone 85, 469 Tflop/s). Pairs that run at the same time are neighbours in both directions (tile_of), so that most of these bytes
 * were read before. Two groups that take turns, each with a tile of its own ("ping-pong"), would hide what follows a tile, but need tiles
 * of half the size for their sums, 85 FLOPs a byte in pairs: they would lose more. Shared memory: 193 KiB, all registers, one block per
 * multiprocessor.
 *
 * Gate and up of experts are one product: a block's columns are half of them gate's and half up's, so that a thread has both sums of an
 * element, and applies the activation before anything is written. The product reads as many bytes for its FLOPs as two do. An element of
 * gate costs 2 bytes of memory in the forward pass, and 4 in the backward pass, whose next kernel computes the activation again, instead
 * of 10 and 12 with a kernel that reads gate and up and writes the activation. */
#include "runtime/device/cuda/gate.h"
#include "runtime/device/cuda/grouped_gemm.h"
#include "runtime/device/cuda/kernel.h"
#include "runtime/device/cuda/row_tiles.h"

#if defined HSPMD_SM90A || defined EMULATE
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
	int band = pair / (BAND * columns), within = pair % (BAND * columns),
	    high = rows - band * BAND < BAND ? rows - band * BAND : BAND;
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

template <bool left_depth_first, bool right_depth_first>
static __device__ __forceinline__ void multiply_steps(tile_sums &sums, struct grouped_shared *from, const struct tile_work &w)
{
	struct ring<STAGES> at = { 0, 0 }, before = at;
	int group = (int)threadIdx.x / GROUP_THREADS - 1, steps = w.pairs * ((w.end - w.begin + DEPTH - 1) / DEPTH);
	bool clears = left_depth_first && (w.end - w.begin) % DEPTH;
	uint64_t left = slab_descriptor(from->stage[0].left + group * SLAB_BYTES, 0),
	         right = slab_descriptor(from->stage[0].right, SLAB_BYTES);
	for (int step = 0; step < steps; step++, before = at, at.advance()) {
		uint64_t a = descriptor_after(left, at.stage * (int)sizeof(struct stage_data)),
		         b = descriptor_after(right, at.stage * (int)sizeof(struct stage_data));
		barrier_wait(&from->full[at.stage], at.parity);
		if (clears && step == steps - 1)
			barrier_wait(&from->cleared, 0);
		products_begin();
#pragma unroll
		for (int k = 0; k < DEPTH; k += 16)
#pragma unroll
			for (int half = 0; half < 2; half++)
				multiply_slabs<HALF, left_depth_first, right_depth_first>(
				        sums[half], descriptor_after(a, k * (left_depth_first ? SLAB_ROW_BYTES : 2)),
				        descriptor_after(b, half * HALF_BYTES + k * (right_depth_first ? SLAB_ROW_BYTES : 2)), true);
		products_commit();
		products_wait<1>();
		if (step)
			release_stage(&from->empty[before.stage], w.is_pair);
	}
	products_wait<0>();
	pin(sums[0]);
	pin(sums[1]);
}

/* Computes one tile; store(sums) is called by the threads that have some. */
template <bool left_depth_first, bool right_depth_first, bool two_rights, typename F>
static __device__ __forceinline__ void compute_tile(const struct operand_maps &maps, char *shared, const struct tile_work &w, F store)
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
		multiply_steps<left_depth_first, right_depth_first>(sums, room, w);
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

template <bool transposed>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
        grouped_rows_kernel(struct rows_product p, const __grid_constant__ struct operand_maps maps)
{
	DYNAMIC_SHARED(char, shared);
	int tile, column, row;
	tile_of(blockIdx.x / 2, p.tiles, (p.n + COLUMNS - 1) / COLUMNS, &tile, &column);
	int group = find_tile<2 * ROWS>(p.first, p.groups, tile, &row);
	if (group < 0)
		return;
	struct tile_work w = { row, column * COLUMNS, 0, p.depth, p.pairs, group };
	int end = p.first[group + 1];
	if (!take_tile(&w, end))
		return;
	compute_tile<false, !transposed, false>(maps, shared, w, [&](const tile_sums &sums) {
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

/* Writes the activation or, if that is NO_ACTIVATION, gate and up. */
template <int activation>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
        grouped_gate_up_kernel(struct gate_up_product p, const __grid_constant__ struct operand_maps maps)
{
	DYNAMIC_SHARED(char, shared);
	int tile, column, row;
	tile_of(blockIdx.x / 2, p.of.tiles, (p.of.n + HALF - 1) / HALF, &tile, &column);
	int group = find_tile<2 * ROWS>(p.of.first, p.of.groups, tile, &row);
	if (group < 0)
		return;
	struct tile_work w = { row, column * HALF, 0, p.of.depth, 1, group };
	int end = p.of.first[group + 1], n = p.of.n;
	if (!take_tile(&w, end))
		return;
	compute_tile<false, false, true>(maps, shared, w, [&](const tile_sums &sums) {
		each_row<4>(w, [&](int r, int rows, int j) {
			uint32_t pairs[2][4];
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int c = w.column + (j + i) * 8 + fragment_column(0);
				int64_t bias = (int64_t)group * n + (c < n ? c : 0);
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
			store_eight((bf16 *)(activation == NO_ACTIVATION ? p.to.act_gate : p.to.act) + at, pairs[0], w.column + j * 8, n,
			            r < end);
			if (activation == NO_ACTIVATION)
				store_eight((bf16 *)p.to.act_up + at, pairs[1], w.column + j * 8, n, r < end);
		});
	});
}

struct grad_product {
	const int32_t *first;
	int m, n;
	bool accumulate;
	float *c;
};

static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
        grouped_grad_kernel(struct grad_product p, const __grid_constant__ struct operand_maps maps)
{
	DYNAMIC_SHARED(char, shared);
	int row, column;
	tile_of(blockIdx.x / 2, (p.m + 2 * ROWS - 1) / (2 * ROWS), (p.n + COLUMNS - 1) / COLUMNS, &row, &column);
	struct tile_work w = { row * 2 * ROWS, column * COLUMNS, p.first[blockIdx.y], p.first[blockIdx.y + 1], 1, 0 };
	if (!take_tile(&w, p.m))
		return;
	float *own = p.c + (int64_t)blockIdx.y * p.m * p.n;
	compute_tile<true, true, false>(maps, shared, w, [&](const tile_sums &sums) {
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

int hspmd_cuda_grouped_wgmma_prepare(struct hspmd_error *err)
{
	const void *kernels[] = { (const void *)grouped_rows_kernel<false>, (const void *)grouped_rows_kernel<true>,
		                  (const void *)grouped_grad_kernel,
		                  (const void *)grouped_gate_up_kernel<NO_ACTIVATION>,
		                  (const void *)grouped_gate_up_kernel<HSPMD_SILU>,
		                  (const void *)grouped_gate_up_kernel<HSPMD_GELU_TANH>,
		                  (const void *)grouped_gate_up_kernel<HSPMD_GELU_ERF>,
		                  (const void *)grouped_gate_up_kernel<HSPMD_CLAMPED> };
	return hspmd_cuda_grouped_allow(kernels, sizeof kernels / sizeof *kernels, SHARED_BYTES, err);
}

bool hspmd_cuda_grouped_wgmma_rows(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *const a[2],
                                   const void *const b[2], void *c, int64_t n, int64_t depth, bool transposed)
{
	auto *kernel = transposed ? grouped_rows_kernel<true> : grouped_rows_kernel<false>;
	int tiles = (int)most_tiles(groups->most, groups->count, 2 * ROWS), pairs = a[1] ? 2 : 1;
	struct operand_maps maps;
	for (int i = 0; i < pairs; i++)
		if (!map_matrices(&maps.left[i], a[i], 1, groups->most, depth, ROWS) ||
		    !(transposed ? map_matrices(&maps.right[i], b[i], groups->count, n, depth, HALF)
		                 : map_matrices(&maps.right[i], b[i], groups->count, depth, n, DEPTH)))
			return false;
	struct rows_product p = { groups->first, (int)groups->count, tiles, pairs, (int)n, (int)depth, (bf16 *)c };
	LAUNCH_PAIRS(kernel, (unsigned)(2 * tiles * ceil_div(n, COLUMNS)), THREADS, SHARED_BYTES, cuda->stream, p, maps);
	return true;
}

bool hspmd_cuda_grouped_wgmma_gate_up(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *rows, int64_t n,
                                      int64_t depth, const struct hspmd_cuda_gate_up *p)
{
	auto *kernel = !p->act                           ? grouped_gate_up_kernel<NO_ACTIVATION>
	               : p->activation == HSPMD_GELU_TANH  ? grouped_gate_up_kernel<HSPMD_GELU_TANH>
	               : p->activation == HSPMD_GELU_ERF ? grouped_gate_up_kernel<HSPMD_GELU_ERF>
	               : p->activation == HSPMD_CLAMPED  ? grouped_gate_up_kernel<HSPMD_CLAMPED>
	                                                 : grouped_gate_up_kernel<HSPMD_SILU>;
	int tiles = (int)most_tiles(groups->most, groups->count, 2 * ROWS);
	struct operand_maps maps;
	if (!map_matrices(&maps.left[0], rows, 1, groups->most, depth, ROWS) ||
	    !map_matrices(&maps.right[0], p->gate, groups->count, n, depth, HALF) ||
	    !map_matrices(&maps.right[1], p->up, groups->count, n, depth, HALF))
		return false;
	struct gate_up_product args = { { groups->first, (int)groups->count, tiles, 1, (int)n, (int)depth, NULL }, *p };
	LAUNCH_PAIRS(kernel, (unsigned)(2 * tiles * ceil_div(n, HALF)), THREADS, SHARED_BYTES, cuda->stream, args, maps);
	return true;
}

bool hspmd_cuda_grouped_wgmma_grad(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *left, const void *right,
                                   float *c, int64_t m, int64_t n, bool accumulate)
{
	struct operand_maps maps;
	struct grad_product p = { groups->first, (int)m, (int)n, accumulate, c };
	if (!map_matrices(&maps.left[0], left, 1, groups->most, m, DEPTH) ||
	    !map_matrices(&maps.right[0], right, 1, groups->most, n, DEPTH))
		return false;
	dim3 grid((unsigned)(2 * ceil_div(m, 2 * ROWS) * ceil_div(n, COLUMNS)), (unsigned)groups->count);
	LAUNCH_PAIRS(grouped_grad_kernel, grid, THREADS, SHARED_BYTES, cuda->stream, p, maps);
	return true;
}
#else
int hspmd_cuda_grouped_wgmma_prepare(struct hspmd_error *)
{
	return 0;
}

bool hspmd_cuda_grouped_wgmma_rows(struct hspmd_cuda *, const struct hspmd_cuda_groups *, const void *const[2], const void *const[2],
                                   void *, int64_t, int64_t, bool)
{
	return false;
}

bool hspmd_cuda_grouped_wgmma_gate_up(struct hspmd_cuda *, const struct hspmd_cuda_groups *, const void *, int64_t, int64_t,
                                      const struct hspmd_cuda_gate_up *)
{
	return false;
}

bool hspmd_cuda_grouped_wgmma_grad(struct hspmd_cuda *, const struct hspmd_cuda_groups *, const void *, const void *, float *, int64_t,
                                   int64_t, bool)
{
	return false;
}
#endif
