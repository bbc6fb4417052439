/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many matrices: large ones each by cuBLASLt, small ones all in one launch, in tiles on CUDA cores. */
#include "runtime/device/cuda/gemm.h"
#include "runtime/device/cuda/kernel.h"

#define TILE 32
#define THREADS 256
#define LINES (THREADS / TILE)
#define LARGE ((int64_t)1 << 24) /* multiplications of a product for which a launch of its own is worth while */
#define MOST_BATCHES 65535       /* of one launch */

struct product {
	int64_t m, n, k, a_rows, a_columns, b_rows, b_columns; /* element (i, j) of a is at i * a_rows + j * a_columns */
	bool accumulate;
};

template <typename T, typename U>
static __global__ void __launch_bounds__(THREADS) tile_kernel(struct product p, const T *a, const T *b, U *d)
{
	__shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
	int column = threadIdx.x % TILE, line = threadIdx.x / TILE;
	int64_t tiles = (p.n + TILE - 1) / TILE, m0 = blockIdx.x / tiles * TILE, n0 = blockIdx.x % tiles * TILE;
	float sum[TILE / LINES] = {};
	a += blockIdx.y * p.m * p.k;
	b += blockIdx.y * p.k * p.n;
	d += blockIdx.y * p.m * p.n;
	for (int64_t k0 = 0; k0 < p.k; k0 += TILE) {
		__syncthreads();
		for (int i = line; i < TILE; i += LINES) {
			left[i][column] =
			        m0 + i < p.m && k0 + column < p.k ? to_float(a[(m0 + i) * p.a_rows + (k0 + column) * p.a_columns]) : 0.0f;
			right[i][column] =
			        k0 + i < p.k && n0 + column < p.n ? to_float(b[(k0 + i) * p.b_rows + (n0 + column) * p.b_columns]) : 0.0f;
		}
		__syncthreads();
		for (int i = 0; i < TILE; i++)
			for (int r = 0; r < TILE / LINES; r++)
				sum[r] += left[line + LINES * r][i] * right[i][column];
	}
	for (int r = 0; r < TILE / LINES; r++) {
		int64_t i = m0 + line + LINES * r, j = n0 + column;
		if (i < p.m && j < p.n)
			d[i * p.n + j] = from_float<U>((p.accumulate ? to_float(d[i * p.n + j]) : 0.0f) + sum[r]);
	}
}

static struct hspmd_cuda_gemm gemm_of(const struct hspmd_kernel_args *args, int64_t *count)
{
	const struct hspmd_view *a = &args->in[0], *y = &args->out[0];
	struct hspmd_cuda_gemm p = {};
	p.trans_a = args->attr->kind & 1;
	p.trans_b = args->attr->kind & 2;
	p.m = y->shape[y->rank - 2];
	p.n = y->shape[y->rank - 1];
	p.k = a->shape[a->rank - (p.trans_a ? 2 : 1)];
	p.a = a->data;
	p.b = args->in[1].data;
	p.d = y->data;
	p.accumulate = y->accumulate;
	p.type = a->dtype;
	p.d_type = y->dtype;
	p.tf32 = args->tf32;
	p.workspace_most = args->workspace_most;
	p.choice = args->prepared ? (const struct hspmd_cuda_gemm_choice *)args->prepared->choice[0] : NULL;
	*count = 1;
	for (int d = 0; d < y->rank - 2; d++)
		*count *= y->shape[d];
	return p;
}

static bool is_large(const struct hspmd_cuda_gemm *p)
{
	return p->m * p->n * p->k >= LARGE;
}

template <typename T, typename U> static void tiles_of(struct hspmd_cuda *cuda, const struct hspmd_cuda_gemm *g, int64_t count)
{
	struct product p = {
		g->m, g->n, g->k, g->trans_a ? 1 : g->k, g->trans_a ? g->m : 1, g->trans_b ? 1 : g->n, g->trans_b ? g->k : 1, g->accumulate
	};
	auto *kernel = tile_kernel<T, U>;
	for (int64_t i = 0; i < count; i += MOST_BATCHES) {
		dim3 grid((unsigned)(ceil_div(p.m, TILE) * ceil_div(p.n, TILE)),
		          (unsigned)(count - i < MOST_BATCHES ? count - i : MOST_BATCHES));
		LAUNCH(kernel, grid, THREADS, 0, cuda->stream, p, (const T *)g->a + i * p.m * p.k, (const T *)g->b + i * p.k * p.n,
		       (U *)g->d + i * p.m * p.n);
	}
}

static int matmul(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_error *err)
{
	int64_t count, bytes = (int64_t)hspmd_cuda_dtype_bytes(args->in[0].dtype),
	               d_bytes = (int64_t)hspmd_cuda_dtype_bytes(args->out[0].dtype);
	struct hspmd_cuda_gemm p = gemm_of(args, &count);
	if (!is_large(&p)) {
		if (p.type == HSPMD_F32)
			tiles_of<float, float>(cuda, &p, count);
		else if (p.d_type == HSPMD_F32)
			tiles_of<bf16, float>(cuda, &p, count);
		else
			tiles_of<bf16, bf16>(cuda, &p, count);
		return 0;
	}
	for (int64_t i = 0; i < count; i++) {
		if (hspmd_cuda_gemm_run(cuda, &p, args->workspace, args->workspace_bytes, err))
			return -1;
		p.a = (const char *)p.a + p.m * p.k * bytes;
		p.b = (const char *)p.b + p.k * p.n * bytes;
		p.d = (char *)p.d + p.m * p.n * d_bytes;
	}
	return 0;
}

static size_t workspace(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args)
{
	int64_t count;
	struct hspmd_cuda_gemm p = gemm_of(args, &count);
	return is_large(&p) ? hspmd_cuda_gemm_workspace(cuda, &p) : 0;
}

static int prepare(struct hspmd_cuda *cuda, const struct hspmd_kernel_args *args, struct hspmd_prepared *to, struct hspmd_error *err)
{
	int64_t count;
	struct hspmd_cuda_gemm p = gemm_of(args, &count);
	return is_large(&p) ? hspmd_cuda_gemm_prepare(cuda, &p, &to->choice[0], err) : 0;
}

const struct hspmd_cuda_kernel hspmd_cuda_matmul = { matmul, workspace, NULL, prepare };
