/* SPDX-License-Identifier: Apache-2.0 */
/* Products for which cuBLASLt has no algorithm (sizes that are no multiple of 16 bytes): tiles in shared memory, on CUDA cores, for any
 * sizes. */
#include "runtime/device/cuda/kernel.h"
#include "runtime/device/cuda/gemm.h"

#define TILE 32
#define THREADS 256
#define LINES (THREADS / TILE)

/* Element (i, j) of an operand is data[i * rows + j * columns]. */
template <typename T> struct operand {
	const T *data;
	int64_t rows, columns;
};

template <typename T, typename U>
static __global__ void __launch_bounds__(THREADS) any_kernel(struct operand<T> a, struct operand<T> b, U *d, const U *bias,
                                                             const U *residual, int64_t ldd, int64_t m, int64_t n, int64_t k)
{
	__shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
	int column = threadIdx.x % TILE, line = threadIdx.x / TILE;
	int64_t m0 = (int64_t)blockIdx.y * TILE, n0 = (int64_t)blockIdx.x * TILE;
	float sum[TILE / LINES] = {};
	for (int64_t k0 = 0; k0 < k; k0 += TILE) {
		__syncthreads();
		for (int i = line; i < TILE; i += LINES) {
			left[i][column] =
			        m0 + i < m && k0 + column < k ? to_float(a.data[(m0 + i) * a.rows + (k0 + column) * a.columns]) : 0.0f;
			right[i][column] =
			        k0 + i < k && n0 + column < n ? to_float(b.data[(k0 + i) * b.rows + (n0 + column) * b.columns]) : 0.0f;
		}
		__syncthreads();
		for (int i = 0; i < TILE; i++)
			for (int r = 0; r < TILE / LINES; r++)
				sum[r] += left[line + LINES * r][i] * right[i][column];
	}
	for (int r = 0; r < TILE / LINES; r++) {
		int64_t i = m0 + line + LINES * r, j = n0 + column;
		if (i < m && j < n)
			d[i * ldd + j] = from_float<U>((residual ? to_float(residual[i * ldd + j]) : 0.0f) + sum[r] +
			                               (bias ? to_float(bias[j]) : 0.0f));
	}
}

template <typename T, typename U> static void multiply(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p)
{
	struct operand<T> a = {
		(const T *)p->a, p->trans_a ? 1 : hspmd_cuda_gemm_lda(p), p->trans_a ? hspmd_cuda_gemm_lda(p) : 1
	};
	struct operand<T> b = {
		(const T *)p->b, p->trans_b ? 1 : hspmd_cuda_gemm_ldb(p), p->trans_b ? hspmd_cuda_gemm_ldb(p) : 1
	};
	dim3 grid((unsigned)ceil_div(p->n, TILE), (unsigned)ceil_div(p->m, TILE));
	const U *bias = (const U *)(p->has_bias ? p->bias : NULL), *residual = (const U *)(p->has_residual ? p->residual
	                                                                                   : p->accumulate ? p->d
	                                                                                                   : NULL);
	auto *kernel = any_kernel<T, U>;
	LAUNCH(kernel, grid, THREADS, 0, cuda->stream, a, b, (U *)p->d, bias, residual, hspmd_cuda_gemm_ldd(p), p->m, p->n, p->k);
}

int hspmd_cuda_gemm_fallback(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *p, struct hspmd_error *err)
{
	if (ceil_div(p->m, TILE) > 65535)
		return hspmd_fail(err, "a product of %lld rows that cuBLASLt has no algorithm for", (long long)p->m);
	if (p->type == HSPMD_F32)
		multiply<float, float>(cuda, p);
	else if (p->d_type == HSPMD_F32)
		multiply<bf16, float>(cuda, p);
	else
		multiply<bf16, bf16>(cuda, p);
	return 0;
}
