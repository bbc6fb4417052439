/* SPDX-License-Identifier: Apache-2.0 */
/* A block of eight warps computes TILE x TILE elements, a warp 64 x 32 of them in registers. It goes over the depth in steps, which are
 * copied into shared memory STAGES - 1 steps ahead. Bound by the products: a step takes 2 x 8 KiB from L2 for 2 x 128 x 128 x 32
 * operations, 64 a byte. A block of a tile without rows returns at once. */
#include "runtime/device/cuda/grouped_gemm.h"
#include "runtime/device/cuda/mma.h"
#include "runtime/device/cuda/row_tiles.h"

#define TILE 128
#define DEPTH 32 /* of a step */
#define STAGES 3
#define THREADS 256
#define PAD 8 /* elements after each row in shared memory, so that eight rows are in different banks */
#define OPERAND (TILE * (DEPTH + PAD)) /* elements of shared memory for one operand of a step; also enough for DEPTH rows of TILE */
#define SHARED_BYTES (2 * STAGES * OPERAND * sizeof(bf16))

/* A TILE of one operand, as it lies in memory: rows of which each has the depth (depth_first false), or rows of the depth. `begin`: the
 * tile's first row or column, `end`: where the matrix ends. */
struct operand {
	const bf16 *data;
	int64_t pitch;
	int begin, end;
};

template <bool depth_first> static __device__ __forceinline__ bf16 *at(bf16 *tile, int outer, int k)
{
	return depth_first ? tile + k * (TILE + PAD) + outer : tile + outer * (DEPTH + PAD) + k;
}

/* Copies the operand's part of the step that begins at depth k; zeros where there is none. */
template <bool depth_first> static __device__ __forceinline__ void copy_step(bf16 *tile, const struct operand &of, int k, int k_end)
{
	const int packs = (depth_first ? TILE : DEPTH) / 8; /* in a row */
#pragma unroll
	for (int i = threadIdx.x; i < TILE * DEPTH / 8; i += THREADS) {
		int row = i / packs, column = i % packs * 8, outer = depth_first ? column : row, inner = depth_first ? row : column;
		bool valid = of.begin + outer < of.end && k + inner < k_end;
		int64_t from = depth_first ? (int64_t)(k + inner) * of.pitch + of.begin + outer
		                           : (int64_t)(of.begin + outer) * of.pitch + k + inner;
		copy_async(at<depth_first>(tile, outer, inner), of.data + (valid ? from : 0), valid);
	}
}

/* 16 rows and 16 of the depth of the left operand. */
template <bool depth_first> static __device__ __forceinline__ void load_left(uint32_t *to, bf16 *tile, int row, int k)
{
	int lane = threadIdx.x % WARP;
	if (depth_first)
		load_matrices_trans(to, at<true>(tile, row + lane / 8 % 2 * 8, k + lane % 8 + lane / 16 * 8));
	else
		load_matrices(to, at<false>(tile, row + lane % 16, k + lane / 16 * 8));
}

/* 16 of the depth and 16 columns of the right one: to[0..1] of the first 8 columns, to[2..3] of the others. */
template <bool depth_first> static __device__ __forceinline__ void load_right(uint32_t *to, bf16 *tile, int column, int k)
{
	int lane = threadIdx.x % WARP;
	if (depth_first)
		load_matrices_trans(to, at<true>(tile, column + lane / 16 * 8, k + lane % 16));
	else
		load_matrices(to, at<false>(tile, column + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
}

/* A warp's sums: 4 times 16 rows, 4 times 8 columns. */
typedef float warp_sums[4][4][4];

static __device__ __forceinline__ int warp_row()
{
	return (int)(threadIdx.x / WARP / 4) * 64;
}

static __device__ __forceinline__ int warp_column()
{
	return (int)(threadIdx.x / WARP % 4) * 32;
}

/* sums += left x right over the depth [k, k_end). wanted: of this warp; without, it only copies. */
template <bool left_depth_first, bool right_depth_first>
static __device__ __forceinline__ void multiply(warp_sums sums, bf16 *shared, const struct operand &left, const struct operand &right,
                                                int k, int k_end, bool wanted)
{
	int steps = (k_end - k + DEPTH - 1) / DEPTH;
	auto copy = [&](int step) {
		bf16 *stage = shared + step % STAGES * 2 * OPERAND;
		if (step < steps) {
			copy_step<left_depth_first>(stage, left, k + step * DEPTH, k_end);
			copy_step<right_depth_first>(stage + OPERAND, right, k + step * DEPTH, k_end);
		}
		copies_commit();
	};
	for (int step = 0; step < STAGES - 1; step++)
		copy(step);
	for (int step = 0; step < steps; step++) {
		bf16 *stage = shared + step % STAGES * 2 * OPERAND;
		copies_wait<STAGES - 2>();
		__syncthreads(); /* the step has come, for all; and all are done with the step before, whose place the next copy takes */
		copy(step + STAGES - 1);
		if (!wanted)
			continue;
#pragma unroll
		for (int inner = 0; inner < DEPTH; inner += 16) {
			uint32_t a[4][4], b[2][4];
#pragma unroll
			for (int i = 0; i < 4; i++)
				load_left<left_depth_first>(a[i], stage, warp_row() + 16 * i, inner);
#pragma unroll
			for (int j = 0; j < 2; j++)
				load_right<right_depth_first>(b[j], stage + OPERAND, warp_column() + 16 * j, inner);
#pragma unroll
			for (int i = 0; i < 4; i++)
#pragma unroll
				for (int j = 0; j < 4; j++)
					multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
		}
	}
	copies_wait<0>();
	__syncthreads();
}

/* Calls f(row, column, pair of sums) for all of a warp's sums; rows and columns are those of the tile. */
template <typename F> static __device__ __forceinline__ void each_pair(const warp_sums sums, F f)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int half = 0; half < 2; half++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				f(warp_row() + 16 * i + fragment_row(2 * half), warp_column() + 8 * j + fragment_column(0),
				  sums[i][j] + 2 * half);
}

struct rows_product {
	const int32_t *first;
	int groups;
	const bf16 *a[2], *b[2];
	bf16 *c;
	int64_t n, depth;
};

template <bool transposed> static __global__ void __launch_bounds__(THREADS, 2) grouped_rows_kernel(struct rows_product p)
{
	DYNAMIC_SHARED(bf16, shared);
	warp_sums sums = {};
	int row, group = find_tile<TILE>(p.first, p.groups, blockIdx.y, &row), n0 = blockIdx.x * TILE, n = (int)p.n, depth = (int)p.depth;
	if (group < 0)
		return;
	int end = p.first[group + 1];
	bool wanted = row + warp_row() < end && n0 + warp_column() < n;
	for (int k = 0; k < (p.a[1] ? 2 : 1); k++) {
		struct operand left = { k ? p.a[1] : p.a[0], p.depth, row, end };
		struct operand right = { (k ? p.b[1] : p.b[0]) + group * p.n * p.depth, transposed ? p.depth : p.n, n0, n };
		multiply<false, !transposed>(sums, shared, left, right, 0, depth, wanted);
	}
	each_pair(sums, [&](int r, int column, const float *pair) {
		if (row + r < end && n0 + column < n)
			*(uint32_t *)(p.c + (row + r) * p.n + n0 + column) = pack_pair(pair[0], pair[1]);
	});
}

static __global__ void __launch_bounds__(THREADS, 2)
        grouped_grad_kernel(const int32_t *first, const bf16 *left, const bf16 *right, float *c, int64_t m, int64_t n, bool accumulate)
{
	DYNAMIC_SHARED(bf16, shared);
	warp_sums sums = {};
	int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
	bool wanted = m0 + warp_row() < m && n0 + warp_column() < n;
	float *own = c + blockIdx.z * m * n;
	multiply<true, true>(sums, shared, { left, m, m0, (int)m }, { right, n, n0, (int)n }, first[blockIdx.z], first[blockIdx.z + 1],
	                     wanted);
	each_pair(sums, [&](int row, int column, const float *pair) {
		if (m0 + row >= m || n0 + column >= n)
			return;
		float2 *to = (float2 *)(own + (m0 + row) * n + n0 + column);
		float2 was = accumulate ? *to : make_float2(0, 0);
		*to = make_float2(was.x + pair[0], was.y + pair[1]);
	});
}

/* ---- for the host */

bool hspmd_cuda_grouped_fits(enum hspmd_dtype dtype, int64_t n, int64_t depth)
{
	return dtype == HSPMD_BF16 && n % 8 == 0 && depth % 8 == 0;
}

int hspmd_cuda_grouped_prepare(struct hspmd_cuda *cuda, struct hspmd_error *err)
{
	const void *kernels[] = { (const void *)grouped_rows_kernel<false>, (const void *)grouped_rows_kernel<true>,
		                  (const void *)grouped_grad_kernel };
	if (cuda->wgmma && (hspmd_cuda_grouped_wgmma_prepare(err) || hspmd_cuda_grouped_fp8_prepare(err)))
		return -1;
	return hspmd_cuda_grouped_allow(kernels, sizeof kernels / sizeof *kernels, SHARED_BYTES, err);
}

void hspmd_cuda_grouped_rows(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *const a[2],
                             const void *const b[2], void *c, int64_t n, int64_t depth, bool transposed)
{
	if (cuda->wgmma && hspmd_cuda_grouped_wgmma_rows(cuda, groups, a, b, c, n, depth, transposed))
		return;
	auto *kernel = transposed ? grouped_rows_kernel<true> : grouped_rows_kernel<false>;
	struct rows_product p = { groups->first,        (int)groups->count,     { (const bf16 *)a[0], (const bf16 *)a[1] },
		                  { (const bf16 *)b[0], (const bf16 *)b[1] }, (bf16 *)c, n, depth };
	dim3 grid((unsigned)ceil_div(n, TILE), most_tiles(groups->most, groups->count, TILE));
	LAUNCH(kernel, grid, THREADS, SHARED_BYTES, cuda->stream, p);
}

void hspmd_cuda_grouped_grad(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *left, const void *right, float *c,
                             int64_t m, int64_t n, bool accumulate)
{
	if (cuda->wgmma && hspmd_cuda_grouped_wgmma_grad(cuda, groups, left, right, c, m, n, accumulate))
		return;
	dim3 grid((unsigned)ceil_div(n, TILE), (unsigned)ceil_div(m, TILE), (unsigned)groups->count);
	LAUNCH(grouped_grad_kernel, grid, THREADS, SHARED_BYTES, cuda->stream, groups->first, (const bf16 *)left, (const bf16 *)right, c, m,
	       n, accumulate);
}
