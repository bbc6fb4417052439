/* SPDX-License-Identifier: Apache-2.0 */
/* How attention's kernels are launched, on CUDA cores (attention.cu) or tensor cores (attention_mma.cu). */
#include "runtime/device/cuda/attention.h"

static int allow(const struct attention *a, const struct attention_kernel *kernel, struct hspmd_error *err)
{
	if (a->stage == ATTENTION_PREPARED)
		return 0;
	cudaError_t status = allow_shared((const void *)kernel->run, kernel->shared);
	return status ? hspmd_cuda_failed(status, "heads too large for attention", err) : 0;
}

/* rows, heads: numbers of queries, or of keys. */
static void launch(struct hspmd_cuda *cuda, const struct attention *a, const struct attention_kernel *kernel, int rows, int heads)
{
	int tiles = (int)ceil_div(rows, kernel->rows);
	auto *run = kernel->run;
	if (a->stage == ATTENTION_PREPARING)
		return;
	LAUNCH(run, (unsigned)(tiles * a->batches * heads), kernel->threads, kernel->shared, cuda->stream, *a, tiles);
}

int hspmd_cuda_attention_launch(struct hspmd_cuda *cuda, const struct attention *a, const struct attention_kernel *forward,
                                struct hspmd_error *err)
{
	if (allow(a, forward, err))
		return -1;
	launch(cuda, a, forward, a->queries, a->heads);
	return 0;
}

int hspmd_cuda_attention_grad_launch(struct hspmd_cuda *cuda, const struct attention *a, const struct attention_kernel *keys,
                                     const struct attention_kernel *queries, struct hspmd_error *err)
{
	if (allow(a, keys, err) || allow(a, queries, err))
		return -1;
	if (a->dk.data || a->dv.data)
		launch(cuda, a, keys, a->keys, a->kv_heads);
	if (a->dq.data)
		launch(cuda, a, queries, a->queries, a->heads);
	return 0;
}
