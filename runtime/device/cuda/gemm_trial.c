/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/cuda/gemm_trial.h"

#include <string.h>

static bool allocate(const struct hspmd_cuda_gemm_trial *t, void **data, size_t bytes, bool fill)
{
	if (cudaMalloc(data, bytes + 64)) {
		cudaGetLastError(); /* lack of memory is no error */
		return false;
	}
	return !fill || !cudaMemsetAsync(*data, 0x3c, bytes, t->watch.stream);
}

bool hspmd_cuda_gemm_trial_start(struct hspmd_cuda_gemm_trial *t, const struct hspmd_cuda_gemm *p)
{
	size_t in = hspmd_cuda_dtype_bytes(p->type), out = hspmd_cuda_dtype_bytes(p->d_type);
	size_t a = (size_t)((p->trans_a ? p->k : p->m) * hspmd_cuda_gemm_lda(p)) * in,
	       b = (size_t)((p->trans_b ? p->n : p->k) * hspmd_cuda_gemm_ldb(p)) * in, d = (size_t)(p->m * hspmd_cuda_gemm_ldd(p)) * out;
	size_t bytes[4] = { a, b, d, p->has_aux ? d : 0 };
	memset(t, 0, sizeof *t);
	if (!hspmd_cuda_autotune_timer_open(&t->watch))
		return false;
	for (int i = 0; i < 4; i++)
		if (!allocate(t, &t->memory[i], bytes[i], true))
			return false;
	return allocate(t, &t->workspace, HSPMD_CUDA_GEMM_WORKSPACE, false);
}

struct hspmd_cuda_gemm hspmd_cuda_gemm_trial_product(const struct hspmd_cuda_gemm_trial *t, const struct hspmd_cuda_gemm *p)
{
	struct hspmd_cuda_gemm q = *p;
	q.a = t->memory[0];
	q.b = t->memory[1];
	q.d = t->memory[2];
	/* Small operands share the memory of the result: their contents do not matter here, they only have to exist. */
	q.residual = q.bias = q.bgrad = t->memory[2];
	q.beside = t->memory[3];
	q.scale_a = q.scale_b = t->memory[2];
	return q;
}

void hspmd_cuda_gemm_trial_end(struct hspmd_cuda_gemm_trial *t)
{
	for (int i = 0; i < 4; i++)
		if (t->memory[i])
			cudaFree(t->memory[i]);
	if (t->workspace)
		cudaFree(t->workspace);
	hspmd_cuda_autotune_timer_close(&t->watch);
}
