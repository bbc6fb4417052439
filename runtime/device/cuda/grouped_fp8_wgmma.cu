/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped products of FP8 codes for compute capability 9.0 (grouped_gemm.h), in the tiles of grouped_gemm_wgmma.cu. A slab of 128 codes
 * lies in memory like one of 64 BF16 numbers, so that a step has twice the depth, and takes the same bytes and cycles. Both operands must
 * have the depth along their rows. The depth of gradients of matrices is the rows: their operands are turned first. A group's codes then
 * begin where a step does, and end in zeros, so that no step has those of two groups. Turning moves 2 bytes for each code. */
#include "runtime/device/cuda/grouped_gemm.h"

#if defined HSPMD_SM90A || defined EMULATE
#include "runtime/device/cuda/grouped_wgmma.h"
#include "runtime/tensor/fp8.h"

#define TURNED HSPMD_TURNED_ROWS /* codes of a step */
#define TURN_PACKS (TURNED / 16)
#define TURN_THREADS (TURNED / 4 * TURN_PACKS)
static_assert(TURNED == 2 * DEPTH, "a step has the codes of one group");

/* Tensor cores keep fewer bits of sums of FP8 products than F32 has ("DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.3.2), so
 * that the sums of a step are added to those of all steps as F32. This takes half as many registers if one half of the columns follows the
 * other; meanwhile the other group multiplies. factor: of each pair of operands, or of each half of the columns if they are of two right
 * operands. */
template <bool left_e5m2, bool two_rights>
static __device__ __forceinline__ void multiply_fp8_steps(tile_sums &sums, struct grouped_shared *from, const struct tile_work &w,
                                                          const float (&factor)[2])
{
	struct ring<STAGES> at = { 0, 0 };
	int group = (int)threadIdx.x / GROUP_THREADS - 1, each = (w.end - w.begin + DEPTH - 1) / DEPTH;
	uint64_t left = slab_descriptor(from->stage[0].left + group * SLAB_BYTES, 0),
	         right = slab_descriptor(from->stage[0].right, SLAB_BYTES);
	for (int step = 0; step < w.pairs * each; step++, at.advance()) {
		uint64_t a = descriptor_after(left, at.stage * (int)sizeof(struct stage_data)),
		         b = descriptor_after(right, at.stage * (int)sizeof(struct stage_data));
		barrier_wait(&from->full[at.stage], at.parity);
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float part[HALF / 8][4];
			products_begin();
#pragma unroll
			for (int k = 0; k < DEPTH; k += 16)
				multiply_fp8_slabs<HALF, left_e5m2>(part, descriptor_after(a, k * 2),
				                                    descriptor_after(b, half * HALF_BYTES + k * 2), k > 0);
			products_commit();
			products_wait<0>();
			pin(part);
			float times = two_rights ? factor[half] : step < each ? factor[0] : factor[1];
#pragma unroll
			for (int j = 0; j < HALF / 8; j++)
#pragma unroll
				for (int i = 0; i < 4; i++)
					sums[half][j][i] += part[j][i] * times;
		}
		release_stage(&from->empty[at.stage], w.is_pair);
	}
}

/* The first factor is that of the first pair, or of the first right operand. */
template <bool left_e5m2, bool two_rights> struct fp8_products {
	const struct tile_work &w;
	const struct hspmd_cuda_inverse_scales &scales;
	__device__ __forceinline__ void operator()(tile_sums &sums, struct grouped_shared *from) const
	{
		float factor[2];
#pragma unroll
		for (int i = 0; i < 2; i++)
			factor[i] = *scales.left[i] * *scales.right[i];
		multiply_fp8_steps<left_e5m2, two_rights>(sums, from, w, factor);
	}
};

/* depth: in pairs of codes. */
template <bool left_e5m2>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
        grouped_fp8_rows_kernel(struct rows_product p, struct hspmd_cuda_inverse_scales scales,
                                const __grid_constant__ struct operand_maps maps)
{
	DYNAMIC_SHARED(char, shared);
	struct tile_work w;
	int end;
	if (!find_rows(p, COLUMNS, &w, &end))
		return;
	compute_tile<false, false, false>(maps, shared, w, fp8_products<left_e5m2, false>{ w, scales },
	                                  [&](const tile_sums &sums) { store_rows(p, w, end, sums); });
}

static __device__ __forceinline__ float low_half(uint32_t pair)
{
	return hspmd_fp8_float(pair << 16);
}

static __device__ __forceinline__ float high_half(uint32_t pair)
{
	return hspmd_fp8_float(pair & 0xffff0000u);
}

/* As store_eight, of E4M3 codes of the BF16 numbers times the scale. */
static __device__ __forceinline__ void store_eight_codes(char *row, uint32_t (&pairs)[4], int column, int end, bool is_there, float scale)
{
	struct __align__(8) codes
	{
		uint32_t word[2];
	}
	all;
	transpose_pairs(pairs);
#pragma unroll
	for (int i = 0; i < 2; i++)
		all.word[i] = e4m3_pair(low_half(pairs[2 * i]) * scale, high_half(pairs[2 * i]) * scale) |
		              e4m3_pair(low_half(pairs[2 * i + 1]) * scale, high_half(pairs[2 * i + 1]) * scale) << 16;
	int c = column + eight_column(0);
	if (is_there && c < end)
		store_whole((struct codes *)(row + c), all);
}

/* depth: in pairs of codes. */
template <int activation>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
        grouped_fp8_gate_up_kernel(struct gate_up_product p, struct hspmd_cuda_inverse_scales scales, const float *act_scale,
                                   const __grid_constant__ struct operand_maps maps)
{
	DYNAMIC_SHARED(char, shared);
	struct tile_work w;
	int end;
	if (!find_rows(p.of, HALF, &w, &end))
		return;
	compute_tile<false, false, true>(maps, shared, w, fp8_products<false, true>{ w, scales }, [&](const tile_sums &sums) {
		float scale = *act_scale;
		store_gate_up<activation>(p, w, end, sums, [&](int64_t row, uint32_t (&pairs)[4], int at, bool is_there) {
			store_eight_codes((char *)p.to.act + row, pairs, at, p.of.n, is_there, scale);
		});
	});
}

/* Where a group begins among turned rows, in pairs of codes. */
static __device__ __forceinline__ int turned_begin(const int32_t *first, int group)
{
	int steps = 0;
	for (int g = 0; g < group; g++)
		steps += (first[g + 1] - first[g] + TURNED - 1) / TURNED;
	return steps * DEPTH;
}

static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
        grouped_fp8_grad_kernel(struct grad_product p, struct hspmd_cuda_inverse_scales scales,
                                const __grid_constant__ struct operand_maps maps)
{
	DYNAMIC_SHARED(char, shared);
	struct tile_work w = { 0, 0, turned_begin(p.first, blockIdx.y), turned_begin(p.first, blockIdx.y + 1), 1, 0 };
	if (!find_grad(p, &w))
		return;
	compute_tile<false, false, false>(maps, shared, w, fp8_products<true, false>{ w, scales },
	                                  [&](const tile_sums &sums) { store_grad(p, w, sums); });
}

struct turn_work {
	const int32_t *first;
	int groups;
	int64_t pitch; /* of what is written */
	struct hspmd_cuda_turned tensor[HSPMD_CUDA_TURNED];
};

/* Four words of four codes, transposed: word i gets the codes i of all. */
static __device__ __forceinline__ void turn_codes(uint32_t (&v)[4])
{
	const uint32_t even = 0x00ff00ff;
	uint32_t pair[4];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t a = v[2 * i], b = v[2 * i + 1];
		pair[i] = (a & even) | (b & even) << 8;      /* a0 b0 a2 b2 */
		pair[2 + i] = (a >> 8 & even) | (b & ~even); /* a1 b1 a3 b3 */
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		v[i] = (pair[2 * i] & 0xffff) | pair[2 * i + 1] << 16;
		v[2 + i] = pair[2 * i] >> 16 | (pair[2 * i + 1] & 0xffff0000u);
	}
}

/* A block turns the TURNED rows of one step by TURNED columns of a tensor. A thread reads 16 codes of each of four neighbouring rows, and
 * later writes 16 rows of each of four columns. Lines are a word longer than they need be, so that they begin in different banks. */
static __global__ void __launch_bounds__(TURN_THREADS) turn_rows_kernel(struct turn_work work)
{
	__shared__ uint32_t tile[TURNED][TURNED / 4 + 1]; /* [column][row / 4] */
	/* Not indexed: parameters that are would be copied to the thread's memory. */
	const struct hspmd_cuda_turned t = blockIdx.z == 0 ? work.tensor[0] : blockIdx.z == 1 ? work.tensor[1] : work.tensor[2];
	int column = blockIdx.y * TURNED, row, group = find_tile<TURNED>(work.first, work.groups, blockIdx.x, &row);
	if (group < 0 || column >= t.columns)
		return;
	int at = threadIdx.x % TURN_PACKS * 16, four = threadIdx.x / TURN_PACKS, end = work.first[group + 1];
	pack<uint32_t> rows[4];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		int r = row + 4 * four + i;
		rows[i] = pack<uint32_t>{};
		if (r < end && column + at < t.columns)
			rows[i] = *(const pack<uint32_t> *)((const char *)t.from + r * t.columns + column + at);
	}
#pragma unroll
	for (int k = 0; k < 4; k++) {
		uint32_t words[4] = { rows[0].v[k], rows[1].v[k], rows[2].v[k], rows[3].v[k] };
		turn_codes(words);
#pragma unroll
		for (int i = 0; i < 4; i++)
			tile[at + 4 * k + i][four] = words[i];
	}
	__syncthreads();
#pragma unroll
	for (int line = threadIdx.x / TURN_PACKS; line < TURNED; line += TURN_THREADS / TURN_PACKS) {
		pack<uint32_t> all;
		if (column + line >= t.columns)
			break;
#pragma unroll
		for (int i = 0; i < 4; i++)
			all.v[i] = tile[line][at / 4 + i];
		store_whole((pack<uint32_t> *)((char *)t.to + (column + line) * work.pitch + (int64_t)blockIdx.x * TURNED + at), all);
	}
}

/* ---- for the host */

int hspmd_cuda_grouped_fp8_prepare(struct hspmd_error *err)
{
	const void *kernels[] = { (const void *)grouped_fp8_rows_kernel<false>,
		                  (const void *)grouped_fp8_rows_kernel<true>,
		                  (const void *)grouped_fp8_grad_kernel,
		                  (const void *)grouped_fp8_gate_up_kernel<NO_ACTIVATION>,
		                  (const void *)grouped_fp8_gate_up_kernel<HSPMD_SILU>,
		                  (const void *)grouped_fp8_gate_up_kernel<HSPMD_GELU_TANH>,
		                  (const void *)grouped_fp8_gate_up_kernel<HSPMD_GELU_ERF>,
		                  (const void *)grouped_fp8_gate_up_kernel<HSPMD_CLAMPED> };
	return hspmd_cuda_grouped_allow(kernels, sizeof kernels / sizeof *kernels, SHARED_BYTES, err);
}

bool hspmd_cuda_grouped_fp8_fits(const struct hspmd_cuda *cuda, int64_t n, int64_t depth)
{
	return cuda->wgmma && n % HSPMD_FP8_ROW == 0 && depth % HSPMD_FP8_ROW == 0;
}

/* Maps take two codes for a BF16 number. */
bool hspmd_cuda_grouped_fp8_rows(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *const a[2],
                                 const void *const b[2], const struct hspmd_cuda_inverse_scales *scales, bool a_e5m2, void *c, int64_t n,
                                 int64_t depth)
{
	auto *kernel = a_e5m2 ? grouped_fp8_rows_kernel<true> : grouped_fp8_rows_kernel<false>;
	int tiles = (int)most_tiles(groups->most, groups->count, 2 * ROWS), pairs = a[1] ? 2 : 1;
	struct operand_maps maps;
	for (int i = 0; i < pairs; i++)
		if (!map_matrices(&maps.left[i], a[i], 1, groups->most, depth / 2, ROWS) ||
		    !map_matrices(&maps.right[i], b[i], groups->count, n, depth / 2, HALF))
			return false;
	struct rows_product p = { groups->first, (int)groups->count, tiles, pairs, (int)n, (int)depth / 2, (bf16 *)c };
	LAUNCH_PAIRS(kernel, (unsigned)(2 * tiles * ceil_div(n, COLUMNS)), THREADS, SHARED_BYTES, cuda->stream, p, *scales, maps);
	return true;
}

bool hspmd_cuda_grouped_fp8_gate_up(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *rows, int64_t n,
                                    int64_t depth, const struct hspmd_cuda_inverse_scales *scales, const struct hspmd_cuda_gate_up *p,
                                    const float *act_scale)
{
	auto *kernel = !p->act                           ? grouped_fp8_gate_up_kernel<NO_ACTIVATION>
	               : p->activation == HSPMD_GELU_TANH ? grouped_fp8_gate_up_kernel<HSPMD_GELU_TANH>
	               : p->activation == HSPMD_GELU_ERF ? grouped_fp8_gate_up_kernel<HSPMD_GELU_ERF>
	               : p->activation == HSPMD_CLAMPED  ? grouped_fp8_gate_up_kernel<HSPMD_CLAMPED>
	                                                 : grouped_fp8_gate_up_kernel<HSPMD_SILU>;
	int tiles = (int)most_tiles(groups->most, groups->count, 2 * ROWS);
	struct operand_maps maps;
	if (!map_matrices(&maps.left[0], rows, 1, groups->most, depth / 2, ROWS) ||
	    !map_matrices(&maps.right[0], p->gate, groups->count, n, depth / 2, HALF) ||
	    !map_matrices(&maps.right[1], p->up, groups->count, n, depth / 2, HALF))
		return false;
	struct gate_up_product args = { { groups->first, (int)groups->count, tiles, 1, (int)n, (int)depth / 2, NULL }, *p };
	LAUNCH_PAIRS(kernel, (unsigned)(2 * tiles * ceil_div(n, HALF)), THREADS, SHARED_BYTES, cuda->stream, args, *scales, act_scale,
	             maps);
	return true;
}

int64_t hspmd_cuda_grouped_turned_rows(int64_t most, int64_t groups)
{
	return (int64_t)most_tiles(most, groups, TURNED) * TURNED;
}

void hspmd_cuda_grouped_fp8_turn(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const struct hspmd_cuda_turned *tensors,
                                 int count)
{
	struct turn_work work = { groups->first, (int)groups->count, hspmd_cuda_grouped_turned_rows(groups->most, groups->count), {} };
	int64_t columns = 0;
	for (int i = 0; i < count; i++) {
		work.tensor[i] = tensors[i];
		columns = tensors[i].columns > columns ? tensors[i].columns : columns;
	}
	dim3 grid(most_tiles(groups->most, groups->count, TURNED), (unsigned)ceil_div(columns, TURNED), (unsigned)count);
	if (count)
		LAUNCH(turn_rows_kernel, grid, TURN_THREADS, 0, cuda->stream, work);
}

bool hspmd_cuda_grouped_fp8_grad(struct hspmd_cuda *cuda, const struct hspmd_cuda_groups *groups, const void *left, const void *right,
                                 const struct hspmd_cuda_inverse_scales *scales, float *c, int64_t m, int64_t n, bool accumulate)
{
	struct operand_maps maps;
	struct grad_product p = { groups->first, (int)m, (int)n, accumulate, c };
	int64_t depth = hspmd_cuda_grouped_turned_rows(groups->most, groups->count) / 2;
	if (!map_matrices(&maps.left[0], left, 1, m, depth, ROWS) || !map_matrices(&maps.right[0], right, 1, n, depth, HALF))
		return false;
	LAUNCH_PAIRS(grouped_fp8_grad_kernel, grad_grid(groups, m, n), THREADS, SHARED_BYTES, cuda->stream, p, *scales, maps);
	return true;
}
#else
int hspmd_cuda_grouped_fp8_prepare(struct hspmd_error *)
{
	return 0;
}

bool hspmd_cuda_grouped_fp8_fits(const struct hspmd_cuda *, int64_t, int64_t)
{
	return false;
}

bool hspmd_cuda_grouped_fp8_rows(struct hspmd_cuda *, const struct hspmd_cuda_groups *, const void *const[2], const void *const[2],
                                 const struct hspmd_cuda_inverse_scales *, bool, void *, int64_t, int64_t)
{
	return false;
}

bool hspmd_cuda_grouped_fp8_gate_up(struct hspmd_cuda *, const struct hspmd_cuda_groups *, const void *, int64_t, int64_t,
                                    const struct hspmd_cuda_inverse_scales *, const struct hspmd_cuda_gate_up *, const float *)
{
	return false;
}

int64_t hspmd_cuda_grouped_turned_rows(int64_t, int64_t)
{
	return 0;
}

void hspmd_cuda_grouped_fp8_turn(struct hspmd_cuda *, const struct hspmd_cuda_groups *, const struct hspmd_cuda_turned *, int)
{
}

bool hspmd_cuda_grouped_fp8_grad(struct hspmd_cuda *, const struct hspmd_cuda_groups *, const void *, const void *,
                                 const struct hspmd_cuda_inverse_scales *, float *, int64_t, int64_t, bool)
{
	return false;
}
#endif
