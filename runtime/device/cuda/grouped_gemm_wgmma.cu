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
#include "runtime/device/cuda/grouped_gemm.h"

#if defined HSPMD_SM90A || defined EMULATE
#include "runtime/device/cuda/grouped_wgmma.h"

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

template <bool left_depth_first, bool right_depth_first> struct bf16_products {
	const struct tile_work &w;
	__device__ __forceinline__ void operator()(tile_sums &sums, struct grouped_shared *from) const
	{
		multiply_steps<left_depth_first, right_depth_first>(sums, from, w);
	}
};

template <bool transposed>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
        grouped_rows_kernel(struct rows_product p, const __grid_constant__ struct operand_maps maps)
{
	DYNAMIC_SHARED(char, shared);
	struct tile_work w;
	int end;
	if (!find_rows(p, COLUMNS, &w, &end))
		return;
	compute_tile<false, !transposed, false>(maps, shared, w, bf16_products<false, !transposed>{ w },
	                                        [&](const tile_sums &sums) { store_rows(p, w, end, sums); });
}

template <int activation>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
        grouped_gate_up_kernel(struct gate_up_product p, const __grid_constant__ struct operand_maps maps)
{
	DYNAMIC_SHARED(char, shared);
	struct tile_work w;
	int end;
	if (!find_rows(p.of, HALF, &w, &end))
		return;
	compute_tile<false, false, true>(maps, shared, w, bf16_products<false, false>{ w }, [&](const tile_sums &sums) {
		store_gate_up<activation>(p, w, end, sums, [&](int64_t row, uint32_t (&pairs)[4], int at, bool is_there) {
			store_eight((bf16 *)p.to.act + row, pairs, at, p.of.n, is_there);
		});
	});
}

static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
        grouped_grad_kernel(struct grad_product p, const __grid_constant__ struct operand_maps maps)
{
	DYNAMIC_SHARED(char, shared);
	struct tile_work w = { 0, 0, p.first[blockIdx.y], p.first[blockIdx.y + 1], 1, 0 };
	if (!find_grad(p, &w))
		return;
	compute_tile<true, true, false>(maps, shared, w, bf16_products<true, true>{ w },
	                                [&](const tile_sums &sums) { store_grad(p, w, sums); });
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
	LAUNCH_PAIRS(grouped_grad_kernel, grad_grid(groups, m, n), THREADS, SHARED_BYTES, cuda->stream, p, maps);
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
