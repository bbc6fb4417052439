/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and a stream to measure a product with. */
#ifndef HSPMD_CUDA_GEMM_TRIAL_H
#define HSPMD_CUDA_GEMM_TRIAL_H

#include "runtime/device/cuda/autotune_timer.h"
#include "runtime/device/cuda/gemm.h"

struct hspmd_cuda_gemm_trial {
	struct hspmd_cuda_autotune_timer watch;
	void *memory[4]; /* a, b, d, `beside` */
	void *workspace; /* HSPMD_CUDA_GEMM_WORKSPACE bytes */
};

/* Allocates trial buffers next to the program's, if there is memory for them; they are filled with bytes that are small numbers in either
 * type. Returns false if there is not enough memory. */
bool hspmd_cuda_gemm_trial_start(struct hspmd_cuda_gemm_trial *t, const struct hspmd_cuda_gemm *p);
/* The product of these buffers. */
struct hspmd_cuda_gemm hspmd_cuda_gemm_trial_product(const struct hspmd_cuda_gemm_trial *t, const struct hspmd_cuda_gemm *p);
void hspmd_cuda_gemm_trial_end(struct hspmd_cuda_gemm_trial *t); /* also if it did not start */

#endif
